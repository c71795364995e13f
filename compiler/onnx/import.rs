//! ModelProto -> graph IR. Gathers every finding it can before it stops.

use super::external::External;
use super::functions::{FlatNode, Functions, Opsets, domain, opsets};
use super::proto::{AttributeProto, GraphProto, ModelProto, ValueInfoProto, attribute_proto::AttributeType, type_proto};
use super::types::{Unnamed, value_type};
use super::{ImportOptions, Source, tensors};
use crate::diag::{Error, Findings, Origin, Result, codes, limits};
use crate::graph::{Def, Graph, Model, NodeData, Value, ValueData};
use crate::ops::{self, AttrValue, Attrs, Known};
use crate::sym::text::DimOption;
use crate::sym::{Sym, SymKind, SymTable};
use crate::tensor::{ConstData, ElemType, ValueType};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// IR versions that onnxc reads.
pub const IR_VERSIONS: std::ops::RangeInclusive<i64> = 1..=14;

/// Builds the graph of a decoded model.
pub fn import(m: ModelProto, source: &Source, options: &ImportOptions) -> Result<Model> {
    let origin = Origin::file(&source.name);
    let mut findings = Findings::default();
    let ir = m.ir_version.unwrap_or(0);
    if !IR_VERSIONS.contains(&ir) {
        findings.push(
            Error::new(codes::IR_VERSION, "the IR version is missing or not known")
                .at(&origin)
                .found_expected(m.ir_version.map_or("none".into(), |v| v.to_string()), "1 to 14")
                .help("re-export the model, or update onnxc"),
        );
    }
    let mut sets = findings.absorb(opsets(&m.opset_import, &origin))?.unwrap_or_else(|| {
        // Reported; go on with something, so that the nodes do not complain as well.
        m.opset_import.iter().map(|o| (domain(o.domain.as_deref()).to_owned(), o.version.unwrap_or(1).max(1))).collect()
    });
    for (d, v) in &sets {
        if let Some(newest) = ops::schema::newest(d).filter(|n| v > n) {
            let shown = if d.is_empty() { "ai.onnx" } else { d };
            let e = Error::new(codes::OPSET_IMPORT, format!("version {v} of operator set {shown} is not known")).at(&origin);
            findings.push(e.found_expected(v.to_string(), format!("1 to {newest}")).help("update onnxc, or convert the model with onnx.version_converter"));
        }
    }
    if m.opset_import.is_empty() {
        if ir >= 3 {
            findings.push(Error::new(codes::OPSET_IMPORT, "the model imports no operator set").at(&origin).found_expected("no opset_import", "one for every domain that its nodes use"));
        }
        sets.insert(String::new(), 1);
    }
    let functions = findings.absorb(Functions::new(&m, &origin))?.unwrap_or_default();
    let mut cx = Import {
        functions,
        external: External::new(source.folder.clone()),
        syms: SymTable::new(),
        findings,
        frames: vec![],
        unknown: BTreeMap::new(),
        unimported: BTreeSet::new(),
        origin: origin.clone(),
    };
    let Some(g) = &m.graph else { return Error::new(codes::NOT_A_MODEL, "the model has no graph").at(&origin).fail() };
    let graph = cx.graph(g, &Arc::new(sets.clone()), "")?;
    cx.report_unknown();
    let dim_params = cx.dims(&graph, options);
    cx.findings.check()?;
    let mut opsets: Vec<(String, i64)> = sets.into_iter().collect();
    opsets.sort();
    Ok(Model {
        graph,
        syms: cx.syms,
        dim_params,
        opsets,
        ir_version: ir,
        origin,
        sha256: Sha256::digest(&source.bytes).into(),
        producer: [m.producer_name, m.producer_version].into_iter().flatten().collect::<Vec<_>>().join(" "),
        external_files: cx.external.opened(),
    })
}

struct Frame {
    graph: Graph,
    names: HashMap<String, Value>,
}

struct Import {
    functions: Functions,
    external: External,
    syms: SymTable,
    findings: Findings,
    frames: Vec<Frame>,
    /// (domain, operator, opset) -> where first, how often, why.
    unknown: BTreeMap<(String, String, i64), (Origin, usize, String)>,
    /// Domains whose missing import was reported.
    unimported: BTreeSet<String>,
    origin: Origin,
}

impl Import {
    fn fault(&mut self, origin: &Origin, title: impl Into<String>) {
        self.findings.push(Error::new(codes::GRAPH_INVALID, title).at(origin));
    }
    fn frame(&mut self) -> &mut Frame {
        // One frame is pushed before anything asks for it.
        let last = self.frames.len() - 1;
        &mut self.frames[last]
    }
    fn define(&mut self, name: &str, data: ValueData, origin: &Origin) -> Value {
        let f = self.frame();
        let v = f.graph.values.push(data);
        if f.names.insert(name.to_owned(), v).is_some() {
            self.fault(origin, format!("the name \"{name}\" is defined twice"));
        }
        v
    }
    /// The value of a name here, or captured from an enclosing graph.
    fn lookup(&mut self, name: &str, level: usize) -> Option<Value> {
        if let Some(v) = self.frames[level].names.get(name) {
            return Some(*v);
        }
        let outer = self.lookup(name, level.checked_sub(1)?)?;
        let data = self.frames[level - 1].graph.values[outer].clone();
        let f = &mut self.frames[level];
        let v = f.graph.values.push(ValueData { def: Def::Capture, ..data });
        f.graph.captures.push((outer, v));
        f.names.insert(name.to_owned(), v);
        Some(v)
    }
    fn graph(&mut self, g: &GraphProto, sets: &Arc<Opsets>, path: &str) -> Result<Graph> {
        if limits::GRAPH_DEPTH.exceeded_by(self.frames.len() as u64 + 1) {
            let path = Origin { graph: path.to_owned(), ..self.origin.clone() };
            return limits::GRAPH_DEPTH.error("subgraphs nest too deeply", self.frames.len() + 1).at(&path).fail();
        }
        let here = Origin { graph: path.to_owned(), ..self.origin.clone() };
        self.frames.push(Frame { graph: Graph { name: g.name.clone().unwrap_or_default(), ..Default::default() }, names: HashMap::new() });
        self.initializers(g, &here)?;
        for i in &g.input {
            self.input(i, &here)?;
        }
        let parameters = self.frame().graph.inputs.len() + g.output.len();
        if self.frames.len() == 1 && limits::PARAMETERS.exceeded_by(parameters as u64) {
            return limits::PARAMETERS.error("the model has too many inputs and outputs", parameters).at(&here).fail();
        }
        let hints = self.hints(g, &here);
        let flat = self.functions.flatten(&g.node, sets, path, &here);
        let flat = self.findings.absorb(flat)?.unwrap_or_default();
        for (i, n) in flat.iter().enumerate() {
            if self.findings.is_full() {
                break;
            }
            self.node(n, i, &hints)?;
        }
        let level = self.frames.len() - 1;
        for o in &g.output {
            let name = o.name.clone().unwrap_or_default();
            match self.lookup(&name, level) {
                Some(v) => {
                    let declared = hints.get(name.as_str()).cloned();
                    let g = &mut self.frame().graph;
                    g.values[v].declared = declared.or(g.values[v].declared.take());
                    g.outputs.push(v);
                    g.output_names.push(name);
                    g.output_elems.push(declared_elem(o));
                }
                None if self.unknown.is_empty() && self.unimported.is_empty() && !self.findings.has_errors() => self.findings.push(
                    Error::new(codes::GRAPH_INVALID, format!("the output \"{name}\" is never computed"))
                        .at(&here)
                        .help("a node must compute it; check the spelling, or remove it from the graph's outputs"),
                ),
                None => {}
            }
        }
        match self.frames.pop() {
            Some(f) => Ok(f.graph),
            None => Err(crate::diag::Failure::bug("import", "no frame")),
        }
    }
    fn initializers(&mut self, g: &GraphProto, here: &Origin) -> Result<()> {
        for t in &g.initializer {
            let name = t.name.clone().unwrap_or_default();
            let at = here.element(format!("initializer \"{name}\""));
            let c = tensors::tensor(t, &mut self.external, &at);
            if let Some(c) = self.findings.absorb(c)? {
                self.constant(&name, c, &at);
            }
        }
        for t in &g.sparse_initializer {
            let name = t.values.as_ref().and_then(|v| v.name.clone()).unwrap_or_default();
            let at = here.element(format!("sparse initializer \"{name}\""));
            let c = tensors::sparse(t, &mut self.external, &at);
            if let Some(c) = self.findings.absorb(c)? {
                self.constant(&name, c, &at);
            }
        }
        Ok(())
    }
    fn constant(&mut self, name: &str, c: ConstData, at: &Origin) {
        if limits::RANK.exceeded_by(c.dims().len() as u64) {
            self.findings.push(limits::RANK.error("the tensor has too many dimensions", c.dims().len()).at(at));
            return;
        }
        let data = Arc::new(c);
        let ty = Some(ValueType::Tensor(data.tensor_type()));
        self.define(name, ValueData { name: name.to_owned(), ty, declared: None, known: Known::Const(data.clone()), def: Def::Const(data) }, at);
    }
    /// Inputs that have an initializer are constants (the initializer is their default value).
    fn input(&mut self, i: &ValueInfoProto, here: &Origin) -> Result<()> {
        let name = i.name.clone().unwrap_or_default();
        let at = here.element(format!("input \"{name}\""));
        if name.is_empty() {
            self.fault(&at, "an input without a name");
            return Ok(());
        }
        let top = self.frames.len() == 1;
        if let Some(v) = self.frame().names.get(&name).copied() {
            if matches!(self.frame().graph.values[v].def, Def::Input(_)) {
                self.fault(&at, "the input is declared twice");
            }
            return Ok(());
        }
        let ty = match &i.r#type {
            Some(t) => value_type(t, &mut self.syms, &if top { Unnamed::Symbol(&name) } else { Unnamed::Hint }, &at),
            None => Ok(None),
        };
        let ty = self.findings.absorb(ty)?.flatten();
        if ty.is_none() && top && !self.findings.has_errors() {
            self.findings.push(Error::new(codes::TYPE_INVALID, "the input has no type").at(&at));
        }
        let n = self.frame().graph.inputs.len() as u32;
        let v = self.define(&name, ValueData { name: name.clone(), ty, declared: None, def: Def::Input(n), known: Known::No }, &at);
        self.frame().graph.inputs.push(v);
        Ok(())
    }
    /// Declared types of outputs and inner values.
    fn hints(&mut self, g: &GraphProto, here: &Origin) -> HashMap<String, ValueType> {
        let mut out = HashMap::new();
        for v in g.value_info.iter().chain(&g.output) {
            if let (Some(name), Some(t)) = (&v.name, &v.r#type)
                && let Ok(Some(t)) = value_type(t, &mut self.syms, &Unnamed::Hint, here)
            {
                out.insert(name.clone(), t);
            }
        }
        out
    }
    fn node(&mut self, flat: &FlatNode, index: usize, hints: &HashMap<String, ValueType>) -> Result<()> {
        let p = &flat.proto;
        let (dom, op) = (domain(p.domain.as_deref()).to_owned(), p.op_type.clone().unwrap_or_default());
        let shown = if dom.is_empty() { op.clone() } else { format!("{dom}.{op}") };
        let opset = flat.opsets.get(&dom).copied();
        let origin = Origin { graph: flat.path.clone(), node: Some(index), name: p.name.clone().unwrap_or_default(), op: shown.clone(), opset: opset.unwrap_or(0), ..self.origin.clone() };
        if op.is_empty() {
            self.fault(&origin, "a node without an operator");
            return Ok(());
        }
        let level = self.frames.len() - 1;
        let mut inputs = vec![];
        let mut ok = true;
        for name in &p.input {
            if name.is_empty() {
                inputs.push(None);
                continue;
            }
            match self.lookup(name, level) {
                Some(v) => inputs.push(Some(v)),
                None => {
                    ok = false;
                    self.findings.push(
                        Error::new(codes::GRAPH_INVALID, format!("the input \"{name}\" is not defined before its use"))
                            .at(&origin)
                            .help("nodes must stand in topological order, and every name must be an input, an initializer or an earlier output"),
                    );
                }
            }
        }
        while inputs.last().is_some_and(|v: &Option<Value>| v.is_none()) {
            inputs.pop();
        }
        let mut subgraphs = vec![];
        let mut values = vec![];
        for a in &p.attribute {
            let name = a.name.clone().unwrap_or_default();
            if let Some(g) = &a.g {
                let path = [flat.path.as_str(), &format!("{shown} \"{}\" {name}", origin.name)].iter().filter(|s| !s.is_empty()).copied().collect::<Vec<_>>().join(" > ");
                subgraphs.push((name, self.graph(g, &flat.opsets, &path)?));
                continue;
            }
            let v = self.attribute(a, &origin);
            if let Some(v) = self.findings.absorb(v)? {
                values.push((name, v));
            }
        }
        if op == "Gradient" && dom == "ai.onnx.preview.training" {
            ok &= self.named_tensors(&values, &mut inputs, &origin);
        }
        let n_outputs = p.output.iter().rposition(|o| !o.is_empty()).map_or(0, |i| i + 1);
        if dom.is_empty() && op == "Constant" {
            return self.constant_node(p.attribute.as_slice(), &p.output, &values, &origin);
        }
        let attrs = values.clone();
        let parsed = match opset {
            // An undefined operand has been reported; the operator would only complain about it again.
            _ if !ok => None,
            None => {
                // Once for each domain: every further node of it would say the same.
                if self.unimported.insert(dom.clone()) {
                    let shown = if dom.is_empty() { "ai.onnx" } else { &dom };
                    let mut have: Vec<&str> = flat.opsets.keys().map(|d| if d.is_empty() { "ai.onnx" } else { d.as_str() }).collect();
                    have.sort_unstable();
                    let e = Error::new(codes::OPSET_IMPORT, format!("no operator set of domain {shown} is imported")).at(&origin);
                    self.findings.push(e.found_expected(format!("imports of {}", have.join(", ")), format!("an opset_import entry for {shown}")));
                }
                None
            }
            Some(v) => match ops::find(&dom, &op, v) {
                Err(why) => {
                    let why = match why {
                        ops::Unknown::Operator => "not supported".to_owned(),
                        ops::Unknown::Version => format!("exists since version {}, the model imports {v}", ops::schema::versions(&dom, &op).first().map_or(0, |s| s.since)),
                    };
                    self.missing(&dom, &op, v, &origin, &why);
                    None
                }
                Ok(schema) => {
                    let r = all_given(schema, &inputs, &origin).and_then(|()| self.parse(schema, inputs.len(), n_outputs, &origin, values, &subgraphs));
                    self.findings.absorb(r)?
                }
            },
        };
        let mut outputs = vec![];
        let frame_nodes = self.frame().graph.nodes.len();
        for (k, name) in p.output[..n_outputs].iter().enumerate() {
            if name.is_empty() {
                outputs.push(None);
                continue;
            }
            let def = Def::Node(crate::graph::Node::from_u32(frame_nodes as u32), k as u32);
            let data = ValueData { name: name.clone(), ty: None, declared: hints.get(name).cloned(), def, known: Known::No };
            outputs.push(Some(self.define(name, data, &origin)));
        }
        if let (Some((op, schema)), true) = (parsed, ok) {
            let g = &mut self.frame().graph;
            let n = g.nodes.push(NodeData { op, schema, attrs, inputs, outputs, subgraphs, origin });
            g.order.push(n);
        }
        Ok(())
    }
    /// The tensors that Gradient names become operands behind the others: what they are called is known here only.
    fn named_tensors(&mut self, values: &[(String, AttrValue)], inputs: &mut Vec<Option<Value>>, origin: &Origin) -> bool {
        let level = self.frames.len() - 1;
        let mut names: Vec<String> = vec![];
        for key in ["xs", "zs", "y"] {
            match values.iter().find(|(n, _)| n == key).map(|(_, v)| v) {
                Some(AttrValue::Strings(list)) => names.extend(list.iter().map(|s| String::from_utf8_lossy(s).into_owned())),
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
                    let e = Error::new(codes::GRAPH_INVALID, format!("Gradient names the tensor \"{name}\", which is not defined before it")).at(origin);
                    self.findings.push(e.help("xs, zs and y must be inputs, initializers or earlier results of the graph that the node stands in"));
                }
            }
        }
        ok
    }
    fn parse(
        &mut self,
        schema: &'static ops::Schema,
        n_in: usize,
        n_out: usize,
        origin: &Origin,
        values: Vec<(String, AttrValue)>,
        subgraphs: &[(String, Graph)],
    ) -> Result<(ops::Op, &'static ops::Schema)> {
        let arity = |n: usize, f: &ops::schema::Formals, what: &str| -> Result<()> {
            if n >= f.min && n <= f.max() {
                return Ok(());
            }
            let expected = match (f.min, f.max()) {
                (a, b) if a == b => a.to_string(),
                (a, usize::MAX) => format!("{a} or more"),
                (a, b) => format!("{a} to {b}"),
            };
            Error::new(codes::OP_ARITY, format!("wrong number of {what}")).at(origin).found_expected(n.to_string(), expected).fail()
        };
        arity(n_in, &schema.inputs, "inputs")?;
        arity(n_out, &schema.outputs, "outputs")?;
        let names = subgraphs.iter().map(|(n, _)| n.clone()).collect();
        let mut a = Attrs::new(schema, n_in, n_out, origin.clone(), values, names);
        let op = ops::parse(&mut a)?;
        a.finish()?;
        Ok((op, schema))
    }
    fn missing(&mut self, dom: &str, op: &str, opset: i64, origin: &Origin, why: &str) {
        let e = self.unknown.entry((dom.to_owned(), op.to_owned(), opset)).or_insert_with(|| (origin.clone(), 0, why.to_owned()));
        e.1 += 1;
    }
    fn report_unknown(&mut self) {
        if self.unknown.is_empty() {
            return;
        }
        let kinds = self.unknown.len();
        let nodes: usize = self.unknown.values().map(|u| u.1).sum();
        let mut e = Error::new(codes::OP_UNSUPPORTED, format!("{kinds} operator{} not supported, in {nodes} node{}", if kinds == 1 { " is" } else { "s are" }, if nodes == 1 { "" } else { "s" }))
            .at(&self.origin);
        for ((dom, op, v), (first, n, why)) in &self.unknown {
            let d = if dom.is_empty() { "ai.onnx" } else { dom };
            let first = Origin { file: String::new(), op: String::new(), opset: 0, ..first.clone() };
            e = e.row(format!("{d} {op}-{v}"), format!("{n} node{}, first: {first}; {why}", if *n == 1 { "" } else { "s" }));
        }
        self.findings.push(e.help("the README lists the supported operators; a model-local function with this domain and name is used if the model has one"));
    }
    fn constant_node(&mut self, attrs: &[AttributeProto], outputs: &[String], values: &[(String, AttrValue)], origin: &Origin) -> Result<()> {
        let c = match (attrs, values) {
            ([_], [(name, v)]) => match (name.as_str(), v) {
                ("value" | "sparse_value", AttrValue::Tensor(t)) => Some((**t).clone()),
                ("value_float", AttrValue::Float(f)) => Some(ConstData::f32s(vec![], &[*f])),
                ("value_floats", AttrValue::Floats(f)) => Some(ConstData::f32s(vec![f.len() as i64], f)),
                ("value_floats", AttrValue::Ints(f)) if f.is_empty() => Some(ConstData::f32s(vec![0], &[])),
                ("value_int", AttrValue::Int(i)) => Some(ConstData::i64s_shaped(vec![], &[*i])),
                ("value_ints", AttrValue::Ints(i)) => Some(ConstData::from_i64s(i)),
                ("value_string", AttrValue::String(s)) => ConstData::strings(vec![], vec![s.clone().into()]),
                ("value_strings", AttrValue::Strings(s)) => ConstData::strings(vec![s.len() as i64], s.iter().map(|s| s.clone().into()).collect()),
                _ => None,
            },
            _ => None,
        };
        match (c, outputs) {
            (Some(c), [name]) => self.constant(name, c, origin),
            _ => self.findings.push(Error::new(codes::OP_ATTRIBUTE, "Constant needs one output and exactly one of its value attributes").at(origin)),
        }
        Ok(())
    }
    fn attribute(&mut self, a: &AttributeProto, origin: &Origin) -> Result<AttrValue> {
        let name = a.name.clone().unwrap_or_default();
        let at = origin.element(format!("attribute \"{name}\""));
        let bad = |title: &str| -> Result<AttrValue> { Error::new(codes::OP_ATTRIBUTE, format!("attribute \"{name}\": {title}")).at(origin).fail() };
        if a.ref_attr_name.as_deref().is_some_and(|r| !r.is_empty()) {
            return bad("a reference outside a function");
        }
        // Files of 2017 have no type: the field that is set tells it.
        use AttributeType as T;
        let ty = match a.r#type {
            Some(t) if t != 0 => T::try_from(t).ok(),
            _ => [
                (a.f.is_some(), T::Float),
                (a.i.is_some(), T::Int),
                (a.s.is_some(), T::String),
                (a.t.is_some(), T::Tensor),
                (!a.floats.is_empty(), T::Floats),
                (!a.ints.is_empty(), T::Ints),
                (!a.strings.is_empty(), T::Strings),
                (!a.tensors.is_empty(), T::Tensors),
            ]
            .into_iter()
            .find(|x| x.0)
            .map(|x| x.1),
        };
        Ok(match ty {
            Some(T::Float) => AttrValue::Float(a.f.unwrap_or(0.0)),
            Some(T::Int) => AttrValue::Int(a.i.unwrap_or(0)),
            Some(T::String) => AttrValue::String(a.s.clone().unwrap_or_default().to_vec()),
            Some(T::Floats) => AttrValue::Floats(a.floats.clone()),
            Some(T::Ints) => AttrValue::Ints(a.ints.clone()),
            Some(T::Strings) => AttrValue::Strings(a.strings.iter().map(|s| s.to_vec()).collect()),
            Some(T::Tensor) => match &a.t {
                Some(t) => AttrValue::Tensor(Arc::new(tensors::tensor(t, &mut self.external, &at)?)),
                None => return bad("the tensor is missing"),
            },
            Some(T::Tensors) => AttrValue::Tensors(a.tensors.iter().map(|t| tensors::tensor(t, &mut self.external, &at).map(Arc::new)).collect::<Result<_>>()?),
            Some(T::SparseTensor) => match &a.sparse_tensor {
                Some(t) => AttrValue::Tensor(Arc::new(tensors::sparse(t, &mut self.external, &at)?)),
                None => return bad("the tensor is missing"),
            },
            Some(T::TypeProto) => match a.tp.as_ref().map(|t| value_type(t, &mut self.syms, &Unnamed::Member, &at)).transpose()?.flatten() {
                Some(t) => AttrValue::Type(t),
                None => return bad("the type is missing or incomplete"),
            },
            // An empty list of an untyped attribute.
            None => AttrValue::Ints(vec![]),
            Some(T::Graph | T::Graphs | T::SparseTensors | T::TypeProtos | T::Undefined) => return bad("a kind of attribute that no supported operator has"),
        })
    }
    /// Applies `--dim` and finds the parameters in order of first use.
    fn dims(&mut self, g: &Graph, options: &ImportOptions) -> Vec<Sym> {
        for (name, what) in &options.dims {
            let Some(s) = self.syms.lookup(name).filter(|s| matches!(self.syms.kind(*s), SymKind::Param | SymKind::Unnamed)) else {
                let all: Vec<String> = self.syms.iter().filter(|s| matches!(self.syms.kind(*s), SymKind::Param | SymKind::Unnamed)).map(|s| self.syms.name(s).to_owned()).collect();
                let have = if all.is_empty() { "the model has no symbolic dimensions".into() } else { format!("one of {}", all.join(", ")) };
                self.findings.push(Error::new(codes::DIM_OPTION, format!("--dim: the model has no dimension \"{name}\"")).at(&self.origin).found_expected(name.clone(), have));
                continue;
            };
            match what {
                DimOption::Bind(v) => self.syms.bind(s, *v),
                DimOption::Within(r) => self.syms.set_range(s, *r),
            }
        }
        let mut out: Vec<Sym> = vec![];
        for v in &g.inputs {
            if let Some(ValueType::Tensor(t)) = &g.values[*v].ty {
                for d in &t.dims {
                    for s in d.syms() {
                        if !out.contains(&s) && self.syms.bound_value(s).is_none() {
                            out.push(s);
                        }
                    }
                }
            }
        }
        out
    }
}

/// The element type of a declared tensor.
fn declared_elem(v: &ValueInfoProto) -> Option<ElemType> {
    match v.r#type.as_ref()?.value.as_ref()? {
        type_proto::Value::TensorType(t) => ElemType::from_onnx(t.elem_type?),
        _ => None,
    }
}

/// Operands that are not optional must not be left out between others.
fn all_given(schema: &ops::Schema, inputs: &[Option<Value>], origin: &Origin) -> Result<()> {
    let left_out = |(i, v): (usize, &Option<Value>)| v.is_none() && schema.inputs.list.get(i).is_some_and(|f| !f.optional && !f.variadic);
    match inputs.iter().enumerate().position(left_out) {
        Some(i) => Error::new(codes::OP_ARITY, format!("input {i} ({}) of {} version {} is missing", schema.inputs.list[i].name, schema.name, schema.since))
            .at(origin)
            .help("only optional inputs may be left out")
            .fail(),
        None => Ok(()),
    }
}
