"""Models under construction, with their inputs, for `hunt_cases.py`."""
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

F, D, H, I64, I32, I8, U8, B = (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.INT64, TensorProto.INT32,
                                TensorProto.INT8, TensorProto.UINT8, TensorProto.BOOL)
# Multiplications and additions of a case at most: several calls fit into a turn.
MOST = 1.5e9


class Size:
    """A size with a name."""

    def __init__(self, name, value):
        self.name, self.value = name, int(value)


def number(d):
    return d.value if isinstance(d, Size) else int(d)


class TooLarge(Exception):
    """The draw asks for more arithmetic than a case may have."""


class Builder:
    """A model that is being written, with its inputs."""

    def __init__(self, rng):
        self.rng = rng
        self.nodes, self.inputs, self.constants, self.feeds, self.outputs, self.text = [], [], [], {}, [], []
        self.flops, self.tolerance, self.opset = 0.0, 1e-4, 20

    # Draws.
    def pick(self, *values):
        return values[self.rng.integers(len(values))]

    def chance(self, p):
        return bool(self.rng.random() < p)

    def size(self, name, *values):
        return Size(name, self.pick(*values))

    # What a model consists of.
    def input(self, *dims, kind=F, values=None):
        name = f"x{len(self.inputs)}"
        shape = [number(d) for d in dims]
        dtype = helper.tensor_dtype_to_np_dtype(kind)
        if values is None:
            values = self.rng.integers(0, 2 if kind == B else 100, shape) if np.dtype(dtype).kind in "iub" else self.rng.uniform(-1, 1, shape)
        self.inputs.append((name, kind, dims))
        self.feeds[name] = np.asarray(values).astype(dtype)
        self.text.append(f"{np.dtype(dtype).name if kind != F else ''}[{'x'.join(map(str, shape))}]")
        return name

    def constant(self, values, dtype=None):
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(values, dtype), name))
        return name

    def raw(self, kind, shape, values):
        """A constant of any element type from its bytes."""
        name = f"c{len(self.constants)}"
        self.constants.append(TensorProto(name=name, data_type=kind, dims=shape, raw_data=values))
        return name

    def weight(self, *shape, dtype=np.float32, scale=None):
        scale = scale if scale is not None else (3.0 / max(1, int(np.prod(shape[1:])))) ** 0.5
        return self.constant((self.rng.uniform(-1, 1, shape) * scale).astype(dtype))

    def add(self, op, *inputs, n=1, note=None, **attrs):
        """A node; its result, or the list of them."""
        outs = [f"t{len(self.nodes)}_{i}" for i in range(n)]
        attrs = {k: v for k, v in attrs.items() if v is not None}
        self.nodes.append(helper.make_node(op, list(inputs), outs, name=f"{op.lower()}{len(self.nodes)}", **attrs))
        shown = " ".join(f"{k}={','.join(map(str, v)) if isinstance(v, (list, tuple)) else v}" for k, v in attrs.items())
        self.text.append(" ".join(filter(None, [op, note, shown])))
        return outs[0] if n == 1 else outs

    def output(self, *names, dims=None):
        """Results; `dims` declares their sizes, where an operator of another domain leaves them open."""
        self.outputs += [(x, dims) for x in names]

    def count(self, flops):
        self.flops += float(flops)
        if self.flops > MOST:
            raise TooLarge

    # Shorthands.
    def conv(self, x, c, k, kernel, pads=None, strides=None, dilations=None, group=1, bias=None):
        rank = len(kernel)
        bias = self.chance(0.6) if bias is None else bias
        w = self.weight(k, c // group, *kernel)
        attrs = {"pads": pads, "strides": strides if strides and set(strides) != {1} else None,
                 "dilations": dilations if dilations and set(dilations) != {1} else None, "group": group if group > 1 else None}
        args = [x, w] + ([self.weight(k, scale=0.1)] if bias else [])
        return self.add("Conv", *args, note=f"{c}->{k} {'x'.join(map(str, kernel[:rank]))}", **attrs)

    def activation(self, x):
        op = self.pick("Relu", "Relu", "Sigmoid", "HardSwish", "Gelu", "SiLU", "LeakyRelu", "Clip")
        if op == "SiLU":
            return self.add("Mul", x, self.add("Sigmoid", x))
        if op == "Clip":
            return self.add("Clip", x, self.constant(np.float32(0)), self.constant(np.float32(6)))
        return self.add(op, x)

    def batch_norm(self, x, c):
        v = [self.weight(c, scale=1.0) for _ in range(3)]
        return self.add("BatchNormalization", x, *v, self.constant(self.rng.uniform(0.5, 1.5, c).astype(np.float32)))

    def layer_norm(self, x, c):
        return self.add("LayerNormalization", x, self.weight(c, scale=1.0), self.weight(c, scale=1.0), axis=-1)

    def linear(self, x, c, k, bias=True):
        y = self.add("MatMul", x, self.weight(c, k, scale=(3.0 / c) ** 0.5), note=f"{c}->{k}")
        return self.add("Add", y, self.weight(k, scale=0.1)) if bias else y

    @staticmethod
    def shown(dims, symbols):
        return [d.name if symbols and isinstance(d, Size) else number(d) for d in dims]

    def result(self, name, dims, symbols):
        if dims is None:
            return onnx.ValueInfoProto(name=name)
        return helper.make_tensor_value_info(name, F, self.shown(dims, symbols))

    def finish(self, name):
        """Models with numbers and with symbols, and the symbols' sizes."""
        made, sizes = {}, {}
        for symbols in (False, True):
            infos = []
            for x, kind, dims in self.inputs:
                sizes |= {d.name: d.value for d in dims if isinstance(d, Size)}
                infos.append(helper.make_tensor_value_info(x, kind, self.shown(dims, symbols)))
            graph = helper.make_graph(self.nodes, name, infos, [self.result(y, dims, symbols) for y, dims in self.outputs], self.constants)
            opsets = [helper.make_opsetid("", self.opset)] + [helper.make_opsetid(d, 1) for d in {n.domain for n in self.nodes} - {""}]
            made[symbols] = onnx.shape_inference.infer_shapes(helper.make_model(graph, opset_imports=opsets, ir_version=10))
        return made[False], made[True], sizes


def image(b, small=False):
    """Height and width: as networks have them, odd, prime, tiny, large."""
    sizes = (7, 8, 13, 14, 16, 20, 28, 31, 32) if small else (7, 9, 13, 14, 16, 17, 20, 23, 28, 32, 33, 40, 47, 56, 64, 65, 80, 112)
    h = b.pick(*sizes)
    w = h if b.chance(0.6) else b.pick(*sizes)
    return Size("H", h), Size("W", w)
