"""The package as a user meets it: installed, with the program beside it."""
import gc
import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import onnxc

HEAD = '<ir_version: 10, opset_import: ["" : 21]>\n'
TINY = HEAD + "tiny (float[N, 4] x) => (float[N, 3] y) <float[4, 3] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}> " \
              "{ h = MatMul (x, w) y = Relu (h) }"
W = np.arange(1, 13, dtype=np.float32).reshape(4, 3)


def text(s):
    return s.encode()


@pytest.fixture(scope="module")
def tiny():
    return onnxc.compile(text(TINY))


def test_runs_on_numpy_arrays(tiny):
    for n in (1, 3, 0, 64):
        x = np.random.default_rng(n).normal(size=(n, 4)).astype(np.float32)
        y = tiny.run({"x": x})["y"]
        assert y.shape == (n, 3) and y.dtype == np.float32
        np.testing.assert_allclose(y, np.maximum(x @ W, 0), rtol=1e-5, atol=1e-6)


def test_lists_and_views_are_inputs(tiny):
    np.testing.assert_array_equal(tiny.run({"x": [[1, 0, 0, 0]]})["y"], W[:1])
    x = np.ones((4, 2), np.float32).T
    np.testing.assert_allclose(tiny.run({"x": x})["y"], np.ones((2, 4)) @ W)


def test_describes_the_model(tiny):
    assert tiny.dims == ["N"]
    assert [(t.name, t.dtype, t.shape, t.kind) for t in tiny.inputs] == [("x", "float32", ("N", 4), "tensor")]
    assert tiny.outputs[0].shape == ("N", 3) and "tiny" not in tiny.dims
    assert tiny.workspace_size(N=8) >= 0 and tiny.producer.startswith("onnxc ")
    assert "x: float32[N, 4]" in repr(tiny)


def test_wrong_inputs_are_named(tiny):
    x = np.ones((2, 4), np.float32)
    with pytest.raises(ValueError, match="x is missing; there is no z"):
        tiny.run({"z": x})
    with pytest.raises(TypeError, match='input "x" is float64, and the model takes float32'):
        tiny.run({"x": x.astype(float)})
    with pytest.raises(ValueError, match='input "x" dimension 1 is 5, and the model takes 4'):
        tiny.run({"x": np.ones((2, 5), np.float32)})
    with pytest.raises(ValueError, match="has the shape"):
        tiny.run({"x": x[0]})


def test_faults_name_the_node():
    m = onnxc.compile(text(HEAD + 'pick (float[N, 3] x, int64[M] i) => (float[M, 3] y) { [rows] y = Gather <axis = 0> (x, i) }'))
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.testing.assert_array_equal(m.run({"x": x, "i": [1, 0, -1]})["y"], x[[1, 0, 1]])
    with pytest.raises(onnxc.Error, match='Gather "rows"') as e:
        m.run({"x": x, "i": [7]})
    assert e.value.node == "rows" and e.value.op_type == "Gather" and e.value.status == 5
    # The model is as good as before.
    np.testing.assert_array_equal(m.run({"x": x, "i": [0]})["y"], x[:1])


def test_sizes_that_must_agree():
    m = onnxc.compile(text(HEAD + "sum (float[N, K] x, float[N, M] y) => (float[N, K] z) { [both] z = Add (x, y) }"))
    a = np.ones((2, 3), np.float32)
    with pytest.raises(ValueError, match='input "y" dimension 0 is 4, and N is 2 by input "x"'):
        m.run({"x": a, "y": np.ones((4, 3), np.float32)})
    with pytest.raises(onnxc.Error, match='Add "both".*is 3.*is 5'):
        m.run({"x": a, "y": np.ones((2, 5), np.float32)})


def test_options():
    m = onnxc.compile(text(TINY), dims={"N": 2}, math="strict", opt=1, taps="h")
    assert m.dims == [] and [t.name for t in m.outputs] == ["y", "h"]
    got = m.run({"x": np.full((2, 4), -1, np.float32)})
    assert (got["h"] < 0).all() and (got["y"] == 0).all()
    m = onnxc.compile(text(TINY), dims={"N": (1, 8)})
    with pytest.raises(onnxc.Error, match="N"):
        m.run({"x": np.ones((9, 4), np.float32)})
    with pytest.raises(ValueError, match='no dimension "M"'):
        onnxc.compile(text(TINY), dims={"M": 1})
    with pytest.raises(TypeError):
        onnxc.compile(text(TINY), maths="strict")


def test_refused_models_are_exceptions(tmp_path):
    with pytest.raises(onnxc.CompileError, match="Nonsense"):
        onnxc.compile(text(HEAD + "m (float[2] x) => (float[2] y) { y = Nonsense (x) }"))
    with pytest.raises(onnxc.CompileError, match="nothing.onnx"):
        onnxc.compile(tmp_path / "nothing.onnx")


def test_data_dependent_sizes_and_types():
    m = onnxc.compile(text(HEAD + "nz (float[N] x) => (int64[1, K] i, float16[N] h, bool[N] b) "
                                  "<float zero = {0}> { i = NonZero (x) h = Cast <to = 10> (x) b = Greater (x, zero) }"))
    x = np.array([0, 1, 0, -2], np.float32)
    got = m.run({"x": x})
    np.testing.assert_array_equal(got["i"], [[1, 3]])
    assert got["h"].dtype == np.float16 and got["b"].dtype == np.bool_
    np.testing.assert_array_equal(got["b"], x > 0)
    # More than the first guess has room for.
    x = np.ones(20_000_000, np.float32)
    assert m.run({"x": x})["i"].shape == (1, x.size)


def test_small_integers_and_scalars():
    m = onnxc.compile(text(HEAD + "p (int4[5] x, int32 s) => (int4[5] y, int32 t) { y = Identity (x) t = Add (s, s) }"))
    got = m.run({"x": np.array([-8, -1, 0, 7, 3], np.int8), "s": 21})
    np.testing.assert_array_equal(got["y"], [-8, -1, 0, 7, 3])
    assert got["t"].shape == () and got["t"] == 42


def test_strings_and_sequences():
    m = onnxc.compile(text(HEAD + "s (string[N] a, string[N] b) => (string[N] c) { c = StringConcat (a, b) }"))
    got = m.run({"a": np.array(["x", "grün", ""], object), "b": ["1", "2", "3"]})["c"]
    assert got.tolist() == ["x1", "grün2", "3"]
    m = onnxc.compile(text(HEAD + "q (seq(float[N]) s, int64 i) => (float[M] y) { y = SequenceAt (s, i) }"))
    got = m.run({"s": [np.ones(2, np.float32), np.arange(3, dtype=np.float32)], "i": 1}, sizes={d: 3 for d in m.dims if d == "N"})
    np.testing.assert_array_equal(got["y"], [0, 1, 2])


def test_outputs_go_to_given_arrays(tiny):
    y = np.empty((2, 3), np.float32)
    got = tiny.run({"x": np.ones((2, 4), np.float32)}, out={"y": y})
    assert got["y"] is y and y[0, 0] == W[:, 0].sum()
    with pytest.raises(ValueError, match='output "y": `out` is float32\\[3, 3\\], and the model writes float32\\[2, 3\\]'):
        tiny.run({"x": np.ones((2, 4), np.float32)}, out={"y": np.empty((3, 3), np.float32)})


def test_a_library_is_kept_and_loaded(tmp_path):
    kept = tmp_path / "Kept-Model.so"
    onnxc.compile(text(TINY), output=kept, weights="file")
    assert sorted(os.listdir(tmp_path)) == ["Kept-Model.so", "Kept-Model.weights"]
    m = onnxc.load(kept)
    np.testing.assert_array_equal(m.run({"x": [[1, 0, 0, 0]]})["y"], W[:1])
    os.rename(tmp_path / "Kept-Model.weights", tmp_path / "w")
    with pytest.raises(onnxc.Error, match="weights=PATH"):
        onnxc.load(kept)
    np.testing.assert_array_equal(onnxc.load(kept, weights=tmp_path / "w").run({"x": [[0, 1, 0, 0]]})["y"], W[1:2])


def test_a_cache_serves_the_next_process(tmp_path):
    file = tmp_path / "tiny.txt"
    file.write_text(TINY)
    for _ in range(2):
        m = onnxc.compile(file, cache=tmp_path / "cache")
        np.testing.assert_array_equal(m.run({"x": [[0, 0, 1, 0]]})["y"], W[2:3])
    assert len(os.listdir(tmp_path / "cache")) == 1


def test_trace_reports_nodes():
    m = onnxc.compile(text(HEAD + "two (float[N, 4] x) => (float[N, 4] y) "
                                  "{ [first] h = Softmax <axis = 0> (x) [second] y = Softmax <axis = 1> (h) }"), trace=True)
    seen = []
    m.run({"x": np.ones((2, 4), np.float32)}, on_node=lambda name, op, end: seen.append((name, op, end)))
    assert [s for s in seen if s[0] == "second"] == [("second", "Softmax", False), ("second", "Softmax", True)]

    def stop(*_):
        raise KeyError("enough")
    with pytest.raises(KeyError, match="enough"):
        m.run({"x": np.ones((2, 4), np.float32)}, on_node=stop)


# Some 100 ms on one thread.
HEAVY = HEAD + """heavy (float[N, 256, 256] x) => (float[N, 256, 256] y) {
  a = MatMul (x, x) b = Softmax (a) c = MatMul (b, x) d = Softmax (c) e = MatMul (d, x) y = Softmax (e) }"""


def test_threads_share_a_model_and_release_the_gil():
    m = onnxc.compile(text(HEAVY))
    x = np.random.default_rng(1).normal(size=(24, 256, 256)).astype(np.float32)
    want = m.run({"x": x})["y"]
    # While a call runs, Python does other things.
    done, ticks = threading.Event(), 0
    got = []

    def work():
        got.extend(m.run({"x": x})["y"] for _ in range(3))
        done.set()
    threads = [threading.Thread(target=work) for _ in range(2)]
    start = time.perf_counter()
    for t in threads:
        t.start()
    longest = 0.0
    while not done.is_set():
        before = time.perf_counter()
        time.sleep(0.001)
        longest, ticks = max(longest, time.perf_counter() - before), ticks + 1
    for t in threads:
        t.join()
    total = time.perf_counter() - start
    assert ticks > 5 and longest < total / 2, (ticks, longest, total)
    assert len(got) == 6 and all(np.array_equal(g, want) for g in got)


def test_threads_of_one_call_give_the_same_bits():
    x = np.random.default_rng(2).normal(size=(8, 256, 256)).astype(np.float32)
    one, three = onnxc.compile(text(HEAVY)), onnxc.compile(text(HEAVY), threads=3)
    assert np.array_equal(one.run({"x": x})["y"], three.run({"x": x})["y"])


def test_models_go_away():
    def maps():
        with open("/proc/self/maps", encoding="utf-8") as f:
            return sum("onnxc-" in line for line in f)
    if not os.path.exists("/proc/self/maps"):
        pytest.skip("needs /proc")
    gc.collect()
    before = maps()
    m = onnxc.compile(text(TINY))
    assert maps() > before
    y = m.run({"x": np.ones((1, 4), np.float32)})["y"]
    del m
    gc.collect()
    assert maps() == before and y.sum() > 0


def test_the_program_is_there():
    done = subprocess.run([sys.executable, "-m", "onnxc", "--version"], stdout=subprocess.PIPE, check=True)
    assert done.stdout.startswith(b"onnxc ")
    assert os.access(onnxc.program(), os.X_OK)
