"""Recipes of ai.onnx.ml."""
import numpy as np
from recipe import Const, case, code, convert
from onnx import numpy_helper

R = {}


def tensor(t, values):
    return numpy_helper.from_array(convert(np.array(values, object if t == "string" else None), t), "v")


R["ArrayFeatureExtractor"] = lambda c: [case(c.x(3, 4), Const(np.array([[0, 2, 3]]))), case(c.x(3, 4), np.array([[1]]))]
R["Binarizer"] = lambda c: [case(c.x(3, 4)), case(c.x(3, 4), threshold=0.5)]
R["FeatureVectorizer"] = lambda c: [case(c.x(3, 2), c.x(3, 4), inputdimensions=[2, 4]), case(c.x(3, 2), inputdimensions=[2])]


def imputer(c):
    if "int" in c["T"]:
        return [case(np.array([[1, 2, 3], [2, 4, 2]]), imputed_value_int64s=[7], replaced_value_int64=2), case(np.array([[1, 2, 3], [0, 4, 0]]), imputed_value_int64s=[7, 8, 9])]
    x = np.array([[1.0, 2.0, np.nan], [2.0, np.nan, 2.0]])
    return [case(x, imputed_value_floats=[7.5], replaced_value_float=2.0), case(x, imputed_value_floats=[7.5, 8.5, 9.5], replaced_value_float=float("nan"))]


VALUES = {"string": ["a", "b", "c"], "int64": [3, 1, 2], "float": [0.5, 1.5, 2.5], "int32": [3, 1, 2], "int16": [3, 1, 2], "double": [0.5, 1.5, 2.5]}
OTHER = {"string": "z", "int64": -7, "int32": -7, "float": -7.5, "int16": -7, "double": -7.5}
FIELD = {"string": "strings", "int64": "int64s", "float": "floats"}


def label_encoder(c):
    a, b = c["T1"], c["T2"]
    x = np.array([VALUES[a][k] for k in (0, 2, 1)] + [OTHER[a]], object if a == "string" else None)
    if c.v == 1:
        if (a, b) == ("string", "int64"):
            return [case(x, classes_strings=["a", "b", "c"], default_int64=-7)]
        return [case(np.array([0, 2, 9]), classes_strings=["a", "b", "c"], default_string="z", types=["string"])] if a == "int64" else []
    out = []
    default = {"string": "default_string", "int64": "default_int64", "float": "default_float"}
    if a in FIELD and b in FIELD:
        pair = {"keys_" + FIELD[a]: VALUES[a], "values_" + FIELD[b]: VALUES[b]}
        out = [case(x, **pair), case(x, **pair, **{default[b]: OTHER[b]})]
    if c.v >= 4:
        out.append(case(x, keys_tensor=tensor(a, VALUES[a]), values_tensor=tensor(b, VALUES[b]), default_tensor=tensor(b, [OTHER[b]])))
    return out


def one_hot_encoder(c):
    if c["T"] == "string":
        x = np.array(["a", "c", "b", "z"], object)
        return [case(x, cats_strings=["a", "b", "c"]), case(x[:3], cats_strings=["a", "b", "c"], zeros=0)]
    x = np.array([1, 3, 2, 9])
    return [case(x.astype(float) if "int" not in c["T"] else x, cats_int64s=[1, 2, 3]), case(x[:3].astype(float) if "int" not in c["T"] else x[:3], cats_int64s=[1, 2, 3], zeros=0)]


TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO")


def linear_classifier(c):
    x, w = c.x(5, 2), [0.5, 0.25, -1.0, 0.1, 0.3, 0.2]
    labels = {"classlabels_strings": ["a", "b", "c"]} if c["T2"] == "string" else {"classlabels_ints": [5, 7, 9]}
    out = [case(x, coefficients=w, intercepts=[0.13, 0.2, 0.3], post_transform=t, out=2, **labels) for t in TRANSFORMS] + [case(x, coefficients=w, intercepts=[0.1, 0.2, 0.3], multi_class=1, out=2, **labels)]
    two = {"classlabels_strings": ["a", "b"]} if c["T2"] == "string" else {"classlabels_ints": [5, 7]}
    return out + [case(x, coefficients=w[:2] + [-0.5, -0.25], intercepts=[0.1, -0.1], out=2, **two)]


def linear_regressor(c):
    x = c.x(5, 2)
    return [case(x, coefficients=[0.5, 0.25]), case(x, coefficients=[0.5, 0.25, -1.0, 0.1], intercepts=[0.1, 0.2], targets=2, post_transform="SOFTMAX")]


def svm_classifier(c):
    x = c.x(6, 2, lo=-1, hi=1)
    labels = lambda n: {"classlabels_strings": list("abc")[:n]} if c["T2"] == "string" else {"classlabels_ints": [4, 6, 7][:n]}
    w = {"coefficients": [0.5, -0.25, 1.0, 0.3, 0.2, -0.7], "support_vectors": [0.1, 0.2, 0.3, -0.4, 0.5, 0.6], "vectors_per_class": [1, 1, 1], "rho": [0.3, 0.1, 0.2], "kernel_params": [0.4, 0.2, 3.0]}
    out = [case(x, **w, **labels(3), kernel_type=k, out=2) for k in ("LINEAR", "RBF", "SIGMOID", "POLY")]
    out.append(case(x, **w, **labels(3), prob_a=[-1.0, -0.5, -2.0], prob_b=[0.1, 0.2, 0.3], out=2))
    out.append(case(x, coefficients=[0.5, -0.25, 1.0], support_vectors=[0.1, 0.2, 0.3, -0.4, 0.5, 0.6], vectors_per_class=[1, 2], rho=[0.3], kernel_params=[0.0, 0.0, 0.0], post_transform="LOGISTIC", out=2, **labels(2)))
    return out


def svm_regressor(c):
    def logistic(x):
        """ONNX Runtime has no transforms here."""
        s = x @ np.array([0.1, 0.2, 0.3, -0.4, 0.5, 0.6]).reshape(3, 2).T @ np.array([0.5, -0.25, 1.0]) + 0.3
        return [1 / (1 + np.exp(-s[:, None]))]
    x = c.x(6, 2, lo=-1, hi=1)
    w = {"coefficients": [0.5, -0.25, 1.0], "support_vectors": [0.1, 0.2, 0.3, -0.4, 0.5, 0.6], "n_supports": 3, "rho": [0.3], "kernel_params": [0.4, 0.2, 3.0]}
    return [case(x, **w, kernel_type=k) for k in ("LINEAR", "RBF", "SIGMOID", "POLY")] + [case(x, **w, kernel_type="RBF", one_class=1), case(x, **w, post_transform="LOGISTIC", want=logistic), case(x, coefficients=[0.5, -0.25], rho=[0.3], kernel_params=[0.0, 0.0, 0.0])]


TREE = {"nodes_treeids": [0, 0, 0, 0, 0, 1, 1, 1], "nodes_nodeids": [0, 1, 2, 3, 4, 0, 1, 2], "nodes_featureids": [0, 1, 0, 0, 0, 1, 0, 0], "nodes_truenodeids": [1, 3, 0, 0, 0, 1, 0, 0], "nodes_falsenodeids": [2, 4, 0, 0, 0, 2, 0, 0]}
SPLITS = [0.1, -0.2, 0.0, 0.0, 0.0, 0.3, 0.0, 0.0]
WEIGHTS = [0.5, -1.5, 2.5, 0.25, 0.75]
LEAVES = {"treeids": [0, 0, 0, 1, 1], "nodeids": [2, 3, 4, 1, 2]}


def modes(m):
    return [m, m, "LEAF", "LEAF", "LEAF", m, "LEAF", "LEAF"]


def data(c, var):
    x = c.x(7, 2, lo=-1, hi=1)
    if "int" in c[var]:
        return c.i(-1, 2, 7, 2)
    return x


def tree(c, kind, ids, **more):
    """Nodes and leaves in lists or, for doubles from version 3 on, in tensors."""
    n = len(ids) // 5
    weights = (WEIGHTS + WEIGHTS[::-1] + WEIGHTS[2:] + WEIGHTS[:2])[:5 * n]
    out = {**TREE, **{f"{kind}_{k}": v * n for k, v in LEAVES.items()}, f"{kind}_ids": ids}
    if c.binding.get("T", c.binding.get("T1")) == "double" and c.v >= 3:
        t = lambda v: tensor("double", v)
        out |= {"nodes_values_as_tensor": t(SPLITS), f"{kind}_weights_as_tensor": t(weights), "nodes_hitrates_as_tensor": t([1.0] * 8)}
        if "base_values" in more:
            more["base_values_as_tensor"] = t(more.pop("base_values"))
    else:
        out |= {"nodes_values": SPLITS, f"{kind}_weights": weights, "nodes_hitrates": [1.0] * 8}
    return out | more


def tree_regressor(c):
    x = data(c, "T")
    # Each target gets a value from every sample: references differ about those that do not.
    return [case(x, n_targets=2, nodes_modes=modes("BRANCH_LEQ"), aggregate_function=a, **tree(c, "target", [0, 0, 0, 1, 1], base_values=[0.5, 0.25])) for a in ("SUM", "AVERAGE", "MIN", "MAX")] \
        + [case(x, n_targets=1, nodes_modes=modes(m), **tree(c, "target", [0] * 5)) for m in ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")] \
        + [case(x, n_targets=2, nodes_modes=modes("BRANCH_LEQ"), post_transform="LOGISTIC", nodes_missing_value_tracks_true=[1, 0, 0, 0, 0, 0, 0, 0], **tree(c, "target", [0, 1, 0, 1, 0]))]


def tree_classifier(c):
    x = data(c, "T1")
    labels = lambda n: {"classlabels_strings": list("abc")[:n]} if c["T2"] == "string" else {"classlabels_int64s": [5, 7, 9][:n]}
    return [case(x, nodes_modes=modes("BRANCH_LEQ"), out=2, **labels(3), post_transform=t, **tree(c, "class", [0] * 5 + [1] * 5 + [2] * 5, base_values=[0.1, 0.2, 0.3])) for t in ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO")] \
        + [case(x, nodes_modes=modes(m), out=2, **labels(2), **tree(c, "class", [0] * 5)) for m in ("BRANCH_GTE", "BRANCH_LT")] \
        + [case(x, nodes_modes=modes("BRANCH_GT"), out=2, **labels(3), nodes_missing_value_tracks_true=[1, 0, 0, 0, 0, 0, 0, 0], **tree(c, "class", [0] * 5 + [1] * 5 + [2] * 5))]


def tree_ensemble(c):
    x, t = c.x(6, 2, lo=-1, hi=1), c["T"]
    base = {"nodes_splits": tensor(t, [0.1, -0.2]), "nodes_featureids": [0, 1], "nodes_truenodeids": [0, 2], "nodes_trueleafs": [1, 1], "nodes_falsenodeids": [1, 3], "nodes_falseleafs": [1, 1],
            "leaf_targetids": [0, 0, 0, 0], "leaf_weights": tensor(t, [0.5, 1.5, 2.5, -3.5]), "tree_roots": [0, 1]}
    out = [case(x, n_targets=1, nodes_modes=tensor("uint8", [m, m]), aggregate_function=a, **base) for m, a in ((0, 0), (1, 1), (2, 2), (3, 3), (0, 1))]
    two = {**base, "leaf_targetids": [0, 0, 1, 1], "n_targets": 2, "nodes_modes": tensor("uint8", [0, 1]), "nodes_missing_value_tracks_true": [1, 0], "nodes_hitrates": tensor(t, [1.0, 1.0])}
    # LOGISTIC is 2 and SOFTMAX 1; ONNX Runtime has them the other way round.
    out += [case(x, **two)] + [case(x, **two, post_transform=p, same=(5, None, {**two, "post_transform": 3 - p})) for p in (1, 2)]
    members = {"nodes_modes": tensor("uint8", [6, 0, 6]), "nodes_splits": tensor(t, [0.0, 0.5, 0.0]), "nodes_featureids": [0, 1, 1], "membership_values": tensor(t, [1.0, -1.0, float("nan"), 0.0, float("nan")]),
               "nodes_truenodeids": [1, 0, 2], "nodes_trueleafs": [0, 1, 1], "nodes_falsenodeids": [2, 1, 3], "nodes_falseleafs": [0, 1, 1], "leaf_targetids": [0, 1, 0, 1], "leaf_weights": tensor(t, [0.5, 1.5, 2.5, -3.5])}
    return out + [case(np.rint(x), n_targets=2, tree_roots=[0], **members)]


R |= {"Imputer": imputer, "LabelEncoder": label_encoder, "OneHotEncoder": one_hot_encoder, "LinearClassifier": linear_classifier, "LinearRegressor": linear_regressor, "SVMClassifier": svm_classifier, "SVMRegressor": svm_regressor,
      "TreeEnsemble": tree_ensemble, "TreeEnsembleClassifier": tree_classifier, "TreeEnsembleRegressor": tree_regressor}
R["Normalizer"] = lambda c: [case(c.x(3, 4))] + [case(c.x(3, 4), norm=n) for n in ("L1", "L2", "MAX")]
R["Scaler"] = lambda c: [case(c.x(3, 4), offset=[0.5], scale=[2.0]), case(c.x(3, 4), offset=[0.5, 1, 2, 3], scale=[2.0, 0.5, 1, 3])]
