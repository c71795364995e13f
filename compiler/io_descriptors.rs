//! Sequences, optionals and maps for `run` and `verify`: as named arrays on our side, as descriptors
//! (`onnxc_value`) on that of the model.
//!
//! The items of a sequence `x` are the arrays `x.0`, `x.1`, ...; an optional without an element is no array;
//! a map is the arrays `x.keys` and `x.values`, a sequence of maps has them for each item.

use crate::arrays::Array;
use crate::codegen::interface::{Kind, Tensor};
use crate::diag::{Error, Failure, Result, codes};
use crate::tensor::ElemType;
use onnxc_runtime::abi::onnxc_value;
use onnxc_runtime::value::{self, Descriptor, Map, Value};

/// An input.
#[derive(Clone, Debug)]
pub enum Input {
    /// A tensor.
    Array(Array),
    /// The members of a sequence, the element of an optional, keys and values of a map; `None` for an absent
    /// optional.
    Members(Option<Vec<Array>>),
}

impl Input {
    /// Bytes of its elements.
    pub fn byte_len(&self) -> u64 {
        match self {
            Input::Array(a) => a.data.len() as u64,
            Input::Members(m) => m.iter().flatten().map(|a| a.data.len() as u64).sum(),
        }
    }
}

/// Bytes of a descriptor.
pub const SIZE: usize = size_of::<onnxc_value>();

/// A descriptor of an input, which borrows the arrays.
pub fn descriptor<'a>(t: &Tensor, members: Option<&'a [Array]>) -> Result<Descriptor<'a>> {
    let unfit = |_| Failure::bug("described", format!("arrays of \"{}\" that do not fit", t.name));
    let tensor =
        |a: &'a Array| value::Tensor::from_bytes(i32::from(a.ty as u8), &a.dims, &a.data).map_err(unfit);
    let kind = t.described.as_ref().map_or(Kind::Sequence, |d| d.kind);
    let v = match (kind, members) {
        (_, None) => Value::None,
        (Kind::Tensor, Some([a, ..])) => tensor(a)?.into(),
        (Kind::Map, Some([keys, values])) => Map::new(tensor(keys)?, tensor(values)?).map_err(unfit)?.into(),
        (_, Some(list)) => list.iter().map(tensor).collect::<Result<Vec<_>>>()?.into(),
    };
    Descriptor::new(v).map_err(unfit)
}

/// The arrays of a value with these names: `name.0`, ... of a sequence, `name.keys` and `name.values` of a
/// map.
pub fn arrays(name: &str, v: &Value) -> Vec<Array> {
    let array = |name: String, t: &value::Tensor| Array {
        name,
        ty: ElemType::from_onnx(t.dtype()).unwrap_or(ElemType::U8),
        dims: t.dims().to_vec(),
        data: t.bytes().to_vec(),
    };
    match v {
        Value::Tensor(t) => vec![array(name.to_owned(), t)],
        Value::Map(m) => {
            vec![array(format!("{name}.keys"), m.keys()), array(format!("{name}.values"), m.values())]
        }
        Value::Sequence(list) => {
            list.iter().enumerate().flat_map(|(k, v)| arrays(&format!("{name}.{k}"), v)).collect()
        }
        _ => vec![],
    }
}

/// Number `k` in `name.k`.
fn position(name: &str, of: &str) -> Option<usize> {
    name.strip_prefix(of)?.strip_prefix('.')?.parse().ok()
}

/// True if an array is (a part of) this input.
pub fn belongs(t: &Tensor, name: &str) -> bool {
    let part = |n: &str| {
        position(name, n).is_some() || [".keys", ".values"].iter().any(|s| name.strip_suffix(s) == Some(n))
    };
    name == t.name || name == t.ident || t.described.is_some() && (part(&t.name) || part(&t.ident))
}

/// What is given for an input that is no tensor.
pub fn gather(t: &Tensor, given: &[Array]) -> Result<Input> {
    let fail = |found: String, expected: &str| {
        Error::new(codes::RUN_INPUT, format!("input \"{}\" does not fit", t.name))
            .found_expected(found, expected)
            .fail()
    };
    let Some(d) = &t.described else { return fail("a tensor".into(), "a sequence, an optional or a map") };
    let mine: Vec<&Array> = given.iter().filter(|a| belongs(t, &a.name)).collect();
    if let Some(a) = mine.iter().find(|a| a.ty != t.ty && !(d.key == Some(a.ty) && a.name.ends_with(".keys")))
    {
        return fail(format!("\"{}\" of type {}", a.name, a.ty), &format!("elements of type {}", t.ty));
    }
    let named = |suffix: &str| mine.iter().find(|a| a.name.ends_with(suffix)).map(|a| (*a).clone());
    if d.kind == Kind::Map {
        return match (named(".keys"), named(".values")) {
            (Some(k), Some(v)) if k.dims.len() == 1 && k.dims == v.dims => {
                Ok(Input::Members(Some(vec![k, v])))
            }
            _ => fail(
                format!("{} arrays", mine.len()),
                &format!("{0}.keys and {0}.values, lists of one length", t.name),
            ),
        };
    }
    let mut items: Vec<(usize, Array)> = vec![];
    for a in mine {
        items.push((
            position(&a.name, &t.name).or_else(|| position(&a.name, &t.ident)).unwrap_or(0),
            a.clone(),
        ));
    }
    items.sort_by_key(|i| i.0);
    if items.iter().enumerate().any(|(k, i)| k != i.0) || d.kind == Kind::Tensor && items.len() > 1 {
        let names: Vec<&str> = items.iter().map(|i| i.1.name.as_str()).collect();
        return fail(names.join(", "), &format!("{0}.0, {0}.1, ... without a gap", t.name));
    }
    let absent = d.optional && items.is_empty();
    Ok(Input::Members((!absent).then(|| items.into_iter().map(|i| i.1).collect())))
}
