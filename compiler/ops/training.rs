//! Optimizer steps: Adam, Adagrad, Momentum of ai.onnx.preview.training. One version each.
//!
//! Spec: <https://onnx.ai/onnx/operators/onnx_aionnxpreviewtraining_Adam.html>, `Adagrad`, `Momentum`.
//!
//! After learning rate R and step count T the inputs are n tensors, their n gradients and n (Adam: twice n)
//! states; the outputs are the new tensors and states.

use super::{Attrs, InferCx, LowerCx, Operator};
use crate::diag::{Result, codes};
use crate::nest::{BinOp, Buf, Expr, KernelBuilder, UnOp};
use crate::sym::Dim;
use crate::tensor::ElemType;

/// The operators.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Training {
    Adam { alpha: f32, beta: f32, epsilon: f32, norm: f32, norm_post: f32 },
    Adagrad { decay: f32, epsilon: f32, norm: f32 },
    Momentum { alpha: f32, beta: f32, norm: f32, nesterov: bool },
}

impl Operator for Training {
    const OPS: &'static [&'static str] = &[
        "ai.onnx.preview.training:Adam",
        "ai.onnx.preview.training:Adagrad",
        "ai.onnx.preview.training:Momentum",
    ];
    fn parse(a: &mut Attrs) -> Result<Self> {
        let norm = a.float("norm_coefficient", 0.0);
        Ok(match a.op() {
            "Adam" => Training::Adam {
                alpha: a.float("alpha", 0.9),
                beta: a.float("beta", 0.999),
                epsilon: a.float("epsilon", 1e-6),
                norm,
                norm_post: a.float("norm_coefficient_post", 0.0),
            },
            "Adagrad" => Training::Adagrad {
                decay: a.float("decay_factor", 0.0),
                epsilon: a.float("epsilon", 1e-6),
                norm,
            },
            _ => {
                let nesterov = a.choice("mode", "standard", &[("standard", false), ("nesterov", true)]);
                Training::Momentum {
                    alpha: a.float("alpha", 0.0),
                    beta: a.float("beta", 0.0),
                    norm,
                    nesterov,
                }
            }
        })
    }
    fn infer(&self, cx: &mut InferCx) -> Result<()> {
        let each = self.states() + 2;
        let given = cx.inputs.len() - 2;
        if given == 0 || !given.is_multiple_of(each) {
            return cx
                .error(codes::OP_ARITY, format!("{given} inputs after R and T"))
                .row("expected", format!("a multiple of {each}: tensors, gradients, states"))
                .fail();
        }
        let n = given / each;
        for i in 0..n {
            let x = cx.tensor(2 + i).clone();
            for j in 1..each {
                let t = cx.tensor(2 + j * n + i).clone();
                if t.rank() != x.rank() || t.elem != x.elem {
                    return cx
                        .error(
                            codes::OP_SHAPE,
                            format!(
                                "input {} does not have the type of the tensor it belongs to",
                                2 + j * n + i
                            ),
                        )
                        .fail();
                }
                for (a, b) in t.dims.iter().zip(&x.dims) {
                    cx.require_eq(
                        *a,
                        *b,
                        &format!(
                            "input {} does not have the shape of the tensor it belongs to",
                            2 + j * n + i
                        ),
                    );
                }
            }
            for j in 0..=self.states() {
                cx.set(j * n + i, x.elem, x.dims.clone());
            }
        }
        Ok(())
    }
    fn lower(&self, cx: &mut LowerCx) -> Result<()> {
        let (rate, step) = (cx.input(0), cx.input(1));
        let n = (cx.inputs.len() - 2) / (self.states() + 2);
        for i in 0..n {
            let operands: Vec<Buf> = (0..self.states() + 2).map(|j| cx.input(2 + j * n + i)).collect();
            for j in 0..=self.states() {
                let Some(out) = cx.output_opt(j * n + i) else { continue };
                let ty = cx.elem(out).compute();
                cx.map(out, |k, at| {
                    let scalar = |k: &KernelBuilder, b: Buf| {
                        let zeros = vec![Dim::constant(0); k.m.bufs[b].dims.len()];
                        Expr::cast(k.m.bufs[b].ty.compute(), ty, k.load(b, &zeros))
                    };
                    let (r, t) = (scalar(k, rate), scalar(k, step));
                    let values = operands.iter().map(|b| k.load(*b, at)).collect();
                    self.step(ty, r, t, values, j)
                });
            }
        }
        Ok(())
    }
}

impl Training {
    /// States of one tensor.
    fn states(&self) -> usize {
        if matches!(self, Training::Adam { .. }) { 2 } else { 1 }
    }
    /// Result `wanted` for one element: 0 is the tensor, then come the states.
    fn step(&self, ty: ElemType, r: Expr, t: Expr, values: Vec<Expr>, wanted: usize) -> Expr {
        let c = |v: f32| Expr::num(ty, f64::from(v));
        let one = || Expr::num(ty, 1.0);
        let [x, g, state, rest @ ..] = values.as_slice() else { return one() };
        let regularized = |norm: f32| c(norm) * x.clone() + g.clone();
        let later = |then: Expr, els: Expr| {
            Expr::select(Expr::bin(BinOp::Gt, t.clone(), Expr::num(ty, 0.0)), then, els)
        };
        match *self {
            Training::Adam { alpha, beta, epsilon, norm, norm_post } => {
                let g = regularized(norm);
                let v = c(alpha) * state.clone() + c(1.0 - alpha) * g.clone();
                let h = c(beta) * rest.first().cloned().unwrap_or(one()) + c(1.0 - beta) * (g.clone() * g);
                let power = |b: f32| Expr::bin(BinOp::Pow, c(b), t.clone());
                let adjusted =
                    later(r.clone() * Expr::un(UnOp::Sqrt, one() - power(beta)) / (one() - power(alpha)), r);
                match wanted {
                    0 => {
                        c(1.0 - norm_post)
                            * (x.clone() - adjusted * (v / (Expr::un(UnOp::Sqrt, h) + c(epsilon))))
                    }
                    1 => v,
                    _ => h,
                }
            }
            Training::Adagrad { decay, epsilon, norm } => {
                let g = regularized(norm);
                let h = state.clone() + g.clone() * g.clone();
                let rate = r / (one() + t.clone() * c(decay));
                if wanted == 0 { x.clone() - rate * g / (Expr::un(UnOp::Sqrt, h) + c(epsilon)) } else { h }
            }
            Training::Momentum { alpha, beta, norm, nesterov } => {
                let g = regularized(norm);
                let v = c(alpha) * state.clone() + later(c(beta), one()) * g.clone();
                match (wanted, nesterov) {
                    (0, false) => x.clone() - r * v,
                    (0, true) => x.clone() - r * (g + c(alpha) * v),
                    _ => v,
                }
            }
        }
    }
}
