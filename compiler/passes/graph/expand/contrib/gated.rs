//! Norms, gates and small convolutions of linear attention, and the decoder's attention.

use super::{Contrib, Outputs};
use crate::diag::Result;
use crate::graph::Value;
use crate::ops::AttrValue;
use crate::tensor::ElemType;

impl Contrib<'_> {
    pub(super) fn concat(&mut self, parts: &[Value]) -> Value {
        self.make.with("Concat", vec![("axis", AttrValue::Int(0))], parts)
    }
    /// v times sigmoid(v), or sigmoid(v) alone.
    pub(super) fn gate(&mut self, v: Value, silu: bool) -> Value {
        let s = self.op("Sigmoid", &[v]);
        if silu { self.op("Mul", &[v, s]) } else { s }
    }
    /// v divided by the root mean square along the last dimension.
    pub(super) fn rms(&mut self, v: Value) -> Value {
        let epsilon = self.float("epsilon", 1e-5);
        let (square, last) = (self.op("Mul", &[v, v]), self.make.ints(&[-1]));
        let mean = self.op("ReduceMean", &[square, last]);
        let e = self.make.number(ElemType::F32, f64::from(epsilon));
        let sum = self.op("Add", &[mean, e]);
        let root = self.op("Sqrt", &[sum]);
        self.op("Div", &[v, root])
    }
    pub(super) fn gated_add(&mut self) -> Value {
        let v = self.op("Mul", &[self.x(1), self.x(2)]);
        self.op("Add", &[self.x(0), v])
    }
    pub(super) fn scaled_silu(&mut self) -> Value {
        let x = self.x(0);
        let elem = self.make.elem(x);
        let scale = match self.given(1) {
            Some(s) => self.cast(s, elem),
            None => {
                let alpha = self.float("alpha", 1.0);
                self.make.number(elem, f64::from(alpha))
            }
        };
        let v = self.op("Mul", &[x, scale]);
        self.gate(v, true)
    }
    pub(super) fn gated_rms_norm(&mut self) -> Result<Value> {
        let x = self.x(0);
        let elem = self.make.elem(x);
        let (scale, gate) = (self.x(1), self.x(2));
        let (v, own, shape) =
            (self.cast(x, ElemType::F32), self.cast(scale, ElemType::F32), self.op("Shape", &[x]));
        let (front, rest, size) =
            (self.make.sizes(x, 0, -1), self.make.ints(&[-1]), self.make.sizes(scale, 0, 1));
        let groups = self.concat(&[front, rest, size]);
        let v = self.op("Reshape", &[v, groups]);
        let v = self.rms(v);
        let v = self.op("Mul", &[v, own]);
        let v = self.op("Reshape", &[v, shape]);
        let silu = match self.text("activation", "silu").as_str() {
            "silu" | "swish" => true,
            "sigmoid" => false,
            _ => return self.refuse("its activation"),
        };
        let gate = self.cast(gate, ElemType::F32);
        let gate = self.gate(gate, silu);
        let v = self.op("Mul", &[v, gate]);
        Ok(self.cast_from(v, elem))
    }
    pub(super) fn branchwise_rms_norm(&mut self) -> Value {
        let x = self.x(0);
        let elem = self.make.elem(x);
        let branches = self.int("num_branches", 0);
        let (mut v, shape) = (self.cast(x, ElemType::F32), self.op("Shape", &[x]));
        if branches > 0 {
            let (front, list) = (self.make.sizes(x, 0, -1), self.make.ints(&[branches, -1]));
            let split = self.concat(&[front, list]);
            v = self.op("Reshape", &[v, split]);
        }
        let (rest, size) = (self.make.ints(&[-1]), self.make.sizes(v, -1, i64::MAX));
        v = self.rms(v);
        if let Some(s) = self.given(1) {
            let rows = self.concat(&[rest, size]);
            let s = self.cast(s, ElemType::F32);
            let s = self.op("Reshape", &[s, rows]);
            v = self.op("Mul", &[v, s]);
        }
        let v = self.op("Reshape", &[v, shape]);
        self.cast_from(v, elem)
    }
    pub(super) fn linear_attention_gate(&mut self) -> Outputs {
        let x = self.x(0);
        let elem = self.make.elem(x);
        let a = self.cast(x, ElemType::F32);
        let v = self.op("Add", &[a, self.x(1)]);
        let v = self.op("Softplus", &[v]);
        let v = self.op("Mul", &[v, self.x(2)]);
        let decay = self.cast_from(v, elem);
        let beta = match self.given(3) {
            Some(b) => {
                let b = self.cast(b, ElemType::F32);
                let b = self.gate(b, false);
                Some(self.cast_from(b, elem))
            }
            None => None,
        };
        vec![Some(decay), beta]
    }
    /// DecoderMaskedMultiHeadAttention: one new token after the cached ones.
    pub(super) fn decoder_attention(&mut self) -> Result<Outputs> {
        if self.int("output_qk", 0) != 0 || [3, 8, 9].iter().any(|i| self.given(*i).is_some()) {
            return self.refuse("scores as a result, beams, or a mask of keys");
        }
        let mut inputs = [0, 1, 2, 10, 3, 4, 5, 6].map(|i| self.given(i)).to_vec();
        if let (true, Some(length), Some(past), Some(_)) =
            (self.int("past_present_share_buffer", 0) != 0, self.given(7), self.given(5), self.given(6))
        {
            return Ok(self.cached(&mut inputs, length, past));
        }
        let attrs = self.kept(&["num_heads", "scale", "mask_filter_value"]);
        Ok(self.all_of("MultiHeadAttention", attrs, inputs))
    }
    /// The caches have a larger capacity than they hold: their first positions are valid, and the new token
    /// follows them.
    fn cached(&mut self, inputs: &mut [Option<Value>], length: Value, past: Value) -> Outputs {
        let (zero, one, axis) = (self.make.ints(&[0]), self.make.ints(&[1]), self.make.ints(&[2]));
        let length = self.cast(length, ElemType::I64);
        let length = self.op("Reshape", &[length, one]);
        let (next, room) = (self.op("Add", &[length, one]), self.make.sizes(past, 2, 3));
        let mut behind = vec![];
        for i in [6, 7] {
            if let Some(v) = inputs[i] {
                behind.push(self.op("Slice", &[v, next, room, axis]));
                inputs[i] = Some(self.op("Slice", &[v, zero, length, axis]));
            }
        }
        let attrs = self.kept(&["num_heads", "scale", "mask_filter_value"]);
        let done = self.make.contrib("MultiHeadAttention", attrs, inputs.to_vec(), 3);
        let shape = self.op("Shape", &[past]);
        let mut results = vec![Some(done[0])];
        for (front, rest) in done[1..].iter().zip(behind) {
            let v = self.make.with("Concat", vec![("axis", AttrValue::Int(2))], &[*front, rest]);
            results.push(Some(self.op("Reshape", &[v, shape])));
        }
        results
    }
    /// Casts from f32 back to the operator's type.
    fn cast_from(&mut self, v: Value, elem: ElemType) -> Value {
        self.make.cast(v, ElemType::F32, elem)
    }
    /// A convolution along one dimension, in which the state holds the preceding positions.
    pub(super) fn causal_conv(&mut self) -> Result<Outputs> {
        let x = self.x(0);
        if self.int("ndim", 1) != 1
            || self.int("channels_last", 0) != 0
            || self.int("dilation", 1) != 1
            || self.int("state_window", 0) != 0
        {
            return self
                .refuse("several dimensions, channels that are last, a dilation, or a window of states");
        }
        let w = self.x(1);
        let (dims, filter, elem) = (self.make.dims(x)?, self.make.dims(w)?, self.make.elem(x));
        let (Some(channels), Some(width)) =
            (dims.get(1).and_then(|d| d.as_const()), filter.last().and_then(|d| d.as_const()))
        else {
            return self.refuse("numbers of channels and taps that only run time knows");
        };
        let length = self.make.ints(&[width - 1]);
        let past = match self.given(3) {
            Some(p) => p,
            None => {
                let front = self.make.sizes(x, 0, 2);
                let (shape, zero) = (self.concat(&[front, length]), self.make.number(elem, 0.0));
                self.op("Expand", &[zero, shape])
            }
        };
        let whole = self.make.with("Concat", vec![("axis", AttrValue::Int(2))], &[past, x]);
        let bias = self.given(2);
        let mut v = self.make.node(
            "Conv",
            vec![("group", AttrValue::Int(channels))],
            vec![Some(whole), Some(w), bias],
            1,
        )[0];
        match self.text("activation", "none").as_str() {
            "none" | "" => {}
            "silu" | "swish" => v = self.gate(v, true),
            _ => return self.refuse("its activation"),
        }
        let (from, to, axis) = (self.make.sizes(x, 2, 3), self.make.sizes(whole, 2, 3), self.make.ints(&[2]));
        let state = self.op("Slice", &[whole, from, to, axis]);
        Ok(vec![Some(v), Some(state)])
    }
}
