//! The code of a function in words; branches and literals are resolved at the end.

use super::table;
use crate::codegen::Map;
use crate::diag::{Failure, Result};

/// A position in the code.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::codegen) struct Label(usize);

/// The field of an instruction that holds a distance in words.
#[derive(Clone, Copy)]
enum Field {
    /// 26 bits from bit 0 on.
    Branch,
    /// 19 bits from bit 5 on.
    Near,
}

/// The words emitted so far.
#[derive(Default)]
pub(in crate::codegen) struct Code {
    words: Vec<u32>,
    labels: Vec<Option<usize>>,
    fixups: Vec<(usize, Label, Field)>,
    pool: Vec<(Label, [u32; 4])>,
    pooled: Map<[u32; 4], Label>,
}

impl Code {
    pub(in crate::codegen) fn label(&mut self) -> Label {
        self.labels.push(None);
        Label(self.labels.len() - 1)
    }
    /// Binds a label to the end of the code.
    pub(in crate::codegen) fn bind(&mut self, l: Label) {
        self.labels[l.0] = Some(self.words.len());
    }
    pub(in crate::codegen) fn push(&mut self, word: u32) {
        self.words.push(word);
    }
    /// d = op n.
    pub(in crate::codegen) fn two(&mut self, word: u32, d: u32, n: u32) {
        self.push(word | n << 5 | d);
    }
    /// d = n op m.
    pub(in crate::codegen) fn three(&mut self, word: u32, d: u32, n: u32, m: u32) {
        self.push(word | m << 16 | n << 5 | d);
    }
    pub(super) fn jump(&mut self, to: Label) {
        self.fixups.push((self.words.len(), to, Field::Branch));
        self.push(table::BRANCH);
    }
    pub(in crate::codegen) fn jump_if(&mut self, condition: u32, to: Label) {
        self.fixups.push((self.words.len(), to, Field::Near));
        self.push(table::BRANCH_IF | condition);
    }
    /// Loads 16 bytes from a literal after the code.
    pub(super) fn literal(&mut self, d: u32, data: [u32; 4]) {
        let l = match self.pooled.get(&data) {
            Some(l) => *l,
            None => {
                let l = self.label();
                self.pool.push((l, data));
                self.pooled.insert(data, l);
                l
            }
        };
        self.fixups.push((self.words.len(), l, Field::Near));
        self.push(table::LOAD_LITERAL | d);
    }
    /// An integer.
    pub(in crate::codegen) fn int(&mut self, d: u32, x: i64) {
        let part = |k: u32| (x as u64 >> (16 * k)) as u32 & 0xffff;
        let ones = (0..4).filter(|k| part(*k) == 0xffff).count();
        let zeros = (0..4).filter(|k| part(*k) == 0).count();
        let (first, rest) = if ones > zeros { (table::MOVN, 0xffff) } else { (table::MOVZ, 0) };
        let mut begun = false;
        for k in (0..4).filter(|k| part(*k) != rest) {
            let field = |x: u32| k << 21 | x << 5 | d;
            if begun {
                self.push(table::MOVK | field(part(k)));
            } else {
                self.push(first | field(part(k) ^ rest));
                begun = true;
            }
        }
        if !begun {
            self.push(first | d);
        }
    }
    /// d = n + x.
    pub(super) fn add(&mut self, d: u32, n: u32, x: i64) {
        let size = x.unsigned_abs();
        if size >= 1 << 24 {
            // The second scratch register, since the first one may be `n`.
            self.int(17, x);
            self.three(table::ADD, d, n, 17);
            return;
        }
        let word = if x < 0 { table::SUB_IMM } else { table::ADD_IMM };
        let (high, low) = ((size >> 12) as u32, size as u32 & 0xfff);
        let mut from = n;
        if high != 0 {
            self.two(word | table::IMM_HIGH | high << 10, d, from);
            from = d;
        }
        if low != 0 || from != d {
            self.two(word | low << 10, d, from);
        }
    }
    /// Number of words.
    pub(in crate::codegen) fn len(&self) -> u32 {
        self.words.len() as u32
    }
    /// The bytes of the code, followed by the literals.
    pub(in crate::codegen) fn finish(mut self) -> Result<Vec<u8>> {
        if !self.pool.is_empty() {
            while !self.words.len().is_multiple_of(4) {
                self.words.push(0);
            }
        }
        for (l, data) in std::mem::take(&mut self.pool) {
            self.bind(l);
            self.words.extend(data);
        }
        for (at, l, field) in &self.fixups {
            let Some(to) = self.labels[l.0] else {
                return Err(Failure::bug("encoding of a tile", "a branch to nowhere"));
            };
            let distance = to as i64 - *at as i64;
            let (bits, shift) = match field {
                Field::Branch => (26, 0),
                Field::Near => (19, 5),
            };
            if distance < -(1 << (bits - 1)) || distance >= 1 << (bits - 1) {
                return Err(Failure::bug("encoding of a tile", "a branch beyond its reach"));
            }
            self.words[*at] |= (distance as u32 & ((1 << bits) - 1)) << shift;
        }
        Ok(self.words.iter().flat_map(|w| w.to_le_bytes()).collect())
    }
}
