//! Copies of activations in groups of bytes, if their memory layout does not suit dot products.

use super::operands;
use super::{FEW, FLIP, Plan, suffix};
use crate::nest::{BinOp, Buf, DotKind, Expr, Kernel, Layout, Module, Place, visit};
use crate::passes::nest::analysis::shape::{Uses, instance};
use crate::sym::Sym;
use crate::tensor::ElemType;

/// A kernel before `k` that copies the activations to groups, with channels innermost, and inverts the sign
/// bit if the dot products require it. If the activations are an image with a border made for `k` only, the
/// kernel also makes the border.
pub(super) fn gather(m: &mut Module, k: Kernel, p: &Plan, group: DotKind) -> (Kernel, Buf) {
    // Eights are two adjacent quads.
    let quads = if group.is_long() { 2 } else { 1 };
    let (x, of, size) = (p.g.x.0, p.g.of_x, group.size() / quads);
    // Signed parts of a group are masked when they are combined.
    let signed = group.signs().is_some_and(|s| s.0);
    let by = match (p.flips, m.bufs[x].ty) {
        (false, _) => 0,
        (true, ElemType::I8) => FLIP,
        (true, _) => -FLIP,
    };
    let bordered = bordered(m, k, x, of);
    let long = m.bufs[x].dims[of].as_const().is_none_or(|n| n > size * quads);
    if bordered.is_none() && long && operands::is_innermost(m, (x, of)) && group != DotKind::Words {
        return padded_rows(m, k, (x, of), (group, by));
    }
    let mut dims = m.bufs[x].dims.clone();
    let channels = dims[of];
    dims[of] = channels.ceil_div(size * quads) * quads;
    let suffix = suffix(group);
    let name = format!("{}.{suffix}", m.bufs[x].name);
    let rank = dims.len();
    let out = m.temp(name, ElemType::I32, dims);
    let count = channels.as_const();
    // Rows of few channels in several groups are copied as rows.
    if quads > 1 || count.is_none_or(|c| c <= size || c >= FEW) {
        m.bufs[out].layout = Layout::Permuted((0..rank).filter(|d| *d != of).chain([of]).collect());
    }
    let origin = m.kernels[k].origin.clone();
    let few = count.filter(|c| *c < size).unwrap_or(size);
    let code = |v: i64| v + by;
    let id = m.map(out, &origin, |kb, at| {
        let from = |i: i64| {
            let mut from = at.to_vec();
            from[of] = at[of] * size + i;
            from
        };
        let wide = |e: Expr| {
            let v = Expr::Cast(ElemType::I32, Box::new(e));
            if by != 0 { v + Expr::int(ElemType::I32, by) } else { v }
        };
        let placed = |i: i64, v: Expr| {
            // The sign extension of a negative part must not overlap the parts above it.
            let v = if signed && i + 1 < size {
                Expr::bin(BinOp::And, v, Expr::int(ElemType::I32, (1 << (32 / size)) - 1))
            } else {
                v
            };
            if i == 0 { v } else { v * Expr::int(ElemType::I32, 1 << (32 / size * i)) }
        };
        let byte = |kb: &crate::nest::KernelBuilder, i: i64, v: Expr| {
            placed(i, operands::within(kb.m, from(i)[of], channels, v, Expr::int(ElemType::I32, 0)))
        };
        let zero = || Expr::int(ElemType::I32, 0);
        let Some(b) = &bordered else {
            return (0..few)
                .map(|i| byte(kb, i, wide(kb.load(x, &from(i)))))
                .reduce(|a, b| a + b)
                .unwrap_or(zero());
        };
        let mut part = |i: i64, e: &Expr| {
            let at = from(i);
            instance(kb.m, e, &|s| b.cover.iter().zip(&at).find(|c| *c.0 == Some(s)).map(|c| *c.1))
        };
        let outside = (0..few).map(|i| (code(b.fill) & 0xff) << (32 / size * i)).sum::<i64>();
        let parts: Vec<Expr> = (0..few).map(|i| wide(part(i, &b.inside))).collect();
        let cond = part(0, &b.cond);
        let sum = (0..few).zip(parts).map(|(i, v)| byte(kb, i, v)).reduce(|a, b| a + b).unwrap_or(zero());
        Expr::select(cond, sum, Expr::int(ElemType::I32, outside))
    });
    operands::before(m, k, id, suffix);
    if let Some(b) = bordered {
        visit::drop_calls(&mut m.driver, &|k| k == b.kernel);
    }
    (id, if quads > 1 { in_eights(m, out, of) } else { out })
}

/// Copies rows of bytes whose length is no multiple of a group, with zeros behind each; `by` is added.
fn padded_rows(
    m: &mut Module,
    k: Kernel,
    (x, of): (Buf, usize),
    (group, by): (DotKind, i64),
) -> (Kernel, Buf) {
    let ty = match (m.bufs[x].ty, by) {
        (t, 0) => t,
        (ElemType::I8, _) => ElemType::U8,
        _ => ElemType::I8,
    };
    let (mut dims, layout) = (m.bufs[x].dims.clone(), m.bufs[x].layout.clone());
    let extent = dims[of];
    dims[of] = extent.ceil_div(group.size()) * group.size();
    let suffix = suffix(group);
    let out = m.temp(format!("{}.{suffix}", m.bufs[x].name), ty, dims);
    m.bufs[out].layout = layout;
    let origin = m.kernels[k].origin.clone();
    let id = m.map(out, &origin, |kb, at| {
        let v = Expr::Cast(ElemType::I32, Box::new(kb.load(x, at)));
        let v = if by != 0 { v + Expr::int(ElemType::I32, by) } else { v };
        let v = operands::within(kb.m, at[of], extent, v, Expr::int(ElemType::I32, 0));
        Expr::Cast(ty, Box::new(v))
    });
    operands::before(m, k, id, suffix);
    (id, group.view(m, (out, of)))
}

/// A view of quads as eights, two quads per element.
fn in_eights(m: &mut Module, quads: Buf, of: usize) -> Buf {
    let (mut dims, layout) = (m.bufs[quads].dims.clone(), m.bufs[quads].layout.clone());
    dims[of] = dims[of].floor_div(2);
    let v = m.view_as(quads, ElemType::I64, dims);
    m.bufs[v].layout = layout;
    v
}

/// A copy of an image with a border around it.
struct Bordered {
    kernel: Kernel,
    /// The loop variable of each dimension.
    cover: Vec<Option<Sym>>,
    cond: Expr,
    inside: Expr,
    fill: i64,
}

/// The kernel that produces `x`, provided that only `k` reads `x`, all channels have the same border, and
/// there are few channels.
fn bordered(m: &Module, k: Kernel, x: Buf, of: usize) -> Option<Bordered> {
    if !matches!(m.bufs[x].place, Place::Temp) {
        return None;
    }
    let uses = Uses::new(m);
    let ([kernel], true) = (uses.writers(x), uses.readers(x) == [k] && !uses.pinned(x)) else { return None };
    let map = m.form(*kernel).map().filter(|map| map.buf == x && uses.may_move(m, *kernel, k))?.clone();
    let cover = map.cover(m)?;
    let (Expr::Select(cond, inside, fill), true) = (map.value, m.bufs[x].dims[of].as_const()? <= FEW) else {
        return None;
    };
    let (Expr::Load { .. }, Expr::Const(fill)) = (&*inside, *fill) else { return None };
    let mut alike = true;
    cond.walk(&mut |e| match (e, cover[of]) {
        (Expr::Index(d), Some(c)) => alike &= !d.contains(c),
        (Expr::Load { .. }, _) => alike = false,
        _ => {}
    });
    alike.then_some(Bordered { kernel: *kernel, cover, cond: *cond, inside: *inside, fill: fill.to_i64() })
}
