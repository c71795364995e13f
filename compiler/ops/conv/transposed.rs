//! ConvTranspose, decomposed into the phases of its strides. Each phase is a convolution of stride 1 with a
//! part of the kernel.
//!
//! If their numbers of taps are equal, all phases are one contraction. If padding to equal numbers would add
//! many taps, each phase is a separate kernel. With few channels, the phases become channels as well, or the
//! taps do, and a map adds up the taps of a result (`columns`).

mod columns;

use super::{Axis, Conv, padded, with_bias};
use crate::diag::Result;
use crate::nest::{BinOp, Buf, Expr, KernelBuilder, LoopKind};
use crate::ops::LowerCx;
use crate::ops::matmul::product_sum;
use crate::sym::Dim;

impl Conv {
    /// y[o] = sum over k of x[(o + before - k * dilation) / stride] where that divides and is inside.
    ///
    /// With o + before = stride * q + phase only the taps k = phase + stride * j contribute: each phase is a
    /// convolution of stride 1 with a part of the kernel, and all of them are one contraction. Strides begin
    /// with the result; if it ends within one, it is cut from a buffer of whole strides. An axis with
    /// stride and dilation, or with pads known only at run time, is instead expanded with zeros and convolved
    /// with the mirrored kernel.
    pub(super) fn lower_transpose(&self, cx: &mut LowerCx, axes: &[Axis]) -> Result<()> {
        let (x, w, y) = (cx.input(0), cx.input(1), cx.output(0));
        let (dy, elem) = (cx.dims(y), cx.elem(x));
        let split: Option<Vec<Phases>> = axes.iter().zip(&dy[2..]).map(|(a, d)| Phases::of(a, *d)).collect();
        let Some(split) = split else {
            let phases: Vec<Phases> = axes
                .iter()
                .zip(&dy[2..])
                .map(|(a, d)| Phases {
                    stride: 1,
                    taps: a.kernel,
                    dilation: a.dilation,
                    first: Dim::constant(0),
                    count: *d,
                    cut: 0,
                    strides: *d,
                })
                .collect();
            let spread = spread(cx, x, axes, &dy, elem);
            self.phases(cx, spread, w, y, &phases);
            return Ok(());
        };
        let dx = cx.dims(x);
        let reach: Vec<Axis> = split
            .iter()
            .zip(&dx[2..])
            .map(|(p, d)| Axis {
                kernel: p.taps,
                stride: 1,
                dilation: p.dilation,
                before: Dim::constant((p.taps - 1) * p.dilation) - p.first,
                after: p.first + p.count - *d,
            })
            .collect();
        let dw = cx.dims(w);
        // The parts must not be rounded when they are stored.
        if elem.compute() == elem && self.sums_taps(&dw, axes, &split) {
            self.columns(cx, (x, w), axes, &split);
            return Ok(());
        }
        if self.has_few_channels(&dw, &split) {
            let src = padded(cx, x, &reach, None);
            self.phases_as_channels(cx, src, w, &split);
            return Ok(());
        }
        let reach: Vec<Axis> =
            reach.into_iter().zip(&split).map(|(r, p)| Axis { after: r.after + p.beyond(), ..r }).collect();
        let src = padded(cx, x, &reach, None);
        let whole: Vec<Dim> = dy[..2].iter().copied().chain(split.iter().map(|p| p.size())).collect();
        let direct = whole == dy;
        let out = if direct { y } else { cx.temp("strides", elem, whole) };
        if let Some(parts) = ragged(&dw[1..], axes, &split) {
            parts.iter().for_each(|part| self.phase(cx, src, w, out, part));
        } else {
            let w = if dw.len() == dy.len() { in_phases(cx, w, axes, &split) } else { w };
            self.phases(cx, src, w, out, &split);
        }
        if !direct {
            cut(cx, out, y);
        }
        Ok(())
    }
    /// True if vectors along the result's channels would be mostly empty, but not if the phases are channels
    /// as well.
    fn has_few_channels(&self, dw: &[Dim], axes: &[Phases]) -> bool {
        self.has_channels(dw, axes, LANES - 1) && strides(axes) > 1
    }
    /// True if the weights have the rank of the image, no groups, and at most this number of result channels.
    fn has_channels(&self, dw: &[Dim], axes: &[Phases], most: i64) -> bool {
        self.group == 1 && dw.len() == axes.len() + 2 && dw[1].as_const().is_some_and(|c| c <= most)
    }
    /// True if each tap should be a channel of a product, whose parts a map adds up: tiles of a convolution
    /// would have less than a vector of channels, and phases taps beyond the kernel. Both costs are in steps
    /// of the sum for each element of the image, those of phases in hundredths of whole vectors; constants
    /// are those of a comparison over 50 transposed convolutions with AVX2 and AVX-512.
    fn sums_taps(&self, dw: &[Dim], axes: &[Axis], split: &[Phases]) -> bool {
        // Adding up a part, beyond the map that rearranges the phases.
        const ADD: i64 = 12;
        // Phases of whole vectors, and the most that empty lanes cost, since vectors can run along rows.
        const WHOLE: i64 = 108;
        const MOST: i64 = 160;
        // Steps in empty lanes, without strides: the convolution reads the image once for all of its taps.
        const EMPTY: i64 = 512;
        let plain = split.iter().all(|p| p.dilation == 1);
        let (Some(channels), Some(depth)) = (dw[1].as_const(), dw[0].as_const()) else { return false };
        if !plain || depth < LANES || !self.has_channels(dw, split, LANES - 1) {
            return false;
        }
        let strides = strides(split);
        if strides == 1 {
            return depth * (LANES - channels) > EMPTY;
        }
        let (own, taps) = taps(axes, split);
        let lanes = channels * strides;
        let price = (WHOLE * ((lanes + LANES - 1) / LANES * LANES) / lanes).min(MOST);
        depth * taps * price > (depth + ADD) * own * 100
    }
    /// Computes the phases as channels of a convolution of stride 1; a map rearranges them.
    fn phases_as_channels(&self, cx: &mut LowerCx, src: Buf, w: Buf, axes: &[Phases]) {
        let (ds, dw, y) = (cx.dims(src), cx.dims(w), cx.output(0));
        let (dy, elem) = (cx.dims(y), cx.elem(y));
        let (ty, bias, n) = (elem.compute(), cx.input_opt(2), axes.len());
        let channels = dw[1] * strides(axes);
        // Weights `[channel and phase][input channel][taps ..]`, 0 beyond the kernel.
        let taps: Vec<Dim> = axes.iter().map(|a| Dim::constant(a.taps)).collect();
        let own = cx.temp(
            "phases",
            cx.elem(w),
            [channels, dw[0]].into_iter().chain(taps.iter().copied()).collect::<Vec<_>>(),
        );
        let loops: Vec<Dim> = std::iter::once(dw[1])
            .chain(axes.iter().map(|a| Dim::constant(a.stride)))
            .chain([dw[0]])
            .chain(taps.iter().copied())
            .collect();
        cx.kernel(|k| {
            k.nest(LoopKind::Par, &loops, |k, o| {
                let (phase, ic, r) = (&o[1..1 + n], o[1 + n], &o[2 + n..]);
                let channel = phase.iter().zip(axes).fold(o[0], |c, (p, a)| c * a.stride + *p);
                let (mut from, mut inside) = (vec![ic, o[0]], Expr::bool(true));
                for (i, a) in axes.iter().enumerate() {
                    let tap = phase[i] + (Dim::constant(a.taps - 1) - r[i]) * a.stride;
                    inside = inside.and(Expr::cmp_index(BinOp::Lt, tap, dw[2 + i]));
                    from.push(tap);
                }
                let v = k.load(w, &from);
                let zero = Expr::num(k.m.type_of(&v), 0.0);
                k.store(
                    own,
                    &[channel, ic].into_iter().chain(r.iter().copied()).collect::<Vec<_>>(),
                    Expr::select(inside, v, zero),
                );
            });
        });
        let turned = cx.temp(
            "turned",
            elem,
            [dy[0], channels].into_iter().chain(axes.iter().map(|a| a.count)).collect::<Vec<_>>(),
        );
        let loops: Vec<Dim> = [dy[0], channels].into_iter().chain(axes.iter().map(|a| a.count)).collect();
        let depth: Vec<Dim> = std::iter::once(ds[1]).chain(taps).collect();
        cx.kernel(|k| {
            k.nest(LoopKind::Par, &loops, |k, o| {
                let acc = k.acc(Expr::num(ty, 0.0));
                k.nest(LoopKind::Seq, &depth, |k, r| {
                    let mut at = vec![o[0], r[0]];
                    at.extend(axes.iter().enumerate().map(|(i, a)| o[2 + i] + r[1 + i] * a.dilation));
                    let wt: Vec<Dim> = std::iter::once(o[1]).chain(r.iter().copied()).collect();
                    let (a, b) = (k.load(src, &at), k.load(own, &wt));
                    k.set(acc, product_sum(ty, a, b, Expr::acc(acc)));
                });
                k.store(turned, o, Expr::acc(acc));
            });
        });
        // If the distance of planes is known only at run time, each plane is read separately. Pixels of few
        // channels are not split into planes (`choose_layouts`).
        let planes = axes.iter().all(|a| a.taps == 1)
            || axes.last().zip(channels.as_const()).is_some_and(|(a, c)| c > VECTORS * a.stride);
        let unknown = planes && axes.iter().any(|a| a.count.as_const().is_none());
        cx.map(y, |k, at| {
            let places: Vec<Dim> = at[2..].iter().zip(axes).map(|(o, a)| *o + a.cut).collect();
            let mut phases: Vec<Dim> = places.iter().zip(axes).map(|(o, a)| o.modulo(a.stride)).collect();
            let load = |k: &mut KernelBuilder, phases: &[Dim]| {
                let channel = phases.iter().zip(axes).fold(at[1], |c, (p, a)| c * a.stride + *p);
                let place = places.iter().zip(axes).map(|(o, a)| o.floor_div(a.stride));
                k.load(turned, &[at[0], channel].into_iter().chain(place).collect::<Vec<_>>())
            };
            let v = match (phases.pop(), axes.last()) {
                (Some(phase), Some(a)) if unknown => {
                    let one = |k: &mut KernelBuilder, i: i64| {
                        load(k, &phases.iter().copied().chain([Dim::constant(i)]).collect::<Vec<_>>())
                    };
                    let last = one(k, a.stride - 1);
                    (0..a.stride - 1).rev().fold(last, |others, i| {
                        let own = one(k, i);
                        k.shared(own, |k, own| {
                            let here = Expr::cmp_index(BinOp::Eq, phase, i);
                            k.shared(others, |_, others| Expr::select(here, own, others))
                        })
                    })
                }
                (Some(phase), _) => load(k, &phases.iter().copied().chain([phase]).collect::<Vec<_>>()),
                (None, _) => load(k, &[]),
            };
            with_bias(k, v, bias, at[1])
        });
    }
    /// Computes one phase of each axis.
    fn phase(&self, cx: &mut LowerCx, src: Buf, w: Buf, out: Buf, axes: &[Part]) {
        let (ds, dw, dy) = (cx.dims(src), cx.dims(w), cx.dims(out));
        let (ty, bias, g) = (cx.elem(out).compute(), cx.input_opt(2), self.group);
        let (ci, co) = (ds[1].floor_div(g), dw[1]);
        let loops: Vec<Dim> =
            [dy[0], Dim::constant(g), co].into_iter().chain(axes.iter().map(|a| a.count)).collect();
        let depth: Vec<Dim> = std::iter::once(ci).chain(axes.iter().map(|a| Dim::constant(a.taps))).collect();
        cx.kernel(|k| {
            k.nest(LoopKind::Par, &loops, |k, o| {
                let (group, oc) = (o[1], o[1] * co + o[2]);
                let acc = k.acc(Expr::num(ty, 0.0));
                k.nest(LoopKind::Seq, &depth, |k, r| {
                    let ic = group * ci + r[0];
                    let (mut at, mut wt) = (vec![o[0], ic], vec![ic, o[2]]);
                    for (i, a) in axes.iter().enumerate() {
                        at.push(o[3 + i] + (r[1 + i] + a.from));
                        wt.push((Dim::constant(a.taps - 1) - r[1 + i]) * a.stride + a.phase);
                    }
                    let (a, b) = (k.load(src, &at), k.load(w, &wt));
                    k.set(acc, product_sum(ty, a, b, Expr::acc(acc)));
                });
                let v = with_bias(k, Expr::acc(acc), bias, oc);
                let to: Vec<Dim> = [o[0], oc]
                    .into_iter()
                    .chain(axes.iter().enumerate().map(|(i, a)| o[3 + i] * a.stride + a.first))
                    .collect();
                k.store(out, &to, v);
            });
        });
    }
    /// The contraction over channels and the taps of each phase.
    fn phases(&self, cx: &mut LowerCx, src: Buf, w: Buf, out: Buf, axes: &[Phases]) {
        let (ds, dw, dy) = (cx.dims(src), cx.dims(w), cx.dims(out));
        let ty = cx.elem(out).compute();
        let g = self.group;
        let (ci, co) = (ds[1].floor_div(g), dw[1]);
        let bias = cx.input_opt(2);
        let n = axes.len();
        // Batch, group, channel, then phase and position of each axis.
        let mut loops = vec![dy[0], Dim::constant(g), co];
        loops.extend(axes.iter().map(|a| Dim::constant(a.stride)));
        loops.extend(axes.iter().map(|a| a.strides));
        let depth: Vec<Dim> = std::iter::once(ci).chain(axes.iter().map(|a| Dim::constant(a.taps))).collect();
        cx.kernel(|k| {
            k.nest(LoopKind::Par, &loops, |k, o| {
                let (group, oc) = (o[1], o[1] * co + o[2]);
                let (phase, place) = (&o[3..3 + n], &o[3 + n..]);
                let acc = k.acc(Expr::num(ty, 0.0));
                k.nest(LoopKind::Seq, &depth, |k, r| {
                    let ic = group * ci + r[0];
                    let (mut at, mut wt) = (vec![o[0], ic], vec![ic, o[2]]);
                    for (i, a) in axes.iter().enumerate() {
                        at.push(place[i] + a.phase_of(phase[i]).0 + r[1 + i] * a.dilation);
                        wt.push(phase[i] + (Dim::constant(a.taps - 1) - r[1 + i]) * a.stride);
                    }
                    let (a, b) = (k.load(src, &at), k.load(w, &wt));
                    k.set(acc, product_sum(ty, a, b, Expr::acc(acc)));
                });
                let v = with_bias(k, Expr::acc(acc), bias, oc);
                let mut to = vec![o[0], oc];
                to.extend(axes.iter().enumerate().map(|(i, a)| place[i] * a.stride + phase[i]));
                k.store(out, &to, v);
            });
        });
    }
}

/// The taps of the kernel, and those of all phases with equal numbers of taps.
fn taps(axes: &[Axis], split: &[Phases]) -> (i64, i64) {
    (axes.iter().map(|a| a.kernel).product(), split.iter().map(|p| p.taps * p.stride).product())
}

/// The number of phases.
fn strides(split: &[Phases]) -> i64 {
    split.iter().map(|p| p.stride).product()
}

/// True if phases with equal numbers of taps would have many more taps than the kernel.
fn wastes(axes: &[Axis], split: &[Phases]) -> bool {
    const PART: (i64, i64) = (4, 5);
    let (own, whole) = taps(axes, split);
    own * PART.1 <= whole * PART.0 && split.iter().all(|p| p.dilation == 1)
}

/// Lanes of the longest vectors, and lanes of vectors that can gather their elements.
const LANES: i64 = 16;
const VECTORS: i64 = 4;

/// The kernel in strides that begin with the phase of the result's first element, taps beyond its end 0.
fn in_phases(cx: &mut LowerCx, w: Buf, axes: &[Axis], split: &[Phases]) -> Buf {
    let (dw, elem) = (cx.dims(w), cx.elem(w));
    let whole: Vec<Dim> =
        dw[..2].iter().copied().chain(split.iter().map(|p| Dim::constant(p.taps * p.stride))).collect();
    if whole == dw && split.iter().all(|p| p.cut == 0) {
        return w;
    }
    let own = cx.temp("phases", elem, whole);
    cx.map(own, |k, at| {
        let (mut from, mut inside) = (at[..2].to_vec(), Expr::bool(true));
        for ((o, p), a) in at[2..].iter().zip(split).zip(axes) {
            let tap = p.phase_of(o.modulo(p.stride)).1 + o.floor_div(p.stride) * p.stride;
            inside = inside.and(Expr::cmp_index(BinOp::Lt, tap, a.kernel));
            from.push(tap);
        }
        let v = k.load(w, &from);
        let zero = Expr::num(k.m.type_of(&v), 0.0);
        Expr::select(inside, v, zero)
    });
    own
}

/// Copies the result from a buffer of whole strides.
fn cut(cx: &mut LowerCx, whole: Buf, y: Buf) {
    cx.map(y, |k, at| k.load(whole, at));
}

/// A single phase of an axis.
#[derive(Clone, Copy)]
struct Part {
    stride: i64,
    /// First element of the result.
    first: i64,
    /// First tap of the kernel.
    phase: i64,
    /// Taps of the kernel in this phase.
    taps: i64,
    /// First input element that the first result reads.
    from: i64,
    count: Dim,
}

/// The phases one by one, each with its own taps, if equal numbers of taps would waste many; `None`
/// otherwise. `dw` are the weights' output channels and sizes.
fn ragged(dw: &[Dim], axes: &[Axis], split: &[Phases]) -> Option<Vec<Vec<Part>>> {
    // Most kernels.
    const MOST: i64 = 9;
    let each = split.iter().zip(axes).all(|(p, a)| a.kernel >= p.stride);
    if !(2..=MOST).contains(&strides(split))
        || !wastes(axes, split)
        || !each
        || dw.len() != axes.len() + 1
        || dw[0].as_const().is_none_or(|c| c < LANES)
    {
        return None;
    }
    let mut all: Vec<Vec<Part>> = vec![vec![]];
    for (p, a) in split.iter().zip(axes) {
        let part = |first: i64| {
            let (from, phase) = ((first + p.cut) / p.stride, (first + p.cut) % p.stride);
            let taps = (a.kernel - phase + p.stride - 1) / p.stride;
            // Missing taps come before the others.
            Part { stride: p.stride, first, phase, taps, from: from + p.taps - taps, count: p.strides }
        };
        let parts: Vec<Part> = (0..p.stride).map(part).collect();
        all = all
            .iter()
            .flat_map(|head| parts.iter().map(|x| head.iter().copied().chain([*x]).collect::<Vec<_>>()))
            .collect();
    }
    Some(all)
}

/// One axis of a transposed convolution, by phases of its stride.
struct Phases {
    stride: i64,
    /// Taps of the kernel in each phase.
    taps: i64,
    dilation: i64,
    /// First input element q that the last tap of the first stride reads.
    first: Dim,
    /// Number of whole strides that cover the result, the first of which begins `cut` elements before it.
    count: Dim,
    /// Offset of the result in the first of them: element o has phase (o + cut) mod stride.
    cut: i64,
    /// Number of strides that cover the result if the first begins with it.
    strides: Dim,
}

impl Phases {
    fn of(a: &Axis, size: Dim) -> Option<Phases> {
        if a.stride > 1 && (a.dilation > 1 || a.before.as_const().is_none()) {
            return None;
        }
        let s = a.stride;
        let first = a.before.floor_div(s);
        let count = (a.before + size - 1).floor_div(s) - first + 1;
        let taps = if s == 1 { a.kernel } else { (a.kernel + s - 1) / s };
        Some(Phases {
            stride: s,
            taps,
            dilation: if s == 1 { a.dilation } else { 1 },
            first,
            count,
            cut: (a.before - first * s).as_const()?,
            strides: size.ceil_div(s),
        })
    }
    /// Strides, and the phase of the kernel, at element `o` of the first stride of the result.
    fn phase_of(&self, o: Dim) -> (Dim, Dim) {
        match self.cut {
            0 => (Dim::constant(0), o),
            c => ((o + c).floor_div(self.stride), (o + c).modulo(self.stride)),
        }
    }
    /// Elements of the result in whole strides.
    fn size(&self) -> Dim {
        self.strides * self.stride
    }
    /// Input elements that strides of the result read beyond those of `count` strides.
    fn beyond(&self) -> Dim {
        self.strides + i64::from(self.cut > 0) - self.count
    }
}

/// spread[j] = x[(j + before - (extent - 1)) / stride] if that is an integer inside the input, else 0.
fn spread(cx: &mut LowerCx, x: Buf, axes: &[Axis], dy: &[Dim], elem: crate::tensor::ElemType) -> Buf {
    let dims = cx.dims(x);
    let mut wide = dims[..2].to_vec();
    wide.extend(axes.iter().zip(&dy[2..]).map(|(a, d)| *d + (a.extent() - 1)));
    let out = cx.temp("spread", elem, wide);
    let ty = elem.compute();
    cx.map(out, |k, at| {
        let mut from = at[..2].to_vec();
        let mut inside = Expr::bool(true);
        for (i, a) in axes.iter().enumerate() {
            let p = at[2 + i] + a.before - (a.extent() - 1);
            let q = p.floor_div(a.stride);
            from.push(q);
            inside =
                inside.and(Expr::cmp_index(BinOp::Ge, p, 0)).and(Expr::cmp_index(BinOp::Lt, q, dims[2 + i]));
            if a.stride > 1 {
                inside = inside.and(Expr::cmp_index(BinOp::Eq, p.modulo(a.stride), 0));
            }
        }
        let v = k.load(x, &from);
        Expr::select(inside, v, Expr::num(ty, 0.0))
    });
    out
}
