//! sin, cos, tan and their inverses.
//!
//! An angle is reduced by the nearest multiple of pi/2. Angles of usual size use Cody and Waite's products.
//! If any lane is larger, the products use all bits of 2/pi that matter for a float (Payne and Hanek),
//! without those that contribute multiples of 4. The remainder has two parts, because tan and sin expose its
//! rounding near their zeros.

use super::{Floats, poly};
use std::f64::consts::FRAC_2_PI;

/// pi/2 in three parts of 24 bits.
const HALF_PI: [f32; 3] = [1.570_796_4, -4.371_139e-8, -1.715_124_5e-15];
/// pi/2 in five parts of 11 bits, whose products with integers below 2^13 are exact.
const HALF_PI_SHORT: [f32; 5] = [1.570_312_5, 4.837_513e-4, 7.549_533_6e-8, 2.563_283e-12, 6.125_742e-17];
/// 2/pi in parts of 24 bits, times 2^64.
const TWO_OVER_PI: [f32; 8] = [
    1.174_356_2e19,
    4.737_594_8e11,
    5.417_984_4e3,
    6.003_270_4e-4,
    2.230_140_1e-10,
    1.045_479_7e-17,
    4.833_790_6e-25,
    1.301_225_5e-32,
];
/// (sin r - r) / r^3, (cos r - 1 + r^2 / 2) / r^4, (tan r - r) / r^3 for |r| <= pi/4 in powers of r^2.
const SIN: [f32; 4] = [2.832_549e-6, -1.985_306_6e-4, 8.333_379e-3, -1.666_666_7e-1];
const COS: [f32; 3] = [2.443_232_7e-5, -1.388_731e-3, 4.166_664_6e-2];
const TAN: [f32; 7] = [
    4.372_313e-3,
    9.887_385_4e-5,
    1.082_707_7e-2,
    2.128_629_8e-2,
    5.405_890_6e-2,
    1.333_267_5e-1,
    3.333_335e-1,
];
/// (atan q - q) / q^3 for |q| <= 1, (asin q - q) / q^3 for |q| <= 0.5625.
const ATAN: [f32; 9] = [
    -1.782_820_7e-3,
    1.086_868_5e-2,
    -3.109_698_6e-2,
    5.788_139e-2,
    -8.399_306e-2,
    1.095_088_05e-1,
    -1.426_401_6e-1,
    1.999_853e-1,
    -3.333_33e-1,
];
const ASIN: [f32; 6] =
    [4.748_342_6e-2, 6.742_905_4e-3, 3.401_068_6e-2, 4.423_22e-2, 7.502_098e-2, 1.666_663_1e-1];

/// n, r and the rounding error of r, where x = n pi/2 + r and |r| <= pi/4 (slightly more by rounding).
fn angle<B: Floats>(b: &mut B, x: B::V) -> [B::V; 3] {
    let (parts, limit): (&[f32], f64) =
        if b.fuses() { (&HALF_PI, 100_000.0) } else { (&HALF_PI_SHORT, 10_000.0) };
    let (exact, rest) = parts.split_at(parts.len() / 2);
    let q = b.num(x, FRAC_2_PI);
    let n = b.mul(x, q);
    let n = b.round(n);
    let mut r = x;
    for c in exact {
        let c = b.num(x, (-c).into());
        r = b.fma(n, c, r);
    }
    let c = b.num(x, (-rest[0]).into());
    let hi = b.fma(n, c, r);
    let d = b.sub(r, hi);
    let mut lo = b.fma(n, c, d);
    for c in &rest[1..] {
        let c = b.num(x, (-c).into());
        lo = b.fma(n, c, lo);
    }
    let (m, limit) = (b.abs(x), b.num(x, limit));
    b.if_any_less(limit, m, [n, hi, lo], |b| large_angle(b, x))
}

/// x + y as a float, and its rounding error.
fn two_sum<B: Floats>(b: &mut B, x: B::V, y: B::V) -> (B::V, B::V) {
    let s = b.add(x, y);
    let v = b.sub(s, x);
    let u = b.sub(s, v);
    let (x, y) = (b.sub(x, u), b.sub(y, v));
    (s, b.add(x, y))
}

/// Upper and lower half of a float. Products of halves are exact.
fn halves<B: Floats>(b: &mut B, x: B::V) -> (B::V, B::V) {
    let c = b.num(x, 4097.0);
    let t = b.mul(x, c);
    let d = b.sub(t, x);
    let hi = b.sub(t, d);
    (hi, b.sub(x, hi))
}

/// The rounding error of the product p of x and c.
fn product_rest<B: Floats>(b: &mut B, x: B::V, c: B::V, p: B::V) -> B::V {
    let minus = b.neg(p);
    if b.fuses() {
        return b.fma(x, c, minus);
    }
    let ((xh, xl), (ch, cl)) = (halves(b, x), halves(b, c));
    [(xh, ch), (xh, cl), (xl, ch), (xl, cl)].into_iter().fold(minus, |sum, (x, c)| {
        let p = b.mul(x, c);
        b.add(sum, p)
    })
}

/// As `angle`, for |x| >= 2^13.
fn large_angle<B: Floats>(b: &mut B, x: B::V) -> [B::V; 3] {
    let scale = b.num(x, 1.0 / 18_446_744_073_709_551_616.0);
    let xs = b.mul(x, scale);
    let zero = b.num(x, 0.0);
    let mut sum = [zero; 3];
    let mut add = |b: &mut B, t: B::V, large: bool| {
        let t = if large {
            let (quarter, four) = (b.num(x, 0.25), b.num(x, -4.0));
            let k = b.mul(t, quarter);
            let k = b.round(k);
            b.fma(k, four, t)
        } else {
            t
        };
        let (s, e) = two_sum(b, sum[0], t);
        let (s1, e) = two_sum(b, sum[1], e);
        sum = [s, s1, b.add(sum[2], e)];
    };
    for (i, c) in TWO_OVER_PI.into_iter().enumerate() {
        let c = b.num(x, c.into());
        let p = b.mul(xs, c);
        let e = product_rest(b, xs, c, p);
        // Part i times the largest float is less than 2^(128 - 24 i).
        add(b, p, i < 6);
        add(b, e, i < 5);
    }
    let n = b.round(sum[0]);
    let f = b.sub(sum[0], n);
    let (f, e) = two_sum(b, f, sum[1]);
    let e = b.add(e, sum[2]);
    let (p0, p1) = (b.num(x, HALF_PI[0].into()), b.num(x, HALF_PI[1].into()));
    let hi = b.mul(f, p0);
    let lo = product_rest(b, f, p0, hi);
    let lo = b.fma(f, p1, lo);
    [n, hi, b.fma(e, p0, lo)]
}

/// sin(x + turn pi/2), turn 0 or 1.
pub(super) fn sine<B: Floats>(b: &mut B, x: B::V, turn: f32) -> B::V {
    let [n, hi, lo] = angle(b, x);
    let z = b.mul(hi, hi);
    let p = poly(b, z, &SIN);
    let cube = b.mul(hi, z);
    let t = b.fma(cube, p, lo);
    let sin = b.add(hi, t);
    let (minus_half, one) = (b.num(x, -0.5), b.num(x, 1.0));
    let p = poly(b, z, &COS);
    let p = b.fma(p, z, minus_half);
    let cos = b.fma(p, z, one);
    // Quadrants -2..=2: cos for odd ones, negated for -2, -1 and 2.
    let n = if turn == 0.0 { n } else { b.add(n, one) };
    let (quarter, minus_four) = (b.num(x, 0.25), b.num(x, -4.0));
    let k = b.mul(n, quarter);
    let k = b.round(k);
    let q = b.fma(k, minus_four, n);
    let m = b.abs(q);
    let v = b.if_equal(m, one, cos, sin);
    let d = b.add(q, minus_half);
    let d = b.abs(d);
    let other = b.neg(v);
    let v = b.if_less(one, d, other, v);
    if turn == 0.0 { signed_zero(b, x, v) } else { v }
}

/// x if it is 0, which keeps its sign, else v.
fn signed_zero<B: Floats>(b: &mut B, x: B::V, v: B::V) -> B::V {
    let zero = b.num(x, 0.0);
    b.if_equal(x, zero, x, v)
}

/// The tangent; in odd quadrants -1 / tan r.
pub(super) fn tan<B: Floats>(b: &mut B, x: B::V) -> B::V {
    let [n, hi, lo] = angle(b, x);
    let z = b.mul(hi, hi);
    let p = poly(b, z, &TAN);
    let cube = b.mul(hi, z);
    let lo = b.fma(lo, z, lo);
    let t = b.fma(cube, p, lo);
    let t = b.add(hi, t);
    let (half, minus_two, minus_one, zero) = (b.num(x, 0.5), b.num(x, -2.0), b.num(x, -1.0), b.num(x, 0.0));
    let k = b.mul(n, half);
    let k = b.round(k);
    let odd = b.fma(k, minus_two, n);
    let inverse = b.div(minus_one, t);
    let v = b.if_equal(odd, zero, t, inverse);
    signed_zero(b, x, v)
}

/// pi/2 - v for v in 0..=pi/2.
fn complement<B: Floats>(b: &mut B, v: B::V) -> B::V {
    let (hi, lo) = (b.num(v, HALF_PI[0].into()), b.num(v, HALF_PI[1].into()));
    let d = b.sub(hi, v);
    b.add(d, lo)
}

/// Uses the smaller one of |x| and 1 / |x|.
pub(super) fn atan<B: Floats>(b: &mut B, x: B::V) -> B::V {
    let (m, one) = (b.abs(x), b.num(x, 1.0));
    let (small, large) = (b.lesser(one, m), b.greater(one, m));
    let q = b.div(small, large);
    let z = b.mul(q, q);
    let p = poly(b, z, &ATAN);
    let p = b.mul(p, z);
    let v = b.fma(p, q, q);
    let far = complement(b, v);
    let v = b.if_less(one, m, far, v);
    b.with_sign(v, x)
}

/// asin of v with |v| <= 0.5625.
fn asin_near<B: Floats>(b: &mut B, v: B::V) -> B::V {
    let z = b.mul(v, v);
    let p = poly(b, z, &ASIN);
    let p = b.mul(p, z);
    b.fma(p, v, v)
}

/// Three values: |x|, the border 0.5625, and asin of |x| up to the border, or of sqrt((1 - |x|) / 2) beyond
/// it, which is half of the angle whose cosine is |x|.
fn arc<B: Floats>(b: &mut B, x: B::V) -> [B::V; 3] {
    let (m, half, border) = (b.abs(x), b.num(x, 0.5), b.num(x, 0.5625));
    let minus = b.neg(half);
    let rest = b.fma(m, minus, half);
    let root = b.sqrt(rest);
    let v = b.if_less(border, m, root, m);
    [m, border, asin_near(b, v)]
}

/// The arc sine; NaN beyond 1.
pub(super) fn asin<B: Floats>(b: &mut B, x: B::V) -> B::V {
    let [m, border, v] = arc(b, x);
    let twice = b.add(v, v);
    let far = complement(b, twice);
    let v = b.if_less(border, m, far, v);
    b.with_sign(v, x)
}

/// The arc cosine; NaN beyond 1.
pub(super) fn acos<B: Floats>(b: &mut B, x: B::V) -> B::V {
    let [m, border, v] = arc(b, x);
    let zero = b.num(x, 0.0);
    let twice = b.add(v, v);
    // pi/2 - asin |x| and pi/2 + asin |x|, or v + v and pi - (v + v).
    let near = complement(b, v);
    let minus = b.neg(v);
    let near_below = complement(b, minus);
    let above = b.if_less(border, m, twice, near);
    let rest = complement(b, v);
    let far_below = b.add(rest, rest);
    let below = b.if_less(border, m, far_below, near_below);
    b.if_less(x, zero, below, above)
}
