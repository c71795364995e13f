#!/usr/bin/env python3
"""Every operator of ONNX at every version of it, for every element type, against a reference.

    run.py ONNXC [--runtime LIB] [--update] [--filter GLOB] [--jobs N] [--work DIR] [--verbose] [--target TRIPLE [--emulate CPU]]

The schemas of the installed onnx package say which versions, types, attributes and optional operands there are. For each
(operator, version) the recipes (elementwise.py, layout.py, numeric.py, models.py, ml.py, values.py) give small nodes; for each type of
each type variable they become models of that operator set, ahead of time: all nodes of a version in one model, compiled
by ONNXC, linked, and called through the C interface. Results are compared with those of ONNX Runtime where it takes the
model, otherwise of onnx.reference, or of numpy where neither has that version (oracle.py).

A schema's attribute that no case sets, or an optional operand that no case gives or that no case leaves out, is a fault of
the recipe; EXEMPT lists what has a reason.

`expected.txt` has a line for each (operator, version, type variable, verdict), with the types it holds for:

    pass       every case gives the reference's result
    refused    ONNXC said at compile time that it does not take it, with the code; for some of the cases: after `pass`
    compiles   nothing says what the result is; the reason stands behind it

It holds both ways; `--update` rewrites it. With `--target`, models whose inputs and outputs are all numbers are called on
another CPU under an emulator (`tests/onnx_backend/cross.py`). Wrong results and crashes are faults whatever the list says.
"""
import argparse
import collections
import fnmatch
import hashlib
import json
import multiprocessing
import os
import pathlib
import pickle
import re
import subprocess
import sys
import tempfile
import warnings

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "tools")]

import numpy as np  # noqa: E402
import onnx  # noqa: E402
from onnx import helper  # noqa: E402

import elementwise  # noqa: E402
import layout  # noqa: E402
import ml  # noqa: E402
import models  # noqa: E402
import numeric  # noqa: E402
import oracle  # noqa: E402
import values  # noqa: E402
from recipe import Const, Context, code, convert, dtype, type_of  # noqa: E402

SECONDS = 120
# Operators whose objects call a function of the runtime library.
FOREIGN = {"ImageDecoder"}

RECIPES = {"": elementwise.R | layout.R | numeric.R | models.R | values.R, "ai.onnx.preview.training": numeric.R | values.R, "ai.onnx.preview": values.R, "ai.onnx.ml": ml.R | values.R}
# (operator, attribute or operand) that no case needs to set.
EXEMPT = set()
# Cases of a type that is not the usual one.
FEW = 6
TOLERANCE = {"float": (1e-4, 2e-6), "double": (1e-7, 1e-9), "float16": (2 ** -8, 2 ** -10), "bfloat16": (2 ** -6, 2 ** -8)}
# Integers that are rounded from something else may be one step apart.
ONE_STEP = {"QLinearConv", "QLinearMatMul", "QuantizeLinear", "DynamicQuantizeLinear", "Resize", "Upsample"}


def tensor_types(constraint):
    """Element types of a type variable, the usual one first."""
    names = [t[7:-1] for t in constraint.allowed_type_strs if t.startswith("tensor(")]
    order = ["float", "int64", "int32", "uint8", "bool"]
    return sorted(names, key=lambda t: (order.index(t) if t in order else len(order), t))


def bindings(schema):
    """(variable, type, binding): each type of each variable, the others being as usual."""
    free = {c.type_param_str: tensor_types(c) for c in schema.type_constraints}
    free = {v: t for v, t in free.items() if t}
    if not {"T", "V", "O"} & set(free):
        # Sequences and optionals only: their elements.
        free |= {c.type_param_str: e for c in schema.type_constraints if (e := [m[1] for t in c.allowed_type_strs if (m := re.fullmatch(r"(?:seq|optional)\(tensor\((\w+)\)\)", t))])}
    usual = {v: t[0] for v, t in free.items()}
    for v, types in free.items():
        for t in types:
            yield v, t, {**usual, v: t}
    if not free:
        yield "-", "-", {}


class Ours(Context):
    def allowed(self, var):
        return next(tensor_types(c) for c in self.schema.type_constraints if c.type_param_str == var)


def expand(schema):
    """Every case of a schema as a dictionary with operands and results in their types; and what the recipe lacks."""
    recipe = RECIPES[schema.domain].get(schema.name)
    if recipe is None:
        return [], ["no recipe"]
    items, lacks, seen = [], [], {}
    used, given, dropped = set(), set(), set()
    for var, t, binding in bindings(schema):
        key = tuple(sorted(binding.items()))
        usual = not seen
        if key in seen:
            items += [{**i, "var": var, "type": t, "again": True} for i in seen[key]]
            continue
        c = Ours(schema, binding, var)
        try:
            cases = recipe(c)
        except Exception as e:
            lacks.append(f"{var}={t}: {type(e).__name__}: {e}")
            continue
        if "consumed_inputs" in schema.attributes and cases and "consumed_inputs" not in cases[-1].attributes:
            last = cases[-1]
            last.attributes = {**last.attributes, "consumed_inputs": [0] * len(last.operands)}
            last.same = last.same if last.same is None or isinstance(last.same, int) or last.same[2] is not None else last.same
        for k, case in enumerate(cases if usual or var == "-" else cases[:FEW] if len(cases) < 20 else cases[:FEW]):
            nodes = case.nodes or [oracle.node_of(case, schema)]
            for node in (n for n in nodes if n.op_type == schema.name):
                used |= {x.name for x in node.attribute}
                for i, f in enumerate(schema.inputs):
                    (given if i < len(node.input) and node.input[i] else dropped).add(i)
            types = case.in_types or oracle.formal_types(schema, binding, schema.inputs, len(case.operands))
            operands = oracle.converted(case.operands, types)
            item = {"var": var, "type": t, "k": k, "types": types, "op": schema.name}
            outs = oracle.formal_types(schema, binding, schema.outputs, len(case.out))
            item["outs"] = case.types or [o for o, w in zip(outs, case.out) if w]
            results = [onnx.ValueInfoProto(name=f"y{i}") for i, w in enumerate(case.out) if w]
            item["node"] = onnx.GraphProto(node=nodes, output=results).SerializeToString()
            item["operands"] = operands
            item["rtol"] = case.rtol
            item["check"] = case.check is not None
            if case.check:
                item["want"], item["by"] = None, "check"
            else:
                with np.errstate(all="ignore"):
                    try:
                        want, item["by"], other, rtol = oracle.expected(case, schema, binding, both=BOTH)
                        item["rtol"] = max(item["rtol"], rtol)
                    except Exception as e:
                        want, item["by"], other = None, first(e), None
                item["want"] = None if want is None else [to_type(w, o) for w, o in zip(want if len(want) == len(item["outs"]) else [w for w, k in zip(want, case.out) if k], item["outs"])]
                if other is not None:
                    try:
                        item["other"] = [differs(to_type(w, o), g, o, item) for w, g, o in zip(other, item["want"], item["outs"])]
                    except Exception as e:
                        item["other"] = [first(e)]
            items.append(item)
        seen[key] = [i for i in items if i["var"] == var and i["type"] == t]
    lacks += [f"no case sets {a}" for a in schema.attributes if a not in used and (schema.name, a) not in EXEMPT]
    optional = onnx.defs.OpSchema.FormalParameterOption.Optional
    for i, f in enumerate(schema.inputs):
        if f.option == optional and (schema.name, f.name) not in EXEMPT:
            lacks += [f"no case {what} operand {f.name}" for what, s in (("gives", given), ("leaves out", dropped)) if i not in s]
    return items, lacks


def first(e):
    return f"{type(e).__name__}: {(str(e).splitlines() or [''])[0][:200]}"


def to_type(a, t):
    """A result as the type that the operator gives it: references drop it at times."""
    if "(" in t:
        return a
    a = np.asarray(a)
    if t == "string" or a.dtype.kind in "OU":
        return a
    with np.errstate(all="ignore"):
        return a.astype(dtype(t)) if a.dtype != dtype(t) else a


def differs(got, want, t, item):
    """None, or how two results differ."""
    if t.startswith("seq("):
        if len(got) != len(want):
            return f"{len(got)} elements, expected {len(want)}"
        return next((f"element {i}: {d}" for i, (g, w) in enumerate(zip(got, want)) if (d := differs(g, w, t[4:-1], item))), None)
    if t.startswith("map("):
        return None if got == want else f"{got}, expected {want}"
    if t.startswith("tensor("):
        t = t[7:-1]
        want = to_type(want, t)
        got = got if got.dtype == dtype(t) or t == "string" else got.view(dtype(t))
    if tuple(got.shape) != tuple(want.shape):
        return f"shape {got.shape}, expected {want.shape}"
    if t == "string":
        return None if (got.astype(str) == want.astype(str)).all() else f"{got.tolist()}, expected {want.tolist()}"
    rtol, atol = TOLERANCE.get(t, (0, 0))
    rtol = max(rtol, item["rtol"])
    if t == "double" and {"float", "float16", "bfloat16"} & set(item["types"]):
        rtol = max(rtol, 1e-5)
    if t in TOLERANCE and not t.startswith("double"):
        got, want = got.astype(np.float64), want.astype(np.float64)
    if t in TOLERANCE:
        finite = np.abs(want[np.isfinite(want)])
        atol = max(atol, float(finite.max()) * rtol / 50 if finite.size else 0)
    elif t.startswith("complex"):
        rtol, atol = 1e-5, 1e-6
    elif "int" in t or t == "bool":
        got, want = got.astype(object if "64" in t else np.int64), want.astype(object if "64" in t else np.int64)
        bad = got != want if item["op"] not in ONE_STEP else abs(got - want) > 1
        n = int(np.sum(bad))
        return None if not n else f"{n} of {got.size} differ: {got[bad].reshape(-1)[:4].tolist()}, expected {want[bad].reshape(-1)[:4].tolist()}"
    else:
        got, want = got.astype(np.float32), want.astype(np.float32)
    try:
        np.testing.assert_allclose(got, want, rtol=rtol, atol=atol)
    except AssertionError as e:
        return " ".join(str(e).split())[:300]
    return None


# --- Compiling and calling: all cases of a version are one model. ---

def pack(schema, items):
    """One model of the cases `items` (number -> case)."""
    nodes, inputs, inits, outputs, feeds = [], [], [], [], {}
    for n, item in items.items():
        graph = onnx.GraphProto.FromString(item["node"])
        rename = lambda names: [f"c{n}_{x}" if x else "" for x in names]
        for x, o, t in zip(rename(f"x{k}" for k in range(len(item["operands"]))), item["operands"], item["types"]):
            if o is None:
                continue
            if isinstance(o, Const):
                inits.append(onnx.numpy_helper.from_array(o.value, x))
            else:
                inputs.append(helper.make_value_info(x, type_of(t, getattr(o, "shape", None))))
                feeds[x] = o
        for k, node in enumerate(graph.node):
            node.name = f"c{n}" if len(graph.node) == 1 else f"c{n}_{k}"
            ins, outs = rename(node.input), rename(node.output)
            del node.input[:], node.output[:]
            node.input.extend(ins)
            node.output.extend(outs)
            # Gradient says by name what it is of.
            for a in node.attribute if node.op_type == "Gradient" else []:
                if a.name == "y":
                    a.s = f"c{n}_{a.s.decode()}".encode()
                else:
                    a.strings[:] = [f"c{n}_{x.decode()}".encode() for x in a.strings]
            nodes.append(node)
        outputs += [helper.make_value_info(f"c{n}_{y.name}", type_of(t)) for y, t in zip(graph.output, item["outs"])]
    version = schema.since_version
    graph = helper.make_graph(nodes, "g", inputs, outputs, inits)
    return helper.make_model(graph, opset_imports=oracle.imports(schema, version), ir_version=oracle.ir_version(version)), feeds


def compile_(onnxc, schema, items, folder, name):
    """({number: (verdict, note)} of those that do not compile, object or None, feeds)."""
    verdicts, items = {}, dict(items)
    while items:
        model, feeds = pack(schema, items)
        path, obj = folder / f"{name}.onnx", folder / f"{name}.o"
        path.write_bytes(model.SerializeToString())
        try:
            r = subprocess.run([onnxc, str(path), "-o", str(obj), "--name", name, "--emit", "obj", "--message-format", "json"], capture_output=True, text=True, errors="replace", timeout=SECONDS)
        except subprocess.TimeoutExpired:
            r = subprocess.CompletedProcess([], -1, "", "the compiler hangs")
        if r.returncode == 0:
            return verdicts, obj, feeds, items
        found = {}
        if r.returncode == 1:
            for line in r.stderr.splitlines():
                try:
                    d = json.loads(line)
                except ValueError:
                    continue
                node = re.fullmatch(r"c(\d+)(?:_\d+)?", d["origin"].get("name", ""))
                if node and int(node[1]) in items:
                    found[int(node[1])] = ("refused", d["code"], d["title"])
                elif len(items) == 1:
                    found[next(iter(items))] = ("refused", d["code"], d["title"])
        if not found:
            if len(items) == 1:
                return {**verdicts, next(iter(items)): ("crash", "", f"the compiler ends with {r.returncode}: {r.stderr[-600:]}")}, None, {}, {}
            # Someone ends the compiler, or has no name in its finding: find out who.
            for n in list(items):
                v, *_ = compile_(onnxc, schema, {n: items[n]}, folder, f"{name}_{n}")
                if v:
                    found |= v
            if not found:
                found = {n: ("crash", "", f"together only: {r.stderr[-300:]}") for n in items}
        verdicts |= found
        items = {n: i for n, i in items.items() if n not in found}
    return verdicts, None, {}, {}


def call(lib, name, items, feeds):
    """{number: problem or None}; raises where the call says that it failed."""
    import abi
    m = abi.Model(str(lib), name)
    wants = {}
    for n, item in items.items():
        for k, y in enumerate(onnx.GraphProto.FromString(item["node"]).output):
            wants[f"c{n}_{y.name}"] = (n, k)
    order = [wants[o.name.decode()] for o in m.outputs]
    shapes = [getattr(items[n]["want"][k], "shape", None) if items[n]["want"] else (40, 50) for n, k in order]
    raw = {x: a if isinstance(a, dict) else a.view(np.uint8 if a.dtype.itemsize == 1 else np.uint16) if a.dtype.kind == "V" or a.dtype.name == "bfloat16" or "float" in a.dtype.name and a.dtype.itemsize == 1 or a.dtype.name in ("int4", "uint4", "int2", "uint2") else a for x, a in feeds.items()}
    outs = emulated(m, lib.with_suffix(".o"), name, raw, shapes) if EMULATED else None
    if outs is None:
        run, outs = m.prepare(raw, shapes)
        run()
    results = {}
    for (n, k), got, o in zip(order, outs, m.outputs):
        t = items[n]["outs"][k]
        if o.kind:
            results.setdefault(n, None)
            d = results[n] is None and differs(got, items[n]["want"][k], t, items[n])
            results[n] = f"output {k}: {d}" if d else results[n]
            continue
        if o.dtype != code(t):
            results[n] = f"type {o.dtype}, expected {t}"
            continue
        if o.dtype in (22, 26):
            bits = 8 - abi.PACKED[o.dtype]
            got = (got << bits).view(np.int8) >> bits
        if got.dtype != dtype(t):
            got = got.view(dtype(t)) if got.dtype.itemsize == dtype(t).itemsize and o.dtype not in (21, 22, 25, 26) else got.astype(np.int64).astype(dtype(t))
        results.setdefault(n, None)
        if items[n]["check"]:
            results.setdefault(("got", n), []).append(got)
        elif results[n] is None:
            d = differs(got, items[n]["want"][k], t, items[n])
            results[n] = d and f"output {k}: {d}"
    return results


def emulated(m, obj, name, feeds, shapes):
    """The outputs of a model of numbers, compiled for another CPU and called under an emulator; None where it has others. The
    library of this machine, `m`, tells its inputs and outputs."""
    import abi
    import cross
    if any(t.kind or t.dtype == abi.STRING for t in [*m.inputs, *m.outputs]) or m.params:
        return None
    target, cpu = EMULATED
    out = obj.parent / f"{name}.emulated"
    out.mkdir()
    foreign = out / f"{name}.o"
    subprocess.run([ONNXC, str(obj.with_suffix(".onnx")), "-o", str(foreign), "--name", name, "--target", target], check=True, capture_output=True)
    command = [*cross.emulator(target, cpu), str(cross.build({name: foreign}, out, target))]
    as_bytes = lambda t, a: (abi.pack(a, abi.PACKED[t.dtype]) if t.dtype in abi.PACKED else np.asarray(a, order="C").astype(abi.DTYPES[t.dtype], copy=False)).tobytes()
    dims = [[d if d >= 0 else s[i] for i, d in enumerate(t.dims[:t.rank])] for t, s in zip(m.outputs, shapes)]
    size = lambda t, n: -(-n * abi.PACKED[t.dtype] // 8) if t.dtype in abi.PACKED else n * np.dtype(abi.DTYPES[t.dtype]).itemsize
    wanted = [(d, size(t, int(np.prod(d, dtype=np.int64)))) for t, d in zip(m.outputs, dims)]
    status, outputs = cross.answer(command, name, [as_bytes(t, feeds[t.name.decode()]) for t in m.inputs], wanted)
    if status:
        raise RuntimeError(f"call: {abi.STATUS.get(status, status)}")
    bits = lambda t, raw, d: abi.unpack(raw, abi.PACKED[t.dtype], d) if t.dtype in abi.PACKED else raw.view(abi.DTYPES[t.dtype]).reshape(d)
    return [bits(t, np.frombuffer(raw, np.uint8).copy(), d) for t, (_, d, raw) in zip(m.outputs, outputs)]


def guarded(f, *args):
    """The result of `f` in a process of its own, or ("ends", how)."""
    r, w = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(r)
        try:
            out = ("ok", f(*args))
        except Exception as e:
            out = ("raises", first(e))
        with os.fdopen(w, "wb") as p:
            pickle.dump(out, p)
        os._exit(0)
    os.close(w)
    with os.fdopen(r, "rb") as p:
        data = p.read()
    _, status = os.waitpid(child, 0)
    return pickle.loads(data) if data else ("ends", f"the call ends the process ({status})")


# Operators whose results that are text are not compared.
TEXT_DIFFERS = {
    "Cast": "floats have other digits in each reference",
    "CastLike": "floats have other digits in each reference",
}


def callable_types(item):
    import abi
    if "string" in item["outs"] and item["op"] in TEXT_DIFFERS:
        return False
    return all("(" in t or code(t) in abi.DTYPES or code(t) == abi.STRING for t in [t for t, o in zip(item["types"], item["operands"]) if o is not None and not isinstance(o, Const)] + item["outs"])


def check(job):
    """Verdicts of one schema: [(var, type, k, verdict, code, note)]."""
    onnxc, key, work = job
    schema = onnx.defs.get_schema(key[1], key[2], key[0])
    try:
        items, lacks = load(schema, work)
    except Exception as e:
        return key, [], [first(e)]
    unique = {n: i for n, i in enumerate(items) if not i.get("again")}
    with tempfile.TemporaryDirectory() as tmp:
        results = run_items(onnxc, schema, unique, pathlib.Path(tmp))
    by_case = {(tuple(i["types"]), i["node"], i["k"], tuple(i["outs"])): results[n] for n, i in unique.items()}
    out = []
    for n, i in enumerate(items):
        v, c, note = results[n] if n in results else by_case[tuple(i["types"]), i["node"], i["k"], tuple(i["outs"])]
        out.append((i["var"], i["type"], i["k"], v, c, note))
    differ = [f"{i['var']}={i['type']} case {i['k']}: the references differ: {o}" for i in items for o in i.get("other", []) if o and not i.get("again")]
    return key, out, lacks + differ


def run_items(onnxc, schema, items, folder):
    name = "m"
    silent = {n: i for n, i in items.items() if not callable_types(i) or i["want"] is None and not i["check"]}
    loud = {n: i for n, i in items.items() if n not in silent}
    results = {}
    if silent:
        verdicts, *_ = compile_(onnxc, schema, silent, folder, "s")
        results |= {n: verdicts.get(n, ("compiles", "", i["by"] if i["want"] is None else "not called: " + TEXT_DIFFERS.get(i["op"], "the type"))) for n, i in silent.items()}
    verdicts, obj, feeds, left = compile_(onnxc, schema, loud, folder, name) if loud else ({}, None, {}, {})
    results |= verdicts
    if obj:
        results |= call_items(onnxc, schema, left, obj, feeds, folder, name)
    return results


def call_items(onnxc, schema, items, obj, feeds, folder, name):
    import abi
    lib = folder / f"{name}.so"
    try:
        abi.link([str(obj)], str(lib), *([RUNTIME] if schema.name in FOREIGN else []))
    except subprocess.CalledProcessError as e:
        return {n: ("crash", "", f"the object does not link: {e}") for n in items}
    how, what = guarded(call, lib, name, items, feeds)
    if how != "ok":
        if len(items) == 1:
            return {n: ("wrong" if how == "raises" else "crash", "", what) for n in items}
        results = {}
        for n, i in items.items():
            verdicts, one, f, left = compile_(onnxc, schema, {n: i}, folder, f"{name}_{n}")
            results |= verdicts or call_items(onnxc, schema, left, one, f, folder, f"{name}_{n}")
        return results
    out = {}
    for n, i in items.items():
        problem = what[n]
        if i["check"] and problem is None and not checker(schema, i)(what["got", n]):
            problem = f"values out of bounds: {what['got', n][0].reshape(-1)[:5]}"
        out[n] = ("wrong", "", problem) if problem else ("pass", "", i["by"])
    return out


def checker(schema, item):
    """The predicate of a case, made again: it does not travel between processes."""
    for var, t, binding in bindings(schema):
        if (var, t) == (item["var"], item["type"]):
            return RECIPES[schema.domain][schema.name](Ours(schema, binding, var))[item["k"]].check


BOTH = False
RUNTIME = None
ONNXC = None
# Another CPU that calls run on: target, and the CPU as the emulator names it or None.
EMULATED = None


def load(schema, work):
    """The cases of a schema, kept under `work`: references are slow."""
    source = b"".join(f.read_bytes() for f in sorted(HERE.glob("*.py")))
    stamp = hashlib.sha256(source + onnx.__version__.encode() + bytes([BOTH])).hexdigest()[:16]
    path = work / stamp / f"{schema.domain}.{schema.name}.{schema.since_version}"
    if path.exists():
        return pickle.loads(path.read_bytes())
    out = expand(schema)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_suffix(f".{os.getpid()}").write_bytes(pickle.dumps(out))
    path.with_suffix(f".{os.getpid()}").rename(path)
    return out


def summary(results):
    """Lines of expected.txt: name version variable verdict: types."""
    lines = []
    for (domain, op, version), verdicts, _ in results:
        groups = collections.defaultdict(lambda: collections.Counter())
        for var, t, k, v, c, note in verdicts:
            groups[var, t][v if v != "refused" else f"refused {c}"] += 1
        shown = collections.defaultdict(list)
        for (var, t), count in groups.items():
            verdict = " ".join(v for v, _ in sorted(count.items()))
            shown[var, verdict].append(t)
        name = f"{domain}:{op}" if domain else op
        lines += [f"{name} {version} {var} {verdict}: {' '.join(sorted(types))}" for (var, verdict), types in shown.items()] or [f"{name} {version} - none:"]
    return sorted(lines, key=lambda l: (l.split()[0], int(l.split()[1]), l))


def main():
    global BOTH, RUNTIME, EMULATED, ONNXC
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("onnxc")
    p.add_argument("--runtime", help="the static library of onnxc-runtime with the feature image; without it, operators that need it are left out")
    p.add_argument("--update", action="store_true", help="rewrite the list of verdicts")
    p.add_argument("--both", action="store_true", help="also compare the references with each other")
    p.add_argument("--filter", default="*", help="only operators whose name matches")
    p.add_argument("--jobs", type=int, default=4)
    p.add_argument("--work", default=os.path.join(tempfile.gettempdir(), "onnx_versions"), help="where the cases are kept")
    p.add_argument("--verbose", action="store_true", help="also list why cases are refused or not compared")
    p.add_argument("--target", help="call the models of numbers on another CPU, under an emulator")
    p.add_argument("--emulate", metavar="CPU", help="with --target: the CPU to run them as, in the emulator's name; its best by default")
    a = p.parse_args()
    BOTH, RUNTIME, ONNXC = a.both, a.runtime, os.path.abspath(a.onnxc)
    if a.target:
        sys.path.insert(0, str(HERE.parent / "onnx_backend"))
        import cross
        if lacks := cross.missing(a.target):
            print(f"skipped: {a.target} needs {lacks}, which is not installed")
            return 0
        EMULATED = (a.target, a.emulate)
    warnings.simplefilter("ignore")
    taken = lambda name: fnmatch.fnmatch(name, a.filter) and (a.runtime or name not in FOREIGN)
    schemas = sorted((s.domain, s.name, s.since_version) for s in onnx.defs.get_all_schemas_with_history() if taken(s.name))
    with multiprocessing.Pool(a.jobs) as pool:
        results = sorted(pool.imap_unordered(check, [(os.path.abspath(a.onnxc), s, pathlib.Path(a.work)) for s in schemas], chunksize=2), key=lambda r: r[0])
    faults, count = 0, collections.Counter()
    for (domain, op, version), verdicts, lacks in results:
        name = f"{domain}:{op}" if domain else op
        for l in lacks:
            faults += 1
            print(f"{name} {version}: {l}")
        for var, t, k, v, c, note in verdicts:
            count[v] += 1
            faults += v in ("wrong", "crash")
            if v in ("wrong", "crash") or a.verbose and v != "pass":
                print(f"{v}: {name} {version} {var}={t} case {k}: {c} {note}")
    print(f"{len(results)} versions, {sum(count.values())} cases: " + ", ".join(f"{n} {v}" for v, n in sorted(count.items())))
    path, lines = HERE / "expected.txt", summary(results)
    if a.update:
        if a.filter != "*" or not a.runtime:
            sys.exit("--update needs all operators, and --runtime")
        path.write_text(f"# Verdicts of onnx {onnx.__version__}, written by run.py --update.\n" + "\n".join(lines) + "\n")
        return 1 if faults else 0
    expected = [l for l in path.read_text().splitlines() if l and l[0] != "#" and taken(l.split()[0].split(":")[-1])] if path.exists() else []
    for l in sorted(set(lines) ^ set(expected)):
        faults += 1
        print(("found, not listed: " if l in lines else "listed, not found: ") + l)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
