"""Recipes of reductions, normalizations, contractions, windows, images, transforms, losses and optimizers."""
import numpy as np
from recipe import FLOATS, Const, case, code, ints

R = {}


def reduce(c):
    y = c.x(2, 3, 4, lo=0.4, hi=1.6)
    if c["T"] == "bool":
        y = y - 1
    if c.schema.name == "ReduceProd" and "int" in c["T"]:
        y = c.i(1, 3, 2, 3, 4)
    if not c.has("axes"):
        return [case(y), case(y, ints(1)), case(y, ints(0, 2), keepdims=0), case(y, ints(-1), keepdims=0), case(y, noop_with_empty_axes=1), case(y, np.array([1]), keepdims=1)]
    return [case(y), case(y, axes=[1]), case(y, axes=[0, 2], keepdims=0)] + ([case(y, axes=[-1], keepdims=0)] if c.v >= 11 else [])


for op in "L1 L2 LogSum LogSumExp Max Mean Min Prod Sum SumSquare".split():
    R["Reduce" + op] = reduce


def arg(c):
    y = c.i(0, 3, 2, 3, 4)
    return [case(y), case(y, axis=1), case(y, axis=2, keepdims=0)] + ([case(y, axis=-1)] if c.v >= 11 else []) + ([case(y, axis=1, select_last_index=1)] if c.v >= 12 else [])


def softmax(c):
    x = c.x(2, 3, 4)
    return [case(x), case(x, axis=0), case(x, axis=2)] + ([case(x, axis=-2)] if c.v >= 11 else [])


def cumulate(c):
    y = c.x(2, 3, 4, lo=0.4, hi=1.4)
    return [case(y, Const(np.array(1))), case(y, Const(np.array(-1)), exclusive=1), case(y, Const(np.array(0)), reverse=1), case(y, Const(np.array(2)), exclusive=1, reverse=1)]


R |= {"ArgMax": arg, "ArgMin": arg, "Softmax": softmax, "LogSoftmax": softmax, "Hardmax": softmax, "CumSum": cumulate, "CumProd": cumulate}


# --- Normalizations. ---

def batch_norm(c):
    y, p = c.x(2, 3, 4, 4), [c.x(3), c.x(3), c.x(3), c.x(3, lo=0.3, hi=2)]
    old = {"consumed_inputs": [0, 0, 0, 1, 1]} if c.v == 1 else {}

    def want(eps):
        def of(y, s, b, m, v):
            s, b, m, v = (q.reshape(1, 3, 1, 1) for q in (s, b, m, v))
            return [(y - m) / np.sqrt(v + eps) * s + b]
        return of

    def trained(momentum):
        def of(y, s, b, m, v):
            mean, var = y.mean((0, 2, 3)), y.var((0, 2, 3))
            r = lambda q: q.reshape(1, 3, 1, 1)
            return [(y - r(mean)) / np.sqrt(r(var) + 1e-5) * r(s) + r(b), m * momentum + mean * (1 - momentum), v * momentum + var * (1 - momentum)]
        return of
    test = {"is_test": 1} if c.has("is_test") else {}
    out = [case(y, *p, **test, **old, want=want(1e-5)), case(y, *p, epsilon=0.01, **test, **old, want=want(0.01)), case(y, *p, momentum=0.5, **test, **old, want=want(1e-5))]
    if c.has("spatial"):
        out.append(case(y, *p, spatial=1, **test, **old, want=want(1e-5)))
        q = [c.x(3, 4, 4), c.x(3, 4, 4), c.x(3, 4, 4), c.x(3, 4, 4, lo=0.3, hi=2)]
        out.append(case(y, *q, spatial=0, **test, **old, want=lambda y, s, b, m, v: [(y - m) / np.sqrt(v + 1e-5) * s + b]))
    if c.has("training_mode"):
        out += [case(y, *p, training_mode=1, out=3, want=trained(0.9)), case(y, *p, training_mode=1, momentum=0.6, out=3, want=trained(0.6))]
    return out


def group_norm(c):
    n = 2 if c.v < 21 else 4

    def want(eps):
        def of(y, s, b):
            g = y.reshape(2, 2, 2, 3, 3)
            z = (g - g.mean((2, 3, 4), keepdims=True)) / np.sqrt(g.var((2, 3, 4), keepdims=True) + eps)
            per = (lambda p: p.reshape(1, 2, 1, 1, 1)) if c.v < 21 else (lambda p: p.reshape(1, 2, 2, 1, 1))
            return [(z * per(s) + per(b)).reshape(y.shape)]
        return of
    y, s, b = c.x(2, 4, 3, 3), c.x(n), c.x(n)
    return [case(y, s, b, num_groups=2, want=want(1e-5)), case(y, s, b, num_groups=2, epsilon=0.02, want=want(0.02))] + ([case(y, s, b, num_groups=2, stash_type=1, want=want(1e-5))] if c.has("stash_type") else [])


def mean_variance(c):
    def want(axes):
        def of(x):
            return [(x - x.mean(axes, keepdims=True)) / (np.sqrt((x ** 2).mean(axes, keepdims=True) - x.mean(axes, keepdims=True) ** 2) + 1e-9)]
        return of
    return [case(c.x(2, 3, 4, 4), want=want((0, 2, 3))), case(c.x(2, 3, 4), axes=[1], want=want((1,)))]


R |= {"BatchNormalization": batch_norm, "GroupNormalization": group_norm, "MeanVarianceNormalization": mean_variance}
R["InstanceNormalization"] = lambda c: [case(c.x(2, 3, 4, 4), c.x(3), c.x(3), same=6 if c.v < 6 else None), case(c.x(2, 3, 5), c.x(3), c.x(3), epsilon=0.02, same=6 if c.v < 6 else None)]
R["LayerNormalization"] = lambda c: [case(c.x(2, 3, 4), c.x(4)), case(c.x(2, 3, 4), c.x(3, 4), axis=1, epsilon=1e-2), case(c.x(2, 3, 4), c.x(4), c.x(4), out=3, stash_type=code(c["U"])), case(c.x(2, 3, 4), c.x(4), c.x(4), axis=2)] if c["U"] == "float" else [case(c.x(2, 3, 4), c.x(4), c.x(4), out=3, stash_type=code(c["U"]))]
R["RMSNormalization"] = lambda c: [case(c.x(2, 3, 4), c.x(4)), case(c.x(2, 3, 4), c.x(3, 4), axis=1, epsilon=1e-2), case(c.x(2, 3, 4), c.x(4), stash_type=1)]
R["LpNormalization"] = lambda c: [case(c.x(2, 3, 4))] + [case(c.x(2, 3, 4), p=p, axis=a) for p in (1, 2) for a in (1, -1)]


def lrn(c):
    """onnx.reference sums over the wrong axis, and ONNX Runtime takes no even sizes."""
    def want(size, alpha=1e-4, beta=0.75, bias=1.0):
        def of(x):
            n = x.shape[1]
            sums = np.stack([(x[:, max(0, k - (size - 1) // 2):min(n - 1, k + size // 2) + 1] ** 2).sum(1) for k in range(n)], 1)
            return [x / (bias + alpha / size * sums) ** beta]
        return of
    more = {"alpha": 0.01, "beta": 0.6, "bias": 1.5}
    return [case(c.x(2, 5, 3, 3), size=3, want=want(3)), case(c.x(2, 5, 3, 3), size=2, **more, want=want(2, **more))]


R["LRN"] = lrn


# --- Contractions. ---

R["MatMul"] = lambda c: [case(c.x(2, 3, 4), c.x(4, 5)), case(c.x(2, 1, 3, 4), c.x(5, 4, 2)), case(c.x(4), c.x(2, 4, 3)), case(c.x(3, 4), c.x(4))]


def gemm(c):
    a, b, k = c.x(3, 4), c.x(4, 5), c.x(5)
    f = c["T"] in FLOATS
    scale = {"alpha": 0.5, "beta": 2.0} if f else {"alpha": 2.0, "beta": 3.0}
    if c.v < 7:
        return [case(a, b, k, broadcast=1, **scale, same=(7, None, scale)), case(a.T.copy(), b.T.copy(), c.x(3, 5), transA=1, transB=1, same=7)]
    return [case(a, b, k, **scale), case(a.T.copy(), b.T.copy(), c.x(3, 5), transA=1, transB=1), case(a, b, c.x(3, 1)), case(a, b, c.x(1))] + ([case(a, b), case(a, b, alpha=scale["alpha"])] if c.v >= 11 else [])


def conv(c):
    return [case(c.x(1, 4, 7, 6), c.x(6, 2, 3, 3), c.x(6), group=2, pads=[1, 0, 1, 2], strides=[2, 1], kernel_shape=[3, 3]), case(c.x(1, 2, 9), c.x(3, 2, 3), dilations=[2]),
            case(c.x(1, 2, 7, 7), c.x(3, 2, 2, 2), auto_pad="SAME_UPPER"), case(c.x(1, 2, 7, 7), c.x(3, 2, 2, 2), auto_pad="SAME_LOWER", strides=[2, 2]), case(c.x(1, 2, 5, 5), c.x(3, 2, 2, 2), auto_pad="VALID"),
            case(c.x(1, 2, 4, 4, 3), c.x(2, 2, 2, 2, 2))]


def conv_transpose(c):
    return [case(c.x(1, 4, 4, 5), c.x(4, 3, 3, 3), c.x(6), group=2, strides=[2, 2], pads=[1, 1, 0, 1], output_padding=[1, 0], kernel_shape=[3, 3]), case(c.x(1, 2, 5), c.x(2, 3, 3), dilations=[2]),
            case(c.x(1, 2, 4, 4), c.x(2, 3, 3, 3), strides=[2, 2], output_shape=[8, 8]), case(c.x(1, 2, 4, 4), c.x(2, 3, 3, 3), strides=[2, 2], auto_pad="SAME_UPPER"), case(c.x(1, 2, 4, 4), c.x(2, 3, 3, 3), strides=[2, 2], auto_pad="SAME_LOWER"), case(c.x(1, 2, 4), c.x(2, 3, 3), auto_pad="VALID")]


def deform_conv(c):
    x, w, o = c.x(1, 4, 5, 5), c.x(2, 4, 3, 3), c.x(1, 18, 3, 3, lo=-0.7, hi=0.7)
    return [case(x, w, o), case(x, w, o, c.x(2), kernel_shape=[3, 3]), case(x, w, o, c.x(2), c.x(1, 9, 3, 3, lo=0, hi=1)),
            case(x, c.x(2, 2, 3, 3), c.x(1, 36, 3, 3, lo=-0.7, hi=0.7), None, c.x(1, 18, 3, 3, lo=0, hi=1), group=2, offset_group=2, pads=[1, 1, 1, 1], strides=[2, 2]),
            case(x, c.x(2, 4, 2, 2), c.x(1, 8, 3, 3, lo=-0.7, hi=0.7), dilations=[2, 2])]


R |= {"Gemm": gemm, "Conv": conv, "ConvTranspose": conv_transpose, "DeformConv": deform_conv}
R["Einsum"] = lambda c: [case(c.x(2, 3, 4), c.x(2, 4, 5), equation="bij,bjk->bik"), case(c.x(2, 3, 4), equation="...j->j..."), case(c.x(4, 4), equation="ii"), case(c.x(2, 3, 4), c.x(4), c.x(3, 2), equation="abc,c,bd->ad"), case(c.x(3), c.x(4), equation="i,j"), case(c.x(2, 3, 4), c.x(3, 4, 5), equation="...ij,ijk")]
R["Det"] = lambda c: [case(c.x(4, 4)), case(c.x(2, 3, 3, 3))]
R["CausalConvWithState"] = lambda c: [case(c.x(2, 3, 6), c.x(3, 1, 4), out=2), case(c.x(2, 3, 6), c.x(3, 1, 4), c.x(3), c.x(2, 3, 3), out=2, activation="silu"), case(c.x(2, 3, 6), c.x(3, 1, 4), c.x(3), out=2)]


def linear_attention(c):
    q, k, v = c.x(1, 4, 8, lo=-0.8, hi=0.8), c.x(1, 4, 8, lo=-0.8, hi=0.8), c.x(1, 4, 6)
    h = {"q_num_heads": 2, "kv_num_heads": 2}
    s, d, b = c.x(1, 2, 4, 3), c.x(1, 4, 2, lo=-0.9, hi=-0.1), c.x(1, 4, 2, lo=0.1, hi=0.9)
    first = [case(q, k, v, **h, update_rule="linear", out=2), case(q, k, v, None, d, b, **h, out=2)] if c["T"] == c["S"] else []
    return first + [case(q, k, v, s, d, **h, update_rule="gated", out=2, scale=0.4), case(q, k, v, s, None, b, **h, update_rule="delta", out=2, chunk_size=2), case(q, k, v, s, d, b, **h, out=2)]


R["LinearAttention"] = linear_attention


# --- Windows and images. ---

def pool(c):
    op, y = c.schema.name, c.x(1, 2, 7, 6)
    p = {"p": 3} if op == "LpPool" and c.v >= 2 else {"p": 3.0} if op == "LpPool" else {}
    k = {"kernel_shape": [3, 2], **p}
    one = (lambda case_: case_) if not (op in ("AveragePool", "LpPool") and c.v < 7) else (lambda case_: old_pool(op, c, case_))
    out = [one(case(y, **k)), one(case(y, **k, strides=[2, 2], pads=[1, 0, 1, 1])), one(case(y, kernel_shape=[3, 2], auto_pad="SAME_UPPER", strides=[2, 1])), one(case(y, **k, auto_pad="SAME_LOWER", strides=[2, 2])), one(case(y, **k, auto_pad="VALID"))]
    if op == "MaxPool" and c.v == 1 and c["T"] == "double":
        for one_case in out:
            one_case.same = 12
    if op == "AveragePool" and c.v >= 7:
        out.append(case(y, **k, pads=[1, 1, 1, 1], count_include_pad=1))
    if op == "MaxPool" and c.v >= 8:
        out += [case(y, **k, out=2), case(y, **k, storage_order=1, out=2)]
    if c.has("ceil_mode"):
        out += [case(y, **k, strides=[2, 3], ceil_mode=1), case(y, **k, strides=[3, 2], pads=[1, 1, 1, 0], ceil_mode=1)]
    if c.has("dilations"):
        out.append(case(y, **k, dilations=[2, 1]))
    return out


def old_pool(op, c, k):
    """Before version 7 (LpPool: 2) no reference computes these; later versions mean the same."""
    k.same = (7 if op == "AveragePool" else 11, None, {n: int(v) if n == "p" else v for n, v in k.attributes.items()})
    return k


R |= {"AveragePool": pool, "MaxPool": pool, "LpPool": pool}
R |= {op: (lambda c, f=f: [case(c.x(*s), want=lambda x: [f(x, axis=tuple(range(2, x.ndim)), keepdims=True)]) for s in ((1, 2, 7, 6), (2, 3, 5))]) for op, f in (("GlobalAveragePool", np.mean), ("GlobalMaxPool", np.max))}


def global_lp(c):
    return [case(c.x(1, 2, 7, 6), want=lambda y: [(np.abs(y) ** 2).sum((2, 3), keepdims=True) ** 0.5]),
            case(c.x(1, 2, 7, 6), p=3 if c.v >= 2 else 3.0, want=lambda y: [(np.abs(y) ** 3).sum((2, 3), keepdims=True) ** (1 / 3)])]


def unpool(c):
    x, i = c.x(1, 1, 2, 2), np.array([[[[0, 3], [9, 15]]]])
    return [case(x, i, kernel_shape=[2, 2], strides=[2, 2]), case(x, i, ints(1, 1, 4, 4), kernel_shape=[2, 2], strides=[2, 2]), case(c.x(1, 1, 3, 3), np.array([[[[0, 1, 3], [5, 6, 8], [9, 13, 15]]]]), kernel_shape=[2, 2], strides=[2, 2], pads=[1, 1, 1, 1]),
            case(x, np.array([[[[0, 3], [5, 8]]]]), kernel_shape=[2, 2])]


def roi_align(c):
    x = c.x(2, 2, 8, 8)
    rois, b = np.array([[0.5, 1.0, 5.5, 6.0], [1.0, 0.0, 7.0, 4.5], [2.0, 2.0, 6.5, 7.5]]), np.array([0, 1, 0])
    k = {"output_height": 2, "output_width": 3, "sampling_ratio": 2}
    half = [case(x, rois, b, **k, coordinate_transformation_mode=m) for m in ("half_pixel", "output_half_pixel")] if c.has("coordinate_transformation_mode") else []
    return [case(x, rois, b), case(x, rois, b, **k, spatial_scale=0.5), case(x, rois, b, **{**k, "sampling_ratio": 0}), case(x, rois, b, **k, mode="max")] + half


def grid_sample(c):
    x, g = c.x(1, 2, 5, 6), c.x(1, 3, 4, 2, lo=-1.2, hi=1.2)
    names = ("bilinear", "nearest", "bicubic") if c.v < 20 else ("linear", "nearest", "cubic")
    out = [case(x, g)] + [case(x, g, mode=m, padding_mode=p, align_corners=a) for m in names for p, a in (("zeros", 0), ("border", 1), ("reflection", 0))]
    if c.v < 20:
        # onnx.reference knows the later names only, and ONNX Runtime does not move coordinates onto the border.
        for one in out:
            later = {"bilinear": "linear", "bicubic": "cubic"}
            one.same = (20, None, {k: later.get(v, v) for k, v in one.attributes.items()})
    return out + ([case(c.x(1, 2, 3, 4, 4), c.x(1, 2, 3, 4, 3, lo=-1.1, hi=1.1), mode=m) for m in ("linear", "nearest")] if c.v >= 20 else [])


def resize(c):
    x = c.x(1, 2, 4, 5)
    if c.v == 10:
        s = np.array([1, 1, 1.5, 2.0])
        return [case(x, Const(s)), case(x, Const(s), mode="linear"), case(x, Const(np.array([1, 1, 0.6, 0.5])), mode="linear"), case(x, s)]
    empty = Const(np.zeros(0)) if c.v < 13 else None
    by = Const(np.array([1, 1, 1.5, 2.0]))
    down = Const(np.array([1, 1, 0.6, 0.7]))
    out = [case(x, empty, by), case(x, empty, by, mode="linear"), case(x, empty, by, mode="cubic"), case(x, empty, down, mode="cubic", cubic_coeff_a=-0.5, exclude_outside=1)]
    out += [case(x, empty, by, mode="linear", coordinate_transformation_mode=m) for m in ("align_corners", "asymmetric", "pytorch_half_pixel") + (("tf_half_pixel_for_nn",) if c.v < 13 else ()) + (("half_pixel_symmetric",) if c.v >= 19 else ())]
    out += [case(x, empty, by, mode="nearest", nearest_mode=m) for m in ("floor", "ceil", "round_prefer_ceil")]
    sizes = Const(np.zeros(0)) if c.v < 13 else None
    out.append(case(x, empty, sizes, ints(1, 2, 7, 3)))
    out.append(case(x, Const(np.array([0, 0, 0.2, 0.1, 1, 1, 0.8, 1.2])), by, mode="linear", coordinate_transformation_mode="tf_crop_and_resize", extrapolation_value=1.5))
    if c.v >= 18:
        out += [case(x, None, Const(np.array([0.6, 0.7])), axes=[2, 3], antialias=1, mode="linear"), case(x, None, None, ints(7, 8), axes=[2, 3], keep_aspect_ratio_policy="not_larger"), case(x, None, None, ints(7, 8), axes=[3, 2], keep_aspect_ratio_policy="not_smaller")]
    # Coordinates of the references are floats.
    for one in out:
        one.rtol = 1e-4
    return out


def upsample(c):
    x, s = c.x(1, 2, 3, 4), [1.0, 1.0, 2.0, 3.0]
    if c.v == 1:
        return [case(x, height_scale=2.0, width_scale=3.0, mode=m, same=(7, None, {"scales": s, "mode": "linear" if m else "nearest"})) for m in (None, "bilinear")]
    return [case(x, **({"scales": s} if c.v == 7 else {}), mode=m) if c.v == 7 else case(x, Const(np.array(s)), mode=m) for m in (None, "linear")]


R |= {"GlobalLpPool": global_lp, "MaxUnpool": unpool, "RoiAlign": roi_align, "GridSample": grid_sample, "Resize": resize, "Upsample": upsample}
R["MaxRoiPool"] = lambda c: [case(c.x(2, 2, 8, 8), np.array([[0, 1, 1, 5, 6], [1, 0, 2, 7, 7]]).astype(np.float64), pooled_shape=[2, 3], spatial_scale=s) for s in (None, 0.5)]
R["AffineGrid"] = lambda c: [case(c.x(2, 2, 3), ints(2, 1, 3, 4), align_corners=a) for a in (None, 1)] + [case(c.x(1, 3, 4), ints(1, 1, 2, 3, 4))]
R["Col2Im"] = lambda c: [case(c.x(1, 8, 9), ints(4, 4), ints(2, 2)), case(c.x(1, 8, 4), ints(4, 4), ints(2, 2), strides=[2, 2]), case(c.x(1, 8, 16), ints(4, 4), ints(2, 2), dilations=[2, 2], pads=[1, 1, 1, 1])]


# --- Transforms. ---

def dft(c):
    real, pairs = c.x(1, 10, 6, 1), c.x(1, 10, 6, 2)
    if c.v < 20:
        return [case(real, axis=1), case(pairs, axis=2, inverse=1), case(real, axis=1, onesided=1), case(pairs, Const(np.array(8)), axis=1), case(real)]
    axis = lambda a: Const(np.array(a))
    return [case(real, None, axis(1)), case(pairs, None, axis(2), inverse=1), case(real, None, axis(1), onesided=1), case(pairs, Const(np.array(8)), axis(1)), case(real)]


R["DFT"] = dft
R["STFT"] = lambda c: [case(c.x(1, 32, 1), Const(np.array(8)), c.x(16, lo=0.1, hi=1), Const(np.array(16))), case(c.x(1, 32, 1), Const(np.array(8)), c.x(16, lo=0.1, hi=1), onesided=0), case(c.x(1, 32, 1), Const(np.array(8)), None, Const(np.array(16)))]


# --- Losses and optimizers. ---

def loss(n):
    def cases(c):
        x, t = c.x(2, 3, 4), c.i(0, 3, 2, 4)
        return [case(x, t, *w, reduction=r, out=k, **g) for r in (None, "none", "sum") for w in ([], [c.x(3, lo=0.1)]) for k in range(1, n + 1) for g in ({}, {"ignore_index": 1})]
    return cases


R |= {"NegativeLogLikelihoodLoss": loss(1), "SoftmaxCrossEntropyLoss": loss(2)}


def optimizer(extra, *more):
    def cases(c):
        r, t = np.array(0.1), np.array(3)
        x, y = [c.x(4), c.x(2, 3)], [c.x(4, lo=0.1), c.x(2, 3, lo=0.1)]
        state = lambda k: [z for _ in range(extra) for z in [np.abs(c.x(4)), np.abs(c.x(2, 3))][:k]]
        first, *rest = more
        return [case(r, t, x[0], c.x(4), *state(1), out=1 + extra, **first)] + [case(r, t, *x, c.x(4), c.x(2, 3), *state(2), out=2 + 2 * extra, **m) for m in rest]
    return cases


R["Adagrad"] = optimizer(1, {}, {"norm_coefficient": 0.01, "decay_factor": 0.1, "epsilon": 1e-3})
R["Adam"] = optimizer(2, {}, {"alpha": 0.8, "beta": 0.9, "norm_coefficient": 0.01, "norm_coefficient_post": 0.02, "epsilon": 1e-3})
R["Momentum"] = optimizer(1, {"alpha": 0.9, "beta": 0.8, "mode": "standard", "norm_coefficient": 0.0}, {"alpha": 0.9, "beta": 0.8, "mode": "nesterov", "norm_coefficient": 0.01})
