//! Versions of products of two computed matrices for few rows, if only run time knows the number of rows. The
//! schedule packs the other matrix for many rows, which loads and stores each of its elements; for few rows,
//! it reads the matrix in place.

use super::Version;
use crate::nest::{BinOp, Buf, Expr, Kernel, KernelData, Math, Module};
use crate::passes::nest::analysis::form::{Contraction, ProductKind, peel};
use crate::passes::nest::analysis::shape::{fresh_regs, nested, substitute};
use crate::passes::nest::analysis::strides::{stride, unit_stride_var};
use crate::passes::nest::schedule::along_sum::FEW_COLUMNS;
use crate::passes::nest::schedule::few_rows::{most_rows, whole_vectors};
use crate::sym::{Dim, Sym};
use crate::target::Facts;

/// A loop over rows that has versions for few of them.
pub(super) struct Few {
    var: Sym,
    extent: Dim,
    /// A version for one.
    one: bool,
    /// Maximum of the other version.
    most: i64,
}

/// The rows of a product for few of which a schedule reads the other matrix in place.
pub(super) fn of(m: &Module, c: &Contraction, facts: &Facts) -> Option<Few> {
    let (out, at) = c.store().filter(|_| is_of_computed(m, c))?;
    let column = unit_stride_var(m, out, &at, &c.loops)?;
    let swapped = !c.is_only_of_b(column);
    let b = if swapped { &c.a } else { &c.b };
    let columns = c.loops.iter().find(|l| l.0 == column).map_or(Dim::constant(1), |l| l.1);
    if stride(m, b.0, &b.1, column) == Some(1) && whole_vectors(columns, c.product, *facts) {
        return few_of(m, c, swapped, true, most_rows(*facts));
    }
    sums_run_along(m, c).then(|| few_of(m, c, swapped, false, FEW_COLUMNS))?
}

/// True for a product of two computed matrices of floats.
fn is_of_computed(m: &Module, c: &Contraction) -> bool {
    let floats = matches!(c.product, ProductKind::Fma | ProductKind::Double) && c.is_plain();
    floats
        && c.reduction.len() == 1
        && !m.is_constant(c.a.0)
        && !m.is_constant(c.b.0)
        && m.optimize.may_grow()
}

/// True for such a product if both matrices are contiguous along the sum, so that vectors may run along it.
pub(super) fn sums_run_along(m: &Module, c: &Contraction) -> bool {
    let beside = |x: &(Buf, Vec<Dim>), s: Sym| stride(m, x.0, &x.1, s) == Some(1);
    let both = c.reduction.first().is_some_and(|d| beside(&c.a, d.0) && beside(&c.b, d.0));
    both && is_of_computed(m, c) && c.product == ProductKind::Fma && m.math != Math::Strict
}

/// The only loop that A depends on, and not B (if `swapped`, B and not A), if only run time knows how long it
/// is.
fn few_of(m: &Module, c: &Contraction, swapped: bool, one: bool, most: i64) -> Option<Few> {
    let is_row = |s: Sym| if swapped { c.is_only_of_b(s) } else { c.is_only_of_a(s) };
    let mut loops = c.loops.iter().filter(|l| is_row(l.0) && l.1.as_const() != Some(1));
    let (Some((var, extent)), None) = (loops.next().copied(), loops.next()) else { return None };
    if extent.as_const().is_some() || m.syms.has_loops(extent) {
        return None;
    }
    let range = m.syms.range(extent);
    let varies = range.hi.is_none_or(|hi| hi > most) && range.lo.is_none_or(|lo| lo <= most);
    varies.then_some(Few { var, extent, one, most })
}

impl Few {
    /// Adds the versions, each with its condition, the most special one first.
    pub fn versions(&self, m: &mut Module, k: Kernel) -> Vec<Version> {
        let mut out = vec![];
        if self.one {
            let kernel = self.version(m, k, Dim::constant(1), "_row");
            out.push(Version { when: Expr::cmp_index(BinOp::Eq, self.extent, 1), kernel });
        }
        let kernel = self.version(m, k, self.extent.min(self.most), "_rows");
        out.push(Version { when: Expr::cmp_index(BinOp::Le, self.extent, self.most), kernel });
        out
    }
    /// Adds the version for this number.
    fn version(&self, m: &mut Module, k: Kernel, rows: Dim, suffix: &str) -> Kernel {
        let mut nest = peel(&m.kernels[k].body);
        let row = m.syms.loop_var("m", Dim::constant(0), rows);
        for l in nest.loops.iter_mut().filter(|l| l.0 == self.var) {
            *l = (row, rows);
        }
        let inner = substitute(m, nest.body, &|s| (s == self.var).then(|| row.into()));
        let body = nested(m, &nest.loops, inner);
        let body = fresh_regs(m, &body);
        let data = &m.kernels[k];
        let version =
            KernelData { name: format!("{}{suffix}", data.name), body: body.into(), ..data.clone() };
        m.kernels.push(version)
    }
}
