//! The graph IR, on which the passes before lowering work. It contains neither protobuf nor loops.
//!
//! Entities live in tables and are named by numbers. Invariants, checked by [`verify`]:
//!
//! 1. `order` holds every live node once, and a node comes after the definitions of its inputs.
//! 2. Every value has one definition, and `def` says which; a node's outputs point back at it.
//! 3. Inputs and outputs of a node are within the operator's arity; a missing optional one is `None`.
//! 4. A subgraph's `captures` pair a value of the enclosing graph with the value that denotes it inside.
//! 5. After `infer_shapes` every value that a live node defines has a type.

pub mod dot;
pub mod print;
pub mod verify;

use crate::diag::Origin;
use crate::ops::{AttrValue, Known, Op, Schema};
use crate::sym::text::DimOption;
use crate::sym::{Condition, Sym, SymTable};
use crate::tensor::{ConstData, ElemType, ValueType};
use cranelift_entity::{PrimaryMap, entity_impl};
use std::sync::Arc;

/// A value.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Value(u32);
entity_impl!(Value, "v");

/// A node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Node(u32);
entity_impl!(Node, "n");

/// A whole model.
#[derive(Clone, Debug)]
pub struct Model {
    /// The main graph; model-local functions are inlined.
    pub graph: Graph,
    /// Symbols of the whole model, subgraphs included (one scope of dim_param names).
    pub syms: SymTable,
    /// Dim params that are arguments of the generated function, in order of first use in the inputs.
    pub dim_params: Vec<Sym>,
    /// Operator set versions by domain ("" is ai.onnx).
    pub opsets: Vec<(String, i64)>,
    /// IR version of the file.
    pub ir_version: i64,
    /// The file.
    pub origin: Origin,
    /// Producer, for reports.
    pub producer: String,
    /// Errors of the import. The graph contains only nodes without errors, and must not be compiled.
    pub errors: Vec<crate::diag::Error>,
    /// Warnings and notes of the import.
    pub warnings: Vec<crate::diag::Error>,
    /// Names of inner tensors that become outputs.
    pub taps: Vec<String>,
    /// Pairs of an output and the input whose memory it may share, by number (`--alias`).
    pub aliases: Vec<(usize, usize)>,
    /// `--dim` arguments for dimensions that are created by lowering: capacities.
    pub late_dims: Vec<(String, DimOption)>,
    /// External data files that were read, relative to the model's folder.
    pub external_files: Vec<String>,
}

/// A graph: the main one, or the body of a control-flow operator.
#[derive(Clone, Debug, Default)]
pub struct Graph {
    /// Its name in the file.
    pub name: String,
    /// Values.
    pub values: PrimaryMap<Value, ValueData>,
    /// Nodes, live or not.
    pub nodes: PrimaryMap<Node, NodeData>,
    /// Live nodes in execution order.
    pub order: Vec<Node>,
    /// Inputs, in signature order.
    pub inputs: Vec<Value>,
    /// Outputs, in signature order; a value may occur twice.
    pub outputs: Vec<Value>,
    /// Names of the outputs in the file (a folded output keeps its name).
    pub output_names: Vec<String>,
    /// Element types that the file declares for the outputs, even where it leaves their shapes open.
    pub output_elems: Vec<Option<ElemType>>,
    /// Subgraphs: (value of the enclosing graph, value in here).
    pub captures: Vec<(Value, Value)>,
    /// Subgraphs: conditions that inference could not prove. They are checked whenever the body runs.
    pub conditions: Vec<Condition>,
}

/// What defines a value.
#[derive(Clone, Debug)]
pub enum Def {
    /// Graph input number n.
    Input(u32),
    /// Output number k of a node.
    Node(Node, u32),
    /// Constant data: an initializer, a Constant node, or folded.
    Const(Arc<ConstData>),
    /// A value captured from the enclosing graph.
    Capture,
    /// No longer used.
    Unused,
}

/// A value.
#[derive(Clone, Debug)]
pub struct ValueData {
    /// Its name in the file (unique in the graph).
    pub name: String,
    /// Inferred type; for inputs the declared one.
    pub ty: Option<ValueType>,
    /// Type declared in the file for outputs and in value_info: a hint, checked against the inferred one.
    pub declared: Option<ValueType>,
    /// Definition.
    pub def: Def,
    /// What is known about its contents.
    pub known: Known,
}

/// A node.
#[derive(Clone, Debug)]
pub struct NodeData {
    /// Operator with its attributes.
    pub op: Op,
    /// The operator's schema: its name, the version in force, its types.
    pub schema: &'static Schema,
    /// Attributes as the file has them, for printing; graphs are in `subgraphs`.
    pub attrs: Vec<(String, AttrValue)>,
    /// Inputs; `None` where an optional one is left out.
    pub inputs: Vec<Option<Value>>,
    /// Outputs; `None` where an optional one is left out.
    pub outputs: Vec<Option<Value>>,
    /// Bodies of control-flow operators, with the attribute's name.
    pub subgraphs: Vec<(String, Graph)>,
    /// Where it comes from.
    pub origin: Origin,
}

/// Attributes as the file has them; `None` if the attribute is absent, or of another kind.
impl NodeData {
    /// An attribute of any kind.
    pub fn attr(&self, name: &str) -> Option<&AttrValue> {
        self.attrs.iter().find(|(n, _)| n == name).map(|(_, v)| v)
    }
    /// An integer.
    pub fn int(&self, name: &str) -> Option<i64> {
        if let Some(AttrValue::Int(v)) = self.attr(name) { Some(*v) } else { None }
    }
    /// A float.
    pub fn float(&self, name: &str) -> Option<f32> {
        if let Some(AttrValue::Float(v)) = self.attr(name) { Some(*v) } else { None }
    }
    /// Integers.
    pub fn ints(&self, name: &str) -> Option<Vec<i64>> {
        if let Some(AttrValue::Ints(v)) = self.attr(name) { Some(v.clone()) } else { None }
    }
    /// A string.
    pub fn text(&self, name: &str) -> Option<String> {
        if let Some(AttrValue::String(s)) = self.attr(name) {
            Some(String::from_utf8_lossy(s).into_owned())
        } else {
            None
        }
    }
}

/// Receives the name and contents of a constant, and may return replacement contents.
pub type Replace<'a> = dyn FnMut(&str, &Arc<ConstData>) -> Option<Arc<ConstData>> + 'a;

impl Model {
    /// Drops the declared types of outputs that are tensors.
    pub fn forget_output_types(&mut self) {
        for v in &self.graph.outputs {
            let declared = &mut self.graph.values[*v].declared;
            if declared.as_ref().is_some_and(|t| t.as_tensor().is_some()) {
                *declared = None;
            }
        }
    }
}

impl Graph {
    /// Constant data of a value.
    pub fn constant(&self, v: Value) -> Option<&Arc<ConstData>> {
        match &self.values[v].def {
            Def::Const(c) => Some(c),
            _ => None,
        }
    }
    /// The name of a node in messages: its own, or that of its first result.
    pub fn called(&self, n: Node) -> String {
        let node = &self.nodes[n];
        let result =
            || node.outputs.iter().flatten().next().map_or(String::new(), |v| self.values[*v].name.clone());
        if node.origin.name.is_empty() { result() } else { node.origin.name.clone() }
    }
    /// The body of a control-flow operator.
    pub fn body<'a>(subgraphs: &'a [(String, Graph)], name: &str) -> Option<&'a Graph> {
        subgraphs.iter().find(|(n, _)| n == name).map(|(_, g)| g)
    }
    /// Adds a constant value.
    pub fn add_const(&mut self, name: impl Into<String>, data: Arc<ConstData>) -> Value {
        let ty = ConstData::tensor_type(&data);
        self.values.push(ValueData {
            name: name.into(),
            ty: Some(ValueType::Tensor(ty)),
            declared: None,
            known: Known::Const(data.clone()),
            def: Def::Const(data),
        })
    }
    /// Visits the constants in order, including those of nested graphs. `f` may return a replacement.
    pub fn each_constant(&mut self, f: &mut Replace<'_>) {
        for v in self.values.values_mut() {
            if let Def::Const(c) = &v.def
                && let Some(new) = f(&v.name, c)
            {
                (v.known, v.def) = (Known::Const(new.clone()), Def::Const(new));
            }
        }
        for n in self.nodes.values_mut() {
            n.subgraphs.iter_mut().for_each(|(_, g)| g.each_constant(f));
        }
    }
    /// How often each value is used (inputs of live nodes, outputs, captures).
    pub fn use_counts(&self) -> cranelift_entity::SecondaryMap<Value, u32> {
        let mut uses = cranelift_entity::SecondaryMap::new();
        for &n in &self.order {
            self.nodes[n].inputs.iter().flatten().for_each(|v| uses[*v] += 1);
            for (_, g) in &self.nodes[n].subgraphs {
                g.captures.iter().for_each(|(o, _)| uses[*o] += 1);
            }
        }
        self.outputs.iter().for_each(|v| uses[*v] += 1);
        uses
    }
}
