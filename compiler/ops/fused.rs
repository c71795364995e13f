//! Extended products and convolutions of com.microsoft: FusedMatMul, TransposeMatMul, FusedGemm, FusedConv,
//! NhwcConv, NhwcFusedConv.
//!
//! Spec: <https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md>. One version each.
//! Convolutions are lowered as `Conv`, between maps that transpose, add and activate, which are eliminated by
//! fusion.

use super::conv::Conv;
use super::matmul::{MatMul, product_sum};
use super::unary::Unary;
use super::{Attrs, InferCx, LowerCx, Operand, Operator};
use crate::diag::{Result, codes};
use crate::nest::{Buf, Expr, KernelBuilder, LoopKind, UnOp};
use crate::sym::Dim;
use crate::tensor::{TensorType, ValueType};

/// Which of them.
#[derive(Clone, Debug, PartialEq)]
enum Kind {
    /// Per operand: whether the last two dimensions are transposed, and whether the first dimension is moved
    /// to the row or column.
    MatMul {
        alpha: f32,
        trans: [bool; 2],
        batch: [bool; 2],
    },
    Gemm(MatMul),
    Conv {
        conv: Conv,
        nhwc: bool,
    },
}

/// The operators.
#[derive(Clone, Debug, PartialEq)]
pub struct Fused {
    kind: Kind,
    activation: Option<Unary>,
}

impl Operator for Fused {
    const OPS: &'static [&'static str] = &[
        "com.microsoft:FusedMatMul",
        "com.microsoft:TransposeMatMul",
        "com.microsoft:FusedGemm",
        "com.microsoft:FusedConv",
        "com.microsoft:NhwcConv",
        "com.microsoft:NhwcFusedConv",
    ];
    fn parse(a: &mut Attrs) -> Result<Self> {
        let kind = match a.op() {
            "FusedMatMul" | "TransposeMatMul" => {
                let mut flag = |name: &str| a.knows(name) && a.flag(name, false);
                let (trans, batch) =
                    ([flag("transA"), flag("transB")], [flag("transBatchA"), flag("transBatchB")]);
                Kind::MatMul { alpha: a.float("alpha", 1.0), trans, batch }
            }
            "FusedGemm" => Kind::Gemm(MatMul::parse(a)?),
            op => {
                let nhwc = op.starts_with("Nhwc");
                Kind::Conv { conv: Conv::parse(a)?, nhwc }
            }
        };
        Ok(Fused { kind, activation: activation(a)? })
    }
    fn infer(&self, cx: &mut InferCx) -> Result<()> {
        match &self.kind {
            Kind::Gemm(m) => m.infer(cx),
            Kind::Conv { conv, nhwc } => {
                let mut inputs: Vec<Option<Operand>> = cx.inputs.iter().take(3).cloned().collect();
                if *nhwc {
                    let x = cx.tensor(0);
                    let mut o = cx.operand(0)?.clone();
                    o.ty = ValueType::Tensor(TensorType::new(x.elem, from_last(&x.dims)));
                    inputs[0] = Some(o);
                }
                let mut inner = InferCx::new(cx.syms, cx.origin, &inputs, 11);
                let inferred = conv.infer(&mut inner);
                inner.check(inferred)?;
                let Some(Some((ValueType::Tensor(t), _))) = inner.outputs.into_iter().next() else {
                    return Ok(());
                };
                let dims = if *nhwc { to_last(&t.dims) } else { t.dims };
                if let Some(z) = cx.tensor_opt(3).cloned() {
                    cx.require(
                        z.rank() == dims.len(),
                        codes::OP_SHAPE,
                        "the summand Z must have the shape of the result",
                    )?;
                    for (a, b) in z.dims.iter().zip(&dims) {
                        cx.require_eq(*a, *b, "the summand Z must have the shape of the result");
                    }
                }
                cx.set(0, t.elem, dims);
                Ok(())
            }
            Kind::MatMul { trans, batch, .. } => {
                let mut views = vec![];
                for i in 0..2 {
                    let t = cx.tensor(i);
                    cx.require(t.rank() != 0, codes::OP_SHAPE, "a product does not take scalars")?;
                    views.push(
                        order(t.rank(), trans[i], batch[i])
                            .into_iter()
                            .map(|d| t.dims[d])
                            .collect::<Vec<_>>(),
                    );
                }
                let (a, b) = (&views[0], &views[1]);
                cx.require_eq(a[a.len() - 1], b[b.len().saturating_sub(2)], "the inner dimensions differ");
                let mut dims =
                    cx.broadcast(&[&a[..a.len().saturating_sub(2)], &b[..b.len().saturating_sub(2)]])?;
                dims.extend((a.len() > 1).then(|| a[a.len() - 2]));
                dims.extend((b.len() > 1).then(|| b[b.len() - 1]));
                let elem = cx.tensor(0).elem;
                cx.set(0, elem, dims);
                Ok(())
            }
        }
    }
    fn lower(&self, cx: &mut LowerCx) -> Result<()> {
        let y = cx.output(0);
        let ty = cx.elem(y).compute();
        match &self.kind {
            Kind::MatMul { alpha, trans, batch } => {
                matmul(cx, *alpha, trans, batch);
                Ok(())
            }
            Kind::Gemm(m) => {
                let Some(f) = &self.activation else { return m.lower(cx) };
                let (elem, dims) = (cx.elem(y), cx.dims(y));
                let product = cx.temp("product", elem, dims);
                within(cx, cx.inputs.to_vec(), product, |cx| m.lower(cx))?;
                cx.map(y, |k, at| {
                    let v = k.load(product, at);
                    f.apply(k, ty, v)
                });
                Ok(())
            }
            Kind::Conv { conv, nhwc } => {
                let z = cx.input_opt(3);
                let mut inputs: Vec<Option<Buf>> = cx.inputs.iter().take(3).copied().collect();
                let (mut dims, elem) = (cx.dims(y), cx.elem(y));
                if *nhwc {
                    let x = cx.input(0);
                    dims = from_last(&dims);
                    let shape = from_last(&cx.dims(x));
                    let turned = cx.temp("channels_first", elem, shape);
                    cx.map(turned, |k, at| k.load(x, &to_last(at)));
                    inputs[0] = Some(turned);
                }
                let plain = !nhwc && z.is_none() && self.activation.is_none();
                let inner = if plain { y } else { cx.temp("convolution", elem, dims) };
                within(cx, inputs, inner, |cx| conv.lower(cx))?;
                if plain {
                    return Ok(());
                }
                cx.map(y, |k, at| {
                    let mut v = if *nhwc { k.load(inner, &from_last(at)) } else { k.load(inner, at) };
                    if let Some(z) = z {
                        v = v + k.load(z, at);
                    }
                    match &self.activation {
                        Some(f) => f.apply(k, ty, v),
                        None => v,
                    }
                });
                Ok(())
            }
        }
    }
}

/// Lowers another operator into `out`.
fn within(
    cx: &mut LowerCx,
    inputs: Vec<Option<Buf>>,
    out: Buf,
    f: impl FnOnce(&mut LowerCx) -> Result<()>,
) -> Result<()> {
    let mut inner = LowerCx {
        m: cx.m,
        origin: cx.origin,
        since: 11,
        inputs: &inputs,
        known: cx.known,
        defined: cx.defined,
        outputs: vec![Some(out)],
    };
    f(&mut inner)
}

/// Reorders [N, .., C] to [N, C, ..], or back.
fn from_last<T: Copy>(d: &[T]) -> Vec<T> {
    match d {
        [n, inner @ .., c] => [*n, *c].into_iter().chain(inner.iter().copied()).collect(),
        d => d.to_vec(),
    }
}

fn to_last<T: Copy>(d: &[T]) -> Vec<T> {
    match d {
        [n, c, inner @ ..] => std::iter::once(*n).chain(inner.iter().copied()).chain([*c]).collect(),
        d => d.to_vec(),
    }
}

/// The dimensions of an operand in the order [batch .., row, column].
fn order(rank: usize, trans: bool, batch: bool) -> Vec<usize> {
    let mut v: Vec<usize> = (0..rank).collect();
    if batch && rank > 2 {
        // The first dimension is moved after the batch dimensions.
        v[..rank - 1].rotate_left(1);
    }
    if trans && rank > 1 {
        v.swap(rank - 2, rank - 1);
    }
    v
}

fn matmul(cx: &mut LowerCx, alpha: f32, trans: &[bool; 2], batch: &[bool; 2]) {
    let (bufs, y) = ([cx.input(0), cx.input(1)], cx.output(0));
    let out = cx.dims(y);
    let ty = cx.elem(y).compute();
    let orders: Vec<Vec<usize>> = (0..2).map(|i| order(cx.dims(bufs[i]).len(), trans[i], batch[i])).collect();
    let a = cx.dims(bufs[0]);
    let depth = a[orders[0][a.len() - 1]];
    cx.kernel(|k| {
        k.nest(LoopKind::Par, &out, |k, at| {
            let mut lead = at.to_vec();
            let col = if orders[1].len() > 1 { lead.pop() } else { None };
            let row = if orders[0].len() > 1 { lead.pop() } else { None };
            let acc = k.acc(Expr::num(ty, 0.0));
            k.nest(LoopKind::Seq, &[depth], |k, r| {
                let load = |k: &KernelBuilder, i: usize, last: [Option<Dim>; 2]| {
                    let dims = k.m.bufs[bufs[i]].dims.clone();
                    let own = dims.len().saturating_sub(2);
                    let ix: Vec<Dim> = lead[lead.len() - own.min(lead.len())..]
                        .iter()
                        .copied()
                        .chain(last.into_iter().flatten())
                        .collect();
                    let mut from = vec![Dim::constant(0); dims.len()];
                    for (p, (d, v)) in orders[i].iter().zip(ix).enumerate() {
                        from[*d] = match dims[*d].as_const() {
                            Some(1) if p < own => Dim::constant(0),
                            _ if p >= own || k.m.syms.in_range(v, dims[*d]) => v,
                            _ => v * crate::sym::broadcast::stride_factor(dims[*d]),
                        };
                    }
                    k.load(bufs[i], &from)
                };
                let (u, v) = (load(k, 0, [row, Some(r[0])]), load(k, 1, [Some(r[0]), col]));
                k.set(acc, product_sum(ty, u, v, Expr::acc(acc)));
            });
            let v =
                if alpha == 1.0 { Expr::acc(acc) } else { Expr::acc(acc) * Expr::num(ty, f64::from(alpha)) };
            k.store(y, at, v);
        });
    });
}

/// `activation` with its parameters.
fn activation(a: &mut Attrs) -> Result<Option<Unary>> {
    if !a.knows("activation") {
        return Ok(None);
    }
    let name = a.string_opt("activation").unwrap_or_default();
    let list = if a.knows("activation_params") { a.floats("activation_params") } else { vec![] };
    let mut parameter = |i: usize, attribute: &str, default: f32| {
        let own = if a.knows(attribute) { a.float_opt(attribute) } else { None };
        own.or(list.get(i).copied()).unwrap_or(default)
    };
    let f = match name.as_str() {
        "" => None,
        "Relu" => Some(Unary::Relu),
        "Sigmoid" => Some(Unary::Plain(UnOp::Sigmoid)),
        "Tanh" => Some(Unary::Plain(UnOp::Tanh)),
        "HardSwish" => Some(Unary::HardSwish),
        "Softplus" => Some(Unary::Softplus),
        "LeakyRelu" => Some(Unary::LeakyRelu(parameter(0, "activation_alpha", 0.01))),
        "HardSigmoid" => Some(Unary::HardSigmoid(
            parameter(0, "activation_alpha", 0.2),
            parameter(1, "activation_beta", 0.5),
        )),
        "Elu" => Some(Unary::Elu(parameter(0, "activation_alpha", 1.0))),
        "Clip" => Some(Unary::Clamp(
            parameter(0, "activation_alpha", f32::NEG_INFINITY),
            parameter(1, "activation_beta", f32::INFINITY),
        )),
        other => {
            return a
                .error(format!("the activation \"{other}\" is not supported"))
                .row(
                    "expected",
                    "Relu, Sigmoid, Tanh, HardSwish, Softplus, LeakyRelu, HardSigmoid, Elu or Clip",
                )
                .fail();
        }
    };
    Ok(f)
}
