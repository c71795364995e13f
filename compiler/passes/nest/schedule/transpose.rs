//! Maps whose result and operands are contiguous along different dimensions: conversion between planes and
//! channels innermost, transposes.
//!
//! Squares as wide as a vector are loaded along one dimension, transposed in registers and stored along the
//! other. If a dimension is not a multiple of a square, the last square overlaps the previous one: both store
//! the same values there. A dimension shorter than a square uses a part of one. Rows shorter than a square
//! are fused if they are contiguous in the operand, even if they are not in the result.

use crate::nest::patterns::is_lookup;
use crate::nest::schedule::Schedule;
use crate::nest::{BinOp, Buf, Expr, Kernel, LoopKind, Module, Stmt};
use crate::passes::nest::analysis::cost;
use crate::passes::nest::analysis::lanes64;
use crate::passes::nest::analysis::shape::{Map, in_one, instance, loop_like};
use crate::passes::nest::analysis::strides::{stride, unit_stride_var};
use crate::passes::nest::schedule::{Plan, Request, Within};
use crate::sym::{Dim, Sym};
use crate::tensor::ElemType;

/// Maximum elements of fused short rows: each vector of them has an unrolled block.
const UNROLLED: i64 = 512;

/// Minimum rows or columns of a partial square.
pub(super) const LEAST: i64 = 5;

/// Minimum rows or columns of a partial square if a side may be shorter at run time.
const PART: i64 = 4;

/// Squares of a run along a side of run-time length: they are one tile, which threads share no further.
const RUN: i64 = 16;

/// Most squares of a task along a side of run-time length that is read in order, and how many elements of the
/// other side take the place of one: narrow results have little work per square.
const TASK: i64 = 32;
const WORTH: i64 = 8;

/// Maximum loads of a block: each occupies as many registers as a vector has lanes.
const MAX_BLOCK_LOADS: usize = 2;

/// Rows or columns of partial squares for a side that may be shorter than a vector at run time, the most
/// first.
pub(super) fn parts(lanes: i64) -> impl DoubleEndedIterator<Item = i64> {
    [lanes / 2, lanes / 4].into_iter().filter(|n| *n >= PART)
}

/// A loop over pieces of `each` of the elements from `lo` to `hi`, at least as many, the last piece of which
/// overlaps the one before it: the variable, the trips, and the first element of a piece.
pub(super) fn overlapping(m: &mut Module, (lo, hi): (Dim, Dim), each: i64) -> (Sym, Dim, Dim) {
    let count = m.syms.simplify((hi - lo).ceil_div(each));
    let p = m.syms.loop_var("p", Dim::constant(0), count);
    (p, count, (lo + Dim::sym(p) * each).min(hi - each))
}

/// One dimension of the blocks.
struct Side {
    var: Sym,
    extent: Dim,
}

impl Side {
    /// Elements along this side of a square that has at most `most`.
    fn of_square(&self, most: i64) -> i64 {
        self.extent.as_const().map_or(most, |e| e.min(most))
    }
    /// A loop over pieces of `each` elements, and its trips.
    fn pieces(&self, m: &mut Module, name: &str, each: i64) -> (Sym, Dim) {
        let count = self.extent.ceil_div(each);
        (m.syms.loop_var(name, Dim::constant(0), count), count)
    }
    /// The start of a square: the last one overlaps the previous one.
    fn first_of(&self, m: &Module, square: Sym, lanes: i64) -> Dim {
        let first = Dim::sym(square) * lanes;
        match self.extent.as_const() {
            Some(e) if e < lanes => Dim::constant(0),
            _ if m.syms.simplify(self.extent.modulo(lanes)).as_const() == Some(0) => first,
            _ => first.min(self.extent - lanes),
        }
    }
}

/// Columns of squares of some rows.
#[derive(Clone, Copy)]
enum Columns {
    /// All of a side of known length.
    All,
    /// Those of one square.
    One(Dim),
    /// A run of squares of a side of run-time length.
    Run(Dim),
}

/// The first row of a square.
#[derive(Clone, Copy)]
enum Rows {
    /// Of one square.
    One(Dim),
    /// Of the squares of a task, by their numbers: the first one, and the one after the last.
    Squares(Dim, Dim),
}

/// A transposing map in blocks.
struct Blocks {
    map: Map,
    to: Side,
    from: Side,
    lanes: i64,
    /// The result is contiguous along the side of the operand.
    line: bool,
    within: Within,
    work: Dim,
}

/// Chooses blocks for a map whose result and operands are contiguous along different dimensions.
pub(crate) fn choose(m: &mut Module, request: &Request) -> Option<Box<dyn Plan>> {
    if !request.facts.caps.shuffles.are_known() {
        return None;
    }
    let map = request.form.map()?.clone();
    let lanes = i64::from(request.facts.lanes) / if lanes64::is(m.bufs[map.buf].ty) { 2 } else { 1 };
    let (map, to, from) = sides(m, map, lanes)?;
    let line = m.linear(map.buf, &map.at).linear_in(from.var).is_some();
    let work = cost::work(m, request.body);
    (line || from.extent.as_const().is_some())
        .then(|| Box::new(Blocks { map, to, from, lanes, line, within: request.within, work }) as _)
}

impl Plan for Blocks {
    fn schedule(&self, _: &Module) -> Schedule {
        let s = Schedule::new("transpose in registers").vectors(
            self.lanes,
            "elements of the result",
            self.to.extent,
        );
        Schedule {
            tile: vec![("rows", self.lanes), ("vectors", 1)],
            blocks: vec![("elements read in order", self.from.extent)],
            ..s
        }
    }
    fn work(&self) -> Dim {
        self.work
    }
    fn apply(self: Box<Self>, m: &mut Module, _: Kernel) -> Vec<Stmt> {
        match self.from.extent.as_const() {
            Some(n) if !self.line => self.strided(m, n),
            _ => self.squares_of_all(m),
        }
    }
}

/// True for elements of squares of one kind: all of 64 bits, or none. Elements shorter than 32 bits use lanes
/// of 32.
fn turns(t: ElemType, long: bool) -> bool {
    if long {
        return lanes64::is(t);
    }
    matches!(t.bits(), 8 | 16 | 32) && (t.is_int() || matches!(t, ElemType::F32 | ElemType::F16))
}

/// The map with fused loops, the contiguous side of the result, and that of the operands to transpose.
fn sides(m: &mut Module, map: Map, lanes: i64) -> Option<(Map, Side, Side)> {
    let owner = m.storage(map.buf);
    let own = map.value.any(&mut |e| matches!(e, Expr::Load { buf, .. } if m.storage(*buf) == owner));
    let ty = m.bufs[map.buf].ty;
    if own || !turns(ty, lanes64::is(ty)) {
        return None;
    }
    // Rows and columns of a plane are one dimension if both sides are contiguous across them.
    let mut map = joined(m, map);
    let (to, mut from) = sides_of(m, &map)?;
    if from.extent.as_const().is_some_and(|e| e < lanes)
        && let Some(joined) = joined_source(m, &mut map, &from, &to)
    {
        from = joined;
    }
    // A partial square suffices if it is larger than a few vectors that shuffles could permute.
    let enough = |s: &Side| s.extent.as_const().is_none_or(|e| e >= lanes.min(LEAST));
    (to.var != from.var && enough(&to) && enough(&from)).then_some((map, to, from))
}

/// The sides of a map whose loads are all contiguous along one or the other.
fn sides_of(m: &Module, map: &Map) -> Option<(Side, Side)> {
    let long = lanes64::is(m.bufs[map.buf].ty);
    let to = unit_stride_var(m, map.buf, &map.at, &map.loops)?;
    // The operands to transpose, and the loops that they are contiguous along.
    let mut turned: Vec<(Buf, &[Dim])> = vec![];
    let mut along: Vec<Option<Sym>> = vec![];
    let mut fits = true;
    map.value.each_load_or_conditional(&mut |buf, at, conditional| {
        if matches!(stride(m, buf, at, to), Some(0 | 1)) {
            return;
        }
        fits &= turns(m.bufs[buf].ty, long) && !conditional && m.linear(buf, at).linear_in(to).is_some();
        if !turned.contains(&(buf, at)) {
            turned.push((buf, at));
            along.push(map.loops.iter().find(|l| stride(m, buf, at, l.0) == Some(1)).map(|l| l.0));
        }
    });
    map.value.walk(&mut |e| {
        fits &= match e {
            Expr::With { .. } => is_lookup(m, e),
            Expr::Load { .. } | Expr::Index(_) => true,
            e => turns(m.type_of(e), long) || m.type_of(e) == ElemType::Bool,
        }
    });
    let from = (*along.first()?)?;
    let alike = along.iter().all(|s| *s == Some(from));
    if !fits || !alike || turned.len() > MAX_BLOCK_LOADS {
        return None;
    }
    let side = |v: Sym| map.loops.iter().find(|l| l.0 == v).map(|l| Side { var: v, extent: l.1 });
    Some((side(to)?, side(from)?))
}

/// Fuses adjacent loops if every access is contiguous across them.
fn joined(m: &mut Module, mut map: Map) -> Map {
    let mut i = 0;
    while i + 1 < map.loops.len() {
        let ((outer, oe), (inner, ie)) = (map.loops[i], map.loops[i + 1]);
        let v = m.syms.loop_var("i", Dim::constant(0), oe * ie);
        let put = |d: Dim| in_one(d, (outer, inner), ie, v);
        let moved = |at: &[Dim]| -> Vec<Dim> { at.iter().map(|d| put(*d)).collect() };
        let runs_on = |buf, at: &[Dim]| {
            !at.iter().any(|d| d.contains(outer) || d.contains(inner))
                || m.linear(buf, &moved(at)).linear_in(v).is_some()
        };
        let mut fits = runs_on(map.buf, &map.at);
        map.value.walk(&mut |e| match e {
            Expr::Load { buf, at } => fits &= runs_on(*buf, at),
            Expr::Index(d) => fits &= !d.contains(outer) && !d.contains(inner),
            _ => {}
        });
        if !fits {
            i += 1;
            continue;
        }
        map.at = moved(&map.at);
        map.value = map.value.map_dims(&mut |d| put(d));
        map.loops.splice(i..i + 2, [(v, oe * ie)]);
        i = i.saturating_sub(1);
    }
    map
}

/// Fuses rows shorter than a square with the loop around them, if all operands to transpose are contiguous
/// across them; the result need not be. The contiguous loop of the result is not fused, since it is the other
/// side.
fn joined_source(m: &mut Module, map: &mut Map, from: &Side, to: &Side) -> Option<Side> {
    let i = map.loops.iter().position(|l| l.0 == from.var).filter(|i| *i > 0)?;
    let ((outer, oe), (inner, ie)) = (map.loops[i - 1], map.loops[i]);
    if outer == to.var {
        return None;
    }
    let all = (oe * ie).as_const().filter(|n| *n <= UNROLLED)?;
    let mut fits = true;
    map.value.walk(&mut |e| match e {
        Expr::Load { buf, at } if at.iter().any(|d| d.contains(outer) || d.contains(inner)) => {
            fits &= stride(m, *buf, at, inner) == Some(1) && stride(m, *buf, at, outer) == ie.as_const();
        }
        Expr::Index(d) => fits &= !d.contains(outer) && !d.contains(inner),
        _ => {}
    });
    if !fits {
        return None;
    }
    let v = m.syms.loop_var("i", Dim::constant(0), Dim::constant(all));
    let put = |d: Dim| in_one(d, (outer, inner), ie, v);
    map.at = map.at.iter().map(|d| put(*d)).collect();
    map.value = map.value.clone().map_dims(&mut |d| put(d));
    map.loops.splice(i - 1..=i, [(v, Dim::constant(all))]);
    Some(Side { var: v, extent: Dim::constant(all) })
}

/// The first of the elements of a piece, and their number.
fn piece(number: Sym, length: i64) -> (Dim, Dim) {
    (Dim::sym(number) * length, length.into())
}

impl Blocks {
    /// The loops around the squares.
    fn outer(&self) -> Vec<(Sym, Dim)> {
        let sides = [self.to.var, self.from.var];
        self.map.loops.iter().copied().filter(|l| !sides.contains(&l.0)).collect()
    }
    /// Squares of a result that is not contiguous along the side of the operand, one by one.
    fn strided(&self, m: &mut Module, n: i64) -> Vec<Stmt> {
        let (to, from, lanes) = (&self.to, &self.from, self.lanes);
        let (c, squares) = to.pieces(m, "c", lanes);
        let column = to.first_of(m, c, lanes);
        let mut loops = self.outer();
        loops.push((c, squares));
        let rows = (0..(n + lanes - 1) / lanes).map(|b| Dim::constant((b * lanes).min((n - lanes).max(0))));
        let body = rows.flat_map(|row| self.square(m, (column, row), (lanes, lanes))).collect();
        let versions = vec![(self.at_least((lanes, lanes)), body)];
        let body = self.by_length(m, [(from, None), (to, Some(piece(c, lanes)))], versions);
        self.within.around(m, &loops, body)
    }
    /// All squares; if a side of run-time length is shorter than a square, partial squares.
    fn squares_of_all(&self, m: &mut Module) -> Vec<Stmt> {
        let (to, from, lanes) = (&self.to, &self.from, self.lanes);
        let mut loops = self.outer();
        let (rows, b) = self.rows_of_task(m, &mut loops);
        // The blocks of a few result vectors form one tile, and so does a run of them.
        let (columns, c) = match to.extent.as_const() {
            Some(e) if e <= 64 * lanes => (Columns::All, None),
            Some(_) => {
                let (c, count) = to.pieces(m, "c", lanes);
                loops.push((c, count));
                (Columns::One(to.first_of(m, c, lanes)), Some(piece(c, lanes)))
            }
            None => {
                let (c, count) = to.pieces(m, "c", RUN * lanes);
                loops.push((c, count));
                let run = piece(c, RUN * lanes);
                (Columns::Run(run.0), Some(run))
            }
        };
        let whole = self.in_rows(m, rows, |m, row| self.squares(m, (columns, row), (lanes, lanes)));
        let mut versions = vec![(self.at_least((lanes, lanes)), whole)];
        versions.extend(self.parts(m, (columns, rows)));
        let body = self.by_length(m, [(from, Some(b)), (to, c)], versions);
        self.within.around(m, &loops, body)
    }
    /// Adds the loop over tasks along the side that is read in order: the rows of a task, its first element,
    /// and the number of its elements.
    fn rows_of_task(&self, m: &mut Module, loops: &mut Vec<(Sym, Dim)>) -> (Rows, (Dim, Dim)) {
        let (from, lanes) = (&self.from, self.lanes);
        if from.extent.as_const().is_some() {
            let (b, count) = from.pieces(m, "b", lanes);
            loops.push((b, count));
            return (Rows::One(from.first_of(m, b, lanes)), piece(b, lanes));
        }
        let each = (Dim::constant(TASK) - self.to.extent.floor_div(WORTH)).max(2);
        let squares = from.extent.ceil_div(lanes);
        let tasks = squares.ceil_div(each);
        let b = m.syms.loop_var("b", Dim::constant(0), tasks);
        loops.push((b, tasks));
        let first = Dim::sym(b) * each;
        (Rows::Squares(first, squares.min(first + each)), (first * lanes, each * lanes))
    }
    /// What `square` emits for a row, for all rows.
    fn in_rows(
        &self,
        m: &mut Module,
        rows: Rows,
        square: impl FnOnce(&mut Module, Dim) -> Vec<Stmt>,
    ) -> Vec<Stmt> {
        match rows {
            Rows::One(row) => square(m, row),
            Rows::Squares(lo, hi) => {
                let var = m.syms.loop_var("b", lo, hi);
                let row = self.from.first_of(m, var, self.lanes);
                let body = square(m, row);
                vec![Stmt::For { kind: LoopKind::Seq, var, lo, hi, body }]
            }
        }
    }
    /// The first version whose run-time condition on the lengths holds; if none does, the elements of this
    /// iteration's squares one by one, clipped at the end of a side. Each side comes with the first element
    /// of an iteration and their number; a side without them is complete.
    fn by_length(
        &self,
        m: &mut Module,
        sides: [(&Side, Option<(Dim, Dim)>); 2],
        mut versions: Vec<(Expr, Vec<Stmt>)>,
    ) -> Vec<Stmt> {
        let (map, lanes) = (&self.map, self.lanes);
        if sides.iter().all(|(side, _)| side.extent.as_const().is_some()) {
            return versions.swap_remove(0).1;
        }
        let zero = Dim::constant(0);
        let mut short = vec![];
        for (side, around) in sides {
            let v = loop_like(m, side.var, zero, side.extent);
            let (lo, hi) = match around {
                Some((first, each)) => (first, side.extent.min(first + each)),
                None => (zero, side.extent),
            };
            m.syms.set_loop_range(v, lo, hi);
            short.push((side.var, v, lo, hi));
        }
        let put = |d: Dim| d.subst(&mut |s| short.iter().find(|x| x.0 == s).map(|x| Dim::sym(x.1)));
        let value = instance(m, &map.value, &|s| short.iter().find(|x| x.0 == s).map(|x| Dim::sym(x.1)));
        let store = Stmt::Store { buf: map.buf, at: map.at.iter().map(|d| put(*d)).collect(), value };
        let els = short.iter().rev().enumerate().fold(vec![store], |body, (i, (_, v, lo, hi))| {
            let kind = if i == 0 { LoopKind::Vec(lanes as u32) } else { LoopKind::Seq };
            vec![Stmt::For { kind, var: *v, lo: *lo, hi: *hi, body }]
        });
        versions.into_iter().rev().fold(els, |els, (cond, then)| vec![Stmt::If { cond, then, els }])
    }

    /// The condition that both sides have at least the given lengths, as far as these are run-time values.
    fn at_least(&self, (columns, rows): (i64, i64)) -> Expr {
        let unknown = |s: &Side| s.extent.as_const().is_none();
        let conditions = [(&self.from, rows), (&self.to, columns)].into_iter().filter(|x| unknown(x.0));
        conditions
            .map(|(s, n)| Expr::cmp_index(BinOp::Ge, s.extent, n))
            .reduce(|a, b| Expr::bin(BinOp::And, a, b))
            .unwrap_or_else(|| Expr::bool(true))
    }

    /// Partial squares for sides that may be shorter than a square at run time, the widest first, each with
    /// its condition; the last one of a side overlaps the one before it.
    fn parts(&self, m: &mut Module, (columns, rows): (Columns, Rows)) -> Vec<(Expr, Vec<Stmt>)> {
        let (to, from, lanes) = (&self.to, &self.from, self.lanes);
        let mut out = vec![];
        let unknown = |s: &Side| s.extent.as_const().is_none();
        let whole = |s: &Side| s.extent.as_const().is_none_or(|e| e >= lanes);
        let each = |m: &mut Module, s: &Side, n: i64| overlapping(m, (Dim::constant(0), s.extent), n);
        let parts = || parts(lanes);
        for n in parts().filter(|_| unknown(from) && whole(to)) {
            let (p, count, first) = each(m, from, n);
            let body = self.squares(m, (columns, first), (lanes, n));
            out.push((self.at_least((lanes, n)), vec![Stmt::seq(p, count, body)]));
        }
        for n in parts().filter(|_| unknown(to) && whole(from)) {
            let (p, count, first) = each(m, to, n);
            let body = self.in_rows(m, rows, |m, row| {
                vec![Stmt::seq(p, count, self.squares(m, (Columns::One(first), row), (n, lanes)))]
            });
            out.push((self.at_least((n, lanes)), body));
        }
        let both = unknown(to) && unknown(from) && m.optimize.may_grow();
        for n in parts().filter(|_| both) {
            let ((p, columns, column), (q, rows, row)) = (each(m, to, n), each(m, from, n));
            let body = self.squares(m, (Columns::One(column), row), (n, n));
            out.push((self.at_least((n, n)), vec![Stmt::seq(q, rows, vec![Stmt::seq(p, columns, body)])]));
        }
        out
    }

    /// Squares of at most `size` columns and rows, in the columns `at`.
    fn squares(&self, m: &mut Module, (at, row): (Columns, Dim), size: (i64, i64)) -> Vec<Stmt> {
        let (to, lanes) = (&self.to, self.lanes);
        let (first, whole, last) = match at {
            Columns::One(column) => return self.square(m, (column, row), size),
            Columns::All => (Dim::constant(0), to.extent.floor_div(lanes), (to.extent - lanes).max(0)),
            Columns::Run(first) => {
                let whole = (to.extent - first).floor_div(lanes).min(RUN);
                (first, whole, to.extent - lanes)
            }
        };
        let mut body = vec![];
        let whole = m.syms.simplify(whole);
        if whole.as_const() != Some(0) {
            let v = m.syms.loop_var("c", Dim::constant(0), whole);
            let inside = self.square(m, (first + Dim::sym(v) * lanes, row), size);
            body.push(Stmt::seq(v, whole, inside));
        }
        let left = m.syms.simplify(to.extent.modulo(lanes));
        if left.as_const() == Some(0) {
            return body;
        }
        let end = self.square(m, (m.syms.simplify(last), row), size);
        if left.as_const().is_some() {
            body.extend(end);
        } else {
            let here = Expr::cmp_index(BinOp::Lt, to.extent - first, RUN * lanes);
            let some = Expr::cmp_index(BinOp::Ne, left, 0);
            body.push(Stmt::If { cond: Expr::bin(BinOp::And, here, some), then: end, els: vec![] });
        }
        body
    }

    /// One square of at most the given columns and rows, beginning at (`column` of the result's vectors,
    /// `row`).
    fn square(&self, m: &mut Module, (column, row): (Dim, Dim), (columns, rows): (i64, i64)) -> Vec<Stmt> {
        let (map, to, from) = (&self.map, &self.to, &self.from);
        let zero = Dim::constant(0);
        let (rows, columns) = (Dim::constant(from.of_square(rows)), Dim::constant(to.of_square(columns)));
        let (u, l) = (m.syms.loop_var("u", zero, rows), m.syms.loop_var("l", zero, columns));
        let put = |s: Sym| match s {
            s if s == to.var => Some(column + l),
            s if s == from.var => Some(row + u),
            _ => None,
        };
        let value = instance(m, &map.value, &put);
        let at = map.at.iter().map(|d| d.subst(&mut |s| put(s))).collect();
        let vector = Stmt::vector(self.lanes, l, columns, vec![Stmt::Store { buf: map.buf, at, value }]);
        vec![Stmt::unroll(u, rows, vec![vector])]
    }
}
