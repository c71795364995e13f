//! Small results of constants are computed while shapes are inferred: exporters compute sizes with floats, lists and
//! selections, and what is constant there must be known before the shapes that follow from it.
//!
//! The node is lowered alone and run by the interpreter of the nest IR. Larger results are the business of
//! `passes/nest/fold`.

use crate::graph::NodeData;
use crate::nest::{Buf, LoopKind, Module, Place, interp};
use crate::ops::{Known, LowerCx, Op, Operand};
use crate::sym::{Dim, SymKind, SymTable};
use crate::tensor::{ConstData, ElemType, TensorType, ValueType};
use std::collections::HashSet;
use std::sync::Arc;

/// Most elements of an operand and of a result.
const MOST: i64 = 64;

/// The results of a node whose operands are small constants, where they are small; `None` leaves it to run time.
pub(super) fn evaluate(node: &NodeData, operands: &[Option<Operand>], outputs: &[Option<(ValueType, Known)>], syms: &SymTable) -> Option<Vec<Option<(ValueType, Known)>>> {
    let open = |o: &(ValueType, Known)| matches!(o.1, Known::No);
    if matches!(node.op, Op::Control(_)) || !outputs.iter().flatten().any(open) {
        return None;
    }
    let constants: Vec<Option<Arc<ConstData>>> = operands.iter().map(|o| o.as_ref().map(constant).map_or(Some(None), |c| c.map(Some))).collect::<Option<_>>()?;
    let types: Vec<Option<&TensorType>> = outputs.iter().map(|o| o.as_ref().map_or(Some(None), |o| o.0.as_tensor().map(Some))).collect::<Option<_>>()?;
    for t in types.iter().flatten() {
        // Sizes that follow from the constants are found by running it.
        let fits = |d: &Dim| d.as_const().is_some() || d.as_sym().is_some_and(|s| syms.kind(s) == SymKind::Runtime);
        if !is_number(t.elem) || !t.dims.iter().all(fits) || t.count().as_const().is_some_and(|n| n > MOST) {
            return None;
        }
    }
    let symbolic = types.iter().flatten().any(|t| t.count().as_const().is_none());
    let mut m = Module::new("constant", if symbolic { syms.clone() } else { SymTable::new() });
    let inputs: Vec<Option<Buf>> = constants.iter().map(|c| c.as_ref().map(|c| m.constant("constant", c.clone()))).collect();
    let known: Vec<Known> = constants.iter().map(|c| c.as_ref().map_or(Known::No, |c| Known::Const(c.clone()))).collect();
    let mut results = vec![];
    for (ty, out) in types.iter().zip(outputs) {
        // What inference knows has no kernel.
        let wanted = ty.filter(|_| out.as_ref().is_some_and(open));
        results.push(wanted.map(|t| {
            let b = m.buf("result", t.elem, t.dims.clone(), Place::Output(m.outputs.len() as u32));
            m.outputs.push(b);
            b
        }));
    }
    let mut cx = LowerCx { m: &mut m, origin: &node.origin, since: node.schema.since, inputs: &inputs, known: &known, defined: &mut HashSet::new(), outputs: results.clone() };
    node.op.lower(&mut cx).ok()?;
    let made = cx.outputs;
    for (to, from) in results.iter().zip(made) {
        if let (Some(to), Some(from)) = (to, from)
            && *to != from
        {
            let dims = m.bufs[*to].dims.clone();
            m.kernel("copy", &node.origin, |k| {
                k.nest(LoopKind::Par, &dims, |k, at| {
                    let v = k.load(from, at);
                    k.store(*to, at, v);
                });
            });
        }
    }
    let done = interp::run(&m, &[], &[]).ok()?;
    let mut found = done.outputs.into_iter().zip(done.dims);
    let mut out = vec![];
    for (o, r) in outputs.iter().zip(results) {
        out.push(match (o, r.and_then(|_| found.next())) {
            (Some((ValueType::Tensor(t), _)), Some((bytes, dims))) => {
                if crate::tensor::count(&dims).is_none_or(|n| n > MOST as u64) {
                    return None;
                }
                let shape: Vec<Dim> = dims.iter().map(|d| Dim::constant(*d)).collect();
                let data = ConstData::new(t.elem, dims, bytes)?;
                Some((ValueType::Tensor(TensorType::new(t.elem, shape)), Known::Const(Arc::new(data))))
            }
            (o, _) => o.clone(),
        });
    }
    Some(out)
}

fn is_number(t: ElemType) -> bool {
    t.bytes().is_some() && t != ElemType::Str
}

/// The contents of an operand as a small constant.
fn constant(o: &Operand) -> Option<Arc<ConstData>> {
    let t = o.ty.as_tensor()?;
    match &o.known {
        Known::Const(c) => (is_number(c.elem()) && c.count() <= MOST as u64).then(|| c.clone()),
        Known::Dims(d) if d.len() as i64 <= MOST && t.elem.is_int() => {
            let n = t.elem.bytes()? as usize;
            let values = d.iter().map(|d| d.as_const()).collect::<Option<Vec<i64>>>()?;
            let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()[..n].to_vec()).collect();
            let dims = t.dims.iter().map(|d| d.as_const()).collect::<Option<Vec<i64>>>()?;
            ConstData::new(t.elem, dims, bytes).map(Arc::new)
        }
        _ => None,
    }
}
