//! LRN: local response normalization across channels.
//!
//! Spec: <https://onnx.ai/onnx/operators/onnx__LRN.html>. Version 13 adds bfloat16.

use super::support::power::power;
use super::{Attrs, InferCx, LowerCx, Operator};
use crate::diag::{Result, codes};
use crate::nest::{BinOp, Expr, LoopKind};
use crate::sym::Dim;

/// y = x / (bias + alpha / size * sum of squares of the `size` channels around) ^ beta
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub struct Lrn {
    pub alpha: f32,
    pub beta: f32,
    pub bias: f32,
    pub size: i64,
}

impl Operator for Lrn {
    const OPS: &'static [&'static str] = &["LRN"];
    fn parse(a: &mut Attrs) -> Result<Self> {
        let size = a.int_required("size");
        if size < 1 {
            return a
                .error("attribute \"size\" must be positive")
                .found_expected(size.to_string(), "1 or more")
                .fail();
        }
        Ok(Lrn {
            alpha: a.float("alpha", 1e-4),
            beta: a.float("beta", 0.75),
            bias: a.float("bias", 1.0),
            size,
        })
    }
    fn infer(&self, cx: &mut InferCx) -> Result<()> {
        let t = cx.tensor(0);
        cx.require(t.rank() >= 2, codes::OP_SHAPE, "the input must have batch and channel dimensions")?;
        cx.set(0, t.elem, t.dims.clone());
        Ok(())
    }
    fn lower(&self, cx: &mut LowerCx) -> Result<()> {
        let (x, y) = (cx.input(0), cx.output(0));
        let dims = cx.dims(x);
        let ty = cx.elem(x).compute();
        let before = (self.size - 1) / 2;
        cx.kernel(|k| {
            k.nest(LoopKind::Par, &dims, |k, at| {
                let sum = k.acc(Expr::num(ty, 0.0));
                k.nest(LoopKind::Seq, &[Dim::constant(self.size)], |k, r| {
                    let c = at[1] + r[0] - before;
                    let mut from = at.to_vec();
                    from[1] = c;
                    let inside = Expr::cmp_index(BinOp::Ge, c, 0).and(Expr::cmp_index(BinOp::Lt, c, dims[1]));
                    let v = Expr::select(inside, k.load(x, &from), Expr::num(ty, 0.0));
                    let v = k.let_(v);
                    k.set(sum, Expr::fma(v.clone(), v, Expr::acc(sum)));
                });
                let scale = Expr::num(ty, f64::from(self.alpha) / self.size as f64);
                let base = Expr::fma(Expr::acc(sum), scale, Expr::num(ty, f64::from(self.bias)));
                let v = k.load(x, at) / power(k, ty, base, Expr::num(ty, f64::from(self.beta)));
                k.store(y, at, v);
            });
        });
        Ok(())
    }
}
