//! Gradients of element-wise operators: tables of derivatives as formulas.

use super::{Back, Parts};
use crate::diag::Result;
use crate::graph::{NodeData, Value};
use crate::passes::graph::expand::formula::{Formula, Term};
use crate::tensor::ElemType;
use std::f64::consts::PI;

/// What a derivative is computed from: the adjoint, the operands (twice the same for unary operators) and the
/// result.
pub(super) struct At<'f> {
    node: &'f NodeData,
    pub(super) d: Term<'f>,
    pub(super) x: Term<'f>,
    pub(super) b: Term<'f>,
    pub(super) y: Term<'f>,
    /// The types of the operands.
    types: [ElemType; 2],
}

/// The contribution to the adjoint of one operand, with the shape of the result.
pub(super) type Rule = fn(At<'_>) -> Term<'_>;

impl<'f> At<'f> {
    fn float(&self, name: &str, default: f64) -> f64 {
        self.node.float(name).map_or(default, f64::from)
    }
    fn where_positive(&self, a: Term<'f>, b: f64) -> Term<'f> {
        self.x.above(0.0).select(a, b)
    }
}

/// 1 - v^2
fn complement(v: Term<'_>) -> Term<'_> {
    1.0 - v.square()
}

/// exp(-a x^2)
fn bell(x: Term<'_>, a: f64) -> Term<'_> {
    (x.square() * -a).op("Exp")
}

/// Operators with one operand.
const UNARY: &[(&str, Rule)] = &[
    ("Neg", |r| -r.d),
    ("Exp", |r| r.d * r.y),
    ("Log", |r| r.d / r.x),
    ("Sqrt", |r| r.d / (r.y * 2.0)),
    ("Tanh", |r| r.d * complement(r.y)),
    ("Sigmoid", |r| r.d * (r.y * (1.0 - r.y))),
    ("Relu", |r| r.where_positive(r.d, 0.0)),
    ("Abs", |r| r.d * r.x.op("Sign")),
    ("Reciprocal", |r| r.d * -r.y.square()),
    ("Sin", |r| r.d * r.x.op("Cos")),
    ("Cos", |r| r.d * -r.x.op("Sin")),
    ("Tan", |r| r.d * (r.y.square() + 1.0)),
    ("Asin", |r| r.d / complement(r.x).op("Sqrt")),
    ("Acos", |r| -(r.d / complement(r.x).op("Sqrt"))),
    ("Atan", |r| r.d / (r.x.square() + 1.0)),
    ("Sinh", |r| r.d * r.x.op("Cosh")),
    ("Cosh", |r| r.d * r.x.op("Sinh")),
    ("Asinh", |r| r.d / (r.x.square() + 1.0).op("Sqrt")),
    ("Acosh", |r| r.d / (r.x.square() - 1.0).op("Sqrt")),
    ("Atanh", |r| r.d / complement(r.x)),
    ("Erf", |r| r.d * (bell(r.x, 1.0) * (2.0 / PI.sqrt()))),
    ("Softplus", |r| r.d * r.x.op("Sigmoid")),
    ("Softsign", |r| r.d * (r.x.op("Abs") + 1.0).square().op("Reciprocal")),
    ("LeakyRelu", |r| r.d * r.x.above(0.0).select(1.0, r.float("alpha", 0.01))),
    // Below 0, alpha exp(x) is the value plus alpha.
    ("Elu", |r| r.d * r.x.above(0.0).select(1.0, r.y + r.float("alpha", 1.0))),
    // As Elu, all of it times gamma.
    ("Selu", |r| {
        let alpha = r.float("alpha", f64::from(1.673_263_2_f32));
        let gamma = r.float("gamma", f64::from(1.050_701_f32));
        r.d * r.x.above(0.0).select(gamma, r.y + alpha * gamma)
    }),
    ("Celu", |r| r.d * r.x.above(0.0).select(1.0, r.x.scaled(1.0 / r.float("alpha", 1.0)).op("Exp"))),
    ("ThresholdedRelu", |r| r.d * r.x.above(r.float("alpha", 1.0)).select(1.0, 0.0)),
    ("HardSigmoid", |r| {
        let alpha = r.float("alpha", 0.2);
        let line = r.x * alpha + r.float("beta", 0.5);
        r.d * line.above(0.0).with("And", line.below(1.0)).select(alpha, 0.0)
    }),
    // x times a linear ramp, x above it, 0 below.
    ("HardSwish", |r| {
        let line = r.x * (1.0 / 6.0) + 0.5;
        let (low, high) = (line.above(0.0), line.below(1.0));
        r.d * low.with("And", high).select(r.x * (2.0 / 6.0) + 0.5, low.select(1.0, 0.0))
    }),
    (
        "Gelu",
        |r| if r.node.text("approximate").is_some_and(|s| s == "tanh") { gelu_by_tanh(r) } else { gelu(r) },
    ),
    ("Mish", |r| {
        let t = r.x.op("Softplus").op("Tanh");
        r.d * (t + r.x * (complement(t) * r.x.op("Sigmoid")))
    }),
    // s + alpha y (1 - s), s = sigmoid(alpha x)
    ("Swish", |r| {
        let alpha = r.float("alpha", 1.0);
        let s = r.x.scaled(alpha).op("Sigmoid");
        r.d * (s + (r.y * (1.0 - s)).scaled(alpha))
    }),
];

/// The normal distribution, and its density times x.
fn gelu(r: At<'_>) -> Term<'_> {
    let phi = ((r.x * 0.5f64.sqrt()).op("Erf") + 1.0) * 0.5;
    let density = bell(r.x, 0.5) * (1.0 / (2.0 * PI).sqrt());
    r.d * (phi + r.x * density)
}

/// Of x/2 (1 + tanh(u)), u = k (x + c x^3).
fn gelu_by_tanh(r: At<'_>) -> Term<'_> {
    let (k, c) = ((2.0 / PI).sqrt(), 0.044715);
    let square = r.x.square();
    let t = ((r.x * (square * c + 1.0)) * k).op("Tanh");
    let slope = (square * (3.0 * c) + 1.0) * k;
    r.d * ((t + r.x * (complement(t) * slope) + 1.0) * 0.5)
}

/// Operators with two operands `x` and `b`: the rule of each.
const BINARY: &[(&str, [Rule; 2])] = &[
    ("Add", [|r| r.d, |r| r.d]),
    ("Sub", [|r| r.d, |r| -r.d]),
    ("Mul", [|r| r.d * r.b, |r| r.d * r.x]),
    ("Div", [|r| r.d / r.b, |r| -(r.d * (r.y / r.b))]),
    ("Pow", [power_by_base, power_by_exponent]),
    ("PRelu", [|r| r.d * r.x.above(0.0).select(1.0, r.b), |r| r.d * r.x.with("Min", 0.0)]),
];

/// b x^(b-1), but 0 for the constant 1, everywhere. The exponent may be of another type.
fn power_by_base(r: At<'_>) -> Term<'_> {
    let e = r.b.cast(r.types[1], r.types[0]);
    let slope = e * r.x.with("Pow", e - 1.0);
    r.d * e.equal(0.0).select(0.0, slope)
}

/// y log(x), but 0 where x is 0.
fn power_by_exponent(r: At<'_>) -> Term<'_> {
    let log = r.x.op("Log");
    let log = r.x.above(0.0).select(log, 0.0);
    (r.d * (r.y * log)).cast(r.types[0], r.types[1])
}

impl Back<'_, '_> {
    pub(super) fn elementwise(&mut self) -> Result<Option<Parts>> {
        let name = self.name();
        if let Some((_, rule)) = UNARY.iter().find(|u| u.0 == name) {
            return Ok(Some(vec![Some(self.by_rule(*rule))]));
        }
        if let Some((_, rules)) = BINARY.iter().find(|b| b.0 == name) {
            return self.binary(*rules).map(Some);
        }
        match name {
            // Step functions: their derivative is 0 wherever it exists.
            "Floor" | "Ceil" | "Round" | "Sign" => Ok(Some(vec![None])),
            "Sum" | "Mean" | "Min" | "Max" => self.several().map(Some),
            "Where" => self.selected().map(Some),
            "Clip" => {
                if self.wants(1) || self.wants(2) {
                    return self.error("its limits depend on xs").fail();
                }
                Ok(Some(vec![Some(self.by_rule(|r| r.x.equal(r.y).select(r.d, 0.0)))]))
            }
            _ => Ok(None),
        }
    }
    fn by_rule(&mut self, rule: Rule) -> Value {
        let (d, x, y) = (self.d(), self.x(0), self.y(0));
        let b = if self.has(1) { self.x(1) } else { x };
        self.formula(rule, d, [x, b], y)
    }
    /// The value of a formula; the operands have known types.
    pub(super) fn formula(&mut self, rule: Rule, d: Value, [x, b]: [Value; 2], y: Value) -> Value {
        let types = [self.make.elem(x), self.make.elem(b)];
        let f = Formula::new(&mut self.make, types[0]);
        let [d, x, b, y] = [d, x, b, y].map(|v| f.term(v));
        rule(At { node: &self.node, d, x, b, y, types }).v
    }
    fn binary(&mut self, rules: [Rule; 2]) -> Result<Parts> {
        if self.int("broadcast", 0) != 0 {
            return self.error("it broadcasts as the first versions did").fail();
        }
        let mut parts = vec![None, None];
        for (i, rule) in rules.into_iter().enumerate() {
            if self.wants(i) {
                let (v, x) = (self.by_rule(rule), self.x(i));
                parts[i] = Some(self.narrowed_from_result(v, x)?);
            }
        }
        Ok(parts)
    }
    fn selected(&mut self) -> Result<Parts> {
        let (d, c) = (self.d(), self.x(0));
        let zero = self.number(self.y(0), 0.0);
        let (a, b) = (self.op("Where", &[c, d, zero]), self.op("Where", &[c, zero, d]));
        let mut parts = vec![None];
        for (i, v) in [(1, a), (2, b)] {
            let x = self.x(i);
            parts.push(if self.wants(i) { Some(self.narrowed_from_result(v, x)?) } else { None });
        }
        Ok(parts)
    }
    fn several(&mut self) -> Result<Parts> {
        let (mut d, y) = (self.d(), self.y(0));
        let n = self.node.inputs.len();
        let largest = matches!(self.name(), "Min" | "Max");
        let mut hits = vec![];
        if largest {
            // The operands that are equal to the result share its adjoint.
            let elem = self.make.elem(y);
            let mut count: Option<Value> = None;
            for i in 0..n {
                let x = self.x(i);
                let hit = self.op("Equal", &[x, y]);
                hits.push(hit);
                let one = self.make.cast(hit, crate::tensor::ElemType::Bool, elem);
                count = Some(match count {
                    Some(c) => self.op("Add", &[c, one]),
                    None => one,
                });
            }
            if let Some(c) = count {
                d = self.op("Div", &[d, c]);
            }
        } else if self.name() == "Mean" {
            d = self.scaled(d, y, 1.0 / n as f64);
        }
        let mut parts = vec![];
        for i in 0..n {
            if !self.wants(i) {
                parts.push(None);
                continue;
            }
            let x = self.x(i);
            let v = match hits.get(i) {
                Some(h) => self.where_or_zero(*h, d, x),
                None => d,
            };
            parts.push(Some(self.narrowed_from_result(v, x)?));
        }
        Ok(parts)
    }
}
