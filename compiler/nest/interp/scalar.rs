//! Arithmetic of the interpreter on single values: operations, casts, and conversions between storage and
//! compute types. Functions of f32 are computed in f64 and rounded.

use super::super::{BinOp, Expr, Scalar, UnOp};
use super::compile::number;
use crate::tensor::{ElemType, small};

#[inline]
pub(super) fn f32_of(bits: u64) -> f32 {
    f32::from_bits(bits as u32)
}

macro_rules! float_binop {
    ($name:ident, $t:ty) => {
        #[inline]
        pub(super) fn $name(op: BinOp, a: $t, b: $t) -> Option<$t> {
            Some(match op {
                BinOp::Add => a + b,
                BinOp::Sub => a - b,
                BinOp::Mul => a * b,
                BinOp::Div => a / b,
                BinOp::Rem => a % b,
                BinOp::Mod => {
                    let r = a % b;
                    if r == 0.0 {
                        (0.0 as $t).copysign(b)
                    } else if (r < 0.0) != (b < 0.0) {
                        r + b
                    } else {
                        r
                    }
                }
                BinOp::Min => {
                    if a < b || a.is_nan() {
                        a
                    } else {
                        b
                    }
                }
                BinOp::Max => {
                    if a > b || a.is_nan() {
                        a
                    } else {
                        b
                    }
                }
                BinOp::Pow => libm::pow(f64::from(a), f64::from(b)) as $t,
                BinOp::Atan2 => libm::atan2(f64::from(a), f64::from(b)) as $t,
                _ => return None,
            })
        }
    };
}
float_binop!(bin_f32, f32);
float_binop!(bin_f64, f64);

/// Applies an operation to one value of a compute type. Floating-point functions of integers are computed in
/// f64 and truncated.
pub fn eval_unop(op: UnOp, a: Scalar) -> Scalar {
    let truth = |v: bool| Scalar { ty: ElemType::Bool, bits: u64::from(v) };
    match op {
        UnOp::Bits(ty) => return Scalar { ty, bits: a.bits },
        UnOp::IsNan => return truth(a.ty.is_float() && a.to_f64().is_nan()),
        UnOp::IsInf => return truth(a.ty.is_float() && a.to_f64().is_infinite()),
        UnOp::Not => {
            return Scalar {
                ty: a.ty,
                bits: u64::from(if a.ty.is_float() { a.to_f64() == 0.0 } else { a.bits == 0 }),
            };
        }
        _ => {}
    }
    match a.ty {
        // Exact in f64, or computed there.
        ElemType::F32 if op != UnOp::Recip => Scalar::f32(function(op, a.to_f64()) as f32),
        ElemType::F32 => Scalar::f32(1.0 / f32_of(a.bits)),
        ElemType::F64 => Scalar { ty: a.ty, bits: function(op, a.to_f64()).to_bits() },
        ty => {
            let x = a.to_i64();
            let signed = ty.is_signed_int();
            let v = match op {
                UnOp::Neg => x.wrapping_neg(),
                UnOp::Abs if signed => x.wrapping_abs(),
                UnOp::Sign if signed => x.signum(),
                UnOp::Sign => i64::from(x != 0),
                UnOp::BitNot if ty == ElemType::Bool => i64::from(x == 0),
                UnOp::BitNot => !x,
                UnOp::Abs | UnOp::Floor | UnOp::Ceil | UnOp::Trunc | UnOp::Round => x,
                op => {
                    return eval_cast(
                        ty,
                        Scalar { ty: ElemType::F64, bits: function(op, a.to_f64()).to_bits() },
                    );
                }
            };
            Scalar::int(ty, v)
        }
    }
}

pub(super) fn function(op: UnOp, x: f64) -> f64 {
    match op {
        UnOp::Neg => -x,
        UnOp::Abs => x.abs(),
        // Zero and NaN stay what they are.
        UnOp::Sign => {
            if x > 0.0 {
                1.0
            } else if x < 0.0 {
                -1.0
            } else {
                x
            }
        }
        UnOp::Floor => x.floor(),
        UnOp::Ceil => x.ceil(),
        UnOp::Trunc => x.trunc(),
        UnOp::Round => x.round_ties_even(),
        UnOp::Sqrt => x.sqrt(),
        UnOp::Recip => 1.0 / x,
        UnOp::Exp => libm::exp(x),
        UnOp::Log => libm::log(x),
        UnOp::Erf => libm::erf(x),
        UnOp::Tanh => libm::tanh(x),
        UnOp::Sigmoid => 1.0 / (1.0 + libm::exp(-x)),
        UnOp::Sin => libm::sin(x),
        UnOp::Cos => libm::cos(x),
        UnOp::Tan => libm::tan(x),
        UnOp::Asin => libm::asin(x),
        UnOp::Acos => libm::acos(x),
        UnOp::Atan => libm::atan(x),
        UnOp::Sinh => libm::sinh(x),
        UnOp::Cosh => libm::cosh(x),
        UnOp::Asinh => libm::asinh(x),
        // libm leaves the rest undefined.
        UnOp::Acosh if x < 1.0 => f64::NAN,
        UnOp::Acosh => libm::acosh(x),
        UnOp::Atanh => libm::atanh(x),
        UnOp::Expm1 => libm::expm1(x),
        UnOp::Log1p => libm::log1p(x),
        UnOp::BitNot | UnOp::Not | UnOp::IsNan | UnOp::IsInf | UnOp::Bits(_) => x,
    }
}

/// Applies an operation to two values of one compute type. `None`: an integer divided by zero, an operation
/// that the type does not have, or operands of two types.
pub fn eval_binop(op: BinOp, a: Scalar, b: Scalar) -> Option<Scalar> {
    let ty = a.ty;
    if b.ty != ty {
        return None;
    }
    let truth = |v: bool| Some(Scalar { ty: ElemType::Bool, bits: u64::from(v) });
    match ty {
        ElemType::F32 if op.is_comparison() => truth(op.holds(f32_of(a.bits), f32_of(b.bits))),
        ElemType::F32 => bin_f32(op, f32_of(a.bits), f32_of(b.bits)).map(Scalar::f32),
        ElemType::F64 if op.is_comparison() => {
            truth(op.holds(f64::from_bits(a.bits), f64::from_bits(b.bits)))
        }
        ElemType::F64 => bin_f64(op, f64::from_bits(a.bits), f64::from_bits(b.bits))
            .map(|v| Scalar { ty, bits: v.to_bits() }),
        t if !t.is_int() && t != ElemType::Bool => None,
        t if t.is_signed_int() => {
            let (x, y) = (a.to_i64(), b.to_i64());
            if op.is_comparison() {
                return truth(op.holds(x, y));
            }
            let v = match op {
                BinOp::Div if y != 0 => x.wrapping_div(y),
                BinOp::Rem if y != 0 => x.wrapping_rem(y),
                BinOp::Mod if y != 0 => {
                    let r = x.wrapping_rem(y);
                    if r != 0 && (r < 0) != (y < 0) { r + y } else { r }
                }
                BinOp::Min => x.min(y),
                BinOp::Max => x.max(y),
                BinOp::Shr => x >> (y as u64 & u64::from(t.bits() - 1)),
                BinOp::Pow if y < 0 => match x {
                    1 => 1,
                    -1 => 1 - 2 * (y & 1),
                    0 => return Some(Scalar::highest(t)),
                    _ => 0,
                },
                op => modular(op, t, x as u64, y as u64)? as i64,
            };
            Some(Scalar::int(t, v))
        }
        t => {
            let (x, y) = (a.bits, b.bits);
            if op.is_comparison() {
                return truth(op.holds(x, y));
            }
            let v = match op {
                BinOp::Div => x.checked_div(y)?,
                BinOp::Rem | BinOp::Mod => x.checked_rem(y)?,
                BinOp::Min => x.min(y),
                BinOp::Max => x.max(y),
                BinOp::Shr => x >> (y & u64::from(t.bits() - 1)),
                op => modular(op, t, x, y)?,
            };
            Some(Scalar::int(t, v as i64))
        }
    }
}

/// What is the same for signed and unsigned integers, before the result is cut to its width.
pub(super) fn modular(op: BinOp, ty: ElemType, x: u64, y: u64) -> Option<u64> {
    Some(match op {
        BinOp::Add => x.wrapping_add(y),
        BinOp::Sub => x.wrapping_sub(y),
        BinOp::Mul => x.wrapping_mul(y),
        BinOp::And => x & y,
        BinOp::Or => x | y,
        BinOp::Xor => x ^ y,
        BinOp::Shl => x << (y & u64::from(ty.bits() - 1)),
        BinOp::Pow => {
            let (mut r, mut base, mut n) = (1u64, x, y);
            while n > 0 {
                if n & 1 == 1 {
                    r = r.wrapping_mul(base);
                }
                base = base.wrapping_mul(base);
                n >>= 1;
            }
            r
        }
        _ => return None,
    })
}

/// Converts as ONNX Cast does: floats to integers truncate and saturate (NaN: 0), integers wrap, to bool is
/// "not zero". Storage types are allowed on both sides; types that are not numbers give zero.
pub fn eval_cast(to: ElemType, a: Scalar) -> Scalar {
    let from = a.ty;
    if from == to {
        return a;
    }
    if number(to).is_err() || number(from).is_err() {
        return Scalar { ty: to, bits: 0 };
    }
    if from.compute() != from {
        return eval_cast(to, from_storage(from, a.bits));
    }
    if to.is_float() && to.compute() != to {
        return Scalar { ty: to, bits: to_storage(to, eval_cast(ElemType::F32, a)) };
    }
    let unsigned = !from.is_float() && !from.is_signed_int();
    match to {
        ElemType::F32 if from == ElemType::F64 => Scalar::f32(a.to_f64() as f32),
        ElemType::F32 if unsigned => Scalar::f32(a.bits as f32),
        ElemType::F32 => Scalar::f32(a.to_i64() as f32),
        ElemType::F64 => Scalar { ty: to, bits: a.to_f64().to_bits() },
        ElemType::Bool if from.is_float() => Scalar { ty: to, bits: u64::from(a.to_f64() != 0.0) },
        ElemType::Bool => Scalar { ty: to, bits: u64::from(a.bits != 0) },
        t if from.is_float() && t.is_signed_int() => {
            Scalar::int(t, (a.to_f64() as i64).clamp(Scalar::lowest(t).to_i64(), Scalar::highest(t).to_i64()))
        }
        t if from.is_float() => Scalar { ty: t, bits: (a.to_f64() as u64).min(Scalar::highest(t).bits) },
        t => Scalar::int(t, a.to_i64()),
    }
}

// ---- Storage types ----

/// What a load makes of stored bits: a value of the compute type.
pub fn from_storage(ty: ElemType, raw: u64) -> Scalar {
    let float = |v: f32| Scalar::f32(v);
    match ty {
        ElemType::F16 => float(half::f16::from_bits(raw as u16).to_f32()),
        ElemType::BF16 => float(half::bf16::from_bits(raw as u16).to_f32()),
        ElemType::I4 | ElemType::I2 => Scalar::int(ElemType::I8, Scalar { ty, bits: raw }.to_i64()),
        ElemType::U4 | ElemType::U2 => Scalar { ty: ElemType::U8, bits: raw & ((1 << ty.bits()) - 1) },
        ElemType::Bool => Scalar { ty, bits: u64::from(raw != 0) },
        t => match small::decode(t, raw as u8) {
            Some(v) => float(v),
            None => Scalar { ty, bits: raw },
        },
    }
}

/// What a store writes of a value of the compute type: floats round to nearest even and may become infinity
/// or NaN ([`small`]), packed integers keep their low bits.
pub fn to_storage(ty: ElemType, a: Scalar) -> u64 {
    let x = || f32_of(a.bits);
    match ty {
        ElemType::F16 => u64::from(half::f16::from_f32(x()).to_bits()),
        ElemType::BF16 => u64::from(half::bf16::from_f32(x()).to_bits()),
        ElemType::I4 | ElemType::U4 | ElemType::I2 | ElemType::U2 => a.bits & ((1 << ty.bits()) - 1),
        t => match small::encode(t, x()) {
            Some(code) => u64::from(code),
            None => a.bits,
        },
    }
}

/// The value of an operation whose operands have the values that `of` gives; `None` for other expressions.
pub fn eval_operation(e: &Expr, of: &mut dyn FnMut(&Expr) -> Option<Scalar>) -> Option<Scalar> {
    match e {
        Expr::Un(op, x) => Some(eval_unop(*op, of(x)?)),
        Expr::Cast(t, x) => Some(eval_cast(*t, of(x)?)),
        Expr::Bin(op, x, y) => eval_binop(*op, of(x)?, of(y)?),
        Expr::Fma(x, y, z) => {
            let mut float = |e| of(e).filter(|v| v.ty == ElemType::F32).map(|v| f32_of(v.bits));
            let (x, y, z) = (float(x)?, float(y)?, float(z)?);
            Some(Scalar::f32(x.mul_add(y, z)))
        }
        Expr::Select(c, x, y) => {
            let c = of(c)?;
            of(if c.bits != 0 { x } else { y })
        }
        _ => None,
    }
}
