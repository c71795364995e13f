//! Instruction forms, then registers by regalloc2.

use super::ir::{Block, Class, Form, Func, Node, Op, REGISTER_PARAMS, Value, Width};
use crate::codegen::Map;
use crate::diag::{Failure, Result};
use regalloc2::{Inst, InstRange, MachineEnv, Operand, OperandConstraint, OperandKind, OperandPos, Output, PReg, PRegSet, RegClass, RegallocOptions, VReg};

/// rdi, rsi, rdx, rcx, r8, r9: where the first parameters arrive (System V).
const PARAM_REGS: [usize; REGISTER_PARAMS] = [7, 6, 2, 1, 8, 9];
/// rbx, r12 .. r15: what a function must restore. rbp is the frame's.
pub(super) const SAVED: [usize; 5] = [3, 12, 13, 14, 15];

/// A function as regalloc2 sees it.
pub(super) struct Alloc {
    pub nodes: Vec<Node>,
    ranges: Vec<InstRange>,
    operands: Vec<Vec<Operand>>,
    pub blocks: Vec<Block>,
    /// See [`Func::long`].
    pub long: bool,
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
    fn inst_clobbers(&self, _: Inst) -> PRegSet {
        PRegSet::empty()
    }
    fn num_vregs(&self) -> usize {
        self.values
    }
    fn spillslot_size(&self, c: RegClass) -> usize {
        if c == RegClass::Float { self.vector_slots } else { 1 }
    }
}

fn reg_class(w: Width, c: Class) -> RegClass {
    match (c, w) {
        (Class::Int, _) => RegClass::Int,
        (Class::Mask, Width::Avx512) => RegClass::Vector,
        _ => RegClass::Float,
    }
}

/// Chooses forms and registers.
pub(super) fn allocate(f: &Func) -> Result<(Alloc, Output)> {
    let mut f = f.clone();
    super::consts::place(&mut f);
    let mut blocks = std::mem::take(&mut f.blocks);
    select_forms(&mut blocks, if f.long { Form::Double } else { Form::Whole });
    let alloc = operands(&f, blocks);
    let set = |r: &[usize], c| r.iter().fold(PRegSet::empty(), |s, i| s.with(PReg::new(*i, c)));
    let vectors: Vec<usize> = (0..if f.width == Width::Avx512 { 32 } else { 16 }).collect();
    let none = PRegSet::empty();
    let env = MachineEnv {
        preferred_regs_by_class: [set(&[0, 1, 2, 6, 7, 8, 9, 10, 11], RegClass::Int), set(&vectors, RegClass::Float), set(&[1, 2, 3, 4, 5, 6, 7], RegClass::Vector)],
        non_preferred_regs_by_class: [set(&SAVED, RegClass::Int), none, none],
        scratch_by_class: [None; 3],
        fixed_stack_slots: vec![],
    };
    let options = RegallocOptions { validate_ssa: cfg!(debug_assertions), ..Default::default() };
    let out = regalloc2::run(&alloc, &env, &options).map_err(|e| Failure::bug("register allocation of a tile", format!("{e:?}")))?;
    Ok((alloc, out))
}

/// Folds loads of whole vectors (those of `form`) that are used once into their consumer; chooses FMA forms by which input
/// dies.
fn select_forms(blocks: &mut [Block], form: Form) {
    let mut uses: Map<Value, (usize, usize)> = Map::default();
    let mut defined: Map<Value, usize> = Map::default();
    let mut at = 0;
    for (i, b) in blocks.iter().enumerate() {
        b.params.iter().for_each(|p| {
            defined.insert(*p, i);
        });
        let mut used = |v: Value, at: usize| {
            let u = uses.entry(v).or_default();
            *u = (u.0 + 1, at);
        };
        for n in &b.nodes {
            n.args.iter().for_each(|v| used(*v, at));
            if let Some(m) = &n.mem {
                used(m.base, at);
                if let Some((x, _)) = m.index {
                    used(x, at);
                }
            }
            if let Some(d) = n.def {
                defined.insert(d, i);
            }
            at += 1;
        }
        b.jump_args.iter().for_each(|v| used(*v, at));
    }
    at = 0;
    for (bi, b) in blocks.iter_mut().enumerate() {
        // Loads since the last store that a consumer may take over.
        let mut loads: Map<Value, usize> = Map::default();
        let mut gone = vec![];
        for i in 0..b.nodes.len() {
            let dies = |v: Value| uses.get(&v).is_some_and(|u| u.1 == at + i) && defined.get(&v) == Some(&bi);
            if let (Op::Fma { neg, bits }, &[x, y, z]) = (b.nodes[i].op, b.nodes[i].args.as_slice()) {
                let (op, args) = if !dies(z) && dies(x) {
                    (Op::Fma213 { neg, bits }, vec![x, y, z])
                } else if !dies(z) && dies(y) {
                    (Op::Fma213 { neg, bits }, vec![y, x, z])
                } else {
                    (Op::Fma231 { neg, bits }, vec![z, x, y])
                };
                b.nodes[i].op = op;
                b.nodes[i].args = args;
            }
            if let (Op::Fma { neg, bits }, &[x, y]) = (b.nodes[i].op, b.nodes[i].args.as_slice()) {
                b.nodes[i].op = Op::Fma213 { neg, bits };
                b.nodes[i].args = if !dies(x) && dies(y) { vec![y, x] } else { vec![x, y] };
            }
            match b.nodes[i].op {
                Op::Load(f) if f == form && b.nodes[i].args.is_empty() => {
                    if let Some(d) = b.nodes[i].def {
                        loads.insert(d, i);
                    }
                }
                Op::Store(_) | Op::StoreScalar(_) | Op::StoreLane(..) | Op::Scatter(_) => loads.clear(),
                Op::Bin(..) | Op::Fma231 { .. } | Op::Fma213 { .. } | Op::Dot | Op::Dot2 if b.nodes[i].literal.is_none() => {
                    let last = b.nodes[i].args.last().copied();
                    if let Some((v, l)) = last.and_then(|v| Some((v, *loads.get(&v)?)))
                        && uses.get(&v).is_some_and(|u| u.0 == 1)
                    {
                        b.nodes[i].args.pop();
                        b.nodes[i].mem = b.nodes[l].mem;
                        gone.push(l);
                    }
                }
                _ => {}
            }
        }
        at += b.nodes.len();
        let mut i = 0;
        b.nodes.retain(|_| {
            i += 1;
            !gone.contains(&(i - 1))
        });
    }
}

fn operands(f: &Func, blocks: Vec<Block>) -> Alloc {
    let reg = |v: Value| VReg::new(v.0 as usize, reg_class(f.width, f.classes[v.0 as usize]));
    let (mut nodes, mut ranges, mut operands) = (vec![], vec![], vec![]);
    for b in &blocks {
        let start = Inst::new(nodes.len());
        for n in &b.nodes {
            let mut o: Vec<Operand> = n.args.iter().map(|v| Operand::reg_use(reg(*v))).collect();
            match n.op {
                Op::Args => o = f.params.iter().zip(PARAM_REGS).map(|(v, r)| Operand::reg_fixed_def(reg(*v), PReg::new(r, RegClass::Int))).collect(),
                // The result is written before they are read.
                Op::Gather(_) => {
                    o = n.args.iter().map(|v| Operand::reg_use_at_end(reg(*v))).collect();
                    // QEMU takes ymm4 for no index at all (7.2 does), as it would be among general registers.
                    if let (Width::Avx2, Some(x), Some(v)) = (f.width, o.first_mut(), n.args.first()) {
                        *x = Operand::new(reg(*v), OperandConstraint::FixedReg(PReg::new(15, RegClass::Float)), OperandKind::Use, OperandPos::Late);
                    }
                }
                // The last source may stay in its spill slot.
                Op::Bin(..) | Op::Fma231 { .. } | Op::Fma213 { .. } | Op::Dot | Op::Dot2 if n.mem.is_none() && n.literal.is_none() => {
                    if let (Some(x), Some(v)) = (o.last_mut(), n.args.last()) {
                        *x = Operand::any_use(reg(*v));
                    }
                }
                _ => {}
            }
            if let Some(m) = &n.mem {
                o.push(if matches!(n.op, Op::Gather(_)) { Operand::reg_use_at_end(reg(m.base)) } else { Operand::reg_use(reg(m.base)) });
                if let Some((i, _)) = m.index {
                    o.push(Operand::reg_use(reg(i)));
                }
            }
            if let Some(d) = n.def {
                o.push(match n.op {
                    Op::Fma231 { .. } | Op::Fma213 { .. } | Op::Dot | Op::Dot2 | Op::AndImm(_) | Op::Lesser | Op::Greater => Operand::reg_reuse_def(reg(d), 0),
                    _ => Operand::reg_def(reg(d)),
                });
            }
            operands.push(o);
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
        nodes,
        ranges,
        operands,
        blocks,
        long: f.long,
        values: f.classes.len(),
        vector_slots: f.width.bytes() as usize / 8,
    }
}
