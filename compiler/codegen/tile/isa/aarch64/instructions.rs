//! Encodes the operations of a block.

use super::encode::{Emit, number};
use super::registers::LITERALS;
use super::table;
use crate::codegen::tile::ir::{Bin, Bits, Node, Op, Pred, Un};
use crate::diag::{Failure, Result};
use regalloc2::Allocation;

/// The encoder's own integer registers.
const OWN: u32 = 16;
const SECOND: u32 = 17;

fn none(op: Op) -> Failure {
    Failure::bug("encoding of a tile", format!("{op:?} has no instruction"))
}

impl Emit<'_> {
    /// Instructions inside a block.
    pub(super) fn plain(&mut self, n: &Node, al: &[Allocation]) -> Result<()> {
        if n.op != Op::Address && n.op.is_memory() {
            return self.memory(n, al);
        }
        if n.op == Op::Address {
            self.far = None;
            return self.memory(n, al);
        }
        let r: Vec<u32> = al.iter().map(|a| number(*a)).collect();
        let d = r.last().copied().unwrap_or(0);
        match n.op {
            Op::Args => Ok(()),
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
            | Op::AnyLane => {
                // The operation may write a register that the cached address depends on; vector operations do
                // not.
                self.far = None;
                self.scalar(n.op, d, &r);
                Ok(())
            }
            Op::Const(_)
            | Op::LaneNumbers(_)
            | Op::ByteNumbers(_)
            | Op::SomeLanes(_)
            | Op::Iota(..)
            | Op::FirstLanes(_)
            | Op::Table(_) => {
                self.constant(n.op, d);
                Ok(())
            }
            Op::Literal(k, _) => {
                self.code.two(table::vector_access(16, false)[0] | k << 10, d, LITERALS);
                Ok(())
            }
            _ => self.arithmetic(n.op, d, &r),
        }
    }
    /// Integers: addresses, sizes, counts.
    fn scalar(&mut self, op: Op, d: u32, r: &[u32]) {
        match op {
            Op::StackArg(k) => {
                let at = self.stack_param(k);
                self.access(table::int_access(8, false), 8, d, at);
            }
            Op::Int(x) => self.code.int(d, x),
            Op::AddImm(k) => self.code.add(d, r[0], i64::from(k)),
            Op::Add => self.code.three(table::ADD, d, r[0], r[1]),
            Op::AndImm(k) => {
                self.code.int(OWN, i64::from(k));
                self.code.three(table::AND_INT, d, r[0], OWN);
            }
            Op::Mul => self.code.three(table::MUL, d, r[0], r[1]),
            Op::Quotient => self.code.three(table::DIV, d, r[0], r[1]),
            Op::ShrImm(k) => self.code.two(table::ASR | u32::from(k) << 16, d, r[0]),
            Op::MulImm(k) => {
                self.code.int(OWN, i64::from(k));
                self.code.three(table::MUL, d, r[0], OWN);
            }
            Op::Lesser | Op::Greater => {
                self.code.three(table::CMP, 0, r[0], r[1]);
                let condition = if op == Op::Lesser { table::LT } else { table::GT };
                self.code.three(table::CSEL | condition << 12, d, r[0], r[1]);
            }
            Op::First(Bits::B32) => self.code.two(table::SMOV | table::lane_field(4, 0), d, r[0]),
            Op::First(Bits::B64) => self.code.two(table::umov(8, 0), d, r[0]),
            Op::AnyLane => self.any(d, r[0]),
            _ => {}
        }
    }
    /// A positive integer in a register, including its lower half, if a mask is not empty.
    pub(super) fn any(&mut self, d: u32, mask: u32) {
        self.code.two(table::umov(8, 0), OWN, mask);
        self.code.two(table::umov(8, 1), SECOND, mask);
        self.code.three(table::ORR_INT, OWN, OWN, SECOND);
        // Combine the lanes of both halves, zero-extended.
        self.code.two(table::LSR | 32 << 16, SECOND, OWN);
        self.code.three(table::ORR_INT, SECOND, SECOND, OWN);
        self.code.two(table::LSR | 1 << 16, OWN, SECOND);
        self.code.two(table::ADD_IMM, d, OWN);
    }
    /// Constants.
    fn constant(&mut self, op: Op, d: u32) {
        let mask =
            |set: &dyn Fn(u32) -> bool| std::array::from_fn(|i| if set(i as u32) { u32::MAX } else { 0 });
        let long = self.f.long;
        let data: [u32; 4] = match op {
            Op::Const(x) => x.vector(),
            Op::Table(t) => std::array::from_fn(|i| t[i]),
            Op::LaneNumbers(x) => std::array::from_fn(|i| u32::from(x[i])),
            Op::ByteNumbers(x) => {
                std::array::from_fn(|i| u32::from_le_bytes([0, 1, 2, 3].map(|k| x[4 * i + k])))
            }
            Op::SomeLanes(k) => mask(&|i| k >> i & 1 == 1),
            Op::Iota(n, Bits::B32) => std::array::from_fn(|i| i as u32 * n),
            Op::Iota(n, Bits::B64) => [0, 0, n, 0],
            Op::FirstLanes(k) => mask(&|i| (if long { i / 2 } else { i }) < k),
            _ => return,
        };
        let [word, rest @ ..] = data;
        match table::number(word).filter(|_| rest == [word; 3]) {
            _ if data == [0; 4] => self.code.push(table::ZERO | d),
            Some(w) => self.code.push(w | d),
            None => self.code.literal(d, data),
        }
    }
    /// Operations on vectors and masks.
    fn arithmetic(&mut self, op: Op, d: u32, r: &[u32]) -> Result<()> {
        match op {
            Op::Splat(bits) => self.code.two(table::dup(bits), d, r[0]),
            Op::SplatFloat => {
                self.code.two(table::SCVTF_SCALAR, d, r[0]);
                self.code.two(table::dup_lane(Bits::B32, 0), d, d);
            }
            Op::Bin(op, bits) => {
                let word = table::bin(op, bits).ok_or_else(|| none(Op::Bin(op, bits)))?;
                match op {
                    Bin::AndNot => self.code.three(word, d, r[1], r[0]),
                    Bin::Shr | Bin::Sar => {
                        self.code.two(table::NEG[usize::from(bits == Bits::B64)], d, r[1]);
                        self.code.three(word, d, r[0], d);
                    }
                    // a < b, or a > b; then select a where it holds.
                    Bin::Min => {
                        self.code.three(word, d, r[1], r[0]);
                        self.code.three(table::BSL, d, r[0], r[1]);
                    }
                    Bin::Max => {
                        self.code.three(word, d, r[0], r[1]);
                        self.code.three(table::BSL, d, r[0], r[1]);
                    }
                    _ => self.code.three(word, d, r[0], r[1]),
                }
            }
            Op::Un(op, bits) => {
                let [first, second] = table::un(op, bits).ok_or_else(|| none(Op::Un(op, bits)))?;
                match op {
                    Un::Swap(2) => self.code.three(first, d, r[0], r[0]),
                    _ => self.code.two(first, d, r[0]),
                }
                if second != 0 {
                    self.code.two(second, d, d);
                }
            }
            Op::Fma231 { neg, bits } => self.code.three(table::fma(neg, bits), d, r[1], r[2]),
            Op::FmaLane { neg, bits, lane } => {
                self.code.three(table::fma_lane(neg, bits, lane), d, r[1], r[2])
            }
            Op::FmaHalves { lane } => self.code.three(table::fma_halves(lane), d, r[1], r[2]),
            Op::MulHalves { lane } => self.code.three(table::mul_halves(lane), d, r[0], r[1]),
            Op::BinHalves(bin) => {
                let word = table::bin_halves(bin).ok_or_else(|| none(op))?;
                self.code.three(word, d, r[0], r[1]);
            }
            Op::Dot(bytes) => self.code.three(table::dot(bytes), d, r[1], r[2]),
            Op::DotLane { bytes, swapped, lane } => {
                self.code.three(table::dot_lane(bytes, swapped, lane), d, r[1], r[2])
            }
            Op::MulBytes { bytes, upper } => self.code.three(table::mul_bytes(bytes, upper), d, r[0], r[1]),
            Op::AddMulBytes { bytes, upper } => {
                self.code.three(table::add_mul_bytes(bytes, upper), d, r[1], r[2])
            }
            Op::AddPairs(bytes) => self.code.two(table::add_pairs(bytes), d, r[1]),
            Op::BytesFrom => self.code.three(table::TBL, d, r[0], r[1]),
            Op::BytesInto => self.code.three(table::TBX, d, r[1], r[2]),
            // Rows first; with mixed signedness, the unsigned factor first.
            Op::MatrixDot { of, swapped: false } => self.code.three(table::matrix_dot(of), d, r[2], r[1]),
            Op::MatrixDot { of, swapped: true } => self.code.three(table::matrix_dot(of), d, r[1], r[2]),
            Op::Zip { bits, upper } => self.code.three(table::zip(bits, upper), d, r[0], r[1]),
            Op::Unzip { odd } => self.code.three(table::unzip(odd), d, r[0], r[1]),
            Op::Cmp(Pred::Unordered, _) if r[0] != r[1] => return Err(none(op)),
            Op::Cmp(p, bits) => self.compare(table::cmp(p, bits), p, d, r),
            Op::ICmp(p, bits) => self.compare(table::icmp(p, bits), p, d, r),
            Op::UCmp(p, bits) => self.compare(table::ucmp(p, bits), p, d, r),
            Op::MaskAnd => self.code.three(table::AND, d, r[0], r[1]),
            Op::MaskOr => self.code.three(table::ORR, d, r[0], r[1]),
            Op::MaskXor => self.code.three(table::EOR, d, r[0], r[1]),
            // Arguments: the values where the mask is clear and where it is set, the mask.
            Op::SelectInto(_, 0) => self.code.three(table::BIT, d, r[1], r[2]),
            Op::SelectInto(_, 1) => self.code.three(table::BIF, d, r[0], r[2]),
            Op::SelectInto(_, _) => self.code.three(table::BSL, d, r[1], r[0]),
            op => return Err(none(op)),
        }
        Ok(())
    }
    fn compare(&mut self, word: u32, p: Pred, d: u32, r: &[u32]) {
        match p {
            Pred::Eq => self.code.three(word, d, r[0], r[1]),
            Pred::Lt | Pred::Le => self.code.three(word, d, r[1], r[0]),
            // Unordered tests compare a value with itself: NaN differs from itself.
            Pred::Ne | Pred::Unordered => {
                self.code.three(word, d, r[0], r[1]);
                self.code.two(table::NOT, d, d);
            }
        }
    }
}
