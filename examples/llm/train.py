"""Trains the byte model of this example on the project's documentation, with numpy alone, and writes model.onnx.

    train.py [--steps 1600] [--out model.onnx] [TEXT...]

A decoder as language models have it: RMS normalization, rotary positions, causal attention with a cache, a gated
feed-forward part. Weights are int8 in blocks of 32 with a scale each (DequantizeLinear), opset 23. Needs numpy and onnx.
"""
import argparse
import pathlib
import time

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[2]
TEXTS = ["README.md", "ARCHITECTURE.md", "BENCHMARKS.md", "SECURITY.md", "docs/style.md", "compiler/ops/README.md"]
LAYERS, WIDTH, HEADS, SIZE, INNER, CONTEXT, BLOCK = 3, 128, 4, 32, 256, 256, 32
POSITIONS = CONTEXT
EPSILON = 1e-6
F = np.float32


def parameters(rng):
    def normal(*shape, gain=1.0):
        return (gain / np.sqrt(shape[0]) * rng.standard_normal(shape)).astype(F)
    p = {"embedding": (0.05 * rng.standard_normal((256, WIDTH))).astype(F), "norm": np.ones(WIDTH, F)}
    for i in range(LAYERS):
        p |= {f"{i}.n1": np.ones(WIDTH, F), f"{i}.n2": np.ones(WIDTH, F), f"{i}.qkv": normal(WIDTH, 3 * WIDTH), f"{i}.o": normal(WIDTH, WIDTH, gain=0.4),
              f"{i}.gate": normal(WIDTH, INNER), f"{i}.up": normal(WIDTH, INNER), f"{i}.down": normal(INNER, WIDTH, gain=0.4)}
    return p


def angles():
    a = np.arange(POSITIONS)[:, None] * 1e4 ** (-np.arange(0, SIZE, 2) / SIZE)[None]
    return np.cos(a).astype(F), np.sin(a).astype(F)


COS, SIN = angles()


def turn(x, sign=1):
    """Rotary positions: pairs of elements half a head apart. The inverse with sign -1."""
    t = x.shape[-2]
    a, b = x[..., :SIZE // 2], x[..., SIZE // 2:]
    c, s = COS[:t], sign * SIN[:t]
    return np.concatenate([a * c - b * s, b * c + a * s], -1)


def norm(x, g):
    r = 1 / np.sqrt((x * x).mean(-1, keepdims=True) + EPSILON)
    return x * r * g, (x, r, g)


def norm_back(d, saved):
    x, r, g = saved
    n = x * r
    dn = d * g
    return r * (dn - n * (dn * n).mean(-1, keepdims=True)), (d * n).reshape(-1, x.shape[-1]).sum(0)


def flat(x):
    return x.reshape(-1, x.shape[-1])


def loss_and_gradient(p, tokens, targets):
    b, t = tokens.shape
    heads = lambda x: x.reshape(b, t, HEADS, SIZE).transpose(0, 2, 1, 3)
    joined = lambda x: x.transpose(0, 2, 1, 3).reshape(b, t, WIDTH)
    future = np.triu(np.full((t, t), -1e9, F), 1)
    x, saved = p["embedding"][tokens], []
    for i in range(LAYERS):
        h, n1 = norm(x, p[f"{i}.n1"])
        q, k, v = (heads(y) for y in np.split(h @ p[f"{i}.qkv"], 3, -1))
        q, k = turn(q), turn(k)
        s = q @ k.transpose(0, 1, 3, 2) * F(SIZE ** -0.5) + future
        s = np.exp(s - s.max(-1, keepdims=True))
        s /= s.sum(-1, keepdims=True)
        o = joined(s @ v)
        x = x + o @ p[f"{i}.o"]
        h2, n2 = norm(x, p[f"{i}.n2"])
        a, u = h2 @ p[f"{i}.gate"], h2 @ p[f"{i}.up"]
        sigma = 1 / (1 + np.exp(-a))
        m = a * sigma * u
        x = x + m @ p[f"{i}.down"]
        saved.append((h, n1, q, k, v, s, o, h2, n2, a, u, sigma, m))
    y, last = norm(x, p["norm"])
    z = y @ p["embedding"].T
    z -= z.max(-1, keepdims=True)
    e = np.exp(z)
    probability = e / e.sum(-1, keepdims=True)
    at = (np.arange(b)[:, None], np.arange(t)[None], targets)
    loss = -np.log(probability[at] + 1e-9).mean()
    d = probability
    d[at] -= 1
    d /= b * t
    g = {"embedding": flat(d).T @ flat(y)}
    dx, g["norm"] = norm_back(d @ p["embedding"], last)
    for i in reversed(range(LAYERS)):
        h, n1, q, k, v, s, o, h2, n2, a, u, sigma, m = saved[i]
        g[f"{i}.down"] = flat(m).T @ flat(dx)
        dm = dx @ p[f"{i}.down"].T
        du = dm * a * sigma
        da = dm * u * sigma * (1 + a * (1 - sigma))
        g[f"{i}.gate"], g[f"{i}.up"] = flat(h2).T @ flat(da), flat(h2).T @ flat(du)
        dn, g[f"{i}.n2"] = norm_back(da @ p[f"{i}.gate"].T + du @ p[f"{i}.up"].T, n2)
        dx = dx + dn
        g[f"{i}.o"] = flat(o).T @ flat(dx)
        do = heads(dx @ p[f"{i}.o"].T)
        dv, ds = s.transpose(0, 1, 3, 2) @ do, do @ v.transpose(0, 1, 3, 2)
        ds = s * (ds - (ds * s).sum(-1, keepdims=True)) * F(SIZE ** -0.5)
        dq, dk = turn(ds @ k, -1), turn(ds.transpose(0, 1, 3, 2) @ q, -1)
        dqkv = np.concatenate([joined(dq), joined(dk), joined(dv)], -1)
        g[f"{i}.qkv"] = flat(h).T @ flat(dqkv)
        dn, g[f"{i}.n1"] = norm_back(dqkv @ p[f"{i}.qkv"].T, n1)
        dx = dx + dn
    np.add.at(g["embedding"], tokens, dx)
    return loss, g


def train(text, steps, seed=1):
    rng = np.random.default_rng(seed)
    data, p = np.frombuffer(text, np.uint8), parameters(rng)
    first, second = ({k: np.zeros_like(v) for k, v in p.items()} for _ in range(2))
    start, mean = time.time(), None
    for step in range(1, steps + 1):
        at = rng.integers(0, len(data) - CONTEXT - 1, 4)[:, None] + np.arange(CONTEXT + 1)[None]
        loss, g = loss_and_gradient(p, data[at[:, :-1]], data[at[:, 1:]])
        mean = loss if mean is None else 0.98 * mean + 0.02 * loss
        rate = 3e-3 * min(1, step / 100) * (0.05 + 0.95 * 0.5 * (1 + np.cos(np.pi * step / steps)))
        clip = min(1, 1 / (np.sqrt(sum(float((x * x).sum()) for x in g.values())) + 1e-9))
        for k in p:
            d = g[k] * F(clip)
            first[k] += F(0.1) * (d - first[k])
            second[k] += F(0.02) * (d * d - second[k])
            move = (first[k] / F(1 - 0.9 ** step)) / (np.sqrt(second[k] / F(1 - 0.98 ** step)) + F(1e-8))
            p[k] -= F(rate) * (move + (F(0.05) * p[k] if p[k].ndim == 2 else 0))
        if step % 100 == 0:
            print(f"{step:5} {mean:.3f} nats a byte, {time.time() - start:.0f} s", flush=True)
    return p


def export(p, path):
    import onnx
    from onnx import TensorProto as T
    from onnx import helper as H
    from onnx import numpy_helper as N
    nodes, inits = [], []

    def init(name, a):
        inits.append(N.from_array(np.asarray(a, order="C"), name))
        return name

    def node(op, inputs, *outputs, **attributes):
        nodes.append(H.make_node(op, inputs, list(outputs), **attributes))
        return outputs[0]

    def linear(x, name, y):
        w = p[name].reshape(-1, BLOCK, p[name].shape[1])
        scale = np.maximum(abs(w).max(1), 1e-9) / 127
        codes = np.clip(np.rint(w / scale[:, None]), -127, 127).astype(np.int8).reshape(p[name].shape)
        node("DequantizeLinear", [init(name, codes), init(name + ".scale", scale.astype(F))], name + ".f", axis=0, block_size=BLOCK)
        return node("MatMul", [x, name + ".f"], y)

    init("cos", COS), init("sin", SIN), init("zero", np.array(0)), init("one", np.array(1)), init("two", np.array(2)), init("minus", np.array(-1)), init("axis", np.array([0]))
    node("Shape", ["past.0.key"], "past_shape"), node("Gather", ["past_shape", "two"], "begin")
    node("Shape", ["text"], "text_shape"), node("Gather", ["text_shape", "one"], "count")
    node("Add", ["begin", "count"], "end"), node("Range", ["begin", "end", "one"], "range"), node("Unsqueeze", ["range", "axis"], "positions")
    node("Cast", ["text"], "ids", to=T.INT32)
    x = node("Gather", [init("embedding", p["embedding"]), "ids"], "x")
    shape = init("shape", np.array([1, -1, HEADS, SIZE]))
    whole = init("whole", np.array([1, -1, WIDTH]))
    cache = lambda n, t: H.make_tensor_value_info(n, T.FLOAT, [1, HEADS, t, SIZE])
    inputs, outputs = [H.make_tensor_value_info("text", T.UINT8, [1, "tokens"])], [H.make_tensor_value_info("logits", T.FLOAT, [256])]
    for i in range(LAYERS):
        h = node("RMSNormalization", [x, init(f"{i}.n1", p[f"{i}.n1"])], f"{i}.h", axis=-1, epsilon=EPSILON)
        node("Split", [linear(h, f"{i}.qkv", f"{i}.qkv.y")], f"{i}.q", f"{i}.k", f"{i}.v", axis=2, num_outputs=3)
        for n in "qkv":
            node("Reshape", [f"{i}.{n}", shape], f"{i}.{n}.4"), node("Transpose", [f"{i}.{n}.4"], f"{i}.{n}.heads", perm=[0, 2, 1, 3])
        for n in "qk":
            node("RotaryEmbedding", [f"{i}.{n}.heads", "cos", "sin", "positions"], f"{i}.{n}.turned")
        keys = [f"past.{i}.key", f"past.{i}.value"], [f"present.{i}.key", f"present.{i}.value"]
        inputs += [cache(n, "past") for n in keys[0]]
        outputs += [cache(n, "total") for n in keys[1]]
        node("Attention", [f"{i}.q.turned", f"{i}.k.turned", f"{i}.v.heads", "", *keys[0]], f"{i}.a", *keys[1], is_causal=1)
        node("Transpose", [f"{i}.a"], f"{i}.a.t", perm=[0, 2, 1, 3]), node("Reshape", [f"{i}.a.t", whole], f"{i}.a.3")
        x = node("Add", [x, linear(f"{i}.a.3", f"{i}.o", f"{i}.o.y")], f"{i}.x")
        h = node("RMSNormalization", [x, init(f"{i}.n2", p[f"{i}.n2"])], f"{i}.h2", axis=-1, epsilon=EPSILON)
        a, u = linear(h, f"{i}.gate", f"{i}.gate.y"), linear(h, f"{i}.up", f"{i}.up.y")
        node("Sigmoid", [a], f"{i}.s"), node("Mul", [a, f"{i}.s"], f"{i}.silu"), node("Mul", [f"{i}.silu", u], f"{i}.m")
        x = node("Add", [x, linear(f"{i}.m", f"{i}.down", f"{i}.down.y")], f"{i}.y")
    node("Gather", [x, "minus"], "last", axis=1)
    y = node("RMSNormalization", ["last", init("norm", p["norm"])], "normed", axis=-1, epsilon=EPSILON)
    node("Transpose", ["embedding"], "turned", perm=[1, 0]), node("MatMul", [y, "turned"], "row"), node("Squeeze", ["row", "axis"], "logits")
    graph = H.make_graph(nodes, "llm", inputs, outputs, inits)
    model = H.make_model(graph, opset_imports=[H.make_opsetid("", 23)], ir_version=10, producer_name="train.py")
    onnx.checker.check_model(model)
    onnx.save(model, path)


def main():
    a = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    a.add_argument("texts", nargs="*", default=[ROOT / t for t in TEXTS])
    a.add_argument("--steps", type=int, default=1600)
    a.add_argument("--out", default=pathlib.Path(__file__).with_name("model.onnx"))
    a = a.parse_args()
    text = b"\n".join(pathlib.Path(t).read_bytes() for t in a.texts)
    export(train(text, a.steps), a.out)


if __name__ == "__main__":
    main()
