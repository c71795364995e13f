"""Random small graphs, compiled ahead of time, called through the C interface and compared with onnxruntime (for 16-bit
floats it lacks, in f32; for other types, with onnx.reference). Failures are shrunk to few nodes and kept as models.

    fuzz.py ONNXC SEED COUNT [--keep DIR] [--only OP,OP] [--nodes N] [-O LEVEL]

Run twice with the same arguments it does the same. Exit status 1 if anything failed.
"""
import argparse
import ctypes as ct
import os
import random
import subprocess
import sys
import tempfile

import numpy as np
import onnx
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper as nh
from onnx.reference import ReferenceEvaluator

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "tools"))
import abi
import ml_dtypes
import onnxruntime as ort

ort.set_default_logger_severity(4)
OPSET = 17
BF16 = np.dtype(ml_dtypes.bfloat16)
FLOATS = [np.dtype(d) for d in (np.float32, np.float64, np.float16)] + [BF16]
INTS = [np.dtype(d) for d in (np.int64, np.int32, np.int8, np.uint8, np.uint32, np.int16, np.uint64)]
BOOL = np.dtype(np.bool_)
F32 = np.dtype(np.float32)
I64 = np.dtype(np.int64)


def proto_type(dtype):
    return T.BFLOAT16 if dtype == BF16 else h.np_dtype_to_tensor_dtype(dtype)


class Graph:
    """Nodes with the arrays they give under the first binding of the dims."""

    def __init__(self, rng):
        self.rng = rng
        # Some graphs are large enough to be split into tasks.
        self.most = 400_000 if rng.random() < 0.08 else 60_000
        self.np = np.random.default_rng(rng.randrange(1 << 30))
        self.nodes, self.inits, self.values, self.inputs = [], {}, {}, {}

    def data(self, dtype, shape):
        if dtype == BOOL:
            return self.np.integers(0, 2, shape).astype(bool)
        if dtype.kind in "iu":
            return self.np.integers(0 if dtype.kind == "u" else -5, 6, shape).astype(dtype)
        return self.np.standard_normal(shape).astype(dtype)

    def symbolic(self):
        return any(isinstance(d, str) for s in self.inputs.values() for d in s)

    def input(self, dtype, shape, params=()):
        name = f"x{len(self.inputs)}"
        self.inputs[name] = tuple(params[i] if i < len(params) and params[i] else d for i, d in enumerate(shape))
        self.values[name] = self.data(dtype, shape)
        return name

    def const(self, array):
        array = np.asarray(array)
        name = f"w{len(self.inits)}"
        self.inits[name] = array
        self.values[name] = array
        return name

    def operand(self, dtype, shape):
        """A constant, an input or an old value of that type and shape."""
        old = [n for n, v in self.values.items() if v.dtype == dtype and v.shape == tuple(shape) and n not in self.inits]
        if old and self.rng.random() < 0.5:
            return self.rng.choice(old)
        if self.rng.random() < 0.75 or not shape:
            return self.const(self.data(dtype, shape))
        return self.input(dtype, shape)

    def add(self, op, inputs, n_out=1, **attrs):
        """Appends a node; raises if its result cannot be computed, is large or not finite."""
        outs = [f"v{len(self.nodes)}_{i}" for i in range(n_out)]
        node = h.make_node(op, inputs, outs, name=outs[0], **attrs)
        feeds = {i: self.values[i] for i in inputs if i}
        got = evaluate(node, feeds)
        for a in got:
            a = np.asarray(a)
            if a.size > self.most or a.ndim > 6:
                raise ValueError("large")
            if a.dtype.kind not in "biu" and not (np.isfinite(a.astype(np.float64)).all() and np.abs(a.astype(np.float64)).max(initial=0) < 1e4):
                raise ValueError("not finite")
        self.nodes.append(node)
        for o, a in zip(outs, got):
            self.values[o] = np.asarray(a)
        return outs[0]


def model_of(nodes, inits, inputs, values, outputs):
    """A model; `inputs` maps names to shapes (numbers and names of dims)."""
    vi = [h.make_tensor_value_info(n, proto_type(values[n].dtype), s) for n, s in inputs.items()]
    vo = [h.make_tensor_value_info(n, proto_type(values[n].dtype), None) for n in outputs]
    for o, n in zip(vo, outputs):
        o.type.tensor_type.shape.SetInParent()
        for _ in range(values[n].ndim):
            o.type.tensor_type.shape.dim.add()
    g = h.make_graph(nodes, "fuzz", vi, vo, [nh.from_array(a, n) for n, a in inits.items()])
    return h.make_model(g, opset_imports=[h.make_opsetid("", OPSET)], ir_version=8)


class Fragile(ValueError):
    """A rounding error may change the result by far."""


def evaluate(node, feeds):
    """A node's results by onnxruntime, or in another way where onnxruntime lacks the type."""
    if fragile(node, [feeds[i] for i in node.input if i]):
        raise Fragile(node.op_type)
    if BF16 in {a.dtype for a in feeds.values()} | {cast_type(node)}:
        return in_float(node, feeds)
    m = model_of_node(node, feeds)
    try:
        return session(m).run(None, feeds)
    except Exception as e:
        if "NOT_IMPLEMENTED" not in str(e):
            raise
    if any(a.dtype == np.float16 for a in feeds.values()):
        return in_float(node, feeds)
    if "Pool" in node.op_type or node.op_type == "ConvTranspose" or "Normalization" in node.op_type or node.op_type == "PRelu":
        raise ValueError("the reference is not one for these")
    return [np.asarray(a) for a in ReferenceEvaluator(m).run(None, feeds)]


def model_of_node(node, feeds):
    vi = [h.make_tensor_value_info(n, proto_type(a.dtype), a.shape) for n, a in feeds.items()]
    return h.make_model(h.make_graph([node], "one", vi, [onnx.ValueInfoProto(name=n) for n in node.output]), opset_imports=[h.make_opsetid("", OPSET)], ir_version=8)


def in_float(node, feeds):
    """A node on 16-bit floats that onnxruntime lacks: computed in f32, and its results rounded once, as onnxc does. ONNX
    leaves open in which type sums are added up. onnx.reference adds up bf16 in bf16, where a sum of ones ends at 256:
    no number to compare with."""
    short = {a.dtype for a in feeds.values()} & {BF16, np.dtype(np.float16)}
    schema = onnx.defs.get_schema(node.op_type, OPSET)
    taken = {c.type_param_str: set(c.allowed_type_strs) for c in schema.type_constraints}
    for name, formal in zip(node.input, [*schema.inputs, *schema.inputs[-1:] * len(node.input)]):
        if name and feeds[name].dtype == BF16 and "tensor(bfloat16)" not in taken.get(formal.type_str, ()):
            raise ValueError("a type that the operator does not take")
    to = cast_type(node)
    wide = {n: a.astype(np.float32) if a.dtype in short else a for n, a in feeds.items()}
    if to == BF16:
        node = h.make_node("Cast", node.input, node.output, to=T.FLOAT)
    result = min(short, key=str) if to is None else to
    return [a.astype(result) if a.dtype == F32 else a for a in session(model_of_node(node, wide)).run(None, wide)]


def cast_type(node):
    """The type that a Cast casts to; None for other nodes."""
    if node.op_type != "Cast":
        return None
    to = h.get_attribute_value(node.attribute[0])
    return BF16 if to == T.BFLOAT16 else np.dtype(h.tensor_dtype_to_np_dtype(to))


def fragile(node, inputs):
    """True if what onnxc may round differently (chains of 16-bit floats above all) changes a result by far."""
    if node.op_type == "ReduceMean" and not inputs[0].size:
        # NaN, and of integers a status.
        return True
    x = [a.astype(np.float64) for a in inputs[:2] if a.dtype.kind not in "biu"]
    if not x:
        return False
    short = inputs[0].dtype.itemsize == 2
    near = lambda d, r: bool((np.abs(d) < 0.05).any()) if short else bool(((np.abs(d) < r) & (d != 0)).any())
    to = cast_type(node)
    if node.op_type in ("Floor", "Ceil", "Cast") and to != BOOL:
        return (to is None or to.kind in "biu") and near(x[0] - np.round(x[0]), 2e-3 * (1 + np.abs(x[0])))
    if node.op_type == "Round":
        return near(x[0] - np.floor(x[0]) - 0.5, 2e-3 * (1 + np.abs(x[0])))
    # The rounding error of a large exponent is a relative error of the result.
    if node.op_type == "Softmax":
        return bool((np.abs(x[0]) > 200).any())
    if node.op_type == "Sin":
        return bool((np.abs(x[0]) > 30).any())
    if node.op_type == "Div":
        # What is left of a divisor where terms cancel has the error of these terms.
        return bool((np.abs(x[1]) < (0.1 if short else 1e-2) * np.abs(x[1]).max(initial=1.0)).any())
    if node.op_type in ("Sign", "Sqrt", "Log", "Reciprocal") or node.op_type == "Cast" and to == BOOL:
        return near(x[0], 1e-3)
    if node.op_type in ("Less", "Greater", "GreaterOrEqual", "Equal"):
        return near(x[0] - x[1], 1e-3)
    return False


def session(m):
    o = ort.SessionOptions()
    o.intra_op_num_threads = 1
    o.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(m.SerializeToString(), o, providers=["CPUExecutionProvider"])


# What to append to a graph: functions of (graph, value) that return the new value's name.

def shape_of(g, x):
    return list(g.values[x].shape)


def unary(g, x):
    d = g.values[x].dtype
    if d == BOOL:
        return g.add("Not", [x])
    if d.kind in "iu":
        return g.add(g.rng.choice(["Abs", "Sign"] + ([] if d.kind == "u" else ["Neg"])), [x])
    op = g.rng.choice("Relu Sigmoid Tanh Exp Abs Neg Erf Softplus Floor Ceil Round Sqrt Reciprocal Sign LeakyRelu Elu HardSigmoid HardSwish Sin Softsign Selu Log Clip Clip Clip Atan".split())
    if op == "Erf" and d == np.float64:
        op = "Tanh"
    if op in ("Sqrt", "Log"):
        x = g.add("Abs", [x])
    if op == "Log":
        x = g.add("Add", [x, g.const(np.array(0.1, d))])
    if op == "Clip":
        lo, hi = g.const(np.array(-0.5, d)), g.const(np.array(g.rng.choice([0.7, 6.0]), d))
        return g.add("Clip", [x, g.rng.choice([lo, ""]), g.rng.choice([hi, hi, ""])])
    return g.add(op, [x])


def broadcast_shape(g, s):
    k = g.rng.random()
    if k < 0.4:
        return s
    s = [d if g.rng.random() < 0.6 else 1 for d in s]
    return s[g.rng.randint(0, len(s)):] if k < 0.8 else s


def binary(g, x):
    d = g.values[x].dtype
    y = g.operand(d, broadcast_shape(g, shape_of(g, x)))
    if d == BOOL:
        ops = ["And", "Or", "Xor", "Equal"]
    elif d.kind in "iu":
        ops = ["Add", "Sub", "Mul", "Min", "Max", "Equal", "Less", "Greater"]
    else:
        ops = ["Add", "Sub", "Mul", "Min", "Max", "Less", "GreaterOrEqual", "Div", "Add", "Mul"]
        # Unidirectional: the second binding may break it.
        ops += [] if g.symbolic() else ["PRelu"]
    op = g.rng.choice(ops)
    if op == "Div":
        y = g.add("Add", [g.add("Abs", [y]), g.const(np.array(0.5, d))])
    pair = [x, y]
    if op != "PRelu" and g.rng.random() < 0.4:
        pair.reverse()
    return g.add(op, pair)


def where(g, x):
    s = shape_of(g, x)
    c = g.operand(BOOL, broadcast_shape(g, s))
    return g.add("Where", [c, x, g.operand(g.values[x].dtype, broadcast_shape(g, s))])


def cast(g, x):
    d = g.values[x].dtype
    to = g.rng.choice([F32, F32, F32] + FLOATS + INTS + [BOOL])
    if d.kind not in "biu" and to.kind == "u":
        x = g.add("Abs", [x])
    if d.kind not in "biu" and to.kind in "iu":
        x = g.add("Mul", [x, g.const(np.array(3.3, d))])
    return g.add("Cast", [x], to=proto_type(to))


def float_only(f):
    def go(g, x):
        if g.values[x].dtype not in FLOATS:
            x = g.add("Cast", [x], to=T.FLOAT)
        return f(g, x)
    return go


def fit(g, x, shape):
    """x with exactly these dims in front of what it has: reshaped through a flat slice, or a fresh input."""
    n = int(np.prod(shape))
    if g.values[x].size >= n and g.rng.random() < 0.6:
        flat = g.add("Reshape", [x, g.const(np.array([-1], np.int64))])
        if g.values[x].size > n:
            flat = g.add("Slice", [flat, g.const(np.array([0])), g.const(np.array([n]))])
        return g.add("Reshape", [flat, g.const(np.array(shape, np.int64))])
    return g.input(g.values[x].dtype, shape)


def window(g, n, sizes):
    r = g.rng
    k = [r.choice([1, 2, 3, 3, 3, 5]) for _ in range(n)]
    k = [min(a, s) for a, s in zip(k, sizes)]
    a = dict(kernel_shape=k, strides=[r.choice([1, 1, 2, 3]) for _ in range(n)])
    mode = r.choice(["NOTSET"] * 4 + ["SAME_UPPER", "SAME_LOWER", "VALID"])
    if mode == "NOTSET":
        a["pads"] = [r.randint(0, d - 1) for d in k] * 2 if r.random() < 0.7 else [r.randint(0, d - 1) for d in k + k]
    else:
        # Larger strides would mean negative pads: nobody agrees on these.
        a["auto_pad"] = mode
        a["strides"] = [min(st, d) for st, d in zip(a["strides"], k)]
    return k, a


def image(g, x):
    """x as an image batch of 1 to 3 spatial dims."""
    s = shape_of(g, x)
    if 3 <= len(s) <= 5 and min(s[2:]) >= 2 and g.values[x].dtype in FLOATS:
        return x
    n = g.rng.choice([1, 2, 2, 2, 3])
    return fit(g, x, [g.rng.randint(1, 2), g.rng.choice([1, 3, 4, 8, 6])] + [g.rng.randint(3, 9) for _ in range(n)])


@float_only
def conv(g, x):
    x = image(g, x)
    s = shape_of(g, x)
    n = len(s) - 2
    k, a = window(g, n, s[2:])
    if g.rng.random() < 0.3:
        a["dilations"] = [g.rng.randint(1, 2) for _ in range(n)]
        a.pop("auto_pad", 0)
    c = s[1]
    group = g.rng.choice([1, 1, 1, c, next((d for d in (2, 3, 4) if c % d == 0), 1)])
    co = group * g.rng.choice([1, 2, 3, 4] if group > 1 else [1, 3, 4, 5, 8, 12, 16, 20, 33, 48, 64])
    d = g.values[x].dtype
    ins = [x, weights(g, d, [co, c // group] + k)]
    if g.rng.random() < 0.6:
        ins.append(weights(g, d, [co]))
    return g.add("Conv", ins, group=group, **a)


def weights(g, d, shape):
    return g.const(g.data(d, shape)) if g.rng.random() < 0.8 else g.operand(d, shape)


@float_only
def conv_transpose(g, x):
    x = image(g, x)
    s = shape_of(g, x)
    n = len(s) - 2
    r = g.rng
    k = [r.randint(1, 3) for _ in range(n)]
    a = dict(kernel_shape=k, strides=[r.randint(1, 3) for _ in range(n)], dilations=[r.choice([1, 1, 2]) for _ in range(n)])
    c = s[1]
    group = r.choice([1, 1, c, next((d for d in (2, 3, 4) if c % d == 0), 1)])
    if r.random() < 0.5:
        a["pads"] = [r.randint(0, (d - 1)) for d in k] * 2
    if r.random() < 0.4:
        a["output_padding"] = [r.randint(0, st - 1) for st in a["strides"]]
    d = g.values[x].dtype
    ins = [x, weights(g, d, [c, r.choice([1, 2, 4, 5, 8])] + k)]
    if r.random() < 0.5:
        ins.append(weights(g, d, [shape_of(g, ins[1])[1] * group]))
    return g.add("ConvTranspose", ins, group=group, **a)


@float_only
def pool(g, x):
    x = image(g, x)
    s = shape_of(g, x)
    op = g.rng.choice(["MaxPool", "MaxPool", "AveragePool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool"])
    if op.startswith("Global"):
        return g.add(op, [x])
    _, a = window(g, len(s) - 2, s[2:])
    if "auto_pad" not in a:
        a["ceil_mode"] = g.rng.choice([0, 0, 1])
    if op == "AveragePool":
        a["count_include_pad"] = g.rng.randint(0, 1)
    return g.add(op, [x], **a)


def matmul(g, x):
    d = g.values[x].dtype
    if d not in FLOATS + [np.dtype(np.int32), I64]:
        x = g.add("Cast", [x], to=T.FLOAT)
        d = F32
    s = shape_of(g, x)
    r = g.rng
    if not s:
        return binary(g, x)
    n = r.choice([1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 24, 31, 40, 64, 70, 100])
    if len(s) == 1:
        return g.add("MatMul", [x, weights(g, d, [s[0], n])])
    if r.random() < 0.15:
        return g.add("MatMul", [x, weights(g, d, [s[-1]])])
    lead = [k if r.random() < 0.5 else 1 for k in s[:-2]]
    lead = lead[r.choice([0, len(lead)]):] if lead else []
    if r.random() < 0.3:
        y = weights(g, d, lead + [n, s[-1]])
        rank = len(lead) + 2
        y = g.add("Transpose", [y], perm=[*range(rank - 2), rank - 1, rank - 2])
        return g.add("MatMul", [x, y])
    if r.random() < 0.2:
        y = weights(g, d, lead + [n, s[-2]])
        return g.add("MatMul", [y, x])
    return g.add("MatMul", [x, weights(g, d, lead + [s[-1], n])])


@float_only
def gemm(g, x):
    s = shape_of(g, x)
    if len(s) != 2:
        x = g.add("Flatten", [x], axis=g.rng.randint(0, len(s)))
        s = shape_of(g, x)
    r = g.rng
    d = g.values[x].dtype
    ta, tb = r.choice([0, 0, 1]), r.randint(0, 1)
    m, k = (s[1], s[0]) if ta else (s[0], s[1])
    n = r.choice([1, 3, 4, 8, 10, 16, 19, 33, 64, 90])
    ins = [x, weights(g, d, [n, k] if tb else [k, n])]
    if r.random() < 0.8:
        ins.append(weights(g, d, r.choice([[n], [1, n], [m, n], [m, 1], [1], []])))
    return g.add("Gemm", ins, transA=ta, transB=tb, alpha=r.choice([1.0, 1.0, 0.5]), beta=r.choice([1.0, 1.0, 2.0]))


def reduce(g, x):
    s = shape_of(g, x)
    if g.values[x].dtype not in FLOATS + [np.dtype(np.int32), I64]:
        x = g.add("Cast", [x], to=g.rng.choice([T.FLOAT, T.INT64, T.INT32]))
    if not s:
        return unary(g, x)
    r = g.rng
    axes = sorted(r.sample(range(len(s)), r.randint(1, len(s))))
    if r.random() < 0.3:
        axes = [len(s) - 1]
    keep = r.randint(0, 1)
    ops = ["ReduceSum", "ReduceMax", "ReduceMin", "ReduceMean", "ReduceSumSquare", "ReduceL1", "ArgMax"]
    if g.values[x].dtype.kind not in "iu":
        ops += ["ReduceL2", "ReduceLogSumExp", "ReduceMean", "ReduceProd"]
    op = r.choice(ops)
    if op == "ArgMax":
        return g.add(op, [x], axis=r.choice(axes), keepdims=keep)
    if op == "ReduceSum":
        return g.add(op, [x, g.const(np.array(axes, np.int64))], keepdims=keep)
    return g.add(op, [x], axes=axes, keepdims=keep)


@float_only
def softmax(g, x):
    s = shape_of(g, x)
    if not s:
        return unary(g, x)
    return g.add(g.rng.choice(["Softmax", "Softmax", "LogSoftmax"]), [x], axis=g.rng.choice([-1, -1, g.rng.randrange(len(s))]))


@float_only
def layernorm(g, x):
    s = shape_of(g, x)
    if not s:
        return unary(g, x)
    d = g.values[x].dtype
    if g.rng.random() < 0.3 and len(s) >= 3 and not g.symbolic():
        c = s[1]
        if g.rng.random() < 0.5:
            return g.add("InstanceNormalization", [x, weights(g, d, [c]), weights(g, d, [c])])
        var = g.const(np.abs(g.data(d, [c])) + np.array(0.5, d))
        return g.add("BatchNormalization", [x, *(g.const(g.data(d, [c])) for _ in range(3)), var])
    axis = g.rng.choice([-1, -1, g.rng.randrange(len(s))])
    w = s[axis:] if axis >= 0 else s[-1:]
    ins = [x, weights(g, d, w)] + ([weights(g, d, w)] if g.rng.random() < 0.6 else [])
    return g.add("LayerNormalization", ins, axis=axis)


def transpose(g, x):
    p = list(range(len(shape_of(g, x))))
    g.rng.shuffle(p)
    return g.add("Transpose", [x], perm=p)


def reshape(g, x):
    r = g.rng
    s = shape_of(g, x)
    k = r.random()
    if k < 0.25:
        return g.add("Flatten", [x], axis=r.randint(0, len(s)))
    if k < 0.45:
        return g.add("Unsqueeze", [x, g.const(np.array([r.randint(0, len(s))], np.int64))])
    if k < 0.6 and 1 in s:
        return g.add("Squeeze", [x, g.const(np.array([s.index(1)], np.int64))])
    factors, n = [], int(np.prod(s))
    for p in (2, 2, 3, 5, 2, 3, 7):
        if n % p == 0 and n:
            factors.append(p)
            n //= p
    to = [n]
    for f in factors:
        if len(to) < 4 and r.random() < 0.5:
            to.insert(r.randint(0, len(to)), f)
        else:
            to[r.randrange(len(to))] *= f
    if r.random() < 0.6:
        if len(s) > 1 and to[0] != s[0] and r.random() < 0.5:
            to = [0] + [-1] if r.random() < 0.5 else [0, *s[1:]]
        else:
            to[r.randrange(len(to))] = -1
    return g.add("Reshape", [x, g.const(np.array(to, np.int64))])


def slice_(g, x):
    s = shape_of(g, x)
    if not s:
        return unary(g, x)
    r = g.rng
    axes = r.sample(range(len(s)), r.randint(1, len(s)))
    starts, ends, steps = [], [], []
    for a in axes:
        n = s[a]
        lo = r.randint(0, max(0, n - 1))
        hi = r.randint(min(lo + 1, n), n)
        step = r.choice([1, 1, 1, 2])
        if r.random() < 0.2:
            lo, hi, step = n - 1, -n - 1, -1
        elif r.random() < 0.2:
            hi = 2**31
        starts.append(lo), ends.append(hi), steps.append(step)
    c = lambda v: g.const(np.array(v, np.int64))
    return g.add("Slice", [x, c(starts), c(ends), c(axes), c(steps)])


def concat(g, x):
    s = shape_of(g, x)
    if not s:
        return unary(g, x)
    axis = g.rng.randrange(len(s))
    parts = [x]
    for _ in range(g.rng.randint(1, 2)):
        if g.rng.random() < 0.2:
            parts.append(x)
            continue
        t = list(s)
        t[axis] = g.rng.choice([t[axis], 1, 3])
        parts.append(g.operand(g.values[x].dtype, t))
    g.rng.shuffle(parts)
    return g.add("Concat", parts, axis=axis)


def pad(g, x):
    s = shape_of(g, x)
    d = g.values[x].dtype
    if not s or d == BOOL or d == BF16:
        return unary(g, x)
    mode = g.rng.choice(["constant", "constant", "edge", "reflect"])
    most = [n - 1 if mode == "reflect" else 2 for n in s]
    amounts = [g.rng.randint(0, min(2, k)) if g.rng.random() < 0.5 else 0 for k in most + most]
    ins = [x, g.const(np.array(amounts, np.int64))]
    if mode == "constant" and g.rng.random() < 0.4:
        ins.append(g.const(np.array(1.5, d) if d.kind not in "iu" else np.array(2, d)))
    return g.add("Pad", ins, mode=mode)


def gather(g, x):
    s = shape_of(g, x)
    if not s or 0 in s:
        return unary(g, x)
    axis = g.rng.randrange(len(s))
    shape = g.rng.choice([[], [3], [2, 2], [1]])
    i = g.np.integers(-s[axis], s[axis], shape)
    if g.rng.random() < 0.5 or not shape:
        i = g.const(i)
    else:
        name = g.input(I64, shape)
        g.values[name] = np.asarray(i)
        i = name
    return g.add("Gather", [x, i], axis=axis)


def split(g, x):
    s = shape_of(g, x)
    axes = [a for a, n in enumerate(s) if n >= 2]
    if not axes:
        return unary(g, x)
    axis = g.rng.choice(axes)
    k = g.rng.randint(1, s[axis] - 1)
    out = g.add("Split", [x, g.const(np.array([k, s[axis] - k], np.int64))], 2, axis=axis)
    return g.rng.choice([out, out[:-1] + "1"])


def expand(g, x):
    s = shape_of(g, x)
    to = [g.rng.randint(2, 3) if n == 1 and g.rng.random() < 0.7 else n for n in s]
    if g.rng.random() < 0.4:
        to = [2] + to
    if g.rng.random() < 0.4:
        return g.add("Tile", [x, g.const(np.array([g.rng.randint(1, 2) for _ in s], np.int64))])
    return g.add("Expand", [x, g.const(np.array(to, np.int64))])


STEPS = dict(unary=(unary, 6), binary=(binary, 8), where=(where, 1), cast=(cast, 2), conv=(conv, 5), conv_transpose=(conv_transpose, 1),
             pool=(pool, 2), matmul=(matmul, 4), gemm=(gemm, 2), reduce=(reduce, 3), softmax=(softmax, 2), layernorm=(layernorm, 2),
             transpose=(transpose, 3), reshape=(reshape, 3), slice=(slice_, 2), concat=(concat, 2), pad=(pad, 1), gather=(gather, 1),
             split=(split, 1), expand=(expand, 1))


def random_graph(seed, steps, nodes):
    rng = random.Random(seed)
    g = Graph(rng)
    dtype = rng.choice([F32] * 9 + FLOATS + [I64, np.dtype(np.int32), BOOL])
    rank = rng.choice([1, 2, 2, 3, 3, 4, 4, 4])
    shape = [rng.choice([1, 2, 3, 4, 5, 7, 8, 12, 16, 17] + ([24, 33, 48, 65, 100] if rank < 4 else [])) for _ in range(rank)]
    if rank == 4:
        shape = [rng.randint(1, 2), rng.choice([1, 2, 3, 4, 8, 16]), rng.randint(3, 10), rng.randint(3, 10)]
        if g.most > 60_000:
            shape[2:] = [rng.randint(20, 45), rng.randint(20, 45)]
    symbolic = rng.random() < 0.35
    params = [f"d{i}" if symbolic and rng.random() < 0.5 else None for i in range(rank)]
    ends = [g.input(dtype, shape, params)]
    names = list(steps)
    for _ in range(rng.randint(1, nodes)):
        x = ends[-1] if rng.random() < 0.8 else rng.choice([n for n in g.values if n not in g.inits])
        f = steps[rng.choices(names, [steps[n][1] for n in names])[0]][0]
        try:
            ends.append(f(g, x))
        except Exception:
            continue
    used = {i for n in g.nodes for i in n.input}
    made = [o for n in g.nodes for o in n.output]
    outputs = [o for o in made if o not in used or rng.random() < 0.07]
    bindings = [{n: g.values[n] for n in g.inputs}]
    if any(params):
        window = any("Conv" in n.op_type or "Pool" in n.op_type or "Norm" in n.op_type for n in g.nodes)
        change = {p: n + rng.choice([1, 2, 3, 5]) if window else rng.choice([0, 1, 2, 3, 5, 6, 9, 20]) for p, n in zip(params, shape) if p}
        feeds = {}
        for n, s in g.inputs.items():
            to = [change.get(d, d) for d in s]
            feeds[n] = g.data(g.values[n].dtype, to) if to != list(g.values[n].shape) else g.values[n]
        bindings.append(feeds)
    return Case(g.nodes, g.inits, g.inputs, g.values, outputs, bindings)


class Case:
    def __init__(self, nodes, inits, inputs, values, outputs, bindings):
        need = set(outputs)
        kept = []
        for n in reversed(nodes):
            if need & set(n.output):
                kept.append(n)
                need |= {i for i in n.input if i}
        self.nodes = kept[::-1]
        self.inits = {k: v for k, v in inits.items() if k in need}
        self.inputs = {k: v for k, v in inputs.items() if k in need}
        self.values, self.outputs, self.bindings = values, outputs, bindings

    def model(self):
        return model_of(self.nodes, self.inits, self.inputs, self.values, self.outputs)

    def expected(self, feeds):
        have = {**self.inits, **{n: feeds[n] for n in self.inputs}}
        for n in self.nodes:
            have.update(zip(n.output, map(np.asarray, evaluate(n, {i: have[i] for i in n.input if i}))))
        return [have[o] for o in self.outputs]

    def smaller(self):
        """Cases with fewer nodes: cut at the end, or a node's results made inputs; then fewer outputs, fixed dims."""
        if len(self.outputs) > 1:
            for o in self.outputs:
                yield Case(self.nodes, self.inits, self.inputs, self.values, [o], self.bindings)
        for n in self.nodes[:-1]:
            yield Case(self.nodes, self.inits, self.inputs, self.values, list(n.output), self.bindings)
        for i, n in enumerate(self.nodes[:-1]):
            if len(self.bindings) == 1 and not any(o in self.outputs for o in n.output):
                inputs = dict(self.inputs)
                feeds = dict(self.bindings[0])
                for o in n.output:
                    inputs[o] = self.values[o].shape
                    feeds[o] = self.values[o]
                yield Case(self.nodes[:i] + self.nodes[i + 1:], self.inits, inputs, self.values, self.outputs, [feeds])
        if len(self.bindings) > 1:
            yield Case(self.nodes, self.inits, {k: self.values[k].shape for k in self.inputs}, self.values, self.outputs, self.bindings[:1])


def agree(got, want, rounded, jumps, floor):
    """Empty if equal up to rounding. `jumps`: rounding may have moved a few integers or truth values; `floor`: what counts as small."""
    if got.shape != want.shape:
        return f"shape {got.shape}, expected {want.shape}"
    if want.dtype == BF16:
        got = got.view(BF16)
    a, b = got.astype(np.float64), want.astype(np.float64)
    if not a.size:
        return ""
    if want.dtype.kind in "biu":
        wrong = a != b
        if wrong.sum() <= (max(1, a.size // 50) if jumps else 0):
            return ""
    else:
        tol = {2: 2e-2, 4: 3e-4, 8: 1e-6}[want.dtype.itemsize]
        if rounded:
            tol = max(tol, rounded)
        scale = np.abs(b[np.isfinite(b)]).max(initial=0) * (0.5 if rounded > 1e-3 else 0.1) + floor
        with np.errstate(invalid="ignore"):
            wrong = ~((np.abs(a - b) <= tol * (np.abs(b) + scale)) | (a == b) | (np.isnan(a) & np.isnan(b)))
        if wrong.sum() <= (a.size // 30 + 1 if jumps else 0):
            return ""
    i = np.unravel_index(np.argmax(wrong), wrong.shape)
    return f"{wrong.sum()} of {a.size} wrong, first at {tuple(map(int, i))}: {a[i]}, expected {b[i]}"


JUMPS = {"Floor", "Ceil", "Round", "Sign", "Cast", "Less", "Greater", "GreaterOrEqual", "Equal", "ArgMax", "Where"}


def check(onnxc, case, work):
    """("", "") or what went wrong and a short name of it."""
    m = case.model()
    try:
        wanted = [(b, case.expected(b)) for b in case.bindings]
    except Exception as e:
        if len(case.bindings) == 1:
            return "skip", str(e)[:200]
        try:
            wanted = [(case.bindings[0], case.expected(case.bindings[0]))]
        except Exception as e:
            return "skip", str(e)[:200]
    path = os.path.join(work, "m")
    onnx.save(m, path + ".onnx")
    try:
        r = subprocess.run([*onnxc, path + ".onnx", "-o", path + ".o"], capture_output=True, text=True, timeout=60)
    except subprocess.TimeoutExpired:
        return "compile", "takes more than a minute"
    if "error[E0104]" in r.stderr:
        return "skip", "a type that the operator does not take"
    if r.returncode:
        return "compile", r.stderr[-600:]
    abi.link([path + ".o"], path + ".so")
    rd, wr = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            text = call(case, path, wanted)
        except BaseException as e:
            text = f"{type(e).__name__}: {e}"
            if "alignment" in text:
                text = ""
        os.write(wr, text.encode()[:4000])
        os._exit(0)
    os.close(wr)
    with os.fdopen(rd, "rb") as f:
        text = f.read().decode()
    status = os.waitpid(pid, 0)[1]
    return ("run", f"signal {status}") if status else ("values", text) if text else ("", "")


@abi.PARALLEL_FOR
def backwards(user, n, task, ctx):
    for i in reversed(range(n)):
        task(ctx, i)


TASKS = abi.Exec(ct.sizeof(abi.Exec), None, backwards, 5, None)


def call(case, path, wanted):
    model = abi.Model(path + ".so", "m")
    jumps = any(n.op_type in JUMPS for n in case.nodes)
    # Normalization magnifies what is left of equal numbers.
    floor = 3.0 if any(n.op_type.endswith("Normalization") for n in case.nodes) else 1e-3
    types = {case.values[o].dtype for n in case.nodes for o in list(n.output) + [i for i in n.input if i]}
    rounded = 3e-2 if BF16 in types else 1e-2 if np.dtype(np.float16) in types else 3e-4 if F32 in types else 0
    for feeds, want in wanted:
        feeds = {n: (feeds[n].view(np.uint16) if feeds[n].dtype == BF16 else feeds[n]) for n in case.inputs}
        run, outs = model.prepare(feeds, [w.shape for w in want])
        # Memory that nobody has written shows as NaN.
        run.workspace[:] = 0xFF
        for o in outs:
            o.reshape(-1).view(np.uint8)[:] = 0xFF
        run()
        once = [o.copy() for o in outs]
        run(ct.addressof(TASKS))
        for a, b in zip(once, outs):
            if a.tobytes() != b.tobytes():
                return "tasks in another order give other bits"
        for name, a, b in zip(case.outputs, outs, want):
            wrong = agree(a, np.asarray(b), rounded, jumps, floor)
            if wrong:
                return f"{name}: {wrong}"
    return ""


def shrink(onnxc, case, kind, work):
    for _ in range(60):
        for s in case.smaller():
            try:
                k, text = check(onnxc, s, work)
            except Exception:
                continue
            if k == kind:
                case = s
                break
        else:
            return case
    return case


def main():
    p = argparse.ArgumentParser()
    p.add_argument("onnxc")
    p.add_argument("seed", type=int)
    p.add_argument("count", type=int)
    p.add_argument("--keep", help="folder for failing models")
    p.add_argument("--only", help="comma-separated kinds of steps")
    p.add_argument("-O", dest="level", default="2", help="level of optimisation")
    p.add_argument("--nodes", type=int, default=9, help="most steps of a graph")
    a = p.parse_args()
    onnxc = [a.onnxc, "-O" + a.level]
    steps = {k: v for k, v in STEPS.items() if not a.only or k in a.only.split(",")}
    bad = skipped = 0
    with tempfile.TemporaryDirectory() as work:
        for seed in range(a.seed, a.seed + a.count):
            case = random_graph(seed, steps, a.nodes)
            if not case.nodes:
                continue
            kind, text = check(onnxc, case, work)
            if kind == "skip":
                skipped += 1
            elif kind:
                bad += 1
                case = shrink(onnxc, case, kind, work)
                kind, text = check(onnxc, case, work)
                print(f"seed {seed}: {kind}: {text}")
                for n in case.nodes:
                    ins = [f"{i}{list(case.inputs[i]) if i in case.inputs else list(case.values[i].shape)}{'c' if i in case.inits else ''}" if i else "-" for i in n.input]
                    attrs = {t.name: h.get_attribute_value(t) for t in n.attribute}
                    print(f"    {', '.join(f'{o}{list(case.values[o].shape)}:{case.values[o].dtype}' for o in n.output)} = {n.op_type}({', '.join(ins)}) {attrs or ''}")
                sys.stdout.flush()
                if a.keep:
                    os.makedirs(a.keep, exist_ok=True)
                    onnx.save(case.model(), os.path.join(a.keep, f"{seed}.onnx"))
    print(f"{a.count} graphs, {skipped} skipped, {bad} failed")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
