//! Composite nodes: shape inference replaces such a node by ordinary nodes, which are then inferred instead.
//!
//! | node | becomes |
//! |---|---|
//! | FlexAttention | its contractions, softmax and modifiers ([`flex`]) |
//! | Gradient | the backward pass of the graph it names ([`gradient`]) |
//! | Scan version 8 | a Scan over the batch with a Scan over the sequence in its body ([`batched`]) |
//! | operators of com.microsoft that are compositions of ONNX operators | those ([`contrib`]) |
//! | If with a known condition | the branch ([`branches`]) |
//! | arithmetic operators on complex numbers | operators on their parts ([`complex`]) |
//!
//! The expansion depends on the types of the operands, which are known at this point. Bodies of loops are
//! inferred several times, until the sizes of carried values settle, so an expansion inside them must be
//! valid for any sizes.

mod batched;
pub(super) mod branches;
pub(super) mod complex;
mod contrib;
mod flex;
mod formula;
mod gradient;
mod quantized_lstm;

use crate::diag::{Failure, Origin, Result};
use crate::graph::{Def, Graph, Node, NodeData, Value, ValueData};
use crate::ops::bundle::Bundle;
use crate::ops::composite::Composite;
use crate::ops::control::Control;
use crate::ops::{self, AttrValue, Attrs, Known, Op, Operand, Schema};
use crate::sym::{Dim, SymTable};
use crate::tensor::{ConstData, ElemType, TensorType};
use std::cell::OnceCell;
use std::collections::HashMap;
use std::sync::Arc;

/// The nodes that replace `n`, in order; `None` if it is kept. `once`: the graph is inferred once.
pub(super) fn expand(
    g: &mut Graph,
    n: Node,
    operands: &[Option<Operand>],
    syms: &SymTable,
    once: bool,
) -> Result<Option<Vec<Node>>> {
    if complex::applies(&g.nodes[n], operands) {
        return complex::expand(g, n).map(Some);
    }
    match g.nodes[n].op.clone() {
        Op::Composite(Composite::FlexAttention(a)) => flex::expand(g, n, &a, syms, once).map(Some),
        Op::Composite(Composite::Gradient(a)) => gradient::expand(g, n, a, syms, once).map(Some),
        Op::Control(Control::Scan(s)) if s.batched => batched::expand(g, n, &s).map(Some),
        Op::Contrib(_) if g.nodes[n].schema.name == "DynamicQuantizeLSTM" => {
            quantized_lstm::expand(g, n).map(Some)
        }
        Op::Contrib(_) => contrib::expand(g, n, operands).map(Some),
        Op::Control(Control::If { .. }) if once => branches::inline(g, n, operands),
        _ => Ok(None),
    }
}

/// A builder of nodes that replace another one. The first failure is kept and reported by [`Make::finish`],
/// so that an expansion reads as the list of its nodes; values made after a failure stand for nothing.
struct Make<'a> {
    g: &'a mut Graph,
    origin: Origin,
    /// Prefix of the names of new values.
    prefix: String,
    made: Vec<Node>,
    failure: OnceCell<Failure>,
}

/// A node with its results' data.
struct Piece {
    node: NodeData,
    results: Vec<Option<ValueData>>,
}

impl Piece {
    fn new(g: &Graph, n: Node) -> Piece {
        let node = g.nodes[n].clone();
        let results = node.outputs.iter().map(|v| v.map(|v| g.values[v].clone())).collect();
        Piece { node, results }
    }
}

/// The properties of a new node except its operator.
struct NodeSpec {
    attrs: Vec<(String, AttrValue)>,
    inputs: Vec<Option<Value>>,
    /// Number of results.
    outputs: usize,
    subgraphs: Vec<(String, Graph)>,
}

impl NodeSpec {
    fn new(inputs: Vec<Option<Value>>, outputs: usize) -> NodeSpec {
        NodeSpec { attrs: vec![], inputs, outputs, subgraphs: vec![] }
    }
    fn attrs(self, attrs: Vec<(String, AttrValue)>) -> NodeSpec {
        NodeSpec { attrs, ..self }
    }
    fn graph(mut self, name: &str, graph: Graph) -> NodeSpec {
        self.subgraphs.push((name.to_owned(), graph));
        self
    }
}

/// A value of a new body: an input or a captured value.
fn stand_in(g: &mut Graph, name: String, def: Def) -> Value {
    g.values.push(ValueData { name, ty: None, declared: None, known: Known::No, def })
}

impl<'a> Make<'a> {
    /// A builder for the replacement of `n`. New values are named after the first result of `n`.
    fn at(g: &'a mut Graph, n: Node) -> Make<'a> {
        let node = &g.nodes[n];
        let prefix =
            node.outputs.iter().flatten().next().map(|v| g.values[*v].name.clone()).unwrap_or_default();
        let origin = node.origin.clone();
        Make::within(g, origin, prefix)
    }
    /// A builder of nodes of a graph that its caller completes.
    fn within(g: &'a mut Graph, origin: Origin, prefix: String) -> Make<'a> {
        Make { g, origin, prefix, made: vec![], failure: OnceCell::new() }
    }
    /// The nodes, unless one could not be made.
    fn finish(self) -> Result<Vec<Node>> {
        self.failure.into_inner().map_or(Ok(self.made), Err)
    }
    /// The failure of one step, or the first one that was kept, which comes before it.
    fn check<T>(&mut self, step: Result<T>) -> Result<T> {
        self.failure.take().map_or(step, Err)
    }
    /// Keeps a failure, if it is the first one.
    fn fail(&self, e: impl Into<Failure>) {
        // An error here says that there is an earlier failure.
        let _ = self.failure.set(e.into());
    }
    /// Substitutes for the results of a node that failed.
    fn failed(&self, e: Failure, outputs: usize) -> Vec<Value> {
        self.fail(e);
        vec![Value::from_u32(0); outputs]
    }
    /// The value, or a substitute for one that is missing, which is a failure.
    fn need(&self, v: Option<Value>, otherwise: impl FnOnce() -> Failure) -> Value {
        v.unwrap_or_else(|| {
            self.fail(otherwise());
            Value::from_u32(0)
        })
    }
    fn value(&mut self, name: String, def: Def) -> Value {
        stand_in(self.g, name, def)
    }
    /// Adds a node of the newest version of an ai.onnx operator, with `outputs` results.
    fn node(
        &mut self,
        name: &str,
        attrs: Vec<(&str, AttrValue)>,
        inputs: Vec<Option<Value>>,
        outputs: usize,
    ) -> Vec<Value> {
        let attrs = attrs.into_iter().map(|(n, v)| (n.to_owned(), v)).collect();
        self.add(name, NodeSpec::new(inputs, outputs).attrs(attrs))
    }
    /// As [`Make::node`], with subgraphs.
    fn add(&mut self, name: &str, spec: NodeSpec) -> Vec<Value> {
        self.newest("", name, spec)
    }
    /// Adds a node of a com.microsoft operator.
    fn contrib(
        &mut self,
        name: &str,
        attrs: Vec<(String, AttrValue)>,
        inputs: Vec<Option<Value>>,
        outputs: usize,
    ) -> Vec<Value> {
        self.newest("com.microsoft", name, NodeSpec::new(inputs, outputs).attrs(attrs))
    }
    fn newest(&mut self, domain: &str, name: &str, spec: NodeSpec) -> Vec<Value> {
        let newest = ops::schema::newest(domain).unwrap_or(1);
        match ops::find(domain, name, newest) {
            Ok(schema) => self.parsed(schema, spec),
            Err(_) => self.failed(Failure::bug("expand", format!("no operator {name}")), spec.outputs),
        }
    }
    /// Adds a node of a specific version of an operator.
    fn parsed(&mut self, schema: &'static Schema, spec: NodeSpec) -> Vec<Value> {
        let names = spec.subgraphs.iter().map(|(n, _)| n.clone()).collect();
        let arity = (spec.inputs.len(), spec.outputs);
        let a = Attrs::new(schema, arity, self.origin.clone(), spec.attrs.clone(), names);
        match ops::read(a) {
            Ok(op) => self.place(op, schema, spec),
            Err(e) => self.failed(e, spec.outputs),
        }
    }
    /// Adds a node of an operator on the parts of sequences and optionals.
    fn bundle(&mut self, op: Bundle, inputs: Vec<Option<Value>>, outputs: usize) -> Vec<Value> {
        match op.schema() {
            Ok(schema) => self.place(Op::Bundle(op), schema, NodeSpec::new(inputs, outputs)),
            Err(e) => self.failed(e, outputs),
        }
    }
    fn place(&mut self, op: Op, schema: &'static Schema, spec: NodeSpec) -> Vec<Value> {
        let NodeSpec { attrs, inputs, outputs, subgraphs } = spec;
        let (name, n) = (schema.name, self.g.nodes.next_key());
        let results: Vec<Value> = (0..outputs)
            .map(|k| {
                self.value(
                    format!("{}.{}{}", self.prefix, name.to_lowercase(), n.as_u32()),
                    Def::Node(n, k as u32),
                )
            })
            .collect();
        let outputs = results.iter().map(|v| Some(*v)).collect();
        self.g.nodes.push(NodeData {
            op,
            schema,
            attrs,
            inputs,
            outputs,
            subgraphs,
            origin: self.origin.clone(),
        });
        self.made.push(n);
        results
    }
    /// Adds a node with one result.
    fn with(&mut self, name: &str, attrs: Vec<(&str, AttrValue)>, inputs: &[Value]) -> Value {
        self.node(name, attrs, inputs.iter().map(|v| Some(*v)).collect(), 1)[0]
    }
    /// Adds a node with one result and without attributes.
    fn op(&mut self, name: &str, inputs: &[Value]) -> Value {
        self.with(name, vec![], inputs)
    }
    /// A constant list of integers.
    fn ints(&mut self, v: &[i64]) -> Value {
        let name = format!("{}.ints", self.prefix);
        self.g.add_const(name, Arc::new(ConstData::from_i64s(v)))
    }
    /// A constant integer.
    fn integer(&mut self, v: i64) -> Value {
        let name = format!("{}.int", self.prefix);
        self.g.add_const(name, Arc::new(ConstData::i64s_shaped(vec![], &[v])))
    }
    /// A constant of a floating-point type.
    fn number(&mut self, elem: ElemType, v: f64) -> Value {
        let name = format!("{}.number", self.prefix);
        if elem == ElemType::F64
            && let Some(c) = ConstData::new(elem, vec![], v.to_le_bytes().to_vec())
        {
            return self.g.add_const(name, Arc::new(c));
        }
        let v = self.g.add_const(name, Arc::new(ConstData::f32s(vec![], &[v as f32])));
        self.cast(v, ElemType::F32, elem)
    }
    /// Adds a conversion unless the types are equal.
    fn cast(&mut self, v: Value, from: ElemType, to: ElemType) -> Value {
        if from == to { v } else { self.with("Cast", vec![("to", AttrValue::Int(to as i64))], &[v]) }
    }
    /// The sizes `from..to` of a tensor as a list.
    fn sizes(&mut self, v: Value, from: i64, to: i64) -> Value {
        self.with("Shape", vec![("start", AttrValue::Int(from)), ("end", AttrValue::Int(to))], &[v])
    }
    /// Replaces the definition of `old`, a result of the replaced node, by `new`.
    fn define(&mut self, old: Value, new: Value) {
        let v = self.op("Identity", &[new]);
        if self.failure.get().is_none()
            && let Def::Node(n, _) = self.g.values[v].def
        {
            self.g.nodes[n].outputs = vec![Some(old)];
            self.g.values[old].def = Def::Node(n, 0);
            self.g.values[v].def = Def::Unused;
        }
    }
    /// As [`Make::define`], for several results, as far as they are used.
    fn define_all(&mut self, old: &[Option<Value>], new: Vec<Value>) {
        for (old, new) in old.iter().zip(new) {
            if let Some(old) = old {
                self.define(*old, new);
            }
        }
    }
    /// Adds a copy of a node. `map` gives the operands in this graph and receives the results; operands that
    /// it does not contain are values of this graph.
    fn paste(&mut self, piece: Piece, map: &mut HashMap<Value, Value>) {
        let Piece { mut node, results } = piece;
        let here = |v: &mut Value| *v = map.get(v).copied().unwrap_or(*v);
        node.inputs.iter_mut().flatten().for_each(here);
        for (_, sub) in &mut node.subgraphs {
            sub.captures.iter_mut().for_each(|(o, _)| here(o));
        }
        let n = self.g.nodes.next_key();
        for (k, (v, data)) in node.outputs.iter_mut().zip(results).enumerate() {
            if let (Some(v), Some(d)) = (v.as_mut(), data) {
                let name = format!("{}/{}", self.prefix, d.name);
                let new = self.g.values.push(ValueData {
                    name,
                    ty: None,
                    known: Known::No,
                    def: Def::Node(n, k as u32),
                    ..d
                });
                map.insert(*v, new);
                *v = new;
            }
        }
        self.g.nodes.push(node);
        self.made.push(n);
    }
    /// Adds the nodes of a graph, applied to `arguments`, and returns its results.
    fn inline(&mut self, sub: &Graph, arguments: &[Value]) -> Vec<Value> {
        let mut map: HashMap<Value, Value> = sub.captures.iter().map(|(o, v)| (*v, *o)).collect();
        map.extend(sub.inputs.iter().copied().zip(arguments.iter().copied()));
        for (v, d) in &sub.values {
            if let Def::Const(c) = &d.def {
                map.insert(v, self.g.add_const(format!("{}/{}", self.prefix, d.name), c.clone()));
            }
        }
        for n in &sub.order {
            self.paste(Piece::new(sub, *n), &mut map);
        }
        sub.outputs.iter().filter_map(|v| map.get(v).copied()).collect()
    }
    /// The type of a tensor. Fails after a failure as well, so that no type is read of its substitutes.
    fn tensor(&self, v: Value) -> Result<&TensorType> {
        let d = &self.g.values[v];
        d.ty.as_ref()
            .and_then(|t| t.as_tensor())
            .filter(|_| self.failure.get().is_none())
            .ok_or_else(|| Failure::bug("expand", format!("\"{}\" is no tensor with a type", d.name)))
    }
    fn dims(&self, v: Value) -> Result<Vec<Dim>> {
        Ok(self.tensor(v)?.dims.clone())
    }
    fn elem(&self, v: Value) -> ElemType {
        self.typed(v).map_or(ElemType::F32, |t| t.elem)
    }
    /// The sizes of a tensor, if all are known.
    fn known_dims(&self, v: Value) -> Option<Vec<i64>> {
        self.typed(v)?.dims.iter().map(|d| d.as_const()).collect()
    }
    fn typed(&self, v: Value) -> Option<&TensorType> {
        self.tensor(v).map_err(|e| self.fail(e)).ok()
    }
}
