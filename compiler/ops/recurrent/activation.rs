//! Activations of recurrent cells: the elementwise operators of the same name, and two without an operator.

use super::super::Attrs;
use super::super::unary::Unary;
use crate::diag::Result;
use crate::nest::{Expr, KernelBuilder, UnOp};
use crate::tensor::ElemType;

/// A function with its parameters.
#[derive(Clone, Debug, PartialEq)]
pub enum Activation {
    /// Another operator's function.
    Unary(Unary),
    /// alpha * x + beta.
    Affine(f32, f32),
    /// alpha * tanh(beta * x).
    ScaledTanh(f32, f32),
}

/// Name, and the defaults of alpha and beta if it has them.
const NAMES: &[(&str, Option<f32>, Option<f32>)] = &[
    ("Relu", None, None),
    ("Tanh", None, None),
    ("Sigmoid", None, None),
    ("Affine", Some(1.0), Some(0.0)),
    ("LeakyRelu", Some(0.01), None),
    ("ThresholdedRelu", Some(1.0), None),
    ("ScaledTanh", Some(1.0), Some(1.0)),
    ("HardSigmoid", Some(0.2), Some(0.5)),
    ("Elu", Some(1.0), None),
    ("Softsign", None, None),
    ("Softplus", None, None),
];

/// The activations of all directions, one direction after the other.
pub fn parse(a: &mut Attrs, defaults: &[&str], directions: usize) -> Result<Vec<Activation>> {
    let want = defaults.len() * directions;
    let given = a.strings_opt("activations").filter(|v| !v.is_empty());
    // The first versions have default lists for two directions, whatever the direction.
    let names = match given {
        Some(v) if v.len() < want => {
            return a
                .error(format!("attribute \"activations\" has {} names", v.len()))
                .found_expected(format!("{v:?}"), format!("{want} names"))
                .fail();
        }
        Some(v) => v,
        None => defaults.iter().map(|s| (*s).to_owned()).cycle().take(want).collect(),
    };
    let (mut alphas, mut betas) =
        (a.floats("activation_alpha").into_iter(), a.floats("activation_beta").into_iter());
    let mut out = vec![];
    for name in names.iter().take(want) {
        let Some((known, alpha, beta)) = NAMES.iter().find(|n| n.0.eq_ignore_ascii_case(name)) else {
            let all: Vec<&str> = NAMES.iter().map(|n| n.0).collect();
            return a
                .error(format!("there is no activation \"{name}\""))
                .found_expected(name.clone(), format!("one of {}", all.join(", ")))
                .fail();
        };
        // Only activations with a parameter consume one from the list.
        let alpha = alpha.map_or(0.0, |d| alphas.next().unwrap_or(d));
        let beta = beta.map_or(0.0, |d| betas.next().unwrap_or(d));
        out.push(Activation::new(known, alpha, beta));
    }
    Ok(out)
}

impl Activation {
    fn new(name: &str, alpha: f32, beta: f32) -> Activation {
        Activation::Unary(match name {
            "Affine" => return Activation::Affine(alpha, beta),
            "ScaledTanh" => return Activation::ScaledTanh(alpha, beta),
            "Relu" => Unary::Relu,
            "Tanh" => Unary::Plain(UnOp::Tanh),
            "Sigmoid" => Unary::Plain(UnOp::Sigmoid),
            "LeakyRelu" => Unary::LeakyRelu(alpha),
            "ThresholdedRelu" => Unary::ThresholdedRelu(alpha),
            "HardSigmoid" => Unary::HardSigmoid(alpha, beta),
            "Elu" => Unary::Elu(alpha),
            "Softsign" => Unary::Softsign,
            _ => Unary::Softplus,
        })
    }
    /// The function on a value of compute type `ty`.
    pub fn apply(&self, k: &mut KernelBuilder, ty: ElemType, x: Expr) -> Expr {
        let c = |v: f32| Expr::num(ty, f64::from(v));
        match self {
            Activation::Unary(u) => u.apply(k, ty, x),
            Activation::Affine(a, b) => x * c(*a) + c(*b),
            Activation::ScaledTanh(a, b) => Expr::un(UnOp::Tanh, x * c(*b)) * c(*a),
        }
    }
}
