//! Rows whose length only run time knows may be shorter than a vector. Of such rows, lanes take one each: what
//! begins and ends a row serves as many rows as a vector has lanes. Each lane reads and stores elements of its
//! own row, so this pays for few elements.

use super::Vectors;
use super::body::{in_lanes, lets_as_accs};
use crate::nest::form::{self, Rows};
use crate::nest::{BinOp, Buf, Expr, Module, Stmt, visit};
use crate::passes::nest::analysis::shape::{ParNest, fresh_regs};
use crate::passes::nest::analysis::vectors::Needs;
use crate::sym::{Dim, Sym};

/// Elements of a row at most that lanes read, and where they also store them. Model: a vector of elements that
/// are read one by one takes as long as two to three rows begin and end, one that is stored so twice that.
const READ: i64 = 16;
const STORED: i64 = 8;

/// A block of rows, one in each lane.
pub(crate) struct ShortRows {
    /// Rows of the block.
    pub lanes: i64,
    /// Elements of a row at most.
    pub most: i64,
    row: Sym,
    rows: Dim,
    lengths: Vec<Dim>,
}

/// Rows in lanes, for a nest that has vectors along its rows where they are longer.
pub(super) fn choose(m: &Module, nest: &ParNest, vectors: Vectors) -> Option<ShortRows> {
    let (row, rows) = nest.loops.last().copied()?;
    let lanes = vectors.lanes;
    if rows.as_const().is_some_and(|n| n < lanes) {
        return None;
    }
    let form = form::rows(&nest.body).filter(Rows::reduces)?;
    let lengths = lengths(&form);
    let stores = form.elements().any(form::Elements::stores);
    let needs = Needs::of(m, &nest.body);
    if lengths.is_empty() || needs.long || needs.conditional || !needs.may_run_along(row) {
        return None;
    }
    let mut fits = true;
    let mut apart = false;
    let mut access = |buf: Buf, at: &[Dim], stored: bool| {
        let step = m.linear(buf, at).linear_in(row).map(|s| s.0);
        fits &= m.bufs[buf].ty.bits() == 32
            && match step.map(|s| (s, s.as_const())) {
                Some((_, Some(n))) => n == 1 || n == 0 && !stored,
                // A distance of rows that the caller's sizes give.
                Some((s, None)) => {
                    apart = true;
                    s.syms().iter().all(|s| m.syms.loop_range(*s).is_none())
                }
                None => false,
            };
    };
    visit::each_store(&nest.body, &mut |buf, at| access(buf, at, true));
    visit::each_load(&nest.body, &mut |buf, at| access(buf, at, false));
    // Lanes are rows: what all of them count alike may stand there.
    visit::walk_exprs(&nest.body, &mut |e| match e {
        Expr::With { .. } => fits = false,
        Expr::Index(d) => fits &= !d.contains(row),
        _ => {}
    });
    (fits && apart).then_some(ShortRows {
        lanes,
        most: if stores { STORED } else { READ },
        row,
        rows,
        lengths,
    })
}

/// How many elements its loops have that run time knows.
fn lengths(rows: &Rows) -> Vec<Dim> {
    let mut out: Vec<Dim> = vec![];
    for e in rows.elements() {
        let n = Dim::product(e.loops.iter().map(|l| l.1));
        if n.as_const().is_none() && !out.contains(&n) {
            out.push(n);
        }
    }
    out
}

impl ShortRows {
    /// True in the block from row `first` on: all of its rows exist, and they are short.
    pub fn condition(&self, first: Dim) -> Expr {
        let short = self.lengths.iter().map(|n| Expr::cmp_index(BinOp::Le, *n, self.most));
        let whole = Expr::cmp_index(BinOp::Le, first + self.lanes, self.rows);
        short.fold(whole, |all, e| Expr::bin(BinOp::And, all, e))
    }
    /// The rows from `first` on.
    pub fn block(&self, m: &mut Module, body: &[Stmt], first: Dim) -> Vec<Stmt> {
        let body = lets_as_accs(m, body.to_vec());
        let body = fresh_regs(m, &body);
        in_lanes(m, &body, self.row, first, 1, (self.lanes, Dim::constant(self.lanes)))
    }
}
