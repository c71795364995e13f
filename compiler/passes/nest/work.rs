//! How much work a kernel is: what decides on tasks, and what schedules weigh.

use super::shape::peel;
use crate::nest::{Expr, Kernel, Module, Stmt, visit};
use crate::sym::{Dim, Sym};
use std::collections::HashMap;

/// How often a `while` loop is taken to run: a search, or a way down a tree.
const WHILE_TURNS: i64 = 8;

/// Estimates the work of a kernel.
pub fn estimate(m: &mut Module, k: Kernel) {
    let nest = peel(&m.kernels[k].body);
    let ops: usize = {
        let mut n = 0;
        visit::walk(&nest.body, &mut |s| n += s.expr().map_or(0, Expr::size));
        n
    };
    let mut waits = false;
    visit::walk(&nest.body, &mut |s| waits |= matches!(s, Stmt::While { .. }));
    let mut first = nest.loops.iter().map(|l| (l.0, Dim::constant(0))).collect();
    let inner = turns(&nest.body, &mut first).unwrap_or(Dim::constant(1));
    let turns = if waits { WHILE_TURNS } else { 1 };
    m.kernels[k].work = Dim::product(nest.loops.iter().map(|l| l.1)) * inner * (ops.div_ceil(4).max(1) as i64 * turns);
}

/// How often loops run their innermost bodies, loops beside each other together; `None` without loops. Bounds that depend
/// on a loop outside are taken as in its first iteration, those that depend on a number from memory as with the greatest.
pub(super) fn turns(body: &[Stmt], first: &mut HashMap<Sym, Dim>) -> Option<Dim> {
    let mut sum: Option<Dim> = None;
    for s in body {
        let inside = if let Stmt::For { var, lo, hi, body, .. } = s {
            let at_first = |d: &Dim| d.subst(&mut |s| first.get(&s).copied());
            let (lo, hi) = (at_first(lo), at_first(hi));
            first.insert(*var, lo);
            Some(turns(body, first).unwrap_or(Dim::constant(1)) * (hi - lo).max(1))
        } else {
            if let Stmt::With { sym, extent, .. } = s {
                let most = extent.subst(&mut |s| first.get(&s).copied());
                first.insert(*sym, most);
            }
            s.bodies().into_iter().filter_map(|b| turns(b, first)).reduce(|a, b| a + b)
        };
        sum = match (sum, inside) {
            (Some(a), Some(b)) => Some(a + b),
            (a, b) => a.or(b),
        };
    }
    sum
}
