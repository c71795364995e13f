//! The tile IR: vector operations in SSA form inside counted loops.
//!
//! A value is an integer register (pointers, counters), a whole vector, or a mask of its lanes. Vectors have
//! [`Width::lanes`] lanes of 32 bits; a scalar is a vector whose lanes are all equal. A function that works
//! on elements of 64 bits ([`Func::long`]) has half as many lanes: elements of 32 bits then fill the lower
//! half of a vector, and what is above them is of no use to anybody. Loops carry values as block
//! parameters, as regalloc2 wants them.

mod width;

use crate::codegen::math::Table;
pub use width::Width;

/// Bits of the lanes that an operation works on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Bits {
    B32,
    B64,
}

/// What all lanes of a constant hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Number {
    /// 32 bits.
    Word(u32),
    /// 64 bits.
    Long(u64),
}

impl Number {
    /// Size of the lanes.
    pub(super) fn bits(self) -> Bits {
        match self {
            Number::Word(_) => Bits::B32,
            Number::Long(_) => Bits::B64,
        }
    }
    /// True if no bit is set.
    pub(super) fn is_zero(self) -> bool {
        matches!(self, Number::Word(0) | Number::Long(0))
    }
}

/// A value of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Value(pub(super) u32);

/// What kind of register holds a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// 64-bit integers and pointers.
    Int,
    /// Vectors.
    Vector,
    /// One truth value a lane: a k register, or a vector of zeros and ones (`Width::masks_are_vectors`).
    Mask,
}

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

/// Operations on two vectors, lane by lane; the second operand may come from memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Bin {
    Add,
    Sub,
    Mul,
    Div,
    /// The second operand if either is NaN or both are zero, as the instruction has it.
    Min,
    Max,
    /// NaN if either is; -0 is less than +0. Not on x86-64.
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
    /// The two products of the signed halves of each lane, added.
    MulAddPairs,
    /// In each half of a lane the two products of the bytes of a, unsigned, by those of b, signed, added and cut off
    /// at 16 bits.
    MulAddBytes,
    /// The signed halves of each lane, added modulo 2^16.
    AddWords,
    /// The products of the lower halves of 64-bit lanes, unsigned.
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
    /// The lane of b that the lowest bits of a say.
    Permute,
}

/// Operations on one vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Un {
    Sqrt,
    /// To an integer value, halves to even.
    Round,
    Floor,
    Ceil,
    Trunc,
    /// Floats -> i32: rounding to nearest, towards zero.
    ToInt,
    TruncInt,
    /// Floats -> i64, u64: towards zero. What does not fit becomes i64::MIN and u64::MAX. AVX-512 only.
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
    /// f32 -> f16, packed in the lower half of the vector. 128 bits only.
    Half,
    /// f32 -> bf16, a word in the lower half of each lane; subnormal numbers become 0. 512 bits only.
    Brain,
    /// Four f16 -> f32: those of the lower half of the vector, or of the upper one. 128 bits only.
    Whole {
        upper: bool,
    },
    IAbs,
    Shl(u8),
    Shr(u8),
    Sar(u8),
    /// Lane i <-> lane i ^ k, of lanes of 32 bits.
    Swap(u8),
    /// Truncates each lane to so many bytes (1 or 2) and packs them within each half of 128 bits: those of
    /// the lower half from its byte 0 on, those of the upper half right behind that position in its own half.
    /// The rest is 0. 128 and 256 bits only.
    Narrow(u8),
    /// The 16 bytes number k.
    Part(u8),
}

/// How a vector is in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Form {
    /// 64 bits a lane.
    B64,
    /// 32 bits a lane.
    B32,
    /// IEEE half precision, converted.
    F16,
    /// 8 and 16 bits, extended on load, cut off on store.
    I8,
    U8,
    I16,
    U16,
    /// Stores of 8 bits, 512 bits only: unsigned numbers that are too large become 255.
    NearU8,
}

impl Form {
    /// Bytes of a lane in memory.
    pub fn bytes(self) -> u32 {
        match self {
            Form::B64 => 8,
            Form::B32 => 4,
            Form::F16 | Form::I16 | Form::U16 => 2,
            Form::I8 | Form::U8 | Form::NearU8 => 1,
        }
    }
    /// Bytes of a lane in a register.
    pub(super) fn lane_bytes(self) -> u32 {
        if self == Form::B64 { 8 } else { 4 }
    }
    /// Size of a lane in a register.
    pub fn lane(self) -> Bits {
        if self == Form::B64 { Bits::B64 } else { Bits::B32 }
    }
}

/// Signs of the bytes that a dot product multiplies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Bytes {
    /// Unsigned ones of the first factor, signed ones of the second: AVX512-VNNI, AVX-VNNI, FEAT_I8MM.
    Mixed,
    /// FEAT_DotProd.
    Signed,
    /// The same with sums of two products in 16 bits ([`DotKind::NarrowBytes`](crate::nest::DotKind::NarrowBytes)):
    /// put together only ([`Func::in_words`]).
    Narrow,
    /// FEAT_DotProd.
    Unsigned,
}

/// What eight bytes are that a product of matrices multiplies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Factors {
    /// Bytes; sums are i32. FEAT_I8MM.
    Bytes(Bytes),
    /// bf16; sums are f32. FEAT_BF16.
    Halves,
}

/// What an instruction does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// Defines the parameters.
    Args,
    /// A parameter that arrives on the stack, by number.
    StackArg(u32),
    /// An integer.
    Int(i64),
    /// a + immediate.
    AddImm(i32),
    /// a + b.
    Add,
    /// a & immediate.
    AndImm(i32),
    /// a * immediate.
    MulImm(i32),
    /// The lesser of a and b.
    Lesser,
    /// The greater of a and b.
    Greater,
    /// The address of the memory operand.
    Address,
    /// The first lane of a vector of integers.
    First(Bits),
    /// All lanes the same number.
    Const(Number),
    /// A number for each lane; of 16, as many as there are.
    Table(&'static Table),
    /// A small number for each lane of 32 bits.
    LaneNumbers([u8; 16]),
    /// The mask of the lanes of 32 bits whose bits are set.
    SomeLanes(u32),
    /// Lane numbers 0, 1, 2, ... times a number.
    Iota(u32, Bits),
    /// An integer in all lanes.
    Splat(Bits),
    /// An integer as f32, rounded once, in all lanes.
    SplatFloat,
    /// The mask of the first n lanes.
    FirstLanes(u32),
    /// A vector from memory; an argument is a mask, lanes outside read as 0 and touch nothing.
    Load(Form),
    /// The first lanes of a vector from memory; the others are 0. 128 bits only.
    LoadFirst(Form, u8),
    /// lane i = mem\[base + index\[i\] * size of the form\]. Arguments: index (lanes of `builder`'s index
    /// size) and mask, which the instruction clobbers: nobody else may read it. Lanes outside the mask
    /// become 0. A form of less than 32 bits loads the 4 bytes at base + index\[i\].
    Gather(Form),
    /// One element of memory in all lanes; an argument is a mask, without lanes in which nothing is read.
    Broadcast(Form),
    /// lane i = mem\[base + i * step\]. Arguments: step in bytes and, where there is one, a mask, as with
    /// [`Op::Load`]. RISC-V only, as what follows about registers of floats.
    LoadStrided(Form),
    /// A float from memory in a register of floats, by number: selection gives them out.
    Element(Form, u8),
    /// A number in a register of floats.
    Number(Number, u8),
    /// A register of floats in all lanes.
    SplatScalar(Bits, u8),
    /// Asks for a line of memory, into the second-level cache if `far`; the address need not exist.
    Prefetch {
        /// Not into the first.
        far: bool,
    },
    /// A vector to memory; a second argument is a mask.
    Store(Form),
    /// The inverse of [`Op::LoadStrided`]: the vector, the step, a mask.
    StoreStrided(Form),
    /// The first lanes of a vector to memory. 128 bits only.
    StoreFirst(Form, u8),
    /// A lane of the first 16 bytes to memory, cut off as its form says.
    StoreLane(Form, u8),
    /// A lane each to where the second argument says, as with [`Op::Gather`]; the third is a mask, used up.
    /// AVX-512 only.
    Scatter(Form),
    /// 1 or more if a mask has any lane, else 0.
    AnyLane,
    /// The first lane to memory.
    StoreScalar(Bits),
    /// Lane by lane.
    Bin(Bin, Bits),
    /// `Bin` with a register of floats as the second operand, or the first one.
    BinScalar {
        /// Operation.
        op: Bin,
        /// Size of the lanes.
        bits: Bits,
        /// Register.
        f: u8,
        /// It is the first operand.
        reversed: bool,
    },
    /// `Bin` with an integer for all lanes as the second operand.
    BinInt(Bin, Bits),
    /// Lane by lane: bits of the operand.
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
    /// `Fma231` whose last factor is a register of floats.
    FmaScalar {
        /// Subtract the product.
        neg: bool,
        /// Size of the lanes.
        bits: Bits,
        /// Register.
        f: u8,
    },
    /// `Fma231` whose last factor is one lane of a vector for all lanes of the result. 128 bits only.
    FmaLane {
        /// Subtract the product.
        neg: bool,
        /// Size of the lanes.
        bits: Bits,
        /// The lane of the last factor.
        lane: u8,
    },
    /// First argument plus the second times one lane of the third, for all lanes, rounded once: eight lanes of
    /// f16. It overwrites the first; selection makes it of products of f32 ([`Func::halves`]). 128 bits only.
    FmaHalves {
        /// The lane of the third argument.
        lane: u8,
    },
    /// First argument plus four products of bytes a lane, of the second and the third. It overwrites the
    /// first.
    Dot(Bytes),
    /// `Dot` whose last factor is one lane of a vector for all lanes of the result. 128 bits only.
    DotLane {
        /// Signs.
        bytes: Bytes,
        /// Of mixed ones, those of the last factor are unsigned.
        swapped: bool,
        /// The lane of the last factor.
        lane: u8,
    },
    /// The products of eight bytes of both arguments, as integers of 16 bits: of the lower halves, or the upper ones.
    /// Not of mixed signs. 128 bits only.
    MulBytes {
        /// Signs.
        bytes: Bytes,
        /// Upper halves.
        upper: bool,
    },
    /// The first argument and such products of the others, added modulo 2^16; it overwrites the first. 128 bits only.
    AddMulBytes {
        /// Signs.
        bytes: Bytes,
        /// Upper halves.
        upper: bool,
    },
    /// First argument plus the two integers of 16 bits of the second in each lane; it overwrites the first. 128
    /// bits only.
    AddPairs(Bytes),
    /// The bytes of the first argument that those of the second say. 128 bits only.
    BytesFrom,
    /// First argument plus the products of eight bytes or four bf16 a lane: of the second, whose halves are
    /// alike, and of eight bytes of memory for each lane in the third (lanes 0 and 1) and the fourth (2 and
    /// 3). It overwrites the first; selection makes [`Op::MatrixDot`] of it, or two
    /// [`Op::Dot`] ([`Func::in_quads`]). 128 bits only.
    Dot8 {
        /// What is multiplied.
        of: Factors,
        /// Of mixed ones, those of the second argument are signed.
        swapped: bool,
    },
    /// First argument, two rows of two sums, plus the product of two rows of eight bytes (the third) and of
    /// two columns of eight bytes (the second). It overwrites the first. 128 bits only.
    MatrixDot {
        /// What is multiplied.
        of: Factors,
        /// Of mixed ones, those of the third argument are signed, and the sums are in columns.
        swapped: bool,
    },
    /// The numbers of lanes, each with some bits turned: where [`Un::Swap`] takes them from.
    LanesSwapped(u8, Bits),
    /// The lanes of the first argument that the second one says, as numbers of their size.
    Permuted(Bits),
    /// The lower halves of two vectors side by side, lane by lane in turn; the upper ones if `upper`. 128
    /// bits only.
    Zip {
        /// Size of the lanes.
        bits: Bits,
        /// Upper halves.
        upper: bool,
    },
    /// The lanes of 32 bits with even numbers, of the first and then of the second argument; those with odd
    /// ones if `odd`. 128 bits only.
    Unzip {
        /// Odd numbers.
        odd: bool,
    },
    /// c + the products of two pairs of bf16, the upper ones first.
    Dot2,
    /// Compares floats.
    Cmp(Pred, Bits),
    /// Compares signed integers.
    ICmp(Pred, Bits),
    /// Masks combined.
    MaskAnd,
    /// Masks combined.
    MaskOr,
    /// Masks combined.
    MaskXor,
    /// The lanes of its second argument where the mask (the third) is set, else those of the first.
    Select(Bits),
    /// `Select` that overwrites one of its arguments, by number. 128 bits only.
    SelectInto(Bits, u8),
    /// To the only successor.
    Jump,
    /// To the first successor if a < b (or a < immediate), else to the second.
    BranchLess(Option<i32>),
    /// The end.
    Ret,
    /// The end, with 0 as the result if a mask has no lane.
    RetAny,
}

impl Op {
    /// True for operations that RISC-V alone has.
    pub(super) fn is_of_riscv(self) -> bool {
        matches!(
            self,
            Op::LoadStrided(_)
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
    /// True for operations that are about their memory operand; with others it stands for the last argument.
    pub(super) fn is_memory(self) -> bool {
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
                | Op::StoreStrided(_)
                | Op::Element(..)
                | Op::Address
        )
    }
}

/// A memory operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Mem {
    /// Pointer.
    pub base: Value,
    /// Added, times 1, 2, 4 or 8.
    pub index: Option<(Value, u8)>,
    /// Bytes added.
    pub disp: i32,
}

/// The line of a text that an instruction comes from, 0 without debug information. All are equal: functions
/// are compared by what they do.
#[derive(Clone, Copy, Debug, Default)]
pub struct Line(pub u32);

impl PartialEq for Line {
    fn eq(&self, _: &Line) -> bool {
        true
    }
}

impl Eq for Line {}

impl std::hash::Hash for Line {
    fn hash<H: std::hash::Hasher>(&self, _: &mut H) {}
}

/// An instruction.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Node {
    /// Operation.
    pub op: Op,
    /// Operands.
    pub args: Vec<Value>,
    /// Memory operand.
    pub mem: Option<Mem>,
    /// A number in all lanes, read from behind the code, in place of the last operand.
    pub literal: Option<Number>,
    /// Result.
    pub def: Option<Value>,
    /// Where it comes from.
    pub line: Line,
}

/// A basic block.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Block {
    /// Instructions; the last one leaves.
    pub nodes: Vec<Node>,
    /// Values that predecessors hand over.
    pub params: Vec<Value>,
    /// Where it goes.
    pub succs: Vec<usize>,
    /// Where it comes from.
    pub preds: Vec<usize>,
    /// What it hands to its only successor.
    pub jump_args: Vec<Value>,
}

/// A finished function. Equal functions have equal code.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Func {
    /// Vector length.
    pub width: Width,
    /// Vectors have lanes of 64 bits, and half as many.
    pub long: bool,
    /// For cores that begin no instruction before the one before it.
    pub in_order: bool,
    /// Products of f16 may be added up as f16, up to [`HALVES`](crate::nest::HALVES) of them.
    pub halves: bool,
    /// The machine has no dot products of bytes: they are put together.
    pub in_words: bool,
    /// The machine has no products of matrices of bytes: dot products of eights are two of quads each.
    pub in_quads: bool,
    /// Parameters in order; the first ones arrive in registers (`Width::register_params`).
    pub params: Vec<Value>,
    /// Classes of all values.
    pub classes: Vec<Class>,
    /// Blocks in the order of their code; the first is the entry.
    pub blocks: Vec<Block>,
}
