//! short_extents: versions of kernels for extents of one to four, and of products for few rows (`few_rows`).
//!
//! Vectors run along the innermost extent of a result or of a row. If only run time knows this extent, and it
//! is short, each vector has few elements, although it could be filled across the next extent: this one is
//! contiguous, or has a stride that shuffles load. The driver calls a version of the kernel in this case. Its
//! buffers are views with a number in place of the symbol, so that strides are known, and the schedule is the
//! one for this shape. A recurrence has a version for one sequence at a time: its products have a single row.
//!
//! ```text
//! call k                    if T == 1 { call k_short1 } else if T == 2 { call k_short2 } else { call k }
//! ```

mod few_rows;

use crate::diag::Result;
use crate::nest::{BinOp, Buf, Expr, Kernel, KernelData, Layout, LoopKind, Module, Stmt, visit};
use crate::passes::nest::analysis::form::{Contraction, Elements, Form, ParNest, first_store, peel};
use crate::passes::nest::analysis::lanes64;
use crate::passes::nest::analysis::shape::{fresh_regs, nested, substitute};
use crate::passes::nest::analysis::strides::stride;
use crate::passes::nest::schedule::lanes::collapse;
use crate::sym::{Dim, Sym};
use crate::target::Facts;
use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};

/// The longest extent that has a version. Shuffles load every fourth element at most, and the lanes of a
/// vector along four elements are a quarter of the widest.
const MOST: i64 = 4;
/// Symbols of a kernel that have versions.
const SYMBOLS: usize = 2;
/// Least extent of a loop that is worth vectors.
const LEAST: i64 = 4;

/// A kernel for the sizes for which `when` holds.
struct Version {
    when: Expr,
    kernel: Kernel,
}

/// Runs the pass.
pub fn run(m: &mut Module, facts: &Facts) -> Result<()> {
    let mut versions: HashMap<Kernel, Vec<Version>> = HashMap::new();
    for k in visit::calls(&m.driver) {
        if let Entry::Vacant(entry) = versions.entry(k) {
            entry.insert(versions_of(m, k, facts));
        }
    }
    let mut choose = |s: Stmt| match &s {
        Stmt::Call(k) => versions.get(k).into_iter().flatten().rev().fold(s, |els, v| Stmt::If {
            cond: v.when.clone(),
            then: vec![Stmt::Call(v.kernel)],
            els: vec![els],
        }),
        _ => s,
    };
    m.driver = std::mem::take(&mut m.driver).into_iter().map(|s| s.rewrite(&mut choose)).collect();
    Ok(())
}

fn versions_of(m: &mut Module, k: Kernel, facts: &Facts) -> Vec<Version> {
    let body = &m.kernels[k].body;
    if m.kernels[k].scheduled || visit::has_opaque(m, body) {
        return vec![];
    }
    if body.form().is_compound() {
        return version_of_steps(m, k).into_iter().collect();
    }
    if !is_suitable(body.form()) {
        return vec![];
    }
    let nest = peel(body);
    let Some((out, at)) = first_store(&nest.body) else { return vec![] };
    // Iterations that store to one element exist only in kernels that sizes of zero keep from running.
    if !nest.loops.iter().all(|l| at.iter().any(|d| d.contains(l.0))) {
        return vec![];
    }
    let innermost = nest.loops.iter().copied().find(|l| stride(m, out, &at, l.0) == Some(1));
    let joins = innermost.is_some_and(|(var, _)| joins(m, nest.clone(), var));
    let mut found: Vec<(Sym, Vec<i64>)> = vec![];
    for symbol in symbols(m, k) {
        let range = m.syms.range(Dim::sym(symbol));
        let possible = |n: &i64| range.lo.is_none_or(|lo| lo <= *n) && range.hi.is_none_or(|hi| hi >= *n);
        let of = Candidate { m, k, nest: &nest, innermost, joins, symbol };
        let values: Vec<i64> = (1..=MOST).filter(possible).filter(|n| of.gains(*n, facts)).collect();
        let suits = can_be_viewed(m, &nest.body, symbol) && !bounds_positions(&nest.body, symbol);
        if !values.is_empty() && found.len() < SYMBOLS && suits {
            found.push((symbol, values));
        }
    }
    let each = found.iter().flat_map(|(s, values)| values.iter().map(move |n| (*s, *n)));
    let mut versions: Vec<Version> = each.map(|of| specialize(m, k, of)).collect();
    let product = m.kernels[k].body.form().contraction().cloned();
    // Versions by value replace one for few rows.
    let by_value = |c: &Contraction| found.iter().any(|f| few_rows::counted_by(c) == Some(f.0));
    let product = product.filter(|c| !(by_value(c) && few_rows::sums_run_along(m, c)));
    let few = product.and_then(|c| few_rows::of(m, &c, facts));
    versions.extend(few.map(|rows| rows.versions(m, k)).unwrap_or_default());
    versions
}

/// The version of recurrences for a single row, if products of its steps have a run-time number of rows.
fn version_of_steps(m: &mut Module, k: Kernel) -> Option<Version> {
    let body = &m.kernels[k].body;
    // Scratch of tasks belongs to one kernel.
    if visit::any(body, &mut |s| matches!(s, Stmt::For { kind: LoopKind::Private, .. })) {
        return None;
    }
    let mut rows: BTreeSet<Sym> = BTreeSet::new();
    visit::walk(body, &mut |s| {
        if let Stmt::For { kind: LoopKind::Seq, body, .. } = s {
            for step in body {
                if let Form::Contraction(c) = Form::of(std::slice::from_ref(step)) {
                    let own = c.loops.iter().filter(|l| c.is_only_of_a(l.0));
                    rows.extend(own.filter_map(|l| l.1.as_sym()));
                }
            }
        }
    });
    let suits = |s: &Sym| m.syms.loop_range(*s).is_none() && can_be_viewed(m, body, *s);
    let symbol = rows.into_iter().find(suits).filter(|_| m.optimize.may_grow())?;
    Some(specialize(m, k, (symbol, 1)))
}

/// Forms whose vectors run along the result or along rows. Images are left alone: their rows are long.
fn is_suitable(form: &Form) -> bool {
    match form {
        Form::Contraction(c) => c.is_plain() && c.reduction.len() == 1,
        Form::Map(_) | Form::Gather(_) | Form::RowReduction(_) | Form::Scan(_) => true,
        Form::Window(w) => w.taps.len() == 1,
        _ => false,
    }
}

/// True if memory is contiguous across the loop along the result, whatever its extent is.
fn joins(m: &mut Module, mut nest: ParNest, var: Sym) -> bool {
    nest.loops.sort_by_key(|l| l.0 == var);
    collapse(m, &mut nest, var).is_some()
}

/// The sizes that strides of a kernel depend on, and the number of rows whose sums run along vectors.
fn symbols(m: &Module, k: Kernel) -> BTreeSet<Sym> {
    let mut out = BTreeSet::new();
    let body = &m.kernels[k].body;
    visit::accesses(body, &mut |buf, at| out.extend(m.linear(buf, at).syms()));
    let product = body.form().contraction().filter(|c| few_rows::sums_run_along(m, c));
    out.extend(product.and_then(few_rows::counted_by));
    out.retain(|s| m.syms.loop_range(*s).is_none());
    out
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

/// True if positions from memory are below an extent that contains the symbol: the version would need others.
fn bounds_positions(body: &[Stmt], symbol: Sym) -> bool {
    visit::any_expr(body, &mut |e| matches!(e, Expr::With { extent, .. } if extent.contains(symbol)))
}

/// A symbol that may have versions.
struct Candidate<'a> {
    m: &'a Module,
    k: Kernel,
    nest: &'a ParNest,
    /// The loop along which the result is contiguous.
    innermost: Option<(Sym, Dim)>,
    /// Memory is contiguous across it.
    joins: bool,
    symbol: Sym,
}

impl Candidate<'_> {
    /// True if a version for this value is cheaper.
    fn gains(&self, n: i64, facts: &Facts) -> bool {
        let body = &self.m.kernels[self.k].body;
        // A reversed row has an extent that no proof simplifies for every size.
        let is_symbol = |d: Dim| (1..=MOST).all(|n| self.at(d, n).as_const() == Some(n));
        let along = self.innermost.is_some_and(|l| is_symbol(l.1));
        if n == 1 && along && !self.joins && self.fills(body.form()) {
            return true;
        }
        if !facts.caps.shuffles.are_known() || !self.m.optimize.may_grow() {
            return false;
        }
        match body.form() {
            // Few columns, or few rows: vectors run along the sum, and serve all of them.
            Form::Contraction(c) => {
                (n > 1 && along || few_rows::counted_by(c) == Some(self.symbol))
                    && few_rows::sums_run_along(self.m, c)
            }
            Form::Map(_) => n > 1 && self.gains_map(n),
            Form::RowReduction(rows) if rows.elements().any(Elements::stores) => {
                self.gains_down(n) || n == 1 && self.gains_single()
            }
            Form::Window(_) | Form::RowReduction(_) => self.gains_down(n) || self.gains_rows(n),
            _ => false,
        }
    }
    /// A dim with the value in place of the symbol.
    fn at(&self, d: Dim, n: i64) -> Dim {
        let d = d.subst(&mut |s| (s == self.symbol).then(|| Dim::constant(n)));
        self.m.syms.simplify(d)
    }
    /// True for loops that are worth vectors in the version.
    fn is_long(&self, extent: Dim, n: i64) -> bool {
        self.at(extent, n).as_const().is_none_or(|e| e >= LEAST)
    }
    /// The stride of an access along a loop in the version if it is known only there.
    fn found(&self, buf: Buf, at: &[Dim], var: Sym, n: i64) -> Option<i64> {
        let (step, _) = self.m.linear(buf, at).linear_in(var)?;
        self.at(step, n).as_const().filter(|_| step.contains(self.symbol))
    }
    /// True if a version for one has a loop for vectors: an access is contiguous along a loop whose stride
    /// depends on the symbol. In a map, it must be the store.
    fn fills(&self, form: &Form) -> bool {
        let body = &self.m.kernels[self.k].body;
        let mut loops = vec![];
        visit::walk(body, &mut |s| {
            if let Stmt::For { var, lo, hi, .. } = s {
                loops.extend(self.is_long(*hi - *lo, 1).then_some(*var));
            }
        });
        let mut any = false;
        let mut access = |buf: Buf, at: &[Dim]| {
            any |= loops.iter().any(|v| self.found(buf, at, *v, 1) == Some(1));
        };
        match form {
            Form::Map(_) | Form::Gather(_) => visit::each_store(body, &mut access),
            _ => visit::accesses(body, &mut access),
        }
        any
    }
    /// True if the vectors of a map are filled in the version: across a short row of the result, or along
    /// loads whose stride is known only there.
    fn gains_map(&self, n: i64) -> bool {
        let (m, Some((inner, extent))) = (self.m, self.innermost) else { return false };
        let body = &self.nest.body;
        let step = |buf: Buf, at: &[Dim], v: Sym| Some(self.at(m.linear(buf, at).linear_in(v)?.0, n));
        let near = |d: Option<Dim>, most: i64| d.and_then(Dim::as_const).is_some_and(|s| s.abs() <= most);
        let long = lanes64::has(m, body);
        let (mut fits, mut gains) = (true, false);
        let Some(e) = self.at(extent, n).as_const().filter(|e| *e <= MOST) else {
            visit::each_load(body, &mut |buf, at| {
                fits &= near(step(buf, at, inner), MOST);
                gains |= self.found(buf, at, inner, n).is_some_and(|s| s > 1);
            });
            return fits && gains && !long;
        };
        let Some((out, at)) = first_store(body).filter(|_| !self.joins) else { return false };
        let next =
            |l: &&(Sym, Dim)| l.0 != inner && self.is_long(l.1, n) && self.found(out, &at, l.0, n) == Some(e);
        let Some((outer, _)) = self.nest.loops.iter().find(next) else { return false };
        visit::each_load(body, &mut |buf, at| {
            let (across, along) = (step(buf, at, *outer), step(buf, at, inner));
            let runs_on = across.is_some() && across == along.map(|d| d * e);
            fits &= runs_on || !long && along.is_some() && near(across, MOST * e);
        });
        fits
    }
    /// True if a reduction down the columns of short rows has known strides in the version.
    fn gains_down(&self, n: i64) -> bool {
        let along = self.innermost.and_then(|l| self.at(l.1, n).as_const());
        let rows = |s: &Stmt| matches!(s, Stmt::For { hi, .. } if self.is_long(*hi, n));
        n > 1 && along == Some(n) && self.nest.body.iter().filter(|s| rows(s)).any(|s| self.reads_near(s, n))
    }
    fn reads_near(&self, s: &Stmt, n: i64) -> bool {
        let Stmt::For { var, body, .. } = s else { return false };
        let mut any = false;
        visit::each_load(body, &mut |buf, at| {
            any |= self.found(buf, at, *var, n).is_some_and(|s| (1..=MOST).contains(&s));
        });
        any
    }
    /// True if rows that are read and stored have a single element in the version, next to each other.
    fn gains_single(&self) -> bool {
        let Some((row, _)) = self.nest.loops.last().copied().filter(|l| self.is_long(l.1, 1)) else {
            return false;
        };
        let (mut any, mut near) = (false, true);
        let mut access = |buf: Buf, at: &[Dim]| {
            let own = self.found(buf, at, row, 1) == Some(1);
            any |= own;
            near &= own || stride(self.m, buf, at, row).is_some_and(|s| (0..=1).contains(&s));
        };
        visit::accesses(&self.nest.body, &mut access);
        let single = |s: &Stmt| match s {
            Stmt::For { lo, hi, .. } => self.at(*hi - *lo, 1).as_const() == Some(1),
            _ => true,
        };
        any && near && self.nest.body.iter().all(single)
    }
    /// True if short rows are reduced, and lie at a known distance in the version.
    fn gains_rows(&self, n: i64) -> bool {
        let Some((row, _)) = self.innermost.filter(|l| self.is_long(l.1, n)) else { return false };
        let body = &self.nest.body;
        let short = |s: &Stmt| match s {
            Stmt::For { hi, .. } => hi.contains(self.symbol) && self.at(*hi, n).as_const() == Some(n),
            _ => true,
        };
        let mut near = true;
        let mut any = false;
        visit::each_load(body, &mut |buf, at| {
            let own = self.found(buf, at, row, n) == Some(n);
            any |= own;
            near &= own || stride(self.m, buf, at, row).is_some_and(|s| (0..=MOST).contains(&s));
        });
        any && near && body.iter().all(short)
    }
}

/// Adds the version of a kernel for a value of a symbol.
fn specialize(m: &mut Module, k: Kernel, (symbol, n): (Sym, i64)) -> Version {
    let value = |s: Sym| (s == symbol).then(|| Dim::constant(n));
    let body: Vec<Stmt> = m.kernels[k].body.to_vec();
    let body = fresh_regs(m, &body);
    let mut views: HashMap<Buf, Buf> = HashMap::new();
    let accessed: BTreeSet<Buf> = visit::loads(&body).into_iter().chain(visit::stores(&body)).collect();
    for buf in accessed {
        let dims = m.bufs[buf].dims.clone();
        if dims.iter().any(|d| d.contains(symbol)) {
            let dims: Vec<Dim> = dims.iter().map(|d| d.subst(&mut |s| value(s))).collect();
            views.insert(buf, m.view(buf, dims));
        }
    }
    let viewed = |buf: Buf, at: &[Dim]| Some((*views.get(&buf)?, at.to_vec()));
    let folded = |e: Expr| match e {
        Expr::Cast(t, d) => match *d {
            Expr::Index(d) if t.is_float() && d.as_const().is_some() => {
                Expr::num(t, d.as_const().unwrap_or_default() as f64)
            }
            d => Expr::Cast(t, Box::new(d)),
        },
        e => e,
    };
    let body: Vec<Stmt> = substitute(m, body, &value)
        .into_iter()
        .map(|s| s.map_accesses(&viewed).rewrite_exprs(&mut |e| folded(e)))
        .collect();
    let nest = peel(&body);
    let body = nested(m, &nest.loops, nest.body);
    let data = &m.kernels[k];
    let name = format!("{}_short{n}", data.name);
    let version = KernelData { name, body: body.into(), ..data.clone() };
    Version { when: Expr::cmp_index(BinOp::Eq, Dim::sym(symbol), n), kernel: m.kernels.push(version) }
}
