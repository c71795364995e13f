//! Contractions over flattened images (Flatten, then Gemm) read the images directly: their reduction runs
//! over channels, rows and columns in the memory order of the image, and only the weights are packed in
//! another order. The image may then have channels innermost.

use crate::nest::{Buf, Expr, Kernel, Module, Stmt};
use crate::passes::nest::analysis::form::{Contraction, ProductKind};
use crate::passes::nest::analysis::shape::{is_temp, wrap};
use crate::sym::{Dim, Sym};

/// A contraction over flattened images.
pub(crate) struct Flat {
    /// Its kernel.
    pub kernel: Kernel,
    parts: Contraction,
    /// The loop along a row.
    reduction: Sym,
    /// The view with an image per row.
    pub view: Buf,
    /// The image that it is a view of.
    pub image: Buf,
}

/// The kernel as a contraction over flattened images.
pub(crate) fn find(m: &Module, k: Kernel) -> Option<Flat> {
    let p = m.form(k).contraction().filter(|p| p.product == ProductKind::Fma)?;
    let (view, image) = (p.a.0, m.storage(p.a.0));
    let ([row, at], [(depth, extent)]) = (p.a.1.as_slice(), p.reduction.as_slice()) else { return None };
    let (dims, own) = (&m.bufs[image].dims, &m.bufs[view].dims);
    let constant = m.is_constant(p.b.0) && m.storage(p.b.0) == p.b.0;
    if view == image || m.is_recast(view) || !is_temp(m, image) || !constant || !(4..=5).contains(&dims.len())
    {
        return None;
    }
    // Each row is one whole image.
    let whole = dims[1..].iter().try_fold(1i64, |n, d| n.checked_mul(d.as_const()?))?;
    let rows = own[0] == dims[0] && own[1].as_const() == Some(whole) && extent.as_const() == Some(whole);
    let fits = rows
        && at.as_sym() == Some(*depth)
        && !row.contains(*depth)
        && p.b.1.iter().filter(|d| d.contains(*depth)).all(|d| d.as_sym() == Some(*depth));
    // The memory of [N, C, 1, 1] is the same in any order.
    let spreads = dims[2..].iter().any(|d| d.as_const() != Some(1));
    // Nothing else may read the view.
    let mut others = false;
    for s in &p.epilogue {
        others |= s.loads().contains(&view);
    }
    let depth = *depth;
    (fits && spreads && !others).then_some(Flat {
        kernel: k,
        parts: p.clone(),
        reduction: depth,
        view,
        image,
    })
}

/// Rewrites the contraction to read the image.
pub(crate) fn rewrite(m: &mut Module, f: &Flat) {
    let Flat { kernel: k, parts: p, reduction: depth, image, .. } = f;
    let (k, depth, image) = (*k, *depth, *image);
    let zero = Dim::constant(0);
    let dims = m.bufs[image].dims.clone();
    let loops: Vec<(Sym, Dim)> = ["c", "z", "y", "x"]
        .iter()
        .take(dims.len() - 3)
        .chain(["y", "x"].iter())
        .zip(&dims[1..])
        .map(|(name, d)| (m.syms.loop_var(name, zero, *d), *d))
        .collect();
    let position = loops.iter().fold(zero, |at, (s, d)| at * *d + Dim::sym(*s));
    let a = std::iter::once(p.a.1[0]).chain(loops.iter().map(|l| l.0.into())).collect();
    let b = p.b.1.iter().map(|d| if d.contains(depth) { position } else { *d }).collect();
    let value =
        p.product.step(Expr::Load { buf: image, at: a }, Expr::Load { buf: p.b.0, at: b }, Expr::acc(p.acc));
    let set = Stmt::Set { reg: p.acc, at: vec![], value };
    let sum = loops.iter().rev().fold(set, |s, (var, hi)| Stmt::seq(*var, *hi, vec![s]));
    let init = Expr::num(p.product.ty(), 0.0);
    let mut body = vec![Stmt::Acc { reg: p.acc, lanes: 1, shape: vec![], init }, sum];
    body.extend(p.epilogue.iter().cloned());
    m.kernels[k].body = wrap(&p.loops, body).into();
}
