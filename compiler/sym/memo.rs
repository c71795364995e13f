//! A cache of recent results. Operations on dims are pure, and every copy of an unrolled body requests the
//! same few again on every CPU level, so each thread keeps its latest results.

use super::expr::{Dim, Sym};
use std::cell::RefCell;

/// An operation whose results are cached.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Op {
    Add,
    Mul,
    FloorDiv,
    Mod,
    Min,
    Max,
    SplitConst,
    Linear(Sym),
}

/// Operation, operands and result; `linear_in` has two results or none.
type Entry = (Op, Dim, Dim, Option<(Dim, Dim)>);

const ENTRIES: usize = 1 << 13;

thread_local! {
    /// Direct-mapped: a later result replaces an earlier one.
    static LATEST: RefCell<Vec<Option<Entry>>> = const { RefCell::new(vec![]) };
}

fn place(op: Op, a: Dim, b: Dim) -> usize {
    let op = match op {
        Op::Linear(s) => 16 + u64::from(s.0),
        Op::Add => 0,
        Op::Mul => 1,
        Op::FloorDiv => 2,
        Op::Mod => 3,
        Op::Min => 4,
        Op::Max => 5,
        Op::SplitConst => 6,
    };
    let mix = (a.structural_hash().rotate_left(17) ^ b.structural_hash())
        .wrapping_add(op.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    (mix.wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 32) as usize % ENTRIES
}

/// The pair for these operands, from the cache or computed.
pub(super) fn pair(
    op: Op,
    a: Dim,
    b: Dim,
    compute: impl FnOnce() -> Option<(Dim, Dim)>,
) -> Option<(Dim, Dim)> {
    let at = place(op, a, b);
    let known = LATEST.with_borrow(|v| match v.get(at) {
        Some(Some(e)) if e.0 == op && e.1 == a && e.2 == b => Some(e.3),
        _ => None,
    });
    if let Some(r) = known {
        return r;
    }
    let r = compute();
    LATEST.with_borrow_mut(|v| {
        if v.is_empty() {
            v.resize(ENTRIES, None);
        }
        v[at] = Some((op, a, b, r));
    });
    r
}

/// The dim for these operands, from the cache or computed.
pub(super) fn dim(op: Op, a: Dim, b: Dim, compute: impl FnOnce() -> Dim) -> Dim {
    pair(op, a, b, || Some((compute(), a))).map_or(a, |r| r.0)
}
