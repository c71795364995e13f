//! Text of the graph IR in ONNX textual syntax. It is deterministic and made for snapshots: nothing in it is
//! numbered by table position, so that a change in one place affects no other line.
//!
//! ```text
//! # onnxc graph v1
//! # dims N<=32
//! <ir_version: 8, opset_import: ["" : 17]>
//! mlp (float[N, 128] X) => (float[N, 10] C)
//! <
//!   float[128, 10] W = #1a2b3c4d
//!   , int64[2] target = {0, -1}
//! >
//! {
//!   T = MatMul (X, W)  # float[N, 10]
//! }
//! ```
//!
//! Constants are in order of first use, with their values if they are few and with the hash of their contents
//! otherwise. Facts without ONNX syntax are in comments: types and known contents of results, the version of
//! an operator if it differs from the one that the model imports, and conditions that are checked at entry.

use super::{Def, Graph, Model, Node, Value};
use crate::diag::Origin;
use crate::ops::{self, AttrValue, Known};
use crate::sym::text::{display_with, quote};
use crate::sym::{Condition, Dim, Sym};
use crate::tensor::{ConstData, ElemType, ValueType};
use std::collections::{HashMap, HashSet};

/// Constants of at most this many elements are shown by their values.
const FEW: u64 = 16;
/// A signature longer than this has one operand per line.
const WIDTH: usize = 120;

/// The whole model.
pub fn print(model: &Model) -> String {
    let mut p = Printer::new(model);
    p.model();
    p.out
}

/// Line numbers in that text, counted from 1.
#[derive(Clone, Debug, Default)]
pub struct Lines {
    /// The signature of the main graph.
    pub graph: u32,
    /// Nodes by their origins, in order.
    pub nodes: Vec<(Origin, u32)>,
}

/// The line numbers of a model's text.
pub fn lines(model: &Model) -> Lines {
    let mut p = Printer::new(model);
    p.model();
    p.lines
}

/// Names of the values of one graph, and every name that is taken there.
struct Scope {
    names: HashMap<Value, String>,
    taken: HashSet<String>,
}

impl Scope {
    fn add(&mut self, v: Value, name: &str) {
        if self.names.contains_key(&v) {
            return;
        }
        let base = if name.is_empty() { "v" } else { name };
        let mut n = base.to_owned();
        let mut i = 1;
        while !self.taken.insert(n.clone()) {
            i += 1;
            n = format!("{base}_{i}");
        }
        self.names.insert(v, n);
    }
    fn get(&self, v: Value) -> String {
        self.names.get(&v).map_or_else(|| format!("\"undefined {v}\""), |n| ident(n))
    }
}

struct Printer<'a> {
    model: &'a Model,
    out: String,
    syms: HashMap<Sym, String>,
    sym_names: HashSet<String>,
    indent: usize,
    lines: Lines,
    /// Lines written so far.
    row: u32,
}

/// A quoted string. Only the quote and the backslash need an escape.
fn quoted(s: &str) -> String {
    format!("\"{}\"", s.replace('\\', "\\\\").replace('"', "\\\""))
}

/// A name, quoted unless it is an identifier without another meaning.
fn ident(s: &str) -> String {
    let plain = s.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && s.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    let word = ElemType::from_onnx_name(s).is_some()
        || matches!(s, "seq" | "map" | "optional" | "sparse_tensor" | "opaque")
        || ["inf", "infinity", "nan"].iter().any(|w| s.eq_ignore_ascii_case(w));
    if plain && !word { s.to_owned() } else { quoted(s) }
}

/// Text for a comment: names may hold anything, a comment ends with its line.
fn comment(s: &str) -> String {
    s.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

impl<'a> Printer<'a> {
    fn new(model: &'a Model) -> Printer<'a> {
        Printer {
            model,
            out: String::new(),
            syms: HashMap::new(),
            sym_names: HashSet::new(),
            indent: 0,
            lines: Lines::default(),
            row: 0,
        }
    }
    fn line(&mut self, text: &str) {
        self.out.extend(std::iter::repeat_n("  ", self.indent));
        self.out.push_str(text);
        self.out.push('\n');
        self.row += 1;
    }
    fn sym(&mut self, s: Sym) -> String {
        if let Some(n) = self.syms.get(&s) {
            return n.clone();
        }
        let base = self.model.syms.name(s).to_owned();
        let mut n = base.clone();
        let mut i = 1;
        while !self.sym_names.insert(n.clone()) {
            i += 1;
            n = format!("{base}_{i}");
        }
        self.syms.insert(s, n.clone());
        n
    }
    /// A dim as an expression, for comments.
    fn dim(&mut self, d: Dim) -> String {
        // Symbols get their names in table order, not in the order of the terms.
        for s in d.syms() {
            self.sym(s);
        }
        display_with(d, &|s| self.syms.get(&s).map_or_else(String::new, |n| quote(n)))
    }
    /// A dim as ONNX text has it: a number, a name, or an expression in quotes.
    fn dim_param(&mut self, d: Dim) -> String {
        match (d.as_const(), d.as_sym()) {
            (Some(c), _) => c.to_string(),
            (_, Some(s)) => ident(&self.sym(s)),
            _ => quoted(&self.dim(d)),
        }
    }
    fn ty(&mut self, t: &ValueType) -> String {
        match t {
            ValueType::Tensor(t) if t.dims.is_empty() => t.elem.to_string(),
            ValueType::Tensor(t) => {
                let dims: Vec<String> = t.dims.iter().map(|d| self.dim_param(*d)).collect();
                format!("{}[{}]", t.elem, dims.join(", "))
            }
            ValueType::Member(t) => t.to_string(),
            ValueType::Sequence(t) => format!("seq({})", self.ty(t)),
            ValueType::Optional(t) => format!("optional({})", self.ty(t)),
            ValueType::Map(k, v) => format!("map({k}, {})", self.ty(v)),
        }
    }
    fn model(&mut self) {
        let m = self.model;
        self.line("# onnxc graph v1");
        if !m.dim_params.is_empty() {
            let mut list = vec![];
            for s in &m.dim_params {
                let (name, r) = (quote(&self.sym(*s)), m.syms.declared_range(*s));
                let lo = r.lo.filter(|lo| *lo > 0).map_or(String::new(), |lo| format!("{lo}<="));
                list.push(format!("{lo}{name}{}", r.hi.map_or(String::new(), |hi| format!("<={hi}"))));
            }
            self.line(&comment(&format!("# dims {}", list.join(" "))));
        }
        for (s, d) in m.syms.derived() {
            let (name, text) = (quote(&self.sym(*s)), self.dim(*d));
            self.line(&comment(&format!("# let {name} = {text}")));
        }
        for c in m.syms.conditions() {
            let text = match c {
                Condition::Equal(a, b) => format!("{} = {}", self.dim(*a), self.dim(*b)),
                Condition::Broadcast(a, b) => format!("{} broadcasts with {}", self.dim(*a), self.dim(*b)),
                Condition::AtMost(a, b) => format!("{} <= {}", self.dim(*a), self.dim(*b)),
            };
            self.line(&comment(&format!("# check {text}")));
        }
        let sets: Vec<String> = m.opsets.iter().map(|(d, v)| format!("{} : {v}", quoted(d))).collect();
        self.line(&format!("<ir_version: {}, opset_import: [{}]>", m.ir_version, sets.join(", ")));
        self.lines.graph = self.row + 1;
        self.graph("", "", &m.graph, &Scope { names: HashMap::new(), taken: HashSet::new() });
    }
    /// A graph; `outer` gives the names of the values that it captures.
    fn graph(&mut self, before: &str, after: &str, g: &Graph, outer: &Scope) {
        let mut scope = Scope { names: HashMap::new(), taken: outer.taken.clone() };
        for (o, v) in &g.captures {
            let name = outer
                .names
                .get(o)
                .cloned()
                .unwrap_or_else(|| g.values.get(*v).map_or_else(String::new, |d| d.name.clone()));
            scope.names.insert(*v, name);
        }
        let consts = used_constants(g);
        let results = g.order.iter().filter_map(|n| g.nodes.get(*n)).flat_map(|n| n.outputs.iter().flatten());
        for v in g.inputs.iter().chain(&consts).chain(results) {
            if let Some(d) = g.values.get(*v) {
                scope.add(*v, &d.name);
            }
        }
        let (inputs, outputs) = (self.signature(g, &g.inputs, &scope), self.signature(g, &g.outputs, &scope));
        let head = format!("{before}{}", ident(if g.name.is_empty() { "_" } else { &g.name }));
        let short = format!("{head} ({}) => ({})", inputs.join(", "), outputs.join(", "));
        let open = if consts.is_empty() { " {" } else { "" };
        if short.len() <= WIDTH {
            self.line(&format!("{short}{open}"));
        } else {
            self.line(&format!("{head} ("));
            self.items(&inputs);
            self.line(") => (");
            self.items(&outputs);
            self.line(&format!("){open}"));
        }
        if !consts.is_empty() {
            self.line("<");
            self.indent += 1;
            for (i, v) in consts.iter().enumerate() {
                if let Some(c) = g.constant(*v) {
                    let (ty, comma) =
                        (self.ty(&ValueType::Tensor(c.tensor_type())), if i == 0 { "" } else { ", " });
                    self.line(&format!("{comma}{ty} {} = {}", scope.get(*v), contents(c)));
                }
            }
            self.indent -= 1;
            self.line(">");
            self.line("{");
        }
        self.indent += 1;
        for (i, (v, name)) in g.outputs.iter().zip(&g.output_names).enumerate() {
            if scope.names.get(v) != Some(name) {
                self.line(&comment(&format!("# output {i} is {}", quoted(name))));
            }
        }
        for n in &g.order {
            self.node(g, *n, &scope);
        }
        self.indent -= 1;
        self.line(&format!("}}{after}"));
    }
    fn items(&mut self, list: &[String]) {
        self.indent += 1;
        for (i, t) in list.iter().enumerate() {
            self.line(&format!("{t}{}", if i + 1 < list.len() { "," } else { "" }));
        }
        self.indent -= 1;
    }
    fn signature(&mut self, g: &Graph, values: &[Value], scope: &Scope) -> Vec<String> {
        values
            .iter()
            .map(|v| {
                let ty =
                    g.values.get(*v).and_then(|d| d.ty.as_ref()).map_or(String::new(), |t| self.ty(t) + " ");
                format!("{ty}{}", scope.get(*v))
            })
            .collect()
    }
    fn node(&mut self, g: &Graph, n: Node, scope: &Scope) {
        let Some(node) = g.nodes.get(n) else { return self.line(&format!("# undefined {n}")) };
        self.lines.nodes.push((node.origin.clone(), self.row + 1));
        let names = |list: &[Option<Value>]| {
            list.iter()
                .map(|v| v.map_or_else(|| "\"\"".to_owned(), |v| scope.get(v)))
                .collect::<Vec<_>>()
                .join(", ")
        };
        let label = if node.origin.name.is_empty() {
            String::new()
        } else {
            format!("[{}] ", ident(&node.origin.name))
        };
        let domain =
            if node.schema.domain.is_empty() { String::new() } else { format!("{}.", node.schema.domain) };
        let attrs: Vec<String> = node.attrs.iter().map(|(n, v)| attribute(self, n, v)).collect();
        let attrs = if attrs.is_empty() { String::new() } else { format!(" <{}>", attrs.join(", ")) };
        let text = format!(
            "{label}{} = {domain}{}{attrs} ({})",
            names(&node.outputs),
            node.schema.name,
            names(&node.inputs)
        );
        let mut notes = vec![];
        for v in node.outputs.iter().flatten() {
            notes.extend(self.result(g, *v));
        }
        let imported = self
            .model
            .opsets
            .iter()
            .find(|(d, _)| d == node.schema.domain)
            .and_then(|(d, v)| ops::find(d, node.schema.name, *v).ok());
        if imported.is_none_or(|s| s.since != node.schema.since) {
            notes.push(format!("version {}", node.schema.since));
        }
        let note =
            if notes.is_empty() { String::new() } else { comment(&format!("  # {}", notes.join("; "))) };
        if node.subgraphs.is_empty() {
            return self.line(&format!("{text}{note}"));
        }
        self.line(&format!("{text} <{note}"));
        self.indent += 1;
        for (i, (name, sub)) in node.subgraphs.iter().enumerate() {
            let comma = if i + 1 < node.subgraphs.len() { "," } else { "" };
            self.graph(&format!("{name}: graph = "), comma, sub, scope);
        }
        self.indent -= 1;
        self.line(">");
    }
    /// Type and known contents of a result, or the declared type if none is inferred yet.
    fn result(&mut self, g: &Graph, v: Value) -> Option<String> {
        let d = g.values.get(v)?;
        let ty = match (&d.ty, &d.declared) {
            (Some(t), _) => self.ty(t),
            (None, Some(t)) => format!("declared {}", self.ty(t)),
            (None, None) => return None,
        };
        Some(match &d.known {
            Known::No => ty,
            Known::Const(c) => format!("{ty} = {}", contents(c)),
            Known::Dims(dims) => {
                let list: Vec<String> = dims.iter().map(|d| self.dim(*d)).collect();
                format!("{ty} = {{{}}}", list.join(", "))
            }
        })
    }
}

/// Constants that live nodes, outputs and subgraphs use, in order of first use.
fn used_constants(g: &Graph) -> Vec<Value> {
    let mut seen = HashSet::new();
    let nodes = g.order.iter().filter_map(|n| g.nodes.get(*n));
    let used = nodes.flat_map(|n| {
        n.inputs
            .iter()
            .flatten()
            .chain(n.subgraphs.iter().flat_map(|(_, s)| s.captures.iter().map(|(o, _)| o)))
    });
    used.chain(&g.outputs)
        .filter(|v| g.values.get(**v).is_some_and(|d| matches!(d.def, Def::Const(_))) && seen.insert(**v))
        .copied()
        .collect()
}

/// Values of a small constant as ONNX text, or the hash of a large one.
fn contents(c: &ConstData) -> String {
    let hash = || format!("#{}", c.short_hash());
    if c.count() > FEW {
        return hash();
    }
    let b = c.bytes();
    // Complex numbers are shown as both their parts.
    let list: Vec<String> = match c.elem().part().unwrap_or(c.elem()) {
        ElemType::F32 => b
            .chunks_exact(4)
            .map(|x| float(format!("{:?}", f32::from_le_bytes([x[0], x[1], x[2], x[3]]))))
            .collect(),
        ElemType::F64 => b
            .chunks_exact(8)
            .map(|x| {
                float(format!("{:?}", f64::from_le_bytes([x[0], x[1], x[2], x[3], x[4], x[5], x[6], x[7]])))
            })
            .collect(),
        // ONNX text has these as bit patterns.
        ElemType::F16 | ElemType::BF16 => {
            b.chunks_exact(2).map(|x| u16::from_le_bytes([x[0], x[1]]).to_string()).collect()
        }
        ElemType::U64 => c.to_i64s().unwrap_or_default().iter().map(|v| (*v as u64).to_string()).collect(),
        e if e == ElemType::Bool || e.is_int() => match c.to_i64s() {
            Some(v) => v.iter().map(i64::to_string).collect(),
            None => return hash(),
        },
        _ => return hash(),
    };
    format!("{{{}}}", list.join(", "))
}

/// Shortest text that reads back as the same float; ONNX writes nan in small letters.
fn float(s: String) -> String {
    if s == "NaN" { "nan".into() } else { s }
}

/// An attribute in ONNX text; an empty list needs its kind.
fn attribute(p: &mut Printer, name: &str, value: &AttrValue) -> String {
    if let AttrValue::Type(t) = value {
        return format!("{name}: type_proto = {}", p.ty(t));
    }
    let list = |kind: &str, v: Vec<String>| {
        if v.is_empty() { format!("{name}: {kind} = []") } else { format!("{name} = [{}]", v.join(", ")) }
    };
    let mut tensor = |t: &ConstData| format!("{} {}", p.ty(&ValueType::Tensor(t.tensor_type())), contents(t));
    let text = |s: &[u8]| quoted(&String::from_utf8_lossy(s));
    let number = |f: &f32| float(format!("{f:?}"));
    match value {
        AttrValue::Int(i) => format!("{name} = {i}"),
        AttrValue::Float(f) => format!("{name} = {}", number(f)),
        AttrValue::String(s) => format!("{name} = {}", text(s)),
        AttrValue::Tensor(t) => format!("{name} = {}", tensor(t)),
        AttrValue::Ints(v) => list("ints", v.iter().map(i64::to_string).collect()),
        AttrValue::Floats(v) => list("floats", v.iter().map(number).collect()),
        AttrValue::Strings(v) => list("strings", v.iter().map(|s| text(s)).collect()),
        // Handled above.
        AttrValue::Type(_) => String::new(),
        AttrValue::Tensors(v) => list("tensors", v.iter().map(|t| tensor(t)).collect()),
    }
}
