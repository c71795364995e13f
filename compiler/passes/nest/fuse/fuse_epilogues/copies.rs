//! Copies of whole images into larger ones: parts of a concatenation, the inside of a padded image. The
//! writers of the part store directly into the larger image, its other readers read from there, and the copy
//! is removed.
//!
//! The larger image is then written earlier than by the copy. All other stores to it must be provably
//! disjoint, and no kernel may have read it before.

use crate::nest::{Buf, Expr, Kernel, Module, Stmt, visit};
use crate::passes::nest::analysis::shape::{Map, is_temp};
use crate::passes::nest::analysis::uses::{Pending, Uses};
use crate::sym::{Answer, Dim, Sym, SymKind};
use std::collections::{HashMap, HashSet};

/// Maximum parts of an image: each is compared with all others.
const PARTS: usize = 256;

/// Runs until no removable copy is left.
pub(crate) fn run(m: &mut Module, uses: &mut Uses) {
    let mut pending = Pending::new(uses, |k| as_copy(m, k).is_some());
    while let Some(k) = pending.pop(uses) {
        let Some(c) = copy(m, uses, k) else { continue };
        let users = users(uses, c.part, c.kernel);
        remove(m, &users, &c);
        uses.update(m, &users, &[(k, &[])]);
        // A copy must be re-examined if writers or readers of its part or its whole change.
        let mut bufs: HashSet<Buf> = users.iter().flat_map(|u| uses.accesses(*u)).collect();
        bufs.insert(c.whole);
        for b in bufs {
            uses.writers(b).iter().chain(uses.readers(b)).for_each(|k| pending.push(*k));
        }
    }
}

struct Copy {
    kernel: Kernel,
    part: Buf,
    whole: Buf,
    /// Position of the part in the whole.
    from: Vec<Dim>,
}

/// The kernel as a copy from one image to another, and its part.
fn as_copy(m: &Module, k: Kernel) -> Option<(&Map, Buf)> {
    let map = m.form(k).map()?;
    let Expr::Load { buf: part, .. } = &map.value else { return None };
    let (part, whole) = (*part, map.buf);
    let plain = is_temp(m, part)
        && is_temp(m, whole)
        && part != whole
        && m.bufs[part].ty == m.bufs[whole].ty
        && m.bufs[part].dims.len() >= 4;
    plain.then_some((map, part))
}

/// The kernel as a removable copy.
fn copy(m: &Module, uses: &Uses, k: Kernel) -> Option<Copy> {
    let (map, part) = as_copy(m, k)?;
    let Expr::Load { at, .. } = &map.value else { return None };
    let whole = map.buf;
    if uses.writers(whole).len() > PARTS || !may_use_part(m, uses, part, whole) {
        return None;
    }
    // The copy covers the part: each element once.
    crate::passes::nest::analysis::shape::cover(m, part, at, &map.loops)?;
    let from: Vec<Dim> = map.at.iter().zip(at).map(|(to, i)| *to - *i).collect();
    let moves = from.len() == at.len() && from.iter().all(|d| d.as_const().is_some());
    let inside = boxed(m, whole, &map.at, &ranges(&m.kernels[k].body))?;
    let others = uses.writers(whole).iter().filter(|w| **w != k);
    if !moves || uses.writers(part).is_empty() || !others.clone().all(|w| disjoint(m, *w, whole, &inside)) {
        return None;
    }
    sized_before(m, whole, &users(uses, part, k)).then_some(Copy { kernel: k, part, whole, from })
}

/// True if the driver has defined all run-time sizes of a buffer before it calls any of the kernels.
pub(crate) fn sized_before(m: &Module, b: Buf, kernels: &[Kernel]) -> bool {
    let mut open: HashSet<Sym> = m.bufs[b]
        .dims
        .iter()
        .flat_map(|d| d.syms())
        .filter(|s| m.syms.kind(*s) == SymKind::Runtime)
        .collect();
    if open.is_empty() {
        return true;
    }
    for s in &m.driver {
        match s {
            Stmt::Define { sym, .. } => drop(open.remove(sym)),
            Stmt::Call(k) if kernels.contains(k) => break,
            _ => {}
        }
    }
    open.is_empty()
}

/// Bounds of all loops of a body.
fn ranges(body: &[Stmt]) -> HashMap<Sym, (Dim, Dim)> {
    let mut out = HashMap::new();
    visit::walk(body, &mut |s| {
        if let Stmt::For { var, lo, hi, .. } = s {
            out.insert(*var, (*lo, *hi));
        }
    });
    out
}

/// First and last position in each dimension that an access can have.
fn boxed(m: &Module, buf: Buf, at: &[Dim], ranges: &HashMap<Sym, (Dim, Dim)>) -> Option<Vec<(Dim, Dim)>> {
    let mut out = Vec::with_capacity(at.len());
    for d in at {
        let (mut lo, mut hi) = (*d, *d);
        for s in d.syms() {
            let Some((from, to)) = ranges.get(&s) else { continue };
            let (c, _) = d.linear_in(s)?;
            if c.as_const()? < 0 || ranges.keys().any(|s| from.contains(*s) || to.contains(*s)) {
                return None;
            }
            lo = lo.subst(&mut |x| (x == s).then_some(*from));
            hi = hi.subst(&mut |x| (x == s).then_some(*to - 1));
        }
        out.push((m.syms.simplify(lo), m.syms.simplify(hi)));
    }
    (out.len() == m.bufs[buf].dims.len()).then_some(out)
}

/// True if all stores of a kernel to a buffer are provably outside a part of it.
pub(crate) fn disjoint(m: &Module, k: Kernel, whole: Buf, part: &[(Dim, Dim)]) -> bool {
    let body = &m.kernels[k].body;
    let ranges = ranges(body);
    let mut fine = true;
    visit::walk(body, &mut |s| {
        let Stmt::Store { buf, at, .. } = s else { return };
        if m.storage(*buf) != whole {
            return;
        }
        let here = if *buf == whole { boxed(m, whole, at, &ranges) } else { None };
        let less = |a: Dim, b: Dim| m.syms.le(a + 1, b) == Answer::Yes;
        fine &= here.is_some_and(|here| here.iter().zip(part).any(|(x, y)| less(x.1, y.0) || less(y.1, x.0)));
    });
    fine
}

/// Removes the copy.
fn remove(m: &mut Module, users: &[Kernel], c: &Copy) {
    move_accesses(m, users, (c.part, c.whole), &c.from);
    visit::drop_calls(&mut m.driver, &|k| k == c.kernel);
}

/// Kernels that write or read a buffer, except for the copying one.
pub(crate) fn users(uses: &Uses, b: Buf, copy: Kernel) -> Vec<Kernel> {
    let mut users: Vec<Kernel> =
        uses.writers(b).iter().chain(uses.readers(b)).copied().filter(|k| *k != copy).collect();
    users.sort();
    users.dedup();
    users
}

/// True if kernels may access a part of another image instead of this one. Contractions that are convolutions
/// may not, since some of their schedules require whole images; nor may a kernel that writes the part and
/// reads the whole.
pub(crate) fn may_use_part(m: &Module, uses: &Uses, part: Buf, whole: Buf) -> bool {
    let summed = |k: &Kernel| {
        m.form(*k).contraction().is_some_and(|c| m.storage(c.a.0) == part || m.storage(c.b.0) == part)
    };
    let read_by_sums = uses.readers(part).iter().any(summed);
    let mixed = uses.writers(part).iter().any(|w| uses.readers(whole).contains(w));
    uses.is_straight()
        && !uses.pinned(part)
        && !uses.pinned(whole)
        && !uses.viewed(part)
        && !read_by_sums
        && !mixed
}

/// Redirects accesses of kernels to a part of another image, beginning at a position.
pub(crate) fn move_accesses(m: &mut Module, kernels: &[Kernel], (part, whole): (Buf, Buf), from: &[Dim]) {
    let shifted = |at: &[Dim]| -> Vec<Dim> { at.iter().zip(from).map(|(i, d)| *i + *d).collect() };
    let access = |buf: Buf, at: &[Dim]| (buf == part).then(|| (whole, shifted(at)));
    for k in kernels {
        let body = std::mem::take(&mut m.kernels[*k].body);
        m.kernels[*k].body = body.into_iter().map(|s| s.map_accesses(&access)).collect();
    }
}
