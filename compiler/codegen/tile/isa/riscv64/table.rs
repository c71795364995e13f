//! Base words of the instructions: all fields for registers and numbers are 0. `tests` holds every row
//! against what an assembler makes of it.

use crate::codegen::tile::ir::{Bin, Bits, Form, Op, Pred, Un};

/// Operands of arithmetic on vectors: `funct3`.
#[derive(Clone, Copy)]
enum Of {
    /// Integers: two vectors, a vector and a number, a vector and a register.
    Ivv = 0,
    Ivi = 3,
    Ivx = 4,
    /// Floats: two vectors, a vector and a register of floats.
    Fvv = 1,
    Fvf = 5,
    /// Products of integers, masks and others.
    Mvv = 2,
    Mvx = 6,
}

/// An instruction on all lanes.
const fn v(function: u32, of: Of) -> u32 {
    function << 26 | 1 << 25 | (of as u32) << 12 | 0x57
}

/// The same with one vector operand; the function is in the field of the other one.
const fn un_word(function: u32, of: Of, more: u32) -> u32 {
    v(function, of) | more << 15
}

/// The bit that is 0 for masked instructions.
const ALL_LANES: u32 = 1 << 25;

/// The masked form of an instruction.
pub(super) const fn masked(word: u32) -> u32 {
    word & !ALL_LANES
}

/// Element width of instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Width {
    W8,
    W16,
    W32,
    W64,
}

impl Width {
    /// The width of lanes.
    pub(super) fn of(bits: Bits) -> Width {
        if bits == Bits::B64 { Width::W64 } else { Width::W32 }
    }
    /// The width of elements of `n` bytes.
    pub(super) fn bytes(n: u32) -> Width {
        match n {
            1 => Width::W8,
            2 => Width::W16,
            4 => Width::W32,
            _ => Width::W64,
        }
    }
}

/// The vector type of elements of width `w` with as many elements as groups of two registers have lanes of 32
/// bits (64 bits if `long`). Tail elements are undefined, inactive ones unchanged.
pub(super) fn vector_type(w: Width, long: bool) -> u32 {
    let size = w as u32;
    let group = size.wrapping_sub(if long { 2 } else { 1 }) & 7;
    1 << 6 | size << 3 | group
}

/// Sets the type; the length stays.
pub(super) fn set_type(kind: u32) -> u32 {
    VSETVLI | kind << 20
}

/// d = a op b.
pub(super) fn bin(op: Bin) -> Option<u32> {
    Some(match op {
        Bin::Add => v(0b000000, Of::Fvv),
        Bin::Sub => v(0b000010, Of::Fvv),
        Bin::Mul => v(0b100100, Of::Fvv),
        Bin::Div => v(0b100000, Of::Fvv),
        // The comparison before a select.
        Bin::Min | Bin::Max => cmp(Pred::Lt),
        Bin::And => AND,
        Bin::Or => OR,
        Bin::Xor => XOR,
        // `and` and `xor`, or `or` and `xor`.
        Bin::AndNot => AND,
        Bin::IAdd => v(0b000000, Of::Ivv),
        Bin::ISub => v(0b000010, Of::Ivv),
        Bin::IMul => v(0b100101, Of::Mvv),
        Bin::UMin => v(0b000100, Of::Ivv),
        Bin::IMin => v(0b000101, Of::Ivv),
        Bin::UMax => v(0b000110, Of::Ivv),
        Bin::IMax => v(0b000111, Of::Ivv),
        // Counts are less than the number of bits.
        Bin::Shl => v(0b100101, Of::Ivv),
        Bin::Shr => v(0b101000, Of::Ivv),
        Bin::Sar => v(0b101001, Of::Ivv),
        Bin::Least | Bin::Most | Bin::MulAddPairs | Bin::MulAddBytes | Bin::AddWords => return None,
        Bin::IMulLow | Bin::Scale | Bin::Permute => return None,
    })
}

/// The same with a floating-point register for b; for a, if `reversed`.
pub(super) fn bin_scalar(op: Bin, reversed: bool) -> Option<u32> {
    Some(match (op, reversed) {
        (Bin::Add, _) => v(0b000000, Of::Fvf),
        (Bin::Sub, false) => v(0b000010, Of::Fvf),
        (Bin::Sub, true) => v(0b100111, Of::Fvf),
        (Bin::Mul, _) => v(0b100100, Of::Fvf),
        (Bin::Div, false) => v(0b100000, Of::Fvf),
        (Bin::Div, true) => v(0b100001, Of::Fvf),
        _ => return None,
    })
}

/// The same with an integer register for b.
pub(super) fn bin_int(op: Bin) -> Option<u32> {
    Some(match op {
        Bin::And => v(0b001001, Of::Ivx),
        Bin::Or => v(0b001010, Of::Ivx),
        Bin::Xor => v(0b001011, Of::Ivx),
        Bin::IAdd => v(0b000000, Of::Ivx),
        Bin::ISub => v(0b000010, Of::Ivx),
        Bin::IMul => v(0b100101, Of::Mvx),
        Bin::UMin => v(0b000100, Of::Ivx),
        Bin::IMin => v(0b000101, Of::Ivx),
        Bin::UMax => v(0b000110, Of::Ivx),
        Bin::IMax => v(0b000111, Of::Ivx),
        Bin::Shl => v(0b100101, Of::Ivx),
        Bin::Shr => v(0b101000, Of::Ivx),
        Bin::Sar => v(0b101001, Of::Ivx),
        _ => return None,
    })
}

/// d = op n, and the element width of the vector type.
pub(super) fn un(op: Un, bits: Bits) -> Option<(u32, Width)> {
    let same = Width::of(bits);
    let float = |more: u32| un_word(0b010010, Of::Fvv, more);
    let (b32, b64) = (bits == Bits::B32, bits == Bits::B64);
    Some(match op {
        Un::Sqrt => (un_word(0b010011, Of::Fvv, 0b00000), same),
        // The conversion within the expansion.
        Un::Round | Un::Floor | Un::Ceil => (TO_INT, same),
        Un::Trunc => (TRUNC_INT, same),
        Un::ToInt if b32 => (TO_INT, same),
        Un::ToInt => (float(0b10001), Width::W32),
        Un::TruncInt if b32 => (TRUNC_INT, same),
        Un::TruncInt => (float(0b10111), Width::W32),
        Un::TruncLong if b64 => (TRUNC_INT, same),
        Un::TruncUnsigned if b64 => (float(0b00110), same),
        Un::ToFloat if b32 => (FROM_INT, same),
        Un::ToFloat => (float(0b10011), Width::W32),
        Un::UnsignedToFloat if b64 => (float(0b10010), Width::W32),
        Un::ToDouble if b64 => (FROM_INT, same),
        Un::ToDouble => (float(0b01011), Width::W32),
        Un::UnsignedToDouble if b64 => (float(0b00010), same),
        Un::UnsignedToDouble => (float(0b01010), Width::W32),
        Un::Double if b32 => (float(0b01100), Width::W32),
        Un::Single if b64 => (float(0b10100), Width::W32),
        Un::Extend if b32 => (extend(2, true), Width::W64),
        Un::ExtendUnsigned if b32 => (extend(2, false), Width::W64),
        Un::Low if b64 => (NARROW, Width::W32),
        // The difference from 0, then the maximum.
        Un::IAbs => (REVERSE_SUB, same),
        Un::Shl(_) => (v(0b100101, Of::Ivi), same),
        Un::Shr(_) => (v(0b101000, Of::Ivi), same),
        Un::Sar(_) => (v(0b101001, Of::Ivi), same),
        // Selection replaces them by permutations.
        Un::Swap(_) => (GATHER, same),
        _ => return None,
    })
}

/// The shift by a register in place of one by a number of five bits.
pub(super) fn shift_by_register(word: u32) -> u32 {
    word & !(7 << 12) | (Of::Ivx as u32) << 12
}

/// Comparison of floats a and b; `Unordered` compares a value with itself.
pub(super) fn cmp(p: Pred) -> u32 {
    v(
        match p {
            Pred::Eq => 0b011000,
            Pred::Le => 0b011001,
            Pred::Lt => 0b011011,
            Pred::Ne | Pred::Unordered => 0b011100,
        },
        Of::Fvv,
    )
}

/// The same of signed integers.
pub(super) fn icmp(p: Pred) -> u32 {
    v(
        match p {
            Pred::Eq => 0b011000,
            Pred::Ne | Pred::Unordered => 0b011001,
            Pred::Lt => 0b011011,
            Pred::Le => 0b011101,
        },
        Of::Ivv,
    )
}

/// The same of unsigned integers.
pub(super) fn ucmp(p: Pred) -> u32 {
    match p {
        Pred::Lt => v(0b011010, Of::Ivv),
        Pred::Le => v(0b011100, Of::Ivv),
        p => icmp(p),
    }
}

/// d = d + a * b, or d - a * b.
pub(super) fn fma231(neg: bool) -> u32 {
    v(if neg { 0b101111 } else { 0b101100 }, Of::Fvv)
}

/// d = d * a + b, or b - d * a. The fields are in reverse order: b is the first vector.
pub(super) fn fma213(neg: bool) -> u32 {
    v(if neg { 0b101011 } else { 0b101000 }, Of::Fvv)
}

/// `fma231` with a register of floats for b.
pub(super) fn fma_scalar(neg: bool) -> u32 {
    v(if neg { 0b101111 } else { 0b101100 }, Of::Fvf)
}

/// Elements of a half or a quarter of the length, extended.
pub(super) fn extend(parts: u32, signed: bool) -> u32 {
    let more = if parts == 4 { 0b00100 } else { 0b00110 };
    un_word(0b010010, Of::Mvv, more | u32::from(signed))
}

pub(super) const AND: u32 = v(0b001001, Of::Ivv);
pub(super) const OR: u32 = v(0b001010, Of::Ivv);
pub(super) const XOR: u32 = v(0b001011, Of::Ivv);
/// Converts to integers in the current rounding mode, to nearest; towards zero.
pub(super) const TO_INT: u32 = un_word(0b010010, Of::Fvv, 0b00001);
pub(super) const TRUNC_INT: u32 = un_word(0b010010, Of::Fvv, 0b00111);
pub(super) const FROM_INT: u32 = un_word(0b010010, Of::Fvv, 0b00011);
/// The number in the field of the second vector minus a; the greater one; the sign of b for a, turned if b's
/// is.
pub(super) const REVERSE_SUB: u32 = v(0b000011, Of::Ivi);
pub(super) const GREATER: u32 = v(0b000111, Of::Ivv);
pub(super) const SIGN: u32 = v(0b001000, Of::Fvv);
pub(super) const SIGN_XOR: u32 = v(0b001010, Of::Fvv);
/// Less than a register of floats.
pub(super) const LESS_THAN_SCALAR: u32 = v(0b011011, Of::Fvf);
/// Elements of half the length, by a shift to the right by a number.
pub(super) const NARROW: u32 = v(0b101100, Of::Ivi);
/// Selects lanes of a by the indices in b.
pub(super) const GATHER: u32 = v(0b001100, Of::Ivv);
/// Lane numbers.
pub(super) const LANE_NUMBERS: u32 = un_word(0b010100, Of::Mvv, 0b10001);
pub(super) const XOR_NUMBER: u32 = v(0b001011, Of::Ivi);
/// The lanes of b where v0 is set, else those of a.
pub(super) const MERGE: u32 = masked(v(0b010111, Of::Ivv));
/// An integer register, a register of floats, a number in all lanes.
pub(super) const SPLAT: u32 = v(0b010111, Of::Ivx);
pub(super) const SPLAT_SCALAR: u32 = v(0b010111, Of::Fvf);
pub(super) const SPLAT_NUMBER: u32 = v(0b010111, Of::Ivi);
/// The first lane from an integer register, and to one; how many lanes of a mask are set.
pub(super) const SET_FIRST: u32 = un_word(0b010000, Of::Mvx, 0);
pub(super) const FIRST: u32 = un_word(0b010000, Of::Mvv, 0b00000);
pub(super) const COUNT: u32 = un_word(0b010000, Of::Mvv, 0b10000);
/// Masks.
pub(super) const MASK_AND: u32 = v(0b011001, Of::Mvv);
pub(super) const MASK_OR: u32 = v(0b011010, Of::Mvv);
pub(super) const MASK_XOR: u32 = v(0b011011, Of::Mvv);
/// Whole registers: one, a group of two.
pub(super) const MOVE_ONE: u32 = un_word(0b100111, Of::Ivi, 0);
pub(super) const MOVE_TWO: u32 = un_word(0b100111, Of::Ivi, 1);

/// The field of a width in accesses.
fn width_field(w: Width) -> u32 {
    let field = match w {
        Width::W8 => 0,
        Width::W16 => 5,
        Width::W32 => 6,
        Width::W64 => 7,
    };
    field << 12
}

/// Elements of the width of the vector type at offsets of width `w`, in any order.
pub(super) fn indexed_load(w: Width) -> u32 {
    0x07 | ALL_LANES | width_field(w) | 1 << 26
}

/// Neighbours, or elements at a distance that a register says.
pub(super) fn vector_access(w: Width, strided: bool, store: bool) -> u32 {
    (if store { 0x27 } else { 0x07 }) | ALL_LANES | width_field(w) | u32::from(strided) << 27
}

/// A mask from memory, or to it.
pub(super) fn mask_access(store: bool) -> u32 {
    (if store { 0x27 } else { 0x07 }) | ALL_LANES | 0b01011 << 20
}

/// An integer register; loads extend it.
pub(super) fn int_access(form: Form, store: bool) -> u32 {
    let function = match form {
        Form::I8 => 0,
        Form::I16 => 1,
        Form::B32 => 2,
        Form::B64 => 3,
        Form::U8 | Form::NearU8 => 4,
        Form::U16 | Form::F16 => 5,
    };
    if store { (function & 3) << 12 | 0x23 } else { function << 12 | 0x03 }
}

/// A register of floats.
pub(super) fn load_float(bits: Bits) -> u32 {
    (if bits == Bits::B64 { 3 } else { 2 }) << 12 | 0x07
}

/// Bits of an integer register to a register of floats.
pub(super) fn to_float_register(bits: Bits) -> u32 {
    if bits == Bits::B64 { 0xf200_0053 } else { 0xf000_0053 }
}

/// An integer of 64 bits as f32, by the mode in force.
pub(super) const FLOAT_OF_LONG: u32 = 0xd020_7053;
pub(super) const VSETVLI: u32 = 7 << 12 | 0x57;
/// The same with a length of five bits.
pub(super) const VSETIVLI: u32 = 3 << 30 | VSETVLI;
/// Rounding modes: sets one of five bits, the mode before to a register; one from a register.
pub(super) const SET_MODE: u32 = 0x0020_5073;
pub(super) const RESTORE_MODE: u32 = 0x0020_1073;
pub(super) const DOWNWARDS: u32 = 2;
pub(super) const UPWARDS: u32 = 3;

pub(in crate::codegen) const LUI: u32 = 0x37;
pub(in crate::codegen) const AUIPC: u32 = 0x17;
pub(in crate::codegen) const ADDI: u32 = 0x13;
pub(in crate::codegen) const ADDIW: u32 = 0x1b;
pub(in crate::codegen) const ANDI: u32 = 7 << 12 | 0x13;
pub(in crate::codegen) const SLLI: u32 = 1 << 12 | 0x13;
pub(super) const SRAI: u32 = 1 << 30 | 5 << 12 | 0x13;
pub(in crate::codegen) const ADD: u32 = 0x33;
pub(in crate::codegen) const AND_INT: u32 = 7 << 12 | 0x33;
pub(in crate::codegen) const OR_INT: u32 = 6 << 12 | 0x33;
pub(super) const MUL: u32 = 0x0200_0033;
pub(super) const DIV: u32 = 0x0200_4033;
pub(in crate::codegen) const LD: u32 = 3 << 12 | 0x03;
pub(in crate::codegen) const SD: u32 = 3 << 12 | 0x23;
pub(in crate::codegen) const JAL: u32 = 0x6f;
/// A jump to a register; with x1 for the link, a call.
pub(in crate::codegen) const JALR: u32 = 0x67;
pub(in crate::codegen) const BEQ: u32 = 0x63;
pub(in crate::codegen) const BNE: u32 = 1 << 12 | 0x63;
pub(in crate::codegen) const BLT: u32 = 4 << 12 | 0x63;
pub(in crate::codegen) const BGE: u32 = 5 << 12 | 0x63;
pub(in crate::codegen) const ECALL: u32 = 0x73;
/// Reads a control register, by number: the type of vectors, bytes of a vector register.
pub(in crate::codegen) const fn read_control(number: u32) -> u32 {
    number << 20 | 2 << 12 | 0x73
}
/// `prefetch.r` of Zicbop, which CPUs without it take for `ori` to nowhere. Multiples of 32 from a base.
pub(super) const PREFETCH: u32 = 1 << 20 | 6 << 12 | 0x13;

/// Whether there are instructions for an operation.
pub(super) fn has_op(op: Op) -> bool {
    match op {
        Op::Bin(op, _) => bin(op).is_some(),
        Op::Un(op, bits) => un(op, bits).is_some(),
        Op::BinScalar { op, reversed, .. } => bin_scalar(op, reversed).is_some(),
        Op::BinInt(op, _) => bin_int(op).is_some(),
        Op::Load(f)
        | Op::Store(f)
        | Op::Broadcast(f)
        | Op::LoadStrided(f)
        | Op::StoreStrided(f)
        | Op::LoadIndexed(f) => !matches!(f, Form::F16 | Form::NearU8),
        Op::Table(_)
        | Op::Literal(..)
        | Op::IntLiteral(_)
        | Op::LaneNumbers(_)
        | Op::LoadFirst(..)
        | Op::StoreFirst(..)
        | Op::StoreLane(..)
        | Op::Gather(_)
        | Op::Scatter(_)
        | Op::Dot(_)
        | Op::Dot2
        | Op::Permute2
        | Op::PermuteWords2
        | Op::DotLane { .. }
        | Op::Dot8 { .. }
        | Op::MatrixDot { .. }
        | Op::MulBytes { .. }
        | Op::AddMulBytes { .. }
        | Op::AddPairs(_)
        | Op::BytesFrom
        | Op::BytesInto
        | Op::ByteNumbers(_)
        | Op::FmaLane { .. }
        | Op::FmaHalves { .. }
        | Op::MulHalves { .. }
        | Op::BinHalves(_)
        | Op::Zip { .. }
        | Op::Unzip { .. }
        | Op::UnzipBlocks { .. }
        | Op::SelectInto(..) => false,
        _ => true,
    }
}

#[cfg(test)]
mod tests;
