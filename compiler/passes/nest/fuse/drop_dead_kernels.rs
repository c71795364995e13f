//! drop_dead_kernels: removes kernels whose results are not read, and driver statements without effect.
//!
//! The driver is walked backwards. The body of a loop is walked until a fixed point: an iteration may read
//! what the previous one has written.

use crate::diag::Result;
use crate::nest::{Buf, Module, Place, Stmt, visit};
use crate::sym::{Dim, Sym, SymKind};
use std::collections::HashSet;

/// Runs the pass.
pub fn run(m: &mut Module) -> Result<()> {
    let mut needed = Needed::default();
    for b in m.outputs.clone() {
        needed.dims(m, &m.bufs[b].dims);
    }
    let driver = std::mem::take(&mut m.driver);
    m.driver = needed.sweep(m, driver);
    Ok(())
}

#[derive(Default)]
struct Needed {
    bufs: HashSet<Buf>,
    /// Run-time sizes.
    sizes: HashSet<Sym>,
}

impl Needed {
    fn dims(&mut self, m: &Module, dims: &[Dim]) {
        self.sizes.extend(dims.iter().flat_map(|d| d.syms()).filter(|s| m.syms.kind(*s) == SymKind::Runtime));
    }
    fn buffer(&mut self, m: &Module, b: Buf) {
        let owner = m.storage(b);
        self.bufs.insert(owner);
        self.dims(m, &m.bufs[b].dims);
        self.dims(m, &m.bufs[owner].dims);
        self.sizes.extend(m.pointer(owner));
    }
    /// Marks the operands of the statement's own expressions as live.
    fn own(&mut self, m: &Module, s: &Stmt) {
        s.loads().into_iter().chain(s.writes()).for_each(|b| self.buffer(m, b));
        self.dims(m, &s.dims());
    }
    fn live(&self, m: &Module, s: &Stmt) -> bool {
        match s {
            Stmt::Call(k) => visit::stores(&m.kernels[*k].body).into_iter().any(|b| {
                let b = m.storage(b);
                self.bufs.contains(&b) || matches!(m.bufs[b].place, Place::Output(_))
            }),
            Stmt::Define { sym, .. } => self.sizes.contains(sym),
            Stmt::Foreign(f) => f.to.iter().any(|b| {
                let b = m.storage(*b);
                self.bufs.contains(&b) || matches!(m.bufs[b].place, Place::Output(_))
            }),
            Stmt::If { then, els, .. } => !then.is_empty() || !els.is_empty(),
            _ => true,
        }
    }
    /// Marks the operands of a live statement.
    fn count(&mut self, m: &Module, s: &Stmt) {
        self.own(m, s);
        if let Stmt::Call(k) = s {
            let body = &m.kernels[*k].body;
            visit::loads(body).into_iter().chain(visit::stores(body)).for_each(|b| {
                self.dims(m, &m.bufs[b].dims);
                self.dims(m, &m.bufs[m.storage(b)].dims);
            });
            visit::loads(body).into_iter().for_each(|b| self.buffer(m, b));
            let mut inside = vec![];
            visit::walk(body, &mut |s| inside.extend(s.dims()));
            self.dims(m, &inside);
            self.dims(m, &[m.kernels[*k].work]);
        }
    }
    /// Marks the operands of a loop by walking its body until a fixed point. An inner body whose live set is
    /// known is then walked once, so nested loops cost the square of their depth.
    fn around(&mut self, m: &Module, body: &[Stmt]) {
        loop {
            let before = (self.bufs.len(), self.sizes.len());
            self.mark(m, body);
            if (self.bufs.len(), self.sizes.len()) == before {
                break;
            }
        }
    }
    /// Marks the operands of a body; true if one of its statements is live.
    fn mark(&mut self, m: &Module, body: &[Stmt]) -> bool {
        let mut any = false;
        for s in body.iter().rev() {
            let live = match s {
                Stmt::If { then, els, .. } => {
                    let (then, els) = (self.mark(m, then), self.mark(m, els));
                    then || els
                }
                Stmt::While { body, .. } => {
                    self.own(m, s);
                    self.around(m, body);
                    true
                }
                s => self.live(m, s),
            };
            if live {
                self.count(m, s);
                any = true;
            }
        }
        any
    }
    /// Keeps the live statements.
    fn sweep(&mut self, m: &Module, body: Vec<Stmt>) -> Vec<Stmt> {
        let mut kept = vec![];
        for s in body.into_iter().rev() {
            let s = match s {
                Stmt::If { cond, then, els } => {
                    let (then, els) = (self.sweep(m, then), self.sweep(m, els));
                    Stmt::If { cond, then, els }
                }
                Stmt::While { cond, body } => {
                    self.own(m, &Stmt::While { cond: cond.clone(), body: vec![] });
                    self.around(m, &body);
                    let body = self.sweep(m, body);
                    Stmt::While { cond, body }
                }
                s => s,
            };
            if !self.live(m, &s) {
                continue;
            }
            self.count(m, &s);
            kept.push(s);
        }
        kept.reverse();
        kept
    }
}
