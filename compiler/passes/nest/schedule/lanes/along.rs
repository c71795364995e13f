//! Vectors along the contiguous dimension of the result.

use super::body::{Adjacent, in_pieces, renamed};
use super::in_blocks::{FEW, InBlocks, Last};
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
use crate::nest::form::first_store;
use crate::nest::schedule::Schedule;
use crate::nest::{Expr, LoopKind, Module, Stmt, visit};
use crate::passes::nest::analysis::lanes64;
use crate::passes::nest::analysis::shape::{ParNest, wrap};
use crate::passes::nest::analysis::strides::{stride, unit_stride_var};
use crate::passes::nest::analysis::vectors::Needs;
use crate::sym::{Dim, Sym};

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
fn along(m: &mut Module, mut nest: ParNest, (var, whole): (Sym, bool), vectors: Vectors) -> Option<Along> {
    let var = join_loops(m, &mut nest, var, vectors);
    let outside = uniform_indices::hoist(&mut nest, var);
    let needs = Needs::of(m, &nest.body);
    let (vectors, plain) = (vectors.of(&needs), needs.straight);
    let (lanes, caps) = (vectors.lanes, vectors.caps);
    let extent = nest.loops.iter().find(|l| l.0 == var)?.1;
    // Two or three elements are worth a vector if it can be masked.
    let least = match caps.masks {
        true if plain => 2,
        true if !waits(m, &nest.body, Steps::Outer) => 3,
        _ => 4,
    };
    if extent.as_const().is_some_and(|c| c < least) {
        return None;
    }
    let told = Some(extent).filter(|_| plain && caps.shuffles.are_known());
    let mut inside = None;
    if !suits(m, &needs, var, vectors, told) {
        let may_run = |m: &Module, body: &[Stmt]| suits(m, &Needs::of(m, body), var, vectors, None);
        let mut row = peel_edges::Row::of(m, &nest.body, (var, extent), lanes, Ends::Elements)
            .filter(|row| plain && may_run(m, &row.inner))?;
        row.find_beside(m, &nest.body, extent, (lanes, &may_run));
        inside = Some(row);
    }
    let mut relayout = Relayout::new(var);
    relayout.apply(m, &mut nest.body);
    if let Some(row) = &mut inside {
        relayout.apply(m, &mut row.inner);
    }
    let pieces = piece(extent, lanes).filter(|_| nest.loops.len() == 1);
    let staging = || whole.then(|| stage_through_scratch::choose(m, &nest, var, lanes)).flatten();
    let how = match inside {
        Some(row) => How::Inside(row, pieces),
        None if plain => of_map(m, &nest.body, (var, extent), pieces, vectors),
        None => staging().map_or_else(|| in_blocks(m, &nest.body, extent, vectors), How::Staged),
    };
    let share = || rows_abreast::share_indices(m, &nest, (var, extent), &outside);
    let how = match how {
        How::Loop if caps.shuffles.are_computed() && share() => How::Apart(Pieces::Windows { vectors: 1 }),
        how => how,
    };
    let (how, beside) = interleaved(m, &nest, (var, extent), how, vectors);
    let window = beside.window.map(|w| w.inside(!whole));
    let differs = m.syms.has_loops(extent);
    let most = m.syms.range(extent).hi.filter(|_| differs);
    let shown = most.map_or(extent, Dim::constant);
    let halves = caps.shuffles.are_known() && nest.loops.len() > 1 && skips(m, &nest.body, var);
    let last = match how {
        _ if !m.optimize.may_grow() || !caps.masks => Last::Single,
        How::Blocks(2..) if !differs => Last::Blocks,
        _ if halves => Last::Halves,
        _ => Last::Single,
    };
    Some(Along { nest, var, extent, shown, lanes, outside, how, blocks: beside.blocks, window, last })
}

/// Joins the loop that vectors run along with loops around it where this makes longer rows. The loop that
/// vectors then run along.
fn join_loops(m: &mut Module, nest: &mut ParNest, var: Sym, vectors: Vectors) -> Sym {
    let var = collapse(m, nest, var).unwrap_or(var);
    fuse_rows(m, nest, var);
    let permutes = vectors.caps.shuffles.are_known() || vectors.caps.indexed;
    if !permutes || lanes64::has(m, &nest.body) {
        return var;
    }
    permuted_loads::interleave(m, nest, var, vectors).unwrap_or(var)
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

/// Iterations of loops around vectors that are interleaved with these.
#[derive(Default)]
struct Beside {
    window: Option<WindowRows>,
    blocks: Vec<Block>,
}

/// What is interleaved with vectors of sums, and the sequence of these.
fn interleaved(
    m: &Module,
    nest: &ParNest,
    (var, extent): (Sym, Dim),
    how: How,
    vectors: Vectors,
) -> (How, Beside) {
    let (How::Row(side) | How::Blocks(side)) = how else { return (how, Beside::default()) };
    if vectors.caps.by_lane
        && matches!(how, How::Blocks(_))
        && let Some(row) = shared_rows(m, nest, var, side)
    {
        return (how, Beside { blocks: vec![Block::of_two(row)], window: None });
    }
    // Rows and results in place of adjacent vectors, which a row of run-time length may not have.
    let alone = extent.as_const().is_none();
    let side = if alone { 1 } else { side };
    let mut beside = Beside::default();
    if !vectors.caps.by_lane {
        beside.window = window_rows::choose(m, nest, var, side, vectors.registers);
    }
    if beside.window.is_none() && waits(m, &nest.body, Steps::Nested) {
        beside.blocks = sums_abreast::choose(m, nest, var, side, vectors.registers);
    }
    let replaces = alone && (beside.window.is_some() || !beside.blocks.is_empty());
    (if replaces { How::Blocks(1) } else { how }, beside)
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
            How::Row(count) => {
                let row = Adjacent { var, base: zero, count, lanes: (lanes, extent.modulo(lanes)) };
                match window {
                    Some(w) => w.apply(m, &nest.body, &mut others, |m, body| row.in_lanes(m, &body)),
                    None => row.in_lanes(m, &nest.body),
                }
            }
            How::Blocks(side) => {
                let row = InBlocks { var, extent, lanes, side, last };
                match window {
                    Some(w) => w.apply(m, &nest.body, &mut others, |m, body| row.apply(m, body)),
                    None => row.apply(m, row.unrolled(nest.body)),
                }
            }
            How::Staged(staging) => return staging.apply(m, &nest, var, lanes),
        };
        m.syms.set_loop_range(var, zero, extent);
        let out = sums_abreast::apply(m, &blocks, &mut others, out);
        wrap(&others, out)
    }
}

/// Maximum vectors whose sums are abreast: two additions per cycle with a latency of four cycles.
const ABREAST: i64 = 8;
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
