//! The code of a function in words; branches and literals are resolved at the end.

use super::table;
use crate::codegen::Map;
use crate::diag::{Failure, Result};

/// A position in the code.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::codegen) struct Label(usize);

/// The encoding of a distance.
#[derive(Clone, Copy)]
enum Field {
    /// 20 bits, `jal`.
    Jump,
    /// 12 bits, branches.
    Branch,
    /// 32 bits in two instructions, `auipc` and a load.
    Literal,
}

/// Range of a branch in bytes.
const NEAR: i64 = 4096;
/// The scratch register for literals.
const SECOND: u32 = 31;
/// Minimum instructions for which a constant is loaded from a literal instead.
const LONG: usize = 4;

/// The words emitted so far.
#[derive(Default)]
pub(in crate::codegen) struct Code {
    words: Vec<u32>,
    labels: Vec<Option<usize>>,
    fixups: Vec<(usize, Label, Field)>,
    pool: Vec<(Label, u64)>,
    pooled: Map<u64, Label>,
}

/// An immediate of 12 bits, as loads and arithmetic have it.
pub(super) fn immediate(x: i64) -> u32 {
    (x as u32 & 0xfff) << 20
}

/// The same, as stores have it.
fn store_immediate(x: i64) -> u32 {
    let x = x as u32;
    (x >> 5 & 0x7f) << 25 | (x & 0x1f) << 7
}

/// True if immediates of 12 bits hold a number.
pub(in crate::codegen) fn is_short(x: i64) -> bool {
    (-2048..2048).contains(&x)
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
    /// Number of words.
    pub(in crate::codegen) fn len(&self) -> u32 {
        self.words.len() as u32
    }
    /// d = op a.
    pub(in crate::codegen) fn two(&mut self, word: u32, d: u32, a: u32) {
        self.push(word | a << 15 | d << 7);
    }
    /// d = a op b of integers.
    pub(in crate::codegen) fn three(&mut self, word: u32, d: u32, a: u32, b: u32) {
        self.push(word | b << 20 | a << 15 | d << 7);
    }
    /// d = a op b of vectors, whose second register comes first.
    pub(super) fn vector(&mut self, word: u32, d: u32, a: u32, b: u32) {
        self.push(word | a << 20 | b << 15 | d << 7);
    }
    /// d = a op x, or a load.
    pub(in crate::codegen) fn short(&mut self, word: u32, d: u32, a: u32, x: i64) {
        self.push(word | immediate(x) | a << 15 | d << 7);
    }
    /// A store.
    pub(in crate::codegen) fn store(&mut self, word: u32, value: u32, base: u32, x: i64) {
        self.push(word | store_immediate(x) | value << 20 | base << 15);
    }
    pub(in crate::codegen) fn jump(&mut self, to: Label) {
        self.fixups.push((self.words.len(), to, Field::Jump));
        self.push(table::JAL);
    }
    /// Branches on a comparison of two registers. The inverse of `word` differs in the lowest bit of its
    /// function.
    pub(in crate::codegen) fn branch(&mut self, word: u32, a: u32, b: u32, to: Label) {
        let near = self.labels[to.0].is_some_and(|t| ((self.words.len() - t) as i64) * 4 < NEAR);
        if near {
            self.fixups.push((self.words.len(), to, Field::Branch));
            self.push(word | b << 20 | a << 15);
        } else {
            // Branches over a jump.
            self.push((word ^ 1 << 12) | b << 20 | a << 15 | branch_distance(8));
            self.jump(to);
        }
    }
    /// Branches over the given number of words.
    pub(super) fn skip(&mut self, word: u32, a: u32, b: u32, words: i64) {
        self.push(word | b << 20 | a << 15 | branch_distance(4 * words));
    }
    /// An integer.
    pub(in crate::codegen) fn int(&mut self, d: u32, x: i64) {
        let made = steps(x);
        if made.len() < LONG {
            for (i, s) in made.iter().enumerate() {
                let from = if i == 0 { 0 } else { d };
                match *s {
                    Step::Upper(x) => self.push(table::LUI | (x as u32) << 12 | d << 7),
                    Step::Add(x) => self.short(table::ADDI, d, from, x),
                    Step::AddWord(x) => self.short(table::ADDIW, d, from, x),
                    Step::Shift(n) => self.short(table::SLLI, d, from, n),
                }
            }
            return;
        }
        let data = x as u64;
        let l = match self.pooled.get(&data) {
            Some(l) => *l,
            None => {
                let l = self.label();
                self.pool.push((l, data));
                self.pooled.insert(data, l);
                l
            }
        };
        self.fixups.push((self.words.len(), l, Field::Literal));
        self.push(table::AUIPC | SECOND << 7);
        self.two(table::LD, d, SECOND);
    }
    /// d = n + x.
    pub(in crate::codegen) fn add(&mut self, d: u32, n: u32, x: i64) {
        if is_short(x) {
            if d != n || x != 0 {
                self.short(table::ADDI, d, n, x);
            }
            return;
        }
        self.int(SECOND, x);
        self.three(table::ADD, d, n, SECOND);
    }
    /// The bytes of the code, followed by the literals.
    pub(in crate::codegen) fn finish(mut self) -> Result<Vec<u8>> {
        if !self.pool.is_empty() && !self.words.len().is_multiple_of(2) {
            self.words.push(0);
        }
        for (l, data) in std::mem::take(&mut self.pool) {
            self.bind(l);
            self.words.extend([data as u32, (data >> 32) as u32]);
        }
        for (at, l, field) in &self.fixups {
            let Some(to) = self.labels[l.0] else {
                return Err(Failure::bug("encoding of a tile", "a branch to nowhere"));
            };
            let distance = (to as i64 - *at as i64) * 4;
            match field {
                Field::Jump if (-(1 << 20)..1 << 20).contains(&distance) => {
                    self.words[*at] |= jump_distance(distance);
                }
                Field::Branch if (-NEAR..NEAR).contains(&distance) => {
                    self.words[*at] |= branch_distance(distance);
                }
                Field::Literal if i32::try_from(distance).is_ok() => {
                    let (upper, lower) = halves(distance);
                    self.words[*at] |= (upper as u32) << 12;
                    self.words[*at + 1] |= immediate(lower);
                }
                _ => return Err(Failure::bug("encoding of a tile", "a branch beyond its reach")),
            }
        }
        Ok(self.words.iter().flat_map(|w| w.to_le_bytes()).collect())
    }
}

/// A step in the computation of an integer constant.
enum Step {
    /// 20 bits above 12 zeros.
    Upper(i64),
    /// Adds 12 bits; to nothing, if it comes first.
    Add(i64),
    /// The same of 32 bits.
    AddWord(i64),
    /// To the left.
    Shift(i64),
}

/// A number of 32 bits as 20 and 12 bits, the lower ones with a sign.
pub(super) fn halves(x: i64) -> (i64, i64) {
    let lower = (x << 52) >> 52;
    (x.wrapping_sub(lower) >> 12, lower)
}

fn steps(x: i64) -> Vec<Step> {
    if is_short(x) {
        return vec![Step::Add(x)];
    }
    if let Ok(word) = i32::try_from(x) {
        let (upper, lower) = halves(i64::from(word));
        let mut made = vec![Step::Upper(upper & 0xf_ffff)];
        if lower != 0 {
            made.push(Step::AddWord(lower));
        }
        return made;
    }
    let (_, lower) = halves(x);
    let rest = x.wrapping_sub(lower);
    let zeros = rest.trailing_zeros();
    let mut made = steps(rest >> zeros);
    made.push(Step::Shift(i64::from(zeros)));
    if lower != 0 {
        made.push(Step::Add(lower));
    }
    made
}

fn branch_distance(x: i64) -> u32 {
    let x = x as u32;
    (x >> 12 & 1) << 31 | (x >> 5 & 0x3f) << 25 | (x >> 1 & 0xf) << 8 | (x >> 11 & 1) << 7
}

fn jump_distance(x: i64) -> u32 {
    let x = x as u32;
    (x >> 20 & 1) << 31 | (x >> 1 & 0x3ff) << 21 | (x >> 11 & 1) << 20 | (x >> 12 & 0xff) << 12
}
