//! Register allocation for selected instructions, by regalloc2.

use super::ir::{Block, Func, Node, Op, Value, Width};
use super::isa::Machine;
use super::moves;
use crate::diag::{Failure, Result};
use crate::target::Adjacent;
use regalloc2::{Inst, InstOrEdit, InstRange, Operand, Output, PRegSet, RegClass, RegallocOptions, VReg};

/// A function in the representation of regalloc2.
pub(super) struct Alloc {
    pub nodes: Vec<Node>,
    ranges: Vec<InstRange>,
    operands: Vec<Vec<Operand>>,
    clobbers: Vec<PRegSet>,
    pub blocks: Vec<Block>,
    /// See [`Func::long`].
    pub long: bool,
    /// See [`Func::adjacent`].
    pub adjacent: Adjacent,
    /// See [`Func::width`].
    pub width: Width,
    succs: Vec<Vec<regalloc2::Block>>,
    preds: Vec<Vec<regalloc2::Block>>,
    params: Vec<Vec<VReg>>,
    jump_args: Vec<Vec<VReg>>,
    values: usize,
    vector_slots: usize,
}

impl regalloc2::Function for Alloc {
    fn num_insts(&self) -> usize {
        self.nodes.len()
    }
    fn num_blocks(&self) -> usize {
        self.blocks.len()
    }
    fn entry_block(&self) -> regalloc2::Block {
        regalloc2::Block::new(0)
    }
    fn block_insns(&self, b: regalloc2::Block) -> InstRange {
        self.ranges[b.index()]
    }
    fn block_succs(&self, b: regalloc2::Block) -> &[regalloc2::Block] {
        &self.succs[b.index()]
    }
    fn block_preds(&self, b: regalloc2::Block) -> &[regalloc2::Block] {
        &self.preds[b.index()]
    }
    fn block_params(&self, b: regalloc2::Block) -> &[VReg] {
        &self.params[b.index()]
    }
    fn is_ret(&self, i: Inst) -> bool {
        matches!(self.nodes[i.index()].op, Op::Ret | Op::RetAny)
    }
    fn is_branch(&self, i: Inst) -> bool {
        matches!(self.nodes[i.index()].op, Op::Jump | Op::BranchLess(_))
    }
    fn branch_blockparams(&self, b: regalloc2::Block, _: Inst, _: usize) -> &[VReg] {
        &self.jump_args[b.index()]
    }
    fn inst_operands(&self, i: Inst) -> &[Operand] {
        &self.operands[i.index()]
    }
    fn inst_clobbers(&self, i: Inst) -> PRegSet {
        self.clobbers[i.index()]
    }
    fn num_vregs(&self) -> usize {
        self.values
    }
    fn spillslot_size(&self, c: RegClass) -> usize {
        if c == RegClass::Float { self.vector_slots } else { 1 }
    }
}

impl Alloc {
    /// True if a block consists of a jump only, so that branches to it may be threaded.
    pub(super) fn is_empty(&self, out: &Output, b: usize) -> bool {
        let mut it = out.block_insts_and_edits(self, regalloc2::Block::new(b));
        let (Some(InstOrEdit::Inst(i)), None) = (it.next(), it.next()) else { return false };
        self.nodes[i.index()].op == Op::Jump
    }
    /// The final target of a branch to a block.
    pub(super) fn target(&self, out: &Output, mut b: usize) -> usize {
        while self.is_empty(out, b) {
            b = self.blocks[b].succs[0];
        }
        b
    }
}

/// Allocates registers for selected instructions.
pub(super) fn allocate(mut f: Func, machine: &dyn Machine) -> Result<(Alloc, Output)> {
    let env = machine.env(&f);
    let blocks = std::mem::take(&mut f.blocks);
    let alloc = operands(&f, blocks, machine);
    let options = RegallocOptions { validate_ssa: cfg!(debug_assertions), ..Default::default() };
    let mut out = regalloc2::run(&alloc, &env, &options)
        .map_err(|e| Failure::bug("register allocation of a tile", format!("{e:?}")))?;
    moves::remove_redundant(&alloc, &env, &mut out);
    Ok((alloc, out))
}

fn operands(f: &Func, blocks: Vec<Block>, machine: &dyn Machine) -> Alloc {
    let reg = |v: Value| VReg::new(v.0 as usize, machine.class(f.classes[v.0 as usize]));
    let (mut nodes, mut ranges, mut operands) = (vec![], vec![], vec![]);
    for b in &blocks {
        let start = Inst::new(nodes.len());
        for n in &b.nodes {
            operands.push(machine.operands(f, n, &reg));
            nodes.push(n.clone());
        }
        ranges.push(InstRange::new(start, Inst::new(nodes.len())));
    }
    let numbers = |v: &[usize]| v.iter().map(|b| regalloc2::Block::new(*b)).collect();
    Alloc {
        succs: blocks.iter().map(|b| numbers(&b.succs)).collect(),
        preds: blocks.iter().map(|b| numbers(&b.preds)).collect(),
        params: blocks.iter().map(|b| b.params.iter().map(|p| reg(*p)).collect()).collect(),
        jump_args: blocks.iter().map(|b| b.jump_args.iter().map(|p| reg(*p)).collect()).collect(),
        clobbers: nodes.iter().map(|n| machine.clobbers(n.op)).collect(),
        nodes,
        ranges,
        operands,
        blocks,
        long: f.long,
        adjacent: f.adjacent,
        width: f.width,
        values: f.classes.len(),
        vector_slots: f.width.bytes() as usize / 8,
    }
}
