//! Arithmetic into canonical form. Each rule holds for all integers. A division by zero has no value, so
//! rules may assume that divisors are not zero:
//!
//! 1. Sums merge equal products and drop zero coefficients; products distribute over sums.
//! 2. `floordiv(x, 1) = x`, `mod(x, 1) = mod(x, -1) = 0`; numbers fold; `floordiv(0, d) = mod(0, d) = 0`.
//! 3. `floordiv(d*q + r, d) = q + floordiv(r, d)` and `mod(d*q + r, d) = mod(r, d)`: every term that the
//!    divisor divides exactly (as a number, or as a symbolic factor) is taken out, and so is the multiple of
//!    the divisor in the constant.
//! 4. For a number d > 0: `floordiv(c*x + r, d)` with g = gcd of d and all coefficients becomes
//!    `floordiv((c/g)*x + floordiv(r, g), d/g)`.
//!    A common factor of all terms of dividend and divisor is cancelled, and a sum that divides
//!    without remainder gives the quotient.
//! 5. `floordiv(floordiv(x, a), b) = floordiv(x, a*b)` for numbers a, b > 0.
//! 6. `d*floordiv(x, d) + mod(x, d) = x`, also with a common factor in front. This is the one rule that
//!    depends on the order of additions (`mod + 2*d*floordiv` stays); [`super::SymTable::eq`] sees through
//!    it. Likewise `a*mod(floordiv(x, a), b) + mod(x, a) = mod(x, a*b)` for numbers a, b > 0.
//! 7. Minima and maxima are flat, sorted, without repetitions and with at most one number; of operands that
//!    differ by a number, only the decisive one stays.
//! 8. Expressions have bounds on size and nesting (`MAX_SIZE`, `MAX_DEPTH`); beyond them they are poison.

use super::expr::{Atom, Dim, Node, Sym, Term, View, floor_div_i64, floor_mod_i64};
use super::memo;
use std::iter;
use std::ops::{Add, AddAssign, Mul, MulAssign, Neg, Sub};

pub(super) fn gcd(a: i64, b: i64) -> i64 {
    let (mut a, mut b) = (a.unsigned_abs(), b.unsigned_abs());
    while b != 0 {
        (a, b) = (b, a % b);
    }
    i64::try_from(a).unwrap_or(1)
}

impl Dim {
    /// Sums terms (atoms of each sorted or not) and a constant.
    pub(crate) fn from_terms(terms: Vec<Term>, constant: i64) -> Dim {
        let mut terms = terms;
        for (_, p) in &mut terms {
            p.sort();
        }
        if !terms.is_sorted_by(|a, b| a.1 <= b.1) {
            terms.sort_by(|a, b| a.1.cmp(&b.1));
        }
        // Wide sums: an overflow of an intermediate sum is none if the final sum fits.
        let mut wide: Vec<(i128, Vec<Atom>)> = vec![];
        let mut constant = i128::from(constant);
        for (c, p) in terms {
            let c = i128::from(c);
            match wide.last_mut() {
                _ if p.is_empty() => constant += c,
                Some((d, q)) if *q == p => *d += c,
                _ => wide.push((c, p)),
            }
        }
        let narrow = wide
            .into_iter()
            .filter(|(c, _)| *c != 0)
            .map(|(c, p)| Some((i64::try_from(c).ok()?, p)))
            .collect::<Option<Vec<Term>>>();
        let (Some(out), Ok(constant)) = (narrow, i64::try_from(constant)) else { return Dim::overflow() };
        if let Some((left, more)) = recombine(&out) {
            let Some((more, k)) = more.parts() else { return Dim::overflow() };
            let Some(constant) = constant.checked_add(k) else { return Dim::overflow() };
            return Dim::from_terms(left.into_iter().chain(more.iter().cloned()).collect(), constant);
        }
        if out.is_empty() {
            Dim::constant(constant)
        } else {
            Dim::intern(Node::Poly { terms: out, constant })
        }
    }
    fn parts(self) -> Option<(&'static [Term], i64)> {
        match self.view() {
            View::Overflow => None,
            View::Const(c) => Some((&[], c)),
            View::Sum { terms, constant } => Some((terms, constant)),
        }
    }
    /// Exact quotient of one term by a divisor that is a number or a single product.
    fn divide_term(t: &Term, d: &Term) -> Option<Term> {
        if t.0.checked_rem(d.0)? != 0 {
            return None;
        }
        let mut left = t.1.clone();
        for a in &d.1 {
            let i = left.iter().position(|x| x == a)?;
            left.remove(i);
        }
        Some((t.0.checked_div(d.0)?, left))
    }
    /// Splits `self = d*q + r` with every exactly divisible term in q (rule 3).
    fn split_by(self, d: Dim) -> Option<(Dim, Dim)> {
        let (terms, constant) = self.parts()?;
        let divisor: Term = match d.view() {
            View::Const(c) if c != 0 => (c, vec![]),
            View::Sum { terms: [t], constant: 0 } => t.clone(),
            View::Sum { .. } => {
                return if self == d { Some((Dim::constant(1), Dim::constant(0))) } else { None };
            }
            _ => return None,
        };
        let (mut q, mut r) = (vec![], vec![]);
        for t in terms {
            match Dim::divide_term(t, &divisor) {
                Some(x) => q.push(x),
                None => r.push(t.clone()),
            }
        }
        let (mut qc, mut rc) = (0, constant);
        if divisor.1.is_empty() {
            qc = floor_div_i64(constant, divisor.0)?;
            rc = floor_mod_i64(constant, divisor.0)?;
        }
        Some((Dim::from_terms(q, qc), Dim::from_terms(r, rc)))
    }
    /// Quotient rounded towards minus infinity.
    pub fn floor_div(self, d: impl Into<Dim>) -> Dim {
        let d = d.into();
        if self.is_overflow() || d.is_overflow() || d.as_const() == Some(0) {
            return Dim::overflow();
        }
        if let (Some(a), Some(b)) = (self.as_const(), d.as_const()) {
            return floor_div_i64(a, b).map_or_else(Dim::overflow, Dim::constant);
        }
        if d.as_const() == Some(1) || self.as_const() == Some(0) {
            return self;
        }
        if d.as_const() == Some(-1) {
            return -self;
        }
        memo::dim(memo::Op::FloorDiv, self, d, || self.quotient(d))
    }
    /// Both expressions without the common factor of all their terms: the operands of the reduced quotient.
    fn without_common(self, d: Dim) -> Option<(Dim, Dim)> {
        let ((a, k), (b, l)) = (self.parts()?, d.parts()?);
        let numbers = a.iter().chain(b).map(|t| t.0).chain([k, l]);
        let g = numbers.fold(0, gcd);
        let mut common: Vec<Atom> = if k == 0 && l == 0 { b.first()?.1.clone() } else { vec![] };
        for (_, p) in a.iter().chain(b) {
            let mut left = p.clone();
            common.retain(|x| left.iter().position(|y| y == x).map(|i| left.remove(i)).is_some());
        }
        if b.is_empty() || (g <= 1 && common.is_empty()) {
            return None;
        }
        let factor = (g.max(1), common);
        let divided = |t: &[Term], k: i64| {
            Some(Dim::from_terms(
                t.iter().map(|t| Dim::divide_term(t, &factor)).collect::<Option<_>>()?,
                k / factor.0,
            ))
        };
        Some((divided(a, k)?, divided(b, l)?))
    }
    /// The quotient by a sum, if it divides without remainder.
    fn exact_by_sum(self, d: Dim) -> Option<Dim> {
        let (b, _) = d.parts()?;
        let (mut q, mut r) = (Dim::constant(0), self);
        for _ in 0..8 {
            let lead = Dim::divide_term(r.parts()?.0.first()?, b.first()?)?;
            let t = Dim::from_terms(vec![lead], 0);
            (q, r) = (q + t, r - t * d);
            if r.as_const() == Some(0) {
                return Some(q);
            }
        }
        None
    }
    /// The quotient by a divisor that is not 0, 1 or -1, where not both are numbers.
    fn quotient(self, d: Dim) -> Dim {
        if let Some((x, y)) = self.without_common(d) {
            return x.floor_div(y);
        }
        if d.parts().is_some_and(|(t, k)| t.len() + usize::from(k != 0) > 1)
            && let Some(q) = self.exact_by_sum(d)
        {
            return q;
        }
        if let Some((q, r)) = self.split_by(d) {
            if r.as_const() == Some(0) {
                return q;
            }
            if q.as_const() != Some(0) {
                return q + r.floor_div(d);
            }
        }
        if let (Some(n), Some((terms, constant))) = (d.as_const(), self.parts())
            && n > 0
        {
            let g = terms.iter().fold(n, |g, (c, _)| gcd(g, *c));
            if g > 1 {
                let terms = terms.iter().map(|(c, p)| (c / g, p.clone())).collect();
                let c = floor_div_i64(constant, g).unwrap_or(0);
                return Dim::from_terms(terms, c).floor_div(n / g);
            }
            if terms.len() == 1
                && let Some(q) = self.quotient_of_quotient(d)
            {
                return q;
            }
        }
        Dim::atom(Atom::FloorDiv(self, d))
    }
    /// The quotient of a sum with a term `floordiv(x, m)` as a quotient by the product of the divisors:
    /// `floordiv(rest + floordiv(x, m), n) = floordiv(m rest + x, m n)` for numbers m and n.
    fn quotient_of_quotient(self, d: Dim) -> Option<Dim> {
        let n = d.as_const().filter(|n| *n > 0)?;
        let (terms, _) = self.parts()?;
        let (x, m) = terms.iter().find_map(|t| match (t.0, t.1.as_slice()) {
            (1, [Atom::FloorDiv(x, m)]) => Some((*x, m.as_const().filter(|m| *m > 0)?)),
            _ => None,
        })?;
        let inner = (self - x.floor_div(m)) * m + x;
        Some(inner.floor_div(m.checked_mul(n)?)).filter(|_| !inner.is_overflow())
    }
    /// Quotient rounded towards plus infinity.
    pub fn ceil_div(self, d: impl Into<Dim>) -> Dim {
        let d = d.into();
        if let (Some(a), Some(b)) = (self.as_const(), d.as_const()) {
            let up = |q: i64| q.checked_add(i64::from(a % b != 0));
            return if b == -1 {
                -self
            } else {
                floor_div_i64(a, b).and_then(up).map_or_else(Dim::overflow, Dim::constant)
            };
        }
        match d.as_const() {
            Some(n) if n > 0 => (self + (n - 1)).floor_div(d),
            _ => -((-self).floor_div(d)),
        }
    }
    /// Remainder with the divisor's sign.
    pub fn modulo(self, d: impl Into<Dim>) -> Dim {
        let d = d.into();
        if self.is_overflow() || d.is_overflow() || d.as_const() == Some(0) {
            return Dim::overflow();
        }
        if let (Some(a), Some(b)) = (self.as_const(), d.as_const()) {
            return floor_mod_i64(a, b).map_or_else(Dim::overflow, Dim::constant);
        }
        if d.as_const() == Some(1) || d.as_const() == Some(-1) || self.as_const() == Some(0) {
            return Dim::constant(0);
        }
        memo::dim(memo::Op::Mod, self, d, || self.remainder(d))
    }
    /// The remainder by a divisor that is not 0, 1 or -1, where not both are numbers.
    fn remainder(self, d: Dim) -> Dim {
        match self.split_by(d) {
            Some((_, r)) if r.as_const() == Some(0) => r,
            Some((_, r)) if r != self => r.modulo(d),
            _ => {
                // mod(x, n) with every coefficient and n divisible by g: g * mod(x/g, n/g) + constant mod g
                if let (Some(n), Some((terms, constant))) = (d.as_const(), self.parts())
                    && n > 0
                {
                    let g = terms.iter().fold(n, |g, (c, _)| gcd(g, *c));
                    if g > 1 {
                        let terms = terms.iter().map(|(c, p)| (c / g, p.clone())).collect();
                        let (q, r) = (
                            floor_div_i64(constant, g).unwrap_or(0),
                            floor_mod_i64(constant, g).unwrap_or(0),
                        );
                        return Dim::from_terms(terms, q).modulo(n / g) * g + r;
                    }
                }
                Dim::atom(Atom::Mod(self, d))
            }
        }
    }
    /// The smaller one.
    pub fn min(self, o: impl Into<Dim>) -> Dim {
        let o = o.into();
        memo::dim(memo::Op::Min, self, o, || extreme(self, o, false))
    }
    /// The larger one.
    pub fn max(self, o: impl Into<Dim>) -> Dim {
        let o = o.into();
        memo::dim(memo::Op::Max, self, o, || extreme(self, o, true))
    }
}

/// Rule 6: the terms that stay, and the replacement of the others. Each step replaces a remainder by
/// shallower atoms, so the repetition terminates.
fn recombine(terms: &[Term]) -> Option<(Vec<Term>, Dim)> {
    for (i, (c, p)) in terms.iter().enumerate() {
        for (k, a) in p.iter().enumerate() {
            let Atom::Mod(x, d) = a else { continue };
            let mut rest = p.clone();
            rest.remove(k);
            if let Some((j, joined)) = next_digit(terms, (*c, &rest), (*x, *d)) {
                let left = terms.iter().enumerate().filter(|(at, _)| ![i, j].contains(at));
                return Some((left.map(|(_, t)| t.clone()).collect(), Dim::intern_term(*c, rest) * joined));
            }
            let front = Dim::intern_term(*c, rest);
            // front * d * floordiv(x, d) must be a sub-sum of the others
            let other = || x.quotient_of_quotient(*d);
            for quotient in iter::once(x.floor_div(*d)).chain(iter::once_with(other).flatten()) {
                let want = front * *d * quotient;
                let View::Sum { terms: w, constant: 0 } = want.view() else { continue };
                let at = |t: &Term| {
                    terms.binary_search_by(|u| u.1.cmp(&t.1)).ok().filter(|&j| j != i && terms[j].0 == t.0)
                };
                if w.iter().all(|t| at(t).is_some()) {
                    let left = terms
                        .iter()
                        .enumerate()
                        .filter(|(j, t)| *j != i && !w.contains(t))
                        .map(|(_, t)| t.clone())
                        .collect();
                    return Some((left, front * *x));
                }
            }
        }
    }
    None
}

/// Of `front * mod(x, a)` with a number a: the term `front * a * mod(floordiv(x, a), b)`, and
/// `mod(x, a * b)`.
fn next_digit(terms: &[Term], (c, rest): (i64, &[Atom]), (x, a): (Dim, Dim)) -> Option<(usize, Dim)> {
    let a = a.as_const().filter(|a| *a > 0)?;
    let c = c.checked_mul(a)?;
    terms.iter().enumerate().filter(|(_, t)| t.0 == c && t.1.len() == rest.len() + 1).find_map(
        |(j, (_, p))| {
            let at = p.iter().position(|q| matches!(q, Atom::Mod(y, _) if *y == x.floor_div(a)))?;
            let Atom::Mod(_, b) = p[at] else { return None };
            let others = p[..at].iter().chain(&p[at + 1..]);
            let b = b.as_const().filter(|b| *b > 0 && others.eq(rest))?;
            Some((j, x.modulo(a.checked_mul(b)?)))
        },
    )
}

impl Dim {
    fn intern_term(c: i64, atoms: Vec<Atom>) -> Dim {
        if atoms.is_empty() {
            Dim::constant(c)
        } else {
            Dim::intern(Node::Poly { terms: vec![(c, atoms)], constant: 0 })
        }
    }
}

/// Rule 7.
fn extreme(a: Dim, b: Dim, max: bool) -> Dim {
    if a.is_overflow() || b.is_overflow() {
        return Dim::overflow();
    }
    let mut all = vec![];
    for d in [a, b] {
        match d.view() {
            View::Sum { terms: [(1, p)], constant: 0 } => match (p.as_slice(), max) {
                ([Atom::Max(v)], true) | ([Atom::Min(v)], false) => all.extend(v.iter().copied()),
                _ => all.push(d),
            },
            _ => all.push(d),
        }
    }
    let mut kept: Vec<Dim> = vec![];
    'next: for d in all {
        for k in &mut kept {
            if let (Some((p, c)), Some((q, e))) = (d.parts(), k.parts())
                && p == q
            {
                if (c > e) == max {
                    *k = d;
                }
                continue 'next;
            }
        }
        kept.push(d);
    }
    kept.sort();
    kept.dedup();
    match kept.as_slice() {
        [one] => *one,
        _ => Dim::atom(if max { Atom::Max(kept) } else { Atom::Min(kept) }),
    }
}

impl Add for Dim {
    type Output = Dim;
    fn add(self, o: Dim) -> Dim {
        let (Some((a, c)), Some((b, d))) = (self.parts(), o.parts()) else { return Dim::overflow() };
        let Some(s) = c.checked_add(d) else { return Dim::overflow() };
        // If one operand is a number, the terms stay canonical.
        match (a, b) {
            ([], []) => Dim::constant(s),
            (_, []) if d == 0 => self,
            ([], _) if c == 0 => o,
            _ => memo::dim(memo::Op::Add, self, o, || match (a, b) {
                (t, []) | ([], t) => Dim::intern(Node::Poly { terms: t.to_vec(), constant: s }),
                _ => Dim::from_terms(a.iter().chain(b).cloned().collect(), s),
            }),
        }
    }
}

impl Mul for Dim {
    type Output = Dim;
    fn mul(self, o: Dim) -> Dim {
        if self.is_overflow() || o.is_overflow() {
            return Dim::overflow();
        }
        match (self.as_const(), o.as_const()) {
            (Some(a), Some(b)) => a.checked_mul(b).map_or_else(Dim::overflow, Dim::constant),
            (Some(1), _) => o,
            (_, Some(1)) => self,
            _ => memo::dim(memo::Op::Mul, self, o, || self.times(o)),
        }
    }
}

impl Dim {
    /// The product.
    fn times(self, o: Dim) -> Dim {
        let (Some((a, c)), Some((b, d))) = (self.parts(), o.parts()) else { return Dim::overflow() };
        // The terms stay canonical if all coefficients are multiplied by one number.
        for (x, k) in [(self, o), (o, self)] {
            let (Some(k), Some((terms, constant))) = (k.as_const(), x.parts()) else { continue };
            if k == 0 {
                return k.into();
            }
            let scaled = terms
                .iter()
                .map(|(c, p)| Some((c.checked_mul(k)?, p.clone())))
                .collect::<Option<Vec<Term>>>();
            return match (scaled, constant.checked_mul(k)) {
                (Some(terms), Some(constant)) if terms.is_empty() => constant.into(),
                (Some(terms), Some(constant)) => Dim::intern(Node::Poly { terms, constant }),
                _ => Dim::overflow(),
            };
        }
        if (a.len() + 1).saturating_mul(b.len() + 1) > super::expr::MAX_SIZE as usize {
            return Dim::overflow();
        }
        let one = |t: &[Term], k: i64| -> Vec<Term> {
            t.iter().cloned().chain((k != 0).then(|| (k, vec![]))).collect()
        };
        let mut out = vec![];
        for (x, p) in one(a, c) {
            for (y, q) in one(b, d) {
                let Some(xy) = x.checked_mul(y) else { return Dim::overflow() };
                out.push((xy, p.iter().chain(&q).cloned().collect()));
            }
        }
        Dim::from_terms(out, 0)
    }
}

impl Neg for Dim {
    type Output = Dim;
    fn neg(self) -> Dim {
        self * Dim::constant(-1)
    }
}

impl Sub for Dim {
    type Output = Dim;
    fn sub(self, o: Dim) -> Dim {
        match (self.as_const(), o.as_const()) {
            (Some(a), Some(b)) => a.checked_sub(b).map_or_else(Dim::overflow, Dim::constant),
            _ => self + -o,
        }
    }
}

macro_rules! mixed {
    ($($t:ty),*) => {$(
        impl Add<$t> for Dim { type Output = Dim; fn add(self, o: $t) -> Dim { self + Dim::from(o) } }
        impl Sub<$t> for Dim { type Output = Dim; fn sub(self, o: $t) -> Dim { self - Dim::from(o) } }
        impl Mul<$t> for Dim { type Output = Dim; fn mul(self, o: $t) -> Dim { self * Dim::from(o) } }
    )*};
}
mixed!(i64, Sym);

impl Add<Dim> for i64 {
    type Output = Dim;
    fn add(self, o: Dim) -> Dim {
        Dim::constant(self) + o
    }
}
impl Sub<Dim> for i64 {
    type Output = Dim;
    fn sub(self, o: Dim) -> Dim {
        Dim::constant(self) - o
    }
}
impl Mul<Dim> for i64 {
    type Output = Dim;
    fn mul(self, o: Dim) -> Dim {
        Dim::constant(self) * o
    }
}
impl<T: Into<Dim>> AddAssign<T> for Dim {
    fn add_assign(&mut self, o: T) {
        *self = *self + o.into();
    }
}
impl<T: Into<Dim>> MulAssign<T> for Dim {
    fn mul_assign(&mut self, o: T) {
        *self = *self * o.into();
    }
}
