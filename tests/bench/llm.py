"""Decoders: tokens per second of decode and prefill beside ONNX Runtime, and how much of the memory's bandwidth decode uses.

    llm.py ONNXC MODEL... [--threads 1,2] [--past 256,2048] [--prefill 128] [--seconds 2] [--cpu LEVEL] [--json FILE]

A MODEL is a decoder with caches as inputs and outputs, as onnxruntime-genai's builder and others write it: inputs
`input_ids` and, if any, `attention_mask` and `position_ids`; for each output `present...` an input `past...`. Ours is compiled with
--alias, so that its caches stay where they are; ONNX Runtime's are bound to memory of their own. Contestants take turns. Bytes of
a token: the constants of the model, without tables that only Gather reads, and the caches.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile
import time

import numpy as np
import onnx
import onnxruntime as ort

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "tools")]
import abi
import compare
import worker

MARGIN = 64


def aligned(a):
    out = abi.aligned(max(1, a.nbytes))[:a.nbytes].view(a.dtype).reshape(a.shape)
    out[...] = a
    return out


class Decoder:
    """A model, and how its caches are called."""

    def __init__(self, path):
        self.path, model = path, onnx.load(path)
        g = model.graph
        inits = {i.name: i for i in g.initializer}
        self.inputs = {i.name: [d.dim_value or d.dim_param for d in i.type.tensor_type.shape.dim] for i in g.input if i.name not in inits}
        self.types = {i.name: onnx.helper.tensor_dtype_to_np_dtype(i.type.tensor_type.elem_type) for i in g.input}
        self.outputs = [o.name for o in g.output]
        pasts = [n for n in self.inputs if n.startswith("past")]
        presents = [n for n in self.outputs if n.startswith("present")]
        if not pasts or len(pasts) != len(presents):
            raise SystemExit(f"{path}: no caches past... and present... among {', '.join(self.inputs)} and {', '.join(self.outputs)}")
        self.pairs = dict(zip(presents, pasts))
        grown = [[d for d in self.inputs[p] if isinstance(d, str) and "batch" not in d.lower() and d != "B"] for p in pasts]
        self.past = grown[0][0]
        self.axis = self.inputs[pasts[0]].index(self.past)
        self.vocabulary = next((d.dim_value for o in g.output if o.name == self.outputs[0] for d in o.type.tensor_type.shape.dim[-1:]), 0) or 256
        gathered = {n.input[0] for n in g.node if n.op_type == "Gather"}
        others = {x for n in g.node for k, x in enumerate(n.input) if not (n.op_type == "Gather" and k == 0)}
        size = lambda t: len(t.raw_data) or int(np.prod(t.dims)) * 4
        self.weights = sum(size(t) for n, t in inits.items() if n not in gathered - others)

    def feeds(self, tokens, past, capacity=None):
        """Inputs of a call; caches with room for `capacity` positions."""
        rng, out = np.random.default_rng(1), {}
        for name, dims in self.inputs.items():
            if name in self.pairs.values():
                shape = [(past if capacity is None else capacity) if k == self.axis else (1 if isinstance(d, str) else d) for k, d in enumerate(dims)]
                out[name] = aligned(rng.standard_normal(shape, dtype=np.float32).astype(self.types[name]))
            elif "mask" in name:
                out[name] = np.ones((1, past + tokens), self.types[name])
            elif "position" in name:
                out[name] = np.arange(past, past + tokens, dtype=self.types[name])[None]
            else:
                out[name] = rng.integers(0, self.vocabulary, (1, tokens)).astype(self.types[name])
        return out

    def cache_bytes(self, past):
        per = lambda n: np.prod([1 if isinstance(d, str) else d for d in self.inputs[n]], dtype=np.int64) * np.dtype(self.types[n]).itemsize
        return int(sum(per(n) for n in self.pairs.values())) * past


def ours(a, d, work):
    """The model compiled with its caches in place."""
    base = os.path.join(work, "decoder")
    aliases = [x for o, i in d.pairs.items() for x in ("--alias", f"{o}={i}")]
    cpu = ["--cpu", a.cpu] if a.cpu else []
    start = time.perf_counter()
    subprocess.run([a.onnxc, d.path, "-o", base + ".o", "--emit", "obj", "--name", "decoder", *aliases, *cpu], check=True)
    seconds, size = time.perf_counter() - start, os.path.getsize(base + ".o")
    abi.link([base + ".o"], base + ".so")
    os.remove(base + ".o")
    return abi.Model(base + ".so", "decoder"), seconds, size


def bound(session, d, feeds, tokens, past):
    """ONNX Runtime with all inputs and outputs in memory that stays."""
    b, keep = session.io_binding(), []
    for n, v in feeds.items():
        keep.append(ort.OrtValue.ortvalue_from_numpy(v))
        b.bind_ortvalue_input(n, keep[-1])
    for n in d.outputs:
        shape = list(feeds[d.pairs[n]].shape) if n in d.pairs else [1, tokens, d.vocabulary]
        if n in d.pairs:
            shape[d.axis] = past + tokens
        keep.append(ort.OrtValue.ortvalue_from_shape_and_type(shape, d.types[d.pairs[n]] if n in d.pairs else np.float32))
        b.bind_ortvalue_output(n, keep[-1])
    return lambda: session.run_with_iobinding(b), keep


def measure(a, d, model, session, pool, tokens, past):
    """Median seconds of both, and the largest difference of the logits in parts of the largest one."""
    shared = d.feeds(tokens, past, past + tokens + MARGIN)
    dense = {n: (np.ascontiguousarray(np.take(v, range(past), d.axis)) if n in d.pairs.values() else v) for n, v in shared.items()}
    run, outs = model.prepare(shared, sizes={d.past: past}, in_place=True)
    theirs, keep = bound(session, d, dense, tokens, past)
    run(pool), theirs()
    want = keep[len(d.inputs)].numpy()
    error = float(np.abs(outs[0] - want).max() / np.abs(want).max())
    times = [[], []]
    for _ in range(a.rounds):
        for k, f in enumerate((lambda: run(pool), theirs)):
            times[k] += list(worker.python_samples(f, a.seconds / a.rounds / 2))
    return float(np.median(times[0])), float(np.median(times[1])), error


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("onnxc")
    p.add_argument("models", nargs="+")
    numbers = lambda s: [int(x) for x in s.split(",")]
    p.add_argument("--threads", type=numbers, default=[1])
    p.add_argument("--past", type=numbers, default=[256, 2048])
    p.add_argument("--prefill", type=numbers, default=[128])
    p.add_argument("--seconds", type=float, default=4)
    p.add_argument("--rounds", type=int, default=4)
    p.add_argument("--cpu")
    p.add_argument("--json")
    a = p.parse_args()
    rows = []
    print(f"{'model':16} {'phase':14} {'threads':>7} {'onnxc ms':>9} {'tokens/s':>9} {'ORT ms':>9} {'ORT/onnxc':>9} {'MB/token':>9} {'of memory':>9} {'difference':>10}")
    for path in a.models:
        d = Decoder(path)
        with tempfile.TemporaryDirectory() as work:
            model, seconds, size = ours(a, d, work)
            print(f"{os.path.basename(path)}: compiled in {seconds:.1f} s, {size / 1e6:.0f} MB of {os.path.getsize(path) / 1e6:.0f} MB")
            for threads in a.threads:
                pool = None
                if threads > 1:
                    import ctypes as ct
                    dll = ct.CDLL(compare.runtime_library(work))
                    dll.onnxc_pool_create.restype = dll.onnxc_pool_exec.restype = ct.c_void_p
                    dll.onnxc_pool_exec.argtypes = [ct.c_void_p]
                    pool = dll.onnxc_pool_exec(dll.onnxc_pool_create(ct.c_size_t(threads)))
                machine = json.loads(subprocess.run([a.onnxc, "bench", "--machine", "--json", "--threads", str(threads)], capture_output=True, text=True, check=True).stdout)
                o = ort.SessionOptions()
                o.intra_op_num_threads, o.log_severity_level = threads, 4
                session = ort.InferenceSession(path, o, providers=["CPUExecutionProvider"])
                for what, tokens, past in [("decode", 1, n) for n in a.past] + [("prefill", n, 0) for n in a.prefill]:
                    own, theirs, error = measure(a, d, model, session, pool, tokens, past)
                    bytes_ = d.weights + d.cache_bytes(past)
                    part = bytes_ / own / machine["memory"] if what == "decode" else None
                    rows.append({"model": os.path.basename(path), "phase": what, "tokens": tokens, "past": past, "threads": threads, "onnxc": own, "onnxruntime": theirs,
                                 "bytes": bytes_, "memory": machine["memory"], "difference": error})
                    phase = f"{what} {past if what == 'decode' else tokens}"
                    print(f"{os.path.basename(path)[:16]:16} {phase:14} {threads:7} {own * 1e3:9.2f} {tokens / own:9.0f} {theirs * 1e3:9.2f} {theirs / own:9.2f} "
                          f"{bytes_ / 1e6:9.0f} {f'{part:9.0%}' if part else '':>9} {error:10.1e}", flush=True)
    if a.json:
        with open(a.json, "w") as f:
            json.dump(rows, f, indent=1)


if __name__ == "__main__":
    main()
