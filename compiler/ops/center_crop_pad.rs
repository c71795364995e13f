//! CenterCropPad: axes become as long as asked for, cropped or padded with zeros on both sides.
//!
//! Spec: <https://onnx.ai/onnx/operators/onnx__CenterCropPad.html>. One version, 18. Of an odd difference the smaller
//! half comes first.

use super::{Attrs, InferCx, LowerCx, Operator, runtime};
use crate::diag::{Result, codes};
use crate::nest::{BinOp, Expr, LoopKind};
use crate::sym::Dim;

/// The operator.
#[derive(Clone, Debug, PartialEq)]
pub struct CenterCropPad {
    axes: Option<Vec<i64>>,
}

impl Operator for CenterCropPad {
    const OPS: &'static [&'static str] = &["CenterCropPad"];
    fn parse(a: &mut Attrs) -> Result<Self> {
        Ok(CenterCropPad { axes: a.ints_opt("axes")? })
    }
    fn infer(&self, cx: &mut InferCx) -> Result<()> {
        let x = cx.tensor(0)?.clone();
        let axes = match &self.axes {
            Some(a) => a.iter().map(|a| cx.axis(*a, x.rank())).collect::<Result<Vec<_>>>()?,
            None => (0..x.rank()).collect(),
        };
        if (1..axes.len()).any(|i| axes[..i].contains(&axes[i])) {
            return cx.error(codes::OP_ATTRIBUTE, "attribute \"axes\" names an axis twice").fail();
        }
        if runtime::length(cx, 1) != Some(axes.len()) {
            return cx.error(codes::OP_SHAPE, "shape does not fit the axes").row("expected", format!("{} values", axes.len())).fail();
        }
        let mut dims = x.dims.clone();
        if let Some(d) = runtime::declared_for(cx, 1, 0) {
            runtime::require_rank(cx, &d, x.rank())?;
            for a in (0..x.rank()).filter(|a| !axes.contains(a)) {
                cx.require_eq(d[a], x.dims[a], &format!("axis {a} keeps its size"))?;
            }
            dims = d;
        } else {
            for (a, d) in axes.into_iter().zip(cx.need_dims(1, "shape")?) {
                if d.as_const().is_some_and(|d| d < 0) {
                    return cx.error(codes::OP_SHAPE, "a size is negative").fail();
                }
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
        let asked = cx.input_opt(1).filter(|_| cx.dims_value(1).is_none());
        let axes: Vec<usize> = match &self.axes {
            Some(a) => a.iter().map(|a| (if *a < 0 { *a + from.len() as i64 } else { *a }) as usize).collect(),
            None => (0..from.len()).collect(),
        };
        let syms = cx.m.syms.clone();
        cx.kernel(|k| {
            if let Some(b) = asked {
                for (j, a) in axes.iter().enumerate() {
                    let same = runtime::eq(runtime::value(k, b, j), Expr::index(to[*a]));
                    runtime::check(k, same);
                }
            }
            k.nest(LoopKind::Par, &to, |k, at| {
                let mut at_x = vec![];
                let mut inside: Option<Expr> = None;
                for ((i, n), out) in at.iter().zip(&from).zip(&to) {
                    let pad = (*out - *n).max(0).floor_div(2);
                    let crop = (*n - *out).max(0).floor_div(2);
                    let p = syms.simplify(*i - pad + crop);
                    at_x.push(p);
                    for (sure, c) in [(k.m.syms.is_nonneg(p), Expr::cmp_index(BinOp::Ge, p, 0)), (k.m.syms.is_nonneg(*n - 1 - p), Expr::cmp_index(BinOp::Lt, p, *n))] {
                        if !sure {
                            inside = Some(inside.map_or(c.clone(), |o| o.and(c)));
                        }
                    }
                }
                let v = k.load(x, &at_x);
                let v = match inside {
                    Some(c) => Expr::select(c, v, Expr::num(ty, 0.0)),
                    None => v,
                };
                k.store(y, at, v);
            });
        });
        Ok(())
    }
}
