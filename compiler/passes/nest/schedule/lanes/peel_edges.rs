//! Rows whose elements are contiguous in memory except near the ends, or whose conditions hold except there:
//! images that are reflected, repeated or filled beyond their edges. The inner part of a row has linear
//! positions and no conditions. So has the part of each end that mirrors the row once, or repeats an element.

use super::body::renamed;
use super::vector;
use crate::nest::{BinOp, Expr, LoopKind, Module, Scalar, Stmt};
use crate::passes::nest::analysis::shape::loop_like;
use crate::sym::clamps::Inside;
use crate::sym::{Answer, Dim, Sym};
use crate::tensor::ElemType;

/// A row with an inner part.
pub(super) struct Row {
    /// The statements for the inner part.
    pub inner: Vec<Stmt>,
    inside: Inside,
    /// The parts before and behind it with other simple positions, if there are such.
    beside: [Option<Box<Beside>>; 2],
    /// The loop along the row.
    var: Sym,
    ends: Ends,
}

/// Elements at positions that fall along the row, or are the same.
struct Beside {
    body: Vec<Stmt>,
    inside: Inside,
    kind: LoopKind,
}

/// Whether a body may be in vectors of so many lanes.
pub(super) type MayRun<'a> = (i64, &'a dyn Fn(&Module, &[Stmt]) -> bool);

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
        let row = Row { inner, inside, beside: [None, None], var, ends };
        let (first, end) = row.inner_part(lanes);
        (row.inner != body && m.syms.le(end, first) != Answer::Yes).then_some(row)
    }
    /// Finds simple positions beside the inner part of a row of `extent` elements.
    pub fn find_beside(&mut self, m: &mut Module, body: &[Stmt], extent: Dim, vectors: MayRun) {
        let ends = [(Dim::constant(0), self.inside.first), (self.inside.end, extent)];
        self.beside = ends.map(|part| {
            let same = Beside::same(m, body, self.var, part, vectors);
            same.or_else(|| Beside::mirrored(m, body, self.var, part, vectors)).map(Box::new)
        });
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
        let within = |d: Dim, (lo, hi): (Dim, Dim)| m.syms.simplify(d.min(hi).max(lo));
        let first = within(first, (lo, hi));
        let end = within(end, (first, hi));
        let mut parts: Vec<(&[Stmt], LoopKind, (Dim, Dim))> = vec![];
        for (i, ends) in [(lo, first), (end, hi)].into_iter().enumerate() {
            match &self.beside[i] {
                None => parts.push((body, kind, ends)),
                Some(x) => {
                    let from = within(x.inside.first, ends);
                    let to = within(x.inside.end, (from, ends.1));
                    parts.extend([(body, kind, (ends.0, from)), (&x.body, x.kind, (from, to))]);
                    parts.push((body, kind, (to, ends.1)));
                }
            }
            if i == 0 {
                parts.push((&self.inner, vector(lanes), (first, end)));
            }
        }
        let mut part = |(body, kind, (lo, hi)): (&[Stmt], LoopKind, (Dim, Dim))| {
            let (body, v) = renamed(m, body, self.var, lo, hi);
            Stmt::For { kind, var: v, lo, hi, body }
        };
        parts.into_iter().filter(|(.., (lo, hi))| lo != hi).map(&mut part).collect()
    }
}

impl Beside {
    /// The elements `lo..hi`, if positions are simpler everywhere between these limits.
    fn same(
        m: &mut Module,
        body: &[Stmt],
        var: Sym,
        (lo, hi): (Dim, Dim),
        (lanes, may_run): MayRun,
    ) -> Option<Beside> {
        let own = Dim::sym(loop_like(m, var, lo, hi));
        let back = own.as_sym()?;
        let simple = |d: Dim| {
            let d = m.syms.simplify(d.subst(&mut |s| (s == var).then_some(own)));
            d.subst(&mut |s| (s == back).then(|| Dim::sym(var)))
        };
        let simple: Vec<Stmt> = body.iter().map(|s| s.clone().map_dims(&mut |d| simple(d))).collect();
        let inside = Inside { first: lo, end: hi };
        may_run(m, &simple).then_some(Beside { body: simple, inside, kind: vector(lanes) })
    }
    /// The part of the elements `lo..hi` where positions fall. Backwards from the last one they grow.
    fn mirrored(
        m: &Module,
        body: &[Stmt],
        var: Sym,
        (lo, hi): (Dim, Dim),
        (lanes, may_run): MayRun,
    ) -> Option<Beside> {
        let turn = |d: Dim| d.subst(&mut |s| (s == var).then(|| hi - 1 - var));
        let mut inside = Inside { first: Dim::constant(0), end: hi - lo };
        let turned = |s: &Stmt| s.clone().map_dims(&mut |d| turn(d));
        let backwards: Vec<Stmt> = body.iter().map(turned).collect();
        let mut linear = |s: &Stmt| s.clone().map_dims(&mut |d| d.unclamped(var, (var, 1), &mut inside));
        let plain: Vec<Stmt> = backwards.iter().map(&mut linear).collect();
        if plain == backwards || m.syms.has_loops(inside.first) || m.syms.has_loops(inside.end) {
            return None;
        }
        let body: Vec<Stmt> = plain.iter().map(turned).collect();
        let kind = if may_run(m, &body) { vector(lanes) } else { LoopKind::Seq };
        Some(Beside { body, inside: Inside { first: hi - inside.end, end: hi - inside.first }, kind })
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
