//! Versions of products of two computed matrices for few rows, if only run time knows the number of rows. The
//! schedule packs the other matrix for many rows, which loads and stores each of its elements; for few rows,
//! it reads the matrix in place. Rows of several loops are one loop in the versions.

use super::Version;
use crate::nest::{BinOp, Buf, Expr, Kernel, KernelData, Math, Module};
use crate::passes::nest::analysis::form::{Contraction, ProductKind, peel};
use crate::passes::nest::analysis::shape::{fresh_regs, nested, substitute};
use crate::passes::nest::analysis::strides::{stride, unit_stride_var};
use crate::passes::nest::schedule::along_sum::FEW_COLUMNS;
use crate::passes::nest::schedule::contract::loops::collapse_rows;
use crate::passes::nest::schedule::contract::runs_in_vectors;
use crate::passes::nest::schedule::few_rows::most_rows;
use crate::sym::{Dim, Sym};
use crate::target::Facts;

/// Loops over rows that have versions for few of them.
pub(super) struct Few {
    /// Contiguous ones in A and in the result.
    rows: Vec<(Sym, Dim)>,
    /// Their number.
    extent: Dim,
    /// A version for one.
    one: bool,
    /// Maximum of the other version.
    most: i64,
}

/// The rows of a product for few of which a schedule reads the other matrix in place.
pub(super) fn of(m: &mut Module, c: &Contraction, facts: &Facts) -> Option<Few> {
    let (out, at) = c.store().filter(|_| is_of_computed(m, c))?;
    let column = unit_stride_var(m, out, &at, &c.loops)?;
    let swapped = !c.is_only_of_b(column);
    let b = if swapped { &c.a } else { &c.b };
    let columns = c.loops.iter().find(|l| l.0 == column).map_or(Dim::constant(1), |l| l.1);
    if stride(m, b.0, &b.1, column) == Some(1) && runs_in_vectors(columns, *facts) {
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

/// The loops over the rows of A, the first operand.
fn rows_of(c: &Contraction) -> Vec<(Sym, Dim)> {
    c.loops.iter().copied().filter(|l| c.is_only_of_a(l.0) && l.1.as_const() != Some(1)).collect()
}

/// The symbol that is the number of rows of A.
pub(super) fn counted_by(c: &Contraction) -> Option<Sym> {
    let [(_, extent)] = rows_of(c)[..] else { return None };
    extent.as_sym()
}

/// The loops that A depends on, and not B (if `swapped`, B and not A), if memory is contiguous across them
/// and only run time knows how many rows they are.
fn few_of(m: &mut Module, c: &Contraction, swapped: bool, one: bool, most: i64) -> Option<Few> {
    let mut c = c.clone();
    if swapped {
        std::mem::swap(&mut c.a, &mut c.b);
    }
    let rows = rows_of(&c);
    let column = c.loops.iter().find(|l| c.is_only_of_b(l.0)).map(|l| l.0);
    let mut joined = rows.clone();
    if let (2.., Some(column)) = (rows.len(), column) {
        collapse_rows(m, &mut c, &mut joined, column);
    }
    let [(_, extent)] = joined[..] else { return None };
    if extent.as_const().is_some() || m.syms.has_loops(extent) {
        return None;
    }
    let range = m.syms.range(extent);
    let varies = range.hi.is_none_or(|hi| hi > most) && range.lo.is_none_or(|lo| lo <= most);
    // A multiple of a known number is not one.
    let one = one && rows.iter().all(|l| l.1.as_const().is_none());
    varies.then_some(Few { rows, extent, one, most })
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
        let mut values: Vec<(Sym, Dim)> = vec![];
        let mut left = Dim::sym(row);
        for (i, (var, extent)) in self.rows.iter().enumerate().rev() {
            values.push((*var, if i == 0 { left } else { left.modulo(*extent) }));
            left = left.floor_div(*extent);
        }
        let of_row = |s: Sym| values.iter().find(|v| v.0 == s).map(|v| v.1);
        let first = nest.loops.iter().position(|l| of_row(l.0).is_some());
        nest.loops.insert(first.unwrap_or(0), (row, rows));
        nest.loops.retain(|l| of_row(l.0).is_none());
        let inner = substitute(m, nest.body, &of_row);
        let body = nested(m, &nest.loops, inner);
        let body = fresh_regs(m, &body);
        let data = &m.kernels[k];
        let version =
            KernelData { name: format!("{}{suffix}", data.name), body: body.into(), ..data.clone() };
        m.kernels.push(version)
    }
}
