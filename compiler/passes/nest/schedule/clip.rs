//! Steps of a sum that only read the border of zeros around an image are left out: a loop over the rows or
//! the columns of a convolution's window runs over those that a tile meets the image with. Far dilations and
//! windows larger than the image are mostly border.

use crate::nest::Module;
use crate::passes::nest::analysis::borders::Borders;
use crate::passes::nest::analysis::form::{Contraction, ProductKind};
use crate::sym::{Dim, Sym};

/// Parts of all steps, at least, that are left out: loops whose ends change are foreseen less well.
const WORTH: i64 = 8;
/// Width of a border from which on it is worth it where the size of the image is not known.
const WIDE: i64 = 4;

/// A loop of the sum whose outer iterations read zeros.
#[derive(Clone)]
pub(super) struct Clip {
    /// Its variable, and iterations.
    pub var: Sym,
    extent: Dim,
    /// It steps through the image by this much, the tile's rows by that much, and the rest is `from`.
    step: i64,
    row_step: i64,
    from: Dim,
    /// Positions that are no border.
    inside: (Dim, Dim),
}

impl Clip {
    /// The iterations in which one of the rows `row .. row + mr` reads what is no border.
    pub fn range(&self, row: Dim, mr: i64) -> (Dim, Dim) {
        let first = self.from + row * self.row_step;
        let last = first + self.row_step * (mr - 1);
        let lo = (self.inside.0 - last).ceil_div(self.step).max(0);
        let hi = (self.inside.1 - first).ceil_div(self.step).min(self.extent);
        (lo, hi)
    }

    /// True if it leaves out enough of the steps of tiles of `mr` rows.
    fn is_worth(&self, m: &Module, row: Option<(Sym, Dim)>, mr: i64) -> bool {
        let (from, extent) = (m.syms.simplify(self.from), self.extent.as_const());
        let rows = row.filter(|_| self.row_step > 0).map_or(Some(1), |r| r.1.as_const());
        let outer: Vec<Sym> = from.syms().into_iter().collect();
        let known = match outer.as_slice() {
            [] => Some((None, 1)),
            [s] => m.syms.loop_range(*s).and_then(|r| Some((Some(*s), (r.1 - r.0).as_const()?))),
            _ => None,
        };
        let (Some(extent), Some(rows), Some((var, count))) = (extent, rows, known) else {
            return self.inside.0.as_const().is_some_and(|b| b >= WIDE);
        };
        let (mut all, mut met) = (0, 0);
        for i in 0..count.min(1 << 10) {
            for r in (0..rows.min(1 << 10)).step_by(mr.max(1) as usize) {
                let (lo, hi) = self.range(Dim::constant(r), mr.min(rows - r));
                let at =
                    |d: Dim| m.syms.simplify(d.subst(&mut |s| (Some(s) == var).then(|| i.into()))).as_const();
                let (Some(lo), Some(hi)) = (at(lo), at(hi)) else {
                    return self.inside.0.as_const().is_some_and(|b| b >= WIDE);
                };
                all += extent;
                met += (hi - lo).max(0);
            }
        }
        (all - met) * WORTH >= all
    }
}

/// A loop of a contraction's sum, if it is worth it for tiles of `mr` of such rows.
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
        let c = Clip { var, extent, step, row_step, from, inside };
        (step > 0 && row_step >= 0 && alone(d) && c.is_worth(m, row, mr)).then_some(c)
    })
}

/// The loops of a contraction's sum, but for the last one, that are worth it.
pub(super) fn clips(
    m: &Module,
    p: &Contraction,
    borders: &Borders,
    rows: (Option<(Sym, Dim)>, i64),
) -> Vec<Clip> {
    let outer = p.reduction.split_last().map_or(&[] as &[_], |x| x.1);
    outer.iter().filter_map(|d| clip(m, p, borders, rows, *d)).collect()
}

/// The loops of a sum over `reduction`, with variables of their own: the variable and the iterations that
/// tiles of rows `row .. row + mr` run over.
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

/// What a schedule says of them.
pub(super) fn describe(clips: &[Clip]) -> Vec<&'static str> {
    if clips.is_empty() { vec![] } else { vec!["border of zeros"] }
}
