//! Maps whose lanes read elements that are no neighbours but lie at known distances: every second element,
//! each of them twice, a row from its end, two rows in turns. A few vectors hold what the lanes of one vector
//! read, and shuffles put it in place. Which do is told vector by vector; in long rows for all vectors but
//! those at the edges at once, or for every so many.

use super::body::renamed;
use super::vector;
use crate::nest::form::{Stored, stored};
use crate::nest::{Buf, Expr, LoopKind, Module, Stmt, visit};
use crate::passes::nest::analysis::shape::{ParNest, in_one};
use crate::passes::nest::analysis::strides::stride;
use crate::sym::{Dim, Sym, SymTable};

/// Vectors that the lanes of one may need.
const VECTORS: i64 = 4;
/// Whole vectors of a row that are all told apart, and of a piece of a longer one.
const UNROLLED: i64 = 8;

/// True for steps from lane to lane that shuffles bridge.
pub(super) fn is_near(step: i64) -> bool {
    (-VECTORS..=VECTORS).contains(&step)
}

/// Pieces of so many vectors, from the second vector of a row on, and vectors behind them.
pub(super) struct Pieces {
    vectors: i64,
    count: i64,
    rest: i64,
}

impl Pieces {
    /// In a row of so many whole vectors; all of a short row is rest.
    fn new(whole: i64, vectors: i64) -> Pieces {
        // The last vectors may be those where an edge matters.
        let count = if whole > UNROLLED { (whole - 3).max(0) / vectors } else { 0 };
        let before = i64::from(count > 0);
        Pieces { vectors, count, rest: whole - before - count * vectors }
    }
}

/// True if lanes from `first` on read at distances known now, within a few vectors.
pub(crate) fn is_near_from(
    syms: &SymTable,
    linear: Dim,
    (var, first): (Sym, Dim),
    used: i64,
    lanes: i64,
) -> bool {
    let place = |i: i64| linear.subst(&mut |s| (s == var).then(|| first + i));
    let start = place(0);
    let distance = |d: Dim| d.as_const().or_else(|| syms.simplify(d).as_const());
    let Some(mut all) = (0..used).map(|i| distance(place(i) - start)).collect::<Option<Vec<i64>>>() else {
        return false;
    };
    all.sort_unstable();
    let mut parts: Vec<i64> = vec![];
    for p in all {
        if parts.last().is_none_or(|first| p - first >= lanes) {
            parts.push(p);
        }
    }
    parts.len() as i64 <= VECTORS
}

/// Vectors of a piece for which all `linear` positions are known along a row; `None` if there is no such
/// piece.
fn pieces(m: &Module, linear: &[Dim], (var, extent): (Sym, Dim), lanes: i64) -> Option<Pieces> {
    let extent = extent.as_const()?;
    let whole = extent / lanes;
    let fits = |syms: &SymTable, first: Dim, used: i64| {
        linear.iter().all(|l| is_near_from(syms, *l, (var, first), used, lanes))
    };
    (1..=UNROLLED).map(|n| Pieces::new(whole, n)).find(|p| {
        let edges =
            (0..whole - p.count * p.vectors).map(|c| if c == 0 { 0 } else { c + p.count * p.vectors });
        let tail = extent % lanes;
        let mut inside = true;
        if p.count > 0 {
            let mut syms = m.syms.clone();
            let c = syms.loop_var("c", Dim::constant(0), Dim::constant(p.count));
            inside = (0..p.vectors).all(|v| fits(&syms, (Dim::sym(c) * p.vectors + 1 + v) * lanes, lanes));
        }
        inside
            && edges.into_iter().all(|c| fits(&m.syms, Dim::constant(c * lanes), lanes))
            && (tail == 0 || fits(&m.syms, Dim::constant(whole * lanes), tail))
    })
}

/// True if the lanes of vectors along `var` read at distances known now, and what each vector reads lies in
/// few others.
pub(super) fn is_known(m: &Module, buf: Buf, at: &[Dim], along: (Sym, Dim), lanes: i64) -> bool {
    pieces(m, &[m.linear(buf, at)], along, lanes).is_some()
}

/// The positions of a map's loads that are not linear in a variable.
fn positions(m: &Module, body: &[Stmt], var: Sym) -> Vec<Dim> {
    let mut found = vec![];
    visit::walk_exprs(body, &mut |e| {
        if let Expr::Load { buf, at } = e
            && stride(m, *buf, at, var).is_none()
            && m.linear(*buf, at).contains(var)
        {
            found.push(m.linear(*buf, at));
        }
    });
    found
}

/// The vectors of a map over a row, if some of its accesses are not linear and all are known; each vector is
/// by itself then.
pub(super) fn along(m: &Module, body: &[Stmt], (var, extent): (Sym, Dim), lanes: i64) -> Option<Pieces> {
    let found = positions(m, body, var);
    if found.is_empty() { None } else { pieces(m, &found, (var, extent), lanes) }
}

impl Pieces {
    /// The map over the row.
    pub fn apply(&self, m: &mut Module, body: &[Stmt], (var, extent): (Sym, Dim), lanes: i64) -> Vec<Stmt> {
        let zero = Dim::constant(0);
        let one = |m: &mut Module, first: Dim, n: i64| {
            let (body, l) = renamed(m, body, var, zero, Dim::constant(n));
            let put = |m: &Module, d: Dim| m.syms.simplify(d.subst(&mut |s| (s == l).then(|| first + l)));
            let body = body.into_iter().map(|s| s.map_dims(&mut |d| put(m, d))).collect();
            Stmt::For { kind: vector(lanes), var: l, lo: zero, hi: Dim::constant(n), body }
        };
        // Pieces are of rows whose length is known.
        let extent = extent.as_const().unwrap_or_default();
        let (whole, mut out) = (extent / lanes, vec![]);
        if self.count > 0 {
            out.push(one(m, zero, lanes));
            let c = m.syms.loop_var("c", zero, Dim::constant(self.count));
            let body = (0..self.vectors)
                .map(|v| one(m, (Dim::sym(c) * self.vectors + 1 + v) * lanes, lanes))
                .collect();
            out.push(Stmt::For {
                kind: LoopKind::Seq,
                var: c,
                lo: zero,
                hi: Dim::constant(self.count),
                body,
            });
        }
        out.extend(
            (whole - self.rest..whole).map(|c| one(m, Dim::constant(c * lanes), lanes)).collect::<Vec<_>>(),
        );
        if extent % lanes != 0 {
            out.push(one(m, Dim::constant(whole * lanes), extent % lanes));
        }
        out
    }
}

/// Joins a short innermost loop with the one outside it where the result runs on through memory and lanes
/// still find what they read.
pub(super) fn interleave(m: &mut Module, nest: &mut ParNest, var: Sym, lanes: i64) -> Option<Sym> {
    let Stored { before: [], buf, at, value } = stored(&nest.body)? else { return None };
    let inner = nest.loops.iter().find(|l| l.0 == var)?.1.as_const().filter(|e| *e < lanes)?;
    let step = |s: Sym| stride(m, buf, at, s);
    let (outer, extent) = nest.loops.iter().copied().find(|l| step(l.0) == Some(inner))?;
    let all = extent * inner;
    let v = m.syms.loop_var("i", Dim::constant(0), all);
    let put = |d: Dim| in_one(d, (outer, var), inner.into(), v);
    let moved = |at: &[Dim]| -> Vec<Dim> { at.iter().map(|d| put(*d)).collect() };
    let mut fits = stride(m, buf, &moved(at), v) == Some(1);
    let mut linear = vec![];
    value.walk(&mut |e| match e {
        Expr::Load { buf, at } if at.iter().any(|d| d.contains(outer) || d.contains(var)) => {
            linear.push(m.linear(*buf, &moved(at)))
        }
        Expr::Index(d) | Expr::With { extent: d, .. } => fits &= !d.contains(outer) && !d.contains(var),
        _ => {}
    });
    if !fits || pieces(m, &linear, (v, all), lanes).is_none() {
        return None;
    }
    nest.body = std::mem::take(&mut nest.body).into_iter().map(|s| s.map_dims(&mut |d| put(d))).collect();
    nest.loops.retain(|l| l.0 != outer && l.0 != var);
    nest.loops.push((v, all));
    Some(v)
}
