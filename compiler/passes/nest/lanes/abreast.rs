//! Running sums of several rows at once: each step waits for the one before, but not for those of other rows.

use crate::nest::{LoopKind, Module, Stmt};
use crate::passes::nest::shape::fresh_regs;
use crate::sym::{Dim, Sym};

/// Rows that go abreast: what an addition takes until its result can be added to, in additions.
const ROWS: i64 = 4;
/// Most statements of a step.
const STATEMENTS: usize = 4;

/// The body of rows that are a scan each, for as many of them as go abreast; the innermost of the loops around is shorter then.
pub(super) fn jam(m: &mut Module, loops: &mut [(Sym, Dim)], body: Vec<Stmt>) -> Vec<Stmt> {
    let Some((var, extent)) = loops.last().copied() else { return body };
    let Some(n) = extent.as_const().filter(|n| n % ROWS == 0 && *n >= 2 * ROWS) else { return body };
    if !is_scan(&body) {
        return body;
    }
    let zero = Dim::constant(0);
    let block = m.syms.loop_var("b", zero, Dim::constant(n / ROWS));
    let rows = (0..ROWS).map(|i| {
        let row = Dim::sym(block) * ROWS + i;
        fresh_regs(m, &body).into_iter().map(|s| s.map_dims(&mut |d| d.subst(&mut |s| (s == var).then_some(row)))).collect()
    });
    let rows: Vec<Vec<Stmt>> = rows.collect();
    if let Some(l) = loops.last_mut() {
        *l = (block, Dim::constant(n / ROWS));
    }
    merged(rows)
}

/// Accumulators and one sequential loop of few straight statements, which changes some of them and stores.
fn is_scan(body: &[Stmt]) -> bool {
    let mut scans = 0;
    for s in body {
        match s {
            Stmt::Acc { lanes: 1, .. } => {}
            Stmt::For { kind: LoopKind::Seq, body, .. } if body.len() <= STATEMENTS && body.iter().all(|s| matches!(s, Stmt::Let { .. } | Stmt::Set { .. } | Stmt::Store { .. })) => {
                let has = |f: fn(&Stmt) -> bool| body.iter().any(f);
                if !has(|s| matches!(s, Stmt::Set { .. })) || !has(|s| matches!(s, Stmt::Store { .. })) {
                    return false;
                }
                scans += 1;
            }
            _ => return false,
        }
    }
    scans == 1
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
            Stmt::For { var: own, body, .. } => body.into_iter().map(|s| s.map_dims(&mut |d| d.subst(&mut |s| (s == own).then(|| Dim::sym(var))))).collect(),
            s => vec![s],
        };
        let bodies = step.into_iter().map(one).collect();
        out.push(Stmt::For { kind, var, lo, hi, body: merged(bodies) });
    }
}
