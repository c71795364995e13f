"""Single operators at sizes that models have: what is slow alone is slow wherever it stands."""
import os

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

F, D, H, I64, I32, I8, U8, B = TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.INT64, TensorProto.INT32, TensorProto.INT8, TensorProto.UINT8, TensorProto.BOOL


def ints(*v):
    return np.array(v, np.int64)


def rows(*, n, below, seed=0):
    """Indices."""
    return np.random.default_rng(seed).integers(0, below, n)


def weights(*shape, scale=1.0):
    return (np.random.default_rng(len(shape)).uniform(-1, 1, shape) * scale).astype(np.float32)


IMAGE, DEEP, TEXT = (1, 64, 56, 56), (1, 256, 14, 14), (1, 128, 768)

# Name, operator, attributes, shapes (or (type, shape), or constants) of the operands, and the number of results if it is not one.
OPERATORS = [
    # Elementwise
    ("add", "Add", {}, [TEXT, TEXT]),
    ("add_row", "Add", {}, [TEXT, (768,)]),
    ("add_channel", "Add", {}, [IMAGE, (64, 1, 1)]),
    ("add_column", "Add", {}, [TEXT, (1, 128, 1)]),
    ("mul_scalar", "Mul", {}, [TEXT, np.float32(0.3)]),
    ("div", "Div", {}, [TEXT, TEXT]),
    ("pow_2", "Pow", {}, [TEXT, np.float32(2)]),
    ("pow", "Pow", {}, [TEXT, np.float32(1.7)]),
    *[(op.lower(), op, {}, [TEXT]) for op in ("Relu", "Sigmoid", "Tanh", "Exp", "Erf", "Sqrt", "Sin", "Cos", "Atan", "Softplus", "Elu", "HardSwish", "Mish", "Floor", "Round", "Neg", "Reciprocal", "Selu")],
    ("log", "Log", {}, [TEXT]),
    ("gelu", "Gelu", {}, [TEXT]),
    ("gelu_tanh", "Gelu", {"approximate": "tanh"}, [TEXT]),
    ("leaky_relu", "LeakyRelu", {}, [IMAGE]),
    ("prelu", "PRelu", {}, [IMAGE, (64, 1, 1)]),
    ("clip", "Clip", {}, [IMAGE, np.float32(-0.5), np.float32(0.5)]),
    ("mod_int", "Mod", {}, [(I64, (128, 768)), ints(7)]),
    ("where", "Where", {}, [(B, TEXT), TEXT, TEXT]),
    ("where_mask", "Where", {}, [(B, (1, 1, 128, 128)), (1, 12, 128, 128), np.float32(-1e9)]),
    ("less", "Less", {}, [TEXT, TEXT]),
    ("cast_f16", "Cast", {"to": H}, [TEXT]),
    ("cast_i32", "Cast", {"to": I32}, [TEXT]),
    ("cast_u8_f32", "Cast", {"to": F}, [(U8, (1, 3, 224, 224))]),
    ("exp_double", "Exp", {}, [(D, (128, 768))]),
    ("dropout_free_sum", "Sum", {}, [TEXT, TEXT, TEXT]),
    # Rows
    ("softmax", "Softmax", {"axis": -1}, [(1, 12, 128, 128)]),
    ("softmax_long", "Softmax", {"axis": -1}, [(8, 32000)]),
    ("softmax_channel", "Softmax", {"axis": 1}, [(1, 21, 128, 128)]),
    ("log_softmax", "LogSoftmax", {"axis": -1}, [(64, 1000)]),
    ("softmax_double", "Softmax", {"axis": -1}, [(D, (128, 768))]),
    ("layer_norm", "LayerNormalization", {"axis": -1}, [TEXT, weights(768), weights(768)]),
    ("rms_norm", "RMSNormalization", {"axis": -1}, [TEXT, weights(768)]),
    ("instance_norm", "InstanceNormalization", {}, [IMAGE, weights(64), weights(64)]),
    ("group_norm", "GroupNormalization", {"num_groups": 32}, [IMAGE, weights(64), weights(64)]),
    ("batch_norm", "BatchNormalization", {}, [IMAGE, weights(64), weights(64), weights(64), np.abs(weights(64)) + 1]),
    ("lrn", "LRN", {"size": 5}, [IMAGE]),
    ("lp_norm", "LpNormalization", {"axis": 1}, [IMAGE]),
    ("mvn", "MeanVarianceNormalization", {}, [IMAGE]),
    *[(f"{op}_last".lower(), op, {}, [TEXT, ints(-1)]) for op in ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceL2", "ReduceProd", "ReduceLogSumExp")],
    ("reducesum_first", "ReduceSum", {}, [(512, 768), ints(0)]),
    ("reducemean_image", "ReduceMean", {}, [IMAGE, ints(2, 3)]),
    ("reducesum_middle", "ReduceSum", {}, [(16, 128, 256), ints(1)]),
    ("reducesum_all", "ReduceSum", {}, [(512, 768)]),
    ("argmax_last", "ArgMax", {"axis": -1}, [(64, 1000)]),
    ("argmax_channel", "ArgMax", {"axis": 1}, [(1, 21, 128, 128)]),
    ("cumsum_last", "CumSum", {}, [TEXT, ints(2)]),
    ("cumsum_first", "CumSum", {}, [(512, 768), ints(0)]),
    ("topk_5", "TopK", {}, [(64, 1000), ints(5)], 2),
    ("topk_long", "TopK", {}, [(1, 32000), ints(50)], 2),
    ("topk_300", "TopK", {}, [(4, 8400), ints(300)], 2),
    ("topk_all", "TopK", {}, [(16, 1000), ints(1000)], 2),
    ("hardmax", "Hardmax", {"axis": -1}, [(64, 1000)]),
    # Movement
    ("transpose_2d", "Transpose", {"perm": [1, 0]}, [(512, 768)]),
    ("transpose_nhwc", "Transpose", {"perm": [0, 2, 3, 1]}, [IMAGE]),
    ("transpose_nchw", "Transpose", {"perm": [0, 3, 1, 2]}, [(1, 224, 224, 3)]),
    ("transpose_heads", "Transpose", {"perm": [0, 2, 1, 3]}, [(1, 128, 12, 64)]),
    ("transpose_keys", "Transpose", {"perm": [0, 2, 3, 1]}, [(1, 128, 12, 64)]),
    ("transpose_u8", "Transpose", {"perm": [0, 3, 1, 2]}, [(U8, (1, 224, 224, 3))]),
    ("concat_channel", "Concat", {"axis": 1}, [IMAGE, IMAGE]),
    ("concat_last", "Concat", {"axis": -1}, [TEXT, TEXT]),
    ("split_last", "Split", {"axis": -1, "num_outputs": 3}, [(1, 128, 2304)], 3),
    ("slice_step", "Slice", {}, [IMAGE, ints(0, 0), ints(56, 56), ints(2, 3), ints(2, 2)]),
    ("slice_last", "Slice", {}, [TEXT, ints(64), ints(704), ints(2)]),
    ("slice_back", "Slice", {}, [TEXT, ints(-1), ints(-1000), ints(2), ints(-1)]),
    ("pad", "Pad", {}, [IMAGE, ints(0, 0, 1, 1, 0, 0, 1, 1)]),
    ("pad_reflect", "Pad", {"mode": "reflect"}, [(1, 3, 224, 224), ints(0, 0, 3, 3, 0, 0, 3, 3)]),
    ("tile", "Tile", {}, [(1, 64, 28, 28), ints(1, 1, 2, 2)]),
    ("expand", "Expand", {}, [(1, 128, 1), ints(1, 128, 768)]),
    ("depth_to_space", "DepthToSpace", {"blocksize": 2}, [(1, 64, 56, 56)]),
    ("space_to_depth", "SpaceToDepth", {"blocksize": 2}, [(1, 16, 112, 112)]),
    ("gather_rows", "Gather", {}, [(30000, 128), rows(n=128, below=30000)]),
    ("gather_last", "Gather", {"axis": -1}, [(512, 768), rows(n=256, below=768)]),
    ("gather_elements", "GatherElements", {"axis": 1}, [(512, 768), rows(n=(512, 768), below=768)]),
    ("gather_nd", "GatherND", {}, [(64, 64, 128), rows(n=(512, 2), below=64)]),
    ("scatter_nd", "ScatterND", {}, [(1000, 128), rows(n=(200, 1), below=1000), (200, 128)]),
    ("scatter_elements", "ScatterElements", {"axis": 1}, [(512, 768), rows(n=(512, 64), below=768), (512, 64)]),
    ("scatter_add", "ScatterElements", {"axis": 0, "reduction": "add"}, [(512, 64), rows(n=(2000, 64), below=512), (2000, 64)]),
    ("one_hot", "OneHot", {}, [(I64, (128,)), np.int64(1000), np.array([0, 1], np.float32)]),
    ("trilu", "Trilu", {}, [(12, 128, 128)]),
    ("reverse_sequence", "ReverseSequence", {"batch_axis": 1, "time_axis": 0}, [(40, 8, 256), np.arange(33, 41)]),
    ("nonzero", "NonZero", {}, [(128, 768)]),
    ("unique", "Unique", {}, [(I64, (20000,))]),
    ("compress", "Compress", {"axis": 0}, [(512, 768), rows(n=(512,), below=2).astype(bool)]),
    # Images
    ("conv_1x1", "Conv", {}, [DEEP, weights(256, 256, 1, 1)]),
    ("conv_3x3", "Conv", {"pads": [1, 1, 1, 1]}, [IMAGE, weights(64, 64, 3, 3)]),
    ("conv_3x3_stride_2", "Conv", {"pads": [1, 1, 1, 1], "strides": [2, 2]}, [IMAGE, weights(128, 64, 3, 3)]),
    ("conv_3x3_dilated", "Conv", {"pads": [2, 2, 2, 2], "dilations": [2, 2]}, [IMAGE, weights(64, 64, 3, 3)]),
    ("conv_5x5", "Conv", {"pads": [2, 2, 2, 2]}, [(1, 32, 28, 28), weights(64, 32, 5, 5)]),
    ("conv_7x7_rgb", "Conv", {"pads": [3, 3, 3, 3], "strides": [2, 2]}, [(1, 3, 224, 224), weights(64, 3, 7, 7)]),
    ("conv_16x16_patches", "Conv", {"strides": [16, 16]}, [(1, 3, 224, 224), weights(192, 3, 16, 16)]),
    ("conv_group_32", "Conv", {"pads": [1, 1, 1, 1], "group": 32}, [(1, 128, 56, 56), weights(128, 4, 3, 3)]),
    ("conv_group_2", "Conv", {"pads": [1, 1, 1, 1], "group": 2}, [IMAGE, weights(64, 32, 3, 3)]),
    ("conv_depthwise_3x3", "Conv", {"pads": [1, 1, 1, 1], "group": 64}, [IMAGE, weights(64, 1, 3, 3)]),
    ("conv_depthwise_7x7", "Conv", {"pads": [3, 3, 3, 3], "group": 96}, [(1, 96, 56, 56), weights(96, 1, 7, 7)]),
    ("conv_depthwise_stride_2", "Conv", {"pads": [1, 1, 1, 1], "group": 64, "strides": [2, 2]}, [IMAGE, weights(64, 1, 3, 3)]),
    ("conv_1d", "Conv", {"pads": [1, 1]}, [(1, 80, 3000), weights(384, 80, 3)]),
    ("conv_1d_wide", "Conv", {"pads": [12, 12]}, [(1, 64, 1000), weights(64, 64, 25)]),
    ("conv_3d", "Conv", {"pads": [1] * 6}, [(1, 16, 16, 28, 28), weights(32, 16, 3, 3, 3)]),
    ("conv_3x1", "Conv", {"pads": [1, 0, 1, 0]}, [(1, 128, 17, 17), weights(128, 128, 3, 1)]),
    ("conv_to_1", "Conv", {"pads": [1, 1, 1, 1]}, [IMAGE, weights(1, 64, 3, 3)]),
    ("conv_two_inputs", "Conv", {"pads": [1, 1, 1, 1]}, [IMAGE, (64, 64, 3, 3)]),
    ("conv_transpose_2x2", "ConvTranspose", {"strides": [2, 2]}, [(1, 128, 28, 28), weights(128, 64, 2, 2)]),
    ("conv_transpose_4x4", "ConvTranspose", {"strides": [2, 2], "pads": [1, 1, 1, 1]}, [(1, 64, 28, 28), weights(64, 32, 4, 4)]),
    ("max_pool_2", "MaxPool", {"kernel_shape": [2, 2], "strides": [2, 2]}, [IMAGE]),
    ("max_pool_3", "MaxPool", {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}, [(1, 64, 112, 112)]),
    ("max_pool_5", "MaxPool", {"kernel_shape": [5, 5], "pads": [2, 2, 2, 2]}, [(1, 256, 20, 20)]),
    ("average_pool_3", "AveragePool", {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}, [DEEP]),
    ("global_average_pool", "GlobalAveragePool", {}, [(1, 1280, 7, 7)]),
    ("resize_nearest_2", "Resize", {"mode": "nearest"}, [(1, 64, 28, 28), None, np.array([1, 1, 2, 2], np.float32)]),
    ("resize_linear_2", "Resize", {"mode": "linear"}, [(1, 64, 28, 28), None, np.array([1, 1, 2, 2], np.float32)]),
    ("resize_linear_size", "Resize", {"mode": "linear", "coordinate_transformation_mode": "align_corners"}, [(1, 21, 33, 33), None, None, ints(1, 21, 129, 129)]),
    ("resize_cubic_2", "Resize", {"mode": "cubic"}, [(1, 16, 56, 56), None, np.array([1, 1, 2, 2], np.float32)]),
    ("grid_sample", "GridSample", {}, [(1, 32, 56, 56), (1, 56, 56, 2)]),
    ("roi_align", "RoiAlign", {"output_height": 7, "output_width": 7, "sampling_ratio": 2, "spatial_scale": 1.0},
     [(1, 64, 50, 50), np.array([[i % 20, i % 15, 20 + i % 30, 15 + i % 33] for i in range(50)], np.float32), np.zeros(50, np.int64)]),
    ("nms", "NonMaxSuppression", {}, [(np.random.default_rng(1).uniform(0, 1, (1, 500, 4))).astype(np.float32), (1, 4, 500), ints(50), np.float32(0.5), np.float32(0.2)]),
    # Products
    ("matmul_1_row", "MatMul", {}, [(1, 768), weights(768, 3072)]),
    ("matmul_16_rows", "MatMul", {}, [(16, 768), weights(768, 3072)]),
    ("matmul_two_inputs", "MatMul", {}, [(256, 256), (256, 256)]),
    ("matmul_heads", "MatMul", {}, [(1, 12, 128, 64), (1, 12, 64, 128)]),
    ("matmul_column", "MatMul", {}, [(512, 768), weights(768, 1)]),
    ("matmul_narrow", "MatMul", {}, [(1000, 64), weights(64, 10)]),
    ("matmul_outer", "MatMul", {}, [(512, 1), (1, 512)]),
    ("matmul_double", "MatMul", {}, [(D, (256, 256)), (D, (256, 256))]),
    ("matmul_f16", "MatMul", {}, [(H, (128, 256)), (H, (256, 256))]),
    ("gemm_transposed", "Gemm", {"transA": 1, "transB": 1}, [(256, 128), weights(512, 256), weights(512)]),
    ("einsum_bilinear", "Einsum", {"equation": "bik,kl,bjl->bij"}, [(4, 64, 64), (64, 64), (4, 64, 64)]),
    ("einsum_heads", "Einsum", {"equation": "bqhd,bkhd->bhqk"}, [(1, 128, 12, 64), (1, 128, 12, 64)]),
    ("matmul_integer", "MatMulInteger", {}, [(U8, (128, 256)), (I8, (256, 256))]),
    ("quantize", "QuantizeLinear", {}, [IMAGE, np.float32(0.01), np.uint8(128)]),
    ("dequantize", "DequantizeLinear", {}, [(U8, IMAGE), np.float32(0.01), np.uint8(128)]),
    ("dynamic_quantize", "DynamicQuantizeLinear", {}, [TEXT], 3),
    ("lstm", "LSTM", {"hidden_size": 256}, [(32, 1, 128), weights(1, 1024, 128, scale=0.1), weights(1, 1024, 256, scale=0.1), weights(1, 2048, scale=0.1)], 3),
    ("lstm_both", "LSTM", {"hidden_size": 128, "direction": "bidirectional"}, [(32, 4, 128), weights(2, 512, 128, scale=0.1), weights(2, 512, 128, scale=0.1), weights(2, 1024, scale=0.1)], 3),
    ("gru", "GRU", {"hidden_size": 256}, [(32, 1, 128), weights(1, 768, 128, scale=0.1), weights(1, 768, 256, scale=0.1), weights(1, 1536, scale=0.1)], 2),
    ("rnn", "RNN", {"hidden_size": 256}, [(32, 1, 128), weights(1, 256, 128, scale=0.1), weights(1, 256, 256, scale=0.1), weights(1, 512, scale=0.1)], 2),
    ("dft", "DFT", {}, [(8, 512, 1), None, np.int64(1)]),
    ("stft", "STFT", {}, [(1, 8000, 1), np.int64(128), np.hanning(256).astype(np.float32), np.int64(256)]),
    ("det", "Det", {}, [(64, 8, 8)]),
]
# The opset of each is the newest that the peers read.
OPSET = 20
NEWER = {"RMSNormalization": 23, "GroupNormalization": 21}


def operator_models(work):
    """Name, path and inputs of a model for each."""
    for name, op, attrs, operands, *n in OPERATORS:
        names, inputs, constants, feeds = [], [], [], {}
        rng = np.random.default_rng(7)
        for i, o in enumerate(operands):
            names.append("" if o is None else f"x{i}")
            if o is None:
                continue
            if isinstance(o, (np.ndarray, np.generic)):
                constants.append(numpy_helper.from_array(np.asarray(o), f"x{i}"))
                continue
            kind, shape = o if isinstance(o[0], int) and len(o) == 2 and isinstance(o[1], tuple) else (F, o)
            inputs.append(helper.make_tensor_value_info(f"x{i}", kind, shape))
            dtype = np.dtype(helper.tensor_dtype_to_np_dtype(kind))
            v = rng.integers(0, 2 if kind == B else 100, shape) if dtype.kind in "iub" else rng.uniform(0.05 if op == "Log" else -1, 1, shape)
            feeds[f"x{i}"] = v.astype(dtype)
        outputs = [f"y{i}" for i in range(n[0] if n else 1)]
        infos = [onnx.ValueInfoProto(name=y) for y in outputs]
        graph = helper.make_graph([helper.make_node(op, names, outputs, **attrs)], name, inputs, infos, constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", NEWER.get(op, OPSET))], ir_version=10)
        model = onnx.shape_inference.infer_shapes(model)
        path = os.path.join(work, name + ".onnx")
        onnx.save(model, path)
        yield name, path, feeds
