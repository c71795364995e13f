//! Operators of com.microsoft as ONNX nodes. The results equal ONNX Runtime's except for rounding: sums that
//! it computes in integers from quantized operands may be computed in floats here.

mod experts;
mod gated;
mod packed;
mod quantized;
mod sparse;
mod streams;

use super::Make;
use crate::diag::{Error, Failure, Result, codes};
use crate::graph::{Graph, Node, NodeData, Value};
use crate::ops::{AttrValue, Known, Operand};
use crate::tensor::{ConstData, ElemType};
use std::sync::Arc;

pub(super) fn expand(g: &mut Graph, n: Node, operands: &[Option<Operand>]) -> Result<Vec<Node>> {
    let node = g.nodes[n].clone();
    let mut cx = Contrib { make: Make::at(g, n), node: node.clone(), operands };
    let results = match node.schema.name {
        "BiasSoftmax" | "CDist" | "ComplexMul" | "ComplexMulConj" | "GemmFastGelu" | "IsAllFinite"
        | "BiasDropout" => vec![Some(cx.arithmetic()?)],
        "GroupNorm" | "SkipGroupNorm" => cx.group_norm()?,
        "GatedAdd"
        | "ScaledSiLU"
        | "GatedRMSNorm"
        | "BranchwiseRMSNorm"
        | "LinearAttentionGate"
        | "CausalConvWithState"
        | "DecoderMaskedMultiHeadAttention" => cx.gated()?,
        "QAttention" | "QEmbedLayerNormalization" => cx.quantized_block()?,
        "QLinearConv" | "QLinearReduceMean" | "QLinearWhere" | "MatMulInteger16" | "MulInteger"
        | "ReduceSumInteger" => vec![Some(cx.quantized()?)],
        "RemovePadding"
        | "RestorePadding"
        | "PackedAttention"
        | "PackedMultiHeadAttention"
        | "RelativePositionBias"
        | "GatedRelativePositionBias" => cx.packed()?,
        "HyperConnectionPreMix"
        | "HyperConnectionPostMix"
        | "EngramGate"
        | "MRotaryEmbedding"
        | "GemmaRotaryEmbedding"
        | "Rfft"
        | "Irfft"
        | "BitmaskDropout"
        | "BitmaskBiasDropout"
        | "FusedMatMulActivation"
        | "MatMulNBitsMlp"
        | "MatMulNBitsQkv" => cx.streams()?,
        "SparseAttention" => cx.sparse_attention()?,
        "LongformerAttention" => vec![Some(cx.longformer()?)],
        "MoE" | "QMoE" => vec![Some(cx.experts()?)],
        "Unique" => {
            let x = cx.x(0)?;
            let all = cx.make.node("Unique", vec![("sorted", AttrValue::Int(0))], vec![Some(x)], 4)?;
            vec![Some(all[0]), Some(all[2]), Some(all[3])]
        }
        _ => vec![Some(cx.renamed()?)],
    };
    for (old, new) in node.outputs.iter().zip(results) {
        match (old, new) {
            (Some(old), Some(new)) => cx.make.define(*old, new)?,
            (Some(_), None) => return cx.refuse("a result beside the first is used"),
            _ => {}
        }
    }
    Ok(cx.make.made)
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
    fn x(&self, i: usize) -> Result<Value> {
        self.given(i)
            .ok_or_else(|| Failure::bug("contrib", format!("{} without operand {i}", self.node.schema.name)))
    }
    fn attr(&self, name: &str) -> Option<&AttrValue> {
        self.node.attrs.iter().find(|(n, _)| n == name).map(|(_, v)| v)
    }
    fn int(&self, name: &str, default: i64) -> i64 {
        if let Some(AttrValue::Int(v)) = self.attr(name) { *v } else { default }
    }
    fn text(&self, name: &str, default: &str) -> String {
        if let Some(AttrValue::String(s)) = self.attr(name) {
            String::from_utf8_lossy(s).into_owned()
        } else {
            default.to_owned()
        }
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
        names.iter().filter_map(|n| self.attr(n).map(|v| (*n, v.clone()))).collect()
    }
    fn op(&mut self, name: &str, inputs: &[Value]) -> Result<Value> {
        self.make.op(name, inputs)
    }
    fn rank(&self, v: Value) -> Result<usize> {
        Ok(self.make.dims(v)?.len())
    }
    fn cast(&mut self, v: Value, to: ElemType) -> Result<Value> {
        let from = self.make.elem(v)?;
        self.make.cast(v, from, to)
    }
    fn permuted(&mut self, v: Value, perm: Vec<i64>) -> Result<Value> {
        self.make.with("Transpose", vec![("perm", AttrValue::Ints(perm))], &[v])
    }
    /// Converts images with the channels last to ONNX's order, and back.
    fn channels_first(&mut self, v: Value, rank: usize) -> Result<Value> {
        self.permuted(v, [0, rank as i64 - 1].into_iter().chain(1..rank as i64 - 1).collect())
    }
    fn channels_last(&mut self, v: Value, rank: usize) -> Result<Value> {
        self.permuted(v, std::iter::once(0).chain(2..rank as i64).chain([1]).collect())
    }
    fn axes_of(&mut self, v: Value, name: &str, axes: &[i64]) -> Result<Value> {
        let axes = self.make.ints(axes);
        self.op(name, &[v, axes])
    }

    /// Operators that ONNX has under another name.
    fn renamed(&mut self) -> Result<Value> {
        let x = self.x(0)?;
        let inputs = self.node.inputs.clone();
        match self.node.schema.name {
            "Trilu" => Ok(self.make.node("Trilu", self.same(&["upper"]), inputs, 1)?[0]),
            "QuantizeLinear" | "DequantizeLinear" => {
                let name = self.node.schema.name;
                Ok(self.make.node(name, self.same(&["axis"]), inputs, 1)?[0])
            }
            "GatherND" => {
                let i = self.x(1)?;
                let i = self.cast(i, ElemType::I64)?;
                self.op("GatherND", &[x, i])
            }
            "TorchEmbedding" => {
                let i = self.x(1)?;
                self.op("Gather", &[x, i])
            }
            "SampleOp" => Ok(x),
            "ConvTransposeWithDynamicPads" => {
                let mut attrs = self.same(&[
                    "auto_pad",
                    "dilations",
                    "group",
                    "kernel_shape",
                    "output_padding",
                    "strides",
                ]);
                if self.given(2).is_some() {
                    let Some(pads) = self.known_ints(2) else {
                        return self.refuse("pads that only run time knows");
                    };
                    attrs.push(("pads", AttrValue::Ints(pads)));
                }
                let (w, bias) = (self.x(1)?, self.given(3));
                Ok(self.make.node("ConvTranspose", attrs, vec![Some(x), Some(w), bias], 1)?[0])
            }
            "Range" => {
                let elem = self.make.elem(x)?;
                let step = match self.given(2) {
                    Some(s) => s,
                    None => {
                        let one = self.make.ints(&[1]);
                        self.make.cast(one, ElemType::I64, elem)?
                    }
                };
                // Lists of one number are accepted as well.
                let (end, none) =
                    (self.x(1)?, self.make.g.add_const("scalar", Arc::new(ConstData::from_i64s(&[]))));
                let mut parts = vec![];
                for v in [x, end, step] {
                    parts.push(self.op("Reshape", &[v, none])?);
                }
                self.op("Range", &parts)
            }
            "ExpandDims" => {
                let (axis, one) = (self.x(1)?, self.make.ints(&[1]));
                let axis = self.cast(axis, ElemType::I64)?;
                let axis = self.op("Reshape", &[axis, one])?;
                self.op("Unsqueeze", &[x, axis])
            }
            "Pad" => {
                let (pads, flat) = (self.x(1)?, self.make.ints(&[-1]));
                let pads = self.op("Reshape", &[pads, flat])?;
                let value = self.given(2);
                Ok(self.make.node("Pad", self.same(&["mode"]), vec![Some(x), Some(pads), value], 1)?[0])
            }
            "GridSample" => {
                let grid = self.x(1)?;
                let mode = match self.text("mode", "bilinear").as_str() {
                    "bilinear" => "linear",
                    "bicubic" => "cubic",
                    _ => "nearest",
                };
                let mut attrs = self.same(&["padding_mode", "align_corners"]);
                attrs.push(("mode", AttrValue::String(mode.into())));
                self.make.with("GridSample", attrs, &[x, grid])
            }
            "NhwcMaxPool" => {
                let rank = self.rank(x)?;
                let attrs =
                    self.same(&["auto_pad", "ceil_mode", "dilations", "kernel_shape", "pads", "strides"]);
                let v = self.channels_first(x, rank)?;
                let v = self.make.with("MaxPool", attrs, &[v])?;
                self.channels_last(v, rank)
            }
            // UnfoldTensor: windows along a dimension, with the window's elements as the last dimension.
            _ => {
                let (rank, size, step) = (self.rank(x)? as i64, self.int("size", 1), self.int("step", 1));
                let dim = self.int("dim", -1);
                let dim = if dim < 0 { dim + rank } else { dim };
                let Some(length) = self.make.dims(x)?.get(dim as usize).and_then(|d| d.as_const()) else {
                    return self
                        .refuse("a dimension that only run time knows, or that the tensor does not have");
                };
                if size < 1 || step < 1 || size > length {
                    return self.refuse("windows that do not fit the dimension");
                }
                let count = (length - size) / step + 1;
                let places: Vec<i64> =
                    (0..count).flat_map(|i| (0..size).map(move |j| i * step + j)).collect();
                let i = self
                    .make
                    .g
                    .add_const("windows", Arc::new(ConstData::i64s_shaped(vec![count, size], &places)));
                let v = self.make.with("Gather", vec![("axis", AttrValue::Int(dim))], &[x, i])?;
                let mut perm: Vec<i64> = (0..=rank).filter(|d| *d != dim + 1).collect();
                perm.push(dim + 1);
                self.permuted(v, perm)
            }
        }
    }
    fn arithmetic(&mut self) -> Result<Value> {
        let x = self.x(0)?;
        match self.node.schema.name {
            "BiasSoftmax" => {
                let bias = self.x(1)?;
                let rank = self.rank(x)?;
                if self.int("is_inner_broadcast", 0) != 0 && self.rank(bias)? != rank {
                    return self.refuse("a bias of fewer dimensions that broadcasts inside");
                }
                let axis = self.int("axis", 1);
                let axis = if axis < 0 { axis + rank as i64 } else { axis };
                let v = self.op("Add", &[x, bias])?;
                if axis + 1 == rank as i64 {
                    return self.make.with("Softmax", vec![("axis", AttrValue::Int(-1))], &[v]);
                }
                let flat = self.make.with("Flatten", vec![("axis", AttrValue::Int(axis))], &[v])?;
                let flat = self.make.with("Softmax", vec![("axis", AttrValue::Int(1))], &[flat])?;
                let shape = self.op("Shape", &[v])?;
                self.op("Reshape", &[flat, shape])
            }
            "CDist" => {
                let b = self.x(1)?;
                let (a, b) = (self.axes_of(x, "Unsqueeze", &[1])?, self.axes_of(b, "Unsqueeze", &[0])?);
                let d = self.op("Sub", &[a, b])?;
                let axes = self.make.ints(&[2]);
                let name = match self.text("metric", "sqeuclidean").as_str() {
                    "sqeuclidean" => "ReduceSumSquare",
                    "euclidean" => "ReduceL2",
                    _ => return self.refuse("its metric"),
                };
                self.make.with(name, vec![("keepdims", AttrValue::Int(0))], &[d, axes])
            }
            "ComplexMul" | "ComplexMulConj" => {
                let b = self.x(1)?;
                let mut parts = vec![];
                for v in [x, b] {
                    let last = self.rank(v)? as i64 - 1;
                    if self.make.dims(v)?.last().and_then(|d| d.as_const()) != Some(2) {
                        return self.refuse("a last dimension that is not real and imaginary part");
                    }
                    parts.extend(self.make.node(
                        "Split",
                        vec![("axis", AttrValue::Int(last)), ("num_outputs", AttrValue::Int(2))],
                        vec![Some(v)],
                        2,
                    )?);
                }
                let [ar, ai, br, bi] = parts[..] else { return Err(Failure::bug("contrib", "four parts")) };
                let (rr, ii, ri, ir) = (
                    self.op("Mul", &[ar, br])?,
                    self.op("Mul", &[ai, bi])?,
                    self.op("Mul", &[ar, bi])?,
                    self.op("Mul", &[ai, br])?,
                );
                let (re, im) = if self.node.schema.name == "ComplexMul" {
                    (self.op("Sub", &[rr, ii])?, self.op("Add", &[ri, ir])?)
                } else {
                    (self.op("Add", &[rr, ii])?, self.op("Sub", &[ir, ri])?)
                };
                self.make.with("Concat", vec![("axis", AttrValue::Int(-1))], &[re, im])
            }
            "GemmFastGelu" => {
                let w = self.x(1)?;
                let mut v = self.op("MatMul", &[x, w])?;
                if let Some(b) = self.given(2) {
                    v = self.op("Add", &[v, b])?;
                }
                self.make.with("Gelu", vec![("approximate", AttrValue::String("tanh".into()))], &[v])
            }
            "IsAllFinite" => {
                let (inf, nan) = (self.int("isnan_only", 0) == 0, self.int("isinf_only", 0) == 0);
                let mut all: Option<Value> = None;
                for i in 0..self.node.inputs.len() {
                    let v = self.x(i)?;
                    let v = self.cast(v, ElemType::F32)?;
                    let mut bad = vec![];
                    if inf {
                        bad.push(self.op("IsInf", &[v])?);
                    }
                    if nan {
                        bad.push(self.op("IsNaN", &[v])?);
                    }
                    for b in bad {
                        let b = self.make.cast(b, ElemType::Bool, ElemType::I32)?;
                        let b = self.make.with("ReduceSum", vec![("keepdims", AttrValue::Int(0))], &[b])?;
                        all = Some(match all {
                            Some(a) => self.op("Add", &[a, b])?,
                            None => b,
                        });
                    }
                }
                let Some(count) = all else { return self.refuse("neither of both") };
                let some = self.make.cast(count, ElemType::I32, ElemType::Bool)?;
                self.op("Not", &[some])
            }
            // BiasDropout
            _ => {
                if self.given(4).is_some() && self.known_ints(4).as_deref() != Some(&[0]) {
                    return self.refuse("training");
                }
                let bias = self.x(1)?;
                let v = self.op("Add", &[x, bias])?;
                match self.given(2) {
                    Some(r) => self.op("Add", &[v, r]),
                    None => Ok(v),
                }
            }
        }
    }
    /// Channels are last by default. The normalization is computed in f32.
    fn group_norm(&mut self) -> Result<Vec<Option<Value>>> {
        let (mut x, gamma, beta) = (self.x(0)?, self.x(1)?, self.x(2)?);
        let (rank, elem) = (self.rank(x)?, self.make.elem(x)?);
        let last = self.int("channels_last", 1) != 0;
        let mut sum = None;
        if self.node.schema.name == "SkipGroupNorm" {
            let mut skip = self.x(3)?;
            if self.rank(skip)? == 2 {
                skip = self.axes_of(skip, "Unsqueeze", &(1..rank as i64 - 1).collect::<Vec<_>>())?;
            }
            if !last {
                return self.refuse("channels that are not last");
            }
            x = self.op("Add", &[x, skip])?;
            if let Some(b) = self.given(4) {
                x = self.op("Add", &[x, b])?;
            }
            sum = Some(x);
        }
        let mut v = self.make.cast(x, elem, ElemType::F32)?;
        if last {
            v = self.channels_first(v, rank)?;
        }
        let (gamma, beta) = (self.cast(gamma, ElemType::F32)?, self.cast(beta, ElemType::F32)?);
        let mut attrs = self.same(&["epsilon"]);
        attrs.push(("num_groups", AttrValue::Int(self.int("groups", 1))));
        v = self.make.with("GroupNormalization", attrs, &[v, gamma, beta])?;
        if self.int("activation", 0) == 1 {
            let s = self.op("Sigmoid", &[v])?;
            v = self.op("Mul", &[v, s])?;
        }
        if last {
            v = self.channels_last(v, rank)?;
        }
        Ok(vec![Some(self.make.cast(v, ElemType::F32, elem)?), sum])
    }
}
