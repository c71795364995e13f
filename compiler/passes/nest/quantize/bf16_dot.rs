//! bf16_dot: contractions by dot products of bf16, for `--math fast` on CPU levels that have them.
//!
//! The reduction is divided into groups along one of its loops, the *channel*: two adjacent bf16 form one
//! 32-bit element, as in [`Expr::Dot`], and schedules treat the contraction like any other. Levels with
//! matrix products of bf16 use groups of four, in elements of 64 bits.
//!
//! * Constant weights are rounded at compile time, once. The last group of a channel is padded with zeros.
//! * An operand that nothing else reads is stored as bf16 by its producer. If the channel is innermost in
//!   memory in whole groups, it is read through a view. A kernel before the contraction copies other
//!   operands, with channels innermost (`gather`), or as groups in place (`interleave`).
//! * If no operand is constant (attention), both are rounded, provided that each element is used often.
//!
//! Factors lose 16 bits of their significands, products and sums stay f32. Winograd's transforms are
//! excluded: their factors are sums already.

use crate::diag::Result;
use crate::nest::{Buf, DotKind, Expr, Kernel, Layout, Math, Module, Place, visit};
use crate::passes::nest::analysis::form::{Contraction, ProductKind, depends};
use crate::passes::nest::analysis::shape::is_temp;
use crate::passes::nest::quantize::integer_dot::operands::{self, Copies, Grouped};
use crate::sym::{Dim, Sym};
use crate::target::{Facts, Level};
use crate::tensor::ElemType;
use std::collections::{HashMap, HashSet};

/// Maximum channels of an activation that need not be innermost.
const FEW: i64 = 8;

/// A contraction that can use dot products of bf16.
struct Plan {
    parts: Contraction,
    g: Grouped,
}

/// True if the pass would rewrite anything.
pub fn suit(m: &Module, facts: &Facts) -> bool {
    operands::kernels(m).into_iter().any(|k| plan(m, k, group(facts)).is_some())
}

/// The group that a level's instructions multiply.
fn group(facts: &Facts) -> DotKind {
    if facts.caps.dot.has_matrices() { DotKind::LongHalves } else { DotKind::Halves }
}

fn plan(m: &Module, k: Kernel, group: DotKind) -> Option<Plan> {
    let parts = m.form(k).contraction().filter(|p| p.product == ProductKind::Fma)?.clone();
    let ways = match (weights(m, parts.a.0), weights(m, parts.b.0)) {
        (false, true) => vec![(&parts.a, &parts.b)],
        (true, false) => vec![(&parts.b, &parts.a)],
        (false, false) => vec![(&parts.a, &parts.b), (&parts.b, &parts.a)],
        _ => return None,
    };
    let float = |b: Buf| matches!(m.bufs[b].ty, ElemType::F32 | ElemType::F16 | ElemType::BF16);
    let g = ways.into_iter().find_map(|(x, w)| {
        let g = Grouped::find(m, k, (parts.acc, &parts.reduction), (x, w), group)?;
        let pays = weights(m, w.0) || g.in_place(m) && is_reused(m, &parts.loops, (&x.1, &w.1));
        (float(x.0) && float(w.0) && pays && g.extent > 1).then_some(g)
    })?;
    Some(Plan { parts, g })
}

/// True if each element of both operands is used often enough to round it first.
fn is_reused(m: &Module, loops: &[(Sym, Dim)], (x, w): (&[Dim], &[Dim])) -> bool {
    const USES: i64 = 32;
    let uses = |of: &[Dim], not: &[Dim]| {
        let others = loops.iter().filter(|l| depends(of, l.0) && !depends(not, l.0));
        others.map(|l| m.syms.range(l.1).lo.unwrap_or(1).max(1)).fold(1, i64::saturating_mul)
    };
    uses(x, w) >= USES && uses(w, x) >= USES
}

/// True for a floating-point constant.
fn weights(m: &Module, b: Buf) -> bool {
    let Place::Const(c) = &m.bufs[b].place else { return false };
    m.bufs[b].layout == Layout::RowMajor && matches!(c.elem(), ElemType::F32 | ElemType::F16 | ElemType::BF16)
}

/// True if contractions on this level may use dot products of bf16.
pub fn applies(m: &Module, facts: &Facts) -> bool {
    facts.caps.bf16 && m.math == Math::Fast
}

/// Runs the pass.
pub fn run(m: &mut Module, level: &Level) -> Result<()> {
    if !applies(m, &level.facts) {
        return Ok(());
    }
    let plans: Vec<(Kernel, Plan)> = operands::kernels(m)
        .into_iter()
        .filter_map(|k| Some((k, plan(m, k, group(&level.facts))?)))
        .collect();
    // Buffers that are stored as bf16 from now on.
    let private = private(m, &plans);
    for v in m.bufs.keys().filter(|v| private.contains(&m.storage(*v))).collect::<Vec<_>>() {
        m.bufs[v].ty = ElemType::BF16;
    }
    let mut copies = Copies::default();
    for (k, p) in plans {
        let few = p.g.extent < FEW;
        let x = grouped(m, (k, p.g.group), (p.g.x.0, p.g.of_x), few, &mut copies);
        let w = if weights(m, p.g.w.0) {
            weights_in_pairs(m, &p)
        } else {
            // Panels are packed from it, with columns innermost.
            Some(grouped(m, (k, p.g.group), (p.g.w.0, p.g.of_w), true, &mut copies))
        };
        if let Some(w) = w {
            p.g.rewrite(m, k, (x, w), &Expr::acc(p.parts.acc));
        }
    }
    Ok(())
}

/// A non-constant operand of `k`, grouped along a dimension: in place, or as a copy. `stays`: the dimension
/// need not be innermost in the copy.
fn grouped(
    m: &mut Module,
    (k, group): (Kernel, DotKind),
    operand: (Buf, usize),
    stays: bool,
    copies: &mut Copies,
) -> Buf {
    if m.bufs[operand.0].ty == ElemType::BF16 && group.divides(m, operand) {
        return group.view(m, operand);
    }
    let rows = stays && group == DotKind::Halves && !operands::is_innermost(m, operand);
    copies.get(m, k, operand, |m| match rows {
        true => interleave(m, k, operand),
        false => gather(m, k, group, operand),
    })
}

/// The non-constant operands of a contraction.
fn activations(m: &Module, p: &Plan) -> Vec<Buf> {
    [p.g.x.0, p.g.w.0].into_iter().filter(|b| !weights(m, *b)).collect()
}

/// Temporaries that only such contractions read.
fn private(m: &Module, plans: &[(Kernel, Plan)]) -> HashSet<Buf> {
    let mut fit: HashSet<Buf> = plans
        .iter()
        .flat_map(|p| activations(m, &p.1))
        .map(|b| m.storage(b))
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
    for k in visit::calls(&m.driver) {
        match of.get(&k) {
            Some(p) => others(visit::loads(&p.parts.epilogue)),
            None => others(visit::loads(&m.kernels[k].body)),
        }
    }
    others(visit::loads(&m.driver));
    fit
}

/// A kernel before `k` that rounds an operand to a copy with one dimension innermost in whole groups.
fn gather(m: &mut Module, k: Kernel, group: DotKind, (x, of): (Buf, usize)) -> (Kernel, Buf) {
    let mut dims = m.bufs[x].dims.clone();
    let channels = dims[of];
    let size = group.size();
    dims[of] = channels.ceil_div(size) * size;
    let (name, rank) = (format!("{}.bf16", m.bufs[x].name), dims.len());
    let out = m.temp(name, ElemType::BF16, dims);
    if of + 1 != rank {
        m.bufs[out].layout = Layout::Permuted((0..rank).filter(|d| *d != of).chain([of]).collect());
    }
    let origin = m.kernels[k].origin.clone();
    let id = m.map(out, &origin, |kb, at| {
        let v = kb.load(x, at);
        operands::within(kb.m, at[of], channels, v, Expr::num(ElemType::F32, 0.0))
    });
    operands::before(m, k, id, "bf16");
    (id, group.view(m, (out, of)))
}

/// Kernels before `k` that combine adjacent elements along a dimension of an operand into pairs of bf16, the
/// first in the lower half, padded with zero. The order of the other dimensions is kept.
fn interleave(m: &mut Module, k: Kernel, (x, of): (Buf, usize)) -> (Kernel, Buf) {
    let (dims, layout) = (m.bufs[x].dims.clone(), m.bufs[x].layout.clone());
    let name = format!("{}.bf16", m.bufs[x].name);
    let halves = if m.bufs[x].ty == ElemType::BF16 {
        x
    } else {
        let rounded = m.temp(name.clone(), ElemType::BF16, dims.clone());
        m.bufs[rounded].layout = layout.clone();
        let origin = m.kernels[k].origin.clone();
        let id = m.map(rounded, &origin, |kb, at| kb.load(x, at));
        operands::before(m, k, id, "bf16");
        rounded
    };
    let bits = m.view_as(halves, ElemType::U16, dims);
    m.bufs[bits].layout = layout;
    let pairs = (format!("{name}.pairs"), DotKind::Halves.size());
    let (id, out) = operands::interleave(m, k, (bits, of), pairs, |pair| pair);
    operands::before(m, k, id, "pairs");
    (id, out)
}

/// Constant weights as pairs of bf16.
fn weights_in_pairs(m: &mut Module, p: &Plan) -> Option<Buf> {
    let Place::Const(c) = &m.bufs[p.g.w.0].place else { return None };
    let (values, name) = (c.to_f64s()?, format!("{}.bf16", m.bufs[p.g.w.0].name));
    let rounded: Vec<u8> = values.into_iter().flat_map(|v| half::bf16::from_f64(v).to_le_bytes()).collect();
    p.g.weights(m, name, &rounded, 2)
}
