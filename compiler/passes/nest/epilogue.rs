//! fuse_epilogues: an elementwise or permuting kernel that alone reads the result of another kernel moves into that
//! kernel's store. Bias, activation, residual and transposition then happen in registers.
//!
//! The producer moves down to where the consumer stood, so that everything the consumer reads is there.

use super::shape::{Uses, as_map, cover, instance, is_temp, peel, relocate, wrap};
use crate::diag::Result;
use crate::nest::{Buf, Expr, Kernel, Module, Stmt, visit};
use crate::sym::{Dim, Sym};
use std::collections::HashMap;

/// Runs the pass until nothing changes.
pub fn run(m: &mut Module) -> Result<()> {
    loop {
        let uses = Uses::new(m);
        let mut changed = false;
        for c in uses.order.clone() {
            if let Some(p) = candidate(m, &uses, c) {
                fuse(m, p, c);
                changed = true;
                break;
            }
        }
        if !changed {
            return Ok(());
        }
    }
}

struct Plan {
    producer: Kernel,
    /// The producer's result.
    buf: Buf,
    /// For each loop of the consumer: its value at the producer's store.
    subst: HashMap<Sym, Dim>,
}

fn candidate(m: &Module, uses: &Uses, c: Kernel) -> Option<Plan> {
    let map = as_map(&m.kernels[c].body)?;
    if map.value.size() > 80 {
        return None;
    }
    let mut found = None;
    for b in visit::loads(&m.kernels[c].body) {
        let t = m.storage(b);
        if !is_temp(m, t) || uses.readers(t) != [c] {
            continue;
        }
        let [p] = uses.writers(t) else { continue };
        if *p == c {
            continue;
        }
        if let Some(plan) = plan(m, *p, c, t) {
            // The latest producer: it moves least.
            let at = uses.order.iter().position(|k| k == p);
            if found.as_ref().is_none_or(|(best, _)| *best < at) {
                found = Some((at, plan));
            }
        }
    }
    found.map(|f| f.1)
}

fn plan(m: &Module, p: Kernel, c: Kernel, t: Buf) -> Option<Plan> {
    let producer = peel(&m.kernels[p].body);
    // One store of the result, right inside the parallel loops, read by nothing in the producer itself.
    let mut store = None;
    for s in &producer.body {
        if let Stmt::Store { buf, at, .. } = s {
            if store.is_some() {
                return None;
            }
            store = Some((*buf, at.clone()));
        }
    }
    let (buf, at) = store?;
    if buf != t || visit::stores(&m.kernels[p].body) != [t] || visit::loads(&m.kernels[p].body).iter().any(|b| m.storage(*b) == t) {
        return None;
    }
    let all_stores = {
        let mut n = 0;
        visit::walk(&producer.body, &mut |s| n += usize::from(matches!(s, Stmt::Store { .. })));
        n
    };
    if all_stores != 1 || producer.body.len() < 2 {
        // Maps are the business of the inliner.
        return None;
    }
    cover(m, t, &at, &producer.loops)?;
    let map = as_map(&m.kernels[c].body)?;
    // Every load of the result at one position, and that position a bijection of the consumer's loops.
    let mut access: Option<(Buf, Vec<Dim>)> = None;
    let mut one = true;
    map.value.walk(&mut |e| {
        if let Expr::Load { buf, at } = e
            && m.storage(*buf) == t
        {
            match &access {
                None => access = Some((*buf, at.clone())),
                Some((b, a)) => one &= b == buf && a == at,
            }
        }
    });
    let (view, index) = access.filter(|_| one)?;
    // The load must cover the view: each loop once.
    cover(m, view, &index, &map.loops)?;
    let position = if view == t { at } else { relocate(m, &m.bufs[t].dims, &at, &m.bufs[view].dims) };
    let subst: HashMap<Sym, Dim> = index.iter().zip(&position).filter_map(|(i, d)| i.as_sym().map(|s| (s, *d))).collect();
    // What the consumer does under conditions on its position needs them in the producer: fine, they are expressions.
    Some(Plan { producer: p, buf: t, subst })
}

fn fuse(m: &mut Module, plan: Plan, c: Kernel) {
    let Some(map) = as_map(&m.kernels[c].body) else { return };
    let producer = peel(&m.kernels[plan.producer].body);
    let subst = |s: Sym| plan.subst.get(&s).copied();
    let value = instance(m, &map.value, &subst);
    let to: Vec<Dim> = map.at.iter().map(|d| m.syms.simplify(d.subst(&mut |s| subst(s)))).collect();
    let mut body = vec![];
    for s in producer.body {
        match s {
            Stmt::Store { buf, value: result, .. } if buf == plan.buf => {
                let loads = {
                    let mut n = 0;
                    value.walk(&mut |e| n += usize::from(matches!(e, Expr::Load { buf, .. } if m.storage(*buf) == plan.buf)));
                    n
                };
                let ty = m.type_of(&result);
                // Of 16-bit results the consumer sees the compute type: they are not rounded on the way.
                let stored = m.bufs[plan.buf].ty;
                debug_assert_eq!(stored.compute(), ty);
                let simple = matches!(result, Expr::Acc { .. } | Expr::Reg(_));
                let stand_in = if loads > 1 && !simple {
                    let reg = m.reg(ty);
                    body.push(Stmt::Let { reg, value: result });
                    Expr::Reg(reg)
                } else {
                    result
                };
                let buf_of = plan.buf;
                let value = value.clone().rewrite(&mut |e| match e {
                    Expr::Load { buf, .. } if m.storage(buf) == buf_of => stand_in.clone(),
                    e => e,
                });
                body.push(Stmt::Store { buf: map.buf, at: to.clone(), value });
            }
            s => body.push(s),
        }
    }
    let loops = producer.loops;
    m.kernels[c].body = wrap(&loops, body);
    let name = m.kernels[plan.producer].name.clone();
    m.kernels[c].name = name;
    m.kernels[c].origin = m.kernels[plan.producer].origin.clone();
    m.driver.retain(|s| !matches!(s, Stmt::Call(k) if *k == plan.producer));
}
