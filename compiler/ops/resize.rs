//! Resize and Upsample.
//!
//! Spec: <https://onnx.ai/onnx/operators/onnx__Resize.html>, `Upsample`.
//!
//! | operator | version | change                                                                            |
//! |----------|---------|-----------------------------------------------------------------------------------|
//! | Upsample | 1       | `height_scale` and `width_scale` of an image                                      |
//! |          | 7, 9    | scales of all axes: an attribute, then an input                                   |
//! | Resize   | 10      | as Upsample, downwards too                                                        |
//! |          | 11      | `sizes`, `roi`, coordinate and nearest modes, cubic, `exclude_outside`            |
//! |          | 13      | inputs are optional; without `tf_half_pixel_for_nn`                               |
//! |          | 18      | `antialias`, `axes`, `keep_aspect_ratio_policy`                                   |
//! |          | 19      | `half_pixel_symmetric`                                                            |
//!
//! Versions before 11 map coordinates as `asymmetric` and round down. Axes are independent: along each one an
//! element is a weighted sum of a few adjacent elements (`coords`). If sizes are known, sources are index
//! expressions with constant weights, or tables. Otherwise, small kernels compute the tables first.

mod coords;
mod plan;

use super::support::runtime;
use super::{Attrs, Elements, InferCx, LowerCx, Operator};
use crate::diag::{Result, codes};
use crate::nest::{BinOp, Buf, Expr, KernelBuilder, LoopKind, UnOp};
use crate::ops::from_end;
use crate::sym::{Answer, Dim};
use crate::tensor::ElemType;
use coords::{Filter, Nearest, Transform};
use plan::{Plan, source, weight};
use std::ops::Range;

/// Number of channels from which vectors over channels pay off where elements are copied.
const CHANNELS: i64 = 8;
/// The same where several elements are added up.
const SUMMED: i64 = 64;
/// Most taps of all axes that one expression adds up.
const UNROLLED: i64 = 8;
/// The same where each axis has an expression of its own.
const ALONG_AXIS: i64 = 24;

/// `nearest_mode`.
const ROUNDINGS: [(&str, Nearest); 4] = [
    ("round_prefer_floor", Nearest::RoundPreferFloor),
    ("round_prefer_ceil", Nearest::RoundPreferCeil),
    ("floor", Nearest::Floor),
    ("ceil", Nearest::Ceil),
];

/// `coordinate_transformation_mode`, with the versions that have each value.
const TRANSFORMS: [(&str, Transform, Range<i64>); 7] = [
    ("half_pixel", Transform::HalfPixel, 0..i64::MAX),
    ("pytorch_half_pixel", Transform::PytorchHalfPixel, 0..i64::MAX),
    ("align_corners", Transform::AlignCorners, 0..i64::MAX),
    ("asymmetric", Transform::Asymmetric, 0..i64::MAX),
    ("tf_crop_and_resize", Transform::Crop, 0..i64::MAX),
    ("tf_half_pixel_for_nn", Transform::HalfPixelForNearest, 0..13),
    ("half_pixel_symmetric", Transform::HalfPixelSymmetric, 19..i64::MAX),
];

/// `keep_aspect_ratio_policy`.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Aspect {
    Stretch,
    NotLarger,
    NotSmaller,
}

/// The input that gives the scales.
#[derive(Clone, Debug, PartialEq)]
enum Scales {
    Attribute(Vec<f64>),
    Input(usize),
}

/// The operator.
#[derive(Clone, Debug, PartialEq)]
pub struct Resize {
    filter: Filter,
    transform: Transform,
    antialias: bool,
    exclude_outside: bool,
    extrapolation: f32,
    axes: Option<Vec<i64>>,
    aspect: Aspect,
    scales: Scales,
    /// True for versions with `roi` and `sizes`.
    has_sizes: bool,
}

impl Operator for Resize {
    const OPS: &'static [&'static str] = &["Resize", "Upsample"];
    fn elements(_op: &str) -> Elements {
        Elements::Strings
    }
    fn parse(a: &mut Attrs) -> Result<Self> {
        let linear = if a.op() == "Upsample" && a.since() == 1 { "bilinear" } else { "linear" };
        let modern = a.op() == "Resize" && a.since() >= 11;
        let rounding = if modern { "round_prefer_floor" } else { "floor" };
        let nearest = a.choice("nearest_mode", rounding, &ROUNDINGS);
        let filters = [
            ("nearest", Filter::Nearest(nearest)),
            (linear, Filter::Linear),
            ("cubic", Filter::Cubic(f64::from(a.float("cubic_coeff_a", -0.75)))),
        ];
        let filter = a.choice("mode", "nearest", if modern { &filters } else { &filters[..2] });
        let transforms = TRANSFORMS.iter().filter(|t| t.2.contains(&a.since()));
        let transforms: Vec<_> = transforms.map(|t| (t.0, t.1)).collect();
        let transform = if modern { "half_pixel" } else { "asymmetric" };
        let transform = a.choice("coordinate_transformation_mode", transform, &transforms);
        let scales = match (a.op(), a.since()) {
            ("Upsample", 1) => {
                let mut scale = |name: &str| f64::from(a.float(name, 1.0));
                Scales::Attribute(vec![1.0, 1.0, scale("height_scale"), scale("width_scale")])
            }
            ("Upsample", 7) => Scales::Attribute(a.floats("scales").into_iter().map(f64::from).collect()),
            _ => Scales::Input(if modern { 2 } else { 1 }),
        };
        let aspects = [
            ("stretch", Aspect::Stretch),
            ("not_larger", Aspect::NotLarger),
            ("not_smaller", Aspect::NotSmaller),
        ];
        let aspect = a.choice("keep_aspect_ratio_policy", "stretch", &aspects);
        let antialias = a.flag("antialias", false);
        if antialias && matches!(filter, Filter::Nearest(_)) {
            return a
                .error("mode \"nearest\" has no antialiasing")
                .help("leave antialias out, or choose mode \"linear\" or \"cubic\"")
                .fail();
        }
        let (exclude_outside, extrapolation, axes) =
            (a.flag("exclude_outside", false), a.float("extrapolation_value", 0.0), a.ints_opt("axes"));
        Ok(Resize {
            filter,
            transform,
            antialias,
            exclude_outside,
            extrapolation,
            axes,
            aspect,
            scales,
            has_sizes: modern,
        })
    }

    fn infer(&self, cx: &mut InferCx) -> Result<()> {
        let x = cx.tensor(0).clone();
        if x.elem == ElemType::Str
            && (!matches!(self.filter, Filter::Nearest(_)) || self.transform == Transform::Crop)
        {
            let what = if self.transform == Transform::Crop {
                "outside of the region there is a number, and strings are none"
            } else {
                "there is nothing between strings"
            };
            let title = format!("{} of strings: {what}", cx.origin.op);
            let help = "use mode \"nearest\" and another coordinate_transformation_mode than \
                \"tf_crop_and_resize\"";
            return cx.error(codes::OP_FEATURE, title).help(help).fail();
        }
        let axes = self.resized(cx, x.rank())?;
        let mut dims = x.dims.clone();
        let sizes = cx.tensor_opt(3).is_some_and(|t| self.by_sizes(Some(&t.dims)));
        let scales = self.scale_values(cx.constant(self.scales_at()).and_then(|c| c.to_f64s()));
        let mut asked = vec![];
        if self.transform == Transform::Crop {
            // It affects no shape, so it may be known only at run time.
            asked.push((1, 2 * axes.len(), true, "roi"));
        }
        if sizes {
            asked.push((3, axes.len(), cx.dims_value(3).is_some(), "sizes"));
        } else if let Scales::Input(i) = self.scales {
            asked.push((i, axes.len(), scales.is_some(), "scales"));
        }
        if sizes {
            // Sources may be computed at run time.
            for d in axes.iter().map(|a| x.dims[*a]).filter(|d| d.as_const().is_none()) {
                cx.syms.require_at_most(d, Dim::constant(plan::MOST));
            }
        }
        let mut late = false;
        for (i, n, known, what) in asked {
            if !cx.has(i) {
                return cx.error(codes::OP_ARITY, format!("the input {what} is missing")).fail();
            }
            if runtime::length(cx, i) != Some(n) {
                return cx
                    .error(codes::OP_SHAPE, format!("{what} does not fit the axes"))
                    .row("expected", format!("{n} values"))
                    .fail();
            }
            late |= !known;
        }
        if late {
            for a in &axes {
                dims[*a] = cx.size(0, *a, x.rank());
            }
        } else if sizes {
            let sizes = cx.need_dims(3, "sizes")?;
            cx.require(
                !sizes.iter().any(|d| d.as_const().is_some_and(|d| d < 0)),
                codes::OP_SHAPE,
                "a size is negative",
            )?;
            for (i, a) in axes.iter().enumerate() {
                let d = self.fitted(&x.dims, &axes, &sizes, i);
                dims[*a] = cx.syms.simplify(d);
            }
        } else {
            let scales = scales.unwrap_or_default();
            if scales.len() != axes.len() || scales.iter().any(|s| !s.is_finite() || *s <= 0.0 || *s > 1e9) {
                return cx
                    .error(codes::OP_SHAPE, format!("the scales are {scales:?}"))
                    .row("expected", format!("{} positive numbers", axes.len()))
                    .fail();
            }
            for (a, s) in axes.iter().zip(scales) {
                dims[*a] = scaled(x.dims[*a], s);
            }
        }
        for a in axes {
            if x.dims[a].as_const() == Some(0) && dims[a].as_const() != Some(0) {
                return cx.error(codes::OP_SHAPE, format!("axis {a} is empty and can not be resized")).fail();
            }
            cx.syms.require_at_most(Dim::constant(0), dims[a]);
        }
        cx.set(0, x.elem, dims);
        Ok(())
    }

    fn lower(&self, cx: &mut LowerCx) -> Result<()> {
        let (x, y) = (cx.input(0), cx.output(0));
        let (from, to) = (cx.dims(x), cx.dims(y));
        let elem = cx.elem(x);
        // Averages of integers are computed in a float type wide enough for them.
        let ty = match elem.compute() {
            t if matches!(self.filter, Filter::Nearest(_)) || t.is_float() => t,
            ElemType::I64 | ElemType::U64 | ElemType::I32 | ElemType::U32 => ElemType::F64,
            _ => ElemType::F32,
        };
        let axes: Vec<usize> = match &self.axes {
            Some(a) => a.iter().map(|a| from_end(*a, from.len() as i64) as usize).collect(),
            None => (0..from.len()).collect(),
        };
        let plans = self.plans(cx, &axes, &from, &to)?;
        let whole = plans
            .iter()
            .map(|p| p.taps.as_const())
            .try_fold(1i64, |n, t| n.checked_mul(t?))
            .is_some_and(|n| n <= UNROLLED);
        let planes = cx.m.is_given(x) || from.get(1).and_then(|c| c.as_const()).is_none_or(|c| c < CHANNELS);
        let groups = match known_order(&plans, &from, &to, whole, planes) {
            Some(order) => order.of(plans),
            None => {
                // If sources are known only at run time, lanes gather their elements, unless all channels of
                // a pixel are contiguous. There are fewest of them before the number of rows grows, or after
                // it shrank: an image of any size that gets a known one is taken for one that is reduced to
                // the size of a network, any other for one that grows. Axis by axis, a sum of taps also takes
                // fewer multiplications, but what is between the axes is stored and read again.
                let sums = plans.iter().any(|p| p.weights.is_some());
                let most = if sums { SUMMED } else { CHANNELS };
                let few = from.get(1).and_then(|c| c.as_const()).is_none_or(|c| c < most);
                let grows = |p: &Plan| match cx.m.syms.le(from[p.axis], to[p.axis]) {
                    Answer::Unknown => to[p.axis].as_const().is_none(),
                    known => known == Answer::Yes,
                };
                let rows = &plans[..plans.len().saturating_sub(1)];
                let order = match plans.last().is_some_and(Plan::is_computed) {
                    true if whole && !few => Order::AtOnce,
                    true if rows.iter().all(grows) => Order::LastAxisFirst,
                    false if whole => Order::AtOnce,
                    _ => Order::FirstAxisFirst,
                };
                order.of(plans)
            }
        };
        let outside: Vec<(usize, Buf)> =
            groups.iter().flatten().filter_map(|p| Some((p.axis, p.outside?))).collect();
        let (mut src, mut shape) = (x, from);
        let n = groups.len();
        for (i, plans) in groups.into_iter().enumerate() {
            plans.iter().for_each(|p| shape[p.axis] = to[p.axis]);
            let last = i + 1 == n;
            let dst = if last { y } else { cx.temp(&format!("axis{}", plans[0].axis), ty, shape.clone()) };
            let finish = |k: &mut KernelBuilder, at: &[Dim], v: Expr| {
                if last { self.finish(k, at, v, &outside, ty, elem.compute()) } else { v }
            };
            match &plans[..] {
                [p] if p.taps.as_const().is_none_or(|t| t > ALONG_AXIS) => long(cx, src, dst, p, ty, finish),
                _ => {
                    cx.map(dst, |k, at| {
                        let v = sum(k, src, ty, &plans, at, &mut at.to_vec());
                        finish(k, at, v)
                    });
                }
            }
            src = dst;
        }
        Ok(())
    }
}

/// The order in which axes are resized.
#[derive(Clone, Copy)]
enum Order {
    /// All in one expression.
    AtOnce,
    FirstAxisFirst,
    LastAxisFirst,
}

impl Order {
    /// The plans of each kernel, in the order of the kernels.
    fn of<P>(self, plans: Vec<P>) -> Vec<Vec<P>> {
        let each = |p: P| vec![p];
        match self {
            Order::AtOnce => vec![plans],
            Order::FirstAxisFirst => plans.into_iter().map(each).collect(),
            Order::LastAxisFirst => plans.into_iter().rev().map(each).collect(),
        }
    }
}

/// The fastest order for an image of known size; `whole` if one expression may add up all taps. `planes`:
/// vectors run along the last axis, so that reading it across costs more than the other axes.
fn known_order(plans: &[Plan], from: &[Dim], to: &[Dim], whole: bool, planes: bool) -> Option<Order> {
    // In loads of adjacent elements: storing an element between axes and at the end, and loads that shuffles
    // put in place from a few vectors, or a gather.
    const STORE: f64 = 2.0;
    const NEAR: f64 = 2.0;
    const GATHER: f64 = 5.0;
    // What an order must save to be worth the buffers between its axes.
    const GAIN: f64 = 0.75;
    let cost = |order: Order| {
        let (mut shape, mut all) = (from.to_vec(), 0.0);
        for plans in order.of(plans.iter().collect()) {
            let mut taps = 1.0;
            for p in plans {
                let (before, after) = (shape[p.axis].as_const()? as f64, to[p.axis].as_const()? as f64);
                let load = match before / after {
                    _ if p.axis + 1 < shape.len() || before <= after => 1.0,
                    step if step <= 4.0 => NEAR,
                    _ => GATHER,
                };
                taps *= p.taps.as_const()? as f64 * load;
                shape[p.axis] = to[p.axis];
            }
            let count = shape.iter().try_fold(1.0, |n, d| Some(n * d.as_const()? as f64))?;
            all += count * (taps + STORE);
        }
        Some(all)
    };
    // Without axes there is a copy.
    if !planes || plans.is_empty() {
        return None;
    }
    let (first, last) = (cost(Order::FirstAxisFirst)?, cost(Order::LastAxisFirst)?);
    let (order, least) =
        if last < first { (Order::LastAxisFirst, last) } else { (Order::FirstAxisFirst, first) };
    Some(if whole && cost(Order::AtOnce)? * GAIN <= least { Order::AtOnce } else { order })
}

/// The size along an axis: rounded as in ONNX if the input is known, exact for other sizes.
fn scaled(d: Dim, scale: f64) -> Dim {
    match d.as_const() {
        Some(n) => Dim::constant((n as f32 * scale as f32).floor() as i64),
        None => match (1..=1000)
            .map(|q| ((scale * f64::from(q)).round() as i64, q))
            .find(|(p, q)| (*p as f64 / f64::from(*q)) as f32 == scale as f32)
        {
            Some((p, q)) => (d * p).floor_div(i64::from(q)),
            None => (d * ((scale * (1u64 << 24) as f64).round() as i64)).floor_div(1 << 24),
        },
    }
}

impl Resize {
    fn scales_at(&self) -> usize {
        match self.scales {
            Scales::Input(i) => i,
            Scales::Attribute(_) => usize::MAX,
        }
    }
    fn scale_values(&self, input: Option<Vec<f64>>) -> Option<Vec<f64>> {
        match &self.scales {
            Scales::Attribute(v) => Some(v.clone()),
            Scales::Input(_) => input,
        }
    }
    /// True if a nonempty `sizes` input determines the result.
    fn by_sizes(&self, shape: Option<&[Dim]>) -> bool {
        self.has_sizes && shape.is_some_and(|d| d.iter().all(|d| d.as_const() != Some(0)))
    }
    fn resized(&self, cx: &InferCx, rank: usize) -> Result<Vec<usize>> {
        match &self.axes {
            None => Ok((0..rank).collect()),
            Some(a) => {
                let v = a.iter().map(|a| cx.axis(*a, rank)).collect::<Result<Vec<_>>>()?;
                match (1..v.len()).any(|i| v[..i].contains(&v[i])) {
                    true => cx.error(codes::OP_ATTRIBUTE, "attribute \"axes\" names an axis twice").fail(),
                    false => Ok(v),
                }
            }
        }
    }
    /// The size of resized axis `i` under the policy. Each axis allows round(input * size / its input), and
    /// the smallest or largest is used, because rounding is monotone.
    fn fitted(&self, from: &[Dim], axes: &[usize], sizes: &[Dim], i: usize) -> Dim {
        if self.aspect == Aspect::Stretch {
            return sizes[i];
        }
        let all = axes
            .iter()
            .zip(sizes)
            .map(|(k, size)| (from[axes[i]] * *size * 2 + from[*k]).floor_div(from[*k] * 2));
        let pick = |a: Dim, b: Dim| if self.aspect == Aspect::NotLarger { a.min(b) } else { a.max(b) };
        all.reduce(pick).unwrap_or(sizes[i])
    }

    fn finish(
        &self,
        k: &mut KernelBuilder,
        at: &[Dim],
        v: Expr,
        outside: &[(usize, Buf)],
        ty: ElemType,
        elem: ElemType,
    ) -> Expr {
        let out = outside
            .iter()
            .map(|(axis, b)| k.load(*b, &[at[*axis]]))
            .reduce(|a, b| Expr::bin(BinOp::Or, a, b));
        let v = match out {
            Some(c) => Expr::select(c, Expr::num(ty, f64::from(self.extrapolation)), v),
            None => v,
        };
        if ty != elem && elem.is_int() {
            Expr::cast(ty, elem, Expr::un(UnOp::Round, v))
        } else {
            Expr::cast(ty, elem, v)
        }
    }
}

/// The element at `at` as one expression over all taps of the axes in `plans`; `from` accumulates the source.
fn sum(
    k: &mut KernelBuilder,
    src: Buf,
    ty: ElemType,
    plans: &[Plan],
    at: &[Dim],
    from: &mut Vec<Dim>,
) -> Expr {
    let Some((p, rest)) = plans.split_first() else {
        let v = k.load(src, from);
        let own = k.m.type_of(&v);
        return Expr::cast(own, ty, v);
    };
    let (n, o) = (k.m.bufs[src].dims[p.axis], at[p.axis]);
    let mut total: Option<Expr> = None;
    for t in 0..p.taps.as_const().unwrap_or(1) {
        let t = Dim::constant(t);
        let v = source(k, p, n, o, t, |k, i| {
            from[p.axis] = i;
            sum(k, src, ty, rest, at, from)
        });
        total = Some(match (p.weights, total) {
            (None, _) => v,
            (Some(w), None) => v * weight(k, p, w, o, t, ty),
            (Some(w), Some(s)) => Expr::fma(v, weight(k, p, w, o, t, ty), s),
        });
    }
    total.unwrap_or(Expr::num(ty, 0.0))
}

/// Resizes one axis with many taps, or with a number of taps known only at run time.
fn long(
    cx: &mut LowerCx,
    src: Buf,
    dst: Buf,
    p: &Plan,
    ty: ElemType,
    finish: impl FnOnce(&mut KernelBuilder, &[Dim], Expr) -> Expr,
) {
    let (shape, n) = (cx.dims(dst), cx.dims(src)[p.axis]);
    cx.kernel(|k| {
        k.nest(LoopKind::Par, &shape, |k, at| {
            let acc = k.acc(Expr::num(ty, 0.0));
            k.nest(LoopKind::Seq, &[p.taps], |k, t| {
                let v = source(k, p, n, at[p.axis], t[0], |k, i| {
                    let mut from = at.to_vec();
                    from[p.axis] = i;
                    let v = k.load(src, &from);
                    Expr::cast(k.m.type_of(&v), ty, v)
                });
                let w = p.weights.map_or(Expr::num(ty, 1.0), |w| weight(k, p, w, at[p.axis], t[0], ty));
                k.set(acc, Expr::fma(v, w, Expr::acc(acc)));
            });
            let v = finish(k, at, Expr::acc(acc));
            k.store(dst, at, v);
        });
    });
}
