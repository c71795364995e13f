//! Contractions (MatMul, Gemm, Conv, ...): packed weights and register tiles.
//!
//! Operators write a `par` nest around `acc = 0; seq nest { acc = fma(A, B, acc) }; store`. Loop variables
//! are classified by their occurrences: the column variable n occurs in B only (vectors run along it), row
//! variables in A only, batch variables in both. B is packed into panels `[batch][ceil(N / nr)][K ..][nr]`
//! (constants by a lazy rearrangement, others by a kernel), so that the inner loop reads it sequentially
//! whatever its layout was (Goto, van de Geijn: Anatomy of High-Performance Matrix Multiplication). The width
//! of panels does not depend on the CPU level, so that levels share them; `tiles` emits the loops.

pub(crate) mod loops;
mod panels;
mod staged;

use crate::nest::schedule::Schedule;
use crate::nest::{BinOp, DotKind, Expr, Kernel, Math, Module, Place, Stmt, visit};
use crate::passes::nest::analysis::borders::Borders;
use crate::passes::nest::analysis::columns::{FEWEST_COLUMNS, fuller_row};
use crate::passes::nest::analysis::form::{Contraction, Form, ProductKind};
pub(crate) use crate::passes::nest::analysis::form::{Contraction as Parts, ProductKind as Product, depends};
use crate::passes::nest::analysis::gates::is_fixed;
use crate::passes::nest::analysis::machine::{L1, L2, PAGE};
use crate::passes::nest::analysis::strides::{stride, unit_stride_var};
use crate::passes::nest::schedule::lanes::permuted_loads::is_near;
use crate::passes::nest::schedule::tiles::{self, Deep, Loops, MOST_ROWS, Plane, Tile, Wanted};
use crate::passes::nest::schedule::{Plan, Request, Within, clip, pack};
use crate::sym::{Answer, Dim, Sym};
use crate::target::{Caps, Dot, Facts};
use crate::tensor::ElemType;
use loops::{collapse_columns, collapse_rows, joined, split_phases};
pub(crate) use panels::{Columns, ConstPanels, Packed, Packing, constant_panels, packing, runs_in_vectors};

/// The vector properties of a level for a kind of product.
fn facts_of(product: ProductKind, facts: Facts) -> Facts {
    match product {
        // If Cranelift splits vectors, each lane of an accumulator occupies a register.
        ProductKind::Double if !facts.caps.long_lanes => {
            Facts { registers: facts.registers / facts.lanes, ..facts }
        }
        ProductKind::Double => Facts { lanes: facts.lanes / 2, ..facts },
        _ => facts,
    }
}

/// Registers occupied by byte products that are composed of other instructions: elements of rows, tables,
/// 16-bit products.
const WORDS_APART: u32 = 11;
/// Further ones where the bytes come in vectors of eights.
const HALVES_APART: u32 = 4;

/// True for products of eights on a level that makes two products of quads of them.
fn halves_eights(product: ProductKind, caps: Caps) -> bool {
    product.pairs_rows() && !caps.dot.has_matrices()
}

/// Facts for tiles over panels, which are those of levels with an instruction for the product. A composed
/// product reads elements of rows as separate vectors. Vectors of eights that become vectors of quads need
/// registers for both.
fn facts_of_tiles(product: ProductKind, facts: Facts) -> Facts {
    let halved = halves_eights(product, facts.caps);
    match product {
        ProductKind::Dot { group, .. } if group.is_bytes() && facts.caps.dot == Dot::QuadsInWords => Facts {
            registers: facts.registers - WORDS_APART - if halved { HALVES_APART } else { 0 },
            caps: Caps { by_lane: false, ..facts.caps },
            ..facts
        },
        _ if halved => Facts { registers: facts.registers - 1, ..facts },
        _ => facts,
    }
}

/// A contraction with classified loops, fused where memory is contiguous across them.
pub(crate) struct Axes {
    /// The contraction.
    pub p: Contraction,
    /// The columns, in panels.
    pub columns: Columns,
    /// Loops that both operands depend on, or neither.
    pub batch: Vec<(Sym, Dim)>,
    /// Row loops outside the tile's own.
    pub rows: Vec<(Sym, Dim)>,
    /// The tile's row loop.
    row: Option<(Sym, Dim)>,
    /// Combined rows of the two innermost row loops, if these are short.
    several: Option<i64>,
    /// Rows at most.
    pub most: i64,
    /// The vector properties of the level for the product.
    pub facts: Facts,
    /// The kernel whose multiplication is a part of the contraction ([`Contraction::gate`]).
    gate: Option<Kernel>,
}

impl Axes {
    /// The axes of a contraction that tiles can compute, with the factors of its steps if no row or column of a
    /// tile changes them.
    pub fn of(m: &mut Module, request: &Request) -> Option<Axes> {
        let axes = Axes::new(m, request, true)?;
        let fixed = |s: Option<Sym>| s.is_none_or(|s| is_fixed(&axes.p, s));
        let suits = axes.most >= GATED_ROWS && fixed(Some(axes.columns.n)) && fixed(axes.row.map(|r| r.0));
        if axes.gate.is_none() || suits { Some(axes) } else { Axes::new(m, request, false) }
    }
    /// The same; `gates`: with factors.
    fn new(m: &mut Module, request: &Request, gates: bool) -> Option<Axes> {
        let Form::Contraction(p) = request.form else { return None };
        let mut p = (**p).clone();
        if matches!(p.product, ProductKind::Bytes | ProductKind::Extended) {
            return None;
        }
        let facts = facts_of(p.product, request.facts);
        p.whole = request.within == Within::Kernel;
        let gate = if gates && p.whole { request.program.gates.fuse(m, request.k, &mut p) } else { None };
        split_phases(m, &mut p);
        let n = columns(m, &mut p, facts)?;
        let (n, extent) = collapse_columns(m, &mut p, n)?;
        if extent.as_const().is_some_and(|c| c < least_columns(m, &p, n, facts)) {
            return None;
        }
        let mut rows: Vec<(Sym, Dim)> = p.loops.iter().copied().filter(|l| p.is_only_of_a(l.0)).collect();
        let others = |l: &(Sym, Dim)| l.0 != n && !rows.iter().any(|r| r.0 == l.0);
        let batch: Vec<(Sym, Dim)> = p.loops.iter().copied().filter(others).collect();
        if !keeps_rows_of_image(m, &p, &request.program.borders, &rows) {
            collapse_rows(m, &mut p, &mut rows, n);
        }
        if !m.is_constant(p.b.0) {
            known_last(m, &mut rows);
        }
        let row = rows.pop();
        order_reduction(m, &mut p, row, &request.program.borders);
        begin_with_constant(m, &mut p, facts.caps);
        // Short rows of an image: a tile contains several, if registers suffice.
        let joins = rows.last().is_none_or(|outer| is_fixed(&p, outer.0));
        let several = short_rows(&rows, row).filter(|_| joins);
        let most = match (several, row) {
            (Some(n), _) => n,
            (None, Some(r)) => m.syms.range(r.1).hi.unwrap_or(i64::MAX),
            (None, None) => 1,
        };
        let unit = p.product.unit(facts.lanes);
        // A version of a kernel for one row shares the panels of that for a run-time number of rows.
        let rows_of_a = &m.bufs[m.storage(p.a.0)].dims;
        let shared = most == 1 && m.is_constant(p.b.0) && rows_of_a.iter().any(|d| d.as_const().is_none());
        let mut nr = tiles::panel(if shared { i64::MAX } else { most }, extent, unit);
        let known = row.and_then(|r| r.1.as_const()).filter(|r| *r > 1);
        let joins = |all: i64| known.is_some_and(|short| tiles::rows_of_panel(nr, all, facts) >= 2 * short);
        if tiles::chooses_by_rows(p.product.pairs_rows(), facts)
            && !several.is_some_and(joins)
            && let (Some(rows), columns @ Some(_)) = (known, extent.as_const())
        {
            nr = Plane { rows, columns, halves_eights: false }.panel(unit_by_lane(m, &p, facts), facts);
        }
        let columns = Columns { n, extent, nr };
        let facts = facts_of_tiles(p.product, facts);
        Some(Axes { p, columns, batch, rows, row, several, most, facts, gate })
    }
    /// Tiles that read B as `packing` says.
    pub fn tiled(self, m: &mut Module, request: &Request, packing: Packing) -> Tiled {
        let Axes { mut p, columns, batch, mut rows, mut row, most, facts, gate, .. } = self;
        request.program.asked.set(request.program.asked.get() || gate.is_some());
        let Columns { n, extent, nr } = columns;
        let depth = Dim::product(p.reduction.iter().map(|d| d.1));
        let turn = alternating_loop(m, &p, &batch, request.within, most, depth * extent);
        let mut together = 1;
        if let (Some(all), Some((_, short))) = (self.several, row)
            && let Some(short) = short.as_const()
            && tiles::rows_of_panel(nr, all, facts) >= 2 * short
            && (short * nr < LEAST_SUMS * i64::from(facts.lanes)
                || !clip::omits_many(m, &p, &request.program.borders, (row, short)))
        {
            row = rows.pop().and_then(|outer| Some(joined(m, &mut p, outer, row?)));
            together = short;
        }
        let apart = row
            .and_then(|r| stride(m, p.a.0, &p.a.1, r.0))
            .map_or(0, |s| s * i64::from(m.bufs[p.a.0].ty.bytes().unwrap_or(1)));
        let crowded = apart != 0 && apart % PAGE == 0;
        let shallow = tiles::is_shallow(&p);
        let halves = tiles::sums_halves(m, &p, facts.caps);
        let halves_eights = halves_eights(p.product, facts.caps);
        let pairs_rows = p.product.pairs_rows() && !halves_eights;
        let wanted = Wanted {
            row,
            together,
            most,
            columns,
            batch,
            crowded,
            shallow,
            halves,
            pairs_rows,
            halves_eights,
        };
        let tile = Tile::new(wanted, packing, facts).clipped(m, &p, &request.program.borders);
        let loops = Loops::new(m, &p, &tile, &rows);
        // Blocks of rows are for the threads; a run-time number of panels is assumed to suffice.
        let enough = rows.is_empty() && tile.n_extent.as_const().is_none();
        let once = p.whole && (enough || loops.use_panels_once(&rows)) && staged::pays(m, &p, &tile);
        let tile = if once { tile.read_from(Packing::staged) } else { tile };
        let work = work(m, &p, n, p.product.unit(facts.lanes), request.program.large);
        let work = if let Packing::Task(panels) = &tile.panels { work + panels.work() } else { work };
        let deep = if rows.is_empty() && turn.is_none() { Deep::new(m, &p, &tile) } else { None };
        Tiled { p, rows, tile, loops, deep, turn, work, gate }
    }
}

/// Minimum rows of a contraction whose tiles multiply by the factors of steps: as many multiplications of each
/// element of B.
const GATED_ROWS: i64 = 4;

/// True if tiles within the rows of an image omit so many steps that the innermost row loop is not fused with
/// the one outside it.
fn keeps_rows_of_image(m: &Module, p: &Contraction, borders: &Borders, rows: &[(Sym, Dim)]) -> bool {
    let Some(row) = rows.last().filter(|r| r.1.as_const().is_some_and(|n| n >= LEAST_SUMS)) else {
        return false;
    };
    let mut p = p.clone();
    order_reduction(m, &mut p, Some(*row), borders);
    clip::surely_omits_many(m, &p, borders, (Some(*row), MOST_ROWS))
}

/// Fewest accumulators of tiles within the rows of an image: the latency of fewer takes longer than what
/// these omit.
const LEAST_SUMS: i64 = 6;

/// A contraction in register tiles.
pub(crate) struct Tiled {
    p: Contraction,
    /// Row loops outside the tile's own.
    rows: Vec<(Sym, Dim)>,
    tile: Tile<Packing>,
    loops: Loops,
    /// Blocks of the reduction, if it is so long.
    deep: Option<Deep>,
    /// The loop whose odd iterations read the weights backwards.
    turn: Option<Sym>,
    work: Dim,
    /// See [`Axes`].
    gate: Option<Kernel>,
}

/// Chooses register tiles for a contraction, which is a kernel or a nest within one.
pub(crate) fn choose(m: &mut Module, request: &Request) -> Option<Box<dyn Plan>> {
    let axes = Axes::of(m, request)?;
    let site = pack::Site { uses: &request.program.uses, k: request.k, facts: axes.facts };
    let packing = packing(m, &site, &axes.p, &axes.batch, axes.columns)?;
    // Packing may include the map that makes the operand.
    let packs = matches!(packing, Packing::Kernel(_));
    request.program.asked.set(request.program.asked.get() || packs);
    if axes.most == 1 && packs && axes.reads_near(m) {
        return None;
    }
    Some(Box::new(axes.tiled(m, request, packing)))
}

impl Axes {
    /// True if the columns of a vector lie in a few adjacent vectors of B: a single row reads each element
    /// once, and permutes what it loads at the cost of packing it.
    fn reads_near(&self, m: &Module) -> bool {
        let step = stride(m, self.p.b.0, &self.p.b.1, self.columns.n);
        // The order of sums is that of levels without shuffles.
        m.math != Math::Strict
            && self.facts.caps.shuffles.are_known()
            && step.is_some_and(|s| s > 1 && is_near(s))
    }
}

impl Plan for Tiled {
    fn schedule(&self, m: &Module) -> Schedule {
        if let Some(deep) = self.deep {
            return deep.describe(m, &self.p, &self.tile);
        }
        let s = tiles::describe(m, &self.p, &self.tile, &self.loops, !self.rows.is_empty());
        let order = if self.turn.is_some() { vec!["weights forwards and backwards in turn"] } else { vec![] };
        Schedule { order: s.order.into_iter().chain(order).collect(), ..s }
    }
    fn work(&self) -> Dim {
        self.work
    }
    fn apply(self: Box<Self>, m: &mut Module, k: Kernel) -> Vec<Stmt> {
        let Tiled { p, rows, tile, loops, deep, turn, gate, .. } = *self;
        if let Some(gone) = gate {
            visit::drop_calls(&mut m.driver, &|x| x == gone);
        }
        if let Packing::Task(_) = tile.panels {
            return staged::emit(m, k, &p, tile);
        }
        let mut t = tile.read_from(|packing| packing.apply(m, k, &p));
        if let Some(deep) = deep {
            return deep.emit(m, k, &p, t);
        }
        let body = tiles::emit(m, &p, &t, &loops, &rows);
        let Some(turn) = turn else { return body };
        t.reverse();
        let back = tiles::emit(m, &p, &t, &loops, &rows);
        vec![Stmt::If {
            cond: Expr::cmp_index(BinOp::Eq, Dim::sym(turn).modulo(2), 0),
            then: body,
            els: back,
        }]
    }
}

/// The unit of panel widths where elements of rows are lanes of vectors. All levels of such a machine have
/// vectors of one length, so panels may be as wide as any tile, without columns of zeros. Panels that some
/// level reads in longer units keep those.
fn unit_by_lane(m: &Module, p: &Contraction, facts: Facts) -> i64 {
    let halves = m.math == Math::Fast && m.bufs[p.b.0].ty == ElemType::F16;
    match p.product {
        ProductKind::Fma if !halves => i64::from(facts.lanes),
        product => product.unit(facts.lanes),
    }
}

/// Minimum columns of a tile: two if they are contiguous in the result, vectors may be partial, and no other
/// loop is contiguous: the pixels of an image of few channels.
fn least_columns(m: &Module, p: &Contraction, n: Sym, facts: Facts) -> i64 {
    let beside = p.store().is_some_and(|(out, at)| stride(m, out, &at, n) == Some(1));
    let row = p.loops.iter().any(|l| l.0 != n && stride(m, p.a.0, &p.a.1, l.0) == Some(1));
    let extent = p.loops.iter().find(|l| l.0 == n).and_then(|l| l.1.as_const());
    if beside && !row && facts.caps.has_partial(extent) && p.product == ProductKind::Fma {
        2
    } else {
        FEWEST_COLUMNS
    }
}

/// The column: a loop that only B depends on, contiguous in the result if possible. The operands of a matrix
/// product may be swapped for that, and those of a convolution if vectors along rows are fuller.
fn columns(m: &Module, p: &mut Contraction, facts: Facts) -> Option<Sym> {
    let (out, at) = p.store()?;
    let next = unit_stride_var(m, out, &at, &p.loops);
    let taps = || fuller_row(m, p, true).is_some_and(|row| runs_in_vectors(row.1, facts));
    let exchanges = !matches!(p.product, ProductKind::Dot { group: DotKind::WordsByBytes, .. });
    if exchanges && next.is_some_and(|v| p.is_only_of_a(v)) && (p.reduction.len() == 1 || taps()) {
        std::mem::swap(&mut p.a, &mut p.b);
        if let ProductKind::Dot { group: DotKind::Bytes | DotKind::LongBytes, swapped } = &mut p.product {
            *swapped = !*swapped;
        }
    }
    let only_b = |v: &Sym| p.is_only_of_b(*v);
    next.filter(only_b).or_else(|| p.loops.iter().rev().map(|l| l.0).find(only_b))
}

/// Orders the reduction loops so that the innermost has the smallest stride in A: channels of images, columns
/// of matrices.
pub(crate) fn order_reduction(m: &Module, p: &mut Contraction, row: Option<(Sym, Dim)>, borders: &Borders) {
    let step = |s: Sym| stride(m, p.a.0, &p.a.1, s).map_or(i64::MAX, i64::abs);
    p.reduction.sort_by_key(|d| std::cmp::Reverse(step(d.0)));
    // Exception: a loop with the stride of the rows. Its unrolled steps would share elements of A, and keep
    // them in registers that the accumulators need.
    let between = row.and_then(|r| stride(m, p.a.0, &p.a.1, r.0)).map_or(0, i64::abs);
    let shares = |d: &(Sym, Dim)| {
        let s = step(d.0);
        s < between * 16 && d.1.as_const().is_none_or(|n| s.saturating_mul(n - 1) >= between)
    };
    if p.reduction.last().is_some_and(shares)
        && let Some(i) = p
            .reduction
            .iter()
            .rposition(|d| !shares(d) && clip::clip(m, p, borders, (row, MOST_ROWS), *d).is_none())
            .or_else(|| p.reduction.iter().rposition(|d| !shares(d)))
    {
        let d = p.reduction.remove(i);
        p.reduction.push(d);
    }
}

/// Work of the contraction with columns `n`, whose panels have a multiple of `unit` columns. `large`: see
/// `Program::large`.
fn work(m: &Module, p: &Contraction, n: Sym, unit: i64, large: bool) -> Dim {
    let all = |loops: &mut dyn Iterator<Item = &(Sym, Dim)>| Dim::product(loops.map(|l| l.1));
    // Partial vectors take as long as whole ones.
    let lanes = |l: &(Sym, Dim)| if l.0 == n { l.1.ceil_div(unit) * unit } else { l.1 };
    let work = (Dim::product(p.loops.iter().chain(&p.reduction).map(lanes)) * 2).floor_div(8);
    // With few rows, the loads of the weights dominate.
    let read = all(&mut p.loops.iter().filter(|l| depends(&p.b.1, l.0)).chain(&p.reduction));
    let waits = large && m.is_constant(p.b.0) && m.syms.le(work, read * READ) == Answer::Yes;
    if waits { read * READ } else { work }
}

/// A reduction to which a constant is added begins with the constant: integer sums always, floating-point
/// ones if an addition reads registers only, so that the initial value costs nothing.
fn begin_with_constant(m: &Module, p: &mut Contraction, caps: Caps) {
    let ty = p.product.ty();
    let begins = match p.product {
        ProductKind::Dot { group, .. } => group.sum() == ElemType::I32,
        ProductKind::Fma => {
            (caps.by_lane || caps.by_scalar)
                && m.math != Math::Strict
                && !tiles::multiplies_halves(m, p, caps)
        }
        _ => false,
    };
    if !begins {
        return;
    }
    let constant = |e: &Expr| {
        e.loaded().is_some_and(|b| m.bufs[b].ty == ty && matches!(m.bufs[b].place, Place::Const(_)))
    };
    let acc = p.acc;
    // The constant may be either operand.
    let term = |e: &Expr| match e {
        Expr::Bin(BinOp::Add, x, y) if x.is_acc(acc) && constant(y) => Some((**y).clone()),
        Expr::Bin(BinOp::Add, x, y) if y.is_acc(acc) && constant(x) => Some((**x).clone()),
        _ => None,
    };
    let (mut sums, mut terms) = (0, vec![]);
    visit::walk_exprs(&p.epilogue, &mut |e| {
        sums += usize::from(e.is_acc(acc));
        terms.extend(term(e));
    });
    let (1, [start]) = (sums, terms.as_slice()) else { return };
    p.start = Some(start.clone());
    // Once only: after the rewrite, the sum may be an operand of another addition.
    let mut left = true;
    let mut without = |e: Expr| match e {
        Expr::Bin(BinOp::Add, x, y)
            if left && (*x == *start && y.is_acc(acc) || *y == *start && x.is_acc(acc)) =>
        {
            left = false;
            if x.is_acc(acc) { *x } else { *y }
        }
        e => e,
    };
    p.epilogue = std::mem::take(&mut p.epilogue).into_iter().map(|s| s.rewrite_exprs(&mut without)).collect();
}

/// Work of loading a weight from beyond the second-level cache, in scalar operations as in
/// `KernelData::work`.
const READ: i64 = 6;

/// The loop whose odd iterations read the weights backwards, beginning with those that are still in the
/// first-level cache: it reads the same weights repeatedly for a few rows, and they exceed that cache but not
/// the second.
fn alternating_loop(
    m: &Module,
    p: &Contraction,
    batch: &[(Sym, Dim)],
    within: Within,
    rows: i64,
    weights: Dim,
) -> Option<Sym> {
    let Within::Loop(Some(s)) = within else { return None };
    let constant = m.is_constant(p.b.0) && !batch.iter().any(|b| depends(&p.b.1, b.0));
    let bytes = weights.as_const()? * i64::from(m.bufs[p.b.0].ty.bytes()?);
    (constant && rows <= 4 && !depends(&p.b.1, s) && (L1 / 2..=L2 / 2).contains(&bytes)).then_some(s)
}

/// Combined rows of the two innermost row loops, if both extents are known and the inner one is so short that
/// a tile may contain several.
fn short_rows(outer: &[(Sym, Dim)], inner: Option<(Sym, Dim)>) -> Option<i64> {
    let (outer, inner) = (outer.last()?.1.as_const()?, inner?.1.as_const()?);
    (outer > 1 && (2..=tiles::MOST_ROWS / 2).contains(&inner)).then_some(outer * inner)
}

/// Moves a row loop of known extent that nearly fills a tile to the innermost position, if the innermost one
/// may have few iterations at run time: heads that share keys, while a decoder processes one token.
fn known_last(m: &Module, rows: &mut Vec<(Sym, Dim)>) {
    const FULL: i64 = MOST_ROWS / 3;
    let Some((_, last)) = rows.last() else { return };
    if last.as_const().is_some() || m.syms.range(*last).lo.is_some_and(|lo| lo >= FULL) {
        return;
    }
    let fills = |d: &Dim| d.as_const().is_some_and(|n| (FULL..=MOST_ROWS).contains(&n));
    if let Some(i) = rows.iter().rposition(|r| fills(&r.1)) {
        let row = rows.remove(i);
        rows.push(row);
    }
}
