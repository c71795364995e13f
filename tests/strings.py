#!/usr/bin/env python3
"""Operators on strings against the ONNX reference, ONNX Runtime and Python itself, on random strings.

    strings.py ONNXC WORK_DIR [SEED]
"""
import contextlib
import decimal
import math
import os
import pathlib
import random
import struct
import subprocess
import sys
import warnings

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "tools"))
import abi
import onnx
import onnxruntime
from onnx import TensorProto as T
from onnx import helper
from onnx.reference import ReferenceEvaluator

PIECES = ["a", "b", "ab", "Hello", " ", "  ", ",", ".", "1", "x9", "_", "é", "ß", "Σ", "ΑΣ", "İ", "ŉ", "日本", "😀", "\t", "\n", "\u2003", "\u00a0", "-", "@", ".com", "CAT"]
failures = 0
count = 0


def words(rng, shape, most=6):
    n = int(np.prod(shape))
    return np.array(["".join(rng.choices(PIECES, k=rng.randint(0, most))) for _ in range(n)] + [None], dtype=object)[:n].reshape(shape)


def model(op, feeds, outputs, domain="", **attributes):
    kind = {np.dtype(object): T.STRING}
    inputs = [helper.make_tensor_value_info(k, kind.get(v.dtype) or helper.np_dtype_to_tensor_dtype(v.dtype), [f"{k}_{i}" for i in range(v.ndim)]) for k, v in feeds.items()]
    outs = [helper.make_tensor_value_info(f"out{i}", t, [None] * r) for i, (t, r) in enumerate(outputs)]
    node = helper.make_node(op, list(feeds), [o.name for o in outs], domain=domain, **attributes)
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(helper.make_graph([node], "g", inputs, outs), opset_imports=opsets, ir_version=9)


def ours(onnxc, work, m, feeds, shapes, *options, change=None):
    global count
    count += 1
    path = str(work / f"m{count}")
    onnx.save(m, path + ".onnx")
    subprocess.run([onnxc, path + ".onnx", "-o", path + ".o", "--name", "m", "--emit", "obj", *options], check=True)
    abi.link([path + ".o"], path + ".so")
    run, outs = abi.Model(path + ".so", "m").prepare(feeds, shapes)
    if change:
        change(run.inputs[0][0])
    run()
    return outs


def same(got, want):
    want = np.asarray(want)
    if tuple(got.shape) != tuple(want.shape):
        return False
    if got.dtype == object:
        return all(a == str(b) for a, b in zip(got.reshape(-1), want.reshape(-1)))
    return np.allclose(got, want, rtol=1e-6, equal_nan=True)


def report(what, ok, detail=""):
    global failures
    if not ok:
        failures += 1
        print(f"WRONG {what} {detail}", flush=True)


def check(onnxc, work, what, m, feeds, runtime):
    if runtime:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        want = onnxruntime.InferenceSession(m.SerializeToString(), options, providers=["CPUExecutionProvider"]).run(None, feeds)
    else:
        want = ReferenceEvaluator(m).run(None, feeds)
    got = ours(onnxc, work, m, feeds, [np.asarray(w).shape for w in want])
    for g, w in zip(got, want):
        report(what, same(g, w), f"{feeds}: {g.tolist()}, expected {np.asarray(w).tolist()}"[:2000])


def numbers(onnxc, work, rng):
    """Casts against Python's own repr and float."""
    bits = [rng.getrandbits(64) for _ in range(3000)]
    f64 = np.array([struct.unpack("<d", struct.pack("<Q", b))[0] for b in bits] + [0.0, -0.0, 1e16, 1e15, 1e-4, 1e-5, 5e-324, 1e22, 1e23, np.inf, -np.inf, np.nan]
                   + [10.0 ** k for k in range(-30, 40)] + [2.0 ** k for k in range(-1074, 1024, 5)] + [round(rng.uniform(-1e3, 1e3), 2) for _ in range(300)])

    def cast(x, to):
        feeds = {"x": x}
        return ours(onnxc, work, model("Cast", feeds, [(to, 1)], to=to), feeds, [x.shape])[0]

    texts = cast(f64, T.STRING)
    report("double to string", texts.tolist() == [repr(float(v)) for v in f64])
    report("string to double", cast(texts, T.DOUBLE).tobytes() == np.array([float(s) for s in texts]).tobytes())
    f32 = np.array([b & 0xFFFFFFFF for b in bits], np.uint32).view(np.float32)
    texts = cast(f32, T.STRING)
    finite = np.isfinite(f32)
    short = [float(np.format_float_scientific(v, unique=True)) for v in f32[finite]]
    report("float to string", [float(s) for s in texts[finite]] == short)
    report("string to float", same(cast(texts, T.FLOAT), f32))
    f16 = np.arange(65536, dtype=np.uint16).view(np.float16)
    report("float16 there and back", same(cast(cast(f16, T.STRING), T.FLOAT16), f16))
    decimals = []
    for _ in range(2000):
        d = "".join(rng.choices("0123456789", k=rng.randint(1, 19)))
        p = rng.randint(0, len(d))
        e = rng.choice("eE") + rng.choice(["", "+", "-"]) + str(rng.randint(0, rng.choice([3, 30, 340]))) if rng.random() < 0.6 else ""
        decimals.append(rng.choice(["", " ", "\t"]) + rng.choice(["", "-", "+"]) + d[:p] + "." + d[p:] + e)
    decimals += ["9007199254740993", "9007199254740993.00000000000000000000001", "9007199254740992.99999999999999999999", ".5", "5.", "inf", "-Infinity", "NaN", "1e400", "-1e-400",
                 "0." + "0" * 400 + "1e401", "2.4703282292062327e-324", "2.4703282292062328e-324", "1.7976931348623159e308", "4503599627370496.5", "4503599627370497.5"]
    report("decimals to double", same(cast(np.array(decimals, dtype=object), T.DOUBLE), np.array([float(d) for d in decimals])))
    decimal.getcontext().prec = 2000
    hard = []
    for v in [abs(float(v)) for v in rng.sample(list(f64[np.isfinite(f64)]), 400)] + [0.0, 5e-324, 2.2250738585072014e-308, 2.225073858507201e-308, 1.7976931348623157e308, 1.0, 9007199254740992.0, 1e23, 9.999999999999999e22]:
        near = math.nextafter(v, math.inf)
        middle = (decimal.Decimal(v) + (decimal.Decimal(near) if near < math.inf else decimal.Decimal(2) ** 1024)) / 2
        for text in (f"{middle:e}", f"{middle:e}".replace("e", "0" * 30 + "1e"), f"{middle - middle * decimal.Decimal(10) ** -rng.randint(19, 900):e}", f"{middle + middle * decimal.Decimal(10) ** -rng.randint(19, 900):e}", f"{middle:.18e}", f"{middle:.19e}",
                     f"{middle:.20e}"):
            digits, e = text.split("e")
            digits, cut = digits.replace(".", ""), rng.randint(0, 40)
            hard.append(rng.choice(["", "-"]) + "0" * rng.randint(0, 3) + digits[:cut] + "." + digits[cut:] + "0" * rng.choice([0, 0, 25]) + f"e{int(e) + 1 - min(cut, len(digits))}")
    report("long decimals to double", cast(np.array(hard, dtype=object), T.DOUBLE).tobytes() == np.array([float(d) for d in hard]).tobytes(), [h for h, g in zip(hard, cast(np.array(hard, dtype=object), T.DOUBLE)) if g != float(h)])
    for t, to in ((np.int8, T.INT8), (np.uint8, T.UINT8), (np.int32, T.INT32), (np.int64, T.INT64), (np.uint64, T.UINT64)):
        i = np.iinfo(t)
        v = np.array([i.min, i.max, 0, 1, i.max // 3], t)
        texts = cast(v, T.STRING)
        report(f"{t.__name__} to string", texts.tolist() == [str(x) for x in v])
        report(f"string to {t.__name__}", same(cast(texts, to), v))
        for bad in ("", "-", "1.5", "x", "1 2", str(i.max + 1), str(i.min - 1)):
            try:
                cast(np.array([bad], dtype=object), to)
                report(f"{bad!r} is no {t.__name__}", False)
            except RuntimeError as e:
                report(f"{bad!r} as {t.__name__}", "bad value" in str(e), str(e))


PATTERNS = [r"\Qa.b\E", r"\Qa.b", r"\Qab\E*", r"\Q\\E", r"\C", r"\C\C", r"a\C*", r"\141", r"\0", r"\01", r"\123x", r"[\141-c]", r"\x{61}", r"\x61", r"\a\f\v", r"\pN", r"\p{Greek}", r"\p{^Greek}", r"\PN", r"\P{^Lu}", r"(?P<n>a)",
            r"(?<n>a)b", r"(?i)K", r"(?i)s", r"(?s).+", r".+", r"(?U)a+?", r"[[:alpha:]]+", r"[[:word:]]", r"[^[:^alpha:]]+", r"[\d.]+", r"[^\n]+", r"(?m)^a$", r"(?m)^a$\n^.*$", r"a{,2}", r"a{2}", r"(a{2}){3}", r"x*?", r"\_", r"\-", r"[]a]", r"[^]a]",
            r"\pZ", r"\p{Lu}", r"\p{Any}", r"\pC", r"\PC+", r"\p{Cs}", r"\b", r"\ba\B.*", r"é", r"(?i)É", r"(?i)ß", r"(?i)Σ", r"(?i)\w", r"(?i)\W", r"(?i)[^s]", r"(?i)[[:^upper:]]", r"(|a)*", r"$a", r"^*", r"}", r"{", r"]", r"a{x}", r"[a-]", r"[--a]",
            r"[a&&b]", r"[a~~b]", r"[[a]", r"[[a]]", r"[[=a=]]", r"\<", r"\#", r"#", r"\ ", r"\b{start}a", r"[^\pN]", r"[\PN]", r"(?i:a)b", r"(?-i)a", r"(?i-s:a.)", r"(?i)a(?-i)b", r"(?:(?i)a)b", r"(?i)\Qab\E", r"\D\S\W", r"[\s\S]", r"(?i)\p{Lu}", r"(?i)\P{Lu}",
            r"[\x{d7ff}-\x{e001}]", r"\x{d800}", r"[\x{10ffff}]", r"[^\x{0}-\x{10ffff}]", r"a|", r"|", r"()*", r"(a|b|)+c", r"a{0}", r"a{0,}b", r"[a-c-e]", r"\x{000000000061}"]
NO_PATTERNS = [r"a\Z", r"a{2}{3}", r"a**", r"a++", r"a*?+", r"\8", r"\1", r"\18", r"[a-\d]", r"a{1001}", r"\y", r"a|*", r"*a", r"{2}", r"(*a)", r"a{2,1}", r"(?#c)", r"\ca", r"[a--b]", r"\p{Letter}", r"\p{sc=Greek}", r"\p{greek}", r"\p{White_Space}", r"\u0061", r"(?x)a b",
               r"(?R)a", r"\é", r"\e", r"[\Qa\E]", r"\E", r"(a", r"a)", r"[z-a]", r"\x{110000}", r"\x{}", r"\xg", r"\x6", r"[[:foo:]]", r"[a", r"[]", "a\\", r"(?i", r"(?i-)a", r"(?P<>a)", r"(?P=n)", r"(?=a)", r"(?<!a)", r"\p", r"\p{L", r"\pB"]
PARTS = ["a", "b", "é", "K", "(?i)", "(?:", "(", ")", ")", "|", "*", "+", "?", "??", "{2}", "{1,}", "{,", "[", "]", "[^", "a-z", "-", "&&", ".", "^", "$", r"\b", r"\B", r"\d", r"\W", r"\s", r"\pL", r"\PL", r"\Q", r"\E", r"\C", "(?s)", "(?m)", r"\x41", r"\101", "[:alpha:]", r"\n", " "]


@contextlib.contextmanager
def silence():
    """RE2 writes what it refuses to the standard error of the process."""
    kept, nothing = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nothing)


def expressions(onnxc, work, rng):
    """Regular expressions against RE2, which ONNX Runtime asks: those that it does not take are refused."""
    global count
    texts = ["", "a", "b", "c", "é", "É", "ab", "aB", "k", "K", "\u212a", "s", "S", "\u017f", "\n", "a\n", "a\nb", "a.b", "1", "٣", "α", "Σ", "ς", "ß", "ẞ", "\0", "\u0378", "\ue000", "\ud7ff", "\U0010ffff", "a b", "aa", "aaaaaa", "a{,2}", "a{x}", "[a]", "a]",
             "{", "}", "]", "#", "<", " ", "-", "_", "&", "\\\\", "\a\f\v", "Sx", "A", "Ab", "日本", "abc", "A1", "K9"] + list(words(rng, (30,), 4))
    x = np.array(texts, object)

    def of(patterns):
        nodes = [helper.make_node("RegexFullMatch", ["x"], [f"y{i}"], pattern=p) for i, p in enumerate(patterns)]
        outs = [helper.make_tensor_value_info(f"y{i}", T.BOOL, [len(texts)]) for i in range(len(patterns))]
        graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", T.STRING, [len(texts)])], outs)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)

    def runtime(patterns):
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        with silence():
            return onnxruntime.InferenceSession(of(patterns).SerializeToString(), options, providers=["CPUExecutionProvider"]).run(None, {"x": x})

    random_ones = ["".join(rng.choices(PARTS, k=rng.randint(1, 7))) for _ in range(400)]
    good, bad, want = [], [], []
    for p in dict.fromkeys(PATTERNS + NO_PATTERNS + random_ones):
        try:
            want.append(runtime([p])[0])
            good.append(p)
        except Exception:
            bad.append(p)
    report("patterns that RE2 takes", not set(bad) & set(PATTERNS), set(bad) & set(PATTERNS))
    report("patterns that RE2 refuses", not set(good) & set(NO_PATTERNS), set(good) & set(NO_PATTERNS))
    for p in bad:
        count += 1
        path = str(work / f"m{count}.onnx")
        onnx.save(of([p]), path)
        r = subprocess.run([onnxc, path, "--stop-after", "infer_shapes", "-o", os.devnull], capture_output=True, text=True)
        report(f"{p!r} is refused", r.returncode != 0 and "E0106" in r.stderr, r.stderr)
    for i in range(0, len(good), 50):
        got = ours(onnxc, work, of(good[i:i + 50]), {"x": x}, [x.shape] * len(good[i:i + 50]), "-O1")
        for p, g, w in zip(good[i:], got, want[i:]):
            report(f"pattern {p!r}", same(g, w), [t for t, a, b in zip(texts, g, w) if a != b])


def main():
    warnings.simplefilter("ignore")
    onnxc, work = sys.argv[1], pathlib.Path(sys.argv[2])
    rng = random.Random(int(sys.argv[3]) if len(sys.argv) > 3 else 1)
    work.mkdir(parents=True, exist_ok=True)
    string, number, truth = T.STRING, T.INT64, T.BOOL
    expressions(onnxc, work, rng)

    def run(op, feeds, outputs, runtime=False, domain="", **attributes):
        check(onnxc, work, f"{op} {attributes}", model(op, feeds, outputs, domain, **attributes), feeds, runtime)

    x, y = words(rng, (3, 4)), words(rng, (4,))
    nul = np.array([["a\0b", "", "\0"]], dtype=object)
    run("StringConcat", {"x": x, "y": y}, [(string, 2)])
    run("Identity", {"x": nul}, [(string, 2)])
    run("Equal", {"x": x, "y": x[:1].copy()}, [(truth, 2)])
    run("Gather", {"x": x, "i": np.array([[2, 0], [1, -1]])}, [(string, 3)])
    run("Transpose", {"x": x}, [(string, 2)], perm=[1, 0])
    run("Unique", {"x": words(rng, (60,), 2)}, [(string, 1), (number, 1), (number, 1), (number, 1)], True)
    run("Concat", {"x": x, "y": words(rng, (2, 4))}, [(string, 2)], axis=0)
    run("StringConcat", {"x": np.zeros((0, 3), object), "y": words(rng, (3,))}, [(string, 2)])
    for attributes in ({}, {"delimiter": ","}, {"delimiter": " "}, {"maxsplit": 1}, {"maxsplit": 0}, {"delimiter": "a", "maxsplit": 2}, {"delimiter": "ab"}, {"delimiter": "日"}):
        run("StringSplit", {"x": words(rng, (3, 5), 9)}, [(string, 3), (number, 2)], **attributes)
    for action, change in (("LOWER", str.lower), ("UPPER", str.upper), ("NONE", str)):
        z = words(rng, (200,))
        m = model("StringNormalizer", {"x": z}, [(string, 1)], case_change_action=action)
        report(f"case {action}", same(ours(onnxc, work, m, {"x": z}, [z.shape])[0], np.array([change(s) for s in z], dtype=object)))
    plain = np.array(["a", "A", "b", "", "Cat", "a b", "CAT"], dtype=object)
    for attributes in ({"stopwords": ["a"]}, {"stopwords": ["CAT", "b"], "case_change_action": "LOWER"}, {"stopwords": ["CAT", ""], "is_case_sensitive": 1, "case_change_action": "UPPER"},
                       {"stopwords": ["zz"], "case_change_action": "UPPER"}):
        run("StringNormalizer", {"x": plain}, [(string, 1)], True, locale="C", **{"case_change_action": "NONE", **attributes})
    for pattern in (r"[a-zA-Z.]+", r".*\d\s*", r"(?i).*straße|.*ß", r"[^\d]+é?", r"\p{Greek}+", r"a{1,2}b*?", r"(\W|^)[\w.\-]{0,25}@(\.com)(\W|$)", r"", r"a|ab|abb", r"(?s).*\b9?"):
        run("RegexFullMatch", {"x": words(rng, (80,), 4)}, [(truth, 1)], True, pattern=pattern)
    token = {"mark": 0, "pad_value": "#", "mincharnum": 1}
    for attributes in ({"separators": [" "]}, {"separators": [" +", "x", "b+"], "mark": 1}, {"tokenexp": "[a-zA-Z0-9_]+"}, {"tokenexp": r"\b\w\w+\b", "mark": 1}, {"tokenexp": "."},
                       {"separators": [""], "mark": 1}, {"tokenexp": "[a-zé]+", "mincharnum": 3}, {"separators": [r"\s+", r"[,.]"], "mincharnum": 2}, {"tokenexp": "a|ab|aba"},
                       {"tokenexp": "a*"}, {"tokenexp": r"^\w"}, {"separators": ["é", "日"]}, {"tokenexp": r"\p{L}+"}, {"tokenexp": r"\w+$"}):
        run("Tokenizer", {"x": words(rng, (3, 4), 9)}, [(string, 3)], True, "com.microsoft", **{**token, **attributes})
    pool = ["a", "ab", "é", "", "a", "ab", "ab", "a", "1", "1", "a", "ab", "a", "ab", "ab", "ab"]
    for mode in ("TF", "IDF", "TFIDF"):
        for least, most, skips in ((1, 1, 0), (1, 2, 2), (2, 2, 5), (1, 3, 1), (2, 3, 0)):
            attributes = dict(mode=mode, min_gram_length=least, max_gram_length=most, max_skip_count=skips, ngram_counts=[0, 4, 10], ngram_indexes=[3, 1, 0, 2, 6, 5, 4, 8, 7])
            if mode != "TF":
                attributes["weights"] = [float(v) for v in range(1, 10)]
            z = np.array([rng.choices(["a", "ab", "é", "", "1", "q"], k=9) for _ in range(3)], dtype=object)
            run("TfIdfVectorizer", {"x": z}, [(T.FLOAT, 2)], True, pool_strings=pool, **attributes)
            ints = np.array(rng.choices(range(5), k=9), np.int64)
            run("TfIdfVectorizer", {"x": ints}, [(T.FLOAT, 1)], True, pool_int64s=[0, 1, 3, 4, 0, 1, 1, 0, 2, 2, 0, 1, 0, 1, 1, 1], **attributes)
    labels = np.array(["a", "b", "é", "", "q"], dtype=object)
    for attributes, out in (({"keys_strings": ["a", "é"], "values_int64s": [5, 7]}, number), ({"keys_strings": ["a", ""], "values_strings": ["x", "日"]}, string), ({"keys_strings": ["b"], "values_floats": [0.5]}, T.FLOAT)):
        run("LabelEncoder", {"x": labels}, [(out, 1)], True, "ai.onnx.ml", **attributes)
    run("LabelEncoder", {"x": np.array([1, 2, 3])}, [(string, 1)], True, "ai.onnx.ml", keys_int64s=[1, 3], values_strings=["eins", "drei"])
    run("OneHotEncoder", {"x": labels}, [(T.FLOAT, 2)], True, "ai.onnx.ml", cats_strings=["é", "a"])
    x = np.array([[-1.0, 0.5], [2.0, 0.25], [0.1, 3.0]], np.float32)
    outputs = [(string, 1), (T.FLOAT, 2)]
    run("LinearClassifier", {"x": x}, outputs, True, "ai.onnx.ml", coefficients=[1.0, -2.0, 0.5, 0.1, -0.3, 1.0], intercepts=[0.0, 1.0, 0.25], classlabels_strings=["a", "é", ""], post_transform="SOFTMAX")
    run("LinearClassifier", {"x": x}, outputs, True, "ai.onnx.ml", coefficients=[1.0, -2.0, -1.0, 2.0], intercepts=[0.1, -0.1], classlabels_strings=["no", "yes"])
    run("TreeEnsembleClassifier", {"x": x}, outputs, True, "ai.onnx.ml", classlabels_strings=["one", "zwei", "три"], nodes_treeids=[0] * 5, nodes_nodeids=[0, 1, 2, 3, 4],
        nodes_featureids=[0, 0, 1, 0, 0], nodes_values=[0.5, 0.0, 1.0, 0.0, 0.0], nodes_modes=["BRANCH_LEQ", "LEAF", "BRANCH_LEQ", "LEAF", "LEAF"], nodes_truenodeids=[2, 0, 3, 0, 0],
        nodes_falsenodeids=[1, 0, 4, 0, 0], class_treeids=[0] * 3, class_nodeids=[1, 3, 4], class_ids=[0, 1, 2], class_weights=[1.0, 1.0, 1.0])
    run("SVMClassifier", {"x": x}, outputs, True, "ai.onnx.ml", classlabels_strings=["ja", "nein", "?"], kernel_type="LINEAR", kernel_params=[1.0, 0.0, 3.0],
        coefficients=[1.0, -0.5, 0.25, -1.0, 0.5, 0.75], support_vectors=[0.1, 0.2, 1.0, -1.0, 2.0, 0.5], vectors_per_class=[1, 1, 1], rho=[0.1, -0.2, 0.3])
    run("CategoryMapper", {"x": labels}, [(number, 1)], True, "ai.onnx.ml", cats_strings=["é", "a"], cats_int64s=[4, 9])
    run("CategoryMapper", {"x": np.array([9, 4, 1])}, [(string, 1)], True, "ai.onnx.ml", cats_strings=["é", "a"], cats_int64s=[4, 9])
    def negative(elements):
        elements[1].len = -1

    for options, change, status in ((("--heap", "64"), None, "buffer too small"), (("--heap", "0"), None, "buffer too small"), ((), negative, "bad value")):
        try:
            long = np.array(["x" * 40, "y" * 40], dtype=object)
            ours(onnxc, work, model("StringConcat", {"x": long, "y": long}, [(string, 1)]), {"x": long, "y": long}, [(2,)], *options, change=change)
            report(f"status with {options}", False)
        except RuntimeError as e:
            report(f"status with {options}", status in str(e), str(e))
    numbers(onnxc, work, rng)
    print(f"{count} models, {failures} faults")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
