//! Short rows: each element counts the elements that are larger, in vectors and without branches. If the
//! length of rows is known only at run time, a check decides whether they are short enough.
//!
//! ```text
//! larger[i] = number of j with key[j] > key[i]
//! place[i] = larger[i] + equal[larger[i]]++, with equal = 0, 0, ...
//! y[place[i]] = x[i]          where place[i] < k
//! ```

use super::keys::{spot, suits};
use super::{Row, RowAt, TopK};
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

/// Scratch of a row.
pub(super) struct Short {
    ranks: Ranks,
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
        Some((Short { ranks: Ranks::new(cx, outer, length), length }, when))
    }
}

impl TopK {
    /// Computes one row.
    pub(super) fn by_counting(&self, k: &mut KernelBuilder, row: &RowAt, s: &Short) {
        k.range(LoopKind::Par, "j", 0, s.length, |k, j| {
            let key = self.key_at(k, row, j);
            k.store(s.ranks.keys, &spot(row.o, j), key);
        });
        places(k, row.o, s.length, &s.ranks, |k, i, place| {
            let put = |k: &mut KernelBuilder| {
                k.at_index(place.clone(), row.count, |k, at| {
                    let v = k.load(row.x, &row.at(i));
                    row.store(k, at, v, Expr::index(i));
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

/// Keys whose order is found by counting: i32, as lanes hold twice as many of them as of packed keys.
#[derive(Clone, Copy)]
pub(super) struct Ranks {
    pub keys: Buf,
    /// The number of larger keys.
    larger: Buf,
    /// The number of keys so far that as many keys are larger than.
    equal: Buf,
    /// Capacity.
    room: Dim,
}

impl Ranks {
    /// Scratch for `room` keys, one per index of `outer`.
    pub fn new(cx: &mut LowerCx, outer: &[Dim], room: Dim) -> Ranks {
        let dims: Vec<Dim> = outer.iter().copied().chain([room]).collect();
        let mut buf = |name: &str| cx.temp(name, ElemType::I32, dims.clone());
        Ranks { keys: buf("keys"), larger: buf("larger"), equal: buf("equal"), room }
    }
}

/// Calls `body` with each of the first `n` positions of a list of keys and its place in the order, an i64. Of
/// equal keys the first one comes first.
pub(super) fn places(
    k: &mut KernelBuilder,
    o: &[Dim],
    n: Dim,
    s: &Ranks,
    mut body: impl FnMut(&mut KernelBuilder, Dim, Expr),
) {
    let (none, one) = (Expr::int(ElemType::I32, 0), Expr::int(ElemType::I32, 1));
    k.range(LoopKind::Par, "j", 0, n, |k, j| k.store(s.equal, &spot(o, j), none.clone()));
    k.range(LoopKind::Seq, "once", 0, 1, |k, _| {
        k.range(LoopKind::Par, "i", 0, n, |k, i| {
            let larger = k.acc(none.clone());
            k.range(LoopKind::Seq, "j", 0, n, |k, j| {
                let hit = Expr::bin(BinOp::Lt, k.load(s.keys, &spot(o, i)), k.load(s.keys, &spot(o, j)));
                k.update(BinOp::Add, larger, Expr::select(hit, one.clone(), none.clone()));
            });
            k.store(s.larger, &spot(o, i), Expr::acc(larger));
        });
    });
    k.range(LoopKind::Seq, "i", 0, n, |k, i| {
        let wide = |v: Expr| Expr::cast(ElemType::I32, ElemType::I64, v);
        let larger = k.let_(wide(k.load(s.larger, &spot(o, i))));
        k.at_index(larger.clone(), s.room, |k, at| {
            let equal = k.let_(k.load(s.equal, &spot(o, at)));
            k.store(s.equal, &spot(o, at), equal.clone() + one.clone());
            let place = k.let_(larger + wide(equal));
            body(k, i, place);
        });
    });
}
