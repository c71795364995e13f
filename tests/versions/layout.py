"""Recipes of operators that move, choose and search."""
import numpy as np
from recipe import FLOATS, Const, case, ints, scalar

R = {}


def reshape(c):
    x = c.x(2, 3, 4)
    if c.v < 5:
        return [case(x, shape=[0, -1], same=(5, [x, ints(0, -1)], {})), case(x, shape=[4, 3, 2], same=(5, [x, ints(4, 3, 2)], {}))]
    return [case(x, ints(0, -1)), case(x, ints(4, 3, 2)), case(x, np.array([6, 4]))] + ([case(np.zeros((0, 3)), ints(3, 0), allowzero=1)] if c.has("allowzero") else [])


def squeeze(c):
    y = c.x(1, 3, 1, 4)
    if c.v < 13:
        return [case(y, axes=[0, 2]), case(y)] + ([case(y, axes=[0, -2])] if c.v >= 11 else [])
    return [case(y, ints(0, -2)), case(y), case(y, ints(2))]


def unsqueeze(c):
    y = c.x(3, 4)
    if c.v < 13:
        return [case(y, axes=[0, 2])] + ([case(y, axes=[0, -2])] if c.v >= 11 else [])
    return [case(y, ints(0, -2)), case(y, ints(3, 1))]


def flatten(c):
    return [case(c.x(2, 3, 4))] + [case(c.x(2, 3, 4), axis=a) for a in [0, 2, 3] + ([-1] if c.v >= 11 else [])]


def shape(c):
    x = c.x(2, 3, 4)
    return [case(x)] + ([case(x, start=-2), case(x, start=1, end=-1), case(x, end=2)] if c.has("start") else [])


R |= {"Reshape": reshape, "Squeeze": squeeze, "Unsqueeze": unsqueeze, "Flatten": flatten, "Shape": shape}
R["Identity"] = lambda c: [case(c.x(2, 3, 4))]
R["Size"] = lambda c: [case(c.x(2, 3, 4)), case(c.x())]
R["Expand"] = lambda c: [case(c.x(3, 1), ints(2, 1, 4)), case(c.x(3, 1), ints(1)), case(c.x(3, 1), np.array([3, 4]))]
R["Transpose"] = lambda c: [case(c.x(2, 3, 4)), case(c.x(2, 3, 4), perm=[1, 2, 0])]
R["DepthToSpace"] = lambda c: [case(c.x(1, 8, 2, 4), blocksize=2, mode=m) for m in ([None, "CRD", "DCR"] if c.has("mode") else [None])]
R["SpaceToDepth"] = lambda c: [case(c.x(1, 2, 4, 6), blocksize=2, mode=m) for m in ([None, "CRD", "DCR"] if c.has("mode") else [None])]


def tile(c):
    x = c.x(2, 3, 4)
    if c.v < 6:
        n = Const(np.array(3 if "int" in c["T"] else 3.0)), Const(np.array(1 if "int" in c["T"] else 1.0))
        return [case(x, *(Const(np.array(k)) for k in (3, 1)), same=(6, [x, ints(1, 3, 1)], {}))]
    return [case(x, ints(2, 1, 3)), case(x, np.array([1, 2, 2]))]


def slice_(c):
    x = c.x(2, 3, 4)
    if c.v < 10:
        return [case(x, starts=[0, 1], ends=[-1, 1000], axes=[1, 2]), case(x, starts=[1], ends=[2])]
    return [case(x, ints(0, 1), ints(-1, 1000), ints(1, 2)), case(x, ints(1), ints(2)), case(x, ints(3, -1), ints(-100, 0), ints(2, -2), ints(-2, -1)),
            case(x, np.array([0, 1]), np.array([2, 3]), np.array([0, 2]), np.array([1, 1]))]


def split(c):
    x = c.x(2, 3, 4)
    if c.v < 13:
        old = (lambda axis, sizes: (2, [x], {"axis": axis, "split": sizes})) if c.v < 2 else lambda *_: None
        return [case(x, axis=2, split=[1, 3], out=2, same=old(2, [1, 3])), case(x, axis=1, out=3, same=old(1, [1, 1, 1])), case(x, split=[1, 1], out=2, same=old(0, [1, 1]))] \
            + ([case(x, ints(1, 2), axis=1, out=2, same=old(1, [1, 2]))] if c.v < 2 else [])
    out = [case(x, ints(1, 3), axis=2, out=2), case(x, ints(1, 1), out=2)]
    return out + ([case(x, axis=1, out=3)] if c.v < 18 else [case(c.x(7), num_outputs=3, out=3), case(x, num_outputs=2, axis=-1, out=2)])


def pad(c):
    x = c.x(2, 3, 4)
    name, pads = "paddings" if c.v < 2 else "pads", [0, 1, 2, 1, 0, 3]
    width = list(zip(pads[:3], pads[3:]))
    modes = [None, "constant", "reflect", "edge"] + (["wrap"] if c.v >= 19 else [])
    same = (lambda m, v: (2, [x], {"pads": pads, "mode": m or "constant", "value": v})) if c.v < 2 else lambda *_: None
    if c.v < 11:
        return [case(x, **{name: pads}, mode=m, same=same(m, 0.0)) for m in modes] + [case(x, **{name: pads}, value=1.5, same=same(None, 1.5))]
    # There is no zero in float8e8m0.
    out = [case(x, ints(*pads), mode=m) for m in modes if c["T"] != "float8e8m0" or m not in (None, "constant")] + [case(x, ints(*pads), Const(np.float64(1.5)))]
    if c["T"] == "float":
        out.append(case(x, ints(0, -1, 1, 1, 0, -2)))
    return out + ([case(x, ints(1, 2), Const(np.float64(1)), ints(-1)), case(x, ints(1, 2), None, ints(1), mode="edge")] if c.v >= 18 else [])


def concat(c):
    x, y = c.x(2, 3, 4), c.x(2, 5, 4)
    first = [case(x, y, same=(4, None, {"axis": 1}))] if c.v < 4 else []
    return first + [case(x, y, axis=1, same=4 if c.v < 4 else None), case(x, x, x, axis=2, same=4 if c.v < 4 else None), case(x, axis=0, same=4 if c.v < 4 else None)] + ([case(x, x, x, axis=-1)] if c.v >= 11 else [])


R |= {"Tile": tile, "Slice": slice_, "Split": split, "Pad": pad, "Concat": concat}
R["CenterCropPad"] = lambda c: [case(c.x(4, 5, 6), ints(3, 7, 6)), case(c.x(4, 5, 6), ints(3, 8), axes=[-1, 0])]
R["Trilu"] = lambda c: [case(c.x(2, 4, 5))] + [case(c.x(2, 4, 5), np.array(k), upper=u) for k in (-1, 0, 2) for u in (0, 1)]
R["ReverseSequence"] = lambda c: [case(c.x(4, 3, 2), np.array([2, 1, 4])), case(c.x(3, 4, 2), np.array([3, 1, 4]), time_axis=1, batch_axis=0)]
R["Gather"] = lambda c: [case(c.x(2, 3, 4), np.array([[0, 1], [1, 1]])), case(c.x(2, 3, 4), np.array([[0, 2], [1, 1]]), axis=1)] + ([case(c.x(2, 3, 4), np.array([-3, 2]), axis=-2)] if c.v >= 11 else [])
R["GatherElements"] = lambda c: [case(c.x(2, 3, 4), c.i(0, 2, 2, 3, 4)), case(c.x(2, 3, 4), c.i(-3, 3, 2, 2, 4), axis=1)]
R["GatherND"] = lambda c: [case(c.x(2, 3, 4), np.array([[0, 1], [1, 2]]))] + ([case(c.x(2, 3, 4), np.array([[1], [-1]]), batch_dims=1)] if c.has("batch_dims") else [])


def joins(c):
    if c["T"] in ("string", "bool"):
        return []
    ordered = c.v >= 18 and not c["T"].startswith("complex")
    return [{"reduction": r} for r in (("add", "mul", "none") if c.v >= 16 else ()) + (("max", "min") if ordered else ())]


def scatter(c):
    x, i = c.x(2, 3, 4), np.array([[[2], [0]], [[1], [2 if c.v < 11 else -1]]])
    return [case(x, c.i(0, 2, 1, 3, 4), c.x(1, 3, 4))] + [case(x, i, c.x(2, 2, 1), axis=1, **j) for j in [{}] + joins(c)] + [case(x, c.rng.permuted(np.tile(np.arange(4), (2, 3, 1)), axis=2)[..., :3], c.x(2, 3, 3), axis=2)]


R |= {"Scatter": scatter, "ScatterElements": scatter}
R["ScatterND"] = lambda c: [case(c.x(2, 3, 4), np.array([[1, 0], [0, -1]]), c.x(2, 4), **j) for j in [{}] + joins(c)] + [case(c.x(2, 3, 4), np.array([[[1, 0, 3]], [[0, 2, 2]]]), c.x(2, 1))]
R["TensorScatter"] = lambda c: [case(c.x(2, 5, 3), c.x(2, 2, 3), np.array([3, 0])), case(c.x(2, 5, 3), c.x(2, 2, 3)), case(c.x(2, 5, 3), c.x(2, 2, 3), np.array([4, 1]), mode="circular", axis=1), case(c.x(2, 3, 5), c.x(2, 3, 2), np.array([3, 0]), axis=-1)]
R["Compress"] = lambda c: [case(c.x(3, 4), np.array([True, False, True]), axis=0), case(c.x(3, 4), np.array([False, True, True, False, True])), case(c.x(3, 4), np.array([False, True, False, True]), axis=1)]


def one_hot(c):
    i = np.array([[0, 2, 5], [1, 1, -1 if c.v >= 11 and c["T1"][0] != "u" else 3]])
    return [case(i, Const(np.array(4) if k else np.array([4])), np.array([0.5, 2.0]), axis=a) for k, a in ((0, None), (1, 0), (1, 1))]


def unique(c):
    x = c.i(-2, 3, 3, 4) if c["T"] not in ("bool", "string") else c.x(3, 4)
    if c["T"].startswith("u"):
        x = np.abs(x)
    x[2] = x[0]
    return [case(x, want=distinct(None, True, 1)), case(x, out=4, want=distinct(None, True, 4)), case(x, axis=0, out=4, want=distinct(0, True, 4)), case(x, axis=1, out=2, want=distinct(1, True, 2)),
            case(x, sorted=0, out=4, want=distinct(None, False, 4)), case(x, axis=-2, sorted=0, out=4, want=distinct(0, False, 4))]


def distinct(axis, ordered, n):
    """onnx.reference has no unsorted slices."""
    def want(x):
        parts = [(v,) for v in x.reshape(-1).tolist()] if axis is None else [tuple(p.reshape(-1).tolist()) for p in np.moveaxis(x, axis, 0)]
        rank = lambda p: [(v.real, v.imag) if isinstance(v, complex) else v for v in p]
        values = sorted(set(parts), key=rank) if ordered else list(dict.fromkeys(parts))
        at = [parts.index(v) for v in values]
        y = x.reshape(-1)[at] if axis is None else np.take(x, at, axis)
        return [y, np.array(at), np.array([values.index(p) for p in parts]), np.array([parts.count(v) for v in values])][:n]
    return want


R |= {"OneHot": one_hot, "Unique": unique}


def top(x, k, axis, largest=True):
    x = x.astype(np.int64)
    i = np.argsort(-x if largest else x, axis, kind="stable").take(range(k), axis)
    return [np.take_along_axis(x, i, axis), i]


def top_k(c):
    """Equal elements come in the order of their indices, which sets the indices apart from any other order."""
    y = c.i(0, 9, 2, 5, 4) if c["T"][0] == "u" else c.i(-9, 9, 2, 5, 4)
    if c.v < 10:
        return [case(y, k=3, axis=1, out=2, want=lambda y, *_: top(y, 3, 1)), case(y, k=2, out=2, want=lambda y, *_: top(y, 2, -1))]
    z = np.abs(c.i(-9, 9, 2, 70, 3))
    out = [case(y, ints(3), axis=1, out=2, want=lambda y, *_: top(y, 3, 1)), case(y, ints(4), out=2, want=lambda y, *_: top(y, 4, -1)), case(y, np.array([2]), out=2, want=lambda y, *_: top(y, 2, -1)),
           case(z, ints(17), axis=1, out=2, want=lambda y, *_: top(y, 17, 1)), case(z, ints(70), axis=1, out=2, want=lambda y, *_: top(y, 70, 1))]
    if c.v >= 11:
        neg = lambda k, axis: lambda y, *_: top(y, k, axis, False)
        out += [case(y, ints(2), axis=0, largest=0, out=2, want=neg(2, 0)), case(z, ints(33), axis=1, largest=0, out=2, want=neg(33, 1)), case(c.x(1, 9), ints(1), sorted=0, out=2)]
    return out


R["TopK"] = top_k
R["NonMaxSuppression"] = lambda c: [
    case(boxes(c), c.x(1, 2, 6, lo=0, hi=1)), case(boxes(c), c.x(1, 2, 6, lo=0, hi=1), ints(3)), case(boxes(c), c.x(1, 2, 6, lo=0, hi=1), ints(2), Const(np.array([0.3]))),
    case(boxes(c), c.x(1, 2, 6, lo=0, hi=1), ints(4), Const(np.array([0.3])), Const(np.array([0.4]))), case(np.abs(boxes(c)), c.x(1, 2, 6, lo=0, hi=1), ints(4), Const(np.array([0.3])), Const(np.array([0.1])), center_point_box=1)]


def boxes(c):
    a = c.x(1, 6, 2, lo=0, hi=5)
    return np.concatenate([a, a + c.x(1, 6, 2, lo=1, hi=4)], 2)
