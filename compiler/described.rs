//! Sequences, optionals and maps for `run` and `verify`: as named arrays on our side, as descriptors (`onnxc_value`) on
//! that of the model.
//!
//! The items of a sequence `x` are the arrays `x.0`, `x.1`, ...; an optional without an element is no array; a map is the
//! arrays `x.keys` and `x.values`, a sequence of maps has them for each item.

use crate::arrays::Array;
use crate::codegen::interface::{Kind, Tensor};
use crate::diag::{Error, Result, codes};
use crate::tensor::{ElemType, count};
use onnxc_runtime::abi;

/// An input.
#[derive(Clone, Debug)]
pub enum Input {
    /// A tensor.
    Array(Array),
    /// The members of a sequence, the element of an optional, keys and values of a map; `None` for an absent optional.
    Members(Option<Vec<Array>>),
}

/// Bytes of a descriptor.
pub const SIZE: usize = 56;

/// A descriptor and what it points to.
pub struct Descriptor {
    bytes: Vec<u8>,
    _dims: Vec<Vec<i64>>,
    _texts: Vec<Option<Vec<u8>>>,
    _items: Vec<u8>,
}

struct Fields<'a> {
    kind: i32,
    ty: ElemType,
    key: i32,
    len: i64,
    dims: &'a [i64],
    /// Where the bytes are, and how many.
    data: (*const u8, usize),
    keys: (*const u8, usize),
    items: &'a [u8],
}

impl Fields<'_> {
    fn bytes(&self) -> Vec<u8> {
        let mut out = vec![];
        for v in [self.kind, i32::from(self.ty as u8), self.key, self.dims.len() as i32] {
            out.extend(v.to_ne_bytes());
        }
        out.extend(self.len.to_ne_bytes());
        let address = |empty: bool, p: *const u8| if empty { 0 } else { p.expose_provenance() as u64 };
        for v in [
            address(self.dims.is_empty(), self.dims.as_ptr().cast()),
            address(self.data.1 == 0, self.data.0),
            address(self.keys.1 == 0, self.keys.0),
            address(self.items.is_empty(), self.items.as_ptr()),
        ] {
            out.extend(v.to_ne_bytes());
        }
        out
    }
}

impl Descriptor {
    /// Describes an input; the arrays must stay where they are.
    pub fn new(t: &Tensor, members: Option<&[Array]>) -> Descriptor {
        let nothing = (std::ptr::null(), 0);
        let none = Fields { kind: abi::ONNXC_NONE, ty: t.ty, key: 0, len: 0, dims: &[], data: nothing, keys: nothing, items: &[] };
        let kind = t.described.as_ref().map_or(Kind::Sequence, |d| d.kind);
        let dims: Vec<Vec<i64>> = members.unwrap_or_default().iter().map(|a| a.dims.clone()).collect();
        // Strings with addresses; all else as it is.
        let own = |a: &Array| (a.ty == ElemType::Str).then(|| crate::jit::addressed(&a.data, a.data.as_ptr()));
        let texts: Vec<Option<Vec<u8>>> = members.unwrap_or_default().iter().map(own).collect();
        let data = |k: usize, a: &'_ Array| -> (*const u8, usize) { texts[k].as_ref().map_or((a.data.as_ptr(), a.data.len()), |t| (t.as_ptr(), t.len())) };
        let tensor = |k: usize, a: &Array| Fields { kind: abi::ONNXC_TENSOR, ty: a.ty, len: count(&a.dims).unwrap_or(0) as i64, dims: &dims[k], data: data(k, a), ..none }.bytes();
        let mut items = vec![];
        let bytes = match (kind, members) {
            (_, None) => none.bytes(),
            (Kind::Tensor, Some([a, ..])) => tensor(0, a),
            (Kind::Map, Some([keys, values])) => {
                Fields { kind: abi::ONNXC_MAP, ty: values.ty, key: i32::from(keys.ty as u8), len: keys.dims.first().copied().unwrap_or(0), data: data(1, values), keys: data(0, keys), ..none }.bytes()
            }
            (_, Some(list)) => {
                items = list.iter().enumerate().flat_map(|(k, a)| tensor(k, a)).collect();
                Fields { kind: abi::ONNXC_SEQUENCE, len: list.len() as i64, items: &items, ..none }.bytes()
            }
        };
        Descriptor { bytes, _dims: dims, _texts: texts, _items: items }
    }
    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// Number `k` in `name.k`.
fn position(name: &str, of: &str) -> Option<usize> {
    name.strip_prefix(of)?.strip_prefix('.')?.parse().ok()
}

/// True if an array is (a part of) this input.
pub fn belongs(t: &Tensor, name: &str) -> bool {
    let part = |n: &str| position(name, n).is_some() || [".keys", ".values"].iter().any(|s| name.strip_suffix(s) == Some(n));
    name == t.name || name == t.ident || t.described.is_some() && (part(&t.name) || part(&t.ident))
}

/// What is given for an input that is no tensor.
pub fn gather(t: &Tensor, given: &[Array]) -> Result<Input> {
    let fail = |found: String, expected: &str| Error::new(codes::RUN_INPUT, format!("input \"{}\" does not fit", t.name)).found_expected(found, expected).fail();
    let Some(d) = &t.described else { return fail("a tensor".into(), "a sequence, an optional or a map") };
    let mine: Vec<&Array> = given.iter().filter(|a| belongs(t, &a.name)).collect();
    if let Some(a) = mine.iter().find(|a| a.ty != t.ty && !(d.key == Some(a.ty) && a.name.ends_with(".keys"))) {
        return fail(format!("\"{}\" of type {}", a.name, a.ty), &format!("elements of type {}", t.ty));
    }
    let named = |suffix: &str| mine.iter().find(|a| a.name.ends_with(suffix)).map(|a| (*a).clone());
    if d.kind == Kind::Map {
        return match (named(".keys"), named(".values")) {
            (Some(k), Some(v)) if k.dims.len() == 1 && k.dims == v.dims => Ok(Input::Members(Some(vec![k, v]))),
            _ => fail(format!("{} arrays", mine.len()), &format!("{0}.keys and {0}.values, lists of one length", t.name)),
        };
    }
    let mut items: Vec<(usize, Array)> = vec![];
    for a in mine {
        items.push((position(&a.name, &t.name).or_else(|| position(&a.name, &t.ident)).unwrap_or(0), a.clone()));
    }
    items.sort_by_key(|i| i.0);
    if items.iter().enumerate().any(|(k, i)| k != i.0) || d.kind == Kind::Tensor && items.len() > 1 {
        let names: Vec<&str> = items.iter().map(|i| i.1.name.as_str()).collect();
        return fail(names.join(", "), &format!("{0}.0, {0}.1, ... without a gap", t.name));
    }
    let absent = d.optional && items.is_empty();
    Ok(Input::Members((!absent).then(|| items.into_iter().map(|i| i.1).collect())))
}
