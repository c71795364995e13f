//! Table lookups in small constants at computed positions: a few vectors hold the constant for the whole
//! function, and permutations select from them.

use super::{Arg, Fit, Translate, Val};
use crate::codegen::tile::builder::Count;
use crate::codegen::tile::ir::{Bin, Bits, Form, Mem, Op, Pred, Un, Value};
use crate::nest::{BinOp, Buf, Expr, Layout};
use crate::sym::{Dim, Sym};
use crate::tensor::ElemType;

/// Elements of a table of bytes.
const TABLE: i64 = 256;

impl Translate<'_> {
    /// True if an index needs no check.
    pub(super) fn is_inside(&self, value: &Expr, extent: Dim) -> bool {
        let bounds = self.ranges.of(self.m, value).zip(extent.as_const());
        bounds.is_some_and(|((lo, hi), n)| lo >= 0.0 && hi < n as f64)
    }
    /// The value that `body` reads from a constant of at most two vectors at position `sym`, which is `value`
    /// and needs no check; `None` for anything else.
    pub(super) fn entry(&mut self, (sym, value): (Sym, &Expr), extent: Dim, body: &Expr) -> Fit<Option<Val>> {
        if !self.is_inside(value, extent) {
            return Ok(None);
        }
        if let Some(table) = self.byte_table(sym, body) {
            return self.byte_entry(value, table).map(Some);
        }
        let Some((buf, count)) = self.small_constant(sym, body) else { return Ok(None) };
        let lanes = i64::from(self.b.lanes());
        // Permutations use the lowest bits of a position only.
        let (place, bits) = match value {
            Expr::Bin(BinOp::And, x, mask)
                if matches!(&**mask, Expr::Const(c) if c.to_i64() == count - 1)
                    && count.count_ones() == 1
                    && count >= lanes =>
            {
                (&**x, count.trailing_zeros())
            }
            x => (x, 0),
        };
        let place = self.value(place)?.v;
        let lower = self.part_of(buf, 0, count.min(lanes))?;
        let upper = if count > lanes { Some(self.part_of(buf, lanes, count - lanes)?) } else { None };
        let v = match upper {
            Some(upper) if !self.b.has(Op::Permute2) => {
                let [lower, upper] = [lower, upper].map(|v| self.b.bin(Bin::Permute, place, v));
                let is_upper = self.is_upper(place, bits);
                self.b.select(is_upper, upper, lower, Bits::B32)
            }
            upper => self.b.permuted(place, lower, upper),
        };
        Ok(Some(Val { v, ty: ElemType::F32 }))
    }
    /// The byte of a table at a position. Vectors hold pairs of bytes as words: permutations select a word from
    /// each half of the table, and a shift the byte.
    fn byte_entry(&mut self, place: &Expr, table: Buf) -> Fit<Val> {
        let place = self.value(place)?;
        let place = self.cast(ElemType::I32, place)?.v;
        let base = self.arg(Arg::Pointer { buf: table, linear: Dim::constant(0), size: 1 })?;
        let bytes = TABLE / 4;
        let mut part = |i| {
            let mem = Mem::at(self.params[base], (bytes * i) as i32);
            self.b.load_at_entry(Form::B32, mem, None)
        };
        let parts = [part(0), part(1), part(2), part(3)];
        let word = self.b.un(Un::Shr(1), place);
        let [lower, upper] =
            [0, 2].map(|i| self.b.shuffle3(Op::PermuteWords2, [parts[i], word, parts[i + 1]]));
        let last = self.b.bits(TABLE as u32 / 2 - 1);
        let is_upper = self.b.icmp(Pred::Lt, last, place, Bits::B32);
        let pair = self.b.select(is_upper, upper, lower, Bits::B32);
        let (one, byte) = (self.b.bits(1), self.b.bits(0xff));
        let odd = self.b.bin(Bin::And, place, one);
        let bits = self.b.un(Un::Shl(3), odd);
        let shifted = self.b.bin(Bin::Shr, pair, bits);
        Ok(Val { v: self.b.bin(Bin::And, shifted, byte), ty: ElemType::U8 })
    }
    /// The constant of 256 bytes that an expression reads at position `sym`.
    fn byte_table(&self, sym: Sym, body: &Expr) -> Option<Buf> {
        let (buf, count) = self.constant_at(sym, body, ElemType::U8)?;
        (count == TABLE && self.b.has(Op::PermuteWords2)).then_some(buf)
    }
    /// The mask of the lanes whose position is in the second vector; only `bits` bits of a position are
    /// defined, unless `bits` is 0.
    fn is_upper(&mut self, place: Value, bits: u32) -> Value {
        if bits == 0 {
            let last = self.b.bits(self.b.lanes() - 1);
            return self.b.icmp(Pred::Lt, last, place, Bits::B32);
        }
        let up = Un::Shl(32 - bits as u8);
        if self.b.width().masks_are_vectors() {
            // Selection uses the highest bit of a lane.
            return self.b.mask(Op::Un(up, Bits::B32), &[place]);
        }
        let (place, zero) = (self.b.un(up, place), self.b.bits(0));
        self.b.icmp(Pred::Lt, place, zero, Bits::B32)
    }
    /// The constant of at most two vectors that an expression reads at such a position, and its number of
    /// elements.
    fn small_constant(&self, sym: Sym, body: &Expr) -> Option<(Buf, i64)> {
        let (buf, count) = self.constant_at(sym, body, ElemType::F32)?;
        let fits = (1..=2 * i64::from(self.b.lanes())).contains(&count);
        (fits && self.b.has(Op::Bin(Bin::Permute, Bits::B32))).then_some((buf, count))
    }
    /// The constant of elements of 32 bits or less that an expression reads at position `sym`, and its number
    /// of elements.
    fn constant_at(&self, sym: Sym, body: &Expr, ty: ElemType) -> Option<(Buf, i64)> {
        let Expr::Load { buf, at } = body else { return None };
        let (d, owner) = (&self.m.bufs[*buf], self.m.storage(*buf));
        let count = d.dims.iter().try_fold(1i64, |n, d| n.checked_mul(d.as_const()?))?;
        let plain = [d, &self.m.bufs[owner]].iter().all(|d| d.layout == Layout::RowMajor && d.ty == ty);
        let known = self.m.is_constant(owner) && self.m.linear(*buf, at) == Dim::sym(sym);
        (plain && known && !self.b.is_long()).then_some((owner, count))
    }
    /// Elements `first .. first + count` of a constant, loaded at the entry.
    fn part_of(&mut self, buf: Buf, first: i64, count: i64) -> Fit<Value> {
        let base = self.arg(Arg::Pointer { buf, linear: Dim::constant(0), size: 4 })?;
        let mem = Mem::at(self.params[base], 4 * first as i32);
        let some = count < i64::from(self.b.lanes());
        let mask = some.then(|| self.b.first_lanes(Count::Fixed(count)));
        Ok(self.b.load_at_entry(Form::B32, mem, mask))
    }
}
