"""Sizes of objects, and results of those that are made small.

    sizes.py ONNXC WORK_DIR

With --optimize size an object is at most 1.05 times its model, by default 1.25 times, but for the weights of Winograd's
convolutions, which are larger; equal layers share their code. Both objects compute what ONNX Runtime does.
"""
import os
import platform
import subprocess
import sys

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto as T
from onnx import helper as H

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "tools"))
import abi

ONNXC, WORK = sys.argv[1:3]
os.makedirs(WORK, exist_ok=True)
rng = np.random.default_rng(0)


class Net:
    """A model in the making: nodes, and weights of N(0, scale^2)."""

    def __init__(self):
        self.nodes, self.inits = [], []

    def weights(self, *dims):
        a = rng.standard_normal(dims, np.float32) * np.float32(np.prod(dims[1:]) ** -0.5)
        return self.constant(a)

    def constant(self, a):
        name = f"w{len(self.inits)}"
        self.inits.append(onnx.numpy_helper.from_array(a, name))
        return name

    def op(self, kind, *inputs, out=None, **attributes):
        out = out or f"t{len(self.nodes)}"
        self.nodes.append(H.make_node(kind, inputs, [out], name=f"{kind}_{len(self.nodes)}", **attributes))
        return out

    def save(self, name, x, y, opset=17):
        graph = H.make_graph(self.nodes, name, [x], [y], self.inits)
        path = f"{WORK}/{name}.onnx"
        onnx.save(H.make_model(graph, opset_imports=[H.make_opsetid("", opset)], ir_version=8 if opset < 21 else 10), path)
        return path


def value(name, dims, elem=T.FLOAT):
    return H.make_tensor_value_info(name, elem, dims)


def layers(n):
    """Equal layers of a perceptron."""
    net, x = Net(), "x"
    for _ in range(n):
        h = net.op("Relu", net.op("Add", net.op("MatMul", x, net.weights(512, 1024)), net.weights(1024)))
        x = net.op("Add", x, net.op("MatMul", h, net.weights(1024, 512)))
    net.op("Identity", x, out="y")
    return net.save(f"layers{n}", value("x", ["N", 512]), value("y", ["N", 512])), {"x": rng.standard_normal((3, 512), np.float32)}


def residual():
    """3x3 and 1x1 convolutions as of a residual network."""
    net, x = Net(), "x"
    for _ in range(3):
        h = net.op("Relu", net.op("Conv", x, net.weights(128, 256, 1, 1), net.weights(128)))
        h = net.op("Relu", net.op("Conv", h, net.weights(256, 128, 3, 3), net.weights(256), pads=[1, 1, 1, 1]))
        h = net.op("Conv", h, net.weights(256, 256, 3, 3), net.weights(256), pads=[1, 1, 1, 1])
        x = net.op("Relu", net.op("Add", x, h))
    net.op("Identity", x, out="y")
    return net.save("residual", value("x", [1, 256, 14, 14]), value("y", [1, 256, 14, 14])), {"x": rng.standard_normal((1, 256, 14, 14), np.float32)}


def tied():
    """An embedding that is looked up and multiplied, beside a convolution, whose weights have another rank."""
    net = Net()
    e = net.weights(6000, 256)
    h = net.op("Transpose", net.op("Gather", e, "x", axis=0), perm=[0, 2, 1])
    h = net.op("Conv", h, net.weights(256, 256, 3), pads=[1, 1])
    h = net.op("MatMul", net.op("Transpose", h, perm=[0, 2, 1]), net.weights(256, 256))
    net.op("MatMul", h, net.op("Transpose", e, perm=[1, 0]), out="y")
    return net.save("tied", value("x", [1, "N"], T.INT64), value("y", [1, "N", 6000])), {"x": np.array([[0, 17, 5999, 31, 32, 4097, 64]])}


def tied_few_bits(transposed):
    """An embedding of int4 with scales by block, looked up and multiplied: by way of a Transpose, or in a Gemm."""
    net, rows, hidden = Net(), 6000, 256
    w = onnx.TensorProto(name="w", data_type=T.INT4, dims=[rows, hidden], raw_data=rng.integers(0, 256, rows * hidden // 2, dtype=np.uint8).tobytes())
    net.inits.append(w)
    scales = net.constant((rng.uniform(0.5, 1, (rows, hidden // 32)) * 0.02).astype(np.float32))
    d = net.op("DequantizeLinear", "w", scales, axis=1, block_size=32)
    h = net.op("Gather", d, "x", axis=0)
    if transposed:
        net.op("MatMul", h, net.op("Transpose", d, perm=[1, 0]), out="y")
    else:
        net.op("Gemm", h, d, out="y", transB=1)
    name = "tied_transposed" if transposed else "tied_gemm"
    return net.save(name, value("x", ["N"], T.INT64), value("y", ["N", rows]), 21), {"x": np.array([0, 17, 5999, 31, 32, 4097, 64])}


def bytes_of_layers(n):
    """Products with bytes, which the levels of a machine multiply in different ways, with a scale of each layer."""
    net, x = Net(), "x"
    for k in range(n):
        net.inits.append(onnx.numpy_helper.from_array(rng.integers(-127, 128, (1024, 1024), dtype=np.int8), f"b{k}"))
        h = net.op("Cast", net.op("MatMulInteger", x, f"b{k}"), to=T.FLOAT)
        scale, low, high = (net.constant(np.array(v, np.float32)) for v in (0.01 + k / 1000, k, 255 - k))
        x = net.op("Cast", net.op("Min", net.op("Max", net.op("Mul", h, scale), low), high), to=T.UINT8)
    net.op("Identity", x, out="y")
    return net.save(f"bytes_of_{n}_layers", value("x", [64, 1024], T.UINT8), value("y", [64, 1024], T.UINT8))


def text(path):
    """Bytes of code in an object."""
    lines = subprocess.run(["objdump", "-h", path], check=True, capture_output=True, text=True).stdout.splitlines()
    return sum(int(f[2], 16) for f in map(str.split, lines) if len(f) > 2 and f[1].startswith(".text"))


def compiled(path, feeds, name, *options):
    """The object, and its largest difference from ONNX Runtime over the largest result."""
    obj = f"{WORK}/{name}.o"
    subprocess.run([ONNXC, path, "-o", obj, "--name", name, *options], check=True, stdout=subprocess.DEVNULL)
    abi.link([obj], f"{WORK}/{name}.so")
    run, (got,) = abi.Model(f"{WORK}/{name}.so", name).prepare(feeds)
    run()
    o = ort.SessionOptions()
    # Else it multiplies weights of few bits by activations of 8 bits.
    o.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "0")
    (want,) = ort.InferenceSession(path, o, providers=["CPUExecutionProvider"]).run(None, feeds)
    assert got.shape == want.shape
    return obj, abs(got - want).max() / abs(want).max()


def main():
    # The one level of a small object is x86-64-v3, which this machine may lack.
    old = platform.machine() == "x86_64" and os.path.exists("/proc/cpuinfo") and "avx2" not in open("/proc/cpuinfo").read()
    level = ["--cpu", "x86-64-v2"] if old else []
    for (path, feeds), winograd in ((layers(4), False), (residual(), True), (tied(), False), (tied_few_bits(True), False), (tied_few_bits(False), False)):
        name, model = os.path.basename(path)[:-5], os.path.getsize(path)
        fast, wrong = compiled(path, feeds, f"{name}_fast")
        assert wrong < 1e-4, f"{name}: {wrong}"
        small, wrong = compiled(path, feeds, f"{name}_small", "--optimize", "size", *level)
        assert wrong < 1e-5, f"{name} with --optimize size: {wrong}"
        ratio = {o: os.path.getsize(o) / model for o in (fast, small)}
        print(f"{name}: {ratio[fast]:.3f}, with --optimize size {ratio[small]:.3f} times the model")
        assert ratio[small] <= 1.05, f"{name} with --optimize size: {ratio[small]:.3f} times the model"
        assert winograd or ratio[fast] <= 1.25, f"{name}: {ratio[fast]:.3f} times the model"
    for machine in ("aarch64", "x86_64"):
        code = []
        for n in (2, 8):
            path, obj = bytes_of_layers(n), f"{WORK}/levels_{n}.o"
            subprocess.run([ONNXC, path, "--target", f"{machine}-unknown-linux-gnu", "-o", obj], check=True, stdout=subprocess.DEVNULL)
            code.append(text(obj))
        ratio = os.path.getsize(obj) / os.path.getsize(path)
        print(f"bytes for all levels of {machine}: {ratio:.3f} times the model, {code} bytes of code for 2 and 8 layers")
        assert ratio <= 1.25, f"bytes for all levels of {machine}: {ratio:.3f} times the model"
        assert code[1] < 1.5 * code[0], f"8 layers of bytes have {code[1]} bytes of code, 2 have {code[0]}"
    few, _ = compiled(*layers(2), "few")
    many, _ = compiled(*layers(8), "many")
    assert text(many) < 1.5 * text(few), f"8 layers have {text(many)} bytes of code, 2 have {text(few)}"


main()
