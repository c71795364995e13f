//! Encodes the operations of a block.

use super::code::is_short;
use super::constants::tiny;
use super::encode::{Emit, OWN, SECOND, number};
use super::table::{self, Width};
use crate::codegen::tile::ir::{Bin, Bits, Node, Op, Pred, Un};
use crate::diag::{Failure, Result};
use regalloc2::Allocation;

/// The scratch register for floats.
pub(super) const OWN_FLOAT: u32 = 31;
/// Floats of at least this magnitude are integers.
const WHOLE_FLOAT: f32 = 8_388_608.0;
const WHOLE_DOUBLE: f64 = 4_503_599_627_370_496.0;
/// The mask register of masked instructions.
const MASK: u32 = 0;

fn none(op: Op) -> Failure {
    Failure::bug("encoding of a tile", format!("{op:?} has no instruction"))
}

impl Emit<'_> {
    /// Instructions inside a block.
    pub(super) fn plain(&mut self, n: &Node, al: &[Allocation]) -> Result<()> {
        if n.op.is_memory() || matches!(n.op, Op::Prefetch { .. }) {
            return self.memory(n, al);
        }
        let r: Vec<u32> = al.iter().map(|a| number(*a)).collect();
        let d = r.last().copied().unwrap_or(0);
        match n.op {
            Op::Args => {}
            Op::StackArg(_)
            | Op::Int(_)
            | Op::AddImm(_)
            | Op::Add
            | Op::AndImm(_)
            | Op::Mul
            | Op::Quotient
            | Op::MulImm(_)
            | Op::ShrImm(_)
            | Op::Lesser
            | Op::Greater
            | Op::First(_)
            | Op::AnyLane => self.scalar(n.op, d, &r),
            Op::Const(_)
            | Op::Number(..)
            | Op::SomeLanes(_)
            | Op::Iota(..)
            | Op::LanesSwapped(..)
            | Op::FirstLanes(_) => self.constant(n.op, d),
            _ => self.arithmetic(n.op, d, &r)?,
        }
        Ok(())
    }
    /// Integers: addresses, sizes, counts.
    fn scalar(&mut self, op: Op, d: u32, r: &[u32]) {
        match op {
            Op::StackArg(k) => {
                let at = self.stack_param(k);
                self.access_int(table::LD, false, d, at);
            }
            Op::Int(x) => self.code.int(d, x),
            Op::AddImm(k) => self.code.add(d, r[0], i64::from(k)),
            Op::Add => self.code.three(table::ADD, d, r[0], r[1]),
            Op::AndImm(k) if is_short(i64::from(k)) => self.code.short(table::ANDI, d, r[0], i64::from(k)),
            Op::AndImm(k) => {
                self.code.int(OWN, i64::from(k));
                self.code.three(table::AND_INT, d, r[0], OWN);
            }
            Op::Mul => self.code.three(table::MUL, d, r[0], r[1]),
            Op::Quotient => self.code.three(table::DIV, d, r[0], r[1]),
            Op::ShrImm(k) => self.code.short(table::SRAI, d, r[0], i64::from(k)),
            Op::MulImm(k) => {
                self.code.int(OWN, i64::from(k));
                self.code.three(table::MUL, d, r[0], OWN);
            }
            Op::Lesser | Op::Greater => {
                // The first operand, unless the second one is smaller (or larger).
                self.code.short(table::ADDI, OWN, r[0], 0);
                let (a, b) = if op == Op::Lesser { (r[0], r[1]) } else { (r[1], r[0]) };
                self.code.skip(table::BLT, a, b, 2);
                self.code.short(table::ADDI, OWN, r[1], 0);
                self.code.short(table::ADDI, d, OWN, 0);
            }
            Op::First(bits) => {
                self.want(Width::of(bits));
                self.code.vector(table::FIRST, d, r[0], 0);
            }
            Op::AnyLane => self.code.vector(table::COUNT, d, r[0], 0),
            _ => {}
        }
    }
    /// Operations on vectors and masks.
    fn arithmetic(&mut self, op: Op, d: u32, r: &[u32]) -> Result<()> {
        match op {
            Op::Splat(bits) => {
                self.want(Width::of(bits));
                self.code.vector(table::SPLAT, d, 0, r[0]);
            }
            Op::SplatFloat => {
                self.code.two(table::FLOAT_OF_LONG, OWN_FLOAT, r[0]);
                self.want(Width::W32);
                self.code.vector(table::SPLAT_SCALAR, d, 0, OWN_FLOAT);
            }
            Op::SplatScalar(bits, f) => {
                self.want(Width::of(bits));
                self.code.vector(table::SPLAT_SCALAR, d, 0, u32::from(f));
            }
            Op::Bin(op, bits) => {
                let word = table::bin(op).ok_or_else(|| none(Op::Bin(op, bits)))?;
                self.want(Width::of(bits));
                self.binary(op, word, d, r);
            }
            Op::BinScalar { op, bits, f, reversed } => {
                let word = table::bin_scalar(op, reversed).ok_or_else(|| none(Op::Bin(op, bits)))?;
                self.want(Width::of(bits));
                self.code.vector(word, d, r[0], u32::from(f));
            }
            Op::BinInt(op, bits) => {
                let word = table::bin_int(op).ok_or_else(|| none(Op::Bin(op, bits)))?;
                self.want(Width::of(bits));
                self.code.vector(word, d, r[0], r[1]);
            }
            Op::Un(op, bits) => {
                let (word, width) = table::un(op, bits).ok_or_else(|| none(Op::Un(op, bits)))?;
                self.unary((op, bits), (word, width), d, r[0]);
            }
            Op::Fma231 { neg, bits } => {
                self.want(Width::of(bits));
                self.code.vector(table::fma231(neg), d, r[1], r[2]);
            }
            Op::Fma213 { neg, bits } => {
                self.want(Width::of(bits));
                self.code.vector(table::fma213(neg), d, r[2], r[1]);
            }
            Op::FmaScalar { neg, bits, f } => {
                self.want(Width::of(bits));
                self.code.vector(table::fma_scalar(neg), d, r[1], u32::from(f));
            }
            Op::Permuted(bits) => {
                self.want(Width::of(bits));
                self.code.vector(table::GATHER, d, r[0], r[1]);
            }
            Op::Cmp(p, bits) => {
                self.want(Width::of(bits));
                // Unordered tests compare a value with itself (`select`), possibly in two registers.
                let b = if p == Pred::Unordered { r[0] } else { r[1] };
                self.code.vector(table::cmp(p), d, r[0], b);
            }
            Op::ICmp(p, bits) => {
                self.want(Width::of(bits));
                self.code.vector(table::icmp(p), d, r[0], r[1]);
            }
            Op::UCmp(p, bits) => {
                self.want(Width::of(bits));
                self.code.vector(table::ucmp(p), d, r[0], r[1]);
            }
            Op::MaskAnd => self.code.vector(table::MASK_AND, d, r[0], r[1]),
            Op::MaskOr => self.code.vector(table::MASK_OR, d, r[0], r[1]),
            Op::MaskXor => self.code.vector(table::MASK_XOR, d, r[0], r[1]),
            Op::Select(bits) => {
                self.want(Width::of(bits));
                self.code.vector(table::MERGE, d, r[0], r[1]);
            }
            op => return Err(none(op)),
        }
        Ok(())
    }
    fn binary(&mut self, op: Bin, word: u32, d: u32, r: &[u32]) {
        let (a, b) = (r[0], r[1]);
        match op {
            // The first operand where it is less, or greater; the second one otherwise, including NaN.
            Bin::Min => {
                self.code.vector(word, MASK, a, b);
                self.code.vector(table::MERGE, d, b, a);
            }
            Bin::Max => {
                self.code.vector(word, MASK, b, a);
                self.code.vector(table::MERGE, d, b, a);
            }
            // (a and b) xor b, or (a or b) xor a if the result replaces b.
            Bin::AndNot if d != b => {
                self.code.vector(table::AND, d, a, b);
                self.code.vector(table::XOR, d, d, b);
            }
            Bin::AndNot => {
                self.code.vector(table::OR, d, a, b);
                self.code.vector(table::XOR, d, d, a);
            }
            _ => self.code.vector(word, d, a, b),
        }
    }
    fn unary(&mut self, (op, bits): (Un, Bits), (word, width): (u32, Width), d: u32, x: u32) {
        if matches!(op, Un::ToInt | Un::TruncInt | Un::TruncLong | Un::TruncUnsigned) {
            // NaN, which the instructions treat as a large number, becomes 0.
            self.want(Width::of(bits));
            self.code.vector(table::cmp(Pred::Eq), MASK, x, x);
            self.want(width);
            self.code.vector(table::SPLAT_NUMBER, d, 0, 0);
            return self.code.vector(table::masked(word), d, x, 0);
        }
        self.want(width);
        match op {
            Un::Shl(n) | Un::Shr(n) | Un::Sar(n) if n > 31 => {
                self.code.int(OWN, i64::from(n));
                self.code.vector(table::shift_by_register(word), d, x, OWN);
            }
            Un::Shl(n) | Un::Shr(n) | Un::Sar(n) => self.code.vector(word, d, x, u32::from(n)),
            Un::IAbs => {
                self.code.vector(word, d, x, tiny(0));
                self.code.vector(table::GREATER, d, d, x);
            }
            Un::Round | Un::Floor | Un::Ceil | Un::Trunc => self.whole(op, bits, word, d, x),
            _ => self.code.vector(word, d, x, 0),
        }
    }
    /// Rounds to integers by converting to integers and back, for magnitudes with fractional bits only; NaN
    /// is excluded.
    fn whole(&mut self, op: Un, bits: Bits, conversion: u32, d: u32, x: u32) {
        let limit = match bits {
            Bits::B32 => i64::from(WHOLE_FLOAT.to_bits()),
            Bits::B64 => WHOLE_DOUBLE.to_bits() as i64,
        };
        self.code.vector(table::SIGN_XOR, d, x, x);
        self.code.int(OWN, limit);
        self.code.two(table::to_float_register(bits), OWN_FLOAT, OWN);
        self.code.vector(table::LESS_THAN_SCALAR, MASK, d, OWN_FLOAT);
        let mode = match op {
            Un::Floor => Some(table::DOWNWARDS),
            Un::Ceil => Some(table::UPWARDS),
            _ => None,
        };
        if let Some(mode) = mode {
            self.code.two(table::SET_MODE, SECOND, mode);
        }
        self.code.vector(table::masked(conversion), d, x, 0);
        if mode.is_some() {
            self.code.two(table::RESTORE_MODE, 0, SECOND);
        }
        self.code.vector(table::masked(table::FROM_INT), d, d, 0);
        // The sign of x, also for zeros.
        self.code.vector(table::SIGN, d, d, x);
    }
}
