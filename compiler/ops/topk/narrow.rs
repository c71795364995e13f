//! TopK with more results than a list can take by insertion. The keys are computed first, then a limit that
//! is reached by at least as many keys as results are requested, and by at most a quarter more. The limit is
//! found by a bisection, in which each step counts, in vectors, the keys that reach a number. If equal
//! elements prevent such a limit, the bisection ends at their key, and all larger keys and the first of the
//! equal ones are taken. The candidates are collected in order, without branches, and sorted.
//!
//! The list is sorted in runs of equal length, at most [`RUN`]: the position of each entry is the number of
//! larger ones in its run. Then pairs of runs are merged from both ends at once, which halves the dependency
//! chain, and neither run is exhausted before the steps are done. All of this also works for sizes known only
//! at run time.

use super::keys::{extreme, packed, reaching, results, spot};
use super::{Row, TopK};
use crate::nest::{BinOp, Buf, Expr, KernelBuilder, LoopKind, Reg};
use crate::ops::LowerCx;
use crate::ops::support::runtime::{eq, int, le, or};
use crate::sym::Dim;
use crate::tensor::ElemType;

/// Longest run that is sorted by counting.
const RUN: i64 = 16;

/// Scratch for rows.
pub(super) struct Narrow {
    keys: Buf,
    limit: Buf,
    count: Buf,
    /// The list that is sorted.
    pub order: Buf,
    merged: Buf,
    ranks: Buf,
    /// Capacity of `order` and `merged`, and the number of entries that can be sorted.
    room: Dim,
    entries: Dim,
}

/// Most keys that reach the limit of a bisection.
fn most(count: Dim) -> Dim {
    count + count.floor_div(4) + 1
}

/// The capacity for `entries`: runs of equal length add at most an eighth, and vectors read a whole run.
fn more(entries: Dim) -> Dim {
    entries + entries.floor_div(8) + 3 * RUN
}

impl Narrow {
    /// Scratch for rows, one per index of `outer`.
    pub fn new(cx: &mut LowerCx, row: &Row, outer: &[Dim]) -> Narrow {
        let entries = if row.count.as_const().is_some() { row.count * 2 + 4 * RUN } else { row.n };
        let entries = if row.n.as_const().is_some() { entries.min(row.n) } else { entries };
        let room = more(entries);
        let mut buf = |name: &str, ty: ElemType, n: Dim| {
            cx.temp(name, ty, outer.iter().copied().chain([n]).collect::<Vec<_>>())
        };
        Narrow {
            keys: buf("keys", ElemType::I32, row.n),
            limit: buf("limit", ElemType::I32, 1.into()),
            count: buf("count", ElemType::I32, 1.into()),
            order: buf("order", ElemType::I64, room),
            merged: buf("merged", ElemType::I64, room),
            ranks: buf("ranks", ElemType::I64, RUN.into()),
            room,
            entries,
        }
    }
    /// Most entries of the list.
    pub fn entries(&self) -> Dim {
        self.entries
    }
}

impl TopK {
    /// Computes one row.
    pub(super) fn narrow(&self, k: &mut KernelBuilder, row: &Row, o: &[Dim], s: &Narrow) {
        k.range(LoopKind::Par, "i", 0, row.n, |k, i| {
            let key = self.key_at(k, row, o, i);
            k.store(s.keys, &spot(o, i), key);
        });
        // Keys above `lowest` are taken, and `allowed` of those that are equal to it.
        let lowest = k.acc(int(i32::MIN.into()));
        let allowed = k.acc(Expr::index(row.n));
        if !k.m.syms.is_nonneg(most(row.count) - row.n) {
            k.if_(Expr::cmp_index(BinOp::Gt, row.n, most(row.count)), |k| {
                bisect(k, row, o, s, (lowest, allowed));
            });
        }
        let (filled, equal) = (k.acc(int(0)), k.acc(int(0)));
        k.range(LoopKind::Seq, "i", 0, row.n, |k, i| {
            let key = k.load(s.keys, &spot(o, i));
            let key = k.let_(key);
            let wide = k.let_(Expr::cast(ElemType::I32, ElemType::I64, key.clone()));
            let same = k.let_(eq(wide.clone(), Expr::acc(lowest)));
            let first = same.clone().and(lt(Expr::acc(equal), Expr::acc(allowed)));
            let taken = k.let_(or(lt(Expr::acc(lowest), wide), first));
            k.at_index(Expr::acc(filled), s.room, |k, at| k.store(s.order, &spot(o, at), packed(key, i)));
            k.update(BinOp::Add, filled, Expr::cast(ElemType::Bool, ElemType::I64, taken));
            k.update(BinOp::Add, equal, Expr::cast(ElemType::Bool, ElemType::I64, same));
        });
        sort(k, o, filled, s);
        results(k, row, o, s.order, 0);
    }
}

fn lt(a: Expr, b: Expr) -> Expr {
    Expr::bin(BinOp::Lt, a, b)
}

/// Bisects between the extremes of the keys: the limit, and how many keys equal to it are taken.
fn bisect(k: &mut KernelBuilder, row: &Row, o: &[Dim], s: &Narrow, (lowest, allowed): (Reg, Reg)) {
    let here = spot(o, 0.into());
    for (end, op) in [(s.count, BinOp::Min), (s.limit, BinOp::Max)] {
        extreme(k, o, row.n, (s.keys, end), op, |_, v| v);
    }
    let wide = |k: &KernelBuilder, b: Buf| Expr::cast(ElemType::I32, ElemType::I64, k.load(b, &here));
    // At least the requested number of keys reach `lowest`; fewer, namely `above`, reach `beyond`.
    let least = wide(k, s.count);
    k.set(lowest, least);
    let beyond = wide(k, s.limit) + int(1);
    let (beyond, above) = (k.acc(beyond), k.acc(int(0)));
    k.set(allowed, int(-1));
    let going = lt(int(1), Expr::acc(beyond) - Expr::acc(lowest));
    k.while_(going, |k| {
        let mid = k.let_(Expr::bin(BinOp::Shr, Expr::acc(lowest) + Expr::acc(beyond), int(1)));
        k.store(s.limit, &here, Expr::cast(ElemType::I64, ElemType::I32, mid.clone()));
        reaching(k, o, row.n, (s.keys, s.limit, s.count));
        let reached = wide(k, s.count);
        let reached = k.let_(reached);
        let many = k.let_(le(Expr::index(row.count), reached.clone()));
        let close = k.let_(many.clone().and(le(reached.clone(), Expr::index(most(row.count)))));
        k.set(lowest, Expr::select(many.clone(), mid.clone(), Expr::acc(lowest)));
        k.set(above, Expr::select(many.clone(), Expr::acc(above), reached));
        let far = Expr::select(many, Expr::acc(beyond), mid.clone());
        k.set(beyond, Expr::select(close.clone(), mid, far));
        k.set(allowed, Expr::select(close, Expr::index(row.n), Expr::acc(allowed)));
    });
    let rest = Expr::index(row.count) - Expr::acc(above);
    k.set(allowed, Expr::select(lt(Expr::acc(allowed), int(0)), rest, Expr::acc(allowed)));
}

/// Sorts the first entries of the list, largest first.
pub(super) fn sort(k: &mut KernelBuilder, o: &[Dim], filled: Reg, s: &Narrow) {
    let (order, merged, room) = (s.order, s.merged, s.room);
    let runs = k.acc(int(1));
    k.while_(lt(Expr::acc(runs) * int(RUN), Expr::acc(filled)), |k| {
        k.update(BinOp::Add, runs, Expr::acc(runs));
    });
    let length = Expr::bin(BinOp::Div, Expr::acc(filled) + Expr::acc(runs) - int(1), Expr::acc(runs));
    let length = k.let_(length);
    let all = k.let_(length.clone() * Expr::acc(runs));
    // The padding of the last runs comes last, and its entries are distinct.
    k.at_index(Expr::acc(filled), room, |k, from| {
        k.at_index(all.clone(), room - RUN, |k, to| {
            k.range(LoopKind::Seq, "p", from, to + RUN, |k, p| {
                k.store(order, &spot(o, p), int(i64::MIN) + Expr::index(p))
            });
        });
    });
    let start = k.acc(int(0));
    k.while_(lt(Expr::acc(start), all.clone()), |k| {
        k.at_index(Expr::acc(start), room - RUN, |k, first| {
            k.at_index(length.clone(), (RUN + 1).into(), |k, n| run(k, o, (first, n), s));
        });
        k.update(BinOp::Add, start, length.clone());
    });
    back(k, o, all.clone(), s);
    let width = k.acc(length);
    k.while_(lt(Expr::acc(width), all.clone()), |k| {
        let start = k.acc(int(0));
        k.while_(lt(Expr::acc(start), all.clone()), |k| {
            let two = k.let_(Expr::acc(start) + Expr::acc(width) + Expr::acc(width));
            let (a, b) = (k.acc(Expr::acc(start)), k.acc(Expr::acc(start) + Expr::acc(width)));
            let (c, d) = (k.acc(Expr::acc(start) + Expr::acc(width) - int(1)), k.acc(two.clone() - int(1)));
            let entry = |k: &mut KernelBuilder, at: Reg| {
                let v = k.with_index(Expr::acc(at), room, |k, i| k.load(order, &spot(o, i)));
                k.let_(v)
            };
            k.at_index(Expr::acc(width), room, |k, steps| {
                k.range(LoopKind::Seq, "s", 0, steps, |k, i| {
                    let (va, vb) = (entry(k, a), entry(k, b));
                    let second = k.let_(lt(va.clone(), vb.clone()));
                    let (vc, vd) = (entry(k, c), entry(k, d));
                    let first = k.let_(lt(vc.clone(), vd.clone()));
                    k.at_index(Expr::acc(start) + Expr::index(i), room, |k, at| {
                        k.store(merged, &spot(o, at), Expr::select(second.clone(), vb, va))
                    });
                    k.at_index(two.clone() - Expr::index(i + 1), room, |k, at| {
                        k.store(merged, &spot(o, at), Expr::select(first.clone(), vc, vd))
                    });
                    let step = |c: Expr| Expr::cast(ElemType::Bool, ElemType::I64, c);
                    let (second, first) = (k.let_(step(second)), k.let_(step(first)));
                    k.update(BinOp::Add, a, int(1) - second.clone());
                    k.update(BinOp::Add, b, second);
                    k.set(c, Expr::acc(c) - first.clone());
                    k.set(d, Expr::acc(d) - (int(1) - first));
                });
            });
            k.set(start, two);
        });
        back(k, o, all.clone(), s);
        k.update(BinOp::Add, width, Expr::acc(width));
    });
}

/// Sorts a run of `n` entries from `first` on into the other list. The vector also reads entries after the
/// run, whose ranks are ignored.
fn run(k: &mut KernelBuilder, o: &[Dim], (first, n): (Dim, Dim), s: &Narrow) {
    k.range(LoopKind::Seq, "once", 0, 1, |k, _| {
        k.range(LoopKind::Par, "i", 0, RUN, |k, i| {
            let before = k.acc(int(0));
            k.range(LoopKind::Seq, "j", 0, n, |k, j| {
                let larger = lt(k.load(s.order, &spot(o, first + i)), k.load(s.order, &spot(o, first + j)));
                k.update(BinOp::Add, before, Expr::select(larger, int(1), int(0)));
            });
            k.store(s.ranks, &spot(o, i), Expr::acc(before));
        });
    });
    k.range(LoopKind::Seq, "j", 0, n, |k, j| {
        let place = k.load(s.ranks, &spot(o, j)) + Expr::index(first);
        let v = k.load(s.order, &spot(o, first + j));
        k.at_index(place, s.room, |k, at| k.store(s.merged, &spot(o, at), v));
    });
}

/// Copies the first entries back to the first list.
fn back(k: &mut KernelBuilder, o: &[Dim], n: Expr, s: &Narrow) {
    k.at_index(n, s.room, |k, n| {
        k.range(LoopKind::Par, "p", 0, n, |k, p| {
            let v = k.load(s.merged, &spot(o, p));
            k.store(s.order, &spot(o, p), v);
        });
    });
}
