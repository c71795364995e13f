//! Operators of com.microsoft that are ONNX operators with another name or layout, or short sequences of
//! them: `passes/graph/expand/contrib` replaces them during type inference.
//!
//! Spec: <https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md>. One version each.

use super::{Attrs, Elements, InferCx, LowerCx, Operator};
use crate::diag::{Failure, Result};

/// The operator; its attributes are in the node.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Contrib;

impl Operator for Contrib {
    const OPS: &'static [&'static str] = &[
        "com.microsoft:BiasDropout",
        "com.microsoft:BiasSoftmax",
        "com.microsoft:BitmaskBiasDropout",
        "com.microsoft:BitmaskDropout",
        "com.microsoft:BranchwiseRMSNorm",
        "com.microsoft:CausalConvWithState",
        "com.microsoft:CDist",
        "com.microsoft:ComplexMul",
        "com.microsoft:ComplexMulConj",
        "com.microsoft:ConvTransposeWithDynamicPads",
        "com.microsoft:DecoderMaskedMultiHeadAttention",
        "com.microsoft:DequantizeLinear",
        "com.microsoft:DynamicQuantizeLSTM",
        "com.microsoft:EngramGate",
        "com.microsoft:ExpandDims",
        "com.microsoft:FusedMatMulActivation",
        "com.microsoft:GatedAdd",
        "com.microsoft:GatedRelativePositionBias",
        "com.microsoft:GatedRMSNorm",
        "com.microsoft:GatherND",
        "com.microsoft:GemmaRotaryEmbedding",
        "com.microsoft:GemmFastGelu",
        "com.microsoft:GridSample",
        "com.microsoft:GroupNorm",
        "com.microsoft:HyperConnectionPostMix",
        "com.microsoft:HyperConnectionPreMix",
        "com.microsoft:Irfft",
        "com.microsoft:IsAllFinite",
        "com.microsoft:LinearAttentionGate",
        "com.microsoft:LongformerAttention",
        "com.microsoft:MatMulInteger16",
        "com.microsoft:MatMulNBitsMlp",
        "com.microsoft:MatMulNBitsQkv",
        "com.microsoft:MoE",
        "com.microsoft:MRotaryEmbedding",
        "com.microsoft:MulInteger",
        "com.microsoft:NhwcMaxPool",
        "com.microsoft:PackedAttention",
        "com.microsoft:PackedMultiHeadAttention",
        "com.microsoft:Pad",
        "com.microsoft:QAttention",
        "com.microsoft:QEmbedLayerNormalization",
        "com.microsoft:QLinearConv",
        "com.microsoft:QLinearReduceMean",
        "com.microsoft:QLinearWhere",
        "com.microsoft:QMoE",
        "com.microsoft:QuantizeLinear",
        "com.microsoft:Range",
        "com.microsoft:ReduceSumInteger",
        "com.microsoft:RelativePositionBias",
        "com.microsoft:RemovePadding",
        "com.microsoft:RestorePadding",
        "com.microsoft:Rfft",
        "com.microsoft:SampleOp",
        "com.microsoft:ScaledSiLU",
        "com.microsoft:SkipGroupNorm",
        "com.microsoft:SparseAttention",
        "com.microsoft:TorchEmbedding",
        "com.microsoft:Trilu",
        "com.microsoft:UnfoldTensor",
        "com.microsoft:Unique",
    ];
    fn elements(op: &str) -> Elements {
        match op {
            "com.microsoft:ExpandDims" | "com.microsoft:GatherND" | "com.microsoft:UnfoldTensor" => {
                Elements::Any
            }
            "com.microsoft:Unique" => Elements::Strings,
            _ => Elements::Numbers,
        }
    }
    fn parse(a: &mut Attrs) -> Result<Self> {
        for (name, kind) in a.known() {
            match kind {
                "int" => drop(a.int_opt(name)),
                "float" => drop(a.float_opt(name)),
                "ints" => drop(a.ints_opt(name)),
                "string" => drop(a.string_opt(name)),
                "floats" => drop(a.floats_opt(name)),
                "strings" => drop(a.strings_opt(name)),
                _ => {}
            }
        }
        Ok(Contrib)
    }
    fn infer(&self, _: &mut InferCx) -> Result<()> {
        Err(Failure::bug("infer", "a node that is made of others was not replaced"))
    }
    fn lower(&self, cx: &mut LowerCx) -> Result<()> {
        cx.bug("a node that is made of others was not replaced")
    }
}
