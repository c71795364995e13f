//! Accesses of a tile: their strides along its loops, analysed once for all copies that unrolling creates.

use super::permuted_loads::PLANES;
use super::run_time_rows::Row;
use super::{Arg, Fit, Translate};
use crate::codegen::tile::ir::Value;
use crate::codegen::tile::isa::{self, Reach};
use crate::nest::{Buf, Expr, LoopKind, Stmt};
use crate::sym::{Dim, Sym};
use std::rc::Rc;

pub(super) const NOT_LINEAR: &str = "an access that is not linear in its loops";

/// The movement of an access with the loops around it: argument, then loop and stride in elements.
pub(super) type Stream = (usize, Vec<(Sym, Dim)>);

/// An access of the nest, after substitution of variables outside the tile.
pub(super) struct Site {
    storage: Buf,
    pub(super) size: u32,
    /// Loops of the tile with their strides in elements, if it is linear in all of them.
    pub(super) terms: Option<Vec<(Sym, Dim)>>,
    /// The unrolled loop over rows at a run-time distance that share a pointer. Lanes are adjacent, or all
    /// the same.
    rows: Option<Sym>,
    /// The part that does not depend on them; the whole position if it is not linear.
    pub(super) rest: Dim,
    /// A part that lanes share and that is not linear in the loops, beside `terms`.
    uniform: Dim,
    constant: i64,
}

/// An analysed access.
pub(super) struct Access {
    pub stream: Stream,
    /// A run-time offset in elements that lanes share, but which is not linear in the loops of the tile.
    pub uniform: Option<Dim>,
    pub storage: Buf,
    /// Its row, if rows of an unrolled loop are at a run-time distance and share the stream.
    pub row: Option<Row>,
    pub disp: i32,
    /// Stride between lanes in elements, if it is constant.
    pub lane: Option<i64>,
    /// Stride between lanes in elements.
    pub step: Dim,
    /// Offsets of the lanes in elements, relative to the first one, if they are constant but not equidistant.
    pub places: Option<Vec<i64>>,
    /// A run-time offset of lanes that is not linear: it does not decrease from lane to lane, and increases
    /// by less than two vectors in total.
    pub window: Option<Dim>,
    /// Positions of lanes that are not linear, in variables of the nest, for loads at offsets in lanes
    /// (`indexed.rs`). The lanes have no stride then.
    pub indexed: Option<Dim>,
    /// Indices read from memory, with their strides in elements.
    pub bound: Vec<(Sym, Dim)>,
}

impl Access {
    /// True if all lanes are equidistant.
    pub fn is_regular(&self) -> bool {
        self.places.is_none() && self.window.is_none() && self.indexed.is_none()
    }
}

/// A position in the tile, in elements: loops with their strides, other run-time terms, a constant.
struct Position {
    strides: Vec<(Sym, Dim)>,
    row: Option<Row>,
    more: Dim,
    constant: i64,
}

impl Position {
    fn stride(&self, s: Sym) -> Dim {
        self.strides.iter().find(|t| t.0 == s).map_or(Dim::constant(0), |t| t.1)
    }
    fn add_stride(&mut self, s: Sym, c: Dim) {
        match self.strides.iter_mut().find(|t| t.0 == s) {
            Some(t) => t.1 = t.1 + c,
            None => self.strides.push((s, c)),
        }
    }
}

const TOO_FAR: &str = "an address beyond 64 bits";

impl Translate<'_> {
    /// Analyses an access.
    pub fn access(&mut self, buf: Buf, at: &[Dim]) -> Fit<Access> {
        let site = self.site(buf, at)?;
        let (own, first, rest) = self.take_indexed(&site);
        let mut p = self.position(&site, rest)?;
        p.constant = p.constant.checked_add(first).ok_or(TOO_FAR)?;
        let uniform = self.take_uniform(&mut p.more);
        let window = self.take_window(&mut p.more);
        let places = self.take_places(site.storage, &mut p.more)?;
        self.take_loops(&mut p)?;
        let known = |c: &Dim| c.as_const().is_some();
        let moves: Vec<(Sym, Dim)> = self
            .active
            .iter()
            .map(|(s, _)| (*s, p.stride(*s)))
            .filter(|(_, c)| c.as_const() != Some(0))
            .collect();
        let bound: Vec<(Sym, Dim)> = p
            .strides
            .iter()
            .filter(|t| self.vars.withs.contains(&t.0) && t.1.as_const() != Some(0))
            .copied()
            .collect();
        let step = self.lane.map_or(Dim::constant(0), |l| p.stride(l.sym));
        if !known(&step) && (!bound.is_empty() || self.is_inner(step)) {
            return Err("a stride between lanes that run time knows");
        }
        if moves.iter().any(|(_, c)| !known(c) && self.is_inner(*c)) {
            return Err(NOT_LINEAR);
        }
        let lane = step.as_const();
        let row = p.row;
        let rest = if site.terms.is_some() { site.rest + p.more } else { p.more };
        let (rest, c) = rest.split_const();
        let constant = p.constant.checked_add(c).ok_or(TOO_FAR)?;
        let (linear, disp) = self.displaced(rest, constant, site.size, lane == Some(1));
        let arg = self.arg(Arg::Pointer { buf: site.storage, linear, size: site.size })?;
        let (stream, storage) = ((arg, moves), site.storage);
        if row.is_some_and(|r| r.1 != 0) && !self.with_rows.contains(&stream) {
            self.with_rows.insert(stream.clone());
        }
        Ok(Access { stream, uniform, storage, row, disp, lane, step, places, window, indexed: own, bound })
    }
    /// The position after substitution of the variables of open loops.
    fn position(&mut self, site: &Site, rest: Dim) -> Fit<Position> {
        let mut p = Position { strides: vec![], row: None, more: Dim::constant(0), constant: site.constant };
        let Some(terms) = &site.terms else {
            p.more = self.substituted(rest);
            return Ok(p);
        };
        p.more = self.substituted(site.uniform);
        for (s, k) in terms {
            let Some(d) = self.put.get(s) else {
                p.strides.push((*s, *k));
                continue;
            };
            match (k.as_const(), d.as_const()) {
                (Some(k), Some(d)) => {
                    p.constant = k.checked_mul(d).and_then(|x| p.constant.checked_add(x)).ok_or(TOO_FAR)?
                }
                (None, Some(d)) if site.rows == Some(*s) => p.row = Some((*k, d)),
                _ => p.more = p.more + *k * *d,
            }
        }
        Ok(p)
    }
    fn is_active(&self, s: Sym) -> bool {
        self.active.iter().any(|a| a.0 == s)
    }
    /// Removes the non-linear offset of lanes from a position, see [`Access::window`]. The lanes of a
    /// single-vector loop may have any offsets: while an outer loop is opened, the first lane represents
    /// them.
    fn take_window(&self, more: &mut Dim) -> Option<Dim> {
        let vectors: Vec<Sym> =
            self.deeper.iter().copied().filter(|s| self.vars.lanes_of_one.contains(s)).collect();
        let mut window = None;
        for v in vectors.iter().copied().chain(self.lane.map(|l| l.sym)) {
            let here = self.lane.is_some_and(|l| l.sym == v);
            let cut = || more.window(v, i64::from(self.b.lanes()));
            if let Some((rest, moving)) = (!self.is_active(v)).then(cut).flatten()
                && (moving.syms().len() > 1 || here && self.used_lanes().is_none())
            {
                *more = rest;
                window = window.or(here.then_some(moving));
            }
        }
        for v in vectors {
            if more.contains(v) && more.linear_in(v).is_none() {
                *more = more.subst(&mut |s| (s == v).then(|| Dim::constant(0)));
            }
        }
        window
    }
    /// Removes constant offsets of lanes from a position that is not linear in them.
    fn take_places(&mut self, storage: Buf, more: &mut Dim) -> Fit<Option<Vec<i64>>> {
        let Some(l) = self.lane.map(|l| l.sym).filter(|l| more.contains(*l) && !self.is_active(*l)) else {
            return Ok(None);
        };
        if more.linear_in(l).is_some() {
            return Ok(None);
        }
        let (first, list) = self.places(storage, *more, l).ok_or(NOT_LINEAR)?;
        *more = first;
        Ok(Some(list))
    }
    /// Removes the loops of the tile from the remaining terms.
    fn take_loops(&self, p: &mut Position) -> Fit<()> {
        if p.more.as_const().is_some() {
            return Ok(());
        }
        let active = self.active.iter().map(|a| a.0);
        let opened = self.deeper.iter().copied().chain(active).chain(self.lane.map(|l| l.sym));
        let loops: Vec<Sym> =
            opened.chain(self.vars.withs.iter().copied()).filter(|s| p.more.contains(*s)).collect();
        for s in loops {
            let (c, rest) = p.more.linear_in(s).ok_or("an access that is not linear in a loop variable")?;
            p.more = rest;
            p.add_stride(s, c);
        }
        if self.is_inner(p.more) { Err(NOT_LINEAR) } else { Ok(()) }
    }
    /// A pointer in elements and a displacement in bytes for a position; `whole`: vectors are accessed.
    fn displaced(&self, rest: Dim, constant: i64, size: u32, whole: bool) -> (Dim, i32) {
        let bytes = constant.checked_mul(i64::from(size)).and_then(|c| i32::try_from(c).ok());
        let Some(x) = bytes else { return (rest + constant, 0) };
        let (x, size) = (i64::from(x), i64::from(size));
        let far = self.reach(x, whole).map_or(0, |r| r.base(x));
        if far % size == 0 { (rest + far / size, (x - far) as i32) } else { (rest, x as i32) }
    }
    /// The range of displacements, if accesses beyond it have pointers of their own.
    fn reach(&self, displacement: i64, vector: bool) -> Option<Reach> {
        if self.near { isa::machine(self.b.width()).reach(displacement, vector) } else { None }
    }
    /// The position of an access in elements. It may be linear in the loops although subscripts are not.
    pub(super) fn linear(&self, buf: Buf, at: &[Dim]) -> Dim {
        let d = self.m.linear(buf, at);
        let mut divides = false;
        d.divisions(&mut |x, _| divides |= self.vars.loop_in(x));
        if divides { self.simplifier.simplify(d) } else { d }
    }
    /// The properties common to all copies of an access.
    fn site(&mut self, buf: Buf, at: &[Dim]) -> Fit<Rc<Site>> {
        // The nest is not moved while it is translated, so that addresses of accesses identify them.
        let key = (buf, at.as_ptr() as usize);
        if let Some(s) = self.sites.get(&key) {
            return Ok(s.clone());
        }
        let data = &self.m.bufs[buf];
        let Some(size) = data.ty.bytes() else { return Err("elements smaller than a byte") };
        let linear = (self.outer)(self.linear(buf, at));
        let mut rest = linear;
        let uniform = self.take_uniform(&mut rest);
        let mut terms = Some(vec![]);
        for s in self.vars.loops.iter().chain(&self.vars.withs).filter(|s| linear.contains(**s)) {
            match (rest.linear_in(*s), &mut terms) {
                (Some((c, r)), Some(t)) if !self.vars.loop_in(c) && !self.vars.with_in(c) => {
                    t.push((*s, c));
                    rest = r;
                }
                _ => terms = None,
            }
        }
        let uniform = uniform.filter(|_| terms.is_some()).unwrap_or(Dim::constant(0));
        let (rest, constant) = if terms.is_some() { rest.split_const() } else { (linear, 0) };
        let adjacent = |(s, k): &(Sym, Dim)| match self.vars.vectors.contains(s) {
            true => matches!(k.as_const(), Some(0 | 1)),
            false => !self.vars.withs.contains(s),
        };
        let rows = terms.as_ref().filter(|t| self.shares_rows() && t.iter().all(adjacent));
        let distant = |(s, k): &&(Sym, Dim)| k.as_const().is_none() && self.vars.unrolled.contains(s);
        let rows = rows.and_then(|t| t.iter().find(distant)).map(|t| t.0);
        let site = Rc::new(Site { storage: self.m.storage(buf), size, terms, rows, rest, uniform, constant });
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
    /// The streams of an access: one, or one for each of the planes that its lanes read
    /// ([`Translate::load_from_planes`]).
    fn streams_of(&mut self, buf: Buf, at: &[Dim]) -> Fit<Vec<Stream>> {
        let mut streams = vec![self.access(buf, at)?.stream];
        if self.site(buf, at)?.terms.is_some() {
            // Linear in all loops.
            return Ok(streams);
        }
        let lanes: Vec<Sym> =
            self.deeper.iter().copied().filter(|s| self.vars.lanes_of_one.contains(s)).collect();
        for lane in lanes {
            let (linear, lanes) = (self.substituted(self.linear(buf, at)), i64::from(self.b.lanes()));
            // The first lane represents the others.
            if linear.linear_in(lane).is_some() || linear.window(lane, lanes).is_some() {
                continue;
            }
            let planes = self.m.syms.planes(linear, lane, 0..lanes);
            if planes.len() <= PLANES {
                for (first, _) in planes.iter().skip(1).map(|p| p[0]) {
                    let at_first = self.at_lane(lane, first);
                    streams.push(self.with(lane, at_first, |t| t.access(buf, at))?.stream);
                }
            }
        }
        Ok(streams)
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
                let var = self.active.last().map(|a| a.0);
                for stream in self.streams_of(buf, at)? {
                    if stream.1.last().map(|c| c.0) == var && !found.contains(&stream) {
                        found.push(stream);
                    }
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
                // An empty loop: the symbols that it would bind have no value.
                (_, Some(..=0)) => {}
                (LoopKind::Unroll, Some(n)) => {
                    for i in 0..n {
                        self.with(*var, lo + i, |t| t.collect(body, found))?;
                    }
                }
                _ => {
                    self.deeper.push(*var);
                    let r = self.shifted(*var, lo, |t| t.collect(body, found)).and_then(|()| {
                        let done = self.moved_in_words(*kind, *var, self.m.syms.simplify(hi - lo), body);
                        if done.as_const() == Some(0) {
                            return Ok(());
                        }
                        self.shifted(*var, lo + done, |t| t.collect(body, found))
                    });
                    self.deeper.pop();
                    r?;
                }
            }
        }
        Ok(())
    }
}
