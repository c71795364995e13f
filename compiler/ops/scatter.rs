//! Scatter, ScatterElements, ScatterND, TensorScatter: a copy of the data with updates at positions given by
//! a tensor.
//!
//! | operator | versions |
//! |---|---|
//! | Scatter | 9, 11: the old name of ScatterElements |
//! | ScatterElements, ScatterND | 11, 13; 16: `reduction` add and mul; 18: max and min |
//! | TensorScatter | 24 |
//!
//! Indices are in -n..n; an index out of range is a status (`ONNXC_E_INDEX`). Updates of the same element are
//! applied in order. TensorScatter writes a piece of each batch element from a position on. Without `mode =
//! "circular"` the piece must fit (`ONNXC_E_VALUE`).

use super::gather::from_start;
use super::support::runtime;
use super::{Attrs, Elements, InferCx, LowerCx, Operator};
use crate::diag::{Result, codes};
use crate::nest::{BinOp, Buf, Expr, KernelBuilder, LoopKind};
use crate::ops::from_end;
use crate::sym::Dim;
use crate::tensor::ElemType;

/// Adjacent elements that ScatterElements handles together: one or two cache lines.
const TOGETHER: i64 = 16;

/// The operators; `join` combines an update with the present element.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Scatter {
    Elements { axis: i64, join: Option<BinOp> },
    Nd { join: Option<BinOp> },
    Tensor { axis: i64, circular: bool },
}

impl Operator for Scatter {
    const OPS: &'static [&'static str] = &["Scatter", "ScatterElements", "ScatterND", "TensorScatter"];
    fn elements(_op: &str) -> Elements {
        Elements::Any
    }
    fn parse(a: &mut Attrs) -> Result<Self> {
        if a.op() == "TensorScatter" {
            let circular = a.choice("mode", "linear", &[("linear", false), ("circular", true)]);
            return Ok(Scatter::Tensor { axis: a.int("axis", -2), circular });
        }
        let joins = [
            ("none", None),
            ("add", Some(BinOp::Add)),
            ("mul", Some(BinOp::Mul)),
            ("max", Some(BinOp::Max)),
            ("min", Some(BinOp::Min)),
        ];
        let known = if a.since() < 18 { &joins[..3] } else { &joins };
        let join = a.choice("reduction", "none", known);
        Ok(if a.op() == "ScatterND" {
            Scatter::Nd { join }
        } else {
            Scatter::Elements { axis: a.int("axis", 0), join }
        })
    }
    fn infer(&self, cx: &mut InferCx) -> Result<()> {
        let t = cx.tensor(0).clone();
        if let Scatter::Elements { join: Some(op), .. } | Scatter::Nd { join: Some(op) } = self
            && let Some(why) = irreducible(t.elem, *op)
        {
            return cx.error(codes::OP_TYPE, why).fail();
        }
        match self {
            Scatter::Elements { axis, .. } => {
                let (i, u) = (cx.tensor(1).clone(), cx.tensor(2).clone());
                let axis = cx.axis(*axis, t.rank())?;
                cx.require(
                    i.rank() == t.rank() && u.rank() == t.rank(),
                    codes::OP_SHAPE,
                    "data, indices and updates must have the same rank",
                )?;
                for d in 0..t.rank() {
                    cx.require_eq(i.dims[d], u.dims[d], "indices and updates differ in shape");
                    if d != axis {
                        cx.syms.require_at_most(i.dims[d], t.dims[d]);
                    }
                }
            }
            Scatter::Nd { .. } => {
                let (i, u) = (cx.tensor(1).clone(), cx.tensor(2).clone());
                let last = i
                    .dims
                    .last()
                    .and_then(|d| d.as_const())
                    .and_then(|n| usize::try_from(n).ok())
                    .filter(|n| (1..=t.rank()).contains(n));
                let Some(last) = last else {
                    return cx
                        .error(
                            codes::OP_SHAPE,
                            format!(
                                "the last dimension of the indices must be a \
                        number from 1 to {}, the data's rank",
                                t.rank()
                            ),
                        )
                        .fail();
                };
                let want: Vec<Dim> = i.dims[..i.rank() - 1].iter().chain(&t.dims[last..]).copied().collect();
                cx.require(
                    u.rank() == want.len(),
                    codes::OP_SHAPE,
                    "the updates do not fit indices and data",
                )?;
                for (a, b) in u.dims.iter().zip(want) {
                    cx.require_eq(*a, b, "the updates do not fit indices and data");
                }
            }
            Scatter::Tensor { axis, .. } => {
                let u = cx.tensor(1).clone();
                let axis = cx.axis(*axis, t.rank())?;
                cx.require(
                    axis != 0 && u.rank() == t.rank(),
                    codes::OP_SHAPE,
                    "cache and update must have the same rank, and the axis must not be the batch's",
                )?;
                for d in (0..t.rank()).filter(|d| *d != axis) {
                    cx.require_eq(u.dims[d], t.dims[d], "cache and update differ in shape");
                }
                cx.syms.require_at_most(u.dims[axis], t.dims[axis]);
                if let Some(w) = cx.tensor_opt(2) {
                    cx.require(
                        w.rank() == 1,
                        codes::OP_SHAPE,
                        "there must be one position for each batch element",
                    )?;
                    cx.require_eq(w.dims[0], t.dims[0], "there must be one position for each batch element");
                }
            }
        }
        cx.set(0, t.elem, t.dims);
        Ok(())
    }
    fn lower(&self, cx: &mut LowerCx) -> Result<()> {
        let (x, y) = (cx.input(0), cx.output(0));
        let dims = cx.dims(x);
        let axis_of = |a: i64| from_end(a, dims.len() as i64) as usize;
        if let Scatter::Tensor { axis, circular } = self {
            lower_tensor(cx, axis_of(*axis), *circular);
            return Ok(());
        }
        cx.map(y, |k, at| k.load(x, at));
        let (i, u) = (cx.input(1), cx.input(2));
        let idx = cx.dims(i);
        match self {
            Scatter::Elements { axis, join } => {
                let axis = axis_of(*axis);
                let update = |k: &mut KernelBuilder, at: &[Dim]| {
                    let pos = k.load(i, at);
                    let pos = from_start(k, i, pos, dims[axis]);
                    k.at_index(pos, dims[axis], |k, p| {
                        let mut to = at.to_vec();
                        to[axis] = p;
                        put(k, y, &to, (u, at), *join);
                    });
                };
                // Only updates along the axis can collide. Elements that are adjacent in memory are handled
                // together.
                let last = idx.len() - 1;
                let mut outer: Vec<Dim> =
                    idx.iter().enumerate().filter(|d| d.0 != axis).map(|d| *d.1).collect();
                if axis != last {
                    outer[last - 1] = idx[last].ceil_div(TOGETHER);
                }
                cx.kernel(|k| {
                    k.nest(LoopKind::Par, &outer, |k, o| {
                        k.range(LoopKind::Seq, "r", 0, idx[axis], |k, r| {
                            let mut at: Vec<Dim> =
                                o[..axis].iter().chain([&r]).chain(&o[axis..]).copied().collect();
                            if axis == last {
                                return update(k, &at);
                            }
                            let first = at[last] * TOGETHER;
                            k.range(LoopKind::Seq, "i", 0, (idx[last] - first).min(TOGETHER), |k, i| {
                                at[last] = first + i;
                                update(k, &at);
                            });
                        });
                    });
                });
            }
            Scatter::Nd { join } => {
                let outer = &idx[..idx.len() - 1];
                let last = idx[outer.len()].as_const().unwrap_or(0) as usize;
                cx.kernel(|k| {
                    k.nest(LoopKind::Seq, outer, |k, o| {
                        place(k, i, o, &dims, last, vec![], &mut |k, to| {
                            k.nest(LoopKind::Seq, &dims[last..], |k, r| {
                                let (to, at) = ([to, r].concat(), [o, r].concat());
                                put(k, y, &to, (u, &at), *join);
                            });
                        });
                    });
                });
            }
            Scatter::Tensor { .. } => {}
        }
        Ok(())
    }
}

/// Binds the `last` indices at `o`, nested in each other.
fn place(
    k: &mut KernelBuilder,
    i: Buf,
    o: &[Dim],
    dims: &[Dim],
    last: usize,
    to: Vec<Dim>,
    body: &mut dyn FnMut(&mut KernelBuilder, &[Dim]),
) {
    let d = to.len();
    if d == last {
        return body(k, &to);
    }
    let pos = k.load(i, &[o, &[Dim::from(d)]].concat());
    let pos = from_start(k, i, pos, dims[d]);
    k.at_index(pos, dims[d], |k, p| place(k, i, o, dims, last, [to.as_slice(), &[p]].concat(), body));
}

/// The reason why elements of a type cannot be combined, if so.
fn irreducible(t: ElemType, op: BinOp) -> Option<&'static str> {
    match op {
        _ if t == ElemType::Str => Some("strings have no reduction"),
        BinOp::Max | BinOp::Min if t.is_complex() => {
            Some("complex numbers have no order, and so no reduction to the largest or the smallest")
        }
        _ => None,
    }
}

/// `y[to] = y[to] join update` of complex numbers, part by part.
fn put_complex(
    k: &mut KernelBuilder,
    part: ElemType,
    (y, to): (Buf, &[Dim]),
    (u, at): (Buf, &[Dim]),
    op: BinOp,
) {
    let mut parts = |b: Buf, at: &[Dim]| {
        let dims = [k.m.bufs[b].dims.as_slice(), &[Dim::constant(2)]].concat();
        let b = k.m.view_as(b, part, dims);
        let v = [0, 1].map(|p| k.load(b, &[at, &[Dim::constant(p)]].concat()));
        (b, v.map(|v| k.let_(v)))
    };
    let ((y, [a, b]), (_, [c, d])) = (parts(y, to), parts(u, at));
    let sum = match op {
        BinOp::Add => [a + c, b + d],
        _ => [a.clone() * c.clone() - b.clone() * d.clone(), a * d + b * c],
    };
    for (p, v) in sum.into_iter().enumerate() {
        k.store(y, &[to, &[Dim::from(p)]].concat(), v);
    }
}

/// `y[to] = y[to] join update`.
fn put(k: &mut KernelBuilder, y: Buf, to: &[Dim], (u, at): (Buf, &[Dim]), join: Option<BinOp>) {
    if let (Some(op), Some(part)) = (join, k.m.bufs[y].ty.part()) {
        return put_complex(k, part, (y, to), (u, at), op);
    }
    let v = k.load(u, at);
    let join = join.map(|op| match (k.m.bufs[y].ty, op) {
        (ElemType::Bool, BinOp::Add | BinOp::Max) => BinOp::Or,
        (ElemType::Bool, _) => BinOp::And,
        _ => op,
    });
    let v = match join {
        Some(op) => Expr::bin(op, k.load(y, to), v),
        None => v,
    };
    k.store(y, to, v);
}

/// Copies the data, then writes the pieces, whose positions are distinct. In place, nothing else is touched.
fn lower_tensor(cx: &mut LowerCx, axis: usize, circular: bool) {
    let (x, u, y) = (cx.input(0), cx.input(1), cx.output(0));
    let starts = cx.input_opt(2);
    let (dims, piece) = (cx.dims(x), cx.dims(u)[axis]);
    let size = Expr::index(dims[axis]);
    if let Some(starts) = starts {
        cx.kernel(|k| {
            k.nest(LoopKind::Seq, &dims[..1], |k, b| {
                let s = k.load(starts, b);
                let s = k.let_(s);
                // A start equal to the size is allowed: it is position 0 in a circular buffer, and the end
                // for an empty piece.
                let end = if circular { s.clone() } else { s.clone() + Expr::index(piece) };
                let inside = Expr::bin(BinOp::Le, end, size.clone());
                runtime::check(k, Expr::bin(BinOp::Ge, s, runtime::int(0)).and(inside));
            });
        });
    }
    cx.map(y, |k, at| k.load(x, at));
    cx.kernel(|k| {
        k.nest(LoopKind::Par, &dims[..axis], |k, o| {
            let start = starts.map_or(runtime::int(0), |s| k.load(s, &o[..1]));
            let start = k.let_(start);
            k.range(LoopKind::Seq, "r", 0, piece, |k, r| {
                let p = k.let_(start.clone() + Expr::index(r));
                let p = match circular {
                    true => {
                        let beyond = Expr::bin(BinOp::Ge, p.clone(), size.clone());
                        Expr::select(beyond, p.clone() - size.clone(), p)
                    }
                    false => p,
                };
                k.at_index(p, dims[axis], |k, p| {
                    k.nest(LoopKind::Seq, &dims[axis + 1..], |k, rest| {
                        let (to, from) = ([o, &[p], rest].concat(), [o, &[r], rest].concat());
                        put(k, y, &to, (u, &from), None);
                    });
                });
            });
        });
    });
}
