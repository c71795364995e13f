//! Private scratch of an iteration (rule 12).

use crate::nest::check::Fault;
use crate::nest::{Buf, Expr, Layout, LoopKind, Module, Place, Stmt, visit};
use crate::sym::{Dim, Sym};
use std::collections::HashSet;

/// Checks the `private` statement of a kernel; returns the buffers that are private to its iterations.
pub(super) fn check(m: &Module, body: &[Stmt], faults: &mut Vec<Fault>) -> Vec<Buf> {
    let mut out = vec![];
    if let [Stmt::For { kind: LoopKind::Par, var, body, .. }] = body
        && let [s @ Stmt::For { kind: LoopKind::Private, var: q, lo, hi, body }] = body.as_slice()
    {
        let mut inside = Inside { m, q: *q, private: private(body, *q), written: HashSet::new(), faults };
        if *lo != Dim::sym(*var) || *hi != *lo + 1 {
            inside.fault(s, "private scratch is not of the iteration around it");
        }
        inside.block(body);
        out = inside.private;
        elsewhere(body, faults);
    } else {
        elsewhere(body, faults);
    }
    out
}

/// Reports a misplaced `private` statement.
fn elsewhere(body: &[Stmt], faults: &mut Vec<Fault>) {
    visit::walk(body, &mut |s| {
        if let Stmt::For { kind: LoopKind::Private, .. } = s {
            let text = "private scratch inside other statements than the par loop of the kernel".into();
            faults.push(Fault { stmt: std::ptr::from_ref(s).addr(), text });
        }
    });
}

/// Buffers whose first subscript is `q` in some access.
fn private(body: &[Stmt], q: Sym) -> Vec<Buf> {
    let mut out = vec![];
    visit::accesses(body, &mut |b, at| {
        if at.first().is_some_and(|d| d.as_sym() == Some(q)) && !out.contains(&b) {
            out.push(b);
        }
    });
    out
}

struct Inside<'a> {
    m: &'a Module,
    q: Sym,
    private: Vec<Buf>,
    /// Private buffers that a statement before this one stores to.
    written: HashSet<Buf>,
    faults: &'a mut Vec<Fault>,
}

impl Inside<'_> {
    fn fault(&mut self, s: &Stmt, text: impl Into<String>) {
        self.faults.push(Fault { stmt: std::ptr::from_ref(s).addr(), text: text.into() });
    }
    /// Statements in the order in which an iteration reaches them first.
    fn block(&mut self, body: &[Stmt]) {
        for s in body {
            match s {
                Stmt::For { lo, hi, .. } => [lo, hi].into_iter().for_each(|d| self.elsewhere(s, *d)),
                Stmt::With { extent, .. } => self.elsewhere(s, *extent),
                _ => {}
            }
            s.expr().into_iter().for_each(|e| self.loads(s, e));
            if let Stmt::Store { buf, at, .. } | Stmt::Prefetch { buf, at } = s {
                self.access(s, *buf, at);
            }
            if let Stmt::Store { buf, .. } = s {
                self.written.insert(*buf);
            }
            s.bodies().for_each(|b| self.block(b));
        }
    }
    fn loads(&mut self, s: &Stmt, e: &Expr) {
        e.walk(&mut |e| match e {
            Expr::Load { buf, at } => {
                self.access(s, *buf, at);
                if self.private.contains(buf) && !self.written.contains(buf) {
                    let name = &self.m.bufs[*buf].name;
                    self.fault(s, format!("private \"{name}\" is read before the iteration writes it"));
                }
            }
            Expr::Index(d) | Expr::With { extent: d, .. } => self.elsewhere(s, *d),
            _ => {}
        });
    }
    fn elsewhere(&mut self, s: &Stmt, d: Dim) {
        if d.contains(self.q) {
            self.fault(s, "the name of private scratch is more than a first subscript");
        }
    }
    fn access(&mut self, s: &Stmt, buf: Buf, at: &[Dim]) {
        let m = self.m;
        let name = &m.bufs[buf].name;
        let here = at.first().is_some_and(|d| d.as_sym() == Some(self.q));
        at.iter().skip(usize::from(here)).for_each(|d| self.elsewhere(s, *d));
        let owner = m.storage(buf);
        if !here && self.private.iter().any(|b| m.storage(*b) == owner) {
            self.fault(s, format!("another part of private \"{name}\""));
        }
        let scratch = matches!(m.bufs[buf].place, Place::Temp | Place::Arena(_));
        if here && (!scratch || m.bufs[buf].layout != Layout::RowMajor) {
            self.fault(s, format!("private \"{name}\" is no scratch of its own, or not row-major"));
        }
    }
}
