//! Functions of one float: Cranelift's instructions, the expansions of [`math`] (f32, scalar or four lanes,
//! and f64), and libm for the rare ones.

use super::expr::Val;
use super::func::Emit;
use crate::codegen::math::{self, Floats};
use crate::diag::Result;
use crate::nest::{BinOp, Scalar, UnOp};
use crate::tensor::ElemType;
use cranelift_codegen::ir::condcodes::FloatCC;
use cranelift_codegen::ir::types::{F32, F32X4, F64, I32, I32X4, I64};
use cranelift_codegen::ir::{BlockArg, InstBuilder, Type, Value};
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
                // Zero and NaN are unchanged.
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
            op if op.is_elementary(a.ty) => return Ok(math::function(self, op, a.ty, a)),
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
    /// Rounds to an integer, as `op` says. x86-64 before SSE 4.1 has no such instruction.
    fn rounded(&mut self, op: UnOp, a: Val) -> Val {
        if self.isa.triple().architecture != Architecture::X86_64
            || self.isa.isa_flags().iter().any(|f| f.name == "has_sse41" && f.value_string() == "true")
        {
            let v = match op {
                UnOp::Floor => self.b.ins().floor(a.v),
                UnOp::Ceil => self.b.ins().ceil(a.v),
                UnOp::Trunc => self.b.ins().trunc(a.v),
                _ => self.b.ins().nearest(a.v),
            };
            return Val { v, ..a };
        }
        // From this number on all floats are integers (or NaN). Below, adding and subtracting it rounds to
        // nearest even.
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
                let (off, step) = if op == UnOp::Floor {
                    (self.float_cmp(FloatCC::LessThan, a, near), BinOp::Sub)
                } else {
                    (self.float_cmp(FloatCC::LessThan, near, a), BinOp::Add)
                };
                let next = self.op(step, near, one);
                self.blend(off, next, near)
            }
        };
        let r = self.with_sign(r, a);
        self.blend(fraction, r, a)
    }
    /// Converts a remainder with the sign of the dividend to one with the sign of the divisor.
    pub fn floored(&mut self, r: Val, divisor: Val) -> Val {
        let zero = self.num(r, 0.0);
        let (a, b) =
            (self.float_cmp(FloatCC::LessThan, r, zero), self.float_cmp(FloatCC::LessThan, divisor, zero));
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
    /// A bit pattern in all lanes, the one for f32 or the one for f64.
    fn pattern(&mut self, like: Val, single: u32, double: u64) -> Val {
        let (ty, bits) = if like.ty == ElemType::F64 {
            (ElemType::I64, double)
        } else {
            (ElemType::I32, u64::from(single))
        };
        let c = self.constant(Scalar { ty, bits });
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
    /// The type of a float and the integer type of its size.
    fn types(&self, like: Val) -> (Type, Type) {
        match (like.ty, like.vec) {
            (ElemType::F64, _) => (F64, I64),
            (_, true) => (F32X4, I32X4),
            (_, false) => (F32, I32),
        }
    }
    /// The position of the exponent, and its bias.
    fn exponent(like: Val) -> (i64, u32) {
        if like.ty == ElemType::F64 { (52, 1023) } else { (23, 127) }
    }
    fn shift(&mut self, op: BinOp, v: Value, n: i64) -> Value {
        let c = self.b.ins().iconst(I32, n);
        match op {
            BinOp::Shl => self.b.ins().ishl(v, c),
            _ => self.b.ins().sshr(v, c),
        }
    }
    /// 2^k with the type of `like`.
    fn power_of_two(&mut self, like: Val, k: Value) -> Val {
        let (at, one) = Self::exponent(like);
        let bias = self.pattern(like, one, one.into());
        let e = self.b.ins().iadd(k, bias.v);
        let v = self.shift(BinOp::Shl, e, at);
        self.as_float(like, v)
    }
    fn as_float(&mut self, like: Val, v: Value) -> Val {
        let t = self.types(like).0;
        Val { v: self.bits_as(t, v), ..like }
    }
    fn as_int(&mut self, v: Val) -> Value {
        let t = self.types(v).1;
        self.bits_as(t, v.v)
    }
}

impl Floats for Emit<'_, '_> {
    type V = Val;
    fn num(&mut self, like: Val, x: f64) -> Val {
        Emit::num(self, like, x)
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
    fn fuses(&self) -> bool {
        self.has_fma()
    }
    fn if_any_less<const N: usize>(
        &mut self,
        x: Val,
        y: Val,
        usual: [Val; N],
        rare: impl FnOnce(&mut Self) -> [Val; N],
    ) -> [Val; N] {
        let c = self.float_cmp(FloatCC::LessThan, x, y);
        let any = if c.vec { self.b.ins().vany_true(c.v) } else { c.v };
        let (some, done) = (self.b.create_block(), self.b.create_block());
        let around: Vec<BlockArg> = usual.iter().map(|v| v.v.into()).collect();
        self.b.ins().brif(any, some, &[], done, &around);
        self.b.switch_to_block(some);
        self.b.seal_block(some);
        self.b.set_cold_block(some);
        self.push();
        let other = rare(self);
        self.pop();
        let mut through: Vec<BlockArg> = vec![];
        for (o, u) in other.into_iter().zip(usual) {
            through.push(self.blend(c, o, u).v.into());
        }
        self.b.ins().jump(done, &through);
        let merged = usual.map(|u| {
            let t = self.b.func.dfg.value_type(u.v);
            Val { v: self.b.append_block_param(done, t), ..u }
        });
        self.b.switch_to_block(done);
        self.b.seal_block(done);
        merged
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
    /// Multiplies by 2^n in two factors, so that subnormal results are rounded once.
    fn scale(&mut self, y: Val, n: Val) -> Val {
        let to = self.types(n).1;
        let k = self.b.ins().fcvt_to_sint_sat(to, n.v);
        let half = self.shift(BinOp::Shr, k, 1);
        let rest = self.b.ins().isub(k, half);
        let (a, b) = (self.power_of_two(y, half), self.power_of_two(y, rest));
        let y = self.op(BinOp::Mul, y, a);
        self.op(BinOp::Mul, y, b)
    }
    fn scale_normal(&mut self, y: Val, n: Val) -> Val {
        let to = self.types(n).1;
        let k = self.b.ins().fcvt_to_sint_sat(to, n.v);
        let k = self.shift(BinOp::Shl, k, Self::exponent(y).0);
        let bits = self.as_int(y);
        let v = self.b.ins().iadd(bits, k);
        self.as_float(y, v)
    }
    fn underflow_is_slow(&self) -> bool {
        self.isa.triple().architecture == Architecture::X86_64
    }
    fn with_sign(&mut self, a: Val, b: Val) -> Val {
        let (x, y) = (self.as_int(a), self.as_int(b));
        let mask = self.pattern(b, 1 << 31, 1 << 63);
        let sign = self.b.ins().band(y, mask.v);
        let v = self.b.ins().bor(x, sign);
        self.as_float(a, v)
    }
    fn split(&mut self, x: Val) -> (Val, Val) {
        let bits = self.as_int(x);
        let (at, one) = Self::exponent(x);
        let shift = self.b.ins().iconst(I32, at);
        let e = self.b.ins().ushr(bits, shift);
        let mask = self.pattern(x, 0x007f_ffff, (1 << 52) - 1);
        let half = self.pattern(x, 0.5f32.to_bits(), 0.5f64.to_bits());
        let m = self.b.ins().band(bits, mask.v);
        let m = self.b.ins().bor(m, half.v);
        let m = self.as_float(x, m);
        let to = self.types(x).0;
        let e = Val { v: self.b.ins().fcvt_from_sint(to, e), ..x };
        let bias = Emit::num(self, x, f64::from(one - 1));
        (self.op(BinOp::Sub, e, bias), m)
    }
}

fn libm_name(op: UnOp) -> Option<&'static str> {
    Some(match op {
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
