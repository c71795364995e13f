//! MoE and QMoE: a router selects a few experts for each row. Each expert gathers its rows and adds its
//! results to them. The weights of an expert, if constant, are a constant of their own: a part of the
//! model's.

use super::Contrib;
use crate::diag::Result;
use crate::graph::Value;
use crate::ops::{AttrValue, Known};
use crate::tensor::ElemType;
use std::sync::Arc;

/// Most experts: code is generated for each.
const MOST: i64 = 1024;

/// Operands of one layer: weights, their scales and zero points, the bias.
#[derive(Clone, Copy)]
struct Layer {
    weights: usize,
    bias: usize,
    scales: Option<usize>,
    zeros: Option<usize>,
    bits: i64,
}

impl Contrib<'_> {
    fn layer(&self, number: usize) -> Layer {
        let first = number - 1;
        if self.node.schema.name == "MoE" {
            return Layer { weights: 2 + 2 * first, bias: 3 + 2 * first, scales: None, zeros: None, bits: 0 };
        }
        let name = ["fc1_expert_weight_bits", "fc2_expert_weight_bits", "fc3_expert_weight_bits"][first];
        let bits = self.int(name, self.int("expert_weight_bits", 4));
        Layer {
            weights: 2 + 3 * first,
            bias: 4 + 3 * first,
            scales: Some(3 + 3 * first),
            zeros: Some(11 + first),
            bits,
        }
    }
    pub(super) fn experts(&mut self) -> Result<Value> {
        if self.int("use_sparse_mixer", 0) != 0 {
            return self.refuse("a sparse mixer");
        }
        if self.node.schema.name == "QMoE"
            && (self.text("quant_type", "int") != "int"
                || self.int("weights_prepacked", 0) == 1
                || (15..21).any(|i| self.given(i).is_some()))
        {
            return self.refuse("weights that are not integers of whole tensors");
        }
        let (x, router) = (self.x(0), self.x(1));
        let elem = self.make.elem(x);
        let experts = match self.make.dims(router)?.last().and_then(|d| d.as_const()) {
            Some(n) if (1..=MOST).contains(&n) => n,
            _ => return self.refuse("a number of experts that only run time knows, or of more than 1024"),
        };
        let (shape, width, all) =
            (self.op("Shape", &[x]), self.make.sizes(x, -1, i64::MAX), self.make.ints(&[-1]));
        let rows = self.concat(&[all, width]);
        let mut x = self.op("Reshape", &[x, rows]);
        if self.node.schema.name == "QMoE" {
            x = self.make.cast(x, elem, ElemType::F32);
        }
        let routes = self.routes(router);
        let (size, zero) = (self.op("Shape", &[x]), self.make.number(ElemType::F32, 0.0));
        let mut sum = self.op("Expand", &[zero, size]);
        for e in 0..experts {
            let number = self.make.integer(e);
            let share = self.make.with("Gather", vec![("axis", AttrValue::Int(1))], &[routes, number]);
            let own = self.op("NonZero", &[share]);
            let own = self.op("Reshape", &[own, all]);
            let (share, v) = (self.op("Gather", &[share, own]), self.op("Gather", &[x, own]));
            let v = self.expert(v, (e, number))?;
            let v = if self.node.schema.name == "QMoE" { v } else { self.make.cast(v, elem, ElemType::F32) };
            let (share, own) = (self.axes_of(share, "Unsqueeze", &[1]), self.axes_of(own, "Unsqueeze", &[1]));
            let v = self.op("Mul", &[v, share]);
            sum = self.make.with(
                "ScatterND",
                vec![("reduction", AttrValue::String("add".into()))],
                &[sum, own, v],
            );
        }
        let y = self.make.cast(sum, ElemType::F32, elem);
        Ok(self.op("Reshape", &[y, shape]))
    }
    /// The weight of each expert in each row; 0 for experts that are not selected.
    fn routes(&mut self, router: Value) -> Value {
        let (k, axis) = (self.int("k", 1), AttrValue::Int(-1));
        let scores = self.cast(router, ElemType::F32);
        let shares = self.make.with("Softmax", vec![("axis", axis.clone())], &[scores]);
        let k = self.make.ints(&[k]);
        let top = self.make.node("TopK", vec![("axis", axis.clone())], vec![Some(shares), Some(k)], 2);
        let (mut share, which) = (top[0], top[1]);
        let mut normalized = self.int("normalize_routing_weights", 0) != 0;
        if self.node.schema.name == "QMoE" {
            match self.given(14) {
                Some(w) => {
                    let w = self.cast(w, ElemType::F32);
                    share = self.make.with("GatherElements", vec![("axis", axis.clone())], &[w, which]);
                }
                // The weights of the selected experts are normalized, whatever the attribute says.
                None => normalized = true,
            }
        }
        if normalized {
            let total = self.axes_of(share, "ReduceSum", &[-1]);
            share = self.op("Div", &[share, total]);
        }
        let (size, zero) = (self.op("Shape", &[scores]), self.make.number(ElemType::F32, 0.0));
        let none = self.op("Expand", &[zero, size]);
        self.make.with("ScatterElements", vec![("axis", axis)], &[none, which, share])
    }
    fn expert(&mut self, x: Value, e: (i64, Value)) -> Result<Value> {
        let fused = self.int("swiglu_fusion", 0);
        let activation = self.text("activation_type", "relu");
        let v = self.dense(x, e, self.layer(1))?;
        let third = self.layer(3);
        let (gate, other) = match (activation.as_str(), fused) {
            ("swiglu", 1) => {
                let (end, axis, step) =
                    (self.make.ints(&[i64::MAX]), self.make.ints(&[-1]), self.make.ints(&[2]));
                let mut every = |from: i64| {
                    let from = self.make.ints(&[from]);
                    self.op("Slice", &[v, from, end, axis, step])
                };
                (every(0), Some(every(1)))
            }
            ("swiglu", 2) => {
                let halves = self.make.node(
                    "Split",
                    vec![("axis", AttrValue::Int(-1)), ("num_outputs", AttrValue::Int(2))],
                    vec![Some(v)],
                    2,
                );
                (halves[0], Some(halves[1]))
            }
            _ if self.given(third.weights).is_some() => (v, Some(self.dense(x, e, third)?)),
            _ => (v, None),
        };
        let v = match (activation.as_str(), other) {
            ("swiglu", None) => return self.refuse("swiglu without a third layer"),
            ("swiglu", Some(other)) => self.swiglu(gate, other),
            (name, other) => {
                let v = self.activated(gate, name)?;
                match other {
                    Some(o) => self.op("Mul", &[v, o]),
                    None => v,
                }
            }
        };
        self.dense(v, e, self.layer(2))
    }
    pub(super) fn activated(&mut self, v: Value, name: &str) -> Result<Value> {
        Ok(match name {
            "relu" => self.op("Relu", &[v]),
            "gelu" => self.make.with("Gelu", vec![("approximate", AttrValue::String("tanh".into()))], &[v]),
            "silu" | "swish" => self.gate(v, true),
            "identity" => v,
            _ => return self.refuse("its activation"),
        })
    }
    fn swiglu(&mut self, gate: Value, other: Value) -> Value {
        let (alpha, beta, limit) = (
            self.float("activation_alpha", 1.0),
            self.float("activation_beta", 0.0),
            self.float("swiglu_limit", f32::INFINITY),
        );
        let elem = match self.node.schema.name {
            "QMoE" => ElemType::F32,
            _ => self.make.elem(self.x(0)),
        };
        let number = |s: &mut Self, v: f32| s.make.number(elem, f64::from(v));
        let (mut gate, mut other) = (gate, other);
        if limit.is_finite() {
            let (high, low) = (number(self, limit), number(self, -limit));
            gate = self.op("Min", &[gate, high]);
            other = self.op("Clip", &[other, low, high]);
        }
        let (alpha, beta) = (number(self, alpha), number(self, beta));
        let s = self.op("Mul", &[gate, alpha]);
        let s = self.op("Sigmoid", &[s]);
        let v = self.op("Mul", &[gate, s]);
        let other = self.op("Add", &[other, beta]);
        self.op("Mul", &[v, other])
    }
    /// A layer of expert `e`, whose number is a value of the graph, too.
    fn dense(&mut self, x: Value, (e, number): (i64, Value), layer: Layer) -> Result<Value> {
        let of = |s: &mut Self, i: usize| -> Option<Value> {
            let v = s.given(i)?;
            if let Some(Known::Const(c)) = s.operands.get(i).and_then(|o| o.as_ref()).map(|o| &o.known)
                && let Some(own) = c.member(e)
            {
                let name = format!("{}.{e}", s.make.g.values[v].name);
                return Some(s.make.g.add_const(name, Arc::new(own)));
            }
            Some(s.op("Gather", &[v, number]))
        };
        let bias = of(self, layer.bias);
        let Some(w) = of(self, layer.weights) else { return self.refuse("a layer without weights") };
        let (Some(scales_at), Some(zeros_at)) = (layer.scales, layer.zeros) else {
            return Ok(self.make.node(
                "Gemm",
                vec![("transB", AttrValue::Int(1))],
                vec![Some(x), Some(w), bias],
                1,
            )[0]);
        };
        // Quantized weights: [columns, bytes].
        let known =
            self.make.dims(self.x(layer.weights))?.iter().map(|d| d.as_const()).collect::<Option<Vec<_>>>();
        let (Some(&[_, columns, bytes]), true) = (known.as_deref(), matches!(layer.bits, 2 | 4 | 8)) else {
            return self.refuse(
                "weights of sizes that only run time knows, or of other numbers of bits than 2, 4 or 8",
            );
        };
        let depth = bytes * 8 / layer.bits;
        let size = self.int("block_size", 0);
        let (Some(mut scales), mut zeros) = (of(self, scales_at), of(self, zeros_at)) else {
            return self.refuse("weights without scales");
        };
        scales = {
            let from = self.make.elem(self.x(scales_at));
            self.make.cast(scales, from, ElemType::F32)
        };
        let block = if size > 0 { size } else { 1 << depth.trailing_zeros().min(10) };
        if block < 16 || depth % block != 0 {
            return self.refuse("a depth that no blocks of 16 or more divide");
        }
        if size <= 0 {
            // One scale per column is repeated for all of its blocks. Zero points are packed consecutively.
            let (blocks, column) = (self.make.ints(&[columns, depth / block]), self.make.ints(&[columns, 1]));
            let spread = |s: &mut Self, v: Value| {
                let v = s.op("Reshape", &[v, column]);
                s.op("Expand", &[v, blocks])
            };
            scales = spread(self, scales);
            if let Some(z) = zeros {
                let z = self.fields(z, layer.bits)?;
                let (from, to) = (self.make.ints(&[0]), self.make.ints(&[columns]));
                let z = self.op("Slice", &[z, from, to]);
                let z = self.make.cast(z, ElemType::U8, ElemType::F32);
                zeros = Some(spread(self, z));
            }
        }
        let level = self.int("accuracy_level", 0);
        let sizes = [("K", depth), ("N", columns), ("bits", layer.bits), ("block_size", block)];
        let attrs = (sizes.into_iter().chain([("accuracy_level", level)]))
            .map(|(n, v)| (n.to_owned(), AttrValue::Int(v)))
            .collect::<Vec<_>>();
        if let Some(b) = bias {
            let from = self.make.elem(self.x(layer.bias));
            let b = self.make.cast(b, from, ElemType::F32);
            return Ok(self.make.contrib(
                "MatMulNBits",
                attrs,
                vec![Some(x), Some(w), Some(scales), zeros, None, Some(b)],
                1,
            )[0]);
        }
        Ok(self.make.contrib("MatMulNBits", attrs, vec![Some(x), Some(w), Some(scales), zeros], 1)[0])
    }
    /// The values of `bits` bits packed into the bytes of a vector, lowest bits first.
    fn fields(&mut self, v: Value, bits: i64) -> Result<Value> {
        let mut parts = vec![];
        let last = self.make.ints(&[-1]);
        for i in 0..8 / bits {
            let (shift, mask) =
                (self.byte((i * bits) as u8)?, self.byte((1u16 << bits).wrapping_sub(1) as u8)?);
            let part = self.make.with(
                "BitShift",
                vec![("direction", AttrValue::String("RIGHT".into()))],
                &[v, shift],
            );
            let part = self.op("BitwiseAnd", &[part, mask]);
            parts.push(self.op("Unsqueeze", &[part, last]));
        }
        let all = self.make.with("Concat", vec![("axis", AttrValue::Int(-1))], &parts);
        Ok(self.op("Reshape", &[all, last]))
    }
}
