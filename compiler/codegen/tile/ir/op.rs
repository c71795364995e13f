//! Operations of the tile IR.

use super::elements::{Bits, Bytes, Factors, Form, Number};
use crate::codegen::math::Table;

/// Comparison; the discriminants are the immediates of `vcmpps` (ordered, quiet) and `vpcmpd`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Pred {
    Eq = 0,
    Lt = 1,
    Le = 2,
    Unordered = 3,
    Ne = 4,
}

/// Lane-wise operations on two vectors; the second operand may be in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Bin {
    Add,
    Sub,
    Mul,
    Div,
    /// The second operand if either is NaN or both are zero, as in x86's `minps`.
    Min,
    Max,
    /// NaN if either operand is NaN; -0 is less than +0. Not on x86-64.
    Least,
    Most,
    And,
    Or,
    Xor,
    /// not a and b.
    AndNot,
    IAdd,
    ISub,
    IMul,
    /// The sum of the two products of the signed 16-bit halves of each lane.
    MulAddPairs,
    /// In each 16-bit half of a lane, the saturated sum of the two products of unsigned bytes of a and signed
    /// bytes of b.
    MulAddBytes,
    /// Adds the signed 16-bit halves of each lane modulo 2^16.
    AddWords,
    /// The unsigned products of the lower halves of 64-bit lanes.
    IMulLow,
    IMin,
    IMax,
    UMin,
    UMax,
    Shl,
    Shr,
    Sar,
    /// a * 2^floor(b), AVX-512 only.
    Scale,
    /// Selects lanes of b by the low bits of the lanes of a.
    Permute,
}

/// Operations on one vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Un {
    Sqrt,
    /// Rounds to an integral value, halves to even.
    Round,
    Floor,
    Ceil,
    Trunc,
    /// Floats -> i32: rounding to nearest, towards zero.
    ToInt,
    TruncInt,
    /// Floats -> i64, u64: towards zero. Values out of range become i64::MIN and u64::MAX. AVX-512 only.
    TruncLong,
    TruncUnsigned,
    /// Integers -> f32; u64 (AVX-512 only, as is i64).
    ToFloat,
    UnsignedToFloat,
    /// Integers -> f64; unsigned ones, AVX-512 only, as is i64.
    ToDouble,
    UnsignedToDouble,
    /// f32 -> f64 and back.
    Double,
    Single,
    /// i32, u32 -> 64 bits.
    Extend,
    ExtendUnsigned,
    /// 64 bits -> the lower 32, not with AVX2.
    Low,
    /// f32 -> f16, packed in the lower half of the vector. Up to 256 bits.
    Half,
    /// f32 -> bf16, in the lower half of each lane; subnormal numbers become 0. 512 bits only.
    Brain,
    /// Four f16 -> f32, from the lower or the upper half of the vector. 128 bits only.
    Whole {
        upper: bool,
    },
    IAbs,
    Shl(u8),
    Shr(u8),
    Sar(u8),
    /// Shifts the 16-bit halves of each lane. x86-64 only.
    ShlWords(u8),
    SarWords(u8),
    /// Exchanges lanes i and i ^ k, of 32 bits.
    Swap(u8),
    /// Truncates each lane to 1 or 2 bytes and packs them within each 128-bit half: those of the lower half
    /// from its byte 0 on, those of the upper half at the following offset of its own half. All other bytes
    /// are 0. 128 and 256 bits only.
    Narrow(u8),
    /// The 16 bytes number k.
    Part(u8),
}

/// The operation of an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// Defines the parameters.
    Args,
    /// A parameter passed on the stack, by index.
    StackArg(u32),
    /// An integer.
    Int(i64),
    /// An integer, entry k of the integers among the literals whose address the caller passes
    /// ([`merge`](crate::codegen::tile::merge)). x86-64 only.
    IntLiteral(u32),
    /// a + immediate.
    AddImm(i32),
    /// a + b.
    Add,
    /// a & immediate.
    AndImm(i32),
    /// a * immediate.
    MulImm(i32),
    /// a * b.
    Mul,
    /// a / b, rounded to zero, of a positive b.
    Quotient,
    /// a >> immediate, rounded down.
    ShrImm(u8),
    /// The minimum of a and b.
    Lesser,
    /// The maximum of a and b.
    Greater,
    /// The address of the memory operand.
    Address,
    /// The first lane of a vector of integers.
    First(Bits),
    /// A constant in all lanes.
    Const(Number),
    /// A constant in all lanes, entry k of the literals whose address the caller passes
    /// ([`merge`](crate::codegen::tile::merge)). Not on RISC-V.
    Literal(u32, Bits),
    /// A constant per lane: the leading ones of 16.
    Table(&'static Table),
    /// A small integer per 32-bit lane.
    LaneNumbers([u8; 16]),
    /// A constant of 16 bytes. 128 bits only.
    ByteNumbers([u8; 16]),
    /// The constant mask of 32-bit lanes with the given bits.
    SomeLanes(u32),
    /// Lane numbers 0, 1, 2, ... times a constant.
    Iota(u32, Bits),
    /// An integer in all lanes.
    Splat(Bits),
    /// An integer as f32, rounded once, in all lanes.
    SplatFloat,
    /// The mask of the first n lanes.
    FirstLanes(u32),
    /// Loads a vector. An optional argument is a mask: inactive lanes become 0 and access nothing.
    Load(Form),
    /// Loads the first lanes of a vector; the others are 0. 128 bits, and forms of 16 bits or less with 256.
    LoadFirst(Form, u8),
    /// lane i = mem\[base + index\[i\] * size of the form\]. Arguments: index (lanes of `builder`'s index
    /// size) and mask, which the instruction clobbers: it may have no other use. Inactive lanes become 0. A
    /// form of less than 32 bits loads the 4 bytes at base + index\[i\].
    Gather(Form),
    /// Loads an element into all lanes. An optional argument is a mask: if it is empty, nothing is read.
    Broadcast(Form),
    /// lane i = mem\[base + i * step\]. Arguments: the step in bytes and, optionally, a mask as in
    /// [`Op::Load`]. RISC-V only, like the following operations on floating-point registers.
    LoadStrided(Form),
    /// lane i = mem\[base + index\[i\]\]. Arguments: the offsets in bytes, unsigned (lanes of `builder`'s
    /// index size), and, optionally, a mask as in [`Op::Load`].
    LoadIndexed(Form),
    /// Loads a float into a floating-point register, assigned by selection.
    Element(Form, u8),
    /// A constant in a floating-point register.
    Number(Number, u8),
    /// Broadcasts a floating-point register.
    SplatScalar(Bits, u8),
    /// Prefetches a cache line, into the second-level cache if `far`; the address need not be valid.
    Prefetch {
        /// Not into the first.
        far: bool,
    },
    /// Stores a vector; an optional second argument is a mask.
    Store(Form),
    /// The inverse of [`Op::LoadStrided`]: the vector, the step, a mask.
    StoreStrided(Form),
    /// Stores the first lanes of a vector, which are packed in its first part. As for [`Op::LoadFirst`].
    StoreFirst(Form, u8),
    /// Stores a lane of the first 16 bytes, truncated to the form.
    StoreLane(Form, u8),
    /// Stores each lane at the offset given by the second argument, as in [`Op::Gather`]; the third is a
    /// mask, which is clobbered. AVX-512 only.
    Scatter(Form),
    /// 1 or more if a mask is not empty, else 0.
    AnyLane,
    /// Stores the first lane.
    StoreScalar(Bits),
    /// A lane-wise binary operation.
    Bin(Bin, Bits),
    /// `Bin` with a floating-point register as the second operand, or as the first one.
    BinScalar {
        /// Operation.
        op: Bin,
        /// Size of the lanes.
        bits: Bits,
        /// Register.
        f: u8,
        /// The register is the first operand.
        reversed: bool,
    },
    /// `Bin` with a broadcast integer as the second operand.
    BinInt(Bin, Bits),
    /// A lane-wise unary operation; bits of the operand.
    Un(Un, Bits),
    /// a * b + c, or c - a * b, rounded once.
    Fma {
        /// Subtract the product.
        neg: bool,
        /// Size of the lanes.
        bits: Bits,
    },
    /// `Fma` that overwrites its first argument: c, a, b (the addend), or a, b, c (a factor).
    Fma231 {
        /// Subtract the product.
        neg: bool,
        /// Size of the lanes.
        bits: Bits,
    },
    /// See `Fma231`.
    Fma213 {
        /// Subtract the product.
        neg: bool,
        /// Size of the lanes.
        bits: Bits,
    },
    /// `Fma231` whose last factor is a floating-point register.
    FmaScalar {
        /// Subtract the product.
        neg: bool,
        /// Size of the lanes.
        bits: Bits,
        /// Register.
        f: u8,
    },
    /// `Fma231` whose last factor is one lane of a vector, broadcast. 128 bits only.
    FmaLane {
        /// Subtract the product.
        neg: bool,
        /// Size of the lanes.
        bits: Bits,
        /// The lane of the last factor.
        lane: u8,
    },
    /// First argument plus the second times one broadcast lane of the third, rounded once: eight lanes of
    /// f16. It overwrites the first; selection derives it from products of f32
    /// ([`Func::halves`](super::Func::halves)). 128 bits only.
    FmaHalves {
        /// The lane of the third argument.
        lane: u8,
    },
    /// The first argument times one broadcast lane of the second, of eight f16. 128 bits only.
    MulHalves {
        /// The lane of the second argument.
        lane: u8,
    },
    /// `Bin` of eight f16: `Add`, `Sub`, `Least` or `Most`; selection derives it from operations on f32. 128
    /// bits only.
    BinHalves(Bin),
    /// First argument plus, in each lane, the products of four bytes of the second and the third. It
    /// overwrites the first.
    Dot(Bytes),
    /// `Dot` whose last factor is one lane of a vector, broadcast. 128 bits only.
    DotLane {
        /// Signs.
        bytes: Bytes,
        /// With mixed signedness, the bytes of the last factor are unsigned.
        swapped: bool,
        /// The lane of the last factor.
        lane: u8,
    },
    /// The 16-bit products of eight bytes of both arguments, from the lower or upper halves. Not with mixed
    /// signedness. 128 bits only.
    MulBytes {
        /// Signs.
        bytes: Bytes,
        /// Upper halves.
        upper: bool,
    },
    /// The first argument plus such products of the others, modulo 2^16; it overwrites the first. 128 bits
    /// only.
    AddMulBytes {
        /// Signs.
        bytes: Bytes,
        /// Upper halves.
        upper: bool,
    },
    /// First argument plus the two 16-bit integers of the second in each lane; it overwrites the first. 128
    /// bits only.
    AddPairs(Bytes),
    /// Selects bytes of the first argument by the bytes of the second; those beyond 15 select 0. 128 bits
    /// only.
    BytesFrom,
    /// Selects bytes of the second argument by the bytes of the third; those beyond 15 select the byte of the
    /// first in their place. It overwrites the first. 128 bits only.
    BytesInto,
    /// First argument plus the products of eight bytes or four bf16 a lane: of the second, whose halves are
    /// alike, and of eight bytes of memory for each lane in the third (lanes 0 and 1) and the fourth (2 and
    /// 3). It overwrites the first; selection makes [`Op::MatrixDot`] of it, or two
    /// [`Op::Dot`] ([`Func::in_quads`](super::Func::in_quads)). 128 bits only.
    Dot8 {
        /// What is multiplied.
        of: Factors,
        /// With mixed signedness, the bytes of the second argument are signed.
        swapped: bool,
    },
    /// First argument, two rows of two sums, plus the product of two rows of eight bytes (the third) and of
    /// two columns of eight bytes (the second). It overwrites the first. 128 bits only.
    MatrixDot {
        /// What is multiplied.
        of: Factors,
        /// With mixed signedness, the bytes of the third argument are signed; the sums are in columns.
        swapped: bool,
    },
    /// The lane numbers with some bits inverted: the source lanes of [`Un::Swap`].
    LanesSwapped(u8, Bits),
    /// Selects lanes of the first argument by the lanes of the second.
    Permuted(Bits),
    /// Interleaves, in each 128 bits, the lanes of the lower halves of two vectors; of the upper ones if
    /// `upper`.
    Zip {
        /// Size of the lanes.
        bits: Bits,
        /// Upper halves.
        upper: bool,
    },
    /// The 32-bit lanes with even indices, of the first and then of the second argument; those with odd
    /// indices if `odd`. 128 bits only.
    Unzip {
        /// Odd numbers.
        odd: bool,
    },
    /// The 128-bit blocks with even indices, of the first and then of the second argument; those with odd
    /// indices if `odd`. 256 and 512 bits only.
    UnzipBlocks {
        /// Odd numbers.
        odd: bool,
    },
    /// Selects 32-bit lanes of the first and the third argument by the lanes of the second: numbers from that
    /// of lanes on are those of the third. It overwrites the first. 512 bits only.
    Permute2,
    /// The same for 16-bit words: the low six bits of a word are the number of one of 64. 512 bits only.
    PermuteWords2,
    /// c + the products of two pairs of bf16, the upper ones first.
    Dot2,
    /// Compares floats.
    Cmp(Pred, Bits),
    /// Compares signed integers.
    ICmp(Pred, Bits),
    /// Compares unsigned integers: `Lt` or `Le`.
    UCmp(Pred, Bits),
    /// Masks combined.
    MaskAnd,
    /// Masks combined.
    MaskOr,
    /// Masks combined.
    MaskXor,
    /// Selects lanes of the second argument where the mask (the third) is set, else those of the first.
    Select(Bits),
    /// `Select` that overwrites one of its arguments, by index. 128 bits only.
    SelectInto(Bits, u8),
    /// Jumps to the only successor.
    Jump,
    /// Branches to the first successor if a < b (or a < immediate), else to the second.
    BranchLess(Option<i32>),
    /// Returns.
    Ret,
    /// Returns 0 if a mask is empty, else a positive number.
    RetAny,
}

impl Op {
    /// True for constants in all lanes.
    pub(in crate::codegen::tile) fn is_constant(self) -> bool {
        matches!(self, Op::Const(_) | Op::Literal(..))
    }
    /// True for operations that exist on RISC-V only.
    pub(in crate::codegen::tile) fn is_of_riscv(self) -> bool {
        matches!(
            self,
            Op::LoadStrided(_)
                | Op::LoadIndexed(_)
                | Op::StoreStrided(_)
                | Op::Element(..)
                | Op::Number(..)
                | Op::SplatScalar(..)
                | Op::BinScalar { .. }
                | Op::BinInt(..)
                | Op::FmaScalar { .. }
                | Op::LanesSwapped(..)
                | Op::Permuted(_)
        )
    }
    /// True for operations that access memory; other operations may have a memory operand in place of their
    /// last argument.
    pub(in crate::codegen::tile) fn is_memory(self) -> bool {
        matches!(
            self,
            Op::Load(_)
                | Op::LoadFirst(..)
                | Op::StoreFirst(..)
                | Op::Gather(_)
                | Op::Broadcast(_)
                | Op::Prefetch { .. }
                | Op::Store(_)
                | Op::StoreLane(..)
                | Op::Scatter(_)
                | Op::StoreScalar(_)
                | Op::LoadStrided(_)
                | Op::LoadIndexed(_)
                | Op::StoreStrided(_)
                | Op::Element(..)
                | Op::Address
        )
    }
}
