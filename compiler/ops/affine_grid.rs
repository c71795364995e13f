//! AffineGrid: the sampling coordinates for `GridSample` that apply an affine map to an image or a volume.
//!
//! Spec: <https://onnx.ai/onnx/operators/onnx__AffineGrid.html>. One version, 20.

use super::support::runtime;
use super::{Attrs, InferCx, LowerCx, Operator};
use crate::diag::{Result, codes};
use crate::nest::{Buf, Expr};
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
        let lines: Vec<Buf> = (0..n).map(|i| self.line(cx, ty, dims[1 + i])).collect();
        let [factors, base] = along_rows(cx, theta, lines[n - 1], n as i64);
        // The coordinates of a row are contiguous.
        let row = dims[n] * n as i64;
        let flat = cx.m.view(y, [&dims[..n], &[row]].concat());
        cx.map(flat, |k, at| {
            let e = at[n];
            // Column j corresponds to dimension j counted from the last.
            (1..n).fold(k.load(base, &[at[0], e]), |v, j| {
                let factor = k.load(factors, &[at[0], Dim::from(j - 1), e]);
                Expr::fma(factor, k.load(lines[n - 1 - j], &[at[n - j]]), v)
            })
        });
        Ok(())
    }
}

impl AffineGrid {
    /// The coordinates of `size` elements, from -1 to 1.
    fn line(&self, cx: &mut LowerCx, ty: ElemType, size: Dim) -> Buf {
        let line = cx.temp("line", ty, vec![size]);
        cx.map(line, |_, at| {
            let number = |d: Dim| Expr::cast(ElemType::I64, ty, Expr::index(d));
            let x = if self.align_corners {
                number(at[0] * 2) / number((size - 1).max(1))
            } else {
                number(at[0] * 2 + 1) / number(size)
            };
            x - Expr::num(ty, 1.0)
        });
        line
    }
}

/// What all rows of a result share, for the elements of a row: the factors of the other dimensions,
/// `[batch][dimension from the last but one][element]`, and the rest, which depends on the last dimension.
fn along_rows(cx: &mut LowerCx, theta: Buf, line: Buf, n: i64) -> [Buf; 2] {
    let (batch, size, ty) = (cx.dims(theta)[0], cx.dims(line)[0], cx.elem(theta).compute());
    let factors = cx.temp("factors", ty, vec![batch, Dim::constant(n - 1), size * n]);
    cx.map(factors, |k, at| k.load(theta, &[at[0], at[2].modulo(n), at[1] + 1]));
    let base = cx.temp("base", ty, vec![batch, size * n]);
    cx.map(base, |k, at| {
        let (e, result) = (at[1].floor_div(n), at[1].modulo(n));
        let offset = k.load(theta, &[at[0], result, Dim::constant(n)]);
        Expr::fma(k.load(theta, &[at[0], result, Dim::constant(0)]), k.load(line, &[e]), offset)
    });
    [factors, base]
}
