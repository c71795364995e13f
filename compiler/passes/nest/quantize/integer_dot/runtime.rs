//! Contractions without a constant operand: one of the operands is grouped at run time and takes the role of
//! the weights.

use super::signs::{self, Way};
use super::{FLIP, Plan, suffix};
use crate::nest::{BinOp, Buf, Expr, Kernel, Layout, LoopKind, Module};
use crate::passes::nest::analysis::form::ByteSum;
use crate::passes::nest::quantize::integer_dot::operands::{self, Grouped};
use crate::sym::Dim;
use crate::target::Dot;
use crate::tensor::ElemType;

/// The operand that takes the role of the weights: for quads, a signed one if the activations are unsigned
/// and there is a choice.
pub(super) fn plan(m: &Module, k: Kernel, c: &ByteSum, dot: Dot) -> Option<Plan> {
    let fits = |b: Buf| !m.is_constant(b) && m.bufs[b].layout == Layout::RowMajor;
    if !fits(c.a.0) || !fits(c.b.0) {
        return None;
    }
    let signed = |b: Buf| m.bufs[b].ty == ElemType::I8;
    let mut ways = [(&c.a, &c.b), (&c.b, &c.a)];
    if dot.is_of_bytes() {
        ways.sort_by_key(|(x, w)| (!signed(w.0), signed(x.0)));
    }
    // Sums of the activations require a subscript of its own for each reduction loop. A variable that occurs
    // with opposite signs in both operands would require both sums.
    let alone = |d: &Dim| d.as_sym().is_some() || !c.reduction.iter().any(|v| d.contains(v.0));
    ways.into_iter().find_map(|(x, w)| {
        let Way { group, flips, lessens } = signs::of_run_time(m, dot, x.0, w.0)?;
        let g = Grouped::find(m, k, (c.acc, &c.reduction), (x, w), group)?;
        let summed = !flips && g.x.1.iter().all(alone);
        (!lessens || summed).then(|| Plan { c: c.clone(), g, flips, lessens })
    })
}

/// A kernel before `k` that groups the operand along the channel, padded with zeros.
pub(super) fn groups(m: &mut Module, k: Kernel, p: &Plan) -> (Kernel, Buf) {
    let operand = (p.g.w.0, p.g.of_w);
    let name = format!("{}.{}", m.bufs[operand.0].name, suffix(p.g.group));
    let (id, out) = operands::interleave(m, k, operand, (name, p.g.group.size()), |group| match p.lessens {
        true => Expr::bin(BinOp::Xor, group, Expr::int(ElemType::I32, 0x8080_8080)),
        false => group,
    });
    operands::before(m, k, id, if p.g.group.is_bytes() { "quads_of_weights" } else { "pairs_of_weights" });
    (id, out)
}

/// 128 times the sum of an operand over the reduction, for each result, computed by a kernel before `k`.
pub(super) fn depth_sums(m: &mut Module, k: Kernel, c: &ByteSum, (buf, at): &(Buf, Vec<Dim>)) -> Expr {
    let deep: Vec<Option<usize>> =
        at.iter().map(|d| c.reduction.iter().position(|v| d.as_sym() == Some(v.0))).collect();
    let own: Vec<Dim> = m.bufs[*buf].dims.iter().zip(&deep).filter(|x| x.1.is_none()).map(|x| *x.0).collect();
    let out = m.temp(format!("{}.sums", m.bufs[*buf].name), ElemType::I32, own.clone());
    let (name, origin) = (m.kernels[k].name.clone(), m.kernels[k].origin.clone());
    let depth: Vec<Dim> = c.reduction.iter().map(|d| d.1).collect();
    let id = m.kernel(&name, &origin, |kb| {
        kb.nest(LoopKind::Par, &own, |kb, o| {
            let sum = kb.acc(Expr::int(ElemType::I32, 0));
            kb.nest(LoopKind::Seq, &depth, |kb, r| {
                let mut others = o.iter();
                let from: Vec<Dim> = deep
                    .iter()
                    .filter_map(|d| d.map_or_else(|| others.next().copied(), |d| Some(r[d])))
                    .collect();
                let v = Expr::Cast(ElemType::I32, Box::new(kb.load(*buf, &from)));
                kb.update(BinOp::Add, sum, v);
            });
            kb.store(out, o, Expr::acc(sum) * Expr::int(ElemType::I32, FLIP));
        });
    });
    operands::before(m, k, id, "sums");
    let at = at.iter().zip(&deep).filter(|x| x.1.is_none()).map(|x| *x.0).collect();
    Expr::Load { buf: out, at }
}
