//! Array files: .npy, .npz, and the .pb tensors of the ONNX test-data layout.

use super::Array;
use super::npy::Header;
use crate::diag::{Error, Failure, Origin, Result, codes};
use crate::onnx::external::External;
use crate::onnx::proto::TensorProto;
use crate::tensor::{ElemType, count};
use onnxc_runtime::texts;
use prost::Message;
use std::io::{Read, Write};
use std::path::Path;
use zip::write::FileOptions;
use zip::{ZipArchive, ZipWriter};

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
    ("<c8", ElemType::C64),
    ("<c16", ElemType::C128),
    ("|b1", ElemType::Bool),
];

const DTYPES: &str = "a little-endian number, complex number, bool, or string (dtype U or S)";

fn io(path: &Path) -> impl Fn(std::io::Error) -> Failure + '_ {
    |e| Failure::Io(path.display().to_string(), e.to_string())
}

fn bad(path: &Path, found: impl Into<String>, expected: &str) -> Failure {
    Error::new(codes::RUN_INPUT, "the array file can not be used")
        .at(&Origin::file(path.display().to_string()))
        .found_expected(found, expected)
        .into()
}

fn from_npy(path: &Path, name: &str, mut r: impl Read) -> Result<Array> {
    let bad = |path: &Path, found: String, expected: &str| {
        bad(path, if name.is_empty() { found } else { format!("\"{name}\" with {found}") }, expected)
    };
    let Header { descr, fortran_order, shape: dims } = Header::read(&mut r).map_err(io(path))?;
    let descr = descr.as_str();
    let Some(ty) = element(descr) else { return Err(bad(path, format!("dtype {descr}"), DTYPES)) };
    if fortran_order && dims.len() > 1 {
        return Err(bad(
            path,
            "column-major order".into(),
            "row-major order: save numpy.ascontiguousarray(x)",
        ));
    }
    let mut data = vec![];
    r.read_to_end(&mut data).map_err(io(path))?;
    if ty == ElemType::Str {
        let data = strings(path, descr, &dims, &data)?;
        return Ok(Array { name: name.to_owned(), ty, dims, data });
    }
    let want = count(&dims).and_then(|n| ty.bytes_for(n));
    if want != Some(data.len() as u64) {
        return Err(bad(path, format!("{} bytes of data", data.len()), "as many as the shape needs"));
    }
    Ok(Array { name: name.to_owned(), ty, dims, data })
}

/// The element type of a dtype.
fn element(descr: &str) -> Option<ElemType> {
    if width(descr).is_some() {
        return Some(ElemType::Str);
    }
    NPY.iter().find(|(d, _)| *d == descr).map(|(_, t)| *t)
}

/// Element size of numpy's string types (`<U7`, `|S7`), and whether the elements are 4-byte code points.
fn width(descr: &str) -> Option<(usize, bool)> {
    match (descr.strip_prefix("<U"), descr.strip_prefix("|S")) {
        (Some(n), _) => Some((n.parse::<usize>().ok()?.checked_mul(4)?, true)),
        (_, Some(n)) => Some((n.parse().ok()?, false)),
        _ => None,
    }
}

/// Strings from elements of fixed width that are padded with zeros.
fn strings(path: &Path, descr: &str, dims: &[i64], data: &[u8]) -> Result<Vec<u8>> {
    let (size, wide) = width(descr).unwrap_or((0, false));
    let n =
        count(dims).and_then(|n| usize::try_from(n).ok()).filter(|n| n.checked_mul(size) == Some(data.len()));
    let Some(n) = n else {
        return Err(bad(path, format!("{} bytes of data", data.len()), "as many as the shape needs"));
    };
    let text = |b: &[u8]| -> Option<String> {
        let mut s = if wide {
            b.chunks_exact(4)
                .map(|c| c.first_chunk().and_then(|c| char::from_u32(u32::from_le_bytes(*c))))
                .collect::<Option<String>>()?
        } else {
            String::from_utf8(b.to_vec()).ok()?
        };
        s.truncate(s.trim_end_matches('\0').len());
        Some(s)
    };
    let list: Option<Vec<String>> =
        (0..n).map(|i| data.get(i * size..(i + 1) * size).and_then(text)).collect();
    list.map(|l| texts::encode(&l))
        .ok_or_else(|| bad(path, "bytes that are no text", "strings in UTF-8, or of code points"))
}

/// A format of array files, determined by the extension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// numpy's format of one array.
    Npy,
    /// A zip archive of .npy files, each with a name.
    Npz,
    /// One onnx.TensorProto, as in ONNX test data.
    Pb,
    /// A picture; input only.
    Picture,
}

/// The formats that [`format()`] recognises, for messages.
pub const FORMATS: &str = "a file that ends in .npy, .npz or .pb";

/// Extensions of pictures.
#[cfg(feature = "image")]
const PICTURES: &[&str] = &["bmp", "jpg", "jpeg", "jp2", "png", "pgm", "ppm", "pnm", "tif", "tiff", "webp"];
/// Empty: there is no decoder without the feature.
#[cfg(not(feature = "image"))]
const PICTURES: &[&str] = &[];

/// The format of a file by its extension.
pub fn format(path: &Path) -> Option<Format> {
    match path.extension()?.to_str()?.to_ascii_lowercase().as_str() {
        "npy" => Some(Format::Npy),
        "npz" => Some(Format::Npz),
        "pb" => Some(Format::Pb),
        x if PICTURES.contains(&x) => Some(Format::Picture),
        _ => None,
    }
}

fn known_format(path: &Path) -> Result<Format> {
    format(path).ok_or_else(|| {
        bad(
            path,
            path.extension().map_or("no extension".into(), |e| format!(".{}", e.to_string_lossy())),
            FORMATS,
        )
    })
}

/// Reads the array of a .npy or .pb file, or the only one of an .npz file.
pub fn read(path: &Path) -> Result<Array> {
    read_named(path, "")
}

/// As [`read`], for an .npz file: the array of that name, or the only one.
pub fn read_named(path: &Path, name: &str) -> Result<Array> {
    let open = || std::fs::File::open(path).map(std::io::BufReader::new).map_err(io(path));
    match known_format(path)? {
        Format::Npy => from_npy(path, "", open()?),
        Format::Npz => {
            let mut all = read_npz(path)?;
            if let Some(at) = all.iter().position(|a| a.name == name) {
                return Ok(all.swap_remove(at));
            }
            match (all.pop(), all.len()) {
                (Some(a), 0) => Ok(a),
                (last, _) => {
                    let names: Vec<String> = all.into_iter().chain(last).map(|a| a.name).collect();
                    Err(bad(
                        path,
                        if names.is_empty() {
                            "no arrays".into()
                        } else {
                            format!("arrays {}", names.join(", "))
                        },
                        &format!("an array named \"{name}\", or one array only"),
                    ))
                }
            }
        }
        Format::Picture => Err(bad(path, "a picture", FORMATS)),
        Format::Pb => {
            let mut b = vec![];
            open()?.read_to_end(&mut b).map_err(io(path))?;
            let t = TensorProto::decode(b.as_slice())
                .map_err(|e| bad(path, e.to_string(), "one onnx.TensorProto"))?;
            let c = crate::onnx::tensors::tensor(
                &t,
                &mut External::new(None),
                &Origin::file(path.display().to_string()),
            )?;
            Ok(Array {
                name: t.name.unwrap_or_default(),
                ty: c.elem(),
                dims: c.dims().to_vec(),
                data: c.bytes().to_vec(),
            })
        }
    }
}

/// Reads all arrays of an .npz file, by name.
pub fn read_npz(path: &Path) -> Result<Vec<Array>> {
    let file = std::fs::File::open(path).map(std::io::BufReader::new).map_err(io(path))?;
    let mut z = ZipArchive::new(file).map_err(|e| io(path)(e.into()))?;
    let mut names: Vec<String> =
        z.file_names().flatten().filter_map(|n| Some(n.strip_suffix(".npy")?.to_owned())).collect();
    names.sort_unstable();
    let mut array = |n: &String| {
        let entry = z.by_name(&format!("{n}.npy")).map_err(|e| io(path)(e.into()))?;
        from_npy(path, n, entry)
    };
    names.iter().map(&mut array).collect()
}

/// Writes arrays in the format of the extension; .npy and .pb files hold one.
///
/// Types that numpy lacks are written as bit patterns: bf16 as uint16, smaller types as uint8 with one
/// element each. Strings become elements of one width. A .pb file keeps every type.
pub fn write_all(path: &Path, arrays: &[&Array]) -> Result<()> {
    let create = || std::fs::File::create(path).map(std::io::BufWriter::new).map_err(io(path));
    let done = match (known_format(path)?, arrays) {
        (Format::Npz, _) => {
            let mut z = ZipWriter::new(create()?);
            for a in arrays {
                z.start_file(format!("{}.npy", a.name), FileOptions::DEFAULT)
                    .map_err(|e| io(path)(e.into()))?;
                to_npy(path, a, &mut z)?;
            }
            z.finish().map_err(|e| io(path)(e.into()))?.flush()
        }
        (Format::Npy, [a]) => {
            let mut w = create()?;
            to_npy(path, a, &mut w)?;
            w.flush()
        }
        (Format::Pb, [a]) => {
            let mut w = create()?;
            w.write_all(&proto(a).encode_to_vec()).and_then(|()| w.flush())
        }
        (Format::Picture, _) => return Err(bad(path, "a picture", FORMATS)),
        _ => {
            return Err(bad(
                path,
                format!("{} arrays", arrays.len()),
                "one array; an .npz file holds several",
            ));
        }
    };
    done.map_err(io(path))
}

/// Writes one array.
pub fn write(path: &Path, a: &Array) -> Result<()> {
    write_all(path, &[a])
}

fn to_npy(path: &Path, a: &Array, w: &mut impl Write) -> Result<()> {
    let descr =
        NPY.iter().find(|(_, t)| *t == a.ty).map_or(if a.ty.bits() > 8 { "<u2" } else { "|u1" }, |(d, _)| d);
    let mut descr = descr.to_owned();
    let mut wide = None;
    if let Some(list) = a.to_strings() {
        let points: Vec<Vec<u32>> =
            list.iter().map(|s| String::from_utf8_lossy(s).chars().map(u32::from).collect()).collect();
        let most = points.iter().map(Vec::len).max().unwrap_or(0).max(1);
        descr = format!("<U{most}");
        wide = Some(
            points
                .iter()
                .flat_map(|p| (0..most).flat_map(|i| p.get(i).copied().unwrap_or(0).to_le_bytes()))
                .collect::<Vec<u8>>(),
        );
    }
    let codes = if a.ty.is_packed() {
        crate::tensor::ConstData::new(a.ty, a.dims.clone(), a.data.clone()).and_then(|c| c.codes())
    } else {
        None
    };
    Header { descr, fortran_order: false, shape: a.dims.clone() }.write(w).map_err(io(path))?;
    w.write_all(wide.as_ref().or(codes.as_ref()).unwrap_or(&a.data)).map_err(io(path))
}

fn proto(a: &Array) -> TensorProto {
    let t = TensorProto {
        name: Some(a.name.clone()),
        data_type: Some(a.ty as i32),
        dims: a.dims.clone(),
        ..Default::default()
    };
    match a.to_strings() {
        Some(list) => TensorProto { string_data: list.into_iter().map(|s| s.to_vec().into()).collect(), ..t },
        None => TensorProto { raw_data: Some(a.data.clone().into()), ..t },
    }
}
