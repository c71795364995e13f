//! Inputs and outputs of models: tensors, and sequences, optionals and maps of them. [`Model`](crate::Model)
//! passes tensors as arrays. The other kinds are passed as descriptors ([`abi::onnxc_value`]), which
//! [`Descriptor`] writes and [`read`] reads.

#![allow(unsafe_code, reason = "reads descriptors of generated code, and bytes as numbers")]

use crate::abi::{self, Status, onnxc_value};
use crate::buffer::{ALIGN, Buffer};
use crate::texts;
use std::ffi::c_void;
use std::fmt;
use std::ops::Deref;
use std::ptr::null;
use std::sync::Arc;

/// An input or output.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Value<'a> {
    /// An empty optional.
    None,
    /// A tensor, or the tensor of an optional.
    Tensor(Tensor<'a>),
    /// A sequence, or the sequence of an optional.
    Sequence(Vec<Value<'a>>),
    /// A map.
    Map(Map<'a>),
}

/// A dense, row-major tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor<'a> {
    dtype: i32,
    dims: Vec<i64>,
    data: Data<'a>,
}

/// A map: keys, and the values in the same order.
#[derive(Clone, Debug, PartialEq)]
pub struct Map<'a> {
    keys: Tensor<'a>,
    values: Tensor<'a>,
}

/// Borrowed bytes, or owned and aligned ones.
#[derive(Clone)]
enum Data<'a> {
    Lent(&'a [u8]),
    Own(Arc<Buffer>),
}

impl Deref for Data<'_> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match self {
            Data::Lent(b) => b,
            Data::Own(b) => b,
        }
    }
}

impl fmt::Debug for Data<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl PartialEq for Data<'_> {
    fn eq(&self, other: &Data<'_>) -> bool {
        **self == **other
    }
}

mod sealed {
    /// Only types whose elements are plain numbers.
    pub trait Number {}
}

/// A Rust type whose values are elements of tensors.
pub trait Element: sealed::Number + Copy {
    /// ONNX `TensorProto.DataType`.
    const DTYPE: i32;
}

macro_rules! elements {
    ($($t:ty = $n:literal),*) => { $(impl sealed::Number for $t {} impl Element for $t { const DTYPE: i32 = $n; })* };
}
elements!(
    f32 = 1,
    u8 = 2,
    i8 = 3,
    u16 = 4,
    i16 = 5,
    i32 = 6,
    i64 = 7,
    f64 = 11,
    u32 = 12,
    u64 = 13,
    [f32; 2] = 14,
    [f64; 2] = 15
);

/// Size in bytes of a dense tensor. Packed types round up to whole bytes; for strings, the contents are not
/// counted. Fails with [`Status::Abi`] for unknown types and with [`Status::Dim`] if a dim is negative or the
/// size overflows.
pub fn byte_len(dtype: i32, dims: &[i64]) -> Result<usize, Status> {
    let bits = abi::element_bits(dtype).ok_or(Status::Abi)?;
    if dims.iter().any(|d| *d < 0) {
        return Err(Status::Dim);
    }
    if dims.contains(&0) {
        return Ok(0);
    }
    let count = dims.iter().try_fold(1u64, |n, d| n.checked_mul(d.unsigned_abs()));
    let bytes = count.and_then(|n| n.checked_mul(u64::from(bits))).map(|n| n.div_ceil(8));
    bytes.and_then(|n| usize::try_from(n).ok()).ok_or(Status::Dim)
}

/// Number of elements.
fn count(dims: &[i64]) -> usize {
    if dims.contains(&0) { 0 } else { dims.iter().product::<i64>() as usize }
}

impl<'a> Tensor<'a> {
    /// A tensor of numbers. Fails with [`Status::Dim`] if `dims` do not match the number of elements.
    pub fn new<T: Element>(dims: &[i64], data: &'a [T]) -> Result<Tensor<'a>, Status> {
        // SAFETY: an `Element` is a number without padding, so all its bytes are initialised.
        let bytes = unsafe { std::slice::from_raw_parts(data.as_ptr().cast(), size_of_val(data)) };
        Tensor::from_bytes(T::DTYPE, dims, bytes)
    }
    /// A tensor of any type from its bytes: numbers with any alignment, packed types with the first element
    /// in the low bits, strings as in [`texts`]. Fails with [`Status::Dim`] if `dims` do not match the bytes
    /// and with [`Status::Abi`] for an unknown type.
    pub fn from_bytes(dtype: i32, dims: &[i64], data: &'a [u8]) -> Result<Tensor<'a>, Status> {
        Tensor::checked(dtype, dims.to_vec(), Data::Lent(data))
    }
    /// A tensor of truth values.
    pub fn bools(dims: &[i64], data: &[bool]) -> Result<Tensor<'static>, Status> {
        Tensor::own(9, dims.to_vec(), &data.iter().map(|b| u8::from(*b)).collect::<Vec<u8>>())
    }
    /// A tensor of strings.
    pub fn strings<T: AsRef<[u8]>>(dims: &[i64], list: &[T]) -> Result<Tensor<'static>, Status> {
        if byte_len(abi::STRING, dims)? != list.len() * texts::SIZE {
            return Err(Status::Dim);
        }
        Tensor::own(abi::STRING, dims.to_vec(), &texts::encode(list))
    }
    /// A tensor of zeros of any type except strings, for initial states.
    pub fn zeros(dtype: i32, dims: &[i64]) -> Result<Tensor<'static>, Status> {
        if dtype == abi::STRING {
            return Err(Status::Value);
        }
        Tensor::checked(dtype, dims.to_vec(), Data::Own(Arc::new(Buffer::new(byte_len(dtype, dims)?)?)))
    }
    /// The memory of the tensor, if it is owned, not shared, and holds no strings.
    pub(crate) fn into_buffer(self) -> Result<Buffer, Tensor<'a>> {
        let Tensor { dtype, dims, data } = self;
        match data {
            Data::Own(b) if dtype != abi::STRING => {
                Arc::try_unwrap(b).map_err(|b| Tensor { dtype, dims, data: Data::Own(b) })
            }
            data => Err(Tensor { dtype, dims, data }),
        }
    }
    fn own(dtype: i32, dims: Vec<i64>, bytes: &[u8]) -> Result<Tensor<'static>, Status> {
        Tensor::checked(dtype, dims, Data::Own(Arc::new(Buffer::copy_of(bytes)?)))
    }
    fn checked<'b>(dtype: i32, dims: Vec<i64>, data: Data<'b>) -> Result<Tensor<'b>, Status> {
        let len = byte_len(dtype, &dims)?;
        let fits = if dtype == abi::STRING {
            texts::decode(&data, count(&dims)).is_some()
        } else {
            len == data.len()
        };
        if fits { Ok(Tensor { dtype, dims, data }) } else { Err(Status::Dim) }
    }
    /// An output that a call has written: as many bytes as `dims` give, strings with addresses.
    ///
    /// # Safety
    /// The addresses and lengths of strings refer to readable bytes.
    pub(crate) unsafe fn written(
        dtype: i32,
        dims: Vec<i64>,
        mut data: Buffer,
    ) -> Result<Tensor<'static>, Status> {
        let bytes = byte_len(dtype, &dims)?;
        data.truncate(bytes);
        if dtype == abi::STRING {
            let list = texts::read_elements(&data, bytes / texts::SIZE);
            // SAFETY: guaranteed by the caller.
            data = Buffer::copy_of(&unsafe { texts::encode_elements(&list) })?;
        }
        Tensor::checked(dtype, dims, Data::Own(Arc::new(data)))
    }
    /// ONNX `TensorProto.DataType`.
    pub fn dtype(&self) -> i32 {
        self.dtype
    }
    /// The dimensions.
    pub fn dims(&self) -> &[i64] {
        &self.dims
    }
    /// The bytes in the format of [`Tensor::from_bytes`]. The bytes of outputs are 64-byte aligned.
    pub fn bytes(&self) -> &[u8] {
        &self.data
    }
    /// The elements; `None` if they have another type or the bytes are not aligned for it.
    pub fn as_slice<T: Element>(&self) -> Option<&[T]> {
        // SAFETY: any bytes are a valid `Element`.
        let (before, data, after) = unsafe { self.data.align_to::<T>() };
        (self.dtype == T::DTYPE && before.is_empty() && after.is_empty()).then_some(data)
    }
    /// The elements of a tensor of truth values.
    pub fn to_bools(&self) -> Option<Vec<bool>> {
        (self.dtype == 9).then(|| self.data.iter().map(|b| *b != 0).collect())
    }
    /// The elements of a tensor of strings, as bytes. ONNX requires UTF-8.
    pub fn to_texts(&self) -> Option<Vec<&[u8]>> {
        if self.dtype == abi::STRING { texts::decode(&self.data, count(&self.dims)) } else { None }
    }
    /// The elements of a tensor of strings, if all are UTF-8.
    pub fn to_strings(&self) -> Option<Vec<&str>> {
        self.to_texts()?.into_iter().map(|s| std::str::from_utf8(s).ok()).collect()
    }
}

impl<'a> Map<'a> {
    /// A map. Fails with [`Status::Dim`] unless keys and values have one dimension of the same size.
    pub fn new(keys: Tensor<'a>, values: Tensor<'a>) -> Result<Map<'a>, Status> {
        if keys.dims.len() == 1 && keys.dims == values.dims {
            Ok(Map { keys, values })
        } else {
            Err(Status::Dim)
        }
    }
    /// The keys: int64 or strings.
    pub fn keys(&self) -> &Tensor<'a> {
        &self.keys
    }
    /// The values in the order of the keys.
    pub fn values(&self) -> &Tensor<'a> {
        &self.values
    }
}

impl<'a> Value<'a> {
    /// The tensor, if the value is one.
    pub fn tensor(&self) -> Option<&Tensor<'a>> {
        if let Value::Tensor(t) = self { Some(t) } else { None }
    }
    /// The items, if the value is a sequence.
    pub fn items(&self) -> Option<&[Value<'a>]> {
        if let Value::Sequence(s) = self { Some(s) } else { None }
    }
    /// The map, if the value is one.
    pub fn map(&self) -> Option<&Map<'a>> {
        if let Value::Map(m) = self { Some(m) } else { None }
    }
    /// The elements, if the value is a tensor of this type ([`Tensor::as_slice`]).
    pub fn as_slice<T: Element>(&self) -> Option<&[T]> {
        self.tensor()?.as_slice()
    }
}

impl<'a> From<Tensor<'a>> for Value<'a> {
    fn from(t: Tensor<'a>) -> Value<'a> {
        Value::Tensor(t)
    }
}

impl<'a> From<Map<'a>> for Value<'a> {
    fn from(m: Map<'a>) -> Value<'a> {
        Value::Map(m)
    }
}

impl<'a, T: Into<Value<'a>>> From<Vec<T>> for Value<'a> {
    fn from(items: Vec<T>) -> Value<'a> {
        Value::Sequence(items.into_iter().map(Into::into).collect())
    }
}

impl<'a, T: Into<Value<'a>>> From<Option<T>> for Value<'a> {
    fn from(element: Option<T>) -> Value<'a> {
        element.map_or(Value::None, Into::into)
    }
}

/// An empty descriptor.
pub(crate) const NOTHING: onnxc_value = onnxc_value {
    kind: abi::ONNXC_NONE,
    dtype: 0,
    key_dtype: 0,
    rank: 0,
    len: 0,
    dims: null(),
    data: null(),
    keys: null(),
    items: null(),
};

/// Elements in the format of generated code: aligned, strings with addresses. Borrows the memory of the value
/// if that has this format.
pub(crate) struct Elements {
    at: *const c_void,
    _own: Option<Buffer>,
}

impl Elements {
    /// The elements, valid while the tensor lives.
    pub(crate) fn of(t: &Tensor) -> Result<Elements, Status> {
        let own = if t.dtype == abi::STRING {
            Some(Buffer::copy_of(
                &texts::addressed(&t.data, count(&t.dims), t.data.as_ptr()).ok_or(Status::Dim)?,
            )?)
        } else {
            let align = abi::element_bits(t.dtype).map_or(ALIGN, |b| (b as usize / 8).clamp(1, 8));
            if t.data.as_ptr().addr().is_multiple_of(align) { None } else { Some(Buffer::copy_of(&t.data)?) }
        };
        Ok(Elements { at: own.as_deref().unwrap_or(&t.data).as_ptr().cast(), _own: own })
    }
    /// Address of the elements; not null even without elements.
    pub(crate) fn as_ptr(&self) -> *const c_void {
        self.at
    }
}

/// A value in the format of generated code.
pub struct Descriptor<'a> {
    value: onnxc_value,
    items: Vec<Vec<onnxc_value>>,
    elements: Vec<Elements>,
    /// Owns the dims, and owns or borrows the elements.
    _of: Value<'a>,
}

impl<'a> Descriptor<'a> {
    /// Describes a value.
    pub fn new(of: Value<'a>) -> Result<Descriptor<'a>, Status> {
        let mut d = Descriptor { value: NOTHING, items: vec![], elements: vec![], _of: Value::None };
        d.value = d.describe(&of)?;
        // The memory that the descriptor points to does not move with it.
        d._of = of;
        Ok(d)
    }
    /// The descriptor.
    pub fn as_raw(&self) -> &onnxc_value {
        &self.value
    }
    /// The descriptor as bytes.
    pub fn as_bytes(&self) -> &[u8] {
        // SAFETY: the struct consists of numbers and addresses without padding.
        unsafe {
            std::slice::from_raw_parts(std::ptr::from_ref(&self.value).cast(), size_of::<onnxc_value>())
        }
    }
    fn describe(&mut self, v: &Value<'_>) -> Result<onnxc_value, Status> {
        Ok(match v {
            Value::None => NOTHING,
            Value::Tensor(t) => {
                let dims = if t.dims.is_empty() { null() } else { t.dims.as_ptr() };
                onnxc_value {
                    kind: abi::ONNXC_TENSOR,
                    dtype: t.dtype,
                    rank: t.dims.len() as i32,
                    len: count(&t.dims) as i64,
                    dims,
                    data: self.elements(t)?,
                    ..NOTHING
                }
            }
            Value::Map(m) => {
                let (keys, data) = (self.elements(&m.keys)?, self.elements(&m.values)?);
                onnxc_value {
                    kind: abi::ONNXC_MAP,
                    dtype: m.values.dtype,
                    key_dtype: m.keys.dtype,
                    len: count(&m.keys.dims) as i64,
                    keys,
                    data,
                    ..NOTHING
                }
            }
            Value::Sequence(list) => {
                let items = list.iter().map(|i| self.describe(i)).collect::<Result<Vec<_>, _>>()?;
                let at = if items.is_empty() { null() } else { items.as_ptr() };
                self.items.push(items);
                onnxc_value { kind: abi::ONNXC_SEQUENCE, len: list.len() as i64, items: at, ..NOTHING }
            }
        })
    }
    fn elements(&mut self, t: &Tensor) -> Result<*const c_void, Status> {
        let e = Elements::of(t)?;
        let at = e.as_ptr();
        self.elements.push(e);
        Ok(at)
    }
}

/// Copies the value of a descriptor that a call has filled. Fails with [`Status::Abi`] if it is inconsistent.
///
/// # Safety
/// Generated code has filled the descriptor, and the memory it points to is still valid.
pub unsafe fn read(v: &onnxc_value) -> Result<Value<'static>, Status> {
    let n = usize::try_from(v.len).map_err(|_| Status::Abi)?;
    let tensor = |dtype: i32, dims: Vec<i64>, at: *const c_void| -> Result<Tensor<'static>, Status> {
        let bytes = byte_len(dtype, &dims)?;
        let data = if bytes == 0 {
            Buffer::new(0)?
        } else if at.is_null() {
            return Err(Status::Abi);
        } else {
            // SAFETY: guaranteed by the caller: the address leads to as many elements as the dims give.
            Buffer::copy_of(unsafe { std::slice::from_raw_parts(at.cast(), bytes) })?
        };
        // SAFETY: as above, for the contents of strings.
        unsafe { Tensor::written(dtype, dims, data) }
    };
    match v.kind {
        abi::ONNXC_NONE => Ok(Value::None),
        abi::ONNXC_TENSOR => {
            let rank = usize::try_from(v.rank).map_err(|_| Status::Abi)?;
            // SAFETY: as above, for the dims.
            let dims = if rank == 0 { vec![] } else { unsafe { array(v.dims, rank) }?.to_vec() };
            tensor(v.dtype, dims, v.data).map(Value::Tensor)
        }
        abi::ONNXC_MAP => Ok(Value::Map(Map {
            keys: tensor(v.key_dtype, vec![v.len], v.keys)?,
            values: tensor(v.dtype, vec![v.len], v.data)?,
        })),
        abi::ONNXC_SEQUENCE if n == 0 => Ok(Value::Sequence(vec![])),
        abi::ONNXC_SEQUENCE => {
            // SAFETY: as above, for the items.
            let items = unsafe { array(v.items, n) }?;
            // SAFETY: as above, for the memory they point to.
            Ok(Value::Sequence(items.iter().map(|i| unsafe { read(i) }).collect::<Result<_, _>>()?))
        }
        _ => Err(Status::Abi),
    }
}

/// # Safety
/// `p` is null or points to `n` elements that are not modified during `'x`.
unsafe fn array<'x, T>(p: *const T, n: usize) -> Result<&'x [T], Status> {
    if p.is_null() || !p.is_aligned() {
        return Err(Status::Abi);
    }
    // SAFETY: guaranteed by the caller.
    Ok(unsafe { std::slice::from_raw_parts(p, n) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors() {
        let t = Tensor::new(&[2, 2], &[1.0f32, 2.0, 3.0, 4.0]).unwrap();
        assert_eq!(
            (t.dtype(), t.dims(), t.as_slice::<f32>()),
            (1, &[2, 2][..], Some(&[1.0, 2.0, 3.0, 4.0][..]))
        );
        assert_eq!(t.as_slice::<i32>(), None);
        assert_eq!(Tensor::new(&[3], &[1i64]), Err(Status::Dim));
        assert_eq!(Tensor::new(&[-1, -1], &[1i64]), Err(Status::Dim));
        assert_eq!(Tensor::from_bytes(99, &[1], &[0]), Err(Status::Abi));
        assert_eq!(Tensor::bools(&[2], &[true, false]).unwrap().to_bools(), Some(vec![true, false]));
        let s = Tensor::strings(&[3], &["ä", "", "b"]).unwrap();
        assert_eq!(s.to_strings(), Some(vec!["ä", "", "b"]));
        assert_eq!(Tensor::strings(&[2], &["a"]), Err(Status::Dim));
        assert_eq!(Tensor::from_bytes(abi::STRING, &[1], &[0xff; 16]), Err(Status::Dim));
        assert_eq!(Tensor::strings(&[1], &[[0xffu8]]).unwrap().to_strings(), None);
    }

    #[test]
    fn described_and_read_again() {
        let bytes = [0u8, 0, 0, 128, 63, 0];
        let odd = Tensor::from_bytes(1, &[1], &bytes[1..5]).unwrap();
        let map = Map::new(
            Tensor::strings(&[2], &["a", "bc"]).unwrap(),
            Tensor::new(&[2], &[1.5f32, 2.5]).unwrap(),
        )
        .unwrap();
        let empty: Vec<Tensor> = vec![];
        for v in [
            Value::None,
            odd.clone().into(),
            Tensor::new(&[], &[7i64]).unwrap().into(),
            Tensor::new::<f64>(&[3, 0], &[]).unwrap().into(),
            Tensor::strings(&[1, 2], &["x", "yz"]).unwrap().into(),
            map.clone().into(),
            empty.into(),
            vec![odd, Tensor::new(&[2, 1], &[1.0f32, 2.0]).unwrap()].into(),
            vec![map.clone(), map].into(),
            Some(vec![Tensor::new(&[1], &[1u8]).unwrap()]).into(),
        ] {
            let d = Descriptor::new(v.clone()).unwrap();
            // SAFETY: written above from a value that is still alive.
            assert_eq!(unsafe { read(d.as_raw()) }, Ok(v.clone()));
        }
    }

    #[test]
    fn senseless_descriptors() {
        for v in [
            onnxc_value { kind: 7, ..NOTHING },
            onnxc_value { kind: abi::ONNXC_TENSOR, dtype: 1, rank: -1, ..NOTHING },
            onnxc_value { kind: abi::ONNXC_TENSOR, dtype: 1, rank: 1, ..NOTHING },
            onnxc_value { kind: abi::ONNXC_TENSOR, dtype: 1, len: 1, ..NOTHING },
            onnxc_value { kind: abi::ONNXC_SEQUENCE, len: 1, ..NOTHING },
            onnxc_value { kind: abi::ONNXC_SEQUENCE, len: -1, ..NOTHING },
        ] {
            // SAFETY: the descriptor has no pointers.
            assert_eq!(unsafe { read(&v) }, Err(Status::Abi));
        }
    }
}
