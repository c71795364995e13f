"""The generated interface from outside: statuses, weights files, output sizes, tasks.

    interface.py ONNXC WORK_DIR
"""
import ctypes as ct
import os
import subprocess
import sys
import threading

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "tools"))
import abi

ONNXC, WORK = sys.argv[1:3]
os.makedirs(WORK, exist_ok=True)
rng = np.random.default_rng(0)

DENSE = """<ir_version: 8, opset_import: ["" : 17]>
dense (float[N, 64] x) => (float[N, 96] y)
<float[96] b = {%s}>
{
  s = Constant <value_ints = [64, 96]> ()
  c = Constant <value_float = 0.25> ()
  w = Expand (c, s)
  h = MatMul (x, w)
  y = Add (h, b)
}
""" % ", ".join(str(i) for i in range(96))


def sines(*shapes):
    """Constants of these shapes, w and w2, as the beginning of a body."""
    head, body = ["float zero = {0}", "float one = {1}"], ""
    for k, shape in zip(("", "2"), shapes):
        head += [f"float n{k} = {{{np.prod(shape)}}}", f"int64[{len(shape)}] s{k} = {{{', '.join(map(str, shape))}}}"]
        body += f"  r{k} = Range (zero, n{k}, one)\n  t{k} = Sin (r{k})\n  w{k} = Reshape (t{k}, s{k})\n"
    return f"<{', '.join(head)}>\n{{\n{body}"


# Winograd's transform: tasks have scratch of their own. Groups of tiles, then slices of channels.
CONVS = """<ir_version: 8, opset_import: ["" : 17]>
convs (float[N, 32, 50, 50] x) => (float[N, 96, 50, 50] y)
%s  c = Conv <pads = [1, 1, 1, 1]> (x, w)
  d = Relu (c)
  e = Conv <pads = [1, 1, 1, 1]> (d, w)
  y = Conv <pads = [1, 1, 1, 1]> (e, w2)
}
""" % sines((32, 32, 3, 3), (96, 32, 3, 3))

# A depthwise convolution behind the one that makes its image, in bands of rows.
ROWS = """<ir_version: 8, opset_import: ["" : 17]>
rows (float[N, 8, 40, 50] x) => (float[N, 64, 20, 25] y)
%s  c = Conv (x, w)
  d = Relu (c)
  y = Conv <group = 64, pads = [1, 1, 1, 1], strides = [2, 2]> (d, w2)
}
""" % sines((64, 8, 1, 1), (64, 1, 3, 3))

# The two directions of a recurrence are tasks.
CHAINS = """<ir_version: 8, opset_import: ["" : 17]>
chains (float[N, 1, 8] x) => (float[N, 2, 1, 32] y)
%s  y, h, c = LSTM <hidden_size = 32, direction = "bidirectional"> (x, w, w2)
}
""" % sines((2, 128, 8), (2, 128, 32))

GATHER = """<ir_version: 8, opset_import: ["" : 17]>
pick (float[N, 3] x, int64[M] i) => (float[M, 3] y)
{
  y = Gather <axis = 0> (x, i)
}
"""

GROW = """<ir_version: 8, opset_import: ["" : 17]>
grow (float[1, 4, H, W] x) => (float[1, 1, A, B] y)
{
  y = DepthToSpace <blocksize = 2> (x)
}
"""

OUTER = """<ir_version: 8, opset_import: ["" : 17]>
outer (float[N, 1, 8] x, float[1, M, 8] y) => (float[N, M] z)
{
  s = Add (x, y)
  z = ReduceMax <axes = [2], keepdims = 0> (s)
}
"""

DIVIDE = """<ir_version: 8, opset_import: ["" : 17]>
divide (int32[N] a, int32[N] b) => (int32[N] y)
{
  y = Div (a, b)
}
"""


def build(name, text, *flags):
    path = os.path.join(WORK, name)
    with open(path + ".onnx", "w") as f:
        f.write(text)
    subprocess.run([ONNXC, path + ".onnx", "-o", path + ".o", "--name", name, *flags], check=True)
    abi.link([path + ".o"], path + ".so")
    weights = path + ".weights" if os.path.exists(path + ".weights") else None
    return abi.Model(path + ".so", name, weights)


def fails(f, text):
    try:
        f()
    except RuntimeError as e:
        assert text in str(e), (str(e), text)
        return
    raise AssertionError(f"no error, expected: {text}")


def raw_call(m, inputs, outputs, dims, out_dims=None, weights=None, workspace=None, exec_=None):
    pin = (ct.c_void_p * 4)(*[a if a is None or isinstance(a, int) else a.ctypes.data for a in inputs])
    pout = (ct.c_void_p * 4)(*[a if a is None else a.ctypes.data for a in outputs])
    pdims = (ct.c_int64 * 4)(*dims)
    lists = None
    if out_dims is not None:
        lists = (ct.c_void_p * 4)(*[ct.addressof(d) for d in out_dims])
    return m.info.call(pin, pout, pdims, lists, weights, workspace, exec_)


def statuses():
    m = build("dense", DENSE)
    x, y = np.ones((2, 64), np.float32), np.zeros((2, 96), np.float32)
    size = ct.c_uint64()
    assert m.info.workspace_for((ct.c_int64 * 1)(2), size) == 0
    ws = abi.aligned(size.value + 64)
    call = lambda **k: raw_call(m, k.get("inputs", [x]), k.get("outputs", [y]), [k.get("n", 2)], workspace=k.get("ws", ws.ctypes.data))
    assert call() == 0
    assert np.allclose(y, 16 + np.arange(96))
    assert call(inputs=[None]) == 1
    assert call(outputs=[None]) == 1
    assert call(n=-1) == 3
    assert call(n=1 << 40) == 3
    assert call(n=0, inputs=[None], outputs=[None]) == 0, "an empty tensor needs no memory"
    outer = build("outer", OUTER)
    assert outer.info.workspace_for((ct.c_int64 * 2)(1 << 20, 1 << 20), size) == 0
    assert outer.info.workspace_for((ct.c_int64 * 2)((1 << 31) - 1, (1 << 31) - 1), size) == 3, "a size beyond 63 bits"
    if size.value:
        assert call(ws=None) == 1
        assert call(ws=ws.ctypes.data + 4) == 2
    m = build("pick", GATHER)
    feeds = {"x": rng.random((4, 3), np.float32), "i": np.array([3, -4, 0], np.int64)}
    run, (out,) = m.prepare(feeds)
    run()
    assert (out == feeds["x"][feeds["i"]]).all()
    for bad in (4, -5):
        run, _ = m.prepare({**feeds, "i": np.array([0, bad, 1], np.int64)})
        fails(run, "index out of range")
    m = build("divide", DIVIDE)
    a, b = np.array([7, -7, 5, -(1 << 31)], np.int32), np.array([2, 2, -5, -1], np.int32)
    run, (out,) = m.prepare({"a": a, "b": b})
    run()
    assert out.tolist() == [3, -3, -1, -(1 << 31)], out
    run, _ = m.prepare({"a": a, "b": np.array([1, 0, 1, 1], np.int32)})
    fails(run, "bad value")


def weights_file():
    m = build("apart", DENSE, "--weights", "file")
    assert m.info.weights_size == os.path.getsize(os.path.join(WORK, "apart.weights"))
    x = rng.standard_normal((3, 64)).astype(np.float32)
    run, (y,) = m.prepare({"x": x})
    run()
    assert np.allclose(y, x.sum(1, keepdims=True) * 0.25 + np.arange(96), atol=1e-4)
    m.weights[0] ^= 1
    fails(run, "weights do not match")


def output_sizes():
    m = build("grow", GROW)
    x = np.arange(4 * 3 * 5, dtype=np.float32).reshape(1, 4, 3, 5)
    y = np.zeros((1, 1, 6, 10), np.float32)
    ws = abi.aligned(1 << 12)
    for capacity, status in (((1, 1, 6, 10), 0), ((1, 1, 99, 99), 0), ((1, 1, 5, 10), 4), ((0, 0, 0, 0), 4)):
        dims = (ct.c_int64 * 4)(*capacity)
        assert raw_call(m, [x], [y], [3, 5], out_dims=[dims], workspace=ws.ctypes.data) == status, capacity
        assert list(dims) == [1, 1, 6, 10], list(dims)
    want = x.reshape(1, 2, 2, 1, 3, 5).transpose(0, 3, 4, 1, 5, 2).reshape(1, 1, 6, 10)
    assert (y == want).all()


def tasks():
    same_bits("tasks", DENSE, (301, 64))
    same_bits("convs", CONVS, (3, 32, 50, 50))
    same_bits("chains", CHAINS, (300, 1, 8))
    for images in (1, 3, 20):
        same_bits("rows", ROWS, (images, 8, 40, 50))


def same_bits(name, text, shape):
    m = build(name, text)
    x = rng.standard_normal(shape).astype(np.float32)
    run, (y,) = m.prepare({"x": x})
    run()
    want = y.copy()
    used = []
    for threads in (1, 2, 3, 4, 7, 16):
        def parallel_for(_, n, fn, ctx):
            used.append(n)
            pool = [threading.Thread(target=lambda k: [fn(ctx, i) for i in range(k, n, threads)], args=(k,)) for k in range(threads)]
            [t.start() for t in pool]
            [t.join() for t in pool]
        callback = abi.PARALLEL_FOR(parallel_for)
        e = abi.Exec(ct.sizeof(abi.Exec), None, callback, threads, None)
        y[:] = 0
        run(ct.addressof(e))
        assert (y == want).all(), f"{threads} threads give other bits"
    assert max(used, default=0) > 1, "nothing ran in parallel"


for test in (statuses, weights_file, output_sizes, tasks):
    test()
    print(f"{test.__name__}: ok")
