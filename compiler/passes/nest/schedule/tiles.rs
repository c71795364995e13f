//! Register tiles of contractions, and the loops around them.
//!
//! A tile holds mr rows of nv vectors as accumulators; rest rows get smaller tiles, rest columns zero-padded
//! panels and partial vectors. Around it run the rows of a block that stays in the cache, the panels, the
//! blocks; what is parallel is one loop over all of them.

pub(crate) mod byte_dots;
pub(crate) mod dequantize;
mod even;
mod finish;
mod loops;
mod register;

use crate::nest::schedule;
use crate::nest::{BinOp, Buf, Expr, LoopKind, Math, Module, Place, Stmt};
use crate::passes::nest::analysis::borders::Borders;
use crate::passes::nest::analysis::form::{Contraction, ProductKind};
use crate::passes::nest::analysis::machine::THREADS;
use crate::passes::nest::analysis::shape::{parallel, substitute};
use crate::passes::nest::schedule::clip::{self, Clip};
use crate::passes::nest::schedule::contract::Packed;
use crate::sym::{Answer, Dim, Sym};
use crate::target::{Caps, Facts, Tiles};
use crate::tensor::ElemType;
use even::Even;
pub(crate) use even::is_even;
use loops::Order;
pub(crate) use loops::{Loops, describe, describe_tile};
pub(super) use register::unroll;
use register::{Cols, PanelPrefetch, block, tile};

/// Rows of a tile at most where rows lie a multiple of 4 KiB apart: they meet in one set of the first-level
/// cache, which has 8 or 12 ways. Also where only run time knows how many rows there are, and tiles of twelve
/// do not fit: what is left is less, and nothing if the number is a multiple of eight.
const CROWDED_ROWS: i64 = 8;
/// Rows of a tile where only run time knows how many there are, see `Even` and `heights`.
const TALL_ROWS: i64 = 12;
/// Rows of a tile whose sums are of f16, two vectors of a row to a register: in f32 they have no registers
/// for all, which is what they are where steps are left over.
const HALF_ROWS: i64 = 8;
/// Steps of a sum from which on what is left of them is little.
const LONG_HALVES: i64 = 32;
/// Elements of a row that one load brings where sums are of f16, a step for each.
const HALVES_OF_REGISTER: i64 = 8;
/// Rows of a tile at most: beyond, pointers get scarce.
pub(crate) const MOST_ROWS: i64 = 14;

/// Where a tile reads B.
pub(crate) enum Panels {
    /// Panels `[batch that B depends on ..][panel][reduction ..][columns]`, padded with zeros.
    Packed(Packed),
    /// B itself, whose rows run along the columns in whole vectors.
    InPlace,
    /// One panel at a time in scratch of a task, `[part][reduction][columns]`; the symbol names the part.
    Private(Buf, Sym),
}

/// What tiles read B from, as far as schedules ask.
pub(crate) trait Source {
    /// True for panels that no cache of one core holds.
    fn large(&self) -> bool;
    /// Of panels of a constant: their bytes, and elements of a line of memory.
    fn constant(&self, m: &Module) -> Option<(u64, i64)>;
    /// What a schedule says of panels of so many columns.
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
            (Panels::Private(..), _) => schedule::Packing::Task { columns },
            (_, Some((bytes, _))) => schedule::Packing::Constant { columns, bytes },
            (_, None) => schedule::Packing::Kernel { columns },
        }
    }
}

/// How a contraction is tiled; its panels, or how they are to be made.
pub(crate) struct Tile<P = Panels> {
    m_row: Option<(Sym, Dim)>,
    /// Rows that stand in one tile: those of a tile are a multiple of it.
    together: i64,
    n: Sym,
    n_extent: Dim,
    /// Columns of a panel, a multiple of the longest vectors.
    nr: i64,
    panels: P,
    batch: Vec<(Sym, Dim)>,
    lanes: i64,
    /// Vector registers of the level.
    registers: i64,
    /// Vectors of a tile; a panel is one or several tiles wide.
    nv: i64,
    /// Rows of a tile.
    mr: i64,
    /// Panels, and the iterations of the sum, in the reverse order.
    backwards: bool,
    /// Loops of the sum that run over a part of their iterations.
    clips: Vec<Clip>,
    /// Sums are of f16 ([`sums_halves`]).
    halves: bool,
    /// What vectors of the level can do.
    caps: Caps,
}

/// Columns of a panel: as little padding as possible, tiles that keep the multipliers busy. The model is a
/// core with 32 registers of `unit` lanes and two multipliers and loads a cycle; narrower levels cut panels
/// into several tiles.
pub(crate) fn panel(rows: i64, n: Dim, unit: i64) -> i64 {
    let Some(n) = n.as_const() else { return 2 * unit };
    let vectors = (n + unit - 1) / unit;
    if rows == 1 {
        return unit * row_panel(vectors);
    }
    let cost = |w: i64| {
        let most = if rows > MOST_KNOWN { rows_of(32, w).min(CROWDED_ROWS) } else { rows_of(32, w) };
        let r = rows.clamp(1, MOST_KNOWN);
        let tiles = (r + most - 1) / most;
        let (low, high) = (r / tiles, r % tiles);
        // Cycles of a step, in sixteenths: multiplications, loads, and the latency of four; what lines of B
        // take on their way from the second level.
        let step = |mr: i64, w: i64| (mr * w).max(mr + w).max(8) * 8 + 2 * w;
        // The last panel may have fewer vectors.
        let panel = |w: i64| if w == 0 { 0 } else { high * step(low + 1, w) + (tiles - high) * step(low, w) };
        panel(w) * (vectors / w) + panel(vectors % w)
    };
    let widths: &[i64] = &[2, 4, 3, 5, 6, 1];
    // Of equals the one with the least padding.
    unit * widths.iter().copied().min_by_key(|w| (cost(*w), (vectors + w - 1) / w * w)).unwrap_or(2)
}

/// Vectors of a panel for a single row, whose weights are read once: no more than there are, and panels for
/// several threads. A step loads a panel's vectors and one element.
fn row_panel(vectors: i64) -> i64 {
    let cost = |w: i64| {
        let panels = (vectors + w - 1) / w;
        (w + 1) * (panels + (panels + THREADS - 1) / THREADS * THREADS)
    };
    (1..=8).rev().min_by_key(|w| cost(*w)).unwrap_or(1)
}

/// Rows beyond which a number is taken to be unknown.
const MOST_KNOWN: i64 = 4096;

/// True if a level may add up products of f16 as f16.
pub(crate) fn multiplies_halves(m: &Module, p: &Contraction, caps: Caps) -> bool {
    let half = |b: Buf| m.bufs[b].ty == ElemType::F16;
    let allowed = caps.halves && m.math == Math::Fast && p.product == ProductKind::Fma;
    allowed && p.with.is_none() && half(p.a.0) && half(p.b.0)
}

/// True if all of a contraction's sums are of f16, but for a few steps at the end.
pub(crate) fn sums_halves(m: &Module, p: &Contraction, caps: Caps) -> bool {
    let long = |d: &(Sym, Dim)| d.1.as_const().is_some_and(|n| n >= LONG_HALVES);
    multiplies_halves(m, p, caps) && p.reduction.last().is_some_and(long)
}

/// Rows of a tile of `nv` vectors: accumulators, a row of B and one of A fit the registers.
fn rows_of(registers: i64, nv: i64) -> i64 {
    ((registers - 1 - nv) / nv).clamp(1, MOST_ROWS)
}

/// The same where a register holds several elements of a row of A: one for each row, and two of B, which come
/// in pairs.
fn rows_by_lane(registers: i64, nv: i64) -> i64 {
    ((registers - 2) / (nv + 1)).clamp(1, MOST_ROWS)
}

/// Vectors and rows of a tile for panels of `nr` columns: as many multiplications for each load as registers
/// allow.
fn shape(nr: i64, most: i64, facts: Facts) -> (i64, i64) {
    let (lanes, registers) = (i64::from(facts.lanes), i64::from(facts.registers));
    let vectors = nr / lanes;
    let mut best = (1, 1, 0.0);
    for nv in (1..=vectors.min(8)).filter(|v| vectors % v == 0) {
        let (mr, loads) = if facts.caps.by_scalar {
            // Two columns, one of which is loaded; elements need no vector register, and their loads little.
            let mr = ((registers - 2) / nv).clamp(1, MOST_ROWS).min(most.max(1));
            (mr, mr as f64 / 8.0 + nv as f64)
        } else if facts.caps.by_lane {
            let mr = rows_by_lane(registers, nv).min(most.max(1));
            (mr, mr as f64 / lanes as f64 + nv as f64 / 2.0)
        } else {
            let mr = rows_of(registers, nv).min(most.max(1));
            (mr, (mr + nv) as f64)
        };
        let score = (mr * nv) as f64 / loads;
        if mr * nv + nv < registers && score > best.2 {
            best = (nv, mr, score);
        }
    }
    (best.0, best.1)
}

/// Rows of a tile for panels of `nr` columns, where there are `most` rows.
pub(crate) fn rows_of_panel(nr: i64, most: i64, facts: Facts) -> i64 {
    shape(nr, most, facts).1
}

/// The next multiple.
fn multiple(n: i64, of: i64) -> i64 {
    (n + of - 1) / of * of
}

/// Products of a step from which on two steps make an iteration: they keep the multipliers busy while the
/// loop's own instructions run.
const MANY_PRODUCTS: i64 = 20;
/// The same where products and sums are instructions of their own.
const FEW_PRODUCTS: i64 = 4;
/// Steps of a sum that are written out by fours nevertheless: fewer iterations end as branches foresee.
const SHORT_SUM: i64 = 128;

impl<P> Tile<P> {
    /// Steps of the sum that an iteration of a tile of so many rows and vectors writes out.
    fn steps(&self, p: &Contraction, mr: i64, nv: i64) -> i64 {
        let most = p.product.steps();
        if self.halves
            && p.reduction.last().is_some_and(|d| d.1.modulo(HALVES_OF_REGISTER).as_const() == Some(0))
        {
            return HALVES_OF_REGISTER;
        }
        let short = p.reduction.last().and_then(|d| d.1.as_const()).is_some_and(|n| n <= SHORT_SUM);
        match self.caps.tiles {
            // Other instructions than those of loops take longer.
            Tiles::None if mr * nv >= FEW_PRODUCTS => most.min(2),
            // Elements of a row are loaded as vectors, those of all steps at once.
            _ if self.caps.by_lane => most,
            _ if mr * nv < MANY_PRODUCTS || short => most,
            _ => most.min(2),
        }
    }
}

impl<P: Source> Tile<P> {
    /// Chooses the tile for a level. `together`: rows that one tile has; `most`: rows at most; `crowded`:
    /// they lie a multiple of 4 KiB apart; `halves`: sums are of f16 ([`sums_halves`]).
    #[allow(clippy::too_many_arguments)]
    pub fn new(
        (m_row, together): (Option<(Sym, Dim)>, i64),
        most: i64,
        n: Sym,
        n_extent: Dim,
        nr: i64,
        panels: P,
        batch: Vec<(Sym, Dim)>,
        crowded: bool,
        halves: bool,
        facts: Facts,
    ) -> Tile<P> {
        let (lanes, registers) = (i64::from(facts.lanes), i64::from(facts.registers));
        let (nv, mut mr) = shape(nr, most, facts);
        if halves && nv % 2 == 0 {
            mr = rows_by_lane(registers, nv / 2).min(HALF_ROWS).min(most.max(1));
        }
        if crowded {
            mr = mr.min(CROWDED_ROWS);
        } else if m_row.is_some_and(|r| r.1.as_const().is_none()) {
            mr = if mr >= TALL_ROWS { TALL_ROWS } else { mr.min(CROWDED_ROWS) };
        }
        mr = (mr / together * together).max(together);
        if let Some(r) = m_row.and_then(|r| r.1.as_const()).filter(|r| *r > 0) {
            // Tiles of equal height.
            let tiles = (r + mr - 1) / mr;
            mr = multiple((r + tiles - 1) / tiles, together);
        }
        let (backwards, clips, caps) = (false, vec![], facts.caps);
        Tile {
            m_row,
            together,
            n,
            n_extent,
            nr,
            panels,
            batch,
            lanes,
            registers,
            nv,
            mr,
            backwards,
            clips,
            halves,
            caps,
        }
    }
    /// All rows in one tile where B comes from memory and few rows read it: its elements then arrive while they
    /// are used, all the time. `alone`: no loop over other rows is outside.
    pub fn read_once(self, alone: bool) -> Tile<P> {
        let all = self.m_row.and_then(|r| r.1.as_const()).unwrap_or(0);
        let few = alone && all > self.mr && all <= 16 && all + 2 <= self.registers;
        if few && self.panels.large() && !self.caps.by_lane && all % self.together == 0 {
            return Tile { nv: 1, mr: all, ..self };
        }
        self
    }
    /// The same without the steps that read borders of zeros only, see `clip`.
    pub fn clipped(self, m: &Module, p: &Contraction, borders: &Borders) -> Tile<P> {
        Tile { clips: clip::clips(m, p, borders, (self.m_row, self.mr)), ..self }
    }
    /// The same with its panels in place.
    pub fn read_from<Q>(self, panels: impl FnOnce(P) -> Q) -> Tile<Q> {
        Tile {
            m_row: self.m_row,
            together: self.together,
            n: self.n,
            n_extent: self.n_extent,
            nr: self.nr,
            panels: panels(self.panels),
            batch: self.batch,
            lanes: self.lanes,
            registers: self.registers,
            nv: self.nv,
            mr: self.mr,
            backwards: self.backwards,
            clips: self.clips,
            halves: self.halves,
            caps: self.caps,
        }
    }
    /// Turns the order in which the weights are read.
    pub fn reverse(&mut self) {
        self.backwards = !self.backwards;
    }
    fn width(&self) -> i64 {
        self.nv * self.lanes
    }
    /// Rows, one where there is no loop over them.
    fn rows(&self) -> Dim {
        self.m_row.map_or(Dim::constant(1), |r| r.1)
    }
}

/// Rows of a block: from where, how many.
#[derive(Clone, Copy)]
struct Rows {
    from: Dim,
    count: Dim,
    prefetch: Option<PanelPrefetch>,
    /// The tiles of the block, where all rows are cut evenly.
    even: Option<Even>,
}

/// A contraction in tiles, with such loops around them; `rows` are the row loops outside the tile's own.
pub(crate) fn emit(m: &mut Module, p: &Contraction, t: &Tile, l: &Loops, rows: &[(Sym, Dim)]) -> Vec<Stmt> {
    let zero = Dim::constant(0);
    let panels = t.n_extent.ceil_div(t.nr);
    let turn = m.syms.loop_var("p", zero, panels);
    let panel = if t.backwards { panels - 1 - turn } else { turn.into() };
    let extent = t.rows();
    let even = Even::new(m, t, extent).filter(|e| e.always);
    let blocks = match (l.block, even) {
        (None, _) => Dim::constant(1),
        (Some(h), Some(e)) => m.syms.simplify(e.tiles.ceil_div(e.of_block(h))),
        (Some(h), None) => extent.ceil_div(h),
    };
    let block = m.syms.loop_var("b", zero, blocks);
    let of_block = |h: i64| {
        l.prefetch.map(|a| {
            if l.order == Order::Panels { a } else { a.at(Dim::sym(block) * ((h + t.mr - 1) / t.mr)) }
        })
    };
    let columns = |m: &mut Module, cols: Cols| -> Vec<Stmt> {
        let Some(h) = l.block else {
            let rows = Rows { from: zero, count: extent, prefetch: l.prefetch, even };
            return column(m, p, t, panel, rows, cols);
        };
        let from = Dim::sym(block) * h;
        let rows = |from, count| Rows { from, count, prefetch: of_block(h), even: None };
        match extent.as_const() {
            Some(e) if e % h == 0 => column(m, p, t, panel, rows(from, Dim::constant(h)), cols),
            Some(e) => {
                let then = column(m, p, t, panel, rows(from, Dim::constant(h)), cols);
                let last = rows(Dim::constant(e / h * h), Dim::constant(e % h));
                let els = column(m, p, t, panel, last, cols);
                vec![Stmt::If { cond: Expr::cmp_index(BinOp::Lt, block, e / h), then, els }]
            }
            None => {
                let rows = match even.map(|e| e.block(m, block, h)) {
                    Some(e) => Rows { even: Some(e), ..rows(zero, extent) },
                    None => rows(from, (extent - from).min(Dim::constant(h))),
                };
                column(m, p, t, panel, rows, cols)
            }
        }
    };
    let body = each_panel(m, t, panel, columns);
    let mut loops = t.batch.clone();
    match l.order {
        Order::Panels => loops.extend(rows.iter().copied().chain([(block, blocks), (turn, panels)])),
        Order::Rows => {
            loops.extend([(turn, panels), (block, blocks)].into_iter().chain(rows.iter().copied()))
        }
        Order::RowsOfOne => {
            loops.extend([(turn, panels), (block, blocks)]);
            let around = |body, (var, hi): &(Sym, Dim)| {
                vec![Stmt::For { kind: LoopKind::Seq, var: *var, lo: zero, hi: *hi, body }]
            };
            let inner = rows.iter().rev().fold(body, around);
            return parallel(m, &loops, inner);
        }
    }
    parallel(m, &loops, body)
}

/// What `columns` makes for a whole panel, and for the last one where that is not whole.
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
            let els = columns(m, r.map_or(Cols::Guarded, Cols::Some));
            vec![Stmt::If { cond: Expr::cmp_index(BinOp::Lt, panel, full), then, els }]
        }
    }
}

/// All columns of the first `count` rows, on one thread.
pub(crate) fn of_rows(m: &mut Module, p: &Contraction, t: &Tile, count: Dim) -> Vec<Stmt> {
    let zero = Dim::constant(0);
    let panels = t.n_extent.ceil_div(t.nr);
    let full = t.n_extent.floor_div(t.nr);
    let panel = m.syms.loop_var("p", zero, full);
    let rows = Rows { from: zero, count, prefetch: None, even: None };
    let mut out = vec![];
    // Without the last one the loop over panels is one piece of machine code.
    if full.as_const() != Some(0) {
        let body = column(m, p, t, panel.into(), rows, Cols::Full);
        match full.as_const() {
            Some(1) => out = substitute(m, body, &|s| (s == panel).then_some(zero)),
            _ => out.push(Stmt::For { kind: LoopKind::Seq, var: panel, lo: zero, hi: full, body }),
        }
    }
    match t.n_extent.modulo(t.nr).as_const() {
        Some(0) => {}
        Some(r) => out.extend(column(m, p, t, full, rows, Cols::Some(r))),
        None => {
            let then = column(m, p, t, full, rows, Cols::Guarded);
            out.push(Stmt::If { cond: Expr::cmp_index(BinOp::Lt, full, panels), then, els: vec![] });
        }
    }
    out
}

/// Rows of one panel: tile after tile.
fn column(m: &mut Module, p: &Contraction, t: &Tile, panel: Dim, rows: Rows, cols: Cols) -> Vec<Stmt> {
    let several = matches!(cols, Cols::Some(r) if r > t.width());
    each_part(m, t, cols, |m, sub, cols| {
        let part = tiles_of_rows(m, p, t, panel, sub, rows, cols);
        if several { tile(part) } else { part }
    })
}

/// The parts of a panel, each as wide as a tile: `each` takes the number of a part and the columns that it
/// has.
fn each_part(
    m: &mut Module,
    t: &Tile,
    cols: Cols,
    mut each: impl FnMut(&mut Module, Dim, Cols) -> Vec<Stmt>,
) -> Vec<Stmt> {
    let subs = t.nr / t.width();
    match cols {
        Cols::Some(r) => {
            let mut out = vec![];
            for s in 0..subs {
                let here = (r - s * t.width()).min(t.width());
                if here > 0 {
                    let cols = if here == t.width() { Cols::Full } else { Cols::Some(here) };
                    out.extend(each(m, Dim::constant(s), cols));
                }
            }
            out
        }
        _ if subs == 1 => each(m, Dim::constant(0), cols),
        _ => {
            let s = m.syms.loop_var("s", Dim::constant(0), Dim::constant(subs));
            let body = each(m, s.into(), cols);
            vec![Stmt::For {
                kind: LoopKind::Seq,
                var: s,
                lo: Dim::constant(0),
                hi: Dim::constant(subs),
                body,
            }]
        }
    }
}

/// Rows of one tile's columns.
fn tiles_of_rows(
    m: &mut Module,
    p: &Contraction,
    t: &Tile,
    panel: Dim,
    sub: Dim,
    rows: Rows,
    cols: Cols,
) -> Vec<Stmt> {
    let zero = Dim::constant(0);
    let ahead = |pass: Dim| rows.prefetch.map(|a| a.at(pass));
    if t.m_row.is_none() {
        return block(m, p, t, zero, 1, panel, sub, cols, ahead(zero));
    }
    if let Some(count) = rows.count.as_const() {
        // Tiles of equal height, or of two that differ by one row.
        let tiles = (count + t.mr - 1) / t.mr;
        let each = t.together;
        let (low, high) =
            if tiles > 0 { (count / each / tiles * each, count / each % tiles) } else { (0, 0) };
        let mut out = vec![];
        for (n, height, from, pass) in [
            (high, low + each, rows.from, zero),
            (tiles - high, low, rows.from + high * (low + each), high.into()),
        ] {
            if n == 1 {
                out.extend(block(m, p, t, from, height, panel, sub, cols, ahead(pass)));
            } else if n > 1 {
                let v = m.syms.loop_var("m", zero, Dim::constant(n));
                let body =
                    block(m, p, t, from + Dim::sym(v) * height, height, panel, sub, cols, ahead(pass + v));
                out.push(Stmt::For { kind: LoopKind::Seq, var: v, lo: zero, hi: Dim::constant(n), body });
            }
        }
        return out;
    }
    let equal = |m: &mut Module, tiles: Dim, height: i64, from: Dim, pass: Dim| -> Vec<Stmt> {
        let tiles = m.syms.simplify(tiles);
        if tiles.as_const() == Some(0) {
            return vec![];
        }
        let v = m.syms.loop_var("m", zero, tiles);
        let body = block(m, p, t, from + Dim::sym(v) * height, height, panel, sub, cols, ahead(pass + v));
        vec![Stmt::For { kind: LoopKind::Seq, var: v, lo: zero, hi: tiles, body }]
    };
    let even = rows.even.or_else(|| Even::new(m, t, rows.count)).map(|e| {
        let from = rows.from + e.first * e.low + e.first.min(e.high);
        let high = m.syms.simplify((e.high - e.first).max(zero).min(e.here));
        let mut out = equal(m, high, e.low + 1, from, zero);
        out.extend(equal(m, e.here - high, e.low, from + high * (e.low + 1), high));
        (e, out)
    });
    if let Some((Even { always: true, .. }, out)) = even {
        return out;
    }
    let mut out = vec![];
    let (mut from, mut left, mut pass, mut mr) = (rows.from, rows.count, zero, t.mr);
    for (tiles, height) in heights(m, rows.count, t.mr) {
        out.extend(equal(m, tiles, height, from, pass));
        (from, left, pass, mr) = (from + tiles * height, left - tiles * height, pass + tiles, height);
    }
    let left = m.syms.simplify(if mr == t.mr { rows.count.modulo(mr) } else { left });
    match left.as_const() {
        Some(0) => {}
        Some(r) => {
            let rest = block(m, p, t, from, r, panel, sub, cols, ahead(pass));
            out.extend(if out.is_empty() { rest } else { tile(rest) });
        }
        None => {
            for part in rests(mr, common_step(m, rows.count, mr)) {
                let row = if part.at_end { from + left - part.rows } else { from };
                let then = block(m, p, t, m.syms.simplify(row), part.rows, panel, sub, cols, ahead(pass));
                out.extend(part.only_if(left, then));
            }
        }
    }
    match even {
        Some((e, then)) => {
            vec![Stmt::If { cond: Expr::cmp_index(BinOp::Le, e.high, e.tiles), then, els: out }]
        }
        None => out,
    }
}

/// Rows or results beside each other that are left of a number that only run time knows, and are computed at
/// once.
pub(crate) struct Rest {
    /// How many.
    pub rows: i64,
    /// They are the last of what is left, not the first.
    pub at_end: bool,
    /// If so many are left.
    lefts: Vec<i64>,
}

impl Rest {
    /// The statements, if the number that is left is one of those.
    pub fn only_if(&self, left: Dim, then: Vec<Stmt>) -> Option<Stmt> {
        let is = |n: &i64| Expr::cmp_index(BinOp::Eq, left, *n);
        let cond = self.lefts.iter().map(is).reduce(|a, b| Expr::bin(BinOp::Or, a, b))?;
        Some(Stmt::If { cond, then, els: vec![] })
    }
}

/// What is left of a multiple of `each` in steps of `step`, at most eight: one or two parts, since each passes
/// over the other operand once. Few parts of different heights serve all numbers.
pub(crate) fn rests(step: i64, each: i64) -> Vec<Rest> {
    let first = |left: i64| if left >= 6 && left != 7 { 6 } else { left / 4 * 4 };
    let parts = [(6, false), (4, false), (3, true), (2, true), (1, true)];
    let part = |(rows, at_end): (i64, bool)| {
        let here = |left: &i64| rows == if at_end { left - first(*left) } else { first(*left) };
        Rest { rows, at_end, lefts: (1..step).filter(|n| n % each == 0).filter(here).collect() }
    };
    parts.into_iter().map(part).filter(|p| !p.lefts.is_empty()).collect()
}

/// A divisor of the number of rows, whatever it is, and of the height of its tiles: of what is left, too.
fn common_step(m: &Module, count: Dim, mr: i64) -> i64 {
    let divides = |n: &i64| mr % n == 0 && m.syms.divides(Dim::constant(*n), count) == Answer::Yes;
    [8, 4, 2].into_iter().find(divides).unwrap_or(1)
}

/// Numbers of tiles of each height for rows that only run time counts. Tiles of twelve do more for each
/// element that they load, but would leave up to eleven rows: as many tiles of eight take their place as
/// leave three at most.
fn heights(m: &Module, count: Dim, mr: i64) -> Vec<(Dim, i64)> {
    if mr != TALL_ROWS {
        return vec![(m.syms.simplify(count.floor_div(mr)), mr)];
    }
    let eights = m.syms.simplify((count.floor_div(4) * 2).modulo(3).min(count.floor_div(8)));
    vec![(m.syms.simplify((count - eights * 8).floor_div(TALL_ROWS)), TALL_ROWS), (eights, 8)]
}
