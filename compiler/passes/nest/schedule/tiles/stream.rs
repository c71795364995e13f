//! Prefetches of an operand that is no constant and that few rows read once, so that its elements come from
//! memory while they are used: the keys and values of a decoder's caches.
//!
//! Of B in place, a step prefetches its part of the row that is read some steps later. Of panels that a task
//! makes right before it uses them, a tile prefetches what the next panel is made of.

use super::register::Block;
use super::{Panels, Tile, finish};
use crate::nest::{Module, Place, Stmt};
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

/// Where the lines of B are: those of a row follow each other in memory.
struct Rows {
    /// Steps of the sum along which rows follow each other, not columns.
    of_steps: bool,
    /// Elements of a line.
    line: i64,
}

/// The rows of B, where all rows of A use it in one tile and it may be large.
fn rows<P>(m: &Module, p: &Contraction, t: &Tile<P>) -> Option<Rows> {
    let ([(depth, _)], b) = (p.reduction.as_slice(), m.storage(p.b.0)) else { return None };
    let once = t.m_row.is_none_or(|r| r.1.as_const().is_some_and(|n| n <= t.mr));
    let bytes = i64::from(m.bufs[b].ty.bytes()?);
    let size = m.bufs[b].dims.iter().try_fold(bytes, |n, d| n.checked_mul(d.as_const()?));
    let constant = matches!(m.bufs[b].place, Place::Const(_));
    if !once || constant || p.prefetch.is_some() || p.with.is_some() || size.is_some_and(|s| s < BYTES) {
        return None;
    }
    let of_steps = stride(m, p.b.0, &p.b.1, t.n) == Some(1);
    let along = if of_steps { stride(m, p.b.0, &p.b.1, t.n) } else { stride(m, p.b.0, &p.b.1, *depth) };
    let linear = |s| m.linear(p.b.0, &p.b.1).linear_in(s).is_some();
    (along == Some(1) && linear(*depth) && linear(t.n))
        .then_some(Rows { of_steps, line: finish::LINE / i64::from(m.bufs[p.b.0].ty.bytes()?) })
}

/// True if tiles prefetch B.
pub(super) fn prefetches<P>(m: &Module, p: &Contraction, t: &Tile<P>) -> bool {
    rows(m, p, t).is_some()
}

/// What iteration `q` of `each` steps of a tile's sum prefetches.
pub(super) fn lines(m: &Module, block: &Block, q: Dim, each: i64) -> Vec<Stmt> {
    let Block { p, t, part, mr, .. } = *block;
    let (Some(rows), [(depth, steps)]) = (rows(m, p, t), p.reduction.as_slice()) else { return vec![] };
    let first = block.column();
    let at = |k: Dim, n: Dim| {
        let put = |s| if s == t.n { Some(n) } else { (s == *depth).then_some(k) };
        let at = p.b.1.iter().map(|d| d.subst(&mut |s| put(s))).collect();
        Stmt::Prefetch { buf: p.b.0, at }
    };
    let lines_of = |elements: i64| (elements + rows.line - 1) / rows.line;
    match (&t.panels, rows.of_steps) {
        (Panels::InPlace, true) => {
            let nv = block.vectors();
            let ahead = (LATENCY / (mr * nv)).max(each);
            let of_row = lines_of(nv * t.lanes);
            let step = |i: i64| (0..of_row).map(move |l| (i, l));
            (0..each)
                .flat_map(step)
                .map(|(i, l)| at(q * each + ahead + i, first + l * rows.line))
                .collect()
        }
        (Panels::Private { of_b: true, .. }, false) => {
            let Some(turns) = steps.as_const().map(|s| s / each).filter(|n| *n > 0) else { return vec![] };
            let (of_row, count) = (lines_of(turns * each), (t.nr + turns - 1) / turns);
            if of_row * count > MOST_LINES * each {
                return vec![];
            }
            let next = (part.panel + 1) * t.nr;
            let step = |i: i64| (0..of_row).map(move |l| (i, l));
            (0..count)
                .flat_map(step)
                .map(|(i, l)| at(Dim::constant(l * rows.line), next + q * count + i))
                .collect()
        }
        _ => vec![],
    }
}
