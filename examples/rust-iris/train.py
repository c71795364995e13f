#!/usr/bin/env python3
"""Trains the iris network of this example and writes iris.onnx and src/samples.rs.

    pip install numpy scikit-learn onnx
    python train.py

The data are Fisher's 150 flowers of three species, which come with scikit-learn; every third one is kept for the test.
"""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from sklearn.datasets import load_iris
from sklearn.neural_network import MLPClassifier


def write_model(arrays, path):
    node = helper.make_node
    graph = helper.make_graph(
        [
            node("Sub", ["measures", "mean"], ["centred"], "centre"),
            node("Div", ["centred", "deviation"], ["x"], "scale"),
            node("Gemm", ["x", "w1", "b1"], ["a1"], "hidden"),
            node("Relu", ["a1"], ["h1"], "relu"),
            node("Gemm", ["h1", "w2", "b2"], ["a2"], "output"),
            node("Softmax", ["a2"], ["species"], "softmax", axis=-1),
        ],
        "iris",
        [helper.make_tensor_value_info("measures", TensorProto.FLOAT, ["N", 4])],
        [helper.make_tensor_value_info("species", TensorProto.FLOAT, ["N", 3])],
        [numpy_helper.from_array(np.asarray(a, np.float32), k) for k, a in arrays.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8, producer_name="train.py")
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, path)


def write_samples(x, y, path):
    rows = ["// Flowers that the network was not trained on. Written by train.py.",
            "/// Length and width of sepal and petal in cm, and the species.",
            f"pub const SAMPLES: [([f32; 4], usize); {len(x)}] = ["]
    rows += [f"    ([{', '.join(str(float(v)) for v in flower)}], {species})," for flower, species in zip(x, y)]
    with open(path, "w") as f:
        f.write("\n".join(rows + ["];", ""]))


def main():
    x, y = load_iris(return_X_y=True)
    test = np.arange(len(x)) % 3 == 0
    mean, deviation = x[~test].mean(0), x[~test].std(0)
    net = MLPClassifier((16,), alpha=1e-2, max_iter=2000, random_state=1).fit((x[~test] - mean) / deviation, y[~test])
    right = net.predict((x[test] - mean) / deviation) == y[test]
    print(f"test accuracy: {right.sum()} of {right.size} ({right.mean():.1%})")
    (w1, w2), (b1, b2) = net.coefs_, net.intercepts_
    write_model({"mean": mean, "deviation": deviation, "w1": w1, "b1": b1, "w2": w2, "b2": b2}, "iris.onnx")
    # A program that checks itself needs flowers that the network tells rightly: the first five of each species.
    pick = np.concatenate([np.flatnonzero(right & (y[test] == k))[:5] for k in range(3)])
    write_samples(x[test][pick], y[test][pick], "src/samples.rs")


if __name__ == "__main__":
    main()
