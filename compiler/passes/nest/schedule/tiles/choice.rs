//! The tile of a contraction: rows, vectors, and columns of a panel.

use super::{Panels, Source};
use crate::nest::key::Writer;
use crate::nest::{Buf, HALVES_AT_ONCE, Math, Module};
use crate::passes::nest::analysis::borders::Borders;
use crate::passes::nest::analysis::form::{Contraction, ProductKind};
use crate::passes::nest::analysis::machine::THREADS;
use crate::passes::nest::schedule::clip::{self, Clip};
use crate::passes::nest::schedule::contract::Columns;
use crate::sym::{Dim, Sym};
use crate::target::{Caps, Facts, Tiles};
use crate::tensor::ElemType;

/// Maximum rows of a tile if rows are a multiple of 4 KiB apart: they conflict in one set of the first-level
/// cache, which has 8 or 12 ways. Also used if the number of rows is a run-time value and tiles of twelve are
/// not possible: fewer rows remain, and none if the number is a multiple of eight.
const CROWDED_ROWS: i64 = 8;
/// Rows of a tile if their number is a run-time value, see `Even` and `heights`.
pub(super) const TALL_ROWS: i64 = 12;
/// Maximum rows of a tile with f16 accumulators: registers suffice for the sums of all products so far, those
/// of the current iteration, and a register of each row. The remaining steps use f32, for which they do not.
const HALF_ROWS: i64 = 10;
/// Minimum reduction steps for which the remainder is negligible.
const LONG_HALVES: i64 = 32;
/// Elements of a row per load if accumulators are f16, one for each step.
pub(super) const HALVES_OF_REGISTER: i64 = 8;
/// Maximum rows of a tile: more would exhaust the pointer registers.
pub(crate) const MOST_ROWS: i64 = 14;

/// True if the tile depends on the number of rows: elements of rows are lanes of vectors of f32 or quads of
/// bytes, and rows are not paired.
pub(crate) fn chooses_by_rows(pairs_rows: bool, facts: Facts) -> bool {
    facts.caps.by_lane && !pairs_rows && facts.lanes * 32 == facts.caps.bits
}

/// Parameters of the choice.
pub(crate) struct Wanted {
    /// The tile's row loop.
    pub row: Option<(Sym, Dim)>,
    /// Rows of a tile are a multiple of it.
    pub together: i64,
    /// Rows at most.
    pub most: i64,
    /// The columns, in panels.
    pub columns: Columns,
    /// Outer loops.
    pub batch: Vec<(Sym, Dim)>,
    /// Rows are a multiple of 4 KiB apart.
    pub crowded: bool,
    /// The reduction has few steps ([`is_shallow`]).
    pub shallow: bool,
    /// Accumulators are f16 ([`sums_halves`]).
    pub halves: bool,
    /// An instruction multiplies two rows.
    pub pairs_rows: bool,
    /// Vectors of columns are taken apart: an instruction for each.
    pub halves_eights: bool,
}

impl Wanted {
    /// At most `most` rows, and no other constraints.
    pub fn plain(row: Option<(Sym, Dim)>, most: i64, columns: Columns) -> Wanted {
        Wanted {
            row,
            together: 1,
            most,
            columns,
            batch: vec![],
            crowded: false,
            shallow: false,
            halves: false,
            pairs_rows: false,
            halves_eights: false,
        }
    }
    /// Rows and columns, if the choice depends on their numbers.
    fn plane(&self, facts: Facts) -> Option<Plane> {
        let rows = self.row?.1.as_const().filter(|r| *r > 1)?;
        let suits = self.together == 1 && !self.halves && chooses_by_rows(self.pairs_rows, facts);
        let columns = self.columns.extent.as_const();
        suits.then_some(Plane { rows, columns, halves_eights: self.halves_eights })
    }
}

/// The tile of a contraction, with its panels or the way to pack them.
pub(crate) struct Tile<P = Panels> {
    pub(super) m_row: Option<(Sym, Dim)>,
    /// Rows that are in one tile: those of a tile are a multiple of it.
    pub(super) together: i64,
    pub(super) n: Sym,
    pub n_extent: Dim,
    /// Columns of a panel, a multiple of the longest vectors.
    pub nr: i64,
    pub panels: P,
    pub batch: Vec<(Sym, Dim)>,
    pub(super) lanes: i64,
    /// Vector registers of the level.
    pub(super) registers: i64,
    /// Vectors of a tile; a panel is one or several tiles wide.
    pub(super) nv: i64,
    /// Rows of a tile.
    pub(super) mr: i64,
    /// Panels and reduction steps are visited in reverse order.
    pub(super) backwards: bool,
    /// The first step of the outermost reduction loop. `None`: no steps, accumulators keep what they begin
    /// with.
    pub(super) first_step: Option<Dim>,
    /// Reduction loops that run over a part of their iterations.
    pub(super) clips: Vec<Clip>,
    /// Accumulators are f16 ([`sums_halves`]).
    pub(super) halves: bool,
    /// Capabilities of the level's vectors.
    pub(super) caps: Caps,
}

impl Tile {
    /// Writes everything into a key, except for what is the same in a whole pass.
    pub fn key(&self, w: &mut Writer) {
        w.loops(&self.m_row.into_iter().chain(self.batch.iter().copied()).collect::<Vec<_>>());
        w.sym(self.n);
        w.dim(self.n_extent);
        w.put([self.together, self.nr, self.lanes, self.registers, self.nv, self.mr].map(|n| n as u64));
        w.put([self.m_row.is_some(), self.backwards, self.halves, self.first_step.is_some()].map(u64::from));
        self.first_step.into_iter().for_each(|d| w.dim(d));
        w.put([self.clips.len() as u64]);
        self.clips.iter().for_each(|c| c.key(w));
        match &self.panels {
            Panels::Packed(p) => {
                w.put([0, u64::from(p.large), p.line as u64, p.own.len() as u64]);
                w.buf(p.buf);
                w.dims(&p.outer);
                p.own.iter().for_each(|s| w.sym(*s));
            }
            Panels::InPlace => w.put([1]),
            Panels::Private { buf, part, of_b } => {
                w.put([2, u64::from(*of_b)]);
                w.buf(*buf);
                w.sym(*part);
            }
        }
    }
}

/// Columns of a panel: little padding, and tiles that keep the multipliers busy. Model: a core with 32
/// registers of `unit` lanes that issues two multiplications and two loads per cycle; shorter vectors divide
/// panels into several tiles.
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
        // Cycles of a step, in sixteenths: multiplications, loads, and a latency of four; plus the transfer
        // of B's cache lines from the second level.
        let step = |mr: i64, w: i64| (mr * w).max(mr + w).max(8) * 8 + 2 * w;
        // The last panel may have fewer vectors.
        let panel = |w: i64| if w == 0 { 0 } else { high * step(low + 1, w) + (tiles - high) * step(low, w) };
        panel(w) * (vectors / w) + panel(vectors % w)
    };
    let widths: &[i64] = &[2, 4, 3, 5, 6, 1];
    // The least padding breaks ties.
    unit * widths.iter().copied().min_by_key(|w| (cost(*w), (vectors + w - 1) / w * w)).unwrap_or(2)
}

/// Vectors of a panel for a single row, whose weights are read once: at most the existing ones, and enough
/// panels for several threads. A step loads a panel's vectors and one element.
fn row_panel(vectors: i64) -> i64 {
    let cost = |w: i64| {
        let panels = (vectors + w - 1) / w;
        (w + 1) * (panels + (panels + THREADS - 1) / THREADS * THREADS)
    };
    (1..=8).rev().min_by_key(|w| cost(*w)).unwrap_or(1)
}

/// Most steps of a reduction that takes no longer than storing its results.
const SHALLOW: i64 = 8;

/// True if tiles store for a large part of their time. Tiles of 12 rows then take 0.7 to 0.96 of the time of
/// those of 14 for each row (512-bit vectors, 2 to 8 steps, with and without an epilogue).
pub(crate) fn is_shallow(p: &Contraction) -> bool {
    Dim::product(p.reduction.iter().map(|d| d.1)).as_const().is_some_and(|n| n <= SHALLOW)
}

/// Larger numbers of rows are treated as unknown.
const MOST_KNOWN: i64 = 4096;

/// True if the level may accumulate products of f16 in f16.
pub(crate) fn multiplies_halves(m: &Module, p: &Contraction, caps: Caps) -> bool {
    let half = |b: Buf| m.bufs[b].ty == ElemType::F16;
    let allowed = caps.halves && m.math == Math::Fast && p.product == ProductKind::Fma;
    allowed && p.with.is_none() && half(p.a.0) && half(p.b.0)
}

/// True if all of a contraction's accumulators are f16, except for a few steps at the end.
pub(crate) fn sums_halves(m: &Module, p: &Contraction, caps: Caps) -> bool {
    let long = |d: &(Sym, Dim)| d.1.as_const().is_some_and(|n| n >= LONG_HALVES);
    multiplies_halves(m, p, caps) && p.reduction.last().is_some_and(long)
}

/// Rows of a tile of `nv` vectors: the accumulators, a row of B and an element of A fit in the registers.
fn rows_of(registers: i64, nv: i64) -> i64 {
    ((registers - 1 - nv) / nv).clamp(1, MOST_ROWS)
}

/// The same if a register holds several elements of a row of A: one register per row, and two vectors of B,
/// which are loaded in pairs.
fn rows_by_lane(registers: i64, nv: i64) -> i64 {
    ((registers - 2) / (nv + 1)).clamp(1, MOST_ROWS)
}

/// The same of accumulators of f16, of which there are two for each result.
fn rows_of_halves(registers: i64, nv: i64) -> i64 {
    ((registers - 3) / (2 * nv + 1)).clamp(1, HALF_ROWS)
}

/// Vectors and rows of a tile for panels of `nr` columns: the most multiplications per load that registers
/// allow.
fn shape(nr: i64, most: i64, facts: Facts) -> (i64, i64) {
    let (lanes, registers) = (i64::from(facts.lanes), i64::from(facts.registers));
    let vectors = nr / lanes;
    let mut best = (1, 1, 0.0);
    for nv in (1..=vectors.min(8)).filter(|v| vectors % v == 0) {
        let (mr, loads) = if facts.caps.by_scalar {
            // Two vectors of B, one of which is being loaded. Elements of A occupy no vector register.
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

/// A known number of rows, and the number of columns of each.
#[derive(Clone, Copy)]
pub(crate) struct Plane {
    pub rows: i64,
    /// Columns, if they are known.
    pub columns: Option<i64>,
    /// Vectors of columns are taken apart.
    pub halves_eights: bool,
}

impl Plane {
    /// Columns of a panel whose tiles take the fewest cycles, if elements of rows are lanes of vectors and
    /// panels have a multiple of `unit` columns. The least padding breaks ties.
    pub fn panel(self, unit: i64, facts: Facts) -> i64 {
        let most = self.rows.min(MOST_KNOWN);
        let cost = |w: i64| self.shape(unit * w, most, facts).map_or(f64::MAX, |s| s.2);
        let units = self.columns.map_or(1, |n| (n + unit - 1) / unit);
        let padded = |w: i64| (units + w - 1) / w * w;
        let order = |a: &i64, b: &i64| cost(*a).total_cmp(&cost(*b)).then(padded(*a).cmp(&padded(*b)));
        unit * [2, 4, 3, 5, 6, 1].into_iter().min_by(order).unwrap_or(2)
    }
    /// Vectors and rows of tiles in panels of `nr` columns, and the cycles of all tiles.
    fn shape(self, nr: i64, most: i64, facts: Facts) -> Option<(i64, i64, f64)> {
        let (lanes, registers) = (i64::from(facts.lanes), i64::from(facts.registers));
        let vectors = nr / lanes;
        let mut best: Option<(i64, i64, f64)> = None;
        for nv in (1..=vectors.min(8)).rev().filter(|v| vectors % v == 0) {
            let mr = rows_by_lane(registers, nv).min(most);
            let cost = self.cost(nv, mr, (vectors, lanes));
            if mr > 0 && best.is_none_or(|b| cost < b.2) {
                best = Some((nv, mr, cost));
            }
        }
        best
    }
    /// Cycles of all tiles of `nv` vectors and at most `mr` rows, in panels of `vectors` vectors of `lanes`
    /// lanes.
    fn cost(self, nv: i64, mr: i64, (vectors, lanes): (i64, i64)) -> f64 {
        let tiles = (self.rows + mr - 1) / mr.max(1);
        let (low, high) = (self.rows / tiles, self.rows % tiles);
        let all = self.columns.map_or(vectors, |n| (n + lanes - 1) / lanes);
        let (panels, rest) = (all / vectors, all % vectors);
        let whole = panels * (vectors / nv) + rest / nv;
        let apart = i64::from(self.halves_eights);
        let one = |h: i64, nv: i64| cycles_by_lane(h, nv, 4 * apart * nv);
        let of = |h: i64| whole as f64 * one(h, nv) + one(h, rest % nv);
        high as f64 * of(low + 1) + (tiles - high) as f64 * of(low)
    }
}

/// Cycles of four steps of a tile where elements of rows are lanes of vectors: of a core with two multipliers
/// that takes three operations a cycle, of which a load is two and one of two vectors three, as LLVM has the
/// Neoverse N1. Wider cores multiply as much for each load. `others`: instructions for columns that take the
/// time of products.
fn cycles_by_lane(mr: i64, nv: i64, others: i64) -> f64 {
    /// Addresses, the count, prefetches.
    const LOOP: i64 = 8;
    if nv == 0 {
        return 0.0;
    }
    let products = 4 * mr * nv + others;
    let loads = 2 * mr + 4 * (nv / 2 * 3 + nv % 2 * 2);
    (products as f64 / 2.0).max((products + loads + LOOP) as f64 / 3.0)
}

/// Rows of a tile for panels of `nr` columns, given `most` rows.
pub(crate) fn rows_of_panel(nr: i64, most: i64, facts: Facts) -> i64 {
    shape(nr, most, facts).1
}

/// The next multiple.
pub(super) fn multiple(n: i64, of: i64) -> i64 {
    (n + of - 1) / of * of
}

/// Minimum products per step for which iterations have two steps: they keep the multipliers busy while the
/// loop overhead executes.
const MANY_PRODUCTS: i64 = 20;
/// The same if products and sums are separate instructions.
const FEW_PRODUCTS: i64 = 4;
/// Reductions of at most this length are unrolled by four in any case: with few iterations, the exit branch
/// is predicted.
const SHORT_SUM: i64 = 128;

/// Least accumulators of a tile with fewer rows: two multipliers with a latency of four cycles, and some more
/// for the loads of each step.
const FEWEST_SUMS: i64 = 12;
/// What tiles with fewer rows must gain to make up for more loads of the weights.
const LOWER: f64 = 1.15;

impl<P> Tile<P> {
    /// Reduction steps that an iteration of a tile of `mr` rows and `nv` vectors unrolls.
    pub(super) fn steps(&self, p: &Contraction, mr: i64, nv: i64) -> i64 {
        let most = p.product.steps();
        let divides = |n: &i64| p.reduction.last().is_some_and(|d| d.1.modulo(*n).as_const() == Some(0));
        if self.halves
            && let Some(n) = [HALVES_AT_ONCE, HALVES_OF_REGISTER].into_iter().find(divides)
        {
            return n;
        }
        let short = p.reduction.last().and_then(|d| d.1.as_const()).is_some_and(|n| n <= SHORT_SUM);
        match self.caps.tiles {
            // Without vector tiles, other instructions dominate the loop overhead.
            Tiles::None if mr * nv >= FEW_PRODUCTS => most.min(2),
            // Elements of a row are loaded as vectors, for all steps at once.
            _ if self.caps.by_lane => most,
            _ if mr * nv < MANY_PRODUCTS || short => most,
            _ => most.min(2),
        }
    }
}

impl<P: Source> Tile<P> {
    /// Chooses the tile for a level.
    pub fn new(wanted: Wanted, panels: P, facts: Facts) -> Tile<P> {
        let known = wanted.plane(facts).and_then(|p| p.shape(wanted.columns.nr, wanted.most, facts));
        let Wanted { row: m_row, together, most, columns, batch, crowded, shallow, halves, .. } = wanted;
        let (lanes, registers) = (i64::from(facts.lanes), i64::from(facts.registers));
        let (nv, mut mr) = known.map_or_else(|| shape(columns.nr, most, facts), |k| (k.0, k.1));
        if halves && nv % 2 == 0 {
            mr = rows_of_halves(registers, nv / 2).min(most.max(1));
        }
        if crowded {
            mr = mr.min(CROWDED_ROWS);
        } else if m_row.is_some_and(|r| r.1.as_const().is_none()) {
            mr = if mr >= TALL_ROWS { TALL_ROWS } else { mr.min(CROWDED_ROWS) };
        }
        if shallow {
            mr = mr.min(TALL_ROWS);
        }
        mr = (mr / together * together).max(together);
        if let Some(r) = m_row.and_then(|r| r.1.as_const()).filter(|r| *r > 0) {
            // Tiles of equal height.
            let tiles = (r + mr - 1) / mr;
            mr = multiple((r + tiles - 1) / tiles, together);
        }
        Tile {
            m_row,
            together,
            n: columns.n,
            n_extent: columns.extent,
            nr: columns.nr,
            panels,
            batch,
            lanes,
            registers,
            nv,
            mr,
            backwards: false,
            first_step: Some(Dim::constant(0)),
            clips: vec![],
            halves,
            caps: facts.caps,
        }
    }
    /// The tile without reduction steps that read only borders of zeros, see `clip`; with fewer rows if these
    /// omit more.
    pub fn clipped(self, m: &Module, p: &Contraction, borders: &Borders) -> Tile<P> {
        let of = |mr: i64| clip::clips(m, p, borders, (self.m_row, mr));
        let clips = of(self.mr);
        if let Some(rows) = self.m_row.and_then(|r| r.1.as_const()).filter(|_| self.together == 1)
            && !clips.is_empty()
        {
            let tiles = (rows + self.mr - 1) / self.mr + 1;
            let mr = (rows + tiles - 1) / tiles;
            if mr * self.nv >= FEWEST_SUMS
                && let lower = of(mr)
                && clip::left(&lower).zip(clip::left(&clips)).is_some_and(|(l, all)| l * LOWER < all)
            {
                return Tile { mr, clips: lower, ..self };
            }
        }
        Tile { clips, ..self }
    }
    /// The tile with its panels replaced.
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
            first_step: self.first_step,
            clips: self.clips,
            halves: self.halves,
            caps: self.caps,
        }
    }
    /// Reverses the order in which the weights are read.
    pub fn reverse(&mut self) {
        self.backwards = !self.backwards;
    }
    pub(super) fn width(&self) -> i64 {
        self.nv * self.lanes
    }
    /// Rows, one where there is no loop over them.
    pub fn rows(&self) -> Dim {
        self.m_row.map_or(Dim::constant(1), |r| r.1)
    }
}
