//! Pooling. Windows slide as in convolutions (`conv`), and `ceil_mode` may add one that extends beyond the
//! end.
//!
//! Spec: <https://onnx.ai/onnx/operators/onnx__MaxPool.html>, `AveragePool`, `LpPool`, `GlobalMaxPool`,
//! `GlobalAveragePool`, `GlobalLpPool`.
//!
//! | operator    | version | change                                                                   |
//! |-------------|---------|--------------------------------------------------------------------------|
//! | MaxPool     | 1       | floats                                                                   |
//! |             | 8       | output `Indices`, `storage_order`                                        |
//! |             | 10      | `ceil_mode`, `dilations`                                                 |
//! |             | 11      | strides default to 1 (as taken for the older ones, too)                  |
//! |             | 12      | int8 and uint8                                                           |
//! |             | 22      | bfloat16                                                                 |
//! | AveragePool | 1       | pads never count                                                         |
//! |             | 7       | `count_include_pad`                                                      |
//! |             | 10, 19  | `ceil_mode`; `dilations`                                                 |
//! |             | 22      | bfloat16; windows that would start in the end padding do not exist       |
//! | LpPool      | 1       | `p` is a float                                                           |
//! |             | 2       | `p` is an integer                                                        |
//! |             | 18, 22  | `ceil_mode` and `dilations`; bfloat16                                    |
//! | Global*     | 1, 22   | bfloat16; GlobalLpPool 2: `p` is an integer                              |
//!
//! The rule for windows that start in the end padding applies to every version with `ceil_mode`, as in ONNX's
//! own shape inference. A window entirely in padding has the maximum -inf (or the type's lowest) and
//! `Indices` -1.

use super::conv::{Auto, Axis, Window, padded};
use super::support::power::power;
use super::{Attrs, InferCx, LowerCx, Operator};
use crate::diag::{Result, codes};
use crate::nest::{BinOp, Buf, Expr, KernelBuilder, LoopKind, Reg, Scalar, UnOp};
use crate::sym::{Dim, SymTable};
use crate::tensor::{ConstData, ElemType};
use std::sync::Arc;

/// The reduction of the elements of a window.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    /// The largest.
    Max,
    /// The mean; with `pads`, pads count as zeros.
    Average { pads: bool },
    /// `(sum |x|^p)^(1/p)`.
    Lp(f64),
}

/// MaxPool, AveragePool, LpPool and their global forms.
#[derive(Clone, Debug)]
pub struct Pool {
    kind: Kind,
    /// `None`: global.
    window: Option<Window>,
    /// True if the last window may extend beyond the padded input, if it starts inside.
    ceil: bool,
    /// True if there is a second output.
    indices: bool,
    column_major: bool,
}

/// Elements of a window along an axis that may be inside an image of size `input`: the others of a window that
/// is larger than the image are padding. A small window has a constant size all the same, which costs less.
fn taps(a: &Axis, input: Dim) -> Dim {
    const SMALL: i64 = 32;
    let inside = (input + a.before).ceil_div(a.dilation).min(a.kernel);
    if inside.as_const().is_some() || a.kernel > SMALL { inside } else { a.kernel.into() }
}

impl Operator for Pool {
    const OPS: &'static [&'static str] =
        &["MaxPool", "AveragePool", "LpPool", "GlobalMaxPool", "GlobalAveragePool", "GlobalLpPool"];

    fn parse(a: &mut Attrs) -> Result<Self> {
        let global = a.op().starts_with("Global");
        let kind = match a.op().trim_start_matches("Global") {
            "MaxPool" => Kind::Max,
            "AveragePool" => Kind::Average { pads: !global && a.flag("count_include_pad", false) },
            _ => {
                let p = if a.since() == 1 { f64::from(a.float("p", 2.0)) } else { a.int("p", 2) as f64 };
                if p.is_nan() || p <= 0.0 {
                    return a
                        .error(format!("p = {p} makes no norm"))
                        .found_expected(p.to_string(), "a positive number")
                        .fail();
                }
                Kind::Lp(p)
            }
        };
        let window = if global { None } else { Some(Window::parse(a)?) };
        // With `auto_pad` no window extends beyond the input.
        let ceil =
            !global && a.flag("ceil_mode", false) && window.as_ref().is_some_and(|w| w.auto == Auto::NotSet);
        if window.as_ref().is_some_and(|w| w.kernel.is_none()) {
            return a.error(format!("{} needs the attribute kernel_shape", a.op())).fail();
        }
        a.require(
            !window.as_ref().and_then(|w| w.pads.as_ref()).is_some_and(|p| p.iter().any(|p| *p < 0)),
            "attribute \"pads\" has a value below 0",
        )?;
        let column_major = kind == Kind::Max && !global && a.flag("storage_order", false);
        Ok(Pool {
            kind,
            window,
            ceil,
            indices: kind == Kind::Max && !global && a.n_outputs() > 1,
            column_major,
        })
    }

    fn infer(&self, cx: &mut InferCx) -> Result<()> {
        let x = cx.tensor(0);
        let least = if self.window.is_some() { 3 } else { 2 };
        if x.rank() < least {
            return Err(cx
                .error(codes::OP_SHAPE, "pooling needs batch, channel and spatial dimensions")
                .found_expected(format!("rank {}", x.rank()), format!("rank {least} or more"))
                .into());
        }
        let mut dims = x.dims[..2].to_vec();
        match &self.window {
            None => dims.extend(x.dims[2..].iter().map(|_| Dim::constant(1))),
            Some(w) => {
                let axes = axes(w, &x.dims[2..]).map_err(|m| cx.error(codes::OP_ATTRIBUTE, m))?;
                for (a, d) in axes.iter().zip(&x.dims[2..]) {
                    dims.push(checked_size(cx, self.windows(w, a, *d))?);
                }
            }
        }
        if self.indices {
            cx.set(1, ElemType::I64, dims.clone());
        }
        cx.set(0, x.elem, dims);
        Ok(())
    }

    fn lower(&self, cx: &mut LowerCx) -> Result<()> {
        let x = cx.input(0);
        let Some(w) = &self.window else {
            self.global(cx, x);
            return Ok(());
        };
        let dims = cx.dims(x);
        let Ok(axes) = axes(w, &dims[2..]) else { return cx.bug("the geometry changed") };
        if let Some(indices) = cx.output_opt(1) {
            self.with_indices(cx, x, &axes, indices);
            return Ok(());
        }
        let out = cx.output(0);
        let shape = cx.dims(out);
        let ty = cx.elem(x).compute();
        let fill = if self.kind == Kind::Max { Scalar::lowest(ty) } else { Scalar::int(ty, 0) };
        let src = padded(cx, x, &self.reaching(&axes, &dims[2..], &shape[2..]), Some(fill.into()));
        let kernel: Vec<Dim> = axes.iter().zip(&dims[2..]).map(|(a, d)| taps(a, *d)).collect();
        let counts = self.counts(cx, &axes, &dims[2..], &shape[2..], ty);
        cx.kernel(|k| {
            k.nest(LoopKind::Par, &shape, |k, at| {
                let acc = k.acc(fill.into());
                k.nest(LoopKind::Seq, &kernel, |k, ks| {
                    let mut from = at[..2].to_vec();
                    from.extend(
                        axes.iter().enumerate().map(|(i, a)| at[i + 2] * a.stride + ks[i] * a.dilation),
                    );
                    let v = k.load(src, &from);
                    self.step(k, acc, v, ty);
                });
                let count = || {
                    let others = Dim::product(
                        (0..axes.len())
                            .filter(|i| counts[*i].is_none())
                            .map(|i| self.count(&axes[i], dims[2 + i], at[2 + i])),
                    );
                    let lists = counts
                        .iter()
                        .zip(&at[2..])
                        .filter_map(|(list, i)| list.map(|buf| Expr::Load { buf, at: vec![*i] }));
                    lists
                        .chain((others.as_const() != Some(1)).then(|| Expr::count(ty, others)))
                        .reduce(|a, b| a * b)
                        .unwrap_or(Expr::num(ty, 1.0))
                };
                let y = self.finish(k, acc, ty, count);
                k.store(out, at, y);
            });
        });
        Ok(())
    }
}

impl Pool {
    /// Updates the accumulator with one element.
    fn step(&self, k: &mut KernelBuilder, acc: Reg, v: Expr, ty: ElemType) {
        match self.kind {
            Kind::Max => k.update(BinOp::Max, acc, v),
            Kind::Average { .. } => k.update(BinOp::Add, acc, v),
            Kind::Lp(2.0) => {
                let v = k.let_(v);
                k.set(acc, Expr::fma(v.clone(), v, Expr::acc(acc)));
            }
            Kind::Lp(p) => {
                let v = Expr::un(UnOp::Abs, v);
                let v = power(k, ty, v, Expr::num(ty, p));
                k.update(BinOp::Add, acc, v);
            }
        }
    }
    /// The result, given the accumulator and the number of elements.
    fn finish(&self, k: &mut KernelBuilder, acc: Reg, ty: ElemType, count: impl FnOnce() -> Expr) -> Expr {
        let acc = Expr::acc(acc);
        match self.kind {
            Kind::Max | Kind::Lp(1.0) => acc,
            Kind::Average { .. } => {
                let n = count();
                acc / n
            }
            Kind::Lp(2.0) => Expr::un(UnOp::Sqrt, acc),
            Kind::Lp(p) => power(k, ty, acc, Expr::num(ty, 1.0 / p)),
        }
    }
    /// The number of windows along an axis.
    fn windows(&self, w: &Window, a: &Axis, input: Dim) -> Dim {
        match w.auto {
            Auto::SameUpper | Auto::SameLower => input.ceil_div(a.stride),
            _ if self.ceil => {
                let all = (input + a.before + a.after - a.extent()).ceil_div(a.stride) + 1;
                all.min((input + a.before - 1).floor_div(a.stride) + 1)
            }
            _ => (input + a.before + a.after - a.extent()).floor_div(a.stride) + 1,
        }
    }
    /// The axes with enough end padding for the last window.
    fn reaching(&self, axes: &[Axis], input: &[Dim], windows: &[Dim]) -> Vec<Axis> {
        let mut axes = axes.to_vec();
        if self.ceil {
            for (i, a) in axes.iter_mut().enumerate() {
                let extent = (taps(a, input[i]) - 1) * a.dilation + 1;
                let need = (windows[i] - 1) * a.stride + extent - input[i] - a.before;
                a.after = a.after.max(need);
            }
        }
        axes
    }
    /// The number of elements of window `o` that count along an axis of size `input`.
    fn count(&self, a: &Axis, input: Dim, o: Dim) -> Dim {
        let with_pads = self.kind == Kind::Average { pads: true };
        let zero = Dim::constant(0);
        if !self.ceil && (with_pads || a.before == zero && a.after == zero) {
            return a.kernel.into();
        }
        let start = o * a.stride - a.before;
        // Elements of the window before a position.
        let before = |end: Dim| (end - start).ceil_div(a.dilation).min(a.kernel).max(0);
        if with_pads { before(input + a.after) } else { before(input) - before(zero) }
    }
    /// The number of elements that count, one per window along an axis, if it varies: a constant, or the
    /// result of a small kernel if the size is known only at run time.
    fn counts(
        &self,
        cx: &mut LowerCx,
        axes: &[Axis],
        input: &[Dim],
        windows: &[Dim],
        ty: ElemType,
    ) -> Vec<Option<Buf>> {
        /// Longer lists are computed at their uses.
        const LONGEST: i64 = 1 << 16;
        let known = |cx: &mut LowerCx, i: usize, n: i64| -> Option<Buf> {
            let values: Option<Vec<f32>> = (0..n)
                .map(|o| self.count(&axes[i], input[i], o.into()).as_const().map(|c| c as f32))
                .collect();
            let values = values.filter(|v| v.iter().any(|c| *c != v[0]))?;
            Some(cx.m.constant("counts", Arc::new(ConstData::f32s(vec![n], &values))))
        };
        let list = |cx: &mut LowerCx, i: usize| -> Option<Buf> {
            let n = windows[i];
            match n.as_const() {
                _ if ty != ElemType::F32 => None,
                Some(n) => (1..=LONGEST).contains(&n).then(|| known(cx, i, n))?,
                None => {
                    let o = cx.m.syms.loop_var("o", Dim::constant(0), n);
                    let count = self.count(&axes[i], input[i], o.into());
                    if cx.m.syms.simplify(count).as_const().is_some() {
                        return None;
                    }
                    let counts = cx.temp("counts", ElemType::F32, vec![n]);
                    cx.map(counts, |_, at| Expr::count(ty, self.count(&axes[i], input[i], at[0])));
                    Some(counts)
                }
            }
        };
        let averages = matches!(self.kind, Kind::Average { .. });
        (0..axes.len()).map(|i| if averages { list(cx, i) } else { None }).collect()
    }
    fn global(&self, cx: &mut LowerCx, x: Buf) {
        let (out, dims, ty) = (cx.output(0), cx.dims(x), cx.elem(x).compute());
        let init = if self.kind == Kind::Max { Scalar::lowest(ty) } else { Scalar::int(ty, 0) };
        cx.kernel(|k| {
            let shape = k.m.bufs[out].dims.clone();
            k.nest(LoopKind::Par, &shape, |k, at| {
                let acc = k.acc(init.into());
                k.nest(LoopKind::Seq, &dims[2..], |k, s| {
                    let v = k.load(x, &[&at[..2], s].concat());
                    self.step(k, acc, v, ty);
                });
                let y = self.finish(k, acc, ty, || Expr::count(ty, Dim::product(dims[2..].iter().copied())));
                k.store(out, at, y);
            });
        });
    }
    /// MaxPool with `Indices`: the maximum and its first position, read from the unpadded input.
    ///
    /// Lanes of values have no room for positions, so that the first kernel finds the place of the element in
    /// its window, and the second one maps it to a position.
    fn with_indices(&self, cx: &mut LowerCx, x: Buf, axes: &[Axis], indices: Buf) {
        let (out, dims, shape, ty) = (cx.output_opt(0), cx.dims(x), cx.dims(indices), cx.elem(x).compute());
        let kernel: Vec<Dim> = axes.iter().map(|a| a.kernel.into()).collect();
        let long = ty.bits() > 32 || axes.iter().map(place_bits).sum::<u32>() >= i32::BITS;
        let word = if long { ElemType::I64 } else { ElemType::I32 };
        // A row for each plane, which is no image of another layout.
        let flat = |at: &[Dim]| at.iter().zip(&shape[2..]).fold(Dim::constant(0), |p, (i, n)| p * *n + *i);
        let plane = |at: &[Dim]| vec![at[0] * shape[1] + at[1], flat(&at[2..])];
        let elements = Dim::product(shape[2..].iter().copied());
        let places = cx.temp("places", word, vec![shape[0] * shape[1], elements]);
        cx.kernel(|k| {
            k.nest(LoopKind::Par, &shape, |k, at| {
                let best = k.acc(Scalar::lowest(ty).into());
                let place = k.acc(Expr::int(word, -1));
                k.nest(LoopKind::Seq, &kernel, |k, ks| {
                    let starts = axes.iter().zip(&at[2..]).zip(ks);
                    let within = starts.map(|((a, o), i)| *o * a.stride + *i * a.dilation - a.before);
                    let from: Vec<Dim> = at[..2].iter().copied().chain(within).collect();
                    let fields = ks.iter().zip(axes);
                    let number = fields.fold(Dim::constant(0), |n, (i, a)| n * (1 << place_bits(a)) + *i);
                    let number = Expr::cast(ElemType::I64, word, Expr::index(number));
                    let inside = inside(&k.m.syms, &from[2..], &dims[2..]);
                    let v = k.load(x, &from);
                    take_larger(k, (best, place), (v, number), inside);
                });
                if let Some(out) = out {
                    k.store(out, at, Expr::acc(best));
                }
                k.store(places, &plane(at), Expr::acc(place));
            });
        });
        cx.map(indices, |k, at| {
            let place = k.load(places, &plane(at));
            k.shared(place, |_, place| self.position((at, &dims), axes, (word, place)))
        });
    }
    /// The position in the flattened tensor of an element of a window, -1 if there is none.
    fn position(&self, (at, dims): (&[Dim], &[Dim]), axes: &[Axis], (word, place): (ElemType, Expr)) -> Expr {
        let flat = |at: &[Dim]| flat_index(at, dims, self.column_major);
        let starts = axes.iter().zip(&at[2..]).map(|(a, o)| *o * a.stride - a.before);
        let start: Vec<Dim> = at[..2].iter().copied().chain(starts).collect();
        let mut sum = Expr::index(flat(&start));
        let mut shift = 0;
        for (i, a) in axes.iter().enumerate().rev() {
            let mut one = vec![Dim::constant(0); dims.len()];
            one[2 + i] = Dim::constant(a.dilation);
            let bits = place_bits(a);
            let field = Expr::bin(BinOp::Shr, place.clone(), Expr::int(word, shift));
            let field = field.and(Expr::int(word, (1 << bits) - 1));
            sum = sum + Expr::cast(word, ElemType::I64, field) * Expr::index(flat(&one));
            shift += i64::from(bits);
        }
        let none = Expr::bin(BinOp::Lt, place, Expr::int(word, 0));
        Expr::select(none, Expr::int(ElemType::I64, -1), sum)
    }
}

/// Bits of an index into a window, in the number of an element of a window.
fn place_bits(a: &Axis) -> u32 {
    i64::BITS - (a.kernel - 1).leading_zeros()
}

/// Keeps the larger of the best and an element, if that is inside; the first of equal ones, and the first
/// NaN, have precedence.
fn take_larger(
    k: &mut KernelBuilder,
    (best, place): (Reg, Reg),
    (v, number): (Expr, Expr),
    inside: Option<Expr>,
) {
    let (ty, word) = (k.m.type_of(&v), k.m.type_of(&number));
    let v = match &inside {
        Some(c) => Expr::select(c.clone(), v, Scalar::lowest(ty).into()),
        None => v,
    };
    let v = k.let_(v);
    let first = Expr::bin(BinOp::Lt, Expr::acc(place), Expr::int(word, 0));
    let mut take = Expr::bin(BinOp::Or, first, Expr::bin(BinOp::Gt, v.clone(), Expr::acc(best)));
    if ty.is_float() {
        let nan = |e: Expr| Expr::un(UnOp::IsNan, e);
        take = Expr::bin(BinOp::Or, take, nan(v.clone()).and(Expr::un(UnOp::Not, nan(Expr::acc(best)))));
    }
    let take = k.let_(inside.into_iter().fold(take, Expr::and));
    k.set(place, Expr::select(take.clone(), number, Expr::acc(place)));
    k.set(best, Expr::select(take, v, Expr::acc(best)));
}

/// The position in the flattened tensor; `column_major` reverses the order of the spatial dimensions only.
fn flat_index(at: &[Dim], dims: &[Dim], column_major: bool) -> Dim {
    let order: Vec<usize> = if column_major {
        [0, 1].into_iter().chain((2..dims.len()).rev()).collect()
    } else {
        (0..dims.len()).collect()
    };
    order.into_iter().fold(Dim::constant(0), |flat, i| flat * dims[i] + at[i])
}

/// The conditions under which a position is inside, unless that is certain.
fn inside(syms: &SymTable, at: &[Dim], dims: &[Dim]) -> Option<Expr> {
    let mut all = vec![];
    for (p, d) in at.iter().zip(dims) {
        if !syms.is_nonneg(*p) {
            all.push(Expr::cmp_index(BinOp::Ge, *p, 0));
        }
        if !syms.is_nonneg(*d - 1 - *p) {
            all.push(Expr::cmp_index(BinOp::Lt, *p, *d));
        }
    }
    all.into_iter().reduce(Expr::and)
}

/// The axes of a pool; `Err` names an invalid attribute.
fn axes(w: &Window, spatial: &[Dim]) -> std::result::Result<Vec<Axis>, String> {
    w.axes(w.kernel.as_deref().unwrap_or_default(), spatial)
}

/// An output size: an error if it is certainly negative, a check at entry if it may be.
fn checked_size(cx: &mut InferCx, d: Dim) -> Result<Dim> {
    let d = cx.syms.simplify(d);
    cx.require(
        d.as_const().is_none_or(|d| d >= 0),
        codes::OP_SHAPE,
        "the window is larger than the padded input",
    )?;
    cx.syms.require_at_most(Dim::constant(0), d);
    Ok(d)
}
