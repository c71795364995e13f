//! What lanes hold: their sizes, constants, formats in memory and the factors of dot products.

/// The width of the lanes of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Bits {
    B32,
    B64,
}

/// A constant in all lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Number {
    /// 32 bits.
    Word(u32),
    /// 64 bits.
    Long(u64),
}

impl Number {
    /// Size of the lanes.
    pub(in crate::codegen::tile) fn bits(self) -> Bits {
        match self {
            Number::Word(_) => Bits::B32,
            Number::Long(_) => Bits::B64,
        }
    }
    /// 128 bits.
    pub(in crate::codegen::tile) fn vector(self) -> [u32; 4] {
        match self {
            Number::Word(x) => [x; 4],
            Number::Long(x) => [x as u32, (x >> 32) as u32, x as u32, (x >> 32) as u32],
        }
    }
    /// True if no bit is set.
    pub(in crate::codegen::tile) fn is_zero(self) -> bool {
        matches!(self, Number::Word(0) | Number::Long(0))
    }
}

/// A constant in all lanes, or an integer, that an instruction reads from memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Literal {
    /// 32 bits, behind the code.
    Word(u32),
    /// 64 bits, behind the code.
    Long(u64),
    /// An entry of the literals whose address the caller passes
    /// ([`merge`](crate::codegen::tile::merge)).
    Passed(u32, Bits),
    /// An entry of the integers among them, as the operand of an addition or a comparison.
    Integer(u32),
}

impl Literal {
    /// Size of the lanes.
    pub(in crate::codegen::tile) fn bits(self) -> Bits {
        match self {
            Literal::Word(_) => Bits::B32,
            Literal::Long(_) | Literal::Integer(_) => Bits::B64,
            Literal::Passed(_, bits) => bits,
        }
    }
}

impl From<Number> for Literal {
    fn from(x: Number) -> Literal {
        match x {
            Number::Word(x) => Literal::Word(x),
            Number::Long(x) => Literal::Long(x),
        }
    }
}

/// The memory format of a vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Form {
    /// 64 bits a lane.
    B64,
    /// 32 bits a lane.
    B32,
    /// IEEE half precision, converted.
    F16,
    /// 8 and 16 bits, extended when loaded, truncated when stored.
    I8,
    U8,
    I16,
    U16,
    /// Stores of 8 bits, 512 bits only: unsigned values above 255 saturate.
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
    pub(in crate::codegen::tile) fn lane_bytes(self) -> u32 {
        if self == Form::B64 { 8 } else { 4 }
    }
    /// Size of a lane in a register.
    pub fn lane(self) -> Bits {
        if self == Form::B64 { Bits::B64 } else { Bits::B32 }
    }
}

/// Signedness of the operands of a byte dot product.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Bytes {
    /// The first factor is unsigned, the second one signed: AVX512-VNNI, AVX-VNNI, FEAT_I8MM.
    Mixed,
    /// FEAT_DotProd.
    Signed,
    /// The same with 16-bit sums of two products
    /// ([`DotKind::NarrowBytes`](crate::nest::DotKind::NarrowBytes)): expanded only
    /// ([`Func::in_words`](super::Func::in_words)).
    Narrow,
    /// FEAT_DotProd.
    Unsigned,
}

/// The elements of eight bytes that a matrix product multiplies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Factors {
    /// Bytes; sums are i32. FEAT_I8MM.
    Bytes(Bytes),
    /// bf16; sums are f32. FEAT_BF16.
    Halves,
}
