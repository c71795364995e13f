//! The graph as Graphviz text (`--emit dot`). Nodes are labelled with operators, edges with the tensors'
//! types, and the bodies of control flow are clusters. Constants are shown in the node that reads them. `dot
//! -Tsvg model.dot -o model.svg` draws it.

use super::{Def, Graph, Model, Node, Value};
use crate::sym::SymTable;
use std::collections::HashMap;
use std::fmt::Write;

/// Text of the whole model.
pub fn dot(m: &Model) -> String {
    let mut o = String::from(
        "digraph model {\n  node [shape=box, style=rounded, fontname=\"sans-serif\", fontsize=10];\n  edge \
            [fontname=\"sans-serif\", fontsize=8];\n",
    );
    let mut w = Writer { out: &mut o, syms: &m.syms, next: 0 };
    w.graph(&m.graph, "  ", &HashMap::new());
    o.push_str("}\n");
    o
}

struct Writer<'a> {
    out: &'a mut String,
    syms: &'a SymTable,
    /// Number of the next point.
    next: usize,
}

impl Writer<'_> {
    fn point(&mut self) -> String {
        self.next += 1;
        format!("n{}", self.next)
    }
    /// Writes a graph. `outer` maps captured values to their points. Returns the points of the outputs.
    fn graph(&mut self, g: &Graph, indent: &str, outer: &HashMap<Value, String>) -> Vec<String> {
        let mut points: HashMap<Value, String> = outer.clone();
        for v in &g.inputs {
            let (p, label) = (self.point(), label(&[&g.values[*v].name, &self.ty(g, *v)]));
            let _ = writeln!(self.out, "{indent}{p} [shape=oval, label={label}];");
            points.insert(*v, p);
        }
        for n in &g.order {
            self.node(g, *n, indent, &mut points);
        }
        let mut ends = vec![];
        for (v, name) in g.outputs.iter().zip(&g.output_names) {
            let (p, label) = (self.point(), label(&[name, &self.ty(g, *v)]));
            let _ = writeln!(self.out, "{indent}{p} [shape=oval, label={label}];");
            self.edge(g, *v, &p, indent, &points);
            ends.push(p);
        }
        ends
    }
    fn node(&mut self, g: &Graph, n: Node, indent: &str, points: &mut HashMap<Value, String>) {
        let data = &g.nodes[n];
        let p = self.point();
        let mut lines = vec![data.schema.name.to_owned()];
        if !data.origin.name.is_empty() {
            lines.push(data.origin.name.clone());
        }
        for v in data.inputs.iter().flatten() {
            if let Def::Const(c) = &g.values[*v].def {
                lines.push(format!("{} {}{:?}", g.values[*v].name, c.elem(), c.dims()));
            }
        }
        let _ = writeln!(
            self.out,
            "{indent}{p} [label={}];",
            label(&lines.iter().map(String::as_str).collect::<Vec<_>>())
        );
        for v in data.inputs.iter().flatten() {
            self.edge(g, *v, &p, indent, points);
        }
        for (k, (name, body)) in data.subgraphs.iter().enumerate() {
            let captured: HashMap<Value, String> =
                body.captures.iter().filter_map(|(o, v)| Some((*v, points.get(o)?.clone()))).collect();
            let _ = writeln!(
                self.out,
                "{indent}subgraph cluster_{p}_{k} {{\n{indent}  label={};",
                label(&[name])
            );
            let ends = self.graph(body, &format!("{indent}  "), &captured);
            let _ = writeln!(self.out, "{indent}}}");
            for e in ends {
                let _ = writeln!(self.out, "{indent}{e} -> {p} [style=dashed];");
            }
        }
        for v in data.outputs.iter().flatten() {
            points.insert(*v, p.clone());
        }
    }
    fn edge(&mut self, g: &Graph, v: Value, to: &str, indent: &str, points: &HashMap<Value, String>) {
        if let Some(from) = points.get(&v) {
            let label = label(&[&g.values[v].name, &self.ty(g, v)]);
            let _ = writeln!(self.out, "{indent}{from} -> {to} [label={label}];");
        }
    }
    fn ty(&self, g: &Graph, v: Value) -> String {
        g.values[v]
            .ty
            .as_ref()
            .and_then(|t| t.as_tensor())
            .map_or(String::new(), |t| t.display(self.syms).to_string())
    }
}

/// A quoted string of lines.
fn label(lines: &[&str]) -> String {
    let escape = |l: &&str| l.replace('\\', "\\\\").replace('"', "\\\"");
    format!("\"{}\"", lines.iter().filter(|l| !l.is_empty()).map(escape).collect::<Vec<_>>().join("\\n"))
}
