//! Tasks of row kernels (softmax, normalization, reductions along contiguous dimensions) and of loops around
//! vectors.
//!
//! Row loops are fused if memory is contiguous across them, and a tile processes several rows: loop-invariant
//! values (broadcasts, run-time sizes) serve all of them.

use crate::nest::{BinOp, Expr, LoopKind, Module, Stmt, TASK_WORK, visit};
use crate::passes::nest::analysis::cost;
use crate::passes::nest::analysis::machine::THREADS;
use crate::passes::nest::analysis::shape::{ParNest, parallel, substitute, wrap};
use crate::passes::nest::schedule::lanes::{self, ReduceRows, ShortRows};
use crate::sym::{Dim, Sym};
use std::collections::HashMap;

/// Maximum rows of a tile, and maximum elements of all its rows if known.
const ROWS: i64 = 8;
const ELEMENTS: i64 = 4096;
/// Minimum number of tiles, so that every thread has work, if there is enough of it.
const TILES: i64 = 16;

/// The rows that a task of a nest processes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Tasks {
    /// The loops do not change.
    Keep,
    /// Rows of the innermost loop: their number, and the number of interleaved ones.
    Rows {
        /// At most.
        most: i64,
        /// Side by side.
        abreast: i64,
    },
}

/// Alternatives that a task executes if rows are short at run time.
#[derive(Default)]
pub(crate) struct Ways {
    /// Interleaved rows, and the condition for them.
    pub several: Option<(Option<Expr>, Vec<Stmt>)>,
    /// Blocks of rows that are reduced together.
    pub together: Option<ReduceRows>,
    /// A block with a row per lane, and a row in scalars.
    pub short: Option<(ShortRows, Vec<Stmt>)>,
}

impl Tasks {
    /// Tasks of a nest of rows around its vectors; `abreast` rows are interleaved. `block`: minimum rows of a
    /// task; `work`: scalar operations of all rows.
    pub fn of_rows(nest: &ParNest, abreast: i64, block: Option<i64>, work: Dim) -> Tasks {
        let vectors = visit::any(&nest.body, &mut |s| matches!(s, Stmt::For { kind: LoopKind::Vec(_), .. }));
        let empty = nest.loops.iter().any(|l| l.1.as_const() == Some(0));
        let several = |l: &&(Sym, Dim)| l.1.as_const().is_none_or(|h| h > 1);
        let Some((_, hi)) =
            nest.loops.last().filter(several).filter(|_| (vectors || block.is_some()) && !empty)
        else {
            return Tasks::Keep;
        };
        let mut row = Some(1);
        visit::walk(&nest.body, &mut |s| {
            if let Stmt::For { lo, hi, .. } = s {
                row = row.max((*hi - *lo).as_const());
            }
        });
        // Threads have equal numbers of tiles. A single one does what is not worth waking another for.
        let tiles = work.as_const().map_or(TILES, |w| match w / TASK_WORK {
            ..2 => 2,
            n => ((n + THREADS - 1) / THREADS * THREADS).min(TILES),
        });
        let rows = row.map_or(ROWS, |r| ELEMENTS / r.max(1)).min(hi.as_const().map_or(ROWS, |h| h / tiles));
        let most = rows.clamp(1, ROWS).max(abreast) / abreast * abreast;
        Tasks::Rows { most: block.unwrap_or(most), abreast }
    }
    /// Emits the loops of the nest.
    pub fn apply(self, m: &mut Module, mut nest: ParNest, ways: Ways) -> Vec<Stmt> {
        let Tasks::Rows { most, abreast } = self else { return wrap(&nest.loops, nest.body) };
        let Some((var, hi)) = nest.loops.pop() else { return nest.body };
        let ((c, pieces), mut body) = in_pieces(m, (var, hi), most.into(), nest.body.clone());
        let lo = Dim::sym(c) * most;
        let all = hi.modulo(most).as_const() == Some(0);
        if abreast > 1 {
            let (short, row) = ways.several.unwrap_or((None, nest.body));
            let b = m.syms.loop_var("b", Dim::constant(0), Dim::constant(most / abreast));
            let several = lanes::interleave(m, &row, var, lo + Dim::sym(b) * abreast, abreast);
            let several = vec![Stmt::seq(b, most / abreast, several)];
            let whole = m.syms.simplify(hi.floor_div(most));
            let exist = (!all).then(|| Expr::cmp_index(BinOp::Lt, Dim::sym(c), whole));
            let cond = exist.into_iter().chain(short).reduce(|a, b| Expr::bin(BinOp::And, a, b));
            body = either(cond, several, body);
        }
        if let Some(together) = ways.together {
            let end = if all { lo + most } else { hi.min(lo + most) };
            let blocks = together.blocks(m, (lo, end));
            body = either(together.condition(), blocks, body);
        }
        if let Some((short, row)) = ways.short {
            body = short.or(m, &row, lo, body);
        }
        nest.loops.push((c, pieces));
        parallel(m, &nest.loops, body)
    }
}

/// One of two bodies, by a condition if there is one.
fn either(cond: Option<Expr>, then: Vec<Stmt>, els: Vec<Stmt>) -> Vec<Stmt> {
    match cond {
        None => then,
        Some(cond) => vec![Stmt::If { cond, then, els }],
    }
}

/// Tasks with scratch of their own (`nest`, rule 12).
#[derive(Clone, Copy)]
pub(crate) struct Slots {
    /// The number of a task.
    pub task: Sym,
    /// How many there are.
    pub count: i64,
    /// The first subscript of the scratch of a task.
    pub own: Sym,
}

impl Slots {
    /// For scratch whose first dimension is `count`.
    pub fn new(m: &mut Module, count: i64) -> Slots {
        let task = m.syms.loop_var("s", Dim::constant(0), count.into());
        let own = m.syms.loop_var("q", task.into(), Dim::sym(task) + 1);
        Slots { task, count, own }
    }
    /// The share of a task in the iterations of loops around `body`, `total` in number.
    pub fn share_of(self, m: &mut Module, nest: &[(Sym, Dim)], total: Dim, body: Vec<Stmt>) -> Stmt {
        let share = |first: Dim| m.syms.simplify((first * total).floor_div(self.count));
        let (lo, hi) = (share(self.task.into()), share(Dim::sym(self.task) + 1));
        let i = m.syms.loop_var("i", lo, hi);
        let (mut of, mut rest) = (vec![], Dim::sym(i));
        for (j, (var, hi)) in nest.iter().enumerate().rev() {
            of.push((*var, if j == 0 { rest } else { rest.modulo(*hi) }));
            rest = rest.floor_div(*hi);
        }
        let body = substitute(m, body, &|s| of.iter().find(|x| x.0 == s).map(|x| x.1));
        Stmt::For { kind: LoopKind::Seq, var: i, lo, hi, body }
    }
    /// All tasks, each of which executes `body`.
    pub fn around(self, body: Vec<Stmt>) -> Vec<Stmt> {
        vec![Stmt::par_private(self.task, self.count, self.own, body)]
    }
}

/// Minimum elements of a task of vectors.
const SHARE: i64 = 8192;
/// Iterations that are enough for the threads, and for a task.
const ENOUGH: i64 = 64;

/// The loops around vectors (`body` is inside all of them). If the outermost loop has too few iterations for
/// the threads, a loop over pieces of the inner ones is added.
pub(crate) fn share(m: &mut Module, mut loops: Vec<(Sym, Dim)>, body: Vec<Stmt>) -> Vec<Stmt> {
    let size = cost::trip_count(&body, &mut HashMap::new()).unwrap_or(Dim::constant(1));
    if size.as_const().is_some() {
        return share_of_size(m, loops, body, size.as_const());
    }
    let unknown = |l: &(Sym, Dim)| l.1.as_const().is_none();
    // Sizes of several loops would make long expressions of the bounds of tasks.
    let row =
        matches!(body.as_slice(), [Stmt::For { kind: LoopKind::Vec(_), .. }]) && !m.syms.has_loops(size);
    if row && loops.iter().rev().take(2).all(unknown) && !loops.is_empty() {
        return share_of_run_time_size(m, loops, body, size);
    }
    // A few known iterations inside loops of run-time length are part of the rows of these. Tasks of one row
    // would divide its position by the lengths.
    let inside = |i: usize| Dim::product(loops[i + 1..].iter().map(|l| l.1));
    let few = |i: &usize| inside(*i).as_const().is_some_and(|n| (2..=ROWS).contains(&n));
    let rows = loops.iter().rposition(unknown).filter(|i| row && *i > 0).filter(few);
    if let Some(i) = rows.filter(|_| outer_tasks(&loops).is_none()) {
        let size = size * inside(i);
        let inner = loops.split_off(i + 1);
        return share_of_run_time_size(m, loops, wrap(&inner, body), size);
    }
    match outer_tasks(&loops) {
        Some(outer) => {
            let (outer, inner) = loops.split_at(outer);
            let body = in_a_task(m, inner.to_vec(), body);
            parallel(m, outer, body)
        }
        None => share_of_size(m, loops, body, None),
    }
}

/// The loops inside a task, around vectors of a run-time length.
fn in_a_task(m: &mut Module, mut loops: Vec<(Sym, Dim)>, mut body: Vec<Stmt>) -> Vec<Stmt> {
    // Positions that are divided need a bound of the rows.
    let divides = |(row, extent): &mut (Sym, Dim)| {
        let mut linear = true;
        visit::accesses(&body, &mut |buf, at| linear &= m.linear(buf, at).linear_in(*row).is_some());
        extent.as_const().is_none() && !linear
    };
    if let Some(row) = loops.pop_if(divides) {
        let piece;
        (piece, body) = in_pieces(m, row, ENOUGH.into(), body);
        loops.push(piece);
    }
    wrap(&loops, body)
}

/// The number of outer loops that together have enough iterations for the threads, or none at all, whatever
/// the run-time values of their lengths are; there are loops inside.
fn outer_tasks(loops: &[(Sym, Dim)]) -> Option<usize> {
    // Multiples of a number that is enough are enough, or 0.
    let is_enough = |all: Dim| (ENOUGH..2 * ENOUGH).any(|n| all.modulo(n).as_const() == Some(0));
    let iterations = |n: usize| Dim::product(loops[..n].iter().map(|l| l.1));
    let fewest = (1..=loops.len()).find(|n| is_enough(iterations(*n)))?;
    (fewest < loops.len() && iterations(fewest).as_const().is_none()).then_some(fewest)
}

/// The same for rows of a run-time length, inside loops of which the innermost has one, too: tasks have
/// iterations of the two innermost ones, however many either has.
fn share_of_run_time_size(
    m: &mut Module,
    mut loops: Vec<(Sym, Dim)>,
    mut body: Vec<Stmt>,
    mut size: Dim,
) -> Vec<Stmt> {
    let mut inner = None;
    if loops.len() > 1
        && let Some((var, hi)) = loops.pop()
    {
        let piece;
        // Few rows, unless these are short.
        let most = (Dim::constant(ENOUGH) - size.floor_div(16)).max(ROWS);
        (piece, body) = in_pieces(m, (var, hi), most, body);
        inner = Some(piece);
        size = size * hi;
    }
    if let Some(row) = loops.pop() {
        // At most four times as many elements as a share has; a quotient by the length would take more time.
        let most = (Dim::constant(ENOUGH) - size.floor_div(SHARE / (4 * ENOUGH))).max(1);
        let piece;
        (piece, body) = in_pieces(m, row, most, body);
        loops.push(piece);
    }
    loops.extend(inner);
    parallel(m, &loops, body)
}

/// The same for a body of `size` elements.
pub(crate) fn share_of_size(
    m: &mut Module,
    mut loops: Vec<(Sym, Dim)>,
    mut body: Vec<Stmt>,
    mut size: Option<i64>,
) -> Vec<Stmt> {
    let first = loops.first().and_then(|l| l.1.as_const());
    let all = size
        .zip(loops.iter().map(|l| l.1.as_const()).try_fold(1i64, |n, e| n.checked_mul(e?)))
        .map(|(b, l)| b.saturating_mul(l));
    if loops.len() < 2 || first.is_some_and(|n| n >= ENOUGH) || all.is_some_and(|n| n <= SHARE) {
        return wrap(&loops, body);
    }
    // Inner loops that together are at most one share do not change.
    while loops.len() > 1
        && let (Some((var, hi)), Some(n)) = (loops.last().copied(), size)
        && let Some(e) = hi.as_const().and_then(|h| h.checked_mul(n)).filter(|e| *e <= SHARE)
    {
        loops.pop();
        body = wrap(&[(var, hi)], body);
        size = Some(e);
    }
    if loops.len() == 1 {
        return wrap(&loops, body);
    }
    let Some((var, hi)) = loops.pop() else { return body };
    let most = size.map_or(ROWS, |n| SHARE / n.max(1)).clamp(1, ENOUGH);
    let most = hi.as_const().map_or(most, |h| most.min(h.max(1)));
    if most == 1 {
        loops.push((var, hi));
        return parallel(m, &loops, body);
    }
    let (piece, body) = in_pieces(m, (var, hi), most.into(), body);
    loops.push(piece);
    parallel(m, &loops, body)
}

/// A loop over pieces of at most `most` iterations of a loop, and what is inside of it.
fn in_pieces(m: &mut Module, (var, hi): (Sym, Dim), most: Dim, body: Vec<Stmt>) -> ((Sym, Dim), Vec<Stmt>) {
    let pieces = hi.ceil_div(most);
    let c = m.syms.loop_var("c", Dim::constant(0), pieces);
    let lo = Dim::sym(c) * most;
    let end = if hi.modulo(most).as_const() == Some(0) { lo + most } else { hi.min(lo + most) };
    m.syms.set_loop_range(var, lo, end);
    ((c, pieces), vec![Stmt::For { kind: LoopKind::Seq, var, lo, hi: end, body }])
}
