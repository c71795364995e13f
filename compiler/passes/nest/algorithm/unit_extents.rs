//! unit_extents: a version of kernels for an innermost extent of one.
//!
//! Vectors run along the innermost extent of a result. If only run time knows this extent, and it is one,
//! each vector has a single element, although the next extent is contiguous in memory. The driver calls a
//! version of the kernel in this case. Its buffers are views with an extent of one in place of the symbol, so
//! that strides are known, and the schedule is the one for this shape.
//!
//! ```text
//! call k                    if T == 1 { call k_unit } else { call k }
//! ```

use crate::diag::Result;
use crate::nest::{BinOp, Buf, Expr, Kernel, KernelData, Layout, Module, Stmt, visit};
use crate::passes::nest::analysis::form::{Form, first_store, peel};
use crate::passes::nest::analysis::shape::{fresh_regs, nested, substitute};
use crate::passes::nest::analysis::strides::stride;
use crate::passes::nest::schedule::lanes::collapse;
use crate::sym::{Dim, Sym};
use std::collections::{BTreeSet, HashMap};

/// Runs the pass.
pub fn run(m: &mut Module) -> Result<()> {
    let mut units: HashMap<Kernel, (Kernel, Sym)> = HashMap::new();
    for k in visit::calls(&m.driver) {
        if !units.contains_key(&k)
            && let Some(symbol) = extent(m, k)
        {
            units.insert(k, (specialize(m, k, symbol), symbol));
        }
    }
    let mut choose = |s: Stmt| match &s {
        Stmt::Call(k) => match units.get(k) {
            Some((unit, symbol)) => Stmt::If {
                cond: Expr::cmp_index(BinOp::Eq, Dim::sym(*symbol), 1),
                then: vec![Stmt::Call(*unit)],
                els: vec![s],
            },
            None => s,
        },
        _ => s,
    };
    m.driver = std::mem::take(&mut m.driver).into_iter().map(|s| s.rewrite(&mut choose)).collect();
    Ok(())
}

/// The innermost extent of a kernel's result: a symbol of the module that may be one. `None` if the next
/// extent is contiguous whatever this one is, or if nothing else can fill vectors.
fn extent(m: &mut Module, k: Kernel) -> Option<Sym> {
    let body = &m.kernels[k].body;
    if m.kernels[k].scheduled || visit::has_opaque(m, body) || !is_suitable(body.form()) {
        return None;
    }
    let mut nest = peel(body);
    let (out, at) = first_store(&nest.body)?;
    let (var, extent) = nest.loops.iter().copied().find(|l| stride(m, out, &at, l.0) == Some(1))?;
    let symbol = extent.as_sym()?;
    // Iterations that store to one element exist only in kernels that sizes of zero keep from running.
    if !nest.loops.iter().all(|l| at.iter().any(|d| d.contains(l.0))) {
        return None;
    }
    let may_be_one = m.syms.range(extent).lo.is_none_or(|lo| lo <= 1);
    if !may_be_one || !can_be_viewed(m, &nest.body, symbol) || !gains(m, body.form(), body, symbol) {
        return None;
    }
    nest.loops.sort_by_key(|l| l.0 == var);
    collapse(m, &mut nest, var).is_none().then_some(symbol)
}

/// Forms whose vectors run along the result. Images are left alone: their rows are long.
fn is_suitable(form: &Form) -> bool {
    match form {
        Form::Contraction(c) => c.is_plain() && c.reduction.len() == 1,
        Form::Map(_) | Form::RowReduction(_) | Form::Scan(_) => true,
        Form::Window(w) => w.taps.len() == 1,
        _ => false,
    }
}

/// True if all buffers with this extent have a known order in memory, and their storage has as many elements
/// as they have. A part of a storage that grows at run time has not.
fn can_be_viewed(m: &Module, body: &[Stmt], symbol: Sym) -> bool {
    let has = |b: Buf| m.bufs[b].dims.iter().any(|n| n.contains(symbol));
    let mut all = true;
    visit::accesses(body, &mut |buf, _| {
        all &= !has(buf) || m.bufs[buf].layout == Layout::RowMajor && has(m.storage(buf));
    });
    all
}

/// Least extent of a loop that is worth vectors.
const LEAST: i64 = 4;

/// True if a version for an extent of one has a loop for vectors: an access is contiguous along a loop whose
/// stride depends on the symbol. In a map, it must be the store.
fn gains(m: &Module, form: &Form, body: &[Stmt], symbol: Sym) -> bool {
    let mut loops = vec![];
    visit::walk(body, &mut |s| {
        if let Stmt::For { var, lo, hi, .. } = s {
            let long = (*hi - *lo).as_const().is_none_or(|n| n >= LEAST) && *hi - *lo != Dim::sym(symbol);
            loops.extend(long.then_some(*var));
        }
    });
    let mut any = false;
    let mut access = |buf: Buf, at: &[Dim]| {
        let offset = m.linear(buf, at);
        let stride = |v: Sym| offset.linear_in(v).map(|l| l.0);
        let one = |d: Dim| d.subst(&mut |s| (s == symbol).then(|| Dim::constant(1)));
        any |= loops
            .iter()
            .filter_map(|v| stride(*v))
            .any(|d| d.contains(symbol) && one(d).as_const() == Some(1));
    };
    match form {
        Form::Map(_) => visit::each_store(body, &mut access),
        _ => visit::accesses(body, &mut access),
    }
    any
}

/// Adds the version of a kernel for `symbol` = 1.
fn specialize(m: &mut Module, k: Kernel, symbol: Sym) -> Kernel {
    let one = |s: Sym| (s == symbol).then(|| Dim::constant(1));
    let body: Vec<Stmt> = m.kernels[k].body.to_vec();
    let body = fresh_regs(m, &body);
    let mut views: HashMap<Buf, Buf> = HashMap::new();
    let accessed: BTreeSet<Buf> = visit::loads(&body).into_iter().chain(visit::stores(&body)).collect();
    for buf in accessed {
        let dims = m.bufs[buf].dims.clone();
        if dims.iter().any(|d| d.contains(symbol)) {
            let dims: Vec<Dim> = dims.iter().map(|d| d.subst(&mut |s| one(s))).collect();
            views.insert(buf, m.view(buf, dims));
        }
    }
    let viewed = |buf: Buf, at: &[Dim]| Some((*views.get(&buf)?, at.to_vec()));
    let body: Vec<Stmt> = substitute(m, body, &one).into_iter().map(|s| s.map_accesses(&viewed)).collect();
    let nest = peel(&body);
    let body = nested(m, &nest.loops, nest.body);
    let data = &m.kernels[k];
    let unit = KernelData { name: format!("{}_unit", data.name), body: body.into(), ..data.clone() };
    m.kernels.push(unit)
}
