"""Exports networks with symbolic sizes, compiles each once, runs it at two sizes and compares with ONNX Runtime.

    zoo.py ONNXC WORK_DIR [--exporter script|dynamo] [--bench] [NAME ...]

One line for each network and size. Exit code 1 if onnxc refused one, failed, or gave another result.
"""
import argparse
import inspect
import json
import os
import subprocess
import sys
import time
import warnings

import numpy as np

# Of the largest magnitude of an output.
TOLERANCE = 1e-4
SECONDS = 300


def export(name, exporter, path):
    """Writes the model, and inputs and results at both sizes beside it."""
    warnings.filterwarnings("ignore")
    import torch

    from networks import NETWORKS

    torch.manual_seed(0)
    torch.set_num_threads(1)
    make, inputs, axes = NETWORKS[name]
    module = make()
    sizes = [i() for i in inputs]
    names = [f"in{i}" for i in range(len(sizes[0]))]
    with torch.no_grad():
        if exporter == "script":
            out = module(*sizes[0])
            outs = [f"out{i}" for i in range(1 if isinstance(out, torch.Tensor) else len(out))]
            dynamic = {n: a for n, a in zip(names, axes) if a}
            torch.onnx.export(module, sizes[0], path, input_names=names, output_names=outs, dynamo=False, opset_version=17, dynamic_axes=dynamic)
        else:
            # A batch of one would be taken for a constant.
            dynamic = tuple({k: torch.export.Dim.DYNAMIC for k in a} for a in axes)
            if any(p.kind is p.VAR_POSITIONAL for p in inspect.signature(module.forward).parameters.values()):
                dynamic = (dynamic,)
            torch.onnx.export(module, sizes[1], path, input_names=names, dynamo=True, dynamic_shapes=dynamic, external_data=False)
    for i, tensors in enumerate(sizes):
        np.savez(f"{path}.{i}.npz", **{n: t.numpy() for n, t in zip(names, tensors)})


def session(path, optimized=True):
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    if not optimized:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def difference(got, want):
    """Largest difference relative to the largest magnitude; infinite where shapes or NaNs differ."""
    if got.shape != want.shape:
        return np.inf
    if not got.size:
        return 0.0
    got, want = got.astype(np.float64), want.astype(np.float64)
    if (np.isnan(got) != np.isnan(want)).any():
        return np.inf
    got, want = np.nan_to_num(got), np.nan_to_num(want)
    return float(np.abs(got - want).max() / max(np.abs(want).max(), 1e-30))


def run(command):
    """Exit code, and what was written last."""
    try:
        p = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return 124, f"more than {SECONDS} s"
    return p.returncode, p.stdout + p.stderr


def least(f, seconds=1.0):
    best, end = np.inf, time.perf_counter() + seconds
    while best == np.inf or time.perf_counter() < end:
        start = time.perf_counter()
        f()
        best = min(best, time.perf_counter() - start)
    return best


def time_of(onnxc, path, files, fixed):
    code, text = run([onnxc, "bench", "--json", "--seconds", "1", path, *files, *fixed])
    return json.loads(text[text.index("{"):])["min"] if code == 0 else np.nan


def inputs_of(peer, path, i):
    """The saved inputs of a size that the model has: an exporter may drop some."""
    saved = np.load(f"{path}.{i}.npz")
    return {k.name: saved[k.name] for k in peer.get_inputs()}


def runs_in(peer, path, i):
    """True if ONNX Runtime runs the model with the inputs of this size."""
    try:
        peer.run(None, inputs_of(peer, path, i))
    except Exception:
        return False
    return True


def check(a, name):
    """Prints a line for each size; true if all is well."""
    path = os.path.join(a.work, a.exporter, name.replace("/", "-") + ".onnx")
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if not os.path.exists(path + ".1.npz"):
        code, text = run([sys.executable, os.path.abspath(__file__), "--export", name, "--exporter", a.exporter, a.onnxc, path])
        if code:
            print(f"{name}: not exported: {(text.strip().splitlines() or ['?'])[-1][:120]}")
            return True
    try:
        peer, good = session(path), True
    except Exception as e:
        print(f"{name}: ONNX Runtime does not load it: {str(e)[:100]}")
        return True
    start = time.perf_counter()
    code, text = run([a.onnxc, path, "-o", path + ".o"])
    if code:
        runs = any(runs_in(peer, path, i) for i in range(2))
        print(f"{name}: onnxc exits with {code}{'' if runs else ', and ONNX Runtime fails'}\n{text[-1000:]}")
        return not runs
    compiled = time.perf_counter() - start
    os.remove(path + ".o")
    for i in range(2):
        inputs = inputs_of(peer, path, i)
        try:
            want = peer.run(None, inputs)
        except Exception as e:
            print(f"{name}, size {i}: ONNX Runtime fails: {str(e)[:100]}")
            continue
        files, results, fixed = [], [], []
        for declared in peer.get_inputs():
            file = f"{path}.{declared.name}.npy"
            np.save(file, inputs[declared.name])
            files += ["--input", f"{declared.name}={file}"]
            sizes = zip(declared.shape, inputs[declared.name].shape)
            fixed += [x for d, n in sizes if isinstance(d, str) for x in ("--dim", f"{d}={n}")]
        outputs = [f"{path}.out{k}.npy" for k in range(len(want))]
        for file, o in zip(outputs, peer.get_outputs()):
            results += ["--output", f"{o.name}={file}"]
        code, text = run([a.onnxc, "run", path, *files, *results])
        if code:
            print(f"{name}, size {i}: onnxc run exits with {code}\n{text[-1000:]}")
            good = False
            continue
        got = [np.load(f) for f in outputs]
        off = max(map(difference, got, want))
        if off > TOLERANCE:
            off = min(off, max(map(difference, got, session(path, False).run(None, inputs))))
        line = f"{name}, size {i}: compiled in {compiled:.1f} s, difference {off:.1e}"
        if a.bench:
            ours = time_of(a.onnxc, path, files, [])
            line += f", ratio {least(lambda: peer.run(None, inputs)) / ours:.2f}, symbolic/fixed {ours / time_of(a.onnxc, path, files, fixed):.2f}"
        print(line if off <= TOLERANCE else line + ": WRONG", flush=True)
        good &= off <= TOLERANCE
    return good


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("onnxc")
    p.add_argument("work")
    p.add_argument("names", nargs="*")
    p.add_argument("--exporter", choices=["script", "dynamo"], default="script")
    p.add_argument("--bench", action="store_true")
    p.add_argument("--export", help=argparse.SUPPRESS)
    a = p.parse_intermixed_args()
    if a.export:
        return export(a.export, a.exporter, a.work)
    from networks import NETWORKS

    chosen = lambda n: not a.names or any(n == x or x.endswith("*") and n.startswith(x[:-1]) for x in a.names)
    results = [check(a, n) for n in NETWORKS if chosen(n)]
    print(f"{sum(results)} of {len(results)} networks without a finding")
    sys.exit(0 if all(results) and results else 1)


if __name__ == "__main__":
    main()
