"""What is measured: models with their inputs and, where known, their outputs."""
import hashlib
import json
import os
import subprocess
import sys

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import operators

PREFERRED = ["onnxruntime", "openvino", "onnxc"]


class Case:
    """A model file with one set of inputs."""

    def __init__(self, name, binding, path, dims, feeds, tolerance, expected=None, flops=None):
        self.name, self.binding, self.path, self.dims, self.feeds = name, binding, path, dims, feeds
        self.tolerance, self.expected, self.flops = tolerance, expected, flops
        g = onnx.load(path, load_external_data=False).graph
        weights = {t.name for t in g.initializer}
        self.inputs = [i.name for i in g.input if i.name not in weights]
        kinds = [o.type.tensor_type.elem_type for o in g.output]
        self.dtypes = [np.dtype(helper.tensor_dtype_to_np_dtype(k)).str if k else "<f4" for k in kinds]

    def shapes(self, outputs):
        """Shapes of the outputs: saved ones, or those of a peer that has run."""
        if self.expected:
            return [o["shape"] for o in self.expected]
        reference = self.reference(outputs)
        return [list(np.shape(o)) for o in reference] if reference else None

    def reference(self, outputs):
        """Outputs to compare with where none are saved: the first contestant's that ran."""
        return next((outputs[k] for k in PREFERRED if k in outputs), None)


def all_cases(a, work):
    """Every case of the command line, one after the other: inflated models are large."""
    if a.micro:
        yield from micro_cases(a, work)
    if a.operators:
        for name, path, feeds in operators.operator_models(work):
            if a.operators is True or name in a.operators.split(","):
                yield Case(name, "-", path, {}, feeds, a.tolerance)
    for m in a.models:
        if os.path.isdir(m) and not os.path.exists(os.path.join(m, "io.json")):
            for d in sorted(os.listdir(m)):
                if os.path.exists(os.path.join(m, d, "io.json")):
                    yield from suite_cases(a, os.path.join(m, d), work)
        elif os.path.isdir(m):
            yield from suite_cases(a, m, work)
        else:
            yield plain_case(a, m)


def suite_cases(a, folder, work):
    """A folder with stripped.onnx, io.json and expected.npz."""
    tools = a.tools or os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(folder))), "tools")
    if tools not in sys.path:
        sys.path.insert(0, tools)
    import make_inputs
    name = os.path.basename(os.path.normpath(folder))
    path = os.path.join(a.work or work, name + ".onnx")
    made = not os.path.exists(path)
    if made:
        subprocess.run([sys.executable, os.path.join(tools, "inflate.py"), os.path.join(folder, "stripped.onnx"), path], check=True, stdout=subprocess.DEVNULL)
    with open(os.path.join(folder, "io.json")) as f:
        io = json.load(f)
    bindings = io["bindings"]
    if a.bindings == "first":
        bindings = bindings[:1]
    elif a.bindings != "all":
        bindings = [b for b in bindings if b["name"] in a.bindings.split(",")]
    with np.load(os.path.join(folder, "expected.npz")) as expected:
        for b in bindings:
            wanted = None
            if all(o["key"] in expected and o.get("kind", "tensor") == "tensor" for o in b["outputs"]):
                wanted = [{"shape": o["shape"], "stride": o["stride"], "want": expected[o["key"]], "tolerance": o.get("suggested_tol_over_absmax") or 0.0} for o in b["outputs"]]
            flops = b["gflops"] * 1e9 if b.get("gflops") else None
            yield Case(name, b["name"], path, b.get("dims") or {}, make_inputs.make_binding(b), a.tolerance, wanted, flops)
    if made and not a.work:
        os.remove(path)


def random_array(name, kind, shape):
    """Depends on nothing but the name, the type and the shape."""
    rng = np.random.default_rng(int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little"))
    dtype = np.dtype(helper.tensor_dtype_to_np_dtype(kind))
    if dtype.kind in "iub":
        return rng.integers(0, 2, shape).astype(dtype)
    return rng.uniform(-1, 1, shape).astype(dtype)


def plain_case(a, path):
    """An .onnx file with random inputs."""
    g = onnx.load(path, load_external_data=False).graph
    weights = {t.name for t in g.initializer}
    feeds, dims = {}, {}
    for i in (i for i in g.input if i.name not in weights):
        shape = []
        for d in i.type.tensor_type.shape.dim:
            size = d.dim_value if d.HasField("dim_value") else a.dims.get(d.dim_param, 1)
            if d.dim_param:
                dims[d.dim_param] = size
            shape.append(size)
        feeds[i.name] = random_array(i.name, i.type.tensor_type.elem_type, shape)
    binding = ",".join(f"{k}={v}" for k, v in dims.items()) or "-"
    return Case(os.path.splitext(os.path.basename(path))[0], binding, path, dims, feeds, a.tolerance)


def micro_cases(a, work):
    """Matrix products, and the 3x3 convolutions of ResNet-50 (stride 1) with their bias and Relu."""
    def model(name, nodes, x, y, weights):
        g = helper.make_graph(nodes, name, [helper.make_tensor_value_info("x", TensorProto.FLOAT, x)], [helper.make_tensor_value_info("y", TensorProto.FLOAT, y)],
                              [numpy_helper.from_array(random_array(k, TensorProto.FLOAT, s), k) for k, s in weights.items()])
        path = os.path.join(work, name + ".onnx")
        onnx.save(helper.make_model(g, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
        return path

    def case(name, binding, flops, nodes, x, y, weights):
        path = model(name, nodes, x, y, weights)
        return Case(name, binding, path, {}, {"x": random_array("x", TensorProto.FLOAT, x)}, a.tolerance, None, flops)

    for n in (256, 384, 512, 768, 1024):
        yield case(f"gemm_{n}", f"{n}x{n}x{n}", 2.0 * n**3, [helper.make_node("MatMul", ["x", "w"], ["y"])], [n, n], [n, n], {"w": [n, n]})
    for c, s in ((64, 56), (128, 28), (256, 14), (512, 7)):
        nodes = [helper.make_node("Conv", ["x", "w", "b"], ["z"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]), helper.make_node("Relu", ["z"], ["y"])]
        yield case(f"conv3x3_{c}", f"{c}x{s}x{s}", 2.0 * 9 * c * c * s * s, nodes, [1, c, s, s], [1, c, s, s], {"w": [c, c, 3, 3], "b": [c]})
