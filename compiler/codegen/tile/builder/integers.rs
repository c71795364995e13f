//! Arithmetic of counters, sizes and offsets.

use super::Builder;
use crate::codegen::tile::ir::{Bits, Class, Op, Value};

impl Builder {
    /// An integer.
    pub fn int(&mut self, x: i64) -> Value {
        self.value(Op::Int(x), &[], None, Class::Int)
    }
    /// Pointer or integer plus a number.
    pub fn add_imm(&mut self, x: Value, n: i64) -> Value {
        match i32::try_from(n) {
            Ok(0) => x,
            Ok(n) => self.value(Op::AddImm(n), &[x], None, Class::Int),
            Err(_) => {
                let n = self.int(n);
                self.add(x, n)
            }
        }
    }
    /// x + y.
    pub fn add(&mut self, x: Value, y: Value) -> Value {
        self.value(Op::Add, &[x, y], None, Class::Int)
    }
    /// x * y.
    pub(in crate::codegen::tile) fn mul(&mut self, x: Value, y: Value) -> Value {
        self.value(Op::Mul, &[x, y], None, Class::Int)
    }
    /// x / y, rounded to zero, of a positive y.
    pub(in crate::codegen::tile) fn quotient(&mut self, x: Value, y: Value) -> Value {
        self.value(Op::Quotient, &[x, y], None, Class::Int)
    }
    /// x >> n, rounded down.
    pub(in crate::codegen::tile) fn shr_imm(&mut self, x: Value, n: u8) -> Value {
        self.value(Op::ShrImm(n), &[x], None, Class::Int)
    }
    /// x clamped to a range.
    pub(in crate::codegen::tile) fn limited(&mut self, x: Value, lo: i64, hi: i64) -> Value {
        let (lo, hi) = (self.int(lo), self.int(hi));
        let x = self.value(Op::Lesser, &[x, hi], None, Class::Int);
        self.value(Op::Greater, &[x, lo], None, Class::Int)
    }
    /// The minimum of two integers.
    pub(in crate::codegen::tile) fn lesser(&mut self, x: Value, y: Value) -> Value {
        self.value(Op::Lesser, &[x, y], None, Class::Int)
    }
    /// The maximum of two integers.
    pub(in crate::codegen::tile) fn greater(&mut self, x: Value, y: Value) -> Value {
        self.value(Op::Greater, &[x, y], None, Class::Int)
    }
    /// 1 if x equals n, else 0 or less.
    pub(in crate::codegen::tile) fn equals(&mut self, x: Value, n: i64) -> Value {
        let above = self.add_imm(x, 1 - n);
        let below = self.mul_imm(x, -1);
        let below = self.add_imm(below, 1 + n);
        self.value(Op::Lesser, &[above, below], None, Class::Int)
    }
    /// x & n.
    pub fn and_imm(&mut self, x: Value, n: i32) -> Value {
        self.value(Op::AndImm(n), &[x], None, Class::Int)
    }
    /// x * n.
    pub(in crate::codegen::tile) fn mul_imm(&mut self, x: Value, n: i32) -> Value {
        if n == 1 { x } else { self.value(Op::MulImm(n), &[x], None, Class::Int) }
    }
    /// The first lane of an index vector.
    pub(in crate::codegen::tile) fn first(&mut self, x: Value) -> Value {
        self.value(Op::First(self.index_bits()), &[x], None, Class::Int)
    }
    /// The first lane of a vector of integers; 32 bits are sign-extended.
    pub(in crate::codegen::tile) fn first_of(&mut self, x: Value, bits: Bits) -> Value {
        self.value(Op::First(bits), &[x], None, Class::Int)
    }
}
