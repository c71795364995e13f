//! Sorts positions by the number at each position: a stable radix sort, from the lowest digit to the highest.
//!
//! Numbers are mapped to keys of whole bytes whose unsigned order is theirs. All digits are counted in one
//! pass. Digits that are equal in all keys are skipped, so that small integers of a large type take one or
//! two passes.

use super::cx::LowerCx;
use super::runtime::{eq, int};
use crate::nest::{BinOp, Buf, Expr, KernelBuilder, LoopKind, Scalar, UnOp};
use crate::ops::topk::keys;
use crate::sym::Dim;
use crate::tensor::ElemType;

/// Fewer numbers are sorted faster by merging.
pub const LEAST: i64 = 128;
/// Values of a digit.
const DIGIT: i64 = 256;

/// Number of bytes of a type's keys; `None` for types without keys.
pub fn digits(ty: ElemType) -> Option<i64> {
    match ty {
        ElemType::F64 | ElemType::I64 | ElemType::U64 => Some(8),
        ElemType::F32 | ElemType::I32 | ElemType::U32 => Some(4),
        ElemType::I16 | ElemType::U16 => Some(2),
        ElemType::I8 | ElemType::U8 => Some(1),
        _ => None,
    }
}

/// An i64 with the key in its lowest bytes. Zeros are equal; NaNs are equal and come last.
pub fn key(k: &mut KernelBuilder, ty: ElemType, v: Expr) -> Expr {
    let to = ElemType::I64;
    let turned = |v: Expr| Expr::bin(BinOp::Xor, v, int(i64::MIN));
    match ty {
        ElemType::U64 => Expr::un(UnOp::Bits(to), v),
        ElemType::I64 => turned(v),
        ElemType::F64 => turned(keys::ordered(k, ty, v)),
        _ => {
            let v = Expr::cast(ElemType::I32, to, keys::ordered(k, ty, v));
            let least = match ty {
                ElemType::U8 | ElemType::U16 => 0,
                // Keys of u32 already have the sign bit flipped.
                ElemType::U32 => i64::from(i32::MIN),
                ElemType::F32 => i64::from(i32::MIN),
                ty => Scalar::lowest(ty).to_i64(),
            };
            v - int(least)
        }
    }
}

/// Scratch for sorting: the ordered positions, a second buffer for them, and the counts of each digit's
/// values.
#[derive(Clone, Copy)]
pub struct Lists {
    /// The result of [`positions`].
    pub order: Buf,
    next: Buf,
    counts: Buf,
}

impl Lists {
    /// Scratch for lists of `n` keys of `digits` bytes, one per index of `outer`.
    pub fn new(cx: &mut LowerCx, outer: &[Dim], n: Dim, digits: i64) -> Lists {
        let mut buf = |name: &str, dims: &[Dim]| cx.temp(name, ElemType::I64, [outer, dims].concat());
        Lists {
            order: buf("order", &[n]),
            next: buf("next", &[n]),
            counts: buf("digits", &[Dim::constant(digits), DIGIT.into()]),
        }
    }
}

/// A buffer of the positions 0..n ordered by `value`, whose type has keys of `digits` bytes.
pub fn sort(
    cx: &mut LowerCx,
    n: Dim,
    ty: ElemType,
    digits: i64,
    value: impl Fn(&KernelBuilder, Dim) -> Expr,
) -> Buf {
    let lists = Lists::new(cx, &[], n, digits);
    cx.kernel(|k| {
        positions(k, &[], n, digits, &lists, |k, i| {
            let v = value(k, i);
            key(k, ty, v)
        })
    });
    lists.order
}

/// Orders the positions 0..n by their keys of `digits` bytes, in the lists at the indices `o`.
pub fn positions(
    k: &mut KernelBuilder,
    o: &[Dim],
    n: Dim,
    digits: i64,
    lists: &Lists,
    key: impl Fn(&mut KernelBuilder, Dim) -> Expr,
) {
    let Lists { order, next, counts } = *lists;
    let (spot, count) = (|i: Dim| [o, &[i]].concat(), |d: Dim, g: Dim| [o, &[d, g]].concat());
    let digit = |key: Expr, d: Dim| {
        Expr::bin(BinOp::And, Expr::bin(BinOp::Shr, key, Expr::index(d * 8)), int(DIGIT - 1))
    };
    k.nest(LoopKind::Seq, &[Dim::constant(digits), DIGIT.into()], |k, at| {
        k.store(counts, &count(at[0], at[1]), int(0))
    });
    let last = k.acc(int(0));
    k.range(LoopKind::Seq, "i", 0, n, |k, i| {
        k.store(order, &spot(i), Expr::index(i));
        let key = key(k, i);
        let key = k.let_(key);
        k.set(last, key.clone());
        for d in (0..digits).map(Dim::constant) {
            k.at_index(digit(key.clone(), d), DIGIT.into(), |k, g| {
                let c = k.load(counts, &count(d, g));
                k.store(counts, &count(d, g), c + int(1));
            });
        }
    });
    k.range(LoopKind::Seq, "d", 0, digits, |k, d| {
        let of_last =
            k.with_index(digit(Expr::acc(last), d), DIGIT.into(), |k, g| k.load(counts, &count(d, g)));
        k.if_(Expr::un(UnOp::Not, eq(of_last, Expr::index(n))), |k| {
            let sum = k.acc(int(0));
            k.range(LoopKind::Seq, "g", 0, DIGIT, |k, g| {
                let c = k.load(counts, &count(d, g));
                let c = k.let_(c);
                // The destination of the first number with this digit.
                k.store(counts, &count(d, g), Expr::acc(sum));
                k.update(BinOp::Add, sum, c);
            });
            k.range(LoopKind::Seq, "i", 0, n, |k, i| {
                let e = k.load(order, &spot(i));
                k.at_index(e, n, |k, e| {
                    let key = key(k, e);
                    k.at_index(digit(key, d), DIGIT.into(), |k, g| {
                        let place = k.load(counts, &count(d, g));
                        let place = k.let_(place);
                        k.store(counts, &count(d, g), place.clone() + int(1));
                        k.at_index(place, n, |k, p| k.store(next, &spot(p), Expr::index(e)));
                    });
                });
            });
            k.range(LoopKind::Seq, "i", 0, n, |k, i| {
                let e = k.load(next, &spot(i));
                k.store(order, &spot(i), e);
            });
        });
    });
}
