//! schedule: tiles for contractions, vectors for the rest (stage Scheduled).
//!
//! A kernel is one nest, or a parallel loop around several of them (`is_compound`): then each is scheduled by itself, as
//! if it were a kernel.

pub mod contract;
pub mod depthwise;
pub mod lanes;
pub mod lanes64;
pub mod pack;
pub mod rows;
pub mod split_div_mod;
pub mod tiles;
pub mod transpose;

use crate::diag::Result;
use crate::nest::{Kernel, LoopKind, Module, Stage, Stmt, visit};
use crate::passes::nest::analysis::cost;
use crate::passes::nest::analysis::shape::peel;
use crate::passes::nest::fuse::fuse_conv_pool;
use crate::sym::Sym;
use crate::target::{Facts, Level};

/// Runs the pass.
pub fn run(m: &mut Module, level: &Level) -> Result<()> {
    let facts = level.facts;
    for k in visit::calls(&m.driver) {
        if std::mem::replace(&mut m.kernels[k].scheduled, true) {
            continue;
        }
        if facts.lanes == 1 || visit::has_opaque(m, &m.kernels[k].body) {
            cost::estimate(m, k);
        } else if is_compound(&m.kernels[k].body) {
            // Who writes such a kernel estimates its work.
            let work = m.kernels[k].work;
            let body = std::mem::take(&mut m.kernels[k].body);
            let body = parts(m, k, body, facts, None);
            m.kernels[k].body = body;
            m.kernels[k].work = work;
        } else {
            nest(m, k, facts, Within::Kernel);
        }
    }
    m.kernels.values_mut().for_each(|k| k.scheduled = true);
    m.stage = Stage::Scheduled;
    Ok(())
}

/// What a nest is part of.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Within {
    /// Nothing: it is the kernel.
    Kernel,
    /// A larger kernel; the loop that runs it again and again, if any.
    Loop(Option<Sym>),
}

/// One nest, the whole kernel or a part of it.
fn nest(m: &mut Module, k: Kernel, facts: Facts, within: Within) {
    let whole = within == Within::Kernel;
    if fuse_conv_pool::schedule(m, k, facts) || contract::schedule(m, k, facts, within) || depthwise::schedule(m, k, facts) {
        return;
    }
    split_div_mod::split(m, k);
    if !(whole && transpose::schedule(m, k, facts)) {
        lanes::schedule(m, k, facts.into(), whole);
    }
}

/// True for a kernel of parallel nests inside other loops.
fn is_compound(body: &[Stmt]) -> bool {
    let inside = peel(body).body;
    let compound = |body: &[Stmt]| body.iter().all(|s| matches!(s, Stmt::For { .. } | Stmt::With { .. })) && has_nest(body);
    match inside.as_slice() {
        // Of chains beside each other, each is one.
        [Stmt::If { then, els, .. }] => compound(then) && (compound(els) || is_compound(els)),
        inside => compound(inside),
    }
}

fn has_nest(body: &[Stmt]) -> bool {
    let mut found = false;
    visit::walk(body, &mut |s| found |= matches!(s, Stmt::For { kind: LoopKind::Par, .. }));
    found
}

/// Schedules the nests inside; `k` lends its body.
fn parts(m: &mut Module, k: Kernel, body: Vec<Stmt>, facts: Facts, turn: Option<Sym>) -> Vec<Stmt> {
    let mut out = vec![];
    for s in body {
        match s {
            Stmt::For { kind, var, lo, hi, body } if is_compound(&body) || kind == LoopKind::Seq && has_nest(&body) => {
                let turn = if kind == LoopKind::Seq { Some(var) } else { turn };
                out.push(Stmt::For { kind, var, lo, hi, body: parts(m, k, body, facts, turn) });
            }
            Stmt::If { cond, then, els } if has_nest(&then) => {
                let (then, els) = (parts(m, k, then, facts, turn), parts(m, k, els, facts, turn));
                out.push(Stmt::If { cond, then, els });
            }
            Stmt::With { sym, value, extent, body } if has_nest(&body) => {
                let body = parts(m, k, body, facts, turn);
                out.push(Stmt::With { sym, value, extent, body });
            }
            s => {
                m.kernels[k].body = vec![s];
                nest(m, k, facts, Within::Loop(turn));
                out.append(&mut m.kernels[k].body);
            }
        }
    }
    out
}
