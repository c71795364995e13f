"""Families of `hunt_cases.py` that language models consist of: products with block-quantized weights, attention with caches.

Sizes that vary from call to call (rows, the prompt, the past) are `Size`s. Peers that know an operator of com.microsoft run it; the
others leave the case out.
"""
import numpy as np

from hunt_builder import I32, Size, TensorProto

MS = "com.microsoft"
# Rows of a call: a step of decode, of several sequences, a prompt.
ROWS = (1, 1, 1, 2, 3, 4, 5, 7, 8, 12, 16, 31, 64, 128)


def sizes_of_product(b):
    k = b.pick(128, 256, 384, 512, 576, 768, 896, 960, 1024, 1536, 2048, 3072)
    n = b.pick(32, 96, 128, 192, 200, 256, 576, 768, 896, 1000, 1152, 1536, 2048, 4864)
    return k, n


def scales(b, *shape):
    return b.constant((b.rng.uniform(0.5, 1.5, shape) * 0.02).astype(np.float32))


def bits_of(b, x, k, n):
    """x times weights of few bits as MatMulNBits has them."""
    bits, level = b.pick(4, 4, 4, 8), b.pick(0, 0, 4, None)
    block = b.pick(*[s for s in (16, 32, 32, 64, 128, 256) if s <= max(16, k)])
    blocks = -(-k // block)
    w = b.constant(b.rng.integers(0, 256, (n, blocks, block * bits // 8), dtype=np.uint8))
    inputs = [x, w, scales(b, n * blocks)]
    zero = b.chance(0.35)
    if zero:
        inputs.append(b.constant(b.rng.integers(0, 256, (n * -(-blocks * bits // 8),), dtype=np.uint8)))
    if b.chance(0.2):
        inputs += [""] * (5 - len(inputs)) + [b.weight(n, scale=0.1)]
    # Sums of 8 bits with blocks of their own scale.
    b.tolerance = max(b.tolerance, 3e-2 if level == 4 else 2e-4)
    return b.add("MatMulNBits", *inputs, domain=MS, note=f"{k}->{n}{' zeros' if zero else ''}", K=k, N=n, bits=bits, block_size=block, accuracy_level=level)


def dequantized(b, x, k, n):
    """x times weights that a blocked DequantizeLinear makes."""
    kind = b.pick(TensorProto.INT4, TensorProto.INT4, TensorProto.UINT4, TensorProto.INT8, TensorProto.UINT8)
    block = b.pick(*[s for s in (16, 32, 64, 128) if k % s == 0])
    turned = b.chance(0.4)
    shape, axis = ((n, k), 1) if turned else ((k, n), 0)
    four = kind in (TensorProto.INT4, TensorProto.UINT4)
    raw = b.rng.integers(0, 256, k * n // (2 if four else 1), dtype=np.uint8).tobytes()
    w = b.raw(kind, shape, raw)
    few = [d // block if a == axis else d for a, d in enumerate(shape)]
    inputs = [w, scales(b, *few)]
    unsigned = kind in (TensorProto.UINT4, TensorProto.UINT8)
    if unsigned:
        count = int(np.prod(few))
        inputs.append(b.raw(kind, few, b.rng.integers(0, 256, -(-count // 2) if four else count, dtype=np.uint8).tobytes()))
    w = b.add("DequantizeLinear", *inputs, axis=axis, block_size=block, note=TensorProto.DataType.Name(kind))
    if turned:
        w = b.add("Transpose", w, perm=[1, 0])
    return b.add("MatMul", x, w, note=f"{k}->{n}")


def low_bits(b):
    """One product with block-quantized weights, or a gated feed-forward layer of three."""
    b.opset, m, (k, n) = 21, b.size("M", *ROWS), sizes_of_product(b)
    product = bits_of if b.chance(0.6) else dequantized
    gated = b.chance(0.3)
    b.count(2.0 * m.value * k * n * (3 if gated else 1))
    rows = b.size("N", 1)
    x = b.input(rows, m, k)
    if not gated:
        b.output(product(b, x, k, n), dims=(rows, m, n))
        return
    # Activations of 8 bits of a sum of products: the errors of three products.
    gate, up = product(b, x, k, n), product(b, x, k, n)
    y = b.add("Mul", b.add("Mul", gate, b.add("Sigmoid", gate)), up)
    back = n % 16 == 0
    b.output(b.add("Add", x, product(b, y, n, k)) if back else y, dims=(rows, m, k if back else n))


def rotary(b, half):
    at = np.arange(4096)[:, None] * 1e4 ** (-np.arange(half) / half)
    return b.constant(np.cos(at).astype(np.float32)), b.constant(np.sin(at).astype(np.float32))


def decoder(b):
    """Attention with caches: of grouped queries with rotations, of all heads, or ONNX's own."""
    n, s, past = b.size("N", 1, 1, 1, 2, 4), b.size("S", 1, 1, 1, 1, 2, 8, 33, 128), b.size("P", 1, 15, 64, 100, 256, 511, 1024, 2048)
    kv, d = b.pick(1, 2, 4, 8), b.pick(32, 64, 64, 80, 96, 128)
    heads = kv * b.pick(1, 2, 4, 7, 8)
    total = s.value + past.value
    b.count(4.0 * n.value * heads * d * s.value * total)
    b.opset = 23
    kind = b.pick("grouped", "grouped", "onnx", "matmul")
    capacity, grouped = Size("C", total), kind == "grouped" and n.value == 1
    # ONNX Runtime's shapes have the caches of grouped queries grow only if their sizes are symbols: they have a capacity.
    keys = [b.input(n, kv, capacity if grouped else past, d) for _ in range(2)]
    if grouped:
        b.opset = 21
        x = b.input(n, s, (heads + 2 * kv) * d)
        lengths = b.input(n, kind=I32, values=np.full(n.value, total - 1))
        count = b.input(1, kind=I32, values=[total])
        window = b.pick(-1, -1, -1, 128)
        turns = rotary(b, d // 2) if b.chance(0.7) and d % 16 == 0 else ("", "")
        y, k, v = b.add("GroupQueryAttention", x, "", "", *keys, lengths, count, *turns, n=3, domain=MS, num_heads=heads, kv_num_heads=kv,
                       scale=d ** -0.5, do_rotary=int(turns[0] != ""), local_window_size=window)
        b.output(y, dims=(n, s, heads * d))
        b.output(k, v, dims=(n, kv, capacity, d))
        return
    q, new = b.input(n, heads, s, d), [b.input(n, kv, s, d) for _ in range(2)]
    if kind == "onnx":
        b.output(*b.add("Attention", q, *new, "", *keys, n=3, scale=d ** -0.5, is_causal=1))
        return
    # Concatenated caches, and products as exporters of older opsets write them.
    k, v = (b.add("Concat", p, x, axis=2) for p, x in zip(keys, new))
    b.output(k, v)
    if heads > kv:
        # Repeated heads: [N, KV, T, D] to [N, KV, G, T, D] to [N, H, T, D].
        group = b.constant([1, 1, heads // kv, 1, 1], np.int64)
        shape = b.constant([0, heads, -1, d], np.int64)
        k, v = (b.add("Reshape", b.add("Expand", b.add("Unsqueeze", x, b.constant([2], np.int64)), group), shape) for x in (k, v))
    a = b.add("Mul", b.add("MatMul", q, b.add("Transpose", k, perm=[0, 1, 3, 2])), b.constant(np.float32(d ** -0.5)))
    b.output(b.add("MatMul", b.add("Softmax", a, axis=-1), v))
