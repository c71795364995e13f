//! ZipMap, CastMap, DictVectorizer. A map is a list of keys and a list of values (`passes/graph/sequences`).
//! The maps that ZipMap creates share their keys, and their values are the unmodified scores.
//!
//! | operator | versions of ai.onnx.ml |
//! |---|---|
//! | ZipMap, CastMap, DictVectorizer | 1 |
//!
//! CastMap gives values in ascending order of the keys (`DENSE`), or at the positions given by the keys
//! (`SPARSE`): keys from `max_map` on are dropped, negative ones are an error, and positions without a key
//! are 0. The specification does not define the format of numbers. They are written as by ONNX Runtime, with
//! six fractional digits, and "0.f" for positions without a key. Strings that are not numbers are an error.

use super::support::runtime;
use super::support::text::{self, lt};
use super::{Attrs, Elements, InferCx, LowerCx, Operator};
use crate::diag::{Result, codes};
use crate::nest::{BinOp, Buf, Expr, KernelBuilder, LoopKind};
use crate::sym::Dim;
use crate::tensor::{ConstData, ElemType};
use runtime::{check, eq, int, le};
use std::sync::Arc;

/// The operators.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Maps {
    /// The keys.
    Zip(Keys),
    Cast {
        to: ElemType,
        /// SPARSE: number of positions.
        sparse: Option<i64>,
    },
    /// The vocabulary.
    Vectorize(Keys),
}

/// A list of keys.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Keys {
    Numbers(Vec<i64>),
    Strings(Vec<String>),
}

impl Keys {
    /// The keys as a constant.
    pub fn data(&self) -> Option<Arc<ConstData>> {
        match self {
            Keys::Numbers(v) => Some(ConstData::from_i64s(v)),
            Keys::Strings(v) => ConstData::strings(
                vec![v.len() as i64],
                v.iter().map(|s| s.clone().into_bytes().into()).collect(),
            ),
        }
        .map(Arc::new)
    }
}

fn keys(a: &mut Attrs, numbers: &str, strings: &str) -> Result<Keys> {
    match (a.ints_opt(numbers).filter(|v| !v.is_empty()), a.strings_opt(strings).filter(|v| !v.is_empty())) {
        (Some(v), None) => Ok(Keys::Numbers(v)),
        (None, Some(v)) => Ok(Keys::Strings(v)),
        _ => a.error(format!("{} needs either {numbers} or {strings}", a.op())).fail(),
    }
}

impl Operator for Maps {
    const OPS: &'static [&'static str] =
        &["ai.onnx.ml:ZipMap", "ai.onnx.ml:CastMap", "ai.onnx.ml:DictVectorizer"];
    fn elements(_op: &str) -> Elements {
        Elements::Any
    }
    fn parse(a: &mut Attrs) -> Result<Self> {
        Ok(match a.op() {
            "ZipMap" => Maps::Zip(keys(a, "classlabels_int64s", "classlabels_strings")?),
            "CastMap" => {
                let types =
                    [("TO_FLOAT", ElemType::F32), ("TO_INT64", ElemType::I64), ("TO_STRING", ElemType::Str)];
                let to = a.choice("cast_to", "TO_FLOAT", &types);
                let sparse = a.choice("map_form", "DENSE", &[("DENSE", false), ("SPARSE", true)]);
                let most = a.int("max_map", 1);
                a.require(!sparse || most >= 1, &format!("max_map is {most}, but must be positive"))?;
                Maps::Cast { to, sparse: sparse.then_some(most) }
            }
            _ => Maps::Vectorize(keys(a, "int64_vocabulary", "string_vocabulary")?),
        })
    }
    fn infer(&self, cx: &mut InferCx) -> Result<()> {
        let (keys, values) = (cx.tensor(0).clone(), cx.tensor(1).clone());
        match self {
            Maps::Cast { to, sparse } => {
                let n = sparse.map_or(keys.dims[0], Dim::constant);
                cx.set(0, *to, vec![Dim::constant(1), n]);
            }
            Maps::Vectorize(list) => {
                let (n, key) = match list {
                    Keys::Numbers(v) => (v.len(), ElemType::I64),
                    Keys::Strings(v) => (v.len(), ElemType::Str),
                };
                cx.require(
                    keys.elem == key,
                    codes::OP_TYPE,
                    "the keys of the map and the vocabulary have different types",
                )?;
                cx.set(0, values.elem, vec![Dim::constant(1), Dim::from(n)]);
            }
            Maps::Zip(_) => {
                return Err(crate::diag::Failure::bug("infer", "ZipMap is written as tensors before"));
            }
        }
        Ok(())
    }
    fn lower(&self, cx: &mut LowerCx) -> Result<()> {
        let (keys, values, y) = (cx.input(0), cx.input(1), cx.output(0));
        let n = cx.dims(keys)[0];
        match self {
            Maps::Cast { sparse, .. } => return cast(cx, *sparse),
            Maps::Vectorize(list) => {
                let Some(data) = list.data() else { return cx.bug("a vocabulary that is no constant") };
                let count = Dim::from(data.count() as usize);
                let words = cx.m.constant("vocabulary", data);
                cx.kernel(|k| {
                    k.nest(LoopKind::Par, &[Dim::constant(1), count], |k, at| {
                        let v = find(k, keys, values, n, words, at[1]);
                        k.store(y, at, v);
                    });
                })
            }
            _ => return cx.bug("refused by inference"),
        };
        Ok(())
    }
}

/// CastMap: computes the position of each value of the result in the map, and then the values.
fn cast(cx: &mut LowerCx, sparse: Option<i64>) -> Result<()> {
    let (keys, values, y) = (cx.input(0), cx.input(1), cx.output(0));
    let (n, count) = (cx.dims(keys)[0], cx.dims(y)[1]);
    let source = cx.temp("source", ElemType::I64, vec![count]);
    cx.kernel(|k| match sparse {
        None => k.range(LoopKind::Seq, "i", 0, n, |k, i| {
            // Its rank is the number of smaller keys.
            let before = k.acc(int(0));
            let own = k.load(keys, &[i]);
            let own = k.let_(own);
            k.range(LoopKind::Seq, "j", 0, n, |k, j| {
                let other = k.load(keys, &[j]);
                let smaller = lt(other.clone(), own.clone());
                let earlier = eq(other, own.clone()).and(Expr::cmp_index(BinOp::Lt, j, i));
                k.update(BinOp::Add, before, runtime::one_if(runtime::or(smaller, earlier)));
            });
            k.at_index(Expr::acc(before), count, |k, p| k.store(source, &[p], Expr::index(i)));
        }),
        Some(_) => {
            k.range(LoopKind::Seq, "p", 0, count, |k, p| k.store(source, &[p], int(-1)));
            k.range(LoopKind::Seq, "i", 0, n, |k, i| {
                let key = k.load(keys, &[i]);
                let key = k.let_(key);
                check(k, le(int(0), key.clone()));
                k.if_(lt(key.clone(), Expr::index(count)), |k| {
                    k.at_index(key, count, |k, p| k.store(source, &[p], Expr::index(i)))
                });
            });
        }
    });
    let (from, to) = (cx.elem(values), cx.elem(y));
    if to == ElemType::Str && from != ElemType::Str {
        text::produce(cx, y, |k, at, sink| {
            let place = k.load(source, &at[1..]);
            let place = k.let_(place);
            let none = k.let_(lt(place.clone(), int(0)));
            k.if_(none.clone(), |k| text::numbers::put(k, sink, NONE));
            k.if_(text::not(none), |k| {
                k.at_index(place, n, |k, i| text::fixed::write_fixed(k, k.load(values, &[i]), sink))
            });
        });
        return Ok(());
    }
    let reading = (from == ElemType::Str && to == ElemType::F32)
        .then(|| (text::numbers::Powers::new(cx.m), text::halfway::Scratch::new(cx)));
    let kind = if reading.is_some() { LoopKind::Seq } else { LoopKind::Par };
    let none = if to == ElemType::Str { text::constant(cx.m, "none", NONE) } else { Expr::num(to, 0.0) };
    cx.kernel(|k| {
        k.range(kind, "p", 0, count, |k, p| {
            let at = [Dim::constant(0), p];
            let place = k.load(source, &[p]);
            let place = k.let_(place);
            let given = k.let_(le(int(0), place.clone()));
            k.if_(text::not(given.clone()), |k| k.store(y, &at, none));
            k.if_(given, |k| {
                k.at_index(place, n, |k, i| {
                    let v = k.load(values, &[i]);
                    let v = match (&reading, from) {
                        (_, t) if t == to => v,
                        (Some((powers, scratch)), _) => {
                            let s = k.let_(v);
                            let (v, _) = text::parse::read_float(k, powers, &s, Some(*scratch));
                            Expr::cast(ElemType::F64, to, v)
                        }
                        (None, ElemType::Str) => {
                            let s = k.let_(v);
                            text::parse::read_int(k, &s, to)
                        }
                        (None, t) => Expr::cast(t, to, v),
                    };
                    k.store(y, &at, v);
                });
            });
        });
    });
    Ok(())
}

/// The value of a sparse result of strings where there is no key, as in ONNX Runtime.
const NONE: &str = "0.f";

/// The value of the key at position `p` of `words`, or 0, or an empty string.
fn find(k: &mut KernelBuilder, keys: Buf, values: Buf, n: Dim, words: Buf, p: Dim) -> Expr {
    let none = k.zero(k.m.bufs[values].ty.compute());
    let found = k.acc(none);
    let want = k.load(words, &[p]);
    let want = k.let_(want);
    k.range(LoopKind::Seq, "i", 0, n, |k, i| {
        let here = eq(k.load(keys, &[i]), want.clone());
        let v = Expr::select(here, k.load(values, &[i]), Expr::acc(found));
        k.set(found, v);
    });
    Expr::acc(found)
}
