//! Rows whose elements are contiguous in memory except near the ends, or whose conditions hold except there:
//! images that are reflected, repeated or filled beyond their edges. The inner part of a row has linear
//! positions and no conditions.

use super::body::renamed;
use super::vector;
use crate::nest::{BinOp, Expr, LoopKind, Module, Scalar, Stmt};
use crate::sym::clamps::Inside;
use crate::sym::{Answer, Dim, Sym};
use crate::tensor::ElemType;

/// A row with an inner part.
pub(super) struct Row {
    /// The statements for the inner part.
    pub inner: Vec<Stmt>,
    inside: Inside,
    /// The loop along the row.
    var: Sym,
    ends: Ends,
}

/// How the ends of a row are computed.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Ends {
    /// Element by element.
    Elements,
    /// In vectors, which begin at multiples of their length, as those of the inner part do.
    Vectors,
}

impl Row {
    /// The row of a straight-line body along a loop; `None` if its inner part is not simpler, is known to be
    /// empty, or differs between rows.
    pub fn of(m: &Module, body: &[Stmt], along: (Sym, Dim), lanes: i64, ends: Ends) -> Option<Row> {
        let (var, extent) = along;
        let mut inside = Inside { first: Dim::constant(0), end: extent };
        let mut linear = |s: &Stmt| {
            let s = s.clone().rewrite_exprs(&mut |e| unconditional(e, var, &mut inside));
            s.map_dims(&mut |d| d.unclamped(var, (var, 1), &mut inside))
        };
        let inner: Vec<Stmt> = body.iter().map(&mut linear).collect();
        if m.syms.has_loops(inside.first) || m.syms.has_loops(inside.end) {
            return None;
        }
        let row = Row { inner, inside, var, ends };
        let (first, end) = row.inner_part(lanes);
        (row.inner != body && m.syms.le(end, first) != Answer::Yes).then_some(row)
    }
    /// True if both ends of a row of `extent` elements are known to fit a vector together.
    pub fn has_short_ends(&self, m: &Module, extent: Dim, lanes: i64) -> bool {
        let ends = m.syms.simplify(self.inside.first + extent - self.inside.end);
        m.syms.range(ends).hi.is_some_and(|n| n <= lanes)
    }
    /// The first element of the inner part, and the end of it.
    fn inner_part(&self, lanes: i64) -> (Dim, Dim) {
        let Inside { first, end } = self.inside;
        match self.ends {
            Ends::Elements => (first, end),
            Ends::Vectors => (first.ceil_div(lanes) * lanes, end.floor_div(lanes) * lanes),
        }
    }
    /// Emits the elements `lo..hi` of the row; `lo` is a multiple of `lanes`.
    pub fn part(&self, m: &mut Module, body: &[Stmt], lanes: i64, (lo, hi): (Dim, Dim)) -> Vec<Stmt> {
        let (first, end) = self.inner_part(lanes);
        let kind = if self.ends == Ends::Elements { LoopKind::Seq } else { vector(lanes) };
        let within = |m: &Module, d: Dim, lo: Dim| m.syms.simplify(d.min(hi).max(lo));
        let first = within(m, first, lo);
        let end = within(m, end, first);
        let parts =
            [(body, kind, (lo, first)), (&self.inner, vector(lanes), (first, end)), (body, kind, (end, hi))];
        let mut part = |(body, kind, (lo, hi)): (&[Stmt], LoopKind, (Dim, Dim))| {
            let (body, v) = renamed(m, body, self.var, lo, hi);
            Stmt::For { kind, var: v, lo, hi, body }
        };
        parts.into_iter().filter(|(.., (lo, hi))| lo != hi).map(&mut part).collect()
    }
}

const TRUE: Expr = Expr::Const(Scalar { ty: ElemType::Bool, bits: 1 });

/// The expression without a comparison of indices that holds in the steps `inside`, which it narrows.
fn unconditional(e: Expr, var: Sym, inside: &mut Inside) -> Expr {
    match e {
        Expr::Bin(op, a, b) => match (op, &*a, &*b) {
            (BinOp::And, x, _) if *x == TRUE => *b,
            (BinOp::And, _, x) if *x == TRUE => *a,
            (BinOp::Ge, Expr::Index(x), Expr::Index(y)) if inside.nonneg(*x - *y, var).is_some() => TRUE,
            (BinOp::Gt, Expr::Index(x), Expr::Index(y)) if inside.nonneg(*x - *y - 1, var).is_some() => TRUE,
            (BinOp::Le, Expr::Index(x), Expr::Index(y)) if inside.nonneg(*y - *x, var).is_some() => TRUE,
            (BinOp::Lt, Expr::Index(x), Expr::Index(y)) if inside.nonneg(*y - *x - 1, var).is_some() => TRUE,
            _ => Expr::Bin(op, a, b),
        },
        Expr::Select(c, a, _) if *c == TRUE => *a,
        e => e,
    }
}
