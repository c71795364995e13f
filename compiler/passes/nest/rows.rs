//! Kernels of rows (softmax, normalization, reductions along what lies together in memory): which rows a task takes.
//!
//! Loops over rows become one where memory runs on from row to row, and a tile takes several rows at a time: what it
//! prepares (numbers in all lanes, run-time sizes) serves all of them.

use super::lanes;
use super::shape::{ParNest, wrap};
use super::tiles;
use crate::nest::{LoopKind, Module, Stmt, visit};
use crate::sym::{Dim, Sym};

/// Rows of a tile at most, and elements of all its rows where that is known.
const ROWS: i64 = 8;
const ELEMENTS: i64 = 4096;
/// Tiles that leave something for every thread.
const TILES: i64 = 16;

/// The loops of a nest of rows around its vectors; `body` stands inside all of `loops`.
pub(super) fn schedule(m: &mut Module, loops: Vec<(Sym, Dim)>, body: Vec<Stmt>) -> Vec<Stmt> {
    let mut vectors = false;
    visit::walk(&body, &mut |s| vectors |= matches!(s, Stmt::For { kind: LoopKind::Vec(_), .. }));
    if !vectors || loops.iter().any(|l| l.1.as_const() == Some(0)) {
        return wrap(&loops, body);
    }
    let mut nest = ParNest { loops, body };
    let Some((var, _)) = nest.loops.last().copied() else { return nest.body };
    lanes::collapse(m, &mut nest, var);
    let Some((var, hi)) = nest.loops.pop() else { return nest.body };
    if hi.as_const().is_some_and(|h| h <= 1) {
        nest.loops.push((var, hi));
        return wrap(&nest.loops, nest.body);
    }
    let zero = Dim::constant(0);
    let mut row = Some(1);
    visit::walk(&nest.body, &mut |s| {
        if let Stmt::For { lo, hi, .. } = s {
            row = row.max((*hi - *lo).as_const());
        }
    });
    let most = row.map_or(ROWS, |r| ELEMENTS / r.max(1)).min(hi.as_const().map_or(ROWS, |h| h / TILES)).clamp(1, ROWS);
    let pieces = hi.ceil_div(most);
    let c = m.syms.loop_var("c", zero, pieces);
    let lo = Dim::sym(c) * most;
    let end = if hi.modulo(most).as_const() == Some(0) { lo + most } else { hi.min(lo + most) };
    m.syms.set_loop_range(var, lo, end);
    let body = vec![Stmt::For { kind: LoopKind::Seq, var, lo, hi: end, body: nest.body }];
    nest.loops.push((c, pieces));
    tiles::parallel(m, &nest.loops, body)
}
