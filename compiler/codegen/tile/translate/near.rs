//! Gathers whose lanes read close to each other: positions in a row that fits in a vector, or that increase
//! from lane to lane, as in an upscaled image. One load and a shuffle replace a load per lane; a run-time
//! test decides vector by vector, and distant positions are gathered.

use super::access::Access;
use super::{Fit, Translate};
use crate::codegen::tile::builder::Count;
use crate::codegen::tile::ir::{Bin, Bits, Form, Mem, Op, Pred, Value};
use crate::nest::Expr;
use crate::sym::{Answer, Dim, Sym};

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
        let bits = match form {
            Form::B32 => Bits::B32,
            Form::B64 => Bits::B64,
            _ => return Ok(None),
        };
        let Some(near) = bound.near.filter(|n| n.mask == self.mask && step.as_const() == Some(1)) else {
            return Ok(None);
        };
        if !self.b.has(Op::Bin(Bin::Permute, bits)) {
            return Ok(None);
        }
        let (lanes, long) = (i64::from(self.b.lanes()), self.b.is_long());
        let base = self.b.address(mem);
        // The elements from the first lane's position on, or the last ones of the row.
        let (places, base) = if near.rises {
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
            self.b.are_positions(before);
            (places, self.b.add(base, bytes))
        } else {
            (bound.value, base)
        };
        let (numbers, all) = (self.b.iota(), self.index_number(lanes));
        let exist = self.b.icmp(Pred::Lt, numbers, near.limit, self.b.index_bits());
        let row = self.b.load(form, Mem::at(base, 0), Some(exist));
        let shuffle = if long && bits == Bits::B32 { self.b.low(places) } else { places };
        let v = self.b.bin_of(Bin::Permute, shuffle, row, bits);
        let before = self.b.next_value();
        let far = self.b.ucmp(Pred::Le, all, places, self.b.index_bits());
        let far = match self.mask {
            Some(k) => self.b.masks(Op::MaskAnd, k, far),
            None => far,
        };
        let opened = self.b.open_if_any(far);
        self.b.are_positions(before);
        let gathered = self.b.gather(form, index, mem, self.mask);
        Ok(self.b.close_if(opened, &[v], &[gathered]).first().copied())
    }
}
