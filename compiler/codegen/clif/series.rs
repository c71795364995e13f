//! Series of addresses: rows of a tile whose positions differ by a constant inside divisions.
//!
//! A tile accesses rows of images at `f(x)`, `f(x + 1)`, ... where `f` divides its argument by the sizes of
//! the image. As straight-line code, each address takes about 75 bytes. A loop computes them once, into the
//! stack.

use super::func::Emit;
use super::index::{Divisor, term_dim};
use crate::codegen::{Map, Set};
use crate::diag::Result;
use crate::nest::Buf;
use crate::sym::{Atom, Dim, Term, View};
use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::types::I64;
use cranelift_codegen::ir::{BlockArg, InstBuilder, StackSlot, StackSlotData, StackSlotKind, Value};
use std::collections::BTreeMap;

/// Number of addresses from which a loop is smaller than straight-line code.
const LEAST: usize = 5;
/// Bytes of an address.
const BYTES: u32 = 8;

/// An element of a buffer: the storage, the index of the element, bytes per element.
pub(super) type Element = (Buf, Dim, u32);

/// `common + sum(factor * part) + start + i * step` for iteration `i`.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Series {
    common: Dim,
    parts: Vec<(i64, Part)>,
    start: i64,
    step: i64,
}

/// Quotient or remainder of a series by a positive constant.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Part {
    of: Box<Series>,
    by: i64,
    quotient: bool,
}

impl Series {
    /// The series that begins with two dims. `None` if these differ by more than constants inside divisions.
    fn of(first: Dim, second: Dim) -> Option<Series> {
        let ((terms, start), (others, next)) = (sum(first)?, sum(second)?);
        let mut left: Vec<_> = others.iter().collect();
        let (mut common, mut own) = (Dim::constant(0), vec![]);
        for t in terms {
            match left.iter().position(|o| *o == t) {
                Some(i) => {
                    left.remove(i);
                    common = common + term_dim(t);
                }
                None => own.push(t),
            }
        }
        let mut parts = vec![];
        for (factor, atoms) in own {
            let [atom] = atoms.as_slice() else { return None };
            let found = left.iter().enumerate().find_map(|(i, o)| match o.1.as_slice() {
                [other] if o.0 == *factor => Some((i, Part::of(atom, other)?)),
                _ => None,
            });
            let (i, part) = found?;
            left.remove(i);
            parts.push((*factor, part));
        }
        left.is_empty().then(|| Series { common, parts, start, step: next.wrapping_sub(start) })
    }
    /// The dim of an iteration.
    fn at(&self, i: i64) -> Dim {
        let parts = self.parts.iter().fold(self.common, |sum, (factor, part)| {
            let x = part.of.at(i);
            sum + if part.quotient { x.floor_div(part.by) } else { x.modulo(part.by) } * *factor
        });
        parts + Dim::constant(self.step) * i + self.start
    }
}

impl Part {
    fn of(first: &Atom, second: &Atom) -> Option<Part> {
        let (x, y, by, quotient) = match (first, second) {
            (Atom::FloorDiv(x, by), Atom::FloorDiv(y, c)) if by == c => (x, y, by, true),
            (Atom::Mod(x, by), Atom::Mod(y, c)) if by == c => (x, y, by, false),
            _ => return None,
        };
        let by = by.as_const().filter(|c| *c > 0)?;
        Some(Part { of: Box::new(Series::of(*x, *y)?), by, quotient })
    }
}

/// True if a term of a dim is a quotient or a remainder.
fn divides(d: Dim) -> bool {
    let View::Sum { terms, .. } = d.view() else { return false };
    terms.iter().flat_map(|t| &t.1).any(|a| matches!(a, Atom::FloorDiv(..) | Atom::Mod(..)))
}

fn sum(d: Dim) -> Option<(&'static [Term], i64)> {
    match d.view() {
        View::Const(c) => Some((&[], c)),
        View::Sum { terms, constant } => Some((terms, constant)),
        View::Overflow => None,
    }
}

impl Emit<'_, '_> {
    /// Computes addresses that form series in loops. [`Emit::pointer`] finds them in the current scope.
    pub(super) fn series(&mut self, elements: &[Element]) -> Result<()> {
        let mut seen = Set::default();
        let mut arrays: BTreeMap<(Buf, u32), Vec<Dim>> = BTreeMap::new();
        for (storage, linear, size) in elements {
            let key = (*storage, *linear);
            let known = self.scopes.iter().any(|s| s.ptrs.contains_key(&key));
            if divides(*linear) && !known && seen.insert(key) {
                arrays.entry((*storage, *size)).or_default().push(*linear);
            }
        }
        let mut slot = 0;
        for ((storage, size), linears) in arrays {
            let mut left = linears.as_slice();
            while let [first, second, ..] = left {
                let series = Series::of(*first, *second);
                let is_next = |(i, d): &(i64, &Dim)| series.as_ref().is_some_and(|s| s.at(*i) == **d);
                let n = (0..).zip(left).take_while(is_next).count();
                match series.filter(|s| n >= LEAST && !s.parts.is_empty()) {
                    Some(series) => {
                        self.loop_of(&series, storage, size, &left[..n], slot)?;
                        slot += 1;
                        left = &left[n..];
                    }
                    None => left = &left[1..],
                }
            }
        }
        Ok(())
    }
    /// The addresses of one series.
    fn loop_of(
        &mut self,
        series: &Series,
        storage: Buf,
        size: u32,
        linears: &[Dim],
        slot: usize,
    ) -> Result<()> {
        let n = linears.len() as i64;
        let slot = self.series_slot(slot, linears.len() as u32 * BYTES);
        let base = self.pointer(storage, series.common, size)?;
        self.commons(series)?;
        let addresses = self.b.ins().stack_addr(I64, slot, 0);
        let zero = self.b.ins().iconst(I64, 0);
        let (body, done) = (self.b.create_block(), self.b.create_block());
        let i = self.b.append_block_param(body, I64);
        self.b.ins().jump(body, &[BlockArg::from(zero)]);
        self.b.switch_to_block(body);
        let mut turn = Turn { i, n, parts: Map::default() };
        let offset = self.variable(series, &mut turn)?;
        let offset = self.times(offset, i64::from(size));
        let address = self.b.ins().iadd(base, offset);
        let to = self.times(i, i64::from(BYTES));
        let to = self.b.ins().iadd(addresses, to);
        let flags = self.flags();
        self.b.ins().store(flags, address, to, 0);
        let next = self.b.ins().iadd_imm_s(i, 1);
        let more = self.b.ins().icmp_imm_s(IntCC::SignedLessThan, next, n);
        self.b.ins().brif(more, body, &[BlockArg::from(next)], done, &[]);
        self.b.seal_block(body);
        self.b.switch_to_block(done);
        self.b.seal_block(done);
        for (linear, at) in linears.iter().zip(0..) {
            let p = self.b.ins().stack_load(I64, I64, slot, at * BYTES as i32);
            if let Some(s) = self.scopes.last_mut() {
                s.ptrs.insert((storage, *linear), p);
            }
        }
        Ok(())
    }
    /// Stack memory for the addresses of a series. Later tiles reuse it.
    fn series_slot(&mut self, number: usize, bytes: u32) -> StackSlot {
        if let Some(s) = self.series_slots.get(number) {
            let size = &mut self.b.func.sized_stack_slots[*s].size;
            *size = bytes.max(*size);
            return *s;
        }
        let data = StackSlotData::new(StackSlotKind::ExplicitSlot, bytes, BYTES.ilog2() as u8);
        let s = self.b.create_sized_stack_slot(data);
        self.series_slots.push(s);
        s
    }
    /// Emits the common parts of the arguments of divisions, which are thereby cached for the loop.
    fn commons(&mut self, series: &Series) -> Result<()> {
        for (_, part) in &series.parts {
            if part.of.common.as_const().is_none() {
                self.emit_dim(part.of.common)?;
            }
            self.commons(&part.of)?;
        }
        Ok(())
    }
    /// The value of a series in an iteration, without its common part.
    fn variable(&mut self, series: &Series, turn: &mut Turn) -> Result<Value> {
        let mut v = self.times(turn.i, series.step);
        for (factor, part) in &series.parts {
            let p = self.part(part, turn)?;
            let p = self.times(p, *factor);
            v = self.b.ins().iadd(v, p);
        }
        Ok(if series.start == 0 { v } else { self.b.ins().iadd_imm_s(v, series.start) })
    }
    /// A quotient or a remainder in an iteration.
    fn part(&mut self, part: &Part, turn: &mut Turn) -> Result<Value> {
        if let Some(v) = turn.parts.get(part) {
            return Ok(*v);
        }
        let mut x = self.variable(&part.of, turn)?;
        if part.of.common.as_const() != Some(0) {
            let common = self.emit_dim(part.of.common)?;
            x = self.b.ins().iadd(common, x);
        }
        let arguments: Vec<Dim> = (0..turn.n).map(|i| part.of.at(i)).collect();
        let by = Divisor::of(&self.m.syms, &arguments, part.by);
        let v = if part.quotient {
            self.quotient(x, by)
        } else {
            let of = Part { quotient: true, ..part.clone() };
            self.remainder(x, by, |e| *turn.parts.entry(of).or_insert_with(|| e.quotient(x, by)))
        };
        turn.parts.insert(part.clone(), v);
        Ok(v)
    }
}

/// An iteration of the loop of a series, with the values it has computed.
struct Turn {
    i: Value,
    n: i64,
    parts: Map<Part, Value>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sym::SymTable;

    /// The position of a pixel in a padded 28 x 28 image, counted over all images.
    fn position(x: Dim) -> Dim {
        let line = x.modulo(784);
        x.floor_div(784) * 900 + line.floor_div(28) * 30 + line.modulo(28) + 31
    }

    #[test]
    fn positions_in_an_image_are_a_series() {
        let mut syms = SymTable::new();
        let t = syms.loop_var("t", Dim::constant(0), Dim::constant(100));
        let x = |i: i64| Dim::sym(t) * 13 + i;
        let series = Series::of(position(x(0)), position(x(1))).expect("a series");
        assert_eq!(
            (0..13).map(|i| series.at(i)).collect::<Vec<_>>(),
            (0..13).map(|i| position(x(i))).collect::<Vec<_>>()
        );
    }

    #[test]
    fn other_quotients_are_none() {
        let mut syms = SymTable::new();
        let t = Dim::sym(syms.loop_var("t", Dim::constant(0), Dim::constant(100)));
        assert_eq!(Series::of(t.floor_div(3), t.floor_div(5)), None);
        assert_eq!(Series::of(t.floor_div(3), (t * 2).floor_div(3)), None);
        assert_eq!(Series::of(t.floor_div(3), t.modulo(3)), None);
    }
}
