#!/usr/bin/env python3
"""Counts the instructions of random operators and blocks on a CPU that is not at hand, beside those on x86-64-v3.

    emulated.py ONNXC [--target TRIPLE] [--cpu LEVELS] [--count 96] [--first 0] [--seed 1] [--family NAMES] [--worst 30] [--qemu FOLDER]

The cases are those of hunt.py. Each is compiled for both machines with sizes as numbers, and for the target with sizes as symbols,
too, and called under QEMU's user mode, of which a plugin (count.c) counts the instructions. Vectors of 128 bits take about twice the
instructions of vectors of 256: a case with a much larger ratio runs one element at a time. Outputs are compared.
Needs C compilers for both machines, and qemu-user with plugins (not all distributions build it so; `--qemu` names the folder of one).
"""
import argparse
import os
import shutil
import struct
import subprocess
import sys
import tempfile

import numpy as np
import onnx

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
sys.path.insert(0, os.path.join(HERE, "..", "tools"))
sys.path.insert(0, os.path.join(HERE, "..", "onnx_backend"))
import cross
import hunt_cases
from cases import Case
from compare import difference

# Target: C compiler, emulator.
TOOLS = cross.TOOLS | {"x86_64-unknown-linux-gnu": ("gcc", "qemu-x86_64")}
# CPUs of the emulators; of the others the best one.
CPUS = {"riscv64gc-unknown-linux-gnu": "rv64,v=true,vlen=256,vext_spec=v1.0"}
BASE = ("x86_64-unknown-linux-gnu", "x86-64-v3")


class Failed(Exception):
    pass


def run(command, given=b""):
    """What a command writes to standard output and to standard error."""
    r = subprocess.run(command, input=given, capture_output=True, timeout=600)
    said = r.stderr.decode(errors="replace")
    if r.returncode:
        raise Failed(said.strip()[-160:] or f"{command[0]} ends with {r.returncode}")
    return r.stdout, said


def plugin(work, qemu):
    """The plugin for this version of QEMU, or None."""
    for version in (1, 2, 3, 4):
        path = os.path.join(work, f"count{version}.so")
        run(["cc", "-shared", "-fPIC", "-O1", f"-DVERSION={version}", "-o", path, os.path.join(HERE, "count.c")])
        if "instructions" in subprocess.run([qemu, "-plugin", path, "/bin/true"], capture_output=True, text=True).stderr:
            return path
    return None


class Emulated:
    """One machine under emulation."""

    def __init__(self, a, work, target, levels):
        self.onnxc, self.work, self.target, self.levels = a.onnxc, work, target, levels
        self.cc, self.qemu = TOOLS[target]
        self.cpu = CPUS.get(target, "max")
        if a.qemu:
            self.qemu = os.path.join(a.qemu, self.qemu)

    def missing(self):
        return next((t for t in (self.cc, self.qemu) if not shutil.which(t)), None)

    def call(self, case, params, outputs):
        """Instructions of a call, and the outputs, of known shapes and types."""
        at = lambda name: os.path.join(self.work, name)
        levels = ["--cpu", self.levels] if self.levels else []
        run([self.onnxc, case.path, "--target", self.target, "--name", "subject", "-o", at("subject.o"), *levels])
        run([self.cc, "-O1", "-static", "-I", self.work, "-o", at("program"), os.path.join(HERE, "emulated.c"), at("subject.o"), "-lm"])
        number = lambda v: struct.pack("<q", v)
        data = b"".join(map(number, params))
        for name in case.inputs:
            raw = np.ascontiguousarray(case.feeds[name]).tobytes()
            data += number(len(raw)) + raw
        sizes = [int(np.prod(shape)) * np.dtype(kind).itemsize for shape, kind in outputs]
        for (shape, _), size in zip(outputs, sizes):
            data += number(size) + b"".join(map(number, shape))
        counts = []
        for calls in (1, 2):
            raw, said = run([self.qemu, "-cpu", self.cpu, "-plugin", self.plugin, at("program")], number(calls) + data)
            counts.append(int(said.split("instructions ")[1].split()[0]))
        ends = np.cumsum(sizes, dtype=int)
        results = [np.frombuffer(raw[end - size:end], kind).reshape(shape) for size, end, (shape, kind) in zip(sizes, ends, outputs)]
        return counts[1] - counts[0], results


def shapes(model, case):
    """Shapes and types of the outputs of a model with sizes as numbers."""
    inferred = onnx.shape_inference.infer_shapes(model, data_prop=True).graph.output
    dims = [[d.dim_value for d in o.type.tensor_type.shape.dim] for o in inferred]
    if not all(all(d) and o.type.tensor_type.HasField("shape") for d, o in zip(dims, inferred)):
        raise Failed("shapes of outputs that only run time knows")
    return list(zip(dims, case.dtypes))


def measure(a, family, index, target, base):
    b = hunt_cases.draw(family, a.seed, index)
    numbers, symbols, sizes = b.finish(f"{family}_{index}")
    row = {"case": f"{family}:{index}", "text": " > ".join(b.text)}
    cases = []
    for form, model, dims in (("numbers", numbers, {}), ("symbols", symbols, sizes)):
        path = os.path.join(target.work, f"{form}.onnx")
        onnx.save(model, path)
        cases.append(Case(row["case"], form, path, dims, b.feeds, b.tolerance))
    outputs = shapes(numbers, cases[0])
    order = [p for p in dict.fromkeys(d.dim_param for i in symbols.graph.input for d in i.type.tensor_type.shape.dim) if p]
    row["base"], want = base.call(cases[0], [], outputs)
    row["numbers"], got = target.call(cases[0], [], outputs)
    row["symbols"], other = target.call(cases[1], [sizes[p] for p in order], outputs)
    row["differs"] = max((difference(g, w, cases[0], k) for have in (got, other) for k, (g, w) in enumerate(zip(have, want))), default=0.0)
    return row


def line(row):
    wrong = f" DIFFERS {row['differs']:.3g}" if row["differs"] > 1.0 else ""
    ratio, over = row["numbers"] / row["base"], row["symbols"] / row["numbers"]
    return f"{ratio:6.2f} {over:6.2f}  {row['case']:<18} {row['base']:>11} {row['numbers']:>11} {row['symbols']:>11}  {row['text']}{wrong}"


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("onnxc", help="the program")
    p.add_argument("--target", default="aarch64-unknown-linux-gnu", choices=list(cross.TOOLS))
    p.add_argument("--cpu", help="levels of the code; default: those of the target")
    p.add_argument("--count", type=int, default=96, help="cases, the families in turn")
    p.add_argument("--first", type=int, default=0, help="number of the first case")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--family", help="names separated by commas; default: all")
    p.add_argument("--worst", type=int, default=30, help="rows that are printed again, by ratio")
    p.add_argument("--qemu", metavar="FOLDER", help="where the emulators are")
    a = p.parse_args()
    families = a.family.split(",") if a.family else list(hunt_cases.FAMILIES)
    with tempfile.TemporaryDirectory() as work:
        folders = [os.path.join(work, n) for n in ("target", "base")]
        target, base = (Emulated(a, f, *m) for f, m in zip(folders, ((a.target, a.cpu), BASE)))
        lacks = target.missing() or base.missing()
        if lacks:
            return f"skipped: {lacks} is not installed"
        counts = plugin(work, base.qemu)
        if not counts:
            return f"skipped: {base.qemu} takes no plugins"
        for machine in (target, base):
            os.mkdir(machine.work)
            machine.plugin = counts
        rows = []
        print(f"{a.target} over x86-64-v3, symbols over numbers; instructions: x86-64-v3, numbers, symbols")
        for i in range(a.first, a.first + a.count):
            family = families[i % len(families)]
            try:
                rows.append(measure(a, family, i, target, base))
                print(line(rows[-1]), flush=True)
            except Failed as e:
                print(f"no result for {family}:{i}: {e}", flush=True)
    print("\nworst")
    for row in sorted(rows, key=lambda r: -r["numbers"] / r["base"])[:a.worst]:
        print(line(row))
    for title, values in ((a.target + " / x86-64-v3", [r["numbers"] / r["base"] for r in rows]), ("symbols / numbers", [r["symbols"] / r["numbers"] for r in rows])):
        if values:
            print(f"{title}: {len(values)} cases, median {np.median(values):.2f}, 95th percentile {np.percentile(values, 95):.2f}, most {max(values):.2f}")
    wrong = [r["case"] for r in rows if r["differs"] > 1.0]
    print(f"different results: {' '.join(wrong) or 'none'}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
