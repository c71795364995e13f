"""Recipes of elementwise operators, conversions, and operators that fill: operator -> function of a context that returns
cases. Every attribute and every optional operand of every version stands in a case; run.py checks it."""
import numpy as np
from recipe import FLOATS, Const, case, code, ints, scalar
from onnx import TensorProto, helper

R = {}


def unary(lo=-3.0, hi=3.0, **attributes):
    """One operand; a second case has the attributes that the version knows."""
    def cases(c):
        given = {k: v for k, v in attributes.items() if c.has(k)}
        x = c.x(2, 3, 4, lo=lo, hi=hi)
        return [case(x)] + ([case(x, **given)] if given else [])
    return cases


for op in "Abs Neg Sign Exp Sigmoid Tanh Softplus Softsign Relu Sin Cos Sinh Cosh Asinh Atan Erf HardSwish Mish Ceil Floor Round Not BitwiseNot NonZero".split():
    R[op] = unary()


def selu(c):
    """The defaults of version 1 have fewer digits."""
    given = {"alpha": 1.2, "gamma": 1.4}
    x = c.x(2, 3, 4)
    return [case(x, same=(6, None, {"alpha": 1.6732, "gamma": 1.0507}) if c.v < 6 else None), case(x, **given)]


R |= {
    "Tan": unary(-1.2, 1.2), "Log": unary(0.1), "Sqrt": unary(0.1), "Reciprocal": unary(0.4), "Acosh": unary(1.1, 4),
    "Asin": unary(-0.9, 0.9), "Acos": unary(-0.9, 0.9), "Atanh": unary(-0.9, 0.9),
    "Elu": unary(alpha=0.7), "LeakyRelu": unary(alpha=0.3), "ThresholdedRelu": unary(alpha=0.4), "Celu": unary(alpha=1.5),
    "Selu": selu, "HardSigmoid": unary(alpha=0.4, beta=0.3), "Shrink": unary(lambd=0.6, bias=0.2),
    "Swish": unary(alpha=0.6),
    # The constants of onnx.reference are floats.
    "Gelu": lambda c: [case(c.x(2, 3, 4), rtol=1e-4, approximate=a) for a in (None, "tanh")],
}
R["Round"] = lambda c: [case(c.x(2, 3, 4)), case(np.arange(-9, 10) / 2)]
R["IsNaN"] = lambda c: [case(np.array([np.nan, np.inf, -np.inf, 1.0]))]
R["IsInf"] = lambda c: [case(np.array([np.nan, np.inf, -np.inf, 1.0]), **a) for a in ({}, {"detect_negative": 0}, {"detect_positive": 0})]


# --- Two operands. ---

def legacy(b, rank, axis):
    """B of the broadcasting before version 7, its axes beginning at `axis`, in the shape of the later one."""
    return b.reshape(b.shape + (1,) * (rank - axis - b.ndim))


def binary(modern=7, a=(-3.0, 3.0), b=(-3.0, 3.0), old=None):
    def cases(c):
        x, y = c.x(2, 3, 4, lo=a[0], hi=a[1]), c.x(3, 4, lo=b[0], hi=b[1])
        if c.v >= modern:
            return [case(x, y), case(x, y[:, :1]), case(x[0, :, :1], c.x(2, 1, 4, lo=b[0], hi=b[1])), case(x[0, 0, 0], y)]
        later = old or modern
        return [case(x, y, broadcast=1, same=(later, [x, y], {})), case(x, y[:, 0], broadcast=1, axis=1, same=(later, [x, legacy(y[:, 0], 3, 1)], {})),
                case(x, x[::-1].copy() if b == a else np.broadcast_to(y, x.shape).copy(), same=(later, None, {})),
                case(x, y[0, 0], broadcast=1, same=(later, None, {}))]
    return cases


R |= {op: binary() for op in "Add Sub Mul And Or Xor Less Greater".split()}
R["Equal"] = lambda c: [dataclass_ints(c, k) for k in binary()(c)]
R |= {"Div": binary(b=(0.4, 3.0)), "Pow": binary(a=(0.4, 2.0), b=(0.4, 2.0))}
R |= {op: binary(modern=0) for op in "LessOrEqual GreaterOrEqual BitwiseAnd BitwiseOr BitwiseXor".split()}


def dataclass_ints(c, k):
    """The case with operands that are often equal."""
    if c["T"] not in ("bool", "string"):
        k.operands = [np.rint(o) / (3 if "int" in c["T"] else 1) for o in k.operands]
        if isinstance(k.same, tuple) and k.same[1]:
            k.same = (k.same[0], [np.rint(o) / (3 if "int" in c["T"] else 1) for o in k.same[1]], k.same[2])
    return k


R["SwiGLU"] = lambda c: [case(c.x(2, 3, 4), c.x(2, 3, 4)), case(c.x(2, 4), c.x(2, 4), alpha=1.5)]
R["BitShift"] = lambda c: [case(c.i(0, 100, 2, 3), c.i(0, 8, 3), direction=d) for d in ("LEFT", "RIGHT")] + ([case(c.i(-100, 100, 2, 3), c.i(0, 7, 3), direction="RIGHT")] if "u" != c["T"][0] else [])


def mod(c):
    b = np.array([3, -3, 7, -7, 5, 1]) if c["T"][0] != "u" else np.array([3, 2, 7, 9, 5, 1])
    if c["T"] in FLOATS:
        return [case(c.x(2, 6), c.x(6, lo=0.3), fmod=1), case(c.x(2, 6), b / 2.0, fmod=1)] + ([case(c.x(2, 6), b / 2.0)] if c.v >= 28 else [])
    return [case(c.i(-50, 50, 2, 6), b), case(c.i(-50, 50, 2, 6), b, fmod=1)]


def prelu(c):
    x, s = c.x(2, 3, 4), c.x(3, lo=0.1, hi=2)
    if c.v < 7:
        return [case(x, s, same=(7, [x, s[:, None]], {})), case(x, s[:1], same=(7, None, {}))]
    return [case(x, s[:, None]), case(x, s[:1])]


def clip(c):
    x = c.x(2, 3, 4)
    if c.v < 11:
        same = 6 if c.v < 6 else None
        return [case(x, same=same), case(x, min=-0.5, max=0.8, same=same), case(x, max=0.1, same=same), case(x, min=0.2, same=same)]
    return [case(x), case(x, np.float64(-0.5), np.float64(0.8)), case(x, Const(np.float64(0))), case(x, None, Const(np.float64(0.5)))]


def many(c):
    """Max, Min, Sum, Mean: all of one shape before version 8."""
    x = c.x(2, 3, 4)
    rest = [c.x(2, 3, 4), c.x(2, 3, 4)] if c.v < 8 else [c.x(3, 1), c.x(1, 1, 4)]
    return [case(x, *rest, same=8 if c.v < 8 else None), case(x, rest[0], same=8 if c.v < 8 else None), case(x, same=8 if c.v < 8 else None)]


R |= {"Mod": mod, "PRelu": prelu, "Clip": clip, "Max": many, "Min": many, "Sum": many, "Mean": many}
R["Where"] = lambda c: [case(c.x(2, 3, 4), c.x(2, 3, 4), c.x(3, 1)), case(c.x(3, 1), c.x(4), c.x(2, 1, 1))]


# --- Conversions. ---

def numbers(t, c):
    """Values of an element type that most types can hold, and some that they round."""
    if t == "string":
        return np.array(["1", "-2.5", "0", "7", "3.25", "100"], object)
    if t == "bool":
        return np.array([True, False, True])
    if "int" in t:
        return np.array([0, 1, 2, 3, -1, -2, 5, 7, -8, 100, -100, 127, 255])
    return np.array([0.0, 1.0, -1.0, 0.5, 1.7, -1.7, 2.5, 3.5, 5.2, 6.0, 7.9, 100.2, 0.013, -0.3, 0.26, 20.6, 27.0])


def within(t, x):
    """Those of the values that fit an integer type: what a cast of others gives is left open."""
    from recipe import limits
    if "int" in t and x.dtype.kind == "f":
        lo, hi = limits(t)
        return x[(np.trunc(x) >= lo) & (np.trunc(x) <= hi)]
    return x


def converted(c, source, target):
    x = within(target, numbers(source, c))
    return x[x >= 0] if target[0] == "u" and x.dtype.kind == "f" else x


def cast(c):
    t = c["T2"]
    x = converted(c, c["T1"], t)
    to = code(t) if c.v >= 6 else TensorProto.DataType.Name(code(t))
    out = [case(x, to=to, same=(6, None, {"to": code(t)}) if c.v < 6 else None)]
    if t.startswith("float8") and c["T1"] in FLOATS:
        y = np.concatenate([x, np.array([1e6, -1e6])])
        out += [case(y, to=to), case(y, to=to, saturate=0)]
        if t == "float8e8m0" and c.has("round_mode"):
            out = [case(np.abs(x[1:]), to=to, round_mode=m) for m in ("up", "down", "nearest")]
    return out


def cast_like(c):
    t = c["T2"]
    x = converted(c, c["T1"], t)
    like = np.ones(2)
    out = [case(x, like)]
    if t.startswith("float8") and c["T1"] in FLOATS:
        out.append(case(np.concatenate([x, np.array([1e6, -1e6])]), like, saturate=0))
        if t == "float8e8m0" and c.has("round_mode"):
            out = [case(np.abs(x[1:]), like, round_mode=m) for m in ("up", "down", "nearest")]
    return out


SIZES = {"float": 32, "double": 64, "float16": 16, "bfloat16": 16, "bool": 8, "complex64": 64, "complex128": 128, "string": 0}


def bits(t):
    return SIZES[t] if t in SIZES else int(t.lstrip("uint")) if "int" in t else 8 if t.startswith("float8") else int(t[5])


R |= {"Cast": cast, "CastLike": cast_like}
R["BitCast"] = lambda c: [case(c.x(2, 3), to=code(c["T2"]))] if bits(c["T1"]) == bits(c["T2"]) else [
    case(c.x(2, 3), to=code(t), types=[t]) for t in c.allowed("T2") if bits(t) == bits(c["T1"])][:2] if c.swept == "T1" else []


# --- Operators without data, and random ones. ---

def tensor(t, values):
    from recipe import convert
    from onnx import numpy_helper
    return numpy_helper.from_array(convert(np.array(values), t), "v")


def constant(c):
    t = c["T"]
    shape = c.x(2, 3)
    out = [case(value=tensor(t, shape))]
    if c.has("value_float") and t == "float":
        out += [case(value_float=1.5), case(value_floats=[1.0, 2.5])]
    if c.has("value_int") and t == "int64":
        out += [case(value_int=-3), case(value_ints=[1, 2, 3])]
    if c.has("value_string") and t == "string":
        out += [case(value_string="a"), case(value_strings=["a", "bc"])]
    if c.has("sparse_value") and t == "float":
        sparse = helper.make_sparse_tensor(helper.make_tensor("v", code("float"), [2], [1.0, 2.0]), helper.make_tensor("i", code("int64"), [2], [1, 4]), [2, 3])
        out.append(case(sparse_value=sparse, want=lambda: [np.array([[0, 1, 0], [0, 2, 0]])]))
    return out


R["Constant"] = constant
R["ConstantOfShape"] = lambda c: ([case(ints(2, 3))] if c["T2"] == "float" else []) + [case(ints(2, 3), value=tensor(c["T2"], [1.5])), case(ints(4), value=tensor(c["T2"], [1]))]
R["EyeLike"] = lambda c: [case(c.x(3, 5), k=k, dtype=code(c["T2"])) for k in (0, 1, -2)] + ([case(c.x(3, 5), types=[c["T1"]])] if c["T1"] == c["T2"] or c.swept == "T1" else [])


def range_(c):
    f = c["T"] in FLOATS
    stash = [case(Const(np.float64(1)), Const(np.float64(4.2)), Const(np.float64(0.5)), stash_type=11)] if f and c.has("stash_type") else []
    if f:
        return [case(Const(np.float64(1)), Const(np.float64(4.2)), Const(np.float64(0.5))), case(np.float64(3), np.float64(-2), np.float64(-0.75))] + stash
    return [case(scalar(2), scalar(11), scalar(3))] + ([case(np.int64(9), np.int64(0), np.int64(-2))] if c["T"][0] != "u" else [])


R["Range"] = range_


def drawn(low, high, mean, shape):
    """A predicate: results of this shape within [low, high] with about this mean."""
    def check(y):
        y = np.asarray(y[0], np.float64)
        return y.shape == shape and bool(np.all((y >= low) & (y <= high))) and abs(y.mean() - mean) < 0.25 and y.std() > 0.1
    return check


def random(c, like):
    t = next((v for v in ("T2", "T") if v in c.binding), "T")
    base = {"dtype": code(c[t])} if c[t] != "float" or c.swept == "T1" else {}
    operands, shape = ([c.x(40, 50)], {}) if like else ([], {"shape": [40, 50]})
    if "Normal" in c.schema.name:
        return [case(*operands, **shape, **base, check=drawn(-9, 9, 0, (40, 50))), case(*operands, **shape, **base, mean=2.0, scale=0.5, seed=3.0, check=drawn(-9, 9, 2, (40, 50)))] \
            + ([case(*operands, dtype=code(c[t]), check=drawn(-9, 9, 0, (40, 50)))] if like else [case(**shape, dtype=code(c[t]), check=drawn(-9, 9, 0, (40, 50)))])
    return [case(*operands, **shape, **base, check=drawn(0, 1, 0.5, (40, 50))), case(*operands, **shape, dtype=code(c[t]), low=-2.0, high=3.0, seed=3.0, check=drawn(-2, 3, 0.5, (40, 50)))]


R |= {op: (lambda c, like=op.endswith("Like"): random(c, like)) for op in ("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike")}


def bernoulli(c):
    p = np.tile(np.array([0.0, 1.0, 0.5]), (30, 1))

    def check(y):
        y = np.asarray(y[0], np.float64)
        return bool(np.isin(y, (0, 1)).all() and not y[:, 0].any() and y[:, 1].all() and 3 < y[:, 2].sum() < 27)
    return [case(p, dtype=code(c["T2"]), check=check), case(p, dtype=code(c["T2"]), seed=5.0, check=check)] + ([case(p, check=check, types=[c["T1"]])] if c.swept == "T1" else [])


def multinomial(c):
    logits = np.log(np.array([[0.5, 0.5, 1e-30], [1e-30, 1.0, 1e-30]]))

    def check(shape):
        def of(y):
            y = np.asarray(y[0])
            return y.shape == shape and bool((y[1] == 1).all() and np.isin(y[0], (0, 1)).all())
        return of
    logits = np.maximum(logits, -30)
    return [case(logits, dtype=code(c["T2"]), sample_size=40, check=check((2, 40))), case(logits, dtype=code(c["T2"]), seed=2.0, check=check((2, 1)))] + ([case(logits, check=check((2, 1)))] if c["T2"] == "int32" else [])


def dropout(c):
    x = c.x(20, 30, lo=0.5)
    if c.v < 7:
        return [case(x, is_test=1, want=lambda x: [x]), case(x, is_test=1, ratio=0.3, want=lambda x: [x])]
    if c.v < 12:
        return [case(x), case(x, ratio=0.3)]  # What the mask holds is left open.

    def check(y, ratio=0.4):
        y, m = np.asarray(y[0], np.float64), np.asarray(y[1])
        kept = np.where(m, y, 0)
        return bool(np.all(y[~m] == 0) and np.all(kept[m] > 0)) and abs(1 - m.mean() - ratio) < 0.15
    return [case(x), case(x, out=2), case(x, Const(np.float64(0.4)), out=2), case(x, Const(np.float64(0.4)), Const(np.array(False)), out=2),
            case(x, Const(np.float64(0.4)), Const(np.array(True)), out=2, check=check), case(x, Const(np.float64(0.4)), Const(np.array(True)), out=2, seed=7, check=check)]


R |= {"Bernoulli": bernoulli, "Multinomial": multinomial, "Dropout": dropout}
for op in ("BlackmanWindow", "HannWindow", "HammingWindow"):
    # ONNX Runtime's constants are floats.
    R[op] = lambda c: [case(Const(np.array(10)), rtol=1e-5, output_datatype=code(c["T2"]), periodic=p) for p in (0, 1)] + ([case(Const(np.array(7)))] if c["T2"] == "float" else [])
R["MelWeightMatrix"] = lambda c: [case(Const(np.array(4)), Const(np.array(16)), Const(np.array(100)), Const(np.array(1.0 if c["T2"] in FLOATS else 1)), Const(np.array(40.0 if c["T2"] in FLOATS else 40)), **({} if c["T3"] == "float" and k else {"output_datatype": code(c["T3"])})) for k in (0, 1)]
