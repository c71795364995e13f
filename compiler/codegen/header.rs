//! The C header of a compiled model (abi/README.md, rules 1-13), and the text that the Rust module
//! ([`super::rust`]) shares with it: the status table, names and types.

mod common;
mod manual;

use super::clif::entry::MAX_DIM;
use super::dialect::Dialect;
use super::interface::{DimParam, Interface, Tensor};
use super::meta::ABI_VERSION;
use super::weights_file::{self, HEADER};
use crate::tensor::ElemType;
use common::{CUSTOM, DIM_HELPERS, common};
use std::fmt::Write;

/// Interfaces with more tensors than this are also called with structs.
pub(super) const MANY: usize = 24;

/// A status code: number, name in C, variant in Rust, what `onnxc_status_string` says, what it means.
pub(super) type StatusRow = (i32, &'static str, &'static str, &'static str, &'static str);

/// The status codes but 0, which is "ok".
pub(super) const STATUS: &[StatusRow] = &[
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

/// What a status code says and means.
pub fn status_text(code: i32) -> String {
    STATUS
        .iter()
        .find(|s| s.0 == code)
        .map_or("unknown status".into(), |(_, _, _, text, meaning)| format!("{text}: {meaning}"))
}

/// Text of a model for comments of C and Rust: printable ASCII that neither opens nor ends a comment or a
/// code span.
pub(super) fn plain(text: &str) -> String {
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

/// Bytes as hexadecimal digits.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut s, b| {
        let _ = write!(s, "{b:02x}");
        s
    })
}

/// The element type as people call it.
pub(super) fn type_name(ty: ElemType) -> &'static str {
    match ty {
        ElemType::F32 => "float32",
        ElemType::F64 => "float64",
        t => t.onnx_name(),
    }
}

/// What an element is stored as, in C and in Rust. Packed types are bytes; so are bool and the 8-bit floats.
/// A complex element is a struct in C, an array of two in Rust.
pub(super) fn storage(ty: ElemType) -> (&'static str, &'static str) {
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

/// What the caller passes a pointer to, in C and in Rust.
pub(super) fn element(t: &Tensor) -> (&'static str, &'static str) {
    if t.described.is_some() { ("onnxc_value", "Value") } else { storage(t.ty) }
}

/// `float32 [N, 3]`.
pub(super) fn type_text(i: &Interface, t: &Tensor) -> String {
    if let Some(d) = &t.described {
        return plain(&d.text(type_name(t.ty)));
    }
    let dims: Vec<String> = t.dims.iter().map(|d| d.display(&i.syms).to_string()).collect();
    plain(&format!("{} [{}]", type_name(t.ty), dims.join(", ")))
}

/// The largest legal value of a dim param.
pub(super) fn dim_max(p: &DimParam) -> i64 {
    p.hi.unwrap_or(MAX_DIM)
}

/// Inputs, then outputs, with the word for it.
pub(super) fn tensors(i: &Interface) -> impl Iterator<Item = (&'static str, &Tensor)> {
    i.inputs.iter().map(|t| ("input", t)).chain(i.outputs.iter().map(|t| ("output", t)))
}

/// True if sizes of the tensor follow from the data: the caller gives a capacity and gets the dims.
pub(super) fn from_data(i: &Interface, t: &Tensor) -> bool {
    t.dims
        .iter()
        .any(|d| d.is_overflow() || d.syms().iter().any(|s| i.dim_params.iter().all(|p| p.sym != *s)))
}

/// True if sizes of the tensor follow from the dim params and are not constants.
pub(super) fn from_params(i: &Interface, t: &Tensor) -> bool {
    t.len().is_none() && !from_data(i, t)
}

/// Bytes of workspace where every call needs the same number.
pub(super) fn fixed_workspace(i: &Interface) -> Option<u64> {
    let exact = i.workspace.as_const().and_then(|v| u64::try_from(v).ok());
    exact.or_else(|| if i.dim_params.is_empty() { Some(i.workspace_max.unwrap_or(u64::MAX)) } else { None })
}

/// Bytes of the weights file that a call may read: its head and the blob.
pub(super) fn weights_size(i: &Interface) -> u64 {
    i.weights.size.saturating_add(HEADER)
}

/// Where the weights file tells the object's plan.
pub(super) fn plan_at(i: &Interface) -> usize {
    weights_file::PLANS_AT + weights_file::PLAN * i.weights.slot as usize
}

/// What the names of a tensor's constants begin with: `INPUT`. `x_max` beside `x` gets a `_`, lest
/// `X_MAX_LEN` be the names of two things.
pub(super) fn prefix(i: &Interface, t: &Tensor) -> String {
    let stem = t.ident.strip_suffix("_max");
    let clash = stem.is_some_and(|s| s == "workspace" || tensors(i).any(|(_, o)| o.ident == s));
    format!("{}{}", t.ident.to_ascii_uppercase(), if clash { "_" } else { "" })
}

/// A name for something of ours among the names of the model.
pub(super) fn local(i: &Interface, name: &str) -> String {
    let mut name = name.to_owned();
    while i.dim_params.iter().any(|p| p.ident == name) || tensors(i).any(|(_, t)| t.ident == name) {
        name.push('_');
    }
    name
}

fn c_number(v: i64) -> String {
    if v == i64::MIN { "INT64_MIN".into() } else { v.to_string() }
}

const C: Dialect = Dialect { call: "onnxc_dim_", number: &c_number, param: &|p| p.ident.clone() };

/// Text of the C header.
pub fn header(i: &Interface) -> String {
    let h = Header { i, m: &i.name, macros: i.name.to_ascii_uppercase() };
    let mut o = h.head();
    let _ = writeln!(o, "#ifndef {0}_ONNXC_H\n#define {0}_ONNXC_H\n", h.macros);
    o.push_str(&common());
    if tensors(i).any(|(_, t)| from_params(i, t)) {
        o.push_str(DIM_HELPERS);
    }
    if !i.customs.is_empty() {
        o.push_str(CUSTOM);
    }
    o.push_str("\n#ifdef __cplusplus\nextern \"C\" {\n#endif\n\n");
    h.customs(&mut o);
    h.macros(&mut o);
    h.functions(&mut o);
    o.push_str("\n#ifdef __cplusplus\n} /* extern \"C\" */\n#endif\n");
    let _ = writeln!(o, "#endif /* {}_ONNXC_H */", h.macros);
    o
}

struct Header<'a> {
    i: &'a Interface,
    m: &'a str,
    /// `<M>`.
    macros: String,
}

impl Header<'_> {
    fn head(&self) -> String {
        let i = self.i;
        format!(
            "/* {}.h - generated by {} (ABI {ABI_VERSION}) from {}\n   sha256(model) {}  target {} \
                {}\n   Generated code carries no licence of onnxc; weights keep the licence of the model. \
                */\n",
            self.m,
            plain(&i.producer),
            plain(&i.model_file),
            hex(&i.model_sha256),
            plain(&i.target),
            plain(&i.cpu)
        )
    }
    fn macros(&self, o: &mut String) {
        let (i, u) = (self.i, &self.macros);
        let _ = writeln!(o, "#define {u}_ONNXC_ABI {ABI_VERSION}");
        match fixed_workspace(i) {
            Some(n) => {
                let _ = writeln!(o, "#define {u}_WORKSPACE_SIZE  {n}u\n#define {u}_WORKSPACE_ALIGN 64u");
            }
            None => {
                if let Some(n) = i.workspace_max {
                    let _ = writeln!(
                        o,
                        "#define {u}_WORKSPACE_MAX_SIZE {n}u  /* bound of {}_workspace_size */",
                        self.m
                    );
                }
                let _ = writeln!(o, "#define {u}_WORKSPACE_ALIGN 64u");
            }
        }
        if i.weights.external {
            let _ = writeln!(o, "/* the file {} */", plain(&i.weights.file));
            let _ = writeln!(
                o,
                "#define {u}_WEIGHTS_SIZE   {}u  /* bytes from its beginning that a call may read \
                    */\n#define {u}_WEIGHTS_ALIGN  {}u",
                weights_size(i),
                i.weights.align.max(1)
            );
            let _ = writeln!(
                o,
                "#define {u}_WEIGHTS_PLAN   \"{}\"\n/* 32 bytes of the file at {}: what is computed with \
                    which part of the file. A file with the same plan and other\n   values fits this \
                    object: onnxc weights MODEL --fits {} */",
                hex(&i.weights.plan),
                plan_at(i),
                plain(&i.weights.file)
            );
        }
        o.push('\n');
        for p in &i.dim_params {
            let d = p.ident.to_ascii_uppercase();
            let _ = writeln!(
                o,
                "/* dimension \"{}\" */\n#define {u}_{d}_MIN {}\n#define {u}_{d}_MAX {}",
                plain(&p.name),
                p.lo,
                dim_max(p)
            );
        }
        for (k, (what, t)) in tensors(i).enumerate() {
            self.tensor_macros(o, what, t, k == 0);
        }
        o.push('\n');
    }
    fn tensor_macros(&self, o: &mut String, what: &str, t: &Tensor, first: bool) {
        let p = format!("{}_{}", self.macros, prefix(self.i, t));
        let _ = writeln!(
            o,
            "/* {what} \"{}\" {}{} */",
            plain(&t.name),
            type_text(self.i, t),
            if first { ", row major" } else { "" }
        );
        if t.described.is_some() {
            return;
        }
        let _ = writeln!(o, "#define {p}_RANK {}", t.dims.len());
        let list = |v: &[i64]| v.iter().map(i64::to_string).collect::<Vec<_>>().join(", ");
        let fixed: Option<Vec<i64>> = t.dims.iter().map(|d| d.as_const()).collect();
        let most: Option<Vec<i64>> = t.max_dims.iter().map(|d| d.filter(|d| *d >= 0)).collect();
        let (bound, dims, len) =
            if t.len().is_some() { ("", fixed, t.len()) } else { ("MAX_", most, t.max_len()) };
        if let Some(d) = dims.filter(|d| !d.is_empty()) {
            let _ = writeln!(o, "#define {p}_{bound}DIMS {{{}}}", list(&d));
        }
        let Some((len, size)) = len.and_then(|n| Some((n, t.ty.bytes_for(n)?))) else { return };
        let (len, size) = (format!("{len}u"), format!("{size}u"));
        if first {
            let w = len.len().max(size.len());
            let _ = writeln!(
                o,
                "#define {p}_{bound}LEN  {len:<w$}  /* elements */\n#define {p}_{bound}SIZE {size:<w$}  /* \
                    bytes */"
            );
        } else {
            let _ = writeln!(o, "#define {p}_{bound}LEN  {len}\n#define {p}_{bound}SIZE {size}");
        }
    }
    /// `int64_t n, ` for the dim params.
    fn params(&self) -> Vec<String> {
        self.i.dim_params.iter().map(|p| format!("int64_t {}", p.ident)).collect()
    }
    fn arguments(&self) -> Vec<String> {
        let i = self.i;
        let mut v = self.params();
        for (k, t) in i.inputs.iter().enumerate() {
            let shared = i.outputs.iter().any(|o| o.aliases_input == Some(k as u32));
            v.push(format!(
                "const {} *{}{}",
                element(t).0,
                if shared { "" } else { "ONNXC_RESTRICT " },
                t.ident
            ));
        }
        for t in &i.outputs {
            v.push(format!(
                "{} *{}{}",
                element(t).0,
                if t.aliases_input.is_some() { "" } else { "ONNXC_RESTRICT " },
                t.ident
            ));
        }
        v.extend(
            i.outputs
                .iter()
                .filter(|t| from_data(i, t))
                .map(|t| format!("int64_t *ONNXC_RESTRICT {}", self.out_dims(t))),
        );
        if i.weights.external {
            v.push("const void *ONNXC_RESTRICT weights".into());
        }
        v.push("void *ONNXC_RESTRICT workspace".into());
        v
    }
    fn out_dims(&self, t: &Tensor) -> String {
        local(self.i, &format!("{}_dims", t.ident))
    }
    fn prototype(&self, o: &mut String, name: &str, args: &[String]) {
        let head = format!("ONNXC_NODISCARD int32_t {}_{name}(", self.m);
        let _ = writeln!(o, "{head}{});", args.join(&format!(",\n{:1$}", "", head.len())));
    }
    fn functions(&self, o: &mut String) {
        let (i, m) = (self.i, self.m);
        for (_, t) in tensors(i).filter(|(_, t)| from_params(i, t)) {
            self.sizes(o, t);
        }
        if !i.dim_params.is_empty() {
            let bytes = local(i, "bytes");
            let _ = writeln!(
                o,
                "/* Bytes of workspace that {m}_infer needs for these dims. Returns ONNXC_OK, ONNXC_E_DIM \
                    or ONNXC_E_NULL. */"
            );
            let mut args = self.params();
            args.push(format!("uint64_t *{bytes}"));
            let _ = writeln!(o, "ONNXC_NODISCARD int32_t {m}_workspace_size({});\n", args.join(", "));
        }
        if i.weights.external {
            self.weights_check(o);
        }
        self.manual(o);
        let mut args = self.arguments();
        self.prototype(o, "infer", &args);
        let trace = if i.trace { " and a callback around each node, which may stop it" } else { "" };
        let _ = writeln!(
            o,
            "/* same, with the application's own thread pool{trace}; it tells which check failed */"
        );
        args.push("const onnxc_exec *exec".into());
        self.prototype(o, "infer_exec", &args);
        if i.inputs.len() + i.outputs.len() > MANY {
            self.structs(o);
        }
        let _ = writeln!(o, "extern const onnxc_model {m}_model;");
    }
    /// The functions of custom operators, which the application has.
    fn customs(&self, o: &mut String) {
        for (symbol, ops) in &self.i.customs {
            let _ = writeln!(
                o,
                "/* Computes {}; you link it. Called by {}_infer, on its thread. 0: done. An ONNXC_E_ code \
                    ends the call with it,\n   anything else with ONNXC_E_VALUE; the fault names the node. \
                    */\nint32_t {symbol}(const onnxc_custom *call);\n",
                plain(&ops.join(", ")),
                self.m
            );
        }
    }
    /// `<m>_weights_check`: what a call cannot check, since it does not know how long the file is.
    fn weights_check(&self, o: &mut String) {
        let (i, m, u) = (self.i, self.m, &self.macros);
        let bytes = |b: &[u8]| b.iter().map(u8::to_string).collect::<Vec<_>>().join(", ");
        let _ = writeln!(
            o,
            "/* ONNXC_OK if these are the bytes of a whole weights file for this object. {m}_infer looks at \
                the head only: check a file that\n   may be cut short or another one before the first call. \
                */"
        );
        let _ = writeln!(
            o,
            "static inline int32_t {m}_weights_check(const void *weights, uint64_t bytes) {{\n  static \
                const unsigned char head[] = {{{}}};\n  static const unsigned char plan[] = {{{}}};",
            bytes(&weights_file::signature()),
            bytes(&i.weights.plan)
        );
        let _ = writeln!(
            o,
            "  const unsigned char *at = (const unsigned char *)weights;\n  size_t k;\n  if (!at) return \
                ONNXC_E_NULL;\n  if ((uintptr_t)at % {u}_WEIGHTS_ALIGN) return ONNXC_E_ALIGN;\n  if (bytes \
                < {u}_WEIGHTS_SIZE) return ONNXC_E_WEIGHTS;"
        );
        for (name, at) in [("head", 0), ("plan", plan_at(i))] {
            let _ = writeln!(
                o,
                "  for (k = 0; k < sizeof {name}; k++)\n    if (at[{at} + k] != {name}[k]) return \
                    ONNXC_E_WEIGHTS;"
            );
        }
        o.push_str("  return ONNXC_OK;\n}\n");
    }
    /// `<m>_<t>_dims`, `_len` and `_size` of a tensor whose sizes follow from the dim params.
    fn sizes(&self, o: &mut String, t: &Tensor) {
        let (i, m, x) = (self.i, self.m, &t.ident);
        let (params, dims, len) = (self.params().join(", "), local(i, "dims"), local(i, "len"));
        let given = i.dim_params.iter().map(|p| p.ident.clone()).collect::<Vec<_>>().join(", ");
        let rank = t.dims.len();
        let outside: Vec<String> = i
            .dim_params
            .iter()
            .map(|p| format!("{0} < {1} || {0} > {2}", p.ident, c_number(p.lo), dim_max(p)))
            .collect();
        let _ = writeln!(
            o,
            "/* Dims of \"{}\" (rank {rank}), its elements, its bytes; ONNXC_E_DIM and -1 where they would \
                be none. */",
            plain(&t.name)
        );
        let _ = writeln!(o, "static inline int32_t {m}_{x}_dims({params}, int64_t *{dims}) {{");
        let _ = writeln!(o, "  if ({}) return ONNXC_E_DIM;", outside.join(" || "));
        for (k, d) in t.dims.iter().enumerate() {
            let _ = writeln!(o, "  {dims}[{k}] = {};", C.dim(i, *d));
        }
        let negative: Vec<String> = (0..rank)
            .filter(|k| t.dims[*k].as_const().is_none())
            .map(|k| format!("{dims}[{k}] < 0"))
            .collect();
        let _ = writeln!(o, "  return {} ? ONNXC_E_DIM : ONNXC_OK;\n}}", negative.join(" || "));
        let product = C.fold("mul", (0..rank).map(|k| format!("{dims}[{k}]")));
        let _ = writeln!(
            o,
            "static inline int64_t {m}_{x}_len({params}) {{\n  int64_t {dims}[{rank}], {len};\n  if \
                ({m}_{x}_dims({given}, {dims}) != ONNXC_OK) return -1;"
        );
        let _ = writeln!(o, "  {len} = {product};\n  return {len} < 0 ? -1 : {len};\n}}");
        let bytes = match t.ty.bytes() {
            Some(n) => C.fold("mul", [len.clone(), n.to_string()]),
            None => format!("onnxc_dim_floordiv(onnxc_dim_add(onnxc_dim_mul({len}, {}), 7), 8)", t.ty.bits()),
        };
        let _ = writeln!(
            o,
            "static inline int64_t {m}_{x}_size({params}) {{\n  const int64_t {len} = {m}_{x}_len({given});"
        );
        let _ = writeln!(
            o,
            "  const int64_t {0} = {len} < 0 ? -1 : {bytes};\n  return {0} < 0 ? -1 : {0};\n}}\n",
            local(i, "size")
        );
    }
    /// Structs of inputs and outputs, and `infer_io`.
    fn structs(&self, o: &mut String) {
        let (i, m) = (self.i, self.m);
        o.push_str("/* same, with the tensors in structs; exec may be NULL */\n");
        let (x, y) = (local(i, "inputs"), local(i, "outputs"));
        let members = |o: &mut String, name: &str, v: Vec<String>| {
            let body: String = if v.is_empty() {
                "  int unused;\n".into()
            } else {
                v.iter().map(|m| format!("  {m};\n")).collect()
            };
            let _ = writeln!(o, "typedef struct {m}_{name} {{\n{body}}} {m}_{name};");
        };
        members(
            o,
            "inputs",
            i.inputs.iter().map(|t| format!("const {} *{}", element(t).0, t.ident)).collect(),
        );
        let sized: Vec<&Tensor> = i.outputs.iter().filter(|t| from_data(i, t)).collect();
        let outputs = i.outputs.iter().map(|t| format!("{} *{}", element(t).0, t.ident));
        members(
            o,
            "outputs",
            outputs.chain(sized.iter().map(|t| format!("int64_t *{}", self.out_dims(t)))).collect(),
        );
        let mut params = self.params();
        params.push(format!("const {m}_inputs *{x}"));
        params.push(format!("const {m}_outputs *{y}"));
        let mut given: Vec<String> = i.dim_params.iter().map(|p| p.ident.clone()).collect();
        given.extend(i.inputs.iter().map(|t| format!("{x}->{}", t.ident)));
        given.extend(i.outputs.iter().map(|t| format!("{y}->{}", t.ident)));
        given.extend(sized.iter().map(|t| format!("{y}->{}", self.out_dims(t))));
        if i.weights.external {
            params.push("const void *weights".into());
            given.push("weights".into());
        }
        params.extend(["void *workspace".into(), "const onnxc_exec *exec".into()]);
        given.extend(["workspace".into(), "exec".into()]);
        let head = format!("ONNXC_NODISCARD static inline int32_t {m}_infer_io(");
        let _ = writeln!(o, "{head}{}) {{", params.join(&format!(",\n{:1$}", "", head.len())));
        let _ = writeln!(
            o,
            "  if (!{x} || !{y}) return ONNXC_E_NULL;\n  return {m}_infer_exec({});\n}}",
            given.join(",\n    ")
        );
    }
}
