"""Families of `hunt_cases.py` of operators alone: in every element type, and images that are sampled at positions run time knows."""
import numpy as np
from onnx import helper

from hunt_builder import B, D, F, H, I8, I32, I64, U8, Size, image

# Integers have the first three, float64 the first thirteen, float16 all but the last.
UNARY = ("Abs", "Neg", "Sign", "Relu", "Exp", "Log", "Sqrt", "Tanh", "Sigmoid", "Sin", "Floor", "Round", "IsNaN", "Erf", "Softplus", "Softsign",
         "Cos", "Atan", "Asinh", "Ceil", "Reciprocal", "HardSwish", "Elu", "Selu", "ThresholdedRelu", "Shrink", "Mish", "Celu")
BINARY = ("Add", "Sub", "Mul", "Min", "Max", "Less", "Greater", "Equal", "Div", "Mod", "BitwiseAnd", "BitwiseXor")
REDUCED = ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSum", "ReduceLogSumExp")
OTHERS = ("ArgMax", "ArgMin", "TopK", "CumSum", "Cast", "Where", "Clip", "Pow", "Softmax", "LogSoftmax", "Hardmax", "Transpose", "Concat", "Pad", "Gather",
          "GatherElements", "ScatterElements", "Tile", "Expand", "Slice", "Split", "Trilu", "NonZero", "OneHot", "Not", "BitwiseNot", "LpNormalization")
FLOATS = (F, H, D)


def operators(b):
    """One operator, of any element type that it takes."""
    kind = b.pick(F, F, H, D, I8, U8, I32, I64)
    dtype = np.dtype(helper.tensor_dtype_to_np_dtype(kind))
    n, s = b.size("N", 1, 16, 128, 500), b.size("S", 1, 3, 7, 32, 49, 100, 768)
    b.tolerance = {H: 2e-2, D: 1e-9}.get(kind, 1e-4)
    values = b.rng.integers(1, 60, (n.value, s.value)) if kind not in FLOATS else b.rng.uniform(0.1, 1, (n.value, s.value))
    x = b.input(n, s, kind=kind, values=values)
    axis = b.pick(0, 1)
    taken = {F: UNARY, H: UNARY[:-1], D: UNARY[:13], U8: UNARY[:1]}.get(kind, UNARY[:3])
    op = b.pick(*taken) if b.chance(0.3) else b.pick(*BINARY, *REDUCED, *OTHERS)
    if op in UNARY or op in ("Not", "BitwiseNot", "NonZero", "Trilu"):
        if op == "Not":
            x = b.add("Greater", x, b.constant(np.asarray(0.5).astype(dtype)))
        elif op == "BitwiseNot" and kind in FLOATS:
            x = b.add("Cast", x, to=U8)
        b.output(b.add(op, x))
    elif op in BINARY:
        if op.startswith("Bitwise") and kind in FLOATS:
            op = "Mul"
        other = b.pick((n, s), (n, 1), (1, s))
        shape = [d.value if isinstance(d, Size) else d for d in other]
        values = b.rng.integers(1, 50, shape) if kind not in FLOATS else b.rng.uniform(0.5, 2, shape)
        attrs = {"fmod": 1} if op == "Mod" and kind in FLOATS else {}
        b.output(b.add(op, x, b.input(*other, kind=kind, values=values), **attrs))
    elif op in REDUCED:
        if kind in (I8, U8):
            op = b.pick("ReduceMax", "ReduceMin")
        b.output(b.add(op, x, b.constant([axis], np.int64)))
    elif op in ("ArgMax", "ArgMin"):
        b.output(b.add(op, x, axis=axis))
    elif op == "TopK":
        k = b.pick(1, 2, 5)
        b.output(*b.add(op, x, b.constant([min(k, (n, s)[axis].value)], np.int64), axis=axis, n=2))
    elif op == "CumSum":
        b.output(b.add(op, x, b.constant(np.int64(axis))))
    elif op == "Cast":
        b.output(b.add(op, x, to=b.pick(F, H, D, I8, U8, I32, I64, B)))
    elif op == "Where":
        b.output(b.add(op, b.add("Less", x, b.constant(np.asarray(1).astype(dtype))), x, b.constant(np.asarray(0).astype(dtype))))
    elif op == "Clip":
        b.output(b.add(op, x, b.constant(np.asarray(0).astype(dtype)), b.constant(np.asarray(1).astype(dtype))))
    elif op == "Pow":
        b.output(b.add(op, x, b.constant(np.asarray(b.pick(2, 3)).astype(dtype))))
    elif op in ("Softmax", "LogSoftmax", "Hardmax", "LpNormalization"):
        x = x if kind in FLOATS else b.add("Cast", x, to=F)
        b.output(b.add(op, x, axis=axis))
    elif op == "Transpose":
        b.output(b.add(op, x, perm=[1, 0]))
    elif op == "Concat":
        b.output(b.add(op, x, b.input(n, s, kind=kind), axis=axis))
    elif op == "Pad":
        b.output(b.add(op, x, b.constant([1, 2, 0, 3], np.int64), mode=b.pick("constant", "edge")))
    elif op in ("Gather", "GatherElements", "ScatterElements"):
        most = (n, s)[axis].value
        one = (b.pick(1, 5, 64),) if op == "Gather" else (n, Size("K", min(8, s.value))) if axis else (Size("K", min(8, n.value)), s)
        shape = [d.value if isinstance(d, Size) else d for d in one]
        indices = b.input(*one, kind=I64, values=b.rng.integers(0, most, shape))
        more = [b.input(*one, kind=kind)] if op == "ScatterElements" else []
        b.output(b.add(op, x, indices, *more, axis=axis))
    elif op == "Tile":
        b.output(b.add(op, x, b.constant(b.pick([2, 3], [1, 4], [5, 1]), np.int64)))
    elif op == "Expand":
        b.output(b.add(op, x, b.constant([3, 1, 1], np.int64)))
    elif op == "Slice":
        step = b.pick(1, 2, -1)
        b.output(b.add(op, x, b.constant([-1 if step < 0 else 0], np.int64), b.constant([-1000 if step < 0 else 1000], np.int64),
                       b.constant([axis], np.int64), b.constant([step], np.int64)))
    elif op == "Split":
        b.output(*b.add(op, b.add("Concat", x, x, x, axis=1), axis=1, num_outputs=3, n=3))
    else:
        b.output(b.add("OneHot", b.add("Cast", x, to=I64), b.constant(np.int64(b.pick(10, 60))), b.constant(np.asarray([0, 1]).astype(dtype)), axis=-1))


def sampling(b):
    """Images that get a known size, and grids of positions."""
    kind = b.pick(F, F, F, H, U8)
    n, (h, w), c = b.size("N", 1, 1, 2), image(b), b.pick(1, 3, 3, 8, 21, 64)
    b.tolerance = {H: 2e-2, U8: 0.011}.get(kind, 1e-4)
    if b.chance(0.6):
        mode = b.pick("linear", "linear", "nearest", "cubic")
        attrs = {"mode": mode, "coordinate_transformation_mode": b.pick("half_pixel", "align_corners", "asymmetric")}
        if mode == "nearest":
            attrs |= {"nearest_mode": "floor", "coordinate_transformation_mode": "asymmetric"}
        elif b.chance(0.3):
            attrs |= {"antialias": 1, "coordinate_transformation_mode": "half_pixel"}
        to = [b.pick(7, 20, 32, 48, 96, 100), b.pick(7, 20, 32, 48, 96, 100)]
        x = b.input(n.value, c, h, w, kind=kind)
        y = b.add("Resize", x, "", "", b.constant([n.value, c, *to], np.int64), note=f"to {to[0]}x{to[1]}", **attrs)
        return b.output(y)
    kind = F if kind == U8 else kind
    p, q = b.size("P", 1, 10, 30, 64), b.size("Q", 1, 4, 40, 64)
    mode, padding = b.pick("linear", "linear", "nearest", "cubic"), b.pick("zeros", "zeros", "border", "reflection")
    x, grid = b.input(n, c, h, w, kind=kind), b.input(n, p, q, 2, kind=kind)
    return b.output(b.add("GridSample", x, grid, mode=mode, padding_mode=padding, align_corners=b.pick(0, 1)))
