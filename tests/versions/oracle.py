"""What a case must give: ONNX Runtime and onnx.reference, and which of them is believed where they differ."""
import dataclasses

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from recipe import Const, FLOATS, convert, dtype, wide

# Operators whose results come from onnx.reference although ONNX Runtime has some: (version, binding, case) -> bool.
REFERENCE_IS_RIGHT = {
    # Cubic interpolation: ONNX Runtime does not move the coordinate itself onto the border.
    "GridSample": lambda version, binding, case: case.attributes.get("padding_mode") == "border" and "cubic" in case.attributes.get("mode", ""),
    # Exponentials of integers: ONNX Runtime sums what is left of each before the point.
    "ReduceLogSumExp": lambda version, binding, case: "int" in binding["T"],
    # An empty string between delimiters is one part: ONNX Runtime finds none where nothing else is in the text.
    "StringSplit": lambda version, binding, case: "delimiter" in case.attributes,
}
# Operators for which onnx.reference is not asked, with the reason. What ONNX Runtime does not take in a type, it computes
# in float.
RUNTIME_IS_RIGHT = {
    "ConvTranspose": "groups and output_shape fail",
    "GridSample": "integers are rounded along each axis",
    "Hardmax": "several ones a row",
    "LinearClassifier": "labels of integer inputs",
    "LinearRegressor": "NaN for doubles",
    "MaxPool": "SAME_LOWER gives one size less",
    "SVMClassifier": "integer inputs make integer scores",
    "SVMRegressor": "integer inputs make integer scores",
    "TreeEnsembleClassifier": "integer inputs make integer scores",
    "TreeEnsembleRegressor": "integer inputs make integer scores",
    "Upsample": "fails",
}
# Small floats take part in conversions as they are; elsewhere they are numbers that are computed in float and rounded.
EXACT = {"Cast", "CastLike", "BitCast", "QuantizeLinear", "DequantizeLinear", "QLinearMatMul", "Constant", "ConstantOfShape", "Range"}
# Operators that only move elements: where nobody takes strings, numbers in their place say where each of them comes from. 0 is
# an element that comes from nowhere.
MOVES = {"CenterCropPad", "Gather", "GridSample", "Pad", "Resize", "Trilu", "Upsample"}
# Moves, and sums with real factors, that references do not know of complex numbers, or drop their imaginary parts of: both
# parts by themselves.
BY_PARTS = {"Col2Im", "GridSample", "OneHot", "Resize", "Scatter", "Upsample"}
PARTS = {"complex64": "float", "complex128": "double"}
# Versions that nobody implements, where a later or earlier one means the same for every case.
SAME = {("Scatter", 11): 9, ("OneHot", 28): 11, ("MaxRoiPool", 22): 1, ("Upsample", 10): 9, ("TreeEnsembleClassifier", 5): 3, ("TreeEnsembleRegressor", 5): 3}


def node_of(case, schema, version=None):
    """The node; left out operands and outputs have empty names."""
    names = ["" if o is None else f"x{k}" for k, o in enumerate(case.operands)]
    outputs = [f"y{k}" if wanted else "" for k, wanted in enumerate(case.out)]
    return helper.make_node(schema.name, names, outputs, domain=schema.domain, **case.attributes)


def imports(schema, version):
    main = {"": version}.get(schema.domain, 21 if schema.domain != "ai.onnx.preview" else 26)
    out = [helper.make_opsetid("", main)]
    return out if schema.domain == "" else out + [helper.make_opsetid(schema.domain, version)]


def ir_version(version):
    return 8 if version < 20 else 10 if version < 23 else 11 if version < 25 else 13 if version < 28 else 14


def model_of(node, schema, version, operands, types, outputs=()):
    """`operands` are converted arrays or Const of one, or None."""
    inputs, inits, feeds = [], [], {}
    for name, o, t in zip(node.input, operands, types):
        if o is None:
            continue
        a = o.value if isinstance(o, Const) else o
        if isinstance(o, Const):
            inits.append(numpy_helper.from_array(a, name))
        else:
            feeds[name] = a
            inputs.append(helper.make_tensor_value_info(name, TensorProto.DataType.Value(t.upper()), a.shape))
    graph = helper.make_graph([node], "g", inputs, list(outputs) or [onnx.ValueInfoProto(name=n) for n in node.output if n], inits)
    return helper.make_model(graph, opset_imports=imports(schema, version), ir_version=ir_version(version)), feeds


def first_line(e):
    return f"{type(e).__name__}: {(str(e).splitlines() or [''])[0][:160]}"


def runtime(model, feeds):
    """Results of ONNX Runtime, or why not."""
    import onnxruntime as ort
    for f in feeds.values():
        if np.asarray(f).dtype.name not in ("float32", "float64", "float16", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "bool", "object", "str"):
            return None, "type"
    try:
        o = ort.SessionOptions()
        o.log_severity_level = 4
        o.intra_op_num_threads = 1
        o.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        s = ort.InferenceSession(model.SerializeToString(), o, providers=["CPUExecutionProvider"])
        # Types that numpy does not have come back as bytes.
        odd = [x.type for x in s.get_outputs() if "float8" in x.type or "int4" in x.type or "int2" in x.type or "float4" in x.type or "bfloat16" in x.type]
        return (None, f"results of {odd[0]}") if odd else (s.run(None, feeds), None)
    except Exception as e:  # It says in many ways that it does not know a version or a type.
        return None, first_line(e)


def reference(model, feeds):
    from onnx.reference import ReferenceEvaluator
    try:
        return ReferenceEvaluator(model).run(None, feeds), None
    except Exception as e:
        return None, first_line(e)


def formal_types(schema, binding, formals, n):
    out = []
    for k in range(n):
        f = formals[min(k, len(formals) - 1)]
        t = binding.get(f.type_str, f.type_str)
        out.append(t[7:-1] if t.startswith("tensor(") else t)
    return out


def converted(operands, types):
    return [None if o is None else Const(convert(o.value, t)) if isinstance(o, Const) else convert(o, t) for o, t in zip(operands, types)]


def native(schema, binding):
    """Bindings in which others may compute the same: small floats as float, then every number as one of few types."""
    allowed = {v.type_param_str: [t[7:-1] for t in v.allowed_type_strs] for v in schema.type_constraints}

    def first(v, t, *to):
        return next((n for n in to if n in allowed.get(v, ())), t)
    small = {v: first(v, t, "float") if t in ("float16", "bfloat16") else t for v, t in binding.items()}
    plain = {v: t if t in ("bool", "string") else first(v, t, "int64", "int32", "float") if "int" in t else first(v, t, "float") for v, t in binding.items()}
    floats = {v: t if t == "string" else first(v, t, "float", "int64") for v, t in binding.items()}
    return (small, plain, floats)


def expected(case, schema, binding, both=False):
    """(results or None, who computed them, what the other one says or None, least relative tolerance)."""
    types = case.in_types or formal_types(schema, binding, schema.inputs, len(case.operands))
    operands = converted(case.operands, types)
    if case.want:
        values = [wide(o.value if isinstance(o, Const) else o) if o is not None else None for o in operands]
        if not case.attributes.get("hidden_size"):
            values = [v for v in values if v is not None]
        return case.want(*values), "numpy", None, 0
    if schema.name in MOVES and types[0] == "string":
        return moved(case, schema, binding, operands)
    if schema.name in BY_PARTS and set(types) & set(PARTS):
        return by_parts(case, schema, {v: PARTS.get(t, t) for v, t in binding.items()}, types, operands)
    small, plain, floats = (binding,) * 3 if schema.name in EXACT else native(schema, binding)
    reasons = []
    for k, b in enumerate((small, plain, floats)):
        if k and b in (small, plain)[:k]:
            continue
        want, by, other, reason = attempt(case, schema, binding, b, operands, types, both)
        if want is not None:
            return want, by, other, 0 if k == 0 else 1e-4
        reasons.append(reason)
    return None, reasons[0], None, 0


def moved(case, schema, binding, operands):
    """What an operator that moves elements makes of strings, by numbers of them."""
    texts, numbers = [""], []
    for o in operands:
        a = o.value if isinstance(o, Const) else o
        if a is None or a.dtype.kind != "O":
            numbers.append(o)
            continue
        n = np.arange(len(texts), len(texts) + a.size, dtype=np.float32).reshape(a.shape)
        texts += list(a.reshape(-1))
        numbers.append(Const(n) if isinstance(o, Const) else n)
    variable = schema.inputs[0].type_str
    results, *rest = expected(dataclasses.replace(case, operands=numbers), schema, {**binding, variable: "float"})
    return (None if results is None else [np.array(texts, object)[np.asarray(r).astype(np.int64)] for r in results], *rest)


def by_parts(case, schema, binding, types, operands):
    """Results for complex operands from those for their parts. What an attribute puts outside is real."""
    out = []
    for name in ("real", "imag"):
        part = lambda o: Const(getattr(o.value, name)) if isinstance(o, Const) else getattr(o, name)
        put = [part(o) if t in PARTS else given for o, t, given in zip(operands, types, case.operands)]
        other = lambda o: next((p for p, given in zip(put, case.operands) if given is o), o)
        attributes = {k: 0.0 if k == "extrapolation_value" and name == "imag" else v for k, v in case.attributes.items()}
        same = (case.same[0], case.same[1] and [other(o) for o in case.same[1]], case.same[2]) if isinstance(case.same, tuple) else case.same
        out.append(expected(type(case)(put, attributes, case.out, same), schema, binding))
    (re, by, _, rtol), (im, *_) = out
    return (None if re is None or im is None else [a + 1j * b for a, b in zip(re, im)]), by, None, rtol


def attempt(case, schema, binding, other, operands, types, both):
    """The result with the types of the binding `other`; the operands keep the values that they have in `types`."""
    version = schema.since_version
    if other != binding:
        target = formal_types(schema, other, schema.inputs, len(case.operands))
        to = lambda a, s, t: a if s == t else wide(a).astype(dtype(t))
        operands = [o if o is None else Const(to(o.value, s, t)) if isinstance(o, Const) else to(o, s, t) for o, s, t in zip(operands, types, target)]
        types = target
    later = case.same or SAME.get((schema.name, version))
    attributes = case.attributes
    if later:
        if isinstance(later, tuple):
            version, others, attributes = later
            if others is not None:
                newer = onnx.defs.get_schema(schema.name, version, schema.domain)
                usual = {c.type_param_str: c.allowed_type_strs[0] for c in newer.type_constraints}
                usual[newer.inputs[0].type_str] = f"tensor({types[0]})"
                types = formal_types(newer, usual, newer.inputs, len(others))
                # They have the rounded values that the operands of the case have.
                first = newer.inputs[0].type_str
                exact = formal_types(newer, {**usual, first: f"tensor({binding.get(first, types[0])})"}, newer.inputs, len(others))
                rounded = lambda o, t: Const(wide(convert(o.value, t))) if isinstance(o, Const) else wide(convert(o, t))
                operands = converted([None if o is None else rounded(o, t) for o, t in zip(others, exact)], types)
        else:
            version = later
        schema = onnx.defs.get_schema(schema.name, version, schema.domain)
        attributes = {k: v for k, v in attributes.items() if k in schema.attributes}
    else:
        attributes = {k: v for k, v in attributes.items() if k != "consumed_inputs"}
    node = node_of(type(case)(operands, attributes, case.out), schema)
    model, feeds = model_of(node, schema, version, operands, types)
    ours, why = runtime(model, feeds)
    if ours is not None and schema.name in REFERENCE_IS_RIGHT and REFERENCE_IS_RIGHT[schema.name](version, other, case):
        ours, why = None, "not believed"
    if ours is not None and not both:
        return ours, "onnxruntime", None, None
    theirs, why_not = (None, "not believed") if schema.name in RUNTIME_IS_RIGHT and (schema.name != "GridSample" or "int" in binding["T1"] or binding["T1"] == "bool") else reference(model, feeds)
    if ours is not None:
        return ours, "onnxruntime", theirs, None
    if theirs is not None:
        return [np.asarray(t) for t in theirs], "onnx.reference", None, None
    return None, None, None, f"onnxruntime: {why}; onnx.reference: {why_not}"
