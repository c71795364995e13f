"""Recipes of sequences, optionals, maps and text, and of what takes a body or names: most are programs of several nodes."""
import struct
import zlib

import numpy as np
from onnx import helper
from recipe import Const, case, code, program, type_of

R = {}
OLD = {"bool", "complex128", "complex64", "double", "float", "float16", "int16", "int32", "int64", "int8", "string", "uint16", "uint32", "uint64", "uint8"}


def element(c):
    """The type of the elements: that which is swept, or the usual one."""
    return c[c.swept] if c.swept in "TVSO" else next((c[v] for v in "TVSO" if v in c.binding), "float")


def position(c, v):
    return Const(np.array(v)) if v >= 0 else np.array(v)


def sequence_at(c):
    t, i = element(c), c.binding.get("I", "int64")
    two = ("SequenceConstruct", "x0 x1", "s", {})
    return [program([two, ("SequenceAt", "s x2", "y0", {})], c.x(2, 3), c.x(2, 3), position(c, p), in_types=[t, t, i], types=[t], want=lambda a, b, p: [[a, b][int(p)]]) for p in (0, 1, -2)]


def sequence_construct(c):
    t = element(c)
    nodes = [("SequenceConstruct", "x0 x1 x0", "y0", {}), ("SequenceLength", "y0", "y1", {}), ("ConcatFromSequence", "y0", "y2", {"axis": 0})]
    return [program(nodes, c.x(2, 3), c.x(1, 3), in_types=[t, t], types=[f"seq(tensor({t}))", "int64", t], want=lambda a, b: [[a, b, a], np.array(3), np.concatenate([a, b, a])])]


def sequence_empty(c):
    t = element(c)
    nodes = [("SequenceEmpty", "", "e", {"dtype": code(t)}), ("SequenceLength", "e", "y0", {}), ("SequenceInsert", "e x0", "y1", {})]
    out = [program(nodes, c.x(2, 3), in_types=[t], types=["int64", f"seq(tensor({t}))"], want=lambda a: [np.array(0), [a]])]
    return out + ([program([("SequenceEmpty", "", "e", {}), *nodes[1:]], c.x(2, 3), in_types=[t], types=["int64", f"seq(tensor({t}))"], want=lambda a: [np.array(0), [a]])] if t == "float" else [])


def sequence_erase(c):
    t, i = element(c), c.binding["I"]
    three = ("SequenceConstruct", "x0 x1 x0", "s", {})
    types = [f"seq(tensor({t}))"]

    def without(a, b, p=-1):
        rest = [a, b, a]
        del rest[int(p)]
        return [rest]
    return [program([three, ("SequenceErase", "s", "y0", {})], c.x(2, 3), c.x(1, 3), in_types=[t, t], types=types, want=without)] \
        + [program([three, ("SequenceErase", "s x2", "y0", {})], c.x(2, 3), c.x(1, 3), position(c, p), in_types=[t, t, i], types=types, want=without) for p in (0, 1, -3)]


def sequence_insert(c):
    t, i = element(c), c.binding["I"]
    two = ("SequenceConstruct", "x0 x0", "s", {})
    types = [f"seq(tensor({t}))"]

    def inserted(a, b, p=2):
        rest = [a, a]
        rest.insert(int(p), b)
        return [rest]
    return [program([two, ("SequenceInsert", "s x1", "y0", {})], c.x(2, 3), c.x(1, 3), in_types=[t, t], types=types, want=inserted)] \
        + [program([two, ("SequenceInsert", "s x1 x2", "y0", {})], c.x(2, 3), c.x(1, 3), position(c, p), in_types=[t, t, i], types=types, want=inserted) for p in (0, 2, -1)]


def sequence_length(c):
    t = element(c)
    return [program([("SequenceConstruct", "x0 x0", "s", {}), ("SequenceLength", "s", "y0", {})], c.x(2, 3), in_types=[t], types=["int64"], want=lambda a: [np.array(2)])]


def sequence_map(c):
    t = element(c)
    info = lambda n: helper.make_tensor_value_info(n, code(t), [None, None])
    join = helper.make_graph([helper.make_node("Concat", ["a", "b"], ["r"], axis=0)], "join", [info("a"), info("b")], [info("r")])
    one = helper.make_graph([helper.make_node("Transpose", ["a"], ["r"], perm=[1, 0])], "one", [info("a")], [info("r")])
    two, types = ("SequenceConstruct", "x0 x1", "s", {}), [f"seq(tensor({t}))"]
    run = lambda inputs, body, want: program([two, ("SequenceMap", inputs, "y0", {"body": body})], c.x(2, 3), c.x(1, 3), in_types=[t, t], types=types, want=want)
    return [run("s", one, lambda a, b: [[a.T, b.T]]), run("s x1", join, lambda a, b: [[np.concatenate([a, b]), np.concatenate([b, b])]]), run("s s", join, lambda a, b: [[np.concatenate([a, a]), np.concatenate([b, b])]])]


def split_to_sequence(c):
    t, i = element(c), c.binding["I"]
    types, split = [f"seq(tensor({t}))"], [("SplitToSequence", "x0 x1", "y0", {"axis": 1})]
    whole = lambda **a: program([("SplitToSequence", "x0", "y0", a)], c.x(3, 4), in_types=[t], types=types, want=lambda x: [[np.take(x, [k] if a.get("keepdims", 1) else k, a.get("axis", 0)) for k in range(x.shape[a.get("axis", 0)])]])
    return [whole(), whole(axis=-1, keepdims=0), program(split, c.x(3, 5), Const(np.array(2)), in_types=[t, i], types=types, want=lambda x, n: [[x[:, :2], x[:, 2:4], x[:, 4:]]]),
            program(split, c.x(3, 5), Const(np.array([1, 4])), in_types=[t, i], types=types, want=lambda x, n: [[x[:, :1], x[:, 1:]]])]


def concat_from_sequence(c):
    t = element(c)
    run = lambda want, **a: program([("SequenceConstruct", "x0 x1", "s", {}), ("ConcatFromSequence", "s", "y0", a)], c.x(2, 3), c.x(2, 3), in_types=[t, t], types=[t], want=want)
    return [run(lambda a, b: [np.concatenate([a, b], 1)], axis=1), run(lambda a, b: [np.stack([a, b], -1)], axis=-1, new_axis=1)]


def optional(c):
    """All three operators together."""
    t = element(c)
    nodes = [("Optional", "x0", "o", {}), ("OptionalGetElement", "o", "y0", {}), ("OptionalHasElement", "o", "y1", {})]
    out = [program(nodes, c.x(2, 3), in_types=[t], types=[t, "bool"], want=lambda a: [a, np.array(True)])]
    out += [program([("Optional", "", "o", {"type": type_of(t, [2])}), ("OptionalHasElement", "o", "y0", {})], in_types=[], types=["bool"], want=lambda: [np.array(False)])]
    if t in OLD:
        nodes = [("SequenceConstruct", "x0 x0", "s", {}), ("Optional", "s", "o", {}), ("OptionalGetElement", "o", "y0", {}), ("OptionalHasElement", "o", "y1", {})]
        out += [program(nodes, c.x(2, 3), in_types=[t], types=[f"seq(tensor({t}))", "bool"], want=lambda a: [[a, a], np.array(True)])]
    if c.v >= 18:
        out += [program([("OptionalGetElement", "x0", "y0", {}), ("OptionalHasElement", "x0", "y1", {})], c.x(2, 3), in_types=[t], types=[t, "bool"], want=lambda a: [a, np.array(True)]),
                program([("OptionalHasElement", "", "y0", {})], in_types=[], types=["bool"], want=lambda: [np.array(False)])]
    return out


R |= {"SequenceAt": sequence_at, "SequenceConstruct": sequence_construct, "SequenceEmpty": sequence_empty, "SequenceErase": sequence_erase, "SequenceInsert": sequence_insert, "SequenceLength": sequence_length,
      "SequenceMap": sequence_map, "SplitToSequence": split_to_sequence, "ConcatFromSequence": concat_from_sequence, "Optional": optional, "OptionalGetElement": optional, "OptionalHasElement": optional}


# --- Maps. ---

ML = {"domain": "ai.onnx.ml"}


def zip_map(c):
    out = []
    for key, labels in (("int64", [7, 0, 3]), ("string", ["a", "c", "b"])):
        rows = lambda x, labels=labels: [[dict(zip(labels, np.float32(r).tolist())) for r in np.atleast_2d(x)]]
        out += [program([("ZipMap", "x0", "y0", {f"classlabels_{key}s": labels, **ML})], x, in_types=["float"], types=[f"seq(map({key},float))"], want=rows) for x in (c.x(4, 3), c.x(3))]
    return out


def cast_map(c):
    """Values in the order of their keys, or at the place that the key says; strings as ONNX Runtime makes them."""
    t, numbers, words = c["T2"], {1: 2.5, 4: -3.0, 0: 7.0, 7: 1e20, 2: 2.5e-6, 3: -0.0, 8: float("nan"), 9: float("-inf"), 5: 3.4e38}, {4: "1.5", 1: "-2", 0: "7"}
    if t == "int64":
        numbers = {1: 2.5, 4: -3.0, 0: 7.0}
    text = lambda v: v if isinstance(v, str) else "%f" % np.float32(v)
    cast = {"float": float, "int64": lambda v: int(float(v)), "string": text}[t]
    zero = cast(0) if t != "string" else "0.f"
    to = {"cast_to": "TO_" + t.upper(), **ML}
    out = []
    for kind, m in (("float", numbers), ("string", {**words, 4: "1"} if t == "int64" else words)):
        dense = lambda m: [np.array([[cast(m[k]) for k in sorted(m)]], object if t == "string" else None)]
        sparse = lambda m: [np.array([[cast(m[k]) if k in m else zero for k in range(6)]], object if t == "string" else None)]
        out += [program([("CastMap", "x0", "y0", to)], m, in_types=[f"map(int64,{kind})"], types=[t], want=dense), program([("CastMap", "x0", "y0", {**to, "map_form": "SPARSE", "max_map": 6})], m, in_types=[f"map(int64,{kind})"], types=[t], want=sparse)]
    return out


def dict_vectorizer(c):
    t, out = c["T2"], []
    values = {"float": [0.5, 2.5], "double": [0.5, 2.5], "int64": [5, 7], "string": ["x", "yz"]}[t]
    for key, words, have in (("int64", [3, 1, 7], [7, 3]), ("string", ["c", "a", "b"], ["b", "c"])):
        if (key, t) == ("int64", "int64"):
            continue
        m = dict(zip(have, values))
        row = lambda m, words=words: [np.array([[m.get(w, "" if t == "string" else 0) for w in words]], object if t == "string" else None)]
        out.append(program([("DictVectorizer", "x0", "y0", {f"{key}_vocabulary": words, **ML})], m, in_types=[f"map({key},{t})"], types=[t], want=row))
    return out


def category_mapper(c):
    """Each type goes to the other one."""
    words = c["T1"] == "string" if c.swept == "T1" else c["T2"] == "int64"
    tables = {"cats_int64s": [5, 7, 9], "cats_strings": ["a", "b", "c"], **ML}
    run = lambda x, y, **a: program([("CategoryMapper", "x0", "y0", {**tables, **a})], x, in_types=["string" if words else "int64"], types=["int64" if words else "string"], want=lambda _: [y])
    if words:
        return [run(np.array([["b", "z", "c"]], object), np.array([[7, d, 9]]), **a) for d, a in ((-1, {}), (42, {"default_int64": 42}))]
    return [run(np.array([[7, 1, 9]]), np.array([["b", d, "c"]], object), **a) for d, a in (("_Unused", {}), ("zz", {"default_string": "zz"}))]


R |= {"ZipMap": zip_map, "CastMap": cast_map, "DictVectorizer": dict_vectorizer, "CategoryMapper": category_mapper}


# --- Text. ---

def words(*values):
    return np.array(values, object)


R["RegexFullMatch"] = lambda c: [case(words("www.google.com", "ab", "", "a.com"), pattern=p) for p in (r"[a-z.]+\.com", "a?b?", "(www|a)[.].*")]
R["StringConcat"] = lambda c: [case(words("a", "", "日本"), words("x", "yz", "é")), case(words(["a"], ["b"]), words("x", "yz"))]
R["StringSplit"] = lambda c: [case(words("a b  c", " d", ""), out=2), case(words("a,b,,c", "d", ""), delimiter=",", out=2), case(words("a b c d", "e f"), maxsplit=1, out=2)]
TEXT = words("Monday", "tuesday", "MONDAY", "Sunday")
R["StringNormalizer"] = lambda c: [case(TEXT), case(TEXT, stopwords=["Monday"], is_case_sensitive=1, case_change_action="LOWER"), case(TEXT, stopwords=["monday"], case_change_action="UPPER"), case(TEXT, case_change_action="UPPER", locale="en_US")]


def tfidf(c):
    t = c["T"]
    pool, x = [2, 3, 5, 4, 5, 6, 7, 8, 6, 7], np.array([[1, 1, 3, 3, 3, 7], [8, 6, 7, 5, 6, 8]])
    as_text = lambda a: np.array([f"w{v}" for v in a.reshape(-1)], object).reshape(a.shape)
    pools = {"pool_strings": [f"w{v}" for v in pool]} if t == "string" else {"pool_int64s": pool}
    x = as_text(x) if t == "string" else x
    at = {"ngram_counts": [0, 4], "ngram_indexes": [0, 1, 2, 3, 4, 5, 6], "min_gram_length": 1, "max_gram_length": 2, **pools}
    weights = {"weights": [0.5, 1.0, 2.0, 1.5, 3.0, 2.5, 0.25]}
    return [case(x, mode="TF", max_skip_count=0, **at), case(x[0], mode="TF", max_skip_count=5, **{**at, "min_gram_length": 2})] + [case(x, mode=m, max_skip_count=1, **at, **weights) for m in ("IDF", "TFIDF")]


R["TfIdfVectorizer"] = tfidf


# --- Encoded images: formats that keep every pixel, so that the image itself is the reference. ---

def encoded(image, form):
    """An image of red, green and blue bytes as a file of a format."""
    height, width, _ = image.shape
    if form == "pnm":
        return b"P6\n%d %d\n255\n" % (width, height) + image.tobytes()
    if form == "bmp":
        # From the lowest row on, blue first, rows of whole words.
        rows = b"".join(r.tobytes().ljust(-(-3 * width // 4) * 4, b"\0") for r in image[::-1, :, ::-1])
        return struct.pack("<2sIHHI", b"BM", 54 + len(rows), 0, 0, 54) + struct.pack("<IiiHHIIiiII", 40, width, height, 1, 24, 0, len(rows), 0, 0, 0, 0) + rows
    chunk = lambda name, data: struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
    rows = b"".join(b"\0" + r.tobytes() for r in image)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def image_decoder(c):
    out = []
    for k, (form, pixel_format) in enumerate([("pnm", None), ("bmp", "RGB"), ("png", "BGR"), ("png", "Grayscale"), ("pnm", "Grayscale"), ("bmp", "BGR")]):
        image = c.i(0, 256, 3 + k, 7 - k, 3).astype(np.uint8)
        # Grey as ITU-R 601 has it.
        grey = lambda image=image: ((image.astype(np.int64) @ [19595, 38470, 7471] + 0x8000) >> 16)[..., None]
        want = {"BGR": image[..., ::-1], "Grayscale": grey()}.get(pixel_format, image).astype(np.uint8)
        out.append(case(np.frombuffer(encoded(image, form), np.uint8), pixel_format=pixel_format, want=lambda _, want=want: [want]))
    return out


R["ImageDecoder"] = image_decoder


# --- Bodies and names. ---

def flex_attention(c):
    t = c["T1"]
    info = lambda n: helper.make_tensor_value_info(n, code(t), [None] * 4)
    body = helper.make_graph([helper.make_node("Neg", ["s"], ["r"])], "negative", [info("s")], [info("r")])

    def want(score=1, prob=1, scale=None):
        def of(q, k, v):
            k, v = (np.repeat(z, q.shape[1] // z.shape[1], 1) for z in (k, v))
            s = score * (q @ k.swapaxes(2, 3)) * (q.shape[3] ** -0.5 if scale is None else scale)
            e = np.exp(s - s.max(-1, keepdims=True))
            return [prob * e / e.sum(-1, keepdims=True) @ v]
        return of
    q, k, v = c.x(2, 4, 5, 8), c.x(2, 2, 6, 8), c.x(2, 2, 6, 3)
    k4, v4 = c.x(2, 4, 6, 8), c.x(2, 4, 6, 3)
    rtol = {"float16": 2 ** -6, "bfloat16": 2 ** -4}.get(t, 0.0)
    return [case(q, k4, v4, want=want(), rtol=rtol), case(q, k, v, scale=0.25, want=want(scale=0.25), rtol=rtol), case(q, k, v, score_mod=body, want=want(score=-1), rtol=rtol), case(q, k, v, prob_mod=body, want=want(prob=-1), rtol=rtol),
            case(q, k, v, softmax_precision=code("double" if t == "double" else "float"), want=want(), rtol=rtol)]


def gradient(c):
    """Of x * x + x * w by one of them and by both; what stands still is of any type."""
    t, still = c["T2"], c["T1"]
    nodes = [("Mul", "x0 x0", "a", {}), ("Mul", "x0 x1", "b", {}), ("Add", "a b", "y", {})]
    node = lambda inputs, outs, **a: ("Gradient", inputs, outs, {"y": "y", "domain": "ai.onnx.preview.training", **a})
    both = program([*nodes, node("x0 x1", "y0 y1", xs=["x0", "x1"])], c.i(-4, 5, 3, 2), c.i(-4, 5, 3, 2), in_types=[t, t], types=[t, t], want=lambda x, w: [2 * x + w, x])
    one = program([*nodes, node("x0 x2", "y0", xs=["x0"], zs=["x2"])], c.i(-4, 5, 3, 2), c.i(-4, 5, 3, 2), c.x(2, 2), in_types=[t, t, still], types=[t], want=lambda x, w, z: [2 * x + w])
    return [one, both] if c.swept == "T2" else [one]


R |= {"FlexAttention": flex_attention, "Gradient": gradient}
