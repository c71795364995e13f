//! CenterCropPad: resizes axes by cropping or zero-padding them on both sides.
//!
//! Spec: <https://onnx.ai/onnx/operators/onnx__CenterCropPad.html>. One version, 18. If the difference is
//! odd, the smaller half comes first.

use super::support::runtime;
use super::{Attrs, Elements, InferCx, LowerCx, Operator};
use crate::diag::{Result, codes};
use crate::nest::{BinOp, Expr, LoopKind};
use crate::ops::from_end;
use crate::sym::Dim;

/// The operator.
#[derive(Clone, Debug, PartialEq)]
pub struct CenterCropPad {
    axes: Option<Vec<i64>>,
}

impl Operator for CenterCropPad {
    const OPS: &'static [&'static str] = &["CenterCropPad"];
    fn elements(_op: &str) -> Elements {
        Elements::Any
    }
    fn parse(a: &mut Attrs) -> Result<Self> {
        Ok(CenterCropPad { axes: a.ints_opt("axes") })
    }
    fn infer(&self, cx: &mut InferCx) -> Result<()> {
        let x = cx.tensor(0).clone();
        let axes = match &self.axes {
            Some(a) => a.iter().map(|a| cx.axis(*a, x.rank())).collect::<Result<Vec<_>>>()?,
            None => (0..x.rank()).collect(),
        };
        if (1..axes.len()).any(|i| axes[..i].contains(&axes[i])) {
            return cx.error(codes::OP_ATTRIBUTE, "attribute \"axes\" names an axis twice").fail();
        }
        if runtime::length(cx, 1) != Some(axes.len()) {
            return cx
                .error(codes::OP_SHAPE, "shape does not fit the axes")
                .row("expected", format!("{} values", axes.len()))
                .fail();
        }
        let mut dims = x.dims.clone();
        if runtime::late(cx, 1) {
            for a in axes {
                dims[a] = cx.size(0, a, x.rank());
            }
        } else {
            for (a, d) in axes.into_iter().zip(cx.need_dims(1, "shape")?) {
                cx.require(d.as_const().is_none_or(|d| d >= 0), codes::OP_SHAPE, "a size is negative")?;
                cx.syms.require_at_most(Dim::constant(0), d);
                dims[a] = d;
            }
        }
        cx.set(0, x.elem, dims);
        Ok(())
    }
    fn lower(&self, cx: &mut LowerCx) -> Result<()> {
        let (x, y) = (cx.input(0), cx.output(0));
        let (from, to) = (cx.dims(x), cx.dims(y));
        let ty = cx.elem(x).compute();
        let axes: Vec<usize> = match &self.axes {
            Some(a) => a.iter().map(|a| from_end(*a, from.len() as i64) as usize).collect(),
            None => (0..from.len()).collect(),
        };
        if let Some(b) = runtime::late_operand(cx, 1) {
            for (j, a) in axes.iter().enumerate() {
                cx.define(to[*a], runtime::entry(cx, b, j));
            }
        }
        cx.kernel(|k| {
            k.nest(LoopKind::Par, &to, |k, at| {
                let mut at_x = vec![];
                let mut inside: Option<Expr> = None;
                for ((i, n), out) in at.iter().zip(&from).zip(&to) {
                    let pad = (*out - *n).max(0).floor_div(2);
                    let crop = (*n - *out).max(0).floor_div(2);
                    let p = k.m.syms.simplify(*i - pad + crop);
                    at_x.push(p);
                    for (sure, c) in [
                        (k.m.syms.is_nonneg(p), Expr::cmp_index(BinOp::Ge, p, 0)),
                        (k.m.syms.is_nonneg(*n - 1 - p), Expr::cmp_index(BinOp::Lt, p, *n)),
                    ] {
                        if !sure {
                            inside = Some(inside.map_or(c.clone(), |o| o.and(c)));
                        }
                    }
                }
                let v = k.load(x, &at_x);
                let v = match inside {
                    Some(c) => Expr::select(c, v, k.zero(ty)),
                    None => v,
                };
                k.store(y, at, v);
            });
        });
        Ok(())
    }
}
