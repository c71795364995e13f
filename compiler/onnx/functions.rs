//! Model-local functions: calls are replaced by the function's nodes (IR.md, "Functions").
//!
//! A function sees its own names only, so every name in its body gets the call's prefix; formal inputs and outputs
//! become the call's. Attribute references take the call's attribute, else the function's default, else the
//! attribute is absent. Bodies keep the operator sets that the function imports.

use super::proto::{AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto};
use crate::diag::{Error, Origin, Result, codes, limits};
use prost::Message as _;
use std::collections::HashMap;
use std::sync::Arc;

/// Operator set versions by domain ("" is ai.onnx).
pub type Opsets = HashMap<String, i64>;

/// "" and "ai.onnx" are the same domain.
pub fn domain(d: Option<&str>) -> &str {
    match d {
        None | Some("ai.onnx") => "",
        Some(d) => d,
    }
}

/// Reads imports; a repeated domain is an error.
pub fn opsets(list: &[OperatorSetIdProto], origin: &Origin) -> Result<Opsets> {
    let mut out = Opsets::new();
    for o in list {
        let d = domain(o.domain.as_deref()).to_owned();
        let shown = if d.is_empty() { "ai.onnx".to_owned() } else { d.clone() };
        let Some(v) = o.version.filter(|v| *v >= 1) else {
            return Error::new(codes::OPSET_IMPORT, format!("the import of operator set {shown} has no valid version"))
                .at(origin)
                .found_expected(format!("{:?}", o.version), "a version of 1 or more")
                .fail();
        };
        if out.insert(d, v).is_some_and(|old| old != v) {
            return Error::new(codes::OPSET_IMPORT, format!("operator set {shown} is imported twice, with different versions")).at(origin).fail();
        }
    }
    Ok(out)
}

/// A node outside any function, with what its meaning depends on.
#[derive(Clone, Debug)]
pub struct FlatNode {
    /// The node.
    pub proto: NodeProto,
    /// Versions in force for it and its subgraphs.
    pub opsets: Arc<Opsets>,
    /// Path of the calls it comes from, empty in the model itself.
    pub path: String,
}

type Key = (String, String, String);

/// The functions of one model.
#[derive(Debug, Default)]
pub struct Functions {
    table: HashMap<Key, (FunctionProto, Arc<Opsets>)>,
    calls: std::cell::Cell<usize>,
    /// Nodes that calls have become, and how many they may become.
    made: std::cell::Cell<u64>,
    most: u64,
}

impl Functions {
    /// Checks and indexes the model's functions.
    pub fn new(model: &ModelProto, origin: &Origin) -> Result<Functions> {
        let mut table = HashMap::new();
        for f in &model.functions {
            let key = (domain(f.domain.as_deref()).to_owned(), f.name.clone().unwrap_or_default(), f.overload.clone().unwrap_or_default());
            let at = origin.element(format!("function {}", show(&key)));
            if key.1.is_empty() {
                return Error::new(codes::FUNCTION_INVALID, "a function without a name").at(&at).fail();
            }
            let sets = Arc::new(opsets(&f.opset_import, &at)?);
            if table.insert(key, (f.clone(), sets)).is_some() {
                return Error::new(codes::FUNCTION_INVALID, "the function is defined twice").at(&at).fail();
            }
        }
        let lists = model.graph.iter().map(|g| &g.node).chain(model.functions.iter().map(|f| &f.node));
        let written: u64 = lists.flatten().map(weight).sum();
        Ok(Functions { table, calls: 0.into(), made: 0.into(), most: limits::CALLED_NODES.value.saturating_add(2 * written) })
    }
    fn find(&self, n: &NodeProto) -> Option<(&Key, &(FunctionProto, Arc<Opsets>))> {
        let key = (domain(n.domain.as_deref()).to_owned(), n.op_type.clone().unwrap_or_default(), n.overload.clone().unwrap_or_default());
        self.table.get_key_value(&key)
    }
    /// All nodes of a list, calls inlined.
    pub fn flatten(&self, nodes: &[NodeProto], opsets: &Arc<Opsets>, path: &str, origin: &Origin) -> Result<Vec<FlatNode>> {
        let mut out = vec![];
        let mut stack = vec![];
        for n in nodes {
            self.expand(n.clone(), opsets, path, origin, &mut stack, &mut out)?;
        }
        Ok(out)
    }
    fn expand(&self, n: NodeProto, opsets: &Arc<Opsets>, path: &str, origin: &Origin, stack: &mut Vec<Key>, out: &mut Vec<FlatNode>) -> Result<()> {
        let Some((key, (f, sets))) = self.find(&n) else {
            if !stack.is_empty() {
                self.made.set(self.made.get() + weight(&n));
            }
            out.push(FlatNode { proto: n, opsets: opsets.clone(), path: path.to_owned() });
            return Ok(());
        };
        // Calls count, too: a function may hold nothing but calls.
        self.made.set(self.made.get() + 1);
        let fail = |title: String| Error::new(codes::FUNCTION_INVALID, title).at(&origin.element(format!("call of function {}", show(key)))).fail();
        if stack.contains(key) {
            return fail("the function calls itself".into());
        }
        let at = origin.element(format!("call of function {}", show(key)));
        if limits::CALL_DEPTH.exceeded_by(stack.len() as u64 + 1) {
            return limits::CALL_DEPTH.error("function calls nest too deeply", stack.len() + 1).at(&at).fail();
        }
        if self.made.get() > self.most {
            let most = self.most;
            return limits::CALLED_NODES.error("function calls become too many nodes", format!("more than {most}")).at(&at).fail();
        }
        if n.input.len() > f.input.len() || n.output.len() > f.output.len() {
            return fail(format!("the call has {} inputs and {} outputs, the function {} and {}", n.input.len(), n.output.len(), f.input.len(), f.output.len()));
        }
        self.calls.set(self.calls.get() + 1);
        let label = n.name.clone().filter(|s| !s.is_empty()).unwrap_or_else(|| key.1.clone());
        let prefix = format!("{label}.{}/", self.calls.get());
        let mut names: HashMap<String, String> = HashMap::new();
        for (i, formal) in f.input.iter().enumerate() {
            names.insert(formal.clone(), n.input.get(i).cloned().unwrap_or_default());
        }
        // An output that is also an input of the function needs a copy, not a second name.
        let mut copies = vec![];
        for (i, formal) in f.output.iter().enumerate() {
            let actual = n.output.get(i).cloned().unwrap_or_default();
            if names.contains_key(formal) {
                copies.push((formal.clone(), actual));
            } else if !actual.is_empty() {
                names.insert(formal.clone(), actual);
            }
        }
        let mut attrs: HashMap<&str, &AttributeProto> = f.attribute_proto.iter().map(|a| (a.name.as_deref().unwrap_or(""), a)).collect();
        attrs.extend(n.attribute.iter().map(|a| (a.name.as_deref().unwrap_or(""), a)));
        let inner_path = if path.is_empty() { show(key) } else { format!("{path} > {}", show(key)) };
        let cx = Rename { names: &names, prefix: &prefix, attrs: &attrs };
        stack.push(key.clone());
        for node in &f.node {
            self.expand(cx.node(node), sets, &inner_path, origin, stack, out)?;
        }
        stack.pop();
        for (formal, actual) in copies.into_iter().filter(|(_, a)| !a.is_empty()) {
            let proto = NodeProto { op_type: Some("Identity".into()), input: vec![names[&formal].clone()], output: vec![actual], ..Default::default() };
            let sets = if opsets.contains_key("") { opsets.clone() } else { Arc::new(Opsets::from([(String::new(), 1)])) };
            out.push(FlatNode { proto, opsets: sets, path: inner_path.clone() });
        }
        Ok(())
    }
}

/// What a node counts: one, and one for each KiB of its attributes and bodies, which a call copies.
fn weight(n: &NodeProto) -> u64 {
    1 + n.encoded_len() as u64 / 1024
}

fn show(k: &Key) -> String {
    let d = if k.0.is_empty() { String::new() } else { format!("{}.", k.0) };
    let o = if k.2.is_empty() { String::new() } else { format!(":{}", k.2) };
    format!("{d}{}{o}", k.1)
}

struct Rename<'a> {
    names: &'a HashMap<String, String>,
    prefix: &'a str,
    attrs: &'a HashMap<&'a str, &'a AttributeProto>,
}

impl Rename<'_> {
    fn name(&self, n: &str) -> String {
        match self.names.get(n) {
            Some(m) => m.clone(),
            None if n.is_empty() => String::new(),
            None => format!("{}{n}", self.prefix),
        }
    }
    fn node(&self, n: &NodeProto) -> NodeProto {
        let name = n.name.as_deref().filter(|s| !s.is_empty()).map(|s| format!("{}{s}", self.prefix));
        NodeProto {
            input: n.input.iter().map(|s| self.name(s)).collect(),
            output: n.output.iter().map(|s| self.name(s)).collect(),
            name,
            attribute: n.attribute.iter().filter_map(|a| self.attribute(a)).collect(),
            ..n.clone()
        }
    }
    fn attribute(&self, a: &AttributeProto) -> Option<AttributeProto> {
        match a.ref_attr_name.as_deref().filter(|r| !r.is_empty()) {
            Some(r) => self.attrs.get(r).map(|v| AttributeProto { name: a.name.clone(), ..(*v).clone() }),
            None => Some(AttributeProto { g: a.g.as_ref().map(|g| self.graph(g)), graphs: a.graphs.iter().map(|g| self.graph(g)).collect(), ..a.clone() }),
        }
    }
    fn graph(&self, g: &GraphProto) -> GraphProto {
        let mut g = g.clone();
        let rename = |n: &mut Option<String>| *n = n.as_deref().map(|s| self.name(s));
        g.input.iter_mut().chain(&mut g.output).chain(&mut g.value_info).for_each(|v| rename(&mut v.name));
        g.initializer.iter_mut().for_each(|t| rename(&mut t.name));
        g.sparse_initializer.iter_mut().filter_map(|t| t.values.as_mut()).for_each(|t| rename(&mut t.name));
        g.node = g.node.iter().map(|n| self.node(n)).collect();
        g
    }
}
