//! Parts shared by the headers and modules of all languages: the status table, names, types.

use crate::codegen::clif::entry::MAX_DIM;
use crate::codegen::interface::{DimParam, Interface, Tensor};
use crate::codegen::weights_file::{self, HEADER};
use crate::tensor::ElemType;
use std::fmt::Write;

/// A status code: number, name in C, variant in Rust, text of `onnxc_status_string`, meaning.
pub(in crate::codegen) type StatusRow = (i32, &'static str, &'static str, &'static str, &'static str);

/// The status codes except 0, which is "ok".
pub(in crate::codegen) const STATUS: &[StatusRow] = &[
    (1, "NULL", "Null", "null pointer", "a required pointer is NULL"),
    (2, "ALIGN", "Align", "bad alignment", "workspace or weights not aligned as declared"),
    (3, "DIM", "Dim", "bad dimension", "a dimension is negative, above its bound, or inconsistent"),
    (4, "CAPACITY", "Capacity", "buffer too small", "an output or the workspace is too small"),
    (5, "INDEX", "Index", "index out of range", "Gather/Scatter/Slice index out of range"),
    (6, "VALUE", "Value", "bad value", "integer division by zero, bad runtime shape value"),
    (7, "WEIGHTS", "Weights", "weights do not match", "weights blob does not match the model"),
    (8, "CANCELLED", "Cancelled", "cancelled", "a callback asked to stop"),
    (9, "ABI", "Abi", "abi mismatch", "struct_size / version mismatch"),
    (10, "CPU", "Cpu", "unsupported cpu", "the CPU lacks instructions that the code needs"),
];

/// Text and meaning of a status code.
pub fn status_text(code: i32) -> String {
    STATUS
        .iter()
        .find(|s| s.0 == code)
        .map_or("unknown status".into(), |(_, _, _, text, meaning)| format!("{text}: {meaning}"))
}

/// A text of the model for comments in C and Rust: printable ASCII that neither begins nor ends a comment or
/// a code span.
pub(in crate::codegen) fn plain(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '`' => out.push('\''),
            '/' if out.ends_with('*') => out.push_str("\\/"),
            '*' if out.ends_with('/') => out.push_str("\\*"),
            ' '..='~' => out.push(c),
            _ => out.extend(c.escape_default()),
        }
    }
    out
}

/// Hexadecimal digits of bytes.
pub(in crate::codegen) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut s, b| {
        let _ = write!(s, "{b:02x}");
        s
    })
}

/// The common name of an element type.
pub(in crate::codegen) fn type_name(ty: ElemType) -> &'static str {
    match ty {
        ElemType::F32 => "float32",
        ElemType::F64 => "float64",
        t => t.onnx_name(),
    }
}

/// The storage type of an element in C and in Rust. Packed types are bytes; so are bool and the 8-bit floats.
/// A complex element is a struct in C, an array of two in Rust.
pub(in crate::codegen) fn storage(ty: ElemType) -> (&'static str, &'static str) {
    use ElemType::*;
    match ty {
        F32 => ("float", "f32"),
        F64 => ("double", "f64"),
        I8 => ("int8_t", "i8"),
        I16 => ("int16_t", "i16"),
        I32 => ("int32_t", "i32"),
        I64 => ("int64_t", "i64"),
        U16 | F16 | BF16 => ("uint16_t", "u16"),
        U32 => ("uint32_t", "u32"),
        U64 => ("uint64_t", "u64"),
        C64 => ("onnxc_complex64", "[f32; 2]"),
        C128 => ("onnxc_complex128", "[f64; 2]"),
        Str => ("onnxc_str", "Str<'_>"),
        U8 | Bool | F8E4M3FN | F8E4M3FNUZ | F8E5M2 | F8E5M2FNUZ | F8E8M0 | F6E2M3 | F6E3M2 | U4 | I4
        | F4E2M1 | U2 | I2 => ("uint8_t", "u8"),
    }
}

/// The type of the elements that the caller's pointer refers to, in C and in Rust.
pub(in crate::codegen) fn element(t: &Tensor) -> (&'static str, &'static str) {
    if t.described.is_some() { ("onnxc_value", "Value") } else { storage(t.ty) }
}

/// `float32 [N, 3]`.
pub(in crate::codegen) fn type_text(i: &Interface, t: &Tensor) -> String {
    if let Some(d) = &t.described {
        return plain(&d.text(type_name(t.ty)));
    }
    let dims: Vec<String> = t.dims.iter().map(|d| d.display(&i.syms).to_string()).collect();
    plain(&format!("{} [{}]", type_name(t.ty), dims.join(", ")))
}

/// The largest legal value of a dim param.
pub(in crate::codegen) fn dim_max(p: &DimParam) -> i64 {
    p.hi.unwrap_or(MAX_DIM)
}

/// Inputs, then outputs, each with the word "input" or "output".
pub(in crate::codegen) fn tensors(i: &Interface) -> impl Iterator<Item = (&'static str, &Tensor)> {
    i.inputs.iter().map(|t| ("input", t)).chain(i.outputs.iter().map(|t| ("output", t)))
}

/// True if sizes of the tensor depend on data: the caller gives a capacity and gets the dims.
pub(in crate::codegen) fn from_data(i: &Interface, t: &Tensor) -> bool {
    t.dims
        .iter()
        .any(|d| d.is_overflow() || d.syms().iter().any(|s| i.dim_params.iter().all(|p| p.sym != *s)))
}

/// True if sizes of the tensor depend on the dim params and are not constant.
pub(in crate::codegen) fn from_params(i: &Interface, t: &Tensor) -> bool {
    t.len().is_none() && !from_data(i, t)
}

/// Bytes of workspace if the size is the same for all calls.
pub(in crate::codegen) fn fixed_workspace(i: &Interface) -> Option<u64> {
    let exact = i.workspace.as_const().and_then(|v| u64::try_from(v).ok());
    exact.or_else(|| if i.dim_params.is_empty() { Some(i.workspace_max.unwrap_or(u64::MAX)) } else { None })
}

/// Bytes of the weights file that a call may read: its header and the blob.
pub(in crate::codegen) fn weights_size(i: &Interface) -> u64 {
    i.weights.size.saturating_add(HEADER)
}

/// Offset of the object's plan in the weights file.
pub(in crate::codegen) fn plan_at(i: &Interface) -> usize {
    weights_file::PLANS_AT + weights_file::PLAN * i.weights.slot as usize
}

/// Prefix of the names of a tensor's constants: `INPUT`. If there are `x_max` and `x`, the former gets a `_`,
/// so that `X_MAX_LEN` is not ambiguous.
pub(in crate::codegen) fn prefix(i: &Interface, t: &Tensor) -> String {
    let stem = t.ident.strip_suffix("_max");
    let clash = stem.is_some_and(|s| s == "workspace" || tensors(i).any(|(_, o)| o.ident == s));
    format!("{}{}", t.ident.to_ascii_uppercase(), if clash { "_" } else { "" })
}

/// A generated name that differs from the names of the model.
pub(in crate::codegen) fn local(i: &Interface, name: &str) -> String {
    let mut name = name.to_owned();
    while i.dim_params.iter().any(|p| p.ident == name) || tensors(i).any(|(_, t)| t.ident == name) {
        name.push('_');
    }
    name
}
