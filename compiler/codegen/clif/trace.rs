//! `--trace`: the driver calls the caller's `on_node` before and after every node (abi/README.md, rule 9).
//!
//! The unit of execution is a kernel. A kernel that computes several nodes is reported as the last of them; a
//! node of several kernels is reported several times. Both calls are made on the thread that called the
//! model.

use super::entry::Entry;
use super::func::Emit;
use crate::codegen::faults::{self, Check};
use crate::diag::{Origin, Result};
use crate::nest::Status;
use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::types::{I32, I64};
use cranelift_codegen::ir::{AbiParam, InstBuilder, Signature, Value};
use target_lexicon::Architecture;

/// Offset of `on_node` in `onnxc_exec`.
const EXEC_ON_NODE: i32 = 32;

impl Entry<'_> {
    /// The caller's `on_node`, or 0.
    pub(super) fn hook(&self, e: &mut Emit, exec: Value) -> Value {
        let (has, done) = (e.b.create_block(), e.b.create_block());
        let hook = e.b.append_block_param(done, I64);
        e.b.ins().brif(exec, has, &[], done, &[exec.into()]);
        e.b.switch_to_block(has);
        e.b.seal_block(has);
        let given = self.load(e, exec, EXEC_ON_NODE);
        e.b.ins().jump(done, &[given.into()]);
        e.b.switch_to_block(done);
        e.b.seal_block(done);
        hook
    }
    /// Calls `on_node` if it is set. A result other than 0 ends the call.
    pub(super) fn tell(
        &self,
        e: &mut Emit,
        [hook, exec]: [Value; 2],
        (origin, name): (&Origin, &str),
        end: bool,
    ) -> Result<()> {
        let Some(node) = self.interface.node_of(origin) else { return Ok(()) };
        let mut sig = Signature::new(self.isa.default_call_conv());
        // RISC-V sign-extends 32-bit arguments, whatever their type.
        let word = if matches!(self.isa.triple().architecture, Architecture::Riscv64(_)) {
            AbiParam::new(I32).sext()
        } else {
            AbiParam::new(I32)
        };
        sig.params = vec![AbiParam::new(I64), word, word];
        sig.returns = vec![AbiParam::new(I32)];
        let sig = e.b.import_signature(sig);
        e.only_if(hook, |e| {
            let user = self.load(e, exec, 8);
            let node = e.b.ins().iconst(I32, i64::from(node));
            let end = e.b.ins().iconst(I32, i64::from(end));
            let call = e.b.ins().call_indirect(sig, hook, &[user, node, end]);
            let status = e.b.inst_results(call)[0];
            e.exit_if(status, |e| {
                let status = e.b.ins().iconst(I32, i64::from(Status::Cancelled as u8));
                let row = Check::new(Status::Cancelled, "on_node stopped the call");
                e.leave(status, row.at(faults::node(origin, name)), (vec![], None));
                Ok(())
            })
        })
    }
    /// Returns an error if the caller's `exec` is smaller than its first version.
    pub(super) fn check_exec(&self, e: &mut Emit, exec: Value) -> Result<()> {
        e.only_if(exec, |e| {
            let size = self.load(e, exec, 0);
            let ok = e.b.ins().icmp_imm_u(IntCC::UnsignedGreaterThanOrEqual, size, EXEC_LEAST);
            let text = "struct_size of the onnxc_exec is %lld: it must be sizeof(onnxc_exec)";
            let row = Check::new(Status::Abi, text).with_values(1);
            e.require_check(ok, row, &mut |_| Ok((vec![size], None)))
        })
    }
}

/// Size of `onnxc_exec` up to and including `on_node`: its first version.
const EXEC_LEAST: i64 = 40;
