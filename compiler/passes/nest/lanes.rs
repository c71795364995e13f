//! Vectors for everything but contractions: maps, pooling, depthwise convolutions along the contiguous dimension of the
//! result; rows (softmax, normalization, reductions) along the contiguous dimension of what they read.

use super::shape::{ParNest, fresh_regs, loop_like, peel, wrap};
use crate::nest::{BinOp, Buf, Expr, Kernel, Layout, LoopKind, Math, Module, Place, Reg, Scalar, Stmt, visit};
use crate::sym::{Dim, Sym};
use crate::tensor::{ConstData, ElemType, consts::Remap};
use std::collections::HashMap;
use std::sync::Arc;

/// How far an access moves with a variable, in elements.
pub fn stride(m: &Module, buf: Buf, at: &[Dim], s: Sym) -> Option<i64> {
    m.linear(buf, at).linear_in(s)?.0.as_const()
}

/// The loop variable along which a store runs through memory element by element.
pub fn unit_stride_var(m: &Module, buf: Buf, at: &[Dim], loops: &[(Sym, Dim)]) -> Option<Sym> {
    loops.iter().rev().map(|l| l.0).find(|s| stride(m, buf, at, *s) == Some(1))
}

/// How often a `while` loop is taken to run: a search, or a way down a tree.
const WHILE_TURNS: i64 = 8;

/// Estimates the work of a kernel.
pub fn estimate(m: &mut Module, k: Kernel) {
    let nest = peel(&m.kernels[k].body);
    let ops: usize = {
        let mut n = 0;
        visit::walk(&nest.body, &mut |s| n += s.expr().map_or(0, Expr::size));
        n
    };
    let mut waits = false;
    visit::walk(&nest.body, &mut |s| waits |= matches!(s, Stmt::While { .. }));
    let mut first = nest.loops.iter().map(|l| (l.0, Dim::constant(0))).collect();
    let inner = turns(&nest.body, &mut first).unwrap_or(Dim::constant(1));
    let turns = if waits { WHILE_TURNS } else { 1 };
    m.kernels[k].work = Dim::product(nest.loops.iter().map(|l| l.1)) * inner * (ops.div_ceil(4).max(1) as i64 * turns);
}

/// How often loops run their innermost bodies, loops beside each other together; `None` without loops. Bounds that depend
/// on a loop outside are taken as in its first iteration.
pub(super) fn turns(body: &[Stmt], first: &mut HashMap<Sym, Dim>) -> Option<Dim> {
    let mut sum: Option<Dim> = None;
    for s in body {
        let inside = if let Stmt::For { var, lo, hi, body, .. } = s {
            let at_first = |d: &Dim| d.subst(&mut |s| first.get(&s).copied());
            let (lo, hi) = (at_first(lo), at_first(hi));
            first.insert(*var, lo);
            Some(turns(body, first).unwrap_or(Dim::constant(1)) * (hi - lo).max(1))
        } else {
            s.bodies().into_iter().filter_map(|b| turns(b, first)).reduce(|a, b| a + b)
        };
        sum = match (sum, inside) {
            (Some(a), Some(b)) => Some(a + b),
            (a, b) => a.or(b),
        };
    }
    sum
}

/// Schedules one kernel (`whole`: its body is no part of a larger one) for vectors of so many lanes: loop order, vectors,
/// work estimate.
pub fn schedule(m: &mut Module, k: Kernel, lanes: i64, whole: bool) {
    estimate(m, k);
    let nest = peel(&m.kernels[k].body);
    let body = match along_result(m, &nest, lanes) {
        Some(b) if whole => {
            let nest = peel(&b);
            super::rows::share(m, nest.loops, nest.body)
        }
        Some(b) => b,
        None => {
            let body = rows(m, &nest.body, lanes);
            let mut loops = nest.loops.clone();
            order_loops(m, &nest, &mut loops);
            super::rows::schedule(m, loops, body)
        }
    };
    m.kernels[k].body = body;
}

fn first_store(body: &[Stmt]) -> Option<(Buf, Vec<Dim>)> {
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

/// Outermost the largest step through the result's memory.
fn order_loops(m: &Module, nest: &ParNest, loops: &mut [(Sym, Dim)]) {
    let Some((buf, at)) = first_store(&nest.body) else { return };
    let d = &m.bufs[buf];
    let order: Vec<usize> = match &d.layout {
        Layout::RowMajor => return,
        Layout::Permuted(p) => p.clone(),
    };
    let place = |s: Sym| order.iter().position(|i| at[*i].contains(s)).unwrap_or(0);
    loops.sort_by_key(|l| place(l.0));
}

/// Vectorises along the result's contiguous dimension.
fn along_result(m: &mut Module, nest: &ParNest, lanes: i64) -> Option<Vec<Stmt>> {
    let (buf, at) = first_store(&nest.body)?;
    let mut loops = nest.loops.clone();
    order_loops(m, nest, &mut loops);
    let mut nest = ParNest { loops, body: nest.body.clone() };
    let mut var = unit_stride_var(m, buf, &at, &nest.loops)?;
    if let Some(v) = collapse(m, &mut nest, var) {
        var = v;
    }
    let extent = nest.loops.iter().find(|l| l.0 == var)?.1;
    if extent.as_const().is_some_and(|c| c < 4) || !suits(m, &nest.body, var, lanes) {
        return None;
    }
    relayout_constants(m, &mut nest.body, var);
    let others: Vec<(Sym, Dim)> = nest.loops.iter().copied().filter(|l| l.0 != var).collect();
    let zero = Dim::constant(0);
    let has_loops = nest.body.iter().any(|s| matches!(s, Stmt::For { .. }));
    let has_acc = nest.body.iter().any(|s| matches!(s, Stmt::Acc { .. }));
    let mut out = vec![];
    if !has_loops && !has_acc {
        // A plain map: one vector loop, in pieces that several threads can take where nothing is around it.
        let piece = if others.is_empty() { piece(extent, lanes) } else { None };
        match piece {
            Some(n) => {
                let c = m.syms.loop_var("c", zero, extent.ceil_div(n));
                let lo = Dim::sym(c) * n;
                let hi = if extent.modulo(n).as_const() == Some(0) { lo + n } else { extent.min(lo + n) };
                let (body, v) = renamed(m, &nest.body, var, lo, hi);
                let body = vec![Stmt::For { kind: vector(lanes), var: v, lo, hi, body }];
                return Some(vec![Stmt::For { kind: LoopKind::Par, var: c, lo: zero, hi: extent.ceil_div(n), body }]);
            }
            None => out.push(Stmt::For { kind: vector(lanes), var, lo: zero, hi: extent, body: nest.body.clone() }),
        }
    } else {
        let lets = nest.body.iter().any(|s| matches!(s, Stmt::Let { .. }));
        let mut u = 1;
        for c in [4, 2] {
            if u == 1 && !lets && extent.as_const().is_some_and(|e| e % (lanes * c) == 0) {
                u = c;
            }
        }
        let step = lanes * u;
        let blocks = extent.floor_div(step);
        let rest = m.syms.simplify(extent.modulo(step));
        let nest_body = lets_as_accs(m, nest.body.clone());
        if blocks.as_const() != Some(0) {
            let b = m.syms.loop_var("c", zero, blocks);
            let body = fresh_regs(m, &nest_body);
            let body = in_lanes(m, &body, var, Dim::sym(b) * step, u, (lanes, Dim::constant(lanes)));
            out.push(Stmt::For { kind: LoopKind::Par, var: b, lo: zero, hi: blocks, body });
        }
        if rest.as_const() != Some(0) {
            // u is 1 here: the extent is no multiple of more.
            let body = fresh_regs(m, &nest_body);
            let body = in_lanes(m, &body, var, blocks * step, 1, (lanes, rest));
            if rest.as_const().is_some() {
                out.extend(body);
            } else {
                out.push(Stmt::If { cond: Expr::cmp_index(BinOp::Gt, rest, 0), then: body, els: vec![] });
            }
        }
    }
    m.syms.set_loop_range(var, zero, extent);
    Some(wrap(&others, out))
}

fn vector(lanes: i64) -> LoopKind {
    LoopKind::Vec(lanes as u32)
}

/// Elements of a piece of a map: enough to be worth a task, a divisor of the extent where there is one.
fn piece(extent: Dim, lanes: i64) -> Option<i64> {
    const LEAST: i64 = 1024;
    match extent.as_const() {
        Some(n) if n < 2 * LEAST => None,
        Some(n) => Some((LEAST / lanes..=4 * LEAST / lanes).map(|k| k * lanes).find(|k| n % k == 0).unwrap_or(2 * LEAST)),
        None => Some(2 * LEAST),
    }
}

/// Joins the loops outside `var` with it while every access runs on through memory.
pub(super) fn collapse(m: &mut Module, nest: &mut ParNest, var: Sym) -> Option<Sym> {
    if nest.loops.last().map(|l| l.0) != Some(var) {
        return None;
    }
    let mut joined = None;
    while nest.loops.len() >= 2 {
        let ((outer, oe), (inner, ie)) = (nest.loops[nest.loops.len() - 2], nest.loops[nest.loops.len() - 1]);
        let v = m.syms.loop_var("i", Dim::constant(0), oe * ie);
        let sub = |d: Dim| {
            d.subst(&mut |s| {
                let x = Dim::sym(v);
                if s == outer {
                    Some(x.floor_div(ie))
                } else if s == inner {
                    Some(x.modulo(ie))
                } else {
                    None
                }
            })
        };
        let mut ok = true;
        let mut check = |buf: Buf, at: &[Dim]| {
            if at.iter().any(|d| d.contains(outer) || d.contains(inner)) {
                let at: Vec<Dim> = at.iter().map(|d| sub(*d)).collect();
                ok &= m.linear(buf, &at).linear_in(v).is_some();
            }
        };
        visit::walk(&nest.body, &mut |s| {
            if let Stmt::Store { buf, at, .. } = s {
                check(*buf, at);
            }
        });
        let mut other = false;
        visit::walk_exprs(&nest.body, &mut |e| match e {
            Expr::Load { buf, at } => check(*buf, at),
            Expr::Index(d) | Expr::With { extent: d, .. } => other |= d.contains(outer) || d.contains(inner),
            _ => {}
        });
        if !ok || other {
            break;
        }
        nest.body = std::mem::take(&mut nest.body).into_iter().map(|s| s.map_dims(&mut |d| sub(d))).collect();
        nest.loops.truncate(nest.loops.len() - 2);
        // Memory order: the subscripts come back as one linear position when addresses are made.
        nest.loops.push((v, oe * ie));
        joined = Some(v);
    }
    joined
}

/// True if most accesses can be whole vectors along the variable, and nothing depends on it otherwise. Where there are
/// loops inside, what they move counts.
fn suits(m: &Module, body: &[Stmt], var: Sym, lanes: i64) -> bool {
    // Vectors of 16 lanes load and store bytes and halves, those of 8 halves of one kind.
    let byte = |t: ElemType| lanes >= 16 && matches!(t, ElemType::U8 | ElemType::I8 | ElemType::BF16) || lanes >= 8 && t == ElemType::F16;
    let stored = |s: &Stmt, t: ElemType| byte(t) && t.is_int() && matches!(s, Stmt::Store { .. });
    let (mut good, mut bad) = (0, 0);
    let mut fits = true;
    visit::walk(body, &mut |s| match s {
        Stmt::For { lo, hi, .. } => fits &= !lo.contains(var) && !hi.contains(var),
        Stmt::Store { buf, at, .. } => {
            fits &= m.bufs[*buf].ty.bits() == 32 || matches!(m.bufs[*buf].ty, ElemType::F16 | ElemType::BF16 | ElemType::Bool | ElemType::U8 | ElemType::I8);
            if stride(m, *buf, at, var) != Some(1) {
                bad += 1;
            }
        }
        Stmt::Acc { reg, .. } => fits &= matches!(m.regs[*reg].ty, ElemType::F32 | ElemType::I32),
        Stmt::If { .. } | Stmt::While { .. } | Stmt::With { .. } | Stmt::Check { .. } => fits = false,
        Stmt::Let { value, .. } => fits &= matches!(m.type_of(value), ElemType::F32 | ElemType::I32 | ElemType::U32 | ElemType::Bool),
        _ => {}
    });
    visit::walk(body, &mut |s| {
        if let (Some(e), true) = (s.expr(), !matches!(s, Stmt::For { .. })) {
            let t = m.type_of(e);
            fits &= matches!(t, ElemType::F32 | ElemType::I32 | ElemType::U32 | ElemType::Bool) || stored(s, t);
        }
    });
    let mut count = |body: &[Stmt], inner: &[Sym]| {
        visit::walk_exprs(body, &mut |e| {
            if let Expr::Load { buf, at } = e
                && (inner.is_empty() || at.iter().any(|d| inner.iter().any(|s| d.contains(*s))))
            {
                match stride(m, *buf, at, var) {
                    Some(0 | 1) if m.bufs[*buf].ty.bits() == 32 || byte(m.bufs[*buf].ty) => good += 1,
                    _ if matches!(m.bufs[m.storage(*buf)].place, Place::Const(_)) => good += 1,
                    _ => bad += 1,
                }
            }
        });
    };
    let mut inner = vec![];
    visit::walk(body, &mut |s| {
        if let Stmt::For { var, .. } = s {
            inner.push(*var);
        }
    });
    count(body, &inner);
    fits && good >= bad
}

/// Small constants that are read across the vector direction are stored again so that they run along it.
pub(super) fn relayout_constants(m: &mut Module, body: &mut Vec<Stmt>, var: Sym) {
    let mut again: HashMap<Buf, Buf> = HashMap::new();
    let mut moved = |m: &mut Module, buf: Buf, at: &[Dim]| -> Option<(Buf, Vec<Dim>)> {
        let Place::Const(c) = &m.bufs[buf].place else { return None };
        if stride(m, buf, at, var).is_some_and(|s| s == 0 || s == 1) || m.bufs[buf].layout != Layout::RowMajor {
            return None;
        }
        let with: Vec<usize> = (0..at.len()).filter(|i| at[*i].contains(var)).collect();
        let [d] = with.as_slice() else { return None };
        let mut perm: Vec<usize> = (0..at.len()).filter(|i| i != d).collect();
        perm.push(*d);
        let to: Vec<Dim> = perm.iter().map(|i| at[*i]).collect();
        if let Some(b) = again.get(&buf) {
            return Some((*b, to));
        }
        let dims: Vec<i64> = perm.iter().map(|i| c.dims()[*i]).collect();
        let coeff = (0..at.len()).map(|i| perm.iter().map(|p| i64::from(*p == i)).collect()).collect();
        let data = ConstData::remap(c.clone(), Remap { dims, offset: vec![0; at.len()], coeff })?;
        let name = m.bufs[buf].name.clone();
        let b = m.constant(name, Arc::new(data));
        again.insert(buf, b);
        Some((b, to))
    };
    *body = std::mem::take(body)
        .into_iter()
        .map(|s| {
            s.map_exprs(&mut |e| {
                e.rewrite(&mut |e| match e {
                    Expr::Load { buf, at } => match moved(m, buf, &at) {
                        Some((buf, at)) => Expr::Load { buf, at },
                        None => Expr::Load { buf, at },
                    },
                    e => e,
                })
            })
        })
        .collect();
}

/// A copy of a body with registers of its own and another variable.
fn renamed(m: &mut Module, body: &[Stmt], var: Sym, lo: Dim, hi: Dim) -> (Vec<Stmt>, Sym) {
    let v = loop_like(m, var, lo, hi);
    let body = fresh_regs(m, body);
    (body.into_iter().map(|s| s.map_dims(&mut |d| d.subst(&mut |s| (s == var).then(|| Dim::sym(v))))).collect(), v)
}

/// Values that live on beside loops or accumulators become accumulators: in lanes, every run of straight statements is a vector loop of
/// its own, and only accumulators reach from one into the next.
fn lets_as_accs(m: &mut Module, body: Vec<Stmt>) -> Vec<Stmt> {
    let mut map: HashMap<Reg, Reg> = HashMap::new();
    let body = convert_lets(m, body, &mut map);
    if map.is_empty() {
        return body;
    }
    let value = |e: Expr| match e {
        Expr::Reg(r) if map.contains_key(&r) => Expr::acc(map[&r]),
        e => e,
    };
    body.into_iter().map(|s| s.map_exprs(&mut |e| e.rewrite(&mut |e| value(e)))).collect()
}

fn convert_lets(m: &mut Module, body: Vec<Stmt>, map: &mut HashMap<Reg, Reg>) -> Vec<Stmt> {
    let split = body.iter().any(|s| matches!(s, Stmt::For { .. } | Stmt::Acc { .. }));
    let mut out = vec![];
    for s in body {
        match s {
            Stmt::Let { reg, value } if split && matches!(m.regs[reg].ty, ElemType::F32 | ElemType::I32 | ElemType::U32) => {
                let ty = m.regs[reg].ty;
                let acc = m.reg(ty);
                map.insert(reg, acc);
                out.push(Stmt::Acc { reg: acc, lanes: 1, shape: vec![], init: Expr::num(ty, 0.0) });
                out.push(Stmt::Set { reg: acc, at: vec![], value });
            }
            Stmt::For { kind, var, lo, hi, body } => out.push(Stmt::For { kind, var, lo, hi, body: convert_lets(m, body, map) }),
            s => out.push(s),
        }
    }
    out
}

/// Lanes of a vector, and how many of them are in use.
type Lanes = (i64, Dim);

/// The body for `lanes * u` neighbouring values of `var` from `base` on: accumulators get lanes, straight statements a
/// vector loop each.
fn in_lanes(m: &mut Module, body: &[Stmt], var: Sym, base: Dim, u: i64, lanes: Lanes) -> Vec<Stmt> {
    let accs: Vec<Reg> = {
        let mut v = vec![];
        visit::walk(body, &mut |s| {
            if let Stmt::Acc { reg, .. } = s {
                v.push(*reg);
            }
        });
        v
    };
    lanes_of(m, body, var, base, u, &accs, lanes)
}

fn lanes_of(m: &mut Module, body: &[Stmt], var: Sym, base: Dim, u: i64, accs: &[Reg], lanes: Lanes) -> Vec<Stmt> {
    let mut out = vec![];
    let mut straight: Vec<Stmt> = vec![];
    let flush = |m: &mut Module, straight: &mut Vec<Stmt>, out: &mut Vec<Stmt>| {
        if straight.is_empty() {
            return;
        }
        let zero = Dim::constant(0);
        let (i, l) = (m.syms.loop_var("u", zero, Dim::constant(u)), m.syms.loop_var("l", zero, lanes.1));
        let here = base + Dim::sym(i) * lanes.0 + l;
        let index = |at: Vec<Dim>| if u > 1 && at.is_empty() { vec![Dim::sym(i)] } else { at };
        let body = straight
            .drain(..)
            .map(|s| {
                let s = match s {
                    Stmt::Set { reg, at, value } if accs.contains(&reg) => Stmt::Set { reg, at: index(at), value },
                    s => s,
                };
                s.map_exprs(&mut |e| {
                    e.rewrite(&mut |e| match e {
                        Expr::Acc { reg, at, lane } if accs.contains(&reg) => Expr::Acc { reg, at: index(at), lane },
                        e => e,
                    })
                })
                .map_dims(&mut |d| d.subst(&mut |s| (s == var).then_some(here)))
            })
            .collect();
        let vec = Stmt::For { kind: vector(lanes.0), var: l, lo: zero, hi: lanes.1, body };
        out.push(if u > 1 {
            Stmt::For { kind: LoopKind::Unroll, var: i, lo: zero, hi: Dim::constant(u), body: vec![vec] }
        } else {
            match vec {
                Stmt::For { kind, var, lo, hi, body } => Stmt::For { kind, var, lo, hi, body: body.into_iter().map(|s| s.map_dims(&mut |d| d.subst(&mut |s| (s == i).then_some(zero)))).collect() },
                s => s,
            }
        });
    };
    for s in body {
        match s {
            Stmt::For { kind, var: v, lo, hi, body } => {
                flush(m, &mut straight, &mut out);
                let body = lanes_of(m, body, var, base, u, accs, lanes);
                out.push(Stmt::For { kind: *kind, var: *v, lo: *lo, hi: *hi, body });
            }
            Stmt::Acc { reg, init, .. } => {
                flush(m, &mut straight, &mut out);
                out.push(Stmt::Acc { reg: *reg, lanes: lanes.0 as u32, shape: if u > 1 { vec![u as u32] } else { vec![] }, init: init.clone() });
            }
            s => straight.push(s.clone()),
        }
    }
    flush(m, &mut straight, &mut out);
    out
}

/// Vectorises sequential loops inside rows: stores along the row, and reductions with one accumulator a lane.
pub(super) fn rows(m: &mut Module, body: &[Stmt], lanes: i64) -> Vec<Stmt> {
    let mut out = vec![];
    for s in body {
        match s {
            Stmt::For { kind: LoopKind::Seq, var, lo, hi, body } if lo.as_const() == Some(0) => match row_loop(m, *var, *hi, body, lanes) {
                Some(v) => out.extend(v),
                None => out.push(Stmt::For { kind: LoopKind::Seq, var: *var, lo: *lo, hi: *hi, body: rows(m, body, lanes) }),
            },
            // A nest of its own among others: a step of a recurrence.
            Stmt::For { kind: LoopKind::Par, .. } => {
                let nest = peel(std::slice::from_ref(s));
                match along_result(m, &nest, lanes) {
                    None if nest.loops.is_empty() => out.push(s.clone()),
                    Some(v) => out.extend(v),
                    None => {
                        let body = rows(m, &nest.body, lanes);
                        out.extend(wrap(&nest.loops, body));
                    }
                }
            }
            Stmt::With { sym, value, extent, body } => out.push(Stmt::With { sym: *sym, value: value.clone(), extent: *extent, body: rows(m, body, lanes) }),
            s => out.push(s.clone()),
        }
    }
    out
}

/// What combines an accumulator with each element, if that may be done in any order.
fn reduction(s: &Stmt, m: &Module) -> Option<(Reg, BinOp)> {
    let Stmt::Set { reg, at, value } = s else { return None };
    if !at.is_empty() || m.regs[*reg].ty != ElemType::F32 {
        return None;
    }
    let own = |e: &Expr| matches!(e, Expr::Acc { reg: r, .. } if r == reg);
    let free = |e: &Expr| {
        let mut hit = false;
        e.walk(&mut |e| hit |= own(e));
        !hit
    };
    let any_order = m.math != Math::Strict;
    match value {
        Expr::Bin(op @ (BinOp::Max | BinOp::Min), a, b) if own(a) && free(b) => Some((*reg, *op)),
        _ if !any_order => None,
        Expr::Bin(op @ (BinOp::Add | BinOp::Mul), a, b) if own(a) && free(b) => Some((*reg, *op)),
        Expr::Fma(a, b, c) if own(c) && free(a) && free(b) => Some((*reg, BinOp::Add)),
        _ => None,
    }
}

fn row_loop(m: &mut Module, var: Sym, hi: Dim, body: &[Stmt], lanes: i64) -> Option<Vec<Stmt>> {
    if hi.as_const().is_some_and(|c| c < 8) || !body.iter().all(|s| matches!(s, Stmt::Let { .. } | Stmt::Store { .. } | Stmt::Set { .. })) {
        return None;
    }
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
    if mixed || !suits(m, body, var, lanes) {
        return None;
    }
    let zero = Dim::constant(0);
    // Several accumulators, so that an operation need not wait for the one before.
    let stores = body.iter().any(|s| matches!(s, Stmt::Store { .. }));
    let u = if reductions.is_empty() || stores || hi.as_const().is_some_and(|c| c < 4 * lanes) { 1 } else { 4 };
    let step = lanes * u;
    let whole = hi.floor_div(step);
    let mut out = vec![];
    let mut lane_of: HashMap<Reg, Reg> = HashMap::new();
    for (r, op) in &reductions {
        let lane = m.reg(ElemType::F32);
        let init = match op {
            BinOp::Add => Scalar::f32(0.0),
            BinOp::Mul => Scalar::f32(1.0),
            BinOp::Max => Scalar::lowest(ElemType::F32),
            _ => Scalar::highest(ElemType::F32),
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
