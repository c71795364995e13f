//! LabelEncoder, OneHotEncoder of ai.onnx.ml: values looked up in a table that the model holds.
//!
//! Spec: <https://onnx.ai/onnx/operators/#ai-onnx-ml>.
//!
//! | LabelEncoder | keys and values |
//! |---|---|
//! | 1 | `classes_strings`: positions to strings or back |
//! | 2 | lists of floats, integers, strings |
//! | 4 | tensors as well, of more types |
//!
//! Keys are sorted at compile time and searched by halving. From version 4 on a NaN key is
//! found by NaN, before by nothing. OneHotEncoder casts numbers to
//! integers; a value that is no category gives zeros, or `ONNXC_E_VALUE` if `zeros` is 0. Strings are refused for now.

use super::{Attrs, InferCx, LowerCx, Operator, runtime};
use crate::diag::{Result, codes};
use crate::nest::{BinOp, Buf, Expr, KernelBuilder, LoopKind, Stmt, UnOp};
use crate::sym::Dim;
use crate::tensor::{ConstData, ElemType};
use std::sync::Arc;

/// The operators.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Encode {
    Label { keys: Arc<ConstData>, values: Arc<ConstData>, default: Arc<ConstData> },
    OneHot { categories: Vec<i64>, zeros: bool },
    Strings,
}

impl Operator for Encode {
    const OPS: &'static [&'static str] = &["ai.onnx.ml:LabelEncoder", "ai.onnx.ml:OneHotEncoder"];
    fn parse(a: &mut Attrs) -> Result<Self> {
        if a.op() == "OneHotEncoder" {
            let zeros = a.flag("zeros", true)?;
            let strings = a.strings_opt("cats_strings")?.unwrap_or_default();
            let categories = a.ints_opt("cats_int64s")?.unwrap_or_default();
            return match (categories.is_empty(), strings.is_empty()) {
                (false, true) => Ok(Encode::OneHot { categories, zeros }),
                (true, false) => Ok(Encode::Strings),
                _ => a.error("OneHotEncoder needs either cats_int64s or cats_strings").fail(),
            };
        }
        if a.since() == 1 {
            for name in ["classes_strings", "default_int64", "default_string"] {
                a.ignore(name);
            }
            return Ok(Encode::Strings);
        }
        let keys = list(a, "keys")?;
        let values = list(a, "values")?;
        a.ignore("default_string");
        let (int, float) = (a.int("default_int64", -1)?, a.float("default_float", -0.0)?);
        let given = a.tensor_opt("default_tensor")?;
        let (Some(keys), Some(values)) = (keys, values) else { return Ok(Encode::Strings) };
        if keys.count() != values.count() {
            return a.error(format!("LabelEncoder has {} keys but {} values", keys.count(), values.count())).fail();
        }
        let default = match (given, values.elem()) {
            (Some(d), t) if d.elem() == t && d.count() == 1 => d,
            (Some(d), t) => return a.error("default_tensor must be one element of the values' type").found_expected(d.elem().to_string(), t.to_string()).fail(),
            (None, ElemType::F32) => Arc::new(ConstData::f32s(vec![1], &[float])),
            (None, t) if t.is_float() => number(t, 0.0, -0.0),
            (None, t) => number(t, int as f64, int as f64),
        };
        Ok(Encode::Label { keys, values, default })
    }
    fn infer(&self, cx: &mut InferCx) -> Result<()> {
        let t = cx.tensor(0)?.clone();
        match self {
            Encode::Strings => return strings(cx),
            _ if t.elem == ElemType::Str => return strings(cx),
            Encode::OneHot { categories, .. } => {
                if (1..categories.len()).any(|i| categories[..i].contains(&categories[i])) {
                    return cx.error(codes::OP_FEATURE, "OneHotEncoder has the same category twice").fail();
                }
                let n = Dim::from(categories.len());
                cx.set(0, ElemType::F32, [t.dims.as_slice(), &[n]].concat());
            }
            Encode::Label { keys, values, .. } => {
                if keys.elem() != t.elem {
                    return cx.error(codes::OP_TYPE, "the keys have another type than the input").found_expected(keys.elem().to_string(), t.elem.to_string()).fail();
                }
                if sorted(keys, values).is_none() {
                    return cx.error(codes::OP_FEATURE, "LabelEncoder has the same key twice, with different values").fail();
                }
                cx.set(0, values.elem(), t.dims);
            }
        }
        Ok(())
    }
    fn lower(&self, cx: &mut LowerCx) -> Result<()> {
        let (x, y) = (cx.input(0), cx.output(0));
        let ty = cx.elem(x).compute();
        match self {
            Encode::Strings => return cx.bug("strings"),
            Encode::OneHot { categories, zeros } => {
                let table = cx.m.constant("categories", Arc::new(ConstData::from_i64s(categories)));
                let (dims, n) = (cx.dims(x), Dim::from(categories.len()));
                cx.kernel(|k| {
                    if !*zeros {
                        k.nest(LoopKind::Seq, &dims, |k, at| {
                            let v = Expr::cast(ty, ElemType::I64, k.load(x, at));
                            let v = k.let_(v);
                            let known = k.acc(Expr::bool(false));
                            k.range(LoopKind::Seq, "c", 0, n, |k, c| {
                                let hit = runtime::eq(v.clone(), k.load(table, &[c]));
                                k.update(BinOp::Or, known, hit);
                            });
                            runtime::check(k, Expr::acc(known));
                        });
                    }
                    let out = [dims.as_slice(), &[n]].concat();
                    k.nest(LoopKind::Par, &out, |k, at| {
                        let (c, from) = (at[at.len() - 1], &at[..at.len() - 1]);
                        let v = Expr::cast(ty, ElemType::I64, k.load(x, from));
                        let hit = runtime::eq(v, k.load(table, &[c]));
                        k.store(y, at, Expr::select(hit, Expr::f32(1.0), Expr::f32(0.0)));
                    });
                });
            }
            Encode::Label { keys, values, default } => {
                let Some((keys, values, nan)) = sorted(keys, values) else { return cx.bug("a key stands twice") };
                let n = keys.count();
                let (keys, values) = (cx.m.constant("keys", keys), cx.m.constant("values", values));
                let default = cx.m.constant("default", default.clone());
                let (dims, since) = (cx.dims(y), cx.since);
                cx.kernel(|k| {
                    k.nest(LoopKind::Par, &dims, |k, at| {
                        let v = k.load(x, at);
                        let v = k.let_(v);
                        let mut found = search(k, keys, n, &v);
                        if let Some(p) = nan.filter(|_| since >= 4) {
                            found = Expr::select(Expr::un(UnOp::IsNan, v), runtime::int(p), found);
                        }
                        let found = k.let_(found);
                        let none = Expr::bin(BinOp::Lt, found.clone(), runtime::int(0));
                        let other = k.load(default, &vec![Dim::constant(0); k.m.bufs[default].dims.len()]);
                        let value = k.with_index(found, Dim::constant(n as i64).max(1), |k, p| k.load(values, &[p]));
                        k.store(y, at, Expr::select(none, other, value));
                    });
                });
            }
        }
        Ok(())
    }
}

fn strings(cx: &InferCx) -> Result<()> {
    cx.error(codes::OP_FEATURE, format!("{} of strings is not supported yet", cx.origin.op)).fail()
}

/// Keys or values in one of their forms; `None` if they are strings.
fn list(a: &mut Attrs, what: &str) -> Result<Option<Arc<ConstData>>> {
    let floats = a.floats_opt(&format!("{what}_floats"))?.filter(|v| !v.is_empty());
    let ints = a.ints_opt(&format!("{what}_int64s"))?.filter(|v| !v.is_empty());
    let strings = a.strings_opt(&format!("{what}_strings"))?.filter(|v| !v.is_empty());
    let tensor = a.tensor_opt(&format!("{what}_tensor"))?;
    match (floats, ints, tensor, strings) {
        (Some(v), None, None, None) => Ok(Some(Arc::new(ConstData::f32s(vec![v.len() as i64], &v)))),
        (None, Some(v), None, None) => Ok(Some(Arc::new(ConstData::from_i64s(&v)))),
        (None, None, Some(t), None) if t.elem() == ElemType::Str => Ok(None),
        (None, None, Some(t), None) => Ok(Some(t)),
        (None, None, None, Some(_)) => Ok(None),
        _ => a.error(format!("LabelEncoder needs its {what} in exactly one attribute")).fail(),
    }
}

/// One number of a type.
fn number(t: ElemType, int: f64, float: f64) -> Arc<ConstData> {
    let bytes: Vec<u8> = match t {
        ElemType::F64 => float.to_le_bytes().to_vec(),
        ElemType::I16 => (int as i16).to_le_bytes().to_vec(),
        ElemType::I32 => (int as i32).to_le_bytes().to_vec(),
        _ => (int as i64).to_le_bytes().to_vec(),
    };
    Arc::new(ConstData::new(t, vec![1], bytes).unwrap_or_else(|| ConstData::from_i64s(&[int as i64])))
}

/// Keys in ascending order with their values, and where NaN's value stands; `None` if a key has two values.
fn sorted(keys: &ConstData, values: &ConstData) -> Option<(Arc<ConstData>, Arc<ConstData>, Option<i64>)> {
    let order: Vec<usize> = match (keys.to_i64s(), keys.to_f64s()) {
        (Some(v), _) => order(&v, |a, b| a.cmp(b)),
        (None, Some(v)) => order(&v, |a, b| a.is_nan().cmp(&b.is_nan()).then(a.partial_cmp(b).unwrap_or(std::cmp::Ordering::Equal))),
        _ => return None,
    };
    let piece = |c: &ConstData, i: usize| -> Option<Vec<u8>> {
        let n = c.elem().bytes()? as usize;
        Some(c.bytes().get(i * n..(i + 1) * n)?.to_vec())
    };
    let floats = keys.to_f64s();
    let same = |i: usize, j: usize| match &floats {
        Some(v) => v[i] == v[j] || v[i].is_nan() && v[j].is_nan(),
        None => piece(keys, i) == piece(keys, j),
    };
    let (mut k, mut v, mut nan) = (vec![], vec![], None);
    let mut count = 0i64;
    for (n, &i) in order.iter().enumerate() {
        if n > 0 && same(order[n - 1], i) {
            if piece(values, order[n - 1])? != piece(values, i)? {
                return None;
            }
            continue;
        }
        if floats.as_ref().is_some_and(|f| f[i].is_nan()) {
            nan = Some(count);
        }
        k.extend(piece(keys, i)?);
        v.extend(piece(values, i)?);
        count += 1;
    }
    Some((Arc::new(ConstData::new(keys.elem(), vec![count], k)?), Arc::new(ConstData::new(values.elem(), vec![count], v)?), nan))
}

fn order<T>(v: &[T], by: impl Fn(&T, &T) -> std::cmp::Ordering) -> Vec<usize> {
    let mut o: Vec<usize> = (0..v.len()).collect();
    o.sort_by(|i, j| by(&v[*i], &v[*j]));
    o
}

/// Position of `v` among `n` ascending keys (NaN last), -1 if it is not there.
fn search(k: &mut KernelBuilder, keys: Buf, n: u64, v: &Expr) -> Expr {
    if n == 0 {
        return runtime::int(-1);
    }
    let extent = Dim::constant(n as i64);
    let (lo, hi) = (k.acc(runtime::int(0)), k.acc(runtime::int(n as i64)));
    let body = k.block(|k| {
        let mid = k.let_((Expr::acc(lo) + Expr::acc(hi)) / runtime::int(2));
        let less = k.with_index(mid.clone(), extent, |k, i| Expr::bin(BinOp::Lt, k.load(keys, &[i]), v.clone()));
        let less = k.let_(less);
        k.set(lo, Expr::select(less.clone(), mid.clone() + runtime::int(1), Expr::acc(lo)));
        k.set(hi, Expr::select(less, Expr::acc(hi), mid));
    });
    k.push(Stmt::While { cond: Expr::bin(BinOp::Lt, Expr::acc(lo), Expr::acc(hi)), body });
    let inside = Expr::bin(BinOp::Lt, Expr::acc(lo), Expr::index(extent));
    let here = k.with_index(Expr::acc(lo), extent, |k, i| runtime::eq(k.load(keys, &[i]), v.clone()));
    let hit = Expr::select(inside, here, Expr::bool(false));
    Expr::select(hit, Expr::acc(lo), runtime::int(-1))
}
