//! sinh, cosh and the inverses of the hyperbolic functions: polynomials near 0, elsewhere by exp and log.

use super::{Floats, clamped, log_near_1, log1p, poly, reduced};

/// (sinh x - x) / x^3 for |x| <= 1, (asinh x - x) / x^3 for x^2 <= 1/2, (atanh x - x) / x^3 for |x| <= 1/2,
/// in powers of x^2.
const SINH: [f32; 4] = [2.782_213_2e-6, 1.984_289_6e-4, 8.333_310_5e-3, 1.666_666_7e-1];
const ASINH: [f32; 7] = [
    -3.429_598_2e-3,
    1.120_999_3e-2,
    -2.020_060_3e-2,
    2.993_061_2e-2,
    -4.459_097_2e-2,
    7.499_712e-2,
    -1.666_666_1e-1,
];
const ATANH: [f32; 6] =
    [1.763_993_8e-1, 5.158_958e-2, 1.181_676_24e-1, 1.422_374_5e-1, 2.000_245_5e-1, 3.333_330_2e-1];

/// x + x^3 P(x^2).
fn near<B: Floats>(b: &mut B, x: B::V, p: &[f32]) -> B::V {
    let z = b.mul(x, x);
    let p = poly(b, z, p);
    let p = b.mul(p, z);
    b.fma(p, x, x)
}

/// e^m / 2 and e^-m / 2 for m >= 0.
fn half_exps<B: Floats>(b: &mut B, m: B::V) -> (B::V, B::V) {
    let m = clamped(b, m, 0.0, 90.0);
    let (n, t) = reduced(b, m);
    let (one, quarter) = (b.num(m, 1.0), b.num(m, 0.25));
    let y = b.add(t, one);
    let n = b.sub(n, one);
    let e = b.scale(y, n);
    (e, b.div(quarter, e))
}

pub(super) fn sinh<B: Floats>(b: &mut B, x: B::V) -> B::V {
    let (m, one) = (b.abs(x), b.num(x, 1.0));
    let (e, f) = half_exps(b, m);
    let far = b.sub(e, f);
    let close = near(b, m, &SINH);
    let v = b.if_less(m, one, close, far);
    b.with_sign(v, x)
}

pub(super) fn cosh<B: Floats>(b: &mut B, x: B::V) -> B::V {
    let m = b.abs(x);
    let (e, f) = half_exps(b, m);
    b.add(e, f)
}

/// log w + n ln 2 for normal w >= 1.
fn log_and<B: Floats>(b: &mut B, w: B::V, n: B::V) -> B::V {
    let (e, m) = b.split(w);
    let (root, one) = (b.num(w, std::f64::consts::FRAC_1_SQRT_2), b.num(w, 1.0));
    let (twice, lower) = (b.add(m, m), b.sub(e, one));
    let e = b.if_less(m, root, lower, e);
    let m = b.if_less(m, root, twice, m);
    let (f, e) = (b.sub(m, one), b.add(e, n));
    log_near_1(b, f, e)
}

/// log(x + sqrt(x^2 + 1)); for large x, log 2x.
pub(super) fn asinh<B: Floats>(b: &mut B, x: B::V) -> B::V {
    let (m, one, zero, border, most, inf) =
        (b.abs(x), b.num(x, 1.0), b.num(x, 0.0), b.num(x, 0.7), b.num(x, 10_000.0), b.num(x, f64::INFINITY));
    let close = near(b, m, &ASINH);
    let square = b.fma(m, m, one);
    let root = b.sqrt(square);
    let w = b.add(m, root);
    let w = b.if_less(m, most, w, m);
    let n = b.if_less(m, most, zero, one);
    let far = log_and(b, w, n);
    let v = b.if_less(m, border, close, far);
    let v = b.if_less(m, inf, v, m);
    b.with_sign(v, x)
}

/// log1p(t + sqrt(2 t + t^2)) with t = x - 1; for large x, log 2x; NaN below 1.
pub(super) fn acosh<B: Floats>(b: &mut B, x: B::V) -> B::V {
    let (one, two, most, inf, nan) =
        (b.num(x, 1.0), b.num(x, 2.0), b.num(x, 10_000.0), b.num(x, f64::INFINITY), b.num(x, f64::NAN));
    let t = b.sub(x, one);
    let s = b.add(t, two);
    let s = b.mul(s, t);
    let s = b.sqrt(s);
    let w = b.add(s, t);
    let near = log1p(b, w);
    let far = log_and(b, x, one);
    let v = b.if_less(most, x, far, near);
    let v = b.if_less(x, one, nan, v);
    b.if_equal(x, inf, x, v)
}

/// log1p(2 m / (1 - m)) / 2 with m = |x|; NaN beyond 1.
pub(super) fn atanh<B: Floats>(b: &mut B, x: B::V) -> B::V {
    let (m, one, half) = (b.abs(x), b.num(x, 1.0), b.num(x, 0.5));
    let close = near(b, m, &ATANH);
    let (twice, rest) = (b.add(m, m), b.sub(one, m));
    let w = b.div(twice, rest);
    let far = log1p(b, w);
    let far = b.mul(far, half);
    let v = b.if_less(m, half, close, far);
    b.with_sign(v, x)
}
