//! Constant data: bytes that may alias a mapped model file, or a lazy rearrangement of other constant data.
//!
//! Nothing large is copied before the object is written. Packing weights into panels, transposing and padding
//! are [`Remap`]s, which are evaluated piece by piece while the weights blob is streamed out.

mod remap;

use super::{ElemType, Words};
use bytes::Bytes;
use onnxc_runtime::texts;
pub use remap::Remap;
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// A constant tensor, dense and row-major.
#[derive(Clone, Debug)]
pub struct ConstData {
    elem: ElemType,
    dims: Vec<i64>,
    store: Store,
    hash: OnceLock<[u8; 32]>,
    derived: Derived,
}

/// Constants derived from one constant, by name. Clones of the constant share them.
#[derive(Clone, Debug, Default)]
struct Derived(Arc<Mutex<HashMap<String, Once>>>);

/// A constant that is computed once.
type Once = Arc<OnceLock<Option<Arc<ConstData>>>>;

#[derive(Clone, Debug)]
enum Store {
    Bytes(Bytes),
    Strings(Arc<Vec<Bytes>>),
    Remap(Arc<ConstData>, Remap),
    Words(Arc<ConstData>, Words),
}

impl ConstData {
    /// A constant from dense little-endian data; `None` if the length does not match the shape. For strings
    /// see `onnxc_runtime::texts`.
    pub fn new(elem: ElemType, dims: Vec<i64>, data: impl Into<Bytes>) -> Option<Self> {
        let data = data.into();
        let n = count(&dims)?;
        if elem == ElemType::Str {
            let list = (0..usize::try_from(n).ok()?)
                .map(|i| texts::place(&data, i).map(|(at, n)| data.slice(at..at + n)))
                .collect::<Option<_>>()?;
            return ConstData::strings(dims, list);
        }
        (elem.bytes_for(n)? == data.len() as u64).then(|| ConstData {
            elem,
            dims,
            store: Store::Bytes(data),
            hash: OnceLock::new(),
            derived: Derived::default(),
        })
    }
    /// A string tensor (UTF-8 bytes each).
    pub fn strings(dims: Vec<i64>, data: Vec<Bytes>) -> Option<Self> {
        (count(&dims)? == data.len() as u64).then(|| ConstData {
            elem: ElemType::Str,
            dims,
            store: Store::Strings(Arc::new(data)),
            hash: OnceLock::new(),
            derived: Derived::default(),
        })
    }
    /// An int64 vector.
    pub fn from_i64s(v: &[i64]) -> Self {
        Self::i64s_shaped(vec![v.len() as i64], v)
    }
    /// An int64 tensor; the number of values must match the shape.
    pub fn i64s_shaped(dims: Vec<i64>, v: &[i64]) -> Self {
        let data: Vec<u8> = v.iter().flat_map(|x| x.to_le_bytes()).collect();
        ConstData {
            elem: ElemType::I64,
            dims,
            store: Store::Bytes(data.into()),
            hash: OnceLock::new(),
            derived: Derived::default(),
        }
    }
    /// A float32 tensor; the number of values must match the shape.
    pub fn f32s(dims: Vec<i64>, v: &[f32]) -> Self {
        let data: Vec<u8> = v.iter().flat_map(|x| x.to_le_bytes()).collect();
        ConstData {
            elem: ElemType::F32,
            dims,
            store: Store::Bytes(data.into()),
            hash: OnceLock::new(),
            derived: Derived::default(),
        }
    }
    /// A rearrangement of `src` (whole-byte element types only). It is lazy except for strings.
    pub fn remap(src: Arc<ConstData>, map: Remap) -> Option<Self> {
        src.elem.bytes()?;
        let fits = map.offset.len() == src.dims.len()
            && map.coeff.len() == src.dims.len()
            && map.coeff.iter().all(|row| row.len() == map.dims.len());
        // A limit far below the sizes at which positions could overflow.
        let small = |v: &i64| v.unsigned_abs() <= 1 << 40;
        if !fits
            || count(&map.dims).is_none()
            || !map.offset.iter().chain(map.coeff.iter().flatten()).chain(&map.dims).all(small)
        {
            return None;
        }
        if let Store::Strings(list) = &src.store {
            // The source position of each element, counted from 1; 0 is outside.
            let numbers: Vec<i64> = (1..=list.len() as i64).collect();
            let from = ConstData::remap(Arc::new(ConstData::i64s_shaped(src.dims.clone(), &numbers)), map)?;
            let moved = from
                .to_i64s()?
                .into_iter()
                .map(|i| usize::try_from(i - 1).ok().and_then(|i| list.get(i)).cloned().unwrap_or_default())
                .collect();
            return ConstData::strings(from.dims, moved);
        }
        Some(ConstData {
            elem: src.elem,
            dims: map.dims.clone(),
            store: Store::Remap(src, map),
            hash: OnceLock::new(),
            derived: Derived::default(),
        })
    }
    /// Elements of few bits packed into 32-bit words, lazily; `None` if they exceed the source's bytes.
    pub fn words(src: Arc<ConstData>, words: Words) -> Option<Self> {
        if src.elem == ElemType::Str || !words.fits(src.byte_len() * 8 / u64::from(words.bits.max(1))) {
            return None;
        }
        count(&words.dims())?;
        Some(ConstData {
            elem: ElemType::I32,
            dims: words.dims(),
            store: Store::Words(src, words),
            hash: OnceLock::new(),
            derived: Derived::default(),
        })
    }
    /// The source and the map, if this is a rearrangement.
    pub fn remapped(&self) -> Option<(&Arc<ConstData>, &Remap)> {
        match &self.store {
            Store::Remap(src, map) => Some((src, map)),
            _ => None,
        }
    }
    /// The same data under another shape with as many elements.
    pub fn reshaped(&self, dims: Vec<i64>) -> Option<Self> {
        if count(&dims)? != self.count() {
            return None;
        }
        let store = match &self.store {
            Store::Remap(..) | Store::Words(..) => Store::Bytes(self.bytes()),
            s => s.clone(),
        };
        Some(ConstData { elem: self.elem, dims, store, hash: OnceLock::new(), derived: Derived::default() })
    }
    /// Its type.
    pub fn tensor_type(&self) -> super::TensorType {
        super::TensorType::new(
            self.elem,
            self.dims.iter().map(|&d| crate::sym::Dim::constant(d)).collect::<Vec<_>>(),
        )
    }
    /// Element type.
    pub fn elem(&self) -> ElemType {
        self.elem
    }
    /// Shape.
    pub fn dims(&self) -> &[i64] {
        &self.dims
    }
    /// Number of elements.
    pub fn count(&self) -> u64 {
        count(&self.dims).unwrap_or(0)
    }
    /// Bytes of the data; for strings including their characters.
    pub fn byte_len(&self) -> u64 {
        match &self.store {
            Store::Strings(s) => texts::encoded_len(s),
            _ => self.elem.bytes_for(self.count()).unwrap_or(0),
        }
    }
    /// Strings of a string tensor.
    pub fn as_strings(&self) -> Option<&[Bytes]> {
        match &self.store {
            Store::Strings(s) => Some(s),
            _ => None,
        }
    }
    /// Member `i` along the first dimension, without a copy; `None` for what is rearranged, for strings, and
    /// where it is no whole bytes.
    pub fn member(&self, i: i64) -> Option<Self> {
        let (n, rest) = self.dims.split_first()?;
        let Store::Bytes(b) = &self.store else { return None };
        let bits = count(rest)?.checked_mul(u64::from(self.elem.bits()))?;
        if !(0..*n).contains(&i) || bits % 8 != 0 {
            return None;
        }
        let size = usize::try_from(bits / 8).ok()?;
        let first = usize::try_from(i).ok()?.checked_mul(size)?;
        (first + size <= b.len())
            .then(|| ConstData::new(self.elem, rest.to_vec(), b.slice(first..first + size)))?
    }
    /// All bytes. Aliases the model file if possible, and evaluates a rearrangement otherwise. For strings
    /// see `onnxc_runtime::texts`.
    pub fn bytes(&self) -> Bytes {
        match &self.store {
            Store::Bytes(b) => b.clone(),
            Store::Strings(s) => texts::encode(s).into(),
            Store::Remap(src, map) => {
                let mut out = Vec::with_capacity(self.byte_len() as usize);
                map.write(src, &mut |b| out.extend_from_slice(b));
                out.into()
            }
            Store::Words(src, words) => {
                let mut out = Vec::with_capacity(self.byte_len() as usize);
                words.write(src, &mut |b| out.extend_from_slice(b));
                out.into()
            }
        }
    }
    /// Passes all bytes to `sink` in pieces of about a megabyte (for a rearrangement, at most one row more).
    pub fn stream(&self, sink: &mut dyn FnMut(&[u8])) {
        match &self.store {
            Store::Bytes(b) => b.chunks(1 << 20).for_each(sink),
            Store::Strings(s) => texts::encode(s).chunks(1 << 20).for_each(sink),
            Store::Remap(src, map) => map.write(src, sink),
            Store::Words(src, words) => words.write(src, sink),
        }
    }
    /// SHA-256 over element type, shape and data.
    pub fn hash(&self) -> [u8; 32] {
        *self.hash.get_or_init(|| {
            let mut h = Sha256::new();
            // If there are elements, the total number of bytes distinguishes sizes from elements. A flag
            // covers empty tensors.
            let empty = u8::from(self.dims.contains(&0)) << 7;
            h.update([self.elem as u8 | empty]);
            self.dims.iter().for_each(|d| h.update(d.to_le_bytes()));
            match &self.store {
                Store::Strings(v) => v.iter().for_each(|s| {
                    h.update((s.len() as u64).to_le_bytes());
                    h.update(s);
                }),
                _ => self.stream(&mut |b| h.update(b)),
            }
            h.finalize().into()
        })
    }
    /// The result of `make`, which computes it from this constant. It is computed once per `name`, even if
    /// the modules of several CPU levels request it, so the name must determine the result.
    pub fn derive(&self, name: String, make: impl FnOnce() -> Option<ConstData>) -> Option<Arc<ConstData>> {
        let one = {
            let mut all = self.derived.0.lock().unwrap_or_else(PoisonError::into_inner);
            all.entry(name).or_default().clone()
        };
        one.get_or_init(|| make().map(Arc::new)).clone()
    }
    /// True if both have the same bytes, or the same rearrangement of equal sources. Bytes are compared up to
    /// the first difference, and nothing is rearranged. False does not imply different contents.
    pub fn same_origin(&self, o: &ConstData) -> bool {
        match (&self.store, &o.store) {
            (Store::Bytes(a), Store::Bytes(b)) => a.len() == b.len() && (a.as_ptr() == b.as_ptr() || a == b),
            (Store::Remap(a, f), Store::Remap(b, g)) => {
                f == g && (Arc::ptr_eq(a, b) || a.elem == b.elem && a.dims == b.dims && a.same_origin(b))
            }
            (Store::Words(a, f), Store::Words(b, g)) => f == g && (Arc::ptr_eq(a, b) || a.same_origin(b)),
            _ => false,
        }
    }
    /// If this is a rearrangement of `from`, the same one of `to`, which has the same type and shape.
    pub fn again(&self, from: &Arc<ConstData>, to: &Arc<ConstData>) -> Option<ConstData> {
        let Store::Remap(src, map) = &self.store else { return None };
        let reshaped = |a: &ConstData, b: &ConstData| match (&a.store, &b.store) {
            (Store::Bytes(a), Store::Bytes(b)) => a.as_ptr() == b.as_ptr() && a.len() == b.len(),
            _ => false,
        };
        let src = match () {
            _ if from.elem != to.elem || from.dims != to.dims => return None,
            _ if Arc::ptr_eq(src, from) => to.clone(),
            _ if reshaped(src, from) && src.elem == from.elem => Arc::new(to.reshaped(src.dims.clone())?),
            _ => Arc::new(src.again(from, to)?),
        };
        ConstData::remap(src, map.clone())
    }
    /// First 8 hex digits of the hash.
    pub fn short_hash(&self) -> String {
        self.hash()[..4].iter().map(|b| format!("{b:02x}")).collect()
    }
    /// The values as i64 if the type is an integer or bool.
    pub fn to_i64s(&self) -> Option<Vec<i64>> {
        if !(self.elem.is_int() || self.elem == ElemType::Bool) {
            return None;
        }
        let signed = self.elem.is_signed_int();
        let Some(n) = self.elem.bytes().map(|n| n as usize) else {
            let unused = 64 - self.elem.bits();
            let wide = |c: u8| i64::from(c) << unused;
            return Some(
                self.codes()?
                    .into_iter()
                    .map(|c| if signed { wide(c) >> unused } else { i64::from(c) })
                    .collect(),
            );
        };
        Some(
            self.bytes()
                .chunks_exact(n)
                .map(|c| {
                    let mut w = [if signed && c[n - 1] & 0x80 != 0 { 0xff } else { 0 }; 8];
                    w[..n].copy_from_slice(c);
                    i64::from_le_bytes(w)
                })
                .collect(),
        )
    }
    /// The bits of each element, for types of at most 8 bits.
    pub fn codes(&self) -> Option<Vec<u8>> {
        let bits = self.elem.bits();
        if bits > 8 {
            return None;
        }
        let (b, per, mask) = (self.bytes(), 8 / bits as usize, u8::MAX >> (8 - bits));
        Some((0..self.count() as usize).map(|i| b[i / per] >> (i % per * bits as usize) & mask).collect())
    }
    /// The same bits as another element type of the same width.
    pub fn with_elem(&self, elem: ElemType) -> Option<Self> {
        (elem.bits() == self.elem.bits())
            .then(|| ConstData::new(elem, self.dims.clone(), self.bytes()))
            .flatten()
    }
    /// The values as f64 if the type is a float.
    pub fn to_f64s(&self) -> Option<Vec<f64>> {
        let b = self.bytes();
        Some(match self.elem {
            ElemType::F32 => {
                b.chunks_exact(4).map(|c| f64::from(f32::from_le_bytes([c[0], c[1], c[2], c[3]]))).collect()
            }
            ElemType::F64 => b
                .chunks_exact(8)
                .map(|c| f64::from_le_bytes([c[0], c[1], c[2], c[3], c[4], c[5], c[6], c[7]]))
                .collect(),
            ElemType::F16 => {
                b.chunks_exact(2).map(|c| half::f16::from_le_bytes([c[0], c[1]]).to_f64()).collect()
            }
            ElemType::BF16 => {
                b.chunks_exact(2).map(|c| half::bf16::from_le_bytes([c[0], c[1]]).to_f64()).collect()
            }
            t => {
                return self
                    .codes()?
                    .into_iter()
                    .map(|c| super::small::decode(t, c).map(f64::from))
                    .collect();
            }
        })
    }
    /// Passes the elements to `f` in order as f32, in pieces, without a copy of the whole tensor. `None` if
    /// the type is not a 16-bit or 32-bit float.
    pub fn f32_pieces(&self, f: &mut dyn FnMut(&[f32])) -> Option<()> {
        let size = match self.elem {
            ElemType::F32 => 4,
            ElemType::F16 | ElemType::BF16 => 2,
            _ => return None,
        };
        let (mut values, mut rest): (Vec<f32>, Vec<u8>) = (vec![], vec![]);
        self.stream(&mut |piece| {
            // An element may span two pieces.
            let joined;
            let piece = if rest.is_empty() {
                piece
            } else {
                joined = [&rest, piece].concat();
                &joined
            };
            for some in piece.chunks(size * 4096) {
                values.clear();
                // Arrays of constant length, so that the loops are vectorized.
                let left = if size == 4 {
                    let (words, left) = some.as_chunks();
                    values.extend(words.iter().map(|c| f32::from_le_bytes(*c)));
                    left
                } else {
                    let (halves, left) = some.as_chunks();
                    match self.elem {
                        ElemType::F16 => {
                            values.extend(halves.iter().map(|c| half::f16::from_le_bytes(*c).to_f32()))
                        }
                        _ => values.extend(halves.iter().map(|c| half::bf16::from_le_bytes(*c).to_f32())),
                    }
                    left
                };
                rest = left.to_vec();
                f(&values);
            }
        });
        Some(())
    }
    /// The constant with subnormal numbers replaced by 0. `None` if it has none or is not f32.
    pub fn without_subnormals(self: &Arc<Self>) -> Option<Arc<ConstData>> {
        let subnormal = |x: [u8; 4]| (u32::from_le_bytes(x) & 0x7fff_ffff).wrapping_sub(1) < 0x7f_ffff;
        match &self.store {
            Store::Remap(src, map) => ConstData::remap(src.without_subnormals()?, map.clone()).map(Arc::new),
            Store::Bytes(b) if self.elem == ElemType::F32 => {
                let (words, _) = b.as_chunks();
                // Without an early exit the comparison of a piece is vectorized.
                if !words.chunks(1 << 12).any(|p| p.iter().fold(false, |any, x| any | subnormal(*x))) {
                    return None;
                }
                self.derive("without subnormals".into(), || {
                    let data: Vec<u8> =
                        words.iter().flat_map(|x| if subnormal(*x) { [0; 4] } else { *x }).collect();
                    ConstData::new(self.elem, self.dims.clone(), data)
                })
            }
            _ => None,
        }
    }
    /// The value of the only element, if there is just one, of a type that [`ConstData::to_f64s`] or
    /// [`ConstData::to_i64s`] reads.
    pub fn scalar(&self) -> Option<f64> {
        if self.count() != 1 {
            return None;
        }
        self.to_f64s()
            .and_then(|v| v.first().copied())
            .or_else(|| self.to_i64s().and_then(|v| v.first().map(|&x| x as f64)))
    }
    /// True if all elements have the same bytes.
    pub fn is_splat(&self) -> bool {
        if let Store::Strings(s) = &self.store {
            return s.iter().all(|x| *x == s[0]);
        }
        let Some(n) = self.elem.bytes() else { return false };
        let b = self.bytes();
        b.chunks_exact(n as usize).all(|c| *c == b[..n as usize])
    }
}

impl PartialEq for ConstData {
    fn eq(&self, o: &Self) -> bool {
        self.elem == o.elem && self.dims == o.dims && self.hash() == o.hash()
    }
}

/// Number of elements of a shape; `None` if a size is negative or the number exceeds 63 bits. A size of 0
/// makes it 0, whatever the others are.
pub fn count(dims: &[i64]) -> Option<u64> {
    if dims.iter().any(|d| *d < 0) {
        return None;
    }
    if dims.contains(&0) {
        return Some(0);
    }
    dims.iter()
        .try_fold(1u64, |n, &d| n.checked_mul(u64::try_from(d).ok()?))
        .filter(|&n| n <= i64::MAX as u64)
}
