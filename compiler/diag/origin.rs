//! Where a finding is: file, graph, node. Carried by every node of the graph IR and every kernel of the nest
//! IR.

use std::fmt;

/// A place in the user's model. Empty fields are not printed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Origin {
    /// Model file as the user named it, `<stdin>` for standard input.
    pub file: String,
    /// Path of nested graphs and function calls, outermost first, as [`place`] writes them; empty for the
    /// main graph.
    pub graph: String,
    /// Index of the node in its graph or function, as the file has it.
    pub node: Option<usize>,
    /// Node name, as in the file.
    pub name: String,
    /// Operator with its domain unless that is the default one, e.g. `Conv`, `com.microsoft.Gelu`.
    pub op: String,
    /// Version of the operator set that the model imports for this node's domain.
    pub opset: i64,
    /// First output of the node that has a name: tells nodes without a name apart.
    pub output: String,
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

/// A node within a path: `node 2 "if0" (If)`.
pub fn place(index: usize, name: &str, op: &str) -> String {
    let name = if name.is_empty() { String::new() } else { format!(" \"{name}\"") };
    let op = if op.is_empty() { String::new() } else { format!(" ({op})") };
    format!("node {index}{name}{op}")
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
            let op = match self.opset {
                0 => self.op.clone(),
                v if self.op.is_empty() => format!("opset {v}"),
                v => format!("{}, opset {v}", self.op),
            };
            let output =
                if self.output.is_empty() { String::new() } else { format!(" -> \"{}\"", self.output) };
            parts.push(format!("{}{output}", place(i, &self.name, &op)));
        }
        if !self.element.is_empty() {
            parts.push(self.element.clone());
        }
        f.write_str(&parts.join(", "))
    }
}
