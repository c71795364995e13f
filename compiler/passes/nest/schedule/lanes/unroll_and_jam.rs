//! Several rows at once: a step of a running sum waits for the one before, and what follows a reduction waits
//! for it, but not for those of other rows.

use crate::nest::{BinOp, Expr, LoopKind, Module, Stmt};
use crate::passes::nest::analysis::form::{self, Rows};
use crate::passes::nest::analysis::lanes64;
use crate::passes::nest::analysis::shape::{ParNest, fresh_regs};
use crate::sym::{Dim, Sym};

/// Rows that are interleaved: what an addition takes until its result can be added to, in additions.
const ROWS: i64 = 4;
/// Most statements of a step.
const STATEMENTS: usize = 4;

/// The body of rows that are a scan each, for as many of them as are interleaved; the innermost of the loops
/// around is shorter then. Rows that are too few for that follow one by one.
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

/// The statements of so many rows, from row `first` on, as those of one.
pub(crate) fn interleave(m: &mut Module, body: &[Stmt], var: Sym, first: Dim, n: i64) -> Vec<Stmt> {
    let row = |m: &mut Module, i: i64| {
        fresh_regs(m, body).into_iter().map(|s| s.subst(&|s| (s == var).then_some(first + i))).collect()
    };
    let rows: Vec<Vec<Stmt>> = (0..n).map(|i| row(m, i)).collect();
    merged(rows)
}

/// Bytes of a row at most: what interleaved rows read and write stays in the first-level cache from one loop
/// to the next. Vectors of longer rows keep the units busy while a reduction is waited for.
const SHORT: i64 = 4096;

/// Rows that are interleaved.
pub(super) struct Abreast {
    /// How many; 1 for none.
    pub rows: i64,
    /// Lengths of rows that run time knows, and what they are at most where this is worth it.
    pub lengths: Vec<(Dim, i64)>,
}

/// How many rows are interleaved whose body is loops over the same few elements one after the other, with a
/// reduction among them: what one waits for, others use. `least`: elements of a row that is worth vectors.
pub(super) fn rows_of(m: &Module, nest: &ParNest, lanes: i64, least: i64) -> Abreast {
    // Rows that leave several times as many for every thread.
    const ENOUGH: i64 = 8;
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
    // Vectors of eight lanes come with half as many registers.
    let rows = match lanes {
        16 => ROWS,
        8 => ROWS / 2,
        _ => 1,
    };
    let enough = |l: &(Sym, Dim)| l.1.as_const().is_none_or(|n| n >= ENOUGH * rows);
    if row.elements().count() > 1 && nest.loops.last().is_some_and(enough) {
        Abreast { rows, lengths }
    } else {
        none
    }
}

/// Statement by statement, loops as one.
fn merged(rows: Vec<Vec<Stmt>>) -> Vec<Stmt> {
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
