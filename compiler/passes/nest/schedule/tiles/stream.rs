//! Prefetches of an operand that is no constant and that few rows read once, so that its elements come from
//! memory while they are used: the keys and values of a decoder's caches.
//!
//! Of B in place, a step prefetches its part of the row that is read some steps later. Of panels that a task
//! makes right before it uses them, a tile prefetches what the next panel is made of.

use super::register::Block;
use super::{Panels, Source, Tile, finish};
use crate::nest::schedule::Packing;
use crate::nest::{Buf, Module, Stmt};
use crate::passes::nest::analysis::form::Contraction;
use crate::passes::nest::analysis::machine::L2;
use crate::passes::nest::analysis::strides::stride;
use crate::sym::Dim;

/// Bytes of an operand from which on it is taken not to be in the second-level cache.
const BYTES: i64 = L2 / 2;
/// Multiply-adds of vectors that take as long as a line from memory.
const LATENCY: i64 = 512;
/// Lines that a step of the sum prefetches at most.
const MOST_LINES: i64 = 4;

/// True for an operand that may not be in the second-level cache, and is no constant.
pub(crate) fn is_far(m: &Module, buf: Buf) -> bool {
    let d = &m.bufs[m.storage(buf)];
    let Some(bytes) = d.ty.bytes() else { return false };
    let size = d.dims.iter().try_fold(i64::from(bytes), |n, d| n.checked_mul(d.as_const()?));
    !m.is_constant(buf) && size.is_none_or(|s| s >= BYTES)
}

/// Where the lines of B are: those of a row follow each other in memory.
#[derive(Clone, Copy)]
enum Rows {
    /// A row for each step of the sum, along the columns. A step prefetches the row that is so many steps
    /// ahead.
    Steps { ahead: i64 },
    /// A row for each column, along the steps.
    Columns,
}

/// The rows of B, where all rows of A use it in one tile and it may be large.
fn rows<P: Source>(m: &Module, p: &Contraction, t: &Tile<P>) -> Option<Rows> {
    let ([(depth, steps)], b) = (p.reduction.as_slice(), m.storage(p.b.0)) else { return None };
    let once = t.m_row.is_none_or(|r| r.1.as_const().is_some_and(|n| n <= t.mr));
    let bytes = i64::from(m.bufs[b].ty.bytes()?);
    let size = m.bufs[b].dims.iter().try_fold(bytes, |n, d| n.checked_mul(d.as_const()?));
    if !once
        || m.is_constant(b)
        || p.prefetch.is_some()
        || p.with.is_some()
        || size.is_some_and(|s| s < BYTES)
    {
        return None;
    }
    let linear = |s| m.linear(p.b.0, &p.b.1).linear_in(s).is_some();
    let along = |s| stride(m, p.b.0, &p.b.1, s) == Some(1);
    let ahead = (LATENCY / (t.mr * t.nv)).max(1);
    match t.panels.describe(m, t.nr) {
        _ if !linear(*depth) || !linear(t.n) => None,
        Packing::InPlace if along(t.n) && steps.as_const().is_none_or(|s| s >= 2 * ahead) => {
            Some(Rows::Steps { ahead })
        }
        Packing::Task { .. } if along(*depth) => Some(Rows::Columns),
        _ => None,
    }
}

/// True if tiles prefetch B.
pub(super) fn prefetches<P: Source>(m: &Module, p: &Contraction, t: &Tile<P>) -> bool {
    rows(m, p, t).is_some()
}

/// What iteration `q` of `each` steps of a tile's sum prefetches.
pub(super) fn lines(m: &Module, block: &Block, q: Dim, each: i64) -> Vec<Stmt> {
    let Block { p, t, part, .. } = *block;
    // Weights of few bits have been converted, not read from B.
    if matches!(t.panels, Panels::Private { of_b: false, .. }) {
        return vec![];
    }
    let (Some(rows), [(depth, steps)]) = (rows(m, p, t), p.reduction.as_slice()) else { return vec![] };
    let line = finish::LINE / m.bufs[p.b.0].ty.bytes().map_or(4, i64::from);
    let ask = |k: Dim, n: Dim| {
        let put = |s| if s == t.n { Some(n) } else { (s == *depth).then_some(k) };
        Stmt::Prefetch { buf: p.b.0, at: p.b.1.iter().map(|d| d.subst(&mut |s| put(s))).collect() }
    };
    // Lines of `count` rows of so many elements.
    let grid = |count: i64, elements: i64| {
        (0..count).flat_map(move |i| (0..elements).step_by(line as usize).map(move |e| (i, e)))
    };
    match rows {
        Rows::Steps { ahead } => {
            let (k, n) = (q * each + ahead, block.column());
            grid(each, block.vectors() * t.lanes).map(|(i, e)| ask(k + i, n + e)).collect()
        }
        Rows::Columns => {
            let Some(turns) = steps.as_const().map(|s| s / each).filter(|n| *n > 0) else { return vec![] };
            let (n, count) = ((part.panel + 1) * t.nr, (t.nr + turns - 1) / turns);
            let all = grid(count, turns * each);
            if all.clone().count() as i64 > MOST_LINES * each {
                return vec![];
            }
            all.map(|(i, e)| ask(e.into(), n + q * count + i)).collect()
        }
    }
}
