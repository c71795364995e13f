//! Armv8-A with Advanced SIMD: vectors of 128 bits, 32 registers, arithmetic on registers only.

mod bases;
pub(in crate::codegen) mod code;
mod eights;
mod encode;
mod groups;
mod halves;
mod instructions;
mod matrix;
mod memory;
mod near;
mod order;
mod quads;
mod registers;
mod select;
pub(in crate::codegen) mod table;
mod words;

use super::{Machine, Reach, used_otherwise};
use crate::codegen::Set;
use crate::codegen::tile::ir::{Block, Class, Form, Func, Node, Number, Op, Value};
use crate::codegen::tile::regalloc::Alloc;
use crate::codegen::tile::{Code, Stub};
use crate::diag::Result;
use regalloc2::{MachineEnv, Operand, Output, RegClass, VReg};

/// Tiles of Advanced SIMD.
pub(super) struct Aarch64;

impl Machine for Aarch64 {
    fn select(&self, f: &mut Func) {
        if f.in_quads {
            quads::products(f);
        } else {
            matrix::products(f);
        }
        if f.in_words {
            words::products(f);
        }
        if f.halves {
            halves::sums(f);
            eights::pairs(f);
        }
        select::forms(f);
    }
    fn class(&self, c: Class) -> RegClass {
        registers::class(c)
    }
    fn env(&self, f: &Func) -> MachineEnv {
        registers::env(f)
    }
    fn operands(&self, f: &Func, n: &Node, reg: &dyn Fn(Value) -> VReg) -> Vec<Operand> {
        registers::operands(f, n, reg)
    }
    fn encode(&self, f: &Alloc, out: &Output) -> Result<Code> {
        encode::encode(f, out)
    }
    fn stub(&self, literals: &[Number], integers: &[i64]) -> Option<Stub> {
        integers.is_empty().then(|| encode::stub(literals))
    }
    fn has_op(&self, op: Op) -> bool {
        table::has_op(op)
    }
    fn has(&self, form: Form, _: bool, masked: bool) -> bool {
        form != Form::NearU8 && !masked
    }
    fn reach(&self, displacement: i64, vector: bool) -> Option<Reach> {
        let bytes = match vector {
            // Displacements of 12 bits, in elements.
            false => 1 << 12,
            // Pairs have 7 bits, in vectors; unaligned accesses 9 bits, in bytes.
            true if displacement % 16 == 0 => 1 << 10,
            true => 1 << 8,
        };
        Some(Reach { bytes, before: 0 })
    }
    fn unrolls(&self) -> bool {
        true
    }
}

/// Elements of rows: broadcast loads of a form that instructions read as factors only.
fn elements(blocks: &[Block], form: Form, is_factor: &dyn Fn(&Node, usize) -> bool) -> Set<Value> {
    let otherwise = used_otherwise(blocks, is_factor);
    let loads = blocks.iter().flat_map(|b| &b.nodes);
    let loads = loads.filter(|n| n.op == Op::Broadcast(form) && n.args.is_empty());
    loads.filter_map(|n| n.def).filter(|v| !otherwise.contains(v)).collect()
}
