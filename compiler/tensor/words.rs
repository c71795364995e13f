//! Elements of few bits packed into 32-bit words, such that each lane of a vector of words holds elements of
//! its own column.

use super::ConstData;

/// Word `(panel, group, lane)` holds elements `group * per .. group * per + per` of column `panel * width +
/// lane`, where `per = 32 / bits`. Four consecutive elements are in the four bytes, at the same bits of each,
/// so that a shift and a mask produce an operand of a byte dot product: element `e` of a word is in field
/// [`position`]. Element `k` of column `n` is number `offset + n * column + k * depth` of the source.
/// Positions beyond the last column or element are zero, or contain whatever the source has there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Words {
    /// Bits of an element: 2, 4 or 8.
    pub bits: u32,
    /// Columns.
    pub columns: i64,
    /// Elements of a column.
    pub elements: i64,
    /// Columns per panel.
    pub width: i64,
    /// Position of the first element.
    pub offset: i64,
    /// Distance between columns.
    pub column: i64,
    /// Distance between elements of a column.
    pub depth: i64,
    /// Flips the highest bit of each element, which turns signed elements into unsigned ones with a constant
    /// offset.
    pub flip: bool,
    /// The source has the first of two elements of 4 bits in the high bits of a byte: element `i` is its
    /// number `i ^ 1`.
    pub high_first: bool,
}

/// The field of a word, counted from the low bits, that holds its element `e`.
pub fn position(bits: i64, e: i64) -> i64 {
    e % 4 * (8 / bits) + e / 4
}

/// The element of a word in field `p`.
pub fn element(bits: i64, p: i64) -> i64 {
    let quads = 8 / bits;
    p % quads * 4 + p / quads
}

/// Moves the elements of a word, given in order, to their fields.
fn placed(word: u32, bits: i64) -> u32 {
    match bits {
        8 => word,
        4 => {
            let apart = |x: u32| {
                let x = (x | x << 8) & 0x00ff_00ff;
                (x | x << 4) & 0x0f0f_0f0f
            };
            apart(word & 0xffff) | apart(word >> 16) << 4
        }
        _ => (0..32 / bits)
            .fold(0, |w, e| w | (word >> (e * bits) & ((1 << bits) - 1)) << (position(bits, e) * bits)),
    }
}

impl Words {
    /// Elements per word.
    pub fn per(&self) -> i64 {
        i64::from(32 / self.bits)
    }
    /// Panels, groups, lanes.
    pub fn dims(&self) -> Vec<i64> {
        let up = |a: i64, b: i64| (a + b - 1) / b;
        vec![up(self.columns, self.width), up(self.elements, self.per()), self.width]
    }
    /// True if all elements are among the `count` elements of the source.
    pub(super) fn fits(&self, count: u64) -> bool {
        let small = |v: i64| (0..1 << 40).contains(&v);
        let sane = matches!(self.bits, 2 | 4 | 8)
            && (self.bits == 4 || !self.high_first)
            && self.columns > 0
            && self.elements > 0
            && self.width > 0;
        let all = [self.columns, self.elements, self.width, self.offset, self.column, self.depth];
        let end = || {
            i128::from(self.offset)
                + i128::from(self.column) * i128::from(self.columns - 1)
                + i128::from(self.depth) * i128::from(self.elements - 1)
        };
        let last = |i: i128| if self.high_first { i | 1 } else { i };
        sane && all.into_iter().all(small) && last(end()) < i128::from(count)
    }
    /// Passes all words to `sink`, one panel at a time.
    pub(super) fn write(&self, src: &ConstData, sink: &mut dyn FnMut(&[u8])) {
        let data = src.bytes();
        let [panels, groups, width] = self.dims()[..] else { return };
        let bits = i64::from(self.bits);
        let turned =
            if self.flip { (0..self.per()).fold(0u32, |m, i| m | 1 << (i * bits + bits - 1)) } else { 0 };
        let mut words = vec![0u32; (groups * width) as usize];
        let mut out = vec![0u8; words.len() * 4];
        for panel in 0..panels {
            let whole =
                self.rows(&data, panel, &mut words).or_else(|| self.columns(&data, panel, &mut words));
            if whole.is_none() {
                self.each(&data, panel, &mut words);
            }
            for (to, word) in out.as_chunks_mut().0.iter_mut().zip(&words) {
                *to = (word ^ turned).to_le_bytes();
            }
            sink(&out);
        }
    }
    /// The words of a panel whose columns are consecutive in memory and fill whole words. `None` if they do
    /// not.
    fn columns(&self, data: &[u8], panel: i64, words: &mut [u32]) -> Option<()> {
        let (bits, width) = (i64::from(self.bits), self.width as usize);
        if self.depth != 1 || self.offset * bits % 32 != 0 || self.column * bits % 32 != 0 {
            return None;
        }
        words.fill(0);
        for (lane, n) in (0..width).zip(panel * self.width..self.columns) {
            let at = ((self.offset + n * self.column) * bits / 8) as usize;
            let (column, _) = data.get(at..at + words.len() / width * 4)?.as_chunks();
            for (to, word) in words[lane..].iter_mut().step_by(width).zip(column) {
                *to = u32::from_le_bytes(*word);
            }
        }
        let low = 0x0f0f_0f0f;
        match (bits, self.high_first) {
            (4, true) => words.iter_mut().for_each(|w| *w = placed((*w & low) << 4 | *w >> 4 & low, 4)),
            (4, false) => words.iter_mut().for_each(|w| *w = placed(*w, 4)),
            _ => words.iter_mut().for_each(|w| *w = placed(*w, bits)),
        }
        Some(())
    }
    /// The words of a panel, one after the other.
    fn each(&self, data: &[u8], panel: i64, words: &mut [u32]) {
        let (per, bits) = (self.per(), i64::from(self.bits));
        // Elements of a column that are consecutive in memory and fill whole words.
        let whole = self.depth == 1 && (self.offset * bits) % 32 == 0 && (self.column * bits) % 32 == 0;
        let mask = (1u32 << self.bits) - 1;
        let low = 0x0f0f_0f0f;
        let in_order = |w: u32| if self.high_first { (w & low) << 4 | w >> 4 & low } else { w };
        let field = |i: i64| {
            let bit = if self.high_first { i ^ 1 } else { i } * bits;
            u32::from(data.get((bit / 8) as usize).copied().unwrap_or(0)) >> (bit % 8) & mask
        };
        for (group, words) in (0..).zip(words.chunks_exact_mut(self.width as usize)) {
            for (n, to) in (panel * self.width..).zip(words) {
                let first = self.offset + n * self.column + group * per * self.depth;
                let at = (first * bits / 8) as usize;
                *to = match data.get(at..at + 4) {
                    _ if n >= self.columns => 0,
                    Some(w) if whole => placed(in_order(u32::from_le_bytes([w[0], w[1], w[2], w[3]])), bits),
                    _ => {
                        let here = per.min(self.elements - group * per);
                        (0..here).fold(0, |word, i| {
                            word | field(first + i * self.depth) << (position(bits, i) * bits)
                        })
                    }
                };
            }
        }
    }
    /// The words of a panel, in whose rows elements of all columns are consecutive and fill whole bytes: a
    /// row at a time. `None` if they do not.
    fn rows(&self, data: &[u8], panel: i64, words: &mut [u32]) -> Option<()> {
        let (per, bits, width) = (self.per(), i64::from(self.bits), self.width);
        let (first, lanes) = (panel * width, width.min(self.columns - panel * width));
        let bytes = |elements: i64| elements * bits % 8 == 0;
        if self.column != 1 || ![self.offset + first, self.depth, lanes].into_iter().all(bytes) {
            return None;
        }
        let add = match self.bits {
            2 => add_row::<4>,
            4 => add_row::<2>,
            _ => add_row::<1>,
        };
        words.fill(0);
        for (k, at) in (0..self.elements).map(|k| (k, (self.offset + first + k * self.depth) * bits / 8)) {
            let row = data.get(at as usize..(at + lanes * bits / 8) as usize)?;
            let words = &mut words[(k / per * width) as usize..][..lanes as usize];
            add(words, row, (position(bits, k % per) * bits) as u32, self.high_first);
        }
        Some(())
    }
}

/// Adds a row of elements, `PER` of them in each byte, to the fields at `shift` of adjacent words.
fn add_row<const PER: usize>(words: &mut [u32], row: &[u8], shift: u32, high_first: bool) {
    let bits = 8 / PER as u32;
    let swap = u32::from(high_first);
    for (words, byte) in words.as_chunks_mut::<PER>().0.iter_mut().zip(row) {
        for (i, word) in (0..).zip(words) {
            *word |= (u32::from(*byte) >> ((i ^ swap) * bits) & ((1 << bits) - 1)) << shift;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::ElemType;
    use std::sync::Arc;

    /// Checks that every field is the element given by the formula, along the depth and across it.
    #[test]
    fn fields_are_elements() {
        let data: Vec<u8> = (0..7 * 24).map(|i| (i * 37 % 251) as u8).collect();
        for (bits, high_first) in [(2u32, false), (4, false), (4, true), (8, false)] {
            let count = data.len() as i64 * 8 / i64::from(bits);
            let src = Arc::new(ConstData::new(ElemType::U8, vec![data.len() as i64], data.clone()).unwrap());
            let (columns, elements) = (7, count / 7);
            for (column, depth, flip) in [(elements, 1, false), (1, columns, true)] {
                let w =
                    Words { bits, columns, elements, width: 4, offset: 0, column, depth, flip, high_first };
                let made = ConstData::words(src.clone(), w.clone()).unwrap();
                let bytes = made.bytes();
                let per = w.per();
                for n in 0..columns {
                    for k in 0..elements {
                        let i = (offset_of(&w, n, k) ^ i64::from(high_first)) * i64::from(bits);
                        let want = data[(i / 8) as usize] >> (i % 8) & (0xffu32 >> (8 - bits)) as u8;
                        let at = ((n / 4 * w.dims()[1] + k / per) * 4 + n % 4) as usize * 4;
                        let word = u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
                        let want = if flip { want ^ 1 << (bits - 1) } else { want };
                        assert_eq!(
                            (word >> (position(i64::from(bits), k % per) * i64::from(bits))) as u8
                                & (0xffu32 >> (8 - bits)) as u8,
                            want,
                            "{bits} {n} {k}"
                        );
                    }
                }
            }
        }
    }
    #[test]
    fn places() {
        for bits in [2, 4, 8] {
            for e in 0..32 / bits {
                assert_eq!(element(bits, position(bits, e)), e);
                assert_eq!(placed(1 << (e * bits), bits), 1 << (position(bits, e) * bits));
            }
        }
    }
    fn offset_of(w: &Words, n: i64, k: i64) -> i64 {
        w.offset + n * w.column + k * w.depth
    }
}
