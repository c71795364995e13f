//! AffineGrid: the sampling coordinates for `GridSample` that apply an affine map to an image or a volume.
//!
//! Spec: <https://onnx.ai/onnx/operators/onnx__AffineGrid.html>. One version, 20.

use super::support::runtime;
use super::{Attrs, InferCx, LowerCx, Operator};
use crate::diag::{Result, codes};
use crate::nest::{Expr, LoopKind};
use crate::sym::Dim;
use crate::tensor::ElemType;

/// The operator.
#[derive(Clone, Debug, PartialEq)]
pub struct AffineGrid {
    align_corners: bool,
}

impl Operator for AffineGrid {
    const OPS: &'static [&'static str] = &["AffineGrid"];
    fn parse(a: &mut Attrs) -> Result<Self> {
        Ok(AffineGrid { align_corners: a.flag("align_corners", false) })
    }
    fn infer(&self, cx: &mut InferCx) -> Result<()> {
        let theta = cx.tensor(0).clone();
        let n = match runtime::length(cx, 1) {
            Some(4) => 2,
            Some(5) => 3,
            _ => return cx.error(codes::OP_SHAPE, "size must have four or five values").fail(),
        };
        cx.require(theta.rank() == 3, codes::OP_SHAPE, "theta must have rank 3")?;
        cx.require_eq(theta.dims[1], Dim::constant(n), "theta does not fit the size");
        cx.require_eq(theta.dims[2], Dim::constant(n + 1), "theta does not fit the size");
        let dims = match runtime::late(cx, 1) {
            true => {
                let rank = n as usize + 2;
                (0..rank - 1).map(|d| cx.size(0, d, rank)).chain([Dim::constant(n)]).collect()
            }
            false => {
                let size = cx.need_dims(1, "size")?;
                [size[0]].iter().chain(&size[2..]).copied().chain([Dim::constant(n)]).collect()
            }
        };
        let dims: Vec<Dim> = dims;
        cx.require_eq(dims[0], theta.dims[0], "theta does not fit the batch");
        cx.set(0, theta.elem, dims);
        Ok(())
    }
    fn lower(&self, cx: &mut LowerCx) -> Result<()> {
        let (theta, y) = (cx.input(0), cx.output(0));
        let dims = cx.dims(y);
        let n = dims.len() - 2;
        let ty = cx.elem(theta).compute();
        if let Some(b) = runtime::late_operand(cx, 1) {
            for (j, d) in std::iter::once(0).chain(2..n + 2).zip(&dims) {
                cx.define(*d, runtime::entry(cx, b, j));
            }
        }
        cx.kernel(|k| {
            k.nest(LoopKind::Par, &dims, |k, at| {
                let mut v = k.load(theta, &[at[0], at[n + 1], Dim::from(n)]);
                for j in 0..n {
                    // Column j corresponds to dimension j counted from the last.
                    let d = n - j;
                    let number = |d: Dim| Expr::cast(ElemType::I64, ty, Expr::index(d));
                    let x = if self.align_corners {
                        number(at[d] * 2) / number((dims[d] - 1).max(1))
                    } else {
                        number(at[d] * 2 + 1) / number(dims[d])
                    };
                    v = Expr::fma(
                        k.load(theta, &[at[0], at[n + 1], Dim::from(j)]),
                        x - Expr::num(ty, 1.0),
                        v,
                    );
                }
                k.store(y, at, v);
            });
        });
        Ok(())
    }
}
