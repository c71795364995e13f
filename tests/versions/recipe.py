"""What recipes are made of: cases, the context that a recipe sees, random operands and their conversion to a type."""
import dataclasses
import typing
import zlib

import numpy as np
from onnx import TensorProto, helper


@dataclasses.dataclass
class Const:
    """An operand that is an initializer."""
    value: typing.Any


@dataclasses.dataclass
class Case:
    """One node: operands (arrays, [`Const`], None where one is left out), attributes, number of outputs."""
    operands: list
    attributes: dict
    out: list
    # What the result is taken from instead of this node: a later version of the operator, or (version, operands,
    # attributes) of it; or a function of the operands in wide types.
    same: typing.Any = None
    want: typing.Any = None
    # Where nothing determines the values: a predicate on the results.
    check: typing.Any = None
    # The largest relative error, where it is more than that of the type.
    rtol: float = 0.0
    # Types of the outputs, where they are not those of the type variables.
    types: typing.Any = None
    # Several nodes instead of one, from x0, x1, ... to y0, y1, ...; and the types of the operands.
    nodes: typing.Any = None
    in_types: typing.Any = None


def program(nodes, *operands, in_types, types, want):
    """A case of several nodes: (operator, operands, results, attributes), with names parted by spaces."""
    from onnx import helper
    made = [helper.make_node(op, i.split(), o.split(), **a) for op, i, o, a in nodes]
    return Case(list(operands), {}, [True] * len(types), want=want, types=types, nodes=made, in_types=in_types)


def type_of(t, shape=None):
    """The TypeProto of a type's name; `shape` is that of a tensor."""
    from onnx import TypeProto
    if t.startswith("seq("):
        return helper.make_sequence_type_proto(type_of(t[4:-1]))
    if t.startswith("map("):
        key, value = t[4:-1].split(",")
        return TypeProto(map_type=TypeProto.Map(key_type=code(key), value_type=helper.make_tensor_type_proto(code(value), [])))
    return helper.make_tensor_type_proto(code(t[7:-1] if t.startswith("tensor(") else t), shape)


def case(*operands, out=1, same=None, want=None, check=None, rtol=0.0, types=None, **attributes):
    """`out` is a number of outputs or a list with True for each output that is wanted."""
    attributes = {k: v for k, v in attributes.items() if v is not None}
    return Case(list(operands), attributes, [True] * out if isinstance(out, int) else out, same, want, check, rtol, types)


def ints(*values):
    return Const(np.array(values, np.int64))


def scalar(v):
    return Const(np.array(v, np.int64 if isinstance(v, int) else np.float64))


def code(name):
    """Number of an element type in files."""
    return TensorProto.DataType.Value(name.upper())


def dtype(name):
    return helper.tensor_dtype_to_np_dtype(code(name))


FLOATS = ("float", "double", "float16", "bfloat16")


class Context:
    """An operator at a version, with a type for each of its type variables."""

    def __init__(self, schema, binding, swept):
        self.schema, self.binding, self.swept = schema, binding, swept
        self.v = schema.since_version
        key = f"{schema.domain}:{schema.name}:{self.v}:{sorted(binding.items())}"
        self.rng = np.random.default_rng(zlib.crc32(key.encode()))

    def __getitem__(self, var):
        return self.binding[var]

    def has(self, attribute):
        return attribute in self.schema.attributes

    def x(self, *shape, lo=-3.0, hi=3.0):
        """Data: an integer operand gets three times as much, rounded."""
        return self.rng.random(shape) * (hi - lo) + lo

    def i(self, lo, hi, *shape):
        """Integers in lo..hi, which stay as they are."""
        return self.rng.integers(lo, hi, shape)

    def type_of(self, formal):
        t = formal.type_str
        t = self.binding.get(t, t)
        return t[7:-1] if t.startswith("tensor(") else t


def limits(t):
    """Range of an integer type."""
    bits = int(t.lstrip("uint"))
    return (0, 2 ** bits - 1) if t[0] == "u" else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def convert(value, t):
    """An array with the element type `t`."""
    if "(" in t:
        return value
    a = np.asarray(value)
    if t == "string":
        return a if a.dtype.kind in "OU" else np.array([f"s{int(round(float(v) * 3))}" for v in a.reshape(-1)], object).reshape(a.shape)
    if t == "bool":
        return a if a.dtype == bool else (a > 0)
    if t.startswith("complex"):
        return (a + 0.5j * a[..., ::-1] if a.ndim else a + 0.5j).astype(dtype(t))
    if "int" in t:
        data = np.rint(a * 3) if a.dtype.kind == "f" else a.astype(np.int64) if a.dtype == bool else a
        lo, hi = limits(t)
        if lo == 0 and a.dtype.kind == "f":
            data = np.abs(data)
        if data.dtype == np.uint64:
            return data.astype(dtype(t))
        return np.asarray(np.clip(data, lo, min(hi, 2 ** 63 - 1))).astype(np.int64).astype(dtype(t))
    if t == "float8e8m0":
        a = np.exp2(np.rint(np.asarray(a, np.float64)))
    with np.errstate(all="ignore"):
        return a.astype(np.float32 if t not in ("double", "float") else dtype(t)).astype(dtype(t))


def wide(a):
    """The same numbers in a type that numpy computes well in."""
    if isinstance(a, dict):
        return a
    a = np.asarray(a)
    return a if a.dtype.kind in "biuOU" and a.dtype.name in ("bool", "object") + tuple(f"{u}int{b}" for u in ("", "u") for b in (8, 16, 32, 64)) else a if a.dtype.kind == "c" else a.astype(np.float64) if "int" not in a.dtype.name else a.astype(np.int64)
