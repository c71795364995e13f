"""State in place (--alias) against ONNX Runtime: steps of a decoder whose caches stay in the caller's memory.

    state.py ONNXC WORK_DIR

Every model runs a sequence of steps three times: in place, with memory of its own for each output, and in ONNX Runtime.
Memory behind what is in use holds NaN, which must stay.
"""
import os
import subprocess
import sys

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto as T
from onnx import helper as H

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "tools"))
import abi

ONNXC, WORK = sys.argv[1:3]
os.makedirs(WORK, exist_ok=True)
rng = np.random.default_rng(0)
HEADS, KV, SIZE, CAPACITY = 4, 2, 16, 19
STEPS = [5, 1, 1, 3, 1, 8]


def value(name, elem, dims):
    return H.make_tensor_value_info(name, elem, dims)


def attention(batch, elem):
    """Attention of the standard, with the cache as operands."""
    four = lambda n, heads, t: value(n, elem, [batch, heads, t, SIZE])
    node = H.make_node("Attention", ["q", "k", "v", "", "past.0.key", "past.0.value"], ["y", "present.0.key", "present.0.value"], is_causal=1)
    ins = [four("q", HEADS, "S"), four("k", KV, "S"), four("v", KV, "S"), four("past.0.key", KV, "P"), four("past.0.value", KV, "P")]
    return [node], ins, [four("y", HEADS, "S"), four("present.0.key", KV, "T"), four("present.0.value", KV, "T")], []


def group(batch, elem):
    """GroupQueryAttention as onnxruntime-genai's builder writes it: lengths from a mask."""
    nodes = [H.make_node("ReduceSum", ["mask", "axis"], ["count"], keepdims=1), H.make_node("Sub", ["count", "one"], ["last"]),
             H.make_node("Cast", ["last"], ["lengths"], to=T.INT32), H.make_node("Shape", ["mask"], ["shape"]),
             H.make_node("Gather", ["shape", "index"], ["t"], axis=0), H.make_node("Cast", ["t"], ["total"], to=T.INT32),
             H.make_node("GroupQueryAttention", ["x", "", "", "past.0.key", "past.0.value", "lengths", "total", "cos", "sin"],
                         ["y", "present.0.key", "present.0.value"], domain="com.microsoft", num_heads=HEADS, kv_num_heads=KV, do_rotary=1)]
    four = lambda n, t: value(n, elem, [batch, KV, t, SIZE])
    ins = [value("x", elem, [batch, "S", (HEADS + 2 * KV) * SIZE]), value("mask", T.INT64, [batch, "T"]), four("past.0.key", "P"), four("past.0.value", "P")]
    angle = np.arange(CAPACITY)[:, None] * 0.5 ** np.arange(SIZE // 2)[None]
    kind = H.tensor_dtype_to_np_dtype(elem)
    inits = [("axis", np.array([1])), ("one", np.array([1])), ("index", np.array(1)), ("cos", np.cos(angle).astype(kind)), ("sin", np.sin(angle).astype(kind))]
    return nodes, ins, [value("y", elem, [batch, "S", HEADS * SIZE]), four("present.0.key", "T"), four("present.0.value", "T")], inits


def multi(batch, elem):
    """MultiHeadAttention with separate operands."""
    node = H.make_node("MultiHeadAttention", ["q", "k", "v", "", "", "", "past.0.key", "past.0.value"], ["y", "present.0.key", "present.0.value"],
                       domain="com.microsoft", num_heads=HEADS, unidirectional=1)
    three = lambda n: value(n, elem, [batch, "S", HEADS * SIZE])
    four = lambda n, t: value(n, elem, [batch, HEADS, t, SIZE])
    return [node], [three("q"), three("k"), three("v"), four("past.0.key", "P"), four("past.0.value", "P")], [three("y"), four("present.0.key", "T"), four("present.0.value", "T")], []


def written(batch, elem):
    """Attention of plain operators, the past appended by Concat; the keys lie transposed."""
    nodes = [H.make_node("Concat", ["past.0.key", "kt"], ["present.0.key"], axis=3), H.make_node("Concat", ["past.0.value", "v"], ["present.0.value"], axis=2),
             H.make_node("Transpose", ["k"], ["kt"], perm=[0, 1, 3, 2]), H.make_node("MatMul", ["q", "present.0.key"], ["s"]),
             H.make_node("Softmax", ["s"], ["p"], axis=-1), H.make_node("MatMul", ["p", "present.0.value"], ["y"])]
    nodes = [nodes[i] for i in (2, 0, 1, 3, 4, 5)]
    four = lambda n, t: value(n, elem, [batch, KV, t, SIZE])
    turned = lambda n, t: value(n, elem, [batch, KV, SIZE, t])
    ins = [four("q", "S"), four("k", "S"), four("v", "S"), turned("past.0.key", "P"), four("past.0.value", "P")]
    return nodes, ins, [four("y", "S"), turned("present.0.key", "T"), four("present.0.value", "T")], []


def projected(batch, elem):
    """Attention of com.microsoft: keys and values in one cache."""
    node = H.make_node("Attention", ["x", "w", "c", "", "past.0"], ["y", "present.0"], domain="com.microsoft", num_heads=HEADS, unidirectional=1)
    cache = lambda n, t: value(n, elem, [2, batch, HEADS, t, SIZE])
    kind = H.tensor_dtype_to_np_dtype(elem)
    inits = [("w", (rng.standard_normal([12, 3 * HEADS * SIZE]) / 4).astype(kind)), ("c", rng.standard_normal(3 * HEADS * SIZE).astype(kind))]
    return [node], [value("x", elem, [batch, "S", 12]), cache("past.0", "P")], [value("y", elem, [batch, "S", HEADS * SIZE]), cache("present.0", "T")], inits


def replaced():
    """States of one shape that a step replaces: of recurrences, of a convolution, a cache that evicts."""
    f = lambda *d: (rng.standard_normal(d) / 2).astype(np.float32)
    hidden, width = 5, 4
    state = lambda n: value(n, T.FLOAT, [1, 2, hidden])
    sequence = value("x", T.FLOAT, [3, 2, width])
    lstm = H.make_node("LSTM", ["x", "w", "r", "b", "", "past.h", "past.c"], ["y", "present.h", "present.c"], hidden_size=hidden)
    gru = H.make_node("GRU", ["x", "w", "r", "b", "", "past.h"], ["y", "present.h"], hidden_size=hidden)
    conv = H.make_node("CausalConvWithState", ["x", "w", "b", "past.s"], ["y", "present.s"], domain="com.microsoft", activation="silu")
    evict = H.make_node("GroupQueryAttention", ["x", "", "", "past.k", "past.v", "last", "total"], ["y", "present.k", "present.v"], domain="com.microsoft",
                        num_heads=HEADS, kv_num_heads=KV, local_window_size=4, sliding_window_cache=1)
    cache = lambda n: value(n, T.FLOAT, [1, KV, 6, SIZE])
    twice = [H.make_node("Neg", ["past.h"], ["z"]), H.make_node("MatMul", ["past.h", "m"], ["present.h"])]
    four = lambda n: value(n, T.FLOAT, [4, 4])
    return {
        "lstm": ([lstm], [sequence, state("past.h"), state("past.c")], [value("y", T.FLOAT, [3, 1, 2, hidden]), state("present.h"), state("present.c")],
                 [("w", f(1, 4 * hidden, width)), ("r", f(1, 4 * hidden, hidden)), ("b", f(1, 8 * hidden))]),
        "gru": ([gru], [sequence, state("past.h")], [value("y", T.FLOAT, [3, 1, 2, hidden]), state("present.h")], [("w", f(1, 3 * hidden, width)), ("r", f(1, 3 * hidden, hidden)), ("b", f(1, 6 * hidden))]),
        "conv": ([conv], [value("x", T.FLOAT, [2, 6, 5]), value("past.s", T.FLOAT, [2, 6, 3])], [value("y", T.FLOAT, [2, 6, 5]), value("present.s", T.FLOAT, [2, 6, 3])], [("w", f(6, 1, 4)), ("b", f(6))]),
        "evict": ([evict], [value("x", T.FLOAT, [1, 1, (HEADS + 2 * KV) * SIZE]), cache("past.k"), cache("past.v"), value("last", T.INT32, [1]), value("total", T.INT32, [1])],
                  [value("y", T.FLOAT, [1, 1, HEADS * SIZE]), cache("present.k"), cache("present.v")], []),
        "read_twice": (twice, [four("past.h")], [four("z"), four("present.h")], [("m", f(4, 4))]),
    }


def steps(name, nodes, ins, outs, inits, options):
    """Steps in place of a model whose states keep their shapes."""
    graph = H.make_graph(nodes, "m", ins, outs, [onnx.numpy_helper.from_array(np.asarray(a), n) for n, a in inits])
    path = f"{WORK}/{name}.onnx"
    onnx.save(H.make_model(graph, opset_imports=[H.make_opsetid("", 21), H.make_opsetid("com.microsoft", 1)], ir_version=10), path)
    subprocess.run([ONNXC, path, "-o", f"{WORK}/{name}.o", "--name", name, "--alias", "present.*=past.*", *options], check=True)
    abi.link([f"{WORK}/{name}.o"], f"{WORK}/{name}.so")
    m = abi.Model(f"{WORK}/{name}.so", name)
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    shape = {i.name: [d.dim_value for d in i.type.tensor_type.shape.dim] for i in ins}
    mine = {n: np.zeros(d, np.float32) for n, d in shape.items() if n.startswith("past.")}
    theirs = {n: a.copy() for n, a in mine.items()}
    for step in range(10):
        feeds = {"last": np.array([step], np.int32), "total": np.array([step + 1], np.int32)}
        feeds = {n: feeds[n] if n in feeds else rng.standard_normal(d).astype(np.float32) for n, d in shape.items() if n not in mine}
        want = dict(zip([o.name for o in outs], session.run(None, {**feeds, **theirs})))
        run, got = m.prepare({**feeds, **mine}, in_place=True)
        run()
        for t, g in zip(m.outputs, got):
            n = t.name.decode()
            # Rows behind those that a cache has mean nothing.
            rows = slice(0, step + 1 if step < 6 else step + 1 - -(-(step - 5) // 3) * 3)
            g, w = (a[:, :, rows] if name.startswith("evict") and n.startswith("present.") else a for a in (g, want[n]))
            assert np.allclose(g, w, 2e-5, 2e-5), f"{name} {n} in step {step}: {abs(g - w).max()}"
            if n.startswith("present."):
                assert t.aliases_input >= 0, f"{name} {n} does not share memory"
        theirs = {n: want[n.replace("past", "present")] for n in theirs}


def commands(path):
    """`run`, `verify` and `bench` in place give what they give with memory of its own for each output."""
    sizes, alias = ["--size", "P=3", "--size", "S=2"], ["--alias", "present.*=past.*"]
    saved = {}
    for name, more in (("own", []), ("fits", alias), ("room", [*alias, "--size", "P_capacity=11"])):
        subprocess.run([ONNXC, "run", path, "--random", "1", *sizes, *more, "--output", f"{WORK}/{name}.npz"], check=True, stdout=subprocess.DEVNULL)
        saved[name] = dict(np.load(f"{WORK}/{name}.npz"))
    for name in ("fits", "room"):
        assert all(a.shape == saved[name][n].shape and np.allclose(a, saved[name][n], 1e-6, 1e-6) for n, a in saved["own"].items()), f"run {path}: {name}"
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    dims = {"P": 3, "S": 2, "T": 5}
    feeds = {i.name: rng.standard_normal([dims.get(d, d) for d in i.shape]).astype(np.float32) for i in session.get_inputs()}
    want = dict(zip([o.name for o in session.get_outputs()], session.run(None, feeds)))
    np.savez(f"{WORK}/set.npz", **feeds, **want)
    subprocess.run([ONNXC, "verify", path, "--data", f"{WORK}/set.npz", *alias], check=True, stdout=subprocess.DEVNULL)
    small = subprocess.run([ONNXC, "run", path, "--random", "1", *sizes, *alias, "--size", "P_capacity=4"], capture_output=True, text=True)
    assert small.returncode == 1 and "the capacity is 4" in small.stderr, small.stderr
    timed = subprocess.run([ONNXC, "bench", path, "--per-node", "--seconds", "0.02", *sizes, *alias], check=True, capture_output=True, text=True).stdout
    own = subprocess.run([ONNXC, "bench", path, "--per-node", "--seconds", "0.02", *sizes], check=True, capture_output=True, text=True).stdout
    assert timed.count("Attention") < own.count("Attention"), f"a call in place copies nothing:\n{timed}\n{own}"


def axis_of(info):
    return [d.dim_param for d in info.type.tensor_type.shape.dim].index("P")


def one(name, make, batch, elem, options):
    nodes, ins, outs, inits = make(batch, elem)
    graph = H.make_graph(nodes, "m", ins, outs, [onnx.numpy_helper.from_array(np.asarray(a), n) for n, a in inits])
    model = H.make_model(graph, opset_imports=[H.make_opsetid("", 23), H.make_opsetid("com.microsoft", 1)], ir_version=10)
    path = f"{WORK}/{name}.onnx"
    onnx.save(model, path)
    subprocess.run([ONNXC, path, "-o", f"{WORK}/{name}.o", "--name", name, "--alias", "present.*=past.*", *options], check=True)
    abi.link([f"{WORK}/{name}.o"], f"{WORK}/{name}.so")
    m = abi.Model(f"{WORK}/{name}.so", name)
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    kind = H.tensor_dtype_to_np_dtype(elem)
    caches = {i.name: axis_of(i) for i in ins if i.name.startswith("past.")}
    shape = {i.name: [d.dim_value or {"B": batch}.get(d.dim_param) for d in i.type.tensor_type.shape.dim] for i in ins}
    dense, memory = {}, {}
    for n, a in caches.items():
        shape[n][a] = 0
        dense[n] = np.zeros(shape[n], kind)
        memory[n] = np.full([CAPACITY if k == a else d for k, d in enumerate(shape[n])], np.nan, kind)
    past = 0
    # ONNX Runtime appends several tokens to a cache of one sample only.
    for s in STEPS if batch == 1 else [5, 1, 1, 1]:
        feeds = {"mask": np.ones((batch, past + s), np.int64)}
        for i in ins:
            if i.name not in caches and i.name != "mask":
                dims = [s if d.dim_param == "S" else d.dim_value for d in i.type.tensor_type.shape.dim]
                feeds[i.name] = rng.standard_normal(dims).astype(kind)
        feeds = {i.name: feeds[i.name] for i in ins if i.name not in caches}
        want = dict(zip([o.name for o in outs], session.run(None, {**feeds, **dense})))
        copies = {n: a.copy() for n, a in memory.items()}
        for in_place, caches_now in ((False, copies), (True, memory)):
            run, got = m.prepare({**feeds, **caches_now}, sizes={"P": past, "S": s}, in_place=in_place)
            run()
            for t, g in zip(m.outputs, got):
                n = t.name.decode()
                w = want[n]
                if n.startswith("present."):
                    a = caches[n.replace("present", "past")]
                    g = g.take(range(past + s), a)
                tolerance = 4e-3 if elem == T.FLOAT16 else 2e-5
                assert np.allclose(g.astype(np.float64), w.astype(np.float64), tolerance, tolerance), f"{name} {n} at {past}+{s} in_place={in_place}: {abs(g.astype(np.float64) - w).max()}"
        past += s
        for n, a in caches.items():
            assert np.isnan(memory[n].take(range(past, CAPACITY), a).astype(np.float32)).all(), f"{name} {n}: memory behind the state was written"
            dense[n] = want[n.replace("past", "present")]
    # One position too many.
    more = CAPACITY + 1 - past
    feeds = {n: (np.ones((batch, past + more), np.int64) if n == "mask" else rng.standard_normal([more if d.dim_param == "S" else d.dim_value for d in i.type.tensor_type.shape.dim]).astype(kind))
             for i in ins for n in [i.name] if n not in caches}
    try:
        m.prepare({**feeds, **memory}, sizes={"P": past, "S": more}, in_place=True)[0]()
    except abi.Failed as e:
        # A fixed capacity is the largest value of a size that it bounds alone.
        assert e.status == 4 and "the capacity is 19" in str(e) or e.status == 3 and "from 0 to 19" in str(e), e
    else:
        raise AssertionError(f"{name}: the capacity does not hold")


levels = [[], ["--cpu", "x86-64-v3"], ["--dim", f"P_capacity={CAPACITY}"], ["-O", "0"], ["-O", "1"], ["--dim", "P_capacity<=64", "--dim", "S<=16"]]
for k, options in enumerate(levels):
    for make in (attention, group, multi, written, projected):
        one(f"{make.__name__}_{k}", make, 1 + k % 2, T.FLOAT, options)
    if not any(o.startswith("P_") for o in options):
        for name, model in replaced().items():
            steps(f"{name}_{k}", *model, options)
for make in (attention, group, written):
    one(f"{make.__name__}_f16", make, 1, T.FLOAT16, [])
commands(f"{WORK}/attention_0.onnx")
print("ok")
