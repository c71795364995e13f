//! Scratch that each task has for itself.
//!
//! `par s { seq q in s..s + 1 { ... scratch[q, ..] ... } }` says that an iteration has a part of a buffer of
//! its own. No iteration reads what another wrote, so iterations that one task runs one after the other may
//! as well use the same part: code takes that of the task's first iteration, which then stays in the cache.
//! Tasks begin at different iterations, so that no two share one.

use crate::codegen::Map;
use crate::nest::{Buf, Expr, Kernel, Layout, LoopKind, Module, Place, Stmt, visit};
use crate::sym::{Dim, Sym};
use std::collections::BTreeSet;

/// A parallel loop around such a loop.
pub(super) struct Private<'a> {
    /// The variable of the parallel loop.
    pub var: Sym,
    /// Names the task's part.
    pub part: Sym,
    /// What stands inside.
    pub body: &'a [Stmt],
}

/// The kernel that alone uses a buffer, for each that is used by one only.
pub struct Users(Map<Buf, Option<Kernel>>);

impl Users {
    /// Looks at all kernels that the driver calls.
    pub fn new(m: &Module) -> Users {
        let mut users: Map<Buf, Option<Kernel>> = Map::default();
        for k in visit::calls(&m.driver).into_iter().collect::<BTreeSet<_>>() {
            visit::accesses(&m.kernels[k].body, &mut |b, _| {
                users.entry(m.storage(b)).and_modify(|u| *u = u.filter(|u| *u == k)).or_insert(Some(k));
            });
        }
        Users(users)
    }
    fn only(&self, b: Buf, k: Kernel) -> bool {
        self.0.get(&b) == Some(&Some(k))
    }
}

/// True if a kernel's body has this form.
pub fn is_private(m: &Module, k: Kernel, users: &Users) -> bool {
    find(m, k, users).is_some()
}

/// The kernel's body in this form; `None` if it is not, or if the part does not belong to the iteration
/// alone.
pub(super) fn find<'a>(m: &'a Module, k: Kernel, users: &Users) -> Option<Private<'a>> {
    let [Stmt::For { kind: LoopKind::Par, var, body, .. }] = m.kernels[k].body.as_slice() else {
        return None;
    };
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
    alone &= bufs
        .iter()
        .all(|b| matches!(m.bufs[*b].place, Place::Arena(_)) && m.bufs[*b].layout == Layout::RowMajor);
    // Nowhere else: neither another kernel, nor another part, nor a view.
    alone &= bufs.iter().all(|b| users.only(*b, k));
    visit::accesses(body, &mut |b, at| {
        if bufs.contains(&m.storage(b)) {
            alone &= bufs.contains(&b) && at.first().is_some_and(|d| d.as_sym() == Some(*part));
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
