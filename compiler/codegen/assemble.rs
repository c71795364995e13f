//! Compiles a model's functions and data into a Cranelift module, which is an object file or memory.
//! Functions are compiled in parallel and emitted in table order, so the bytes do not depend on thread
//! scheduling.

mod functions;
mod isas;
mod stack;
mod wide_tiles;

use super::clif::{self, LIBM_NAMESPACE, TILE_NAMESPACE, entry};
use super::cpu_level::{Asking, Import};
use super::customs;
use super::debug::{self, Rows};
use super::faults::Checks;
use super::frame::Frame;
use super::interface::Interface;
use super::tile;
use super::unwind::{self, Step, Steps};
use super::weights::{Blob, Layout};
use crate::diag::{Clock, Failure, Result};
use crate::nest::Module;
use crate::nest::foreign::Custom;
use crate::nest::print::Lines;
use crate::target::{Level, Target};
use cranelift_codegen::Context;
use cranelift_codegen::binemit::Reloc;
use cranelift_codegen::control::ControlPlane;
use cranelift_codegen::ir::{ExternalName, Function, Signature};
use cranelift_codegen::isa::CallConv;
use cranelift_codegen::{Final, FinalizedMachReloc, FinalizedRelocTarget, MachSrcLoc};
use cranelift_module::{
    DataDescription, DataId, FuncId, Linkage, Module as Sink, ModuleReloc, ModuleRelocTarget,
};
use isas::Isas;
use rayon::prelude::*;
use std::collections::{BTreeMap, HashMap};
use target_lexicon::BinaryFormat;
use wide_tiles::{WideTile, wide_tiles};

/// The input of code generation for one model.
pub struct Unit<'a> {
    /// Its interface.
    pub interface: &'a Interface,
    /// One per CPU level, lowest first.
    pub variants: Vec<Variant<'a>>,
    /// The weights of all variants.
    pub weights: &'a Blob,
    /// Target.
    pub target: &'a Target,
    /// True for position-independent code (objects), false for code in this process.
    pub pic: bool,
    /// True if the instructions of functions are kept as text.
    pub listing: bool,
    /// The source that debug information refers to, if there is any.
    pub debug: Option<debug::Source>,
    /// Times the steps.
    pub clock: Clock,
}

/// The model for one CPU level.
pub struct Variant<'a> {
    /// The level.
    pub level: &'a Level,
    /// The placed module.
    pub m: &'a Module,
    /// Its frame.
    pub frame: Frame,
    /// Offsets of its weights in the blob.
    pub weights: &'a Layout,
}

/// Identifies a function of the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Id {
    /// The variant it belongs to; `None` if there is only one, or if all variants share the function.
    pub variant: Option<usize>,
    /// Number among the local functions.
    pub number: u32,
}

/// A function before compilation.
pub struct Source {
    /// Symbol.
    pub name: String,
    /// Its identity.
    pub id: Id,
    /// True if the symbol is exported.
    pub exported: bool,
    /// Its code.
    pub code: Code,
    libm: Vec<&'static str>,
    tile: bool,
    /// The functions of the tile backend that it calls.
    pub tiles: Vec<tile::Func>,
    /// The line at which it begins; 0 without debug information.
    line: u32,
    /// The reasons why some of its vector loops are not tiles.
    pub notes: Vec<String>,
}

impl Source {
    /// A local function that calls neither tiles nor libm.
    fn local(name: String, id: Id, code: Code) -> Source {
        let (libm, tiles, notes) = (vec![], vec![], vec![]);
        Source { name, id, exported: false, code, libm, tile: false, tiles, line: 0, notes }
    }
    /// True if it runs before the CPU is known to have the level.
    fn runs_first(&self) -> bool {
        self.id.variant.is_none()
            && matches!(
                self.id.number,
                entry::CALL | entry::INFER | entry::INFER_EXEC | entry::WORKSPACE_SIZE | entry::WORKSPACE_FOR
            )
    }
}

/// The code of a function.
pub enum Code {
    /// Cranelift IR.
    Clif(Box<Function>),
    /// Machine code that detects the CPU's features.
    Machine(Signature, Asking),
}

struct Compiled {
    bytes: Vec<u8>,
    align: u64,
    relocs: Vec<FinalizedMachReloc>,
    func: Function,
    asm: String,
    steps: Steps,
    rows: Rows,
    /// Bytes of stack that it uses, including the return address.
    stack: u32,
}

/// The contents of the sink.
pub struct Assembled {
    /// Functions shared by all variants, by number.
    pub functions: HashMap<u32, FuncId>,
    /// The weights, if they are embedded.
    pub weights: Option<DataId>,
    /// Functions that the object imports.
    pub libm: Vec<&'static str>,
    /// The checks that a call makes.
    pub checks: Checks,
    /// All functions in address order.
    pub defined: Vec<Defined>,
}

/// A function of the object.
pub struct Defined {
    /// Its id.
    pub id: FuncId,
    /// The variant it belongs to, as in [`Id`]; for a tile, that of the first function that calls it.
    pub variant: Option<usize>,
    /// Bytes of its code.
    pub size: u32,
    /// True if the symbol is exported.
    pub exported: bool,
    /// The effects of the code on its frame, for unwind information.
    pub steps: Steps,
    /// Its source lines.
    pub rows: Rows,
    /// Its instructions as text, if the unit has listings.
    pub listing: String,
}

/// Data that functions refer to, where it exists.
#[derive(Default)]
struct Data {
    weights: Option<DataId>,
    cpu_level: Option<DataId>,
    customs: Option<DataId>,
}

/// The functions and data that relocations refer to.
struct Targets<'a> {
    functions: HashMap<Id, FuncId>,
    libm: BTreeMap<&'static str, FuncId>,
    data: Data,
    tiles: HashMap<&'a tile::Func, FuncId>,
}

impl<'a> Unit<'a> {
    /// Plans the frames. There is one module per level of the target, and the blob was made from these
    /// modules.
    pub fn new(
        modules: &'a [Module],
        interface: &'a Interface,
        weights: &'a Blob,
        target: &'a Target,
        pic: bool,
    ) -> Unit<'a> {
        let variants = target
            .levels
            .iter()
            .zip(modules)
            .zip(&weights.layouts)
            .map(|((level, m), weights)| Variant { level, m, frame: Frame::new(m), weights })
            .collect();
        Unit {
            interface,
            variants,
            weights,
            target,
            pic,
            listing: false,
            debug: None,
            clock: Clock::default(),
        }
    }
    /// Source lines of a variant's statements, for debug information.
    fn lines(&self, variant: usize) -> Option<&Lines> {
        self.debug.as_ref().and_then(|d| d.lines.get(variant))
    }
    /// Code generators of each variant.
    fn isas(&self) -> Result<Vec<Isas>> {
        self.variants.iter().map(|v| Isas::new(self.target, v.level, self.pic)).collect()
    }
    /// Custom operators; they are the same on every level.
    fn customs(&self) -> &'a [Custom] {
        self.variants.first().map_or(&[], |v| &v.m.customs)
    }
    fn several(&self) -> bool {
        self.variants.len() > 1
    }
    /// True if calls fail on CPUs that lack the lowest level. Code in memory is compiled for this CPU.
    fn refuses(&self) -> bool {
        self.pic && self.target.refuses()
    }
    /// True if there is a function that detects the CPU's features, to select a level or to reject the CPU.
    fn asks(&self) -> bool {
        self.several() || self.refuses()
    }
    /// Machine code of all functions, and the checks that calls make. A kernel is compiled as soon as its IR
    /// has been generated: the IR of all kernels together takes ten times as much memory as their code.
    fn compile(&self) -> Result<(Vec<(Source, Compiled)>, Checks)> {
        let isas = self.isas()?;
        let base = Isas::new(self.target, &self.target.base(), self.pic)?;
        let (plans, checks) = self.plans(&isas)?;
        let done = plans
            .into_par_iter()
            .map(|p| {
                let mut s = self.source(p, &isas)?;
                let func = match &mut s.code {
                    Code::Clif(f) => std::mem::replace(&mut **f, Function::new()),
                    Code::Machine(signature, asking) => {
                        let func = Function::with_name_signature(Default::default(), signature.clone());
                        let depth = |s: &(u32, Step)| if let Step::Stack(n) = s.1 { n } else { 8 };
                        let c = Compiled {
                            align: 16,
                            relocs: vec![],
                            func,
                            asm: String::new(),
                            stack: asking.steps.iter().map(depth).max().unwrap_or(8),
                            bytes: std::mem::take(&mut asking.bytes),
                            steps: std::mem::take(&mut asking.steps),
                            rows: vec![],
                        };
                        return Ok((s, c));
                    }
                };
                let isas =
                    if self.refuses() && s.runs_first() { &base } else { &isas[s.id.variant.unwrap_or(0)] };
                let isa = isas.of(&func, s.tile);
                let mut cx = Context::for_function(func);
                cx.set_disasm(self.listing);
                let code = match cx.compile(isa, &mut ControlPlane::default()) {
                    Ok(c) => c,
                    Err(e) => return Err(Failure::bug(format!("code of {}", s.name), format!("{e:?}"))),
                };
                let c = Compiled {
                    bytes: code.buffer.data().to_vec(),
                    align: u64::from(code.buffer.alignment).max(16),
                    relocs: code.buffer.relocs().to_vec(),
                    asm: code.vcode.clone().unwrap_or_default(),
                    // Above the frame are the return address and the caller's frame pointer.
                    stack: 16 + code.buffer.frame_layout().map_or(0, |f| f.frame_to_fp_offset),
                    steps: unwind::steps(isa, code.buffer.data(), &code.buffer.unwind_info)?,
                    rows: debug::rows(s.line, code.buffer.get_srclocs_sorted().iter().map(srcloc)),
                    func: Function::new(),
                };
                // Keeps the names that relocations refer to, without the instructions.
                let mut func = Function::with_name_signature(Default::default(), cx.func.stencil.signature);
                func.params = cx.func.params;
                Ok((s, Compiled { func, ..c }))
            })
            .collect::<Result<_>>()?;
        Ok((done, checks))
    }
    /// Compiles everything into a sink. Relocations without a form in the sink are returned in `pages`:
    /// addresses in COFF objects for aarch64.
    pub fn assemble(&self, sink: &mut dyn Sink, pages: &mut Vec<(FuncId, ModuleReloc)>) -> Result<Assembled> {
        let (done, checks) = self.compile()?;
        let mut functions = HashMap::new();
        let mut libm: BTreeMap<&'static str, FuncId> = BTreeMap::new();
        let isa = self.target.isa(self.target.lowest(), true, self.pic)?;
        for (s, c) in &done {
            let exported = if self.interface.hidden { Linkage::Hidden } else { Linkage::Export };
            let linkage = if s.exported { exported } else { Linkage::Local };
            functions.insert(s.id, sink.declare_function(&s.name, linkage, &c.func.signature).map_err(bug)?);
        }
        for n in done.iter().flat_map(|(s, _)| &s.libm) {
            if !libm.contains_key(n) {
                let sig = clif::imported_signature(isa.as_ref(), n);
                libm.insert(n, sink.declare_function(n, Linkage::Import, &sig).map_err(bug)?);
            }
        }
        let mut system: BTreeMap<Import, FuncId> = BTreeMap::new();
        for (s, c) in &done {
            let Code::Machine(_, asking) = &s.code else { continue };
            for (_, _, import) in &asking.imports {
                let linkage = if import.weak { Linkage::Preemptible } else { Linkage::Import };
                let id = sink.declare_function(import.name, linkage, &c.func.signature).map_err(bug)?;
                system.insert(*import, id);
            }
        }
        let (index, code) = wide_tiles(&done, self.listing)?;
        let (tiles, mut defined) = define_tiles(sink, code)?;
        let tiles = index.into_iter().map(|(f, i)| (f, tiles[i])).collect();
        let data = self.define_data(sink)?;
        let targets = Targets { functions, libm, data, tiles };
        for (s, c) in &done {
            defined.push(Defined {
                id: targets.functions[&s.id],
                variant: s.id.variant,
                size: c.bytes.len() as u32,
                exported: s.exported,
                steps: c.steps.clone(),
                rows: c.rows.clone(),
                listing: c.asm.clone(),
            });
            let mut relocs = c.relocs.iter().map(|r| targets.reloc(r, s, c)).collect::<Result<Vec<_>>>()?;
            if let Code::Machine(_, asking) = &s.code {
                relocs.extend(asking.imports.iter().map(|(offset, kind, import)| ModuleReloc {
                    offset: *offset,
                    kind: *kind,
                    name: ModuleRelocTarget::user(0, system[import].as_u32()),
                    addend: 0,
                }));
            }
            if self.target.triple.binary_format == BinaryFormat::Coff {
                let paged = |r: &mut ModuleReloc| {
                    matches!(r.kind, Reloc::Aarch64AdrPrelPgHi21 | Reloc::Aarch64AddAbsLo12Nc)
                };
                pages.extend(relocs.extract_if(.., paged).map(|r| (targets.functions[&s.id], r)));
            }
            sink.define_function_bytes(targets.functions[&s.id], c.align, &c.bytes, &relocs).map_err(bug)?;
        }
        let functions = targets
            .functions
            .iter()
            .filter(|(id, _)| id.variant.is_none())
            .map(|(id, f)| (id.number, *f))
            .collect();
        let libm = targets.libm.keys().copied().collect();
        Ok(Assembled { functions, weights: targets.data.weights, libm, checks, defined })
    }
    /// Declares and defines the data that functions refer to.
    fn define_data(&self, sink: &mut dyn Sink) -> Result<Data> {
        let declare = |sink: &mut dyn Sink, what: &str, linkage, writable| {
            let name = format!("{}.{what}", self.interface.name);
            sink.declare_data(&name, linkage, writable, false).map_err(bug)
        };
        let mut data = Data::default();
        // Left undefined for now: the object writer defines it in a separate section after `finish`.
        if !self.interface.weights.external && self.weights.size > 0 {
            data.weights = Some(declare(sink, "weights", Linkage::Import, false)?);
        }
        if self.asks() {
            let id = declare(sink, "cpu", Linkage::Local, true)?;
            let mut word = DataDescription::new();
            word.define_zeroinit(4);
            word.set_align(4);
            sink.define_data(id, &word).map_err(bug)?;
            data.cpu_level = Some(id);
        }
        if !self.customs().is_empty() {
            let id = declare(sink, "customs", Linkage::Local, false)?;
            customs::table(self.customs()).define(sink, id).map_err(bug)?;
            data.customs = Some(id);
        }
        Ok(data)
    }
}

/// Defines the code of tiles; each may jump to tiles before it.
fn define_tiles(sink: &mut dyn Sink, code: Vec<WideTile>) -> Result<(Vec<FuncId>, Vec<Defined>)> {
    let (mut ids, mut defined) = (vec![], vec![]);
    for t in code {
        let signature = Signature::new(CallConv::SystemV);
        let id = sink.declare_function(&t.name, Linkage::Local, &signature).map_err(bug)?;
        let tile::Code { bytes, steps, rows, .. } = t.code;
        let jump: Vec<ModuleReloc> = t.jump.iter().map(|j| j.reloc(&ids)).collect();
        let align = t.jump.as_ref().map_or(64, |j| j.align);
        sink.define_function_bytes(id, align, &bytes, &jump).map_err(bug)?;
        ids.push(id);
        let (variant, size, listing) = (t.variant, bytes.len() as u32, t.listing);
        defined.push(Defined { id, variant, size, exported: false, steps, rows, listing });
    }
    Ok((ids, defined))
}

fn bug(e: cranelift_module::ModuleError) -> Failure {
    Failure::bug("assemble", e.to_string())
}

/// Offset and line of a piece of code. Line 0, for code without a statement, means the line of the preceding
/// code.
fn srcloc(l: &MachSrcLoc<Final>) -> (u32, u32) {
    (l.start, if l.loc.is_default() { 0 } else { l.loc.bits() })
}

/// The function that a number denotes in the code of `from`.
fn called_as(from: Id, number: u32) -> Id {
    match number.checked_sub(entry::CALL_OF) {
        Some(v) => Id { variant: Some(v as usize), number: entry::CALL },
        None => Id { number, ..from },
    }
}

impl Targets<'_> {
    /// The id of that function.
    fn function(&self, from: Id, number: u32) -> Option<FuncId> {
        let id = called_as(from, number);
        self.functions.get(&id).or_else(|| self.functions.get(&Id { variant: None, ..id })).copied()
    }
    fn reloc(&self, r: &FinalizedMachReloc, s: &Source, c: &Compiled) -> Result<ModuleReloc> {
        let name = match &r.target {
            FinalizedRelocTarget::ExternalName(ExternalName::User(u)) => {
                let n = &c.func.params.user_named_funcs()[*u];
                let function = |f: FuncId| ModuleRelocTarget::user(0, f.as_u32());
                let id = match n.namespace {
                    entry::LOCAL_NAMESPACE => self.function(s.id, n.index).map(function),
                    LIBM_NAMESPACE => {
                        s.libm.get(n.index as usize).and_then(|n| self.libm.get(n)).copied().map(function)
                    }
                    TILE_NAMESPACE => {
                        s.tiles.get(n.index as usize).and_then(|f| self.tiles.get(f)).copied().map(function)
                    }
                    _ => match n.index {
                        entry::WEIGHTS => self.data.weights,
                        entry::CUSTOMS => self.data.customs,
                        _ => self.data.cpu_level,
                    }
                    .map(|d| ModuleRelocTarget::user(1, d.as_u32())),
                };
                match id {
                    Some(id) => id,
                    None => return Err(Failure::bug("assemble", format!("{} refers to {n:?}", s.name))),
                }
            }
            FinalizedRelocTarget::ExternalName(ExternalName::LibCall(l)) => ModuleRelocTarget::LibCall(*l),
            FinalizedRelocTarget::ExternalName(ExternalName::KnownSymbol(k)) => {
                ModuleRelocTarget::KnownSymbol(*k)
            }
            FinalizedRelocTarget::Func(offset) => {
                ModuleRelocTarget::FunctionOffset(self.functions[&s.id], *offset)
            }
            t => return Err(Failure::bug("assemble", format!("{} has relocation {t:?}", s.name))),
        };
        Ok(ModuleReloc { offset: r.offset, kind: r.kind, name, addend: r.addend })
    }
}
