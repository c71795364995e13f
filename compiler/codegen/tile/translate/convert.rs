//! Conversions between compute types (ONNX Cast), lane by lane.

use super::expr::{NO_TYPE, bits_of, form, is_long};
use super::{Fit, Translate, Val};
use crate::codegen::tile::builder::Builder;
use crate::codegen::tile::ir::{Bin, Bits, Pred, Un, Value, Width};
use crate::nest::{BinOp, Buf, Expr, UnOp};
use crate::sym::Dim;
use crate::tensor::ElemType;

/// True for floats clamped by constants to the range of i32, rounded or not.
fn is_near(e: &Expr) -> bool {
    match e {
        Expr::Un(UnOp::Round, x) => is_clamped(x),
        e => is_clamped(e),
    }
}

/// True for floats clamped by constants to the range of i32.
fn is_clamped(e: &Expr) -> bool {
    let Expr::Bin(BinOp::Min, x, hi) = e else { return false };
    let (Expr::Bin(BinOp::Max, _, lo), Expr::Const(hi)) = (&**x, &**hi) else { return false };
    let Expr::Const(lo) = &**lo else { return false };
    hi.ty == ElemType::F32 && lo.to_f64() >= -65536.0 && hi.to_f64() <= 65536.0
}

impl Translate<'_> {
    /// The cast of an expression: operands that have a shorter way than by their own lanes are recognised.
    pub(super) fn converted(&mut self, to: ElemType, a: &Expr) -> Fit<Val> {
        match (to, a) {
            (ElemType::I32, a) if is_near(a) && self.bounds.of(self.m, a).is_some() => self.near_int(a),
            (ElemType::F32, a) if let Some((buf, at)) = self.small_load(a) => {
                let (a, form) = (self.access(buf, at)?, form(self.m.bufs[buf].ty).ok_or(NO_TYPE)?);
                Ok(Val { v: self.load_as_float(&a, form)?, ty: ElemType::F32 })
            }
            (_, Expr::Index(d)) if !self.b.is_long() => self.index_as(to, *d),
            _ => {
                let a = self.value(a)?;
                self.cast(to, a)
            }
        }
    }
    /// The load of an 8-bit or 16-bit integer, extended or not.
    fn small_load<'e>(&self, e: &'e Expr) -> Option<(Buf, &'e [Dim])> {
        let e = if let Expr::Cast(ElemType::I32, x) = e { x } else { e };
        match e {
            Expr::Load { buf, at }
                if matches!(
                    self.m.bufs[*buf].ty,
                    ElemType::U8 | ElemType::I8 | ElemType::U16 | ElemType::I16
                ) =>
            {
                Some((*buf, at))
            }
            _ => None,
        }
    }
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
            (x, Bool) if form(x).is_some() => {
                let zero = self.number(0.0, x);
                let compare = if x.is_float() { Builder::cmp } else { Builder::icmp };
                compare(&mut self.b, Pred::Ne, a.v, zero, bits_of(x))
            }
            (Bool, t) if form(t).is_some() => {
                let (one, zero) = (self.number(1.0, t), self.number(0.0, t));
                self.b.select(a.v, one, zero, bits_of(t))
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
