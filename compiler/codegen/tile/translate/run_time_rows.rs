//! Addresses of rows at a run-time distance.
//!
//! Unrolled loops access rows whose distance only run time knows: planes of an image with symbolic height and
//! width, rows of scores. With a pointer for each of them, a tile has more pointers than registers, and loops
//! that advance all of them store and reload most. Here the rows share a pointer, the distance is an index
//! register, and factors that addresses cannot have are covered by few further pointers:
//!
//! ```text
//! row   0     1      2        3         4        5        6 ..           8        10 ..
//!       [p]   [p+s]  [p+2*s]  [p+1*3s]  [p+4*s]  [p5]     [p+2*3s]       [p+8*s]  [p10]
//! ```

use super::access::Access;
use super::{Fit, Translate};
use crate::codegen::tile::builder::Count;
use crate::codegen::tile::ir::{Mem, Op, Value};
use crate::codegen::tile::isa;
use crate::sym::Dim;

/// Rows between two pointers: `p + n*s` and `p + n*3s` reach most rows in between.
const APART: i64 = 5;

/// The row of an access: the distance of rows in elements, and the number of the row.
pub(super) type Row = (Dim, i64);

/// The factor of `s` and the scale that reach row `n`, counted from a pointer.
fn scaled(n: i64) -> Option<(i64, u8)> {
    match n {
        1 | 2 | 4 | 8 => Some((1, n as u8)),
        3 | 6 | 12 => Some((3, (n / 3) as u8)),
        _ => None,
    }
}

impl Translate<'_> {
    /// True if rows at a run-time distance share a pointer.
    pub(super) fn shares_rows(&self) -> bool {
        isa::machine(self.b.width()).indexed()
    }
    /// The address of an access, given that of row 0.
    pub(super) fn row(&mut self, a: &Access, mem: Mem) -> Fit<Mem> {
        let Some((distance, n)) = a.row.filter(|r| r.1 != 0) else { return Ok(mem) };
        let size = i64::from(self.size_of(a.stream.0));
        let s = match self.count(distance * size)? {
            Count::Run(s) => s,
            Count::Fixed(_) => return Err("a distance that is no register"),
        };
        if mem.index.is_some() {
            return Ok(Mem { base: self.row_pointer(mem.base, s, n), ..mem });
        }
        for from in [0, n / APART * APART, (n / APART - 1) * APART] {
            if let Some((factor, scale)) = scaled(n - from).filter(|_| from >= 0) {
                let base = self.row_pointer(mem.base, s, from);
                return Ok(Mem { base, index: Some((self.times(s, factor), scale)), ..mem });
            }
        }
        Ok(Mem { base: self.row_pointer(mem.base, s, n), ..mem })
    }
    /// The pointer to row `n`, computed once per block.
    fn row_pointer(&mut self, base: Value, s: Value, n: i64) -> Value {
        if n == 0 {
            return base;
        }
        let key = (base, s, n, self.b.block());
        if let Some(p) = self.rows.get(&key) {
            return *p;
        }
        let before = self.rows.get(&(base, s, n - APART, key.3)).copied();
        let (from, n) = before.map_or((base, n), |p| (p, APART));
        let far = self.times(s, n);
        let begin = self.b.next_value();
        let p = self.b.add(from, far);
        self.b.are_positions(begin);
        self.rows.insert(key, p);
        p
    }
    /// A multiple of a distance, computed once per block.
    fn times(&mut self, s: Value, factor: i64) -> Value {
        if factor == 1 {
            return s;
        }
        let key = (s, s, factor, self.b.block());
        if let Some(v) = self.rows.get(&key) {
            return *v;
        }
        let begin = self.b.next_value();
        let v = match self.numbers(Op::Mul, Count::Run(s), Count::Fixed(factor)) {
            Count::Run(v) => v,
            Count::Fixed(n) => self.b.int(n),
        };
        self.b.are_positions(begin);
        self.rows.insert(key, v);
        v
    }
}
