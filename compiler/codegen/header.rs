//! The C header of a compiled model (abi/README.md, rules 1-13), and the text that the Rust module
//! ([`super::rust`]) shares with it: the status table, names and types.

use super::clif::entry::MAX_DIM;
use super::interface::{DimParam, Interface, Tensor};
use super::meta::ABI_VERSION;
use super::rust::Dialect;
use super::weights_file::{self, HEADER};
use crate::tensor::ElemType;
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

const COMMON_BEGIN: &str = r#"/* ---- onnxc common part, ABI 1: byte-identical in every generated header ---- */
#ifndef ONNXC_ABI_1_INCLUDED
#define ONNXC_ABI_1_INCLUDED
#include <stddef.h>
#include <stdint.h>
#if defined(__cplusplus) || defined(_MSC_VER) && !defined(__clang__)
#define ONNXC_RESTRICT __restrict
#elif defined(__STDC_VERSION__) && __STDC_VERSION__ >= 199901L
#define ONNXC_RESTRICT restrict
#else
#define ONNXC_RESTRICT
#endif
#if defined(_MSC_VER) && !defined(__clang__)
#define ONNXC_ALIGNAS(n) __declspec(align(n))   /* not C++ alignas: that may not stand after "static" */
#else
#define ONNXC_ALIGNAS(n) __attribute__((aligned(n)))
#endif
#if defined(__GNUC__) || defined(__clang__)
#define ONNXC_NODISCARD __attribute__((warn_unused_result))
#else
#define ONNXC_NODISCARD
#endif
"#;

const COMMON_TYPES: &str = r#"/* numbers are ONNX TensorProto.DataType */
enum { ONNXC_F32 = 1, ONNXC_U8 = 2, ONNXC_I8 = 3, ONNXC_U16 = 4, ONNXC_I16 = 5, ONNXC_I32 = 6, ONNXC_I64 = 7,
       ONNXC_STR = 8, ONNXC_BOOL = 9, ONNXC_F16 = 10, ONNXC_F64 = 11, ONNXC_U32 = 12, ONNXC_U64 = 13, ONNXC_C64 = 14, ONNXC_C128 = 15,
       ONNXC_BF16 = 16 };
/* as C's complex types and std::complex lie in memory */
typedef struct onnxc_complex64 { float re, im; } onnxc_complex64;
typedef struct onnxc_complex128 { double re, im; } onnxc_complex128;
typedef struct onnxc_str {     /* an element of a tensor of strings, 16 bytes */
  const char *data;            /* UTF-8, not ended by NUL; anything where len is 0 */
#if UINTPTR_MAX == 0xffffffffu
  uint32_t padding;
#endif
  int64_t len;                 /* bytes, not negative */
} onnxc_str;
typedef struct onnxc_tensor_info {
  const char *name;            /* the exact ONNX name, UTF-8 */
  const int64_t *dims;         /* rank entries; -1 - k refers to dim parameter k */
  const int64_t *max_dims;     /* rank entries; upper bounds, equal to dims where static */
  uint64_t max_bytes;
  int32_t dtype, rank;
  int32_t aliases_input;       /* outputs: index of the input it may share memory with, or -1 */
  int32_t kind;                /* 0: an array. Else an onnxc_value: ONNXC_TENSOR, _SEQUENCE, _MAP or ONNXC_MAPS, plus
                                  ONNXC_OPTIONAL if it may be absent, plus 256 times the dtype of keys; dtype is that of elements */
} onnxc_tensor_info;
/* What is no single tensor: sequences, optionals, maps. The caller fills those it passes, with arrays of its own that stay
   as they are during the call. Those it gets are filled by the call; dims, data, keys and items point into the workspace and
   are valid until its next use. */
enum { ONNXC_NONE = 0, ONNXC_TENSOR = 1, ONNXC_SEQUENCE = 2, ONNXC_MAP = 3, ONNXC_MAPS = 4, ONNXC_OPTIONAL = 16 };
typedef struct onnxc_value {
  int32_t kind;                /* ONNXC_NONE (an optional without an element), ONNXC_TENSOR, ONNXC_SEQUENCE or ONNXC_MAP */
  int32_t dtype;               /* of a tensor's elements, of a map's values */
  int32_t key_dtype;           /* of a map's keys */
  int32_t rank;                /* of a tensor */
  int64_t len;                 /* a sequence's items, a map's entries; of a tensor that is passed it is not read */
  const int64_t *dims;         /* a tensor's, rank of them */
  const void *data;            /* a tensor's elements, a map's values */
  const void *keys;            /* a map's keys */
  const struct onnxc_value *items; /* a sequence's items */
} onnxc_value;
static inline onnxc_value onnxc_tensor(int32_t dtype, int32_t rank, const int64_t *dims, const void *data) {
  onnxc_value v = {ONNXC_TENSOR, 0, 0, 0, 0, NULL, NULL, NULL, NULL};
  v.dtype = dtype; v.rank = rank; v.dims = dims; v.data = data;
  return v;
}
static inline onnxc_value onnxc_sequence(int64_t len, const onnxc_value *items) {
  onnxc_value v = {ONNXC_SEQUENCE, 0, 0, 0, 0, NULL, NULL, NULL, NULL};
  v.len = len; v.items = items;
  return v;
}
static inline onnxc_value onnxc_map(int32_t key_dtype, int32_t dtype, int64_t len, const void *keys, const void *values) {
  onnxc_value v = {ONNXC_MAP, 0, 0, 0, 0, NULL, NULL, NULL, NULL};
  v.dtype = dtype; v.key_dtype = key_dtype; v.len = len; v.data = values; v.keys = keys;
  return v;
}
typedef struct onnxc_node_info {
  const char *name, *op_type;
  uint32_t first_tap;          /* index of the output that is its first result (--tap makes outputs); UINT32_MAX for none */
  uint32_t reserved;
} onnxc_node_info;
typedef void (*onnxc_task_fn)(void *task_ctx, size_t index);
#define ONNXC_VALUES 4
typedef struct onnxc_check_info { /* a check that a call makes */
  const char *node, *op_type;  /* "" where the call itself is at fault */
  const char *text;            /* a sentence, %lld for each value in order and %% for %; "": see the status */
  const char *tensors[ONNXC_VALUES]; /* what each value is of: a tensor, NULL for anything else */
  int32_t dims[ONNXC_VALUES];  /* which dimension of that tensor; -1 for none */
  int32_t status;              /* what the call returns; 0: see the fault */
  uint32_t n_values;
} onnxc_check_info;
typedef struct onnxc_fault {   /* filled by a call that fails; one that succeeds leaves it alone */
  uint32_t check;              /* index into checks of <m>_model */
  int32_t status;              /* what the call returned */
  int64_t values[ONNXC_VALUES];
  uint64_t workspace_size;     /* where the call ran out of workspace: bytes that would have been enough up to there; else 0 */
} onnxc_fault;
typedef struct onnxc_exec {    /* everything optional; NULL means serial, silent */
  size_t struct_size;          /* = sizeof(onnxc_exec) of the caller */
  void *user;
  void (*parallel_for)(void *user, size_t n, onnxc_task_fn fn, void *task_ctx); /* must return after all n ran */
  size_t max_tasks;            /* upper bound on n; 0 = let the model choose */
  int32_t (*on_node)(void *user, uint32_t node, int32_t end); /* only in objects built with --trace: before (end = 0) and after
                                  (end = 1) each kernel, node being the index in nodes of <m>_model of the node that it computes
                                  (of fused ones the last); not 0 stops the call with ONNXC_E_CANCELLED */
  uint64_t workspace_size;     /* bytes at workspace; 0: as many as <m>_workspace_size tells. What the model does not need for
                                  other things holds values whose size follows from data */
  onnxc_fault *fault;          /* which check failed */
} onnxc_exec;
typedef struct onnxc_model {
  uint32_t abi_version, struct_size;
  const char *name, *producer, *target, *cpu_features;
  uint8_t model_sha256[32];
  uint64_t workspace_size, workspace_align, weights_size, weights_align;
  const onnxc_tensor_info *inputs, *outputs;
  const char *const *dim_params;
  const onnxc_node_info *nodes;
  uint32_t n_inputs, n_outputs, n_dim_params, n_nodes;
  int32_t (*workspace_for)(const int64_t *dim_params, uint64_t *bytes);
  int32_t (*call)(const void *const *inputs, void *const *outputs, const int64_t *dim_params,
                  int64_t *const *out_dims, const void *weights, void *workspace, const onnxc_exec *exec);
  const onnxc_check_info *checks;
  uint32_t n_checks, reserved;
} onnxc_model;
static inline const char *onnxc_status_string(int32_t s) {
  switch (s) {
"#;

const COMMON_END: &str = r#"  default: return "unknown status";
  }
}
static inline size_t onnxc_fault_put(char *buffer, size_t size, size_t at, const char *s) {
  for (; *s; s++, at++)
    if (at < size) buffer[at] = *s;
  return at;
}
/* Why a call failed, such as: Add "sum": input "x" dimension 1 (K) is 5, input "y" dimension 0 (M) is 6: they must be equal.
   Writes at most size bytes, the last of them 0; returns the length of the whole text. */
static inline size_t onnxc_fault_string(const onnxc_model *model, const onnxc_fault *fault, char *buffer, size_t size) {
  const onnxc_check_info *check = NULL;
  const char *s = "";
  char part[24];
  size_t at = 0;
  uint32_t k = 0;
  if (model->struct_size >= sizeof(onnxc_model) && fault->check < model->n_checks) check = &model->checks[fault->check];
  if (check) {
    at = onnxc_fault_put(buffer, size, at, check->op_type);
    if (check->node[0]) {
      at = onnxc_fault_put(buffer, size, at, at ? " \"" : "\"");
      at = onnxc_fault_put(buffer, size, at, check->node);
      at = onnxc_fault_put(buffer, size, at, "\"");
    }
    if (at) at = onnxc_fault_put(buffer, size, at, ": ");
    s = check->text;
  }
  if (!s[0]) s = onnxc_status_string(fault->status);
  while (*s) {
    if (s[0] == '%' && s[1] == 'l' && s[2] == 'l' && s[3] == 'd') {
      const int64_t v = k < ONNXC_VALUES ? fault->values[k] : 0;
      uint64_t u = v < 0 ? (uint64_t)0 - (uint64_t)v : (uint64_t)v;
      size_t n = sizeof part;
      part[--n] = 0;
      do {
        part[--n] = (char)('0' + (int)(u % 10));
        u /= 10;
      } while (u);
      if (v < 0) part[--n] = '-';
      at = onnxc_fault_put(buffer, size, at, part + n);
      k++;
      s += 4;
    } else {
      if (s[0] == '%' && s[1] == '%') s++;
      part[0] = *s++;
      part[1] = 0;
      at = onnxc_fault_put(buffer, size, at, part);
    }
  }
  if (size) buffer[at < size ? at : size - 1] = 0;
  return at;
}
#endif /* ONNXC_ABI_1_INCLUDED */
"#;

/// Stands after the common part where shapes are dynamic.
const DIM_HELPERS: &str = r#"
/* ---- exact arithmetic on sizes; INT64_MIN is no value: overflow, division by zero, or made from no value ---- */
#ifndef ONNXC_DIM_1_INCLUDED
#define ONNXC_DIM_1_INCLUDED
static inline int64_t onnxc_dim_add(int64_t a, int64_t b) {
  if (a == INT64_MIN || b == INT64_MIN) return INT64_MIN;
  if (b > 0 ? a > INT64_MAX - b : a < -INT64_MAX - b) return INT64_MIN;
  return a + b;
}
static inline int64_t onnxc_dim_mul(int64_t a, int64_t b) {
  if (a == INT64_MIN || b == INT64_MIN) return INT64_MIN;
  if (a == 0 || b == 0) return 0;
  if ((a < 0 ? -a : a) > INT64_MAX / (b < 0 ? -b : b)) return INT64_MIN;
  return a * b;
}
static inline int64_t onnxc_dim_floordiv(int64_t a, int64_t b) {
  if (a == INT64_MIN || b == INT64_MIN || b == 0) return INT64_MIN;
  return a / b - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0);
}
static inline int64_t onnxc_dim_floormod(int64_t a, int64_t b) {
  if (a == INT64_MIN || b == INT64_MIN || b == 0) return INT64_MIN;
  return a % b + (a % b != 0 && (a < 0) != (b < 0) ? b : 0);
}
static inline int64_t onnxc_dim_min(int64_t a, int64_t b) {
  return a < b ? a : b; /* no value is the smallest number */
}
static inline int64_t onnxc_dim_max(int64_t a, int64_t b) {
  if (a == INT64_MIN || b == INT64_MIN) return INT64_MIN;
  return a > b ? a : b;
}
#endif /* ONNXC_DIM_1_INCLUDED */
"#;

/// Stands after the common part where there are custom operators.
const CUSTOM: &str = include_str!("custom.h.txt");

/// The part that is byte-identical in every header.
fn common() -> String {
    let mut o = String::from(COMMON_BEGIN);
    o.push_str("enum {\n  ONNXC_OK = 0,\n");
    for (k, (n, name, _, _, doc)) in STATUS.iter().enumerate() {
        let entry = format!("  ONNXC_E_{name} = {n}{}", if k + 1 < STATUS.len() { "," } else { "" });
        let _ = writeln!(o, "{entry:<26}/* {doc} */");
    }
    o.push_str("};\n");
    o.push_str(COMMON_TYPES);
    o.push_str("  case ONNXC_OK: return \"ok\";\n");
    for (_, name, _, text, _) in STATUS {
        let _ = writeln!(o, "  case ONNXC_E_{name}: return \"{text}\";");
    }
    o.push_str(COMMON_END);
    o
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
            "/* {}.h - generated by {} (ABI {ABI_VERSION}) from {}\n   sha256(model) {}  target {} {}\n   Generated code carries no licence of onnxc; weights keep the licence of the model. */\n",
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
                "#define {u}_WEIGHTS_SIZE   {}u  /* bytes from its beginning that a call may read */\n#define {u}_WEIGHTS_ALIGN  {}u",
                weights_size(i),
                i.weights.align.max(1)
            );
            let _ = writeln!(
                o,
                "#define {u}_WEIGHTS_PLAN   \"{}\"\n/* 32 bytes of the file at {}: what is computed with which part of the file. A file with the same plan and other\n   values fits this object: onnxc weights MODEL --fits {} */",
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
                "#define {p}_{bound}LEN  {len:<w$}  /* elements */\n#define {p}_{bound}SIZE {size:<w$}  /* bytes */"
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
                "/* Bytes of workspace that {m}_infer needs for these dims. Returns ONNXC_OK, ONNXC_E_DIM or ONNXC_E_NULL. */"
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
                "/* Computes {}; you link it. Called by {}_infer, on its thread. 0: done. An ONNXC_E_ code ends the call with it,\n   anything else with ONNXC_E_VALUE; the fault names the node. */\nint32_t {symbol}(const onnxc_custom *call);\n",
                plain(&ops.join(", ")),
                self.m
            );
        }
    }
    /// The comment before `infer`.
    fn manual(&self, o: &mut String) {
        let (i, u) = (self.i, &self.macros);
        o.push_str("/* Runs the model once. Re-entrant: touches only its arguments and read-only data; no allocation, no locks,\n   no errno, no FPU-mode change. Any thread may call it at any time with its own workspace.\n");
        if i.asks_cpu {
            let levels = if i.cpu.contains(',') { "levels" } else { "level" };
            let _ = writeln!(
                o,
                "   The object has code for the CPU {levels} {}. What this machine has is found out once and kept\n   in four bytes of the object, its only writable data: every thread writes the same value.",
                i.cpu.replace(',', ", ")
            );
        }
        if i.refuses_cpu {
            let _ = writeln!(
                o,
                "   ONNXC_E_CPU: the machine lacks instructions of the {} level.",
                if i.cpu.contains(',') { "first" } else { "only" }
            );
        }
        for p in &i.dim_params {
            let _ =
                writeln!(o, "   {}: dimension \"{}\", {} to {}.", p.ident, plain(&p.name), p.lo, dim_max(p));
        }
        let one = |v: &[Tensor]| if let [t] = v { Some(t.ident.clone()) } else { None };
        let _ = match (one(&i.inputs), one(&i.outputs)) {
            (Some(x), Some(y)) if i.outputs[0].aliases_input.is_none() => {
                writeln!(o, "   {x}, {y}: element alignment only; {y} must not overlap {x} or workspace.")
            }
            _ => writeln!(
                o,
                "   Inputs and outputs: element alignment only; an output must not overlap an input, another output or workspace."
            ),
        };
        for t in &i.outputs {
            if let Some(x) = t.aliases_input.and_then(|k| i.inputs.get(k as usize)) {
                let _ = writeln!(
                    o,
                    "   {0} may be the same memory as {1}: then what {1} holds stays, and only what is new is stored.",
                    t.ident, x.ident
                );
            }
            if let Some(d) = &t.described {
                let _ = writeln!(
                    o,
                    "   {}: filled by the call, {}; what it points to is valid until the next use of workspace.",
                    t.ident,
                    plain(&d.text(type_name(t.ty)))
                );
            }
            if from_data(i, t) {
                let _ = writeln!(
                    o,
                    "   {0}: {1} entries; in: the dims that {2} has room for; out: its dims, also with ONNXC_E_CAPACITY.",
                    self.out_dims(t),
                    t.dims.len(),
                    t.ident
                );
            }
        }
        if i.outputs.iter().any(|t| t.ty == ElemType::Str) {
            o.push_str("   Strings of outputs lie in the memory of inputs, of weights, or in workspace: copy what must outlive these.\n");
        }
        for name in &i.foreign {
            let _ = writeln!(
                o,
                "   Calls {name}, which you link: onnxc_runtime.h tells what it does, the library onnxc-runtime has it."
            );
        }
        if i.weights.external {
            let _ = writeln!(
                o,
                "   weights: the contents of {}, at least {u}_WEIGHTS_SIZE bytes aligned to {u}_WEIGHTS_ALIGN, such as a mapping; only read.",
                plain(&i.weights.file)
            );
        }
        let size = if fixed_workspace(i).is_some() {
            format!("{u}_WORKSPACE_SIZE bytes")
        } else {
            format!("as many bytes as {}_workspace_size tells,", self.m)
        };
        if i.heap > 0 {
            let _ = writeln!(
                o,
                "   {} bytes of these hold values whose size follows from data. {m}_infer_exec takes another size: less will do where it is\n   enough, and on ONNXC_E_CAPACITY the fault tells a workspace_size to call again with.",
                i.heap,
                m = self.m
            );
        }
        let _ = writeln!(
            o,
            "   workspace: {size} aligned to {u}_WORKSPACE_ALIGN; contents in and out undefined.\n   Returns ONNXC_OK or a positive ONNXC_E_ code; on error the outputs are unspecified. */"
        );
    }
    /// `<m>_weights_check`: what a call cannot check, since it does not know how long the file is.
    fn weights_check(&self, o: &mut String) {
        let (i, m, u) = (self.i, self.m, &self.macros);
        let bytes = |b: &[u8]| b.iter().map(u8::to_string).collect::<Vec<_>>().join(", ");
        let _ = writeln!(
            o,
            "/* ONNXC_OK if these are the bytes of a whole weights file for this object. {m}_infer looks at the head only: check a file that\n   may be cut short or another one before the first call. */"
        );
        let _ = writeln!(
            o,
            "static inline int32_t {m}_weights_check(const void *weights, uint64_t bytes) {{\n  static const unsigned char head[] = {{{}}};\n  static const unsigned char plan[] = {{{}}};",
            bytes(&weights_file::signature()),
            bytes(&i.weights.plan)
        );
        let _ = writeln!(
            o,
            "  const unsigned char *at = (const unsigned char *)weights;\n  size_t k;\n  if (!at) return ONNXC_E_NULL;\n  if ((uintptr_t)at % {u}_WEIGHTS_ALIGN) return ONNXC_E_ALIGN;\n  if (bytes < {u}_WEIGHTS_SIZE) return ONNXC_E_WEIGHTS;"
        );
        for (name, at) in [("head", 0), ("plan", plan_at(i))] {
            let _ = writeln!(
                o,
                "  for (k = 0; k < sizeof {name}; k++)\n    if (at[{at} + k] != {name}[k]) return ONNXC_E_WEIGHTS;"
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
            "/* Dims of \"{}\" (rank {rank}), its elements, its bytes; ONNXC_E_DIM and -1 where they would be none. */",
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
            "static inline int64_t {m}_{x}_len({params}) {{\n  int64_t {dims}[{rank}], {len};\n  if ({m}_{x}_dims({given}, {dims}) != ONNXC_OK) return -1;"
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
