//! Elementwise operators of one operand, with attributes as parameters.
//!
//! Spec: <https://onnx.ai/onnx/operators/>. Versions differ in types only, except for `Clip` (see `select`),
//! `Gelu` (20), and `consumed_inputs` of version 1, which has no effect.

use super::{Attrs, InferCx, Known, LowerCx, Operator};
use crate::diag::Result;
use crate::nest::{BinOp, Expr, KernelBuilder, UnOp};
use crate::tensor::ElemType;

/// The function.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Unary {
    Plain(UnOp),
    Reciprocal,
    Relu,
    LeakyRelu(f32),
    ThresholdedRelu(f32),
    Elu(f32),
    Celu(f32),
    Selu(f32, f32),
    HardSigmoid(f32, f32),
    HardSwish,
    Softplus,
    Softsign,
    Mish,
    Swish(f32),
    Gelu {
        tanh: bool,
    },
    Shrink {
        lambd: f32,
        bias: f32,
    },
    /// Clamps between two limits: the activation Clip of fused operators.
    Clamp(f32, f32),
    /// Detects +inf, -inf.
    IsInf(bool, bool),
}

const PLAIN: &[(&str, UnOp)] = &[
    ("Abs", UnOp::Abs),
    ("Neg", UnOp::Neg),
    ("Sign", UnOp::Sign),
    ("Not", UnOp::Not),
    ("BitwiseNot", UnOp::BitNot),
    ("Floor", UnOp::Floor),
    ("Ceil", UnOp::Ceil),
    ("Round", UnOp::Round),
    ("Sqrt", UnOp::Sqrt),
    ("Exp", UnOp::Exp),
    ("Log", UnOp::Log),
    ("Erf", UnOp::Erf),
    ("Tanh", UnOp::Tanh),
    ("Sigmoid", UnOp::Sigmoid),
    ("Sin", UnOp::Sin),
    ("Cos", UnOp::Cos),
    ("Tan", UnOp::Tan),
    ("Asin", UnOp::Asin),
    ("Acos", UnOp::Acos),
    ("Atan", UnOp::Atan),
    ("Sinh", UnOp::Sinh),
    ("Cosh", UnOp::Cosh),
    ("Asinh", UnOp::Asinh),
    ("Acosh", UnOp::Acosh),
    ("Atanh", UnOp::Atanh),
    ("IsNaN", UnOp::IsNan),
];

impl Operator for Unary {
    const OPS: &'static [&'static str] = &[
        "Abs",
        "Neg",
        "Sign",
        "Not",
        "BitwiseNot",
        "Floor",
        "Ceil",
        "Round",
        "Sqrt",
        "Exp",
        "Log",
        "Erf",
        "Tanh",
        "Sigmoid",
        "Sin",
        "Cos",
        "Tan",
        "Asin",
        "Acos",
        "Atan",
        "Sinh",
        "Cosh",
        "Asinh",
        "Acosh",
        "Atanh",
        "IsNaN",
        "Reciprocal",
        "Relu",
        "LeakyRelu",
        "ThresholdedRelu",
        "Elu",
        "Celu",
        "Selu",
        "HardSigmoid",
        "HardSwish",
        "Softplus",
        "Softsign",
        "Mish",
        "Swish",
        "Gelu",
        "Shrink",
        "IsInf",
    ];
    fn parse(a: &mut Attrs) -> Result<Self> {
        a.ignore("consumed_inputs");
        if let Some((_, op)) = PLAIN.iter().find(|(n, _)| *n == a.op()) {
            return Ok(Unary::Plain(*op));
        }
        Ok(match a.op() {
            "Reciprocal" => Unary::Reciprocal,
            "Relu" => Unary::Relu,
            "LeakyRelu" => Unary::LeakyRelu(a.float("alpha", 0.01)),
            "ThresholdedRelu" => Unary::ThresholdedRelu(a.float("alpha", 1.0)),
            "Elu" => Unary::Elu(a.float("alpha", 1.0)),
            "Celu" => Unary::Celu(a.float("alpha", 1.0)),
            "Selu" if a.since() == 1 => Unary::Selu(a.float("alpha", 1.6732), a.float("gamma", 1.0507)),
            "Selu" => Unary::Selu(a.float("alpha", 1.673_263_2), a.float("gamma", 1.050_701)),
            "HardSigmoid" => Unary::HardSigmoid(a.float("alpha", 0.2), a.float("beta", 0.5)),
            "HardSwish" => Unary::HardSwish,
            "Softplus" => Unary::Softplus,
            "Softsign" => Unary::Softsign,
            "Mish" => Unary::Mish,
            "Swish" => Unary::Swish(a.float("alpha", 1.0)),
            "Gelu" => {
                Unary::Gelu { tanh: a.choice("approximate", "none", &[("none", false), ("tanh", true)]) }
            }
            "Shrink" => Unary::Shrink { lambd: a.float("lambd", 0.5), bias: a.float("bias", 0.0) },
            _ => Unary::IsInf(a.flag("detect_positive", true), a.flag("detect_negative", true)),
        })
    }
    fn infer(&self, cx: &mut InferCx) -> Result<()> {
        let t = cx.tensor(0);
        let elem = match self {
            Unary::Plain(UnOp::IsNan) | Unary::IsInf(..) => ElemType::Bool,
            _ => t.elem,
        };
        let known = match (self, cx.dims_value(0)) {
            (Unary::Plain(UnOp::Neg), Some(v)) if elem == ElemType::I64 => {
                Known::Dims(v.into_iter().map(|d| -d).collect())
            }
            (Unary::Plain(UnOp::Not), Some(v)) => Known::Dims(v.into_iter().map(|d| 1 - d).collect()),
            (Unary::Relu | Unary::Plain(UnOp::Abs), Some(v)) if v.iter().all(|d| cx.syms.is_nonneg(*d)) => {
                Known::Dims(v)
            }
            _ => Known::No,
        };
        cx.set_known(0, elem, t.dims.clone(), known);
        Ok(())
    }
    fn lower(&self, cx: &mut LowerCx) -> Result<()> {
        let (x, y) = (cx.input(0), cx.output(0));
        let ty = cx.elem(x).compute();
        cx.map(y, |k, at| {
            let v = k.load(x, at);
            self.apply(k, ty, v)
        });
        Ok(())
    }
}

impl Unary {
    /// The function on a value of compute type `ty`.
    pub fn apply(&self, k: &mut KernelBuilder, ty: ElemType, x: Expr) -> Expr {
        let c = |v: f32| Expr::num(ty, f64::from(v));
        let zero = || Expr::num(ty, 0.0);
        let lt = |a: Expr, b: Expr| Expr::bin(BinOp::Lt, a, b);
        k.shared(x, |k, x| match *self {
            Unary::Plain(UnOp::Floor | UnOp::Ceil | UnOp::Round | UnOp::Trunc) if !ty.is_float() => x,
            // Version 9 of Erf accepts integers. The result is truncated to 0 until the function rounds to 1
            // in float.
            Unary::Plain(UnOp::Erf) if !ty.is_float() => {
                let one = Expr::num(ty, 1.0);
                let high = Expr::select(lt(x.clone(), Expr::num(ty, 4.0)), zero(), one.clone());
                if ty.is_unsigned_int() { high } else { Expr::select(lt(Expr::num(ty, -4.0), x), high, -one) }
            }
            Unary::Plain(op) => Expr::un(op, x),
            Unary::Reciprocal => Expr::num(ty, 1.0) / x,
            // NaN is kept, because max propagates it.
            Unary::Relu => x.max(zero()),
            Unary::LeakyRelu(a) => Expr::select(lt(x.clone(), zero()), x.clone() * c(a), x),
            Unary::ThresholdedRelu(a) => Expr::select(lt(c(a), x.clone()), x, zero()),
            Unary::Elu(a) => Expr::select(lt(x.clone(), zero()), Expr::un(UnOp::Expm1, x.clone()) * c(a), x),
            Unary::Celu(a) => x.clone().max(zero()) + zero().min(Expr::un(UnOp::Expm1, x / c(a)) * c(a)),
            Unary::Selu(a, g) => {
                Expr::select(lt(zero(), x.clone()), x.clone() * c(g), Expr::un(UnOp::Expm1, x) * c(a) * c(g))
            }
            Unary::HardSigmoid(a, b) => hard_sigmoid(ty, x, a, b),
            Unary::HardSwish => x.clone() * hard_sigmoid(ty, x, 1.0 / 6.0, 0.5),
            Unary::Softplus => softplus(k, ty, x),
            Unary::Softsign => x.clone() / (Expr::un(UnOp::Abs, x) + Expr::num(ty, 1.0)),
            Unary::Mish => mish(k, ty, x),
            Unary::Swish(1.0) => x.clone() * Expr::un(UnOp::Sigmoid, x),
            Unary::Swish(a) => x.clone() * Expr::un(UnOp::Sigmoid, x * c(a)),
            Unary::Gelu { tanh: false } => {
                x.clone()
                    * Expr::num(ty, 0.5)
                    * (Expr::un(UnOp::Erf, x * Expr::num(ty, std::f64::consts::FRAC_1_SQRT_2))
                        + Expr::num(ty, 1.0))
            }
            Unary::Gelu { tanh: true } => {
                let inner = (x.clone() + x.clone() * x.clone() * x.clone() * Expr::num(ty, 0.044715))
                    * Expr::num(ty, (2.0 / std::f64::consts::PI).sqrt());
                x * Expr::num(ty, 0.5) * (Expr::un(UnOp::Tanh, inner) + Expr::num(ty, 1.0))
            }
            // The attributes are floats, so integers are compared and shifted as floats.
            Unary::Shrink { .. } if !ty.is_float() => {
                let wide = self.apply(k, ElemType::F64, Expr::cast(ty, ElemType::F64, x));
                Expr::cast(ElemType::F64, ty, wide)
            }
            Unary::Shrink { lambd, bias } => Expr::select(
                lt(x.clone(), c(-lambd)),
                x.clone() + c(bias),
                Expr::select(lt(c(lambd), x.clone()), x - c(bias), zero()),
            ),
            Unary::Clamp(low, high) => x.max(c(low)).min(c(high)),
            Unary::IsInf(true, true) => Expr::un(UnOp::IsInf, x),
            Unary::IsInf(pos, neg) => {
                let hit = |on: bool, v: f64| {
                    if on { Expr::bin(BinOp::Eq, x.clone(), Expr::num(ty, v)) } else { Expr::bool(false) }
                };
                Expr::bin(BinOp::Or, hit(pos, f64::INFINITY), hit(neg, f64::NEG_INFINITY))
            }
        })
    }
}

fn hard_sigmoid(ty: ElemType, x: Expr, a: f32, b: f32) -> Expr {
    (x * Expr::num(ty, f64::from(a)) + Expr::num(ty, f64::from(b)))
        .min(Expr::num(ty, 1.0))
        .max(Expr::num(ty, 0.0))
}

/// log(1 + exp(x)) = max(x, 0) + log(1 + u) with u = exp(-|x|) <= 1, which does not overflow.
fn softplus(k: &mut KernelBuilder, ty: ElemType, x: Expr) -> Expr {
    let num = |v: f64| Expr::num(ty, v);
    let u = Expr::un(UnOp::Exp, -Expr::un(UnOp::Abs, x.clone()));
    let top = x.max(num(0.0));
    if ty != ElemType::F32 {
        return top + Expr::un(UnOp::Log1p, u);
    }
    // 2 atanh(s) with s = u / (2 + u) <= 1/3, by a polynomial in s^2 with an error of 2^-27.
    const ATANH: [f64; 4] = [1.400_344_2e-1, 1.400_150_8e-1, 2.001_071_9e-1, 3.333_321e-1];
    k.shared(u, |k, u| {
        k.shared(u.clone() / (u + num(2.0)), |k, s| {
            k.shared(s.clone() * s.clone(), |k, z| {
                let p = ATANH[1..].iter().fold(num(ATANH[0]), |p, c| Expr::fma(p, z.clone(), num(*c)));
                k.shared(s.clone() + s, |_, twice| top + Expr::fma(twice.clone() * z, p, twice))
            })
        })
    })
}

/// x tanh(log(1 + e^x)) = x n / (n + 2) with n = e^x (e^x + 2); for large x the quotient is 1.
fn mish(k: &mut KernelBuilder, ty: ElemType, x: Expr) -> Expr {
    let two = Expr::num(ty, 2.0);
    let e = Expr::un(UnOp::Exp, x.clone().min(Expr::num(ty, 44.0)));
    k.shared(e, |k, e| {
        let n = e.clone() * (e + two.clone());
        k.shared(n, |_, n| x * (n.clone() / (n + two)))
    })
}
