//! Simplification of dims with the known ranges of their symbols: divisions and remainders of values within
//! one period, minima and maxima that always are the same operand.

use super::super::expr::{floor_div_i64, floor_mod_i64};
use super::{Atom, Dim, Prover, View};

impl Prover<'_> {
    /// The simplified dim.
    pub(super) fn simplify(&self, d: Dim) -> Dim {
        let View::Sum { terms, constant } = d.view() else { return d };
        if terms.iter().all(|t| t.1.iter().all(|a| matches!(a, Atom::Sym(_)))) {
            return d;
        }
        if let Some(s) = self.simple.borrow().get(&d) {
            return *s;
        }
        if !self.step() {
            return d;
        }
        let mut out = Dim::constant(constant);
        for (c, atoms) in terms {
            out += Dim::product(atoms.iter().map(|a| self.simplify_atom(a))) * *c;
        }
        self.simple.borrow_mut().insert(d, out);
        out
    }
    fn simplify_atom(&self, a: &Atom) -> Dim {
        match a {
            Atom::Sym(_) => Dim::atom(a.clone()),
            Atom::FloorDiv(x, y) => {
                let (x, y) = (self.simplify(*x), self.simplify(*y));
                if self.inside(x, y) {
                    Dim::constant(0)
                } else {
                    self.split_small(x, y)
                        .map_or_else(|| x.floor_div(y), |(_, q, d, _)| self.simplify(q.floor_div(d)))
                }
            }
            Atom::Mod(x, y) => {
                let (x, y) = (self.simplify(*x), self.simplify(*y));
                if self.inside(x, y) {
                    x
                } else {
                    self.split_small(x, y)
                        .map_or_else(|| x.modulo(y), |(g, q, d, r)| self.simplify(q.modulo(d)) * g + r)
                }
            }
            Atom::Min(v) | Atom::Max(v) => {
                let max = matches!(a, Atom::Max(_));
                let v: Vec<Dim> = v.iter().map(|d| self.simplify(*d)).collect();
                for (i, x) in v.iter().enumerate() {
                    let wins = |y: &Dim| self.nonneg(self.syms.normal(if max { *x - *y } else { *y - *x }));
                    if v.iter().enumerate().all(|(j, y)| i == j || wins(y)) {
                        return *x;
                    }
                }
                v.into_iter().reduce(if max { Dim::max } else { Dim::min }).unwrap_or_default()
            }
        }
    }
    /// `(g, q, d, r)` with `x = g*q + r` for the divisor `y = g*d`, where g > 1, d > 0 and r is in 0..g. Then
    /// `x div y = q div d` and `x mod y = g*(q mod d) + r`. Candidates for g are the coefficients of x; only
    /// numbers are considered.
    fn split_small(&self, x: Dim, y: Dim) -> Option<(i64, Dim, i64, Dim)> {
        let (View::Sum { terms, constant }, n) = (x.view(), y.as_const().filter(|n| *n > 0)?) else {
            return None;
        };
        let mut gs: Vec<i64> = terms.iter().map(|t| t.0).filter(|c| *c > 1 && n % c == 0).collect();
        gs.sort_unstable();
        gs.dedup();
        for g in gs {
            let (big, small): (Vec<_>, Vec<_>) = terms.iter().cloned().partition(|t| t.0 % g == 0);
            let r = Dim::from_terms(small, floor_mod_i64(constant, g)?);
            if r.as_const() == Some(0) || !self.inside(r, Dim::constant(g)) {
                continue;
            }
            let q = Dim::from_terms(
                big.into_iter().map(|(c, p)| (c / g, p)).collect(),
                floor_div_i64(constant, g)?,
            );
            return Some((g, q, n / g, r));
        }
        None
    }
    /// Replaces remainders by divisions: the one rule that canonical form leaves open.
    pub(super) fn without_mod(&self, d: Dim) -> Dim {
        let View::Sum { terms, constant } = d.view() else { return d };
        let mut out = Dim::constant(constant);
        for (c, atoms) in terms {
            out += Dim::product(atoms.iter().map(|a| match a {
                Atom::Mod(x, y) => *x - *y * x.floor_div(*y),
                a => Dim::atom(a.clone()),
            })) * *c;
        }
        out
    }
}
