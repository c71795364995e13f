//! Checks every function before any call is inlined, including functions that are never called.

use super::{Function, Functions, Key, Opsets, STANDARD, domain, known, opsets, show};
use crate::diag::{Error, Findings, Origin, codes};
use crate::onnx::proto::{FunctionProto, GraphProto, ModelProto, NodeProto};
use crate::onnx::{attributes, scopes};
use crate::ops;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

/// Fills the table of functions. A function with an error is entered and marked as broken.
pub fn run(
    functions: &mut Functions,
    model: &ModelProto,
    sets: &Opsets,
    origin: &Origin,
    findings: &mut Findings,
) {
    let ir = model.ir_version.unwrap_or(0);
    for (i, f) in model.functions.iter().enumerate() {
        let key: Key = (
            domain(f.domain.as_deref()).to_owned(),
            f.name.clone().unwrap_or_default(),
            f.overload.clone().unwrap_or_default(),
        );
        let mut own = Findings::default();
        let at = origin.element(format!("function {}", show(&key)));
        let fail = |title: &str| Error::new(codes::FUNCTION_INVALID, title).at(&at);
        if key.1.is_empty() {
            let e = Error::new(codes::FUNCTION_INVALID, "the function has no name")
                .at(&origin.element(format!("function {i}")));
            own.push(
                e.found_expected("an empty name", "a name")
                    .help("name the function as the nodes that call it do"),
            );
        }
        if f.domain.is_none() && ir >= 8 {
            let e = fail("the function has no domain")
                .found_expected("no domain field", "a domain, which may be an empty text");
            own.push(e.help("set the function's domain as in the nodes that call it"));
        }
        let opsets = opsets(&f.opset_import, true, &at, &mut own);
        lists(f, &at, &mut own);
        defaults(f, &key, ir, &at, &mut own);
        let path = format!("function {}", show(&key));
        scopes::check_function(f, ir, &path, origin, &mut own);
        let mut body = Body {
            f,
            key: &key,
            opsets: &opsets,
            origin,
            path: &path,
            findings: &mut own,
            domains: BTreeSet::new(),
            references: BTreeSet::new(),
        };
        body.nodes(&f.node, &path);
        if functions.table.contains_key(&key) {
            let e = fail("the function is defined twice")
                .found_expected(format!("two functions {}", show(&key)), "one, or different overloads");
            own.push(e.help("remove one of them, or give it another name or overload"));
        }
        let broken = own.has_errors();
        own.warnings().iter().chain(own.errors()).for_each(|e| findings.push(e.clone()));
        functions.table.insert(key, Function { proto: f.clone(), opsets: Arc::new(opsets), broken });
    }
    recursion(functions, origin, findings);
    operators(functions, model, sets, origin, findings);
}

/// Checks that the names in the lists of a function are unique.
fn lists(f: &FunctionProto, at: &Origin, findings: &mut Findings) {
    let defaults: Vec<String> = f.attribute_proto.iter().filter_map(|a| a.name.clone()).collect();
    let attributes: Vec<String> = f.attribute.iter().chain(&defaults).cloned().collect();
    // A repeated input is a repeated definition, which `scopes` reports.
    for (what, list) in [("output", &f.output), ("attribute", &attributes)] {
        let mut seen = HashSet::new();
        for name in list.iter().filter(|n| !seen.insert(n.as_str())) {
            let e =
                Error::new(codes::FUNCTION_INVALID, format!("the function has the {what} \"{name}\" twice"))
                    .at(at);
            let both = what == "attribute" && f.attribute.contains(name) && defaults.contains(name);
            let found = if both { "one with a default and one without" } else { "two entries" };
            findings.push(e.found_expected(found, "one entry").help("remove one of them"));
        }
    }
    for (what, list) in [("input", &f.input), ("output", &f.output), ("attribute", &f.attribute)] {
        if let Some(i) = list.iter().position(String::is_empty) {
            let e =
                Error::new(codes::FUNCTION_INVALID, format!("{what} {i} of the function has no name")).at(at);
            findings.push(e.found_expected("an empty name", "a name").help("name it"));
        }
    }
}

/// Checks that entries of attribute_proto are complete attributes: name, type, value, no reference.
fn defaults(f: &FunctionProto, key: &Key, ir: i64, at: &Origin, findings: &mut Findings) {
    let owner = format!("function {}", show(key));
    for (i, a) in f.attribute_proto.iter().enumerate() {
        if a.name.as_deref().unwrap_or("").is_empty() {
            let e =
                Error::new(codes::OP_ATTRIBUTE, format!("attribute_proto {i} of {owner} has no name")).at(at);
            findings.push(
                e.found_expected("an empty name", "the name of an attribute")
                    .help("set the attribute's name"),
            );
        } else if let Some(r) = attributes::reference(a) {
            let e =
                Error::new(codes::OP_ATTRIBUTE, format!("{} is a reference", attributes::title(a, &owner)))
                    .at(at);
            findings.push(
                e.found_expected(format!("reference \"{r}\""), "a default value")
                    .help("list it in FunctionProto.attribute if it has no default"),
            );
        } else if let Err(crate::diag::Failure::Errors(e)) = attributes::kind(a, &owner, ir, at) {
            e.into_iter().for_each(|e| findings.push(e));
        }
    }
}

struct Body<'a> {
    f: &'a FunctionProto,
    key: &'a Key,
    opsets: &'a Opsets,
    origin: &'a Origin,
    path: &'a str,
    findings: &'a mut Findings,
    /// Domains and references that have been reported.
    domains: BTreeSet<String>,
    references: BTreeSet<String>,
}

impl Body<'_> {
    fn nodes(&mut self, nodes: &[NodeProto], path: &str) {
        for (i, n) in nodes.iter().enumerate() {
            if self.findings.is_full() {
                return;
            }
            let at = scopes::origin_of(self.origin, path, n, i);
            let d = domain(n.domain.as_deref());
            if !self.opsets.contains_key(d) && self.domains.insert(d.to_owned()) {
                let shown = if d.is_empty() { "ai.onnx" } else { d };
                let mut have: Vec<&str> =
                    self.opsets.keys().map(|d| if d.is_empty() { "ai.onnx" } else { d.as_str() }).collect();
                have.sort_unstable();
                let have = if have.is_empty() {
                    "no imports".into()
                } else {
                    format!("imports of {}", have.join(", "))
                };
                let e = Error::new(
                    codes::OPSET_IMPORT,
                    format!("{} imports no operator set of domain {shown}", self.path),
                )
                .at(&at);
                let e = e.found_expected(have, format!("an opset_import entry for {shown} in the function"));
                self.findings
                    .push(e.help("nodes of a function bind by its own imports: add one to the function"));
            }
            for a in &n.attribute {
                if let Some(r) = attributes::reference(a) {
                    self.reference(a.name.as_deref().unwrap_or(""), r, &at);
                    if let Err(crate::diag::Failure::Errors(e)) = attributes::check_reference(a, &at.op, &at)
                    {
                        e.into_iter().for_each(|e| self.findings.push(e));
                    }
                }
                for g in a.g.iter().chain(&a.graphs) {
                    self.nodes(&g.node, &scopes::inside(path, n, i, a.name.as_deref().unwrap_or("")));
                }
            }
        }
    }
    fn reference(&mut self, attribute: &str, r: &str, at: &Origin) {
        let defaults = self.f.attribute_proto.iter().filter_map(|a| a.name.as_deref());
        let declared: Vec<&str> = self.f.attribute.iter().map(String::as_str).chain(defaults).collect();
        if declared.contains(&r) || !self.references.insert(r.to_owned()) {
            return;
        }
        let have = if declared.is_empty() {
            "none: the function has no attributes".to_owned()
        } else {
            format!("one of {}", declared.join(", "))
        };
        let title = format!(
            "attribute \"{attribute}\" refers to \"{r}\", which function {} does not have",
            show(self.key)
        );
        let e = Error::new(codes::FUNCTION_INVALID, title).at(at).found_expected(format!("@{r}"), have);
        self.findings.push(e.help("declare the attribute in the function, or correct the reference"));
    }
}

/// All nodes of a list and of nested graphs, each once.
fn each<'a>(nodes: &'a [NodeProto], see: &mut dyn FnMut(&'a NodeProto)) {
    for n in nodes {
        see(n);
        for g in n.attribute.iter().flat_map(|a| a.g.iter().chain(&a.graphs)) {
            each(&g.node, see);
        }
    }
}

impl Functions {
    fn callees(&self, nodes: &[NodeProto], sets: &Opsets) -> Vec<Key> {
        let mut out = BTreeSet::new();
        each(nodes, &mut |n| out.extend(self.find(n, sets).map(|f| f.0.clone())));
        out.into_iter().collect()
    }
}

/// Functions that call themselves, directly or indirectly, also in nested graphs.
fn recursion(functions: &mut Functions, origin: &Origin, findings: &mut Findings) {
    let calls: BTreeMap<Key, Vec<Key>> = functions
        .table
        .iter()
        .map(|(k, f)| (k.clone(), functions.callees(&f.proto.node, &f.opsets)))
        .collect();
    let mut done: BTreeSet<&Key> = BTreeSet::new();
    let mut cycles: Vec<Vec<&Key>> = vec![];
    for root in calls.keys() {
        // A stack of functions, each with the number of its callees that have been visited.
        let mut way: Vec<(&Key, usize)> = if done.contains(root) { vec![] } else { vec![(root, 0)] };
        let mut open: BTreeSet<&Key> = way.iter().map(|w| w.0).collect();
        while let Some((k, i)) = way.last_mut() {
            let Some(next) = calls.get(*k).and_then(|c| c.get(*i)) else {
                open.remove(*k);
                done.insert(*k);
                way.pop();
                continue;
            };
            *i += 1;
            if open.contains(next) {
                let from = way.iter().position(|w| w.0 == next).unwrap_or(0);
                cycles.push(way[from..].iter().map(|w| w.0).collect());
            } else if !done.contains(next) {
                open.insert(next);
                way.push((next, 0));
            }
        }
    }
    for c in cycles {
        let text: Vec<String> = c.iter().chain(c.first()).map(|k| show(k)).collect();
        let e = Error::new(codes::FUNCTION_INVALID, format!("function {} calls itself", text[0]))
            .at(&origin.element(format!("function {}", text[0])));
        let e = e.found_expected(text.join(" -> "), "functions whose calls form no cycle");
        findings.push(e.help("write the repetition as a Loop or Scan node"));
        for k in c {
            if let Some(f) = functions.table.get_mut(k) {
                f.broken = true;
            }
        }
    }
}

/// Warnings about functions with an operator's name, operators whose meaning differs between the function and
/// the model, and unsupported operators in functions that are never called.
fn operators(
    functions: &Functions,
    model: &ModelProto,
    sets: &Opsets,
    origin: &Origin,
    findings: &mut Findings,
) {
    let mut used: BTreeSet<Key> = BTreeSet::new();
    let mut todo = functions.callees(model.graph.as_ref().map_or(&[][..], |g| &g.node), sets);
    while let Some(k) = todo.pop() {
        if let Some(f) = functions.table.get(&k)
            && used.insert(k)
        {
            todo.extend(functions.callees(&f.proto.node, &f.opsets));
        }
    }
    for (key, f) in &functions.table {
        let at = origin.element(format!("function {}", show(key)));
        if key.2.is_empty() && sets.get(&key.0).is_some_and(|v| known(&key.0, &key.1, *v)) {
            let wins = if STANDARD.contains(&key.0.as_str()) {
                "the operator is used"
            } else {
                "the function is used"
            };
            let e = Error::warning(
                codes::FUNCTION_INVALID,
                format!("function {} has the name of an operator: {wins}", show(key)),
            )
            .at(&at);
            let e =
                e.found_expected(format!("a function and an operator {}", show(key)), "a name of its own");
            findings.push(
                e.help("rename the function and its calls if they mean something else than the operator"),
            );
        }
        let (mut differ, mut unknown) = (BTreeSet::new(), BTreeSet::new());
        each(&f.proto.node, &mut |n| {
            if functions.find(n, &f.opsets).is_some() {
                return;
            }
            let (d, op) = (domain(n.domain.as_deref()), n.op_type.as_deref().unwrap_or(""));
            let Some(own) = f.opsets.get(d) else { return };
            let since =
                |v: i64| ops::schema::versions(d, op).iter().rev().find(|s| s.since <= v).map(|s| s.since);
            if let Some(v) = sets.get(d).filter(|v| since(*own).is_some() && since(**v) != since(*own)) {
                differ.insert(format!(
                    "{} (opset {own} in the function, {v} in the model)",
                    ops::dotted(d, op)
                ));
            }
            if !used.contains(key) && !op.is_empty() && !known(d, op, *own) {
                unknown.insert(ops::dotted(d, op));
            }
        });
        let join = |s: &BTreeSet<String>| s.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
        if !differ.is_empty() {
            let e = Error::warning(
                codes::FUNCTION_INVALID,
                "a function and the model import versions in \
                which operators differ: the function's count in it",
            )
            .at(&at);
            findings.push(
                e.found_expected(join(&differ), "the same operators in both")
                    .help("import the same versions in the function and the model"),
            );
        }
        if !unknown.is_empty() {
            let e = Error::warning(
                codes::FUNCTION_INVALID,
                "a function that nothing calls has operators that are not supported",
            )
            .at(&at);
            findings.push(
                e.found_expected(join(&unknown), "operators that docs/operators.md lists")
                    .help("remove the function"),
            );
        }
    }
}

/// Numbers n such that a name of the model contains `.n/`.
pub fn numbers(model: &ModelProto) -> HashSet<usize> {
    let mut out = HashSet::new();
    let mut see = |name: &str| {
        for (i, _) in name.match_indices('/') {
            let digits = name[..i].bytes().rev().take_while(u8::is_ascii_digit).count();
            if digits > 0 && name[..i - digits].ends_with('.') {
                out.extend(name[i - digits..i].parse::<usize>());
            }
        }
    };
    fn graph(g: &GraphProto, see: &mut dyn FnMut(&str)) {
        g.input.iter().chain(&g.output).filter_map(|v| v.name.as_deref()).for_each(&mut *see);
        g.initializer.iter().filter_map(|t| t.name.as_deref()).for_each(&mut *see);
        g.sparse_initializer.iter().filter_map(|t| t.values.as_ref()?.name.as_deref()).for_each(&mut *see);
        nodes(&g.node, see);
    }
    fn nodes(list: &[NodeProto], see: &mut dyn FnMut(&str)) {
        for n in list {
            n.output.iter().chain(&n.name).chain(&n.input).for_each(|s| see(s));
            n.attribute.iter().flat_map(|a| a.g.iter().chain(&a.graphs)).for_each(|g| graph(g, see));
        }
    }
    model.graph.iter().for_each(|g| graph(g, &mut see));
    for f in &model.functions {
        f.input.iter().chain(&f.output).chain(&f.name).for_each(|s| see(s));
        nodes(&f.node, &mut see);
    }
    out
}
