//! TensorProto -> ConstData: raw bytes alias the file, typed fields are converted.

use super::external::External;
use super::proto::{SparseTensorProto, TensorProto, tensor_proto::DataLocation};
use crate::diag::{Error, Failure, Origin, Result, codes};
use crate::tensor::{ConstData, ElemType, count};
use bytes::Bytes;

fn invalid(origin: &Origin, title: impl Into<String>) -> Error {
    Error::new(codes::TENSOR_INVALID, title).at(origin)
}

/// The constant that a TensorProto holds. Warnings go to `external`.
pub fn tensor(t: &TensorProto, external: &mut External, origin: &Origin) -> Result<ConstData> {
    let elem = super::types::elem_type(t.data_type, origin)?;
    let Some(n) = count(&t.dims) else {
        return invalid(origin, "the tensor's shape is invalid")
            .found_expected(format!("{:?}", t.dims), "sizes that are not negative, fewer than 2^63 elements")
            .fail();
    };
    if t.segment.is_some() {
        return Error::new(codes::TYPE_UNSUPPORTED, "a tensor in segments is not supported")
            .at(origin)
            .found_expected("the field \"segment\"", "a whole tensor")
            .fail();
    }
    let filled = filled(t);
    if t.data_location == Some(DataLocation::External as i32) {
        if elem == ElemType::Str {
            return invalid(origin, "a string tensor can not be external")
                .found_expected("data_location EXTERNAL", "string_data")
                .fail();
        }
        if let Some((field, _)) = filled.first() {
            let e = invalid(origin, "an external tensor has data in the model, too");
            return e
                .found_expected(format!("data_location EXTERNAL and {field}"), "external data only")
                .fail();
        }
        return Data { t, elem, n, external, origin }.external();
    }
    if !t.external_data.is_empty() {
        external.warnings.push(
            Error::warning(codes::NO_EFFECT, "a tensor has entries of external data that are not used")
                .at(origin)
                .found_expected(
                    "external_data with data_location DEFAULT",
                    "data_location EXTERNAL, or no external_data",
                ),
        );
    }
    if let [(a, _), (b, _), ..] = filled.as_slice() {
        return invalid(origin, "the tensor has its data twice")
            .found_expected(format!("{a} and {b}"), "one field with data")
            .fail();
    }
    let want = typed_field(elem);
    let field = match filled.first() {
        Some((f, _)) => *f,
        None => want,
    };
    if elem == ElemType::Str && field == "raw_data" {
        return invalid(origin, "a string tensor must not use raw_data")
            .found_expected("raw_data", "string_data")
            .fail();
    }
    if field != "raw_data" && field != want {
        let e = invalid(origin, "the tensor's data is in the field of another type");
        return e
            .found_expected(format!("{} in {field}", elem.onnx_name()), format!("{want} or raw_data"))
            .fail();
    }
    let data = Data { t, elem, n, external, origin };
    match field {
        "raw_data" => data.raw(),
        "string_data" => data.strings(),
        _ => data.typed(),
    }
}

/// The data fields that are set, and the number of values in each.
fn filled(t: &TensorProto) -> Vec<(&'static str, usize)> {
    let all = [
        ("raw_data", t.raw_data.as_ref().map_or(0, Bytes::len)),
        ("float_data", t.float_data.len()),
        ("int32_data", t.int32_data.len()),
        ("string_data", t.string_data.len()),
        ("int64_data", t.int64_data.len()),
        ("double_data", t.double_data.len()),
        ("uint64_data", t.uint64_data.len()),
    ];
    all.into_iter().filter(|(_, n)| *n > 0).collect()
}

/// The field that holds values of a type (onnx.proto).
fn typed_field(elem: ElemType) -> &'static str {
    use ElemType::*;
    match elem {
        F32 | C64 => "float_data",
        F64 | C128 => "double_data",
        I64 => "int64_data",
        U32 | U64 => "uint64_data",
        Str => "string_data",
        _ => "int32_data",
    }
}

/// Bytes of a tensor in raw_data and in external files. There, 6-bit floats are a bit stream in which an
/// element may span two bytes; elsewhere each occupies a byte.
fn raw_size(elem: ElemType, n: u64) -> u64 {
    if six_bits(elem) { n.saturating_mul(6).div_ceil(8) } else { elem.bytes_for(n).unwrap_or(u64::MAX) }
}

fn six_bits(elem: ElemType) -> bool {
    matches!(elem, ElemType::F6E2M3 | ElemType::F6E3M2)
}

/// A tensor whose data is to be read.
struct Data<'a> {
    t: &'a TensorProto,
    elem: ElemType,
    /// Number of elements.
    n: u64,
    external: &'a mut External,
    origin: &'a Origin,
}

impl Data<'_> {
    /// The error for data that does not fit the shape.
    fn mismatch(&self, found: String, expected: String) -> Error {
        let (t, elem) = (self.t, self.elem);
        invalid(self.origin, "the tensor's data does not fit its shape")
            .row("tensor", format!("{}{:?}", elem.onnx_name(), t.dims))
            .found_expected(found, expected)
    }
    fn raw(self) -> Result<ConstData> {
        let raw = self.t.raw_data.clone().unwrap_or_default();
        let want = raw_size(self.elem, self.n);
        if raw.len() as u64 != want {
            return self.mismatch(format!("{} bytes in raw_data", raw.len()), format!("{want} bytes")).fail();
        }
        self.from_raw(raw)
    }
    /// Takes data of the right size in the layout of raw_data.
    fn from_raw(mut self, raw: Bytes) -> Result<ConstData> {
        let Data { t, elem, n, origin, .. } = self;
        let data = if six_bits(elem) {
            let used = n * 6 % 8;
            if used > 0 && raw.last().is_some_and(|b| b >> used != 0) {
                return invalid(origin, "the bits behind the last 6-bit float are not zero")
                    .found_expected(format!("a last byte of {:#04x}", raw[raw.len() - 1]), "zeros there")
                    .fail();
            }
            let word = |at: usize| u16::from(raw[at]) | u16::from(raw.get(at + 1).copied().unwrap_or(0)) << 8;
            (0..n as usize).map(|i| (word(i * 6 / 8) >> (i * 6 % 8)) as u8 & 0x3f).collect::<Vec<u8>>().into()
        } else if elem == ElemType::Bool && raw.iter().any(|b| *b > 1) {
            self.not_a_bool();
            raw.iter().map(|b| u8::from(*b != 0)).collect::<Vec<u8>>().into()
        } else {
            raw
        };
        ConstData::new(elem, t.dims.clone(), data)
            .ok_or_else(|| Failure::bug("tensors", "data of another size"))
    }
    fn not_a_bool(&mut self) {
        let origin = self.origin;
        self.external.warnings.push(
            Error::warning(codes::TENSOR_INVALID, "a bool that is neither 0 nor 1 counts as true").at(origin),
        );
    }
    fn strings(self) -> Result<ConstData> {
        let Data { t, n, origin, .. } = self;
        if let Some(i) = t.string_data.iter().position(|s| std::str::from_utf8(s).is_err()) {
            let e = invalid(origin, format!("string {i} of the tensor is no UTF-8"));
            return e
                .found_expected(
                    format!("\"{}\"", super::wire::escaped(&t.string_data[i])),
                    "UTF-8, which operators on strings rely on",
                )
                .fail();
        }
        if let Some(i) = t.string_data.iter().position(|s| s.starts_with(b"\xef\xbb\xbf")) {
            self.external.warnings.push(
                Error::warning(
                    codes::TENSOR_INVALID,
                    format!("string {i} of the tensor begins with a byte order mark"),
                )
                .at(origin),
            );
        }
        let len = t.string_data.len();
        let unfit = || self.mismatch(format!("{len} strings"), format!("{n} strings")).into();
        ConstData::strings(t.dims.clone(), t.string_data.clone()).ok_or_else(unfit)
    }
    fn external(self) -> Result<ConstData> {
        let want = raw_size(self.elem, self.n);
        let range = self.external.range(&self.t.external_data, self.origin)?;
        if let Some(length) = range.length.filter(|l| *l != want) {
            return self
                .mismatch(format!("{length} bytes in the external file"), format!("{want} bytes"))
                .fail();
        }
        // A tensor without elements reads nothing, and its file need not exist.
        let data = if want == 0 { Bytes::new() } else { self.external.slice(&range, want, self.origin)? };
        self.from_raw(data)
    }
    /// Reads data from the typed fields.
    fn typed(mut self) -> Result<ConstData> {
        use ElemType::*;
        let Data { t, elem, n, origin, .. } = self;
        let field = typed_field(elem);
        let entries = filled(t).iter().find(|f| f.0 == field).map_or(0, |f| f.1 as u64);
        // Packed types have one byte per entry, complex types one entry per part.
        let want = match elem {
            C64 | C128 => n.saturating_mul(2),
            _ if elem.is_packed() => elem.bytes_for(n).unwrap_or(u64::MAX),
            _ => n,
        };
        if entries != want {
            let e = self.mismatch(format!("{entries} values in {field}"), format!("{want} values"));
            let dense = n.saturating_mul(u64::from(elem.bits())).div_ceil(32);
            return if elem.is_packed() && entries == dense {
                e.note("ambiguous packing: an entry holds one byte of elements, not four").fail()
            } else {
                e.fail()
            };
        }
        let out_of_range = |i: usize, v: String, lo: i64, hi: i64| -> Result<ConstData> {
            let e = invalid(origin, format!("value {i} of {field} does not fit {}", elem.onnx_name()));
            e.found_expected(v, format!("{lo} to {hi}")).fail()
        };
        // Bit patterns may be written as signed or unsigned.
        let (lo, hi) = match elem {
            I16 | U16 | F16 | BF16 => (-0x8000, 0xffff),
            F6E2M3 | F6E3M2 => (0, 0x3f),
            I32 | Bool => (i32::MIN, i32::MAX),
            _ => (-0x80, 0xff),
        };
        if field == "int32_data"
            && let Some(i) = t.int32_data.iter().position(|v| !(lo..=hi).contains(v))
        {
            return out_of_range(i, t.int32_data[i].to_string(), lo.into(), hi.into());
        }
        if elem == U32
            && let Some(i) = t.uint64_data.iter().position(|v| *v > u64::from(u32::MAX))
        {
            return out_of_range(i, t.uint64_data[i].to_string(), 0, u32::MAX.into());
        }
        if elem == Bool && t.int32_data.iter().any(|v| !matches!(v, 0 | 1)) {
            self.not_a_bool();
        }
        let v: Vec<u8> = match elem {
            F32 | C64 => t.float_data.iter().flat_map(|x| x.to_le_bytes()).collect(),
            F64 | C128 => t.double_data.iter().flat_map(|x| x.to_le_bytes()).collect(),
            I64 => t.int64_data.iter().flat_map(|x| x.to_le_bytes()).collect(),
            U64 => t.uint64_data.iter().flat_map(|x| x.to_le_bytes()).collect(),
            U32 => t.uint64_data.iter().flat_map(|x| (*x as u32).to_le_bytes()).collect(),
            I32 => t.int32_data.iter().flat_map(|x| x.to_le_bytes()).collect(),
            I16 | U16 | F16 | BF16 => t.int32_data.iter().flat_map(|x| (*x as u16).to_le_bytes()).collect(),
            Bool => t.int32_data.iter().map(|x| u8::from(*x != 0)).collect(),
            _ => t.int32_data.iter().map(|x| *x as u8).collect(),
        };
        ConstData::new(elem, t.dims.clone(), v).ok_or_else(|| Failure::bug("tensors", "data of another size"))
    }
}

/// Largest sparse tensor that is converted to dense, in bytes.
const MAX_DENSE: u64 = 1 << 31;

/// Converts a sparse constant to dense.
pub fn sparse(s: &SparseTensorProto, external: &mut External, origin: &Origin) -> Result<ConstData> {
    let Some(values) = &s.values else { return invalid(origin, "a sparse tensor without values").fail() };
    let values = tensor(values, external, &origin.element(format!("{}, values", origin.element)))?;
    let rank = s.dims.len();
    if rank == 0 || s.dims.iter().any(|d| *d <= 0) {
        return invalid(origin, "the shape of the sparse tensor is invalid")
            .found_expected(format!("{:?}", s.dims), "at least one size, all above 0")
            .fail();
    }
    let [nnz] = *values.dims() else {
        return invalid(origin, "the values of the sparse tensor are no list")
            .found_expected(format!("shape {:?}", values.dims()), "one dimension")
            .fail();
    };
    let n = count(&s.dims).ok_or_else(|| {
        invalid(origin, "the shape of the sparse tensor is invalid")
            .found_expected(format!("{:?}", s.dims), "fewer than 2^63 elements")
    })?;
    let linear = match &s.indices {
        None if nnz == 0 => vec![],
        None => {
            return invalid(origin, "a sparse tensor without indices")
                .found_expected("none", format!("one for each of {nnz} values"))
                .fail();
        }
        Some(indices) => positions(
            s,
            &tensor(indices, external, &origin.element(format!("{}, indices", origin.element)))?,
            nnz,
            n,
            origin,
        )?,
    };
    if let Some(k) = (1..linear.len()).find(|k| linear[k - 1] >= linear[*k]) {
        let e = invalid(origin, format!("index {k} of the sparse tensor does not follow the one before it"));
        return e
            .found_expected(
                format!("{} behind {}", linear[k], linear[k - 1]),
                "positions that ascend, each once",
            )
            .fail();
    }
    dense(&values, &s.dims, n, &linear, origin)
}

/// The linear positions of the values, checked to be within the shape.
fn positions(
    s: &SparseTensorProto,
    indices: &ConstData,
    nnz: i64,
    n: u64,
    origin: &Origin,
) -> Result<Vec<usize>> {
    let rank = s.dims.len();
    let list = (indices.elem() == ElemType::I64).then(|| indices.to_i64s()).flatten();
    let Some(list) = list else {
        return invalid(origin, "the indices of a sparse tensor must be int64")
            .found_expected(indices.elem().onnx_name(), "int64")
            .fail();
    };
    let outside = |k: usize, found: String| -> Result<Vec<usize>> {
        invalid(origin, format!("index {k} of the sparse tensor is out of range"))
            .found_expected(found, format!("a position in {:?}", s.dims))
            .fail()
    };
    match *indices.dims() {
        [k] if k == nnz => match list.iter().position(|i| u64::try_from(*i).map_or(true, |i| i >= n)) {
            Some(k) => outside(k, list[k].to_string()),
            None => Ok(list.iter().map(|i| *i as usize).collect()),
        },
        [k, r] if k == nnz && r as usize == rank => {
            let rows: Vec<&[i64]> = list.chunks(rank).collect();
            match rows.iter().position(|row| row.iter().zip(&s.dims).any(|(i, d)| *i < 0 || i >= d)) {
                Some(k) => outside(k, format!("{:?}", rows[k])),
                None => Ok(rows
                    .iter()
                    .map(|row| row.iter().zip(&s.dims).fold(0, |a, (i, d)| a * *d as usize + *i as usize))
                    .collect()),
            }
        }
        _ => invalid(origin, "the indices of the sparse tensor do not fit its values")
            .found_expected(format!("shape {:?}", indices.dims()), format!("[{nnz}] or [{nnz}, {rank}]"))
            .fail(),
    }
}

fn dense(values: &ConstData, dims: &[i64], n: u64, at: &[usize], origin: &Origin) -> Result<ConstData> {
    let elem = values.elem();
    if elem.bytes_for(n).is_none_or(|b| b > MAX_DENSE) {
        return invalid(origin, "the sparse tensor is too large")
            .found_expected(
                format!("{}{dims:?}", elem.onnx_name()),
                format!("at most {MAX_DENSE} bytes when dense"),
            )
            .fail();
    }
    let made = if let Some(list) = values.as_strings() {
        let mut all = vec![Bytes::new(); n as usize];
        at.iter().zip(list).for_each(|(i, s)| all[*i] = s.clone());
        ConstData::strings(dims.to_vec(), all)
    } else if elem.is_packed() {
        let (bits, codes) = (elem.bits() as usize, values.codes().unwrap_or_default());
        let mut data = vec![0u8; elem.bytes_for(n).unwrap_or(0) as usize];
        at.iter().zip(codes).for_each(|(i, c)| data[i * bits / 8] |= c << (i * bits % 8));
        ConstData::new(elem, dims.to_vec(), data)
    } else {
        let (size, src) = (elem.bytes().unwrap_or(1) as usize, values.bytes());
        let mut data = vec![0u8; n as usize * size];
        at.iter().zip(src.chunks(size)).for_each(|(i, c)| data[i * size..(i + 1) * size].copy_from_slice(c));
        ConstData::new(elem, dims.to_vec(), data)
    };
    made.ok_or_else(|| Failure::bug("tensors", "a sparse tensor of another size"))
}
