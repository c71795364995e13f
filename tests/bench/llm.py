"""Decoders: tokens per second of decode and prefill beside ONNX Runtime and llama.cpp, and how much of the memory's bandwidth
decode uses.

    llm.py ONNXC MODEL... [--threads 1,2] [--past 256,2048] [--prefill 128] [--dim B=4] [--copy] [--llama PYTHON] [--json FILE]

A MODEL is a decoder with caches as inputs and outputs, as onnxruntime-genai's builder and others write it: inputs
`input_ids` and, if any, `attention_mask`, `position_ids` and `beam_idx`; for each output `present...` an input `past...`. Ours is
compiled with --alias, so that its caches stay where they are, unless beams reorder them or --copy says otherwise; ONNX Runtime's are
bound to memory of their own. Symbolic sizes are symbols for both; --dim tells those that are not 1. --fix compiles ours for the sizes of
each phase. ONNX Runtime
multiplies blocked DequantizeLinear by activations of 8 bits; with --level 0 it computes in f32. llama.cpp (llama.py) runs a model of the same sizes with weights of Q4_0, where the Python that --llama names has
llama_cpp and gguf. Contestants take turns. Bytes of a token: the constants of the model, without tables that only Gather reads, and
the caches.
"""
import argparse
import ctypes as ct
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
        self.beams = any("beam" in n for n in self.inputs)
        grown = [[d for d in self.inputs[p] if isinstance(d, str) and "batch" not in d.lower() and d != "B"] for p in pasts]
        self.past = grown[0][0]
        self.axis = self.inputs[pasts[0]].index(self.past)
        self.vocabulary = next((d.dim_value for o in g.output if o.name == self.outputs[0] for d in o.type.tensor_type.shape.dim[-1:]), 0) or 256
        gathered = {n.input[0] for n in g.node if n.op_type == "Gather"}
        others = {x for n in g.node for k, x in enumerate(n.input) if not (n.op_type == "Gather" and k == 0)}
        size = lambda t: len(t.raw_data) or int(np.prod(t.dims)) * 4
        self.weights = sum(size(t) for n, t in inits.items() if n not in gathered - others)
        self.llama = self.sizes_of_llama(g, inits)

    def sizes_of_llama(self, g, inits):
        """The sizes of a model of llama.cpp that multiplies as much, if the graph is a decoder of Qwen's and Llama's kind."""
        caches = list(self.pairs.values())
        shape = self.inputs[caches[0]]
        if self.beams or len(shape) != 4 or len(caches) % 2 or any(isinstance(d, str) for d in (shape[1], shape[3])):
            return None
        kv, head = shape[1], shape[3]
        # Weights as depth and columns.
        mats = []
        for n in g.node:
            if n.op_type == "MatMulNBits":
                at = {a.name: a.i for a in n.attribute}
                mats.append((at["K"], at["N"]))
        made = {n.output[0]: n.input[0] for n in g.node if n.op_type in ("DequantizeLinear", "Cast")}
        for n in g.node:
            w = inits.get(made.get(n.input[1], n.input[1])) if n.op_type == "MatMul" else None
            if w is not None and len(w.dims) == 2:
                mats.append(tuple(w.dims))
        if not mats or self.vocabulary not in {n for _, n in mats}:
            return None
        hidden = next(k for k, n in mats if n == self.vocabulary)
        ffn = max((k for k, n in mats if n == hidden), default=0)
        q = min((k for k, n in mats if n == hidden), default=0)
        if not ffn or q % head or hidden % 32 or ffn % 32:
            return None
        return {"layers": len(caches) // 2, "hidden": hidden, "heads": q // head, "kv_heads": kv, "head": head, "ffn": ffn, "vocabulary": self.vocabulary}

    def shape(self, name, sizes):
        return [sizes.get(d, 1) if isinstance(d, str) else d for d in self.inputs[name]]

    def feeds(self, tokens, past, sizes, capacity=None):
        """Inputs of a call; caches with room for `capacity` positions."""
        rng, out = np.random.default_rng(1), {}
        batch = next((sizes[d] for d in self.inputs["input_ids"][:1] if d in sizes), 1)
        for name in self.inputs:
            if name in self.pairs.values():
                shape = self.shape(name, sizes)
                shape[self.axis] = past if capacity is None else capacity
                out[name] = aligned(rng.standard_normal(shape, dtype=np.float32).astype(self.types[name]))
            elif "mask" in name:
                out[name] = np.ones((batch, past + tokens), self.types[name])
            elif "position" in name:
                out[name] = np.arange(past, past + tokens, dtype=self.types[name])[None].repeat(batch, 0)
            elif "beam" in name:
                out[name] = np.arange(batch, dtype=self.types[name])[::-1].copy()
            elif np.issubdtype(self.types[name], np.floating):
                out[name] = aligned(rng.standard_normal(self.shape(name, sizes), dtype=np.float32).astype(self.types[name]))
            else:
                out[name] = rng.integers(0, self.vocabulary, (batch, tokens)).astype(self.types[name])
        return out

    def results(self, feeds, tokens, past):
        """Shapes of the outputs."""
        def of(name):
            if name not in self.pairs:
                return [*feeds["input_ids"].shape, self.vocabulary]
            shape = list(feeds[self.pairs[name]].shape)
            shape[self.axis] = past + tokens
            return shape
        return [of(n) for n in self.outputs]

    def cache_bytes(self, past, sizes):
        """Of all caches: those that grow, and others."""
        count = lambda n, s: int(np.prod(self.shape(n, s), dtype=np.int64)) * np.dtype(self.types[n]).itemsize
        others = [n for n in self.inputs if np.issubdtype(self.types[n], np.floating) and n not in self.pairs.values()]
        return sum(count(n, {**sizes, self.past: past}) for n in [*self.pairs.values(), *others])


class Llama:
    """llama.py in a process of its own."""

    def __init__(self, python, work):
        self.process = subprocess.Popen([python, os.path.join(HERE, "llama.py"), work], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)

    def ask(self, **job):
        """The answer, or nothing and a word about it: llama.cpp is no condition for the others."""
        if self.process is None:
            return None
        try:
            self.process.stdin.write(json.dumps(job) + "\n")
            self.process.stdin.flush()
            answer = json.loads(self.process.stdout.readline() or '{"ok": false, "error": "the process ended"}')
        except OSError as e:
            answer = {"ok": False, "error": str(e)}
        if answer["ok"]:
            return answer
        print(f"llama.cpp is left out: {answer['error']}", file=sys.stderr)
        self.close()
        return None

    def close(self):
        if self.process:
            self.process.stdin.close()
            self.process.wait()
        self.process = None


def ours(a, d, work, fixed=()):
    """The model compiled, with its caches in place where they may be."""
    base = tempfile.mktemp(prefix="decoder", dir=work)
    aliases = [] if a.copy or d.beams else [x for o, i in d.pairs.items() for x in ("--alias", f"{o}={i}")]
    options = [*(["--cpu", a.cpu] if a.cpu else []), *(["--math", a.math] if a.math else []), *[x for n, v in fixed for x in ("--dim", f"{n}={v}")]]
    start = time.perf_counter()
    subprocess.run([a.onnxc, d.path, "-o", base + ".o", "--emit", "obj", "--name", "decoder", *aliases, *options], check=True)
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
    for n, shape in zip(d.outputs, d.results(feeds, tokens, past)):
        keep.append(ort.OrtValue.ortvalue_from_shape_and_type(shape, d.types[d.pairs[n]] if n in d.pairs else np.float32))
        b.bind_ortvalue_output(n, keep[-1])
    return lambda: session.run_with_iobinding(b), keep


def measure(a, d, contestants, pool, tokens, past):
    """Median seconds of each, and the largest difference of the logits in parts of the largest one."""
    model, session, llama = contestants
    shared = d.feeds(tokens, past, a.dim, None if a.copy or d.beams else past + tokens + MARGIN)
    dense = {n: (np.ascontiguousarray(np.take(v, range(past), d.axis)) if n in d.pairs.values() else v) for n, v in shared.items()}
    run, outs = model.prepare(shared, d.results(shared, tokens, past), sizes={**a.dim, d.past: past}, in_place=True)
    theirs, keep = bound(session, d, dense, tokens, past)
    run(pool), theirs()
    want = keep[len(d.inputs)].numpy()
    error = float(np.abs(outs[0] - want).max() / np.abs(want).max())
    llama = llama if llama and llama.ask(do="phase", tokens=tokens, past=past) else None
    times = [[], [], []]
    for _ in range(a.rounds):
        for k, f in enumerate((lambda: run(pool), theirs)):
            times[k] += list(worker.python_samples(f, a.seconds / a.rounds / 2))
            # Pools spin for a while before they sleep.
            time.sleep(0.01)
        times[2] += (llama and llama.ask(do="time", seconds=a.seconds / a.rounds / 2) or {"samples": []})["samples"]
    return [float(np.median(t)) if t else None for t in times], error


def pool_of(threads, work):
    """An executor of so many threads."""
    if threads == 1:
        return None
    dll = ct.CDLL(compare.runtime_library(work))
    dll.onnxc_pool_create.restype = dll.onnxc_pool_exec.restype = ct.c_void_p
    dll.onnxc_pool_exec.argtypes = [ct.c_void_p]
    return dll.onnxc_pool_exec(dll.onnxc_pool_create(ct.c_size_t(threads)))


def arguments():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("onnxc")
    p.add_argument("models", nargs="+")
    numbers = lambda s: [int(x) for x in s.split(",") if x]
    p.add_argument("--threads", type=numbers, default=[1])
    p.add_argument("--past", type=numbers, default=[256, 2048])
    p.add_argument("--prefill", type=numbers, default=[128])
    p.add_argument("--dim", action="append", default=[], metavar="NAME=N", help="a symbolic size that is not 1")
    p.add_argument("--fix", action="store_true", help="compile for the sizes of each phase")
    p.add_argument("--copy", action="store_true", help="caches are copied, not aliased")
    p.add_argument("--level", choices="01234", help="ONNX Runtime's accuracy_level for blocked DequantizeLinear and MatMul, 4 by default")
    p.add_argument("--llama", default=sys.executable, metavar="PYTHON", help="a Python that has llama_cpp and gguf; none: without llama.cpp")
    p.add_argument("--seconds", type=float, default=4)
    p.add_argument("--rounds", type=int, default=4)
    p.add_argument("--cpu")
    p.add_argument("--math")
    p.add_argument("--json")
    a = p.parse_args()
    a.dim = {n: int(v) for n, _, v in (x.partition("=") for x in a.dim)}
    if a.fix:
        a.copy = True
    return a


def main():
    a, rows = arguments(), []
    print(f"{'model':12} {'phase':13} {'threads':>7} {'onnxc ms':>9} {'tokens/s':>9} {'ORT ms':>8} {'ORT/onnxc':>9} {'llama ms':>8} {'llama/onnxc':>11} {'MB/token':>8} {'of memory':>9} {'difference':>10}")
    ratio = lambda x, y: f"{x / y:.2f}" if x else "-"
    with tempfile.TemporaryDirectory() as work:
        llama = Llama(a.llama, work) if a.llama != "none" else None
        for path in a.models:
            d, name = Decoder(path), os.path.basename(path).removesuffix(".onnx")[:12]
            if not a.fix:
                model, seconds, size = ours(a, d, work)
                print(f"{name}: compiled in {seconds:.1f} s, {size / 1e6:.0f} MB of {os.path.getsize(path) / 1e6:.0f} MB")
            for threads in a.threads:
                pool = pool_of(threads, work)
                machine = json.loads(subprocess.run([a.onnxc, "bench", "--machine", "--json", "--threads", str(threads)], capture_output=True, text=True, check=True).stdout)
                o = ort.SessionOptions()
                o.intra_op_num_threads, o.log_severity_level = threads, 4
                if a.level:
                    o.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", a.level)
                session = ort.InferenceSession(path, o, providers=["CPUExecutionProvider"])
                own_llama = llama and d.llama and llama.ask(do="load", sizes=d.llama, threads=threads, positions=max(a.past + a.prefill) + 64)
                for what, tokens, past in [("decode", 1, n) for n in a.past] + [("prefill", n, 0) for n in a.prefill]:
                    if a.fix:
                        known = dict(zip(d.inputs["input_ids"], d.feeds(tokens, past, a.dim)["input_ids"].shape))
                        model = ours(a, d, work, [(n, v) for n, v in known.items() if isinstance(n, str)])[0]
                    times, error = measure(a, d, (model, session, llama if own_llama else None), pool, tokens, past)
                    own, theirs, other = times
                    bytes_ = d.weights + d.cache_bytes(past, a.dim)
                    part = bytes_ / own / machine["memory"] if what == "decode" else None
                    rows.append({"model": name, "phase": what, "tokens": tokens, "past": past, "threads": threads, "onnxc": own, "onnxruntime": theirs, "llama": other,
                                 "bytes": bytes_, "memory": machine["memory"], "difference": error})
                    phase = f"{what} {past if what == 'decode' else tokens}"
                    print(f"{name:12} {phase:13} {threads:7} {own * 1e3:9.2f} {tokens / own:9.0f} {theirs * 1e3:8.2f} {ratio(theirs, own):>9} "
                          f"{f'{other * 1e3:.2f}' if other else '-':>8} {ratio(other, own):>11} {bytes_ / 1e6:8.0f} {f'{part:9.0%}' if part else '':>9} {error:10.1e}", flush=True)
        if llama:
            llama.close()
    if a.json:
        with open(a.json, "w") as f:
            json.dump(rows, f, indent=1)


if __name__ == "__main__":
    main()
