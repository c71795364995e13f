//! Registers: allocatable ones, callee-saved ones, and constraints of instructions (AAPCS64).
//!
//! x16 and x17 are scratch registers of the encoder. x18 is reserved by the platform, x29 by the frame chain,
//! x30 holds the return address. x15 holds the address of the literals in functions to which they are passed.

use crate::codegen::tile::ir::{Bin, Class, Func, Node, Op, Value};
use regalloc2::{
    MachineEnv, Operand, OperandConstraint, OperandKind, OperandPos, PReg, PRegSet, RegClass, VReg,
};

/// x19 .. x28: callee-saved.
pub(super) const SAVED: std::ops::RangeInclusive<usize> = 19..=28;
/// v8 .. v15, whose lower halves are callee-saved.
pub(super) const SAVED_VECTORS: std::ops::RangeInclusive<usize> = 8..=15;

/// The register with the address of the literals that the caller passes.
pub(super) const LITERALS: u32 = 15;

/// The register class of a kind of value: masks are vectors.
pub(super) fn class(c: Class) -> RegClass {
    match c {
        Class::Int => RegClass::Int,
        Class::Vector | Class::Mask => RegClass::Float,
    }
}

/// The allocatable registers of a function.
pub(super) fn env(f: &Func) -> MachineEnv {
    fn set(r: impl Iterator<Item = usize>, c: RegClass) -> PRegSet {
        r.fold(PRegSet::empty(), |s, i| s.with(PReg::new(i, c)))
    }
    let none = PRegSet::empty();
    let is_passed = f.blocks.iter().flat_map(|b| &b.nodes).any(|n| matches!(n.op, Op::Literal(..)));
    let temporaries = LITERALS as usize + usize::from(!is_passed);
    MachineEnv {
        preferred_regs_by_class: [
            set(0..temporaries, RegClass::Int),
            set((0..32).filter(|r| !SAVED_VECTORS.contains(r)), RegClass::Float),
            none,
        ],
        non_preferred_regs_by_class: [set(SAVED, RegClass::Int), set(SAVED_VECTORS, RegClass::Float), none],
        scratch_by_class: [None; 3],
        fixed_stack_slots: vec![],
    }
}

/// The argument that an instruction overwrites with its result.
pub(super) fn overwrites(op: Op) -> Option<usize> {
    match op {
        Op::Fma231 { .. }
        | Op::FmaLane { .. }
        | Op::FmaHalves { .. }
        | Op::Dot(_)
        | Op::DotLane { .. }
        | Op::AddMulBytes { .. }
        | Op::AddPairs(_)
        | Op::BytesInto
        | Op::MatrixDot { .. } => Some(0),
        Op::SelectInto(_, k) => Some(usize::from(k)),
        _ => None,
    }
}

/// The operands of an instruction, in the order in which `encode` reads their registers: arguments, base and
/// index of the memory operand, result.
pub(super) fn operands(f: &Func, n: &Node, reg: &dyn Fn(Value) -> VReg) -> Vec<Operand> {
    let mut o: Vec<Operand> = match n.op {
        Op::Args => f
            .params
            .iter()
            .take(f.width.register_params())
            .enumerate()
            .map(|(i, v)| Operand::reg_fixed_def(reg(*v), PReg::new(i, RegClass::Int)))
            .collect(),
        // Expands to two instructions, the first of which writes the result.
        Op::Bin(Bin::Min | Bin::Max | Bin::Shr | Bin::Sar, _) => {
            n.args.iter().map(|v| Operand::reg_use_at_end(reg(*v))).collect()
        }
        // The register with the lane has a field of four bits.
        Op::FmaHalves { .. } | Op::MulHalves { .. } => {
            let last = n.args.len() - 1;
            let limit =
                |i: usize| if i == last { OperandConstraint::Limit(16) } else { OperandConstraint::Reg };
            let one = |(i, v): (usize, &Value)| {
                Operand::new(reg(*v), limit(i), OperandKind::Use, OperandPos::Early)
            };
            n.args.iter().enumerate().map(one).collect()
        }
        _ => n.args.iter().map(|v| Operand::reg_use(reg(*v))).collect(),
    };
    if let Some(m) = &n.mem {
        o.push(Operand::reg_use(reg(m.base)));
        if let Some((i, _)) = m.index {
            o.push(Operand::reg_use(reg(i)));
        }
    }
    if let Some(d) = n.def {
        o.push(match overwrites(n.op) {
            Some(k) => Operand::reg_reuse_def(reg(d), k),
            None => Operand::reg_def(reg(d)),
        });
    }
    o
}
