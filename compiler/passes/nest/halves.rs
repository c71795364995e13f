//! Contractions with constant weights by dot products of bf16, for `--math fast` on CPU levels that have them.
//!
//! The depth is taken in pairs along one of its loops, the *channel*: two bf16 side by side are one 32-bit element, as
//! [`Expr::Dot`] has them, and from there on schedules treat them as any other contraction's.
//!
//! * The weights are rounded here, once. A channel of odd extent is filled up with zeros.
//! * Activations that nothing else reads, whose channel is innermost in memory in whole pairs, are stored as bf16 by
//!   whoever makes them and read through a view. Others a kernel before the contraction rounds (`gather`).
//!
//! Factors lose 16 bits of their significands, products and sums stay f32. Winograd's transforms are left alone: their
//! factors are sums already.

use super::contract::{self, Parts, Product};
use super::shape::is_temp;
use crate::diag::Result;
use crate::nest::{BinOp, Buf, Expr, Kernel, Layout, Math, Module, Place, Stmt, visit};
use crate::sym::{Dim, Sym};
use crate::target::Level;
use crate::tensor::{ConstData, ElemType};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// Elements of a pair.
const PAIR: i64 = 2;

/// A contraction that dot products of bf16 suit.
struct Plan {
    parts: Parts,
    /// Activations and weights.
    x: (Buf, Vec<Dim>),
    w: (Buf, Vec<Dim>),
    /// The depth loop that is taken in pairs, and where it stands in the subscripts.
    channel: Sym,
    extent: i64,
    of_x: usize,
    of_w: usize,
}

/// True if the pass would find something.
pub fn suit(m: &Module) -> bool {
    visit::calls(&m.driver).into_iter().any(|k| plan(m, k).is_some())
}

fn plan(m: &Module, k: Kernel) -> Option<Plan> {
    let parts = contract::take_apart(&m.kernels[k].body).filter(|p| p.product == Product::Fma)?;
    let (x, w) = match (weights(m, parts.a.0), weights(m, parts.b.0)) {
        (false, true) => (parts.a.clone(), parts.b.clone()),
        (true, false) => (parts.b.clone(), parts.a.clone()),
        _ => return None,
    };
    let columns = parts.loops.iter().any(|l| contract::depends(&w.1, l.0) && !contract::depends(&x.1, l.0));
    // Each depth loop runs over a dimension of the weights of its own.
    let in_depth = |d: &Dim| parts.depth.iter().any(|v| d.contains(v.0));
    let alone = |v: Sym| w.1.iter().position(|d| d.as_sym() == Some(v));
    let plain = parts.depth.iter().all(|v| alone(v.0).is_some()) && !w.1.iter().any(|d| in_depth(d) && d.as_sym().is_none());
    if !columns || !plain || !matches!(m.bufs[x.0].ty, ElemType::F32 | ElemType::F16 | ElemType::BF16) {
        return None;
    }
    let channel = |v: &(Sym, Dim)| {
        let extent = v.1.as_const().filter(|e| *e > 1)?;
        let of_w = alone(v.0).filter(|p| m.bufs[w.0].dims[*p] == v.1)?;
        let mut of_x = (0..x.1.len()).filter(|p| x.1[*p].contains(v.0));
        let (p, None) = (of_x.next()?, of_x.next()) else { return None };
        let (one, rest) = x.1[p].linear_in(v.0)?;
        let whole = rest.as_const() == Some(0) || extent % PAIR == 0 && rest.modulo(PAIR).as_const() == Some(0);
        (one.as_const() == Some(1) && whole).then_some((extent, v.0, p, of_w))
    };
    let (extent, channel, of_x, of_w) = parts.depth.iter().filter_map(channel).max_by_key(|c| c.0)?;
    Some(Plan { x, w, channel, extent, of_x, of_w, parts })
}

/// A constant of floats.
fn weights(m: &Module, b: Buf) -> bool {
    matches!(&m.bufs[b].place, Place::Const(c) if m.bufs[b].layout == Layout::RowMajor && matches!(c.elem(), ElemType::F32 | ElemType::F16 | ElemType::BF16))
}

/// Runs the pass, a part of `schedule`.
pub fn run(m: &mut Module, level: &Level) -> Result<()> {
    if !level.facts.bf16 || m.math != Math::Fast {
        return Ok(());
    }
    let mut seen = HashSet::new();
    let plans: Vec<(Kernel, Plan)> = visit::calls(&m.driver).into_iter().filter(|k| seen.insert(*k)).filter_map(|k| Some((k, plan(m, k)?))).collect();
    // What is stored as bf16 from now on.
    for b in private(m, &plans) {
        for v in m.bufs.keys().filter(|v| m.storage(*v) == b).collect::<Vec<_>>() {
            m.bufs[v].ty = ElemType::BF16;
        }
    }
    let straight = m.driver.iter().all(|s| matches!(s, Stmt::Call(_) | Stmt::Check { .. } | Stmt::Define { .. }));
    let mut made: HashMap<(Buf, usize), Buf> = HashMap::new();
    for (k, p) in plans {
        let pairs = if in_pairs(m, &p) && m.bufs[p.x.0].ty == ElemType::BF16 {
            view(m, p.x.0, p.of_x)
        } else {
            // What is rounded for one contraction is there for later ones, unless branches are between them.
            let key = (p.x.0, p.of_x);
            match made.get(&key).filter(|_| straight) {
                Some(b) => *b,
                None => {
                    let b = gather(m, k, &p);
                    made.insert(key, b);
                    b
                }
            }
        };
        contract(m, k, &p, pairs);
    }
    Ok(())
}

/// Temporaries that are read by such contractions only, in whole pairs.
fn private(m: &Module, plans: &[(Kernel, Plan)]) -> Vec<Buf> {
    let mut fit: HashSet<Buf> = plans.iter().filter(|p| in_pairs(m, &p.1)).map(|p| m.storage(p.1.x.0)).filter(|b| is_temp(m, *b) && m.bufs[*b].ty == ElemType::F32).collect();
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
            Some(p) if in_pairs(m, p) => others(visit::loads(&p.parts.tail)),
            _ => others(visit::loads(&m.kernels[k].body)),
        }
    }
    others(visit::loads(&m.driver));
    fit.into_iter().collect()
}

/// True if the channel is innermost in memory and its pairs are whole.
fn in_pairs(m: &Module, p: &Plan) -> bool {
    let d = &m.bufs[p.x.0];
    let innermost = match &d.layout {
        Layout::RowMajor => d.dims.len().checked_sub(1),
        Layout::Permuted(v) => v.last().copied(),
    };
    innermost == Some(p.of_x) && d.dims[p.of_x].as_const().is_some_and(|n| n % PAIR == 0)
}

/// The same memory in elements of a pair.
fn view(m: &mut Module, b: Buf, of: usize) -> Buf {
    let (mut dims, layout) = (m.bufs[b].dims.clone(), m.bufs[b].layout.clone());
    dims[of] = dims[of].floor_div(PAIR);
    let v = m.view_as(b, ElemType::I32, dims);
    m.bufs[v].layout = layout;
    v
}

/// A kernel before `k` that rounds the activations, channels innermost.
fn gather(m: &mut Module, k: Kernel, p: &Plan) -> Buf {
    let (x, of) = (p.x.0, p.of_x);
    let mut dims = m.bufs[x].dims.clone();
    let channels = dims[of];
    dims[of] = channels.ceil_div(PAIR) * PAIR;
    let (name, rank) = (format!("{}.bf16", m.bufs[x].name), dims.len());
    let out = m.temp(name, ElemType::BF16, dims);
    if of + 1 != rank {
        m.bufs[out].layout = Layout::Permuted((0..rank).filter(|d| *d != of).chain([of]).collect());
    }
    let origin = m.kernels[k].origin.clone();
    let id = m.map(out, &origin, |kb, at| {
        let v = kb.load(x, at);
        if kb.m.syms.in_range(at[of], channels) { v } else { Expr::select(Expr::cmp_index(BinOp::Lt, at[of], channels), v, Expr::num(ElemType::F32, 0.0)) }
    });
    m.kernels[id].name = format!("{}.bf16", m.kernels[k].name);
    // The call was put at the driver's end.
    let call = m.driver.pop().into_iter().collect();
    visit::splice_call(&mut m.driver, k, true, call);
    view(m, out, of)
}

/// The contraction by dot products of pairs.
fn contract(m: &mut Module, k: Kernel, p: &Plan, pairs: Buf) {
    let Some(w) = weights_in_pairs(m, p) else { return };
    let pair_of = |d: Dim| d.linear_in(p.channel).map_or(d, |(_, rest)| Dim::sym(p.channel) + rest.floor_div(PAIR));
    let x_at: Vec<Dim> = p.x.1.iter().enumerate().map(|(i, d)| if i == p.of_x { pair_of(*d) } else { *d }).collect();
    let count = Dim::constant((p.extent + PAIR - 1) / PAIR);
    m.syms.set_loop_range(p.channel, Dim::constant(0), count);
    let value = Expr::dot(Expr::Load { buf: pairs, at: x_at }, Expr::Load { buf: w, at: p.w.1.clone() }, Expr::acc(p.parts.acc));
    let body = std::mem::take(&mut m.kernels[k].body);
    m.kernels[k].body = body.into_iter().map(|s| rewrite(s, p, count, &value)).collect();
}

fn rewrite(s: Stmt, p: &Plan, count: Dim, value: &Expr) -> Stmt {
    match s {
        Stmt::Set { reg, at, .. } if reg == p.parts.acc => Stmt::Set { reg, at, value: value.clone() },
        Stmt::For { kind, var, lo, hi, body } => {
            let hi = if var == p.channel { count } else { hi };
            Stmt::For { kind, var, lo, hi, body: body.into_iter().map(|s| rewrite(s, p, count, value)).collect() }
        }
        s => s,
    }
}

/// The weights as pairs of bf16 along the channel, zeros where it ends.
fn weights_in_pairs(m: &mut Module, p: &Plan) -> Option<Buf> {
    let Place::Const(c) = &m.bufs[p.w.0].place else { return None };
    let (values, dims, name) = (c.to_f64s()?, c.dims().to_vec(), m.bufs[p.w.0].name.clone());
    let n = usize::try_from(*dims.get(p.of_w)?).ok()?;
    let inner = usize::try_from(dims[p.of_w + 1..].iter().product::<i64>()).ok()?;
    let (pair, pairs) = (PAIR as usize, n.div_ceil(PAIR as usize));
    let mut out = vec![0u8; values.len() / (n * inner).max(1) * pairs * inner * pair * 2];
    for (i, v) in values.iter().enumerate() {
        let (o, c, j) = (i / inner / n, i / inner % n, i % inner);
        let at = (((o * pairs + c / pair) * inner + j) * pair + c % pair) * 2;
        out[at..at + 2].copy_from_slice(&half::bf16::from_f64(*v).to_le_bytes());
    }
    let mut in_pairs = dims;
    in_pairs[p.of_w] = pairs as i64;
    Some(m.constant(format!("{name}.bf16"), Arc::new(ConstData::new(ElemType::I32, in_pairs, out)?)))
}
