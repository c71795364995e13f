//! Iterations of a `par` or `vec` loop that store to the same element (rule 5).
//!
//! Only certain conflicts are faults: an address that is invariant in the loop while the value is not, or a
//! linear one for which two iterations coincide for all sizes. Stores under a condition are not checked, nor
//! are addresses that depend on a loaded index or on a loop with bounds that vary with the iteration.

use crate::nest::check::Fault;
use crate::nest::{Buf, Expr, LoopKind, Module, Stmt};
use crate::sym::{Answer, Condition, Dim, Sym, View};

/// The context of a store inside a parallel loop.
struct Inside<'a> {
    m: &'a Module,
    var: Sym,
    /// Trip count, if known.
    count: Option<i64>,
    /// Loops with constant bounds: variable and trip count. Other loops provide no information.
    loops: Vec<(Sym, Option<i64>)>,
    /// Indices whose values are unknown.
    bound: Vec<Sym>,
    faults: &'a mut Vec<Fault>,
}

/// Whether an equation that the driver checks is about the symbols of a size: N * N == N leaves 0 and 1,
/// which no proof here can tell.
fn settled(m: &Module, size: Dim) -> bool {
    let about = |d: &Dim| size.syms().iter().any(|s| d.contains(*s));
    m.syms.conditions().iter().any(|c| matches!(c, Condition::Equal(a, b) if about(a) || about(b)))
}

/// Whether no sizes meet an equation that the entry checks: 18 * N == 1 has no integer solution. No kernel
/// runs then.
fn never_called(m: &Module) -> bool {
    m.syms.conditions().iter().any(|c| {
        let Condition::Equal(a, b) = c else { return false };
        let View::Sum { terms, constant } = (*a - *b).view() else { return false };
        let divisor = terms.iter().fold(0, |g, t| gcd(g, t.0.unsigned_abs()));
        constant.unsigned_abs().checked_rem(divisor).is_some_and(|rest| rest != 0)
    })
}

/// Checks all parallel loops of a body. Loops inside one that an equation of the entry may keep from running
/// are left alone.
pub(super) fn check(m: &Module, body: &[Stmt], faults: &mut Vec<Fault>) {
    if !never_called(m) {
        check_loops(m, body, faults);
    }
}

fn check_loops(m: &Module, body: &[Stmt], faults: &mut Vec<Fault>) {
    for s in body {
        if let Stmt::For { kind, var, lo, hi, body } = s {
            let (size, count) = (*hi - *lo, (*hi - *lo).as_const());
            if count.is_none() && settled(m, size) {
                continue;
            }
            if matches!(kind, LoopKind::Par | LoopKind::Vec(_))
                && count.is_none_or(|n| n > 1)
                && m.syms.le(size, Dim::constant(1)) != Answer::Yes
            {
                Inside { m, var: *var, count, loops: vec![], bound: vec![], faults: &mut *faults }
                    .block(body);
            }
        }
        s.bodies().for_each(|b| check_loops(m, b, faults));
    }
}

impl Inside<'_> {
    fn block(&mut self, body: &[Stmt]) {
        for s in body {
            match s {
                Stmt::Store { buf, at, value } => self.store(s, *buf, at, value),
                Stmt::For { var, lo, hi, body, .. } => {
                    // A variable whose bounds vary with the iteration may compensate for it in an address.
                    let own = [lo, hi]
                        .into_iter()
                        .any(|d| d.contains(self.var) || self.bound.iter().any(|b| d.contains(*b)));
                    if own {
                        self.bound.push(*var);
                    }
                    self.loops.push((*var, (*hi - *lo).as_const()));
                    self.block(body);
                    self.loops.pop();
                    if own {
                        self.bound.pop();
                    }
                }
                Stmt::Tile { body } => self.block(body),
                Stmt::With { sym, body, .. } => {
                    self.bound.push(*sym);
                    self.block(body);
                    self.bound.pop();
                }
                // The set of storing iterations is not known.
                _ => {}
            }
        }
    }
    fn store(&mut self, s: &Stmt, buf: Buf, at: &[Dim], value: &Expr) {
        // Without elements there is no conflict.
        let none = |d: &Dim| self.m.syms.le(*d, Dim::constant(0)) == Answer::Yes;
        let empty = self.m.bufs[buf].dims.iter().any(none);
        let address = self.m.linear(buf, at);
        if empty || self.bound.iter().any(|b| address.contains(*b)) {
            return;
        }
        let meet = if address.contains(self.var) { self.linear_meet(address) } else { self.changes(value) };
        if meet {
            let text = format!(
                "iterations of {} store to one element of \"{}\"",
                self.m.syms.unique_name(self.var),
                self.m.bufs[buf].name
            );
            self.faults.push(Fault { stmt: std::ptr::from_ref(s).addr(), text });
        }
    }
    /// Whether a value may differ between iterations.
    fn changes(&self, value: &Expr) -> bool {
        let mut found = false;
        value.walk(&mut |e| {
            found |= match e {
                Expr::Index(d) => d.contains(self.var),
                Expr::Load { at, .. } => at.iter().any(|d| d.contains(self.var)),
                Expr::Reg(_) | Expr::Acc { .. } | Expr::Horizontal { .. } => true,
                _ => false,
            };
        });
        found
    }
    /// True if a step of the loop equals a number of steps of one inner loop.
    fn linear_meet(&self, address: Dim) -> bool {
        let step = |s: Sym| address.linear_in(s).and_then(|l| l.0.as_const());
        let (Some(own), Some(count)) = (step(self.var), self.count) else { return false };
        self.loops.iter().any(|(s, n)| {
            let (Some(inner), Some(n)) = (step(*s), *n) else { return false };
            if inner == 0 || own == 0 {
                return false;
            }
            let common = gcd(own.unsigned_abs(), inner.unsigned_abs());
            // So many steps of the one are as long as so many of the other.
            let (steps, inside) = (inner.unsigned_abs() / common, own.unsigned_abs() / common);
            steps < count.unsigned_abs() && inside < n.unsigned_abs()
        })
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}
