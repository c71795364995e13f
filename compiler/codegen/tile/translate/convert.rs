//! Conversions between compute types (ONNX Cast), lane by lane.

use super::expr::{NO_TYPE, bits_of, is_long, is_near};
use super::{Fit, Translate, Val};
use crate::codegen::tile::ir::{Bin, Bits, Pred, Un, Value, Width};
use crate::nest::{BinOp, Expr, UnOp};
use crate::tensor::ElemType;

impl Translate<'_> {
    pub(super) fn cast(&mut self, to: ElemType, a: Val) -> Fit<Val> {
        use ElemType::{Bool, F32, F64, I8, I16, I32, I64, U8, U16, U32, U64};
        const NONE: &str = "a conversion without vectors";
        let small = |t: ElemType| matches!(t, I8 | U8 | I16 | U16);
        let word = |t: ElemType| small(t) || matches!(t, I32 | U32);
        let avx512 = self.b.width() == Width::Avx512;
        if is_long(to) && !self.b.is_long() {
            return Err("elements of 64 bits among vectors of shorter ones");
        }
        let v = match (a.ty, to) {
            (x, y) if x == y => a.v,
            (F32 | F64, Bool) => {
                let zero = self.zero(a.ty);
                self.b.cmp(Pred::Ne, a.v, zero, bits_of(a.ty))
            }
            (x, Bool) if word(x) || is_long(x) => {
                let zero = self.zero(x);
                self.b.icmp(Pred::Ne, a.v, zero, bits_of(x))
            }
            (Bool, F32) => {
                let (one, zero) = (self.b.f32(1.0), self.b.f32(0.0));
                self.b.select(a.v, one, zero, Bits::B32)
            }
            (Bool, F64) => {
                let (one, zero) = (self.b.f64(1.0), self.b.f64(0.0));
                self.b.select(a.v, one, zero, Bits::B64)
            }
            (Bool, t) if word(t) => {
                let (one, zero) = (self.b.bits(1), self.b.bits(0));
                self.b.select(a.v, one, zero, Bits::B32)
            }
            (Bool, I64 | U64) => {
                let (one, zero) = (self.b.bits64(1), self.b.bits64(0));
                self.b.select(a.v, one, zero, Bits::B64)
            }
            (x, F32) if x == I32 || small(x) => self.b.un(Un::ToFloat, a.v),
            (x, F64) if x == I32 || small(x) => self.b.un(Un::ToDouble, a.v),
            (U32, F64) => self.b.word_to_double(a.v),
            (I64, F32) => self.b.long_to_float(a.v),
            (I64, F64) => self.b.long_to_double(a.v),
            (U64, F32) if avx512 => self.b.un_of(Un::UnsignedToFloat, a.v, Bits::B64),
            (U64, F64) if avx512 => self.b.un_of(Un::UnsignedToDouble, a.v, Bits::B64),
            (F32, F64) => self.b.un(Un::Double, a.v),
            (F64, F32) => self.b.un_of(Un::Single, a.v, Bits::B64),
            (F32, I32) => self.to_int(a.v),
            (F64, I32) => self.b.double_to_int(a.v),
            (F32, U32 | I64 | U64) if self.b.is_long() => {
                let d = self.b.un(Un::Double, a.v);
                return self.cast(to, Val { v: d, ty: F64 });
            }
            (F64, U32) => self.b.double_to_word(a.v),
            (F64, I64) => self.b.double_to_long(a.v),
            (F64, U64) if avx512 => self.b.double_to_unsigned_long(a.v),
            (F32 | F64, t) if small(t) => {
                let (lo, hi) = match t {
                    I8 => (-128, 127),
                    U8 => (0, 255),
                    I16 => (-32768, 32767),
                    _ => (0, 65535),
                };
                let i = if a.ty == F64 { self.b.double_to_int(a.v) } else { self.to_int(a.v) };
                let (lo, hi) = (self.b.bits(lo as u32), self.b.bits(hi));
                let i = self.b.bin(Bin::IMax, i, lo);
                self.b.bin(Bin::IMin, i, hi)
            }
            // Integers wrap. Those of less than 32 bits are extended in their lanes.
            (I64 | U64, I64 | U64) => a.v,
            (U32, I64 | U64) => self.b.un(Un::ExtendUnsigned, a.v),
            (x, I64 | U64) if word(x) => self.b.un(Un::Extend, a.v),
            (I64 | U64, t) if word(t) => {
                let low = self.b.low(a.v);
                self.narrowed(low, t)
            }
            (x, t) if word(x) && word(t) => self.narrowed(a.v, t),
            _ => return Err(NONE),
        };
        Ok(Val { v, ty: to })
    }
    fn zero(&mut self, ty: ElemType) -> Value {
        if is_long(ty) { self.b.bits64(0) } else { self.b.bits(0) }
    }
    /// Truncates 32 bits to an integer type of that size or less, and extends the result.
    fn narrowed(&mut self, x: Value, to: ElemType) -> Value {
        match to {
            ElemType::U8 | ElemType::U16 => {
                let k = self.b.bits(if to == ElemType::U8 { 0xff } else { 0xffff });
                self.b.bin(Bin::And, x, k)
            }
            ElemType::I8 | ElemType::I16 => {
                let n = if to == ElemType::I8 { 24 } else { 16 };
                let up = self.b.un(Un::Shl(n), x);
                self.b.un(Un::Sar(n), up)
            }
            _ => x,
        }
    }
    /// Rounds towards zero, saturating; NaN becomes 0.
    fn to_int(&mut self, x: Value) -> Value {
        let i = self.b.un(Un::TruncInt, x);
        if self.b.width().saturates() {
            return i;
        }
        let (limit, most, zero) = (self.b.f32(2_147_483_648.0), self.b.bits(0x7fff_ffff), self.b.bits(0));
        let over = self.b.cmp(Pred::Le, limit, x, Bits::B32);
        let i = self.b.select(over, most, i, Bits::B32);
        let nan = self.b.cmp(Pred::Unordered, x, x, Bits::B32);
        self.b.select(nan, zero, i, Bits::B32)
    }
    /// Converts a value that `is_near` to i32; NaN becomes 0x8000_0000.
    pub(super) fn near_int(&mut self, e: &Expr) -> Fit<Val> {
        let (op, x) = match e {
            Expr::Un(UnOp::Round, x) => (Un::ToInt, &**x),
            x => (Un::TruncInt, x),
        };
        let x = self.value(x)?;
        Ok(Val { v: if x.ty == ElemType::F32 { self.b.un(op, x.v) } else { x.v }, ty: ElemType::I32 })
    }
    /// A vector with the low byte of a value as `t` in each lane.
    pub(super) fn low_byte(&mut self, e: &Expr, t: ElemType) -> Fit<Value> {
        match e {
            // NaN and values out of range become 0x8000_0000, whose low byte is 0. Floats are clamped here.
            Expr::Cast(ElemType::I32, x) if is_near(x) => Ok(self.near_int(x)?.v),
            Expr::Bin(op @ (BinOp::Add | BinOp::Sub), x, y) if matches!(**y, Expr::Const(_)) => {
                let (x, y) = (self.low_byte(x, t)?, self.value(y)?);
                if y.ty != ElemType::I32 {
                    return Err(NO_TYPE);
                }
                Ok(self.b.bin(if *op == BinOp::Add { Bin::IAdd } else { Bin::ISub }, x, y.v))
            }
            e => {
                let v = self.value(e)?;
                match v.ty {
                    ElemType::I32 | ElemType::U32 => Ok(v.v),
                    _ => self.cast(t, v).map(|v| v.v),
                }
            }
        }
    }
}
