//! Vectors for everything except contractions: maps, pooling and depthwise convolutions along the contiguous
//! dimension of the result; row kernels (softmax, normalization, reductions) along the contiguous dimension
//! of their operand.

mod along;
mod body;
mod in_blocks;
mod indexed;
mod operands;
mod peel_edges;
mod periodic_rows;
pub(crate) mod permuted_loads;
mod reduce_rows;
mod rows;
mod rows_abreast;
mod short_rows;
mod stage_through_scratch;
mod sums_abreast;
mod uniform_indices;
mod unroll_and_jam;
mod window_rows;

use along::{Along, along_result};
pub(crate) use body::renamed;
pub(crate) use reduce_rows::ReduceRows;
pub(crate) use rows::{SUMS, rows};
pub(crate) use short_rows::ShortRows;
use unroll_and_jam::Abreast;
pub(crate) use unroll_and_jam::interleave;

use crate::nest::form::first_store;
use crate::nest::schedule::{Schedule, tasks};
use crate::nest::{BinOp, Buf, Expr, Kernel, Layout, LoopKind, Module, Stmt, visit};
use crate::passes::nest::analysis::cost;
use crate::passes::nest::analysis::lanes64;
use crate::passes::nest::analysis::shape::{ParNest, in_one, peel, wrap};
use crate::passes::nest::analysis::strides::stride;
use crate::passes::nest::analysis::vectors::{Needs, is_short};
use crate::passes::nest::schedule::rows::{Tasks, Ways};
use crate::passes::nest::schedule::{Request, Within};
use crate::sym::broadcast::is_factor;
use crate::sym::{Dim, Sym};
use crate::target::{Caps, Facts, Tiles};
use crate::tensor::{ConstData, ElemType, consts::Remap};
use std::collections::HashMap;
use std::sync::Arc;

/// The vectors of a nest.
#[derive(Clone, Copy)]
pub struct Vectors {
    /// Elements per vector.
    pub lanes: i64,
    /// Vector registers.
    pub registers: i64,
    /// Capabilities of the level's vectors.
    pub caps: Caps,
}

impl From<Facts> for Vectors {
    fn from(f: Facts) -> Vectors {
        Vectors { lanes: i64::from(f.lanes), registers: i64::from(f.registers), caps: f.caps }
    }
}

impl Vectors {
    /// The vectors of a nest: half as many lanes if it has 64-bit elements.
    fn of(self, needs: &Needs) -> Vectors {
        let lanes = if needs.long { lanes64::lanes(self.lanes, self.caps.long_lanes) } else { self.lanes };
        Vectors { lanes, ..self }
    }
}

/// A nest in vectors.
struct Plan {
    /// The nest, its inner loops in vectors.
    nest: ParNest,
    kind: Kind,
    schedule: Schedule,
    work: Dim,
}

/// The vector axis determines how tasks are formed.
enum Kind {
    /// Along the result; a part of a larger nest has no tasks of its own.
    Result {
        /// True for a whole kernel without tasks.
        whole: bool,
    },
    /// Along loops inside rows.
    Rows(Tasks, Box<Ways>),
}

/// Chooses loop order, vectors and tasks for any nest. Tasks depend on the trip counts of the vector loops,
/// so they are chosen here.
pub(crate) fn choose(m: &mut Module, request: &Request) -> Option<Box<dyn super::Plan>> {
    let whole = request.within == Within::Kernel;
    Some(Box::new(plan(m, request.body, request.facts.into(), whole)))
}

/// The scheduled body of a kernel that prepares operands of another.
pub(crate) fn schedule(m: &mut Module, k: Kernel, body: &[Stmt], vectors: Vectors) -> Vec<Stmt> {
    let plan = Box::new(plan(m, body, vectors, true));
    let schedule = plan.schedule.clone();
    let body = super::Plan::apply(plan, m, k);
    m.kernels[k].schedules.push(Schedule { tasks: tasks(&body), ..schedule });
    body
}

fn plan(m: &mut Module, body: &[Stmt], vectors: Vectors, whole: bool) -> Plan {
    let work = cost::work(m, body);
    let mut nest = peel(body);
    if let Some(along) = along_result(m, &nest, vectors, whole) {
        return of_result(m, along, (whole, work));
    }
    order_loops(m, &nest.body, &mut nest.loops);
    let empty = nest.loops.iter().any(|l| l.1.as_const() == Some(0));
    if let Some((row, _)) = nest.loops.last().copied().filter(|_| !empty) {
        collapse(m, &mut nest, row);
    }
    let least = rows::least(m, &nest.body, vectors);
    let Abreast { rows: abreast, lengths } = unroll_and_jam::rows_of(m, &nest, (vectors.lanes, least), work);
    let short = short_rows::choose(m, &nest, vectors);
    let together = reduce_rows::choose(m, &nest, vectors, least);
    let row_of = |m: &mut Module, body: &[Stmt], sums: i64| {
        let steps = rows::choose(m, body, vectors, rows::Bounds { sums, least });
        (rows::describe(&steps), rows::apply(m, body, steps))
    };
    let scalars = nest.body.clone();
    // Rows that are not interleaved, because they are long at run time or left over, have several
    // accumulators.
    let unknown = nest.loops.last().is_some_and(|l| l.1.as_const().is_none());
    let several = (abreast > 1 && (unknown || !lengths.is_empty())).then(|| {
        let short = lengths.iter().map(|(n, most)| Expr::cmp_index(BinOp::Le, *n, *most));
        let cond = short.reduce(|a, b| Expr::bin(BinOp::And, a, b));
        (cond, row_of(m, &scalars, SUMS / abreast).1)
    });
    let sums = if several.is_some() { SUMS } else { SUMS / abreast };
    let (mut inner, body) = row_of(m, &scalars, sums);
    let before = nest.loops.clone();
    nest.body = unroll_and_jam::jam(m, &mut nest.loops, body);
    let together = together.filter(|_| nest.loops == before);
    let short = short.filter(|s| nest.loops == before && (together.is_none() || s.fit_in_vectors()));
    let together = together.filter(|_| short.is_none());
    let block = short.as_ref().map(|s| s.lanes).or(together.as_ref().map(|t| t.of_task));
    let tasks = Tasks::of_rows(&nest, abreast, block, work);
    let short = short.filter(|_| tasks != Tasks::Keep);
    let together = together.filter(|_| tasks != Tasks::Keep);
    if let (Some(s), Some(rows)) = (&short, nest.loops.last()) {
        let blocks = vec![("elements of a row", Dim::constant(s.most))];
        inner.push(Schedule { blocks, ..Schedule::new("short rows").vectors(s.lanes, "rows", rows.1) });
    }
    if let (Some(t), Some(rows)) = (&together, nest.loops.last()) {
        inner.push(Schedule::new("rows reduced together").vectors(t.lanes, "rows", rows.1));
    }
    let ways = Ways { several, together, short: short.map(|s| (s, scalars)) };
    let mut schedule = Schedule::new(if inner.is_empty() { "scalars" } else { "rows" });
    if let Tasks::Rows { most, abreast } = tasks {
        schedule.blocks = vec![("rows of a task", Dim::constant(most))];
        schedule.tile = [("rows", abreast)].into_iter().filter(|t| t.1 > 1).collect();
    }
    Plan { nest, kind: Kind::Rows(tasks, Box::new(ways)), schedule: Schedule { inner, ..schedule }, work }
}

/// The plan for vectors along the result.
fn of_result(m: &mut Module, along: Along, (whole, work): (bool, Dim)) -> Plan {
    let schedule = along.describe();
    let whole = whole && !along.has_tasks();
    let nest = peel(&along.apply(m));
    Plan { nest, kind: Kind::Result { whole }, schedule, work }
}

impl super::Plan for Plan {
    fn schedule(&self, _: &Module) -> Schedule {
        self.schedule.clone()
    }
    fn work(&self) -> Dim {
        self.work
    }
    fn apply(self: Box<Self>, m: &mut Module, _: Kernel) -> Vec<Stmt> {
        match self.kind {
            Kind::Result { whole: true } => super::rows::share(m, self.nest.loops, self.nest.body),
            Kind::Result { whole: false } => wrap(&self.nest.loops, self.nest.body),
            Kind::Rows(tasks, ways) => tasks.apply(m, self.nest, *ways),
        }
    }
}

/// Orders loops so that the outermost has the largest stride in the result.
fn order_loops(m: &Module, body: &[Stmt], loops: &mut [(Sym, Dim)]) {
    let Some((buf, at)) = first_store(body) else { return };
    let d = &m.bufs[buf];
    let order: Vec<usize> = match &d.layout {
        Layout::RowMajor => return,
        Layout::Permuted(p) => p.clone(),
    };
    let place = |s: Sym| order.iter().position(|i| at[*i].contains(s)).unwrap_or(0);
    loops.sort_by_key(|l| place(l.0));
}

fn vector(lanes: i64) -> LoopKind {
    LoopKind::Vec(lanes as u32)
}

/// Fuses outer loops into `var` while every access is contiguous across them.
pub(crate) fn collapse(m: &mut Module, nest: &mut ParNest, var: Sym) -> Option<Sym> {
    if nest.loops.last().map(|l| l.0) != Some(var) {
        return None;
    }
    let mut joined = None;
    while nest.loops.len() >= 2
        && let Some(v) = fused(m, nest, nest.loops.len() - 2)
    {
        joined = Some(v);
    }
    joined
}

/// Fuses adjacent loops around that of `var` whose lengths are both known at run time only: positions of rows
/// then need no divisions, and tasks have several rows, however these are distributed over the loops. A loop
/// of a known length inside keeps vectors that run across its rows.
fn fuse_rows(m: &mut Module, nest: &mut ParNest, var: Sym) {
    fuse_where(m, nest, &|l| l.0 != var && l.1.as_const().is_none());
}

/// Fuses adjacent loops that may join if every access is contiguous across them.
fn fuse_where(m: &mut Module, nest: &mut ParNest, may_join: &dyn Fn(&(Sym, Dim)) -> bool) {
    for i in (1..nest.loops.len()).rev() {
        if i < nest.loops.len() && nest.loops[i - 1..=i].iter().all(may_join) {
            fused(m, nest, i - 1);
        }
    }
}

/// Fuses loop `i` of a nest and the next inner one if every access is contiguous across them. The loop that
/// replaces both.
fn fused(m: &mut Module, nest: &mut ParNest, i: usize) -> Option<Sym> {
    let ((outer, oe), (inner, ie)) = (nest.loops[i], nest.loops[i + 1]);
    let v = m.syms.loop_var("i", Dim::constant(0), oe * ie);
    let sub = |d: Dim| in_one(d, (outer, inner), ie, v);
    let mut ok = true;
    let mut check = |buf: Buf, at: &[Dim]| {
        if at.iter().any(|d| d.contains(outer) || d.contains(inner)) {
            let at: Vec<Dim> = at.iter().map(|d| sub(*d)).collect();
            ok &= m.linear(buf, &at).linear_in(v).is_some();
        }
    };
    visit::each_store(&nest.body, &mut check);
    let mut other = false;
    visit::walk_exprs(&nest.body, &mut |e| match e {
        Expr::Load { buf, at } => check(*buf, at),
        Expr::Index(d) | Expr::With { extent: d, .. } => other |= d.contains(outer) || d.contains(inner),
        _ => {}
    });
    if !ok || other {
        return None;
    }
    nest.body = std::mem::take(&mut nest.body).into_iter().map(|s| s.map_dims(&mut |d| sub(d))).collect();
    // The subscripts become one linear position again when addresses are computed.
    nest.loops.splice(i..i + 2, [(v, oe * ie)]);
    Some(v)
}

/// True if most accesses along the variable can be whole vectors, and nothing else prevents vectorization. If
/// there are inner loops, the accesses in them count. `extent`: that of the variable, if individual vectors
/// may be distinguished.
fn suits(m: &Module, needs: &Needs, var: Sym, vectors: Vectors, extent: Option<Dim>) -> bool {
    // An elementary function costs as much as several loads by lane.
    const ELEMENTARY: i64 = 8;
    if !needs.may_run_along(var) {
        return false;
    }
    let apart = |(buf, at): &&(Buf, &[Dim])| stride(m, *buf, at, var) != Some(1);
    let stores = needs.stores.iter().filter(apart).count() as i64;
    let along = LoadsAlong { m, needs, var, extent, vectors };
    let loads: i64 = needs.loads.iter().map(|(buf, at)| along.gain(*buf, at)).sum();
    let functions = if needs.straight { needs.elementary as i64 * ELEMENTARY } else { 0 };
    functions + loads >= stores
}

/// Loads in vectors along a variable; see [`suits`].
struct LoadsAlong<'a> {
    m: &'a Module,
    needs: &'a Needs<'a>,
    var: Sym,
    extent: Option<Dim>,
    vectors: Vectors,
}

impl LoadsAlong<'_> {
    /// The benefit of a load: 1 for whole vectors, -1 for lane-by-lane loads; 0 for a gather or a strided
    /// load, which cost the same as scalar loads.
    fn gain(&self, buf: Buf, at: &[Dim]) -> i64 {
        if self.is_whole(buf, at) {
            1
        } else if self.gathers(buf, at) {
            0
        } else {
            -1
        }
    }
    /// True if whole vectors of memory contain the elements.
    fn is_whole(&self, buf: Buf, at: &[Dim]) -> bool {
        let (m, caps, t) = (self.m, self.vectors.caps, self.m.bufs[buf].ty);
        let step = stride(m, buf, at, self.var);
        if m.is_constant(buf) {
            return true;
        }
        if matches!(step, Some(0 | 1)) {
            return self.has_vectors(t) || caps.tiles != Tiles::None && t == ElemType::Bool;
        }
        // Short elements are not gathered under a condition that differs between lanes.
        let unconditional = !self.needs.conditional;
        if self.needs.long || !self.has_vectors(t) || t.bits() != 32 && !unconditional {
            return false;
        }
        if let Some(step) = step {
            return caps.shuffles.are_known() && permuted_loads::is_near(step);
        }
        // Contiguous elements or a broadcast: decided at run time.
        let repeated = || {
            let step = m.linear(buf, at).linear_in(self.var).map(|s| s.0);
            step.is_some_and(|s| is_factor(&m.syms, s))
        };
        let masked = t.bits() == 32 || caps.short_masks;
        let known = |extent| permuted_loads::is_known(m, buf, at, (self.var, extent), self.vectors);
        unconditional
            && (caps.shuffles.are_computed() && masked && repeated() || self.extent.is_some_and(known))
    }
    /// True for a gather or a strided load.
    fn gathers(&self, buf: Buf, at: &[Dim]) -> bool {
        let (m, needs, caps, t) = (self.m, self.needs, self.vectors.caps, self.m.bufs[buf].ty);
        let vector = self.has_vectors(t);
        let may = needs.straight && caps.gathers || caps.strided && vector;
        if !may || !(needs.is_word(t) || is_short(t)) {
            return false;
        }
        // A distance that only run time knows. Sums rather run along rows.
        let across =
            || m.linear(buf, at).linear_in(self.var).is_some_and(|(step, _)| !m.syms.has_loops(step));
        let bounded = || indexed::is_bounded(m, m.linear(buf, at), self.var);
        let is_map = vector && needs.straight;
        stride(m, buf, at, self.var).is_some()
            || is_map && (caps.strided && across() || caps.indexed && bounded())
    }
    /// True if vectors have elements of a type, as many as lanes.
    fn has_vectors(&self, t: ElemType) -> bool {
        self.needs.is_word(t) || is_short(t) && (self.vectors.caps.short_floats || t.is_int())
    }
}

/// Stores copies of small constants that are read across the vector axis, so that they are contiguous along
/// it.
pub(crate) struct Relayout {
    /// The loop of the vector axis.
    var: Sym,
    /// Copies of constants, by the dimension that vectors run along and their step in it.
    again: HashMap<(Buf, usize, i64), Buf>,
}

impl Relayout {
    /// A relayout for vectors along a loop.
    pub fn new(var: Sym) -> Relayout {
        Relayout { var, again: HashMap::new() }
    }
    /// The rewritten access, if it would be across the vectors.
    fn moved(&mut self, m: &mut Module, buf: Buf, at: &[Dim]) -> Option<(Buf, Vec<Dim>)> {
        let beside = matches!(stride(m, buf, at, self.var), Some(0 | 1));
        if beside || m.bufs[buf].layout != Layout::RowMajor || !m.is_constant(buf) {
            return None;
        }
        let with: Vec<usize> = (0..at.len()).filter(|i| at[*i].contains(self.var)).collect();
        let [d] = with[..] else { return None };
        let (step, rest) = at[d].linear_in(self.var)?;
        let step = step.as_const().filter(|s| *s > 0)?;
        // The part of the dimension that vectors skip is ordered before the vector axis.
        let kept: Vec<usize> = (0..at.len()).filter(|i| *i != d).collect();
        let phase = (step > 1).then(|| m.syms.simplify(rest.modulo(step)));
        let along = Dim::sym(self.var) + rest.floor_div(step);
        let to: Vec<Dim> = kept.iter().map(|i| at[*i]).chain(phase).chain([along]).collect();
        if let Some(b) = self.again.get(&(buf, d, step)) {
            return Some((*b, to));
        }
        let c = m.constant_as_read(buf)?;
        let size = |i: &usize| c.dims()[*i];
        let phases = phase.map(|_| step);
        let dims: Vec<i64> =
            kept.iter().map(size).chain(phases).chain([(size(&d) + step - 1) / step]).collect();
        let coeff = (0..at.len())
            .map(|i| {
                let own = |c: i64| if i == d { c } else { 0 };
                kept.iter()
                    .map(|k| i64::from(*k == i))
                    .chain(phases.map(|_| own(1)))
                    .chain([own(step)])
                    .collect()
            })
            .collect();
        let data = ConstData::remap(c, Remap { dims, offset: vec![0; at.len()], coeff })?;
        let name = m.bufs[buf].name.clone();
        let b = m.constant(name, Arc::new(data));
        self.again.insert((buf, d, step), b);
        Some((b, to))
    }
    /// The access, rewritten if necessary.
    pub fn access(&mut self, m: &mut Module, (buf, at): (Buf, Vec<Dim>)) -> (Buf, Vec<Dim>) {
        self.moved(m, buf, &at).unwrap_or((buf, at))
    }
    /// Rewrites all accesses of a body.
    pub fn apply(&mut self, m: &mut Module, body: &mut Vec<Stmt>) {
        let mut load = |e: Expr| match e {
            Expr::Load { buf, at } => {
                let (buf, at) = self.access(m, (buf, at));
                Expr::Load { buf, at }
            }
            e => e,
        };
        let read = |s: Stmt| s.rewrite_exprs(&mut load);
        *body = std::mem::take(body).into_iter().map(read).collect();
    }
}
