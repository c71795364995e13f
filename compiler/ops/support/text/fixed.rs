//! Floats as strings with six fractional digits, as in C's `%f`: the exact value, rounded to nearest even.

use super::numbers::{digits, put, shl, shr, word};
use super::{Sink, not};
use crate::nest::{BinOp, Expr, KernelBuilder, Reg, UnOp};
use crate::ops::support::runtime::{eq, int, or};
use crate::tensor::ElemType;

/// A value of f32.
pub fn write_fixed(k: &mut KernelBuilder, v: Expr, sink: &Sink) {
    let v = k.let_(v);
    let bits =
        k.let_(Expr::cast(ElemType::U32, ElemType::U64, Expr::un(UnOp::Bits(ElemType::U32), v.clone())));
    let negative = k.let_(Expr::bin(BinOp::Ne, shr(bits.clone(), 31), word(0)));
    k.if_(negative, |k| put(k, sink, "-"));
    let (nan, infinite) = (k.let_(Expr::un(UnOp::IsNan, v.clone())), k.let_(Expr::un(UnOp::IsInf, v)));
    k.if_(nan.clone(), |k| put(k, sink, "nan"));
    k.if_(infinite.clone(), |k| put(k, sink, "inf"));
    k.if_(not(or(nan, infinite)), |k| {
        let exponent = k.let_(shr(bits.clone(), 23).and(word(0xff)));
        let normal = Expr::bin(BinOp::Ne, exponent.clone(), word(0));
        let c = k.let_(bits.and(word(0x7f_ffff)) + Expr::select(normal, word(0x80_0000), word(0)));
        // The value is c * 2^(e - 150).
        let e = k.let_(Expr::bin(BinOp::Max, exponent, word(1)));
        let whole = k.let_(Expr::bin(BinOp::Ge, e.clone(), word(150)));
        k.if_(not(whole.clone()), |k| {
            let down = k.let_(word(150) - e.clone());
            // Less than 2^44, so a shift by 63 bits leaves nothing.
            let millionths = k.let_(c.clone() * word(1_000_000));
            let drop = k.let_(Expr::bin(BinOp::Min, down, word(63)));
            let kept = k.let_(Expr::bin(BinOp::Shr, millionths.clone(), drop.clone()));
            let rest = k.let_(millionths - shl(kept.clone(), drop.clone()));
            let half = k.let_(shl(word(1), drop - word(1)));
            let tie = eq(rest.clone(), half.clone()).and(eq(kept.clone().and(word(1)), word(1)));
            let up = or(Expr::bin(BinOp::Gt, rest, half), tie);
            let n = k.let_(kept + Expr::select(up, word(1), word(0)));
            let front = k.let_(n.clone() / word(1_000_000));
            digits(k, sink, &front, None);
            put(k, sink, ".");
            let behind = n - front * word(1_000_000);
            padded(k, sink, behind, 100_000);
        });
        k.if_(whole, |k| {
            large(k, sink, c, e - word(150));
            put(k, sink, ".000000");
        });
    });
}

/// All digits of a number below ten times `p`, including leading zeros.
fn padded(k: &mut KernelBuilder, sink: &Sink, v: Expr, p: u64) {
    let (rest, p) = (k.acc(v), k.acc(word(p)));
    k.while_(Expr::bin(BinOp::Gt, Expr::acc(p), word(0)), |k| {
        let d = k.let_(Expr::acc(rest) / Expr::acc(p));
        sink.byte(k, Expr::cast(ElemType::U64, ElemType::U8, d.clone() + word(0x30)));
        k.set(rest, Expr::acc(rest) - d * Expr::acc(p));
        k.set(p, Expr::acc(p) / word(10));
    });
}

/// c * 2^up, which is below 2^128.
fn large(k: &mut KernelBuilder, sink: &Sink, c: Expr, up: Expr) {
    // 32-bit words, lowest first. c has 24 bits, which span at most two words.
    let (at, by) = (k.let_(shr(up.clone(), 5)), k.let_(up.and(word(31))));
    let spread = k.let_(shl(c, by));
    let words: Vec<Reg> = (0..4u64)
        .map(|i| {
            let low = Expr::select(eq(at.clone(), word(i)), spread.clone().and(word(0xffff_ffff)), word(0));
            let high = if i == 0 {
                word(0)
            } else {
                Expr::select(eq(at.clone(), word(i - 1)), shr(spread.clone(), 32), word(0))
            };
            k.acc(low + high)
        })
        .collect();
    // Five groups of nine digits, lowest first, hold 2^128.
    const GROUP: u64 = 1_000_000_000;
    let mut groups = vec![];
    for _ in 0..5 {
        let rest = k.acc(word(0));
        for w in words.iter().rev() {
            let v = k.let_(shl(Expr::acc(rest), word(32)) + Expr::acc(*w));
            let q = k.let_(v.clone() / word(GROUP));
            k.set(*w, q.clone());
            k.set(rest, v - q * word(GROUP));
        }
        groups.push(rest);
    }
    let begun = k.acc(int(0));
    for g in groups.into_iter().rev() {
        let first = k.let_(eq(Expr::acc(begun), int(0)));
        let some = k.let_(Expr::bin(BinOp::Ne, Expr::acc(g), word(0)));
        k.if_(not(first.clone()), |k| padded(k, sink, Expr::acc(g), GROUP / 10));
        k.if_(first.and(some), |k| {
            let v = k.let_(Expr::acc(g));
            digits(k, sink, &v, None);
            k.set(begun, int(1));
        });
    }
}
