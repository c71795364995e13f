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

use super::columns::results;
use super::keys::{packed, spot};
use super::limit::{Keys, bisect, extreme, lt, most, wide};
use super::short::{Ranks, places};
use super::{Row, RowAt, TopK};
use crate::nest::{BinOp, Buf, Expr, KernelBuilder, LoopKind, Reg};
use crate::ops::LowerCx;
use crate::ops::support::runtime::{eq, int, le, or};
use crate::sym::Dim;
use crate::tensor::ElemType;

/// Longest run that is sorted by counting.
const RUN: i64 = 64;

/// Scratch for rows.
pub(super) struct Narrow {
    keys: Keys,
    /// The list that is sorted.
    pub order: Buf,
    merged: Buf,
    ranks: Ranks,
    /// Capacity of `order` and `merged`, and the number of entries that can be sorted.
    room: Dim,
    entries: Dim,
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
        let mut buf = |name: &str| {
            cx.temp(name, ElemType::I64, outer.iter().copied().chain([room]).collect::<Vec<_>>())
        };
        Narrow {
            order: buf("order"),
            merged: buf("merged"),
            room,
            entries,
            ranks: Ranks::new(cx, outer, RUN.into()),
            keys: Keys::new(cx, "keys", ElemType::I32, outer, row.n),
        }
    }
    /// Most entries of the list.
    pub fn entries(&self) -> Dim {
        self.entries
    }
}

impl TopK {
    /// Computes one row. `limit`: an i64 that at least as many keys reach as results are requested; may be
    /// i32::MIN.
    pub(super) fn narrow(&self, k: &mut KernelBuilder, row: &RowAt, s: &Narrow, limit: Option<Reg>) {
        k.range(LoopKind::Par, "i", 0, row.n, |k, i| {
            let key = self.key_at(k, row, i);
            k.store(s.keys.keys, &spot(row.o, i), key);
        });
        // Keys above `lowest` are taken, and `allowed` of those that are equal to it, or all if that is
        // negative.
        let (known, none) = (limit.is_some(), int(i32::MIN.into()));
        let lowest = limit.unwrap_or_else(|| k.acc(none.clone()));
        let (above, allowed) = (k.acc(int(0)), k.acc(int(-1)));
        if !k.m.syms.is_nonneg(most(row.count) - row.n) {
            k.if_(Expr::cmp_index(BinOp::Gt, row.n, most(row.count)), |k| {
                let least = |k: &mut KernelBuilder| {
                    extreme(k, row.o, &s.keys, s.keys.count, BinOp::Min, |_, v| v);
                    k.set(lowest, wide(k, row.o, s.keys.count));
                };
                if known {
                    k.if_(eq(Expr::acc(lowest), none), least)
                } else {
                    least(k)
                }
                let found = bisect(k, row.o, &s.keys, row.count, lowest);
                k.set(above, Expr::acc(found.above));
                let rest = Expr::index(row.count) - Expr::acc(above);
                k.set(allowed, Expr::select(eq(Expr::acc(found.close), int(0)), rest, int(-1)));
            });
        }
        let filled = k.acc(int(0));
        let least = k.let_(Expr::acc(lowest) + Expr::select(lt(Expr::acc(allowed), int(0)), int(0), int(1)));
        let some = or(lt(Expr::acc(allowed), int(0)), lt(int(0), Expr::acc(above)));
        k.if_(some, |k| {
            k.range(LoopKind::Seq, "i", 0, row.n, |k, i| {
                let key = k.let_(k.load(s.keys.keys, &spot(row.o, i)));
                let taken = le(least.clone(), Expr::cast(ElemType::I32, ElemType::I64, key.clone()));
                k.at_index(Expr::acc(filled), s.room, |k, at| {
                    k.store(s.order, &spot(row.o, at), packed(key, i))
                });
                k.update(BinOp::Add, filled, Expr::cast(ElemType::Bool, ElemType::I64, taken));
            });
        });
        let (from, all) = (k.acc(int(0)), k.let_(Expr::acc(filled) + Expr::acc(allowed)));
        k.while_(lt(Expr::acc(filled), all), |k| {
            k.at_index(Expr::acc(from), row.n, |k, i| {
                let key = k.let_(k.load(s.keys.keys, &spot(row.o, i)));
                let same = eq(Expr::acc(lowest), Expr::cast(ElemType::I32, ElemType::I64, key.clone()));
                k.at_index(Expr::acc(filled), s.room, |k, at| {
                    k.store(s.order, &spot(row.o, at), packed(key, i))
                });
                k.update(BinOp::Add, filled, Expr::cast(ElemType::Bool, ElemType::I64, same));
            });
            k.update(BinOp::Add, from, int(1));
        });
        sort(k, row.o, filled, s);
        results(k, row, s.order, 0);
    }
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

/// Sorts a run of `n` entries from `first` on into the other list. Entries of equal keys are in order.
fn run(k: &mut KernelBuilder, o: &[Dim], (first, n): (Dim, Dim), s: &Narrow) {
    k.range(LoopKind::Par, "j", 0, n, |k, j| {
        let key = Expr::bin(BinOp::Shr, k.load(s.order, &spot(o, first + j)), int(32));
        k.store(s.ranks.keys, &spot(o, j), Expr::cast(ElemType::I64, ElemType::I32, key));
    });
    places(k, o, n, &s.ranks, |k, j, place| {
        let v = k.load(s.order, &spot(o, first + j));
        k.at_index(place + Expr::index(first), s.room, |k, at| k.store(s.merged, &spot(o, at), v));
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
