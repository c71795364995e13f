//! Interleaves several rows: the steps of a scan depend on each other, and statements after a reduction
//! depend on its result, but those of other rows are independent.

use crate::nest::{BinOp, Expr, LoopKind, Module, Stmt, TASK_WORK};
use crate::passes::nest::analysis::form::{self, Rows};
use crate::passes::nest::analysis::lanes64;
use crate::passes::nest::analysis::shape::{ParNest, fresh_regs};
use crate::sym::{Dim, Sym};

/// Interleaved rows: the latency of an addition, in additions.
const ROWS: i64 = 4;
/// Maximum statements of a step.
const STATEMENTS: usize = 4;

/// The body of rows that are a scan each, with several rows interleaved and the innermost loop around
/// shortened accordingly. The remaining rows follow one by one.
pub(super) fn jam(m: &mut Module, loops: &mut [(Sym, Dim)], body: Vec<Stmt>) -> Vec<Stmt> {
    let Some((var, extent)) = loops.last().copied() else { return body };
    let few = extent.as_const().is_some_and(|n| n < 2 * ROWS);
    if few || form::scan(&body).is_none_or(|s| s.step.len() > STATEMENTS) {
        return body;
    }
    let blocks = extent.ceil_div(ROWS);
    let block = m.syms.loop_var("b", Dim::constant(0), blocks);
    if let Some(l) = loops.last_mut() {
        *l = (block, blocks);
    }
    let first = Dim::sym(block) * ROWS;
    let several = interleave(m, &body, var, first, ROWS);
    if extent.modulo(ROWS).as_const() == Some(0) {
        return several;
    }
    let hi = extent.min(first + ROWS);
    m.syms.set_loop_range(var, first, hi);
    let each = vec![Stmt::For { kind: LoopKind::Seq, var, lo: first, hi, body }];
    vec![Stmt::If { cond: Expr::cmp_index(BinOp::Le, first + ROWS, extent), then: several, els: each }]
}

/// The statements of `n` rows from `first` on, as those of one.
pub(crate) fn interleave(m: &mut Module, body: &[Stmt], var: Sym, first: Dim, n: i64) -> Vec<Stmt> {
    let row = |m: &mut Module, i: i64| {
        fresh_regs(m, body).into_iter().map(|s| s.subst(&|s| (s == var).then_some(first + i))).collect()
    };
    let rows: Vec<Vec<Stmt>> = (0..n).map(|i| row(m, i)).collect();
    merged(rows)
}

/// Maximum bytes of a row: data of interleaved rows stays in the first-level cache between loops. Vectors of
/// longer rows hide the latency of a reduction by themselves.
const SHORT: i64 = 4096;

/// Rows that are interleaved.
pub(super) struct Abreast {
    /// Their number; 1 if rows are not interleaved.
    pub rows: i64,
    /// Run-time lengths of rows, and the maximum for which interleaving is profitable.
    pub lengths: Vec<(Dim, i64)>,
}

/// The number of rows to interleave, if the body of a row is a sequence of loops over the same few elements
/// that includes a reduction, whose latency other rows hide. `least`: minimum elements of a row worth
/// vectors; `work`: scalar operations of all rows.
pub(super) fn rows_of(m: &Module, nest: &ParNest, (lanes, least): (i64, i64), work: Dim) -> Abreast {
    // Every thread has several blocks, of as many threads as there is work for.
    const ENOUGH: i64 = 8;
    let blocks = work.as_const().map_or(ENOUGH, |w| (w / TASK_WORK).clamp(2, ENOUGH));
    let none = Abreast { rows: 1, lengths: vec![] };
    let most = SHORT / if lanes64::has(m, &nest.body) { 8 } else { 4 };
    let Some(row) = form::rows(&nest.body).filter(Rows::reduces) else { return none };
    let mut lengths: Vec<(Dim, i64)> = vec![];
    for e in row.elements() {
        let [(_, n)] = e.loops[..] else { return none };
        match n.as_const() {
            Some(n) if !(least..=most).contains(&n) => return none,
            None if !lengths.contains(&(n, most)) => lengths.push((n, most)),
            _ => {}
        }
    }
    // Vectors of eight lanes imply half as many registers.
    let rows = match lanes {
        16 => ROWS,
        8 => ROWS / 2,
        _ => 1,
    };
    let enough = |l: &(Sym, Dim)| l.1.as_const().is_none_or(|n| n >= blocks * rows);
    if row.elements().count() > 1 && nest.loops.last().is_some_and(enough) {
        Abreast { rows, lengths }
    } else {
        none
    }
}

/// Merges the rows statement by statement, and their loops into one.
pub(super) fn merged(rows: Vec<Vec<Stmt>>) -> Vec<Stmt> {
    let mut rows: Vec<_> = rows.into_iter().map(Vec::into_iter).collect();
    let mut out = vec![];
    loop {
        let step: Vec<Stmt> = rows.iter_mut().filter_map(Iterator::next).collect();
        let Some(Stmt::For { kind, var, lo, hi, .. }) = step.first() else {
            if step.is_empty() {
                return out;
            }
            out.extend(step);
            continue;
        };
        let (kind, var, lo, hi) = (*kind, *var, *lo, *hi);
        let one = |s: Stmt| match s {
            Stmt::For { var: own, body, .. } => {
                body.into_iter().map(|s| s.subst(&|s| (s == own).then(|| Dim::sym(var)))).collect()
            }
            s => vec![s],
        };
        let bodies = step.into_iter().map(one).collect();
        out.push(Stmt::For { kind, var, lo, hi, body: merged(bodies) });
    }
}
