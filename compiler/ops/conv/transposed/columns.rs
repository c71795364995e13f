//! Transposed convolutions whose taps are channels of a product.

use super::{Axis, Conv, Phases, padded, with_bias};
use crate::nest::{BinOp, Buf, Expr, KernelBuilder, LoopKind};
use crate::ops::LowerCx;
use crate::ops::matmul::product_sum;
use crate::sym::Dim;

impl Conv {
    /// Computes every tap of every channel at each element of the image as a channel of a 1x1 convolution,
    /// and adds up the taps of each result in a map. Unlike with phases, the product has no taps beyond the
    /// kernel. The channels of a tap are adjacent, as in a result with channels innermost.
    ///
    /// y[o] = sum over j of z[tap phase + stride * j][q - j], o + before = stride * q + phase.
    pub(super) fn columns(&self, cx: &mut LowerCx, (x, w): (Buf, Buf), axes: &[Axis], split: &[Phases]) {
        let (dx, dw, y) = (cx.dims(x), cx.dims(w), cx.output(0));
        let (elem, bias, n) = (cx.elem(y), cx.input_opt(2), axes.len());
        let ty = elem.compute();
        let taps: i64 = axes.iter().map(|a| a.kernel).product();
        let channels = dw[1] * taps;
        let own = cx.temp("taps", cx.elem(w), vec![channels, dw[0]]);
        cx.kernel(|k| {
            let loops = [&dw[2..], &[dw[1], dw[0]]].concat();
            k.nest(LoopKind::Par, &loops, |k, o| {
                let (tap, oc, ic) = (&o[..n], o[n], o[1 + n]);
                let channel = tap_channel(tap, axes) * dw[1] + oc;
                let v = k.load(w, &[&[ic, oc], tap].concat());
                k.store(own, &[channel, ic], v);
            });
        });
        // The pixels are one dimension: a tile of columns may contain the end of a row and the beginning of
        // the next.
        let pixels = Dim::product(dx[2..].iter().copied());
        let image = cx.m.view(x, [dx[0], dx[1], pixels]);
        let loops = [dx[0], channels, pixels];
        let sums = cx.temp("columns", elem, loops);
        cx.kernel(|k| {
            k.nest(LoopKind::Par, &loops, |k, o| {
                let acc = k.acc(Expr::num(ty, 0.0));
                k.range(LoopKind::Seq, "k", 0, dx[1], |k, ic| {
                    let (a, b) = (k.load(image, &[o[0], ic, o[2]]), k.load(own, &[o[1], ic]));
                    k.set(acc, product_sum(ty, a, b, Expr::acc(acc)));
                });
                k.store(sums, o, Expr::acc(acc));
            });
        });
        let product = cx.m.view(sums, [&[dx[0], channels], &dx[2..]].concat());
        // Zeros for results that would read beyond the image.
        let around: Vec<Axis> = split
            .iter()
            .zip(&dx[2..])
            .map(|(p, d)| Axis {
                kernel: 1,
                stride: 1,
                dilation: 1,
                before: Dim::constant(p.taps - 1) - p.first,
                after: p.first + p.count - *d,
            })
            .collect();
        let product = padded(cx, product, &around, None);
        cx.map(y, |k, at| {
            let places: Vec<Dim> = at[2..].iter().zip(split).map(|(o, p)| *o + p.cut).collect();
            let mut steps: Vec<Vec<i64>> = vec![vec![]];
            for p in split {
                steps = steps
                    .iter()
                    .flat_map(|s| (0..p.taps).map(move |j| s.iter().copied().chain([j]).collect()))
                    .collect();
            }
            let mut sum: Option<Expr> = None;
            for step in steps {
                let v = tap_of_phase(k, (product, y), (at, &places), &step, (axes, split));
                sum = Some(match sum {
                    None => v,
                    Some(s) => s + v,
                });
            }
            with_bias(k, sum.unwrap_or(Expr::num(ty, 0.0)), bias, at[1])
        });
    }
}

/// The contribution of step `step` of each axis to the result at a position: a tap of its phase, or 0 if the
/// kernel has fewer.
fn tap_of_phase(
    k: &mut KernelBuilder,
    (product, out): (Buf, Buf),
    (at, places): (&[Dim], &[Dim]),
    step: &[i64],
    (axes, split): (&[Axis], &[Phases]),
) -> Expr {
    let (mut taps, mut from, mut inside) = (vec![], vec![], None::<Expr>);
    for (((place, j), a), p) in places.iter().zip(step).zip(axes).zip(split) {
        let tap = place.modulo(p.stride) + p.stride * j;
        if p.stride * (j + 1) > a.kernel {
            let c = Expr::cmp_index(BinOp::Lt, tap, a.kernel);
            inside = Some(match inside {
                None => c,
                Some(i) => i.and(c),
            });
        }
        taps.push(tap.min(Dim::constant(a.kernel - 1)));
        from.push(place.floor_div(p.stride) + (p.taps - 1 - j));
    }
    let channel = tap_channel(&taps, axes) * k.m.bufs[out].dims[1] + at[1];
    let (v, ty) = (k.load(product, &[&[at[0], channel], &from[..]].concat()), k.m.bufs[product].ty.compute());
    match inside {
        // The element that is read is not a tap of this phase, but it exists.
        Some(c) => k.shared(v, |_, v| Expr::select(c, v, Expr::num(ty, 0.0))),
        None => v,
    }
}

/// The number of a tap among all taps of the kernel.
fn tap_channel(tap: &[Dim], axes: &[Axis]) -> Dim {
    tap.iter().zip(axes).fold(Dim::constant(0), |c, (t, a)| c * a.kernel + *t)
}
