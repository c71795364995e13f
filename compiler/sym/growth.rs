//! How expressions move with one of their symbols: what a vector of neighbouring iterations reads.

use super::{Atom, Dim, Sym, SymTable, Term, View};
use std::ops::Range;

impl Dim {
    /// How much the value grows at most while `s` goes from 0 to `n - 1`. `None` if it may fall, and where
    /// other symbols have a part in what `s` does other than as operands of minima and maxima.
    pub fn growth(self, s: Sym, n: i64) -> Option<i64> {
        let View::Sum { terms, .. } = self.view() else { return Some(0) };
        let moving = || terms.iter().filter(|t| holds(t, s));
        // What depends on nothing else is a list of numbers.
        if moving().count() == terms.len() && self.syms().len() == 1 {
            let places: Vec<i64> = (0..n).map(|i| self.eval(&|_| Some(i))).collect::<Option<_>>()?;
            let [first, .., last] = places.as_slice() else { return Some(0) };
            return if places.is_sorted() { last.checked_sub(*first) } else { None };
        }
        let own = |t: &&Term| t.1.iter().all(|a| a.holds_only(s));
        let alone: Vec<Term> = moving().filter(own).cloned().collect();
        let others: Vec<&Term> = moving().filter(|t| !own(t)).collect();
        if others.is_empty() {
            return Dim::from_terms(alone, 0).growth(s, n);
        }
        others.into_iter().try_fold(Dim::from_terms(alone, 0).growth(s, n)?, |sum, (c, atoms)| {
            let ([Atom::Min(v) | Atom::Max(v)], true) = (atoms.as_slice(), *c > 0) else { return None };
            let most = v.iter().try_fold(0, |most, d| Some(d.growth(s, n)?.max(most)))?;
            sum.checked_add(c.checked_mul(most)?)
        })
    }
    /// The expression as a sum of what does not depend on `s` and what does, if the latter is not linear in
    /// `s`, and grows by less than `2 * n` while `s` goes from 0 to `n - 1`.
    pub fn window(self, s: Sym, n: i64) -> Option<(Dim, Dim)> {
        let View::Sum { terms, constant } = self.view() else { return None };
        let hides = |t: &Term| t.1.iter().any(|a| !matches!(a, Atom::Sym(_)) && a.holds(s));
        if !terms.iter().any(hides) {
            return None;
        }
        let (moving, rest): (Vec<Term>, Vec<Term>) = terms.iter().cloned().partition(|t| holds(t, s));
        let moving = Dim::from_terms(moving, 0);
        (moving.growth(s, n)? < 2 * n).then(|| (Dim::from_terms(rest, constant), moving))
    }
}

impl SymTable {
    /// Iterations of a loop by where a position is: those of a list are known distances apart, which stand
    /// beside them, counted from the list's first one.
    pub fn planes(&self, position: Dim, var: Sym, iterations: Range<i64>) -> Vec<Vec<(i64, i64)>> {
        let known = |d: Dim| d.as_const().or_else(|| self.simplify(d).as_const());
        let mut found: Vec<(Dim, Vec<(i64, i64)>)> = vec![];
        for i in iterations {
            let at = position.subst(&mut |s| (s == var).then(|| Dim::constant(i)));
            match found.iter_mut().find_map(|f| Some((known(at - f.0)?, &mut f.1))) {
                Some((n, list)) => list.push((i, n)),
                None => found.push((at, vec![(i, 0)])),
            }
        }
        found.into_iter().map(|f| f.1).collect()
    }
}

fn holds(t: &Term, s: Sym) -> bool {
    t.1.iter().any(|a| a.holds(s))
}

impl Atom {
    fn holds_only(&self, s: Sym) -> bool {
        let only = |d: &Dim| d.syms().iter().all(|t| *t == s);
        match self {
            Atom::Sym(t) => *t == s,
            Atom::FloorDiv(x, y) | Atom::Mod(x, y) => only(x) && only(y),
            Atom::Min(v) | Atom::Max(v) => v.iter().all(only),
        }
    }
    fn holds(&self, s: Sym) -> bool {
        match self {
            Atom::Sym(t) => *t == s,
            Atom::FloorDiv(x, y) | Atom::Mod(x, y) => x.contains(s) || y.contains(s),
            Atom::Min(v) | Atom::Max(v) => v.iter().any(|d| d.contains(s)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::SymTable;
    use super::*;

    #[test]
    fn windows_never_fall_and_stay_near() {
        let mut syms = SymTable::new();
        let (n, l) = (syms.param("n"), syms.param("l"));
        let (n, lane) = (Dim::sym(n), Dim::sym(l));
        let clamped = |d: Dim| d.max(0).min(n - 1);
        let twice = clamped((lane + 1).floor_div(2) + n * 3);
        assert_eq!(twice.growth(l, 16), Some(8));
        assert_eq!((n * 5 + twice).window(l, 16), Some((n * 5, twice)));
        let again = clamped(lane.floor_div(4) + (lane.modulo(4) + 2).floor_div(4) + n * 3);
        assert_eq!(again.growth(l, 16), Some(4));
        // Linear, falling, too far apart, and a quotient of something else.
        for d in [
            lane * 2 + n,
            clamped(lane.modulo(4) + n),
            clamped(n - lane),
            clamped(lane * 3),
            (lane + n).floor_div(2),
        ] {
            assert_eq!(d.window(l, 16), None, "{d:?}");
        }
    }
}
