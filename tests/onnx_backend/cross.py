"""A sample of the suite, or all of it, on another CPU: objects for a foreign target, one static executable of all of them and `driver.c`,
run under qemu's user mode. The sample has one case for each operator, and is the same every time."""
import collections
import concurrent.futures
import json
import pathlib
import shutil
import struct
import subprocess
import tempfile
import zlib

HERE = pathlib.Path(__file__).resolve().parent
# Target: C compiler, emulator.
TOOLS = {"aarch64-unknown-linux-gnu": ("aarch64-linux-gnu-gcc", "qemu-aarch64"), "riscv64gc-unknown-linux-gnu": ("riscv64-linux-gnu-gcc", "qemu-riscv64")}


def emulator(target, cpu=None):
    """The command that runs a program for a target, as a CPU of its own or as the emulator's best."""
    return [TOOLS[target][1], *(["-cpu", cpu] if cpu else [])]


def missing(target):
    """What is not installed, or None."""
    if target not in TOOLS:
        return f"a C compiler and an emulator for {target}: known are {', '.join(TOOLS)}"
    return next((t for t in TOOLS[target] if not shutil.which(t)), None)


def sample(folders, expected, every):
    """For each operator one case that passes here, whose inputs are tensors of known sizes, of numbers; or all such cases."""
    import onnx
    best = {}
    for f in folders:
        if expected.get(f.name) != "pass":
            continue
        model = onnx.load(str(f / "model.onnx"), load_external_data=False)
        types = [i.type for i in model.graph.input] + [o.type for o in model.graph.output]
        if not all(t.HasField("tensor_type") and t.tensor_type.elem_type != onnx.TensorProto.STRING for t in types) or any(d.dim_param or not d.HasField("dim_value") for i in model.graph.input for d in i.type.tensor_type.shape.dim):
            continue
        key = zlib.crc32(f.name.encode())
        operators = {(n.domain, n.op_type) for n in model.graph.node}
        if ("", "ImageDecoder") in operators:
            continue  # It needs the runtime library.
        if every:
            best[f.name] = (f,)
            continue
        for op in operators:
            # A case of the operator alone before one that contains it.
            rank = (len(model.graph.node), key, f)
            best[op] = min(best.get(op, rank), rank)
    return sorted({f for *_, f in best.values()})


def build(objects, out, target):
    """The executable."""
    names = sorted(objects)
    table = "".join(f"extern const onnxc_model {n}_model;\n" for n in names) + "static const struct { const char *name; const onnxc_model *model; } cases[] = {\n" + "".join(f'  {{"{n}", &{n}_model}},\n' for n in names) + "};\n"
    (out / "cases.h").write_text(f'#include "{names[0]}.h"\n{table}')
    exe = out / "driver"
    subprocess.run([TOOLS[target][0], "-O1", "-static", "-o", str(exe), "-I", str(out), str(HERE / "driver.c"), *[str(objects[n]) for n in names], "-lm"], check=True)
    return exe


def answer(command, name, inputs, wanted):
    """Calls a model with the bytes of its inputs and room for outputs of (shape, bytes): a status or None, and of each output
    its element type, shape and bytes."""
    number = lambda v: struct.pack("<q", v)
    data = number(len(inputs)) + b"".join(number(len(raw)) + raw for raw in inputs)
    data += b"".join(number(len(dims)) + b"".join(map(number, dims)) + number(size) for dims, size in wanted)
    r = subprocess.run([*command, name], input=data, capture_output=True, timeout=120)
    if r.returncode:
        raise RuntimeError(f"the driver ends with {r.returncode}: {r.stderr.decode(errors='replace')[-300:]}")
    at = 0

    def take(n):
        nonlocal at
        at += n
        return r.stdout[at - n:at]
    status = struct.unpack("<q", take(8))[0]
    outputs = []
    for _, size in [] if status else wanted:
        dtype, rank = struct.unpack("<qq", take(16))
        dims = struct.unpack(f"<{rank}q", take(8 * rank))
        outputs.append((dtype, dims, take(size)))
    return status or None, outputs


def call(command, folder, name, compare):
    """None, or what is wrong: the case's own data goes in, and what comes out is handed to `compare`."""
    import abi
    import numpy as np
    import onnx
    import run
    case = json.loads((folder / "case.json").read_text())
    model = onnx.load(str(folder / "model.onnx"), load_external_data=False)
    constants = {i.name for i in model.graph.initializer}
    for s in sorted(folder.glob("set_*")):
        given = [run.load_value(s / f"input_{k}.pb", None) for k in range(len(list(s.glob("input_*.pb"))))]
        want = [run.load_value(s / f"output_{k}.pb", None) for k in range(len(list(s.glob("output_*.pb"))))]
        if len(given) == len(model.graph.input):
            given = [g for g, i in zip(given, model.graph.input) if i.name not in constants]
        inputs = []
        for t, a in given:
            raw = a.view(run.RAW[t]) if t in run.RAW else a.astype(abi.DTYPES[t], copy=False)
            inputs.append((abi.pack(raw, abi.PACKED[t]) if t in abi.PACKED else np.ascontiguousarray(raw)).tobytes())
        size = lambda t, a: -(-a.size * abi.PACKED[t] // 8) if t in abi.PACKED else a.size * np.dtype(abi.DTYPES[t]).itemsize
        try:
            status, outputs = answer(command, name, inputs, [(a.shape, size(t, a)) for t, a in want])
        except RuntimeError as e:
            return "crash", str(e)
        if status:
            return "wrong", f"call: {abi.STATUS.get(status, status)}"
        for k, ((t, a), (dtype, dims, raw)) in enumerate(zip(want, outputs)):
            raw = np.frombuffer(raw, np.uint8)
            if dtype != t:
                return "wrong", f"output {k}: type {dtype}, expected {t}"
            if dims != tuple(a.shape):
                return "wrong", f"output {k}: shape {dims}, expected {a.shape}"
            got = abi.unpack(raw, abi.PACKED[t], dims) if t in abi.PACKED else raw.view(abi.DTYPES[t]).reshape(dims)
            problem = compare(case, name, f"output {k}", t, got, a)
            if problem:
                return "wrong", problem
    return "pass", ""


def run_sample(onnxc, root, folders, target, cpus, jobs, compile_case, compare):
    """CPU -> name -> (verdict, note). Objects for several CPU levels are compiled once, and run as each CPU."""
    refused, results = {}, {}
    with tempfile.TemporaryDirectory() as tmp, concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        tmp = pathlib.Path(tmp)
        objects = {}
        for folder, (verdict, note, obj) in zip(folders, pool.map(lambda f: compile_case(onnxc, f, tmp, False, target), folders)):
            if verdict:
                refused[folder.name] = (verdict, note)
            else:
                objects[folder.name] = obj
        exe = build(objects, tmp, target)
        for cpu in cpus:
            command = [*emulator(target, cpu), str(exe)]
            found = pool.map(lambda n: call(command, root / n, n, compare), sorted(objects))
            results[cpu] = {**refused, **dict(zip(sorted(objects), found))}
    return results


def main(onnxc, root, folders, target, cpus, every, jobs, expected, compile_case, compare):
    lacks = missing(target)
    if lacks:
        print(f"skipped: {target} needs {lacks}, which is not installed")
        return 0
    bad = False
    for cpu, results in run_sample(onnxc, root, sample(folders, expected, every), target, cpus, jobs, compile_case, compare).items():
        for name, (verdict, note) in sorted(results.items()):
            if verdict != "pass":
                print(f"{verdict}: {name}: {note}")
        count = collections.Counter(v for v, _ in results.values())
        print(f"{len(results)} cases for {target}{f' as {cpu}' if cpu else ''}: " + ", ".join(f"{n} {v}" for v, n in sorted(count.items())))
        bad |= set(count) != {"pass"}
    return int(bad)
