"""Calls a compiled model through its metadata, `<m>_model` of the shared library."""
import collections
import concurrent.futures
import ctypes as ct
import mmap
import os
import weakref

import _ctypes
import numpy as np

from . import _abi as abi

#: Outputs of unknown size begin at their upper bound if it has no more bytes than this, else empty.
FIRST_TRY = 64 << 20


class Error(RuntimeError):
    """A call that failed. The text names the node and what was wrong with which sizes or values."""

    def __init__(self, text, status=None, node=None, op_type=None, values=()):
        super().__init__(text)
        #: ONNXC_E_... of the header.
        self.status = status
        #: Name and operator of the node that failed; None where the call itself did.
        self.node, self.op_type = node, op_type
        #: The sizes or values that the failed check looked at.
        self.values = tuple(values)


class TensorInfo:
    """An input or output: `name`, `dtype` (ONNX's name), `shape` with numbers, names of dimensions, and None for what the
    model computes; `kind` is tensor, sequence, map or maps; `optional`; `aliases`, the input whose memory it may have."""

    def __init__(self, t, params, inputs):
        self.name, self._t = t.name.decode(), t
        self.dtype = abi.NAMES.get(t.dtype, str(t.dtype))
        self.shape = tuple(d if d >= 0 else None if d == abi.COMPUTED else params[-1 - d] for d in t.dims[:t.rank])
        kind = t.kind & 15
        self.kind = ["tensor", "tensor", "sequence", "map", "maps"][kind]
        self.optional = bool(t.kind & abi.OPTIONAL)
        self.aliases = inputs[t.aliases_input].name if t.aliases_input >= 0 else None

    def __repr__(self):
        shape = ", ".join("?" if d is None else str(d) for d in self.shape)
        return f"{self.name}: {self.kind if self._t.kind else ''}{'(' if self._t.kind else ''}{self.dtype}[{shape}]" \
               f"{')' if self._t.kind else ''}"


class Model:
    """A compiled model in this process. Calls keep no state: several threads may `run` one model at the same time, and do so
    in parallel, since a call releases the GIL. Workspaces are kept and used again."""

    def __init__(self, library, names, weights=None, threads=1):
        self._dll = ct.CDLL(os.path.abspath(library))
        self._close = weakref.finalize(self, _ctypes.dlclose, self._dll._handle)
        found = [n for n in names if hasattr(self._dll, f"{n}_model")]
        if len(found) != 1:
            raise Error(f"{library} has {'several models' if found else 'no model'}"
                        f"{' with the prefix ' + names[0] if len(names) == 1 else ''}: name= chooses one by its prefix")
        info = abi.ModelInfo.in_dll(self._dll, f"{found[0]}_model")
        if info.abi_version != 1 or info.struct_size < ct.sizeof(abi.ModelInfo):
            raise Error(f"{library} has interface {info.abi_version}, and this package knows 1")
        self._info = info
        #: Names of the symbolic dimensions.
        self.dims = [info.dim_params[i].decode() for i in range(info.n_dim_params)]
        #: What `run` takes.
        self.inputs = []
        for i in range(info.n_inputs):
            self.inputs.append(TensorInfo(info.inputs[i], self.dims, []))
        #: What `run` returns.
        self.outputs = [TensorInfo(info.outputs[i], self.dims, self.inputs) for i in range(info.n_outputs)]
        #: Which compiler wrote the code, and for what.
        self.producer, self.target, self.cpu = info.producer.decode(), info.target.decode(), info.cpu_features.decode()
        self._weights = self._map(weights) if info.weights_size else None
        self._free = collections.deque()
        self._executor = concurrent.futures.ThreadPoolExecutor(threads - 1, "onnxc") if threads > 1 else None
        self._parallel_for = abi.PARALLEL_FOR(self._share(threads)) if threads > 1 else abi.PARALLEL_FOR()
        self._threads = threads

    def _map(self, path):
        if path is None:
            raise Error(f"the weights of {self.producer}'s \"{self._info.name.decode()}\" are a file of their own: weights=PATH")
        with open(path, "rb") as f:
            data = np.frombuffer(mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
        if data.size < self._info.weights_size:
            raise Error(f"{path} has {data.size} bytes, and the weights have {self._info.weights_size}")
        return data

    def _share(self, threads):
        """`parallel_for` on this process's threads. Their tasks run outside of the GIL."""
        executor = self._executor

        def parallel_for(_user, n, task, context):
            def part(first):
                for i in range(first, n, threads):
                    task(context, i)
            others = [executor.submit(part, k) for k in range(1, min(threads, n))]
            part(0)
            for f in others:
                f.result()
        return parallel_for

    def workspace_size(self, **dims):
        """Bytes of workspace that a call with these dimensions uses."""
        missing = [d for d in self.dims if d not in dims]
        if missing or len(dims) != len(self.dims):
            raise ValueError(f"the dimensions are {', '.join(self.dims) or 'none'}, and {', '.join(dims) or 'none'} are given")
        return self._workspace_size((ct.c_int64 * max(1, len(dims)))(*[dims[d] for d in self.dims]))

    def _workspace_size(self, dims):
        size = ct.c_uint64()
        status = self._info.workspace_for(dims, size)
        if status:
            # A call checks the dimensions before anything else, and says which check fails.
            none = (ct.c_void_p * max(1, len(self.inputs), len(self.outputs)))()
            fault = abi.Fault(check=abi.NO_CHECK)
            e = abi.Exec(ct.sizeof(abi.Exec), fault=ct.pointer(fault))
            again = self._info.call(ct.addressof(none), ct.addressof(none), ct.addressof(dims), ct.addressof(none), None, None,
                                    ct.addressof(e))
            raise self._error(status, fault if again == status else abi.Fault(check=abi.NO_CHECK))
        return size.value

    def _error(self, status, fault):
        words = abi.STATUS.get(status, f"status {status}")
        if fault.check >= self._info.n_checks:
            return Error(words, status)
        c = self._info.checks[fault.check]
        node, op, text = c.node.decode(), c.op_type.decode(), c.text.decode() or words
        head = f'{op} "{node}"' if node and op else op or (f'"{node}"' if node else "")
        values = iter(fault.values)
        text = "%".join(h + "".join(f"{next(values)}{t}" for t in tail)
                        for h, *tail in (p.split("%lld") for p in text.split("%%")))
        return Error(f"{head}: {text}" if head else text, status, node or None, op or None, fault.values[:c.n_values])

    def _array(self, t, x):
        """An input as the model takes it."""
        want = np.dtype(abi.DTYPES[t._t.dtype])
        a = np.asarray(x) if isinstance(x, np.ndarray) or hasattr(x, "__array__") else np.asarray(x, want)
        if a.dtype != want:
            same_bits = a.dtype.name == t.dtype and a.dtype.itemsize == want.itemsize
            if t._t.dtype == abi.STRING and a.dtype.kind in "USO":
                a = a.astype(object)
            elif same_bits:
                a = a.view(want)
            else:
                raise TypeError(f'input "{t.name}" is {a.dtype.name}, and the model takes {t.dtype}: use .astype(...)')
        if a.ndim != len(t.shape):
            raise ValueError(f'input "{t.name}" has the shape {list(a.shape)}, and the model takes {list(t.shape)}')
        return np.ascontiguousarray(a).reshape(a.shape)

    def run(self, inputs, *, sizes=None, out=None, on_node=None):
        """Computes the outputs of one call: a dict of arrays by name.

        inputs: arrays by name; lists for sequences, dicts for maps, None for an absent optional.
        sizes: dimensions that stand in no input.
        out: arrays to write outputs to, of their exact type and size, instead of new ones. With `aliases` it may be the input's.
        on_node: function (name, operator, end), called around nodes of models compiled with trace=True; True stops the call.
        """
        unknown = [n for n in inputs if all(n != t.name for t in self.inputs)]
        missing = [t.name for t in self.inputs if t.name not in inputs and not t.optional]
        if unknown or missing:
            raise ValueError(f"the inputs are {', '.join(t.name for t in self.inputs)}: "
                             + "; ".join([f"{n} is missing" for n in missing] + [f"there is no {n}" for n in unknown]))
        params, told, keep, lent = dict(sizes or {}), {}, [], []
        for t in self.inputs:
            if t._t.kind:
                lent.append(abi.describe(inputs.get(t.name), t._t.dtype, t._t.kind >> 8, keep))
                continue
            a = self._array(t, inputs[t.name])
            for axis, (want, have) in enumerate(zip(t.shape, a.shape)):
                name = want if isinstance(want, str) else None
                want = params.setdefault(want, have) if name else want
                if want != have:
                    why = f"the model takes {want}" if not name else f"{name} is {want}" + (f" by {told[name]}" if name in told else "")
                    raise ValueError(f'input "{t.name}" dimension {axis} is {have}, and {why}')
                if name:
                    told.setdefault(name, f'input "{t.name}"')
            lent.append(abi.to_strings(a) if t._t.dtype == abi.STRING
                        else abi.pack(a, abi.PACKED[t._t.dtype]) if t._t.dtype in abi.PACKED else a)
        unknown = [d for d in self.dims if d not in params]
        if unknown or any(d not in self.dims for d in params):
            raise ValueError(f"the dimensions are {', '.join(self.dims) or 'none'}: "
                             + (f"{', '.join(unknown)} stand in no input: sizes={{...}}" if unknown
                                else f"sizes names {', '.join(d for d in params if d not in self.dims)}"))
        dims = (ct.c_int64 * max(1, len(self.dims)))(*[params[d] for d in self.dims])
        if any(d < 0 for d in dims):
            raise ValueError(f"dimensions must not be negative: {params}")
        results = [Output(t, params, (out or {}).get(t.name)) for t in self.outputs]
        if out and any(all(n != t.name for t in self.outputs) for n in out):
            raise ValueError(f"the outputs are {', '.join(t.name for t in self.outputs)}, and `out` names {', '.join(out)}")
        size = self._workspace_size(dims)
        try:
            workspace = self._free.pop()
        except IndexError:
            workspace = abi.aligned(0)
        if workspace.size < size:
            workspace = abi.aligned(size, max(64, self._info.workspace_align))
        try:
            workspace = self._call(lent, dims, results, workspace, on_node)
            return {r.info.name: r.finish() for r in results}
        finally:
            self._free.append(workspace)

    def _call(self, lent, dims, results, workspace, on_node):
        """Calls until outputs and workspace are large enough."""
        pointers = [ct.addressof(a) if isinstance(a, abi.Value) else ct.addressof(a[0]) if isinstance(a, tuple) else a.ctypes.data
                    for a in lent]
        given = (ct.c_void_p * max(1, len(pointers)))(*pointers)
        raised = []

        def report(_user, node, end):
            # An exception of the callback stops the call, and comes out of `run`.
            try:
                n = self._info.nodes[node]
                return 1 if on_node(n.name.decode(), n.op_type.decode(), bool(end)) else 0
            except BaseException as e:  # noqa: BLE001
                raised.append(e)
                return 1
        callback = abi.ON_NODE(report) if on_node else abi.ON_NODE()
        while True:
            taken = (ct.c_void_p * max(1, len(results)))(*[r.pointer() for r in results])
            rooms = (ct.c_void_p * max(1, len(results)))(*[r.room_pointer() for r in results])
            fault = abi.Fault(check=abi.NO_CHECK)
            e = abi.Exec(ct.sizeof(abi.Exec), None, self._parallel_for, self._threads if self._executor else 0, callback,
                         workspace.size, ct.pointer(fault))
            status = self._info.call(ct.addressof(given), ct.addressof(taken), ct.addressof(dims), ct.addressof(rooms),
                                     None if self._weights is None else self._weights.ctypes.data, workspace.ctypes.data,
                                     ct.addressof(e))
            if raised:
                raise raised[0]
            if not status:
                return workspace
            grown = status == abi.CAPACITY and any([r.grow() for r in results])
            if status == abi.CAPACITY and fault.workspace_size > workspace.size:
                # What follows needs more, too.
                workspace = abi.aligned(max(fault.workspace_size, 2 * workspace.size), max(64, self._info.workspace_align))
                grown = True
            if not grown:
                raise self._error(status, fault)

    def __repr__(self):
        return f"<onnxc.Model {self._info.name.decode()} ({', '.join(map(repr, self.inputs))}) -> " \
               f"({', '.join(map(repr, self.outputs))})>"


class Output:
    """An output while the model runs."""

    def __init__(self, info, params, given):
        self.info, t = info, info._t
        self.dtype, self.value = t.dtype, abi.Value() if t.kind else None
        self.known = [params[d] if isinstance(d, str) else d for d in info.shape]
        self.room, self.given = None, given
        if self.value is not None:
            if given is not None:
                raise ValueError(f'output "{info.name}" is no tensor: it cannot be written to an array')
            return
        shape = list(self.known)
        if None in shape:
            most = [k if k is not None else t.max_dims[i] if t.max_dims else -1 for i, k in enumerate(shape)]
            small = all(m >= 0 for m in most) and self._bytes(most) <= FIRST_TRY
            shape = most if small else [k if k is not None else 0 for k in shape]
        if given is not None:
            want = np.dtype(abi.DTYPES[t.dtype])
            if None in self.known or t.dtype in abi.PACKED or t.dtype == abi.STRING:
                raise ValueError(f'output "{info.name}" cannot be written to an array: its size or type is not that of one')
            if given.dtype.itemsize != want.itemsize or list(given.shape) != shape or not given.flags.c_contiguous \
                    or not given.flags.writeable:
                raise ValueError(f'output "{info.name}": `out` is {given.dtype.name}{list(given.shape)}, and the model writes '
                                 f"{info.dtype}{shape}, contiguous")
            self.data = given
        if any(not isinstance(d, int) or d < 0 for d in info.shape):
            self.room = (ct.c_int64 * max(1, len(shape)))(*shape)
        self.capacity = shape
        if given is None:
            self._allocate()

    def _bytes(self, shape):
        n = int(np.prod([int(d) for d in shape], dtype=object)) if shape else 1
        return n * 16 if self.dtype == abi.STRING else n * np.dtype(abi.DTYPES[self.dtype]).itemsize

    def _allocate(self):
        n = int(np.prod(self.capacity, dtype=np.int64))
        if self.dtype == abi.STRING:
            self.data = (abi.Str * max(1, n))()
        elif self.dtype in abi.PACKED:
            self.data = np.zeros(max(1, -(-n * abi.PACKED[self.dtype] // 8)), np.uint8)
        else:
            self.data = np.empty(self.capacity, abi.DTYPES[self.dtype])

    def pointer(self):
        if self.value is not None:
            return ct.addressof(self.value)
        return ct.addressof(self.data) if self.dtype == abi.STRING else self.data.ctypes.data

    def room_pointer(self):
        return ct.addressof(self.room) if self.room is not None else None

    def grow(self):
        """After a call that found too little room: takes what the model asked for, if that is more."""
        if self.room is None:
            return False
        need = [k if k is not None else r for k, r in zip(self.known, self.room)]
        more = any(n > c for n, c in zip(need, self.capacity))
        if more:
            self.capacity = need
            self._allocate()
        self.room[:len(need)] = self.capacity
        return more

    def finish(self):
        if self.value is not None:
            return abi.described(self.value)
        shape = list(self.room)[:len(self.known)] if self.room is not None else self.capacity
        n = int(np.prod(shape, dtype=np.int64))
        if self.dtype == abi.STRING:
            return abi.from_strings(self.data, n).reshape(shape)
        if self.dtype in abi.PACKED:
            return abi.unpack(self.data, self.dtype, shape)
        if shape == self.capacity:
            return self.data
        used = self.data.reshape(-1)[:n].reshape(shape)
        # A small part must not keep the whole.
        return used.copy() if 2 * n < self.data.size else used
