//! Last vectors of rows on levels whose vectors are partial only if the number of lanes is known at compile
//! time, as those of short elements with AVX2: a version for each number. Without these, every vector of a
//! row's end branches on the number (`codegen/tile/translate/loops.rs`).
//!
//! ```text
//! seq e in 0..min(1, mod(W, 4)) {            seq e in 0..min(1, mod(W, 4)) {
//!   acc %0 x4 = 0.0 : f32                      if mod(W, 4) == 1 {
//!   seq k in 0..9 {                              acc %0 x4 = 0.0 : f32
//!     vec(4) l in 0..mod(W, 4) { .. }    =>      seq k in 0..9 { vec(4) l in 0..1 { .. } }
//!   }                                            vec(4) l in 0..1 { .. }
//!   vec(4) l in 0..mod(W, 4) { .. }            } else { if mod(W, 4) == 2 { .. } else { .. } }
//! }                                          }
//! ```

use crate::nest::{BinOp, Expr, Kernel, LoopKind, Module, Stmt, visit};
use crate::passes::nest::analysis::shape::fresh_regs;
use crate::passes::nest::schedule::outline;
use crate::sym::Dim;

/// Makes the versions in the body of a scheduled kernel.
pub(super) fn run(m: &mut Module, k: Kernel) {
    let body = std::mem::take(&mut m.kernels[k].body);
    m.kernels[k].body = versions(m, body.into_iter().collect(), None).into();
}

/// `iterations`: those of the innermost loop around the list.
fn versions(m: &mut Module, mut body: Vec<Stmt>, iterations: Option<Dim>) -> Vec<Stmt> {
    let Some((lanes, n)) = body.iter().find_map(|s| of_vectors(m, s)) else {
        for s in &mut body {
            let inner = match s {
                Stmt::For { hi, .. } => Some(*hi),
                _ => iterations,
            };
            if !matches!(s, Stmt::Tile { .. }) {
                s.bodies_mut().for_each(|b| *b = versions(m, std::mem::take(b), inner));
            }
        }
        return body;
    };
    let has = |s: &Stmt| visit::any(std::slice::from_ref(s), &mut |s| has_lanes(s, n));
    let (Some(mut first), Some(mut last)) = (body.iter().position(has), body.iter().rposition(has)) else {
        return body;
    };
    // Accumulators belong to the vectors that update them.
    while first > 0 && matches!(body[first - 1], Stmt::Acc { .. }) {
        first -= 1;
    }
    // So do the statements that use what a version defines.
    while !outline::is_closed(&body[first..], last + 1 - first) {
        last += 1;
    }
    let part = body[first..=last].to_vec();
    // Where there may be no lanes, the statements between the vectors run all the same.
    let some = iterations == Some(m.syms.simplify(n.min(1)));
    let mut all = if some { None } else { Some(part.clone()) };
    for count in (1..lanes).rev() {
        let then = with_lanes(m, &part, n, count);
        all = Some(match all {
            None => then,
            Some(els) => vec![Stmt::If { cond: Expr::cmp_index(BinOp::Eq, n, count), then, els }],
        });
    }
    body.splice(first..=last, all.unwrap_or(part));
    body
}

/// The length of a vector, or of unrolled ones, whose number of lanes is a run-time value below it, and this
/// number.
fn of_vectors(m: &Module, s: &Stmt) -> Option<(i64, Dim)> {
    match s {
        Stmt::For { kind: LoopKind::Vec(lanes), lo, hi, .. } => {
            let (lanes, range) = (i64::from(*lanes), m.syms.range(*hi));
            let below = range.hi.is_some_and(|n| n < lanes) && range.lo.is_some_and(|n| n >= 0);
            (hi.as_const().is_none() && lo.as_const() == Some(0) && below).then_some((lanes, *hi))
        }
        Stmt::For { kind: LoopKind::Unroll, body, .. } => body.iter().find_map(|s| of_vectors(m, s)),
        _ => None,
    }
}

/// True for a vector with this number of lanes.
fn has_lanes(s: &Stmt, n: Dim) -> bool {
    matches!(s, Stmt::For { kind: LoopKind::Vec(_), hi, .. } if *hi == n)
}

/// A copy whose vectors of `n` lanes have `count` of them.
fn with_lanes(m: &mut Module, part: &[Stmt], n: Dim, count: i64) -> Vec<Stmt> {
    let mut copy = fresh_regs(m, part);
    copy.iter_mut().for_each(|s| set_lanes(m, s, n, count));
    copy
}

fn set_lanes(m: &mut Module, s: &mut Stmt, n: Dim, count: i64) {
    let found = has_lanes(s, n);
    if let Stmt::For { var, hi, .. } = s
        && found
    {
        *hi = count.into();
        m.syms.set_loop_range(*var, Dim::constant(0), *hi);
    }
    s.bodies_mut().flatten().for_each(|s| set_lanes(m, s, n, count));
}
