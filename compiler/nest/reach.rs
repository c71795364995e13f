//! Conditions on sizes under which every access of a kernel is in bounds.
//!
//! An access without proof whose subscript is linear in the surrounding loop variables has its largest and
//! smallest position at the ends of the loops: comparing these with the extent is exact, and requires sizes
//! only. Accesses under conditions, and subscripts bound to data, rely on those conditions.

use super::facts::Facts;
use super::{BinOp, Buf, Expr, Kernel, Module, Stmt};
use crate::sym::{Dim, Sym, SymKind};
use std::collections::HashMap;

/// Loops around a statement.
type Loops = Vec<(Sym, Dim, Dim)>;

/// A condition on sizes: `least <= most`, or one of the loops `lo..hi` does not run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Need {
    /// The smaller side.
    pub least: Dim,
    /// The larger side.
    pub most: Dim,
    /// Loops that may be empty.
    pub unless_empty: Vec<(Dim, Dim)>,
}

impl Need {
    /// As an expression.
    pub fn expr(&self) -> Expr {
        let empty = self.unless_empty.iter().map(|(lo, hi)| Expr::cmp_index(BinOp::Le, *hi, *lo));
        empty.fold(Expr::cmp_index(BinOp::Le, self.least, self.most), |e, g| Expr::bin(BinOp::Or, e, g))
    }
    /// The sizes in it.
    pub fn dims(&self) -> Vec<Dim> {
        self.unless_empty.iter().flat_map(|(lo, hi)| [*lo, *hi]).chain([self.least, self.most]).collect()
    }
}

/// Unproven conditions that a kernel relies on, without duplicates. `checked`: conditions checked before it
/// runs.
pub fn needs(m: &Module, k: Kernel, checked: &[Expr]) -> Vec<Need> {
    let mut r = Reach::new(m, checked);
    r.block(&m.kernels[k].body);
    r.out
}

/// The same for the expressions of one statement of the driver, without those of its bodies.
pub fn needs_of(m: &Module, s: &Stmt, checked: &[Expr]) -> Vec<Need> {
    let mut r = Reach::new(m, checked);
    if let Some(e) = s.expr() {
        r.expr(e);
    }
    r.out
}

struct Reach<'a> {
    m: &'a Module,
    facts: Facts<'a>,
    loops: Loops,
    out: Vec<Need>,
}

impl<'a> Reach<'a> {
    fn new(m: &'a Module, checked: &'a [Expr]) -> Self {
        let mut facts = Facts::new(&m.syms);
        checked.iter().for_each(|c| facts.assume(c, true, &HashMap::new()));
        Reach { m, facts, loops: vec![], out: vec![] }
    }
    fn block(&mut self, body: &[Stmt]) {
        for s in body {
            match s {
                Stmt::For { var, lo, hi, body, .. } => {
                    self.loops.push((*var, *lo, *hi));
                    self.block(body);
                    self.loops.pop();
                }
                Stmt::Tile { body } => self.block(body),
                Stmt::If { cond, .. } => self.expr(cond),
                Stmt::While { .. } => {}
                Stmt::With { value, body, .. } => {
                    self.expr(value);
                    self.block(body);
                }
                Stmt::Store { buf, at, value } => {
                    self.expr(value);
                    self.access(*buf, at);
                }
                s => {
                    if let Some(e) = s.expr() {
                        self.expr(e);
                    }
                }
            }
        }
    }
    fn expr(&mut self, e: &Expr) {
        match e {
            Expr::Load { buf, at } => self.access(*buf, at),
            Expr::Select(cond, ..) => self.expr(cond),
            e => e.children().for_each(|c| self.expr(c)),
        }
    }
    fn access(&mut self, buf: Buf, at: &[Dim]) {
        let dims = &self.m.bufs[buf].dims;
        for d in dims {
            self.want(Dim::constant(0), *d, &[]);
        }
        for (x, n) in at.iter().zip(dims) {
            if self.facts.in_range(*x, *n) {
                continue;
            }
            let (Some(least), Some(most), Some(guards)) =
                (self.extreme(*x, false), self.extreme(*x, true), self.guards())
            else {
                continue;
            };
            // The surrounding loops have at least one iteration where the access executes.
            let mark = self.facts.mark();
            guards.iter().for_each(|(lo, hi)| self.facts.learn(*hi - *lo - 1));
            self.want(Dim::constant(0), least, &guards);
            self.want(most + 1, *n, &guards);
            self.facts.forget(mark);
        }
    }
    /// The minimum or maximum of a subscript, if it is linear in the loop variables and attained.
    fn extreme(&self, x: Dim, max: bool) -> Option<Dim> {
        let mut x = x;
        for (s, lo, hi) in self.loops.iter().rev() {
            if !x.contains(*s) {
                continue;
            }
            let (c, rest) = x.linear_in(*s)?;
            let up = if self.m.syms.is_nonneg(c) {
                max
            } else if self.m.syms.is_nonneg(-c) {
                !max
            } else {
                return None;
            };
            x = rest + c * if up { *hi - 1 } else { *lo };
        }
        let open = x.is_overflow() || x.syms().into_iter().any(|s| self.m.syms.kind(s) == SymKind::Loop);
        (!open).then_some(x)
    }
    /// Pairs `(lo, hi)` of the surrounding loops that may be empty; `None` if that depends on an outer loop.
    fn guards(&self) -> Option<Vec<(Dim, Dim)>> {
        let may_not_run = self.loops.iter().filter(|(_, lo, hi)| !self.m.syms.is_pos(*hi - *lo));
        may_not_run
            .map(|(_, lo, hi)| (!self.varies(*lo) && !self.varies(*hi)).then_some((*lo, *hi)))
            .collect()
    }
    fn varies(&self, d: Dim) -> bool {
        d.syms().into_iter().any(|s| self.m.syms.kind(s) == SymKind::Loop)
    }
    /// Requires `a <= b`, unless one of the loops is empty.
    fn want(&mut self, a: Dim, b: Dim, guards: &[(Dim, Dim)]) {
        if a.is_overflow() || b.is_overflow() || self.varies(a) || self.varies(b) || self.facts.le(a, b) {
            return;
        }
        let need = Need { least: a, most: b, unless_empty: guards.to_vec() };
        if !self.out.contains(&need) {
            self.out.push(need);
        }
    }
}
