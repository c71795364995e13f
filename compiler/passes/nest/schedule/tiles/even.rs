//! Partition of a run-time number of rows into tiles of two heights.

use super::Tile;
use super::choice::TALL_ROWS;
use super::rows::common_step;
use crate::nest::Module;
use crate::sym::{Atom, Dim, Sym, SymTable, View};

/// A run-time number of rows in tiles of two heights that differ by one row, without a remainder: the number
/// of tiles follows from the lower height, and as many tiles as rows are left over have one more row. The
/// tiles of a block are consecutive, the higher ones first.
#[derive(Clone, Copy)]
pub(super) struct Even {
    /// Rows of the lower tiles.
    pub low: i64,
    /// Number of tiles, and how many of them are higher.
    pub tiles: Dim,
    pub high: Dim,
    /// All row counts can be partitioned like this; otherwise the partition applies only if there are no more
    /// higher tiles than tiles.
    pub always: bool,
    /// The first tile of the block, and its number of tiles.
    pub first: Dim,
    pub here: Dim,
}

impl Even {
    /// The partition of `count` rows; `None` if other tiles are better, or the number is known.
    pub fn new<P>(m: &Module, t: &Tile<P>, count: Dim) -> Option<Even> {
        if t.together > 1 || count.as_const().is_some() {
            return None;
        }
        let low = if t.mr == TALL_ROWS { t.mr } else { t.mr - 1 };
        if m.syms.range(count).hi.is_some_and(|most| most < low) {
            return None;
        }
        let always = low > 1 && is_even(&m.syms, count, low);
        // Multiples of four, except four itself, are divided into tiles of twelve and eight rows anyway.
        let tall = t.mr == TALL_ROWS && common_step(m, count, TALL_ROWS) < 4;
        // If elements of rows are lanes of vectors, lower tiles have less work per instruction: prefer few
        // tiles, most of them higher.
        let fewest = t.caps.by_lane && low < t.mr;
        let tiles = if fewest { count.ceil_div(low + 1) } else { count.floor_div(low) };
        let high = if fewest { count - tiles * low } else { count.modulo(low) };
        let (tiles, high) = (m.syms.simplify(tiles), m.syms.simplify(high));
        (always || tall).then_some(Even { low, tiles, high, always, first: Dim::constant(0), here: tiles })
    }
    /// Tiles of a block of about `rows` rows.
    pub fn of_block(&self, rows: i64) -> i64 {
        (rows / self.low).max(1)
    }
    /// The first row of the block, if the first of all rows is `from`.
    pub fn row(&self, from: Dim) -> Dim {
        from + self.first * self.low + self.first.min(self.high)
    }
    /// Block `number`.
    pub fn block(self, m: &Module, number: Sym, rows: i64) -> Even {
        let first = Dim::sym(number) * self.of_block(rows);
        let here = (self.tiles - first).min(Dim::constant(self.of_block(rows)));
        Even { first, here: m.syms.simplify(here), ..self }
    }
}

/// True if `count` is a sum of numbers `low` and `low + 1` for all values of its symbols.
pub(crate) fn is_even(syms: &SymTable, count: Dim, low: i64) -> bool {
    let suits = |n: i64| n >= 0 && n % low <= n / low;
    // Sums and multiples of such numbers are such numbers.
    let sum = |d: Dim| match d.view() {
        View::Const(c) => suits(c),
        View::Sum { terms, constant } => {
            let atoms = |t: &[Atom]| t.iter().all(|a| syms.is_nonneg(Dim::atom(a.clone())));
            suits(constant) && terms.iter().all(|t| suits(t.0) && atoms(&t.1))
        }
        View::Overflow => false,
    };
    // So are the rows of a symbolic number of tiles, of which at most that number are higher.
    let tiles = |d: Dim| match d.view() {
        View::Sum { terms, .. } => terms.iter().any(|t| {
            let &(factor, [Atom::Sym(s)]) = &(t.0, &t.1[..]) else { return false };
            let (tiles, more) = (Dim::sym(*s), count - Dim::sym(*s) * low);
            factor == low && syms.is_nonneg(more) && syms.is_nonneg(tiles - more)
        }),
        _ => false,
    };
    // All large numbers are, and the small values of one symbol can be enumerated.
    let large = low * (low - 1);
    if sum(count) || tiles(count) || syms.is_nonneg(count - large) {
        return true;
    }
    let all = count.syms();
    let (Some(s), 1) = (all.first().copied(), all.len()) else { return false };
    let Some(least) = syms.range(s.into()).lo else { return false };
    let at = |d: Dim| syms.simplify(count.subst(&mut |x| (x == s).then_some(d)));
    for v in least..=least + large {
        match at(Dim::constant(v)).as_const() {
            Some(n) if n >= large => return syms.is_nonneg(at(Dim::sym(s) + (v - least)) - large),
            Some(n) if suits(n) => {}
            _ => return false,
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The answer agrees with enumeration for the first values, and is positive only if all values have a
    /// partition.
    #[test]
    fn even_numbers_are_sums_of_both_heights() {
        let mut syms = SymTable::default();
        let n = Dim::sym(syms.param("N"));
        let m = Dim::sym(syms.param("M"));
        let numbers = [
            n * 49,
            (n * 49 + 1).floor_div(2),
            n * 49 + 1,
            n * 12 + m * 13,
            n * 12 + m.min(n),
            n * 12 + m,
            n * m * 49,
            n,
            n + 132,
            n + 131,
            n * 8,
            n * 7 + 20,
            (n * 49).min(Dim::constant(384)),
        ];
        for low in [3, 5, 7, 12] {
            for d in numbers {
                let put = |x: i64| d.subst(&mut |_| Some(Dim::constant(x))).as_const().expect("a number");
                let suits = (0..200).map(put).all(|x| x % low <= x / low);
                let one = d.syms().len() == 1;
                assert!(!is_even(&syms, d, low) || suits, "{d:?} in tiles of {low}");
                assert!(!one || !suits || is_even(&syms, d, low), "{d:?} in tiles of {low}");
            }
        }
        assert!(is_even(&syms, n * 12 + m * 13, 12) && is_even(&syms, n * m * 49, 12));
        assert!(is_even(&syms, n * 12 + m.min(n), 12) && !is_even(&syms, n * 12 + m, 12));
    }
}
