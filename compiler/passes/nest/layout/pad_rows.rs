//! pad_rows: scratch whose rows would be a multiple of 4 KiB apart gets longer rows: rows that a tile reads
//! at once would conflict in one set of the first-level cache, which has 8 or 12 ways. The same for the
//! pixels that a window reads or writes at once, if a few sets would hold them all.

use crate::diag::Result;
use crate::nest::{Buf, Layout, Module, Place, visit};
use crate::passes::nest::algorithm::attention;
use crate::passes::nest::analysis::form::Contraction;
use crate::passes::nest::analysis::machine::{LINE, PAGE, WAYS, sets_at};
use crate::passes::nest::analysis::strides::stride;
use crate::passes::nest::schedule::depthwise::MOST_RESULTS;
use crate::sym::{Dim, Sym};
use crate::tensor::ElemType;
use std::collections::HashSet;

/// Bytes of an element.
const BYTES: i64 = 4;

/// Pads the rows of buffers that contractions read row by row, and the pixels of images and results of
/// windows, unless a view shows the memory in another shape.
pub fn run(m: &mut Module) -> Result<()> {
    let mut viewed: HashSet<Buf> =
        m.bufs.values().filter_map(|b| if let Place::View(of) = b.place { Some(of) } else { None }).collect();
    viewed.extend(m.bufs.keys().filter(|b| m.storage(*b) != *b));
    let mut found: Vec<(Buf, usize)> = vec![];
    for k in visit::calls(&m.driver) {
        let Some(p) = m.form(k).contraction() else { continue };
        let result = p.store();
        let crowds = [&p.a, &p.b].into_iter().map(|(buf, at)| (*buf, at, crowds_set as Crowds));
        let images = [(p.a.0, &p.a.1)].into_iter().chain(result.as_ref().map(|(b, at)| (*b, at)));
        for (buf, at, crowds) in crowds.chain(images.map(|(b, at)| (b, at, crowds_sets as Crowds))) {
            let data = &m.bufs[buf];
            let (Place::Temp, ElemType::F32, Some(last)) =
                (&data.place, data.ty, data.dims.len().checked_sub(1))
            else {
                continue;
            };
            let inner = match &data.layout {
                Layout::RowMajor => last,
                Layout::Permuted(order) => order[last],
            };
            if !viewed.contains(&buf)
                && found.iter().all(|f| f.0 != buf)
                && data.dims[inner].as_const().is_some_and(|n| n > 0 && crowds(m, p, (buf, at), (inner, n)))
            {
                found.push((buf, inner));
            }
        }
    }
    // The matrix of scores must keep its shape: an attention never stores it.
    let kept = if found.is_empty() { HashSet::new() } else { attention::score_buffers(m) };
    for (buf, inner) in found.into_iter().filter(|f| !kept.contains(&f.0)) {
        m.bufs[buf].dims[inner] = m.bufs[buf].dims[inner] + LINE / BYTES;
    }
    Ok(())
}

/// Whether the accesses of a contraction to a buffer conflict in the cache. `inner` is the buffer's innermost
/// dimension, and its extent.
type Crowds = fn(&Module, &Contraction, access: (Buf, &[Dim]), inner: (usize, i64)) -> bool;

/// True for rows along the reduction that fall into one set.
fn crowds_set(m: &Module, p: &Contraction, (buf, at): (Buf, &[Dim]), (_, n): (usize, i64)) -> bool {
    let steps =
        || p.loops.iter().filter(|l| l.1.as_const() != Some(1)).filter_map(|l| stride(m, buf, at, l.0));
    // The stride of adjacent rows, or of every other row.
    let whole = n * BYTES % PAGE == 0 || n * 2 * BYTES % PAGE == 0 && steps().any(|s| s == 2 * n);
    whole
        && steps().any(|s| s != 0 && s * BYTES % PAGE == 0)
        && p.reduction.iter().any(|d| stride(m, buf, at, d.0) == Some(1))
}

/// True for an image or result with channels innermost of a convolution in groups, if the pixels of a block
/// of windows occupy more than half of the lines of all sets that pixels fall into. Windows of adjacent
/// results have most pixels in common, and each line of them is read once for every channel of a group.
fn crowds_sets(m: &Module, p: &Contraction, (_, at): (Buf, &[Dim]), (inner, n): (usize, i64)) -> bool {
    if n * BYTES % LINE != 0 || !p.loops.iter().any(|l| at[inner].contains(l.0) && p.is_of_both(l.0)) {
        return false;
    }
    let step = |s: Sym| stride(m, p.a.0, &p.a.1, s).unwrap_or(i64::MAX);
    let taps = p.reduction.iter().filter(|d| step(d.0) != 1);
    let mut taps: Vec<(i64, i64)> = taps.filter_map(|d| Some((step(d.0), d.1.as_const()?))).collect();
    // The taps of a row are those with the smallest stride.
    taps.sort_unstable();
    let columns = taps.first().map_or(1, |t| t.1);
    let rows: i64 = taps.iter().skip(1).map(|t| t.1).product();
    2 * rows * (MOST_RESULTS - 1 + columns) > sets_at(n * BYTES) * WAYS
}
