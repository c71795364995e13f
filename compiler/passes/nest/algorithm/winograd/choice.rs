//! Which transform a layer gets: F(4x4, 3x3) with products of f32, F(2x2, 3x3) with products of f16, or none.
//!
//! For the same results, products of F(2x2, 3x3) in f16 take eight ninths of the time of those of F(4x4, 3x3)
//! in f32, and transforms take longer, of four times as many tiles: where both are faster than the direct
//! sum, f32 takes as long and is more precise. But the weights of F(2x2, 3x3) are small enough to be
//! transformed at compile time. Where those of F(4x4, 3x3) would have to be transformed at run time, f16
//! takes half as long; and it is faster than the direct sum in f16 for smaller images.

use super::Layer;
use super::plan::{bytes, fresh, tiles};
use super::points::SMALL;
use crate::nest::{Buf, Math, Module};
use crate::passes::nest::analysis::machine::L2;
use crate::passes::nest::quantize::bf16_dot;
use crate::target::Facts;
use crate::tensor::ElemType;

/// Cycles for one input channel and 16 output channels on a core with 512-bit vectors: products of a tile
/// with U, of f32 or, for a tile of F(2x2, 3x3), of f16,
pub(super) const ROW: i64 = 20;
const HALF_ROW: i64 = 5;
/// products of a direct f32 sum for one result,
const PLAIN: i64 = 4;
/// reading U from memory, and from the third-level cache,
pub(super) const READ: i64 = 576;
pub(super) const CACHED_READ: i64 = 95;
/// transforming weights, and the image and the result of few tiles.
pub(super) const TRANSFORM: i64 = 100;
const FEW_TILES: i64 = 60;
/// Maximum bytes of U worth storing: four times the weights.
pub(super) const MOST_WEIGHTS: i64 = 16 * L2;
/// Minimum channels for products of f16: shorter sums are in f32.
const HALF_CHANNELS: i64 = 32;

/// The type in which a level computes direct sums.
#[derive(Clone, Copy)]
pub(super) enum Direct {
    Plain,
    /// Dot products of bf16, whichever floats the factors are.
    Brain,
    /// f16, if the weights are f16.
    Halves,
}

impl Direct {
    pub fn of(m: &Module, facts: &Facts) -> Direct {
        if bf16_dot::applies(m, facts) {
            Direct::Brain
        } else if facts.caps.halves && m.math == Math::Fast {
            Direct::Halves
        } else {
            Direct::Plain
        }
    }
    /// Throughput of multiply-adds by these weights, relative to f32.
    pub fn speed(self, m: &Module, weights: Buf) -> i64 {
        match self {
            Direct::Plain => 1,
            Direct::Brain => 2,
            Direct::Halves => 1 + i64::from(m.bufs[weights].ty == ElemType::F16),
        }
    }
}

/// Levels whose direct sums take equally long share a module from here on.
pub fn variant(m: &Module, facts: &Facts) -> u32 {
    match Direct::of(m, facts) {
        Direct::Plain => 1,
        Direct::Brain => 2,
        Direct::Halves => 3,
    }
}

/// The layer with the transform that is faster than the direct sum, if one is.
pub(super) fn chosen(m: &Module, l: Layer, direct: Direct) -> Option<Layer> {
    let speed = direct.speed(m, l.parts.b.0);
    let halves = Layer { form: SMALL, halves: true, ..l.clone() };
    let plain = wins(m, &l, speed);
    let of_half = matches!(direct, Direct::Halves) && speed > 1 && half_wins(m, &halves, speed);
    if of_half && (!plain || fresh(&l).is_some()) {
        return Some(halves);
    }
    plain.then_some(l)
}

/// Whether F(2x2, 3x3) with products of f16 is profitable.
fn half_wins(m: &Module, l: &Layer, speed: i64) -> bool {
    let (tiles, area) = (tiles(l), l.y.1 * l.x.1);
    let full = match (tiles.as_const(), area.as_const()) {
        (Some(t), Some(a)) => HALF_ROW * t < PLAIN * a / speed,
        _ => m.syms.range(area).hi.is_none_or(|h| h >= 64),
    };
    full && l.c.1 >= HALF_CHANNELS && l.k.1 >= HALF_CHANNELS && bytes(l) <= MOST_WEIGHTS
}

/// Whether the transform is profitable: there are enough tiles for the matrix products, and few of them
/// extend beyond the image. `speed`: throughput of the direct sum's products relative to f32.
fn wins(m: &Module, l: &Layer, speed: i64) -> bool {
    let (tiles, area) = (tiles(l), l.y.1 * l.x.1);
    let full = match (tiles.as_const(), area.as_const()) {
        (Some(t), Some(a)) if speed > 1 => ROW * t + TRANSFORM < PLAIN * a / speed,
        // Cycles for a single image: those of the products and of the weight transform, or of all but that.
        (Some(t), Some(a)) if t < 9 => match fresh(l) {
            Some(_) => l.c.1.min(l.k.1) >= 64 && ROW * t + TRANSFORM < ROW * a / 4,
            // Direct sums at the border of a small image have fewer terms.
            None => l.cached && (ROW * t).max(l.read()) + FEW_TILES < PLAIN * a * 4 / 5,
        },
        (Some(t), Some(a)) => 16 * t <= 2 * a,
        _ => m.syms.range(area).hi.is_none_or(|h| h >= 144 * speed),
    };
    full && l.c.1 >= 16 && l.k.1 >= 16 && (bytes(l) <= MOST_WEIGHTS || fresh(l).is_some())
}
