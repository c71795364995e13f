"""Real networks as tests/models.py takes them: models whose weights are made from recipes, with inputs and saved outputs."""
import fnmatch
import json
import pathlib
import subprocess
import sys

import numpy as np
import onnx


def arrays(outputs):
    """The outputs as io.json lists them: a sequence of maps is the keys of the first and a matrix of values."""
    for _, out in outputs:
        if isinstance(out, list):
            yield np.array(list(out[0]))
            yield np.array([[m[k] for k in out[0]] for m in out])
        else:
            yield out


def differ(got, binding, expected):
    """What is wrong with the outputs of one binding."""
    for o, a in zip(binding["outputs"], arrays(got)):
        want = expected[o["key"]]
        if list(a.shape) != list(o["shape"]):
            return f"{o['key']}: shape {a.shape}, expected {o['shape']}"
        have = a.reshape(-1)[:: o["stride"]][: want.size]
        if have.dtype == object:
            if have.tolist() != want.reshape(-1).astype(object).tolist():
                return f"{o['key']}: other strings"
            continue
        have, want = have.astype(np.float64), want.reshape(-1).astype(np.float64)
        error = np.abs(have - want).max(initial=0) / max(o.get("absmax") or 1.0, 1e-30)
        if not (np.isfinite(have).all() and error <= (o.get("suggested_tol_over_absmax") or 0.0)):
            return f"{o['key']}: error {error}"
    return None


def cases(suite, tools, work, pattern, make):
    """Those of a suite folder, inflated into `work`."""
    sys.path.insert(0, str(tools))
    import make_inputs
    work.mkdir(parents=True, exist_ok=True)
    out = []
    for d in sorted(pathlib.Path(suite).iterdir()):
        if not (d / "io.json").exists() or not fnmatch.fnmatch(d.name, pattern):
            continue
        path = work / f"{d.name}.onnx"
        if not path.exists():
            subprocess.run([sys.executable, str(pathlib.Path(tools) / "inflate.py"), str(d / "stripped.onnx"), str(path)], check=True, stdout=subprocess.DEVNULL)
        io, expected = json.loads((d / "io.json").read_text()), np.load(d / "expected.npz")
        sets = [(make_inputs.make_binding(b), b) for b in io["bindings"]]
        out.append(make(d.name, onnx.load(str(path), load_external_data=False), sets, path=path, compare=lambda got, b, expected=expected: differ(got, b, expected)))
    return out
