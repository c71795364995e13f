"""The C interface of compiled models (ABI 1), as ctypes has it: the structures of every generated header."""
import ctypes as ct

import numpy as np

#: TensorProto.DataType -> numpy. What numpy lacks stands as bits: bfloat16 as uint16, small floats as uint8. Types below a
#: byte have an element each in numpy, and are packed on the way in and out.
DTYPES = {1: np.float32, 2: np.uint8, 3: np.int8, 4: np.uint16, 5: np.int16, 6: np.int32, 7: np.int64, 8: np.object_,
          9: np.bool_, 10: np.float16, 11: np.float64, 12: np.uint32, 13: np.uint64, 14: np.complex64, 15: np.complex128,
          16: np.uint16, 17: np.uint8, 18: np.uint8, 19: np.uint8, 20: np.uint8, 21: np.uint8, 22: np.int8, 23: np.uint8,
          24: np.uint8, 25: np.uint8, 26: np.int8, 27: np.uint8, 28: np.uint8}
#: Names of ONNX.
NAMES = {1: "float32", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64", 8: "string", 9: "bool",
         10: "float16", 11: "float64", 12: "uint32", 13: "uint64", 14: "complex64", 15: "complex128", 16: "bfloat16",
         17: "float8e4m3fn", 18: "float8e4m3fnuz", 19: "float8e5m2", 20: "float8e5m2fnuz", 21: "uint4", 22: "int4",
         23: "float4e2m1", 24: "float8e8m0", 25: "uint2", 26: "int2", 27: "float6e2m3", 28: "float6e3m2"}
#: Bits of types below a byte.
PACKED = {21: 4, 22: 4, 23: 4, 25: 2, 26: 2}
SIGNED = (22, 26)
STRING = 8
STATUS = {1: "null pointer", 2: "bad alignment", 3: "bad dimension", 4: "buffer too small", 5: "index out of range",
          6: "bad value", 7: "weights do not match", 8: "cancelled", 9: "abi mismatch", 10: "unsupported cpu"}
CAPACITY = 4
#: A dimension of an output that the model computes.
COMPUTED = -(1 << 63)
NO_CHECK = 0xFFFFFFFF
NONE, TENSOR, SEQUENCE, MAP, MAPS = range(5)
OPTIONAL = 16


class Str(ct.Structure):
    """onnxc_str"""
    _fields_ = [("data", ct.c_void_p), ("len", ct.c_int64)]


class TensorInfo(ct.Structure):
    """onnxc_tensor_info"""
    _fields_ = [("name", ct.c_char_p), ("dims", ct.POINTER(ct.c_int64)), ("max_dims", ct.POINTER(ct.c_int64)),
                ("max_bytes", ct.c_uint64), ("dtype", ct.c_int32), ("rank", ct.c_int32), ("aliases_input", ct.c_int32),
                ("kind", ct.c_int32)]


class Value(ct.Structure):
    """onnxc_value"""


Value._fields_ = [("kind", ct.c_int32), ("dtype", ct.c_int32), ("key_dtype", ct.c_int32), ("rank", ct.c_int32),
                  ("len", ct.c_int64), ("dims", ct.POINTER(ct.c_int64)), ("data", ct.c_void_p), ("keys", ct.c_void_p),
                  ("items", ct.POINTER(Value))]


class NodeInfo(ct.Structure):
    """onnxc_node_info"""
    _fields_ = [("name", ct.c_char_p), ("op_type", ct.c_char_p), ("first_tap", ct.c_uint32), ("reserved", ct.c_uint32)]


class CheckInfo(ct.Structure):
    """onnxc_check_info"""
    _fields_ = [("node", ct.c_char_p), ("op_type", ct.c_char_p), ("text", ct.c_char_p), ("tensors", ct.c_char_p * 4),
                ("dims", ct.c_int32 * 4), ("status", ct.c_int32), ("n_values", ct.c_uint32)]


class Fault(ct.Structure):
    """onnxc_fault"""
    _fields_ = [("check", ct.c_uint32), ("status", ct.c_int32), ("values", ct.c_int64 * 4),
                ("workspace_size", ct.c_uint64)]


TASK = ct.CFUNCTYPE(None, ct.c_void_p, ct.c_size_t)
PARALLEL_FOR = ct.CFUNCTYPE(None, ct.c_void_p, ct.c_size_t, TASK, ct.c_void_p)
ON_NODE = ct.CFUNCTYPE(ct.c_int32, ct.c_void_p, ct.c_uint32, ct.c_int32)
# Calls through these types release the GIL.
CALL = ct.CFUNCTYPE(ct.c_int32, *[ct.c_void_p] * 7)
WORKSPACE_FOR = ct.CFUNCTYPE(ct.c_int32, ct.c_void_p, ct.POINTER(ct.c_uint64))


class Exec(ct.Structure):
    """onnxc_exec"""
    _fields_ = [("struct_size", ct.c_size_t), ("user", ct.c_void_p), ("parallel_for", PARALLEL_FOR),
                ("max_tasks", ct.c_size_t), ("on_node", ON_NODE), ("workspace_size", ct.c_uint64),
                ("fault", ct.POINTER(Fault))]


class ModelInfo(ct.Structure):
    """onnxc_model"""
    _fields_ = [("abi_version", ct.c_uint32), ("struct_size", ct.c_uint32), ("name", ct.c_char_p),
                ("producer", ct.c_char_p), ("target", ct.c_char_p), ("cpu_features", ct.c_char_p),
                ("model_sha256", ct.c_uint8 * 32), ("workspace_size", ct.c_uint64), ("workspace_align", ct.c_uint64),
                ("weights_size", ct.c_uint64), ("weights_align", ct.c_uint64), ("inputs", ct.POINTER(TensorInfo)),
                ("outputs", ct.POINTER(TensorInfo)), ("dim_params", ct.POINTER(ct.c_char_p)),
                ("nodes", ct.POINTER(NodeInfo)), ("n_inputs", ct.c_uint32), ("n_outputs", ct.c_uint32),
                ("n_dim_params", ct.c_uint32), ("n_nodes", ct.c_uint32), ("workspace_for", WORKSPACE_FOR),
                ("call", CALL), ("checks", ct.POINTER(CheckInfo)), ("n_checks", ct.c_uint32), ("reserved", ct.c_uint32)]


def aligned(size, align=64):
    """Uninitialised bytes at an aligned address."""
    size = max(size, 1)
    raw = np.empty(size + align, np.uint8)
    start = -raw.ctypes.data % align
    return raw[start:start + size]


def to_strings(a):
    """The elements of an array of strings, and the memory that they point to."""
    parts = [s if isinstance(s, bytes) else str(s).encode() for s in np.asarray(a, dtype=object).reshape(-1)]
    memory = np.frombuffer(b"".join(parts) + b"\0", np.uint8)
    elements = (Str * max(1, len(parts)))()
    at = memory.ctypes.data
    for e, s in zip(elements, parts):
        e.data, e.len = at, len(s)
        at += len(s)
    return elements, memory


def from_strings(elements, n):
    """`n` elements as an array of str."""
    a = np.empty(n, object)
    a[:] = [ct.string_at(e.data, e.len).decode(errors="surrogateescape") if e.len else "" for e in elements[:n]]
    return a


def pack(a, bits):
    """Several elements in a byte, the first one in the low bits."""
    per = 8 // bits
    flat = np.zeros(-(-a.size // per) * per, np.uint8)
    flat[:a.size] = a.reshape(-1).view(np.uint8) & ((1 << bits) - 1)
    shifted = flat.reshape(-1, per) << np.arange(0, 8, bits, dtype=np.uint8)
    return np.bitwise_or.reduce(shifted, axis=1, dtype=np.uint8)


def unpack(data, dtype, shape):
    """The elements of packed bytes, a byte each."""
    bits, n = PACKED[dtype], int(np.prod(shape, dtype=np.int64))
    flat = ((data[:, None] >> np.arange(0, 8, bits, dtype=np.uint8)) & ((1 << bits) - 1)).reshape(-1)[:n]
    if dtype in SIGNED:
        flat = ((flat ^ (1 << (bits - 1))).astype(np.int16) - (1 << (bits - 1))).astype(np.int8)
    return flat.reshape(shape)


def describe(x, dtype, key_dtype, keep):
    """An onnxc_value of None, an array, a list or a dict; what it points to is added to `keep`."""
    def memory(a, dtype):
        if dtype == STRING:
            keep.append(to_strings(a))
            return ct.addressof(keep[-1][0])
        keep.append(np.array(a, DTYPES[dtype], order="C"))
        return keep[-1].ctypes.data
    v = Value(dtype=dtype)
    if x is None:
        v.kind = NONE
    elif isinstance(x, (list, tuple)):
        v.kind, v.len = SEQUENCE, len(x)
        keep.append((Value * max(1, len(x)))(*[describe(i, dtype, key_dtype, keep) for i in x]))
        v.items = keep[-1] if x else None
    elif isinstance(x, dict):
        v.kind, v.len, v.key_dtype = MAP, len(x), key_dtype
        v.keys, v.data = memory(list(x.keys()), key_dtype), memory(list(x.values()), dtype)
    else:
        a = np.asarray(x, dtype=DTYPES[dtype])
        dims = (ct.c_int64 * max(1, a.ndim))(*a.shape)
        keep.append(dims)
        v.kind, v.rank, v.dims, v.data = TENSOR, a.ndim, dims if a.ndim else None, memory(a, dtype) if a.size else None
    return v


def described(v):
    """What an onnxc_value says: None, an array, a list or a dict, all copied."""
    def array(pointer, dtype, n):
        if dtype == STRING:
            return from_strings((Str * max(1, n)).from_address(pointer), n) if n else np.array([], object)
        size = np.dtype(DTYPES[dtype]).itemsize
        return np.frombuffer(ct.string_at(pointer, n * size) if n else b"", DTYPES[dtype]).copy()
    if v.kind == NONE:
        return None
    if v.kind == SEQUENCE:
        return [described(v.items[i]) for i in range(v.len)]
    if v.kind == MAP:
        return dict(zip(array(v.keys, v.key_dtype, v.len).tolist(), array(v.data, v.dtype, v.len).tolist()))
    return array(v.data, v.dtype, v.len).reshape([v.dims[i] for i in range(v.rank)])
