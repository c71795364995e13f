//! The entry functions: `call` (the driver, behind the metadata's uniform interface), `infer` and `infer_exec` (which
//! gather their arguments and call it), `workspace_for`, `workspace_size`, and the task that `parallel_for` runs.

use super::driver::{Driver, early};
use super::func::{Emit, Libm, Scope, signature};
use crate::codegen::frame::{Frame, Word};
use crate::codegen::header::from_data;
use crate::codegen::interface::Interface;
use crate::codegen::weights::Layout;
use crate::diag::Result;
use crate::nest::{Kernel, Module, Status, Stmt};
use crate::sym::{Atom, Dim, SymKind, SymTable, View};
use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::types::{I32, I64};
use cranelift_codegen::ir::{AbiParam, ExtFuncData, ExternalName, FuncRef, Function, InstBuilder, Signature, StackSlotData, StackSlotKind, UserExternalName, UserFuncName, Value};
use cranelift_codegen::isa::TargetIsa;
use cranelift_frontend::{FunctionBuilder, FunctionBuilderContext};

/// Name space of the module's own functions in `UserExternalName`: kernels by number, then these.
pub const LOCAL_NAMESPACE: u32 = 0;
/// Name space of data objects.
pub const DATA_NAMESPACE: u32 = 2;
/// `call` among the local functions.
pub const CALL: u32 = 0x4000_0000;
/// The task.
pub const TASK: u32 = 0x4000_0001;
/// `workspace_for`.
pub const WORKSPACE_FOR: u32 = 0x4000_0002;
/// `infer`.
pub const INFER: u32 = 0x4000_0003;
/// `infer_exec`.
pub const INFER_EXEC: u32 = 0x4000_0004;
/// `workspace_size`.
pub const WORKSPACE_SIZE: u32 = 0x4000_0005;
/// `call` of an object with several CPU levels (dispatch.rs).
pub const DISPATCH: u32 = 0x4000_0006;
/// Which level the CPU has (codegen/cpu_level.rs).
pub const CPU_LEVEL: u32 = 0x4000_0007;
/// `call` of variant 0; those of the others follow.
pub const CALL_OF: u32 = 0x5000_0000;
/// The embedded weights among the data objects.
pub const WEIGHTS: u32 = 0;
/// The word that remembers the CPU's level.
pub const CPU_LEVEL_WORD: u32 = 1;

/// Tasks are worth their start from this many scalar operations on.
const GRAIN: i64 = 60_000;
/// Most tasks of one loop where the caller sets no bound.
const MAX_TASKS: i64 = 64;
/// Largest value of a dim param without a declared bound.
pub const MAX_DIM: i64 = i32::MAX as i64;

/// Tasks that the driver makes of a kernel (see `Entry::kernel`): `work` scalar operations in `trip` iterations for a caller
/// that allows `most` tasks (0: any number).
pub fn tasks(work: i64, trip: i64, most: i64) -> i64 {
    let most = if most == 0 { MAX_TASKS } else { most };
    (work / GRAIN).min(MAX_TASKS).min(most).min(trip).max(1)
}

/// A bound of the magnitude of a dim and of all sums in it, from the legal values of its symbols.
fn magnitude(syms: &SymTable, d: Dim) -> f64 {
    let View::Sum { terms, constant } = d.view() else { return d.as_const().map_or(f64::INFINITY, |c| (c as f64).abs()) };
    let many = |v: &[Dim]| v.iter().map(|x| magnitude(syms, *x)).fold(0.0, f64::max);
    let atom = |a: &Atom| match a {
        Atom::Sym(s) => {
            let r = syms.declared_range(*s);
            let hi = r.hi.unwrap_or(if syms.kind(*s) == SymKind::Derived { i64::MAX } else { MAX_DIM });
            (hi as f64).max(-(r.lo.unwrap_or(i64::MIN) as f64))
        }
        Atom::FloorDiv(x, y) | Atom::Mod(x, y) => many(&[*x, *y]),
        Atom::Min(v) | Atom::Max(v) => many(v),
    };
    terms.iter().fold((constant as f64).abs(), |sum, (c, atoms)| sum + atoms.iter().map(atom).product::<f64>() * (*c as f64).abs())
}

/// Parameters of the entry functions in order, all of them words but the results.
pub fn infer_params(i: &Interface) -> usize {
    i.dim_params.len() + i.inputs.len() + i.outputs.len() + i.outputs.iter().filter(|t| from_data(i, t)).count() + usize::from(i.weights.external) + 1
}

fn entry_signature(isa: &dyn TargetIsa, params: usize) -> Signature {
    let mut s = Signature::new(isa.default_call_conv());
    s.params = vec![AbiParam::new(I64); params];
    s.returns = vec![AbiParam::new(I32)];
    s
}

/// Signature of a local function by its number.
pub fn signature_of(isa: &dyn TargetIsa, i: &Interface, number: u32) -> Signature {
    match number {
        CALL | DISPATCH | CALL_OF.. => entry_signature(isa, 7),
        CPU_LEVEL => entry_signature(isa, 0),
        TASK => {
            let mut s = entry_signature(isa, 2);
            s.returns.clear();
            s
        }
        WORKSPACE_FOR => entry_signature(isa, 2),
        INFER => entry_signature(isa, infer_params(i)),
        INFER_EXEC => entry_signature(isa, infer_params(i) + 1),
        WORKSPACE_SIZE => entry_signature(isa, i.dim_params.len() + 1),
        _ => signature(isa),
    }
}

/// What every entry function is made from.
pub struct Entry<'a> {
    /// The module.
    pub m: &'a Module,
    /// Its interface.
    pub interface: &'a Interface,
    /// Its frame.
    pub frame: &'a Frame,
    /// Its weights.
    pub weights: &'a Layout,
    /// Target.
    pub isa: &'a dyn TargetIsa,
    /// What CPUs must have for the levels of all variants.
    pub needs: &'a [u32],
}

impl Entry<'_> {
    /// One of the entry functions.
    pub fn function(&self, number: u32) -> Result<(Function, Libm)> {
        let sig = signature_of(self.isa, self.interface, number);
        let mut func = Function::with_name_signature(UserFuncName::user(LOCAL_NAMESPACE, number), sig);
        let mut fcx = FunctionBuilderContext::new();
        let b = FunctionBuilder::new(&mut func, &mut fcx);
        let (mut e, p) = Emit::start(self.m, self.frame, self.weights, self.isa, b);
        match number {
            CALL => self.call(&mut e, &p)?,
            DISPATCH => self.dispatch(&mut e, &p),
            TASK => self.task(&mut e, &p),
            WORKSPACE_FOR => self.workspace_for(&mut e, &p)?,
            WORKSPACE_SIZE => self.workspace_size(&mut e, &p),
            INFER => self.infer(&mut e, &p, false),
            _ => self.infer(&mut e, &p, true),
        }
        e.fail_blocks();
        let libm = e.libm.clone();
        e.b.seal_all_blocks();
        e.b.finalize(self.isa.frontend_config());
        Ok((func, libm))
    }
    pub(super) fn local(&self, e: &mut Emit, number: u32) -> FuncRef {
        let signature = e.b.import_signature(signature_of(self.isa, self.interface, number));
        let name = e.b.func.declare_imported_user_function(UserExternalName { namespace: LOCAL_NAMESPACE, index: number });
        e.b.import_function(ExtFuncData { name: ExternalName::user(name), signature, colocated: true, patchable: false })
    }
    pub(super) fn slot(&self, e: &mut Emit, bytes: u32) -> Value {
        let s = e.b.create_sized_stack_slot(StackSlotData::new(StackSlotKind::ExplicitSlot, bytes.max(8), 3));
        e.b.ins().stack_addr(I64, s, 0)
    }
    pub(super) fn load(&self, e: &mut Emit, p: Value, at: i32) -> Value {
        let f = e.flags();
        e.b.ins().load(I64, f, p, at)
    }
    pub(super) fn store(&self, e: &mut Emit, v: Value, p: Value, at: i32) {
        let f = e.flags();
        e.b.ins().store(f, v, p, at);
    }
    /// Gathers the arguments and calls `call`.
    fn infer(&self, e: &mut Emit, p: &[Value], exec: bool) {
        let i = self.interface;
        let mut next = p.iter().copied();
        let mut gather = |e: &mut Emit, n: usize| {
            let a = self.slot(e, 8 * n as u32);
            for k in 0..n {
                if let Some(v) = next.next() {
                    self.store(e, v, a, 8 * k as i32);
                }
            }
            a
        };
        let dims = gather(e, i.dim_params.len());
        let inputs = gather(e, i.inputs.len());
        let outputs = gather(e, i.outputs.len());
        let zero = e.b.ins().iconst(I64, 0);
        let sized = i.outputs.iter().any(|t| from_data(i, t));
        let out_dims = if sized { self.slot(e, 8 * i.outputs.len() as u32) } else { zero };
        for (k, t) in i.outputs.iter().enumerate().filter(|_| sized) {
            let list = if from_data(i, t) { next.next().unwrap_or(zero) } else { zero };
            self.store(e, list, out_dims, 8 * k as i32);
        }
        let weights = if i.weights.external { next.next().unwrap_or(zero) } else { zero };
        let workspace = next.next().unwrap_or(zero);
        let exec = if exec { next.next().unwrap_or(zero) } else { zero };
        let f = self.local(e, CALL);
        let call = e.b.ins().call(f, &[inputs, outputs, dims, out_dims, weights, workspace, exec]);
        let r = e.b.inst_results(call)[0];
        e.b.ins().return_(&[r]);
    }
    fn workspace_size(&self, e: &mut Emit, p: &[Value]) {
        let n = self.interface.dim_params.len();
        let dims = self.slot(e, 8 * n as u32);
        for (k, v) in p[..n].iter().enumerate() {
            self.store(e, *v, dims, 8 * k as i32);
        }
        let f = self.local(e, WORKSPACE_FOR);
        let call = e.b.ins().call(f, &[dims, p[n]]);
        let r = e.b.inst_results(call)[0];
        e.b.ins().return_(&[r]);
    }
    /// Reads and checks the dim params.
    fn dims(&self, e: &mut Emit, dims: Value) {
        for (k, d) in self.interface.dim_params.iter().enumerate() {
            let v = self.load(e, dims, 8 * k as i32);
            let lo = e.b.ins().icmp_imm_s(IntCC::SignedGreaterThanOrEqual, v, d.lo);
            let hi = e.b.ins().icmp_imm_s(IntCC::SignedLessThanOrEqual, v, d.hi.unwrap_or(MAX_DIM));
            let ok = e.b.ins().band(lo, hi);
            e.require(ok, Status::Dim);
            e.vars.insert(d.sym, v);
        }
    }
    /// Computes the derived sizes.
    fn derived(&self, e: &mut Emit) -> Result<()> {
        for (s, d) in self.m.syms.derived() {
            self.fits(e, *d)?;
            let v = e.dim(*d)?;
            e.vars.insert(*s, v);
        }
        Ok(())
    }
    fn workspace_for(&self, e: &mut Emit, p: &[Value]) -> Result<()> {
        for ptr in p {
            let ok = e.b.ins().icmp_imm_s(IntCC::NotEqual, *ptr, 0);
            if !self.interface.dim_params.is_empty() || *ptr != p[0] {
                e.require(ok, Status::Null);
            }
        }
        self.dims(e, p[0]);
        self.derived(e)?;
        self.checks(e)?;
        let v = e.dim(self.interface.workspace)?;
        self.store(e, v, p[1], 0);
        self.ok(e);
        Ok(())
    }
    fn ok(&self, e: &mut Emit) {
        let ok = e.b.ins().iconst(I32, 0);
        e.b.ins().return_(&[ok]);
    }
    /// Conditions on the dim params.
    fn checks(&self, e: &mut Emit) -> Result<()> {
        for s in &self.m.driver {
            if let Stmt::Check { cond, status } = s
                && early(self, s)
            {
                s.dims().into_iter().try_for_each(|d| self.fits(e, d))?;
                let c = e.truth(cond)?;
                e.require(c, *status);
            }
        }
        let (i, m) = (self.interface, self.m);
        let bits = |b: &crate::nest::Buf| Dim::product(m.bufs[*b].dims.iter().copied()) * i64::from(m.element_bits(*b));
        let sizes = m.inputs.iter().chain(&m.outputs).map(bits).chain([i.workspace]).filter(|d| !m.syms.at_run_time(*d));
        sizes.into_iter().try_for_each(|d| self.fits(e, d))
    }
    /// Checks that 64-bit arithmetic gives the value of a dim, unless the bounds of its symbols say so.
    fn fits(&self, e: &mut Emit, d: Dim) -> Result<()> {
        if magnitude(&self.m.syms, d) >= (1i64 << 62) as f64 {
            let ok = e.fits(d)?;
            e.require(ok, Status::Dim);
        }
        Ok(())
    }
    /// `call(inputs, outputs, dims, out_dims, weights, workspace, exec)`.
    fn call(&self, e: &mut Emit, p: &[Value]) -> Result<()> {
        let [inputs, outputs, dims, out_dims, weights, workspace, exec] = p[..] else { return e.bug("call takes seven arguments") };
        let frame = self.slot(e, self.frame.size());
        self.dims(e, dims);
        self.derived(e)?;
        self.checks(e)?;
        self.out_dims(e, out_dims)?;
        for (list, tensors) in [(inputs, &self.interface.inputs), (outputs, &self.interface.outputs)] {
            for (k, t) in tensors.iter().enumerate() {
                let v = self.load(e, list, 8 * k as i32);
                let word = if list == inputs { Word::Input(k as u32) } else { Word::Output(k as u32) };
                e.words.insert(word, v);
                let count = Dim::product(t.dims.iter().copied());
                if count.as_const() == Some(0) || self.m.syms.at_run_time(count) {
                    continue;
                }
                let mut ok = e.b.ins().icmp_imm_s(IntCC::NotEqual, v, 0);
                if count.as_const().is_none() && !self.m.syms.is_pos(count) {
                    let n = e.dim(count)?;
                    let empty = e.b.ins().icmp_imm_s(IntCC::Equal, n, 0);
                    ok = e.b.ins().bor(ok, empty);
                }
                e.require(ok, Status::Null);
            }
        }
        let aligned = |e: &mut Emit, v: Value, align: i64| {
            let ok = e.b.ins().icmp_imm_s(IntCC::NotEqual, v, 0);
            e.require(ok, Status::Null);
            let low = e.b.ins().band_imm_s(v, align - 1);
            let ok = e.b.ins().icmp_imm_s(IntCC::Equal, low, 0);
            e.require(ok, Status::Align);
        };
        if self.interface.workspace.as_const() != Some(0) {
            aligned(e, workspace, 64);
        }
        let weights = if self.interface.weights.size == 0 {
            weights
        } else if self.interface.weights.external {
            aligned(e, weights, 64);
            // The file begins with its SHA-256: eight bytes of it tell the right file from a wrong one.
            let found = self.load(e, weights, 0);
            let want = i64::from_le_bytes(std::array::from_fn(|k| self.interface.weights.sha256[k]));
            let want = e.b.ins().iconst(I64, want);
            let ok = e.b.ins().icmp(IntCC::Equal, found, want);
            e.require(ok, Status::Weights);
            e.b.ins().iadd_imm_s(weights, super::super::weights::HEADER as i64)
        } else {
            let name = e.b.func.declare_imported_user_function(UserExternalName { namespace: DATA_NAMESPACE, index: WEIGHTS });
            let gv = e.b.func.create_global_value(cranelift_codegen::ir::GlobalValueData::Symbol { name: ExternalName::user(name), offset: 0.into(), colocated: true, tls: false });
            e.b.ins().symbol_value(I64, gv)
        };
        e.words.insert(Word::Workspace, workspace);
        e.words.insert(Word::Weights, weights);
        for (i, w) in self.frame.words.iter().enumerate() {
            let v = match w {
                Word::Sym(s) => match e.vars.get(s) {
                    Some(v) => *v,
                    None => continue,
                },
                Word::Slot(s) if self.m.syms.at_run_time(self.m.slots[*s].offset) => continue,
                Word::Slot(s) => {
                    let d = e.dim(self.m.slots[*s].offset)?;
                    e.b.ins().iadd(workspace, d)
                }
                w => e.words[w],
            };
            self.store(e, v, frame, 8 * i as i32);
        }
        let task_ctx = self.slot(e, 48);
        Driver::new(self, e, [frame, task_ctx, exec, workspace, out_dims])?.block(e, &self.m.driver)?;
        self.ok(e);
        Ok(())
    }
    /// Where the caller says how large its outputs are: too small is an error that tells the sizes needed, and the
    /// actual sizes are written back (abi/README.md, rule 10).
    fn out_dims(&self, e: &mut Emit, out_dims: Value) -> Result<()> {
        let dynamic: Vec<(usize, &[Dim])> = self
            .m
            .outputs
            .iter()
            .enumerate()
            .map(|(k, b)| (k, self.m.bufs[*b].dims.as_slice()))
            .filter(|(_, d)| d.iter().any(|d| d.as_const().is_none()) && !d.iter().any(|d| self.m.syms.at_run_time(*d)))
            .collect();
        if dynamic.is_empty() {
            return Ok(());
        }
        let (given, after) = (e.b.create_block(), e.b.create_block());
        e.b.ins().brif(out_dims, given, &[], after, &[]);
        e.b.switch_to_block(given);
        e.b.seal_block(given);
        e.push();
        let mut fits = e.b.ins().iconst(cranelift_codegen::ir::types::I8, 1);
        for (k, dims) in dynamic {
            let list = self.load(e, out_dims, 8 * k as i32);
            let (some, next) = (e.b.create_block(), e.b.create_block());
            let result = e.b.append_block_param(next, cranelift_codegen::ir::types::I8);
            e.b.ins().brif(list, some, &[], next, &[fits.into()]);
            e.b.switch_to_block(some);
            e.b.seal_block(some);
            e.push();
            let mut ok = fits;
            for (i, d) in dims.iter().enumerate() {
                let capacity = self.load(e, list, 8 * i as i32);
                let n = e.dim(*d)?;
                let enough = e.b.ins().icmp(IntCC::SignedGreaterThanOrEqual, capacity, n);
                ok = e.b.ins().band(ok, enough);
                self.store(e, n, list, 8 * i as i32);
            }
            e.pop();
            e.b.ins().jump(next, &[ok.into()]);
            e.b.switch_to_block(next);
            e.b.seal_block(next);
            fits = result;
        }
        e.require(fits, Status::Capacity);
        e.pop();
        e.b.ins().jump(after, &[]);
        e.b.switch_to_block(after);
        e.b.seal_block(after);
        Ok(())
    }
    /// Runs a kernel of `n` iterations: at once, or as tasks of the caller's `parallel_for`.
    pub(super) fn launch(&self, e: &mut Emit, k: Kernel, n: Value, trip: Option<Dim>, [frame, ctx, exec]: [Value; 3]) -> Result<()> {
        let data = &self.m.kernels[k];
        let f = self.local(e, k.as_u32());
        let zero = e.b.ins().iconst(I64, 0);
        let small = data.work.as_const().is_some_and(|w| w < 2 * GRAIN) || trip.is_none_or(|t| t.as_const().is_some_and(|t| t < 2));
        let done = e.b.create_block();
        if !small {
            let (has_exec, parallel, serial) = (e.b.create_block(), e.b.create_block(), e.b.create_block());
            e.b.ins().brif(exec, has_exec, &[], serial, &[]);
            e.b.switch_to_block(has_exec);
            e.b.seal_block(has_exec);
            let run = self.load(e, exec, 16);
            let most = self.load(e, exec, 24);
            let work = e.dim(data.work)?;
            let grain = e.b.ins().iconst(I64, GRAIN);
            let tasks = e.b.ins().udiv(work, grain);
            let bound = e.b.ins().iconst(I64, MAX_TASKS);
            let tasks = e.b.ins().umin(tasks, bound);
            let free = e.b.ins().icmp_imm_s(IntCC::Equal, most, 0);
            let most = e.b.ins().select(free, bound, most);
            let tasks = e.b.ins().umin(tasks, most);
            let tasks = e.b.ins().umin(tasks, n);
            let several = e.b.ins().icmp_imm_s(IntCC::SignedGreaterThan, tasks, 1);
            let have = e.b.ins().icmp_imm_s(IntCC::NotEqual, run, 0);
            let go = e.b.ins().band(several, have);
            e.b.ins().brif(go, parallel, &[], serial, &[]);
            e.b.switch_to_block(parallel);
            e.b.seal_block(parallel);
            let address = e.b.ins().func_addr(I64, f);
            for (i, v) in [address, frame, n, tasks, zero].into_iter().enumerate() {
                self.store(e, v, ctx, 8 * i as i32);
            }
            let user = self.load(e, exec, 8);
            let task = self.local(e, TASK);
            let task = e.b.ins().func_addr(I64, task);
            let mut sig = entry_signature(self.isa, 4);
            sig.returns.clear();
            let sig = e.b.import_signature(sig);
            e.b.ins().call_indirect(sig, run, &[user, tasks, task, ctx]);
            let flags = e.flags();
            let status = e.b.ins().load(I32, flags, ctx, 32);
            self.leave_if(e, status);
            e.b.ins().jump(done, &[]);
            e.b.switch_to_block(serial);
            e.b.seal_block(serial);
        }
        let call = e.b.ins().call(f, &[frame, zero, n]);
        let status = e.b.inst_results(call)[0];
        self.leave_if(e, status);
        e.b.ins().jump(done, &[]);
        e.b.switch_to_block(done);
        e.b.seal_block(done);
        e.scopes = vec![Scope::default()];
        Ok(())
    }
    fn leave_if(&self, e: &mut Emit, status: Value) {
        let (bad, go) = (e.b.create_block(), e.b.create_block());
        e.b.ins().brif(status, bad, &[], go, &[]);
        e.b.switch_to_block(bad);
        e.b.seal_block(bad);
        e.b.set_cold_block(bad);
        e.b.ins().return_(&[status]);
        e.b.switch_to_block(go);
        e.b.seal_block(go);
    }
    /// Task `i` of `tasks`: iterations `n*i/tasks .. n*(i+1)/tasks`. Of several failures one is kept.
    fn task(&self, e: &mut Emit, p: &[Value]) {
        let (ctx, i) = (p[0], p[1]);
        let w: Vec<Value> = (0..4).map(|k| self.load(e, ctx, 8 * k)).collect();
        let bound = |e: &mut Emit, i: Value| {
            let x = e.b.ins().imul(w[2], i);
            e.b.ins().udiv(x, w[3])
        };
        let begin = bound(e, i);
        let next = e.b.ins().iadd_imm_s(i, 1);
        let end = bound(e, next);
        let sig = e.b.import_signature(signature(self.isa));
        let call = e.b.ins().call_indirect(sig, w[0], &[w[1], begin, end]);
        let status = e.b.inst_results(call)[0];
        let (bad, done) = (e.b.create_block(), e.b.create_block());
        e.b.ins().brif(status, bad, &[], done, &[]);
        e.b.switch_to_block(bad);
        e.b.seal_block(bad);
        let flags = e.flags();
        e.b.ins().store(flags, status, ctx, 32);
        e.b.ins().jump(done, &[]);
        e.b.switch_to_block(done);
        e.b.seal_block(done);
        e.b.ins().return_(&[]);
    }
}
