#!/usr/bin/env python3
"""Values and sizes at the edges: no elements, scalars, NaN, infinities, what overflows, positions from the end, ties; against
ONNX Runtime.

    edges.py ONNXC [--only PART] [-O LEVEL]
"""
import sys

import numpy as np
import quantized
from onnx import TensorProto as T
from quantized import case, f, node

nan, inf = np.nan, np.inf
I64 = lambda *v: np.array(v, np.int64)
count = 0


def known(op, feeds, want, **attributes):
    """Results that ONNX Runtime does not give."""
    global count
    count += 1
    case(f"e{count}_{op.lower()}", node(op, " ".join(feeds), " ".join(f"y{i}" for i in range(len(want))), **attributes), feeds, opset=22, rtol=1e-6, want=lambda **_: want)


def check(op, feeds, consts=None, names=None, out=1, rtol=1e-6, opset=22, **attributes):
    global count
    count += 1
    operands = names or " ".join([*feeds, *(consts or {})])
    case(f"e{count}_{op.lower()}", node(op, operands, " ".join(f"y{i}" for i in range(out)), **attributes), feeds, consts, rtol=rtol, opset=opset)


def values():
    special = np.array([0, -0.0, 1, -1, 1e-40, 0.5, -0.5, 1.5, 2.5, -2.5, 88, -104, inf, -inf, nan], np.float32)
    for op in "Abs Neg Exp Sqrt Sigmoid Tanh Softplus Softsign Relu Atan Sinh Asinh Erf Ceil Floor Round Reciprocal HardSwish Mish Elu Selu LeakyRelu ThresholdedRelu HardSigmoid IsNaN IsInf".split():
        check(op, {"x": special})
    # A large negative number times 1 + erf of it is 0.
    for v in (-4.0, -6.0, -10.0, -100.0, -1e10, -3.4e38, -inf, nan, inf):
        check("Gelu", {"x": np.full(40, v, np.float32)}, rtol=1e-3)
    x, y = np.array([nan, 1, inf, -inf, 2, nan, -0.0], np.float32), np.array([1, nan, 2, 1, -inf, nan, 0.0], np.float32)
    for op in ("Min", "Max", "Equal", "Less", "LessOrEqual", "Add", "Mul", "Div", "Pow"):
        check(op, {"x": x, "y": y})
    check("Mod", {"x": np.array([-7.5, 7.5, 5, inf, nan], np.float32), "y": np.array([3, -3, inf, 2, 1], np.float32)}, fmod=1)
    # What is out of range wraps by way of wider integers.
    wide = np.array([0, 1.9, -1.9, 127.5, 128, -129, 255.9, 256, -1, 65536, -70000, 1e9, 2e9, -2e9], np.float32)
    for to in (T.INT8, T.UINT8, T.INT16, T.UINT16, T.INT32, T.UINT32, T.INT64, T.UINT64):
        check("Cast", {"x": np.tile(wide, 5)}, to=to)
        check("Cast", {"x": wide.astype(np.float64)}, to=to)
        check("Cast", {"x": np.array([2**31, -2**31 - 1, 255, -1, 2**63 - 1], np.int64)}, to=to)
    check("Cast", {"x": np.array([nan, -0.0, 1e-8], np.float32)}, to=T.BOOL)
    for dt in (np.int8, np.int32, np.int64, np.uint8, np.uint32):
        i = np.iinfo(dt)
        a, b = np.array([i.max, i.max, 7, i.min, 5, i.min], dt), np.array([1, i.max, 3, i.max, 2, 3], dt)
        for op in ("Add", "Sub", "Mul", "Div", "Mod", "Min", "Max", "Less"):
            check(op, {"a": a, "b": b})
    a, b = np.array([-7, 7, -7, 7, 5, -5], np.int32), np.array([3, 3, -3, -3, -5, 5], np.int32)
    for fmod in (0, 1):
        check("Mod", {"a": a, "b": b}, fmod=fmod)
    for dt in (np.int8, np.int16, np.int32, np.int64):
        quotients(dt)
    # NaN is one value, behind all others, as numpy has it.
    known("Unique", {"x": np.array([3, nan, 1, nan, 1], np.float32)}, [np.array([1, 3, nan], np.float32), I64(2, 0, 1), I64(1, 2, 0, 2, 0), I64(2, 1, 2)])
    x = f(2, 5, 3, 3)
    squares = lambda c: (x[:, max(c - 1, 0):c + 3] ** 2).sum(1)
    known("LRN", {"x": x}, [x / (2 + np.float32(0.5 / 4) * np.stack([squares(c) for c in range(5)], 1)) ** np.float32(0.75)], size=4, alpha=0.5, bias=2.0)
    half = lambda *v: np.array(v, np.float16)
    check("Add", {"a": half(65504, 60000, -65504), "b": half(16, 10000, -32)})
    check("ReduceSum", {"x": np.full((2, 4000), 20, np.float16)}, {"a": I64(1)})
    check("ReduceMean", {"x": np.full((2, 8000), 20, np.float16)}, {"a": I64(1)})
    check("MatMul", {"a": np.full((2, 100), 30, np.float16), "b": np.full((100, 2), 30, np.float16)})
    # Sums of 16-bit floats are added up in f32: in their own type, sums of ones would end at 256 and 2048.
    ones = np.ones((3, 3072), np.float32)
    for to in (T.BFLOAT16, T.FLOAT16):
        for op, operands in (("ReduceSum", "h a"), ("ReduceSumSquare", "h a"), ("ReduceL1", "h a"), ("MatMul", "h t")):
            nodes = [node("Cast", "x", "h", to=to), node("Transpose", "h", "t"), node(op, operands, "s"), node("Cast", "s", "y", to=T.FLOAT)]
            product = op == "MatMul"
            want = np.full((3, 3 if product else 1), 3072, np.float32)
            case(f"sum_{op.lower()}_{to}", nodes, {"x": ones}, {} if product else {"a": I64(1)}, opset=22, want=lambda want=want, **_: [want])
    rows = np.array([[-inf, 3], [1e38, -1e38], [200, -200], [inf, 1], [nan, 1]], np.float32)
    for op in ("Softmax", "LogSoftmax", "ReduceLogSumExp", "ReduceMax", "ReduceSum"):
        check(op, {"x": rows}, {"a": I64(1)} if op[0] == "R" else {}, **({} if op[0] == "R" else {"axis": 1}))


def places():
    """Coordinates of GridSample and DeformConv that are NaN, infinite, or far outside."""
    here = np.array([[[[0.1, 0.2], [nan, 0.1], [0.1, nan], [nan, nan], [nan, 5], [0.7, -0.6]]]], np.float32)
    away = np.array([[[[inf, 0.1], [0.1, -inf], [-inf, inf], [1e30, 0.1], [3e38, -3e38], [0.0, 0.0]]]], np.float32)
    for channels in (1, 3):
        x = np.arange(12 * channels, dtype=np.float32).reshape(1, channels, 3, 4) + 1
        for mode in ("linear", "nearest", "cubic"):
            for padding in ("zeros", "border", "reflection"):
                for corners in (0, 1):
                    check("GridSample", {"x": x, "g": here}, rtol=1e-5, mode=mode, padding_mode=padding, align_corners=corners)
            # ONNX Runtime takes these for -1.
            middle = x[:, :, 1, 1:3].mean(-1) if mode != "nearest" else x[:, :, 1, 2]
            want = np.zeros((1, channels, 1, 6), np.float32)
            want[0, :, 0, 5] = middle
            known("GridSample", {"x": x, "g": away}, [want], mode=mode, align_corners=1)
    offsets = np.zeros((1, 2, 3, 4), np.float32)
    offsets[0, 0, 0] = offsets[0, 1, 1] = [inf, -inf, nan, 1e30]
    check("DeformConv", {"x": np.arange(12, dtype=np.float32).reshape(1, 1, 3, 4), "w": np.ones((1, 1, 1, 1), np.float32), "o": offsets})


def sizes():
    for s, t in (((0,), (1,)), ((0, 3), (3,)), ((2, 0), (2, 1)), ((), ()), ((), (2, 3)), ((1, 0, 2), (4, 1, 1)), ((0,), ())):
        for op in ("Add", "Max", "Less"):
            check(op, {"a": f(*s), "b": f(*t)})
    check("Concat", {"a": f(0), "b": f(0)}, axis=0)
    check("Concat", {"a": f(0, 3), "b": f(2, 3), "c": f(0, 3)}, axis=0)
    for s, t in (((0, 2, 3), (3, 4)), ((2, 0), (0, 3)), ((0, 3), (3, 2)), ((3,), (4, 3, 2)), ((3,), (3,))):
        check("MatMul", {"a": f(*s), "b": f(*t)}, rtol=1e-5)
    check("Gemm", {"a": f(0, 5), "b": f(5, 4), "c": f(4)})
    check("Gemm", {"a": f(3, 0), "b": f(0, 4), "c": f(4)})
    check("Gemm", {"a": f(3, 5), "b": f(5, 4), "c": np.full(4, nan, np.float32)}, beta=0.0, rtol=1e-5)
    check("NonZero", {"x": f(0, 3)})
    check("Conv", {"x": f(0, 2, 5, 5), "w": f(3, 2, 3, 3)})
    check("AveragePool", {"x": f(0, 2, 5, 5)}, kernel_shape=[2, 2])
    check("Softmax", {"x": f(3, 0)})
    check("Transpose", {"x": f(2, 0, 3)}, perm=[2, 0, 1])
    check("Tile", {"x": f(2, 3)}, {"r": I64(0, 2)})
    check("Expand", {"x": f()}, {"s": I64(2, 0)})
    check("Reshape", {"x": f(0, 3)}, {"s": I64(3, 0)}, allowzero=1)
    check("Split", {"x": f(5, 2)}, {"s": I64(0, 5, 0)}, out=3, axis=0)
    check("TopK", {"x": f(4, 5)}, {"k": I64(0)}, out=2, axis=0)
    for op in ("ReduceSum", "ReduceProd", "ReduceMax", "ReduceMin", "ReduceL2", "ReduceLogSumExp"):
        check(op, {"x": f(2, 0, 4)}, {"a": I64(1)})
        check(op, {"x": f(2, 3, 4)}, {"a": I64()}, noop_with_empty_axes=1)
        check(op, {"x": f()}, keepdims=0)
    for indices in (np.zeros((0, 2), np.int64), np.array(-2, np.int64)):
        check("Gather", {"x": f(4, 5), "i": indices}, axis=-1)
    check("ScatterND", {"x": f(4, 5), "i": np.zeros((0, 1), np.int64), "u": f(0, 5)})


def positions():
    least, most = -2**63, 2**63 - 1
    for start, end, axis, step in ((5, -100, 0, -1), (-1, least, 0, -2), (most, least, 1, -1), (2, 2, 0, 1), (-100, 100, -1, 100), (0, most, -2, 3), (7, 9, 0, 1), (4, -6, 0, -1)):
        operands = {"s": I64(start), "e": I64(end), "a": I64(axis), "p": I64(step)}
        check("Slice", {"x": f(5, 4)}, operands)
        check("Slice", {"x": f(5, 4), **operands})
    # Negative pads cut first; the rest is repeated.
    for mode in ("constant", "reflect", "edge", "wrap"):
        for low, high in ((-1, 2), (2, -1), (-1, -1), (1, 1), (0, -3), *(((-2, 6), (3, -2)) if mode != "reflect" else ())):
            check("Pad", {"x": f(5)}, {"p": I64(low, high)}, mode=mode)
            check("Pad", {"x": f(5), "p": I64(low, high)}, mode=mode)
    for reduction in ("add", "mul", "max", "min"):
        check("ScatterND", {"x": f(4, 5), "i": I64(0, 1, 0, 1, -1, -5, 3, 4).reshape(4, 2), "u": f(4)}, reduction=reduction)
        check("ScatterElements", {"x": f(4, 4), "i": I64(0, -1, 3, 3, -4, 0).reshape(2, 3), "u": f(2, 3)}, axis=-1, reduction=reduction)
    for k in (-10, -1, 0, 1, 10):
        check("Trilu", {"x": f(2, 3, 4)}, {"k": np.array(k, np.int64)}, upper=0)
        check("EyeLike", {"x": f(3, 4)}, k=k)
    for axis in (-1, 0):
        check("OneHot", {"i": I64(-3, -1, 0, 2, 3, 5)}, {"d": np.array(3, np.int64), "v": np.array([2, 5], np.float32)}, axis=axis)
    for largest in (0, 1):
        check("TopK", {"x": np.array([[1, 1, 2, 2, 0], [inf, -inf, 0, inf, 1]], np.float32)}, {"k": I64(3)}, out=2, largest=largest)
    for exclusive in (0, 1):
        for reverse in (0, 1):
            check("CumSum", {"x": f(3, 4)}, {"a": np.array(-1, np.int64)}, exclusive=exclusive, reverse=reverse, rtol=1e-5)


def quotients(dt):
    """All pairs of numbers at the ends, around powers of two and at random, by rows and by columns; quotients wrap."""
    rng, low, high = np.random.default_rng(2), int(np.iinfo(dt).min), int(np.iinfo(dt).max)
    bits = high.bit_length() + 1
    near = {s * (1 << k) + d for k in range(bits) for s in (-1, 1) for d in (-1, 0, 1)} | {low, high, low + 1, high - 1}
    near |= {int(x) >> int(rng.integers(bits)) for x in rng.integers(low, high, 60)}
    a = sorted(x for x in near if low <= x <= high)
    b = [x for x in a if x]
    wrap = lambda x: (x - low) % (1 << bits) + low
    quotient = lambda x, y: abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)
    rules = {"Div": (quotient, {}), "Mod": (lambda x, y: x % y, {}), "Rem": (lambda x, y: x - quotient(x, y) * y, {"fmod": 1})}
    for name, (rule, attributes) in rules.items():
        want = np.array([[wrap(rule(x, y)) for y in b] for x in a], dt)
        op, x, y = name.replace("Rem", "Mod"), np.array(a, dt)[:, None], np.array(b, dt)[None]
        by_7 = np.array([[wrap(rule(v, 7))] * 40 for v in a], dt)
        forms = {
            "rows": (x, y, want),
            "columns": (np.repeat(x, len(b), 1).T.copy(), y.T.copy(), want.T),
            "scalar": (np.repeat(x, 40, 1), np.array(7, dt), by_7),
        }
        for form, (x, y, want) in forms.items():
            case(f"{name.lower()}_{np.dtype(dt).name}_{form}", node(op, "a b", **attributes), {"a": x, "b": y}, opset=22, want=lambda want=want, **_: [want])


def orders():
    """TopK as in onnx.reference: NaN is the largest, the first of equal elements comes first."""
    rng = np.random.default_rng(1)
    draw = {
        "few": lambda dt, n: rng.integers(0, 4, (3, n)).astype(dt),
        "many": lambda dt, n: rng.integers(0, 100, (3, n)).astype(dt),
        "one": lambda dt, n: np.zeros((3, n), dt),
        "ends": lambda dt, n: rng.choice(np.array([np.iinfo(dt).min, np.iinfo(dt).max, 0], dt), (3, n)) if np.dtype(dt).kind != "f" else rng.choice(np.array([-inf, inf, -0.0, 0.0, nan, -nan, 1], dt), (3, n)),
    }
    for dt in (np.float32, np.float16, np.int8, np.uint8, np.int32, np.uint32, np.int64, np.float64):
        for n, k in ((60, 20), (100, 16), (100, 17), (300, 17), (300, 300), (1003, 5), (1003, 50), (1003, 400), (3001, 3001)):
            for kind, values in draw.items():
                x, largest, ordered = values(dt, n), int(rng.integers(2)), int(rng.integers(2))
                _, rank = np.unique(x, return_inverse=True)
                rank = rank.reshape(x.shape)
                order = np.argsort(-rank if largest else rank, axis=-1, kind="stable")[:, :k]
                want = [np.take_along_axis(x, order, -1), order]
                topk = node("TopK", "x k", "v i", axis=-1, largest=largest, sorted=ordered)
                case(f"order_{np.dtype(dt).name}_{n}_{k}_{kind}", topk, {"x": x}, {"k": I64(k)}, opset=24, want=lambda want=want, **_: want)


if __name__ == "__main__":
    sys.exit(quantized.main({"values": values, "places": places, "sizes": sizes, "positions": positions, "orders": orders}))
