//! Fusing loops of a contraction across which memory is contiguous, and splitting loops.

use crate::nest::{Buf, Expr, Module, Stmt};
use crate::passes::nest::analysis::form::{Contraction, depends};
use crate::passes::nest::analysis::gates::is_fixed;
use crate::passes::nest::analysis::shape::in_one;
use crate::sym::{Dim, Sym};

/// Splits loops that A reads by quotient and B by remainder (a transposed convolution whose windows do not
/// overlap): the quotient is a row, the remainder selects the weights.
pub(crate) fn split_phases(m: &mut Module, p: &mut Contraction) {
    const MOST: i64 = 16;
    for i in 0..p.loops.len() {
        let (v, extent) = p.loops[i];
        if !p.is_of_both(v) {
            continue;
        }
        let zero = Dim::constant(0);
        let of = |m: &Module, at: &[Dim], s: i64, q: Sym, r: Sym| -> Vec<Dim> {
            at.iter()
                .map(|d| m.syms.simplify(d.subst(&mut |x| (x == v).then(|| Dim::sym(q) * s + r))))
                .collect()
        };
        for s in 2..=MOST {
            let phase = Dim::constant(s);
            let asked = |at: &[Dim]| {
                at.iter().any(|d| *d == Dim::sym(v).floor_div(phase) || *d == Dim::sym(v).modulo(phase))
            };
            let quotient = m.syms.simplify(extent.floor_div(s));
            if !asked(&p.a.1) || !asked(&p.b.1) || m.syms.simplify(extent.modulo(s)).as_const() != Some(0) {
                continue;
            }
            let (q, r) = (m.syms.loop_var("q", zero, quotient), m.syms.loop_var("r", zero, phase));
            let (a, b) = (of(m, &p.a.1, s, q, r), of(m, &p.b.1, s, q, r));
            if depends(&a, r) || depends(&b, q) {
                continue;
            }
            (p.a.1, p.b.1) = (a, b);
            p.epilogue = std::mem::take(&mut p.epilogue)
                .into_iter()
                .map(|t| {
                    t.map_dims(&mut |d| {
                        m.syms.simplify(d.subst(&mut |x| (x == v).then(|| Dim::sym(q) * s + r)))
                    })
                })
                .collect();
            p.loops[i] = (q, quotient);
            p.loops.push((r, phase));
            break;
        }
    }
}

/// Fuses two loops without a common stride: tiles begin where the inner loop does.
pub(crate) fn joined(
    m: &mut Module,
    p: &mut Contraction,
    (outer, oe): (Sym, Dim),
    (inner, ie): (Sym, Dim),
) -> (Sym, Dim) {
    let var = m.syms.loop_var("m", Dim::constant(0), oe * ie);
    let of = |d: &Dim| in_one(*d, (outer, inner), ie, var);
    p.a.1 = p.a.1.iter().map(of).collect();
    p.b.1 = p.b.1.iter().map(of).collect();
    p.epilogue = std::mem::take(&mut p.epilogue).into_iter().map(|s| s.map_dims(&mut |d| of(&d))).collect();
    (var, oe * ie)
}

fn linear_in(m: &Module, buf: Buf, at: &[Dim], s: Sym) -> bool {
    m.linear(buf, at).linear_in(s).is_some()
}

/// Fuses the column with outer loops across which every access is contiguous: a plane of an image becomes one
/// row of columns.
pub(crate) fn collapse_columns(m: &mut Module, p: &mut Contraction, mut n: Sym) -> Option<(Sym, Dim)> {
    loop {
        let i = p.loops.iter().position(|l| l.0 == n)?;
        let inner = p.loops[i];
        let joins = |o: &(Sym, Dim)| p.is_only_of_b(o.0) && is_fixed(p, o.0) && runs_on(m, p, *o, inner);
        let Some(outer) = p.loops.iter().copied().find(|o| o.0 != n && joins(o)) else {
            return Some(inner);
        };
        p.loops[i] = joined(m, p, outer, inner);
        n = p.loops[i].0;
        p.loops.retain(|l| l.0 != outer.0);
    }
}

/// True if every access with the column is contiguous across the outer loop.
fn runs_on(m: &Module, p: &Contraction, (outer, _): (Sym, Dim), (inner, extent): (Sym, Dim)) -> bool {
    let plain = |buf: Buf, at: &[Dim]| {
        let linear = m.linear(buf, at);
        let (Some((step, _)), Some((next, _))) = (linear.linear_in(inner), linear.linear_in(outer)) else {
            return false;
        };
        next == step * extent
    };
    let mut ok = plain(p.b.0, &p.b.1);
    for s in &p.epilogue {
        if let Stmt::Store { buf, at, .. } = s {
            ok &= plain(*buf, at);
        }
        if let Some(e) = s.expr() {
            e.walk(&mut |e| match e {
                Expr::Load { buf, at } if depends(at, outer) || depends(at, inner) => ok &= plain(*buf, at),
                Expr::Index(d) | Expr::With { extent: d, .. } => {
                    ok &= !d.contains(outer) && !d.contains(inner)
                }
                _ => {}
            });
        }
    }
    ok
}

/// Fuses row loops across which every access is contiguous.
pub(crate) fn collapse_rows(m: &mut Module, p: &mut Contraction, rows: &mut Vec<(Sym, Dim)>, n: Sym) {
    while rows.len() >= 2 {
        let ((outer, oe), (inner, ie)) = (rows[rows.len() - 2], rows[rows.len() - 1]);
        // No other row loop may be between them; batch and column loops do not matter.
        let var = m.syms.loop_var("m", Dim::constant(0), oe * ie);
        let sub = |d: &Dim| in_one(*d, (outer, inner), ie, var);
        let plain = |m: &Module, buf: Buf, at: &[Dim]| {
            let at: Vec<Dim> = at.iter().map(sub).collect();
            let l = m.linear(buf, &at);
            l.linear_in(var).is_some() && l.linear_in(n).is_some()
        };
        let mut ok = plain(m, p.a.0, &p.a.1) && is_fixed(p, outer) && is_fixed(p, inner);
        for s in &p.epilogue {
            if let Stmt::Store { buf, at, .. } = s {
                // The result may have gaps between rows (a padded image): one division by a constant per row
                // is cheap.
                ok &= plain(m, *buf, at)
                    || ie.as_const().is_some()
                        && linear_in(m, *buf, &at.iter().map(sub).collect::<Vec<_>>(), n);
            }
            if let Some(e) = s.expr() {
                e.walk(&mut |e| match e {
                    Expr::Load { buf, at } if depends(at, outer) || depends(at, inner) => {
                        ok &= plain(m, *buf, at)
                    }
                    Expr::Index(d) if d.contains(outer) || d.contains(inner) => ok = false,
                    _ => {}
                });
            }
        }
        if !ok {
            return;
        }
        p.a.1 = p.a.1.iter().map(sub).collect();
        p.epilogue =
            std::mem::take(&mut p.epilogue).into_iter().map(|s| s.map_dims(&mut |d| sub(&d))).collect();
        rows.truncate(rows.len() - 2);
        rows.push((var, oe * ie));
    }
}
