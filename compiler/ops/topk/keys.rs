//! Keys of elements: each element is mapped to an integer that is larger for elements that come first, an i32
//! for elements of at most 32 bits. An i32 and a position are packed into a 64-bit integer, so that all
//! comparisons are on integers and no two are equal.

use super::{Row, RowAt, TopK};
use crate::nest::{BinOp, Expr, KernelBuilder, Scalar, UnOp};
use crate::ops::LowerCx;
use crate::ops::support::runtime::int;
use crate::sym::Dim;
use crate::tensor::ElemType;

/// Number of positions that can be packed with a key.
pub const POSITIONS: i64 = 1 << 32;

/// True if elements have keys, and positions of the row can be packed with them.
pub(super) fn suits(k: &LowerCx, row: &Row) -> bool {
    let narrow = matches!(
        row.ty,
        ElemType::F32
            | ElemType::I32
            | ElemType::U32
            | ElemType::I16
            | ElemType::U16
            | ElemType::I8
            | ElemType::U8
    );
    narrow && row.count.as_const() != Some(0) && k.m.syms.range(row.n).hi.is_some_and(|n| n < POSITIONS)
}

impl TopK {
    /// An i32, or an i64 for elements of 64 bits, that is larger for elements that come first.
    fn key(&self, k: &mut KernelBuilder, ty: ElemType, v: Expr) -> Expr {
        let key = ordered(k, ty, v);
        if self.largest { key } else { Expr::un(UnOp::BitNot, key) }
    }
    pub(super) fn key_at(&self, k: &mut KernelBuilder, row: &RowAt, i: Dim) -> Expr {
        let v = k.load(row.x, &row.at(i));
        self.key(k, row.ty, v)
    }
}

/// An integer with the order of the numbers of a type: an i32, or an i64 for types of 64 bits. Zeros are
/// equal, NaN is larger than all numbers.
pub fn ordered(k: &mut KernelBuilder, ty: ElemType, v: Expr) -> Expr {
    let to = if ty.bits() > 32 { ElemType::I64 } else { ElemType::I32 };
    let [lowest, highest] = [Scalar::lowest(to), Scalar::highest(to)].map(Expr::from);
    match ty {
        ElemType::F32 | ElemType::F64 => k.shared(v, |k, v| {
            let zero = Expr::num(ty, 0.0);
            let bits = Expr::un(
                UnOp::Bits(to),
                Expr::select(Expr::bin(BinOp::Eq, v.clone(), zero.clone()), zero, v.clone()),
            );
            k.shared(bits, |_, b| {
                let flipped = Expr::bin(BinOp::Xor, b.clone(), highest.clone());
                let key = Expr::select(Expr::bin(BinOp::Lt, b.clone(), Expr::int(to, 0)), flipped, b);
                Expr::select(Expr::un(UnOp::IsNan, v), highest, key)
            })
        }),
        ElemType::U32 | ElemType::U64 => Expr::bin(BinOp::Xor, Expr::un(UnOp::Bits(to), v), lowest),
        t => Expr::cast(t, to, v),
    }
}

pub(super) fn spot(o: &[Dim], i: Dim) -> Vec<Dim> {
    o.iter().chain([&i]).copied().collect()
}

/// Packs key and position: larger for a larger key, and among equal keys for the first position.
pub fn packed(key: Expr, i: Dim) -> Expr {
    let key = Expr::bin(BinOp::Shl, Expr::cast(ElemType::I32, ElemType::I64, key), int(32));
    key + (int(POSITIONS - 1) - Expr::index(i))
}

/// The position in a packed key.
pub fn position(packed: Expr) -> Expr {
    int(POSITIONS - 1) - Expr::bin(BinOp::And, packed, int(POSITIONS - 1))
}
