//! Elementary functions of f32, scalar or four lanes, by polynomials; f64 and the rare ones through libm.
//!
//! exp, log, expm1, log1p: Cephes (S. L. Moshier), argument reduction and minimax polynomials of single precision.
//! tanh, erf: rational minimax approximations on a clamped interval.

use super::expr::Val;
use super::func::Emit;
use crate::diag::Result;
use crate::nest::{BinOp, Scalar, UnOp};
use crate::tensor::ElemType;
use cranelift_codegen::ir::condcodes::FloatCC;
use cranelift_codegen::ir::types::{F32, F32X4, I32, I32X4};
use cranelift_codegen::ir::{InstBuilder, Value};
use target_lexicon::Architecture;

/// Functions computed here for f32.
pub(super) fn has_f32(op: UnOp) -> bool {
    matches!(op, UnOp::Exp | UnOp::Log | UnOp::Erf | UnOp::Tanh | UnOp::Sigmoid | UnOp::Expm1 | UnOp::Log1p)
}

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
                let e = self.call_libm("exp", &[n]);
                let one = self.num(a, 1.0);
                let d = self.b.ins().fadd(one.v, e);
                self.b.ins().fdiv(one.v, d)
            }
            op if has_f32(op) && a.ty == ElemType::F32 => return Ok(self.f32_function(op, a)),
            op => {
                let Some(name) = libm_name(op) else { return self.bug(format!("{op:?} of floats")) };
                if a.vec {
                    return self.bug("no vector form");
                }
                let x = self.cast(ElemType::F64, a)?;
                let r = self.call_libm(name, &[x.v]);
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
    fn lesser(&mut self, a: Val, b: Val) -> Val {
        let c = self.float_cmp(FloatCC::LessThan, a, b);
        self.blend(c, a, b)
    }
    fn greater(&mut self, a: Val, b: Val) -> Val {
        let c = self.float_cmp(FloatCC::GreaterThan, a, b);
        self.blend(c, a, b)
    }
    /// Horner's rule, highest coefficient first.
    fn poly(&mut self, x: Val, coefficients: &[f64]) -> Val {
        let mut r = self.num(x, coefficients[0]);
        for c in &coefficients[1..] {
            let c = self.num(x, *c);
            r = self.fma(r, x, c);
        }
        r
    }
    fn f32_function(&mut self, op: UnOp, x: Val) -> Val {
        let r = match op {
            UnOp::Exp => return self.exp(x),
            UnOp::Log => return self.log(x),
            UnOp::Tanh => self.tanh(x),
            UnOp::Erf => self.erf(x),
            UnOp::Sigmoid => {
                let n = Val { v: self.b.ins().fneg(x.v), ..x };
                let e = self.exp(n);
                let one = self.num(x, 1.0);
                let d = self.op(BinOp::Add, e, one);
                return self.op(BinOp::Div, one, d);
            }
            UnOp::Expm1 => self.expm1(x),
            _ => self.log1p(x),
        };
        let nan = self.float_cmp(FloatCC::Unordered, x, x);
        self.blend(nan, x, r)
    }
    /// e^x = 2^n e^r with |r| <= ln 2 / 2; 2^n in two factors, so that subnormal results are rounded once.
    fn exp(&mut self, x: Val) -> Val {
        let (hi, lo) = (self.num(x, 89.0), self.num(x, -104.0));
        // The order of operands lets NaN through.
        let c = self.lesser(hi, x);
        let x = {
            let nan = self.float_cmp(FloatCC::Unordered, x, x);
            let y = self.greater(c, lo);
            self.blend(nan, x, y)
        };
        let log2e = self.num(x, std::f64::consts::LOG2_E);
        let n = self.op(BinOp::Mul, x, log2e);
        let n = self.rounded(UnOp::Round, n);
        let (c1, c2) = (self.num(x, -0.693_359_375), self.num(x, 2.121_944_4e-4));
        let r = self.fma(n, c1, x);
        let r = self.fma(n, c2, r);
        let p = self.poly(r, &[1.987_569_1e-4, 1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 5e-1]);
        let rr = self.op(BinOp::Mul, r, r);
        let one = self.num(x, 1.0);
        let base = self.op(BinOp::Add, r, one);
        let y = self.fma(p, rr, base);
        let k = self.to_int(n);
        let half = self.shift_right_signed(k, 1);
        let rest = Val { v: self.b.ins().isub(k.v, half.v), ..k };
        let (a, b) = (self.power_of_two(half), self.power_of_two(rest));
        let y = self.op(BinOp::Mul, y, a);
        self.op(BinOp::Mul, y, b)
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
    /// x = 2^e m with m in [sqrt 1/2, sqrt 2): log x = e ln 2 + log m.
    fn log(&mut self, x: Val) -> Val {
        let least = self.num(x, f64::from(f32::MIN_POSITIVE));
        let scale = self.num(x, 8_388_608.0);
        let tiny = self.float_cmp(FloatCC::LessThan, x, least);
        let up = self.op(BinOp::Mul, x, scale);
        let y = self.blend(tiny, up, x);
        let b = self.as_int(y);
        let c23 = self.b.ins().iconst(I32, 23);
        let e = Val { v: self.b.ins().ushr(b.v, c23), ..b };
        let mask = self.bits(b, 0x007f_ffff);
        let half = self.bits(b, 0x3f00_0000);
        let m = self.b.ins().band(b.v, mask.v);
        let m = self.b.ins().bor(m, half.v);
        let m = self.as_float(m, x.vec);
        let ef = Val { v: self.b.ins().fcvt_from_sint(if x.vec { F32X4 } else { F32 }, e.v), ty: ElemType::F32, vec: x.vec };
        let (b0, b1) = (self.num(x, 126.0), self.num(x, 149.0));
        let bias = self.blend(tiny, b1, b0);
        let ef = self.op(BinOp::Sub, ef, bias);
        let root = self.num(x, std::f64::consts::FRAC_1_SQRT_2);
        let one = self.num(x, 1.0);
        let small = self.float_cmp(FloatCC::LessThan, m, root);
        let m2 = self.op(BinOp::Add, m, m);
        let m = self.blend(small, m2, m);
        let e2 = self.op(BinOp::Sub, ef, one);
        let ef = self.blend(small, e2, ef);
        let f = self.op(BinOp::Sub, m, one);
        let p = self.poly(f, &[7.037_683_6e-2, -1.151_461e-1, 1.167_699_9e-1, -1.242_014_1e-1, 1.424_932_3e-1, -1.666_805_7e-1, 2.000_071_5e-1, -2.499_999_4e-1, 3.333_333_1e-1]);
        let z = self.op(BinOp::Mul, f, f);
        let fz = self.op(BinOp::Mul, f, z);
        let y = self.op(BinOp::Mul, fz, p);
        let c = self.num(x, -2.121_944_4e-4);
        let y = self.fma(ef, c, y);
        let h = self.num(x, -0.5);
        let y = self.fma(z, h, y);
        let y = self.op(BinOp::Add, f, y);
        let c = self.num(x, 0.693_359_375);
        let y = self.fma(ef, c, y);
        // log 0 = -inf, log inf = inf, of negative numbers NaN.
        let (zero, inf, minus_inf, nan) = (self.num(x, 0.0), self.num(x, f64::INFINITY), self.num(x, f64::NEG_INFINITY), self.num(x, f64::NAN));
        let is_zero = self.float_cmp(FloatCC::Equal, x, zero);
        let y = self.blend(is_zero, minus_inf, y);
        let is_inf = self.float_cmp(FloatCC::Equal, x, inf);
        let y = self.blend(is_inf, inf, y);
        let bad = self.float_cmp(FloatCC::UnorderedOrLessThan, x, zero);
        self.blend(bad, nan, y)
    }
    fn tanh(&mut self, x: Val) -> Val {
        let (hi, lo) = (self.num(x, 7.905_311), self.num(x, -7.905_311));
        let c = self.lesser(x, hi);
        let c = self.greater(c, lo);
        let z = self.op(BinOp::Mul, c, c);
        let p = self.poly(z, &[-2.760_768_5e-16, 2.000_188e-13, -8.604_672e-11, 5.122_297e-8, 1.485_722_4e-5, 6.372_619_4e-4, 4.893_524_6e-3]);
        let q = self.poly(z, &[1.198_258_4e-6, 1.185_347_1e-4, 2.268_434_6e-3, 4.893_525e-3]);
        let p = self.op(BinOp::Mul, p, c);
        let r = self.op(BinOp::Div, p, q);
        // Where x^2 is below the rounding of 1, tanh x is x.
        let abs = Val { v: self.b.ins().fabs(x.v), ..x };
        let small = self.num(x, 4e-4);
        let tiny = self.float_cmp(FloatCC::LessThan, abs, small);
        self.blend(tiny, x, r)
    }
    fn erf(&mut self, x: Val) -> Val {
        let (hi, lo) = (self.num(x, 4.0), self.num(x, -4.0));
        let c = self.lesser(x, hi);
        let c = self.greater(c, lo);
        let z = self.op(BinOp::Mul, c, c);
        let p = self.poly(z, &[-2.726_142_3e-10, 2.770_681_4e-8, -2.101_024e-6, -5.692_506_4e-5, -7.349_906_3e-4, -2.954_6e-3, -1.609_603_3e-2]);
        let q = self.poly(z, &[-1.456_607_2e-5, -2.133_740_6e-4, -1.682_827e-3, -7.373_329e-3, -1.426_473_9e-2]);
        let p = self.op(BinOp::Mul, p, c);
        self.op(BinOp::Div, p, q)
    }
    fn expm1(&mut self, x: Val) -> Val {
        let one = self.num(x, 1.0);
        let e = self.exp(x);
        let far = self.op(BinOp::Sub, e, one);
        let p = self.poly(x, &[1.987_569_1e-4, 1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 5e-1]);
        let xx = self.op(BinOp::Mul, x, x);
        let near = self.fma(p, xx, x);
        let abs = Val { v: self.b.ins().fabs(x.v), ..x };
        let limit = self.num(x, 0.34);
        let c = self.float_cmp(FloatCC::LessThan, abs, limit);
        self.blend(c, near, far)
    }
    /// log(u) x / (u - 1) with u = 1 + x rounded: the errors of both cancel (Kahan).
    fn log1p(&mut self, x: Val) -> Val {
        let one = self.num(x, 1.0);
        let u = self.op(BinOp::Add, x, one);
        let d = self.op(BinOp::Sub, u, one);
        let l = self.log(u);
        // The quotient first: it is near 1, while a product could overflow.
        let q = self.op(BinOp::Div, x, d);
        let r = self.op(BinOp::Mul, l, q);
        let zero = self.num(x, 0.0);
        let exact = self.float_cmp(FloatCC::Equal, d, zero);
        let inf = self.num(x, f64::INFINITY);
        let is_inf = self.float_cmp(FloatCC::Equal, x, inf);
        let r = self.blend(is_inf, x, r);
        self.blend(exact, x, r)
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
