//! Gathers whose lanes read close to each other: positions in a row that fits in a vector, or that increase
//! from lane to lane, as in a scaled image. One load and a shuffle replace a load per lane, or [`WIDE`] loads
//! where the image shrinks; a run-time test decides vector by vector, and distant positions are gathered.

use super::access::Access;
use super::{Fit, Translate};
use crate::codegen::tile::builder::Count;
use crate::codegen::tile::ir::{Bin, Bits, Form, Mem, Op, Pred, Value};
use crate::codegen::tile::isa;
use crate::nest::Expr;
use crate::sym::{Answer, Dim, Sym};

/// Vectors in the longer window: an image shrinks to a fourth at most. A gather of 16 lanes takes 25 cycles
/// on Zen 5, four loads and shuffles take 4.
const WIDE: i64 = 4;

/// An index whose lanes may be close to each other.
#[derive(Clone, Copy)]
pub(super) struct Near {
    /// Its bound.
    extent: Dim,
    /// The bound in lanes.
    limit: Value,
    /// It is clamped to a range: positions in an image, most of which are adjacent.
    rises: bool,
    /// Its active lanes.
    pub mask: Option<Value>,
}

impl Translate<'_> {
    /// The properties of index `raw` below `extent` (after substitution; `limit` in lanes) at which `body`
    /// reads.
    pub(super) fn near_of(
        &self,
        sym: Sym,
        (raw, extent, limit): (Dim, Dim, Value),
        rises: bool,
        body: &Expr,
    ) -> Option<Near> {
        // Under a condition, rows may not exist.
        if self.b.width().masks_are_vectors() || self.mask.is_some_and(|k| self.b.is_condition(k)) {
            return None;
        }
        let mut whole = true;
        body.walk(&mut |e| {
            if let Expr::Load { buf, at } = e {
                let dims = &self.m.bufs[*buf].dims;
                whole &= at.iter().zip(dims).all(|(i, n)| {
                    !i.contains(sym) || *i == Dim::sym(sym) && self.m.syms.eq(*n, raw) == Answer::Yes
                });
            }
        });
        whole.then_some(Near { extent, limit, rises, mask: None })
    }
    /// The elements at a loaded index, if its lanes may be close to each other.
    pub(super) fn gathered_near(
        &mut self,
        a: &Access,
        form: Form,
        (index, mem): (Value, Mem),
    ) -> Fit<Option<Value>> {
        let ([(sym, step)], Some(0)) = (&a.bound[..], a.lane) else { return Ok(None) };
        let Some(bound) = self.bound.get(sym).copied() else { return Ok(None) };
        let bits = form.lane();
        let Some(near) = bound.near.filter(|n| n.mask == self.mask && step.as_const() == Some(1)) else {
            return Ok(None);
        };
        let loads = isa::machine(self.b.width()).has(form, false, true);
        if !loads || !self.b.has(Op::Bin(Bin::Permute, bits)) || form.bytes() < 4 && self.b.is_long() {
            return Ok(None);
        }
        let (lanes, long) = (i64::from(self.b.lanes()), self.b.is_long());
        let base = self.b.address(mem);
        // The elements from the first lane's position on, or the last ones of the row.
        let (places, base, rest) = if near.rises {
            let before = self.b.next_value();
            let first = self.b.first(bound.value);
            let most = match self.count(near.extent)? {
                Count::Fixed(n) => self.b.int((n - lanes).max(0)),
                Count::Run(n) => {
                    let zero = self.b.int(0);
                    let before = self.b.add_imm(n, -lanes);
                    self.b.greater(before, zero)
                }
            };
            let first = self.b.lesser(first, most);
            let (at, bytes) = (self.b.splat(first), self.b.mul_imm(first, form.bytes() as i32));
            let places = self.index_op(Bin::ISub, bound.value, at);
            let rest = self.index_op(Bin::ISub, near.limit, at);
            self.b.are_positions(before);
            (places, self.b.add(base, bytes), rest)
        } else {
            (bound.value, base, near.limit)
        };
        let (numbers, all) = (self.b.iota(), self.index_number(lanes));
        let exist = self.b.icmp(Pred::Lt, numbers, near.limit, self.b.index_bits());
        let row = self.b.load(form, Mem::at(base, 0), Some(exist));
        let shuffle = if long && bits == Bits::B32 { self.b.low(places) } else { places };
        let v = self.b.bin_of(Bin::Permute, shuffle, row, bits);
        let opened = self.open_if_beyond(all, places);
        // Lanes of indices and of elements correspond.
        let longer = near.rises && (!long || bits == Bits::B64);
        let window = Window { base, places, rest, row };
        let wide = if longer { self.from_window(form, window) } else { v };
        let all = if longer { self.index_number(WIDE * lanes) } else { all };
        let inner = longer.then(|| self.open_if_beyond(all, places));
        let before = self.b.next_value();
        // The window contains all of a buffer with fewer than four bytes.
        let gathered = self.far_gather(a, form, (index, mem))?;
        self.b.are_positions(before);
        let far = match inner {
            Some(inner) => self.b.close_if(inner, &[wide], &[gathered]).first().copied(),
            None => Some(gathered),
        };
        Ok(far.and_then(|far| self.b.close_if(opened, &[v], &[far]).first().copied()))
    }
    /// Begins what runs if an active lane has a place from `limit` on.
    fn open_if_beyond(&mut self, limit: Value, places: Value) -> usize {
        let before = self.b.next_value();
        let far = self.b.ucmp(Pred::Le, limit, places, self.b.index_bits());
        let far = match self.mask {
            Some(k) => self.b.masks(Op::MaskAnd, k, far),
            None => far,
        };
        let opened = self.b.open_if_any(far);
        self.b.are_positions(before);
        opened
    }
    /// The elements at places in a longer window.
    fn from_window(&mut self, form: Form, w: Window) -> Value {
        let (lanes, bits) = (i64::from(self.b.lanes()), form.lane());
        let mut rows = vec![w.row];
        let numbers = self.b.iota();
        for i in 1..WIDE {
            let before = self.b.next_value();
            let behind = self.index_number(i * lanes);
            let numbers = self.index_op(Bin::IAdd, numbers, behind);
            let exist = self.b.icmp(Pred::Lt, numbers, w.rest, self.b.index_bits());
            self.b.are_positions(before);
            let at = Mem::at(w.base, (i * lanes) as i32 * form.bytes() as i32);
            rows.push(self.b.load(form, at, Some(exist)));
        }
        // A pair of vectors is one table where an instruction reads both.
        let tables: Vec<&[Value]> =
            rows.chunks(if self.b.has(Op::Permute2) && bits == Bits::B32 { 2 } else { 1 }).collect();
        let mut all = None;
        for (i, table) in tables.iter().enumerate() {
            let v = match table {
                [lower, upper] => self.b.permuted(w.places, *lower, Some(*upper)),
                [row, ..] => self.b.bin_of(Bin::Permute, w.places, *row, bits),
                [] => w.row,
            };
            all = Some(match all {
                None => v,
                Some(before) => {
                    let begin = i as i64 * lanes * table.len() as i64;
                    let begin = if bits == Bits::B64 {
                        self.b.bits64(begin as u64)
                    } else {
                        self.b.bits(begin as u32)
                    };
                    let here = self.b.icmp(Pred::Le, begin, w.places, bits);
                    self.b.select(here, v, before, bits)
                }
            });
        }
        all.unwrap_or(w.row)
    }
}

/// Elements that follow each other in memory.
struct Window {
    base: Value,
    /// The place of each lane, from `base` on.
    places: Value,
    /// The number of elements from `base` on, in lanes of indices.
    rest: Value,
    /// The first vector.
    row: Value,
}
