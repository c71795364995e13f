//! Rows of sums in blocks of adjacent vectors, and what is left behind the last whole block.

use super::body::{Adjacent, lets_as_accs, once};
use crate::nest::form::{Elements, rows};
use crate::nest::{LoopKind, Module, Stmt};
use crate::passes::nest::analysis::shape::fresh_regs;
use crate::sym::{Answer, Dim, Sym};

/// Vectors abreast in a row of run-time length, most of which may be a remainder.
pub(super) const FEW: i64 = 4;

/// The code of the vectors behind the blocks of a row of run-time length, the last of which is partial.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Last {
    /// One vector at a time, and the partial one.
    Single,
    /// The same, and another one for a partial vector of at most half the lanes, which loads fewer vectors of
    /// memory.
    Halves,
    /// A block for each number of vectors: single ones would wait for their additions.
    Blocks,
}

/// A row, and its blocks.
#[derive(Clone, Copy)]
pub(super) struct InBlocks {
    pub var: Sym,
    pub extent: Dim,
    pub lanes: i64,
    /// Vectors of a block.
    pub side: i64,
    pub last: Last,
}

impl InBlocks {
    /// The body, with short loops unrolled.
    pub fn unrolled(&self, body: Vec<Stmt>) -> Vec<Stmt> {
        let body = short_rows(body);
        if self.side == 1 { body.into_iter().map(short_taps).collect() } else { body }
    }
    /// The row: whole blocks, and the remainder. This is one block if the length is known, otherwise a block
    /// of few vectors and those that `last` says.
    pub fn apply(&self, m: &mut Module, body: Vec<Stmt>) -> Vec<Stmt> {
        let (lanes, side) = (self.lanes, self.side);
        let body = lets_as_accs(m, body);
        let mut out = vec![];
        out.extend(self.whole_blocks(m, &body, (Dim::constant(0), self.extent), side));
        let (first, rest) = self.behind(side);
        if let Some(left) = m.syms.simplify(rest).as_const() {
            if left > 0 {
                let vectors = (left + lanes - 1) / lanes;
                out.extend(self.block(m, &body, (first, vectors), (left - (vectors - 1) * lanes).into()));
            }
            return out;
        }
        if side > FEW {
            out.extend(self.whole_blocks(m, &body, (first, rest), FEW));
        }
        if self.last == Last::Blocks {
            out.extend(self.by_number(m, &body));
            return out;
        }
        if side > 1 {
            out.extend(self.whole_blocks(m, &body, self.behind(side.min(FEW)), 1));
        }
        out.extend(self.partial(m, &body));
        out
    }
    /// The elements behind whole blocks of some vectors: the first one, and their number.
    fn behind(&self, vectors: i64) -> (Dim, Dim) {
        let step = self.lanes * vectors;
        (self.extent.floor_div(step) * step, self.extent.modulo(step))
    }
    /// Some vectors from an element on, the last one with `used` lanes.
    fn block(&self, m: &mut Module, body: &[Stmt], (base, count): (Dim, i64), used: Dim) -> Vec<Stmt> {
        let body = fresh_regs(m, body);
        Adjacent { var: self.var, base, count, lanes: (self.lanes, used) }.in_lanes(m, &body)
    }
    /// As many whole blocks of some vectors as `elements` from the first one on contain.
    fn whole_blocks(
        &self,
        m: &mut Module,
        body: &[Stmt],
        (first, elements): (Dim, Dim),
        vectors: i64,
    ) -> Option<Stmt> {
        let step = self.lanes * vectors;
        let count = m.syms.simplify(elements.floor_div(step));
        if count.as_const() == Some(0) {
            return None;
        }
        let c = m.syms.loop_var("c", Dim::constant(0), count);
        let block = self.block(m, body, (first + Dim::sym(c) * step, vectors), self.lanes.into());
        Some(Stmt::par(c, count, block))
    }
    /// The vectors behind whole blocks, the last one partial: a block for each number of them.
    fn by_number(&self, m: &mut Module, body: &[Stmt]) -> Vec<Stmt> {
        let (lanes, most) = (self.lanes, self.side.min(FEW));
        let (first, rest) = self.behind(most);
        let number = rest.ceil_div(lanes);
        let block = |n: i64| {
            let exists = number.floor_div(n).min(1) - number.floor_div(n + 1).min(1);
            let used = m.syms.simplify((rest - lanes * (n - 1)).max(1).min(lanes));
            let block = self.block(m, body, (first, n), used);
            once(m, exists, block)
        };
        (1..=most).map(block).collect()
    }
    /// The partial vector at the end, if there is one.
    fn partial(&self, m: &mut Module, body: &[Stmt]) -> Option<Stmt> {
        let half = self.lanes / 2;
        let (first, rest) = self.behind(1);
        let rest = m.syms.simplify(rest);
        if rest.as_const() == Some(0) {
            return None;
        }
        let mut vector = self.block(m, body, (first, 1), rest);
        if self.last == Last::Halves && m.syms.le(rest, Dim::constant(half)) != Answer::Yes {
            let more = (rest + (half - 1)).floor_div(self.lanes);
            let few = m.syms.simplify(rest.min(half));
            let few = self.block(m, body, (first, 1), few);
            vector = vec![once(m, more, vector), once(m, Dim::constant(1) - more, few)];
        }
        Some(once(m, rest.min(1), vector))
    }
}

/// Unrolls short loops of a single vector: innermost loops, and short loops around them. Nothing else hides
/// the loop overhead.
fn short_taps(s: Stmt) -> Stmt {
    /// Maximum unrolled steps: those of a window of three by three.
    const MOST: i64 = 9;
    match s {
        Stmt::For { kind: LoopKind::Seq, var, lo, hi, body } => {
            let body: Vec<Stmt> = body.into_iter().map(short_taps).collect();
            let trips = |s: &Stmt| match s {
                Stmt::For { kind: LoopKind::Unroll, lo, hi, .. } => (*hi - *lo).as_const(),
                Stmt::For { .. } => None,
                _ => Some(1),
            };
            let inside = body.iter().map(trips).try_fold(1, |most: i64, n| Some(most.max(n?)));
            let n = (hi - lo).as_const().filter(|n| *n >= 2);
            let short = n.zip(inside).is_some_and(|(n, inside)| n.saturating_mul(inside) <= MOST);
            let constant = lo.as_const().is_some() && hi.as_const().is_some();
            let kind = if short && constant { LoopKind::Unroll } else { LoopKind::Seq };
            Stmt::For { kind, var, lo, hi, body }
        }
        s => s,
    }
}

/// Unrolls several loops over the same few elements, so that elements loaded by one stay in registers for the
/// next.
fn short_rows(body: Vec<Stmt>) -> Vec<Stmt> {
    const MOST: i64 = 32;
    let trips = rows(&body).map(|row| row.elements().map(Elements::count).collect::<Vec<_>>());
    let alike = |trips: &Vec<Option<i64>>| match trips.as_slice() {
        [Some(first), rest @ ..] => {
            !rest.is_empty() && *first <= MOST && rest.iter().all(|t| *t == Some(*first))
        }
        _ => false,
    };
    if !trips.is_some_and(|trips| alike(&trips)) {
        return body;
    }
    let unroll = |s: Stmt| match s {
        Stmt::For { kind: LoopKind::Seq, var, lo, hi, body } => {
            Stmt::For { kind: LoopKind::Unroll, var, lo, hi, body }
        }
        s => s,
    };
    body.into_iter().map(unroll).collect()
}
