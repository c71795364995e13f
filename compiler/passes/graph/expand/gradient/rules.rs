//! Gradients of element-wise operators.

use super::{Back, Parts};
use crate::diag::Result;
use crate::graph::Value;
use std::f64::consts::PI;

impl Back<'_, '_> {
    pub(super) fn elementwise(&mut self) -> Result<Option<Parts>> {
        let name = self.name();
        Ok(Some(match name {
            // Step functions: their derivative is 0 wherever it exists.
            "Floor" | "Ceil" | "Round" | "Sign" => vec![None],
            "Add" | "Sub" | "Mul" | "Div" | "Pow" | "PRelu" => self.binary()?,
            "Sum" | "Mean" | "Min" | "Max" => self.several()?,
            "Where" => {
                let (d, c) = (self.d()?, self.x(0)?);
                let zero = self.number(self.y(0)?, 0.0)?;
                let (a, b) = (self.op("Where", &[c, d, zero])?, self.op("Where", &[c, zero, d])?);
                let mut parts = vec![None];
                for (i, v) in [(1, a), (2, b)] {
                    let x = self.x(i)?;
                    parts.push(if self.wants(i) { Some(self.narrowed_from_result(v, x)?) } else { None });
                }
                parts
            }
            "Clip" => {
                if self.wants(1) || self.wants(2) {
                    return self.error("its limits depend on xs").fail();
                }
                let (d, x, y) = (self.d()?, self.x(0)?, self.y(0)?);
                let inside = self.op("Equal", &[x, y])?;
                vec![Some(self.where_or_zero(inside, d, x)?)]
            }
            _ => match self.unary()? {
                Some(v) => vec![Some(v)],
                None => return Ok(None),
            },
        }))
    }
    /// Unary operators: the adjoint times the derivative.
    fn unary(&mut self) -> Result<Option<Value>> {
        let name = self.name();
        let plain = [
            "Neg",
            "Exp",
            "Log",
            "Sqrt",
            "Tanh",
            "Sigmoid",
            "Relu",
            "Abs",
            "Reciprocal",
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
            "Erf",
            "Softplus",
        ];
        let shaped = [
            "Softsign",
            "LeakyRelu",
            "Elu",
            "Selu",
            "Celu",
            "ThresholdedRelu",
            "HardSigmoid",
            "HardSwish",
            "Gelu",
            "Mish",
            "Swish",
        ];
        if !plain.contains(&name) && !shaped.contains(&name) {
            return Ok(None);
        }
        let (d, x, y) = (self.d()?, self.x(0)?, self.y(0)?);
        let one = self.number(x, 1.0)?;
        let factor = match name {
            "Neg" => return self.op("Neg", &[d]).map(Some),
            "Exp" => y,
            "Log" => return self.op("Div", &[d, x]).map(Some),
            "Sqrt" => {
                let twice = self.scaled(y, x, 2.0)?;
                return self.op("Div", &[d, twice]).map(Some);
            }
            "Tanh" => self.one_minus_square(y)?,
            "Sigmoid" => {
                let rest = self.op("Sub", &[one, y])?;
                self.mul(y, rest)?
            }
            "Relu" => {
                let zero = self.number(x, 0.0)?;
                let above = self.op("Greater", &[x, zero])?;
                return self.where_or_zero(above, d, x).map(Some);
            }
            "Abs" => self.op("Sign", &[x])?,
            "Reciprocal" => {
                let square = self.mul(y, y)?;
                self.op("Neg", &[square])?
            }
            "Sin" => self.op("Cos", &[x])?,
            "Cos" => {
                let s = self.op("Sin", &[x])?;
                self.op("Neg", &[s])?
            }
            "Tan" => {
                let square = self.mul(y, y)?;
                self.op("Add", &[square, one])?
            }
            "Asin" | "Acos" | "Atanh" => {
                let rest = self.one_minus_square(x)?;
                let root = if name == "Atanh" { rest } else { self.op("Sqrt", &[rest])? };
                let v = self.op("Div", &[d, root])?;
                return if name == "Acos" { self.op("Neg", &[v]).map(Some) } else { Ok(Some(v)) };
            }
            "Atan" | "Asinh" | "Acosh" => {
                let square = self.mul(x, x)?;
                let sum = self.op(if name == "Acosh" { "Sub" } else { "Add" }, &[square, one])?;
                let root = if name == "Atan" { sum } else { self.op("Sqrt", &[sum])? };
                return self.op("Div", &[d, root]).map(Some);
            }
            "Sinh" => self.op("Cosh", &[x])?,
            "Cosh" => self.op("Sinh", &[x])?,
            "Erf" => {
                let bell = self.bell(x, 1.0)?;
                self.scaled(bell, x, 2.0 / PI.sqrt())?
            }
            "Softplus" => self.op("Sigmoid", &[x])?,
            _ => self.shaped(name, x, y, one)?,
        };
        self.mul(d, factor).map(Some)
    }
    /// Derivatives of activations.
    fn shaped(&mut self, name: &str, x: Value, y: Value, one: Value) -> Result<Value> {
        let zero = self.number(x, 0.0)?;
        let above = self.op("Greater", &[x, zero])?;
        match name {
            "Softsign" => {
                let a = self.op("Abs", &[x])?;
                let a = self.op("Add", &[a, one])?;
                let square = self.mul(a, a)?;
                self.op("Reciprocal", &[square])
            }
            "LeakyRelu" => {
                let alpha = self.float("alpha", 0.01);
                let alpha = self.number(x, alpha)?;
                self.op("Where", &[above, one, alpha])
            }
            // Below 0, alpha exp(x) is the value plus alpha; Selu multiplies all of it by gamma.
            "Elu" | "Selu" => {
                let (alpha, gamma) = if name == "Elu" {
                    (self.float("alpha", 1.0), 1.0)
                } else {
                    (
                        self.float("alpha", f64::from(1.673_263_2_f32)),
                        self.float("gamma", f64::from(1.050_701_f32)),
                    )
                };
                let (shift, gain) = (self.number(x, alpha * gamma)?, self.number(x, gamma)?);
                let below = self.op("Add", &[y, shift])?;
                self.op("Where", &[above, gain, below])
            }
            "Celu" => {
                let alpha = self.float("alpha", 1.0);
                let part = self.scaled(x, x, 1.0 / alpha)?;
                let below = self.op("Exp", &[part])?;
                self.op("Where", &[above, one, below])
            }
            "ThresholdedRelu" => {
                let alpha = self.float("alpha", 1.0);
                let alpha = self.number(x, alpha)?;
                let above = self.op("Greater", &[x, alpha])?;
                self.op("Where", &[above, one, zero])
            }
            "HardSigmoid" | "HardSwish" => {
                let (alpha, beta) = if name == "HardSigmoid" {
                    (self.float("alpha", 0.2), self.float("beta", 0.5))
                } else {
                    (1.0 / 6.0, 0.5)
                };
                let (a, b) = (self.number(x, alpha)?, self.number(x, beta)?);
                let line = self.mul(x, a)?;
                let line = self.op("Add", &[line, b])?;
                let (low, high) = (self.op("Greater", &[line, zero])?, self.op("Less", &[line, one])?);
                let inside = self.op("And", &[low, high])?;
                if name == "HardSigmoid" {
                    return self.op("Where", &[inside, a, zero]);
                }
                // x times a linear ramp, x above it, 0 below.
                let twice = self.scaled(x, x, 2.0 * alpha)?;
                let slope = self.op("Add", &[twice, b])?;
                let outer = self.op("Where", &[low, one, zero])?;
                self.op("Where", &[inside, slope, outer])
            }
            "Gelu" if self.text("approximate", "none") == "tanh" => {
                // x/2 (1 + tanh(u)), u = r (x + c x^3)
                let (r, c) = ((2.0 / PI).sqrt(), 0.044715);
                let square = self.mul(x, x)?;
                let inner = self.scaled(square, x, c)?;
                let inner = self.op("Add", &[inner, one])?;
                let u = self.mul(x, inner)?;
                let u = self.scaled(u, x, r)?;
                let t = self.op("Tanh", &[u])?;
                let rest = self.one_minus_square(t)?;
                let slope = self.scaled(square, x, 3.0 * c)?;
                let slope = self.op("Add", &[slope, one])?;
                let slope = self.scaled(slope, x, r)?;
                let inner = self.mul(rest, slope)?;
                let inner = self.mul(x, inner)?;
                let sum = self.op("Add", &[t, inner])?;
                let sum = self.op("Add", &[sum, one])?;
                self.scaled(sum, x, 0.5)
            }
            "Gelu" => {
                // The normal distribution and its density.
                let u = self.scaled(x, x, 0.5f64.sqrt())?;
                let e = self.op("Erf", &[u])?;
                let e = self.op("Add", &[e, one])?;
                let phi = self.scaled(e, x, 0.5)?;
                let bell = self.bell(x, 0.5)?;
                let density = self.scaled(bell, x, 1.0 / (2.0 * PI).sqrt())?;
                let v = self.mul(x, density)?;
                self.op("Add", &[phi, v])
            }
            "Mish" => {
                let s = self.op("Softplus", &[x])?;
                let t = self.op("Tanh", &[s])?;
                let rest = self.one_minus_square(t)?;
                let sigmoid = self.op("Sigmoid", &[x])?;
                let v = self.mul(rest, sigmoid)?;
                let v = self.mul(x, v)?;
                self.op("Add", &[t, v])
            }
            // Swish: s + alpha y (1 - s), s = sigmoid(alpha x)
            _ => {
                let alpha = self.float("alpha", 1.0);
                let u = self.scaled(x, x, alpha)?;
                let s = self.op("Sigmoid", &[u])?;
                let rest = self.op("Sub", &[one, s])?;
                let v = self.mul(y, rest)?;
                let v = self.scaled(v, x, alpha)?;
                self.op("Add", &[s, v])
            }
        }
    }
    /// 1 - v^2
    fn one_minus_square(&mut self, v: Value) -> Result<Value> {
        let like = self.x(0)?;
        let (one, square) = (self.number(like, 1.0)?, self.mul(v, v)?);
        self.op("Sub", &[one, square])
    }
    /// exp(-a x^2)
    fn bell(&mut self, x: Value, a: f64) -> Result<Value> {
        let square = self.mul(x, x)?;
        let v = self.scaled(square, x, -a)?;
        self.op("Exp", &[v])
    }
    fn binary(&mut self) -> Result<Parts> {
        let (d, a, b, y) = (self.d()?, self.x(0)?, self.x(1)?, self.y(0)?);
        if self.int("broadcast", 0) != 0 {
            return self.error("it broadcasts as the first versions did").fail();
        }
        let mut parts = vec![None, None];
        if self.wants(0) {
            let v = match self.name() {
                "Mul" => self.mul(d, b)?,
                "Div" => self.op("Div", &[d, b])?,
                "Pow" => {
                    // b x^(b-1); the exponent may be of another type.
                    let (from, to) = (self.make.elem(b)?, self.make.elem(a)?);
                    let e = self.make.cast(b, from, to)?;
                    let one = self.number(a, 1.0)?;
                    let less = self.op("Sub", &[e, one])?;
                    let p = self.op("Pow", &[a, less])?;
                    let p = self.mul(e, p)?;
                    // The derivative for the constant 1 everywhere, including 0.
                    let zero = self.number(a, 0.0)?;
                    let flat = self.op("Equal", &[e, zero])?;
                    let p = self.op("Where", &[flat, zero, p])?;
                    self.mul(d, p)?
                }
                "PRelu" => {
                    let (zero, one) = (self.number(a, 0.0)?, self.number(a, 1.0)?);
                    let above = self.op("Greater", &[a, zero])?;
                    let slope = self.op("Where", &[above, one, b])?;
                    self.mul(d, slope)?
                }
                _ => d,
            };
            parts[0] = Some(self.narrowed_from_result(v, a)?);
        }
        if self.wants(1) {
            let v = match self.name() {
                "Sub" => self.op("Neg", &[d])?,
                "Mul" => self.mul(d, a)?,
                "Div" => {
                    let q = self.op("Div", &[y, b])?;
                    let v = self.mul(d, q)?;
                    self.op("Neg", &[v])?
                }
                "Pow" => {
                    // y log(x), but 0 where x is 0.
                    let zero = self.number(a, 0.0)?;
                    let (log, above) = (self.op("Log", &[a])?, self.op("Greater", &[a, zero])?);
                    let log = self.op("Where", &[above, log, zero])?;
                    let v = self.mul(y, log)?;
                    let v = self.mul(d, v)?;
                    let (from, to) = (self.make.elem(a)?, self.make.elem(b)?);
                    self.make.cast(v, from, to)?
                }
                "PRelu" => {
                    let zero = self.number(a, 0.0)?;
                    let below = self.op("Min", &[a, zero])?;
                    self.mul(d, below)?
                }
                _ => d,
            };
            parts[1] = Some(self.narrowed_from_result(v, b)?);
        }
        Ok(parts)
    }
    fn several(&mut self) -> Result<Parts> {
        let (mut d, y) = (self.d()?, self.y(0)?);
        let n = self.node.inputs.len();
        let largest = matches!(self.name(), "Min" | "Max");
        let mut hits = vec![];
        if largest {
            // The operands that are equal to the result share its adjoint.
            let elem = self.make.elem(y)?;
            let mut count: Option<Value> = None;
            for i in 0..n {
                let x = self.x(i)?;
                let hit = self.op("Equal", &[x, y])?;
                hits.push(hit);
                let one = self.make.cast(hit, crate::tensor::ElemType::Bool, elem)?;
                count = Some(match count {
                    Some(c) => self.op("Add", &[c, one])?,
                    None => one,
                });
            }
            if let Some(c) = count {
                d = self.op("Div", &[d, c])?;
            }
        } else if self.name() == "Mean" {
            d = self.scaled(d, y, 1.0 / n as f64)?;
        }
        let mut parts = vec![];
        for i in 0..n {
            if !self.wants(i) {
                parts.push(None);
                continue;
            }
            let x = self.x(i)?;
            let v = match hits.get(i) {
                Some(h) => self.where_or_zero(*h, d, x)?,
                None => d,
            };
            parts.push(Some(self.narrowed_from_result(v, x)?));
        }
        Ok(parts)
    }
}
