//! fill_vectors: convolutions with few output channels compute several adjacent results of a row in one
//! vector.
//!
//! Vectors run along output channels; three or six of them leave most lanes empty. With S results at
//! x = S q + p, the columns of the contraction are pairs (p, channel), which are contiguous in an image with
//! channels innermost. Their common range of the image is S - 1 elements wider than a window, and the weights
//! of each phase p are shifted by p and padded with zeros:
//!
//! ```text
//! y[S q + p, k] = sum over c, j of A[c, S q + j] B[k, c, j - p]      j in 0 .. taps + S - 1
//! ```
//!
//! For long reductions, vectors along the reduction avoid the zeros (`schedule/along_sum.rs`).
//!
//! As with Winograd's transform, an infinity or NaN propagates to adjacent results in the same vector.

use crate::diag::Result;
use crate::nest::{Buf, Expr, Kernel, Layout, Math, Module, Place, Stmt, visit};
use crate::passes::nest::analysis::form::{Contraction, ProductKind, Slide};
use crate::passes::nest::analysis::shape::{fresh_regs, peel, wrap};
use crate::passes::nest::analysis::strides::stride;
use crate::passes::nest::schedule::along_sum;
use crate::sym::{Dim, Sym};
use crate::tensor::{ConstData, ElemType};
use std::collections::HashMap;
use std::sync::Arc;

/// Lanes of the longest vectors, used on every level so that all share the weights.
const LANES: i64 = 16;

/// Runs the pass.
pub fn run(m: &mut Module, lanes: u32) -> Result<()> {
    if lanes > 1 && m.math != Math::Strict {
        for k in visit::calls(&m.driver) {
            if let Some(l) = layer(m, k) {
                rewrite(m, k, &l);
            }
        }
    }
    Ok(())
}

/// A convolution with few channels.
struct Layer {
    parts: Contraction,
    /// Output channels, columns, and the taps of a row of the window.
    k: (Sym, i64),
    x: (Sym, Dim),
    tap: (Sym, i64),
    /// Adjacent results per vector.
    phases: i64,
    weights: Arc<ConstData>,
}

fn layer(m: &Module, kernel: Kernel) -> Option<Layer> {
    let p = m.form(kernel).contraction().filter(|p| p.product == ProductKind::Fma)?;
    let Place::Const(weights) = &m.bufs[p.b.0].place else { return None };
    if weights.elem() != ElemType::F32 || m.bufs[p.b.0].layout != Layout::RowMajor {
        return None;
    }
    let (out, at) = p.store()?;
    // Channels: one whole dimension of the weights.
    let of = |list: &[(Sym, Dim)], d: &Dim| {
        d.as_sym().and_then(|s| list.iter().find(|l| l.0 == s).and_then(|l| Some((s, l.1.as_const()?))))
    };
    let once =
        |d: &Dim, at: &[Dim]| d.as_sym().is_some_and(|s| at.iter().filter(|x| x.contains(s)).count() == 1);
    let k = p.b.1.iter().enumerate().filter(|(_, d)| once(d, &p.b.1)).find_map(|(i, d)| {
        of(&p.loops, d).filter(|k| k.1 == weights.dims()[i] && !p.a.1.iter().any(|d| d.contains(k.0)))
    })?;
    // Columns: a loop and a tap whose steps are steps of one in the image.
    let (x, tap) = p.a.1.iter().find_map(|d| {
        let Slide { along: x, tap: Some((t, taps)), .. } = Slide::unit(*d, &p.loops, &p.reduction)? else {
            return None;
        };
        let t = (t, taps.as_const()?);
        let rows = stride(m, out, &at, x.0) == Some(k.1)
            && p.a.1.iter().filter(|d| d.contains(x.0) || d.contains(t.0)).count() == 1;
        let own =
            p.b.1
                .iter()
                .enumerate()
                .any(|(i, d)| d.as_sym() == Some(t.0) && once(d, &p.b.1) && weights.dims()[i] == t.1);
        (rows && own && !p.b.1.iter().any(|d| d.contains(x.0))).then_some((x, t))
    })?;
    if k.1 > 1 && stride(m, out, &at, k.0) != Some(1) || m.linear(out, &at).linear_in(x.0).is_none() {
        return None;
    }
    // Multiplications per result, as a share of a vector.
    let cost = |s: i64| (tap.1 + s - 1) as f64 / s as f64;
    // The remainder of a row that the phases do not divide is computed separately.
    let whole = |s: i64| x.1.as_const().is_none_or(|x| x % s == 0);
    let phases = (1..=LANES / k.1).filter(|s| whole(*s)).min_by(|a, b| cost(*a).total_cmp(&cost(*b)))?;
    let longer = (1..=LANES / k.1)
        .filter(|s| x.1.as_const().is_some_and(|x| x >= 8 * s))
        .min_by(|a, b| cost(*a).total_cmp(&cost(*b)));
    let phases = longer.filter(|s| cost(*s) * 1.3 < cost(phases)).unwrap_or(phases);
    // Vectors along the reduction are an alternative.
    let along = along_sum::Runs::of(m, p).map_or(f64::INFINITY, |r| {
        let rows = (LANES / k.1).max(1);
        r.price(k.1, rows, LANES) as f64 / (rows * r.terms / tap.1) as f64
    });
    let wins = cost(phases) * 1.3 < cost(1) && k.1 * phases >= 4 && cost(phases) < along;
    let fits = p.epilogue.iter().all(|s| s.expr().is_none_or(|e| follows(m, e, k, x)));
    (wins && fits).then(|| Layer { weights: weights.clone(), k, x, tap, phases, parts: p.clone() })
}

/// True if the loads of an expression run along columns and channels as the result does, or read a constant
/// per channel.
fn follows(m: &Module, e: &Expr, k: (Sym, i64), x: (Sym, Dim)) -> bool {
    let mut fits = true;
    e.walk(&mut |e| match e {
        Expr::Load { buf, at } => {
            let (along_k, along_x) = (at.iter().any(|d| d.contains(k.0)), at.iter().any(|d| d.contains(x.0)));
            fits &= match (along_k, along_x) {
                (false, false) => true,
                (true, false) => per_channel(m, *buf, at, k),
                _ => {
                    (k.1 == 1 || stride(m, *buf, at, k.0) == Some(1)) && stride(m, *buf, at, x.0) == Some(k.1)
                }
            };
        }
        Expr::Index(d) | Expr::With { extent: d, .. } => fits &= !d.contains(k.0) && !d.contains(x.0),
        _ => {}
    });
    fits
}

/// True for a constant of one number for each channel.
fn per_channel(m: &Module, buf: Buf, at: &[Dim], k: (Sym, i64)) -> bool {
    let whole = |c: &ConstData| c.elem() == ElemType::F32 && c.count() == k.1 as u64;
    matches!(&m.bufs[buf].place, Place::Const(c) if whole(c))
        && at.iter().all(|d| d.as_sym() == Some(k.0) || d.as_const() == Some(0))
}

/// The results of each row after the last whole vector, in a kernel of their own.
fn rest(m: &mut Module, kernel: Kernel, l: &Layer) {
    let whole = l.x.1.floor_div(l.phases) * l.phases;
    let left = m.syms.simplify(l.x.1.modulo(l.phases));
    if left.as_const() == Some(0) {
        return;
    }
    let nest = peel(&m.kernels[kernel].body);
    let v = m.syms.loop_var("x", Dim::constant(0), left);
    let put = |d: Dim| d.subst(&mut |s| (s == l.x.0).then(|| whole + v));
    let body: Vec<Stmt> =
        fresh_regs(m, &nest.body).into_iter().map(|s| s.map_dims(&mut |d| put(d))).collect();
    let loops: Vec<(Sym, Dim)> =
        nest.loops.iter().map(|o| if o.0 == l.x.0 { (v, left) } else { *o }).collect();
    let (name, origin) = (format!("{}.rest", m.kernels[kernel].name), m.kernels[kernel].origin.clone());
    let id = m.kernel(&name, &origin, |_| {});
    m.kernels[id].body = wrap(&loops, body).into();
    let call = m.driver.pop();
    visit::splice_call(&mut m.driver, kernel, false, [Stmt::Call(kernel)].into_iter().chain(call).collect());
}

fn rewrite(m: &mut Module, kernel: Kernel, l: &Layer) {
    let (p, s, zero) = (&l.parts, l.phases, Dim::constant(0));
    let Some(weights) = spread(l) else { return };
    rest(m, kernel, l);
    let (pieces, columns, taps) =
        (l.x.1.floor_div(s), Dim::constant(s * l.k.1), Dim::constant(l.tap.1 + s - 1));
    let weights = m.constant(format!("{}.phases", m.bufs[p.b.0].name), Arc::new(weights));
    let (q, n, j) = (
        m.syms.loop_var("q", zero, pieces),
        m.syms.loop_var("n", zero, columns),
        m.syms.loop_var("j", zero, taps),
    );
    let a =
        p.a.1
            .iter()
            .map(|d| {
                d.subst(&mut |v| {
                    if v == l.x.0 { Some(Dim::sym(q) * s) } else { (v == l.tap.0).then(|| j.into()) }
                })
            })
            .collect();
    let b = p
        .b
        .1
        .iter()
        .map(|d| d.subst(&mut |v| if v == l.k.0 { Some(n.into()) } else { (v == l.tap.0).then(|| j.into()) }))
        .collect();
    let value = p.product.step(
        Expr::Load { buf: p.a.0, at: a },
        Expr::Load { buf: weights, at: b },
        Expr::acc(p.acc),
    );
    let set = Stmt::Set { reg: p.acc, at: vec![], value };
    let sum = p.reduction.iter().rev().fold(set, |body, (v, hi)| {
        let (var, hi) = if *v == l.tap.0 { (j, taps) } else { (*v, *hi) };
        Stmt::seq(var, hi, vec![body])
    });
    let mut body =
        vec![Stmt::Acc { reg: p.acc, lanes: 1, shape: vec![], init: Expr::num(p.product.ty(), 0.0) }, sum];
    let mut repeated: HashMap<Buf, Buf> = HashMap::new();
    for t in p.epilogue.iter().cloned() {
        let t = t.rewrite_exprs(&mut |e| match e {
            Expr::Load { buf, at }
                if at.iter().any(|d| d.contains(l.k.0)) && per_channel(m, buf, &at, l.k) =>
            {
                let again = *repeated.entry(buf).or_insert_with(|| repeat(m, buf, s));
                Expr::Load { buf: again, at: vec![n.into()] }
            }
            e => e,
        });
        let n = Dim::sym(n);
        body.push(t.map_dims(&mut |d| {
            m.syms.simplify(d.subst(&mut |v| {
                if v == l.x.0 {
                    Some(Dim::sym(q) * s + n.floor_div(l.k.1))
                } else {
                    (v == l.k.0).then(|| n.modulo(l.k.1))
                }
            }))
        }));
    }
    let loops: Vec<(Sym, Dim)> = p
        .loops
        .iter()
        .filter(|v| v.0 != l.k.0)
        .map(|v| if v.0 == l.x.0 { (q, pieces) } else { *v })
        .chain([(n, columns)])
        .collect();
    m.kernels[kernel].body = wrap(&loops, body).into();
}

/// The weights of all phases: phases and channels replace the channels, and rows are wider.
fn spread(l: &Layer) -> Option<ConstData> {
    let (dims, values) = (l.weights.dims(), l.weights.to_f64s()?);
    let dim = |s: Sym| l.parts.b.1.iter().position(|d| d.as_sym() == Some(s));
    let (dk, dt) = (dim(l.k.0)?, dim(l.tap.0)?);
    let mut wide = dims.to_vec();
    wide[dk] *= l.phases;
    wide[dt] += l.phases - 1;
    let mut out = vec![0f32; usize::try_from(wide.iter().product::<i64>()).ok()?];
    for (i, v) in values.iter().enumerate() {
        // Decompose the position of the weight, innermost dimension first.
        let mut rest = i as i64;
        let mut at = vec![0; dims.len()];
        for (a, d) in at.iter_mut().zip(dims).rev() {
            (*a, rest) = (rest % d, rest / d);
        }
        for p in 0..l.phases {
            let place = at.iter().zip(&wide).enumerate().fold(0, |n, (d, (a, size))| {
                n * size + a + if d == dk { p * l.k.1 } else { 0 } + if d == dt { p } else { 0 }
            });
            *out.get_mut(usize::try_from(place).ok()?)? = *v as f32;
        }
    }
    Some(ConstData::f32s(wide, &out))
}

/// A constant repeated `times` times.
fn repeat(m: &mut Module, buf: Buf, times: i64) -> Buf {
    let name = m.bufs[buf].name.clone();
    let values: Vec<f32> = match &m.bufs[buf].place {
        Place::Const(c) => c.to_f64s().unwrap_or_default().iter().map(|v| *v as f32).collect(),
        _ => vec![],
    };
    let all = values.repeat(times as usize);
    let data = ConstData::f32s(vec![all.len() as i64], &all);
    m.constant(name, Arc::new(data))
}
