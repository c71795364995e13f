//! CropAndResize (com.microsoft): crops boxes of images and resizes each to the same size.
//!
//! Spec: <https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md>. One version. Corners
//! are fractions of the distance between the first and the last element; samples outside the image are
//! `extrapolation_value`.

use super::support::runtime;
use super::{Attrs, InferCx, LowerCx, Operator};
use crate::diag::{Result, codes};
use crate::nest::{BinOp, Expr, KernelBuilder, UnOp};
use crate::sym::Dim;
use crate::tensor::ElemType;

/// The operator.
#[derive(Clone, Debug, PartialEq)]
pub struct CropAndResize {
    nearest: bool,
    outside: f32,
}

/// The position of a sample along one axis.
struct Sample {
    /// The two elements around it.
    low: Expr,
    high: Expr,
    /// Its distance from the first of them.
    part: Expr,
    inside: Expr,
}

impl Operator for CropAndResize {
    const OPS: &'static [&'static str] = &["com.microsoft:CropAndResize"];
    fn parse(a: &mut Attrs) -> Result<Self> {
        let nearest = a.choice("mode", "bilinear", &[("bilinear", false), ("nearest", true)]);
        Ok(CropAndResize { nearest, outside: a.float("extrapolation_value", 0.0) })
    }
    fn infer(&self, cx: &mut InferCx) -> Result<()> {
        let (x, rois, images) = (cx.tensor(0).clone(), cx.tensor(1).clone(), cx.tensor(2).clone());
        cx.require(
            x.rank() == 4 && rois.rank() == 2 && images.rank() == 1 && runtime::length(cx, 3) == Some(2),
            codes::OP_SHAPE,
            "images of rank 4, boxes of rank 2, a list of their images, and two sizes are needed",
        )?;
        cx.require_eq(rois.dims[1], Dim::constant(4), "a box has four corners");
        cx.require_eq(rois.dims[0], images.dims[0], "there are not as many images as boxes");
        let sizes = match cx.dims_value(3) {
            Some(s) => s,
            None => (2..4).map(|d| cx.size(0, d, 4)).collect(),
        };
        for d in &sizes {
            cx.syms.require_at_most(Dim::constant(0), *d);
        }
        let dims: Vec<Dim> = [rois.dims[0], x.dims[1]].into_iter().chain(sizes).collect();
        cx.set(0, x.elem, dims);
        Ok(())
    }
    fn lower(&self, cx: &mut LowerCx) -> Result<()> {
        let (x, rois, images, y) = (cx.input(0), cx.input(1), cx.input(2), cx.output(0));
        let (dims, out) = (cx.dims(x), cx.dims(y));
        if let Some(b) = runtime::late_operand(cx, 3) {
            (0..2).for_each(|j| cx.define(out[2 + j], runtime::entry(cx, b, j)));
        }
        let ty = cx.elem(x).compute();
        cx.kernel(|k| {
            k.nest(crate::nest::LoopKind::Par, &out, |k, at| {
                let along = |k: &mut KernelBuilder, axis: usize| {
                    let corner = |k: &KernelBuilder, j: usize| k.load(rois, &[at[0], Dim::from(j)]);
                    let (from, to) = (corner(k, axis), corner(k, 2 + axis));
                    self.sample(k, (from, to), at[2 + axis], out[2 + axis], dims[2 + axis], ty)
                };
                let (row, column) = (along(k, 0), along(k, 1));
                let image = k.load(images, &at[..1]);
                let image = k.let_(Expr::cast(ElemType::I32, ElemType::I64, image));
                let load = |k: &mut KernelBuilder, r: &Expr, c: &Expr| {
                    k.with_index(image.clone(), dims[0], |k, b| {
                        k.with_index(r.clone(), dims[2], |k, r| {
                            k.with_index(c.clone(), dims[3], |k, c| k.load(x, &[b, at[1], r, c]))
                        })
                    })
                };
                let v = if self.nearest {
                    load(k, &row.low, &column.low)
                } else {
                    let mut rows = vec![];
                    for r in [&row.low, &row.high] {
                        let (a, b) = (load(k, r, &column.low), load(k, r, &column.high));
                        let a = k.let_(a);
                        rows.push(k.let_(a.clone() + (b - a) * column.part.clone()));
                    }
                    rows[0].clone() + (rows[1].clone() - rows[0].clone()) * row.part.clone()
                };
                let v =
                    Expr::select(row.inside.and(column.inside), v, Expr::num(ty, f64::from(self.outside)));
                k.store(y, at, v);
            });
        });
        Ok(())
    }
}

impl CropAndResize {
    /// Sample `i` of `count` between two corners of an axis with `n` elements.
    fn sample(
        &self,
        k: &mut KernelBuilder,
        (from, to): (Expr, Expr),
        i: Dim,
        count: Dim,
        n: Dim,
        ty: ElemType,
    ) -> Sample {
        let number = |d: Dim| Expr::count(ty, d);
        let (from, to) = (k.let_(from), k.let_(to));
        let several = from.clone() * number(n - 1)
            + Expr::cast(ElemType::I64, ty, Expr::index(i))
                * ((to.clone() - from.clone()) * number(n - 1) / number((count - 1).max(1)));
        let single = (from + to) * Expr::num(ty, 0.5) * number(n - 1);
        let p = k.let_(Expr::select(Expr::cmp_index(BinOp::Gt, count, 1), several, single));
        let inside = Expr::bin(BinOp::Ge, p.clone(), Expr::num(ty, 0.0)).and(Expr::bin(
            BinOp::Le,
            p.clone(),
            number(n - 1),
        ));
        let inside = k.let_(inside);
        let low =
            Expr::un(UnOp::Floor, if self.nearest { p.clone() + Expr::num(ty, 0.5) } else { p.clone() });
        let low = k.let_(low);
        let part = k.let_(p.clone() - low.clone());
        let place = |v: Expr| {
            runtime::clamp(Expr::cast(ty, ElemType::I64, v), runtime::int(0), Expr::index((n - 1).max(0)))
        };
        let high = k.let_(place(Expr::un(UnOp::Ceil, p)));
        let low = k.let_(place(low));
        Sample { low, high, part, inside }
    }
}
