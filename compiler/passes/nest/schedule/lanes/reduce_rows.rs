//! Reductions of rows of a few vectors, for as many adjacent rows as vectors have lanes. Each row has a
//! vector of partial results; these are reduced together, so that lane i has the result of row i, and what
//! follows a reduction is computed once for all rows. Reducing 16 vectors together takes 15 steps of a pair
//! each; one by one, each of them takes four.
//!
//! ```text
//! acc p[16] x16 = 0
//! unroll r in 0..16 { vec j in 0..n { p[r] = p[r] + x[first + r, j] } }
//! vec l in 0..16 { y[first + l] = select(l == 0, lanes_add(p[0]), select(l == 1, lanes_add(p[1]), ..)) }
//! ```

use super::body::{Adjacent, lets_as_accs, once};
use super::rows::{Bounds, LaneOf, RowLoop, one_loop, row_loop};
use super::{Vectors, vector};
use crate::nest::form::{self, Part, Rows};
use crate::nest::{BinOp, Buf, Expr, Module, Reg, Stmt, visit};
use crate::passes::nest::analysis::lanes64;
use crate::passes::nest::analysis::shape::{ParNest, fresh_regs};
use crate::passes::nest::analysis::strides::stride;
use crate::passes::nest::analysis::vectors::Needs;
use crate::sym::{Dim, Sym};
use crate::tensor::ElemType;

/// Maximum bytes of a row, and maximum vectors per lane: the rows of a block are read side by side, and
/// vectors of few lanes are reduced in few steps.
const LONGEST: i64 = 512;
const PER_LANE: i64 = 2;
/// Vectors of a row of known length without a loop.
const UNROLLED: i64 = 2;
/// Blocks of a task, if a single loop runs over elements and there are enough tasks of so many blocks.
const BLOCKS: i64 = 4;
const MANY: i64 = 16 * BLOCKS;

/// A block of adjacent rows.
pub(crate) struct ReduceRows {
    /// Rows of a block: the lanes of a vector.
    pub lanes: i64,
    /// Rows of a task.
    pub of_task: i64,
    row: Sym,
    /// How many there are.
    count: Dim,
    rows: Rows,
    loops: Vec<RowLoop>,
    /// Whether rows of run-time length are short enough.
    short: Option<Expr>,
}

/// Chooses blocks of rows for a nest with reductions. Loops over elements that depend on earlier reductions
/// read the lane of their row, where lanes can be broadcast.
pub(super) fn choose(m: &mut Module, nest: &ParNest, vectors: Vectors, least: i64) -> Option<ReduceRows> {
    let (row, count) = nest.loops.last().copied()?;
    form::rows(&nest.body).filter(Rows::reduces)?;
    let rows = form::rows(&lets_as_accs(m, nest.body.clone()))?;
    let needs = Needs::of(m, &nest.body);
    let lanes = vectors.of(&needs).lanes;
    let fits = count.as_const().is_none_or(|n| n >= lanes) && 2 * lanes <= vectors.registers;
    // Rows of 64-bit elements are often shorter than a vector.
    let long = !needs.long || vectors.caps.long_lanes && vectors.caps.masks;
    if !long || needs.conditional || !fits || !m.optimize.may_grow() {
        return None;
    }
    let bits = if needs.long { 64 } else { 32 };
    // Rows that two blocks have in common are computed twice.
    let read: Vec<Buf> = visit::loads(&nest.body).into_iter().map(|b| m.storage(b)).collect();
    let apart = visit::stores(&nest.body).iter().all(|b| !read.contains(&m.storage(*b)));
    // Lanes are rows for all but the loops.
    let beside = |buf, at: &[Dim]| matches!(stride(m, buf, at, row), Some(0 | 1));
    let mut suits = apart;
    for p in &rows.parts {
        let Part::Once(s) = p else { continue };
        visit::each_store(std::slice::from_ref(s), &mut |buf, at| {
            suits &= stride(m, buf, at, row) == Some(1) && m.bufs[buf].ty.bits() == bits;
        });
        visit::each_load(std::slice::from_ref(s), &mut |buf, at| suits &= beside(buf, at));
        visit::walk_exprs(std::slice::from_ref(s), &mut |e| match e {
            Expr::With { .. } => suits = false,
            Expr::Index(d) => suits &= !d.contains(row),
            _ => {}
        });
        suits &= !matches!(s, Stmt::Let { .. });
    }
    let longest = (8 * LONGEST / i64::from(bits)).min(PER_LANE * lanes * lanes);
    let (mut loops, mut lengths): (Vec<RowLoop>, Vec<Dim>) = (vec![], vec![]);
    let broadcasts = vectors.caps.shuffles.are_computed();
    for e in rows.elements() {
        let (var, hi, body) = match e.loops[..] {
            [(var, hi)] => (var, hi, e.body.clone()),
            _ => one_loop(m, &e.statement())?,
        };
        let one = row_loop(m, var, hi, &body, vectors, Bounds { sums: 1, least })?;
        let word = |r: &(Reg, BinOp)| match m.regs[r.0].ty {
            ElemType::F32 | ElemType::I32 => !needs.long,
            ty => needs.long && lanes64::is(ty),
        };
        suits &= one.reductions.iter().all(word) && (broadcasts || !e.stores());
        suits &= !reads_rows(&body, &one.reductions, broadcasts) && !hi.contains(row);
        visit::each_load(&body, &mut |buf, at| suits &= matches!(stride(m, buf, at, var), Some(0 | 1)));
        visit::each_store(&body, &mut |buf, at| suits &= stride(m, buf, at, var) == Some(1));
        match hi.as_const() {
            Some(n) => suits &= n <= longest,
            None if lengths.contains(&hi) => {}
            None => lengths.push(hi),
        }
        loops.push(one);
    }
    let short = lengths.into_iter().map(|n| Expr::cmp_index(BinOp::Le, n, longest));
    let short = short.reduce(|a, b| Expr::bin(BinOp::And, a, b));
    let several = count.as_const().is_none_or(|n| n >= MANY * lanes) && loops.len() == 1;
    let of_task = if several { BLOCKS * lanes } else { lanes };
    suits.then_some(ReduceRows { lanes, of_task, row, count, rows, loops, short })
}

/// True if elements depend on values of their row, or on accumulators apart from the given ones unless each
/// element may read a lane of these.
fn reads_rows(body: &[Stmt], own: &[(Reg, BinOp)], lanes: bool) -> bool {
    let mut defined: Vec<Reg> = own.iter().map(|r| r.0).collect();
    visit::walk(body, &mut |s| {
        if let Stmt::Let { reg, .. } = s {
            defined.push(*reg);
        }
    });
    let mut reads = false;
    visit::walk_exprs(body, &mut |e| match e {
        Expr::Let { reg, .. } => defined.push(*reg),
        Expr::Acc { .. } if lanes => {}
        Expr::Reg(r) | Expr::Acc { reg: r, .. } => reads |= !defined.contains(r),
        _ => {}
    });
    reads
}

impl ReduceRows {
    /// Whether there are enough rows, and whether these are short enough, if only run time knows.
    pub fn condition(&self) -> Option<Expr> {
        let some = self.count.as_const().is_none();
        let some = some.then(|| Expr::cmp_index(BinOp::Ge, self.count, self.lanes));
        some.into_iter().chain(self.short.clone()).reduce(|a, b| Expr::bin(BinOp::And, a, b))
    }
    /// Rows `lo..hi` in blocks. A last block that is not whole overlaps the one before it, maybe that of
    /// another task: both store the same values there.
    pub fn blocks(&self, m: &mut Module, (lo, hi): (Dim, Dim)) -> Vec<Stmt> {
        let count = m.syms.simplify((hi - lo).floor_div(self.lanes));
        let rest = m.syms.simplify((hi - lo).modulo(self.lanes));
        let b = m.syms.loop_var("b", Dim::constant(0), count);
        let block = self.block(m, lo + Dim::sym(b) * self.lanes);
        let mut out = vec![Stmt::seq(b, count, block)];
        if rest.as_const() != Some(0) {
            let then = self.block(m, hi - self.lanes);
            out.push(Stmt::If { cond: Expr::cmp_index(BinOp::Ne, rest, 0), then, els: vec![] });
        }
        out
    }
    /// The rows of a block.
    fn block(&self, m: &mut Module, first: Dim) -> Vec<Stmt> {
        let body = self.rows.body();
        let fresh = fresh_regs(m, &body);
        let accs = accumulators(&fresh);
        let again: LaneOf = accumulators(&body).into_iter().zip(accs.iter().copied()).collect();
        let lanes = (self.lanes, Dim::constant(self.lanes));
        let block = Adjacent { var: self.row, base: first, count: 1, lanes };
        let (mut out, mut once, mut loops) = (vec![], vec![], self.loops.iter());
        for (part, s) in self.rows.parts.iter().zip(fresh) {
            match part {
                Part::Once(_) => once.push(s),
                Part::Each(_) => {
                    out.extend(block.of(m, &std::mem::take(&mut once), &accs));
                    let Some(reduction) = loops.next() else { continue };
                    out.extend(self.reduction(m, reduction, first, &again));
                }
            }
        }
        out.extend(block.of(m, &once, &accs));
        out
    }
    /// The reductions of a loop over elements.
    fn reduction(&self, m: &mut Module, l: &RowLoop, first: Dim, again: &LaneOf) -> Vec<Stmt> {
        let (mut out, partial) = l.accumulators(m, self.lanes);
        let accs = (&partial, again);
        let lanes = Dim::constant(self.lanes);
        let (whole, rest) = (l.hi.floor_div(self.lanes), m.syms.simplify(l.hi.modulo(self.lanes)));
        if l.hi.as_const().is_some_and(|n| n <= UNROLLED * self.lanes) {
            out.push(self.vectors(m, l, accs, first, (Dim::constant(0), l.hi)));
        } else {
            let q = m.syms.loop_var("q", Dim::constant(0), whole);
            let body = self.vectors(m, l, accs, first, (Dim::sym(q) * self.lanes, lanes));
            out.push(Stmt::seq(q, whole, vec![body]));
            if rest.as_const() != Some(0) {
                let body = self.vectors(m, l, accs, first, (whole * self.lanes, rest));
                out.push(once(m, rest.min(Dim::constant(1)), vec![body]));
            }
        }
        for (acc, op) in &l.reductions {
            let lane = m.syms.loop_var("l", Dim::constant(0), lanes);
            let of = |r: i64| Expr::Horizontal { op: *op, reg: partial[acc], at: vec![r.into()] };
            let pick = |rest: Expr, r: i64| Expr::select(Expr::cmp_index(BinOp::Eq, lane, r), of(r), rest);
            let all = (0..self.lanes - 1).rev().fold(of(self.lanes - 1), pick);
            let reg = again.get(acc).copied().unwrap_or(*acc);
            let set = Stmt::Set { reg, at: vec![], value: Expr::bin(*op, Expr::acc(reg), all) };
            out.push(Stmt::vector(self.lanes, lane, lanes, vec![set]));
        }
        out
    }
    /// Vectors of `count` elements from `lo` on, of each row. `partial`: the accumulators of the loop for each
    /// row; `again`: those of the block, of which each row has a lane.
    fn vectors(
        &self,
        m: &mut Module,
        l: &RowLoop,
        (partial, again): (&LaneOf, &LaneOf),
        first: Dim,
        (lo, count): (Dim, Dim),
    ) -> Stmt {
        let (r, j) = (
            m.syms.loop_var("r", Dim::constant(0), Dim::constant(self.lanes)),
            m.syms.loop_var("j", Dim::constant(0), count),
        );
        let own = |reg: Reg| partial.values().any(|p| *p == reg);
        let body = l.body(m, partial, &|at, reg| if own(reg) { vec![r.into()] } else { at });
        let read = |e: Expr| match e {
            Expr::Acc { reg, at, .. } if again.contains_key(&reg) => {
                Expr::Acc { reg: again[&reg], at, lane: Some(r.into()) }
            }
            e => e,
        };
        let put = |s: Sym| match s {
            s if s == self.row => Some(first + r),
            s if s == l.var => Some(lo + j),
            _ => None,
        };
        let body = body.into_iter().map(|s| s.rewrite_exprs(&mut |e| read(e)).subst(&put)).collect();
        let vectors = Stmt::For { kind: vector(self.lanes), var: j, lo: Dim::constant(0), hi: count, body };
        Stmt::unroll(r, self.lanes, vec![vectors])
    }
}

/// The accumulators of a row, in order.
fn accumulators(body: &[Stmt]) -> Vec<Reg> {
    let reg = |s: &Stmt| if let Stmt::Acc { reg, .. } = s { Some(*reg) } else { None };
    body.iter().filter_map(reg).collect()
}
