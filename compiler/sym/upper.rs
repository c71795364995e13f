//! Upper bounds of sizes that are defined at run time, as expressions over sizes known at entry. Memory is
//! planned with them.

use super::{Atom, Dim, Sym, SymKind, SymTable, View};

/// A product of run-time sizes with its upper bound.
#[derive(Clone, Debug)]
pub(super) struct Upper {
    product: Vec<Sym>,
    bound: Dim,
}

impl SymTable {
    /// Records that the product of some run-time sizes is at most `bound`. The code that defines the sizes
    /// checks it.
    pub fn bound_product(&mut self, product: &[Sym], bound: Dim) {
        let mut product = product.to_vec();
        product.sort_unstable();
        self.uppers.push(Upper { product, bound });
    }
    /// True if the value is known only once generated code has defined a size in it.
    pub fn at_run_time(&self, d: Dim) -> bool {
        d.as_const().is_none() && d.syms().into_iter().any(|s| self.kind(s) == SymKind::Runtime)
    }
    /// An expression without run-time sizes that is never smaller than `d`.
    pub fn upper(&self, d: Dim) -> Option<Dim> {
        self.upper_at(d, 0)
    }
    fn upper_at(&self, d: Dim, depth: u32) -> Option<Dim> {
        if !self.at_run_time(d) {
            return Some(d);
        }
        let View::Sum { terms, constant } = d.view() else { return None };
        if depth > 24 {
            return None;
        }
        let mut out = Dim::constant(constant);
        for (c, atoms) in terms {
            let term = Dim::product(atoms.iter().map(|a| Dim::atom(a.clone())));
            if !self.at_run_time(term) {
                out += term * *c;
            } else if *c < 0 {
                // At least nothing is subtracted.
                if !self.is_nonneg(term) {
                    return None;
                }
            } else {
                out += self.upper_product(atoms, depth)? * *c;
            }
        }
        Some(out)
    }
    fn upper_product(&self, atoms: &[Atom], depth: u32) -> Option<Dim> {
        let mut rest: Vec<Atom> = atoms.to_vec();
        let mut out = Dim::constant(1);
        // Facts about products come first, those with the most factors before those about single sizes.
        let mut facts: Vec<&Upper> =
            self.uppers.iter().filter(|u| u.product.iter().all(|s| atoms.contains(&Atom::Sym(*s)))).collect();
        facts.sort_by_key(|u| std::cmp::Reverse(u.product.len()));
        for u in facts {
            let mut left = rest.clone();
            let all = u.product.iter().all(|s| match left.iter().position(|a| *a == Atom::Sym(*s)) {
                Some(i) => {
                    left.remove(i);
                    true
                }
                None => false,
            });
            if all && let Some(b) = self.upper_at(u.bound, depth + 1) {
                rest = left;
                out *= b;
            }
        }
        for a in rest {
            out *= self.upper_atom(&a, depth)?;
        }
        Some(out)
    }
    /// The upper bound of one factor, which must not be negative.
    fn upper_atom(&self, a: &Atom, depth: u32) -> Option<Dim> {
        let d = Dim::atom(a.clone());
        if !self.is_nonneg(d) {
            return None;
        }
        if !self.at_run_time(d) {
            return Some(d);
        }
        let up = |d: Dim| self.upper_at(d, depth + 1);
        match a {
            Atom::Sym(_) => None,
            // A quotient is at most its dividend, for any positive divisor.
            Atom::FloorDiv(x, y) => Some(match self.at_run_time(*y) {
                false if self.is_pos(*y) => up(*x)?.floor_div(*y),
                _ if self.is_nonneg(*x) && self.is_nonneg(*y) => up(*x)?,
                _ => return None,
            }),
            Atom::Mod(x, y) => {
                let below = if self.is_nonneg(*x) { up(*x) } else { None };
                if self.is_nonneg(*y) { up(*y).map(|y| y - 1).or(below) } else { None }
            }
            Atom::Min(v) => v.iter().filter_map(|d| up(*d)).reduce(Dim::min),
            Atom::Max(v) => {
                v.iter().map(|d| up(*d)).collect::<Option<Vec<_>>>()?.into_iter().reduce(Dim::max)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_of_products_and_quotients() {
        let mut t = SymTable::new();
        let n = Dim::sym(t.param("N"));
        let (a, b, c) =
            (t.fresh(SymKind::Runtime, "a"), t.fresh(SymKind::Runtime, "b"), t.fresh(SymKind::Runtime, "c"));
        assert_eq!(t.upper(Dim::sym(a)), None);
        t.bound_product(&[a, b], n * 6);
        t.bound_product(&[c], n + 1);
        let (a, b, c) = (Dim::sym(a), Dim::sym(b), Dim::sym(c));
        assert_eq!(t.upper(a * b * 4), Some(n * 24));
        assert_eq!(t.upper(a * b * c), Some(n * 6 * (n + 1)));
        assert_eq!(t.upper(a * c), None);
        assert_eq!(t.upper((c + 3).floor_div(2) - a), Some((n + 4).floor_div(2)));
    }
}
