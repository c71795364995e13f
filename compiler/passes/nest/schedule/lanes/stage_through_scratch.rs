//! Rows across planes at a distance of a multiple of 4 KiB: softmax along the channels of an image.
//!
//! The cache lines of one position in all channels share a set of each cache, and are evicted before the next
//! loop over the row. Elements that several loops read, or that one loop stores for another, are therefore
//! staged in scratch: each is loaded once and stored once, several lines of a channel at a time.

use crate::nest::form::{self, Part};
use crate::nest::{Buf, Expr, Module, Stmt};
use crate::passes::nest::analysis::machine::{PAGE, WAYS};
use crate::passes::nest::analysis::shape::ParNest;
use crate::passes::nest::analysis::strides::stride;
use crate::passes::nest::schedule::transpose;
use crate::sym::{Dim, Sym};
use crate::tensor::ElemType;
use std::collections::{HashMap, HashSet};

/// Adjacent vectors per row, so that lines are accessed in runs, and blocks of a task with its scratch.
pub(super) const SIDE: i64 = 4;
pub(super) const TURNS: i64 = 4;

/// An access of a row: the buffer, and the subscripts with the variable of the first loop.
type Place = (Buf, Vec<Dim>);

/// The accesses that are staged.
pub(super) struct Staging {
    /// The variable of the first loop over the row, and its trips.
    first: (Sym, Dim),
    /// The loop that vectors run along, and how far it goes.
    extent: Dim,
    /// Staged accesses.
    places: Vec<Place>,
    /// The last loop that stores to each access, if any.
    stored: HashMap<Place, usize>,
}

/// A subscript with the loop's variable replaced by that of the first loop.
fn in_first(first: Sym, s: &Stmt, at: &[Dim]) -> Vec<Dim> {
    let own = if let Stmt::For { var, .. } = s { *var } else { first };
    at.iter().map(|d| d.subst(&mut |s| (s == own).then(|| Dim::sym(first)))).collect()
}

/// The accesses that loops over a row share and that should be loaded once; `None` if staging is unnecessary.
pub(super) fn choose(m: &Module, nest: &ParNest, var: Sym, lanes: i64) -> Option<Staging> {
    let extent = nest.loops.iter().find(|l| l.0 == var)?.1;
    let step = TURNS * SIDE * lanes;
    if extent.as_const().is_none_or(|e| e % step != 0 || e < 2 * step) {
        return None;
    }
    let (first, count) = row(&nest.body)?;
    let here = |s: &Stmt, at: &[Dim]| in_first(first, s, at);
    // The loops in which each element of the row is loaded and stored.
    let (mut read, mut stored): (HashMap<Place, Vec<usize>>, HashMap<Place, usize>) = Default::default();
    let (mut order, mut conditional): (Vec<Place>, HashSet<Place>) = Default::default();
    for (i, s) in nest.body.iter().enumerate() {
        for inner in s.bodies().flatten() {
            if let Stmt::Store { buf, at, .. } = inner {
                stored.insert((*buf, here(s, at)), i);
            }
            if let Some(e) = inner.expr() {
                transpose::reads(e, false, &mut |buf, at, condition| {
                    let place = (buf, here(s, at));
                    if !read.contains_key(&place) {
                        order.push(place.clone());
                    }
                    if condition {
                        conditional.insert(place.clone());
                    }
                    read.entry(place).or_default().push(i);
                });
            }
        }
    }
    let far = |(buf, at): &Place| {
        let apart = stride(m, *buf, at, first).is_some_and(|s| s != 0 && s * 4 % PAGE == 0);
        m.bufs[*buf].ty == ElemType::F32 && apart && stride(m, *buf, at, var) == Some(1)
    };
    let again = |p: &Place, reads: &[usize]| reads.first() != reads.last() || stored.contains_key(p);
    let needs =
        |p: &Place| far(p) && !conditional.contains(p) && read.get(p).is_some_and(|reads| again(p, reads));
    let places: Vec<Place> = order.into_iter().filter(needs).collect();
    // A stored buffer must be accessed at the same elements as it is read, or be distinct.
    let same = |p: &Place, q: &Place| m.storage(p.0) == m.storage(q.0) && p != q;
    let clear = !read.keys().any(|p| stored.keys().any(|q| same(p, q)));
    (!places.is_empty() && clear).then_some(Staging { first: (first, count), extent, places, stored })
}

impl Staging {
    /// Redirects the accesses to scratch.
    pub fn apply(&self, m: &mut Module, nest: &mut ParNest, var: Sym, lanes: i64) {
        let Staging { first: (first, count), extent, places, stored } = self;
        let step = TURNS * SIDE * lanes;
        let others: Vec<(Sym, Dim)> = nest.loops.iter().copied().filter(|l| l.0 != var).collect();
        let sizes =
            [extent.floor_div(step), Dim::constant(places.len() as i64), *count, Dim::constant(SIDE * lanes)];
        let dims: Vec<Dim> = others.iter().map(|l| l.1).chain(sizes).collect();
        let scratch = m.temp("strip".to_owned(), ElemType::F32, dims);
        let slot = |n: usize, r: Sym| -> Vec<Dim> {
            let own = [
                Dim::sym(var).floor_div(step),
                Dim::constant(n as i64),
                Dim::sym(r),
                Dim::sym(var).modulo(SIDE * lanes),
            ];
            others.iter().map(|l| Dim::sym(l.0)).chain(own).collect()
        };
        let mut present = vec![false; places.len()];
        for (i, loop_) in nest.body.iter_mut().enumerate() {
            let whole = loop_.clone();
            let Stmt::For { var: r, body, .. } = loop_ else { continue };
            let r = *r;
            let find = |buf: Buf, at: &[Dim]| {
                places.iter().position(|p| p.0 == buf && p.1 == in_first(*first, &whole, at))
            };
            let mut out = vec![];
            for s in std::mem::take(body) {
                // The first loop that reads an element copies it to scratch.
                let mut fresh: Vec<(usize, Expr)> = vec![];
                if let Some(e) = s.expr() {
                    e.walk(&mut |e| {
                        if let Expr::Load { buf, at } = e
                            && let Some(n) = find(*buf, at)
                            && !present[n]
                        {
                            fresh.push((n, e.clone()));
                        }
                    });
                }
                for (n, e) in fresh {
                    if !present[n] {
                        out.push(Stmt::Store { buf: scratch, at: slot(n, r), value: e });
                        present[n] = true;
                    }
                }
                let s = s.rewrite_exprs(&mut |e| match &e {
                    Expr::Load { buf, at } => {
                        find(*buf, at).map_or(e.clone(), |n| Expr::Load { buf: scratch, at: slot(n, r) })
                    }
                    _ => e,
                });
                out.push(match s {
                    // Only the last store of an element goes to the buffer.
                    Stmt::Store { buf, at, value } => match find(buf, &at)
                        .filter(|n| stored.get(&places[*n]).is_some_and(|last| *last != i))
                    {
                        Some(n) => {
                            present[n] = true;
                            Stmt::Store { buf: scratch, at: slot(n, r), value }
                        }
                        None => Stmt::Store { buf, at, value },
                    },
                    s => s,
                });
            }
            *body = out;
        }
    }
}

/// The variable and extent of the first of several loops over the same row, if that is longer than a cache
/// set has lines.
fn row(body: &[Stmt]) -> Option<(Sym, Dim)> {
    let rows = form::rows(body)?;
    let first = rows.elements().next()?.loops.first().copied().filter(|f| f.1.as_const() > Some(WAYS))?;
    let fits = |part: &Part| match part {
        Part::Each(elements) => elements.count() == first.1.as_const(),
        Part::Once(s) => !matches!(s, Stmt::Store { .. }) && s.loads().is_empty(),
    };
    (rows.elements().count() > 1 && rows.parts.iter().all(fits)).then_some(first)
}
