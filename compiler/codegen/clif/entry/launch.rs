//! Kernels that run as tasks: the number of tasks, the function that launches a kernel, and the function that
//! `parallel_for` calls.

use super::{Entry, LAUNCH, TASK, entry_signature};
use crate::codegen::clif::func::{Emit, Scope, signature};
use crate::codegen::faults::{self, Check};
use crate::diag::Result;
use crate::nest::{Kernel, Status, Stmt, TASK_WORK, visit};
use crate::sym::Dim;
use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::types::{I32, I64};
use cranelift_codegen::ir::{InstBuilder, Value};

/// Scalar operations of a kernel beside which a call through `launch` takes no time.
const MEDIUM: i64 = 8 * TASK_WORK;
/// Most tasks of one loop if the caller sets no bound.
const MAX_TASKS: i64 = 64;

/// Number of tasks of a kernel (see `Entry::kernel`) with `work` scalar operations in `trip` iterations, for
/// a caller that allows `most` tasks (0: any number).
pub fn tasks(work: i64, trip: i64, most: i64) -> i64 {
    let most = if most == 0 { MAX_TASKS } else { most };
    (work / TASK_WORK).min(MAX_TASKS).min(most).min(trip).max(1)
}

/// The work of a kernel whose sizes are all 1.
fn least_work(work: Dim) -> i64 {
    work.eval(&|_| Some(1)).unwrap_or(0)
}

impl Entry<'_> {
    /// Runs a kernel of `n` iterations.
    pub(in crate::codegen::clif) fn launch(
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
        let small = data.work.as_const().is_some_and(|w| w < 2 * TASK_WORK)
            || trip.is_none_or(|t| t.as_const().is_some_and(|t| t < 2));
        let direct = |e: &mut Emit| {
            let call = e.b.ins().call(f, &[frame, zero, n]);
            e.b.inst_results(call)[0]
        };
        let status = if small {
            direct(e)
        } else {
            let called = e.b.create_block();
            let status = e.b.append_block_param(called, I32);
            // With a size of run time a kernel may be small: without `exec` it is called directly. Others
            // leave it to `launch`, which takes a few nanoseconds more and half the code.
            if data.work.as_const().is_none() && least_work(data.work) < MEDIUM {
                let (tasks, serial) = (e.b.create_block(), e.b.create_block());
                e.b.ins().brif(exec, tasks, &[], serial, &[]);
                e.b.switch_to_block(serial);
                e.b.seal_block(serial);
                let status = direct(e);
                e.b.ins().jump(called, &[status.into()]);
                e.b.switch_to_block(tasks);
                e.b.seal_block(tasks);
            }
            let address = e.b.ins().func_addr(I64, f);
            let work = e.dim(data.work)?;
            let launch = self.local(e, LAUNCH);
            let call = e.b.ins().call(launch, &[address, frame, n, work, exec, ctx]);
            let given = e.b.inst_results(call)[0];
            e.b.ins().jump(called, &[given.into()]);
            e.b.switch_to_block(called);
            e.b.seal_block(called);
            status
        };
        self.leave_if(e, status, k)?;
        e.b.ins().jump(done, &[]);
        e.b.switch_to_block(done);
        e.b.seal_block(done);
        e.scopes = vec![Scope::default()];
        Ok(())
    }
    fn leave_if(&self, e: &mut Emit, status: Value, k: Kernel) -> Result<()> {
        let data = &self.m.kernels[k];
        let at = faults::node(&data.origin, &data.name);
        // Among kernels, only those that make strings run out of memory.
        let full = |s: &Stmt| matches!(s, Stmt::Check { status: Status::Capacity, .. });
        let strings = visit::any(&data.body, &mut |s| full(s));
        e.exit_if(status, |e| {
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
            Ok(())
        })
    }
    /// `launch(kernel, frame, n, work, exec, ctx)`: runs a kernel of `n` iterations and `work` operations,
    /// either directly or as tasks of the caller's `parallel_for`.
    pub(super) fn launch_code(&self, e: &mut Emit, p: &[Value]) -> Result<()> {
        let [kernel, frame, n, work, exec, ctx] = p[..] else {
            return e.bug("launch takes six arguments");
        };
        let zero = e.b.ins().iconst(I64, 0);
        let (has_exec, parallel, serial) = (e.b.create_block(), e.b.create_block(), e.b.create_block());
        e.b.ins().brif(exec, has_exec, &[], serial, &[]);
        e.b.switch_to_block(has_exec);
        let run = self.load(e, exec, 16);
        let most = self.load(e, exec, 24);
        let grain = e.b.ins().iconst(I64, TASK_WORK);
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
    /// Task `i` of `tasks`: iterations `n*i/tasks .. n*(i+1)/tasks`. If several tasks fail, one status is
    /// kept.
    pub(super) fn task(&self, e: &mut Emit, p: &[Value]) {
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
