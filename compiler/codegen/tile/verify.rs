//! The verifier of the tile IR. Its rules:
//!
//! 1. A value has one definition - a parameter of the function or of a block, or a result - which comes
//!    before every use on every path from the entry.
//! 2. Blocks end with the only instruction that leaves, and go to as many blocks as it says; predecessors are
//!    listed.
//! 3. A block with parameters gets as many values, of their classes, from each predecessor, whose only
//!    successor it is.
//! 4. Operands and results have the classes that the operation says. Without mask registers a mask is a
//!    vector, and vector operations may make and take masks.
//! 5. The machine has the operation.

use super::ir::{Class, Func, Mem, Node, Op, Value};
use super::isa::Machine;

/// Verifies a function; returns the first fault, with the instruction.
pub(super) fn verify(f: &Func, machine: &dyn Machine) -> Result<(), String> {
    let mut v = Verify { f, defined: vec![false; f.classes.len()] };
    for p in &f.params {
        v.define(*p).map_err(|e| format!("parameters: {e}"))?;
    }
    // Stack parameters are defined by the operation that loads them.
    let loaded = |p: &Value| {
        f.blocks.iter().flat_map(|b| &b.nodes).any(|n| matches!(n.op, Op::StackArg(_)) && n.def == Some(*p))
    };
    f.params.iter().filter(|p| loaded(p)).for_each(|p| v.defined[p.0 as usize] = false);
    for (i, b) in f.blocks.iter().enumerate() {
        for p in &b.params {
            v.define(*p).map_err(|e| format!("block {i}: {e}"))?;
        }
        let last = b.nodes.len().saturating_sub(1);
        for (j, n) in b.nodes.iter().enumerate() {
            let fault =
                |e: String| format!("block {i}: {e}\n    {:?} = {:?} {:?} {:?}", n.def, n.op, n.args, n.mem);
            v.node(n).map_err(fault)?;
            if !machine.has_op(n.op) {
                return Err(fault("an operation that the machine does not have".into()));
            }
            if (j == last) != leaves(n.op).is_some() {
                return Err(fault("a block does not end where it leaves".into()));
            }
        }
        v.edges(i)?;
    }
    v.order()
}

/// The number of successors, if the operation is a terminator.
fn leaves(op: Op) -> Option<usize> {
    match op {
        Op::Jump => Some(1),
        Op::BranchLess(_) => Some(2),
        Op::Ret | Op::RetAny => Some(0),
        _ => None,
    }
}

struct Verify<'a> {
    f: &'a Func,
    defined: Vec<bool>,
}

impl Verify<'_> {
    fn class(&self, v: Value) -> Option<Class> {
        self.f.classes.get(v.0 as usize).copied()
    }
    fn define(&mut self, v: Value) -> Result<(), String> {
        match self.defined.get_mut(v.0 as usize) {
            None => Err(format!("{v:?} is no value of the function")),
            Some(d) if *d => Err(format!("{v:?} has two definitions")),
            Some(d) => {
                *d = true;
                Ok(())
            }
        }
    }
    fn want(&self, v: Option<Value>, class: Class) -> Result<(), String> {
        let Some(v) = v else { return Err("an operand is missing".into()) };
        let found = self.class(v);
        let loose = self.f.width.masks_are_vectors() && found != Some(Class::Int) && class != Class::Int;
        if found == Some(class) || loose && found.is_some() {
            Ok(())
        } else {
            Err(format!("{v:?}: found {found:?}, expected {class:?}"))
        }
    }
    fn node(&mut self, n: &Node) -> Result<(), String> {
        let (args, def) = classes(n.op);
        // Memory or a literal may replace the last operand.
        let folded = usize::from(n.literal.is_some() || n.mem.is_some() && !n.op.is_memory());
        let least = args.iter().filter(|a| !a.1).count().saturating_sub(folded);
        if n.args.len() < least || n.args.len() > args.len() {
            return Err(format!("found {} operands, expected {least}", n.args.len()));
        }
        for (v, (class, _)) in n.args.iter().zip(args) {
            self.want(Some(*v), *class)?;
        }
        if n.op.is_memory() && n.mem.is_none() {
            return Err("a memory operand is missing".into());
        }
        for v in n.mem.iter().flat_map(Mem::values) {
            self.want(Some(v), Class::Int)?;
        }
        match (n.def, def) {
            (None, None) => Ok(()),
            (Some(d), Some(c)) => {
                self.want(Some(d), c)?;
                self.define(d)
            }
            (d, c) => Err(format!("the result is {d:?}, expected {c:?}")),
        }
    }
    fn edges(&self, i: usize) -> Result<(), String> {
        let b = &self.f.blocks[i];
        let wrong = |e: &str| Err(format!("block {i}: {e}"));
        if b.nodes.last().and_then(|n| leaves(n.op)) != Some(b.succs.len()) {
            return wrong("it goes to another number of blocks than its last instruction says");
        }
        if b.succs.iter().any(|s| self.f.blocks.get(*s).is_none_or(|s| !s.preds.contains(&i))) {
            return wrong("a successor does not list it as a predecessor");
        }
        if b.preds.iter().any(|p| self.f.blocks.get(*p).is_none_or(|p| !p.succs.contains(&i))) {
            return wrong("a predecessor does not go to it");
        }
        if !b.jump_args.is_empty() && b.succs.len() != 1 {
            return wrong("it hands over values and has several successors");
        }
        for s in &b.succs {
            let params = &self.f.blocks[*s].params;
            let same = params.len() == b.jump_args.len()
                && params
                    .iter()
                    .zip(&b.jump_args)
                    .all(|(p, a)| self.want(Some(*a), self.class(*p).unwrap_or(Class::Int)).is_ok());
            if !same {
                return wrong("it does not hand over what its successor takes");
            }
        }
        Ok(())
    }
    /// Rule 1, by the sets of values that are there on every path.
    fn order(&self) -> Result<(), String> {
        let f = self.f;
        let values = f.classes.len();
        let mut ends: Vec<Option<Vec<bool>>> = vec![None; f.blocks.len()];
        loop {
            let mut changed = false;
            for (i, b) in f.blocks.iter().enumerate() {
                let mut there = self.entry(i, &ends);
                for v in b.params.iter().copied().chain(b.nodes.iter().filter_map(|n| n.def)) {
                    there[v.0 as usize] = true;
                }
                if ends[i].as_ref() != Some(&there) {
                    ends[i] = Some(there);
                    changed = true;
                }
            }
            if !changed {
                break;
            }
        }
        for (i, b) in f.blocks.iter().enumerate() {
            let mut there = self.entry(i, &ends);
            b.params.iter().for_each(|p| there[p.0 as usize] = true);
            let used = |v: Value, there: &[bool]| {
                if (v.0 as usize) < values && there[v.0 as usize] {
                    Ok(())
                } else {
                    Err(format!("block {i}: {v:?} is used before its definition"))
                }
            };
            for n in &b.nodes {
                n.values().try_for_each(|v| used(v, &there))?;
                if let Some(d) = n.def {
                    there[d.0 as usize] = true;
                }
            }
            b.jump_args.iter().try_for_each(|v| used(*v, &there))?;
        }
        Ok(())
    }
    /// Values that are there where a block begins; all of them as long as nothing is known of its
    /// predecessors.
    fn entry(&self, i: usize, ends: &[Option<Vec<bool>>]) -> Vec<bool> {
        let f = self.f;
        if i == 0 {
            let mut there = vec![false; f.classes.len()];
            f.params.iter().take(f.width.register_params()).for_each(|p| there[p.0 as usize] = true);
            return there;
        }
        let mut there = vec![true; f.classes.len()];
        for e in f.blocks[i].preds.iter().filter_map(|p| ends[*p].as_ref()) {
            there.iter_mut().zip(e).for_each(|(t, e)| *t &= e);
        }
        there
    }
}

/// The class of an operand, and whether it may be missing.
type Operand = (Class, bool);

/// Classes of the operands and of the result.
fn classes(op: Op) -> (&'static [Operand], Option<Class>) {
    const I: Operand = (Class::Int, false);
    const V: Operand = (Class::Vector, false);
    const M: Operand = (Class::Mask, false);
    const MAYBE: Operand = (Class::Mask, true);
    let (int, vector, mask) = (Some(Class::Int), Some(Class::Vector), Some(Class::Mask));
    match op {
        Op::Args | Op::Prefetch { .. } | Op::Jump | Op::Ret => (&[], None),
        Op::StackArg(_) | Op::Int(_) | Op::IntLiteral(_) | Op::Address => (&[], int),
        Op::AddImm(_) | Op::AndImm(_) | Op::MulImm(_) | Op::ShrImm(_) => (&[I], int),
        Op::Add | Op::Mul | Op::Quotient | Op::Lesser | Op::Greater => (&[I, I], int),
        Op::First(_) => (&[V], int),
        Op::Const(_) | Op::Literal(..) | Op::Table(_) | Op::Iota(..) => (&[], vector),
        Op::LaneNumbers(_) | Op::ByteNumbers(_) => (&[], vector),
        Op::SomeLanes(_) | Op::FirstLanes(_) => (&[], mask),
        Op::Splat(_) | Op::SplatFloat => (&[I], vector),
        Op::Load(_) | Op::Broadcast(_) => (&[MAYBE], vector),
        Op::LoadFirst(..) => (&[], vector),
        Op::LoadStrided(_) => (&[I, MAYBE], vector),
        Op::LoadIndexed(_) => (&[V, MAYBE], vector),
        Op::StoreStrided(_) => (&[V, I, MAYBE], None),
        Op::Element(..) | Op::Number(..) => (&[], None),
        Op::LanesSwapped(..) | Op::SplatScalar(..) => (&[], vector),
        Op::Permuted(_) => (&[V, V], vector),
        Op::BinScalar { .. } => (&[V], vector),
        Op::BinInt(..) => (&[V, I], vector),
        Op::FmaScalar { .. } => (&[V, V], vector),
        Op::Gather(_) => (&[V, M], vector),
        Op::Store(_) => (&[V, MAYBE], None),
        Op::StoreFirst(..) | Op::StoreLane(..) | Op::StoreScalar(_) => (&[V], None),
        Op::Scatter(_) => (&[V, V, M], None),
        Op::AnyLane => (&[M], int),
        Op::Bin(..) => (&[V, V], vector),
        Op::Un(..) => (&[V], vector),
        Op::Fma { .. } | Op::Fma231 { .. } | Op::Fma213 { .. } => (&[V, V, V], vector),
        Op::FmaLane { .. } | Op::FmaHalves { .. } => (&[V, V, V], vector),
        Op::Dot(_) | Op::DotLane { .. } | Op::Dot2 | Op::MatrixDot { .. } => (&[V, V, V], vector),
        Op::Permute2 | Op::PermuteWords2 => (&[V, V, V], vector),
        Op::Dot8 { .. } => (&[V, V, V, V], vector),
        Op::MulHalves { .. } | Op::BinHalves(_) => (&[V, V], vector),
        Op::Zip { .. } | Op::Unzip { .. } | Op::UnzipBlocks { .. } => (&[V, V], vector),
        Op::AddMulBytes { .. } | Op::BytesInto => (&[V, V, V], vector),
        Op::MulBytes { .. } | Op::AddPairs(_) | Op::BytesFrom => (&[V, V], vector),
        Op::Cmp(..) | Op::ICmp(..) | Op::UCmp(..) => (&[V, V], mask),
        Op::MaskAnd | Op::MaskOr | Op::MaskXor => (&[M, M], mask),
        Op::Select(_) | Op::SelectInto(..) => (&[V, V, M], vector),
        Op::BranchLess(Some(_)) => (&[I], None),
        Op::BranchLess(None) => (&[I, I], None),
        Op::RetAny => (&[M], None),
    }
}

#[cfg(test)]
mod tests;
