//! Gradients of operators that move or sum elements.
//!
//! Operators that only select elements (Slice, Gather, Tile, ...) are run once more on element indices, which
//! gives the positions to which the adjoint is added.

use super::rules::Rule;
use super::{Back, Parts};
use crate::diag::Result;
use crate::graph::{Def, Value};
use crate::ops::from_end;
use crate::ops::{AttrValue, Known};
use crate::passes::graph::expand::Piece;
use crate::tensor::ElemType;
use std::collections::HashMap;

/// Reductions whose adjoint is a formula. `true`: the formula gives it for the result's shape, and every
/// element has a share of the same size.
const REDUCTIONS: &[(&str, bool, Rule)] = &[
    ("ReduceSum", true, |r| r.d),
    ("ReduceLogSum", true, |r| r.d / r.y.op("Exp")),
    ("ReduceL1", false, |r| r.d * r.x.op("Sign")),
    ("ReduceL2", false, |r| r.d * (r.x / r.y)),
    ("ReduceSumSquare", false, |r| r.d * (r.x * 2.0)),
    ("ReduceLogSumExp", false, |r| r.d * (r.x - r.y).op("Exp")),
];

impl Back<'_, '_> {
    pub(super) fn cast_back(&mut self) -> Value {
        let (d, x, y) = (self.d(), self.x(0), self.y(0));
        let (from, to) = (self.make.elem(y), self.make.elem(x));
        self.make.cast(d, from, to)
    }
    pub(super) fn reshaped(&mut self) -> Value {
        let (d, x) = (self.d(), self.x(0));
        let shape = self.shape(x);
        self.with_zeros("Reshape", d, shape)
    }
    pub(super) fn expanded(&mut self) -> Result<Value> {
        let (d, x) = (self.d(), self.x(0));
        self.narrowed_from_result(d, x)
    }
    pub(super) fn transposed_back(&mut self) -> Result<Value> {
        let (d, x) = (self.d(), self.x(0));
        let rank = self.make.dims(x)?.len();
        let perm = self.node.ints("perm").unwrap_or_else(|| (0..rank as i64).rev().collect());
        let back: Vec<i64> =
            (0..rank as i64).filter_map(|i| perm.iter().position(|p| *p == i).map(|p| p as i64)).collect();
        Ok(self.make.with("Transpose", vec![("perm", AttrValue::Ints(back))], &[d]))
    }
    pub(super) fn triangle(&mut self) -> Value {
        let mut inputs = vec![Some(self.d())];
        inputs.extend(self.node.inputs.get(1).copied());
        let upper = self.int("upper", 1);
        self.make.node("Trilu", vec![("upper", AttrValue::Int(upper))], inputs, 1)[0]
    }
    pub(super) fn summed_back(&mut self) -> Value {
        let attrs = vec![
            ("exclusive", AttrValue::Int(self.int("exclusive", 0))),
            ("reverse", AttrValue::Int(1 - self.int("reverse", 0))),
        ];
        self.make.with("CumSum", attrs, &[self.d(), self.x(1)])
    }
    pub(super) fn padded(&mut self) -> Result<Value> {
        if self.text("mode", "constant") != "constant" || self.wants(2) {
            return self.error("it repeats elements, or its value depends on xs").fail();
        }
        let d = self.d();
        let pads = match self.node.ints("pads").or_else(|| self.node.ints("paddings")) {
            Some(p) => self.make.ints(&p),
            None => self.x(1),
        };
        let less = self.op("Neg", &[pads]);
        let axes = self.node.inputs.get(3).copied().flatten();
        Ok(self.make.node("Pad", vec![], vec![Some(d), Some(less), None, axes], 1)[0])
    }
    /// A Reshape to a shape in which a 0 is a size, not a copied dimension.
    fn with_zeros(&mut self, name: &str, d: Value, shape: Value) -> Value {
        self.make.with(name, vec![("allowzero", AttrValue::Int(1))], &[d, shape])
    }
    /// The adjoint of operand 0, from whose elements result `k` is selected.
    pub(super) fn picked(&mut self, k: usize) -> Result<Value> {
        let (d, x) = (self.d(), self.x(0));
        let (shape, flat) = (self.shape(x), self.make.ints(&[-1]));
        let total = self.op("Size", &[x]);
        let (zero, one) = (self.make.integer(0), self.make.integer(1));
        let numbers = self.op("Range", &[zero, total, one]);
        let numbers = self.with_zeros("Reshape", numbers, shape);
        let before = self.make.made.len();
        self.make.paste(Piece::new(self.make.g, self.node_here()), &mut HashMap::new());
        let copy = self.make.made[before];
        self.make.g.nodes[copy].inputs[0] = Some(numbers);
        let Some(places) = self.make.g.nodes[copy].outputs.get(k).copied().flatten() else {
            return self.error("its result has no places").fail();
        };
        Ok(self.scattered(d, places, x, flat, shape))
    }
    /// Adds `d` to the elements with indices `places` of a zero tensor shaped like `x`.
    pub(super) fn scattered(
        &mut self,
        d: Value,
        places: Value,
        x: Value,
        flat: Value,
        shape: Value,
    ) -> Value {
        let zeros = self.filled(x, 0.0);
        let (zeros, places, d) = (
            self.op("Reshape", &[zeros, flat]),
            self.op("Reshape", &[places, flat]),
            self.op("Reshape", &[d, flat]),
        );
        let sum = self.make.with(
            "ScatterElements",
            vec![("reduction", AttrValue::String(b"add".to_vec()))],
            &[zeros, places, d],
        );
        self.with_zeros("Reshape", sum, shape)
    }
    /// The node being differentiated.
    fn node_here(&self) -> crate::graph::Node {
        let def = self.node.outputs.iter().flatten().next().map(|v| &self.make.g.values[*v].def);
        match def {
            Some(Def::Node(n, _)) => *n,
            _ => crate::graph::Node::from_u32(0),
        }
    }
    pub(super) fn concatenated(&mut self) -> Result<Parts> {
        let d = self.d();
        let axis = self.int("axis", 1);
        let rank = self.make.dims(self.y(0))?.len() as i64;
        let at = from_end(axis, rank);
        let n = self.node.inputs.len();
        let mut sizes = vec![];
        for i in 0..n {
            let x = self.x(i);
            sizes.push(self.make.sizes(x, at, at + 1));
        }
        let sizes = self.make.with("Concat", vec![("axis", AttrValue::Int(0))], &sizes);
        let parts =
            self.make.node("Split", vec![("axis", AttrValue::Int(at))], vec![Some(d), Some(sizes)], n);
        Ok(parts.into_iter().map(Some).collect())
    }
    /// Concatenates the adjoints of a Split's parts, with zeros for unused ones.
    pub(super) fn joined(&mut self) -> Value {
        let mut parts = vec![];
        for k in 0..self.node.outputs.len() {
            let part = match self.dy.get(k).copied().flatten() {
                Some(d) => d,
                None => {
                    let y = self.y(k);
                    self.filled(y, 0.0)
                }
            };
            parts.push(part);
        }
        let axis = self.int("axis", 0);
        self.make.with("Concat", vec![("axis", AttrValue::Int(axis))], &parts)
    }
    /// The dimensions that a reduction sums over.
    fn reduced_axes(&self, rank: usize) -> Result<Vec<i64>> {
        let list = match self.node.ints("axes") {
            Some(a) => a,
            None if self.has(1) => match self.known_ints(1) {
                Some(a) => a,
                None => return self.error("its axes are only known at run time").fail(),
            },
            None => vec![],
        };
        if list.is_empty() {
            return Ok(if self.int("noop_with_empty_axes", 0) != 0 {
                vec![]
            } else {
                (0..rank as i64).collect()
            });
        }
        Ok(list.into_iter().map(|a| from_end(a, rank as i64)).collect())
    }
    pub(super) fn reduced(&mut self) -> Result<Value> {
        let (mut d, x, mut y) = (self.d(), self.x(0), self.y(0));
        let rank = self.make.dims(x)?.len();
        let axes = self.reduced_axes(rank)?;
        if self.int("keepdims", 1) == 0 && !axes.is_empty() {
            let list = self.make.ints(&axes);
            (d, y) = (self.op("Unsqueeze", &[d, list]), self.op("Unsqueeze", &[y, list]));
        }
        let name = self.name();
        if name == "ReduceMean" {
            return Ok(self.averaged(d, x, y));
        }
        let Some((_, even, rule)) = REDUCTIONS.iter().find(|r| r.0 == name) else {
            // Of ReduceMax and ReduceMin: the elements that are equal to the result share its adjoint.
            let hit = self.op("Equal", &[x, y]);
            let elem = self.make.elem(x);
            let ones = self.make.cast(hit, ElemType::Bool, elem);
            let n = self.summed(ones, &axes);
            d = self.op("Div", &[d, n]);
            return Ok(self.mul(d, ones));
        };
        let d = self.formula(*rule, d, [x, x], y);
        if !even {
            return Ok(d);
        }
        let shape = self.shape(x);
        Ok(self.op("Expand", &[d, shape]))
    }
    pub(super) fn softmax(&mut self) -> Result<Value> {
        let (d, x, y) = (self.d(), self.x(0), self.y(0));
        let rank = self.make.dims(x)?.len() as i64;
        let axis = self.int("axis", if self.since() >= 13 { -1 } else { 1 });
        let axis = from_end(axis, rank);
        // The first versions flatten the dimensions from the axis on.
        let axes: Vec<i64> = if self.since() >= 13 { vec![axis] } else { (axis..rank).collect() };
        if self.name() == "Softmax" {
            let both = self.mul(d, y);
            let sum = self.summed(both, &axes);
            let rest = self.op("Sub", &[d, sum]);
            return Ok(self.mul(y, rest));
        }
        let sum = self.summed(d, &axes);
        let p = self.op("Exp", &[y]);
        let p = self.mul(p, sum);
        Ok(self.op("Sub", &[d, p]))
    }
    /// True if operand `i` is omitted or known to be `v`.
    pub(super) fn absent_or(&self, i: usize, v: i64) -> bool {
        let given = self.node.inputs.get(i).copied().flatten();
        given.is_none_or(|x| match &self.make.g.values[x].known {
            Known::Const(c) => c.to_i64s().is_some_and(|l| l == [v]),
            _ => false,
        })
    }
}
