//! Strings of the interpreter: a value is the index of a location in memory, and an element in scratch holds
//! that index. Inputs, constants and outputs have the form of `onnxc_runtime::texts`.

use super::code::{Access, Node};
use super::*;
use onnxc_runtime::texts;

/// The location of the bytes of a string.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Span {
    region: usize,
    at: usize,
    len: usize,
}

impl State<'_> {
    pub(super) fn span(&self, number: u64) -> Res<Span> {
        match self.texts.get(number) {
            Some(s) => Ok(s),
            None => msg("a text that was never written"),
        }
    }
    fn text(&self, number: u64) -> Res<&[u8]> {
        let s = self.span(number)?;
        match self.mem[s.region].bytes().get(s.at..s.at + s.len) {
            Some(b) => Ok(b),
            None => msg("a text outside of memory"),
        }
    }
    /// The string of an element.
    pub(super) fn load_text(&mut self, a: &Access) -> Res<u64> {
        let (region, base, i) = self.locate(a)?;
        self.text_at(region, base, i)
    }
    fn text_at(&mut self, region: usize, base: usize, i: usize) -> Res<u64> {
        let bytes = self.mem[region].bytes();
        if matches!(self.mem[region], Region::Own(_)) {
            let number = bytes
                .get(base + i * texts::SIZE..)
                .and_then(|b| b.first_chunk())
                .map_or(u64::MAX, |b| u64::from_le_bytes(*b));
            self.span(number)?;
            return Ok(number);
        }
        match texts::place(bytes, i) {
            Some((at, len)) => Ok(self.texts.number(Span { region, at, len })),
            None => msg("an element that is no text"),
        }
    }
    pub(super) fn store_text(&mut self, a: &Access, number: u64) -> Res<()> {
        let len = self.span(number)?.len as u64;
        let (region, base, i) = self.locate(a)?;
        let at = base + i * texts::SIZE;
        let Region::Own(bytes) = &mut self.mem[region] else {
            return msg("a store of a text to what is read-only");
        };
        match bytes.get_mut(at..at + texts::SIZE) {
            Some(to) => {
                to[..8].copy_from_slice(&number.to_le_bytes());
                to[8..].copy_from_slice(&len.to_le_bytes());
                Ok(())
            }
            None => self.outside(a),
        }
    }
    pub(super) fn text_op(&mut self, op: TextOp, operands: &[Node]) -> Res<u64> {
        let mut v = [0u64; 3];
        for (to, e) in v.iter_mut().zip(operands) {
            *to = self.eval(e)?;
        }
        let within = |i: u64, n: usize| usize::try_from(i).ok().filter(|i| *i <= n);
        match op {
            TextOp::Len => Ok(self.span(v[0])?.len as u64),
            TextOp::Byte => match self.text(v[0])?.get(within(v[1], usize::MAX).unwrap_or(usize::MAX)) {
                Some(b) => Ok(u64::from(*b)),
                None => msg(format!("byte {} of a text of {}", v[1] as i64, self.span(v[0])?.len)),
            },
            TextOp::Part => {
                let s = self.span(v[0])?;
                match within(v[1], s.len).and_then(|from| Some((from, within(v[2], s.len - from)?))) {
                    Some((from, len)) => {
                        Ok(self.texts.number(Span { region: s.region, at: s.at + from, len }))
                    }
                    None => {
                        msg(format!("{} bytes from {} on of a text of {}", v[2] as i64, v[1] as i64, s.len))
                    }
                }
            }
            TextOp::Of(b) => {
                let s = self.shape(b.as_u32() as usize)?;
                let span = Span { region: s.region, at: s.base, len: s.len };
                Ok(self.texts.number(span))
            }
        }
    }
    pub(super) fn compare_texts(&self, op: BinOp, a: u64, b: u64) -> Res<bool> {
        Ok(op.holds(self.text(a)?, self.text(b)?))
    }
    /// The first `n` elements from byte `base` on, in the encoding of the interface.
    pub(super) fn encoded(&mut self, region: usize, base: usize, n: usize) -> Res<Vec<u8>> {
        let numbers = (0..n).map(|i| self.text_at(region, base, i)).collect::<Res<Vec<u64>>>()?;
        let list = numbers.into_iter().map(|t| self.text(t)).collect::<Res<Vec<&[u8]>>>()?;
        Ok(texts::encode(&list))
    }
}
