//! Which functions an object has, and their code before it is compiled: kernels, and what calls them.

use super::{Code, Id, Source, Unit, Variant};
use crate::codegen::clif::{self, entry};
use crate::codegen::cpu_level;
use crate::codegen::customs;
use crate::codegen::faults::{self, Checks};
use crate::codegen::frame::Frame;
use crate::codegen::share::Key;
use crate::codegen::tile;
use crate::diag::{Failure, Result};
use crate::nest::{Kernel, Module, Stmt, visit};
use cranelift_codegen::isa::OwnedTargetIsa;
use rayon::prelude::*;
use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::rc::Rc;

/// A function that the object will have.
pub(super) enum Plan {
    /// A kernel of a variant. Its code is generated when it is compiled.
    Kernel { name: String, id: Id, variant: usize, kernel: Kernel, share: Share },
    /// A function whose code there is.
    Ready(Source),
}

/// What a function of a kernel has to do with code that several kernels share.
#[derive(Clone, Copy)]
pub(super) enum Share {
    /// Nothing: it is the kernel's own code.
    Own,
    /// It is that code, with a frame of its own, made of the first kernel that has it.
    Code,
    /// It calls the code of this number.
    Stub(u32),
}

impl Unit<'_> {
    /// All functions as Cranelift IR, in emission order, and the checks that their calls make.
    pub fn sources(&self) -> Result<(Vec<Source>, Checks)> {
        let isas = self.isas()?;
        let (plans, checks) = self.plans(&isas)?;
        let sources = plans.into_par_iter().map(|p| self.source(p, &isas)).collect::<Result<_>>()?;
        Ok((sources, checks))
    }
    /// Which functions the object has, in emission order. The entry functions of all variants share one table
    /// of checks, so their IR is generated here, one after another; that of kernels is left to
    /// [`Unit::source`].
    pub(super) fn plans(&self, isas: &[(OwnedTargetIsa, OwnedTargetIsa)]) -> Result<(Vec<Plan>, Checks)> {
        let name = &self.interface.name;
        // Data objects have these names.
        let mut names =
            HashSet::from([format!("{name}.weights"), format!("{name}.cpu"), format!("{name}.customs")]);
        let mut numbers: HashMap<String, u32> = HashMap::new();
        let mut unique = |base: &str, v: Option<usize>| {
            let clean: String = base
                .chars()
                .map(|c| if c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '/') { c } else { '_' })
                .collect();
            let clean = v.map_or(clean.clone(), |v| format!("{}.{clean}", self.variants[v].level.short()));
            let mut n = format!("{name}.{clean}");
            while !names.insert(n.clone()) {
                // Smaller numbers are taken: names are only added.
                let i = numbers.entry(clean.clone()).or_insert(1);
                *i += 1;
                n = format!("{name}.{clean}.{i}");
            }
            n
        };
        let mut out = vec![];
        for (v, variant) in self.variants.iter().enumerate() {
            let own = self.several().then_some(v);
            let kernels = called(variant.m);
            let shared = self.shared(v, &kernels);
            for k in kernels {
                let name = unique(&variant.m.kernels[k].name, own);
                let id = Id { variant: own, number: k.as_u32() };
                let Some(first) = shared.get(&k) else {
                    out.push(Plan::Kernel { name, id, variant: v, kernel: k, share: Share::Own });
                    continue;
                };
                let code = entry::SHARED + first.as_u32();
                if *first == k {
                    let name = unique(&format!("{}.shared", variant.m.kernels[k].name), own);
                    let id = Id { variant: own, number: code };
                    out.push(Plan::Kernel { name, id, variant: v, kernel: k, share: Share::Code });
                }
                out.push(Plan::Kernel { name, id, variant: v, kernel: k, share: Share::Stub(code) });
            }
        }
        let needs: Vec<u32> = self.variants.iter().map(|v| v.level.needs).collect();
        let checks = Rc::new(RefCell::new(Checks::default()));
        let makers: Vec<_> = self.variants.iter().map(|v| faults::makers(v.m)).collect();
        let texts = customs::table(self.customs()).texts;
        let entry = |v: usize| {
            let variant = &self.variants[v];
            entry::Entry {
                m: variant.m,
                interface: self.interface,
                frame: &variant.frame,
                weights: variant.weights,
                isa: &*isas[v].1,
                needs: &needs,
                refuses: self.refuses().then(|| self.target.lowest().name.as_str()),
                checks: checks.clone(),
                customs: &texts,
                makers: &makers[v],
                lines: self.lines(v),
            }
        };
        let mut list = vec![
            (0, entry::TASK, unique("task", None), false),
            (0, entry::LAUNCH, unique("launch", None), false),
        ];
        if self.asks() {
            (0..self.variants.len())
                .for_each(|v| list.push((v, entry::CALL, unique("call", Some(v)), false)));
            let asking = cpu_level::code(&self.target.triple)?;
            let signature = entry::signature_of(&*isas[0].1, self.interface, entry::CPU_LEVEL);
            let code = Code::Machine(signature, asking);
            let id = Id { variant: None, number: entry::CPU_LEVEL };
            out.push(Plan::Ready(Source::local(unique("cpu_level", None), id, code)));
        }
        list.extend([
            (0, if self.asks() { entry::DISPATCH } else { entry::CALL }, unique("call", None), false),
            (0, entry::WORKSPACE_FOR, unique("workspace_for", None), false),
            (0, entry::INFER, format!("{name}_infer"), true),
            (0, entry::INFER_EXEC, format!("{name}_infer_exec"), true),
        ]);
        if !self.interface.dim_params.is_empty() {
            list.push((0, entry::WORKSPACE_SIZE, format!("{name}_workspace_size"), true));
        }
        for (v, number, name, exported) in list {
            let id = match number {
                entry::CALL => Id { variant: self.asks().then_some(v), number },
                // Whoever calls `call` from outside the variants means this one.
                entry::DISPATCH => Id { variant: None, number: entry::CALL },
                _ => Id { variant: None, number },
            };
            let (func, libm) = entry(v).function(number)?;
            let source = Source::local(name, id, Code::Clif(Box::new(func)));
            let line = self.lines(v).map_or(0, |l| l.driver);
            out.push(Plan::Ready(Source { exported, libm: libm.names, line, ..source }));
        }
        Ok((out, checks.take()))
    }
    /// Kernels of a variant that share code with others, each with the first that has the same.
    fn shared(&self, v: usize, kernels: &[Kernel]) -> HashMap<Kernel, Kernel> {
        let Variant { m, .. } = &self.variants[v];
        let embedded = !self.interface.weights.external;
        let keys: Vec<Option<Key>> = kernels.par_iter().map(|k| Key::of(m, *k, embedded)).collect();
        let mut of: HashMap<&Key, Vec<Kernel>> = HashMap::new();
        for (k, key) in kernels.iter().zip(&keys) {
            if let Some(key) = key {
                of.entry(key).or_default().push(*k);
            }
        }
        of.into_values()
            .filter(|v| v.len() > 1)
            .flat_map(|v| v.clone().into_iter().map(move |k| (k, v[0])))
            .collect()
    }
    /// A function as Cranelift IR.
    pub(super) fn source(&self, p: Plan, isas: &[(OwnedTargetIsa, OwnedTargetIsa)]) -> Result<Source> {
        let (name, id, variant, kernel, share) = match p {
            Plan::Kernel { name, id, variant, kernel, share } => (name, id, variant, kernel, share),
            Plan::Ready(s) => return Ok(s),
        };
        let isa = &*isas[variant].1;
        let Variant { m, frame, weights, level } = &self.variants[variant];
        let own = || Frame::of_kernel(m, &m.kernels[kernel].body);
        let setting = clif::Setting {
            m,
            frame,
            weights,
            embedded: !self.interface.weights.external,
            isa,
            vectors: tile::Vectors::of(&level.facts),
            lines: self.lines(variant),
        };
        let line = setting.lines.and_then(|l| l.kernels.get(&kernel)).map_or(0, |l| *l);
        let c = match share {
            Share::Own => clif::kernel(&setting, kernel)?,
            Share::Code => clif::kernel(&clif::Setting { frame: &own(), ..setting }, kernel)?,
            Share::Stub(code) => {
                if cfg!(debug_assertions) {
                    same_code(&setting, kernel, Kernel::from_u32(code - entry::SHARED))?;
                }
                let func = clif::stub(&setting, kernel, &own(), code)?;
                return Ok(Source { line, ..Source::local(name, id, Code::Clif(Box::new(func))) });
            }
        };
        let notes = c
            .no_tiles
            .iter()
            .map(|n| format!("no tile for vec {}: {}", m.syms.unique_name(n.var), n.reason))
            .collect();
        let source = Source::local(name, id, Code::Clif(Box::new(c.func)));
        Ok(Source { libm: c.libm.names, tile: c.tile, tiles: c.tiles, line, notes, ..source })
    }
}

/// Fails unless a kernel's code is the shared one of that number.
fn same_code(s: &clif::Setting, kernel: Kernel, first: Kernel) -> Result<()> {
    let code = |k: Kernel| {
        let own = Frame::of_kernel(s.m, &s.m.kernels[k].body);
        let c = clif::kernel(&clif::Setting { frame: &own, lines: None, ..*s }, k)?;
        Result::Ok((c.func.stencil, c.func.params.user_named_funcs().clone(), c.libm.names, c.tiles, c.tile))
    };
    if code(kernel)? == code(first)? {
        return Ok(());
    }
    let name = |k: Kernel| &s.m.kernels[k].name;
    Err(Failure::bug("share", format!("{} and {} have one key, and differ", name(kernel), name(first))))
}

/// Kernels that the driver calls, in order.
fn called(m: &Module) -> Vec<Kernel> {
    let mut kernels = vec![];
    let mut seen = HashSet::new();
    visit::walk(&m.driver, &mut |s| {
        if let Stmt::Call(k) = s
            && seen.insert(*k)
        {
            kernels.push(*k);
        }
    });
    kernels
}
