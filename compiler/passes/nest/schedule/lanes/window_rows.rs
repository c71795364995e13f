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
use super::unroll_and_jam::interleave;
use crate::nest::{BinOp, Expr, LoopKind, Math, Module, Stmt};
use crate::passes::nest::analysis::shape::{ParNest, fresh_regs};
use crate::sym::{Answer, Dim, Sym};

/// The rows of a tile.
#[derive(Clone, Copy, Debug)]
pub(super) struct WindowRows {
    /// The loop over rows, the innermost one around the vectors.
    row: Sym,
    extent: i64,
    /// Rows of a tile.
    pub count: i64,
    /// The number of the loop down the image among those of the sum, from the outermost on, and its length.
    depth: usize,
    taps: i64,
    /// Rows of the image from one row of the result to the next.
    step: i64,
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

/// Chooses rows for a body that is a single sum over short loops, with `vectors` adjacent vectors along `var`.
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
    let extent = extent.as_const()?;
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
    let images = image.len() as i64;
    let factors = factors.iter().filter(|l| !still(l, tap)).count() as i64;
    let loads = |rows: i64| ((step * (rows - 1) + length) * vectors * images) + length * factors;
    let fits = |count: &i64| {
        count * vectors + length * factors + SPARE <= registers && count * length * vectors <= BODY
    };
    // All loads, with tiles of `count` rows.
    let all = |count: i64| {
        let rest = extent % count;
        extent / count * loads(count) + if rest > 0 { loads(rest) } else { 0 }
    };
    let count = (2..=MOST.min(extent)).filter(fits).min_by_key(|count| all(*count))?;
    let gains = all(count) * 100 <= all(1) * GAIN;
    gains.then_some(WindowRows { row: *row, extent, count, depth, taps: length, step })
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
    /// The rows in tiles, and the loops around them: `one` makes vectors of the body of a tile.
    pub fn apply(
        self,
        m: &mut Module,
        body: &[Stmt],
        others: &mut [(Sym, Dim)],
        mut one: impl FnMut(&mut Module, Vec<Stmt>) -> Vec<Stmt>,
    ) -> Vec<Stmt> {
        let (count, whole, rest) = (self.count, self.extent / self.count, self.extent % self.count);
        let blocks = Dim::constant(whole + i64::from(rest > 0));
        let block = m.syms.loop_var("b", Dim::constant(0), blocks);
        for l in others.iter_mut().filter(|l| l.0 == self.row) {
            *l = (block, blocks);
        }
        let rows = self.rows(m, body, Dim::sym(block) * count, count);
        let then = one(m, rows);
        if rest == 0 {
            return then;
        }
        let rows = self.rows(m, body, Dim::constant(whole * count), rest);
        let els = one(m, rows);
        vec![Stmt::If { cond: Expr::cmp_index(BinOp::Lt, block, whole), then, els }]
    }
    /// The body of `count` rows from `first` on. The loop down the image becomes the innermost one of the sum,
    /// and is unrolled in the order of the rows of the image.
    fn rows(self, m: &mut Module, body: &[Stmt], first: Dim, count: i64) -> Vec<Stmt> {
        let rows = interleave(m, body, self.row, first, count);
        let mut out = vec![];
        for s in rows {
            match s {
                Stmt::For { .. } => out.extend(self.by_image_row(m, s, 0, (None, count))),
                s => out.push(s),
            }
        }
        out
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
            for (r, step) in (0..count).zip(steps) {
                let tap = d - self.step * r;
                if (0..self.taps).contains(&tap) {
                    let step = fresh_regs(m, std::slice::from_ref(step)).into_iter();
                    out.extend(step.map(|s| s.subst(&|s| (s == var).then(|| Dim::constant(tap)))));
                }
            }
        }
        out
    }
}
