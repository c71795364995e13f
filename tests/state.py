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
    for make in (attention, group, multi, written):
        one(f"{make.__name__}_{k}", make, 1 + k % 2, T.FLOAT, options)
for make in (attention, group, written):
    one(f"{make.__name__}_f16", make, 1, T.FLOAT16, [])
print("ok")
