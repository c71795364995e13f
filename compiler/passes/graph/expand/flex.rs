//! FlexAttention as the nodes that define it: scaled scores, `score_mod`, softmax, `prob_mod`, and the
//! product with the values. Query and key are both multiplied by the square root of the scale, as in ONNX's
//! own evaluator.

use super::Make;
use crate::diag::{Error, Result, codes};
use crate::graph::{Graph, Node, Value};
use crate::ops::AttrValue;
use crate::ops::composite::FlexAttention;
use crate::sym::{Answer, SymTable};
use crate::tensor::ElemType;

pub(super) fn expand(
    g: &mut Graph,
    n: Node,
    a: &FlexAttention,
    syms: &SymTable,
    once: bool,
) -> Result<Vec<Node>> {
    let node = g.nodes[n].clone();
    let fail = |title: String| Error::new(codes::OP_SHAPE, title).at(&node.origin).fail();
    let (&[Some(q), Some(k), Some(v)], &[Some(out)]) = (&node.inputs[..], &node.outputs[..]) else {
        return fail("FlexAttention takes query, key and value".into());
    };
    let mut make = Make::at(g, n);
    let types = [make.tensor(q)?.clone(), make.tensor(k)?.clone(), make.tensor(v)?.clone()];
    if let Some(t) = types.iter().find(|t| t.rank() != 4) {
        return fail(format!("query, key and value must have rank 4, not {}", t.rank()));
    }
    let [tq, tk, _] = types;
    for (name, sub) in &node.subgraphs {
        if sub.inputs.len() != 1 || sub.outputs.len() != 1 {
            return fail(format!(
                "{name} must have one input and one output, it has {} and {}",
                sub.inputs.len(),
                sub.outputs.len()
            ));
        }
    }
    if let (Some(hq), Some(hk)) = (tq.dims[1].as_const(), tk.dims[1].as_const())
        && (hk < 1 || hq % hk != 0)
    {
        return fail(format!("the {hq} heads of the query are no multiple of the {hk} of key and value"));
    }
    let root = match (a.scale, tq.dims[3].as_const()) {
        (Some(s), _) => Some(f64::from(s).sqrt()),
        (None, Some(e)) => Some((1.0 / (e as f64).sqrt()).sqrt()),
        (None, None) => None,
    };
    let root = match root {
        Some(r) => make.number(tq.elem, r),
        None => {
            let e = make.sizes(q, 3, 4);
            let e = make.cast(e, ElemType::I64, ElemType::F32);
            let e = make.op("Sqrt", &[e]);
            let e = make.op("Sqrt", &[e]);
            let e = make.op("Reciprocal", &[e]);
            make.cast(e, ElemType::F32, tq.elem)
        }
    };
    let (mut q, mut k, mut v) = (make.op("Mul", &[q, root]), make.op("Mul", &[k, root]), v);
    let permuted = |make: &mut Make, x: Value, perm: &[i64]| {
        make.with("Transpose", vec![("perm", AttrValue::Ints(perm.to_vec()))], &[x])
    };
    // Heads of the query that share a head of key and value get a separate dimension.
    let grouped = !(once && syms.eq(tq.dims[1], tk.dims[1]) == Answer::Yes);
    let heads = |make: &mut Make, x: Value, q: Value| -> Value {
        // [batch, heads, rows, columns] from [batch, groups, heads in a group, rows, columns]
        let (front, back) = (make.sizes(q, 0, 2), make.sizes(x, 3, 5));
        let shape = make.with("Concat", vec![("axis", AttrValue::Int(0))], &[front, back]);
        make.op("Reshape", &[x, shape])
    };
    let whole = q;
    if grouped {
        let rest = make.ints(&[-1]);
        let one = make.ints(&[2]);
        let (front, back) = (make.sizes(k, 0, 2), make.sizes(q, 2, 4));
        let shape = make.with("Concat", vec![("axis", AttrValue::Int(0))], &[front, rest, back]);
        q = make.op("Reshape", &[q, shape]);
        k = make.op("Unsqueeze", &[k, one]);
        v = make.op("Unsqueeze", &[v, one]);
        k = permuted(&mut make, k, &[0, 1, 2, 4, 3]);
    } else {
        k = permuted(&mut make, k, &[0, 1, 3, 2]);
    }
    let mut s = make.op("MatMul", &[q, k]);
    let precision =
        a.precision.unwrap_or(if tq.elem == ElemType::F64 { ElemType::F64 } else { ElemType::F32 });
    s = make.cast(s, tq.elem, precision);
    let modified = |make: &mut Make, x: Value, name: &str| -> Value {
        let Some(sub) = Graph::body(&node.subgraphs, name) else { return x };
        let flat = if grouped { heads(make, x, whole) } else { x };
        let done = make.inline(sub, &[flat]).first().copied().unwrap_or(flat);
        if !grouped {
            return done;
        }
        let shape = make.sizes(x, 0, 5);
        make.op("Reshape", &[done, shape])
    };
    s = modified(&mut make, s, "score_mod");
    s = make.with("Softmax", vec![("axis", AttrValue::Int(-1))], &[s]);
    s = modified(&mut make, s, "prob_mod");
    v = make.cast(v, tq.elem, precision);
    let mut y = make.op("MatMul", &[s, v]);
    if grouped {
        y = heads(&mut make, y, whole);
    }
    y = make.cast(y, precision, tq.elem);
    make.define(out, y);
    make.finish()
}
