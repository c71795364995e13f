//! The remainder of f32, exactly.
//!
//! The distance of the dividend from a multiple of the divisor is a number of f32 if the multiple is about as
//! large as the dividend, so that one fused operation gives it without error. Larger quotients take several
//! steps, each of which subtracts a multiple of the divisor times a power of two.

use super::Floats;

/// Bits of a quotient that a step determines. The rounding error of a quotient of so many bits is less than
/// 1/8, so that the rest is at most 5/8 of the divisor.
const BITS: i32 = 20;
/// Steps for the largest quotient of two numbers, 2^277.
const STEPS: usize = 14;

/// The remainder of x / y with the sign of x. Requires fused operations.
pub fn remainder<B: Floats>(b: &mut B, x: B::V, y: B::V) -> B::V {
    let (m, d) = (b.abs(x), b.abs(y));
    let (limit, quotient) = (b.num(x, f64::from(BITS).exp2()), b.div(m, d));
    let short = rest(b, (m, d), quotient);
    let [r] = b.if_any_less(limit, quotient, [short], |b| {
        let up = b.num(x, f64::from(BITS).exp2());
        let mut multiples = vec![d];
        for i in 1..STEPS {
            multiples.push(b.mul(multiples[i - 1], up));
        }
        [multiples.into_iter().rev().fold(m, |m, d| step(b, m, d))]
    });
    b.with_sign(r, x)
}

/// The remainder of m / d for positive numbers with a quotient of few bits.
fn step<B: Floats>(b: &mut B, m: B::V, d: B::V) -> B::V {
    let q = b.div(m, d);
    rest(b, (m, d), q)
}

/// The same, given the quotient.
fn rest<B: Floats>(b: &mut B, (m, d): (B::V, B::V), q: B::V) -> B::V {
    let q = b.round(q);
    let q = b.neg(q);
    let r = b.fma(q, d, m);
    let (zero, above) = (b.num(m, 0.0), b.add(r, d));
    let r = b.if_less(r, zero, above, r);
    // The divisor may be infinite.
    b.if_less(m, d, m, r)
}
