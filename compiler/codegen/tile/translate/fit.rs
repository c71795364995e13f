//! The quick check whether statements can be a tile at all. Kernels query it at every level of their nests,
//! so it visits each statement once, before any loop is unrolled.

use super::expr::form;
use super::{Fit, Misfit, NOT_INSIDE};
use crate::codegen::tile::Vectors;
use crate::codegen::{Map, Set};
use crate::nest::{Buf, DotKind, Expr, LoopKind, Module, Reg, Stmt, patterns, visit};
use crate::sym::{Answer, Dim, Sym};
use crate::target::Dot;
use std::collections::HashSet;

const NO_DOT: Misfit = "a dot product of bytes on a level that has none";

/// Rejects statements that cannot be a tile; true if the vectors have 64-bit lanes. Vector loops as long as
/// the vectors have 32-bit lanes, half as long ones 64-bit lanes: schedules emit the latter for nests with
/// 64-bit elements.
pub(super) fn check(m: &Module, vectors: Vectors, body: &[Stmt]) -> Fit<bool> {
    branches(body, &mut vec![])?;
    let mut defined: HashSet<Reg> = HashSet::new();
    let (mut lanes, mut found) = (None, false);
    let mut fit = Ok(());
    visit::walk(body, &mut |s| {
        let r = statement(m, s).and_then(|n| match (n, lanes) {
            (Some(n), Some(l)) if n != l => Err("vectors of several lengths"),
            (Some(n), _) if n == vectors.width.lanes() || 2 * n == vectors.width.lanes() => {
                lanes = Some(n);
                Ok(())
            }
            (Some(_), _) => Err("vectors of another length than the registers"),
            (None, _) => Ok(()),
        });
        found |= matches!(s, Stmt::For { kind: LoopKind::Vec(_), .. } | Stmt::Prefetch { .. });
        if let Stmt::Let { reg, .. } | Stmt::Acc { reg, .. } = s {
            defined.insert(*reg);
        }
        if fit.is_ok() {
            fit = r;
        }
    });
    fit?;
    if !found {
        return Err("no vector loop");
    }
    visit::walk_exprs(body, &mut |e| {
        if let Expr::Let { reg, .. } = e {
            defined.insert(*reg);
        }
        let r = expression(m, vectors, &defined, e);
        if fit.is_ok() {
            fit = r;
        }
    });
    fit.map(|()| lanes.is_some_and(|l| l < vectors.width.lanes()))
}

/// The storages of buffers that statements prefetch.
pub(super) fn prefetched(m: &Module, body: &[Stmt]) -> Vec<Buf> {
    let mut prefetched = vec![];
    visit::walk(body, &mut |s| {
        if let Stmt::Prefetch { buf, .. } = s {
            prefetched.push(m.storage(*buf));
        }
    });
    prefetched
}

/// The storages of buffers that statements store to.
pub(super) fn stored(m: &Module, body: &[Stmt]) -> Vec<Buf> {
    let mut stored = vec![];
    visit::each_store(body, &mut |buf, _| stored.push(m.storage(buf)));
    stored
}

/// Branches inside loops only: Cranelift compiles outermost branches, with a tile in each arm. Branches
/// around loops are decided by what no loop of the tile changes.
fn branches(body: &[Stmt], around: &mut Vec<Sym>) -> Fit<()> {
    body.iter().try_for_each(|s| match s {
        Stmt::If { .. } if around.is_empty() => Err("a branch around a tile"),
        Stmt::If { cond, then, els } if loops(then) || loops(els) => match patterns::margin(cond) {
            Some(d) if around.iter().any(|s| d.contains(*s)) => {
                Err("a branch around loops on what these depend on")
            }
            Some(_) => [then, els].into_iter().try_for_each(|b| branches(b, around)),
            None => Err("a branch around loops"),
        },
        Stmt::Tile { body } => branches(body, around),
        Stmt::For { kind, var, body, .. } if *kind != LoopKind::Unroll => {
            around.push(*var);
            let r = branches(body, around);
            around.pop();
            r
        }
        Stmt::For { body, .. } => branches(body, around),
        _ => Ok(()),
    })
}

/// True if a body contains sequential loops.
pub(super) fn loops(body: &[Stmt]) -> bool {
    visit::any(body, &mut |s| matches!(s, Stmt::For { kind: LoopKind::Seq | LoopKind::Par, .. }))
}

/// Lanes of the vectors of a loop or an accumulator.
fn statement(m: &Module, s: &Stmt) -> Fit<Option<u32>> {
    match s {
        Stmt::For { kind: LoopKind::Vec(n), .. } => Ok(Some(*n)),
        Stmt::Acc { lanes, .. } if *lanes != 1 => Ok(Some(*lanes)),
        Stmt::Store { buf, .. } if form(m.bufs[*buf].ty).is_none() => Err("an element type without vectors"),
        Stmt::For { .. }
        | Stmt::Tile { .. }
        | Stmt::Acc { .. }
        | Stmt::Store { .. }
        | Stmt::Prefetch { .. }
        | Stmt::Let { .. }
        | Stmt::If { .. }
        | Stmt::Set { .. } => Ok(None),
        _ => Err("a statement that is no loop, value, accumulator, branch or store"),
    }
}

fn expression(m: &Module, vectors: Vectors, defined: &HashSet<Reg>, e: &Expr) -> Fit<()> {
    match e {
        Expr::Text(..) => Err("a text"),
        Expr::Dot(DotKind::Halves, ..) if !vectors.caps.bf16 => {
            Err("a dot product of bf16 on a level that has none")
        }
        Expr::Dot(DotKind::Bytes, ..) if !vectors.caps.dot.mixes_signs() => Err(NO_DOT),
        Expr::Dot(DotKind::SignedBytes | DotKind::UnsignedBytes, ..) if !vectors.caps.dot.keeps_signs() => {
            Err(NO_DOT)
        }
        Expr::Dot(DotKind::NarrowBytes, ..) if vectors.caps.dot != Dot::QuadsInWords => Err(NO_DOT),
        Expr::Dot(DotKind::PairedBytes, ..) if !vectors.caps.pairs_bytes() => Err(NO_DOT),
        Expr::Dot(DotKind::WordsByBytes, ..) if vectors.caps.dot != Dot::Pairs => Err(NO_DOT),
        Expr::Dot(DotKind::LongHalves, ..) if !(vectors.caps.bf16 && vectors.caps.dot.has_matrices()) => {
            Err(NO_DOT)
        }
        Expr::Dot(DotKind::LongBytes, ..) if !vectors.caps.dot.mixes_signs() => Err(NO_DOT),
        Expr::Dot(DotKind::LongNarrowBytes, ..) if vectors.caps.dot != Dot::QuadsInWords => Err(NO_DOT),
        Expr::Dot(g, ..) if g.is_long() && !vectors.caps.dot.keeps_signs() => Err(NO_DOT),
        Expr::Acc { lane: Some(_), .. } if !vectors.caps.shuffles.are_computed() => Err("a single lane"),
        Expr::Load { buf, .. } if form(m.bufs[*buf].ty).is_none() => Err("an element type without vectors"),
        Expr::Reg(r) | Expr::Acc { reg: r, .. } | Expr::Horizontal { reg: r, .. } if !defined.contains(r) => {
            Err(NOT_INSIDE)
        }
        _ => Ok(()),
    }
}

/// Accumulators used only in vector loops of a single length of at most a vector: the other lanes may hold
/// anything.
pub(super) fn short_sums(m: &Module, body: &[Stmt], lanes: i64) -> Set<Reg> {
    let mut inner = vec![];
    visit::walk(body, &mut |s| {
        if let Stmt::For { var, .. } | Stmt::With { sym: var, .. } = s {
            inner.push(*var);
        }
    });
    // A length that differs between iterations is none.
    let short = |n: Dim| match n.as_const() {
        Some(n) => (1..lanes).contains(&n),
        None => m.syms.le(n, Dim::constant(lanes)) == Answer::Yes && !inner.iter().any(|s| n.contains(*s)),
    };
    let mut lengths: Map<Reg, Option<Dim>> = Map::default();
    note(body, None, &short, &mut lengths);
    lengths.into_iter().filter(|(_, n)| n.is_some()).map(|(r, _)| r).collect()
}

fn note(
    body: &[Stmt],
    length: Option<Dim>,
    short: &dyn Fn(Dim) -> bool,
    lengths: &mut Map<Reg, Option<Dim>>,
) {
    let mut seen = |r: Reg, length: Option<Dim>| {
        let n = lengths.entry(r).or_insert(length);
        *n = n.filter(|n| Some(*n) == length);
    };
    for s in body {
        if let Stmt::Set { reg, .. } = s {
            seen(*reg, length);
        }
        if let Some(e) = s.expr() {
            e.walk(&mut |e| match e {
                Expr::Acc { reg, .. } => seen(*reg, length),
                Expr::Horizontal { reg, .. } => seen(*reg, None),
                _ => {}
            });
        }
    }
    for s in body {
        let inside = match s {
            Stmt::For { kind: LoopKind::Vec(_), lo, hi, .. } => Some(*hi - *lo).filter(|n| short(*n)),
            _ => length,
        };
        s.bodies().for_each(|b| note(b, inside, short, lengths));
    }
}
