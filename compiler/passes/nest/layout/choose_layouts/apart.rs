//! Maps between buffers with channels first and kernels with vectors along channels: a copy of an operand, or
//! a transposition of the result.

use crate::nest::{Buf, Expr, Kernel, KernelBuilder, LoopKind, Module, Place, Reg, Stmt, visit};
use crate::passes::nest::analysis::form::{self, Stored};
use crate::passes::nest::analysis::shape::{instance, peel, wrap};
use crate::sym::{Dim, Sym};
use crate::tensor::ElemType;
use std::collections::HashSet;

/// The kernel reads a copy of an image. The layout of the copy is free.
pub(super) fn copy_image(m: &mut Module, k: Kernel, image: Buf) {
    let own = m.temp(format!("{}.image", m.bufs[image].name), m.bufs[image].ty, m.bufs[image].dims.clone());
    let origin = m.kernels[k].origin.clone();
    let id = m.map(own, &origin, |kb, at| kb.load(image, at));
    m.kernels[id].name = format!("{}.image", m.kernels[k].name);
    let call = m.driver.pop();
    visit::splice_call(&mut m.driver, k, true, call.into_iter().collect());
    let body = std::mem::take(&mut m.kernels[k].body);
    let swap = |e: Expr| match e {
        Expr::Load { buf, at } if buf == image => Expr::Load { buf: own, at },
        e => e,
    };
    m.kernels[k].body = body.into_iter().map(|s| s.rewrite_exprs(&mut |e| swap(e))).collect();
}

/// The result of a kernel is stored in a new buffer, and a map transposes it. `viewed`: temporaries that keep
/// ONNX's memory order; `shared`: buffers that several kernels store to.
pub(super) fn transpose_result(
    m: &mut Module,
    k: Kernel,
    out: Buf,
    viewed: &HashSet<Buf>,
    shared: &HashSet<Buf>,
) {
    let Some(part) = part(m, k, out, shared) else { return };
    let finish = finish(m, k, viewed, &part);
    let dims: Vec<Dim> = part.iter().map(|p| p.1).collect();
    let own = m.temp(
        format!("{}.image", m.bufs[out].name),
        finish.as_ref().map_or(m.bufs[out].ty, |f| f.ty),
        dims.clone(),
    );
    let mut body = std::mem::take(&mut m.kernels[k].body);
    if let Some(f) = &finish {
        body = f.unfinished(&body).into();
    }
    redirect(&mut body, out, own, &part);
    m.kernels[k].body = body;
    let (origin, name) = (m.kernels[k].origin.clone(), format!("{}.planes", m.kernels[k].name));
    m.kernel(&name, &origin, |kb| {
        kb.nest(LoopKind::Par, &dims, |kb, at| {
            let to: Vec<Dim> = at.iter().zip(&part).map(|(i, p)| *i + p.0).collect();
            let sum = kb.load(own, at);
            let v = match &finish {
                None => sum,
                Some(f) => f.value(kb, at, sum),
            };
            kb.store(out, &to, v);
        });
    });
    // The call was appended to the driver.
    let call = m.driver.pop();
    visit::splice_call(&mut m.driver, k, false, [Stmt::Call(k)].into_iter().chain(call).collect());
}

/// The epilogue of a contraction.
struct Finish {
    acc: Reg,
    ty: ElemType,
    value: Expr,
    /// For each loop: a dimension of the result, and the offset of the variable from the position there.
    loops: Vec<(Sym, usize, Dim)>,
}

/// The epilogue of a contraction, if it reads images that stay channels-first (a residual that is an input):
/// the transposing map computes it, since these images are contiguous along its loops.
fn finish(m: &Module, k: Kernel, viewed: &HashSet<Buf>, part: &[(Dim, Dim)]) -> Option<Finish> {
    let p = m.form(k).contraction()?;
    let planes =
        |b: Buf| m.storage(b) != b || matches!(m.bufs[b].place, Place::Input(_)) || viewed.contains(&b);
    let Stored { before, value, .. } = form::stored(&p.epilogue)?;
    let mut reads = false;
    for s in &p.epilogue {
        s.expr()?.each_load(&mut |buf, at| {
            reads |= planes(buf) && at.iter().skip(2).any(|d| d.as_const().is_none());
        });
    }
    let within = |body: Expr, s: &Stmt| match s {
        Stmt::Let { reg, value } => {
            Expr::Let { reg: *reg, value: Box::new(value.clone()), body: Box::new(body) }
        }
        _ => body,
    };
    let value = before.iter().rev().fold(value.clone(), within);
    let (_, at) = p.store()?;
    let mut loops = vec![];
    for (i, d) in at.iter().enumerate() {
        let (rest, from) = d.split_const();
        if let Some(s) = rest.as_sym() {
            loops.push((s, i, part[i].0 - from));
        } else if rest != Dim::constant(0) {
            return None;
        }
    }
    let whole = p.loops.iter().all(|l| loops.iter().any(|x| x.0 == l.0));
    (reads && whole).then_some(Finish { acc: p.acc, ty: p.product.ty(), value, loops })
}

impl Finish {
    /// The contraction without its epilogue.
    fn unfinished(&self, body: &[Stmt]) -> Vec<Stmt> {
        let nest = peel(body);
        let plain = |s: Stmt| match s {
            Stmt::Store { buf, at, .. } => Stmt::Store { buf, at, value: Expr::acc(self.acc) },
            s => s,
        };
        let body = nest.body.into_iter().filter(|s| !matches!(s, Stmt::Let { .. })).map(plain).collect();
        wrap(&nest.loops, body)
    }
    /// The result at a position, given the accumulator there.
    fn value(&self, kb: &mut KernelBuilder, at: &[Dim], sum: Expr) -> Expr {
        let put = |s: Sym| self.loops.iter().find(|l| l.0 == s).map(|l| at[l.1] + l.2);
        instance(kb.m, &self.value, &put).rewrite(&mut |e| match e {
            Expr::Acc { reg, .. } if reg == self.acc => sum.clone(),
            e => e,
        })
    }
}

/// The start and extent of the stored range in each dimension: everything if no other kernel stores to the
/// buffer.
fn part(m: &Module, k: Kernel, out: Buf, shared: &HashSet<Buf>) -> Option<Vec<(Dim, Dim)>> {
    let zero = Dim::constant(0);
    if !shared.contains(&m.storage(out)) {
        return Some(m.bufs[out].dims.iter().map(|d| (zero, *d)).collect());
    }
    let (loops, inside) = form::par_loops(&m.kernels[k].body);
    let mut stores: Vec<Vec<Dim>> = vec![];
    visit::each_store(inside, &mut |_, at| stores.push(at.to_vec()));
    let [at] = stores.as_slice() else { return None };
    let extent = |d: &Dim| {
        let (rest, from) = d.split_const();
        let n = if rest == zero {
            Dim::constant(1)
        } else {
            loops.iter().find(|l| Some(l.0) == rest.as_sym())?.1
        };
        Some((Dim::constant(from), n))
    };
    at.iter().map(extent).collect()
}

/// Redirects stores from `from` to `to`, which holds a part of it.
fn redirect(body: &mut [Stmt], from: Buf, to: Buf, part: &[(Dim, Dim)]) {
    for s in body {
        if let Stmt::Store { buf, at, .. } = s
            && *buf == from
        {
            *buf = to;
            at.iter_mut().zip(part).for_each(|(i, p)| *i = *i - p.0);
        }
        s.bodies_mut().for_each(|b| redirect(b, from, to, part));
    }
}
