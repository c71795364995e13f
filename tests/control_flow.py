#!/usr/bin/env python3
"""Control flow and run-time sizes against ONNX Runtime, through the C interface.

    control_flow.py ONNXC WORKDIR [CASE...]

Each case is a model in ONNX textual syntax with several sets of inputs. Outputs must have the same shapes and values as
ONNX Runtime's. Sets that say so must end with a status instead.
"""
import pathlib
import re
import subprocess
import sys

import numpy as np

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "tools"))
import abi  # noqa: E402

f32, i64 = np.float32, np.int64


def ramp(*shape):
    n = int(np.prod(shape))
    return (np.arange(n, dtype=f32) * 0.25 - n * 0.1).reshape(shape)


def number(v):
    return np.array(v, i64)


def truth(v):
    return np.array(v, np.bool_)


def bad(feeds, status):
    return {**feeds, "": status}


HEAD = '<ir_version: 8, opset_import: ["" : 17]>\n'
CASES = {}


def case(name, text, *sets, opset=17):
    CASES[name] = (HEAD.replace("17", str(opset)) + re.sub(r"\bN\b", "length", text), sets)


case("if_shapes", """
m (bool c, float[N, 4] x) => (float[a, b] y, float[d, e] z) <int64[2] two = {0, 2}, int64[1] last = {1}, int64[1] one = {1}, float[1, 4] w = {1, 2, 3, 4}> {
  y, z = If (c) <
    then_branch = t () => (float[p, q] p1, float[r, s] p2) { first = Gather <axis = 1> (x, two)  p1 = Relu (first)  p2 = Concat <axis = 0> (x, w, x) },
    else_branch = e () => (float[p, q] p3, float[r, s] p4) { p3 = Concat <axis = 1> (x, x)  p4 = Add (x, w) }>
}""", {"c": truth(True), "x": ramp(3, 4)}, {"c": truth(False), "x": ramp(3, 4)}, {"c": truth(False), "x": ramp(1, 4)}, {"c": truth(True), "x": ramp(0, 4)})

case("if_after", """
m (bool c, float[N, 4] x) => (float[a, 4] y) <int64[1] zero = {0}, int64[1] one = {1}> {
  part = If (c) <
    then_branch = t () => (float[p, 4] p1) { k = Slice (x, zero, one, zero)  p1 = Softmax (k) },
    else_branch = e () => (float[p, 4] p3) { k = Concat <axis = 0> (x, x)  p3 = Softmax (k) }>
  more = Softmax <axis = 0> (part)
  y = Concat <axis = 0> (more, part, x)
}""", {"c": truth(True), "x": ramp(3, 4)}, {"c": truth(False), "x": ramp(3, 4)})

# A squeeze of a dimension whose size the exporter does not know. Only one rank fits the operators behind it.
case("if_squeeze", """
m (float[N, k, T] x, bool c) => (float[N, 2] y, float[a, b, d, e] z) <int64 one = {1}, int64 last = {2}, int64[1] axis = {2}, int64[1] first = {0}, float[2, 3] w = {1, 2, 3, 4, 5, 6}> {
  sizes = Shape (x)
  size = Gather (sizes, last)
  single = Equal (size, one)
  part = If (single) <
    then_branch = t () => (s) { s = Squeeze (x, axis) },
    else_branch = e () => (s2) { s2 = Identity (x) }>
  y = Gemm <transB = 1> (part, w)
  again = If (c) <
    then_branch = u () => (p) { p = Unsqueeze (x, first) },
    else_branch = v () => (q) { q = Unsqueeze (y, first) }>
  z = MaxPool <kernel_shape = [1, 1]> (again)
}""", {"x": ramp(4, 3, 1), "c": truth(True)}, bad({"x": ramp(4, 3, 1), "c": truth(False)}, "bad value"))

case("loop_collects_two", """
m (float[N] x, int64 times, bool go) => (float[a, b] small, float[c, d] large, float[e] last) <int64[1] one = {1}, int64[1] zero = {0}> {
  last, small, large = Loop (times, go, x) <body = body (int64 i, bool on, float[s] before) => (bool again, float[t] after, float[u] p, float[v] q) {
    again = Identity (on)
    w = Relu (before)
    after = Add (before, x)
    some = NonZero (after)
    count = Shape <start = 1, end = 2> (some)
    p = Slice (after, zero, count)
    q = Concat <axis = 0> (p, before, w)
  }>
}""", {"x": ramp(5) + f32(9), "times": number(7), "go": truth(True)}, {"x": ramp(1) + f32(9), "times": number(40), "go": truth(True)})

case("scan_batched", """
m (float[A, B] first, float[C, D, E] x) => (float[a, b] y, float[c, d, e] z) {
  y, z = Scan <num_scan_inputs = 1, body = step (float[s] old, float[t] row) => (float[u] new, float[v] out) {
    new = Add (old, row)
    out = Identity (new)
  }> ("", first, x)
}""", {"first": ramp(1, 2), "x": ramp(1, 3, 2)}, {"first": ramp(3, 2), "x": ramp(3, 5, 2)}, opset=8)

case("if_nested", """
m (bool c, bool d, float[N] x) => (float[a] y) {
  y = If (c) <
    then_branch = t () => (float[p] p1) {
      inner = If (d) < then_branch = tt () => (float[q] q1) { q1 = Concat <axis = 0> (x, x) }, else_branch = te () => (float[q] q2) { q2 = Neg (x) } >
      p1 = Concat <axis = 0> (inner, x)
    },
    else_branch = e () => (float[p] p2) { p2 = Identity (x) }>
}""", *({"c": truth(c), "d": truth(d), "x": ramp(5)} for c in (0, 1) for d in (0, 1)))

case("if_ranks", """
m (bool c, float[N, 4] x, float[4] w) => (float[4] y, int64 rank) {
  s = If (c) <
    then_branch = t () => (float s1) { s1 = ReduceMean <keepdims = 0> (w) },
    else_branch = e () => (float[p, 4] s2) { s2 = Concat <axis = 0> (x, x) }>
  sizes = Shape (s)
  rank = Size (sizes)
  most = ReduceMax <keepdims = 0> (s)
  v = Mul (w, s)
  sum = ReduceSum <keepdims = 0> (v)
  part = Add (w, most)
  y = Mul (part, sum)
}""", *({"c": truth(c), "x": ramp(3, 4), "w": ramp(4)} for c in (0, 1)))

for lengths in ("", "lengths"):
    case(f"scan_batched_{lengths}", f"""
m (int64[B] lengths, float[B, 2] first, float[B, T, 2] x, float[B, T, 2] z) => (float[B, 2] last, float[B, T, 2] sums, int64[B] same) {{
  last, sums = Scan <num_scan_inputs = 2, directions = [0, 1],
    body = step (float[2] s, float[2] a, float[2] b) => (float[2] t, float[2] o) {{ p = Mul (a, b)  t = Add (s, p)  o = Sub (t, a) }}
  > ({lengths or '""'}, first, x, z)
  same = Identity (lengths)
}}""", {"lengths": np.array([4, 1, 2]), "first": ramp(3, 2), "x": ramp(3, 4, 2), "z": ramp(3, 4, 2) + 1},
        {"lengths": np.array([3]), "first": ramp(1, 2), "x": ramp(1, 5, 2), "z": ramp(1, 5, 2) + 1}, opset=8)

case("if_constant", """
m (float[N] x) => (float[N] y) <bool c = {1}> {
  y = If (c) < then_branch = t () => (float[p] p1) { p1 = Neg (x) }, else_branch = e () => (float[p] p2) { p2 = Concat <axis = 0> (x, x) }>
}""", {"x": ramp(4)})

case("loop_sum", """
m (int64 n, float[3] x) => (float[3] y, float[k, 3] all) <bool go = {1}> {
  y, all = Loop (n, go, x) < body = b (int64 i, bool c, float[3] v) => (bool co, float[3] vo, float[3] s) {
    f = Cast <to = 1> (i)  vo = Add (v, f)  s = Mul (vo, vo)  co = Identity (c) } >
}""", *({"n": number(n), "x": ramp(3)} for n in (0, 1, 4, -2)))

case("loop_grows", """
m (int64 n, float[N, 2] x) => (float[k, 2] y) <bool go = {1}> {
  y = Loop (n, go, x) < body = b (int64 i, bool c, float[p, 2] v) => (bool co, float[q, 2] vo) {
    s = Softmax (v)  vo = Concat <axis = 0> (s, x, v)  co = Identity (c) } >
}""", *({"n": number(n), "x": ramp(r, 2)} for n in (0, 1, 5) for r in (1, 3)))

case("loop_shrinks", """
m (int64 n, float[N] x) => (float[k] y, float[K] z) <bool go = {1}, int64[1] one = {1}, int64[1] far = {1000}> {
  a = Relu (x)
  y, z = Loop (n, go, x, a) < body = b (int64 i, bool c, float[p] v, float[q] w) => (bool co, float[r] vo, float[s] wo) {
    vo = Slice (v, one, far)  wo = Concat <axis = 0> (w, vo)  co = Identity (c) } >
}""", *({"n": number(n), "x": ramp(7)} for n in (0, 1, 3, 9)))

case("loop_swap", """
m (int64 n, float[N] x, float[N] z) => (float[N] y, float[N] u) <bool go = {1}> {
  y, u = Loop (n, go, x, z) < body = b (int64 i, bool c, float[N] v, float[N] w) => (bool co, float[N] vo, float[N] wo) {
    vo = Identity (w)  wo = Identity (v)  co = Identity (c) } >
}""", *({"n": number(n), "x": ramp(4), "z": -ramp(4)} for n in (0, 1, 2, 3)))

case("loop_swap_sizes", """
m (int64 n, float[N] x, float[M] z) => (float[a] y, float[b] u) <bool go = {1}> {
  y, u = Loop (n, go, x, z) < body = b (int64 i, bool c, float[p] v, float[q] w) => (bool co, float[r] vo, float[s] wo) {
    vo = Identity (w)  wo = Concat <axis = 0> (v, v)  co = Identity (c) } >
}""", *({"n": number(n), "x": ramp(4), "z": -ramp(2)} for n in (0, 1, 2, 5)))

case("loop_reverse_in_place", """
m (int64 n, float[N, 3] x) => (float[N, 3] y) <bool go = {1}, int64[3] order = {2, 0, 1}> {
  y = Loop (n, go, x) < body = b (int64 i, bool c, float[N, 3] v) => (bool co, float[N, 3] vo) {
    vo = Gather <axis = 1> (v, order)  co = Identity (c) } >
}""", *({"n": number(n), "x": ramp(2, 3)} for n in (0, 1, 2)))

case("loop_until", """
m (float[1] x, float[1] limit) => (float[1] y, float[k, 1] all) <int64 most = {100}, bool go = {1}, float[1] two = {2}> {
  y, all = Loop (most, go, x) < body = b (int64 i, bool c, float[1] v) => (bool co, float[1] vo, float[1] s) {
    vo = Mul (v, two)  less = Less (vo, limit)  shape = Constant <value_ints = [0]> ()  none = Constant <value_ints: ints = [0]> ()  co = Squeeze (less)  s = Neg (vo) } >
}""", *({"x": np.array([1.5], f32), "limit": np.array([l], f32)} for l in (0, 20, 1e6)))

case("loop_forever", """
m (float[N] x, float limit) => (float[N] y, float[k, N] all) <bool go = {1}, float two = {2}> {
  y, all = Loop ("", go, x) < body = b (int64 i, bool c, float[N] v) => (bool co, float[N] vo, float[N] s) {
    vo = Mul (v, two)  most = ReduceMax <keepdims = 0> (vo)  co = Less (most, limit)  s = Softmax (vo) } >
}""", *({"x": ramp(3) + 2, "limit": np.array(l, f32)} for l in (0, 20, 1e6)))

case("loop_first_condition", """
m (bool go, float[N] x) => (float[N] y, float[k, N] all) <int64 three = {3}> {
  y, all = Loop (three, go, x) < body = b (int64 i, bool c, float[N] v) => (bool co, float[N] vo, float[N] s) {
    vo = Add (v, x)  s = Neg (v)  co = Identity (c) } >
}""", {"go": truth(True), "x": ramp(3)}, {"go": truth(False), "x": ramp(3)})

case("loop_no_carried", """
m (int64 n, float[N] x) => (float[k, N] all) <bool go = {1}> {
  all = Loop (n, go) < body = b (int64 i, bool c) => (bool co, float[N] s) { f = Cast <to = 1> (i)  s = Mul (x, f)  co = Identity (c) } >
}""", *({"n": number(n), "x": ramp(3)} for n in (0, 2)))

case("loop_nested", """
m (int64 n, int64 k, float[N] x) => (float[a] y, float[b, N] rows) <bool go = {1}> {
  y, rows = Loop (n, go, x) < body = b (int64 i, bool c, float[p] v) => (bool co, float[q] vo, float[N] s) {
    inner, parts = Loop (k, c, x) < body = bb (int64 j, bool d, float[N] w) => (bool do, float[N] wo, float[N] part) {
      g = Add (i, j)  f = Cast <to = 1> (g)  wo = Add (w, f)  part = Mul (wo, wo)  do = Identity (d) } >
    s = ReduceSum <keepdims = 0> (parts, axis)  vo = Concat <axis = 0> (v, inner)  co = Identity (c)
    axis = Constant <value_ints = [0]> ()
  } >
}""".replace("    s = ReduceSum <keepdims = 0> (parts, axis)", "    axis = Constant <value_ints = [0]> ()\n    s = ReduceSum <keepdims = 0> (parts, axis)").replace("    axis = Constant <value_ints = [0]> ()\n  } >", "  } >"),
     *({"n": number(n), "k": number(k), "x": ramp(3)} for n in (0, 1, 3) for k in (1, 2)))

case("loop_if", """
m (int64 n, float[N] x) => (float[a] y) <bool go = {1}, int64 two = {2}, int64 zero = {0}> {
  y = Loop (n, go, x) < body = b (int64 i, bool c, float[p] v) => (bool co, float[q] vo) {
    r = Mod (i, two)  even = Equal (r, zero)
    vo = If (even) < then_branch = t () => (float[u] u1) { u1 = Concat <axis = 0> (v, x) }, else_branch = e () => (float[u] u2) { u2 = Softmax (v) } >
    co = Identity (c) } >
}""", *({"n": number(n), "x": ramp(3)} for n in (0, 1, 2, 3, 6)))

case("loop_slices", """
m (int64 n, float[N, T] x, int64 w) => (float[N, k] y) <bool go = {1}, int64[1] one = {1}, int64[1] flat = {-1}, float[1] none = {0}> {
  shape = Shape <start = 0, end = 1> (x)
  zero = Constant <value_ints = [0]> ()
  start = Concat <axis = 0> (shape, zero)
  empty = ConstantOfShape (start)
  y = Loop (n, go, empty) < body = b (int64 i, bool c, float[N, p] v) => (bool co, float[N, q] vo) {
    f = Mul (i, w)  e = Add (f, w)  from = Reshape (f, flat)  to = Reshape (e, flat)
    part = Slice (x, from, to, one)  mean = ReduceMean <axes = [1], keepdims = 1> (part)
    vo = Concat <axis = 1> (v, mean)  co = Identity (c) } >
}""", *({"n": number(n), "x": ramp(2, 12), "w": number(w)} for n, w in ((0, 3), (4, 3), (2, 6), (1, 12))))

case("scan_axes", """
m (float[2] h, float[2, T] x, float[T, 2] z) => (float[2] y, float[2, T] a, float[T, 2] b) {
  y, a, b = Scan <num_scan_inputs = 2, scan_input_axes = [1, 0], scan_input_directions = [0, 1], scan_output_axes = [1, 0], scan_output_directions = [1, 0],
    body = g (float[2] s, float[2] u, float[2] w) => (float[2] so, float[2] p, float[2] q) { d = Sub (u, w)  so = Add (s, d)  p = Mul (so, u)  q = Neg (w) } > (h, x, z)
}""", *({"h": ramp(2), "x": ramp(2, t), "z": -ramp(t, 2)} for t in (1, 4)))

case("outer_shape_value", """
m (int64 n, float[N, 3] x) => (float[M] y) <bool go = {1}, int64[1] flat = {-1}> {
  shape = Shape (x)
  z = Reshape (x, flat)
  y = Loop (n, go, z) < body = b (int64 i, bool c, float[p] v) => (bool co, float[q] vo) {
    w = Reshape (v, shape)  s = Softmax (w)  vo = Reshape (s, flat)  co = Identity (c) } >
}""", *({"n": number(n), "x": ramp(2, 3)} for n in (0, 2)))

case("data_sizes", """
m (float[N] x, int64[2] shape, int64 n) => (float[a] pos, float[b, c] wide, float[d] tail, int64[2] sizes) <float zero = {0}, int64[1] flat = {-1}, int64[1] one = {1}, int64[1] far = {99}> {
  up = Greater (x, zero)
  at = NonZero (up)
  list = Reshape (at, flat)
  pos = Gather (x, list)
  few = Softmax (pos)
  sum = ReduceSum <keepdims = 1> (few)
  wide = Expand (sum, shape)
  from = Reshape (n, flat)
  tail = Slice (few, from, far)
  p = Shape (pos)  q = Shape (tail)
  sizes = Concat <axis = 0> (p, q)
}""", *({"x": ramp(9) if k else -np.ones(5, f32), "shape": np.array(s, i64), "n": number(n)} for k, s, n in ((1, [2, 3], 1), (1, [1, 1], -2), (0, [4, 1], 0))))


# --- What grows around a loop. ---

case("sequences_grow", """
m (int64 n, float[N] x) => (float[a] all, float[b] front, float[d, N] slices, int64 len, float[e] tail) <bool go = {1}, int64 far = {1000}, int64[1] none = {0}, int64[1] one = {1}, int64 zero = {0}, int64 five = {5}, float[1] last = {7}> {
  empty = SequenceEmpty ()
  some = SequenceConstruct (x)
  start = Less (zero, n)
  s, t, tail, slices = Loop (far, start, empty, some, last) <
    body = b (int64 i, bool c, seq(float[p]) u, seq(float[q]) w, float[r] v) => (bool co, seq(float[p1]) uo, seq(float[q1]) wo, float[r1] vo, float[N] slice) {
      k = Mod (i, five)  end = Unsqueeze (k, none)  to = Add (end, one)
      part = Slice (x, none, to)
      first = SequenceInsert (u, part)
      half = SequenceInsert (u, v)  h = SequenceLength (half)
      uo = SequenceInsert (first, v)
      wo = SequenceInsert (w, part, zero)
      f = Cast <to = 1> (h)
      slice = Add (x, f)
      vl = Slice (v, none, one)  vp = Add (vl, f)  vo = Concat <axis = 0> (v, vp)
      done = SequenceLength (u)  next = Add (i, one)  scalar = Squeeze (next)  co = Less (scalar, n) } >
  all = ConcatFromSequence <axis = 0> (s)
  front = ConcatFromSequence <axis = 0> (t)
  len = SequenceLength (s)
}""", *({"n": number(n), "x": ramp(6)} for n in (1, 2, 7, 60)))

case("sequences_grow_and_shrink", """
m (int64 n, float[N, 2] x) => (float[a, 2] all, float[b, 2] kept, int64 len) <bool go = {1}, int64[1] none = {0}, int64[1] one = {1}, int64 zero = {0}> {
  some = SequenceConstruct (x, x)
  s, t = Loop (n, go, some, some) <
    body = b (int64 i, bool c, seq(float[p, 2]) u, seq(float[q, 2]) w) => (bool co, seq(float[p1, 2]) uo, seq(float[q, 2]) wo) {
      co = Identity (c)
      was = SequenceAt (u, i)
      y = Relu (was)
      two = Concat <axis = 0> (y, was)
      more = SequenceInsert (u, y)  most = SequenceInsert (more, two, i)
      uo = SequenceErase (most, zero)
      wo = Identity (w) } >
  all = ConcatFromSequence <axis = 0> (s)
  kept = ConcatFromSequence <axis = 0> (t)
  len = SequenceLength (s)
}""", *({"n": number(n), "x": ramp(2, 2)} for n in (0, 1, 6)))

case("sequences_change_places", """
m (int64 n, float[N] x) => (float[a] one, float[b] two) <bool go = {1}, int64 zero = {0}> {
  s = SequenceConstruct (x)
  e = SequenceConstruct (x, x)
  p, q = Loop (n, go, s, e) <
    body = b (int64 i, bool c, seq(float[p]) u, seq(float[q]) w) => (bool co, seq(float[p1]) uo, seq(float[q1]) wo) {
      co = Identity (c)
      y = SequenceAt (w, zero)  z = Neg (y)
      wo = SequenceInsert (u, y)
      uo = SequenceInsert (w, z) } >
  one = ConcatFromSequence <axis = 0> (p)
  two = ConcatFromSequence <axis = 0> (q)
}""", *({"n": number(n), "x": ramp(3)} for n in (0, 1, 2, 9)))

case("sequences_grow_in_nested_loops", """
m (int64 n, int64 k, float[N] x) => (float[a] all, float[b] v, float[c, d] slices) <bool go = {1}, int64[1] none = {0}, int64[1] one = {1}> {
  empty = SequenceEmpty ()
  s, v, slices = Loop (n, go, empty, x) <
    body = b (int64 i, bool c, seq(float[p]) u, float[q] w) => (bool co, seq(float[p1]) uo, float[q1] wo, float[N] slice) {
      co = Identity (c)
      uo, wo = Loop (k, go, u, w) <
        body = b2 (int64 j, bool e, seq(float[r]) g, float[t] h) => (bool eo, seq(float[r1]) ho, float[t1] hh) {
          eo = Identity (e)
          f = Cast <to = 1> (j)  y = Add (h, f)
          ho = SequenceInsert (g, y)
          first = Slice (y, none, one)  hh = Concat <axis = 0> (h, first) } >
      g = Cast <to = 1> (i)
      slice = Mul (x, g) } >
  all = ConcatFromSequence <axis = 0> (s)
}""", *({"n": number(n), "k": number(k), "x": ramp(3)} for n, k in ((1, 1), (3, 4), (7, 5), (4, 9))))

case("results_of_loops_change_places", """
m (int64 n, float[N] x) => (float[a] one, float[b] two) <bool go = {1}, int64 three = {3}> {
  y = Neg (x)
  one, two = Loop (n, go, x, y) <
    body = b (int64 i, bool c, float[p] u, float[q] w) => (bool co, float[p1] uo, float[q1] wo) {
      co = Identity (c)
      wo, uo = Loop (three, go, w, u) <
        body = b2 (int64 j, bool e, float[r] g, float[s] h) => (bool eo, float[r1] gg, float[s1] hh) {
          eo = Identity (e)  gg = Concat <axis = 0> (g, w)  hh = Concat <axis = 0> (h, h) } > } >
}""", *({"n": number(n), "x": ramp(64)} for n in (0, 1, 2, 3)))


case("statuses", """
m (float[6] x, int64[2] shape, int64[1] n) => (float[a, b] y, float[c] z) {
  y = Reshape (x, shape)
  z = ConstantOfShape (n)
}""", {"x": ramp(6), "shape": np.array([2, -1], i64), "n": np.array([3], i64)},
     bad({"x": ramp(6), "shape": np.array([4, -1], i64), "n": np.array([3], i64)}, "bad value"),
     bad({"x": ramp(6), "shape": np.array([-1, -1], i64), "n": np.array([3], i64)}, "bad value"),
     bad({"x": ramp(6), "shape": np.array([-2, 3], i64), "n": np.array([3], i64)}, "bad value"),
     bad({"x": ramp(6), "shape": np.array([1 << 62, 8], i64), "n": np.array([3], i64)}, "bad value"),
     bad({"x": ramp(6), "shape": np.array([2, 3], i64), "n": np.array([-1], i64)}, "bad value"),
     bad({"x": ramp(6), "shape": np.array([2, 3], i64), "n": np.array([1 << 40], i64)}, "bad dimension"),
     bad({"x": ramp(6), "shape": np.array([2, 3], i64), "n": np.array([200], i64)}, "buffer too small [[2, 3], [200]]"))

case("workspace", """
m (float[1, 1] x, int64[2] shape) => (float[1] y) {
  wide = Expand (x, shape)
  soft = Softmax <axis = 0> (wide)
  again = Softmax (soft)
  y = ReduceMean <keepdims = 0, axes = [0]> (sum)
  sum = ReduceMax <keepdims = 1> (again)
}""".replace("  y = ReduceMean <keepdims = 0, axes = [0]> (sum)\n  sum = ReduceMax <keepdims = 1> (again)", "  sum = ReduceMax <keepdims = 1> (again)\n  y = ReduceMean <keepdims = 0, axes = [0]> (sum)"),
     {"x": ramp(1, 1), "shape": np.array([30, 40], i64)},
     # More than --heap gives: the call says how much, and is made again.
     {"x": ramp(1, 1), "shape": np.array([2000, 3000], i64)},
     bad({"x": ramp(1, 1), "shape": np.array([3000, 4000], i64)}, "buffer too small"),
     bad({"x": ramp(1, 1), "shape": np.array([1 << 30, 1 << 30], i64)}, "buffer too small"),
     bad({"x": ramp(1, 1), "shape": np.array([(1 << 31) - 1, (1 << 31) - 1], i64)}, "buffer too small"))


def reference(model, feeds):
    import onnxruntime as ort
    o = ort.SessionOptions()
    o.log_severity_level = 3
    return ort.InferenceSession(model.SerializeToString(), o, providers=["CPUExecutionProvider"]).run(None, feeds)


def run_case(onnxc, work, name, level):
    import onnx
    import onnx.parser
    text, sets = CASES[name]
    model = onnx.parser.parse_model(text)
    path, obj, lib = work / f"{name}.onnx", work / f"{name}.o", work / f"{name}_{level}.so"
    path.write_bytes(model.SerializeToString())
    subprocess.run([onnxc, str(path), "-o", str(obj), "--name", f"m_{name}", "--emit", "obj", f"-O{level}"], check=True)
    abi.link([str(obj)], str(lib))
    m = abi.Model(str(lib), f"m_{name}")
    for feeds in sets:
        feeds = dict(feeds)
        status = feeds.pop("", None)
        want = reference(model, feeds) if status is None else None
        # What has no iterations has no sizes either, as far as ONNX Runtime can tell.
        room = [w.shape if w.size else [max(8, d) for d in w.shape] for w in want] if want else [[8] * t.rank for t in m.outputs]
        run, outs = m.prepare(feeds, room, grow=status is None)
        shown = {k: v.tolist() if v.size < 4 else v.shape for k, v in feeds.items()}
        try:
            run()
        except RuntimeError as e:
            # What failed is named in between.
            word, bracket, lists = (status or "?").partition(" [")
            assert str(e).startswith(f"call: {word} ") and str(e).endswith(bracket + lists) and '"' in str(e), f"{name} -O{level} {shown}: {e}, expected {status}"
            continue
        assert status is None, f"{name} -O{level} {shown}: no status, expected {status}"
        for k, (got, w) in enumerate(zip(outs, want)):
            assert got.shape == w.shape or got.size == w.size == 0, f"{name} -O{level} {shown}: output {k} has shape {got.shape}, expected {w.shape}"
            np.testing.assert_allclose(got.reshape(w.shape), w, rtol=1e-4, atol=1e-5, err_msg=f"{name} -O{level} {shown}: output {k}")


def main():
    onnxc, work = sys.argv[1], pathlib.Path(sys.argv[2])
    work.mkdir(parents=True, exist_ok=True)
    failed = 0
    for name in sys.argv[3:] or CASES:
        for level in (0, 1, 2):
            try:
                run_case(onnxc, work, name, level)
            except (AssertionError, subprocess.CalledProcessError, RuntimeError) as e:
                failed += 1
                print(f"{name} -O{level}: {' '.join(str(e).split())[:400]}")
                break
    print(f"{len(sys.argv[3:] or CASES)} cases, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
