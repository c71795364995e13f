//! Small graphs as ONNX text: their parts, so that they can be shrunk, and how they are printed and read
//! again.
//!
//! A graph is followed by what it is called with: `# size: N=3 M=0` for each call, `# data: 7` for the seed
//! of the inputs.

use std::fmt::Write as _;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ty {
    F32,
    I64,
    Bool,
}

impl Ty {
    fn text(self) -> &'static str {
        match self {
            Ty::F32 => "float",
            Ty::I64 => "int64",
            Ty::Bool => "bool",
        }
    }
}

/// A value: `dims` are names or numbers; those of results are only as many as the rank.
#[derive(Clone, Debug)]
pub struct Value {
    pub name: String,
    pub ty: Ty,
    pub dims: Vec<String>,
}

#[derive(Clone, Debug)]
pub struct Node {
    pub outs: Vec<String>,
    pub op: &'static str,
    pub attrs: String,
    pub ins: Vec<String>,
}

#[derive(Clone, Debug, Default)]
pub struct Graph {
    pub inputs: Vec<Value>,
    /// Constants and their elements as text.
    pub constants: Vec<(Value, String)>,
    pub nodes: Vec<Node>,
    pub outputs: Vec<Value>,
    /// Every value that a node makes.
    pub results: Vec<Value>,
    pub sizes: Vec<Vec<(String, i64)>>,
    pub data: u64,
}

fn declared(v: &Value) -> String {
    if v.dims.is_empty() {
        format!("{} {}", v.ty.text(), v.name)
    } else {
        format!("{}[{}] {}", v.ty.text(), v.dims.join(", "), v.name)
    }
}

impl Graph {
    pub fn text(&self) -> String {
        let mut t = format!("# data: {}\n", self.data);
        for s in &self.sizes {
            let s: Vec<String> = s.iter().map(|(n, v)| format!("{n}={v}")).collect();
            let _ = writeln!(t, "# size: {}", s.join(" "));
        }
        t += "<ir_version: 8, opset_import: [\"\" : 18]>\n";
        let list = |v: &[Value]| v.iter().map(declared).collect::<Vec<_>>().join(", ");
        let outputs: Vec<Value> = self
            .outputs
            .iter()
            .enumerate()
            .map(|(k, v)| Value {
                dims: (0..v.dims.len()).map(|d| format!("o{k}_{d}")).collect(),
                ..v.clone()
            })
            .collect();
        let _ = writeln!(t, "m ({}) => ({})", list(&self.inputs), list(&outputs));
        if !self.constants.is_empty() {
            let c: Vec<String> =
                self.constants.iter().map(|(v, data)| format!("{} = {{{data}}}", declared(v))).collect();
            let _ = writeln!(t, "<{}>", c.join(", "));
        }
        t += "{\n";
        for n in &self.nodes {
            let _ = writeln!(
                t,
                "  {} = {}{} ({})",
                n.outs.join(", "),
                n.op,
                if n.attrs.is_empty() { String::new() } else { format!(" <{}>", n.attrs) },
                n.ins.join(", ")
            );
        }
        t + "}\n"
    }
    /// Drops what no output needs.
    pub fn prune(&mut self) {
        let mut live: Vec<String> = self.outputs.iter().map(|v| v.name.clone()).collect();
        let mut kept = vec![];
        for n in self.nodes.drain(..).rev() {
            // Bodies of control flow name values of the graph around them.
            if n.outs.iter().any(|o| live.contains(o)) {
                live.extend(n.ins.iter().cloned());
                live.extend(n.attrs.split(|c: char| !c.is_alphanumeric()).map(str::to_owned));
                kept.push(n);
            }
        }
        kept.reverse();
        self.nodes = kept;
        self.constants.retain(|c| live.contains(&c.0.name));
        self.inputs.retain(|v| live.contains(&v.name));
        let names: Vec<&String> = self.inputs.iter().flat_map(|v| &v.dims).collect();
        for s in &mut self.sizes {
            s.retain(|(n, _)| names.contains(&n));
        }
    }
    fn value(&self, name: &str) -> Option<&Value> {
        self.inputs
            .iter()
            .chain(&self.results)
            .chain(self.constants.iter().map(|c| &c.0))
            .find(|v| v.name == name)
    }
    /// Graphs with a part less, the smallest ones first.
    pub fn smaller(&self) -> Vec<Graph> {
        let mut out = vec![];
        let mut add = |g: Graph| {
            let mut g = g;
            g.prune();
            if !g.outputs.is_empty() {
                out.push(g);
            }
        };
        if self.sizes.len() > 1 {
            for s in &self.sizes {
                add(Graph { sizes: vec![s.clone()], ..self.clone() });
            }
        }
        // One value as the only output.
        if self.outputs.len() > 1 || self.nodes.len() > 1 {
            for n in &self.nodes {
                for o in n.outs.iter().filter_map(|o| self.value(o)) {
                    if self.outputs.len() > 1 || self.outputs[0].name != o.name {
                        add(Graph { outputs: vec![o.clone()], ..self.clone() });
                    }
                }
            }
        }
        // A node whose reader takes one of its operands, or an input, instead.
        for (k, n) in self.nodes.iter().enumerate() {
            for o in n.outs.iter().filter_map(|o| self.value(o)) {
                let alike = |v: &&Value| v.ty == o.ty && v.dims.len() == o.dims.len() && v.name != o.name;
                for v in n.ins.iter().filter_map(|i| self.value(i)).chain(&self.inputs).filter(alike) {
                    let mut g = self.clone();
                    for later in g.nodes.iter_mut().skip(k + 1) {
                        for i in later.ins.iter_mut().filter(|i| **i == o.name) {
                            i.clone_from(&v.name);
                        }
                    }
                    if g.outputs.iter().all(|x| x.name != o.name) {
                        add(g);
                    }
                }
            }
        }
        // A result that the caller passes: its sizes are its first names, or new ones of size 2.
        for n in self.nodes.iter().filter(|n| n.outs.len() == 1) {
            let Some(o) = self.value(&n.outs[0]) else { continue };
            if self.outputs.iter().any(|x| x.name == o.name) || o.ty == Ty::Bool {
                continue;
            }
            let mut g = self.clone();
            g.nodes.retain(|m| m.outs[0] != n.outs[0]);
            let dims: Vec<String> = (0..o.dims.len()).map(|d| format!("n{}_{d}", o.name)).collect();
            for s in &mut g.sizes {
                s.extend(dims.iter().map(|d| (d.clone(), 2)));
            }
            g.inputs.push(Value { dims, ..o.clone() });
            add(g);
        }
        // A number in place of a symbol.
        if let [sizes] = self.sizes.as_slice() {
            for (name, v) in sizes {
                let mut g = self.clone();
                for d in g.inputs.iter_mut().flat_map(|v| &mut v.dims).filter(|d| *d == name) {
                    *d = v.to_string();
                }
                add(g);
            }
            for (k, (_, v)) in sizes.iter().enumerate() {
                for less in [0, 1, 2, v / 2, v - 1] {
                    if less >= 0 && less < *v {
                        let mut g = self.clone();
                        g.sizes[0][k].1 = less;
                        add(g);
                    }
                }
            }
        }
        out
    }
}

/// `# size:` and `# data:` of a graph's text.
pub fn calls(text: &str) -> (Vec<Vec<(String, i64)>>, u64) {
    let (mut sizes, mut data) = (vec![], 0);
    for l in text.lines() {
        if let Some(s) = l.strip_prefix("# size:") {
            sizes.push(
                s.split_whitespace()
                    .filter_map(|p| p.split_once('='))
                    .filter_map(|(n, v)| Some((n.to_owned(), v.parse().ok()?)))
                    .collect(),
            );
        } else if let Some(s) = l.strip_prefix("# data:") {
            data = s.trim().parse().unwrap_or(0);
        }
    }
    if sizes.is_empty() {
        sizes.push(vec![]);
    }
    (sizes, data)
}
