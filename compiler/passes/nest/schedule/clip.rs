//! Omits reduction steps that only read the border of zeros around an image: the loop over rows or columns of
//! a convolution's window is restricted to the iterations in which a tile overlaps the image. Far dilations
//! and windows larger than the image read mostly border.

use crate::nest::Module;
use crate::nest::key::Writer;
use crate::passes::nest::analysis::borders::Borders;
use crate::passes::nest::analysis::form::{Contraction, ProductKind};
use crate::sym::{Dim, Sym};

/// Minimum share of the steps that is omitted, as 1/n: variable trip counts are harder to predict.
const WORTH: i64 = 32;
/// The same for tiles of a single row of an image, in place of tiles of several short rows.
const WORTH_A_ROW: i64 = 8;

/// A reduction loop whose outer iterations read zeros.
#[derive(Clone)]
pub(super) struct Clip {
    /// Its variable and extent.
    pub var: Sym,
    extent: Dim,
    /// Strides of the loop and of the tile's rows in the image, and the constant offset.
    step: i64,
    row_step: i64,
    from: Dim,
    /// Range of positions that are not border.
    inside: (Dim, Dim),
    /// The steps that are left in tiles of the rows for which it was made, and all of them, if both are
    /// known.
    steps: Option<(i64, i64)>,
}

impl Clip {
    /// Writes everything that determines the loop into a key.
    pub fn key(&self, w: &mut Writer) {
        w.loops(&[(self.var, self.extent)]);
        w.put([self.step as u64, self.row_step as u64]);
        w.dims(&[self.from, self.inside.0, self.inside.1]);
    }
    /// The iterations in which at least one of the rows `row .. row + mr` reads inside the image.
    pub fn range(&self, row: Dim, mr: i64) -> (Dim, Dim) {
        let first = self.from + row * self.row_step;
        let last = first + self.row_step * (mr - 1);
        let lo = (self.inside.0 - last).ceil_div(self.step).max(0);
        let hi = (self.inside.1 - first).ceil_div(self.step).min(self.extent);
        (lo, hi)
    }

    /// True if an image of run-time size has a border: the steps omitted in small images are a large share.
    fn has_border(&self) -> bool {
        self.inside.0.as_const().is_some_and(|b| b > 0)
    }
    /// True if at least one of `worth` steps is omitted.
    fn is_worth(&self, worth: i64) -> bool {
        self.steps.map_or(self.has_border(), |(left, all)| (all - left) * worth >= all)
    }
    /// The steps that are left in tiles of `mr` rows, and all of them, if both are known.
    fn count(&self, m: &Module, (row, mr): (Option<(Sym, Dim)>, i64)) -> Option<(i64, i64)> {
        let (from, extent) = (m.syms.simplify(self.from), self.extent.as_const()?);
        let rows = row.filter(|_| self.row_step > 0).map_or(Some(1), |r| r.1.as_const())?;
        let outer: Vec<Sym> = from.syms().into_iter().collect();
        let (var, count) = match outer.as_slice() {
            [] => (None, 1),
            [s] => (Some(*s), m.syms.loop_range(*s).and_then(|r| (r.1 - r.0).as_const())?),
            _ => return None,
        };
        let (mut left, mut all) = (0, 0);
        for i in 0..count.min(1 << 10) {
            for r in (0..rows.min(1 << 10)).step_by(mr.max(1) as usize) {
                let (lo, hi) = self.range(Dim::constant(r), mr.min(rows - r));
                let at =
                    |d: Dim| m.syms.simplify(d.subst(&mut |s| (Some(s) == var).then(|| i.into()))).as_const();
                left += (at(hi)? - at(lo)?).max(0);
                all += extent;
            }
        }
        Some((left, all))
    }
}

/// A reduction loop of a contraction, if clipping it is profitable for tiles of `mr` rows.
pub(super) fn clip(
    m: &Module,
    p: &Contraction,
    borders: &Borders,
    (row, mr): (Option<(Sym, Dim)>, i64),
    (var, extent): (Sym, Dim),
) -> Option<Clip> {
    if p.product != ProductKind::Fma {
        return None;
    }
    let alone = |d: &Dim| p.reduction.iter().filter(|r| d.contains(r.0)).count() == 1;
    p.a.1.iter().enumerate().find_map(|(j, d)| {
        let (inside, (step, rest)) = (borders.inside(p.a.0, j)?, d.linear_in(var)?);
        let (row_step, from) = match row {
            Some(r) => rest.linear_in(r.0)?,
            None => (Dim::constant(0), rest),
        };
        let (step, row_step) = (step.as_const()?, row_step.as_const()?);
        if step <= 0 || row_step < 0 || !alone(d) {
            return None;
        }
        let mut c = Clip { var, extent, step, row_step, from, inside, steps: None };
        c.steps = c.count(m, (row, mr));
        c.is_worth(WORTH).then_some(c)
    })
}

/// The profitable reduction loops of a contraction, except for the innermost.
pub(super) fn clips(
    m: &Module,
    p: &Contraction,
    borders: &Borders,
    rows: (Option<(Sym, Dim)>, i64),
) -> Vec<Clip> {
    let outer = p.reduction.split_last().map_or(&[] as &[_], |x| x.1);
    outer.iter().filter_map(|d| clip(m, p, borders, rows, *d)).collect()
}

/// The share of the steps that clips leave, if it is known.
pub(super) fn left(clips: &[Clip]) -> Option<f64> {
    clips.iter().try_fold(1.0, |share, c| {
        let (left, all) = c.steps?;
        Some(share * left as f64 / all.max(1) as f64)
    })
}

/// True if tiles within the rows of an image omit so many steps that short rows are no reason to join them.
pub(super) fn omits_many(
    m: &Module,
    p: &Contraction,
    borders: &Borders,
    rows: (Option<(Sym, Dim)>, i64),
) -> bool {
    clips(m, p, borders, rows).iter().any(|c| c.is_worth(WORTH_A_ROW))
}

/// The same if the omitted steps are known: an image of run-time size may have none.
pub(super) fn surely_omits_many(
    m: &Module,
    p: &Contraction,
    borders: &Borders,
    rows: (Option<(Sym, Dim)>, i64),
) -> bool {
    left(&clips(m, p, borders, rows)).is_some_and(|share| share <= 1.0 - 1.0 / WORTH_A_ROW as f64)
}

/// The reduction loops with fresh variables: each variable, and the iterations of tiles with rows `row .. row
/// + mr`.
pub(super) fn loops(
    m: &mut Module,
    reduction: &[(Sym, Dim)],
    clips: &[Clip],
    (row, mr): (Dim, i64),
) -> Vec<(Sym, (Dim, Dim))> {
    let whole = |hi: Dim| (Dim::constant(0), hi);
    reduction
        .iter()
        .map(|(s, hi)| {
            let (lo, hi) = clips.iter().find(|c| c.var == *s).map_or(whole(*hi), |c| c.range(row, mr));
            (m.syms.loop_var("k", lo, hi), (lo, hi))
        })
        .collect()
}

/// Their description in the schedule.
pub(super) fn describe(clips: &[Clip]) -> Vec<&'static str> {
    if clips.is_empty() { vec![] } else { vec!["border of zeros"] }
}
