//! Renaming of a function's body where a call is inlined.

use super::attributes;
use super::{AttributeProto, GraphProto, NodeProto};
use std::collections::{HashMap, HashSet};

/// Adds the call's prefix to the names of a body. The prefix ends in a number between `.` and `/` that does
/// not occur so in any name of the model, so the generated names are unique.
pub(super) struct Rename<'a> {
    pub names: &'a HashMap<String, String>,
    pub prefix: &'a str,
    pub attrs: &'a HashMap<&'a str, &'a AttributeProto>,
    /// Names that nested graphs within the body define: they shadow formal inputs and outputs.
    pub local: Vec<HashSet<String>>,
}

impl Rename<'_> {
    fn name(&self, n: &str) -> String {
        match self.names.get(n).filter(|_| !self.local.iter().any(|l| l.contains(n))) {
            Some(m) => m.clone(),
            None if n.is_empty() => String::new(),
            None => format!("{}{n}", self.prefix),
        }
    }
    pub fn node(&mut self, n: &NodeProto) -> NodeProto {
        let name = n.name.as_deref().filter(|s| !s.is_empty()).map(|s| format!("{}{s}", self.prefix));
        NodeProto {
            input: n.input.iter().map(|s| self.name(s)).collect(),
            output: n.output.iter().map(|s| self.name(s)).collect(),
            name,
            attribute: n.attribute.iter().filter_map(|a| self.attribute(a)).collect(),
            ..n.clone()
        }
    }
    fn attribute(&mut self, a: &AttributeProto) -> Option<AttributeProto> {
        match attributes::reference(a) {
            Some(r) => self.attrs.get(r).map(|v| AttributeProto { name: a.name.clone(), ..(*v).clone() }),
            None => Some(AttributeProto {
                g: a.g.as_ref().map(|g| self.graph(g)),
                graphs: a.graphs.iter().map(|g| self.graph(g)).collect(),
                ..a.clone()
            }),
        }
    }
    fn graph(&mut self, g: &GraphProto) -> GraphProto {
        let sparse = g.sparse_initializer.iter().filter_map(|t| t.values.as_ref()?.name.clone());
        let own = g
            .input
            .iter()
            .filter_map(|v| v.name.clone())
            .chain(g.initializer.iter().filter_map(|t| t.name.clone()))
            .chain(sparse);
        self.local.push(own.chain(g.node.iter().flat_map(|n| n.output.iter().cloned())).collect());
        let mut g = g.clone();
        let rename = |n: &mut Option<String>| *n = n.as_deref().map(|s| self.name(s));
        g.input.iter_mut().chain(&mut g.output).chain(&mut g.value_info).for_each(|v| rename(&mut v.name));
        g.initializer.iter_mut().for_each(|t| rename(&mut t.name));
        g.sparse_initializer.iter_mut().filter_map(|t| t.values.as_mut()).for_each(|t| rename(&mut t.name));
        let nodes = std::mem::take(&mut g.node);
        g.node = nodes.iter().map(|n| self.node(n)).collect();
        self.local.pop();
        g
    }
}
