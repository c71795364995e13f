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
    [(x, y), (y, x)]
        .into_iter()
        .find_map(|(image, factor)| {
            let Expr::Load { buf, at: from } = &**image else { return None };
            // The map reads the image at its own position.
            let same = from.len() == map.at.len() && from.iter().zip(&map.at).all(|(a, b)| a == b);
            if !same || m.bufs[*buf].ty != ElemType::F32 {
                return None;
            }
            // The factor depends on reduction loops of the convolution, each of which runs along a dimension
            // of the weights.
            let mut along = HashMap::new();
            let mut fits = true;
            factor.walk(&mut |e| match e {
                Expr::Load { at: g, .. } => {
                    for s in g.iter().flat_map(|d| d.syms()) {
                        let depth = cover
                            .iter()
                            .position(|c| *c == Some(s))
                            .and_then(|d| at[d].as_sym())
                            .filter(|v| parts.reduction.iter().any(|l| l.0 == *v));
                        let dim = depth.and_then(|v| wat.iter().position(|d| d.as_sym() == Some(v)));
                        // A whole dimension of the weights.
                        match dim.filter(|d| {
                            parts
                                .reduction
                                .iter()
                                .any(|l| wat[*d].as_sym() == Some(l.0) && l.1 == m.bufs[*w].dims[*d])
                        }) {
                            Some(d) => {
                                along.insert(s, d);
                            }
                            None => fits = false,
                        }
                    }
                }
                Expr::Index(_) | Expr::With { .. } | Expr::Let { .. } => fits = false,
                _ => {}
            });
            fits.then(|| (*buf, (**factor).clone(), along))
        })
        .map(|(image, factor, along)| (image, at.clone(), factor, along))
        .map(|(image, at, factor, along)| Gated {
            map: *map_kernel,
            image: (image, at),
            factor,
            along,
            parts,
        })
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
