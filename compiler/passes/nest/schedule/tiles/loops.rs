//! The loops around tiles: cache blocks of rows, the order of panels and rows, prefetches.

use super::choice::{TALL_ROWS, multiple};
use super::register::{self, PanelPrefetch};
use super::{Source, Tile};
use crate::nest::Module;
use crate::nest::schedule::Schedule;
use crate::passes::nest::analysis::form::{Contraction, ProductKind};
use crate::passes::nest::analysis::machine::{L2, THREADS};
use crate::passes::nest::schedule::clip;
use crate::sym::{Dim, Sym};

/// Maximum bytes of packed weights that stay in the second-level cache during the loop over rows.
const RESIDENT: i64 = L2 / 2;
/// Maximum bytes of rows that stay in the second-level cache during the loop over panels.
const ROWS: i64 = 3 * L2 / 8;
/// Maximum bytes of a block of rows if weights come from memory: some of the rows may come from the last-level
/// cache, since a panel has enough work for all of them. Of three times as many, each tile waits for its rows
/// (896 x 4,864 weights and 1,024 rows: 6 % longer); fewer rows read the weights more often and gain nothing.
const FAR_ROWS: i64 = L2;
/// Panels that suffice for the threads.
const MANY: i64 = 16;
/// Rows of a block if all weights stay in the cache: enough for several tiles to use a panel from the first
/// level, and few enough to give each thread a block in small problems.
const SHORT: i64 = 64;

/// The loops around tiles.
#[derive(Clone, Copy)]
pub(crate) struct Loops {
    /// Rows of a block; `None` if all rows are one block.
    pub(super) block: Option<i64>,
    /// The order of blocks, panels and rows.
    pub(super) order: Order,
    /// The prefetches of tiles.
    pub(super) prefetch: Option<PanelPrefetch>,
}

/// The order of loops, outermost first.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Order {
    /// Other rows, blocks, panels: small weights stay in the cache during the loop over rows.
    Panels,
    /// Panels, blocks, other rows: large weights are read once. The row loops are parallel, too.
    Rows,
    /// The same with sequential row loops: there are enough panels for the threads.
    RowsOfOne,
}

impl Loops {
    /// Chooses the loops around a tile; `rows`: the row loops outside the tile's own.
    pub fn new<P: Source>(m: &Module, p: &Contraction, t: &Tile<P>, rows: &[(Sym, Dim)]) -> Loops {
        let panels = t.n_extent.ceil_div(t.nr);
        let depth = Dim::product(p.reduction.iter().map(|d| d.1));
        let bytes = i64::from(m.bufs[p.b.0].ty.bytes().unwrap_or(4));
        let weights = (depth * panels * t.nr * bytes).as_const();
        let resident = weights.is_some_and(|w| w <= RESIDENT);
        let extent = t.rows();
        let large = t.panels.large() && panels.as_const().is_some_and(|p| p >= MANY);
        let bytes = if large { FAR_ROWS } else { ROWS };
        let size = if p.product == ProductKind::Double { 8 } else { 4 };
        let most = depth
            .as_const()
            .map_or(192, |d| (bytes / (size * d.max(1))).clamp(1, if resident { SHORT } else { 1 << 20 }));
        // Blocks of equal height if the number of rows is known. Otherwise prefer higher blocks: a last block
        // of a few rows would read all of B for them.
        let block = match extent.as_const() {
            Some(e) => {
                let blocks = if e <= most.max(t.mr) { 1 } else { (e + most - 1) / most };
                let others =
                    t.batch.iter().chain(if resident { rows } else { &[] }).fold(panels, |n, l| n * l.1);
                // A part of a larger kernel runs on one thread. A run-time number of panels is assumed to
                // suffice for the threads: each block would read all of them.
                let shares = p.whole && panels.as_const().is_some();
                let least = m.syms.range(others).lo.filter(|_| shares);
                match least.map_or(blocks, |n| even(blocks, n.max(1), (e, t.mr))) {
                    1 => None,
                    b if b == blocks => Some(((e + b - 1) / b + t.mr - 1) / t.mr * t.mr),
                    b => Some(multiple((e + b - 1) / b, t.together)),
                }
            }
            None => {
                let block = (most + t.mr - 1) / t.mr * t.mr;
                m.syms.range(extent).hi.is_none_or(|e| e > block).then_some(block)
            }
        };
        let order = match panels.as_const() {
            _ if resident || rows.is_empty() => Order::Panels,
            // With few panels, the row loops must be parallel.
            Some(n) if n < MANY => Order::Rows,
            _ => Order::RowsOfOne,
        };
        // Tiles that read a panel in sequence: those of a block, or all.
        let high = block.map_or(extent, Dim::constant);
        let most_rows = if t.mr == TALL_ROWS && extent.as_const().is_none() { TALL_ROWS + 1 } else { t.mr };
        let rows_of_panel = if order == Order::Panels { extent.min(high) } else { extent };
        Loops { block, order, prefetch: PanelPrefetch::new(m, p, t, rows_of_panel.ceil_div(most_rows)) }
    }
    /// True if one iteration uses a panel for all rows, and there are no outer row loops.
    pub fn use_panels_once(&self, rows: &[(Sym, Dim)]) -> bool {
        self.block.is_none() && rows.is_empty()
    }
    /// The names of the loops, outermost first; `rows`: there are outer row loops.
    fn order(self, rows: bool) -> Vec<&'static str> {
        match self.order {
            Order::Panels if rows => vec!["other rows", "blocks", "panels"],
            Order::Panels => vec!["blocks", "panels"],
            Order::Rows => vec!["panels", "blocks", "other rows"],
            Order::RowsOfOne => vec!["panels", "blocks", "other rows of a task"],
        }
    }
}

/// The schedule of a contraction with these loops; `rows`: there are outer row loops.
pub(crate) fn describe<P: Source>(
    m: &Module,
    p: &Contraction,
    t: &Tile<P>,
    l: &Loops,
    rows: bool,
) -> Schedule {
    let ahead = l
        .prefetch
        .map(|_| if p.prefetch.is_some() { "lines that the contraction names" } else { "next panel" });
    let next_rows = register::prefetches_rows(m, p, t).then_some("rows of the next tile");
    let streamed = super::stream::prefetches(m, p, t).then_some("B");
    Schedule {
        blocks: l.block.map(|n| vec![("rows", Dim::constant(n))]).unwrap_or_default(),
        prefetch: ahead.into_iter().chain(next_rows).chain(streamed).collect(),
        order: l.order(rows),
        ..describe_tile(m, p, t)
    }
}

/// The schedule of a contraction without the loops around its tiles.
pub(crate) fn describe_tile<P: Source>(m: &Module, p: &Contraction, t: &Tile<P>) -> Schedule {
    let most = t.steps(p, t.mr, t.nv);
    let steps = p.reduction.last().map_or(1, |d| d.1.as_const().map_or(most, |n| n.min(most)));
    let sums = register::split(m, p, t, t.mr, t.nv);
    Schedule {
        tile: vec![("rows", t.mr), ("vectors", t.nv)],
        packing: vec![("B", t.panels.describe(m, t.nr))],
        unroll: [("steps of the sum", steps), ("sums of an element", sums)]
            .into_iter()
            .filter(|u| u.1 > 1)
            .collect(),
        skips: clip::describe(&t.clips),
        ..Schedule::new(if p.gate.is_some() {
            "register tiles with a factor of each step"
        } else {
            "register tiles"
        })
        .vectors(t.lanes, "columns", t.n_extent)
    }
}

/// The number of blocks, at least `blocks`, that gives a few threads equal shares of `others` times as many
/// pieces, given the rows and the tile height.
fn even(blocks: i64, others: i64, (rows, mr): (i64, i64)) -> i64 {
    const ENOUGH: i64 = 16;
    let tiles = |rows: i64| (rows + mr - 1) / mr;
    let least = tiles(rows).max(1);
    // In about sixteenths of the time, so that small differences do not matter. Blocks that divide tiles
    // increase their number, and each tile reads all weights.
    let cost = |b: i64| {
        let n = b * others;
        let rounds = (n + THREADS - 1) / THREADS;
        let height = ((rows + b - 1) / b).max(1);
        let more = rows / height * tiles(height) + tiles(rows % height) - least;
        (rounds * THREADS - n) * 16 / (rounds * THREADS) + 4 * more / least
    };
    if blocks * others >= ENOUGH {
        return blocks;
    }
    (blocks..=least.min(blocks + 3).max(blocks)).min_by_key(|b| cost(*b)).unwrap_or(blocks)
}
