//! What the tile backend needs of a machine. A folder each.

pub(in crate::codegen) mod aarch64;
mod x86_64;

use super::ir::{Class, Form, Func, Node, Op, Value, Width};
use super::regalloc::Alloc;
use crate::codegen::tile::Code;
use crate::diag::Result;
use regalloc2::{MachineEnv, Operand, Output, RegClass, VReg};

/// A machine: instruction selection, registers, encoding.
pub(super) trait Machine {
    /// Rewrites operations of a function as the machine has them.
    fn select(&self, f: &mut Func);
    /// The registers that hold a kind of value.
    fn class(&self, c: Class) -> RegClass;
    /// The registers there are.
    fn env(&self) -> MachineEnv;
    /// The operands of an instruction with their constraints: arguments, memory operand, result.
    fn operands(&self, f: &Func, n: &Node, reg: &dyn Fn(Value) -> VReg) -> Vec<Operand>;
    /// The code of an allocated function.
    fn encode(&self, f: &Alloc, out: &Output) -> Result<Code>;
    /// Whether there are instructions for an operation.
    fn has_op(&self, op: Op) -> bool;
    /// Whether vectors of a form can be loaded or stored, under a mask or without.
    fn has(&self, form: Form, stores: bool, masked: bool) -> bool;
    /// Whether arithmetic reads its last operand from memory, constants among them.
    fn folds(&self) -> bool;
    /// Whether accesses add a counter times the size of an element to a base.
    fn indexed(&self) -> bool;
    /// Bytes from a base that an access at a displacement reaches at no cost, if displacements do not hold
    /// all: of one element, or of a vector.
    fn reach(&self, displacement: i64, vector: bool) -> Option<i64>;
    /// Whether short loops are written out, and several vectors taken in an iteration: where vectors have few
    /// elements, what counts the iterations is a large part of them.
    fn unrolls(&self) -> bool;
}

/// The machine that has vectors of a length.
pub(super) fn machine(w: Width) -> &'static dyn Machine {
    match w {
        Width::Avx2 => &x86_64::X86(Width::Avx2),
        Width::Avx512 => &x86_64::X86(Width::Avx512),
        Width::Neon => &aarch64::Aarch64,
    }
}
