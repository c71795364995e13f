//! If: a branch that is selected at compile time is inlined into the enclosing graph; so is a branch if the
//! other one is invalid, with a check of the condition. If the branches compute
//! a result of different ranks, the nodes that use it are moved into both branches, so that all ranks are
//! known, as the graph IR requires. Such a result of the model itself is passed to the caller in a descriptor
//! with its rank, as optionals are. Loop-carried values, and results of nested branches, must have a single
//! rank.

use super::{Make, Piece, stand_in};
use crate::diag::{Failure, Result};
use crate::graph::{Def, Graph, Node, Value, ValueData};
use crate::ops::bundle::Bundle;
use crate::ops::bundle::boundary::{Boundary, Form};
use crate::ops::control::Control;
use crate::ops::{Op, Operand};
use crate::passes::graph::control::known_truth;
use crate::tensor::ElemType;
use std::collections::{HashMap, HashSet};

/// The nodes of the branch that is taken, if it is known.
pub(super) fn inline(g: &mut Graph, n: Node, operands: &[Option<Operand>]) -> Result<Option<Vec<Node>>> {
    let Some(c) = operands.first().and_then(|o| o.as_ref()).and_then(|o| known_truth(&o.known)) else {
        return Ok(None);
    };
    let node = &g.nodes[n];
    let fits = Graph::body(&node.subgraphs, name(c))
        .is_some_and(|s| s.inputs.is_empty() && s.outputs.len() >= node.outputs.len());
    if fits { branch(g, n, c, None).map(Some) } else { Ok(None) }
}

/// The nodes of one branch of `n`, with checks that the condition selects it.
pub(in crate::passes::graph) fn keep(g: &mut Graph, n: Node, truth: bool) -> Result<Vec<Node>> {
    let cond = g.nodes[n].inputs.first().copied().flatten();
    branch(g, n, truth, cond)
}

fn name(truth: bool) -> &'static str {
    if truth { "then_branch" } else { "else_branch" }
}

/// The nodes of a branch, whose results become those of `n`. They are checked to exist only if `cond` is
/// `truth`.
fn branch(g: &mut Graph, n: Node, truth: bool, cond: Option<Value>) -> Result<Vec<Node>> {
    let node = g.nodes[n].clone();
    let Some(sub) = Graph::body(&node.subgraphs, name(truth)) else {
        return Err(Failure::bug("branches", "no such branch"));
    };
    let mut make = Make::at(g, n);
    let results = make.inline(sub, &[]);
    for (old, new) in node.outputs.iter().zip(results) {
        let Some(old) = old else { continue };
        let new = match cond {
            Some(cond) => make.bundle(Bundle::Require { truth }, vec![Some(cond), Some(new)], 1)[0],
            None => new,
        };
        make.define(*old, new);
    }
    make.finish()
}

/// Results of the model among the uneven results of the If node `n` become optionals that are present; each
/// branch packs them.
pub(in crate::passes::graph) fn describe(g: &mut Graph, n: Node, uneven: &[usize]) -> Result<()> {
    let origin = g.nodes[n].origin.clone();
    let mut subgraphs = std::mem::take(&mut g.nodes[n].subgraphs);
    cut(g, n, &mut subgraphs);
    for k in uneven {
        let Some(Some(v)) = g.nodes[n].outputs.get(*k).copied() else { continue };
        let places: Vec<usize> = (0..g.outputs.len()).filter(|i| g.outputs[*i] == v).collect();
        if places.is_empty() {
            continue;
        }
        let (name, first) = (g.values[v].name.clone(), g.nodes[n].outputs.len());
        for (_, sub) in &mut subgraphs {
            let Some(x) = sub.outputs.get(*k).copied() else {
                return Err(Failure::bug("branches", "a branch without a result"));
            };
            let mut make = Make::within(sub, origin.clone(), name.clone());
            let parts = make.bundle(Bundle::Pack { elem: None, rank: 0, like: 0 }, vec![Some(x)], 2);
            let made = make.finish()?;
            sub.order.extend(made);
            for v in parts {
                sub.outputs.push(v);
                sub.output_names.push(sub.values[v].name.clone());
            }
        }
        let parts: Vec<Value> = ["table", "data"]
            .iter()
            .enumerate()
            .map(|(j, s)| stand_in(g, format!("{name}.{s}"), Def::Node(n, (first + j) as u32)))
            .collect();
        g.nodes[n].outputs.extend(parts.iter().map(|v| Some(*v)));
        if let Op::Control(Control::If { tables }) = &mut g.nodes[n].op {
            tables.push(first);
        }
        for i in places {
            g.outputs[i] = publish(g, n, &name, &parts)?;
        }
    }
    g.nodes[n].subgraphs = subgraphs;
    Ok(())
}

/// Adds a result to the last node of the graph, which describes results.
fn publish(g: &mut Graph, n: Node, name: &str, parts: &[Value]) -> Result<Value> {
    // Inference determines the element type.
    let form = Boundary { form: Form::Optional, elem: ElemType::F32, key: None, dims: None };
    let inputs = parts.iter().map(|v| Some(*v));
    let last = g.order.iter().copied().find(|n| matches!(g.nodes[*n].op, Op::Bundle(Bundle::Publish(_))));
    let Some(last) = last else {
        let origin = g.nodes[n].origin.clone();
        let mut make = Make::within(g, origin, name.to_owned());
        let published = make.bundle(Bundle::Publish(vec![form]), inputs.collect(), 1)[0];
        let made = make.finish()?;
        g.order.extend(made);
        return Ok(published);
    };
    let k = g.nodes[last].outputs.len();
    let v = stand_in(g, format!("{name}.described"), Def::Node(last, k as u32));
    let node = &mut g.nodes[last];
    node.inputs.extend(inputs);
    node.outputs.push(Some(v));
    if let Op::Bundle(Bundle::Publish(list)) = &mut node.op {
        list.push(form);
    }
    Ok(v)
}

/// Truncates the results of the node and its branches to the number of the branch with the fewest.
fn cut(g: &mut Graph, n: Node, subgraphs: &mut [(String, Graph)]) {
    let fewest = subgraphs.iter().map(|(_, s)| s.outputs.len()).min().unwrap_or(0);
    for (_, sub) in subgraphs {
        sub.outputs.truncate(fewest);
        sub.output_names.truncate(fewest);
    }
    g.nodes[n].outputs.resize(fewest, None);
}

/// Values that a node reads, including those that its bodies capture.
fn reads(g: &Graph, n: Node) -> impl Iterator<Item = Value> {
    let node = &g.nodes[n];
    node.inputs
        .iter()
        .flatten()
        .copied()
        .chain(node.subgraphs.iter().flat_map(|(_, s)| s.captures.iter().map(|(o, _)| *o)))
}

/// Moves the users of some results of the If node `n`, which is at index `at` of the order, into both
/// branches. False if one of the results is an output of the graph.
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
    let mut wanted: HashSet<Node> =
        dependent.iter().copied().filter(|m| reads(g, *m).any(|v| leaving.contains(&v))).collect();
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
    let made: HashSet<Value> =
        moved.iter().flat_map(|m| g.nodes[*m].outputs.iter().flatten().copied()).collect();
    let outside: HashSet<Value> =
        rest.iter().flat_map(|m| reads(g, *m)).chain(g.outputs.iter().copied()).collect();
    let results: Vec<Value> = moved
        .iter()
        .flat_map(|m| g.nodes[*m].outputs.iter().flatten().copied())
        .filter(|v| made.contains(v) && outside.contains(v))
        .collect();

    let mut subgraphs = std::mem::take(&mut g.nodes[n].subgraphs);
    cut(g, n, &mut subgraphs);
    for (_, sub) in &mut subgraphs {
        let mut map: HashMap<Value, Value> =
            outputs.iter().copied().zip(&sub.outputs).filter_map(|(o, v)| Some((o?, *v))).collect();
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
        let mut make = Make::within(sub, origin, String::new());
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
