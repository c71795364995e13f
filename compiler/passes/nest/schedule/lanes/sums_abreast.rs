//! Long sums in vectors, for several rows and several results at once: adjacent rows multiply by the same
//! factors, adjacent results multiply the same elements. A load serves all sums that use it, and independent
//! sums hide the latency of an addition.

use super::operands;
use super::unroll_and_jam::interleave;
use crate::nest::{BinOp, Expr, LoopKind, Module, Stmt};
use crate::passes::nest::analysis::shape::{ParNest, fresh_regs};
use crate::sym::{Dim, Sym};

/// Iterations of a loop that are interleaved.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Block {
    /// The loop.
    pub var: Sym,
    /// Interleaved iterations.
    pub count: i64,
    /// Their name in the schedule.
    pub name: &'static str,
    /// True if the extent is not known to be a multiple.
    partial: bool,
}

impl Block {
    /// Two rows of an even number of rows.
    pub fn of_two(var: Sym) -> Block {
        Block { var, count: 2, name: "rows", partial: false }
    }
}

/// Maximum interleaved iterations of a loop.
const MOST: i64 = 4;
/// Additions that may be in flight: latency times instructions per cycle.
const IN_FLIGHT: i64 = 8;
/// Loads per cycle, and additions.
const PER_CYCLE: f64 = 2.0;
/// Minimum gain of interleaving.
const GAIN: f64 = 1.2;

/// A load of the reduction, with its steps along the vectors and along the loops that may be interleaved.
struct Operand {
    is_vector: bool,
    moves: [bool; 2],
}

/// The iterations around vectors along `var`, `vectors` of them adjacent, that should be interleaved; none if
/// the body is not a single sum.
pub(super) fn choose(m: &Module, nest: &ParNest, var: Sym, vectors: i64, registers: i64) -> Vec<Block> {
    let Some(loads) = operands::of_only_sum(&nest.body) else { return vec![] };
    let moves =
        |l: Sym| -> Vec<bool> { loads.iter().map(|(buf, at)| m.linear(*buf, at).contains(l)).collect() };
    let along = moves(var);
    // Loops that leave different operands in place: others multiply the same work.
    let mut loops: Vec<(Sym, Dim, Vec<bool>)> = vec![];
    for (l, extent) in nest.loops.iter().rev().filter(|l| l.0 != var) {
        let own = moves(*l);
        let shares = own.iter().any(|x| !x) && own.iter().any(|x| *x);
        if shares && loops.len() < 2 && loops.iter().all(|o| o.2 != own) {
            loops.push((*l, *extent, own));
        }
    }
    let moves = |i: usize, k: usize| loops.get(k).is_some_and(|l| l.2[i]);
    let operands: Vec<Operand> = (0..loads.len())
        .map(|i| Operand { is_vector: along[i], moves: [moves(i, 0), moves(i, 1)] })
        .collect();
    let extent = |k: usize| loops.get(k).map_or(Some(1), |l| l.1.as_const());
    let cost = |n: [i64; 2]| cost(&operands, vectors, n, registers);
    // The cost with remainders, which are computed one by one.
    let whole = |n: [i64; 2]| -> Option<f64> {
        let mut all = cost(n)?;
        let mut partial = 0;
        for k in (0..2).filter(|k| n[*k] > 1) {
            let mut alone = n;
            alone[k] = 1;
            match extent(k) {
                Some(e) if e % n[k] == 0 => {}
                Some(e) if e < 2 * n[k] => return None,
                e => {
                    partial += 1;
                    let rest = e.map_or(0.125, |e| (e % n[k]) as f64 / e as f64);
                    all = all * (1.0 - rest) + cost(alone)? * rest;
                }
            }
        }
        (partial < 2).then_some(all)
    };
    let counts = || (1..=MOST).flat_map(|a| (1..=MOST).map(move |b| [a, b]));
    let fits = |n: &[i64; 2]| (0..2).all(|k| n[k] == 1 || k < loops.len());
    let best = counts().filter(fits).filter_map(|n| Some((whole(n)?, n))).min_by(|a, b| a.0.total_cmp(&b.0));
    let Some((found, n)) = best.filter(|b| whole([1, 1]).is_some_and(|one| one > b.0 * GAIN)) else {
        return vec![];
    };
    debug_assert!(found > 0.0);
    let block = |k: usize| Block {
        var: loops[k].0,
        count: n[k],
        name: if (0..loads.len()).any(|i| along[i] && loops[k].2[i]) { "rows" } else { "results" },
        partial: extent(k).is_none_or(|e| e % n[k] != 0),
    };
    let mut blocks: Vec<Block> = (0..loops.len()).filter(|k| n[*k] > 1).map(block).collect();
    // A remainder is a branch, around everything else.
    blocks.sort_by_key(|b| b.partial);
    blocks
}

/// Cycles per addition of a vector, with `n` interleaved iterations; `None` if registers do not suffice.
fn cost(operands: &[Operand], vectors: i64, n: [i64; 2], registers: i64) -> Option<f64> {
    let loads = |o: &Operand| {
        let several = |k: usize| if o.moves[k] { n[k] } else { 1 };
        several(0) * several(1) * if o.is_vector { vectors } else { 1 }
    };
    let sums = n[0] * n[1] * vectors;
    let shared = operands.iter().map(loads).max().unwrap_or(0).min(sums);
    if sums + shared.min(MOST) + 1 > registers {
        return None;
    }
    let loads: i64 = operands.iter().map(loads).sum();
    let cycles = (loads as f64 / PER_CYCLE).max(sums.max(IN_FLIGHT) as f64 / PER_CYCLE);
    Some(cycles / sums as f64)
}

/// Interleaves the iterations of blocks in `body`, and shortens their loops among `loops` accordingly.
pub(super) fn apply(
    m: &mut Module,
    blocks: &[Block],
    loops: &mut [(Sym, Dim)],
    mut body: Vec<Stmt>,
) -> Vec<Stmt> {
    for Block { var, count, .. } in blocks {
        let Some(l) = loops.iter_mut().find(|l| l.0 == *var) else { continue };
        let (extent, number) = (l.1, l.1.ceil_div(*count));
        let block = m.syms.loop_var("b", Dim::constant(0), number);
        *l = (block, number);
        let first = Dim::sym(block) * *count;
        let several = interleave(m, &body, *var, first, *count);
        if extent.modulo(*count).as_const() == Some(0) {
            body = several;
            continue;
        }
        let hi = extent.min(first + *count);
        let v = m.syms.loop_var("r", first, hi);
        let one = fresh_regs(m, &body);
        let one = one.into_iter().map(|s| s.subst(&|s| (s == *var).then(|| Dim::sym(v)))).collect();
        let each = vec![Stmt::For { kind: LoopKind::Seq, var: v, lo: first, hi, body: one }];
        let cond = Expr::cmp_index(BinOp::Le, first + *count, extent);
        body = vec![Stmt::If { cond, then: several, els: each }];
    }
    body
}
