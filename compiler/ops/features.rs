//! Scaler, Normalizer, Imputer, Binarizer, FeatureVectorizer, ArrayFeatureExtractor of ai.onnx.ml: feature
//! preprocessing.
//!
//! Spec: <https://onnx.ai/onnx/operators/#ai-onnx-ml>. One version each. Arithmetic is in float, for doubles
//! in double.
//!
//! * Normalizer divides by the largest element, the sum of absolute values, or the root of the sum of
//!   squares. A row for which that is zero is unchanged.
//! * Imputer replaces elements equal to `replaced_value_*`; if that is NaN, it replaces NaNs.
//! * FeatureVectorizer truncates or zero-pads each input to its entry of `inputdimensions`; a vector is one
//!   row.

use super::support::runtime;
use super::support::scores::compute_type;
use super::{Attrs, Elements, InferCx, LowerCx, Operator};
use crate::diag::{Result, codes};
use crate::nest::{BinOp, Expr, LoopKind, Scalar, UnOp};
use crate::sym::Dim;
use crate::tensor::{ConstData, ElemType};
use std::sync::Arc;

/// The divisor of a row.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Norm {
    Max,
    L1,
    L2,
}

/// The operators.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Features {
    Scaler { offset: Vec<f32>, scale: Vec<f32> },
    Normalizer(Norm),
    Imputer { floats: Vec<f32>, ints: Vec<i64>, replaced_float: f32, replaced_int: i64 },
    Binarizer { threshold: f32 },
    Vectorizer { sizes: Option<Vec<i64>> },
    Extractor,
}

impl Operator for Features {
    const OPS: &'static [&'static str] = &[
        "ai.onnx.ml:Scaler",
        "ai.onnx.ml:Normalizer",
        "ai.onnx.ml:Imputer",
        "ai.onnx.ml:Binarizer",
        "ai.onnx.ml:FeatureVectorizer",
        "ai.onnx.ml:ArrayFeatureExtractor",
    ];
    fn elements(op: &str) -> Elements {
        if op == "ai.onnx.ml:ArrayFeatureExtractor" { Elements::Strings } else { Elements::Numbers }
    }
    fn parse(a: &mut Attrs) -> Result<Self> {
        Ok(match a.op() {
            "Scaler" => Features::Scaler { offset: a.floats("offset"), scale: a.floats("scale") },
            "Normalizer" => {
                let norms = [("MAX", Norm::Max), ("L1", Norm::L1), ("L2", Norm::L2)];
                Features::Normalizer(a.choice("norm", "MAX", &norms))
            }
            "Imputer" => Features::Imputer {
                floats: a.floats("imputed_value_floats"),
                ints: a.ints("imputed_value_int64s"),
                replaced_float: a.float("replaced_value_float", 0.0),
                replaced_int: a.int("replaced_value_int64", 0),
            },
            "Binarizer" => Features::Binarizer { threshold: a.float("threshold", 0.0) },
            "FeatureVectorizer" => Features::Vectorizer { sizes: a.ints_opt("inputdimensions") },
            _ => Features::Extractor,
        })
    }
    fn infer(&self, cx: &mut InferCx) -> Result<()> {
        let t = cx.tensor(0).clone();
        // One value for all features, or one per feature.
        let fit = |cx: &mut InferCx, n: usize, what: &str| match t.dims.last() {
            _ if n == 1 => {}
            Some(c) => {
                cx.require_eq(Dim::from(n), *c, &format!("there must be one {what} or one for each feature"))
            }
            None => cx.fail(cx.error(codes::OP_SHAPE, "a scalar has no features")),
        };
        match self {
            Features::Scaler { offset, scale } => {
                for (list, what) in [(offset, "offset"), (scale, "scale")] {
                    if !list.is_empty() {
                        fit(cx, list.len(), what);
                    }
                }
                cx.set(0, ElemType::F32, t.dims);
            }
            Features::Normalizer(_) => {
                cx.require(
                    matches!(t.rank(), 1 | 2),
                    codes::OP_SHAPE,
                    "Normalizer takes a vector or a matrix",
                )?;
                cx.set(0, ElemType::F32, t.dims);
            }
            Features::Imputer { floats, ints, .. } => {
                let n = if t.elem.is_float() { floats.len() } else { ints.len() };
                if n == 0 {
                    let name =
                        if t.elem.is_float() { "imputed_value_floats" } else { "imputed_value_int64s" };
                    return cx
                        .error(
                            codes::OP_ATTRIBUTE,
                            format!("Imputer of {} needs the attribute {name}", t.elem),
                        )
                        .fail();
                }
                fit(cx, n, "imputed value");
                cx.set(0, t.elem, t.dims);
            }
            Features::Binarizer { .. } => cx.set(0, t.elem, t.dims),
            Features::Vectorizer { sizes } => {
                cx.require(
                    !sizes.as_ref().is_some_and(|s| s.len() != cx.inputs.len() || s.iter().any(|n| *n < 0)),
                    codes::OP_ATTRIBUTE,
                    "inputdimensions must hold one size for each input",
                )?;
                let (mut rows, mut total) = (None, Dim::constant(0));
                for i in 0..cx.inputs.len() {
                    let t = cx.tensor(i).clone();
                    let (n, c) = match t.dims[..] {
                        [c] => (Dim::constant(1), c),
                        [n, c] => (n, c),
                        _ => {
                            return cx
                                .error(codes::OP_SHAPE, "FeatureVectorizer takes vectors and matrices")
                                .fail();
                        }
                    };
                    match rows {
                        None => rows = Some(n),
                        Some(first) => cx.require_eq(n, first, "the inputs have different numbers of rows"),
                    }
                    total = total + sizes.as_ref().map_or(c, |s| Dim::constant(s[i]));
                }
                cx.set(0, ElemType::F32, [rows.unwrap_or(Dim::constant(1)), total]);
            }
            Features::Extractor => {
                let count = cx.tensor(1).count();
                let outer = match t.dims.split_last() {
                    Some((_, [])) => vec![Dim::constant(1)],
                    Some((_, outer)) => outer.to_vec(),
                    None => return cx.error(codes::OP_SHAPE, "a scalar has no features").fail(),
                };
                cx.set(0, t.elem, [outer.as_slice(), &[count]].concat());
            }
        }
        Ok(())
    }
    fn lower(&self, cx: &mut LowerCx) -> Result<()> {
        let (x, y) = (cx.input(0), cx.output(0));
        let (elem, dims) = (cx.elem(x), cx.dims(x));
        let (from, ty) = (elem.compute(), compute_type(elem));
        match self {
            Features::Scaler { offset, scale } => {
                let mut list = |name: &str, v: &[f32]| {
                    (!v.is_empty())
                        .then(|| cx.m.constant(name, Arc::new(ConstData::f32s(vec![v.len() as i64], v))))
                };
                let (offset, scale) = (list("offset", offset), list("scale", scale));
                cx.map(y, |k, at| {
                    let mut v = Expr::cast(from, ty, k.load(x, at));
                    if let Some(b) = offset {
                        v = v - Expr::cast(ElemType::F32, ty, k.load_broadcast(b, at));
                    }
                    if let Some(b) = scale {
                        v = v * Expr::cast(ElemType::F32, ty, k.load_broadcast(b, at));
                    }
                    Expr::cast(ty, ElemType::F32, v)
                });
            }
            Features::Normalizer(norm) => {
                let (outer, row) = dims.split_at(dims.len() - 1);
                cx.kernel(|k| {
                    k.nest(LoopKind::Par, outer, |k, o| {
                        let load = |k: &crate::nest::KernelBuilder, r: &[Dim]| {
                            Expr::cast(from, ty, k.load(x, &[o, r].concat()))
                        };
                        let acc = k.acc(if *norm == Norm::Max {
                            Scalar::lowest(ty).into()
                        } else {
                            Expr::num(ty, 0.0)
                        });
                        k.nest(LoopKind::Seq, row, |k, r| {
                            let v = load(k, r);
                            let next = match norm {
                                Norm::Max => Expr::acc(acc).max(v),
                                Norm::L1 => Expr::acc(acc) + Expr::un(UnOp::Abs, v),
                                Norm::L2 => {
                                    let v = k.let_(v);
                                    Expr::fma(v.clone(), v, Expr::acc(acc))
                                }
                            };
                            k.set(acc, next);
                        });
                        let size = if *norm == Norm::L2 {
                            Expr::un(UnOp::Sqrt, Expr::acc(acc))
                        } else {
                            Expr::acc(acc)
                        };
                        let size = k.let_(size);
                        let zero = Expr::bin(BinOp::Eq, size.clone(), Expr::num(ty, 0.0));
                        let by = k.let_(Expr::select(zero, Expr::num(ty, 1.0), size));
                        k.nest(LoopKind::Seq, row, |k, r| {
                            let v = load(k, r) / by.clone();
                            k.store(y, &[o, r].concat(), Expr::cast(ty, ElemType::F32, v));
                        });
                    });
                });
            }
            Features::Imputer { floats, ints, replaced_float, replaced_int } => {
                let data = if elem.is_float() {
                    ConstData::f32s(vec![floats.len() as i64], floats)
                } else {
                    ConstData::from_i64s(ints)
                };
                let stored = data.elem();
                let values = cx.m.constant("imputed", Arc::new(data));
                cx.map(y, |k, at| {
                    let v = k.load(x, at);
                    k.shared(v, |k, v| {
                        let missing = match elem.is_float() {
                            true if replaced_float.is_nan() => Expr::un(UnOp::IsNan, v.clone()),
                            true => runtime::eq(v.clone(), Expr::num(from, f64::from(*replaced_float))),
                            false => runtime::eq(
                                Expr::cast(from, ElemType::I64, v.clone()),
                                runtime::int(*replaced_int),
                            ),
                        };
                        let new = k.load_broadcast(values, at);
                        Expr::select(missing, Expr::cast(stored, from, new), v)
                    })
                });
            }
            Features::Binarizer { threshold } => {
                // Exact for integers: x > t if and only if x > floor(t).
                let (wide, t): (_, Expr) = if elem.is_float() {
                    (from, Expr::num(from, f64::from(*threshold)))
                } else {
                    (ElemType::I64, runtime::int(threshold.floor() as i64))
                };
                let (all, none) = (!elem.is_float() && *threshold < i64::MIN as f32, threshold.is_nan());
                cx.map(y, |k, at| match (all, none) {
                    (true, _) => Expr::num(from, 1.0),
                    (_, true) => Expr::num(from, 0.0),
                    _ => {
                        let above = Expr::bin(BinOp::Gt, Expr::cast(from, wide, k.load(x, at)), t);
                        Expr::select(above, Expr::num(from, 1.0), Expr::num(from, 0.0))
                    }
                });
            }
            Features::Vectorizer { sizes } => {
                let inputs: Vec<_> = (0..cx.inputs.len()).map(|i| cx.input(i)).collect();
                let rows = cx.dims(y)[0];
                cx.kernel(|k| {
                    let mut start = Dim::constant(0);
                    for (i, x) in inputs.iter().enumerate() {
                        let (dims, from) = (k.m.bufs[*x].dims.clone(), k.m.bufs[*x].ty.compute());
                        let Some(have) = dims.last().copied() else { continue };
                        let size = sizes.as_ref().map_or(have, |s| Dim::constant(s[i]));
                        k.nest(LoopKind::Par, &[rows, size], |k, at| {
                            let src = if dims.len() == 1 { vec![at[1]] } else { at.to_vec() };
                            let v = Expr::cast(from, ElemType::F32, k.load(*x, &src));
                            let v = if k.m.syms.in_range(at[1], have) {
                                v
                            } else {
                                Expr::select(Expr::cmp_index(BinOp::Lt, at[1], have), v, Expr::f32(0.0))
                            };
                            k.store(y, &[at[0], start + at[1]], v);
                        });
                        start = start + size;
                    }
                });
            }
            Features::Extractor => {
                let i = cx.input(1);
                let count = Dim::product(cx.dims(i));
                let flat = cx.m.view(i, [count]);
                cx.map(y, |k, at| {
                    let Some((j, outer)) = at.split_last() else { return Expr::bool(false) };
                    let outer = if dims.len() == 1 { &[] } else { outer };
                    let pos = k.load(flat, &[*j]);
                    match dims.last() {
                        Some(n) => k.with_index(pos, *n, |k, p| k.load(x, &[outer, &[p]].concat())),
                        None => Expr::bool(false),
                    }
                });
            }
        }
        Ok(())
    }
}
