//! The one loop that runs, times and verifies the rows of [`crate::passes::table`], and stops where it is
//! asked to.

mod ways;

use crate::codegen::interface::{Described, DimParam, Interface, Kind, Tensor, Weights};
use crate::codegen::weights::Blob;
use crate::codegen::weights_file::{self, COMPILER, Constant, Made};
use crate::diag::{Clock, Error, Failure, Findings, Origin, Result};
use crate::graph::{Model, Value};
use crate::nest::verify::Limits;
use crate::nest::{self, DotKind, Module, State};
use crate::onnx::{self, ImportOptions, Source};
use crate::ops::bundle::boundary::{Boundary, Form};
use crate::options::{DebugText, OptLevel, Options};
use crate::passes;
pub use crate::passes::table::{GRAPH_PASSES, GraphPass, NEST_PASSES, NestPass};
use crate::sym::{Answer, Dim};
use crate::target::{Dot, Level, Target};
use crate::tensor::ElemType;
use rayon::prelude::*;
use sha2::{Digest, Sha256};
use std::collections::HashSet;
use std::path::PathBuf;
use ways::Ways;

/// A model after all passes, ready for code generation.
pub struct Compiled {
    /// The graph as it was lowered.
    pub model: Model,
    /// The fused nests before any level's schedule: what has to be computed, without padding.
    pub unscheduled: Module,
    /// The placed nests, one module for each CPU level of the target.
    pub modules: Vec<Module>,
    /// What callers see.
    pub interface: Interface,
    /// Target.
    pub target: Target,
    /// The weights of all modules.
    pub weights: Blob,
    /// What the plan of a weights file was made from; empty where weights are embedded.
    pub made: Made,
    /// Debug information, and the object's path, beside which the text is that it is about.
    pub debug: Option<(DebugText, PathBuf)>,
    /// Warnings.
    pub warnings: Vec<Error>,
    /// Times what is still to be done: code and files.
    pub clock: Clock,
}

/// What the pipeline stopped at.
pub enum Stopped {
    /// After a graph pass.
    Graph(Box<Model>),
    /// After a nest pass.
    Nest(Box<Module>),
    /// After a nest pass that has run for several CPU levels.
    Levels(Vec<(Level, Module)>),
    /// At the end.
    Done(Box<Compiled>),
}

/// Reads a model and runs all passes.
pub fn compile(source: &Source, options: &Options) -> Result<Compiled> {
    match run(source, options)? {
        Stopped::Done(c) => Ok(*c),
        _ => Err(Failure::bug("pipeline", "stopped early")),
    }
}

/// The same for a model that is changed once it was read.
pub fn compile_changed(
    source: &Source,
    options: &Options,
    change: &mut dyn FnMut(&mut Model),
) -> Result<Compiled> {
    match run_changed(source, options, change)? {
        Stopped::Done(c) => Ok(*c),
        _ => Err(Failure::bug("pipeline", "stopped early")),
    }
}

/// Reads a model and runs passes until `stop_after`.
pub fn run(source: &Source, options: &Options) -> Result<Stopped> {
    run_changed(source, options, &mut |_| {})
}

/// The same for a model that is changed once it was read.
pub fn run_changed(
    source: &Source,
    options: &Options,
    change: &mut dyn FnMut(&mut Model),
) -> Result<Stopped> {
    let mut target = options.target()?;
    let name =
        crate::codegen::names::model_name(options.name.as_deref(), options.output.as_deref(), &source.name)?;
    let clock = options.clock.clone();
    let mut model = clock.step("import", || {
        onnx::read(
            source,
            &ImportOptions {
                dims: options.dims.clone(),
                dim_expressions: options.dim_expressions,
                customs: options.customs.clone(),
                capacities: (!options.aliases.is_empty()).then_some(passes::lower::state::SUFFIX),
            },
        )
    })?;
    if !model.errors.is_empty() {
        return Err(Failure::Errors(all_errors(model)));
    }
    change(&mut model);
    if options.ignore_output_types {
        model.forget_output_types();
    }
    // Takes as long as a fifth of all passes where weights are many, and they do not need it.
    let bytes = source.bytes.clone();
    let digest = std::thread::spawn(move || <[u8; 32]>::from(Sha256::digest(&bytes)));
    let external = options.external();
    let made = if external { made(&mut model, &name, options) } else { Made::default() };
    let mut findings = Findings::default();
    std::mem::take(&mut model.warnings).into_iter().for_each(|w| findings.push(w));
    model.taps = passes::graph::tap::choose(&model, &options.taps, &mut findings);
    model.aliases = passes::lower::state::choose(&model, &options.aliases, &mut findings);
    findings.check()?;
    let stop = |p: &str| options.stop_after.as_deref() == Some(p);
    if stop("import") {
        return Ok(Stopped::Graph(Box::new(model)));
    }
    for p in GRAPH_PASSES.iter().filter(|p| p.level <= options.opt) {
        clock.step(p.name, || (p.run)(&mut model, &mut findings))?;
        if options.verify {
            crate::graph::verify::verify(&model)?;
        }
        if stop(p.name) {
            return Ok(Stopped::Graph(Box::new(model)));
        }
    }
    if options.strict {
        crate::diag::strict(findings.warnings())?;
    }
    let heap = options
        .heap
        .map_or(nest::HEAP, |bytes| bytes.max(0) & !(passes::nest::memory::place_memory::ALIGN - 1));
    let mut module = clock.step("lower", || passes::lower::lower(&model, &name, heap))?;
    module.math = options.math;
    module.optimize = options.optimize;
    nest::overflow::check(&module)?;
    check(&module, None, options.verify)?;
    if stop("lower") {
        return Ok(Stopped::Nest(Box::new(module)));
    }
    let mut ways = Ways::new(module, &target);
    let mut unscheduled = None;
    for p in NEST_PASSES.iter().filter(|p| p.level <= options.opt) {
        ways.part(p, &mut target, options.opt);
        if p.counted && unscheduled.is_none() {
            unscheduled = ways.best().cloned();
        }
        clock.step(p.name, || ways.each(|level, m| (p.run)(m, level)))?;
        ways.each(|level, m| check(m, Some(level), options.verify))?;
        if stop(p.name) {
            return Ok(ways.stopped());
        }
    }
    let modules = ways.modules();
    modules.par_iter().try_for_each(nest::overflow::check)?;
    let Some(unscheduled) = unscheduled else {
        return Err(Failure::bug("pipeline", "no module"));
    };
    let weights = clock.step("pack weights", || {
        let base = match &options.weights_from {
            Some(p) => Some(weights_file::base(onnx::external::map_file(p)?, &p.display().to_string())?),
            None => None,
        };
        Ok(if external { Blob::for_file(&modules, base) } else { Blob::new(&modules) })
    })?;
    let interface = clock.step("interface", || {
        let digest =
            digest.join().map_err(|_| Failure::bug("pipeline", "the digest of the model panicked"))?;
        interface(&model, &modules, (source, digest), options, &target, &weights, &mut findings)
    })?;
    if options.strict {
        crate::diag::strict(findings.warnings())?;
    }
    Ok(Stopped::Done(Box::new(Compiled {
        model,
        unscheduled,
        modules,
        interface,
        target,
        weights,
        made,
        debug: options.debug.map(|text| (text, options.output.clone().unwrap_or_default())),
        warnings: findings.warnings().to_vec(),
        clock,
    })))
}

/// What the plan of a model hangs on.
fn made(model: &mut Model, name: &str, options: &Options) -> Made {
    let mut constants = vec![];
    model.graph.each_constant(&mut |name, data| {
        constants.push(Constant::new(name, data));
        None
    });
    let settings = options.of_plan().into_iter().map(|(k, v)| (k.to_owned(), v)).collect();
    Made { model: name.to_owned(), compiler: COMPILER.to_owned(), settings, constants }
}

/// Errors of the import, and those that inference finds in what they do not concern.
fn all_errors(mut model: Model) -> Vec<Error> {
    let mut all = Findings::default();
    std::mem::take(&mut model.errors).into_iter().for_each(|e| all.push(e));
    for pass in [passes::graph::sequences::run, passes::graph::infer::run] {
        match pass(&mut model, &mut Findings::default()) {
            Ok(()) => continue,
            Err(Failure::Errors(list)) => list.into_iter().for_each(|e| all.push(e)),
            // Bugs about half a model are none.
            Err(_) => {}
        }
        break;
    }
    all.take_errors()
}

/// Bytes that are enough for every module. Dim params are numbered alike in all of them.
pub fn workspace(modules: &[Module]) -> Dim {
    let mut sizes = modules.iter().map(|m| m.workspace);
    let first = sizes.next().unwrap_or(Dim::constant(0));
    sizes.fold(first, |most, w| match modules.first().map(|m| (m.syms.le(w, most), m.syms.le(most, w))) {
        Some((Answer::Yes, _)) => most,
        Some((_, Answer::Yes)) => w,
        _ => most.max(w),
    })
}

/// The verifier, after a pass.
fn check(m: &Module, level: Option<&Level>, on: bool) -> Result<()> {
    if on { nest::verify::verify_for(m, level.map(limits).as_ref()) } else { Ok(()) }
}

/// What the verifier may expect of modules for a level.
pub fn limits(level: &Level) -> Limits {
    let caps = level.facts.caps;
    let groups = [
        (DotKind::Words, matches!(caps.dot, Dot::Pairs | Dot::Quads)),
        (DotKind::WordsByBytes, caps.dot == Dot::Pairs),
        (DotKind::Bytes, caps.dot.mixes_signs()),
        (DotKind::SignedBytes, caps.dot.keeps_signs()),
        (DotKind::NarrowBytes, caps.dot == Dot::QuadsInWords),
        (DotKind::UnsignedBytes, caps.dot.keeps_signs()),
        (DotKind::PairedBytes, caps.pairs_bytes()),
        (DotKind::Halves, caps.bf16 && !caps.dot.has_matrices()),
        (DotKind::LongHalves, caps.bf16 && caps.dot.has_matrices()),
        (DotKind::LongBytes, caps.eights && caps.dot.mixes_signs()),
        (DotKind::LongSignedBytes, caps.eights),
        (DotKind::LongNarrowBytes, caps.eights && caps.dot == Dot::QuadsInWords),
        (DotKind::LongUnsignedBytes, caps.eights),
    ];
    Limits { lanes: level.facts.lanes, groups: groups.into_iter().filter(|g| g.1).map(|g| g.0).collect() }
}

/// Names that `--stop-after` takes, in order.
pub fn pass_names() -> Vec<&'static str> {
    std::iter::once("import")
        .chain(GRAPH_PASSES.iter().map(|p| p.name))
        .chain(["lower"])
        .chain(NEST_PASSES.iter().map(|p| p.name))
        .collect()
}

/// Runs all nest passes over a module made by hand, for the lowest level of a target.
pub fn finish(module: &mut Module, target: &Target, opt: OptLevel) -> Result<()> {
    finish_for(module, target.lowest(), opt)
}

/// The same for every level: one module for each.
pub fn finish_all(module: &Module, target: &Target, opt: OptLevel) -> Result<Vec<Module>> {
    let mut modules = vec![module.clone(); target.levels.len()];
    target.levels.iter().zip(&mut modules).try_for_each(|(level, m)| finish_for(m, level, opt))?;
    Ok(modules)
}

fn finish_for(module: &mut Module, level: &Level, opt: OptLevel) -> Result<()> {
    NEST_PASSES.iter().filter(|p| p.level <= opt).try_for_each(|p| (p.run)(module, level))
}

/// What a value at the border is if it is no tensor, and the type of its elements.
fn described(model: &Model, v: Value) -> Option<(Described, ElemType)> {
    let b = Boundary::of(model.graph.values[v].ty.as_ref()?)?;
    let (kind, optional) = match b.form {
        Form::Sequence => (Kind::Sequence, false),
        Form::Optional => (Kind::Tensor, true),
        Form::OptionalSequence => (Kind::Sequence, true),
        Form::Map => (Kind::Map, false),
        Form::Maps => (Kind::Maps, false),
    };
    Some((Described { kind, optional, key: b.key, dims: b.dims }, b.elem))
}

fn interface(
    model: &Model,
    modules: &[Module],
    (source, model_sha256): (&Source, [u8; 32]),
    options: &Options,
    target: &Target,
    weights: &Blob,
    findings: &mut Findings,
) -> Result<Interface> {
    // What callers see is the same on every level, but for the workspace.
    let Some(m) = modules.first() else {
        return Err(Failure::bug("pipeline", "a target without levels"));
    };
    let workspace = workspace(modules);
    let mut names = crate::codegen::names::Names::new(&options.renames);
    let dim_params = m
        .dim_params
        .iter()
        .map(|s| {
            let r = m.syms.declared_range(*s);
            Ok(DimParam {
                sym: *s,
                name: m.syms.name(*s).to_owned(),
                ident: names.ident(m.syms.name(*s), "dimension")?,
                lo: r.lo.unwrap_or(0),
                hi: r.hi,
            })
        })
        .collect::<Result<Vec<_>>>()?;
    let input_names: Vec<&str> = m.inputs.iter().map(|b| m.bufs[*b].name.as_str()).collect();
    let mut tensor = |b: nest::Buf, v: &Value, what: &str| -> Result<Tensor> {
        let d = &m.bufs[b];
        // An output that is an input of the model bears the same name: both stay, the output as a copy.
        let shown = if what == "output"
            && input_names.contains(&d.name.as_str())
            && !options.renames.contains_key(&d.name)
        {
            format!("{}_out", d.name)
        } else {
            d.name.clone()
        };
        let ident = names.ident(&shown, what)?;
        if let Some((described, ty)) = described(model, *v) {
            return Ok(Tensor {
                name: d.name.clone(),
                ident,
                ty,
                dims: vec![],
                max_dims: vec![],
                aliases_input: None,
                described: Some(described),
            });
        }
        let max_dims = d.dims.iter().map(|x| m.syms.range(*x).hi).collect();
        // Callers know the params only.
        let dims = d.dims.iter().map(|x| m.syms.expanded(*x)).collect();
        Ok(Tensor {
            name: d.name.clone(),
            ident,
            ty: d.ty,
            dims,
            max_dims,
            aliases_input: None,
            described: None,
        })
    };
    let inputs = m
        .inputs
        .iter()
        .zip(&model.graph.inputs)
        .map(|(b, v)| tensor(*b, v, "input"))
        .collect::<Result<Vec<_>>>()?;
    let mut outputs = m
        .outputs
        .iter()
        .zip(&model.graph.outputs)
        .map(|(b, v)| tensor(*b, v, "output"))
        .collect::<Result<Vec<_>>>()?;
    for (o, i) in &model.aliases {
        outputs[*o].aliases_input = Some(*i as u32);
    }
    names.check()?.into_iter().for_each(|w| findings.push(w));
    let external = options.external();
    let output = options.output.as_deref().unwrap_or(std::path::Path::new(&m.name));
    let weights_path = options.weights_path(output).unwrap_or_default();
    let plan = if external {
        weights_file::plan(modules, weights, &target.triple.to_string(), &target.cpu())
    } else {
        Default::default()
    };
    let weights_file = weights_path.file_name().map_or(String::new(), |f| f.to_string_lossy().into_owned());
    let file = std::path::Path::new(&source.name)
        .file_name()
        .map_or(source.name.clone(), |f| f.to_string_lossy().into_owned());
    Ok(Interface {
        name: m.name.clone(),
        producer: format!("onnxc {}", env!("CARGO_PKG_VERSION")),
        model_file: file,
        model_sha256,
        target: target.triple.to_string(),
        cpu: target.cpu(),
        asks_cpu: target.asks(),
        refuses_cpu: target.refuses(),
        dim_params,
        inputs,
        outputs,
        workspace,
        workspace_max: m.syms.range(workspace).hi.and_then(|v| u64::try_from(v).ok()),
        heap: crate::codegen::interface::heap(modules),
        weights: Weights {
            size: weights.size,
            align: crate::codegen::weights::ALIGN,
            slot: weights.base.as_ref().map_or(0, |b| b.slot(&plan)),
            plan,
            external,
            file: weights_file,
        },
        states: m
            .states
            .iter()
            .map(|s| State {
                before: m.syms.expanded(s.before),
                after: m.syms.expanded(s.after),
                ..s.clone()
            })
            .collect(),
        nodes: nodes(model, modules),
        foreign: crate::codegen::interface::foreign(m),
        customs: crate::codegen::interface::customs(m),
        symbols: vec![],
        hidden: options.hidden,
        trace: options.trace,
        syms: m.syms.clone(),
    })
}

/// Nodes of the main graph in order, and behind them those inside them, or made of them, that kernels
/// compute.
fn nodes(model: &Model, modules: &[Module]) -> Vec<Origin> {
    let mut nodes: Vec<Origin> =
        model.graph.order.iter().map(|n| model.graph.nodes[*n].origin.clone()).collect();
    let key = |o: &Origin| (o.graph.clone(), o.node, o.output.clone(), o.name.clone(), o.op.clone());
    let mut seen: HashSet<_> = nodes.iter().map(key).collect();
    for m in modules {
        for k in nest::visit::calls(&m.driver) {
            let o = &m.kernels[k].origin;
            if seen.insert(key(o)) {
                nodes.push(o.clone());
            }
        }
    }
    nodes
}
