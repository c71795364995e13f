//! Depthwise convolutions: reductions over a window in which both factors have the channels of the result.
//!
//! Vectors run along channels. A block of adjacent results along a row shares the operands of overlapping
//! windows: each weight is loaded once per block, each image element once for all windows that contain it. If
//! the data that adjacent rows share fits in the first-level cache, a task computes some channels of several
//! rows.

mod block;

use crate::nest::schedule::Schedule;
use crate::nest::{Kernel, Math, Module, Stmt};
use crate::passes::nest::analysis::columns::FEWEST_COLUMNS;
use crate::passes::nest::analysis::cost;
use crate::passes::nest::analysis::form::{Contraction, Form, ProductKind, depends};
use crate::passes::nest::analysis::machine::{L1, LINE, SETS, sets_at};
use crate::passes::nest::analysis::shape::nested;
use crate::passes::nest::analysis::strides::{stride, unit_stride_var};
use crate::passes::nest::schedule::contract::{loops::joined, order_reduction};
use crate::passes::nest::schedule::lanes::Relayout;
use crate::passes::nest::schedule::lanes::permuted_loads::vectors_from;
use crate::passes::nest::schedule::{Plan, Request, Within, rows};
use crate::sym::{Dim, Sym};
use block::Block;

/// Maximum taps of a window that are unrolled completely; larger windows keep their outermost loop.
const UNROLLED: i64 = 25;
/// Assumed length of a row of run-time length, and rows per task in that case.
const WIDE: i64 = 32;
const HIGH: i64 = 16;
/// Maximum adjacent results per block.
pub(crate) const MOST_RESULTS: i64 = 8;
/// Minimum blocks of a signal per task.
const PIECE: i64 = 8;

/// A depthwise convolution with channels innermost.
struct Window {
    p: Contraction,
    block: Block,
    /// Loops around the blocks.
    outer: Vec<(Sym, Dim)>,
    rows: Rows,
    work: Dim,
}

/// The share of a task in the rows of results.
enum Rows {
    /// All channels of one or several rows.
    Whole,
    /// All rows: a part of a larger kernel has no tasks of its own.
    All,
    /// All channels of some blocks of a signal.
    Pieces,
    /// Some channels of successive rows: the loop over them, and the partition.
    Some((Sym, Dim), Cut),
}

/// Chooses blocks of adjacent results for a depthwise convolution with channels innermost.
pub(crate) fn choose(m: &mut Module, request: &Request) -> Option<Box<dyn Plan>> {
    let Form::Contraction(p) = request.form else { return None };
    let (out, at) = p.store()?;
    let c = unit_stride_var(m, out, &at, &p.loops).filter(|c| depends(&p.b.1, *c))?;
    let (mut p, mut relayout) = ((**p).clone(), Relayout::new(c));
    p.a = relayout.access(m, p.a);
    if stride(m, p.a.0, &p.a.1, c) != Some(1) {
        return None;
    }
    let lanes = i64::from(request.facts.lanes);
    window(m, request, (p, relayout), (c, lanes), true)
}

/// The same for a convolution in groups of so few channels that a vector contains several groups: lanes load
/// image elements by shuffles.
pub(crate) fn choose_groups(m: &mut Module, request: &Request) -> Option<Box<dyn Plan>> {
    let Form::Contraction(p) = request.form else { return None };
    let lanes = i64::from(request.facts.lanes);
    if !request.facts.caps.shuffles.are_known() {
        return None;
    }
    let (out, at) = p.store()?;
    let k = unit_stride_var(m, out, &at, &p.loops).filter(|k| p.is_only_of_b(*k))?;
    let k = p.loops.iter().copied().find(|l| l.0 == k)?;
    let channels = k.1.as_const().filter(|n| (2..=lanes / 2).contains(n))?;
    let g =
        p.loops.iter().copied().find(|l| p.is_of_both(l.0) && stride(m, out, &at, l.0) == Some(channels))?;
    let all = (g.1 * channels).as_const()?;
    // A vector of several groups requires a shuffle per multiplication, the same one for all vectors: groups
    // begin at the same lanes of each, so a vector holds whole groups.
    let full = if all > lanes { lanes / channels * channels } else { lanes };
    if 2 * g.1.as_const()? < 3 * ((all + full - 1) / full) {
        return None;
    }
    let mut p = (**p).clone();
    let joined = joined(m, &mut p, g, k);
    p.loops.retain(|l| l.0 != g.0 && l.0 != k.0);
    p.loops.push(joined);
    let linear = m.linear(p.a.0, &p.a.1);
    let q = m.syms.loop_var("q", Dim::constant(0), Dim::constant(all / full + 1));
    let used = full.min(all);
    let loads = vectors_from(&m.syms, linear, (joined.0, Dim::sym(q) * full), used, lanes)?;
    // Groups that each have a load may as well each have a vector of their own.
    if loads * channels >= used {
        return None;
    }
    if m.math == Math::Strict && channels >= FEWEST_COLUMNS {
        // The order of register tiles, which other levels may have.
        let row = row_loop(m, &p, joined.0);
        order_reduction(m, &mut p, row, &request.program.borders);
    }
    window(m, request, (p, Relayout::new(joined.0)), (joined.0, full), false)
}

/// Blocks of results with vectors of at most `full` channels `c`, which may or may not be contiguous in the
/// image.
fn window(
    m: &mut Module,
    request: &Request,
    (mut p, mut relayout): (Contraction, Relayout),
    (c, full): (Sym, i64),
    linear: bool,
) -> Option<Box<dyn Plan>> {
    if !p.is_plain() || !matches!(p.product, ProductKind::Fma | ProductKind::Extended) {
        return None;
    }
    p.b = relayout.access(m, p.b);
    relayout.apply(m, &mut p.epilogue);
    let (out, at) = p.store()?;
    let extent = p.loops.iter().find(|l| l.0 == c).and_then(|l| l.1.as_const()).filter(|e| *e >= 4)?;
    if stride(m, p.b.0, &p.b.1, c) != Some(1) {
        return None;
    }
    let step = |s: Sym| stride(m, p.a.0, &p.a.1, s).filter(|d| *d > 0);
    let x = row_loop(m, &p, c)?;
    let taps = p.reduction.iter().map(|d| d.1.as_const()).try_fold(1i64, |n, d| n.checked_mul(d?))?;
    if taps > 4 * UNROLLED {
        return None;
    }
    let width = width(m, &p, x, taps, i64::from(request.facts.registers));
    let block = Block { c, extent, x, width, lanes: i64::from(request.facts.lanes), full, taps };
    // The loop over rows: the next larger stride in the image.
    let mut outer: Vec<(Sym, Dim)> = p.loops.iter().copied().filter(|l| l.0 != c && l.0 != x.0).collect();
    outer.sort_by_key(|l| std::cmp::Reverse(stride(m, out, &at, l.0).unwrap_or(i64::MAX)));
    // If these strides are run-time values, the order of the image's dimensions decides.
    let mut below = outer.iter().copied().filter(|l| !depends(&p.b.1, l.0));
    let dimension = |s: Sym| p.a.1.iter().rposition(|d| d.contains(s)).filter(|i| *i > 0);
    let down = match below.clone().filter(|l| step(l.0).is_some()).min_by_key(|l| step(l.0)) {
        None => below.find(|l| dimension(l.0).is_some_and(|i| Some(i + 1) == dimension(x.0))),
        known => known,
    };
    let down = down.filter(|_| linear);
    let rows = match down.and_then(|y| Some((y, cut(m, &p, (y, x), (extent, block.lanes))?))) {
        Some((y, cut)) => {
            outer.retain(|l| l.0 != y.0);
            Rows::Some(y, cut)
        }
        None if matches!(request.within, Within::Loop(_)) => Rows::All,
        None if outer.len() <= 1 && x.1.as_const().is_none_or(|e| e >= 2 * PIECE * width) => Rows::Pieces,
        None => Rows::Whole,
    };
    let work = cost::work(m, request.body);
    Some(Box::new(Window { p, block, outer, rows, work }))
}

/// The row loop: the smallest stride in the image among loops that the weights do not depend on.
fn row_loop(m: &Module, p: &Contraction, c: Sym) -> Option<(Sym, Dim)> {
    let step = |s: Sym| stride(m, p.a.0, &p.a.1, s).filter(|d| *d > 0);
    let rows = p.loops.iter().copied().filter(|l| l.0 != c && !depends(&p.b.1, l.0));
    rows.filter(|l| step(l.0).is_some()).min_by_key(|l| step(l.0))
}

/// Adjacent results per block along row `x`: as many as have registers for their accumulators and the shared
/// operands, in blocks of equal size. `taps`: steps of the sum.
fn width(m: &Module, p: &Contraction, x: (Sym, Dim), taps: i64, registers: i64) -> i64 {
    let step = |s: Sym| stride(m, p.a.0, &p.a.1, s).filter(|d| *d > 0);
    // Image elements that a row of the window shares with others, per additional result. A sum that is not
    // unrolled has one at a time.
    let last = p.reduction.last().filter(|_| taps <= UNROLLED || p.reduction.len() > 1);
    let inner = last.map_or(1, |d| d.1.as_const().unwrap_or(1));
    let apart = match (last.and_then(|d| stride(m, p.a.0, &p.a.1, d.0)), step(x.0)) {
        (Some(tap), Some(row)) if tap > 0 => (row / tap).clamp(1, inner),
        _ => inner,
    };
    let fits = |n: i64| n + (n - 1) * apart + inner + 2 <= registers;
    let most = (1..=MOST_RESULTS).rev().find(|n| fits(*n)).unwrap_or(1);
    match x.1.as_const() {
        Some(e) => {
            let blocks = (e + most - 1) / most;
            (e + blocks - 1) / blocks
        }
        None => most,
    }
}

impl Plan for Window {
    fn schedule(&self, _: &Module) -> Schedule {
        let b = &self.block;
        let s = Schedule::new("window").vectors(b.lanes, "channels", b.extent.into());
        let taps = if b.taps > UNROLLED {
            self.p.reduction.iter().skip(1).filter_map(|d| d.1.as_const()).product()
        } else {
            b.taps
        };
        let blocks = match &self.rows {
            Rows::Whole | Rows::All => vec![],
            Rows::Pieces => vec![("results of a piece", Dim::constant(PIECE * b.width))],
            Rows::Some(_, cut) => {
                vec![("rows", cut.rows.into()), ("channels", (cut.vectors * b.lanes).into())]
            }
        };
        Schedule {
            tile: vec![("results", b.width), ("vectors", 1)],
            unroll: vec![("taps", taps)],
            blocks,
            ..s
        }
    }
    fn work(&self) -> Dim {
        self.work
    }
    fn apply(self: Box<Self>, m: &mut Module, _: Kernel) -> Vec<Stmt> {
        let Window { p, block: b, outer, rows, .. } = *self;
        match rows {
            Rows::Some(y, cut) => b.cut(m, &p, outer, y, &cut),
            Rows::Pieces => {
                let body = b.columns(m, &p, None);
                b.pieces(m, &p, &outer, body)
            }
            Rows::All => {
                let body = b.columns(m, &p, None);
                nested(m, &outer, body)
            }
            Rows::Whole => {
                let body = b.columns(m, &p, None);
                rows::share(m, outer, body)
            }
        }
    }
}

/// The partition of the work into tasks.
struct Cut {
    /// Rows of the result.
    rows: i64,
    /// Vectors of channels.
    vectors: i64,
}

/// Tasks of a few channels and many rows: the image elements that adjacent rows share then come from the
/// first-level cache. `None` if they do not fit: tasks of all channels and a few adjacent rows are better
/// then, since channels are contiguous.
fn cut(
    m: &Module,
    p: &Contraction,
    (y, x): ((Sym, Dim), (Sym, Dim)),
    (extent, lanes): (i64, i64),
) -> Option<Cut> {
    // Share of the first-level cache; the weights and the results use the rest.
    const CACHE: i64 = L1 * 5 / 6;
    const TASKS: i64 = 16;
    let step = |s: Sym| stride(m, p.a.0, &p.a.1, s).filter(|d| *d > 0);
    let (high, wide) = (y.1.as_const().unwrap_or(HIGH), x.1.as_const().unwrap_or(WIDE));
    // Channels in memory between pixels: pixels of so many lines are distributed over all sets of the cache.
    let pixel = p.reduction.iter().filter_map(|d| step(d.0)).chain(step(x.0)).min()? * 4;
    let lines = if pixel % LINE == 0 { SETS / sets_at(pixel) } else { 1 };
    let vectors = lines * (LINE / (4 * lanes)).max(1);
    // Extent of a window beyond its first element, along a row and across rows.
    let taps = |l: Sym| {
        p.reduction
            .iter()
            .filter(|d| step(d.0).is_some_and(|s| step(l).is_some_and(|own| s <= own)))
            .filter_map(|d| Some((step(d.0)?, d.1.as_const()?)))
            .max_by_key(|t| t.0)
    };
    let far =
        p.reduction.iter().find(|d| step(d.0).is_none()).and_then(|d| Some((i64::MAX, d.1.as_const()?)));
    let below = if step(y.0).is_some() { taps(y.0) } else { far };
    let ((tap_y, rows), (tap_x, columns)) = (below?, taps(x.0)?);
    let window = (rows * (wide * step(x.0)? / tap_x + columns) + rows * columns) * lines * LINE;
    let groups = (extent + lanes * vectors - 1) / (lanes * vectors);
    if window > CACHE
        || groups < 2
        || extent % lanes != 0 && vectors > 1
        || extent % (lanes * vectors) != 0 && vectors > 1
        || tap_y == tap_x
    {
        return None;
    }
    if y.1.as_const().is_none() {
        return Some(Cut { rows: HIGH, vectors });
    }
    let blocks = ((TASKS + groups - 1) / groups).min(high).max(1);
    Some(Cut { rows: (high + blocks - 1) / blocks, vectors })
}
