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

/// A list of floats, or the tensor that holds the list in higher precision.
pub fn numbers(a: &mut Attrs, name: &str) -> Result<Vec<f64>> {
    let list = a.floats_opt(name)?.unwrap_or_default();
    let tensor = format!("{name}_as_tensor");
    if !a.knows(&tensor) {
        return Ok(list.into_iter().map(f64::from).collect());
    }
    match tensor_opt(a, &tensor)? {
        Some(_) if !list.is_empty() => {
            a.error(format!("only one of {name} and {tensor} may be given")).fail()
        }
        Some(v) => Ok(v),
        None => Ok(list.into_iter().map(f64::from).collect()),
    }
}

/// A list of integers; empty if it is absent.
fn ints(a: &mut Attrs, name: &str) -> Result<Vec<i64>> {
    Ok(a.ints_opt(name)?.unwrap_or_default())
}

fn tensor_opt(a: &mut Attrs, name: &str) -> Result<Option<Vec<f64>>> {
    match a.tensor_opt(name)? {
        None => Ok(None),
        Some(t) => match t.to_f64s() {
            Some(v) => Ok(Some(v)),
            None => a.error(format!("attribute {name} must be a tensor of floats")).fail(),
        },
    }
}

fn tensor(a: &mut Attrs, name: &str) -> Result<Vec<f64>> {
    match tensor_opt(a, name)? {
        Some(v) => Ok(v),
        None => a.error(format!("{} needs the attribute {name}", a.op())).fail(),
    }
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
        let trees = ints(a, "nodes_treeids")?;
        let ids = ints(a, "nodes_nodeids")?;
        let features = ints(a, "nodes_featureids")?;
        let yes = ints(a, "nodes_truenodeids")?;
        let no = ints(a, "nodes_falsenodeids")?;
        let modes = a.strings_opt("nodes_modes")?.unwrap_or_default();
        let mut values = numbers(a, "nodes_values")?;
        let missing = ints(a, "nodes_missing_value_tracks_true")?;
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
            let test = match modes[i].as_str() {
                "BRANCH_LEQ" => Test::Leq(values[i]),
                "BRANCH_LT" => Test::Lt(values[i]),
                "BRANCH_GTE" => Test::Gte(values[i]),
                "BRANCH_GT" => Test::Gt(values[i]),
                "BRANCH_EQ" => Test::Eq(values[i]),
                "BRANCH_NEQ" => Test::Neq(values[i]),
                m => return a.error(format!("nodes_modes has \"{m}\", which is no mode")).fail(),
            };
            let missing_holds = missing.get(i).is_some_and(|m| *m != 0);
            nodes.push(Branch {
                feature: features[i],
                test,
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
            (ints(a, &format!("{prefix}_treeids"))?, ints(a, &format!("{prefix}_nodeids"))?);
        let (targets, weights) =
            (ints(a, &format!("{prefix}_ids"))?, numbers(a, &format!("{prefix}_weights"))?);
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
        let features = ints(a, "nodes_featureids")?;
        let (yes, no) = (ints(a, "nodes_truenodeids")?, ints(a, "nodes_falsenodeids")?);
        let (yes_leaf, no_leaf) = (ints(a, "nodes_trueleafs")?, ints(a, "nodes_falseleafs")?);
        let missing = ints(a, "nodes_missing_value_tracks_true")?;
        let splits = tensor(a, "nodes_splits")?;
        let modes = match a.tensor_opt("nodes_modes")?.and_then(|t| t.to_i64s()) {
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
        let members = tensor_opt(a, "membership_values")?.unwrap_or_default();
        // Sets are consecutive in the order of their nodes, each terminated by a NaN.
        let mut sets = members.split_inclusive(|v| v.is_nan());
        let (targets, weights) = (ints(a, "leaf_targetids")?, tensor(a, "leaf_weights")?);
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
            let v = splits[i];
            let test = match modes[i] {
                0 => Test::Leq(v),
                1 => Test::Lt(v),
                2 => Test::Gte(v),
                3 => Test::Gt(v),
                4 => Test::Eq(v),
                5 => Test::Neq(v),
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
        let mut roots = vec![];
        for r in ints(a, "tree_roots")? {
            roots.push(target(a, r, 0)?);
        }
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
