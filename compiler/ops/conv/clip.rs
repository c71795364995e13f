//! Removal of convolution taps that only read pads.
//!
//! A dilated kernel may extend beyond a small image on all sides: a 3x3 kernel of dilation 24 over 12x16
//! pixels has a single tap that reads the image. The other taps add zeros and require pads larger than the
//! image. The convolution is reduced to the remaining taps, which are a range along each axis.

use super::Axis;
use crate::nest::Buf;
use crate::ops::LowerCx;
use crate::sym::Dim;
use crate::tensor::{ConstData, consts::Remap};
use std::ops::Range;
use std::sync::Arc;

/// The weights (input `index`) and the axes without such taps; `spatial` and `out` are sizes of the image and
/// the result. All taps are kept if a size is known only at run time, or if all taps of an axis read pads.
pub fn clipped(
    cx: &mut LowerCx,
    index: usize,
    axes: Vec<Axis>,
    spatial: &[Dim],
    out: &[Dim],
) -> (Buf, Vec<Axis>) {
    let w = cx.input(index);
    let sizes = spatial.iter().zip(out);
    let kept: Vec<Range<i64>> =
        axes.iter().zip(sizes).map(|(a, (n, out))| taps(a, *n, *out).unwrap_or(0..a.kernel)).collect();
    if axes.iter().zip(&kept).all(|(a, r)| *r == (0..a.kernel)) {
        return (w, axes);
    }
    let clip = |(a, r): (&Axis, &Range<i64>)| Axis {
        kernel: r.end - r.start,
        before: a.before - r.start * a.dilation,
        after: a.after - (a.kernel - r.end) * a.dilation,
        ..a.clone()
    };
    (slice(cx, w, index, &kept), axes.iter().zip(&kept).map(clip).collect())
}

/// The taps of an axis that read the image for some result; `None` if a size is unknown or there is no such
/// tap.
fn taps(a: &Axis, size: Dim, out: Dim) -> Option<Range<i64>> {
    let (before, size, out) =
        (i128::from(a.before.as_const()?), i128::from(size.as_const()?), i128::from(out.as_const()?));
    // The first and last position of a tap in the image.
    let first = |tap: i64| i128::from(tap) * i128::from(a.dilation) - before;
    let last = |tap: i64| first(tap) + (out - 1) * i128::from(a.stride);
    let start = (0..a.kernel).find(|t| last(*t) >= 0)?;
    let end = (start..a.kernel).find(|t| first(*t) >= size).unwrap_or(a.kernel);
    (start < end && out > 0).then_some(start..end)
}

/// A range of each spatial dimension of the weights.
fn slice(cx: &mut LowerCx, w: Buf, index: usize, kept: &[Range<i64>]) -> Buf {
    let begin: Vec<i64> = [0, 0].into_iter().chain(kept.iter().map(|r| r.start)).collect();
    let mut dims = cx.dims(w)[..2].to_vec();
    dims.extend(kept.iter().map(|r| Dim::constant(r.end - r.start)));
    let sizes: Option<Vec<i64>> = dims.iter().map(|d| d.as_const()).collect();
    if let Some((c, sizes)) = cx.constant(index).zip(sizes) {
        let coeff = (0..begin.len()).map(|i| (0..begin.len()).map(|j| i64::from(i == j)).collect()).collect();
        if let Some(part) = ConstData::remap(c, Remap { dims: sizes, offset: begin.clone(), coeff }) {
            let name = format!("{}.taps", cx.m.bufs[w].name);
            return cx.m.constant(name, Arc::new(part));
        }
    }
    let part = cx.temp("taps", cx.elem(w), dims);
    cx.map(part, |k, at| {
        let from: Vec<Dim> = at.iter().zip(&begin).map(|(i, b)| *i + *b).collect();
        k.load(w, &from)
    });
    part
}
