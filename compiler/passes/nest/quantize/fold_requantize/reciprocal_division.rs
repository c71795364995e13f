//! Division of quantized sums by a constant, rounded to integers, as multiplication.
//!
//! `round((a * s + b * t) / u)` with integers a and b of a few hundred values and constants s, t, u has
//! finitely many arguments. It is replaced by a product with the factors of `fma(a, s / u, b * (t / u))`, or
//! else of `(a * s + b * t) * (1 / u)`, or adjacent floats, if this rounds to the same integer for all
//! arguments. The results can differ only for arguments near the middle between two integers. A division
//! costs as much as ten multiplications.

use crate::nest::bounds::Bounds;
use crate::nest::{BinOp, Expr, Module, UnOp};
use crate::tensor::ElemType;

/// Maximum values of an integer, and maximum arguments in total.
const MOST_VALUES: i64 = 1024;
const MOST_ARGUMENTS: i64 = 1 << 19;
/// Maximum arguments near the middle between two integers, or zero: more are systematic (scales of a common
/// measure).
const MOST_CRITICAL: usize = 1 << 14;

/// A term of a sum: an integer as a float, and its constant factor.
struct Term<'a> {
    value: &'a Expr,
    scale: f32,
    lo: i64,
    hi: i64,
}

/// The `round` of a product that equals the `round` of a quotient `e` for all of its values.
pub fn multiplied(m: &Module, bounds: &Bounds, e: &Expr) -> Option<Expr> {
    let Expr::Un(UnOp::Round, q) = e else { return None };
    let Expr::Bin(BinOp::Div, sum, by) = &**q else { return None };
    let by = number(by).filter(|s| *s > 0.0)?;
    let terms = match &**sum {
        Expr::Bin(BinOp::Add, x, y) => vec![term(m, bounds, x)?, term(m, bounds, y)?],
        x => vec![term(m, bounds, x)?],
    };
    let arguments = terms.iter().try_fold(1i64, |n, t| n.checked_mul(t.hi - t.lo + 1))?;
    if arguments > MOST_ARGUMENTS {
        return None;
    }
    let second = terms.get(1);
    let (s, t) = (terms[0].scale, second.map_or(0.0, |t| t.scale));
    let of_second = second.map_or((0, 0), |t| (t.lo, t.hi));
    // Upper bound of the error of any of the products, with a large margin.
    let most = |t: &Term| f64::from(t.scale.abs()) * t.lo.abs().max(t.hi.abs()) as f64;
    let margin = terms.iter().map(most).sum::<f64>() / f64::from(by) * f64::from(f32::EPSILON) * 64.0;
    // Larger results are not small integers.
    if margin.is_nan() || margin > 0.25 {
        return None;
    }
    let mut critical: Vec<(f32, f32, u32)> = vec![];
    for a in terms[0].lo..=terms[0].hi {
        for b in of_second.0..=of_second.1 {
            let exact = (a as f64 * f64::from(s) + b as f64 * f64::from(t)) / f64::from(by);
            if (exact - exact.floor() - 0.5).abs() <= margin || exact.abs() <= margin {
                let (a, b) = (a as f32, b as f32);
                critical.push((a, b, rounded(sum_of(a, s, b, t, second.is_some()) / by)));
            }
        }
    }
    if critical.len() > MOST_CRITICAL {
        return None;
    }
    // Targets without fused multiply-add round twice.
    let fused = |f: f32, g: f32| {
        critical.iter().all(|(a, b, want)| {
            second.is_none() && rounded(a * f) == *want
                || second.is_some()
                    && rounded(a.mul_add(f, b * g)) == *want
                    && rounded(a * f + b * g) == *want
        })
    };
    for f in neighbours(s / by) {
        for g in neighbours(t / by).into_iter().take(if second.is_some() { usize::MAX } else { 1 }) {
            if fused(f, g) {
                let first = terms[0].value.clone();
                let product = match second {
                    Some(t) => Expr::fma(first, Expr::f32(f), t.value.clone() * Expr::f32(g)),
                    None => first * Expr::f32(f),
                };
                return Some(Expr::un(UnOp::Round, product));
            }
        }
    }
    let r = neighbours(1.0 / by).into_iter().find(|r| {
        critical.iter().all(|(a, b, want)| rounded(sum_of(*a, s, *b, t, second.is_some()) * r) == *want)
    })?;
    Some(Expr::un(UnOp::Round, (**sum).clone() * Expr::f32(r)))
}

/// The sum as the nest computes it.
fn sum_of(a: f32, s: f32, b: f32, t: f32, both: bool) -> f32 {
    if both { a * s + b * t } else { a * s }
}

/// A factor and adjacent floats, the nearest first.
fn neighbours(x: f32) -> Vec<f32> {
    let (mut up, mut down, mut out) = (x, x, vec![x]);
    for _ in 0..4 {
        (up, down) = (up.next_up(), down.next_down());
        out.extend([up, down]);
    }
    out.retain(|x| x.is_normal() || *x == 0.0);
    out
}

/// The bits of the nearest integer, including the sign of zero.
fn rounded(x: f32) -> u32 {
    x.round_ties_even().to_bits()
}

/// A constant far from the limits of the float range.
pub(crate) fn number(e: &Expr) -> Option<f32> {
    match e {
        Expr::Const(c) if c.ty == ElemType::F32 => {
            Some(c.to_f64() as f32).filter(|v| (1e-30..1e30).contains(&v.abs()))
        }
        _ => None,
    }
}

fn term<'a>(m: &Module, bounds: &Bounds, e: &'a Expr) -> Option<Term<'a>> {
    let (value, scale) = match e {
        Expr::Bin(BinOp::Mul, x, s) => (&**x, number(s)?),
        x => (x, 1.0),
    };
    let Expr::Cast(ElemType::F32, x) = value else { return None };
    if !m.type_of(x).is_int() {
        return None;
    }
    let (lo, hi) = bounds.of(m, x)?;
    let (lo, hi) = (lo as i64, hi as i64);
    (hi.checked_sub(lo)? < MOST_VALUES).then_some(Term { value, scale, lo, hi })
}
