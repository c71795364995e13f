//! Loads, and conversions between the types of memory and of lanes.

use super::access::Access;
use super::expr::{NO_TYPE, form, is_long};
use super::{Fit, Translate, Val};
use crate::codegen::tile::ir::{Bin, Bits, Form, Op, Pred, Un, Value, Width};
use crate::nest::Buf;
use crate::sym::Dim;
use crate::tensor::ElemType;

impl Translate<'_> {
    pub(super) fn load(&mut self, buf: Buf, at: &[Dim]) -> Fit<Val> {
        let ty = self.m.bufs[buf].ty;
        if let Some(v) = self.transposed(buf, at) {
            return Ok(Val { v, ty });
        }
        match self.access(buf, at) {
            Ok(a) => self.from_storage(ty, &a),
            Err(why) => {
                let form = form(ty).filter(|f| *f == Form::B32).ok_or(why)?;
                Ok(Val { v: self.load_from_planes(buf, at, form)?, ty })
            }
        }
    }
    fn from_storage(&mut self, ty: ElemType, a: &Access) -> Fit<Val> {
        if is_long(ty) && !self.b.is_long() {
            return Err(NO_TYPE);
        }
        if ty == ElemType::F16 && !self.b.has(Op::Load(Form::F16)) {
            let v = self.load_converted(a, (Form::U16, Form::F16), Self::half_to_float)?;
            return Ok(Val { v, ty: ElemType::F32 });
        }
        let v = self.load_form(a, form(ty).ok_or(NO_TYPE)?)?;
        Ok(match ty {
            ElemType::BF16 => Val { v: self.b.un(Un::Shl(16), v), ty: ElemType::F32 },
            ElemType::F16 => Val { v, ty: ElemType::F32 },
            ElemType::Bool => {
                let zero = self.b.bits(0);
                Val { v: self.b.icmp(Pred::Ne, v, zero, Bits::B32), ty }
            }
            _ => Val { v, ty },
        })
    }
    pub(super) fn to_storage(&mut self, ty: ElemType, v: Val) -> Fit<(Form, Value)> {
        Ok(match ty {
            ElemType::F32 | ElemType::I32 | ElemType::U32 => (Form::B32, v.v),
            t if is_long(t) && self.b.is_long() => (Form::B64, v.v),
            ElemType::F16 if self.b.has(Op::Store(Form::F16)) => (Form::F16, v.v),
            ElemType::F16 => (Form::U16, self.float_to_half(v.v)),
            ElemType::BF16 => (Form::U16, self.to_bf16(v.v)),
            ElemType::U8 | ElemType::I8 => (Form::U8, v.v),
            ElemType::U16 | ElemType::I16 => (Form::U16, v.v),
            ElemType::Bool => {
                let (one, zero) = (self.b.bits(1), self.b.bits(0));
                (Form::U8, self.b.select(v.v, one, zero, Bits::B32))
            }
            _ => return Err(NO_TYPE),
        })
    }
    /// The value to store in a form, packed in the first part of the register if the store does not narrow.
    pub(super) fn side_by_side(&mut self, form: Form, v: Value) -> Value {
        // Stores of whole vectors convert at 256 bits.
        let converts = self.b.width() == Width::Neon || self.mask.is_some();
        if form == Form::F16 && converts && self.b.has(Op::Un(Un::Half, Bits::B32)) {
            return self.b.un(Un::Half, v);
        }
        if !self.b.has(Op::Un(Un::Narrow(1), Bits::B32)) || matches!(form, Form::B64 | Form::B32 | Form::F16)
        {
            return v;
        }
        if self.b.width() == Width::Neon {
            return self.b.un(Un::Narrow(form.bytes() as u8), v);
        }
        let v = self.b.un(Un::Narrow(form.bytes() as u8), v);
        let upper = self.b.un(Un::Swap(4), v);
        self.b.bin(Bin::Or, v, upper)
    }
    /// Converts the f16 in the lower 16 bits of each lane to f32.
    pub(super) fn half_to_float(&mut self, x: Value) -> Value {
        let (rest, top) = (self.b.bits(0x7fff), self.b.bits(0x8000));
        let (m, sign) = (self.b.bin(Bin::And, x, rest), self.b.bin(Bin::And, x, top));
        let (m, sign) = (self.b.un(Un::Shl(13), m), self.b.un(Un::Shl(16), sign));
        // Adjust the exponent by the difference of the biases; this also handles subnormal numbers.
        let (scale, last, most) =
            (self.b.f32(2f32.powi(112)), self.b.bits(0x0f7f_ffff), self.b.bits(0x7f80_0000));
        let v = self.b.bin(Bin::Mul, m, scale);
        let special = self.b.icmp(Pred::Lt, last, m, Bits::B32);
        let all = self.b.bin(Bin::Or, v, most);
        let v = self.b.select(special, all, v, Bits::B32);
        self.b.bin(Bin::Or, v, sign)
    }
    /// Rounds to the bits of an f16, ties to even; NaN stays NaN.
    pub(super) fn float_to_half(&mut self, x: Value) -> Value {
        let (sign, top) = (self.b.un(Un::Shr(16), x), self.b.bits(0x8000));
        let (sign, rest) = (self.b.bin(Bin::And, sign, top), self.b.bits(0x7fff_ffff));
        let a = self.b.bin(Bin::And, x, rest);
        // The exponent with the other bias; what overflows becomes infinity.
        let (one, bias) = (self.b.bits(1), self.b.bits(0xfff));
        let odd = self.b.un(Un::Shr(13), a);
        let odd = self.b.bin(Bin::And, odd, one);
        let r = self.b.bin(Bin::IAdd, a, bias);
        let r = self.b.bin(Bin::IAdd, r, odd);
        let r = self.b.un(Un::Shr(13), r);
        let (biases, infinite) = (self.b.bits(112 << 10), self.b.bits(0x7c00));
        let r = self.b.bin(Bin::ISub, r, biases);
        let normal = self.b.bin(Bin::IMin, r, infinite);
        // Subnormal numbers are multiples of the distance between floats from 0.5 on.
        let (half, least) = (self.b.f32(0.5), self.b.f32(2f32.powi(-14)));
        let r = self.b.bin(Bin::Add, a, half);
        let tiny = self.b.bin(Bin::ISub, r, half);
        let is_tiny = self.b.icmp(Pred::Lt, a, least, Bits::B32);
        let r = self.b.select(is_tiny, tiny, normal, Bits::B32);
        let (nan, quiet) = (self.b.cmp(Pred::Unordered, x, x, Bits::B32), self.b.bits(0x7e00));
        let r = self.b.select(nan, quiet, r, Bits::B32);
        self.b.bin(Bin::Or, r, sign)
    }
    /// Rounds to the upper half, ties to even; NaN stays NaN.
    fn to_bf16(&mut self, x: Value) -> Value {
        if self.b.rounds_to_bf16 {
            return self.b.un(Un::Brain, x);
        }
        let (one, bias, quiet) = (self.b.bits(1), self.b.bits(0x7fff), self.b.bits(0x7fc0));
        let up = self.b.un(Un::Shr(16), x);
        let odd = self.b.bin(Bin::And, up, one);
        let r = self.b.bin(Bin::IAdd, x, bias);
        let r = self.b.bin(Bin::IAdd, r, odd);
        let r = self.b.un(Un::Shr(16), r);
        let nan = self.b.cmp(Pred::Unordered, x, x, Bits::B32);
        self.b.select(nan, quiet, r, Bits::B32)
    }
}
