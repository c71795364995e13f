//! Conversions: between compute types (ONNX Cast), and between storage and compute type at loads and stores.

use super::expr::Val;
use super::func::Emit;
use crate::diag::Result;
use crate::nest::Scalar;
use crate::tensor::{ElemType, SmallFloat};
use cranelift_codegen::ir::condcodes::{FloatCC, IntCC};
use cranelift_codegen::ir::types::{F32, F32X4, F64, I8, I16, I32, I32X4, I64, I128};
use cranelift_codegen::ir::{InstBuilder, Type, Value};

/// Cranelift type of a compute type.
pub(super) fn scalar_type(t: ElemType) -> Type {
    match t {
        ElemType::F32 => F32,
        ElemType::F64 => F64,
        t => match t.bits() {
            128 => I128,
            64 => I64,
            32 => I32,
            16 => I16,
            _ => I8,
        },
    }
}

/// Cranelift type of loads and stores.
pub(super) fn storage_clif(t: ElemType) -> Type {
    match t {
        ElemType::F16 | ElemType::BF16 => I16,
        t => scalar_type(t),
    }
}

impl Emit<'_, '_> {
    pub fn from_storage(&mut self, t: ElemType, v: Value) -> Result<Value> {
        match t {
            ElemType::BF16 => {
                let w = self.b.ins().uextend(I32, v);
                let w = self.b.ins().ishl_imm_u(w, 16);
                Ok(self.bits_as(F32, w))
            }
            ElemType::F16 => Ok(self.f16_to_f32(v)),
            ElemType::Bool => Ok(self.b.ins().icmp_imm_s(IntCC::NotEqual, v, 0)),
            // In scratch buffers the bits above the element are undefined; a packed load has cleared them.
            ElemType::U4 | ElemType::U2 => Ok(self.b.ins().band_imm_s(v, (1 << t.bits()) - 1)),
            ElemType::I4 | ElemType::I2 => {
                let w = self.b.ins().uextend(I32, v);
                let w = self.b.ins().ishl_imm_u(w, 32 - i64::from(t.bits()));
                let w = self.b.ins().sshr_imm_u(w, 32 - i64::from(t.bits()));
                Ok(self.b.ins().ireduce(I8, w))
            }
            ElemType::F8E8M0 => Ok(self.e8m0_to_f32(v)),
            t if t.bytes().is_some() && t.compute() == t => Ok(v),
            t => match SmallFloat::of(t) {
                Some(s) => Ok(self.small_to_f32(s, v)),
                None => self.bug(format!("a load of {t}")),
            },
        }
    }
    pub fn to_storage(&mut self, t: ElemType, v: Val) -> Result<Value> {
        match t {
            ElemType::BF16 => Ok(self.f32_to_bf16(v.v)),
            ElemType::F16 => Ok(self.f32_to_f16(v.v)),
            ElemType::U4 | ElemType::U2 | ElemType::I4 | ElemType::I2 => Ok(v.v),
            ElemType::F8E8M0 => Ok(self.f32_to_e8m0(v.v)),
            t if t.bytes().is_some() && t.compute() == t => Ok(v.v),
            t => match SmallFloat::of(t) {
                Some(s) => Ok(self.f32_to_small(s, v.v)),
                None => self.bug(format!("a store of {t}")),
            },
        }
    }
    /// Moves exponent and mantissa into place and scales by 2^112, which also handles subnormals.
    fn f16_to_f32(&mut self, h: Value) -> Value {
        let w = self.b.ins().uextend(I32, h);
        let sign = self.b.ins().band_imm_s(w, 0x8000);
        let sign = self.b.ins().ishl_imm_u(sign, 16);
        let em = self.b.ins().band_imm_s(w, 0x7fff);
        let em = self.b.ins().ishl_imm_u(em, 13);
        let f = self.bits_as(F32, em);
        let scale = self.b.ins().f32const(f32::from_bits(0x7780_0000));
        let f = self.b.ins().fmul(f, scale);
        let bits = self.bits_as(I32, f);
        // Infinity and NaN: the exponent is all ones.
        let special = self.b.ins().icmp_imm_s(IntCC::SignedGreaterThanOrEqual, em, 0x7c00 << 13);
        let inf = self.b.ins().bor_imm_s(em, 0x7f80_0000);
        let bits = self.b.ins().select(special, inf, bits);
        let bits = self.b.ins().bor(bits, sign);
        self.bits_as(F32, bits)
    }
    /// Rounds to nearest even; NaN becomes a quiet NaN.
    fn f32_to_f16(&mut self, f: Value) -> Value {
        let bits = self.bits_as(I32, f);
        let sign = self.b.ins().ushr_imm_u(bits, 16);
        let sign = self.b.ins().band_imm_s(sign, 0x8000);
        let abs = self.b.ins().band_imm_s(bits, 0x7fff_ffff);
        // Normal: rebias and round by adding half of the dropped part, and one more if the kept part is odd.
        let odd = self.b.ins().ushr_imm_u(abs, 13);
        let odd = self.b.ins().band_imm_s(odd, 1);
        let n = self.b.ins().iadd_imm_s(abs, 0xfff - (112 << 23));
        let n = self.b.ins().iadd(n, odd);
        let n = self.b.ins().ushr_imm_u(n, 13);
        // Subnormal: let the float adder round at 2^-24.
        let magic = self.b.ins().f32const(0.5);
        let af = self.bits_as(F32, abs);
        let s = self.b.ins().fadd(af, magic);
        let s = self.bits_as(I32, s);
        let s = self.b.ins().iadd_imm_s(s, -0x3f00_0000);
        let small = self.b.ins().icmp_imm_s(IntCC::SignedLessThan, abs, 113 << 23);
        let r = self.b.ins().select(small, s, n);
        let big = self.b.ins().icmp_imm_s(IntCC::SignedGreaterThanOrEqual, abs, 0x477f_f000);
        let inf = self.b.ins().iconst(I32, 0x7c00);
        let r = self.b.ins().select(big, inf, r);
        let nan = self.b.ins().icmp_imm_s(IntCC::SignedGreaterThan, abs, 0x7f80_0000);
        let quiet = self.b.ins().iconst(I32, 0x7e00);
        let r = self.b.ins().select(nan, quiet, r);
        let r = self.b.ins().bor(r, sign);
        self.b.ins().ireduce(I16, r)
    }
    /// As [`Emit::f16_to_f32`], for formats of at most 8 bits.
    fn small_to_f32(&mut self, s: SmallFloat, raw: Value) -> Value {
        let width = s.exp + s.man;
        let w = self.b.ins().uextend(I32, raw);
        let sign = self.b.ins().band_imm_s(w, 1 << width);
        let sign = self.b.ins().ishl_imm_u(sign, i64::from(31 - width));
        let body = self.b.ins().band_imm_s(w, (1 << width) - 1);
        let em = self.b.ins().ishl_imm_u(body, i64::from(23 - s.man));
        let f = self.bits_as(F32, em);
        let scale = self.b.ins().f32const(f32::from_bits(((254 - s.bias) as u32) << 23));
        let f = self.b.ins().fmul(f, scale);
        let mut bits = self.bits_as(I32, f);
        let nan = self.b.ins().iconst(I32, 0x7fc0_0000);
        if s.has_specials() && !s.uz {
            let special = self.b.ins().icmp_imm_s(IntCC::SignedGreaterThan, body, i64::from(s.max));
            let value = if s.over == s.nan {
                nan
            } else {
                let infinite = self.b.ins().icmp_imm_s(IntCC::Equal, body, i64::from(s.over));
                let inf = self.b.ins().iconst(I32, 0x7f80_0000);
                self.b.ins().select(infinite, inf, nan)
            };
            bits = self.b.ins().select(special, value, bits);
        }
        bits = self.b.ins().bor(bits, sign);
        if s.uz {
            let raw = self.b.ins().band_imm_s(w, 0xff);
            let special = self.b.ins().icmp_imm_s(IntCC::Equal, raw, i64::from(s.nan));
            bits = self.b.ins().select(special, nan, bits);
        }
        self.bits_as(F32, bits)
    }
    /// As [`Emit::f32_to_f16`], for formats of at most 8 bits.
    fn f32_to_small(&mut self, s: SmallFloat, f: Value) -> Value {
        let (width, dropped) = (s.exp + s.man, 23 - s.man);
        let bits = self.bits_as(I32, f);
        let abs = self.b.ins().band_imm_s(bits, 0x7fff_ffff);
        let odd = self.b.ins().ushr_imm_u(abs, i64::from(dropped));
        let odd = self.b.ins().band_imm_s(odd, 1);
        // Adds half of the dropped part, rebiased. An arithmetic shift keeps small values below the limit.
        let n = self.b.ins().iadd_imm_s(abs, (1 << (dropped - 1)) - 1 - (i64::from(127 - s.bias) << 23));
        let n = self.b.ins().iadd(n, odd);
        let n = self.b.ins().sshr_imm_u(n, i64::from(dropped));
        // Subnormal: the float adder rounds at the smallest step.
        let magic = ((127 + (1 - s.bias) - s.man as i32 + 23) as u32) << 23;
        let m = self.b.ins().f32const(f32::from_bits(magic));
        let af = self.bits_as(F32, abs);
        let t = self.b.ins().fadd(af, m);
        let t = self.bits_as(I32, t);
        let t = self.b.ins().iadd_imm_s(t, -i64::from(magic));
        let small = self.b.ins().icmp_imm_s(IntCC::SignedLessThan, abs, i64::from(128 - s.bias) << 23);
        let n = self.b.ins().select(small, t, n);
        let big = self.b.ins().icmp_imm_s(IntCC::SignedGreaterThan, n, i64::from(s.max));
        let over = self.b.ins().iconst(I32, i64::from(s.over));
        let n = self.b.ins().select(big, over, n);
        let sign = self.b.ins().ushr_imm_u(bits, i64::from(31 - width));
        let sign = self.b.ins().band_imm_s(sign, 1 << width);
        let mut r = self.b.ins().bor(n, sign);
        let is_nan = self.b.ins().icmp_imm_s(IntCC::SignedGreaterThan, abs, 0x7f80_0000);
        let mut nan = self.b.ins().iconst(I32, i64::from(s.nan));
        if s.uz {
            // Neither zero nor NaN has a sign.
            let zero = self.b.ins().icmp_imm_s(IntCC::Equal, n, 0);
            let unsigned = self.b.ins().select(big, over, r);
            r = self.b.ins().select(zero, n, unsigned);
        } else if s.has_specials() {
            nan = self.b.ins().bor(nan, sign);
        }
        let r = self.b.ins().select(is_nan, nan, r);
        self.b.ins().ireduce(I8, r)
    }
    fn e8m0_to_f32(&mut self, raw: Value) -> Value {
        let w = self.b.ins().uextend(I32, raw);
        let e = self.b.ins().ishl_imm_u(w, 23);
        let least = self.b.ins().iconst(I32, 0x40_0000);
        let nan = self.b.ins().iconst(I32, 0x7fc0_0000);
        let zero = self.b.ins().icmp_imm_s(IntCC::Equal, w, 0);
        let e = self.b.ins().select(zero, least, e);
        let special = self.b.ins().icmp_imm_s(IntCC::Equal, w, 0xff);
        let e = self.b.ins().select(special, nan, e);
        self.bits_as(F32, e)
    }
    /// Rounds up. Sums stay below 2^32, so the carry of NaN is discarded.
    fn f32_to_e8m0(&mut self, f: Value) -> Value {
        let bits = self.bits_as(I32, f);
        let abs = self.b.ins().band_imm_s(bits, 0x7fff_ffff);
        let up = self.b.ins().iadd_imm_s(abs, 0x7f_ffff);
        let up = self.b.ins().ushr_imm_u(up, 23);
        let zero = self.b.ins().iconst(I32, 0);
        let least = self.b.ins().icmp_imm_s(IntCC::SignedLessThanOrEqual, abs, 0x40_0000);
        let r = self.b.ins().select(least, zero, up);
        let special = self.b.ins().icmp_imm_s(IntCC::SignedGreaterThanOrEqual, abs, 0x7f80_0000);
        let nan = self.b.ins().iconst(I32, 0xff);
        let r = self.b.ins().select(special, nan, r);
        self.b.ins().ireduce(I8, r)
    }
    fn f32_to_bf16(&mut self, f: Value) -> Value {
        let bits = self.bits_as(I32, f);
        let odd = self.b.ins().ushr_imm_u(bits, 16);
        let odd = self.b.ins().band_imm_s(odd, 1);
        let r = self.b.ins().iadd_imm_s(bits, 0x7fff);
        let r = self.b.ins().iadd(r, odd);
        let nan = self.b.ins().fcmp(FloatCC::Unordered, f, f);
        let quiet = self.b.ins().bor_imm_s(bits, 0x40_0000);
        let r = self.b.ins().select(nan, quiet, r);
        let r = self.b.ins().ushr_imm_u(r, 16);
        self.b.ins().ireduce(I16, r)
    }
    /// Conversion between compute types.
    pub fn cast(&mut self, to: ElemType, a: Val) -> Result<Val> {
        let from = a.ty;
        if from == to {
            return Ok(a);
        }
        if a.vec {
            return self.cast_lanes(to, a);
        }
        let t = scalar_type(to);
        let v = match (from, to) {
            (_, ElemType::Bool) => {
                if from.is_float() {
                    let z = self.constant(Scalar::from_f64(from, 0.0));
                    self.b.ins().fcmp(FloatCC::NotEqual, a.v, z.v)
                } else {
                    self.b.ins().icmp_imm_s(IntCC::NotEqual, a.v, 0)
                }
            }
            (ElemType::F32, ElemType::F64) => self.b.ins().fpromote(F64, a.v),
            (ElemType::F64, ElemType::F32) => self.b.ins().fdemote(F32, a.v),
            (f, i) if f.is_float() => {
                // Saturates to 32 or 64 bits first, then to narrower types.
                let wide = if i.bits() == 64 { I64 } else { I32 };
                let x = if i.is_unsigned_int() && i.bits() >= 32 {
                    self.b.ins().fcvt_to_uint_sat(wide, a.v)
                } else {
                    self.b.ins().fcvt_to_sint_sat(wide, a.v)
                };
                if i.bits() >= 32 { x } else { self.saturate(x, i) }
            }
            (i, f) if f.is_float() => {
                let x = self.extend_to_word(a.v, i);
                if i.is_signed_int() {
                    self.b.ins().fcvt_from_sint(t, x)
                } else {
                    self.b.ins().fcvt_from_uint(t, x)
                }
            }
            // Integers wrap, as in C and numpy.
            (x, y) if x.bits() < y.bits() => {
                if x.is_signed_int() {
                    self.b.ins().sextend(t, a.v)
                } else {
                    self.b.ins().uextend(t, a.v)
                }
            }
            (x, y) if scalar_type(x) == scalar_type(y) => a.v,
            _ => self.b.ins().ireduce(t, a.v),
        };
        Ok(Val { v, ty: to, vec: false })
    }
    fn extend_to_word(&mut self, v: Value, ty: ElemType) -> Value {
        match (ty.bits() >= 32, ty.is_signed_int()) {
            (true, _) => v,
            (false, true) => self.b.ins().sextend(I32, v),
            (false, false) => self.b.ins().uextend(I32, v),
        }
    }
    fn saturate(&mut self, x: Value, to: ElemType) -> Value {
        let (lo, hi) = (Scalar::lowest(to).to_i64(), Scalar::highest(to).to_i64());
        let (lo, hi) = (self.b.ins().iconst(I32, lo), self.b.ins().iconst(I32, hi));
        let x = self.b.ins().smax(x, lo);
        let x = self.b.ins().smin(x, hi);
        self.b.ins().ireduce(scalar_type(to), x)
    }
    fn cast_lanes(&mut self, to: ElemType, a: Val) -> Result<Val> {
        let v = match (a.ty, to) {
            (ElemType::F32, ElemType::I32) => self.b.ins().fcvt_to_sint_sat(I32X4, a.v),
            (ElemType::I32, ElemType::F32) => self.b.ins().fcvt_from_sint(F32X4, a.v),
            (ElemType::F32, ElemType::Bool) => {
                let z = self.b.ins().f32const(0.0);
                let z = self.b.ins().splat(F32X4, z);
                self.b.ins().fcmp(FloatCC::NotEqual, a.v, z)
            }
            (ElemType::I32, ElemType::Bool) => {
                let z = self.b.ins().iconst(I32, 0);
                let z = self.b.ins().splat(I32X4, z);
                self.b.ins().icmp(IntCC::NotEqual, a.v, z)
            }
            // Masks are 0 or -1.
            (ElemType::Bool, ElemType::I32) => self.b.ins().ineg(a.v),
            (ElemType::Bool, ElemType::F32) => {
                let i = self.b.ins().ineg(a.v);
                self.b.ins().fcvt_from_sint(F32X4, i)
            }
            (x, y) => return self.bug(format!("no vector form of a cast from {x} to {y}")),
        };
        Ok(Val { v, ty: to, vec: true })
    }
}
