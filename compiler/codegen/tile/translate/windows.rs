//! Loads whose lanes read at run-time positions that never decrease from lane to lane and are within two
//! vectors: an image scaled by a constant, up to a run-time edge. One or two contiguous vectors contain the
//! elements, and shuffles by computed indices permute them. Nothing before the first of these elements or
//! after the last is accessed.

use super::access::{Access, NOT_LINEAR};
use super::{Fit, Translate};
use crate::codegen::tile::builder::Count;
use crate::codegen::tile::ir::{Bin, Bits, Class, Form, Mem, Op, Pred, Value, Width};
use crate::sym::{Atom, Dim, Sym, Term, View};

/// Distances beyond this value are equivalent, since lanes do not reach so far.
const FAR: i64 = 1 << 30;

/// The reads of lanes within a window: the first position, the offset of each lane, the offset of the last
/// one.
pub(super) type Window = (Count, Value, Value);

/// A non-decreasing expression in the lane, decomposed.
pub(super) enum Moving {
    /// A sum of a lane part and a uniform value.
    Sum(Dim, Dim),
    /// A uniform addend, and the operands of a minimum or a maximum.
    Extreme(Dim, Op, Vec<Dim>),
}

impl Translate<'_> {
    /// True if the level's vectors support loads within a window.
    pub(super) fn has_windows(&self, form: Form) -> bool {
        self.b.has(Op::Bin(Bin::Permute, Bits::B32))
            && !self.b.is_long()
            && !self.b.has(Op::LoadFirst(form, 1))
            && (form == Form::B32 || self.b.width() == Width::Avx512)
    }
    /// The elements that the lanes of an access read within its window.
    pub(super) fn load_window(&mut self, a: &Access, window: Dim, form: Form) -> Fit<Value> {
        let Some(lane) = self.lane_sym().filter(|_| self.has_windows(form) && a.bound.is_empty()) else {
            return Err(NOT_LINEAR);
        };
        let lanes = i64::from(self.b.lanes());
        let (first, places, last) = self.places_within(window, lane)?;
        let mem = self.mem(a)?;
        let base = self.b.address(mem);
        let base = match first {
            Count::Fixed(n) => self.b.add_imm(base, n * i64::from(form.bytes())),
            Count::Run(v) => {
                let begin = self.b.next_value();
                let v = self.b.mul_imm(v, form.bytes() as i32);
                self.b.are_positions(begin);
                self.b.add(base, v)
            }
        };
        let two = window.growth(lane, lanes).is_none_or(|n| n >= lanes);
        let mut parts: Vec<Value> = vec![];
        for part in 0..1 + i64::from(two) {
            let begin = self.b.next_value();
            let numbers = self.b.iota();
            let here = self.b.bits((part * lanes) as u32);
            let numbers = if part == 0 { numbers } else { self.b.bin(Bin::IAdd, numbers, here) };
            self.b.are_positions(begin);
            let needed = self.b.icmp(Pred::Le, numbers, last, Bits::B32);
            let disp = (part * lanes) as i32 * form.bytes() as i32;
            let v = self.load_neighbours(a, form, Mem::at(base, disp), Some(needed));
            parts.push(v?);
        }
        let first = *parts.first().ok_or("a vector without lanes")?;
        Ok(self.b.permuted(places, first, parts.get(1).copied()))
    }
    /// The position of the first lane, the offsets of all lanes, and the offset of the last active lane,
    /// broadcast. Other rows of an image share these.
    fn places_within(&mut self, window: Dim, lane: Sym) -> Fit<Window> {
        let key = (window, self.mask, self.b.block());
        if let Some(found) = self.windows.get(&key) {
            return Ok(*found);
        }
        let begin = self.b.next_value();
        let first = self.at_first_lane(window, lane)?;
        let places = self.distances(window, lane, first)?;
        let last = match (self.mask, self.used_lanes(), self.rest) {
            (Some(k), None, Some((rest, n))) if k == rest => {
                let n = self.b.add_imm(n, -1);
                self.b.splat(n)
            }
            (_, Some(n), _) => self.b.lane_numbers([(n - 1) as u8; 16]),
            _ => return Err("lanes of a condition that read in a window"),
        };
        let last = self.b.bin(Bin::Permute, last, places);
        self.b.are_positions(begin);
        self.windows.insert(key, (first, places, last));
        Ok((first, places, last))
    }
    /// The value of an expression in lane 0.
    fn at_first_lane(&mut self, d: Dim, lane: Sym) -> Fit<Count> {
        match taken_apart(d, lane)? {
            Moving::Sum(own, shared) => {
                self.shared_number(shared + own.subst(&mut |s| (s == lane).then(|| Dim::constant(0))))
            }
            Moving::Extreme(shared, op, operands) => {
                let mut found: Option<Count> = None;
                for d in operands {
                    let x = self.at_first_lane(d, lane)?;
                    found = Some(match found {
                        None => x,
                        Some(y) => self.numbers(op, x, y),
                    });
                }
                let shared = self.shared_number(shared)?;
                Ok(self.numbers(Op::Add, found.ok_or(NOT_LINEAR)?, shared))
            }
        }
    }
    /// The offsets of lanes from a base.
    fn distances(&mut self, d: Dim, lane: Sym, from: Count) -> Fit<Value> {
        match taken_apart(d, lane)? {
            Moving::Sum(own, shared) => {
                let at = |i: i64| own.eval(&|s| (s == lane).then_some(i));
                let zero = at(0).ok_or(NOT_LINEAR)?;
                let shared = self.shared_number(shared + zero)?;
                let shared = self.behind(shared, from);
                let shared = match shared {
                    Count::Fixed(n) => self.b.bits(n.clamp(-FAR, FAR) as i32 as u32),
                    Count::Run(v) => {
                        let v = self.b.limited(v, -FAR, FAR);
                        self.b.splat(v)
                    }
                };
                if !own.contains(lane) {
                    return Ok(shared);
                }
                let mut numbers = [0u8; 16];
                for (n, i) in numbers.iter_mut().zip(0..i64::from(self.b.lanes())) {
                    *n = at(i).and_then(|p| u8::try_from(p - zero).ok()).ok_or(NOT_LINEAR)?;
                }
                let own = self.b.lane_numbers(numbers);
                Ok(self.b.bin(Bin::IAdd, own, shared))
            }
            Moving::Extreme(shared, op, operands) => {
                let shared = self.shared_number(shared)?;
                let from = self.behind(from, shared);
                let op = if op == Op::Lesser { Bin::IMin } else { Bin::IMax };
                let mut found: Option<Value> = None;
                for d in operands {
                    let x = self.distances(d, lane, from)?;
                    found = Some(match found {
                        None => x,
                        Some(y) => self.b.bin(op, y, x),
                    });
                }
                found.ok_or(NOT_LINEAR)
            }
        }
    }
    /// The uniform part, as an integer.
    fn shared_number(&mut self, d: Dim) -> Fit<Count> {
        if !self.active.iter().any(|(s, _)| d.contains(*s)) {
            return self.count(d);
        }
        if let Ok(p) = self.parts(d) {
            return self.scalar(&p);
        }
        let Moving::Extreme(rest, op, operands) = split_extreme(d, None)? else { return Err(NOT_LINEAR) };
        let mut found: Option<Count> = None;
        for d in operands {
            let x = self.shared_number(d)?;
            found = Some(match found {
                None => x,
                Some(y) => self.numbers(op, x, y),
            });
        }
        let rest = self.shared_number(rest)?;
        Ok(self.numbers(Op::Add, found.ok_or(NOT_LINEAR)?, rest))
    }
    /// a - b.
    pub(super) fn behind(&mut self, a: Count, b: Count) -> Count {
        let minus = match b {
            Count::Fixed(n) => Count::Fixed(n.wrapping_neg()),
            Count::Run(v) => Count::Run(self.b.mul_imm(v, -1)),
        };
        self.numbers(Op::Add, a, minus)
    }
    /// A sum, product, minimum or maximum of two integers.
    pub(super) fn numbers(&mut self, op: Op, a: Count, b: Count) -> Count {
        let (x, y) = match (a, b) {
            (Count::Fixed(x), Count::Fixed(y)) => {
                return Count::Fixed(match op {
                    Op::Add => x.wrapping_add(y),
                    Op::Mul => x.wrapping_mul(y),
                    Op::Lesser => x.min(y),
                    _ => x.max(y),
                });
            }
            (Count::Run(x), Count::Fixed(y)) | (Count::Fixed(y), Count::Run(x)) if op == Op::Add => {
                return Count::Run(self.b.add_imm(x, y));
            }
            (Count::Run(x), Count::Fixed(y)) | (Count::Fixed(y), Count::Run(x))
                if op == Op::Mul && i32::try_from(y).is_ok() =>
            {
                return Count::Run(self.b.mul_imm(x, y as i32));
            }
            (Count::Run(x), Count::Run(y)) => (x, y),
            (Count::Run(x), Count::Fixed(y)) | (Count::Fixed(y), Count::Run(x)) => (x, self.b.int(y)),
        };
        match op {
            Op::Add => Count::Run(self.b.add(x, y)),
            Op::Mul => Count::Run(self.b.mul(x, y)),
            op => Count::Run(self.b.push(op, &[x, y], None, Some(Class::Int)).unwrap_or(x)),
        }
    }
}

/// Decomposes an expression into its terms in the lane.
pub(super) fn taken_apart(d: Dim, lane: Sym) -> Fit<Moving> {
    split_extreme(d, Some(lane))
}

/// Splits an expression into a minimum or maximum and its addend; with a lane, one that depends on it.
fn split_extreme(d: Dim, lane: Option<Sym>) -> Fit<Moving> {
    let View::Sum { terms, .. } = d.view() else { return Ok(Moving::Sum(Dim::constant(0), d)) };
    let whole = |t: &Term| {
        Dim::product([Dim::constant(t.0), t.1.iter().map(value).fold(Dim::constant(1), |a, b| a * b)])
    };
    let extreme = terms.iter().find(|t| {
        t.1.iter().any(|a| matches!(a, Atom::Min(_) | Atom::Max(_)))
            && lane.is_none_or(|l| whole(t).contains(l) && whole(t).syms().iter().any(|s| *s != l))
    });
    match extreme {
        Some(t) => {
            let rest = d - whole(t);
            match t.1.as_slice() {
                [Atom::Min(v)] if t.0 == 1 && lane.is_none_or(|l| !rest.contains(l)) => {
                    Ok(Moving::Extreme(rest, Op::Lesser, v.clone()))
                }
                [Atom::Max(v)] if t.0 == 1 && lane.is_none_or(|l| !rest.contains(l)) => {
                    Ok(Moving::Extreme(rest, Op::Greater, v.clone()))
                }
                _ => Err(NOT_LINEAR),
            }
        }
        None => {
            let Some(lane) = lane else { return Ok(Moving::Sum(Dim::constant(0), d)) };
            let own = Dim::sum(terms.iter().map(whole).filter(|t| t.contains(lane)));
            if own.syms().iter().any(|s| *s != lane) {
                return Err(NOT_LINEAR);
            }
            Ok(Moving::Sum(own, d - own))
        }
    }
}

/// An atom as an expression.
pub(super) fn value(a: &Atom) -> Dim {
    match a {
        Atom::Sym(s) => Dim::sym(*s),
        Atom::FloorDiv(x, y) => x.floor_div(*y),
        Atom::Mod(x, y) => x.modulo(*y),
        Atom::Min(v) => v.iter().copied().reduce(|a, b| a.min(b)).unwrap_or(Dim::constant(0)),
        Atom::Max(v) => v.iter().copied().reduce(|a, b| a.max(b)).unwrap_or(Dim::constant(0)),
    }
}
