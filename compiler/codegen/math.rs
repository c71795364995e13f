//! Elementary functions of floats by polynomials, written once for all backends: f32 here, f64 in
//! `math/double.rs`.
//!
//! exp, log: argument reduction of Cephes (S. L. Moshier) and minimax polynomials of single precision. expm1,
//! log1p: the same polynomials, with the rounding errors of the reduction near 1 added back exactly. erf,
//! tanh: a polynomial near 0, elsewhere their distance from 1 as a power of two (erf's polynomial near 0: N.
//! Juffa). If vectors have table lookups: powers of two in sixteenths (P. Tang), and erf piecewise, expanded
//! at points where its value is nearly exact (as S. Gal chose them). `tests/math.rs` checks the errors.

mod circular;
mod double;
mod erf;
mod hyperbolic;
mod remainder;

use crate::nest::UnOp;
use crate::tensor::ElemType;
use erf::erf;
pub use remainder::remainder;

/// Bit patterns of 16 numbers.
pub type Table = [u32; 16];

const fn table(x: [f32; 16]) -> Table {
    let (mut t, mut i) = ([0; 16], 0);
    while i < 16 {
        t[i] = x[i].to_bits();
        i += 1;
    }
    t
}

/// The operations that a backend provides on vectors (or scalars) of f32 or f64. They follow IEEE 754, each
/// rounded once.
pub trait Floats {
    /// A value.
    type V: Copy;
    /// A number in all lanes, rounded to the type of `like`.
    fn num(&mut self, like: Self::V, x: f64) -> Self::V;
    /// a + b.
    fn add(&mut self, a: Self::V, b: Self::V) -> Self::V;
    /// a - b.
    fn sub(&mut self, a: Self::V, b: Self::V) -> Self::V;
    /// a * b.
    fn mul(&mut self, a: Self::V, b: Self::V) -> Self::V;
    /// a / b.
    fn div(&mut self, a: Self::V, b: Self::V) -> Self::V;
    /// a * b + c, rounded once if the target can.
    fn fma(&mut self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// True if `fma` rounds once.
    fn fuses(&self) -> bool;
    /// The results of `rare` in the lanes with `x < y`, of `usual` in the others. `rare` runs only if there
    /// are such lanes.
    fn if_any_less<const N: usize>(
        &mut self,
        x: Self::V,
        y: Self::V,
        usual: [Self::V; N],
        rare: impl FnOnce(&mut Self) -> [Self::V; N],
    ) -> [Self::V; N];
    /// `a < b ? a : b`: b if either is NaN.
    fn lesser(&mut self, a: Self::V, b: Self::V) -> Self::V;
    /// `a > b ? a : b`: b if either is NaN.
    fn greater(&mut self, a: Self::V, b: Self::V) -> Self::V;
    /// `x < y ? a : b`; b if either is NaN.
    fn if_less(&mut self, x: Self::V, y: Self::V, a: Self::V, b: Self::V) -> Self::V;
    /// `x == y ? a : b`.
    fn if_equal(&mut self, x: Self::V, y: Self::V, a: Self::V, b: Self::V) -> Self::V;
    /// |a|.
    fn abs(&mut self, a: Self::V) -> Self::V;
    /// -a.
    fn neg(&mut self, a: Self::V) -> Self::V;
    /// -|a|.
    fn neg_abs(&mut self, a: Self::V) -> Self::V {
        let m = self.abs(a);
        self.neg(m)
    }
    /// The square root.
    fn sqrt(&mut self, a: Self::V) -> Self::V;
    /// Rounds to an integer, ties to even.
    fn round(&mut self, a: Self::V) -> Self::V;
    /// y * 2^n for an integer n in -151..=129 (f64: -1077..=1025) and y in [0.5, 2], rounded once. On
    /// backends with tables n may have a fraction, and its floor is used, here and below.
    fn scale(&mut self, y: Self::V, n: Self::V) -> Self::V;
    /// As `scale`, if the result is normal: n is added to the exponent.
    fn scale_normal(&mut self, y: Self::V, n: Self::V) -> Self::V;
    /// y * 2^n, rounded once, for y of 0 or 1 and an integer n in -150..=100.
    fn scale_unit(&mut self, y: Self::V, n: Self::V) -> Self::V {
        self.scale(y, n)
    }
    /// |a| with the sign of b, for a that is not negative.
    fn with_sign(&mut self, a: Self::V, b: Self::V) -> Self::V;
    /// True if a multiplication that underflows takes about a hundred times as long.
    fn underflow_is_slow(&self) -> bool {
        false
    }
    /// True if a table of 16 entries can be looked up in a few operations.
    fn has_tables(&self) -> bool {
        false
    }
    /// The entry of a table of 16 at the lowest four bits of an index. Requires tables.
    fn entry(&mut self, index: Self::V, _table: &'static Table) -> Self::V {
        index
    }
    /// For a positive normal x: e and m with x = 2^e m and m in [0.5, 1).
    fn split(&mut self, x: Self::V) -> (Self::V, Self::V);
}

/// One of the [elementary functions](UnOp::is_elementary) of values of a type (f32 or f64); NaN stays NaN.
pub fn function<B: Floats>(b: &mut B, op: UnOp, ty: ElemType, x: B::V) -> B::V {
    if ty == ElemType::F64 {
        return double::function(b, op, x);
    }
    match op {
        UnOp::Exp => exp(b, x),
        UnOp::Log => log(b, x),
        UnOp::Tanh => tanh(b, x),
        UnOp::Erf => erf(b, x),
        UnOp::Sigmoid => sigmoid(b, x),
        UnOp::Expm1 => expm1(b, x),
        UnOp::Sin => circular::sine(b, x, 0.0),
        UnOp::Cos => circular::sine(b, x, 1.0),
        UnOp::Tan => circular::tan(b, x),
        UnOp::Asin => circular::asin(b, x),
        UnOp::Acos => circular::acos(b, x),
        UnOp::Atan => circular::atan(b, x),
        UnOp::Sinh => hyperbolic::sinh(b, x),
        UnOp::Cosh => hyperbolic::cosh(b, x),
        UnOp::Asinh => hyperbolic::asinh(b, x),
        UnOp::Acosh => hyperbolic::acosh(b, x),
        UnOp::Atanh => hyperbolic::atanh(b, x),
        _ => log1p(b, x),
    }
}

/// x^p for the exponents of [`crate::nest::patterns::constant_power`].
pub fn power<B: Floats>(b: &mut B, x: B::V, p: f64) -> B::V {
    if p < 0.0 {
        let (one, y) = (b.num(x, 1.0), power(b, x, -p));
        return b.div(one, y);
    }
    if p == 0.5 {
        // Unlike the square root, the power of -0 is 0 and that of -inf is inf.
        let (zero, inf, minus_inf) = (b.num(x, 0.0), b.num(x, f64::INFINITY), b.num(x, f64::NEG_INFINITY));
        let r = b.sqrt(x);
        let r = b.add(r, zero);
        return b.if_equal(x, minus_inf, inf, r);
    }
    if p == 1.0 {
        return x;
    }
    if p < 1.0 {
        let half = power(b, x, 0.5);
        let quarter = b.sqrt(half);
        return if p == 0.25 { quarter } else { b.mul(half, quarter) };
    }
    let square = b.mul(x, x);
    match p {
        2.0 => square,
        3.0 => b.mul(square, x),
        _ => b.mul(square, square),
    }
}

/// Horner's rule, highest coefficient first.
fn poly<B: Floats, C: Copy + Into<f64>>(b: &mut B, x: B::V, coefficients: &[C]) -> B::V {
    let mut r = b.num(x, coefficients[0].into());
    for c in &coefficients[1..] {
        let c = b.num(x, (*c).into());
        r = b.fma(r, x, c);
    }
    r
}

/// Clamps x; NaN is kept.
fn clamped<B: Floats>(b: &mut B, x: B::V, lo: f64, hi: f64) -> B::V {
    let (hi, lo) = (b.num(x, hi), b.num(x, lo));
    let c = b.lesser(hi, x);
    b.greater(lo, c)
}

/// (e^r - 1 - r) / r^2 for |r| <= ln 2 / 2, lowest coefficient first.
const EXP: [f32; 5] = [0.499_999_94, 0.166_665_21, 0.041_668_39, 0.008_368_711, 0.001_381_461];

/// n and e^r - 1, where x = n ln 2 + r and |r| <= ln 2 / 2.
fn reduced<B: Floats>(b: &mut B, x: B::V) -> (B::V, B::V) {
    let (n, r) = split_off_powers(b, x);
    (n, series(b, r, EXP))
}

/// n and r with x = n ln 2 + r and |r| <= ln 2 / 2.
fn split_off_powers<B: Floats>(b: &mut B, x: B::V) -> (B::V, B::V) {
    let log2e = b.num(x, std::f64::consts::LOG2_E);
    let n = b.mul(x, log2e);
    let n = b.round(n);
    let (c1, c2) = (b.num(x, -0.693_359_4), b.num(x, 2.121_944_4e-4));
    let r = b.fma(n, c1, x);
    (n, b.fma(n, c2, r))
}

/// r + r^2 P(r), where P has these coefficients.
fn series<B: Floats>(b: &mut B, r: B::V, coefficients: [f32; 5]) -> B::V {
    let rr = b.mul(r, r);
    // Estrin's scheme: its dependency chain is half as long as Horner's.
    let [c0, c1, c2, c3, c4] = coefficients.map(|c| b.num(r, c.into()));
    let (p, q) = (b.fma(c1, r, c0), b.fma(c3, r, c2));
    let q = b.fma(c4, rr, q);
    let p = b.fma(q, rr, p);
    b.fma(p, rr, r)
}

/// Below this e^x rounds to 0.
const ZERO: f64 = -103.972_08;

/// e^x.
fn exp<B: Floats>(b: &mut B, x: B::V) -> B::V {
    if b.has_tables() {
        return exp_in_pieces(b, x, ZERO);
    }
    let x = clamped(b, x, -104.0, 89.0);
    let (y, n) = mantissa(b, x);
    let y = without_underflow(b, x, ZERO, y);
    b.scale(y, n)
}

/// Least limit of [`exp_or_zero`]: e^x is normal from here on.
pub const NORMAL: f64 = -87.0;

/// e^x for x >= `limit`, 0 below; `limit` is [`NORMAL`] or more.
pub fn exp_or_zero<B: Floats>(b: &mut B, x: B::V, limit: f64) -> B::V {
    if b.has_tables() {
        return exp_in_pieces(b, x, limit);
    }
    let c = clamped(b, x, limit, 89.0);
    let (y, n) = mantissa(b, c);
    let y = b.scale_normal(y, n);
    let (zero, limit) = (b.num(x, 0.0), b.num(x, limit));
    b.if_less(x, limit, zero, y)
}

/// Returns y in [0.5, 2], but 0 for x < `limit`, where the product with the power of two rounds to 0. A
/// product with 0 is as fast as others.
fn without_underflow<B: Floats>(b: &mut B, x: B::V, limit: f64, y: B::V) -> B::V {
    if !b.underflow_is_slow() {
        return y;
    }
    let (zero, limit) = (b.num(x, 0.0), b.num(x, limit));
    b.if_less(x, limit, zero, y)
}

/// y and n with e^x = 2^n y.
fn mantissa<B: Floats>(b: &mut B, x: B::V) -> (B::V, B::V) {
    let (n, t) = reduced(b, x);
    let one = b.num(x, 1.0);
    (b.add(t, one), n)
}

/// 2^(i/16).
#[allow(clippy::approx_constant)]
static POWERS: Table = table([
    1.0, 1.0442737, 1.0905077, 1.1387886, 1.1892071, 1.2418578, 1.2968396, 1.3542556, 1.4142135, 1.4768262,
    1.5422108, 1.6104903, 1.6817929, 1.7562522, 1.8340081, 1.9152066,
]);
/// Rounds numbers to multiples of 1/16 when added: the last four bits of the sum are the sixteenths.
const SIXTEENTHS: f64 = 786_432.0;

/// e^x for x >= `limit`, 0 below, with n a multiple of 1/16 whose fraction is looked up in a table. The
/// remaining r is so small that a short polynomial suffices. The error is slightly larger, too large for
/// sigmoid.
fn exp_in_pieces<B: Floats>(b: &mut B, x: B::V, limit: f64) -> B::V {
    let (hi, zero, limit) = (b.num(x, 89.0), b.num(x, 0.0), b.num(x, limit));
    let x = b.lesser(hi, x);
    let (log2e, shift) = (b.num(x, std::f64::consts::LOG2_E), b.num(x, SIXTEENTHS));
    let sum = b.fma(x, log2e, shift);
    let n = b.sub(sum, shift);
    let (c1, c2) = (b.num(x, -0.693_359_4), b.num(x, 2.121_944_4e-4));
    let r = b.fma(n, c1, x);
    let r = b.fma(n, c2, r);
    let (rr, c2, c3) = (b.mul(r, r), b.num(x, 0.5), b.num(x, 1.0 / 6.0));
    let p = b.fma(r, c3, c2);
    let p = b.fma(p, rr, r);
    let power = b.entry(sum, &POWERS);
    let y = b.fma(p, power, power);
    // Far below the limit y is not a number, and 0 times 2^n is 0 for any n.
    let y = b.if_less(x, limit, zero, y);
    b.scale(y, n)
}

/// Coefficients of 2^f for |f| <= 1/2. The linear one is optimal for this degree and differs from ln 2.
#[allow(clippy::approx_constant)]
const EXP2: [f32; 6] = [1.326_472_7e-3, 9.671_513e-3, 5.550_733_6e-2, 2.402_224_2e-1, 6.931_47e-1, 1.0];

/// (2^f - 1) / f for |f| <= 1/32.
#[allow(clippy::approx_constant)]
const EXP2_NEAR: [f32; 3] = [5.550_411e-2, 2.402_265e-1, 6.931_472e-1];

/// 2^x with an error of 2^-23, if it is normal: sufficient if it is added to something larger.
fn exp2_rough<B: Floats>(b: &mut B, x: B::V) -> B::V {
    if b.has_tables() {
        let shift = b.num(x, SIXTEENTHS);
        let sum = b.add(x, shift);
        let n = b.sub(sum, shift);
        let f = b.sub(x, n);
        let p = poly(b, f, &EXP2_NEAR);
        let p = b.mul(p, f);
        let power = b.entry(sum, &POWERS);
        let y = b.fma(p, power, power);
        return b.scale_normal(y, n);
    }
    let n = b.round(x);
    let f = b.sub(x, n);
    let y = poly(b, f, &EXP2);
    b.scale_normal(y, n)
}

/// 1 / (1 + e^-x). With x = n ln 2 + r this is 2^n / (2^n + e^-r), which needs neither the sign of x nor a
/// case for it. The error is up to 2.5 units in the last place.
fn sigmoid<B: Floats>(b: &mut B, x: B::V) -> B::V {
    // From 17 on the result is 1.
    let x = clamped(b, x, -104.0, 69.0);
    let (n, r) = split_off_powers(b, x);
    // 1 - e^-r.
    let [c0, c1, c2, c3, c4] = EXP;
    let below_1 = series(b, r, [-c0, c1, -c2, c3, -c4]);
    let one = b.num(x, 1.0);
    let unit = without_underflow(b, x, ZERO, one);
    let power = b.scale_unit(unit, n);
    let sum = b.add(power, one);
    let sum = b.sub(sum, below_1);
    b.div(power, sum)
}

/// x = 2^e m with m in [sqrt 1/2, sqrt 2): log x = e ln 2 + log m.
fn log<B: Floats>(b: &mut B, x: B::V) -> B::V {
    log_by(b, x, (f32::MIN_POSITIVE.into(), 23), log_near_1)
}

/// e ln 2 + log m with x = 2^e m, computed by `near_1` from m - 1 and e. Below `least` x is subnormal, and is
/// scaled by 2^`up`.
fn log_by<B: Floats>(
    b: &mut B,
    x: B::V,
    (least, up): (f64, i32),
    near_1: fn(&mut B, B::V, B::V) -> B::V,
) -> B::V {
    let (least, scale) = (b.num(x, least), b.num(x, f64::from(up).exp2()));
    let raised = b.mul(x, scale);
    let y = b.if_less(x, least, raised, x);
    let (e, m) = b.split(y);
    let (zero, shift) = (b.num(x, 0.0), b.num(x, f64::from(up)));
    let shift = b.if_less(x, least, shift, zero);
    let ef = b.sub(e, shift);
    let root = b.num(x, std::f64::consts::FRAC_1_SQRT_2);
    let one = b.num(x, 1.0);
    let (m2, e2) = (b.add(m, m), b.sub(ef, one));
    let ef = b.if_less(m, root, e2, ef);
    let m = b.if_less(m, root, m2, m);
    let f = b.sub(m, one);
    let y = near_1(b, f, ef);
    log_limits(b, x, y)
}

/// Handles arguments that are not positive numbers: log 0 = -inf, log inf = inf, and NaN for negative numbers
/// and NaN.
fn log_limits<B: Floats>(b: &mut B, x: B::V, y: B::V) -> B::V {
    let (zero, inf, minus_inf, nan) =
        (b.num(x, 0.0), b.num(x, f64::INFINITY), b.num(x, f64::NEG_INFINITY), b.num(x, f64::NAN));
    let y = b.if_less(zero, x, y, nan);
    let y = b.if_equal(x, zero, minus_inf, y);
    b.if_equal(x, inf, inf, y)
}

/// e ln 2 + log(1 + f) for 1 + f in [sqrt 1/2, sqrt 2).
fn log_near_1<B: Floats>(b: &mut B, f: B::V, ef: B::V) -> B::V {
    let x = f;
    let p = poly::<B, f32>(
        b,
        f,
        &[
            7.037_683_6e-2,
            -1.151_461e-1,
            1.167_699_9e-1,
            -1.242_014_1e-1,
            1.424_932_3e-1,
            -1.666_805_7e-1,
            2.000_071_5e-1,
            -2.499_999_4e-1,
            3.333_333e-1,
        ],
    );
    let z = b.mul(f, f);
    let fz = b.mul(f, z);
    let y = b.mul(fz, p);
    let c = b.num(x, -2.121_944_4e-4);
    let y = b.fma(ef, c, y);
    let h = b.num(x, -0.5);
    let y = b.fma(z, h, y);
    let y = b.add(f, y);
    let c = b.num(x, 0.693_359_4);
    b.fma(ef, c, y)
}

/// Near 0 a polynomial, elsewhere 1 - 2 / (1 + e^2|x|).
fn tanh<B: Floats>(b: &mut B, x: B::V) -> B::V {
    let (m, one, limit) = (b.abs(x), b.num(x, 1.0), b.num(x, 10.0));
    let m = b.lesser(limit, m);
    let z = b.mul(m, m);
    let p = poly::<B, f32>(
        b,
        z,
        &[-5.830_325e-3, 2.074_496_3e-2, -5.377_024_4e-2, 1.333_178_4e-1, -3.333_329_3e-1],
    );
    let p = b.mul(p, z);
    let near = b.fma(p, m, m);
    let factor = b.num(x, 2.0 * std::f64::consts::LOG2_E);
    let twice = b.mul(m, factor);
    let e = exp2_rough(b, twice);
    let below = b.add(e, one);
    let minus_two = b.num(x, -2.0);
    let q = b.div(minus_two, below);
    let far = b.add(q, one);
    let border = b.num(x, 0.6);
    let r = b.if_less(m, border, near, far);
    b.with_sign(r, x)
}

fn expm1<B: Floats>(b: &mut B, x: B::V) -> B::V {
    let x = clamped(b, x, -20.0, 89.0);
    let (n, t) = reduced(b, x);
    minus_1(b, n, t)
}

/// 2^n (1 + t) - 1 = 2 (2^(n-1) t + 2^(n-1) - 1/2), computed in halves so that only the last step may
/// overflow.
fn minus_1<B: Floats>(b: &mut B, n: B::V, t: B::V) -> B::V {
    let (zero, half) = (b.num(t, 0.0), b.num(t, 0.5));
    let h = b.scale_normal(half, n);
    let d = b.sub(h, half);
    let y = b.fma(h, t, d);
    let y = b.add(y, y);
    // Halves of subnormal numbers may be inexact.
    b.if_equal(n, zero, t, y)
}

fn log1p<B: Floats>(b: &mut B, x: B::V) -> B::V {
    log1p_by(b, x, log_near_1)
}

/// With 1 + x = 2^e m, log1p x = e ln 2 + log m, where m - 1 = 2^-e x + (2^-e - 1) is rounded once.
fn log1p_by<B: Floats>(b: &mut B, x: B::V, near_1: fn(&mut B, B::V, B::V) -> B::V) -> B::V {
    let one = b.num(x, 1.0);
    let u = b.add(x, one);
    let (e, m) = b.split(u);
    let root = b.num(x, std::f64::consts::FRAC_1_SQRT_2);
    let lower = b.sub(e, one);
    let e = b.if_less(m, root, lower, e);
    let minus = b.neg(e);
    let s = b.scale(one, minus);
    let d = b.sub(s, one);
    let f = b.fma(x, s, d);
    let y = near_1(b, f, e);
    log_limits(b, u, y)
}
