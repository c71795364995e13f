//! Calls of custom operators: the driver builds an `onnxc_custom` on its stack and passes it to the user's
//! function.

use super::driver::Driver;
use super::entry::{CUSTOMS, DATA_NAMESPACE};
use super::func::Emit;
use crate::codegen::customs::{self, Texts};
use crate::codegen::faults::Check;
use crate::codegen::frame::base_of;
use crate::codegen::header::STATUS;
use crate::diag::Result;
use crate::nest::foreign::symbol;
use crate::nest::{Buf, Foreign, Status};
use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::types::{I32, I64};
use cranelift_codegen::ir::{ExternalName, GlobalValueData, InstBuilder, UserExternalName, Value};

/// Size of `onnxc_custom` in bytes with 64-bit pointers.
const CALL_SIZE: u32 = 72;
/// Size of `onnxc_array` in bytes with 64-bit pointers.
const ARRAY_SIZE: usize = 24;

impl Driver<'_, '_> {
    /// Calls the function of a node.
    pub(super) fn custom(&self, e: &mut Emit, number: u32, f: &Foreign) -> Result<()> {
        let entry = self.entry;
        let Some(c) = entry.m.customs.get(number as usize) else {
            return e.bug(format!("there is no custom operator {number}"));
        };
        let bufs: Vec<Buf> = f.from.iter().chain(&f.to).copied().collect();
        self.refresh(e, &bufs, &[])?;
        if let Some(hook) = self.hook {
            entry.tell(e, [hook, self.exec], (&c.origin, customs::name(c)), false)?;
        }
        let Texts { op, node, attributes } = entry.customs[number as usize];
        let name = e
            .b
            .func
            .declare_imported_user_function(UserExternalName { namespace: DATA_NAMESPACE, index: CUSTOMS });
        let table = e.b.create_global_value(GlobalValueData::Symbol {
            name: ExternalName::user(name),
            offset: 0.into(),
            colocated: true,
            tls: false,
        });
        let table = e.b.ins().symbol_value(I64, table);
        let inputs = self.arrays(e, &c.inputs, &f.from)?;
        let outputs = self.arrays(e, &c.outputs, &f.to)?;
        let call = entry.slot(e, CALL_SIZE);
        let size = e.b.ins().iconst(I64, i64::from(CALL_SIZE));
        let [op, node, attributes] =
            [op, node, attributes].map(|at| e.b.ins().iadd_imm_s(table, i64::from(at)));
        let pair = |e: &mut Emit, a: usize, b: usize| e.b.ins().iconst(I64, (a | b << 32) as i64);
        let operands = pair(e, c.inputs.len(), c.outputs.len());
        let others = pair(e, c.attributes.len(), 0);
        let words = [size, op, node, inputs, outputs, attributes, operands, others, self.exec];
        for (i, v) in words.into_iter().enumerate() {
            entry.store(e, v, call, 8 * i as i32);
        }
        let status = e.call_imported(symbol(&c.symbol), &[call]);
        e.exit_if(status, |e| {
            let shown = e.b.ins().sextend(I64, status);
            // A status code of the interface is returned; any other result is reported as a bad value.
            let before = e.b.ins().iadd_imm_s(shown, -1);
            let known = e.b.ins().icmp_imm_u(IntCC::UnsignedLessThan, before, STATUS.len() as i64);
            let other = e.b.ins().iconst(I32, i64::from(Status::Value as u8));
            let status = e.b.ins().select(known, status, other);
            let text = format!("{} returned %lld", c.symbol);
            let row = Check { status: None, ..Check::new(Status::Value, text) }.with_values(1);
            e.leave(status, row.at((customs::name(c), &c.origin.op)), (vec![shown], None));
            Ok(())
        })?;
        if let Some(hook) = self.hook {
            entry.tell(e, [hook, self.exec], (&c.origin, customs::name(c)), true)?;
        }
        Ok(())
    }
    /// An array of `onnxc_array`, one per operand, with zeros for omitted ones.
    fn arrays(&self, e: &mut Emit, given: &[bool], bufs: &[Buf]) -> Result<Value> {
        let (entry, m) = (self.entry, self.entry.m);
        let list = entry.slot(e, (ARRAY_SIZE * given.len()) as u32);
        let zero = e.b.ins().iconst(I64, 0);
        let mut bufs = bufs.iter().peekable();
        for (k, given) in given.iter().enumerate() {
            let at = (ARRAY_SIZE * k) as i32;
            let Some(b) = bufs.next_if(|_| *given) else {
                (0..3).for_each(|i| entry.store(e, zero, list, at + 8 * i));
                continue;
            };
            let d = &m.bufs[*b];
            let data = match base_of(m, entry.frame, entry.weights, *b) {
                Some((w, o)) => e.b.ins().iadd_imm_s(e.words[&w], o),
                None => return e.bug(format!("buffer {} has no place", d.name)),
            };
            let dims = entry.slot(e, 8 * d.dims.len() as u32);
            for (i, x) in d.dims.iter().enumerate() {
                let v = e.dim(*x)?;
                entry.store(e, v, dims, 8 * i as i32);
            }
            let kind = e.b.ins().iconst(I64, (d.ty as u64 | (d.dims.len() as u64) << 32) as i64);
            for (i, v) in [data, dims, kind].into_iter().enumerate() {
                entry.store(e, v, list, at + 8 * i as i32);
            }
        }
        Ok(list)
    }
}
