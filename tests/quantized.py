"""Quantized operators and models, compiled ahead of time, called through the C interface and compared with ONNX Runtime,
and conversions of the small element types with those of the onnx package.

    quantized.py ONNXC [--only PART] [-O LEVEL] [--math MATH] [--target TRIPLE [--emulate CPUS]]

`--target` compiles the models for another CPU and runs them under an emulator, if that is installed, as each of the CPUs.
What ONNX defines exactly must be equal; where both sides may round differently, results may be one step apart.
"""
import argparse
import os
import pathlib
import platform
import subprocess
import sys
import tempfile
import warnings

import numpy as np
import onnx
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper as nh

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "tools"))
import abi
import onnxruntime as ort

ort.set_default_logger_severity(4)
MS = "com.microsoft"
RNG = np.random.default_rng(7)
CASES = []


def value(name, a):
    return h.make_tensor_value_info(name, h.np_dtype_to_tensor_dtype(a.dtype), a.shape)


def q(dtype, *shape):
    i = np.iinfo(dtype)
    return RNG.integers(i.min, i.max + 1, shape).astype(dtype)


def f(*shape, scale=1.0):
    return np.asarray(RNG.standard_normal(shape) * scale, np.float32)


def s(v):
    return np.array(v, np.float32)


def z(dtype, v):
    return np.array(v, dtype)


def case(name, nodes, feeds, consts=None, steps=0, rtol=0.0, opset=17, outputs=None, want=None):
    """`feeds` are inputs, `consts` initializers; results may be `steps` apart or `rtol` of the largest value, or what it
    allows for each of them if it is an array. `want` gives them where ONNX Runtime does not; of several functions, each gives results that are right."""
    if not isinstance(nodes, list):
        nodes = [nodes]
    CASES.append((name, nodes, feeds, consts or {}, steps, rtol, opset, outputs or [o for o in nodes[-1].output if o], want))


def node(op, inputs, output="y", **attrs):
    return h.make_node(op, inputs.split() if isinstance(inputs, str) else inputs, output.split(), **attrs)


def ms(op, inputs, output="y", **attrs):
    return node(op, inputs, output, domain=MS, **attrs)


def basics():
    for dt in (np.uint8, np.int8, np.uint16, np.int16):
        n = np.dtype(dt).name
        for axis, scale in (("tensor", s(0.031)), ("axis", np.abs(f(4, scale=0.1)) + 0.01)):
            zero = q(dt, *scale.shape) // 2
            opset = 21
            case(f"quantize_{n}_{axis}", node("QuantizeLinear", "x s z", axis=1), {"x": f(3, 4, 5, scale=4)}, {"s": scale, "z": zero}, opset=opset)
            case(f"dequantize_{n}_{axis}", node("DequantizeLinear", "x s z", axis=1), {"x": q(dt, 3, 4, 5)}, {"s": scale, "z": zero}, opset=opset)
    # Halves go to even, and what does not fit saturates.
    halves = (np.arange(-600, 600).astype(np.float32) / 2).reshape(30, 40)
    case("quantize_halves", node("QuantizeLinear", "x s z"), {"x": halves}, {"s": s(1), "z": z(np.uint8, 3)})
    case("quantize_blocks", node("QuantizeLinear", "x s z", axis=1, block_size=3), {"x": f(2, 7, 3)}, {"s": np.abs(f(2, 3, 3)) + 0.02, "z": q(np.int8, 2, 3, 3)}, opset=21)
    case("dequantize_blocks", node("DequantizeLinear", "x s z", axis=0, block_size=2), {"x": q(np.int8, 6, 5)}, {"s": f(3, 5), "z": q(np.int8, 3, 5)}, opset=21)
    case("dequantize_int32", node("DequantizeLinear", "x s"), {"x": q(np.int32, 50)}, {"s": s(1e-3)})
    for dt in (np.uint8, np.int8):
        case(f"runtime_scales_{np.dtype(dt).name}", [node("QuantizeLinear", "x s z", "q"), node("DequantizeLinear", "q s z")], {"x": f(6, 7), "s": s(0.02), "z": z(dt, 5)})
    for name, scale in (("", 0.3), ("_zeros", 0.0)):
        case(f"dynamic{name}", node("DynamicQuantizeLinear", "x", "y s z"), {"x": f(9, 11, scale=scale) + np.float32(scale)}, rtol=1e-6)


def products():
    for da, db in ((np.uint8, np.int8), (np.uint8, np.uint8), (np.int8, np.int8)):
        n = f"{np.dtype(da).name}_{np.dtype(db).name}"
        a, b = q(da, 5, 37), q(db, 37, 11)
        za, zb = z(da, 7), z(db, 3)
        case(f"matmul_integer_{n}", node("MatMulInteger", "a b za zb"), {"a": a}, {"b": b, "za": za, "zb": zb})
        case(f"matmul_integer_columns_{n}", node("MatMulInteger", "a b za zb"), {"a": a, "b": b, "za": za}, {"zb": q(db, 11)})
        case(f"matmul_integer_plain_{n}", node("MatMulInteger", "a b"), {"a": q(da, 2, 3, 5, 9), "b": q(db, 3, 9, 4)})
        case(f"qlinear_matmul_{n}", node("QLinearMatMul", "a sa za b sb zb sy zy"), {"a": a}, {"sa": s(0.02), "za": za, "b": b, "sb": s(0.01), "zb": zb, "sy": s(0.11), "zy": z(da, 9)}, steps=1)
        case(f"to_float_{n}", ms("MatMulIntegerToFloat", "a b sa sb za zb c"), {"a": a}, {"b": b, "sa": s(0.02), "sb": np.abs(f(11)), "za": za, "zb": q(db, 11), "c": f(11)}, rtol=1e-6)
        if da == np.uint8:
            case(f"dynamic_matmul_{n}", ms("DynamicQuantizeMatMul", "a b sb zb c"), {"a": f(6, 40)}, {"b": q(db, 40, 8), "sb": np.abs(f(8)) * np.float32(0.01), "zb": q(db, 8), "c": f(8)}, rtol=1e-5)
        weights = {"b": b.T.copy(), "sa": s(0.02), "sb": s(0.01), "za": za, "zb": zb, "c": q(np.int32, 11) % 1000, "sy": s(0.13), "zy": z(da, 9)}
        case(f"qgemm_{n}", ms("QGemm", "a sa za b sb zb c sy zy", transB=1, alpha=0.75), {"a": a}, weights, steps=1)
        case(f"qgemm_float_{n}", ms("QGemm", "a sa za b sb zb c", transB=1), {"a": a}, weights, rtol=1e-6)
    for bits, block, depth in ((4, 16, 64), (4, 32, 80), (8, 32, 96)):
        blocks = -(-depth // block)
        w = q(np.uint8, 12, blocks, block * bits // 8)
        zeros = q(np.uint8, 12, -(-blocks * bits // 8))
        for name, more in (("", {}), ("_zeros", {"z": zeros})):
            case(f"nbits_{bits}_{block}{name}", ms("MatMulNBits", ["a", "b", "s", *more], K=depth, N=12, bits=bits, block_size=block), {"a": f(2, 5, depth)}, {"b": w, "s": f(12, blocks), **more}, rtol=2e-6)


def tiles():
    """Integer products of every number of rows that tiles have, with depths that fill groups of four and eight or not, and
    columns that fill panels or not; either operand a constant; convolutions, whose sums several loops carry."""
    depths, widths = (8, 16, 64, 24, 100, 12, 72, 44, 9, 128), (16, 33, 4, 64, 20, 96, 7)
    shapes = [(rows, depths[(rows + i) % len(depths)], widths[(2 * rows + i) % len(widths)]) for rows in (*range(1, 15), 25, 49) for i in range(3)]
    for da, db in ((np.uint8, np.int8), (np.uint8, np.uint8), (np.int8, np.int8), (np.int8, np.uint8)):
        n = f"{np.dtype(da).name}_{np.dtype(db).name}"
        for first in (False, True):
            nodes, feeds, consts = [], {}, {}
            for i, (rows, depth, columns) in enumerate(shapes):
                a, b = q(da, rows, depth), q(db, depth, columns)
                (consts if first else feeds)[f"a{i}"], (feeds if first else consts)[f"b{i}"] = a, b
                nodes.append(node("MatMulInteger", f"a{i} b{i}", f"y{i}"))
            count = len(shapes)

            def want(**v):
                return [v[f"a{i}"].astype(np.int32) @ v[f"b{i}"].astype(np.int32) for i in range(len(shapes))]

            case(f"tiles_{n}{'_constant_first' if first else ''}", nodes, feeds, consts, outputs=[f"y{i}" for i in range(count)], want=want)
        if da == np.uint8:
            nodes, feeds, consts = [], {}, {}
            for i, (channels, out, size, kernel, stride) in enumerate(((16, 16, 9, 3, 1), (64, 24, 7, 3, 1), (8, 40, 12, 3, 2), (12, 16, 6, 2, 1), (96, 32, 5, 1, 1), (40, 33, 8, 1, 2))):
                feeds[f"x{i}"], consts[f"w{i}"] = q(da, 1, channels, size, size), q(db, out, channels, kernel, kernel)
                nodes.append(node("ConvInteger", f"x{i} w{i} zx", f"y{i}", strides=[stride] * 2, pads=[kernel // 2] * 4))
            case(f"tiles_of_images_{n}", nodes, feeds, {**consts, "zx": z(da, 11)}, outputs=[f"y{i}" for i in range(len(nodes))])


def float_products(name, shapes, dt):
    """Products by constants, and of two inputs."""
    nodes, feeds, consts = [], {}, {}
    for i, (rows, depth, columns) in enumerate(shapes):
        feeds[f"a{i}"], consts[f"b{i}"] = f(rows, depth).astype(dt), f(depth, columns).astype(dt)
        nodes.append(node("MatMul", f"a{i} b{i}", f"y{i}"))

    def want(numbers):
        return lambda **v: [(v[f"a{i}"].astype(np.float64) @ v[f"b{i}"].astype(np.float64)).astype(v[f"a{i}"].dtype) for i in numbers]

    case(f"floats_{name}", nodes, feeds, consts, outputs=[f"y{i}" for i in range(len(shapes))], rtol=1e-2, want=want(range(len(shapes))))
    # Two inputs, of many rows or few: floats of 16 bits are converted on the way or in tiles.
    some = range(len(shapes) - 12, len(shapes))
    both = {f"{n}{i}": (feeds if n == "a" else consts)[f"{n}{i}"] for i in some for n in "ab"}
    case(f"floats_of_inputs_{name}", [nodes[i] for i in some], both, outputs=[f"y{i}" for i in some], rtol=1e-2, want=want(some))


def bounded_halves():
    """The error of products of f16 is within what `nest::HALVES` says, against sums in f64: terms of one sign, whose sums lose most,
    of both, and rows whose terms differ by 2^12."""
    for name, sign in (("one_sign", 0), ("both_signs", 1), ("far_apart", 2)):
        for rows, depth, columns in ((1, 200, 16), (8, 1024, 32), (17, 136, 48), (8, 520, 16)):
            a, b = (RNG.uniform(0.25, 1, of) for of in ((rows, depth), (depth, columns)))
            a = a * RNG.choice([-1, 1], a.shape) if sign else a
            a = a * 2.0 ** RNG.integers(-12, 1, a.shape) if sign == 2 else a
            a, b = a.astype(np.float16), b.astype(np.float16)
            wide = a.astype(np.float64), b.astype(np.float64)
            exact = wide[0] @ wide[1]
            # Of a sum, and of what both results are rounded to.
            allowed = 128 * 2.0 ** -11 * (np.abs(wide[0]) @ np.abs(wide[1])) + 2.0 ** -10 * np.abs(exact) + 2.0 ** -24
            case(f"floats_bounded_{name}_{rows}_{depth}", node("MatMul", "a b"), {"a": a}, {"b": b}, rtol=allowed, want=lambda a, b: [(a.astype(np.float64) @ b.astype(np.float64)).astype(np.float16)])


def floats():
    """Products of floats with every number of rows that tiles have, of many columns and of few, and images: with `--math fast`, of bf16."""
    for columns, sizes in (("many", ((64, 32), (30, 33), (9, 20))), ("few", ((300, 3), (70, 1)))):
        for dt in (np.float32, np.float16):
            float_products(f"{columns}_{np.dtype(dt).name}", [(rows, *size) for rows in (*range(1, 15), 25, 50) for size in sizes], dt)
    # Sums of f16 in parts, with steps left over, and images that nothing but such sums read.
    float_products("long_float16", [(rows, *size) for rows in (1, 3, 6, 8, 9, 16, 33) for size in ((600, 33), (262, 16), (128, 44))], np.float16)
    nodes, feeds, consts = [], {}, {}
    for i, (channels, out, size, stride) in enumerate(((32, 48, 9, 2), (64, 24, 12, 2), (144, 16, 6, 1))):
        feeds[f"x{i}"] = f(1, channels, size, size).astype(np.float16)
        consts[f"w{i}"], consts[f"v{i}"] = (f(out, channels, k, k, scale=1 / 16).astype(np.float16) for k in (3, 1))
        consts[f"u{i}"] = f(20, out, 1, 1, scale=1 / 4).astype(np.float16)
        conv = dict(strides=[stride] * 2)
        nodes += [node("Conv", f"x{i} w{i}", f"a{i}", pads=[1] * 4, **conv), node("Relu", f"a{i}", f"b{i}"), node("Conv", f"b{i} u{i}", f"y{i}"), node("Conv", f"x{i} v{i}", f"z{i}", **conv)]
    case("floats_of_images_float16", nodes, feeds, consts, outputs=[o for i in range(3) for o in (f"y{i}", f"z{i}")], rtol=1e-2)
    nodes, feeds, consts = [], {}, {}
    for i, (channels, out, size, kernel, stride) in enumerate(((16, 16, 9, 3, 2), (64, 24, 7, 1, 1), (3, 40, 12, 3, 2), (6, 16, 6, 5, 1))):
        feeds[f"x{i}"], consts[f"w{i}"] = f(1, channels, size, size), f(out, channels, kernel, kernel)
        nodes.append(node("Conv", f"x{i} w{i}", f"y{i}", strides=[stride] * 2, pads=[kernel // 2] * 4))
    # Windows of single channels, with rows in pairs or not.
    for i, (channels, size, kernel, stride) in enumerate(((5, 8, 3, 1), (16, 14, 3, 1), (3, 9, 3, 1), (4, 16, 5, 1), (6, 12, 3, 2), (2, 6, 2, 1), (7, 20, 3, 1))):
        feeds[f"d{i}"], consts[f"v{i}"] = f(1, channels, size, size), f(channels, 1, kernel, kernel)
        nodes.append(node("Conv", f"d{i} v{i}", f"z{i}", group=channels, strides=[stride] * 2, pads=[kernel // 2] * 4))
    # Few output channels, small groups, two results for each channel.
    for i, (channels, out, size, kernel, stride, group) in enumerate(((24, 2, 9, 3, 2, 1), (40, 1, 7, 5, 1, 1), (48, 48, 7, 3, 1, 12), (16, 8, 9, 3, 1, 4), (160, 4, 8, 3, 1, 4), (10, 20, 9, 5, 1, 10))):
        feeds[f"g{i}"], consts[f"u{i}"] = f(1, channels, size, size), f(out, channels // group, kernel, kernel)
        nodes.append(node("Conv", f"g{i} u{i}", f"t{i}", group=group, strides=[stride] * 2, pads=[kernel // 2] * 4))
    case("floats_of_images", nodes, feeds, consts, outputs=[n.output[0] for n in nodes], rtol=1e-2)
    bounded_halves()


# Code for this CPU multiplies by activations of 8 bits where a model allows it; where the options do.
BYTES = False
FAST = False


def fields(bytes_, bits):
    """Elements of few bits, the first one in the low bits of a byte."""
    per = 8 // bits
    return ((bytes_[..., None] >> (np.arange(per, dtype=np.uint8) * bits)) & ((1 << bits) - 1)).reshape(*bytes_.shape[:-1], -1).astype(np.float32)


def few_bits():
    """Weights of few bits that stay packed: a row, few rows, many; last panels, blocks and words that are not whole."""
    def narrow(a, block):
        """Activations of accuracy_level 4: integers of 8 bits, one scale for each block."""
        pad = -a.shape[-1] % block
        parts = np.pad(a, [(0, 0)] * (a.ndim - 1) + [(0, pad)]).reshape(*a.shape[:-1], -1, block)
        most = np.max(np.abs(parts), -1, keepdims=True)
        codes = np.rint(parts * (np.float32(127) / most)).astype(np.float64) * (most / np.float32(127))
        return codes.reshape(*a.shape[:-1], -1)[..., :a.shape[-1]]

    def nbits(depth, columns, bits, block, zeros, level=0):
        def want(a, b, s, z=None, c=0):
            a = narrow(a, block) if level == 4 else a
            q = fields(b.reshape(columns, -1), bits)[:, :depth]
            by = np.float32(1 << (bits - 1))
            if zeros == "codes":
                by = np.repeat(fields(z.reshape(columns, -1), bits)[:, :s.size // columns], block, 1)[:, :depth]
            elif zeros == "floats":
                by = np.repeat(z.reshape(columns, -1), block, 1)[:, :depth]
            w = (q - by) * np.repeat(s.reshape(columns, -1), block, 1)[:, :depth]
            return [(a.astype(np.float64) @ w.T.astype(np.float64) + c).astype(np.float32)]
        return want

    for bits in (2, 4, 8):
        for block, depth, columns in ((16, 80, 96), (32, 256, 80), (64, 168, 33), (128, 384, 64), (256, 600, 32)):
            blocks = -(-depth // block)
            for zeros in ("", "codes", "floats"):
                consts = {"b": q(np.uint8, columns, blocks, block * bits // 8), "s": np.abs(f(columns * blocks, scale=0.05)) + np.float32(0.01)}
                names = ["a", "b", "s"]
                if zeros:
                    consts["z"] = q(np.uint8, columns * -(-blocks * bits // 8)) if zeros == "codes" else f(columns, blocks, scale=3)
                    names.append("z")
                if block == 32:
                    names += [""] * (5 - len(names)) + ["c"]
                    consts["c"] = f(columns)
                for rows, level in (((1,), 0), ((3,), 4), ((2, 4), 0), ((9,), 0), ((9,), 4), ((41,), 0)):
                    n = ms("MatMulNBits", names, K=depth, N=columns, bits=bits, block_size=block, accuracy_level=level)
                    # CPUs without products of bytes compute in floats whatever the level is: those of x86-64 have some.
                    want = tuple(nbits(depth, columns, bits, block, zeros, of) for of in ([4 if FAST else level] if BYTES else {level, 0}))
                    case(f"few_bits_{bits}_{block}{zeros and '_'}{zeros}_{'x'.join(map(str, rows))}_{level}", n, {"a": f(*rows, depth)}, consts, rtol=2e-6, want=want)
    for dt, signed in (("UINT4", 0), ("INT4", 1), ("UINT8", 0), ("INT8", 1)):
        bits = int(dt[-1])
        kind = getattr(T, dt)
        for axis, shape, block in ((0, (128, 96), 32), (0, (96, 48), 0), (1, (64, 128), 16)):
            for zero in (0, 1):
                lo, hi = (-(1 << (bits - 1)), 1 << (bits - 1)) if signed else (0, 1 << bits)
                w = RNG.integers(lo, hi, shape)
                of = tuple(n // block if i == axis and block else n for i, n in enumerate(shape)) if block else (shape[1 - axis],)
                zeros = RNG.integers(lo, hi, of)
                scale = np.abs(f(*of, scale=0.05)) + np.float32(0.01)

                def small(a, kind=kind):
                    return h.make_tensor("t", kind, a.shape, a.reshape(-1).tolist())

                consts = {"w": small(w), "s": scale, **({"z": small(zeros)} if zero else {})}
                along = (lambda v: np.repeat(v, block, axis)) if block else (lambda v: v[None] if axis == 0 else v[:, None])
                real = (w - (along(zeros) if zero else 0)).astype(np.float32) * along(scale)
                nodes = [node("DequantizeLinear", ["w", "s", *(["z"] if zero else [])], "d", axis=axis if block else 1 - axis, **({"block_size": block} if block else {}))]
                nodes.append(node("MatMul", "a d") if axis == 0 else node("Gemm", "a d", transB=1))
                depth = shape[axis]
                for rows in (1, 5, 20):
                    case(f"few_bits_dequantized_{dt.lower()}_{axis}_{block}_{zero}_{rows}", nodes, {"a": f(rows, depth)}, consts, rtol=2e-6, opset=21,
                         want=lambda a, real=real, axis=axis, block=block, **_: [((narrow(a, block or a.shape[-1]) if BYTES and FAST else a).astype(np.float64) @ (real if axis == 0 else real.T)).astype(np.float32)])


def images():
    for dx, dw in ((np.uint8, np.int8), (np.uint8, np.uint8), (np.int8, np.int8)):
        n = f"{np.dtype(dx).name}_{np.dtype(dw).name}"
        x, zx, zw = q(dx, 2, 4, 9, 8), z(dx, 11), z(dw, 2)
        for name, w, attrs in (("", q(dw, 6, 4, 3, 3), dict(pads=[1, 1, 1, 1])), ("_groups", q(dw, 8, 2, 3, 2), dict(group=2, strides=[2, 1], pads=[0, 1, 1, 0])), ("_depthwise", q(dw, 4, 1, 3, 3), dict(group=4)), ("_1x1", q(dw, 5, 4, 1, 1), {})):
            if dx == np.uint8:
                case(f"conv_integer_{n}{name}", node("ConvInteger", "x w zx zw", **attrs), {"x": x}, {"w": w, "zx": zx, "zw": zw})
            oc = w.shape[0]
            base = {"sx": s(0.02), "zx": zx, "w": w, "sy": s(0.3), "zy": z(dx, 100), "c": q(np.int32, oc) % 500}
            case(f"qlinear_conv_{n}{name}", node("QLinearConv", "x sx zx w sw zw sy zy c", **attrs), {"x": x}, {**base, "sw": s(0.01), "zw": zw}, steps=1)
            if dw == np.int8:
                case(f"qlinear_conv_channels_{n}{name}", node("QLinearConv", "x sx zx w sw zw sy zy c", **attrs), {"x": x}, {**base, "sw": np.abs(f(oc, scale=0.01)) + np.float32(0.002), "zw": np.zeros(oc, dw)}, steps=1)
    for dt in (np.uint8, np.int8):
        n = np.dtype(dt).name
        zs = {"sx": s(0.05), "zx": z(dt, 40), "sy": s(0.04), "zy": z(dt, 20)}
        case(f"average_pool_{n}", ms("QLinearAveragePool", "x sx zx sy zy", kernel_shape=[3, 2], strides=[2, 1], pads=[1, 0, 1, 1]), {"x": q(dt, 1, 3, 8, 9)}, zs, steps=1)
        case(f"average_pool_pads_{n}", ms("QLinearAveragePool", "x sx zx sy zy", kernel_shape=[3, 2], pads=[1, 0, 1, 1], count_include_pad=1), {"x": q(dt, 1, 3, 8, 9)}, zs, steps=1)
        case(f"global_average_{n}", ms("QLinearGlobalAveragePool", "x sx zx sy zy"), {"x": q(dt, 2, 5, 6, 7)}, zs, steps=1)
        case(f"global_average_last_{n}", ms("QLinearGlobalAveragePool", "x sx zx sy zy", channels_last=1), {"x": q(dt, 2, 6, 7, 5)}, zs, steps=1)


def elementwise():
    for dt in (np.uint8, np.int8):
        n = np.dtype(dt).name
        a, b = q(dt, 3, 4, 33), q(dt, 4, 1)
        two = {"sa": s(0.05), "za": z(dt, 40), "sb": s(0.03), "zb": z(dt, 3), "sc": s(0.07), "zc": z(dt, 50)}
        case(f"add_{n}", ms("QLinearAdd", "a sa za b sb zb sc zc"), {"a": a, "b": b}, two, steps=1)
        case(f"mul_{n}", ms("QLinearMul", "a sa za b sb zb sc zc"), {"a": a, "b": b}, two, steps=1)
        one = {"sx": s(0.05), "zx": z(dt, 40), "sy": s(0.004), "zy": z(dt, 2)}
        case(f"sigmoid_{n}", ms("QLinearSigmoid", "a sx zx sy zy"), {"a": a}, one, steps=1)
        case(f"leaky_{n}", ms("QLinearLeakyRelu", "a sx zx sy zy", alpha=0.2), {"a": a}, {**one, "sy": s(0.06)}, steps=1)
        soft = {"sx": s(0.03), "zx": z(dt, 40), "sy": s(1 / 256), "zy": z(dt, np.iinfo(dt).min)}
        for opset, axis in ((13, 2), (11, 1)):
            case(f"softmax_{opset}_{n}", ms("QLinearSoftmax", "a sx zx sy zy", opset=opset, axis=axis), {"a": a}, soft, steps=1)
        case(f"concat_{n}", ms("QLinearConcat", "sy zy a sa za c sc zc", axis=1), {"a": a, "c": q(dt, 3, 2, 33)}, {**two, "sy": s(0.06), "zy": z(dt, 30)}, steps=1)


def qdq(name, op, operands, steps=1, after=(), dtype=np.uint8, sy=0.11, zy=100, feeds=1, **attrs):
    """DequantizeLinear of each operand, `op` (and operators after it), QuantizeLinear: what the compiler makes integer."""
    nodes, data, consts, names = [], {}, {}, []
    for i, o in enumerate(operands):
        if not isinstance(o, tuple):
            consts[f"k{i}"] = o
            names.append(f"k{i}")
            continue
        a, scale, zero, axis = o
        (data if i < feeds else consts)[f"q{i}"] = a
        consts[f"s{i}"] = np.asarray(scale, np.float32)
        consts[f"z{i}"] = np.asarray(zero, a.dtype)
        nodes.append(node("DequantizeLinear", f"q{i} s{i} z{i}", f"f{i}", axis=axis))
        names.append(f"f{i}")
    nodes.append(node(op, names, "r0", **attrs))
    for i, (more, extra, kw) in enumerate(after):
        consts.update({f"e{i}_{j}": e for j, e in enumerate(extra)})
        nodes.append(node(more, [f"r{i}", *(f"e{i}_{j}" for j in range(len(extra)))], f"r{i + 1}", **kw))
    consts.update(sy=s(sy), zy=z(dtype, zy))
    nodes.append(node("QuantizeLinear", f"r{len(after)} sy zy"))
    case(f"qdq_{name}", nodes, data, consts, steps=steps)


def patterns():
    for dt in (np.uint8, np.int8):
        n = np.dtype(dt).name
        x = (q(dt, 2, 4, 9, 8), 0.02, 17, 1)
        w, sw = q(np.int8, 6, 4, 3, 3), np.abs(f(6, scale=0.02)) + np.float32(0.003)
        channels = (w, sw, np.zeros(6), 0)
        bias = (q(np.int32, 6) % 3000, (np.float32(0.02) * sw).astype(np.float32), np.zeros(6), 0)
        low = np.iinfo(dt).min
        qdq(f"conv_{n}", "Conv", [x, channels, bias], dtype=dt, pads=[1, 1, 1, 1])
        qdq(f"conv_float_bias_{n}", "Conv", [x, (w, 0.01, 3, 0), f(6)], dtype=dt, strides=[2, 2])
        qdq(f"conv_relu_{n}", "Conv", [x, channels, bias], dtype=dt, after=[("Relu", (), {})], zy=low)
        qdq(f"conv_relu_inside_{n}", "Conv", [x, channels], dtype=dt, after=[("Relu", (), {})], zy=low + 60)
        qdq(f"conv_clip_{n}", "Conv", [x, channels], dtype=dt, after=[("Clip", (s(-1), s(6)), {})], sy=0.09, zy=low + 50)
        a = (q(dt, 5, 37), 0.03, 9, 1)
        b = q(np.int8, 37, 11)
        sb = np.abs(f(11, scale=0.02)) + np.float32(0.002)
        qdq(f"matmul_{n}", "MatMul", [a, (b, sb, np.zeros(11), 1)], dtype=dt, sy=0.3)
        # Sums beyond what floats hold exactly.
        deep = (q(dt, 3, 1300), 0.03, 9, 1)
        qdq(f"matmul_deep_{n}", "MatMul", [deep, (np.full((1300, 5), 127, np.int8) - (q(np.int8, 1300, 5) & 7), 0.01, 0, 1)], dtype=dt, sy=60.0)
        qdq(f"gemm_{n}", "Gemm", [a, (b, sb, np.zeros(11), 1), (q(np.int32, 11) % 5000, (np.float32(0.03) * sb).astype(np.float32), np.zeros(11), 0)], dtype=dt, sy=0.3)
        qdq(f"gemm_trans_{n}", "Gemm", [a, (b.T.copy(), 0.01, 5, 0), f(11)], dtype=dt, sy=0.3, transB=1)
        qdq(f"gemm_scaled_{n}", "Gemm", [a, (b, 0.01, 5, 0), f(11)], dtype=dt, sy=0.3, alpha=0.5)
        m = (q(dt, 4, 1), 0.05, 3, 1)
        qdq(f"add_{n}", "Add", [(q(dt, 3, 4, 9), 0.03, 20, 1), m], dtype=dt, feeds=2)
        qdq(f"mul_{n}", "Mul", [(q(dt, 3, 4, 9), 0.03, 20, 1), m], dtype=dt, feeds=2)
        qdq(f"concat_{n}", "Concat", [(q(dt, 3, 4), 0.03, 20, 1), (q(dt, 3, 2), 0.11, 100, 1)], dtype=dt, feeds=2, steps=0, axis=1)
        qdq(f"average_{n}", "AveragePool", [x], dtype=dt, sy=0.02, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
        qdq(f"global_{n}", "GlobalAveragePool", [x], dtype=dt, sy=0.01)
        qdq(f"sigmoid_{n}", "Sigmoid", [x], dtype=dt, sy=0.004, zy=low)
        for op, kw in (("MaxPool", dict(kernel_shape=[3, 2], pads=[1, 0, 1, 1], strides=[2, 1])), ("Transpose", dict(perm=[0, 2, 3, 1])), ("Flatten", {})):
            qdq(f"{op.lower()}_{n}", op, [x], steps=0, dtype=dt, sy=0.02, zy=17, **kw)
            qdq(f"{op.lower()}_rescaled_{n}", op, [x], steps=0, dtype=dt, sy=0.031, zy=7, **kw)


def contrib():
    """Operators of com.microsoft that are made of others, quantized or not."""
    i32, i64, u8 = np.int32, np.int64, np.uint8
    for dt in (np.uint8, np.int8, np.uint16, np.int16):
        n = np.dtype(dt).name
        scale, zero = np.abs(f(4, scale=0.1)) + np.float32(0.01), q(dt, 4) // 2
        case(f"ms_quantize_{n}", ms("QuantizeLinear", "x s z", axis=1), {"x": f(3, 4, 5, scale=4)}, {"s": scale, "z": zero})
        case(f"ms_dequantize_{n}", ms("DequantizeLinear", "x s z", axis=-2), {"x": q(dt, 3, 4, 5)}, {"s": scale, "z": zero})
        case(f"ms_dequantize_default_{n}", ms("DequantizeLinear", "x s z"), {"x": q(dt, 3, 4)}, {"s": scale, "z": zero})
    case("ms_trilu", ms("Trilu", "x k", upper=0), {"x": f(2, 4, 5)}, {"k": np.array(-1, i64)})
    case("ms_gather_nd", ms("GatherND", "x i"), {"x": f(3, 4)}, {"i": np.array([[0, 1], [2, -1]], i32)})
    case("ms_range", ms("Range", "a b c"), {"v": f(1)}, {"a": np.array(1, i64), "b": np.array(9, i64), "c": np.array(3, i64)})
    case("ms_range_default", ms("Range", "a b"), {"v": f(1)}, {"a": np.array(0.5, np.float32), "b": np.array(4, np.float32)})
    case("ms_unique", ms("Unique", "x", "y i n"), {"x": np.array([2, 1, 1, 3, 4, 3], np.float32)})
    for axis in (0, 1, -1):
        case(f"ms_expand_dims_{axis % 3}", ms("ExpandDims", "x a"), {"x": f(3, 4)}, {"a": np.array(axis, i32)})
    for mode in ("constant", "reflect", "edge"):
        case(f"ms_pad_{mode}", ms("Pad", "x p v", mode=mode), {"x": f(3, 4)}, {"p": np.array([[1, 0, 2, 1]], i64), "v": np.array([0.5], np.float32)})
    for mode in ("bilinear", "nearest", "bicubic"):
        case(f"ms_grid_sample_{mode}", ms("GridSample", "x g", mode=mode, padding_mode="border"), {"x": f(1, 2, 5, 6), "g": np.tanh(f(1, 3, 4, 2))}, rtol=1e-5)
    for dt in (np.uint8, np.int8):
        n = np.dtype(dt).name
        case(f"nhwc_maxpool_{n}", ms("NhwcMaxPool", "x", kernel_shape=[3, 2], strides=[2, 1], pads=[1, 0, 1, 1]), {"x": q(dt, 2, 7, 6, 3)})
        case(f"qlinear_where_{n}", ms("QLinearWhere", "c x sx zx y sy zy sz zz", "r"), {"c": np.array([[True], [False]]), "x": q(dt, 2, 9), "y": q(dt, 9)},
             {"sx": s(0.02), "zx": z(dt, 3), "sy": s(0.04), "zy": z(dt, 9), "sz": s(0.05), "zz": z(dt, 1)}, steps=1)
        for last in (0, 1):
            x, w = (q(np.uint8, 1, 6, 5, 4) if last else q(np.uint8, 1, 4, 6, 5)), q(dt, 3, 4, 3, 3)
            case(f"ms_qlinear_conv_{n}_{last}", ms("QLinearConv", "x sx zx w sw zw sy zy c", channels_last=last, pads=[1, 1, 1, 1], kernel_shape=[3, 3]), {"x": x},
                 {"sx": s(0.02), "zx": z(np.uint8, 11), "w": w, "sw": s(0.01), "zw": z(dt, 2), "sy": s(0.3), "zy": z(np.uint8, 100), "c": q(np.int32, 3) % 500}, steps=1)
    case("matmul_integer_16", ms("MatMulInteger16", "a b"), {"a": q(np.int16, 3, 5) // 64, "b": q(np.int16, 5, 2) // 64})
    for metric in ("euclidean", "sqeuclidean"):
        case(f"cdist_{metric}", ms("CDist", "a b", metric=metric), {"a": f(4, 6), "b": f(3, 6)}, rtol=1e-5)
    case("unfold", ms("UnfoldTensor", "x", dim=1, size=3, step=2), {"x": f(2, 8, 3)})
    case("sample_op", ms("SampleOp", "x"), {"x": f(3)})
    heads, size, inner = 2, 8, 12
    weights = {"w": q(u8, inner, 3 * size * heads), "c": f(3 * size * heads), "sx": s(0.02), "sw": s(0.01), "zx": z(u8, 120), "zw": z(u8, 130)}
    case("qattention", ms("QAttention", ["x", "w", "c", "sx", "sw", "", "zx", "zw"], num_heads=heads), {"x": q(u8, 2, 5, inner)}, weights, rtol=1e-4)
    case("qattention_mask", ms("QAttention", "x w c sx sw m zx zw", num_heads=heads, unidirectional=1), {"x": q(u8, 2, 5, inner), "m": np.array([3, 5], i32)}, weights, rtol=1e-4)
    for mode in ("bilinear", "nearest"):
        case(f"crop_and_resize_{mode}", ms("CropAndResize", "x r b n", mode=mode, extrapolation_value=0.5), {"x": f(2, 3, 6, 7), "r": np.array([[0, 0, 1, 1], [0.21, 0.34, 0.8, 1.2], [0.9, 0.1, 0.3, 0.7]], np.float32)},
             {"b": np.array([0, 1, 1], i32), "n": np.array([4, 5], i32)}, rtol=1e-5)
    case("inverse", ms("Inverse", "x"), {"x": f(2, 3, 5, 5)}, rtol=1e-4)
    for way in ("forward", "reverse", "bidirectional"):
        for columns in (False, True):
            dirs, size, hidden = 1 + (way == "bidirectional"), 6, 5
            per = (dirs, 4 * hidden) if columns else (dirs,)
            consts = {"w": q(np.int8, dirs, size, 4 * hidden), "r": q(np.int8, dirs, hidden, 4 * hidden), "b": f(dirs, 8 * hidden, scale=0.1), "sw": np.abs(f(*per, scale=0.004)), "zw": np.zeros(per, np.int8),
                      "sr": np.abs(f(*per, scale=0.004)), "zr": np.zeros(per, np.int8)}
            case(f"quantized_lstm_{way}_{int(columns)}", ms("DynamicQuantizeLSTM", ["x", "w", "r", "b", "", "h", "c", "", "sw", "zw", "sr", "zr"], "y yh yc", hidden_size=hidden, direction=way),
                 {"x": f(7, 1, size), "h": f(dirs, 1, hidden), "c": f(dirs, 1, hidden)}, consts, rtol=1e-5)
    case("gated_add", ms("GatedAdd", "x z g"), {"x": f(2, 3, 4), "z": f(2, 3, 4), "g": f(2, 3, 1)}, rtol=1e-6)
    case("scaled_silu", ms("ScaledSiLU", "x", alpha=1.7), {"x": f(2, 3, 4)}, rtol=1e-6)
    case("scaled_silu_input", ms("ScaledSiLU", "x s"), {"x": f(2, 3, 4), "s": np.array(0.3, np.float32)}, rtol=1e-6)
    for act in ("silu", "sigmoid"):
        case(f"gated_rms_norm_{act}", ms("GatedRMSNorm", "x s g", activation=act), {"x": f(2, 3, 8), "s": f(4), "g": f(2, 3, 8)}, rtol=1e-5)
    case("branchwise_rms_norm", ms("BranchwiseRMSNorm", "x s", num_branches=3), {"x": f(2, 12), "s": f(12)}, rtol=1e-5)
    case("branchwise_rms_norm_grouped", ms("BranchwiseRMSNorm", "x s"), {"x": f(2, 3, 4), "s": f(4)}, rtol=1e-5)
    case("linear_attention_gate", ms("LinearAttentionGate", "a d s b", "y z"), {"a": f(2, 3, 4), "d": f(4), "s": -np.abs(f(4)), "b": f(2, 3, 4)}, rtol=1e-5)
    case("causal_conv", ms("CausalConvWithState", "x w b p", "y s", activation="silu"), {"x": f(2, 6, 5), "p": f(2, 6, 3)}, {"w": f(6, 1, 4), "b": f(6)}, rtol=1e-5)
    case("causal_conv_start", ms("CausalConvWithState", "x w", "y s"), {"x": f(2, 6, 5)}, {"w": f(6, 1, 4)}, rtol=1e-5)
    case("decoder_attention", ms("DecoderMaskedMultiHeadAttention", ["q", "k", "v", "", "", "pk", "pv", "n"], "y k2 v2", num_heads=2, past_present_share_buffer=1),
         {"q": f(2, 1, 8), "k": f(2, 1, 8), "v": f(2, 1, 8), "pk": f(2, 2, 6, 4), "pv": f(2, 2, 6, 4), "n": np.array([3], i32)}, rtol=1e-5)
    case("dynamic_pads", ms("ConvTransposeWithDynamicPads", "x w p b", strides=[2, 2]), {"x": f(1, 3, 4, 5)}, {"w": f(3, 2, 3, 3), "p": np.array([1, 0, 0, 1], i64), "b": f(2)}, rtol=1e-5)
    tokens, width = (2, 5, 8), 2
    for rule, more in (("linear", []), ("gated_delta", ["d", "e"])):
        case(f"ms_linear_attention_{rule}", ms("LinearAttention", ["q", "k", "v", "s", *more], "y t", q_num_heads=width, kv_num_heads=width, update_rule=rule, scale=0.5),
             {"q": f(*tokens), "k": f(*tokens, scale=0.5), "v": f(*tokens), "s": f(2, width, 4, 4), **({"d": -np.abs(f(2, 5, width)), "e": np.abs(np.tanh(f(2, 5, width)))} if more else {})}, rtol=1e-4)
    names = "word position segment gamma beta"
    tables = {"word": q(u8, 11, 16), "position": q(u8, 6, 16), "segment": q(u8, 2, 16), "gamma": q(u8, 16), "beta": q(u8, 16)}
    scales = {f"s_{n}": s(0.01 + 0.003 * i) for i, n in enumerate(names.split())}
    zeros = {f"z_{n}": z(u8, 100 + i) for i, n in enumerate(names.split())}
    case("qembed", ms("QEmbedLayerNormalization", ["ids", "types", *tables, "mask", *scales, *zeros], "y m", epsilon=1e-6),
         {"ids": RNG.integers(0, 11, (2, 6)).astype(i32), "types": RNG.integers(0, 2, (2, 6)).astype(i32), "mask": np.ones((2, 6), i32)}, {**tables, **scales, **zeros}, rtol=1e-4)


PARTS = {"patterns": patterns, "basics": basics, "products": products, "tiles": tiles, "floats": floats, "images": images, "elementwise": elementwise, "contrib": contrib, "few_bits": few_bits}


def model_of(nodes, feeds, consts, opset, outputs):
    def constant(name, a):
        t = a if isinstance(a, onnx.TensorProto) else nh.from_array(a)
        t.name = name
        return t

    g = h.make_graph(nodes, "g", [value(n, a) for n, a in feeds.items()], [h.make_empty_tensor_value_info(o) for o in outputs], [constant(n, a) for n, a in consts.items()])
    return h.make_model(g, opset_imports=[h.make_opsetid("", opset), h.make_opsetid(MS, 1)], ir_version=10)


def expected(m, feeds):
    o = ort.SessionOptions()
    # As written: its own rewriting of quantized graphs would be compared otherwise.
    o.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(m.SerializeToString(), o, providers=["CPUExecutionProvider"])
    return session.run(None, feeds)


def apart(got, want, steps, rtol):
    """What is wrong, or nothing."""
    if got.dtype != want.dtype or got.shape != want.shape:
        return f"{got.dtype}{got.shape}, expected {want.dtype}{want.shape}"
    x, y = got.astype(np.float64), want.astype(np.float64)
    x, y = np.where((x == y) | np.isnan(x) & np.isnan(y), 0, x), np.where((x == y) | np.isnan(x) & np.isnan(y), 0, y)
    allowed = rtol if isinstance(rtol, np.ndarray) else steps if got.dtype.kind in "iu" else rtol * np.max(np.abs(y), initial=0)
    worst = np.max(np.abs(x - y), initial=0)
    return None if np.all(np.abs(x - y) <= allowed) else f"{np.count_nonzero(np.abs(x - y) > allowed)} of {x.size} differ, by up to {worst}"


def build(onnxc, work, models):
    """Compiles and links; name -> callable model."""
    objects, out = [], {}
    for name, m in models.items():
        path = os.path.join(work, name)
        onnx.save(m, path + ".onnx")
        r = subprocess.run([*onnxc, path + ".onnx", "-o", path + ".o", "--name", name, "--emit", "obj"], capture_output=True, text=True)
        if r.returncode:
            out[name] = r.stderr.strip().splitlines()[0]
        else:
            objects.append(path + ".o")
    lib = os.path.join(work, f"lib{len(models)}.so")
    abi.link(objects, lib)
    return {n: out.get(n) or abi.Model(lib, n) for n in models}


def references():
    """Models with the shapes of their results, and the results: by name. What ONNX Runtime does not take is counted."""
    bad, models, wants = 0, {}, {}
    for name, nodes, feeds, consts, _, _, opset, outputs, want in CASES:
        m = model_of(nodes, feeds, consts, opset, outputs)
        several = want if isinstance(want, tuple) else (want,)
        try:
            wants[name] = [w(**feeds, **consts) if w else expected(m, feeds) for w in several]
        except Exception as e:
            bad += 1
            print(f"{name}: ONNX Runtime does not take it: {e}")
            continue
        for o, w in zip(m.graph.output, wants[name][0]):
            o.CopyFrom(h.make_tensor_value_info(o.name, h.np_dtype_to_tensor_dtype(w.dtype), w.shape))
        models[name] = m
    return bad, models, wants


def run_abroad(onnxc, work, target, cpus):
    """The models on other CPUs; how many results are wrong."""
    sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "onnx_backend"))
    import cross
    lacks = cross.missing(target)
    if lacks:
        print(f"skipped: {target} needs {lacks}, which is not installed")
        return 0
    bad, models, wants = references()
    folder, objects = pathlib.Path(work), {}
    for name, m in models.items():
        onnx.save(m, str(folder / f"{name}.onnx"))
        r = subprocess.run([*onnxc, str(folder / f"{name}.onnx"), "-o", str(folder / f"{name}.o"), "--name", name, "--target", target], capture_output=True, text=True)
        if r.returncode:
            bad += 1
            print(f"{name}: {r.stderr.strip().splitlines()[0]}")
        else:
            objects[name] = folder / f"{name}.o"
    exe = cross.build(objects, folder, target)
    for cpu in cpus:
        wrong = 0
        for name, _, feeds, _, steps, rtol, *_ in CASES:
            if name not in objects:
                continue
            try:
                status, outs = cross.answer([*cross.emulator(target, cpu), str(exe)], name, [np.ascontiguousarray(a).tobytes() for a in feeds.values()], [(w.shape, w.nbytes) for w in wants[name][0]])
            except RuntimeError as e:
                status, outs = str(e), []
            got = [np.frombuffer(raw, w.dtype).reshape(dims) for w, (_, dims, raw) in zip(wants[name][0], outs)]
            problems = [next((p for g, w in zip(got, want) if (p := apart(g, w, steps, rtol))), None) for want in wants[name]]
            problem = status or (problems[0] if all(problems) else None)
            if problem:
                wrong += 1
                print(f"{name}: {problem}")
        print(f"{len(objects)} cases for {target}{f' as {cpu}' if cpu else ''}, {wrong} wrong")
        bad += wrong
    return bad


def run_cases(onnxc, work):
    bad, models, wants = references()
    compiled = build(onnxc, work, models)
    for name, _, feeds, _, steps, rtol, *_ in CASES:
        if name not in models:
            continue
        m = compiled[name]
        problem = m if isinstance(m, str) else None
        if problem is None:
            # Sizes that follow from data: there is room for those of the reference.
            run, outs = m.prepare(feeds, [w.shape for w in wants[name][0]])
            try:
                run()
            except abi.Failed as e:
                bad += 1
                print(f"{name}: {e}")
                continue
            problems = [next((p for g, w in zip(outs, want) if (p := apart(g, w, steps, rtol))), None) for want in wants[name]]
            problem = problems[0] if all(problems) else None
        if problem:
            bad += 1
            print(f"{name}: {problem}")
    print(f"{len(CASES)} cases, {bad} wrong")
    return bad


def conversions(onnxc, work):
    """Every code of the small types is loaded, and many floats become each of them."""
    from onnx.reference.ops.op_cast import cast_to
    n = 1 << 14
    x = np.concatenate([RNG.integers(0, 1 << 32, n // 2, dtype=np.uint64).astype(np.uint32).view(np.float32), f(n // 4, scale=50.0), RNG.integers(-512, 512, n // 4).astype(np.float32)])
    # Ties of every format.
    x = np.concatenate([x, (RNG.integers(-4096, 4096, n) / np.float32(2) ** RNG.integers(-6, 18, n)).astype(np.float32)])
    x[:8] = [np.nan, np.inf, -np.inf, 0, -0.0, 448, 464, 465]
    # What is below 2^-126, and infinities, the reference turns into other powers of two than the specification says.
    e8m0 = (np.abs(x) >= 2.0**-126) & np.isfinite(x)
    types = [T.FLOAT8E4M3FN, T.FLOAT8E4M3FNUZ, T.FLOAT8E5M2, T.FLOAT8E5M2FNUZ, T.FLOAT8E8M0, T.FLOAT6E2M3, T.FLOAT6E3M2, T.FLOAT4E2M1]
    nodes, outs, feeds, want = [], [], {"x": x}, {}

    def add(label, source, to, ref, **attrs):
        nodes.append(h.make_node("Cast", [source], [label], to=to, **attrs))
        outs.append(h.make_tensor_value_info(label, to, ref.shape))
        want[label] = (to, ref)

    for t in types:
        bits = {T.FLOAT4E2M1: 4, T.FLOAT6E2M3: 6, T.FLOAT6E3M2: 6}.get(t, 8)
        codes = np.arange(1 << bits, dtype=np.uint8)
        feeds[f"codes{t}"] = codes
        add(f"load{t}", f"codes{t}", T.FLOAT, codes.view(h.tensor_dtype_to_np_dtype(t)).astype(np.float32))
        add(f"store{t}", "x", t, cast_to(x, t, True))
        if t in types[:4]:
            add(f"loose{t}", "x", t, cast_to(x, t, False), saturate=0)
        if t == T.FLOAT8E8M0:
            add("down", "x", t, cast_to(x, t, True, "down"), round_mode="down")
            add("nearest", "x", t, cast_to(x, t, True, "nearest"), round_mode="nearest")
    ins = [h.make_tensor_value_info("x", T.FLOAT, x.shape)] + [h.make_tensor_value_info(f"codes{t}", t, feeds[f"codes{t}"].shape) for t in types]
    m = h.make_model(h.make_graph(nodes, "g", ins, outs), opset_imports=[h.make_opsetid("", 28)], ir_version=13)
    model = build(onnxc, work, {"conversions": m})["conversions"]
    run, got = model.prepare(feeds)
    run()
    bad = 0
    for info, g in zip(model.outputs, got):
        label = info.name.decode()
        to, ref = want[label]
        g = g.view(h.tensor_dtype_to_np_dtype(to)).astype(np.float32)
        ref = ref.astype(np.float32)
        same = (g == ref) & (np.signbit(g) == np.signbit(ref)) | np.isnan(g) & np.isnan(ref) | (g == 0) & np.isnan(x[:g.size])
        if to == T.FLOAT8E8M0:
            same |= ~e8m0
        if not same.all():
            bad += 1
            i = np.flatnonzero(~same)[0]
            print(f"conversion {label}: {np.count_nonzero(~same)} of {g.size} differ; of number {i} it is {g[i]}, expected {ref[i]}")
    print(f"{len(want)} conversions, {bad} wrong")
    return bad


def main(parts, conversion=False):
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("onnxc")
    p.add_argument("--only", choices=[*parts, *["conversions"] * conversion])
    p.add_argument("-O", dest="level", default="2")
    p.add_argument("--math", default="default")
    p.add_argument("--cpu", help="the CPU level of the code")
    p.add_argument("--target", help="run the models on another CPU, under an emulator")
    p.add_argument("--emulate", metavar="CPUS", help="the CPUs to run them as, in names of the emulator, separated by commas")
    a = p.parse_args()
    warnings.simplefilter("ignore")  # Conversions overflow on purpose.
    onnxc = [os.path.abspath(a.onnxc), f"-O{a.level}", "--math", a.math, *(["--cpu", a.cpu] if a.cpu else [])]
    global BYTES, FAST
    FAST = a.math == "fast"
    BYTES = not a.target and a.level == "2" and a.math != "strict" and platform.machine().lower() in ("x86_64", "amd64")
    for name, part in parts.items():
        if a.only in (None, name):
            part()
    with tempfile.TemporaryDirectory() as work:
        if a.target:
            return int(run_abroad(onnxc, work, a.target, a.emulate.split(",") if a.emulate else [None]) > 0)
        bad = run_cases(onnxc, work) if CASES else 0
        if conversion and a.only in (None, "conversions"):
            bad += conversions(onnxc, work)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(PARTS, conversion=True))
