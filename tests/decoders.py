#!/usr/bin/env python3
"""Operators of language models in the forms that exporters write, against ONNX Runtime, or numpy where its CPU has no kernel.

    decoders.py ONNXC [--only PART] [-O LEVEL]

Every row names who writes the form. Together they use every input, output and attribute that the operators have
(compiler/ops/schema.txt); REFUSED lists what the compiler says it does not take, and `refusals` that it does say so.
"""
import math
import os
import subprocess
import sys
import tempfile

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto as T
from onnx import helper as h
import quantized
from quantized import RNG, case, f, fields, ms, node, q

I32, I64, U8, F16 = np.int32, np.int64, np.uint8, np.float16
OPERATORS = ["MatMulNBits", "MatMulBnb4", "GatherBlockQuantized", "QMoE", "GroupQueryAttention", "MultiHeadAttention", "Attention"]
ROWS = []


def row(exporter, name, nodes, *args, **more):
    """A case of quantized.py and who writes its form."""
    ROWS.append((exporter, name, nodes if isinstance(nodes, list) else [nodes]))
    case(name, nodes, *args, **more)


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def small(kind, a):
    """A tensor of a type that numpy does not have."""
    return h.make_tensor("t", kind, a.shape, a.reshape(-1).tolist())


def nbits():
    """MatMulNBits; quantized.py's few_bits has all bits, blocks and numbers of rows."""
    depth, columns, block = 96, 40, 32
    blocks = depth // block

    def want(bits=4, groups=None):
        def of(a, b, s, z=None, g=None, c=0):
            g = np.arange(depth) // block if g is None else g
            codes = fields(b.reshape(columns, -1), bits)[:, :depth]
            by = np.float32(1 << (bits - 1))
            if z is not None:
                by = (fields(z.reshape(columns, -1), bits) if z.dtype == U8 else z.reshape(columns, -1).astype(np.float32))[:, g]
            w = (codes - by) * s.reshape(columns, -1).astype(np.float32)[:, g]
            return [(a.astype(np.float64) @ w.T.astype(np.float64) + np.asarray(c, np.float64)).astype(a.dtype)]
        return of

    def one(exporter, name, names="a b s", bits=4, elem=np.float32, rows=(3,), rtol=2e-6, consts=None, **attrs):
        data = {"b": q(U8, columns, blocks, block * bits // 8), "s": (np.abs(f(columns, blocks, scale=0.05)) + np.float32(0.01)).astype(elem), **(consts or {})}
        n = ms("MatMulNBits", names.split() if isinstance(names, str) else names, K=depth, N=columns, bits=bits, block_size=block, **attrs)
        row(exporter, f"nbits_{name}", n, {"a": f(*rows, depth).astype(elem)}, data, rtol=rtol, want=want(bits))

    shuffled, uneven = RNG.permutation(depth) // block, RNG.integers(0, blocks, depth)
    for rows in ((1,), (2, 3), (20,)):
        tag = "x".join(map(str, rows))
        one("olive", f"plain_{tag}", rows=rows, weight_prepacked=0)
        one("genai (GPTQ without act_order)", f"groups_{tag}", ["a", "b", "s", "", "g"], rows=rows, consts={"g": (np.arange(depth) // block).astype(I32)})
        one("genai (GPTQ with act_order)", f"act_order_{tag}", "a b s z g", rows=rows, consts={"g": shuffled.astype(I32), "z": q(U8, columns, (blocks + 1) // 2)})
        one("hand-written", f"uneven_groups_{tag}", "a b s z g", rows=rows, consts={"g": uneven.astype(I32), "z": f(columns, blocks, scale=3)})
    one("genai (AWQ)", "bias", ["a", "b", "s", "", "", "c"], consts={"c": f(columns)})
    one("olive (k-quant)", "act_order_8", ["a", "b", "s", "", "g", "c"], bits=8, consts={"g": shuffled.astype(I32), "c": f(columns)})
    one("olive", "act_order_2", ["a", "b", "s", "", "g"], bits=2, consts={"g": shuffled.astype(I32)})
    one("genai -p int4 -e cuda", "f16", "a b s z", elem=F16, rtol=2e-3, consts={"z": f(columns, blocks, scale=3).astype(F16)})
    for level in (1, 2, 3):
        one("genai", f"level_{level}", accuracy_level=level)
    # Last block not whole: its groups are smaller.
    n = ms("MatMulNBits", "a b s z g", K=72, N=16, bits=4, block_size=32)
    data = {"b": q(U8, 16, 3, 16), "s": f(16, 3), "z": q(U8, 16, 2), "g": RNG.permutation(72).astype(I32) // 32}

    def last(a, b, s, z, g):
        w = (fields(b.reshape(16, -1), 4)[:, :72] - fields(z, 4)[:, g]) * s[:, g]
        return [(a.astype(np.float64) @ w.T).astype(np.float32)]
    row("genai (GPTQ with act_order)", "nbits_act_order_last", n, {"a": f(5, 72)}, data, rtol=2e-6, want=last)


FLOATS = {T.FLOAT8E4M3FN: ml_dtypes.float8_e4m3fn, T.FLOAT8E4M3FNUZ: ml_dtypes.float8_e4m3fnuz, T.FLOAT8E5M2: ml_dtypes.float8_e5m2,
          T.FLOAT8E5M2FNUZ: ml_dtypes.float8_e5m2fnuz, T.FLOAT4E2M1: ml_dtypes.float4_e2m1fn}


def floats_of(kind, shape, scale=1.0):
    """Random numbers of a small type, as floats, with its least and its largest among them."""
    t = FLOATS[kind]
    a = np.asarray(RNG.standard_normal(shape) * scale, np.float32).astype(t).astype(np.float32)
    i = ml_dtypes.finfo(t)
    a.reshape(-1)[:4] = [float(i.max), -float(i.max), float(i.smallest_subnormal), 0]
    return a


def tensor_of(kind, a):
    return h.make_tensor("t", kind, a.shape, a.reshape(-1).tolist())


def blocked_floats():
    """DequantizeLinear of small floats in blocks, and a product."""
    for kind, t in FLOATS.items():
        name = T.DataType.Name(kind).lower()
        for axis, shape in ((0, (128, 48)), (1, (40, 96))):
            for scales in ("float", "e8m0"):
                w = floats_of(kind, shape, 2.0)
                of = tuple(n // 32 if i == axis else n for i, n in enumerate(shape))
                if scales == "float":
                    s = np.abs(f(*of, scale=0.05)) + np.float32(0.01)
                    tensor, more = s, {}
                else:
                    s = np.exp2(RNG.integers(-6, 3, of)).astype(np.float32)
                    tensor, more = tensor_of(T.FLOAT8E8M0, s), {"output_dtype": T.FLOAT}
                real = w * np.repeat(s, 32, axis)
                deq = node("DequantizeLinear", "w s", "d", axis=axis, block_size=32, **more)
                product = node("MatMul", "a d") if axis == 0 else node("Gemm", "a d", transB=1)
                for rows in (1, 5, 20):
                    row("modelopt, quark" if scales == "e8m0" else "modelopt", f"{name}_{scales}_{axis}_{rows}", [deq, product], {"a": f(rows, shape[axis])}, {"w": tensor_of(kind, w), "s": tensor},
                        rtol=1e-5, opset=24, want=lambda a, real=real, axis=axis, **_: [(a.astype(np.float64) @ (real if axis == 0 else real.T)).astype(np.float32)])


NF4 = np.array([-1.0, -0.6961928, -0.52507305, -0.3949175, -0.28444138, -0.18477343, -0.091050036, 0.0,
                0.0795803, 0.1609302, 0.2461123, 0.33791524, 0.44070983, 0.562617, 0.72295684, 1.0], np.float32)


def bnb4():
    """MatMulBnb4: bitsandbytes' two tables."""
    for kind in (0, 1):
        for k, n, block in ((48, 10, 16), (96, 40, 64), (64, 33, 32), (50, 7, 16)):
            for rows in (1, 3, 20):
                data = {"b": q(U8, (k * n + 1) // 2), "m": np.abs(f(-(-k * n // block))) + np.float32(0.1)}
                row("optimum (bitsandbytes)", f"bnb4_{kind}_{k}_{rows}", ms("MatMulBnb4", "a b m", K=k, N=n, block_size=block, quant_type=kind), {"a": f(rows, k)}, data, rtol=1e-5)
    data = {"b": q(U8, 48 * 10 // 2), "m": np.abs(f(48 * 10 // 16))}

    def back(a, b, m):
        codes = np.stack([b >> 4, b & 15], -1).reshape(-1)
        return [a @ (NF4[codes] * np.repeat(m, 16)).reshape(10, 48)]
    # ONNX Runtime's CPU provider transposes whatever transB is.
    row("torch-ort", "bnb4_back", ms("MatMulBnb4", "a b m", K=48, N=10, block_size=16, quant_type=1, transB=0, training_mode=1), {"a": f(2, 3, 10)}, data, rtol=1e-5, want=back)


def gathered():
    """GatherBlockQuantized."""
    i = np.array([[1, -1], [0, 3]], I64)
    for bits in (2, 4, 8):
        for zeros in (0, 1):
            blocks = 4
            data = {"d": q(U8, 7, 64 * bits // 8), "s": np.abs(f(7, blocks)), **({"z": q(U8, 7, blocks * bits // 8)} if zeros else {})}
            row("genai (shared embedding)", f"gathered_u8_{bits}_{zeros}", ms("GatherBlockQuantized", "d i s z" if zeros else "d i s", bits=bits, block_size=16, gather_axis=0, quantize_axis=1), {"i": i}, data, rtol=1e-6)
    for kind in (T.INT4, T.UINT4):
        lo, hi = (-8, 8) if kind == T.INT4 else (0, 16)
        for gather, along, shape in ((0, 1, (7, 64)), (1, 0, (64, 7)), (1, 1, (6, 32)), (0, 2, (7, 3, 32)), (-2, -1, (7, 32)), (1, 2, (3, 7, 32)), (2, 0, (32, 3, 5))):
            for zeros in (0, 1):
                a = along % len(shape)
                of = tuple(-(-n // 16) if k == a else n for k, n in enumerate(shape))
                data = {"d": small(kind, RNG.integers(lo, hi, shape)), "s": np.abs(f(*of)), **({"z": small(kind, RNG.integers(lo, hi, of))} if zeros else {})}
                n = ms("GatherBlockQuantized", "d i s z" if zeros else "d i s", block_size=16, gather_axis=gather, quantize_axis=along)
                row("olive, genai", f"gathered_{'i' if kind == T.INT4 else 'u'}4_{gather % 9}_{along % 9}_{len(shape)}_{zeros}", n, {"i": i.astype(I32)}, data, rtol=1e-6)
    data = {"d": small(T.INT4, RNG.integers(-8, 8, (7, 40))), "s": np.abs(f(7, 3)).astype(F16)}
    row("genai -p int4 -e cuda", "gathered_f16_last", ms("GatherBlockQuantized", "d i s", block_size=16), {"i": i}, data, rtol=1e-3)
    # Behind the last row: zeros.
    data = {"d": q(U8, 7, 16), "s": np.abs(f(7, 2))}
    row("genai (shared embedding)", "gathered_outside", ms("GatherBlockQuantized", "d i s", bits=4, block_size=16), {"i": np.array([6, 7, -8, 2], I64)}, data, rtol=1e-6)
    for kind in FLOATS:
        for block, of in ((16, (7, 4)), (0, (7, 1)), (0, (1, 1)), (32, (1, 2))):
            w, s = floats_of(kind, (7, 64)), np.abs(f(*of)) + np.float32(0.01)
            real = w * np.broadcast_to(np.repeat(s, block or 64, 1)[:, :64], w.shape)
            n = ms("GatherBlockQuantized", "d i s", block_size=block)
            row("modelopt", f"gathered_{T.DataType.Name(kind).lower()}_{block}_{of[0]}", n, {"i": i}, {"d": tensor_of(kind, w), "s": s}, rtol=1e-6, want=lambda i, real=real, **_: [real[i]])
    tied = {"d": q(U8, 33, 2, 16), "s": np.abs(f(33, 2, scale=0.1)), "flat": np.array([33, -1], I64)}
    nodes = [node("Reshape", "d flat", "rows"), ms("GatherBlockQuantized", "rows i s", "e", bits=4, block_size=32), ms("MatMulNBits", "e d s", K=64, N=33, bits=4, block_size=32)]
    row("genai (shared embedding)", "gathered_tied", nodes, {"i": np.array([[1, 32, 5]], I64)}, tied, rtol=2e-6)


def experts():
    """MoE and QMoE."""
    count, size = 4, 32
    for act in ("relu", "gelu", "silu", "identity", "swiglu"):
        for norm in (0, 1):
            wide = 2 if act == "swiglu" else 1
            more = {"swiglu_fusion": 1, **({"activation_alpha": 1.7, "activation_beta": 1.0, "swiglu_limit": 0.7} if norm else {})} if act == "swiglu" else {}
            row("torch, olive", f"moe_{act}_{norm}", ms("MoE", "x r w1 b1 w2 b2", k=2, activation_type=act, normalize_routing_weights=norm, **more), {"x": f(2, 5, size), "r": f(10, count)},
                 {"w1": f(count, wide * 16, size, scale=0.3), "b1": f(count, wide * 16), "w2": f(count, size, 16, scale=0.3), "b2": f(count, size)}, rtol=1e-5)
    row("torch, olive", "moe_one", ms("MoE", ["x", "r", "w1", "", "w2"], k=1), {"x": f(1, size), "r": f(1, count)}, {"w1": f(count, 16, size), "w2": f(count, size, 16)}, rtol=1e-5)
    # ONNX Runtime rounds what meets 8 bits in blocks to 8 bits as well.
    for bits in (2, 4, 8):
        for block in (0, 16):
            for zeros in (0, 1):
                at = size // block if block else 0
                scale = lambda *n: np.abs(f(*n, *([at] if block else []), scale=0.05))
                zero = lambda n: q(np.uint8, count, *([n] if block else []), -(-(at if block else n) * bits // 8))
                names = ["x", "r", "w1", "s1", "b1", "w2", "s2", "b2", "", "", ""] + (["z1", "z2"] if zeros else [])
                consts = {"w1": q(np.uint8, count, size, size * bits // 8), "s1": scale(count, size), "b1": f(count, size), "w2": q(np.uint8, count, size, size * bits // 8), "s2": scale(count, size), "b2": f(count, size),
                          **({"z1": zero(size), "z2": zero(size)} if zeros else {})}
                row("torch, olive", f"qmoe_{bits}_{block}_{zeros}", ms("QMoE", names, k=2, activation_type="silu", normalize_routing_weights=zeros, expert_weight_bits=bits, **({"block_size": block} if block else {})),
                     {"x": f(7, size), "r": f(7, count)}, consts, rtol=2e-2 if (bits, block) == (8, 16) else 1e-4)
    weights = {"w1": q(np.uint8, count, 2 * size, size // 2), "s1": np.abs(f(count, 2 * size, 2, scale=0.05)), "w2": q(np.uint8, count, size, size // 2), "s2": np.abs(f(count, size, 2, scale=0.05))}
    for norm in (0, 1):
        row("torch, olive", f"qmoe_shares_{norm}", ms("QMoE", ["x", "r", "w1", "s1", "", "w2", "s2", *[""] * 7, "m"], k=2, activation_type="swiglu", swiglu_fusion=1, normalize_routing_weights=norm, block_size=16), {"x": f(7, size), "r": f(7, count), "m": np.abs(f(7, count))}, weights, rtol=1e-4)
    # Three layers: the first gates the third.
    three = {"w1": f(count, 16, size, scale=0.3), "b1": f(count, 16), "w2": f(count, size, 16, scale=0.3), "b2": f(count, size), "w3": f(count, 16, size, scale=0.3), "b3": f(count, 16)}
    feeds = {"x": f(9, size), "r": f(9, count)}

    def gated(x, r, w1, b1, w2, b2, w3, b3, alpha=1.0, beta=0.0, limit=np.inf):
        p, out = softmax(r), np.zeros_like(x)
        for t, row in enumerate(x):
            for e in np.argsort(-p[t])[:2]:
                gate, other = np.minimum(w1[e] @ row + b1[e], limit), np.clip(w3[e] @ row + b3[e], -limit, limit)
                out[t] += p[t, e] * (w2[e] @ (gate * sigmoid(alpha * gate) * (other + beta)) + b2[e])
        return [out]

    names = "x r w1 b1 w2 b2 w3 b3"
    row("torch, olive", "moe_gated", ms("MoE", names, k=2, activation_type="silu"), feeds, three, rtol=1e-5, want=gated)
    row("torch, olive", "moe_swiglu_apart", ms("MoE", names, k=2, activation_type="swiglu", activation_alpha=1.5, activation_beta=1.0, swiglu_limit=2.0), feeds, three, rtol=1e-5, want=lambda **a: gated(**a, alpha=1.5, beta=1.0, limit=2.0))
    joined = {"w1": np.concatenate([three["w1"], three["w3"]], 1), "b1": np.concatenate([three["b1"], three["b3"]], 1), "w2": three["w2"], "b2": three["b2"]}
    row("torch, olive", "moe_swiglu_joined", ms("MoE", "x r w1 b1 w2 b2", k=2, activation_type="swiglu", swiglu_fusion=2), feeds, joined, rtol=1e-5, want=lambda x, r, **_: gated(x, r, **three))
    # Three quantized layers, each of bits of its own.
    bits = {"fc1": 4, "fc2": 8, "fc3": 2}
    packed = {n: q(np.uint8, count, *shape) for n, shape in (("w1", (16, size * 4 // 8)), ("w2", (size, 16)), ("w3", (16, size * 2 // 8)))}
    scales = {"s1": np.abs(f(count, 16, 2, scale=0.05)), "s2": np.abs(f(count, size, 1, scale=0.01)), "s3": np.abs(f(count, 16, 2, scale=0.2))}
    biases = {"b1": f(count, 16), "b2": f(count, size), "b3": f(count, 16)}
    zeros = {"z1": q(np.uint8, count, 16, 1), "z2": q(np.uint8, count, size, 1), "z3": q(np.uint8, count, 16, 1)}

    def quantized_layers(x, r, w1, s1, b1, w2, s2, b2, w3, s3, b3, z1, z2, z3):
        of = lambda w, s, z, n: (fields(w, n) - np.repeat(fields(z, n)[..., :s.shape[-1]], 16, -1)) * np.repeat(s, 16, -1)
        y = [np.zeros_like(x)]
        p = softmax(r)
        kept = [np.argsort(-p[t])[:2] for t in range(len(x))]
        w1, w2, w3 = of(w1, s1, z1, 4), of(w2, s2, z2, 8), of(w3, s3, z3, 2)
        for t, row in enumerate(x):
            for e in kept[t]:
                gate, other = w1[e] @ row + b1[e], w3[e] @ row + b3[e]
                y[0][t] += p[t, e] / p[t, kept[t]].sum() * (w2[e] @ (gate * sigmoid(gate) * other) + b2[e])
        return y
    names = "x r w1 s1 b1 w2 s2 b2 w3 s3 b3 z1 z2 z3"
    n = ms("QMoE", names, k=2, activation_type="silu", block_size=16, quant_type="int", weights_prepacked=0, accuracy_level=0, normalize_routing_weights=1, use_sparse_mixer=0,
           expert_weight_bits=4, **{f"{layer}_expert_weight_bits": b for layer, b in bits.items()})
    order = {k: v for k in names.split()[2:] for group in (packed, scales, biases, zeros) for k2, v in group.items() if k2 == k}
    row("olive (mixed precision)", "qmoe_three", n, feeds, order, rtol=1e-5, want=quantized_layers)
    swiglu = ms("QMoE", ["x", "r", "w1", "s1", "", "w2", "s2"], k=2, activation_type="swiglu", swiglu_fusion=1, block_size=16, activation_alpha=1.702, activation_beta=1.0, swiglu_limit=0.7)
    # Layers that are large enough to stay packed.
    wide = {"w1": q(np.uint8, count, 128, 32), "s1": np.abs(f(count, 128, 2, scale=0.05)), "b1": f(count, 128), "w2": q(np.uint8, count, 64, 32), "s2": np.abs(f(count, 64, 2, scale=0.05)), "b2": f(count, 64)}
    fused = ms("QMoE", "x r w1 s1 b1 w2 s2 b2", k=2, activation_type="swiglu", swiglu_fusion=1, block_size=32)
    for rows in (1, 3, 40):
        row("genai (gpt-oss)", f"qmoe_packed_{rows}", fused, {"x": f(rows, 64), "r": f(rows, count)}, wide, rtol=1e-4)
    fused = ms("QMoE", "x r w1 s1 b1 w2 s2 b2", k=2, activation_type="swiglu", swiglu_fusion=1, block_size=32, accuracy_level=4)
    row("genai (gpt-oss)", "qmoe_level_4", fused, {"x": f(3, 64), "r": f(3, count)}, wide, rtol=3e-2)
    row("genai (gpt-oss)", "qmoe_gpt_oss", swiglu, {"x": f(7, size), "r": f(7, count)}, weights, rtol=1e-4)


def heads_of(x, n):
    return x.reshape(*x.shape[:2], n, -1).transpose(0, 2, 1, 3)


def flat(x):
    return x.transpose(0, 2, 1, 3).reshape(x.shape[0], x.shape[2], -1).astype(np.float32)


def group_query():
    """GroupQueryAttention."""
    heads, groups, size, past, tokens = 4, 2, 16, 3, 1
    at = dict(num_heads=heads, kv_num_heads=groups)
    given = lambda b, s: {"q": f(b, s, heads * size), "k": f(b, s, groups * size), "v": f(b, s, groups * size)}
    first, lengths = given(2, 5), {"sl": np.array([4, 4], I32), "t": np.array(5, I32)}
    names, outs = ["q", "k", "v", "", "", "sl", "t"], "y k1 v1"
    turn = {"cos": f(24, size // 2), "sin": f(24, size // 2)}
    gqa = lambda names, outs=outs, **more: ms("GroupQueryAttention", names, outs, **at, **more)
    row("genai", "gqa_column", gqa(names), {**first, "sl": np.array([[4], [4]], I32), "t": lengths["t"]}, rtol=1e-5)
    for scores in (1, 2):
        for name, more in (("", {}), ("_window", {"local_window_size": 2}), ("_softcap", {"softcap": 1.5})):
            row("genai (speculative decoding)", f"gqa_scores_{scores}{name}", gqa(names, "y k1 v1 qk", qk_output=scores, **more), first, lengths, rtol=1e-5)
    row("olive", "gqa_smooth", gqa(names, smooth_softmax=1), first, lengths, rtol=1e-5)
    row("genai (gpt-oss)", "gqa_sinks", gqa([*names, "", "", "", "", "h"]), first, {**lengths, "h": f(heads)}, rtol=1e-5)
    row("genai", "gqa_scale", gqa(names, scale=0.3), first, lengths, rtol=1e-5)
    row("optimum", "gqa_both_ways", gqa(names, causal=0), first, lengths, rtol=1e-5)
    for interleaved in (0, 1):
        turned = ["q", "k", "v", "pk", "pv", "sl", "t", "cos", "sin"]
        step = {**given(2, 1), "pk": f(2, groups, 9, size), "pv": f(2, groups, 9, size)}
        more = {"do_rotary": 1, "rotary_interleaved": interleaved}
        # What lies behind the keys of the shorter sample means nothing.
        row("genai", f"gqa_step_{interleaved}", gqa(turned, **more), step, {"sl": np.array([9, 6], I32), "t": np.array(10, I32), **turn}, rtol=1e-5, outputs=["y"])
        row("genai", f"gqa_even_step_{interleaved}", gqa(turned, **more), step, {"sl": np.array([9, 9], I32), "t": np.array(10, I32), **turn}, rtol=1e-5)
        row("genai (past_present_share_buffer)", f"gqa_shared_{interleaved}", gqa(turned, **more), step, {"sl": np.array([5, 3], I32), "t": np.array(6, I32), **turn}, rtol=1e-5, want=shared(heads, groups, turn, interleaved))
        row("genai", f"gqa_first_{interleaved}", gqa(["q", "k", "v", "", "", "sl", "t", "cos", "sin"], **more), first, {**lengths, **turn}, rtol=1e-5)
        row("olive", f"gqa_positions_{interleaved}", gqa([*turned, "p"], **more), {**step, "p": np.array([[9], [6]], I64)}, {"sl": np.array([9, 6], I32), "t": np.array(10, I32), **turn}, rtol=1e-5, outputs=["y"])
    wide = {n: f(1, 5, m * 2 * size) for n, m in (("q", heads), ("k", groups), ("v", groups))}
    row("genai (phi: partial rotary)", "gqa_partial", gqa(["q", "k", "v", "", "", "sl", "t", "cos", "sin"], do_rotary=1), wide, {"sl": lengths["sl"][:1], "t": lengths["t"], **turn}, rtol=1e-5)
    several = {**given(1, 3), "pk": f(1, groups, 9, size), "pv": f(1, groups, 9, size)}
    row("genai (chunked prefill)", "gqa_chunk", gqa(["q", "k", "v", "pk", "pv", "sl", "t", "cos", "sin"], do_rotary=1), several, {"sl": np.array([11], I32), "t": np.array(12, I32), **turn}, rtol=1e-5)
    row("genai (packed)", "gqa_packed", gqa(["q", "", "", "pk", "pv", "sl", "t", "cos", "sin"], do_rotary=1, local_window_size=4), {"q": f(1, 1, (heads + 2 * groups) * size), "pk": several["pk"], "pv": several["pv"]},
        {"sl": np.array([9], I32), "t": np.array([10], I32), **turn}, rtol=1e-5)
    row("genai (tree attention)", "gqa_bias", gqa([*names, "", "", "", "b"]), first, {**lengths, "b": f(1, heads, 5, 5)}, rtol=1e-5)
    # A window of the cache: the past has a capacity of its own and what falls out of it is dropped.
    for name, room, length, s in (("fills", 8, 5, 1), ("full", 8, 8, 1), ("evicts", 6, 9, 1), ("chunk", 8, 7, 4), ("long", 6, 5, 9), ("exact", 4, 9, 1)):
        window = 4
        data = {**given(1, s), "pk": f(1, groups, room, size), "pv": f(1, groups, room, size)}
        n = gqa(["q", "k", "v", "pk", "pv", "sl", "t", "cos", "sin"], do_rotary=1, local_window_size=window, sliding_window_cache=1)
        consts = {"sl": np.array([length + s - 1], I32), "t": np.array(length + s, I32), **turn}
        # Rows behind those that the cache has mean nothing.
        beside, total = room - window + 1, length + s
        has = total - max(0, -(-(total - room) // beside)) * beside
        more = {"zero": np.array([0], I64), "two": np.array([2], I64), "has": np.array([has], I64)}
        cut = [node("Slice", f"{i} zero has two", f"{i}x") for i in ("k1", "v1")]
        row("genai (sliding window)", f"gqa_window_cache_{name}", [n, *cut], data, {**consts, **more}, rtol=1e-5, outputs=["y", "k1x", "v1x"])
    tree = gqa(["q", "k", "v", "pk", "pv", "sl", "t", "", "", "", "b"], local_window_size=4, sliding_window_cache=1)
    data = {**given(1, 1), "pk": f(1, groups, 6, size), "pv": f(1, groups, 6, size), "b": f(1, 1, 1, 10)}
    row("genai (sliding window)", "gqa_window_cache_bias", tree, data, {"sl": np.array([9], I32), "t": np.array(10, I32)}, rtol=1e-5, outputs=["y"])

    def turned(x, w, n):
        x = heads_of(x, n)
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(1e-5)) * w

    def normed(q, k, v, sl, t, qn, kn):
        q, k, v = turned(q, qn, heads), turned(k, kn, groups), heads_of(v, groups)
        x = q @ k.repeat(heads // groups, 1).swapaxes(-1, -2) * np.float32(size ** -0.5)
        x = np.where(np.tril(np.ones(x.shape[-2:], bool)), x, -np.inf)
        return [flat(softmax(x) @ v.repeat(heads // groups, 1)), k.astype(np.float32), v]

    # ONNX Runtime's CPU provider does not take the norms.
    row("genai (Qwen 3)", "gqa_norms", gqa([*names, *[""] * 7, "qn", "kn"], qk_norm_epsilon=1e-5), first, {**lengths, "qn": f(size), "kn": f(size)}, rtol=1e-5, want=normed)
    # A scale for each element of a large range: some new elements are beyond what the bits hold.
    for bits, dtype in ((8, np.int8), (4, U8)):
        for mode in ("PER_TENSOR", "PER_CHANNEL"):
            scale = lambda: np.array([0.05 * 8 / bits], np.float32) if mode == "PER_TENSOR" else np.abs(f(1, groups, 1, size, scale=0.4 / bits)) + np.float32(0.02)
            cache = lambda: q(dtype, 2, groups, past, size * bits // 8)
            feeds = {**given(2, tokens), "pk": cache(), "pv": cache()}
            n = gqa(["q", "k", "v", "pk", "pv", "sl", "t", *[""] * 5, "ks", "vs"], k_quant_type=mode, v_quant_type=mode, kv_cache_bit_width=bits)
            row("genai (quantized cache)", f"gqa_cache_{bits}_{mode.lower()}", n, feeds, {"sl": np.array([past, past - 1], I32), "t": np.array(past + 1, I32), "ks": scale(), "vs": scale()}, rtol=1e-5)


def shared(heads, groups, turn, interleaved):
    """A step whose past and present have one capacity: new keys stand behind those in use."""
    def rotated(x, positions):
        c, s = (turn[n][positions][:, None] for n in ("cos", "sin"))
        if interleaved:
            a, b = x[..., ::2], x[..., 1::2]
            return np.stack([a * c - b * s, a * s + b * c], -1).reshape(x.shape)
        a, b = np.split(x, 2, -1)
        return np.concatenate([a * c - b * s, a * s + b * c], -1)

    def want(q, k, v, pk, pv, sl, **_):
        at = sl.reshape(-1, 1).astype(int)
        q, k, v = rotated(heads_of(q, heads), at), rotated(heads_of(k, groups), at), heads_of(v, groups)
        pk, pv = pk.copy(), pv.copy()
        for b, n in enumerate(at[:, 0]):
            pk[b, :, n], pv[b, :, n] = k[b, :, 0], v[b, :, 0]
        x = q @ pk.repeat(heads // groups, 1).swapaxes(-1, -2) / np.sqrt(np.float32(q.shape[-1]))
        x = np.where(np.arange(pk.shape[2]) <= at[:, None, None], x, -np.inf)
        return [flat(softmax(x) @ pv.repeat(heads // groups, 1)), pk, pv]
    return want


def multi_head():
    """MultiHeadAttention."""
    heads, size, b, s, past = 2, 8, 2, 3, 4
    hidden = heads * size
    three = {n: f(b, s, hidden) for n in "qkv"}
    mha = lambda names, outs="y", **more: ms("MultiHeadAttention", names, outs, num_heads=heads, **more)
    row("transformers optimizer", "mha_plain", mha("q k v"), three, rtol=1e-5)
    row("transformers optimizer (BERT)", "mha_bias", mha("q k v c"), three, {"c": f(3 * hidden)}, rtol=1e-5)
    row("transformers optimizer", "mha_packed", mha("q"), {"q": f(b, s, heads, 3, size)}, rtol=1e-5, want=lambda q: [flat(softmax(q[:, :, :, 0].transpose(0, 2, 1, 3) @ q[:, :, :, 1].transpose(0, 2, 3, 1) / math.sqrt(size)) @ q[:, :, :, 2].transpose(0, 2, 1, 3))])
    row("transformers optimizer (Stable Diffusion)", "mha_packed_kv", mha("q k"), {"q": f(b, s, hidden), "k": f(b, 5, heads, 2, size)}, rtol=1e-5, want=lambda q, k: [flat(softmax(heads_of(q, heads) @ k[:, :, :, 0].transpose(0, 2, 3, 1) / math.sqrt(size)) @ k[:, :, :, 1].transpose(0, 2, 1, 3))])
    row("Whisper, cross attention", "mha_cross", mha("q k v"), {"q": f(b, 1, hidden), "k": f(b, heads, 7, size), "v": f(b, heads, 7, size)}, rtol=1e-5)
    for name, mask in (("ends", np.array([3, 2], I32)), ("keys", RNG.integers(0, 2, (b, s)).astype(I32)), ("pairs", RNG.integers(0, 2, (b, s, s)).astype(I32))):
        row("transformers optimizer", f"mha_mask_{name}", mha(["q", "k", "v", "", "m"], mask_filter_value=-1e4), {**three, "m": mask}, rtol=1e-5)
    old = {"pk": f(b, heads, past, size), "pv": f(b, heads, past, size)}
    names = ["q", "k", "v", "", "", "", "pk", "pv"]
    row("optimum, genai", "mha_step", mha(names, "y k1 v1", unidirectional=1, scale=0.4), {**three, **old}, rtol=1e-5)
    row("optimum", "mha_step_bias", mha(["q", "k", "v", "", "", "a", "pk", "pv"], "y k1 v1"), {**three, **old, "a": f(1, heads, s, past + s)}, rtol=1e-5)
    # Shape inference of ONNX Runtime does not know the type of the scores, which a declared output gives.
    def typed(n):
        def want(**feeds):
            m = quantized.model_of([n], feeds, {}, 17, list(n.output))
            m.graph.output[3].CopyFrom(h.make_tensor_value_info("qk", T.FLOAT, None))
            return quantized.expected(m, feeds)
        return want
    for name, n, feeds in (("", mha("q k v", "y k1 v1 qk"), three), ("_past", mha(names, "y k1 v1 qk", unidirectional=1), {**three, **old}), ("_mask", mha(["q", "k", "v", "", "m"], "y k1 v1 qk"), {**three, "m": np.array([3, 2], I32)})):
        row("Whisper (alignments)", f"mha_scores{name}", n, feeds, rtol=1e-5, want=typed(n))
    room = {"pk": f(b, heads, 9, size), "pv": f(b, heads, 9, size)}
    one = {n: f(b, 1, hidden) for n in "qkv"}

    def appended(q, k, v, pk, pv, n):
        q, k, v = (heads_of(a, heads) for a in (q, k, v))
        pk, pv, n = pk.copy(), pv.copy(), int(n[0])
        pk[:, :, n], pv[:, :, n] = k[:, :, 0], v[:, :, 0]
        x = q @ pk[:, :, :n + 1].swapaxes(-1, -2) / math.sqrt(size)
        return [flat(softmax(x) @ pv[:, :, :n + 1]), pk, pv]
    row("Whisper (buffer sharing)", "mha_shared", mha([*names, "n"], "y k1 v1"), {**one, **room, "n": np.array([5], I32)}, rtol=1e-5, want=appended)


def attention():
    """Attention with its projection."""
    heads, size, b, s, inner, past = 2, 8, 2, 3, 12, 4
    hidden = heads * size
    x, w = {"x": f(b, s, inner)}, {"w": f(inner, 3 * hidden, scale=0.3), "c": f(3 * hidden)}
    att = lambda names, outs="y", **more: ms("Attention", names, outs, num_heads=heads, **more)
    row("transformers optimizer (BERT)", "attention_plain", att("x w c"), x, w, rtol=1e-5)
    for name, mask in (("ends", np.array([3, 2], I32)), ("range", np.array([3, 2, 0, 1], I32)), ("keys", RNG.integers(0, 2, (b, s)).astype(I32)), ("pairs", RNG.integers(0, 2, (b, s, s)).astype(I32)), ("none", np.ones((b, 1), I32))):
        row("transformers optimizer (BERT)", f"attention_mask_{name}", att("x w c m", mask_filter_value=-1e4), {**x, "m": mask}, w, rtol=1e-5)
    square = np.broadcast_to(np.tril(np.ones((16, 16), I32)), (b, 1, 16, 16)).copy()

    def squared(before):
        def want(x, m, w, c, p=None):
            q, k, v = (heads_of(a, heads) for a in np.split(x @ w + c, 3, -1))
            if p is not None:
                k, v = np.concatenate([p[0], k], 2), np.concatenate([p[1], v], 2)
            a = q @ k.swapaxes(-1, -2) / math.sqrt(size) + np.where(m[:, :, before:before + s, :before + s], 0, np.float32(-1e4))
            return [flat(softmax(a) @ v)] + ([np.stack([k, v])] if p is not None else [])
        return want
    # ONNX Runtime's CPU provider does not take these masks.
    row("transformers optimizer (GPT-2, Megatron)", "attention_mask_square", att("x w c m"), {**x, "m": square}, w, rtol=1e-5, want=squared(0))
    old = {"p": f(2, b, heads, past, size)}
    row("transformers optimizer (GPT-2)", "attention_step", att(["x", "w", "c", "", "p"], "y p1", unidirectional=1, scale=0.4), {**x, **old}, w, rtol=1e-5)
    row("transformers optimizer (Megatron)", "attention_square_step", att("x w c m p", "y p1"), {**x, **old, "m": square}, w, rtol=1e-5, want=squared(past))
    row("transformers optimizer", "attention_bias", att(["x", "w", "c", "", "", "a"]), {**x, "a": f(1, heads, s, s)}, w, rtol=1e-5)
    row("transformers optimizer", "attention_sizes", att("x w c", qkv_hidden_sizes=[hidden, hidden, 6]), x, {"w": f(inner, 2 * hidden + 6), "c": f(2 * hidden + 6)}, rtol=1e-5)
    room = {"p": f(2, b, heads, 9, size)}

    def appended(x, p, w, c, n):
        q, k, v = (heads_of(a, heads) for a in np.split(x @ w + c, 3, -1))
        p, n = p.copy(), int(n[0])
        p[0, :, :, n:n + 1], p[1, :, :, n:n + 1] = k, v
        a = q @ p[0, :, :, :n + 1].swapaxes(-1, -2) / math.sqrt(size)
        return [flat(softmax(a) @ p[1, :, :, :n + 1]), p]
    row("transformers optimizer (GPT-2, greedy search)", "attention_shared", att(["x", "w", "c", "", "p", "", "n"], "y p1", unidirectional=1, past_present_share_buffer=1), {"x": f(b, 1, inner), **room, "n": np.array([5], I32)}, w, rtol=1e-5, want=appended)


PARTS = {"nbits": nbits, "blocked_floats": blocked_floats, "bnb4": bnb4, "gathered": gathered, "experts": experts, "group_query": group_query, "multi_head": multi_head, "attention": attention}

# What is not taken, and a word of what the compiler says: operator, input or attribute, its value, the word.
REFUSED = [
    ("MatMulNBits", "weight_prepacked", 1, "laid out for one GPU"),
    ("QMoE", "use_sparse_mixer", 1, "sparse mixer"),
    ("QMoE", "quant_type", "fp4", "integers of whole tensors"),
    ("QMoE", "weights_prepacked", 1, "integers of whole tensors"),
    *(("QMoE", n, f(2), "integers of whole tensors") for n in ("fc1_global_scale", "fc2_global_scale", "fc1_act_scale", "fc2_act_scale")),
    *(("QMoE", n, f(2, 2, 2), "integers of whole tensors") for n in ("fc1_act_block_scale", "fc2_act_block_scale")),
    ("MultiHeadAttention", "cache_indirection", np.zeros((1, 2, 9), I32), "cache_indirection is not supported"),
    ("Attention", "do_rotary", 1, "do_rotary"),
    ("Attention", "rotary_embedding_dim", 32, None),
]


def schemas():
    """The names of inputs, outputs and attributes of the operators."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "compiler", "ops", "schema.txt")
    out = {}
    for line in open(path):
        parts = line.split("|")
        if parts[0].split()[:1] == ["com.microsoft"] and parts[0].split()[1] in OPERATORS:
            names = lambda part: [n.split(":")[0] for n in part.split()[1:]]
            out[parts[0].split()[1]] = (names(parts[1]), names(parts[2]), [n.split(":")[0] for n in parts[4].split()])
    return out


def unused():
    """What no row uses and REFUSED does not list."""
    known, used = schemas(), {(op, name) for op, name, *_ in REFUSED}
    for _, _, nodes in ROWS:
        for n in nodes:
            if n.op_type in known and n.domain == quantized.MS:
                ins, outs, _ = known[n.op_type]
                used |= {(n.op_type, name) for names, have in ((ins, n.input), (outs, n.output)) for name, v in zip(names, have) if v}
                used |= {(n.op_type, a.name) for a in n.attribute}
    return [f"{op} {name}: no row uses it" for op, lists in known.items() for names in lists for name in names if (op, name) not in used]


def refusals(onnxc):
    """Models with what is not taken, each of a row that is taken without it."""
    bad, known = [], schemas()
    base = {n.op_type: (n, feeds, consts) for n, feeds, consts in BASES}
    with tempfile.TemporaryDirectory() as work:
        for op, name, v, word in REFUSED:
            if word is None:
                continue
            n, feeds, consts = base[op]
            n = onnx.NodeProto.FromString(n.SerializeToString())
            feeds = dict(feeds)
            if isinstance(v, np.ndarray):
                i = known[op][0].index(name)
                n.input.extend([""] * (i + 1 - len(n.input)))
                n.input[i] = "more"
                feeds["more"] = v.astype(np.float32) if v.dtype.kind == "f" else v
            else:
                for a in [a for a in n.attribute if a.name == name]:
                    n.attribute.remove(a)
                n.attribute.append(h.make_attribute(name, v))
            m = quantized.model_of([n], feeds, consts, 17, [o for o in n.output if o])
            for o in m.graph.output:
                o.CopyFrom(h.make_tensor_value_info(o.name, T.FLOAT, None))
            path = os.path.join(work, "m.onnx")
            onnx.save(m, path)
            r = subprocess.run([onnxc, path, "-o", os.path.join(work, "m.o")], capture_output=True, text=True)
            if r.returncode != 1 or word not in r.stderr:
                bad.append(f"{op} {name}: exit code {r.returncode}: {r.stderr[:300]}")
    return bad


def bases():
    """A plain model of each operator that REFUSED is about."""
    x = {"x": f(3, 32), "r": f(3, 2)}
    yield ms("MatMulNBits", "a b s", K=32, N=8, bits=4, block_size=32), {"a": f(2, 32)}, {"b": q(U8, 8, 1, 16), "s": f(8, 1)}
    yield ms("QMoE", ["x", "r", "w", "s", "", "w", "s"], k=1), x, {"w": q(U8, 2, 32, 16), "s": np.abs(f(2, 32))}
    yield ms("MultiHeadAttention", "q k v", num_heads=2), {n: f(1, 3, 16) for n in "qkv"}, {}
    yield ms("Attention", "x w c", num_heads=2), {"x": f(1, 3, 8)}, {"w": f(8, 48), "c": f(48)}


BASES = list(bases())


# Kilobytes of code on all levels, of more than one product.
CODE = {"qmoe": 1024}


def large():
    """Products whose weights stand once in the object, as they are: no larger than the model by more than a twentieth, and code."""
    rows, depth, block = 4096, 512, 32
    blocks, ids = depth // block, {"i": np.array([[1, rows - 1]], I64)}
    codes = {"d": q(U8, rows, blocks, block // 2), "s": np.abs(f(rows, blocks, scale=0.1)), "flat": np.array([rows, -1], I64)}
    product = ms("MatMulNBits", "e d s", K=depth, N=rows, bits=4, block_size=block)
    yield "tied", [node("Reshape", "d flat", "rows"), ms("GatherBlockQuantized", "rows i s", "e", bits=4, block_size=block), product], ids, codes
    x = {"a": f(2, depth)}
    shuffled = {"g": (RNG.permutation(depth) // block).astype(I32)}
    yield "act_order", [ms("MatMulNBits", ["a", "d", "s", "", "g"], K=depth, N=rows, bits=4, block_size=block)], x, {**{k: codes[k] for k in "ds"}, **shuffled}
    bits = {"b": q(U8, rows * depth // 2), "m": np.abs(f(rows * depth // 64))}
    yield "bnb4", [ms("MatMulBnb4", "a b m", K=depth, N=rows, block_size=64, quant_type=1)], x, bits
    experts = {"w1": q(U8, 4, 2048, depth // 2), "s1": np.abs(f(4, 2048, blocks)), "w2": q(U8, 4, depth, 512), "s2": np.abs(f(4, depth, 1024 // block))}
    yield "qmoe", [ms("QMoE", ["a", "r", "w1", "s1", "", "w2", "s2"], "y", k=2, activation_type="swiglu", swiglu_fusion=1, block_size=block)], {**x, "r": f(2, 4)}, experts
    for kind in (T.FLOAT8E4M3FN, T.FLOAT4E2M1):
        bytes_ = RNG.integers(0, 120, rows * depth * (4 if kind == T.FLOAT4E2M1 else 8) // 8).astype(U8).tobytes()
        powers = RNG.integers(120, 128, depth // block * rows).astype(U8).tobytes()
        consts = {"w": h.make_tensor("w", kind, [depth, rows], bytes_, raw=True), "p": h.make_tensor("p", T.FLOAT8E8M0, [depth // block, rows], powers, raw=True)}
        yield T.DataType.Name(kind).lower(), [node("DequantizeLinear", "w p", "d", axis=0, block_size=block, output_dtype=T.FLOAT), node("MatMul", "a d")], x, consts


def sizes(onnxc):
    bad = []
    with tempfile.TemporaryDirectory() as work:
        for name, nodes, feeds, consts in large():
            path = os.path.join(work, name)
            m = quantized.model_of(nodes, feeds, consts, 24, ["y"])
            m.graph.output[0].CopyFrom(h.make_tensor_value_info("y", T.FLOAT, None))
            onnx.save(m, path + ".onnx")
            subprocess.run([onnxc, path + ".onnx", "-o", path + ".o"], check=True, capture_output=True)
            model, made = (os.path.getsize(path + e) for e in (".onnx", ".o"))
            if made > 1.05 * model + (CODE.get(name, 128) << 10):
                bad.append(f"{name}: an object of {made} bytes from a model of {model}")
    return bad

if __name__ == "__main__":
    failed = quantized.main(PARTS)
    problems = [] if "--only" in sys.argv else unused() + refusals(os.path.abspath(sys.argv[1])) + sizes(os.path.abspath(sys.argv[1]))
    print(*problems, f"{len(ROWS)} rows of {len({e for e, *_ in ROWS})} exporters, {len(REFUSED)} forms refused, {len(problems)} problems", sep="\n")
    sys.exit(1 if failed or problems else 0)
