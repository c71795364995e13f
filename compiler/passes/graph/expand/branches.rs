//! If: a branch that is chosen at compile time joins the graph around; and where the branches compute a result of
//! different ranks, the nodes that use it move into both of them. Ranks are known everywhere then, as the graph IR has it.
//! Only a result of the graph itself must have one rank.

use super::{Make, Piece};
use crate::diag::Result;
use crate::graph::{Def, Graph, Node, Value, ValueData};
use crate::ops::Operand;
use crate::passes::graph::control::known_truth;
use std::collections::{HashMap, HashSet};

/// The nodes of the branch that is taken, if that is known.
pub(super) fn inline(g: &mut Graph, n: Node, operands: &[Option<Operand>]) -> Result<Option<Vec<Node>>> {
    let Some(c) = operands.first().and_then(|o| o.as_ref()).and_then(|o| known_truth(&o.known)) else { return Ok(None) };
    let node = g.nodes[n].clone();
    let name = if c { "then_branch" } else { "else_branch" };
    let Some(sub) = Graph::body(&node.subgraphs, name).filter(|s| s.inputs.is_empty() && s.outputs.len() >= node.outputs.len()) else { return Ok(None) };
    let mut make = Make::at(g, n);
    let results = make.inline(sub, &[]);
    for (old, new) in node.outputs.iter().zip(results) {
        if let Some(old) = old {
            make.define(*old, new)?;
        }
    }
    Ok(Some(make.made))
}

/// Values that a node reads, those that its bodies capture too.
fn reads(g: &Graph, n: Node) -> impl Iterator<Item = Value> {
    let node = &g.nodes[n];
    node.inputs.iter().flatten().copied().chain(node.subgraphs.iter().flat_map(|(_, s)| s.captures.iter().map(|(o, _)| *o)))
}

/// Moves the users of some results of the If node `n`, at place `at` of the order, into both branches. False if one of
/// the results leaves the graph.
pub(in crate::passes::graph) fn sink(g: &mut Graph, n: Node, at: usize, uneven: &[usize]) -> bool {
    let outputs = g.nodes[n].outputs.clone();
    let leaving: HashSet<Value> = uneven.iter().filter_map(|k| outputs.get(*k).copied().flatten()).collect();
    if g.outputs.iter().any(|v| leaving.contains(v)) {
        return false;
    }
    let mut found: HashSet<Value> = outputs.iter().flatten().copied().collect();
    let (mut dependent, mut free) = (vec![], vec![]);
    for m in &g.order[at + 1..] {
        if reads(g, *m).any(|v| found.contains(&v)) {
            found.extend(g.nodes[*m].outputs.iter().flatten());
            dependent.push(*m);
        } else {
            free.push(*m);
        }
    }
    let mut wanted: HashSet<Node> = dependent.iter().copied().filter(|m| reads(g, *m).any(|v| leaving.contains(&v))).collect();
    for m in dependent.iter().rev().filter(|m| wanted.contains(m)).copied().collect::<Vec<_>>() {
        let mut todo = vec![m];
        while let Some(m) = todo.pop() {
            for v in reads(g, m) {
                if let Def::Node(d, _) = g.values[v].def
                    && d != n
                    && found.contains(&v)
                    && wanted.insert(d)
                {
                    todo.push(d);
                }
            }
        }
    }
    let (moved, rest): (Vec<Node>, Vec<Node>) = dependent.iter().partition(|m| wanted.contains(m));
    let made: HashSet<Value> = moved.iter().flat_map(|m| g.nodes[*m].outputs.iter().flatten().copied()).collect();
    let outside: HashSet<Value> = rest.iter().flat_map(|m| reads(g, *m)).chain(g.outputs.iter().copied()).collect();
    let results: Vec<Value> = moved.iter().flat_map(|m| g.nodes[*m].outputs.iter().flatten().copied()).filter(|v| made.contains(v) && outside.contains(v)).collect();

    let mut subgraphs = std::mem::take(&mut g.nodes[n].subgraphs);
    let fewest = subgraphs.iter().map(|(_, s)| s.outputs.len()).min().unwrap_or(0);
    for (_, sub) in &mut subgraphs {
        sub.outputs.truncate(fewest);
        sub.output_names.truncate(fewest);
        let mut map: HashMap<Value, Value> = outputs.iter().copied().zip(&sub.outputs).filter_map(|(o, v)| Some((o?, *v))).collect();
        let known: HashMap<Value, Value> = sub.captures.iter().copied().collect();
        let needs: Vec<Value> = moved.iter().flat_map(|m| reads(g, *m)).collect();
        for v in needs {
            if map.contains_key(&v) || made.contains(&v) {
                continue;
            }
            let inner = known.get(&v).copied().unwrap_or_else(|| {
                let c = sub.values.push(ValueData { def: Def::Capture, ..g.values[v].clone() });
                sub.captures.push((v, c));
                c
            });
            map.insert(v, inner);
        }
        let origin = g.nodes[n].origin.clone();
        let mut make = Make { g: sub, origin, prefix: String::new(), made: vec![] };
        for m in &moved {
            make.paste(Piece::new(g, *m), &mut map);
        }
        let made = make.made;
        sub.order.extend(made);
        for v in &results {
            sub.outputs.extend(map.get(v));
            sub.output_names.push(g.values[*v].name.clone());
        }
    }
    let node = &mut g.nodes[n];
    node.subgraphs = subgraphs;
    node.outputs.resize(fewest, None);
    for v in node.outputs.iter_mut().filter(|v| v.is_some_and(|v| leaving.contains(&v))) {
        *v = None;
    }
    node.outputs.extend(results.iter().map(|v| Some(*v)));
    for (k, v) in node.outputs.clone().into_iter().enumerate() {
        if let Some(v) = v {
            g.values[v].def = Def::Node(n, k as u32);
        }
    }
    for v in leaving.iter().chain(made.iter().filter(|v| !results.contains(v))) {
        g.values[*v].def = Def::Unused;
    }
    g.order.truncate(at);
    g.order.extend(free.into_iter().chain([n]).chain(rest));
    true
}
