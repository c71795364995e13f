//! Register tiles of contractions, and the loops around them.
//!
//! A tile has mr rows of nv vectors as accumulators. Remaining rows form smaller tiles; remaining columns use
//! zero-padded panels and partial vectors. Around a tile are the loops over rows of a cache block, over
//! panels, and over blocks; the parallel loops are fused into one.

pub(crate) mod byte_dots;
mod choice;
mod deep;
pub(crate) mod dequantize;
mod even;
mod finish;
mod loops;
mod register;
mod rows;
pub(crate) mod stream;

use crate::nest::schedule;
use crate::nest::{BinOp, Buf, Expr, Module, Place, Stmt, patterns};
use crate::passes::nest::analysis::form::Contraction;
use crate::passes::nest::analysis::shape::{parallel, substitute};
use crate::passes::nest::schedule::contract::Packed;
use crate::sym::{Dim, Sym};
pub(crate) use choice::{
    MOST_ROWS, Plane, Tile, Wanted, chooses_by_rows, is_shallow, multiplies_halves, panel, rows_of_panel,
    sums_halves,
};
pub(crate) use deep::{Deep, is_deep};
use even::Even;
pub(crate) use even::is_even;
use loops::Order;
pub(crate) use loops::{Loops, describe, describe_tile};
pub(super) use register::unroll;
use register::{Cols, PanelPrefetch};
use rows::{Panel, Rows};
pub(crate) use rows::{Rest, in_parts, rests};

/// The source of B for a tile.
pub(crate) enum Panels {
    /// Panels `[batch that B depends on ..][panel][reduction ..][columns]`, padded with zeros.
    Packed(Packed),
    /// B in place; its rows are contiguous along the columns, in whole vectors.
    InPlace,
    /// One panel at a time in scratch of a task, `[part][reduction][columns]`. `of_b`: made of B in memory,
    /// not of weights of few bits.
    Private { buf: Buf, part: Sym, of_b: bool },
}

impl Packed {
    /// The subscripts of a tile's panels before the panel number.
    fn outer_at(&self, t: &Tile) -> impl Iterator<Item = Dim> {
        let own = t.batch.iter().filter(|x| self.own.contains(&x.0)).map(|x| Dim::sym(x.0));
        self.outer.iter().copied().chain(own)
    }
}

/// The properties of B's source that schedules query.
pub(crate) trait Source {
    /// True for panels that exceed the caches of one core.
    fn large(&self) -> bool;
    /// For constant panels: their bytes, and the elements per cache line.
    fn constant(&self, m: &Module) -> Option<(u64, i64)>;
    /// The description of panels of `columns` columns in a schedule.
    fn describe(&self, m: &Module, columns: i64) -> schedule::Packing;
}

impl Source for Panels {
    fn large(&self) -> bool {
        matches!(self, Panels::Packed(p) if p.large)
    }
    fn constant(&self, m: &Module) -> Option<(u64, i64)> {
        let Panels::Packed(Packed { buf, line, .. }) = self else { return None };
        let Place::Const(c) = &m.bufs[*buf].place else { return None };
        Some((c.byte_len(), *line))
    }
    fn describe(&self, m: &Module, columns: i64) -> schedule::Packing {
        match (self, self.constant(m)) {
            (Panels::InPlace, _) => schedule::Packing::InPlace,
            (Panels::Private { .. }, _) => schedule::Packing::Task { columns },
            (_, Some((bytes, _))) => schedule::Packing::Constant { columns, bytes },
            (_, None) => schedule::Packing::Kernel { columns },
        }
    }
}

/// Columns of a tile: a range within part `sub` of a panel.
#[derive(Clone, Copy)]
struct Part {
    panel: Dim,
    sub: Dim,
    cols: Cols,
}

impl Part {
    /// The first column.
    fn first(&self, t: &Tile) -> Dim {
        self.panel * t.nr + self.sub * t.width()
    }
    /// Vectors of a tile.
    fn vectors(&self, t: &Tile) -> i64 {
        match self.cols {
            Cols::Some(r) => (r + t.lanes - 1) / t.lanes,
            Cols::Full => t.nv,
            Cols::Guarded(n) => n,
        }
    }
}

/// Emits a contraction in tiles with the given loops; `rows`: the row loops outside the tile's own.
pub(crate) fn emit(m: &mut Module, p: &Contraction, t: &Tile, l: &Loops, rows: &[(Sym, Dim)]) -> Vec<Stmt> {
    let zero = Dim::constant(0);
    let panels = t.n_extent.ceil_div(t.nr);
    let turn = m.syms.loop_var("p", zero, panels);
    let number = if t.backwards { panels - 1 - turn } else { turn.into() };
    let blocks = Blocks::new(m, t, l);
    let panel = Panel { p, t, number, origin: None };
    let body = each_panel(m, t, number, |m, cols| blocks.emit(m, panel, cols));
    let (block, turn) = ((blocks.var, blocks.count), (turn, panels));
    let mut loops = t.batch.clone();
    match l.order {
        Order::Panels => loops.extend(rows.iter().copied().chain([block, turn])),
        Order::Rows => loops.extend([turn, block].into_iter().chain(rows.iter().copied())),
        Order::RowsOfOne => {
            loops.extend([turn, block]);
            let inner = rows.iter().rev().fold(body, |body, (var, hi)| vec![Stmt::seq(*var, *hi, body)]);
            return parallel(m, &loops, inner);
        }
    }
    parallel(m, &loops, body)
}

/// The first `count` rows of panel `number`, on one thread.
pub(crate) fn of_panel(m: &mut Module, p: &Contraction, t: &Tile, number: Dim, count: Dim) -> Vec<Stmt> {
    each_panel(m, t, number, |m, cols| Panel { p, t, number, origin: None }.rows(m, Rows::first(count), cols))
}

/// The rows, divided into blocks.
struct Blocks<'a> {
    l: &'a Loops,
    /// All rows.
    extent: Dim,
    /// The partition of all rows into tiles of similar height, if chosen.
    even: Option<Even>,
    /// The loop over blocks.
    var: Sym,
    count: Dim,
}

impl Blocks<'_> {
    fn new<'a>(m: &mut Module, t: &Tile, l: &'a Loops) -> Blocks<'a> {
        let extent = t.rows();
        let even = Even::new(m, t, extent).filter(|e| e.always);
        let count = match (l.block, even) {
            (None, _) => Dim::constant(1),
            (Some(h), Some(e)) => m.syms.simplify(e.tiles.ceil_div(e.of_block(h))),
            (Some(h), None) => extent.ceil_div(h),
        };
        let var = m.syms.loop_var("b", Dim::constant(0), count);
        Blocks { l, extent, even, var, count }
    }
    /// Maximum rows of a block.
    fn most(&self, m: &Module) -> Dim {
        match (self.l.block, self.even) {
            (None, _) => m.syms.range(self.extent).hi.map_or(self.extent, Dim::constant),
            (Some(h), Some(e)) => Dim::constant(e.of_block(h) * (e.low + 1)),
            (Some(h), None) => Dim::constant(h),
        }
    }
    /// The prefetches of tiles in a block of `h` rows.
    fn prefetch(&self, t: &Tile, h: i64) -> Option<PanelPrefetch> {
        let passes = (h + t.mr - 1) / t.mr;
        self.l.prefetch.map(|a| match self.l.order {
            Order::Panels => a,
            Order::Rows | Order::RowsOfOne => a.at(Dim::sym(self.var) * passes),
        })
    }
    /// The rows of one block, for one panel.
    fn emit(&self, m: &mut Module, panel: Panel, cols: Cols) -> Vec<Stmt> {
        let (extent, zero) = (self.extent, Dim::constant(0));
        let Some(h) = self.l.block else {
            let rows = Rows { prefetch: self.l.prefetch, even: self.even, ..Rows::first(extent) };
            return panel.rows(m, rows, cols);
        };
        let from = Dim::sym(self.var) * h;
        let prefetch = self.prefetch(panel.t, h);
        let rows = |from, count| Rows { from, count, prefetch, even: None };
        match extent.as_const() {
            Some(e) if e % h == 0 => panel.rows(m, rows(from, h.into()), cols),
            Some(e) => {
                let then = panel.rows(m, rows(from, h.into()), cols);
                let els = panel.rows(m, rows((e / h * h).into(), (e % h).into()), cols);
                vec![Stmt::If { cond: Expr::cmp_index(BinOp::Lt, self.var, e / h), then, els }]
            }
            None => {
                let rows = match self.even.map(|e| e.block(m, self.var, h)) {
                    Some(e) => Rows { even: Some(e), ..rows(zero, extent) },
                    None => rows(from, (extent - from).min(Dim::constant(h))),
                };
                panel.rows(m, rows, cols)
            }
        }
    }
}

/// `columns` applied to a whole panel, and to the last one if it is partial.
fn each_panel(
    m: &mut Module,
    t: &Tile,
    panel: Dim,
    columns: impl Fn(&mut Module, Cols) -> Vec<Stmt>,
) -> Vec<Stmt> {
    let full = t.n_extent.floor_div(t.nr);
    match (t.n_extent.modulo(t.nr).as_const(), full.as_const()) {
        (Some(0), _) => columns(m, Cols::Full),
        (Some(r), Some(0)) => columns(m, Cols::Some(r)),
        (r, _) => {
            let then = columns(m, Cols::Full);
            let els = columns(m, r.map_or(Cols::Guarded(t.nv), Cols::Some));
            vec![Stmt::If { cond: Expr::cmp_index(BinOp::Lt, panel, full), then, els }]
        }
    }
}

/// The columns of the first `panels` panels, of the first `count` rows, on one thread.
pub(crate) fn of_rows(m: &mut Module, p: &Contraction, t: &Tile, (count, panels): (Dim, Dim)) -> Vec<Stmt> {
    let (zero, whole) = (Dim::constant(0), t.n_extent.floor_div(t.nr));
    let all = panels == t.n_extent.ceil_div(t.nr);
    let full = if all { whole } else { m.syms.simplify(whole.min(panels)) };
    let number = m.syms.loop_var("p", zero, full);
    let rows = Rows::first(count);
    let at = |number: Dim| Panel { p, t, number, origin: None };
    let mut out = vec![];
    // Without a last panel, the loop over panels is one function of machine code.
    if full.as_const() != Some(0) {
        let body = at(number.into()).rows(m, rows, Cols::Full);
        match full.as_const() {
            Some(1) => out = substitute(m, body, &|s| (s == number).then_some(zero)),
            _ => out.push(each_full_panel(m, (number, full), body)),
        }
    }
    let last = match t.n_extent.modulo(t.nr).as_const() {
        Some(0) => return out,
        Some(r) => at(whole).rows(m, rows, Cols::Some(r)),
        None => at(whole).rows(m, rows, Cols::Guarded(t.nv)),
    };
    match t.n_extent.modulo(t.nr).as_const() {
        Some(_) if all => out.extend(last),
        _ => out.push(Stmt::If { cond: Expr::cmp_index(BinOp::Lt, whole, panels), then: last, els: vec![] }),
    }
    out
}

/// The loop over full panels. A branch on the number of rows is outside of it, so that each arm is one
/// function of machine code.
fn each_full_panel(m: &mut Module, (number, full): (Sym, Dim), mut body: Vec<Stmt>) -> Stmt {
    let of = |cond: &Expr| patterns::margin(cond).is_some_and(|d| !d.contains(number));
    match body.as_mut_slice() {
        [Stmt::If { cond, then, els }] if of(cond) && !els.is_empty() => {
            let own = m.syms.loop_var("p", Dim::constant(0), full);
            let other = substitute(m, std::mem::take(els), &|s| (s == number).then_some(own.into()));
            let then = vec![Stmt::seq(number, full, std::mem::take(then))];
            Stmt::If { cond: cond.clone(), then, els: vec![Stmt::seq(own, full, other)] }
        }
        _ => Stmt::seq(number, full, body),
    }
}

/// The parts of a panel, each as wide as a tile.
fn each_part(
    m: &mut Module,
    t: &Tile,
    panel: Dim,
    cols: Cols,
    mut each: impl FnMut(&mut Module, Part) -> Vec<Stmt>,
) -> Vec<Stmt> {
    let (width, parts) = (t.width(), t.nr / t.width());
    if let Cols::Some(r) = cols {
        let whole = |s: i64| Part { panel, sub: s.into(), cols: Cols::Full };
        let mut out: Vec<Stmt> = (0..r / width).flat_map(|s| each(m, whole(s))).collect();
        if r % width > 0 {
            out.extend(each(m, Part { cols: Cols::Some(r % width), ..whole(r / width) }));
        }
        return out;
    }
    let left = t.n_extent - panel * t.nr;
    let guarded = matches!(cols, Cols::Guarded(_));
    if parts == 1 {
        let whole = Part { panel, sub: Dim::constant(0), cols };
        let all = each(m, whole);
        if !guarded || t.nv == 1 || !m.optimize.may_grow() {
            return all;
        }
        // The columns may fit one vector.
        let then = each(m, Part { cols: Cols::Guarded(1), ..whole });
        return vec![Stmt::If { cond: Expr::cmp_index(BinOp::Le, left, t.lanes), then, els: all }];
    }
    let count = if guarded { m.syms.simplify(left.ceil_div(width).min(parts)) } else { parts.into() };
    let s = m.syms.loop_var("s", Dim::constant(0), count);
    let body = each(m, Part { panel, sub: s.into(), cols });
    vec![Stmt::seq(s, count, body)]
}
