//! The end of a register tile: the epilogue and the store, and what the epilogue reads.

use super::Tile;
use super::register::{Cols, unroll};
use crate::nest::{Buf, Expr, Module, Reg, Stmt};
use crate::passes::nest::analysis::form::{self, Contraction, depends};
use crate::passes::nest::analysis::machine::L2;
use crate::passes::nest::analysis::shape::fresh_regs;
use crate::passes::nest::analysis::strides::stride;
use crate::sym::{Dim, Sym};

pub(super) use crate::passes::nest::analysis::machine::LINE;

/// What a pass over the sums of a tile does.
#[derive(Clone, Copy, PartialEq)]
enum Step {
    /// Puts the epilogue's value in the place of the sum.
    Values,
    /// Stores what stands there.
    Stores,
    Both,
    /// Puts what the sum begins with there.
    Begins,
}

/// What an epilogue reads along the columns, other elements in each row.
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

/// Whether an epilogue reads what a second-level cache does not keep: an image is large even if there is only
/// one.
pub(super) fn reads_from_afar(m: &Module, p: &Contraction, t: &Tile) -> bool {
    const NEAR: i64 = L2 / 2;
    let bytes = |b: Buf| {
        m.bufs[b].dims.iter().filter_map(|d| d.as_const()).product::<i64>()
            * i64::from(m.bufs[b].ty.bytes().unwrap_or(0))
    };
    row_reads(m, p, t).iter().any(|r| bytes(r.0) > NEAR)
}

/// Prefetches what the epilogue of the tile at `row` and `col` reads in a row, line by line: each with the
/// variable that stands for the row.
pub(super) fn reads(
    m: &mut Module,
    p: &Contraction,
    t: &Tile,
    row: Dim,
    col: Dim,
    nv: i64,
) -> Vec<(Sym, Stmt)> {
    let Some((of, _)) = t.m_row else { return vec![] };
    let mut out = vec![];
    for (buf, at) in row_reads(m, p, t) {
        let bytes = i64::from(m.bufs[buf].ty.bytes().unwrap_or(4));
        let step = (LINE / (t.lanes * bytes)).max(1);
        for v in (0..nv).step_by(step as usize) {
            let i = m.syms.loop_var("r", Dim::constant(0), Dim::constant(t.mr.max(1)));
            let put = |s: Sym| if s == t.n { Some(col + v * t.lanes) } else { (s == of).then(|| row + i) };
            let at: Vec<Dim> = at.iter().map(|d| m.syms.simplify(d.subst(&mut |s| put(s)))).collect();
            // Rows that memory does not follow in equal steps would take the loop out of its tile.
            if m.linear(buf, &at).linear_in(i).is_some() {
                out.push((i, Stmt::Prefetch { buf, at }));
            }
        }
    }
    out
}

/// The epilogue and the store of a tile whose first column is `col`.
#[allow(clippy::too_many_arguments)]
pub(super) fn stores(
    m: &mut Module,
    p: &Contraction,
    t: &Tile,
    acc: Reg,
    row: Dim,
    mr: i64,
    col: Dim,
    nv: i64,
    cols: Cols,
) -> Vec<Stmt> {
    // A load waits for a store just before it to an address that ends in the same twelve bits: all that an
    // epilogue reads row by row comes before the first store.
    let whole = cols.whole(nv, t.lanes) > 0;
    let apart = whole && !row_reads(m, p, t).is_empty() && stored(m, p) == Some(p.product.ty());
    let steps: &[Step] = if apart { &[Step::Values, Step::Stores] } else { &[Step::Both] };
    passes(m, p, t, steps, acc, row, mr, col, nv, cols)
}

/// What the sums of a tile begin with.
#[allow(clippy::too_many_arguments)]
pub(super) fn begins(
    m: &mut Module,
    p: &Contraction,
    t: &Tile,
    acc: Reg,
    row: Dim,
    mr: i64,
    col: Dim,
    nv: i64,
    cols: Cols,
) -> Vec<Stmt> {
    passes(m, p, t, &[Step::Begins], acc, row, mr, col, nv, cols)
}

/// Passes over the sums of a tile.
#[allow(clippy::too_many_arguments)]
fn passes(
    m: &mut Module,
    p: &Contraction,
    t: &Tile,
    steps: &[Step],
    acc: Reg,
    row: Dim,
    mr: i64,
    col: Dim,
    nv: i64,
    cols: Cols,
) -> Vec<Stmt> {
    let (zero, lanes) = (Dim::constant(0), t.lanes);
    let value = |m: &mut Module, step: Step, i: Sym, v: Dim, hi: Dim| -> Vec<Stmt> {
        let l = m.syms.loop_var("l", zero, hi);
        let at = |s: Sym| {
            if s == t.n {
                return Some(col + v * lanes + l);
            }
            t.m_row.filter(|x| x.0 == s).map(|_| row + i)
        };
        let sum = vec![zero, i.into(), v];
        let list = match (step, &p.start) {
            (Step::Begins, Some(start)) => {
                vec![Stmt::Set { reg: acc, at: sum.clone(), value: start.clone() }]
            }
            _ => fresh_regs(m, &p.epilogue),
        };
        let body = list
            .into_iter()
            .filter_map(|s| match (step, s) {
                (Step::Stores, Stmt::Store { buf, at, .. }) => {
                    Some(Stmt::Store { buf, at, value: Expr::acc(p.acc) })
                }
                (Step::Stores, _) => None,
                (Step::Values, Stmt::Store { value, .. }) => {
                    Some(Stmt::Set { reg: acc, at: sum.clone(), value })
                }
                (_, s) => Some(s),
            })
            .map(|s| {
                s.map_dims(&mut |d| m.syms.simplify(d.subst(&mut |s| at(s)))).rewrite_exprs(
                    &mut |e| match e {
                        Expr::Acc { reg, .. } if reg == p.acc => {
                            Expr::Acc { reg: acc, at: sum.clone(), lane: None }
                        }
                        e => e,
                    },
                )
            })
            .collect();
        vec![Stmt::vector(lanes, l, hi, body)]
    };
    let whole = cols.whole(nv, lanes);
    let mut out = vec![];
    for step in steps {
        let i = m.syms.loop_var("r", zero, Dim::constant(mr));
        let mut body = vec![];
        if whole > 0 {
            let v = m.syms.loop_var("v", zero, Dim::constant(whole));
            let inner = value(m, *step, i, v.into(), Dim::constant(lanes));
            body.extend(unroll(v, whole, inner));
        }
        let rest = if *step == Step::Begins { Step::Begins } else { Step::Both };
        match cols {
            // Of what is left of a vector, nothing is put in the place of the sum.
            Cols::Some(r) if r % lanes != 0 && *step != Step::Values => {
                body.extend(value(m, rest, i, Dim::constant(whole), Dim::constant(r % lanes)))
            }
            Cols::Guarded => {
                for v in 0..nv {
                    let left = (t.n_extent - col - v * lanes).min(Dim::constant(lanes)).max(zero);
                    body.extend(value(m, rest, i, Dim::constant(v), left));
                }
            }
            _ => {}
        }
        out.extend(unroll(i, mr, body));
    }
    out
}

/// The compute type of what a contraction stores.
fn stored(m: &Module, p: &Contraction) -> Option<crate::tensor::ElemType> {
    form::stored(&p.epilogue).map(|s| m.type_of(s.value))
}
