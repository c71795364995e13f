//! Model-local functions: calls are replaced by the function's nodes (IR.md, "Functions").
//!
//! `check` checks every function before any call is inlined. A call of a broken function is not inlined, and
//! uses of its results are not reported. The names of a body are local to the function, so each gets the
//! call's prefix; formal inputs and outputs are replaced by the actual ones. An attribute reference is
//! replaced by the call's attribute, else by the function's default; without either, the attribute is absent.
//! Bodies keep the operator sets that the function imports. In the domains that ONNX defines, an operator
//! that onnxc supports takes precedence over a function of the same name; in other domains the function does.

mod check;
mod rename;

use super::attributes;
use super::proto::{
    AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto,
    attribute_proto::AttributeType,
};
use crate::diag::origin::place;
use crate::diag::{Error, Findings, Origin, codes, limits};
use crate::ops;
use prost::Message as _;
use rename::Rename;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

/// Domains whose operators ONNX defines.
const STANDARD: &[&str] =
    &["", "ai.onnx.ml", "ai.onnx.training", "ai.onnx.preview", "ai.onnx.preview.training"];

/// Operator set versions by domain ("" is ai.onnx).
pub type Opsets = HashMap<String, i64>;

/// Normalizes a domain: "ai.onnx" is "".
pub fn domain(d: Option<&str>) -> &str {
    match d {
        None | Some("ai.onnx") => "",
        Some(d) => d,
    }
}

/// The operator of a node with its domain, for messages.
pub fn operator(n: &NodeProto) -> String {
    ops::dotted(domain(n.domain.as_deref()), n.op_type.as_deref().unwrap_or(""))
}

/// Reads the opset imports of a model or, if `function`, of a function. The highest version of a domain is
/// used; a function must import a domain only once.
pub fn opsets(
    list: &[OperatorSetIdProto],
    function: bool,
    origin: &Origin,
    findings: &mut Findings,
) -> Opsets {
    let mut out = Opsets::new();
    for o in list {
        let d = domain(o.domain.as_deref()).to_owned();
        let shown = if d.is_empty() { "ai.onnx".to_owned() } else { d.clone() };
        let found = o.version.map_or("no version".into(), |v| v.to_string());
        let v = o.version.filter(|v| *v >= 1).unwrap_or_else(|| {
            let e = Error::new(
                codes::OPSET_IMPORT,
                format!("the import of operator set {shown} has no valid version"),
            )
            .at(origin);
            findings.push(
                e.found_expected(found, "a version of 1 or more")
                    .help("import the version that the model was written for"),
            );
            ops::schema::newest(&d).unwrap_or(1)
        });
        let Some(old) = out.insert(d.clone(), v).filter(|old| *old != v) else { continue };
        out.insert(d, v.max(old));
        let title = format!("operator set {shown} is imported twice, with different versions");
        let e = if function {
            Error::new(codes::OPSET_IMPORT, title)
        } else {
            Error::warning(codes::OPSET_IMPORT, title + ": the highest counts")
        };
        findings.push(
            e.at(origin)
                .found_expected(format!("versions {old} and {v}"), "one version")
                .help("remove one of the opset_import entries"),
        );
    }
    out
}

/// A node after inlining, with the context that its meaning depends on.
#[derive(Clone, Debug)]
pub struct FlatNode {
    /// The node.
    pub proto: NodeProto,
    /// Operator set versions in force for it and its subgraphs.
    pub opsets: Arc<Opsets>,
    /// Path of the inlined calls that it comes from; empty in the model itself.
    pub path: Arc<str>,
    /// Its index in its graph or function.
    pub index: usize,
    /// Inputs and attributes that the inlined call omits, for messages.
    pub notes: Vec<String>,
    /// It cannot be imported, and that has been reported.
    pub broken: bool,
}

/// Domain, name, overload.
type Key = (String, String, String);

fn key_of(n: &NodeProto) -> Key {
    (
        domain(n.domain.as_deref()).to_owned(),
        n.op_type.clone().unwrap_or_default(),
        n.overload.clone().unwrap_or_default(),
    )
}

#[derive(Debug)]
struct Function {
    proto: FunctionProto,
    opsets: Arc<Opsets>,
    /// It has been reported as broken.
    broken: bool,
}

/// The functions of one model.
#[derive(Debug, Default)]
pub struct Functions {
    table: BTreeMap<Key, Function>,
    calls: usize,
    /// Numbers that calls must not use, because a name of the model looks like one generated with it.
    taken: HashSet<usize>,
    /// Total weight of the nodes made by inlining so far, and its limit (`most`).
    made: u64,
    most: u64,
    /// A limit was exceeded, and that has been reported.
    exceeded: bool,
}

impl Functions {
    /// Checks and indexes the model's functions. `opsets` are those of the model.
    pub fn new(model: &ModelProto, opsets: &Opsets, origin: &Origin, findings: &mut Findings) -> Functions {
        let mut f = Functions::default();
        if !model.functions.is_empty() {
            check::run(&mut f, model, opsets, origin, findings);
            f.taken = check::numbers(model);
            let lists = model.graph.iter().map(|g| &g.node).chain(model.functions.iter().map(|f| &f.node));
            f.most = limits::CALLED_NODES.value.saturating_add(2 * lists.flatten().map(weight).sum::<u64>());
        }
        f
    }
    /// The function that a node calls under these operator sets.
    fn find(&self, n: &NodeProto, opsets: &Opsets) -> Option<(&Key, &Function)> {
        if self.table.is_empty() {
            return None;
        }
        let key = key_of(n);
        let found = self.table.get_key_value(&key)?;
        (!key.2.is_empty() || !built_in(&key, opsets)).then_some(found)
    }
    /// All nodes of a list, with calls inlined.
    pub fn flatten(
        &mut self,
        nodes: &[NodeProto],
        opsets: &Arc<Opsets>,
        path: &str,
        origin: &Origin,
        findings: &mut Findings,
    ) -> Vec<FlatNode> {
        let mut cx = Flatten { out: vec![], stack: vec![], origin, findings };
        let path: Arc<str> = path.into();
        for (i, n) in nodes.iter().enumerate() {
            let node = FlatNode {
                proto: n.clone(),
                opsets: opsets.clone(),
                path: path.clone(),
                index: i,
                notes: vec![],
                broken: false,
            };
            self.expand(node, &mut cx);
        }
        cx.out
    }
    fn expand(&mut self, mut n: FlatNode, cx: &mut Flatten) {
        let Some((key, f)) = self.find(&n.proto, &n.opsets) else {
            if let Some(e) = self.overload(&n.proto) {
                cx.findings.push(e.at(&at(&n, cx.origin)));
                n.broken = true;
            }
            if !cx.stack.is_empty() {
                self.made += weight(&n.proto);
            }
            cx.out.push(n);
            return;
        };
        // The importer reports domains that are not imported.
        if n.broken || f.broken || self.exceeded || !n.opsets.contains_key(&key.0) {
            n.broken |= f.broken || self.exceeded;
            cx.out.push(n);
            return;
        }
        let (key, f, sets) = (key.clone(), f.proto.clone(), f.opsets.clone());
        let origin = at(&n, cx.origin);
        let node = std::mem::take(&mut n.proto);
        let call = Call { node: &node, f: &f, name: show(&key), origin: &origin };
        let mut errors = self.exceeded_limits(cx.stack.len() as u64 + 1, &origin);
        self.exceeded = !errors.is_empty();
        errors.extend(call.surplus());
        let checked = attributes::check_names(&node.attribute, &call.name, &origin);
        if let Err(crate::diag::Failure::Errors(e)) = checked {
            errors.extend(e);
        }
        call.unknown_attributes().into_iter().for_each(|e| cx.findings.push(e));
        let attrs: HashMap<&str, &AttributeProto> =
            f.attribute_proto.iter().chain(&node.attribute).map(|a| (name_of(a), a)).collect();
        errors.extend(mistyped(&f.node, &attrs, &call.name).into_iter().map(|e| e.at(&origin)));
        if !errors.is_empty() {
            errors.into_iter().for_each(|e| cx.findings.push(e));
            (n.proto, n.broken) = (node, true);
            cx.out.push(n);
            return;
        }
        let prefix = self.next_prefix(&node, &key);
        let (names, copies) = call.names();
        let here = place(n.index, node.name.as_deref().unwrap_or(""), &call.name);
        let path: Arc<str> =
            if n.path.is_empty() { here.into() } else { format!("{} > {here}", n.path).into() };
        let inner = |proto, opsets: &Arc<Opsets>, index, notes| FlatNode {
            proto,
            opsets: opsets.clone(),
            path: path.clone(),
            index,
            notes,
            broken: false,
        };
        let mut rename = Rename { names: &names, prefix: &prefix, attrs: &attrs, local: vec![] };
        cx.stack.push(key.clone());
        for (i, node) in f.node.iter().enumerate() {
            let proto = rename.node(node);
            self.expand(inner(proto, &sets, i, call.notes(node, &names, &attrs)), cx);
        }
        cx.stack.pop();
        for (formal, actual) in copies.into_iter().filter(|(_, a)| !a.is_empty()) {
            let input = names[&formal].clone();
            let left_out = input
                .is_empty()
                .then(|| format!("\"{formal}\" of function {} is left out by the call", call.name));
            let proto = NodeProto {
                op_type: Some("Identity".into()),
                input: vec![input],
                output: vec![actual],
                ..Default::default()
            };
            let newest = Arc::new(Opsets::from([(String::new(), ops::schema::newest("").unwrap_or(1))]));
            cx.out.push(inner(proto, &newest, f.node.len(), left_out.into_iter().collect()));
        }
    }
    /// Counts a call and returns the errors of exceeded limits. The call itself has a weight, because a
    /// function may contain only calls.
    fn exceeded_limits(&mut self, depth: u64, origin: &Origin) -> Vec<Error> {
        self.made += 1;
        let error = if limits::CALL_DEPTH.exceeded_by(depth) {
            limits::CALL_DEPTH.error("function calls nest too deeply", depth)
        } else if self.made > self.most {
            let most = format!("more than {}", self.most);
            limits::CALLED_NODES.error("function calls become too many nodes", most)
        } else {
            return vec![];
        };
        vec![error.at(origin)]
    }
    /// The prefix of names for the next call.
    fn next_prefix(&mut self, call: &NodeProto, key: &Key) -> String {
        self.calls += 1;
        while self.taken.contains(&self.calls) {
            self.calls += 1;
        }
        let label = call.name.clone().filter(|s| !s.is_empty()).unwrap_or_else(|| key.1.clone());
        format!("{label}.{}/", self.calls)
    }
    /// The error about the overload of a node that calls no function, if it has one.
    fn overload(&self, n: &NodeProto) -> Option<Error> {
        let key = key_of(n);
        let same = |k: &&Key| k.0 == key.0 && k.1 == key.1;
        if key.2.is_empty()
            && (ops::schema::versions(&key.0, &key.1).iter().next().is_some()
                || !self.table.keys().any(|k| same(&k)))
        {
            return None;
        }
        let have: Vec<String> = self.table.keys().filter(same).map(show).collect();
        let have = if have.is_empty() { "no function of that name".to_owned() } else { have.join(", ") };
        let title = format!("there is no function {}", show(&key));
        let found = if key.2.is_empty() {
            "a call without an overload".to_owned()
        } else {
            format!("a call with overload \"{}\"", key.2)
        };
        Some(
            Error::new(codes::FUNCTION_INVALID, title)
                .found_expected(found, format!("an overload that the model has: {have}"))
                .help("correct the node's overload, or add the function"),
        )
    }
}

/// A call of a function.
struct Call<'a> {
    node: &'a NodeProto,
    f: &'a FunctionProto,
    /// The function's name in messages.
    name: String,
    origin: &'a Origin,
}

fn name_of(a: &AttributeProto) -> &str {
    a.name.as_deref().unwrap_or("")
}

impl Call<'_> {
    /// Errors about surplus inputs and outputs of the call.
    fn surplus(&self) -> Vec<Error> {
        let (call, f) = (self.node, self.f);
        [("inputs", call.input.len(), f.input.len()), ("outputs", call.output.len(), f.output.len())]
            .into_iter()
            .filter(|(_, given, formal)| given > formal)
            .map(|(what, given, formal)| {
                let title = format!("the call of function {} has too many {what}", self.name);
                Error::new(codes::FUNCTION_INVALID, title)
                    .at(self.origin)
                    .found_expected(format!("{given} {what}"), format!("at most {formal}"))
                    .help("remove those that the function does not have")
            })
            .collect()
    }
    /// Warnings about attributes that the function does not have.
    fn unknown_attributes(&self) -> Vec<Error> {
        let own: Vec<&str> = self
            .f
            .attribute
            .iter()
            .map(String::as_str)
            .chain(self.f.attribute_proto.iter().filter_map(|a| a.name.as_deref()))
            .collect();
        let has = match own.as_slice() {
            [] => "none: it has no attributes".to_owned(),
            own => format!("one of {}", own.join(", ")),
        };
        let given = self.node.attribute.iter().map(name_of);
        given
            .filter(|a| !a.is_empty() && !a.starts_with(attributes::PRIVATE) && !own.contains(a))
            .map(|a| {
                let title = format!("function {} has no attribute \"{a}\"", self.name);
                Error::warning(codes::FUNCTION_INVALID, title)
                    .at(self.origin)
                    .found_expected(format!("\"{a}\""), has.clone())
                    .help("remove the attribute from the call: it has no effect")
            })
            .collect()
    }
    /// The replacements of formal inputs and outputs, and the outputs that need a copy. An output that is
    /// also an input cannot be a second name of it, so it is listed with the name that the call gives it.
    fn names(&self) -> (HashMap<String, String>, Vec<(String, String)>) {
        let (call, f) = (self.node, self.f);
        let given = |list: &[String], i: usize| list.get(i).cloned().unwrap_or_default();
        let inputs = f.input.iter().enumerate().map(|(i, formal)| (formal.clone(), given(&call.input, i)));
        let mut names: HashMap<String, String> = inputs.collect();
        let outputs = f.output.iter().enumerate().map(|(i, formal)| (formal.clone(), given(&call.output, i)));
        let (copies, others): (Vec<_>, Vec<_>) = outputs.partition(|(formal, _)| f.input.contains(formal));
        names.extend(others.into_iter().filter(|(_, actual)| !actual.is_empty()));
        (names, copies)
    }
    /// Notes about inputs and attributes that this node of the body uses and the call omits.
    fn notes(
        &self,
        node: &NodeProto,
        names: &HashMap<String, String>,
        attrs: &HashMap<&str, &AttributeProto>,
    ) -> Vec<String> {
        let left_out = |formal: &str| names.get(formal).is_some_and(String::is_empty);
        let inputs =
            node.input.iter().enumerate().filter(|(_, s)| !s.is_empty() && left_out(s)).map(|(k, s)| {
                format!("input {k} is \"{s}\" of function {}, which the call leaves out", self.name)
            });
        let references = node.attribute.iter().filter_map(|a| Some((name_of(a), attributes::reference(a)?)));
        let attributes = references.filter(|(_, r)| !attrs.contains_key(r)).map(|(a, r)| {
            format!(
                "attribute {a} is \"{r}\" of function {}, which the call leaves out and which has no default",
                self.name
            )
        });
        inputs.chain(attributes).collect()
    }
}

/// The weight of a node: one, plus one for each KiB of its attributes and bodies, which a call copies.
fn weight(n: &NodeProto) -> u64 {
    1 + n.encoded_len() as u64 / 1024
}

/// State of inlining.
struct Flatten<'a> {
    out: Vec<FlatNode>,
    stack: Vec<Key>,
    origin: &'a Origin,
    findings: &'a mut Findings,
}

fn at(n: &FlatNode, origin: &Origin) -> Origin {
    super::scopes::origin_of(origin, &n.path, &n.proto, n.index)
}

/// True if onnxc supports the operator and ONNX defines its domain.
fn built_in(key: &Key, opsets: &Opsets) -> bool {
    STANDARD.contains(&key.0.as_str()) && opsets.get(&key.0).is_some_and(|v| known(&key.0, &key.1, *v))
}

/// True if onnxc supports the operator in this version of its operator set.
fn known(domain: &str, name: &str, version: i64) -> bool {
    ops::find(domain, name, version).is_ok() || domain.is_empty() && ops::AT_IMPORT.contains(&name)
}

/// Errors about attributes of a call whose type differs from that of the references to them.
fn mistyped(nodes: &[NodeProto], attrs: &HashMap<&str, &AttributeProto>, function: &str) -> Vec<Error> {
    let mut out = vec![];
    for a in nodes.iter().flat_map(|n| &n.attribute) {
        for g in a.g.iter().chain(&a.graphs) {
            out.extend(mistyped(&g.node, attrs, function));
        }
        let Some((name, given)) = attributes::reference(a).and_then(|r| attrs.get_key_value(r)) else {
            continue;
        };
        let (want, found) = (a.r#type(), given.r#type());
        if want != AttributeType::Undefined && found != AttributeType::Undefined && want != found {
            let e = Error::new(
                codes::FUNCTION_INVALID,
                format!("attribute \"{name}\" of function {function} has another type than its use"),
            )
            .found_expected(found.as_str_name(), want.as_str_name());
            out.push(e.help("give the attribute the type that the function's body names"));
        }
    }
    out
}

fn show(k: &Key) -> String {
    let o = if k.2.is_empty() { String::new() } else { format!(":{}", k.2) };
    format!("{}{o}", ops::dotted(&k.0, &k.1))
}
