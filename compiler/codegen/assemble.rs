//! Puts a model's functions and data into a Cranelift module: an object file or memory. Functions compile in parallel;
//! they are emitted in table order, so the bytes do not depend on scheduling.

use super::clif::{self, LIBM_NAMESPACE, entry};
use super::frame::Frame;
use super::interface::Interface;
use super::weights::Layout;
use crate::diag::{Failure, Result};
use crate::nest::{Module, Stmt, visit};
use crate::target::Target;
use cranelift_codegen::Context;
use cranelift_codegen::control::ControlPlane;
use cranelift_codegen::ir::{ExternalName, Function};
use cranelift_codegen::{FinalizedMachReloc, FinalizedRelocTarget};
use cranelift_module::{DataId, FuncId, Linkage, Module as Sink, ModuleReloc, ModuleRelocTarget};
use rayon::prelude::*;
use std::collections::{BTreeMap, HashMap, HashSet};

/// Everything that code generation needs to know of one model.
pub struct Unit<'a> {
    /// The placed module.
    pub m: &'a Module,
    /// Its interface.
    pub interface: &'a Interface,
    /// Its frame.
    pub frame: Frame,
    /// Its weights.
    pub weights: Layout,
    /// Target.
    pub target: &'a Target,
    /// Position-independent code (objects), or code for this process.
    pub pic: bool,
}

/// A function before compilation.
pub struct Source {
    /// Symbol.
    pub name: String,
    /// Number among the local functions.
    pub number: u32,
    /// Visible outside.
    pub exported: bool,
    /// Cranelift IR.
    pub func: Function,
    libm: Vec<&'static str>,
    tile: bool,
}

struct Compiled {
    bytes: Vec<u8>,
    align: u64,
    relocs: Vec<FinalizedMachReloc>,
    func: Function,
    asm: String,
}

/// Ids of what was put into the sink.
pub struct Assembled {
    /// Local functions by number.
    pub functions: HashMap<u32, FuncId>,
    /// The weights, where they are embedded.
    pub weights: Option<DataId>,
}

impl<'a> Unit<'a> {
    /// Plans frame and weights.
    pub fn new(m: &'a Module, interface: &'a Interface, weights: Layout, target: &'a Target, pic: bool) -> Unit<'a> {
        Unit { m, interface, frame: Frame::new(m), weights, target, pic }
    }
    /// All functions as Cranelift IR, in emission order.
    pub fn sources(&self) -> Result<Vec<Source>> {
        let isa = self.target.isa(self.target.lowest(), true, self.pic)?;
        let mut kernels = vec![];
        let mut seen = HashSet::new();
        visit::walk(&self.m.driver, &mut |s| {
            if let Stmt::Call(k) = s
                && seen.insert(*k)
            {
                kernels.push(*k);
            }
        });
        let name = &self.interface.name;
        let mut names = HashSet::new();
        let mut unique = |base: &str| {
            let clean: String = base.chars().map(|c| if c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '/') { c } else { '_' }).collect();
            let mut n = format!("{name}.{clean}");
            let mut i = 1;
            while !names.insert(n.clone()) {
                i += 1;
                n = format!("{name}.{clean}.{i}");
            }
            n
        };
        let named: Vec<_> = kernels.into_iter().map(|k| (k, unique(&self.m.kernels[k].name))).collect();
        let mut out: Vec<Source> = named
            .into_par_iter()
            .map(|(k, name)| {
                let c = clif::kernel(self.m, k, &self.frame, &self.weights, &*isa)?;
                Ok(Source { name, number: k.as_u32(), exported: false, func: c.func, libm: c.libm.names, tile: c.tile })
            })
            .collect::<Result<_>>()?;
        let e = entry::Entry { m: self.m, interface: self.interface, frame: &self.frame, weights: &self.weights, isa: &*isa };
        let mut list = vec![
            (entry::TASK, unique("task"), false),
            (entry::CALL, unique("call"), false),
            (entry::WORKSPACE_FOR, unique("workspace_for"), false),
            (entry::INFER, format!("{name}_infer"), true),
            (entry::INFER_EXEC, format!("{name}_infer_exec"), true),
        ];
        if !self.interface.dim_params.is_empty() {
            list.push((entry::WORKSPACE_SIZE, format!("{name}_workspace_size"), true));
        }
        for (number, name, exported) in list {
            let (func, libm) = e.function(number)?;
            out.push(Source { name, number, exported, func, libm: libm.names, tile: false });
        }
        Ok(out)
    }
    fn compile(&self, sources: Vec<Source>, asm: bool) -> Result<Vec<(Source, Compiled)>> {
        let (plain, fast) = (self.target.isa(self.target.lowest(), false, self.pic)?, self.target.isa(self.target.lowest(), true, self.pic)?);
        sources
            .into_par_iter()
            .map(|mut s| {
                let isa = if s.tile { &plain } else { &fast };
                let mut cx = Context::for_function(std::mem::replace(&mut s.func, Function::new()));
                cx.set_disasm(asm);
                let code = match cx.compile(&**isa, &mut ControlPlane::default()) {
                    Ok(c) => c,
                    Err(e) => return Err(Failure::bug(format!("code of {}", s.name), format!("{e:?}"))),
                };
                let c = Compiled {
                    bytes: code.buffer.data().to_vec(),
                    align: u64::from(code.buffer.alignment).max(16),
                    relocs: code.buffer.relocs().to_vec(),
                    asm: code.vcode.clone().unwrap_or_default(),
                    func: Function::new(),
                };
                Ok((s, Compiled { func: cx.func, ..c }))
            })
            .collect()
    }
    /// Machine code of every function as text.
    pub fn asm(&self) -> Result<String> {
        let done = self.compile(self.sources()?, true)?;
        Ok(done.into_iter().map(|(s, c)| format!("{}:\n{}\n", s.name, c.asm)).collect())
    }
    /// Compiles everything into a sink.
    pub fn assemble(&self, sink: &mut dyn Sink) -> Result<Assembled> {
        let done = self.compile(self.sources()?, false)?;
        let bug = |e: cranelift_module::ModuleError| Failure::bug("assemble", e.to_string());
        let mut functions = HashMap::new();
        let mut libm: BTreeMap<&'static str, FuncId> = BTreeMap::new();
        let isa = self.target.isa(self.target.lowest(), true, self.pic)?;
        for (s, c) in &done {
            let linkage = if s.exported { Linkage::Export } else { Linkage::Local };
            functions.insert(s.number, sink.declare_function(&s.name, linkage, &c.func.signature).map_err(bug)?);
        }
        for n in done.iter().flat_map(|(s, _)| &s.libm) {
            if !libm.contains_key(n) {
                let mut sig = cranelift_codegen::ir::Signature::new(isa.default_call_conv());
                let f64_ = cranelift_codegen::ir::AbiParam::new(cranelift_codegen::ir::types::F64);
                sig.params = vec![f64_; if matches!(*n, "pow" | "fmod" | "atan2") { 2 } else { 1 }];
                sig.returns = vec![f64_];
                libm.insert(n, sink.declare_function(n, Linkage::Import, &sig).map_err(bug)?);
            }
        }
        // Undefined for now: the object writer gives it a section of its own after `finish`.
        let embedded = !self.interface.weights.external && self.weights.size > 0;
        let weights = if embedded { Some(sink.declare_data(&format!("{}.weights", self.interface.name), Linkage::Import, false, false).map_err(bug)?) } else { None };
        for (s, c) in &done {
            let relocs = c.relocs.iter().map(|r| self.reloc(r, s, c, &functions, &libm, weights)).collect::<Result<Vec<_>>>()?;
            sink.define_function_bytes(functions[&s.number], c.align, &c.bytes, &relocs).map_err(bug)?;
        }
        Ok(Assembled { functions, weights })
    }
    fn reloc(&self, r: &FinalizedMachReloc, s: &Source, c: &Compiled, functions: &HashMap<u32, FuncId>, libm: &BTreeMap<&'static str, FuncId>, weights: Option<DataId>) -> Result<ModuleReloc> {
        let name = match &r.target {
            FinalizedRelocTarget::ExternalName(ExternalName::User(u)) => {
                let n = &c.func.params.user_named_funcs()[*u];
                let id = match n.namespace {
                    entry::LOCAL_NAMESPACE => functions.get(&n.index).map(|f| ModuleRelocTarget::user(0, f.as_u32())),
                    LIBM_NAMESPACE => s.libm.get(n.index as usize).and_then(|n| libm.get(n)).map(|f| ModuleRelocTarget::user(0, f.as_u32())),
                    _ => weights.map(|d| ModuleRelocTarget::user(1, d.as_u32())),
                };
                match id {
                    Some(id) => id,
                    None => return Err(Failure::bug("assemble", format!("{} refers to {n:?}", s.name))),
                }
            }
            FinalizedRelocTarget::ExternalName(ExternalName::LibCall(l)) => ModuleRelocTarget::LibCall(*l),
            FinalizedRelocTarget::ExternalName(ExternalName::KnownSymbol(k)) => ModuleRelocTarget::KnownSymbol(*k),
            FinalizedRelocTarget::Func(offset) => ModuleRelocTarget::FunctionOffset(functions[&s.number], *offset),
            t => return Err(Failure::bug("assemble", format!("{} has relocation {t:?}", s.name))),
        };
        Ok(ModuleReloc { offset: r.offset, kind: r.kind, name, addend: r.addend })
    }
}
