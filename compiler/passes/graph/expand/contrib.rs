//! Operators of com.microsoft as ONNX nodes. The results equal ONNX Runtime's except for rounding: sums that
//! it computes in integers from quantized operands may be computed in floats here.

mod arithmetic;
mod experts;
mod gated;
mod packed;
mod quantized;
mod renamed;
mod sparse;
mod streams;

use super::Make;
use crate::diag::{Error, Failure, Result, codes};
use crate::graph::{Graph, Node, NodeData, Value};
use crate::ops::{AttrValue, Known, Operand};
use crate::tensor::ElemType;

/// The results of a node, in order; `None` for those that an expansion does not have.
type Outputs = Vec<Option<Value>>;

/// How an operator becomes other nodes: one result, or all of them.
enum Expansion {
    One(fn(&mut Contrib<'_>) -> Result<Value>),
    All(fn(&mut Contrib<'_>) -> Result<Outputs>),
}
use Expansion::{All, One};

/// The expansion of each operator.
const EXPANSIONS: &[(&str, Expansion)] = &[
    ("BiasDropout", One(|c| c.bias_dropout())),
    ("BiasSoftmax", One(|c| c.bias_softmax())),
    ("BitmaskBiasDropout", All(|c| c.unmasked())),
    ("BitmaskDropout", All(|c| c.unmasked())),
    ("BranchwiseRMSNorm", One(|c| Ok(c.branchwise_rms_norm()))),
    ("CausalConvWithState", All(|c| c.causal_conv())),
    ("CDist", One(|c| c.cdist())),
    ("ComplexMul", One(|c| c.complex_mul())),
    ("ComplexMulConj", One(|c| c.complex_mul())),
    ("ConvTransposeWithDynamicPads", One(|c| c.conv_transpose())),
    ("DecoderMaskedMultiHeadAttention", All(|c| c.decoder_attention())),
    ("DequantizeLinear", One(|c| Ok(c.quantization()))),
    ("EngramGate", All(|c| c.engram())),
    ("ExpandDims", One(|c| Ok(c.expand_dims()))),
    ("FusedMatMulActivation", One(|c| c.matmul_activation())),
    ("GatedAdd", One(|c| Ok(c.gated_add()))),
    ("GatedRelativePositionBias", One(|c| Ok(c.gated_bias()))),
    ("GatedRMSNorm", One(|c| c.gated_rms_norm())),
    ("GatherND", One(|c| Ok(c.gather_nd()))),
    ("GemmaRotaryEmbedding", All(|c| Ok(c.gemma_rotary()))),
    ("GemmFastGelu", One(|c| Ok(c.gemm_fast_gelu()))),
    ("GridSample", One(|c| Ok(c.grid_sample()))),
    ("GroupNorm", All(|c| c.group_norm())),
    ("HyperConnectionPostMix", One(|c| c.post_mix())),
    ("HyperConnectionPreMix", One(|c| c.pre_mix())),
    ("Irfft", One(|c| c.real_transform())),
    ("IsAllFinite", One(|c| c.is_all_finite())),
    ("LinearAttentionGate", All(|c| Ok(c.linear_attention_gate()))),
    ("LongformerAttention", One(|c| Ok(c.longformer()))),
    ("MatMulInteger16", One(|c| c.matmul_integer16())),
    ("MatMulNBitsMlp", All(|c| c.projections())),
    ("MatMulNBitsQkv", All(|c| c.projections())),
    ("MoE", One(|c| c.experts())),
    ("MRotaryEmbedding", One(|c| c.rotary_of_three())),
    ("MulInteger", One(|c| Ok(c.mul_integer()))),
    ("NhwcMaxPool", One(|c| c.nhwc_max_pool())),
    ("PackedAttention", One(|c| c.packed_self_attention())),
    ("PackedMultiHeadAttention", One(|c| Ok(c.packed_multi_head_attention()))),
    ("Pad", One(|c| Ok(c.pad()))),
    ("QAttention", All(|c| Ok(c.quantized_attention()))),
    ("QEmbedLayerNormalization", All(|c| Ok(c.quantized_embedding()))),
    ("QLinearConv", One(|c| c.conv_of_quantized())),
    ("QLinearReduceMean", One(|c| Ok(c.reduce_mean_of_quantized()))),
    ("QLinearWhere", One(|c| Ok(c.where_of_quantized()))),
    ("QMoE", One(|c| c.experts())),
    ("QuantizeLinear", One(|c| Ok(c.quantization()))),
    ("Range", One(|c| Ok(c.range()))),
    ("ReduceSumInteger", One(|c| Ok(c.reduce_sum_integer()))),
    ("RelativePositionBias", One(|c| c.relative_bias())),
    ("RemovePadding", All(|c| Ok(c.remove_padding()))),
    ("RestorePadding", One(|c| Ok(c.restore_padding()))),
    ("Rfft", One(|c| c.real_transform())),
    ("SampleOp", One(|c| Ok(c.x(0)))),
    ("ScaledSiLU", One(|c| Ok(c.scaled_silu()))),
    ("SkipGroupNorm", All(|c| c.group_norm())),
    ("SparseAttention", All(|c| c.sparse_attention())),
    ("TorchEmbedding", One(|c| Ok(c.embedding()))),
    ("Trilu", One(|c| Ok(c.trilu()))),
    ("UnfoldTensor", One(|c| c.unfold())),
    ("Unique", All(|c| Ok(c.unique()))),
];

pub(super) fn expand(g: &mut Graph, n: Node, operands: &[Option<Operand>]) -> Result<Vec<Node>> {
    let node = g.nodes[n].clone();
    let mut cx = Contrib { make: Make::at(g, n), node: node.clone(), operands };
    let Some((_, expansion)) = EXPANSIONS.iter().find(|(name, _)| *name == node.schema.name) else {
        return Err(Failure::bug("contrib", format!("{} has no expansion", node.schema.name)));
    };
    let results = match expansion {
        One(f) => f(&mut cx).map(|v| vec![Some(v)]),
        All(f) => f(&mut cx),
    };
    for (old, new) in node.outputs.iter().zip(cx.make.check(results)?) {
        match (old, new) {
            (Some(old), Some(new)) => cx.make.define(*old, new),
            (Some(_), None) => return cx.refuse("a result beside the first is used"),
            _ => {}
        }
    }
    cx.make.finish()
}

struct Contrib<'a> {
    make: Make<'a>,
    node: NodeData,
    operands: &'a [Option<Operand>],
}

impl Contrib<'_> {
    fn refuse<T>(&self, why: &str) -> Result<T> {
        Error::new(codes::OP_FEATURE, format!("{}: {why}, which is not supported", self.node.schema.name))
            .at(&self.node.origin)
            .fail()
    }
    fn given(&self, i: usize) -> Option<Value> {
        self.node.inputs.get(i).copied().flatten()
    }
    fn x(&self, i: usize) -> Value {
        let missing = || Failure::bug("contrib", format!("{} without operand {i}", self.node.schema.name));
        self.make.need(self.given(i), missing)
    }
    fn int(&self, name: &str, default: i64) -> i64 {
        self.node.int(name).unwrap_or(default)
    }
    fn float(&self, name: &str, default: f32) -> f32 {
        self.node.float(name).unwrap_or(default)
    }
    fn text(&self, name: &str, default: &str) -> String {
        self.node.text(name).unwrap_or_else(|| default.to_owned())
    }
    /// The integers of operand `i`, if they are known.
    fn known_ints(&self, i: usize) -> Option<Vec<i64>> {
        match &self.operands.get(i)?.as_ref()?.known {
            Known::Const(c) => c.to_i64s(),
            Known::Dims(d) => d.iter().map(|d| d.as_const()).collect(),
            Known::No => None,
        }
    }
    /// The attributes of the node whose names are in the list.
    fn same(&self, names: &[&'static str]) -> Vec<(&'static str, AttrValue)> {
        names.iter().filter_map(|n| self.node.attr(n).map(|v| (*n, v.clone()))).collect()
    }
    /// The same, with owned names.
    fn kept(&self, names: &[&'static str]) -> Vec<(String, AttrValue)> {
        self.node.attrs.iter().filter(|(n, _)| names.contains(&n.as_str())).cloned().collect()
    }
    /// Another com.microsoft operator with as many results.
    fn all_of(&mut self, name: &str, attrs: Vec<(String, AttrValue)>, inputs: Vec<Option<Value>>) -> Outputs {
        let results = self.make.contrib(name, attrs, inputs, self.node.outputs.len());
        results.into_iter().map(Some).collect()
    }
    fn op(&mut self, name: &str, inputs: &[Value]) -> Value {
        self.make.op(name, inputs)
    }
    fn rank(&self, v: Value) -> Result<usize> {
        Ok(self.make.dims(v)?.len())
    }
    fn cast(&mut self, v: Value, to: ElemType) -> Value {
        let from = self.make.elem(v);
        self.make.cast(v, from, to)
    }
    fn permuted(&mut self, v: Value, perm: Vec<i64>) -> Value {
        self.make.with("Transpose", vec![("perm", AttrValue::Ints(perm))], &[v])
    }
    /// Converts images with the channels last to ONNX's order, and back.
    fn channels_first(&mut self, v: Value, rank: usize) -> Value {
        self.permuted(v, [0, rank as i64 - 1].into_iter().chain(1..rank as i64 - 1).collect())
    }
    fn channels_last(&mut self, v: Value, rank: usize) -> Value {
        self.permuted(v, std::iter::once(0).chain(2..rank as i64).chain([1]).collect())
    }
    fn axes_of(&mut self, v: Value, name: &str, axes: &[i64]) -> Value {
        let axes = self.make.ints(axes);
        self.op(name, &[v, axes])
    }
}
