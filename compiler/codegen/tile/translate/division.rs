//! Integer quotients and remainders by a divisor that only run time knows, through floats of the same width.
//!
//! A first quotient `trunc(a * (1 / b))` is wrong in its last bits only. The remainder that it leaves is
//! exact in integers, as it is at most a few units of the last place of `a` beyond `|b|`. The second
//! quotient, of this remainder, is computed with a bias that exceeds its error: it is the floor of the exact
//! quotient or one more, and the sign of its remainder tells which. All of it is exact in wrapping integers
//! for all arguments, also where `a / b` overflows: conversions of numbers out of range may wrap or saturate,
//! which the second quotient corrects.
//!
//! Division by 0 is an error: such lanes divide by 1 and are reported.

use super::expr::bits_of;
use super::{Fit, Translate, Val};
use crate::codegen::tile::ir::{Bin, Bits, Op, Pred, Un, Value};
use crate::nest::BinOp;
use crate::tensor::ElemType;

impl Translate<'_> {
    /// `Div`, `Rem` or `Mod` of integers.
    pub(super) fn division(&mut self, op: BinOp, a: Val, b: Val) -> Fit<Val> {
        if matches!(a.ty, ElemType::U32 | ElemType::U64) {
            return Err("a quotient of unsigned integers");
        }
        let b = self.divisor(b);
        if a.ty.bits() < 32 {
            return self.short_division(op, a, b);
        }
        let bits = bits_of(a.ty);
        let one = self.real(1.0, bits);
        let inverse = self.to_real(b, bits);
        let inverse = self.b.bin_of(Bin::Div, one, inverse, bits);
        let x = self.to_real(a.v, bits);
        let x = self.b.bin_of(Bin::Mul, x, inverse, bits);
        let first = self.to_whole(x, bits);
        let rest = self.less(a.v, first, b, bits);
        let x = self.to_real(rest, bits);
        // The errors of conversions and products are below 2^-37 or 2^-12.
        let bias = self.real(2f64.powi(if bits == Bits::B64 { -30 } else { -8 }), bits);
        let x = self.b.fma_of(x, inverse, bias, bits);
        let x = self.b.un_of(Un::Floor, x, bits);
        let second = self.whole(x, bits);
        let rest = self.less(rest, second, b, bits);
        let v = if op == BinOp::Div {
            let q = self.b.bin_of(Bin::IAdd, first, second, bits);
            self.rounded_to_zero(q, (a.v, b, rest), bits)
        } else {
            self.remainder(op, (a.v, b, rest), bits)
        };
        Ok(Val { v, ..a })
    }
    /// The divisor, with 1 in place of 0, which is reported.
    fn divisor(&mut self, b: Val) -> Value {
        let (bits, zero, one) = (bits_of(b.ty), self.number(0.0, b.ty), self.number(1.0, b.ty));
        let none = self.b.icmp(Pred::Eq, b.v, zero, bits);
        self.report(none);
        self.b.select(none, one, b.v, bits)
    }
    /// Integers of at most 16 bits: the quotient of floats is never rounded across an integer.
    fn short_division(&mut self, op: BinOp, a: Val, b: Value) -> Fit<Val> {
        let (x, y) = (self.b.un(Un::ToFloat, a.v), self.b.un(Un::ToFloat, b));
        let q = self.b.bin(Bin::Div, x, y);
        let q = self.b.un(Un::TruncInt, q);
        if op == BinOp::Div {
            // The lowest number divided by -1 wraps.
            return self.cast(a.ty, Val { v: q, ty: ElemType::I32 });
        }
        let rest = self.less(a.v, q, b, Bits::B32);
        Ok(Val { v: self.remainder(op, (a.v, b, rest), Bits::B32), ..a })
    }
    /// The quotient rounded to zero, from one with a remainder of less than |b|.
    fn rounded_to_zero(&mut self, q: Value, (a, b, rest): (Value, Value, Value), bits: Bits) -> Value {
        let beyond = self.differs(rest, a, bits);
        let (zero, one) = (self.whole_of(0, bits), self.whole_of(1, bits));
        let signs = self.b.bin_of(Bin::Xor, a, b, bits);
        let negative = self.b.icmp(Pred::Lt, signs, zero, bits);
        let minus = self.whole_of(-1, bits);
        let step = self.b.select(negative, one, minus, bits);
        let moved = self.b.bin_of(Bin::IAdd, q, step, bits);
        self.b.select(beyond, moved, q, bits)
    }
    /// The remainder with the sign of `b` for `Mod`, of `a` for `Rem`, from one of less than |b|.
    fn remainder(&mut self, op: BinOp, (a, b, rest): (Value, Value, Value), bits: Bits) -> Value {
        if op == BinOp::Mod {
            let beyond = self.differs(rest, b, bits);
            let moved = self.b.bin_of(Bin::IAdd, rest, b, bits);
            return self.b.select(beyond, moved, rest, bits);
        }
        let beyond = self.differs(rest, a, bits);
        let (up, down) = (self.b.bin_of(Bin::IAdd, rest, b, bits), self.b.bin_of(Bin::ISub, rest, b, bits));
        let (signs, zero) = (self.b.bin_of(Bin::Xor, rest, b, bits), self.whole_of(0, bits));
        let opposite = self.b.icmp(Pred::Lt, signs, zero, bits);
        let moved = self.b.select(opposite, up, down, bits);
        self.b.select(beyond, moved, rest, bits)
    }
    /// True where a remainder is not 0 and its sign is not that of `x`.
    fn differs(&mut self, rest: Value, x: Value, bits: Bits) -> Value {
        let (signs, zero) = (self.b.bin_of(Bin::Xor, rest, x, bits), self.whole_of(0, bits));
        let some = self.b.icmp(Pred::Ne, rest, zero, bits);
        let opposite = self.b.icmp(Pred::Lt, signs, zero, bits);
        self.b.masks(Op::MaskAnd, some, opposite)
    }
    /// `a - q * b`.
    pub(super) fn less(&mut self, a: Value, q: Value, b: Value, bits: Bits) -> Value {
        let product =
            if bits == Bits::B64 { self.b.long(Bin::IMul, q, b) } else { self.b.bin(Bin::IMul, q, b) };
        self.b.bin_of(Bin::ISub, a, product, bits)
    }
    fn to_real(&mut self, x: Value, bits: Bits) -> Value {
        if bits == Bits::B64 { self.b.long_to_double(x) } else { self.b.un(Un::ToFloat, x) }
    }
    fn to_whole(&mut self, x: Value, bits: Bits) -> Value {
        if bits == Bits::B64 { self.b.near_long(x) } else { self.b.un(Un::TruncInt, x) }
    }
    /// Converts a whole number that is exact in floats to an integer.
    pub(super) fn whole(&mut self, x: Value, bits: Bits) -> Value {
        if bits == Bits::B64 { self.b.small_to_long(x) } else { self.b.un(Un::TruncInt, x) }
    }
    pub(super) fn real(&mut self, x: f64, bits: Bits) -> Value {
        if bits == Bits::B64 { self.b.f64(x) } else { self.b.f32(x as f32) }
    }
    pub(super) fn whole_of(&mut self, x: i64, bits: Bits) -> Value {
        if bits == Bits::B64 { self.b.bits64(x as u64) } else { self.b.bits(x as u32) }
    }
}
