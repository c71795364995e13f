//! Loops around a body, and common parts of forms.

use crate::nest::{Buf, Expr, LoopKind, Module, Reg, Scalar, Stmt, visit};
use crate::sym::{Dim, Sym};

/// Variables and extents, outermost first.
pub(crate) type Loops = Vec<(Sym, Dim)>;

/// A perfect nest of `par` loops from 0 around a body.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ParNest {
    /// Variable and extent, outermost first.
    pub loops: Vec<(Sym, Dim)>,
    /// What is inside.
    pub body: Vec<Stmt>,
}

/// Peels the `par` loops of a kernel.
pub(crate) fn peel(body: &[Stmt]) -> ParNest {
    let (loops, inside) = par_loops(body);
    ParNest { loops, body: inside.to_vec() }
}

/// The `par` loops from 0 of a kernel, and what is inside.
pub(crate) fn par_loops(mut body: &[Stmt]) -> (Loops, &[Stmt]) {
    let mut loops = vec![];
    while let [Stmt::For { kind: LoopKind::Par, var, lo, hi, body: inner }] = body {
        if lo.as_const() != Some(0) {
            break;
        }
        loops.push((*var, *hi));
        body = inner;
    }
    (loops, body)
}

/// Loops from 0 one inside the other, and what is in the innermost.
pub(crate) fn seq_loops(mut s: &Stmt) -> Option<(Loops, &[Stmt])> {
    let mut loops = vec![];
    loop {
        let Stmt::For { kind: LoopKind::Seq, var, lo, hi, body } = s else { return None };
        if lo.as_const() != Some(0) {
            return None;
        }
        loops.push((*var, *hi));
        match body.as_slice() {
            [one @ Stmt::For { .. }] => s = one,
            body => return Some((loops, body)),
        }
    }
}

/// Wraps a body in loops.
pub(crate) fn wrap(loops: &[(Sym, Dim)], body: Vec<Stmt>) -> Vec<Stmt> {
    loops.iter().rev().fold(body, |body, (var, hi)| vec![Stmt::par(*var, *hi, body)])
}

/// A kernel that computes each element of one buffer by one expression.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Map {
    /// The loops.
    pub loops: Vec<(Sym, Dim)>,
    /// The buffer that it stores to.
    pub buf: Buf,
    /// The subscripts.
    pub at: Vec<Dim>,
    /// The value.
    pub value: Expr,
}

/// The kernel as a map, if it is one.
pub(crate) fn as_map(body: &[Stmt]) -> Option<Map> {
    let (loops, [Stmt::Store { buf, at, value }]) = par_loops(body) else { return None };
    Some(Map { loops, buf: *buf, at: at.clone(), value: value.clone() })
}

impl Map {
    /// For each dimension the loop variable that runs over it; `None` for dims of size 1. The whole must be a
    /// full, one-to-one cover of the buffer.
    pub fn cover(&self, m: &Module) -> Option<Vec<Option<Sym>>> {
        cover(m, self.buf, &self.at, &self.loops)
    }
}

/// See [`Map::cover`].
pub(crate) fn cover(m: &Module, buf: Buf, at: &[Dim], loops: &[(Sym, Dim)]) -> Option<Vec<Option<Sym>>> {
    let mut seen = vec![];
    let mut out = vec![];
    for (i, d) in at.iter().zip(&m.bufs[buf].dims) {
        match (i.as_sym(), i.as_const()) {
            (Some(s), _) if loops.iter().any(|(v, hi)| *v == s && hi == d) && !seen.contains(&s) => {
                seen.push(s);
                out.push(Some(s));
            }
            (_, Some(0)) if d.as_const() == Some(1) => out.push(None),
            _ => return None,
        }
    }
    (seen.len() == loops.len()).then_some(out)
}

/// True if loops write each element of a buffer once: as for [`cover`], but several loops may run over one
/// dimension, each over a digit of the position (the groups of a convolution, and the channels of a group).
pub(crate) fn is_one_to_one(m: &Module, buf: Buf, at: &[Dim], loops: &[(Sym, Dim)]) -> bool {
    let mut seen = 0;
    let mut runs_over = |i: &Dim, size: &Dim| {
        let mut rest = *i;
        let mut digits: Vec<(i64, Dim)> = vec![];
        for s in i.syms() {
            let (Some((unit, others)), Some(l)) = (rest.linear_in(s), loops.iter().find(|l| l.0 == s)) else {
                return false;
            };
            let Some(unit) = unit.as_const() else { return false };
            digits.push((unit, l.1));
            rest = others;
        }
        seen += digits.len();
        digits.sort_by_key(|d| d.0);
        let next = |below: Dim, (unit, n): &(i64, Dim)| (below.as_const() == Some(*unit)).then(|| below * *n);
        rest.as_const() == Some(0) && digits.iter().try_fold(Dim::constant(1), next) == Some(*size)
    };
    let whole = at.iter().zip(&m.bufs[buf].dims).all(|(i, d)| runs_over(i, d));
    let distinct = loops.iter().all(|l| at.iter().filter(|d| d.contains(l.0)).count() == 1);
    whole && distinct && seen == loops.len()
}

/// True if a subscript depends on a loop.
pub(crate) fn depends(at: &[Dim], s: Sym) -> bool {
    at.iter().any(|d| d.contains(s))
}

/// The store at the end of a body without other stores.
pub(crate) struct Stored<'a> {
    /// The statements before it.
    pub before: &'a [Stmt],
    /// The buffer that it stores to.
    pub buf: Buf,
    /// The subscripts.
    pub at: &'a [Dim],
    /// The value.
    pub value: &'a Expr,
}

/// A body, or an epilogue, that ends with its only store.
pub(crate) fn stored(body: &[Stmt]) -> Option<Stored<'_>> {
    let [before @ .., Stmt::Store { buf, at, value }] = body else { return None };
    let others = visit::any(before, &mut |s| matches!(s, Stmt::Store { .. }));
    (!others).then_some(Stored { before, buf: *buf, at, value })
}

/// The first store of a body.
pub(crate) fn first_store(body: &[Stmt]) -> Option<(Buf, Vec<Dim>)> {
    let mut found = None;
    visit::walk(body, &mut |s| {
        if let Stmt::Store { buf, at, .. } = s
            && found.is_none()
        {
            found = Some((*buf, at.clone()));
        }
    });
    found
}

/// True for straight-line code: each statement runs once, and no value is carried to the next iteration.
pub(crate) fn is_straight(body: &[Stmt]) -> bool {
    body.iter().all(|s| matches!(s, Stmt::Let { .. } | Stmt::Store { .. }))
}

/// Buffers that sequential loops read: their elements may be read several times.
pub(crate) fn read_in_loops(body: &[Stmt]) -> Vec<Buf> {
    let mut found = vec![];
    visit::walk(body, &mut |s| {
        if let Stmt::For { kind: LoopKind::Seq, body, .. } = s {
            found.extend(visit::loads(body));
        }
    });
    found
}

/// Variables of all sequential loops.
pub(crate) fn seq_vars(body: &[Stmt]) -> Vec<Sym> {
    let mut found = vec![];
    visit::walk(body, &mut |s| {
        if let Stmt::For { kind: LoopKind::Seq, var, .. } = s {
            found.push(*var);
        }
    });
    found
}

/// An accumulator that a nest of sequential loops updates, and the statements after the nest.
pub(super) struct Sum<'a> {
    pub init: Scalar,
    pub acc: Reg,
    pub steps: Loops,
    /// The body of the innermost loop.
    pub step: &'a [Stmt],
    pub tail: &'a [Stmt],
}

/// `acc = c; seq .. { .. }; lets; stores`.
pub(super) fn sum(body: &[Stmt]) -> Option<Sum<'_>> {
    let [Stmt::Acc { reg, lanes: 1, shape, init: Expr::Const(init) }, inner, tail @ ..] = body else {
        return None;
    };
    let (steps, step) = seq_loops(inner)?;
    let straight = tail.iter().all(|s| matches!(s, Stmt::Let { .. } | Stmt::Store { .. }));
    (shape.is_empty() && straight && !tail.is_empty()).then_some(Sum {
        init: *init,
        acc: *reg,
        steps,
        step,
        tail,
    })
}
