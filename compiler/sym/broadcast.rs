//! Multidirectional broadcasting of symbolic shapes (ONNX Broadcasting.md).

use super::{Answer, Atom, Dim, SymTable, View};

/// Result of broadcasting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broadcast {
    /// The common shape.
    pub shape: Vec<Dim>,
    /// Pairs that must be equal or have a 1 among them; nothing proves it, so run time checks.
    pub conditions: Vec<(Dim, Dim)>,
    /// Pairs that can only broadcast by being equal, though neither is known not to be 1.
    pub equal: Vec<(Dim, Dim)>,
}

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

/// 1, or 0 for a dim of size 1: the factor of an index into an operand that may have to be repeated.
pub fn stride_factor(dim: Dim) -> Dim {
    Dim::constant(1).min(dim - 1)
}

/// Broadcasts shapes against each other, aligned at their last dims.
pub fn broadcast_shapes(syms: &SymTable, shapes: &[&[Dim]]) -> Result<Broadcast, Mismatch> {
    let rank = shapes.iter().map(|s| s.len()).max().unwrap_or(0);
    let mut out = Broadcast { shape: vec![], conditions: vec![], equal: vec![] };
    for axis in 0..rank {
        let mut d = Dim::constant(1);
        for s in shapes {
            if let Some(i) = (axis + s.len()).checked_sub(rank) {
                d = pair(syms, d, s[i], axis, &mut out)?;
            }
        }
        out.shape.push(d);
    }
    Ok(out)
}

fn pair(syms: &SymTable, a: Dim, b: Dim, axis: usize, out: &mut Broadcast) -> Result<Dim, Mismatch> {
    let one = Dim::constant(1);
    let is = |d: Dim, v: Dim| syms.eq(d, v);
    if is(a, one) == Answer::Yes {
        return Ok(b);
    }
    if is(b, one) == Answer::Yes || is(a, b) == Answer::Yes {
        return Ok(a);
    }
    // min(c, b) with c > 1 is 1 only where b is: they must be equal, that is b <= c.
    for (x, y) in [(a, b), (b, a)] {
        if clipped_to(x).is_some_and(|(inner, c)| inner == y && c > 1) {
            out.equal.push((x, y));
            return Ok(y);
        }
    }
    let (a1, b1) = (is(a, one), is(b, one));
    match (a1, b1) {
        (Answer::No, Answer::No) if is(a, b) == Answer::No => Err(Mismatch { axis, a, b }),
        (Answer::No, _) => {
            out.conditions.push((a, b));
            Ok(a)
        }
        (_, Answer::No) => {
            out.conditions.push((a, b));
            Ok(b)
        }
        _ => {
            out.conditions.push((a, b));
            let d = a.max(b);
            // A size of 0 wins over 1.
            Ok(if syms.is_pos(a) && syms.is_pos(b) { d } else { d * a.min(b).min(1) })
        }
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
