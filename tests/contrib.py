#!/usr/bin/env python3
"""Operators of com.microsoft that become others, against ONNX Runtime, or against numpy where its CPU has no kernel.

    contrib.py ONNXC [--only PART] [-O LEVEL]
"""
import math
import sys

import numpy as np
import onnxruntime as ort
import quantized
from quantized import RNG, case, f, ms, q

I32, I64 = np.int32, np.int64


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def packed():
    """Without padding between sequences."""
    counts, length, heads, size = np.array([2, 4, 1], I32), 4, 2, 8
    hidden = heads * size
    real = np.arange(length) < counts[:, None]
    offsets = np.concatenate([np.flatnonzero(real), np.flatnonzero(~real)]).astype(I32).reshape(3, length)
    ends = np.concatenate([[0], np.cumsum(counts)]).astype(I32)
    tokens = int(counts.sum())
    x = f(3, length, 6)
    case("remove_padding", ms("RemovePadding", "x n", "y o c m"), {"x": x, "n": counts}, want=lambda x, n: [x[real], offsets, ends, np.array([4], I32)])
    case("restore_padding", ms("RestorePadding", "x o"), {"x": x[real], "o": offsets}, want=lambda x, o: [np.where(real[..., None], np.concatenate([x, np.zeros((1, 6), np.float32)])[np.cumsum(real).reshape(real.shape) - 1], 0).astype(np.float32)])

    def attended(q, k, v, bias=None, scale=None):
        out = []
        for b, (start, end) in enumerate(zip(ends, ends[1:])):
            part = [a[start:end].reshape(end - start, heads, -1).transpose(1, 0, 2) for a in (q, k, v)]
            s = part[0] @ part[1].transpose(0, 2, 1) * (scale or 1 / math.sqrt(size))
            s = s + bias[b % len(bias), :, :end - start, :end - start] if bias is not None else s
            out.append((softmax(s) @ part[2]).transpose(1, 0, 2).reshape(end - start, -1))
        return [np.concatenate(out).astype(np.float32)]

    bias = f(1, heads, length, length)
    case("packed_attention", ms("PackedAttention", "x w b o c", num_heads=heads), {"x": f(tokens, 6), "o": offsets, "c": ends}, {"w": f(6, 3 * hidden), "b": f(3 * hidden)}, rtol=1e-5,
         want=lambda x, w, b, o, c: attended(*np.split(x @ w + b, 3, 1)))
    case("packed_attention_bias", ms("PackedAttention", "x w b o c a", num_heads=heads, scale=0.3), {"x": f(tokens, 6), "o": offsets, "c": ends, "a": bias}, {"w": f(6, 3 * hidden), "b": f(3 * hidden)}, rtol=1e-5,
         want=lambda x, w, b, o, c, a: attended(*np.split(x @ w + b, 3, 1), bias=a, scale=0.3))
    case("packed_heads", ms("PackedMultiHeadAttention", "q k v b o c", num_heads=heads), {"q": f(tokens, hidden), "k": f(tokens, hidden), "v": f(tokens, hidden), "o": offsets, "c": ends}, {"b": f(3 * hidden)}, rtol=1e-5,
         want=lambda q, k, v, b, o, c: attended(*(a + d for a, d in zip((q, k, v), np.split(b, 3)))))
    case("packed_heads_together", ms("PackedMultiHeadAttention", ["q", "", "", "", "o", "c"], num_heads=heads), {"q": f(tokens, heads, 3, size), "o": offsets, "c": ends}, rtol=1e-5,
         want=lambda q, o, c: attended(*(q[:, :, i].reshape(tokens, hidden) for i in range(3))))

    def buckets(distance, both, n, most):
        base = np.zeros_like(distance)
        if both:
            n //= 2
            base, distance = np.where(distance > 0, n, 0), np.abs(distance)
        else:
            distance = np.maximum(-distance, 0)
        exact = n // 2
        far = exact + (np.log(np.maximum(distance, 1) / np.float32(exact)) / np.float32(math.log(most / exact)) * (n - exact)).astype(I64)
        return base + np.where(distance < exact, distance, np.minimum(far, n - 1))

    for both in (0, 1):
        case(f"relative_bias_{both}", ms("RelativePositionBias", "t q k", max_distance=20, is_bidirectional=both), {"t": f(8, 3)}, {"q": np.array(37, I64), "k": np.array(37, I64)},
             want=lambda t, q, k, both=both: [t.reshape(3, 8)[:, buckets(np.arange(37) - np.arange(37)[:, None], both, 8, 20)][None]])

    def gated(x, b, r, w, c, e, o=None):
        v = (x + b).reshape(2, 5, heads, size).transpose(0, 2, 1, 3) @ w + c
        u, s = np.split(sigmoid(v.reshape(2, heads, 5, 2, -1).sum(-1)), 2, -1)
        return [((u * (s * e - 1) + 2) * r).astype(np.float32)]

    case("gated_bias", ms("GatedRelativePositionBias", "x b r w c e", num_heads=heads), {"x": f(2, 5, hidden), "r": f(1, heads, 5, 5)}, {"b": f(hidden), "w": f(size, 6), "c": f(6), "e": f(1, heads, 1, 1)}, rtol=1e-5, want=gated)


def streams():
    """Several streams of features, and what else is made of a few nodes."""
    x, flat = f(2, 3, 4, 6), f(2, 3, 24)
    for name, v, more in (("", x, {}), ("_flat", flat, {"num_branches": 4})):
        for kind, gates in (("streams", f(2, 3, 4)), ("column", f(2, 3, 4, 1)), ("features", f(2, 3, 4, 6))):
            case(f"pre_mix_{kind}{name}", ms("HyperConnectionPreMix", "x g", reduction_scale=0.5, **more), {"x": v, "g": gates}, rtol=1e-5)
            case(f"post_mix_{kind}{name}", ms("HyperConnectionPostMix", "x b g m", **more), {"x": v, "b": f(2, 3, 6), "g": gates, "m": f(2, 3, 4, 4)}, rtol=1e-5)
    case("pre_mix_all_flat", ms("HyperConnectionPreMix", "x g", num_branches=4), {"x": flat, "g": f(2, 3, 24)}, rtol=1e-5)
    case("post_mix_alone", ms("HyperConnectionPostMix", "x b g"), {"x": x, "b": f(2, 3, 6), "g": f(2, 3, 4)}, rtol=1e-5)
    case("engram", ms("EngramGate", "k q v a b c", "y n", epsilon=1e-6), {"k": x, "q": f(2, 3, 4, 6), "v": f(2, 3, 6)}, {"a": f(4, 6), "b": f(4, 6), "c": f(4, 6)}, rtol=1e-5)
    case("engram_alone", ms("EngramGate", "k q v a b"), {"k": x, "q": f(2, 3, 4, 6), "v": f(2, 3, 6)}, {"a": f(4, 6), "b": f(4, 6)}, rtol=1e-5)
    positions = RNG.integers(0, 9, (3, 2, 5)).astype(I64)
    for layout, sections in ((0, [2, 1, 1]), (1, [2, 1, 1]), (0, [4, 0, 0])):
        for interleaved in (0, 1):
            for name, shape in (("", (2, 5, 24)), ("_heads", (2, 3, 5, 8))):
                case(f"rotary_{layout}_{sections[0]}_{interleaved}{name}", ms("MRotaryEmbedding", "x p c s", mrope_section=sections, mrope_layout=layout, interleaved=interleaved, **({} if name else {"num_heads": 3})), {"x": f(*shape), "p": positions}, {"c": f(9, 4), "s": f(9, 4)}, rtol=1e-5)
    case("rotary_partial", ms("MRotaryEmbedding", "x p c s", mrope_section=[2, 1, 1], num_heads=3, rotary_embedding_dim=8), {"x": f(2, 5, 36), "p": positions}, {"c": f(9, 4), "s": f(9, 4)}, rtol=1e-5)
    half = lambda *n: f(*n).astype(np.float16)
    case("gemma_rotary", ms("GemmaRotaryEmbedding", "e q r k t", "y z"), {"e": f(2, 5, 8), **{n: half(2, 3, 5, 8) for n in "qrkt"}}, rtol=2e-3,
         want=lambda e, q, r, k, t: [(a * np.cos(e)[:, None].astype(np.float16) + b * np.sin(e)[:, None].astype(np.float16)).astype(np.float16) for a, b in ((q, r), (k, t))])
    real = lambda c: np.stack([c.real, c.imag], -1).astype(np.float32)
    case("rfft", ms("Rfft", "x", signal_ndim=1), {"x": f(3, 10)}, rtol=1e-5, want=lambda x: [real(np.fft.rfft(x))])
    case("irfft", ms("Irfft", "x", signal_ndim=1), {"x": real(np.fft.rfft(f(3, 10)))}, rtol=1e-5, want=lambda x: [np.fft.irfft(x[..., 0] + 1j * x[..., 1]).astype(np.float32)])
    ones = lambda n: np.full(-(-n // 32), 2 ** 32 - 1, np.uint32)
    case("bitmask_dropout", ms("BitmaskDropout", "x", "y m"), {"x": f(5, 9)}, want=lambda x: [x, ones(45)])
    case("bitmask_bias_dropout", ms("BitmaskBiasDropout", "x b r", "y m"), {"x": f(5, 9), "b": f(9), "r": f(5, 9)}, rtol=1e-6, want=lambda x, b, r: [x + b + r, ones(45)])
    for name, more, function in (("Relu", {}, lambda v: np.maximum(v, 0)), ("LeakyRelu", {"activation_alpha": 0.2}, lambda v: np.where(v > 0, v, v * np.float32(0.2))), ("Softmax", {"activation_axis": -1}, softmax)):
        case(f"matmul_{name.lower()}", ms("FusedMatMulActivation", "a b", transB=1, alpha=0.5, activation=name, **more), {"a": f(3, 6)}, {"b": f(4, 6)}, rtol=1e-5, want=lambda a, b, function=function: [function(a @ b.T * np.float32(0.5))])

    def weights(b, s):
        v = np.stack([b & 15, b >> 4], -1).reshape(len(b), -1).astype(np.float32) - 8
        return v * np.repeat(s.reshape(len(b), -1), 32, 1)

    def norm(x, g):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(1e-5)) * g

    bits = lambda n: q(np.uint8, n, 2, 16)
    own = lambda n: np.abs(f(n, 2, scale=0.1))

    def mlp(x, gb, gs, ub, us, k=0, g=None, c=0):
        v = norm(x + k, g) if g is not None else x
        gate = v @ weights(gb, gs).T + c
        return [gate * sigmoid(gate) * (v @ weights(ub, us).T)] + ([x + k] if np.ndim(k) else [])

    consts = {"gb": bits(24), "gs": own(24), "ub": bits(24), "us": own(24)}
    at = dict(K=64, N=24, bits=4, block_size=32, activation="silu")
    case("nbits_mlp", ms("MatMulNBitsMlp", ["x", "", "", "gb", "gs", "", "ub", "us"], **at), {"x": f(3, 64)}, consts, rtol=1e-4, want=mlp)
    case("nbits_mlp_norm", ms("MatMulNBitsMlp", ["x", "", "g", "gb", "gs", "c", "ub", "us"], **at), {"x": f(3, 64)}, {**consts, "g": f(64), "c": f(24)}, rtol=1e-4, want=mlp)
    case("nbits_mlp_skip", ms("MatMulNBitsMlp", ["x", "k", "g", "gb", "gs", "", "ub", "us"], "y s", **at), {"x": f(3, 64), "k": f(3, 64)}, {**consts, "g": f(64)}, rtol=1e-4, want=mlp)

    def qkv(x, g, qb, qs, kb, ks, vb, vs, k=0, c=0):
        v = norm(x + k, g)
        return [v @ weights(qb, qs).T + c, v @ weights(kb, ks).T, v @ weights(vb, vs).T] + ([x + k] if np.ndim(k) else [])

    consts = {"g": f(64), "qb": bits(24), "qs": own(24), "kb": bits(8), "ks": own(8), "vb": bits(8), "vs": own(8)}
    at = dict(K=64, Nq=24, Nkv=8, bits=4, block_size=32)
    case("nbits_qkv", ms("MatMulNBitsQkv", ["x", "", "g", "qb", "qs", "c", "kb", "ks", "", "vb", "vs"], "a b c1", **at), {"x": f(3, 64)}, {**consts, "c": f(24)}, rtol=1e-4, want=qkv)
    case("nbits_qkv_skip", ms("MatMulNBitsQkv", ["x", "k", "g", "qb", "qs", "", "kb", "ks", "", "vb", "vs"], "a b c1 s", **at), {"x": f(3, 64), "k": f(3, 64)}, consts, rtol=1e-4, want=qkv)


def sparse():
    """Attention over some of the keys."""
    heads, groups, size, block, room = 4, 2, 16, 16, 64
    rows = np.array([[0, 1, 3, 5, 8], [0, 1, 3, 6, 9]], I32)
    columns = np.array([[0, 0, 1, 1, 2, 1, 2, 3, -1], [0, 0, 1, 0, 1, 2, 0, 2, 3]], I32)
    cache = lambda: f(2, groups, room, size)
    turn = {"cos": f(room, size // 2), "sin": f(room, size // 2)}

    def bound(n, feeds, consts):
        """ONNX Runtime wants the caches to be written where they are."""
        m = quantized.model_of([n], feeds, consts, 17, list(n.output))
        binding = (session := ort.InferenceSession(m.SerializeToString(), providers=["CPUExecutionProvider"])).io_binding()
        held = {k: ort.OrtValue.ortvalue_from_numpy(v.copy()) for k, v in feeds.items()}
        for k, v in held.items():
            binding.bind_ortvalue_input(k, v)
        binding.bind_output("y")
        for k in ("pk", "pv"):
            binding.bind_ortvalue_output(f"{k}2", held[k])
        session.run_with_iobinding(binding)
        return binding.copy_outputs_to_cpu()

    def defined(caches, q, t, n, r, c):
        """ONNX Runtime misses rows of sequences that are shorter than others."""
        length, out = q.shape[1], np.zeros((*q.shape[:2], heads, size), np.float32)
        for b, h, i in np.ndindex(len(q), heads, length):
            own = i + (0 if t[0] == length else n[b] - length)
            line = r[h % 2, own // block:][:2]
            read = np.isin(np.arange(own + 1) // block, c[h % 2, line[0]:line[1]])
            keys, values = (a[b, h // (heads // groups), :own + 1][read] for a in caches)
            out[b, i, h] = softmax(keys @ q[b, i, h * size:(h + 1) * size] / math.sqrt(size)) @ values
        return [out.reshape(q.shape), *caches]

    def attended(name, names, feeds, consts, **attributes):
        n = ms("SparseAttention", names, "y pk2 pv2", **attributes)
        want = bound(n, feeds, consts)
        if len(set(feeds["n"] if "n" in feeds else consts["n"])) > 1:
            want = defined(want[1:], *(feeds[k] for k in "qtn"), consts["r"], consts["c"])
        case(name, n, feeds, consts, rtol=1e-5, want=lambda **_: want)

    at = dict(num_heads=heads, kv_num_heads=groups, sparse_block_size=block)
    for name, length, total, lengths in (("prompt", 40, 40, [40, 40]), ("padded", 40, 40, [40, 33]), ("step", 1, 41, [41, 34]), ("far", 1, 60, [60, 60])):
        for rotary in (0, 1) if len(set(lengths)) == 1 else (0,):
            feeds = {"q": f(2, length, heads * size), "k": f(2, length, groups * size), "v": f(2, length, groups * size), "pk": cache(), "pv": cache()}
            sizes = {"t": np.array([total], I32), "n": np.array(lengths, I32)}
            names = ["q", "k", "v", "pk", "pv", "r", "c", "t", "n", *(turn if rotary else ())]
            # Rows of padding are anything.
            attended(f"sparse_{name}_{rotary}", names, {**feeds, **sizes}, {"r": rows, "c": columns, **(turn if rotary else {})}, do_rotary=rotary, **at)
    attended("sparse_packed", ["q", "", "", "pk", "pv", "r", "c", "t", "n"], {"q": f(2, 20, (heads + 2 * groups) * size), "pk": cache(), "pv": cache()},
             {"r": rows, "c": columns, "t": np.array([20], I32), "n": np.array([20, 20], I32)}, scale=0.3, **at)

    def longformer(x, w, b, m, gw, gb, g, window=2, heads=2):
        part = lambda w, b: [a.reshape(2, 8, heads, -1).transpose(0, 2, 1, 3) for a in np.split(x @ w + b, 3, 2)]
        i, (q1, k1, v1), (q2, k2, v2) = np.arange(8), part(w, b), part(gw, gb)
        seen = (np.abs(i - i[:, None]) <= window)[None] | (g[:, None] > 0)
        score = lambda q, k: q @ k.transpose(0, 1, 3, 2) / math.sqrt(q.shape[-1]) + m[:, None, None]
        near = softmax(np.where(seen[:, None], score(q1, k1), -np.inf)) @ v1
        v = np.where(g[:, None, :, None] > 0, softmax(score(q2, k2)) @ v2, near)
        return [v.transpose(0, 2, 1, 3).reshape(x.shape).astype(np.float32)]

    feeds = {"x": f(2, 8, 12), "m": np.where(np.arange(8) < [[8], [6]], 0, -10000).astype(np.float32), "g": np.array([[1, 0, 0, 0, 0, 1, 0, 0], [1] + [0] * 7], I32)}
    case("longformer", ms("LongformerAttention", "x w b m gw gb g", num_heads=2, window=2), feeds, {"w": f(12, 36), "b": f(36), "gw": f(12, 36), "gb": f(36)}, rtol=1e-5, want=longformer)


def decoding():
    """Hashes, n-grams that must not repeat, ways through costs."""
    words = np.array(["", "a", "ab", "abc", "abcd", "hello world", "日本語", "x" * 37], object)
    for positive in (0, 1):
        for seed in (0, 42, 2**32 - 5):
            for name, x in (("int32", RNG.integers(-2**31, 2**31, 20).astype(I32)), ("uint32", RNG.integers(0, 2**32, 20).astype(np.uint32)), ("int64", RNG.integers(-2**62, 2**62, 20)), ("float", f(20)), ("double", RNG.standard_normal(20)), ("text", words)):
                case(f"murmur_{name}_{positive}_{seed}", ms("MurmurHash3", "x", positive=positive, seed=seed), {"x": x}, want=lambda x, positive=positive, seed=seed: [hashed(x, seed).view(np.uint32 if positive else I32)])
    for n in (1, 2, 3, 9):
        case(f"repeat_block_{n}", ms("NGramRepeatBlock", "i s", ngram_size=n), {"i": RNG.integers(0, 3, (4, 7)).astype(I64), "s": f(4, 6)})
    for shape in ((5, 7), (1, 9, 4), (1, 1), (1, 6), (6, 1)):
        case(f"warping_{'_'.join(map(str, shape))}", ms("DynamicTimeWarping", "x"), {"x": f(*shape)})
    case("warping_ties", ms("DynamicTimeWarping", "x"), {"x": np.ones((5, 7), np.float32)})


def hashed(x, seed):
    """MurmurHash3_x86_32."""
    rotated = lambda v, by: (v << by | v >> (32 - by)) & 0xFFFFFFFF
    out = []
    for v in x:
        data, h = v.encode() if isinstance(v, str) else v.tobytes(), seed
        for i in range(0, len(data), 4):
            part = data[i:i + 4]
            h ^= rotated(int.from_bytes(part, "little") * 0xCC9E2D51 & 0xFFFFFFFF, 15) * 0x1B873593 & 0xFFFFFFFF
            if len(part) == 4:
                h = (rotated(h, 13) * 5 + 0xE6546B64) & 0xFFFFFFFF
        h ^= len(data)
        h = (h ^ h >> 16) * 0x85EBCA6B & 0xFFFFFFFF
        h = (h ^ h >> 13) * 0xC2B2AE35 & 0xFFFFFFFF
        out.append(h ^ h >> 16)
    return np.array(out, np.uint32)


if __name__ == "__main__":
    sys.exit(quantized.main({"packed": packed, "streams": streams, "decoding": decoding, "sparse": sparse}))
