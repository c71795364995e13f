//! Live ranges of buffers, in driver statements. Statements in bodies of branches and loops are numbered in
//! order; a buffer used both inside and outside of a loop is live for the whole loop.

use crate::nest::{Buf, Module, Stmt, visit};
use std::collections::{HashMap, HashSet};

/// The first and last driver statement of a live range, inclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// First statement that accesses it.
    pub first: usize,
    /// Last one.
    pub last: usize,
}

/// One body of the driver.
#[derive(Clone, Copy, Debug)]
struct Scope {
    parent: usize,
    span: Span,
    is_loop: bool,
}

/// Positions of all statements, and live ranges of temporaries.
#[derive(Debug, Default)]
pub struct Lifetimes {
    scopes: Vec<Scope>,
    /// Temporaries in order of first use: (position, scope) of each use.
    uses: HashMap<Buf, Vec<(usize, usize)>>,
    order: Vec<Buf>,
    next: usize,
    /// Buffers that strings point to.
    shown: HashSet<Buf>,
}

impl Lifetimes {
    /// Analyses the whole driver.
    pub fn new(m: &Module) -> Lifetimes {
        let mut l = Lifetimes::default();
        l.scopes.push(Scope { parent: 0, span: Span { first: 0, last: usize::MAX }, is_loop: false });
        l.body(m, &m.driver, 0);
        // Strings may be anywhere, including outputs: the buffers that they point to are live to the end.
        let end = l.next;
        for b in std::mem::take(&mut l.shown) {
            l.uses.entry(b).or_default().push((end, 0));
        }
        l
    }
    fn note(&mut self, m: &Module, b: Buf, scope: usize) {
        let b = m.storage(b);
        if m.bufs[b].place.is_scratch() {
            let at = self.next;
            let list = self.uses.entry(b).or_default();
            if list.is_empty() {
                self.order.push(b);
            }
            list.push((at, scope));
        }
    }
    fn body(&mut self, m: &Module, body: &[Stmt], scope: usize) {
        for s in body {
            s.loads().into_iter().chain(s.writes()).for_each(|b| self.note(m, b, scope));
            if let Stmt::Call(k) = s {
                let body = &m.kernels[*k].body;
                visit::stores(body)
                    .into_iter()
                    .chain(visit::loads(body))
                    .for_each(|b| self.note(m, b, scope));
                self.shown.extend(
                    visit::shown(body)
                        .into_iter()
                        .map(|b| m.storage(b))
                        .filter(|b| m.bufs[*b].place.is_scratch()),
                );
            }
            self.next += 1;
            for b in s.bodies() {
                let inner = self.scopes.len();
                let is_loop = matches!(s, Stmt::While { .. });
                self.scopes.push(Scope {
                    parent: scope,
                    span: Span { first: self.next, last: self.next },
                    is_loop,
                });
                self.body(m, b, inner);
                self.scopes[inner].span.last = self.next;
                self.next += 1;
            }
            if let Stmt::While { .. } = s {
                // The condition is evaluated again.
                s.loads().into_iter().for_each(|b| self.note(m, b, scope));
            }
        }
    }
    fn is_inside(&self, mut scope: usize, outer: usize) -> bool {
        while scope != outer && scope != 0 {
            scope = self.scopes[scope].parent;
        }
        scope == outer
    }
    /// Temporaries that are used, in order of first use.
    pub fn buffers(&self) -> &[Buf] {
        &self.order
    }
    /// The live range of a temporary.
    pub fn span(&self, b: Buf) -> Span {
        let Some(list) = self.uses.get(&b).filter(|l| !l.is_empty()) else {
            return Span { first: 0, last: 0 };
        };
        // The innermost body that contains all uses.
        let mut home = list[0].1;
        while !list.iter().all(|(_, s)| self.is_inside(*s, home)) {
            home = self.scopes[home].parent;
        }
        let mut span = Span { first: usize::MAX, last: 0 };
        for (at, scope) in list {
            (span.first, span.last) = (span.first.min(*at), span.last.max(*at));
            let mut s = *scope;
            while s != home && s != 0 {
                let d = self.scopes[s];
                if d.is_loop {
                    (span.first, span.last) = (span.first.min(d.span.first), span.last.max(d.span.last));
                }
                s = d.parent;
            }
        }
        span
    }
}
