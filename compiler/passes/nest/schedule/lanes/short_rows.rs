//! Rows shorter than a vector, maybe at run time only: a vector then processes a row per lane, so that the
//! overhead of a row is shared by as many rows as lanes. Lanes load and store elements of different rows, so
//! this is profitable for few elements only. Loops over a known number of elements are unrolled, so that
//! tiles load rows and transpose them in registers.

use super::Vectors;
use super::body::{Adjacent, lets_as_accs};
use crate::nest::form::{self, Rows};
use crate::nest::{BinOp, Buf, Expr, LoopKind, Module, Stmt, visit};
use crate::passes::nest::analysis::shape::{ParNest, fresh_regs};
use crate::passes::nest::analysis::vectors::Needs;
use crate::sym::{Dim, Sym};

/// Maximum elements of a row that lanes only read, and of one that they also store. A vector of elements that
/// are loaded one by one takes as long as the overhead of one to two rows; one that is also stored takes
/// twice that. Measured on Zen 4 with sums, maxima, softmax and layer normalization of 2 to 16 elements.
const OTHERS: (i64, i64) = (12, 7);
/// The same where a row shorter than a vector is one masked vector.
const MASKED: (i64, i64) = (10, 6);
/// The same for a known number of elements, which vectors along rows would process without loops.
const KNOWN: (i64, i64) = (12, 6);

/// A block of rows, one per lane.
pub(crate) struct ShortRows {
    /// Rows of the block.
    pub lanes: i64,
    /// Maximum elements of a row.
    pub most: i64,
    row: Sym,
    rows: Dim,
    lengths: Vec<Dim>,
    /// All lengths are known.
    known: bool,
    /// The last block may be masked; otherwise all blocks must be whole.
    partial: bool,
}

/// Chooses a row per lane as an alternative for a nest that has vectors along longer rows.
pub(super) fn choose(m: &Module, nest: &ParNest, vectors: Vectors) -> Option<ShortRows> {
    let (row, rows) = nest.loops.last().copied()?;
    let form = form::rows(&nest.body).filter(Rows::reduces)?;
    let lengths = lengths(m, &form);
    let stores = form.elements().any(form::Elements::stores);
    let needs = Needs::of(m, &nest.body);
    // Vectors of 256 bits have four lanes of 64 bits.
    if needs.long && vectors.lanes < 16 {
        return None;
    }
    let lanes = vectors.of(&needs).lanes;
    if rows.as_const().is_some_and(|n| n < lanes) {
        return None;
    }
    let counts: Option<Vec<i64>> = form.elements().map(form::Elements::count).collect();
    let longest = counts.and_then(|c| c.into_iter().max());
    let limit = |(read, stored): (i64, i64)| if stores { stored } else { read };
    let known = longest.is_some_and(|n| n <= limit(KNOWN))
        && (vectors.caps.gathers || vectors.caps.strided)
        && m.optimize.may_grow();
    if lengths.is_empty() && !known || needs.conditional || !needs.may_run_along(row) {
        return None;
    }
    let bits = if needs.long { 64 } else { 32 };
    let (mut fits, mut apart, mut stored_apart) = (true, false, false);
    let mut access = |buf: Buf, at: &[Dim], stored: bool| {
        let step = m.linear(buf, at).linear_in(row).map(|s| s.0);
        fits &= m.bufs[buf].ty.bits() == bits
            && match step.map(|s| (s, s.as_const())) {
                Some((_, Some(n))) if known && n > 1 => {
                    apart = true;
                    stored_apart |= stored;
                    true
                }
                Some((_, Some(n))) => n == 1 || n == 0 && !stored,
                // A row stride that depends on sizes of the caller.
                Some((s, None)) => {
                    apart = true;
                    stored_apart |= stored;
                    !m.syms.has_loops(s)
                }
                None => false,
            };
    };
    visit::each_store(&nest.body, &mut |buf, at| access(buf, at, true));
    visit::each_load(&nest.body, &mut |buf, at| access(buf, at, false));
    // Lanes are rows: loop variables must be uniform across them.
    visit::walk_exprs(&nest.body, &mut |e| match e {
        Expr::With { .. } => fits = false,
        Expr::Index(d) => fits &= !d.contains(row),
        _ => {}
    });
    (fits && apart).then_some(ShortRows {
        lanes,
        most: longest.filter(|_| known).unwrap_or(limit(if vectors.caps.masks { MASKED } else { OTHERS })),
        row,
        rows,
        lengths,
        known,
        partial: vectors.caps.masks && !stored_apart,
    })
}

/// The run-time lengths of its contiguous loops, which vectors would run along.
fn lengths(m: &Module, rows: &Rows) -> Vec<Dim> {
    let mut out: Vec<Dim> = vec![];
    for e in rows.elements() {
        let n = match &e.loops[..] {
            [.., last] if e.loops.len() > 1 && !is_one_run(m, e) => last.1,
            loops => Dim::product(loops.iter().map(|l| l.1)),
        };
        if n.as_const().is_none() && !out.contains(&n) {
            out.push(n);
        }
    }
    out
}

/// True if the loops over elements access memory like a single loop.
fn is_one_run(m: &Module, e: &form::Elements) -> bool {
    let mut one = true;
    visit::each_load(&e.body, &mut |buf, at| {
        let at = m.linear(buf, at);
        let step = |s: Sym| at.linear_in(s).map(|l| l.0);
        one &= e.loops.windows(2).all(|l| match (step(l[0].0), step(l[1].0)) {
            (Some(outer), Some(inner)) => outer == l[1].1 * inner,
            _ => false,
        });
    });
    one
}

impl ShortRows {
    /// True for rows known to fit in a vector: transposing them costs less than what else there is.
    pub fn fit_in_vectors(&self) -> bool {
        self.known && self.most <= self.lanes
    }
    /// Replaces `rows` by a branch: if rows are short, a block of them beginning at `first`, with all lanes
    /// active or, in the last block, as many as rows are left.
    pub fn or(&self, m: &mut Module, body: &[Stmt], first: Dim, rows: Vec<Stmt>) -> Vec<Stmt> {
        let lanes = Dim::constant(self.lanes);
        let short = self.lengths.iter().map(|n| Expr::cmp_index(BinOp::Le, *n, self.most));
        let short = short.reduce(|a, b| Expr::bin(BinOp::And, a, b));
        if short.is_none() && !self.known {
            return rows;
        }
        let then = self.block(m, body, first, lanes);
        if self.rows.modulo(self.lanes).as_const() == Some(0) && short.is_none() {
            return then;
        }
        let whole = Expr::cmp_index(BinOp::Le, first + lanes, self.rows);
        let mut els = rows;
        if self.partial && self.rows.modulo(self.lanes).as_const() != Some(0) {
            let then = self.block(m, body, first, lanes.min(self.rows - first));
            els = match short.clone() {
                Some(cond) => vec![Stmt::If { cond, then, els }],
                None => then,
            };
        }
        let cond = short.into_iter().fold(whole, |a, b| Expr::bin(BinOp::And, a, b));
        vec![Stmt::If { cond, then, els }]
    }
    fn block(&self, m: &mut Module, body: &[Stmt], first: Dim, used: Dim) -> Vec<Stmt> {
        let body = lets_as_accs(m, body.to_vec());
        let body = fresh_regs(m, &body);
        let body = if self.known { body.into_iter().map(unrolled).collect() } else { body };
        Adjacent { var: self.row, base: first, count: 1, lanes: (self.lanes, used) }.in_lanes(m, &body)
    }
}

/// The statement with its loops of few iterations unrolled.
fn unrolled(s: Stmt) -> Stmt {
    match s {
        Stmt::For { kind: LoopKind::Seq, var, lo, hi, body } if lo.as_const() == Some(0) => {
            Stmt::For { kind: LoopKind::Unroll, var, lo, hi, body: body.into_iter().map(unrolled).collect() }
        }
        s => s,
    }
}
