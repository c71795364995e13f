//! TreeEnsemble, TreeEnsembleClassifier, TreeEnsembleRegressor of ai.onnx.ml.
//!
//! Spec: <https://onnx.ai/onnx/operators/#ai-onnx-ml>.
//!
//! | operator | versions |
//! |---|---|
//! | TreeEnsembleClassifier, TreeEnsembleRegressor | 1; 3: numbers as tensors, so that they may be doubles |
//! | TreeEnsemble | 5: the type of the input is that of all numbers; sets |
//!
//! Double inputs are compared and added in double, all others in float. A missing value (NaN) takes the
//! branch of the node's flag, whatever the test. The classifier's label is the first with the top score. With
//! two labels but a single class that has weights, the score s of that class determines both:
//!
//! | | scores | second label |
//! |---|---|---|
//! | NONE, all weights at least 0 | 1 - s, s | s > 0.5 |
//! | NONE | -s, s | s > 0 |
//! | PROBIT | 1 - s, s, transformed | s > 0.5 |
//! | others | -s, s, transformed | s > 0 |
//!
//! (the rules of the reference, and of ONNX Runtime for margins without a transform). Base values are added
//! at the end.

mod attributes;
mod forest;
mod walk;

use super::support::scores::{Labels, Post, compute_type, matrix, pair, top};
use super::{Attrs, Elements, InferCx, LowerCx, Operator};
use crate::diag::{Result, codes};
use crate::nest::{BinOp, Buf, Expr};
use crate::sym::Dim;
use crate::tensor::ElemType;
use attributes::Attributes;
use forest::Forest;
use walk::{Aggregate, Scores};

/// `aggregate_function`, in the order of the numbers in TreeEnsemble.
const AGGREGATES: [(&str, Aggregate); 4] = [
    ("AVERAGE", Aggregate::Average),
    ("SUM", Aggregate::Sum),
    ("MIN", Aggregate::Min),
    ("MAX", Aggregate::Max),
];

/// The operators.
#[derive(Clone, Debug, PartialEq)]
pub struct Trees {
    attributes: Attributes,
    aggregate: Aggregate,
    post: Post,
    targets: usize,
    base: Vec<f64>,
    kind: Kind,
}

#[derive(Clone, Debug, PartialEq)]
enum Kind {
    /// TreeEnsemble and TreeEnsembleRegressor.
    Values,
    /// TreeEnsembleClassifier.
    Classes(Labels),
}

impl Operator for Trees {
    const OPS: &'static [&'static str] =
        &["ai.onnx.ml:TreeEnsembleClassifier", "ai.onnx.ml:TreeEnsembleRegressor", "ai.onnx.ml:TreeEnsemble"];
    fn elements(op: &str) -> Elements {
        if op == "ai.onnx.ml:TreeEnsembleClassifier" { Elements::Strings } else { Elements::Numbers }
    }
    fn parse(a: &mut Attrs) -> Result<Self> {
        let ensemble = a.op() == "TreeEnsemble";
        let attributes = if ensemble { Attributes::version_5(a)? } else { Attributes::version_1(a)? };
        if a.op() == "TreeEnsembleClassifier" {
            let Some(labels) = Labels::parse(a, "classlabels_int64s", "classlabels_strings")? else {
                return a.error("TreeEnsembleClassifier needs labels").fail();
            };
            let (post, base) = (Post::parse(a), attributes::numbers(a, "base_values"));
            return Ok(Trees {
                aggregate: Aggregate::Sum,
                post,
                targets: labels.len(),
                base,
                attributes,
                kind: Kind::Classes(labels),
            });
        }
        let targets = match usize::try_from(a.int("n_targets", 1)) {
            Ok(n @ 1..=0xffff_ffff) => n,
            _ => return a.error("n_targets must be a positive number").fail(),
        };
        let kind = Kind::Values;
        Ok(if ensemble {
            let aggregate = a.numbered("aggregate_function", 1, &AGGREGATES);
            let post = Post::parse_number(a);
            Trees { attributes, aggregate, post, targets, base: vec![], kind }
        } else {
            let aggregate = a.choice("aggregate_function", "SUM", &AGGREGATES);
            let (post, base) = (Post::parse(a), attributes::numbers(a, "base_values"));
            Trees { attributes, aggregate, post, targets, base, kind }
        })
    }
    fn infer(&self, cx: &mut InferCx) -> Result<()> {
        let (t, n, features) = matrix(cx)?;
        let f = self.forest(t.elem).map_err(|m| cx.error(codes::OP_ATTRIBUTE, m))?;
        let least = f.steps.iter().map(|s| s.feature).max().unwrap_or(-1) + 1;
        if features.as_const().is_some_and(|c| c < least) {
            return cx
                .error(
                    codes::OP_SHAPE,
                    format!(
                        "the trees test feature {}, but the input has {} features",
                        least - 1,
                        features.display(cx.syms)
                    ),
                )
                .fail();
        }
        let refuse = |cx: &InferCx, why: &str| cx.error(codes::OP_FEATURE, why.to_owned()).fail();
        match &self.kind {
            Kind::Values => {
                if self.base.len() > 1 && self.base.len() != self.targets {
                    return cx
                        .error(
                            codes::OP_ATTRIBUTE,
                            format!("{} base values for {} targets", self.base.len(), self.targets),
                        )
                        .fail();
                }
                let elem = if cx.since == 5 { t.elem } else { ElemType::F32 };
                cx.set(0, elem, [n, Dim::from(self.targets)]);
            }
            Kind::Classes(labels) => {
                if labels.len() == 1 {
                    return refuse(
                        cx,
                        "TreeEnsembleClassifier with one label is not supported: nothing says which label \
                            the other class has",
                    );
                }
                match self.single(&f) {
                    Some(0) if self.base.len() > 1 => {
                        return refuse(
                            cx,
                            "TreeEnsembleClassifier with two base values but weights of one class is not \
                                supported: nothing says which one counts",
                        );
                    }
                    Some(1) => {
                        return refuse(
                            cx,
                            "TreeEnsembleClassifier with weights of the second of two classes alone is not \
                                supported: nothing says what the first one's score is",
                        );
                    }
                    None if self.base.len() > 1 && self.base.len() != labels.len() => {
                        return cx
                            .error(
                                codes::OP_ATTRIBUTE,
                                format!("{} base values for {} classes", self.base.len(), labels.len()),
                            )
                            .fail();
                    }
                    _ => {}
                }
                labels.set(cx, 0, n)?;
                cx.set(1, ElemType::F32, [n, Dim::from(labels.len())]);
            }
        }
        Ok(())
    }
    fn lower(&self, cx: &mut LowerCx) -> Result<()> {
        let x = cx.input(0);
        let ty = compute_type(cx.elem(x));
        let rows = cx.dims(x)[0];
        let Ok(f) = self.forest(cx.elem(x)) else { return cx.bug("trees that inference has refused") };
        match &self.kind {
            Kind::Values => {
                let y = cx.output(0);
                let direct = self.post == Post::None && cx.elem(y) == ty;
                let raw = if direct { y } else { cx.temp("scores", ty, [rows, Dim::from(self.targets)]) };
                walk::walk(cx, &f, &self.scores(self.targets, ty), x, raw);
                if !direct {
                    self.post.write(cx, raw, y);
                }
            }
            Kind::Classes(labels) => self.classify(cx, &f, labels, x, ty)?,
        }
        Ok(())
    }
}

impl Trees {
    fn forest(&self, elem: ElemType) -> std::result::Result<Forest, String> {
        self.attributes.forest(compute_type(elem), self.targets)
    }
    /// The computation of scores for a number of targets, in their compute type.
    fn scores(&self, targets: usize, ty: ElemType) -> Scores {
        Scores { aggregate: self.aggregate, base: self.base.clone(), targets, ty }
    }
    /// The only class with weights, if there are two classes.
    fn single(&self, f: &Forest) -> Option<i64> {
        let mut ids = f.leaves.iter().flatten().map(|w| w.target);
        let first = ids.next()?;
        (self.targets == 2 && ids.all(|i| i == first)).then_some(first)
    }
    fn classify(&self, cx: &mut LowerCx, f: &Forest, labels: &Labels, x: Buf, ty: ElemType) -> Result<()> {
        let (label, scores) = (cx.output_opt(0), cx.output_opt(1));
        let rows = cx.dims(x)[0];
        if self.single(f).is_some() {
            let raw = cx.temp("scores", ty, [rows, Dim::constant(1)]);
            walk::walk(cx, f, &self.scores(1, ty), x, raw);
            let positive = f.leaves.iter().flatten().all(|w| w.value >= 0.0);
            let share = self.post == Post::Probit || self.post == Post::None && positive;
            if let Some(y) = label {
                let limit = if share { 0.5 } else { 0.0 };
                labels.write(cx, y, |k, at| {
                    let s = k.load(raw, &[at[0], Dim::constant(0)]);
                    Expr::cast(ElemType::Bool, ElemType::I64, Expr::bin(BinOp::Gt, s, Expr::num(ty, limit)))
                })?;
            }
            if let Some(y) = scores {
                let both = pair(cx, raw, share);
                self.post.write(cx, both, y);
            }
            return Ok(());
        }
        let direct = scores.filter(|y| self.post == Post::None && cx.elem(*y) == ty);
        let raw = direct.unwrap_or_else(|| cx.temp("scores", ty, [rows, Dim::from(self.targets)]));
        walk::walk(cx, f, &self.scores(self.targets, ty), x, raw);
        let mut judged = raw;
        if self.post == Post::SoftmaxZero {
            judged = scores
                .unwrap_or_else(|| cx.temp("probabilities", ElemType::F32, [rows, Dim::from(self.targets)]));
            self.post.write(cx, raw, judged);
        } else if let (Some(y), None) = (scores, direct) {
            self.post.write(cx, raw, y);
        }
        match label {
            Some(y) => labels.write(cx, y, |k, at| top(k, judged, at)),
            None => Ok(()),
        }
    }
}

/// A separate function, so that both forms of attributes check numbers alike.
fn check_range(what: &str, v: i64, n: usize) -> std::result::Result<usize, String> {
    usize::try_from(v).ok().filter(|v| *v < n).ok_or_else(|| format!("{what} {v} is not in 0..{n}"))
}
