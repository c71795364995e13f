//! TensorProto -> ConstData: raw bytes alias the file, typed fields are converted.

use super::external::External;
use super::proto::{SparseTensorProto, TensorProto, tensor_proto::DataLocation};
use crate::diag::{Error, Failure, Origin, Result, codes};
use crate::tensor::{ConstData, ElemType, count};
use bytes::Bytes;

fn invalid(origin: &Origin, title: impl Into<String>) -> Error {
    Error::new(codes::TENSOR_INVALID, title).at(origin)
}

/// The constant that a TensorProto holds.
pub fn tensor(t: &TensorProto, external: &mut External, origin: &Origin) -> Result<ConstData> {
    let elem = super::types::elem_type(t.data_type, origin)?;
    let Some(n) = count(&t.dims) else {
        return invalid(origin, "the tensor's shape is invalid").found_expected(format!("{:?}", t.dims), "sizes that are not negative, fewer than 2^63 elements").fail();
    };
    if t.segment.is_some() {
        return invalid(origin, "segmented tensors are not supported").fail();
    }
    if elem == ElemType::Str {
        if t.raw_data.is_some() {
            return invalid(origin, "a string tensor must not use raw_data").fail();
        }
        if let Some(i) = t.string_data.iter().position(|s| std::str::from_utf8(s).is_err()) {
            return invalid(origin, format!("string {i} of the tensor is no UTF-8")).fail();
        }
        return ConstData::strings(t.dims.clone(), t.string_data.clone()).ok_or_else(|| mismatch(origin, t.string_data.len() as u64, n, "strings"));
    }
    let want = elem.bytes_for(n).unwrap_or(u64::MAX);
    if t.data_location == Some(DataLocation::External as i32) {
        return external_tensor(t, elem, n, external, origin);
    }
    let data = match &t.raw_data {
        Some(raw) => unpacked(elem, n, raw.clone()),
        None => typed(t, elem, n, origin)?,
    };
    let len = data.len() as u64;
    ConstData::new(elem, t.dims.clone(), data).ok_or_else(|| mismatch(origin, len, want, "bytes"))
}

fn mismatch(origin: &Origin, found: u64, expected: u64, what: &str) -> Failure {
    invalid(origin, "the tensor's data does not fit its shape").found_expected(format!("{found} {what}"), format!("{expected} {what}")).into()
}

/// 6-bit floats are a bit stream in files, in which an element may lie in two bytes. Here each has a byte.
fn six_bits(elem: ElemType) -> bool {
    matches!(elem, ElemType::F6E2M3 | ElemType::F6E3M2)
}

fn unpacked(elem: ElemType, n: u64, raw: Bytes) -> Bytes {
    if !six_bits(elem) || n.checked_mul(6).map(|b| b.div_ceil(8)) != Some(raw.len() as u64) {
        return raw;
    }
    let word = |at: usize| u16::from(raw[at]) | u16::from(raw.get(at + 1).copied().unwrap_or(0)) << 8;
    (0..n as usize).map(|i| (word(i * 6 / 8) >> (i * 6 % 8)) as u8 & 0x3f).collect::<Vec<u8>>().into()
}

fn external_tensor(t: &TensorProto, elem: ElemType, n: u64, external: &mut External, origin: &Origin) -> Result<ConstData> {
    let want = elem.bytes_for(n).unwrap_or(u64::MAX);
    let get = |k: &str| t.external_data.iter().find(|e| e.key.as_deref() == Some(k)).and_then(|e| e.value.as_deref());
    let number = |k: &str| match get(k) {
        None => Ok(None),
        Some(s) => s
            .trim()
            .parse::<u64>()
            .map(Some)
            .map_err(|_| Failure::from(Error::new(codes::EXTERNAL_DATA, format!("external data: {k} is not a number")).at(origin).found_expected(s, "a number of bytes"))),
    };
    let Some(location) = get("location") else { return Error::new(codes::EXTERNAL_DATA, "external data without a location").at(origin).fail() };
    let (offset, length) = (number("offset")?.unwrap_or(0), number("length")?);
    let size = if six_bits(elem) { (n.saturating_mul(6)).div_ceil(8) } else { want };
    let data = unpacked(elem, n, external.slice(location, offset, Some(length.unwrap_or(size)), origin)?);
    let len = data.len() as u64;
    ConstData::new(elem, t.dims.clone(), data).ok_or_else(|| mismatch(origin, len, want, "bytes in the external file"))
}

/// Data from the typed fields (onnx.proto: which types use which field).
fn typed(t: &TensorProto, elem: ElemType, n: u64, origin: &Origin) -> Result<Bytes> {
    use ElemType::*;
    let from_i32 = |f: &dyn Fn(i32, &mut Vec<u8>)| {
        let mut v = vec![];
        t.int32_data.iter().for_each(|x| f(*x, &mut v));
        v
    };
    let v: Vec<u8> = match elem {
        F32 | C64 => t.float_data.iter().flat_map(|x| x.to_le_bytes()).collect(),
        F64 | C128 => t.double_data.iter().flat_map(|x| x.to_le_bytes()).collect(),
        I64 => t.int64_data.iter().flat_map(|x| x.to_le_bytes()).collect(),
        U64 => t.uint64_data.iter().flat_map(|x| x.to_le_bytes()).collect(),
        U32 => t.uint64_data.iter().flat_map(|x| (*x as u32).to_le_bytes()).collect(),
        I32 => from_i32(&|x, v| v.extend(x.to_le_bytes())),
        I16 | U16 | F16 | BF16 => from_i32(&|x, v| v.extend((x as u16).to_le_bytes())),
        I8 | U8 | Bool | F8E4M3FN | F8E4M3FNUZ | F8E5M2 | F8E5M2FNUZ | F8E8M0 => from_i32(&|x, v| v.push(x as u8)),
        F6E2M3 | F6E3M2 => from_i32(&|x, v| v.push(x as u8 & 0x3f)),
        // One byte of packed elements in each entry.
        U4 | I4 | F4E2M1 | U2 | I2 => from_i32(&|x, v| v.push(x as u8)),
        Str => vec![],
    };
    let want = elem.bytes_for(n).unwrap_or(u64::MAX);
    if v.len() as u64 != want {
        let entry = u64::from(elem.bytes().unwrap_or(1)).max(1);
        return Err(mismatch(origin, v.len() as u64 / entry, want / entry, "values"));
    }
    Ok(v.into())
}

/// Largest sparse tensor that is made dense, in bytes.
const MAX_DENSE: u64 = 1 << 31;

/// A sparse constant, made dense.
pub fn sparse(s: &SparseTensorProto, external: &mut External, origin: &Origin) -> Result<ConstData> {
    let (Some(values), Some(indices)) = (&s.values, &s.indices) else { return invalid(origin, "a sparse tensor without values or indices").fail() };
    let values = tensor(values, external, origin)?;
    let indices = tensor(indices, external, origin)?;
    let bad = |title: &str| -> Failure { invalid(origin, title).into() };
    let n = count(&s.dims).ok_or_else(|| bad("the sparse tensor's shape is invalid"))?;
    let size = values.elem().bytes().ok_or_else(|| bad("sparse tensors of packed types are not supported"))? as usize;
    let at = indices.to_i64s().ok_or_else(|| bad("the indices of a sparse tensor must be int64"))?;
    let nnz = values.count() as usize;
    let linear: Vec<i64> = match indices.dims() {
        [k] if *k as usize == nnz => at,
        [k, r] if *k as usize == nnz && *r as usize == s.dims.len() => {
            let mut v = vec![];
            for row in at.chunks(s.dims.len().max(1)) {
                if row.iter().zip(&s.dims).any(|(i, d)| i < &0 || i >= d) {
                    return Err(bad("an index of the sparse tensor is out of range"));
                }
                v.push(row.iter().zip(&s.dims).fold(0, |a, (i, d)| a * d + i));
            }
            v
        }
        _ => return Err(bad("the indices of the sparse tensor do not fit its values")),
    };
    let total = n.checked_mul(size as u64).filter(|b| *b <= MAX_DENSE).ok_or_else(|| bad("the sparse tensor is too large"))?;
    let mut data = vec![0u8; total as usize];
    let src = values.bytes();
    for (k, i) in linear.iter().enumerate() {
        let i = usize::try_from(*i).ok().filter(|i| (*i as u64) < n).ok_or_else(|| bad("an index of the sparse tensor is out of range"))?;
        data[i * size..(i + 1) * size].copy_from_slice(&src[k * size..(k + 1) * size]);
    }
    ConstData::new(values.elem(), s.dims.clone(), data).ok_or_else(|| bad("the sparse tensor is broken"))
}
