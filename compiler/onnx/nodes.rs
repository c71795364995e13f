//! Conversion of nodes: operands are resolved, attributes are read, the operator is found and parsed.
//!
//! A node with an error is omitted, and so are the nodes that depend on it: its results have no definition,
//! and the importer takes undefined names as reported.

use super::functions::{FlatNode, domain};
use super::import::Import;
use super::{attributes, scopes};
use crate::diag::{Error, Failure, Origin, Result, codes};
use crate::graph::{Def, Graph, NodeData, Value, ValueData};
use crate::ops::{self, AttrValue, Attrs, Known};
use crate::sym::Sym;
use crate::tensor::{ConstData, TensorType, ValueType};
use std::collections::{HashMap, HashSet};

/// The reason why there is no such operator, for messages.
fn reason(dom: &str, op: &str, opset: i64, why: &ops::Unknown) -> String {
    match why {
        _ if dom.is_empty() && EXPERIMENTAL.contains(&op) => "experimental, removed from ONNX".to_owned(),
        ops::Unknown::Operator => "not supported".to_owned(),
        ops::Unknown::Version => {
            let first = ops::schema::versions(dom, op).first().map_or(0, |s| s.since);
            format!("exists since version {first}, the model imports {opset}")
        }
    }
}

impl Import {
    pub(super) fn node(&mut self, flat: &FlatNode, hints: &HashMap<String, ValueType>) -> Result<()> {
        let p = &flat.proto;
        let (dom, op) = (domain(p.domain.as_deref()).to_owned(), p.op_type.clone().unwrap_or_default());
        let opset = flat.opsets.get(&dom).copied();
        let origin = Origin {
            opset: opset.unwrap_or(0),
            ..scopes::origin_of(&self.origin, &flat.path, p, flat.index)
        };
        let mut at = Position { origin, notes: &flat.notes, sound: !flat.broken };
        if flat.broken || op.is_empty() || p.output.is_empty() {
            return Ok(());
        }
        let mut resolved =
            self.broken.is_empty() || !self.broken.contains(&(flat.path.to_string(), flat.index));
        let mut inputs = self.operands(p);
        if inputs.iter().zip(&p.input).any(|(v, name)| v.is_none() && !name.is_empty()) {
            (resolved, self.unresolved) = (false, true);
        }
        let (mut subgraphs, mut values) = (vec![], vec![]);
        let named = attributes::check_names(&p.attribute, &at.origin.op, &at.origin);
        self.absorb(named, &mut at)?;
        for a in
            p.attribute.iter().filter(|a| !a.name.as_deref().unwrap_or("").starts_with(attributes::PRIVATE))
        {
            let name = a.name.clone().unwrap_or_default();
            match (&a.g, self.attribute(a, &at.origin)) {
                (Some(g), Ok(None)) => {
                    let path = scopes::inside(&flat.path, p, flat.index, &name);
                    let errors = self.findings.count();
                    subgraphs.push((name, self.graph(g, &flat.opsets, &path)?));
                    resolved &= errors == self.findings.count() && !self.unresolved;
                }
                (_, v) => values.extend(self.absorb(v, &mut at)?.flatten().map(|v| (name, v))),
            }
        }
        if op == "Gradient" && dom == "ai.onnx.preview.training" {
            resolved &= self.named_tensors(&values, &mut inputs, &at.origin);
        }
        let Some(opset) = opset else {
            self.no_import(&dom, flat, &at.origin);
            return Ok(());
        };
        let constant = dom.is_empty() && op == "Constant";
        let custom = self.declared_custom(&dom, &op);
        let schema = match (&custom, ops::find(&dom, &op, opset)) {
            (Some(_), _) => ops::custom::schema_of(&dom, &op),
            (None, Ok(schema)) => schema,
            (None, Err(_)) if constant => ops::schema::versions("", "Constant")
                .iter()
                .rev()
                .find(|s| s.since <= opset)
                .ok_or_else(|| Failure::bug("import", "no schema of Constant"))?,
            (None, Err(why)) => {
                let reason = reason(&dom, &op, opset, &why);
                let first = self.unknown.entry((dom, op, opset));
                first.or_insert_with(|| (at.origin, 0, reason)).1 += 1;
                return Ok(());
            }
        };
        self.warn_deprecated(schema, opset, &at.origin);
        let fits = operands_fit(schema, p, &at.origin);
        self.absorb(fits, &mut at)?;
        if constant {
            if at.sound {
                let r = self.constant_node(&p.output, schema, &values, &at.origin);
                self.absorb(r, &mut at)?;
            }
            return Ok(());
        }
        // The number of variadic results includes trailing unnamed ones.
        let named = p.output.iter().rposition(|o| !o.is_empty()).map_or(0, |i| i + 1);
        let n_outputs = if schema.outputs.max() == usize::MAX { p.output.len() } else { named };
        while inputs.last().is_some_and(Option::is_none) {
            inputs.pop();
        }
        let attrs = values.clone();
        if !at.sound {
            return Ok(());
        }
        let parsed = match &custom {
            Some(d) => self.custom(d, &values, &subgraphs, &p.output[..n_outputs], hints, &at.origin),
            None => {
                let names = subgraphs.iter().map(|(n, _)| n.clone()).collect();
                let arity = (inputs.len(), n_outputs);
                ops::read(Attrs::new(schema, arity, at.origin.clone(), values, names))
            }
        };
        let Some(op) = self.absorb(parsed, &mut at)? else { return Ok(()) };
        if resolved {
            let fits = self.types_fit(schema, &inputs, &at.origin);
            self.absorb(fits, &mut at)?;
        }
        if !at.sound || !resolved {
            return Ok(());
        }
        inputs.resize(inputs.len().max(schema.inputs.min), None);
        let n = self.frame().graph.nodes.next_key();
        let results = p.output[..n_outputs].iter().enumerate();
        let outputs = results
            .map(|(k, name)| {
                let (declared, def) = (hints.get(name).cloned(), Def::Node(n, k as u32));
                let data = ValueData { name: name.clone(), ty: None, declared, def, known: Known::No };
                (!name.is_empty()).then(|| self.define(name, data))
            })
            .collect();
        let g = &mut self.frame().graph;
        g.nodes.push(NodeData { op, schema, attrs, inputs, outputs, subgraphs, origin: at.origin });
        g.order.push(n);
        Ok(())
    }
    /// The operands of a node: `None` for one that is omitted or undefined.
    fn operands(&mut self, p: &super::proto::NodeProto) -> Vec<Option<Value>> {
        let level = self.frames.len() - 1;
        let operand = |name: &String| if name.is_empty() { None } else { self.lookup(name, level) };
        p.input.iter().map(operand).collect()
    }
    /// The user's declaration of an operator, which is thereby marked as used.
    fn declared_custom(&mut self, dom: &str, op: &str) -> Option<ops::custom::Declaration> {
        let is = |d: &ops::custom::Declaration| ops::is_domain(&d.domain, dom) && d.op == op;
        let (d, used) = self.customs.iter_mut().find(|(d, _)| is(d))?;
        *used = true;
        Some(d.clone())
    }
    /// Makes a node of an operator that the user provides.
    fn custom(
        &self,
        d: &ops::custom::Declaration,
        values: &[(String, AttrValue)],
        subgraphs: &[(String, Graph)],
        outputs: &[String],
        hints: &HashMap<String, ValueType>,
        origin: &Origin,
    ) -> Result<ops::Op> {
        if let Some((name, _)) = subgraphs.first() {
            let title = format!("attribute \"{name}\" of a custom operator has no form in C");
            return Error::new(codes::OP_ATTRIBUTE, title)
                .at(origin)
                .found_expected("a graph", "numbers, strings or lists of them")
                .help("make the node a model-local function of operators that ONNX has")
                .fail();
        }
        let g = &self.frames[0].graph;
        let inputs = g.inputs.iter().filter_map(|v| g.values[*v].ty.as_ref()?.as_tensor());
        let params: HashSet<Sym> = inputs.flat_map(|t| t.dims.iter().flat_map(|d| d.syms())).collect();
        let known = |t: &&TensorType| t.dims.iter().all(|d| d.syms().iter().all(|s| params.contains(s)));
        let declared = |n: &String| hints.get(n)?.as_tensor().filter(known).cloned();
        let declared = outputs.iter().map(declared).collect();
        Ok(ops::Op::Custom(ops::custom::Custom::new(d, values, declared, origin)?))
    }
    /// Records the errors of a step. The node is unsound if there are any.
    fn absorb<T>(&mut self, r: Result<T>, at: &mut Position) -> Result<Option<T>> {
        at.sound &= r.is_ok();
        self.findings.absorb(r.map_err(|f| match f {
            Failure::Errors(list) => Failure::Errors(
                list.into_iter().map(|e| at.notes.iter().fold(e, |e, n| e.note(n.clone()))).collect(),
            ),
            f => f,
        }))
    }
    /// Checks the operand types that are known before inference. Inference does not check nodes that are
    /// unused, or nodes on sequences, which are rewritten before it.
    fn types_fit(&mut self, schema: &ops::Schema, inputs: &[Option<Value>], origin: &Origin) -> Result<()> {
        let level = self.frames.len() - 1;
        let values = &self.frames[level].graph.values;
        let data: Vec<Option<&ValueData>> = inputs.iter().map(|v| v.map(|v| &values[v])).collect();
        // The declared types of a nested graph's inputs are hints.
        let settled = |d: &&ValueData| level == 0 || !matches!(d.def, Def::Input(_));
        let types: Vec<Option<&ValueType>> =
            data.iter().map(|d| d.filter(settled).and_then(|d| d.ty.as_ref())).collect();
        let Err((i, name, expected)) = schema.check_types(&types) else { return Ok(()) };
        let mut e = Error::new(
            codes::OP_TYPE,
            format!(
                "input {i} ({name}) has a type that {} version {} does not take",
                schema.name, schema.since
            ),
        )
        .at(origin);
        for (k, d) in data.iter().enumerate() {
            if let Some((d, t)) = d.and_then(|d| Some((d, d.ty.as_ref()?))) {
                e = e.row(format!("input {k} \"{}\"", d.name), t.display(&self.syms));
            }
        }
        e.found_expected(types[i].map(|t| t.display(&self.syms)).unwrap_or_default(), expected).fail()
    }
    /// Reports a missing import once per domain: it would be the same for every node.
    fn no_import(&mut self, dom: &str, flat: &FlatNode, origin: &Origin) {
        if !self.unimported.insert(dom.to_owned()) {
            return;
        }
        let shown = if dom.is_empty() { "ai.onnx" } else { dom };
        let mut have: Vec<&str> =
            flat.opsets.keys().map(|d| if d.is_empty() { "ai.onnx" } else { d.as_str() }).collect();
        have.sort_unstable();
        let e = Error::new(codes::OPSET_IMPORT, format!("no operator set of domain {shown} is imported"))
            .at(origin);
        let e = e.found_expected(
            format!("imports of {}", have.join(", ")),
            format!("an opset_import entry for {shown}"),
        );
        self.findings.push(e.help("add the entry, with the version that the model was written for"));
    }
    fn warn_deprecated(&mut self, schema: &ops::Schema, opset: i64, origin: &Origin) {
        let name = ops::dotted(schema.domain, schema.name);
        let Some((_, from, to, instead)) =
            DEPRECATED.iter().find(|d| d.0 == name && (d.1..=d.2).contains(&opset))
        else {
            return;
        };
        if !self.deprecated.insert(name.clone()) {
            return;
        }
        let versions = if *to == i64::MAX {
            format!("from version {from} on")
        } else {
            format!("in versions {from} to {to}")
        };
        let e = Error::warning(
            codes::GRAPH_INVALID,
            format!("{name} is deprecated {versions}; it is compiled as version {}", schema.since),
        )
        .at(origin);
        self.findings.push(
            e.found_expected(format!("{name} at opset {opset}"), (*instead).to_owned())
                .help("convert the model with onnx.version_converter"),
        );
    }
    /// Appends the tensors that Gradient names to the operands, because names are known only here.
    fn named_tensors(
        &mut self,
        values: &[(String, AttrValue)],
        inputs: &mut Vec<Option<Value>>,
        origin: &Origin,
    ) -> bool {
        let level = self.frames.len() - 1;
        let mut names: Vec<String> = vec![];
        for key in ["xs", "zs", "y"] {
            match values.iter().find(|(n, _)| n == key).map(|(_, v)| v) {
                Some(AttrValue::Strings(list)) => {
                    names.extend(list.iter().map(|s| String::from_utf8_lossy(s).into_owned()))
                }
                Some(AttrValue::String(s)) => names.push(String::from_utf8_lossy(s).into_owned()),
                _ => {}
            }
        }
        let mut ok = true;
        for name in names {
            match self.lookup(&name, level) {
                Some(v) => inputs.push(Some(v)),
                None => {
                    ok = false;
                    let e = Error::new(
                        codes::GRAPH_INVALID,
                        format!("Gradient names the tensor \"{name}\", which is not defined before it"),
                    )
                    .at(origin);
                    self.findings.push(e.help(
                        "xs, zs and y must be inputs, initializers or earlier results \
                        of the node's graph",
                    ));
                }
            }
        }
        ok
    }
    /// Warns about `--custom` operators that the model does not use.
    pub(super) fn unused_customs(&mut self) {
        for (d, _) in self.customs.iter().filter(|(_, used)| !used) {
            let name = ops::qualified(&d.domain, &d.op);
            let title = format!("--custom has no effect: the model has no node {name}");
            let e = Error::warning(codes::OPTION, title).at(&self.origin);
            self.findings.push(
                e.found_expected(name, "a domain and an operator as the model names them").help(
                    "onnxc inspect lists the operators; leave the flag out if the model needs it no more",
                ),
            );
        }
    }
    pub(super) fn report_unknown(&mut self) {
        if self.unknown.is_empty() {
            return;
        }
        let kinds = self.unknown.len();
        let nodes: usize = self.unknown.values().map(|u| u.1).sum();
        let mut e = Error::new(
            codes::OP_UNSUPPORTED,
            format!(
                "{kinds} operator{} not supported, in {nodes} node{}",
                if kinds == 1 { " is" } else { "s are" },
                if nodes == 1 { "" } else { "s" }
            ),
        )
        .at(&self.origin);
        for ((dom, op, v), (first, n, why)) in &self.unknown {
            let d = if dom.is_empty() { "ai.onnx" } else { dom };
            let first = Origin { file: String::new(), op: String::new(), opset: 0, ..first.clone() };
            e = e.row(
                format!("{d} {op}-{v}"),
                format!("{n} node{}, first: {first}; {why}", if *n == 1 { "" } else { "s" }),
            );
        }
        self.findings.push(e.help(
            "docs/operators.md lists the supported operators; a model-local function \
            with this domain and name is used if the model has one, and --custom calls a function of yours",
        ));
    }
    fn constant_node(
        &mut self,
        outputs: &[String],
        schema: &ops::Schema,
        values: &[(String, AttrValue)],
        origin: &Origin,
    ) -> Result<()> {
        let fail = |title: String, found: String| {
            let known: Vec<&str> = schema.attributes.iter().map(|a| a.0).collect();
            Error::new(codes::OP_ATTRIBUTE, title)
                .at(origin)
                .found_expected(found, format!("one of {}", known.join(", ")))
                .fail()
        };
        let [(name, v)] = values else {
            let given: Vec<&str> = values.iter().map(|v| v.0.as_str()).collect();
            let found = if given.is_empty() { "none".to_owned() } else { given.join(" and ") };
            return fail("Constant needs exactly one of its value attributes".into(), found);
        };
        if !schema.attributes.iter().any(|a| a.0 == name) {
            return fail(format!("Constant version {} has no attribute {name}", schema.since), name.clone());
        }
        let c = match (name.as_str(), v) {
            ("value" | "sparse_value", AttrValue::Tensor(t)) => Some((**t).clone()),
            ("value_float", AttrValue::Float(f)) => Some(ConstData::f32s(vec![], &[*f])),
            ("value_floats", AttrValue::Floats(f)) => Some(ConstData::f32s(vec![f.len() as i64], f)),
            ("value_floats", AttrValue::Ints(f)) if f.is_empty() => Some(ConstData::f32s(vec![0], &[])),
            ("value_int", AttrValue::Int(i)) => Some(ConstData::i64s_shaped(vec![], &[*i])),
            ("value_ints", AttrValue::Ints(i)) => Some(ConstData::from_i64s(i)),
            ("value_string", AttrValue::String(s)) => ConstData::strings(vec![], vec![s.clone().into()]),
            ("value_strings", AttrValue::Strings(s)) => {
                ConstData::strings(vec![s.len() as i64], s.iter().map(|s| s.clone().into()).collect())
            }
            _ => return fail(format!("attribute \"{name}\" of Constant does not fit"), v.describe()),
        };
        match (c, outputs) {
            (Some(c), [name, ..]) => self.constant(name, c, origin),
            _ => return fail("the strings of Constant are too long".into(), "more than 4 GiB".into()),
        }
        Ok(())
    }
}

/// Where a node is, and whether it has been read without errors.
struct Position<'a> {
    origin: Origin,
    /// Notes to add to its findings.
    notes: &'a [String],
    sound: bool,
}

/// Experimental operators that ONNX removed before they had a version.
const EXPERIMENTAL: &[&str] = &[
    "ATen",
    "Affine",
    "ConstantFill",
    "Crop",
    "DynamicSlice",
    "GRUUnit",
    "GivenTensorFill",
    "ImageScaler",
    "ParametricSoftplus",
    "Scale",
    "ScaledTanh",
];

/// Deprecated operators: name, first and last version of the operator set that deprecates it, and the
/// replacement.
const DEPRECATED: &[(&str, i64, i64, &str)] = &[
    ("Upsample", 10, i64::MAX, "Resize"),
    ("Scatter", 11, i64::MAX, "ScatterElements"),
    ("GroupNormalization", 18, 20, "GroupNormalization of version 21"),
    ("ai.onnx.ml.TreeEnsembleClassifier", 5, i64::MAX, "ai.onnx.ml.TreeEnsemble"),
    ("ai.onnx.ml.TreeEnsembleRegressor", 5, i64::MAX, "ai.onnx.ml.TreeEnsemble"),
];

/// Checks the numbers of operands and results, empty names included, and that required ones are given.
fn operands_fit(schema: &ops::Schema, p: &super::proto::NodeProto, origin: &Origin) -> Result<()> {
    let mut errors = vec![];
    let shown = format!("{} version {}", ops::dotted(schema.domain, schema.name), schema.since);
    for (what, names, formals) in
        [("input", &p.input, &schema.inputs), ("output", &p.output, &schema.outputs)]
    {
        let n = names.len();
        if n < formals.min || n > formals.max() {
            let expected = match (formals.min, formals.max()) {
                (a, b) if a == b => a.to_string(),
                (a, usize::MAX) => format!("{a} or more"),
                (a, b) => format!("{a} to {b}"),
            };
            let empty = names.iter().filter(|s| s.is_empty()).count();
            let found =
                if empty > 0 { format!("{n}, {empty} of them without a name") } else { n.to_string() };
            let e = Error::new(codes::OP_ARITY, format!("wrong number of {what}s"))
                .at(origin)
                .found_expected(found, format!("{expected}, as {shown} has it"));
            errors.push(e.help(
                "the operator's specification lists them; the model may have been written \
                for another version",
            ));
        }
        let missing =
            formals.list.iter().zip(names).position(|(f, s)| s.is_empty() && !f.optional && !f.variadic);
        if let Some(i) = missing {
            let e = Error::new(
                codes::OP_ARITY,
                format!("{what} {i} ({}) of {shown} is missing", formals.list[i].name),
            )
            .at(origin);
            errors.push(
                e.found_expected("an empty name", format!("a value: only optional {what}s may be left out"))
                    .help(format!("name the {what}")),
            );
        }
    }
    if errors.is_empty() { Ok(()) } else { Err(Failure::Errors(errors)) }
}
