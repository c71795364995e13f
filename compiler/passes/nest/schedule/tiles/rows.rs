//! The tiles of the rows of a panel: of equal height, of two heights that differ by one row, and the
//! remainder of a run-time number.

use super::choice::TALL_ROWS;
use super::even::Even;
use super::register::{Block, Cols, PanelPrefetch, prefetches_lines, tile};
use super::{Part, Tile, each_part};
use crate::nest::{BinOp, Expr, Module, Stmt};
use crate::passes::nest::analysis::form::Contraction;
use crate::passes::nest::analysis::shape::substitute;
use crate::sym::{Answer, Dim, Sym};

/// A range of rows of a block.
#[derive(Clone, Copy)]
pub(super) struct Rows {
    pub from: Dim,
    pub count: Dim,
    pub prefetch: Option<PanelPrefetch>,
    /// The tiles of the block, if rows are partitioned evenly.
    pub even: Option<Even>,
}

impl Rows {
    /// The first `count` rows, without prefetches.
    pub fn first(count: Dim) -> Rows {
        Rows { from: Dim::constant(0), count, prefetch: None, even: None }
    }
    /// The first of these rows.
    fn origin(&self) -> Dim {
        self.even.map_or(self.from, |e| e.row(self.from))
    }
}

/// A panel of a contraction in tiles.
#[derive(Clone, Copy)]
pub(super) struct Panel<'a> {
    pub p: &'a Contraction,
    pub t: &'a Tile,
    pub number: Dim,
    /// A symbol for the first of the rows, if statements of the contraction have it.
    pub origin: Option<Sym>,
}

impl Panel<'_> {
    /// The given rows of it, tile by tile.
    pub fn rows(self, m: &mut Module, rows: Rows, cols: Cols) -> Vec<Stmt> {
        let Panel { p, t, number, origin } = self;
        let several = matches!(cols, Cols::Some(r) if r > t.width());
        let body = each_part(m, t, number, cols, |m, part| {
            let tiles = RowTiles { p, t, part, prefetch: rows.prefetch }.emit(m, rows);
            if several { tile(tiles) } else { tiles }
        });
        let Some(origin) = origin else { return body };
        let first = rows.origin();
        substitute(m, body, &|s| (s == origin).then_some(first))
    }
}

/// The start of a run of tiles: the row, and the number of previous passes over the panel.
#[derive(Clone, Copy)]
struct Start {
    row: Dim,
    pass: Dim,
}

impl Start {
    /// The start after `tiles` tiles of one height.
    fn after(self, tiles: Dim, height: i64) -> Start {
        Start { row: self.row + tiles * height, pass: self.pass + tiles }
    }
}

/// The tiles of a part of a panel.
struct RowTiles<'a> {
    p: &'a Contraction,
    t: &'a Tile,
    part: Part,
    prefetch: Option<PanelPrefetch>,
}

impl RowTiles<'_> {
    fn emit(&self, m: &mut Module, rows: Rows) -> Vec<Stmt> {
        let zero = Dim::constant(0);
        let start = Start { row: rows.from, pass: zero };
        if self.t.m_row.is_none() {
            return self.one(m, Start { row: zero, ..start }, 1);
        }
        if let Some(count) = rows.count.as_const() {
            return self.counted(m, start, count);
        }
        match rows.even.or_else(|| Even::new(m, self.t, rows.count)) {
            Some(e) => {
                let then = self.even(m, start, e);
                if e.always {
                    return then;
                }
                let els = self.left(m, start, rows.count);
                vec![Stmt::If { cond: Expr::cmp_index(BinOp::Le, e.high, e.tiles), then, els }]
            }
            None => self.left(m, start, rows.count),
        }
    }
    /// One tile of `mr` rows.
    fn one(&self, m: &mut Module, start: Start, mr: i64) -> Vec<Stmt> {
        let &RowTiles { p, t, part, prefetch } = self;
        let prefetch = prefetch.filter(|_| prefetches_lines(p, t, mr));
        Block { p, t, part, row: start.row, mr }.emit(m, prefetch.map(|a| a.at(start.pass)))
    }
    /// A loop over `tiles` tiles of one height.
    fn equal(&self, m: &mut Module, start: Start, tiles: Dim, height: i64) -> Vec<Stmt> {
        let tiles = m.syms.simplify(tiles);
        if tiles.as_const() == Some(0) {
            return vec![];
        }
        let v = m.syms.loop_var("m", Dim::constant(0), tiles);
        let body = self.one(m, start.after(v.into(), height), height);
        vec![Stmt::seq(v, tiles, body)]
    }
    /// A known number of rows: tiles of equal height, or of two heights that differ by one row.
    fn counted(&self, m: &mut Module, start: Start, count: i64) -> Vec<Stmt> {
        let (tiles, each) = ((count + self.t.mr - 1) / self.t.mr, self.t.together);
        if tiles == 0 {
            return vec![];
        }
        let (low, high) = (count / each / tiles * each, count / each % tiles);
        let mut out = vec![];
        for (start, n, height) in
            [(start, high, low + each), (start.after(high.into(), low + each), tiles - high, low)]
        {
            out.extend(match n {
                1 => self.one(m, start, height),
                n => self.equal(m, start, n.into(), height),
            });
        }
        out
    }
    /// Tiles of two heights, the higher ones first.
    fn even(&self, m: &mut Module, start: Start, e: Even) -> Vec<Stmt> {
        let zero = Dim::constant(0);
        let start = Start { row: e.row(start.row), ..start };
        let high = m.syms.simplify((e.high - e.first).max(zero).min(e.here));
        let mut out = self.equal(m, start, high, e.low + 1);
        out.extend(self.equal(m, start.after(high, e.low + 1), e.here - high, e.low));
        out
    }
    /// Tiles of the maximum height, and the remainder.
    fn left(&self, m: &mut Module, start: Start, count: Dim) -> Vec<Stmt> {
        let most = self.t.mr;
        let (mut out, mut start, mut left, mut mr) = (vec![], start, count, most);
        for (tiles, height) in heights(m, count, most) {
            out.extend(self.equal(m, start, tiles, height));
            (start, left, mr) = (start.after(tiles, height), left - tiles * height, height);
        }
        let left = m.syms.simplify(if mr == most { count.modulo(mr) } else { left });
        match left.as_const() {
            Some(0) => {}
            Some(r) => {
                let rest = self.one(m, start, r);
                out.extend(if out.is_empty() { rest } else { tile(rest) });
            }
            None => {
                let most = m.syms.range(left).hi.map_or(mr, |most| mr.min(most + 1));
                let parts = few_rows(most, common_step(m, count, mr));
                out.extend(in_parts(m, parts, (start.row, left), |m, row, rows| {
                    self.one(m, Start { row: m.syms.simplify(row), ..start }, rows)
                }));
            }
        }
        out
    }
}

/// Rows or adjacent results that remain of a run-time number and are computed together.
pub(crate) struct Rest {
    /// Their number.
    rows: i64,
    /// They are the last of the remainder, not the first.
    at_end: bool,
    /// The remainders for which they are computed.
    lefts: Vec<i64>,
}

impl Rest {
    /// All of a remainder at once.
    pub fn all(rows: i64) -> Rest {
        Rest { rows, at_end: false, lefts: vec![rows] }
    }
    /// The statements, guarded by the remainder being one of these.
    fn only_if(&self, left: Dim, then: Vec<Stmt>) -> Option<Stmt> {
        let is = |n: &i64| Expr::cmp_index(BinOp::Eq, left, *n);
        let cond = self.lefts.iter().map(is).reduce(|a, b| Expr::bin(BinOp::Or, a, b))?;
        Some(Stmt::If { cond, then, els: vec![] })
    }
}

/// The parts that cover every remainder of a division by `each`, in multiples of `step`, at most eight: one
/// or two parts per remainder, since each passes over the other operand once. Few distinct heights cover all
/// remainders. One row beside others is avoided: it has too few sums to hide the latency of their additions.
pub(crate) fn rests(step: i64, each: i64) -> Vec<Rest> {
    let first = |left: i64| match left {
        1 | 3 => 0,
        5 => 2,
        7 => 4,
        even => even.min(6),
    };
    let parts = [(6, false), (4, false), (2, false), (3, true), (1, true)];
    let part = |(rows, at_end): (i64, bool)| {
        let here = |left: &i64| rows == if at_end { left - first(*left) } else { first(*left) };
        Rest { rows, at_end, lefts: (1..step).filter(|n| n % each == 0).filter(here).collect() }
    };
    parts.into_iter().map(part).filter(|p| !p.lefts.is_empty()).collect()
}

/// The parts for each remainder of rows: a single one, since each part reads the whole panel, which a model
/// that processes a few rows at a time waits for.
fn few_rows(step: i64, each: i64) -> Vec<Rest> {
    let left = (1..step).rev().filter(|n| n % each == 0);
    left.map(Rest::all).collect()
}

/// The remainder of a run-time number of rows in these parts: `left` rows from `first` on. `part` computes a
/// known number of rows from one of them on.
pub(crate) fn in_parts(
    m: &mut Module,
    parts: Vec<Rest>,
    (first, left): (Dim, Dim),
    mut part: impl FnMut(&mut Module, Dim, i64) -> Vec<Stmt>,
) -> Vec<Stmt> {
    let mut one = |p: Rest| {
        let row = if p.at_end { first + left - p.rows } else { first };
        let then = part(m, row, p.rows);
        p.only_if(left, then)
    };
    parts.into_iter().filter_map(&mut one).collect()
}

/// A divisor of both the number of rows and the tile height, and so of the remainder.
pub(super) fn common_step(m: &Module, count: Dim, mr: i64) -> i64 {
    let divides = |n: &i64| mr % n == 0 && m.syms.divides(Dim::constant(*n), count) == Answer::Yes;
    [8, 4, 2].into_iter().find(divides).unwrap_or(1)
}

/// The number of tiles of each height for a run-time number of rows. Tiles of twelve have more work per
/// loaded element, but would leave up to eleven rows: some of them are replaced by tiles of eight so that at
/// most three remain.
fn heights(m: &Module, count: Dim, mr: i64) -> Vec<(Dim, i64)> {
    if mr != TALL_ROWS {
        return vec![(m.syms.simplify(count.floor_div(mr)), mr)];
    }
    let eights = m.syms.simplify((count.floor_div(4) * 2).modulo(3).min(count.floor_div(8)));
    vec![(m.syms.simplify((count - eights * 8).floor_div(TALL_ROWS)), TALL_ROWS), (eights, 8)]
}
