"""Calls compiled models through the C interface: links an object into a shared library and reads `<m>_model`."""
import ctypes as ct
import os
import subprocess

import numpy as np

DTYPES = {1: np.float32, 2: np.uint8, 3: np.int8, 4: np.uint16, 5: np.int16, 6: np.int32, 7: np.int64, 9: np.bool_,
          10: np.float16, 11: np.float64, 12: np.uint32, 13: np.uint64, 14: np.complex64, 15: np.complex128,
          # What numpy does not have, by its bits; below a byte, one element each, packed on the way in and out.
          16: np.uint16, 17: np.uint8, 18: np.uint8, 19: np.uint8, 20: np.uint8, 24: np.uint8, 27: np.uint8, 28: np.uint8,
          21: np.uint8, 22: np.uint8, 23: np.uint8, 25: np.uint8, 26: np.uint8}
PACKED = {21: 4, 22: 4, 23: 4, 25: 2, 26: 2}
STATUS = {1: "null pointer", 2: "bad alignment", 3: "bad dimension", 4: "buffer too small", 5: "index out of range",
          6: "bad value", 7: "weights do not match", 8: "cancelled", 9: "abi mismatch", 10: "unsupported cpu"}
UNKNOWN = -(1 << 63)
STRING = 8


class Str(ct.Structure):
    _fields_ = [("data", ct.c_void_p), ("len", ct.c_int64)]


def texts(a):
    """Elements of an array of strings, and the memory that they show."""
    parts = [s if isinstance(s, bytes) else str(s).encode() for s in np.asarray(a, dtype=object).reshape(-1)]
    memory = np.frombuffer(b"".join(parts) + b"\0", np.uint8)
    out = (Str * max(1, len(parts)))()
    at = memory.ctypes.data
    for e, s in zip(out, parts):
        # Nobody may look at the address of an empty string.
        e.data, e.len = (at if s else 1), len(s)
        at += len(s)
    return out, memory


def untexts(elements, n):
    return np.array([ct.string_at(e.data, e.len).decode() if e.len else "" for e in elements[:n]] + [None], dtype=object)[:n]


class TensorInfo(ct.Structure):
    _fields_ = [("name", ct.c_char_p), ("dims", ct.POINTER(ct.c_int64)), ("max_dims", ct.POINTER(ct.c_int64)),
                ("max_bytes", ct.c_uint64), ("dtype", ct.c_int32), ("rank", ct.c_int32),
                ("aliases_input", ct.c_int32), ("kind", ct.c_int32)]


class Value(ct.Structure):
    """A sequence, an optional or a map: `onnxc_value`."""


Value._fields_ = [("kind", ct.c_int32), ("dtype", ct.c_int32), ("key_dtype", ct.c_int32), ("rank", ct.c_int32), ("len", ct.c_int64),
                  ("dims", ct.POINTER(ct.c_int64)), ("data", ct.c_void_p), ("keys", ct.c_void_p), ("items", ct.POINTER(Value))]
NONE, TENSOR, SEQUENCE, MAP = range(4)


def describe(x, dtype, key_dtype, keep):
    """An onnxc_value of None, an array, a list or a dict; what it points to is added to `keep`."""
    def memory(a, dtype):
        """The address of the elements."""
        if dtype == STRING:
            elements, bytes_ = texts(a)
            keep.extend([elements, bytes_])
            return ct.addressof(elements)
        a = np.array(a, DTYPES[dtype], order="C")
        keep.append(a)
        return a.ctypes.data
    v = Value()
    v.dtype = dtype
    if x is None:
        v.kind = NONE
    elif isinstance(x, (list, tuple)):
        v.kind, v.len = SEQUENCE, len(x)
        items = (Value * max(1, len(x)))(*[describe(i, dtype, key_dtype, keep) for i in x])
        keep.append(items)
        v.items = items if x else None
    elif isinstance(x, dict):
        v.kind, v.len, v.key_dtype = MAP, len(x), key_dtype
        v.keys, v.data = memory(list(x.keys()), key_dtype), memory(list(x.values()), dtype)
    else:
        a = np.asarray(x, dtype=object if dtype == STRING else DTYPES[dtype])
        dims = (ct.c_int64 * max(1, a.ndim))(*a.shape)
        keep.append(dims)
        v.kind, v.rank, v.dims, v.data = TENSOR, a.ndim, dims if a.ndim else None, memory(a, dtype) if a.size else None
    return v


def described(v):
    """What a filled onnxc_value says: None, an array, a list or a dict, all copied."""
    def array(pointer, dtype, n):
        if dtype == STRING:
            return untexts((Str * max(1, n)).from_address(pointer), n) if n else np.array([], object)
        size = np.dtype(DTYPES[dtype]).itemsize
        return np.frombuffer(ct.string_at(pointer, n * size) if n else b"", DTYPES[dtype]).copy()
    if v.kind == NONE:
        return None
    if v.kind == SEQUENCE:
        return [described(v.items[i]) for i in range(v.len)]
    if v.kind == MAP:
        return dict(zip(array(v.keys, v.key_dtype, v.len).tolist(), array(v.data, v.dtype, v.len).tolist()))
    shape = [v.dims[i] for i in range(v.rank)]
    assert v.len == int(np.prod(shape, dtype=np.int64)), "len of a tensor"
    return array(v.data, v.dtype, v.len).reshape(shape)


TASK = ct.CFUNCTYPE(None, ct.c_void_p, ct.c_size_t)
PARALLEL_FOR = ct.CFUNCTYPE(None, ct.c_void_p, ct.c_size_t, TASK, ct.c_void_p)


class Fault(ct.Structure):
    _fields_ = [("check", ct.c_uint32), ("status", ct.c_int32), ("values", ct.c_int64 * 4), ("workspace_size", ct.c_uint64)]


class Exec(ct.Structure):
    _fields_ = [("struct_size", ct.c_size_t), ("user", ct.c_void_p), ("parallel_for", PARALLEL_FOR),
                ("max_tasks", ct.c_size_t), ("on_node", ct.c_void_p), ("workspace_size", ct.c_uint64), ("fault", ct.POINTER(Fault))]


class OldExec(ct.Structure):
    """As callers of the first versions have it."""
    _fields_ = Exec._fields_[:5]


class CheckInfo(ct.Structure):
    _fields_ = [("node", ct.c_char_p), ("op_type", ct.c_char_p), ("text", ct.c_char_p), ("tensors", ct.c_char_p * 4),
                ("dims", ct.c_int32 * 4), ("status", ct.c_int32), ("n_values", ct.c_uint32)]


class Failed(RuntimeError):
    """A call that failed: `status`, and the `fault` if the call has filled one."""
    def __init__(self, text, status, fault):
        super().__init__(text)
        self.status, self.fault = status, fault


CALL = ct.CFUNCTYPE(ct.c_int32, ct.c_void_p, ct.c_void_p, ct.c_void_p, ct.c_void_p, ct.c_void_p, ct.c_void_p, ct.c_void_p)
WORKSPACE_FOR = ct.CFUNCTYPE(ct.c_int32, ct.c_void_p, ct.POINTER(ct.c_uint64))


class ModelInfo(ct.Structure):
    _fields_ = [("abi_version", ct.c_uint32), ("struct_size", ct.c_uint32), ("name", ct.c_char_p), ("producer", ct.c_char_p),
                ("target", ct.c_char_p), ("cpu_features", ct.c_char_p), ("model_sha256", ct.c_uint8 * 32),
                ("workspace_size", ct.c_uint64), ("workspace_align", ct.c_uint64), ("weights_size", ct.c_uint64),
                ("weights_align", ct.c_uint64), ("inputs", ct.POINTER(TensorInfo)), ("outputs", ct.POINTER(TensorInfo)),
                ("dim_params", ct.POINTER(ct.c_char_p)), ("nodes", ct.c_void_p), ("n_inputs", ct.c_uint32),
                ("n_outputs", ct.c_uint32), ("n_dim_params", ct.c_uint32), ("n_nodes", ct.c_uint32),
                ("workspace_for", WORKSPACE_FOR), ("call", CALL),
                ("checks", ct.POINTER(CheckInfo)), ("n_checks", ct.c_uint32), ("reserved", ct.c_uint32)]


def link(objects, lib, *libraries):
    """One shared library of some objects. Undefined symbols other than libm's and those of `libraries` are errors."""
    subprocess.run([os.environ.get("CC", "cc"), "-shared", "-o", lib, *objects, *libraries, "-Wl,-z,defs", "-lm", "-lc"], check=True)


def aligned(n, align=64):
    n = max(n, 1)
    raw = np.empty(n + align, np.uint8)
    off = -raw.ctypes.data % align
    return raw[off:off + n]


def pack(a, bits):
    """Several elements to a byte, the first one in the low bits."""
    per = 8 // bits
    flat = np.zeros(-(-a.size // per) * per, np.uint8)
    flat[:a.size] = a.reshape(-1) & ((1 << bits) - 1)
    return np.bitwise_or.reduce(flat.reshape(-1, per) << np.arange(0, 8, bits, dtype=np.uint8), axis=1, dtype=np.uint8)


def unpack(data, bits, shape):
    n = int(np.prod(shape, dtype=np.int64))
    parts = (data[:, None] >> np.arange(0, 8, bits, dtype=np.uint8)) & ((1 << bits) - 1)
    return parts.reshape(-1)[:n].reshape(shape)


class Model:
    def __init__(self, lib, name, weights=None):
        self.dll = ct.CDLL(lib)
        self.info = ModelInfo.in_dll(self.dll, f"{name}_model")
        assert self.info.abi_version == 1 and self.info.struct_size == ct.sizeof(ModelInfo)
        self.weights = None
        if self.info.weights_size:
            data = np.fromfile(weights, np.uint8)
            self.weights = aligned(data.size)
            self.weights[:] = data
        self.inputs = [self.info.inputs[i] for i in range(self.info.n_inputs)]
        self.outputs = [self.info.outputs[i] for i in range(self.info.n_outputs)]
        self.params = [self.info.dim_params[i].decode() for i in range(self.info.n_dim_params)]

    def fault_string(self, fault):
        """What `onnxc_fault_string` writes."""
        if fault.check >= self.info.n_checks:
            return STATUS.get(fault.status, "unknown status")
        c = self.info.checks[fault.check]
        node, op, text = c.node.decode(), c.op_type.decode(), c.text.decode() or STATUS.get(fault.status, "unknown status")
        head = f'{op} "{node}"' if node and op else op or (f'"{node}"' if node else "")
        values = iter(fault.values)
        parts = [p.split("%lld") for p in text.split("%%")]
        text = "%".join(p[0] + "".join(f"{next(values)}{q}" for q in p[1:]) for p in parts)
        return f"{head}: {text}" if head else text

    def failed(self, what, rc, fault, more=""):
        why = self.fault_string(fault) if fault.check != 0xffffffff else ""
        return Failed(f"{what}: {STATUS.get(rc, rc)} {why} {more}".rstrip(), rc, fault)

    def prepare(self, feeds, out_shapes=None, grow=True, sizes=(), in_place=False):
        """A zero-argument callable that runs the model, and the output arrays. It takes a larger workspace where a call runs out
        of it, unless told not to `grow`. `sizes` are those that stand in no input; with `in_place` outputs are the arrays of
        the inputs whose memory they may have."""
        params = [dict(sizes).get(p) for p in self.params]
        arrays, values = [], []
        for t in self.inputs:
            if t.kind:
                values.append(describe(feeds[t.name.decode()], t.dtype, t.kind >> 8, values))
                arrays.append(values[-1])
                continue
            a = np.asarray(feeds[t.name.decode()], order="C")
            a = a.astype(object if t.dtype == STRING else DTYPES[t.dtype], copy=False)
            assert a.ndim == t.rank, (t.name, a.shape)
            for d, n in zip(t.dims[:t.rank], a.shape):
                if d >= 0:
                    assert d == n, f"input {t.name.decode()}: {a.shape}"
                elif d != UNKNOWN:
                    params[-1 - d] = n
            arrays.append(texts(a) if t.dtype == STRING else pack(a, PACKED[t.dtype]) if t.dtype in PACKED else a)
        dims = (ct.c_int64 * max(1, len(params)))(*params)
        size = ct.c_uint64()
        rc = self.info.workspace_for(dims, size)
        if rc:
            # A call checks the dims first, and says which check fails.
            nulls, fault = (ct.c_void_p * 64)(), Fault(check=0xffffffff)
            e = Exec(ct.sizeof(Exec), fault=ct.pointer(fault))
            self.info.call(nulls, nulls, dims, nulls, None, None, ct.addressof(e))
            raise self.failed("workspace_for", rc, fault)
        outs, lists = [], []
        for k, t in enumerate(self.outputs):
            if t.kind:
                lists.append(None)
                outs.append(Value())
                continue
            shape = [d if d >= 0 else (params[-1 - d] if d != UNKNOWN else None) for d in t.dims[:t.rank]]
            room = None
            if None in shape:
                # Sizes that the model computes: `out_shapes` is what there is room for, the sizes come back.
                shape = list(out_shapes[k])
                room = (ct.c_int64 * max(1, len(shape)))(*shape)
            lists.append(room)
            if in_place and t.aliases_input >= 0:
                assert tuple(shape) == arrays[t.aliases_input].shape, t.name
                outs.append(arrays[t.aliases_input])
                continue
            outs.append(np.full(shape, "", object) if t.dtype == STRING else np.zeros(shape, DTYPES[t.dtype]))
        ws = first = aligned(size.value)
        pin = (ct.c_void_p * max(1, len(arrays)))(*[ct.addressof(a) if isinstance(a, Value) else ct.addressof(a[0]) if isinstance(a, tuple) else a.ctypes.data for a in arrays])
        # Packed outputs begin with all bits set: what follows the last element must be written, too.
        packed = {k: np.full(-(-a.size * PACKED[t.dtype] // 8), 255, np.uint8) for k, (t, a) in enumerate(zip(self.outputs, outs)) if t.dtype in PACKED and not t.kind}
        strings = {k: (Str * max(1, a.size))() for k, (t, a) in enumerate(zip(self.outputs, outs)) if t.dtype == STRING and not t.kind}
        pout = (ct.c_void_p * max(1, len(outs)))(*[ct.addressof(a) if isinstance(a, Value) else ct.addressof(strings[k]) if k in strings else packed.get(k, a).ctypes.data for k, a in enumerate(outs)])
        w = self.weights.ctypes.data if self.weights is not None else None
        rooms = [list(r) if r is not None else None for r in lists]
        full = list(outs)
        out_dims = (ct.c_void_p * max(1, len(lists)))(*[ct.addressof(r) if r is not None else None for r in lists])

        def settings(exec_, fault):
            """`exec_` with the size of the workspace, which may be more than `workspace_for` told."""
            e = Exec(ct.sizeof(Exec))
            if exec_:
                ct.memmove(ct.byref(e), exec_, min(ct.sizeof(e), ct.c_size_t.from_address(exec_).value))
                e.struct_size = ct.sizeof(e)
            # A size of 0 would say nothing.
            e.workspace_size, e.fault = max(ws.size, 1), ct.pointer(fault)
            return e

        def arguments(exec_=None):
            """What `call` takes, for loops outside Python."""
            if run.workspace is not first:
                run.settings = settings(exec_, Fault(check=0xffffffff))
                exec_ = ct.addressof(run.settings)
            return [ct.addressof(pin), ct.addressof(pout), ct.addressof(dims), ct.addressof(out_dims), w, ws.ctypes.data, exec_]

        def run(exec_=None):
            nonlocal ws
            while True:
                for r, room in zip(lists, rooms):
                    if r is not None:
                        r[:] = room
                fault = Fault(check=0xffffffff)
                e = settings(exec_, fault)
                rc = self.info.call(pin, pout, dims, out_dims, w, ws.ctypes.data, ct.addressof(e))
                if not grow or rc != 4 or fault.workspace_size <= ws.size:
                    break
                ws = aligned(max(fault.workspace_size, 2 * ws.size))
                run.workspace = ws
            if rc:
                need = [list(r) for r in lists if r is not None] if rc == 4 else ""
                raise self.failed("call", rc, fault, need)
            for k, v in enumerate(full):
                if isinstance(v, Value):
                    outs[k] = described(v)
            for k, r in enumerate(lists):
                if r is not None:
                    shape = list(r)[:self.outputs[k].rank]
                    outs[k] = full[k].reshape(-1)[:int(np.prod(shape, dtype=np.int64))].reshape(shape)
            for k, elements in strings.items():
                outs[k][...] = untexts(elements, outs[k].size).reshape(outs[k].shape)
            for k, data in packed.items():
                bits = PACKED[self.outputs[k].dtype]
                data = data[:-(-outs[k].size * bits // 8)]
                used = outs[k].size * bits % 8
                assert not used or data[-1] >> used == 0, "bits after the last packed element"
                outs[k][...] = unpack(data, bits, outs[k].shape)
        run.keep = (values, arrays, dims, self, full, lists, strings)
        run.inputs, run.workspace = arrays, ws
        run.arguments = arguments
        return run, outs
