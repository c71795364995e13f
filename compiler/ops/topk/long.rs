//! Few results of elements of 64 bits, found as in `columns.rs`. Keys fill a word, so that the list of
//! results has their positions beside them.

use super::columns::{columns_of, many_reached};
use super::keys::spot;
use super::limit::{self, Keys};
use super::{FEW, Row, RowAt, TopK};
use crate::nest::{BinOp, Buf, Expr, KernelBuilder, LoopKind, UnOp};
use crate::ops::LowerCx;
use crate::ops::support::runtime::{eq, int, or};
use crate::sym::Dim;
use crate::tensor::ElemType;

/// Scratch for rows: the largest key of each column, and the results in order, after a sentinel.
pub(super) struct Long {
    tops: Keys,
    keys: Buf,
    places: Buf,
}

impl Long {
    /// Scratch, one per index of `outer`; `None` if another method is better.
    pub fn new(cx: &mut LowerCx, row: &Row, outer: &[Dim]) -> Option<Long> {
        let few = row.count.as_const().is_some_and(|c| (1..=FEW).contains(&c));
        if !few || row.ty.bits() != 64 {
            return None;
        }
        let tops = Keys::new(cx, "tops", ElemType::I64, outer, columns_of(row)?.into());
        let dims: Vec<Dim> = outer.iter().copied().chain([row.count + 1]).collect();
        let mut list = |name: &str| cx.temp(name, ElemType::I64, dims.clone());
        Some(Long { tops, keys: list("list"), places: list("places") })
    }
    /// True if an element comes before entry `at` of the list.
    fn before(&self, k: &mut KernelBuilder, o: &[Dim], (key, place): (&Expr, Dim), at: &[Dim]) -> Expr {
        let at = [o, at].concat();
        let (other, its_place) = (k.load(self.keys, &at), k.load(self.places, &at));
        let first = Expr::bin(BinOp::Lt, Expr::index(place), its_place);
        k.shared(other, |_, other| {
            or(Expr::bin(BinOp::Gt, key.clone(), other.clone()), eq(key.clone(), other).and(first))
        })
    }
    fn store(&self, k: &mut KernelBuilder, o: &[Dim], at: Dim, (key, place): (Expr, Expr)) {
        k.store(self.keys, &spot(o, at), key);
        k.store(self.places, &spot(o, at), place);
    }
    /// Inserts an element at its place, unless it comes after all results so far.
    fn insert(&self, k: &mut KernelBuilder, row: &RowAt, (key, place): (Expr, Dim)) {
        let (o, count, extent) = (row.o, row.count, row.count + 1);
        let precedes = |k: &mut KernelBuilder, at: Expr| {
            k.with_index(at, extent, |k, at| self.before(k, o, (&key, place), &[at]))
        };
        let taken = self.before(k, o, (&key, place), &[count]);
        k.if_(taken, |k| {
            let at = k.acc(Expr::index(count));
            let more = precedes(k, Expr::acc(at) - int(1));
            k.while_(more, |k| {
                let entry = |k: &mut KernelBuilder, list: Buf| {
                    let v = k.with_index(Expr::acc(at) - int(1), extent, |k, i| k.load(list, &spot(o, i)));
                    k.let_(v)
                };
                let moved = (entry(k, self.keys), entry(k, self.places));
                k.at_index(Expr::acc(at), extent, |k, i| self.store(k, o, i, moved));
                k.set(at, Expr::acc(at) - int(1));
            });
            let new = (key.clone(), Expr::index(place));
            k.at_index(Expr::acc(at), extent, |k, i| self.store(k, o, i, new));
        });
    }
}

impl TopK {
    /// Computes one row.
    pub(super) fn by_insertion(&self, k: &mut KernelBuilder, row: &RowAt, s: &Long) {
        self.column_tops(k, row, &s.tops);
        let lowest = limit::successive(k, row.o, &s.tops, row.count.as_const().unwrap_or(1));
        let lowest = k.let_(lowest);
        s.store(k, row.o, 0.into(), (int(i64::MAX), int(-1)));
        k.range(LoopKind::Seq, "j", 0, row.count, |k, j| {
            s.store(k, row.o, j + 1, (int(i64::MIN), int(i64::MAX)))
        });
        let by_column = |k: &mut KernelBuilder| {
            self.candidates(k, row, (&s.tops, lowest.clone()), &mut |k, key, i| s.insert(k, row, (key, i)))
        };
        if s.tops.n == row.n {
            by_column(k);
        } else {
            let many = many_reached(k, row, &s.tops, &lowest);
            k.if_(many.clone(), |k| {
                self.in_turn(k, row, (lowest.clone(), s.tops.limit), &mut |k, key, i| {
                    s.insert(k, row, (key, i));
                    // Nothing is above the largest key.
                    let last = k.load(s.keys, &spot(row.o, row.count));
                    let last = k.let_(last);
                    let full = Expr::bin(BinOp::Lt, k.load(s.places, &spot(row.o, row.count)), int(i64::MAX));
                    let more = last.min(int(i64::MAX - 1)) + int(1);
                    Expr::select(full, more, int(i64::MIN))
                })
            });
            k.if_(Expr::un(UnOp::Not, many), by_column);
        }
        k.range(LoopKind::Seq, "j", 0, row.count, |k, j| {
            let place = k.load(s.places, &spot(row.o, j + 1));
            row.take(k, j, place);
        });
    }
}
