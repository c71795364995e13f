"""One contestant in a process of its own: loads a model, then times rounds when it is told to.

    worker.py KIND

Commands are JSON lines on standard input, answers JSON lines on standard output. Between commands the process is blocked
on the pipe; before it answers it waits until its own threads are asleep, so that no pool spins while another contestant
is measured.
"""
import ctypes as ct
import json
import os
import subprocess
import sys
import time

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "tools"))
CAP = 1 << 20


def build_loop(work):
    """The timing loop as a shared library."""
    lib = os.path.join(work, "loop.so")
    if not os.path.exists(lib):
        mine = f"{lib}.{os.getpid()}"
        subprocess.run([os.environ.get("CC", "cc"), "-O2", "-shared", "-fPIC", "-o", mine, os.path.join(HERE, "loop.c")], check=True)
        os.replace(mine, lib)
    return ct.CDLL(lib)


def native_samples(lib, arguments, pointers, seconds):
    """Seconds per call, timed in C."""
    array = (ct.c_void_p * len(pointers))(*pointers)
    samples = np.empty(CAP)
    count = ct.c_size_t()
    lib.bench_loop.argtypes = [ct.c_int, ct.c_void_p, ct.c_double, ct.c_void_p, ct.c_size_t, ct.POINTER(ct.c_size_t)]
    status = lib.bench_loop(arguments, array, seconds, samples.ctypes.data, CAP, ct.byref(count))
    if status:
        raise RuntimeError(f"a call returned status {status}")
    return samples[:count.value]


def python_samples(f, seconds):
    """Seconds per call, timed here: for interfaces that can only be called from Python."""
    clock = time.perf_counter
    batch = 1
    end = clock() + seconds / 5
    while True:
        start = clock()
        for _ in range(batch):
            f()
        took = clock() - start
        if took < 50e-6:
            batch *= 2
        elif clock() >= end:
            break
    out = []
    end = clock() + seconds
    while not out or (clock() < end and len(out) < CAP):
        start = clock()
        for _ in range(batch):
            f()
        out.append((clock() - start) / batch)
    return np.array(out)


class OnnxRuntime:
    """ONNX Runtime's CPU provider: inputs and outputs bound once, `run_with_iobinding` per call."""

    def load(self, job, feeds):
        import onnxruntime as ort
        o = ort.SessionOptions()
        o.intra_op_num_threads = job["threads"]
        o.inter_op_num_threads = 1
        o.log_severity_level = 4
        # Blocked DequantizeLinear and MatMul stay in f32, as the model says.
        o.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "0")
        for name, size in job["dims"].items():
            o.add_free_dimension_override_by_name(name, size)
        s = ort.InferenceSession(job["model"], o, providers=["CPUExecutionProvider"])
        wanted = [i.name for i in s.get_inputs()]
        feeds = {k: v for k, v in feeds.items() if k in wanted}
        names = [x.name for x in s.get_outputs()]
        first = s.run(names, feeds)
        plain = all(isinstance(a, np.ndarray) and a.dtype.kind in "fiub" for a in list(feeds.values()) + first)
        if not plain:
            # Strings, sequences and maps can not be bound.
            self.f = lambda: s.run(names, feeds)
            return first
        b = s.io_binding()
        self.keep = [(n, ort.OrtValue.ortvalue_from_numpy(a)) for n, a in feeds.items()]
        self.outs = [(n, ort.OrtValue.ortvalue_from_numpy(np.zeros_like(a))) for n, a in zip(names, first)]
        for n, v in self.keep:
            b.bind_ortvalue_input(n, v)
        for n, v in self.outs:
            b.bind_ortvalue_output(n, v)
        run, binding, self.session = s._sess.run_with_iobinding, b._iobinding, (s, b)
        self.f = lambda: run(binding, None)
        self.f()
        return [v.numpy() for _, v in self.outs]

    def samples(self, seconds):
        return python_samples(self.f, seconds)


class OvShape(ct.Structure):
    _fields_ = [("rank", ct.c_int64), ("dims", ct.POINTER(ct.c_int64))]


class OvDimension(ct.Structure):
    _fields_ = [("min", ct.c_int64), ("max", ct.c_int64)]


class OvPartialShape(ct.Structure):
    _fields_ = [("rank", OvDimension), ("dims", ct.POINTER(OvDimension))]


class OpenVino:
    """OpenVINO's CPU plugin through its C interface: tensors set once, `ov_infer_request_infer` per call."""

    def __init__(self, work):
        self.loop = build_loop(work)

    def call(self, name, *args):
        status = getattr(self.dll, name)(*args)
        if status:
            get = self.dll.ov_get_last_err_msg
            get.restype = ct.c_char_p
            raise RuntimeError(f"{name}: {(get() or b'').decode(errors='replace').strip()[-300:] or status}")

    def load(self, job, feeds):
        import glob
        import openvino
        found = glob.glob(os.path.join(os.path.dirname(openvino.__file__), "libs", "libopenvino_c.*"))
        self.dll = ct.CDLL(found[0])
        ptr = ct.c_void_p
        core, model, compiled, request = ptr(), ptr(), ptr(), ptr()
        self.call("ov_core_create", ct.byref(core))
        self.call("ov_core_read_model", core, job["model"].encode(), None, ct.byref(model))
        inputs = [i for i in job["inputs"] if i in feeds]
        if job["dims"]:
            names = (ct.c_char_p * len(inputs))(*[i.encode() for i in inputs])
            shapes = (OvPartialShape * len(inputs))()
            for k, i in enumerate(inputs):
                a = feeds[i]
                self.call("ov_partial_shape_create_static", ct.c_int64(a.ndim), (ct.c_int64 * max(1, a.ndim))(*a.shape), ct.byref(shapes[k]))
            self.call("ov_model_reshape", model, names, shapes, ct.c_size_t(len(inputs)))
        properties = {"INFERENCE_NUM_THREADS": str(job["threads"]), "NUM_STREAMS": "1", "PERFORMANCE_HINT": "LATENCY"}
        if precision := job.get("precision", "f32"):
            properties["INFERENCE_PRECISION_HINT"] = precision
        if precision == "f32":
            # Activations of products with weights of few bits stay f32.
            properties["DYNAMIC_QUANTIZATION_GROUP_SIZE"] = "0"
        flat = [ct.c_char_p(x.encode()) for kv in properties.items() for x in kv]
        self.call("ov_core_compile_model", core, model, ct.c_char_p(b"CPU"), ct.c_size_t(len(flat)), ct.byref(compiled), *flat)
        self.call("ov_compiled_model_create_infer_request", compiled, ct.byref(request))
        self.keep = []
        for name in inputs:
            # The same bytes on a boundary of 64, as an allocator of tensors gives them.
            a = aligned_copy(feeds[name])
            port, tensor, kind, shape = ptr(), ptr(), ct.c_int(), OvShape()
            self.call("ov_compiled_model_input_by_name", compiled, name.encode(), ct.byref(port))
            self.call("ov_port_get_element_type", port, ct.byref(kind))
            self.call("ov_shape_create", ct.c_int64(a.ndim), (ct.c_int64 * max(1, a.ndim))(*a.shape), ct.byref(shape))
            self.call("ov_tensor_create_from_host_ptr", kind, shape, ptr(a.ctypes.data), ct.byref(tensor))
            self.call("ov_infer_request_set_tensor", request, name.encode(), tensor)
            self.keep += [a, tensor, shape]
        self.call("ov_infer_request_infer", request)
        self.pointers = [ct.cast(self.dll.ov_infer_request_infer, ptr).value, request.value]
        return [self.output(request, k, dtype) for k, dtype in enumerate(job["outputs"])]

    def output(self, request, k, dtype):
        tensor, data, shape = ct.c_void_p(), ct.c_void_p(), OvShape()
        self.call("ov_infer_request_get_output_tensor_by_index", request, ct.c_size_t(k), ct.byref(tensor))
        self.call("ov_tensor_data", tensor, ct.byref(data))
        self.call("ov_tensor_get_shape", tensor, ct.byref(shape))
        size = ct.c_size_t()
        self.call("ov_tensor_get_byte_size", tensor, ct.byref(size))
        raw = ct.string_at(data, size.value) if size.value else b""
        return np.frombuffer(raw, np.dtype(dtype)).reshape([shape.dims[i] for i in range(shape.rank)]).copy()

    def samples(self, seconds):
        return native_samples(self.loop, 1, self.pointers, seconds)


def aligned_copy(a):
    import abi
    out = abi.aligned(a.nbytes)[:a.nbytes].view(a.dtype).reshape(a.shape)
    out[...] = a
    return out


class Onnxc:
    """Our object, linked into a shared library, called through `<m>_model`; several threads through onnxc-runtime's pool."""

    def __init__(self, work):
        self.loop = build_loop(work)

    def load(self, job, feeds):
        import abi
        model = abi.Model(job["library"], job["name"])
        self.run, outs = model.prepare({k: v if v.dtype == object else aligned_copy(v) for k, v in feeds.items()}, job["shapes"])
        exec_ = None
        if job["threads"] > 1:
            dll = ct.CDLL(job["runtime"])
            dll.onnxc_pool_create.restype = ct.c_void_p
            dll.onnxc_pool_exec.restype = ct.c_void_p
            dll.onnxc_pool_exec.argtypes = [ct.c_void_p]
            self.pool = dll.onnxc_pool_create(ct.c_size_t(job["threads"]))
            exec_ = dll.onnxc_pool_exec(self.pool)
        self.run(exec_)
        self.pointers = [ct.cast(model.info.call, ct.c_void_p).value, *self.run.arguments(exec_)]
        return outs

    def samples(self, seconds):
        return native_samples(self.loop, 7, self.pointers, seconds)


def plain(outs):
    """Outputs as arrays that a file holds: a list of maps as their keys and their values, strings as text."""
    import abi
    for o in outs:
        o = abi.described(o) if isinstance(o, abi.Value) else o
        if isinstance(o, list) and o and isinstance(o[0], dict):
            yield np.array(list(o[0]))
            yield np.array([list(m.values()) for m in o], np.float32)
        else:
            o = np.asarray(o)
            yield o.astype(str) if o.dtype == object else o


def until_idle():
    """Waits until the process uses no more CPU time: pools spin for a while before they sleep."""
    for _ in range(200):
        before = time.process_time()
        time.sleep(0.005)
        if time.process_time() - before < 0.0005:
            return


def serve(contestant, do):
    """Answers each job with what `do` gives for it and the contestant, which `contestant` makes."""
    # What libraries print goes to standard error; answers have a channel of their own.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    contestant = contestant()
    for line in sys.stdin:
        job = json.loads(line)
        try:
            answer = {"ok": True, **do(contestant, job)}
        except Exception as e:  # A contestant that fails is a result, not the end of the comparison.
            answer = {"ok": False, "error": f"{type(e).__name__}: {e}"[:400]}
        until_idle()
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def do(contestant, job):
    if job["do"] == "load":
        with np.load(job["feeds"]) as z:
            feeds = {k: z[k].astype(object) if z[k].dtype.kind == "U" else z[k] for k in z.files}
        np.savez(job["results"], *plain(contestant.load(job, feeds)))
        return {}
    cpu = time.process_time()
    s = contestant.samples(job["seconds"])
    return {"cpu": time.process_time() - cpu, "min": float(s.min()), "median": float(np.median(s)), "samples": int(s.size)}


def main():
    kind, work = sys.argv[1:3]
    serve({"onnxruntime": lambda: OnnxRuntime(), "openvino": lambda: OpenVino(work), "onnxc": lambda: Onnxc(work)}[kind], do)


if __name__ == "__main__":
    main()
