//! The C ABI of generated code (ABI 1), field by field as in the common part of every generated header. The C
//! names are kept so that header and mirror can be compared line by line.

#![allow(unsafe_code, reason = "types of foreign data and functions")]
#![allow(non_camel_case_types, reason = "the names of the C header")]

use std::ffi::{c_char, c_void};
use std::fmt;

/// The version that this crate implements.
pub const ABI_VERSION: u32 = 1;
/// An output dim that is an expression of dim params, or data-dependent.
pub const DIM_COMPUTED: i64 = i64::MIN;

/// `fn(task_ctx, index)`.
pub type onnxc_task_fn = unsafe extern "C" fn(task_ctx: *mut c_void, index: usize);
/// `parallel_for(user, n, fn, task_ctx)`: returns after `fn` ran for each of `0..n`.
pub type onnxc_parallel_for =
    unsafe extern "C" fn(user: *mut c_void, n: usize, f: onnxc_task_fn, task_ctx: *mut c_void);
/// `on_node(user, node, end)`: a nonzero result stops the run with [`Status::Cancelled`].
pub type onnxc_on_node = unsafe extern "C" fn(user: *mut c_void, node: u32, end: i32) -> i32;
/// `workspace_for(dim_params, bytes)`.
pub type onnxc_workspace_for = unsafe extern "C" fn(dim_params: *const i64, bytes: *mut u64) -> i32;
/// `call(inputs, outputs, dim_params, out_dims, weights, workspace, exec)`.
pub type onnxc_call = unsafe extern "C" fn(
    inputs: *const *const c_void,
    outputs: *const *mut c_void,
    dim_params: *const i64,
    out_dims: *const *mut i64,
    weights: *const c_void,
    workspace: *mut c_void,
    exec: *const onnxc_exec,
) -> i32;

/// A string: an element of a tensor of strings.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct onnxc_str {
    /// Its bytes, UTF-8, not ended by NUL.
    pub data: *const c_char,
    #[cfg(target_pointer_width = "32")]
    padding: u32,
    /// Their number; not negative.
    pub len: i64,
}

impl onnxc_str {
    /// An element.
    pub const fn new(data: *const c_char, len: i64) -> onnxc_str {
        onnxc_str {
            data,
            #[cfg(target_pointer_width = "32")]
            padding: 0,
            len,
        }
    }
}

/// An input or output.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct onnxc_tensor_info {
    /// The exact ONNX name, UTF-8.
    pub name: *const c_char,
    /// `rank` entries; `-1 - k` refers to dim param `k`; [`DIM_COMPUTED`].
    pub dims: *const i64,
    /// `rank` upper bounds, equal to `dims` where static; [`DIM_COMPUTED`] if unbounded.
    pub max_dims: *const i64,
    /// Upper bound of the bytes; `u64::MAX` if unbounded.
    pub max_bytes: u64,
    /// ONNX `TensorProto.DataType`.
    pub dtype: i32,
    /// Number of dims.
    pub rank: i32,
    /// Outputs: index of the input it may share memory with, or -1.
    pub aliases_input: i32,
    /// 0 for an array; otherwise an [`onnxc_value`] of this kind is passed.
    pub kind: i32,
}

/// An optional without an element.
pub const ONNXC_NONE: i32 = 0;
/// A tensor.
pub const ONNXC_TENSOR: i32 = 1;
/// A sequence.
pub const ONNXC_SEQUENCE: i32 = 2;
/// A map.
pub const ONNXC_MAP: i32 = 3;
/// A sequence of maps, as `kind` of [`onnxc_tensor_info`].
pub const ONNXC_MAPS: i32 = 4;
/// Flag of `kind` of [`onnxc_tensor_info`]: may be absent.
pub const ONNXC_OPTIONAL: i32 = 16;

/// A value that is not a single tensor.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct onnxc_value {
    /// [`ONNXC_NONE`], [`ONNXC_TENSOR`], [`ONNXC_SEQUENCE`] or [`ONNXC_MAP`].
    pub kind: i32,
    /// Element type of a tensor, or of a map's values.
    pub dtype: i32,
    /// Element type of a map's keys.
    pub key_dtype: i32,
    /// Rank of a tensor.
    pub rank: i32,
    /// Number of a sequence's items, or of a map's entries.
    pub len: i64,
    /// Dims of a tensor, `rank` entries.
    pub dims: *const i64,
    /// A tensor's elements, a map's values.
    pub data: *const c_void,
    /// A map's keys.
    pub keys: *const c_void,
    /// A sequence's items.
    pub items: *const onnxc_value,
}

/// A node of the model, for tracing.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct onnxc_node_info {
    /// The node's name.
    pub name: *const c_char,
    /// Its operator.
    pub op_type: *const c_char,
    /// Index of the output that is its first result; `u32::MAX` for none.
    pub first_tap: u32,
    /// Zero.
    pub reserved: u32,
}

/// Maximum number of values of a fault.
pub const ONNXC_VALUES: usize = 4;

/// A check that a call makes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct onnxc_check_info {
    /// Name of the node; empty if the call itself is at fault.
    pub node: *const c_char,
    /// Its operator.
    pub op_type: *const c_char,
    /// A sentence, `%lld` for each value in order, `%%` for a percent sign; empty: the text of the status.
    pub text: *const c_char,
    /// The tensor that each value belongs to; null if none.
    pub tensors: [*const c_char; ONNXC_VALUES],
    /// The dimension of that tensor; -1 if none.
    pub dims: [i32; ONNXC_VALUES],
    /// The status of the call; 0: that of the fault.
    pub status: i32,
    /// Number of values.
    pub n_values: u32,
}

/// The failed check: filled by a call that fails.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct onnxc_fault {
    /// Index into `checks` of [`onnxc_model`].
    pub check: u32,
    /// What the call returned.
    pub status: i32,
    /// The values that the check tested.
    pub values: [i64; ONNXC_VALUES],
    /// If the call ran out of workspace: bytes that would have sufficed up to this point; else 0.
    pub workspace_size: u64,
}

impl onnxc_fault {
    /// The initial value before a call.
    pub const NONE: onnxc_fault =
        onnxc_fault { check: u32::MAX, status: 0, values: [0; ONNXC_VALUES], workspace_size: 0 };
}

/// Resources that a caller provides to a run, all optional.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct onnxc_exec {
    /// `size_of::<onnxc_exec>()` of the caller.
    pub struct_size: usize,
    /// First argument of the callbacks.
    pub user: *mut c_void,
    /// Runs tasks.
    pub parallel_for: Option<onnxc_parallel_for>,
    /// Maximum number of tasks; 0: chosen by the model.
    pub max_tasks: usize,
    /// Called around nodes, only by objects built with `--trace`.
    pub on_node: Option<onnxc_on_node>,
    /// Bytes of the workspace; 0: as returned by `workspace_for`.
    pub workspace_size: u64,
    /// Receives the failed check.
    pub fault: *mut onnxc_fault,
}

impl onnxc_exec {
    /// Serial and silent.
    pub const NONE: onnxc_exec = onnxc_exec {
        struct_size: size_of::<onnxc_exec>(),
        user: std::ptr::null_mut(),
        parallel_for: None,
        max_tasks: 0,
        on_node: None,
        workspace_size: 0,
        fault: std::ptr::null_mut(),
    };
}

/// `<m>_model`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct onnxc_model {
    /// [`ABI_VERSION`].
    pub abi_version: u32,
    /// Bytes of this struct in the object.
    pub struct_size: u32,
    /// C prefix `<m>`.
    pub name: *const c_char,
    /// `onnxc <version>`.
    pub producer: *const c_char,
    /// Target triple.
    pub target: *const c_char,
    /// CPU level or features.
    pub cpu_features: *const c_char,
    /// SHA-256 of the model file.
    pub model_sha256: [u8; 32],
    /// Workspace bytes; an upper bound if shapes are dynamic, `u64::MAX` if unbounded.
    pub workspace_size: u64,
    /// Alignment of the workspace.
    pub workspace_align: u64,
    /// Bytes of the weights file that a call may read; 0 if weights are embedded.
    pub weights_size: u64,
    /// Alignment of the weights.
    pub weights_align: u64,
    /// `n_inputs` entries.
    pub inputs: *const onnxc_tensor_info,
    /// `n_outputs` entries.
    pub outputs: *const onnxc_tensor_info,
    /// `n_dim_params` names.
    pub dim_params: *const *const c_char,
    /// `n_nodes` entries.
    pub nodes: *const onnxc_node_info,
    /// Number of inputs.
    pub n_inputs: u32,
    /// Number of outputs.
    pub n_outputs: u32,
    /// Number of dim params.
    pub n_dim_params: u32,
    /// Number of nodes.
    pub n_nodes: u32,
    /// Workspace bytes for given dim params.
    pub workspace_for: Option<onnxc_workspace_for>,
    /// The uniform entry.
    pub call: Option<onnxc_call>,
    /// `n_checks` entries.
    pub checks: *const onnxc_check_info,
    /// Number of checks.
    pub n_checks: u32,
    /// Zero.
    pub reserved: u32,
}

// SAFETY: the pointers lead to constant data, and following them is unsafe anyway.
unsafe impl Sync for onnxc_model {}
// SAFETY: as above.
unsafe impl Send for onnxc_model {}
// SAFETY: as above.
unsafe impl Sync for onnxc_tensor_info {}
// SAFETY: as above.
unsafe impl Send for onnxc_tensor_info {}
// SAFETY: as above.
unsafe impl Sync for onnxc_check_info {}
// SAFETY: as above.
unsafe impl Send for onnxc_check_info {}
// SAFETY: as above.
unsafe impl Sync for onnxc_node_info {}
// SAFETY: as above.
unsafe impl Send for onnxc_node_info {}

/// A status of generated code other than ok.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Status {
    /// 1: a required pointer is null.
    Null,
    /// 2: workspace or weights are not aligned as declared.
    Align,
    /// 3: a dimension is negative, above its bound, or inconsistent.
    Dim,
    /// 4: an output or the workspace is too small, or there is no memory for it.
    Capacity,
    /// 5: an index is out of range.
    Index,
    /// 6: integer division by zero, bad run-time shape value.
    Value,
    /// 7: the weights do not match the model.
    Weights,
    /// 8: a callback asked to stop.
    Cancelled,
    /// 9: sizes or versions of the interface do not match, or the metadata is invalid.
    Abi,
    /// 10: the CPU lacks instructions that the code needs.
    Cpu,
    /// A code that ABI 1 does not know.
    Unknown(i32),
}

/// Codes with their texts, in order from 1: the table behind [`Status`].
const STATUSES: [(Status, &str); 10] = [
    (Status::Null, "null pointer"),
    (Status::Align, "bad alignment"),
    (Status::Dim, "bad dimension"),
    (Status::Capacity, "buffer too small"),
    (Status::Index, "index out of range"),
    (Status::Value, "bad value"),
    (Status::Weights, "weights do not match"),
    (Status::Cancelled, "cancelled"),
    (Status::Abi, "abi mismatch"),
    (Status::Cpu, "unsupported cpu"),
];

impl Status {
    /// Result of a call that returned `code`.
    pub fn check(code: i32) -> Result<(), Status> {
        if code == 0 {
            return Ok(());
        }
        let known = usize::try_from(code).ok().and_then(|c| STATUSES.get(c - 1));
        Err(known.map_or(Status::Unknown(code), |s| s.0))
    }
    /// The C code.
    pub fn code(self) -> i32 {
        match self {
            Status::Unknown(c) => c,
            s => STATUSES.iter().zip(1..).find(|(t, _)| t.0 == s).map_or(0, |(_, c)| c),
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(STATUSES.iter().find(|s| s.0 == *self).map_or("unknown status", |s| s.1))
    }
}

impl std::error::Error for Status {}

/// `TensorProto.DataType` of strings.
pub const STRING: i32 = 8;

/// Bits of an element by ONNX `TensorProto.DataType`; `None` for types that ABI 1 does not define.
pub fn element_bits(dtype: i32) -> Option<u32> {
    Some(match dtype {
        // uint2, int2; uint4, int4, float4e2m1
        25 | 26 => 2,
        21..=23 => 4,
        // uint8, int8, bool, 8-bit floats, 6-bit floats (a byte each)
        2 | 3 | 9 | 17..=20 | 24 | 27 | 28 => 8,
        // uint16, int16, float16, bfloat16
        4 | 5 | 10 | 16 => 16,
        // float, int32, uint32
        1 | 6 | 12 => 32,
        // int64, double, uint64, complex64
        7 | 11 | 13 | 14 => 64,
        // string, complex128
        STRING | 15 => 128,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::{offset_of, size_of};

    #[test]
    fn statuses_and_codes() {
        assert_eq!(Status::check(0), Ok(()));
        for c in 1..=10 {
            let s = Status::check(c).unwrap_err();
            assert_eq!(s.code(), c);
            assert_ne!(s.to_string(), "unknown status");
        }
        for c in [-1, 11, i32::MIN, i32::MAX] {
            assert_eq!(Status::check(c), Err(Status::Unknown(c)));
            assert_eq!(Status::Unknown(c).code(), c);
        }
    }

    /// As a C compiler lays the header out.
    #[test]
    #[cfg(target_pointer_width = "64")]
    fn layout() {
        assert_eq!(size_of::<onnxc_model>(), 184);
        assert_eq!(offset_of!(onnxc_model, checks), 168);
        assert_eq!(size_of::<onnxc_check_info>(), 80);
        assert_eq!(size_of::<onnxc_fault>(), 48);
        assert_eq!(offset_of!(onnxc_fault, workspace_size), 40);
        assert_eq!(offset_of!(onnxc_model, model_sha256), 40);
        assert_eq!(offset_of!(onnxc_model, inputs), 104);
        assert_eq!(offset_of!(onnxc_model, call), 160);
        assert_eq!(size_of::<onnxc_tensor_info>(), 48);
        assert_eq!(size_of::<onnxc_node_info>(), 24);
        assert_eq!(size_of::<onnxc_str>(), 16);
        assert_eq!(offset_of!(onnxc_str, len), 8);
        assert_eq!(size_of::<onnxc_exec>(), 56);
        assert_eq!(offset_of!(onnxc_exec, workspace_size), 40);
        assert_eq!(offset_of!(onnxc_exec, fault), 48);
        assert_eq!(offset_of!(onnxc_exec, parallel_for), 16);
        assert_eq!(offset_of!(onnxc_exec, max_tasks), 24);
    }
}
