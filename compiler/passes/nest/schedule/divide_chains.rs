//! Chains of elementary functions, with a loop over the row for each function.
//!
//! ```text
//! vec(16) i in 0..N {                    vec(16) i in 0..32*floordiv(N, 32) {
//!   y[i] = exp(tanh(x[i]))                 y[i] = tanh(x[i])
//! }                                      }
//!                                        vec(16) i in 0..32*floordiv(N, 32) {
//!                                  =>      y[i] = exp(y[i])
//!                                        }
//!                                        vec(16) i in 32*floordiv(N, 32)..N {
//!                                          y[i] = exp(tanh(x[i]))
//!                                        }
//! ```
//!
//! Each operation of a chain waits for the previous one, so a core is busy only if its reorder window covers
//! many vectors. It covers three vectors of four functions, and twelve of one, whose constants stay in
//! registers, too. Values between the functions wait where the results will be. The last vector, which may be
//! partial, is computed at once: a masked load of what was stored under a mask waits for the cache.

use super::lanes::renamed;
use crate::maps::{Map, Set};
use crate::nest::{Buf, Expr, Kernel, LoopKind, Module, Reg, Stmt, visit};
use crate::passes::nest::analysis::strides::stride;
use crate::sym::{Dim, Sym};

/// Minimum vectors of a row that is divided: a reorder window covers the functions of shorter rows.
const LEAST: i64 = 4;
/// Rows of run-time length are divided up to a multiple of this many vectors: rows of one vector, for which
/// each loop costs a fifth of its function, are not.
const TOGETHER: i64 = 2;

/// Divides the rows of a scheduled kernel.
pub(super) fn run(m: &mut Module, k: Kernel) {
    let mut functions = 0;
    visit::walk_exprs(&m.kernels[k].body, &mut |e| functions += usize::from(is_function(m, e)));
    if functions > 1 {
        let body = std::mem::take(&mut m.kernels[k].body);
        m.kernels[k].body = divided(m, body.into()).into();
    }
}

fn divided(m: &mut Module, body: Vec<Stmt>) -> Vec<Stmt> {
    let mut out = vec![];
    for mut s in body {
        if let Some(loops) = row(m, &s) {
            out.extend(loops);
            continue;
        }
        s.bodies_mut().for_each(|b| *b = divided(m, std::mem::take(b)));
        out.push(s);
    }
    out
}

/// The loops in place of one over a row, if its results are long chains.
fn row(m: &mut Module, s: &Stmt) -> Option<Vec<Stmt>> {
    let Stmt::For { kind: kind @ LoopKind::Vec(lanes), var, lo, hi, body } = s else { return None };
    let (lanes, n) = (i64::from(*lanes), m.syms.simplify(*hi - *lo));
    if m.syms.range(n).hi.is_some_and(|n| n < LEAST * lanes) {
        return None;
    }
    let parts = parts(m, body, *var)?;
    let step = if n.as_const().is_some() { lanes } else { TOGETHER * lanes };
    let end = m.syms.simplify(*lo + n.floor_div(step) * step);
    let mut in_loop = |body: &[Stmt], lo: Dim, hi: Dim| {
        let (body, var) = renamed(m, body, *var, lo, hi);
        Stmt::For { kind: *kind, var, lo, hi, body }
    };
    let mut loops: Vec<Stmt> =
        parts.iter().map(|part| in_loop(std::slice::from_ref(part), *lo, end)).collect();
    if end != *hi {
        loops.push(in_loop(body, end, *hi));
    }
    Some(loops)
}

/// The statements that compute a result function by function; `None` if it has a single one, or if parts of
/// it may not be computed separately.
fn parts(m: &Module, body: &[Stmt], var: Sym) -> Option<Vec<Stmt>> {
    let [Stmt::Store { buf, at, value }] = body else { return None };
    if stride(m, *buf, at, var) != Some(1) || reads(m, value, *buf) || !is_unconditional(value) {
        return None;
    }
    let result = Expr::Load { buf: *buf, at: at.clone() };
    let store = |value: Expr| Stmt::Store { buf: *buf, at: at.clone(), value };
    let (mut parts, mut rest) = (vec![], value.clone());
    loop {
        let mut chains = Chains { m, of: Map::default() };
        let all = chains.longest(&rest);
        let inside = defined(&rest);
        let mut first = None;
        rest = rest.rewrite(&mut |e| {
            // Each part reads the one before it: there is one place for what waits.
            let follows = parts.is_empty() || e.any(&mut |e| *e == result);
            let is_part = follows && (1..all).contains(&chains.longest(&e)) && is_closed(&e, &inside);
            if first.is_some() || !is_part || m.type_of(&e) != m.bufs[*buf].ty {
                return e;
            }
            first = Some(e);
            result.clone()
        });
        let Some(e) = first else { break };
        parts.push(store(e));
    }
    parts.push(store(rest));
    (parts.len() > 1).then_some(parts)
}

/// True if an expression reads the memory of a buffer.
fn reads(m: &Module, e: &Expr, buf: Buf) -> bool {
    e.any(&mut |e| e.loaded().is_some_and(|b| m.storage(b) == m.storage(buf)))
}

/// True if all parts of a value may be computed before what is around them: nothing is under a condition that
/// keeps loads in range, under an index, or in an accumulator, each of whose lanes belongs to a vector.
fn is_unconditional(value: &Expr) -> bool {
    let loads = |e: &Expr| e.any(&mut |e| e.loaded().is_some());
    !value.any(&mut |e| match e {
        Expr::Select(_, a, b) => loads(a) || loads(b),
        e => matches!(e, Expr::With { .. } | Expr::Acc { .. }),
    })
}

/// The values that an expression defines.
fn defined(e: &Expr) -> Set<Reg> {
    let mut out = Set::default();
    e.walk(&mut |e| {
        if let Expr::Let { reg, .. } = e {
            out.insert(*reg);
        }
    });
    out
}

/// True if part of an expression, which defines the values `all`, uses only those of them that it defines.
fn is_closed(part: &Expr, all: &Set<Reg>) -> bool {
    let own = defined(part);
    !part.any(&mut |e| matches!(e, Expr::Reg(r) if all.contains(r) && !own.contains(r)))
}

fn is_function(m: &Module, e: &Expr) -> bool {
    matches!(e, Expr::Un(op, a) if op.is_elementary(m.type_of(a)))
}

/// Chains of elementary functions, each of which depends on the previous one.
struct Chains<'a> {
    m: &'a Module,
    /// The longest one that ends in a value.
    of: Map<Reg, usize>,
}

impl Chains<'_> {
    /// The number of functions in the longest chain of an expression.
    fn longest(&mut self, e: &Expr) -> usize {
        match e {
            Expr::Reg(r) => self.of.get(r).copied().unwrap_or(0),
            Expr::Let { reg, value, body } => {
                let n = self.longest(value);
                self.of.insert(*reg, n);
                self.longest(body)
            }
            e => {
                let before = e.children().map(|c| self.longest(c)).max().unwrap_or(0);
                before + usize::from(is_function(self.m, e))
            }
        }
    }
}
