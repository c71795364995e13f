//! RoiAlign and MaxRoiPool: regions of an image, each pooled to the same number of bins.
//!
//! Spec: <https://onnx.ai/onnx/operators/onnx__RoiAlign.html>, `MaxRoiPool`.
//!
//! | operator   | version | change                                                                    |
//! |------------|---------|---------------------------------------------------------------------------|
//! | RoiAlign   | 10      | coordinates are not moved by half an element                              |
//! |            | 16      | `coordinate_transformation_mode`, by default `half_pixel`                 |
//! |            | 22      | bfloat16                                                                  |
//! | MaxRoiPool | 1, 22   | bfloat16; regions begin with the number of the image                      |
//!
//! With `sampling_ratio` 0 the number of samples depends on the size of the region; a bin of more than 32768
//! by 32768 samples is an error (`ONNXC_E_VALUE`).

use super::support::runtime;
use super::{Attrs, InferCx, LowerCx, Operator};
use crate::diag::{Result, codes};
use crate::nest::{BinOp, Buf, Expr, KernelBuilder, LoopKind, Reg, Scalar, Stmt, UnOp};
use crate::sym::Dim;
use crate::tensor::ElemType;

/// Most samples of a bin along one axis.
const SAMPLES: i64 = 1 << 15;

/// The operators.
#[derive(Clone, Debug, PartialEq)]
pub struct Roi {
    /// Bins: height, width.
    bins: [i64; 2],
    scale: f32,
    /// `None`: MaxRoiPool.
    align: Option<Align>,
}

#[derive(Clone, Debug, PartialEq)]
struct Align {
    max: bool,
    half_pixel: bool,
    /// 0: as many samples as elements.
    samples: i64,
}

impl Operator for Roi {
    const OPS: &'static [&'static str] = &["RoiAlign", "MaxRoiPool"];
    fn parse(a: &mut Attrs) -> Result<Self> {
        let scale = a.float("spatial_scale", 1.0);
        let (bins, align) = if a.op() == "MaxRoiPool" {
            (a.ints("pooled_shape"), None)
        } else {
            let max = a.choice("mode", "avg", &[("avg", false), ("max", true)]);
            let half_pixel = a.since() >= 16
                && a.choice(
                    "coordinate_transformation_mode",
                    "half_pixel",
                    &[("half_pixel", true), ("output_half_pixel", false)],
                );
            let samples = a.int("sampling_ratio", 0);
            if !(0..=SAMPLES).contains(&samples) {
                return a
                    .error("attribute \"sampling_ratio\" is out of range")
                    .found_expected(samples.to_string(), format!("0 to {SAMPLES}"))
                    .fail();
            }
            (
                vec![a.int("output_height", 1), a.int("output_width", 1)],
                Some(Align { max, half_pixel, samples }),
            )
        };
        match bins[..] {
            [h, w] if h > 0 && w > 0 => Ok(Roi { bins: [h, w], scale, align }),
            _ => a
                .error("the pooled shape must be a height and a width, both positive")
                .row("found", format!("{bins:?}"))
                .fail(),
        }
    }
    fn infer(&self, cx: &mut InferCx) -> Result<()> {
        let (x, rois) = (cx.tensor(0).clone(), cx.tensor(1).clone());
        cx.require(
            x.rank() == 4 && rois.rank() == 2,
            codes::OP_SHAPE,
            "the input must have rank 4 and the regions rank 2",
        )?;
        let columns = if self.align.is_some() { 4 } else { 5 };
        cx.require_eq(rois.dims[1], Dim::constant(columns), "a region has another number of values");
        if self.align.is_some() {
            let n = cx.tensor(2).count();
            cx.require_eq(n, rois.dims[0], "batch_indices does not have one value for each region");
        }
        cx.set(0, x.elem, vec![rois.dims[0], x.dims[1], self.bins[0].into(), self.bins[1].into()]);
        Ok(())
    }
    fn lower(&self, cx: &mut LowerCx) -> Result<()> {
        let (x, rois, y) = (cx.input(0), cx.input(1), cx.output(0));
        let (dims, out) = (cx.dims(x), cx.dims(y));
        let ty = cx.elem(x).compute();
        let of = Regions { op: self, x, dims: &dims, rois, ty };
        // Samples have the same positions in all channels.
        let bins = cx.temp("bins", ty, vec![out[0], out[2], out[3], out[1]]);
        let batches = cx.input_opt(2);
        cx.kernel(|k| {
            k.nest(LoopKind::Par, &[out[0], out[2], out[3]], |k, bin| {
                let (Some(align), Some(batches)) = (&self.align, batches) else {
                    return of.pooled(k, bins, bin);
                };
                let image = k.load(batches, &bin[..1]);
                let image = k.let_(image);
                of.bin(k, align, image, (bins, bin));
            });
        });
        cx.map(y, |k, at| k.load(bins, &[at[0], at[2], at[3], at[1]]));
        Ok(())
    }
}

/// One axis of a bin: its start, its length, and its number of samples.
struct Span {
    start: Expr,
    size: Expr,
    count: Expr,
}

/// Regions of images, pooled in cells of elements.
struct Regions<'a> {
    op: &'a Roi,
    /// The images and their dimensions.
    x: Buf,
    dims: &'a [Dim],
    /// Corners.
    rois: Buf,
    /// The compute type.
    ty: ElemType,
}

impl Regions<'_> {
    /// The coordinate of a corner in the image.
    fn corner(&self, k: &KernelBuilder, region: Dim, column: usize) -> Expr {
        k.load(self.rois, &[region, Dim::from(column)]) * Expr::num(self.ty, f64::from(self.op.scale))
    }
    /// Axis 0 is the height.
    fn span(&self, k: &mut KernelBuilder, a: &Align, at: &[Dim], axis: usize) -> Span {
        let ty = self.ty;
        let corner = |k: &KernelBuilder, column: usize| {
            let v = self.corner(k, at[0], column);
            if a.half_pixel { v - Expr::num(ty, 0.5) } else { v }
        };
        let (from, to) = (corner(k, 1 - axis), corner(k, 3 - axis));
        let from = k.let_(from);
        let length = to - from.clone();
        let length = k.let_(if a.half_pixel { length } else { length.max(Expr::num(ty, 1.0)) });
        let size = k.let_(length / Expr::num(ty, self.op.bins[axis] as f64));
        let count = if a.samples > 0 {
            runtime::int(a.samples)
        } else {
            k.let_(Expr::cast(ty, ElemType::I64, Expr::un(UnOp::Ceil, size.clone())))
        };
        if a.samples == 0 {
            runtime::check(k, Expr::bin(BinOp::Le, count.clone(), runtime::int(SAMPLES)));
        }
        let bin = Expr::cast(ElemType::I64, ty, Expr::index(at[1 + axis]));
        let start = k.let_(from + bin * size.clone());
        Span { start, size, count }
    }

    /// MaxRoiPool: corners are rounded, a bin includes every element that it touches, and an empty bin is 0.
    fn pooled(&self, k: &mut KernelBuilder, bins: Buf, bin: &[Dim]) {
        let (dims, ty) = (self.dims, self.ty);
        let spans = [0, 1].map(|axis| self.elements(k, bin, axis));
        let [rows, columns] = &spans;
        let image = Expr::cast(ty, ElemType::I64, k.load(self.rois, &[bin[0], Dim::constant(0)]));
        let image = k.let_(image);
        let empty = |s: &[Expr; 2]| Expr::bin(BinOp::Ge, s[0].clone(), s[1].clone());
        let empty = Expr::bin(BinOp::Or, empty(rows), empty(columns));
        let first = k.let_(Expr::select(empty, Expr::num(ty, 0.0), Scalar::lowest(ty).into()));
        self.channels(k, (bins, bin), &|_, _, _| first.clone());
        count_up(k, rows[0].clone(), rows[1].clone(), |k, row| {
            count_up(k, columns[0].clone(), columns[1].clone(), |k, column| {
                let indices =
                    [(image.clone(), dims[0]), (Expr::acc(row), dims[2]), (Expr::acc(column), dims[3])];
                at_indices(k, &indices, &mut vec![], &mut |k, at| {
                    let [b, r, c] = *at else { return };
                    self.channels(k, (bins, bin), &|k, best, channel| {
                        best.max(k.load(self.x, &[b, channel, r, c]))
                    });
                });
            });
        });
    }
    /// The first element of a bin of MaxRoiPool along an axis, and the one after the last.
    fn elements(&self, k: &mut KernelBuilder, bin: &[Dim], axis: usize) -> [Expr; 2] {
        let ty = self.ty;
        let corner = |k: &mut KernelBuilder, column: usize| {
            let v = self.corner(k, bin[0], column);
            let v = k.let_(v);
            // Halves are rounded away from zero.
            let down = Expr::un(UnOp::Floor, v.clone() + Expr::num(ty, 0.5));
            k.let_(Expr::select(
                Expr::bin(BinOp::Ge, v.clone(), Expr::num(ty, 0.0)),
                down,
                Expr::un(UnOp::Ceil, v - Expr::num(ty, 0.5)),
            ))
        };
        let (from, to) = (corner(k, 2 - axis), corner(k, 4 - axis));
        let size = (to - from.clone() + Expr::num(ty, 1.0)).max(Expr::num(ty, 1.0))
            / Expr::num(ty, self.op.bins[axis] as f64);
        let size = k.let_(size);
        [(0, UnOp::Floor), (1, UnOp::Ceil)].map(|(next, op)| {
            let i = Expr::cast(ElemType::I64, ty, Expr::index(bin[1 + axis] + next));
            let v = Expr::cast(ty, ElemType::I64, Expr::un(op, i * size.clone()) + from.clone());
            k.let_(runtime::clamp(v, runtime::int(0), Expr::index(self.dims[2 + axis])))
        })
    }
    /// Replaces the values of a bin, one for each channel.
    fn channels(
        &self,
        k: &mut KernelBuilder,
        (bins, bin): (Buf, &[Dim]),
        value: &dyn Fn(&KernelBuilder, Expr, Dim) -> Expr,
    ) {
        k.range(LoopKind::Seq, "c", 0, self.dims[1], |k, c| {
            let at = [bin, &[c]].concat();
            let v = value(k, k.load(bins, &at), c);
            k.store(bins, &at, v);
        });
    }
    /// The mean or maximum of a bin's samples for all channels, the last dimension of `bins`.
    fn bin(&self, k: &mut KernelBuilder, align: &Align, image: Expr, (bins, bin): (Buf, &[Dim])) {
        let Regions { x, dims, ty, .. } = *self;
        let spans = [0, 1].map(|axis| self.span(k, align, bin, axis));
        let zero = runtime::int(0);
        let op = if align.max { BinOp::Max } else { BinOp::Add };
        let channels = |k: &mut KernelBuilder, value: &dyn Fn(&KernelBuilder, Expr, Dim) -> Expr| {
            self.channels(k, (bins, bin), value)
        };
        let first: Expr = if align.max { Scalar::lowest(ty).into() } else { Expr::num(ty, 0.0) };
        channels(k, &|_, _, _| first.clone());
        count_up(k, zero.clone(), spans[0].count.clone(), |k, row| {
            let y = corners(k, &spans[0], row, dims[2], ty);
            count_up(k, zero.clone(), spans[1].count.clone(), |k, column| {
                let x_axis = corners(k, &spans[1], column, dims[3], ty);
                let inside = k.let_(y.inside.clone().and(x_axis.inside.clone()));
                let weights = [
                    (&y.far, &x_axis.far),
                    (&y.far, &x_axis.near),
                    (&y.near, &x_axis.far),
                    (&y.near, &x_axis.near),
                ]
                .map(|(a, b)| k.let_(a.clone() * b.clone()));
                let indices = [
                    (image.clone(), dims[0]),
                    (y.low.clone(), dims[2]),
                    (y.high.clone(), dims[2]),
                    (x_axis.low, dims[3]),
                    (x_axis.high, dims[3]),
                ];
                at_indices(k, &indices, &mut vec![], &mut |k, at| {
                    let [b, top, bottom, left, right] = *at else { return };
                    let places = [(top, left), (top, right), (bottom, left), (bottom, right)];
                    channels(k, &|k, before, c| {
                        let parts = places
                            .iter()
                            .zip(&weights)
                            .map(|((row, column), w)| w.clone() * k.load(x, &[b, c, *row, *column]));
                        let v = parts.reduce(|a, b| Expr::bin(op, a, b)).unwrap_or(Expr::num(ty, 0.0));
                        Expr::bin(op, before, Expr::select(inside.clone(), v, Expr::num(ty, 0.0)))
                    });
                });
            });
        });
        let samples =
            k.let_(spans[0].count.clone().max(zero.clone()) * spans[1].count.clone().max(zero.clone()));
        if align.max {
            let none = k.let_(runtime::eq(samples, zero));
            channels(k, &|_, v, _| Expr::select(none.clone(), Expr::num(ty, 0.0), v));
        } else {
            let samples = k.let_(Expr::cast(ElemType::I64, ty, samples.max(runtime::int(1))));
            channels(k, &|_, v, _| v / samples.clone());
        }
    }
}

/// The two elements around a sample along one axis, with their weights.
struct Corners {
    low: Expr,
    high: Expr,
    /// Weight of `low` and of `high`.
    far: Expr,
    near: Expr,
    /// True if the sample is at most one element outside.
    inside: Expr,
}

fn corners(k: &mut KernelBuilder, s: &Span, i: Reg, n: Dim, ty: ElemType) -> Corners {
    let number = |e: Expr| Expr::cast(ElemType::I64, ty, e);
    let p = s.start.clone()
        + (number(Expr::acc(i)) + Expr::num(ty, 0.5)) * s.size.clone() / number(s.count.clone());
    let p = k.let_(p);
    let inside = Expr::bin(BinOp::Ge, p.clone(), Expr::num(ty, -1.0)).and(Expr::bin(
        BinOp::Le,
        p.clone(),
        number(Expr::index(n)),
    ));
    let inside = k.let_(inside);
    let p = k.let_(p.max(Expr::num(ty, 0.0)));
    let low = k.let_(Expr::cast(ty, ElemType::I64, p.clone()).max(runtime::int(0)));
    let last = Expr::index(n - 1);
    let beyond = Expr::bin(BinOp::Ge, low.clone(), last.clone());
    let near = k.let_(Expr::select(beyond, Expr::num(ty, 0.0), p - number(low.clone())));
    let far = k.let_(Expr::num(ty, 1.0) - near.clone());
    let high = k.let_((low.clone().min(last.clone()) + runtime::int(1)).min(last.clone()));
    let low = k.let_(low.min(last));
    Corners { low, high, far, near, inside }
}

/// Binds numbers as indices with limits, nested in each other.
fn at_indices(
    k: &mut KernelBuilder,
    list: &[(Expr, Dim)],
    at: &mut Vec<Dim>,
    body: &mut dyn FnMut(&mut KernelBuilder, &[Dim]),
) {
    let Some(((value, limit), rest)) = list.split_first() else { return body(k, at) };
    k.at_index(value.clone(), *limit, |k, i| {
        at.push(i);
        at_indices(k, rest, at, body);
        at.pop();
    });
}

/// A loop over run-time integers, `to` excluded.
fn count_up(k: &mut KernelBuilder, from: Expr, to: Expr, body: impl FnOnce(&mut KernelBuilder, Reg)) {
    let i = k.acc(from);
    let body = k.block(|k| {
        body(k, i);
        k.update(BinOp::Add, i, runtime::int(1));
    });
    k.push(Stmt::While { cond: Expr::bin(BinOp::Lt, Expr::acc(i), to), body });
}
