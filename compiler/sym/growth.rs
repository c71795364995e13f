//! How the value of an expression changes with one of its symbols: which elements a vector of adjacent
//! iterations reads.

use super::{Atom, Dim, Sym, SymTable, Term, View};
use std::ops::Range;

impl Dim {
    /// An upper bound of the growth while `s` goes from 0 to `n - 1`. `None` if the value may fall, or if
    /// another symbol affects the growth other than as an operand of a minimum or maximum.
    pub fn growth(self, s: Sym, n: i64) -> Option<i64> {
        let View::Sum { terms, .. } = self.view() else { return Some(0) };
        let moving = || terms.iter().filter(|t| holds(t, s));
        // Without other symbols the values are a list of numbers.
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
    /// Splits the expression into a sum without `s` and a sum of the terms with `s`. `None` if the latter is
    /// linear in `s`, or may grow by `2 * n` or more while `s` goes from 0 to `n - 1`.
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
    /// Groups the iterations of a loop by position: the positions in a group are known distances apart. Each
    /// iteration is paired with its distance from the first one of its group.
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
        // Linear, falling, too far apart, and a quotient with another symbol in its dividend.
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
