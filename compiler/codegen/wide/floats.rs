//! The operations that elementary functions are made of, as vector operations.

use super::builder::Builder;
use super::ir::{Bin, Bits, Op, Pred, Un, Value, Width};
use crate::codegen::math::{Floats, Table};

impl Floats for Builder {
    type V = Value;
    fn num(&mut self, _: Value, x: f32) -> Value {
        self.f32(x)
    }
    fn add(&mut self, a: Value, b: Value) -> Value {
        self.bin(Bin::Add, a, b)
    }
    fn sub(&mut self, a: Value, b: Value) -> Value {
        self.bin(Bin::Sub, a, b)
    }
    fn mul(&mut self, a: Value, b: Value) -> Value {
        self.bin(Bin::Mul, a, b)
    }
    fn div(&mut self, a: Value, b: Value) -> Value {
        self.bin(Bin::Div, a, b)
    }
    fn fma(&mut self, a: Value, b: Value, c: Value) -> Value {
        self.fma_of(a, b, c, Bits::B32)
    }
    fn lesser(&mut self, a: Value, b: Value) -> Value {
        self.bin(Bin::Min, a, b)
    }
    fn greater(&mut self, a: Value, b: Value) -> Value {
        self.bin(Bin::Max, a, b)
    }
    fn if_less(&mut self, x: Value, y: Value, a: Value, b: Value) -> Value {
        let c = self.cmp(Pred::Lt, x, y, Bits::B32);
        self.select(c, a, b, Bits::B32)
    }
    fn if_equal(&mut self, x: Value, y: Value, a: Value, b: Value) -> Value {
        let c = self.cmp(Pred::Eq, x, y, Bits::B32);
        self.select(c, a, b, Bits::B32)
    }
    fn abs(&mut self, a: Value) -> Value {
        let m = self.bits(0x7fff_ffff);
        self.bin(Bin::And, a, m)
    }
    fn neg(&mut self, a: Value) -> Value {
        let m = self.bits(0x8000_0000);
        self.bin(Bin::Xor, a, m)
    }
    fn neg_abs(&mut self, a: Value) -> Value {
        let m = self.bits(0x8000_0000);
        self.bin(Bin::Or, a, m)
    }
    fn sqrt(&mut self, a: Value) -> Value {
        self.un(Un::Sqrt, a)
    }
    fn round(&mut self, a: Value) -> Value {
        self.un(Un::Round, a)
    }
    fn scale(&mut self, y: Value, n: Value) -> Value {
        if self.width() == Width::Avx512 {
            return self.bin(Bin::Scale, y, n);
        }
        // 2^n in two factors, so that subnormal results are rounded once.
        let k = self.un(Un::ToInt, n);
        let half = self.un(Un::Sar(1), k);
        let rest = self.bin(Bin::ISub, k, half);
        let mut r = y;
        for k in [half, rest] {
            let bias = self.bits(127);
            let e = self.bin(Bin::IAdd, k, bias);
            let p = self.un(Un::Shl(23), e);
            r = self.bin(Bin::Mul, r, p);
        }
        r
    }
    fn scale_normal(&mut self, y: Value, n: Value) -> Value {
        if self.width() == Width::Avx512 {
            return self.bin(Bin::Scale, y, n);
        }
        let k = self.un(Un::ToInt, n);
        let k = self.un(Un::Shl(23), k);
        self.bin(Bin::IAdd, y, k)
    }
    fn with_sign(&mut self, a: Value, b: Value) -> Value {
        let m = self.bits(0x8000_0000);
        let s = self.bin(Bin::And, b, m);
        self.bin(Bin::Or, a, s)
    }
    fn entry(&mut self, index: Value, table: &'static Table) -> Option<Value> {
        if self.width() != Width::Avx512 || !self.tables {
            return None;
        }
        let t = self.table(table);
        Some(self.bin(Bin::Pick, index, t))
    }
    fn split(&mut self, x: Value) -> (Value, Value) {
        let e = self.un(Un::Shr(23), x);
        let e = self.un(Un::ToFloat, e);
        let bias = self.f32(126.0);
        let e = self.bin(Bin::Sub, e, bias);
        let (mask, half) = (self.bits(0x007f_ffff), self.bits(0x3f00_0000));
        let m = self.bin(Bin::And, x, mask);
        (e, self.bin(Bin::Or, m, half))
    }
}

impl Builder {
    /// |a|.
    pub fn abs(&mut self, a: Value) -> Value {
        Floats::abs(self, a)
    }
    /// One element of memory in the lanes of a mask, 0 in the others; nothing is read if there are none.
    pub fn broadcast_masked(&mut self, form: super::ir::Form, mem: super::ir::Mem, mask: Value) -> Value {
        // Beside lanes of 64 bits a mask says nothing of the upper half.
        let mask = if self.is_long() {
            let all = self.all_lanes(true);
            self.masks(Op::MaskAnd, mask, all)
        } else {
            mask
        };
        self.vector(Op::Broadcast(form), &[mask], Some(mem))
    }
}
