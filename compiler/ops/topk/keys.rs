//! TopK of elements of at most 32 bits. Each element is mapped to an integer key that is larger for elements
//! that come first. Key and position are packed into a 64-bit integer, so that all comparisons are on
//! integers and no two are equal.
//!
//! For few results of many elements, the row is viewed as a matrix, and the largest key of each column is
//! computed, many columns at once. At least k columns have a largest key that is not below the k-th largest
//! of these. This limit is found by successive maxima, or approximated from below by a bisection. The
//! elements of such columns that are not below the limit, hardly more than k, are inserted into a sorted
//! list, or, if k is not small, collected in a list that is sorted at the end. If the list overflows because
//! many elements are equal, or if k is a large part of the row, `narrow.rs` is used. Many results of a long
//! row are sorted by digits.

use super::narrow::{self, Narrow};
use super::{Row, TopK};
use crate::nest::{BinOp, Buf, Expr, KernelBuilder, LoopKind, Scalar, UnOp};
use crate::ops::LowerCx;
use crate::ops::support::{radix, runtime};
use crate::sym::Dim;
use crate::tensor::ElemType;
use runtime::int;

/// Scratch for rows.
pub(super) enum Scratch {
    /// The largest key of each column, the limit, the number of keys that reach it, and the list.
    Few { columns: i64, tops: Buf, limit: Buf, count: Buf, list: List },
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
const RANKED: i64 = 64;
/// A row is read sequentially if more than one in this many columns has candidates.
const MANY: i64 = 4;
/// Positions of such a row whose largest key is found at once.
const BLOCK: i64 = 64;
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

/// The number of columns that minimizes the cost of finding `count` (not 0) of `n` elements: each column
/// costs a look at its maximum, each candidate column a look at its elements. Hardly fewer columns than
/// elements means one element per column.
fn columns(count: i64, n: i64) -> i64 {
    let m = (4.0 * count as f64 * n as f64).sqrt() as i64;
    let m = (m + 63) / 64 * 64;
    if 2 * m <= n && m >= 2 * count { m } else { n }
}

/// The number of columns for a row, if that is cheaper than looking at all elements in each step of a
/// bisection. If the length of the row is known only at run time, several columns per result.
fn columns_of(row: &Row) -> Option<i64> {
    // More columns would not fit a near cache together with the row.
    const MOST: i64 = 512;
    match (row.count.as_const(), row.n.as_const()) {
        (Some(c), Some(n)) => Some(columns(c, n)).filter(|m| *m < n || c <= RANKED),
        (Some(c @ ..=MOST), None) => Some((4 * c + 63) / 64 * 64),
        _ => None,
    }
}

/// True if a bisection and merging the candidates are faster than sorting the whole row by digits.
pub(super) fn finds_few(row: &Row) -> bool {
    // The number of results for which merging costs as much as the digits: each digit costs as much as
    // merging twice.
    const MERGED: i64 = 2048;
    let part = |c: i64| row.n.as_const().is_none_or(|n| n < radix::LEAST || 2 * c <= n);
    row.count.as_const().is_none_or(|c| c < MERGED && part(c))
}

/// Scratch for rows, one per index of `outer`.
pub(super) fn scratch(cx: &mut LowerCx, row: &Row, outer: &[Dim]) -> Scratch {
    let Some(columns) = columns_of(row) else { return Scratch::Narrow(Narrow::new(cx, row, outer)) };
    let mut buf = |name: &str, ty: ElemType, n: Dim| {
        cx.temp(name, ty, outer.iter().copied().chain([n]).collect::<Vec<_>>())
    };
    Scratch::Few {
        columns,
        tops: buf("tops", ElemType::I32, columns.into()),
        limit: buf("limit", ElemType::I32, 1.into()),
        count: buf("count", ElemType::I32, 1.into()),
        list: match row.count.as_const() {
            Some(..=RANKED) => List::Ranked(buf("list", ElemType::I64, row.count + 1)),
            _ => List::Sorted(Narrow::new(cx, row, outer)),
        },
    }
}

impl TopK {
    /// Computes one row.
    pub(super) fn by_keys(&self, k: &mut KernelBuilder, row: &Row, o: &[Dim], s: &Scratch) {
        match *s {
            Scratch::Narrow(ref narrow) => self.narrow(k, row, o, narrow),
            Scratch::Few { columns, tops, limit, count, list: List::Sorted(ref narrow) } => {
                let wanted = row.count.as_const().unwrap_or(0);
                let entries = narrow.entries();
                // A number beyond the capacity means that the list is not used.
                let filled = k.acc(Expr::index(entries + 1));
                k.if_(Expr::cmp_index(BinOp::Ge, row.n, 2 * columns), |k| {
                    let lowest = self.tops(k, row, o, columns, tops, (limit, count));
                    let lowest = k.let_(lowest);
                    k.store(limit, &spot(o, 0.into()), lowest.clone());
                    reaching(k, o, columns, (tops, limit, count));
                    let reached = k.load(count, &spot(o, 0.into()));
                    let some = Expr::bin(BinOp::Le, reached, Expr::int(ElemType::I32, 2 * wanted));
                    k.if_(some, |k| {
                        k.set(filled, int(0));
                        self.candidates(k, row, o, (columns, tops, lowest), &mut |k, new| {
                            let at = Expr::acc(filled).min(Expr::index(entries));
                            k.at_index(at, entries + 1, |k, at| k.store(narrow.order, &spot(o, at), new));
                            k.update(BinOp::Add, filled, int(1));
                        });
                    });
                });
                let fits = k.let_(runtime::le(Expr::acc(filled), Expr::index(entries)));
                k.if_(fits.clone(), |k| {
                    narrow::sort(k, o, filled, narrow);
                    results(k, row, o, narrow.order, 0);
                });
                k.if_(Expr::un(UnOp::Not, fits), |k| self.narrow(k, row, o, narrow));
            }
            Scratch::Few { columns, tops, limit, count, list: List::Ranked(list) } => {
                let lowest = self.tops(k, row, o, columns, tops, (limit, count));
                let lowest = k.let_(lowest);
                // If elements are equal, many columns have candidates. Such rows are read sequentially.
                if Some(columns) == row.n.as_const() {
                    self.pick(k, row, o, (Some(columns), tops, list), (lowest, limit));
                } else {
                    k.store(limit, &spot(o, 0.into()), lowest.clone());
                    reaching(k, o, columns, (tops, limit, count));
                    let reached = k.load(count, &spot(o, 0.into()));
                    let many =
                        k.let_(Expr::bin(BinOp::Gt, reached, Expr::int(ElemType::I32, columns / MANY)));
                    k.if_(many.clone(), |k| {
                        self.pick(k, row, o, (None, tops, list), (lowest.clone(), limit))
                    });
                    k.if_(Expr::un(UnOp::Not, many), |k| {
                        self.pick(k, row, o, (Some(columns), tops, list), (lowest.clone(), limit))
                    });
                }
            }
        }
    }
    /// An i32 that is larger for elements that come first.
    fn key(&self, k: &mut KernelBuilder, ty: ElemType, v: Expr) -> Expr {
        let key = ordered(k, ty, v);
        if self.largest { key } else { Expr::un(UnOp::BitNot, key) }
    }
    pub(super) fn key_at(&self, k: &mut KernelBuilder, row: &Row, o: &[Dim], i: Dim) -> Expr {
        let v = k.load(row.x, &row.at(o, i));
        self.key(k, row.ty, v)
    }
    /// A limit, an i32, that is reached by at least as many column maxima as results are requested, and by
    /// hardly more.
    fn tops(
        &self,
        k: &mut KernelBuilder,
        row: &Row,
        o: &[Dim],
        columns: i64,
        tops: Buf,
        (limit, count): (Buf, Buf),
    ) -> Expr {
        let (full, rest) = (row.n.floor_div(columns), row.n.modulo(columns));
        k.range(LoopKind::Par, "j", 0, columns, |k, j| {
            let top = k.acc(Scalar::int(ElemType::I32, i64::from(i32::MIN)).into());
            k.range(LoopKind::Seq, "r", 0, full, |k, r| {
                let key = self.key_at(k, row, o, r * columns + j);
                k.update(BinOp::Max, top, key);
            });
            k.store(tops, &spot(o, j), Expr::acc(top));
        });
        if rest.as_const() != Some(0) {
            k.range(LoopKind::Par, "j", 0, rest, |k, j| {
                let key = self.key_at(k, row, o, full * columns + j);
                let top = k.load(tops, &spot(o, j));
                k.store(tops, &spot(o, j), key.max(top));
            });
        }
        match row.count.as_const() {
            Some(n @ ..=SUCCESSIVE) => successive(k, o, columns, (tops, limit), n),
            _ => halving(k, row, o, columns, tops, (limit, count)),
        }
    }
    /// Inserts the keys that reach the limit into the list, by column, or in row order if there is no number
    /// of columns.
    fn pick(
        &self,
        k: &mut KernelBuilder,
        row: &Row,
        o: &[Dim],
        (columns, tops, list): (Option<i64>, Buf, Buf),
        (lowest, top): (Expr, Buf),
    ) {
        let from = |k: &mut KernelBuilder, f: &mut dyn FnMut(&mut KernelBuilder, Expr) -> Expr| match columns
        {
            Some(columns) => {
                self.candidates(k, row, o, (columns, tops, lowest.clone()), &mut |k, new| drop(f(k, new)))
            }
            None => self.in_turn(k, row, o, (lowest.clone(), top), f),
        };
        // A sentinel before the first entry.
        k.store(list, &spot(o, 0.into()), int(i64::MAX));
        k.range(LoopKind::Seq, "j", 0, row.count, |k, j| k.store(list, &spot(o, j + 1), int(i64::MIN)));
        from(k, &mut |k, new| {
            rank(k, o, row.count, list, new);
            k.load(list, &spot(o, row.count))
        });
        results(k, row, o, list, 1);
    }
    /// Calls `f` with packed keys that are not below the limit, in row order. `f` returns the last relevant
    /// entry, or i64::MIN if the list is not full. Later elements must be larger than it, because the first
    /// of equal ones comes first. Most blocks therefore have no candidate, which their largest key shows.
    /// `top` is a word of scratch.
    fn in_turn(
        &self,
        k: &mut KernelBuilder,
        row: &Row,
        o: &[Dim],
        (lowest, top): (Expr, Buf),
        f: &mut dyn FnMut(&mut KernelBuilder, Expr) -> Expr,
    ) {
        let least = k.acc(Expr::cast(ElemType::I32, ElemType::I64, lowest));
        let reaches =
            |key: Expr| Expr::bin(BinOp::Ge, Expr::cast(ElemType::I32, ElemType::I64, key), Expr::acc(least));
        let mut consider = |k: &mut KernelBuilder, i: Dim| {
            let key = self.key_at(k, row, o, i);
            let key = k.let_(key);
            k.if_(reaches(key.clone()), |k| {
                let new = k.let_(packed(key, i));
                let last = f(k, new);
                let last = k.let_(last);
                let more = Expr::bin(BinOp::Shr, last.clone(), int(32)) + int(1);
                k.set(
                    least,
                    Expr::select(
                        runtime::eq(last, int(i64::MIN)),
                        Expr::acc(least),
                        more.max(Expr::acc(least)),
                    ),
                );
            });
        };
        let blocks = row.n.floor_div(BLOCK);
        k.range(LoopKind::Seq, "b", 0, blocks, |k, b| {
            self.block_top(k, row, o, b * BLOCK, top);
            let most = k.load(top, &spot(o, 0.into()));
            k.if_(reaches(most), |k| {
                k.range(LoopKind::Seq, "i", 0, BLOCK, |k, i| consider(k, b * BLOCK + i))
            });
        });
        if row.n.modulo(BLOCK).as_const() != Some(0) {
            k.range(LoopKind::Seq, "i", 0, row.n.modulo(BLOCK), |k, i| consider(k, blocks * BLOCK + i));
        }
    }
    /// The largest key of a block. The loop is in a separate statement list, because a list is vectorized
    /// only if all of its statements are.
    fn block_top(&self, k: &mut KernelBuilder, row: &Row, o: &[Dim], first: Dim, to: Buf) {
        k.range(LoopKind::Seq, "once", 0, 1, |k, _| {
            let found = k.acc(Scalar::lowest(ElemType::I32).into());
            k.range(LoopKind::Seq, "j", 0, BLOCK, |k, j| {
                let key = self.key_at(k, row, o, first + j);
                k.update(BinOp::Max, found, key);
            });
            k.store(to, &spot(o, Dim::constant(0)), Expr::acc(found));
        });
    }
    /// Calls `f` with each packed key that is not below the limit, by column.
    fn candidates(
        &self,
        k: &mut KernelBuilder,
        row: &Row,
        o: &[Dim],
        (columns, tops, lowest): (i64, Buf, Expr),
        f: &mut dyn FnMut(&mut KernelBuilder, Expr),
    ) {
        let (full, rest) = (row.n.floor_div(columns), row.n.modulo(columns));
        let mut consider = |k: &mut KernelBuilder, i: Dim| {
            let key = self.key_at(k, row, o, i);
            let key = k.let_(key);
            k.if_(Expr::bin(BinOp::Ge, key.clone(), lowest.clone()), |k| {
                let new = k.let_(packed(key, i));
                f(k, new);
            });
        };
        let whole = rest.as_const() == Some(0);
        k.range(LoopKind::Seq, "j", 0, columns, |k, j| {
            let top = k.load(tops, &spot(o, j));
            k.if_(Expr::bin(BinOp::Ge, top, lowest.clone()), |k| {
                k.range(LoopKind::Seq, "r", 0, if whole { full } else { full + 1 }, |k, r| {
                    let i = r * columns + j;
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

/// Stores the entries of a list from `first` on as results.
pub(super) fn results(k: &mut KernelBuilder, row: &Row, o: &[Dim], list: Buf, first: i64) {
    k.range(LoopKind::Seq, "j", 0, row.count, |k, j| {
        let p = k.load(list, &spot(o, j + first));
        row.take(k, o, j, position(p));
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

/// An i32 with the order of the numbers of a type of at most 32 bits. Zeros are equal, NaN is larger than all
/// numbers.
pub fn ordered(k: &mut KernelBuilder, ty: ElemType, v: Expr) -> Expr {
    let to = ElemType::I32;
    match ty {
        ElemType::F32 => k.shared(v, |k, v| {
            let zero = Expr::num(ty, 0.0);
            let bits = Expr::un(
                UnOp::Bits(to),
                Expr::select(Expr::bin(BinOp::Eq, v.clone(), zero.clone()), zero, v.clone()),
            );
            k.shared(bits, |_, b| {
                let flipped = Expr::bin(BinOp::Xor, b.clone(), Expr::int(to, i64::from(i32::MAX)));
                let key = Expr::select(Expr::bin(BinOp::Lt, b.clone(), Expr::int(to, 0)), flipped, b);
                Expr::select(Expr::un(UnOp::IsNan, v), Expr::int(to, i64::from(i32::MAX)), key)
            })
        }),
        ElemType::U32 => {
            Expr::bin(BinOp::Xor, Expr::un(UnOp::Bits(to), v), Expr::int(to, i64::from(i32::MIN)))
        }
        ElemType::I32 => v,
        t => Expr::cast(t, to, v),
    }
}

/// The least or the greatest `value` of the columns' maxima, stored to a buffer. The loops are in a separate
/// statement list, because a list is vectorized only if all of its statements are.
pub(super) fn extreme(
    k: &mut KernelBuilder,
    o: &[Dim],
    columns: impl Into<Dim>,
    (tops, to): (Buf, Buf),
    op: BinOp,
    value: impl Fn(&KernelBuilder, Expr) -> Expr,
) {
    let columns = columns.into();
    k.range(LoopKind::Seq, "once", 0, 1, |k, _| {
        let first =
            if op == BinOp::Max { Scalar::lowest(ElemType::I32) } else { Scalar::highest(ElemType::I32) };
        let found = k.acc(first.into());
        k.range(LoopKind::Seq, "j", 0, columns, |k, j| {
            let v = k.load(tops, &spot(o, j));
            let v = value(k, v);
            k.update(op, found, v);
        });
        k.store(to, &spot(o, Dim::constant(0)), Expr::acc(found));
    });
}

/// The n-th greatest of the distinct column maxima, found one after the other.
fn successive(k: &mut KernelBuilder, o: &[Dim], columns: i64, (tops, limit): (Buf, Buf), n: i64) -> Expr {
    let last = spot(o, Dim::constant(0));
    extreme(k, o, columns, (tops, limit), BinOp::Max, |_, v| v);
    k.range(LoopKind::Seq, "s", 0, n - 1, |k, _| {
        let lowest = || Expr::from(Scalar::lowest(ElemType::I32));
        extreme(k, o, columns, (tops, limit), BinOp::Max, |k, v| {
            Expr::select(Expr::bin(BinOp::Lt, v.clone(), k.load(limit, &last)), v, lowest())
        });
    });
    k.load(limit, &last)
}

/// The limit found by a bisection between the extremes.
fn halving(
    k: &mut KernelBuilder,
    row: &Row,
    o: &[Dim],
    columns: i64,
    tops: Buf,
    (limit, count): (Buf, Buf),
) -> Expr {
    let zero = Dim::constant(0);
    let wanted = Expr::index(row.count);
    let enough = Expr::index(row.count + row.count.floor_div(4) + 1);
    for (end, op) in [(count, BinOp::Min), (limit, BinOp::Max)] {
        extreme(k, o, columns, (tops, end), op, |_, v| v);
    }
    // All keys are at least `lo`, none is `hi` or more.
    let [lo, hi] =
        [count, limit].map(|b| Expr::cast(ElemType::I32, ElemType::I64, k.load(b, &spot(o, zero))));
    let (lo, hi) = (k.acc(lo), k.acc(hi + int(1)));
    let going = Expr::bin(BinOp::Gt, Expr::acc(hi) - Expr::acc(lo), int(1));
    k.while_(going, |k| {
        let mid = k.let_(Expr::bin(BinOp::Shr, Expr::acc(lo) + Expr::acc(hi), int(1)));
        k.store(limit, &spot(o, zero), Expr::cast(ElemType::I64, ElemType::I32, mid.clone()));
        reaching(k, o, columns, (tops, limit, count));
        let reached = Expr::cast(ElemType::I32, ElemType::I64, k.load(count, &spot(o, zero)));
        let reached = k.let_(reached);
        let many = k.let_(Expr::bin(BinOp::Ge, reached.clone(), wanted));
        k.set(lo, Expr::select(many.clone(), mid.clone(), Expr::acc(lo)));
        let close = many.clone().and(runtime::le(reached, enough));
        let above = Expr::select(many, Expr::acc(hi), mid.clone());
        k.set(hi, Expr::select(close, mid, above));
    });
    Expr::cast(ElemType::I64, ElemType::I32, Expr::acc(lo))
}

/// The number of column maxima that are not below the limit. The loop is in a separate statement list,
/// because a list is vectorized only if all of its statements are.
pub(super) fn reaching(
    k: &mut KernelBuilder,
    o: &[Dim],
    columns: impl Into<Dim>,
    (tops, limit, count): (Buf, Buf, Buf),
) {
    let (zero, columns) = (Dim::constant(0), columns.into());
    k.range(LoopKind::Seq, "once", 0, 1, |k, _| {
        let reached = k.acc(Expr::int(ElemType::I32, 0));
        k.range(LoopKind::Seq, "j", 0, columns, |k, j| {
            let hit = Expr::bin(BinOp::Ge, k.load(tops, &spot(o, j)), k.load(limit, &spot(o, zero)));
            k.update(
                BinOp::Add,
                reached,
                Expr::select(hit, Expr::int(ElemType::I32, 1), Expr::int(ElemType::I32, 0)),
            );
        });
        k.store(count, &spot(o, zero), Expr::acc(reached));
    });
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
