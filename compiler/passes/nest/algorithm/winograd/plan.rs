//! The decomposition of a convolution: groups of tiles, slices of output channels, blocks of input channels.

use super::Layer;
use super::choice::{MOST_WEIGHTS, ROW, TRANSFORM};
use crate::nest::Module;
use crate::passes::nest::analysis::machine::{L2, THREADS};
use crate::sym::Dim;

/// Bytes of U that a second-level cache holds.
const NEAR_WEIGHTS: i64 = L2;
/// Maximum tiles of a group if weights are transformed for each group: enough to make the transform a small
/// part of the time, few enough for M of a slice to stay in the second-level cache.
const FRESH_TILES: i64 = 64;
/// Output channels of a slice in that case, and of one of an image of run-time size: a panel.
const PANEL: i64 = 32;
/// Maximum input channels of a block in that case: U of a block is written and read in the second-level
/// cache.
const FRESH_BLOCK: i64 = 32;
/// Maximum tiles of a group of an image of run-time size.
const UNKNOWN_TILES: i64 = 28;
/// What divides the rows of its products, but for a last group: register tiles leave no remainder.
const MULTIPLE: i64 = 4;

/// Bytes of U.
pub(super) fn bytes(l: &Layer) -> i64 {
    l.products() * l.factor_bytes() * l.c.1 * l.k.1
}

/// Tiles of an image.
pub(super) fn tiles(l: &Layer) -> Dim {
    l.y.1.ceil_div(l.side()) * l.x.1.ceil_div(l.side())
}

/// The decomposition of the work.
pub(super) struct Plan {
    /// Maximum tiles of a group.
    pub tiles: i64,
    /// Tiles of all groups but the last.
    pub size: Dim,
    /// Images of a group, if groups consist of whole images.
    pub whole: Option<i64>,
    /// Groups of an image, or of all images if groups consist of whole images.
    pub groups: Dim,
    /// All groups.
    pub total: Dim,
    /// Slices of the output channels.
    pub slices: i64,
    /// Input channels of a block.
    pub block: i64,
    /// Whether weights are transformed while the model runs.
    pub fresh: bool,
    pub images: Dim,
}

impl Plan {
    /// True if slices read the same V.
    pub fn is_shared(&self) -> bool {
        self.slices > 1
    }
    /// Iterations of the parallel loop.
    pub fn tasks(&self) -> Dim {
        self.total * self.slices
    }
}

/// Output channels of a slice and input channels of a block, if weights are to be transformed at run time: U
/// would come from beyond the second-level cache, and there are too few tiles to hide the latency.
pub(super) fn fresh(l: &Layer) -> Option<(i64, i64)> {
    if l.halves {
        return None;
    }
    let waits = tiles(l).as_const().filter(|t| *t > 0 && bytes(l) > NEAR_WEIGHTS).is_some_and(|t| {
        // Images of a group, which share transformed weights.
        let images = l.n.map_or(Some(1), |n| n.1.as_const()).unwrap_or(1).clamp(1, (FRESH_TILES / t).max(1));
        l.read() > ROW * t + TRANSFORM / images
    });
    let block = (2..=FRESH_BLOCK / 16).rev().map(|b| 16 * b).find(|b| l.c.1 % b == 0)?;
    (l.k.1 % PANEL == 0 && (waits || bytes(l) > MOST_WEIGHTS)).then_some((PANEL, block))
}

pub(super) fn plan(l: &Layer) -> Plan {
    let (tiles, images) = (tiles(l), l.n.map_or(Dim::constant(1), |n| n.1));
    let fresh = fresh(l);
    let (size, whole, slices) = match fresh {
        Some((width, _)) => {
            let (size, whole) = large_groups(tiles, images);
            (size, whole, l.k.1 / width)
        }
        None => {
            let (size, slices) = near_groups(l, tiles);
            (size, None, slices)
        }
    };
    let groups = whole.map_or_else(|| tiles.ceil_div(size), |n| images.ceil_div(n));
    Plan {
        tiles: size,
        size: shares(tiles, groups, size),
        whole,
        groups,
        total: if whole.is_some() { groups } else { images * groups },
        slices,
        block: fresh.map_or(l.c.1, |(_, block)| block),
        fresh: fresh.is_some(),
        images,
    }
}

/// Tiles of a group, and its images if these are small, where weights are transformed for each group.
fn large_groups(tiles: Dim, images: Dim) -> (i64, Option<i64>) {
    // Parts of equal size, none above `most`.
    let share = |n: i64, most: i64| {
        let parts = ((n + most - 1) / most).max(1);
        ((n + parts - 1) / parts).max(1)
    };
    match tiles.as_const() {
        Some(t) if 2 * t <= FRESH_TILES => {
            let most = FRESH_TILES / t;
            let whole = images.as_const().map_or(most, |n| share(n, most));
            (whole * t, Some(whole))
        }
        t => (t.map_or(FRESH_TILES / 2, |t| share(t, FRESH_TILES)), None),
    }
}

/// Tiles of a group whose V and M stay in a second-level cache, and slices.
fn near_groups(l: &Layer, tiles: Dim) -> (i64, i64) {
    let most = ((512 << 10) / l.near(64)).clamp(16, if l.halves { 98 } else { 49 });
    let narrow = |widths: &[i64]| widths.iter().find(|w| l.k.1 % **w == 0).map_or(1, |w| l.k.1 / w);
    let Some(t) = tiles.as_const() else {
        // Products of any number of rows read U in place in slices of two vectors.
        return (most.min(UNKNOWN_TILES) / MULTIPLE * MULTIPLE, narrow(&[PANEL]));
    };
    let groups = (t + most - 1) / most;
    let size = (t + groups - 1) / groups;
    // U of a slice is read once per group; if there are few groups, threads share the work by slices.
    let few = (t + size - 1) / size < 8;
    let slices = if few || l.c.1 * l.k.1 > 64 * 64 { narrow(&[64, PANEL]) } else { 1 };
    even(l, t, size).filter(|_| few).unwrap_or((size, slices))
}

/// Tiles of a group, at most `most`: groups of an image of run-time size are similar, so that threads have
/// equal shares.
fn shares(tiles: Dim, groups: Dim, most: i64) -> Dim {
    match tiles.as_const() {
        Some(_) => Dim::constant(most),
        // The bounds are for the prover.
        None => (tiles.ceil_div(groups.max(1)).ceil_div(MULTIPLE) * MULTIPLE).max(MULTIPLE).min(most),
    }
}

/// Tiles of a group and slices that give a few threads equal shares of a single image of `t` tiles, given
/// groups of about `size` tiles.
fn even(l: &Layer, t: i64, size: i64) -> Option<(i64, i64)> {
    let groups = (t + size - 1) / size;
    // Larger groups read U less often, as long as V and M stay in the cache; narrower slices read V more
    // often.
    let cuts = [(groups - 1, 64), (groups, 64), (groups + 1, 64), (groups, 32), (groups + 1, 32)];
    let suits = |g: i64, width: i64| {
        let size = (t + g - 1) / g;
        let fits = g >= groups || size * l.near(64) <= 3 * L2 / 4;
        fits && (g <= groups || size >= 12) && l.k.1 % width == 0 && g * (l.k.1 / width) % THREADS == 0
    };
    let (g, width) = cuts.into_iter().find(|(g, width)| *g > 0 && suits(*g, *width))?;
    Some(((t + g - 1) / g, l.k.1 / width))
}

/// The images of group `g`, and their tiles: loops over both visit all tiles of the group.
pub(super) fn members(m: &Module, l: &Layer, p: &Plan, g: Dim) -> (Dim, Dim) {
    match p.whole {
        None if tiles(l).as_const().is_none() => {
            let left = m.syms.simplify(tiles(l) - g.modulo(p.groups) * p.size);
            (Dim::constant(1), left.min(p.size).max(1))
        }
        None => (Dim::constant(1), Dim::constant(p.tiles)),
        Some(n) => {
            let even = m.syms.simplify(p.images.modulo(n)).as_const() == Some(0);
            (if even { Dim::constant(n) } else { (p.images - g * n).min(Dim::constant(n)) }, tiles(l))
        }
    }
}

/// The tiles of a group in parts, first and number, whose products are loops of their own: of a run-time
/// number, the tiles beyond a multiple of four are the second part.
pub(super) fn parts(tiles: Dim) -> Vec<(Dim, Dim)> {
    let zero = Dim::constant(0);
    if tiles.as_const().is_some() {
        return vec![(zero, tiles)];
    }
    let whole = tiles.floor_div(MULTIPLE) * MULTIPLE;
    vec![(zero, whole), (whole, tiles.modulo(MULTIPLE))]
}

/// The tile and image of an iteration.
pub(super) struct At {
    pub image: Dim,
    pub y: Dim,
    pub x: Dim,
}

/// Tile `t` of image `i` of group `g`, clamped to the last tile.
pub(super) fn tile_at(l: &Layer, p: &Plan, g: Dim, (i, t): (Dim, Dim)) -> At {
    let (all, wide) = (tiles(l), l.x.1.ceil_div(l.side()));
    let (image, t) = match p.whole {
        Some(n) => (g * n + i, t),
        None => {
            let t = g.modulo(p.groups) * p.size + t;
            // Groups of run-time size end with the last tile.
            let inside = all.as_const().is_none_or(|all| (p.groups * p.tiles).as_const() == Some(all));
            (g.floor_div(p.groups), if inside { t } else { t.min(all - 1) })
        }
    };
    At {
        image: if l.n.is_some() { image } else { Dim::constant(0) },
        y: t.floor_div(wide),
        x: t.modulo(wide),
    }
}

/// Tiles along a dimension, of `size` elements each.
pub(super) struct Side {
    pub size: i64,
    pub tiles: Dim,
    /// The last element.
    pub last: Dim,
}

impl Side {
    /// Element `i` from the first one of a tile on, at most the last one; clamped only if it can exceed it.
    pub fn position(&self, tile: Dim, i: i64) -> Dim {
        let most = (self.tiles * self.size + (i - self.size) - self.last).as_const();
        let at = tile * self.size + i;
        if most.is_some_and(|d| d <= 0) { at } else { at.min(self.last) }
    }
}
