//! LabelEncoder, CategoryMapper, OneHotEncoder of ai.onnx.ml: values looked up in a table of the model.
//!
//! Spec: <https://onnx.ai/onnx/operators/#ai-onnx-ml>.
//!
//! | LabelEncoder | keys and values |
//! |---|---|
//! | 1 | `classes_strings`: strings to their positions or back |
//! | 2 | lists of floats, integers, strings |
//! | 4 | tensors as well, of more types |
//!
//! CategoryMapper maps strings to integers or back. Numbers are sorted at compile time and found by binary
//! search; strings are hashed. From version 4 on NaN matches a NaN key, before it matches nothing.
//! OneHotEncoder casts numbers to integers; a value outside the categories gives zeros, or `ONNXC_E_VALUE` if
//! `zeros` is 0.

use super::support::runtime;
use super::support::text::Dictionary;
use super::{Attrs, Elements, InferCx, LowerCx, Operator};
use crate::diag::{Result, codes};
use crate::nest::{BinOp, Buf, Expr, KernelBuilder, LoopKind, Stmt, UnOp};
use crate::sym::Dim;
use crate::tensor::{ConstData, ElemType};
use std::sync::Arc;

/// The operators.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Encode {
    Label(Table),
    /// Strings and their counterparts; the direction depends on the input's type.
    TwoWay {
        names: Vec<String>,
        numbers: Vec<i64>,
        default_int: i64,
        default_string: String,
    },
    OneHot {
        categories: Categories,
        zeros: bool,
    },
}

/// Keys, their values, and the default value.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub struct Table {
    keys: Arc<ConstData>,
    values: Arc<ConstData>,
    default: Arc<ConstData>,
}

/// The categories of OneHotEncoder.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Categories {
    Ints(Vec<i64>),
    Strings(Vec<String>),
}

impl Operator for Encode {
    const OPS: &'static [&'static str] =
        &["ai.onnx.ml:LabelEncoder", "ai.onnx.ml:CategoryMapper", "ai.onnx.ml:OneHotEncoder"];
    fn elements(_op: &str) -> Elements {
        Elements::Strings
    }
    fn parse(a: &mut Attrs) -> Result<Self> {
        if a.op() == "OneHotEncoder" {
            let zeros = a.flag("zeros", true);
            let strings = a.strings("cats_strings");
            let ints = a.ints("cats_int64s");
            return match (ints.is_empty(), strings.is_empty()) {
                (false, true) => Ok(Encode::OneHot { categories: Categories::Ints(ints), zeros }),
                (true, false) => Ok(Encode::OneHot { categories: Categories::Strings(strings), zeros }),
                _ => a.error("OneHotEncoder needs either cats_int64s or cats_strings").fail(),
            };
        }
        let (default_int, default_string) =
            (a.int("default_int64", -1), a.string_opt("default_string").unwrap_or_else(|| "_Unused".into()));
        if a.op() == "CategoryMapper" || a.since() == 1 {
            let of = if a.op() == "CategoryMapper" { "cats_strings" } else { "classes_strings" };
            let names = a.strings(of);
            let numbers = if a.op() == "CategoryMapper" {
                a.ints("cats_int64s")
            } else {
                (0..names.len() as i64).collect()
            };
            if names.len() != numbers.len() {
                return a
                    .error(format!("{} has {} strings but {} integers", a.op(), names.len(), numbers.len()))
                    .fail();
            }
            return Ok(Encode::TwoWay { names, numbers, default_int, default_string });
        }
        let keys = list(a, "keys")?;
        let values = list(a, "values")?;
        let float = a.float("default_float", -0.0);
        let given = a.tensor_opt("default_tensor");
        if keys.count() != values.count() {
            return a
                .error(format!("LabelEncoder has {} keys but {} values", keys.count(), values.count()))
                .fail();
        }
        let default = match (given, values.elem()) {
            (Some(d), t) if d.elem() == t && d.count() == 1 => d,
            (Some(d), t) => {
                return a
                    .error("default_tensor must be one element of the values' type")
                    .found_expected(d.elem().to_string(), t.to_string())
                    .fail();
            }
            (None, ElemType::Str) => strings(&[default_string]),
            (None, ElemType::F32) => Arc::new(ConstData::f32s(vec![1], &[float])),
            (None, t) if t.is_float() => number(t, 0.0, -0.0),
            (None, t) => number(t, default_int as f64, default_int as f64),
        };
        Ok(Encode::Label(Table { keys, values, default }))
    }
    fn infer(&self, cx: &mut InferCx) -> Result<()> {
        let t = cx.tensor(0).clone();
        if let Encode::OneHot { categories, .. } = self {
            let (n, twice) = match categories {
                Categories::Ints(v) => (v.len(), twice(v)),
                Categories::Strings(v) => (v.len(), twice(v)),
            };
            cx.require(!twice, codes::OP_FEATURE, "OneHotEncoder has the same category twice")?;
            cx.require(
                (t.elem == ElemType::Str) == matches!(categories, Categories::Strings(_)),
                codes::OP_TYPE,
                "the categories have another type than the input",
            )?;
            cx.set(0, ElemType::F32, [t.dims.as_slice(), &[Dim::from(n)]].concat());
            return Ok(());
        }
        let Some(table) = self.table(t.elem) else {
            return cx
                .error(codes::OP_TYPE, "the input has neither the type of strings nor that of integers")
                .fail();
        };
        if table.keys.elem() != t.elem {
            return cx
                .error(codes::OP_TYPE, "the keys have another type than the input")
                .found_expected(table.keys.elem().to_string(), t.elem.to_string())
                .fail();
        }
        if sorted(&table).is_none() {
            return cx
                .error(
                    codes::OP_FEATURE,
                    format!("{} has the same key twice, with different values", cx.origin.op),
                )
                .fail();
        }
        cx.set(0, table.values.elem(), t.dims);
        Ok(())
    }
    fn lower(&self, cx: &mut LowerCx) -> Result<()> {
        let (x, y) = (cx.input(0), cx.output(0));
        let ty = cx.elem(x).compute();
        if let Encode::OneHot { categories, zeros } = self {
            one_hot(cx, categories, *zeros);
            return Ok(());
        }
        let Some((order, nan, table)) = self.table(ty).and_then(|t| sorted(&t).map(|(o, nan)| (o, nan, t)))
        else {
            return cx.bug("a key is given twice");
        };
        let n = order.len() as u64;
        let keys = take(&table.keys, &order);
        let lookup = match keys.as_strings() {
            Some(list) => Lookup::Hashed(Dictionary::of_strings(cx.m, list)),
            None => Lookup::Sorted(cx.m.constant("keys", Arc::new(keys))),
        };
        let values = cx.m.constant("values", Arc::new(take(&table.values, &order)));
        let default = cx.m.constant("default", table.default.clone());
        let (dims, since) = (cx.dims(y), cx.since);
        cx.kernel(|k| {
            k.nest(LoopKind::Par, &dims, |k, at| {
                let v = k.load(x, at);
                let v = k.let_(v);
                let mut found = match &lookup {
                    Lookup::Hashed(d) => d.find(k, v.clone()),
                    Lookup::Sorted(keys) => search(k, *keys, n, &v),
                };
                if let Some(p) = nan.filter(|_| since >= 4) {
                    found = Expr::select(Expr::un(UnOp::IsNan, v), runtime::int(p), found);
                }
                let found = k.let_(found);
                let none = Expr::bin(BinOp::Lt, found.clone(), runtime::int(0));
                let other = k.load(default, &vec![Dim::constant(0); k.m.bufs[default].dims.len()]);
                if n == 0 {
                    k.store(y, at, other);
                    return;
                }
                let value = k.with_index(found, Dim::constant(n as i64), |k, p| k.load(values, &[p]));
                k.store(y, at, Expr::select(none, other, value));
            });
        });
        Ok(())
    }
}

enum Lookup {
    Hashed(Dictionary),
    Sorted(Buf),
}

impl Encode {
    /// Keys and values for an input type.
    fn table(&self, x: ElemType) -> Option<Table> {
        match self {
            Encode::Label(t) => Some(t.clone()),
            Encode::TwoWay { names, numbers, default_int, .. } if x == ElemType::Str => Some(Table {
                keys: strings(names),
                values: Arc::new(ConstData::from_i64s(numbers)),
                default: Arc::new(ConstData::from_i64s(&[*default_int])),
            }),
            Encode::TwoWay { names, numbers, default_string, .. } if x == ElemType::I64 => Some(Table {
                keys: Arc::new(ConstData::from_i64s(numbers)),
                values: strings(names),
                default: strings(std::slice::from_ref(default_string)),
            }),
            _ => None,
        }
    }
}

fn one_hot(cx: &mut LowerCx, categories: &Categories, zeros: bool) {
    let (x, y) = (cx.input(0), cx.output(0));
    let (dims, all) = (cx.dims(x), cx.dims(y));
    // Strings are first mapped to their numbers.
    let (x, list) = match categories {
        Categories::Ints(v) => (x, v.clone()),
        Categories::Strings(v) => {
            let (numbers, known) =
                (cx.temp("numbers", ElemType::I64, dims.clone()), Dictionary::of_strings(cx.m, v));
            cx.kernel(|k| {
                k.nest(LoopKind::Par, &dims, |k, at| {
                    let s = k.load(x, at);
                    let n = known.find(k, s);
                    k.store(numbers, at, n);
                });
            });
            (numbers, (0..v.len() as i64).collect())
        }
    };
    let ty = cx.elem(x).compute();
    let table = cx.m.constant("categories", Arc::new(ConstData::from_i64s(&list)));
    let n = Dim::from(list.len());
    cx.kernel(|k| {
        if !zeros {
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
        k.nest(LoopKind::Par, &all, |k, at| {
            let (c, from) = (at[at.len() - 1], &at[..at.len() - 1]);
            let v = Expr::cast(ty, ElemType::I64, k.load(x, from));
            let hit = runtime::eq(v, k.load(table, &[c]));
            k.store(y, at, Expr::select(hit, Expr::f32(1.0), Expr::f32(0.0)));
        });
    });
}

fn twice<T: PartialEq>(v: &[T]) -> bool {
    (1..v.len()).any(|i| v[..i].contains(&v[i]))
}

fn strings(v: &[String]) -> Arc<ConstData> {
    let data = ConstData::strings(vec![v.len() as i64], v.iter().map(|s| s.clone().into()).collect());
    Arc::new(data.unwrap_or_else(|| ConstData::from_i64s(&[])))
}

/// Keys or values in one of their attribute forms.
fn list(a: &mut Attrs, what: &str) -> Result<Arc<ConstData>> {
    let floats = a.floats_opt(&format!("{what}_floats")).filter(|v| !v.is_empty());
    let ints = a.ints_opt(&format!("{what}_int64s")).filter(|v| !v.is_empty());
    let names = a.strings_opt(&format!("{what}_strings")).filter(|v| !v.is_empty());
    let tensor = a.tensor_opt(&format!("{what}_tensor"));
    match (floats, ints, tensor, names) {
        (Some(v), None, None, None) => Ok(Arc::new(ConstData::f32s(vec![v.len() as i64], &v))),
        (None, Some(v), None, None) => Ok(Arc::new(ConstData::from_i64s(&v))),
        (None, None, Some(t), None) => Ok(t),
        (None, None, None, Some(v)) => Ok(strings(&v)),
        _ => a.error(format!("LabelEncoder needs its {what} in exactly one attribute")).fail(),
    }
}

/// A number as a constant of a type.
fn number(t: ElemType, int: f64, float: f64) -> Arc<ConstData> {
    let bytes: Vec<u8> = match t {
        ElemType::F64 => float.to_le_bytes().to_vec(),
        ElemType::I16 => (int as i16).to_le_bytes().to_vec(),
        ElemType::I32 => (int as i32).to_le_bytes().to_vec(),
        _ => (int as i64).to_le_bytes().to_vec(),
    };
    Arc::new(ConstData::new(t, vec![1], bytes).unwrap_or_else(|| ConstData::from_i64s(&[int as i64])))
}

/// The bytes of an element.
fn piece(c: &ConstData, i: usize) -> Option<bytes::Bytes> {
    match c.as_strings() {
        Some(s) => s.get(i).cloned(),
        None => {
            let n = c.elem().bytes()? as usize;
            let all = c.bytes();
            ((i + 1) * n <= all.len()).then(|| all.slice(i * n..(i + 1) * n))
        }
    }
}

/// A vector of selected elements.
fn take(c: &ConstData, which: &[usize]) -> ConstData {
    let dims = vec![which.len() as i64];
    let parts: Vec<bytes::Bytes> = which.iter().filter_map(|i| piece(c, *i)).collect();
    let made = if c.elem() == ElemType::Str {
        ConstData::strings(dims, parts)
    } else {
        ConstData::new(c.elem(), dims, parts.concat())
    };
    made.unwrap_or_else(|| ConstData::from_i64s(&[]))
}

/// Positions of the distinct keys in ascending order, and the index of NaN in it; `None` if a key has two
/// values.
fn sorted(t: &Table) -> Option<(Vec<usize>, Option<i64>)> {
    let (keys, values) = (&t.keys, &t.values);
    let order: Vec<usize> = match (keys.to_i64s(), keys.to_f64s(), keys.as_strings()) {
        (.., Some(v)) => order(v, |a, b| a.cmp(b)),
        (Some(v), ..) => order(&v, |a, b| a.cmp(b)),
        (None, Some(v), _) => order(&v, |a, b| {
            a.is_nan().cmp(&b.is_nan()).then(a.partial_cmp(b).unwrap_or(std::cmp::Ordering::Equal))
        }),
        _ => return None,
    };
    let floats = if keys.elem() == ElemType::Str { None } else { keys.to_f64s() };
    let same = |i: usize, j: usize| match &floats {
        Some(v) => v[i] == v[j] || v[i].is_nan() && v[j].is_nan(),
        None => piece(keys, i) == piece(keys, j),
    };
    let (mut out, mut nan) = (vec![], None);
    for (n, &i) in order.iter().enumerate() {
        if n > 0 && same(order[n - 1], i) {
            if piece(values, order[n - 1])? != piece(values, i)? {
                return None;
            }
            continue;
        }
        if floats.as_ref().is_some_and(|f| f[i].is_nan()) {
            nan = Some(out.len() as i64);
        }
        out.push(i);
    }
    Some((out, nan))
}

fn order<T>(v: &[T], by: impl Fn(&T, &T) -> std::cmp::Ordering) -> Vec<usize> {
    let mut o: Vec<usize> = (0..v.len()).collect();
    o.sort_by(|i, j| by(&v[*i], &v[*j]));
    o
}

/// The position of `v` among `n` ascending keys (NaN last), or -1.
fn search(k: &mut KernelBuilder, keys: Buf, n: u64, v: &Expr) -> Expr {
    if n == 0 {
        return runtime::int(-1);
    }
    let extent = Dim::constant(n as i64);
    let (lo, hi) = (k.acc(runtime::int(0)), k.acc(runtime::int(n as i64)));
    let body = k.block(|k| {
        let mid = k.let_((Expr::acc(lo) + Expr::acc(hi)) / runtime::int(2));
        let less =
            k.with_index(mid.clone(), extent, |k, i| Expr::bin(BinOp::Lt, k.load(keys, &[i]), v.clone()));
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
