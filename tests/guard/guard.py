#!/usr/bin/env python3
"""Compiled models called with every buffer against an inaccessible page.

    guard.py ONNXC [--all] [--levels LIST] [--target TRIPLE] [--calls N] [--seed N] [--filter GLOB] [--jobs N] [--work DIR]
           [--suite DIR --tools DIR] [--report FILE]

Each case of the ONNX backend suite, and each model of tests/cases, is compiled as it is and with every size of every input
made a symbol of its own. driver.c calls it with the end, and again with the beginning, of every input, output, list of sizes,
workspace and weights file at an inaccessible page, inputs read-only, under signal handlers: with the sizes of the case, with
0, 1, 2 and the values around the constants in its nests, in combinations drawn from a seed, and with hostile values in place
of some. What must hold:

    no signal, no byte beside a buffer written, the same outputs for both placements, with and without tasks
    status 0 or one of those that the header lists; no size below 0, whatever the status
    with the sizes of the case, its expected outputs

Without --all it takes a sample, the same every time. --suite adds the networks of a folder like tests/models.py does.
"""
import argparse
import collections
import concurrent.futures
import fnmatch
import json
import os
import pathlib
import random
import re
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import zlib

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "tools"), str(HERE.parent / "onnx_backend")]

import numpy as np
import onnx

import cross
import networks
import run as backend
import sweep
import wire

BATCH = 60
COMPILE_SECONDS = 120
CALL_SECONDS = 20
# Code with vectors is what has most accesses to check.
VECTORS = {"riscv64gc-unknown-linux-gnu": "rv64gcv"}
# Bits of the vector registers of levels and CPUs that have more than 128.
LENGTHS = {"rv64gcv_zvl256b": 256, "spacemit-x60": 256, "rv64gcv_zvl512b": 512, "sifive-x280": 512}


def emulated(target, level):
    """What code of a level needs of an emulated machine."""
    vectors = f"rv64,v=true,vlen={LENGTHS.get(level, 128)},elen=64,vext_spec=v1.0"
    return ["-cpu", vectors] if target and target.startswith("riscv64") else []


class Case:
    """A model with the data of one call."""

    def __init__(self, name, model, sets, path=None, compare=None):
        self.name, self.model, self.sets, self.path, self.compare = name, model, sets, path, compare


def backend_case(folder):
    """A case of the backend suite."""
    model = onnx.load(str(folder / "model.onnx"), load_external_data=False)
    inputs, sets = sweep.inputs_of(model), []
    tolerance = json.loads((folder / "case.json").read_text())
    infos = {i.name: i for i in list(model.graph.input)}
    for s in sorted(folder.glob("set_*")):
        count = len(list(s.glob("input_*.pb")))
        names = [i.name for i in (model.graph.input if count == len(model.graph.input) else inputs)]
        feeds = {n: backend.load_value(s / f"input_{k}.pb", infos.get(n))[1] for k, n in zip(range(count), names)}
        want = [backend.load_value(s / f"output_{k}.pb", o) for k, o in enumerate(model.graph.output) if (s / f"output_{k}.pb").exists()]
        sets.append((feeds, want))

    def compare(got, want):
        for info, (dtype, a), (wanted, ref) in zip(model.graph.output, got, want):
            if wanted is None:
                problem = backend.differ(a, ref, tolerance["rtol"], tolerance["atol"])
                problem = problem and f"{info.name}: {problem}"
            elif dtype != wanted or tuple(a.shape) != tuple(ref.shape):
                problem = f"{info.name}: {dtype}{a.shape}, expected {wanted}{ref.shape}"
            else:
                problem = backend.compare(tolerance, folder.name, info.name, dtype, a, ref)
            if problem:
                return problem
    return Case(folder.name, model, sets, compare=compare)


def text_case(path, rng):
    """A model of tests/cases: its sizes are symbols already, its data is random. None if there is no such model."""
    lines = path.read_text().splitlines()
    try:
        model = onnx.parser.parse_model("\n".join(l for l in lines if not l.startswith("#")))
    except onnx.parser.ParseError:
        return None
    if any(n.op_type == "ImageDecoder" for n in model.graph.node):
        return None  # It needs the runtime library.
    feeds = {}
    for i in sweep.inputs_of(model):
        t = i.type.tensor_type
        if not i.type.HasField("tensor_type") or t.elem_type in wire.RAW or t.elem_type in (8, 14, 15):
            return None
        sizes = {}
        shape = [d.dim_value if d.HasField("dim_value") else sizes.setdefault(d.dim_param, 4) for d in t.shape.dim]
        if np.prod(shape, dtype=np.float64) > 1e7:
            return None
        dtype = wire.abi.DTYPES[t.elem_type]
        draw = np.random.default_rng(rng.randrange(1 << 30))
        feeds[i.name] = (draw.standard_normal(shape) if np.dtype(dtype).kind == "f" else draw.integers(0, 2, shape)).astype(dtype)
    name = "t_" + re.sub(r"\W", "_", f"{path.parent.name}_{path.stem}")
    return Case(name, model, [(feeds, None)], path=path)


class Build:
    """A case compiled in one way."""

    def __init__(self, case, way, level):
        self.case, self.way, self.level = case, way, level
        self.name = case.name
        self.model = sweep.symbolised(case.model) if way == "symbols" else case.model
        self.verdict = self.note = None
        self.numbers = []

    def compile(self, onnxc, out, target):
        path = self.case.path
        if path is None or self.way == "symbols":
            path = out / f"{self.name}.onnx"
            path.write_bytes(self.model.SerializeToString())
        self.object, self.weights = out / f"{self.name}.o", out / f"{self.name}.weights"
        level = self.level or VECTORS.get(target)
        machine = [*(["--target", target] if target else []), *(["--cpu", level] if level else [])]
        # The compiler's own time counts, whatever else the machine does meanwhile.
        limited = ["sh", "-c", f'ulimit -t {COMPILE_SECONDS}; exec "$0" "$@"']
        command = [*limited, onnxc, str(path), "-o", str(self.object), "--name", self.name, "--emit", "obj,header,nest", "--weights", f"file={self.weights}", *machine]
        try:
            r = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=10 * COMPILE_SECONDS)
        except subprocess.TimeoutExpired:
            r = None
        if r is None or r.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
            self.verdict, self.note = "compiler", "the compiler hangs"
            return
        nest = out / f"{self.name}.nest"
        if nest.exists():
            self.numbers = sweep.constants(nest.read_text())
            nest.unlink()
        if r.returncode == 1 and re.search(r"E\d{4}", r.stderr):
            self.verdict, self.note = "refused", next(l for l in r.stderr.splitlines() if re.search(r"E\d{4}", l))
        elif r.returncode or not self.object.exists():
            self.verdict, self.note = "compiler", f"the compiler ends with {r.returncode}: {' '.join(r.stderr.split())[:300]}"


class Harness:
    def __init__(self, a):
        self.a = a
        self.onnxc = os.path.abspath(a.onnxc)
        self.lock = threading.Lock()
        self.findings = []
        self.count = collections.Counter()
        self.statuses = collections.Counter()
        self.exhausted = collections.Counter()
        self.cc, self.emulator = os.environ.get("CC", "cc"), []
        if a.target:
            self.cc, emulator = cross.TOOLS[a.target]
            self.emulator = [emulator]
        self.target = a.target

    def finding(self, build, what, note, sizes=None):
        with self.lock:
            self.findings.append({"case": build.name, "way": build.way, "level": build.level, "what": what, "note": note, "sizes": sizes})
            self.count["findings"] += 1

    def link(self, builds, out):
        """The executable of some builds."""
        names = [b.name for b in builds]
        table = "".join(f"extern const onnxc_model {n}_model;\n" for n in names)
        table += "static const struct { const char *name; const onnxc_model *model; } cases[] = {\n" + "".join(f'  {{"{n}", &{n}_model}},\n' for n in names) + "};\n"
        (out / "cases.h").write_text(f'#include "{names[0]}.h"\n{table}')
        exe = out / f"driver_{len(builds)}_{names[0]}"
        subprocess.run([self.cc, "-O1", "-g0", "-static", "-o", str(exe), "-I", str(out), "-I", str(HERE), str(HERE / "driver.c"), *[str(b.object) for b in builds], "-lm"], check=True)
        return exe

    def batch(self, builds):
        with tempfile.TemporaryDirectory(prefix="guard") as out:
            out = pathlib.Path(out)
            for b in builds:
                b.compile(self.onnxc, out, self.a.target)
                with self.lock:
                    self.count["models"] += 1
                    self.count[b.verdict or "compiled"] += 1
                if b.verdict == "compiler":
                    self.finding(b, "compiler", b.note)
            good = [b for b in builds if not b.verdict]
            if not good:
                return
            self.run(out, good)
        with self.lock:
            print(f"{self.count['models']} models, {self.count['calls']} calls, {self.count['findings']} findings", file=sys.stderr, flush=True)

    def run(self, out, builds):
        """Links and calls compiled builds."""
        try:
            exe = self.link(builds, out)
        except subprocess.CalledProcessError:
            if len(builds) == 1:
                self.finding(builds[0], "link", "the object does not link")
            else:
                # Each alone, so that the one at fault is told.
                for b in builds:
                    self.run(out, [b])
            return
        names = None
        for b in builds:
            for what, note, sizes in self.call(b, exe):
                # An assertion of the emulator depends on where instructions lie among pages. The model alone has them elsewhere.
                if "qemu" in note and "Assertion" in note and len(builds) > 1:
                    self.run(out, [b])
                    break
                if "code=" in note:
                    names = names or symbol_table(exe)
                    note = re.sub(r"code=(0x[0-9a-f]+)", lambda m: "in " + symbol_at(names, int(m.group(1), 16)), note)
                self.finding(b, what, note, sizes)

    def requests(self, b):
        """(sizes, whether values are hostile, expected outputs, bytes)."""
        rng = random.Random(f"{self.a.seed} {b.name}")
        inputs = sweep.inputs_of(b.model)
        used = sweep.symbols(b.model)
        out = []
        for feeds, want in b.case.sets:
            out.append(({}, False, want, wire.request(inputs, feeds, want is not None)))
        feeds = b.case.sets[0][0]
        if not used:
            for _ in range(max(2, self.a.calls // 8)):
                out.append(({}, True, None, wire.request(inputs, sweep.feeds(b.model, feeds, {}, rng, True), False)))
            return out
        original = {n: np.shape(feeds[i])[axis] for n, (i, axis) in used.items()}
        for sizes in sweep.bindings(used, original, b.numbers, self.a.calls, rng)[1:]:
            wild = rng.random() < 0.15
            values = sweep.feeds(b.model, feeds, sizes, rng, wild)
            if values is not None:
                out.append((sizes, wild, None, wire.request(inputs, values, False)))
        return out

    def call(self, b, exe):
        """What is wrong: (what, note, sizes)."""
        todo = self.requests(b)
        while todo:
            command = [*self.emulator, *emulated(self.target, b.level), str(exe), b.name, str(b.weights), str(CALL_SECONDS)]
            try:
                r = subprocess.run(command, input=b"".join(t[3] for t in todo), capture_output=True, timeout=CALL_SECONDS * len(todo) + 60)
                end, data, log = r.returncode, r.stdout, r.stderr.decode(errors="replace")[-300:]
            except subprocess.TimeoutExpired as e:
                end, data, log = "no end", e.stdout or b"", ""
            got = wire.replies(data)
            for (sizes, wild, want, _), reply in zip(todo, got):
                note = f"{reply.note}{' (hostile values)' if wild else ''}"
                with self.lock:
                    self.count["calls"] += reply.calls
                    self.count["requests"] += 1
                    self.statuses[reply.verdict] += 1
                    self.exhausted[b.name] += reply.verdict == 4 and not wild
                if reply.verdict == wire.TOO_LARGE:
                    continue
                if reply.verdict < 0:
                    yield wire.VERDICTS[reply.verdict], note, sizes
                elif want is not None and reply.verdict:
                    yield "refuses", f"status {reply.verdict} with the sizes of the case {note}", sizes
                elif want is not None:
                    problem = b.case.compare(reply.outputs(b.model.graph.output), want)
                    if problem:
                        yield "wrong", problem, sizes
            if end == 0 and len(got) == len(todo):
                return
            if end == 2:
                raise RuntimeError(f"{b.name}: driver.c does not understand its input: {log}")
            yield "end", f"the driver ends with {end}: {log}", todo[len(got)][0] if len(got) < len(todo) else {}
            todo = todo[len(got) + 1:]


def symbol_table(exe):
    r = subprocess.run(["nm", "-n", str(exe)], capture_output=True, text=True, check=True)
    return [(int(l.split()[0], 16), l.split()[2]) for l in r.stdout.splitlines() if len(l.split()) == 3 and l.split()[1] in "tT"]


def symbol_at(names, address):
    best = "?"
    for at, name in names:
        if at > address:
            break
        best = name
    return best


def shape_of_note(note):
    """A note without what differs between models: the class of a finding."""
    note = re.sub(r"(input|output|dims in|text of|items of|out_dims of) \S+", r"\1", note)
    note = re.sub(r" in (\S+\.)?(workspace_for|call|task)\b", r" in \2", note)
    note = re.sub(r" in (?!workspace_for|call|task)\S+\.\S+", " in a kernel", note)
    return re.sub(r"-?\b(0x[0-9a-f]+|\d+)\b", "#", note)[:100]


def known(finding):
    """True if known.txt has the finding."""
    with open(os.path.join(HERE, "known.txt")) as f:
        rows = [line.split(None, 2) for line in f if line.strip() and not line.startswith("#")]
    return any(fnmatch.fnmatchcase(finding["case"], case) and fnmatch.fnmatchcase(finding["way"], way) for case, way, _ in rows)


def report(h, path):
    if path:
        with open(path, "w") as f:
            for x in sorted(h.findings, key=lambda x: (x["what"], x["case"], x["way"])):
                f.write(json.dumps(x) + "\n")
    classes = {}
    for x in h.findings:
        classes.setdefault((x["what"], shape_of_note(x["note"])), []).append(x)
    for (what, note), found in sorted(classes.items(), key=lambda c: -len(c[1])):
        cases = sorted({x["case"] for x in found})
        x = min(found, key=lambda x: (sum((x["sizes"] or {}).values()), x["case"]))
        print(f"{what}: {note}: {len(found)} times in {len(cases)} models: {' '.join(cases[:12])}")
        print(f"    {x['case']} ({x['way']}, {x['level'] or 'default'}) sizes {x['sizes']}: {x['note'][:300]}")
    exhausted = [f"{n} ({k})" for n, k in h.exhausted.most_common(12) if k]
    if exhausted:
        print("out of workspace with plain values: " + ", ".join(exhausted))
    names = {wire.abi.STATUS.get(s, wire.VERDICTS.get(s, "ok")): n for s, n in sorted(h.statuses.items())}
    print("verdicts: " + ", ".join(f"{n} {s}" for s, n in names.items()))
    print(f"{h.count['compiled']} models compiled, {h.count['refused']} refused, {h.count['calls']} calls, {h.count['findings']} findings")


def sample(cases, share):
    """A part of the cases that stays the same."""
    return [c for c in cases if zlib.crc32(c.encode()) % share == 0]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("onnxc")
    p.add_argument("--all", action="store_true", help="every case on every CPU level")
    p.add_argument("--levels", default="", help="CPU levels, separated by commas; default: what objects hold, with --all each level")
    p.add_argument("--target", help="run a sample on another CPU under qemu")
    p.add_argument("--calls", type=int, default=0, help="sizes tried with a model")
    p.add_argument("--share", type=int, default=0, help="one in so many cases")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--filter", default="*")
    p.add_argument("--jobs", type=int, default=2)
    p.add_argument("--work", default=os.path.join(tempfile.gettempdir(), "guard_cases"))
    p.add_argument("--suite", help="networks as tests/models.py takes them")
    p.add_argument("--tools", help="the tools of the networks")
    p.add_argument("--report", help="writes all findings to this file, one JSON object a line")
    a = p.parse_args()
    if a.target and cross.missing(a.target):
        print(f"skipped: {a.target} needs {cross.missing(a.target)}, which is not installed")
        return 0
    a.calls = a.calls or (50 if a.all else 24)
    a.share = a.share or (1 if a.all else 5)
    levels = a.levels.split(",") if a.levels else ["x86-64-v2", "x86-64-v3", "x86-64-v4"] if a.all and not a.target else [None]
    h = Harness(a)
    cases = []
    if a.suite and not os.path.isdir(a.suite):
        print(f"skipped: there are no networks in {a.suite}")
        return 0
    if a.suite:
        cases = networks.cases(a.suite, a.tools, pathlib.Path(a.work) / "networks", a.filter, Case)
    else:
        root = pathlib.Path(a.work) / "suite"
        backend.export(root)
        names = [f.parent.name for f in sorted(root.glob("*/model.onnx"))]
        names = [n for n in sample(names, a.share) if fnmatch.fnmatch(n, a.filter) and not backend.FOREIGN.match(n)]
        cases = [backend_case(root / n) for n in names]
        texts = sorted((HERE.parent / "cases").glob("**/*.onnxtxt")) + sorted(HERE.glob("models/*.onnxtxt"))
        texts = [t for t in texts if "errors" not in t.parts and (t.parent.name == "models" or zlib.crc32(t.stem.encode()) % a.share == 0)]
        cases += [c for c in (text_case(t, random.Random(t.stem)) for t in texts) if c and fnmatch.fnmatch(c.name, a.filter)]
    ways = ("as it is", "symbols")
    with concurrent.futures.ThreadPoolExecutor(a.jobs) as pool:
        work = []
        for level in levels:
            for way in ways:
                builds = [c for c in cases if way == "as it is" or sweep.inputs_of(c.model)]
                at_once = 1 if a.suite else BATCH
                work += [[Build(c, way, level) for c in builds[k:k + at_once]] for k in range(0, len(builds), at_once)]
        for f in [pool.submit(h.batch, w) for w in work]:
            f.result()
    report(h, a.report)
    fresh = [x for x in h.findings if not known(x)]
    if len(fresh) < len(h.findings):
        print(f"{len(h.findings) - len(fresh)} of the findings stand in known.txt")
    return 1 if fresh else 0


if __name__ == "__main__":
    sys.exit(main())
