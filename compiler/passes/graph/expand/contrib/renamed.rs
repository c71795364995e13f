//! Operators that ONNX has under another name or with other operands.

use super::Contrib;
use crate::diag::Result;
use crate::graph::Value;
use crate::ops::AttrValue;
use crate::ops::from_end;
use crate::tensor::{ConstData, ElemType};
use std::sync::Arc;

impl Contrib<'_> {
    pub(super) fn trilu(&mut self) -> Value {
        self.make.node("Trilu", self.same(&["upper"]), self.node.inputs.clone(), 1)[0]
    }
    /// QuantizeLinear and DequantizeLinear.
    pub(super) fn quantization(&mut self) -> Value {
        let name = self.node.schema.name;
        self.make.node(name, self.same(&["axis"]), self.node.inputs.clone(), 1)[0]
    }
    pub(super) fn gather_nd(&mut self) -> Value {
        let i = self.x(1);
        let i = self.cast(i, ElemType::I64);
        self.op("GatherND", &[self.x(0), i])
    }
    /// TorchEmbedding.
    pub(super) fn embedding(&mut self) -> Value {
        self.op("Gather", &[self.x(0), self.x(1)])
    }
    pub(super) fn conv_transpose(&mut self) -> Result<Value> {
        let x = self.x(0);
        let mut attrs =
            self.same(&["auto_pad", "dilations", "group", "kernel_shape", "output_padding", "strides"]);
        if self.given(2).is_some() {
            let Some(pads) = self.known_ints(2) else {
                return self.refuse("pads that only run time knows");
            };
            attrs.push(("pads", AttrValue::Ints(pads)));
        }
        let (w, bias) = (self.x(1), self.given(3));
        Ok(self.make.node("ConvTranspose", attrs, vec![Some(x), Some(w), bias], 1)[0])
    }
    pub(super) fn range(&mut self) -> Value {
        let x = self.x(0);
        let elem = self.make.elem(x);
        let step = match self.given(2) {
            Some(s) => s,
            None => {
                let one = self.make.ints(&[1]);
                self.make.cast(one, ElemType::I64, elem)
            }
        };
        // Lists of one number are accepted as well.
        let (end, none) = (self.x(1), self.make.g.add_const("scalar", Arc::new(ConstData::from_i64s(&[]))));
        let mut parts = vec![];
        for v in [x, end, step] {
            parts.push(self.op("Reshape", &[v, none]));
        }
        self.op("Range", &parts)
    }
    pub(super) fn expand_dims(&mut self) -> Value {
        let (axis, one) = (self.x(1), self.make.ints(&[1]));
        let axis = self.cast(axis, ElemType::I64);
        let axis = self.op("Reshape", &[axis, one]);
        self.op("Unsqueeze", &[self.x(0), axis])
    }
    pub(super) fn pad(&mut self) -> Value {
        let x = self.x(0);
        let (pads, flat) = (self.x(1), self.make.ints(&[-1]));
        let pads = self.op("Reshape", &[pads, flat]);
        let value = self.given(2);
        self.make.node("Pad", self.same(&["mode"]), vec![Some(x), Some(pads), value], 1)[0]
    }
    pub(super) fn grid_sample(&mut self) -> Value {
        let mode = match self.text("mode", "bilinear").as_str() {
            "bilinear" => "linear",
            "bicubic" => "cubic",
            _ => "nearest",
        };
        let mut attrs = self.same(&["padding_mode", "align_corners"]);
        attrs.push(("mode", AttrValue::String(mode.into())));
        self.make.with("GridSample", attrs, &[self.x(0), self.x(1)])
    }
    pub(super) fn nhwc_max_pool(&mut self) -> Result<Value> {
        let x = self.x(0);
        let rank = self.rank(x)?;
        let attrs = self.same(&["auto_pad", "ceil_mode", "dilations", "kernel_shape", "pads", "strides"]);
        let v = self.channels_first(x, rank);
        let v = self.make.with("MaxPool", attrs, &[v]);
        Ok(self.channels_last(v, rank))
    }
    /// UnfoldTensor: windows along a dimension, with the elements of a window as the last dimension.
    pub(super) fn unfold(&mut self) -> Result<Value> {
        let x = self.x(0);
        let (rank, size, step) = (self.rank(x)? as i64, self.int("size", 1), self.int("step", 1));
        let dim = self.int("dim", -1);
        let dim = from_end(dim, rank);
        let Some(length) = self.make.dims(x)?.get(dim as usize).and_then(|d| d.as_const()) else {
            return self.refuse("a dimension that only run time knows, or that the tensor does not have");
        };
        if size < 1 || step < 1 || size > length {
            return self.refuse("windows that do not fit the dimension");
        }
        let count = (length - size) / step + 1;
        let places: Vec<i64> = (0..count).flat_map(|i| (0..size).map(move |j| i * step + j)).collect();
        let i =
            self.make.g.add_const("windows", Arc::new(ConstData::i64s_shaped(vec![count, size], &places)));
        let v = self.make.with("Gather", vec![("axis", AttrValue::Int(dim))], &[x, i]);
        let mut perm: Vec<i64> = (0..=rank).filter(|d| *d != dim + 1).collect();
        perm.push(dim + 1);
        Ok(self.permuted(v, perm))
    }
}
