//! The pass tables, and the one loop that runs, times, verifies and stops.

use crate::codegen::interface::{Described, DimParam, Interface, Kind, Tensor, Weights};
use crate::codegen::weights::Blob;
use crate::diag::{Error, Findings, Result};
use crate::graph::{Model, Value};
use crate::nest::{self, Module};
use crate::onnx::{self, ImportOptions, Source};
use crate::ops::bundle::boundary::{Boundary, Form};
use crate::options::{self, OptLevel, Options};
use crate::passes;
use crate::sym::{Answer, Dim};
use crate::target::{Dot, Facts, Level, Target};
use crate::tensor::ElemType;
use rayon::prelude::*;
use std::time::Instant;

/// A pass over the graph IR.
pub struct GraphPass {
    /// Name, as `--stop-after` takes it.
    pub name: &'static str,
    /// Least level it runs at.
    pub level: OptLevel,
    /// The pass.
    pub run: fn(&mut Model, &mut Findings) -> Result<()>,
}

/// A pass over the nest IR.
pub struct NestPass {
    /// Name, as `--stop-after` takes it.
    pub name: &'static str,
    /// Least level it runs at.
    pub level: OptLevel,
    /// False for a pass that does the same for every CPU level: it runs once, before all that do not.
    pub per_level: bool,
    /// The pass.
    pub run: fn(&mut Module, &Level) -> Result<()>,
}

/// Graph passes in order.
pub const GRAPH_PASSES: &[GraphPass] = &[
    GraphPass { name: "write_sequences", level: OptLevel::O0, run: passes::graph::sequences::run },
    GraphPass { name: "drop_dead_nodes", level: OptLevel::O0, run: |m, _| passes::graph::dead::run(m) },
    GraphPass { name: "infer_shapes", level: OptLevel::O0, run: passes::graph::infer::run },
    GraphPass { name: "integer_quantized", level: OptLevel::O1, run: |m, _| passes::graph::quantize::run(m) },
];

/// Nest passes in order.
pub const NEST_PASSES: &[NestPass] = &[
    NestPass { name: "drop_dead_kernels", level: OptLevel::O0, per_level: false, run: |m, _| passes::nest::dead::run(m) },
    NestPass { name: "inline_elementwise", level: OptLevel::O1, per_level: false, run: |m, _| passes::nest::inline::identity(m) },
    NestPass { name: "fold_constants", level: OptLevel::O1, per_level: false, run: |m, _| passes::nest::fold::run(m) },
    NestPass { name: passes::nest::exact::NAME, level: OptLevel::O2, per_level: false, run: passes::nest::exact::run },
    NestPass { name: "fuse_epilogues", level: OptLevel::O1, per_level: false, run: |m, _| passes::nest::epilogue::run(m) },
    NestPass { name: "inline_producers", level: OptLevel::O1, per_level: false, run: |m, _| passes::nest::inline::general(m) },
    NestPass { name: "join_rows", level: OptLevel::O2, per_level: false, run: |m, _| passes::nest::join::run(m) },
    NestPass { name: "split_rows", level: OptLevel::O2, per_level: false, run: |m, _| passes::nest::split::run(m) },
    NestPass { name: "widen_halves", level: OptLevel::O2, per_level: false, run: |m, _| passes::nest::storage::run(m) },
    NestPass { name: "fuse_pooling", level: OptLevel::O2, per_level: false, run: |m, l| passes::nest::pooled::run(m, l.facts.lanes) },
    NestPass { name: "pool_planes", level: OptLevel::O2, per_level: false, run: |m, l| if l.facts.lanes > 1 { passes::nest::planes::run(m) } else { Ok(()) } },
    NestPass { name: "choose_layouts", level: OptLevel::O2, per_level: false, run: |m, _| passes::nest::layout::run(m) },
    NestPass { name: "gate_weights", level: OptLevel::O2, per_level: false, run: |m, _| passes::nest::gate::run(m) },
    NestPass { name: "winograd", level: OptLevel::O2, per_level: false, run: passes::nest::winograd::run },
    NestPass { name: "fuse_depthwise", level: OptLevel::O2, per_level: false, run: passes::nest::bands::run },
    NestPass { name: "fill_vectors", level: OptLevel::O2, per_level: false, run: |m, l| passes::nest::phases::run(m, l.facts.lanes) },
    NestPass { name: "pair_chains", level: OptLevel::O2, per_level: false, run: |m, _| passes::nest::beside::run(m) },
    NestPass { name: "strassen", level: OptLevel::O2, per_level: true, run: passes::nest::strassen::run },
    NestPass { name: passes::nest::schedule::NAME, level: OptLevel::O2, per_level: true, run: passes::nest::schedule::run },
    NestPass { name: "place_memory", level: OptLevel::O0, per_level: true, run: |m, _| passes::nest::place::run(m) },
];

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
    /// Warnings.
    pub warnings: Vec<Error>,
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
        _ => Err(crate::diag::Failure::bug("pipeline", "stopped early")),
    }
}

/// Reads a model and runs passes until `stop_after`.
pub fn run(source: &Source, options: &Options) -> Result<Stopped> {
    let mut target = Target::new(options.target.as_deref(), options.cpu.as_deref())?;
    let name = crate::codegen::names::model_name(options.name.as_deref(), &source.name)?;
    let clock = Clock(options.time);
    let mut model = clock.step("import", || onnx::read(source, &ImportOptions { dims: options.dims.clone(), dim_expressions: options.dim_expressions }))?;
    if !model.errors.is_empty() {
        return Err(crate::diag::Failure::Errors(all_errors(model)));
    }
    let mut findings = Findings::default();
    std::mem::take(&mut model.warnings).into_iter().for_each(|w| findings.push(w));
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
    let heap = options.heap.map_or(nest::HEAP, |bytes| bytes.max(0) & !(passes::nest::place::ALIGN - 1));
    let mut module = clock.step("lower", || passes::lower::lower(&model, &name, heap))?;
    module.math = options.math;
    nest::overflow::check(&module)?;
    check(&module, options.verify)?;
    if stop("lower") {
        return Ok(Stopped::Nest(Box::new(module)));
    }
    // Levels with other dot products go their own way from where integer sums become floats, if any sum has a use for them.
    // Those with dot products of bytes are there by name only if no sum suits these.
    if options.opt < OptLevel::O2 {
        target.keep(|f| f.dot != Dot::Quads);
    }
    let (shared, per_level): (Vec<&NestPass>, Vec<&NestPass>) = NEST_PASSES.iter().filter(|p| p.level <= options.opt).partition(|p| !p.per_level);
    let mut ways = vec![(target.lowest().clone(), module)];
    for p in shared {
        if p.name == passes::nest::exact::NAME {
            let module = ways[0].1.clone();
            let suit = |f: &Facts| passes::nest::dots::suit(&module, f);
            let halves = options.math == options::Math::Fast && passes::nest::halves::suit(&module);
            target.keep(|f| if f.bf16 { halves } else { f.dot != Dot::Quads || suit(f) });
            if target.levels.iter().any(|l| suit(&l.facts)) {
                for l in &target.levels {
                    if ways.iter().all(|w| w.0.facts.dot != l.facts.dot) {
                        ways.push((l.clone(), module.clone()));
                    }
                }
            }
        }
        clock.step(p.name, || ways.iter_mut().try_for_each(|(level, m)| (p.run)(m, level)))?;
        ways.iter().try_for_each(|w| check(&w.1, options.verify))?;
        if stop(p.name) {
            return Ok(match ways.len() {
                1 => Stopped::Nest(Box::new(ways.remove(0).1)),
                _ => Stopped::Levels(ways),
            });
        }
    }
    let way = |l: &Level| ways.iter().find(|w| w.0.facts.dot == l.facts.dot).unwrap_or(&ways[0]).1.clone();
    let mut modules: Vec<Module> = target.levels.iter().map(way).collect();
    // What is counted is the module of the highest level, as it comes to the schedule, or to the first of these passes without one.
    let counted = per_level.iter().position(|p| p.name == passes::nest::schedule::NAME).unwrap_or(0);
    let mut unscheduled = None;
    for (i, p) in per_level.into_iter().enumerate() {
        if i == counted {
            unscheduled = modules.last().cloned();
        }
        clock.step(p.name, || target.levels.par_iter().zip(&mut modules).try_for_each(|(level, m)| (p.run)(m, level)))?;
        modules.par_iter().try_for_each(|m| check(m, options.verify))?;
        if stop(p.name) {
            return Ok(match modules.len() {
                1 => Stopped::Nest(Box::new(modules.remove(0))),
                _ => Stopped::Levels(target.levels.into_iter().zip(modules).collect()),
            });
        }
    }
    modules.par_iter().try_for_each(nest::overflow::check)?;
    let Some(unscheduled) = unscheduled else { return Err(crate::diag::Failure::bug("pipeline", "no module")) };
    let weights = Blob::new(&modules);
    let interface = clock.step("interface", || interface(&model, &modules, source, options, &target, &weights, &mut findings))?;
    if options.strict {
        crate::diag::strict(findings.warnings())?;
    }
    Ok(Stopped::Done(Box::new(Compiled { model, unscheduled, modules, interface, target, weights, warnings: findings.warnings().to_vec() })))
}

/// Errors of the import, and those that inference finds in what they do not concern.
fn all_errors(mut model: Model) -> Vec<Error> {
    let mut all = Findings::default();
    std::mem::take(&mut model.errors).into_iter().for_each(|e| all.push(e));
    for pass in [passes::graph::sequences::run, passes::graph::infer::run] {
        match pass(&mut model, &mut Findings::default()) {
            Ok(()) => continue,
            Err(crate::diag::Failure::Errors(list)) => list.into_iter().for_each(|e| all.push(e)),
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
fn check(m: &Module, on: bool) -> Result<()> {
    if on { nest::verify::verify(m) } else { Ok(()) }
}

/// Names that `--stop-after` takes, in order.
pub fn pass_names() -> Vec<&'static str> {
    std::iter::once("import").chain(GRAPH_PASSES.iter().map(|p| p.name)).chain(["lower"]).chain(NEST_PASSES.iter().map(|p| p.name)).collect()
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

struct Clock(bool);

impl Clock {
    fn step<T>(&self, name: &str, f: impl FnOnce() -> Result<T>) -> Result<T> {
        let start = Instant::now();
        let r = f();
        if self.0 {
            eprintln!("{:>9.3} ms  {name}", start.elapsed().as_secs_f64() * 1e3);
        }
        r
    }
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

fn interface(model: &Model, modules: &[Module], source: &Source, options: &Options, target: &Target, weights: &Blob, findings: &mut Findings) -> Result<Interface> {
    // What callers see is the same on every level, but for the workspace.
    let Some(m) = modules.first() else { return Err(crate::diag::Failure::bug("pipeline", "a target without levels")) };
    let workspace = workspace(modules);
    let mut names = crate::codegen::names::Names::new(&options.renames);
    let dim_params = model
        .dim_params
        .iter()
        .map(|s| {
            let r = m.syms.declared_range(*s);
            Ok(DimParam { sym: *s, name: m.syms.name(*s).to_owned(), ident: names.ident(m.syms.name(*s), "dimension")?, lo: r.lo.unwrap_or(0), hi: r.hi })
        })
        .collect::<Result<Vec<_>>>()?;
    let input_names: Vec<&str> = m.inputs.iter().map(|b| m.bufs[*b].name.as_str()).collect();
    let mut tensor = |b: nest::Buf, v: &Value, what: &str| -> Result<Tensor> {
        let d = &m.bufs[b];
        // An output that is an input of the model bears the same name: both stay, the output as a copy.
        let shown = if what == "output" && input_names.contains(&d.name.as_str()) && !options.renames.contains_key(&d.name) { format!("{}_out", d.name) } else { d.name.clone() };
        let ident = names.ident(&shown, what)?;
        if let Some((described, ty)) = described(model, *v) {
            return Ok(Tensor { name: d.name.clone(), ident, ty, dims: vec![], max_dims: vec![], aliases_input: None, described: Some(described) });
        }
        let max_dims = d.dims.iter().map(|x| m.syms.range(*x).hi).collect();
        // Callers know the params only.
        let dims = d.dims.iter().map(|x| m.syms.expanded(*x)).collect();
        Ok(Tensor { name: d.name.clone(), ident, ty: d.ty, dims, max_dims, aliases_input: None, described: None })
    };
    let inputs = m.inputs.iter().zip(&model.graph.inputs).map(|(b, v)| tensor(*b, v, "input")).collect::<Result<Vec<_>>>()?;
    let outputs = m.outputs.iter().zip(&model.graph.outputs).map(|(b, v)| tensor(*b, v, "output")).collect::<Result<Vec<_>>>()?;
    names.check()?.into_iter().for_each(|w| findings.push(w));
    let external = matches!(options.weights, options::Weights::File(_));
    let file = std::path::Path::new(&source.name).file_name().map_or(source.name.clone(), |f| f.to_string_lossy().into_owned());
    Ok(Interface {
        name: m.name.clone(),
        producer: format!("onnxc {}", env!("CARGO_PKG_VERSION")),
        model_file: file,
        model_sha256: model.sha256,
        target: target.triple.to_string(),
        cpu: target.cpu(),
        dim_params,
        inputs,
        outputs,
        workspace,
        workspace_max: m.syms.range(workspace).hi.and_then(|v| u64::try_from(v).ok()),
        heap: crate::codegen::interface::heap(modules),
        weights: Weights { size: weights.size, align: crate::codegen::weights::ALIGN, sha256: if external { weights.sha256() } else { [0; 32] }, external },
        nodes: model.graph.order.iter().map(|n| &model.graph.nodes[*n].origin).map(|o| (o.name.clone(), o.op.clone())).collect(),
        foreign: crate::codegen::interface::foreign(m),
        syms: m.syms.clone(),
    })
}
