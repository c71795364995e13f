//! Trees in a common form, independent of their attributes.
//!
//! All comparisons become `x <= v`: `<` compares with the next smaller number, `>` and `>=` swap the
//! branches, equality takes two comparisons, and a set is a sequence of equalities. Missing values (NaN)
//! follow the node's flag, which is swapped together with the branches.

use crate::tensor::ElemType;

/// A comparison of the model.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Test {
    Leq(f64),
    Lt(f64),
    Gte(f64),
    Gt(f64),
    Eq(f64),
    Neq(f64),
    Member(Vec<f64>),
}

/// The target of a branch, by the model's indices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    /// A node that tests.
    Node(usize),
    /// A leaf.
    Leaf(usize),
}

/// A node of the model.
#[derive(Clone, Debug, PartialEq)]
pub struct Branch {
    /// Column of the input.
    pub feature: i64,
    /// The comparison.
    pub test: Test,
    /// True if a missing value takes the branch of a true comparison.
    pub missing_holds: bool,
    /// Target if the comparison is true.
    pub yes: Target,
    /// Target otherwise.
    pub no: Target,
}

/// A comparison `x[feature] <= value`; if `nan_holds`, `!(x[feature] > value)`, which is true for NaN.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs)]
pub struct Step {
    pub feature: i64,
    pub value: f64,
    pub nan_holds: bool,
    pub yes: usize,
    pub no: usize,
}

/// The contribution of a leaf to one target.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Weight {
    /// Target or class.
    pub target: i64,
    /// Value.
    pub value: f64,
}

/// All trees. Positions below `steps.len()` are steps, the others are leaves.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Forest {
    /// Comparisons.
    pub steps: Vec<Step>,
    /// Weights of each leaf.
    pub leaves: Vec<Vec<Weight>>,
    /// Position of each tree's root.
    pub roots: Vec<usize>,
}

/// The next smaller number of a type; NaN, with which every comparison fails, below the smallest.
fn below(v: f64, ty: ElemType) -> f64 {
    match ty {
        _ if v == f64::NEG_INFINITY => f64::NAN,
        ElemType::F64 => v.next_down(),
        _ => f64::from((v as f32).next_down()),
    }
}

impl Forest {
    /// Builds the forest from the model's nodes; compared numbers have type `ty`. Errors are sentences about
    /// the model.
    pub fn new(
        nodes: &[Branch],
        leaves: Vec<Vec<Weight>>,
        roots: &[Target],
        ty: ElemType,
    ) -> Result<Forest, String> {
        acyclic(nodes, leaves.len(), roots)?;
        // Leaves follow all steps, whose number is known only at the end. Until then they are numbered from
        // the top.
        let leaf = |i: usize| usize::MAX - i;
        let mut f = Forest { leaves, ..Forest::default() };
        // The first step of each node, in node order.
        let mut starts = vec![];
        let mut at = 0;
        for n in nodes {
            starts.push(at);
            at += n.test.steps();
        }
        let place = |t: Target| match t {
            Target::Node(i) => starts[i],
            Target::Leaf(i) => leaf(i),
        };
        for n in nodes {
            n.write(&mut f.steps, place(n.yes), place(n.no), ty);
        }
        f.roots = roots.iter().map(|r| place(*r)).collect();
        let count = f.steps.len();
        let settle = |p: &mut usize| {
            if *p >= count {
                *p = count + (usize::MAX - *p);
            }
        };
        f.steps.iter_mut().for_each(|s| {
            settle(&mut s.yes);
            settle(&mut s.no);
        });
        f.roots.iter_mut().for_each(settle);
        Ok(f)
    }
}

impl Test {
    /// Number of steps that it becomes.
    fn steps(&self) -> usize {
        match self {
            Test::Eq(_) | Test::Neq(_) => 2,
            Test::Member(v) => 2 * v.len().max(1),
            _ => 1,
        }
    }
}

/// Where a test leads, and whether it holds for a missing value.
#[derive(Clone, Copy)]
struct Ways {
    nan: bool,
    yes: usize,
    no: usize,
}

impl Ways {
    /// The ways of the opposite test.
    fn swapped(self) -> Ways {
        Ways { nan: !self.nan, yes: self.no, no: self.yes }
    }
}

impl Branch {
    fn write(&self, out: &mut Vec<Step>, yes: usize, no: usize, ty: ElemType) {
        let ways = Ways { nan: self.missing_holds, yes, no };
        match &self.test {
            Test::Leq(v) => self.at_most(out, *v, ways),
            Test::Lt(v) => self.at_most(out, below(*v, ty), ways),
            Test::Gt(v) if !v.is_nan() => self.at_most(out, *v, ways.swapped()),
            Test::Gte(v) if !v.is_nan() => match below(*v, ty) {
                // Every number is at least the smallest.
                b if b.is_nan() => self.at_most(out, f64::INFINITY, ways),
                b => self.at_most(out, b, ways.swapped()),
            },
            Test::Gt(v) | Test::Gte(v) => self.at_most(out, *v, ways),
            Test::Eq(v) => self.equal(out, *v, ty, ways),
            Test::Neq(v) => self.equal(out, *v, ty, ways.swapped()),
            Test::Member(set) => {
                for v in set.split_last().map_or(&[][..], |(_, first)| first) {
                    let next = out.len() + 2;
                    self.equal(out, *v, ty, Ways { no: next, ..ways });
                }
                self.equal(out, set.last().copied().unwrap_or(f64::NAN), ty, ways);
            }
        }
    }
    /// Equality: at most v, and not at most the next smaller number.
    fn equal(&self, out: &mut Vec<Step>, v: f64, ty: ElemType, ways: Ways) {
        let second = out.len() + 1;
        self.at_most(out, v, Ways { yes: second, ..ways });
        // A missing value that arrives here satisfies the test.
        self.at_most(out, below(v, ty), Ways { nan: false, yes: ways.no, no: ways.yes });
    }
    fn at_most(&self, out: &mut Vec<Step>, v: f64, ways: Ways) {
        // No number is at most NaN, but a missing value satisfies the test: all numbers are at most infinity.
        let (value, ways) = if v.is_nan() && ways.nan { (f64::INFINITY, ways.swapped()) } else { (v, ways) };
        let Ways { nan, yes, no } = ways;
        out.push(Step { feature: self.feature, value, nan_holds: nan, yes, no });
    }
}

/// Fails unless all targets exist and there are no cycles.
fn acyclic(nodes: &[Branch], leaves: usize, roots: &[Target]) -> Result<(), String> {
    let inside = |t: &Target| match *t {
        Target::Node(i) => i < nodes.len(),
        Target::Leaf(i) => i < leaves,
    };
    if !roots.iter().chain(nodes.iter().flat_map(|n| [&n.yes, &n.no])).all(inside) {
        return Err("a branch leads to a node that does not exist".into());
    }
    #[derive(Clone, Copy, PartialEq)]
    enum Seen {
        No,
        Open,
        Done,
    }
    let mut seen = vec![Seen::No; nodes.len()];
    let mut stack = vec![];
    for r in roots {
        stack.push((*r, false));
        while let Some((t, leaving)) = stack.pop() {
            let Target::Node(i) = t else { continue };
            match (leaving, seen[i]) {
                (true, _) => seen[i] = Seen::Done,
                (false, Seen::Open) => return Err(format!("node {i} of the trees leads back to itself")),
                (false, Seen::Done) => {}
                (false, Seen::No) => {
                    seen[i] = Seen::Open;
                    stack.extend([(t, true), (nodes[i].yes, false), (nodes[i].no, false)]);
                }
            }
        }
    }
    Ok(())
}
