//! Reductions of rows of a few vectors, for as many adjacent rows as vectors have lanes. Each row has a
//! vector of partial results; these are reduced together, so that lane i has the result of row i, and what
//! follows a reduction is computed once for all rows. Reducing 16 vectors together takes 15 steps of a pair
//! each; one by one, each of them takes four. A loop that reads the result reads the lane of its row.
//! Elements that a loop stores for a later one, such as the exponentials of softmax, stay in registers if
//! rows are one vector: a masked load of what a masked store has just written waits for the cache.
//!
//! ```text
//! acc p[16] x16 = 0
//! unroll r in 0..16 { vec j in 0..n { p[r] = p[r] + x[first + r, j] } }
//! vec l in 0..16 { s = select(l == 0, lanes_add(p[0]), select(l == 1, lanes_add(p[1]), ..)) }
//! unroll r in 0..16 { vec j in 0..n { y[first + r, j] = x[first + r, j] / s.r } }
//! ```

use super::body::{Adjacent, lets_as_accs, once};
use super::rows::{Bounds, LaneOf, RowLoop, one_loop, row_loop};
use super::stage_through_scratch::in_first;
use super::{Vectors, vector};
use crate::nest::form::{self, Elements, Part, Rows};
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
/// Vectors of a row of known length without a loop, if there are no other loops over elements.
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
    /// Elements of rows that loops store for later ones; a row is then one vector.
    kept: Vec<Kept>,
    /// Whether rows of run-time length are short enough.
    short: Option<Expr>,
}

/// A buffer with an element of each step that stays in registers until the last loop that stores it.
struct Kept {
    buf: Buf,
    /// The number of that loop.
    last: usize,
}

/// The registers of a block.
struct Registers<'a> {
    /// For each accumulator of a row, that of the block, of which each row has a lane.
    of_block: &'a LaneOf,
    /// For each accumulator of the loop, its partial results for each row.
    partial: &'a LaneOf,
    /// Elements of each row, by buffer; whether the loop stores them there instead of in memory.
    kept: &'a [(Buf, Reg, bool)],
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
    let kept = kept(m, &rows).filter(|k| k.is_empty() || !needs.long)?;
    let mut suits = rows.parts.iter().all(|p| match p {
        Part::Once(s) => has_lane_per_row(m, s, row, bits),
        Part::Each(_) => true,
    });
    let longest = match kept[..] {
        [] => (8 * LONGEST / i64::from(bits)).min(PER_LANE * lanes * lanes),
        _ => lanes,
    };
    let (mut loops, mut lengths): (Vec<RowLoop>, Vec<Dim>) = (vec![], vec![]);
    let broadcasts = vectors.caps.shuffles.are_computed();
    for e in rows.elements() {
        let (var, hi, body) = match e.loops[..] {
            [(var, hi)] => (var, hi, e.body.clone()),
            _ => one_loop(m, &e.statement())?,
        };
        let one = row_loop(m, (var, hi), &body, vectors, Bounds { sums: 1, least })?;
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
    suits.then_some(ReduceRows { lanes, of_task, row, count, rows, loops, kept, short })
}

/// True for a statement beside the loops that may be computed with a lane for each row.
fn has_lane_per_row(m: &Module, s: &Stmt, row: Sym, bits: u32) -> bool {
    let mut suits = !matches!(s, Stmt::Let { .. });
    let s = std::slice::from_ref(s);
    visit::each_store(s, &mut |buf, at| {
        suits &= stride(m, buf, at, row) == Some(1) && m.bufs[buf].ty.bits() == bits;
    });
    visit::each_load(s, &mut |buf, at| suits &= matches!(stride(m, buf, at, row), Some(0 | 1)));
    visit::walk_exprs(s, &mut |e| match e {
        Expr::With { .. } => suits = false,
        Expr::Index(d) => suits &= !d.contains(row),
        _ => {}
    });
    suits
}

/// What loops store for later ones. `None` if it cannot stay in registers: rows that two blocks have in
/// common are computed twice, so that no block may read what another one stored.
fn kept(m: &Module, rows: &Rows) -> Option<Vec<Kept>> {
    let body = rows.body();
    let read: Vec<Buf> = visit::loads(&body).into_iter().map(|b| m.storage(b)).collect();
    let again: Vec<Buf> =
        visit::stores(&body).into_iter().filter(|b| read.contains(&m.storage(*b))).collect();
    if again.is_empty() {
        return Some(vec![]);
    }
    let (first, hi) = *rows.elements().next()?.loops.first()?;
    let single = |e: &Elements| matches!(e.loops[..], [(_, n)] if n == hi);
    let once = rows.parts.iter().filter(|p| matches!(p, Part::Once(_))).map(Part::statement);
    let once: Vec<Stmt> = once.collect();
    let mut suits = rows.elements().all(single);
    visit::accesses(&once, &mut |buf, _| suits &= !again.iter().any(|b| m.storage(*b) == m.storage(buf)));
    let mut out: Vec<Kept> = vec![];
    for buf in again {
        suits &= m.bufs[buf].ty == ElemType::F32;
        if !out.iter().any(|k| k.buf == buf) {
            out.push(Kept { buf, last: last_store(m, rows, buf, first)? });
        }
    }
    suits.then_some(out)
}

/// The last loop that stores a buffer, if every element is stored before it is read, and read by that loop
/// and earlier ones only, always in the same step of these.
fn last_store(m: &Module, rows: &Rows, buf: Buf, first: Sym) -> Option<usize> {
    let (mut place, mut last, mut same): (Option<Vec<Dim>>, usize, bool) = (None, 0, true);
    // The last loop that reads, and the last one that reads what it stored itself.
    let (mut read, mut own) = (0, None);
    for (i, e) in rows.elements().enumerate() {
        let var = e.loops.first()?.0;
        let mut stored = false;
        for s in &e.body {
            visit::each_load(std::slice::from_ref(s), &mut |b, at| {
                if m.storage(b) == m.storage(buf) {
                    same &= b == buf && place.as_ref() == Some(&in_first(first, var, at));
                    read = i;
                    own = own.max(stored.then_some(i));
                }
            });
            if let Stmt::Store { buf: b, at, .. } = s
                && m.storage(*b) == m.storage(buf)
            {
                let at = in_first(first, var, at);
                same &= *b == buf && *place.get_or_insert_with(|| at.clone()) == at;
                (last, stored) = (i, true);
            }
        }
    }
    (same && read <= last && own != Some(last)).then_some(last)
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
    /// Rows `lo..hi`, those of a task, in blocks. A last block that is not whole overlaps the one before it,
    /// maybe that of another task: both store the same values there.
    pub fn blocks(&self, m: &mut Module, (lo, hi): (Dim, Dim)) -> Vec<Stmt> {
        if self.of_task == self.lanes {
            let first = m.syms.simplify(lo.min(self.count - self.lanes));
            return self.block(m, first);
        }
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
        let of_block: LaneOf = accumulators(&body).into_iter().zip(accs.iter().copied()).collect();
        let kept: Vec<Reg> = self.kept.iter().map(|k| m.reg(m.bufs[k.buf].ty)).collect();
        let lanes = (self.lanes, Dim::constant(self.lanes));
        let block = Adjacent { var: self.row, base: first, count: 1, lanes };
        let (mut once, mut loops) = (vec![], self.loops.iter().enumerate());
        let mut out: Vec<Stmt> = kept.iter().map(|reg| self.array(m, *reg)).collect();
        for (part, s) in self.rows.parts.iter().zip(fresh) {
            match part {
                Part::Once(_) => once.push(s),
                Part::Each(_) => {
                    out.extend(block.of(m, &std::mem::take(&mut once), &accs));
                    let Some((i, l)) = loops.next() else { continue };
                    let kept = self.kept.iter().zip(&kept).map(|(k, reg)| (k.buf, *reg, i < k.last));
                    let kept: Vec<(Buf, Reg, bool)> = kept.collect();
                    out.extend(self.reduction(m, l, first, (&of_block, &kept)));
                }
            }
        }
        out.extend(block.of(m, &once, &accs));
        out
    }
    /// The reductions of a loop over elements.
    fn reduction(
        &self,
        m: &mut Module,
        l: &RowLoop,
        first: Dim,
        (of_block, kept): (&LaneOf, &[(Buf, Reg, bool)]),
    ) -> Vec<Stmt> {
        let (mut out, partial) = l.accumulators(m, self.lanes);
        let regs = Registers { of_block, partial: &partial, kept };
        let lanes = Dim::constant(self.lanes);
        let (whole, rest) = (l.hi.floor_div(self.lanes), m.syms.simplify(l.hi.modulo(self.lanes)));
        let zero = Dim::constant(0);
        let unrolled = if self.loops.len() == 1 { UNROLLED } else { 1 };
        if !kept.is_empty() {
            let body = self.vectors(m, l, &regs, first, (zero, l.hi.min(lanes).max(1)));
            out.push(once(m, l.hi.min(1), vec![body]));
        } else if l.hi.as_const().is_some_and(|n| n <= unrolled * self.lanes) {
            out.push(self.vectors(m, l, &regs, first, (zero, l.hi)));
        } else {
            let q = m.syms.loop_var("q", Dim::constant(0), whole);
            let body = self.vectors(m, l, &regs, first, (Dim::sym(q) * self.lanes, lanes));
            out.push(Stmt::seq(q, whole, vec![body]));
            if rest.as_const() != Some(0) {
                let body = self.vectors(m, l, &regs, first, (whole * self.lanes, rest));
                out.push(once(m, rest.min(Dim::constant(1)), vec![body]));
            }
        }
        for (acc, op) in &l.reductions {
            let lane = m.syms.loop_var("l", Dim::constant(0), lanes);
            let of = |r: i64| Expr::Horizontal { op: *op, reg: partial[acc], at: vec![r.into()] };
            let pick = |rest: Expr, r: i64| Expr::select(Expr::cmp_index(BinOp::Eq, lane, r), of(r), rest);
            let all = (0..self.lanes - 1).rev().fold(of(self.lanes - 1), pick);
            let reg = of_block.get(acc).copied().unwrap_or(*acc);
            let set = Stmt::Set { reg, at: vec![], value: Expr::bin(*op, Expr::acc(reg), all) };
            out.push(Stmt::vector(self.lanes, lane, lanes, vec![set]));
        }
        out
    }
    /// The declaration of a vector for each row.
    fn array(&self, m: &Module, reg: Reg) -> Stmt {
        let (lanes, init) = (self.lanes as u32, Expr::num(m.regs[reg].ty, 0.0));
        Stmt::Acc { reg, lanes, shape: vec![lanes], init }
    }
    /// Vectors of `count` elements from `lo` on, of each row.
    fn vectors(
        &self,
        m: &mut Module,
        l: &RowLoop,
        Registers { of_block, partial, kept }: &Registers,
        first: Dim,
        (lo, count): (Dim, Dim),
    ) -> Stmt {
        let (r, j) = (
            m.syms.loop_var("r", Dim::constant(0), Dim::constant(self.lanes)),
            m.syms.loop_var("j", Dim::constant(0), count),
        );
        let own = |reg: Reg| partial.values().any(|p| *p == reg);
        let body = l.body(m, partial, &|at, reg| if own(reg) { vec![r.into()] } else { at });
        let place = |buf: Buf| kept.iter().find(|k| k.0 == buf);
        let read = |e: Expr| match e {
            Expr::Acc { reg, at, .. } if of_block.contains_key(&reg) => {
                Expr::Acc { reg: of_block[&reg], at, lane: Some(r.into()) }
            }
            Expr::Load { buf, at } => match place(buf) {
                Some(k) => Expr::Acc { reg: k.1, at: vec![r.into()], lane: None },
                None => Expr::Load { buf, at },
            },
            e => e,
        };
        let set = |s: Stmt| match s {
            Stmt::Store { buf, at, value } => match place(buf) {
                Some((_, reg, true)) => Stmt::Set { reg: *reg, at: vec![r.into()], value },
                _ => Stmt::Store { buf, at, value },
            },
            s => s,
        };
        let put = |s: Sym| match s {
            s if s == self.row => Some(first + r),
            s if s == l.var => Some(lo + j),
            _ => None,
        };
        let body = body.into_iter().map(|s| set(s).rewrite_exprs(&mut |e| read(e)).subst(&put)).collect();
        let vectors = Stmt::For { kind: vector(self.lanes), var: j, lo: Dim::constant(0), hi: count, body };
        Stmt::unroll(r, self.lanes, vec![vectors])
    }
}

/// The accumulators of a row, in order.
fn accumulators(body: &[Stmt]) -> Vec<Reg> {
    let reg = |s: &Stmt| if let Stmt::Acc { reg, .. } = s { Some(*reg) } else { None };
    body.iter().filter_map(reg).collect()
}
