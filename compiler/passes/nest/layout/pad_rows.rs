//! pad_rows: scratch whose rows would be a multiple of 4 KiB apart gets longer rows: rows that a tile reads
//! at once would conflict in one set of the first-level cache, which has 8 or 12 ways.

use crate::diag::Result;
use crate::nest::{Buf, Layout, Module, Place, visit};
use crate::passes::nest::analysis::machine::{LINE, PAGE};
use crate::passes::nest::analysis::strides::stride;
use crate::sym::Dim;
use crate::tensor::ElemType;
use std::collections::HashSet;

/// Bytes of an element.
const BYTES: i64 = 4;

/// Pads the rows of buffers that contractions read row by row, unless a view shows the memory in another
/// shape.
pub fn run(m: &mut Module) -> Result<()> {
    let mut viewed: HashSet<Buf> =
        m.bufs.values().filter_map(|b| if let Place::View(of) = b.place { Some(of) } else { None }).collect();
    viewed.extend(m.bufs.keys().filter(|b| m.storage(*b) != *b));
    let mut found: Vec<(Buf, usize, i64)> = vec![];
    for k in visit::calls(&m.driver) {
        let Some(p) = m.form(k).contraction() else { continue };
        for (buf, at) in [&p.a, &p.b] {
            let data = &m.bufs[*buf];
            let (Place::Temp, ElemType::F32, Some(last)) =
                (&data.place, data.ty, data.dims.len().checked_sub(1))
            else {
                continue;
            };
            let inner = match &data.layout {
                Layout::RowMajor => last,
                Layout::Permuted(order) => order[last],
            };
            let steps = || {
                p.loops.iter().filter(|l| l.1.as_const() != Some(1)).filter_map(|l| stride(m, *buf, at, l.0))
            };
            // The stride of adjacent rows, or of every other row.
            let whole = data.dims[inner].as_const().is_some_and(|n| {
                n > 0 && (n * BYTES % PAGE == 0 || n * 2 * BYTES % PAGE == 0 && steps().any(|s| s == 2 * n))
            });
            let crowded = steps().any(|s| s != 0 && s * BYTES % PAGE == 0);
            let deep = p.reduction.iter().any(|d| stride(m, *buf, at, d.0) == Some(1));
            if whole && crowded && deep && !viewed.contains(buf) && found.iter().all(|f| f.0 != *buf) {
                found.push((*buf, inner, LINE / BYTES));
            }
        }
    }
    for (buf, inner, more) in found {
        m.bufs[buf].dims[inner] = m.bufs[buf].dims[inner] + Dim::constant(more);
    }
    Ok(())
}
