//! Borders of zeros in the memory around images.

use crate::maps::Map;
use crate::nest::key::Writer;
use crate::nest::{Buf, Expr, Module, Place, Stmt, visit};
use crate::passes::nest::analysis::uses::Uses;
use crate::sym::{Answer, Dim};

/// Scratch that holds constant zeros around an inner region: for each dimension, the range of positions
/// `from..to` of that region.
#[derive(Default)]
pub(crate) struct Borders(Map<Buf, Vec<(Dim, Dim)>>);

impl Borders {
    /// The borders of buffers that several kernels write, one of which stores only zeros.
    pub fn new(m: &Module, uses: &Uses) -> Borders {
        let scratch = m.bufs.iter().filter(|(_, d)| matches!(d.place, Place::Temp));
        Borders(scratch.filter_map(|(b, _)| Some((b, inside(m, uses, b)?))).collect())
    }
    /// Writes the border of a buffer into a key.
    pub fn key(&self, b: Buf, w: &mut Writer) {
        let of = self.0.get(&b);
        w.put([u64::from(of.is_some())]);
        of.into_iter().flatten().for_each(|(from, to)| w.dims(&[*from, *to]));
    }
    /// The range of positions outside of which a buffer holds zeros, if there is one.
    pub fn inside(&self, b: Buf, dim: usize) -> Option<(Dim, Dim)> {
        self.0.get(&b)?.get(dim).copied()
    }
}

fn inside(m: &Module, uses: &Uses, b: Buf) -> Option<Vec<(Dim, Dim)>> {
    if uses.writers(b).len() < 2 {
        return None;
    }
    let (mut zeros, mut known) = (false, true);
    let mut found: Option<Vec<(Dim, Dim)>> = None;
    for k in uses.writers(b) {
        let mut stores = 0;
        visit::walk(&m.kernels[*k].body, &mut |s| {
            let Stmt::Store { buf, at, value } = s else { return };
            if m.storage(*buf) != b {
                return;
            }
            stores += 1;
            if matches!(value, Expr::Const(c) if c.bits == 0) {
                zeros = true;
                return;
            }
            let ends =
                (*buf == b).then(|| at.iter().map(|d| ends(m, *d)).collect::<Option<Vec<_>>>()).flatten();
            match (ends, &mut found) {
                (None, _) => known = false,
                (Some(ends), None) => found = Some(ends),
                (Some(ends), Some(found)) => {
                    for (f, e) in found.iter_mut().zip(ends) {
                        *f = (f.0.min(e.0), f.1.max(e.1));
                    }
                }
            }
        });
        known &= stores > 0;
    }
    found.filter(|_| zeros && known)
}

/// The minimum of a sum of loop variables, and the end of its range (exclusive).
fn ends(m: &Module, d: Dim) -> Option<(Dim, Dim)> {
    let (mut lo, mut hi) = (d, d);
    for s in d.syms() {
        let Some((from, to)) = m.syms.loop_range(s) else { continue };
        let (step, _) = d.linear_in(s)?;
        if m.syms.le(Dim::constant(0), step) != Answer::Yes || [from, to].iter().any(|x| m.syms.has_loops(*x))
        {
            return None;
        }
        lo = lo.subst(&mut |v| (v == s).then_some(from));
        hi = hi.subst(&mut |v| (v == s).then(|| to - 1));
    }
    Some((lo, hi + 1))
}
