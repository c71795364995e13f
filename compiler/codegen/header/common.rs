//! Text of headers that is independent of the model.

use super::STATUS;
use std::fmt::Write;

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

/// Follows the common part if shapes are dynamic.
pub(super) const DIM_HELPERS: &str = r#"
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

/// Follows the common part if there are custom operators.
pub(super) const CUSTOM: &str = include_str!("../custom.h.txt");

/// The part that is byte-identical in every header.
pub(super) fn common() -> String {
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
