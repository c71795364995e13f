#!/usr/bin/env python3
"""Random programs of sequence operators against ONNX Runtime, through the C interface.

    sequences.py ONNXC WORKDIR [FIRST_SEED [COUNT]]

A program is made together with its values, so that positions and shapes fit. Sizes and positions are constants or come as
inputs; sequences come as inputs, are built, changed, taken apart, go through branches and loops, and are results.
"""
import pathlib
import random
import subprocess
import sys

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "tools"))
import abi  # noqa: E402

DTYPES = {TensorProto.FLOAT: np.float32, TensorProto.INT64: np.int64, TensorProto.DOUBLE: np.float64, TensorProto.UINT8: np.uint8}
PROGRAMS_A_LIBRARY = 20


class Program:
    def __init__(self, seed):
        self.r = random.Random(seed)
        self.dtype = self.r.choice(list(DTYPES))
        self.rank = self.r.choice([1, 1, 2, 2, 3])
        self.nodes, self.inputs, self.init, self.feeds = [], [], [], {}
        self.tensors, self.seqs = {}, {}  # name -> value
        self.count = 0
        for _ in range(self.r.randint(1, 3)):
            self.input_tensor()
        if self.r.random() < 0.5:
            self.input_sequence()
        for _ in range(self.r.randint(2, 9)):
            self.step()

    def name(self, hint):
        self.count += 1
        return f"{hint}{self.count}"

    def array(self, shape):
        n = int(np.prod(shape, dtype=np.int64))
        return np.array([self.r.randint(0, 99) for _ in range(n)], DTYPES[self.dtype]).reshape(shape)

    def shape(self):
        return [self.r.choice([0, 1, 1, 2, 3, 4]) if self.r.random() < 0.3 else 2 for _ in range(self.rank)]

    def input_tensor(self):
        n, s = self.name("x"), self.shape()
        self.inputs.append(helper.make_tensor_value_info(n, self.dtype, [d if self.r.random() < 0.5 else self.name("D") for d in s]))
        self.feeds[n] = self.tensors[n] = self.array(s)

    def input_sequence(self):
        n = self.name("s")
        members = [self.array(self.shape()) for _ in range(self.r.randint(0, 3))]
        kind = helper.make_sequence_type_proto(helper.make_tensor_type_proto(self.dtype, [None] * self.rank))
        self.inputs.append(helper.make_value_info(n, kind))
        self.feeds[n] = self.seqs[n] = members

    def number(self, v):
        """A scalar that is known, or only at run time."""
        n = self.name("i")
        if self.r.random() < 0.5:
            self.init.append(numpy_helper.from_array(np.array(v, np.int64), n))
        else:
            self.inputs.append(helper.make_tensor_value_info(n, TensorProto.INT64, []))
            self.feeds[n] = np.array(v, np.int64)
        return n

    def truth(self, v):
        n = self.name("c")
        self.inputs.append(helper.make_tensor_value_info(n, TensorProto.BOOL, []))
        self.feeds[n] = np.array(v)
        return n

    def add(self, op, inputs, out, **attrs):
        self.nodes.append(helper.make_node(op, inputs, [out], **attrs))
        return out

    def pick(self, values):
        return self.r.choice(sorted(values))

    def place(self, n):
        p = self.r.randrange(n)
        return p, self.number(p - n if self.r.random() < 0.4 else p)

    def step(self):
        choice = self.r.choice(["construct", "empty", "insert", "insert", "erase", "at", "length", "split", "split", "concat", "if", "loop", "map", "each"])
        getattr(self, "do_" + choice)()

    def do_construct(self):
        names = [self.pick(self.tensors) for _ in range(self.r.randint(1, 3))]
        self.seqs[self.add("SequenceConstruct", names, self.name("s"))] = [self.tensors[n] for n in names]

    def do_empty(self):
        self.seqs[self.add("SequenceEmpty", [], self.name("s"), dtype=self.dtype)] = []

    def do_insert(self):
        if not self.seqs:
            return self.do_construct()
        s, x = self.pick(self.seqs), self.pick(self.tensors)
        have = list(self.seqs[s])
        if self.r.random() < 0.4:
            have.append(self.tensors[x])
            out = self.add("SequenceInsert", [s, x], self.name("s"))
        else:
            n = len(have)
            p = self.r.randint(0, n)
            i = self.number(p - n if p < n and self.r.random() < 0.4 else p)
            have.insert(p, self.tensors[x])
            out = self.add("SequenceInsert", [s, x, i], self.name("s"))
        self.seqs[out] = have

    def full(self):
        return {k: v for k, v in self.seqs.items() if v}

    def do_erase(self):
        if not self.full():
            return self.do_construct()
        s = self.pick(self.full())
        have = list(self.seqs[s])
        if self.r.random() < 0.3:
            have.pop()
            out = self.add("SequenceErase", [s], self.name("s"))
        else:
            p, i = self.place(len(have))
            del have[p]
            out = self.add("SequenceErase", [s, i], self.name("s"))
        self.seqs[out] = have

    def do_at(self):
        if not self.full():
            return self.do_construct()
        s = self.pick(self.full())
        p, i = self.place(len(self.seqs[s]))
        self.tensors[self.add("SequenceAt", [s, i], self.name("x"))] = self.seqs[s][p]

    def do_length(self):
        if self.seqs:
            self.lengths = getattr(self, "lengths", []) + [self.add("SequenceLength", [self.pick(self.seqs)], self.name("n"))]

    def do_split(self):
        x = self.pick(self.tensors)
        v = self.tensors[x]
        axis = self.r.randrange(self.rank)
        n = v.shape[axis]
        given = axis - self.rank if self.r.random() < 0.4 else axis
        kind = self.r.random()
        inputs, places = [x], list(range(1, n))
        if kind < 0.3 and n:
            size = self.r.randint(1, n)
            inputs.append(self.number(size))
            places = list(range(size, n, size))
        elif kind < 0.7 and n:
            places = sorted(self.r.randint(0, n) for _ in range(self.r.randint(0, 2)))
            sizes = np.diff([0, *places, n]).astype(np.int64)
            name = self.name("i")
            if self.r.random() < 0.5:
                self.init.append(numpy_helper.from_array(sizes, name))
            else:
                self.inputs.append(helper.make_tensor_value_info(name, TensorProto.INT64, [len(sizes) if self.r.random() < 0.5 else self.name("D")]))
                self.feeds[name] = sizes
            inputs.append(name)
        self.seqs[self.add("SplitToSequence", inputs, self.name("s"), axis=given)] = np.split(v, places, axis) if n else []

    def do_concat(self):
        for s in self.r.sample(sorted(self.full()), len(self.full())):
            v = self.seqs[s]
            axis = self.r.randrange(self.rank)
            if all(np.delete(a.shape, axis).tolist() == np.delete(v[0].shape, axis).tolist() for a in v):
                given = axis - self.rank if self.r.random() < 0.4 else axis
                self.tensors[self.add("ConcatFromSequence", [s], self.name("x"), axis=given)] = np.concatenate(v, axis)
                return
        for s in sorted(self.full()):
            v = self.seqs[s]
            if all(a.shape == v[0].shape for a in v):
                axis = self.r.randrange(self.rank + 1)
                self.stacked = getattr(self, "stacked", []) + [self.add("ConcatFromSequence", [s], self.name("y"), axis=axis, new_axis=1)]
                return

    def graph(self, name, nodes, inputs, outputs):
        return helper.make_graph(nodes, name, inputs, outputs)

    def seq_info(self, name):
        return helper.make_value_info(name, helper.make_sequence_type_proto(helper.make_tensor_type_proto(self.dtype, None)))

    def do_if(self):
        if not self.seqs:
            return self.do_empty()
        a, b, take = self.pick(self.seqs), self.pick(self.seqs), self.r.random() < 0.5
        out, x = self.name("s"), self.pick(self.tensors)
        yes, no = self.name("t"), self.name("e")
        then = self.graph("then", [helper.make_node("SequenceInsert", [a, x], [yes])], [], [self.seq_info(yes)])
        els = self.graph("else", [helper.make_node("Identity", [b], [no])], [], [self.seq_info(no)])
        self.add("If", [self.truth(take)], out, then_branch=then, else_branch=els)
        self.seqs[out] = [*self.seqs[a], self.tensors[x]] if take else list(self.seqs[b])

    def do_loop(self):
        if not self.seqs:
            return self.do_empty()
        s, x, n = self.pick(self.seqs), self.pick(self.tensors), self.r.randint(0, 3)
        i, go, here, on, value, after = (self.name(h) for h in ("it", "go", "in", "on", "v", "out"))
        nodes = [helper.make_node("Identity", [go], [on]), helper.make_node("Concat", [x, x], [value], axis=0), helper.make_node("SequenceInsert", [here, value, i], [after])]
        inputs = [helper.make_tensor_value_info(i, TensorProto.INT64, []), helper.make_tensor_value_info(go, TensorProto.BOOL, []), self.seq_info(here)]
        body = self.graph("body", nodes, inputs, [helper.make_tensor_value_info(on, TensorProto.BOOL, []), self.seq_info(after)])
        out = self.add("Loop", [self.number(n), "", s], self.name("s"), body=body)
        have = list(self.seqs[s])
        for k in range(n):
            have.insert(k, np.concatenate([self.tensors[x]] * 2, 0))
        self.seqs[out] = have

    def do_each(self):
        """A loop that looks at all members."""
        if not self.full():
            return self.do_construct()
        s = self.pick(self.full())
        i, go, here, on, value, after = (self.name(h) for h in ("it", "go", "in", "on", "v", "out"))
        nodes = [helper.make_node("Identity", [go], [on]), helper.make_node("SequenceAt", [s, i], [value]), helper.make_node("Concat", [here, value], [after], axis=0)]
        x = self.seqs[s][0]
        if any(a.shape[1:] != x.shape[1:] for a in self.seqs[s]):
            return
        first, length, out = self.name("z"), self.name("n"), self.name("x")
        self.add("SequenceAt", [s, self.number(0)], first)
        self.add("SequenceLength", [s], length)
        info = lambda n: helper.make_tensor_value_info(n, self.dtype, [None] * self.rank)  # noqa: E731
        inputs = [helper.make_tensor_value_info(i, TensorProto.INT64, []), helper.make_tensor_value_info(go, TensorProto.BOOL, []), info(here)]
        self.add("Loop", [length, "", first], out, body=self.graph("body", nodes, inputs, [helper.make_tensor_value_info(on, TensorProto.BOOL, []), info(after)]))
        self.tensors[out] = np.concatenate([x, *self.seqs[s]], 0)

    def do_map(self):
        if not self.seqs:
            return self.do_construct()
        s = self.pick(self.seqs)
        a, y = self.name("a"), self.name("b")
        info = lambda n: helper.make_tensor_value_info(n, self.dtype, [None] * self.rank)  # noqa: E731
        body = self.graph("body", [helper.make_node("Concat", [a, a], [y], axis=self.rank - 1)], [info(a)], [info(y)])
        self.seqs[self.add("SequenceMap", [s], self.name("s"), body=body)] = [np.concatenate([v, v], self.rank - 1) for v in self.seqs[s]]

    def model(self):
        made = [n.output[0] for n in self.nodes]
        outputs = []
        for n in made:
            if n in self.tensors:
                outputs.append(helper.make_tensor_value_info(n, self.dtype, [None] * self.rank))
            elif n in self.seqs:
                outputs.append(self.seq_info(n))
            elif n in getattr(self, "lengths", []):
                outputs.append(helper.make_tensor_value_info(n, TensorProto.INT64, []))
            elif n in getattr(self, "stacked", []):
                outputs.append(helper.make_tensor_value_info(n, self.dtype, [None] * (self.rank + 1)))
        self.r.shuffle(outputs)
        graph = helper.make_graph(self.nodes, "program", self.inputs, outputs[:6] or outputs, self.init)
        return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])


def same(got, want):
    if isinstance(want, list):
        return isinstance(got, list) and len(got) == len(want) and all(same(g, w) for g, w in zip(got, want))
    return got.shape == want.shape and got.dtype == want.dtype and np.array_equal(got, want)


def main():
    onnxc, work = sys.argv[1], pathlib.Path(sys.argv[2])
    first, count = (int(a) for a in (sys.argv[3:5] + ["1", "60"][len(sys.argv) - 3:]))
    work.mkdir(parents=True, exist_ok=True)
    bad = refused = 0
    for start in range(first, first + count, PROGRAMS_A_LIBRARY):
        batch = []
        for seed in range(start, min(start + PROGRAMS_A_LIBRARY, first + count)):
            p = Program(seed)
            model = p.model()
            if not model.graph.output:
                continue
            path = work / f"seq{seed}.onnx"
            onnx.save(model, path)
            r = subprocess.run([onnxc, str(path), "-o", str(path.with_suffix(".o")), "--emit", "obj"], capture_output=True, text=True)
            if r.returncode:
                known = "several ranks" in r.stderr
                refused += known
                bad += not known
                if not known:
                    print(f"seed {seed}: {r.stderr[:1200]}")
                continue
            batch.append((seed, p, model, path))
        if not batch:
            continue
        lib = str(work / "lib.so")
        pathlib.Path(lib).unlink(missing_ok=True)
        lib = str(work / f"lib{start}.so")
        abi.link([str(b[3].with_suffix(".o")) for b in batch], lib)
        for seed, p, model, path in batch:
            o = ort.SessionOptions()
            o.log_severity_level = 4
            try:
                want = ort.InferenceSession(model.SerializeToString(), o, providers=["CPUExecutionProvider"]).run(None, p.feeds)
            except Exception as e:  # What ONNX Runtime does not take is compared with the values of the program.
                want = [p.tensors.get(v.name, p.seqs.get(v.name)) for v in model.graph.output]
                if any(w is None for w in want):
                    print(f"seed {seed}: ONNX Runtime: {str(e)[:200]}")
                    continue
            room = [getattr(w, "shape", None) for w in want]
            try:
                run, outs = abi.Model(lib, f"seq{seed}").prepare(p.feeds, room)
                run()
            except (RuntimeError, AssertionError) as e:
                print(f"seed {seed}: {e}")
                bad += 1
                continue
            for v, g, w in zip(model.graph.output, outs, want):
                if not same(g, w):
                    print(f"seed {seed}: {v.name}: {g}, expected {w}")
                    bad += 1
    print(f"{count} programs, {bad} wrong" + (f", {refused} refused" if refused else ""))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
