//! winograd: convolutions with fewer multiplications (Winograd; Lavin, Gray: Fast Algorithms for
//! Convolutional Neural Networks). `points` has the transforms of F(m, r); `line` applies them along one
//! dimension of the image, where a convolution has few channels or many taps. Here they are applied in both:
//! 3x3 convolutions of stride 1 as F(4x4, 3x3), 36 products of matrices for a tile of 4x4 results instead of
//! 144.
//!
//! ```text
//! U = G g G'   once, here, in f64          [slice][36][C][K / slices]
//! V = B' d B   from 6x6 of the image       [slot][block of C][36][tiles of a group][C / blocks]
//! M = V U      36 contractions             [slot][36][tiles of a group][K / slices]
//! Y = A' M A   and the epilogue, 16 stores
//! ```
//!
//! One parallel loop runs over groups of tiles and slices of output channels, so that V and M of a group stay
//! in the cache between the steps. Where channels are cut into slices, all slices share a V that a kernel of
//! its own makes. Of an image of run-time size, a slice is a panel of register tiles: products of many rows
//! and of the last few then read the same U, in place.
//!
//! On levels with f16 arithmetic, `--math fast` computes layers whose weights are f16 by F(2x2, 3x3) with V,
//! U and M of f16: 16 products of f16 for 4 results (`choice`).
//!
//! U is four times the weights. Where it would come from memory for a few tiles, because a cache cannot hold
//! U of all layers, it is made while the model runs, block after block of input channels
//! (`[slot][36][C / blocks][K / slices]`), and M is a sum over blocks; a group is then several images if
//! these are small. While a block is multiplied, memory is asked for the weights of the next one.
//!
//! Parts of V and M are named by a loop of one iteration inside the parallel one: code generation lets all
//! iterations of a task use one part (`nest`, rule 12).
//!
//! No access has a condition, whatever the sizes are: where the number of tiles is known, a group's tiles beyond
//! the last one repeat it; rows and columns beyond the image are clamped. What a tile stores beyond the image
//! falls on its own last row or column, which it stores again afterwards: stores go from the last position to
//! the first.
//!
//! Sums are made in another order than the operator's definition has it, with factors from 1/24 to 8: errors
//! are a few times those of the direct sum, along one dimension half of that (tests/winograd.rs). Sums of
//! integers (`exact_sums`) are left alone. `choice` decides for two dimensions, `line::Line::gain` for one,
//! both beside what the level takes for the plain sum: with `--math fast`, that may be one of bf16 or f16.

mod choice;
mod line;
mod points;
mod transform;

use crate::diag::Result;
use crate::nest::{Expr, Kernel, KernelBuilder, LoopKind, Math, Module, Stmt, visit};
use crate::passes::nest::analysis::cost::MOVE;
use crate::passes::nest::analysis::form::{Contraction, Convolution, ProductKind};
use crate::passes::nest::analysis::machine::{L2, L3, SLOTS, THREADS};
use crate::passes::nest::analysis::shape::in_slots;
use crate::passes::nest::analysis::strides::stride;
use crate::sym::{Dim, Sym};
use crate::target::Level;
use crate::tensor::{ConstData, ElemType};
pub use choice::variant;
use choice::{CACHED_READ, Direct, MOST_WEIGHTS, READ, ROW, TRANSFORM};
use points::{Form, SQUARE};
use std::sync::Arc;
use transform::{input, output, packed, prefetch_weights, transformed, weights};

/// Maximum parts of scratch where weights are transformed while the model runs: each has a copy of them.
const FRESH_SLOTS: i64 = 16;
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

/// Runs the pass.
pub fn run(m: &mut Module, level: &Level) -> Result<()> {
    let direct = Direct::of(m, &level.facts);
    if level.facts.lanes == 1 || m.math == Math::Strict || !m.optimize.may_grow() {
        return Ok(());
    }
    // U has four times the bytes of the weights.
    let cached = 4 * m.constant_bytes() <= L3 as u64;
    let kernels = visit::calls(&m.driver);
    for k in kernels {
        let Some(parts) = m.form(k).contraction().filter(|p| p.product == ProductKind::Fma && !p.is_exact(m))
        else {
            continue;
        };
        if let Some(l) = layer(m, parts, cached).and_then(|l| choice::chosen(m, l, direct)) {
            rewrite(m, k, &l);
        } else if let Some(l) = line::layer(m, parts, direct.speed(m, parts.b.0) as f64) {
            line::rewrite(m, k, &l);
        }
    }
    Ok(())
}

/// A convolution to which the transform applies.
#[derive(Clone)]
struct Layer {
    parts: Contraction,
    /// The transform in both directions.
    form: Form,
    /// U, V and M are f16, and so are the products.
    halves: bool,
    /// The third-level cache holds U of all layers of the model.
    cached: bool,
    /// Batch, if there is such a loop.
    n: Option<(Sym, Dim)>,
    /// Output channels, rows, columns.
    k: (Sym, i64),
    y: (Sym, Dim),
    x: (Sym, Dim),
    /// Input channels.
    c: (Sym, i64),
    /// The weights `[K][C][3][3]`.
    weights: Arc<ConstData>,
    /// Where the window of output (0, 0) begins.
    from: (i64, i64),
}

fn layer(m: &Module, p: &Contraction, cached: bool) -> Option<Layer> {
    let conv = Convolution::of(p)?;
    let (c, k, n) = (conv.channels()?, conv.filters, conv.batch);
    let three = |axis: usize| conv.unit_window(axis).filter(|s| s.taps() == Some(3));
    let (rows, columns) = (three(2)?, three(3)?);
    if p.a.1.len() != 4 || p.reduction.len() != 3 || conv.positions.len() != 2 {
        return None;
    }
    let weights = m.constant_data(p.b.0).filter(|w| w.elem().is_float())?;
    if m.bufs[p.a.0].ty != ElemType::F32 || m.storage(p.a.0) != p.a.0 {
        return None;
    }
    // Vectors run along channels on both sides.
    let (out, at) = p.store()?;
    if stride(m, p.a.0, &p.a.1, c.0) != Some(1) || stride(m, out, &at, k.0) != Some(1) {
        return None;
    }
    let (c, k) = ((c.0, c.1.as_const()?), (k.0, k.1.as_const()?));
    let whole = weights.count() == (9 * k.1 * c.1) as u64;
    whole.then(|| Layer {
        weights: weights.clone(),
        n,
        k,
        y: rows.along,
        x: columns.along,
        c,
        from: (rows.first, columns.first),
        parts: p.clone(),
        form: SQUARE,
        halves: false,
        cached,
    })
}

impl Layer {
    /// Results of a side of a tile.
    fn side(&self) -> i64 {
        self.form.results() as i64
    }
    /// Products of a tile.
    fn products(&self) -> i64 {
        (self.form.products() * self.form.products()) as i64
    }
    /// The type of U, V and M.
    fn factors(&self) -> ElemType {
        if self.halves { ElemType::F16 } else { ElemType::F32 }
    }
    /// Bytes of V and M of a tile, M for at most `width` output channels.
    fn near(&self, width: i64) -> i64 {
        self.products() * self.factor_bytes() * (self.c.1 + self.k.1.min(width))
    }
    /// See [`choice::READ`].
    fn read(&self) -> i64 {
        if self.cached { CACHED_READ } else { READ }
    }
    fn factor_bytes(&self) -> i64 {
        if self.halves { 2 } else { 4 }
    }
}

/// Bytes of U.
fn bytes(l: &Layer) -> i64 {
    l.products() * l.factor_bytes() * l.c.1 * l.k.1
}

/// Tiles of an image.
fn tiles(l: &Layer) -> Dim {
    l.y.1.ceil_div(l.side()) * l.x.1.ceil_div(l.side())
}

/// The decomposition of the work.
struct Plan {
    /// Maximum tiles of a group.
    tiles: i64,
    /// Tiles of all groups but the last.
    size: Dim,
    /// Images of a group, if groups consist of whole images.
    whole: Option<i64>,
    /// Groups of an image, or of all images if groups consist of whole images.
    groups: Dim,
    /// All groups.
    total: Dim,
    /// Slices of the output channels.
    slices: i64,
    /// Input channels of a block.
    block: i64,
    /// Whether weights are transformed while the model runs.
    fresh: bool,
    images: Dim,
}

/// Output channels of a slice and input channels of a block, if weights are to be transformed at run time: U
/// would come from beyond the second-level cache, and there are too few tiles to hide the latency.
fn fresh(l: &Layer) -> Option<(i64, i64)> {
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

/// The plan if weights are transformed for each group: groups are large, and contain several images if these
/// are small.
fn fresh_plan(l: &Layer, (width, block): (i64, i64)) -> Plan {
    let (tiles, images) = (tiles(l), l.n.map_or(Dim::constant(1), |n| n.1));
    // Parts of equal size, none above `most`.
    let share = |n: i64, most: i64| {
        let parts = ((n + most - 1) / most).max(1);
        ((n + parts - 1) / parts).max(1)
    };
    let (size, whole, groups) = match tiles.as_const() {
        Some(t) if 2 * t <= FRESH_TILES => {
            let most = FRESH_TILES / t;
            let whole = images.as_const().map_or(most, |n| share(n, most));
            (whole * t, Some(whole), images.ceil_div(whole))
        }
        t => {
            let size = t.map_or(FRESH_TILES / 2, |t| share(t, FRESH_TILES));
            (size, None, tiles.ceil_div(size))
        }
    };
    let total = if whole.is_some() { groups } else { images * groups };
    Plan {
        tiles: size,
        size: shares(tiles, groups, size),
        whole,
        groups,
        total,
        slices: l.k.1 / width,
        block,
        fresh: true,
        images,
    }
}

fn plan(l: &Layer) -> Plan {
    if let Some(cut) = fresh(l) {
        return fresh_plan(l, cut);
    }
    let (tiles, images) = (tiles(l), l.n.map_or(Dim::constant(1), |n| n.1));
    // V and M of a group in a second-level cache.
    let most = ((512 << 10) / l.near(64)).clamp(16, if l.halves { 98 } else { 49 });
    let size = match tiles.as_const() {
        None => most.min(UNKNOWN_TILES) / MULTIPLE * MULTIPLE,
        Some(t) => {
            let groups = (t + most - 1) / most;
            (t + groups - 1) / groups
        }
    };
    // U of a slice is read once per group; if there are few groups, threads share the work by slices.
    let few = tiles.as_const().is_some_and(|t| (t + size - 1) / size < 8);
    let narrow = |widths: &[i64]| widths.iter().find(|w| l.k.1 % **w == 0).map_or(1, |w| l.k.1 / w);
    let slices = match tiles.as_const() {
        // Products of any number of rows read U in place in slices of two vectors.
        None => narrow(&[PANEL]),
        _ if few || l.c.1 * l.k.1 > 64 * 64 => narrow(&[64, PANEL]),
        _ => 1,
    };
    let (size, slices) =
        tiles.as_const().and_then(|t| even(l, t, size)).filter(|_| few).unwrap_or((size, slices));
    let groups = tiles.ceil_div(size);
    Plan {
        tiles: size,
        size: shares(tiles, groups, size),
        whole: None,
        groups,
        total: images * groups,
        slices,
        block: l.c.1,
        fresh: false,
        images,
    }
}

/// Tiles of a group, at most `most`: groups of an image of run-time size are similar, so that threads have equal
/// shares.
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
fn members(m: &Module, l: &Layer, p: &Plan, g: Dim) -> (Dim, Dim) {
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

/// The tiles of a group in parts, first and number, whose products are loops of their own: of a run-time number, the
/// tiles beyond a multiple of four are the second part.
fn parts(tiles: Dim) -> Vec<(Dim, Dim)> {
    let zero = Dim::constant(0);
    if tiles.as_const().is_some() {
        return vec![(zero, tiles)];
    }
    let whole = tiles.floor_div(MULTIPLE) * MULTIPLE;
    vec![(zero, whole), (whole, tiles.modulo(MULTIPLE))]
}

/// Runs `f` with the value as a loop variable if it is not known: expressions would repeat it.
fn named(kb: &mut KernelBuilder, value: Dim, f: &mut dyn FnMut(&mut KernelBuilder, Dim)) {
    match value.as_const() {
        Some(_) => f(kb, value),
        None => kb.range(LoopKind::Seq, "n", value, value + 1, f),
    }
}

/// The tile and image of an iteration.
struct At {
    image: Dim,
    y: Dim,
    x: Dim,
}

/// Tile `t` of image `i` of group `g`, clamped to the last tile.
fn tile_at(l: &Layer, p: &Plan, g: Dim, (i, t): (Dim, Dim)) -> At {
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

/// Position `size * tile + i + from`, at most `last`; clamped only if it can exceed it.
fn position(tile: Dim, i: i64, from: i64, size: i64, tiles: Dim, last: Dim) -> Dim {
    let most = (tiles * size + (i + from - size) - last).as_const();
    let at = tile * size + (i + from);
    if most.is_some_and(|d| d <= 0) { at } else { at.min(last) }
}

fn rewrite(m: &mut Module, k: Kernel, l: &Layer) {
    let p = plan(l);
    let (name, origin) = (m.kernels[k].name.clone(), m.kernels[k].origin.clone());
    let width = l.k.1 / p.slices;
    let Some(w) = (if p.fresh { packed(l, p.slices) } else { transformed(l, p.slices) }) else { return };
    let w = m.constant(format!("{}.winograd", m.bufs[l.parts.b.0].name), w);
    let constant = Dim::constant;
    let total = p.total * p.slices;
    let most = if p.fresh { FRESH_SLOTS } else { SLOTS };
    let slots = total.as_const().map_or(most, |t| t.min(most));
    let blocks = l.c.1 / p.block;
    // An odd number of cache lines between the planes: otherwise they would share few cache sets.
    let odd = |n: i64| n + i64::from(n % 2 == 0);
    let group = |channels: i64, bytes: i64| {
        let of = 64 / bytes;
        let line = if !p.fresh && channels % of == 0 { odd(channels / of) * of } else { channels };
        [constant(l.products()), constant(odd(p.tiles)), constant(line)]
    };
    let shared = p.slices > 1;
    let v = m.temp(
        format!("{name}.v"),
        l.factors(),
        [
            [if shared { p.total } else { constant(slots) }, constant(blocks)].as_slice(),
            &group(p.block, l.factor_bytes()),
        ]
        .concat(),
    );
    let mm = m.temp(
        format!("{name}.m"),
        l.factors(),
        [[constant(slots)].as_slice(), &group(width, l.factor_bytes())].concat(),
    );
    let u = if p.fresh {
        m.temp(
            format!("{name}.u"),
            ElemType::F32,
            vec![constant(slots), constant(36), constant(p.block + 1), constant(width)],
        )
    } else {
        w
    };
    // A quarter of the direct sum.
    let work = p.images * l.y.1 * l.x.1 * (9 * l.c.1 * l.k.1 / 16);
    let mut calls = vec![];
    if shared {
        let id = m.kernel(&format!("{name}.v"), &origin, |kb| {
            // All tiles of an image, and its groups if they do not consist of whole images.
            let (images, t, groups) = match (p.whole, tiles(l).as_const()) {
                (Some(n), _) => (n, tiles(l), None),
                (None, Some(_)) => (1, p.groups * p.tiles, Some(p.groups)),
                (None, None) => (1, tiles(l), Some(p.groups)),
            };
            kb.range(LoopKind::Par, "r", 0, p.images * t, |kb, r| {
                let (image, t_at) = (r.floor_div(t), r.modulo(t));
                let (g, i, t_at) = match groups {
                    Some(n) => (image * n + t_at.floor_div(p.size), constant(0), t_at.modulo(p.size)),
                    None => (image.floor_div(images), image.modulo(images), t_at),
                };
                let at = tile_at(l, &p, g, (i, t_at));
                input(kb, l, &at, (p.block, blocks), v, [g, i * t + t_at]);
            });
        });
        // Reads the image and writes 36 sums for 16 elements of it.
        m.kernels[id].work = p.images * l.y.1 * l.x.1 * (l.c.1 * (4 + 3 * MOVE));
        calls.push(id);
    }
    let id = m.kernel(&name, &origin, |kb| {
        in_slots(kb, total, slots, &mut |kb, slot, i| {
            let (slice, g) = (i.floor_div(p.total), i.modulo(p.total));
            let (images, tiles) = members(kb.m, l, &p, g);
            named(kb, tiles, &mut |kb, tiles| {
                let each = |kb: &mut KernelBuilder, f: &mut dyn FnMut(&mut KernelBuilder, At, Dim)| {
                    kb.nest(LoopKind::Seq, &[images, tiles], |kb, at| {
                        let from = tile_at(l, &p, g, (at[0], at[1]));
                        f(kb, from, at[0] * tiles + at[1]);
                    });
                };
                if !shared {
                    each(kb, &mut |kb, at, t| input(kb, l, &at, (p.block, blocks), v, [slot, t]));
                }
                let from = if shared { g } else { slot };
                let part = |kb: &mut KernelBuilder, b: Dim, more: bool| {
                    if p.fresh {
                        weights(kb, (w, slice, b * p.block), (p.block, width), u, slot);
                    }
                    let products = |kb: &mut KernelBuilder, e: Dim, at: [Dim; 2]| {
                        let (t, k) = (at[0], at[1]);
                        let acc = kb.acc(Expr::f32(0.0));
                        kb.range(LoopKind::Seq, "c", 0, p.block, |kb, c| {
                            let (x, y) = (
                                kb.load(v, &[from, b, e, t, c]),
                                kb.load(u, &[if p.fresh { slot } else { slice }, e, c, k]),
                            );
                            kb.set(acc, Expr::fma(x, y, Expr::acc(acc)));
                        });
                        let at = [slot, e, t, k];
                        let sum = if more { Expr::acc(acc) + kb.load(mm, &at) } else { Expr::acc(acc) };
                        kb.store(mm, &at, sum);
                    };
                    let of = |kb: &mut KernelBuilder, e: Option<Dim>| {
                        for (first, count) in parts(tiles) {
                            let loops = [constant(l.products()), images, count, constant(width)];
                            kb.nest(LoopKind::Par, &loops[usize::from(e.is_some())..], |kb, o| {
                                let (e, o) = e.map_or((o[0], &o[1..]), |e| (e, o));
                                products(kb, e, [o[0] * tiles + o[1] + first, o[2]]);
                            });
                        }
                    };
                    if p.fresh {
                        kb.range(LoopKind::Seq, "e", 0, 36, |kb, e| {
                            of(kb, Some(e));
                            prefetch_weights(kb, (w, slice, (b + 1) * p.block), p.block * width, e);
                        });
                    } else if parts(tiles).len() > 1 {
                        // The second part finds U of a product in the cache.
                        kb.range(LoopKind::Seq, "e", 0, l.products(), |kb, e| of(kb, Some(e)));
                    } else {
                        of(kb, None);
                    }
                };
                part(kb, constant(0), false);
                if blocks > 1 {
                    kb.range(LoopKind::Seq, "b", 1, blocks, |kb, b| part(kb, b, true));
                }
                each(kb, &mut |kb, at, t| {
                    kb.range(LoopKind::Par, "k", 0, width, |kb, k| {
                        output(kb, l, &at, p.fresh, mm, (slot, t, k), slice * width + k)
                    });
                });
            });
        });
    });
    m.kernels[id].work = work;
    calls.push(id);
    m.driver.truncate(m.driver.len() - calls.len());
    visit::splice_call(&mut m.driver, k, false, calls.into_iter().map(Stmt::Call).collect());
}
