//! The extremes of expressions in loop variables.

use super::*;

impl Prover<'_> {
    /// A bound of `d` (upper if `max`) without loop variables, assuming that the enclosing loops run at least
    /// once. `None` if the sign of a coefficient is unknown.
    pub(super) fn extreme(&self, d: Dim, max: bool, depth: u32) -> Option<Dim> {
        if depth > 16 || !self.step() {
            return None;
        }
        let mut d = self.extreme_atoms(d, max, depth)?;
        // Innermost variables first: their bounds may mention the variables of outer loops, which are older.
        for _ in 0..64 {
            let Some(s) = d.syms().into_iter().rev().find(|s| self.is_loop(*s)) else { return Some(d) };
            let (c, rest) = d.linear_in(s)?;
            let (lo, hi) = self.syms.loop_range(s)?;
            let r = narrow(self.wide(c, 0));
            let upper = if r.lo.is_some_and(|l| l >= 0) || self.sign_by_extremes(c, depth) {
                max
            } else if r.hi.is_some_and(|h| h <= 0) {
                !max
            } else {
                return None;
            };
            let v = if upper { self.syms.normal(hi) - 1 } else { self.syms.normal(lo) };
            d = self.extreme_atoms(c * v + rest, max, depth)?;
        }
        None
    }
    /// The smallest value of `d` over its innermost loops, as long as it is a multiple of their variables
    /// plus a rest without them.
    pub(super) fn innermost(&self, mut d: Dim) -> Option<Dim> {
        for _ in 0..64 {
            let Some(s) = d.syms().into_iter().rev().find(|s| self.is_loop(*s)) else { break };
            let Some((c, rest)) = d.linear_in(s).and_then(|(c, rest)| Some((c.as_const()?, rest))) else {
                break;
            };
            let (lo, hi) = self.syms.loop_range(s)?;
            let end = if c < 0 { self.syms.normal(hi) - 1 } else { self.syms.normal(lo) };
            d = end * c + rest;
        }
        Some(d)
    }
    pub(super) fn sign_by_extremes(&self, c: Dim, depth: u32) -> bool {
        c.as_const().is_none()
            && self
                .extreme(c, false, depth + 4)
                .is_some_and(|e| narrow(self.wide(e, 0)).lo.is_some_and(|l| l >= 0))
    }
    /// Replaces divisions, remainders, minima and maxima that hold loop variables by bounds without them.
    fn extreme_atoms(&self, d: Dim, max: bool, depth: u32) -> Option<Dim> {
        let View::Sum { terms, constant } = d.view() else { return Some(d) };
        let has_loop = |d: Dim| d.syms().iter().any(|s| self.is_loop(*s));
        if !terms
            .iter()
            .flat_map(|t| &t.1)
            .any(|a| !matches!(a, Atom::Sym(_)) && has_loop(Dim::atom(a.clone())))
        {
            return Some(d);
        }
        let mut out = Dim::constant(constant);
        for (c, atoms) in terms {
            let complex: Vec<usize> = (0..atoms.len())
                .filter(|&i| !matches!(atoms[i], Atom::Sym(_)) && has_loop(Dim::atom(atoms[i].clone())))
                .collect();
            let product = |skip: Option<usize>| {
                Dim::product(
                    atoms
                        .iter()
                        .enumerate()
                        .filter(|(i, _)| Some(*i) != skip)
                        .map(|(_, a)| Dim::atom(a.clone())),
                )
            };
            match complex.as_slice() {
                [] => out += product(None) * *c,
                [i] => {
                    let rest = product(Some(*i)) * *c;
                    let r = narrow(self.wide(rest, 0));
                    let up = if r.lo.is_some_and(|l| l >= 0) {
                        max
                    } else if r.hi.is_some_and(|h| h <= 0) {
                        !max
                    } else {
                        return None;
                    };
                    out += rest * self.extreme_atom(&atoms[*i], up, depth + 1)?;
                }
                _ => return None,
            }
        }
        Some(out)
    }
    fn extreme_atom(&self, a: &Atom, max: bool, depth: u32) -> Option<Dim> {
        match a {
            Atom::Sym(_) => None,
            Atom::FloorDiv(x, y) => {
                let positive = narrow(self.wide(*y, 0)).lo.is_some_and(|l| l >= 0);
                let free = y.syms().iter().all(|s| !self.is_loop(*s));
                if positive && free { Some(self.extreme(*x, max, depth)?.floor_div(*y)) } else { None }
            }
            Atom::Mod(_, y) => {
                let nonneg = narrow(self.wide(*y, 0)).lo.is_some_and(|l| l >= 0);
                match (nonneg, max) {
                    (true, false) => Some(Dim::constant(0)),
                    (true, true) => self.extreme(*y - 1, true, depth),
                    _ => None,
                }
            }
            Atom::Min(v) => {
                let all: Vec<Option<Dim>> = v.iter().map(|d| self.extreme(*d, max, depth)).collect();
                if max {
                    all.into_iter().flatten().reduce(Dim::min)
                } else {
                    all.into_iter().collect::<Option<Vec<_>>>()?.into_iter().reduce(Dim::min)
                }
            }
            Atom::Max(v) => {
                let all: Vec<Option<Dim>> = v.iter().map(|d| self.extreme(*d, max, depth)).collect();
                if max {
                    all.into_iter().collect::<Option<Vec<_>>>()?.into_iter().reduce(Dim::max)
                } else {
                    all.into_iter().flatten().reduce(Dim::max)
                }
            }
        }
    }
}
