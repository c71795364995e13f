//! The nodes of the graph that each kernel computes. A node belongs to the kernel that stores one of its
//! results. A result that is never stored stays in registers of the kernel that uses it, or is a view of
//! another buffer.

use crate::graph::{Def, Graph, Node};
use crate::nest::{Module, Place, visit};
use crate::ops::Known;
use std::collections::{BTreeMap, HashMap, HashSet};

/// Kernels and the nodes that they compute together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Group {
    /// Indices of calls, in order; empty for nodes that cost nothing.
    pub kernels: Vec<usize>,
    /// Nodes of the main graph, in order.
    pub nodes: Vec<Node>,
}

/// All groups in execution order. Every live node and every call is in exactly one.
pub fn groups(g: &Graph, m: &Module) -> Vec<Group> {
    let calls = visit::calls(&m.driver);
    let by_name: HashMap<&str, Node> = g
        .values
        .values()
        .filter_map(|v| if let Def::Node(n, _) = v.def { Some((v.name.as_str(), n)) } else { None })
        .collect();
    let live: HashSet<Node> = g.order.iter().copied().collect();
    let of_origin: HashMap<(&str, Option<usize>, &str), Node> =
        g.order.iter().map(|n| (key(&g.nodes[*n].origin), *n)).collect();
    // The nodes whose results a kernel stores, found by the names of values in the graph.
    let stored = |k: usize| -> Vec<Node> {
        let bufs = visit::stores(&m.kernels[calls[k]].body);
        bufs.iter()
            .filter_map(|b| by_name.get(m.bufs[*b].name.as_str()).copied())
            .filter(|n| live.contains(n))
            .collect()
    };
    let mut owner: HashMap<Node, usize> = HashMap::new();
    for k in 0..calls.len() {
        for n in stored(k) {
            // Several kernels may store parts of one result; the first one counts.
            owner.entry(n).or_insert(k);
        }
    }
    let views: HashSet<&str> =
        m.bufs.values().filter(|d| matches!(d.place, Place::View(_))).map(|d| d.name.as_str()).collect();
    // A node whose results no kernel stores, but after which kernels are named, belongs to the last of them
    // that stores the result of another node, or else to the last one.
    let mut called: HashMap<Node, Vec<usize>> = HashMap::new();
    for (k, kernel) in calls.iter().enumerate() {
        if let Some(n) = of_origin.get(&key(&m.kernels[*kernel].origin)) {
            called.entry(*n).or_default().push(k);
        }
    }
    let stores: HashSet<usize> = owner.values().copied().collect();
    for (n, kernels) in &called {
        let best = kernels.iter().rev().find(|k| stores.contains(k)).or(kernels.last());
        if let (false, Some(k)) = (owner.contains_key(n), best) {
            owner.insert(*n, *k);
        }
    }
    // A node without a kernel belongs to the first kernel that uses its result.
    let mut users: HashMap<Node, Vec<Node>> = HashMap::new();
    for n in &g.order {
        for v in g.nodes[*n].inputs.iter().flatten() {
            if let Def::Node(from, _) = g.values[*v].def {
                users.entry(from).or_default().push(*n);
            }
        }
    }
    for n in g.order.iter().rev() {
        let is_view =
            g.nodes[*n].outputs.iter().flatten().any(|v| views.contains(g.values[*v].name.as_str()));
        // Sizes and other known contents are expressions, not data.
        let is_known = g.nodes[*n].outputs.iter().flatten().all(|v| !matches!(g.values[*v].known, Known::No));
        if owner.contains_key(n) || is_view || is_known {
            continue;
        }
        if let Some(k) = users.get(n).into_iter().flatten().filter_map(|u| owner.get(u)).min() {
            owner.insert(*n, *k);
        }
    }
    // A view belongs to the kernel of the viewed value.
    for n in &g.order {
        let shows = g.nodes[*n].inputs.iter().flatten().next().map(|v| &g.values[*v].def);
        if let (false, Some(Def::Node(from, _))) = (owner.contains_key(n), shows)
            && let Some(k) = owner.get(from)
            && g.nodes[*n].outputs.iter().flatten().any(|v| views.contains(g.values[*v].name.as_str()))
        {
            owner.insert(*n, *k);
        }
    }
    // Kernels that pack, pad or compute a part of a node are in the group of that node.
    let mut lead: BTreeMap<usize, usize> = (0..calls.len()).map(|k| (k, k)).collect();
    let owners: HashSet<usize> = owner.values().copied().collect();
    for k in (0..calls.len()).filter(|k| !owners.contains(k)) {
        let node = of_origin.get(&key(&m.kernels[calls[k]].origin));
        if let Some(to) = node.and_then(|n| owner.get(n)) {
            lead.insert(k, *to);
        }
    }
    let mut out: BTreeMap<usize, Group> = BTreeMap::new();
    for (k, to) in &lead {
        out.entry(*to).or_default().kernels.push(*k);
    }
    let mut free = Group::default();
    for n in &g.order {
        match owner.get(n) {
            Some(k) => out.entry(*k).or_default().nodes.push(*n),
            None => free.nodes.push(*n),
        }
    }
    let mut out: Vec<Group> = out.into_values().collect();
    if !free.nodes.is_empty() {
        out.push(free);
    }
    out
}

fn key(o: &crate::diag::Origin) -> (&str, Option<usize>, &str) {
    (o.graph.as_str(), o.node, o.output.as_str())
}
