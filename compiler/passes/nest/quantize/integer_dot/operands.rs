//! Contractions whose reduction is divided into groups of adjacent elements along one of its loops, the
//! *channel*: the common part of `integer_dot` (quads of bytes, pairs of words) and `bf16_dot` (pairs of
//! bf16). A group is one element, as in [`Expr::Dot`]. Operands with another memory layout are copied by
//! kernels before the contraction (`Copies`).

use crate::nest::{BinOp, Buf, DotKind, Expr, Kernel, Layout, LoopKind, Module, Place, Reg, Stmt, visit};
use crate::passes::nest::analysis::form::{depends, par_loops};
use crate::passes::nest::analysis::shape::Uses;
use crate::sym::{Dim, Sym};
use crate::tensor::{ConstData, ElemType};
use std::collections::HashMap;
use std::sync::Arc;

/// A read of a buffer.
type Read = (Buf, Vec<Dim>);

impl DotKind {
    /// True if a dimension of a buffer is innermost in memory, in whole groups.
    pub(crate) fn divides(self, m: &Module, (b, of): (Buf, usize)) -> bool {
        is_innermost(m, (b, of)) && m.bufs[b].dims[of].as_const().is_some_and(|n| n % self.size() == 0)
    }
    /// A view of a buffer in groups: the dimension is divided.
    pub(crate) fn view(self, m: &mut Module, (b, of): (Buf, usize)) -> Buf {
        let (mut dims, layout) = (m.bufs[b].dims.clone(), m.bufs[b].layout.clone());
        dims[of] = dims[of].floor_div(self.size());
        let v = m.view_as(b, self.factors()[0], dims);
        m.bufs[v].layout = layout;
        v
    }
}

/// The operands of a contraction, and the loop that is divided into groups.
pub(crate) struct Grouped {
    /// The accumulator.
    pub acc: Reg,
    /// Activations.
    pub x: Read,
    /// Weights: a constant.
    pub w: Read,
    /// The kind of group.
    pub group: DotKind,
    /// The channel.
    pub channel: Sym,
    /// Its extent in elements.
    pub extent: i64,
    /// The position of the channel in the subscripts of the activations,
    pub of_x: usize,
    /// and in those of the weights.
    pub of_w: usize,
}

impl Grouped {
    /// The longest reduction loop that can be divided into groups, if vectors can run along columns of the
    /// weights.
    pub fn find(
        m: &Module,
        k: Kernel,
        (acc, depth): (Reg, &[(Sym, Dim)]),
        (x, w): (&Read, &Read),
        group: DotKind,
    ) -> Option<Grouped> {
        let size = group.size();
        let in_depth = |d: &Dim| depth.iter().any(|v| d.contains(v.0));
        let alone = |v: Sym| w.1.iter().position(|d| d.as_sym() == Some(v));
        // Each reduction loop runs along a separate dimension of the weights.
        if !columns(m, k, &w.1, &x.1)
            || depth.iter().any(|v| alone(v.0).is_none())
            || w.1.iter().any(|d| in_depth(d) && d.as_sym().is_none())
        {
            return None;
        }
        let channel = |v: &(Sym, Dim)| {
            let extent = v.1.as_const().filter(|e| *e > 0)?;
            let of_w = alone(v.0).filter(|p| m.bufs[w.0].dims[*p] == v.1)?;
            let mut of_x = (0..x.1.len()).filter(|p| x.1[*p].contains(v.0));
            let (p, None) = (of_x.next()?, of_x.next()) else { return None };
            let (one, rest) = x.1[p].linear_in(v.0)?;
            let whole =
                rest.as_const() == Some(0) || extent % size == 0 && rest.modulo(size).as_const() == Some(0);
            (one.as_const() == Some(1) && whole).then_some((extent, v.0, p, of_w))
        };
        let (extent, channel, of_x, of_w) = depth.iter().filter_map(channel).max_by_key(|c| c.0)?;
        Some(Grouped { acc, x: x.clone(), w: w.clone(), group, channel, extent, of_x, of_w })
    }
    /// True if the channel is innermost in the memory of the activations, in whole groups.
    pub fn in_place(&self, m: &Module) -> bool {
        self.group.divides(m, (self.x.0, self.of_x))
    }
    /// A view of a buffer with the activations' shape in groups: the channel is divided.
    pub fn view(&self, m: &mut Module, b: Buf) -> Buf {
        self.group.view(m, (b, self.of_x))
    }
    /// Packs the weights, from elements of the given size, to groups along the channel, padded with zeros.
    pub fn weights(&self, m: &mut Module, name: String, elements: &[u8], bytes: usize) -> Option<Buf> {
        let Place::Const(c) = &m.bufs[self.w.0].place else { return None };
        let mut dims = c.dims().to_vec();
        let (n, size) =
            (usize::try_from(*dims.get(self.of_w)?).ok()?, usize::try_from(self.group.size()).ok()?);
        let inner = usize::try_from(dims[self.of_w + 1..].iter().product::<i64>()).ok()?;
        let groups = n.div_ceil(size);
        let mut out = vec![0u8; elements.len() / (n * inner * bytes).max(1) * groups * inner * size * bytes];
        for (i, v) in elements.chunks_exact(bytes).enumerate() {
            let (o, c, j) = (i / inner / n, i / inner % n, i % inner);
            let at = (((o * groups + c / size) * inner + j) * size + c % size) * bytes;
            out[at..at + bytes].copy_from_slice(v);
        }
        dims[self.of_w] = groups as i64;
        Some(m.constant(name, Arc::new(ConstData::new(self.group.factors()[1], dims, out)?)))
    }
    /// Rewrites the contraction to dot products of `x` and `w`, both in groups; `total` replaces the
    /// accumulator afterwards.
    pub fn rewrite(&self, m: &mut Module, k: Kernel, (x, w): (Buf, Buf), total: &Expr) {
        let group_of = |d: &Dim| {
            d.linear_in(self.channel)
                .map_or(*d, |(_, rest)| Dim::sym(self.channel) + rest.floor_div(self.group.size()))
        };
        let at =
            self.x.1.iter().enumerate().map(|(i, d)| if i == self.of_x { group_of(d) } else { *d }).collect();
        let count = Dim::constant((self.extent + self.group.size() - 1) / self.group.size());
        m.syms.set_loop_range(self.channel, Dim::constant(0), count);
        let value = Expr::dot(
            self.group,
            Expr::Load { buf: x, at },
            Expr::Load { buf: w, at: self.w.1.clone() },
            Expr::acc(self.acc),
        );
        let body = std::mem::take(&mut m.kernels[k].body);
        m.kernels[k].body = body.into_iter().map(|s| self.apply(s, count, &value, total)).collect();
    }
    fn apply(&self, s: Stmt, count: Dim, value: &Expr, total: &Expr) -> Stmt {
        match s {
            Stmt::Set { reg, at, .. } if reg == self.acc => Stmt::Set { reg, at, value: value.clone() },
            Stmt::For { kind, var, lo, hi, body } => {
                let hi = if kind == LoopKind::Seq && var == self.channel { count } else { hi };
                Stmt::For {
                    kind,
                    var,
                    lo,
                    hi,
                    body: body.into_iter().map(|s| self.apply(s, count, value, total)).collect(),
                }
            }
            s => s.rewrite_exprs(&mut |e| match e {
                Expr::Acc { reg, .. } if reg == self.acc => total.clone(),
                e => e,
            }),
        }
    }
}

/// Kernels with a single call in the driver, in order: a kernel can be inserted before these only.
pub(crate) fn kernels(m: &Module) -> Vec<Kernel> {
    let calls = visit::calls(&m.driver);
    let mut times: HashMap<Kernel, usize> = HashMap::new();
    calls.iter().for_each(|k| *times.entry(*k).or_default() += 1);
    calls.into_iter().filter(|k| times[k] == 1).collect()
}

/// Moves a map at the driver's end directly before `k`, and names it after `k`.
pub(crate) fn before(m: &mut Module, k: Kernel, map: Kernel, suffix: &str) {
    m.kernels[map].name = format!("{}.{suffix}", m.kernels[k].name);
    let call = m.driver.pop().into_iter().collect();
    visit::splice_call(&mut m.driver, k, true, call);
}

/// True if a dimension of a buffer is innermost in memory.
pub(crate) fn is_innermost(m: &Module, (b, of): (Buf, usize)) -> bool {
    let d = &m.bufs[b];
    match &d.layout {
        Layout::RowMajor => of + 1 == d.dims.len(),
        Layout::Permuted(v) => v.last() == Some(&of),
    }
}

/// The value at an index within an extent, and `beyond` otherwise.
pub(crate) fn within(m: &Module, index: Dim, extent: Dim, v: Expr, beyond: Expr) -> Expr {
    if m.syms.in_range(index, extent) {
        v
    } else {
        Expr::select(Expr::cmp_index(BinOp::Lt, index, extent), v, beyond)
    }
}

/// A buffer `name` with the elements of an operand in groups of `size` adjacent elements along a dimension,
/// each group a 32-bit integer with the first element lowest, padded with zeros; the order of the other
/// dimensions is kept. The kernel is the driver's last. `finish` is applied to each group.
pub(crate) fn interleave(
    m: &mut Module,
    k: Kernel,
    (x, of): (Buf, usize),
    (name, size): (String, i64),
    finish: impl Fn(Expr) -> Expr,
) -> (Kernel, Buf) {
    let (mut dims, layout) = (m.bufs[x].dims.clone(), m.bufs[x].layout.clone());
    let extent = dims[of];
    dims[of] = extent.ceil_div(size);
    let out = m.temp(name, ElemType::I32, dims);
    m.bufs[out].layout = layout;
    let origin = m.kernels[k].origin.clone();
    let number = |v: i64| Expr::int(ElemType::I32, v);
    let (bits, few) = (32 / size, extent.as_const().map_or(size, |n| n.min(size)));
    let id = m.map(out, &origin, |kb, at| {
        let part = |i: i64| {
            let mut from = at.to_vec();
            from[of] = at[of] * size + i;
            let mut v = Expr::Cast(ElemType::I32, Box::new(kb.load(x, &from)));
            // The sign extension of a negative part must not overlap the parts above it.
            if kb.m.bufs[x].ty == ElemType::I8 && i + 1 < size {
                v = Expr::bin(BinOp::And, v, number((1 << bits) - 1));
            }
            let v = within(kb.m, from[of], extent, v, number(0));
            if i == 0 { v } else { Expr::bin(BinOp::Shl, v, number(bits * i)) }
        };
        finish((1..few).fold(part(0), |sum, i| Expr::bin(BinOp::Or, sum, part(i))))
    });
    (id, out)
}

/// Copies of operands, made by kernels before contractions. A copy made for one contraction is reused by a
/// later one if copying there would give the same ([`Uses::may_move`]): nothing that the copy reads changes
/// in between, and neither contraction is alone in a branch or loop.
#[derive(Default)]
pub(crate) struct Copies {
    /// The copied buffer and its grouped dimension; the kernel that copies, and its result.
    made: Vec<((Buf, usize), Kernel, Buf)>,
}

impl Copies {
    /// The copy of `x` along dimension `of` for contraction `k`, created by `make` if there is none.
    pub fn get(
        &mut self,
        m: &mut Module,
        k: Kernel,
        (x, of): (Buf, usize),
        make: impl FnOnce(&mut Module) -> (Kernel, Buf),
    ) -> Buf {
        let same = |c: &&((Buf, usize), Kernel, Buf)| c.0 == (x, of);
        if self.made.iter().any(|c| same(&c)) {
            let uses = Uses::new(m);
            if let Some(c) = self.made.iter().filter(same).find(|c| uses.may_move(m, c.1, k)) {
                return c.2;
            }
        }
        let (by, copy) = make(m);
        self.made.push(((x, of), by, copy));
        copy
    }
}

/// True if an outer loop runs over the subscripts of one operand only.
pub(crate) fn columns(m: &Module, k: Kernel, of: &[Dim], not: &[Dim]) -> bool {
    par_loops(&m.kernels[k].body).0.iter().any(|l| depends(of, l.0) && !depends(not, l.0))
}
