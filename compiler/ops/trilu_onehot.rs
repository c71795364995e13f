//! Trilu and OneHot: elements selected by their position.
//!
//! OneHot before version 11 has no indices from the end; in every version an index out of range selects
//! nothing. A diagonal or a depth that is known only at run time is read by the generated code. Such a depth
//! must be declared in the shape of the result; a different value is an error (`ONNXC_E_VALUE`).

use super::support::runtime;
use super::{Attrs, Elements, InferCx, LowerCx, Operator};
use crate::diag::{Result, codes};
use crate::nest::{BinOp, Expr};
use crate::ops::from_end;
use crate::sym::Dim;
use crate::tensor::ElemType;

/// The operators.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum TriluOnehot {
    Trilu { upper: bool },
    OneHot { axis: i64 },
}

impl Operator for TriluOnehot {
    const OPS: &'static [&'static str] = &["Trilu", "OneHot"];
    fn elements(_op: &str) -> Elements {
        Elements::Any
    }
    fn parse(a: &mut Attrs) -> Result<Self> {
        Ok(match a.op() {
            "Trilu" => TriluOnehot::Trilu { upper: a.flag("upper", true) },
            _ => TriluOnehot::OneHot { axis: a.int("axis", -1) },
        })
    }
    fn infer(&self, cx: &mut InferCx) -> Result<()> {
        let t = cx.tensor(0).clone();
        match self {
            TriluOnehot::Trilu { .. } => {
                cx.require(t.rank() >= 2, codes::OP_SHAPE, "Trilu needs at least two dimensions")?;
                if cx.has(1) && runtime::length(cx, 1) != Some(1) {
                    return cx.error(codes::OP_SHAPE, "the diagonal must be one number").fail();
                }
                cx.set(0, t.elem, t.dims);
            }
            TriluOnehot::OneHot { axis } => {
                let axis = cx.axis(*axis, t.rank() + 1)?;
                let values = cx.tensor(2).clone();
                cx.require(
                    runtime::length(cx, 1) == Some(1)
                        && runtime::length(cx, 2) == Some(2)
                        && values.rank() == 1,
                    codes::OP_SHAPE,
                    "the depth must be one number, the values two",
                )?;
                let whole = cx.constant(1).and_then(|c| c.scalar()).map(|d| Dim::constant(d as i64));
                let depth = match whole {
                    Some(d) => d,
                    None if runtime::late(cx, 1) => cx.size(0, axis, t.rank() + 1),
                    None => match cx.need_dims(1, "the depth")?.as_slice() {
                        [d] => *d,
                        _ => return cx.error(codes::OP_SHAPE, "the depth must be one number").fail(),
                    },
                };
                cx.require(
                    depth.as_const().is_none_or(|d| d >= 0),
                    codes::OP_SHAPE,
                    "the depth is negative",
                )?;
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
            TriluOnehot::Trilu { upper } => {
                let op = if *upper { BinOp::Ge } else { BinOp::Le };
                let diagonal = cx.input_opt(1);
                let known = match diagonal {
                    None => Some(Dim::constant(0)),
                    Some(_) => cx.dims_value(1).and_then(|d| d.first().copied()),
                };
                let ty = cx.elem(x).compute();
                let dims = cx.dims(x);
                let r = dims.len();
                let (rows, columns) = (dims[r - 2], dims[r - 1]);
                cx.map(y, |k, at| {
                    let (v, zero) = (k.load(x, at), k.zero(ty));
                    // Positions are compared in their own type, so that lanes need no 64 bits.
                    let chosen =
                        |d: Dim| Expr::select(Expr::cmp_index(op, at[r - 1] - at[r - 2], d), v, zero);
                    match (known, diagonal) {
                        (None, Some(b)) => {
                            // All diagonals outside the matrix are equivalent.
                            let d = runtime::value(k, b, 0)
                                .max(Expr::index(Dim::constant(0) - rows))
                                .min(Expr::index(columns))
                                + Expr::index(rows);
                            k.with_index(d, rows + columns + 1, |_, d| chosen(d - rows))
                        }
                        (known, _) => chosen(known.unwrap_or(Dim::constant(0))),
                    }
                });
            }
            TriluOnehot::OneHot { axis } => {
                let (depth, values) = (cx.input(1), cx.input(2));
                let known = cx.constant(1).is_some() || cx.dims_value(1).is_some();
                let out = cx.dims(y);
                let axis = from_end(*axis, out.len() as i64) as usize;
                let (n, from_end) = (out[axis], cx.since >= 11);
                if !known {
                    cx.define(n, runtime::entry(cx, depth, 0));
                }
                // Positions are computed first, -1 for none, so that the comparisons are short and simple.
                let short = cx.m.syms.range(n).hi.is_some_and(|n| i32::try_from(n).is_ok());
                let ty = if short { ElemType::I32 } else { ElemType::I64 };
                let from =
                    |at: &[Dim]| -> Vec<Dim> { at[..axis].iter().chain(&at[axis + 1..]).copied().collect() };
                let positions = cx.temp("positions", ty, cx.dims(x));
                cx.map(positions, |k, at| {
                    let i = Expr::cast(k.m.bufs[x].ty.compute(), ElemType::I64, k.load(x, at));
                    k.shared(i, |k, i| {
                        let below = Expr::bin(BinOp::Lt, i.clone(), runtime::int(0));
                        let i = if from_end { Expr::select(below, i.clone() + Expr::index(n), i) } else { i };
                        k.shared(i, |_, i| {
                            let inside = Expr::bin(BinOp::Ge, i.clone(), runtime::int(0)).and(Expr::bin(
                                BinOp::Lt,
                                i.clone(),
                                Expr::index(n),
                            ));
                            Expr::cast(ElemType::I64, ty, Expr::select(inside, i, runtime::int(-1)))
                        })
                    })
                });
                cx.map(y, |k, at| {
                    let hit = Expr::bin(
                        BinOp::Eq,
                        k.load(positions, &from(at)),
                        Expr::cast(ElemType::I64, ty, Expr::index(at[axis])),
                    );
                    Expr::select(
                        hit,
                        k.load(values, &[Dim::constant(1)]),
                        k.load(values, &[Dim::constant(0)]),
                    )
                });
            }
        }
        Ok(())
    }
}
