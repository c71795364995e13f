//! Where a finding is: file, graph, node. Carried by every node of the graph IR and every kernel of the nest IR.

use std::fmt;

/// A place in the user's model. Empty fields are not printed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Origin {
    /// Model file as the user named it, `<stdin>` for standard input.
    pub file: String,
    /// Path of nested graphs or functions, empty for the main graph.
    pub graph: String,
    /// Index of the node in its graph.
    pub node: Option<usize>,
    /// Node name, as in the file.
    pub name: String,
    /// Operator with its domain unless that is the default one, e.g. `Conv`, `com.microsoft.Gelu`.
    pub op: String,
    /// Version of the operator set that the model imports for this node's domain.
    pub opset: i64,
    /// Anything else: an initializer, an input, an attribute path.
    pub element: String,
}

impl Origin {
    /// A place that is only a file.
    pub fn file(file: impl Into<String>) -> Self {
        Origin { file: file.into(), ..Default::default() }
    }
    /// The same place, naming an element such as `initializer "w"`.
    pub fn element(&self, element: impl Into<String>) -> Self {
        Origin { element: element.into(), ..self.clone() }
    }
    /// `Relu "act1"` or `node 3`: what a kernel is called after.
    pub fn short(&self) -> String {
        match (self.op.is_empty(), self.name.is_empty()) {
            (false, false) => format!("{} \"{}\"", self.op, self.name),
            (false, true) => format!("{} (node {})", self.op, self.node.unwrap_or(0)),
            _ => self.element.clone(),
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = vec![];
        if !self.file.is_empty() {
            parts.push(self.file.clone());
        }
        if !self.graph.is_empty() {
            parts.push(format!("in {}", self.graph));
        }
        if let Some(i) = self.node {
            let name = if self.name.is_empty() { String::new() } else { format!(" \"{}\"", self.name) };
            let op = match (self.op.is_empty(), self.opset) {
                (true, _) => String::new(),
                (false, 0) => format!(" ({})", self.op),
                (false, v) => format!(" ({}, opset {v})", self.op),
            };
            parts.push(format!("node {i}{name}{op}"));
        }
        if !self.element.is_empty() {
            parts.push(self.element.clone());
        }
        f.write_str(&parts.join(", "))
    }
}
