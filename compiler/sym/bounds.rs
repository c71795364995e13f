//! Proofs about dims: interval arithmetic, extreme values over loop variables for correlated terms, and
//! divisions rewritten as remainders.
//!
//! The proof of `d >= 0` tries these rules in order. Each is sound for every iteration of loops that run at
//! least once:
//!
//! 1. The interval of `d`, with each atom taken independently.
//! 2. Case analysis of a minimum or maximum in a sum.
//! 3. `n*floordiv(x, n) = x - mod(x, n)`, after scaling `d` if the coefficient requires it; then rules 1 and
//!    2 again. A scaled sum need only exceed `-scale`.
//! 4. Rules 1 to 3 for the smallest value over the loops. Divisions, minima and maxima are monotone,
//!    remainders lie in `0..n`, and a term linear in a loop variable is smallest at an end of its range.
//! 5. Rules 1 to 3 for the smallest value over the innermost loops only, as long as no minimum or maximum
//!    contains their variables. The terms that their bounds share with the rest of the sum cancel.
//! 6. A sum of a multiple of a checked fact and of a rest that is not negative.
//! 7. The sum without its minima and maxima that are not negative themselves.
//!
//! A proof has an effort limit and memoizes its results, so that hostile expressions cost little and give
//! Unknown.

mod extremes;
mod simpler;

use super::expr::{floor_div_i64, floor_mod_i64};
use super::{Answer, Atom, Condition, Dim, Range, SymKind, SymTable, View};
use crate::maps::Map;
use std::cell::{Cell, RefCell};

type Wide = (Option<i128>, Option<i128>);

fn narrow((lo, hi): Wide) -> Range {
    Range { lo: lo.and_then(|v| i64::try_from(v).ok()), hi: hi.and_then(|v| i64::try_from(v).ok()) }
}

fn mul((a, b): Wide, (c, d): Wide) -> Wide {
    if (a, b) == (Some(0), Some(0)) || (c, d) == (Some(0), Some(0)) {
        return (Some(0), Some(0));
    }
    let nonneg = |x: Option<i128>| x.is_some_and(|x| x >= 0);
    if let (Some(a), Some(b), Some(c), Some(d)) = (a, b, c, d) {
        let all = [a.checked_mul(c), a.checked_mul(d), b.checked_mul(c), b.checked_mul(d)];
        if let [Some(w), Some(x), Some(y), Some(z)] = all {
            return (Some(w.min(x).min(y).min(z)), Some(w.max(x).max(y).max(z)));
        }
        return (None, None);
    }
    if nonneg(a) && nonneg(c) {
        let lo = a.zip(c).and_then(|(a, c)| a.checked_mul(c));
        return (lo, b.zip(d).and_then(|(b, d)| b.checked_mul(d)));
    }
    // One factor is a number: scale the interval, and reverse it for a negative factor.
    let scale = |k: i128, (lo, hi): Wide| {
        let m = |v: Option<i128>| v.and_then(|v| v.checked_mul(k));
        if k >= 0 { (m(lo), m(hi)) } else { (m(hi), m(lo)) }
    };
    match ((a, b), (c, d)) {
        ((Some(x), Some(y)), o) | (o, (Some(x), Some(y))) if x == y => scale(x, o),
        _ => (None, None),
    }
}

/// Most steps of one proof; ordinary ones need a few dozen.
const EFFORT: u32 = 20_000;

/// Number of minima and maxima of a sum that are analysed together.
const CASES: u32 = 3;

/// One question to the table.
struct Prover<'a> {
    syms: &'a SymTable,
    effort: Cell<u32>,
    ranges: RefCell<Map<Dim, Wide>>,
    simple: RefCell<Map<Dim, Dim>>,
    /// Answers to `d >= 0`.
    proofs: RefCell<Map<Dim, bool>>,
}

impl Prover<'_> {
    fn new(syms: &SymTable) -> Prover<'_> {
        Prover {
            syms,
            effort: Cell::new(EFFORT),
            ranges: RefCell::default(),
            simple: RefCell::default(),
            proofs: RefCell::default(),
        }
    }
    /// False once the effort is spent.
    fn step(&self) -> bool {
        self.effort.set(self.effort.get().saturating_sub(1));
        self.effort.get() > 0
    }
    fn lo(&self, d: Dim) -> Option<i128> {
        self.wide(d, 0).0
    }
    fn is_loop(&self, s: super::Sym) -> bool {
        self.syms.kind(s) == SymKind::Loop
    }
    fn wide(&self, d: Dim, depth: u32) -> Wide {
        if let Some(w) = self.ranges.borrow().get(&d) {
            return *w;
        }
        if depth > 24 || !self.step() {
            return (None, None);
        }
        let w = self.with_checked(d, self.wide_sum(d, depth));
        self.ranges.borrow_mut().insert(d, w);
        w
    }
    /// The interval, narrowed by conditions on exactly this expression.
    fn with_checked(&self, d: Dim, (lo, hi): Wide) -> Wide {
        if self.syms.lower.is_empty() || d.as_const().is_some() {
            return (lo, hi);
        }
        let (terms, k) = d.split_const();
        let below = self.syms.known_lower(terms).map(|v| i128::from(v) + i128::from(k));
        let above = self.syms.known_lower(-terms).map(|v| i128::from(k) - i128::from(v));
        (lo.into_iter().chain(below).max(), hi.into_iter().chain(above).min())
    }
    fn wide_sum(&self, d: Dim, depth: u32) -> Wide {
        match d.view() {
            View::Overflow => (None, None),
            View::Const(c) => (Some(i128::from(c)), Some(i128::from(c))),
            View::Sum { terms, constant } => terms.iter().fold(
                (Some(i128::from(constant)), Some(i128::from(constant))),
                |(lo, hi), (c, atoms)| {
                    let one = (Some(i128::from(*c)), Some(i128::from(*c)));
                    let t = atoms.iter().fold(one, |w, a| mul(w, self.atom_range(a, depth)));
                    (
                        lo.zip(t.0).and_then(|(a, b)| a.checked_add(b)),
                        hi.zip(t.1).and_then(|(a, b)| a.checked_add(b)),
                    )
                },
            ),
        }
    }
    fn atom_range(&self, a: &Atom, depth: u32) -> Wide {
        let w = |d: Dim| self.wide(d, depth + 1);
        match a {
            Atom::Sym(s) => match self.syms.loop_range(*s) {
                Some((lo, hi)) => {
                    (w(self.syms.normal(lo)).0, w(self.syms.normal(hi)).1.and_then(|h| h.checked_sub(1)))
                }
                None => {
                    let r = self.syms.declared_range(*s);
                    (r.lo.map(i128::from), r.hi.map(i128::from))
                }
            },
            Atom::FloorDiv(x, y) => {
                let (x, y) = (narrow(w(*x)), narrow(w(*y)));
                // A zero divisor has no value, so a divisor that is not negative is positive.
                let Some(c) = y.lo.filter(|c| *c >= 0).map(|c| c.max(1)) else { return (None, None) };
                // The divisor that makes the quotient of this end extreme. Without a largest divisor the
                // quotient approaches 0 or -1.
                let end = |v: i64, small: bool| {
                    if small {
                        floor_div_i64(v, c)
                    } else {
                        y.hi.filter(|d| *d > 0)
                            .map_or(Some(if v < 0 { -1 } else { 0 }), |d| floor_div_i64(v, d))
                    }
                };
                (
                    x.lo.and_then(|v| end(v, v < 0)).map(i128::from),
                    x.hi.and_then(|v| end(v, v >= 0)).map(i128::from),
                )
            }
            Atom::Mod(x, y) => {
                let (x, y) = (narrow(w(*x)), narrow(w(*y)));
                match (x.lo, x.hi, y.lo, y.hi) {
                    (Some(a), Some(b), Some(c), Some(d))
                        if c == d && c > 0 && floor_div_i64(a, c) == floor_div_i64(b, c) =>
                    {
                        (floor_mod_i64(a, c).map(i128::from), floor_mod_i64(b, c).map(i128::from))
                    }
                    (a, b, Some(c), d) if c >= 0 => {
                        let below = d.map(|d| i128::from(d) - 1);
                        let hi = match (a, b) {
                            (Some(a), Some(b)) if a >= 0 => {
                                Some(below.map_or(i128::from(b), |d| d.min(i128::from(b))))
                            }
                            _ => below,
                        };
                        (Some(0), hi)
                    }
                    _ => (None, None),
                }
            }
            Atom::Min(v) => {
                let all: Vec<Wide> = v.iter().map(|d| w(*d)).collect();
                (
                    all.iter().map(|x| x.0).collect::<Option<Vec<_>>>().and_then(|v| v.into_iter().min()),
                    all.iter().filter_map(|x| x.1).min(),
                )
            }
            Atom::Max(v) => {
                let all: Vec<Wide> = v.iter().map(|d| w(*d)).collect();
                (
                    all.iter().filter_map(|x| x.0).max(),
                    all.iter().map(|x| x.1).collect::<Option<Vec<_>>>().and_then(|v| v.into_iter().max()),
                )
            }
        }
    }
    /// `d >= 0`.
    fn nonneg(&self, d: Dim) -> bool {
        if let Some(known) = self.proofs.borrow().get(&d) {
            return *known;
        }
        let proven = self.prove_nonneg(d);
        self.proofs.borrow_mut().insert(d, proven);
        proven
    }
    fn prove_nonneg(&self, d: Dim) -> bool {
        let proven = |d: Dim| !d.is_overflow() && (self.above(d, 1) || self.expanded(d));
        let differs = |e: Option<Dim>| e.is_some_and(|e| e != d && proven(e));
        proven(d)
            || differs(self.extreme(d, false, 0))
            || differs(self.innermost(d))
            || self.by_facts(d)
            || self.by_terms(d)
    }
    /// Proves `d >= 0` by dropping the minima and maxima that are not negative themselves from the sum.
    fn by_terms(&self, d: Dim) -> bool {
        let View::Sum { terms, .. } = d.view() else { return false };
        let nonneg = |d: &Dim| self.nonneg(self.syms.normal(*d));
        let found = terms.iter().filter(|(c, atoms)| match atoms.as_slice() {
            [Atom::Min(v)] => *c > 0 && v.iter().all(nonneg),
            [Atom::Max(v)] => *c > 0 && v.iter().any(nonneg),
            _ => false,
        });
        let found: Dim = found.fold(Dim::constant(0), |sum, (c, a)| sum + Dim::atom(a[0].clone()) * *c);
        found.as_const().is_none() && self.step() && self.nonneg(d - found)
    }
    /// Proves `d >= 0` as a sum of a multiple of a checked fact and of a rest that is not negative. A fact
    /// about run-time sizes is checked when they are defined, so it cannot prove anything about expressions
    /// without them.
    fn by_facts(&self, d: Dim) -> bool {
        let View::Sum { terms, .. } = d.view() else { return false };
        self.syms.lower.iter().any(|(f, lo)| {
            let View::Sum { terms: have, .. } = f.view() else { return false };
            let Some((c, atoms)) = have.first() else { return false };
            let Some((k, _)) = terms.iter().find(|t| t.1 == *atoms) else { return false };
            let Some(times) = k.checked_div(*c).filter(|q| *q > 0) else { return false };
            let late = |s: super::Sym| self.syms.kind(s) == SymKind::Runtime;
            let rest = d - (*f - *lo) * times;
            !rest.is_overflow()
                && self.step()
                && self.above(rest, 1)
                && f.syms().into_iter().all(|s| !late(s) || d.contains(s))
        })
    }
    /// `d > -scale`, by interval or by cases.
    fn above(&self, d: Dim, scale: i64) -> bool {
        self.lo(d).is_some_and(|l| l > -i128::from(scale)) || self.by_cases(d + (scale - 1), CASES)
    }
    /// Proves `d >= 0` by replacing divisions with remainders, one at a time.
    fn expanded(&self, d: Dim) -> bool {
        let (mut d, mut scale) = (d, 1i64);
        for _ in 0..6 {
            let Some((e, by)) = self.expand(d) else { return false };
            let Some(s) = scale.checked_mul(by) else { return false };
            (d, scale) = (e, s);
            // scale * (the original dim) > -scale implies that the original dim is > -1.
            if self.above(d, scale) || self.extreme(d, false, 0).is_some_and(|e| self.above(e, scale)) {
                return true;
            }
        }
        false
    }
    /// `scale * d` with one division replaced: `y*floordiv(x, y) = x - mod(x, y)`.
    fn expand(&self, d: Dim) -> Option<(Dim, i64)> {
        let View::Sum { terms, constant } = d.view() else { return None };
        if !self.step() {
            return None;
        }
        for (i, (c, atoms)) in terms.iter().enumerate() {
            for (k, a) in atoms.iter().enumerate() {
                let Atom::FloorDiv(x, y) = a else { continue };
                let others =
                    || atoms.iter().enumerate().filter(|(j, _)| *j != k).map(|(_, a)| Dim::atom(a.clone()));
                let (front, scale) = match y.as_const() {
                    Some(n) if n > 0 => {
                        let g = super::simplify::gcd(*c, n);
                        (Dim::product(others()) * (*c / g), n / g)
                    }
                    Some(_) => continue,
                    // A symbolic divisor must be a factor of the product.
                    None => {
                        let product = Dim::product(others()) * *c;
                        let q = product.floor_div(*y);
                        if q * *y != product {
                            continue;
                        }
                        (q, 1)
                    }
                };
                let rest = Dim::from_terms(
                    terms.iter().enumerate().filter(|(j, _)| *j != i).map(|(_, t)| t.clone()).collect(),
                    constant,
                );
                return Some((rest * scale + front * (*x - x.modulo(*y)), scale));
            }
        }
        None
    }
    /// Case analysis of `min`/`max` inside a sum: a sum with a max is nonnegative if one operand makes it so,
    /// a sum with a min if every operand does. At most `most` of them are split, one inside the other.
    fn by_cases(&self, d: Dim, most: u32) -> bool {
        let View::Sum { terms, constant } = d.view() else { return false };
        if most == 0 || !self.step() {
            return false;
        }
        for (i, (c, atoms)) in terms.iter().enumerate() {
            let [a] = atoms.as_slice() else { continue };
            let (v, any) = match a {
                Atom::Max(v) => (v, *c > 0),
                Atom::Min(v) => (v, *c < 0),
                _ => continue,
            };
            let rest = Dim::from_terms(
                terms.iter().enumerate().filter(|(j, _)| *j != i).map(|(_, t)| t.clone()).collect(),
                constant,
            );
            let holds = |m: &Dim| {
                let d = rest + *m * *c;
                self.lo(d).is_some_and(|l| l >= 0) || self.by_cases(d, most - 1)
            };
            return if any { v.iter().any(holds) } else { v.iter().all(holds) };
        }
        false
    }
    /// `0 <= index < extent`.
    fn inside(&self, index: Dim, extent: Dim) -> bool {
        if let (Some(i), Some(e)) = (index.as_const(), extent.as_const()) {
            return 0 <= i && i < e;
        }
        if let Some(s) = index.as_sym()
            && let Some((lo, hi)) = self.syms.loop_range(s)
            && hi == extent
            && lo.as_const() == Some(0)
        {
            return true;
        }
        let (i, e) = (self.syms.normal(index), self.syms.normal(extent));
        self.nonneg(i) && (self.nonneg(e - 1 - i) || self.broadcast_index(index, extent))
    }
    /// Proves that a nonnegative index is inside if [`super::broadcast::stride_factor`] makes it 0 where the
    /// extent is 1. It is inside if its loop ends at the extent whenever the extent is not 1, which follows
    /// from a condition checked at entry.
    fn broadcast_index(&self, index: Dim, extent: Dim) -> bool {
        self.inside_joined(index, extent) || self.inside_either(index, extent)
    }
    /// The loop ends at a size that the extent is known to broadcast to.
    fn inside_joined(&self, index: Dim, extent: Dim) -> bool {
        let View::Sum { terms: [(1, atoms)], constant: 0 } = index.view() else { return false };
        let factor = super::broadcast::stride_factor(extent);
        atoms.iter().enumerate().any(|(i, a)| {
            let (Atom::Sym(s), [_, _]) = (a, atoms.as_slice()) else { return false };
            Dim::atom(atoms[1 - i].clone()) == factor
                && self.syms.loop_range(*s).is_some_and(|(_, hi)| self.syms.broadcasts_to(extent, hi))
        })
    }
    fn inside_either(&self, index: Dim, extent: Dim) -> bool {
        let View::Sum { terms: [(1, atoms)], constant: 0 } = index.view() else { return false };
        let factor = super::broadcast::stride_factor(extent);
        let [a, b] = atoms.as_slice() else { return false };
        let s = match (a, b) {
            (Atom::Sym(s), f) | (f, Atom::Sym(s)) if Dim::atom(f.clone()) == factor => *s,
            _ => return false,
        };
        let Some((_, hi)) = self.syms.loop_range(s) else { return false };
        // (The index is nonnegative, so the extent is at least 1.)
        self.syms.conditions().iter().any(|c| {
            let &Condition::Broadcast(x, y) = c else { return false };
            let other = match (x == extent, y == extent) {
                (true, _) => y,
                (_, true) => x,
                _ => return false,
            };
            let Some(o) = other.as_sym().filter(|o| !extent.contains(*o)) else { return false };
            // If the extent is not 1, the other size is equal to it or 1.
            [extent, Dim::constant(1)].into_iter().all(|v| {
                let hi = hi.subst(&mut |s| (s == o).then_some(v));
                hi == extent.max(1)
                    || hi == extent.max(1) * extent.min(1)
                    || hi == extent * extent.min(1)
                    || self.nonneg(self.syms.normal(extent - hi))
            })
        })
    }
}

/// True if all terms of a sum are multiples of a number, minima and maxima of multiples among them.
fn is_multiple(x: Dim, of: i64) -> bool {
    let atom = |a: &Atom, of: i64| match a {
        Atom::Min(v) | Atom::Max(v) => v.iter().all(|d| is_multiple(*d, of)),
        _ => false,
    };
    match x.view() {
        View::Overflow => false,
        View::Const(c) => c % of == 0,
        View::Sum { terms, constant } => {
            let term = |(c, atoms): &(i64, Vec<Atom>)| {
                let rest = of / super::simplify::gcd(*c, of);
                rest == 1 || atoms.iter().any(|a| atom(a, rest))
            };
            constant % of == 0 && terms.iter().all(term)
        }
    }
}

impl SymTable {
    /// An interval that contains every value of `d`.
    pub fn range(&self, d: Dim) -> Range {
        narrow(Prover::new(self).wide(self.normal(d), 0))
    }
    /// True if `d >= 0` is proven, for every iteration of the loops it is in.
    pub fn is_nonneg(&self, d: Dim) -> bool {
        Prover::new(self).nonneg(self.normal(d))
    }
    /// True if `d >= 1` is proven.
    pub fn is_pos(&self, d: Dim) -> bool {
        self.is_nonneg(d - 1)
    }
    /// `a <= b`.
    pub fn le(&self, a: Dim, b: Dim) -> Answer {
        // Every value is an i64, so its ends compare with everything. Exporters write them for "from the
        // start" and "to the end".
        if b.as_const() == Some(i64::MAX) || a.as_const() == Some(i64::MIN) || self.is_nonneg(b - a) {
            Answer::Yes
        } else if self.is_pos(a - b) {
            Answer::No
        } else {
            Answer::Unknown
        }
    }
    /// `a < b`.
    pub fn lt(&self, a: Dim, b: Dim) -> Answer {
        self.le(a + 1, b)
    }
    /// `a == b`.
    pub fn eq(&self, a: Dim, b: Dim) -> Answer {
        let answer = |d: Dim| match d.as_const() {
            Some(0) => Answer::Yes,
            Some(_) => Answer::No,
            None => Answer::Unknown,
        };
        let d = self.normal(a) - self.normal(b);
        if d.is_overflow() || d.as_const().is_some() {
            return answer(d);
        }
        let p = Prover::new(self);
        if !narrow(p.wide(d, 0)).contains(0) {
            return Answer::No;
        }
        let d = p.simplify(d);
        match answer(d) {
            Answer::Unknown => answer(p.without_mod(d)),
            known => known,
        }
    }
    /// `d` divides `x` without remainder.
    pub fn divides(&self, d: Dim, x: Dim) -> Answer {
        let (d, x) = (self.normal(d), self.normal(x));
        match x.modulo(d).as_const() {
            Some(0) => Answer::Yes,
            Some(_) => Answer::No,
            None if d.as_const().is_some_and(|d| d > 0 && is_multiple(x, d)) => Answer::Yes,
            None => Answer::Unknown,
        }
    }
    /// True if `0 <= index < extent` is proven for every iteration of the loops around.
    pub fn in_range(&self, index: Dim, extent: Dim) -> bool {
        Prover::new(self).inside(index, extent)
    }
    /// Simplifies with the known ranges: divisions that are 0, remainders that change nothing, minima and
    /// maxima that are always the same operand. The result is equal to `d` wherever the enclosing loops run.
    pub fn simplify(&self, d: Dim) -> Dim {
        Prover::new(self).simplify(d)
    }
}

/// Simplifies many dims over the same symbols. What one proof finds serves the next ones.
pub struct Simplifier<'a>(Prover<'a>);

impl<'a> Simplifier<'a> {
    /// A simplifier that knows nothing yet.
    pub fn new(syms: &'a SymTable) -> Self {
        Simplifier(Prover::new(syms))
    }
    /// As [`SymTable::simplify`].
    pub fn simplify(&self, d: Dim) -> Dim {
        self.0.effort.set(EFFORT);
        self.0.simplify(d)
    }
}
