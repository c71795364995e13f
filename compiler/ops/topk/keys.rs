//! TopK of elements of at most 32 bits: each becomes an integer key that grows with its place in the order,
//! and key and position together an integer of 64 bits, so that every comparison is one of integers and no
//! two are equal.
//!
//! Few of many: the row is seen as a matrix of which the largest key of each column is found, many columns at
//! once. At least k columns have one that is not below the k-th largest of these: the k-th that is found one
//! after the other, or what a bisection found a little below it. The elements of such columns that are not
//! below it either, hardly more than k, go through a sorted list, or, if k is not small, into one of twice
//! the length that is sorted when it is full and at the end: many elements may be equal. Otherwise the row is
//! sorted: by merging here, where it is short or nobody knows how long it is.

use super::{Row, TopK};
use crate::nest::{BinOp, Buf, Expr, KernelBuilder, LoopKind, Scalar, Stmt, UnOp};
use crate::ops::LowerCx;
use crate::ops::support::{radix, runtime};
use crate::sym::Dim;
use crate::tensor::ElemType;
use runtime::int;

/// Scratch of the rows.
pub(super) enum Scratch {
    /// Two lists of packed keys to sort.
    Sort(Buf, Buf),
    /// The largest key of each column, the limit and how many are not below it, and the list.
    Few { columns: i64, tops: Buf, limit: Buf, count: Buf, list: List },
}

/// Where packed keys are brought into order.
#[derive(Clone, Copy)]
pub(super) enum List {
    /// Each finds its place among those that came before.
    Ranked(Buf),
    /// They are sorted when there are so many: two lists.
    Sorted(Buf, Buf, i64),
}

/// Up to so many tops are found one after the other: a bisection takes as many steps.
const SUCCESSIVE: i64 = 8;
/// Longest list whose entries are moved for each that comes.
const RANKED: i64 = 64;
/// A row is read from end to end where more than one column of so many has elements for the list.
const MANY: i64 = 4;
/// Positions of such a row whose largest key is found at once.
const BLOCK: i64 = 64;
/// Positions that fit beside a key.
pub const POSITIONS: i64 = 1 << 32;

/// True if elements have keys and rows positions that fit beside them.
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

/// Columns that make a search for `count` (not 0) of `n` cheapest, if it is cheaper than sorting all: of each
/// column the top is looked at, of those that count every element. With hardly fewer columns than elements
/// each element is one.
fn columns(count: i64, n: i64) -> Option<i64> {
    let m = (4.0 * count as f64 * n as f64).sqrt() as i64;
    let m = (m + 63) / 64 * 64;
    let m = if 2 * m <= n && m >= 2 * count { m } else { n };
    // Sorting all by digits takes as long as bringing an eighth into order by merging.
    let digits = n >= radix::LEAST && count > RANKED;
    (if digits { 8 * count <= n } else { 2 * count <= n }).then_some(m)
}

/// The same of a row; where only run time knows how long it is, several columns for each that is asked for.
fn columns_of(row: &Row) -> Option<i64> {
    // More would be sorted as fast.
    const MOST: i64 = 512;
    match (row.count.as_const(), row.n.as_const()) {
        (Some(c), Some(n)) => columns(c, n),
        (Some(c), None) if c <= MOST => Some((4 * c + 63) / 64 * 64),
        _ => None,
    }
}

/// True if not all of a row is sorted.
pub(super) fn finds_few(row: &Row) -> bool {
    columns_of(row).is_some()
}

/// Scratch for rows, one for each index of `outer`.
pub(super) fn scratch(cx: &mut LowerCx, row: &Row, outer: &[Dim]) -> Scratch {
    let mut buf = |name: &str, ty: ElemType, n: Dim| {
        cx.temp(name, ty, outer.iter().copied().chain([n]).collect::<Vec<_>>())
    };
    match columns_of(row) {
        Some(columns) => Scratch::Few {
            columns,
            tops: buf("tops", ElemType::I32, columns.into()),
            limit: buf("limit", ElemType::I32, 1.into()),
            count: buf("count", ElemType::I32, 1.into()),
            list: match row.count.as_const() {
                Some(..=RANKED) => List::Ranked(buf("list", ElemType::I64, row.count + 1)),
                count => {
                    let room = 2 * count.unwrap_or(0) + RANKED;
                    List::Sorted(
                        buf("order", ElemType::I64, room.into()),
                        buf("merged", ElemType::I64, room.into()),
                        room,
                    )
                }
            },
        },
        None => Scratch::Sort(buf("order", ElemType::I64, row.n), buf("merged", ElemType::I64, row.n)),
    }
}

impl TopK {
    /// One row.
    pub(super) fn by_keys(&self, k: &mut KernelBuilder, row: &Row, o: &[Dim], s: &Scratch) {
        match *s {
            Scratch::Sort(order, merged) => {
                k.range(LoopKind::Par, "i", 0, row.n, |k, i| {
                    let key = self.key_at(k, row, o, i);
                    k.store(order, &spot(o, i), packed(key, i));
                });
                merge(k, o, row.n, row.n, (order, merged));
                results(k, row, o, order, 0);
            }
            Scratch::Few { columns, tops, limit, count, list } => {
                let lowest = self.tops(k, row, o, columns, tops, (limit, count));
                let lowest = k.let_(lowest);
                // Many columns have elements for the list where elements are equal: their rows are read from
                // end to end.
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
    /// An i32 that is larger for what stands before.
    fn key(&self, k: &mut KernelBuilder, ty: ElemType, v: Expr) -> Expr {
        let key = ordered(k, ty, v);
        if self.largest { key } else { Expr::un(UnOp::BitNot, key) }
    }
    fn key_at(&self, k: &mut KernelBuilder, row: &Row, o: &[Dim], i: Dim) -> Expr {
        let v = k.load(row.x, &row.at(o, i));
        self.key(k, row.ty, v)
    }
    /// A limit, an i32, that at least as many tops of columns reach as are asked for, and hardly more.
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
    /// What reaches the limit goes into the list: column by column, or, without a number of columns, in
    /// order.
    fn pick(
        &self,
        k: &mut KernelBuilder,
        row: &Row,
        o: &[Dim],
        (columns, tops, list): (Option<i64>, Buf, List),
        (lowest, top): (Expr, Buf),
    ) {
        let from = |k: &mut KernelBuilder, f: &mut dyn FnMut(&mut KernelBuilder, Expr) -> Expr| match columns
        {
            Some(columns) => {
                self.candidates(k, row, o, (columns, tops, lowest.clone()), &mut |k, new| drop(f(k, new)))
            }
            None => self.in_turn(k, row, o, (lowest.clone(), top), f),
        };
        match list {
            List::Ranked(list) => {
                // Nothing is before the first entry.
                k.store(list, &spot(o, 0.into()), int(i64::MAX));
                k.range(LoopKind::Seq, "j", 0, row.count, |k, j| {
                    k.store(list, &spot(o, j + 1), int(i64::MIN))
                });
                from(k, &mut |k, new| {
                    rank(k, o, row.count, list, new);
                    k.load(list, &spot(o, row.count))
                });
                results(k, row, o, list, 1);
            }
            List::Sorted(order, merged, room) => {
                // How many the list holds, and what entries are to be larger than.
                let (filled, least) = (k.acc(int(0)), k.acc(int(i64::MIN)));
                from(k, &mut |k, new| {
                    k.if_(Expr::bin(BinOp::Gt, new.clone(), Expr::acc(least)), |k| {
                        k.at_index(Expr::acc(filled), room.into(), |k, at| k.store(order, &spot(o, at), new));
                        k.update(BinOp::Add, filled, int(1));
                        k.if_(runtime::eq(Expr::acc(filled), int(room)), |k| {
                            merge(k, o, room.into(), room.into(), (order, merged));
                            k.set(filled, Expr::index(row.count));
                            let last = k.load(order, &spot(o, row.count - 1));
                            k.set(least, last);
                        });
                    });
                    Expr::acc(least)
                });
                k.at_index(Expr::acc(filled), room.into(), |k, n| {
                    merge(k, o, n, room.into(), (order, merged))
                });
                results(k, row, o, order, 0);
            }
        }
    }
    /// Calls `f` with packed keys that are not below the limit, one position after the other. `f` returns the
    /// last entry that counts, i64::MIN if there are too few: later elements have to be larger, since of
    /// equal ones the first come first. So most blocks have none, which the largest of their keys tells.
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
    /// The largest key of a block. Its loop stands in one of its own: a list of statements that are vectors
    /// all of them.
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
    /// Calls `f` with each packed key that is not below the limit, those of one column after the other.
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

/// The results that a list holds from entry `first` on.
fn results(k: &mut KernelBuilder, row: &Row, o: &[Dim], list: Buf, first: i64) {
    k.range(LoopKind::Seq, "j", 0, row.count, |k, j| {
        let p = k.load(list, &spot(o, j + first));
        row.take(k, o, j, position(p));
    });
}

/// Puts an entry where it belongs in a list of `count` that has a largest one before them, if it is not
/// behind all.
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

/// Sorts the first `n` entries of a list of at most `most`, the largest first: merges sorted runs of 1, 2, 4,
/// ... until there is one.
fn merge(k: &mut KernelBuilder, o: &[Dim], n: Dim, most: Dim, (order, merged): (Buf, Buf)) {
    let size = Expr::index(n);
    let lt = |a: Expr, b: Expr| Expr::bin(BinOp::Lt, a, b);
    let width = k.acc(int(1));
    let body = k.block(|k| {
        // What is left of two runs, and where the next two begin.
        let [a, a_end, b, b_end] = [0; 4].map(|z| k.acc(int(z)));
        k.range(LoopKind::Seq, "p", 0, n, |k, p| {
            k.if_(runtime::eq(Expr::index(p), Expr::acc(b_end)), |k| {
                k.set(a, Expr::index(p));
                k.set(a_end, (Expr::index(p) + Expr::acc(width)).min(size.clone()));
                k.set(b, Expr::acc(a_end));
                k.set(b_end, (Expr::acc(a_end) + Expr::acc(width)).min(size.clone()));
            });
            // Beyond a run stands anything.
            let element = |k: &mut KernelBuilder, at: Expr| {
                let v = k.with_index(at.min(Expr::index(most - 1)), most, |k, i| k.load(order, &spot(o, i)));
                k.let_(v)
            };
            let (va, vb) = (element(k, Expr::acc(a)), element(k, Expr::acc(b)));
            let (left_a, left_b) = (lt(Expr::acc(a), Expr::acc(a_end)), lt(Expr::acc(b), Expr::acc(b_end)));
            let second =
                k.let_(left_b.and(runtime::or(Expr::un(UnOp::Not, left_a), lt(va.clone(), vb.clone()))));
            k.store(merged, &spot(o, p), Expr::select(second.clone(), vb, va));
            let step = k.let_(Expr::cast(ElemType::Bool, ElemType::I64, second));
            k.update(BinOp::Add, b, step.clone());
            k.update(BinOp::Add, a, int(1) - step);
        });
        k.range(LoopKind::Seq, "p", 0, n, |k, p| {
            let v = k.load(merged, &spot(o, p));
            k.store(order, &spot(o, p), v);
        });
        k.update(BinOp::Add, width, Expr::acc(width));
    });
    k.push(Stmt::While { cond: lt(Expr::acc(width), size), body });
}

/// An i32 in the order of the numbers of a type of at most 32 bits. Zeros are equal, NaN is larger than all
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

/// The least or the greatest of the columns' tops, as `value` shows them, into a buffer. Its loops stand in
/// one of their own: a list of statements that are vectors all of them.
fn extreme(
    k: &mut KernelBuilder,
    o: &[Dim],
    columns: i64,
    (tops, to): (Buf, Buf),
    op: BinOp,
    value: impl Fn(&KernelBuilder, Expr) -> Expr,
) {
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

/// The n-th greatest of the different tops, one after the other.
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

/// What a bisection between the extremes finds.
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
    // All keys are at least the first, none the second.
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

/// How many tops are not below the limit. The loop stands in one of its own: a list of statements that are
/// vectors all of them.
fn reaching(k: &mut KernelBuilder, o: &[Dim], columns: i64, (tops, limit, count): (Buf, Buf, Buf)) {
    let zero = Dim::constant(0);
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

fn spot(o: &[Dim], i: Dim) -> Vec<Dim> {
    o.iter().chain([&i]).copied().collect()
}

/// Key and position: larger for a larger key, and of equal keys for the first.
pub fn packed(key: Expr, i: Dim) -> Expr {
    let key = Expr::bin(BinOp::Shl, Expr::cast(ElemType::I32, ElemType::I64, key), int(32));
    key + (int(POSITIONS - 1) - Expr::index(i))
}

/// The position again.
pub fn position(packed: Expr) -> Expr {
    int(POSITIONS - 1) - Expr::bin(BinOp::And, packed, int(POSITIONS - 1))
}
