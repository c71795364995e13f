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
//! No access has a condition, whatever the sizes are: where the number of tiles is known, a group's tiles
//! beyond the last one repeat it; rows and columns beyond the image are clamped. What a tile stores beyond
//! the image falls on its own last row or column, which it stores again afterwards: stores go from the last
//! position to the first.
//!
//! Sums are made in another order than the operator's definition has it, with factors from 1/24 to 8: errors
//! are a few times those of the direct sum, along one dimension half of that (tests/winograd.rs). Sums of
//! integers (`exact_sums`) are left alone. `choice` decides for two dimensions, `line::Line::gain` for one,
//! both beside what the level takes for the plain sum: with `--math fast`, that may be one of bf16 or f16.

mod choice;
mod line;
mod plan;
mod points;
mod rewrite;
mod transform;

use crate::diag::Result;
use crate::nest::{Math, Module, visit};
use crate::passes::nest::analysis::form::{Contraction, Convolution, ProductKind};
use crate::passes::nest::analysis::machine::L3;
use crate::passes::nest::analysis::strides::stride;
use crate::sym::{Dim, Sym};
use crate::target::Level;
use crate::tensor::{ConstData, ElemType};
pub use choice::variant;
use choice::{CACHED_READ, Direct, READ};
use plan::Side;
use points::{Form, SQUARE};
use std::sync::Arc;

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
            rewrite::rewrite(m, k, &l);
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
    /// Rows of tiles of `count` image rows.
    fn rows(&self, count: Dim) -> Side {
        Side { size: self.side(), tiles: self.y.1.ceil_div(self.side()), last: count - 1 }
    }
    /// The same for columns.
    fn columns(&self, count: Dim) -> Side {
        Side { size: self.side(), tiles: self.x.1.ceil_div(self.side()), last: count - 1 }
    }
}
