//! Facts about indices implied by enclosing conditions, and proofs that use them.
//!
//! A comparison of index expressions under a `Select` or `If` becomes a [`Dim`] that is known to be
//! nonnegative. A proof subtracts multiples of such facts until [`SymTable::is_nonneg`] succeeds (Farkas'
//! lemma with guessed multipliers).

use super::{BinOp, Expr, Reg, UnOp};
use crate::sym::{Atom, Condition, Dim, Sym, SymKind, SymTable, View};
use std::collections::HashMap;

/// Facts in order of nesting.
pub(super) struct Facts<'a> {
    syms: &'a SymTable,
    /// `Some(d)`: d >= 0. `None`: a condition on data.
    known: Vec<Option<Dim>>,
    /// d >= 0 because the entry checks it.
    checked: Vec<Dim>,
}

/// Values of `Let` registers in scope, which conditions may refer to.
pub(super) type Values<'a> = HashMap<Reg, &'a Expr>;

impl<'a> Facts<'a> {
    /// Only the ranges of the symbol table.
    pub fn new(syms: &'a SymTable) -> Self {
        let mut checked = vec![];
        for c in syms.conditions() {
            match c {
                Condition::Equal(a, b) => checked.extend([*a - *b, *b - *a]),
                Condition::AtMost(a, b) => checked.push(*b - *a),
                Condition::Broadcast(..) => {}
            }
        }
        Facts { syms, known: vec![], checked }
    }
    /// The number of facts, to be passed to [`Facts::forget`] at the end of their scope.
    pub fn mark(&self) -> usize {
        self.known.len()
    }
    /// Drops facts added since the mark.
    pub fn forget(&mut self, mark: usize) {
        self.known.truncate(mark);
    }
    /// Adds `d >= 0`.
    pub fn learn(&mut self, d: Dim) {
        self.known.push(Some(d));
    }
    /// Adds the truth or falsehood of a condition.
    pub fn assume(&mut self, cond: &'a Expr, truth: bool, values: &Values<'a>) {
        match cond {
            Expr::Const(_) => {}
            Expr::Bin(BinOp::And, a, b) if truth => {
                self.assume(a, true, values);
                self.assume(b, true, values);
            }
            Expr::Bin(BinOp::Or, a, b) if !truth => {
                self.assume(a, false, values);
                self.assume(b, false, values);
            }
            Expr::Un(UnOp::Not, a) => self.assume(a, !truth, values),
            Expr::Let { reg, value, body } => {
                let mut inner = values.clone();
                inner.insert(*reg, value);
                self.assume(body, truth, &inner);
            }
            Expr::Reg(r) if values.contains_key(r) => self.assume(values[r], truth, values),
            Expr::Bin(op, a, b) => match (index(a, values), index(b, values)) {
                (Some(a), Some(b)) => self.compare(*op, truth, a, b),
                _ => self.known.push(None),
            },
            _ => self.known.push(None),
        }
    }
    fn compare(&mut self, op: BinOp, truth: bool, a: Dim, b: Dim) {
        match (op, truth) {
            (BinOp::Lt, true) | (BinOp::Ge, false) => self.learn(b - a - 1),
            (BinOp::Le, true) | (BinOp::Gt, false) => self.learn(b - a),
            (BinOp::Ge, true) | (BinOp::Lt, false) => self.learn(a - b),
            (BinOp::Gt, true) | (BinOp::Le, false) => self.learn(a - b - 1),
            (BinOp::Eq, true) | (BinOp::Ne, false) => {
                self.learn(a - b);
                self.learn(b - a);
            }
            _ => self.known.push(None),
        }
    }
    /// True if `0 <= index < extent` is proven.
    pub fn in_range(&self, index: Dim, extent: Dim) -> bool {
        self.syms.in_range(index, extent) || (self.nonneg(index, 0) && self.nonneg(extent - 1 - index, 0))
    }
    /// True if `a <= b` is proven.
    pub fn le(&self, a: Dim, b: Dim) -> bool {
        self.nonneg(b - a, 0)
    }
    /// A lower bound after substituting the extreme values of loop variables, innermost first, as far as
    /// signs are known.
    fn extreme(&self, d: Dim) -> Option<Dim> {
        let mut d = d;
        let vars: Vec<Sym> =
            d.syms().into_iter().rev().filter(|s| self.syms.kind(*s) == SymKind::Loop).collect();
        let mut next = vars.first().copied();
        for _ in 0..16 {
            let Some(v) = next else { break };
            let (Some((c, rest)), Some((lo, hi))) = (d.linear_in(v), self.syms.loop_range(v)) else { break };
            d = if self.syms.is_nonneg(c) {
                rest + c * lo
            } else if self.syms.is_nonneg(-c) {
                rest + c * (hi - 1)
            } else {
                return None;
            };
            next = d.syms().into_iter().rev().find(|s| self.syms.kind(*s) == SymKind::Loop);
        }
        Some(d)
    }
    /// Substitutes extreme values of loop variables, and bounds of divisions and remainders.
    fn bounded(&self, d: Dim, depth: u32) -> bool {
        let Some(d) = self.extreme(d).filter(|_| depth < 6) else { return false };
        let View::Sum { terms, constant } = d.view() else { return self.syms.is_nonneg(d) };
        let mut low = Dim::constant(constant);
        let mut changed = false;
        for (c, atoms) in terms {
            let relaxed = self.below(*c, atoms);
            changed |= relaxed.is_some();
            low = low + relaxed.unwrap_or_else(|| product(atoms) * *c);
        }
        self.syms.is_nonneg(d) || (changed && (self.syms.is_nonneg(low) || self.bounded(low, depth + 1)))
    }
    /// A lower bound of a term without its division or remainder, if its other factors are not negative: for
    /// s > 0, `s * floordiv(e, s)` lies between `e - s + 1` and `e`, `mod(e, s)` between 0 and `s - 1`.
    fn below(&self, c: i64, atoms: &[Atom]) -> Option<Dim> {
        let i = atoms.iter().position(|a| matches!(a, Atom::FloorDiv(..) | Atom::Mod(..)))?;
        let others =
            atoms.iter().enumerate().filter(|(j, _)| *j != i).map(|(_, a)| product(std::slice::from_ref(a)));
        let r = Dim::product(others);
        if !self.syms.is_nonneg(r) {
            return None;
        }
        match &atoms[i] {
            Atom::FloorDiv(e, s) => {
                let s = s.as_const().filter(|s| *s > 0 && c % s == 0)?;
                Some(if c < 0 { *e * r * (c / s) } else { (*e - s + 1) * r * (c / s) })
            }
            Atom::Mod(_, s) if self.syms.is_nonneg(*s) => {
                Some(if c < 0 { (*s - 1) * r * c } else { Dim::constant(0) })
            }
            _ => None,
        }
    }
    /// True if an enclosing condition may keep this index in range, though no proof is found.
    pub fn excuses(&self, index: Dim) -> bool {
        self.known.iter().any(|k| k.is_none_or(|f| f.syms().iter().any(|s| index.contains(*s))))
    }
    /// `r + floordiv(e, s) >= 0` is `e + r*s >= 0`, and `r - floordiv(e, s) >= 0` is `r*s + s - 1 - e >= 0`,
    /// for s > 0 (0 divides nothing: where the division has a value, a divisor that is not negative is
    /// positive).
    fn without_division(&self, d: Dim) -> Option<Dim> {
        let View::Sum { terms, .. } = d.view() else { return None };
        terms.iter().find_map(|(c, atoms)| {
            let ([Atom::FloorDiv(e, s)], 1 | -1) = (atoms.as_slice(), *c) else { return None };
            if !self.syms.is_nonneg(*s) {
                return None;
            }
            let rest = d - e.floor_div(*s) * *c;
            Some(if *c == 1 { *e + rest * *s } else { rest * *s + *s - 1 - *e })
        })
    }
    /// True if the facts contradict each other: the code is unreachable.
    fn unreachable(&self) -> bool {
        self.known.iter().flatten().any(|f| f.as_const().is_some_and(|f| f < 0))
    }
    fn nonneg(&self, d: Dim, depth: u32) -> bool {
        if self.unreachable() || self.syms.is_nonneg(d) || self.bounded(d, 0) {
            return true;
        }
        if depth > 2 {
            return false;
        }
        if self.without_division(d).is_some_and(|e| self.nonneg(e, depth + 1)) {
            return true;
        }
        let with = |d: Dim| {
            self.known
                .iter()
                .flatten()
                .chain(&self.checked)
                .any(|f| multiples(d, *f).into_iter().any(|k| self.nonneg(d - *f * k, depth + 1)))
        };
        with(d) || self.extreme(d).is_some_and(|e| e != d && with(e))
    }
}

/// A product of atoms as a dim.
fn product(atoms: &[Atom]) -> Dim {
    let fold = |v: &[Dim], f: fn(Dim, Dim) -> Dim| v.iter().copied().reduce(f).unwrap_or_default();
    Dim::product(atoms.iter().map(|a| match a {
        Atom::Sym(s) => Dim::sym(*s),
        Atom::FloorDiv(x, y) => x.floor_div(*y),
        Atom::Mod(x, y) => x.modulo(*y),
        Atom::Min(v) => fold(v, Dim::min),
        Atom::Max(v) => fold(v, Dim::max),
    }))
}

/// Multipliers of a fact that cancel one of its terms in `d`.
fn multiples(d: Dim, fact: Dim) -> Vec<i64> {
    let (View::Sum { terms, .. }, View::Sum { terms: have, .. }) = (d.view(), fact.view()) else {
        return vec![];
    };
    let mut out: Vec<i64> = have
        .iter()
        .filter_map(|(c, atoms)| {
            let (k, _) = terms.iter().find(|t| t.1 == *atoms)?;
            (k.checked_rem(*c) == Some(0)).then(|| k / c).filter(|q| *q > 0)
        })
        .collect();
    out.sort_unstable();
    out.dedup();
    out
}

/// The index that an i64 expression denotes.
fn index(e: &Expr, values: &Values<'_>) -> Option<Dim> {
    match e {
        Expr::Index(d) => Some(*d),
        Expr::Const(c) if c.ty.is_int() => Some(Dim::constant(c.to_i64())),
        Expr::Reg(r) => index(values.get(r)?, values),
        _ => None,
    }
}
