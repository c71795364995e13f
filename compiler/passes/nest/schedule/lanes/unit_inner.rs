//! Rows across an inner extent that only run time knows, which may be one: vectors along that extent would
//! have a single lane then. The elements of a row are adjacent in this case, and vectors run along them.

use crate::nest::{BinOp, Buf, Expr, LoopKind, Module, Stmt, visit};
use crate::passes::nest::analysis::shape::{ParNest, fresh_regs, in_one};
use crate::sym::{Dim, Sym, View};

/// A row for an inner extent of one: the condition, and the statements inside the other loops of the nest.
pub(super) struct UnitInner {
    pub cond: Expr,
    pub body: Vec<Stmt>,
}

/// The row of a nest whose vectors run along `var`, if all that its loops access would be adjacent. The loops
/// run over `var` as well, so that every access is in range whatever the extent is.
pub(super) fn choose(m: &mut Module, nest: &ParNest, (var, extent): (Sym, Dim)) -> Option<UnitInner> {
    if !may_be_one(extent) || nest.loops.iter().all(|l| l.0 == var) {
        return None;
    }
    if visit::any_expr(&nest.body, &mut |e| matches!(e, Expr::With { .. })) {
        return None;
    }
    let has_loops = |body: &[Stmt]| visit::any(body, &mut |s| matches!(s, Stmt::For { .. }));
    let mut body = vec![];
    for s in &nest.body {
        body.push(match s {
            Stmt::For { kind: LoopKind::Seq, var: element, lo, hi, body }
                if lo.as_const() == Some(0) && !has_loops(body) =>
            {
                joined(m, (*element, *hi), body, (var, extent))?
            }
            s if has_loops(std::slice::from_ref(s)) => return None,
            s => s.clone().map_dims(&mut |d| first(d, var)),
        });
    }
    let cond = Expr::cmp_index(BinOp::Eq, extent, 1);
    Some(UnitInner { cond, body: fresh_regs(m, &body) })
}

/// False for constants and for multiples of a constant, such as an extent into which channels are joined.
fn may_be_one(extent: Dim) -> bool {
    match extent.view() {
        View::Sum { terms: [(factor, _)], constant: 0 } => *factor == 1,
        View::Sum { .. } => true,
        _ => false,
    }
}

/// What does not depend on the element, at the only iteration of `var`.
fn first(d: Dim, var: Sym) -> Dim {
    d.subst(&mut |s| (s == var).then(|| Dim::constant(0)))
}

/// One loop in place of one over elements and `var`, if memory runs on.
fn joined(
    m: &mut Module,
    (element, count): (Sym, Dim),
    body: &[Stmt],
    (var, extent): (Sym, Dim),
) -> Option<Stmt> {
    let (zero, all) = (Dim::constant(0), count * extent);
    let v = m.syms.loop_var("i", zero, all);
    let moves = |at: &[Dim]| at.iter().any(|d| d.contains(element));
    let put = |at: &[Dim]| -> Vec<Dim> {
        let both = |d: &Dim| in_one(*d, (element, var), extent, v);
        if moves(at) { at.iter().map(both).collect() } else { at.iter().map(|d| first(*d, var)).collect() }
    };
    let mut adjacent = true;
    let mut check = |buf: Buf, at: &[Dim]| {
        let step = || m.linear(buf, &put(at)).linear_in(v).and_then(|l| l.0.as_const());
        adjacent &= !moves(at) || step() == Some(1);
    };
    visit::each_store(body, &mut check);
    visit::each_load(body, &mut check);
    if !adjacent {
        return None;
    }
    let number = |d: Dim| first(d, var).subst(&mut |s| (s == element).then(|| Dim::sym(v)));
    let mut read = |e: Expr| match e {
        Expr::Load { buf, at } => Expr::Load { buf, at: put(&at) },
        Expr::Index(d) => Expr::Index(number(d)),
        e => e,
    };
    let moved = |s: &Stmt| match s.clone().rewrite_exprs(&mut read) {
        Stmt::Store { buf, at, value } => Stmt::Store { buf, at: put(&at), value },
        s => s,
    };
    let body = body.iter().map(moved).collect();
    Some(Stmt::For { kind: LoopKind::Seq, var: v, lo: zero, hi: all, body })
}
