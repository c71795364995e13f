//! LinearClassifier and LinearRegressor of ai.onnx.ml: scores are inner products with rows of coefficients.
//!
//! Spec: <https://onnx.ai/onnx/operators/#ai-onnx-ml>. One version each. Double inputs are multiplied in
//! double, all others in float. One row of coefficients for two labels gives the scores -s and s. Without
//! labels the classes are numbered, and a single score s decides between class 0 and class 1 (s > 0).

use super::matmul::product_sum;
use super::support::scores::{Labels, Post, compute_type, matrix, pair, top};
use super::{Attrs, Elements, InferCx, LowerCx, Operator};
use crate::diag::{Result, codes};
use crate::nest::{BinOp, Buf, Expr, LoopKind};
use crate::sym::Dim;
use crate::tensor::{ConstData, ElemType};
use std::sync::Arc;

/// The operators.
#[derive(Clone, Debug, PartialEq)]
pub struct Linear {
    coefficients: Vec<f32>,
    intercepts: Vec<f32>,
    post: Post,
    kind: Kind,
}

#[derive(Clone, Debug, PartialEq)]
enum Kind {
    Regressor { targets: i64 },
    Classifier { labels: Option<Labels> },
}

impl Operator for Linear {
    const OPS: &'static [&'static str] = &["ai.onnx.ml:LinearClassifier", "ai.onnx.ml:LinearRegressor"];
    fn elements(op: &str) -> Elements {
        if op == "ai.onnx.ml:LinearClassifier" { Elements::Strings } else { Elements::Numbers }
    }
    fn parse(a: &mut Attrs) -> Result<Self> {
        let kind = if a.op() == "LinearRegressor" {
            Kind::Regressor { targets: a.int("targets", 1) }
        } else {
            // It describes the training and has no effect here.
            a.ignore("multi_class");
            Kind::Classifier { labels: Labels::parse(a, "classlabels_ints", "classlabels_strings")? }
        };
        Ok(Linear {
            coefficients: a.floats("coefficients"),
            intercepts: a.floats("intercepts"),
            post: Post::parse(a),
            kind,
        })
    }
    fn infer(&self, cx: &mut InferCx) -> Result<()> {
        let (_, n, features) = matrix(cx)?;
        let rows = match (&self.kind, self.intercepts.len(), features.as_const()) {
            (Kind::Regressor { targets }, ..) => *targets,
            (_, 0, Some(f)) if f > 0 => self.coefficients.len() as i64 / f,
            (_, 0, _) => {
                return cx
                    .error(codes::DYNAMIC_VALUE, "without intercepts the number of features must be known")
                    .fail();
            }
            (_, m, _) => m as i64,
        };
        if rows < 1
            || self.coefficients.len() as i64 % rows != 0
            || !(self.intercepts.is_empty() || self.intercepts.len() as i64 == rows)
        {
            return cx
                .error(
                    codes::OP_ATTRIBUTE,
                    format!(
                        "{} coefficients and {} intercepts do not make {rows} scores",
                        self.coefficients.len(),
                        self.intercepts.len()
                    ),
                )
                .fail();
        }
        cx.require_eq(
            features,
            Dim::constant(self.coefficients.len() as i64 / rows),
            "the coefficients do not fit the number of features",
        );
        let Kind::Classifier { labels } = &self.kind else {
            cx.set(0, ElemType::F32, [n, Dim::constant(rows)]);
            return Ok(());
        };
        let columns = match (rows, labels.as_ref().map(|l| l.len() as i64)) {
            (1, Some(2)) => 2,
            (1, Some(1)) => {
                return cx
                    .error(
                        codes::OP_FEATURE,
                        "LinearClassifier with one label is not supported: \
                    nothing says which label the other class has",
                    )
                    .fail();
            }
            (r, Some(l)) if r != l => {
                return cx.error(codes::OP_ATTRIBUTE, format!("{l} labels for {r} scores")).fail();
            }
            (r, _) => r,
        };
        match labels {
            Some(l) => l.set(cx, 0, n)?,
            None => cx.set(0, ElemType::I64, [n]),
        }
        cx.set(1, ElemType::F32, [n, Dim::constant(columns)]);
        Ok(())
    }
    fn lower(&self, cx: &mut LowerCx) -> Result<()> {
        let x = cx.input(0);
        let (ty, dims) = (compute_type(cx.elem(x)), cx.dims(x));
        let rows = match dims[1].as_const() {
            _ if !self.intercepts.is_empty() => self.intercepts.len(),
            _ if let Kind::Regressor { targets } = self.kind => targets as usize,
            Some(f) if f > 0 => self.coefficients.len() / f as usize,
            _ => return cx.bug("the number of scores is not known"),
        };
        let Kind::Classifier { labels } = &self.kind else {
            let y = cx.output(0);
            let direct = self.post == Post::None && cx.elem(y) == ty;
            let raw = if direct { y } else { cx.temp("scores", ty, [dims[0], Dim::from(rows)]) };
            products(cx, x, &self.coefficients, &self.intercepts, raw);
            if !direct {
                self.post.write(cx, raw, y);
            }
            return Ok(());
        };
        let (label, scores) = (cx.output_opt(0), cx.output_opt(1));
        let raw = cx.temp("scores", ty, [dims[0], Dim::from(rows)]);
        products(cx, x, &self.coefficients, &self.intercepts, raw);
        let both = if rows == 1 && labels.is_some() { pair(cx, raw, false) } else { raw };
        let mut judged = raw;
        if self.post == Post::SoftmaxZero && rows > 1 {
            judged =
                scores.unwrap_or_else(|| cx.temp("probabilities", ElemType::F32, [dims[0], Dim::from(rows)]));
            self.post.write(cx, both, judged);
        } else if let Some(y) = scores {
            self.post.write(cx, both, y);
        }
        let Some(y) = label else { return Ok(()) };
        let numbered = Labels::Ints((0..rows.max(2) as i64).collect());
        labels.as_ref().unwrap_or(&numbered).write(cx, y, |k, at| match rows {
            1 => {
                let s = k.load(raw, &[at[0], Dim::constant(0)]);
                Expr::cast(ElemType::Bool, ElemType::I64, Expr::bin(BinOp::Gt, s, Expr::num(ty, 0.0)))
            }
            _ => top(k, judged, at),
        })
    }
}

/// A matrix with `columns` numbers per row, in a compute type of ai.onnx.ml.
pub fn table(cx: &mut LowerCx, name: &str, v: &[f32], columns: usize, ty: ElemType) -> Buf {
    let dims = vec![(v.len() / columns.max(1)) as i64, columns as i64];
    let data = match ty {
        ElemType::F64 => {
            ConstData::new(ty, dims, v.iter().flat_map(|x| f64::from(*x).to_le_bytes()).collect::<Vec<u8>>())
        }
        _ => Some(ConstData::f32s(dims, v)),
    };
    cx.m.constant(name, Arc::new(data.unwrap_or_else(|| ConstData::f32s(vec![0, 0], &[]))))
}

/// `y[n, r] = sum over f of x[n, f] * w[r, f], + bias[r]` in the type of `y`. The weights are in rows.
pub fn products(cx: &mut LowerCx, x: Buf, weights: &[f32], bias: &[f32], y: Buf) {
    let ty = cx.elem(y);
    let (from, out, depth) = (cx.elem(x).compute(), cx.dims(y), cx.dims(x)[1]);
    let rows = out[1].as_const().unwrap_or(1).max(1) as usize;
    let w = table(cx, "coefficients", weights, weights.len() / rows, ty);
    let b = (!bias.is_empty()).then(|| table(cx, "intercepts", bias, bias.len(), ty));
    cx.kernel(|k| {
        k.nest(LoopKind::Par, &out, |k, at| {
            let acc = k.acc(Expr::num(ty, 0.0));
            k.nest(LoopKind::Seq, &[depth], |k, f| {
                let v = Expr::cast(from, ty, k.load(x, &[at[0], f[0]]));
                let v = product_sum(ty, v, k.load(w, &[at[1], f[0]]), Expr::acc(acc));
                k.set(acc, v);
            });
            let mut v = Expr::acc(acc);
            if let Some(b) = b {
                v = v + k.load(b, &[Dim::constant(0), at[1]]);
            }
            k.store(y, at, v);
        });
    });
}
