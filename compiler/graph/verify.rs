//! Checks the invariants of the graph IR, numbered as in the head of [`crate::graph`]. A fault is a bug of
//! the pass that ran last, never of the model. All faults are reported at once.

use super::{Def, Graph, Model, Node, Value, ValueData};
use crate::diag::{Failure, Result};
use crate::sym::Dim;
use crate::tensor::ValueType;
use std::collections::HashSet;
use std::fmt::Write;

/// Most faults that are listed.
const MAX_FAULTS: usize = 50;

/// Fails with a [`crate::diag::Bug`] that lists all faults.
///
/// Types may be missing as long as no result of a graph has one: shape inference has not run there.
pub fn verify(model: &Model) -> Result<()> {
    let mut v = Verifier { syms: model.syms.len(), faults: vec![], path: String::new() };
    let dangling = model.dim_params.iter().filter(|s| !v.known(Dim::sym(**s))).count();
    if dangling > 0 {
        v.fault(format!("{dangling} dim params are not in the symbol table"));
    }
    if !model.graph.captures.is_empty() {
        v.fault("4: the main graph captures values".into());
    }
    v.graph(&model.graph, None);
    if v.faults.is_empty() {
        return Ok(());
    }
    let mut text = v.faults[..v.faults.len().min(MAX_FAULTS)].join("\n");
    if v.faults.len() > MAX_FAULTS {
        let _ = write!(text, "\nand {} more", v.faults.len() - MAX_FAULTS);
    }
    Err(Failure::bug("graph::verify", text))
}

struct Verifier {
    syms: usize,
    faults: Vec<String>,
    path: String,
}

impl Verifier {
    fn fault(&mut self, text: String) {
        let place = if self.path.is_empty() { String::new() } else { format!("in {}: ", self.path) };
        self.faults.push(format!("{place}{text}"));
    }
    /// True if all symbols of a dim are in the table.
    fn known(&self, d: Dim) -> bool {
        d.syms().into_iter().all(|s| (s.0 as usize) < self.syms)
    }
    fn type_known(&self, t: &ValueType) -> bool {
        match t {
            ValueType::Tensor(t) => t.dims.iter().all(|d| self.known(*d)),
            ValueType::Member(_) => true,
            ValueType::Sequence(t) | ValueType::Optional(t) | ValueType::Map(_, t) => self.type_known(t),
        }
    }
    /// Checks a graph; `outer` are the values of the enclosing graph that are defined before the node.
    fn graph(&mut self, g: &Graph, outer: Option<(&Graph, &HashSet<Value>)>) {
        let mut defined = HashSet::new();
        self.definitions(g, &mut defined);
        self.captures(g, outer);
        let mut live = HashSet::new();
        for n in &g.order {
            if !live.insert(*n) {
                self.fault(format!("1: {n} is twice in the order"));
                continue;
            }
            self.node(g, *n, &mut defined);
        }
        if g.outputs.len() != g.output_names.len() {
            self.fault(format!("{} outputs have {} names", g.outputs.len(), g.output_names.len()));
        }
        for (i, v) in g.outputs.iter().enumerate() {
            if !defined.contains(v) {
                self.fault(format!("1: output {i}, {}, is not defined", shown(g, *v)));
            }
        }
        self.types(g);
    }
    /// Values that are defined before any node, and their `def`.
    fn definitions(&mut self, g: &Graph, defined: &mut HashSet<Value>) {
        for (i, v) in g.inputs.iter().enumerate() {
            match g.values.get(*v) {
                None => self.fault(format!("2: input {i}, {v}, is not in the table")),
                Some(ValueData { def: Def::Input(n), .. }) if *n as usize == i => {}
                Some(d) => self.fault(format!(
                    "2: input {i}, {}, says that it is {}",
                    shown(g, *v),
                    def_text(&d.def)
                )),
            }
            if !defined.insert(*v) {
                self.fault(format!("2: {} is an input twice", shown(g, *v)));
            }
        }
        let captured: HashSet<Value> = g.captures.iter().map(|(_, v)| *v).collect();
        for (v, d) in &g.values {
            match &d.def {
                Def::Input(n) if g.inputs.get(*n as usize) != Some(&v) => {
                    self.fault(format!("2: {} says that it is input {n}", shown(g, v)))
                }
                Def::Capture if !captured.contains(&v) => {
                    self.fault(format!("4: {} says that it is captured", shown(g, v)))
                }
                Def::Capture => {
                    defined.insert(v);
                }
                Def::Const(c) => {
                    let ty = ValueType::Tensor(c.tensor_type());
                    if d.ty.as_ref().is_some_and(|t| *t != ty) {
                        self.fault(format!(
                            "2: the type of the constant {} is not that of its data",
                            shown(g, v)
                        ));
                    }
                    defined.insert(v);
                }
                Def::Input(_) | Def::Node(..) | Def::Unused => {}
            }
            if !d.ty.iter().chain(&d.declared).all(|t| self.type_known(t)) {
                self.fault(format!("the type of {} has symbols that are not in the table", shown(g, v)));
            }
        }
    }
    fn captures(&mut self, g: &Graph, outer: Option<(&Graph, &HashSet<Value>)>) {
        let mut inner = HashSet::new();
        for (o, v) in &g.captures {
            match g.values.get(*v).map(|d| &d.def) {
                Some(Def::Capture) => {}
                Some(d) => {
                    self.fault(format!("4: the captured {} says that it is {}", shown(g, *v), def_text(d)))
                }
                None => self.fault(format!("4: the captured {v} is not in the table")),
            }
            if !inner.insert(*v) {
                self.fault(format!("4: {} is captured twice", shown(g, *v)));
            }
            if let Some((og, before)) = outer
                && !before.contains(o)
            {
                self.fault(format!(
                    "4: {} captures {}, which the enclosing graph does not define before the node",
                    shown(g, *v),
                    shown(og, *o)
                ));
            }
        }
    }
    fn node(&mut self, g: &Graph, n: Node, defined: &mut HashSet<Value>) {
        let Some(node) = g.nodes.get(n) else {
            return self.fault(format!("1: {n} of the order is not in the table"));
        };
        let at = format!("{n} {}", node.origin.short());
        for (i, v) in node.inputs.iter().enumerate() {
            if let Some(v) = v
                && !defined.contains(v)
            {
                self.fault(format!("1: {at}: input {i}, {}, is not defined before its use", shown(g, *v)));
            }
        }
        for (what, len, formals) in [
            ("inputs", node.inputs.len(), &node.schema.inputs),
            ("outputs", node.outputs.len(), &node.schema.outputs),
        ] {
            if len < formals.min || len > formals.max() {
                let max = if formals.max() == usize::MAX { "any".into() } else { formals.max().to_string() };
                self.fault(format!(
                    "3: {at}: {len} {what}, {} version {} takes {} to {max}",
                    node.schema.name, node.schema.since, formals.min
                ));
            }
        }
        for (name, sub) in &node.subgraphs {
            let path = std::mem::take(&mut self.path);
            let sep = if path.is_empty() { "" } else { " > " };
            self.path = format!("{path}{sep}{at} {name}");
            self.graph(sub, Some((g, defined)));
            self.path = path;
        }
        for (k, v) in node.outputs.iter().enumerate() {
            let Some(v) = *v else { continue };
            match g.values.get(v).map(|d| &d.def) {
                None => self.fault(format!("2: {at}: output {k}, {v}, is not in the table")),
                Some(Def::Node(m, j)) if *m == n && *j as usize == k => {}
                Some(d) => self.fault(format!(
                    "2: {at}: output {k}, {}, says that it is {}",
                    shown(g, v),
                    def_text(d)
                )),
            }
            if !defined.insert(v) {
                self.fault(format!("2: {at}: output {k}, {}, is defined already", shown(g, v)));
            }
        }
    }
    /// Either no result has a type, or all have one.
    fn types(&mut self, g: &Graph) {
        let results: Vec<Value> = g
            .order
            .iter()
            .filter_map(|n| g.nodes.get(*n))
            .flat_map(|n| n.outputs.iter().flatten().copied())
            .collect();
        let typed = |v: &Value| g.values.get(*v).is_some_and(|d| d.ty.is_some());
        if results.iter().any(typed) {
            for v in results.iter().filter(|v| !typed(v)) {
                self.fault(format!("5: {} has no type", shown(g, *v)));
            }
        }
    }
}

fn shown(g: &Graph, v: Value) -> String {
    g.values.get(v).map_or_else(|| v.to_string(), |d| format!("{v} \"{}\"", d.name))
}

fn def_text(d: &Def) -> String {
    match d {
        Def::Input(n) => format!("input {n}"),
        Def::Node(n, k) => format!("output {k} of {n}"),
        Def::Const(_) => "a constant".into(),
        Def::Capture => "captured".into(),
        Def::Unused => "unused".into(),
    }
}
