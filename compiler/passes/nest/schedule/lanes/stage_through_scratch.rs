//! Rows across planes: softmax along the channels of an image.
//!
//! If planes are a multiple of 4 KiB apart, or so far apart that all do not fit in the cache, the cache lines
//! of one position in all channels are evicted before the next loop over the row. Elements that several loops
//! read are therefore staged in scratch of a task: each is loaded once, several lines of a channel at a time.
//! The same if run time knows the distance, which may be any. Elements that one loop stores for another are
//! not staged: the first store fetches the line of the last one while the loop computes.

use crate::nest::form::{self, Part};
use crate::nest::{BinOp, Buf, Expr, Module, Stmt};
use crate::passes::nest::analysis::machine::{L2, PAGE, WAYS, slots};
use crate::passes::nest::analysis::shape::{ParNest, fresh_regs, substitute};
use crate::passes::nest::analysis::strides::stride;
use crate::passes::nest::schedule::lanes::body::{Adjacent, lets_as_accs, once};
use crate::passes::nest::schedule::rows::Slots;
use crate::sym::{Dim, Sym};
use crate::tensor::ElemType;
use std::collections::{HashMap, HashSet};

/// Adjacent vectors per row, so that lines are accessed in runs.
pub(super) const SIDE: i64 = 4;

/// An access of a row: the buffer, and the subscripts with the variable of the first loop.
type Place = (Buf, Vec<Dim>);

/// The accesses that are staged.
pub(super) struct Staging {
    /// The variable of the first loop over the row, and its trips.
    first: (Sym, Dim),
    places: Vec<Place>,
}

/// Subscripts of the loop over `own`, with the variable of the first loop in its place.
pub(super) fn in_first(first: Sym, own: Sym, at: &[Dim]) -> Vec<Dim> {
    at.iter().map(|d| d.subst(&mut |s| (s == own).then(|| Dim::sym(first)))).collect()
}

/// The accesses that loops over a row share and that should be loaded once; `None` if staging is unnecessary.
pub(super) fn choose(m: &Module, nest: &ParNest, var: Sym, lanes: i64) -> Option<Staging> {
    let extent = nest.loops.iter().find(|l| l.0 == var)?.1;
    if extent.as_const().is_some_and(|e| e < 2 * SIDE * lanes) {
        return None;
    }
    let (first, count) = row(&nest.body)?;
    // The loops in which each element of the row is loaded.
    let (mut read, mut order): (HashMap<Place, Vec<usize>>, Vec<Place>) = Default::default();
    let (mut conditional, mut stored): (HashSet<Place>, HashSet<Buf>) = Default::default();
    for (i, s) in nest.body.iter().enumerate() {
        let own = if let Stmt::For { var, .. } = s { *var } else { first };
        for inner in s.bodies().flatten() {
            if let Stmt::Store { buf, .. } = inner {
                stored.insert(m.storage(*buf));
            }
            if let Some(e) = inner.expr() {
                e.each_load_or_conditional(&mut |buf, at, condition| {
                    let place = (buf, in_first(first, own, at));
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
    let needs = |p: &Place| {
        let again = read[p].first() != read[p].last();
        let kept = !conditional.contains(p) && !stored.contains(&m.storage(p.0));
        again && kept && is_far(m, p, (first, count), (var, extent))
    };
    let places: Vec<Place> = order.into_iter().filter(needs).collect();
    (!places.is_empty()).then_some(Staging { first: (first, count), places })
}

/// True if the elements of a row in a buffer do not stay in the first-level cache from one loop to the next.
fn is_far(m: &Module, (buf, at): &Place, (first, count): (Sym, Dim), (var, extent): (Sym, Dim)) -> bool {
    let bytes = |n: i64| n.saturating_mul(4);
    let apart = match m.linear(*buf, at).linear_in(first).map(|s| s.0.as_const()) {
        // Planes of run-time size may have any distance.
        Some(None) => true,
        Some(Some(s)) => {
            let all = count.as_const().zip(extent.as_const()).map_or(0, |(n, e)| bytes(n.saturating_mul(e)));
            s != 0 && bytes(s) % PAGE == 0 || bytes(s) > PAGE && all > L2
        }
        None => false,
    };
    m.bufs[*buf].ty == ElemType::F32 && apart && stride(m, *buf, at, var) == Some(1)
}

impl Staging {
    /// The nest, vectors of which run along `var`: tasks with scratch of their own, each of which computes
    /// blocks of adjacent vectors, and the rest of some rows.
    pub fn apply(self, m: &mut Module, nest: &ParNest, var: Sym, lanes: i64) -> Vec<Stmt> {
        let (zero, step) = (Dim::constant(0), SIDE * lanes);
        let mut others = nest.loops.clone();
        others.retain(|l| l.0 != var);
        let extent = nest.loops.iter().find(|l| l.0 == var).map_or(zero, |l| l.1);
        let (blocks, rest) = (extent.floor_div(step), m.syms.simplify(extent.modulo(step)));
        let around = m.syms.simplify(Dim::product(others.iter().map(|l| l.1)));
        let total = m.syms.simplify(around * blocks);
        let places = self.places.len() as i64;
        let bytes = self.first.1.as_const().map_or(L2, |n| n.saturating_mul(places * step * 4));
        let slots = Slots::new(m, slots(total, Some(bytes)));
        let dims = vec![slots.count.into(), places.into(), self.first.1, step.into()];
        let scratch = m.temp("strip".to_owned(), ElemType::F32, dims);
        // Vectors from `from` on, the last one with `used` lanes.
        let vectors = |m: &mut Module, from: Dim, count: i64, used: Dim| {
            let slot =
                |n: usize, r: Sym| vec![slots.own.into(), (n as i64).into(), r.into(), Dim::sym(var) - from];
            let body = self.redirected(&nest.body, scratch, slot);
            let body = lets_as_accs(m, body);
            let body = fresh_regs(m, &body);
            let body = Adjacent { var, base: from, count, lanes: (lanes, used) }.in_lanes(m, &body);
            body.into_iter().map(|s| s.map_dims(&mut |d| m.syms.simplify(d))).collect::<Vec<Stmt>>()
        };
        let b = m.syms.loop_var("b", zero, blocks);
        let mut body = vec![];
        if blocks.as_const() != Some(0) {
            let block = vectors(m, Dim::sym(b) * step, SIDE, lanes.into());
            let nest: Vec<(Sym, Dim)> = others.iter().copied().chain([(b, blocks)]).collect();
            body.push(slots.share_of(m, &nest, total, block));
        }
        let mut left = vec![];
        let singles = m.syms.simplify(rest.floor_div(lanes));
        if singles.as_const() != Some(0) {
            let c = m.syms.loop_var("c", zero, singles);
            let single = vectors(m, blocks * step + Dim::sym(c) * lanes, 1, lanes.into());
            left.push(Stmt::seq(c, singles, single));
        }
        let used = m.syms.simplify(extent.modulo(lanes));
        if used.as_const() != Some(0) {
            let last = vectors(m, extent.floor_div(lanes) * lanes, 1, used);
            match used.as_const() {
                Some(_) => left.extend(last),
                None => left.push(once(m, used.min(1), last)),
            }
        }
        match around.as_const() {
            _ if left.is_empty() => {}
            // One row: the last task computes it.
            Some(1) => {
                let cond = Expr::cmp_index(BinOp::Eq, slots.task, slots.count - 1);
                let then = substitute(m, left, &|v| others.iter().any(|l| l.0 == v).then_some(zero));
                body.push(Stmt::If { cond, then, els: vec![] });
            }
            _ => body.push(slots.share_of(m, &others, around, left)),
        }
        slots.around(body)
    }
    /// The body with staged elements in scratch, where `slot` says for a number and a position of the row.
    /// The first loop that reads an element copies it.
    fn redirected(&self, body: &[Stmt], scratch: Buf, slot: impl Fn(usize, Sym) -> Vec<Dim>) -> Vec<Stmt> {
        let mut present = vec![false; self.places.len()];
        let mut body = body.to_vec();
        for loop_ in &mut body {
            let Stmt::For { var: r, body, .. } = loop_ else { continue };
            let r = *r;
            let find = |buf: Buf, at: &[Dim]| {
                self.places.iter().position(|p| p.0 == buf && p.1 == in_first(self.first.0, r, at))
            };
            let mut out = vec![];
            for s in std::mem::take(body) {
                let mut fresh: Vec<Stmt> = vec![];
                let s = s.rewrite_exprs(&mut |e| {
                    let found = if let Expr::Load { buf, at } = &e { find(*buf, at) } else { None };
                    let Some(n) = found else { return e };
                    if !std::mem::replace(&mut present[n], true) {
                        fresh.push(Stmt::Store { buf: scratch, at: slot(n, r), value: e });
                    }
                    Expr::Load { buf: scratch, at: slot(n, r) }
                });
                out.extend(fresh);
                out.push(s);
            }
            *body = out;
        }
        body
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
