//! Admission of a [`Dim`] as the extent of a buffer, the trip count of a loop or a divisor.
//!
//! A requirement that the prover cannot show becomes a condition, which generated code checks before it uses
//! the size. A condition is also a fact for later proofs: `0 <= a` turns `max(0, a)` into `a` from then on.
//!
//! A condition is reduced before it is recorded, with rules that are equivalences over the integers (n, c >
//! 0):
//!
//! ```text
//! c*x + k >= 0              x >= ceil(-k / c)
//! floordiv(x, n) >= m       x >= m*n
//! floordiv(x, n) <= m       x <= m*n + n - 1
//! min(a, b) >= m            a >= m and b >= m
//! max(a, b) <= m            a <= m and b <= m
//! ```
//!
//! A bound of a single dim param becomes its declared range, which the entry function checks together with
//! the param itself.

use super::expr::floor_div_i64;
use super::{Answer, Atom, Condition, Dim, Range, SymKind, SymTable, View};

/// Most facts that proofs may use, so that proofs stay cheap. Further conditions are still checked.
const MAX_FACTS: usize = 256;
/// Deepest reduction of one condition.
const MAX_STEPS: u32 = 64;

impl SymTable {
    /// Admits `d` as the extent of a buffer or the trip count of a loop: records what is needed for `d >= 0`
    /// and for every division in it to have a value. [`Answer::No`] if `d` is negative for all values of its
    /// symbols.
    pub fn admit_extent(&mut self, d: Dim) -> Answer {
        if d.as_const().is_some_and(|c| c >= 0)
            || d.as_sym().is_some_and(|s| self.declared_range(s).lo.is_some_and(|lo| lo >= 0))
        {
            return Answer::Yes;
        }
        if self.is_pos(-d) {
            return Answer::No;
        }
        self.admit_divisors(d);
        self.require_at_most(Dim::constant(0), d);
        Answer::Yes
    }
    /// Records that the divisors in `d` must be positive, innermost first.
    pub fn admit_divisors(&mut self, d: Dim) {
        for y in d.divisors() {
            self.require_at_most(Dim::constant(1), y);
        }
    }
    /// Records that `a <= b` must hold.
    pub fn require_at_most(&mut self, a: Dim, b: Dim) {
        if self.le(a, b) != Answer::Yes {
            self.require_nonneg(self.resolve(b) - self.resolve(a), Condition::AtMost(a, b), 0);
        }
    }
    /// Reduces `d >= 0`. `whole` is the condition that is recorded if no rule applies.
    fn require_nonneg(&mut self, d: Dim, whole: Condition, depth: u32) {
        if self.is_nonneg(d) {
            return;
        }
        if self.is_pos(-d) {
            self.impossible = Some(whole);
        }
        let reduced = if depth < MAX_STEPS { self.reduced(d) } else { None };
        match reduced {
            Some(Reduced::All(list)) => {
                for x in list {
                    self.require_nonneg(x, Condition::AtMost(Dim::constant(0), x), depth + 1);
                }
            }
            Some(Reduced::Range(s, r)) => self.set_range(s, r),
            None => {
                self.condition(whole);
                self.learn_nonneg(d);
            }
        }
    }
    /// One step of the rules at the head of this file.
    fn reduced(&self, d: Dim) -> Option<Reduced> {
        let View::Sum { terms: [(c, atoms)], constant } = d.view() else { return None };
        let [atom] = atoms.as_slice() else { return None };
        // c*atom + k >= 0: a lower bound of the atom for c > 0, an upper bound for c < 0.
        let below = *c < 0;
        let m = if below {
            floor_div_i64(constant, c.checked_neg()?)?
        } else {
            floor_div_i64(constant, *c)?.checked_neg()?
        };
        let bounded = |x: &Dim| if below { Dim::constant(m) - *x } else { *x - m };
        match atom {
            Atom::Sym(s) if self.at_top() && matches!(self.kind(*s), SymKind::Param | SymKind::Unnamed) => {
                Some(Reduced::Range(
                    *s,
                    if below { Range { lo: None, hi: Some(m) } } else { Range::at_least(m) },
                ))
            }
            Atom::FloorDiv(x, n) => {
                let n = n.as_const().filter(|n| *n > 0)?;
                let edge =
                    if below { m.checked_add(1)?.checked_mul(n)?.checked_sub(1)? } else { m.checked_mul(n)? };
                Some(Reduced::All(vec![if below { Dim::constant(edge) - *x } else { *x - edge }]))
            }
            Atom::Min(v) if !below => Some(Reduced::All(v.iter().map(bounded).collect())),
            Atom::Max(v) if below => Some(Reduced::All(v.iter().map(bounded).collect())),
            _ => None,
        }
    }
    /// Adds the fact `d >= 0`.
    fn learn_nonneg(&mut self, d: Dim) {
        for d in [d, self.normal(d)] {
            let (terms, k) = d.split_const();
            let Some(lo) = k.checked_neg().filter(|_| !terms.is_overflow() && terms.as_const().is_none())
            else {
                continue;
            };
            let full = self.lower.len() >= MAX_FACTS;
            // Facts of an outer scope stay unchanged: they hold again when this scope ends.
            match self.lower.iter_mut().find(|f| f.0 == terms) {
                Some(f) if self.scopes == 0 => f.1 = f.1.max(lo),
                _ if !full => self.lower.push((terms, lo)),
                _ => {}
            }
        }
    }
    /// The largest lower bound of an expression (without its constant) that conditions establish.
    pub(super) fn known_lower(&self, terms: Dim) -> Option<i64> {
        self.lower.iter().filter(|f| f.0 == terms).map(|f| f.1).max()
    }
}

enum Reduced {
    /// Each of these must not be negative.
    All(Vec<Dim>),
    /// A range of a dim param.
    Range(super::Sym, Range),
}

impl Dim {
    /// The divisors in it that are not positive numbers, innermost first.
    pub fn divisors(self) -> Vec<Dim> {
        let mut out = vec![];
        self.each_divisor(&mut out);
        out
    }
    fn each_divisor(self, out: &mut Vec<Dim>) {
        let View::Sum { terms, .. } = self.view() else { return };
        for a in terms.iter().flat_map(|t| &t.1) {
            match a {
                Atom::Sym(_) => {}
                Atom::FloorDiv(x, y) | Atom::Mod(x, y) => {
                    x.each_divisor(out);
                    y.each_divisor(out);
                    if y.as_const().is_none_or(|n| n <= 0) && !out.contains(y) {
                        out.push(*y);
                    }
                }
                Atom::Min(v) | Atom::Max(v) => v.iter().for_each(|d| d.each_divisor(out)),
            }
        }
    }
}
