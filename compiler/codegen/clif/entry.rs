//! The entry functions: `call` (the driver, behind the metadata's uniform interface), `infer` and
//! `infer_exec` (which gather their arguments and call it), `workspace_for`, `workspace_size`, and the task
//! that `parallel_for` runs.

use super::driver::{Driver, early};
use super::fault::{EXEC_SIZE, EXEC_WORKSPACE};
use super::func::{Emit, Libm, Scope, signature};
use crate::codegen::customs::Texts;
use crate::codegen::faults::{self, Check, Checks, Writer, general, quoted};
use crate::codegen::frame::{Frame, Word};
use crate::codegen::header::from_data;
use crate::codegen::interface::{Interface, Tensor};
use crate::codegen::weights::Layout;
use crate::codegen::weights_file::{self, PLANS_AT, SIZE_AT};
use crate::diag::Result;
use crate::nest::print::Lines;
use crate::nest::{BinOp, Buf, Expr, Kernel, Module, Place, Status, Stmt, visit};
use crate::sym::{Atom, Dim, SymKind, SymTable, View};
use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::types::{I8, I32, I64};
use cranelift_codegen::ir::{
    AbiParam, ExtFuncData, ExternalName, FuncRef, Function, InstBuilder, Signature, StackSlotData,
    StackSlotKind, UserExternalName, UserFuncName, Value,
};
use cranelift_codegen::isa::TargetIsa;
use cranelift_frontend::{FunctionBuilder, FunctionBuilderContext};
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

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
/// What runs a kernel that may be several tasks.
pub const LAUNCH: u32 = 0x4000_0008;
/// Code that several kernels share: this, plus the number of the first of them.
pub const SHARED: u32 = 0x2000_0000;
/// `call` of variant 0; those of the others follow.
pub const CALL_OF: u32 = 0x5000_0000;
/// The embedded weights among the data objects.
pub const WEIGHTS: u32 = 0;
/// The word that remembers the CPU's level.
pub const CPU_LEVEL_WORD: u32 = 1;
/// What custom operators are told of themselves.
pub const CUSTOMS: u32 = 2;

/// Tasks are worth their start from this many scalar operations on.
const GRAIN: i64 = 60_000;
/// Most tasks of one loop where the caller sets no bound.
const MAX_TASKS: i64 = 64;
/// Largest value of a dim param without a declared bound.
pub const MAX_DIM: i64 = i32::MAX as i64;

/// Tasks that the driver makes of a kernel (see `Entry::kernel`): `work` scalar operations in `trip`
/// iterations for a caller that allows `most` tasks (0: any number).
pub fn tasks(work: i64, trip: i64, most: i64) -> i64 {
    let most = if most == 0 { MAX_TASKS } else { most };
    (work / GRAIN).min(MAX_TASKS).min(most).min(trip).max(1)
}

/// A bound of the magnitude of a dim and of all sums in it, from the legal values of its symbols.
fn magnitude(syms: &SymTable, d: Dim) -> f64 {
    let View::Sum { terms, constant } = d.view() else {
        return d.as_const().map_or(f64::INFINITY, |c| (c as f64).abs());
    };
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
    terms.iter().fold((constant as f64).abs(), |sum, (c, atoms)| {
        sum + atoms.iter().map(atom).product::<f64>() * (*c as f64).abs()
    })
}

/// Parameters of the entry functions in order, all of them words but the results.
pub fn infer_params(i: &Interface) -> usize {
    i.dim_params.len()
        + i.inputs.len()
        + i.outputs.len()
        + i.outputs.iter().filter(|t| from_data(i, t)).count()
        + usize::from(i.weights.external)
        + 1
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
        LAUNCH => entry_signature(isa, 6),
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
    /// The lowest level, if CPUs that lack it are refused.
    pub refuses: Option<&'a str>,
    /// The checks of all variants.
    pub checks: Rc<RefCell<Checks>>,
    /// What custom operators are told of themselves.
    pub customs: &'a [Texts],
    /// Which kernels write the buffers.
    pub makers: &'a HashMap<Buf, Kernel>,
    /// Where statements stand, for debug information.
    pub lines: Option<&'a Lines>,
}

impl Entry<'_> {
    /// One of the entry functions.
    pub fn function(&self, number: u32) -> Result<(Function, Libm)> {
        let sig = signature_of(self.isa, self.interface, number);
        let mut func = Function::with_name_signature(UserFuncName::user(LOCAL_NAMESPACE, number), sig);
        let mut fcx = FunctionBuilderContext::new();
        let b = FunctionBuilder::new(&mut func, &mut fcx);
        let (mut e, p) = Emit::start(self.m, self.frame, self.weights, self.isa, b);
        e.begin(self.lines, |l| Some(l.driver));
        match number {
            CALL => self.call(&mut e, &p)?,
            DISPATCH => self.dispatch(&mut e, &p)?,
            TASK => self.task(&mut e, &p),
            LAUNCH => self.launch_code(&mut e, &p)?,
            WORKSPACE_FOR => self.workspace_for(&mut e, &p)?,
            WORKSPACE_SIZE => self.workspace_size(&mut e, &p),
            INFER => self.infer(&mut e, &p, false),
            _ => self.infer(&mut e, &p, true),
        }
        e.close_sink();
        e.fail_blocks();
        let libm = e.libm.clone();
        e.b.seal_all_blocks();
        e.b.finalize(self.isa.frontend_config());
        Ok((func, libm))
    }
    pub(super) fn local(&self, e: &mut Emit, number: u32) -> FuncRef {
        let signature = e.b.import_signature(signature_of(self.isa, self.interface, number));
        let name = e
            .b
            .func
            .declare_imported_user_function(UserExternalName { namespace: LOCAL_NAMESPACE, index: number });
        e.b.import_function(ExtFuncData {
            name: ExternalName::user(name),
            signature,
            colocated: true,
            patchable: false,
        })
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
    pub(super) fn words(&self) -> Writer<'_> {
        Writer { m: self.m, interface: self.interface }
    }
    /// Reads and checks the dim params.
    fn dims(&self, e: &mut Emit, dims: Value) -> Result<()> {
        for (k, d) in self.interface.dim_params.iter().enumerate() {
            let v = self.load(e, dims, 8 * k as i32);
            let most = d.hi.unwrap_or(MAX_DIM);
            let lo = e.b.ins().icmp_imm_s(IntCC::SignedGreaterThanOrEqual, v, d.lo);
            let hi = e.b.ins().icmp_imm_s(IntCC::SignedLessThanOrEqual, v, most);
            let ok = e.b.ins().band(lo, hi);
            let (name, of) = self.words().param(Dim::sym(d.sym));
            let mut check =
                Check::new(Status::Dim, format!("{name} is %lld: it must be from {} to {most}", d.lo));
            check.values.push(of);
            e.require_check(ok, check, &mut |_| Ok((vec![v], None)))?;
            e.vars.insert(d.sym, v);
        }
        Ok(())
    }
    /// Leaves unless `ok`, the condition of a check of the driver. Capacity: memory at the end of the
    /// workspace.
    pub(super) fn check(&self, e: &mut Emit, ok: Value, cond: &Expr, status: Status) -> Result<()> {
        let near = self.near(cond);
        let (row, shown) = match self.m.reasons.of_check(cond) {
            Some(r) => self.words().row(r, status),
            None => (Check::new(status, general(status)), vec![]),
        };
        let row = if row.node.is_empty() && row.op.is_empty() { row.at((&near.0, &near.1)) } else { row };
        e.require_check(ok, row, &mut |e| {
            let values = shown.iter().map(|d| e.dim(*d)).collect::<Result<Vec<_>>>()?;
            let needed = match (status, cond) {
                (Status::Capacity, Expr::Bin(BinOp::Le, used, end)) => match (&**used, &**end) {
                    (Expr::Index(used), Expr::Index(end)) => Some(self.needed(e, *used - *end)?),
                    _ => None,
                },
                _ => None,
            };
            Ok((values, needed))
        })
    }
    /// Bytes of workspace for a call that lacks so many.
    fn needed(&self, e: &mut Emit, missing: Dim) -> Result<Value> {
        let missing = e.dim(missing)?;
        let Some(end) = self.m.end else { return Ok(missing) };
        let end = match self.frame.offset(Word::Sym(end)) {
            Some(at) => {
                let frame = e.frame;
                self.load(e, frame, at)
            }
            None => return e.bug("the end of the workspace is not in the frame"),
        };
        Ok(e.b.ins().iadd(end, missing))
    }
    /// The node that computes what an expression of the driver reads.
    pub(super) fn near(&self, x: &Expr) -> (String, String) {
        let mut loads = vec![];
        x.walk(&mut |x| {
            if let Expr::Load { buf, .. } = x {
                loads.push(self.m.storage(*buf));
            }
        });
        let maker = loads.iter().find_map(|b| self.makers.get(b)).map(|k| &self.m.kernels[*k]);
        let input = || loads.iter().map(|b| &self.m.bufs[*b]).find(|b| matches!(b.place, Place::Input(_)));
        match (maker, input()) {
            _ if loads.is_empty() => Default::default(),
            (Some(k), _) => {
                let (node, op) = faults::node(&k.origin, &k.name);
                (node.to_owned(), op.to_owned())
            }
            (None, Some(b)) => (b.name.clone(), "input".into()),
            (None, None) => Default::default(),
        }
    }
    /// Computes the derived sizes, but for those of dim params that this module does not have: constants are
    /// folded in a module of their own, with the symbols of the whole.
    fn derived(&self, e: &mut Emit) -> Result<()> {
        for (s, d) in self.m.syms.derived() {
            if !d.syms().iter().all(|t| e.vars.contains_key(t)) {
                continue;
            }
            self.bounded(e, *d, &format!("size {}", quoted(self.m.syms.name(*s))))?;
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
        self.dims(e, p[0])?;
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
                s.dims().into_iter().try_for_each(|d| self.bounded(e, d, "a size that a check compares"))?;
                let c = e.truth(cond)?;
                self.check(e, c, cond, *status)?;
            }
        }
        let (i, m) = (self.interface, self.m);
        let bits = |b: &Buf| Dim::product(m.bufs[*b].dims.iter().copied()) * i64::from(m.element_bits(*b));
        let kinds = [("input", &m.inputs), ("output", &m.outputs)];
        let tensors = kinds.into_iter().flat_map(|(what, list)| {
            list.iter().map(move |b| (format!("{what} {}", quoted(&m.bufs[*b].name)), bits(b)))
        });
        for (name, d) in tensors
            .chain([("the workspace".to_owned(), i.workspace)])
            .filter(|(_, d)| !m.syms.at_run_time(*d))
        {
            self.bounded(e, d, &name)?;
        }
        Ok(())
    }
    /// Checks that 64-bit arithmetic gives the value of a dim, unless the bounds of its symbols say so.
    fn bounded(&self, e: &mut Emit, d: Dim, name: &str) -> Result<()> {
        if magnitude(&self.m.syms, d) >= (1i64 << 62) as f64 {
            let ok = e.fits(d)?;
            e.require_plain(
                ok,
                Check::new(Status::Dim, format!("{name} would be larger than memory can be")),
            )?;
        }
        Ok(())
    }
    /// Compares the head of the weights file with what the object was compiled for.
    fn weights_file(&self, e: &mut Emit, weights: Value) -> Result<()> {
        let w = &self.interface.weights;
        let file = quoted(&w.file);
        let equal = |e: &mut Emit, at: usize, want: &[u8]| {
            let mut differ = e.b.ins().iconst(I64, 0);
            for (k, word) in want.as_chunks::<8>().0.iter().enumerate() {
                let found = self.load(e, weights, (at + 8 * k) as i32);
                let want = e.b.ins().iconst(I64, i64::from_le_bytes(*word));
                let other = e.b.ins().bxor(found, want);
                differ = e.b.ins().bor(differ, other);
            }
            e.b.ins().icmp_imm_s(IntCC::Equal, differ, 0)
        };
        let (version, size) = (weights_file::VERSION, w.size);
        let ok = equal(e, 0, &weights_file::signature());
        let text = format!("the weights are no weights file of version {version}: expected {file}");
        e.require_plain(ok, Check::new(Status::Weights, text))?;
        let at = PLANS_AT + weights_file::PLAN * w.slot as usize;
        let ok = equal(e, at, &w.plan);
        let text = format!("the weights are those of another model or compilation: expected {file}");
        e.require_plain(ok, Check::new(Status::Weights, text))?;
        let found = self.load(e, weights, SIZE_AT as i32);
        let ok = e.b.ins().icmp_imm_s(IntCC::UnsignedGreaterThanOrEqual, found, size as i64);
        let text = format!("the weights have %lld bytes: those of {file} have {size}");
        let check = Check::new(Status::Weights, text).with_values(1);
        e.require_check(ok, check, &mut |_| Ok((vec![found], None)))
    }
    /// `call(inputs, outputs, dims, out_dims, weights, workspace, exec)`.
    fn call(&self, e: &mut Emit, p: &[Value]) -> Result<()> {
        let [inputs, outputs, dims, out_dims, weights, workspace, exec] = p[..] else {
            return e.bug("call takes seven arguments");
        };
        e.open_sink(exec, &self.checks);
        self.check_exec(e, exec)?;
        let frame = self.slot(e, self.frame.size());
        e.frame = frame;
        self.dims(e, dims)?;
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
                let what = if list == inputs { "input" } else { "output" };
                e.require_plain(ok, Check::new(Status::Null, format!("{what} {} is NULL", quoted(&t.name))))?;
            }
        }
        let aligned = |e: &mut Emit, v: Value, what: &str| {
            let ok = e.b.ins().icmp_imm_s(IntCC::NotEqual, v, 0);
            e.require_plain(ok, Check::new(Status::Null, format!("{what} is NULL")))?;
            let low = e.b.ins().band_imm_s(v, 63);
            let ok = e.b.ins().icmp_imm_s(IntCC::Equal, low, 0);
            e.require_plain(
                ok,
                Check::new(Status::Align, format!("the address of {what} is no multiple of 64")),
            )
        };
        let end = self.workspace_end(e, exec)?;
        if self.interface.workspace.as_const() != Some(0) {
            aligned(e, workspace, "the workspace")?;
        }
        let weights = if self.interface.weights.size == 0 {
            weights
        } else if self.interface.weights.external {
            aligned(e, weights, "the weights")?;
            self.weights_file(e, weights)?;
            e.b.ins().iadd_imm_s(weights, weights_file::HEADER as i64)
        } else {
            let name = e.b.func.declare_imported_user_function(UserExternalName {
                namespace: DATA_NAMESPACE,
                index: WEIGHTS,
            });
            let gv = e.b.func.create_global_value(cranelift_codegen::ir::GlobalValueData::Symbol {
                name: ExternalName::user(name),
                offset: 0.into(),
                colocated: true,
                tls: false,
            });
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
        Driver::new(self, e, [frame, task_ctx, exec, workspace, out_dims, end])?.block(e, &self.m.driver)?;
        self.ok(e);
        Ok(())
    }
    /// Where the workspace ends, from its begin: as the caller says, whose word counts (abi/README.md, rule
    /// 8), or as large as `workspace_size` tells. What the caller says is checked before anything is written.
    fn workspace_end(&self, e: &mut Emit, exec: Value) -> Result<Value> {
        // Of memory at the end any number of bytes will do, for now.
        let heap = if self.m.end.is_some() { self.m.heap } else { 0 };
        let least = self.m.workspace - heap;
        if self.m.workspace.as_const() == Some(0) {
            return Ok(e.b.ins().iconst(I64, 0));
        }
        let usual = if self.m.end.is_some() { e.dim(self.m.workspace)? } else { e.b.ins().iconst(I64, 0) };
        let (has, large, told, done) =
            (e.b.create_block(), e.b.create_block(), e.b.create_block(), e.b.create_block());
        let end = e.b.append_block_param(done, I64);
        e.b.ins().brif(exec, has, &[], done, &[usual.into()]);
        e.b.switch_to_block(has);
        e.b.seal_block(has);
        let size = self.load(e, exec, 0);
        let known = e.b.ins().icmp_imm_u(IntCC::UnsignedGreaterThanOrEqual, size, EXEC_SIZE);
        e.b.ins().brif(known, large, &[], done, &[usual.into()]);
        e.b.switch_to_block(large);
        e.b.seal_block(large);
        let given = self.load(e, exec, EXEC_WORKSPACE);
        e.b.ins().brif(given, told, &[], done, &[usual.into()]);
        e.b.switch_to_block(told);
        e.b.seal_block(told);
        e.push();
        // Whoever has more than 63 bits has enough.
        let most = e.b.ins().iconst(I64, i64::MAX);
        let given = e.b.ins().umin(given, most);
        let need = e.dim(least)?;
        let ok = e.b.ins().icmp(IntCC::SignedGreaterThanOrEqual, given, need);
        let row = Check::new(Status::Capacity, "the workspace has %lld bytes, and these sizes take %lld")
            .with_values(2);
        e.require_check(ok, row, &mut |_| Ok((vec![given, need], Some(need))))?;
        let whole = e.b.ins().band_imm_s(given, !63);
        e.pop();
        e.b.ins().jump(done, &[whole.into()]);
        e.b.switch_to_block(done);
        e.b.seal_block(done);
        Ok(end)
    }
    /// Where the caller says how large its outputs are: too small is an error that tells the sizes needed,
    /// and the actual sizes are written back (abi/README.md, rule 10).
    fn out_dims(&self, e: &mut Emit, out_dims: Value) -> Result<()> {
        let at_entry = |dims: &[Dim]| {
            dims.iter().any(|d| d.as_const().is_none()) && !dims.iter().any(|d| self.m.syms.at_run_time(*d))
        };
        let sized = |(k, b): (usize, &Buf)| (k, self.m.bufs[*b].dims.as_slice(), &self.interface.outputs[k]);
        let dynamic: Vec<(usize, &[Dim], &Tensor)> =
            self.m.outputs.iter().enumerate().map(sized).filter(|x| at_entry(x.1)).collect();
        if dynamic.is_empty() {
            return Ok(());
        }
        let (given, after) = (e.b.create_block(), e.b.create_block());
        e.b.ins().brif(out_dims, given, &[], after, &[]);
        e.b.switch_to_block(given);
        e.b.seal_block(given);
        e.push();
        // All sizes are told before one of them fails the call.
        let mut fits = vec![];
        for (k, dims, t) in dynamic {
            let list = self.load(e, out_dims, 8 * k as i32);
            let (some, next) = (e.b.create_block(), e.b.create_block());
            let result = e.b.append_block_param(next, I8);
            let yes = e.b.ins().iconst(I8, 1);
            e.b.ins().brif(list, some, &[], next, &[yes.into()]);
            e.b.switch_to_block(some);
            e.b.seal_block(some);
            e.push();
            let mut ok = yes;
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
            fits.push((result, t));
        }
        for (ok, t) in fits {
            self.fits(e, ok, t)?;
        }
        e.pop();
        e.b.ins().jump(after, &[]);
        e.b.switch_to_block(after);
        e.b.seal_block(after);
        Ok(())
    }
    /// Leaves unless `ok`: the caller has room for an output.
    pub(super) fn fits(&self, e: &mut Emit, ok: Value, t: &Tensor) -> Result<()> {
        let (row, shown) = self.words().capacity(t);
        e.require_check(ok, row, &mut |e| Ok((shown.iter().map(|d| e.dim(*d)).collect::<Result<_>>()?, None)))
    }
    /// Runs a kernel of `n` iterations.
    pub(super) fn launch(
        &self,
        e: &mut Emit,
        k: Kernel,
        n: Value,
        trip: Option<Dim>,
        [frame, ctx, exec]: [Value; 3],
    ) -> Result<()> {
        let data = &self.m.kernels[k];
        let f = self.local(e, k.as_u32());
        let zero = e.b.ins().iconst(I64, 0);
        let done = e.b.create_block();
        let small = data.work.as_const().is_some_and(|w| w < 2 * GRAIN)
            || trip.is_none_or(|t| t.as_const().is_some_and(|t| t < 2));
        let call = if small {
            e.b.ins().call(f, &[frame, zero, n])
        } else {
            let address = e.b.ins().func_addr(I64, f);
            let work = e.dim(data.work)?;
            let launch = self.local(e, LAUNCH);
            e.b.ins().call(launch, &[address, frame, n, work, exec, ctx])
        };
        let status = e.b.inst_results(call)[0];
        self.leave_if(e, status, k);
        e.b.ins().jump(done, &[]);
        e.b.switch_to_block(done);
        e.b.seal_block(done);
        e.scopes = vec![Scope::default()];
        Ok(())
    }
    fn leave_if(&self, e: &mut Emit, status: Value, k: Kernel) {
        let (bad, go) = (e.b.create_block(), e.b.create_block());
        e.b.ins().brif(status, bad, &[], go, &[]);
        e.b.switch_to_block(bad);
        e.b.seal_block(bad);
        e.b.set_cold_block(bad);
        let data = &self.m.kernels[k];
        let at = faults::node(&data.origin, &data.name);
        // Of kernels, those that make strings run out of memory.
        let mut strings = false;
        visit::walk(&data.body, &mut |s| {
            strings |= matches!(s, Stmt::Check { status: Status::Capacity, .. })
        });
        if strings {
            let (full, other) = (e.b.create_block(), e.b.create_block());
            let is = e.b.ins().icmp_imm_s(IntCC::Equal, status, i64::from(Status::Capacity as u8));
            e.b.ins().brif(is, full, &[], other, &[]);
            e.b.switch_to_block(full);
            e.b.seal_block(full);
            let text = format!(
                "the strings that this call makes take more than {} bytes, which --heap sets",
                self.m.heap
            );
            e.leave(status, Check::new(Status::Capacity, text).at(at), (vec![], None));
            e.b.switch_to_block(other);
            e.b.seal_block(other);
        }
        e.leave(status, Check { status: None, ..Check::new(Status::Value, "") }.at(at), (vec![], None));
        e.b.switch_to_block(go);
        e.b.seal_block(go);
    }
    /// `launch(kernel, frame, n, work, exec, ctx)`: runs a kernel of `n` iterations and so much work, at once
    /// or as tasks of the caller's `parallel_for`.
    fn launch_code(&self, e: &mut Emit, p: &[Value]) -> Result<()> {
        let [kernel, frame, n, work, exec, ctx] = p[..] else {
            return e.bug("launch takes six arguments");
        };
        let zero = e.b.ins().iconst(I64, 0);
        let (has_exec, parallel, serial) = (e.b.create_block(), e.b.create_block(), e.b.create_block());
        e.b.ins().brif(exec, has_exec, &[], serial, &[]);
        e.b.switch_to_block(has_exec);
        let run = self.load(e, exec, 16);
        let most = self.load(e, exec, 24);
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
        for (i, v) in [kernel, frame, n, tasks, zero].into_iter().enumerate() {
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
        e.b.ins().return_(&[status]);
        e.b.switch_to_block(serial);
        let sig = e.b.import_signature(signature(self.isa));
        let call = e.b.ins().call_indirect(sig, kernel, &[frame, zero, n]);
        let status = e.b.inst_results(call)[0];
        e.b.ins().return_(&[status]);
        Ok(())
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
