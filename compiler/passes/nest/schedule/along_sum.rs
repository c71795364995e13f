//! Contractions of few columns: vectors run along the reduction.
//!
//! If a vector of columns would be mostly empty (a convolution with a few output channels, a classifier of
//! few classes), each lane of an accumulator sums the terms at a distance of one vector, and the lanes are
//! added at the end. A tile has a vector for each row and column: a vector of A serves all columns, one of B
//! all rows. This is profitable if the reduction is so long that the horizontal additions are negligible; the
//! costs of both schedules are compared.

use crate::nest::schedule::{Packing, Schedule};
use crate::nest::{BinOp, Buf, Expr, Kernel, Layout, LoopKind, Math, Module, Place, Reg, Scalar, Stmt};
use crate::passes::nest::analysis::form::{Contraction, Form, ProductKind, depends};
use crate::passes::nest::analysis::machine::LINE;
use crate::passes::nest::analysis::shape::{fresh_regs, in_one, parallel};
use crate::passes::nest::analysis::strides::stride;
use crate::passes::nest::schedule::clip::{self, Clip};
use crate::passes::nest::schedule::contract::loops::{collapse_rows, split_phases};
use crate::passes::nest::schedule::contract::{self, ConstPanels};
use crate::passes::nest::schedule::tiles::{self, MOST_ROWS, stream, unroll};
use crate::passes::nest::schedule::{Plan, Request};
use crate::sym::{Dim, Sym};
use crate::target::Facts;
use crate::tensor::ElemType;

/// The horizontal addition of an accumulator takes as long as this number of vector multiplications.
const HORIZONTAL: i64 = 8;
/// Maximum cache lines of a row that is prefetched.
const MOST_LINES: i64 = 8;
/// Lines between a prefetch and the use: more than memory delivers in the time that one takes.
const AHEAD: i64 = 64;
/// Accumulators that keep the multipliers busy: two multipliers with a latency of four.
const BUSY: i64 = 8;
/// Rows of the highest tile of a remainder that only run time knows.
const HIGHEST: i64 = 8;
/// Maximum cost relative to vectors along columns, in percent.
const GAIN: i64 = 85;

/// Maximum columns, if only run time knows their number: each of them reads A anew.
pub(crate) const FEW_COLUMNS: i64 = 4;

/// Assumed terms of a sum if only run time knows their number.
const UNKNOWN_TERMS: i64 = 128;

/// A contraction with vectors along its reduction.
struct AlongSum {
    p: Contraction,
    b: Operand,
    /// Subscripts of B after those of loops around the nest.
    b_at: Vec<Dim>,
    /// The column; an unused variable if the result has no column.
    n: (Sym, i64),
    /// The row loop of the tiles.
    row: (Sym, Dim),
    /// Loops around the tiles.
    outer: Vec<(Sym, Dim)>,
    /// The innermost reduction loop, contiguous in both operands.
    run: (Sym, Dim),
    clips: Vec<Clip>,
    lanes: i64,
    /// Rows of a tile.
    rows: i64,
    epilogue: Lanes,
    work: Dim,
}

/// The vector axis of the epilogue: the contiguous dimension of the result.
#[derive(Clone, Copy, PartialEq)]
enum Lanes {
    Columns,
    Rows,
    /// One result at a time.
    Alone,
}

/// The operand B.
enum Operand {
    InPlace,
    Constant(ConstPanels),
}

/// Chooses vectors along the reduction for a contraction of few columns, if profitable.
pub(crate) fn choose(m: &mut Module, request: &Request) -> Option<Box<dyn Plan>> {
    let Form::Contraction(p) = request.form else { return None };
    if !p.is_plain() || p.product != ProductKind::Fma || p.start.is_some() || m.math == Math::Strict {
        return None;
    }
    let Facts { lanes, registers, caps } = request.facts;
    let (lanes, registers) = (i64::from(lanes), i64::from(registers));
    let mut p = (**p).clone();
    split_phases(m, &mut p);
    let n = match column(m, &p, lanes).or_else(|| {
        std::mem::swap(&mut p.a, &mut p.b);
        column(m, &p, lanes)
    })? {
        Some(n) => n,
        None => (m.syms.loop_var("n", Dim::constant(0), Dim::constant(1)), 1),
    };
    // Panels of a constant contain whole vectors of its rows.
    if m.is_constant(p.a.0) {
        return None;
    }
    let only_a = |l: &(Sym, Dim)| p.is_only_of_a(l.0);
    let mut rows: Vec<(Sym, Dim)> = p.loops.iter().copied().filter(only_a).collect();
    let batch: Vec<(Sym, Dim)> = p.loops.iter().copied().filter(|l| l.0 != n.0 && !only_a(l)).collect();
    collapse_rows(m, &mut p, &mut rows, n.0);
    let row = rows.pop()?;
    // The innermost loop must be contiguous in both operands; constants are repacked.
    let runs = Runs::of(m, &p).or_else(|| Runs::of_unknown(m, &p))?;
    sort_by_stride(m, &mut p);
    let last = *p.reduction.last()?;
    let own: Vec<(Sym, Dim)> = batch.iter().copied().filter(|l| depends(&p.b.1, l.0)).collect();
    let storage = m.storage(p.b.0);
    let b = if matches!(m.bufs[storage].place, Place::Const(_)) && m.bufs[storage].layout == Layout::RowMajor
    {
        Operand::Constant(contract::constant_panels(m, &p, &own, (n.0, Dim::constant(n.1)), 1)?)
    } else if stride(m, p.b.0, &p.b.1, last.0) == Some(1) {
        Operand::InPlace
    } else {
        return None;
    };
    let mut b_at = p.b.1.clone();
    if let Operand::Constant(_) = b {
        let loops = own.iter().map(|l| l.0).chain([n.0]).chain(p.reduction.iter().map(|d| d.0));
        b_at = loops.map(Dim::sym).chain([Dim::constant(0)]).collect();
        join_run(m, &mut p, &mut b_at);
    }
    let run = *p.reduction.last()?;
    // Short elements followed by a partial vector.
    let short = [p.a.0, p.b.0].iter().any(|b| m.bufs[*b].ty.bits() < 32);
    if short && !(caps.short_floats && (run.1.modulo(lanes).as_const() == Some(0) || caps.masks)) {
        return None;
    }
    let (out, at) = p.store()?;
    let beside = |s: Sym| stride(m, out, &at, s) == Some(1);
    let epilogue = match (n.1 > 1 && beside(n.0), beside(row.0)) {
        (true, _) => Lanes::Columns,
        (_, true) => Lanes::Rows,
        _ => Lanes::Alone,
    };
    let most = if epilogue == Lanes::Rows { lanes } else { MOST_ROWS };
    let most = row.1.as_const().unwrap_or(MOST_ROWS).min(most);
    let fits = |r: i64| r * n.1 + r.min(n.1) < registers;
    let rows_of = (1..=most.max(1)).rev().find(|r| fits(*r))?;
    let runs = Runs { length: run.1.as_const().unwrap_or(runs.length), ..runs };
    let own_price = runs.price(n.1, rows_of, lanes);
    // Alternative: vectors of columns, or of rows if these are contiguous in A (the pixels of planes).
    let pixels = p.loops.iter().any(|l| l.0 != n.0 && stride(m, p.a.0, &p.a.1, l.0) == Some(1));
    let vectors = if pixels { n.1.min(lanes) } else { lanes };
    if own_price * 100 * lanes > rows_of * runs.terms * vectors * GAIN {
        return None;
    }
    let tiles = Dim::product(batch.iter().chain(&rows).map(|l| l.1)) * row.1.ceil_div(rows_of);
    let work = tiles * (own_price * lanes / 4);
    let outer = batch.into_iter().chain(rows).collect();
    let clips = clip::clips(m, &p, &request.program.borders, (Some(row), rows_of));
    Some(Box::new(AlongSum { p, b, b_at, n, row, outer, run, clips, lanes, rows: rows_of, epilogue, work }))
}

/// The terms of a reduction in the memory order of A.
#[derive(Clone, Copy)]
pub(crate) struct Runs {
    /// Number of terms.
    pub terms: i64,
    /// Contiguous terms.
    length: i64,
}

impl Runs {
    /// `None` if no two terms are contiguous, or their number is a run-time value.
    pub fn of(m: &Module, p: &Contraction) -> Option<Runs> {
        let mut p = p.clone();
        sort_by_stride(m, &mut p);
        let (mut terms, mut length) = (1i64, 1i64);
        for d in p.reduction.iter().rev() {
            let size = d.1.as_const().filter(|n| *n > 0)?;
            if length == terms && stride(m, p.a.0, &p.a.1, d.0) == Some(length) {
                length *= size;
            }
            terms = terms.checked_mul(size)?;
        }
        (length > 1).then_some(Runs { terms, length })
    }
    /// A single loop of run-time extent.
    fn of_unknown(m: &Module, p: &Contraction) -> Option<Runs> {
        let [(var, size)] = p.reduction[..] else { return None };
        let fits = size.as_const().is_none() && stride(m, p.a.0, &p.a.1, var) == Some(1);
        fits.then_some(Runs { terms: UNKNOWN_TERMS, length: UNKNOWN_TERMS })
    }
    /// Cost of a tile in vector multiplications: each step of a row and column is one, and requires a load of
    /// each operand.
    pub fn price(&self, columns: i64, rows: i64, lanes: i64) -> i64 {
        let steps = (self.length + lanes - 1) / lanes * (self.terms / self.length);
        (steps * (rows * columns).max(rows + columns)).max(BUSY) + HORIZONTAL * rows * columns
    }
}

/// Orders the reduction loops so that the innermost has the smallest stride in A.
fn sort_by_stride(m: &Module, p: &mut Contraction) {
    let step = |s: Sym| stride(m, p.a.0, &p.a.1, s).map_or(i64::MAX, i64::abs);
    p.reduction.sort_by_key(|d| std::cmp::Reverse(step(d.0)));
}

/// The loop that only B depends on, and its extent, which must be less than a vector; Some(None) if there is
/// no such loop, or if it is a loop around tiles of one column since run time knows that it is short. None if
/// there are several or it is longer.
fn column(m: &Module, p: &Contraction, lanes: i64) -> Option<Option<(Sym, i64)>> {
    let mut only_b = p.loops.iter().filter(|l| p.is_only_of_b(l.0));
    match (only_b.next(), only_b.next()) {
        (None, _) => Some(None),
        (Some(n), None) if n.1.as_const().is_none() => {
            m.syms.range(n.1).hi.is_some_and(|hi| hi <= FEW_COLUMNS).then_some(None)
        }
        (Some(n), None) => Some(Some((n.0, n.1.as_const().filter(|e| (1..lanes).contains(e))?))),
        _ => None,
    }
}

/// Fuses the innermost reduction loops while A is contiguous across them. B is a constant that is packed in
/// the order of these loops, with subscripts `b_at`.
fn join_run(m: &mut Module, p: &mut Contraction, b_at: &mut [Dim]) {
    while let [.., outer, inner] = p.reduction[..] {
        let (Some(size), Some(_)) = (inner.1.as_const(), outer.1.as_const()) else { return };
        if stride(m, p.a.0, &p.a.1, outer.0) != Some(size) {
            return;
        }
        let all = outer.1 * size;
        let var = m.syms.loop_var("k", Dim::constant(0), all);
        let of = |d: &Dim| in_one(*d, (outer.0, inner.0), inner.1, var);
        let at: Vec<Dim> = p.a.1.iter().map(of).collect();
        if stride(m, p.a.0, &at, var) != Some(1) {
            return;
        }
        p.a.1 = at;
        b_at.iter_mut().for_each(|d| *d = of(d));
        p.reduction.truncate(p.reduction.len() - 2);
        p.reduction.push((var, all));
    }
}

/// The elements of a cache line of A, if its rows are prefetched: those that may come from memory and are
/// short, such as the keys of a decoder's caches. The hardware prefetches long rows.
fn line(m: &Module, p: &Contraction, clips: &[Clip], row: Sym) -> Option<i64> {
    let ([(_, size)], (buf, at)) = (&p.reduction[..], &p.a) else { return None };
    let line = LINE / i64::from(m.bufs[*buf].ty.bytes()?);
    let is_short = size.as_const()? <= MOST_LINES * line;
    let fits = clips.is_empty() && m.linear(*buf, at).linear_in(row).is_some();
    (is_short && fits && stream::is_far(m, *buf)).then_some(line)
}

impl Plan for AlongSum {
    fn schedule(&self, m: &Module) -> Schedule {
        let packing = match &self.b {
            Operand::InPlace => Packing::InPlace,
            Operand::Constant(c) => {
                tiles::Source::describe(&contract::Packing::Constant(c.clone()), m, self.n.1)
            }
        };
        Schedule {
            tile: vec![("rows", self.rows), ("columns", self.n.1)],
            packing: vec![("B", packing)],
            skips: clip::describe(&self.clips),
            prefetch: line(m, &self.p, &self.clips, self.row.0).map(|_| "rows of A").into_iter().collect(),
            ..Schedule::new("vectors along the sum").vectors(self.lanes, "terms of a sum", self.run.1)
        }
    }
    fn work(&self) -> Dim {
        self.work
    }
    fn apply(self: Box<Self>, m: &mut Module, _: Kernel) -> Vec<Stmt> {
        let AlongSum { p, b, b_at, n, row, outer, run, clips, lanes, rows, epilogue, .. } = *self;
        let b = match b {
            Operand::InPlace => (p.b.0, b_at),
            Operand::Constant(panels) => {
                let packed = panels.place(m);
                (packed.buf, packed.outer.into_iter().chain(b_at).collect())
            }
        };
        let t = Tile { p, b, n, row: row.0, run, clips, lanes, epilogue };
        let (zero, extent) = (Dim::constant(0), row.1);
        let (blocks, full) = (extent.ceil_div(rows), extent.floor_div(rows));
        let block = m.syms.loop_var("b", zero, blocks);
        let whole = t.emit(m, Dim::sym(block) * rows, rows);
        let body = match extent.modulo(rows).as_const() {
            Some(0) => whole,
            rest => {
                let els = match rest {
                    Some(rest) => t.emit(m, full * rows, rest),
                    None => {
                        let left = m.syms.simplify(extent.modulo(rows));
                        t.rest(m, (full * rows, left), rows)
                    }
                };
                vec![Stmt::If { cond: Expr::cmp_index(BinOp::Lt, block, full), then: whole, els }]
            }
        };
        let loops: Vec<(Sym, Dim)> = outer.into_iter().chain([(block, blocks)]).collect();
        parallel(m, &loops, body)
    }
}

/// The common part of tiles of any height.
struct Tile {
    p: Contraction,
    b: (Buf, Vec<Dim>),
    n: (Sym, i64),
    row: Sym,
    run: (Sym, Dim),
    clips: Vec<Clip>,
    lanes: i64,
    epilogue: Lanes,
}

impl Tile {
    /// The results of all columns of rows `first .. first + rows`.
    fn emit(&self, m: &mut Module, first: Dim, rows: i64) -> Vec<Stmt> {
        let (zero, (n, columns)) = (Dim::constant(0), self.n);
        let sums = rows * columns;
        let vectors = self.run.1.floor_div(self.lanes);
        // Few accumulators would be bound by latency: unrolled steps get separate ones.
        let enough = |s: &i64| vectors.as_const().is_none_or(|n| n >= 2 * s);
        let split = [4, 2].into_iter().find(|s| sums * s <= BUSY && enough(s)).unwrap_or(1);
        let acc = m.reg(ElemType::F32);
        let mut out = vec![Stmt::Acc {
            reg: acc,
            lanes: self.lanes as u32,
            shape: vec![split as u32, rows as u32, columns as u32],
            init: Expr::Const(Scalar::f32(0.0)),
        }];
        let (run, around) = match self.p.reduction.split_last() {
            Some((run, around)) => (run.0, around),
            None => return vec![],
        };
        let loops = clip::loops(m, around, &self.clips, (first, rows));
        let depth: Vec<(Sym, Sym)> = around.iter().zip(&loops).map(|(d, l)| (d.0, l.0)).collect();
        // `used` terms from `at` on in vectors; `s` is the number of the unrolled step.
        let step = |m: &mut Module, at: Dim, s: Dim, used: Dim| -> Vec<Stmt> {
            let (r, c, l) = (
                m.syms.loop_var("r", zero, Dim::constant(rows)),
                m.syms.loop_var("n", zero, Dim::constant(columns)),
                m.syms.loop_var("l", zero, used),
            );
            let place = |at_of: &[Dim]| -> Vec<Dim> {
                let of = |v: Sym| match v {
                    v if v == self.row => Some(first + r),
                    v if v == n => Some(c.into()),
                    v if v == run => Some(at + l),
                    v => depth.iter().find(|d| d.0 == v).map(|d| Dim::sym(d.1)),
                };
                at_of.iter().map(|d| m.syms.simplify(d.subst(&mut |v| of(v)))).collect()
            };
            let here = vec![s, r.into(), c.into()];
            let value = Expr::fma(
                Expr::Load { buf: self.p.a.0, at: place(&self.p.a.1) },
                Expr::Load { buf: self.b.0, at: place(&self.b.1) },
                Expr::Acc { reg: acc, at: here.clone(), lane: None },
            );
            let set = vec![Stmt::Set { reg: acc, at: here, value }];
            match used.as_const() {
                Some(_) => unroll(r, rows, unroll(c, columns, vec![self.vector(l, used, set)])),
                None => vec![self.vector(l, used, unroll(r, rows, unroll(c, columns, set)))],
            }
        };
        let lanes = self.lanes;
        let mut inner = vec![];
        let whole = if vectors.as_const().is_none() && split == 1 {
            zero
        } else {
            self.run.1.floor_div(split * lanes)
        };
        if whole.as_const() != Some(0) {
            let q = m.syms.loop_var("q", zero, whole);
            let s = m.syms.loop_var("s", zero, Dim::constant(split));
            let body = step(m, (Dim::sym(q) * split + s) * lanes, s.into(), Dim::constant(lanes));
            let mut turn = self.ahead(m, first, rows, (Dim::sym(q) * split * lanes, split * lanes));
            turn.extend(unroll(s, split, body));
            inner.push(Stmt::seq(q, whole, turn));
        }
        let done = whole * split;
        match (vectors.as_const(), done.as_const(), self.run.1.as_const()) {
            (Some(vectors), Some(done), Some(terms)) => {
                for v in done..vectors {
                    inner.extend(step(m, Dim::constant(v * lanes), zero, Dim::constant(lanes)));
                }
                if terms % lanes != 0 {
                    let (at, rest) = (Dim::constant(vectors * lanes), Dim::constant(terms % lanes));
                    inner.extend(step(m, at, zero, rest));
                }
            }
            _ => {
                let rest = if split == 1 { self.run.1 } else { self.run.1.modulo(split * lanes) };
                inner.extend(step(m, done * lanes, zero, rest));
            }
        }
        for (var, (lo, hi)) in loops.into_iter().rev() {
            inner = vec![Stmt::For { kind: LoopKind::Seq, var, lo, hi, body: inner }];
        }
        out.extend(inner);
        out.extend(self.combined(m, acc, (split, rows)));
        out.extend(self.stores(m, acc, first, rows));
        out
    }
    /// Fewer rows than `most`, `left` of them from `first` on: a high tile if they are enough, one or two
    /// tiles for the others.
    fn rest(&self, m: &mut Module, (mut first, mut left): (Dim, Dim), most: i64) -> Vec<Stmt> {
        let mut out = vec![];
        if most > HIGHEST {
            let then = self.emit(m, first, HIGHEST);
            out.push(Stmt::If { cond: Expr::cmp_index(BinOp::Ge, left, HIGHEST), then, els: vec![] });
            first = first + left.floor_div(HIGHEST) * HIGHEST;
            left = m.syms.simplify(left.modulo(HIGHEST));
        }
        let parts = tiles::rests(most.min(HIGHEST), 1);
        out.extend(tiles::in_parts(m, parts, (first, left), |m, first, rows| self.emit(m, first, rows)));
        out
    }
    /// Prefetches `count` elements from `from` on of rows of A that a later tile reads.
    fn ahead(&self, m: &mut Module, first: Dim, rows: i64, (from, count): (Dim, i64)) -> Vec<Stmt> {
        let (buf, at) = (self.p.a.0, &self.p.a.1);
        let Some(line) = line(m, &self.p, &self.clips, self.row) else { return vec![] };
        let Some(terms) = self.run.1.as_const() else { return vec![] };
        let later = first + (AHEAD * line / terms).max(rows);
        let mut out = vec![];
        for k in (0..count).step_by(line as usize) {
            let i = m.syms.loop_var("r", Dim::constant(0), Dim::constant(rows));
            let put = |s: Sym| match s {
                s if s == self.row => Some(later + i),
                s => (s == self.run.0).then_some(from + k),
            };
            let at = at.iter().map(|d| d.subst(&mut |s| put(s))).collect();
            out.extend(unroll(i, rows, vec![Stmt::Prefetch { buf, at }]));
        }
        out
    }
    /// Adds the accumulators of unrolled steps to the first.
    fn combined(&self, m: &mut Module, acc: Reg, (split, rows): (i64, i64)) -> Vec<Stmt> {
        if split == 1 {
            return vec![];
        }
        let zero = Dim::constant(0);
        let (r, c, l) = (
            m.syms.loop_var("r", zero, Dim::constant(rows)),
            m.syms.loop_var("n", zero, Dim::constant(self.n.1)),
            m.syms.loop_var("l", zero, Dim::constant(self.lanes)),
        );
        let part = |s: i64| Expr::Acc { reg: acc, at: vec![s.into(), r.into(), c.into()], lane: None };
        let value = (1..split).fold(part(0), |sum, s| Expr::bin(BinOp::Add, sum, part(s)));
        let set = Stmt::Set { reg: acc, at: vec![zero, r.into(), c.into()], value };
        let body = self.vector(l, self.lanes.into(), vec![set]);
        unroll(r, rows, unroll(c, self.n.1, vec![body]))
    }
    /// The epilogue: each lane has the accumulator of its column, or of its row.
    fn stores(&self, m: &mut Module, acc: Reg, first: Dim, rows: i64) -> Vec<Stmt> {
        let (zero, (n, columns)) = (Dim::constant(0), self.n);
        let var = |m: &mut Module, name: &str, n: i64| m.syms.loop_var(name, zero, Dim::constant(n));
        // Loops over the rows and the columns, and the loop of the lanes.
        let (mut around, along) = match self.epilogue {
            Lanes::Columns => (vec![(var(m, "r", rows), rows)], columns),
            Lanes::Rows => (vec![(var(m, "n", columns), columns)], rows),
            Lanes::Alone => (vec![(var(m, "r", rows), rows), (var(m, "n", columns), columns)], 1),
        };
        let l = var(m, "l", along);
        let at = |lane: Dim| match (self.epilogue, &around[..]) {
            (Lanes::Columns, [r]) => [r.0.into(), lane],
            (Lanes::Rows, [n]) => [lane, n.0.into()],
            (_, [r, n]) => [r.0.into(), n.0.into()],
            _ => [zero, zero],
        };
        let sum = |lane: i64| {
            let [r, c] = at(lane.into());
            Expr::Horizontal { op: BinOp::Add, reg: acc, at: vec![zero, r, c] }
        };
        // Select lane by lane, beginning with the last one, which needs no condition.
        let of = |rest: Expr, lane: i64| Expr::select(Expr::cmp_index(BinOp::Eq, l, lane), sum(lane), rest);
        let value = (0..along - 1).rev().fold(sum(along - 1), of);
        let total = m.reg(ElemType::F32);
        let [r, c] = at(l.into());
        let put = |s: Sym| match s {
            s if s == self.row => Some(first + r),
            s if s == n => Some(c),
            _ => None,
        };
        let mut body = vec![Stmt::Let { reg: total, value }];
        for s in fresh_regs(m, &self.p.epilogue) {
            let s = s.map_dims(&mut |d| m.syms.simplify(d.subst(&mut |s| put(s))));
            body.push(s.rewrite_exprs(&mut |e| match e {
                Expr::Acc { reg, .. } if reg == self.p.acc => Expr::Reg(total),
                e => e,
            }));
        }
        let mut body = vec![self.vector(l, along.into(), body)];
        while let Some((var, n)) = around.pop() {
            body = unroll(var, n, body);
        }
        body
    }
    fn vector(&self, l: Sym, used: Dim, body: Vec<Stmt>) -> Stmt {
        let kind = LoopKind::Vec(self.lanes as u32);
        Stmt::For { kind, var: l, lo: Dim::constant(0), hi: used, body }
    }
}
