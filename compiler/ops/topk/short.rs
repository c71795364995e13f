//! Short rows: each element counts the elements before it in the order, in vectors and without branches. The
//! count is its place in the result. If the length of rows is known only at run time, a check decides whether
//! they are short enough.
//!
//! ```text
//! place[i] = number of j with key[j] > key[i], or key[j] == key[i] and j < i
//! y[place[i]] = x[i]          where place[i] < k
//! ```

use super::keys::{spot, suits};
use super::{Row, TopK};
use crate::nest::{BinOp, Buf, Expr, KernelBuilder, LoopKind};
use crate::ops::LowerCx;
use crate::sym::Dim;
use crate::tensor::ElemType;

/// Longest row: each element is compared with all.
const LONGEST: i64 = 128;
/// Most elements per result: with a larger ratio, the few results are found faster one by one.
const RATIO: i64 = 4;
/// Least number of elements for which a check at run time is worthwhile.
const VECTOR: i64 = 16;

/// Scratch of a row: its keys, and the places of its elements.
pub(super) struct Short {
    keys: Buf,
    places: Buf,
    /// Length of the row if it is short, else of its beginning.
    length: Dim,
}

impl Short {
    /// Scratch, one per index of `outer`, and the condition for short rows if it is known only at run time.
    /// `None` if another method is better.
    pub fn new(cx: &mut LowerCx, row: &Row, outer: &[Dim]) -> Option<(Short, Option<Expr>)> {
        let most = row.count.as_const().map_or(LONGEST, |c| LONGEST.min(RATIO.saturating_mul(c)));
        // The requirements on the lengths: these must not be negative.
        let ratio = row.count.as_const().is_none().then(|| row.count * RATIO - row.n);
        let spare: Vec<Dim> = [Dim::constant(most) - row.n].into_iter().chain(ratio).collect();
        let never = spare.iter().any(|d| cx.m.syms.is_pos(Dim::constant(0) - *d));
        if never || row.n.as_const() == Some(1) || !suits(cx, row) {
            return None;
        }
        let open = spare.into_iter().filter(|d| !cx.m.syms.is_nonneg(*d));
        let when = open.map(|d| Expr::cmp_index(BinOp::Ge, d, 0)).reduce(Expr::and);
        if when.is_some() && most < VECTOR {
            return None;
        }
        let length = if when.is_some() { row.n.min(most) } else { row.n };
        let dims: Vec<Dim> = outer.iter().copied().chain([length]).collect();
        let mut buf = |name: &str| cx.temp(name, ElemType::I32, dims.clone());
        Some((Short { keys: buf("keys"), places: buf("places"), length }, when))
    }
}

impl TopK {
    /// Computes one row.
    pub(super) fn by_counting(&self, k: &mut KernelBuilder, row: &Row, o: &[Dim], s: &Short) {
        k.range(LoopKind::Par, "j", 0, s.length, |k, j| {
            let key = self.key_at(k, row, o, j);
            k.store(s.keys, &spot(o, j), key);
        });
        k.range(LoopKind::Seq, "i", 0, s.length, |k, i| {
            let before = k.acc(Expr::int(ElemType::I32, 0));
            k.range(LoopKind::Seq, "j", 0, s.length, |k, j| {
                let (other, own) = (k.load(s.keys, &spot(o, j)), k.load(s.keys, &spot(o, i)));
                let same = Expr::bin(BinOp::Eq, other.clone(), own.clone());
                let first = Expr::bin(BinOp::And, same, Expr::cmp_index(BinOp::Lt, j, i));
                let hit = Expr::bin(BinOp::Or, Expr::bin(BinOp::Gt, other, own), first);
                let one = Expr::select(hit, Expr::int(ElemType::I32, 1), Expr::int(ElemType::I32, 0));
                k.update(BinOp::Add, before, one);
            });
            k.store(s.places, &spot(o, i), Expr::acc(before));
        });
        k.range(LoopKind::Seq, "i", 0, s.length, |k, i| {
            let place = Expr::cast(ElemType::I32, ElemType::I64, k.load(s.places, &spot(o, i)));
            let place = k.let_(place);
            let put = |k: &mut KernelBuilder| {
                k.at_index(place.clone(), row.count, |k, at| {
                    let v = k.load(row.x, &row.at(o, i));
                    row.store(k, o, at, v, Expr::index(i));
                });
            };
            if row.count == row.n {
                put(k);
            } else {
                k.if_(Expr::bin(BinOp::Lt, place.clone(), Expr::index(row.count)), put);
            }
        });
    }
}
