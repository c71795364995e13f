//! Groups of short numbers in 32 bits: the factors of dot products.

use crate::tensor::ElemType;

/// What a factor of [`Expr::Dot`](super::Expr::Dot) is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DotKind {
    /// Four bytes, of a unsigned (0..=255), of b signed; sums are i32, modulo 2^32.
    Bytes,
    /// Four signed bytes each.
    SignedBytes,
    /// Four unsigned bytes each.
    UnsignedBytes,
    /// Two signed integers of 16 bits; sums are i32, modulo 2^32.
    Words,
    /// Two bf16, the upper one first; sums are f32.
    Halves,
}

impl DotKind {
    /// All of them.
    pub const ALL: [DotKind; 5] =
        [DotKind::Bytes, DotKind::SignedBytes, DotKind::UnsignedBytes, DotKind::Words, DotKind::Halves];
    /// Its operation in texts.
    pub fn name(self) -> &'static str {
        match self {
            DotKind::Bytes => "dot4",
            DotKind::SignedBytes => "dot4s",
            DotKind::UnsignedBytes => "dot4u",
            DotKind::Words => "dot2i",
            DotKind::Halves => "dot2",
        }
    }
    /// Type of the sum.
    pub fn sum(self) -> ElemType {
        if self == DotKind::Halves { ElemType::F32 } else { ElemType::I32 }
    }
    /// Parts of a factor.
    pub fn size(self) -> i64 {
        if self.is_bytes() { 4 } else { 2 }
    }
    /// True for groups of bytes.
    pub fn is_bytes(self) -> bool {
        matches!(self, DotKind::Bytes | DotKind::SignedBytes | DotKind::UnsignedBytes)
    }
}
