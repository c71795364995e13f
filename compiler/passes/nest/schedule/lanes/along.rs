//! Vectors along the contiguous dimension of the result.

use super::body::{in_lanes, in_pieces, lets_as_accs, once, renamed};
use super::indexed;
use super::operands::{self, Load};
use super::peel_edges::{self, Ends};
use super::permuted_loads::{self, Pieces, Row};
use super::rows_abreast;
use super::stage_through_scratch::{self, Staging};
use super::sums_abreast::{self, Block};
use super::uniform_indices;
use super::window_rows::{self, WindowRows};
use super::{Relayout, Vectors, collapse, fuse_rows, order_loops, suits, vector};
use crate::nest::form::{Elements, first_store, rows};
use crate::nest::schedule::Schedule;
use crate::nest::{Expr, LoopKind, Module, Stmt, visit};
use crate::passes::nest::analysis::lanes64;
use crate::passes::nest::analysis::shape::{ParNest, fresh_regs, wrap};
use crate::passes::nest::analysis::strides::{stride, unit_stride_var};
use crate::passes::nest::analysis::vectors::Needs;
use crate::sym::{Answer, Dim, Sym};

/// A nest with vectors along the contiguous dimension of the result.
pub(super) struct Along {
    nest: ParNest,
    var: Sym,
    extent: Dim,
    /// The extent in the schedule: its bound, if tasks differ.
    shown: Dim,
    lanes: i64,
    /// Indices that are uniform across lanes: the symbol, its value, and its bound.
    outside: Vec<(Sym, Expr, Dim)>,
    how: How,
    /// Iterations that are interleaved, so that shared elements are loaded once.
    blocks: Vec<Block>,
    /// Rows of a window in one tile.
    window: Option<WindowRows>,
    last: Last,
}

/// The code of the vectors behind the blocks of a row of run-time length, the last of which is partial.
#[derive(Clone, Copy, PartialEq)]
enum Last {
    /// One vector at a time, and the partial one.
    Single,
    /// The same, and another one for a partial vector of at most half the lanes, which loads fewer vectors of
    /// memory.
    Halves,
    /// A block for each number of vectors: single ones would wait for their additions.
    Blocks,
}

/// The sequence of the vectors.
enum How {
    /// Each vector separately, with known positions of its lanes.
    Apart(Pieces),
    /// One loop, in pieces of the given number of elements for threads.
    Shared(i64),
    /// An inner part and the ends of a row; in pieces of a number of elements for threads, if it is given.
    Inside(peel_edges::Row, Option<i64>),
    /// One loop.
    Loop,
    /// One loop, unless only run time knows that the row is too long for positions that are not linear.
    Limited,
    /// The row is one block of the given number of vectors, the last one partial.
    Row(i64),
    /// Blocks of the given number of adjacent vectors.
    Blocks(i64),
    /// The same in tasks; elements that several loops share are staged in scratch.
    Staged(Staging),
}

/// Chooses vectors along the contiguous dimension of the result, or along that of a reduction's operands if
/// the result has another order: a reduction loads much and stores little. `None` if neither is possible.
pub(super) fn along_result(m: &mut Module, nest: &ParNest, vectors: Vectors, whole: bool) -> Option<Along> {
    let (buf, at) = first_store(&nest.body)?;
    let mut loops = nest.loops.clone();
    order_loops(m, &nest.body, &mut loops);
    let nest = ParNest { loops, body: nest.body.clone() };
    let of_result = unit_stride_var(m, buf, &at, &nest.loops);
    if let Some(found) = of_result.and_then(|var| along(m, nest.clone(), (var, whole), vectors)) {
        return Some(found);
    }
    let var =
        of_sums(m, &nest).filter(|v| Some(*v) != of_result && m.linear(buf, &at).linear_in(*v).is_some())?;
    along(m, nest, (var, whole), vectors)
}

/// The loop along which all operands of reductions are contiguous or uniform.
fn of_sums(m: &Module, nest: &ParNest) -> Option<Sym> {
    let loads = operands::of_loops(&nest.body);
    let strides = |v: Sym| loads.iter().map(move |(buf, at)| stride(m, *buf, at, v));
    nest.loops
        .iter()
        .map(|l| l.0)
        .find(|v| strides(*v).all(|s| matches!(s, Some(0 | 1))) && strides(*v).any(|s| s == Some(1)))
}

/// Vectors along a loop of a `whole` kernel or of a part of it.
fn along(
    m: &mut Module,
    mut nest: ParNest,
    (mut var, whole): (Sym, bool),
    vectors: Vectors,
) -> Option<Along> {
    if let Some(v) = collapse(m, &mut nest, var) {
        var = v;
    }
    fuse_rows(m, &mut nest, var);
    if (vectors.caps.shuffles.are_known() || vectors.caps.indexed)
        && !lanes64::has(m, &nest.body)
        && let Some(v) = permuted_loads::interleave(m, &mut nest, var, vectors)
    {
        var = v;
    }
    let outside = uniform_indices::hoist(&mut nest, var);
    let needs = Needs::of(m, &nest.body);
    let (vectors, plain) = (vectors.of(&needs), needs.straight);
    let lanes = vectors.lanes;
    let extent = nest.loops.iter().find(|l| l.0 == var)?.1;
    // Two or three elements are worth a vector if it can be masked.
    let least = match vectors.caps.masks {
        true if plain => 2,
        true if !waits(m, &nest.body, Steps::Outer) => 3,
        _ => 4,
    };
    let told = Some(extent).filter(|_| plain && vectors.caps.shuffles.are_known());
    if extent.as_const().is_some_and(|c| c < least) {
        return None;
    }
    let mut inside = None;
    if !suits(m, &needs, var, vectors, told) {
        let row =
            peel_edges::Row::of(m, &nest.body, (var, extent), lanes, Ends::Elements).filter(|_| plain)?;
        if !suits(m, &Needs::of(m, &row.inner), var, vectors, None) {
            return None;
        }
        inside = Some(row);
    }
    let mut relayout = Relayout::new(var);
    relayout.apply(m, &mut nest.body);
    if let Some(row) = &mut inside {
        relayout.apply(m, &mut row.inner);
    }
    let alone = nest.loops.iter().all(|l| l.0 == var);
    let pieces = piece(extent, lanes).filter(|_| alone);
    let how = match inside {
        Some(row) => How::Inside(row, pieces),
        None if plain => of_map(m, &nest.body, (var, extent), pieces, vectors),
        None => match whole.then(|| stage_through_scratch::choose(m, &nest, var, lanes)).flatten() {
            Some(staging) => How::Staged(staging),
            None => in_blocks(m, &nest.body, extent, vectors),
        },
    };
    let share = || rows_abreast::share_indices(m, &nest, (var, extent), &outside);
    let how = match how {
        How::Loop if vectors.caps.shuffles.are_computed() && share() => {
            How::Apart(Pieces::Windows { vectors: 1 })
        }
        how => how,
    };
    // Rows in place of adjacent vectors, which a row of run-time length may not have.
    let single = extent.as_const().is_none();
    let window = match how {
        How::Row(side) | How::Blocks(side) if !vectors.caps.by_lane => {
            let side = if single { 1 } else { side };
            window_rows::choose(m, &nest, var, side, vectors.registers).map(|w| w.inside(!whole))
        }
        _ => None,
    };
    let (how, blocks) = match window {
        Some(_) if single => (How::Blocks(1), vec![]),
        Some(_) => (how, vec![]),
        None => interleaved(m, &nest, (var, extent), how, vectors),
    };
    let most = m.syms.range(extent).hi.filter(|_| m.syms.has_loops(extent));
    let shown = most.map_or(extent, Dim::constant);
    let caps = vectors.caps;
    let rows = nest.loops.len() > 1;
    let may_grow = m.optimize.may_grow() && caps.masks;
    let last = match how {
        How::Blocks(2..) if may_grow && !m.syms.has_loops(extent) => Last::Blocks,
        _ if rows && may_grow && caps.shuffles.are_known() && skips(m, &nest.body, var) => Last::Halves,
        _ => Last::Single,
    };
    Some(Along { nest, var, extent, shown, lanes, outside, how, blocks, window, last })
}

/// The sequence of the vectors of a map; `pieces`: elements of a task.
fn of_map(m: &Module, body: &[Stmt], row: (Sym, Dim), pieces: Option<i64>, vectors: Vectors) -> How {
    if vectors.caps.shuffles.are_known()
        && let Some(pieces) = permuted_loads::along(m, body, row, vectors)
    {
        return How::Apart(pieces);
    }
    if vectors.caps.indexed && pieces.is_none() && indexed::is_limited(m, body, row) {
        return How::Limited;
    }
    match peel_edges::Row::of(m, body, row, vectors.lanes, Ends::Vectors) {
        Some(inside) if inside.has_short_ends(m, row.1, vectors.lanes) => How::Inside(inside, pieces),
        _ => pieces.map_or(How::Loop, How::Shared),
    }
}

/// The sequence of the vectors of sums.
fn in_blocks(m: &Module, body: &[Stmt], extent: Dim, vectors: Vectors) -> How {
    let lanes = vectors.lanes;
    if body.iter().any(|s| matches!(s, Stmt::Let { .. })) {
        return How::Blocks(1);
    }
    let Some(elements) = extent.as_const() else {
        // Long pieces of rows are read from memory faster.
        let most = if vectors.registers >= MANY { ABREAST } else { FEW };
        return How::Blocks(if waits(m, body, Steps::Outer) { most } else { 1 });
    };
    let side = [4, 2].into_iter().find(|c| elements % (lanes * c) == 0).unwrap_or(1);
    // A row of a few vectors is one block whose last vector is partial.
    let vectors = (elements + lanes - 1) / lanes;
    let partial = elements % lanes != 0;
    if side == 1 && partial && (2..=4).contains(&vectors) {
        return How::Row(vectors);
    }
    // Long reductions have as few passes as possible, of the same number of vectors.
    if waits(m, body, Steps::Outer) {
        let passes = (vectors + ABREAST - 1) / ABREAST;
        return How::Blocks((vectors + passes - 1) / passes);
    }
    How::Blocks(side)
}

/// True if lanes load every second element, or fewer: a vector of them is in several vectors of memory.
fn skips(m: &Module, body: &[Stmt], var: Sym) -> bool {
    let mut any = false;
    visit::each_load(body, &mut |buf, at| any |= stride(m, buf, at, var).is_some_and(|s| s.abs() > 1));
    any
}

/// The interleaved iterations around vectors, and the sequence of these.
fn interleaved(
    m: &Module,
    nest: &ParNest,
    (var, extent): (Sym, Dim),
    how: How,
    vectors: Vectors,
) -> (How, Vec<Block>) {
    let (How::Row(side) | How::Blocks(side)) = how else { return (how, vec![]) };
    if vectors.caps.by_lane
        && matches!(how, How::Blocks(_))
        && let Some(row) = shared_rows(m, nest, var, side)
    {
        return (how, vec![Block::of_two(row)]);
    }
    if !waits(m, &nest.body, Steps::Nested) {
        return (how, vec![]);
    }
    // Rows and results in place of adjacent vectors, which a row of run-time length may not have.
    let alone = extent.as_const().is_none();
    let side = if alone { 1 } else { side };
    match sums_abreast::choose(m, nest, var, side, vectors.registers) {
        blocks if !blocks.is_empty() && alone => (How::Blocks(1), blocks),
        blocks => (how, blocks),
    }
}

/// Maximum operations of two unrolled rows of a window.
const WINDOW: i64 = 64;

/// The innermost loop around vectors along `var`, `side` of which are adjacent, if its adjacent iterations
/// read the same elements in reduction steps, and the reduction loops are short: the rows of an image, of
/// which windows have several. Vectors of 128 bits do little work per load, and have registers for several
/// accumulators.
fn shared_rows(m: &Module, nest: &ParNest, var: Sym, side: i64) -> Option<Sym> {
    let (row, count) = nest.loops.iter().rev().find(|l| l.0 != var).copied()?;
    let extent = nest.loops.iter().find(|l| l.0 == var)?.1.as_const()?;
    if count.as_const().is_none_or(|n| n < 2 || n % 2 != 0) || extent == 0 {
        return None;
    }
    let (mut taps, mut sums) = (vec![], 0);
    visit::walk(&nest.body, &mut |s| match s {
        Stmt::For { kind: LoopKind::Seq, var, lo, hi, .. } => taps.push((*var, *hi - *lo)),
        Stmt::Set { .. } => sums += 1,
        _ => {}
    });
    let all = taps.iter().try_fold(2 * side, |n, t| n.checked_mul(t.1.as_const()?))?;
    let shares = |(buf, at): Load| {
        let step = |s: Sym| stride(m, buf, at, s).filter(|d| *d != 0);
        step(row).is_some_and(|r| taps.iter().any(|t| step(t.0) == Some(r)))
    };
    (sums == 1 && all <= WINDOW && operands::of_loops(&nest.body).into_iter().any(shares)).then_some(row)
}

impl Along {
    /// True if the tasks are chosen already.
    pub fn has_tasks(&self) -> bool {
        matches!(self.how, How::Staged(_))
    }
    /// The schedule.
    pub fn describe(&self) -> Schedule {
        let s = Schedule::new("vectors").vectors(self.lanes, "elements of the result", self.shown);
        let blocks = |side: i64| if side > 1 { vec![("vectors", side)] } else { vec![] };
        match &self.how {
            How::Apart(_) => Schedule { strategy: "vectors of permuted loads", ..s },
            How::Inside(_, None) => Schedule { strategy: "vectors inside rows", ..s },
            How::Inside(_, Some(n)) => {
                let blocks = vec![("elements of a task", Dim::constant(*n))];
                Schedule { strategy: "vectors inside rows", blocks, ..s }
            }
            How::Shared(n) => Schedule { blocks: vec![("elements of a task", Dim::constant(*n))], ..s },
            How::Loop | How::Limited => s,
            How::Row(n) | How::Blocks(n) => {
                let rows = self.window.iter().map(|w| ("rows", w.count));
                let several = rows.chain(self.blocks.iter().map(|b| (b.name, b.count)));
                let tile = several.chain(blocks(*n)).collect();
                Schedule { strategy: "sums in vectors", tile, ..s }
            }
            How::Staged(_) => {
                let tile = blocks(stage_through_scratch::SIDE);
                Schedule {
                    strategy: "sums in vectors",
                    tile,
                    staging: vec!["elements that several loops share"],
                    ..s
                }
            }
        }
    }
    /// The nest in vectors.
    pub fn apply(self, m: &mut Module) -> Vec<Stmt> {
        let Along { nest, var, extent, lanes, outside, how, blocks, window, last, .. } = self;
        let zero = Dim::constant(0);
        let around = |body: Vec<Stmt>, (sym, value, extent): &(Sym, Expr, Dim)| {
            vec![Stmt::With { sym: *sym, value: value.clone(), extent: *extent, body }]
        };
        let within = |body: Vec<Stmt>| outside.iter().rev().fold(body, around);
        let mut others: Vec<(Sym, Dim)> = nest.loops.iter().copied().filter(|l| l.0 != var).collect();
        let out = match how {
            How::Apart(pieces) => {
                let row = Row { body: &nest.body, var, lanes, abreast: &vec![] };
                within(pieces.in_rows(m, row, extent, (&mut others, &outside)))
            }
            How::Inside(row, None) => within(row.part(m, &nest.body, lanes, (zero, extent))),
            How::Inside(row, Some(n)) => {
                return in_pieces(m, extent, n, |m, part| within(row.part(m, &nest.body, lanes, part)));
            }
            How::Shared(n) => {
                return in_pieces(m, extent, n, |m, (lo, hi)| {
                    let (body, v) = renamed(m, &nest.body, var, lo, hi);
                    within(vec![Stmt::For { kind: vector(lanes), var: v, lo, hi, body }])
                });
            }
            How::Loop => {
                let around = (others.as_mut_slice(), outside.as_slice());
                within(rows_abreast::inside_indices(m, nest.body, (var, extent, lanes), around))
            }
            How::Limited => within(indexed::row(m, &nest.body, (var, extent), lanes)),
            How::Row(n) => {
                let row = |m: &mut Module, body: &[Stmt]| {
                    in_lanes(m, body, var, zero, n, (lanes, extent.modulo(lanes)))
                };
                match window {
                    Some(w) => w.apply(m, &nest.body, &mut others, |m, body| row(m, &body)),
                    None => row(m, &nest.body),
                }
            }
            How::Blocks(side) if let Some(w) = window => w.apply(m, &nest.body, &mut others, |m, body| {
                side_by_side(m, body, (var, extent), (lanes, side), last)
            }),
            How::Blocks(side) => {
                let body = short_rows(nest.body);
                let body = if side == 1 { body.into_iter().map(short_taps).collect() } else { body };
                side_by_side(m, body, (var, extent), (lanes, side), last)
            }
            How::Staged(staging) => return staging.apply(m, &nest, var, lanes),
        };
        m.syms.set_loop_range(var, zero, extent);
        let out = sums_abreast::apply(m, &blocks, &mut others, out);
        wrap(&others, out)
    }
}

/// A row in blocks of `side` vectors, and the remainder: one block if its length is known, otherwise a block
/// of few vectors and those that `last` says.
fn side_by_side(
    m: &mut Module,
    body: Vec<Stmt>,
    (var, extent): (Sym, Dim),
    (lanes, side): (i64, i64),
    last: Last,
) -> Vec<Stmt> {
    let step = lanes * side;
    let nest_body = lets_as_accs(m, body);
    let of = |m: &mut Module, first: Dim, vectors: i64, last: Dim| {
        let body = fresh_regs(m, &nest_body);
        in_lanes(m, &body, var, first, vectors, (lanes, last))
    };
    let mut out = vec![];
    let mut whole_blocks = |m: &mut Module, (first, elements): (Dim, Dim), vectors: i64| {
        let step = lanes * vectors;
        let count = m.syms.simplify(elements.floor_div(step));
        if count.as_const() != Some(0) {
            let c = m.syms.loop_var("c", Dim::constant(0), count);
            out.push(Stmt::par(c, count, of(m, first + Dim::sym(c) * step, vectors, lanes.into())));
        }
    };
    let behind = |step: i64| (extent.floor_div(step) * step, extent.modulo(step));
    whole_blocks(m, (Dim::constant(0), extent), side);
    // The rest of a row of known length is one block whose last vector may be partial.
    let (first, rest) = behind(step);
    if let Some(left) = m.syms.simplify(rest).as_const() {
        if left > 0 {
            let vectors = (left + lanes - 1) / lanes;
            out.extend(of(m, first, vectors, Dim::constant(left - (vectors - 1) * lanes)));
        }
        return out;
    }
    if side > FEW {
        whole_blocks(m, (first, rest), FEW);
    }
    if last == Last::Blocks {
        let (first, rest) = behind(lanes * side.min(FEW));
        let number = rest.ceil_div(lanes);
        for n in 1..=side.min(FEW) {
            let exists = number.floor_div(n).min(1) - number.floor_div(n + 1).min(1);
            let used = m.syms.simplify((rest - lanes * (n - 1)).max(1).min(lanes));
            let block = of(m, first, n, used);
            out.push(once(m, exists, block));
        }
        return out;
    }
    if side > 1 {
        whole_blocks(m, behind(lanes * side.min(FEW)), 1);
    }
    let (whole, rest) = behind(lanes);
    let rest = m.syms.simplify(rest);
    if rest.as_const() != Some(0) {
        let body = of(m, whole, 1, rest);
        let body = if last == Last::Halves && m.syms.le(rest, Dim::constant(lanes / 2)) != Answer::Yes {
            let more = (rest + (lanes / 2 - 1)).floor_div(lanes);
            let few = m.syms.simplify(rest.min(lanes / 2));
            let few = of(m, whole, 1, few);
            vec![once(m, more, body), once(m, Dim::constant(1) - more, few)]
        } else {
            body
        };
        out.push(once(m, rest.min(1), body));
    }
    out
}

/// Maximum vectors whose sums are abreast: two additions per cycle with a latency of four cycles.
const ABREAST: i64 = 8;
/// Vectors abreast in a row of run-time length, most of which may be a remainder.
const FEW: i64 = 4;
/// Registers that suffice for more of them.
const MANY: i64 = 32;
/// Steps of a reduction whose latency a single vector would expose.
const LONG: i64 = 12;

/// The loops of a nest of reduction loops whose iterations count as steps.
#[derive(Clone, Copy, PartialEq)]
enum Steps {
    /// Those of the outermost loop.
    Outer,
    /// Those of all loops, each of which may be short: a window in a few channels.
    Nested,
}

/// True for long reductions, whose latency a single vector would expose.
fn waits(m: &Module, body: &[Stmt], which: Steps) -> bool {
    body.iter().any(|s| steps(m, s, which) >= LONG)
}

/// The steps of a statement at most; [`LONG`] if only run time knows them.
fn steps(m: &Module, s: &Stmt, which: Steps) -> i64 {
    let Stmt::For { kind: LoopKind::Seq, lo, hi, body, .. } = s else { return 1 };
    let nested = body.iter().filter(|_| which == Steps::Nested).map(|s| steps(m, s, which));
    let inside = nested.max().unwrap_or(1);
    m.syms.range(*hi - *lo).hi.map_or(LONG, |n| n.saturating_mul(inside))
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

/// Elements of a piece of a map: enough for a task, and a divisor of the extent if possible.
fn piece(extent: Dim, lanes: i64) -> Option<i64> {
    const LEAST: i64 = 1024;
    match extent.as_const() {
        Some(n) if n < 2 * LEAST => None,
        Some(n) => Some(
            (LEAST / lanes..=4 * LEAST / lanes).map(|k| k * lanes).find(|k| n % k == 0).unwrap_or(2 * LEAST),
        ),
        None => Some(2 * LEAST),
    }
}
