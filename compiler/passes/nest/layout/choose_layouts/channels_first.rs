//! Images that keep channels first, because vectors along channels would be nearly empty or slower.

use super::{FEW, LEAST, spatial_is_one};
use crate::nest::{Buf, Kernel, Layout, Module, Place, visit};
use crate::passes::nest::analysis::columns::{FEWEST_COLUMNS, channels_of_group, fuller_row, is_depthwise};
use crate::passes::nest::analysis::form::Contraction;
use crate::passes::nest::analysis::strides::unit_stride_var;
use crate::passes::nest::analysis::uses::Uses;
use crate::sym::Dim;
use std::collections::HashSet;

/// True for the padded copy of a caller's image with few channels, or of any image whose channels do not fill
/// half of a vector: vectors along channels would be nearly empty, and a convolution broadcasts single
/// elements in any layout.
pub(super) fn comes_channels_first(m: &Module, uses: &Uses, b: Buf) -> bool {
    let Some(channels) = m.bufs[b].dims[1].as_const().filter(|c| (2..=FEW).contains(c)) else { return false };
    let copies = |k: &Kernel| {
        let loads = visit::loads(&m.kernels[*k].body);
        // A kernel that fills pads has no loads.
        (channels < LEAST || !loads.is_empty())
            && loads.iter().all(|s| !matches!(m.bufs[m.storage(*s)].place, Place::Temp))
    };
    // The result of a convolution has the layout that its stores need.
    !uses.writers(b).iter().any(|k| m.form(*k).contraction().is_some())
        && uses.writers(b).iter().any(|k| m.form(*k).map().is_some_and(|map| map.buf == b) && copies(k))
}

/// True for the result of a depthwise convolution of few channels whose image stays in planes: lanes along
/// channels would each read from another plane.
pub(super) fn comes_from_planes(m: &Module, uses: &Uses, b: Buf, chosen: &HashSet<Buf>) -> bool {
    let few = m.bufs[b].dims[1].as_const().is_some_and(|c| c <= FEW);
    few && uses.writers(b).iter().any(|k| {
        m.form(*k).contraction().is_some_and(|c| {
            is_depthwise(&c.loops, &c.a.1, &c.b.1)
                && m.bufs[c.a.0].layout == Layout::RowMajor
                && !chosen.contains(&c.a.0)
                && !spatial_is_one(m, c.a.0)
        })
    })
}

/// True if an image among these is such a copy.
pub(super) fn few_come_channels_first(m: &Module, images: &[Buf]) -> bool {
    let few = |b: &Buf| m.bufs[*b].dims.get(1).and_then(|d| d.as_const()).is_some_and(|c| c <= FEW);
    // The writers are queried only if necessary.
    images.iter().any(few) && {
        let uses = Uses::new(m);
        images.iter().any(|b| few(b) && comes_channels_first(m, &uses, *b))
    }
}

/// True for a convolution with so few output channels per group that vectors along rows are fuller.
pub(super) fn has_few_columns(m: &Module, c: &Contraction) -> bool {
    let very_few = channels_of_group(c).is_some_and(|n| n < FEWEST_COLUMNS);
    let planes = m.is_given(c.a.0);
    very_few && !is_depthwise(&c.loops, &c.a.1, &c.b.1) || fuller_row(m, c, planes).is_some()
}

/// True for a convolution of an input image whose vectors run along rows, whoever else reads the image.
pub(super) fn reads_rows_of_input(m: &Module, c: &Contraction) -> bool {
    m.is_given(c.a.0) && fuller_row(m, c, true).is_some()
}

/// True for the padded copy of an input image that is read only by convolutions with very few output
/// channels, in total or per group, whose results are outputs: vectors run along the rows of both.
pub(super) fn stays_channels_first(m: &Module, uses: &Uses, b: Buf) -> bool {
    let few = |k: &Kernel| match visit::stores(&m.kernels[*k].body)[..] {
        [out] => {
            let all = m.bufs[out].dims.get(1).and_then(|d| d.as_const());
            matches!(m.bufs[out].place, Place::Output(_))
                && m.bufs[out].dims.len() >= 3
                && m.form(*k)
                    .contraction()
                    .is_some_and(|c| all.is_some_and(|n| n < FEWEST_COLUMNS) || has_few_columns(m, c))
        }
        _ => false,
    };
    let readers = uses.readers(b);
    !readers.is_empty()
        && readers.iter().all(few)
        && uses.writers(b).iter().all(|k| visit::loads(&m.kernels[*k].body).iter().all(|s| m.is_given(*s)))
}

/// True for an image whose channels and positions are interleaved by maps along rows of their results (the
/// phases of a transposed convolution): lanes then read from a few rows of planes, but from pixels only if a
/// few vectors hold all of the pixels. Results with channels innermost read adjacent channels.
pub(super) fn is_interleaved(m: &Module, uses: &Uses, b: Buf, chosen: &HashSet<Buf>) -> bool {
    // Rows that fill half of a vector, and the maximum number of vectors that lanes can select from.
    const ROW: i64 = 8;
    const VECTORS: i64 = 4;
    let dims = &m.bufs[b].dims;
    let Some(channels) = dims[1].as_const() else { return false };
    // Result positions per image position.
    let steps = |k: &Kernel| {
        let map = m.kernels[*k].body.form().map()?;
        let innermost = map.at.get(1).and_then(|d| d.as_sym()).filter(|_| chosen.contains(&map.buf));
        let along = unit_stride_var(m, map.buf, &map.at, &map.loops)?;
        let (mut step, mut read): (Option<i64>, Vec<Dim>) = (None, vec![]);
        let mut adjacent = true;
        map.value.each_load(&mut |buf, at| {
            if buf != b {
                return;
            }
            let one = |c| at[1].linear_in(c).is_some_and(|l| l.0.as_const() == Some(1));
            adjacent &= innermost.is_some_and(one);
            if let Some(d) = at.last().filter(|d| d.contains(along)) {
                d.divisions(&mut |x, y| step = y.as_const().filter(|_| x.contains(along)).or(step));
                read.extend(Some(at[1]).filter(|c| !read.contains(c)));
            }
        });
        step.filter(|_| !adjacent && (read.len() > 1 || read.iter().any(|c| c.contains(along))))
    };
    let readers = uses.readers(b);
    let Some(step) = readers.iter().map(steps).try_fold(i64::MAX, |n, s| Some(n.min(s?))) else {
        return false;
    };
    let long = dims.last().is_some_and(|d| d.as_const().is_none_or(|n| n >= ROW));
    let pointwise = |k: &Kernel| m.form(*k).contraction().is_some_and(|c| c.reduction.len() == 1);
    !readers.is_empty() && long && (channels > VECTORS * step || uses.writers(b).iter().all(pointwise))
}

/// True for an image of few channels that only depthwise convolutions access: vectors along channels would be
/// nearly empty, those along rows are not.
pub(super) fn has_few_channels_each(m: &Module, uses: &Uses, b: Buf) -> bool {
    let dims = &m.bufs[b].dims;
    let (Some(channels), Some(row)) = (dims[1].as_const(), dims.last()) else { return false };
    let users = || uses.readers(b).iter().chain(uses.writers(b)).map(|k| m.form(*k).contraction());
    channels < LEAST
        && row.as_const().is_none_or(|n| n > channels)
        && users().any(|c| c.is_some())
        && users().flatten().all(|c| is_depthwise(&c.loops, &c.a.1, &c.b.1))
}
