//! Sequential loops inside rows: stores along the row, and reductions with an accumulator for each lane.

use super::body::lanes_of;
use super::{Vectors, along_result, collapse, suits, vector};
use crate::nest::{BinOp, Expr, LoopKind, Math, Module, Reg, Scalar, Stmt};
use crate::passes::nest::analysis::shape::{ParNest, fresh_regs, loop_like, peel, seq_loops, wrap};
use crate::passes::nest::schedule::lanes64;
use crate::sym::{Dim, Sym};
use crate::tensor::ElemType;
use std::collections::HashMap;

/// Accumulators of a reduction, so that an operation need not wait for the one before.
pub(crate) const SUMS: i64 = 4;

/// Vectorises sequential loops inside rows: stores along the row, and reductions with one accumulator a lane.
pub(crate) fn rows(m: &mut Module, body: &[Stmt], vectors: Vectors, sums: i64) -> Vec<Stmt> {
    let mut out = vec![];
    for s in body {
        match s {
            s @ Stmt::For { kind: LoopKind::Seq, body, .. }
                if matches!(body.as_slice(), [Stmt::For { .. }])
                    && let Some((var, hi, inner)) = one_loop(m, s)
                    && let Some(v) = row_loop(m, var, hi, &inner, vectors, sums) =>
            {
                out.extend(v);
            }
            Stmt::For { kind: LoopKind::Seq, var, lo, hi, body } if lo.as_const() == Some(0) => match row_loop(m, *var, *hi, body, vectors, sums) {
                Some(v) => out.extend(v),
                None => out.push(Stmt::For { kind: LoopKind::Seq, var: *var, lo: *lo, hi: *hi, body: rows(m, body, vectors, sums) }),
            },
            // A nest of its own among others: a step of a recurrence.
            Stmt::For { kind: LoopKind::Par, .. } => {
                let nest = peel(std::slice::from_ref(s));
                match along_result(m, &nest, vectors) {
                    None if nest.loops.is_empty() => out.push(s.clone()),
                    Some(v) => out.extend(v),
                    None => {
                        let body = rows(m, &nest.body, vectors, sums);
                        out.extend(wrap(&nest.loops, body));
                    }
                }
            }
            Stmt::With { sym, value, extent, body } => out.push(Stmt::With { sym: *sym, value: value.clone(), extent: *extent, body: rows(m, body, vectors, sums) }),
            Stmt::While { cond, body } => out.push(Stmt::While { cond: cond.clone(), body: rows(m, body, vectors, sums) }),
            Stmt::If { cond, then, els } => out.push(Stmt::If { cond: cond.clone(), then: rows(m, then, vectors, sums), els: rows(m, els, vectors, sums) }),
            s => out.push(s.clone()),
        }
    }
    out
}

/// Loops one inside the other as a single one, where all accesses run on through memory.
fn one_loop(m: &mut Module, s: &Stmt) -> Option<(Sym, Dim, Vec<Stmt>)> {
    let (loops, body) = seq_loops(s)?;
    let last = loops.last()?.0;
    let mut nest = ParNest { loops, body: body.to_vec() };
    collapse(m, &mut nest, last)?;
    match nest.loops[..] {
        [(var, hi)] => Some((var, hi, nest.body)),
        _ => None,
    }
}

/// What combines an accumulator with each element, if that may be done in any order.
fn reduction(s: &Stmt, m: &Module) -> Option<(Reg, BinOp)> {
    let Stmt::Set { reg, at, value } = s else { return None };
    let ty = m.regs[*reg].ty;
    if !at.is_empty() || !matches!(ty, ElemType::F32 | ElemType::I32) && !lanes64::is(ty) {
        return None;
    }
    let own = |e: &Expr| matches!(e, Expr::Acc { reg: r, .. } if r == reg);
    let free = |e: &Expr| {
        let mut hit = false;
        e.walk(&mut |e| hit |= own(e));
        !hit
    };
    // Sums of integers are the same in any order.
    let any_order = m.math != Math::Strict || ty.is_int();
    match value {
        Expr::Bin(op @ (BinOp::Max | BinOp::Min), a, b) if own(a) && free(b) => Some((*reg, *op)),
        _ if !any_order => None,
        Expr::Bin(op @ (BinOp::Add | BinOp::Mul), a, b) if own(a) && free(b) || free(a) && own(b) => Some((*reg, *op)),
        Expr::Fma(a, b, c) if own(c) && free(a) && free(b) => Some((*reg, BinOp::Add)),
        _ => None,
    }
}

fn row_loop(m: &mut Module, var: Sym, hi: Dim, body: &[Stmt], vectors: Vectors, sums: i64) -> Option<Vec<Stmt>> {
    if hi.as_const().is_some_and(|c| c < 8) || !body.iter().all(|s| matches!(s, Stmt::Let { .. } | Stmt::Store { .. } | Stmt::Set { .. })) {
        return None;
    }
    let vectors = vectors.of(m, body);
    let lanes = vectors.lanes;
    let mut reductions = vec![];
    for s in body {
        if let Stmt::Set { .. } = s {
            reductions.push(reduction(s, m)?);
        }
    }
    // An accumulator that changes here may be read by its own update only.
    let mut mixed = false;
    for s in body {
        if let Some(e) = s.expr() {
            e.walk(&mut |e| {
                if let Expr::Acc { reg, .. } = e {
                    mixed |= reductions.iter().any(|r| r.0 == *reg) && !matches!(s, Stmt::Set { reg: r, .. } if r == reg);
                }
            });
        }
    }
    if mixed || !suits(m, body, var, vectors, None) {
        return None;
    }
    let zero = Dim::constant(0);
    // Several accumulators, so that an operation need not wait for the one before.
    let stores = body.iter().any(|s| matches!(s, Stmt::Store { .. }));
    let u = if reductions.is_empty() || stores || hi.as_const().is_some_and(|c| c < sums * lanes) { 1 } else { sums };
    let step = lanes * u;
    let whole = hi.floor_div(step);
    let mut out = vec![];
    let mut lane_of: HashMap<Reg, Reg> = HashMap::new();
    for (r, op) in &reductions {
        let ty = m.regs[*r].ty;
        let lane = m.reg(ty);
        let init = match op {
            BinOp::Add => Scalar::from_f64(ty, 0.0),
            BinOp::Mul => Scalar::from_f64(ty, 1.0),
            BinOp::Max => Scalar::lowest(ty),
            _ => Scalar::highest(ty),
        };
        out.push(Stmt::Acc { reg: lane, lanes: lanes as u32, shape: if u > 1 { vec![u as u32] } else { vec![] }, init: init.into() });
        lane_of.insert(*r, lane);
    }
    let get = |r: Reg| *lane_of.get(&r).unwrap_or(&r);
    let own = |m: &mut Module| -> Vec<Stmt> {
        fresh_regs(m, body)
            .into_iter()
            .map(|s| {
                map_sets(s, &get).map_exprs(&mut |e| {
                    e.rewrite(&mut |e| match e {
                        Expr::Acc { reg, at, lane } => Expr::Acc { reg: get(reg), at, lane },
                        e => e,
                    })
                })
            })
            .collect()
    };
    if u == 1 {
        // One vector loop, the last vector partial.
        let v = loop_like(m, var, zero, hi);
        let main = own(m).into_iter().map(|s| s.map_dims(&mut |d| d.subst(&mut |s| (s == var).then(|| Dim::sym(v))))).collect();
        out.push(Stmt::For { kind: vector(lanes), var: v, lo: zero, hi, body: main });
    } else {
        let q = m.syms.loop_var("q", zero, whole);
        let main = own(m);
        let accs: Vec<Reg> = lane_of.values().copied().collect();
        let inner = lanes_of(m, &main, var, Dim::sym(q) * step, u, &accs, (lanes, Dim::constant(lanes)));
        out.push(Stmt::For { kind: LoopKind::Seq, var: q, lo: zero, hi: whole, body: inner });
        if hi.modulo(step).as_const() != Some(0) {
            // What is left goes to the first accumulator; its lanes are those of whole vectors.
            let v = loop_like(m, var, whole * step, hi);
            let first = |at: Vec<Dim>, r: Reg| if accs.contains(&r) { vec![zero] } else { at };
            let rest = own(m)
                .into_iter()
                .map(|s| match s {
                    Stmt::Set { reg, at, value } => Stmt::Set { reg, at: first(at, reg), value },
                    s => s,
                })
                .map(|s| {
                    s.map_exprs(&mut |e| {
                        e.rewrite(&mut |e| match e {
                            Expr::Acc { reg, at, lane } => Expr::Acc { reg, at: first(at, reg), lane },
                            e => e,
                        })
                    })
                    .map_dims(&mut |d| d.subst(&mut |s| (s == var).then(|| Dim::sym(v))))
                })
                .collect();
            out.push(Stmt::For { kind: vector(lanes), var: v, lo: whole * step, hi, body: rest });
        }
    }
    for (r, op) in &reductions {
        let lane = lane_of[r];
        let at = |i: i64| if u > 1 { vec![Dim::constant(i)] } else { vec![] };
        if u > 1 {
            let part = |i: i64| Expr::Acc { reg: lane, at: at(i), lane: None };
            let sum = (1..u).fold(part(0), |sum, i| Expr::bin(*op, sum, part(i)));
            let l = m.syms.loop_var("l", zero, Dim::constant(lanes));
            out.push(Stmt::For { kind: vector(lanes), var: l, lo: zero, hi: Dim::constant(lanes), body: vec![Stmt::Set { reg: lane, at: at(0), value: sum }] });
        }
        out.push(Stmt::Set { reg: *r, at: vec![], value: Expr::bin(*op, Expr::acc(*r), Expr::Horizontal { op: *op, reg: lane, at: at(0) }) });
    }
    Some(out)
}

fn map_sets(s: Stmt, get: &dyn Fn(Reg) -> Reg) -> Stmt {
    match s {
        Stmt::Set { reg, at, value } => Stmt::Set { reg: get(reg), at, value },
        s => s,
    }
}
