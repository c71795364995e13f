//! Functions with many error exits.

use super::{Isas, MOST_PENDING, most_pending};
use crate::target::Target;
use cranelift_codegen::Context;
use cranelift_codegen::control::ControlPlane;
use cranelift_codegen::ir::types::I64;
use cranelift_codegen::ir::{
    AbiParam, Function, InstBuilder, Signature, StackSlotData, StackSlotKind, UserFuncName,
};
use cranelift_codegen::isa::{CallConv, TargetIsa};
use cranelift_frontend::{FunctionBuilder, FunctionBuilderContext};

/// `auipc t6, 0` and `jalr x0, 8(t6)`: a veneer that leads to the next instruction.
const TO_NEXT: [u8; 8] = [0x97, 0x0f, 0x00, 0x00, 0x67, 0x80, 0x8f, 0x00];

/// Whether a compressed jump of the code leads to the next instruction by a veneer.
fn jumps_by_veneer(code: &[u8]) -> bool {
    let half = |at: usize| u16::from_le_bytes([code[at], code[at + 1]]) as usize;
    let mut at = 0;
    while at + 2 <= code.len() {
        let word = half(at);
        if word & 0xe003 == 0xa001 {
            // c.j: offset[11|4|9:8|10|6|7|3:1|5] in bits 12 to 2.
            let bits = |from: usize, count: usize, to: usize| (word >> from & ((1 << count) - 1)) << to;
            let ahead = bits(11, 1, 4) + bits(9, 2, 8) + bits(8, 1, 10) + bits(7, 1, 6);
            let ahead = ahead + bits(6, 1, 7) + bits(3, 3, 1) + bits(2, 1, 5);
            if word >> 12 & 1 == 0 && code.get(at + ahead..).is_some_and(|c| c.starts_with(&TO_NEXT)) {
                return true;
            }
        }
        at += if word & 3 == 3 { 4 } else { 2 };
    }
    false
}

/// A function with a frame of more than 2 KiB that tests its argument `checks` times, each with an exit of
/// its own.
fn exits(checks: i64) -> Function {
    let mut signature = Signature::new(CallConv::SystemV);
    signature.params.push(AbiParam::new(I64));
    signature.returns.push(AbiParam::new(I64));
    let mut func = Function::with_name_signature(UserFuncName::user(0, 0), signature);
    let mut fcx = FunctionBuilderContext::new();
    let mut b = FunctionBuilder::new(&mut func, &mut fcx);
    let entry = b.create_block();
    b.append_block_params_for_function_params(entry);
    b.switch_to_block(entry);
    let slot = b.create_sized_stack_slot(StackSlotData::new(StackSlotKind::ExplicitSlot, 4096, 3));
    let x = b.block_params(entry)[0];
    b.ins().stack_store(I64, x, slot, 0);
    for i in 0..checks {
        let (bad, go) = (b.create_block(), b.create_block());
        let bit = b.ins().ushr_imm_u(x, i % 64);
        let bit = b.ins().band_imm_u(bit, 1);
        b.ins().brif(bit, bad, &[], go, &[]);
        b.switch_to_block(bad);
        b.set_cold_block(bad);
        let status = b.ins().iconst(I64, i);
        b.ins().return_(&[status]);
        b.switch_to_block(go);
    }
    let x = b.ins().stack_load(I64, I64, slot, 0);
    b.ins().return_(&[x]);
    b.seal_all_blocks();
    let target = riscv();
    b.finalize(target.isa(target.lowest(), false, true).expect("an ISA").frontend_config());
    func
}

fn riscv() -> Target {
    Target::new(Some("riscv64gc-unknown-linux-gnu"), Some("rv64gc")).expect("a target")
}

fn compiled(func: &Function, isa: &dyn TargetIsa) -> Vec<u8> {
    let mut cx = Context::for_function(func.clone());
    cx.compile(isa, &mut ControlPlane::default()).expect("code").buffer.data().to_vec()
}

#[test]
fn jumps_around_islands_need_no_veneers() {
    let target = riscv();
    let isas = Isas::new(&target, target.lowest(), true).expect("code generators");
    for checks in (0..300).step_by(7).chain([500, 1000]) {
        let func = exits(checks);
        for tile in [false, true] {
            let code = compiled(&func, isas.of(&func, tile));
            assert!(!jumps_by_veneer(&code), "{checks} checks");
        }
    }
}

/// Cranelift's fault. If this fails, it is mended, and [`MOST_PENDING`] can go.
#[test]
fn compressed_jumps_around_islands_need_veneers() {
    let target = riscv();
    let isas = Isas::new(&target, target.lowest(), true).expect("code generators");
    let code = compiled(&exits(500), isas.facts());
    assert!(jumps_by_veneer(&code));
}

#[test]
fn short_functions_are_compressed() {
    let target = riscv();
    let isas = Isas::new(&target, target.lowest(), true).expect("code generators");
    let (short, long) = (exits(8), exits(500));
    assert!(most_pending(&short) <= MOST_PENDING && most_pending(&long) > MOST_PENDING);
    assert!(compiled(&short, isas.of(&short, false)).len() < compiled(&short, isas.of(&long, false)).len());
}
