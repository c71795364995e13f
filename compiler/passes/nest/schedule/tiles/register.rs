//! One register tile: accumulators and the reduction, with its prefetches.

use super::choice::HALVES_OF_REGISTER;
use super::{Panels, Part, Source, Tile, multiplies_halves};
use super::{finish, stream};
use crate::nest::{BinOp, Buf, Expr, HALVES, HALVES_IN_SEQUENCE, LoopKind, Math, Module, Place, Reg, Stmt};
use crate::passes::nest::analysis::form::Contraction;
use crate::passes::nest::analysis::machine::L2;
use crate::passes::nest::analysis::strides::stride;
use crate::passes::nest::schedule::clip;
use crate::sym::{Dim, Sym};
use crate::target::Tiles;

/// The existing columns of a panel.
#[derive(Clone, Copy)]
pub(super) enum Cols {
    Full,
    /// This many.
    Some(i64),
    /// A run-time number, in at most so many vectors.
    Guarded(i64),
}

impl Cols {
    /// The number of vectors, out of `nv`, that are provably whole.
    pub fn whole(self, nv: i64, lanes: i64) -> i64 {
        match self {
            Cols::Some(r) => r / lanes,
            Cols::Full => nv,
            Cols::Guarded(_) => 0,
        }
    }
}

/// Prefetches while a panel is in use: each pass over the panel prefetches a part of the next one.
#[derive(Clone, Copy)]
pub(super) struct PanelPrefetch {
    /// Number of the pass.
    pass: Dim,
    /// Cache lines per pass.
    lines: Dim,
    /// The panel, and the step of the outermost reduction loop, at which the lines begin; by default the
    /// first one of the next panel.
    from: Option<(Dim, Dim)>,
}

/// Minimum bytes of weights that are assumed not to be in the second-level cache when they are used.
const PREFETCH_BYTES: i64 = L2 / 4;

/// Multiply-adds of vectors with a line of a panel from which on a tile prefetches the next panel. With
/// fewer, the tile uses lines as fast as they arrive, and prefetches delay those that it waits for.
const PREFETCH_PRODUCTS: i64 = 9;

impl PanelPrefetch {
    /// For constant panels that `tiles` passes read in sequence, or for the prefetch that the contraction
    /// specifies.
    pub(super) fn new<P: Source>(
        m: &Module,
        p: &Contraction,
        t: &Tile<P>,
        passes: Dim,
    ) -> Option<PanelPrefetch> {
        if let (Some((buf, at)), Some((row, rows))) = (&p.prefetch, t.m_row) {
            let lines = (at.last()?.linear_in(row)?.0 * rows)
                .ceil_div(finish::LINE / i64::from(m.bufs[*buf].ty.bytes()?));
            return PanelPrefetch::shared(m, p, lines, passes);
        }
        let (bytes, line) = t.panels.constant(m)?;
        let depth = Dim::product(p.reduction.iter().map(|d| d.1)).as_const()?;
        if (bytes as i64) < PREFETCH_BYTES || t.n_extent.as_const()? <= t.nr || passes.as_const() == Some(1) {
            return None;
        }
        PanelPrefetch::shared(m, p, Dim::constant(depth * t.nr / line), passes)
    }
    /// `lines` cache lines, divided evenly among the passes.
    fn shared(m: &Module, p: &Contraction, lines: Dim, passes: Dim) -> Option<PanelPrefetch> {
        iterations(p, p.product.steps()).filter(|n| *n > 0)?;
        let lines = m.syms.simplify(lines.ceil_div(passes.max(1)));
        Some(PanelPrefetch { pass: Dim::constant(0), lines, from: None })
    }
    /// The same lines of the panel `panel`, from step `step` on.
    pub(super) fn from(self, panel: Dim, step: Dim) -> PanelPrefetch {
        PanelPrefetch { from: Some((panel, step)), ..self }
    }
    pub(super) fn at(self, pass: Dim) -> PanelPrefetch {
        PanelPrefetch { pass: self.pass + pass, ..self }
    }
}

/// True if tiles of `mr` rows should prefetch: whole tiles, and what the contraction specifies, always.
pub(super) fn prefetches_lines<P>(p: &Contraction, t: &Tile<P>, mr: i64) -> bool {
    let vector = t.lanes * p.product.ty().bytes().map_or(4, i64::from);
    p.prefetch.is_some() || mr >= t.mr || mr * finish::LINE >= PREFETCH_PRODUCTS * vector
}

/// Iterations of a reduction with `each` steps per iteration.
fn iterations(p: &Contraction, each: i64) -> Option<i64> {
    let (last, outer) = p.reduction.split_last()?;
    outer.iter().try_fold(last.1.as_const()? / each, |n, d| Some(n * d.1.as_const()?))
}

/// Marks a body as a tile.
pub(super) fn tile(body: Vec<Stmt>) -> Vec<Stmt> {
    vec![Stmt::Tile { body }]
}

/// True if a reduction must add its terms in order.
fn in_order(m: &Module, p: &Contraction) -> bool {
    m.math == Math::Strict && p.product.ty().is_float()
}

/// Accumulators per element of a tile of `mr` rows and `nv` vectors. Few accumulators are bound by latency:
/// unrolled steps then have separate ones, if registers suffice.
pub(super) fn split<P>(m: &Module, p: &Contraction, t: &Tile<P>, mr: i64, nv: i64) -> i64 {
    let long = p.reduction.last().map_or(Some(1), |d| d.1.as_const()).is_none_or(|c| c >= 8);
    let (mut split, most) = (1, t.steps(p, mr, nv));
    while !in_order(m, p) && split < most && mr * nv * split < 8 && 2 * mr * nv * split < t.registers && long
    {
        split *= 2;
    }
    split
}

/// One register tile: rows `row .. row + mr` of a part of a panel.
#[derive(Clone, Copy)]
pub(super) struct Block<'a> {
    pub p: &'a Contraction,
    pub t: &'a Tile,
    pub part: Part,
    pub row: Dim,
    pub mr: i64,
}

impl Block<'_> {
    /// Vectors of a row.
    pub fn vectors(&self) -> i64 {
        self.part.vectors(self.t)
    }
    /// The first column.
    pub fn column(&self) -> Dim {
        self.part.first(self.t)
    }
    /// Emits the accumulators, the reduction, and the epilogue.
    pub fn emit(self, m: &mut Module, prefetch: Option<PanelPrefetch>) -> Vec<Stmt> {
        let Block { p, t, mr, row, .. } = self;
        let nv = self.vectors();
        // The reduction loops with fresh variables.
        let loops = clip::loops(m, &p.reduction, &t.clips, (row, mr));
        let depth =
            p.reduction.iter().zip(&loops).map(|((s, extent), (var, _))| (*var, *extent, *s)).collect();
        let (split, ty) = (if t.first_step.is_some() { split(m, p, t, mr, nv) } else { 1 }, p.product.ty());
        let acc = m.reg(ty);
        let shape = vec![split as u32, mr as u32, nv as u32];
        let mut out = vec![Stmt::Acc { reg: acc, lanes: t.lanes as u32, shape, init: Expr::num(ty, 0.0) }];
        if p.start.is_some() {
            out.extend(finish::begins(m, &self, acc));
        }
        if t.first_step.is_none() {
            out.extend(finish::stores(m, &self, acc));
            return out;
        }
        let sum = Sum { block: self, acc, depth, split, each: t.steps(p, mr, nv), prefetch };
        let reads = finish::reads(m, &self);
        let early = sum.reads_early(m);
        if early && sum.is_long_enough(m) {
            out.extend(reads.iter().flat_map(|(r, ask)| unroll(*r, mr, vec![ask.clone()])));
        }
        let mut inner = sum.innermost(m, if early { &[] } else { &reads });
        for (var, (lo, hi)) in loops.iter().rev().skip(1) {
            inner = vec![Stmt::For { kind: LoopKind::Seq, var: *var, lo: *lo, hi: *hi, body: inner }];
        }
        out.extend(inner);
        out.extend(sum.joined(m));
        out.extend(finish::stores(m, &self, acc));
        out
    }
}

/// The reduction of a register tile.
struct Sum<'a> {
    block: Block<'a>,
    acc: Reg,
    /// The reduction loops: variable, extent, and the variable of the contraction that it replaces.
    depth: Vec<(Sym, Dim, Sym)>,
    /// Accumulators of each element.
    split: i64,
    /// Steps per iteration of the innermost loop.
    each: i64,
    prefetch: Option<PanelPrefetch>,
}

impl Sum<'_> {
    /// Variables for the row, the vector and the lane in a tile.
    fn vars(&self, m: &mut Module) -> [Sym; 3] {
        let mut var = |hint, hi: i64| m.syms.loop_var(hint, Dim::constant(0), hi.into());
        [var("r", self.block.mr), var("v", self.block.vectors()), var("l", self.block.t.lanes)]
    }
    /// The reduction subscripts of a step; `at` is that of the innermost loop, by default its variable.
    fn steps_at(&self, at: Option<Dim>) -> impl Iterator<Item = (Sym, Dim)> {
        let last = self.depth.len().saturating_sub(1);
        let first = self.block.t.first_step.unwrap_or(Dim::constant(0));
        let value = move |(i, d): (usize, &(Sym, Dim, Sym))| {
            let step = at.filter(|_| i == last).unwrap_or(d.0.into());
            (d.2, if i == 0 { first + step } else { step })
        };
        self.depth.iter().enumerate().map(value)
    }
    /// One step at position `at` of the innermost loop (by default its variable), into accumulators `part`.
    fn step(&self, m: &mut Module, at: Option<Dim>, part: Dim) -> Vec<Stmt> {
        let Block { p, t, part: Part { panel, sub, cols, .. }, row, .. } = self.block;
        let [i, v, l] = self.vars(m);
        let lane = sub * t.width() + Dim::sym(v) * t.lanes + l;
        let k: Vec<(Sym, Dim)> = self.steps_at(at).collect();
        let k_of = |s: Sym| k.iter().find(|k| k.0 == s).map(|k| k.1);
        let at_row = |s: Sym| t.m_row.filter(|x| x.0 == s).map(|_| row + i);
        let a = p.a.1.iter().map(|d| d.subst(&mut |s| k_of(s).or_else(|| at_row(s)))).collect();
        let at_column = |s: Sym| (s == t.n).then(|| panel * t.nr + lane);
        let in_place = |at: &[Dim]| -> Vec<Dim> {
            at.iter().map(|d| d.subst(&mut |s| k_of(s).or_else(|| at_column(s)))).collect()
        };
        let depth = k.iter().map(|k| k.1);
        let (buf, b) = match &t.panels {
            Panels::Packed(packed) => {
                (packed.buf, packed.outer_at(t).chain([panel]).chain(depth).chain([lane]).collect())
            }
            Panels::InPlace => (p.b.0, in_place(&p.b.1)),
            Panels::Private { buf, part, .. } => {
                (*buf, std::iter::once(Dim::sym(*part)).chain(depth).chain([lane]).collect())
            }
        };
        // In place, the last row of columns may end within a vector: lanes beyond the end add nothing.
        let guard = match (&t.panels, cols) {
            (Panels::InPlace, Cols::Guarded(_)) => {
                Some(Expr::cmp_index(BinOp::Lt, panel * t.nr + lane, t.n_extent))
            }
            _ => None,
        };
        let factor = |at: Vec<Dim>| match &guard {
            None => Expr::Load { buf, at },
            Some(exists) => {
                Expr::select(exists.clone(), Expr::Load { buf, at }, Expr::num(p.product.ty(), 0.0))
            }
        };
        // A sum of two elements of B is used in every row but computed once.
        let b = match &p.with {
            Some((op, second)) => Expr::bin(*op, factor(b), factor(in_place(second))),
            None => factor(b),
        };
        let b = match &p.gate {
            Some((buf, at)) => {
                let at = at.iter().map(|d| d.subst(&mut |s| k_of(s))).collect();
                b * Expr::Load { buf: *buf, at }
            }
            None => b,
        };
        let at = vec![part, i.into(), v.into()];
        let before = Expr::Acc { reg: self.acc, at: at.clone(), lane: None };
        let value = p.product.step(Expr::Load { buf: p.a.0, at: a }, b, before);
        self.over_lanes(m, [i, v, l], Stmt::Set { reg: self.acc, at, value })
    }
    /// The statement for all rows, vectors and lanes.
    fn over_lanes(&self, m: &mut Module, [i, v, l]: [Sym; 3], set: Stmt) -> Vec<Stmt> {
        let Block { t, part, mr, .. } = self.block;
        let (lanes, nv) = (t.lanes, self.block.vectors());
        let vectors = |l: Sym, set: Stmt, n: i64| vec![Stmt::vector(lanes, l, n, vec![set])];
        // In place, memory beyond the last column may not exist.
        let (whole, rest) = match (&t.panels, part.cols) {
            (Panels::InPlace, Cols::Some(r)) => (r / lanes, r % lanes),
            _ => (nv, 0),
        };
        if whole == nv {
            return unroll(i, mr, unroll(v, nv, vectors(l, set, lanes)));
        }
        let e = m.syms.loop_var("l", Dim::constant(0), Dim::constant(rest));
        let put = |s: Sym| if s == v { Some(Dim::constant(whole)) } else { (s == l).then(|| Dim::sym(e)) };
        let mut of_row = vectors(e, set.clone().subst(&put), rest);
        if whole > 0 {
            m.syms.set_loop_range(v, Dim::constant(0), Dim::constant(whole));
            of_row.extend(unroll(v, whole, vectors(l, set, lanes)));
        }
        unroll(i, mr, of_row)
    }
    /// Iterations of the innermost loop, each of [`Sum::each`] steps.
    fn whole(&self) -> Dim {
        self.depth.last().map_or(Dim::constant(1), |d| d.1.floor_div(self.each))
    }
    /// The innermost loop. `reads`: the epilogue's prefetches, which are distributed over the last steps,
    /// since earlier ones would delay the loads of the reduction.
    fn innermost(&self, m: &mut Module, reads: &[(Sym, Stmt)]) -> Vec<Stmt> {
        let (p, zero) = (self.block.p, Dim::constant(0));
        let (each, most) = (self.each, p.product.steps());
        let Some(&(var, hi, _)) = self.depth.last() else { return self.step(m, None, zero) };
        if let Some(c) = hi.as_const().filter(|c| *c <= most) {
            return unroll(var, c, self.step(m, None, zero));
        }
        let late = if reads.is_empty() { 0 } else { self.block.mr };
        let first = self.whole() - late * (most / each);
        // f16 accumulation requires a loop of its own without other exits.
        let halves = multiplies_halves(m, p, self.block.t.caps);
        let mut s = match first.as_const() {
            Some(n) if halves && n * each > self.halves() => {
                in_parts(m, n, self.halves() / each, &|m, q| self.iteration(m, q))
            }
            _ => {
                let q = m.syms.loop_var("k", zero, first);
                let body = self.iteration(m, q.into());
                vec![Stmt::seq(q, first, body)]
            }
        };
        if late > 0 {
            s.push(self.last_iterations(m, first, reads));
        }
        s.extend(self.rest(m, (var, hi)));
        s
    }
    /// Maximum products of f16 for which an accumulator is f16.
    fn halves(&self) -> i64 {
        if self.each >= HALVES_OF_REGISTER { HALVES } else { HALVES_IN_SEQUENCE }
    }
    /// Steps `from .. from + count`, unrolled.
    fn steps(&self, m: &mut Module, from: Dim, count: i64) -> Vec<Stmt> {
        let Block { p, t, .. } = self.block;
        let u = m.syms.loop_var("u", Dim::constant(0), Dim::constant(count));
        let turned = t.backwards && !in_order(m, p);
        let from = if turned { self.whole() * self.each - count - from } else { from };
        unroll(u, count, self.step(m, Some(from + u), Dim::sym(u).modulo(self.split)))
    }
    /// The prefetches of iteration `q`.
    fn prefetches(&self, m: &Module, q: Dim) -> Vec<Stmt> {
        let mut lines = self.prefetch.map_or(vec![], |a| self.prefetch_lines(m, q, a));
        lines.extend(self.next_rows(m, q));
        lines.extend(stream::lines(m, &self.block, q, self.each));
        lines
    }
    fn iteration(&self, m: &mut Module, q: Dim) -> Vec<Stmt> {
        let mut body = self.prefetches(m, q);
        body.extend(self.steps(m, q * self.each, self.each));
        body
    }
    /// The iterations from `first` on, each of which prefetches a row of the epilogue's operands.
    fn last_iterations(&self, m: &mut Module, first: Dim, reads: &[(Sym, Stmt)]) -> Stmt {
        let (zero, rows) = (Dim::constant(0), self.block.mr);
        let (each, most) = (self.each, self.block.p.product.steps());
        let r = m.syms.loop_var("k", zero, Dim::constant(rows));
        let q = first + Dim::sym(r) * (most / each);
        let ask = |(row, ask): &(Sym, Stmt)| ask.clone().subst(&|s| (s == *row).then_some(r.into()));
        let mut body: Vec<Stmt> = reads.iter().map(ask).collect();
        body.extend((0..most / each).flat_map(|i| self.prefetches(m, q + i)));
        if each == most {
            body.extend(self.steps(m, q * each, each));
        } else {
            let i = m.syms.loop_var("k", zero, Dim::constant(most));
            let one = self.steps(m, q * each + i, 1);
            body.push(Stmt::seq(i, most, one));
        }
        Stmt::seq(r, rows, body)
    }
    /// The remaining steps of the innermost loop.
    fn rest(&self, m: &mut Module, (var, hi): (Sym, Dim)) -> Vec<Stmt> {
        let (zero, from) = (Dim::constant(0), self.whole() * self.each);
        match hi.modulo(self.each).as_const() {
            Some(0) => vec![],
            Some(r) => {
                let u = m.syms.loop_var("u", zero, Dim::constant(r));
                unroll(u, r, self.step(m, Some(from + u), zero))
            }
            None => {
                m.syms.set_loop_range(var, from, hi);
                let body = self.step(m, None, zero);
                vec![Stmt::For { kind: LoopKind::Seq, var, lo: from, hi, body }]
            }
        }
    }
    /// Adds up the accumulators of each element.
    fn joined(&self, m: &mut Module) -> Vec<Stmt> {
        if self.split == 1 {
            return vec![];
        }
        let Block { t, mr, .. } = self.block;
        let [i, v, l] = self.vars(m);
        let at = |part: i64| vec![Dim::constant(part), i.into(), v.into()];
        let of = |part: i64| Expr::Acc { reg: self.acc, at: at(part), lane: None };
        let value = (1..self.split).fold(of(0), |sum, s| Expr::bin(BinOp::Add, sum, of(s)));
        let set = Stmt::Set { reg: self.acc, at: at(0), value };
        unroll(i, mr, unroll(v, self.block.vectors(), vec![Stmt::vector(t.lanes, l, t.lanes, vec![set])]))
    }
    /// True if the epilogue's operands are prefetched before the reduction instead of in its last steps.
    fn reads_early(&self, m: &Module) -> bool {
        let Block { p, t, mr, .. } = self.block;
        let inner = self.depth.last().map_or(Dim::constant(1), |d| d.1);
        // Distributing the prefetches doubles the code, which matters if size is optimised.
        let short = inner.as_const().is_none_or(|k| k < 4 * EPILOGUE_PREFETCH_RATIO * mr);
        self.depth.len() > 1 || short || multiplies_halves(m, p, t.caps) || t.caps.tiles == Tiles::None
    }
    /// True if the reduction is long enough for the epilogue's operands to arrive.
    fn is_long_enough(&self, m: &Module) -> bool {
        let Block { p, t, .. } = self.block;
        let far = finish::reads_from_afar(m, p, t);
        let long = if far { FAR_EPILOGUE_PREFETCH_STEPS } else { EPILOGUE_PREFETCH_STEPS };
        Dim::product(self.depth.iter().map(|d| d.1)).as_const().is_none_or(|k| k >= long)
    }
    /// Prefetches a part of the rows of A of the next tile in iteration `q`.
    fn next_rows(&self, m: &Module, q: Dim) -> Vec<Stmt> {
        let Block { p, t, row, mr, .. } = self.block;
        let (Some((r, step)), [depth], Some(whole)) =
            (next_rows_stride(m, p, t), p.reduction.as_slice(), iterations(p, self.each))
        else {
            return vec![];
        };
        let line = finish::LINE / m.bufs[p.a.0].ty.bytes().map_or(4, i64::from);
        let each = (mr * step + line * whole - 1) / (line * whole);
        let at = |i: i64| {
            let put = |s: Sym| {
                if s == r { Some(row + mr) } else { (s == depth.0).then(|| (q * each + i) * line) }
            };
            p.a.1.iter().map(|d| d.subst(&mut |s| put(s))).collect()
        };
        (0..each).map(|i| Stmt::Prefetch { buf: p.a.0, at: at(i) }).collect()
    }
    /// Prefetches a part of the next panel, or of the buffer that the contraction specifies, in iteration `q`
    /// of a pass.
    fn prefetch_lines(&self, m: &Module, q: Dim, a: PanelPrefetch) -> Vec<Stmt> {
        let Block { p, t, part, .. } = self.block;
        let (Some((last, outer)), Some(n)) = (self.depth.split_last(), iterations(p, self.each)) else {
            return vec![];
        };
        let most = MOST_LINES * self.each;
        let step = m.syms.simplify(a.lines.ceil_div(n.max(1)).min(Dim::constant(most)));
        let zero = Dim::constant(0);
        let (buf, line, from): (Buf, i64, Vec<Dim>) = match (&p.prefetch, &t.panels) {
            (Some((buf, at)), _) => {
                let first = |d: &Dim| d.subst(&mut |s| t.m_row.filter(|r| r.0 == s).map(|_| zero));
                let line = finish::LINE / m.bufs[*buf].ty.bytes().map_or(4, i64::from);
                (*buf, line, at.iter().map(first).collect())
            }
            (None, Panels::Packed(packed)) => {
                let (panel, step) = a.from.unwrap_or((part.panel + 1, zero));
                let inner = self.depth.iter().skip(1).map(|_| zero);
                let first = [panel, step].into_iter().chain(inner).chain([zero]);
                (packed.buf, packed.line, packed.outer_at(t).chain(first).collect())
            }
            (None, Panels::InPlace | Panels::Private { .. }) => return vec![],
        };
        let turn = outer.iter().fold(zero, |n, d| n * d.1 + d.0) * last.1.floor_div(self.each) + q;
        let first = a.pass * a.lines + turn * step;
        let line_at = |i: i64| {
            let mut at = from.clone();
            if let Some(d) = at.last_mut() {
                *d = *d + (first + i) * line;
            }
            Stmt::Prefetch { buf, at }
        };
        (0..step.as_const().unwrap_or(most)).map(line_at).collect()
    }
}

/// A loop of `n` iterations in chunks of `each`.
fn in_parts(m: &mut Module, n: i64, each: i64, body: &dyn Fn(&mut Module, Dim) -> Vec<Stmt>) -> Vec<Stmt> {
    let zero = Dim::constant(0);
    let (parts, left) = (n / each, n % each);
    let part = |m: &mut Module, from: Dim, count: i64| {
        let q = m.syms.loop_var("k", zero, Dim::constant(count));
        let body = body(m, from + q);
        Stmt::seq(q, count, body)
    };
    let outer = m.syms.loop_var("k", zero, Dim::constant(parts));
    let body = vec![part(m, Dim::sym(outer) * each, each)];
    let mut s = vec![Stmt::seq(outer, parts, body)];
    if left > 0 {
        s.push(part(m, Dim::constant(parts * each), left));
    }
    s
}

/// Minimum reduction steps for prefetching the next tile's rows, and maximum elements between the ends of
/// rows.
const ROW_PREFETCH_STEPS: i64 = 256;
const GAP: i64 = 32;

/// The stride of the rows of A, if tiles prefetch the rows of the next tile, which must be adjacent in
/// memory. With several threads, the rows may be in the cache of another core. Not if the number of rows is a
/// run-time value: with few rows there is no next tile, and the prefetches would compete with the weights for
/// memory bandwidth. Nor together with other prefetches.
fn next_rows_stride<P>(m: &Module, p: &Contraction, t: &Tile<P>) -> Option<(Sym, i64)> {
    let ([depth], (r, count)) = (p.reduction.as_slice(), t.m_row?) else { return None };
    let along = |s: Sym| stride(m, p.a.0, &p.a.1, s);
    let (steps, step) = (depth.1.as_const()?, along(r)?);
    let constant = matches!(m.bufs[m.storage(p.a.0)].place, Place::Const(_));
    let here = !constant && p.prefetch.is_none() && count.as_const().is_some() && along(depth.0) == Some(1);
    let long = steps >= ROW_PREFETCH_STEPS && (steps..=steps + GAP).contains(&step);
    (here && long && m.bufs[p.a.0].ty.bytes().is_some()).then_some((r, step))
}

/// See [`next_rows_stride`].
pub(super) fn prefetches_rows<P>(m: &Module, p: &Contraction, t: &Tile<P>) -> bool {
    next_rows_stride(m, p, t).is_some()
}

/// Minimum reduction steps during which the epilogue's operands arrive.
const EPILOGUE_PREFETCH_STEPS: i64 = 128;
/// The same if they come from beyond the second-level cache.
const FAR_EPILOGUE_PREFETCH_STEPS: i64 = 48;
/// Minimum ratio of reduction steps, in fours, to rows for prefetching row by row at the end.
const EPILOGUE_PREFETCH_RATIO: i64 = 4;

/// Maximum cache lines that a step prefetches.
const MOST_LINES: i64 = 1;

/// An unrolled loop.
pub(crate) fn unroll(var: Sym, n: i64, body: Vec<Stmt>) -> Vec<Stmt> {
    vec![Stmt::unroll(var, n, body)]
}
