//! Multidirectional broadcasting of symbolic shapes (ONNX Broadcasting.md).
//!
//! A condition is a fact for all later proofs: a dim that was broadcast to another one is 1 or equal to it
//! ([`SymTable::broadcasts_to`], transitive). The sizes of a chain of residual additions therefore stay as
//! small as the first of them, although nothing proves that the operands are equal.

use super::{Answer, Atom, Dim, SymTable, View};
use std::collections::HashSet;

/// Two dims that can never broadcast.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// Axis of the common shape.
    pub axis: usize,
    /// One dim.
    pub a: Dim,
    /// The other.
    pub b: Dim,
}

/// Largest formula of a common size that is kept as it is; a larger one becomes a derived symbol.
const KEPT: u32 = 16;

/// 1, or 0 for a dim of size 1: the factor of an index into an operand that may be broadcast.
pub fn stride_factor(dim: Dim) -> Dim {
    Dim::constant(1).min(dim - 1)
}

/// True if `d` is the [`stride_factor`] of a size known only at run time: 1, or 0 where the size is 1. (It is
/// -1 where there are no elements, and hence no index.)
pub fn is_factor(syms: &SymTable, d: Dim) -> bool {
    let r = syms.range(d);
    d.as_const().is_none() && r.lo >= Some(-1) && r.hi.is_some_and(|h| h <= 1)
}

impl SymTable {
    /// Broadcasts shapes, aligned at their last dims. Compatibility that cannot be proven is recorded as a
    /// condition.
    pub fn broadcast(&mut self, shapes: &[&[Dim]]) -> Result<Vec<Dim>, Mismatch> {
        let rank = shapes.iter().map(|s| s.len()).max().unwrap_or(0);
        let mut out = vec![];
        for axis in 0..rank {
            let mut d = Dim::constant(1);
            for s in shapes {
                if let Some(i) = (axis + s.len()).checked_sub(rank) {
                    d = self.broadcast_dims(d, s[i], axis)?;
                }
            }
            out.push(d);
        }
        Ok(out)
    }
    /// The common size of two dims.
    fn broadcast_dims(&mut self, a: Dim, b: Dim, axis: usize) -> Result<Dim, Mismatch> {
        let one = Dim::constant(1);
        let (a1, b1) = (self.eq(a, one), self.eq(b, one));
        if a1 == Answer::Yes {
            return Ok(b);
        }
        let equal = self.eq(a, b);
        if b1 == Answer::Yes || equal == Answer::Yes || self.broadcasts_to(b, a) {
            return Ok(a);
        }
        if self.broadcasts_to(a, b) {
            return Ok(b);
        }
        // min(c, b) with c > 1 is 1 only if b is 1. Hence they must be equal, that is, b <= c.
        for (x, y) in [(a, b), (b, a)] {
            if clipped_to(x).is_some_and(|(inner, c)| inner == y && c > 1) {
                self.equate(x, y);
                return Ok(y);
            }
        }
        match (a1, b1) {
            (Answer::No, Answer::No) if equal == Answer::No => Err(Mismatch { axis, a, b }),
            (Answer::No, Answer::No) => {
                self.equate(a, b);
                self.below.extend([(a, b), (b, a)]);
                Ok(if b.size() < a.size() { b } else { a })
            }
            (Answer::No, _) => {
                self.require_broadcast(a, b);
                self.below.push((b, a));
                Ok(a)
            }
            (_, Answer::No) => {
                self.require_broadcast(a, b);
                self.below.push((a, b));
                Ok(b)
            }
            _ => {
                self.require_broadcast(a, b);
                let most = a.max(b);
                // A size of 0 takes precedence over 1.
                let common = if self.is_pos(a) && self.is_pos(b) { most } else { most * a.min(b).min(1) };
                let common = if common.size() > KEPT { self.name_extent(common, "common") } else { common };
                self.below.extend([(a, common), (b, common)]);
                Ok(common)
            }
        }
    }
    /// Records that `d` must be 1 or equal to `size`.
    pub fn require_repeatable(&mut self, d: Dim, size: Dim) {
        self.require_broadcast(d, size);
        self.require_at_most(d, size.max(1));
        self.below.push((d, size));
    }
    /// True if conditions establish that `a` is 1 or equal to `b`.
    pub fn broadcasts_to(&self, a: Dim, b: Dim) -> bool {
        let (mut seen, mut open) = (HashSet::from([a]), vec![a]);
        while let Some(x) = open.pop() {
            for (_, y) in self.below.iter().filter(|f| f.0 == x) {
                if *y == b {
                    return true;
                }
                if seen.insert(*y) {
                    open.push(*y);
                }
            }
        }
        false
    }
}

/// `(d, c)` if the dim is `min(c, d)` for a number c.
pub fn clipped_to(x: Dim) -> Option<(Dim, i64)> {
    let View::Sum { terms: [(1, atoms)], constant: 0 } = x.view() else { return None };
    let [Atom::Min(v)] = atoms.as_slice() else { return None };
    match v.as_slice() {
        [p, q] => p.as_const().map(|c| (*q, c)).or_else(|| q.as_const().map(|c| (*p, c))),
        _ => None,
    }
}
