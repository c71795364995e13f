//! Powers of integers by squaring, modulo the width of the base.
//!
//! A constant exponent becomes products. Others take as many steps as the largest exponent has bits, which is
//! known or counted before the loops, so that all elements take the same steps.
//!
//! The power of a negative exponent is that of a division: 0, unless the base is 1 or -1. Of base 0 it is the
//! largest number.

use crate::nest::{BinOp, Buf, Expr, KernelBuilder, LoopKind, Scalar};
use crate::ops::LowerCx;
use crate::ops::support::power::product;
use crate::ops::support::runtime::int;
use crate::sym::Dim;
use crate::tensor::ElemType;

/// x^n for a constant n of an integer type.
pub(super) fn constant(k: &mut KernelBuilder, ty: ElemType, x: Expr, n: Scalar) -> Expr {
    let negative = n.ty.is_signed_int() && n.to_i64() < 0;
    k.shared(x, |k, x| match n.bits {
        odd if negative => of_negative(ty, x, Expr::bool(odd & 1 != 0)),
        0 => Expr::int(ty, 1),
        n => product(k, &x, n),
    })
}

/// The power of a negative exponent.
fn of_negative(ty: ElemType, x: Expr, odd: Expr) -> Expr {
    let is = |v: i64| Expr::bin(BinOp::Eq, x.clone(), Expr::int(ty, v));
    let zero = Expr::select(is(0), Scalar::highest(ty).into(), Expr::int(ty, 0));
    let alternating = Expr::select(odd, Expr::int(ty, -1), Expr::int(ty, 1));
    Expr::select(is(1), Expr::int(ty, 1), Expr::select(is(-1), alternating, zero))
}

/// x^y for the integers of two buffers.
pub(super) fn elementwise(cx: &mut LowerCx, x: Buf, y: Buf) {
    let out = cx.output(0);
    let (dims, ty, from) = (cx.dims(out), cx.elem(x).compute(), cx.elem(y).compute());
    let steps = steps(cx, y, ty);
    cx.kernel(|k| {
        k.nest(LoopKind::Par, &dims, |k, at| {
            let (x, y) = (k.load_broadcast(x, at), k.load_broadcast(y, at));
            let (x, y) = (k.let_(x), k.let_(y));
            let rest = exponent(from, ty, y.clone());
            let (power, square, rest) = (k.acc(Expr::int(ty, 1)), k.acc(x.clone()), k.acc(rest));
            k.range(LoopKind::Seq, "bit", 0, steps, |k, _| {
                let odd = is_odd(ty, Expr::acc(rest));
                let next = Expr::acc(power) * Expr::acc(square);
                k.set(power, Expr::select(odd, next, Expr::acc(power)));
                k.update(BinOp::Mul, square, Expr::acc(square));
                k.update(BinOp::Shr, rest, Expr::int(ty, 1));
            });
            let v = Expr::acc(power);
            let v = match from.is_signed_int() {
                true => {
                    let negative = Expr::bin(BinOp::Lt, y.clone(), Expr::int(from, 0));
                    Expr::select(negative, of_negative(ty, x, is_odd(from, y)), v)
                }
                false => v,
            };
            k.store(out, at, v);
        });
    });
}

fn is_odd(ty: ElemType, n: Expr) -> Expr {
    Expr::bin(BinOp::Ne, n.and(Expr::int(ty, 1)), Expr::int(ty, 0))
}

/// An exponent that is not negative in the type of the base, whose powers are the same.
///
/// 2^(bits - 2) is a multiple of the order of every odd base, and no less than the bits of an even one, so
/// that multiples of it can be exchanged.
fn exponent(from: ElemType, ty: ElemType, n: Expr) -> Expr {
    let fits =
        from.bits() < ty.bits() || from.bits() == ty.bits() && from.is_signed_int() == ty.is_signed_int();
    if fits {
        return Expr::cast(from, ty, n);
    }
    let order = 1i64 << (ty.bits() - 2);
    let rest = n.clone().and(Expr::int(from, order - 1));
    let below = Expr::bin(BinOp::Lt, n.clone(), Expr::int(from, order));
    Expr::cast(from, ty, Expr::select(below, n, Expr::bin(BinOp::Or, rest, Expr::int(from, order))))
}

/// The number of bits of the largest exponent.
fn steps(cx: &mut LowerCx, y: Buf, ty: ElemType) -> Dim {
    let (most, from) = (i64::from(ty.bits() - 1), cx.elem(y).compute());
    if let Some(values) = cx.constant(1).and_then(|c| c.to_i64s()) {
        // Numbers of u64 beyond i64 are negative here.
        let bits = |v: i64| match v < 0 {
            true if from.is_signed_int() => 0,
            _ => i64::from(i64::BITS - v.leading_zeros()),
        };
        return Dim::constant(values.into_iter().map(bits).max().unwrap_or(0).min(most));
    }
    let count = Dim::product(cx.dims(y));
    let flat = cx.m.view(y, [count]);
    let list = cx.compute(1, |k, out| {
        let all = k.acc(Expr::int(ty, 0));
        k.range(LoopKind::Seq, "i", 0, count, |k, i| {
            let v = k.load(flat, &[i]);
            let v = exponent(from, ty, v).max(Expr::int(ty, 0));
            k.update(BinOp::Or, all, v);
        });
        let all = k.let_(Expr::cast(ty, ElemType::I64, Expr::acc(all)));
        let above = |b: i64| {
            Expr::cast(ElemType::Bool, ElemType::I64, Expr::bin(BinOp::Ge, all.clone(), int(1 << b)))
        };
        let bits = (0..most).map(above).reduce(|a, b| a + b).unwrap_or(int(0));
        k.store(out, &[Dim::constant(0)], bits);
    });
    cx.number("bits", Expr::Load { buf: list, at: vec![Dim::constant(0)] }, Some(0), Some(most))
}
