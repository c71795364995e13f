#!/usr/bin/env python3
"""Trains the digits network of this example and writes digits_batch.onnx and samples.hpp.

    pip install numpy scikit-learn onnx
    python train.py

The data are the 1797 images of 8x8 pixels, with values 0 to 16, that come with scikit-learn (the UCI set "Optical
Recognition of Handwritten Digits"). Every fifth image is kept for the test.
"""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from sklearn.datasets import load_digits
from sklearn.neural_network import MLPClassifier

SAMPLES = 96


def write_model(arrays, path):
    node, tensor = helper.make_node, helper.make_tensor_value_info
    graph = helper.make_graph(
        [
            node("Mul", ["images", "scale"], ["x"], "normalize"),
            node("Flatten", ["x"], ["f"], "flatten"),
            node("Gemm", ["f", "w1", "b1"], ["a1"], "hidden"),
            node("Relu", ["a1"], ["h1"], "relu"),
            node("Gemm", ["h1", "w2", "b2"], ["a2"], "output"),
            node("Softmax", ["a2"], ["probabilities"], "softmax", axis=-1),
            node("ArgMax", ["a2"], ["digits"], "argmax", axis=-1, keepdims=0),
        ],
        "digits_batch",
        [tensor("images", TensorProto.FLOAT, ["N", 8, 8])],
        [tensor("probabilities", TensorProto.FLOAT, ["N", 10]), tensor("digits", TensorProto.INT64, ["N"])],
        [numpy_helper.from_array(np.asarray(a, np.float32), k) for k, a in arrays.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8, producer_name="train.py")
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, path)


def write_samples(x, y, path):
    rows = ["// Images that the network was not trained on and reads rightly. Written by train.py.",
            "#ifndef SAMPLES_HPP", "#define SAMPLES_HPP", "",
            "struct Sample {", "  int digit;", "  unsigned char pixels[64];", "};", "",
            f"static const Sample samples[{len(x)}] = {{"]
    for image, digit in zip(x, y):
        rows.append(f"  {{{digit}, {{{','.join(str(int(v)) for v in image)}}}}},")
    with open(path, "w") as f:
        f.write("\n".join(rows + ["};", "", "#endif", ""]))


def main():
    x, y = load_digits(return_X_y=True)
    test = np.arange(len(x)) % 5 == 0
    net = MLPClassifier((128,), alpha=1e-2, max_iter=500, random_state=1).fit(x[~test] / 16, y[~test])
    right = net.predict(x[test] / 16) == y[test]
    print(f"test accuracy: {right.sum()} of {right.size} ({right.mean():.1%})")
    (w1, w2), (b1, b2) = net.coefs_, net.intercepts_
    write_model({"scale": 1 / 16, "w1": w1, "b1": b1, "w2": w2, "b2": b2}, "digits_batch.onnx")
    # A program that checks itself needs images that the network reads rightly.
    pick = np.flatnonzero(right)[:SAMPLES]
    write_samples(x[test][pick], y[test][pick], "samples.hpp")


if __name__ == "__main__":
    main()
