//! Error exits of `call`. Every check has a cold block, which passes the check's number and values to one
//! block that fills the caller's `onnxc_fault` and returns. Successful calls execute none of this. Kernels
//! return only a status; the driver adds the kernel.

use super::func::Emit;
use crate::codegen::faults::{Check, Checks, VALUES, general};
use crate::diag::Result;
use crate::nest::Status;
use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::types::{I32, I64};
use cranelift_codegen::ir::{Block, BlockArg, InstBuilder, Value};
use std::cell::RefCell;
use std::rc::Rc;

/// Size of `onnxc_exec` up to and including `fault`. Smaller ones have neither a fault nor a workspace size.
pub const EXEC_SIZE: i64 = 56;
/// Offsets in `onnxc_exec`.
pub const EXEC_WORKSPACE: i32 = 40;
const EXEC_FAULT: i32 = 48;

/// The error exit of a function with an `exec`.
pub struct Sink {
    block: Block,
    /// Passes on a status and a check number without values, which most checks lack.
    plain: Block,
    exec: Value,
    checks: Rc<RefCell<Checks>>,
    /// Name and operator of the node to which general checks are attributed.
    pub near: (String, String),
}

/// What a cold block reports: the values of the check, and the workspace size in bytes that would have
/// sufficed up to here.
pub type Told = (Vec<Value>, Option<Value>);

impl Emit<'_, '_> {
    /// Enables fault reports from here on.
    pub fn open_sink(&mut self, exec: Value, checks: &Rc<RefCell<Checks>>) {
        let block = self.b.create_block();
        [I32, I32].into_iter().chain([I64; VALUES + 1]).for_each(|t| {
            self.b.append_block_param(block, t);
        });
        let plain = self.b.create_block();
        [I32, I32].into_iter().for_each(|t| {
            self.b.append_block_param(plain, t);
        });
        self.sink = Some(Sink { block, plain, exec, checks: checks.clone(), near: Default::default() });
    }
    /// Returns an error unless `ok` (an i8 truth value). The code of `told` is emitted in the failing path
    /// only.
    pub fn require_check(
        &mut self,
        ok: Value,
        check: Check,
        told: &mut dyn FnMut(&mut Self) -> Result<Told>,
    ) -> Result<()> {
        let status = check.status.unwrap_or(Status::Value);
        if self.sink.is_none() {
            self.require_status(ok, status);
            return Ok(());
        }
        // The exit is the first successor, as in loops.
        let fails = self.b.ins().icmp_imm_s(IntCC::Equal, ok, 0);
        self.exit_if(fails, |e| {
            e.push();
            let told = told(e)?;
            e.pop();
            let status = e.b.ins().iconst(I32, i64::from(status as u8));
            e.leave(status, check, told);
            Ok(())
        })
    }
    /// As [`Self::require_check`], without values.
    pub fn require_plain(&mut self, ok: Value, check: Check) -> Result<()> {
        self.require_check(ok, check, &mut |_| Ok((vec![], None)))
    }
    /// A check of the current node that reports no more than the status.
    pub fn require(&mut self, ok: Value, s: Status) {
        let Some(sink) = &self.sink else { return self.require_status(ok, s) };
        let check = Check::new(s, general(s)).at((&sink.near.0, &sink.near.1));
        // Without values there is no error.
        let _ = self.require_plain(ok, check);
    }
    /// Ends the block: the call returns `status` because of this check.
    pub fn leave(&mut self, status: Value, check: Check, (values, needed): Told) {
        let Some(sink) = &self.sink else {
            self.b.ins().return_(&[status]);
            return;
        };
        let (block, plain, number) = (sink.block, sink.plain, sink.checks.borrow_mut().add(check));
        let number = self.b.ins().iconst(I32, i64::from(number));
        if values.is_empty() && needed.is_none() {
            self.b.ins().jump(plain, &[status.into(), number.into()]);
        } else {
            self.jump_to_sink(block, [status, number], (values, needed));
        }
    }
    /// Passes the values, padded with zeros.
    fn jump_to_sink(&mut self, block: Block, known: [Value; 2], (values, needed): Told) {
        let mut args: Vec<Value> = known.into_iter().chain(values.into_iter().take(VALUES)).collect();
        while args.len() < known.len() + VALUES {
            args.push(self.b.ins().iconst(I64, 0));
        }
        args.push(match needed {
            Some(v) => v,
            None => self.b.ins().iconst(I64, 0),
        });
        let args: Vec<BlockArg> = args.into_iter().map(BlockArg::from).collect();
        self.b.ins().jump(block, &args);
    }
    /// Writes the block that fills the fault.
    pub fn close_sink(&mut self) {
        let Some(sink) = self.sink.take() else { return };
        self.b.switch_to_block(sink.plain);
        self.b.set_cold_block(sink.plain);
        let p = self.b.block_params(sink.plain).to_vec();
        self.jump_to_sink(sink.block, [p[0], p[1]], (vec![], None));
        self.b.switch_to_block(sink.block);
        self.b.set_cold_block(sink.block);
        let p = self.b.block_params(sink.block).to_vec();
        let (has, large, write, out) =
            (self.b.create_block(), self.b.create_block(), self.b.create_block(), self.b.create_block());
        self.b.ins().brif(sink.exec, has, &[], out, &[]);
        for b in [has, large, write, out] {
            self.b.set_cold_block(b);
        }
        let flags = self.flags();
        self.b.switch_to_block(has);
        let size = self.b.ins().load(I64, flags, sink.exec, 0);
        let known = self.b.ins().icmp_imm_u(IntCC::UnsignedGreaterThanOrEqual, size, EXEC_SIZE);
        self.b.ins().brif(known, large, &[], out, &[]);
        self.b.switch_to_block(large);
        let fault = self.b.ins().load(I64, flags, sink.exec, EXEC_FAULT);
        self.b.ins().brif(fault, write, &[], out, &[]);
        self.b.switch_to_block(write);
        // onnxc_fault: check, status, values, workspace_size.
        self.b.ins().store(flags, p[1], fault, 0);
        self.b.ins().store(flags, p[0], fault, 4);
        for (k, v) in p[2..].iter().enumerate() {
            self.b.ins().store(flags, *v, fault, 8 + 8 * k as i32);
        }
        self.b.ins().jump(out, &[]);
        self.b.switch_to_block(out);
        self.b.ins().return_(&[p[0]]);
    }
}
