//! Groups of short numbers in one element: the factors of dot products.

use crate::tensor::ElemType;

/// The elements of a factor of [`Expr::Dot`](super::Expr::Dot).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DotKind {
    /// Four bytes, unsigned in a and signed in b; sums are i32, modulo 2^32.
    Bytes,
    /// Four signed bytes each.
    SignedBytes,
    /// Four signed bytes each, where the sum of the first and the third product, and that of the others, are
    /// 16-bit integers modulo 2^16: exact if one factor contains no -128.
    NarrowBytes,
    /// Four unsigned bytes each.
    UnsignedBytes,
    /// As [`DotKind::Bytes`], but the accumulator is two signed 16-bit integers, modulo 2^16: to each, the
    /// saturated sum of the products of its two bytes is added.
    PairedBytes,
    /// Two signed integers of 16 bits; sums are i32, modulo 2^32.
    Words,
    /// Four signed integers of 16 bits in a, of which the second is the factor of the third in b, and the
    /// third that of the second; four signed bytes in b. Sums are i32, modulo 2^32.
    WordsByBytes,
    /// Two bf16, the upper one first; sums are f32.
    Halves,
    /// As [`DotKind::Bytes`], eight of each.
    LongBytes,
    /// Eight signed bytes each.
    LongSignedBytes,
    /// As [`DotKind::NarrowBytes`], twice: of the first four bytes and of the others.
    LongNarrowBytes,
    /// Eight unsigned bytes each.
    LongUnsignedBytes,
    /// Four bf16: two of [`DotKind::Halves`], the lower one first.
    LongHalves,
}

impl DotKind {
    /// All of them.
    pub const ALL: [DotKind; 13] = [
        DotKind::Bytes,
        DotKind::SignedBytes,
        DotKind::NarrowBytes,
        DotKind::UnsignedBytes,
        DotKind::PairedBytes,
        DotKind::Words,
        DotKind::WordsByBytes,
        DotKind::Halves,
        DotKind::LongBytes,
        DotKind::LongSignedBytes,
        DotKind::LongNarrowBytes,
        DotKind::LongUnsignedBytes,
        DotKind::LongHalves,
    ];
    /// Its operation in texts.
    pub fn name(self) -> &'static str {
        match self {
            DotKind::Bytes => "dot4",
            DotKind::SignedBytes => "dot4s",
            DotKind::NarrowBytes => "dot4n",
            DotKind::UnsignedBytes => "dot4u",
            DotKind::PairedBytes => "dot4p",
            DotKind::Words => "dot2i",
            DotKind::WordsByBytes => "dot4w",
            DotKind::Halves => "dot2",
            DotKind::LongBytes => "dot8",
            DotKind::LongSignedBytes => "dot8s",
            DotKind::LongNarrowBytes => "dot8n",
            DotKind::LongUnsignedBytes => "dot8u",
            DotKind::LongHalves => "dot4h",
        }
    }
    /// Type of the accumulator.
    pub fn sum(self) -> ElemType {
        if matches!(self, DotKind::Halves | DotKind::LongHalves) { ElemType::F32 } else { ElemType::I32 }
    }
    /// Types of the factors.
    pub fn factors(self) -> [ElemType; 2] {
        match self {
            DotKind::WordsByBytes => [ElemType::I64, ElemType::I32],
            g if g.is_long() => [ElemType::I64; 2],
            _ => [ElemType::I32; 2],
        }
    }
    /// Parts of a factor.
    pub fn size(self) -> i64 {
        match self {
            DotKind::Words | DotKind::Halves => 2,
            DotKind::Bytes
            | DotKind::SignedBytes
            | DotKind::NarrowBytes
            | DotKind::UnsignedBytes
            | DotKind::PairedBytes
            | DotKind::WordsByBytes
            | DotKind::LongHalves => 4,
            DotKind::LongBytes
            | DotKind::LongSignedBytes
            | DotKind::LongNarrowBytes
            | DotKind::LongUnsignedBytes => 8,
        }
    }
    /// True for groups of bytes with a single accumulator.
    pub fn is_bytes(self) -> bool {
        self.signs().is_some()
    }
    /// True for groups of 64 bits in both factors.
    pub fn is_long(self) -> bool {
        self.size() == 8 || self == DotKind::LongHalves
    }
    /// The signedness of the bytes of the first and of the second factor; `None` for other groups.
    pub fn signs(self) -> Option<(bool, bool)> {
        match self {
            DotKind::Bytes | DotKind::LongBytes => Some((false, true)),
            DotKind::SignedBytes
            | DotKind::NarrowBytes
            | DotKind::LongSignedBytes
            | DotKind::LongNarrowBytes => Some((true, true)),
            DotKind::UnsignedBytes | DotKind::LongUnsignedBytes => Some((false, false)),
            DotKind::PairedBytes
            | DotKind::Words
            | DotKind::WordsByBytes
            | DotKind::Halves
            | DotKind::LongHalves => None,
        }
    }
    /// The group of twice as many bytes, if there is one.
    pub fn doubled(self) -> Option<DotKind> {
        match self {
            DotKind::Bytes => Some(DotKind::LongBytes),
            DotKind::SignedBytes => Some(DotKind::LongSignedBytes),
            DotKind::NarrowBytes => Some(DotKind::LongNarrowBytes),
            DotKind::UnsignedBytes => Some(DotKind::LongUnsignedBytes),
            _ => None,
        }
    }
}
