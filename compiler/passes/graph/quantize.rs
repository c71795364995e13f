//! integer_quantized: `DequantizeLinear -> operator -> QuantizeLinear` becomes the operator's integer form.
//!
//! Exporters write quantized models as float operators between pairs of quantizing nodes. If all scales and
//! zero points are constants:
//!
//! * Conv, MatMul and Gemm become QLinearConv, QLinearMatMul and QGemm: integer contractions whose result is
//!   requantized when it is stored. A following Relu or Clip becomes a clamp of the quantized result, which
//!   is usually redundant because the quantized type has the range of the activation.
//! * Add, Mul, Concat, Sigmoid, LeakyRelu and average pooling become their QLinear forms, which read and
//!   write quantized tensors.
//! * Operators that only move values or select the largest work on the quantized tensor itself, if both sides
//!   are quantized alike.
//!
//! The sums are exact while floats round, so a result may differ by one quantization step from that of the
//! float operators. Cases that could differ by more are not rewritten: sums that may exceed 32 bits, float
//! biases that are coarse in steps of the product's scale, biases with another scale.

use crate::diag::Result;
use crate::graph::{Def, Graph, Model, Node, NodeData, Value, ValueData};
use crate::ops::from_end;
use crate::ops::{self, AttrValue, Attrs, Known};
use crate::tensor::{ConstData, ElemType, TensorType, ValueType};
use std::sync::Arc;

/// Operators whose results are unchanged elements of their first input.
const MOVERS: &[&str] = &[
    "MaxPool",
    "GlobalMaxPool",
    "Transpose",
    "Reshape",
    "Flatten",
    "Squeeze",
    "Unsqueeze",
    "Identity",
    "Slice",
    "DepthToSpace",
    "SpaceToDepth",
    "Expand",
    "Tile",
    "Gather",
];

/// Runs the pass.
pub fn run(model: &mut Model) -> Result<()> {
    let opset = model.opsets.iter().find(|o| o.0.is_empty()).map_or(1, |o| o.1);
    let mut contrib = false;
    for n in model.graph.order.clone() {
        let mut cx = Rewrite { g: &mut model.graph, opset, made: vec![] };
        if cx.rewrite(n).is_none() {
            continue;
        }
        let made = cx.made;
        contrib |= made.iter().any(|m| !model.graph.nodes[*m].schema.domain.is_empty());
        if let Some(i) = model.graph.order.iter().position(|x| *x == n) {
            model.graph.order.splice(i..=i, made);
        }
    }
    if contrib && !model.opsets.iter().any(|o| o.0 == MS) {
        model.opsets.push((MS.into(), 1));
    }
    super::dead::run(model)
}

const MS: &str = "com.microsoft";

struct Rewrite<'a> {
    g: &'a mut Graph,
    opset: i64,
    /// Nodes that replace the quantizing node, in order.
    made: Vec<Node>,
}

/// A tensor with its constant scale and zero point, as graph values and as numbers.
#[derive(Clone)]
struct Quantized {
    x: Value,
    scale: Value,
    zero: Option<Value>,
    elem: ElemType,
    scales: Vec<f64>,
    zeros: Vec<i64>,
    /// The axis of the scales, if there are several.
    axis: Option<usize>,
}

/// A node to be made in place of `like`.
struct Plan<'a> {
    domain: &'static str,
    name: &'a str,
    like: &'a NodeData,
    attrs: Vec<(String, AttrValue)>,
    inputs: Vec<Option<Value>>,
}

/// Limits of a Relu or Clip, in real numbers.
type Limits = (f64, f64);

impl Rewrite<'_> {
    /// Rewrites the pattern that ends in node `n`; `None` if there is no pattern.
    fn rewrite(&mut self, n: Node) -> Option<()> {
        let q = self.g.nodes[n].clone();
        if q.schema.name != "QuantizeLinear" || !q.schema.domain.is_empty() {
            return None;
        }
        let y = self.params(&q, true)?;
        if y.axis.is_some() {
            return None;
        }
        let (mut op, mut limits) = (self.only_producer(y.x)?, None);
        if let Some(l) = self.activation(&op) {
            (limits, op) = (Some(l), self.only_producer(*op.inputs.first()?.as_ref()?)?);
        }
        if !op.schema.domain.is_empty() || !op.subgraphs.is_empty() {
            return None;
        }
        let out = (*q.outputs.first()?)?;
        match op.schema.name {
            "Conv" => self.conv(&op, &y, limits, out),
            "MatMul" => self.matmul(&op, &y, limits, out),
            "Gemm" => self.gemm(&op, &y, limits, out),
            _ if limits.is_some() => None,
            "Add" | "Mul" => self.binary(&op, &y, out),
            "Sigmoid" | "LeakyRelu" | "AveragePool" | "GlobalAveragePool" => self.unary(&op, &y, out),
            "Concat" => self.concat(&op, &y, out),
            name if MOVERS.contains(&name) => self.mover(&op, &y, out),
            _ => None,
        }
    }

    // ---- Analysis ----

    fn tensor(&self, v: Value) -> Option<&TensorType> {
        self.g.values[v].ty.as_ref()?.as_tensor()
    }
    fn constant(&self, v: Value) -> Option<Arc<ConstData>> {
        match (&self.g.values[v].def, &self.g.values[v].known) {
            (Def::Const(c), _) | (_, Known::Const(c)) => Some(c.clone()),
            _ => None,
        }
    }
    /// The node that computes a value, if the value has no other use.
    fn only_producer(&self, v: Value) -> Option<NodeData> {
        let Def::Node(n, 0) = self.g.values[v].def else { return None };
        let uses =
            self.g.order.iter().flat_map(|n| &self.g.nodes[*n].inputs).flatten().filter(|u| **u == v).count();
        let captured = self
            .g
            .order
            .iter()
            .flat_map(|n| &self.g.nodes[*n].subgraphs)
            .any(|(_, s)| s.captures.iter().any(|c| c.0 == v));
        let others = self.g.nodes[n].outputs.iter().skip(1).flatten().next().is_some();
        (uses == 1 && !captured && !others && !self.g.outputs.contains(&v)).then(|| self.g.nodes[n].clone())
    }
    /// Operand, scale and zero point of a quantizing node (`result`: the type is that of its output) or of a
    /// dequantizing one. Scales are constant floats. The type has 8 bits; for dequantizing it may be int32,
    /// for a bias.
    fn params(&self, q: &NodeData, result: bool) -> Option<Quantized> {
        let (x, scale, zero) =
            ((*q.inputs.first()?)?, (*q.inputs.get(1)?)?, q.inputs.get(2).copied().flatten());
        let other = ["block_size", "precision"].iter().any(|a| q.int(a).is_some_and(|v| v != 0));
        let elem = if result { self.tensor((*q.outputs.first()?)?)?.elem } else { self.tensor(x)?.elem };
        let narrow = matches!(elem, ElemType::I8 | ElemType::U8) || !result && elem == ElemType::I32;
        let float = if result { self.tensor(x)?.elem } else { self.tensor((*q.outputs.first()?)?)?.elem };
        let c = self.constant(scale)?;
        if other || !narrow || float != ElemType::F32 || c.elem() != ElemType::F32 {
            return None;
        }
        let scales = c.to_f64s()?;
        let zeros = match zero {
            Some(z) => self.constant(z)?.to_i64s()?,
            None => vec![0; scales.len()],
        };
        if scales.is_empty()
            || zeros.len() != scales.len()
            || scales.iter().any(|s| !s.is_normal() || *s <= 0.0)
        {
            return None;
        }
        let rank = self.tensor(x)?.rank() as i64;
        let axis = if scales.len() == 1 { None } else { Some(q.int("axis").unwrap_or(1)) };
        let axis = axis.map(|a| usize::try_from(from_end(a, rank)).unwrap_or(usize::MAX));
        Some(Quantized { x, scale, zero, elem, scales, zeros, axis })
    }
    /// The quantized form of a value that a DequantizeLinear computes.
    fn dequantized(&self, v: Option<&Option<Value>>) -> Option<Quantized> {
        let Def::Node(n, 0) = self.g.values[(*v?)?].def else { return None };
        let node = &self.g.nodes[n];
        if node.schema.name != "DequantizeLinear" || !node.schema.domain.is_empty() {
            return None;
        }
        self.params(node, false)
    }
    /// As [`Rewrite::dequantized`], for 8 bits and a single scale.
    fn whole(&self, v: Option<&Option<Value>>) -> Option<Quantized> {
        self.dequantized(v).filter(|x| x.axis.is_none() && x.elem != ElemType::I32)
    }
    /// The limits of a Relu or Clip with constant bounds.
    fn activation(&self, op: &NodeData) -> Option<Limits> {
        let bound = |i: usize, name: &str, open: f64| -> Option<f64> {
            if let Some(Some(v)) = op.inputs.get(i) {
                return self.constant(*v)?.scalar();
            }
            Some(op.float(name).map_or(open, f64::from))
        };
        match (op.schema.domain, op.schema.name) {
            ("", "Relu") => Some((0.0, f64::INFINITY)),
            ("", "Clip") => Some((bound(1, "min", f64::NEG_INFINITY)?, bound(2, "max", f64::INFINITY)?))
                .filter(|(lo, hi)| lo <= hi),
            _ => None,
        }
    }

    // ---- Construction ----

    fn name_of(&self, v: Value) -> String {
        self.g.values[v].name.clone()
    }
    fn zero(&mut self, q: &Quantized) -> Value {
        if let Some(z) = q.zero {
            return z;
        }
        let name = format!("{}.zero_point.{}", self.name_of(q.x), self.g.values.len());
        let data = ConstData::new(q.elem, vec![], vec![0u8]).unwrap_or_else(|| ConstData::from_i64s(&[]));
        self.g.add_const(name, Arc::new(data))
    }
    fn three(&mut self, q: &Quantized) -> [Option<Value>; 3] {
        let z = self.zero(q);
        [Some(q.x), Some(q.scale), Some(z)]
    }
    /// A new value with the type of another.
    fn value_like(&mut self, v: Value, suffix: &str) -> Value {
        let d = &self.g.values[v];
        let name = format!("{}.{suffix}.{}", d.name, self.g.values.len());
        let ty = d.ty.clone();
        self.g.values.push(ValueData { name, ty, declared: None, def: Def::Capture, known: Known::No })
    }
    /// Makes a node that computes `out`; `None` if the operator does not accept these attributes or types.
    fn node(&mut self, plan: Plan, out: Value) -> Option<()> {
        let Plan { domain, name, like, attrs, inputs } = plan;
        let schema = ops::find(domain, name, if domain.is_empty() { self.opset } else { 1 }).ok()?;
        let types: Vec<Option<&ValueType>> =
            inputs.iter().map(|v| v.and_then(|v| self.g.values[v].ty.as_ref())).collect();
        schema.check_types(&types).ok()?;
        let a = Attrs::new(schema, (inputs.len(), 1), like.origin.clone(), attrs.clone(), vec![]);
        let op = ops::read(a).ok()?;
        let n = self.g.nodes.push(NodeData {
            op,
            schema,
            attrs,
            inputs,
            outputs: vec![Some(out)],
            subgraphs: vec![],
            origin: like.origin.clone(),
        });
        self.g.values[out].def = Def::Node(n, 0);
        self.made.push(n);
        Some(())
    }
    /// The bias as int32 in steps of `sx * sw`, if it has that form or is close enough to it.
    fn bias(
        &mut self,
        v: Option<&Option<Value>>,
        sx: f64,
        sw: &[f64],
        sy: f64,
        terms: i64,
    ) -> Option<Option<Value>> {
        // The magnitude of each term is at most 255 * 255; the sum must fit 32 bits.
        let most = terms.checked_mul(255 * 255)?;
        let Some(Some(v)) = v else { return (most <= i64::from(i32::MAX)).then_some(None) };
        let step = |i: usize| sx * sw[if sw.len() == 1 { 0 } else { i }];
        let (value, ints) = match self.dequantized(Some(&Some(*v))) {
            Some(b) => {
                let ints = self.constant(b.x)?.to_i64s()?;
                let of = |i: usize| b.scales[if b.scales.len() == 1 { 0 } else { i }];
                let same = (0..ints.len()).all(|i| (of(i) / step(i) - 1.0).abs() < 1e-5);
                if b.elem != ElemType::I32
                    || b.zeros.iter().any(|z| *z != 0)
                    || !same
                    || b.axis.is_some_and(|a| a != 0)
                    || sw.len() > 1 && sw.len() != ints.len()
                {
                    return None;
                }
                (b.x, ints)
            }
            None => {
                let c = self.constant(*v)?;
                let floats = c
                    .to_f64s()
                    .filter(|f| f.iter().all(|f| f.is_finite()) && (sw.len() == 1 || sw.len() == f.len()))?;
                // Rounding the bias to a step of the product must not affect the result.
                if c.elem() != ElemType::F32 || (0..floats.len()).any(|i| step(i) > sy / 64.0) {
                    return None;
                }
                let ints: Vec<i64> =
                    floats.iter().enumerate().map(|(i, b)| (b / step(i)).round() as i64).collect();
                if ints.iter().any(|b| i32::try_from(*b).is_err()) {
                    return None;
                }
                let data: Vec<u8> = ints.iter().flat_map(|b| (*b as i32).to_le_bytes()).collect();
                let name = format!("{}.quantized.{}", self.name_of(*v), self.g.values.len());
                (
                    self.g.add_const(name, Arc::new(ConstData::new(ElemType::I32, c.dims().to_vec(), data)?)),
                    ints,
                )
            }
        };
        let fits = ints.iter().all(|b| b.saturating_abs().saturating_add(most) <= i64::from(i32::MAX));
        fits.then_some(Some(value))
    }
    /// The contraction, followed by the remaining part of the activation.
    fn contraction(&mut self, plan: Plan, y: &Quantized, limits: Option<Limits>, out: Value) -> Option<()> {
        let like = plan.like;
        let (lo, hi) = if y.elem == ElemType::U8 { (0, 255) } else { (-128, 127) };
        let code = |v: f64| {
            ((v / y.scales[0]).round_ties_even() + y.zeros[0] as f64).clamp(lo as f64, hi as f64) as i64
        };
        let clamps: Vec<(&str, i64)> = limits.map_or(vec![], |(a, b)| {
            [("Max", code(a)), ("Min", code(b))]
                .into_iter()
                .filter(|(n, c)| *c != if *n == "Max" { lo } else { hi })
                .collect()
        });
        // Max and Min accept integers since version 12.
        if !clamps.is_empty() && self.opset < 12 {
            return None;
        }
        let mut result = if clamps.is_empty() { out } else { self.value_like(out, "unclamped") };
        self.node(plan, result)?;
        for (i, (op, c)) in clamps.iter().enumerate() {
            let to = if i + 1 == clamps.len() { out } else { self.value_like(out, "clamped") };
            let data = ConstData::new(y.elem, vec![], vec![*c as u8])?;
            let name = format!("{}.limit.{}", self.name_of(out), self.g.values.len());
            let limit = self.g.add_const(name, Arc::new(data));
            self.node(
                Plan { domain: "", name: op, like, attrs: vec![], inputs: vec![Some(result), Some(limit)] },
                to,
            )?;
            result = to;
        }
        Some(())
    }
    fn conv(&mut self, op: &NodeData, y: &Quantized, limits: Option<Limits>, out: Value) -> Option<()> {
        let (x, w) = (self.whole(op.inputs.first())?, self.dequantized(op.inputs.get(1))?);
        if w.elem == ElemType::I32 || w.axis.is_some_and(|a| a != 0) {
            return None;
        }
        let terms = self.tensor(w.x)?.dims[1..].iter().try_fold(1i64, |n, d| n.checked_mul(d.as_const()?))?;
        let bias = self.bias(op.inputs.get(2), x.scales[0], &w.scales, y.scales[0], terms)?;
        let (a, b, zy) = (self.three(&x), self.channels(&w)?, self.zero(y));
        let inputs = a.into_iter().chain(b).chain([Some(y.scale), Some(zy)]).chain(bias.map(Some)).collect();
        self.contraction(
            Plan { domain: "", name: "QLinearConv", like: op, attrs: op.attrs.clone(), inputs },
            y,
            limits,
            out,
        )
    }
    /// Weights with a zero point for each scale.
    fn channels(&mut self, w: &Quantized) -> Option<[Option<Value>; 3]> {
        if w.zero.is_some() || w.axis.is_none() {
            return Some(self.three(w));
        }
        let name = format!("{}.zero_point.{}", self.name_of(w.x), self.g.values.len());
        let data = ConstData::new(w.elem, vec![w.scales.len() as i64], vec![0u8; w.scales.len()])?;
        let z = self.g.add_const(name, Arc::new(data));
        Some([Some(w.x), Some(w.scale), Some(z)])
    }
    fn matmul(&mut self, op: &NodeData, y: &Quantized, limits: Option<Limits>, out: Value) -> Option<()> {
        let (a, b) = (self.whole(op.inputs.first())?, self.dequantized(op.inputs.get(1))?);
        let dims = self.tensor(b.x)?.dims.clone();
        if b.elem == ElemType::I32 || b.axis.is_some_and(|x| x != 1 || dims.len() != 2) {
            return None;
        }
        let terms = dims.get(dims.len().saturating_sub(2))?.as_const()?;
        self.bias(None, a.scales[0], &b.scales, y.scales[0], terms)?;
        let (ia, ib, zy) = (self.three(&a), self.channels(&b)?, self.zero(y));
        let inputs = ia.into_iter().chain(ib).chain([Some(y.scale), Some(zy)]).collect();
        self.contraction(
            Plan { domain: "", name: "QLinearMatMul", like: op, attrs: vec![], inputs },
            y,
            limits,
            out,
        )
    }
    fn gemm(&mut self, op: &NodeData, y: &Quantized, limits: Option<Limits>, out: Value) -> Option<()> {
        let one = |name: &str| {
            op.attrs.iter().all(|(n, v)| n != name || matches!(v, AttrValue::Float(f) if *f == 1.0))
        };
        let trans_b =
            op.attrs.iter().any(|(n, v)| n == "transB" && matches!(v, AttrValue::Int(i) if *i != 0));
        let (a, b) = (self.whole(op.inputs.first())?, self.dequantized(op.inputs.get(1))?);
        let (columns, depth) = if trans_b { (0, 1) } else { (1, 0) };
        if !one("alpha") || !one("beta") || b.elem == ElemType::I32 || b.axis.is_some_and(|x| x != columns) {
            return None;
        }
        let dims = self.tensor(b.x)?.dims.clone();
        // A bias of the rows has no separate scale.
        if let Some(Some(c)) = op.inputs.get(2)
            && self.tensor(*c)?.dims != vec![dims[columns]]
        {
            return None;
        }
        let bias =
            self.bias(op.inputs.get(2), a.scales[0], &b.scales, y.scales[0], dims[depth].as_const()?)?;
        let (ia, ib, zy) = (self.three(&a), self.channels(&b)?, self.zero(y));
        let inputs = ia.into_iter().chain(ib).chain([bias, Some(y.scale), Some(zy)]).collect();
        let attrs = op.attrs.iter().filter(|(n, _)| n.starts_with("trans")).cloned().collect();
        self.contraction(Plan { domain: MS, name: "QGemm", like: op, attrs, inputs }, y, limits, out)
    }
    fn binary(&mut self, op: &NodeData, y: &Quantized, out: Value) -> Option<()> {
        // Before version 7 broadcasting follows other rules.
        let (a, b) = (self.whole(op.inputs.first())?, self.whole(op.inputs.get(1))?);
        if op.schema.since < 7 {
            return None;
        }
        let inputs =
            [a, b, Quantized { x: out, ..y.clone() }].iter().flat_map(|q| self.three(q)).collect::<Vec<_>>();
        // The result has only a scale and a zero point.
        let inputs = inputs[..6].iter().chain(&inputs[7..]).copied().collect();
        self.node(
            Plan { domain: MS, name: &format!("QLinear{}", op.schema.name), like: op, attrs: vec![], inputs },
            out,
        )
    }
    fn unary(&mut self, op: &NodeData, y: &Quantized, out: Value) -> Option<()> {
        let x = self.whole(op.inputs.first())?;
        let (x, zy) = (self.three(&x), self.zero(y));
        let inputs = x.into_iter().chain([Some(y.scale), Some(zy)]).collect();
        self.node(
            Plan {
                domain: MS,
                name: &format!("QLinear{}", op.schema.name),
                like: op,
                attrs: op.attrs.clone(),
                inputs,
            },
            out,
        )
    }
    fn concat(&mut self, op: &NodeData, y: &Quantized, out: Value) -> Option<()> {
        let parts = op.inputs.iter().map(|v| self.whole(Some(v))).collect::<Option<Vec<_>>>()?;
        let zy = self.zero(y);
        let mut inputs = vec![Some(y.scale), Some(zy)];
        for p in &parts {
            inputs.extend(self.three(p));
        }
        self.node(Plan { domain: MS, name: "QLinearConcat", like: op, attrs: op.attrs.clone(), inputs }, out)
    }
    fn mover(&mut self, op: &NodeData, y: &Quantized, out: Value) -> Option<()> {
        let x = self.whole(op.inputs.first())?;
        if x.elem != y.elem || x.scales != y.scales || x.zeros != y.zeros {
            return None;
        }
        let inputs = [Some(x.x)].into_iter().chain(op.inputs.iter().skip(1).copied()).collect();
        self.node(Plan { domain: "", name: op.schema.name, like: op, attrs: op.attrs.clone(), inputs }, out)
    }
}
