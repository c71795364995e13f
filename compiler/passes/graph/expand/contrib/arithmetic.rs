//! Sums, norms and distances.

use super::{Contrib, Outputs};
use crate::diag::{Failure, Result};
use crate::graph::Value;
use crate::ops::AttrValue;
use crate::ops::from_end;
use crate::tensor::ElemType;

impl Contrib<'_> {
    pub(super) fn bias_softmax(&mut self) -> Result<Value> {
        let x = self.x(0);
        let bias = self.x(1);
        let rank = self.rank(x)?;
        if self.int("is_inner_broadcast", 0) != 0 && self.rank(bias)? != rank {
            return self.refuse("a bias of fewer dimensions that broadcasts inside");
        }
        let axis = self.int("axis", 1);
        let axis = from_end(axis, rank as i64);
        let v = self.op("Add", &[x, bias]);
        if axis + 1 == rank as i64 {
            return Ok(self.make.with("Softmax", vec![("axis", AttrValue::Int(-1))], &[v]));
        }
        let flat = self.make.with("Flatten", vec![("axis", AttrValue::Int(axis))], &[v]);
        let flat = self.make.with("Softmax", vec![("axis", AttrValue::Int(1))], &[flat]);
        let shape = self.op("Shape", &[v]);
        Ok(self.op("Reshape", &[flat, shape]))
    }
    pub(super) fn cdist(&mut self) -> Result<Value> {
        let x = self.x(0);
        let b = self.x(1);
        let (a, b) = (self.axes_of(x, "Unsqueeze", &[1]), self.axes_of(b, "Unsqueeze", &[0]));
        let d = self.op("Sub", &[a, b]);
        let axes = self.make.ints(&[2]);
        let name = match self.text("metric", "sqeuclidean").as_str() {
            "sqeuclidean" => "ReduceSumSquare",
            "euclidean" => "ReduceL2",
            _ => return self.refuse("its metric"),
        };
        Ok(self.make.with(name, vec![("keepdims", AttrValue::Int(0))], &[d, axes]))
    }
    pub(super) fn complex_mul(&mut self) -> Result<Value> {
        let x = self.x(0);
        let b = self.x(1);
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
            ));
        }
        let [ar, ai, br, bi] = parts[..] else { return Err(Failure::bug("contrib", "four parts")) };
        let (rr, ii, ri, ir) = (
            self.op("Mul", &[ar, br]),
            self.op("Mul", &[ai, bi]),
            self.op("Mul", &[ar, bi]),
            self.op("Mul", &[ai, br]),
        );
        let (re, im) = if self.node.schema.name == "ComplexMul" {
            (self.op("Sub", &[rr, ii]), self.op("Add", &[ri, ir]))
        } else {
            (self.op("Add", &[rr, ii]), self.op("Sub", &[ir, ri]))
        };
        Ok(self.make.with("Concat", vec![("axis", AttrValue::Int(-1))], &[re, im]))
    }
    pub(super) fn gemm_fast_gelu(&mut self) -> Value {
        let mut v = self.op("MatMul", &[self.x(0), self.x(1)]);
        if let Some(b) = self.given(2) {
            v = self.op("Add", &[v, b]);
        }
        self.make.with("Gelu", vec![("approximate", AttrValue::String("tanh".into()))], &[v])
    }
    pub(super) fn is_all_finite(&mut self) -> Result<Value> {
        let (inf, nan) = (self.int("isnan_only", 0) == 0, self.int("isinf_only", 0) == 0);
        let mut all: Option<Value> = None;
        for i in 0..self.node.inputs.len() {
            let v = self.x(i);
            let v = self.cast(v, ElemType::F32);
            let mut bad = vec![];
            if inf {
                bad.push(self.op("IsInf", &[v]));
            }
            if nan {
                bad.push(self.op("IsNaN", &[v]));
            }
            for b in bad {
                let b = self.make.cast(b, ElemType::Bool, ElemType::I32);
                let b = self.make.with("ReduceSum", vec![("keepdims", AttrValue::Int(0))], &[b]);
                all = Some(match all {
                    Some(a) => self.op("Add", &[a, b]),
                    None => b,
                });
            }
        }
        let Some(count) = all else { return self.refuse("neither of both") };
        let some = self.make.cast(count, ElemType::I32, ElemType::Bool);
        Ok(self.op("Not", &[some]))
    }
    pub(super) fn bias_dropout(&mut self) -> Result<Value> {
        if self.given(4).is_some() && self.known_ints(4).as_deref() != Some(&[0]) {
            return self.refuse("training");
        }
        let v = self.op("Add", &[self.x(0), self.x(1)]);
        match self.given(2) {
            Some(r) => Ok(self.op("Add", &[v, r])),
            None => Ok(v),
        }
    }
    /// Channels are last by default. The normalization is computed in f32.
    pub(super) fn group_norm(&mut self) -> Result<Outputs> {
        let (mut x, gamma, beta) = (self.x(0), self.x(1), self.x(2));
        let (rank, elem) = (self.rank(x)?, self.make.elem(x));
        let last = self.int("channels_last", 1) != 0;
        let mut sum = None;
        if self.node.schema.name == "SkipGroupNorm" {
            let mut skip = self.x(3);
            if self.rank(skip)? == 2 {
                skip = self.axes_of(skip, "Unsqueeze", &(1..rank as i64 - 1).collect::<Vec<_>>());
            }
            if !last {
                return self.refuse("channels that are not last");
            }
            x = self.op("Add", &[x, skip]);
            if let Some(b) = self.given(4) {
                x = self.op("Add", &[x, b]);
            }
            sum = Some(x);
        }
        let mut v = self.make.cast(x, elem, ElemType::F32);
        if last {
            v = self.channels_first(v, rank);
        }
        let (gamma, beta) = (self.cast(gamma, ElemType::F32), self.cast(beta, ElemType::F32));
        let mut attrs = self.same(&["epsilon"]);
        attrs.push(("num_groups", AttrValue::Int(self.int("groups", 1))));
        v = self.make.with("GroupNormalization", attrs, &[v, gamma, beta]);
        if self.int("activation", 0) == 1 {
            let s = self.op("Sigmoid", &[v]);
            v = self.op("Mul", &[v, s]);
        }
        if last {
            v = self.channels_last(v, rank);
        }
        Ok(vec![Some(self.make.cast(v, ElemType::F32, elem)), sum])
    }
    pub(super) fn unique(&mut self) -> Outputs {
        let x = self.x(0);
        let all = self.make.node("Unique", vec![("sorted", AttrValue::Int(0))], vec![Some(x)], 4);
        vec![Some(all[0]), Some(all[2]), Some(all[3])]
    }
}
