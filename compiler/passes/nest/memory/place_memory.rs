//! place_memory: assigns every temporary an address in the workspace (stage Placed).
//!
//! Lifetimes are ranges of driver statements. Buffers of constant size are packed by best fit in one region,
//! largest first (which keeps fragmentation low). Buffers of symbolic size share slots, each as large as the
//! largest of its buffers, at offsets computed from the dims. Run-time sizes count with their upper bounds; for
//! sizes without one, see `dynamic`.

mod dynamic;
mod lifetimes;

use crate::diag::Result;
use crate::nest::{Buf, Module, Place, SlotData, Stage};
use crate::sym::{Dim, Sym};
use lifetimes::Lifetimes;
use std::collections::{HashMap, HashSet};

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

/// Memory that buffers of symbolic size use one after the other.
struct Shared {
    /// Their sizes, except for those that are provably at most another one.
    sizes: Vec<Dim>,
    /// The largest size, estimated.
    about: i64,
    lives: Vec<Life>,
}

/// The value of a symbol for which sizes are estimated, within its bounds; that of a batch is 1.
const SAMPLE: i64 = 64;
/// Buffers smaller than the largest one divided by this number share memory only if they provably fit: each size
/// that is not comparable to the others makes the formula of the workspace longer.
const SMALL: i64 = 64;

/// The slots of buffers of symbolic size: the largest buffer first, each in the smallest slot that is free during
/// its life (Pisarchyk, Lee: Efficient Memory Management for Deep Neural Net Inference). Sizes are compared as
/// estimated; a slot is as large as the largest of its buffers for all values of the symbols.
fn share_slots(m: &Module, lives: Vec<Life>) -> Vec<(Dim, Vec<Buf>)> {
    // Many buffers share few sizes: each pair is compared once.
    let mut known: HashMap<(Dim, Dim), bool> = HashMap::new();
    let mut le = |a: Dim, b: Dim| a == b || *known.entry((a, b)).or_insert_with(|| m.syms.is_nonneg(b - a));
    let batch: HashSet<Sym> = m
        .inputs
        .iter()
        .filter_map(|b| m.bufs[*b].dims.first()?.as_sym())
        .filter(|s| !is_length(m, *s))
        .collect();
    let mut lives: Vec<(i64, Life)> = lives.into_iter().map(|l| (estimate(m, l.size, &batch), l)).collect();
    lives.sort_by_key(|(about, l)| (-about, l.first, l.buf));
    let small = lives.first().map_or(0, |l| l.0) / SMALL;
    let mut slots: Vec<Shared> = vec![];
    for (about, l) in lives {
        let mut best: Option<((bool, i64), usize)> = None;
        for (i, s) in slots.iter().enumerate() {
            if s.lives.iter().any(|x| x.first <= l.last && l.first <= x.last) {
                continue;
            }
            let fits = s.sizes.iter().any(|size| le(l.size, *size));
            let rank = (!fits, s.about);
            if (fits || about > small) && best.is_none_or(|b| rank < b.0) {
                best = Some((rank, i));
            }
        }
        match best {
            Some(((grows, _), i)) => {
                let s = &mut slots[i];
                if grows {
                    s.sizes.retain(|size| !le(*size, l.size));
                    s.sizes.push(l.size);
                }
                s.lives.push(l);
            }
            None => slots.push(Shared { sizes: vec![l.size], about, lives: vec![l] }),
        }
    }
    let size = |s: &Shared| s.sizes.iter().copied().reduce(Dim::max).unwrap_or_default();
    slots.iter().map(|s| (size(s), s.lives.iter().map(|l| l.buf).collect())).collect()
}

/// True if an input has a symbol in another than its first dimension.
fn is_length(m: &Module, s: Sym) -> bool {
    m.inputs.iter().any(|b| m.bufs[*b].dims.iter().skip(1).any(|d| d.contains(s)))
}

/// A size if all symbols have their typical values.
fn estimate(m: &Module, size: Dim, batch: &HashSet<Sym>) -> i64 {
    let typical = |s| {
        let range = m.syms.range(Dim::sym(s));
        let value = if batch.contains(&s) { 1 } else { SAMPLE };
        Some(value.max(range.lo.unwrap_or(value)).min(range.hi.unwrap_or(value)))
    };
    size.eval(&typical).unwrap_or(i64::MAX)
}
