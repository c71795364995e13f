#!/usr/bin/env python3
"""One model for every operator of the table at every version of it, against a reference.

    ops_versions.py ONNXC [--types] [--filter GLOB] [--jobs N] [--verbose]

Each model imports the operator set in which that version of the operator began. The expected result comes from
onnxruntime where it takes that operator set, from onnx.reference otherwise, and from numpy where neither implements
the first versions (or does it wrong). With --types it is the newest version of each operator, for every element type
that its first operand may have; where there is no reference the model must compile or be refused, no more. A model that
ONNXC refuses is listed with --verbose; a wrong result or a crash is a fault.
"""
import argparse
import collections
import fnmatch
import json
import os
import pathlib
import re
import sys
import tempfile
import warnings

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "onnx_backend"))
import run as backend  # noqa: E402
import numpy as np  # noqa: E402
import onnx  # noqa: E402
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

RNG = np.random.default_rng(7)


class Const:
    """An operand that is an initializer."""

    def __init__(self, value):
        self.value = np.asarray(value)


def f32(*shape, lo=-2.0, hi=2.0):
    return (RNG.random(shape) * (hi - lo) + lo).astype(np.float32)


def ints(*values):
    return Const(np.array(values, np.int64))


def table():
    """Operators of the table in compiler/ops, ai.onnx."""
    names = []
    for f in sorted((HERE.parent / "compiler" / "ops").glob("*.rs")):
        for block in re.findall(r"const OPS: &'static \[&'static str\] =\s*&\[(.*?)\];", f.read_text(), re.S):
            names += re.findall(r'"([A-Za-z0-9]+)"', block)
    return sorted(set(names))


def legacy(a, b, axis):
    """Broadcasting before version 7: B's axes start at `axis`."""
    return b.reshape(b.shape + (1,) * (a.ndim - axis - b.ndim))


ARITHMETIC = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.divide, "Pow": np.power, "Less": np.less, "Greater": np.greater, "Equal": np.equal, "And": np.logical_and, "Or": np.logical_or, "Xor": np.logical_xor}
POSITIVE = {"Log", "Sqrt"}
LARGE = {"Acosh"}
UNIT = {"Asin", "Acos", "Atanh"}
SCALE = {"Elu": {"alpha": 0.7}, "LeakyRelu": {"alpha": 0.3}, "ThresholdedRelu": {"alpha": 0.4}, "Celu": {"alpha": 1.5}, "Selu": {}, "HardSigmoid": {"alpha": 0.4, "beta": 0.3}, "Shrink": {"lambd": 0.6, "bias": 0.2}}


def variants(op, v):
    """Cases of an operator at a version: (operands, attributes, outputs[, expected])."""
    x = f32(2, 3, 4)
    if op in ARITHMETIC:
        a, b = f32(2, 3, 4, lo=0.5), f32(3, 4, lo=0.5)
        if op == "Equal" and v < 11:
            a, b = RNG.integers(0, 3, (2, 3, 4)).astype(np.int32), RNG.integers(0, 3, (3, 4)).astype(np.int32)
        if op in ("And", "Or", "Xor"):
            a, b = a > 1.2, b > 1.2
        if v >= 7:
            return [([a, b], {}, 1), ([a, b[:, :1]], {}, 1)]
        f, c = ARITHMETIC[op], b[:, 0]
        return [([a, b], {"broadcast": 1}, 1, [f(a, b)]), ([a, c], {"broadcast": 1, "axis": 1}, 1, [f(a, legacy(a, c, 1))]), ([a, a[::-1].copy()], {}, 1, [f(a, a[::-1])])]
    if op in ("Max", "Min", "Sum", "Mean"):
        rest = [f32(2, 3, 4), f32(2, 3, 4)] if v < 8 else [f32(3, 1), f32(1, 1, 4)]
        return [([x, *rest], {}, 1), ([x], {}, 1)]
    if op in ("LessOrEqual", "GreaterOrEqual"):
        return [([x, f32(3, 1)], {}, 1)]
    if op.startswith("Bitwise"):
        a, b = RNG.integers(-99, 99, (2, 3)).astype(np.int32), RNG.integers(-99, 99, (3,)).astype(np.int32)
        return [([a] if op == "BitwiseNot" else [a, b], {}, 1)]
    if op == "BitShift":
        a, b = RNG.integers(0, 200, (2, 3)).astype(np.uint8), RNG.integers(0, 10, (3,)).astype(np.uint8)
        return [([a, b], {"direction": d}, 1) for d in ("LEFT", "RIGHT")]
    if op == "Mod":
        a, b = RNG.integers(-50, 50, (2, 6)).astype(np.int32), np.array([3, -3, 7, -7, 5, 1], np.int32)
        return [([a, b], {}, 1), ([a, b], {"fmod": 1}, 1), ([f32(2, 6), f32(6, lo=0.3)], {"fmod": 1}, 1)]
    if op == "PRelu":
        slope = np.array([0.1, 0.2, 0.3], np.float32)
        if v < 7:
            return [([x, slope], {}, 1, [np.where(x < 0, x * slope[:, None], x)]), ([x, slope[:1]], {}, 1, [np.where(x < 0, x * slope[0], x)])]
        return [([x, slope[:, None]], {}, 1)]
    if op == "Not":
        return [([x > 0], {}, 1)]
    if op == "Where":
        return [([x > 0, x, f32(3, 1)], {}, 1)]
    if op == "Clip":
        if v < 11:
            return [([x], {"min": -0.5, "max": 0.8}, 1), ([x], {}, 1), ([x], {"max": 0.1}, 1)]
        return [([x, np.float32(-0.5), np.float32(0.8)], {}, 1), ([x, Const(np.float32(0))], {}, 1), ([x, None, Const(np.float32(0.5))], {}, 1)]
    if op == "Cast":
        to = (lambda t: t) if v >= 6 else (lambda t: TensorProto.DataType.Name(t))
        y = np.array([0.0, 1.7, -1.7, 100.2, 3e4], np.float32)
        out = [(y, TensorProto.INT32), (y, TensorProto.BOOL), (y, TensorProto.DOUBLE), (y, TensorProto.FLOAT16), (y.astype(np.int64), TensorProto.FLOAT)]
        return [([a], {"to": to(t)}, 1, None if v >= 6 else [a.astype(helper.tensor_dtype_to_np_dtype(t))]) for a, t in out]
    if op == "CastLike":
        return [([x, np.zeros(1, np.int32)], {}, 1)]
    if op == "Reshape":
        if v < 5:
            return [([x], {"shape": [0, -1]}, 1, [x.reshape(2, 12)])]
        out = [([x, ints(0, -1)], {}, 1), ([x, ints(4, 3, 2)], {}, 1)]
        return out + ([([np.zeros((0, 3), np.float32), ints(3, 0)], {"allowzero": 1}, 1)] if v >= 14 else [])
    if op in ("Squeeze", "Unsqueeze"):
        y = f32(1, 3, 1, 4)
        axes = [0, 2] if v < 11 else [0, -2]
        shape = [3, 4] if op == "Squeeze" else [1, 1, 1, 3, 1, 4] if v < 11 else [1, 1, 3, 1, 1, 4]
        if v < 13:
            out = [([y], {"axes": axes}, 1, [y.reshape(shape)])]
        else:
            out = [([y, ints(*axes)], {}, 1)]
        return out + ([([y], {}, 1, [y.reshape(3, 4)])] if op == "Squeeze" else [])
    if op == "Flatten":
        return [([x], {"axis": a}, 1, [x.reshape(int(np.prod(x.shape[:a])) if a else 1, -1)]) for a in ([0, 1, 2, 3] if v >= 9 else [0, 1, 2])] + ([([x], {"axis": -1}, 1)] if v >= 11 else [])
    if op == "Dropout":
        mask = [([x], {}, 2)] if v >= 12 else []  # Versions 7 and 10 leave open what the mask holds.
        return mask + [([x], {"is_test": 1} if v < 7 else {}, 1, [x])] + ([([x, Const(np.float32(0.4))], {}, 1, [x])] if v >= 12 else [])
    if op == "Shape":
        return [([x], {}, 1)] + ([([x], {"start": -2}, 1), ([x], {"start": 1, "end": -1}, 1)] if v >= 15 else [])
    if op == "ConstantOfShape":
        return [([ints(2, 3)], {}, 1), ([ints(2, 3)], {"value": helper.make_tensor("v", TensorProto.INT32, [1], [7])}, 1)]
    if op == "Expand":
        return [([f32(3, 1), ints(2, 1, 4)], {}, 1), ([f32(3, 1), ints(1)], {}, 1)]
    if op == "Range":
        return [([Const(np.float32(1)), Const(np.float32(4.2)), Const(np.float32(0.5))], {}, 1), ([Const(np.int64(9)), Const(np.int64(0)), Const(np.int64(-2))], {}, 1)]
    if op == "EyeLike":
        return [([f32(3, 5)], {"k": 1}, 1), ([f32(3, 5)], {"k": -1, "dtype": TensorProto.INT32}, 1)]
    if op == "Transpose":
        return [([x], {}, 1), ([x], {"perm": [1, 2, 0]}, 1)]
    if op in ("DepthToSpace", "SpaceToDepth"):
        y = f32(1, 8, 2, 4)
        modes = [{}] + ([{"mode": "CRD"}] if op == "DepthToSpace" and v >= 11 or v >= 28 else [])
        return [([y], {"blocksize": 2, **m}, 1) for m in modes]
    if op == "Tile":
        if v < 6:
            return [([x, Const(np.float32(3)), Const(np.float32(1))], {}, 1, [np.tile(x, (1, 3, 1))])]
        return [([x, ints(2, 1, 3)], {}, 1)]
    if op == "Slice":
        if v < 10:
            return [([x], {"starts": [0, 1], "ends": [-1, 1000], "axes": [1, 2]}, 1, [x[:, :-1, 1:]]), ([x], {"starts": [1], "ends": [2]}, 1, [x[1:2]])]
        return [([x, ints(0, 1), ints(-1, 1000), ints(1, 2)], {}, 1), ([x, ints(3, -1), ints(-100, 0), ints(2, -2), ints(-2, -1)], {}, 1)]
    if op == "Split":
        if v < 2:
            return [([x], {"axis": 2, "split": [1, 3]}, 2, [x[..., :1], x[..., 1:]])]
        if v < 13:
            return [([x], {"axis": 2, "split": [1, 3]}, 2), ([x], {"axis": 1}, 3)]
        out = [([x, ints(1, 3)], {"axis": 2}, 2)]
        return out + ([([x], {"axis": 1}, 3)] if v < 18 else [([f32(7)], {"num_outputs": 3}, 3)])
    if op == "Pad":
        name = "paddings" if v < 2 else "pads"
        out = []
        for mode in ("constant", "reflect", "edge") + (("wrap",) if v >= 19 else ()):
            pads = [0, 1, 2, 1, 0, 3]
            width = list(zip(pads[:3], pads[3:]))
            kw = {"constant_values": 1.5} if mode == "constant" else {}
            if v < 11:
                out.append(([x], {name: pads, "mode": mode, **({"value": 1.5} if mode == "constant" else {})}, 1, [np.pad(x, width, mode, **kw)]))
            else:
                out.append(([x, ints(*pads), Const(np.float32(1.5))], {"mode": mode}, 1, [np.pad(x, width, mode, **kw)]))
        if v >= 18:
            out.append(([x, ints(1, 2), Const(np.float32(0)), ints(-1)], {}, 1))
        return out
    if op == "Concat":
        return concat(x, v)
    if op == "Gather":
        i = np.array([[0, 2], [1, 1]], np.int64)
        return [([x, i], {"axis": 1}, 1)] + ([([x, i - 3], {"axis": -2}, 1)] if v >= 11 else [])
    if op == "GatherElements":
        return [([x, RNG.integers(-3, 3, (2, 2, 4))], {"axis": 1}, 1)]
    if op == "GatherND":
        return [([x, np.array([[0, 1], [1, 2]], np.int64)], {}, 1)] + ([([x, np.array([[1], [-1]], np.int64)], {"batch_dims": 1}, 1)] if v >= 12 else [])
    if op.startswith("Reduce"):
        y = f32(2, 3, 4, lo=0.2)
        by_input = v >= (13 if op == "ReduceSum" else 18)
        out = []
        for axes, keep in (([1], 1), ([0, 2], 0), ([-1], 0) if v >= 11 else ([2], 0)):
            out.append(([y, ints(*axes)], {"keepdims": keep}, 1) if by_input else ([y], {"axes": axes, "keepdims": keep}, 1))
        return out + [([y], {}, 1)] + ([([y], {"noop_with_empty_axes": 1}, 1)] if by_input else [])
    if op in ("ArgMax", "ArgMin"):
        y = RNG.integers(0, 3, (2, 3, 4)).astype(np.float32)
        out = [([y], {"axis": 1, "keepdims": k}, 1) for k in (0, 1)]
        return out + ([([y], {"axis": -1}, 1)] if v >= 11 else []) + ([([y], {"axis": 1, "select_last_index": 1}, 1)] if v >= 12 else [])
    if op in ("Softmax", "LogSoftmax", "Hardmax"):
        return [([x], {}, 1), ([x], {"axis": 0}, 1), ([x], {"axis": 2}, 1)] + ([([x], {"axis": -2}, 1)] if v >= 11 else [])
    if op == "BatchNormalization":
        y, p = f32(2, 3, 4, 4), [f32(3), f32(3), f32(3), f32(3, lo=0.3)]
        s = [q.reshape(1, 3, 1, 1) for q in p]
        want = [(y - s[2]) / np.sqrt(s[3] + 1e-5) * s[0] + s[1]]
        return [([y, *p], {"is_test": 1, **({"consumed_inputs": [0, 0, 0, 1, 1]} if v == 1 else {})} if v < 7 else {}, 1, want)]
    if op == "InstanceNormalization":
        return [([f32(2, 3, 4, 4), f32(3), f32(3)], {"epsilon": 1e-3}, 1)]
    if op == "GroupNormalization":
        n = 2 if v < 21 else 4
        y, s, b = f32(2, 4, 3, 3), f32(n), f32(n)
        g = y.reshape(2, 2, 2, 3, 3)
        z = (g - g.mean((2, 3, 4), keepdims=True)) / np.sqrt(g.var((2, 3, 4), keepdims=True) + 1e-5)
        per = (lambda p: p.reshape(1, 2, 1, 1, 1)) if v < 21 else (lambda p: p.reshape(1, 2, 2, 1, 1))
        return [([y, s, b], {"num_groups": 2}, 1, [(z * per(s) + per(b)).reshape(y.shape)])]
    if op in ("LayerNormalization", "RMSNormalization"):
        out = [([x, f32(4)], {}, 1), ([x, f32(3, 4)], {"axis": 1, "epsilon": 1e-2}, 1)]
        return out + ([([x, f32(4), f32(4)], {"axis": -1}, 3)] if op[0] == "L" else [])
    if op == "LpNormalization":
        return [([x], {"p": p, "axis": a}, 1) for p in (1, 2) for a in (1, -1)]
    if op == "MatMul":
        return [([x, f32(4, 5)], {}, 1), ([f32(2, 1, 3, 4), f32(5, 4, 2)], {}, 1), ([f32(4), f32(2, 4, 3)], {}, 1), ([f32(3, 4), f32(4)], {}, 1)]
    if op == "Gemm":
        a, b, c = f32(3, 4), f32(4, 5), f32(5)
        old = {"broadcast": 1} if v < 7 else {}
        want = [0.5 * a @ b + 2 * c]
        return [([a, b, c], {"alpha": 0.5, "beta": 2.0, **old}, 1, want), ([a.T.copy(), b.T.copy(), f32(3, 5)], {"transA": 1, "transB": 1}, 1)] + ([([a, b], {}, 1)] if v >= 11 else [])
    if op == "Conv":
        return [([f32(1, 4, 7, 6), f32(6, 2, 3, 3), f32(6)], {"group": 2, "pads": [1, 0, 1, 2], "strides": [2, 1]}, 1), ([f32(1, 2, 9), f32(3, 2, 3)], {"dilations": [2]}, 1), ([f32(1, 2, 7, 7), f32(3, 2, 2, 2)], {"auto_pad": "SAME_UPPER"}, 1), ([f32(1, 2, 7, 7), f32(3, 2, 2, 2)], {"auto_pad": "SAME_LOWER", "strides": [2, 2]}, 1)]
    if op == "ConvTranspose":
        return [([f32(1, 4, 4, 5), f32(4, 3, 3, 3), f32(6)], {"group": 2, "strides": [2, 2], "pads": [1, 1, 0, 1], "output_padding": [1, 0]}, 1), ([f32(1, 2, 5), f32(2, 3, 3)], {"dilations": [2]}, 1), ([f32(1, 2, 4, 4), f32(2, 3, 3, 3)], {"strides": [2, 2], "output_shape": [8, 8]}, 1)]
    if op.endswith("Pool"):
        y = f32(1, 2, 7, 6)
        if op == "GlobalLpPool":
            p = 3 if v >= 2 else 2
            return [([y], {"p": 3} if v >= 2 else {}, 1, [(np.abs(y) ** p).sum((2, 3), keepdims=True) ** (1 / p)])]
        if op.startswith("Global"):
            return [([y], {"p": 3} if "Lp" in op and v >= 2 else {}, 1)]
        p = {"p": 3} if op == "LpPool" and v >= 2 else {"p": 3.0} if op == "LpPool" else {}
        k = {"kernel_shape": [3, 2], **p}
        out = [([y], {**k, "strides": [2, 2], "pads": [1, 0, 1, 1]}, 1), ([y], {**k, "auto_pad": "SAME_UPPER", "strides": [2, 1]}, 1)]
        if op == "AveragePool" and v >= 7:
            out.append(([y], {**k, "pads": [1, 1, 1, 1], "count_include_pad": 1}, 1))
        if op == "MaxPool" and v >= 8:
            out.append(([y], {**k, "storage_order": 0}, 2))
        if v >= (18 if op == "LpPool" else 10):
            out.append(([y], {**k, "strides": [2, 2], "ceil_mode": 1}, 1))
        if v >= {"LpPool": 18, "AveragePool": 19}.get(op, 10):
            out.append(([y], {**k, "dilations": [2, 1]}, 1))
        return out
    if op in GATES:
        return recurrent(op, v)
    if op in ("CumSum", "CumProd"):
        return [([x, Const(np.int64(a))], at, 1) for a in (0, -1) for at in ({}, {"exclusive": 1}, {"reverse": 1, "exclusive": 1})] + [([x, np.int32(1)], {}, 1)]
    if op == "Trilu":
        return [([x, np.int64(k)], {"upper": u}, 1) for k in (-1, 0, 2) for u in (0, 1)] + [([x], {}, 1)]
    if op == "OneHot":
        i = np.array([[0, 2, 5], [1, 1, 3 if v < 11 else -1]], np.int64)
        return [([i, Const(np.int64(4)), f32(2)], {"axis": a}, 1) for a in (-1, 0, 1)]
    if op == "ReverseSequence":
        return [([x, np.array([2, 0, 1], np.int64)], {}, 1), ([x, np.array([3, 1], np.int64)], {"time_axis": 1, "batch_axis": 0}, 1)]
    if op in ("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"):
        c = RNG.integers(0, 3, (2, 4))
        n = 1 if op[0] == "N" else 2
        return [([x, c, *w], {"reduction": r, **g}, n) for r in ("none", "sum", "mean") for w in ([], [f32(3, lo=0.1)]) for g in ({}, {"ignore_index": 1})]
    if op == "TopK":
        y = RNG.integers(-9, 9, (2, 5, 4)).astype(np.float32)
        if v < 10:
            return [([y], {"k": 3, "axis": 1}, 2, topk(y, 3, 1, True)), ([y], {"k": 2}, 2, topk(y, 2, -1, True))]
        out = [([y, ints(3)], {"axis": 1}, 2, topk(y, 3, 1, True)), ([y, ints(4)], {}, 2, topk(y, 4, -1, True))]
        z = RNG.integers(-9, 9, (2, 70, 3)).astype(np.float32)
        out += [([z, ints(m)], {"axis": 1}, 2, topk(z, m, 1, True)) for m in (17, 70)] + ([([z, ints(33)], {"axis": 1, "largest": 0}, 2, topk(z, 33, 1, False))] if v >= 11 else [])
        return out + ([([y, ints(2)], {"axis": 0, "largest": 0}, 2, topk(y, 2, 0, False))] if v >= 11 else [])
    if op == "Einsum":
        return [([x, f32(2, 4, 5)], {"equation": "bij,bjk->bik"}, 1), ([x], {"equation": "...j->j..."}, 1), ([f32(4, 4)], {"equation": "ii"}, 1), ([x, f32(4), f32(3, 2)], {"equation": "abc,c,bd->ad"}, 1), ([f32(3), f32(4)], {"equation": "i,j"}, 1), ([x, f32(3, 4, 5)], {"equation": "...ij,ijk"}, 1)]
    if op in ("Scatter", "ScatterElements"):
        i = np.array([[[2], [0]], [[1], [2 if v < 11 else -1]]], np.int64)
        joins = [{}] + [{"reduction": r} for r in ("add", "mul") if v >= 16] + [{"reduction": r} for r in ("max", "min") if v >= 18]
        return [([x, i, f32(2, 2, 1)], {"axis": 1, **j}, 1) for j in joins] + [([x, RNG.permuted(np.tile(np.arange(4), (2, 3, 1)), axis=2)[..., :3], f32(2, 3, 3)], {"axis": 2}, 1)]
    if op == "ScatterND":
        joins = [{}] + [{"reduction": r} for r in ("add", "mul") if v >= 16] + [{"reduction": r} for r in ("max", "min") if v >= 18]
        return [([x, np.array([[1, 0], [0, -1]], np.int64), f32(2, 4)], j, 1) for j in joins] + [([x, np.array([[[1, 0, 3]], [[0, 2, 2]]], np.int64), f32(2, 1)], {}, 1)]
    if op == "TensorScatter":
        c, u = f32(2, 5, 3), f32(2, 2, 3)
        return [([c, u, np.array([3, 0], np.int64)], {}, 1), ([c, u], {}, 1), ([c, u, np.array([4, 1], np.int64)], {"mode": "circular", "axis": 1}, 1)]
    if op == "Det":
        return [([f32(4, 4)], {}, 1), ([f32(2, 3, 3, 3)], {}, 1)]
    if op == "MeanVarianceNormalization":
        return [([f32(2, 3, 4, 4)], {}, 1), ([x], {"axes": [1]}, 1)]
    if op == "IsInf" or op == "IsNaN":
        y = np.array([np.nan, np.inf, -np.inf, 1.0], np.float32)
        return [([y], {}, 1)] + ([([y], {"detect_negative": 0}, 1)] if op == "IsInf" else [])
    if op == "Gelu":
        return [([x], {}, 1), ([x], {"approximate": "tanh"}, 1)]
    lo, hi = (0.1, 3) if op in POSITIVE else (1.1, 4) if op in LARGE else (-0.9, 0.9) if op in UNIT else (-3, 3)
    y = f32(2, 3, 4, lo=lo, hi=hi)
    return [([y], {}, 1)] + ([([y], SCALE[op], 1)] if op in SCALE else [])


GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
# Name, parameters, their defaults, function.
ACTIVATIONS = {
    "Relu": ((), lambda x: np.maximum(x, 0)), "Tanh": ((), np.tanh), "Sigmoid": ((), lambda x: 1 / (1 + np.exp(-x))),
    "Softsign": ((), lambda x: x / (1 + np.abs(x))), "Softplus": ((), lambda x: np.logaddexp(x, 0)),
    "Affine": ((1.0, 0.0), lambda x, a, b: a * x + b), "ScaledTanh": ((1.0, 1.0), lambda x, a, b: a * np.tanh(b * x)),
    "HardSigmoid": ((0.2, 0.5), lambda x, a, b: np.clip(a * x + b, 0, 1)), "LeakyRelu": ((0.01,), lambda x, a: np.where(x < 0, a * x, x)),
    "ThresholdedRelu": ((1.0,), lambda x, a: np.where(x > a, x, 0)), "Elu": ((1.0,), lambda x, a: np.where(x < 0, a * np.expm1(x), x)),
}


def recurrent_result(op, operands, at):
    """Numpy's view of RNN, GRU, LSTM: the reference evaluator knows neither directions nor lengths."""
    x, w, r, bias, lens, h0, c0, peep = [None if o is None else np.asarray(o, np.float64) for o in operands + [None] * (8 - len(operands))]
    if at.get("layout"):
        x, h0, c0 = [None if o is None else o.swapaxes(0, 1) for o in (x, h0, c0)]
    (t, b, _), (d, _, h), g = x.shape, r.shape, GATES[op]
    names = at.get("activations") or {"RNN": ["Tanh"], "GRU": ["Sigmoid", "Tanh"], "LSTM": ["Sigmoid", "Tanh", "Tanh"]}[op] * d
    alphas, betas, functions = list(at.get("activation_alpha", [])), list(at.get("activation_beta", [])), []
    for n in names:
        defaults, f = ACTIVATIONS[n]
        p = [v.pop(0) if v else e for e, v in zip(defaults, (alphas, betas))]
        functions.append(lambda v, f=f, p=p: f(np.clip(v, -at["clip"], at["clip"]) if "clip" in at else v, *p))
    y, hs, cs = np.zeros((t, d, b, h)), np.zeros((d, b, h)), np.zeros((d, b, h))
    for k in range(d):
        f, *rest = functions[k * len(functions) // d:]
        wb, rb = np.split(np.zeros(2 * g * h) if bias is None else bias[k], 2)
        R, B, P = r[k].reshape(g, h, h), rb.reshape(g, h), np.zeros((3, h)) if peep is None else peep[k].reshape(3, h)
        backward = at.get("direction") == "reverse" or k == 1
        for n in range(b):
            s = np.zeros(h) if h0 is None else h0[k, n]
            c = np.zeros(h) if c0 is None else c0[k, n]
            steps = range(t if lens is None else int(lens[n]))
            for i in reversed(steps) if backward else steps:
                X = (w[k] @ x[i, n] + wb).reshape(g, h)
                if op == "RNN":
                    s = f(X[0] + R[0] @ s + B[0])
                elif op == "GRU":
                    z, q = f(X[0] + R[0] @ s + B[0]), f(X[1] + R[1] @ s + B[1])
                    new = rest[0](X[2] + (q * (R[2] @ s + B[2]) if at.get("linear_before_reset") else R[2] @ (q * s) + B[2]))
                    s = (1 - z) * new + z * s
                else:
                    i1 = f(X[0] + R[0] @ s + B[0] + P[0] * c)
                    f1 = 1 - i1 if at.get("input_forget") else f(X[2] + R[2] @ s + B[2] + P[2] * c)
                    c = f1 * c + i1 * rest[0](X[3] + R[3] @ s + B[3])
                    s, c = f(X[1] + R[1] @ s + B[1] + P[1] * c) * rest[1](c), c
                y[i, k, n] = s
            hs[k, n], cs[k, n] = s, c
    if at.get("layout"):
        y, hs, cs = y.transpose(2, 0, 1, 3), hs.swapaxes(0, 1), cs.swapaxes(0, 1)
    return [v.astype(np.float32) for v in ([y, hs, cs] if op == "LSTM" else [y, hs])]


def recurrent(op, v):
    g, t, b, i, h = GATES[op], 5, 3, 4, 6
    out = []

    def case(d, attributes, bias=True, lens=None, states=True, peepholes=False):
        s = lambda *shape: f32(*shape, lo=-0.8, hi=0.8)
        o = [s(t, b, i), s(d, g * h, i), s(d, g * h, h), s(d, 2 * g * h) if bias else None, np.array(lens, np.int32) if lens else None]
        o += [s(d, b, h) if states else None] * (1 if op != "LSTM" else 2) + ([s(d, 3 * h)] if peepholes else [])
        if attributes.get("layout"):
            o = [x.swapaxes(0, 1).copy() if x is not None and k in (0, 5, 6) else x for k, x in enumerate(o)]
        while o[-1] is None:
            o.pop()
        at = {"hidden_size": h, **({"direction": "bidirectional"} if d == 2 else {}), **attributes}
        want = recurrent_result(op, o, at)
        out.append((o, at, len(want), want))

    names = {"RNN": ["Tanh"], "GRU": ["Sigmoid", "Tanh"], "LSTM": ["Sigmoid", "Tanh", "Tanh"]}[op]
    case(1, {})
    case(1, {}, bias=False, states=False)
    case(1, {"direction": "reverse", "clip": 0.3})
    case(2, {"activations": names * 2}, lens=[5, 2, 3])
    case(1, {"direction": "reverse"}, lens=[4, 1, 2])
    for f, (defaults, _) in ACTIVATIONS.items():
        given = [p + 0.1 * (k + 1) for k in range(2) for p in defaults[:1]], [p - 0.1 * (k + 1) for k in range(2) for p in defaults[1:]]
        # Where the state could grow without bounds the gates stay as they are.
        last = len(names) - 1
        list_ = names[:last] + [f]
        case(2, {"activations": list_ * 2, **{k: x for k, x in zip(("activation_alpha", "activation_beta"), given) if x}})
        if defaults:
            case(1, {"activations": list_})
    if v >= 14:
        case(1, {"layout": 1})
        case(2, {"layout": 1}, lens=[5, 2, 3])
    if op == "GRU" and v >= 3:
        case(2, {"linear_before_reset": 1}, lens=[5, 2, 3])
        case(1, {"linear_before_reset": 1}, bias=False)
    if op == "LSTM":
        case(1, {}, peepholes=True)
        case(1, {"input_forget": 1, "clip": 0.4}, peepholes=True)
    return out


def topk(x, k, axis, largest):
    i = np.argsort(-x if largest else x, axis, kind="stable").take(range(k), axis)
    return [np.take_along_axis(x, i, axis), i]


def concat(x, v):
    y = f32(2, 5, 4)
    out = [([x, y], {"axis": 1} if v >= 4 else {}, 1, [np.concatenate([x, y], 1)])]
    return out + ([([x, x, x], {"axis": -1}, 1, [np.concatenate([x, x, x], -1)])] if v >= 11 else [])


def outputs_of(op, v, values):
    """The formal output of each value."""
    formals = onnx.defs.get_schema(op, v, "").outputs
    return [formals[min(k, len(formals) - 1)] for k in range(len(values))]


def plain(op, v):
    """Named cases of one version."""
    for k, case in enumerate(variants(op, v)):
        yield f"{op}_{v}_{k}", *case


def typed(op, v):
    """The cases of one version with the operands of type float replaced by every type of the first operand."""
    schema = onnx.defs.get_schema(op, v, "")
    var = schema.inputs[0].type_str
    names = next((c.allowed_type_strs for c in schema.type_constraints if c.type_param_str == var), [var])
    for t in sorted(n[7:-1] for n in names if n.startswith("tensor(")):
        code = TensorProto.DataType.Value(t.upper())
        if t == "string" or t.startswith("complex"):
            continue
        dtype = helper.tensor_dtype_to_np_dtype(code)
        for k, (operands, attributes, outputs, *_) in enumerate(variants(op, v)):
            def convert(o, i):
                value = o.value if isinstance(o, Const) else o
                if o is None or i and schema.inputs[min(i, len(schema.inputs) - 1)].type_str not in (var, "V"):
                    return o
                value = np.abs(value).astype(dtype) if t.startswith("u") or t == "bool" else np.asarray(value).astype(dtype)
                return Const(value) if isinstance(o, Const) else value
            typed_operands = [convert(o, i) for i, o in enumerate(operands)]
            if op in ("Div", "Mod") and np.issubdtype(dtype, np.integer):
                typed_operands[1] += (typed_operands[1] == 0).astype(dtype)
            if op in GATES:
                yield f"{op}_{t}_{k}", typed_operands, attributes, outputs, recurrent_result(op, typed_operands, attributes)
                continue
            if t != "bfloat16":
                yield f"{op}_{t}_{k}", typed_operands, attributes, outputs
                continue
            # References round every step to bfloat16: better the result in float of the rounded operands.
            wide = [Const(o.value.astype(np.float32)) if isinstance(o, Const) and o.value.dtype == dtype else o.astype(np.float32) if getattr(o, "dtype", None) == dtype else o for o in typed_operands]
            want, _ = expected(op, v, *make(op, v, wide, attributes, outputs))
            yield f"{op}_{t}_{k}", typed_operands, attributes, outputs, want


def make(op, v, operands, attributes, outputs):
    """The model, and the values of its inputs."""
    names, inits, inputs, feeds = [], [], [], {}
    for i, o in enumerate(operands):
        if o is None:
            names.append("")
            continue
        names.append(f"x{i}")
        if isinstance(o, Const):
            inits.append(numpy_helper.from_array(o.value, names[-1]))
        else:
            o = np.asarray(o)
            feeds[names[-1]] = o
            inputs.append(helper.make_tensor_value_info(names[-1], helper.np_dtype_to_tensor_dtype(o.dtype), o.shape))
    node = helper.make_node(op, names, [f"y{k}" for k in range(outputs)], **attributes)
    graph = helper.make_graph([node], "g", inputs, [onnx.ValueInfoProto(name=f"y{k}") for k in range(outputs)], inits)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", v)], ir_version=8 if v < 22 else 10), feeds


# Versions that no reference implements (or onnx.reference wrongly: it counts pads in AveragePool-1), and later ones that
# mean the same for these models.
SAME_AS = {("AveragePool", 1): 7, ("Clip", 1): 6, ("Gemm", 1): 7}


def expected(op, v, model, feeds):
    """The reference's outputs and its name."""
    if (op, v) in SAME_AS:
        later = onnx.ModelProto()
        later.CopyFrom(model)
        later.opset_import[0].version = SAME_AS[op, v]
        model = later
    import onnxruntime as ort
    try:
        o = ort.SessionOptions()
        o.log_severity_level = 4
        s = ort.InferenceSession(model.SerializeToString(), o, providers=["CPUExecutionProvider"])
        return s.run(None, feeds), "onnxruntime"
    except Exception:  # It says in many ways that it does not know a version.
        pass
    from onnx.reference import ReferenceEvaluator
    try:
        return ReferenceEvaluator(model).run(None, feeds), "onnx.reference"
    except Exception as e:
        return None, f"{type(e).__name__}: {str(e).splitlines()[0][:150]}"


def write(folder, model, feeds, want):
    if not want:
        del model.graph.output[1:]
    for k, w in enumerate(want):
        info = helper.make_tensor_value_info(model.graph.output[k].name, helper.np_dtype_to_tensor_dtype(w.dtype), w.shape)
        model.graph.output[k].CopyFrom(info)
    kinds = {np.asarray(x).dtype.name for x in feeds.values()}
    rtol = 2e-2 if "bfloat16" in kinds else 4e-3 if "float16" in kinds else 1e-4
    folder.mkdir()
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    (folder / "case.json").write_text(json.dumps({"rtol": rtol, "atol": rtol / 50}))
    if want:
        (folder / "set_0").mkdir()
    for what, values in (("input", feeds.values()), ("output", want)) if want else ():
        for k, a in enumerate(values):
            (folder / "set_0" / f"{what}_{k}.pb").write_bytes(numpy_helper.from_array(np.asarray(a)).SerializeToString())


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("onnxc")
    p.add_argument("--types", action="store_true", help="every element type at the newest version instead")
    p.add_argument("--filter", default="*", help="only operators whose name matches")
    p.add_argument("--jobs", type=int, default=4)
    p.add_argument("--verbose", action="store_true")
    a = p.parse_args()
    warnings.simplefilter("ignore")
    versions = collections.defaultdict(set)
    for s in onnx.defs.get_all_schemas_with_history():
        if s.domain == "" and not s.deprecated:
            versions[s.name].add(s.since_version)
    with tempfile.TemporaryDirectory() as tmp, np.errstate(all="ignore"):
        root = pathlib.Path(tmp)
        missing, sources = [], collections.Counter()
        for op in table():
            if fnmatch.fnmatch(op, a.filter):
                for v in sorted(versions[op])[-1:] if a.types else sorted(versions[op]):
                    for name, operands, attributes, outputs, *given in (typed if a.types else plain)(op, v):
                        model, feeds = make(op, v, operands, attributes, outputs)
                        want, source = (given[0], "numpy") if given and given[0] else expected(op, v, model, feeds)
                        sources[source if want else "none"] += 1
                        if want is None:
                            missing.append(f"{name}: {source}")
                            if not a.types:
                                continue
                            want = []
                        # References drop a type at times: a result of theirs has the type that the operator gives it.
                        first = operands[0].value if isinstance(operands[0], Const) else operands[0]
                        var = onnx.defs.get_schema(op, v, "").inputs[0].type_str
                        keep = a.types or given and given[0] and op not in ("Cast", "Equal", "Less", "Greater", "TopK")
                        want = [np.asarray(w).astype(np.asarray(first).dtype) if keep and (not a.types or o.type_str in (var, "V") or op == "EyeLike" and "dtype" not in attributes) else np.asarray(w) for o, w in zip(outputs_of(op, v, want), want)]
                        write(root / name, model, feeds, want)
                        if len(want) > 1:
                            # Only the last result is used.
                            last = onnx.ModelProto()
                            last.CopyFrom(model)
                            del last.graph.output[:-1]
                            write(root / f"{name}_last", last, feeds, want[-1:])
        folders = sorted(f.parent for f in root.glob("*/model.onnx"))
        results = backend.run_folders(os.path.abspath(a.onnxc), folders, root, a.jobs)
    faults = 0
    for name, (verdict, note) in sorted(results.items()):
        if verdict in ("wrong", "crash"):
            faults += 1
        if verdict in ("wrong", "crash") or a.verbose and verdict == "refused":
            print(f"{verdict}: {name}: {note}")
    if a.verbose:
        print("\n".join(f"no reference: {m}" for m in missing))
    count = collections.Counter(v for v, _ in results.values())
    print(f"{len(results)} cases: " + ", ".join(f"{n} {v}" for v, n in sorted(count.items())) + "; references: " + ", ".join(f"{n} {s}" for s, n in sources.items()))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
