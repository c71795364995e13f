//! Attention of a single query row if the number of rows is a run-time value: a step of a decoder.
//!
//! A block of one row reads each key once, so packing keys would take longer than the product. The driver
//! tests the number of rows. For one row it calls copies of the original kernels, made before merging and
//! without their loops over rows. `schedule` handles them like the kernels of a model without that dim. The
//! scores of one row are small.

use super::group::Group;
use crate::nest::{BinOp, Body, Expr, Kernel, KernelData, LoopKind, Module, Stmt, visit};
use crate::passes::nest::analysis::shape::{fresh_regs, relocate, substitute};
use crate::sym::{Dim, Sym};

/// Adds single-row kernels and a branch in the driver that selects between them and the last kernel of `g`.
/// Returns false if the number of rows is known, or equals the number of keys: that model is no decoder.
pub(super) fn add(m: &mut Module, g: &Group) -> bool {
    let (extent, keys) = (g.dims[g.row], g.dims.last().copied());
    let range = m.syms.range(extent);
    if extent.as_const().is_some() || keys == Some(extent) || range.lo.is_some_and(|lo| lo > 1) {
        return false;
    }
    let Some(kernels) = kernels(g) else { return false };
    let shape = m.bufs[g.bufs[0]].dims.clone();
    let of_row = |dims: &[Dim], one: Dim| {
        let mut dims = dims.to_vec();
        // Positions after the row are the same in both shapes.
        let at = dims.len() + g.row - g.dims.len();
        dims[at] = one;
        dims
    };
    let room = of_row(&shape, Dim::constant(1));
    let own: Vec<_> = (g.bufs.iter())
        .map(|b| {
            let (name, ty) = (format!("{}.row", m.bufs[*b].name), m.bufs[*b].ty);
            (*b, m.temp(name, ty, room.clone()))
        })
        .collect();
    let mut calls = vec![];
    for (k, row) in kernels {
        let body = m.kernels[k].body.to_vec();
        let body = without(m, body, row, false);
        let body = fresh_regs(m, &body);
        let body = substitute(m, body, &|s| (s == row).then_some(Dim::constant(0)));
        let place = |m: &Module, s: Stmt| {
            s.map_accesses(&|buf, at| {
                let (from, to) = own.iter().find(|o| o.0 == m.storage(buf))?;
                let at = relocate(m, &m.bufs[buf].dims, at, &m.bufs[*from].dims);
                Some((*to, of_row(&at, Dim::constant(0))))
            })
        };
        let body = Body::from(body.into_iter().map(|s| place(m, s)).collect::<Vec<_>>());
        let data = KernelData { body, ..m.kernels[k].clone() };
        calls.push(Stmt::Call(m.kernels.push(data)));
    }
    let cond = Expr::cmp_index(BinOp::Eq, extent, 1);
    let choice = Stmt::If { cond, then: calls, els: vec![Stmt::Call(g.values)] };
    visit::splice_call(&mut m.driver, g.values, false, vec![choice])
}

/// The kernels of an attention, each with its loop variable over rows; `None` if one has no such loop.
fn kernels(g: &Group) -> Option<Vec<(Kernel, Sym)>> {
    let row = g.vars[g.row];
    let rows =
        g.renames.iter().map(|r| r.iter().find(|(_, to)| to.as_sym() == row).map(|r| r.0)).chain([row]);
    let kernels = [g.scores].into_iter().chain(g.rows.iter().copied()).chain([g.values]);
    kernels.zip(rows).map(|(k, row)| Some((k, row?))).collect()
}

/// Removes the branch if nothing was merged: kernel `values` then serves every number of rows.
pub(super) fn remove(m: &mut Module, values: Kernel) {
    for s in &mut m.driver {
        if let Stmt::If { els, .. } = s
            && matches!(els[..], [Stmt::Call(k)] if k == values)
        {
            *s = Stmt::Call(values);
        }
    }
}

/// The body without the loop over `row`, or with a loop of one iteration if no other loop can be divided into
/// tasks.
fn without(m: &mut Module, body: Vec<Stmt>, row: Sym, outer: bool) -> Vec<Stmt> {
    let parallel = |body: &[Stmt]| matches!(body, [Stmt::For { kind: LoopKind::Par, .. }]);
    let mut out = vec![];
    for s in body {
        match s {
            Stmt::For { var, body, .. } if var == row && (outer || parallel(&body)) => out.extend(body),
            Stmt::For { kind, var, body, .. } if var == row => {
                let (lo, hi) = (Dim::constant(0), Dim::constant(1));
                let var = m.syms.loop_var("r", lo, hi);
                out.push(Stmt::For { kind, var, lo, hi, body });
            }
            mut s => {
                s.bodies_mut().for_each(|b| *b = without(m, std::mem::take(b), row, true));
                out.push(s);
            }
        }
    }
    out
}
