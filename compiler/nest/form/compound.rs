//! Compound kernels: sequences of parallel nests, possibly inside loops.

use super::loops::par_loops;
use crate::nest::{Body, LoopKind, Stmt, visit};
use crate::sym::Sym;

/// A part of a compound kernel.
pub(crate) enum Part {
    /// A nest, or statements without one, equivalent to a separate kernel.
    Nest(Body),
    /// A statement around parts.
    Around {
        /// The statement, its bodies empty.
        stmt: Stmt,
        /// The parts of each body.
        bodies: Vec<Vec<Part>>,
        /// The loop that repeats the parts, if the statement is one.
        again: Option<Sym>,
    },
}

/// Splits the body of a compound kernel into parts.
pub(crate) fn parts(body: Vec<Stmt>) -> Vec<Part> {
    body.into_iter().map(part).collect()
}

fn part(mut s: Stmt) -> Part {
    let (around, again) = match &s {
        Stmt::For { kind: LoopKind::Seq | LoopKind::Private, var, body, .. } => (has_nest(body), Some(*var)),
        Stmt::For { body, .. } => (is_compound(body), None),
        Stmt::If { then: body, .. } | Stmt::With { body, .. } => (has_nest(body), None),
        _ => (false, None),
    };
    if !around {
        return Part::Nest(vec![s].into());
    }
    let bodies = s.bodies_mut().map(|body| parts(std::mem::take(body))).collect();
    Part::Around { stmt: s, bodies, again }
}

/// True for a kernel of parallel nests inside other loops.
pub(crate) fn is_compound(body: &[Stmt]) -> bool {
    let compound = |body: &[Stmt]| {
        body.iter().all(|s| matches!(s, Stmt::For { .. } | Stmt::With { .. })) && has_nest(body)
    };
    match par_loops(body).1 {
        // Of parallel chains, each is compound.
        [Stmt::If { then, els, .. }] => compound(then) && (compound(els) || is_compound(els)),
        inside => compound(inside),
    }
}

/// True if a body contains a parallel loop.
fn has_nest(body: &[Stmt]) -> bool {
    visit::any(body, &mut |s| matches!(s, Stmt::For { kind: LoopKind::Par, .. }))
}

/// True for a sequential loop of parallel nests: a recurrence.
pub(crate) fn is_chain(body: &[Stmt]) -> bool {
    let is_nest = |s: &Stmt| matches!(s, Stmt::For { kind: LoopKind::Par, .. });
    let steps =
        |s: &Stmt| matches!(s, Stmt::For { kind: LoopKind::Seq, body, .. } if body.iter().any(is_nest));
    par_loops(body).0.is_empty()
        && body.iter().any(steps)
        && body.iter().all(|s| matches!(s, Stmt::For { .. }))
}
