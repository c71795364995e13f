//! `call` of an object with code for several CPU levels: it calls the last level whose features the CPU has.
//! If the CPU lacks the first level, the call fails, unless every CPU of the architecture has that level.

use super::entry::{CALL_OF, CPU_LEVEL, CPU_LEVEL_WORD, DATA_NAMESPACE, Entry};
use super::func::Emit;
use crate::codegen::faults::Check;
use crate::diag::Result;
use crate::nest::Status;
use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::types::{I32, I64};
use cranelift_codegen::ir::{ExternalName, GlobalValueData, InstBuilder, UserExternalName, Value};

impl Entry<'_> {
    /// Detects the CPU and calls `call` of its level. Detection runs once, because in a virtual machine it
    /// takes microseconds.
    ///
    /// The result is cached in a word of the object, which is 0 until then. Concurrent threads write the same
    /// value, and aligned words are written atomically, so calls stay re-entrant.
    pub(super) fn dispatch(&self, e: &mut Emit, p: &[Value]) -> Result<()> {
        let name = e.b.func.declare_imported_user_function(UserExternalName {
            namespace: DATA_NAMESPACE,
            index: CPU_LEVEL_WORD,
        });
        let word = e.b.func.create_global_value(GlobalValueData::Symbol {
            name: ExternalName::user(name),
            offset: 0.into(),
            colocated: true,
            tls: false,
        });
        let word = e.b.ins().symbol_value(I64, word);
        let flags = e.flags();
        let known = e.b.ins().load(I32, flags, word, 0);
        let (ask, go) = (e.b.create_block(), e.b.create_block());
        let has = e.b.append_block_param(go, I32);
        e.b.ins().brif(known, go, &[known.into()], ask, &[]);
        e.b.switch_to_block(ask);
        e.b.set_cold_block(ask);
        let f = self.local(e, CPU_LEVEL);
        let call = e.b.ins().call(f, &[]);
        let answer = e.b.inst_results(call)[0];
        e.b.ins().store(flags, answer, word, 0);
        e.b.ins().jump(go, &[answer.into()]);
        e.b.switch_to_block(go);
        for (v, needs) in self.needs.iter().enumerate().skip(1).rev() {
            let (here, below) = (e.b.create_block(), e.b.create_block());
            let needs = e.b.ins().iconst(I32, i64::from(*needs));
            let found = e.b.ins().band(has, needs);
            let all = e.b.ins().icmp(IntCC::Equal, found, needs);
            e.b.ins().brif(all, here, &[], below, &[]);
            e.b.switch_to_block(here);
            self.leave_with(e, v, p);
            e.b.switch_to_block(below);
        }
        if let (Some(level), Some(needs), Some(exec)) = (self.refuses, self.needs.first(), p.last()) {
            e.open_sink(*exec, &self.checks);
            let needs = e.b.ins().iconst(I32, i64::from(*needs));
            let found = e.b.ins().band(has, needs);
            let ok = e.b.ins().icmp(IntCC::Equal, found, needs);
            e.require_plain(
                ok,
                Check::new(
                    Status::Cpu,
                    format!("the CPU lacks instructions of {level}, which the code needs"),
                ),
            )?;
        }
        self.leave_with(e, 0, p);
        Ok(())
    }
    fn leave_with(&self, e: &mut Emit, variant: usize, p: &[Value]) {
        let f = self.local(e, CALL_OF + variant as u32);
        let call = e.b.ins().call(f, p);
        let r = e.b.inst_results(call)[0];
        e.b.ins().return_(&[r]);
    }
}
