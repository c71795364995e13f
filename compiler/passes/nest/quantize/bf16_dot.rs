//! bf16_dot: contractions with constant weights by dot products of bf16, for `--math fast` on CPU levels that
//! have them.
//!
//! The reduction is taken in groups along one of its loops, the *channel*: two bf16 side by side are one
//! 32-bit element, as [`Expr::Dot`] has them, and from there on schedules treat them as any other
//! contraction's. Levels that multiply matrices of bf16 take four, in elements of 64 bits.
//!
//! * The weights are rounded here, once. A channel that ends within a group is filled up with zeros.
//! * Activations that nothing else reads, whose channel is innermost in memory in whole groups, are stored as
//!   bf16 by whoever makes them and read through a view. Others a kernel before the contraction rounds
//!   (`gather`).
//!
//! Factors lose 16 bits of their significands, products and sums stay f32. Winograd's transforms are left
//! alone: their factors are sums already.

use crate::diag::Result;
use crate::nest::{BinOp, Buf, DotKind, Expr, Kernel, Layout, Math, Module, Place, visit};
use crate::passes::nest::analysis::form::{Contraction, ProductKind};
use crate::passes::nest::analysis::shape::is_temp;
use crate::passes::nest::quantize::integer_dot::operands::{self, Copies, Grouped};
use crate::target::{Facts, Level};
use crate::tensor::ElemType;
use std::collections::{HashMap, HashSet};

/// A contraction that dot products of bf16 suit.
struct Plan {
    parts: Contraction,
    g: Grouped,
}

/// True if the pass would find something.
pub fn suit(m: &Module, facts: &Facts) -> bool {
    operands::kernels(m).into_iter().any(|k| plan(m, k, group(facts)).is_some())
}

/// What a level multiplies at once.
fn group(facts: &Facts) -> DotKind {
    if facts.caps.dot.has_matrices() { DotKind::LongHalves } else { DotKind::Halves }
}

fn plan(m: &Module, k: Kernel, group: DotKind) -> Option<Plan> {
    let parts = m.form(k).contraction().filter(|p| p.product == ProductKind::Fma)?.clone();
    let (x, w) = match (weights(m, parts.a.0), weights(m, parts.b.0)) {
        (false, true) => (parts.a.clone(), parts.b.clone()),
        (true, false) => (parts.b.clone(), parts.a.clone()),
        _ => return None,
    };
    if !matches!(m.bufs[x.0].ty, ElemType::F32 | ElemType::F16 | ElemType::BF16) {
        return None;
    }
    let g = Grouped::find(m, k, parts.acc, (&x, &w), &parts.reduction, group).filter(|g| g.extent > 1)?;
    Some(Plan { parts, g })
}

/// A constant of floats.
fn weights(m: &Module, b: Buf) -> bool {
    let Place::Const(c) = &m.bufs[b].place else { return false };
    m.bufs[b].layout == Layout::RowMajor && matches!(c.elem(), ElemType::F32 | ElemType::F16 | ElemType::BF16)
}

/// Runs the pass.
pub fn run(m: &mut Module, level: &Level) -> Result<()> {
    if !level.facts.caps.bf16 || m.math != Math::Fast {
        return Ok(());
    }
    let plans: Vec<(Kernel, Plan)> = operands::kernels(m)
        .into_iter()
        .filter_map(|k| Some((k, plan(m, k, group(&level.facts))?)))
        .collect();
    // What is stored as bf16 from now on.
    for b in private(m, &plans) {
        for v in m.bufs.keys().filter(|v| m.storage(*v) == b).collect::<Vec<_>>() {
            m.bufs[v].ty = ElemType::BF16;
        }
    }
    let mut copies = Copies::default();
    for (k, p) in plans {
        let pairs = if p.g.in_place(m) && m.bufs[p.g.x.0].ty == ElemType::BF16 {
            p.g.view(m, p.g.x.0)
        } else {
            copies.get(m, k, (p.g.x.0, p.g.of_x), |m| gather(m, k, &p))
        };
        contract(m, k, &p, pairs);
    }
    Ok(())
}

/// Temporaries that are read by such contractions only, in whole groups.
fn private(m: &Module, plans: &[(Kernel, Plan)]) -> Vec<Buf> {
    let mut fit: HashSet<Buf> = plans
        .iter()
        .filter(|p| p.1.g.in_place(m))
        .map(|p| m.storage(p.1.g.x.0))
        .filter(|b| is_temp(m, *b) && m.bufs[*b].ty == ElemType::F32)
        .collect();
    for b in m.bufs.keys().filter(|b| m.is_recast(*b)) {
        fit.remove(&m.storage(b));
    }
    let of: HashMap<Kernel, &Plan> = plans.iter().map(|(k, p)| (*k, p)).collect();
    let mut others = |loads: Vec<Buf>| {
        for b in loads {
            fit.remove(&m.storage(b));
        }
    };
    for k in m.kernels.keys() {
        match of.get(&k) {
            Some(p) if p.g.in_place(m) => others(visit::loads(&p.parts.epilogue)),
            _ => others(visit::loads(&m.kernels[k].body)),
        }
    }
    others(visit::loads(&m.driver));
    fit.into_iter().collect()
}

/// A kernel before `k` that rounds the activations, channels innermost.
fn gather(m: &mut Module, k: Kernel, p: &Plan) -> (Kernel, Buf) {
    let (x, of) = (p.g.x.0, p.g.of_x);
    let mut dims = m.bufs[x].dims.clone();
    let channels = dims[of];
    let size = p.g.group.size();
    dims[of] = channels.ceil_div(size) * size;
    let (name, rank) = (format!("{}.bf16", m.bufs[x].name), dims.len());
    let out = m.temp(name, ElemType::BF16, dims);
    if of + 1 != rank {
        m.bufs[out].layout = Layout::Permuted((0..rank).filter(|d| *d != of).chain([of]).collect());
    }
    let origin = m.kernels[k].origin.clone();
    let id = m.map(out, &origin, |kb, at| {
        let v = kb.load(x, at);
        if kb.m.syms.in_range(at[of], channels) {
            v
        } else {
            Expr::select(Expr::cmp_index(BinOp::Lt, at[of], channels), v, Expr::num(ElemType::F32, 0.0))
        }
    });
    operands::before(m, k, id, "bf16");
    (id, p.g.view(m, out))
}

/// The contraction by dot products of groups.
fn contract(m: &mut Module, k: Kernel, p: &Plan, pairs: Buf) {
    let Some(w) = weights_in_pairs(m, p) else { return };
    p.g.rewrite(m, k, (pairs, w), &Expr::acc(p.parts.acc));
}

/// The weights as pairs of bf16.
fn weights_in_pairs(m: &mut Module, p: &Plan) -> Option<Buf> {
    let Place::Const(c) = &m.bufs[p.g.w.0].place else { return None };
    let (values, name) = (c.to_f64s()?, format!("{}.bf16", m.bufs[p.g.w.0].name));
    let rounded: Vec<u8> = values.into_iter().flat_map(|v| half::bf16::from_f64(v).to_le_bytes()).collect();
    p.g.weights(m, name, &rounded, 2)
}
