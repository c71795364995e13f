//! gate_weights: if the image of a convolution is the product of an image and a factor for each channel
//! (squeeze-and-excite), the factor is applied to the weights instead, provided that these have fewer
//! elements. The image is then read once and not stored again.
//!
//! Applies to single images only: their channels have one factor each. Products are rounded in another order.

use crate::diag::Result;
use crate::nest::{BinOp, Buf, Expr, Kernel, Math, Module, Place, Stmt, visit};
use crate::passes::nest::analysis::form::{Contraction, ProductKind};
use crate::passes::nest::analysis::shape::{Uses, instance, is_temp};
use crate::sym::{Dim, Sym};
use crate::tensor::ElemType;
use std::collections::HashMap;

/// Minimum image elements per weight that justify a kernel for the weights.
const WORTH: i64 = 4;

/// Runs the pass.
pub fn run(m: &mut Module) -> Result<()> {
    if m.math == Math::Strict {
        return Ok(());
    }
    let uses = Uses::new(m);
    for k in uses.order.clone() {
        if let Some(g) = gated(m, &uses, k) {
            rewrite(m, k, &g);
        }
    }
    Ok(())
}

/// A convolution that can be rewritten.
struct Gated {
    parts: Contraction,
    /// The kernel that multiplies.
    map: Kernel,
    /// The unscaled image, and the position at which the convolution reads it.
    image: (Buf, Vec<Dim>),
    factor: Expr,
    /// For each loop of the map that the factor depends on: the dimension of the weights.
    along: HashMap<Sym, usize>,
}

fn gated(m: &Module, uses: &Uses, k: Kernel) -> Option<Gated> {
    let parts = m.form(k).contraction().filter(|p| p.product == ProductKind::Fma)?.clone();
    let ((t, at), (w, wat)) = (&parts.a, &parts.b);
    let constant = matches!(m.bufs[*w].place, Place::Const(_)) && m.bufs[*w].ty == ElemType::F32;
    let ([map_kernel], true) =
        (uses.writers(*t), constant && is_temp(m, *t) && uses.readers(*t) == [k] && !uses.pinned(*t))
    else {
        return None;
    };
    if *map_kernel == k
        || !uses.may_move(m, *map_kernel, k)
        || parts.epilogue.iter().any(|s| s.loads().contains(t))
    {
        return None;
    }
    let map = m.form(*map_kernel).map().filter(|map| map.buf == *t && m.bufs[*t].ty == ElemType::F32)?;
    let cover = map.cover(m)?;
    let count = |b: Buf| m.bufs[b].dims.iter().try_fold(1i64, |n, d| n.checked_mul(d.as_const()?));
    if count(*w)?.checked_mul(WORTH)? > count(*t)? {
        return None;
    }
    let Expr::Bin(BinOp::Mul, x, y) = &map.value else { return None };
    // The dimension of the weights that a loop of the map runs along, by way of a reduction loop of the
    // convolution: a whole dimension.
    let weights_dim = |s: Sym| {
        let v = at[cover.iter().position(|c| *c == Some(s))?].as_sym()?;
        let (_, extent) = parts.reduction.iter().find(|l| l.0 == v)?;
        let dim = wat.iter().position(|d| d.as_sym() == Some(v))?;
        (m.bufs[*w].dims[dim] == *extent).then_some(dim)
    };
    let (image, factor, along) = [(x, y), (y, x)].into_iter().find_map(|(image, factor)| {
        // The map reads the image at its own position.
        let Expr::Load { buf, at: from } = &**image else { return None };
        let plain = *from == map.at && m.bufs[*buf].ty == ElemType::F32;
        let along = dims_of(factor, &weights_dim).filter(|_| plain)?;
        Some((*buf, (**factor).clone(), along))
    })?;
    Some(Gated { map: *map_kernel, image: (image, at.clone()), factor, along, parts })
}

/// The dimension of the weights for each loop that a factor depends on; `None` if a loop has none.
fn dims_of(factor: &Expr, dim: &dyn Fn(Sym) -> Option<usize>) -> Option<HashMap<Sym, usize>> {
    let (mut along, mut fits) = (HashMap::new(), true);
    factor.walk(&mut |e| match e {
        Expr::Load { at, .. } => {
            for s in at.iter().flat_map(|d| d.syms()) {
                let dim = dim(s);
                fits &= dim.is_some();
                along.extend(dim.map(|d| (s, d)));
            }
        }
        Expr::Index(_) | Expr::With { .. } | Expr::Let { .. } => fits = false,
        _ => {}
    });
    fits.then_some(along)
}

fn rewrite(m: &mut Module, k: Kernel, g: &Gated) {
    let w = g.parts.b.0;
    let (name, origin) = (format!("{}.gated", m.bufs[w].name), m.kernels[g.map].origin.clone());
    let scaled = m.temp(name, ElemType::F32, m.bufs[w].dims.clone());
    m.map(scaled, &origin, |kb, at| {
        let factor = instance(kb.m, &g.factor, &|s| g.along.get(&s).map(|d| at[*d]));
        kb.load(w, at) * factor
    });
    let call: Vec<Stmt> = m.driver.pop().into_iter().collect();
    visit::splice_call(&mut m.driver, g.map, false, call);
    let (t, (image, at)) = (g.parts.a.0, &g.image);
    let body = std::mem::take(&mut m.kernels[k].body);
    m.kernels[k].body = body
        .into_iter()
        .map(|s| {
            s.rewrite_exprs(&mut |e| match e {
                Expr::Load { buf, .. } if buf == t => Expr::Load { buf: *image, at: at.clone() },
                Expr::Load { buf, at } if buf == w => Expr::Load { buf: scaled, at },
                e => e,
            })
        })
        .collect();
}
