//! Dot products of groups.

use super::{Fit, Misfit, Translate, Val};
use crate::codegen::tile::ir::{Bin, Bytes, Factors, Form, Mem, Op, Un};
use crate::nest::{DotKind, Expr};

/// Signedness of the bytes of a group.
pub(super) fn bytes_of(g: DotKind) -> Bytes {
    match g.signs() {
        _ if matches!(g, DotKind::NarrowBytes | DotKind::LongNarrowBytes) => Bytes::Narrow,
        Some((true, true)) => Bytes::Signed,
        Some((false, false)) => Bytes::Unsigned,
        _ => Bytes::Mixed,
    }
}

impl Translate<'_> {
    pub(super) fn dot(&mut self, g: DotKind, a: &Expr, b: &Expr, c: &Expr) -> Fit<Val> {
        if g.is_long() {
            return self.long_dot(g, a, b, c);
        }
        if g == DotKind::WordsByBytes {
            return self.words_by_bytes(a, b, c);
        }
        let (a, b, c) = (self.value(a)?, self.value(b)?, self.value(c)?);
        // Levels without the whole operation multiply and add in two instructions.
        let mut two = |product: Bin, sum: Bin| {
            let products = self.b.bin(product, a.v, b.v);
            self.b.bin(sum, products, c.v)
        };
        let v = match g {
            DotKind::PairedBytes => two(Bin::MulAddBytes, Bin::AddWords),
            DotKind::Words => two(Bin::MulAddPairs, Bin::IAdd),
            DotKind::Halves => self.b.vector(Op::Dot2, &[c.v, a.v, b.v], None),
            g => self.b.vector(Op::Dot(bytes_of(g)), &[c.v, a.v, b.v], None),
        };
        Ok(Val { v, ..c })
    }
    /// A dot product of words of one element and vectors of bytes. The bytes with even and those with odd
    /// numbers become words in place, which all rows share.
    fn words_by_bytes(&mut self, words: &Expr, bytes: &Expr, sum: &Expr) -> Fit<Val> {
        const ONE: Misfit = "a dot product of words that are not those of one element";
        let Expr::Load { buf, at } = words else { return Err(ONE) };
        let (sum, bytes, one) = (self.value(sum)?, self.value(bytes)?, self.access(*buf, at)?);
        if one.lane != Some(0) || self.b.is_long() || !one.bound.is_empty() {
            return Err(ONE);
        }
        let place = self.mem(&one)?;
        let second = Mem { disp: place.disp.checked_add(4).ok_or(ONE)?, ..place };
        let shifted = self.b.un_once(Un::ShlWords(8), bytes.v);
        let mut v = sum.v;
        for (of, mem) in [(shifted, place), (bytes.v, second)] {
            let words = self.load_at(&one, Form::B32, mem)?;
            let factors = self.b.un_once(Un::SarWords(8), of);
            let products = self.b.bin(Bin::MulAddPairs, words, factors);
            v = self.b.bin(Bin::IAdd, products, v);
        }
        Ok(Val { v, ..sum })
    }
    /// A dot product of eights: one element by a vector of adjacent ones, which occupy two registers.
    fn long_dot(&mut self, g: DotKind, a: &Expr, b: &Expr, c: &Expr) -> Fit<Val> {
        const ONE: Misfit = "a dot product of eights that is not of one element and of neighbours";
        let (Expr::Load { buf: x, at: of_x }, Expr::Load { buf: y, at: of_y }) = (a, b) else {
            return Err(ONE);
        };
        let sum = self.value(c)?;
        let (x, y) = (self.access(*x, of_x)?, self.access(*y, of_y)?);
        let (swapped, one, columns) = match (x.lane, y.lane) {
            (Some(0), Some(1)) => (false, x, y),
            (Some(1), Some(0)) => (true, y, x),
            _ => return Err(ONE),
        };
        if self.b.is_long() || self.mask.is_some() || !one.bound.is_empty() || !columns.bound.is_empty() {
            return Err(ONE);
        }
        let (element, near) = (self.mem(&one)?, self.mem(&columns)?);
        let element = self.load_at(&one, Form::B64, element)?;
        let first = self.load_at(&columns, Form::B32, near)?;
        let far = Mem { disp: near.disp.checked_add(16).ok_or(ONE)?, ..near };
        let second = self.load_at(&columns, Form::B32, far)?;
        let of = if g == DotKind::LongHalves { Factors::Halves } else { Factors::Bytes(bytes_of(g)) };
        let op = Op::Dot8 { of, swapped: swapped && of == Factors::Bytes(Bytes::Mixed) };
        Ok(Val { v: self.b.vector(op, &[sum.v, element, first, second], None), ..sum })
    }
}
