"""The generated interface from outside: statuses and faults, weights files, output sizes, workspaces, tasks.

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


# Sizes that only data tells; what comes before is of known size.
TRACE = """<ir_version: 8, opset_import: ["" : 17]>
trace (float[N, 64] x, int64 count) => (float[N, 64] y, int64 total)
<int64 zero = {0}, int64 one = {1}, int64 axis = {0}>
{
  a = Softmax <axis = 1> (x)
  y = Softmax <axis = 0> (a)
  r = Range (zero, count, one)
  c = CumSum (r, axis)
  d = Mul (c, c)
  e = CumSum (d, axis)
  total = ReduceMax <keepdims = 0> (e)
}
"""

# Sizes that follow from the parameters and may be negative.
VALID = """<ir_version: 8, opset_import: ["" : 17]>
valid (float[N, 1, T] x) => (float[A, B, C] y)
<float[1, 1, 5] w = {1, 1, 1, 1, 1}>
{
  y = Conv (x, w)
}
"""

# A number of results that only data tells.
FIND = """<ir_version: 8, opset_import: ["" : 17]>
find (float[N, M] x) => (int64[R, C] y)
{
  y = NonZero (x)
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
    far = build("far", OUTER, "--dim", f"N<={1 << 57}", "--dim", "M=1")
    for n, want in (1, 0), (1 << 40, 0), (1 << 56, 3):
        assert far.info.workspace_for((ct.c_int64 * 1)(n), size) == want, "a declared bound beyond 31 bits"
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


def faults():
    m = build("outer", OUTER)
    feeds = lambda n, m: {"x": np.ones((n, 1, 8), np.float32), "y": np.ones((1, m, 8), np.float32)}
    run, _ = m.prepare(feeds(2, 3))
    run()
    m = build("bounded", OUTER, "--dim", "2<=N<=32")
    for n in (1, 33):
        fails(lambda: m.prepare(feeds(n, 3)), f'input "x" dimension 0 (N) is {n}: it must be from 2 to 32')
    m = build("valid", VALID)
    fails(lambda: m.prepare({"x": np.ones((1, 1, 2), np.float32)})[0](), "input \"x\" dimension 2 (T) is 2: it must be from 4 to")
    m = build("find", FIND)
    run, _ = m.prepare({"x": np.ones((3, 4), np.float32)}, [(2, 5)])
    fails(run, 'output "y" has the dimensions [2, 12], and its capacity is smaller')
    m = build("pick", GATHER)
    run, _ = m.prepare({"x": np.ones((4, 3), np.float32), "i": np.array([9], np.int64)})
    fails(run, 'Gather "y": index out of range')
    m = build("divide", DIVIDE)
    run, _ = m.prepare({"a": np.ones(3, np.int32), "b": np.zeros(3, np.int32)})
    fails(run, 'Div "y": bad value')
    # Every check can be told, whatever its values are.
    for m in (m, build("traced", TRACE), build("guarded", VALID)):
        for k in range(m.info.n_checks):
            c = m.info.checks[k]
            assert c.text.decode().count("%lld") == c.n_values <= 4
            assert 0 <= c.status <= 10 and (c.text or not c.status) and (c.text or c.node)
            assert m.fault_string(abi.Fault(check=k, status=5))


def workspaces():
    m = build("trace", TRACE, "--heap", "1K")
    x = rng.standard_normal((7, 64)).astype(np.float32)
    feeds = lambda n: {"x": x, "count": np.array(n, np.int64)}
    total = lambda n: int((np.cumsum(np.arange(n)) ** 2).sum())
    run, (y, _) = m.prepare(feeds(10))
    run()
    want = y.copy()
    asked = run.workspace.size
    for n in (1, 1000, 5000):
        run, outs = m.prepare(feeds(n))
        run()
        assert (outs[0] == want).all() and outs[1] == total(n), n
    assert run.workspace.size > asked
    run, _ = m.prepare(feeds(5000), grow=False)
    fails(run, "bytes, and the workspace has")
    # What a call asks for is enough up to there; never more than that is written.
    run, outs = m.prepare(feeds(1000), grow=False)
    pin, pout, dims, lists, w, _, _ = run.arguments()
    size, rounds = 1, 0
    while True:
        room = abi.aligned((max(size, asked) + 8191) & ~63)
        room[:] = 0xA5
        fault = abi.Fault()
        e = abi.Exec(ct.sizeof(abi.Exec), workspace_size=size, fault=ct.pointer(fault))
        rc = m.info.call(pin, pout, dims, lists, w, room.ctypes.data, ct.addressof(e))
        assert (room[size:] == 0xA5).all(), f"a workspace of {size} bytes"
        if rc == 0:
            break
        if rounds == 0:
            assert (room == 0xA5).all(), "written before the size is checked"
        assert rc == 4 and fault.workspace_size > size, (rc, fault.workspace_size, size)
        size, rounds = fault.workspace_size, rounds + 1
    assert outs[1] == total(1000) and 2 <= rounds <= 8, rounds
    # A caller of an older header: what lies behind its exec is not looked at.
    room = abi.aligned(asked)
    run, outs = m.prepare(feeds(10))
    pin, pout, dims, lists, w, _, _ = run.arguments()
    fault = abi.Fault(check=77)
    e = abi.Exec(ct.sizeof(abi.OldExec), workspace_size=1, fault=ct.pointer(fault))
    assert m.info.call(pin, pout, dims, lists, w, room.ctypes.data, ct.addressof(e)) == 0
    assert m.info.call(pin, pout, dims, lists, w, room.ctypes.data + 1, ct.addressof(e)) == 2 and fault.check == 77
    assert outs[1] == total(10)


def weights_file():
    m = build("apart", DENSE, "--weights", "file")
    assert m.info.weights_size <= os.path.getsize(os.path.join(WORK, "apart.weights"))
    x = rng.standard_normal((3, 64)).astype(np.float32)
    run, (y,) = m.prepare({"x": x})
    run()
    assert np.allclose(y, x.sum(1, keepdims=True) * 0.25 + np.arange(96), atol=1e-4)
    # Each byte that tells the file from others; tests/weights.rs has whole files.
    for at, text in ((0, "no weights file of version 1"), (8, "no weights file of version 1"), (64, "those of another model or compilation"),
                     (95, "those of another model or compilation"), (23, "")):
        m.weights[at] ^= 1
        if text:
            fails(run, f'the weights are {text}')
        else:
            run()  # a larger file serves, too
        m.weights[at] ^= 1
    m.weights[16:24] = 0
    fails(run, 'the weights have 0 bytes: those of "apart.weights" have')


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
        e = abi.Exec(ct.sizeof(abi.Exec), None, callback, threads)
        y[:] = 0
        run(ct.addressof(e))
        assert (y == want).all(), f"{threads} threads give other bits"
    assert max(used, default=0) > 1, "nothing ran in parallel"


for test in (statuses, faults, workspaces, weights_file, output_sizes, tasks):
    test()
    print(f"{test.__name__}: ok")
