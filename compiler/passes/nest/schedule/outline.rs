//! Divides lists of statements into tiles.
//!
//! Accumulators, the loops that update them and the stores of their results belong together: they are
//! compiled to one function of vector code. A list that contains more is divided:
//!
//! ```text
//! acc %0[6, 2] x8 = 0.0 : f32                     tile {
//! seq k in 0..64 { .. %0[..] = fma(..) .. }         acc %0[6, 2] x8 = 0.0 : f32
//! unroll r in 0..6 { .. y[..] = %0[..] .. }         seq k in 0..64 { .. }
//! acc %1[2, 2] x8 = 0.0 : f32                =>     unroll r in 0..6 { .. }
//! ..                                              }
//!                                                 tile {
//!                                                   acc %1[2, 2] x8 = 0.0 : f32
//! ```

use crate::nest::{Expr, Kernel, LoopKind, Module, Reg, Stmt, visit};

/// Outlines tiles in the body of a scheduled kernel.
pub(super) fn run(m: &mut Module, k: Kernel) {
    let body = std::mem::take(&mut m.kernels[k].body);
    m.kernels[k].body = tiles(body.into_iter().collect()).into();
}

fn tiles(mut body: Vec<Stmt>) -> Vec<Stmt> {
    for s in &mut body {
        if !matches!(s, Stmt::For { kind: LoopKind::Vec(_), .. }) {
            s.bodies_mut().for_each(|b| *b = tiles(std::mem::take(b)));
        }
    }
    let (mut starts, mut i) = (vec![], 0);
    while i < body.len() {
        let n = group(&body[i..]);
        let apart = n > 1 && n < body.len() && is_tile(&body[i..i + n]) && is_closed(&body[i..], n);
        if apart {
            starts.push((i, n));
        }
        i += if apart { n } else { 1 };
    }
    for (i, n) in starts.into_iter().rev() {
        let inside = body.splice(i..i + n, []).collect();
        body.insert(i, Stmt::Tile { body: inside });
    }
    body
}

/// The number of statements that belong to the first accumulators: up to the next ones after other
/// statements, or to the statement after the unrolled loops that store the results.
fn group(body: &[Stmt]) -> usize {
    let unrolled = |s: &Stmt| matches!(s, Stmt::For { kind: LoopKind::Unroll, .. });
    let accs = body.iter().take_while(|s| matches!(s, Stmt::Acc { .. })).count();
    // The initial values directly follow the accumulators.
    let begins = |i: usize| i == accs + 1 && visit::stores(&body[accs..i]).is_empty();
    let ends = |i: &usize| {
        matches!(body[*i], Stmt::Acc { .. }) || unrolled(&body[*i - 1]) && !unrolled(&body[*i]) && !begins(*i)
    };
    match accs {
        0 => 1,
        _ => (accs..body.len()).find(ends).unwrap_or(body.len()),
    }
}

/// True for statements that may be in a tile and contain vectors.
fn is_tile(body: &[Stmt]) -> bool {
    visit::any(body, &mut |s| matches!(s, Stmt::For { kind: LoopKind::Vec(_), .. }))
        && !visit::any(body, &mut |s| !s.may_stand_in_tile())
}

/// True if nothing after the first `n` statements uses what these define.
pub(super) fn is_closed(body: &[Stmt], n: usize) -> bool {
    let own = |r: Reg| {
        body[..n].iter().any(|s| matches!(s, Stmt::Acc { reg, .. } | Stmt::Let { reg, .. } if *reg == r))
    };
    !visit::any(&body[n..], &mut |s| matches!(s, Stmt::Set { reg, .. } if own(*reg)))
        && !visit::any_expr(&body[n..], &mut |e| match e {
            Expr::Reg(r) | Expr::Acc { reg: r, .. } | Expr::Horizontal { reg: r, .. } => own(*r),
            _ => false,
        })
}
