//! Registers: allocatable ones, callee-saved ones, and constraints of instructions.

use super::table::may_read_memory;
use crate::codegen::tile::ir::{Class, Func, Literal, Node, Op, Value, Width};
use regalloc2::{
    MachineEnv, Operand, OperandConstraint, OperandKind, OperandPos, PReg, PRegSet, RegClass, VReg,
};

/// rdi, rsi, rdx, rcx, r8, r9: registers of parameters (System V).
const PARAM_REGS: [usize; 6] = [7, 6, 2, 1, 8, 9];
/// The registers of divisions.
const RAX: usize = 0;
const RDX: usize = 2;
/// rbx, r12 .. r15: callee-saved. rbp is the frame pointer.
pub(super) const SAVED: [usize; 5] = [3, 12, 13, 14, 15];

/// rax, rcx, rdx, rsi, rdi, r8 .. r10, and at last the register of passed literals.
const FREE: [usize; 9] = [0, 1, 2, 6, 7, 8, 9, 10, LITERALS];
/// r11: holds the address of the literals in functions to which they are passed.
pub(super) const LITERALS: usize = 11;

/// The register class of a kind of value: masks are vectors if there are no mask registers.
pub(super) fn class(w: Width, c: Class) -> RegClass {
    match (c, w) {
        (Class::Int, _) => RegClass::Int,
        (Class::Mask, Width::Avx512) => RegClass::Vector,
        _ => RegClass::Float,
    }
}

/// The allocatable registers of a function.
pub(super) fn env(f: &Func) -> MachineEnv {
    let set = |r: &[usize], c| r.iter().fold(PRegSet::empty(), |s, i| s.with(PReg::new(*i, c)));
    let vectors: Vec<usize> = (0..f.width.registers()).collect();
    let none = PRegSet::empty();
    let is_passed = f.blocks.iter().flat_map(|b| &b.nodes).any(|n| {
        matches!(n.op, Op::Literal(..) | Op::IntLiteral(_))
            || matches!(n.literal, Some(Literal::Passed(..) | Literal::Integer(_)))
    });
    let free: &[usize] = if is_passed { &FREE[..FREE.len() - 1] } else { &FREE };
    MachineEnv {
        preferred_regs_by_class: [
            set(free, RegClass::Int),
            set(&vectors, RegClass::Float),
            set(&[1, 2, 3, 4, 5, 6, 7], RegClass::Vector),
        ],
        non_preferred_regs_by_class: [set(&SAVED, RegClass::Int), none, none],
        scratch_by_class: [None; 3],
        fixed_stack_slots: vec![],
    }
}

/// Registers that an instruction clobbers besides its result.
pub(super) fn clobbers(op: Op) -> PRegSet {
    let none = PRegSet::empty();
    if op == Op::Quotient { none.with(PReg::new(RDX, RegClass::Int)) } else { none }
}

/// The operands of an instruction, in the order in which `encode` reads their registers: arguments, base and
/// index of the memory operand, result.
pub(super) fn operands(f: &Func, n: &Node, reg: &dyn Fn(Value) -> VReg) -> Vec<Operand> {
    let mut o: Vec<Operand> = n.args.iter().map(|v| Operand::reg_use(reg(*v))).collect();
    match n.op {
        Op::Args => {
            o = f
                .params
                .iter()
                .zip(PARAM_REGS)
                .map(|(v, r)| Operand::reg_fixed_def(reg(*v), PReg::new(r, RegClass::Int)))
                .collect()
        }
        // The dividend and the quotient are in rax, its upper half and the remainder in rdx.
        Op::Quotient => {
            o = n.args.iter().map(|v| Operand::reg_use_at_end(reg(*v))).collect();
            if let (Some(x), Some(v)) = (o.first_mut(), n.args.first()) {
                *x = Operand::reg_fixed_use(reg(*v), PReg::new(RAX, RegClass::Int));
            }
        }
        // The result is written before they are read.
        Op::Gather(_) => {
            o = n.args.iter().map(|v| Operand::reg_use_at_end(reg(*v))).collect();
            // QEMU 7.2 interprets ymm4 as "no index", as in general addressing.
            if let (Width::Avx2, Some(x), Some(v)) = (f.width, o.first_mut(), n.args.first()) {
                *x = Operand::new(
                    reg(*v),
                    OperandConstraint::FixedReg(PReg::new(15, RegClass::Float)),
                    OperandKind::Use,
                    OperandPos::Late,
                );
            }
        }
        // The last source may stay in its spill slot.
        op if may_read_memory(op) && n.mem.is_none() && n.literal.is_none() => {
            if let (Some(x), Some(v)) = (o.last_mut(), n.args.last()) {
                *x = Operand::any_use(reg(*v));
            }
        }
        _ => {}
    }
    if let Some(m) = &n.mem {
        o.push(if matches!(n.op, Op::Gather(_)) {
            Operand::reg_use_at_end(reg(m.base))
        } else {
            Operand::reg_use(reg(m.base))
        });
        if let Some((i, _)) = m.index {
            o.push(Operand::reg_use(reg(i)));
        }
    }
    if let Some(d) = n.def {
        o.push(match n.op {
            Op::Quotient => Operand::reg_fixed_def(reg(d), PReg::new(RAX, RegClass::Int)),
            // An addition of an operand in memory overwrites the other one.
            Op::Add if n.literal.is_some() => Operand::reg_reuse_def(reg(d), 0),
            Op::Fma231 { .. }
            | Op::Fma213 { .. }
            | Op::Dot(_)
            | Op::Dot2
            | Op::Permute2
            | Op::PermuteWords2
            | Op::AndImm(_)
            | Op::Mul
            | Op::ShrImm(_)
            | Op::Lesser
            | Op::Greater => Operand::reg_reuse_def(reg(d), 0),
            _ => Operand::reg_def(reg(d)),
        });
    }
    o
}
