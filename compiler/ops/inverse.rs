//! Inverse (com.microsoft): matrix inverses by Gauss-Jordan elimination with partial pivoting. The matrix is
//! in a scratch copy next to the unit matrix, which becomes the result. A singular matrix gives infinities or
//! NaN.
//!
//! Spec: <https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md>. One version.

use super::det::pivot;
use super::{Attrs, InferCx, LowerCx, Operator};
use crate::diag::{Result, codes};
use crate::nest::{BinOp, Expr, LoopKind};
use crate::sym::Dim;

/// No attributes.
#[derive(Clone, Debug, PartialEq)]
pub struct Inverse;

impl Operator for Inverse {
    const OPS: &'static [&'static str] = &["com.microsoft:Inverse"];
    fn parse(_: &mut Attrs) -> Result<Self> {
        Ok(Inverse)
    }
    fn infer(&self, cx: &mut InferCx) -> Result<()> {
        let t = cx.tensor(0).clone();
        let [.., m, n] = t.dims.as_slice() else {
            return cx.error(codes::OP_SHAPE, "Inverse needs at least two dimensions").fail();
        };
        cx.require_eq(*m, *n, "the matrices are not square");
        cx.set(0, t.elem, t.dims);
        Ok(())
    }
    fn lower(&self, cx: &mut LowerCx) -> Result<()> {
        let (x, y) = (cx.input(0), cx.output(0));
        let (dims, ty) = (cx.dims(x), cx.elem(x).compute());
        let (batch, n) = (dims[..dims.len() - 2].to_vec(), dims[dims.len() - 1]);
        // The matrix on the left, the unit matrix on the right.
        let wide: Vec<Dim> = dims[..dims.len() - 1].iter().copied().chain([n * 2]).collect();
        let work = cx.temp("work", ty, wide);
        cx.kernel(|k| {
            k.nest(LoopKind::Par, &batch, |k, b| {
                let at = |i: Dim, j: Dim| -> Vec<Dim> { b.iter().chain([&i, &j]).copied().collect() };
                k.nest(LoopKind::Seq, &[n, n], |k, i| {
                    let v = k.load(x, &at(i[0], i[1]));
                    k.store(work, &at(i[0], i[1]), v);
                    let unit = Expr::select(
                        Expr::cmp_index(BinOp::Eq, i[0], i[1]),
                        Expr::num(ty, 1.0),
                        Expr::num(ty, 0.0),
                    );
                    k.store(work, &at(i[0], n + i[1]), unit);
                });
                k.range(LoopKind::Seq, "c", 0, n, |k, c| {
                    let p = pivot(k, work, &at, (c, n, n * 2), |_| {});
                    k.range(LoopKind::Seq, "j", c, n * 2, |k, j| {
                        let v = k.load(work, &at(c, j)) / p.clone();
                        k.store(work, &at(c, j), v);
                    });
                    k.range(LoopKind::Seq, "r", 0, n, |k, r| {
                        k.if_(Expr::cmp_index(BinOp::Ne, r, c), |k| {
                            let f = k.load(work, &at(r, c));
                            let f = k.let_(f);
                            k.range(LoopKind::Seq, "j", c, n * 2, |k, j| {
                                let v = k.load(work, &at(r, j)) - f.clone() * k.load(work, &at(c, j));
                                k.store(work, &at(r, j), v);
                            });
                        });
                    });
                });
                k.nest(LoopKind::Seq, &[n, n], |k, i| {
                    let v = k.load(work, &at(i[0], n + i[1]));
                    k.store(y, &at(i[0], i[1]), v);
                });
            });
        });
        Ok(())
    }
}
