//! Rows side by side: maps over rows of run-time length whose lanes read at positions, or at indices from
//! memory, that do not depend on the row. Loops over several rows are inside each vector, so that positions
//! and masks are computed once for all of them (`codegen/tile/builder/hoist.rs`). Loops in which all accesses
//! are linear are preferred to inner ones: those over channels to those over the rows of a scaled image.

use super::fuse_where;
use crate::nest::{Expr, LoopKind, Module, Stmt};
use crate::passes::nest::analysis::lanes64;
use crate::passes::nest::analysis::shape::{ParNest, loop_like};
use crate::sym::{Atom, Dim, Sym, View};

/// Maximum rows that follow each other in memory.
const ROWS: i64 = 32;
/// Maximum rows of different images. The sets of caches have few ways, and images may be a power of two
/// apart.
const APART: i64 = 16;
/// The same for rows that read several others at indices: 16 rows took 1.4 times as long as 8 for images of
/// 32 x 32 elements.
const INDEXED: i64 = 8;
/// Maximum elements of a row that is moved in steps of a vector. A long row needs no help, as few of its
/// vectors are at an edge, and memory prefers whole rows.
const MOVED: i64 = 64;
/// Minimum rows of a block that divides their number.
const LEAST: i64 = 4;
/// Maximum iterations of a loop that are written out.
const WRITTEN_OUT: i64 = 4;
/// Maximum loads of an image for a vector of all rows that are written out.
const LOADS: i64 = 16;
/// Maximum rows that these read: each has up to two pointers.
const READ: i64 = 6;

/// Loops over rows from the outermost one, each with its number of iterations.
pub(super) type Rows = Vec<(Sym, Dim, LoopKind)>;

/// Indices between loops and a row: the symbol, its value, and its bound.
pub(super) type Indices<'a> = &'a [(Sym, Expr, Dim)];

/// The rows that are computed side by side.
#[derive(Default)]
struct Abreast {
    /// A loop in which all accesses are linear, by its place: it is divided into blocks.
    block: Option<usize>,
    /// Iterations of that loop that are written out.
    together: i64,
    /// The innermost loop, if it has few iterations, all of which are written out: the rows of an image that
    /// read the same rows of a smaller one.
    short: Option<i64>,
    /// A result is a function of one element.
    moves: bool,
}

/// A map whose rows have moved into its vectors.
pub(super) struct RowsInside {
    /// The body.
    pub body: Vec<Stmt>,
    /// Loops over the rows.
    pub rows: Rows,
    /// Longer rows are computed one by one.
    pub most: Option<i64>,
}

/// What a map reads and stores.
#[derive(Default)]
pub(super) struct Accesses<'a> {
    /// Positions of a result and of constants.
    pub fixed: Vec<Dim>,
    /// Positions of other loads.
    pub loads: Vec<Dim>,
    /// Expressions in which it is no address.
    others: Vec<Dim>,
    /// Values of indices.
    indices: Vec<&'a Expr>,
}

impl<'a> Accesses<'a> {
    pub fn new(m: &Module, body: &'a [Stmt], outside: Indices<'a>) -> Option<Accesses<'a>> {
        let [Stmt::Store { buf, at, value }] = body else { return None };
        let mut all = Accesses { fixed: vec![m.linear(*buf, at)], ..Accesses::default() };
        all.indices.extend(outside.iter().map(|o| &o.1));
        all.others.extend(outside.iter().map(|o| o.2));
        let mut inside = vec![];
        value.walk(&mut |e| match e {
            Expr::Load { buf, at } if m.is_constant(*buf) => all.fixed.push(m.linear(*buf, at)),
            Expr::Load { buf, at } => all.loads.push(m.linear(*buf, at)),
            Expr::Index(d) => all.others.push(*d),
            Expr::With { extent, value, .. } => {
                all.others.push(*extent);
                inside.push(&**value);
            }
            _ => {}
        });
        all.indices.extend(inside);
        Some(all)
    }
    /// True if a loop variable is part of addresses only.
    pub fn addresses_only(&self, s: Sym) -> bool {
        !self.others.iter().any(|d| d.contains(s)) && !self.indices.iter().any(|e| lanes64::depends(e, s))
    }
    /// True for a copy whose lanes read at known distances: rows share what they read, and nothing else.
    pub fn copies_at_known_distances(&self, var: Sym) -> bool {
        self.loads.len() == 1 && self.indices.is_empty() && !self.loads.iter().any(|d| is_clamped(*d, var))
    }
    fn are_linear(&self, s: Sym) -> bool {
        self.fixed.iter().chain(&self.loads).all(|d| d.linear_in(s).is_some())
    }
    /// The number of different rows along `var` that loads read in the first `copies` iterations of a loop.
    fn rows_read(&self, var: Sym, inner: Option<Sym>, copies: i64) -> i64 {
        let of_row = |d: Dim| {
            let View::Sum { terms, .. } = d.view() else { return Dim::constant(0) };
            let terms = terms.iter().map(|t| Dim::from_terms(vec![t.clone()], 0));
            Dim::sum(terms.filter(|t| !t.contains(var)))
        };
        let mut rows: Vec<Dim> = vec![];
        for (d, i) in self.loads.iter().flat_map(|d| (0..copies).map(move |i| (*d, i))) {
            let d = of_row(d.subst(&mut |s| (copies > 1 && inner == Some(s)).then(|| i.into())));
            if !rows.contains(&d) {
                rows.push(d);
            }
        }
        rows.len().max(1) as i64
    }
}

/// True for a position with a minimum or a maximum of what depends on a variable: the edge of an image.
pub(super) fn is_clamped(d: Dim, var: Sym) -> bool {
    let View::Sum { terms, .. } = d.view() else { return false };
    let of_var = |v: &[Dim]| v.iter().any(|d| d.contains(var));
    terms.iter().flat_map(|t| &t.1).any(|a| matches!(a, Atom::Min(v) | Atom::Max(v) if of_var(v)))
}

impl Abreast {
    fn new(
        m: &Module,
        body: &[Stmt],
        (var, extent): (Sym, Dim),
        (loops, outside): (&[(Sym, Dim)], Indices),
    ) -> Abreast {
        let Some(all) = Accesses::new(m, body, outside) else { return Abreast::default() };
        let moves = all.loads.len() == 1;
        let known = all.copies_at_known_distances(var);
        let loads = all.loads.len().max(1) as i64;
        let may_move = |s: Sym| !extent.contains(s) && all.addresses_only(s);
        let few = |l: &(Sym, Dim)| {
            let n = l.1.as_const().filter(|n| (2..=WRITTEN_OUT).contains(n))?;
            (loads * n <= LOADS && may_move(l.0)).then_some(n)
        };
        let short = loops.last().filter(|_| loops.len() > 1).and_then(few);
        let linear = |l: &(Sym, Dim)| {
            let several = l.1.as_const().is_none_or(|n| n > 1 && loops.len() > 1);
            several && may_move(l.0) && all.are_linear(l.0)
        };
        let copies = short.unwrap_or(1);
        let read = all.rows_read(var, loops.last().map(|l| l.0), copies);
        let outer = &loops[..loops.len() - usize::from(short.is_some())];
        // Without indices, rows share positions only, which are not worth pointers in memory.
        let fits = !all.indices.is_empty() || read <= READ;
        let block = if known || !fits { None } else { outer.iter().rposition(linear) };
        let most = (LOADS / (copies * loads)).min(READ / read);
        let together = if m.optimize.may_grow() { most.clamp(1, WRITTEN_OUT) } else { 1 };
        Abreast { block, together, short, moves: moves && !known }
    }
}

/// Moves loops around a row of a map into its vectors: its body, and these loops.
pub(super) fn inside_vectors(
    m: &mut Module,
    mut body: Vec<Stmt>,
    (var, extent): (Sym, Dim),
    (loops, outside): (&mut Vec<(Sym, Dim)>, Indices),
) -> RowsInside {
    let known = Accesses::new(m, &body, outside).is_some_and(|all| all.copies_at_known_distances(var));
    if outside.is_empty() && !known {
        body = fuse_all(m, body, loops);
    }
    let Abreast { block, together, short, moves } = Abreast::new(m, &body, (var, extent), (loops, outside));
    let inner = short.and_then(|n| Some((loops.pop()?.0, n)));
    let mut rows: Rows = vec![];
    if let Some(i) = block {
        let (r, place);
        r = loops[i].0;
        let most = if i + 1 == loops.len() { ROWS } else { APART };
        (rows, place) = in_blocks(m, loops, i, (most, together));
        body = body.into_iter().map(|s| s.subst(&|s| (s == r).then_some(place))).collect();
    }
    rows.extend(inner.map(|(r, n)| (r, n.into(), LoopKind::Unroll)));
    let most = (moves && !rows.is_empty() && m.optimize.may_grow()).then_some(MOVED);
    RowsInside { body, rows, most }
}

/// The vectors of a map over a row of `extent` elements inside `outside`, in several rows that share these
/// indices, if there are such rows.
pub(super) fn inside_indices(
    m: &mut Module,
    body: Vec<Stmt>,
    (var, extent, lanes): (Sym, Dim, i64),
    (loops, outside): (&mut [(Sym, Dim)], Indices),
) -> Vec<Stmt> {
    let shared = !outside.is_empty() && extent.as_const().is_none();
    let block = if shared { Abreast::new(m, &body, (var, extent), (loops, outside)).block } else { None };
    let vectors = Stmt::vector(lanes, var, extent, body);
    let Some(i) = block else { return vec![vectors] };
    let r = loops[i].0;
    let (rows, place) = in_blocks(m, loops, i, (INDEXED, 1));
    let vectors = vectors.subst(&|s| (s == r).then_some(place));
    let around = |body: Stmt, (var, hi, kind): (Sym, Dim, LoopKind)| Stmt::For {
        kind,
        var,
        lo: Dim::constant(0),
        hi,
        body: vec![body],
    };
    vec![rows.into_iter().rev().fold(vectors, around)]
}

/// True if the lanes of a row of run-time length read at indices from memory that several rows share.
pub(super) fn share_indices(m: &Module, nest: &ParNest, row: (Sym, Dim), outside: Indices) -> bool {
    let ([Stmt::Store { value, .. }], None) = (nest.body.as_slice(), row.1.as_const()) else { return false };
    let mut any = false;
    value.walk(&mut |e| any |= matches!(e, Expr::With { value, .. } if lanes64::depends(value, row.0)));
    let others: Vec<(Sym, Dim)> = nest.loops.iter().copied().filter(|l| l.0 != row.0).collect();
    any && Abreast::new(m, &nest.body, row, (&others, outside)).block.is_some()
}

/// Divides loop `i` around rows into blocks of at most `most`: the loops over the rows of one, `together` of
/// which are written out if they divide it, and the row that they are at.
fn in_blocks(
    m: &mut Module,
    loops: &mut [(Sym, Dim)],
    i: usize,
    (most, together): (i64, i64),
) -> (Rows, Dim) {
    let (r, count) = loops[i];
    let most = rows_of_block(count, most);
    let (zero, blocks) = (Dim::constant(0), count.ceil_div(most));
    let b = m.syms.loop_var("b", zero, blocks);
    loops[i] = (b, blocks);
    let first = Dim::sym(b) * most;
    let whole = count.modulo(most).as_const() == Some(0);
    let rows = if whole { Dim::constant(most) } else { (count - first).min(most) };
    let together = (1..=together).rev().find(|n| rows.modulo(*n).as_const() == Some(0)).unwrap_or(1);
    let trips = rows.floor_div(together);
    let own = loop_like(m, r, zero, trips);
    let mut row = first + Dim::sym(own) * together;
    let mut inside = vec![(own, trips, LoopKind::Seq)];
    if together > 1 {
        let copy = loop_like(m, r, zero, together.into());
        inside.push((copy, together.into(), LoopKind::Unroll));
        row = row + copy;
    }
    (inside, row)
}

/// The rows of a block of `count` rows, at most `most`: a number that divides them, if possible.
fn rows_of_block(count: Dim, most: i64) -> i64 {
    let divides = |n: &i64| count.modulo(*n).as_const() == Some(0);
    match count.as_const().filter(|n| *n <= most) {
        Some(n) => n,
        None => (LEAST..=most).rev().find(divides).unwrap_or(most),
    }
}

/// Fuses loops around rows where every access is contiguous across them; the body of the rows in the
/// remaining loops.
fn fuse_all(m: &mut Module, body: Vec<Stmt>, loops: &mut Vec<(Sym, Dim)>) -> Vec<Stmt> {
    let mut nest = ParNest { loops: std::mem::take(loops), body };
    fuse_where(m, &mut nest, &|_| true);
    *loops = nest.loops;
    nest.body
}
