//! Contractions of many steps, in blocks of the reduction.
//!
//! A panel of many steps exceeds the second-level cache, and so do the rows: each tile would read both from
//! beyond it. A task computes a block of rows for a group of panels. It goes through the reduction block by
//! block, and through the panels of the group in each: the rows of a block stay in the cache for all panels,
//! and a block of a panel for all rows (Goto, van de Geijn: Anatomy of High-Performance Matrix
//! Multiplication). Sums of a task are kept in scratch from one block to the next. Tiles begin with them, so
//! that terms are added in the order of the plain sum.

use super::loops::{Loops, Order};
use super::register::PanelPrefetch;
use super::rows::Panel;
use super::{Blocks, Source, Tile, describe_tile, each_panel};
use crate::nest::schedule::Schedule;
use crate::nest::{Expr, Kernel, Module, Stmt};
use crate::passes::nest::analysis::form::{Contraction, ProductKind};
use crate::passes::nest::analysis::machine::{L2, THREADS, slots};
use crate::passes::nest::schedule::rows::Slots;
use crate::sym::Dim;

/// Bytes of a panel from which on it is divided: beside the rows of a tile, it no longer stays in the
/// second-level cache.
const DEEP: i64 = L2 / 2;
/// Maximum bytes of a block of a panel. One is in use while the next one is prefetched.
const PANEL: i64 = L2 / 8;
/// Maximum bytes of the rows of a block.
const ROWS: i64 = 3 * L2 / 8;
/// Maximum panels of a group: the number of times that a task reads a block of rows once it is in the cache.
const GROUP: i64 = 4;
/// Tasks that suffice for the threads.
const ENOUGH: i64 = 4 * THREADS;

/// The blocks of a contraction.
#[derive(Clone, Copy)]
pub(crate) struct Deep {
    /// Steps of a block; the last one may have fewer.
    steps: i64,
    /// All steps.
    all: i64,
    /// Rows of a block; `None` if all rows are one block.
    rows: Option<i64>,
    /// Panels of a group.
    group: i64,
}

/// True if a panel of `nr` columns is divided.
pub(crate) fn is_deep(m: &Module, p: &Contraction, nr: i64) -> bool {
    let [(_, steps)] = p.reduction.as_slice() else { return false };
    let row = m.bufs[p.b.0].ty.bytes().map_or(0, |b| nr * i64::from(b));
    steps.as_const().is_some_and(|n| n * row > DEEP)
}

impl Deep {
    /// The blocks of a contraction with one reduction loop and without outer row loops; `None` if a panel stays
    /// in the cache, or is read for one tile only. (Windows read the same elements of an image repeatedly:
    /// blocks of several loops gained nothing.)
    pub fn new<P: Source>(m: &Module, p: &Contraction, t: &Tile<P>) -> Option<Deep> {
        let [(_, all)] = p.reduction.as_slice() else { return None };
        let all = all.as_const()?;
        let plain = p.is_plain() && p.gate.is_none() && t.clips.is_empty() && !t.halves && !t.backwards;
        let sums = matches!(p.product, ProductKind::Fma | ProductKind::Double);
        let (least, most) = (t.mr + 1, t.m_row.map(|r| m.syms.range(r.1).hi));
        let several = most.is_some_and(|most| most.is_none_or(|n| n >= least));
        let row = t.nr * i64::from(m.bufs[p.b.0].ty.bytes()?);
        if !p.whole || !plain || !sums || !several || !is_deep(m, p, t.nr) {
            return None;
        }
        let steps = steps(all, PANEL / row);
        let bytes = steps * i64::from(m.bufs[p.a.0].ty.bytes()?);
        let high = (ROWS / bytes / t.mr).max(1) * t.mr;
        let (rows, blocks) = match t.rows().as_const() {
            Some(n) if n <= high => (None, 1),
            Some(n) => {
                let blocks = (n + high - 1) / high;
                (Some(((n + blocks - 1) / blocks + t.mr - 1) / t.mr * t.mr), blocks)
            }
            None => (most.flatten().is_none_or(|n| n > high).then_some(high), 1),
        };
        // Panels of a group divide all panels, so that tasks have equal shares.
        let group = match t.n_extent.ceil_div(t.nr).as_const() {
            Some(panels) => {
                let most = (panels * blocks / ENOUGH).clamp(1, GROUP);
                (1..=most).rev().find(|g| panels % g == 0).unwrap_or(1)
            }
            None => GROUP,
        };
        Some(Deep { steps, all, rows, group })
    }
    /// The schedule.
    pub fn describe<P: Source>(&self, m: &Module, p: &Contraction, t: &Tile<P>) -> Schedule {
        let rows = self.rows.map(|n| ("rows", n));
        let blocks = rows.into_iter().chain([("panels", self.group), ("steps", self.steps)]);
        Schedule {
            blocks: blocks.map(|(name, n)| (name, Dim::constant(n))).collect(),
            prefetch: t.panels.constant(m).map(|_| "next block of a panel").into_iter().collect(),
            staging: vec!["sums of a block of rows and a group of panels"],
            order: vec!["blocks of rows", "groups of panels", "blocks of steps", "panels"],
            ..describe_tile(m, p, t)
        }
    }
    /// Emits the contraction.
    pub fn emit(&self, m: &mut Module, k: Kernel, p: &Contraction, mut t: Tile) -> Vec<Stmt> {
        let (zero, group) = (Dim::constant(0), Dim::constant(self.group));
        let panels = t.n_extent.ceil_div(t.nr);
        let groups = m.syms.simplify(panels.ceil_div(group));
        let number = m.syms.loop_var("g", zero, groups);
        // The steps of a block, and the prefetches of its tiles.
        let block = self.of(p, self.steps);
        let high = self.rows.map_or(t.rows(), |n| t.rows().min(Dim::constant(n)));
        let prefetch = PanelPrefetch::new(m, &block, &t, high.ceil_div(t.mr));
        let plain = Loops { block: self.rows, order: Order::Panels, prefetch: None };
        let rows = Blocks::new(m, &t, &plain);
        let mut nest = t.batch.clone();
        nest.extend([(rows.var, rows.count), (number, groups)]);
        let total = m.syms.simplify(Dim::product(nest.iter().map(|l| l.1)));
        let slots = Slots::new(m, slots(total, None));
        let name = format!("{}.sums", m.kernels[k].name);
        let most = rows.most(m);
        let sums = m.temp(name, p.product.ty(), vec![slots.count.into(), group, most, t.nr.into()]);

        let first = Dim::sym(number) * group;
        let here = m.syms.simplify((panels - first).min(group));
        let origin = m.syms.loop_var("o", zero, t.rows());
        let row = t.m_row.map_or(zero, |r| Dim::sym(r.0) - origin);
        let n = t.n;
        // Sums of panel `i` of the group.
        let at = |i: Dim| vec![slots.own.into(), i, row, Dim::sym(n) - (first + i) * t.nr];
        let load = |i: Dim| Some(Expr::Load { buf: sums, at: at(i) });
        let store = |i: Dim| vec![Stmt::Store { buf: sums, at: at(i), value: Expr::acc(p.acc) }];
        // The panels of the group, with the contraction and the prefetches of each.
        let each = |m: &mut Module, t: &Tile, of: &dyn Fn(Dim) -> (Contraction, Option<PanelPrefetch>)| {
            let i = m.syms.loop_var("e", zero, here);
            let (p, prefetch) = of(i.into());
            let loops = Loops { prefetch, ..plain };
            let (rows, number) = (Blocks { l: &loops, ..rows }, first + i);
            let panel = Panel { p: &p, t, number, origin: Some(origin) };
            let body = each_panel(m, t, number, |m, cols| rows.emit(m, panel, cols));
            Stmt::seq(i, here, body)
        };
        t.first_step = None;
        let mut body = vec![each(m, &t, &|i| (Contraction { epilogue: store(i), ..p.clone() }, None))];
        let (count, rest) = (self.all / self.steps, self.all % self.steps);
        let b = m.syms.loop_var("b", zero, Dim::constant(count));
        for (block, steps) in [(Dim::sym(b), self.steps), (Dim::constant(count), rest)] {
            if steps == 0 {
                continue;
            }
            t.first_step = Some(block * self.steps);
            let one = each(m, &t, &|i| {
                // The next panel of the group, the first one in the next block, or the next group.
                let next = block * group + i + 1;
                let panel = first + next.modulo(group) + next.floor_div(group * count) * group;
                let step = next.floor_div(group).modulo(Dim::constant(count)) * self.steps;
                let p = Contraction { start: load(i), epilogue: store(i), ..self.of(p, steps) };
                (p, prefetch.map(|a| a.from(panel, step)))
            });
            body.push(if steps == self.steps { Stmt::seq(b, count, vec![one]) } else { one });
        }
        t.first_step = None;
        body.push(each(m, &t, &|i| (Contraction { start: load(i), ..p.clone() }, None)));
        let share = slots.share_of(m, &nest, total, body);
        slots.around(vec![share])
    }
    /// The contraction with the steps of a block.
    fn of(&self, p: &Contraction, steps: i64) -> Contraction {
        let mut p = p.clone();
        p.reduction.iter_mut().for_each(|d| d.1 = Dim::constant(steps));
        p
    }
}

/// Steps of a block of a reduction of `all` steps, at most `most`: blocks of equal size if possible.
fn steps(all: i64, most: i64) -> i64 {
    /// Steps of a block are a multiple of it: lines of both operands.
    const EACH: i64 = 32;
    let blocks = (all + most - 1) / most;
    let equal = (all + blocks - 1) / blocks;
    let exact = (2 * most / 3..=most).rev().find(|n| n % EACH == 0 && all % n == 0);
    exact.unwrap_or((equal + EACH - 1) / EACH * EACH)
}
