//! Conversions: between compute types (ONNX Cast), and between storage and compute type at loads and stores.

use super::expr::Val;
use super::func::Emit;
use crate::diag::Result;
use crate::nest::Scalar;
use crate::tensor::ElemType;
use cranelift_codegen::ir::condcodes::{FloatCC, IntCC};
use cranelift_codegen::ir::types::{F32, F32X4, F64, I8, I16, I32, I32X4, I64};
use cranelift_codegen::ir::{InstBuilder, Type, Value};

/// Register type of a compute type.
pub(super) fn scalar_type(t: ElemType) -> Type {
    match t {
        ElemType::F32 => F32,
        ElemType::F64 => F64,
        t => match t.bits() {
            64 => I64,
            32 => I32,
            16 => I16,
            _ => I8,
        },
    }
}

/// Type to load and store.
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
            t if t.bytes().is_some() && t.compute() == t => Ok(v),
            t => self.bug(format!("loads of {t} are not supported yet")),
        }
    }
    pub fn to_storage(&mut self, t: ElemType, v: Val) -> Result<Value> {
        match t {
            ElemType::BF16 => Ok(self.f32_to_bf16(v.v)),
            ElemType::F16 => Ok(self.f32_to_f16(v.v)),
            t if t.bytes().is_some() && t.compute() == t => Ok(v.v),
            t => self.bug(format!("stores of {t} are not supported yet")),
        }
    }
    /// Exponent and mantissa move into place and are scaled by 2^112, which handles subnormals too.
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
    /// Round to nearest even; NaN becomes a quiet NaN.
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
                // Saturating into 32 or 64 bits, then into narrower types.
                let wide = if i.bits() == 64 { I64 } else { I32 };
                let x = if i.is_unsigned_int() && i.bits() >= 32 { self.b.ins().fcvt_to_uint_sat(wide, a.v) } else { self.b.ins().fcvt_to_sint_sat(wide, a.v) };
                if i.bits() >= 32 { x } else { self.saturate(x, i) }
            }
            (i, f) if f.is_float() => {
                let x = self.extend_to_word(a.v, i);
                if i.is_signed_int() { self.b.ins().fcvt_from_sint(t, x) } else { self.b.ins().fcvt_from_uint(t, x) }
            }
            // Integers wrap, as C and numpy do.
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
