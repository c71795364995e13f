"""onnxc: an ahead-of-time compiler from ONNX models to native code.

    import onnxc
    model = onnxc.compile("model.onnx")
    outputs = model.run({"x": x})
"""
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile

from ._model import Error, Model, TensorInfo

__all__ = ["CompileError", "Error", "Model", "TensorInfo", "compile", "load", "program"]


class CompileError(Error):
    """A model that onnxc refuses. The text has every finding, as the program prints it."""


def program():
    """Path of the program `onnxc`: $ONNXC, else the one of this package, else the one in PATH."""
    name = "onnxc" + (sysconfig.get_config_var("EXE") or "")
    here = [sysconfig.get_path("scripts"), os.path.join(os.path.dirname(sys.executable)),
            sysconfig.get_path("scripts", f"{os.name}_user")]
    candidates = [os.environ.get("ONNXC"), *[os.path.join(d, name) for d in here if d], shutil.which(name)]
    for c in candidates:
        if c and os.path.isfile(c):
            return c
    raise FileNotFoundError("the program onnxc is neither beside this Python nor in PATH; the variable ONNXC may name it")


def _dim(name, size):
    if isinstance(size, int):
        return f"{name}={size}"
    low, high = size
    return (f"{low}<=" if low is not None else "") + name + (f"<={high}" if high is not None else "")


def compile(model, *, output=None, threads=1, cpu="native", dims=None, math=None, optimize=None, opt=None,
            heap=None, weights=None, taps=(), aliases=None, trace=False, dim_expressions=False, ignore_output_types=False, strict=False, cache=None, args=()):
    """Compiles a model for this machine and loads it.

    model: path of a file, bytes, or an onnx.ModelProto (without external data).
    output: where to keep the shared library (FILE.so, for `load`); default: nowhere.
    threads: how many threads a call uses. Each parallel part of a call costs some 50 us in Python.
    dims: {"N": 4} fixes a dimension, {"N": (1, 32)} bounds it; None on either side for no bound.
    aliases: {"present.*": "past.*"}: state in place. taps: inner tensors that become outputs.
    cpu, math, optimize, opt, heap, weights ("embed" or "file"), trace, dim_expressions, ignore_output_types, strict: as for the program, see `onnxc --help`.
    cache: a folder with compiled models, shared by processes; default: the one that the variable ONNXC_CACHE names, if any.
    args: more arguments of the program.
    """
    flags = ["--cpu", cpu]
    for name, value in (("--math", math), ("--optimize", optimize), ("--heap", heap), ("--weights", weights), ("--cache", cache)):
        if value is not None:
            flags += [name, os.fspath(value) if name == "--cache" else str(value)]
    if opt is not None:
        flags.append(f"-O{opt}")
    for d, size in (dims or {}).items():
        flags += ["--dim", _dim(d, size)]
    for t in [taps] if isinstance(taps, str) else taps:
        flags += ["--tap", t]
    for o, i in (aliases or {}).items():
        flags += ["--alias", f"{o}={i}"]
    flags += [f for f, on in (("--trace", trace), ("--dim-expressions", dim_expressions), ("--ignore-output-types", ignore_output_types), ("--strict", strict)) if on]
    data = model if isinstance(model, bytes) else model.SerializeToString() if hasattr(model, "SerializeToString") else None
    path = "-" if data is not None else os.fspath(model)
    with tempfile.TemporaryDirectory(prefix="onnxc-") as folder:
        library = os.fspath(output) if output else os.path.join(folder, "model.so")
        kind = "shared" if sys.platform.startswith(("linux", "freebsd", "android")) else "obj"
        written = library if kind == "shared" else os.path.join(folder, "model.o")
        command = [program(), path, "--emit", kind, "-o", written, *flags, *args]
        done = subprocess.run(command, input=data, stdin=subprocess.DEVNULL if data is None else None,
                              stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False)
        text = done.stderr.decode(errors="replace").strip()
        if done.returncode == 2:
            raise ValueError(text)
        if done.returncode:
            raise CompileError(text, done.returncode)
        if kind == "obj":
            # The program writes shared libraries of ELF only: elsewhere the system's linker does.
            subprocess.run([os.environ.get("CC", "cc"), "-shared", "-o", library, written, "-lm"], check=True)
        file = os.path.splitext(written)[0] + ".weights"
        return Model(library, _prefixes(written) if kind == "shared" else ["model"], file if os.path.exists(file) else None, threads)


def load(library, *, name=None, weights=None, threads=1):
    """A model from a shared library that `compile` kept, or that `onnxc --emit shared` wrote.

    name: the prefix that it was compiled with, for a library with several models.
    weights: the file of the weights, where they are not in the library; default: FILE.weights beside it, if there is one.
    """
    beside = os.path.splitext(library)[0] + ".weights"
    weights = weights or (beside if os.path.exists(beside) else None)
    return Model(os.fspath(library), [name] if name else _prefixes(library), weights, threads)


def _prefixes(path):
    """What may be the prefix of the model in a shared library: its dynamic symbols stand at the beginning."""
    with open(path, "rb") as f:
        return sorted({n.decode() for n in re.findall(rb"\0(\w+)_model(?=\0)", f.read(1 << 16))})


def main():
    """`python -m onnxc`: the program."""
    sys.exit(subprocess.run([program(), *sys.argv[1:]], check=False).returncode)
