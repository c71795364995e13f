//! Groups of short numbers in 32 bits: the factors of dot products.

use crate::tensor::ElemType;

/// What a factor of [`Expr::Dot`](super::Expr::Dot) is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Group {
    /// Four bytes, of a unsigned (0..=255), of b signed; sums are i32, modulo 2^32.
    Bytes,
    /// Two signed integers of 16 bits; sums are i32, modulo 2^32.
    Words,
    /// Two bf16, the upper one first; sums are f32.
    Halves,
}

impl Group {
    /// All of them.
    pub const ALL: [Group; 3] = [Group::Bytes, Group::Words, Group::Halves];
    /// Its operation in texts.
    pub fn name(self) -> &'static str {
        match self {
            Group::Bytes => "dot4",
            Group::Words => "dot2i",
            Group::Halves => "dot2",
        }
    }
    /// Type of the sum.
    pub fn sum(self) -> ElemType {
        if self == Group::Halves { ElemType::F32 } else { ElemType::I32 }
    }
    /// Parts of a factor.
    pub fn size(self) -> i64 {
        if self == Group::Bytes { 4 } else { 2 }
    }
}
