//! Maps whose lanes read at positions that are not linear in them, on levels that load each lane at an offset
//! of its own (`codegen/tile/translate/indexed.rs`). Offsets have 32 bits, so that bounds of the positions
//! must be known. Rows of run-time length run in vectors up to a limit; longer ones run without.

use super::body::renamed;
use super::vector;
use crate::nest::{BinOp, Expr, Module, Stmt, visit};
use crate::sym::{Dim, Range, Sym, Term, View};

/// Maximum elements of a row of run-time length that run in vectors: quotients of such numbers are products
/// of 32 bits.
const LONGEST: i64 = 1 << 15;

/// True if the terms of a position that a loop moves are bounded, in rows of at most [`LONGEST`] elements if
/// only run time knows their number.
pub(super) fn is_bounded(m: &Module, position: Dim, var: Sym) -> bool {
    let View::Sum { terms, .. } = position.view() else { return true };
    let moves = |t: &&Term| Dim::from_terms(vec![(*t).clone()], 0).contains(var);
    let own = Dim::from_terms(terms.iter().filter(moves).cloned().collect(), 0);
    let known = |r: Range| r.lo.is_some() && r.hi.is_some();
    let near = |s| (s == var).then(|| Dim::sym(var).min(LONGEST - 1));
    known(m.syms.range(own)) || known(m.syms.range(own.subst(&mut |s| near(s))))
}

/// True for a row of run-time length that reads at such positions.
pub(super) fn is_limited(m: &Module, body: &[Stmt], (var, extent): (Sym, Dim)) -> bool {
    let mut bent = false;
    visit::each_load(body, &mut |buf, at| bent |= m.linear(buf, at).linear_in(var).is_none());
    bent && m.syms.range(extent).hi.is_none_or(|n| n > LONGEST)
}

/// The vectors of such a row, and what runs in place of them if it is too long.
pub(super) fn row(m: &mut Module, body: &[Stmt], (var, extent): (Sym, Dim), lanes: i64) -> Vec<Stmt> {
    let (zero, near) = (Dim::constant(0), extent.min(LONGEST));
    let (vectors, v) = renamed(m, body, var, zero, near);
    let (scalars, s) = renamed(m, body, var, zero, extent);
    vec![Stmt::If {
        cond: Expr::cmp_index(BinOp::Le, extent, LONGEST),
        then: vec![Stmt::For { kind: vector(lanes), var: v, lo: zero, hi: near, body: vectors }],
        els: vec![Stmt::seq(s, extent, scalars)],
    }]
}
