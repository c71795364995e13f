//! Integer quotients and remainders by a constant, as vector products with its reciprocal.
//!
//! A first quotient is wrong in its last bits only, so that its remainder is small and exact in floats. The
//! second step is exact: `floor((rest + 1/2) / by)` of integers is at least `1/2 / by` from both neighbours,
//! and the rounding errors of the reciprocal and of one fused operation are smaller within the limits of
//! [`constant_divisor`](crate::nest::patterns::constant_divisor).

use super::expr::{bits_of, is_long};
use super::{Fit, Translate, Val};
use crate::codegen::tile::ir::{Bin, Op, Pred, Un, Value};
use crate::nest::BinOp;
use crate::tensor::ElemType;

impl Translate<'_> {
    /// `Div`, `Rem` or `Mod` by a constant that `constant_divisor` allows.
    pub(super) fn quotient(&mut self, op: BinOp, a: Val, by: i64) -> Fit<Val> {
        let (bits, signed) = (bits_of(a.ty), a.ty.is_signed_int());
        if a.ty == ElemType::U64 && !self.b.has(Op::Un(Un::TruncUnsigned, bits)) {
            return Err("a quotient of unsigned integers of 64 bits");
        }
        let size = by.unsigned_abs() as f64;
        // A number with no more bits than a float's significand is its own remainder.
        let (first, rest) =
            if a.ty.bits() < 32 { (None, self.b.un(Un::ToFloat, a.v)) } else { self.first_quotient(a, by) };
        let below_zero = op == BinOp::Mod && by < 0;
        let (inverse, half) =
            (self.real(1.0 / size, bits), self.real(if below_zero { -0.5 } else { 0.5 } / size, bits));
        let k = self.b.fma_of(rest, inverse, half, bits);
        let mut k = self.b.un_of(if below_zero { Un::Ceil } else { Un::Floor }, k, bits);
        let minus = self.real(-size, bits);
        let mut left = self.b.fma_of(k, minus, rest, bits);
        if op != BinOp::Mod && signed {
            // Rounding towards zero: negative numbers take the next quotient.
            let (none, zero, one) = (self.whole_of(0, bits), self.real(0.0, bits), self.real(1.0, bits));
            let (below, some) =
                (self.b.icmp(Pred::Lt, a.v, none, bits), self.b.cmp(Pred::Lt, zero, left, bits));
            let moved = self.b.masks(Op::MaskAnd, below, some);
            if op == BinOp::Div {
                let next = self.b.bin_of(Bin::Add, k, one, bits);
                k = self.b.select(moved, next, k, bits);
            } else {
                let less = self.b.bin_of(Bin::Add, left, minus, bits);
                left = self.b.select(moved, less, left, bits);
            }
        }
        if op != BinOp::Div {
            return Ok(Val { v: self.whole(left, bits), ..a });
        }
        let mut q = self.whole(k, bits);
        if let Some(first) = first {
            q = self.b.bin_of(Bin::IAdd, first, q, bits);
        }
        if by < 0 {
            let none = self.whole_of(0, bits);
            q = self.b.bin_of(Bin::ISub, none, q, bits);
        }
        Ok(Val { v: q, ..a })
    }
    /// An approximate quotient by |by|, and its remainder as a float.
    fn first_quotient(&mut self, a: Val, by: i64) -> (Option<Value>, Value) {
        let (bits, size) = (bits_of(a.ty), by.unsigned_abs());
        let inverse = self.real(1.0 / size as f64, bits);
        let q = match a.ty {
            ElemType::I64 => {
                let x = self.b.long_to_double(a.v);
                let x = self.b.bin_of(Bin::Mul, x, inverse, bits);
                self.b.near_long(x)
            }
            ElemType::U64 => {
                let x = self.b.un_of(Un::UnsignedToDouble, a.v, bits);
                let x = self.b.bin_of(Bin::Mul, x, inverse, bits);
                self.b.un_of(Un::TruncUnsigned, x, bits)
            }
            ElemType::U32 => {
                // Halve the number, so that it is signed; 2^31 is the result for too large ones.
                let (x, twice) = (self.b.un(Un::Shr(1), a.v), self.real(2.0 / size as f64, bits));
                let x = self.b.un(Un::ToFloat, x);
                let x = self.b.bin(Bin::Mul, x, twice);
                self.b.un(Un::TruncInt, x)
            }
            _ => {
                let x = self.b.un(Un::ToFloat, a.v);
                let x = self.b.bin(Bin::Mul, x, inverse);
                self.b.un(Un::TruncInt, x)
            }
        };
        let by = self.whole_of(size as i64, bits);
        let rest = self.less(a.v, q, by, bits);
        let rest = if is_long(a.ty) { self.b.small_to_double(rest) } else { self.b.un(Un::ToFloat, rest) };
        (Some(q), rest)
    }
}
