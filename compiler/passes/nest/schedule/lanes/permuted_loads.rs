//! Maps whose lanes read elements at known, non-contiguous distances: every second element, each element
//! twice, a reversed row, two alternating rows. The elements of one vector are within a few vectors of
//! memory, and shuffles permute them. The permutation is computed separately for each vector; in long rows,
//! one piece of several vectors is repeated, except at the edges. If the length of a row is a run-time value,
//! positions are clamped in the first and the last pieces: their shuffles use indices computed in lanes
//! (`codegen/tile/translate/windows.rs`).

use super::body::{once, renamed};
use super::periodic_rows::Periodic;
use super::rows_abreast::{self, Indices, Rows, RowsInside};
use super::{Vectors, fused, indexed};
use crate::nest::form::{Stored, stored};
use crate::nest::{BinOp, Buf, Expr, LoopKind, Module, Optimize, Stmt, visit};
use crate::passes::nest::analysis::lanes64;
use crate::passes::nest::analysis::shape::{ParNest, fresh_regs, in_one, loop_like, parallel};
use crate::passes::nest::analysis::strides::stride;
use crate::sym::clamps::Inside;
use crate::sym::{Dim, Sym, SymTable};

/// Maximum vectors of memory that the lanes of one vector read.
const VECTORS: i64 = 4;
/// Maximum whole vectors of a row, or of a piece of a longer one, that are distinguished individually.
const UNROLLED: i64 = 8;

/// The least common multiple of one to `UNROLLED`.
const MULTIPLE: i64 = 840;

/// Rows of a task, if only run time knows the number of rows: a multiple of the lanes of a vector.
const ROWS: i64 = 512;

/// True for distances between lanes that shuffles support.
pub(crate) fn is_near(step: i64) -> bool {
    (-VECTORS..=VECTORS).contains(&step)
}

/// The sequence of the vectors of a row.
pub(super) enum Pieces {
    /// Pieces of the given number of vectors from the second vector of a row on, and the remaining vectors.
    Known { vectors: i64, count: i64, rest: i64 },
    /// Pieces of the given number of vectors, the last one partial, in a row of run-time length.
    Windows { vectors: i64 },
}

impl Pieces {
    /// For a row of the given number of whole vectors; a short row consists of remaining vectors only.
    fn new(whole: i64, vectors: i64) -> Pieces {
        // An edge may affect the last vectors.
        let count = if whole > UNROLLED { (whole - 3).max(0) / vectors } else { 0 };
        let before = i64::from(count > 0);
        Pieces::Known { vectors, count, rest: whole - before - count * vectors }
    }
    /// True if the lanes of each vector inside a piece are at the same distances in all pieces.
    fn is_periodic(&self, m: &Module, linear: &[Dim], var: Sym, lanes: i64) -> bool {
        let Pieces::Known { vectors, count, .. } = *self else { return false };
        let (syms, c) = with_piece(m, count);
        let is_one_plane = |first: Dim, d: &Dim| {
            let at = d.subst(&mut |s| (s == var).then(|| first + var));
            syms.planes(at, var, 0..lanes).len() == 1
        };
        count == 0 || firsts(c, vectors, 1, lanes).all(|first| linear.iter().all(|d| is_one_plane(first, d)))
    }
    /// For a row of unknown length, if few run-time values determine the positions in all vectors.
    fn windows(m: &Module, linear: &[Dim], var: Sym, lanes: i64) -> Option<Pieces> {
        let (mut syms, piece) = with_piece(m, 1 << 24);
        let c = piece.as_sym()?;
        let l = syms.loop_var("l", Dim::constant(0), Dim::constant(lanes));
        let fits = |first: Dim, linear: Dim| {
            let at = syms.simplify(linear.subst(&mut |s| (s == var).then(|| first + l)));
            match at.window(l, lanes) {
                Some((rest, _)) => rest.linear_in(c).is_some(),
                None => {
                    let step = at.linear_in(l).and_then(|(step, _)| step.as_const());
                    let lane = |i: i64| at.subst(&mut |s| (s == l).then(|| Dim::constant(i)));
                    let moves = || (0..lanes).all(|i| lane(i).linear_in(c).is_some());
                    matches!(step, Some(0 | 1)) && at.linear_in(c).is_some()
                        || step.is_none()
                            && moves()
                            && is_near_from(&syms, at, (l, Dim::constant(0)), lanes, lanes)
                }
            }
        };
        (1..=UNROLLED)
            .find(|n| firsts(piece, *n, 0, lanes).all(|first| linear.iter().all(|d| fits(first, *d))))
            .map(|vectors| Pieces::Windows { vectors })
    }
}

/// The symbols, and the number of one of `count` pieces.
fn with_piece(m: &Module, count: i64) -> (SymTable, Dim) {
    let mut syms = m.syms.clone();
    let c = syms.loop_var("c", Dim::constant(0), Dim::constant(count));
    (syms, c.into())
}

/// The first elements of the vectors of piece `c`; the first piece begins with vector `before` of the row.
fn firsts(c: Dim, vectors: i64, before: i64, lanes: i64) -> impl Iterator<Item = Dim> {
    (0..vectors).map(move |v| (c * vectors + before + v) * lanes)
}

/// True if the lanes from `first` on read at known distances within a few vectors.
pub(super) fn is_near_from(
    syms: &SymTable,
    linear: Dim,
    (var, first): (Sym, Dim),
    used: i64,
    lanes: i64,
) -> bool {
    vectors_from(syms, linear, (var, first), used, lanes).is_some()
}

/// The vectors of memory within which the lanes from `first` on read at known distances, if these are few.
pub(crate) fn vectors_from(
    syms: &SymTable,
    linear: Dim,
    (var, first): (Sym, Dim),
    used: i64,
    lanes: i64,
) -> Option<i64> {
    let from = linear.subst(&mut |s| (s == var).then(|| first + var));
    let planes = syms.planes(from, var, 0..used);
    // Each plane is loaded into separate vectors.
    let vectors = |plane: Vec<(i64, i64)>| {
        let mut all: Vec<i64> = plane.into_iter().map(|p| p.1).collect();
        all.sort_unstable();
        let mut parts: Vec<i64> = vec![];
        for p in all {
            if parts.last().is_none_or(|first| p - first >= lanes) {
                parts.push(p);
            }
        }
        parts.len() as i64
    };
    if planes.len() as i64 > VECTORS {
        return None;
    }
    Some(planes.into_iter().map(vectors).sum()).filter(|n| *n <= VECTORS)
}

/// The number of vectors of a piece that makes all `linear` positions known along a row; `None` if there is
/// none. Of several, the one whose vectors read the fewest vectors of memory, and then the smallest.
fn pieces(m: &Module, linear: &[Dim], (var, extent): (Sym, Dim), lanes: i64) -> Option<Pieces> {
    let Some(extent) = extent.as_const() else { return Pieces::windows(m, linear, var, lanes) };
    let whole = extent / lanes;
    let reads = |syms: &SymTable, first: Dim, used: i64| -> Option<i64> {
        linear.iter().map(|l| vectors_from(syms, *l, (var, first), used, lanes)).sum()
    };
    let fits = |first: i64, used: i64| reads(&m.syms, first.into(), used).is_some();
    // What `MULTIPLE` vectors inside pieces read; rows without pieces are all alike.
    let inside = |p: &Pieces| -> Option<i64> {
        let Pieces::Known { vectors, count, .. } = *p else { return None };
        let tail = extent % lanes;
        let mut edges = (0..whole - count * vectors).map(|c| if c == 0 { 0 } else { c + count * vectors });
        if !edges.all(|c| fits(c * lanes, lanes)) || tail != 0 && !fits(whole * lanes, tail) {
            return None;
        }
        if count == 0 {
            return Some(0);
        }
        let (syms, c) = with_piece(m, count);
        let each = firsts(c, vectors, 1, lanes).map(|first| reads(&syms, first, lanes));
        each.sum::<Option<i64>>().map(|n| n * MULTIPLE / vectors)
    };
    let found = (1..=UNROLLED).map(|n| Pieces::new(whole, n)).filter_map(|p| Some((inside(&p)?, p)));
    found.min_by_key(|f| f.0).map(|f| f.1)
}

/// True if the lanes of vectors along `var` read at known distances, and the elements of each vector are
/// within few vectors of memory.
pub(super) fn is_known(m: &Module, buf: Buf, at: &[Dim], along: (Sym, Dim), vectors: Vectors) -> bool {
    fits(m, buf, along.1, vectors) && pieces(m, &[m.linear(buf, at)], along, vectors.lanes).is_some()
}

/// True if rows of this length can be read by shuffles: run-time masks may exist for words only.
fn fits(m: &Module, buf: Buf, extent: Dim, vectors: Vectors) -> bool {
    extent.as_const().is_some() || vectors.caps.short_masks || m.bufs[buf].ty.bits() == 32
}

/// The vectors of a map over a row, if some positions or indices are not linear and all of them are known;
/// each vector is then separate.
pub(super) fn along(
    m: &Module,
    body: &[Stmt],
    (var, extent): (Sym, Dim),
    vectors: Vectors,
) -> Option<Pieces> {
    let (mut found, mut fits) = (vec![], true);
    visit::walk_exprs(body, &mut |e| match e {
        Expr::Load { buf, at } if stride(m, *buf, at, var).is_none() => {
            let position = m.linear(*buf, at);
            if position.contains(var) {
                found.push(position);
                fits &= self::fits(m, *buf, extent, vectors);
            }
        }
        Expr::Index(d) if extent.as_const().is_none() && d.contains(var) && d.linear_in(var).is_none() => {
            found.push(*d);
        }
        _ => {}
    });
    if found.is_empty() || !fits {
        return None;
    }
    pieces(m, &found, (var, extent), vectors.lanes)
}

impl Pieces {
    /// Emits the map over all rows; `loops`: those around them, and the indices between them and the row.
    /// Rows side by side become loops inside the row.
    pub fn in_rows(
        &self,
        m: &mut Module,
        row: Row,
        extent: Dim,
        (loops, outside): (&mut Vec<(Sym, Dim)>, Indices),
    ) -> Vec<Stmt> {
        if let Some(rows) = Periodic::of(m, &row, extent, (loops.as_slice(), outside)) {
            let (blocks, body) = rows.apply(m, self, row, extent);
            loops.pop();
            loops.push(blocks);
            // A block is a task: pieces of several would be too large.
            return parallel(m, &std::mem::take(loops), body);
        }
        let Pieces::Windows { .. } = self else { return self.apply(m, &row, extent) };
        let place = (row.var, extent);
        let RowsInside { body, rows, most } =
            rows_abreast::inside_vectors(m, row.body.to_vec(), place, (loops, outside));
        let row = Row { body: &body, ..row };
        let then = self.apply(m, &Row { abreast: &rows, ..row }, extent);
        let Some(most) = most else { return then };
        let each = self.apply(m, &row, extent);
        let els = rows.iter().rev().fold(each, |body, (var, hi, _)| vec![Stmt::seq(*var, *hi, body)]);
        vec![Stmt::If { cond: Expr::cmp_index(BinOp::Le, extent, most), then, els }]
    }
    /// Emits the map over rows of this extent.
    pub fn apply(&self, m: &mut Module, row: &Row, extent: Dim) -> Vec<Stmt> {
        let lanes = row.lanes;
        let mut out = vec![];
        match *self {
            Pieces::Known { vectors, count, rest } => {
                let extent = extent.as_const().unwrap_or_default();
                let whole = extent / lanes;
                if count > 0 {
                    out.extend(row.vector(m, Dim::constant(0), lanes.into()));
                    let c = m.syms.loop_var("c", Dim::constant(0), Dim::constant(count));
                    out.push(Stmt::seq(c, count, row.piece(m, c.into(), vectors, 1)));
                }
                for c in whole - rest..whole {
                    out.extend(row.vector(m, Dim::constant(c * lanes), lanes.into()));
                }
                if extent % lanes != 0 {
                    out.extend(row.vector(m, Dim::constant(whole * lanes), (extent % lanes).into()));
                }
            }
            Pieces::Windows { vectors } => {
                let step = vectors * lanes;
                let count = extent.floor_div(step);
                let rest = m.syms.simplify(extent.modulo(step));
                out.extend(row.windows(m, vectors, count));
                // Vectors beyond the known end of a row do not exist.
                let most = m.syms.range(rest).hi;
                for v in (0..vectors).filter(|v| most.is_none_or(|n| n > v * lanes)) {
                    let n = if vectors == 1 { rest } else { (rest - v * lanes).max(0).min(lanes) };
                    let vector = row.vector(m, (count * vectors + v) * lanes, n);
                    // Rows side by side share the mask of their last vectors.
                    match row.abreast.is_empty() {
                        true => out.extend(vector),
                        false => out.push(once(m, n.min(1), vector)),
                    }
                }
            }
        }
        out
    }
}

/// A map over a row.
#[derive(Clone, Copy)]
pub(super) struct Row<'a> {
    /// The statements.
    pub body: &'a [Stmt],
    /// The variable of the row.
    pub var: Sym,
    /// Elements per vector.
    pub lanes: i64,
    /// Loops over the rows that are computed side by side: each vector of all of them before the next one, so
    /// that they share positions and elements.
    pub abreast: &'a Rows,
}

impl Row<'_> {
    /// The `n` elements from `first` on, in all rows that are side by side.
    fn vector(&self, m: &mut Module, first: Dim, n: Dim) -> Vec<Stmt> {
        let zero = Dim::constant(0);
        let mut body = vec![self.one(m, first, n)];
        for (row, rows, kind) in self.abreast.iter().rev() {
            if *kind == LoopKind::Unroll
                && let Some(copies) = unclamped_copies(m, &body, *row, *rows)
            {
                body = copies;
                continue;
            }
            let var = loop_like(m, *row, zero, *rows);
            let inside = body.into_iter().map(|s| s.subst(&|s| (s == *row).then(|| Dim::sym(var)))).collect();
            body = vec![Stmt::For { kind: *kind, var, lo: zero, hi: *rows, body: inside }];
        }
        body
    }
    /// The same for one row.
    fn one(&self, m: &mut Module, first: Dim, n: Dim) -> Stmt {
        let (body, l) = renamed(m, self.body, self.var, Dim::constant(0), n);
        let put = |m: &Module, d: Dim| m.syms.simplify(d.subst(&mut |s| (s == l).then(|| first + l)));
        let body = body.into_iter().map(|s| s.map_dims(&mut |d| put(m, d))).collect();
        Stmt::vector(self.lanes, l, n, body)
    }
    /// The vectors of piece `c`, from vector `before` of the row on.
    fn piece(&self, m: &mut Module, c: Dim, vectors: i64, before: i64) -> Vec<Stmt> {
        let firsts = firsts(c, vectors, before, self.lanes);
        firsts.flat_map(|first| self.vector(m, first, self.lanes.into())).collect()
    }
    /// `count` pieces of a row of run-time length. Only the first and the last ones read clamped positions:
    /// in all others, the shuffles are known.
    fn windows(&self, m: &mut Module, vectors: i64, count: Dim) -> Vec<Stmt> {
        let zero = Dim::constant(0);
        let c = m.syms.loop_var("c", zero, count);
        let clamped = self.piece(m, c.into(), vectors, 0);
        let mut inside = Inside { first: zero, end: count };
        let plain: Vec<Stmt> = clamped.iter().map(|s| unclamped(s, c, &mut inside)).collect();
        // Quotient and remainder of a position are linear together only.
        let same = plain == clamped || scattered(m, &plain, c) > scattered(m, &clamped, c);
        if m.optimize == Optimize::Size || same {
            return vec![Stmt::seq(c, count, clamped)];
        }
        let first = m.syms.simplify(inside.first.min(count));
        let last = m.syms.simplify(inside.end.min(count));
        let end = m.syms.simplify(last.max(first));
        let v = m.syms.loop_var("c", first, end);
        let plain = plain.into_iter().map(|s| s.subst(&|s| (s == c).then(|| Dim::sym(v)))).collect();
        let inner = Stmt::For { kind: LoopKind::Seq, var: v, lo: first, hi: end, body: plain };
        // A single piece at an edge has positions that do not change in loops around it.
        let few = [(zero, first), (last, count)].map(|(lo, hi)| m.syms.is_nonneg(lo + 1 - hi));
        let before = self.edge(m, vectors, (zero, first), few[0].then_some(zero));
        vec![before, inner, self.edge(m, vectors, (end, count), few[1].then_some(count - 1))]
    }
    /// The pieces `lo..hi`, which read clamped positions; `only`: there is at most this one.
    fn edge(&self, m: &mut Module, vectors: i64, (lo, hi): (Dim, Dim), only: Option<Dim>) -> Stmt {
        let v = m.syms.loop_var("c", lo, hi);
        let body = self.piece(m, v.into(), vectors, 0);
        let Some(only) = only else { return Stmt::For { kind: LoopKind::Seq, var: v, lo, hi, body } };
        let body = body.into_iter().map(|s| s.subst(&|s| (s == v).then_some(only))).collect();
        once(m, hi - lo, body)
    }
}

/// The number of accesses that are not linear along a loop.
fn scattered(m: &Module, body: &[Stmt], var: Sym) -> usize {
    let mut n = 0;
    let mut count = |buf: Buf, at: &[Dim]| n += usize::from(m.linear(buf, at).linear_in(var).is_none());
    visit::each_load(body, &mut count);
    visit::each_store(body, &mut count);
    n
}

/// The iterations of an unrolled loop, if positions of some of them need no clamps: those then share elements
/// that they read at the same positions.
fn unclamped_copies(m: &mut Module, body: &[Stmt], row: Sym, rows: Dim) -> Option<Vec<Stmt>> {
    let mut clamped = false;
    visit::each_load(body, &mut |_, at| clamped |= at.iter().any(|d| rows_abreast::is_clamped(*d, row)));
    if !clamped {
        return None;
    }
    let at = |i: i64| -> Vec<Stmt> {
        body.iter().cloned().map(|s| s.subst(&|s| (s == row).then(|| Dim::constant(i)))).collect()
    };
    let copies: Vec<Vec<Stmt>> = (0..rows.as_const()?).map(at).collect();
    let simple = |s: &Stmt| s.clone().map_dims(&mut |d| m.syms.simplify(d));
    let simplified: Vec<Vec<Stmt>> = copies.iter().map(|c| c.iter().map(simple).collect()).collect();
    if simplified == copies {
        return None;
    }
    Some(simplified.into_iter().flat_map(|c| fresh_regs(m, &c)).collect())
}

/// A vector of piece `c` without clamps; see [`Dim::unclamped`].
fn unclamped(vector: &Stmt, c: Sym, inside: &mut Inside) -> Stmt {
    let Stmt::For { kind, var, lo, hi, body } = vector else { return vector.clone() };
    if !matches!(kind, LoopKind::Vec(_)) {
        let body = body.iter().map(|s| unclamped(s, c, inside)).collect();
        return Stmt::For { kind: *kind, var: *var, lo: *lo, hi: *hi, body };
    }
    let (var, lanes) = (*var, hi.as_const().unwrap_or_default());
    vector.clone().map_dims(&mut |d| d.unclamped(c, (var, lanes), inside))
}

/// Maximum elements of rows that are joined: threads share what has more.
const JOINED: i64 = 4096;

/// Fuses a short innermost loop with the next outer one if the result is contiguous across them and shuffles,
/// or offsets in lanes, still support the loads. Loops around that one across which all accesses are
/// contiguous are fused, too: if it may have few iterations at run time, or, if there are few elements, where
/// the same shuffles serve all of them.
pub(super) fn interleave(m: &mut Module, nest: &mut ParNest, var: Sym, vectors: Vectors) -> Option<Sym> {
    let mut rows = Interleaved::new(m, nest, (var, vectors.lanes), JOINED)?;
    let mut found = rows.in_one_loop(m, vectors);
    if found.is_none() && rows.repeats {
        rows = Interleaved::new(m, nest, (var, vectors.lanes), 0)?;
        found = rows.in_one_loop(m, vectors);
    }
    *nest = rows.in_tasks(m, found?);
    nest.loops.last().map(|l| l.0)
}

/// A short innermost loop and the one across which its rows are contiguous.
struct Interleaved {
    nest: ParNest,
    outer: (Sym, Dim),
    inner: (Sym, i64),
    /// Loops of known lengths were fused with the outer one.
    repeats: bool,
}

impl Interleaved {
    /// The loops, if there are such; those of known lengths are fused up to `most` elements.
    fn new(m: &mut Module, nest: &ParNest, (var, lanes): (Sym, i64), most: i64) -> Option<Interleaved> {
        let Stored { buf, at, .. } = stored(&nest.body)?;
        let inner = nest.loops.iter().find(|l| l.0 == var)?.1.as_const().filter(|e| *e < lanes)?;
        let mut i = nest.loops.iter().position(|l| stride(m, buf, at, l.0) == Some(inner))?;
        let (mut nest, mut repeats) = (nest.clone(), false);
        while i > 0 {
            let (around, extent) = (nest.loops[i - 1].1, nest.loops[i].1);
            let few = (around * extent * inner).as_const().is_some_and(|n| n <= most);
            if !few && extent.as_const().is_some() || fused(m, &mut nest, i - 1).is_none() {
                break;
            }
            repeats |= few;
            i -= 1;
        }
        Some(Interleaved { outer: nest.loops[i], inner: (var, inner), nest, repeats })
    }
    /// The nest with both as its innermost loop, if its loads are supported.
    fn in_one_loop(&self, m: &mut Module, vectors: Vectors) -> Option<ParNest> {
        let ((outer, extent), (var, inner)) = (self.outer, self.inner);
        let Stored { before: [], buf, at, value } = stored(&self.nest.body)? else { return None };
        let all = extent * inner;
        let v = m.syms.loop_var("i", Dim::constant(0), all);
        let put = |d: Dim| in_one(d, (outer, var), inner.into(), v);
        let moved = |at: &[Dim]| -> Vec<Dim> { at.iter().map(|d| put(*d)).collect() };
        let moves = |d: &Dim| d.contains(outer) || d.contains(var);
        let mut fits = stride(m, buf, &moved(at), v) == Some(1);
        let mut linear = vec![];
        value.walk(&mut |e| match e {
            Expr::Load { buf, at } if at.iter().any(moves) => {
                linear.push(m.linear(*buf, &moved(at)));
                fits &= self::fits(m, *buf, all, vectors);
            }
            // In pieces of a row of run-time length, lanes have the same numbers in a short loop.
            Expr::Index(d) if all.as_const().is_none() && *d == Dim::sym(var) && inner <= VECTORS => {
                linear.push(m.syms.simplify(put(*d)));
            }
            Expr::With { value, extent, .. } => {
                // An index that lanes share stays one.
                let shared = lanes64::depends(value, outer) && !lanes64::depends(value, var);
                fits &= !shared && !moves(extent);
            }
            Expr::Index(d) => fits &= !moves(d),
            _ => {}
        });
        if !fits || !self.has_loads(m, &linear, (v, all), vectors) {
            return None;
        }
        let mut nest = self.nest.clone();
        nest.body = nest.body.into_iter().map(|s| s.map_dims(&mut |d| put(d))).collect();
        nest.loops.retain(|l| l.0 != outer && l.0 != var);
        nest.loops.push((v, all));
        Some(nest)
    }
    /// True if vectors along the loop can read at `linear` positions.
    fn has_loads(&self, m: &Module, linear: &[Dim], (v, all): (Sym, Dim), vectors: Vectors) -> bool {
        if !vectors.caps.shuffles.are_known() {
            // Tasks of a single row of unknown length begin anywhere in it.
            let begins = all.as_const().is_some() || self.nest.loops.len() > 2;
            return begins && linear.iter().all(|d| indexed::is_bounded(m, *d, v));
        }
        pieces(m, linear, (v, all), vectors.lanes)
            .is_some_and(|p| !self.repeats || p.is_periodic(m, linear, v, vectors.lanes))
    }
    /// The nest of [`Interleaved::in_one_loop`], where threads share a single row of unknown length.
    fn in_tasks(&self, m: &mut Module, mut nest: ParNest) -> ParNest {
        let &[(v, all)] = nest.loops.as_slice() else { return nest };
        if all.as_const().is_some() {
            return nest;
        }
        let (part, parts) = (ROWS * self.inner.1, self.outer.1.ceil_div(ROWS));
        let t = m.syms.loop_var("t", Dim::constant(0), parts);
        let first = Dim::sym(t) * part;
        let own = (all - first).min(part);
        let i = m.syms.loop_var("i", Dim::constant(0), own);
        let put = |d: Dim| d.subst(&mut |s| (s == v).then(|| first + i));
        nest.body = nest.body.into_iter().map(|s| s.map_dims(&mut |d| put(d))).collect();
        nest.loops = vec![(t, parts), (i, own)];
        nest
    }
}
