//! Loads at positions that are not linear in their lanes, such as those of a scaled image, on machines that
//! load each lane at an offset of its own. The offsets are computed in lanes of integers from what the nest
//! states, before the loops of the tile are substituted: only there do the bounds of its variables hold.

use super::access::{Access, NOT_LINEAR, Site};
use super::gather::NO_STRIDE;
use super::windows::value;
use super::{Fit, Translate};
use crate::codegen::tile::builder::Count;
use crate::codegen::tile::ir::{Bin, Form, Op, Un, Value};
use crate::sym::{Atom, Dim, Term, View};

/// Offsets in bytes are below this value, so that they fit in lanes of 32 bits, with a sign or without.
const MOST: i64 = 1 << 31;

fn whole(t: &Term) -> Dim {
    Dim::from_terms(vec![t.clone()], 0)
}

/// A product and a shift to the right that divide numbers of `0..=most` by a constant in 32 bits.
fn reciprocal(by: i64, most: i64) -> Option<(i64, u8)> {
    (0..32u8).find_map(|shift| {
        let one = 1i64 << shift;
        let factor = (one + by - 1) / by;
        let fits = factor.checked_mul(most)? <= i64::from(u32::MAX);
        // The quotient is too large by less than the distance to the next one.
        let exact = (factor * by - one).checked_mul(most)? < one;
        (fits && exact).then_some((factor, shift))
    })
}

impl Translate<'_> {
    /// The part of a position whose vector loops are not linear, from 0 on; the lowest of these positions,
    /// which is added to the rest; the rest.
    pub(super) fn take_indexed(&self, site: &Site) -> (Option<Dim>, i64, Dim) {
        let none = (None, 0, site.rest);
        if site.terms.is_some() || !self.b.has(Op::LoadIndexed(Form::B32)) {
            return none;
        }
        let View::Sum { terms, constant } = site.rest.view() else { return none };
        let bent = |s| site.rest.contains(s) && site.rest.linear_in(s).is_none();
        let lanes: Vec<_> = self.vars.vectors.iter().copied().filter(|s| bent(*s)).collect();
        let (own, rest): (Vec<Term>, Vec<Term>) =
            terms.iter().cloned().partition(|t| lanes.iter().any(|s| whole(t).contains(*s)));
        if own.is_empty() {
            return none;
        }
        let own = Dim::from_terms(own, 0);
        let range = self.m.syms.range(own);
        let (Some(first), Some(last)) = (range.lo, range.hi) else { return none };
        let bytes = last.checked_sub(first).and_then(|n| n.checked_mul(site.size.into()));
        if bytes.is_none_or(|n| n >= MOST) || self.vars.with_in(own) {
            return none;
        }
        (Some(own - first), first, Dim::from_terms(rest, constant))
    }
    /// The elements at such positions.
    pub(super) fn load_indexed(&mut self, a: &Access, form: Form, positions: Dim) -> Fit<Value> {
        if !a.bound.is_empty() || a.lane != Some(0) {
            return Err(NOT_LINEAR);
        }
        let offsets = self.offsets_of(positions, form.bytes())?;
        let mem = self.mem(a)?;
        let args: Vec<Value> = std::iter::once(offsets).chain(self.mask).collect();
        Ok(self.b.vector(Op::LoadIndexed(form), &args, Some(mem)))
    }
    /// The elements at loaded indices, with a step between lanes.
    pub(super) fn load_at_indices(&mut self, a: &Access, form: Form, lane: i64) -> Fit<Value> {
        let size = i64::from(form.bytes());
        let total = self.m.syms.range(self.elements(a.storage)).hi.and_then(|n| n.checked_mul(size));
        if total.is_none_or(|n| n >= MOST) || lane < 0 {
            return Err("a distance beyond 32 bits");
        }
        let iota = self.b.iota();
        let mut offsets = (lane > 0).then(|| self.scaled(iota, lane * size));
        for (s, c) in &a.bound {
            let value = self.bound.get(s).map(|b| b.value).ok_or(NOT_LINEAR)?;
            let step = c.as_const().filter(|c| *c >= 0).ok_or(NO_STRIDE)?;
            let x = self.scaled(value, step * size);
            offsets = Some(match offsets {
                Some(o) => self.index_op(Bin::IAdd, o, x),
                None => x,
            });
        }
        let mem = self.mem(a)?;
        let args: Vec<Value> = offsets.into_iter().chain(self.mask).collect();
        Ok(self.b.vector(Op::LoadIndexed(form), &args, Some(mem)))
    }
    /// Offsets in bytes, once per block.
    fn offsets_of(&mut self, positions: Dim, size: u32) -> Fit<Value> {
        let key = (self.substituted(positions), size, self.b.block());
        if let Some(found) = self.offsets.get(&key) {
            return Ok(*found);
        }
        let begin = self.b.next_value();
        let at = self.positions_of(positions)?;
        let offsets = self.scaled(at, size.into());
        self.b.are_positions(begin);
        self.offsets.insert(key, offsets);
        Ok(offsets)
    }
    /// True for a division or an extreme of loops of the tile.
    fn bends(&self, a: &Atom) -> bool {
        !matches!(a, Atom::Sym(_)) && self.vars.loop_in(value(a))
    }
    /// The value of a dim in lanes, modulo their size.
    fn positions_of(&mut self, d: Dim) -> Fit<Value> {
        if let Some(v) = self.linear_positions(d)? {
            return Ok(v);
        }
        let View::Sum { terms, constant } = d.view() else { return Err(NOT_LINEAR) };
        let (bent, linear): (Vec<Term>, Vec<Term>) =
            terms.iter().cloned().partition(|t| t.1.iter().any(|a| self.bends(a)));
        let linear = Dim::from_terms(linear, constant);
        let mut sum = match linear.as_const() {
            Some(0) => None,
            _ => Some(self.linear_positions(linear)?.ok_or(NOT_LINEAR)?),
        };
        for t in bent {
            let v = self.product(&t)?;
            sum = Some(match sum {
                Some(s) => self.index_op(Bin::IAdd, s, v),
                None => v,
            });
        }
        sum.ok_or(NOT_LINEAR)
    }
    /// The same if it is linear in the loops of the tile.
    fn linear_positions(&mut self, d: Dim) -> Fit<Option<Value>> {
        let d = self.substituted(d);
        match self.parts(d) {
            Ok(p) if !self.is_inner(p.rest) => Ok(Some(self.index(d)?.v)),
            _ => Ok(None),
        }
    }
    fn product(&mut self, t: &Term) -> Fit<Value> {
        let (factor, atoms) = t;
        let mut all: Option<Value> = None;
        for a in atoms {
            let v = self.atom(a)?;
            all = Some(match all {
                Some(x) => self.index_op(Bin::IMul, x, v),
                None => v,
            });
        }
        let all = all.ok_or(NOT_LINEAR)?;
        Ok(self.scaled(all, *factor))
    }
    fn atom(&mut self, a: &Atom) -> Fit<Value> {
        match a {
            Atom::Sym(_) => self.positions_of(value(a)),
            Atom::Min(operands) => self.extreme_of(Bin::IMin, operands),
            Atom::Max(operands) => self.extreme_of(Bin::IMax, operands),
            Atom::FloorDiv(x, y) => self.divided(*x, *y).map(|(_, q)| q),
            Atom::Mod(x, y) => {
                let (x, q) = self.divided(*x, *y)?;
                let whole = self.scaled(q, y.as_const().ok_or(NOT_LINEAR)?);
                Ok(self.index_op(Bin::ISub, x, whole))
            }
        }
    }
    fn extreme_of(&mut self, op: Bin, operands: &[Dim]) -> Fit<Value> {
        let mut found: Option<Value> = None;
        for d in operands {
            let x = match self.bounded(*d) {
                Ok(_) => self.positions_of(*d)?,
                Err(why) => self.limited(*d).ok_or(why)??,
            };
            found = Some(match found {
                Some(y) => self.index_op(op, y, x),
                None => x,
            });
        }
        found.ok_or(NOT_LINEAR)
    }
    /// An operand that lanes share, limited to 32 bits: the others are within these.
    fn limited(&mut self, d: Dim) -> Option<Fit<Value>> {
        if self.vars.loop_in(d) {
            return None;
        }
        let d = self.substituted(d);
        Some(self.count(d).map(|n| match n {
            Count::Fixed(n) => self.index_number(n.clamp(-MOST, MOST - 1)),
            Count::Run(v) => {
                let v = self.b.limited(v, -MOST, MOST - 1);
                self.b.splat(v)
            }
        }))
    }
    /// A dividend, and its quotient by a constant, rounded down.
    fn divided(&mut self, x: Dim, y: Dim) -> Fit<(Value, Value)> {
        let by = y.as_const().filter(|c| *c > 0).ok_or(NOT_LINEAR)?;
        let ((low, high), bits) = (self.bounded(x)?, self.b.index_bits());
        let x = self.positions_of(x)?;
        if (by as u64).is_power_of_two() {
            return Ok((x, self.b.un_of(Un::Sar(by.ilog2() as u8), x, bits)));
        }
        // Dividends below 0 are raised by a multiple of the divisor.
        let up = if low < 0 { (by - 1 - low) / by } else { 0 };
        let (factor, shift) = reciprocal(by, high + up * by).ok_or(NOT_LINEAR)?;
        let raised = self.plus(x, up * by);
        let product = self.scaled(raised, factor);
        let q = self.b.un_of(Un::Shr(shift), product, bits);
        Ok((x, self.plus(q, -up)))
    }
    /// The bounds of a number, if it fits in 32 bits.
    fn bounded(&self, d: Dim) -> Fit<(i64, i64)> {
        let r = self.m.syms.range(d);
        match (r.lo, r.hi) {
            (Some(lo), Some(hi)) if lo >= -MOST && hi < MOST => Ok((lo, hi)),
            _ => Err(NOT_LINEAR),
        }
    }
    fn scaled(&mut self, x: Value, by: i64) -> Value {
        if by > 0 && (by as u64).is_power_of_two() {
            let bits = self.b.index_bits();
            return if by == 1 { x } else { self.b.un_of(Un::Shl(by.ilog2() as u8), x, bits) };
        }
        let by = self.index_number(by);
        self.index_op(Bin::IMul, x, by)
    }
    fn plus(&mut self, x: Value, n: i64) -> Value {
        if n == 0 {
            return x;
        }
        let n = self.index_number(n);
        self.index_op(Bin::IAdd, x, n)
    }
}
