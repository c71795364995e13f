#!/usr/bin/env python3
"""Trains the digits network of this example and writes digits.onnx and samples.h.

    pip install numpy scikit-learn onnx
    python train.py

The data are the 1797 images of 8x8 pixels, with values 0 to 16, that come with scikit-learn (the UCI set "Optical
Recognition of Handwritten Digits"). Every fifth image is kept for the test. The network is two convolutions and a
linear layer, trained with numpy alone: no framework is needed to read what happens.
"""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from sklearn.datasets import load_digits

SEED, EPOCHS, BATCH, RATE = 1, 60, 32, 2e-3


def patches(x):
    """[n, c, h, w] -> [n, h, w, c*9]: the 3x3 surroundings of every pixel, zero outside."""
    p = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    w = np.lib.stride_tricks.sliding_window_view(p, (3, 3), axis=(2, 3))  # [n, c, h, w, 3, 3]
    return w.transpose(0, 2, 3, 1, 4, 5).reshape(*x.shape[:1], *x.shape[2:], -1)


def conv(x, w, b):
    cols = patches(x)
    return (cols @ w.reshape(len(w), -1).T + b).transpose(0, 3, 1, 2), cols


def conv_back(dy, cols, w):
    """Gradients of weights, bias and input."""
    d = dy.transpose(0, 2, 3, 1)
    dw = np.tensordot(d, cols, ((0, 1, 2), (0, 1, 2))).reshape(w.shape)
    # The gradient of the input is a convolution with the filters turned round and channels swapped.
    dx, _ = conv(dy, w[:, :, ::-1, ::-1].transpose(1, 0, 2, 3), 0)
    return dw, d.sum((0, 1, 2)), dx


def pool(x):
    n, c, h, w = x.shape
    v = x.reshape(n, c, h // 2, 2, w // 2, 2)
    y = v.max((3, 5))
    return y, v == y[:, :, :, None, :, None]


def pool_back(dy, mask):
    n, c, h, _, w, _ = mask.shape
    return (mask * dy[:, :, :, None, :, None]).reshape(n, c, 2 * h, 2 * w)


def forward(p, x):
    a1, cols1 = conv(x / 16, p["conv1.w"], p["conv1.b"])
    h1, mask1 = pool(np.maximum(a1, 0))
    a2, cols2 = conv(h1, p["conv2.w"], p["conv2.b"])
    h2, mask2 = pool(np.maximum(a2, 0))
    f = h2.reshape(len(x), -1)
    return f @ p["fc.w"].T + p["fc.b"], (a1, cols1, mask1, a2, cols2, mask2, f, h2.shape)


def gradients(p, x, y):
    logits, (a1, cols1, mask1, a2, cols2, mask2, f, shape) = forward(p, x)
    e = np.exp(logits - logits.max(1, keepdims=True))
    d = e / e.sum(1, keepdims=True)
    d[np.arange(len(x)), y] -= 1
    d /= len(x)
    g = {"fc.w": d.T @ f, "fc.b": d.sum(0)}
    d = pool_back((d @ p["fc.w"]).reshape(shape), mask2) * (a2 > 0)
    g["conv2.w"], g["conv2.b"], d = conv_back(d, cols2, p["conv2.w"])
    d = pool_back(d, mask1) * (a1 > 0)
    g["conv1.w"], g["conv1.b"], _ = conv_back(d, cols1, p["conv1.w"])
    return g


def train(x, y):
    rng = np.random.default_rng(SEED)
    he = lambda *s: rng.normal(0, np.sqrt(2 / np.prod(s[1:])), s)
    p = {"conv1.w": he(8, 1, 3, 3), "conv1.b": np.zeros(8), "conv2.w": he(16, 8, 3, 3), "conv2.b": np.zeros(16),
         "fc.w": he(10, 64), "fc.b": np.zeros(10)}
    m, v, t = {k: 0 for k in p}, {k: 0 for k in p}, 0
    for epoch in range(EPOCHS):
        order = rng.permutation(len(x))
        rate = RATE * (0.5 + 0.5 * np.cos(np.pi * epoch / EPOCHS))
        for i in range(0, len(x), BATCH):
            pick = order[i:i + BATCH]
            t += 1
            for k, g in gradients(p, x[pick], y[pick]).items():  # Adam
                m[k] = 0.9 * m[k] + 0.1 * g
                v[k] = 0.999 * v[k] + 0.001 * g * g
                p[k] -= rate * (m[k] / (1 - 0.9**t)) / (np.sqrt(v[k] / (1 - 0.999**t)) + 1e-8)
    return p


def write_model(p, path):
    p = p | {"scale": np.array(1 / 16)}
    node = helper.make_node
    graph = helper.make_graph(
        [
            node("Mul", ["image", "scale"], ["x"], "normalize"),
            node("Conv", ["x", "conv1.w", "conv1.b"], ["c1"], "conv1", pads=[1, 1, 1, 1]),
            node("Relu", ["c1"], ["r1"], "relu1"),
            node("MaxPool", ["r1"], ["p1"], "pool1", kernel_shape=[2, 2], strides=[2, 2]),
            node("Conv", ["p1", "conv2.w", "conv2.b"], ["c2"], "conv2", pads=[1, 1, 1, 1]),
            node("Relu", ["c2"], ["r2"], "relu2"),
            node("MaxPool", ["r2"], ["p2"], "pool2", kernel_shape=[2, 2], strides=[2, 2]),
            node("Flatten", ["p2"], ["f"], "flatten"),
            node("Gemm", ["f", "fc.w", "fc.b"], ["logits"], "fc", transB=1),
        ],
        "digits",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 1, 8, 8])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, [1, 10])],
        [numpy_helper.from_array(np.asarray(a, np.float32), k) for k, a in p.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8, producer_name="train.py")
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, path)


def write_samples(x, y, path):
    rows = ["/* Images that the network was not trained on: the first of each digit that it reads rightly. From train.py. */",
            "#ifndef SAMPLES_H", "#define SAMPLES_H", "",
            f"#define SAMPLES {len(x)}",
            "static const struct { int label; unsigned char pixels[64]; } samples[SAMPLES] = {"]
    for image, label in zip(x, y):
        rows.append(f"  {{ {label}, {{")
        rows += ["    " + " ".join(f"{int(v):2d}," for v in line) for line in image[0]]
        rows.append("  } },")
    with open(path, "w") as f:
        f.write("\n".join(rows + ["};", "", "#endif", ""]))


def main():
    data = load_digits()
    x, y = data.images[:, None], data.target
    test = np.arange(len(x)) % 5 == 0
    p = train(x[~test], y[~test])
    right = forward(p, x[test])[0].argmax(1) == y[test]
    print(f"test accuracy: {right.sum()} of {right.size} ({right.mean():.1%})")
    write_model(p, "digits.onnx")
    # A program that checks itself needs images of the 98 % that the network reads rightly: the first of each digit.
    first = [np.flatnonzero(right & (y[test] == k))[0] for k in range(10)]
    write_samples(x[test][first], y[test][first], "samples.h")


if __name__ == "__main__":
    main()
