#!/usr/bin/env python3
"""The ONNX backend test suite, ahead of time: compile, link, call, compare.

    run.py ONNXC [--runtime LIB] [--update] [--erase] [--target TRIPLE] [--filter GLOB] [--jobs N] [--work DIR] [--verbose]

Every case of the installed onnx package that carries its own data (node, simple, pytorch-*) is exported, compiled by
ONNXC, linked with all others into a few shared libraries and called through the C interface in worker processes that
may crash. Each case ends in one verdict:

    pass      type, shape and values of every output are right within the case's own tolerance
    refused   ONNXC said at compile time that it does not take the model (exit status 1, a diagnostic code)
    wrong     another result, or a status at run time
    crash     ONNXC or the compiled code died, hung, or the object does not link

`expected.txt` lists the verdict of every case and holds both ways: a listed failure that passes is an error, too.
`--update` rewrites it. `wrong` and `crash` are faults whatever the list says.

The cases declare the shape of every expected output, which a compiler might believe. `--erase` makes the sizes in the
declared outputs unknown before it compiles; `erased.txt` lists those verdicts.

`--target` compiles a sample for another CPU and runs it under an emulator, if that is installed (cross.py): what passes
here must pass there. `--all` takes all cases in place of the sample; the suite as a CPU of each level of aarch64:

    python3 tests/onnx_backend/run.py target/release/onnxc --target aarch64-unknown-linux-gnu --emulate cortex-a72,neoverse-n1,max --all
"""
import argparse
import collections
import concurrent.futures
import fnmatch
import json
import os
import pathlib
import queue
import re
import select
import shutil
import subprocess
import sys
import tempfile
import warnings

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tools"))

BATCH = 250
# Their values are drawn from a generator that the specification leaves open: type and shape hold, and values are 0 or 1.
DRAWN = re.compile(r"test_bernoulli")
# Their references come from a float32 FFT, whose noise where the result is 0 exceeds their own tolerance.
NOISY = re.compile(r"test_dft_inverse")
# Lossy images: decoders round upsampled colours differently. libjpeg-turbo, which made the references, alternates.
LOSSY = re.compile(r"test_image_decoder_decode_jpeg_")
# Operators whose objects call a function of the runtime library, which is linked to nothing else.
FOREIGN = re.compile(r"test_image_decoder_")
COMPILE_SECONDS = 120
CALL_SECONDS = 60


def export(root):
    """Writes every case to `root/<name>/`: model.onnx, case.json, set_<i>/{input,output}_<k>.pb. Once per version of the packages
    that make the numbers."""
    import ml_dtypes
    import numpy
    import onnx
    stamp = root / "version"
    versions = " ".join(package.__version__ for package in (onnx, numpy, ml_dtypes))
    if stamp.exists() and stamp.read_text() == versions:
        return
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    from onnx import numpy_helper
    from onnx.backend.test.loader import load_model_tests
    warnings.simplefilter("ignore")  # Cases divide by zero and overflow on purpose.

    def serialized(value, info):
        if isinstance(value, onnx.TensorProto):
            return value.SerializeToString()
        t = info.type
        make = numpy_helper.from_array
        if t.HasField("map_type"):
            make = numpy_helper.from_dict
        elif t.HasField("sequence_type"):
            make = numpy_helper.from_list
        elif t.HasField("optional_type"):
            make = numpy_helper.from_optional
        return make(value, info.name).SerializeToString()

    for kind in ("node", "simple", "pytorch-converted", "pytorch-operator"):
        for case in load_model_tests(kind=kind):
            folder = root / case.name
            folder.mkdir()
            if case.model_dir:
                source = pathlib.Path(case.model_dir)
                shutil.copy(source / "model.onnx", folder / "model.onnx")
                for i, s in enumerate(sorted(source.glob("test_data_set_*"))):
                    shutil.copytree(s, folder / f"set_{i}")
            else:
                (folder / "model.onnx").write_bytes(case.model.SerializeToString())
                for i, (inputs, outputs) in enumerate(case.data_sets):
                    (folder / f"set_{i}").mkdir()
                    for what, values, infos in (("input", inputs, case.model.graph.input), ("output", outputs, case.model.graph.output)):
                        for k, v in enumerate(values):
                            (folder / f"set_{i}" / f"{what}_{k}.pb").write_bytes(serialized(v, infos[k]))
            (folder / "case.json").write_text(json.dumps({"rtol": case.rtol, "atol": case.atol}))
    stamp.write_text(versions)


def erased(path, to):
    """A copy of the model whose declared outputs have sizes that nobody knows."""
    import onnx
    model = onnx.load(str(path), load_external_data=False)

    def erase(t):
        kind = t.WhichOneof("value")
        if kind == "tensor_type":
            for d in t.tensor_type.shape.dim:
                d.Clear()
        elif kind in ("sequence_type", "optional_type"):
            erase(getattr(t, kind).elem_type)

    for o in model.graph.output:
        erase(o.type)
    to.write_bytes(model.SerializeToString())
    return to


def compile_case(onnxc, folder, out, erase, target=None):
    """(verdict, note, object); the verdict is None where the object has still to be called."""
    name = folder.name
    obj = out / f"{name}.o"
    model = erased(folder / "model.onnx", out / f"{name}.onnx") if erase else folder / "model.onnx"
    try:
        r = subprocess.run([onnxc, str(model), "-o", str(obj), "--name", name, *(["--target", target] if target else ["--emit", "obj"])], capture_output=True, text=True, errors="replace", timeout=COMPILE_SECONDS)
    except subprocess.TimeoutExpired:
        return "crash", "the compiler hangs", None
    if r.returncode == 0 and obj.exists():
        return None, "", obj
    code = re.search(r"E\d{4}", r.stderr)
    first = next((l for l in r.stderr.splitlines() if l.strip()), "")
    detail = next((l.strip() for l in r.stderr.splitlines() if re.search(r"error.*E\d{4}", l)), first)
    if r.returncode == 1 and code:
        return "refused", f"{code.group()} {detail}", None
    return "crash", f"the compiler ends with {r.returncode}: {first} {r.stderr[-300:]!r}", None


def link_all(objects, out, runtime):
    """name -> library; those that do not link are left out."""
    import abi
    libs = {}

    def link(k, batch):
        lib = out / f"lib{k}.so"
        foreign = [runtime] if runtime and FOREIGN.match(batch[0][0]) else []
        try:
            abi.link([str(o) for _, o in batch], str(lib), *foreign)
            libs.update({n: lib for n, _ in batch})
        except subprocess.CalledProcessError:
            if len(batch) > 1:
                half = len(batch) // 2
                link(f"{k}a", batch[:half])
                link(f"{k}b", batch[half:])

    items = sorted(i for i in objects.items() if not FOREIGN.match(i[0]))
    for k in range(0, len(items), BATCH):
        link(k // BATCH, items[k:k + BATCH])
    for name, o in sorted(objects.items()):
        if FOREIGN.match(name):
            link(name, [(name, o)])
    return libs


# --- The worker: calls cases named on standard input, one answer a line. ---

def load_value(path, info):
    """(element type, array) of a tensor; (None, list, dict, array or None) of anything else."""
    import onnx
    kind = info.type.WhichOneof("value") if info is not None else "tensor_type"
    helper = onnx.numpy_helper
    if kind in (None, "tensor_type"):
        t = onnx.TensorProto()
        t.ParseFromString(path.read_bytes())
        return t.data_type, helper.to_array(t)
    make, read = {"sequence_type": (onnx.SequenceProto, helper.to_list), "optional_type": (onnx.OptionalProto, helper.to_optional), "map_type": (onnx.MapProto, helper.to_dict)}[kind]
    v = make()
    v.ParseFromString(path.read_bytes())
    if kind == "optional_type" and v.elem_type in (onnx.OptionalProto.UNDEFINED, onnx.OptionalProto.OPTIONAL):
        return None, None
    return None, read(v)


def differ(got, want, rtol, atol):
    """What is wrong with a sequence, optional or map."""
    import numpy as np
    if want is None or got is None:
        return None if got is None and want is None else f"{got}, expected {want}"
    if isinstance(want, list):
        if not isinstance(got, list) or len(got) != len(want):
            return f"{got}, expected {len(want)} items"
        return next((f"item {k}: {d}" for k, d in enumerate(differ(g, w, rtol, atol) for g, w in zip(got, want)) if d), None)
    if isinstance(want, dict):
        if set(got) != set(want):
            return f"keys {sorted(got)}, expected {sorted(want)}"
        return next((f"key {k}: {d}" for k, d in ((k, differ(np.asarray(got[k]), np.asarray(want[k]), rtol, atol)) for k in want) if d), None)
    if got.shape != want.shape or got.dtype != want.dtype:
        return f"{got.dtype}{got.shape}, expected {want.dtype}{want.shape}"
    return None if np.allclose(got, want, rtol=rtol, atol=atol, equal_nan=True) else f"{got}, expected {want}"


# Types that numpy does not have are exchanged as unsigned integers of the same bits.
RAW = {16: "uint16", **{t: "uint8" for t in (17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28)}}


def call_case(folder, lib, name):
    import abi
    import onnx
    case = json.loads((folder / "case.json").read_text())
    model = onnx.load(str(folder / "model.onnx"), load_external_data=False)
    m = abi.Model(str(lib), name)
    names = [t.name.decode() for t in m.inputs]
    graph_inputs = [i.name for i in model.graph.input]
    for s in sorted(folder.glob("set_*")):
        infos = {i.name: i for i in list(model.graph.input) + list(model.graph.output)}
        count = len(list(s.glob("input_*.pb")))
        if count != len(graph_inputs):
            graph_inputs = names
        given = [load_value(s / f"input_{k}.pb", infos.get(n)) for k, n in zip(range(count), graph_inputs)]
        feeds = {n: a.view(RAW[t]) if t in RAW else a for n, (t, a) in zip(graph_inputs, given)}
        want = [load_value(s / f"output_{k}.pb", o) for k, o in zip(range(len(list(s.glob("output_*.pb")))), model.graph.output)]
        if len(want) != len(m.outputs):
            return f"{len(m.outputs)} outputs, expected {len(want)}"
        run, outs = m.prepare(feeds, [getattr(w, "shape", None) for _, w in want])
        run()
        for info, got, (dtype, ref) in zip(m.outputs, outs, want):
            label = info.name.decode()
            if dtype is None:
                problem = differ(got, ref, case["rtol"], case["atol"])
                if problem:
                    return f"{label}: {problem}"
                continue
            if info.dtype != dtype:
                return f"{label}: type {info.dtype}, expected {dtype}"
            if tuple(got.shape) != tuple(ref.shape):
                return f"{label}: shape {got.shape}, expected {ref.shape}"
            problem = compare(case, name, label, dtype, got, ref)
            if problem:
                return problem
    return None


def compare(case, name, label, dtype, got, ref):
    """None, or how an output of the right type and shape differs."""
    import abi
    import numpy as np
    from onnx import helper
    if DRAWN.match(name):
        return None if np.isin(got, (0, 1)).all() else f"{label}: values other than 0 and 1"
    if dtype in RAW:
        if dtype in (22, 26):  # numpy's int4 and int2 want the sign in the whole byte.
            bits = 8 - abi.PACKED[dtype]
            got = (got << bits).view(np.int8) >> bits
        got = got.view(helper.tensor_dtype_to_np_dtype(dtype)).astype(np.float32)
        ref = ref.astype(np.float32)
    if got.dtype == object:
        same = list(got.reshape(-1)) == [s.decode() if isinstance(s, bytes) else s for s in ref.reshape(-1)]
        return None if same else f"{label}: {got.tolist()}, expected {ref.tolist()}"[:400]
    # Two units in the last place of small floats, as the suite's own runner allows for bfloat16: fused code keeps
    # intermediate results in float.
    rtol = max(case["rtol"], {16: 2 ** -6, 10: 2 ** -9}.get(dtype, 0))
    atol = 2 if LOSSY.match(name) else 1e-6 if NOISY.match(name) else case["atol"]
    if LOSSY.match(name):
        got, ref = got.astype(np.int32), ref.astype(np.int32)
    try:
        np.testing.assert_allclose(got, ref, rtol=rtol, atol=atol)
    except AssertionError as e:
        return f"{label}: {' '.join(str(e).split())[:400]}"
    return None


def worker():
    out = os.dup(1)
    os.dup2(2, 1)  # Nothing but answers on the pipe.
    for line in sys.stdin:
        folder, lib, name = json.loads(line)
        try:
            problem = call_case(pathlib.Path(folder), lib, name)
        except Exception as e:  # Any fault of a case is its verdict, not the worker's end.
            problem = f"{type(e).__name__}: {e}"
        os.write(out, (json.dumps(problem) + "\n").encode())


class Worker:
    """One worker process, started again after each crash."""

    def __init__(self):
        self.process = None

    def call(self, folder, lib, name):
        if self.process is None:
            self.process = subprocess.Popen([sys.executable, __file__, "--worker"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        p = self.process
        try:
            p.stdin.write((json.dumps([str(folder), str(lib), name]) + "\n").encode())
            p.stdin.flush()
            answer = p.stdout.readline() if select.select([p.stdout], [], [], CALL_SECONDS)[0] else b""
        except BrokenPipeError:
            answer = b""
        if not answer:
            p.kill()
            code = p.wait()
            self.process = None
            return "crash", f"the call ends the process ({code})"
        problem = json.loads(answer)
        return ("pass", "") if problem is None else ("wrong", problem)

    def close(self):
        if self.process:
            self.process.stdin.close()
            self.process.wait()


def call_all(libs, root, jobs):
    """name -> (verdict, note)."""
    todo = queue.Queue()
    for item in sorted(libs.items()):
        todo.put(item)
    results = {}

    def loop(_):
        w = Worker()
        while True:
            try:
                name, lib = todo.get_nowait()
            except queue.Empty:
                break
            results[name] = w.call(root / name, lib, name)
        w.close()

    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        list(pool.map(loop, range(jobs)))
    return results


def read_expected(path):
    if not path.exists():
        return {}
    lines = (l.split() for l in path.read_text().splitlines() if l.strip() and not l.startswith("#"))
    return {l[0]: l[1] for l in lines}


def write_expected(path, results):
    import onnx
    count = collections.Counter(v for v, _ in results.values())
    lines = [f"# Verdicts of the backend suite of onnx {onnx.__version__}, written by run.py --update.", f"# {len(results)} cases: " + ", ".join(f"{n} {v}" for v, n in sorted(count.items()))]
    for name, (verdict, note) in sorted(results.items()):
        lines.append(f"{name} {verdict}" + (f" {note.split()[0]}" if verdict == "refused" else ""))
    path.write_text("\n".join(lines) + "\n")


def compile_all(onnxc, folders, out, jobs, erase):
    """(results so far, name -> object)."""
    results, objects = {}, {}
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        for folder, (verdict, note, obj) in zip(folders, pool.map(lambda f: compile_case(onnxc, f, out, erase), folders)):
            if verdict:
                results[folder.name] = (verdict, note)
            else:
                objects[folder.name] = obj
    return results, objects


def run_folders(onnxc, folders, root, jobs, erase=False, runtime=None):
    """The verdict of each case folder: name -> (verdict, note)."""
    with tempfile.TemporaryDirectory() as tmp:
        tmp = pathlib.Path(tmp)
        results, objects = compile_all(onnxc, folders, tmp, jobs, erase)
        libs = link_all(objects, tmp, runtime)
        results.update({n: ("crash", "the object does not link") for n in objects.keys() - libs.keys()})
        results.update(call_all(libs, root, jobs))
        return results


def main():
    if sys.argv[1:] == ["--worker"]:
        return worker()
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("onnxc")
    p.add_argument("--update", action="store_true", help="rewrite the list of verdicts")
    p.add_argument("--runtime", help="the static library of onnxc-runtime with the feature image, for models with ImageDecoder")
    p.add_argument("--erase", action="store_true", help="make the sizes of the declared outputs unknown; verdicts in erased.txt")
    p.add_argument("--target", help="run a sample on another CPU")
    p.add_argument("--emulate", metavar="CPUS", help="with --target: the CPUs to run it as, in names of the emulator, separated by commas; the emulator's best by default")
    p.add_argument("--all", action="store_true", help="with --target: all cases in place of a sample")
    p.add_argument("--filter", default="*", help="only cases whose name matches")
    p.add_argument("--jobs", type=int, default=4)
    p.add_argument("--work", default=os.path.join(tempfile.gettempdir(), "onnx_backend_cases"), help="where cases are exported to (kept)")
    p.add_argument("--verbose", action="store_true", help="also list why cases are refused")
    a = p.parse_args()
    root = pathlib.Path(a.work)
    export(root)
    folders = sorted(f.parent for f in root.glob("*/model.onnx") if fnmatch.fnmatch(f.parent.name, a.filter))
    if a.target:
        import cross
        return cross.main(os.path.abspath(a.onnxc), root, folders, a.target, a.emulate.split(",") if a.emulate else [None], a.all, a.jobs, read_expected(HERE / "expected.txt"), compile_case, compare)
    results = run_folders(os.path.abspath(a.onnxc), folders, root, a.jobs, a.erase, a.runtime)

    faults = 0
    for name, (verdict, note) in sorted(results.items()):
        if verdict in ("wrong", "crash"):
            faults += 1
        if verdict in ("wrong", "crash") or a.verbose and verdict == "refused":
            print(f"{verdict}: {name}: {note}")
    count = collections.Counter(v for v, _ in results.values())
    print(f"{len(results)} cases: " + ", ".join(f"{n} {v}" for v, n in sorted(count.items())))
    path = HERE / ("erased.txt" if a.erase else "expected.txt")
    if a.update:
        if a.filter != "*":
            sys.exit("--update needs all cases")
        write_expected(path, results)
    else:
        expected = read_expected(path)
        for name, (verdict, _) in sorted(results.items()):
            if expected.get(name) != verdict:
                faults += 1
                print(f"{name}: {verdict}, expected {expected.get(name, 'nothing (not listed)')}")
        for name in sorted(n for n in expected if n not in results and fnmatch.fnmatch(n, a.filter)):
            faults += 1
            print(f"{name} is listed, but there is no such case")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
