#!/usr/bin/env python3
"""Gradient (ai.onnx.preview.training) against finite differences in double precision.

    gradient.py ONNXC WORKDIR [CASE...]

Each case is the body of a graph that computes `y` from the tensors `x0`, `x1`, ... (double, of the shapes given). The model
adds a Gradient node by all of them; what it computes must be the change of the sum of `y`, which ONNX's own evaluator tells
for steps to both sides.
"""
import pathlib
import subprocess
import sys

import numpy as np

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "tools"))
import abi  # noqa: E402

CASES = {}


# Computed by onnxc itself for the differences: ONNX's evaluator has an erf of single precision, and reads the axis of the
# first versions of Softmax as later ones do.
OWN = {"erf", "gelu", "softmax_11"}
# Of single precision in the middle.
COARSE = {"celu"}


def case(name, shapes, body, low=-2.0, high=2.0, constants="", opset=22):
    CASES[name] = (shapes, body, low, high, constants, opset)


# Elements, one operand each; the limits keep away from where there is no derivative.
for op in ["Neg", "Exp", "Tanh", "Sigmoid", "Relu", "Abs", "Sin", "Cos", "Atan", "Sinh", "Cosh", "Asinh", "Erf", "Softplus", "Softsign", "LeakyRelu", "Elu", "Selu",
           "HardSigmoid", "HardSwish", "Gelu", "Mish", "ThresholdedRelu", "Floor", "Identity"]:
    case(op.lower(), [(3, 4)], f"y = {op} (x0)")
for op, low, high in [("Log", 0.5, 3), ("Sqrt", 0.5, 3), ("Reciprocal", 0.5, 3), ("Tan", -1, 1), ("Asin", -0.9, 0.9), ("Acos", -0.9, 0.9), ("Acosh", 1.2, 3), ("Atanh", -0.9, 0.9)]:
    case(op.lower(), [(3, 4)], f"y = {op} (x0)", low, high)
case("gelu_tanh", [(7,)], 'y = Gelu <approximate = "tanh"> (x0)')
case("hard_sigmoid_attributes", [(9,)], "y = HardSigmoid <alpha = 0.3, beta = 0.4> (x0)")
case("celu", [(6,)], "f = Cast <to = 1> (x0)  c = Celu <alpha = 0.7> (f)  y = Cast <to = 11> (c)")
case("swish", [(5,)], "y = Swish <alpha = 1.5> (x0)", opset=24)
# Pairs that broadcast.
for op in ["Add", "Sub", "Mul", "Max", "Min", "Sum", "Mean"]:
    case(f"{op.lower()}_broadcast", [(2, 3, 4), (3, 1)], f"y = {op} (x0, x1)")
case("div_broadcast", [(3, 1), (2, 3, 4)], "y = Div (x0, x1)", 0.5, 2)
case("pow", [(3, 4), (4,)], "y = Pow (x0, x1)", 0.5, 2)
case("pow_square", [(3, 4)], "y = Pow (x0, two)", constants="<double two = {2}>")
case("prelu", [(2, 3), (3,)], "y = PRelu (x0, x1)")
case("scalar", [(), (2, 2)], "y = Mul (x0, x1)")
case("where", [(2, 3), (3,)], "c = Greater (x0, x1)  y = Where (c, x0, x1)")
case("clip", [(4, 5)], "y = Clip (x0, low, high)", constants="<double low = {-1}, double high = {1}>")
case("used_twice", [(3,)], "a = Mul (x0, x0)  b = Sin (a)  c = Mul (a, b)  y = Add (c, x0)")
# Products of matrices.
case("matmul", [(3, 4), (4, 5)], "y = MatMul (x0, x1)")
case("matmul_batch", [(2, 1, 3, 4), (5, 4, 2)], "y = MatMul (x0, x1)")
case("matmul_vector", [(4,), (2, 4, 3)], "y = MatMul (x0, x1)")
case("matmul_column", [(2, 3, 4), (4,)], "y = MatMul (x0, x1)")
case("matmul_dot", [(4,), (4,)], "y = MatMul (x0, x1)")
for a, b in [(0, 0), (0, 1), (1, 0), (1, 1)]:
    case(f"gemm_{a}{b}", [(4, 3) if a else (3, 4), (2, 4) if b else (4, 2), (2,)], f"y = Gemm <transA = {a}, transB = {b}, alpha = 0.5, beta = 2.0> (x0, x1, x2)")
# Sums.
for op in ["ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSumExp"]:
    case(op.lower(), [(2, 3, 4)], f"y = {op} <keepdims = 0> (x0, axes)", constants="<int64[2] axes = {0, -1}>")
    case(op.lower() + "_all", [(2, 3)], f"y = {op} (x0)")
case("reducelogsum", [(2, 3)], "y = ReduceLogSum (x0)", 0.5, 2)
case("reduce_13", [(2, 3)], "y = ReduceMean <axes = [1]> (x0)", opset=13)
case("softmax", [(2, 3, 4)], "s = Softmax <axis = 1> (x0)  y = Mul (s, s)")
case("softmax_11", [(2, 3, 4)], "s = Softmax <axis = 1> (x0)  y = Mul (s, s)", opset=11)
case("logsoftmax", [(2, 3)], "s = LogSoftmax (x0)  y = Mul (s, s)")
case("cumsum", [(2, 3)], "c = CumSum (x0, axis)  y = Mul (c, c)", constants="<int64 axis = {1}>")
# Shapes.
case("reshape", [(2, 6)], "r = Reshape (x0, shape)  y = Mul (r, r)", constants="<int64[3] shape = {3, 2, 2}>")
case("flatten", [(2, 3, 2)], "r = Flatten (x0)  y = Mul (r, r)")
case("squeeze", [(2, 1, 3)], "r = Squeeze (x0, axis)  u = Unsqueeze (r, zero)  y = Mul (u, u)", constants="<int64[1] axis = {1}, int64[1] zero = {0}>")
case("transpose", [(2, 3, 4), (4, 2, 3)], "t = Transpose <perm = [2, 0, 1]> (x0)  y = Mul (t, x1)")
case("expand", [(3, 1)], "e = Expand (x0, shape)  y = Mul (e, e)", constants="<int64[3] shape = {2, 3, 4}>")
case("concat", [(2, 3), (2, 2)], "c = Concat <axis = -1> (x0, x1, x0)  y = Mul (c, c)")
case("split", [(2, 6)], "a, b, c = Split <axis = 1, num_outputs = 3> (x0)  y = Mul (a, c)")
case("slice", [(4, 5)], "s = Slice (x0, from, to, axes, steps)  y = Mul (s, s)",
     constants="<int64[2] from = {-1, 0}, int64[2] to = {0, 5}, int64[2] axes = {0, 1}, int64[2] steps = {-2, 2}>")
case("gather", [(4, 3)], "g = Gather <axis = 0> (x0, i)  y = Mul (g, g)", constants="<int64[2, 2] i = {0, 3, 3, -2}>")
case("gather_columns", [(2, 4)], "g = Gather <axis = 1> (x0, i)  y = Mul (g, g)", constants="<int64[3] i = {1, 1, 2}>")
case("gatherelements", [(3, 2)], "g = GatherElements (x0, i)  y = Mul (g, g)", constants="<int64[2, 2] i = {0, 2, 0, 1}>")
case("gathernd", [(3, 2)], "g = GatherND (x0, i)  y = Mul (g, g)", constants="<int64[2, 1] i = {2, 2}>")
case("tile", [(2, 3)], "t = Tile (x0, n)  y = Mul (t, t)", constants="<int64[2] n = {2, 2}>")
case("pad", [(2, 3)], "p = Pad (x0, pads)  y = Mul (p, p)", constants="<int64[4] pads = {1, 0, 0, 2}>")
case("trilu", [(3, 3)], "t = Trilu <upper = 0> (x0)  y = Mul (t, t)")
case("depth_to_space", [(1, 4, 2, 2)], "t = DepthToSpace <blocksize = 2> (x0)  y = Mul (t, t)")
# Layers.
case("conv", [(2, 3, 7, 6), (4, 3, 3, 2), (4,)], "c = Conv <strides = [2, 1], pads = [1, 0, 1, 1]> (x0, x1, x2)  y = Mul (c, c)")
case("conv_groups", [(2, 4, 7, 7), (6, 2, 3, 3)], "c = Conv <group = 2, dilations = [2, 1], strides = [1, 3]> (x0, x1)  y = Mul (c, c)")
case("conv_line", [(1, 2, 9), (3, 2, 3)], "c = Conv <pads = [1, 1]> (x0, x1)  y = Mul (c, c)")
case("maxpool", [(1, 2, 5, 5)], "p = MaxPool <kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]> (x0)  y = Mul (p, p)")
case("averagepool", [(1, 2, 6, 5)], "p = AveragePool <kernel_shape = [2, 3], strides = [2, 1]> (x0)  y = Mul (p, p)")
case("globalaveragepool", [(2, 3, 4, 4)], "p = GlobalAveragePool (x0)  y = Mul (p, p)")
case("layernorm", [(2, 3, 4), (4,), (4,)], "n = LayerNormalization (x0, x1, x2)  y = Mul (n, n)")
case("batchnorm", [(2, 3, 4), (3,), (3,)], "n = BatchNormalization (x0, x1, x2, mean, var)  y = Mul (n, n)", constants="<double[3] mean = {0.1, 0.2, 0.3}, double[3] var = {1, 2, 3}>")
case("cross_entropy", [(4, 3)], "y = SoftmaxCrossEntropyLoss <ignore_index = 9> (x0, labels)", constants="<int64[4] labels = {0, 2, 9, 1}>")
case("cross_entropy_weights", [(2, 3, 2)], 'y = SoftmaxCrossEntropyLoss <reduction = "none"> (x0, labels, w)', constants="<int64[2, 2] labels = {0, 2, 2, 1}, double[3] w = {1, 2, 0.5}>")
case("nll", [(2, 3)], 'l = LogSoftmax (x0)  y = NegativeLogLikelihoodLoss <reduction = "sum"> (l, labels)', constants="<int64[2] labels = {0, 2}>")
case("dropout", [(2, 3)], "d = Dropout (x0)  y = Mul (d, d)")
case("network", [(3, 4), (4, 5), (5,), (5, 2)], "h = Gemm (x0, x1, x2)  a = Relu (h)  p = MatMul (a, x3)  s = Softmax (p)  l = Log (s)  y = ReduceMean <keepdims = 0> (l)")


def model(name):
    import onnx
    import onnx.parser
    shapes, body, _, _, constants, opset = CASES[name]
    given = ", ".join(f"double[{', '.join(map(str, s))}] x{i}" if s else f"double x{i}" for i, s in enumerate(shapes))
    xs = ", ".join(f"x{i}" for i in range(len(shapes)))
    names = ", ".join(f'"x{i}"' for i in range(len(shapes)))
    ds = ", ".join(f"d{i}" for i in range(len(shapes)))
    head = f'<ir_version: 8, opset_import: ["" : {opset}, "ai.onnx.preview.training" : 1]>'
    forward = onnx.parser.parse_model(f"{head} m ({given}) => (double[{'?' if name in OWN else ''}] y) {constants} {{ {body} }}")
    outputs = ", ".join(f"double[{', '.join(map(str, s))}] d{i}" if s else f"double d{i}" for i, s in enumerate(shapes))
    text = f'{head} m ({given}) => ({outputs}) {constants} {{ {body} {ds} = ai.onnx.preview.training.Gradient <xs = [{names}], y = "y"> ({xs}) }}'
    return forward, onnx.parser.parse_model(text)


def differences(forward, feeds, h):
    out = []
    for name in feeds:
        d = np.zeros_like(feeds[name])
        for at in np.ndindex(*d.shape):
            total = []
            for step in (h, -h):
                moved = {k: v.copy() for k, v in feeds.items()}
                moved[name][at] += step
                total.append(np.sum(forward(moved)))
            d[at] = (total[0] - total[1]) / (2 * h)
        out.append(d)
    return out


def evaluator(name, forward, lib):
    if name not in OWN:
        from onnx.reference import ReferenceEvaluator
        run = ReferenceEvaluator(forward)
        return lambda feeds: run.run(None, feeds)[0]
    m = abi.Model(lib, f"f_{name}")

    def own(feeds):
        run, outs = m.prepare(feeds)
        run()
        return outs[0]
    return own


def main():
    import onnx
    onnxc, work = sys.argv[1], pathlib.Path(sys.argv[2])
    wanted = sys.argv[3:] or list(CASES)
    work.mkdir(parents=True, exist_ok=True)
    failures, objects, compiled = [], [], {}
    for name in wanted:
        forward, whole = model(name)
        for kind, m in [("g", whole)] + [("f", forward)] * (name in OWN):
            path = work / f"{kind}_{name}.onnx"
            onnx.save(m, path)
            r = subprocess.run([onnxc, str(path), "-o", str(path.with_suffix(".o")), "--name", path.stem, "--emit", "obj"], capture_output=True, text=True)
            if r.returncode:
                failures.append(name)
                print(f"{name}: not compiled\n{r.stderr}")
            else:
                objects.append(str(path.with_suffix(".o")))
                compiled[name] = forward
    lib = str(work / "all.so")
    abi.link(objects, lib)
    for k, (name, forward) in enumerate(compiled.items()):
        shapes, _, low, high, _, _ = CASES[name]
        rng = np.random.default_rng(k)
        feeds = {f"x{i}": rng.uniform(low, high, s).astype(np.float64) for i, s in enumerate(shapes)}
        m = abi.Model(lib, f"g_{name}")
        run, outs = m.prepare(feeds)
        run()
        h, tolerance = (1e-2, 2e-3) if name in COARSE else (1e-5, 1e-6)
        for i, (got, want) in enumerate(zip(outs, differences(evaluator(name, forward, lib), feeds, h))):
            try:
                np.testing.assert_allclose(got, want, rtol=10 * tolerance, atol=tolerance)
            except AssertionError as e:
                failures.append(name)
                print(f"{name}: d{i}: {' '.join(str(e).split())[:600]}")
    print(f"{len(wanted)} cases, {len(failures)} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
