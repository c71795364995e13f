//! Operations on lanes of 64 bits: one instruction where the machine has it, else put together from what it
//! has.

use crate::codegen::tile::builder::Builder;
use crate::codegen::tile::ir::{Bin, Bits, Op, Pred, Un, Value};

/// The highest bit.
const TOP: u64 = 1 << 63;
/// 2^52: the bits of a whole number below, as a float added to it, are its lowest ones.
const UNITS: f64 = 4_503_599_627_370_496.0;

impl Builder {
    /// A float in all lanes of 64 bits.
    pub(super) fn f64(&mut self, x: f64) -> Value {
        self.bits64(x.to_bits())
    }
    fn long_bin(&mut self, op: Bin, a: Value, b: Value) -> Value {
        if op == Bin::IMulLow
            && self.has(Op::Un(Un::Low, Bits::B64))
            && !self.has(Op::Bin(Bin::IMul, Bits::B64))
        {
            // The instruction takes the lower halves side by side.
            let (a, b) = (self.un_of(Un::Low, a, Bits::B64), self.un_of(Un::Low, b, Bits::B64));
            return self.bin_of(op, a, b, Bits::B64);
        }
        self.bin_of(op, a, b, Bits::B64)
    }
    /// An operation on integers of 64 bits.
    pub(super) fn long(&mut self, op: Bin, a: Value, b: Value) -> Value {
        if self.has(Op::Bin(op, Bits::B64)) {
            return self.long_bin(op, a, b);
        }
        match op {
            Bin::IMul => {
                // The upper halves reach the upper half of the product only.
                let (ah, bh) = (self.un_of(Un::Shr(32), a, Bits::B64), self.un_of(Un::Shr(32), b, Bits::B64));
                let low = self.long_bin(Bin::IMulLow, a, b);
                let (x, y) = (self.long_bin(Bin::IMulLow, ah, b), self.long_bin(Bin::IMulLow, a, bh));
                let cross = self.long_bin(Bin::IAdd, x, y);
                let cross = self.un_of(Un::Shl(32), cross, Bits::B64);
                self.long_bin(Bin::IAdd, low, cross)
            }
            Bin::IMin | Bin::IMax => {
                let less = self.icmp(Pred::Lt, a, b, Bits::B64);
                if op == Bin::IMin {
                    self.select(less, a, b, Bits::B64)
                } else {
                    self.select(less, b, a, Bits::B64)
                }
            }
            Bin::UMin | Bin::UMax => {
                let less = self.unsigned_less(a, b, Bits::B64);
                if op == Bin::UMin {
                    self.select(less, a, b, Bits::B64)
                } else {
                    self.select(less, b, a, Bits::B64)
                }
            }
            Bin::Sar => {
                // Of numbers below 0 the other bits are shifted.
                let zero = self.bits64(0);
                let below = self.icmp(Pred::Lt, a, zero, Bits::B64);
                let ones = self.bits64(u64::MAX);
                let sign = self.select(below, ones, zero, Bits::B64);
                let x = self.long_bin(Bin::Xor, a, sign);
                let x = self.long_bin(Bin::Shr, x, b);
                self.long_bin(Bin::Xor, x, sign)
            }
            op => self.long_bin(op, a, b),
        }
    }
    /// With the highest bit turned the order of unsigned numbers is that of signed ones.
    fn turned(&mut self, x: Value, bits: Bits) -> Value {
        let top = if bits == Bits::B64 { self.bits64(TOP) } else { self.bits(1 << 31) };
        self.bin_of(Bin::Xor, x, top, bits)
    }
    fn unsigned_less(&mut self, a: Value, b: Value, bits: Bits) -> Value {
        self.ucmp(Pred::Lt, a, b, bits)
    }
    /// Compares unsigned integers.
    pub(super) fn ucmp(&mut self, p: Pred, a: Value, b: Value, bits: Bits) -> Value {
        if matches!(p, Pred::Eq | Pred::Ne) {
            return self.icmp(p, a, b, bits);
        }
        if self.has(Op::UCmp(p, bits)) {
            return self.native_ucmp(p, a, b, bits);
        }
        let (a, b) = (self.turned(a, bits), self.turned(b, bits));
        self.icmp(p, a, b, bits)
    }
    /// |x| of signed integers.
    pub(super) fn long_abs(&mut self, x: Value) -> Value {
        if self.has(Op::Un(Un::IAbs, Bits::B64)) {
            return self.un_of(Un::IAbs, x, Bits::B64);
        }
        let zero = self.bits64(0);
        let minus = self.long_bin(Bin::ISub, zero, x);
        let below = self.icmp(Pred::Lt, x, zero, Bits::B64);
        self.select(below, minus, x, Bits::B64)
    }
    /// The lower 32 bits.
    pub(super) fn low(&mut self, x: Value) -> Value {
        if self.has(Op::Un(Un::Low, Bits::B64)) {
            self.un_of(Un::Low, x, Bits::B64)
        } else {
            self.mask_for(x, Bits::B32)
        }
    }
    /// i64 -> f64, rounded once.
    pub(super) fn long_to_double(&mut self, x: Value) -> Value {
        if self.has(Op::Un(Un::ToDouble, Bits::B64)) {
            return self.un_of(Un::ToDouble, x, Bits::B64);
        }
        // 2^84 + 2^63 + high 2^32 and 2^52 + low, as bits; what was added is taken off the former exactly.
        let (mask, units) = (self.bits64(0xffff_ffff), self.f64(UNITS));
        let low = self.long_bin(Bin::And, x, mask);
        let low = self.long_bin(Bin::Or, low, units);
        let high = self.un_of(Un::Shr(32), x, Bits::B64);
        let (above, added) = (self.bits64(0x4530_0000_8000_0000), self.bits64(0x4530_0000_8010_0000));
        let high = self.long_bin(Bin::Xor, high, above);
        let high = self.long_bin(Bin::Sub, high, added);
        self.long_bin(Bin::Add, high, low)
    }
    /// i64 -> f32, rounded once.
    pub(super) fn long_to_float(&mut self, x: Value) -> Value {
        if self.has(Op::Un(Un::ToFloat, Bits::B64)) {
            return self.un_of(Un::ToFloat, x, Bits::B64);
        }
        // What f64 has no room for becomes one bit, far below the last one of the result.
        let (rest, keep) = (self.bits64(0x7ff), self.bits64(!0x7ff));
        let lost = self.long_bin(Bin::And, x, rest);
        let lost = self.long_bin(Bin::IAdd, lost, rest);
        let odd = self.long_bin(Bin::Or, x, lost);
        let odd = self.long_bin(Bin::And, odd, keep);
        let (shift, zero) = (self.bits64(1 << 53), self.bits64(0));
        let up = self.long_bin(Bin::IAdd, x, shift);
        let up = self.un_of(Un::Shr(54), up, Bits::B64);
        let fits = self.icmp(Pred::Eq, up, zero, Bits::B64);
        let x = self.select(fits, x, odd, Bits::B64);
        let d = self.long_to_double(x);
        self.un_of(Un::Single, d, Bits::B64)
    }
    /// u32 -> f64.
    pub(super) fn word_to_double(&mut self, x: Value) -> Value {
        if self.has(Op::Un(Un::UnsignedToDouble, Bits::B32)) {
            return self.un(Un::UnsignedToDouble, x);
        }
        let (x, units) = (self.un(Un::ExtendUnsigned, x), self.f64(UNITS));
        let x = self.long_bin(Bin::Or, x, units);
        self.long_bin(Bin::Sub, x, units)
    }
    /// f64 -> i32: towards zero, saturating; NaN becomes 0.
    pub(super) fn double_to_int(&mut self, x: Value) -> Value {
        let i = self.un_of(Un::TruncInt, x, Bits::B64);
        if self.width().saturates() {
            return i;
        }
        let (limit, most, zero) = (self.f64(2_147_483_648.0), self.bits(0x7fff_ffff), self.bits(0));
        let over = self.cmp(Pred::Le, limit, x, Bits::B64);
        let i = self.select(over, most, i, Bits::B32);
        let nan = self.cmp(Pred::Unordered, x, x, Bits::B64);
        self.select(nan, zero, i, Bits::B32)
    }
    /// f64 -> u32: the same.
    pub(super) fn double_to_word(&mut self, x: Value) -> Value {
        // The instruction gives its second operand for NaN.
        let (zero, most, units) = (self.f64(0.0), self.f64(4_294_967_295.0), self.f64(UNITS));
        let x = self.long_bin(Bin::Max, x, zero);
        let x = self.long_bin(Bin::Min, x, most);
        let x = self.un_of(Un::Trunc, x, Bits::B64);
        let x = self.long_bin(Bin::Add, x, units);
        self.low(x)
    }
    /// f64 -> i64: the same.
    pub(super) fn double_to_long(&mut self, x: Value) -> Value {
        let mut i = self.near_long(x);
        if self.width().saturates() {
            return i;
        }
        if !self.has(Op::Un(Un::TruncLong, Bits::B64)) {
            let (least, lowest) = (self.f64(-(2f64.powi(63))), self.bits64(TOP));
            let under = self.cmp(Pred::Lt, x, least, Bits::B64);
            i = self.select(under, lowest, i, Bits::B64);
        }
        let (limit, most, zero) = (self.f64(2f64.powi(63)), self.bits64(TOP - 1), self.bits64(0));
        let over = self.cmp(Pred::Le, limit, x, Bits::B64);
        let i = self.select(over, most, i, Bits::B64);
        let nan = self.cmp(Pred::Unordered, x, x, Bits::B64);
        self.select(nan, zero, i, Bits::B64)
    }
    /// f64 -> i64, towards zero, of numbers that i64 holds.
    pub(super) fn near_long(&mut self, x: Value) -> Value {
        if self.has(Op::Un(Un::TruncLong, Bits::B64)) {
            return self.un_of(Un::TruncLong, x, Bits::B64);
        }
        let t = self.un_of(Un::Trunc, x, Bits::B64);
        let (scale, back, units, mask) =
            (self.f64(2f64.powi(-32)), self.f64(-(2f64.powi(32))), self.f64(UNITS), self.bits64(0xffff_ffff));
        let high = self.long_bin(Bin::Mul, t, scale);
        let high = self.un_of(Un::Floor, high, Bits::B64);
        let low = self.fma_of(high, back, t, Bits::B64);
        let low = self.long_bin(Bin::Add, low, units);
        let low = self.long_bin(Bin::And, low, mask);
        let high = self.un_of(Un::TruncInt, high, Bits::B64);
        let high = self.un(Un::Extend, high);
        let high = self.un_of(Un::Shl(32), high, Bits::B64);
        self.long_bin(Bin::Or, high, low)
    }
    /// i64 -> f64 of less than 2^51.
    pub(super) fn small_to_double(&mut self, x: Value) -> Value {
        if self.has(Op::Un(Un::ToDouble, Bits::B64)) {
            return self.un_of(Un::ToDouble, x, Bits::B64);
        }
        let middle = self.f64(1.5 * UNITS);
        let x = self.long_bin(Bin::IAdd, x, middle);
        self.long_bin(Bin::Sub, x, middle)
    }
    /// The same back, of whole numbers.
    pub(super) fn small_to_long(&mut self, x: Value) -> Value {
        if self.has(Op::Un(Un::TruncLong, Bits::B64)) {
            return self.un_of(Un::TruncLong, x, Bits::B64);
        }
        let middle = self.f64(1.5 * UNITS);
        let x = self.long_bin(Bin::Add, x, middle);
        self.long_bin(Bin::ISub, x, middle)
    }
    /// f64 -> u64: the same; AVX-512 only.
    pub(super) fn double_to_unsigned_long(&mut self, x: Value) -> Value {
        let zero = self.f64(0.0);
        // Also for NaN.
        let x = self.long_bin(Bin::Max, x, zero);
        self.un_of(Un::TruncUnsigned, x, Bits::B64)
    }
}
