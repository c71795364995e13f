//! Contractions (MatMul, Gemm, Conv, ...): packed weights and register tiles.
//!
//! The form that operators write is a `par` nest around `acc = 0; seq nest { acc = fma(A, B, acc) }; store`. Loop
//! variables are told apart by where they occur: the column variable n in B only (vectors run along it), row variables
//! in A only, batch variables in both. B is packed into panels `[batch][ceil(N / nr)][K ..][nr]` - constants by a lazy
//! rearrangement, others by a kernel - so that the inner loop reads it in order whatever its layout was (Goto, van de
//! Geijn: Anatomy of High-Performance Matrix Multiplication). A tile holds mr x nr accumulators in registers; rest rows
//! get smaller tiles, rest columns zero-padded panels and guarded stores.

use super::lanes;
use super::shape::{fresh_regs, peel, relocate, wrap};
use crate::nest::{BinOp, Buf, Expr, Kernel, Layout, LoopKind, Module, Place, Reg, Scalar, Stmt};
use crate::sym::{Dim, Sym};
use crate::target::Facts;
use crate::tensor::{ConstData, ElemType, consts::Remap};
use std::sync::Arc;

/// A contraction taken apart.
struct Parts {
    loops: Vec<(Sym, Dim)>,
    acc: Reg,
    depth: Vec<(Sym, Dim)>,
    a: (Buf, Vec<Dim>),
    b: (Buf, Vec<Dim>),
    /// Lets and the store.
    tail: Vec<Stmt>,
}

fn take_apart(body: &[Stmt]) -> Option<Parts> {
    let nest = peel(body);
    let [Stmt::Acc { reg, lanes: 1, shape, init: Expr::Const(zero) }, inner, tail @ ..] = nest.body.as_slice() else { return None };
    if !shape.is_empty() || zero.bits != 0 || zero.ty != ElemType::F32 || tail.is_empty() {
        return None;
    }
    let mut depth = vec![];
    let mut s = inner;
    while let Stmt::For { kind: LoopKind::Seq, var, lo, hi, body } = s {
        let ([one], Some(0)) = (body.as_slice(), lo.as_const()) else { return None };
        depth.push((*var, *hi));
        s = one;
    }
    let Stmt::Set { reg: r, value: Expr::Fma(a, b, c), .. } = s else { return None };
    let (Expr::Load { buf: ba, at: ia }, Expr::Load { buf: bb, at: ib }, Expr::Acc { reg: rc, .. }) = (&**a, &**b, &**c) else { return None };
    let straight = tail.iter().all(|s| matches!(s, Stmt::Let { .. } | Stmt::Store { .. }));
    let stores = tail.iter().filter(|s| matches!(s, Stmt::Store { .. })).count();
    if r != reg || rc != reg || depth.is_empty() || !straight || stores != 1 {
        return None;
    }
    Some(Parts { loops: nest.loops, acc: *reg, depth, a: (*ba, ia.clone()), b: (*bb, ib.clone()), tail: tail.to_vec() })
}

/// True for kernels of the form above.
pub fn is_contraction(body: &[Stmt]) -> bool {
    take_apart(body).is_some()
}

/// The reads of a contraction's operands, and its loops and store position: what the layout pass looks at.
pub fn operands(body: &[Stmt]) -> Option<(Buf, Vec<Dim>, Buf, Vec<Dim>)> {
    let p = take_apart(body)?;
    Some((p.a.0, p.a.1, p.b.0, p.b.1))
}

fn depends(at: &[Dim], s: Sym) -> bool {
    at.iter().any(|d| d.contains(s))
}

/// Schedules the kernel; false if it is no contraction, or one that this schedule does not fit.
pub fn schedule(m: &mut Module, k: Kernel, facts: Facts) -> bool {
    let Some(mut p) = take_apart(&m.kernels[k].body) else { return false };
    let only_b = |p: &Parts, s: Sym| depends(&p.b.1, s) && !depends(&p.a.1, s);
    let only_a = |p: &Parts, s: Sym| depends(&p.a.1, s) && !depends(&p.b.1, s);
    let Some((out, at)) = p.tail.iter().find_map(|s| if let Stmt::Store { buf, at, .. } = s { Some((*buf, at.clone())) } else { None }) else { return false };
    let next = lanes::unit_stride_var(m, out, &at, &p.loops);
    // The vector runs along memory of the result: a matrix product may swap its operands for that.
    if next.is_some_and(|v| only_a(&p, v)) && p.depth.len() == 1 {
        std::mem::swap(&mut p.a, &mut p.b);
    }
    let n = match next.filter(|v| only_b(&p, *v)) {
        Some(v) => Some(v),
        None => p.loops.iter().rev().map(|l| l.0).find(|v| only_b(&p, *v)),
    };
    let Some(n) = n else { return false };
    let Some(n_extent) = p.loops.iter().find(|l| l.0 == n).map(|l| l.1) else { return false };
    if n_extent.as_const().is_some_and(|c| c < 4) {
        return false;
    }
    let mut rows: Vec<(Sym, Dim)> = p.loops.iter().copied().filter(|l| only_a(&p, l.0)).collect();
    let batch: Vec<(Sym, Dim)> = p.loops.iter().copied().filter(|l| l.0 != n && !rows.iter().any(|r| r.0 == l.0)).collect();
    collapse_rows(m, &mut p, &mut rows, n);
    // Innermost what runs through A's memory in the smallest steps: channels of images, columns of matrices.
    let step = |m: &Module, s: Sym| lanes::stride(m, p.a.0, &p.a.1, s).map_or(i64::MAX, i64::abs);
    p.depth.sort_by_key(|d| std::cmp::Reverse(step(m, d.0)));
    let row = rows.pop();
    let remapped = !linear_in(m, out, &at, n);
    let (mr, nv) = tile(m, row.map(|r| r.1), n_extent, remapped, facts);
    let nr = i64::from(nv) * 4;
    let Some(packed) = pack(m, k, &p, &batch, n, n_extent, nr) else { return false };
    let t = Tile { m_row: row, n, n_extent, nr, nv, packed, batch: batch.clone() };
    let body = emit(m, &p, &t, mr, &rows);
    let work = Dim::product(p.loops.iter().chain(&p.depth).map(|l| l.1)) * 2;
    m.kernels[k].body = body;
    m.kernels[k].work = work.floor_div(8);
    true
}

fn linear_in(m: &Module, buf: Buf, at: &[Dim], s: Sym) -> bool {
    lanes::linear(m, buf, at).linear_in(s).is_some()
}

/// Joins row loops that run over memory as one, in every access.
fn collapse_rows(m: &mut Module, p: &mut Parts, rows: &mut Vec<(Sym, Dim)>, n: Sym) {
    while rows.len() >= 2 {
        let ((outer, oe), (inner, ie)) = (rows[rows.len() - 2], rows[rows.len() - 1]);
        // Other loops must not stand between in the order of rows; batch and column loops do not matter.
        let var = m.syms.loop_var("m", Dim::constant(0), oe * ie);
        let v = Dim::sym(var);
        let subst = |s: Sym| {
            if s == outer {
                Some(v.floor_div(ie))
            } else if s == inner {
                Some(v.modulo(ie))
            } else {
                None
            }
        };
        let sub = |d: &Dim| d.subst(&mut |s| subst(s));
        let plain = |m: &Module, buf: Buf, at: &[Dim]| {
            let at: Vec<Dim> = at.iter().map(sub).collect();
            let l = lanes::linear(m, buf, &at);
            l.linear_in(var).is_some() && l.linear_in(n).is_some()
        };
        let mut ok = plain(m, p.a.0, &p.a.1);
        for s in &p.tail {
            if let Stmt::Store { buf, at, .. } = s {
                // The result may have gaps between rows (a padded image): once a row, a division by a constant is cheap.
                ok &= plain(m, *buf, at) || ie.as_const().is_some() && linear_in(m, *buf, &at.iter().map(sub).collect::<Vec<_>>(), n);
            }
            if let Some(e) = s.expr() {
                e.walk(&mut |e| match e {
                    Expr::Load { buf, at } if depends(at, outer) || depends(at, inner) => ok &= plain(m, *buf, at),
                    Expr::Index(d) if d.contains(outer) || d.contains(inner) => ok = false,
                    _ => {}
                });
            }
        }
        if !ok {
            return;
        }
        p.a.1 = p.a.1.iter().map(sub).collect();
        p.tail = std::mem::take(&mut p.tail).into_iter().map(|s| s.map_dims(&mut |d| sub(&d))).collect();
        rows.truncate(rows.len() - 2);
        rows.push((var, oe * ie));
    }
}

/// Rows and vectors of a tile.
fn tile(m: &Module, rows: Option<Dim>, n: Dim, remapped: bool, facts: Facts) -> (i64, u32) {
    let rows = rows.map(|d| m.syms.range(d).hi.unwrap_or(i64::MAX)).unwrap_or(1);
    let cols = n.as_const().unwrap_or(64);
    let (mr, nv) = facts.tile;
    let registers = mr * nv;
    if rows == 1 {
        // Independent accumulators hide the latency of the additions.
        let nv = ((cols + 3) / 4).clamp(1, 8) as u32;
        return (1, if remapped { 4.min(nv) } else { nv });
    }
    let wide = i64::from(nv) * 4;
    if !remapped && (cols % wide == 0 || cols >= 4 * wide) {
        return (i64::from(mr), nv);
    }
    if cols > 4 {
        return (i64::from(registers + 3) / 2, 2);
    }
    (8, 1)
}

struct Tile {
    m_row: Option<(Sym, Dim)>,
    n: Sym,
    n_extent: Dim,
    nr: i64,
    nv: u32,
    packed: Buf,
    batch: Vec<(Sym, Dim)>,
}

/// B as panels: `[batch that B depends on ..][panel][depth ..][nr]`.
fn pack(m: &mut Module, k: Kernel, p: &Parts, batch: &[(Sym, Dim)], n: Sym, n_extent: Dim, nr: i64) -> Option<Buf> {
    let own: Vec<(Sym, Dim)> = batch.iter().copied().filter(|b| depends(&p.b.1, b.0)).collect();
    let panels = n_extent.ceil_div(nr);
    let mut dims: Vec<Dim> = own.iter().map(|b| b.1).collect();
    dims.push(panels);
    dims.extend(p.depth.iter().map(|d| d.1));
    dims.push(Dim::constant(nr));
    let name = format!("{}.packed", m.bufs[p.b.0].name);
    let storage = m.storage(p.b.0);
    let at = if p.b.0 == storage { p.b.1.clone() } else { relocate(m, &m.bufs[p.b.0].dims, &p.b.1, &m.bufs[storage].dims) };
    if let Place::Const(c) = &m.bufs[storage].place {
        if m.bufs[storage].layout != Layout::RowMajor {
            return None;
        }
        let mut vars: Vec<Sym> = own.iter().map(|b| b.0).collect();
        vars.push(n);
        vars.extend(p.depth.iter().map(|d| d.0));
        let (mut offset, mut coeff) = (vec![], vec![]);
        for d in &at {
            let mut rest = *d;
            let mut row = vec![];
            for v in &vars {
                let (c, r) = rest.linear_in(*v)?;
                row.push(c.as_const()?);
                rest = r;
            }
            let lane = row[own.len()];
            row[own.len()] = lane * nr;
            row.push(lane);
            offset.push(rest.as_const()?);
            coeff.push(row);
        }
        let dims: Vec<i64> = dims.iter().map(|d| d.as_const()).collect::<Option<_>>()?;
        let data = ConstData::remap(c.clone(), Remap { dims, offset, coeff })?;
        return Some(m.constant(name, Arc::new(data)));
    }
    // The same at run time.
    let ty = m.bufs[p.b.0].ty;
    let packed = m.temp(name, ty, dims.clone());
    let origin = m.kernels[k].origin.clone();
    let (source, at0) = (p.b.0, p.b.1.clone());
    let id = m.map(packed, &origin, |kb, ix| {
        let panel = ix[own.len()];
        let lane = ix[ix.len() - 1];
        let col = panel * nr + lane;
        let subst = |s: Sym| {
            if s == n {
                return Some(col);
            }
            own.iter().position(|b| b.0 == s).map(|i| ix[i]).or_else(|| p.depth.iter().position(|d| d.0 == s).map(|i| ix[own.len() + 1 + i]))
        };
        let from: Vec<Dim> = at0.iter().map(|d| d.subst(&mut |s| subst(s))).collect();
        let v = kb.load(source, &from);
        if n_extent.modulo(nr).as_const() == Some(0) { v } else { Expr::select(Expr::cmp_index(BinOp::Lt, col, n_extent), v, Expr::f32(0.0)) }
    });
    m.kernels[id].name = format!("{}.pack", m.kernels[k].name);
    // `map` has put the call at the driver's end: it belongs right before the contraction.
    let call = m.driver.pop()?;
    let at = m.driver.iter().position(|s| matches!(s, Stmt::Call(x) if *x == k))?;
    m.driver.insert(at, call);
    lanes::schedule(m, id);
    Some(packed)
}

fn emit(m: &mut Module, p: &Parts, t: &Tile, mr: i64, rows: &[(Sym, Dim)]) -> Vec<Stmt> {
    let zero = Dim::constant(0);
    let full = t.n_extent.floor_div(t.nr);
    let panels = t.n_extent.ceil_div(t.nr);
    let rest = t.n_extent.modulo(t.nr);
    let panel = m.syms.loop_var("p", zero, panels);
    // All rows of one panel.
    let column = |m: &mut Module, cols: Cols| -> Vec<Stmt> {
        let Some((_, extent)) = t.m_row else { return block(m, p, t, zero, 1, panel.into(), cols) };
        // Narrow panels get more rows: as many independent accumulators.
        let mr = match cols {
            Cols::Some(r) if mr > 1 => (mr * i64::from(t.nv) / ((r + 3) / 4)).clamp(mr, 8.max(mr)),
            _ => mr,
        };
        let mut out = vec![];
        let blocks = extent.floor_div(mr);
        if blocks.as_const() != Some(0) {
            let v = m.syms.loop_var("m", zero, blocks);
            let body = block(m, p, t, Dim::sym(v) * mr, mr, panel.into(), cols);
            out.push(Stmt::For { kind: LoopKind::Seq, var: v, lo: zero, hi: blocks, body });
        }
        let left = extent.modulo(mr);
        match left.as_const() {
            Some(0) => {}
            Some(r) => out.extend(block(m, p, t, blocks * mr, r, panel.into(), cols)),
            None => {
                // The binary digits of what is left, each with a tile of its own.
                let mut n = 1;
                while 2 * n < mr {
                    n *= 2;
                }
                while n > 0 {
                    let row = m.syms.simplify(blocks * mr + left.floor_div(2 * n) * (2 * n));
                    let then = block(m, p, t, row, n, panel.into(), cols);
                    out.push(Stmt::If { cond: Expr::cmp_index(BinOp::Ne, left.floor_div(n).modulo(2), 0), then, els: vec![] });
                    n /= 2;
                }
            }
        }
        out
    };
    let body = match (rest.as_const(), full.as_const()) {
        (Some(0), _) => column(m, Cols::Full),
        (Some(r), Some(0)) => column(m, Cols::Some(r)),
        (r, _) => {
            let then = column(m, Cols::Full);
            let els = column(m, r.map_or(Cols::Guarded, Cols::Some));
            vec![Stmt::If { cond: Expr::cmp_index(BinOp::Lt, panel, full), then, els }]
        }
    };
    let inner: Vec<Stmt> = if panels.as_const() == Some(1) {
        body.into_iter().map(|s| s.map_dims(&mut |d| d.subst(&mut |s| (s == panel).then_some(zero)))).collect()
    } else {
        vec![Stmt::For { kind: LoopKind::Par, var: panel, lo: zero, hi: panels, body }]
    };
    // Small weights stay in the cache while rows pass by; large ones are read once.
    let weights = Dim::product(m.bufs[t.packed].dims.iter().copied());
    let small = weights.as_const().is_some_and(|w| w <= 1 << 16);
    let outer: Vec<(Sym, Dim)> = t.batch.iter().chain(rows).copied().collect();
    if small || rows.is_empty() || panels.as_const() == Some(1) {
        return wrap(&outer, inner);
    }
    match inner.as_slice() {
        [Stmt::For { kind, var, lo, hi, body }] => {
            let body = wrap(rows, body.clone());
            wrap(&t.batch, vec![Stmt::For { kind: *kind, var: *var, lo: *lo, hi: *hi, body }])
        }
        _ => wrap(&outer, inner),
    }
}

/// Columns of a panel that exist.
#[derive(Clone, Copy)]
enum Cols {
    Full,
    /// This many.
    Some(i64),
    /// Only run time knows.
    Guarded,
}

/// One register tile: rows `row .. row + mr`, one panel.
fn block(m: &mut Module, p: &Parts, t: &Tile, row: Dim, mr: i64, panel: Dim, cols: Cols) -> Vec<Stmt> {
    let zero = Dim::constant(0);
    let nv = match cols {
        Cols::Some(r) => (r + 3) / 4,
        _ => i64::from(t.nv),
    };
    let acc = m.reg(ElemType::F32);
    let mut out = vec![Stmt::Acc { reg: acc, lanes: 4, shape: vec![mr as u32, nv as u32], init: Expr::Const(Scalar::f32(0.0)) }];
    // The depth loops, with variables of their own.
    let depth: Vec<(Sym, Dim, Sym)> = p.depth.iter().map(|(s, hi)| (m.syms.loop_var("k", zero, *hi), *hi, *s)).collect();
    let (i, v, l) = (m.syms.loop_var("r", zero, Dim::constant(mr)), m.syms.loop_var("v", zero, Dim::constant(nv)), m.syms.loop_var("l", zero, Dim::constant(4)));
    let lane = Dim::sym(v) * 4 + l;
    let subst_k = |s: Sym| depth.iter().find(|d| d.2 == s).map(|d| Dim::sym(d.0));
    let at_row = |s: Sym, r: Dim| t.m_row.filter(|x| x.0 == s).map(|_| r);
    let a: Vec<Dim> = p.a.1.iter().map(|d| d.subst(&mut |s| subst_k(s).or_else(|| at_row(s, row + i)))).collect();
    let mut b: Vec<Dim> = t.batch.iter().filter(|x| depends(&p.b.1, x.0)).map(|x| Dim::sym(x.0)).collect();
    b.push(panel);
    b.extend(depth.iter().map(|d| Dim::sym(d.0)));
    b.push(lane);
    let value = Expr::fma(Expr::Load { buf: p.a.0, at: a }, Expr::Load { buf: t.packed, at: b }, Expr::Acc { reg: acc, at: vec![i.into(), v.into()], lane: None });
    let set = Stmt::Set { reg: acc, at: vec![i.into(), v.into()], value };
    let unrolled = |s: Stmt| nest(i, mr, nest(v, nv, vec![Stmt::For { kind: LoopKind::Vec(4), var: l, lo: zero, hi: Dim::constant(4), body: vec![s] }]));
    let mut inner = unrolled(set);
    for (n, (var, hi, _)) in depth.iter().rev().enumerate() {
        // Four steps of the innermost loop at a time.
        inner = match hi.as_const() {
            Some(c) if n == 0 && c % 4 == 0 && c > 4 => {
                let (q, u) = (m.syms.loop_var("k", zero, Dim::constant(c / 4)), m.syms.loop_var("u", zero, Dim::constant(4)));
                let body = inner.into_iter().map(|s| s.map_dims(&mut |d| d.subst(&mut |s| (s == *var).then(|| Dim::sym(q) * 4 + u)))).collect();
                vec![Stmt::For { kind: LoopKind::Seq, var: q, lo: zero, hi: Dim::constant(c / 4), body: nest(u, 4, body) }]
            }
            Some(c) if n == 0 && c <= 4 => nest(*var, c, inner),
            _ => vec![Stmt::For { kind: LoopKind::Seq, var: *var, lo: zero, hi: *hi, body: inner }],
        };
    }
    out.extend(inner);
    out.extend(stores(m, p, t, acc, row, mr, panel * t.nr, nv, cols));
    out
}

fn nest(var: Sym, n: i64, body: Vec<Stmt>) -> Vec<Stmt> {
    vec![Stmt::For { kind: LoopKind::Unroll, var, lo: Dim::constant(0), hi: Dim::constant(n), body }]
}

#[allow(clippy::too_many_arguments)]
fn stores(m: &mut Module, p: &Parts, t: &Tile, acc: Reg, row: Dim, mr: i64, col: Dim, nv: i64, cols: Cols) -> Vec<Stmt> {
    let zero = Dim::constant(0);
    // The tail with the tile's position put in; `lane` picks one lane, else all of a vector loop.
    let tail = |m: &mut Module, i: Dim, v: Dim, l: Dim, lane: Option<Dim>| -> Vec<Stmt> {
        let at = |s: Sym| {
            if s == t.n {
                return Some(col + v * 4 + l);
            }
            t.m_row.filter(|x| x.0 == s).map(|_| row + i)
        };
        fresh_regs(m, &p.tail)
            .into_iter()
            .map(|s| {
                s.map_dims(&mut |d| m.syms.simplify(d.subst(&mut |s| at(s)))).map_exprs(&mut |e| {
                    e.rewrite(&mut |e| match e {
                        Expr::Acc { reg, .. } if reg == p.acc => Expr::Acc { reg: acc, at: vec![i, v], lane },
                        e => e,
                    })
                })
            })
            .collect()
    };
    let whole = match cols {
        Cols::Some(r) => r / 4,
        _ => nv,
    };
    let i = m.syms.loop_var("r", zero, Dim::constant(mr));
    let v = m.syms.loop_var("v", zero, Dim::constant(nv));
    let l = m.syms.loop_var("l", zero, Dim::constant(4));
    let vector = |m: &mut Module, v: Dim| vec![Stmt::For { kind: LoopKind::Vec(4), var: l, lo: zero, hi: Dim::constant(4), body: tail(m, i.into(), v, l.into(), None) }];
    let mut body = vec![];
    match cols {
        Cols::Guarded => {
            let at = col + Dim::sym(v) * 4;
            let mut single = vec![];
            for j in 0..4 {
                let then = tail(m, i.into(), v.into(), Dim::constant(j), Some(Dim::constant(j)));
                single.push(Stmt::If { cond: Expr::cmp_index(BinOp::Lt, at + j, t.n_extent), then, els: vec![] });
            }
            let both = Stmt::If { cond: Expr::cmp_index(BinOp::Le, at + 4, t.n_extent), then: vector(m, v.into()), els: single };
            body.extend(nest(v, nv, vec![both]));
        }
        _ => {
            if whole > 0 {
                let inner = vector(m, v.into());
                body.extend(nest(v, whole, inner));
            }
            if let Cols::Some(r) = cols {
                for j in 0..r % 4 {
                    body.extend(tail(m, i.into(), Dim::constant(whole), Dim::constant(j), Some(Dim::constant(j))));
                }
            }
        }
    }
    nest(i, mr, body)
}
