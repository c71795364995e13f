//! Base words of the instructions: all fields for registers and numbers are 0. A64 has one form for each, so
//! a word and where its fields are is all that there is to encode; `tests` holds every row against what an
//! assembler makes of it.

use crate::codegen::tile::ir::{Bin, Bits, Bytes, Factors, Op, Pred, Un};

/// Words for lanes of 32 and of 64 bits; 0 where there is none.
pub(super) type Row = [u32; 2];

fn of(row: Row, bits: Bits) -> Option<u32> {
    let word = match bits {
        Bits::B32 => row[0],
        Bits::B64 => row[1],
    };
    (word != 0).then_some(word)
}

/// d = n op m, of registers of 128 bits.
pub(super) fn bin(op: Bin, bits: Bits) -> Option<u32> {
    let row = match op {
        Bin::Add => [0x4e20_d400, 0x4e60_d400],
        Bin::Sub => [0x4ea0_d400, 0x4ee0_d400],
        Bin::Mul => [0x6e20_dc00, 0x6e60_dc00],
        Bin::Div => [0x6e20_fc00, 0x6e60_fc00],
        Bin::Least => [0x4ea0_f400, 0x4ee0_f400],
        Bin::Most => [0x4e20_f400, 0x4e60_f400],
        Bin::And => [AND; 2],
        Bin::Or => [ORR; 2],
        Bin::Xor => [EOR; 2],
        // BIC, whose operands change places.
        Bin::AndNot => [0x4e60_1c00; 2],
        Bin::IAdd => [0x4ea0_8400, 0x4ee0_8400],
        Bin::ISub => [0x6ea0_8400, 0x6ee0_8400],
        Bin::IMul => [0x4ea0_9c00, 0],
        // UMULL, on the lower halves of the registers.
        Bin::IMulLow => [0, 0x2ea0_c000],
        Bin::IMin => [0x4ea0_6c00, 0],
        Bin::IMax => [0x4ea0_6400, 0],
        Bin::UMin => [0x6ea0_6c00, 0],
        Bin::UMax => [0x6ea0_6400, 0],
        // USHL, SSHL; right shifts have negative counts.
        Bin::Shl | Bin::Shr => [0x6ea0_4400, 0x6ee0_4400],
        Bin::Sar => [0x4ea0_4400, 0x4ee0_4400],
        // The comparison before a select.
        Bin::Min | Bin::Max => cmp_row(Pred::Lt),
        Bin::MulAddPairs | Bin::MulAddBytes | Bin::AddWords | Bin::Scale | Bin::Permute => [0, 0],
    };
    of(row, bits)
}

/// d = op n, of registers of 128 bits or of the halves that the operation implies. Operations that expand to
/// two instructions have both.
pub(super) fn un(op: Un, bits: Bits) -> Option<[u32; 2]> {
    let one = |row: Row| of(row, bits).map(|w| [w, 0]);
    let wide = |to: [u32; 2]| (bits == Bits::B32).then_some(to);
    let short = |to: [u32; 2]| (bits == Bits::B64).then_some(to);
    match op {
        Un::Sqrt => one([0x6ea1_f800, 0x6ee1_f800]),
        Un::Round => one([0x4e21_8800, 0x4e61_8800]),
        Un::Floor => one([0x4e21_9800, 0x4e61_9800]),
        Un::Ceil => one([0x4ea1_8800, 0x4ee1_8800]),
        Un::Trunc => one([0x4ea1_9800, 0x4ee1_9800]),
        Un::ToInt if bits == Bits::B64 => short([0x4e61_a800, SQXTN]),
        Un::TruncInt if bits == Bits::B64 => short([FCVTZS[1], SQXTN]),
        Un::ToInt => one([0x4e21_a800, 0]),
        Un::TruncInt => one(FCVTZS),
        Un::TruncLong => short([FCVTZS[1], 0]),
        Un::TruncUnsigned => short([0x6ee1_b800, 0]),
        Un::ToFloat => one([0x4e21_d800, 0]),
        Un::ToDouble if bits == Bits::B64 => short([SCVTF_LONG, 0]),
        Un::ToDouble => wide([SXTL[2], SCVTF_LONG]),
        Un::UnsignedToDouble if bits == Bits::B64 => short([UCVTF_LONG, 0]),
        Un::UnsignedToDouble => wide([UXTL[2], UCVTF_LONG]),
        Un::Double => wide([0x0e61_7800, 0]),
        Un::Single => short([0x0e61_6800, 0]),
        Un::Half => wide([0x0e21_6800, 0]),
        Un::Whole { upper } => wide([FCVTL | u32::from(upper) << 30, 0]),
        Un::Extend => wide([SXTL[2], 0]),
        Un::ExtendUnsigned => wide([UXTL[2], 0]),
        Un::Low => short([XTN[2], 0]),
        Un::IAbs => one([0x4ea0_b800, 0x4ee0_b800]),
        Un::Shl(n) => one([0x4f20_5400, 0x4f40_5400]).map(|w| [w[0] | u32::from(n) << 16, 0]),
        Un::Shr(n) => one([0x6f00_0400, 0x6f00_0400]).map(|w| [w[0] | right(n, bits), 0]),
        Un::Sar(n) => one([0x4f00_0400, 0x4f00_0400]).map(|w| [w[0] | right(n, bits), 0]),
        // REV64, and EXT of a register with itself.
        Un::Swap(_) if bits == Bits::B64 => None,
        Un::Swap(1) => Some([0x4ea0_0800, 0]),
        Un::Swap(2) => Some([EXT | 8 << 11, 0]),
        Un::Narrow(2) => wide([XTN[1], 0]),
        Un::Narrow(1) => wide([XTN[1], XTN[0]]),
        Un::UnsignedToFloat
        | Un::Brain
        | Un::ShlWords(_)
        | Un::SarWords(_)
        | Un::Swap(_)
        | Un::Narrow(_)
        | Un::Part(_) => None,
    }
}

/// Immediates of right shifts are subtracted from twice the number of bits.
fn right(n: u8, bits: Bits) -> u32 {
    let bits = if bits == Bits::B64 { 64 } else { 32 };
    (2 * bits - u32::from(n)) << 16
}

fn cmp_row(p: Pred) -> Row {
    match p {
        Pred::Eq | Pred::Ne | Pred::Unordered => [0x4e20_e400, 0x4e60_e400],
        // Of b and a: greater than, greater than or equal.
        Pred::Lt => [0x6ea0_e400, 0x6ee0_e400],
        Pred::Le => [0x6e20_e400, 0x6e60_e400],
    }
}

fn pick(row: Row, bits: Bits) -> u32 {
    row[usize::from(bits == Bits::B64)]
}

/// Comparison of floats; ordered ones take their operands in reverse, `Ne` and `Unordered` are inverted
/// afterwards.
pub(super) fn cmp(p: Pred, bits: Bits) -> u32 {
    pick(cmp_row(p), bits)
}

/// The same of signed integers.
pub(super) fn icmp(p: Pred, bits: Bits) -> u32 {
    let row = match p {
        Pred::Eq | Pred::Ne | Pred::Unordered => [0x6ea0_8c00, 0x6ee0_8c00],
        Pred::Lt => [0x4ea0_3400, 0x4ee0_3400],
        Pred::Le => [0x4ea0_3c00, 0x4ee0_3c00],
    };
    pick(row, bits)
}

/// The same of unsigned integers.
pub(super) fn ucmp(p: Pred, bits: Bits) -> u32 {
    match p {
        Pred::Lt => pick([0x6ea0_3400, 0x6ee0_3400], bits),
        Pred::Le => pick([0x6ea0_3c00, 0x6ee0_3c00], bits),
        p => icmp(p, bits),
    }
}

/// d += n * m, or d -= n * m.
pub(super) fn fma(neg: bool, bits: Bits) -> u32 {
    pick(if neg { [0x4ea0_cc00, 0x4ee0_cc00] } else { [0x4e20_cc00, 0x4e60_cc00] }, bits)
}

/// d += n * m\[lane\], or d -= n * m\[lane\].
pub(super) fn fma_lane(neg: bool, bits: Bits, lane: u8) -> u32 {
    let lane = u32::from(lane);
    match bits {
        Bits::B32 => {
            pick([0x4f80_1000, 0x4f80_5000], if neg { Bits::B64 } else { Bits::B32 })
                | (lane & 1) << 21
                | (lane >> 1) << 11
        }
        Bits::B64 => pick([0x4fc0_1000, 0x4fc0_5000], if neg { Bits::B64 } else { Bits::B32 }) | lane << 11,
    }
}

/// d += n * m\[lane\], of eight f16. Four bits name m.
pub(super) fn fma_halves(lane: u8) -> u32 {
    let lane = u32::from(lane);
    0x4f00_1000 | (lane & 1) << 20 | (lane >> 1 & 1) << 21 | (lane >> 2) << 11
}

/// d = n * m\[lane\], of eight f16. Four bits name m.
pub(super) fn mul_halves(lane: u8) -> u32 {
    fma_halves(lane) | 0x8000
}

/// d = n op m, of eight f16.
pub(super) fn bin_halves(op: Bin) -> Option<u32> {
    match op {
        Bin::Add => Some(0x4e40_1400),
        Bin::Sub => Some(0x4ec0_1400),
        Bin::Least => Some(0x4ec0_3400),
        Bin::Most => Some(0x4e40_3400),
        _ => None,
    }
}

/// d += the products of four bytes of n and m; of mixed signs, those of n are unsigned: SDOT, UDOT, USDOT.
pub(super) fn dot(bytes: Bytes) -> u32 {
    match bytes {
        Bytes::Signed | Bytes::Narrow => 0x4e80_9400,
        Bytes::Unsigned => 0x6e80_9400,
        Bytes::Mixed => 0x4e80_9c00,
    }
}

/// The same with four bytes of m; `swapped`: of mixed signs, these are the unsigned ones (SUDOT).
pub(super) fn dot_lane(bytes: Bytes, swapped: bool, lane: u8) -> u32 {
    let word = match bytes {
        Bytes::Signed | Bytes::Narrow => 0x4f80_e000,
        Bytes::Unsigned => 0x6f80_e000,
        Bytes::Mixed if swapped => 0x4f00_f000,
        Bytes::Mixed => 0x4f80_f000,
    };
    let lane = u32::from(lane);
    word | (lane & 1) << 21 | (lane >> 1) << 11
}

/// d = the products of eight bytes of n and m, of their lower or upper halves, in 16 bits: SMULL, UMULL.
pub(super) fn mul_bytes(bytes: Bytes, upper: bool) -> u32 {
    0x0e20_c000 | u32::from(bytes == Bytes::Unsigned) << 29 | u32::from(upper) << 30
}

/// The same added to d: SMLAL, UMLAL.
pub(super) fn add_mul_bytes(bytes: Bytes, upper: bool) -> u32 {
    mul_bytes(bytes, upper) & !0x4000
}

/// d += the two integers of 16 bits of n in each lane: SADALP, UADALP.
pub(super) fn add_pairs(bytes: Bytes) -> u32 {
    0x4e60_6800 | u32::from(bytes == Bytes::Unsigned) << 29
}

/// Selects bytes of n by the bytes of m.
pub(super) const TBL: u32 = 0x4e00_0000;
/// The same; other bytes of d stay as they are.
pub(super) const TBX: u32 = 0x4e00_1000;

/// d, two rows of two sums, += two rows of eight bytes of n times two of m as columns; of mixed signs, those
/// of n are unsigned: SMMLA, UMMLA, USMMLA. Or rows and columns of four bf16: BFMMLA.
pub(super) fn matrix_dot(of: Factors) -> u32 {
    match of {
        Factors::Bytes(Bytes::Signed | Bytes::Narrow) => 0x4e80_a400,
        Factors::Bytes(Bytes::Unsigned) => 0x6e80_a400,
        Factors::Bytes(Bytes::Mixed) => 0x4e80_ac00,
        Factors::Halves => 0x6e40_ec00,
    }
}

/// Lanes of n and m in turn: of the lower halves, or the upper ones.
pub(super) fn zip(bits: Bits, upper: bool) -> u32 {
    pick([0x4e80_3800, 0x4ec0_3800], bits) | u32::from(upper) << 14
}

/// Every other lane of 32 bits of n, then of m, from the first or the second one on.
pub(super) fn unzip(odd: bool) -> u32 {
    0x4e80_1800 | u32::from(odd) << 14
}

/// A lane of n in all lanes of d.
pub(super) fn dup_lane(bits: Bits, lane: u8) -> u32 {
    0x4e00_0400 | lane_field(if bits == Bits::B64 { 8 } else { 4 }, lane)
}

/// An integer register in all lanes.
pub(super) fn dup(bits: Bits) -> u32 {
    pick([0x4e04_0c00, 0x4e08_0c00], bits)
}

/// Lane `lane` of the given number of bytes, as single-lane instructions encode it.
pub(super) fn lane_field(bytes: u32, lane: u8) -> u32 {
    ((2 * u32::from(lane) + 1) * bytes) << 16
}

/// UMOV: a lane to an integer register, extended with zeros.
pub(super) fn umov(bytes: u32, lane: u8) -> u32 {
    (if bytes == 8 { 0x4e00_3c00 } else { 0x0e00_3c00 }) | lane_field(bytes, lane)
}

/// SMOV: a lane of 32 bits to an integer register, its sign extended.
pub(super) const SMOV: u32 = 0x4e00_2c00;
/// Selects between n (ones) and m by a mask in the destination.
pub(super) const BSL: u32 = 0x6e60_1c00;
/// Lanes of n replace those of the destination where m is set, or where it is not.
pub(super) const BIT: u32 = 0x6ea0_1c00;
pub(super) const BIF: u32 = 0x6ee0_1c00;
pub(super) const AND: u32 = 0x4e20_1c00;
/// With equal sources a move.
pub(super) const ORR: u32 = 0x4ea0_1c00;
pub(super) const EOR: u32 = 0x6e20_1c00;
pub(super) const NOT: u32 = 0x6e20_5800;
pub(super) const EXT: u32 = 0x6e00_0000;
/// -n of integers.
pub(super) const NEG: Row = [0x6ea0_b800, 0x6ee0_b800];
const FCVTZS: Row = [0x4ea1_b800, 0x4ee1_b800];
const SCVTF_LONG: u32 = 0x4e61_d800;
const UCVTF_LONG: u32 = 0x6e61_d800;
/// 64 bits to 32, saturated.
const SQXTN: u32 = 0x0ea1_4800;
/// The lower half of a register, lanes twice as long: of 8, 16 and 32 bits.
pub(super) const SXTL: [u32; 3] = [0x0f08_a400, 0x0f10_a400, 0x0f20_a400];
pub(super) const UXTL: [u32; 3] = [0x2f08_a400, 0x2f10_a400, 0x2f20_a400];
/// Lanes of half the size, in the lower half: to 8, 16 and 32 bits.
pub(super) const XTN: [u32; 3] = [0x0e21_2800, 0x0e61_2800, 0x0ea1_2800];
/// Four f16 of the lower half as f32.
pub(super) const FCVTL: u32 = 0x0e21_7800;
/// All bits 0.
pub(super) const ZERO: u32 = 0x6f00_e400;
/// An integer of 64 bits as f32, in the first lane.
pub(super) const SCVTF_SCALAR: u32 = 0x9e22_0000;

/// Bits that loads of vector registers have in common.
pub(super) const VECTOR_LOAD: u32 = 1 << 26 | 1 << 22;

/// Accesses of one vector register of 1, 2, 4, 8 and 16 bytes: with a displacement in elements, in bytes.
pub(super) fn vector_access(bytes: u32, store: bool) -> [u32; 2] {
    let (load, size) = match bytes {
        1 => (0x3d40_0000, 0x3c40_0000),
        2 => (0x7d40_0000, 0x7c40_0000),
        4 => (0xbd40_0000, 0xbc40_0000),
        8 => (0xfd40_0000, 0xfc40_0000),
        _ => (0x3dc0_0000, 0x3cc0_0000),
    };
    let load = [load, size];
    if store { load.map(|w| w & !(1 << 22)) } else { load }
}

/// The same of an integer register of 1, 2, 4 and 8 bytes; loads extend with zeros.
pub(in crate::codegen) fn int_access(bytes: u32, store: bool) -> [u32; 2] {
    let load = match bytes {
        1 => [0x3940_0000, 0x3840_0000],
        2 => [0x7940_0000, 0x7840_0000],
        4 => [0xb940_0000, 0xb840_0000],
        _ => [0xf940_0000, 0xf840_0000],
    };
    if store { load.map(|w| w & !(1 << 22)) } else { load }
}

/// PRFM, into the first-level cache; the second one is operand 2.
pub(super) const PREFETCH: [u32; 2] = [0xf980_0000, 0xf880_0000];
/// Pairs of vectors of 16 bytes, of 8 bytes, and of integer registers.
pub(super) const LOAD_PAIR: u32 = 0xad40_0000;
pub(super) const STORE_PAIR: u32 = 0xad00_0000;
pub(super) const LOAD_PAIR_HALVES: u32 = 0x6d40_0000;
pub(super) const STORE_PAIR_HALVES: u32 = 0x6d00_0000;
pub(super) const LOAD_PAIR_INT: u32 = 0xa940_0000;
pub(super) const STORE_PAIR_INT: u32 = 0xa900_0000;
/// Pairs of integer registers to 16 bytes below the base, which goes there, and back.
pub(in crate::codegen) const PUSH_PAIR_INT: u32 = 0xa9bf_0000;
pub(in crate::codegen) const POP_PAIR_INT: u32 = 0xa8c1_0000;
/// A vector at a distance from the instruction.
pub(super) const LOAD_LITERAL: u32 = 0x9c00_0000;
/// One element of memory in all lanes.
pub(super) fn load_dup(bits: Bits) -> u32 {
    pick([0x4d40_c800, 0x4d40_cc00], bits)
}
/// Loads or stores one lane of 1, 2 or 4 bytes; a load keeps the other lanes.
pub(super) fn lane_access(bytes: u32, lane: u8, store: bool) -> u32 {
    let lane = u32::from(lane);
    let load = match bytes {
        1 => 0x0d40_0000 | (lane >> 3) << 30 | (lane & 7) << 10,
        2 => 0x0d40_4000 | (lane >> 2) << 30 | (lane & 3) << 11,
        _ => 0x0d40_8000 | (lane >> 1) << 30 | (lane & 1) << 12,
    };
    if store { load & !(1 << 22) } else { load }
}

/// x = n + m << shift, n - m, n & m, n | m << shift; n + number, n - number (<< 12 with bit 22).
pub(super) const ADD: u32 = 0x8b00_0000;
pub(in crate::codegen) const ADD_IMM: u32 = 0x9100_0000;
pub(super) const SUB_IMM: u32 = 0xd100_0000;
pub(in crate::codegen) const AND_INT: u32 = 0x8a00_0000;
pub(in crate::codegen) const ORR_INT: u32 = 0xaa00_0000;
/// Numbers of 12 bits are shifted by 12.
pub(super) const IMM_HIGH: u32 = 1 << 22;
/// UBFM with 63 for the last bit: a shift to the right.
pub(super) const LSR: u32 = 0xd340_fc00;
/// SBFM, the same of a signed number.
pub(super) const ASR: u32 = 0x9340_fc00;
/// x = n * m.
pub(super) const MUL: u32 = 0x9b00_7c00;
/// x = n / m, rounded to zero.
pub(super) const DIV: u32 = 0x9ac0_0c00;
/// Compares n with m, with a number, with a negative number.
pub(in crate::codegen) const CMP: u32 = 0xeb00_001f;
pub(in crate::codegen) const CMP_IMM: u32 = 0xf100_001f;
pub(super) const CMN_IMM: u32 = 0xb100_001f;
/// n if the condition holds, else m.
pub(super) const CSEL: u32 = 0x9a80_0000;
/// Conditions; for order, of signed numbers.
pub(in crate::codegen) const EQ: u32 = 0;
pub(in crate::codegen) const NE: u32 = 1;
pub(super) const GE: u32 = 10;
pub(super) const LT: u32 = 11;
pub(super) const GT: u32 = 12;
/// 16 bits, the others 0, the others 1, the others as they were.
pub(super) const MOVZ: u32 = 0xd280_0000;
pub(super) const MOVN: u32 = 0x9280_0000;
pub(super) const MOVK: u32 = 0xf280_0000;
/// The address of a literal.
pub(super) const ADR: u32 = 0x1000_0000;
pub(super) const BRANCH: u32 = 0x1400_0000;
pub(super) const BRANCH_IF: u32 = 0x5400_0000;
/// Calls: at a distance, of an address in a register.
pub(in crate::codegen) const CALL: u32 = 0x9400_0000;
pub(in crate::codegen) const CALL_REGISTER: u32 = 0xd63f_0000;
/// The address of a page at a distance.
pub(in crate::codegen) const ADRP: u32 = 0x9000_0000;
pub(in crate::codegen) const RET: u32 = 0xd65f_0000;

/// The instruction that broadcasts a constant, without its destination, if there is one.
pub(super) fn number(word: u32) -> Option<u32> {
    const MOVI: u32 = 0x4f00_0400;
    const FMOV: u32 = 0x4f00_f400;
    let imm8 = |x: u32| (x >> 5 & 7) << 16 | (x & 0x1f) << 5;
    // A byte at one of four places, or its complement.
    for shift in 0..4u32 {
        for (inverted, word) in [(0, word), (1 << 29, !word)] {
            if word & !(0xff << (8 * shift)) == 0 {
                return Some(MOVI | inverted | shift << 13 | imm8(word >> (8 * shift)));
            }
        }
    }
    // Four bits of mantissa, three of the exponent.
    let (sign, exponent) = (word >> 31, word >> 25 & 0x3f);
    (word & 0x7_ffff == 0 && matches!(exponent, 0x1f | 0x20))
        .then(|| FMOV | imm8(sign << 7 | (exponent & 1) << 6 | (word >> 19 & 0x3f)))
}

/// Whether the machine has an operation.
pub(super) fn has_op(op: Op) -> bool {
    match op {
        Op::Bin(op, bits) => bin(op, bits).is_some(),
        Op::Un(op, bits) => un(op, bits).is_some(),
        Op::BinHalves(op) => bin_halves(op).is_some(),
        Op::LoadFirst(form, _) | Op::StoreFirst(form, _) | Op::Load(form) | Op::Store(form) => {
            form != crate::codegen::tile::ir::Form::NearU8
        }
        Op::Gather(_) | Op::Scatter(_) | Op::Fma213 { .. } => false,
        Op::Dot2 | Op::Permute2 | Op::PermuteWords2 | Op::UnzipBlocks { .. } => false,
        Op::IntLiteral(_) => false,
        // Only as an expansion, which selection performs.
        Op::MulBytes { bytes: Bytes::Mixed, .. }
        | Op::AddMulBytes { bytes: Bytes::Mixed, .. }
        | Op::AddPairs(Bytes::Mixed) => false,
        op => !op.is_of_riscv(),
    }
}

#[cfg(test)]
mod tests;
