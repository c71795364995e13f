//! The work of a kernel, by which schedules are compared and tasks divided.

use crate::nest::{Buf, Expr, Module, Stmt, visit};
use crate::passes::nest::analysis::form::{Loops, depends, par_loops};
use crate::sym::{Answer, Dim, Sym};
use std::collections::{BTreeMap, HashMap};

/// Assumed trip count of a `while` loop: a search, or a path down a tree.
const WHILE_TRIPS: i64 = 8;

/// Work of transferring four bytes from another core's cache, or of allocating a cache line for them, in
/// scalar operations as in `KernelData::work`. With several threads, small kernels are bound by this.
pub(crate) const MOVE: i64 = 2;

/// The work of a nest: its operations and its memory accesses.
pub fn work(m: &Module, body: &[Stmt]) -> Dim {
    let (loops, inside) = par_loops(body);
    let ops: usize = {
        let mut n = 0;
        visit::walk(inside, &mut |s| n += s.expr().map_or(0, Expr::size));
        n
    };
    let waits = visit::any(inside, &mut |s| matches!(s, Stmt::While { .. }));
    let mut first = loops.iter().map(|l| (l.0, Dim::constant(0))).collect();
    let inner = trip_count(inside, &mut first).unwrap_or(Dim::constant(1));
    let turns = if waits { WHILE_TRIPS } else { 1 };
    let operations =
        Dim::product(loops.iter().map(|l| l.1)) * inner * (ops.div_ceil(4).max(1) as i64 * turns);
    operations + touched(m, (&loops, inside), &first) * MOVE
}

/// Words of four bytes that a nest accesses: the maximum over the accesses of each buffer.
fn touched(m: &Module, (loops, inside): (&Loops, &[Stmt]), first: &HashMap<Sym, Dim>) -> Dim {
    let mut of: BTreeMap<Buf, Dim> = BTreeMap::new();
    let mut loops = loops.clone();
    accesses(inside, first, &mut loops, &mut |buf, at, loops| {
        let bytes = m.bufs[buf].ty.bytes().map_or(1, i64::from);
        let words =
            (Dim::product(loops.iter().filter(|l| depends(at, l.0)).map(|l| l.1)) * bytes).ceil_div(4);
        let most = of.entry(buf).or_insert(words);
        if m.syms.le(words, *most) == Answer::No {
            *most = words;
        }
    });
    of.into_values().fold(Dim::constant(0), |a, b| a + b)
}

/// Receives a load or a store: buffer, subscripts, and the loops around it.
type OfAccess<'a> = dyn FnMut(Buf, &[Dim], &[(Sym, Dim)]) + 'a;

/// Calls `f` for each load and store; `first` as in [`turns`].
fn accesses(body: &[Stmt], first: &HashMap<Sym, Dim>, loops: &mut Vec<(Sym, Dim)>, f: &mut OfAccess) {
    for s in body {
        s.accesses(&mut |buf, at| f(buf, at, loops));
        let depth = loops.len();
        if let Stmt::For { var, lo, hi, .. } = s {
            let at_first = |d: &Dim| d.subst(&mut |s| first.get(&s).copied());
            loops.push((*var, (at_first(hi) - at_first(lo)).max(1)));
        }
        for b in s.bodies() {
            accesses(b, first, loops, f);
        }
        loops.truncate(depth);
    }
}

/// Total trip count of the innermost bodies, sibling loops added up; `None` without loops. Bounds that depend
/// on an outer loop are evaluated for its first iteration, bounds that depend on a loaded value for its
/// maximum.
pub(crate) fn trip_count(body: &[Stmt], first: &mut HashMap<Sym, Dim>) -> Option<Dim> {
    let mut sum: Option<Dim> = None;
    for s in body {
        let inside = if let Stmt::For { var, lo, hi, body, .. } = s {
            let at_first = |d: &Dim| d.subst(&mut |s| first.get(&s).copied());
            let (lo, hi) = (at_first(lo), at_first(hi));
            first.insert(*var, lo);
            Some(trip_count(body, first).unwrap_or(Dim::constant(1)) * (hi - lo).max(1))
        } else {
            if let Stmt::With { sym, extent, .. } = s {
                let most = extent.subst(&mut |s| first.get(&s).copied());
                first.insert(*sym, most);
            }
            s.bodies().filter_map(|b| trip_count(b, first)).reduce(|a, b| a + b)
        };
        sum = match (sum, inside) {
            (Some(a), Some(b)) => Some(a + b),
            (a, b) => a.or(b),
        };
    }
    sum
}
