"""Random operators and blocks of a few operators, of the kinds and sizes that networks have, for `hunt.py`.

A family is a function that takes a `Builder`. What it draws depends on the builder's generator only, so that the number of a
case and the seed say which model it is. Sizes that a network leaves open are `Size`s: the model is written once with them as
numbers and once as symbols.
"""
import numpy as np

from hunt_builder import B, D, F, H, I32, I64, U8, Builder, Size, TooLarge, image, number
from hunt_language import decoder, low_bits
from hunt_operators import operators, sampling
from hunt_types import other_floats, quantized


def channels(b, most=512):
    return b.pick(*[c for c in (3, 4, 8, 12, 16, 20, 24, 32, 36, 40, 48, 64, 66, 80, 96, 112, 128, 130, 160, 192, 256, 320, 384, 512) if c <= most])


def same(kernel, dilations):
    pads = [(k - 1) * d // 2 for k, d in zip(kernel, dilations)]
    return [*pads, *pads]


def area(dims, strides):
    return int(np.prod([-(-number(d) // s) for d, s in zip(dims, strides)]))


def conv2d(b):
    n, (h, w) = b.size("N", 1, 1, 1, 2), image(b)
    c = channels(b)
    k1 = b.pick(1, 1, 2, 3, 3, 3, 4, 5, 5, 7, 9)
    kernel = [k1, k1] if b.chance(0.8) else [k1, b.pick(1, 3, 5)]
    strides = [b.pick(1, 1, 1, 2, 2, 3)] * 2
    dilations = [b.pick(1, 1, 1, 2, 3, 4, 6) if k1 > 1 else 1] * 2
    group = b.pick(1, 1, 1, 2, 4, 8, 32)
    group = group if c % group == 0 and c > group else 1
    k = -(-channels(b) // group) * group
    b.count(2.0 * n.value * area((h, w), strides) * k * c // group * np.prod(kernel))
    pads = same(kernel, dilations) if b.chance(0.85) else [0] * 4
    if not any(pads) and any((s - 1) * d + 1 > number(x) for s, d, x in zip(kernel, dilations, (h, w))):
        pads = same(kernel, dilations)
    x = b.input(n, c, h, w)
    y = b.conv(x, c, k, kernel, pads, strides, dilations, group)
    if b.chance(0.4):
        y = b.batch_norm(y, k)
    if b.chance(0.6):
        y = b.activation(y)
    b.output(y)


def conv1d(b):
    n, t = b.size("N", 1, 1, 2), b.size("T", 50, 101, 256, 333, 1000, 1024, 3000, 8000)
    c = channels(b, 256)
    group = b.pick(1, 1, 1, c, c, 2, 4)
    group = group if c % group == 0 else 1
    k = c if group == c else -(-channels(b, 256) // group) * group
    kernel, strides, dilations = [b.pick(1, 3, 3, 4, 5, 7, 9, 11, 25)], [b.pick(1, 1, 1, 2, 3, 4)], [b.pick(1, 1, 2, 3, 4, 8)]
    b.count(2.0 * n.value * t.value / strides[0] * k * (c // group) * kernel[0])
    x = b.input(n, c, t)
    if b.chance(0.15) and group == 1:
        x = b.activation(x)
    y = b.conv(x, c, k, kernel, same(kernel, dilations), strides, dilations, group)
    if b.chance(0.5):
        y = b.activation(y)
    if b.chance(0.3):
        y = b.conv(y, k, k, [3], [1, 1], None, None, b.pick(1, k))
        b.count(2.0 * n.value * t.value / strides[0] * k * k * 3)
    b.output(y)


def conv3d(b):
    c, k = b.pick(1, 3, 8, 16), b.pick(8, 16, 32)
    t, h, w = b.size("T", 4, 8, 11), b.size("H", 12, 16, 28), b.size("W", 12, 16, 28)
    kernel = [b.pick(1, 3), b.pick(1, 3), b.pick(3, 5)]
    strides = [1, b.pick(1, 2), b.pick(1, 2)]
    b.count(2.0 * area((t, h, w), strides) * c * k * np.prod(kernel))
    x = b.input(b.size("N", 1), c, t, h, w)
    b.output(b.activation(b.conv(x, c, k, kernel, same(kernel, [1] * 3), strides)))


def depthwise(b):
    n, (h, w) = b.size("N", 1, 1, 2), image(b)
    c = channels(b, 384)
    k1 = b.pick(2, 3, 3, 5, 7, 9)
    kernel = [k1, k1] if b.chance(0.75) else b.pick([k1, 1], [1, k1])
    strides, dilations = [b.pick(1, 1, 2, 3)] * 2, [b.pick(1, 1, 1, 2, 3)] * 2
    b.count(2.0 * n.value * h.value * w.value * c * k1 * k1)
    x = b.input(n, c, h, w)
    y = b.conv(x, c, c * b.pick(1, 1, 1, 2), kernel, same(kernel, dilations), strides, dilations, c)
    b.output(b.activation(y) if b.chance(0.6) else y)


def convnext(b):
    """Depthwise, normalization and two linear layers, channels last; or the same in planes."""
    n, (h, w) = b.size("N", 1, 1, 2), image(b, small=True)
    c = b.pick(24, 32, 40, 64, 96, 100, 128, 192)
    k1, wide = b.pick(3, 5, 7, 7, 7), b.pick(2, 3, 4)
    b.count(2.0 * n.value * h.value * w.value * c * (2 * wide * c + k1 * k1))
    x = b.input(n, c, h, w)
    y = b.conv(x, c, c, [k1, k1], same([k1, k1], [1, 1]), group=c)
    if b.chance(0.7):
        y = b.add("Transpose", y, perm=[0, 2, 3, 1])
        y = b.layer_norm(y, c)
        y = b.linear(y, c, wide * c)
        y = b.add("Gelu", y)
        y = b.linear(y, wide * c, c)
        if b.chance(0.5):
            y = b.add("Mul", y, b.weight(c, scale=1.0))
        y = b.add("Transpose", y, perm=[0, 3, 1, 2])
    else:
        y = b.batch_norm(y, c)
        y = b.activation(b.conv(y, c, wide * c, [1, 1]))
        y = b.conv(y, wide * c, c, [1, 1])
    b.output(b.add("Add", x, y))


def mobile(b):
    """1x1, depthwise, squeeze-and-excite, 1x1."""
    n, (h, w) = b.size("N", 1, 1, 2), image(b)
    c, wide, k1, s = b.pick(8, 16, 24, 32, 40, 64, 80, 96), b.pick(1, 3, 4, 6), b.pick(3, 3, 5, 7), b.pick(1, 1, 2)
    e = c * wide
    b.count(2.0 * n.value * h.value * w.value * e * (2 * c + k1 * k1))
    x = b.input(n, c, h, w)
    y = b.activation(b.conv(x, c, e, [1, 1]))
    y = b.activation(b.conv(y, e, e, [k1, k1], same([k1, k1], [1, 1]), [s, s], None, e))
    if b.chance(0.4):
        z = b.add("GlobalAveragePool", y)
        z = b.add("Relu", b.conv(z, e, max(8, e // 4), [1, 1]))
        y = b.add("Mul", y, b.add("HardSigmoid", b.conv(z, max(8, e // 4), e, [1, 1])))
    y = b.conv(y, e, c, [1, 1])
    b.output(b.add("Add", x, y) if s == 1 else y)


def residual(b):
    """Convolutions, a normalization written out or not, a sum."""
    n, (h, w) = b.size("N", 1), image(b, small=b.chance(0.5))
    c = b.pick(16, 32, 48, 64, 96, 128)
    b.count(2.0 * 2 * h.value * w.value * c * c * 9)
    x = y = b.input(n, c, h, w)
    groups = b.pick(0, 0, 4, 8)
    for _ in range(b.pick(1, 2)):
        if groups:
            z = b.add("Reshape", y, b.constant([0, groups, -1], np.int64))
            z = b.add("InstanceNormalization", z, b.constant(np.ones(groups, np.float32)), b.constant(np.zeros(groups, np.float32)))
            y = b.add("Reshape", z, b.add("Shape", y))
            y = b.add("Add", b.add("Mul", y, b.weight(c, 1, 1, scale=1.0)), b.weight(c, 1, 1, scale=1.0))
            y = b.add("Mul", y, b.add("Sigmoid", y))
        y = b.conv(y, c, c, [3, 3], [1] * 4)
        y = y if groups else b.add("Relu", b.batch_norm(y, c))
    y = b.add("Add", x, y)
    if b.chance(0.4):
        other = b.conv(x, c, 32, [1, 1])
        y = b.add("Concat", y, other, axis=1)
    if b.chance(0.2):
        y = b.add("Transpose", b.add("Reshape", y, b.constant([0, 0, -1], np.int64)), perm=[0, 2, 1])
    b.output(y)


def conv_transpose(b):
    n, (h, w) = b.size("N", 1), image(b, small=True)
    c, k = b.pick(8, 16, 32, 64, 96, 128, 256), b.pick(1, 3, 8, 16, 32, 64, 128)
    k1, s = b.pick((2, 2), (3, 2), (4, 2), (4, 2), (3, 1), (5, 2), (8, 4), (3, 3))
    b.count(2.0 * h.value * w.value * c * k * k1 * k1)
    p = b.pick(0, (k1 - s) // 2) if k1 > s else 0
    x = b.input(n, c, h, w)
    y = b.add("ConvTranspose", x, b.weight(c, k, k1, k1, scale=(3.0 / (c * k1 * k1)) ** 0.5), note=f"{c}->{k} {k1}x{k1}", strides=[s, s], pads=[p] * 4)
    y = b.activation(y)
    if b.chance(0.5):
        b.count(2.0 * h.value * w.value * s * s * k * k * 9)
        y = b.conv(y, k, k, [3, 3], [1] * 4)
    b.output(y)


def resize(b):
    n, (h, w) = b.size("N", 1), image(b, small=True)
    c = b.pick(3, 16, 21, 32, 64, 128)
    mode = b.pick("nearest", "nearest", "linear", "linear", "cubic")
    attrs = {"mode": mode, "coordinate_transformation_mode": b.pick("half_pixel", "half_pixel", "align_corners", "asymmetric")}
    if mode == "nearest":
        attrs |= {"nearest_mode": "floor", "coordinate_transformation_mode": "asymmetric"}
    x = b.input(n, c, h, w)
    s = b.pick(2, 2, 2, 4, 0.5, 1.5)
    y = b.add("Resize", x, "", b.constant([1, 1, s, s], np.float32), note=f"x{s}", **attrs)
    if b.chance(0.4):
        b.count(2.0 * h.value * w.value * s * s * c * 32 * 9)
        y = b.activation(b.conv(y, c, 32, [3, 3], [1] * 4))
    b.output(y)


def pool(b):
    n, (h, w) = b.size("N", 1, 1, 2), image(b)
    c = channels(b, 256)
    k1, s = b.pick((2, 2), (3, 2), (3, 1), (5, 1), (3, 3), (2, 1), (7, 2))
    pads = [k1 // 2] * 4 if b.chance(0.5) and k1 > 2 else None
    op = b.pick("MaxPool", "MaxPool", "AveragePool", "LpPool", "GlobalAveragePool", "GlobalMaxPool")
    x = b.input(n, c, h, w)
    attrs = {} if op.startswith("Global") else {"kernel_shape": [k1, k1], "strides": [s, s], "pads": pads}
    if op == "AveragePool":
        attrs["count_include_pad"] = b.pick(0, 1)
    if b.chance(0.3):
        k = b.pick(16, 32, 64)
        b.count(2.0 * n.value * h.value * w.value * c * k * 9)
        x = b.activation(b.conv(x, c, k, [3, 3], [1] * 4))
    b.output(b.add(op, x, **attrs))


def attention(b):
    """Scores, a mask, softmax, values; the heads made of linear layers or given."""
    n, s = b.size("N", 1, 1, 2), b.size("S", 5, 16, 17, 49, 64, 77, 128, 197, 257)
    heads, d = b.pick(1, 2, 3, 4, 6, 8, 12), b.pick(8, 16, 20, 24, 32, 40, 64, 80)
    e, mask = heads * d, b.pick("none", "row", "matrix", "causal", "bias")
    b.count(2.0 * n.value * (4 * s.value * e * e + 2 * s.value**2 * e))
    x = b.input(n, s, e)
    split = b.constant([0, 0, heads, d], np.int64)

    def head(perm):
        return b.add("Transpose", b.add("Reshape", b.linear(x, e, e, b.chance(0.7)), split), perm=perm)
    q, k, v = head([0, 2, 1, 3]), head([0, 2, 3, 1]), head([0, 2, 1, 3])
    a = b.add("MatMul", q, k)
    a = b.add("Mul", a, b.constant(np.float32(d ** -0.5)))
    if mask == "row":
        m = b.input(n, 1, 1, s, kind=B, values=b.rng.random((n.value, 1, 1, s.value)) < 0.8)
        a = b.add("Where", m, a, b.constant(np.float32(-1e9)))
    elif mask == "matrix":
        a = b.add("Add", a, b.input(1, 1, s, s))
    elif mask == "bias":
        a = b.add("Add", a, b.input(1, heads, s, s))
    elif mask == "causal":
        upper = np.triu(np.full((s.value, s.value), -1e9, np.float32), 1)
        a = b.add("Add", a, b.input(s, s, values=upper))
    p = b.add("Softmax", a, axis=-1)
    y = b.add("Transpose", b.add("MatMul", p, v), perm=[0, 2, 1, 3])
    y = b.linear(b.add("Reshape", y, b.constant([0, 0, e], np.int64)), e, e)
    b.output(b.layer_norm(b.add("Add", x, y), e) if b.chance(0.5) else y)


def cross_attention(b):
    """Many queries, keys of their own length, both factors scaled: image latents and prompts, memories of detectors."""
    n, s = b.size("N", 1, 1, 2), b.size("S", 10, 100, 256, 300, 576, 1024, 1600, 2048)
    t = b.size("T", 7, 77, 128, 256, 400, 512, 1024, 2048, 4096)
    heads, d = b.pick(1, 2, 4, 5, 8), b.pick(4, 8, 16, 32, 40, 64, 72)
    e, context = heads * d, b.pick(48, 96, 256)
    b.count(2.0 * n.value * (s.value * e * e * 2 + t.value * context * e * 2 + 2 * s.value * t.value * e))
    x, memory = b.input(n, s, e), b.input(n, t, context)
    split, scale = b.constant([0, 0, heads, d], np.int64), b.constant(np.float32(d ** -0.25))

    def head(of, width, perm):
        return b.add("Transpose", b.add("Reshape", b.linear(of, width, e, False), split), perm=perm)
    q, k, v = head(x, e, [0, 2, 1, 3]), head(memory, context, [0, 2, 3, 1]), head(memory, context, [0, 2, 1, 3])
    a = b.add("MatMul", b.add("Mul", q, scale), b.add("Mul", k, scale))
    if b.chance(0.3):
        a = b.add("Add", a, b.input(n, 1, 1, t))
    p = b.add("Softmax", a, axis=-1)
    y = b.add("Transpose", b.add("MatMul", p, v), perm=[0, 2, 1, 3])
    y = b.linear(b.add("Reshape", y, b.constant([0, 0, e], np.int64)), e, e)
    b.output(b.add("Add", x, y))


def feed_forward(b):
    """Normalization, linear layers, a gate or an activation, a residual."""
    n, s = b.size("N", 1, 2), b.size("S", 1, 3, 16, 33, 64, 127, 256)
    c, wide = b.pick(48, 64, 96, 100, 128, 192, 256, 384), b.pick(2, 3, 4)
    b.count(2.0 * n.value * s.value * c * c * wide * 3)
    x = b.input(n, s, c)
    y = b.layer_norm(x, c) if b.chance(0.6) else x
    if b.chance(0.3):
        y = b.add("Mul", b.activation(b.linear(y, c, c * wide, False)), b.linear(y, c, c * wide, False))
    else:
        y = b.activation(b.linear(y, c, c * wide))
    b.output(b.add("Add", x, b.linear(y, c * wide, c)))


def matmul(b):
    m, k, n = (b.pick(1, 2, 3, 7, 10, 16, 31, 48, 64, 100, 127, 128, 200, 256, 384, 500, 768) for _ in range(3))
    batch = b.pick(1, 1, 1, 2, 6, 12)
    if batch > 1:
        m, k, n = min(m, 200), min(k, 200), min(n, 200)
    b.count(2.0 * batch * m * k * n)
    x = b.input(b.size("B", batch), Size("M", m), k)
    kind = b.pick("weights", "weights", "input", "turned", "gemm")
    if kind == "weights":
        y = b.add("MatMul", x, b.weight(k, n, scale=(3.0 / k) ** 0.5), note=f"{k}->{n}")
    elif kind == "input":
        y = b.add("MatMul", x, b.input(b.pick(1, Size("B", batch)), k, Size("L", n)))
    elif kind == "turned":
        y = b.add("MatMul", x, b.add("Transpose", b.input(Size("B", batch), Size("L", n), k), perm=[0, 2, 1]))
    else:
        x = b.add("Reshape", x, b.constant([-1, k], np.int64))
        y = b.add("Gemm", x, b.weight(n, k, scale=(3.0 / k) ** 0.5), b.weight(n, scale=0.1), note=f"{k}->{n}", transB=1)
    b.output(b.activation(y) if b.chance(0.4) else y)


def rows(b):
    """What reduces rows, of odd lengths, along any axis."""
    rank = b.pick(2, 3, 4)
    most = {2: 3000, 3: 200, 4: 56}[rank]
    dims = [b.pick(*[v for v in (1, 2, 3, 5, 7, 12, 16, 21, 31, 48, 49, 56, 64, 77, 128, 197, 200, 500, 768, 1000, 3000) if v <= most]) for _ in range(rank)]
    axis = b.pick(rank - 1, rank - 1, b.rng.integers(rank))
    x = b.input(*[Size("NSTU"[i], d) for i, d in enumerate(dims)])
    op = b.pick("Softmax", "Softmax", "LogSoftmax", "ReduceMean", "ReduceSum", "ReduceMax", "ReduceL2", "ReduceSumSquare", "ArgMax", "norm", "CumSum", "ReduceLogSumExp")
    if op in ("Softmax", "LogSoftmax"):
        y = b.add(op, x, axis=int(axis))
    elif op == "ArgMax":
        y = b.add(op, x, axis=int(axis), keepdims=b.pick(0, 1))
    elif op == "CumSum":
        y = b.add(op, x, b.constant(int(axis), np.int64), note=f"axis={axis}", reverse=b.pick(None, 1), exclusive=b.pick(None, 1))
    elif op == "norm":
        ax = b.constant([int(axis)], np.int64)
        d = b.add("Sub", x, b.add("ReduceMean", x, ax))
        v = b.add("ReduceMean", b.add("Mul", d, d), ax, note=f"axis={axis}")
        y = b.add("Div", d, b.add("Sqrt", b.add("Add", v, b.constant(np.float32(1e-5)))))
    else:
        axes = [int(axis)] if b.chance(0.7) or rank < 3 else sorted({int(axis), rank - 1})
        y = b.add(op, x, b.constant(axes, np.int64), note=f"axes={axes}", keepdims=b.pick(0, 1))
    b.output(y)


def moves(b):
    """Gathers, scatters, concatenations, transposes, slices, pads, one or two of them."""
    rank = b.pick(2, 3, 4)
    most = {2: 1000, 3: 128, 4: 56}[rank]
    dims = [b.pick(*[v for v in (1, 2, 3, 4, 8, 13, 16, 24, 31, 32, 56, 64, 77, 100, 128, 333, 768, 1000) if v <= most]) for _ in range(rank)]
    sizes = [Size("NSTU"[i], d) for i, d in enumerate(dims)]
    kind = b.pick(F, F, F, I64, U8, B, D, H)
    x = b.input(*sizes, kind=kind)
    y, axis = x, int(b.rng.integers(rank))
    for _ in range(b.pick(1, 1, 2)):
        op = b.pick("Transpose", "Transpose", "Concat", "Slice", "Pad", "Gather", "Tile", "Unsqueeze", "GatherElements", "Trilu", "Split", "Expand")
        if op == "Transpose":
            y = b.add(op, y, perm=[int(i) for i in b.rng.permutation(rank)])
            break
        if op == "Concat":
            y = b.add(op, y, y if y != x else b.input(*sizes, kind=kind), axis=axis)
            break
        if op == "Slice":
            step = b.pick(1, 1, 2, -1)
            lo, hi = (1, 2**31) if step > 0 else (-1, -2**31)
            lo = lo if dims[axis] > 1 else 0 if step > 0 else -1
            y = b.add(op, y, *[b.constant([v], np.int64) for v in (lo, hi, axis, step)], note=f"axis={axis} step={step}")
            break
        if op == "Pad" and kind != B:
            pads = [0] * 2 * rank
            pads[axis], pads[rank + axis], pads[rank - 1] = b.pick(0, 1, 3), b.pick(0, 1, 2), b.pick(0, 1)
            y = b.add(op, y, b.constant(pads, np.int64), note=f"{pads}", mode=b.pick("constant", "edge"))
            break
        if op == "Gather":
            rows = b.pick(1, 7, 64, 500)
            y = b.add(op, y, b.input(Size("G", rows), kind=I64, values=b.rng.integers(0, dims[axis], rows)), axis=axis)
            break
        if op == "GatherElements":
            y = b.add(op, y, b.input(*sizes, kind=I64, values=b.rng.integers(0, dims[axis], dims)), axis=axis)
            break
        if op == "Tile":
            repeats = [1] * rank
            repeats[axis] = b.pick(2, 3)
            y = b.add(op, y, b.constant(repeats, np.int64), note=f"{repeats}")
            break
        if op == "Trilu" and rank >= 2 and kind in (F, D, H, I64, B):
            y = b.add(op, y, upper=b.pick(0, 1))
        if op == "Split":
            part = b.pick(1, dims[axis] // 2)
            if part and part < dims[axis]:
                # The rest follows the symbol.
                y = b.add("Slice", y, *[b.constant([v], np.int64) for v in (part, 2**31, axis, 1)], note=f"axis={axis} from={part}")
                break
    if y == x:
        y = b.add("Transpose", x, perm=[int(i) for i in b.rng.permutation(rank)])
    b.output(y)


def scatters(b):
    rows_, width, n = b.size("R", 50, 333, 1000), b.pick(1, 7, 16, 64, 128), b.size("G", 1, 20, 200)
    x = b.input(rows_, width)
    at = b.rng.permutation(rows_.value)[:min(n.value, rows_.value)]
    n = Size("G", len(at))
    if b.chance(0.5):
        y = b.add("ScatterND", x, b.input(n, 1, kind=I64, values=at.reshape(-1, 1)), b.input(n, width))
    else:
        y = b.add("ScatterElements", x, b.input(n, width, kind=I64, values=np.tile(at.reshape(-1, 1), (1, width))), b.input(n, width), axis=0, reduction=b.pick("none", "add"))
    b.output(y)


def sorts(b):
    """TopK, of all kinds of values; positions that hold."""
    n, s = b.size("N", 1, 4, 16), b.size("S", 10, 80, 300, 1000, 8400)
    k = min(s.value, b.pick(1, 5, 50, 300, 1000))
    shape = (n.value, s.value)
    values = b.pick(None, None, b.rng.integers(0, 4, shape), np.zeros(shape))
    x = b.input(n, s, values=values)
    v, i = b.add("TopK", x, b.constant([k], np.int64), n=2, note=f"k={k}", axis=-1, largest=b.pick(0, 1))
    b.output(v, i)


def recurrent(b):
    t, n = b.size("T", 1, 5, 16, 40), b.size("N", 1, 1, 2, 8)
    c, h = b.pick(8, 20, 40, 64, 128), b.pick(8, 20, 32, 50, 64, 128, 200)
    both = b.chance(0.3)
    d = 2 if both else 1
    op, gates = b.pick(("LSTM", 4), ("GRU", 3), ("RNN", 1))
    b.count(2.0 * t.value * n.value * d * gates * h * (c + h))
    x = b.input(t, n, c)
    args = [x, b.weight(d, gates * h, c, scale=0.2), b.weight(d, gates * h, h, scale=0.1), b.weight(d, 2 * gates * h, scale=0.1)]
    attrs = {"hidden_size": h, "direction": "bidirectional" if both else None}
    if op == "GRU":
        attrs["linear_before_reset"] = b.pick(0, 1)
    b.output(*b.add(op, *args, n=2, **attrs))


def elementwise(b):
    """Chains of a few maps, broadcast in every way."""
    rank = b.pick(2, 3, 4)
    most = {2: 1000, 3: 200, 4: 56}[rank]
    dims = [Size("NSTU"[i], b.pick(*[v for v in (1, 3, 7, 16, 31, 56, 64, 77, 200, 768, 1000) if v <= most])) for i in range(rank)]
    x = y = b.input(*dims)
    for _ in range(b.rng.integers(1, 5)):
        op = b.pick("Add", "Mul", "Sub", "Div", "Tanh", "Exp", "Sqrt", "Pow", "Erf", "Where", "Max", "activation", "Floor", "Sin", "Softplus")
        if op in ("Add", "Mul", "Sub", "Max"):
            y = b.add(op, y, b.input(*[d if b.chance(0.6) else 1 for d in dims]))
        elif op == "Div":
            y = b.add(op, y, b.constant(np.float32(1.7)))
        elif op in ("Sqrt", "Pow"):
            y = b.add("Abs", y)
            y = b.add(op, y) if op == "Sqrt" else b.add(op, y, b.constant(np.float32(b.pick(2, 0.5, 3, 1.7))))
        elif op == "Where":
            y = b.add(op, b.add("Less", x, b.constant(np.float32(0.1))), y, b.constant(np.float32(0)))
        elif op == "activation":
            y = b.activation(y)
        elif op == "Exp":
            y = b.add("Exp", b.add("Tanh", y))
        else:
            y = b.add(op, y)
    b.output(y)


def integers(b):
    """Integer arithmetic, casts, comparisons."""
    kind = b.pick(I64, I32)
    n, s = b.size("N", 1, 16, 128), b.size("S", 1, 7, 100, 768)
    x = b.input(n, s, kind=kind, values=b.rng.integers(-1000, 1000, (n.value, s.value)))
    dtype = np.int64 if kind == I64 else np.int32
    op = b.pick("Add", "Mul", "Mod", "Div", "ModInput", "DivInput", "Equal", "CumSum", "ReduceSum", "ReduceMax", "Cast", "Min", "Clip", "Abs")
    if op in ("ModInput", "DivInput"):
        y = b.add(op[:3], x, b.input(1, s, kind=kind, values=b.rng.integers(1, 50, (1, s.value))))
    elif op in ("Add", "Mul", "Mod", "Div", "Min"):
        y = b.add(op, x, b.constant(dtype(b.pick(3, 7, 8, 10, 100))))
    elif op == "Equal":
        y = b.add("Cast", b.add(op, x, b.input(n, 1, kind=kind)), to=b.pick(F, I64, I32))
    elif op == "CumSum":
        y = b.add(op, x, b.constant(np.int64(b.pick(0, 1))))
    elif op in ("ReduceSum", "ReduceMax"):
        y = b.add(op, x, b.constant([b.pick(0, 1)], np.int64))
    elif op == "Cast":
        y = b.add(op, x, to=b.pick(F, I64, I32, D, B))
    elif op == "Clip":
        y = b.add(op, x, b.constant(dtype(-3)), b.constant(dtype(9)))
    else:
        y = b.add(op, x)
    b.output(y)


FAMILIES = {f.__name__: f for f in (conv2d, conv1d, conv3d, depthwise, convnext, mobile, residual, conv_transpose, resize, pool, attention, cross_attention, feed_forward,
                                    matmul, rows, moves, scatters, sorts, recurrent, elementwise, integers, quantized, other_floats, low_bits, decoder,
                                    operators, sampling)}


def draw(family, seed, index):
    """The case of this number: what builds it, ready for `finish`."""
    for attempt in range(1000):
        b = Builder(np.random.default_rng([seed, index, attempt]))
        try:
            FAMILIES[family](b)
            return b
        except TooLarge:
            continue
    raise SystemExit(f"{family}: no draw is small enough")
