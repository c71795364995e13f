//! The operations that elementary functions are made of, as vector operations.

use crate::codegen::math::{Floats, Table};
use crate::codegen::tile::builder::Builder;
use crate::codegen::tile::ir::{Bin, Bits, Op, Pred, Un, Value, Width};

/// Floats of a size as elementary functions take them.
pub(super) struct Lanes<'a> {
    pub b: &'a mut Builder,
    pub bits: Bits,
}

/// 2^52 + 2^51: the lowest bits of a small whole number added to it are those of the number.
const UNITS: f64 = 6_755_399_441_055_744.0;
/// 2^23 + 2^22: the same of f32.
const UNITS_32: f64 = 12_582_912.0;
/// Bits of the exponent of 1.
const BIAS: f64 = 1023.0;

impl Lanes<'_> {
    fn bin(&mut self, op: Bin, a: Value, b: Value) -> Value {
        self.b.bin_of(op, a, b, self.bits)
    }
    fn un(&mut self, op: Un, a: Value) -> Value {
        self.b.un_of(op, a, self.bits)
    }
    /// Bits in all lanes: those of f32 or of f64.
    fn pattern(&mut self, single: u32, double: u64) -> Value {
        match self.bits {
            Bits::B32 => self.b.bits(single),
            Bits::B64 => self.b.bits64(double),
        }
    }
    fn sign_bit(&mut self) -> Value {
        self.pattern(1 << 31, 1 << 63)
    }
    fn number(&mut self, x: f64) -> Value {
        self.pattern((x as f32).to_bits(), x.to_bits())
    }
    /// A whole number of f64 and what is added to it, moved to where exponents are.
    fn at_exponent(&mut self, n: Value, plus: f64) -> Value {
        let units = self.number(UNITS + plus);
        let k = self.bin(Bin::Add, n, units);
        self.un(Un::Shl(52), k)
    }
}

impl Floats for Lanes<'_> {
    type V = Value;
    fn num(&mut self, _: Value, x: f64) -> Value {
        self.number(x)
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
        self.b.fma_of(a, b, c, self.bits)
    }
    fn fuses(&self) -> bool {
        true
    }
    fn if_any_less<const N: usize>(
        &mut self,
        x: Value,
        y: Value,
        usual: [Value; N],
        rare: impl FnOnce(&mut Self) -> [Value; N],
    ) -> [Value; N] {
        let c = self.b.cmp(Pred::Lt, x, y, self.bits);
        let opened = self.b.open_if_any(c);
        let other = rare(self);
        let mut through = usual;
        for (t, o) in through.iter_mut().zip(other) {
            *t = self.b.select(c, o, *t, self.bits);
        }
        let merged = self.b.close_if(opened, &usual, &through);
        std::array::from_fn(|i| merged[i])
    }
    fn lesser(&mut self, a: Value, b: Value) -> Value {
        // If only the second operand may be NaN, the result is NaN either way.
        let op = if self.b.is_number(a) && self.b.has(Op::Bin(Bin::Least, self.bits)) {
            Bin::Least
        } else {
            Bin::Min
        };
        self.bin(op, a, b)
    }
    fn greater(&mut self, a: Value, b: Value) -> Value {
        let op = if self.b.is_number(a) && self.b.has(Op::Bin(Bin::Most, self.bits)) {
            Bin::Most
        } else {
            Bin::Max
        };
        self.bin(op, a, b)
    }
    fn if_less(&mut self, x: Value, y: Value, a: Value, b: Value) -> Value {
        let c = self.b.cmp(Pred::Lt, x, y, self.bits);
        self.b.select(c, a, b, self.bits)
    }
    fn if_equal(&mut self, x: Value, y: Value, a: Value, b: Value) -> Value {
        let c = self.b.cmp(Pred::Eq, x, y, self.bits);
        self.b.select(c, a, b, self.bits)
    }
    fn abs(&mut self, a: Value) -> Value {
        let m = self.pattern(0x7fff_ffff, u64::MAX >> 1);
        self.bin(Bin::And, a, m)
    }
    fn neg(&mut self, a: Value) -> Value {
        let m = self.sign_bit();
        self.bin(Bin::Xor, a, m)
    }
    fn neg_abs(&mut self, a: Value) -> Value {
        let m = self.sign_bit();
        self.bin(Bin::Or, a, m)
    }
    fn sqrt(&mut self, a: Value) -> Value {
        self.un(Un::Sqrt, a)
    }
    fn round(&mut self, a: Value) -> Value {
        self.un(Un::Round, a)
    }
    fn scale(&mut self, y: Value, n: Value) -> Value {
        if self.b.width() == Width::Avx512 {
            return self.bin(Bin::Scale, y, n);
        }
        // 2^n in two factors, so that subnormal results are rounded once.
        if self.bits == Bits::B64 {
            let half = self.number(0.5);
            let half = self.bin(Bin::Mul, n, half);
            let half = self.un(Un::Floor, half);
            let rest = self.bin(Bin::Sub, n, half);
            let (a, b) = (self.at_exponent(half, BIAS), self.at_exponent(rest, BIAS));
            let y = self.bin(Bin::Mul, y, a);
            return self.bin(Bin::Mul, y, b);
        }
        let k = self.un(Un::ToInt, n);
        let half = self.un(Un::Sar(1), k);
        let rest = self.bin(Bin::ISub, k, half);
        let mut r = y;
        for k in [half, rest] {
            let bias = self.b.bits(127);
            let e = self.bin(Bin::IAdd, k, bias);
            let p = self.un(Un::Shl(23), e);
            r = self.bin(Bin::Mul, r, p);
        }
        r
    }
    fn scale_normal(&mut self, y: Value, n: Value) -> Value {
        if self.b.width() == Width::Avx512 {
            return self.bin(Bin::Scale, y, n);
        }
        let k = if self.bits == Bits::B64 {
            self.at_exponent(n, 0.0)
        } else if self.b.width().checks_for_nan() {
            // As the lowest bits of a float; those of NaN are 0.
            let units = self.number(UNITS_32);
            let k = self.bin(Bin::Add, n, units);
            self.un(Un::Shl(23), k)
        } else {
            let k = self.un(Un::ToInt, n);
            self.un(Un::Shl(23), k)
        };
        self.bin(Bin::IAdd, y, k)
    }
    fn scale_unit(&mut self, y: Value, n: Value) -> Value {
        if self.b.width() == Width::Avx512 || self.bits == Bits::B64 {
            return self.scale(y, n);
        }
        // The power of n + 24 is normal, and its product with 2^-24 is exact.
        const DOWN: f64 = 24.0;
        let (units, down) = (self.number(UNITS_32 + 127.0 + DOWN), self.number((-DOWN).exp2()));
        let k = self.bin(Bin::Add, n, units);
        let power = self.un(Un::Shl(23), k);
        let y = self.bin(Bin::Mul, y, down);
        self.bin(Bin::Mul, power, y)
    }
    fn with_sign(&mut self, a: Value, b: Value) -> Value {
        let m = self.sign_bit();
        let s = self.bin(Bin::And, b, m);
        self.bin(Bin::Or, a, s)
    }
    fn underflow_is_slow(&self) -> bool {
        matches!(self.b.width(), Width::Avx2 | Width::Avx512)
    }
    fn has_tables(&self) -> bool {
        self.bits == Bits::B32 && self.b.width() == Width::Avx512 && self.b.tables
    }
    fn entry(&mut self, index: Value, table: &'static Table) -> Value {
        let t = self.b.table(table);
        self.bin(Bin::Permute, index, t)
    }
    fn split(&mut self, x: Value) -> (Value, Value) {
        let e = if self.bits == Bits::B64 {
            // As the lowest bits of a float; the exponent of a half is taken off with it.
            const WHOLE: f64 = 4_503_599_627_370_496.0;
            let e = self.un(Un::Shr(52), x);
            let (units, added) = (self.number(WHOLE), self.number(WHOLE + BIAS - 1.0));
            let e = self.bin(Bin::Or, e, units);
            self.bin(Bin::Sub, e, added)
        } else {
            let e = self.un(Un::Shr(23), x);
            let e = self.un(Un::ToFloat, e);
            let bias = self.number(126.0);
            self.bin(Bin::Sub, e, bias)
        };
        let (mask, half) = (self.pattern(0x007f_ffff, (1 << 52) - 1), self.number(0.5));
        let m = self.bin(Bin::And, x, mask);
        (e, self.bin(Bin::Or, m, half))
    }
}

impl Builder {
    /// One element of memory in the lanes of a mask, 0 in the others; nothing is read if there are none.
    pub fn broadcast_masked(
        &mut self,
        form: crate::codegen::tile::ir::Form,
        mem: crate::codegen::tile::ir::Mem,
        mask: Value,
    ) -> Value {
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
