//! Multidirectional broadcasting of symbolic shapes (ONNX Broadcasting.md).

use super::{Answer, Dim, SymTable};

/// Result of broadcasting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broadcast {
    /// The common shape.
    pub shape: Vec<Dim>,
    /// Pairs that must be equal or have a 1 among them; nothing proves it, so run time checks.
    pub conditions: Vec<(Dim, Dim)>,
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
    let mut out = Broadcast { shape: vec![], conditions: vec![] };
    for axis in 0..rank {
        let mut d = Dim::constant(1);
        for s in shapes {
            if let Some(i) = (axis + s.len()).checked_sub(rank) {
                d = pair(syms, d, s[i], axis, &mut out.conditions)?;
            }
        }
        out.shape.push(d);
    }
    Ok(out)
}

fn pair(syms: &SymTable, a: Dim, b: Dim, axis: usize, conditions: &mut Vec<(Dim, Dim)>) -> Result<Dim, Mismatch> {
    let one = Dim::constant(1);
    let is = |d: Dim, v: Dim| syms.eq(d, v);
    if is(a, one) == Answer::Yes {
        return Ok(b);
    }
    if is(b, one) == Answer::Yes || is(a, b) == Answer::Yes {
        return Ok(a);
    }
    let (a1, b1) = (is(a, one), is(b, one));
    match (a1, b1) {
        (Answer::No, Answer::No) if is(a, b) == Answer::No => Err(Mismatch { axis, a, b }),
        (Answer::No, _) => {
            conditions.push((a, b));
            Ok(a)
        }
        (_, Answer::No) => {
            conditions.push((a, b));
            Ok(b)
        }
        _ => {
            conditions.push((a, b));
            let d = a.max(b);
            // A size of 0 wins over 1.
            Ok(if syms.is_pos(a) && syms.is_pos(b) { d } else { d * a.min(b).min(1) })
        }
    }
}
