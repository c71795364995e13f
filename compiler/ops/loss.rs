//! NegativeLogLikelihoodLoss and SoftmaxCrossEntropyLoss: the negative (log-softmaxed) score of the correct
//! class.
//!
//! Scores are [N, C, d1, ...], classes [N, d1, ...]. The mean divides by the sum of the weights. A class
//! outside 0..C that is not `ignore_index` is a status (`ONNXC_E_INDEX`). Versions differ in types.

use super::support::runtime;
use super::{Attrs, InferCx, LowerCx, Operator, softmax};
use crate::diag::{Result, codes};
use crate::nest::{BinOp, Expr, KernelBuilder, LoopKind};
use crate::sym::Dim;
use crate::tensor::ElemType;

/// The reduction of the losses.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Reduction {
    None,
    Sum,
    Mean,
}

/// The operators.
#[derive(Clone, Debug, PartialEq)]
pub struct Loss {
    /// True if the scores first go through a log-softmax.
    pub softmax: bool,
    /// The reduction of the losses.
    pub reduction: Reduction,
    /// The class that is ignored.
    pub ignore: Option<i64>,
}

impl Operator for Loss {
    const OPS: &'static [&'static str] = &["NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"];
    fn parse(a: &mut Attrs) -> Result<Self> {
        let reductions = [("none", Reduction::None), ("sum", Reduction::Sum), ("mean", Reduction::Mean)];
        Ok(Loss {
            softmax: a.op() == "SoftmaxCrossEntropyLoss",
            reduction: a.choice("reduction", "mean", &reductions),
            ignore: a.int_opt("ignore_index"),
        })
    }
    fn infer(&self, cx: &mut InferCx) -> Result<()> {
        let (x, c) = (cx.tensor(0).clone(), cx.tensor(1).clone());
        cx.require(
            x.rank() >= 2 && c.rank() + 1 == x.rank(),
            codes::OP_SHAPE,
            "the scores must be [N, C, ...], the classes [N, ...]",
        )?;
        for (a, b) in x.dims[..1].iter().chain(&x.dims[2..]).zip(&c.dims) {
            cx.require_eq(*a, *b, "scores and classes differ in shape");
        }
        if let Some(w) = cx.tensor_opt(2) {
            cx.require(w.rank() == 1, codes::OP_SHAPE, "the weights must be [C]")?;
            cx.require_eq(w.dims[0], x.dims[1], "there must be one weight for each class");
        }
        let dims = if self.reduction == Reduction::None { c.dims } else { vec![] };
        cx.set(0, x.elem, dims);
        if self.softmax {
            cx.set(1, x.elem, x.dims);
        }
        Ok(())
    }
    fn lower(&self, cx: &mut LowerCx) -> Result<()> {
        let (mut x, c, y) = (cx.input(0), cx.input(1), cx.output_opt(0));
        if self.softmax {
            let log = match cx.output_opt(1) {
                Some(b) => b,
                None => {
                    let (elem, dims) = (cx.elem(x), cx.dims(x));
                    cx.temp("log_prob", elem, dims)
                }
            };
            softmax::rows(cx, softmax::Kind::Log, x, log, 1..2);
            x = log;
        }
        let Some(y) = y else { return Ok(()) };
        let weights = cx.input_opt(2);
        let (dims, classes, ty) = (cx.dims(c), cx.dims(x)[1], cx.elem(x).compute());
        // Loss and weight of one position.
        let one = |k: &mut KernelBuilder, at: &[Dim]| -> (Expr, Expr) {
            let class = Expr::cast(k.m.bufs[c].ty.compute(), ElemType::I64, k.load(c, at));
            let class = k.let_(class);
            let skip = self.ignore.map(|i| runtime::eq(class.clone(), runtime::int(i)));
            let skip = skip.map(|s| k.let_(s));
            // An ignored class need not be valid.
            let class = match &skip {
                Some(s) => k.let_(Expr::select(s.clone(), runtime::int(0), class)),
                None => class,
            };
            let zero = || Expr::num(ty, 0.0);
            let or_zero = |v: Expr| match &skip {
                Some(s) => Expr::select(s.clone(), zero(), v),
                None => v,
            };
            let w = match weights {
                Some(w) => k.with_index(class.clone(), classes, |k, i| k.load(w, &[i])),
                None => Expr::num(ty, 1.0),
            };
            let w = k.let_(or_zero(w));
            let v = k.with_index(class, classes, |k, i| {
                let from: Vec<Dim> = at[..1].iter().chain([&i]).chain(&at[1..]).copied().collect();
                k.load(x, &from)
            });
            (or_zero(-v * w.clone()), w)
        };
        cx.kernel(|k| {
            if self.reduction == Reduction::None {
                return k.nest(LoopKind::Par, &dims, |k, at| {
                    let (v, _) = one(k, at);
                    k.store(y, at, v);
                });
            }
            let (sum, total) = (k.acc(Expr::num(ty, 0.0)), k.acc(Expr::num(ty, 0.0)));
            k.nest(LoopKind::Seq, &dims, |k, at| {
                let (v, w) = one(k, at);
                k.update(BinOp::Add, sum, v);
                k.update(BinOp::Add, total, w);
            });
            let v = if self.reduction == Reduction::Mean {
                Expr::acc(sum) / Expr::acc(total)
            } else {
                Expr::acc(sum)
            };
            k.store(y, &[], v);
        });
        Ok(())
    }
}
