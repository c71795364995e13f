//! Activations with a gate or a bias: SwiGLU, and from com.microsoft Gelu, FastGelu, BiasGelu, QuickGelu,
//! BiasSplitGelu and BiasAdd.
//!
//! Spec: <https://onnx.ai/onnx/operators/onnx__SwiGLU.html>, and
//! <https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md>. One version each.

use super::unary::Unary;
use super::{Attrs, InferCx, LowerCx, Operator};
use crate::diag::{Result, codes};
use crate::nest::Expr;

/// Which of them.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Gated {
    /// swish(a) * b
    SwiGlu(f32),
    /// The function of the input plus an optional bias.
    Plain(Unary),
    /// The left half of (x + bias) times the GELU of its right half.
    Split,
    /// x + bias + skip
    Add,
}

impl Operator for Gated {
    const OPS: &'static [&'static str] = &[
        "SwiGLU",
        "com.microsoft:Gelu",
        "com.microsoft:FastGelu",
        "com.microsoft:BiasGelu",
        "com.microsoft:QuickGelu",
        "com.microsoft:BiasSplitGelu",
        "com.microsoft:BiasAdd",
    ];
    fn parse(a: &mut Attrs) -> Result<Self> {
        Ok(match a.op() {
            "SwiGLU" => Gated::SwiGlu(a.float("alpha", 1.0)),
            "FastGelu" => Gated::Plain(Unary::Gelu { tanh: true }),
            "QuickGelu" => Gated::Plain(Unary::Swish(a.float("alpha", 1.702))),
            "BiasSplitGelu" => Gated::Split,
            "BiasAdd" => Gated::Add,
            _ => Gated::Plain(Unary::Gelu { tanh: false }),
        })
    }
    fn infer(&self, cx: &mut InferCx) -> Result<()> {
        let t = cx.tensor(0).clone();
        let mut dims = t.dims.clone();
        match self {
            Gated::SwiGlu(_) => same(cx, 1, &t.dims)?,
            Gated::Plain(_) => bias(cx, &t.dims),
            Gated::Add => {
                bias(cx, &t.dims);
                same(cx, 2, &t.dims)?;
            }
            Gated::Split => {
                bias(cx, &t.dims);
                if let Some(d) = dims.last_mut() {
                    cx.require_eq(d.modulo(2), 0.into(), "the last dimension must be even");
                    *d = d.floor_div(2);
                }
            }
        }
        cx.set(0, t.elem, dims);
        Ok(())
    }
    fn lower(&self, cx: &mut LowerCx) -> Result<()> {
        let (x, y, other, skip) = (cx.input(0), cx.output(0), cx.input_opt(1), cx.input_opt(2));
        let ty = cx.elem(x).compute();
        let half = cx.dims(y).last().copied().unwrap_or_default();
        cx.map(y, |k, at| {
            let last = at.last().copied().unwrap_or_default();
            let biased = |k: &crate::nest::KernelBuilder, shift| {
                let mut from = at.to_vec();
                if let Some(l) = from.last_mut() {
                    *l = last + shift;
                }
                let v = k.load(x, &from);
                match other {
                    Some(b) => v + k.load(b, &[last + shift]),
                    None => v,
                }
            };
            match self {
                Gated::SwiGlu(alpha) => {
                    let gate = k.load(x, at);
                    let gate = Unary::Swish(*alpha).apply(k, ty, gate);
                    match other {
                        Some(b) => gate * k.load(b, at),
                        None => gate,
                    }
                }
                Gated::Plain(f) => {
                    let v = biased(k, 0.into());
                    f.apply(k, ty, v)
                }
                Gated::Add => {
                    let v = biased(k, 0.into());
                    v + skip.map_or(Expr::num(ty, 0.0), |s| k.load(s, at))
                }
                Gated::Split => {
                    let right = biased(k, half);
                    biased(k, 0.into()) * Unary::Gelu { tanh: false }.apply(k, ty, right)
                }
            }
        });
        Ok(())
    }
}

fn same(cx: &mut InferCx, i: usize, dims: &[crate::sym::Dim]) -> Result<()> {
    let t = cx.tensor(i).clone();
    cx.require(t.rank() == dims.len(), codes::OP_SHAPE, "the operands must have one shape")?;
    for (a, b) in t.dims.iter().zip(dims) {
        cx.require_eq(*a, *b, "the operands must have one shape");
    }
    Ok(())
}

/// Input 1, if given, has one value per element of the last dimension.
fn bias(cx: &mut InferCx, dims: &[crate::sym::Dim]) {
    let Some(b) = cx.tensor_opt(1) else { return };
    match (b.rank(), dims.last()) {
        (1, Some(d)) => cx.require_eq(b.dims[0], *d, "the bias does not fit the last dimension"),
        _ => cx.fail(cx.error(codes::OP_SHAPE, "the bias must have rank 1, and the input a last dimension")),
    }
}
