//! Det: determinants by Gaussian elimination with partial pivoting in a scratch copy. Versions differ in
//! types.

use super::{Attrs, InferCx, LowerCx, Operator};
use crate::diag::{Result, codes};
use crate::nest::{BinOp, Buf, Expr, KernelBuilder, LoopKind, UnOp};
use crate::sym::Dim;

/// No attributes.
#[derive(Clone, Debug, PartialEq)]
pub struct Det;

impl Operator for Det {
    const OPS: &'static [&'static str] = &["Det"];
    fn parse(_: &mut Attrs) -> Result<Self> {
        Ok(Det)
    }
    fn infer(&self, cx: &mut InferCx) -> Result<()> {
        let t = cx.tensor(0).clone();
        let [batch @ .., m, n] = t.dims.as_slice() else {
            return cx.error(codes::OP_SHAPE, "Det needs at least two dimensions").fail();
        };
        cx.require_eq(*m, *n, "the matrices are not square");
        cx.set(0, t.elem, batch);
        Ok(())
    }
    fn lower(&self, cx: &mut LowerCx) -> Result<()> {
        let (x, y) = (cx.input(0), cx.output(0));
        let (dims, ty) = (cx.dims(x), cx.elem(x).compute());
        let (batch, n) = (cx.dims(y), dims[dims.len() - 1]);
        let work = cx.temp("work", ty, dims);
        cx.kernel(|k| {
            k.nest(LoopKind::Par, &batch, |k, b| {
                let at = |i: Dim, j: Dim| -> Vec<Dim> { b.iter().chain([&i, &j]).copied().collect() };
                k.nest(LoopKind::Seq, &[n, n], |k, i| {
                    let v = k.load(x, &at(i[0], i[1]));
                    k.store(work, &at(i[0], i[1]), v);
                });
                let det = k.acc(Expr::num(ty, 1.0));
                k.range(LoopKind::Seq, "c", 0, n, |k, c| {
                    let p = pivot(k, work, &at, (c, n, n), |k| k.set(det, -Expr::acc(det)));
                    k.update(BinOp::Mul, det, p.clone());
                    // A column of zeros makes the result zero.
                    let none = k.let_(Expr::bin(BinOp::Eq, p.clone(), Expr::num(ty, 0.0)));
                    k.range(LoopKind::Seq, "r", c + 1, n, |k, r| {
                        let f = Expr::select(
                            none.clone(),
                            Expr::num(ty, 0.0),
                            k.load(work, &at(r, c)) / p.clone(),
                        );
                        let f = k.let_(f);
                        k.range(LoopKind::Seq, "j", c + 1, n, |k, j| {
                            let v = k.load(work, &at(r, j)) - f.clone() * k.load(work, &at(c, j));
                            k.store(work, &at(r, j), v);
                        });
                    });
                });
                k.store(y, b, Expr::acc(det));
            });
        });
        Ok(())
    }
}

/// Swaps the largest element of column `c`, from row `c` on, into row `c` of a matrix with `n` rows, and
/// returns it. The rows are swapped from that column up to `width`, which `swapped` records.
pub(super) fn pivot(
    k: &mut KernelBuilder,
    work: Buf,
    at: &dyn Fn(Dim, Dim) -> Vec<Dim>,
    (c, n, width): (Dim, Dim, Dim),
    swapped: impl FnOnce(&mut KernelBuilder),
) -> Expr {
    let first = Expr::un(UnOp::Abs, k.load(work, &at(c, c)));
    let (best, place) = (k.acc(first), k.acc(Expr::index(c)));
    k.range(LoopKind::Seq, "r", c + 1, n, |k, r| {
        let v = k.load(work, &at(r, c));
        let v = k.let_(Expr::un(UnOp::Abs, v));
        let more = k.let_(Expr::bin(BinOp::Gt, v.clone(), Expr::acc(best)));
        k.set(best, Expr::select(more.clone(), v, Expr::acc(best)));
        k.set(place, Expr::select(more, Expr::index(r), Expr::acc(place)));
    });
    k.range(LoopKind::Seq, "r", c + 1, n, |k, r| {
        k.if_(Expr::bin(BinOp::Eq, Expr::index(r), Expr::acc(place)), |k| {
            swapped(k);
            k.range(LoopKind::Seq, "j", c, width, |k, j| {
                let (a, b) = (k.load(work, &at(c, j)), k.load(work, &at(r, j)));
                let (a, b) = (k.let_(a), k.let_(b));
                k.store(work, &at(c, j), b);
                k.store(work, &at(r, j), a);
            });
        });
    });
    let p = k.load(work, &at(c, c));
    k.let_(p)
}
