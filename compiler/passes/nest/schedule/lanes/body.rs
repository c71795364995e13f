//! A body for several values of a loop variable at once: accumulators get lanes, and straight-line statements
//! become a vector loop each.

use crate::nest::{Expr, Module, Reg, Stmt, visit};
use crate::passes::nest::analysis::lanes64;
use crate::passes::nest::analysis::shape::{fresh_regs, loop_like};
use crate::sym::{Dim, Sym};
use crate::tensor::ElemType;
use std::collections::HashMap;

/// A copy of a body with fresh registers and another variable.
pub(crate) fn renamed(m: &mut Module, body: &[Stmt], var: Sym, lo: Dim, hi: Dim) -> (Vec<Stmt>, Sym) {
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

/// Adjacent vectors.
#[derive(Clone, Copy)]
pub(super) struct Adjacent {
    /// The variable that they run along, and its value in the first lane.
    pub var: Sym,
    pub base: Dim,
    pub count: i64,
    pub lanes: Lanes,
}

impl Adjacent {
    /// The statements for all vectors: accumulators get lanes, straight-line statements become a vector loop
    /// each.
    pub fn in_lanes(&self, m: &mut Module, body: &[Stmt]) -> Vec<Stmt> {
        let mut accs: Vec<Reg> = vec![];
        visit::walk(body, &mut |s| {
            if let Stmt::Acc { reg, .. } = s {
                accs.push(*reg);
            }
        });
        self.of(m, body, &accs)
    }
    /// The statements for all vectors: those of `accs` get lanes.
    pub fn of(&self, m: &mut Module, body: &[Stmt], accs: &[Reg]) -> Vec<Stmt> {
        let mut out = vec![];
        let mut straight: Vec<Stmt> = vec![];
        for s in body {
            match s {
                Stmt::For { kind, var, lo, hi, body } => {
                    out.extend(self.straight(m, std::mem::take(&mut straight), accs));
                    let body = self.of(m, body, accs);
                    out.push(Stmt::For { kind: *kind, var: *var, lo: *lo, hi: *hi, body });
                }
                Stmt::Acc { reg, init, .. } => {
                    out.extend(self.straight(m, std::mem::take(&mut straight), accs));
                    // Initial values may differ between lanes.
                    let varies = init.any(&mut |e| !matches!(e, Expr::Const(_)));
                    let first = if varies { Expr::num(m.regs[*reg].ty, 0.0) } else { init.clone() };
                    out.push(Stmt::Acc {
                        reg: *reg,
                        lanes: self.lanes.0 as u32,
                        shape: if self.count > 1 { vec![self.count as u32] } else { vec![] },
                        init: first,
                    });
                    if varies {
                        straight.push(Stmt::Set { reg: *reg, at: vec![], value: init.clone() });
                    }
                }
                s => straight.push(s.clone()),
            }
        }
        out.extend(self.straight(m, straight, accs));
        out
    }
    /// Statements without loops: whole vectors, and the last one if it is partial.
    fn straight(&self, m: &mut Module, body: Vec<Stmt>, accs: &[Reg]) -> Vec<Stmt> {
        let (whole, (lanes, last)) = (self.count - 1, self.lanes);
        if body.is_empty() {
            return vec![];
        }
        if whole == 0 || last == Dim::constant(lanes) {
            return vec![self.vectors(m, (0, self.count), last, body, accs)];
        }
        let again = fresh_regs(m, &body);
        vec![
            self.vectors(m, (0, whole), lanes.into(), body, accs),
            self.vectors(m, (whole, 1), last, again, accs),
        ]
    }
    /// The statements for `n` vectors from number `first` on, with `used` active lanes each.
    fn vectors(
        &self,
        m: &mut Module,
        (first, n): (i64, i64),
        used: Dim,
        body: Vec<Stmt>,
        accs: &[Reg],
    ) -> Stmt {
        let (zero, lanes) = (Dim::constant(0), self.lanes.0);
        let (i, l) = (m.syms.loop_var("u", zero, Dim::constant(n)), m.syms.loop_var("l", zero, used));
        let number = if n > 1 { Dim::sym(i) + first } else { Dim::constant(first) };
        let here = self.base + number * lanes + l;
        let index = |at: Vec<Dim>| if self.count > 1 && at.is_empty() { vec![number] } else { at };
        let set = |s: Stmt| match s {
            Stmt::Set { reg, at, value } if accs.contains(&reg) => Stmt::Set { reg, at: index(at), value },
            s => s,
        };
        let read = |e: Expr| match e {
            Expr::Acc { reg, at, lane } if accs.contains(&reg) => Expr::Acc { reg, at: index(at), lane },
            e => e,
        };
        let of_lane = |s: Sym| (s == self.var).then_some(here);
        let body = body.into_iter().map(|s| set(s).rewrite_exprs(&mut |e| read(e)).subst(&of_lane)).collect();
        let vector = Stmt::vector(lanes, l, used, body);
        if n > 1 { Stmt::unroll(i, n, vec![vector]) } else { vector }
    }
}

/// A row of `extent` elements in pieces of `n`, each of which is a task.
pub(super) fn in_pieces(
    m: &mut Module,
    extent: Dim,
    n: i64,
    body: impl FnOnce(&mut Module, (Dim, Dim)) -> Vec<Stmt>,
) -> Vec<Stmt> {
    let count = extent.ceil_div(n);
    let c = m.syms.loop_var("c", Dim::constant(0), count);
    let lo = Dim::sym(c) * n;
    let hi = if extent.modulo(n).as_const() == Some(0) { lo + n } else { extent.min(lo + n) };
    let body = body(m, (lo, hi));
    vec![Stmt::par(c, count, body)]
}
