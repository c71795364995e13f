//! ModelProto -> graph IR. Collects all findings before it fails. `nodes` converts the single nodes.

use super::external::External;
use super::functions::{Functions, Opsets, opsets};
use super::proto::{GraphProto, ModelProto, TensorProto, ValueInfoProto, type_proto};
use super::types::{Unnamed, value_type};
use super::{ImportOptions, Source, declared, scopes, sort, tensors, versions};
use crate::diag::{Error, Failure, Findings, Origin, Result, codes, limits};
use crate::graph::{Def, Graph, Model, Value, ValueData};
use crate::ops::{self, Known};
use crate::sym::text::DimOption;
use crate::sym::{Sym, SymKind, SymTable};
use crate::tensor::{ConstData, ElemType, ValueType};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// IR versions that onnxc reads.
pub const IR_VERSIONS: std::ops::RangeInclusive<i64> = 1..=14;
/// First IR version with opset_import.
const IMPORTS_SINCE: i64 = 3;

/// Builds the graph of a decoded model.
pub fn import(
    mut m: ModelProto,
    source: &Source,
    options: &ImportOptions,
    warnings: Vec<Error>,
) -> Result<Model> {
    let origin = Origin::file(&source.name);
    let mut findings = Findings::default();
    warnings.into_iter().for_each(|w| findings.push(w));
    let ir = m.ir_version.unwrap_or(0);
    if !IR_VERSIONS.contains(&ir) {
        findings.push(
            Error::new(codes::IR_VERSION, "the IR version is missing or not known")
                .at(&origin)
                .found_expected(m.ir_version.map_or("none".into(), |v| v.to_string()), "1 to 14")
                .help("re-export the model, or update onnxc"),
        );
    }
    let mut sets = opsets(&m.opset_import, false, &origin, &mut findings);
    for (d, v) in &sets {
        if let Some(newest) = ops::schema::newest(d).filter(|n| v > n) {
            let shown = if d.is_empty() { "ai.onnx" } else { d };
            let e =
                Error::new(codes::OPSET_IMPORT, format!("version {v} of operator set {shown} is not known"))
                    .at(&origin);
            findings.push(
                e.found_expected(v.to_string(), format!("1 to {newest}"))
                    .help("update onnxc, or convert the model with onnx.version_converter"),
            );
        }
    }
    if m.opset_import.is_empty() {
        if ir >= IMPORTS_SINCE {
            let e = Error::new(codes::OPSET_IMPORT, "the model imports no operator set").at(&origin);
            let e = e.found_expected(
                format!("no opset_import at IR version {ir}"),
                "one for every domain that its nodes use",
            );
            findings.push(e.help("add the opset_import that the model was written for"));
        }
        sets.insert(String::new(), 1);
    } else if (1..IMPORTS_SINCE).contains(&ir) {
        let e = Error::warning(
            codes::OPSET_IMPORT,
            "the model imports operator sets, which its IR version does not have: they count",
        )
        .at(&origin);
        let e = e.found_expected(
            format!("opset_import at IR version {ir}"),
            format!("opset_import from IR version {IMPORTS_SINCE} on, version 1 before"),
        );
        findings.push(e.help(format!("set the model's ir_version to {IMPORTS_SINCE} or more")));
    }
    sort::sort(&mut m, &origin, &mut findings);
    let functions = Functions::new(&m, &sets, &origin, &mut findings);
    let mut cx = Import {
        ir,
        functions,
        external: External::new(source.folder.clone()),
        syms: SymTable::reading(options.dim_expressions),
        findings,
        frames: vec![],
        unknown: BTreeMap::new(),
        unimported: BTreeSet::new(),
        deprecated: BTreeSet::new(),
        broken: scopes::Broken::new(),
        unresolved: false,
        customs: options.customs.iter().map(|d| (d.clone(), false)).collect(),
        origin: origin.clone(),
    };
    declared::check(&m, ir, &origin, &mut cx.findings);
    versions::check(&m, ir, &origin, &mut cx.findings);
    let Some(g) = &m.graph else {
        return Error::new(codes::NOT_A_MODEL, "the model has no graph").at(&origin).fail();
    };
    cx.broken = scopes::check_graph(g, ir, &origin, &mut cx.findings);
    let graph = cx.graph(g, &Arc::new(sets.clone()), "")?;
    cx.report_unknown();
    cx.unused_customs();
    let dim_params = cx.dims(&graph, options);
    std::mem::take(&mut cx.external.warnings).into_iter().for_each(|w| cx.findings.push(w));
    if cx.unresolved && !cx.findings.has_errors() {
        return Err(Failure::bug("import", "a name is not resolved, and nothing was reported"));
    }
    let mut opsets: Vec<(String, i64)> = sets.into_iter().collect();
    opsets.sort();
    let late_dims = options.dims.iter().filter(|(n, _)| options.is_late(&cx.syms, n)).cloned().collect();
    Ok(Model {
        graph,
        syms: cx.syms,
        dim_params,
        opsets,
        ir_version: ir,
        origin,
        producer: [m.producer_name, m.producer_version].into_iter().flatten().collect::<Vec<_>>().join(" "),
        warnings: cx.findings.warnings().to_vec(),
        errors: cx.findings.take_errors(),
        taps: vec![],
        aliases: vec![],
        late_dims,
        external_files: cx.external.opened(),
    })
}

pub(super) struct Frame {
    pub(super) graph: Graph,
    names: HashMap<String, Value>,
    /// Names that are defined twice.
    twice: BTreeSet<String>,
}

pub(super) struct Import {
    pub(super) ir: i64,
    functions: Functions,
    /// Operators provided by the user, and whether the model has a node of each.
    pub(super) customs: Vec<(ops::custom::Declaration, bool)>,
    pub(super) external: External,
    pub(super) syms: SymTable,
    pub(super) findings: Findings,
    pub(super) frames: Vec<Frame>,
    /// (domain, operator, opset) -> first place, number of occurrences, reason.
    pub(super) unknown: BTreeMap<(String, String, i64), (Origin, usize, String)>,
    /// Domains whose missing import has been reported.
    pub(super) unimported: BTreeSet<String>,
    /// Deprecated operators that have been warned about.
    pub(super) deprecated: BTreeSet<String>,
    /// Nodes with an error in one of their graphs. The error has been reported.
    pub(super) broken: scopes::Broken,
    /// A name was not found. `scopes` has reported it, or its definition could not be imported and that has
    /// been reported.
    pub(super) unresolved: bool,
    pub(super) origin: Origin,
}

impl Import {
    pub(super) fn frame(&mut self) -> &mut Frame {
        // A frame is pushed before this is called.
        let last = self.frames.len() - 1;
        &mut self.frames[last]
    }
    /// Defines a name. If it is already defined, `scopes` has reported that, and the first definition is
    /// kept.
    pub(super) fn define(&mut self, name: &str, data: ValueData) -> Value {
        let f = self.frame();
        let v = f.graph.values.push(data);
        if f.names.contains_key(name) {
            f.twice.insert(name.to_owned());
        } else {
            f.names.insert(name.to_owned(), v);
        }
        v
    }
    /// The value of a name in the current graph, captured from an enclosing graph if necessary.
    pub(super) fn lookup(&mut self, name: &str, level: usize) -> Option<Value> {
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
    pub(super) fn graph(&mut self, g: &GraphProto, sets: &Arc<Opsets>, path: &str) -> Result<Graph> {
        if limits::GRAPH_DEPTH.exceeded_by(self.frames.len() as u64 + 1) {
            let path = Origin { graph: path.to_owned(), ..self.origin.clone() };
            return limits::GRAPH_DEPTH
                .error("subgraphs nest too deeply", self.frames.len() + 1)
                .at(&path)
                .fail();
        }
        let here = Origin { graph: path.to_owned(), ..self.origin.clone() };
        self.frames.push(Frame {
            graph: Graph { name: g.name.clone().unwrap_or_default(), ..Default::default() },
            names: HashMap::new(),
            twice: BTreeSet::new(),
        });
        self.initializers(g, &here)?;
        for i in &g.input {
            self.input(i, &here)?;
        }
        let parameters = self.frame().graph.inputs.len() + g.output.len();
        if self.frames.len() == 1 && limits::PARAMETERS.exceeded_by(parameters as u64) {
            return limits::PARAMETERS
                .error("the model has too many inputs and outputs", parameters)
                .at(&here)
                .fail();
        }
        if self.frames.len() > 1 {
            let own = &mut self.frame().graph;
            for v in own.inputs.clone() {
                own.values[v].declared = own.values[v].ty.clone();
            }
        }
        let hints = self.hints(g, &here);
        let flat = self.functions.flatten(&g.node, sets, path, &self.origin, &mut self.findings);
        for n in &flat {
            if self.findings.is_full() {
                break;
            }
            self.node(n, &hints)?;
        }
        let level = self.frames.len() - 1;
        for o in &g.output {
            let name = o.name.clone().unwrap_or_default();
            if self.frame().twice.contains(&name) {
                continue;
            }
            match self.lookup(&name, level) {
                Some(v) => {
                    let declared = hints.get(name.as_str()).cloned();
                    let g = &mut self.frame().graph;
                    g.values[v].declared = declared.or(g.values[v].declared.take());
                    g.outputs.push(v);
                    g.output_names.push(name);
                    g.output_elems.push(declared_elem(o));
                }
                None => self.unresolved = true,
            }
        }
        match self.frames.pop() {
            Some(f) => Ok(f.graph),
            None => Err(Failure::bug("import", "no frame")),
        }
    }
    fn initializers(&mut self, g: &GraphProto, here: &Origin) -> Result<()> {
        for t in &g.initializer {
            let name = t.name.clone().unwrap_or_default();
            let at = here.element(format!("initializer \"{name}\""));
            if name.is_empty() {
                self.unnamed(here, t.data_type, &t.dims);
                continue;
            }
            let c = tensors::tensor(t, &mut self.external, &at);
            if let Some(c) = self.unless_unused(c, g, t)?.map_or(Ok(None), |c| self.findings.absorb(c))? {
                self.constant(&name, c, &at);
            }
        }
        for t in &g.sparse_initializer {
            let name = t.values.as_ref().and_then(|v| v.name.clone()).unwrap_or_default();
            let at = here.element(format!("sparse initializer \"{name}\""));
            if name.is_empty() {
                self.unnamed(here, t.values.as_ref().and_then(|v| v.data_type), &t.dims);
                continue;
            }
            let c = tensors::sparse(t, &mut self.external, &at);
            if let Some(c) = self.findings.absorb(c)? {
                self.constant(&name, c, &at);
            }
        }
        Ok(())
    }
    fn unnamed(&mut self, here: &Origin, elem: Option<i32>, dims: &[i64]) {
        let elem = elem.and_then(ElemType::from_onnx).map_or("?", ElemType::onnx_name);
        self.findings.push(
            Error::new(codes::GRAPH_INVALID, "an initializer without a name").at(here).found_expected(
                format!("an initializer {elem}{dims:?} without a name"),
                "a name, by which nodes use it",
            ),
        );
    }
    /// Turns an error in an external file into a warning if the tensor is unused, and drops the tensor.
    fn unless_unused(
        &mut self,
        c: Result<ConstData>,
        g: &GraphProto,
        t: &TensorProto,
    ) -> Result<Option<Result<ConstData>>> {
        match c {
            Err(Failure::Errors(list))
                if declared::is_external(t) && !declared::uses(g, t.name.as_deref().unwrap_or_default()) =>
            {
                let warn = |e: Error| {
                    Error { severity: crate::diag::Severity::Warning, ..e }
                        .note("nothing uses the tensor: it is dropped")
                };
                list.into_iter().for_each(|e| self.findings.push(warn(e)));
                Ok(None)
            }
            c => Ok(Some(c)),
        }
    }
    /// Defines a constant, if its rank is within the limit.
    pub(super) fn constant(&mut self, name: &str, c: ConstData, at: &Origin) {
        if limits::RANK.exceeded_by(c.dims().len() as u64) {
            self.findings
                .push(limits::RANK.error("the tensor has too many dimensions", c.dims().len()).at(at));
            return;
        }
        let data = Arc::new(c);
        let ty = Some(ValueType::Tensor(data.tensor_type()));
        self.define(
            name,
            ValueData {
                name: name.to_owned(),
                ty,
                declared: None,
                known: Known::Const(data.clone()),
                def: Def::Const(data),
            },
        );
    }
    /// An input with an initializer becomes a constant: the initializer is its default value.
    fn input(&mut self, i: &ValueInfoProto, here: &Origin) -> Result<()> {
        let name = i.name.clone().unwrap_or_default();
        let at = here.element(format!("input \"{name}\""));
        if name.is_empty() {
            return Ok(());
        }
        let top = self.frames.len() == 1;
        if let Some(v) = self.frame().names.get(&name).copied() {
            return self.default_value(i, v, &at);
        }
        let ty = match &i.r#type {
            Some(t) => {
                value_type(t, &mut self.syms, &if top { Unnamed::Symbol(&name) } else { Unnamed::Hint }, &at)
            }
            None => Ok(None),
        };
        let ty = self.findings.absorb(ty)?.flatten();
        if ty.is_none() && top && !self.findings.has_errors() {
            self.findings.push(Error::new(codes::TYPE_INVALID, "the input has no type").at(&at));
        }
        let n = self.frame().graph.inputs.len() as u32;
        let v = self.define(
            &name,
            ValueData { name: name.clone(), ty, declared: None, def: Def::Input(n), known: Known::No },
        );
        self.frame().graph.inputs.push(v);
        Ok(())
    }
    /// Applies an input's default value: the sizes that it fixes are fixed in the whole model.
    fn default_value(&mut self, i: &ValueInfoProto, v: Value, at: &Origin) -> Result<()> {
        let Def::Const(c) = self.frame().graph.values[v].def.clone() else { return Ok(()) };
        let fixed = declared::default_value(i, c.elem(), c.dims(), at);
        for (name, n) in self.findings.absorb(fixed)?.unwrap_or_default() {
            let s = self.syms.param(&name);
            match self.syms.bound_value(s).filter(|old| *old != n) {
                Some(old) => {
                    let e = Error::new(
                        codes::TYPE_INVALID,
                        format!("two default values give the dimension \"{name}\" two sizes"),
                    )
                    .at(at);
                    self.findings.push(e.found_expected(n.to_string(), old.to_string()));
                }
                None => self.syms.bind(s, n),
            }
        }
        Ok(())
    }
    /// Declared types of outputs and inner values, by name.
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
    /// Applies `--dim` and finds the parameters in order of first use.
    fn dims(&mut self, g: &Graph, options: &ImportOptions) -> Vec<Sym> {
        for (name, what) in &options.dims {
            if options.is_late(&self.syms, name) {
                continue;
            }
            let Some(s) = self
                .syms
                .lookup(name)
                .filter(|s| matches!(self.syms.kind(*s), SymKind::Param | SymKind::Unnamed))
            else {
                let all: Vec<String> = self
                    .syms
                    .iter()
                    .filter(|s| matches!(self.syms.kind(*s), SymKind::Param | SymKind::Unnamed))
                    .map(|s| self.syms.name(s).to_owned())
                    .collect();
                let have = if all.is_empty() {
                    "the model has no symbolic dimensions".into()
                } else {
                    format!("one of {}", all.join(", "))
                };
                self.findings.push(
                    Error::new(codes::DIM_OPTION, format!("--dim: the model has no dimension \"{name}\""))
                        .at(&self.origin)
                        .found_expected(name.clone(), have),
                );
                continue;
            };
            match what {
                DimOption::Bind(v) => self.syms.bind(s, *v),
                DimOption::Within(r) => self.syms.set_range(s, *r),
            }
        }
        let of_inputs: Vec<Sym> = g
            .inputs
            .iter()
            .filter_map(|v| g.values[*v].ty.as_ref()?.as_tensor())
            .flat_map(|t| t.dims.iter().flat_map(|d| d.syms()))
            .collect();
        for (name, _) in &options.dims {
            if self.syms.lookup(name).is_some_and(|s| {
                !of_inputs.contains(&s) && matches!(self.syms.kind(s), SymKind::Param | SymKind::Unnamed)
            }) {
                let mut have: Vec<&str> = of_inputs.iter().map(|s| self.syms.name(*s)).collect();
                have.dedup();
                let e = Error::warning(
                    codes::DIM_OPTION,
                    format!(
                        "--dim: no input has the \
                        dimension \"{name}\": the option fixes no input, and only asserts what the model \
                        computes"
                    ),
                )
                .at(&self.origin);
                self.findings.push(e.found_expected(
                    format!("\"{name}\" of an output or an inner value"),
                    if have.is_empty() {
                        "none: all inputs have fixed sizes".into()
                    } else {
                        format!("one of {}", have.join(", "))
                    },
                ));
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
