//! The end of a register tile: the epilogue, its loads and the store.

use super::Tile;
use super::register::{Block, Cols, unroll};
use crate::nest::{Buf, Expr, Module, Reg, Stmt};
use crate::passes::nest::analysis::form::{self, Contraction, depends};
use crate::passes::nest::analysis::machine::L2;
use crate::passes::nest::analysis::shape::fresh_regs;
use crate::passes::nest::analysis::strides::stride;
use crate::sym::{Dim, Simplifier, Sym};

pub(super) use crate::passes::nest::analysis::machine::LINE;

/// A pass over the accumulators of a tile.
#[derive(Clone, Copy, PartialEq)]
enum Step {
    /// Replaces the accumulator by the epilogue's value.
    Values,
    /// Stores the accumulator.
    Stores,
    Both,
    /// Initialises the accumulator.
    Begins,
}

/// Loads of an epilogue along the columns that differ in each row.
fn row_reads(m: &Module, p: &Contraction, t: &Tile) -> Vec<(Buf, Vec<Dim>)> {
    let mut reads: Vec<(Buf, Vec<Dim>)> = vec![];
    let Some((of, _)) = t.m_row else { return reads };
    for e in p.epilogue.iter().filter_map(|s| s.expr()) {
        e.walk(&mut |e| {
            if let Expr::Load { buf, at } = e
                && depends(at, of)
                && stride(m, *buf, at, t.n) == Some(1)
                && !reads.iter().any(|r| r.0 == *buf && r.1 == *at)
            {
                reads.push((*buf, at.clone()));
            }
        });
    }
    reads
}

/// Whether an epilogue loads data that a second-level cache does not hold: an image is too large for it.
pub(super) fn reads_from_afar(m: &Module, p: &Contraction, t: &Tile) -> bool {
    const NEAR: i64 = L2 / 2;
    let bytes = |b: Buf| {
        m.bufs[b].dims.iter().filter_map(|d| d.as_const()).product::<i64>()
            * i64::from(m.bufs[b].ty.bytes().unwrap_or(0))
    };
    row_reads(m, p, t).iter().any(|r| bytes(r.0) > NEAR)
}

/// Prefetches a row of the epilogue's operands by cache line; each prefetch comes with its row variable.
pub(super) fn reads(m: &mut Module, b: &Block) -> Vec<(Sym, Stmt)> {
    let Block { p, t, row, .. } = *b;
    let Some((of, _)) = t.m_row else { return vec![] };
    let (col, nv) = (b.column(), b.vectors());
    let mut out = vec![];
    for (buf, at) in row_reads(m, p, t) {
        let bytes = i64::from(m.bufs[buf].ty.bytes().unwrap_or(4));
        let step = (LINE / (t.lanes * bytes)).max(1);
        for v in (0..nv).step_by(step as usize) {
            let i = m.syms.loop_var("r", Dim::constant(0), Dim::constant(t.mr.max(1)));
            let put = |s: Sym| if s == t.n { Some(col + v * t.lanes) } else { (s == of).then(|| row + i) };
            let at: Vec<Dim> = at.iter().map(|d| m.syms.simplify(d.subst(&mut |s| put(s)))).collect();
            // Rows without a constant stride would prevent compilation to one tile.
            if m.linear(buf, &at).linear_in(i).is_some() {
                out.push((i, Stmt::Prefetch { buf, at }));
            }
        }
    }
    out
}

/// The epilogue and the store of a tile.
pub(super) fn stores(m: &mut Module, b: &Block, acc: Reg) -> Vec<Stmt> {
    let Block { p, t, .. } = *b;
    // A load stalls after a store to an address with equal low twelve bits: the epilogue's loads along rows
    // precede the first store.
    let whole = b.part.cols.whole(b.vectors(), t.lanes) > 0;
    let apart = whole && !row_reads(m, p, t).is_empty() && stored(m, p) == Some(p.product.ty());
    let steps: &[Step] = if apart { &[Step::Values, Step::Stores] } else { &[Step::Both] };
    steps.iter().flat_map(|step| pass(m, b, acc, *step)).collect()
}

/// Initialises the accumulators of a tile.
pub(super) fn begins(m: &mut Module, b: &Block, acc: Reg) -> Vec<Stmt> {
    pass(m, b, acc, Step::Begins)
}

/// A pass over the accumulators of a tile.
fn pass(m: &mut Module, b: &Block, acc: Reg, step: Step) -> Vec<Stmt> {
    let Block { t, mr, .. } = *b;
    let (zero, lanes, nv) = (Dim::constant(0), t.lanes, b.vectors());
    let (cols, whole) = (b.part.cols, b.part.cols.whole(nv, lanes));
    let i = m.syms.loop_var("r", zero, Dim::constant(mr));
    let mut body = vec![];
    if whole > 0 {
        let v = m.syms.loop_var("v", zero, Dim::constant(whole));
        let inner = vector(m, b, acc, step, (i, v.into(), lanes.into()));
        body.extend(unroll(v, whole, inner));
    }
    let rest = if step == Step::Begins { Step::Begins } else { Step::Both };
    match cols {
        // Partial vectors store the epilogue's value directly.
        Cols::Some(r) if r % lanes != 0 && step != Step::Values => {
            body.extend(vector(m, b, acc, rest, (i, whole.into(), (r % lanes).into())))
        }
        Cols::Guarded(_) => {
            for v in 0..nv {
                let left = (t.n_extent - b.column() - v * lanes).min(Dim::constant(lanes)).max(zero);
                body.extend(vector(m, b, acc, rest, (i, v.into(), left)));
            }
        }
        _ => {}
    }
    unroll(i, mr, body)
}

/// The pass for the first `n` lanes of vector `v` of row `i`.
fn vector(m: &mut Module, b: &Block, acc: Reg, step: Step, (i, v, n): (Sym, Dim, Dim)) -> Vec<Stmt> {
    let Block { p, t, row, .. } = *b;
    let l = m.syms.loop_var("l", Dim::constant(0), n);
    let column = b.column() + v * t.lanes + l;
    let at = |s: Sym| {
        if s == t.n { Some(column) } else { t.m_row.filter(|x| x.0 == s).map(|_| row + i) }
    };
    let sum = vec![Dim::constant(0), i.into(), v];
    let set = |value: Expr| Stmt::Set { reg: acc, at: sum.clone(), value };
    let list = match (step, &p.start) {
        (Step::Begins, Some(start)) => vec![set(start.clone())],
        _ => fresh_regs(m, &p.epilogue),
    };
    let of_step = |s: Stmt| match (step, s) {
        (Step::Stores, Stmt::Store { buf, at, .. }) => Some(Stmt::Store { buf, at, value: Expr::acc(p.acc) }),
        (Step::Stores, _) => None,
        (Step::Values, Stmt::Store { value, .. }) => Some(set(value)),
        (_, s) => Some(s),
    };
    let of_tile = |e: Expr| match e {
        Expr::Acc { reg, .. } if reg == p.acc => Expr::Acc { reg: acc, at: sum.clone(), lane: None },
        e => e,
    };
    let simplifier = Simplifier::new(&m.syms);
    let dim = |d: Dim| simplifier.simplify(d.subst(&mut |s| at(s)));
    let body = list
        .into_iter()
        .filter_map(of_step)
        .map(|s| s.map_dims(&mut |d| dim(d)).rewrite_exprs(&mut |e| of_tile(e)))
        .collect();
    vec![Stmt::vector(t.lanes, l, n, body)]
}

/// The compute type of a contraction's result.
fn stored(m: &Module, p: &Contraction) -> Option<crate::tensor::ElemType> {
    form::stored(&p.epilogue).map(|s| m.type_of(s.value))
}
