//! Scratch that each task has for itself.
//!
//! `par s { seq q in s..s + 1 { ... scratch[q, ..] ... } }` says that an iteration has a part of a buffer of its own. No
//! iteration reads what another wrote, so iterations that one task runs one after the other may as well use the same
//! part: code takes that of the task's first iteration, which then stays in the cache. Tasks begin at different
//! iterations, so that no two share one.

use crate::nest::{Buf, Expr, Kernel, Layout, LoopKind, Module, Place, Stmt, visit};
use crate::sym::{Dim, Sym};

/// A parallel loop around such a loop.
pub(super) struct Private<'a> {
    /// The variable of the parallel loop.
    pub var: Sym,
    /// Names the task's part.
    pub part: Sym,
    /// What stands inside.
    pub body: &'a [Stmt],
}

/// The kernel's body in this form; `None` if it is not, or if the part does not belong to the iteration alone.
pub(super) fn find(m: &Module, k: Kernel) -> Option<Private<'_>> {
    let [Stmt::For { kind: LoopKind::Par, var, body, .. }] = m.kernels[k].body.as_slice() else { return None };
    let [Stmt::For { kind: LoopKind::Seq, var: part, lo, hi, body }] = body.as_slice() else { return None };
    let s = Dim::sym(*var);
    if *lo != s || *hi != s + 1 {
        return None;
    }
    let mut bufs: Vec<Buf> = vec![];
    let mut alone = true;
    visit::accesses(body, &mut |b, at| {
        let here = at.first().is_some_and(|d| d.as_sym() == Some(*part));
        alone &= !at.iter().skip(usize::from(here)).any(|d| d.contains(*part));
        if here && !bufs.contains(&b) {
            bufs.push(b);
        }
    });
    alone &= bufs.iter().all(|b| matches!(m.bufs[*b].place, Place::Arena(_)) && m.bufs[*b].layout == Layout::RowMajor);
    // Nowhere else: neither another kernel, nor another part, nor a view.
    visit::walk(&m.driver, &mut |s| {
        if let Stmt::Call(other) = s {
            visit::accesses(&m.kernels[*other].body, &mut |b, at| {
                if bufs.contains(&m.storage(b)) {
                    alone &= *other == k && bufs.contains(&b) && at.first().is_some_and(|d| d.as_sym() == Some(*part));
                }
            });
        }
    });
    // Nothing but subscripts depends on it.
    visit::walk(body, &mut |s| {
        if let Stmt::For { lo, hi, .. } = s {
            alone &= !lo.contains(*part) && !hi.contains(*part);
        }
    });
    visit::walk_exprs(body, &mut |e| {
        if let Expr::Index(d) | Expr::With { extent: d, .. } = e {
            alone &= !d.contains(*part);
        }
    });
    alone.then_some(Private { var: *var, part: *part, body })
}
