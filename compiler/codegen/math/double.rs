//! Elementary functions of f64; see [`super`] for f32.
//!
//! exp, expm1: Cody and Waite's reduction and a minimax polynomial of degree 11. log, log1p: FreeBSD's series
//! in f / (2 + f). tanh: Cephes' rational function near 0 (S. L. Moshier), elsewhere 1 - 2 / (1 + e^2x). erf:
//! polynomials, near 0 for erf x / x, elsewhere for the logarithm of 1 - erf x. Products with numbers of an
//! exponent's size are exact, so that the error bounds also hold without fused operations. `tests/math.rs`
//! checks the errors.

use super::{Floats, clamped, log_by, log1p_by, minus_1, poly, without_underflow};
use crate::nest::UnOp;

/// One of the elementary functions.
pub(super) fn function<B: Floats>(b: &mut B, op: UnOp, x: B::V) -> B::V {
    match op {
        UnOp::Exp => exp(b, x),
        UnOp::Log => log(b, x),
        UnOp::Tanh => tanh(b, x),
        UnOp::Erf => erf(b, x),
        UnOp::Sigmoid => sigmoid(b, x),
        UnOp::Expm1 => expm1(b, x),
        _ => log1p(b, x),
    }
}

/// Below this e^x is 0.
const LEAST: f64 = -746.0;
/// Below this e^x rounds to 0.
const ZERO: f64 = -745.133_219_101_941_2;
/// From here on e^x is infinite.
const MOST: f64 = 710.0;
/// ln 2 in two parts, of which the first has 33 bits, so that its products with exponents are exact.
const LN2: [f64; 2] = [6.931_471_803_691_238e-1, 1.908_214_929_270_587_7e-10];
/// (e^r - 1 - r) / r^2 for |r| <= ln 2 / 2, lowest coefficient first.
const EXP: [f64; 10] = [
    0.500_000_000_000_000_6,
    0.166_666_666_666_666_85,
    0.041_666_666_666_573_794,
    0.008_333_333_333_314_756,
    0.001_388_888_893_236_357,
    0.000_198_412_699_027_043_2,
    2.480_150_443_333_906_8e-5,
    2.755_722_821_978_045_5e-6,
    2.762_634_045_070_095_4e-7,
    2.511_439_667_937_282_4e-8,
];

/// e^r - 1 for |r| <= ln 2 / 2; `low` is added to r.
fn exp_near_0<B: Floats>(b: &mut B, r: B::V, low: Option<B::V>) -> B::V {
    let z = b.mul(r, r);
    // Even and odd powers separately: this halves the dependency chain.
    let even: Vec<f64> = EXP.iter().step_by(2).rev().copied().collect();
    let odd: Vec<f64> = EXP.iter().skip(1).step_by(2).rev().copied().collect();
    let (p, q) = (poly(b, z, &even), poly(b, z, &odd));
    let p = b.fma(q, r, p);
    match low {
        Some(low) => {
            let p = b.fma(p, z, low);
            b.add(p, r)
        }
        None => b.fma(p, z, r),
    }
}

/// n, r and the rounding error of r, where x = n ln 2 + r and |r| <= ln 2 / 2.
fn reduced<B: Floats>(b: &mut B, x: B::V) -> (B::V, B::V, B::V) {
    let log2e = b.num(x, std::f64::consts::LOG2_E);
    let n = b.mul(x, log2e);
    let n = b.round(n);
    let (high, low) = (b.num(x, -LN2[0]), b.num(x, -LN2[1]));
    let above = b.fma(n, high, x);
    let below = b.mul(n, low);
    let r = b.add(above, below);
    let lost = b.sub(above, r);
    let lost = b.add(lost, below);
    (n, r, lost)
}

/// n and e^r - 1.
fn parts<B: Floats>(b: &mut B, x: B::V) -> (B::V, B::V) {
    let log2e = b.num(x, std::f64::consts::LOG2_E);
    let n = b.mul(x, log2e);
    let n = b.round(n);
    let (high, low) = (b.num(x, -LN2[0]), b.num(x, -LN2[1]));
    let r = b.fma(n, high, x);
    let r = b.fma(n, low, r);
    (n, exp_near_0(b, r, None))
}

fn exp<B: Floats>(b: &mut B, x: B::V) -> B::V {
    let x = clamped(b, x, LEAST, MOST);
    exp_clamped(b, x)
}

/// e^x for x in LEAST..=MOST, or NaN.
fn exp_clamped<B: Floats>(b: &mut B, x: B::V) -> B::V {
    let (n, t) = parts(b, x);
    let one = b.num(x, 1.0);
    let y = b.add(t, one);
    let y = without_underflow(b, x, ZERO, y);
    b.scale(y, n)
}

/// 1 / (1 + e^-x). With e = e^-|x| <= 1 and q = e / (1 + e) it is 1 - q for positive x and q = e - e q
/// otherwise, with a smaller error than that of the quotient.
fn sigmoid<B: Floats>(b: &mut B, x: B::V) -> B::V {
    let (least, m) = (b.num(x, LEAST), b.neg_abs(x));
    let m = b.greater(least, m);
    let e = exp_clamped(b, m);
    let (zero, one, minus_one) = (b.num(x, 0.0), b.num(x, 1.0), b.num(x, -1.0));
    let below = b.sub(minus_one, e);
    let q = b.div(e, below);
    let base = b.if_less(x, zero, e, one);
    b.fma(base, q, base)
}

/// As for f32, with the rounding error of the reduced argument.
fn expm1<B: Floats>(b: &mut B, x: B::V) -> B::V {
    let x = clamped(b, x, -40.0, MOST);
    let (n, r, lost) = reduced(b, x);
    let t = exp_near_0(b, r, Some(lost));
    minus_1(b, n, t)
}

fn log<B: Floats>(b: &mut B, x: B::V) -> B::V {
    log_by(b, x, (f64::MIN_POSITIVE, 54), log_near_1)
}

fn log1p<B: Floats>(b: &mut B, x: B::V) -> B::V {
    log1p_by(b, x, log_near_1)
}

/// For log((1 + s) / (1 - s)) = 2 s + s R: R / s^2 in powers of s^2, highest first.
const LOG: [f64; 7] = [
    1.479_819_860_511_658_6e-1,
    1.531_383_769_920_937_3e-1,
    1.818_357_216_161_805e-1,
    2.222_219_843_214_978_4e-1,
    2.857_142_874_366_239e-1,
    3.999_999_999_940_942e-1,
    6.666_666_666_666_735e-1,
];

/// e ln 2 + log(1 + f) for 1 + f in [sqrt 1/2, sqrt 2), with s = f / (2 + f).
fn log_near_1<B: Floats>(b: &mut B, f: B::V, e: B::V) -> B::V {
    let two = b.num(f, 2.0);
    let below = b.add(f, two);
    let s = b.div(f, below);
    let z = b.mul(s, s);
    let r = poly(b, z, &LOG);
    let r = b.mul(r, z);
    let half = b.num(f, 0.5);
    let square = b.mul(f, f);
    let square = b.mul(square, half);
    let r = b.add(square, r);
    let r = b.mul(s, r);
    let (high, low) = (b.num(f, LN2[0]), b.num(f, LN2[1]));
    let r = b.fma(e, low, r);
    let r = b.sub(square, r);
    let r = b.sub(f, r);
    b.fma(e, high, r)
}

const TANH_ABOVE: [f64; 3] =
    [-9.643_991_794_250_523e-1, -9.928_772_310_019_186e1, -1.614_687_684_417_084_5e3];
const TANH_BELOW: [f64; 4] =
    [1.0, 1.128_116_784_916_329_3e2, 2.235_488_390_601_004_5e3, 4.844_063_053_251_255e3];

/// One quotient for both cases: near 0 x + x z P(z) / Q(z) with z = x^2, elsewhere 1 - 2 / (1 + e^2x).
fn tanh<B: Floats>(b: &mut B, x: B::V) -> B::V {
    let (m, one, limit) = (b.abs(x), b.num(x, 1.0), b.num(x, 20.0));
    let m = b.lesser(limit, m);
    let z = b.mul(m, m);
    let p = poly(b, z, &TANH_ABOVE);
    let p = b.mul(p, z);
    let above = b.mul(p, m);
    let below = poly(b, z, &TANH_BELOW);
    let twice = b.add(m, m);
    let (n, t) = parts(b, twice);
    let e = b.add(t, one);
    let e = b.scale_normal(e, n);
    let far = b.add(e, one);
    let (border, minus_two) = (b.num(x, 0.625), b.num(x, -2.0));
    let above = b.if_less(m, border, above, minus_two);
    let below = b.if_less(m, border, below, far);
    let base = b.if_less(m, border, m, one);
    let q = b.div(above, below);
    let r = b.add(base, q);
    b.with_sign(r, x)
}

/// erf x / x - 1 in powers of x^2 for x < 1, highest first.
const ERF_NEAR: [f64; 12] = [
    -7.779_458_245_886_857e-10,
    1.371_097_509_359_529_1e-8,
    -1.620_631_258_484_335_3e-7,
    1.644_713_142_670_48e-6,
    -1.492_471_229_120_599_6e-5,
    1.205_529_357_640_305_5e-4,
    -8.548_325_929_300_999e-4,
    5.223_977_606_118_293e-3,
    -2.686_617_064_311_146_5e-2,
    1.128_379_167_094_418_5e-1,
    -3.761_263_890_318_352e-1,
    1.283_791_670_955_125_6e-1,
];
/// log2(1 - erf x) / x for 1 <= x <= 6, highest power first.
const ERF_FAR: [f64; 18] = [
    2.191_261_392_495_392_7e-12,
    -9.730_785_073_737_148e-11,
    2.023_303_554_630_34e-9,
    -2.615_759_178_350_185_8e-8,
    2.351_973_588_278_344_8e-7,
    -1.555_427_792_160_842_2e-6,
    7.769_318_982_868_737e-6,
    -2.936_091_519_485_144_5e-5,
    8.084_657_313_053_297e-5,
    -1.377_577_542_429_658_2e-4,
    1.405_594_252_814_363_4e-6,
    8.290_586_876_126_089e-4,
    -2.441_918_750_835_352_6e-3,
    3.059_053_620_495_134e-4,
    2.759_149_078_487_236e-2,
    -1.482_669_621_864_154_4e-1,
    -9.184_488_815_701_18e-1,
    -1.627_906_947_465_855_6,
];

/// A polynomial near 0, elsewhere 1 - 2^q. From 5.93 on the result is exactly 1.
fn erf<B: Floats>(b: &mut B, x: B::V) -> B::V {
    let (m, one, limit) = (b.abs(x), b.num(x, 1.0), b.num(x, 6.0));
    let m = b.lesser(limit, m);
    let z = b.mul(m, m);
    let p = poly(b, z, &ERF_NEAR);
    let near = b.fma(p, m, m);
    let q = poly(b, m, &ERF_FAR);
    let q = b.mul(q, m);
    let n = b.round(q);
    let f = b.sub(q, n);
    let ln2 = b.num(x, std::f64::consts::LN_2);
    let r = b.mul(f, ln2);
    let t = exp_near_0(b, r, None);
    let e = b.add(t, one);
    let e = b.scale_normal(e, n);
    let far = b.sub(one, e);
    let r = b.if_less(m, one, near, far);
    b.with_sign(r, x)
}
