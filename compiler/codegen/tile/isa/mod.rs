//! What the tile backend needs of a machine. A folder each.

pub(in crate::codegen) mod aarch64;
pub(in crate::codegen) mod riscv64;
mod x86_64;

use super::ir::{Class, Form, Func, Node, Op, Value, Width};
use super::regalloc::Alloc;
use crate::codegen::tile::Code;
use crate::diag::Result;
use regalloc2::{MachineEnv, Operand, Output, PRegSet, RegClass, VReg};

/// What displacements hold.
#[derive(Clone, Copy)]
pub(super) struct Reach {
    /// How many bytes.
    pub bytes: i64,
    /// How many of them before the base.
    pub before: i64,
}

impl Reach {
    /// The base, as a displacement, from which one is reached; these are multiples of what is reached.
    pub fn base(self, displacement: i64) -> i64 {
        (displacement + self.before).div_euclid(self.bytes) * self.bytes
    }
}

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
    /// Registers that an instruction destroys besides its result.
    fn clobbers(&self, _: Op) -> PRegSet {
        PRegSet::empty()
    }
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
    /// The bytes that an access at a displacement reaches from a base at no cost, if displacements do not hold
    /// all: of one element, or of a vector.
    fn reach(&self, displacement: i64, vector: bool) -> Option<Reach>;
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
        Width::Rvv128 | Width::Rvv256 | Width::Rvv512 => &riscv64::Riscv64,
    }
}
