//! fuse_conv_pool: a first convolution with few channels and the pooling that follows it become one kernel,
//! which computes the results of a pooling window in registers.
//!
//! ```text
//! par n, c, y, x {
//!     p = -inf
//!     seq i, j { s = 0; seq k { s = fma(A[n, k, Y y + i .., X x + j ..], W[c, k], s) }; p = max(p, f(s)) }
//!     store p
//! }
//! ```
//!
//! Vectors along three or six channels would leave most lanes empty (`fill_vectors` fills them partly, with
//! multiplications by zero). The image is an input with channels first, so vectors run along the pooled row
//! instead: each lane has the accumulators of one window, which differ in their start, and pooling is an
//! operation on whole vectors. The unpooled image is never stored. The result keeps channels first; the next
//! convolution loads its elements as scalars, in any layout.

use crate::diag::Result;
use crate::nest::{Buf, Expr, Kernel, Layout, Module, Place, Stmt, visit};
use crate::passes::nest::analysis::form::{Contraction, ProductKind, Slide, Stored, Window, depends, stored};
use crate::passes::nest::analysis::shape::{self, Uses, instance, is_temp, wrap};
use crate::passes::nest::analysis::strides::stride;
use crate::sym::{Dim, Sym};
use crate::tensor::ElemType;

/// Channels that fill half of the longest vector: from this number on, vectors run along channels.
const FEW: i64 = 8;
/// Maximum channels of an input image with channels first.
const COLOURS: i64 = 4;
/// Maximum results of a pooling window: their accumulators are registers.
const WINDOW: i64 = 4;
/// Maximum distance of columns between lanes, for which strided loads exist.
pub(crate) const STEP: i64 = 2;
/// Lanes of the longest vectors. All levels take the same decision, since it determines the layout of images.
const LANES: i64 = 16;

/// Runs the pass.
pub fn run(m: &mut Module, lanes: u32) -> Result<()> {
    if lanes > 1 {
        let mut uses = Uses::new(m);
        for k in visit::calls(&m.driver) {
            if let Some((conv, body)) = fused(m, &uses, k) {
                m.kernels[k].body = body.into();
                m.kernels[k].origin = m.kernels[conv].origin.clone();
                visit::splice_call(&mut m.driver, conv, false, vec![]);
                uses.update(m, &[k], &[(conv, &[])]);
            }
        }
    }
    Ok(())
}

/// The body of a pooling kernel with the preceding convolution inlined, and the kernel of that convolution.
fn fused(m: &mut Module, uses: &Uses, pool: Kernel) -> Option<(Kernel, Vec<Stmt>)> {
    let Window { loops, acc, init, taps, op, read: (image, at), weight: None, epilogue: tail } =
        m.form(pool).window()?
    else {
        return None;
    };
    let ([conv], [_]) = (uses.writers(image), uses.readers(image)) else { return None };
    let floats = m.regs[acc].ty == ElemType::F32 && m.bufs[image].ty == ElemType::F32;
    if !floats || !is_temp(m, image) || uses.pinned(image) || !uses.may_move(m, *conv, pool) {
        return None;
    }
    let p = m.form(*conv).contraction().filter(|p| p.product == ProductKind::Fma)?.clone();
    let Stored { before: lets, at: to, value, .. } = stored(&p.epilogue).filter(|s| s.buf == image)?;
    let cover = shape::cover(m, image, to, &p.loops)?;
    // Windows do not overlap: no convolution result is computed twice.
    let steps_over = |s: Slide| s.dilation == 1 && s.first == 0 && s.taps().is_some_and(|n| s.step >= n);
    let apart = at.iter().all(|d| {
        let still = !taps.iter().any(|t| d.contains(t.0));
        let plain = d.as_sym().is_some() || d.as_const() == Some(0);
        if still { plain } else { Slide::of(*d, &loops, &taps).is_some_and(steps_over) }
    });
    let results = taps.iter().try_fold(1i64, |n, t| n.checked_mul(t.1.as_const()?))?;
    if !apart || !(2..=WINDOW).contains(&results) {
        return None;
    }
    let place = |s: Sym| cover.iter().position(|c| *c == Some(s)).and_then(|i| at.get(i).copied());
    let moved = |at: &[Dim]| -> Vec<Dim> { at.iter().map(|d| d.subst(&mut |s| place(s))).collect() };
    let (a, w) = (moved(&p.a.1), moved(&p.b.1));
    if !in_planes(m, uses, p.a.0) || !fills_vectors(m, &p, (&a, &w), &loops, &tail) {
        return None;
    }
    let step =
        p.product.step(Expr::Load { buf: p.a.0, at: a }, Expr::Load { buf: p.b.0, at: w }, Expr::acc(p.acc));
    let sum =
        p.reduction.iter().rev().fold(Stmt::Set { reg: p.acc, at: vec![], value: step }, |s, (var, hi)| {
            Stmt::seq(*var, *hi, vec![s])
        });
    let mut inside =
        vec![Stmt::Acc { reg: p.acc, lanes: 1, shape: vec![], init: Expr::num(ElemType::F32, 0.0) }, sum];
    for s in lets {
        let Stmt::Let { reg, value } = s else { return None };
        inside.push(Stmt::Let { reg: *reg, value: instance(m, value, &place) });
    }
    let value = instance(m, value, &place);
    inside.push(Stmt::Set {
        reg: acc,
        at: vec![],
        value: Expr::Bin(op, Box::new(Expr::acc(acc)), Box::new(value)),
    });
    let inside = taps.iter().rev().fold(inside, |body, (var, hi)| vec![Stmt::seq(*var, *hi, body)]);
    let head = Stmt::Acc { reg: acc, lanes: 1, shape: vec![], init: Expr::Const(init) };
    let body: Vec<Stmt> = [head].into_iter().chain(inside).chain(tail).collect();
    Some((*conv, wrap(&loops, body)))
}

/// True if vectors along a row of pooled results are nearly full: there are few channels, only the weights
/// depend on them, and a row is nearly as long as its vectors. `a` and `w`: accesses of the image and of the
/// weights.
fn fills_vectors(
    m: &Module,
    p: &Contraction,
    (a, w): (&[Dim], &[Dim]),
    loops: &[(Sym, Dim)],
    tail: &[Stmt],
) -> bool {
    let few = |l: &&(Sym, Dim)| l.1.as_const().is_some_and(|c| (2..=FEW).contains(&c));
    let channel = loops.iter().find(|l| depends(w, l.0) && !depends(a, l.0)).filter(few);
    let row = loops.iter().find(|l| stride(m, p.a.0, a, l.0) == Some(STEP));
    let (Some(channel), Some(row)) = (channel, row) else { return false };
    let long = row.1.as_const().is_some_and(|x| 4 * x >= 3 * ((x + LANES - 1) / LANES * LANES));
    let constant = m.is_constant(p.b.0) && loops.iter().all(|l| l.0 == channel.0 || !depends(w, l.0));
    let mut along_rows = true;
    visit::each_store(tail, &mut |buf, at| {
        along_rows &= stride(m, buf, at, row.0) == Some(1) && m.bufs[buf].ty == ElemType::F32
    });
    long && constant && along_rows && p.reduction.iter().all(|d| d.1.as_const().is_some())
}

/// True for an input image with few channels, or its padded copy.
fn in_planes(m: &Module, uses: &Uses, image: Buf) -> bool {
    let data = &m.bufs[image];
    let few = data.dims.get(1).and_then(|c| c.as_const()).is_some_and(|c| c <= COLOURS);
    let given = |b: Buf| matches!(m.bufs[m.storage(b)].place, Place::Input(_));
    let copied = || {
        uses.writers(image)
            .iter()
            .all(|k| m.form(*k).map().is_some() && visit::loads(&m.kernels[*k].body).into_iter().all(given))
    };
    few && data.layout == Layout::RowMajor
        && data.ty == ElemType::F32
        && (given(image) || is_temp(m, image) && copied())
}
