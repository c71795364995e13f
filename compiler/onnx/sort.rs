//! Topological order of nodes. The ONNX IR requires it, but some exporters and graph editors do not produce
//! it. ONNX Runtime loads such models, so the nodes are sorted here, with a warning, before anything relies
//! on their order.
//!
//! The sort is stable: nodes move only as far as their operands require, and a sorted list is unchanged. A
//! list that cannot be sorted (because of a cycle, or a name with two definitions) is unchanged as well, and
//! `scopes` reports it.

use super::functions::operator;
use super::proto::{FunctionProto, GraphProto, ModelProto, NodeProto};
use super::scopes::inside;
use crate::diag::origin::place;
use crate::diag::{Error, Findings, Origin, codes, limits};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet};

/// Sorts the nodes of all graphs and function bodies of a model.
pub fn sort(m: &mut ModelProto, base: &Origin, findings: &mut Findings) {
    if let Some(g) = &mut m.graph {
        graph(g, String::new(), 1, base, findings);
    }
    for f in &mut m.functions {
        function(f, base, findings);
    }
}

fn graph(g: &mut GraphProto, path: String, depth: u64, base: &Origin, findings: &mut Findings) {
    // The importer rejects deeper graphs.
    if limits::GRAPH_DEPTH.exceeded_by(depth) {
        return;
    }
    nodes(&mut g.node, &path, base, findings);
    for (i, n) in g.node.iter_mut().enumerate() {
        subgraphs(n, i, &path, depth, base, findings);
    }
}

fn function(f: &mut FunctionProto, base: &Origin, findings: &mut Findings) {
    let path = format!(
        "function {}",
        crate::ops::dotted(f.domain.as_deref().unwrap_or(""), f.name.as_deref().unwrap_or(""))
    );
    nodes(&mut f.node, &path, base, findings);
    for (i, n) in f.node.iter_mut().enumerate() {
        subgraphs(n, i, &path, 1, base, findings);
    }
}

fn subgraphs(
    n: &mut NodeProto,
    index: usize,
    path: &str,
    depth: u64,
    base: &Origin,
    findings: &mut Findings,
) {
    let paths: Vec<String> =
        n.attribute.iter().map(|a| inside(path, n, index, a.name.as_deref().unwrap_or(""))).collect();
    for (a, path) in n.attribute.iter_mut().zip(paths) {
        for g in a.g.iter_mut().chain(&mut a.graphs) {
            graph(g, path.clone(), depth + 1, base, findings);
        }
    }
}

fn nodes(list: &mut Vec<NodeProto>, path: &str, base: &Origin, findings: &mut Findings) {
    let Some(Sorted { order, early, late, name }) = sorted(list) else { return };
    let shown = |i: usize| place(i, list[i].name.as_deref().unwrap_or(""), &operator(&list[i]));
    let e = Error::warning(
        codes::GRAPH_INVALID,
        "the nodes are not in topological order: they are sorted, and numbers of nodes count the sorted ones",
    );
    let e = e.at(&Origin { graph: path.to_owned(), ..base.clone() });
    let e = e.found_expected(
        format!("{} uses \"{name}\", and {} defines it later", shown(early), shown(late)),
        "definitions before their uses",
    );
    findings.push(e.help("sort the nodes topologically, as the ONNX IR asks"));
    let mut old: Vec<Option<NodeProto>> = std::mem::take(list).into_iter().map(Some).collect();
    list.extend(order.into_iter().filter_map(|i| old[i].take()));
}

struct Sorted {
    order: Vec<usize>,
    /// A node that uses a later definition, the node with that definition, and the name.
    early: usize,
    late: usize,
    name: String,
}

/// The topological order that preserves as much of the current one as possible. `None` if the current one is
/// topological, or if none exists.
fn sorted(list: &[NodeProto]) -> Option<Sorted> {
    let mut makers: HashMap<&str, usize> = HashMap::new();
    for (i, n) in list.iter().enumerate() {
        for o in n.output.iter().filter(|o| !o.is_empty()) {
            if makers.insert(o, i).is_some() {
                return None;
            }
        }
    }
    let mut first = None;
    let mut users = vec![vec![]; list.len()];
    let mut waits = vec![0usize; list.len()];
    for (i, n) in list.iter().enumerate() {
        let mut names = HashSet::new();
        free(n, &mut names);
        let mut operands: Vec<(usize, &str)> =
            names.into_iter().filter_map(|s| Some((*makers.get(s)?, s))).collect();
        operands.sort_unstable();
        if let Some((late, name)) = operands.iter().rev().find(|o| o.0 > i).filter(|_| first.is_none()) {
            first = Some((i, *late, (*name).to_owned()));
        }
        operands.dedup_by_key(|o| o.0);
        waits[i] = operands.len();
        operands.into_iter().for_each(|(j, _)| users[j].push(i));
    }
    let (early, late, name) = first?;
    let mut ready: BinaryHeap<Reverse<usize>> =
        (0..list.len()).filter(|i| waits[*i] == 0).map(Reverse).collect();
    let mut order = vec![];
    while let Some(Reverse(i)) = ready.pop() {
        order.push(i);
        for u in &users[i] {
            waits[*u] -= 1;
            if waits[*u] == 0 {
                ready.push(Reverse(*u));
            }
        }
    }
    (order.len() == list.len()).then_some(Sorted { order, early, late, name })
}

/// Names that a node uses from the enclosing graph: its inputs, and names that its nested graphs use without
/// defining them.
fn free<'a>(n: &'a NodeProto, out: &mut HashSet<&'a str>) {
    out.extend(n.input.iter().map(String::as_str).filter(|s| !s.is_empty()));
    for g in n.attribute.iter().flat_map(|a| a.g.iter().chain(&a.graphs)) {
        let mut names = HashSet::new();
        g.node.iter().for_each(|n| free(n, &mut names));
        names.extend(g.output.iter().filter_map(|o| o.name.as_deref()));
        let dense = g.initializer.iter().filter_map(|t| t.name.as_deref());
        let sparse = g.sparse_initializer.iter().filter_map(|t| t.values.as_ref()?.name.as_deref());
        let own: HashSet<&str> = g
            .input
            .iter()
            .filter_map(|i| i.name.as_deref())
            .chain(dense)
            .chain(sparse)
            .chain(g.node.iter().flat_map(|n| n.output.iter().map(String::as_str)))
            .collect();
        out.extend(names.into_iter().filter(|s| !own.contains(s)));
    }
}
