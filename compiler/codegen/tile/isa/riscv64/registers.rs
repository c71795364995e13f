//! Registers: allocatable ones, callee-saved ones, and constraints of instructions (psABI, lp64d).
//!
//! x30, x31 and f31 are scratch registers of the encoder. x1 holds the return address, x3 and x4 are reserved
//! by the platform, x8 by the frame chain. v0 to v2 hold masks, of which instructions read v0 only; v3 is a
//! scratch register. The other vector registers are groups of two, which the allocator numbers by half of
//! their first register.

use crate::codegen::tile::ir::{Bin, Class, Func, Node, Op, Un, Value};
use regalloc2::{MachineEnv, Operand, PReg, PRegSet, RegClass, VReg};

/// s1, s2 .. s11: callee-saved.
pub(super) const SAVED: [usize; 11] = [9, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27];
/// t0 .. t4, a0 .. a7.
const FREE: [usize; 13] = [10, 11, 12, 13, 14, 15, 16, 17, 5, 6, 7, 28, 29];
/// The first register of parameters: a0.
const FIRST_PARAM: usize = 10;
/// The mask register of masked instructions.
const MASK: usize = 0;
/// Masks.
const MASKS: std::ops::Range<usize> = 0..3;
/// Groups of two: v4 to v31.
const GROUPS: std::ops::Range<usize> = 2..16;
/// Caller-saved floating-point registers, except for the scratch register.
pub(super) const FLOATS: [u8; 19] = [0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12, 13, 14, 15, 16, 17, 28, 29, 30];

/// The register class of a kind of value.
pub(super) fn class(c: Class) -> RegClass {
    match c {
        Class::Int => RegClass::Int,
        Class::Vector => RegClass::Float,
        Class::Mask => RegClass::Vector,
    }
}

/// The allocatable registers.
pub(super) fn env() -> MachineEnv {
    fn set(r: impl IntoIterator<Item = usize>, c: RegClass) -> PRegSet {
        r.into_iter().fold(PRegSet::empty(), |s, i| s.with(PReg::new(i, c)))
    }
    let none = PRegSet::empty();
    MachineEnv {
        preferred_regs_by_class: [
            set(FREE, RegClass::Int),
            set(GROUPS, RegClass::Float),
            set(MASKS, RegClass::Vector),
        ],
        non_preferred_regs_by_class: [set(SAVED, RegClass::Int), none, none],
        scratch_by_class: [None; 3],
        fixed_stack_slots: vec![],
    }
}

/// True for rounding, and for conversions of floats to integers.
fn is_whole(op: Un) -> bool {
    use Un::{Ceil, Floor, Round, ToInt, Trunc, TruncInt, TruncLong, TruncUnsigned};
    matches!(op, Round | Floor | Ceil | Trunc | ToInt | TruncInt | TruncLong | TruncUnsigned)
}

/// True for operations that use a temporary mask.
fn masks_itself(op: Op) -> bool {
    match op {
        Op::Bin(op, _) => matches!(op, Bin::Min | Bin::Max),
        Op::Un(op, _) => is_whole(op),
        _ => false,
    }
}

/// Registers that an operation clobbers.
pub(super) fn clobbers(op: Op) -> PRegSet {
    let none = PRegSet::empty();
    if masks_itself(op) { none.with(PReg::new(MASK, RegClass::Vector)) } else { none }
}

/// True for operations that write their result before they have read all operands.
fn writes_early(op: Op) -> bool {
    match op {
        Op::Permuted(_) | Op::Un(Un::IAbs, _) => true,
        Op::Un(op, _) if is_whole(op) => true,
        // Results of another width than their operands may overlap these in some ways only.
        Op::Un(op, _) => {
            matches!(op, Un::Double | Un::ToDouble | Un::UnsignedToDouble | Un::Extend | Un::ExtendUnsigned)
        }
        _ => false,
    }
}

/// The operands of an instruction, in the order in which `encode` reads their registers: arguments, base and
/// index of the memory operand, result.
pub(super) fn operands(f: &Func, n: &Node, reg: &dyn Fn(Value) -> VReg) -> Vec<Operand> {
    if n.op == Op::Args {
        let param = |(i, v): (usize, &Value)| {
            Operand::reg_fixed_def(reg(*v), PReg::new(FIRST_PARAM + i, RegClass::Int))
        };
        return f.params.iter().take(f.width.register_params()).enumerate().map(param).collect();
    }
    // Inactive lanes become 0 before the offsets of the others are read.
    let early = writes_early(n.op) || matches!(n.op, Op::LoadIndexed(_)) && n.args.len() > 1;
    let masked = match n.op {
        Op::Load(_) => 0,
        Op::Store(_) | Op::LoadStrided(_) | Op::LoadIndexed(_) => 1,
        Op::StoreStrided(_) | Op::Select(_) => 2,
        _ => usize::MAX,
    };
    let one = |(i, v): (usize, &Value)| {
        if i == masked {
            Operand::reg_fixed_use(reg(*v), PReg::new(MASK, RegClass::Vector))
        } else if early {
            Operand::reg_use_at_end(reg(*v))
        } else {
            Operand::reg_use(reg(*v))
        }
    };
    let mut o: Vec<Operand> = n.args.iter().enumerate().map(one).collect();
    if let Some(m) = &n.mem {
        o.push(Operand::reg_use(reg(m.base)));
        if let Some((i, _)) = m.index {
            o.push(Operand::reg_use(reg(i)));
        }
    }
    if let Some(d) = n.def {
        o.push(match n.op {
            Op::Fma231 { .. } | Op::Fma213 { .. } | Op::FmaScalar { .. } => Operand::reg_reuse_def(reg(d), 0),
            _ => Operand::reg_def(reg(d)),
        });
    }
    o
}
