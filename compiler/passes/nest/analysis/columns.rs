//! The dimension of a convolution along which vectors run: output channels, or the row of the image.

use super::form::{Contraction, ProductKind, depends};
use super::strides::{stride, unit_stride_var};
use crate::nest::{Math, Module};
use crate::sym::{Dim, Sym};

/// Lanes of the longest vectors.
pub(crate) const LANES: i64 = 16;
/// Minimum columns of a tile on every level. Fewer output channels are sums of vectors along the row.
pub(crate) const FEWEST_COLUMNS: i64 = 4;

/// Lanes of the vectors that hold `n` elements.
pub(crate) fn whole(n: i64) -> i64 {
    (n + LANES - 1) / LANES * LANES
}

/// True if each channel of the image has its own weights and no reduction runs over several channels.
pub(crate) fn is_depthwise(loops: &[(Sym, Dim)], image: &[Dim], weights: &[Dim]) -> bool {
    let Some(channel) = image.get(1).and_then(|d| d.as_sym()) else { return false };
    depends(weights, channel) && loops.iter().any(|l| l.0 == channel)
}

/// The output channels of a group, if their number is known.
pub(crate) fn channels_of_group(c: &Contraction) -> Option<i64> {
    extent(&c.loops, &|l| c.is_only_of_b(l))
}

/// The iterations of those of the loops for which `found` holds, if their number is known.
fn extent(loops: &[(Sym, Dim)], found: &dyn Fn(Sym) -> bool) -> Option<i64> {
    Dim::product(loops.iter().filter(|l| found(l.0)).map(|l| l.1)).as_const()
}

/// The row of a convolution between planes, if vectors along it are fuller than along the output channels of
/// a group. Vectors read the image in place, at each tap.
pub(crate) fn fuller_row(m: &Module, c: &Contraction) -> Option<(Sym, Dim)> {
    let (out, at) = c.store()?;
    let var = unit_stride_var(m, out, &at, &c.loops)?;
    let row = c.loops.iter().copied().find(|l| l.0 == var)?;
    let channels = channels_of_group(c).filter(|n| *n >= FEWEST_COLUMNS)?;
    // The order of sums is that of levels that cannot read partial vectors.
    let fits = m.math != Math::Strict
        && c.product == ProductKind::Fma
        && c.reduction.len() > 1
        && c.with.is_none()
        && m.is_constant(c.b.0)
        && !m.is_constant(c.a.0)
        && !depends(&c.b.1, var)
        && stride(m, c.a.0, &c.a.1, var) == Some(1)
        && !is_depthwise(&c.loops, &c.a.1, &c.b.1);
    // Cost per element, in twentieths of that of full vectors: those along rows cross cache lines. Output
    // channels that fill half of a vector may have vectors along the sum, and those of several groups
    // together vectors of their own.
    let groups = extent(&c.loops, &|l| c.is_of_both(l));
    let read = extent(&c.reduction, &|l| c.a.1.get(1).is_some_and(|d| d.contains(l)));
    let divides = LANES % channels == 0 && groups.is_none_or(|g| g * channels >= LANES);
    let along_channels = match channels {
        n if n * 2 >= LANES && read.is_none_or(|r| r * 2 >= LANES) => whole(n) * 13 / n,
        _ if divides => 30,
        n => whole(n) * 20 / n,
    };
    // Of rows of run-time length, the last vector alone may be partial.
    let along_row = match row.1.as_const() {
        Some(n) => whole(n) * 25 / n,
        None if divides => return None,
        None => 28,
    };
    (fits && along_row < along_channels).then_some(row)
}
