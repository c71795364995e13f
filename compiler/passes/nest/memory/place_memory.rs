//! place_memory: assigns every temporary an address in the workspace (stage Placed).
//!
//! Lifetimes are ranges of driver statements. Buffers of constant size are packed by best fit in one region,
//! largest first (which keeps fragmentation low). Buffers of symbolic size get slots, reused when free and
//! provably large enough, at offsets computed from the dims. Run-time sizes count with their upper bounds;
//! for sizes without one, see `dynamic`.

mod dynamic;
mod lifetimes;

use crate::diag::Result;
use crate::nest::{Buf, Module, Place, SlotData, Stage};
use crate::sym::Dim;
use lifetimes::Lifetimes;
use std::collections::HashMap;

/// Alignment of the workspace and of everything in it, in bytes.
pub const ALIGN: i64 = 64;

struct Life {
    buf: Buf,
    first: usize,
    last: usize,
    size: Dim,
}

/// Runs the pass.
pub fn run(m: &mut Module) -> Result<()> {
    let l = Lifetimes::new(m);
    let late: Vec<Buf> =
        l.buffers().iter().copied().filter(|b| m.syms.upper(bytes(m, *b)).is_none()).collect();
    let (fixed, symbolic): (Vec<Life>, Vec<Life>) =
        planned(m, &l).into_iter().partition(|l| l.size.as_const().is_some());
    let mut end = place_fixed(m, fixed);
    for (size, bufs) in share_slots(m, symbolic) {
        let slot = m.slots.push(SlotData { offset: end, size });
        for b in bufs {
            m.bufs[b].place = Place::Arena(slot);
        }
        end = end + size;
    }
    m.workspace = dynamic::place(m, &l, &late, end);
    m.stage = Stage::Placed;
    Ok(())
}

/// Bytes of a buffer, rounded up to the alignment.
pub(crate) fn bytes(m: &Module, b: Buf) -> Dim {
    let d = &m.bufs[b];
    // A size may be negative only if it is computed in a branch not taken: nothing is stored then.
    let extent = |x: &Dim| if m.syms.is_nonneg(*x) { *x } else { Dim::max(*x, 0) };
    let n = Dim::product(d.dims.iter().map(extent));
    let raw = n * i64::from(m.element_bits(b).div_ceil(8));
    m.syms.simplify(raw.ceil_div(ALIGN) * ALIGN)
}

/// Live ranges of the temporaries whose size, or an upper bound of it, is known at entry.
fn planned(m: &Module, l: &Lifetimes) -> Vec<Life> {
    let life = |buf: &Buf| {
        // A bound may be negative if no value satisfies the conditions on the sizes; they are checked later.
        let size = m.syms.upper(bytes(m, *buf)).map(|d| if m.syms.is_nonneg(d) { d } else { d.max(0) })?;
        let span = l.span(*buf);
        Some(Life { buf: *buf, first: span.first, last: span.last, size: m.syms.simplify(size) })
    };
    l.buffers().iter().filter_map(life).collect()
}

fn place_fixed(m: &mut Module, mut lives: Vec<Life>) -> Dim {
    let size = |l: &Life| l.size.as_const().unwrap_or(0);
    lives.sort_by_key(|l| (-size(l), l.first, l.buf));
    let mut placed: Vec<(i64, i64, usize, usize)> = vec![];
    let mut total = 0;
    for l in &lives {
        let n = size(l);
        let mut busy: Vec<(i64, i64)> =
            placed.iter().filter(|p| p.2 <= l.last && l.first <= p.3).map(|p| (p.0, p.1)).collect();
        busy.sort_unstable();
        // The smallest gap that fits.
        let (mut at, mut best): (i64, Option<(i64, i64)>) = (0, None);
        for (lo, hi) in busy {
            if lo - at >= n && best.is_none_or(|(gap, _)| lo - at < gap) {
                best = Some((lo - at, at));
            }
            at = at.max(hi);
        }
        let offset = best.map_or(at, |(_, o)| o);
        placed.push((offset, offset + n, l.first, l.last));
        total = total.max(offset + n);
        let slot = m.slots.push(SlotData { offset: Dim::constant(offset), size: l.size });
        m.bufs[l.buf].place = Place::Arena(slot);
    }
    Dim::constant(total)
}

struct Shared {
    size: Dim,
    free_from: usize,
    bufs: Vec<Buf>,
}

fn share_slots(m: &Module, lives: Vec<Life>) -> Vec<(Dim, Vec<Buf>)> {
    let mut slots: Vec<Shared> = vec![];
    // Many buffers share few sizes: each pair is compared once.
    let mut known: HashMap<(Dim, Dim), bool> = HashMap::new();
    let mut le = |a: Dim, b: Dim| a == b || *known.entry((a, b)).or_insert_with(|| m.syms.is_nonneg(b - a));
    for l in lives {
        let free = |s: &Shared| s.free_from <= l.first;
        let found = slots.iter().position(|s| free(s) && s.size == l.size);
        let found = found.or_else(|| slots.iter().position(|s| free(s) && le(l.size, s.size)));
        let found = found.or_else(|| slots.iter().position(|s| free(s) && le(s.size, l.size)));
        match found {
            Some(i) => {
                let s = &mut slots[i];
                if !le(l.size, s.size) {
                    s.size = l.size;
                }
                s.free_from = l.last + 1;
                s.bufs.push(l.buf);
            }
            None => slots.push(Shared { size: l.size, free_from: l.last + 1, bufs: vec![l.buf] }),
        }
    }
    slots.into_iter().map(|s| (s.size, s.bufs)).collect()
}
