//! Names and order in graphs and function bodies, checked on the protobuf before the import (IR.md, "Nodes"
//! and "Names Within a Graph").
//!
//! 1. A name has one definition in a graph: an input, an initializer or the output of a node.
//! 2. A definition precedes its uses. Nested graphs also see the definitions of the enclosing graphs that
//!    precede their node.
//! 3. A node of a nested graph does not define a name that is visible from outside. Inputs and initializers
//!    that do are warned about, and shadow the outer definition.
//! 4. The outputs of a graph are defined in that graph.
//!
//! The importer relies on this: a name that it cannot resolve has been reported here.

use super::attributes::PRIVATE;
use super::functions::{domain, operator};
use super::proto::{FunctionProto, GraphProto, NodeProto, TypeProto, type_proto};
use crate::diag::origin::place;
use crate::diag::{Error, Findings, Origin, codes, limits};
use std::collections::{HashMap, HashSet};

/// The path of a node's graph attribute within `path`.
pub fn inside(path: &str, n: &NodeProto, index: usize, attribute: &str) -> String {
    let at = place(index, n.name.as_deref().unwrap_or(""), &operator(n));
    let sep = if path.is_empty() { "" } else { " > " };
    format!("{path}{sep}{at} {attribute}")
}

/// Where a node is. The operator set version is left open.
pub fn origin_of(base: &Origin, path: &str, n: &NodeProto, index: usize) -> Origin {
    let output = n.output.iter().find(|o| !o.is_empty()).cloned().unwrap_or_default();
    let name = n.name.clone().unwrap_or_default();
    Origin { graph: path.to_owned(), node: Some(index), name, op: operator(n), output, ..base.clone() }
}

/// Path and index of nodes with an error in one of their graphs.
pub type Broken = HashSet<(String, usize)>;

/// Checks the main graph and all nested graphs.
pub fn check_graph(g: &GraphProto, ir: i64, base: &Origin, findings: &mut Findings) -> Broken {
    let mut s =
        Scopes { findings, base: base.clone(), ir, levels: vec![], function: false, broken: HashSet::new() };
    s.graph(g, String::new());
    s.broken
}

/// Checks the body of a function; `path` is its name in messages.
pub fn check_function(f: &FunctionProto, ir: i64, path: &str, base: &Origin, findings: &mut Findings) {
    let mut s =
        Scopes { findings, base: base.clone(), ir, levels: vec![], function: true, broken: HashSet::new() };
    s.function(f, path.to_owned());
}

/// The kind of definition of a name.
#[derive(Clone, Copy)]
enum Site {
    Input(usize),
    Initializer,
    Node(usize),
}

/// One graph of the path from the outermost one to the one being checked.
struct Level<'a> {
    names: HashMap<&'a str, Site>,
    nodes: &'a [NodeProto],
    /// The current node.
    at: usize,
    /// Undefined names that have been reported.
    reported: HashSet<&'a str>,
    path: String,
}

impl Level<'_> {
    fn show(&self, site: Site) -> String {
        match site {
            Site::Input(i) => format!("input {i}"),
            Site::Initializer => "an initializer".into(),
            Site::Node(i) => self.node(i),
        }
    }
    fn node(&self, i: usize) -> String {
        let n = &self.nodes[i];
        place(i, n.name.as_deref().unwrap_or(""), &operator(n))
    }
}

struct Scopes<'a, 'f> {
    findings: &'f mut Findings,
    base: Origin,
    ir: i64,
    levels: Vec<Level<'a>>,
    /// True if the outermost level is the body of a function.
    function: bool,
    broken: Broken,
}

impl<'a> Scopes<'a, '_> {
    fn here(&self) -> Origin {
        let graph = self.levels.last().map(|l| l.path.clone()).unwrap_or_default();
        Origin { graph, ..self.base.clone() }
    }
    fn error(&mut self, title: String, at: &Origin) -> Error {
        Error::new(codes::GRAPH_INVALID, title).at(at)
    }
    fn open(&mut self, path: String, nodes: &'a [NodeProto]) {
        self.levels.push(Level { names: HashMap::new(), nodes, at: 0, reported: HashSet::new(), path });
    }
    fn graph(&mut self, g: &'a GraphProto, path: String) {
        // The importer rejects deeper graphs.
        if limits::GRAPH_DEPTH.exceeded_by(self.levels.len() as u64 + 1) {
            return;
        }
        self.open(path, &g.node);
        let here = self.here();
        if g.name.as_deref().unwrap_or("").is_empty() {
            let which = if self.levels.len() == 1 {
                "the main graph has no name"
            } else {
                "the nested graph has no name"
            };
            let e = self
                .error(which.into(), &here)
                .found_expected("GraphProto.name is empty or absent", "a name");
            self.findings.push(e.help("set the graph's name; any text will do"));
        }
        for (i, v) in g.input.iter().enumerate() {
            let name = v.name.as_deref().unwrap_or("");
            if name.is_empty() {
                let e = self
                    .error(format!("input {i} has no name"), &here)
                    .found_expected("an empty name", "a name of its own");
                self.findings.push(e);
            } else {
                self.define(name, Site::Input(i), &here.element(format!("input {i} \"{name}\"")));
            }
        }
        self.initializers(g, &here);
        self.hints(g, &here);
        self.nodes();
        for (k, o) in g.output.iter().enumerate() {
            self.output(o.name.as_deref().unwrap_or(""), k, &here);
        }
        if self.levels.len() == 1 {
            self.interface(g, &here);
        }
        self.levels.pop();
    }
    fn function(&mut self, f: &'a FunctionProto, path: String) {
        self.open(path, &f.node);
        let here = self.here();
        for (i, name) in f.input.iter().enumerate() {
            self.define(name, Site::Input(i), &here.element(format!("input {i} \"{name}\"")));
        }
        self.nodes();
        for (k, name) in f.output.iter().enumerate() {
            self.output(name, k, &here);
        }
        self.levels.pop();
    }
    /// Checks initializers. In the main graph, an input with an initializer has a default value. In a nested
    /// graph it is a constant, up to IR version 3.
    fn initializers(&mut self, g: &'a GraphProto, here: &Origin) {
        let dense = g.initializer.iter().map(|t| t.name.as_deref());
        let sparse = g.sparse_initializer.iter().map(|t| t.values.as_ref().and_then(|v| v.name.as_deref()));
        let names: Vec<&str> = dense.chain(sparse).flatten().filter(|n| !n.is_empty()).collect();
        let mut seen = HashSet::new();
        for name in &names {
            let input = self
                .levels
                .last()
                .and_then(|l| l.names.get(name))
                .is_some_and(|s| matches!(s, Site::Input(_)));
            let at = here.element(format!("initializer \"{name}\""));
            if !seen.insert(*name) || !input {
                self.define(name, Site::Initializer, &at);
            } else if self.levels.len() > 1 && self.ir >= 4 {
                let e = self
                    .error(format!("\"{name}\" is both an input and an initializer of a nested graph"), &at);
                let e = e.found_expected(
                    format!("both, at IR version {}", self.ir),
                    "one of them, from IR version 4 on",
                );
                self.findings
                    .push(e.help("remove the input if the value is a constant, else the initializer"));
            }
        }
        if self.levels.len() > 1 && self.ir < 4 {
            let constant: Vec<bool> =
                g.input.iter().map(|v| v.name.as_deref().is_some_and(|n| seen.contains(n))).collect();
            if let Some(first) = constant.iter().position(|c| *c)
                && let Some(late) = constant.iter().rposition(|c| !c).filter(|l| *l > first)
            {
                let name = |i: usize| g.input[i].name.clone().unwrap_or_default();
                let e = self.error(
                    format!(
                        "input {first} \"{}\" of a nested graph is a constant before an actual input",
                        name(first)
                    ),
                    here,
                );
                let e = e.found_expected(
                    format!("input {late} \"{}\" behind it", name(late)),
                    "inputs with initializers behind all others",
                );
                self.findings.push(e.help("remove the constant from the graph's inputs"));
            }
        }
    }
    fn hints(&mut self, g: &'a GraphProto, here: &Origin) {
        let mut seen = HashSet::new();
        for v in &g.value_info {
            let name = v.name.as_deref().unwrap_or("");
            if !name.is_empty() && !seen.insert(name) {
                let e = Error::warning(
                    codes::GRAPH_INVALID,
                    format!("value_info has two entries for \"{name}\""),
                )
                .at(here);
                self.findings.push(
                    e.found_expected("two entries", "one").help("remove one of them: the last one counts"),
                );
            }
        }
    }
    /// Checks the types of the main graph's outputs. Missing ones are inferred.
    fn interface(&mut self, g: &'a GraphProto, here: &Origin) {
        if g.output.is_empty() {
            let e = Error::warning(codes::GRAPH_INVALID, "the model has no outputs: it computes nothing")
                .at(here);
            self.findings.push(
                e.found_expected("no outputs", "one or more")
                    .help("add the values that you want to the graph's outputs"),
            );
        }
        for o in &g.output {
            let name = o.name.as_deref().unwrap_or("");
            let missing = match &o.r#type {
                Some(TypeProto { value: Some(type_proto::Value::TensorType(t)), .. })
                    if t.shape.is_none() =>
                {
                    "shape"
                }
                Some(TypeProto { value: Some(_), .. }) => continue,
                _ => "type",
            };
            let e = Error::warning(codes::TYPE_INVALID, format!("the output has no {missing}"))
                .at(&here.element(format!("output \"{name}\"")));
            let expected = format!("a {missing} for every output of the model");
            self.findings.push(
                e.found_expected(format!("no {missing}: the inferred one is taken"), expected)
                    .help("run onnx.shape_inference over the model"),
            );
        }
    }
    fn nodes(&mut self) {
        let nodes = self.levels.last().map_or(&[][..], |l| l.nodes);
        for (i, n) in nodes.iter().enumerate() {
            if self.findings.is_full() {
                return;
            }
            let Some(l) = self.levels.last_mut() else { return };
            l.at = i;
            let path = l.path.clone();
            let at = origin_of(&self.base, &path, n, i);
            if n.op_type.as_deref().unwrap_or("").is_empty() {
                let shown = if domain(n.domain.as_deref()).is_empty() {
                    String::new()
                } else {
                    format!(" of domain {}", at.op.trim_end_matches('.'))
                };
                let at = Origin { op: String::new(), ..at.clone() };
                let e = self
                    .error(format!("a node{shown} has no operator"), &at)
                    .found_expected("op_type is empty or absent", "the name of an operator or function");
                self.findings.push(e.help("set the node's op_type"));
            }
            if n.output.is_empty() {
                let e = self
                    .error("the node has no outputs".into(), &at)
                    .found_expected("no outputs", "one or more");
                self.findings.push(e.help("remove the node: it computes nothing"));
            }
            for (k, name) in n.input.iter().enumerate().filter(|(_, s)| !s.is_empty()) {
                self.uses(name, k, &at);
            }
            let errors = self.findings.count();
            for a in n.attribute.iter().filter(|a| !a.name.as_deref().unwrap_or("").starts_with(PRIVATE)) {
                for g in a.g.iter().chain(&a.graphs) {
                    self.graph(g, inside(&path, n, i, a.name.as_deref().unwrap_or("")));
                }
            }
            if self.findings.count() > errors {
                self.broken.insert((path, i));
            }
            for name in n.output.iter().filter(|s| !s.is_empty()) {
                self.define(name, Site::Node(i), &at);
            }
        }
    }
    fn define(&mut self, name: &'a str, site: Site, at: &Origin) {
        let Some((here, outer)) = self.levels.split_last_mut() else { return };
        let again = here.show(site);
        if let Some(first) = here.names.get(name) {
            let e = Error::new(codes::GRAPH_INVALID, format!("the name \"{name}\" is defined twice")).at(at);
            let e = e.row("first", here.show(*first)).row("again", again);
            self.findings.push(e.help("give one of them another name"));
            return;
        }
        let hidden = outer.iter().rev().find_map(|l| Some((l, *l.names.get(name)?)));
        here.names.insert(name, site);
        let Some((l, first)) = hidden else { return };
        let outer =
            if l.path.is_empty() { l.show(first) } else { format!("{} in {}", l.show(first), l.path) };
        let e = match site {
            Site::Node(_) => Error::new(
                codes::GRAPH_INVALID,
                format!("the output \"{name}\" of a nested graph's node hides a value of the graph around"),
            ),
            _ => Error::warning(
                codes::GRAPH_INVALID,
                format!(
                    "\"{name}\" of a nested graph hides a value of the graph around; inside, the inner one \
                        counts"
                ),
            ),
        };
        self.findings
            .push(e.at(at).row("outside", outer).row("inside", again).help("give one of them another name"));
    }
    fn uses(&mut self, name: &'a str, k: usize, at: &Origin) {
        if self.levels.iter().rev().any(|l| l.names.contains_key(name)) {
            return;
        }
        if !self.levels.last_mut().is_some_and(|l| l.reported.insert(name)) {
            return;
        }
        let later = self.levels.iter().rev().find_map(|l| {
            let j = l.nodes.iter().skip(l.at).position(|n| n.output.iter().any(|o| o == name))? + l.at;
            Some((l, j))
        });
        let before = "an input, an initializer or the output of an earlier node";
        let e = match later {
            Some((l, j)) if j == l.at => {
                let e = Error::new(
                    codes::GRAPH_INVALID,
                    format!("input {k} \"{name}\" is a result of the node itself"),
                );
                e.found_expected(format!("{} defines \"{name}\"", l.node(j)), before)
                    .help("a node cannot use its own results: carry the value with Loop or Scan")
            }
            Some((l, j)) => match cycle(l.nodes, l.at, j) {
                Some(path) => {
                    let e = Error::new(
                        codes::GRAPH_INVALID,
                        format!(
                            "input {k} \"{name}\" depends on this node's own results: the nodes form a cycle"
                        ),
                    );
                    let way = path.iter().map(|i| l.node(*i)).collect::<Vec<_>>().join(" <- ");
                    e.row("cycle", format!("{} <- {way}", l.node(l.at)))
                        .row("expected", before)
                        .help("break the cycle: carry the value with Loop or Scan")
                }
                None => {
                    let e = Error::new(
                        codes::GRAPH_INVALID,
                        format!("input {k} \"{name}\" is used before its definition"),
                    );
                    e.found_expected(format!("{} defines it later", l.node(j)), before)
                        .help("sort the nodes topologically")
                }
            },
            None => {
                let e = Error::new(codes::GRAPH_INVALID, format!("input {k} \"{name}\" is not defined"));
                let e = e
                    .found_expected("no definition of that name", before)
                    .help("check the spelling, or add what the name stands for");
                if self.function {
                    e.note("a function sees only its own inputs and the results of its nodes")
                } else {
                    e
                }
            }
        };
        self.findings.push(e.at(at));
    }
    fn output(&mut self, name: &'a str, k: usize, here: &Origin) {
        let Some((own, outer)) = self.levels.split_last() else { return };
        if own.names.contains_key(name) || self.findings.is_full() {
            return;
        }
        let at = here.element(format!("output {k} \"{name}\""));
        let expected = "an input, an initializer or the output of a node of this graph";
        let e = if name.is_empty() {
            Error::new(codes::GRAPH_INVALID, format!("output {k} has no name"))
                .found_expected("an empty name", expected)
        } else if let Some((l, site)) = outer.iter().rev().find_map(|l| Some((l, *l.names.get(name)?))) {
            let e = Error::new(
                codes::GRAPH_INVALID,
                format!("the output \"{name}\" of a nested graph is a value of the graph around"),
            );
            e.found_expected(format!("{} outside", l.show(site)), expected)
                .help("pass it through an Identity node inside")
        } else {
            let e = Error::new(codes::GRAPH_INVALID, format!("the output \"{name}\" is never computed"));
            e.found_expected("no definition of that name", expected)
                .help("check the spelling, or remove it from the outputs")
        };
        self.findings.push(e.at(&at));
    }
}

/// Names that a node uses, including those used in nested graphs.
fn used<'a>(n: &'a NodeProto, out: &mut Vec<&'a str>) {
    out.extend(n.input.iter().map(String::as_str).filter(|s| !s.is_empty()));
    for g in n.attribute.iter().flat_map(|a| a.g.iter().chain(&a.graphs)) {
        g.node.iter().for_each(|n| used(n, out));
        out.extend(g.output.iter().filter_map(|o| o.name.as_deref()));
    }
}

/// The path along which node `from` depends on node `to`, both included, if there is one.
fn cycle(nodes: &[NodeProto], to: usize, from: usize) -> Option<Vec<usize>> {
    let mut makers: HashMap<&str, usize> = HashMap::new();
    for (i, n) in nodes.iter().enumerate() {
        for o in n.output.iter().filter(|o| !o.is_empty()) {
            makers.entry(o).or_insert(i);
        }
    }
    let mut came: HashMap<usize, usize> = HashMap::new();
    let mut todo = vec![from];
    while let Some(i) = todo.pop() {
        let mut names = vec![];
        used(&nodes[i], &mut names);
        for j in names.into_iter().filter_map(|n| makers.get(n).copied()) {
            if j != from && came.contains_key(&j) {
                continue;
            }
            came.insert(j, i);
            if j == to {
                let (mut path, mut k) = (vec![to], to);
                while k != from {
                    k = came[&k];
                    path.push(k);
                }
                path.reverse();
                return Some(path);
            }
            if j != from {
                todo.push(j);
            }
        }
    }
    None
}
