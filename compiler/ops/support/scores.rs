//! Code shared by classifiers and regressors of ai.onnx.ml: labels, the transform of scores, the class with
//! the top score.
//!
//! | `post_transform` | row of scores s |
//! |---|---|
//! | NONE | s |
//! | LOGISTIC | 1 / (1 + exp(-s)) |
//! | SOFTMAX | softmax |
//! | SOFTMAX_ZERO | softmax, except that scores of (nearly) zero become s exp(-max) before the division |
//! | PROBIT | the quantile of the normal distribution, by Winitzki's approximation as in the reference |
//!
//! A row of one score is transformed like any other. The top class is the first one with the highest score.
//! It is determined before transforms that preserve the order (all but SOFTMAX_ZERO), so that saturation
//! creates no ties.

use super::{runtime, text};
use crate::diag::{Result, codes};
use crate::nest::{BinOp, Buf, Expr, LoopKind, Scalar, UnOp};
use crate::ops::{Attrs, InferCx, LowerCx, softmax};
use crate::sym::Dim;
use crate::tensor::{ConstData, ElemType, TensorType};
use std::sync::Arc;

/// Transform of scores.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Post {
    None,
    Logistic,
    Softmax,
    SoftmaxZero,
    Probit,
}

/// The transforms by name, in the order of their numbers in TreeEnsemble.
const NAMES: [(&str, Post); 5] = [
    ("NONE", Post::None),
    ("SOFTMAX", Post::Softmax),
    ("LOGISTIC", Post::Logistic),
    ("SOFTMAX_ZERO", Post::SoftmaxZero),
    ("PROBIT", Post::Probit),
];

impl Post {
    /// The attribute `post_transform`.
    pub fn parse(a: &mut Attrs) -> Post {
        a.choice("post_transform", "NONE", &NAMES)
    }
    /// The attribute `post_transform` as a number.
    pub fn parse_number(a: &mut Attrs) -> Post {
        a.numbered("post_transform", 0, &NAMES)
    }
    /// Writes the transformed rows of `raw` [N, C] to `y`, which may have another type.
    pub fn write(self, cx: &mut LowerCx, raw: Buf, y: Buf) {
        let (from, to) = (cx.elem(raw).compute(), cx.elem(y).compute());
        match self {
            Post::Softmax | Post::SoftmaxZero if cx.elem(raw) != cx.elem(y) => {
                let (elem, dims) = (cx.elem(raw), cx.dims(raw));
                let wide = cx.temp("transformed", elem, dims);
                self.write(cx, raw, wide);
                Post::None.write(cx, wide, y);
            }
            Post::Softmax => softmax::rows(cx, softmax::Kind::Soft, raw, y, 1..2),
            Post::SoftmaxZero => softmax_zero(cx, raw, y),
            Post::None | Post::Logistic | Post::Probit => {
                cx.map(y, |k, at| {
                    let s = k.load(raw, at);
                    let s = match self {
                        Post::Logistic => Expr::un(UnOp::Sigmoid, s),
                        Post::Probit => k.shared(s, |k, s| {
                            let x = s.clone() + s - Expr::num(from, 1.0);
                            k.shared(x, |k, x| {
                                let one = Expr::num(from, 1.0);
                                let log = Expr::un(UnOp::Log, (one.clone() - x.clone()) * (one + x.clone()));
                                k.shared(log, |k, log| {
                                    let v = Expr::num(from, 2.0 / (std::f64::consts::PI * 0.147))
                                        + log.clone() * Expr::num(from, 0.5);
                                    k.shared(v, |_, v| {
                                        let root = Expr::un(
                                            UnOp::Sqrt,
                                            v.clone() * v.clone() - log * Expr::num(from, 1.0 / 0.147),
                                        );
                                        let size = Expr::un(UnOp::Sqrt, root - v)
                                            * Expr::num(from, std::f64::consts::SQRT_2);
                                        Expr::select(
                                            Expr::bin(BinOp::Lt, x, Expr::num(from, 0.0)),
                                            -size.clone(),
                                            size,
                                        )
                                    })
                                })
                            })
                        }),
                        _ => s,
                    };
                    Expr::cast(from, to, s)
                });
            }
        }
    }
}

fn softmax_zero(cx: &mut LowerCx, raw: Buf, y: Buf) {
    let (dims, ty) = (cx.dims(raw), cx.elem(raw).compute());
    let row = &dims[1..];
    cx.kernel(|k| {
        k.nest(LoopKind::Par, &dims[..1], |k, o| {
            let at = |r: &[Dim]| [o, r].concat();
            let top = k.acc(Scalar::lowest(ty).into());
            k.nest(LoopKind::Seq, row, |k, r| {
                let v = k.load(raw, &at(r));
                k.update(BinOp::Max, top, v);
            });
            let sum = k.acc(Expr::num(ty, 0.0));
            k.nest(LoopKind::Seq, row, |k, r| {
                let v = k.load(raw, &at(r));
                let v = k.let_(v);
                let zero = Expr::bin(BinOp::Le, Expr::un(UnOp::Abs, v.clone()), Expr::num(ty, 1e-7));
                let kept = v.clone() * Expr::un(UnOp::Exp, -Expr::acc(top));
                let v = k.let_(Expr::select(zero, kept, Expr::un(UnOp::Exp, v - Expr::acc(top))));
                k.store(y, &at(r), v.clone());
                k.update(BinOp::Add, sum, v);
            });
            k.nest(LoopKind::Seq, row, |k, r| {
                let nothing = Expr::bin(BinOp::Eq, Expr::acc(sum), Expr::num(ty, 0.0));
                let v = Expr::select(nothing, Expr::num(ty, 0.5), k.load(y, &at(r)) / Expr::acc(sum));
                k.store(y, &at(r), v);
            });
        });
    });
}

/// Names of the classes.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Labels {
    Ints(Vec<i64>),
    Strings(Vec<String>),
}

impl Labels {
    /// Reads the two attributes, only one of which may be given; `None` if neither is.
    pub fn parse(a: &mut Attrs, ints: &str, strings: &str) -> Result<Option<Labels>> {
        let i = a.ints_opt(ints).filter(|v| !v.is_empty());
        let s = a.strings_opt(strings).filter(|v| !v.is_empty());
        match (i, s) {
            (Some(_), Some(_)) => a.error(format!("only one of {ints} and {strings} may be given")).fail(),
            (Some(v), None) => Ok(Some(Labels::Ints(v))),
            (None, Some(v)) => Ok(Some(Labels::Strings(v))),
            (None, None) => Ok(None),
        }
    }
    /// The number of classes.
    pub fn len(&self) -> usize {
        match self {
            Labels::Ints(v) => v.len(),
            Labels::Strings(v) => v.len(),
        }
    }
    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Sets output `k` to a vector of labels.
    pub fn set(&self, cx: &mut InferCx, k: usize, n: Dim) -> Result<()> {
        match self {
            Labels::Ints(_) => cx.set(k, ElemType::I64, [n]),
            Labels::Strings(_) => cx.set(k, ElemType::Str, [n]),
        }
        Ok(())
    }
    /// Writes to `y`, a vector of N, the label of the class that `class` computes for a row.
    pub fn write(
        &self,
        cx: &mut LowerCx,
        y: Buf,
        class: impl FnOnce(&mut crate::nest::KernelBuilder, &[Dim]) -> Expr,
    ) -> Result<()> {
        let n = Dim::from(self.len());
        let table = match self {
            Labels::Ints(names) => cx.m.constant("labels", Arc::new(ConstData::from_i64s(names))),
            Labels::Strings(names) => text::list(cx.m, "labels", names),
        };
        let dims = cx.dims(y);
        cx.kernel(|k| {
            k.nest(LoopKind::Par, &dims, |k, at| {
                let c = class(k, at);
                let v = k.with_index(c, n, |k, c| k.load(table, &[c]));
                k.store(y, at, v);
            });
        });
        Ok(())
    }
}

/// The position of the first highest score of row `o`, as i64. NaN is never higher.
pub fn top(k: &mut crate::nest::KernelBuilder, scores: Buf, o: &[Dim]) -> Expr {
    let (classes, ty) = (k.m.bufs[scores].dims[1], k.m.bufs[scores].ty.compute());
    let (best, best_at) = (k.acc(Scalar::lowest(ty).into()), k.acc(runtime::int(0)));
    k.range(LoopKind::Seq, "c", 0, classes, |k, c| {
        let v = k.load(scores, &[o[0], c]);
        let v = k.let_(v);
        let more = k.let_(Expr::bin(BinOp::Gt, v.clone(), Expr::acc(best)));
        k.set(best_at, Expr::select(more.clone(), Expr::index(c), Expr::acc(best_at)));
        k.set(best, Expr::select(more, v, Expr::acc(best)));
    });
    Expr::acc(best_at)
}

/// Rows and columns of input 0, which must be a matrix.
pub fn matrix(cx: &InferCx) -> Result<(TensorType, Dim, Dim)> {
    let t = cx.tensor(0).clone();
    match t.dims[..] {
        [n, c] => Ok((t, n, c)),
        _ => cx
            .error(
                codes::OP_FEATURE,
                format!("{} is supported for a matrix of samples and features only", cx.origin.op),
            )
            .fail(),
    }
}

/// The compute type of ai.onnx.ml for an input type: double for double, float for all others.
pub fn compute_type(x: ElemType) -> ElemType {
    if x == ElemType::F64 { x } else { ElemType::F32 }
}

/// Both scores of two classes, computed from the score of the second: `1 - s` and `s`, or `-s` and `s`.
pub fn pair(cx: &mut LowerCx, one: Buf, share: bool) -> Buf {
    let (elem, rows) = (cx.elem(one), cx.dims(one)[0]);
    let ty = elem.compute();
    let both = cx.temp("both", elem, [rows, Dim::constant(2)]);
    cx.map(both, |k, at| {
        let s = k.load(one, &[at[0], Dim::constant(0)]);
        k.shared(s, |_, s| {
            let other = if share { Expr::num(ty, 1.0) - s.clone() } else { -s.clone() };
            Expr::select(Expr::cmp_index(BinOp::Eq, at[1], 0), other, s)
        })
    });
    both
}
