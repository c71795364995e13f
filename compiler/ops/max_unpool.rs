//! MaxUnpool: puts the maxima of a pooling back to their positions; all other elements are 0.
//!
//! Spec: <https://onnx.ai/onnx/operators/onnx__MaxUnpool.html>. Versions 11 and 22 add types.
//!
//! Positions refer to the tensor that `kernel_shape`, `strides` and `pads` imply. With `output_shape` that
//! tensor is in the first corner of the result. If two elements have the same position, the last one is kept.

use super::support::runtime;
use super::{Attrs, InferCx, LowerCx, Operator};
use crate::diag::{Result, codes};
use crate::nest::{Expr, LoopKind};
use crate::sym::Dim;

/// The operator.
#[derive(Clone, Debug, PartialEq)]
pub struct MaxUnpool {
    kernel: Vec<i64>,
    strides: Vec<i64>,
    pads: Vec<i64>,
}

impl Operator for MaxUnpool {
    const OPS: &'static [&'static str] = &["MaxUnpool"];
    fn parse(a: &mut Attrs) -> Result<Self> {
        let kernel = a.ints("kernel_shape");
        let n = kernel.len();
        let (strides, pads) =
            (a.ints_opt("strides").unwrap_or(vec![1; n]), a.ints_opt("pads").unwrap_or(vec![0; 2 * n]));
        a.require(strides.len() == n && pads.len() == 2 * n, "strides and pads do not fit kernel_shape")?;
        let small = |v: &i64| (0..1 << 30).contains(v);
        a.require(
            kernel.iter().chain(&strides).all(|v| *v >= 1)
                && kernel.iter().chain(&strides).chain(&pads).all(small),
            "kernel_shape and strides must be positive, and pads not negative",
        )?;
        Ok(MaxUnpool { kernel, strides, pads })
    }
    fn infer(&self, cx: &mut InferCx) -> Result<()> {
        let (x, at) = (cx.tensor(0).clone(), cx.tensor(1).clone());
        cx.require(
            x.rank() == self.kernel.len() + 2 && at.rank() == x.rank(),
            codes::OP_SHAPE,
            "input and indices must have batch, channel and as many \
                spatial dimensions as kernel_shape",
        )?;
        for (a, b) in x.dims.iter().zip(&at.dims) {
            cx.require_eq(*a, *b, "the indices do not have the shape of the input");
        }
        let implied = self.implied(&x.dims);
        for d in &implied {
            cx.syms.require_at_most(Dim::constant(0), *d);
        }
        let dims = match cx.has(2) {
            false => implied,
            true => {
                cx.require(
                    runtime::length(cx, 2) == Some(x.rank()),
                    codes::OP_SHAPE,
                    "output_shape does not have one value for each dimension",
                )?;
                let d = match cx.dims_value(2) {
                    Some(d) => d,
                    None => cx.sizes(0, x.rank(), None),
                };
                cx.require(
                    d.len() == x.rank(),
                    codes::OP_SHAPE,
                    "output_shape does not have one value for each dimension",
                )?;
                for (a, b) in implied.iter().zip(&d) {
                    if cx.syms.le(*a, *b) == crate::sym::Answer::No {
                        return cx
                            .error(codes::OP_SHAPE, "output_shape is smaller than what the pooling implies")
                            .found_expected(b.display(cx.syms).to_string(), a.display(cx.syms).to_string())
                            .fail();
                    }
                    cx.syms.require_at_most(*a, *b);
                }
                d
            }
        };
        cx.set(0, x.elem, dims);
        Ok(())
    }
    fn lower(&self, cx: &mut LowerCx) -> Result<()> {
        let (x, at, y) = (cx.input(0), cx.input(1), cx.output(0));
        let (dims, out) = (cx.dims(x), cx.dims(y));
        let implied = self.implied(&dims);
        let ty = cx.elem(y).compute();
        if let Some(b) = runtime::late_operand(cx, 2) {
            (0..out.len()).for_each(|j| cx.define(out[j], runtime::entry(cx, b, j)));
        }
        cx.kernel(|k| {
            k.nest(LoopKind::Par, &out, |k, o| k.store(y, o, Expr::num(ty, 0.0)));
        });
        cx.kernel(|k| {
            k.nest(LoopKind::Seq, &dims, |k, i| {
                let p = k.load(at, i);
                let v = k.load(x, i);
                let total = Dim::product(implied.iter().copied());
                k.at_index(p, total, |k, p| {
                    place(k, p, &implied, &mut vec![], &mut |k, at| k.store(y, at, v.clone()))
                });
            });
        });
        Ok(())
    }
}

/// Splits a position into indices, starting from the last dimension, and passes them to `store`.
fn place(
    k: &mut crate::nest::KernelBuilder,
    p: Dim,
    dims: &[Dim],
    at: &mut Vec<Dim>,
    store: &mut dyn FnMut(&mut crate::nest::KernelBuilder, &[Dim]),
) {
    match dims.split_last() {
        None => {
            at.reverse();
            store(k, at);
        }
        Some((n, rest)) => {
            // The index of the first dimension is in range because the position is.
            at.push(if rest.is_empty() && k.m.syms.in_range(p, *n) { p } else { p.modulo(*n) });
            place(k, p.floor_div(*n), rest, at, store);
        }
    }
}

impl MaxUnpool {
    /// The shape of the tensor that was pooled.
    fn implied(&self, x: &[Dim]) -> Vec<Dim> {
        let n = self.kernel.len();
        let spatial = (0..n)
            .map(|i| (x[2 + i] - 1) * self.strides[i] - (self.pads[i] + self.pads[n + i]) + self.kernel[i]);
        x[..2].iter().copied().chain(spatial).collect()
    }
}
