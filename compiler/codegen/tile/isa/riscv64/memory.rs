//! Memory accesses: addresses, elements of other widths than lanes, masks.

use super::code::{immediate, is_short};
use super::encode::{Emit, OWN, SECOND, number};
use super::table::{self, Width};
use crate::codegen::tile::ir::{Bits, Form, Mem, Node, Op};
use crate::codegen::tile::isa::bases::Rule;
use crate::diag::{Failure, Result};
use regalloc2::Allocation;

/// The scratch vector register, for elements shorter than lanes.
const OWN_VECTOR: u32 = 3;
/// Granularity of prefetch displacements.
const PREFETCH_UNIT: i64 = 32;

/// Bases near accesses whose displacements are out of reach: an address takes up to three instructions.
pub(super) const NEAR_BASES: Rule =
    Rule { far: out_of_reach, reach: 1 << 12, worth: |far| far.len() > 1, most: 4 };

fn out_of_reach(n: &Node) -> Option<Mem> {
    n.mem.filter(|m| n.op != Op::Address && m.index.is_none() && !m.each && !is_short(m.disp.into()))
}

/// Elements in memory.
#[derive(Clone, Copy)]
struct Elements {
    form: Form,
    base: u32,
    apart: Apart,
    masked: bool,
}

/// How elements lie: contiguous, at a stride in a register, or at offsets in lanes (loads only).
#[derive(Clone, Copy)]
enum Apart {
    Not,
    Step(u32),
    Offsets(u32),
}

impl Emit<'_> {
    /// Base and displacement of a memory operand whose registers follow `args` arguments.
    fn at(&mut self, m: Mem, args: usize, al: &[Allocation]) -> (u32, i64) {
        let base = number(al[args]);
        match m.index {
            None => (base, i64::from(m.disp)),
            Some((_, scale)) => {
                let index = number(al[args + 1]);
                self.code.short(table::SLLI, OWN, index, i64::from(scale.trailing_zeros()));
                self.code.three(table::ADD, OWN, OWN, base);
                (OWN, i64::from(m.disp))
            }
        }
    }
    /// Loads or stores elements in memory format.
    fn move_elements(&mut self, e: Elements, store: bool, v: u32) {
        let width = Width::bytes(e.form.bytes());
        let (word, by) = match e.apart {
            Apart::Not => (table::vector_access(width, false, store), 0),
            Apart::Step(step) => (table::vector_access(width, true, store), step),
            Apart::Offsets(offsets) => {
                // The vector type has the width of the elements.
                self.want(width);
                (table::indexed_load(if self.f.long { Width::W64 } else { Width::W32 }), offsets)
            }
        };
        let word = if e.masked { table::masked(word) } else { word };
        self.code.push(word | by << 20 | e.base << 15 | v << 7);
    }
    fn load_elements(&mut self, e: Elements, d: u32) {
        let parts = e.form.lane_bytes() / e.form.bytes();
        // Elements shorter than lanes are extended after the load.
        let v = if parts == 1 { d } else { OWN_VECTOR };
        if e.masked {
            self.want(Width::bytes(e.form.bytes()));
            self.code.vector(table::SPLAT_NUMBER, v, 0, 0);
        }
        self.move_elements(e, false, v);
        if parts > 1 {
            self.want(Emit::lanes_of(e.form));
            let signed = matches!(e.form, Form::I8 | Form::I16);
            self.code.vector(table::extend(parts, signed), d, v, 0);
        }
    }
    fn store_elements(&mut self, e: Elements, v: u32) {
        let mut from = v;
        let mut bytes = e.form.lane_bytes();
        while bytes > e.form.bytes() {
            bytes /= 2;
            self.want(Width::bytes(bytes));
            self.code.vector(table::NARROW, OWN_VECTOR, from, 0);
            from = OWN_VECTOR;
        }
        self.move_elements(e, true, from);
    }
    /// Operations that access memory.
    pub(super) fn memory(&mut self, n: &Node, al: &[Allocation]) -> Result<()> {
        let missing = |what: &str| Err(Failure::bug("encoding of a tile", what));
        let (Some(m), args) = (n.mem, n.args.len()) else { return missing("a memory operand is missing") };
        let at = self.at(m, args, al);
        let d = al.last().map_or(0, |a| number(*a));
        let first = al.first().map_or(0, |a| number(*a));
        match n.op {
            Op::Address => self.code.add(d, at.0, at.1),
            Op::Load(form) => {
                let base = self.address(at);
                self.load_elements(Elements { form, base, apart: Apart::Not, masked: args > 0 }, d);
            }
            Op::LoadStrided(form) => {
                let base = self.address(at);
                self.load_elements(Elements { form, base, apart: Apart::Step(first), masked: args > 1 }, d);
            }
            Op::LoadIndexed(form) => {
                let base = self.address(at);
                self.load_elements(
                    Elements { form, base, apart: Apart::Offsets(first), masked: args > 1 },
                    d,
                );
            }
            Op::Store(form) => {
                let base = self.address(at);
                self.store_elements(Elements { form, base, apart: Apart::Not, masked: args > 1 }, first);
            }
            Op::StoreStrided(form) => {
                let base = self.address(at);
                let apart = Apart::Step(number(al[1]));
                self.store_elements(Elements { form, base, apart, masked: args > 2 }, first);
            }
            Op::Broadcast(form) if args == 0 => {
                self.access_int(table::int_access(form, false), false, OWN, at);
                self.want(Emit::lanes_of(form));
                self.code.vector(table::SPLAT, d, 0, OWN);
            }
            Op::Element(form, f) => {
                self.access_int(table::load_float(form.lane()), false, u32::from(f), at);
            }
            Op::StoreScalar(bits) => {
                // The address first, since its register may be reused for the lane.
                let base = self.address(at);
                self.want(Width::of(bits));
                self.code.vector(table::FIRST, SECOND, first, 0);
                let form = if bits == Bits::B64 { Form::B64 } else { Form::B32 };
                self.access_int(table::int_access(form, true), true, SECOND, (base, 0));
            }
            Op::Prefetch { .. } => {
                let (base, disp) = at;
                let whole = disp.div_euclid(PREFETCH_UNIT) * PREFETCH_UNIT;
                let (base, disp) =
                    if is_short(whole) { (base, whole) } else { (self.address((base, whole)), 0) };
                self.code.push(table::PREFETCH | immediate(disp) | base << 15);
            }
            _ => return missing("an operation without an instruction"),
        }
        Ok(())
    }
}
