//! The two sets of attributes that describe trees: lists over (tree, node) pairs in versions 1 and 3, and
//! nodes that refer to each other and to leaves by index in version 5.

use super::check_range;
use super::forest::{Branch, Forest, Target, Test, Weight};
use crate::diag::Result;
use crate::ops::Attrs;
use crate::tensor::ElemType;
use std::collections::HashMap;

/// Nodes, leaves and roots before checks.
#[derive(Clone, Debug, PartialEq)]
pub struct Attributes {
    nodes: Vec<Branch>,
    leaves: Vec<Vec<Weight>>,
    roots: Vec<Target>,
}

type Compare = fn(f64) -> Test;

/// The modes that compare with a number: by name, and in the order of their numbers in version 5.
const TESTS: [(&str, Compare); 6] = [
    ("BRANCH_LEQ", Test::Leq),
    ("BRANCH_LT", Test::Lt),
    ("BRANCH_GTE", Test::Gte),
    ("BRANCH_GT", Test::Gt),
    ("BRANCH_EQ", Test::Eq),
    ("BRANCH_NEQ", Test::Neq),
];

/// A list of floats, or the tensor that holds the list in higher precision.
pub fn numbers(a: &mut Attrs, name: &str) -> Vec<f64> {
    let list: Vec<f64> = a.floats(name).into_iter().map(f64::from).collect();
    let tensor = format!("{name}_as_tensor");
    let wide = if a.knows(&tensor) { tensor_opt(a, &tensor) } else { None };
    let Some(wide) = wide else { return list };
    if !list.is_empty() {
        a.fail(a.error(format!("only one of {name} and {tensor} may be given")));
    }
    wide
}

fn tensor_opt(a: &mut Attrs, name: &str) -> Option<Vec<f64>> {
    let v = a.tensor_opt(name)?.to_f64s();
    if v.is_none() {
        a.fail(a.error(format!("attribute {name} must be a tensor of floats")));
    }
    v
}

fn tensor(a: &mut Attrs, name: &str) -> Vec<f64> {
    tensor_opt(a, name).unwrap_or_else(|| {
        a.fail(a.error(format!("{} needs the attribute {name}", a.op())));
        vec![]
    })
}

fn same_length(a: &Attrs, lists: &[(&str, usize)]) -> Result<()> {
    let Some((first, n)) = lists.first() else { return Ok(()) };
    match lists.iter().find(|l| l.1 != *n) {
        Some((other, m)) => a.error(format!("{first} has {n} values, but {other} has {m}")).fail(),
        None => Ok(()),
    }
}

impl Attributes {
    /// TreeEnsembleClassifier and TreeEnsembleRegressor.
    pub fn version_1(a: &mut Attrs) -> Result<Attributes> {
        a.ignore("nodes_hitrates");
        a.ignore("nodes_hitrates_as_tensor");
        let prefix = if a.op() == "TreeEnsembleClassifier" { "class" } else { "target" };
        let trees = a.ints("nodes_treeids");
        let ids = a.ints("nodes_nodeids");
        let features = a.ints("nodes_featureids");
        let yes = a.ints("nodes_truenodeids");
        let no = a.ints("nodes_falsenodeids");
        let modes = a.strings("nodes_modes");
        let mut values = numbers(a, "nodes_values");
        let missing = a.ints("nodes_missing_value_tracks_true");
        let n = ids.len();
        if values.is_empty() {
            values = vec![0.0; n];
        }
        same_length(
            a,
            &[
                ("nodes_nodeids", n),
                ("nodes_treeids", trees.len()),
                ("nodes_featureids", features.len()),
                ("nodes_truenodeids", yes.len()),
                ("nodes_falsenodeids", no.len()),
                ("nodes_modes", modes.len()),
                ("nodes_values", values.len()),
                ("nodes_missing_value_tracks_true", if missing.is_empty() { n } else { missing.len() }),
            ],
        )?;
        let (mut places, mut nodes_of) = (HashMap::new(), vec![]);
        let (mut n_branches, mut n_leaves) = (0, 0);
        for i in 0..n {
            let t = if modes[i] == "LEAF" {
                n_leaves += 1;
                Target::Leaf(n_leaves - 1)
            } else {
                n_branches += 1;
                nodes_of.push(i);
                Target::Node(n_branches - 1)
            };
            if places.insert((trees[i], ids[i]), t).is_some() {
                return a.error(format!("node {} of tree {} is given twice", ids[i], trees[i])).fail();
            }
        }
        let find = |a: &Attrs, tree: i64, id: i64| match places.get(&(tree, id)) {
            Some(t) => Ok(*t),
            None => a.error(format!("tree {tree} has no node {id}")).fail(),
        };
        let mut nodes = vec![];
        for &i in &nodes_of {
            let mode = &modes[i];
            let Some((_, test)) = TESTS.iter().find(|t| t.0 == mode) else {
                return a.error(format!("nodes_modes has \"{mode}\", which is no mode")).fail();
            };
            let missing_holds = missing.get(i).is_some_and(|m| *m != 0);
            nodes.push(Branch {
                feature: features[i],
                test: test(values[i]),
                missing_holds,
                yes: find(a, trees[i], yes[i])?,
                no: find(a, trees[i], no[i])?,
            });
        }
        // The root of a tree is its first node.
        let (mut roots, mut seen) = (vec![], std::collections::HashSet::new());
        for i in 0..n {
            if seen.insert(trees[i]) {
                roots.push(find(a, trees[i], ids[i])?);
            }
        }
        let (leaf_trees, leaf_ids) =
            (a.ints(&format!("{prefix}_treeids")), a.ints(&format!("{prefix}_nodeids")));
        let (targets, weights) = (a.ints(&format!("{prefix}_ids")), numbers(a, &format!("{prefix}_weights")));
        same_length(
            a,
            &[
                ("weights", weights.len()),
                ("target ids", targets.len()),
                ("their treeids", leaf_trees.len()),
                ("their nodeids", leaf_ids.len()),
            ],
        )?;
        let mut leaves = vec![vec![]; n_leaves];
        for i in 0..weights.len() {
            match find(a, leaf_trees[i], leaf_ids[i])? {
                Target::Leaf(l) => leaves[l].push(Weight { target: targets[i], value: weights[i] }),
                // Weights of an inner node are never used.
                Target::Node(_) => {}
            }
        }
        Ok(Attributes { nodes, leaves, roots })
    }
    /// TreeEnsemble.
    pub fn version_5(a: &mut Attrs) -> Result<Attributes> {
        a.ignore("nodes_hitrates");
        let features = a.ints("nodes_featureids");
        let (yes, no) = (a.ints("nodes_truenodeids"), a.ints("nodes_falsenodeids"));
        let (yes_leaf, no_leaf) = (a.ints("nodes_trueleafs"), a.ints("nodes_falseleafs"));
        let missing = a.ints("nodes_missing_value_tracks_true");
        let splits = tensor(a, "nodes_splits");
        let modes = match a.tensor_opt("nodes_modes").and_then(|t| t.to_i64s()) {
            Some(m) => m,
            None => return a.error("nodes_modes must be a tensor of numbers").fail(),
        };
        let n = features.len();
        same_length(
            a,
            &[
                ("nodes_featureids", n),
                ("nodes_truenodeids", yes.len()),
                ("nodes_falsenodeids", no.len()),
                ("nodes_trueleafs", yes_leaf.len()),
                ("nodes_falseleafs", no_leaf.len()),
                ("nodes_splits", splits.len()),
                ("nodes_modes", modes.len()),
                ("nodes_missing_value_tracks_true", if missing.is_empty() { n } else { missing.len() }),
            ],
        )?;
        let members = tensor_opt(a, "membership_values").unwrap_or_default();
        // Sets are consecutive in the order of their nodes, each terminated by a NaN.
        let mut sets = members.split_inclusive(|v| v.is_nan());
        let (targets, weights) = (a.ints("leaf_targetids"), tensor(a, "leaf_weights"));
        same_length(a, &[("leaf_weights", weights.len()), ("leaf_targetids", targets.len())])?;
        let leaves: Vec<Vec<Weight>> =
            targets.iter().zip(&weights).map(|(t, w)| vec![Weight { target: *t, value: *w }]).collect();
        let target = |a: &Attrs, id: i64, leaf: i64| {
            let (what, n) = if leaf != 0 { ("leaf", leaves.len()) } else { ("node", n) };
            match check_range(what, id, n) {
                Ok(i) => Ok(if leaf != 0 { Target::Leaf(i) } else { Target::Node(i) }),
                Err(m) => a.error(m).fail(),
            }
        };
        let mut nodes = vec![];
        for i in 0..n {
            let test = match modes[i] {
                m @ 0..6 => TESTS[m as usize].1(splits[i]),
                6 => match sets.next() {
                    Some(s) => Test::Member(s.iter().copied().filter(|v| !v.is_nan()).collect()),
                    None => {
                        return a.error("membership_values has fewer sets than nodes_modes asks for").fail();
                    }
                },
                m => return a.error(format!("nodes_modes has {m}, not 0 to 6")).fail(),
            };
            let missing_holds = missing.get(i).is_some_and(|m| *m != 0);
            nodes.push(Branch {
                feature: features[i],
                test,
                missing_holds,
                yes: target(a, yes[i], yes_leaf[i])?,
                no: target(a, no[i], no_leaf[i])?,
            });
        }
        let roots = a.ints("tree_roots").into_iter().map(|r| target(a, r, 0)).collect::<Result<_>>()?;
        Ok(Attributes { nodes, leaves, roots })
    }
    /// The checked forest in common form, for numbers of a type.
    pub fn forest(&self, ty: ElemType, targets: usize) -> std::result::Result<Forest, String> {
        for b in &self.nodes {
            check_range("feature", b.feature, 1 << 30)?;
        }
        for w in self.leaves.iter().flatten() {
            check_range("class or target", w.target, targets)?;
        }
        let f = Forest::new(&self.nodes, self.leaves.clone(), &self.roots, ty)?;
        if f.steps.len() + f.leaves.len() > i32::MAX as usize {
            return Err("the trees have more than 2^31 nodes".into());
        }
        Ok(f)
    }
}
