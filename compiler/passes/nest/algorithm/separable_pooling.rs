//! separable_pooling: pooling of an image that an input provides with channels first, and whose result is an
//! output.
//!
//! Transposing such an image to channels innermost and back takes longer than pooling it. The reduction of a
//! window (a maximum, a sum) is applied first to the rows of the window, then to its columns:
//!
//! ```text
//! par s { private q of s { seq i in planes of s {
//!     rows[q, y, j] = max over k of x[i, Y y + k - p, j]  whole vectors of neighbours, and no condition:
//!     out[i, y, x]  = max over k of rows[q, y, X x + k]   windows at the upper and lower edge are told apart
//! } } }
//! ```
//!
//! The rows of a plane are scratch of a task, which uses them for all of its planes: they stay in the cache.
//! They are padded once with the initial value of the reduction, which replaces the padded copy of the image.
//! A depthwise convolution with overlapping windows stores the whole plane there, padded with zeros. Rows
//! that are shorter than a vector prefer channels innermost: if only run time knows their length, the driver
//! chooses.

use crate::diag::Result;
use crate::nest::{
    BinOp, Buf, Expr, Kernel, KernelBuilder, KernelData, Math, Module, Place, Reg, Scalar, Stmt, visit,
};
use crate::passes::nest::analysis::form::{Slide, Stored, stored};
use crate::passes::nest::analysis::machine::{L2, THREADS, slots};
use crate::passes::nest::analysis::shape::{Uses, fresh_regs, in_prepared_slots, is_temp};
use crate::passes::nest::layout::choose_layouts::FEW;
use crate::sym::{Dim, Sym};
use crate::target::Facts;
use crate::tensor::ElemType;

/// Windows of as many elements are read directly where nothing surrounds the image.
const SMALL: i64 = 4;

/// Maximum taps of a depthwise convolution in place with vectors that have no masks. Vectors of successive
/// rows are not aligned to cache lines, which costs more for each tap than transposing the image once.
const MOST: i64 = 12;

/// Maximum taps with longer vectors, whose schedule shares the loads of adjacent rows (`window_rows`).
const MOST_SHARED: i64 = 64;

/// What transposing an image to channels innermost and back takes more than copying it to padded rows, in
/// multiplications of a vector for each vector of the result.
const TRANSPOSE: i64 = 3;

/// Shortest result row worth pooling in place: its vectors are whole for the most part, several at a time.
const WIDE: i64 = 28;
/// Fewest channels for which transposing a shorter row to channels innermost is cheaper instead.
const CHANNELS: i64 = 16;
/// Largest image, in bytes, for which that holds: with its copies it stays in the second-level cache.
const CACHED: i64 = L2 / 2;

/// Shortest result row of a depthwise convolution that is worth it if only run time knows its length.
const LONG: i64 = 13;
/// Most tasks, and parts of scratch: with few of them, successive planes use the same cache lines.
const TASKS: i64 = 2 * THREADS;

/// A number that is equal for CPU levels that compute the same windows by rows.
pub fn variant(m: &Module, facts: &Facts) -> u32 {
    let uses = Uses::new(m);
    let chosen = |k: Kernel| facts.lanes > 1 && pool(m, &uses, k, *facts).is_some();
    let calls = visit::calls(&m.driver);
    (0..)
        .zip(calls)
        .filter(|(_, k)| chosen(*k))
        .fold(1, |all: u32, (i, _): (u32, _)| (all ^ i).wrapping_mul(0x0100_0193))
}

/// Runs the pass.
pub fn run(m: &mut Module, facts: Facts) -> Result<()> {
    if facts.lanes == 1 {
        return Ok(());
    }
    let uses = Uses::new(m);
    let calls = uses.order.iter().copied().filter(|_| !uses.is_repeated());
    let found: Vec<_> = calls.filter_map(|k| Some((k, pool(m, &uses, k, facts)?))).collect();
    for (k, p) in found {
        let body = emit(m, &p);
        let taps = if p.weights.is_some() { p.y.taps * p.x.taps } else { p.y.taps + p.x.taps };
        let work = Dim::product(p.planes.iter().copied()) * (p.y.results * p.x.results * taps);
        let work = work.floor_div(8);
        match p.is_long(m) {
            Some(when) => choose_at_run_time(m, k, when, &p, (body, work)),
            None => {
                m.kernels[k].body = body.into();
                m.kernels[k].work = work;
                visit::drop_calls(&mut m.driver, &|k| p.padding.contains(&k));
            }
        }
    }
    Ok(())
}

/// The driver calls a version of the kernel with this body and work under a condition, and otherwise the
/// kernel and those that pad its image.
fn choose_at_run_time(m: &mut Module, k: Kernel, when: Expr, p: &Pool, (body, work): (Vec<Stmt>, Dim)) {
    let name = format!("{}.rows", m.kernels[k].name);
    let version = KernelData { name, body: fresh_regs(m, &body).into(), work, ..m.kernels[k].clone() };
    let version = m.kernels.push(version);
    visit::drop_calls(&mut m.driver, &|k| p.padding.contains(&k));
    let els = p.padding.iter().chain([&k]).map(|k| Stmt::Call(*k)).collect();
    let then = vec![Stmt::Call(version)];
    visit::splice_call(&mut m.driver, k, false, vec![Stmt::If { cond: when, then, els }]);
}

/// The window along one dimension: result o and tap k access element `step o + dilation k + first`.
struct Side {
    var: Sym,
    tap: Option<Sym>,
    results: Dim,
    size: Dim,
    step: i64,
    taps: i64,
    dilation: i64,
    first: i64,
}

impl Side {
    fn position(&self, o: impl Into<Dim>, k: impl Into<Dim>) -> Dim {
        o.into() * self.step + k.into() * self.dilation + self.first
    }
    /// The taps of a result that are inside the image: the first one, and their number.
    fn inside(&self, o: Dim) -> (Dim, Dim) {
        let base = o * self.step + self.first;
        let hi = (self.size - base).ceil_div(self.dilation).max(0).min(self.taps);
        let lo = (Dim::constant(0) - base).ceil_div(self.dilation).max(0).min(self.taps);
        (lo, (hi - lo).max(0))
    }
    /// Results whose windows are entirely inside the image, as a half-open range.
    fn whole(&self, m: &Module) -> (Dim, Dim) {
        let first = Dim::constant((self.step - 1 - self.first).div_euclid(self.step).max(0));
        let reach = self.dilation * (self.taps - 1) + self.first;
        let end = (self.size - 1 - reach).floor_div(self.step) + 1;
        let first = m.syms.simplify(first.min(self.results));
        (first, m.syms.simplify(end.min(self.results).max(first)))
    }
    /// True if the length is a run-time value.
    fn is_unknown(&self) -> bool {
        self.results.as_const().is_none() || self.size.as_const().is_none()
    }
}

struct Pool {
    /// The image, in the layout of the caller.
    image: Buf,
    /// Variables and extents of batch and channel, if there are such loops.
    outer: Vec<Option<Sym>>,
    planes: Vec<Dim>,
    y: Side,
    x: Side,
    op: BinOp,
    /// The weights of a depthwise convolution.
    weights: Option<(Buf, Vec<Dim>)>,
    init: Scalar,
    acc: Reg,
    epilogue: Vec<Stmt>,
    /// Kernels that produce a padded copy only for this kernel.
    padding: Vec<Kernel>,
}

fn pool(m: &Module, uses: &Uses, k: Kernel, facts: Facts) -> Option<Pool> {
    let w = m.form(k).window()?;
    let Stored { buf: out, at: store, .. } = stored(&w.epilogue)?;
    let (src, at) = &w.read;
    let is_supported = match &w.weight {
        Some((weights, _)) => m.is_constant(*weights),
        None => w.op != BinOp::Add || m.math != Math::Strict,
    };
    let from_zero = w.op != BinOp::Add || w.init.bits == 0;
    let is_output = matches!(m.bufs[out].place, Place::Output(_));
    let are_images = at.len() == 4 && store.len() == 4;
    if !is_supported || !from_zero || !is_output || !are_images || w.init.ty != ElemType::F32 {
        return None;
    }
    // The image, and its offset in a padded copy.
    let (image, before, padding) =
        if m.is_given(*src) { (*src, [0, 0], vec![]) } else { unpadded(m, uses, *src, k, w.init)? };
    let side = |i: usize| -> Option<Side> {
        let s = Slide::of(at[i], &w.loops, &w.taps).filter(|s| store[i].as_sym() == Some(s.along.0))?;
        Some(Side {
            var: s.along.0,
            tap: s.tap.map(|t| t.0),
            results: s.along.1,
            size: m.bufs[image].dims[i],
            step: s.step,
            taps: s.taps()?,
            dilation: s.dilation,
            first: s.first - before[i - 2],
        })
    };
    let (y, x) = (side(2)?, side(3)?);
    let outer: Vec<Option<Sym>> = at[..2].iter().map(|d| d.as_sym()).collect();
    let planes = m.bufs[image].dims[..2].to_vec();
    // Batch and channel have the same subscripts in the image and in the result.
    let same = (0..2).all(|i| match outer[i] {
        Some(s) => w.loops.contains(&(s, planes[i])) && at[i] == store[i],
        None => at[i].as_const() == Some(0) && at[i] == store[i],
    });
    let used = w.loops.len() == 2 + outer.iter().flatten().count()
        && w.taps.len() == [&y, &x].into_iter().filter(|s| s.taps > 1).count();
    let pool = Pool {
        image,
        outer,
        planes,
        y,
        x,
        op: w.op,
        weights: w.weight,
        init: w.init,
        acc: w.acc,
        epilogue: w.epilogue,
        padding,
    };
    (same && used && pool.pays(m, facts)).then_some(pool)
}

impl Pool {
    /// True if reading the image in place takes less time than transposing it.
    fn pays(&self, m: &Module, facts: Facts) -> bool {
        let (x, y, taps) = (&self.x, &self.y, self.x.taps * self.y.taps);
        let empty = [y, x].iter().any(|s| s.results.as_const() == Some(0));
        if y.taps == 1 || empty {
            return false;
        }
        let Some((_, at)) = &self.weights else {
            return (y.dilation <= 1 || !self.is_unknown()) && (taps > SMALL || !self.padding.is_empty());
        };
        // The weights depend on the channel and on no loop along a row.
        let uniform = !at.iter().any(|d| d.contains(x.var) || d.contains(y.var));
        uniform && x.step == 1 && taps > SMALL && self.has_fast_taps(m, facts, taps)
    }
    /// True if the taps of a depthwise convolution cost less than transposing the image.
    fn has_fast_taps(&self, m: &Module, facts: Facts, taps: i64) -> bool {
        let lanes = i64::from(facts.lanes);
        let shares = facts.caps.masks && m.math != Math::Strict && self.y.dilation == 1;
        match self.x.results.as_const() {
            // Few channels stay in planes.
            None => {
                let channels = self.planes[1].as_const().is_some_and(|c| c > FEW);
                channels && m.optimize.may_grow() && (shares && taps <= MOST_SHARED || taps <= MOST)
            }
            Some(n) => {
                let wasted = (n + lanes - 1) / lanes * lanes - n;
                // A partial vector is as fast as a whole one if there are mask registers.
                let masked = shares && (n % lanes == 0 || facts.caps.short_masks);
                let shared = masked || shares && n >= WIDE;
                if shared && taps <= MOST_SHARED && taps * wasted <= TRANSPOSE * n {
                    return true;
                }
                taps <= MOST && (n >= WIDE || !masked && !is_turned(m, self.image))
            }
        }
    }
    /// The condition under which rows of run-time length have vectors that are full enough, if the other
    /// layout is faster for shorter ones.
    fn is_long(&self, m: &Module) -> Option<Expr> {
        let n = self.x.results;
        let short = m.syms.range(n).lo.is_none_or(|lo| lo < LONG);
        let chosen = self.weights.is_some() && n.as_const().is_none() && short;
        chosen.then(|| Expr::cmp_index(BinOp::Ge, n, LONG))
    }
    /// True if a size is a run-time value.
    fn is_unknown(&self) -> bool {
        self.y.is_unknown() || self.x.is_unknown()
    }
}

/// True for an image that is cheap to transpose.
fn is_turned(m: &Module, image: Buf) -> bool {
    let d = &m.bufs[image].dims;
    let count = Dim::product(d.iter().copied()).as_const();
    d[1].as_const().is_some_and(|c| c >= CHANNELS) && count.is_some_and(|n| n < CACHED / 4)
}

/// The input of which `src` is a copy padded with `fill` that only kernel `k` reads, and the padding before
/// it.
fn unpadded(
    m: &Module,
    uses: &Uses,
    src: Buf,
    k: Kernel,
    fill: Scalar,
) -> Option<(Buf, [i64; 2], Vec<Kernel>)> {
    if !is_temp(m, src) || uses.readers(src) != [k] || uses.pinned(src) || !uses.is_straight() {
        return None;
    }
    let mut found = None;
    for w in uses.writers(src) {
        let map = m.form(*w).map().filter(|map| map.buf == src)?;
        match &map.value {
            Expr::Const(c) if *c == fill => {}
            Expr::Load { buf, at }
                if found.is_none()
                    && m.is_given(*buf)
                    && at.len() == 4
                    && m.bufs[*buf].ty == m.bufs[src].ty =>
            {
                let shift = |i: usize| (map.at[i] - at[i]).as_const().filter(|s| *s >= 0);
                // The whole image, in order.
                let whole = (0..4).all(|i| match at[i].as_sym() {
                    Some(s) => {
                        map.loops.contains(&(s, m.bufs[*buf].dims[i]))
                            && m.linear(*buf, at).linear_in(s).is_some()
                    }
                    None => at[i].as_const() == Some(0) && m.bufs[*buf].dims[i].as_const() == Some(1),
                });
                if !whole || shift(0) != Some(0) || shift(1) != Some(0) {
                    return None;
                }
                found = Some((*buf, [shift(2)?, shift(3)?]));
            }
            _ => return None,
        }
    }
    found.map(|(b, before)| (b, before, uses.writers(src).to_vec()))
}

/// A plane: its batch and channel, and its scratch.
struct Plane {
    at: [Dim; 2],
    scratch: Scratch,
}

fn emit(m: &mut Module, p: &Pool) -> Vec<Stmt> {
    let planes = Dim::product(p.planes.iter().copied());
    let (width, left, right) = span(m, &p.x);
    // Rows of a pooling are results; those of a padded image have some above and below.
    let (height, top, bottom) = match p.weights {
        Some(_) => span(m, &p.y),
        None => (p.y.results, Dim::constant(0), p.y.results),
    };
    // One dimension, so that the scratch is not taken for an image with channels.
    let size = height * width;
    let slots = slots(planes, (size * 4).as_const()).min(TASKS);
    let name = format!("{}.rows", m.bufs[p.image].name);
    let buf = m.temp(name, ElemType::F32, vec![slots.into(), size]);
    let scratch = |slot: Dim| Scratch { buf, slot, width, inside: [(top, bottom), (left, right)] };
    let mut pad = |kb: &mut KernelBuilder, slot: Dim| {
        let scratch = scratch(slot);
        let zero = Dim::constant(0);
        let init = |_: Dim, _: Dim| p.init.into();
        for rows in [(zero, top), (bottom, height)] {
            block(kb.m, scratch, rows, (zero, width), &init).into_iter().for_each(|s| kb.push(s));
        }
        for columns in [(zero, left), (right, width)] {
            block(kb.m, scratch, (top, bottom), columns, &init).into_iter().for_each(|s| kb.push(s));
        }
    };
    m.body(|kb| {
        in_prepared_slots(kb, planes, slots, &mut pad, &mut |kb, slot, i| {
            let at = [i.floor_div(p.planes[1]), i.modulo(p.planes[1])].map(|d| kb.m.syms.simplify(d));
            let plane = Plane { at, scratch: scratch(slot) };
            let body = if p.weights.is_some() { filtered(kb.m, p, &plane) } else { by_rows(kb.m, p, &plane) };
            body.into_iter().for_each(|s| kb.push(s));
        });
    })
}

/// Elements spanned by all windows along a dimension, and the subrange that the image contains.
fn span(m: &Module, side: &Side) -> (Dim, Dim, Dim) {
    let width = (side.results - 1) * side.step + side.dilation * (side.taps - 1) + 1;
    let inside = |d: Dim| m.syms.simplify(d.max(0).min(width));
    (width, inside(Dim::constant(-side.first)), inside(side.size - side.first))
}

/// Scratch of a plane.
#[derive(Clone, Copy)]
struct Scratch {
    buf: Buf,
    slot: Dim,
    width: Dim,
    /// The rows and columns that are not padding, as half-open ranges.
    inside: [(Dim, Dim); 2],
}

impl Scratch {
    fn at(&self, row: Dim, column: Dim) -> Vec<Dim> {
        vec![self.slot, row * self.width + column]
    }
}

/// Stores to a block of the scratch, beginning at a row and a column.
fn block(
    m: &mut Module,
    own: Scratch,
    rows: (Dim, Dim),
    columns: (Dim, Dim),
    value: &dyn Fn(Dim, Dim) -> Expr,
) -> Vec<Stmt> {
    let zero = Dim::constant(0);
    let (n, w) = (m.syms.simplify(rows.1 - rows.0), m.syms.simplify(columns.1 - columns.0));
    let (i, j) = (m.syms.loop_var("y", zero, n), m.syms.loop_var("j", zero, w));
    let (row, column) = (Dim::sym(i) + rows.0, Dim::sym(j) + columns.0);
    nest(
        &[(i, n), (j, w)],
        vec![Stmt::Store { buf: own.buf, at: own.at(row, column), value: value(row, column) }],
    )
}

/// A depthwise convolution: a copy of the plane inside the padding, then every window.
fn filtered(m: &mut Module, p: &Pool, plane: &Plane) -> Vec<Stmt> {
    let (y, x) = (&p.y, &p.x);
    let own = plane.scratch;
    let [rows, columns] = own.inside;
    let mut inside = block(m, own, rows, columns, &|row, column| Expr::Load {
        buf: p.image,
        at: vec![plane.at[0], plane.at[1], row + y.first, column + x.first],
    });
    let taps: Vec<(Sym, i64)> = [y, x].into_iter().filter_map(|s| Some((s.tap?, s.taps))).collect();
    let tap = |s: &Side| s.tap.map_or(Dim::constant(0), Dim::sym);
    let at = own
        .at(Dim::sym(y.var) * y.step + tap(y) * y.dilation, Dim::sym(x.var) * x.step + tap(x) * x.dilation);
    let weight = p
        .weights
        .as_ref()
        .map(|(buf, at)| Expr::Load { buf: *buf, at: at.clone() })
        .unwrap_or(Expr::num(ElemType::F32, 1.0));
    let value = Expr::fma(Expr::Load { buf: own.buf, at }, weight, Expr::acc(p.acc));
    let set = Stmt::Set { reg: p.acc, at: vec![], value };
    let sum = taps.iter().rev().fold(set, |body, (var, n)| Stmt::seq(*var, Dim::constant(*n), vec![body]));
    inside.extend(results(p, plane, vec![sum]));
    inside
}

/// The nest over all results: the reduction, then the epilogue of the kernel.
fn results(p: &Pool, plane: &Plane, sum: Vec<Stmt>) -> Vec<Stmt> {
    let put = |d: Dim| d.subst(&mut |s| p.outer.iter().position(|o| *o == Some(s)).map(|i| plane.at[i]));
    let mut body = vec![Stmt::Acc { reg: p.acc, lanes: 1, shape: vec![], init: p.init.into() }];
    body.extend(sum.into_iter().chain(p.epilogue.iter().cloned()).map(|s| s.map_dims(&mut |d| put(d))));
    nest(&[(p.y.var, p.y.results), (p.x.var, p.x.results)], body)
}

/// The reduction along rows, then along columns.
fn by_rows(m: &mut Module, p: &Pool, plane: &Plane) -> Vec<Stmt> {
    let zero = Dim::constant(0);
    let (y, x) = (&p.y, &p.x);
    let rows = plane.scratch;
    let mut inside = vec![];
    // Rows at an edge of the image, each row separately if their number is known, and those inside it.
    let (first, end) = y.whole(m);
    for (from, to) in [(zero, first), (end, y.results)] {
        match (from.as_const(), to.as_const()) {
            (Some(from), Some(to)) => {
                for o in from..to {
                    inside.extend(of_rows(m, p, plane, (o.into(), 1.into()), true));
                }
            }
            _ => {
                let count = m.syms.simplify(to - from);
                inside.extend(of_rows(m, p, plane, (from, count), true));
            }
        }
    }
    let count = m.syms.simplify(end - first);
    inside.extend(of_rows(m, p, plane, (first, count), false));
    // Columns.
    let t = m.syms.loop_var("k", zero, Dim::constant(x.taps));
    let read = Expr::Load {
        buf: rows.buf,
        at: rows.at(y.var.into(), Dim::sym(x.var) * x.step + Dim::sym(t) * x.dilation),
    };
    let step = Stmt::Set { reg: p.acc, at: vec![], value: Expr::bin(p.op, Expr::acc(p.acc), read) };
    inside.extend(results(p, plane, vec![Stmt::seq(t, x.taps, vec![step])]));
    inside
}

/// `count` rows of results, beginning at one of them, for the columns of the scratch that are not padding; at
/// an edge, only the taps inside the image.
fn of_rows(m: &mut Module, p: &Pool, plane: &Plane, (first, count): (Dim, Dim), edge: bool) -> Vec<Stmt> {
    let (zero, y) = (Dim::constant(0), &p.y);
    let (rows, (lo, hi)) = (plane.scratch, plane.scratch.inside[1]);
    let i = m.syms.loop_var("y", zero, count);
    let row = first + if count.as_const() == Some(1) { zero } else { Dim::sym(i) };
    let (from, taps) = if edge { y.inside(row) } else { (zero, y.taps.into()) };
    let columns = m.syms.simplify(hi - lo);
    let j = m.syms.loop_var("j", zero, columns);
    let t = m.syms.loop_var("k", zero, taps);
    let acc = m.reg(p.init.ty);
    let tap = y.position(row, Dim::sym(t) + from);
    let at = vec![plane.at[0], plane.at[1], tap, Dim::sym(j) + lo + p.x.first];
    let read = Expr::Load { buf: p.image, at };
    let step = Stmt::Set { reg: acc, at: vec![], value: Expr::bin(p.op, Expr::acc(acc), read) };
    let body = vec![
        Stmt::Acc { reg: acc, lanes: 1, shape: vec![], init: p.init.into() },
        Stmt::seq(t, taps, vec![step]),
        Stmt::Store { buf: rows.buf, at: rows.at(row, Dim::sym(j) + lo), value: Expr::acc(acc) },
    ];
    if count.as_const() == Some(1) {
        nest(&[(j, columns)], body)
    } else {
        nest(&[(i, count), (j, columns)], body)
    }
}

/// Parallel loops around a body; nothing if a loop has no iterations.
fn nest(loops: &[(Sym, Dim)], body: Vec<Stmt>) -> Vec<Stmt> {
    if loops.iter().any(|l| l.1.as_const().is_some_and(|n| n <= 0)) {
        return vec![];
    }
    loops.iter().rev().fold(body, |body, (var, n)| vec![Stmt::par(*var, *n, body)])
}
