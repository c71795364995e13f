//! DynamicQuantizeLSTM (com.microsoft): an LSTM with integer matrix products. Input and hidden state are
//! quantized by their range, as in DynamicQuantizeLinear: the input once, the hidden state in every step.
//! Each direction is a Scan.
//!
//! ONNX Runtime quantizes the hidden states of as many sequences together as one of its threads processes.
//! Here all sequences are quantized together.

use super::{Make, NodeSpec, stand_in};
use crate::diag::{Error, Failure, Result, codes};
use crate::graph::{Def, Graph, Node, Value};
use crate::ops::AttrValue;
use crate::tensor::ElemType;

pub(super) fn expand(g: &mut Graph, n: Node) -> Result<Vec<Node>> {
    let node = g.nodes[n].clone();
    let refuse = |why: &str| {
        Error::new(codes::OP_FEATURE, format!("DynamicQuantizeLSTM: {why}, which is not supported"))
            .at(&node.origin)
            .fail()
    };
    let given = |i: usize| node.inputs.get(i).copied().flatten();
    let usual = |(i, s): (usize, &Vec<u8>)| {
        let name: &[u8] = if i % 3 == 0 { b"sigmoid" } else { b"tanh" };
        s.eq_ignore_ascii_case(name)
    };
    let plain = |v: &AttrValue| matches!(v, AttrValue::Strings(l) if l.iter().enumerate().all(usual));
    if node.attr("activations").is_some_and(|v| !plain(v)) {
        return refuse("activations other than Sigmoid, Tanh, Tanh");
    }
    if given(4).is_some() || given(7).is_some() {
        return refuse("lengths of sequences, or peepholes");
    }
    if node.float("clip").is_some_and(|c| c > 0.0)
        || node.attr("input_forget").is_some_and(|v| !matches!(v, AttrValue::Int(0)))
    {
        return refuse("a clip, or an input that forgets");
    }
    let directions: &[bool] = match node.text("direction").as_deref().unwrap_or("forward") {
        "forward" => &[false],
        "reverse" => &[true],
        _ => &[false, true],
    };
    let mut make = Make::at(g, n);
    let need = |i: usize| given(i).ok_or_else(|| Failure::bug("expand", format!("operand {i} is missing")));
    let (x, w, r) = (need(0)?, need(1)?, need(2)?);
    for (v, rank) in [(x, 3), (w, 3), (r, 3)] {
        if make.tensor(v)?.rank() != rank {
            return refuse("operands of another rank");
        }
    }
    let int = |v: i64| AttrValue::Int(v);
    let quantized = make.node("DynamicQuantizeLinear", vec![], vec![Some(x)], 3);
    let (mut all, mut last_h, mut last_c) = (vec![], vec![], vec![]);
    for (d, reversed) in directions.iter().enumerate() {
        let number = make.integer(d as i64);
        let own = |make: &mut Make, v: Value| make.with("Gather", vec![("axis", int(0))], &[v, number]);
        let (wd, rd) = (own(&mut make, w), own(&mut make, r));
        let (ws, wz, rs, rz) = (
            own(&mut make, need(8)?),
            own(&mut make, need(9)?),
            own(&mut make, need(10)?),
            own(&mut make, need(11)?),
        );
        let mut gates = make.product(&quantized, wd, wz, ws);
        if let Some(b) = given(3) {
            let b = own(&mut make, b);
            let halves =
                make.node("Split", vec![("axis", int(0)), ("num_outputs", int(2))], vec![Some(b)], 2);
            let b = make.op("Add", &[halves[0], halves[1]]);
            gates = make.op("Add", &[gates, b]);
        }
        let mut states = vec![];
        for i in [5, 6] {
            states.push(match given(i) {
                Some(v) => own(&mut make, v),
                None => {
                    let (batch, hidden, zero) =
                        (make.sizes(x, 1, 2), make.sizes(r, 1, 2), make.number(ElemType::F32, 0.0));
                    let shape = make.with("Concat", vec![("axis", int(0))], &[batch, hidden]);
                    make.op("Expand", &[zero, shape])
                }
            });
        }
        let body = step(&mut make, [rd, rz, rs])?;
        let way = || AttrValue::Ints(vec![i64::from(*reversed)]);
        let attrs = vec![
            ("num_scan_inputs".to_owned(), int(1)),
            ("scan_input_directions".to_owned(), way()),
            ("scan_output_directions".to_owned(), way()),
        ];
        let inputs = vec![Some(states[0]), Some(states[1]), Some(gates)];
        let done = make.add("Scan", NodeSpec::new(inputs, 3).attrs(attrs).graph("body", body));
        let (first, second) = (make.ints(&[0]), make.ints(&[1]));
        last_h.push(make.op("Unsqueeze", &[done[0], first]));
        last_c.push(make.op("Unsqueeze", &[done[1], first]));
        all.push(make.op("Unsqueeze", &[done[2], second]));
    }
    for (k, (parts, axis)) in [(all, 1), (last_h, 0), (last_c, 0)].into_iter().enumerate() {
        if let Some(out) = node.outputs.get(k).copied().flatten() {
            let v = make.with("Concat", vec![("axis", int(axis))], &parts);
            make.define(out, v);
        }
    }
    make.finish()
}

/// The body of one step. Its inputs are the hidden state, the cell state and the input's contribution to the
/// gates; its results are both states and the hidden state once more.
fn step(outer: &mut Make, weights: [Value; 3]) -> Result<Graph> {
    let mut body = Graph { name: format!("{}.step", outer.prefix), ..Graph::default() };
    let inputs: Vec<Value> = ["h", "c", "gates"]
        .iter()
        .enumerate()
        .map(|(i, name)| stand_in(&mut body, format!("{}.{name}", outer.prefix), Def::Input(i as u32)))
        .collect();
    body.inputs.clone_from(&inputs);
    let mut inside = vec![];
    for v in weights {
        let c = stand_in(&mut body, outer.g.values[v].name.clone(), Def::Capture);
        body.captures.push((v, c));
        inside.push(c);
    }
    let mut make = Make::within(&mut body, outer.origin.clone(), format!("{}.step", outer.prefix));
    let quantized = make.node("DynamicQuantizeLinear", vec![], vec![Some(inputs[0])], 3);
    let recurrent = make.product(&quantized, inside[0], inside[1], inside[2]);
    let sum = make.op("Add", &[inputs[2], recurrent]);
    let parts = make.node(
        "Split",
        vec![("axis", AttrValue::Int(-1)), ("num_outputs", AttrValue::Int(4))],
        vec![Some(sum)],
        4,
    );
    let (i, o, f) =
        (make.op("Sigmoid", &[parts[0]]), make.op("Sigmoid", &[parts[1]]), make.op("Sigmoid", &[parts[2]]));
    let new = make.op("Tanh", &[parts[3]]);
    let (kept, added) = (make.op("Mul", &[f, inputs[1]]), make.op("Mul", &[i, new]));
    let cell = make.op("Add", &[kept, added]);
    let bent = make.op("Tanh", &[cell]);
    let hidden = make.op("Mul", &[o, bent]);
    body.order = make.finish()?;
    body.outputs = vec![hidden, cell, hidden];
    body.output_names = body.outputs.iter().map(|v| body.values[*v].name.clone()).collect();
    Ok(body)
}

impl Make<'_> {
    /// The product of a tensor quantized by DynamicQuantizeLinear and a quantized matrix, as floats.
    fn product(&mut self, a: &[Value], b: Value, zero: Value, scale: Value) -> Value {
        let v = self.op("MatMulInteger", &[a[0], b, a[2], zero]);
        let v = self.cast(v, ElemType::I32, ElemType::F32);
        let scale = self.op("Mul", &[a[1], scale]);
        self.op("Mul", &[v, scale])
    }
}
