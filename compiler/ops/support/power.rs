//! Powers of floats.
//!
//! Those of f32 are computed in f64, so that all of them have a vector form and the result is rounded once:
//! products for constant integers, the exponential of a multiple of the logarithm for other exponents. Special
//! values are those of IEEE 754 (section 9.2.1, `pow`).

use crate::nest::{BinOp, Expr, KernelBuilder, UnOp, patterns};
use crate::tensor::ElemType;

/// Largest magnitude of an exponent that becomes products: at most ten.
const PRODUCTS: f64 = 64.0;
const SIGN: i64 = i32::MIN as i64;

/// x^y in the floating-point type `ty` of both.
pub(crate) fn power(k: &mut KernelBuilder, ty: ElemType, x: Expr, y: Expr) -> Expr {
    let plain = |x: Expr, y: Expr| Expr::bin(BinOp::Pow, x, y);
    let Expr::Const(c) = y else {
        return if ty == ElemType::F32 { of_any(k, x, y) } else { plain(x, y) };
    };
    let p = c.to_f64();
    if p == 1.0 {
        return x;
    }
    if p == 2.0 {
        return x.clone() * x;
    }
    let short = patterns::constant_power(&plain(x.clone(), y.clone())).is_some();
    if short || ty != ElemType::F32 || !p.is_finite() || p == 0.0 {
        return plain(x, y);
    }
    match p.fract() == 0.0 {
        true if p.abs() <= PRODUCTS => {
            let base = Expr::cast(ty, ElemType::F64, x);
            let whole = k.shared(base, |k, x| product(k, &x, p.abs() as u64));
            rounded(if p < 0.0 { Expr::un(UnOp::Recip, whole) } else { whole })
        }
        true => k.shared(x, |_, x| {
            let m = magnitude(Expr::un(UnOp::Abs, x.clone()), Expr::num(ElemType::F64, p));
            if p % 2.0 == 0.0 { m } else { with_bits(m, sign(x)) }
        }),
        // The power of a negative base is NaN, but for infinity.
        false => k.shared(x, |_, x| {
            let (low, high) = (number(f64::NEG_INFINITY), number(f64::INFINITY));
            let base = Expr::select(Expr::bin(BinOp::Eq, x.clone(), low), high, x);
            magnitude(base, Expr::num(ElemType::F64, p))
        }),
    }
}

/// x^y for f32 values.
fn of_any(k: &mut KernelBuilder, x: Expr, y: Expr) -> Expr {
    let (ty, test) = (ElemType::F32, |op, a: &Expr, b: Expr| Expr::bin(op, a.clone(), b));
    k.shared(x, |k, x| {
        k.shared(y, |_, y| {
            let size = Expr::un(UnOp::Abs, x.clone());
            let m = magnitude(size.clone(), Expr::cast(ty, ElemType::F64, y.clone()));
            // Also of infinite exponents, for which the product above is not a number.
            let m = Expr::select(test(BinOp::Eq, &size, number(1.0)), number(1.0), m);
            let whole = |y: Expr| Expr::bin(BinOp::Eq, Expr::un(UnOp::Floor, y.clone()), y);
            let odd = whole(y.clone()).and(Expr::un(UnOp::Not, whole(y.clone() * number(0.5))));
            let signed = with_bits(m, Expr::select(odd, sign(x.clone()), Expr::int(ElemType::I32, 0)));
            let finite = test(BinOp::Gt, &x, number(f64::NEG_INFINITY));
            let negative = test(BinOp::Lt, &x, number(0.0)).and(finite);
            let undefined = negative.and(Expr::un(UnOp::Not, whole(y.clone())));
            let v = Expr::select(undefined, number(f64::NAN), signed);
            let one =
                Expr::bin(BinOp::Or, test(BinOp::Eq, &y, number(0.0)), test(BinOp::Eq, &x, number(1.0)));
            Expr::select(one, number(1.0), v)
        })
    })
}

/// x^n for n > 0, in any type with products.
pub(crate) fn product(k: &mut KernelBuilder, x: &Expr, n: u64) -> Expr {
    if n == 1 {
        return x.clone();
    }
    let half = product(k, x, n / 2);
    k.shared(half, |_, half| {
        let square = half.clone() * half;
        if n % 2 == 1 { square * x.clone() } else { square }
    })
}

/// x^y for an f32 base that is not negative and an f64 exponent.
fn magnitude(x: Expr, y: Expr) -> Expr {
    let log = Expr::un(UnOp::Log, Expr::cast(ElemType::F32, ElemType::F64, x));
    rounded(Expr::un(UnOp::Exp, log * y))
}

fn rounded(x: Expr) -> Expr {
    Expr::cast(ElemType::F64, ElemType::F32, x)
}

fn number(x: f64) -> Expr {
    Expr::num(ElemType::F32, x)
}

/// The sign bit.
fn sign(x: Expr) -> Expr {
    Expr::un(UnOp::Bits(ElemType::I32), x).and(Expr::int(ElemType::I32, SIGN))
}

/// The number with additional bits set.
fn with_bits(x: Expr, bits: Expr) -> Expr {
    let all = Expr::bin(BinOp::Or, Expr::un(UnOp::Bits(ElemType::I32), x), bits);
    Expr::un(UnOp::Bits(ElemType::F32), all)
}
