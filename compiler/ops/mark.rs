//! Trilu and OneHot: elements selected by their position.
//!
//! OneHot before version 11 takes no indices from the end; in every version an index that names no position marks none.
//! A diagonal or a depth that only run time knows is read by the generated code; the depth must then be declared in the
//! shape of the result, and `ONNXC_E_VALUE` says that it is another one.

use super::{Attrs, InferCx, LowerCx, Operator, runtime};
use crate::diag::{Result, codes};
use crate::nest::{BinOp, Expr, LoopKind};
use crate::sym::Dim;
use crate::tensor::ElemType;

/// The operators.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Mark {
    Trilu { upper: bool },
    OneHot { axis: i64 },
}

impl Operator for Mark {
    const OPS: &'static [&'static str] = &["Trilu", "OneHot"];
    fn parse(a: &mut Attrs) -> Result<Self> {
        Ok(match a.op() {
            "Trilu" => Mark::Trilu { upper: a.flag("upper", true)? },
            _ => Mark::OneHot { axis: a.int("axis", -1)? },
        })
    }
    fn infer(&self, cx: &mut InferCx) -> Result<()> {
        let t = cx.tensor(0)?.clone();
        match self {
            Mark::Trilu { .. } => {
                if t.rank() < 2 {
                    return cx.error(codes::OP_SHAPE, "Trilu needs at least two dimensions").fail();
                }
                if cx.has(1) && runtime::length(cx, 1) != Some(1) {
                    return cx.error(codes::OP_SHAPE, "the diagonal must be one number").fail();
                }
                cx.set(0, t.elem, t.dims);
            }
            Mark::OneHot { axis } => {
                let axis = cx.axis(*axis, t.rank() + 1)?;
                let values = cx.tensor(2)?.clone();
                if runtime::length(cx, 1) != Some(1) || runtime::length(cx, 2) != Some(2) || values.rank() != 1 {
                    return cx.error(codes::OP_SHAPE, "the depth must be one number, the values two").fail();
                }
                let whole = cx.constant(1).and_then(|c| c.scalar()).map(|d| Dim::constant(d as i64));
                let depth = match whole {
                    Some(d) => d,
                    None if runtime::late(cx, 1) => cx.size(0, axis, t.rank() + 1),
                    None => match cx.need_dims(1, "the depth")?.as_slice() {
                        [d] => *d,
                        _ => return cx.error(codes::OP_SHAPE, "the depth must be one number").fail(),
                    },
                };
                if depth.as_const().is_some_and(|d| d < 0) {
                    return cx.error(codes::OP_SHAPE, "the depth is negative").fail();
                }
                let mut dims = t.dims;
                dims.insert(axis, depth);
                cx.set(0, values.elem, dims);
            }
        }
        Ok(())
    }
    fn lower(&self, cx: &mut LowerCx) -> Result<()> {
        let (x, y) = (cx.input(0), cx.output(0));
        match self {
            Mark::Trilu { upper } => {
                let op = if *upper { BinOp::Ge } else { BinOp::Le };
                let diagonal = cx.input_opt(1);
                let ty = cx.elem(x).compute();
                let r = cx.dims(x).len();
                cx.map(y, |k, at| {
                    let d = diagonal.map_or(runtime::int(0), |b| runtime::value(k, b, 0));
                    let v = k.load(x, at);
                    Expr::select(Expr::bin(op, Expr::index(at[r - 1] - at[r - 2]), d), v, k.zero(ty))
                });
            }
            Mark::OneHot { axis } => {
                let (depth, values) = (cx.input(1), cx.input(2));
                let known = cx.constant(1).is_some() || cx.dims_value(1).is_some();
                let out = cx.dims(y);
                let axis = (if *axis < 0 { *axis + out.len() as i64 } else { *axis }) as usize;
                let (n, from_end) = (out[axis], cx.since >= 11);
                if !known {
                    cx.define(n, runtime::entry(cx, depth, 0));
                }
                cx.kernel(|k| {
                    k.nest(LoopKind::Par, &out, |k, at| {
                        let from: Vec<Dim> = at[..axis].iter().chain(&at[axis + 1..]).copied().collect();
                        let i = Expr::cast(k.m.bufs[x].ty.compute(), ElemType::I64, k.load(x, &from));
                        let v = k.shared(i, |k, i| {
                            let hit = |d: Dim| runtime::eq(i.clone(), Expr::index(d));
                            let hit = if from_end { runtime::or(hit(at[axis]), hit(at[axis] - n)) } else { hit(at[axis]) };
                            Expr::select(hit, k.load(values, &[Dim::constant(1)]), k.load(values, &[Dim::constant(0)]))
                        });
                        k.store(y, at, v);
                    });
                });
            }
        }
        Ok(())
    }
}
