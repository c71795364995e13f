//! Random numbers: RandomUniform, RandomNormal, RandomUniformLike, RandomNormalLike, Bernoulli, Multinomial.
//!
//! Spec: <https://onnx.ai/onnx/operators/onnx__RandomNormal.html> and the others. Version 22 adds bfloat16 to
//! all.
//!
//! Inference remains stateless and repeatable: number i of a node is a function of i alone. It is the first
//! word (or the first two) of Philox 4x32-10 with counter (i mod 2^32, i div 2^32, node, 0), where `node` is
//! a hash of the name of the node's result, and key (bits of the attribute `seed`, 1 if it is given).

pub mod philox;

use super::{Attrs, Elements, InferCx, LowerCx, Operator};
use crate::diag::{Result, codes};
use crate::nest::{BinOp, Buf, Expr, KernelBuilder, LoopKind, Scalar, UnOp};
use crate::sym::Dim;
use crate::tensor::ElemType;
use philox::Stream;

/// The distribution.
#[derive(Clone, Debug, PartialEq)]
enum Kind {
    Uniform {
        low: f32,
        high: f32,
    },
    Normal {
        mean: f32,
        scale: f32,
    },
    /// 1 with the probability given by the input.
    Bernoulli,
    /// Classes with unnormalized log-probabilities.
    Multinomial {
        samples: i64,
    },
}

/// The operators.
#[derive(Clone, Debug, PartialEq)]
pub struct Random {
    kind: Kind,
    /// Shape, if an attribute gives it.
    shape: Option<Vec<i64>>,
    dtype: Option<ElemType>,
    seed: Option<f32>,
}

impl Operator for Random {
    const OPS: &'static [&'static str] = &[
        "RandomUniform",
        "RandomNormal",
        "RandomUniformLike",
        "RandomNormalLike",
        "Bernoulli",
        "Multinomial",
    ];
    fn elements(op: &str) -> Elements {
        if matches!(op, "RandomUniformLike" | "RandomNormalLike") { Elements::Any } else { Elements::Numbers }
    }
    fn parse(a: &mut Attrs) -> Result<Self> {
        let name = a.op();
        let kind = match name {
            "Bernoulli" => Kind::Bernoulli,
            "Multinomial" => {
                let samples = a.int("sample_size", 1);
                a.require(samples >= 0, "attribute \"sample_size\" is negative")?;
                Kind::Multinomial { samples }
            }
            _ if name.starts_with("RandomUniform") => {
                Kind::Uniform { low: a.float("low", 0.0), high: a.float("high", 1.0) }
            }
            _ => Kind::Normal { mean: a.float("mean", 0.0), scale: a.float("scale", 1.0) },
        };
        let shape = if a.knows("shape") { a.ints_opt("shape") } else { None };
        a.require(
            !shape.as_ref().is_some_and(|s| s.iter().any(|d| *d < 0)),
            "attribute \"shape\" has a negative value",
        )?;
        let mut dtype = a.elem_type_opt("dtype");
        if shape.is_some() {
            dtype = dtype.or(Some(ElemType::F32));
        }
        if matches!(kind, Kind::Multinomial { .. }) {
            dtype = dtype.or(Some(ElemType::I32));
        }
        let fits = |t: ElemType| match kind {
            Kind::Bernoulli => t.is_float() || t.is_int() || t == ElemType::Bool,
            Kind::Multinomial { .. } => matches!(t, ElemType::I32 | ElemType::I64),
            _ => matches!(t, ElemType::F32 | ElemType::F64 | ElemType::F16 | ElemType::BF16),
        };
        if dtype.is_some_and(|t| !fits(t)) {
            return a
                .error(format!("{name} can not give values of the type in attribute \"dtype\""))
                .row("found", format!("{dtype:?}"))
                .fail();
        }
        Ok(Random { kind, shape, dtype, seed: a.float_opt("seed") })
    }
    fn infer(&self, cx: &mut InferCx) -> Result<()> {
        if let Some(s) = &self.shape {
            cx.set(
                0,
                self.dtype.unwrap_or(ElemType::F32),
                s.iter().map(|d| Dim::constant(*d)).collect::<Vec<_>>(),
            );
            return Ok(());
        }
        let t = cx.tensor(0).clone();
        let elem = self.dtype.unwrap_or(t.elem);
        let dims = match self.kind {
            Kind::Multinomial { samples } => {
                cx.require(t.rank() == 2, codes::OP_SHAPE, "the input must have rank 2")?;
                cx.syms.require_at_most(Dim::constant(1), t.dims[1]);
                vec![t.dims[0], Dim::constant(samples)]
            }
            _ => t.dims,
        };
        if matches!(self.kind, Kind::Uniform { .. } | Kind::Normal { .. }) && !elem.is_float() {
            return cx
                .error(codes::OP_TYPE, format!("the result would have element type {elem}"))
                .help("give the attribute dtype a floating-point type")
                .fail();
        }
        cx.set(0, elem, dims);
        Ok(())
    }
    fn lower(&self, cx: &mut LowerCx) -> Result<()> {
        let (x, y) = (cx.input_opt(0), cx.output(0));
        let dims = cx.dims(y);
        let ty = cx.elem(y).compute();
        let stream = Stream::new(self.seed, &cx.m.bufs[y].name);
        if let (Kind::Multinomial { .. }, Some(x)) = (&self.kind, x) {
            multinomial(cx, x, y, stream);
            return Ok(());
        }
        cx.map(y, |k, at| {
            let i = flat(at, &dims);
            match self.kind {
                Kind::Uniform { low, high } => {
                    let u = stream.uniform(k, i, ty);
                    u * Expr::num(ty, f64::from(high) - f64::from(low)) + Expr::num(ty, f64::from(low))
                }
                Kind::Normal { mean, scale } => {
                    let v = stream.normal(k, i, ty);
                    v * Expr::num(ty, f64::from(scale)) + Expr::num(ty, f64::from(mean))
                }
                _ => {
                    let p = x.map_or(Expr::num(ElemType::F64, 0.0), |x| {
                        let p = k.load(x, at);
                        Expr::cast(k.m.type_of(&p), ElemType::F64, p)
                    });
                    let u = stream.uniform(k, i, ElemType::F64);
                    Expr::select(Expr::bin(BinOp::Lt, u, p), Expr::num(ty, 1.0), Expr::num(ty, 0.0))
                }
            }
        });
        Ok(())
    }
}

/// The index of an element in row-major order.
pub fn flat(at: &[Dim], dims: &[Dim]) -> Dim {
    at.iter().zip(dims).fold(Dim::constant(0), |flat, (i, d)| flat * *d + *i)
}

/// The first class whose cumulative probability exceeds a uniform number.
fn multinomial(cx: &mut LowerCx, x: Buf, y: Buf, stream: Stream) {
    let (dims, classes) = (cx.dims(y), cx.dims(x)[1]);
    let (from, to) = (cx.elem(x).compute(), cx.elem(y).compute());
    cx.kernel(|k| {
        k.nest(LoopKind::Par, &dims, |k, at| {
            let top = k.acc(Scalar::lowest(from).into());
            k.nest(LoopKind::Seq, &[classes], |k, c| {
                let v = k.load(x, &[at[0], c[0]]);
                k.update(BinOp::Max, top, v);
            });
            let weight =
                |k: &KernelBuilder, c: Dim| Expr::un(UnOp::Exp, k.load(x, &[at[0], c]) - Expr::acc(top));
            let total = k.acc(Expr::num(from, 0.0));
            k.nest(LoopKind::Seq, &[classes], |k, c| {
                let v = weight(k, c[0]);
                k.update(BinOp::Add, total, v);
            });
            let u = stream.uniform(k, flat(at, &dims), from);
            let goal = k.let_(u * Expr::acc(total));
            let passed = k.acc(Expr::int(ElemType::I64, 0));
            let sum = k.acc(Expr::num(from, 0.0));
            k.nest(LoopKind::Seq, &[classes], |k, c| {
                let v = weight(k, c[0]);
                k.update(BinOp::Add, sum, v);
                let one = Expr::select(
                    Expr::bin(BinOp::Le, Expr::acc(sum), goal.clone()),
                    Expr::int(ElemType::I64, 1),
                    Expr::int(ElemType::I64, 0),
                );
                k.update(BinOp::Add, passed, one);
            });
            let class = Expr::acc(passed).min(Expr::index(classes - 1));
            k.store(y, at, Expr::cast(ElemType::I64, to, class));
        });
    });
}
