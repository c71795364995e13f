//! Rows of a copy that read other rows at positions with a period: an image scaled by a fraction. The rows of
//! a period are written out inside each vector, so that rows which read the same elements share a load and a
//! shuffle, and all of them share positions, masks and the overhead of loops. Scaled by 3/2:
//!
//! ```text
//! par i in 0..n { vec l { y[i, l] = x[floordiv(2*i, 3), l] } }
//!
//! seq j in 0..floordiv(n, 3) { unroll k in 0..3 { vec l { y[3*j + k, l] = x[2*j + floordiv(2*k, 3), l] } } }
//! seq i in 0..mod(n, 3) { vec l { .. } }
//! ```

use super::permuted_loads::{Pieces, Row};
use super::rows_abreast::{Accesses, Indices, Rows};
use crate::nest::{LoopKind, Module, Stmt};
use crate::passes::nest::analysis::shape::loop_like;
use crate::sym::{Dim, Sym};

/// Maximum rows of a period.
const LONGEST: i64 = 4;
/// Maximum rows of a block.
const ROWS: i64 = 32;

/// The innermost loop around a row, and its period.
pub(super) struct Periodic {
    row: Sym,
    count: Dim,
    period: i64,
}

impl Periodic {
    /// The period of the rows of a copy, if rows of it read the same elements. `loops`: those around a row.
    pub fn of(
        m: &Module,
        row: &Row,
        extent: Dim,
        (loops, outside): (&[(Sym, Dim)], Indices),
    ) -> Option<Periodic> {
        let (r, count) = loops.last().copied()?;
        let all = Accesses::new(m, row.body, outside)?;
        // A single loop of few iterations is divided between threads.
        let tasks = loops.len() > 1 || count.as_const().is_none();
        let moves = !extent.contains(r) && all.addresses_only(r) && all.copies_at_known_distances(row.var);
        if !tasks || !moves || !m.optimize.may_grow() {
            return None;
        }
        let period = all.period(m, r).filter(|p| count.as_const().is_none_or(|n| n >= *p))?;
        Some(Periodic { row: r, count, period })
    }
    /// The vectors of a block of rows, the loop over which replaces the one over rows.
    pub fn apply(&self, m: &mut Module, pieces: &Pieces, row: Row, extent: Dim) -> ((Sym, Dim), Vec<Stmt>) {
        let (zero, p) = (Dim::constant(0), self.period);
        let most = ROWS / p * p;
        let blocks = self.count.ceil_div(most);
        let b = m.syms.loop_var("b", zero, blocks);
        let first = Dim::sym(b) * most;
        let rows = match self.count.as_const() {
            Some(n) if n <= most => self.count,
            _ if self.count.modulo(most).as_const() == Some(0) => most.into(),
            _ => (self.count - first).min(most),
        };
        let whole = rows.floor_div(p);
        let j = loop_like(m, self.row, zero, whole);
        let k = loop_like(m, self.row, zero, p.into());
        let together: Rows = vec![(k, p.into(), LoopKind::Unroll)];
        let body = self.at(m, row, first + Dim::sym(j) * p + k);
        let body = pieces.apply(m, &Row { body: &body, abreast: &together, ..row }, extent);
        let mut out = vec![Stmt::seq(j, whole, body)];
        let rest = m.syms.simplify(rows.modulo(p));
        if rest.as_const() != Some(0) {
            let i = loop_like(m, self.row, zero, rest);
            let body = self.at(m, row, first + whole * p + i);
            out.push(Stmt::seq(i, rest, pieces.apply(m, &Row { body: &body, ..row }, extent)));
        }
        ((b, blocks), out)
    }
    /// The body at a row.
    fn at(&self, m: &Module, row: Row, place: Dim) -> Vec<Stmt> {
        let put = |d: Dim| m.syms.simplify(d.subst(&mut |s| (s == self.row).then_some(place)));
        row.body.iter().cloned().map(|s| s.map_dims(&mut |d| put(d))).collect()
    }
}

impl Accesses<'_> {
    /// The number of rows after which the positions of loads repeat, if it is short, and fewer rows are read.
    fn period(&self, m: &Module, row: Sym) -> Option<i64> {
        if !self.fixed.iter().all(|d| d.linear_in(row).is_some()) {
            return None;
        }
        let mut syms = m.syms.clone();
        let j = syms.loop_var("j", Dim::constant(0), Dim::constant(1 << 24));
        let at =
            |d: Dim, p: i64, k: i64| syms.simplify(d.subst(&mut |s| (s == row).then(|| Dim::sym(j) * p + k)));
        let repeats = |d: Dim, p: i64| {
            let rows: Vec<Dim> = (0..p).map(|k| at(d, p, k)).collect();
            let again = rows.windows(2).any(|r| r[0] == r[1]);
            again && rows.iter().all(|d| d.linear_in(j).is_some())
        };
        let mut scaled = self.loads.iter().filter(|d| d.linear_in(row).is_none()).peekable();
        scaled.peek()?;
        let scaled: Vec<Dim> = scaled.copied().collect();
        (2..=LONGEST).find(|p| scaled.iter().all(|d| repeats(*d, *p)))
    }
}
