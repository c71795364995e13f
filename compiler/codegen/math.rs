//! Elementary functions of f32 by polynomials, written once for every backend.
//!
//! exp, log, expm1, log1p: Cephes (S. L. Moshier), argument reduction and minimax polynomials of single precision.
//! tanh, erf: rational minimax approximations on a clamped interval. `tests/math.rs` holds the errors.

use crate::nest::UnOp;

/// What a backend must have: operations on vectors (or scalars) of f32, IEEE 754, each rounded once.
pub trait Floats {
    /// A value.
    type V: Copy;
    /// A number in all lanes.
    fn num(&mut self, like: Self::V, x: f32) -> Self::V;
    /// a + b.
    fn add(&mut self, a: Self::V, b: Self::V) -> Self::V;
    /// a - b.
    fn sub(&mut self, a: Self::V, b: Self::V) -> Self::V;
    /// a * b.
    fn mul(&mut self, a: Self::V, b: Self::V) -> Self::V;
    /// a / b.
    fn div(&mut self, a: Self::V, b: Self::V) -> Self::V;
    /// a * b + c, rounded once where the target can.
    fn fma(&mut self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
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
    /// To an integer value, halves to even.
    fn round(&mut self, a: Self::V) -> Self::V;
    /// y * 2^n for an integer value n in -151..=129 and y in [0.5, 2], rounded once.
    fn scale(&mut self, y: Self::V, n: Self::V) -> Self::V;
    /// For a positive normal x: e and m with x = 2^e m and m in [0.5, 1).
    fn split(&mut self, x: Self::V) -> (Self::V, Self::V);
}

/// Functions that this module has.
pub fn has(op: UnOp) -> bool {
    matches!(op, UnOp::Exp | UnOp::Log | UnOp::Erf | UnOp::Tanh | UnOp::Sigmoid | UnOp::Expm1 | UnOp::Log1p)
}

/// One of them; NaN stays NaN.
pub fn function<B: Floats>(b: &mut B, op: UnOp, x: B::V) -> B::V {
    match op {
        UnOp::Exp => exp(b, x),
        UnOp::Log => log(b, x),
        UnOp::Tanh => tanh(b, x),
        UnOp::Erf => erf(b, x),
        UnOp::Sigmoid => {
            let n = b.neg(x);
            let e = exp(b, n);
            let one = b.num(x, 1.0);
            let d = b.add(e, one);
            b.div(one, d)
        }
        UnOp::Expm1 => expm1(b, x),
        _ => log1p(b, x),
    }
}

/// Horner's rule, highest coefficient first.
fn poly<B: Floats>(b: &mut B, x: B::V, coefficients: &[f32]) -> B::V {
    let mut r = b.num(x, coefficients[0]);
    for c in &coefficients[1..] {
        let c = b.num(x, *c);
        r = b.fma(r, x, c);
    }
    r
}

/// Between two numbers; NaN passes.
fn clamped<B: Floats>(b: &mut B, x: B::V, lo: f32, hi: f32) -> B::V {
    let (hi, lo) = (b.num(x, hi), b.num(x, lo));
    let c = b.lesser(hi, x);
    b.greater(lo, c)
}

const EXP: [f32; 6] = [1.987_569_1e-4, 1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 5e-1];

/// e^x = 2^n e^r with |r| <= ln 2 / 2.
fn exp<B: Floats>(b: &mut B, x: B::V) -> B::V {
    let x = clamped(b, x, -104.0, 89.0);
    let log2e = b.num(x, std::f32::consts::LOG2_E);
    let n = b.mul(x, log2e);
    let n = b.round(n);
    let (c1, c2) = (b.num(x, -0.693_359_4), b.num(x, 2.121_944_4e-4));
    let r = b.fma(n, c1, x);
    let r = b.fma(n, c2, r);
    let p = poly(b, r, &EXP);
    let rr = b.mul(r, r);
    let one = b.num(x, 1.0);
    let base = b.add(r, one);
    let y = b.fma(p, rr, base);
    b.scale(y, n)
}

/// x = 2^e m with m in [sqrt 1/2, sqrt 2): log x = e ln 2 + log m.
fn log<B: Floats>(b: &mut B, x: B::V) -> B::V {
    let (least, scale) = (b.num(x, f32::MIN_POSITIVE), b.num(x, 8_388_608.0));
    let up = b.mul(x, scale);
    let y = b.if_less(x, least, up, x);
    let (e, m) = b.split(y);
    let (zero, shift) = (b.num(x, 0.0), b.num(x, 23.0));
    let shift = b.if_less(x, least, shift, zero);
    let ef = b.sub(e, shift);
    let root = b.num(x, std::f32::consts::FRAC_1_SQRT_2);
    let one = b.num(x, 1.0);
    let (m2, e2) = (b.add(m, m), b.sub(ef, one));
    let ef = b.if_less(m, root, e2, ef);
    let m = b.if_less(m, root, m2, m);
    let f = b.sub(m, one);
    let p = poly(b, f, &[7.037_683_6e-2, -1.151_461e-1, 1.167_699_9e-1, -1.242_014_1e-1, 1.424_932_3e-1, -1.666_805_7e-1, 2.000_071_5e-1, -2.499_999_4e-1, 3.333_333e-1]);
    let z = b.mul(f, f);
    let fz = b.mul(f, z);
    let y = b.mul(fz, p);
    let c = b.num(x, -2.121_944_4e-4);
    let y = b.fma(ef, c, y);
    let h = b.num(x, -0.5);
    let y = b.fma(z, h, y);
    let y = b.add(f, y);
    let c = b.num(x, 0.693_359_4);
    let y = b.fma(ef, c, y);
    // log 0 = -inf, log inf = inf, of negative numbers and NaN NaN.
    let (inf, minus_inf, nan) = (b.num(x, f32::INFINITY), b.num(x, f32::NEG_INFINITY), b.num(x, f32::NAN));
    let y = b.if_less(zero, x, y, nan);
    let y = b.if_equal(x, zero, minus_inf, y);
    b.if_equal(x, inf, inf, y)
}

fn tanh<B: Floats>(b: &mut B, x: B::V) -> B::V {
    let c = clamped(b, x, -7.905_311, 7.905_311);
    let z = b.mul(c, c);
    let p = poly(b, z, &[-2.760_768_5e-16, 2.000_188e-13, -8.604_672e-11, 5.122_297e-8, 1.485_722_4e-5, 6.372_619_4e-4, 4.893_524_6e-3]);
    let q = poly(b, z, &[1.198_258_4e-6, 1.185_347_1e-4, 2.268_434_6e-3, 4.893_525e-3]);
    let p = b.mul(p, c);
    let r = b.div(p, q);
    // Where x^2 is below the rounding of 1, tanh x is x.
    let (m, small) = (b.abs(x), b.num(x, 4e-4));
    b.if_less(m, small, x, r)
}

fn erf<B: Floats>(b: &mut B, x: B::V) -> B::V {
    let c = clamped(b, x, -4.0, 4.0);
    let z = b.mul(c, c);
    let p = poly(b, z, &[-2.726_142_3e-10, 2.770_681_4e-8, -2.101_024e-6, -5.692_506_4e-5, -7.349_906_3e-4, -2.954_6e-3, -1.609_603_3e-2]);
    let q = poly(b, z, &[-1.456_607_2e-5, -2.133_740_6e-4, -1.682_827e-3, -7.373_329e-3, -1.426_473_9e-2]);
    let p = b.mul(p, c);
    b.div(p, q)
}

fn expm1<B: Floats>(b: &mut B, x: B::V) -> B::V {
    let one = b.num(x, 1.0);
    let e = exp(b, x);
    let far = b.sub(e, one);
    let p = poly(b, x, &EXP);
    let xx = b.mul(x, x);
    let near = b.fma(p, xx, x);
    let (m, limit) = (b.abs(x), b.num(x, 0.34));
    b.if_less(m, limit, near, far)
}

/// log(u) x / (u - 1) with u = 1 + x rounded: the errors of both cancel (Kahan).
fn log1p<B: Floats>(b: &mut B, x: B::V) -> B::V {
    let one = b.num(x, 1.0);
    let u = b.add(x, one);
    let d = b.sub(u, one);
    let l = log(b, u);
    // The quotient first: it is near 1, while a product could overflow.
    let q = b.div(x, d);
    let r = b.mul(l, q);
    let (zero, inf) = (b.num(x, 0.0), b.num(x, f32::INFINITY));
    let r = b.if_equal(x, inf, x, r);
    b.if_equal(d, zero, x, r)
}
