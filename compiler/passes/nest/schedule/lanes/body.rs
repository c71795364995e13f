//! A body for several values of a loop variable at once: accumulators get lanes, and straight-line statements
//! become a vector loop each.

use crate::nest::{Expr, Module, Reg, Stmt, visit};
use crate::passes::nest::analysis::lanes64;
use crate::passes::nest::analysis::shape::{fresh_regs, loop_like};
use crate::sym::{Dim, Sym};
use crate::tensor::ElemType;
use std::collections::HashMap;

/// A copy of a body with fresh registers and another variable.
pub(super) fn renamed(m: &mut Module, body: &[Stmt], var: Sym, lo: Dim, hi: Dim) -> (Vec<Stmt>, Sym) {
    let v = loop_like(m, var, lo, hi);
    let body = fresh_regs(m, body);
    (body.into_iter().map(|s| s.subst(&|s| (s == var).then(|| Dim::sym(v)))).collect(), v)
}

/// Statements that run `count` times, 0 or 1, as a loop: tiles have no branches, so an `if` would divide the
/// tile of the statements around it.
pub(super) fn once(m: &mut Module, count: Dim, body: Vec<Stmt>) -> Stmt {
    let count = m.syms.simplify(count);
    let e = m.syms.loop_var("e", Dim::constant(0), count);
    Stmt::seq(e, count, body)
}

/// Turns values that are live across loops or accumulators into accumulators: each straight-line sequence
/// becomes a separate vector loop, and only accumulators are live across these.
pub(super) fn lets_as_accs(m: &mut Module, body: Vec<Stmt>) -> Vec<Stmt> {
    let mut map: HashMap<Reg, Reg> = HashMap::new();
    let body = convert_lets(m, body, &mut map);
    if map.is_empty() {
        return body;
    }
    let value = |e: Expr| match e {
        Expr::Reg(r) if map.contains_key(&r) => Expr::acc(map[&r]),
        e => e,
    };
    body.into_iter().map(|s| s.rewrite_exprs(&mut |e| value(e))).collect()
}

fn convert_lets(m: &mut Module, body: Vec<Stmt>, map: &mut HashMap<Reg, Reg>) -> Vec<Stmt> {
    let split = body.iter().any(|s| matches!(s, Stmt::For { .. } | Stmt::Acc { .. }));
    let mut out = vec![];
    for s in body {
        match s {
            Stmt::Let { reg, value }
                if split
                    && (matches!(m.regs[reg].ty, ElemType::F32 | ElemType::I32 | ElemType::U32)
                        || lanes64::is(m.regs[reg].ty)) =>
            {
                let ty = m.regs[reg].ty;
                let acc = m.reg(ty);
                map.insert(reg, acc);
                out.push(Stmt::Acc { reg: acc, lanes: 1, shape: vec![], init: Expr::num(ty, 0.0) });
                out.push(Stmt::Set { reg: acc, at: vec![], value });
            }
            Stmt::For { kind, var, lo, hi, body } => {
                out.push(Stmt::For { kind, var, lo, hi, body: convert_lets(m, body, map) })
            }
            s => out.push(s),
        }
    }
    out
}

/// Lanes of a vector, and active lanes; of several vectors, the active lanes of the last one.
pub(super) type Lanes = (i64, Dim);

/// The body for `lanes * u` adjacent values of `var` from `base` on: accumulators get lanes, straight-line
/// statements become a vector loop each.
pub(super) fn in_lanes(
    m: &mut Module,
    body: &[Stmt],
    var: Sym,
    base: Dim,
    u: i64,
    lanes: Lanes,
) -> Vec<Stmt> {
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

pub(super) fn lanes_of(
    m: &mut Module,
    body: &[Stmt],
    var: Sym,
    base: Dim,
    u: i64,
    accs: &[Reg],
    lanes: Lanes,
) -> Vec<Stmt> {
    let mut out = vec![];
    let mut straight: Vec<Stmt> = vec![];
    let flush = |m: &mut Module, straight: &mut Vec<Stmt>, out: &mut Vec<Stmt>| {
        if straight.is_empty() {
            return;
        }
        let (zero, whole) = (Dim::constant(0), Dim::constant(lanes.0));
        let straight: Vec<Stmt> = std::mem::take(straight);
        // Vectors `first .. first + n`, with `used` active lanes each.
        let mut vectors = |m: &mut Module, first: i64, n: i64, used: Dim, body: Vec<Stmt>| {
            let (i, l) = (m.syms.loop_var("u", zero, Dim::constant(n)), m.syms.loop_var("l", zero, used));
            let number = if n > 1 { Dim::sym(i) + first } else { Dim::constant(first) };
            let here = base + number * lanes.0 + l;
            let index = |at: Vec<Dim>| if u > 1 && at.is_empty() { vec![number] } else { at };
            let body = body
                .into_iter()
                .map(|s| {
                    let s = match s {
                        Stmt::Set { reg, at, value } if accs.contains(&reg) => {
                            Stmt::Set { reg, at: index(at), value }
                        }
                        s => s,
                    };
                    s.rewrite_exprs(&mut |e| match e {
                        Expr::Acc { reg, at, lane } if accs.contains(&reg) => {
                            Expr::Acc { reg, at: index(at), lane }
                        }
                        e => e,
                    })
                    .subst(&|s| (s == var).then_some(here))
                })
                .collect();
            let vec = Stmt::vector(lanes.0, l, used, body);
            out.push(if n > 1 { Stmt::unroll(i, n, vec![vec]) } else { vec });
        };
        if u == 1 || lanes.1 == whole {
            vectors(m, 0, u, lanes.1, straight);
        } else {
            let again = fresh_regs(m, &straight);
            vectors(m, 0, u - 1, whole, straight);
            vectors(m, u - 1, 1, lanes.1, again);
        }
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
                // Initial values may differ between lanes.
                let varies = init.any(&mut |e| !matches!(e, Expr::Const(_)));
                let first = if varies { Expr::num(m.regs[*reg].ty, 0.0) } else { init.clone() };
                out.push(Stmt::Acc {
                    reg: *reg,
                    lanes: lanes.0 as u32,
                    shape: if u > 1 { vec![u as u32] } else { vec![] },
                    init: first,
                });
                if varies {
                    straight.push(Stmt::Set { reg: *reg, at: vec![], value: init.clone() });
                }
            }
            s => straight.push(s.clone()),
        }
    }
    flush(m, &mut straight, &mut out);
    out
}
