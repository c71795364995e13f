//! Adjacent rows of a sliding window in one tile: the window of a row shares most rows of the image with that
//! of the next one, and all rows have the same factors.
//!
//! Vectors along a row of the image are loads that cross cache lines, one for each tap and vector. A tile of
//! `R` rows and `K` taps down the image loads `R + K - 1` rows in place of `R * K`:
//!
//! ```text
//! seq x { seq y { acc = fma(image[row + y, x ..], w[y, x], acc) } }          one row
//! seq x { for d in 0 .. R + K - 1 { for r: acc[r] = fma(image[first + d, x ..], w[d - r, x], acc[r]) } }
//! ```

use super::operands::{self, Load};
use super::unroll_and_jam::merged;
use crate::nest::{BinOp, Expr, LoopKind, Math, Module, Stmt};
use crate::passes::nest::analysis::columns::UNKNOWN_ROW;
use crate::passes::nest::analysis::shape::{ParNest, fresh_regs};
use crate::passes::nest::schedule::tiles;
use crate::sym::{Answer, Dim, Sym};

/// The rows of a tile.
#[derive(Clone, Copy, Debug)]
pub(super) struct WindowRows {
    /// The loop over rows, the innermost one around the vectors.
    row: Sym,
    extent: Dim,
    /// Rows of a tile.
    pub count: i64,
    /// The number of the loop down the image among those of the sum, from the outermost on, and its length.
    depth: usize,
    taps: i64,
    /// Rows of the image from one row of the result to the next.
    step: i64,
    /// True if run time knows the distance of rows of the image.
    distant: bool,
    /// True inside a larger kernel, where the loop over tiles is no loop of tasks.
    nested: bool,
}

/// Maximum rows of a tile.
const MOST: i64 = 8;
/// Minimum taps down the image: fewer share too little.
const LEAST: i64 = 3;
/// Maximum operations on vectors in the body of a tile's loop.
const BODY: i64 = 160;
/// Maximum distance of windows, in rows of the image.
const STEP: i64 = 3;
/// Registers for a loaded vector and for constants of the epilogue.
const SPARE: i64 = 3;
/// Maximum loads relative to rows one by one, in percent.
const GAIN: i64 = 80;
/// The same for rows of unknown number, whose remainder has branches.
const GAIN_UNKNOWN: i64 = 35;

/// Chooses rows for a body that is a single sum over short loops, with `vectors` adjacent vectors along
/// `var`.
pub(super) fn choose(
    m: &Module,
    nest: &ParNest,
    var: Sym,
    vectors: i64,
    registers: i64,
) -> Option<WindowRows> {
    // The order of the additions changes.
    if m.math == Math::Strict {
        return None;
    }
    let (row, extent) = nest.loops.iter().rev().find(|l| l.0 != var)?;
    let assumed = extent.as_const().unwrap_or(UNKNOWN_ROW);
    let loads = operands::of_only_sum(&nest.body)?;
    let mut sums = operands::loops(&nest.body);
    let (Some(sum), None) = (sums.next(), sums.next()) else { return None };
    let taps = taps_of(sum)?;
    // Distances of rows may be run-time values.
    let moves = |(buf, at): &Load, s: Sym| Some(m.linear(*buf, at).linear_in(s)?.0);
    let still = |l: &Load, s: Sym| moves(l, s).is_some_and(|d| d.as_const() == Some(0));
    let (factors, image): (Vec<_>, Vec<_>) = loads.iter().partition(|l| still(l, *row));
    let step_of = |tap: Sym| {
        let mut steps = image.iter().map(|l| {
            let (row, tap) = (moves(l, *row)?, moves(l, tap)?);
            (1..=STEP).find(|s| tap.as_const() != Some(0) && m.syms.eq(row, tap * *s) == Answer::Yes)
        });
        let first = steps.next()??;
        steps.all(|s| s == Some(first)).then_some(first)
    };
    let step = taps.iter().enumerate().find_map(|(i, (s, n))| Some((i, *s, *n, step_of(*s)?)));
    let (depth, tap, length, step) = step?;
    if length < LEAST || step >= length || image.iter().any(|l| moves(l, var).is_none()) {
        return None;
    }
    let distant = image.iter().any(|l| moves(l, tap).is_none_or(|d| d.as_const().is_none()));
    let images = image.len() as i64;
    let factors = factors.iter().filter(|l| !still(l, tap)).count() as i64;
    let loads = |rows: i64| ((step * (rows - 1) + length) * vectors * images) + length * factors;
    let fits = |count: &i64| {
        count * vectors + length * factors + SPARE <= registers && count * length * vectors <= BODY
    };
    // All loads, with tiles of `count` rows.
    let all = |count: i64| {
        let rest = assumed % count;
        assumed / count * loads(count) + if rest > 0 { loads(rest) } else { 0 }
    };
    let count = (2..=MOST.min(assumed)).filter(fits).min_by_key(|count| all(*count))?;
    let most = if extent.as_const().is_some() { GAIN } else { GAIN_UNKNOWN };
    let gains = all(count) * 100 <= all(1) * most;
    gains.then_some(WindowRows {
        row: *row,
        extent: *extent,
        count,
        depth,
        taps: length,
        step,
        distant,
        nested: false,
    })
}

/// The perfectly nested loops of a sum, of known lengths, whose steps may be taken in any order.
fn taps_of(sum: &Stmt) -> Option<Vec<(Sym, i64)>> {
    let (mut taps, mut at) = (vec![], sum);
    loop {
        match at {
            Stmt::For { kind: LoopKind::Seq, var, lo, hi, body } => {
                let ([inner], Some(0)) = (&body[..], lo.as_const()) else { return None };
                taps.push((*var, hi.as_const()?));
                at = inner;
            }
            Stmt::Set { .. } => return combines(at).then_some(taps),
            _ => return None,
        }
    }
}

/// True for a step that combines the accumulator with what does not depend on it, in any order of the steps.
fn combines(step: &Stmt) -> bool {
    let Stmt::Set { reg, value, .. } = step else { return false };
    let own = |e: &Expr| matches!(e, Expr::Acc { reg: r, .. } if r == reg);
    let free = |e: &Expr| !e.any(&mut |e| own(e));
    match value {
        Expr::Fma(a, b, sum) => own(sum) && free(a) && free(b),
        Expr::Bin(BinOp::Add | BinOp::Mul | BinOp::Min | BinOp::Max, a, b) => {
            own(a) && free(b) || own(b) && free(a)
        }
        _ => false,
    }
}

impl WindowRows {
    /// The same rows, of a part of a larger kernel if `nested`.
    pub fn inside(self, nested: bool) -> WindowRows {
        WindowRows { nested, ..self }
    }
    /// The rows in tiles, and the loops around them: `one` makes vectors of the body of a tile.
    pub fn apply(
        self,
        m: &mut Module,
        body: &[Stmt],
        others: &mut Vec<(Sym, Dim)>,
        mut one: impl FnMut(&mut Module, Vec<Stmt>) -> Vec<Stmt>,
    ) -> Vec<Stmt> {
        let count = self.count;
        let whole = self.extent.floor_div(count);
        let left = (whole * count, m.syms.simplify(self.extent.modulo(count)));
        // Inside a larger kernel, whole tiles have a loop of their own: a condition in it would divide what
        // the backend makes one function of.
        let apart = self.nested && left.1.as_const().is_none();
        let blocks = if apart { whole } else { self.extent.ceil_div(count) };
        let block = m.syms.loop_var("b", Dim::constant(0), blocks);
        let mut rows = |m: &mut Module, first: Dim, count: i64| {
            let rows = self.rows(m, body, first, count);
            one(m, rows)
        };
        let then = rows(m, Dim::sym(block) * count, count);
        let els = match left.1.as_const() {
            Some(0) => vec![],
            Some(n) => rows(m, left.0, n),
            None => tiles::in_parts(m, tiles::rests(count, 1), left, rows),
        };
        if apart {
            others.retain(|l| l.0 != self.row);
            return [Stmt::par(block, blocks, then)].into_iter().chain(els).collect();
        }
        for l in others.iter_mut().filter(|l| l.0 == self.row) {
            *l = (block, blocks);
        }
        if els.is_empty() {
            return then;
        }
        vec![Stmt::If { cond: Expr::cmp_index(BinOp::Lt, block, whole), then, els }]
    }
    /// The body of `count` rows from `first` on. The loop down the image becomes the innermost one of the
    /// sum, and is unrolled in the order of the rows of the image.
    fn rows(self, m: &mut Module, body: &[Stmt], first: Dim, count: i64) -> Vec<Stmt> {
        let end = body.iter().position(|s| matches!(s, Stmt::For { .. })).map_or(body.len(), |i| i + 1);
        let (mut rows, mut after) = (vec![], vec![]);
        for r in 0..count {
            let mut row = fresh_regs(m, body);
            let put = |row: Dim| move |s: Sym| (s == self.row).then_some(row);
            let stores = row.split_off(end).into_iter();
            rows.push(row.into_iter().map(|s| s.subst(&put(first + r))).collect());
            let number = self.number(m, r);
            let stores = stores.map(|s| s.subst(&put(first + number.map_or(r.into(), Dim::sym))));
            after.push(numbered(number, r, stores.collect()));
        }
        let mut out = vec![];
        for s in merged(rows) {
            match s {
                Stmt::For { .. } => out.extend(self.by_image_row(m, s, 0, (None, count))),
                s => out.push(s),
            }
        }
        if self.distant {
            out.extend(after.into_iter().flatten());
        } else {
            out.extend(merged(after));
        }
        out
    }
    /// A variable for the number of a row if rows are at a distance that run time knows: the backend computes
    /// addresses of numbered rows from one pointer.
    fn number(&self, m: &mut Module, n: i64) -> Option<Sym> {
        self.distant.then(|| m.syms.loop_var("d", n.into(), Dim::constant(n + 1)))
    }
    /// Loop `depth` of a sum, and those inside; `tap` is the variable of the loop down the image outside.
    fn by_image_row(
        self,
        m: &mut Module,
        s: Stmt,
        depth: usize,
        (tap, count): (Option<Sym>, i64),
    ) -> Vec<Stmt> {
        let Stmt::For { kind, var, lo, hi, body } = s else { return vec![s] };
        let tap = if depth == self.depth { Some(var) } else { tap };
        let body = match (&body[..], tap) {
            ([Stmt::For { .. }], _) => {
                body.into_iter().flat_map(|s| self.by_image_row(m, s, depth + 1, (tap, count))).collect()
            }
            (_, Some(tap)) => self.unrolled(m, &body, tap, count),
            _ => body,
        };
        if depth == self.depth { body } else { vec![Stmt::For { kind, var, lo, hi, body }] }
    }
    /// The steps of all rows for all taps down the image.
    fn unrolled(self, m: &mut Module, steps: &[Stmt], var: Sym, count: i64) -> Vec<Stmt> {
        let mut out = vec![];
        for d in 0..self.step * (count - 1) + self.taps {
            let (number, mut here) = (self.number(m, d), vec![]);
            for (r, step) in (0..count).zip(steps) {
                let before = self.step * r;
                if (before..before + self.taps).contains(&d) {
                    let tap = number.map_or(d.into(), Dim::sym) - before;
                    let step = fresh_regs(m, std::slice::from_ref(step)).into_iter();
                    here.extend(step.map(|s| s.subst(&|s| (s == var).then_some(tap))));
                }
            }
            out.extend(numbered(number, d, here));
        }
        out
    }
}

/// Statements of row `n`, in a loop over its number if that is a variable.
fn numbered(number: Option<Sym>, n: i64, body: Vec<Stmt>) -> Vec<Stmt> {
    match number {
        Some(var) => {
            vec![Stmt::For { kind: LoopKind::Unroll, var, lo: n.into(), hi: Dim::constant(n + 1), body }]
        }
        None => body,
    }
}
