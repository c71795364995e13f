//! Loops and accesses of kernels, and rewriting of both, for fusion and schedules.

pub(crate) use crate::nest::form::{Map, ParNest, as_map, cover, par_loops, peel, wrap};
use crate::nest::{Buf, Expr, KernelBuilder, LoopKind, Module, Place, Reg, Stmt, visit};
pub use crate::passes::nest::analysis::uses::Uses;
use crate::sym::{Dim, Sym};
use std::collections::HashMap;

/// The subscript after fusing two loops into one, the inner one of `extent` iterations.
pub(crate) fn in_one(d: Dim, (outer, inner): (Sym, Sym), extent: Dim, one: Sym) -> Dim {
    let one = Dim::sym(one);
    d.subst(&mut |s| match s {
        s if s == outer => Some(one.floor_div(extent)),
        s if s == inner => Some(one.modulo(extent)),
        _ => None,
    })
}

/// Position in `to` (the buffer that owns the memory) of an access to a view of it.
pub fn through_view(m: &Module, view: Buf, at: &[Dim], to: Buf) -> Vec<Dim> {
    if view == to {
        return at.to_vec();
    }
    relocate(m, &m.bufs[view].dims, at, &m.bufs[to].dims)
}

/// The same row-major position under another shape.
pub fn relocate(m: &Module, from: &[Dim], at: &[Dim], to: &[Dim]) -> Vec<Dim> {
    // Equal leading and trailing dims keep their subscripts; only the middle ones are linearised and divided.
    let lead = from.iter().zip(to).take_while(|(a, b)| a == b).count();
    let rest = |n: usize| n - lead;
    let trail = from[lead..].iter().rev().zip(to[lead..].iter().rev()).take_while(|(a, b)| a == b).count();
    let (fm, tm) = (&from[lead..lead + rest(from.len()) - trail], &to[lead..lead + rest(to.len()) - trail]);
    let mid = fm.iter().zip(&at[lead..]).fold(Dim::constant(0), |s, (d, i)| s * *d + *i);
    let mut out = at[..lead].to_vec();
    let mut stride = Dim::product(tm.iter().copied());
    for (k, d) in tm.iter().enumerate() {
        stride = match stride.floor_div(*d) {
            s if s * *d == stride => s,
            _ => Dim::product(tm[k + 1..].iter().copied()),
        };
        let q = m.syms.simplify(mid.floor_div(stride));
        // The outermost quotient is always in range.
        out.push(if k == 0 { q } else { m.syms.simplify(q.modulo(*d)) });
    }
    for (o, d) in out[lead..].iter_mut().zip(tm) {
        if d.as_const() == Some(1) {
            *o = Dim::constant(0);
        }
    }
    out.extend_from_slice(&at[from.len() - trail..]);
    out
}

/// True if no loop variable is in a division: the dim is cheap and linear enough for inner loops. Divisions
/// of sizes are done once, outside of all loops.
pub fn is_plain(m: &Module, d: Dim) -> bool {
    use crate::sym::{Atom, View};
    let outside = |a: &Atom| matches!(a, Atom::Sym(_)) || !m.syms.has_loops(Dim::atom(a.clone()));
    match d.view() {
        View::Sum { terms, .. } => terms.iter().flat_map(|t| &t.1).all(outside),
        _ => true,
    }
}

/// A copy of an expression with symbols replaced and with fresh registers and bound indices.
pub fn instance(m: &mut Module, e: &Expr, f: &dyn Fn(Sym) -> Option<Dim>) -> Expr {
    let mut regs: HashMap<Reg, Reg> = HashMap::new();
    let mut syms: HashMap<Sym, Sym> = HashMap::new();
    e.walk(&mut |e| match e {
        Expr::Let { reg, .. } => {
            let ty = m.regs[*reg].ty;
            regs.insert(*reg, m.reg(ty));
        }
        Expr::With { sym, extent, .. } => {
            let hi = extent.subst(&mut |s| f(s));
            syms.insert(*sym, m.syms.loop_var("x", Dim::constant(0), hi));
        }
        _ => {}
    });
    let all = |s: Sym| syms.get(&s).map(|s| Dim::sym(*s)).or_else(|| f(s));
    let table = std::mem::take(&mut m.syms);
    let out = e
        .clone()
        .map_dims(&mut |d| if d.as_const().is_some() { d } else { table.simplify(d.subst(&mut |s| all(s))) })
        .rewrite(&mut |e| match e {
            Expr::Reg(r) => Expr::Reg(*regs.get(&r).unwrap_or(&r)),
            Expr::Let { reg, value, body } => Expr::Let { reg: *regs.get(&reg).unwrap_or(&reg), value, body },
            Expr::With { sym, value, extent, body } => {
                Expr::With { sym: *syms.get(&sym).unwrap_or(&sym), value, extent, body }
            }
            e => e,
        });
    m.syms = table;
    out
}

/// True for buffers that a pass may remove.
pub fn is_temp(m: &Module, b: Buf) -> bool {
    matches!(m.bufs[b].place, Place::Temp)
}

/// A fresh variable with the name of another.
pub fn loop_like(m: &mut Module, var: Sym, lo: Dim, hi: Dim) -> Sym {
    let name = m.syms.name(var).to_owned();
    m.syms.loop_var(&name, lo, hi)
}

/// A copy with fresh registers, loop variables and bound indices, since each has a single definition.
pub fn fresh_regs(m: &mut Module, body: &[Stmt]) -> Vec<Stmt> {
    let mut map: HashMap<Reg, Reg> = HashMap::new();
    let mut bound: HashMap<Sym, Sym> = HashMap::new();
    let mut note = |m: &mut Module, r: Reg| {
        let data = m.regs[r];
        map.entry(r).or_insert_with(|| m.regs.push(data));
    };
    visit::walk(body, &mut |s| {
        if let Stmt::Let { reg, .. } | Stmt::Acc { reg, .. } = s {
            note(m, *reg);
        }
    });
    visit::walk_exprs(body, &mut |e| match e {
        Expr::Let { reg, .. } => note(m, *reg),
        Expr::With { sym, extent, .. } => {
            let new = loop_like(m, *sym, Dim::constant(0), *extent);
            bound.insert(*sym, new);
        }
        _ => {}
    });
    let get = |r: Reg| *map.get(&r).unwrap_or(&r);
    rename_loops(m, body.to_vec())
        .into_iter()
        .map(|s| {
            map_regs(s, &get).rewrite_exprs(&mut |e| match e {
                Expr::Reg(r) => Expr::Reg(get(r)),
                Expr::Acc { reg, at, lane } => Expr::Acc { reg: get(reg), at, lane },
                Expr::Horizontal { op, reg, at } => Expr::Horizontal { op, reg: get(reg), at },
                Expr::Let { reg, value, body } => Expr::Let { reg: get(reg), value, body },
                Expr::With { sym, value, extent, body } => {
                    Expr::With { sym: *bound.get(&sym).unwrap_or(&sym), value, extent, body }
                }
                e => e,
            })
        })
        .map(|s| if bound.is_empty() { s } else { s.subst(&|s| bound.get(&s).map(|s| Dim::sym(*s))) })
        .collect()
}

/// The statement with the registers that it defines and sets renamed.
fn map_regs(s: Stmt, get: &dyn Fn(Reg) -> Reg) -> Stmt {
    s.rewrite(&mut |s| match s {
        Stmt::Let { reg, value } => Stmt::Let { reg: get(reg), value },
        Stmt::Acc { reg, lanes, shape, init } => Stmt::Acc { reg: get(reg), lanes, shape, init },
        Stmt::Set { reg, at, value } => Stmt::Set { reg: get(reg), at, value },
        s => s,
    })
}

/// Renames inner loops and indices, since every symbol has a single definition.
fn rename_loops(m: &mut Module, body: Vec<Stmt>) -> Vec<Stmt> {
    let inside = |m: &mut Module, body: Vec<Stmt>, var: Sym, v: Sym| {
        let body = body.into_iter().map(|s| s.subst(&|s| (s == var).then(|| Dim::sym(v)))).collect();
        rename_loops(m, body)
    };
    body.into_iter()
        .map(|s| match s {
            Stmt::For { kind, var, lo, hi, body } => {
                let v = loop_like(m, var, lo, hi);
                Stmt::For { kind, var: v, lo, hi, body: inside(m, body, var, v) }
            }
            Stmt::With { sym, value, extent, body } => {
                let v = loop_like(m, sym, Dim::constant(0), extent);
                Stmt::With { sym: v, value, extent, body: inside(m, body, sym, v) }
            }
            Stmt::If { cond, then, els } => {
                Stmt::If { cond, then: rename_loops(m, then), els: rename_loops(m, els) }
            }
            Stmt::Tile { body } => Stmt::Tile { body: rename_loops(m, body) },
            Stmt::While { cond, body } => Stmt::While { cond, body: rename_loops(m, body) },
            s => s,
        })
        .collect()
}

/// The loops without those of one iteration, and the body in these.
fn repeated(m: &mut Module, loops: &[(Sym, Dim)], body: Vec<Stmt>) -> (Vec<(Sym, Dim)>, Vec<Stmt>) {
    let (ones, loops): (Vec<(Sym, Dim)>, Vec<_>) = loops.iter().partition(|l| l.1.as_const() == Some(1));
    let first = |s: Sym| ones.iter().any(|l| l.0 == s).then_some(Dim::constant(0));
    (loops, substitute(m, body, &first))
}

/// `par` loops around a part of a larger kernel, which has no tasks of its own: none is fused, since that
/// costs divisions.
pub(crate) fn nested(m: &mut Module, loops: &[(Sym, Dim)], body: Vec<Stmt>) -> Vec<Stmt> {
    let (loops, body) = repeated(m, loops, body);
    wrap(&loops, body)
}

/// `par` loops around a body, fused until there are enough iterations for all threads.
pub(crate) fn parallel(m: &mut Module, loops: &[(Sym, Dim)], body: Vec<Stmt>) -> Vec<Stmt> {
    const ENOUGH: i64 = 64;
    let zero = Dim::constant(0);
    let (loops, mut body) = repeated(m, loops, body);
    if loops.is_empty() {
        return body;
    }
    let (mut join, mut total) = (0, Dim::constant(1));
    while join < loops.len() && total.as_const().is_none_or(|t| t < ENOUGH) {
        total = total * loops[join].1;
        join += 1;
    }
    for (var, hi) in loops[join..].iter().rev() {
        body = vec![Stmt::par(*var, *hi, body)];
    }
    if join == 1 {
        return vec![Stmt::par(loops[0].0, loops[0].1, body)];
    }
    let all = m.syms.loop_var("t", zero, total);
    let mut rest = Dim::sym(all);
    let mut of: Vec<(Sym, Dim)> = vec![];
    for (i, (var, hi)) in loops[..join].iter().enumerate().rev() {
        of.push((*var, if i == 0 { rest } else { rest.modulo(*hi) }));
        rest = rest.floor_div(*hi);
    }
    let body = substitute(m, body, &|s| of.iter().find(|x| x.0 == s).map(|x| x.1));
    vec![Stmt::par(all, total, body)]
}

/// The body with dims substituted for loop variables.
pub(crate) fn substitute(m: &mut Module, body: Vec<Stmt>, f: &dyn Fn(Sym) -> Option<Dim>) -> Vec<Stmt> {
    let body: Vec<Stmt> = body.into_iter().map(|s| s.subst(&|s| f(s))).collect();
    let mut ranges = vec![];
    visit::walk(&body, &mut |s| {
        if let Stmt::For { var, lo, hi, .. } = s {
            ranges.push((*var, *lo, *hi));
        }
    });
    ranges.into_iter().for_each(|(var, lo, hi)| m.syms.set_loop_range(var, lo, hi));
    body
}

/// An epilogue statement with `value` substituted for the accumulator, and `put` applied to loop variables.
pub(crate) fn finished(s: Stmt, sum: Reg, value: &Expr, put: &dyn Fn(Sym) -> Option<Dim>) -> Stmt {
    s.subst(&|s| put(s)).rewrite_exprs(&mut |e| match e {
        Expr::Acc { reg, .. } if reg == sum => value.clone(),
        e => e,
    })
}

/// The parallel loop over `slots` parts of scratch; each iteration runs its share of `total` iterations in
/// sequence.
pub(crate) fn in_slots(
    kb: &mut KernelBuilder,
    total: Dim,
    slots: i64,
    step: &mut dyn FnMut(&mut KernelBuilder, Dim, Dim),
) {
    in_prepared_slots(kb, total, slots, &mut |_, _| {}, step);
}

/// The same, with statements that prepare the scratch of a task for all of its iterations.
pub(crate) fn in_prepared_slots(
    kb: &mut KernelBuilder,
    total: Dim,
    slots: i64,
    prepare: &mut dyn FnMut(&mut KernelBuilder, Dim),
    step: &mut dyn FnMut(&mut KernelBuilder, Dim, Dim),
) {
    kb.range(LoopKind::Par, "s", 0, slots, |kb, first| {
        kb.private(first, |kb, slot| {
            prepare(kb, slot);
            if total.as_const() == Some(slots) {
                step(kb, slot, first);
            } else {
                kb.range(
                    LoopKind::Seq,
                    "i",
                    (first * total).floor_div(slots),
                    ((first + 1) * total).floor_div(slots),
                    |kb, i| step(kb, slot, i),
                );
            }
        });
    });
}

/// The sum of two values, as a value.
pub(crate) fn add(kb: &mut KernelBuilder, a: &Expr, b: &Expr) -> Expr {
    kb.let_(a.clone() + b.clone())
}

/// Their difference.
pub(crate) fn sub(kb: &mut KernelBuilder, a: &Expr, b: &Expr) -> Expr {
    kb.let_(a.clone() - b.clone())
}
