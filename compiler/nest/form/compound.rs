//! Kernels that have several nests: loops, one after the other, around parallel ones.

use super::loops::par_loops;
use crate::nest::{LoopKind, Stmt, visit};

/// True for a kernel of parallel nests inside other loops.
pub(crate) fn is_compound(body: &[Stmt]) -> bool {
    let compound = |body: &[Stmt]| {
        body.iter().all(|s| matches!(s, Stmt::For { .. } | Stmt::With { .. })) && has_nest(body)
    };
    match par_loops(body).1 {
        // Of chains beside each other, each is one.
        [Stmt::If { then, els, .. }] => compound(then) && (compound(els) || is_compound(els)),
        inside => compound(inside),
    }
}

/// True if a parallel loop stands somewhere in a body.
pub(crate) fn has_nest(body: &[Stmt]) -> bool {
    visit::any(body, &mut |s| matches!(s, Stmt::For { kind: LoopKind::Par, .. }))
}

/// True for a kernel of steps one after the other, each of parallel nests: a recurrence.
pub(crate) fn is_chain(body: &[Stmt]) -> bool {
    let is_nest = |s: &Stmt| matches!(s, Stmt::For { kind: LoopKind::Par, .. });
    let steps =
        |s: &Stmt| matches!(s, Stmt::For { kind: LoopKind::Seq, body, .. } if body.iter().any(is_nest));
    par_loops(body).0.is_empty()
        && body.iter().any(steps)
        && body.iter().all(|s| matches!(s, Stmt::For { .. }))
}
