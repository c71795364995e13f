//! The entry functions: `call` (the driver, behind the uniform interface of the metadata), `infer` and
//! `infer_exec` (which collect their arguments and call it), `workspace_for`, `workspace_size`, and the task
//! that `parallel_for` runs.

mod checks;
mod launch;

pub use launch::tasks;

use super::driver::Driver;
use super::func::{Emit, Libm, signature};
use crate::codegen::customs::Texts;
use crate::codegen::faults::{Checks, Writer};
use crate::codegen::frame::{Frame, Word};
use crate::codegen::header::from_data;
use crate::codegen::interface::Interface;
use crate::codegen::weights::Layout;
use crate::codegen::weights_file;
use crate::diag::Result;
use crate::nest::print::Lines;
use crate::nest::{Buf, Kernel, Module, Status};
use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::types::{I32, I64};
use cranelift_codegen::ir::{
    AbiParam, ExtFuncData, ExternalName, FuncRef, Function, InstBuilder, Signature, StackSlotData,
    StackSlotKind, UserExternalName, UserFuncName, Value,
};
use cranelift_codegen::isa::TargetIsa;
use cranelift_frontend::{FunctionBuilder, FunctionBuilderContext};
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

/// Name space of the module's own functions in `UserExternalName`: kernels by number, then the functions
/// below.
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
/// Detection of the CPU's level (codegen/cpu_level.rs).
pub const CPU_LEVEL: u32 = 0x4000_0007;
/// Runs a kernel that may be split into tasks.
pub const LAUNCH: u32 = 0x4000_0008;
/// Code that several kernels share: this number plus that of the first kernel.
pub const SHARED: u32 = 0x2000_0000;
/// `call` of variant 0; the other variants follow.
pub const CALL_OF: u32 = 0x5000_0000;
/// The embedded weights, a data object.
pub const WEIGHTS: u32 = 0;
/// The word that caches the CPU's level.
pub const CPU_LEVEL_WORD: u32 = 1;
/// The names and attributes of custom operators.
pub const CUSTOMS: u32 = 2;

/// Largest value of a dim param without a declared bound.
pub const MAX_DIM: i64 = i32::MAX as i64;

/// Number of parameters of `infer`, all of which are words.
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

/// The context of every entry function.
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
    /// Required CPU features of all variants' levels.
    pub needs: &'a [u32],
    /// The lowest level, if CPUs that lack it are rejected.
    pub refuses: Option<&'a str>,
    /// The checks of all variants.
    pub checks: Rc<RefCell<Checks>>,
    /// Names and attributes of custom operators in the data object.
    pub customs: &'a [Texts],
    /// The kernel that writes each buffer.
    pub makers: &'a HashMap<Buf, Kernel>,
    /// Source lines of statements, for debug information.
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
    /// Collects the arguments and calls `call`.
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
    fn workspace_for(&self, e: &mut Emit, p: &[Value]) -> Result<()> {
        for ptr in p {
            let ok = e.b.ins().icmp_imm_s(IntCC::NotEqual, *ptr, 0);
            if !self.interface.dim_params.is_empty() || *ptr != p[0] {
                e.require(ok, Status::Null);
            }
        }
        self.dims(e, p[0])?;
        let bounds = self.bounds(e);
        self.derived(e, &bounds)?;
        self.checks(e, &bounds)?;
        let v = e.dim(self.interface.workspace)?;
        self.store(e, v, p[1], 0);
        self.ok(e);
        Ok(())
    }
    fn ok(&self, e: &mut Emit) {
        let ok = e.b.ins().iconst(I32, 0);
        e.b.ins().return_(&[ok]);
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
        let bounds = self.bounds(e);
        self.derived(e, &bounds)?;
        self.checks(e, &bounds)?;
        self.out_dims(e, out_dims)?;
        for (k, t) in self.interface.inputs.iter().enumerate() {
            let v = self.address_of(e, inputs, k, ("input", t))?;
            e.words.insert(Word::Input(k as u32), v);
        }
        for (k, t) in self.interface.outputs.iter().enumerate() {
            let v = self.address_of(e, outputs, k, ("output", t))?;
            e.words.insert(Word::Output(k as u32), v);
        }
        let end = self.workspace_end(e, exec)?;
        if self.interface.workspace.as_const() != Some(0) {
            self.aligned(e, workspace, "the workspace")?;
        }
        let weights = self.weights(e, weights)?;
        e.words.insert(Word::Workspace, workspace);
        e.words.insert(Word::Weights, weights);
        self.fill_frame(e, frame)?;
        let task_ctx = self.slot(e, 48);
        Driver::new(self, e, [frame, task_ctx, exec, workspace, out_dims, end])?.block(e, &self.m.driver)?;
        self.ok(e);
        Ok(())
    }
    /// The address of the constants, given the caller's weights.
    fn weights(&self, e: &mut Emit, given: Value) -> Result<Value> {
        let weights = &self.interface.weights;
        if weights.size == 0 {
            return Ok(given);
        }
        if weights.external {
            self.aligned(e, given, "the weights")?;
            self.weights_file(e, given)?;
            return Ok(e.b.ins().iadd_imm_s(given, weights_file::HEADER as i64));
        }
        let name = e
            .b
            .func
            .declare_imported_user_function(UserExternalName { namespace: DATA_NAMESPACE, index: WEIGHTS });
        let gv = e.b.func.create_global_value(cranelift_codegen::ir::GlobalValueData::Symbol {
            name: ExternalName::user(name),
            offset: 0.into(),
            colocated: true,
            tls: false,
        });
        Ok(e.b.ins().symbol_value(I64, gv))
    }
    /// Stores all words of the frame that are known at entry; the driver defines the others.
    fn fill_frame(&self, e: &mut Emit, frame: Value) -> Result<()> {
        let workspace = e.words[&Word::Workspace];
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
        Ok(())
    }
}
