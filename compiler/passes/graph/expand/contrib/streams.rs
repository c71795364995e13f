//! Mixtures of several feature streams, multi-dimensional positions, transforms of real signals, and
//! projections with quantized weights that are fused with adjacent operators.

use super::{Contrib, Outputs};
use crate::diag::Result;
use crate::graph::Value;
use crate::ops::AttrValue;
use crate::tensor::ElemType;

impl Contrib<'_> {
    pub(super) fn gemma_rotary(&mut self) -> Outputs {
        let x = self.x(0);
        let mut turns = vec![];
        for f in ["Cos", "Sin"] {
            let v = self.op(f, &[x]);
            let v = self.make.cast(v, ElemType::F32, ElemType::F16);
            turns.push(self.axes_of(v, "Unsqueeze", &[1]));
        }
        let mut results = vec![];
        for i in [1, 3] {
            let (v, turned) = (self.x(i), self.x(i + 1));
            let (a, b) = (self.op("Mul", &[v, turns[0]]), self.op("Mul", &[turned, turns[1]]));
            results.push(Some(self.op("Add", &[a, b])));
        }
        results
    }
    /// [.., streams, features], from a flattened or an unflattened input.
    fn grouped(&mut self, x: Value) -> Value {
        let branches = self.int("num_branches", 0);
        if branches <= 0 {
            return x;
        }
        let (front, rest) = (self.make.sizes(x, 0, -1), self.make.ints(&[branches, -1]));
        let shape = self.concat(&[front, rest]);
        self.op("Reshape", &[x, shape])
    }
    /// Gates of whole streams or of each feature, shaped for broadcasting; `rank` is that of the grouped
    /// streams.
    fn gates(&mut self, v: Value, rank: usize, flat: usize) -> Result<Value> {
        let (own, last) = (self.rank(v)?, self.make.dims(v)?.last().and_then(|d| d.as_const()));
        let v = self.cast(v, ElemType::F32);
        if own == rank {
            return Ok(v);
        }
        let branches = self.int("num_branches", 0);
        if flat == own && branches > 0 && last.is_some_and(|n| n != branches) {
            return Ok(self.grouped(v));
        }
        Ok(self.axes_of(v, "Unsqueeze", &[-1]))
    }
    pub(super) fn pre_mix(&mut self) -> Result<Value> {
        let x = self.x(0);
        let elem = self.make.elem(x);
        let flat = self.rank(x)?;
        let rank = flat + usize::from(self.int("num_branches", 0) > 0);
        let gates = self.x(1);
        let gates = self.gates(gates, rank, flat)?;
        let v = self.cast(x, ElemType::F32);
        let v = self.grouped(v);
        let v = self.op("Mul", &[v, gates]);
        let axes = self.make.ints(&[-2]);
        let v = self.make.with("ReduceSum", vec![("keepdims", AttrValue::Int(0))], &[v, axes]);
        let scale = self.float("reduction_scale", 1.0);
        let scale = self.make.number(ElemType::F32, f64::from(scale));
        let v = self.op("Mul", &[v, scale]);
        Ok(self.make.cast(v, ElemType::F32, elem))
    }
    pub(super) fn post_mix(&mut self) -> Result<Value> {
        let x = self.x(0);
        let (elem, flat, shape) = (self.make.elem(x), self.rank(x)?, self.op("Shape", &[x]));
        let rank = flat + usize::from(self.int("num_branches", 0) > 0);
        let (block, gates) = (self.x(1), self.x(2));
        let gates = self.gates(gates, rank, 0)?;
        let v = self.cast(x, ElemType::F32);
        let mut v = self.grouped(v);
        if let Some(m) = self.given(3) {
            // [.., c, k]: the contribution of stream c to stream k.
            let n = self.rank(m)? as i64;
            let m = self.cast(m, ElemType::F32);
            let m = self.permuted(m, (0..n - 2).chain([n - 1, n - 2]).collect());
            v = self.op("MatMul", &[m, v]);
        }
        let block = self.cast(block, ElemType::F32);
        let block = self.axes_of(block, "Unsqueeze", &[-2]);
        let block = self.op("Mul", &[block, gates]);
        let v = self.op("Add", &[v, block]);
        let v = self.make.cast(v, ElemType::F32, elem);
        Ok(self.op("Reshape", &[v, shape]))
    }
    pub(super) fn engram(&mut self) -> Result<Outputs> {
        let key = self.x(0);
        let elem = self.make.elem(key);
        let Some(size) = self.make.dims(key)?.last().and_then(|d| d.as_const()) else {
            return self.refuse("a hidden size that only run time knows");
        };
        let norm = |s: &mut Self, v: Value, scale: usize| {
            let v = s.rms(v);
            let scale = s.x(scale);
            let scale = s.cast(scale, ElemType::F32);
            s.op("Mul", &[v, scale])
        };
        let (query, value) = (self.x(1), self.x(2));
        let (k, q) = (self.cast(key, ElemType::F32), self.cast(query, ElemType::F32));
        let (k, q) = (norm(self, k, 3), norm(self, q, 4));
        let v = self.op("Mul", &[k, q]);
        let sum = self.axes_of(v, "ReduceSum", &[-1]);
        let root = self.make.number(ElemType::F32, (size as f64).sqrt());
        let dot = self.op("Div", &[sum, root]);
        let (sign, least) = (self.op("Sign", &[dot]), self.make.number(ElemType::F32, 1e-6));
        let v = self.op("Abs", &[dot]);
        let v = self.op("Max", &[v, least]);
        let v = self.op("Sqrt", &[v]);
        let v = self.op("Mul", &[sign, v]);
        let gate = self.op("Sigmoid", &[v]);
        let value = self.cast(value, ElemType::F32);
        let value = self.axes_of(value, "Unsqueeze", &[-2]);
        let out = self.op("Mul", &[gate, value]);
        let normed = match self.given(5) {
            Some(_) => {
                let v = norm(self, out, 5);
                Some(self.make.cast(v, ElemType::F32, elem))
            }
            None => None,
        };
        Ok(vec![Some(self.make.cast(out, ElemType::F32, elem)), normed])
    }
    /// Assembles the rows of the caches from those of each token's three positions, and applies an ordinary
    /// rotary embedding.
    pub(super) fn rotary_of_three(&mut self) -> Result<Value> {
        let x = self.x(0);
        let (positions, cos, sin) = (self.x(1), self.x(2), self.x(3));
        let Some(sections) = self.node.ints("mrope_section") else {
            return self.refuse("sections that are not given");
        };
        let half: i64 = sections.iter().sum();
        if sections.len() != 3
            || sections.iter().any(|s| *s < 0)
            || self.make.dims(cos)?.last().and_then(|d| d.as_const()) != Some(half)
        {
            return self.refuse("sections that do not fill the cache");
        }
        if self.int("is_packed_batching", 0) != 0 {
            return self.refuse("packed batches");
        }
        let interleaved = self.int("mrope_layout", 0) == 1;
        // The position (0 to 2) that each column uses.
        let which: Vec<i64> = (0..half)
            .map(|i| match i {
                _ if !interleaved => i64::from(i >= sections[0]) + i64::from(i >= sections[0] + sections[1]),
                _ if i % 3 == 1 && i < 3 * sections[1] => 1,
                _ if i % 3 == 2 && i < 3 * sections[2] => 2,
                _ => 0,
            })
            .collect();
        let which = self.make.ints(&which);
        let width = self.make.ints(&[-1, half]);
        // [batch, length, half]
        let rows = self.make.with("Gather", vec![("axis", AttrValue::Int(0))], &[positions, which]);
        let rows = self.permuted(rows, vec![1, 2, 0]);
        let rows = self.op("Reshape", &[rows, width]);
        let mut caches = vec![];
        for c in [cos, sin] {
            caches.push(self.make.with("GatherElements", vec![("axis", AttrValue::Int(0))], &[c, rows]));
        }
        let (zero, one, none) = (self.make.integer(0), self.make.integer(1), self.make.ints(&[]));
        let frame = self.make.sizes(positions, 1, 3);
        let count = self.make.with("ReduceProd", vec![("keepdims", AttrValue::Int(1))], &[frame]);
        let count = self.op("Reshape", &[count, none]);
        let places = self.op("Range", &[zero, count, one]);
        let places = self.op("Reshape", &[places, frame]);
        let attrs = self.kept(&["interleaved", "num_heads", "rotary_embedding_dim", "scale"]);
        Ok(self.make.contrib(
            "RotaryEmbedding",
            attrs,
            vec![Some(x), Some(places), Some(caches[0]), Some(caches[1])],
            1,
        )[0])
    }
    pub(super) fn real_transform(&mut self) -> Result<Value> {
        let x = self.x(0);
        if self.int("signal_ndim", 1) != 1 || self.int("normalized", 0) != 0 || self.int("onesided", 1) != 1 {
            return self.refuse("signals of several dimensions, normalization, or both sides");
        }
        let (axis, last) = (self.make.integer(-2), self.make.ints(&[-1]));
        if self.node.schema.name == "Rfft" {
            let v = self.op("Unsqueeze", &[x, last]);
            return Ok(self.make.node(
                "DFT",
                vec![("onesided", AttrValue::Int(1))],
                vec![Some(v), None, Some(axis)],
                1,
            )[0]);
        }
        // The other half of the spectrum is the first half reversed and conjugated, without its ends.
        let elem = self.make.elem(x);
        let (place, behind, first, step) =
            (self.make.ints(&[-2]), self.make.ints(&[-2]), self.make.ints(&[0]), self.make.ints(&[-1]));
        let v = self.op("Slice", &[x, behind, first, place, step]);
        let (plus, minus) = (self.make.number(elem, 1.0), self.make.number(elem, -1.0));
        let (plus, minus) = (self.op("Reshape", &[plus, last]), self.op("Reshape", &[minus, last]));
        let signs = self.concat(&[plus, minus]);
        let v = self.op("Mul", &[v, signs]);
        let whole = self.make.with("Concat", vec![("axis", AttrValue::Int(-2))], &[x, v]);
        let v = self.make.node(
            "DFT",
            vec![("inverse", AttrValue::Int(1))],
            vec![Some(whole), None, Some(axis)],
            1,
        )[0];
        let zero = self.make.integer(0);
        Ok(self.make.with("Gather", vec![("axis", AttrValue::Int(-1))], &[v, zero]))
    }
    /// Dropout without effect: one set bit per element.
    pub(super) fn unmasked(&mut self) -> Result<Outputs> {
        let x = self.x(0);
        let bias = self.node.schema.name == "BitmaskBiasDropout";
        let training = if bias { 4 } else { 2 };
        if self.given(training).is_some() && self.known_ints(training).as_deref() != Some(&[0]) {
            return self.refuse("training");
        }
        let mut v = x;
        if bias {
            let b = self.x(1);
            v = self.op("Add", &[v, b]);
            if let Some(r) = self.given(2) {
                v = self.op("Add", &[v, r]);
            }
        }
        let count = self.op("Size", &[x]);
        let (more, word, one) = (self.make.integer(31), self.make.integer(32), self.make.ints(&[1]));
        let words = self.op("Add", &[count, more]);
        let words = self.op("Div", &[words, word]);
        let words = self.op("Reshape", &[words, one]);
        let ones = self.make.integer(i64::from(u32::MAX));
        let ones = self.make.cast(ones, ElemType::I64, ElemType::U32);
        Ok(vec![Some(v), Some(self.op("Expand", &[ones, words]))])
    }
    pub(super) fn matmul_activation(&mut self) -> Result<Value> {
        let attrs = self.kept(&["alpha", "transA", "transB", "transBatchA", "transBatchB"]);
        let v = self.make.contrib("FusedMatMul", attrs, self.node.inputs.clone(), 1)[0];
        let mut own = vec![];
        let mut given = |s: &Self, from: &str, to: &'static str| {
            if let Some(a) = s.node.attr(from) {
                own.push((to, a.clone()));
            }
        };
        let name = self.text("activation", "");
        match name.as_str() {
            "Relu" | "Sigmoid" | "Tanh" | "Softplus" | "Softsign" => {}
            "Elu" | "LeakyRelu" | "ThresholdedRelu" | "Celu" => given(self, "activation_alpha", "alpha"),
            "HardSigmoid" => {
                given(self, "activation_alpha", "alpha");
                given(self, "activation_beta", "beta");
            }
            "Selu" => {
                given(self, "activation_alpha", "alpha");
                given(self, "activation_gamma", "gamma");
            }
            "Softmax" | "LogSoftmax" | "Hardmax" => given(self, "activation_axis", "axis"),
            _ => return self.refuse("its activation"),
        }
        Ok(self.make.with(&name, own, &[v]))
    }
    /// Products of one normalized input with several quantized weight matrices.
    pub(super) fn projections(&mut self) -> Result<Outputs> {
        let x = self.x(0);
        let mlp = self.node.schema.name == "MatMulNBitsMlp";
        let (mut v, mut sum) = (x, None);
        let epsilon = vec![("epsilon".to_owned(), AttrValue::Float(self.float("epsilon", 1e-5)))];
        match (self.given(1), self.given(2)) {
            (Some(skip), Some(scale)) => {
                let all = self.make.contrib(
                    "SkipSimplifiedLayerNormalization",
                    epsilon,
                    vec![Some(x), Some(skip), Some(scale)],
                    4,
                );
                (v, sum) = (all[0], Some(all[3]));
            }
            (None, Some(scale)) => {
                v = self.make.with(
                    "SimplifiedLayerNormalization",
                    vec![
                        ("axis", AttrValue::Int(-1)),
                        ("epsilon", AttrValue::Float(self.float("epsilon", 1e-5))),
                    ],
                    &[x, scale],
                )
            }
            (Some(_), None) => return self.refuse("a residual without the scale of a norm"),
            (None, None) => {}
        }
        let widths = if mlp { vec!["N"; 2] } else { vec!["Nq", "Nkv", "Nkv"] };
        let mut results = vec![];
        for (i, name) in widths.into_iter().enumerate() {
            let at = 3 + 3 * i;
            let ints = [
                ("K", self.int("K", 0)),
                ("N", self.int(name, 0)),
                ("bits", self.int("bits", 4)),
                ("block_size", self.int("block_size", 32)),
            ];
            let attrs = ints.map(|(n, v)| (n.to_owned(), AttrValue::Int(v))).to_vec();
            let inputs = vec![Some(v), self.given(at), self.given(at + 1), None, None, self.given(at + 2)];
            results.push(Some(self.make.contrib("MatMulNBits", attrs, inputs, 1)[0]));
        }
        if mlp && let (Some(gate), Some(up)) = (results[0], results[1]) {
            let name = self.text("activation", "");
            let gate = self.activated(gate, &name)?;
            results = vec![Some(self.op("Mul", &[gate, up]))];
        }
        results.push(sum);
        Ok(results)
    }
}
