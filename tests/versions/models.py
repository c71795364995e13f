"""Recipes of recurrent operators, attention, quantization and control flow."""
import numpy as np
from recipe import FLOATS, Const, case, code, ints, limits
from onnx import TensorProto, helper

R = {}

# --- Recurrent operators, by numpy: the references know neither all directions nor all lengths. ---

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
# Name: defaults of its parameters, function.
ACTIVATIONS = {
    "Relu": ((), lambda x: np.maximum(x, 0)), "Tanh": ((), np.tanh), "Sigmoid": ((), lambda x: 1 / (1 + np.exp(-x))),
    "Softsign": ((), lambda x: x / (1 + np.abs(x))), "Softplus": ((), lambda x: np.logaddexp(x, 0)),
    "Affine": ((1.0, 0.0), lambda x, a, b: a * x + b), "ScaledTanh": ((1.0, 1.0), lambda x, a, b: a * np.tanh(b * x)),
    "HardSigmoid": ((0.2, 0.5), lambda x, a, b: np.clip(a * x + b, 0, 1)), "LeakyRelu": ((0.01,), lambda x, a: np.where(x < 0, a * x, x)),
    "ThresholdedRelu": ((1.0,), lambda x, a: np.where(x > a, x, 0)), "Elu": ((1.0,), lambda x, a: np.where(x < 0, a * np.expm1(x), x)),
}
DEFAULTS = {"RNN": ["Tanh"], "GRU": ["Sigmoid", "Tanh"], "LSTM": ["Sigmoid", "Tanh", "Tanh"]}


def recurrent_result(op, operands, at):
    x, w, r, bias, lens, h0, c0, peep = [None if o is None else np.asarray(o, np.float64) for o in operands + [None] * (8 - len(operands))]
    if at.get("layout"):
        x, h0, c0 = [None if o is None else o.swapaxes(0, 1) for o in (x, h0, c0)]
    (t, b, _), (d, _, h), g = x.shape, r.shape, GATES[op]
    names = at.get("activations") or DEFAULTS[op] * d
    alphas, betas, functions = list(at.get("activation_alpha", [])), list(at.get("activation_beta", [])), []
    for n in names:
        defaults, f = ACTIVATIONS[n]
        p = [v.pop(0) if v else e for e, v in zip(defaults, (alphas, betas))]
        functions.append(lambda v, f=f, p=p: f(np.clip(v, -at["clip"], at["clip"]) if "clip" in at else v, *p))
    y, hs, cs = np.zeros((t, d, b, h)), np.zeros((d, b, h)), np.zeros((d, b, h))
    for k in range(d):
        f, *rest = functions[k * len(functions) // d:]
        wb, rb = np.split(np.zeros(2 * g * h) if bias is None else bias[k], 2)
        R_, B, P = r[k].reshape(g, h, h), rb.reshape(g, h), np.zeros((3, h)) if peep is None else peep[k].reshape(3, h)
        backward = at.get("direction") == "reverse" or k == 1
        for n in range(b):
            s = np.zeros(h) if h0 is None else h0[k, n]
            c = np.zeros(h) if c0 is None else c0[k, n]
            steps = range(t if lens is None else int(lens[n]))
            for i in reversed(steps) if backward else steps:
                X = (w[k] @ x[i, n] + wb).reshape(g, h)
                if op == "RNN":
                    s = f(X[0] + R_[0] @ s + B[0])
                elif op == "GRU":
                    z, q = f(X[0] + R_[0] @ s + B[0]), f(X[1] + R_[1] @ s + B[1])
                    new = rest[0](X[2] + (q * (R_[2] @ s + B[2]) if at.get("linear_before_reset") else R_[2] @ (q * s) + B[2]))
                    s = (1 - z) * new + z * s
                else:
                    i1 = f(X[0] + R_[0] @ s + B[0] + P[0] * c)
                    f1 = 1 - i1 if at.get("input_forget") else f(X[2] + R_[2] @ s + B[2] + P[2] * c)
                    c = f1 * c + i1 * rest[0](X[3] + R_[3] @ s + B[3])
                    s, c = f(X[1] + R_[1] @ s + B[1] + P[1] * c) * rest[1](c), c
                y[i, k, n] = s
            hs[k, n], cs[k, n] = s, c
    if at.get("layout"):
        y, hs, cs = y.transpose(2, 0, 1, 3), hs.swapaxes(0, 1), cs.swapaxes(0, 1)
    return [y, hs, cs] if op == "LSTM" else [y, hs]


def recurrent(c):
    op, out = c.schema.name, []
    g, t, b, i, h = GATES[op], 5, 3, 4, 6
    s = lambda *shape: c.x(*shape, lo=-0.8, hi=0.8)

    def add(d, attributes, bias=True, lens=None, states=True, peepholes=False):
        o = [s(t, b, i), s(d, g * h, i), s(d, g * h, h), s(d, 2 * g * h) if bias else None, np.array(lens) if lens else None]
        o += [s(d, b, h) if states else None] * (1 if op != "LSTM" else 2) + ([s(d, 3 * h)] if peepholes else [])
        if attributes.get("layout"):
            o = [x.swapaxes(0, 1).copy() if x is not None and k in (0, 5, 6) else x for k, x in enumerate(o)]
        while o[-1] is None:
            o.pop()
        at = {"hidden_size": h, **({"direction": "bidirectional"} if d == 2 else {}), **attributes}
        # Version 1 gives outputs only where output_sequence asks for them; version 3 of GRU still has the attribute.
        old = {"output_sequence": 1} if c.has("output_sequence") else {}
        out.append(case(*o, out=2 if op != "LSTM" else 3, **at, **old, want=lambda *v: recurrent_result(op, list(v), at)))

    names = DEFAULTS[op]
    add(1, {})
    add(1, {}, bias=False, states=False)
    add(2, {"activations": names * 2}, lens=[5, 2, 3])
    if c["T"] == "float":
        add(1, {"direction": "reverse", "clip": 0.3})
        add(1, {"direction": "reverse"}, lens=[4, 1, 2])
        for f, (defaults, _) in ACTIVATIONS.items():
            given = [p + 0.1 * (k + 1) for k in range(2) for p in defaults[:1]], [p - 0.1 * (k + 1) for k in range(2) for p in defaults[1:]]
            # Where the state could grow without bounds the gates stay as they are.
            list_ = names[:-1] + [f]
            add(2, {"activations": list_ * 2, **{k: x for k, x in zip(("activation_alpha", "activation_beta"), given) if x}})
    if c.has("layout"):
        add(1, {"layout": 1})
        add(2, {"layout": 1}, lens=[5, 2, 3])
    if op == "GRU" and c.has("linear_before_reset"):
        add(2, {"linear_before_reset": 1}, lens=[5, 2, 3])
        add(1, {"linear_before_reset": 1}, bias=False)
    if op == "LSTM":
        add(1, {}, peepholes=True)
        add(1, {"input_forget": 1, "clip": 0.4}, peepholes=True)
    return out


R |= {op: recurrent for op in GATES}


# --- Attention. ---

def attention(c):
    q, k, v = c.x(2, 3, 4, 8), c.x(2, 3, 6, 8), c.x(2, 3, 6, 5)
    past = c.x(2, 3, 2, 8), c.x(2, 3, 2, 5)
    bool_mask = c["U"] == "bool"
    mask = c.x(4, 6) > 0 if bool_mask else c.x(4, 6)
    if bool_mask:
        mask[:, 0] = True
    wide = np.concatenate([np.ones((4, 2), bool) if bool_mask else c.x(4, 2), mask], 1)
    out = [case(q, k, v), case(q, k, v, mask), case(q, k, v, is_causal=1), case(q, k, v, mask, scale=0.3, softcap=2.0), case(q, k, v, wide, *past, out=3),
           case(q[:, :, :, :], k, v, wide, *past, is_causal=1, out=3), case(c.x(2, 4, 16), c.x(2, 6, 8), c.x(2, 6, 6), q_num_heads=4, kv_num_heads=2), case(q, k, v, softmax_precision=1)]
    out += [case(q, k, v, wide, *past, qk_matmul_output_mode=m, out=4, softcap=1.5) for m in (0, 1, 2, 3)] + [case(q, k, v, mask, qk_matmul_output_mode=3, out=[True, False, False, True])]
    if c.v >= 24:
        out.append(case(q, k, v, None, None, None, np.array([4, 6])))
    if c.has("left_window_size"):
        out += [case(q, k, v, left_window_size=1, right_window_size=1), case(q, k, v, left_window_size=2, is_causal=1)]
    return out


def rotary(c):
    cos, sin = c.x(20, 4), c.x(20, 4)
    ids = np.array([[0, 3, 7], [2, 5, 19]])
    x4, x3 = c.x(2, 2, 3, 8), c.x(2, 3, 16)
    return [case(x4, cos, sin, ids), case(x3, cos, sin, ids, num_heads=2, interleaved=1), case(x4, c.x(2, 3, 4), c.x(2, 3, 4)), case(x4, c.x(20, 2), c.x(20, 2), ids, rotary_embedding_dim=4)]


R |= {"Attention": attention, "RotaryEmbedding": rotary}


# --- Quantization. ---

def small(c, t, *shape):
    """Numbers of a quantized type, most of its range."""
    if "int" not in t:
        return c.x(*shape)
    lo, hi = limits(t)
    lo, hi = max(lo, -1000), min(hi, 1000)
    return c.i(lo, hi + 1, *shape)


def zero(c, t, *shape):
    """Zero points: the types that are not integers, and int32 before a quantization, have 0 only."""
    if "int" not in t or t == "int32":
        return np.zeros(shape)
    lo, hi = limits(t)
    return c.i(max(lo, -9) // 2, min(hi, 18) // 2 + 1, *shape)


def quantize(c):
    t = c.target if hasattr(c, "target") else next((c[v] for v in ("T3", "T2") if v in c.binding and v != "T2" or v == "T2" and c.v < 23), "uint8")
    scale = lambda *s: c.x(*s, lo=0.05, hi=0.3) if "int" in t else c.x(*s, lo=0.5, hi=1.5)
    x, out = c.x(3, 4, 5), []
    if c["T1"] == "int32":
        x, scale = c.i(-90, 90, 3, 4, 5), lambda *s: np.array([1.0, 2.0, 4.0])[c.i(0, 3, *s)]
    if c.binding.get("T2") == "int32" and c.v >= 23:
        scale = lambda *s: c.i(1, 4, *s)
    if t == "uint8" and c.v < 23:
        out = [case(x, scale())]
    out += [case(x, scale(), zero(c, t))]
    if c.has("axis"):
        out += [case(x, scale(4), zero(c, t, 4)), case(x, scale(5), zero(c, t, 5), axis=2)]
    if c.has("saturate") and t.startswith("float8"):
        out += [case(x * 1000, scale(), zero(c, t), saturate=0), case(x * 1000, scale(), zero(c, t))]
    if c.has("block_size"):
        out += [case(x, scale(3, 4, 2), zero(c, t, 3, 4, 2), axis=2, block_size=3), case(x, scale(), output_dtype=code(t))]
    if c.has("precision"):
        out.append(case(x, scale(), zero(c, t), precision=code("float")))
    return out


def dequantize(c):
    t = c["T1" if "T1" in c.binding else "T"]
    x = small(c, t, 3, 4, 5)
    z = (lambda *s: zero(c, t, *s)) if t not in ("int32",) else (lambda *s: None)
    scale = lambda *s: c.x(*s, lo=0.05, hi=0.3)
    t3 = "T3" in c.binding
    asked = {"output_dtype": code(c["T3"])} if t3 and c["T3"] != c["T2"] and c.has("output_dtype") else {}
    out = [case(x, scale(), **asked), case(x, scale(), z(), **asked)]
    if c.has("axis"):
        out += [case(x, scale(4), z(4), **asked), case(x, scale(3), z(3), axis=0, **asked)]
    if c.has("block_size"):
        out.append(case(x, scale(3, 4, 2), z(3, 4, 2), axis=2, block_size=3, **asked))
    if t3 and c.has("output_dtype"):
        out.append(case(x, scale(), z(), output_dtype=code(c["T3"])))
    return out


def matmul_integer(c):
    a, b = small(c, c["T1"], 2, 3, 4), small(c, c["T2"], 4, 5)
    return [case(a, b), case(a, b, zero(c, c["T1"])), case(a, b, zero(c, c["T1"]), zero(c, c["T2"])), case(a[0], b, None, zero(c, c["T2"], 5)), case(a[0], b, zero(c, c["T1"], 3), zero(c, c["T2"]), want=lambda a, b, p, q: [(a.astype(np.int64) - p.astype(np.int64)[:, None]) @ (b.astype(np.int64) - int(q))])]


def conv_integer(c):
    x, w = small(c, c["T1"], 1, 4, 6, 5), small(c, c["T2"], 4, 2, 3, 3)
    zx, zw = zero(c, c["T1"]), zero(c, c["T2"])
    whole = small(c, c["T2"], 3, 4, 2, 2)
    return [case(x, w, group=2), case(x, w, zx, group=2, pads=[1, 0, 1, 2], strides=[2, 1]), case(x, w, zx, zw, group=2, kernel_shape=[3, 3]), case(x, whole, zx, zw, dilations=[2, 2]), case(x, whole, zx, auto_pad="SAME_UPPER"), case(x, whole, None, zero(c, c["T2"], 3))]


def qlinear_conv(c):
    x, w = small(c, c["T1"], 1, 4, 6, 5), small(c, c["T2"], 4, 2, 3, 3)
    k = [zero(c, c["T1"]), w, np.array(0.03), zero(c, c["T2"]), np.array(0.4), zero(c, c["T3"])]
    whole = [k[0], small(c, c["T2"], 3, 4, 2, 2), *k[2:]]
    channels = [k[0], w, c.x(4, lo=0.01, hi=0.05), np.zeros(4), *k[4:]]
    sx = np.array(0.05)
    return [case(x, sx, *k, group=2), case(x, sx, *k, c.i(-300, 300, 4), group=2, pads=[1, 0, 1, 2], strides=[2, 1], kernel_shape=[3, 3]), case(x, sx, *whole, dilations=[2, 2]), case(x, sx, *whole, auto_pad="SAME_UPPER")] + ([case(x, sx, *channels, group=2)] if c["T2"] == "int8" else [])


def qlinear_matmul(c):
    a, b = small(c, c["T1"], 2, 3, 4), small(c, c["T2"], 4, 5)
    tail = [np.array(0.3), zero(c, c["T3"])]

    def want(a, sa, za, b, sb, zb, sy, zy):
        """onnx.reference drops what float8 has behind the point."""
        v = (a.astype(np.float64) - za) @ (b.astype(np.float64) - zb) * (sa * sb / sy)
        if "int" not in c["T3"]:
            return [np.clip(v + zy, -limit, limit) if (limit := {"float8e4m3fn": 448, "float8e4m3fnuz": 240, "float8e5m2": 57344}.get(c["T3"], 57344)) else v]
        return [np.clip(np.rint(v) + zy, *limits(c["T3"]))]
    return [case(a, np.array(0.04), zero(c, c["T1"]), b, np.array(0.05), zero(c, c["T2"]), *tail, want=want), case(a[0], np.array(0.04), zero(c, c["T1"]), b, c.x(5, lo=0.03, hi=0.06), zero(c, c["T2"], 5), *tail, want=want)]


R |= {"QuantizeLinear": quantize, "DequantizeLinear": dequantize, "MatMulInteger": matmul_integer, "ConvInteger": conv_integer, "QLinearConv": qlinear_conv, "QLinearMatMul": qlinear_matmul}
R["DynamicQuantizeLinear"] = lambda c: [case(c.x(3, 4), out=3), case(c.x(3, 4, lo=0.5), out=3), case(np.zeros((2, 3)), out=3)]


# --- Control flow. ---

def info(name, t, shape=None):
    return helper.make_tensor_value_info(name, code(t), shape)


def graph(name, nodes, inputs, outputs):
    return helper.make_graph(nodes, name, inputs, outputs)


def if_(c):
    from elementwise import tensor
    t = c["V"]
    values = [tensor(t, c.x(2, 3)) for _ in range(2)]
    branch = lambda k: graph(f"g{k}", [helper.make_node("Constant", [], [f"r{k}"], value=values[k])], [], [info(f"r{k}", t, [2, 3])])
    return [case(np.array(b), then_branch=branch(0), else_branch=branch(1)) for b in (True, False)]


def body(c, n, scan):
    """A body with one carried value and one result a turn: v and v."""
    t = c["V"]
    nodes = [helper.make_node("Identity", ["v"], ["w"]), helper.make_node("Identity", ["v"], ["s"])]
    nodes.append(helper.make_node("Identity", ["go"], ["on"]))
    return graph("body", nodes, [info("i", "int64", []), info("go", "bool", []), info("v", t, [2, 3])], [info("on", "bool", []), info("w", t, [2, 3]), info("s", t, [2, 3])])


def loop(c):
    x, k = c.x(2, 3), Const(np.array(3))
    b = body(c, 1, True)
    until = graph("until", [helper.make_node("Identity", ["v"], ["w"]), helper.make_node("Identity", ["v"], ["s"]), helper.make_node("Not", ["go"], ["on"])], list(b.input), list(b.output))
    return [case(None, Const(np.array(True)), x, body=until, out=2, want=lambda g, x: [x, x[None]]), case(k, Const(np.array(True)), x, body=b, out=2, want=lambda m, g, x: [x, np.stack([x] * 3)]), case(k, None, x, body=b, out=2, want=lambda m, x: [x, np.stack([x] * 3)]),
            case(np.array(2), np.array(True), x, body=b, out=2, want=lambda m, g, x: [x, np.stack([x] * 2)])]


def scan(c):
    t = c["V"]
    nodes = [helper.make_node("Identity", ["x"], ["w"]), helper.make_node("Identity", ["v"], ["s"])]
    b = graph("body", nodes, [info("v", t, [3]), info("x", t, [3])], [info("w", t, [3]), info("s", t, [3])])
    v, x = c.x(3), c.x(4, 3)

    def want(xs, ys):
        def of(v, x):
            steps = list(np.moveaxis(x, xs.get("axis", 0), 0))[::-1 if xs.get("back") else 1]
            s, out = v, []
            for k in steps:
                out.append(s)
                s = k
            return [s, np.stack(out[::-1 if ys.get("back") else 1], ys.get("axis", 0))]
        return of
    if c.v == 8:
        batched = lambda f: lambda *a: [np.stack(z) for z in zip(*(f(*(e[k] for e in a)) for k in range(2)))]
        vb, xb = c.x(2, 3), c.x(2, 4, 3)

        def lengths(lens, v, x):
            """Elements behind a length count as 0."""
            r = [[z if k == 0 else np.concatenate([z, np.full_like(z, "" if z.dtype.kind in "OU" else 0, shape=(4 - n, 3))]) for k, z in enumerate(want({}, {})(v[b], x[b, :n]))] for b, n in enumerate(lens)]
            return [np.stack(z) for z in zip(*r)]
        return [case(np.array([4, 2]), vb, xb, body=b, num_scan_inputs=1, out=2, want=lengths), case(None, vb, xb, body=b, num_scan_inputs=1, out=2, want=batched(want({}, {}))), case(None, vb, xb, body=b, num_scan_inputs=1, directions=[1], out=2, want=batched(want({"back": 1}, {})))]
    return [case(v, x, body=b, num_scan_inputs=1, out=2, want=want({}, {})), case(v, x, body=b, num_scan_inputs=1, scan_input_directions=[1], out=2, want=want({"back": 1}, {})),
            case(v, x, body=b, num_scan_inputs=1, scan_output_directions=[1], out=2, want=want({}, {"back": 1})), case(v, x.T.copy(), body=b, num_scan_inputs=1, scan_input_axes=[1], scan_output_axes=[1], out=2, want=want({"axis": 1}, {"axis": 1}))]


R |= {"If": if_, "Loop": loop, "Scan": scan}
