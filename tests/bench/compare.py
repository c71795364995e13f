"""Times ONNX Runtime, OpenVINO and onnxc side by side on the same models, inputs and thread counts. See README.md.

    compare.py ONNXC MODEL... [--threads 1,4] [--out DIR] [--append]
    compare.py ONNXC --micro  [--threads 1,4] [--out DIR] [--append]
    compare.py ONNXC --operators [NAMES] [--threads 1,4] [--out DIR] [--append]

A MODEL is an .onnx file, a folder with stripped.onnx and io.json, or a folder of such folders.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile
import time

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, HERE)
sys.path.insert(0, os.path.join(HERE, "..", "tools"))
import abi
import cases
import report

CONTESTANTS = ["onnxc", "onnxruntime", "openvino"]


class Worker:
    """A contestant's process. It is blocked on its pipe unless a command runs."""

    def __init__(self, kind, work):
        env = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE"}
        self.p = subprocess.Popen([sys.executable, os.path.join(HERE, "worker.py"), kind, work], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                  stderr=subprocess.DEVNULL, text=True, env=env)

    def ask(self, **job):
        try:
            self.p.stdin.write(json.dumps(job) + "\n")
            self.p.stdin.flush()
            line = self.p.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            return {"ok": False, "error": f"the process ended with status {self.p.wait()}"}
        return json.loads(line)

    def end(self):
        self.p.stdin.close()
        try:
            self.p.wait(20)
        except subprocess.TimeoutExpired:
            self.p.kill()
            self.p.wait()


def compile_ours(onnxc, path, library, flags):
    """None, or the first error of the compiler."""
    obj = library[:-3] + ".o"
    r = subprocess.run([onnxc, path, "-o", obj, "--emit", "obj", "--name", "bench_model", *flags], capture_output=True, text=True)
    if r.returncode:
        return next((l for l in r.stderr.splitlines() if l.startswith("error")), r.stderr[-200:])
    abi.link([obj], library)
    os.remove(obj)
    return None


def flags_of(a, case):
    """What the command line tells the compiler about a case."""
    dims = [f"--dim={k}={v}" for k, v in case.dims.items()] if a.fix_dims else []
    return dims + ([f"--cpu={a.cpu}"] if a.cpu else []) + ([f"--math={a.math}"] if a.math else [])


def runtime_library(work):
    """onnxc-runtime's pool as a shared library."""
    target = os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target"))
    subprocess.run(["cargo", "rustc", "--quiet", "-p", "onnxc-runtime", "--release", "--crate-type", "cdylib"], cwd=ROOT, check=True)
    found = os.path.join(target, "release", "libonnxc_runtime" + (".dylib" if sys.platform == "darwin" else ".so"))
    if not os.path.exists(found):
        raise SystemExit(f"{found}: cargo did not write it")
    return found


def difference(got, want, case, k):
    """How far an output is from its reference, in units of the tolerance."""
    o = case.expected[k] if case.expected else None
    have = np.asarray(got)
    if o:
        if list(have.shape) != list(o["shape"]):
            return float("inf")
        have, want = have.reshape(-1)[::o["stride"]][:o["want"].size], o["want"]
    elif have.shape != np.shape(want):
        return float("inf")
    if have.dtype.kind not in "fiub":
        return 0.0 if np.array_equal(have, want) else float("inf")
    have, want = have.astype(np.float64).reshape(-1), np.asarray(want).astype(np.float64).reshape(-1)
    if not want.size:
        return 0.0
    scale = np.abs(want[np.isfinite(want)]).max(initial=0.0) or 1.0
    tolerance = max(o["tolerance"] if o else 0.0, case.tolerance) * scale
    both = np.isnan(have) & np.isnan(want) | (have == want)
    with np.errstate(invalid="ignore"):
        d = np.where(both, 0.0, np.abs(have - want))
    return float(np.inf if np.isnan(d).any() else d.max() / tolerance)


def read_results(path):
    with np.load(path) as z:
        return [z[f"arr_{i}"] for i in range(len(z.files))]


def measure(a, case, threads, work, ours):
    """One row: every contestant loaded, checked, then timed in rounds that take turns."""
    feeds = os.path.join(work, "feeds.npz")
    np.savez(feeds, **{k: v.astype(str) if v.dtype == object else v for k, v in case.feeds.items()})
    row = {"model": case.name, "binding": case.binding, "threads": threads, "flops": case.flops, "contestants": {}}
    workers, outputs = {}, {}
    try:
        row["contestants"] = {kind: {} for kind in a.contestants}
        # Ours comes last: it is told the sizes of outputs that follow from the data, which a peer has found.
        for kind in sorted(a.contestants, key=lambda kind: kind == "onnxc"):
            entry = row["contestants"][kind]
            if kind == "onnxc" and ours.get("error"):
                entry["error"] = ours["error"]
                continue
            w = Worker(kind, work)
            results = os.path.join(work, f"{kind}.npz")
            job = {"do": "load", "model": case.path, "feeds": feeds, "results": results, "threads": threads, "inputs": case.inputs,
                   "outputs": case.dtypes, "dims": case.dims if a.fix_dims else {}, "precision": None if a.math == "fast" else "f32"}
            if kind == "onnxc":
                job |= {"library": ours["library"], "runtime": ours.get("runtime"), "name": "bench_model", "shapes": case.shapes(outputs)}
            answer = w.ask(**job)
            if answer["ok"]:
                workers[kind], outputs[kind] = w, read_results(results)
            else:
                entry["error"] = answer["error"]
                w.end()
        reference = case.reference(outputs)
        for kind, outs in outputs.items():
            errors = [difference(g, reference[k] if reference else None, case, k) for k, g in enumerate(outs)]
            row["contestants"][kind]["difference"] = max(errors, default=0.0)
        for _ in range(a.rounds):
            for kind, w in list(workers.items()):
                before, start = busy(), time.perf_counter()
                answer = w.ask(do="time", seconds=a.seconds / a.rounds)
                after, took = busy(), time.perf_counter() - start
                entry = row["contestants"][kind]
                if not answer["ok"]:
                    entry["error"] = answer["error"]
                    workers.pop(kind).end()
                    continue
                if before is not None and after is not None:
                    # CPUs that other processes used meanwhile: in the quietest round.
                    foreign = max(0.0, after - before - answer["cpu"]) / took
                    entry["foreign"] = min(entry.get("foreign", float("inf")), foreign)
                entry["min"] = min(entry.get("min", float("inf")), answer["min"])
                entry.setdefault("medians", []).append(answer["median"])
                entry["samples"] = entry.get("samples", 0) + answer["samples"]
    finally:
        for w in workers.values():
            w.end()
    for e in row["contestants"].values():
        if "medians" in e:
            e["median"] = float(np.median(e.pop("medians")))
    return row


def busy():
    """CPU seconds that all processes have used so far; none where the system does not tell."""
    try:
        with open("/proc/stat") as f:
            n = [int(x) for x in f.readline().split()[1:]]
        return (sum(n[:8]) - n[3] - n[4]) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError):
        return None


def machine():
    """The CPU as Linux names it, or the board."""
    cpu = "unknown CPU"
    try:
        cpu = next(l.split(":", 1)[1].strip() for l in open("/proc/cpuinfo") if l.startswith("model name"))
    except (OSError, StopIteration):
        if os.path.exists("/proc/device-tree/model"):
            cpu = open("/proc/device-tree/model").read().strip("\0 \n")
        elif sys.platform == "darwin":
            cpu = subprocess.run(["sysctl", "-n", "machdep.cpu.brand_string"], capture_output=True, text=True).stdout.strip()
    return {"cpu": cpu, "cpus": os.cpu_count()}


def peak_of(onnxc, threads):
    """What `onnxc bench` measures of the machine; None where it can not."""
    r = subprocess.run([onnxc, "bench", "--machine", "--json", "--threads", str(threads)], capture_output=True, text=True)
    return json.loads(r.stdout) if r.returncode == 0 else None


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("onnxc", help="the program; - leaves onnxc out")
    p.add_argument("models", nargs="*")
    p.add_argument("--micro", action="store_true", help="matrix products 256 to 1024 and the 3x3 layers of ResNet instead of models")
    p.add_argument("--operators", nargs="?", const=True, metavar="NAMES", help="single operators (all, or names separated by commas) instead of models")
    p.add_argument("--threads", default="1,4", help="thread counts, separated by commas")
    p.add_argument("--dim", action="append", default=[], metavar="NAME=SIZE", help="size of a symbolic dimension of plain .onnx files (default 1)")
    p.add_argument("--fix-dims", action="store_true", help="tell all contestants the sizes before they compile")
    p.add_argument("--bindings", default="all", help="bindings of io.json: all, first, or names separated by commas")
    p.add_argument("--contestants", default=",".join(CONTESTANTS))
    p.add_argument("--cpu", help="CPU level for onnxc (default: its own)")
    p.add_argument("--math", choices=["strict", "default", "fast"],
                   help="arithmetic of onnxc; with fast, OpenVINO takes its own default precision (bf16 where the CPU has it)")
    p.add_argument("--seconds", type=float, default=2.0, help="time for each contestant and row")
    p.add_argument("--rounds", type=int, default=5, help="turns into which that time is cut")
    p.add_argument("--tolerance", type=float, default=1e-4, help="least tolerance of an output, relative to its largest magnitude")
    p.add_argument("--work", help="folder for full models and libraries (default: temporary); NAME.onnx in it is used as it is")
    p.add_argument("--tools", help="folder with inflate.py and make_inputs.py (default: tools beside the suite)")
    p.add_argument("--out", help="folder for results.json, results.md and results.svg (default: only print)")
    p.add_argument("--append", action="store_true", help="keep rows of an earlier run in --out that this run does not replace")
    a = p.parse_args()
    a.threads = [int(t) for t in a.threads.split(",")]
    a.contestants = [c for c in a.contestants.split(",") if not (c == "onnxc" and a.onnxc == "-")]
    a.dims = dict((k, int(v)) for k, v in (d.split("=") for d in a.dim))
    unknown = set(a.contestants) - set(CONTESTANTS)
    if unknown or not (a.models or a.micro or a.operators):
        p.error(f"unknown contestant {', '.join(unknown)}" if unknown else "no model given")
    return a


def main():
    a = arguments()
    rows, bad = [], 0
    with tempfile.TemporaryDirectory() as work:
        ours = {}
        if "onnxc" in a.contestants and max(a.threads) > 1:
            ours["runtime"] = runtime_library(work)
        peaks = {t: peak_of(a.onnxc, t) for t in a.threads} if "onnxc" in a.contestants else {}
        library = None
        for case in cases.all_cases(a, work):
            if "onnxc" in a.contestants and library != (case.path, case.dims if a.fix_dims else None):
                ours["library"] = os.path.join(work, "ours.so")
                ours["error"] = compile_ours(a.onnxc, case.path, ours["library"], flags_of(a, case))
                library = (case.path, case.dims if a.fix_dims else None)
            for t in a.threads:
                row = measure(a, case, t, work, ours)
                row["peak"] = peaks.get(t)
                row["when"] = time.strftime("%Y-%m-%d")
                rows.append(row)
                print(report.line(row), flush=True)
                c = row["contestants"].get("onnxc", {})
                bad += "error" in c or c.get("difference", 0.0) > 1.0
                if a.out:
                    report.write(a.out, rows, a, machine(), append=a.append or len(rows) > 1)
    if not a.out:
        print("\n" + report.markdown(rows, a.contestants, machine()))
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
