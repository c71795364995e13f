//! Positions that the lanes of a vector share and that are not linear in the loops of the tile: the row of an
//! image clamped to its edge, or scaled by a fraction. Integer registers hold them, and they leave the loops
//! that they do not depend on.

use super::access::{Access, NOT_LINEAR};
use super::index::Parts;
use super::windows::value;
use super::{Fit, Translate};
use crate::codegen::tile::builder::Count;
use crate::codegen::tile::ir::{Op, Value};
use crate::sym::{Atom, Dim, Sym, Term, View};

/// Quotients of dividends below this value are computed by a multiplication.
const MOST: i64 = 1 << 31;

const DIVISION: &str = "a division of a position that may be negative or beyond 32 bits";

fn whole(t: &Term) -> Dim {
    Dim::from_terms(vec![t.clone()], 0)
}

impl Translate<'_> {
    /// Removes the terms of a position that no lane changes and that are not linear in the loops of the tile.
    pub(super) fn take_uniform(&self, more: &mut Dim) -> Option<Dim> {
        let View::Sum { terms, constant } = more.view() else { return None };
        let inside = |d: Dim, s: &Sym| d.contains(*s);
        let linear = |t: &Term| {
            let mut moving = t.1.iter().filter(|a| self.vars.loops.iter().any(|s| inside(value(a), s)));
            matches!((moving.next(), moving.next()), (None | Some(Atom::Sym(_)), None))
        };
        let shared =
            |t: &Term| !self.vars.vectors.iter().chain(&self.vars.withs).any(|s| inside(whole(t), s));
        let (own, rest): (Vec<Term>, Vec<Term>) =
            terms.iter().cloned().partition(|t| !linear(t) && shared(t));
        if own.is_empty() {
            return None;
        }
        *more = Dim::from_terms(rest, constant);
        Some(Dim::from_terms(own, 0))
    }
    /// The pointer of an access plus its uniform position, once per block.
    pub(super) fn base_of(&mut self, a: &Access, base: Value) -> Fit<Value> {
        let Some(d) = a.uniform else { return Ok(base) };
        let size = self.size_of(a.stream.0);
        let key = (d, size, base, self.b.block());
        if let Some(found) = self.uniforms.get(&key) {
            return Ok(*found);
        }
        let begin = self.b.next_value();
        let at = self.uniform(d)?;
        let size = Count::Fixed(size.into());
        let at = self.numbers(Op::Mul, at, size);
        let found = match at {
            Count::Fixed(n) => self.b.add_imm(base, n),
            Count::Run(v) => self.b.add(base, v),
        };
        self.b.are_positions(begin);
        self.uniforms.insert(key, found);
        Ok(found)
    }
    /// True if a dim depends on open loops.
    fn is_moving(&self, d: Dim) -> bool {
        self.counters().iter().any(|(s, _)| d.contains(*s))
    }
    /// A position as an integer.
    fn uniform(&mut self, d: Dim) -> Fit<Count> {
        if !self.is_moving(d) {
            return self.count(d);
        }
        if let Some(p) = self.parts(d).ok().filter(|p| !self.is_moving(p.rest)) {
            return if p.lane == 0 { self.scalar(&p) } else { Err(NOT_LINEAR) };
        }
        let View::Sum { terms, constant } = d.view() else { return Err(NOT_LINEAR) };
        let (moving, still): (Vec<Term>, Vec<Term>) =
            terms.iter().cloned().partition(|t| self.is_moving(whole(t)));
        let mut sum = self.count(Dim::from_terms(still, constant))?;
        for (factor, atoms) in moving {
            let (own, others): (Vec<Atom>, Vec<Atom>) =
                atoms.into_iter().partition(|a| self.is_moving(value(a)));
            let mut product = self.count(Dim::from_terms(vec![(factor, others)], 0))?;
            for a in own {
                let x = self.uniform_atom(&a)?;
                product = self.numbers(Op::Mul, product, x);
            }
            sum = self.numbers(Op::Add, sum, product);
        }
        Ok(sum)
    }
    /// A counter, a clamped position, a quotient or a remainder, once per block.
    fn uniform_atom(&mut self, a: &Atom) -> Fit<Count> {
        let key = (Dim::atom(a.clone()), self.b.block());
        if let Some(found) = self.uniform_atoms.get(&key) {
            return Ok(*found);
        }
        let found = self.new_uniform_atom(a)?;
        self.uniform_atoms.insert(key, found);
        Ok(found)
    }
    fn new_uniform_atom(&mut self, a: &Atom) -> Fit<Count> {
        match a {
            Atom::Sym(s) => {
                self.counters().iter().find(|c| c.0 == *s).map(|c| Count::Run(c.1)).ok_or(NOT_LINEAR)
            }
            Atom::Min(operands) => self.uniform_extreme(Op::Lesser, operands),
            Atom::Max(operands) => self.uniform_extreme(Op::Greater, operands),
            Atom::FloorDiv(x, y) => self.uniform_quotient(*x, *y),
            Atom::Mod(x, y) => {
                let q = self.uniform_atom(&Atom::FloorDiv(*x, *y))?;
                let divisor = self.count(*y)?;
                let product = self.numbers(Op::Mul, q, divisor);
                let x = self.uniform(*x)?;
                Ok(self.behind(x, product))
            }
        }
    }
    fn uniform_extreme(&mut self, op: Op, operands: &[Dim]) -> Fit<Count> {
        let mut found: Option<Count> = None;
        for d in operands {
            let x = self.uniform(*d)?;
            found = Some(found.map_or(x, |y| self.numbers(op, y, x)));
        }
        found.ok_or(NOT_LINEAR)
    }
    /// True for an invariant divisor that is proven not to be negative.
    fn is_divisor(&self, d: Dim) -> bool {
        !self.is_moving(d) && self.m.syms.is_nonneg(d)
    }
    /// True if a position is proven not to be negative.
    fn is_never_negative(&self, d: Dim) -> bool {
        let of_atom = |a: &Atom| match a {
            Atom::Sym(_) => true,
            Atom::Min(all) => all.iter().all(|d| self.is_never_negative(*d)),
            Atom::Max(all) => all.iter().any(|d| self.is_never_negative(*d)),
            Atom::FloorDiv(x, y) => self.is_never_negative(*x) && self.is_divisor(*y),
            Atom::Mod(_, y) => self.is_divisor(*y),
        };
        let View::Sum { terms, constant } = d.view() else { return false };
        let (moving, still): (Vec<Term>, Vec<Term>) =
            terms.iter().cloned().partition(|t| self.is_moving(whole(t)));
        // Loops of a tile count from 0.
        let positive =
            |a: &Atom| if self.is_moving(value(a)) { of_atom(a) } else { self.m.syms.is_nonneg(value(a)) };
        moving.iter().all(|t| t.0 >= 0 && t.1.iter().all(positive))
            && self.m.syms.is_nonneg(Dim::from_terms(still, constant))
    }
    /// The quotient of a position, rounded down.
    fn uniform_quotient(&mut self, x: Dim, y: Dim) -> Fit<Count> {
        if y.as_const().is_none() && self.is_divisor(y) && self.is_never_negative(x) {
            // Nothing is divided by 0, but the quotient may leave a loop that does not run.
            let (x, y) = (self.uniform(x)?, self.count(y.max(1))?);
            let [x, y] = [x, y].map(|n| match n {
                Count::Fixed(n) => self.b.int(n),
                Count::Run(v) => v,
            });
            return Ok(Count::Run(self.b.quotient(x, y)));
        }
        let Some(c) = y.as_const().filter(|c| (1..1 << 15).contains(c)) else { return Err(DIVISION) };
        let shift = c.ilog2() + u32::from(!(c as u64).is_power_of_two());
        if (c as u64).is_power_of_two() {
            let x = self.uniform(x)?;
            return Ok(self.right_by(x, shift));
        }
        // floor((a + k * i) / c) = floor(a / c) + floor((mod(a, c) + k * i) / c), and the last dividend is
        // small.
        let p = self.parts(x)?;
        let most = p.counters.iter().try_fold(c, |most, (v, k)| {
            let n = self.trip_of(*v).filter(|_| *k >= 0)?;
            most.checked_add(k.checked_mul(n)?)
        });
        if p.lane != 0 || most.is_none_or(|n| n >= MOST) {
            return Err(DIVISION);
        }
        let still = self.count(p.rest.floor_div(c))?;
        let small = self.scalar(&Parts { rest: p.rest.modulo(c), ..p })?;
        let shift = 31 + shift;
        let by = ((1i64 << shift) + c - 1) / c;
        let product = self.numbers(Op::Mul, small, Count::Fixed(by));
        let small = self.right_by(product, shift);
        Ok(self.numbers(Op::Add, still, small))
    }
    /// x >> n, rounded down.
    fn right_by(&mut self, x: Count, n: u32) -> Count {
        match x {
            Count::Fixed(x) => Count::Fixed(x >> n),
            Count::Run(v) => Count::Run(self.b.shr_imm(v, n as u8)),
        }
    }
    /// The most iterations of the loop with a counter, if they are known.
    fn trip_of(&self, counter: Value) -> Option<i64> {
        let (s, _) = self.counters().iter().find(|c| c.1 == counter)?;
        self.most.get(s).copied()
    }
}
