//! Accesses of a tile: how they move with its loops, taken apart once for all copies that unrolling makes of
//! them.

use super::{Arg, Fit, Translate};
use crate::codegen::tile::ir::Value;
use crate::codegen::tile::isa::{self, Reach};
use crate::nest::{Buf, Expr, LoopKind, Stmt};
use crate::sym::{Dim, Sym};
use std::rc::Rc;

pub(super) const NOT_LINEAR: &str = "an access that is not linear in its loops";

/// How an access moves with the loops around it: argument, then loop and stride in elements.
pub(super) type Stream = (usize, Vec<(Sym, Dim)>);

/// An access as it stands in the nest, with what surrounds the tile put in.
pub(super) struct Site {
    storage: Buf,
    size: u32,
    /// Loops of the tile with their strides in elements, where it is linear in all of them.
    terms: Option<Vec<(Sym, Dim)>>,
    /// What does not depend on them; all of it where it is not linear.
    rest: Dim,
    constant: i64,
}

/// An access taken apart.
pub(super) struct Access {
    pub stream: Stream,
    pub storage: Buf,
    pub disp: i32,
    /// Elements per lane, where they are known.
    pub lane: Option<i64>,
    /// Elements per lane.
    pub step: Dim,
    /// Where the lanes read, in elements from the first one on, if they are not so many apart each.
    pub places: Option<Vec<i64>>,
    /// What lanes add to the place, if it is not linear in them and run time decides: it never falls from
    /// lane to lane, and grows by less than two vectors.
    pub window: Option<Dim>,
    /// Indices read from memory, with their strides in elements.
    pub bound: Vec<(Sym, Dim)>,
}

impl Translate<'_> {
    /// Takes an access apart.
    pub fn access(&mut self, buf: Buf, at: &[Dim]) -> Fit<Access> {
        let site = self.site(buf, at)?;
        let (mut strides, mut constant, mut more) =
            (Vec::<(Sym, Dim)>::new(), site.constant, Dim::constant(0));
        match &site.terms {
            Some(terms) => {
                for (s, k) in terms {
                    match self.put.get(s) {
                        None => strides.push((*s, *k)),
                        Some(d) => match (k.as_const(), d.as_const()) {
                            (Some(k), Some(d)) => {
                                constant = k
                                    .checked_mul(d)
                                    .and_then(|x| constant.checked_add(x))
                                    .ok_or("an address beyond 64 bits")?
                            }
                            _ => more = more + *k * *d,
                        },
                    }
                }
            }
            None => more = self.substituted(site.rest),
        }
        let mut places = None;
        // Lanes of a loop of one vector may lie anywhere. While an outer loop is opened, the first one stands
        // for them.
        let vectors: Vec<Sym> =
            self.deeper.iter().copied().filter(|s| self.lanes_of_one.contains(s)).collect();
        let mut window = None;
        for v in vectors.iter().copied().chain(self.lane.map(|l| l.sym)) {
            if self.active.iter().any(|a| a.0 == v) {
                continue;
            }
            let here = self.lane.is_some_and(|l| l.sym == v);
            if let Some((rest, moving)) = more.window(v, i64::from(self.b.lanes()))
                && (moving.syms().len() > 1 || here && self.used_lanes().is_none())
            {
                more = rest;
                window = window.or(here.then_some(moving));
            }
        }
        for v in vectors {
            if more.contains(v) && more.linear_in(v).is_none() {
                more = more.subst(&mut |s| (s == v).then(|| Dim::constant(0)));
            }
        }
        if let Some(l) = self.lane.map(|l| l.sym)
            && more.contains(l)
            && more.linear_in(l).is_none()
            && !self.active.iter().any(|a| a.0 == l)
        {
            let (first, list) = self.places(site.storage, more, l).ok_or(NOT_LINEAR)?;
            (more, places) = (first, Some(list));
        }
        if more.as_const().is_none() {
            let loops: Vec<Sym> = self
                .deeper
                .iter()
                .copied()
                .chain(self.active.iter().map(|a| a.0))
                .chain(self.lane.map(|l| l.sym))
                .chain(self.withs.iter().copied())
                .collect();
            for s in loops.into_iter().filter(|s| more.contains(*s)).collect::<Vec<_>>() {
                let Some((c, rest)) = more.linear_in(s) else {
                    return Err("an access that is not linear in a loop variable");
                };
                more = rest;
                match strides.iter_mut().find(|t| t.0 == s) {
                    Some(t) => t.1 = t.1 + c,
                    None => strides.push((s, c)),
                }
            }
            if self.is_inner(more) {
                return Err(NOT_LINEAR);
            }
        }
        let stride = |s: Sym| strides.iter().find(|t| t.0 == s).map_or(Dim::constant(0), |t| t.1);
        let mut moves = vec![];
        for (s, _) in &self.active {
            let c = stride(*s);
            if c.as_const() != Some(0) {
                moves.push((*s, c));
            }
        }
        let bound: Vec<(Sym, Dim)> = strides
            .iter()
            .filter(|t| self.withs.contains(&t.0) && t.1.as_const() != Some(0))
            .copied()
            .collect();
        let step = self.lane.map_or(Dim::constant(0), |l| stride(l.sym));
        let lane = step.as_const();
        if lane.is_none() && (!bound.is_empty() || self.is_inner(step)) {
            return Err("a stride between lanes that run time knows");
        }
        if moves.iter().any(|(_, c)| c.as_const().is_none() && self.is_inner(*c)) {
            return Err(NOT_LINEAR);
        }
        let rest = if site.terms.is_some() { site.rest + more } else { more };
        let (rest, c) = rest.split_const();
        let constant = constant.checked_add(c).ok_or("an address beyond 64 bits")?;
        let (rest, disp) =
            match constant.checked_mul(i64::from(site.size)).and_then(|c| i32::try_from(c).ok()) {
                Some(x) => match self.reach(i64::from(x), lane == Some(1)).map(|r| r.base(i64::from(x))) {
                    Some(far) if far != 0 && far % i64::from(site.size) == 0 => {
                        (rest + far / i64::from(site.size), (i64::from(x) - far) as i32)
                    }
                    _ => (rest, x),
                },
                None => (rest + constant, 0),
            };
        let arg = self.arg(Arg::Pointer { buf: site.storage, linear: rest, size: site.size })?;
        Ok(Access { stream: (arg, moves), storage: site.storage, disp, lane, step, places, window, bound })
    }
    /// Bytes that displacements may reach, if what is beyond has a pointer of its own.
    fn reach(&self, displacement: i64, vector: bool) -> Option<Reach> {
        if self.near { isa::machine(self.b.width()).reach(displacement, vector) } else { None }
    }
    /// What all copies of an access have in common.
    fn site(&mut self, buf: Buf, at: &[Dim]) -> Fit<Rc<Site>> {
        // Accesses stand where they are in the nest for as long as it is translated.
        let key = (buf, at.as_ptr() as usize);
        if let Some(s) = self.sites.get(&key) {
            return Ok(s.clone());
        }
        let data = &self.m.bufs[buf];
        let Some(size) = data.ty.bytes() else { return Err("elements smaller than a byte") };
        let linear = (self.outer)(self.m.linear(buf, at));
        let mut rest = linear;
        let mut terms = Some(vec![]);
        for s in self.locals.iter().chain(&self.withs).filter(|s| linear.contains(**s)) {
            match (rest.linear_in(*s), &mut terms) {
                (Some((c, r)), Some(t)) if !self.locals.iter().chain(&self.withs).any(|s| c.contains(*s)) => {
                    t.push((*s, c));
                    rest = r;
                }
                _ => terms = None,
            }
        }
        let (rest, constant) = if terms.is_some() { rest.split_const() } else { (linear, 0) };
        let site = Rc::new(Site { storage: self.m.storage(buf), size, terms, rest, constant });
        self.sites.insert(key, site.clone());
        Ok(site)
    }
    /// The streams of a body that move with a variable, in order of first use.
    pub(super) fn moving(&mut self, var: Sym, (step, part): (i64, i64), body: &[Stmt]) -> Fit<Vec<Stream>> {
        let mut found: Vec<Stream> = vec![];
        self.active.push((var, Value(0)));
        let r = (0..step)
            .step_by(part as usize)
            .try_for_each(|at| self.ahead(var, at, |t| t.collect(body, &mut found)));
        self.active.pop();
        r?;
        Ok(found)
    }
    fn collect(&mut self, body: &[Stmt], found: &mut Vec<Stream>) -> Fit<()> {
        for s in body {
            let mut accesses: Vec<(Buf, &[Dim])> = vec![];
            if let Some(e) = s.expr() {
                e.walk(&mut |e| {
                    if let Expr::Load { buf, at } = e {
                        accesses.push((*buf, at));
                    }
                });
            }
            if let Stmt::Store { buf, at, .. } | Stmt::Prefetch { buf, at } = s {
                accesses.push((*buf, at));
            }
            for (buf, at) in accesses {
                let a = self.access(buf, at)?;
                let var = self.active.last().map(|a| a.0);
                if a.stream.1.last().map(|c| c.0) == var && !found.contains(&a.stream) {
                    found.push(a.stream);
                }
            }
            if let Stmt::If { then, els, .. } = s {
                self.collect(then, found)?;
                self.collect(els, found)?;
            }
            if let Stmt::Tile { body } = s {
                self.collect(body, found)?;
            }
            let Stmt::For { kind, var, lo, hi, body } = s else { continue };
            let (lo, hi) = (self.substituted(*lo), self.substituted(*hi));
            let trip = (hi - lo).as_const();
            let kind = if self.written_out(*kind, trip, body) { &LoopKind::Unroll } else { kind };
            match (kind, trip) {
                // Nothing happens inside, and what it would bind has no value.
                (_, Some(..=0)) => {}
                (LoopKind::Unroll, Some(n)) => {
                    for i in 0..n {
                        self.with(*var, lo + i, |t| t.collect(body, found))?;
                    }
                }
                _ => {
                    self.deeper.push(*var);
                    let r = self.shifted(*var, lo, |t| t.collect(body, found));
                    self.deeper.pop();
                    r?;
                }
            }
        }
        Ok(())
    }
}
