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
    /// The loops as digits of positions of the result; see [`digits`].
    pub fn digits(&self, m: &Module) -> Option<Vec<Digit>> {
        digits(m, self.buf, &self.at, &self.loops)
    }
}

/// See [`Map::cover`].
pub(crate) fn cover(m: &Module, buf: Buf, at: &[Dim], loops: &[(Sym, Dim)]) -> Option<Vec<Option<Sym>>> {
    let mut out = vec![None; at.len()];
    for d in digits(m, buf, at, loops)? {
        if out[d.dim].replace(d.var).is_some() {
            return None;
        }
    }
    Some(out)
}

/// A loop whose variable is a digit of the position along one dimension: `position / unit mod extent`.
pub(crate) struct Digit {
    /// The loop's variable.
    pub var: Sym,
    /// The dimension.
    pub dim: usize,
    unit: i64,
    /// None for the highest digit, which needs no remainder.
    extent: Option<Dim>,
}

impl Digit {
    /// The variable's value at a position of the buffer.
    pub(crate) fn at(&self, position: &[Dim]) -> Dim {
        let quotient = position[self.dim].floor_div(Dim::constant(self.unit));
        self.extent.map_or(quotient, |n| quotient.modulo(n))
    }
}

/// The loops as digits of positions, if they write each element of a buffer once: as for [`cover`], but several
/// loops may run over one dimension (the groups of a convolution, and the channels of a group).
pub(crate) fn digits(m: &Module, buf: Buf, at: &[Dim], loops: &[(Sym, Dim)]) -> Option<Vec<Digit>> {
    let mut out = vec![];
    for (dim, (i, size)) in at.iter().zip(&m.bufs[buf].dims).enumerate() {
        out.extend(digits_along(dim, *i, *size, loops)?);
    }
    let distinct = loops.iter().all(|l| out.iter().filter(|d| d.var == l.0).count() == 1);
    (distinct && out.len() == loops.len()).then_some(out)
}

/// The loops of a subscript `i`, if together they take each value below `size` once.
fn digits_along(dim: usize, i: Dim, size: Dim, loops: &[(Sym, Dim)]) -> Option<Vec<Digit>> {
    let mut rest = i;
    let mut out: Vec<Digit> = vec![];
    for var in i.syms() {
        let (unit, others) = rest.linear_in(var)?;
        let extent = loops.iter().find(|l| l.0 == var)?.1;
        out.push(Digit { var, dim, unit: unit.as_const()?, extent: Some(extent) });
        rest = others;
    }
    out.sort_by_key(|d| d.unit);
    let mut below = Dim::constant(1);
    for d in &out {
        if below.as_const() != Some(d.unit) {
            return None;
        }
        below = below * d.extent?;
    }
    if let Some(highest) = out.last_mut() {
        highest.extent = None;
    }
    (rest.as_const() == Some(0) && below == size).then_some(out)
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
