//! x86-64 with 256-bit (AVX2, FMA) and 512-bit (AVX-512 F, BW, DQ, VL) vectors.

mod encode;
mod first_lanes;
mod instructions;
mod registers;
mod select;
mod table;

use super::Machine;
use crate::codegen::tile::ir::{Bits, Class, Form, Func, Node, Number, Op, Value, Width};
use crate::codegen::tile::regalloc::Alloc;
use crate::codegen::tile::{Code, Stub};
use crate::diag::Result;
use regalloc2::{MachineEnv, Operand, Output, PRegSet, RegClass, VReg};

/// Tiles of a vector length.
pub(super) struct X86(pub Width);

impl Machine for X86 {
    fn select(&self, f: &mut Func) {
        // Loads of whole vectors become operands; with AVX-512, those of one element for all lanes as well.
        let lane = if f.long { Bits::B64 } else { Bits::B32 };
        select::forms(&mut f.blocks, lane, f.width == Width::Avx512);
    }
    fn class(&self, c: Class) -> RegClass {
        registers::class(self.0, c)
    }
    fn env(&self, f: &Func) -> MachineEnv {
        registers::env(f)
    }
    fn operands(&self, f: &Func, n: &Node, reg: &dyn Fn(Value) -> VReg) -> Vec<Operand> {
        registers::operands(f, n, reg)
    }
    fn clobbers(&self, op: Op) -> PRegSet {
        registers::clobbers(op)
    }
    fn encode(&self, f: &Alloc, out: &Output) -> Result<Code> {
        encode::encode(self.0, f, out)
    }
    fn stub(&self, literals: &[Number], integers: &[i64]) -> Option<Stub> {
        Some(encode::stub(self.0, literals, integers))
    }
    fn instruction(&self) -> usize {
        6
    }
    fn has_op(&self, op: Op) -> bool {
        table::has_op(op, encode::column(self.0))
    }
    fn has(&self, form: Form, stores: bool, masked: bool) -> bool {
        table::has(form, stores, masked, encode::column(self.0))
    }
    fn folds(&self) -> bool {
        true
    }
    fn indexed(&self) -> bool {
        true
    }
}
