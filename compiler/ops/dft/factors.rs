//! Transforms of composite length l = a b, in two steps with far fewer operations than an l x l matrix.
//!
//! With n = b n1 + n2 and k = k1 + a k2 the root w^(n k) is w^(n k1) w^(a n2 k2). The first step sums over n1
//! to frequencies k1 for each n2, with weights that include the twiddle factor w^(n2 k1). The second step
//! sums over n2 to frequencies k2, a product with a single matrix.

use super::Dft;
use crate::nest::{Buf, Expr, LoopKind};
use crate::ops::LowerCx;
use crate::ops::matmul::product_sum;
use crate::sym::Dim;
use crate::tensor::{ConstData, ElemType};
use std::f64::consts::PI;
use std::sync::Arc;

/// Shorter transforms are matrix products.
const LEAST: i64 = 64;
/// Most weights of the first step.
const WEIGHTS: i64 = 1 << 20;

/// The factors a <= b of a length that are closest to each other, if two steps with them save enough.
fn factors(l: i64) -> Option<(i64, i64)> {
    let a = (2..).take_while(|a| a * a <= l).filter(|a| l % a == 0).last()?;
    (l >= LEAST && 4 * (a + l / a) <= l).then_some((a, l / a))
}

impl Dft {
    /// Transforms `x` [before, length, after, parts] to `y` [before, count, after, 2], if length and parts
    /// are known, the length has suitable factors, and stages take longer. Returns false otherwise.
    pub(super) fn by_factors(&self, cx: &mut LowerCx, x: Buf, y: Buf) -> bool {
        let (from, to) = (cx.dims(x), cx.dims(y));
        let (Some(l), Some(parts), Some(count)) = (from[1].as_const(), from[3].as_const(), to[1].as_const())
        else {
            return false;
        };
        let Some((a, b)) = factors(l).filter(|_| !(self.inverse && self.onesided)) else { return false };
        if l.checked_mul(a).and_then(|v| v.checked_mul(2 * parts)).is_none_or(|n| n > WEIGHTS) {
            return false;
        }
        if super::stages::pay(l, 2 * (l * a * parts + 2 * b * count)) {
            return false;
        }
        let ty = cx.elem(x).compute();
        // All blocks of `a` frequencies; the last one may be partial.
        let blocks = (count + a - 1) / a;
        let weight = |p: i64, q: i64, turns: i64| {
            let angle = 2.0 * PI * (turns % l) as f64 / l as f64;
            let (c, s) = self.factor(p, q);
            c * angle.cos() + s * angle.sin()
        };
        let mut first = vec![];
        for (n1, p, k1, q) in (0..a).flat_map(|n| {
            (0..parts).flat_map(move |p| (0..a).flat_map(move |k| (0..2).map(move |q| (n, p, k, q))))
        }) {
            first.extend((0..b).map(|n2| weight(p, q, (n1 * b + n2) * k1)));
        }
        let mut second = vec![];
        for (q, n2, k2) in (0..2).flat_map(|q| (0..b).flat_map(move |n| (0..blocks).map(move |k| (q, n, k))))
        {
            second.extend((0..2).map(|to| weight(q, to, n2 * k2 * a) * self.scale(n2, l)));
        }
        let fill = |dims: Vec<i64>, v: Vec<f64>| {
            let bytes: Vec<u8> = if ty == ElemType::F64 {
                v.iter().flat_map(|x| x.to_le_bytes()).collect()
            } else {
                v.iter().flat_map(|x| (*x as f32).to_le_bytes()).collect()
            };
            ConstData::new(ty, dims, bytes).map(Arc::new)
        };
        let (Some(first), Some(second)) =
            (fill(vec![a, parts, a, 2, b], first), fill(vec![2 * b, 2 * blocks], second))
        else {
            return false;
        };
        let (first, second) =
            (cx.m.constant("fourier.first", first), cx.m.constant("fourier.second", second));
        let (before, behind) = (from[0], from[2]);
        let half = cx.temp("half", ty, vec![before, behind, a.into(), 2.into(), b.into()]);
        cx.kernel(|k| {
            k.nest(LoopKind::Par, &[before, behind, a.into(), 2.into(), b.into()], |k, at| {
                let acc = k.acc(Expr::num(ty, 0.0));
                k.nest(LoopKind::Seq, &[a.into(), parts.into()], |k, r| {
                    let v = k.load(x, &[at[0], r[0] * b + at[4], at[1], r[1]]);
                    let w = k.load(first, &[r[0], r[1], at[2], at[3], at[4]]);
                    k.set(acc, product_sum(ty, v, w, Expr::acc(acc)));
                });
                k.store(half, at, Expr::acc(acc));
            });
        });
        let rows = before * behind * a;
        let half = cx.m.view(half, vec![rows, Dim::constant(2 * b)]);
        let spectrum = cx.temp("spectrum", ty, vec![rows, Dim::constant(2 * blocks)]);
        cx.kernel(|k| {
            k.nest(LoopKind::Par, &[rows, Dim::constant(2 * blocks)], |k, at| {
                let acc = k.acc(Expr::num(ty, 0.0));
                k.nest(LoopKind::Seq, &[Dim::constant(2 * b)], |k, r| {
                    let (v, w) = (k.load(half, &[at[0], r[0]]), k.load(second, &[r[0], at[1]]));
                    k.set(acc, product_sum(ty, v, w, Expr::acc(acc)));
                });
                k.store(spectrum, at, Expr::acc(acc));
            });
        });
        let spectrum = cx.m.view(spectrum, vec![before, behind, a.into(), blocks.into(), 2.into()]);
        // Whole blocks of frequencies, then the rest of the last one.
        for (block, blocks, lines) in [(0, count / a, a), (count / a, 1, count % a)] {
            if blocks > 0 && lines > 0 {
                cx.kernel(|k| {
                    k.nest(
                        LoopKind::Par,
                        &[before, blocks.into(), lines.into(), behind, 2.into()],
                        |k, at| {
                            let v = k.load(spectrum, &[at[0], at[3], at[2], at[1] + block, at[4]]);
                            k.store(y, &[at[0], (at[1] + block) * a + at[2], at[3], at[4]], v);
                        },
                    );
                });
            }
        }
        true
    }
}
