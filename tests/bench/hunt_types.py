"""Families of `hunt_cases.py` of other element types than f32: quantized, f16, f64."""
import numpy as np

from hunt_builder import D, F, H, I8, U8, Size, image


def quantized_activation(b, x):
    """An activation each of whose values is quantized, as quantizers of float models write it."""
    def quantize(x, scale, zero):
        scale, zero = b.constant(np.float32(scale)), b.constant(np.uint8(zero))
        return b.add("DequantizeLinear", b.add("QuantizeLinear", x, scale, zero), scale, zero)

    kind = b.pick("Relu", "Relu", "LeakyRelu", "Tanh", "silu", "gelu")
    if kind == "Relu":
        return b.add("Relu", x)
    x = quantize(x, 1 / 24, 130)
    if kind == "silu":
        return b.add("Mul", x, quantize(b.add("Sigmoid", x), 1 / 255, 0))
    if kind == "gelu":
        erf = quantize(b.add("Erf", b.add("Div", x, b.constant(np.float32(2 ** 0.5)))), 1 / 127, 128)
        more = quantize(b.add("Add", erf, b.constant(np.float32(1.0))), 1 / 127, 0)
        return b.add("Mul", quantize(b.add("Mul", x, more), 1 / 12, 130), b.constant(np.float32(0.5)))
    return b.add(kind, x)


def quantized(b):
    """Convolutions and products between quantize and dequantize, and of run-time integers."""
    kind = b.pick("conv", "conv", "linear", "integer", "qlinear")
    b.tolerance = 2e-2
    if kind == "conv":
        n, (h, w) = b.size("N", 1), image(b, small=True)
        c, k, k1 = b.pick(3, 16, 32, 64, 128), b.pick(16, 32, 64, 128), b.pick(1, 3, 3, 5)
        group = c if b.chance(0.25) else 1
        k = c if group > 1 else k
        b.count(2.0 * h.value * w.value * c // group * k * k1 * k1)
        x = b.input(n, c, h, w)
        scale, zero = b.constant(np.float32(1 / 64)), b.constant(np.uint8(128))
        q = b.add("DequantizeLinear", b.add("QuantizeLinear", x, scale, zero), scale, zero)
        wq = b.constant(b.rng.integers(-127, 128, (k, c // group, k1, k1)).astype(np.int8))
        wf = b.add("DequantizeLinear", wq, b.constant(np.float32(1 / (127 * (c // group * k1 * k1) ** 0.5))), b.constant(np.int8(0)))
        y = b.add("Conv", q, wf, note=f"{c}->{k} {k1}x{k1}", pads=[k1 // 2] * 4, group=group)
        y = quantized_activation(b, y)
        b.output(b.add("QuantizeLinear", y, b.constant(np.float32(1 / 32)), b.constant(np.uint8(0))))
        return
    m, k, n = b.size("M", 1, 7, 16, 64, 128), b.pick(32, 64, 100, 256), b.pick(10, 64, 100, 256)
    b.count(2.0 * m.value * k * n)
    if kind == "integer":
        x = b.input(m, k, kind=U8)
        w = b.input(k, n, kind=I8) if b.chance(0.5) else b.constant(b.rng.integers(-127, 128, (k, n)).astype(np.int8))
        b.output(b.add("MatMulInteger", x, w, note=f"{k}->{n}"))
        return
    w = b.constant(b.rng.integers(-127, 128, (k, n)).astype(np.int8))
    if kind == "qlinear":
        x = b.input(m, k, kind=U8, values=b.rng.integers(0, 256, (m.value, k)))
        one = [b.constant(np.float32(v)) for v in (1 / 128, 1 / 127, k ** 0.5 / 64)]
        z = [b.constant(np.uint8(128)), b.constant(np.int8(0)), b.constant(np.uint8(128))]
        b.output(b.add("QLinearMatMul", x, one[0], z[0], w, one[1], z[1], one[2], z[2], note=f"{k}->{n}"))
        return
    x, xs, xz = b.add("DynamicQuantizeLinear", b.input(m, k), n=3)
    y = b.add("Cast", b.add("MatMulInteger", x, w, xz, note=f"{k}->{n}"), to=F)
    b.output(b.add("Mul", y, b.add("Mul", xs, b.constant(np.float32(1 / 127)))))


def other_floats(b):
    """f16 and f64: products, convolutions, rows, maps."""
    kind, dtype = b.pick((H, np.float16), (D, np.float64))
    b.tolerance = 1e-2 if kind == H else 1e-9
    op = b.pick("matmul", "matmul", "conv", "softmax", "gelu", "norm", "add")
    n, s = b.size("N", 1, 2), b.size("S", 1, 16, 33, 128)
    c, k = b.pick(16, 64, 100, 256), b.pick(10, 64, 256)
    if op == "conv":
        h, w = image(b, small=True)
        c = min(c, 64)
        b.count(2.0 * h.value * w.value * c * 32 * 9)
        y = b.add("Conv", b.input(n, c, h, w, kind=kind), b.weight(32, c, 3, 3, dtype=dtype), pads=[1] * 4, note=f"{c}->32 3x3")
        b.output(b.add("Relu", y))
        return
    x = b.input(n, s, c, kind=kind)
    if op == "matmul":
        b.count(2.0 * n.value * s.value * c * k)
        y = b.add("MatMul", x, b.weight(c, k, dtype=dtype, scale=(3.0 / c) ** 0.5) if b.chance(0.6) else b.input(1, c, Size("L", k), kind=kind), note=f"{c}->{k}")
    elif op == "softmax":
        y = b.add("Softmax", x, axis=-1)
    elif op == "gelu":
        y = b.add("Mul", x, b.add("Sigmoid", x))
    elif op == "norm":
        y = b.add("LayerNormalization", x, b.weight(c, dtype=dtype, scale=1.0), b.weight(c, dtype=dtype, scale=1.0), axis=-1)
    else:
        y = b.add("Add", x, b.input(1, 1, c, kind=kind))
    b.output(y)
