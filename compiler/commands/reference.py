"""Every tensor of a model, computed by ONNX Runtime or by the reference implementation of the onnx package.

    python3 reference.py onnxruntime|onnx MODEL FOLDER INPUTS.npz OUTPUTS.npz

`onnxc verify --per-node` runs it. MODEL has every tensor as an output; external data are in FOLDER. Exit code 3: a package is
missing, and stdout says which.
"""
import sys
import zipfile

kind, path, folder, inputs, outputs = sys.argv[1:]
try:
    import numpy as np

    if kind == "onnxruntime":
        import onnxruntime
    else:
        import onnx
        import onnx.external_data_helper
        import onnx.reference
except ImportError as e:
    print(e.name or e)
    sys.exit(3)

given = dict(np.load(inputs))


def feed(name):
    """An input: an array, or the items of a sequence, which are name.0, name.1, ..."""
    if name in given:
        return given[name]
    items = []
    while f"{name}.{len(items)}" in given:
        items.append(given[f"{name}.{len(items)}"])
    return items


if kind == "onnxruntime":
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", folder)
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    # numpy has no arrays of the types that are left out.
    plain = [o.name for o in session.get_outputs() if o.type.startswith("tensor(") and not any(t in o.type for t in ("bfloat16", "float8", "int4", "int2", "float4"))]
    values = session.run(plain, {i.name: feed(i.name) for i in session.get_inputs()})
else:
    model = onnx.load(path, load_external_data=False)
    onnx.external_data_helper.load_external_data_for_model(model, folder)
    evaluator = onnx.reference.ReferenceEvaluator(model)
    plain = evaluator.output_names
    values = evaluator.run(None, {name: feed(name) for name in evaluator.input_names})

with zipfile.ZipFile(outputs, "w") as z:
    for name, value in zip(plain, values):
        if not isinstance(value, (np.ndarray, np.generic)):
            continue
        value = np.asarray(value, order="C")
        if value.dtype.kind in "OT":
            value = value.astype("U")
        if value.dtype.kind not in "biufcU":
            continue
        with z.open(name + ".npy", "w", force_zip64=True) as f:
            np.lib.format.write_array(f, value, allow_pickle=False)
