//! The interface between the tile backend and a machine, each of which is a folder.

pub(in crate::codegen) mod aarch64;
mod bases;
#[cfg(test)]
mod forms;
pub(in crate::codegen) mod riscv64;
mod x86_64;

use super::ir::{Block, Class, Form, Func, Line, Node, Number, Op, Value, Width};
use super::regalloc::Alloc;
use crate::codegen::tile::{Code, Stub};
use crate::codegen::{Map, Set};
use crate::diag::Result;
use regalloc2::{MachineEnv, Operand, Output, PRegSet, RegClass, VReg};

/// The range of displacements.
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
    /// Legalises and selects the operations of a function.
    fn select(&self, f: &mut Func);
    /// The register class of a kind of value.
    fn class(&self, c: Class) -> RegClass;
    /// The allocatable registers of a function.
    fn env(&self, f: &Func) -> MachineEnv;
    /// The operands of an instruction with their constraints: arguments, memory operand, result.
    fn operands(&self, f: &Func, n: &Node, reg: &dyn Fn(Value) -> VReg) -> Vec<Operand>;
    /// Registers that an instruction clobbers besides its result.
    fn clobbers(&self, _: Op) -> PRegSet {
        PRegSet::empty()
    }
    /// The code of an allocated function.
    fn encode(&self, f: &Alloc, out: &Output) -> Result<Code>;
    /// A function that passes literals to a function with [`Op::Literal`] and [`Op::IntLiteral`]; `None` if
    /// the machine does not have these.
    fn stub(&self, _: &[Number], _: &[i64]) -> Option<Stub> {
        None
    }
    /// Bytes of an instruction, about.
    fn instruction(&self) -> usize {
        4
    }
    /// Whether the machine has an operation.
    fn has_op(&self, op: Op) -> bool;
    /// Whether vectors of a form can be loaded or stored, with or without a mask.
    fn has(&self, form: Form, stores: bool, masked: bool) -> bool;
    /// Whether arithmetic reads its last operand, constants included, from memory.
    fn folds(&self) -> bool {
        false
    }
    /// Whether addresses can be a base plus a counter times the element size.
    fn indexed(&self) -> bool {
        false
    }
    /// The range around a displacement that a single base reaches, if displacements are limited: for single
    /// elements, or for vectors.
    fn reach(&self, _displacement: i64, _vector: bool) -> Option<Reach> {
        None
    }
    /// Whether short loops are unrolled, and loops of vectors unrolled by several vectors: with few elements
    /// per vector, loop overhead is a large part of them.
    fn unrolls(&self) -> bool {
        false
    }
}

/// The machine of a vector length.
pub(super) fn machine(w: Width) -> &'static dyn Machine {
    match w {
        Width::Avx2 => &x86_64::X86(Width::Avx2),
        Width::Avx512 => &x86_64::X86(Width::Avx512),
        Width::Neon => &aarch64::Aarch64,
        Width::Rvv128 | Width::Rvv256 | Width::Rvv512 => &riscv64::Riscv64,
    }
}

/// An instruction without memory operand and literal.
fn node(op: Op, args: Vec<Value>, def: Option<Value>, line: Line) -> Node {
    Node { op, args, mem: None, literal: None, def, line }
}

/// True for stores.
fn stores(n: &Node) -> bool {
    matches!(
        n.op,
        Op::Store(_) | Op::StoreFirst(..) | Op::StoreLane(..) | Op::StoreScalar(_) | Op::StoreStrided(_)
    )
}

/// Number of uses of each value.
fn uses(blocks: &[Block]) -> Map<Value, usize> {
    let mut uses: Map<Value, usize> = Map::default();
    for b in blocks {
        let values = b.nodes.iter().flat_map(Node::values).chain(b.jump_args.iter().copied());
        values.for_each(|v| *uses.entry(v).or_default() += 1);
    }
    uses
}

/// Removes instructions that nothing reads among those that `may_go` accepts, and what only they read.
fn remove_unused(blocks: &mut [Block], may_go: impl Fn(&Node) -> bool) {
    let mut uses = uses(blocks);
    for b in blocks.iter_mut().rev() {
        let mut kept = vec![];
        for n in std::mem::take(&mut b.nodes).into_iter().rev() {
            let unused = n.def.is_some_and(|d| uses.get(&d).is_none_or(|k| *k == 0));
            if unused && may_go(&n) {
                n.values().for_each(|v| *uses.entry(v).or_insert(1) -= 1);
            } else {
                kept.push(n);
            }
        }
        kept.reverse();
        b.nodes = kept;
    }
}

/// Values with a use that `as_wanted` does not accept.
fn used_otherwise(blocks: &[Block], as_wanted: &dyn Fn(&Node, usize) -> bool) -> Set<Value> {
    let mut out = Set::default();
    for b in blocks {
        for n in &b.nodes {
            out.extend(n.args.iter().enumerate().filter(|(i, _)| !as_wanted(n, *i)).map(|(_, v)| *v));
        }
        out.extend(b.jump_args.iter().copied());
    }
    out
}
