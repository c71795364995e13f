//! SVMClassifier and SVMRegressor of ai.onnx.ml.
//!
//! Spec: <https://onnx.ai/onnx/operators/#ai-onnx-ml>. One version each; details as in the reference, which
//! follows libsvm.
//!
//! With support vectors, K[n, v] is the kernel of sample and vector. The regressor sums them. The classifier
//! decides between each pair of classes i < j by a sum over the vectors of both, which is one matrix for all
//! pairs. Each decision is a vote (s > 0 for i), and the class with most votes wins. With `prob_a` and
//! `prob_b` the decisions become probabilities, and those of all pairs are coupled (`coupling`). Without
//! support vectors the coefficients are weights of the features, the first value of rho is added to all
//! scores, and the highest score wins.

mod coupling;

use super::linear::{products, table};
use super::support::power::power;
use super::support::scores::{Labels, Post, compute_type, matrix, pair, top};
use super::{Attrs, Elements, InferCx, LowerCx, Operator};
use crate::diag::{Result, codes};
use crate::nest::{BinOp, Buf, Expr, KernelBuilder, LoopKind, UnOp};
use crate::sym::Dim;
use crate::tensor::{ConstData, ElemType};
use std::sync::Arc;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Similarity {
    Linear,
    Poly,
    Rbf,
    Sigmoid,
}

/// `kernel_type`.
const SIMILARITIES: [(&str, Similarity); 4] = [
    ("LINEAR", Similarity::Linear),
    ("POLY", Similarity::Poly),
    ("RBF", Similarity::Rbf),
    ("SIGMOID", Similarity::Sigmoid),
];

/// The operators.
#[derive(Clone, Debug, PartialEq)]
pub struct Svm {
    similarity: Similarity,
    gamma: f32,
    coef0: f32,
    degree: f32,
    coefficients: Vec<f32>,
    vectors: Vec<f32>,
    rho: Vec<f32>,
    post: Post,
    kind: Kind,
}

#[derive(Clone, Debug, PartialEq)]
enum Kind {
    Regressor { supports: usize, one_class: bool },
    Classifier { labels: Labels, per_class: Vec<usize>, prob: Option<(Vec<f32>, Vec<f32>)> },
}

impl Operator for Svm {
    const OPS: &'static [&'static str] = &["ai.onnx.ml:SVMClassifier", "ai.onnx.ml:SVMRegressor"];
    fn elements(op: &str) -> Elements {
        if op == "ai.onnx.ml:SVMClassifier" { Elements::Strings } else { Elements::Numbers }
    }
    fn parse(a: &mut Attrs) -> Result<Self> {
        let similarity = a.choice("kernel_type", "LINEAR", &SIMILARITIES);
        let (gamma, coef0, degree) = match a.floats("kernel_params")[..] {
            [] => (0.0, 0.0, 0.0),
            [g, c, d] => (g, c, d),
            _ => return a.error("kernel_params must hold gamma, coef0 and degree").fail(),
        };
        let size = |a: &mut Attrs, what: &str, n: i64| {
            if n < 0 {
                a.fail(a.error(format!("{what} has a negative number")));
            }
            n.max(0) as usize
        };
        let kind = if a.op() == "SVMRegressor" {
            let n = a.int("n_supports", 0);
            Kind::Regressor { supports: size(a, "n_supports", n), one_class: a.flag("one_class", false) }
        } else {
            let Some(labels) = Labels::parse(a, "classlabels_ints", "classlabels_strings")? else {
                return a.error("SVMClassifier needs labels").fail();
            };
            let counts = a.ints("vectors_per_class").into_iter();
            let mut per_class: Vec<usize> = counts.map(|n| size(a, "vectors_per_class", n)).collect();
            if per_class.iter().all(|n| *n == 0) {
                per_class.clear();
            }
            let (pa, pb) = (a.floats("prob_a"), a.floats("prob_b"));
            let prob = (!pa.is_empty() && !per_class.is_empty()).then_some((pa, pb));
            Kind::Classifier { labels, per_class, prob }
        };
        Ok(Svm {
            similarity,
            gamma,
            coef0,
            degree,
            coefficients: a.floats("coefficients"),
            vectors: a.floats("support_vectors"),
            rho: a.floats("rho"),
            post: Post::parse(a),
            kind,
        })
    }
    fn infer(&self, cx: &mut InferCx) -> Result<()> {
        let (_, n, features) = matrix(cx)?;
        let wrong = |cx: &InferCx, m: String| cx.error(codes::OP_ATTRIBUTE, m).fail();
        let (supports, scores) = match &self.kind {
            Kind::Regressor { supports, .. } => (*supports, 1),
            Kind::Classifier { labels, per_class, .. } => (
                per_class.iter().sum(),
                if per_class.is_empty() {
                    labels.len()
                } else {
                    labels.len() * labels.len().saturating_sub(1) / 2
                },
            ),
        };
        // Rows of features: support vectors, or coefficients.
        let (list, rows) =
            if supports > 0 { (&self.vectors, supports) } else { (&self.coefficients, scores) };
        if rows == 0 || list.is_empty() || !list.len().is_multiple_of(rows) {
            return wrong(cx, format!("{} values do not make {rows} vectors", list.len()));
        }
        cx.require_eq(
            features,
            Dim::from(list.len() / rows),
            "the vectors do not fit the number of features",
        );
        if self.rho.is_empty() {
            return wrong(cx, "rho is missing".into());
        }
        match &self.kind {
            Kind::Regressor { supports, .. } => {
                if *supports > 0 && self.coefficients.len() != *supports {
                    return wrong(
                        cx,
                        format!("{} coefficients for {supports} support vectors", self.coefficients.len()),
                    );
                }
                cx.set(0, ElemType::F32, [n, Dim::constant(1)]);
            }
            Kind::Classifier { labels, per_class, prob } => {
                let c = labels.len();
                cx.require(
                    c >= 2,
                    codes::OP_FEATURE,
                    "SVMClassifier with one label is not supported: \
                        nothing says which label the other class has",
                )?;
                if !per_class.is_empty() {
                    if per_class.len() != c
                        || self.coefficients.len() != (c - 1) * supports
                        || self.rho.len() != scores
                    {
                        return wrong(
                            cx,
                            format!(
                                "{c} classes with {supports} support vectors need {} coefficients, {scores} \
                                    values of rho and {c} of vectors_per_class",
                                (c - 1) * supports
                            ),
                        );
                    }
                    if prob.as_ref().is_some_and(|(a, b)| a.len() != scores || b.len() != scores) {
                        return wrong(cx, format!("prob_a and prob_b must have {scores} values"));
                    }
                }
                cx.require(
                    !self.swaps_labels(),
                    codes::OP_FEATURE,
                    "SVMClassifier for two classes whose coefficients \
                        are all positive is not supported: the rules for its label contradict each other",
                )?;
                labels.set(cx, 0, n)?;
                cx.set(1, ElemType::F32, [n, Dim::from(self.columns(c))]);
            }
        }
        Ok(())
    }
    fn lower(&self, cx: &mut LowerCx) -> Result<()> {
        let x = cx.input(0);
        match &self.kind {
            Kind::Regressor { supports, one_class } => self.regress(cx, x, *supports, *one_class),
            Kind::Classifier { labels, per_class, .. } => return self.classify(cx, x, labels, per_class),
        }
        Ok(())
    }
}

impl Svm {
    /// True for two classes with positive coefficients only, where the second label wins from one half on.
    fn swaps_labels(&self) -> bool {
        let Kind::Classifier { labels, prob, .. } = &self.kind else { return false };
        labels.len() == 2
            && self.rho.len() == 1
            && prob.is_none()
            && self.coefficients.iter().all(|c| *c >= 0.0)
    }
    fn columns(&self, classes: usize) -> usize {
        match &self.kind {
            Kind::Classifier { per_class, prob: None, .. } if !per_class.is_empty() => {
                match (classes, self.post) {
                    (2, Post::Probit) => 1,
                    (2, _) => 2,
                    _ => classes * (classes - 1) / 2,
                }
            }
            _ => classes,
        }
    }
    fn regress(&self, cx: &mut LowerCx, x: Buf, supports: usize, one_class: bool) {
        let ty = compute_type(cx.elem(x));
        let (rows, y) = (cx.dims(x)[0], cx.output(0));
        let raw = cx.temp("sum", ty, [rows, Dim::constant(1)]);
        let bias = &self.rho[..1];
        match supports {
            0 => products(cx, x, &self.coefficients, bias, raw),
            n => {
                let like = self.kernels(cx, x, n);
                products(cx, like, &self.coefficients, bias, raw);
            }
        }
        let mut done = raw;
        if one_class {
            done = cx.temp("side", ty, [rows, Dim::constant(1)]);
            cx.map(done, |k, at| {
                let inside = Expr::bin(BinOp::Gt, k.load(raw, at), Expr::num(ty, 0.0));
                Expr::select(inside, Expr::num(ty, 1.0), Expr::num(ty, -1.0))
            });
        }
        self.post.write(cx, done, y);
    }
    /// The kernel of each sample with each of `n` support vectors.
    fn kernels(&self, cx: &mut LowerCx, x: Buf, n: usize) -> Buf {
        let ty = compute_type(cx.elem(x));
        let (rows, depth, from) = (cx.dims(x)[0], cx.dims(x)[1], cx.elem(x).compute());
        let dims = [rows, Dim::from(n)];
        let num = |v: f32| Expr::num(ty, f64::from(v));
        if self.similarity == Similarity::Rbf {
            let out = cx.temp("kernels", ty, dims);
            let vectors = table(cx, "vectors", &self.vectors, self.vectors.len() / n, ty);
            cx.kernel(|k| {
                k.nest(LoopKind::Par, &dims, |k, at| {
                    let acc = k.acc(Expr::num(ty, 0.0));
                    k.nest(LoopKind::Seq, &[depth], |k, f| {
                        let d =
                            Expr::cast(from, ty, k.load(x, &[at[0], f[0]])) - k.load(vectors, &[at[1], f[0]]);
                        let d = k.let_(d);
                        k.set(acc, Expr::fma(d.clone(), d, Expr::acc(acc)));
                    });
                    k.store(out, at, Expr::un(UnOp::Exp, Expr::acc(acc) * num(-self.gamma)));
                });
            });
            return out;
        }
        let dots = cx.temp("dots", ty, dims);
        products(cx, x, &self.vectors, &[], dots);
        if self.similarity == Similarity::Linear {
            return dots;
        }
        let out = cx.temp("kernels", ty, dims);
        cx.map(out, |k, at| {
            let s = k.load(dots, at) * num(self.gamma) + num(self.coef0);
            match self.similarity {
                Similarity::Sigmoid => Expr::un(UnOp::Tanh, s),
                _ => power(k, ty, s, num(self.degree)),
            }
        });
        out
    }
    fn classify(&self, cx: &mut LowerCx, x: Buf, labels: &Labels, per_class: &[usize]) -> Result<()> {
        let ty = compute_type(cx.elem(x));
        let (label, scores) = (cx.output_opt(0), cx.output_opt(1));
        let (rows, classes) = (cx.dims(x)[0], labels.len());
        if per_class.is_empty() {
            let raw = cx.temp("scores", ty, [rows, Dim::from(classes)]);
            products(cx, x, &self.coefficients, &vec![self.rho[0]; classes], raw);
            if let Some(y) = scores {
                self.post.write(cx, raw, y);
            }
            return label.map_or(Ok(()), |y| labels.write(cx, y, |k, at| top(k, raw, at)));
        }
        let n = per_class.iter().sum();
        let like = self.kernels(cx, x, n);
        let pairs: Vec<(usize, usize)> =
            (0..classes).flat_map(|i| (i + 1..classes).map(move |j| (i, j))).collect();
        let decisions = cx.temp("decisions", ty, [rows, Dim::from(pairs.len())]);
        products(cx, like, &self.pair_weights(per_class, &pairs), &self.rho, decisions);
        if let Some(y) = scores {
            let raw = match &self.kind {
                Kind::Classifier { prob: Some((a, b)), .. } => coupling::couple(cx, decisions, a, b, classes),
                _ if pairs.len() == 1 && self.post != Post::Probit => pair(cx, decisions, false),
                _ => decisions,
            };
            self.post.write(cx, raw, y);
        }
        let Some(y) = label else { return Ok(()) };
        let column = |cx: &mut LowerCx, name: &str, f: fn(&(usize, usize)) -> usize| {
            let v: Vec<i64> = pairs.iter().map(|p| f(p) as i64).collect();
            cx.m.constant(name, Arc::new(ConstData::from_i64s(&v)))
        };
        let sides = (column(cx, "first", |p| p.0), column(cx, "second", |p| p.1));
        let votes = cx.temp("votes", ElemType::F32, [rows, Dim::from(classes)]);
        cx.kernel(|k| k.nest(LoopKind::Par, &[rows], |k, o| vote(k, decisions, sides, votes, o[0])));
        labels.write(cx, y, |k, at| top(k, votes, at))
    }
    /// The coefficients of all support vectors in each decision.
    fn pair_weights(&self, per_class: &[usize], pairs: &[(usize, usize)]) -> Vec<f32> {
        let n: usize = per_class.iter().sum();
        let start = |c: usize| per_class[..c].iter().sum::<usize>();
        let mut out = vec![0.0; pairs.len() * n];
        for (p, (i, j)) in pairs.iter().enumerate() {
            for (class, row) in [(*i, j - 1), (*j, *i)] {
                for v in start(class)..start(class) + per_class[class] {
                    out[p * n + v] = self.coefficients[row * n + v];
                }
            }
        }
        out
    }
}

/// Counts the decisions of row `n` for each class.
fn vote(k: &mut KernelBuilder, decisions: Buf, (first, second): (Buf, Buf), votes: Buf, n: Dim) {
    let (pairs, classes) = (k.m.bufs[decisions].dims[1], k.m.bufs[votes].dims[1]);
    k.range(LoopKind::Seq, "c", 0, classes, |k, c| k.store(votes, &[n, c], Expr::f32(0.0)));
    k.range(LoopKind::Seq, "p", 0, pairs, |k, p| {
        let ty = k.m.bufs[decisions].ty.compute();
        let won = Expr::bin(BinOp::Gt, k.load(decisions, &[n, p]), Expr::num(ty, 0.0));
        let class = Expr::select(won, k.load(first, &[p]), k.load(second, &[p]));
        let class = k.let_(class);
        k.at_index(class, classes, |k, c| {
            let v = k.load(votes, &[n, c]) + Expr::f32(1.0);
            k.store(votes, &[n, c], v);
        });
    });
}
