//! RISC-V with vectors: groups of two registers of VLEN bits, 14 of which are allocatable, and floating-point
//! registers.
//!
//! A vector has as many lanes as two registers of the level's minimum VLEN, which `vl` is set to. On a CPU
//! with longer registers, the same code uses a part of them.

pub(in crate::codegen) mod code;
mod constants;
mod encode;
mod instructions;
mod memory;
mod order;
mod registers;
mod scalars;
mod select;
pub(in crate::codegen) mod table;

use super::{Machine, Reach};
use crate::codegen::tile::Code;
use crate::codegen::tile::ir::{Class, Form, Func, Node, Op, Value};
use crate::codegen::tile::regalloc::Alloc;
use crate::diag::Result;
use regalloc2::{MachineEnv, Operand, Output, PRegSet, RegClass, VReg};

/// Tiles of RISC-V's vectors, of any length.
pub(super) struct Riscv64;

impl Machine for Riscv64 {
    fn select(&self, f: &mut Func) {
        select::forms(f);
    }
    fn class(&self, c: Class) -> RegClass {
        registers::class(c)
    }
    fn env(&self, _: &Func) -> MachineEnv {
        registers::env()
    }
    fn operands(&self, f: &Func, n: &Node, reg: &dyn Fn(Value) -> VReg) -> Vec<Operand> {
        registers::operands(f, n, reg)
    }
    fn clobbers(&self, op: Op) -> PRegSet {
        registers::clobbers(op)
    }
    fn encode(&self, f: &Alloc, out: &Output) -> Result<Code> {
        encode::encode(f, out)
    }
    fn has_op(&self, op: Op) -> bool {
        table::has_op(op)
    }
    fn has(&self, form: Form, _: bool, _: bool) -> bool {
        !matches!(form, Form::F16 | Form::NearU8)
    }
    fn reach(&self, _: i64, _: bool) -> Option<Reach> {
        // Displacements of 12 bits, those of vectors in an addition.
        Some(Reach { bytes: 1 << 12, before: 1 << 11 })
    }
}
