//! Softmax, LogSoftmax, Hardmax.
//!
//! | versions | axis |
//! |---|---|
//! | 1, 11 | default 1; the input is seen as a matrix [d0 .. d(axis-1), d(axis) ..], rows are normalised |
//! | 13 | default -1; one axis |

use super::support::arg;
use super::{Attrs, InferCx, LowerCx, Operator};
use crate::diag::{Result, codes};
use crate::nest::{BinOp, Buf, Expr, LoopKind, Scalar, UnOp};
use crate::ops::from_end;
use crate::sym::Dim;
use crate::tensor::ElemType;
use std::ops::Range;

/// Which of them.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Kind {
    Soft,
    Log,
    Hard,
}

/// The operator.
#[derive(Clone, Debug, PartialEq)]
pub struct Softmax {
    /// Which of them.
    pub kind: Kind,
    /// May be negative.
    pub axis: i64,
}

impl Operator for Softmax {
    const OPS: &'static [&'static str] = &["Softmax", "LogSoftmax", "Hardmax"];
    fn parse(a: &mut Attrs) -> Result<Self> {
        let kind = match a.op() {
            "Softmax" => Kind::Soft,
            "LogSoftmax" => Kind::Log,
            _ => Kind::Hard,
        };
        Ok(Softmax { kind, axis: a.int("axis", if a.since() < 13 { 1 } else { -1 }) })
    }
    fn infer(&self, cx: &mut InferCx) -> Result<()> {
        let t = cx.tensor(0).clone();
        let ok = cx.since < 13 && self.axis == t.rank() as i64;
        if t.rank() > 0 && !ok {
            cx.axis(self.axis, t.rank())?;
        } else if t.rank() == 0 && !matches!(self.axis, -1..=1) {
            return cx.error(codes::OP_ATTRIBUTE, "axis is out of range").fail();
        }
        // Positions of 32 bits make vectors longer.
        let axis = from_end(self.axis, t.rank() as i64);
        if self.kind == Kind::Hard
            && t.elem.compute().bits() <= 32
            && let Some(n) = usize::try_from(axis).ok().and_then(|a| t.dims.get(a))
        {
            cx.syms.require_at_most(*n, Dim::constant(i32::MAX.into()));
        }
        cx.set(0, t.elem, t.dims);
        Ok(())
    }
    fn lower(&self, cx: &mut LowerCx) -> Result<()> {
        let (x, y) = (cx.input(0), cx.output(0));
        let dims = cx.dims(x);
        let rank = dims.len();
        let axis = from_end(self.axis, rank as i64).clamp(0, rank as i64) as usize;
        // The axes of a row: a single one, or all from `axis` on.
        let last = if cx.since < 13 { rank } else { (axis + 1).min(rank) };
        rows(cx, self.kind, x, y, axis..last);
        Ok(())
    }
}

/// Normalizes the rows of `x` over `axes` into `y`.
pub fn rows(cx: &mut LowerCx, kind: Kind, x: Buf, y: Buf, axes: Range<usize>) {
    let dims = cx.dims(x);
    let (axis, last) = (axes.start, axes.end);
    let outer: Vec<Dim> = dims[..axis].iter().chain(&dims[last..]).copied().collect();
    let row = dims[axis..last].to_vec();
    let ty = cx.elem(x).compute();
    // The type of positions in a row: that of the elements' lanes, if it holds them.
    let short = row.first().is_some_and(|n| arg::has_positions(&cx.m.syms, ty, *n));
    let word = if short { ElemType::I32 } else { ElemType::I64 };
    cx.kernel(|k| {
        k.nest(LoopKind::Par, &outer, |k, o| {
            let at =
                |r: &[Dim]| -> Vec<Dim> { o[..axis].iter().chain(r).chain(&o[axis..]).copied().collect() };
            let top = k.acc(Scalar::lowest(ty).into());
            k.nest(LoopKind::Seq, &row, |k, r| {
                let v = k.load(x, &at(r));
                k.update(BinOp::Max, top, v);
            });
            if kind == Kind::Hard && row.len() == 1 {
                // The first position of the largest value.
                let none: Expr = Scalar::highest(word).into();
                let first = k.acc(none.clone());
                k.nest(LoopKind::Seq, &row, |k, r| {
                    let hit = Expr::bin(BinOp::Eq, k.load(x, &at(r)), Expr::acc(top));
                    let here = Expr::select(hit, arg::index(word, r[0]), none.clone());
                    k.update(BinOp::Min, first, here);
                });
                k.nest(LoopKind::Seq, &row, |k, r| {
                    let hit = Expr::bin(BinOp::Eq, arg::index(word, r[0]), Expr::acc(first));
                    k.store(y, &at(r), Expr::select(hit, Expr::num(ty, 1.0), Expr::num(ty, 0.0)));
                });
                return;
            }
            if kind == Kind::Hard {
                let seen = k.acc(Expr::num(ty, 0.0));
                k.nest(LoopKind::Seq, &row, |k, r| {
                    let hit = Expr::bin(BinOp::Eq, k.load(x, &at(r)), Expr::acc(top));
                    let first =
                        Expr::bin(BinOp::And, hit, Expr::bin(BinOp::Eq, Expr::acc(seen), Expr::num(ty, 0.0)));
                    let v = k.let_(Expr::select(first, Expr::num(ty, 1.0), Expr::num(ty, 0.0)));
                    k.store(y, &at(r), v.clone());
                    k.update(BinOp::Add, seen, v);
                });
                return;
            }
            let sum = k.acc(Expr::num(ty, 0.0));
            k.nest(LoopKind::Seq, &row, |k, r| {
                let v = Expr::un(UnOp::Exp, k.load(x, &at(r)) - Expr::acc(top));
                if kind == Kind::Soft && k.m.bufs[y].ty == ty {
                    let v = k.let_(v);
                    k.store(y, &at(r), v.clone());
                    k.update(BinOp::Add, sum, v);
                } else {
                    k.update(BinOp::Add, sum, v);
                }
            });
            let scale = match kind {
                Kind::Soft => k.let_(Expr::num(ty, 1.0) / Expr::acc(sum)),
                _ => k.let_(Expr::un(UnOp::Log, Expr::acc(sum))),
            };
            k.nest(LoopKind::Seq, &row, |k, r| {
                let v = match kind {
                    Kind::Soft if k.m.bufs[y].ty == ty => k.load(y, &at(r)) * scale.clone(),
                    Kind::Soft => Expr::un(UnOp::Exp, k.load(x, &at(r)) - Expr::acc(top)) * scale.clone(),
                    _ => k.load(x, &at(r)) - Expr::acc(top) - scale.clone(),
                };
                k.store(y, &at(r), v);
            });
        });
    });
}
