//! Arrays in files: .npy, .npz, and the .pb tensors of the ONNX test-data layout.

use crate::diag::{Error, Failure, Origin, Result, codes};
use crate::onnx::external::External;
use crate::onnx::proto::TensorProto;
use crate::tensor::{ElemType, count};
use npyz::WriterBuilder;
use prost::Message;
use std::io::{Read, Write};
use std::path::Path;

/// A dense, row-major array.
#[derive(Clone, Debug, PartialEq)]
pub struct Array {
    /// Name, where the file gives one.
    pub name: String,
    /// Element type.
    pub ty: ElemType,
    /// Shape.
    pub dims: Vec<i64>,
    /// Little-endian data.
    pub data: Vec<u8>,
}

const NPY: &[(&str, ElemType)] = &[
    ("<f4", ElemType::F32),
    ("<f8", ElemType::F64),
    ("<f2", ElemType::F16),
    ("|i1", ElemType::I8),
    ("<i2", ElemType::I16),
    ("<i4", ElemType::I32),
    ("<i8", ElemType::I64),
    ("|u1", ElemType::U8),
    ("<u2", ElemType::U16),
    ("<u4", ElemType::U32),
    ("<u8", ElemType::U64),
    ("|b1", ElemType::Bool),
];

fn io(path: &Path) -> impl Fn(std::io::Error) -> Failure + '_ {
    |e| Failure::Io(path.display().to_string(), e.to_string())
}

fn bad(path: &Path, found: impl Into<String>, expected: &str) -> Failure {
    Error::new(codes::RUN_INPUT, "the array file can not be used").at(&Origin::file(path.display().to_string())).found_expected(found, expected).into()
}

fn from_npy(path: &Path, name: &str, mut r: impl Read) -> Result<Array> {
    let header = npyz::NpyHeader::from_reader(&mut r).map_err(io(path))?;
    let descr = header.dtype().descr();
    let descr = descr.trim_matches('\'');
    let Some((_, ty)) = NPY.iter().find(|(d, _)| *d == descr) else { return Err(bad(path, format!("dtype {descr}"), "a little-endian number or bool")) };
    if header.order() != npyz::Order::C && header.shape().len() > 1 {
        return Err(bad(path, "column-major order", "row-major order: save numpy.ascontiguousarray(x)"));
    }
    let dims: Vec<i64> = header.shape().iter().map(|d| *d as i64).collect();
    let mut data = vec![];
    r.read_to_end(&mut data).map_err(io(path))?;
    let want = count(&dims).and_then(|n| ty.bytes_for(n));
    if want != Some(data.len() as u64) {
        return Err(bad(path, format!("{} bytes of data", data.len()), "as many as the shape needs"));
    }
    Ok(Array { name: name.to_owned(), ty: *ty, dims, data })
}

/// Reads one .npy or .pb file.
pub fn read(path: &Path) -> Result<Array> {
    let file = std::fs::File::open(path).map_err(io(path))?;
    let mut r = std::io::BufReader::new(file);
    if path.extension().is_some_and(|e| e == "pb") {
        let mut b = vec![];
        r.read_to_end(&mut b).map_err(io(path))?;
        let t = TensorProto::decode(b.as_slice()).map_err(|e| bad(path, e.to_string(), "one onnx.TensorProto"))?;
        let c = crate::onnx::tensors::tensor(&t, &mut External::new(None), &Origin::file(path.display().to_string()))?;
        return Ok(Array { name: t.name.unwrap_or_default(), ty: c.elem(), dims: c.dims().to_vec(), data: c.bytes().to_vec() });
    }
    from_npy(path, "", r)
}

/// Reads all arrays of an .npz file.
pub fn read_npz(path: &Path) -> Result<Vec<Array>> {
    let mut z = npyz::npz::NpzArchive::open(path).map_err(io(path))?;
    let names: Vec<String> = z.array_names().map(str::to_owned).collect();
    let mut out = vec![];
    for n in names {
        let dtype_and_data = z.by_name(&n).map_err(io(path))?;
        if let Some(npy) = dtype_and_data {
            let header = npy.header().clone();
            let descr = header.dtype().descr();
            let descr = descr.trim_matches('\'').to_owned();
            let Some((_, ty)) = NPY.iter().find(|(d, _)| *d == descr) else { continue };
            if header.order() != npyz::Order::C && header.shape().len() > 1 {
                return Err(bad(path, format!("\"{n}\" in column-major order"), "row-major order"));
            }
            let dims = header.shape().iter().map(|d| *d as i64).collect();
            let mut data = vec![];
            npy.into_inner().read_to_end(&mut data).map_err(io(path))?;
            out.push(Array { name: n, ty: *ty, dims, data });
        }
    }
    Ok(out)
}

/// Writes one .npy file. What numpy does not have goes by its bits: bf16 as uint16, smaller types as uint8, an element each.
pub fn write(path: &Path, a: &Array) -> Result<()> {
    let descr = NPY.iter().find(|(_, t)| *t == a.ty).map_or(if a.ty.bits() > 8 { "<u2" } else { "|u1" }, |(d, _)| d);
    let codes = if a.ty.is_packed() { crate::tensor::ConstData::new(a.ty, a.dims.clone(), a.data.clone()).and_then(|c| c.codes()) } else { None };
    let dtype = npyz::DType::new_scalar(descr.parse().map_err(|_| Failure::bug("npy", descr))?);
    let shape: Vec<u64> = a.dims.iter().map(|d| *d as u64).collect();
    let file = std::fs::File::create(path).map_err(io(path))?;
    let mut w = npyz::WriteOptions::new_header_only().dtype(dtype).shape(&shape).writer(std::io::BufWriter::new(file)).write_header_only().map_err(io(path))?;
    w.write_all(codes.as_ref().unwrap_or(&a.data)).and_then(|()| w.flush()).map_err(io(path))
}

impl Array {
    /// The values as f64.
    pub fn to_f64s(&self) -> Vec<f64> {
        let c = crate::tensor::ConstData::new(self.ty, self.dims.clone(), self.data.clone());
        c.and_then(|c| c.to_f64s().or_else(|| c.to_i64s().map(|v| v.into_iter().map(|x| x as f64).collect()))).unwrap_or_default()
    }
}
