//! Constant evaluation of small results during shape inference. Exporters compute sizes with floats, lists
//! and selections; constant parts must be known before the shapes that depend on them.
//!
//! The node is lowered separately and run by the interpreter of the nest IR. Larger results are folded by
//! `passes/nest/fuse/fold_constants`.
//!
//! Operators that only move elements also move sizes that are expressions. They run on marks, numbers that
//! denote the expressions, and the marks in the result determine the position of each expression.

use crate::graph::NodeData;
use crate::nest::{Buf, LoopKind, Module, Place, interp};
use crate::ops::{Known, LowerCx, Op, Operand};
use crate::sym::{Dim, SymKind, SymTable};
use crate::tensor::{ConstData, ElemType, TensorType, ValueType};
use std::collections::HashSet;
use std::sync::Arc;

/// Most elements of an operand or of a result.
const MOST: i64 = 64;

/// The small results of a node whose operands are small constants. `None` if the node is not evaluated at
/// compile time.
pub(super) fn evaluate(
    node: &NodeData,
    operands: &[Option<Operand>],
    outputs: &[Option<(ValueType, Known)>],
    syms: &SymTable,
) -> Option<Vec<Option<(ValueType, Known)>>> {
    let open = |o: &(ValueType, Known)| matches!(o.1, Known::No);
    if matches!(node.op, Op::Control(_)) || !outputs.iter().flatten().any(open) {
        return None;
    }
    let mut marks = Marks::default();
    let constants: Vec<Option<Arc<ConstData>>> = operands
        .iter()
        .enumerate()
        .map(|(i, o)| match o {
            None => Some(None),
            Some(o) => {
                constant(o).or_else(|| if moves(node.schema.name, i) { marks.of(o) } else { None }).map(Some)
            }
        })
        .collect::<Option<_>>()?;
    let types: Vec<Option<&TensorType>> = outputs
        .iter()
        .map(|o| o.as_ref().map_or(Some(None), |o| o.0.as_tensor().map(Some)))
        .collect::<Option<_>>()?;
    for t in types.iter().flatten() {
        // Sizes that depend on the constants are determined by running the node.
        let fits =
            |d: &Dim| d.as_const().is_some() || d.as_sym().is_some_and(|s| syms.kind(s) == SymKind::Runtime);
        if !is_number(t.elem) || !t.dims.iter().all(fits) || t.count().as_const().is_some_and(|n| n > MOST) {
            return None;
        }
    }
    let symbolic = types.iter().flatten().any(|t| t.count().as_const().is_none());
    let mut m = Module::new("constant", if symbolic { syms.clone() } else { SymTable::new() });
    let inputs: Vec<Option<Buf>> =
        constants.iter().map(|c| c.as_ref().map(|c| m.constant("constant", c.clone()))).collect();
    let known: Vec<Known> =
        constants.iter().map(|c| c.as_ref().map_or(Known::No, |c| Known::Const(c.clone()))).collect();
    let mut results = vec![];
    for (ty, out) in types.iter().zip(outputs) {
        // Results that inference already knows have no kernel.
        let wanted = ty.filter(|_| out.as_ref().is_some_and(open));
        results.push(wanted.map(|t| {
            let b = m.buf("result", t.elem, t.dims.clone(), Place::Output(m.outputs.len() as u32));
            m.outputs.push(b);
            b
        }));
    }
    let mut cx = LowerCx {
        m: &mut m,
        origin: &node.origin,
        since: node.schema.since,
        inputs: &inputs,
        known: &known,
        defined: &mut HashSet::new(),
        outputs: results.clone(),
    };
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
                let data = Arc::new(ConstData::new(t.elem, dims, bytes)?);
                let known = marks.read(&data).map_or(Known::Const(data), Known::Dims);
                Some((ValueType::Tensor(TensorType::new(t.elem, shape)), known))
            }
            (o, _) => o.clone(),
        });
    }
    Some(out)
}

/// True if an operator only moves the elements of operand `i`.
fn moves(op: &str, i: usize) -> bool {
    match op {
        "Reshape" | "Squeeze" | "Unsqueeze" | "Flatten" | "Identity" | "Transpose" | "Slice" | "Split"
        | "Expand" | "Tile" => i == 0,
        "Gather" | "GatherElements" | "GatherND" | "Compress" => i == 0,
        "Pad" | "ScatterElements" | "ScatterND" => i == 0 || i == 2,
        "Where" => i > 0,
        "Concat" => true,
        _ => false,
    }
}

/// Numbers that denote expressions over sizes. No model computes with numbers of this magnitude.
#[derive(Default)]
struct Marks(Vec<Dim>);

impl Marks {
    const FIRST: i64 = 0x4d61_726b_0000_0000;
    /// A constant with a mark in place of each known element of an operand.
    fn of(&mut self, o: &Operand) -> Option<Arc<ConstData>> {
        let (t, Known::Dims(list)) = (o.ty.as_tensor()?, &o.known) else { return None };
        if t.elem != ElemType::I64 || list.len() as i64 > MOST {
            return None;
        }
        let dims = t.dims.iter().map(|d| d.as_const()).collect::<Option<Vec<i64>>>()?;
        let first = Self::FIRST + self.0.len() as i64;
        self.0.extend(list);
        let bytes: Vec<u8> = (0..list.len() as i64).flat_map(|i| (first + i).to_le_bytes()).collect();
        ConstData::new(t.elem, dims, bytes).map(Arc::new)
    }
    /// The expressions in a result, if there are any.
    fn read(&self, data: &ConstData) -> Option<Vec<Dim>> {
        let values = data.to_i64s().filter(|_| !self.0.is_empty() && data.elem() == ElemType::I64)?;
        let at =
            |v: i64| v.checked_sub(Self::FIRST).and_then(|i| self.0.get(usize::try_from(i).ok()?)).copied();
        values
            .iter()
            .any(|v| at(*v).is_some())
            .then(|| values.iter().map(|v| at(*v).unwrap_or(Dim::constant(*v))).collect())
    }
}

fn is_number(t: ElemType) -> bool {
    t.bytes().is_some() && t != ElemType::Str
}

/// The contents of an operand, if it is a small constant.
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
