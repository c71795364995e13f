//! Functions of one float: what Cranelift has, what [`math`] makes of it (f32, scalar or four lanes), and libm for f64
//! and the rare ones.

use super::expr::Val;
use super::func::Emit;
use crate::codegen::math::{self, Floats};
use crate::diag::Result;
use crate::nest::{BinOp, Scalar, UnOp};
use crate::tensor::ElemType;
use cranelift_codegen::ir::condcodes::FloatCC;
use cranelift_codegen::ir::types::{F32, F32X4, I32, I32X4};
use cranelift_codegen::ir::{InstBuilder, Value};
use target_lexicon::Architecture;

impl Emit<'_, '_> {
    pub fn float_unary(&mut self, op: UnOp, a: Val) -> Result<Val> {
        let v = match op {
            UnOp::Neg => self.b.ins().fneg(a.v),
            UnOp::Abs => self.b.ins().fabs(a.v),
            UnOp::Floor | UnOp::Ceil | UnOp::Trunc | UnOp::Round => return Ok(self.rounded(op, a)),
            UnOp::Sqrt => self.b.ins().sqrt(a.v),
            UnOp::Recip => {
                let one = self.num(a, 1.0);
                self.b.ins().fdiv(one.v, a.v)
            }
            UnOp::Sign => {
                let (zero, one, minus) = (self.num(a, 0.0), self.num(a, 1.0), self.num(a, -1.0));
                let pos = self.float_cmp(FloatCC::GreaterThan, a, zero);
                let neg = self.float_cmp(FloatCC::LessThan, a, zero);
                // Zero and NaN stay what they are.
                let r = self.blend(neg, minus, a);
                return Ok(self.blend(pos, one, r));
            }
            UnOp::IsNan => return Ok(self.float_cmp(FloatCC::Unordered, a, a)),
            UnOp::IsInf => {
                let x = Val { v: self.b.ins().fabs(a.v), ..a };
                let inf = self.num(a, f64::INFINITY);
                return Ok(self.float_cmp(FloatCC::Equal, x, inf));
            }
            UnOp::Bits(to) => {
                let t = match (to, a.vec) {
                    (ElemType::I32 | ElemType::U32, false) => I32,
                    (ElemType::I32 | ElemType::U32, true) => I32X4,
                    (t, _) => super::convert::scalar_type(t),
                };
                return Ok(Val { v: self.bits_as(t, a.v), ty: to, vec: a.vec });
            }
            UnOp::Sigmoid if a.ty == ElemType::F64 => {
                let n = self.b.ins().fneg(a.v);
                let e = self.call_imported("exp", &[n]);
                let one = self.num(a, 1.0);
                let d = self.b.ins().fadd(one.v, e);
                self.b.ins().fdiv(one.v, d)
            }
            op if math::has(op) && a.ty == ElemType::F32 => return Ok(math::function(self, op, a)),
            op => {
                let Some(name) = libm_name(op) else { return self.bug(format!("{op:?} of floats")) };
                if a.vec {
                    return self.bug("no vector form");
                }
                let x = self.cast(ElemType::F64, a)?;
                let r = self.call_imported(name, &[x.v]);
                return self.cast(a.ty, Val { v: r, ty: ElemType::F64, vec: false });
            }
        };
        Ok(Val { v, ..a })
    }
    /// A constant of `like`'s type and width.
    /// Rounds to an integer, as `op` says. x86-64 before SSE 4.1 has no such instruction.
    fn rounded(&mut self, op: UnOp, a: Val) -> Val {
        if self.isa.triple().architecture != Architecture::X86_64 || self.isa.isa_flags().iter().any(|f| f.name == "has_sse41" && f.value_string() == "true") {
            let v = match op {
                UnOp::Floor => self.b.ins().floor(a.v),
                UnOp::Ceil => self.b.ins().ceil(a.v),
                UnOp::Trunc => self.b.ins().trunc(a.v),
                _ => self.b.ins().nearest(a.v),
            };
            return Val { v, ..a };
        }
        // From this number on all are integers (or NaN); below, adding it and taking it away rounds to even.
        let big = self.num(a, if a.ty == ElemType::F64 { 4_503_599_627_370_496.0 } else { 8_388_608.0 });
        let one = self.num(a, 1.0);
        let abs = Val { v: self.b.ins().fabs(a.v), ..a };
        let fraction = self.float_cmp(FloatCC::LessThan, abs, big);
        let sum = self.op(BinOp::Add, abs, big);
        let near = self.op(BinOp::Sub, sum, big);
        let r = match op {
            UnOp::Round => near,
            UnOp::Trunc => {
                let over = self.float_cmp(FloatCC::LessThan, abs, near);
                let less = self.op(BinOp::Sub, near, one);
                self.blend(over, less, near)
            }
            _ => {
                let near = self.with_sign(near, a);
                let (off, step) = if op == UnOp::Floor { (self.float_cmp(FloatCC::LessThan, a, near), BinOp::Sub) } else { (self.float_cmp(FloatCC::LessThan, near, a), BinOp::Add) };
                let next = self.op(step, near, one);
                self.blend(off, next, near)
            }
        };
        let r = self.with_sign(r, a);
        self.blend(fraction, r, a)
    }
    /// A remainder with the sign of the dividend -> that with the sign of the divisor.
    pub fn floored(&mut self, r: Val, divisor: Val) -> Val {
        let zero = self.num(r, 0.0);
        let (a, b) = (self.float_cmp(FloatCC::LessThan, r, zero), self.float_cmp(FloatCC::LessThan, divisor, zero));
        let differ = Val { v: self.b.ins().bxor(a.v, b.v), ..a };
        let sum = self.op(BinOp::Add, r, divisor);
        let moved = self.blend(differ, sum, r);
        let none = self.float_cmp(FloatCC::Equal, r, zero);
        let signed = self.with_sign(zero, divisor);
        self.blend(none, signed, moved)
    }
    /// |x| with the sign of `of`.
    fn with_sign(&mut self, x: Val, of: Val) -> Val {
        let t = self.b.func.dfg.value_type(x.v);
        let (x_abs, of_abs) = (self.b.ins().fabs(x.v), self.b.ins().fabs(of.v));
        let [x_abs, of_abs, of_bits] = [x_abs, of_abs, of.v].map(|v| self.bits_as(t.as_int(), v));
        let sign = self.b.ins().bxor(of_abs, of_bits);
        let v = self.b.ins().bor(x_abs, sign);
        Val { v: self.bits_as(t, v), ..x }
    }
    fn num(&mut self, like: Val, x: f64) -> Val {
        let c = self.constant(Scalar::from_f64(like.ty, x));
        self.widen(c, like.vec)
    }
    fn bits(&mut self, like: Val, x: u32) -> Val {
        let c = self.constant(Scalar { ty: ElemType::I32, bits: u64::from(x) });
        self.widen(c, like.vec)
    }
    fn op(&mut self, op: BinOp, a: Val, b: Val) -> Val {
        let v = match op {
            BinOp::Add => self.b.ins().fadd(a.v, b.v),
            BinOp::Sub => self.b.ins().fsub(a.v, b.v),
            BinOp::Mul => self.b.ins().fmul(a.v, b.v),
            _ => self.b.ins().fdiv(a.v, b.v),
        };
        Val { v, ..a }
    }
    fn to_int(&mut self, n: Val) -> Val {
        let v = self.b.ins().fcvt_to_sint_sat(if n.vec { I32X4 } else { I32 }, n.v);
        Val { v, ty: ElemType::I32, vec: n.vec }
    }
    fn shift_right_signed(&mut self, v: Val, n: i64) -> Val {
        let c = self.b.ins().iconst(I32, n);
        Val { v: self.b.ins().sshr(v.v, c), ..v }
    }
    fn power_of_two(&mut self, k: Val) -> Val {
        let bias = self.bits(Val { ty: ElemType::I32, ..k }, 127);
        let e = self.b.ins().iadd(k.v, bias.v);
        let c = self.b.ins().iconst(I32, 23);
        let v = self.b.ins().ishl(e, c);
        self.as_float(v, k.vec)
    }
    fn as_float(&mut self, v: Value, vec: bool) -> Val {
        Val { v: self.bits_as(if vec { F32X4 } else { F32 }, v), ty: ElemType::F32, vec }
    }
    fn as_int(&mut self, v: Val) -> Val {
        Val { v: self.bits_as(if v.vec { I32X4 } else { I32 }, v.v), ty: ElemType::I32, vec: v.vec }
    }
}

impl Floats for Emit<'_, '_> {
    type V = Val;
    fn num(&mut self, like: Val, x: f32) -> Val {
        Emit::num(self, like, f64::from(x))
    }
    fn add(&mut self, a: Val, b: Val) -> Val {
        self.op(BinOp::Add, a, b)
    }
    fn sub(&mut self, a: Val, b: Val) -> Val {
        self.op(BinOp::Sub, a, b)
    }
    fn mul(&mut self, a: Val, b: Val) -> Val {
        self.op(BinOp::Mul, a, b)
    }
    fn div(&mut self, a: Val, b: Val) -> Val {
        self.op(BinOp::Div, a, b)
    }
    fn fma(&mut self, a: Val, b: Val, c: Val) -> Val {
        Emit::fma(self, a, b, c)
    }
    fn lesser(&mut self, a: Val, b: Val) -> Val {
        self.if_less(a, b, a, b)
    }
    fn greater(&mut self, a: Val, b: Val) -> Val {
        self.if_less(b, a, a, b)
    }
    fn if_less(&mut self, x: Val, y: Val, a: Val, b: Val) -> Val {
        let c = self.float_cmp(FloatCC::LessThan, x, y);
        self.blend(c, a, b)
    }
    fn if_equal(&mut self, x: Val, y: Val, a: Val, b: Val) -> Val {
        let c = self.float_cmp(FloatCC::Equal, x, y);
        self.blend(c, a, b)
    }
    fn abs(&mut self, a: Val) -> Val {
        Val { v: self.b.ins().fabs(a.v), ..a }
    }
    fn neg(&mut self, a: Val) -> Val {
        Val { v: self.b.ins().fneg(a.v), ..a }
    }
    fn sqrt(&mut self, a: Val) -> Val {
        Val { v: self.b.ins().sqrt(a.v), ..a }
    }
    fn round(&mut self, a: Val) -> Val {
        self.rounded(UnOp::Round, a)
    }
    /// 2^n in two factors, so that subnormal results are rounded once.
    fn scale(&mut self, y: Val, n: Val) -> Val {
        let k = self.to_int(n);
        let half = self.shift_right_signed(k, 1);
        let rest = Val { v: self.b.ins().isub(k.v, half.v), ..k };
        let (a, b) = (self.power_of_two(half), self.power_of_two(rest));
        let y = self.op(BinOp::Mul, y, a);
        self.op(BinOp::Mul, y, b)
    }
    fn scale_normal(&mut self, y: Val, n: Val) -> Val {
        let k = self.to_int(n);
        let c = self.b.ins().iconst(I32, 23);
        let k = self.b.ins().ishl(k.v, c);
        let bits = self.as_int(y);
        let v = self.b.ins().iadd(bits.v, k);
        self.as_float(v, y.vec)
    }
    fn with_sign(&mut self, a: Val, b: Val) -> Val {
        let (x, y) = (self.as_int(a), self.as_int(b));
        let mask = self.bits(y, 0x8000_0000);
        let sign = self.b.ins().band(y.v, mask.v);
        let v = self.b.ins().bor(x.v, sign);
        self.as_float(v, a.vec)
    }
    fn split(&mut self, x: Val) -> (Val, Val) {
        let b = self.as_int(x);
        let c23 = self.b.ins().iconst(I32, 23);
        let e = Val { v: self.b.ins().ushr(b.v, c23), ..b };
        let (mask, half) = (self.bits(b, 0x007f_ffff), self.bits(b, 0x3f00_0000));
        let m = self.b.ins().band(b.v, mask.v);
        let m = self.b.ins().bor(m, half.v);
        let m = self.as_float(m, x.vec);
        let e = Val { v: self.b.ins().fcvt_from_sint(if x.vec { F32X4 } else { F32 }, e.v), ty: ElemType::F32, vec: x.vec };
        let bias = Emit::num(self, x, 126.0);
        (self.op(BinOp::Sub, e, bias), m)
    }
}

fn libm_name(op: UnOp) -> Option<&'static str> {
    Some(match op {
        UnOp::Exp => "exp",
        UnOp::Log => "log",
        UnOp::Erf => "erf",
        UnOp::Tanh => "tanh",
        UnOp::Expm1 => "expm1",
        UnOp::Log1p => "log1p",
        UnOp::Sin => "sin",
        UnOp::Cos => "cos",
        UnOp::Tan => "tan",
        UnOp::Asin => "asin",
        UnOp::Acos => "acos",
        UnOp::Atan => "atan",
        UnOp::Sinh => "sinh",
        UnOp::Cosh => "cosh",
        UnOp::Asinh => "asinh",
        UnOp::Acosh => "acosh",
        UnOp::Atanh => "atanh",
        _ => return None,
    })
}
