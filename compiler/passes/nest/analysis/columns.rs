//! The dimension of a convolution along which vectors run: output channels, or the row of the image.

use super::form::{Contraction, ProductKind, depends};
use super::strides::{stride, unit_stride_var};
use crate::nest::{Buf, Math, Module};
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

/// The channels of the image that a sum runs over, if their number is known.
fn depth_of_group(c: &Contraction) -> Option<i64> {
    extent(&c.reduction, &|l| c.a.1.get(1).is_some_and(|d| d.contains(l)))
}

/// The iterations of those of the loops for which `found` holds, if their number is known.
fn extent(loops: &[(Sym, Dim)], found: &dyn Fn(Sym) -> bool) -> Option<i64> {
    Dim::product(loops.iter().filter(|l| found(l.0)).map(|l| l.1)).as_const()
}

/// Costs of a step of the sum per element of the result, in twentieths: of full vectors along rows, which
/// cross cache lines; and what the ends of a row cost, in elements.
const STEP_ALONG_ROW: i64 = 25;
const ROW_OVERHEAD: i64 = 8;
/// The row that stands for those of run-time length: its last vector is partial.
pub(crate) const UNKNOWN_ROW: i64 = 36;
/// The same for the only spatial dimension: signals are longer than the rows of images.
const UNKNOWN_SIGNAL: i64 = 160;

/// The same with vectors along the output channels, `channels` of them in a group. The result is transposed
/// into planes, and so is the image, unless lanes read it in `planes`. Constants are those of a comparison of
/// both ways over 14 convolutions with images of 7x7 to 64x64.
fn along_channels(m: &Module, c: &Contraction, channels: i64, out: Buf, planes: bool) -> Option<i64> {
    const TRANSPOSE_RESULT: i64 = 400;
    const TRANSPOSE_IMAGE: i64 = 200;
    let of = |b: Buf| m.bufs[b].dims.get(1)?.as_const();
    let (read, written) = (of(c.a.0)?, of(out)?);
    let depth = Dim::product(c.reduction.iter().map(|l| l.1)).as_const().filter(|d| *d > 0)?;
    let step = match channels {
        n if n >= LANES => whole(n) * 16 / n,
        // Lanes of several groups each read from another plane.
        n if planes => (480 / n).max(40),
        n if LANES % n == 0 && written % LANES == 0 => 26,
        // Vectors along the sum.
        _ if depth_of_group(c) >= Some(2 * LANES) => 33,
        _ => 40,
    };
    let image = if planes { 0 } else { TRANSPOSE_IMAGE * read };
    Some(step + (TRANSPOSE_RESULT * written + image) / (written * depth))
}

/// The row of a convolution between planes, if vectors along it cost less than along the output channels of
/// a group. Vectors read the image in place, at each tap. `planes`: the image will not be transposed.
pub(crate) fn fuller_row(m: &Module, c: &Contraction, planes: bool) -> Option<(Sym, Dim)> {
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
    let assumed = if m.bufs[out].dims.len() == 3 { UNKNOWN_SIGNAL } else { UNKNOWN_ROW };
    let length = row.1.as_const().unwrap_or(assumed).max(1);
    let along_row = STEP_ALONG_ROW * (whole(length) + ROW_OVERHEAD) / length;
    let along_channels = along_channels(m, c, channels, out, planes)?;
    (fits && along_row < along_channels).then_some(row)
}
