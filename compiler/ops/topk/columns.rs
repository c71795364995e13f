//! Few results of many elements. The row is viewed as a matrix, and the largest key of each column is
//! computed, many columns at once. At least k columns have a largest key that is not below the k-th largest
//! of these. This limit is found by successive maxima, or approximated from below by a bisection. The
//! elements of such columns that are not below the limit, hardly more than k, are inserted into a sorted
//! list, or, if k is not small, collected in a list that is sorted at the end. If the list overflows because
//! many elements are equal, or if k is a large part of the row, `narrow.rs` is used. Many results of a long
//! row are sorted by digits.

use super::keys::{packed, position, spot};
use super::limit::{self, Keys};
use super::narrow::{self, Narrow};
use super::{Row, RowAt, TopK};
use crate::nest::{BinOp, Buf, Expr, KernelBuilder, LoopKind, Reg, Scalar, UnOp};
use crate::ops::LowerCx;
use crate::ops::support::runtime::{eq, int, le};
use crate::sym::Dim;
use crate::tensor::ElemType;

/// Scratch for rows.
pub(super) enum Scratch {
    /// The largest key of each column, and the list.
    Few(Keys, List),
    /// Elements that reach a limit are sorted.
    Narrow(Narrow),
}

/// The list in which packed keys are ordered.
pub(super) enum List {
    /// Each key is inserted at its place.
    Ranked(Buf),
    /// Keys are sorted when all have been collected.
    Sorted(Narrow),
}

/// Up to this many column maxima are found one after the other; a bisection takes as many steps.
const SUCCESSIVE: i64 = 8;
/// Longest list into which entries are inserted in order.
const RANKED: i64 = 16;
/// A row is read sequentially if more than one in this many columns has candidates.
const MANY: i64 = 4;
/// Positions of such a row whose largest key is found at once.
const BLOCK: i64 = 64;

/// The number of columns that minimizes the cost of finding `count` (not 0) of `n` elements: each column
/// costs a look at its maximum, each candidate column a look at its elements. Hardly fewer columns than
/// elements means one element per column. Inserting a candidate takes less time than collecting it to be
/// sorted: few results have fewer columns. (Rows of 100 to 1000 elements then take 0.73 to 0.95 of the time,
/// for 3 to 10 results.)
fn columns(count: i64, n: i64) -> i64 {
    let m = (4.0 * count as f64 * n as f64).sqrt() as i64;
    let (m, elements) = match count {
        ..=RANKED => ((m / 64 * 64).max(64), 2 * n / 3),
        _ => ((m + 63) / 64 * 64, n / 2),
    };
    if m <= elements && m >= 2 * count { m } else { n }
}

/// The number of columns for a row, if that is cheaper than looking at all elements in each step of a
/// bisection. If the length of the row is known only at run time, several columns per result.
pub(super) fn columns_of(row: &Row) -> Option<i64> {
    // More results, and more columns, would not fit a near cache together with the row.
    const MOST: i64 = 512;
    const COLUMNS: i64 = 4032;
    match (row.count.as_const(), row.n.as_const()) {
        (Some(c), Some(n)) => Some(columns(c, n)).filter(|m| *m < n || c <= RANKED),
        (Some(c @ ..=MOST), None) => Some(((8 * c + 63) / 64 * 64).min(COLUMNS)),
        _ => None,
    }
}

/// Length from which a whole row is sorted faster by digits than by merging runs. If all elements are
/// results, no limit reduces the number of equal ones, which take fewer digits.
pub(super) fn least_sorted(row: &Row) -> i64 {
    if row.count == row.n { 1024 } else { 2048 }
}

/// True if a bisection and merging the candidates are faster than sorting the whole row by digits.
pub(super) fn finds_few(row: &Row) -> bool {
    // The number of results for which merging costs as much as the digits: each digit costs as much as
    // merging twice.
    const MERGED: i64 = 2048;
    let part = |c: i64| row.n.as_const().is_none_or(|n| n < least_sorted(row) || 2 * c <= n);
    row.count.as_const().is_none_or(|c| c < MERGED && part(c))
}

/// Scratch for rows, one per index of `outer`.
pub(super) fn scratch(cx: &mut LowerCx, row: &Row, outer: &[Dim]) -> Scratch {
    let Some(columns) = columns_of(row) else { return Scratch::Narrow(Narrow::new(cx, row, outer)) };
    let tops = Keys::new(cx, "tops", ElemType::I32, outer, columns.into());
    let list = match row.count.as_const() {
        Some(..=RANKED) => {
            let dims: Vec<Dim> = outer.iter().copied().chain([row.count + 1]).collect();
            List::Ranked(cx.temp("list", ElemType::I64, dims))
        }
        _ => List::Sorted(Narrow::new(cx, row, outer)),
    };
    Scratch::Few(tops, list)
}

impl TopK {
    /// Computes one row.
    pub(super) fn by_keys(&self, k: &mut KernelBuilder, row: &RowAt, s: &Scratch) {
        match s {
            Scratch::Narrow(narrow) => self.narrow(k, row, narrow, None),
            Scratch::Few(tops, List::Sorted(narrow)) => self.by_list(k, row, tops, narrow),
            Scratch::Few(tops, List::Ranked(list)) => self.by_rank(k, row, tops, *list),
        }
    }
    /// Sorts the candidates, if not too many are equal.
    fn by_list(&self, k: &mut KernelBuilder, row: &RowAt, tops: &Keys, narrow: &Narrow) {
        let wanted = row.count.as_const().unwrap_or(0);
        let entries = narrow.entries();
        // A number beyond the capacity means that the list is not used.
        let filled = k.acc(Expr::index(entries + 1));
        let limit = k.acc(int(i32::MIN.into()));
        k.if_(Expr::cmp_index(BinOp::Ge, row.n, tops.n * 2), |k| {
            let lowest = self.tops(k, row, tops);
            let lowest = k.let_(lowest);
            k.set(limit, Expr::cast(ElemType::I32, ElemType::I64, lowest.clone()));
            let reached = reached(k, row.o, tops, &lowest);
            k.if_(Expr::bin(BinOp::Le, reached, Expr::int(ElemType::I32, 2 * wanted)), |k| {
                k.set(filled, int(0));
                self.collect(k, row, (tops, lowest), (narrow, filled));
            });
        });
        let fits = k.let_(le(Expr::acc(filled), Expr::index(entries)));
        k.if_(fits.clone(), |k| {
            narrow::sort(k, row.o, filled, narrow);
            results(k, row, narrow.order, 0);
        });
        k.if_(Expr::un(UnOp::Not, fits), |k| self.narrow(k, row, narrow, Some(limit)));
    }
    /// Inserts the candidates into a list.
    fn by_rank(&self, k: &mut KernelBuilder, row: &RowAt, tops: &Keys, list: Buf) {
        let lowest = self.tops(k, row, tops);
        let lowest = k.let_(lowest);
        let by_column = |k: &mut KernelBuilder| {
            self.pick(k, row, list, |k, f| {
                self.candidates(k, row, (tops, lowest.clone()), &mut |k, key, i| {
                    let new = k.let_(packed(key, i));
                    f(k, new);
                })
            })
        };
        if tops.n == row.n {
            return by_column(k);
        }
        // If elements are equal, many columns have candidates. Such rows are read sequentially.
        let many = many_reached(k, row, tops, &lowest);
        k.if_(many.clone(), |k| {
            self.pick(k, row, list, |k, f| {
                self.in_turn(k, row, (lowest.clone(), tops.limit), &mut |k, key, i| {
                    let new = k.let_(packed(key, i));
                    let last = f(k, new);
                    let last = k.let_(last);
                    let more = Expr::bin(BinOp::Shr, last.clone(), int(32)) + int(1);
                    Expr::select(eq(last, int(i64::MIN)), int(i64::MIN), more)
                })
            })
        });
        k.if_(Expr::un(UnOp::Not, many), by_column);
    }
    /// A limit, an i32, that is reached by at least as many column maxima as results are requested, and by
    /// hardly more.
    fn tops(&self, k: &mut KernelBuilder, row: &RowAt, s: &Keys) -> Expr {
        self.column_tops(k, row, s);
        if let Some(n @ ..=SUCCESSIVE) = row.count.as_const() {
            return limit::successive(k, row.o, s, n);
        }
        limit::extreme(k, row.o, s, s.count, BinOp::Min, |_, v| v);
        let lowest = k.acc(limit::wide(k, row.o, s.count));
        limit::bisect(k, row.o, s, row.count, lowest);
        Expr::cast(ElemType::I64, ElemType::I32, Expr::acc(lowest))
    }
    /// Stores the largest key of each column.
    pub(super) fn column_tops(&self, k: &mut KernelBuilder, row: &RowAt, s: &Keys) {
        let [lowest, _] = s.bounds(k);
        let (full, rest) = (row.n.floor_div(s.n), row.n.modulo(s.n));
        k.range(LoopKind::Par, "j", 0, s.n, |k, j| {
            let top = k.acc(lowest.into());
            k.range(LoopKind::Seq, "r", 0, full, |k, r| {
                let key = self.key_at(k, row, r * s.n + j);
                k.update(BinOp::Max, top, key);
            });
            k.store(s.keys, &spot(row.o, j), Expr::acc(top));
        });
        if rest.as_const() != Some(0) {
            k.range(LoopKind::Par, "j", 0, rest, |k, j| {
                let key = self.key_at(k, row, full * s.n + j);
                let top = k.load(s.keys, &spot(row.o, j));
                k.store(s.keys, &spot(row.o, j), key.max(top));
            });
        }
    }
    /// Inserts the keys with which `candidates` calls its function into the list. The function returns the
    /// last entry of the list.
    fn pick(
        &self,
        k: &mut KernelBuilder,
        row: &RowAt,
        list: Buf,
        candidates: impl FnOnce(&mut KernelBuilder, &mut dyn FnMut(&mut KernelBuilder, Expr) -> Expr),
    ) {
        // A sentinel before the first entry.
        k.store(list, &spot(row.o, 0.into()), int(i64::MAX));
        k.range(LoopKind::Seq, "j", 0, row.count, |k, j| k.store(list, &spot(row.o, j + 1), int(i64::MIN)));
        candidates(k, &mut |k, new| {
            rank(k, row.o, row.count, list, new);
            k.load(list, &spot(row.o, row.count))
        });
        results(k, row, list, 1);
    }
    /// Calls `f` with keys that are not below the limit and their positions, in row order. `f` returns the
    /// least key that is still relevant, an i64: later elements must be larger than the last entry of a full
    /// list, because the first of equal ones comes first. Most blocks therefore have no candidate, which
    /// their largest key shows. `top` is a word of scratch.
    pub(super) fn in_turn(
        &self,
        k: &mut KernelBuilder,
        row: &RowAt,
        (lowest, top): (Expr, Buf),
        f: &mut dyn FnMut(&mut KernelBuilder, Expr, Dim) -> Expr,
    ) {
        let ty = k.m.type_of(&lowest);
        let least = k.acc(Expr::cast(ty, ElemType::I64, lowest));
        let reaches = |key: Expr| Expr::bin(BinOp::Ge, Expr::cast(ty, ElemType::I64, key), Expr::acc(least));
        let mut consider = |k: &mut KernelBuilder, i: Dim| {
            let key = self.key_at(k, row, i);
            let key = k.let_(key);
            k.if_(reaches(key.clone()), |k| {
                let relevant = f(k, key, i);
                k.update(BinOp::Max, least, relevant);
            });
        };
        let mut block = |k: &mut KernelBuilder, first: Dim, n: Dim| {
            self.block_top(k, row, (first, n), top);
            let most = k.load(top, &spot(row.o, 0.into()));
            k.if_(reaches(most), |k| k.range(LoopKind::Seq, "i", 0, n, |k, i| consider(k, first + i)));
        };
        let (blocks, rest) = (row.n.floor_div(BLOCK), row.n.modulo(BLOCK));
        k.range(LoopKind::Seq, "b", 0, blocks, |k, b| block(k, b * BLOCK, BLOCK.into()));
        if rest.as_const() != Some(0) {
            block(k, blocks * BLOCK, rest);
        }
    }
    /// The largest key of a block. The loop is in a separate statement list, because a list is vectorized
    /// only if all of its statements are.
    fn block_top(&self, k: &mut KernelBuilder, row: &RowAt, (first, n): (Dim, Dim), to: Buf) {
        let lowest = Scalar::lowest(k.m.bufs[to].ty);
        k.range(LoopKind::Seq, "once", 0, 1, |k, _| {
            let found = k.acc(lowest.into());
            k.range(LoopKind::Seq, "j", 0, n, |k, j| {
                let key = self.key_at(k, row, first + j);
                k.update(BinOp::Max, found, key);
            });
            k.store(to, &spot(row.o, Dim::constant(0)), Expr::acc(found));
        });
    }
    /// Collects the packed keys that are not below the limit, in row order and without branches. Entries that
    /// do not fit are only counted.
    fn collect(
        &self,
        k: &mut KernelBuilder,
        row: &RowAt,
        (tops, lowest): (&Keys, Expr),
        (list, filled): (&Narrow, Reg),
    ) {
        let one = |c: Expr| Expr::cast(ElemType::Bool, ElemType::I64, c);
        let hits = k.acc(int(0));
        k.range(LoopKind::Seq, "j", 0, tops.n, |k, j| {
            let hit = Expr::bin(BinOp::Ge, k.load(tops.keys, &spot(row.o, j)), lowest.clone());
            let hit = k.let_(hit);
            k.at_index(Expr::acc(hits), tops.n, |k, at| {
                k.store(tops.keys, &spot(row.o, at), Expr::cast(ElemType::I64, ElemType::I32, Expr::index(j)))
            });
            k.update(BinOp::Add, hits, one(hit));
        });
        let entries = list.entries();
        let rows = if row.n.modulo(tops.n).as_const() == Some(0) {
            row.n.floor_div(tops.n)
        } else {
            row.n.floor_div(tops.n) + 1
        };
        k.at_index(Expr::acc(hits), tops.n + 1, |k, hits| {
            k.nest(LoopKind::Seq, &[rows, hits], |k, at| {
                let j = Expr::cast(ElemType::I32, ElemType::I64, k.load(tops.keys, &spot(row.o, at[1])));
                let i = k.let_(j + Expr::index(at[0] * tops.n));
                let last = i.clone().min(Expr::index(row.n - 1));
                k.at_index(last, row.n, |k, p| {
                    let key = self.key_at(k, row, p);
                    let key = k.let_(key);
                    let taken = Expr::bin(BinOp::Ge, key.clone(), lowest.clone());
                    let taken = k.let_(taken.and(Expr::bin(BinOp::Lt, i, Expr::index(row.n))));
                    let to = Expr::acc(filled).min(Expr::index(entries));
                    k.at_index(to, entries + 1, |k, to| {
                        k.store(list.order, &spot(row.o, to), packed(key, p))
                    });
                    k.update(BinOp::Add, filled, one(taken));
                });
            });
        });
    }
    /// Calls `f` with each key that is not below the limit and its position, by column.
    pub(super) fn candidates(
        &self,
        k: &mut KernelBuilder,
        row: &RowAt,
        (tops, lowest): (&Keys, Expr),
        f: &mut dyn FnMut(&mut KernelBuilder, Expr, Dim),
    ) {
        let (full, rest) = (row.n.floor_div(tops.n), row.n.modulo(tops.n));
        let mut consider = |k: &mut KernelBuilder, i: Dim| {
            let key = self.key_at(k, row, i);
            let key = k.let_(key);
            k.if_(Expr::bin(BinOp::Ge, key.clone(), lowest.clone()), |k| f(k, key, i));
        };
        let whole = rest.as_const() == Some(0);
        k.range(LoopKind::Seq, "j", 0, tops.n, |k, j| {
            let top = k.load(tops.keys, &spot(row.o, j));
            k.if_(Expr::bin(BinOp::Ge, top, lowest.clone()), |k| {
                k.range(LoopKind::Seq, "r", 0, if whole { full } else { full + 1 }, |k, r| {
                    let i = r * tops.n + j;
                    if whole {
                        consider(k, i)
                    } else {
                        k.if_(Expr::cmp_index(BinOp::Lt, i, row.n), |k| consider(k, i))
                    }
                });
            });
        });
    }
}

/// True if so many columns have candidates that the row is better read in order.
pub(super) fn many_reached(k: &mut KernelBuilder, row: &RowAt, tops: &Keys, lowest: &Expr) -> Expr {
    let columns = tops.n.as_const().unwrap_or(0);
    let reached = reached(k, row.o, tops, lowest);
    let limit = Expr::int(k.m.type_of(&reached), columns / MANY);
    k.let_(Expr::bin(BinOp::Gt, reached, limit))
}

/// The number of columns whose largest key is not below the limit.
fn reached(k: &mut KernelBuilder, o: &[Dim], tops: &Keys, lowest: &Expr) -> Expr {
    k.store(tops.limit, &spot(o, 0.into()), lowest.clone());
    limit::reaching(k, o, tops);
    k.load(tops.count, &spot(o, 0.into()))
}

/// Stores the entries of a list from `first` on as results.
pub(super) fn results(k: &mut KernelBuilder, row: &RowAt, list: Buf, first: i64) {
    k.range(LoopKind::Seq, "j", 0, row.count, |k, j| {
        let p = k.load(list, &spot(row.o, j + first));
        row.take(k, j, position(p));
    });
}

/// Inserts an entry into a sorted list of `count` entries after a sentinel, unless it is smaller than all of
/// them.
fn rank(k: &mut KernelBuilder, o: &[Dim], count: Dim, list: Buf, new: Expr) {
    let extent = count + 1;
    let entry = |k: &mut KernelBuilder, at: Expr| k.with_index(at, extent, |k, i| k.load(list, &spot(o, i)));
    let last = k.load(list, &spot(o, count));
    k.if_(Expr::bin(BinOp::Lt, last, new.clone()), |k| {
        let at = k.acc(Expr::index(count));
        let before = entry(k, Expr::acc(at) - int(1));
        k.while_(Expr::bin(BinOp::Lt, before, new.clone()), |k| {
            let before = entry(k, Expr::acc(at) - int(1));
            k.at_index(Expr::acc(at), extent, |k, i| k.store(list, &spot(o, i), before));
            k.set(at, Expr::acc(at) - int(1));
        });
        k.at_index(Expr::acc(at), extent, |k, i| k.store(list, &spot(o, i), new));
    });
}
