//! Scan version 8: dimension 0 of every operand is a batch of sequences with individual lengths. The node
//! becomes a Scan over the batch, whose body is a Scan over the sequence cut to its length. The scan outputs
//! beyond the end of a shorter sequence are 0. A reversed sequence begins at its own end.

use super::{Make, NodeSpec, stand_in};
use crate::diag::{Failure, Result};
use crate::graph::{Def, Graph, Node, Value};
use crate::ops::AttrValue;
use crate::ops::control::Scan;
use std::collections::HashMap;

pub(super) fn expand(g: &mut Graph, n: Node, s: &Scan) -> Result<Vec<Node>> {
    let node = g.nodes[n].clone();
    let mut subgraphs = node.subgraphs;
    let (lengths, operands) = match node.inputs.split_first() {
        Some((l, rest)) => (*l, rest.iter().copied().flatten().collect::<Vec<Value>>()),
        None => (None, vec![]),
    };
    let Some((_, mut inner)) = subgraphs.pop() else {
        return Err(Failure::bug("expand", "Scan without a body"));
    };
    let states = operands.len().saturating_sub(s.n_scanned);
    let mut body = Graph { name: format!("{}.batch", inner.name), ..Graph::default() };
    // Values that the inner body captures from outside pass through this body.
    let mut seen: HashMap<Value, Value> = HashMap::new();
    for (o, _) in &mut inner.captures {
        let c = *seen.entry(*o).or_insert_with(|| {
            let c = stand_in(&mut body, g.values[*o].name.clone(), Def::Capture);
            body.captures.push((*o, c));
            c
        });
        *o = c;
    }
    let mut inputs = vec![];
    for (i, v) in operands.iter().chain(&lengths).enumerate() {
        let v = stand_in(&mut body, format!("{}.one", g.values[*v].name), Def::Input(i as u32));
        body.inputs.push(v);
        inputs.push(v);
    }
    let length = if lengths.is_some() { inputs.pop() } else { None };
    let mut make = Make::within(&mut body, node.origin.clone(), format!("{}.batch", inner.name));
    let outputs = inner.outputs.len();
    let (zero, one, whole) = (make.ints(&[0]), make.ints(&[1]), inputs.get(states).copied());
    let length = length.map(|l| make.op("Reshape", &[l, one]));
    if let Some(l) = length {
        for v in &mut inputs[states..] {
            *v = make.op("Slice", &[*v, zero, l, zero]);
        }
    }
    let directions: Vec<i64> =
        (0..s.n_scanned).map(|j| i64::from(s.input_reversed.get(j).copied().unwrap_or(false))).collect();
    let attrs = vec![
        ("num_scan_inputs".to_owned(), AttrValue::Int(s.n_scanned as i64)),
        ("scan_input_directions".to_owned(), AttrValue::Ints(directions)),
    ];
    let mut results = make.add(
        "Scan",
        NodeSpec::new(inputs.into_iter().map(Some).collect(), outputs).attrs(attrs).graph("body", inner),
    );
    if let (Some(l), Some(x)) = (length, whole) {
        for v in &mut results[states..] {
            let total = make.sizes(x, 0, 1);
            let rest = make.op("Sub", &[total, l]);
            let pads = make.with("Concat", vec![("axis", AttrValue::Int(0))], &[zero, rest]);
            let padded = make.node("Pad", vec![], vec![Some(*v), Some(pads), None, Some(zero)], 1)[0];
            let others = make.with("Shape", vec![("start", AttrValue::Int(1))], &[padded]);
            let shape = make.with("Concat", vec![("axis", AttrValue::Int(0))], &[total, others]);
            *v = make.op("Reshape", &[padded, shape]);
        }
    }
    body.order = make.finish()?;
    body.output_names = results.iter().map(|v| body.values[*v].name.clone()).collect();
    body.outputs = results;

    let mut make = Make::at(g, n);
    let all: Vec<Option<Value>> = operands.iter().copied().chain(lengths).map(Some).collect();
    let attrs = vec![("num_scan_inputs".to_owned(), AttrValue::Int(all.len() as i64))];
    let results = make.add("Scan", NodeSpec::new(all, outputs).attrs(attrs).graph("body", body));
    make.define_all(&node.outputs, results);
    make.finish()
}
