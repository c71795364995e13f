//! Quantized operators, computed on the floats that their operands represent, and tables of block-quantized
//! weights.

use super::{Contrib, Outputs};
use crate::diag::{Failure, Result};
use crate::graph::Value;
use crate::ops::AttrValue;
use crate::tensor::{ConstData, ElemType};
use std::sync::Arc;

impl Contrib<'_> {
    /// The floats that a quantized tensor represents.
    fn dequantized(&mut self, x: usize, scale: usize, zero: usize, axis: i64) -> Value {
        let inputs = vec![Some(self.x(x)), Some(self.x(scale)), self.given(zero)];
        self.make.node("DequantizeLinear", vec![("axis", AttrValue::Int(axis))], inputs, 1)[0]
    }
    fn requantized(&mut self, v: Value, scale: usize, zero: usize, elem: ElemType) -> Value {
        let inputs = vec![Some(v), Some(self.x(scale)), self.given(zero)];
        let attrs = if self.given(zero).is_none() {
            vec![("output_dtype", AttrValue::Int(elem as i64))]
        } else {
            vec![]
        };
        self.make.node("QuantizeLinear", attrs, inputs, 1)[0]
    }
    pub(super) fn where_of_quantized(&mut self) -> Value {
        let (a, b) = (self.dequantized(1, 2, 3, 0), self.dequantized(4, 5, 6, 0));
        let v = self.op("Where", &[self.x(0), a, b]);
        self.requantized(v, 7, 8, ElemType::U8)
    }
    pub(super) fn reduce_mean_of_quantized(&mut self) -> Value {
        let x = self.x(0);
        let elem = self.make.elem(x);
        let v = self.dequantized(0, 1, 2, 0);
        let axes = self.make.ints(&self.node.ints("axes").unwrap_or_default());
        let v = self.make.with("ReduceMean", self.same(&["keepdims"]), &[v, axes]);
        self.requantized(v, 3, 4, elem)
    }
    pub(super) fn conv_of_quantized(&mut self) -> Result<Value> {
        let x = self.x(0);
        let last = self.int("channels_last", 0) != 0;
        let rank = self.rank(x)?;
        let mut inputs = self.node.inputs.clone();
        if last {
            inputs[0] = Some(self.channels_first(x, rank));
        }
        let attrs = self.same(&["auto_pad", "dilations", "group", "kernel_shape", "pads", "strides"]);
        let v = self.make.node("QLinearConv", attrs, inputs, 1)[0];
        if last { Ok(self.channels_last(v, rank)) } else { Ok(v) }
    }
    pub(super) fn matmul_integer16(&mut self) -> Result<Value> {
        let x = self.x(0);
        let out = ElemType::I32;
        let b = self.x(1);
        if [x, b].iter().any(|v| self.make.elem(*v) == ElemType::U16) {
            return self.refuse("an operand of uint16");
        }
        let (a, b) = (self.cast(x, out), self.cast(b, out));
        Ok(self.op("MatMul", &[a, b]))
    }
    pub(super) fn mul_integer(&mut self) -> Value {
        let mut parts = vec![];
        for (v, z) in [(0, 1), (2, 3)] {
            let v = self.x(v);
            let mut v = self.cast(v, ElemType::I32);
            if let Some(z) = self.given(z) {
                let z = self.cast(z, ElemType::I32);
                v = self.op("Sub", &[v, z]);
            }
            parts.push(v);
        }
        self.op("Mul", &parts)
    }
    pub(super) fn reduce_sum_integer(&mut self) -> Value {
        let x = self.x(0);
        let to = if self.make.elem(x) == ElemType::U8 { ElemType::U32 } else { ElemType::I32 };
        let v = self.cast(x, to);
        let axes = self.make.ints(&self.node.ints("axes").unwrap_or_default());
        self.make.with("ReduceSum", self.same(&["keepdims"]), &[v, axes])
    }
    /// QAttention: attention with quantized operands.
    pub(super) fn quantized_attention(&mut self) -> Outputs {
        let (x, w) = (self.dequantized(0, 3, 6, 0), self.dequantized(1, 4, 7, 1));
        let inputs = vec![Some(x), Some(w), Some(self.x(2)), self.given(5), self.given(8)];
        let attrs = self.kept(&[
            "num_heads",
            "unidirectional",
            "scale",
            "mask_filter_value",
            "do_rotary",
            "past_present_share_buffer",
        ]);
        self.all_of("Attention", attrs, inputs)
    }
    /// QEmbedLayerNormalization.
    pub(super) fn quantized_embedding(&mut self) -> Outputs {
        let mut inputs = vec![self.given(0), self.given(1)];
        for i in 2..7 {
            inputs.push(self.given(i).map(|_| self.dequantized(i, i + 6, i + 11, 0)));
        }
        inputs.push(self.given(7));
        self.all_of("EmbedLayerNormalization", self.node.attrs.clone(), inputs)
    }
    pub(super) fn byte(&mut self, v: u8) -> Result<Value> {
        let data = ConstData::new(ElemType::U8, vec![], vec![v])
            .ok_or_else(|| Failure::bug("contrib", "a constant"))?;
        Ok(self.make.g.add_const("byte", Arc::new(data)))
    }
}
