"""Models whose sizes are symbols, and the sizes that they are called with."""
import collections
import itertools
import random
import re

import numpy as np
import onnx

# Larger inputs than this are not passed for sizes of our own.
MOST_ELEMENTS = 20_000
LARGEST_SIZE = 300
HOSTILE = [0, 1, -1, 2, -2, 3, 5, 7, -9, 100, -(1 << 31), (1 << 31) - 1, 1 << 40, -(1 << 63), (1 << 63) - 1]


def inputs_of(model):
    """Inputs that a caller passes."""
    constants = {i.name for i in model.graph.initializer} | {i.values.name for i in model.graph.sparse_initializer}
    return [i for i in model.graph.input if i.name not in constants]


def symbolised(model):
    """A copy in which every dim of every tensor that is passed is a symbol of its own, and no other size is declared."""
    model = onnx.ModelProto.FromString(model.SerializeToString())
    count = itertools.count()
    passed = {i.name for i in inputs_of(model)}
    for i in model.graph.input:
        if i.name in passed and i.type.HasField("tensor_type"):
            for d in i.type.tensor_type.shape.dim:
                d.Clear()
                d.dim_param = f"size_{next(count)}"
    for o in model.graph.output:
        erase(o.type)
    del model.graph.value_info[:]
    return model


def erase(t):
    """Makes the sizes in a declared type unknown."""
    kind = t.WhichOneof("value")
    if kind == "tensor_type":
        for d in t.tensor_type.shape.dim:
            d.Clear()
    elif kind in ("sequence_type", "optional_type"):
        erase(getattr(t, kind).elem_type)


def symbols(model):
    """name -> input, axis of its first use."""
    out = {}
    for i in inputs_of(model):
        if i.type.HasField("tensor_type"):
            for axis, d in enumerate(i.type.tensor_type.shape.dim):
                if d.dim_param:
                    out.setdefault(d.dim_param, (i.name, axis))
    return out


def constants(nest):
    """Numbers that stand in lines of a nest with sizes in them, those in most lines first."""
    names = next((l.split()[1:] for l in nest.splitlines() if l.startswith("dims ")), [])
    if not names:
        return []
    mentions = re.compile(r"\b(" + "|".join(map(re.escape, names)) + r")\b")
    count = collections.Counter()
    for line in nest.splitlines():
        if mentions.search(line):
            count.update({int(n) for n in re.findall(r"(?<![\w.])\d+(?![\w.])", line)})
    return [n for n, _ in count.most_common() if 2 < n <= LARGEST_SIZE]


def resized(original, shape, rng):
    """Data of a shape, made of the original data."""
    original = np.asarray(original)
    if original.size == 0:
        return np.full(shape, "" if original.dtype == object else 0, original.dtype)
    return np.resize(original, shape)


def hostile(a, rng):
    """Values that nobody expects, in place of some."""
    a = np.array(a)
    if a.dtype.kind not in "iuf" or not a.size:
        return a
    flat = a.reshape(-1)
    for _ in range(rng.choice([1, 1, 2, flat.size])):
        at = rng.randrange(flat.size)
        with np.errstate(all="ignore"):
            if a.dtype.kind == "f":
                flat[at] = rng.choice([np.nan, np.inf, -np.inf, -0.0, 1e30, -1e30, 0.5])
            else:
                flat[at] = np.array(rng.choice(HOSTILE)).astype(a.dtype)
    return a


def bindings(names, original, numbers, budget, rng):
    """Sizes for the symbols: lists of what to try, the original ones first. Symbols with equal sizes mostly change together."""
    names = list(names)
    start = tuple(original[n] for n in names)
    groups = {}
    for k, v in enumerate(start):
        groups.setdefault(v, []).append(k)
    near = sorted({v for n in numbers[:12] for v in (n - 1, n, n + 1)} | {3, 4, 5, 7, 8, 9, 15, 16, 17})
    near = [v for v in near if v <= LARGEST_SIZE]
    out = [start]
    out += [tuple(v for _ in names) for v in (0, 1, 2)]

    def with_(base, ks, v):
        base = list(base)
        for k in ks:
            base[k] = max(0, v)
        return tuple(base)
    fixed = []
    for ks in [*groups.values(), *([[k] for k in range(len(names))] if len(groups) < len(names) else [])]:
        fixed += [with_(start, ks, v) for v in (0, 1, 2, start[ks[0]] + 1, start[ks[0]] - 1)]
    rng.shuffle(fixed)
    swept = [with_(start, ks, v) for ks in groups.values() for v in near]
    rng.shuffle(swept)
    out += fixed[:budget // 2] + swept[:budget // 3]
    for _ in range(4 * budget):
        base = start
        for ks in groups.values():
            if rng.random() < 0.5:
                base = with_(base, ks, rng.choice([0, 1, 2, 2, 3] + near))
        if rng.random() < 0.25:
            base = with_(base, [rng.randrange(len(names))] if names else [], rng.choice([0, 1, 2, 3] + near))
        out.append(base)
        if len(out) > 3 * budget:
            break
    seen, kept = set(), []
    for b in out:
        if b not in seen and len(kept) < budget:
            seen.add(b)
            kept.append(dict(zip(names, b)))
    return kept


def feeds(model, originals, sizes, rng, wild):
    """Values of the inputs for such sizes, or None where they are too large."""
    out = {}
    for i in inputs_of(model):
        v = originals[i.name]
        if i.type.HasField("tensor_type"):
            shape = [sizes.get(d.dim_param, n) for d, n in zip(i.type.tensor_type.shape.dim, np.shape(v))]
            if np.prod(shape, dtype=np.float64) > max(MOST_ELEMENTS, np.size(v)):
                return None
            if tuple(shape) != np.shape(v):
                v = resized(v, shape, rng)
            if wild:
                v = hostile(v, rng)
        out[i.name] = v
    return out
