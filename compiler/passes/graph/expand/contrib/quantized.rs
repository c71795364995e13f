//! Quantized operators: what they compute on the floats that their operands stand for, and tables of weights by blocks.

use super::Contrib;
use crate::diag::{Failure, Result};
use crate::graph::Value;
use crate::ops::AttrValue;
use crate::tensor::{ConstData, ElemType};
use std::sync::Arc;

impl Contrib<'_> {
    /// What a quantized tensor stands for.
    fn dequantized(&mut self, x: usize, scale: usize, zero: usize, axis: i64) -> Result<Value> {
        let inputs = vec![Some(self.x(x)?), Some(self.x(scale)?), self.given(zero)];
        Ok(self.make.node("DequantizeLinear", vec![("axis", AttrValue::Int(axis))], inputs, 1)?[0])
    }
    fn requantized(&mut self, v: Value, scale: usize, zero: usize, elem: ElemType) -> Result<Value> {
        let inputs = vec![Some(v), Some(self.x(scale)?), self.given(zero)];
        let attrs = if self.given(zero).is_none() { vec![("output_dtype", AttrValue::Int(elem as i64))] } else { vec![] };
        Ok(self.make.node("QuantizeLinear", attrs, inputs, 1)?[0])
    }
    pub(super) fn quantized(&mut self) -> Result<Value> {
        let x = self.x(0)?;
        match self.node.schema.name {
            "QLinearWhere" => {
                let (a, b) = (self.dequantized(1, 2, 3, 0)?, self.dequantized(4, 5, 6, 0)?);
                let v = self.op("Where", &[x, a, b])?;
                self.requantized(v, 7, 8, ElemType::U8)
            }
            "QLinearReduceMean" => {
                let elem = self.make.elem(x)?;
                let v = self.dequantized(0, 1, 2, 0)?;
                let axes = self.make.ints(&if let Some(AttrValue::Ints(a)) = self.attr("axes") { a.clone() } else { vec![] });
                let v = self.make.with("ReduceMean", self.same(&["keepdims"]), &[v, axes])?;
                self.requantized(v, 3, 4, elem)
            }
            "QLinearConv" => {
                let last = self.int("channels_last", 0) != 0;
                let rank = self.rank(x)?;
                let mut inputs = self.node.inputs.clone();
                if last {
                    inputs[0] = Some(self.channels_first(x, rank)?);
                }
                let attrs = self.same(&["auto_pad", "dilations", "group", "kernel_shape", "pads", "strides"]);
                let v = self.make.node("QLinearConv", attrs, inputs, 1)?[0];
                if last { self.channels_last(v, rank) } else { Ok(v) }
            }
            "MatMulInteger16" => {
                let out = ElemType::I32;
                let b = self.x(1)?;
                if [x, b].iter().any(|v| self.make.elem(*v).is_ok_and(|e| e == ElemType::U16)) {
                    return self.refuse("an operand of uint16");
                }
                let (a, b) = (self.cast(x, out)?, self.cast(b, out)?);
                self.op("MatMul", &[a, b])
            }
            "MulInteger" => {
                let mut parts = vec![];
                for (v, z) in [(0, 1), (2, 3)] {
                    let v = self.x(v)?;
                    let mut v = self.cast(v, ElemType::I32)?;
                    if let Some(z) = self.given(z) {
                        let z = self.cast(z, ElemType::I32)?;
                        v = self.op("Sub", &[v, z])?;
                    }
                    parts.push(v);
                }
                self.op("Mul", &parts)
            }
            // ReduceSumInteger
            _ => {
                let to = if self.make.elem(x)? == ElemType::U8 { ElemType::U32 } else { ElemType::I32 };
                let v = self.cast(x, to)?;
                let axes = self.make.ints(&if let Some(AttrValue::Ints(a)) = self.attr("axes") { a.clone() } else { vec![] });
                self.make.with("ReduceSum", self.same(&["keepdims"]), &[v, axes])
            }
        }
    }
    /// Blocks of a transformer whose operands are quantized.
    pub(super) fn quantized_block(&mut self) -> Result<Vec<Option<Value>>> {
        let wanted = self.node.outputs.len();
        if self.node.schema.name == "QAttention" {
            let (x, w) = (self.dequantized(0, 3, 6, 0)?, self.dequantized(1, 4, 7, 1)?);
            let inputs = vec![Some(x), Some(w), Some(self.x(2)?), self.given(5), self.given(8)];
            let kept = ["num_heads", "unidirectional", "scale", "mask_filter_value", "do_rotary", "past_present_share_buffer"];
            let attrs = self.node.attrs.iter().filter(|(n, _)| kept.contains(&n.as_str())).cloned().collect();
            return Ok(self.make.of_domain("com.microsoft", "Attention", attrs, inputs, wanted)?.into_iter().map(Some).collect());
        }
        let mut inputs = vec![self.given(0), self.given(1)];
        for i in 2..7 {
            inputs.push(match self.given(i) {
                Some(_) => Some(self.dequantized(i, i + 6, i + 11, 0)?),
                None => None,
            });
        }
        inputs.push(self.given(7));
        let attrs = self.node.attrs.clone();
        Ok(self.make.of_domain("com.microsoft", "EmbedLayerNormalization", attrs, inputs, wanted)?.into_iter().map(Some).collect())
    }
    pub(super) fn byte(&mut self, v: u8) -> Result<Value> {
        let data = ConstData::new(ElemType::U8, vec![], vec![v]).ok_or_else(|| Failure::bug("contrib", "a constant"))?;
        Ok(self.make.g.add_const("byte", Arc::new(data)))
    }
    /// Two values of four bits in each byte as ones of their own along a new last dimension, the `first` half before the other.
    fn nibbles(&mut self, v: Value, high_first: bool) -> Result<Value> {
        let (mask, four) = (self.byte(15)?, self.byte(4)?);
        let low = self.op("BitwiseAnd", &[v, mask])?;
        let high = self.make.with("BitShift", vec![("direction", AttrValue::String("RIGHT".into()))], &[v, four])?;
        let last = self.make.ints(&[-1]);
        let (low, high) = (self.op("Unsqueeze", &[low, last])?, self.op("Unsqueeze", &[high, last])?);
        let pair = if high_first { [high, low] } else { [low, high] };
        self.make.with("Concat", vec![("axis", AttrValue::Int(-1))], &pair)
    }
    pub(super) fn blocks(&mut self) -> Result<Value> {
        let x = self.x(0)?;
        if self.node.schema.name == "MatMulBnb4" {
            let (b, scales) = (self.x(1)?, self.x(2)?);
            let elem = self.make.elem(x)?;
            let (k, n, size) = (self.int("K", 0), self.int("N", 0), self.int("block_size", 0));
            if k < 1 || n < 1 || size < 1 || k.checked_mul(n).is_none_or(|t| t % size != 0) {
                return self.refuse("blocks that do not fill the matrix");
            }
            // Signed 4-bit floats, and quantiles of the normal distribution.
            const FP4: [f32; 16] = [0.0, 5.208_333_3e-3, 0.666_666_7, 1.0, 0.333_333_34, 0.5, 0.166_666_67, 0.25, -0.0, -5.208_333_3e-3, -0.666_666_7, -1.0, -0.333_333_34, -0.5, -0.166_666_67, -0.25];
            #[rustfmt::skip]
            const NF4: [f32; 16] = [-1.0, -0.696_192_8, -0.525_073_05, -0.394_917_5, -0.284_441_38, -0.184_773_43, -0.091_050_036, 0.0,
                0.079_580_3, 0.160_930_2, 0.246_112_3, 0.337_915_24, 0.440_709_83, 0.562_617, 0.722_956_84, 1.0];
            let table = if self.int("quant_type", 0) == 0 { FP4 } else { NF4 };
            let table = self.make.g.add_const("values", Arc::new(ConstData::f32s(vec![16], &table)));
            let table = self.make.cast(table, ElemType::F32, elem)?;
            let codes = self.nibbles(b, true)?;
            let codes = self.make.cast(codes, ElemType::U8, ElemType::I32)?;
            let v = self.op("Gather", &[table, codes])?;
            let (rows, column) = (self.make.ints(&[-1, size]), self.make.ints(&[-1, 1]));
            let (v, scales) = (self.op("Reshape", &[v, rows])?, self.op("Reshape", &[scales, column])?);
            let v = self.op("Mul", &[v, scales])?;
            let shape = self.make.ints(&[n, k]);
            let mut v = self.op("Reshape", &[v, shape])?;
            if self.int("transB", 1) != 0 {
                v = self.permuted(v, vec![1, 0])?;
            }
            return self.op("MatMul", &[x, v]);
        }
        // GatherBlockQuantized: rows are picked first, and then dequantized.
        let (i, scales, zeros) = (self.x(1)?, self.x(2)?, self.given(3));
        let (rank, elem) = (self.rank(x)? as i64, self.make.elem(x)?);
        let place = |a: i64| if a < 0 { a + rank } else { a };
        let (from, along) = (place(self.int("gather_axis", 0)), place(self.int("quantize_axis", 1)));
        if from == along {
            return self.refuse("elements picked along the axis of the blocks");
        }
        if elem.is_float() {
            return self.refuse("data of floats");
        }
        let bits = self.int("bits", 4);
        let packed = elem == ElemType::U8 && bits == 4;
        if packed && along != rank - 1 {
            return self.refuse("bytes of two values along another dimension than the last");
        }
        let attrs = || vec![("axis", AttrValue::Int(from))];
        let mut v = self.make.with("Gather", attrs(), &[x, i])?;
        let scales = self.make.with("Gather", attrs(), &[scales, i])?;
        let mut zeros = match zeros {
            Some(z) => Some(self.make.with("Gather", attrs(), &[z, i])?),
            None => None,
        };
        let width = self.rank(i)? as i64;
        let axis = if along > from { along + width - 1 } else { along };
        if packed {
            let wide = |s: &mut Self, v: Value, like: Option<Value>| -> Result<Value> {
                let pairs = s.nibbles(v, false)?;
                // [.., bytes, 2] is [.., 2 bytes]; of zero points there may be one too many.
                let (front, rest) = (s.make.sizes(pairs, 0, rank + width - 2)?, s.make.ints(&[-1]));
                let shape = s.make.with("Concat", vec![("axis", AttrValue::Int(0))], &[front, rest])?;
                let flat = s.op("Reshape", &[pairs, shape])?;
                let Some(like) = like else { return Ok(flat) };
                let (zero, last, n) = (s.make.ints(&[0]), s.make.ints(&[-1]), s.make.sizes(like, -1, i64::MAX)?);
                s.op("Slice", &[flat, zero, n, last])
            };
            v = wide(self, v, None)?;
            zeros = match zeros {
                Some(z) => Some(wide(self, z, Some(scales))?),
                None => None,
            };
        }
        if zeros.is_none() && elem == ElemType::U8 {
            let middle = ConstData::new(ElemType::U8, vec![], vec![1 << (bits - 1).clamp(0, 7)]).map(Arc::new).ok_or_else(|| Failure::bug("contrib", "a constant"))?;
            let middle = self.make.g.add_const("middle", middle);
            let shape = self.op("Shape", &[scales])?;
            zeros = Some(self.op("Expand", &[middle, shape])?);
        }
        let attrs = vec![("axis", AttrValue::Int(axis)), ("block_size", AttrValue::Int(self.int("block_size", 128)))];
        Ok(self.make.node("DequantizeLinear", attrs, vec![Some(v), Some(scales), zeros], 1)?[0])
    }
}
