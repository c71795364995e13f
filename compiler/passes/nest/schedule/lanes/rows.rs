//! Sequential loops inside rows: stores along the row, and reductions with an accumulator per lane.

use super::body::Adjacent;
use super::{Along, Vectors, along_result, collapse, suits, vector};
use crate::nest::form::{Elements, seq_loops};
use crate::nest::schedule::Schedule;
use crate::nest::{BinOp, Buf, Expr, LoopKind, Math, Module, Reg, Scalar, Stmt, visit};
use crate::passes::nest::analysis::lanes64;
use crate::passes::nest::analysis::shape::{ParNest, fresh_regs, loop_like, peel, wrap};
use crate::passes::nest::analysis::vectors::Needs;
use crate::sym::{Dim, Sym};
use crate::tensor::ElemType;
use std::collections::HashMap;

/// Accumulators of a reduction, to hide the latency of its operation.
pub(crate) const SUMS: i64 = 4;

/// Limits of vectors along rows.
#[derive(Clone, Copy)]
pub(super) struct Bounds {
    /// Maximum accumulators of a reduction.
    pub sums: i64,
    /// Minimum elements of a row.
    pub least: i64,
}

/// Minimum elements of a row worth vectors: fewer if lanes compute elementary functions or convert 16-bit
/// floats, whose cost equals the overhead of a vector loop, and vectors may be partial.
pub(super) fn least(m: &Module, body: &[Stmt], vectors: Vectors) -> i64 {
    let short = |b: Buf| matches!(m.bufs[b].ty, ElemType::F16 | ElemType::BF16);
    let converts = vectors.caps.short_floats && visit::loads(body).into_iter().any(short);
    let (mut elementary, mut longest) = (false, Some(0));
    visit::walk(body, &mut |s| {
        if let Stmt::For { hi, body, .. } = s {
            longest = longest.and_then(|n| Some(hi.as_const()?.max(n)));
            visit::walk_exprs(body, &mut |e| {
                elementary |= matches!(e, Expr::Un(op, a) if op.is_elementary(m.type_of(a)))
            });
        }
    });
    if (elementary || converts) && vectors.caps.has_partial(longest) { 3 } else { 8 }
}

/// The transformation of a statement.
pub(super) enum Step {
    /// Nothing.
    Keep,
    /// A loop in vectors.
    Loop(RowLoop),
    /// A nest among other statements, in vectors along its result: a step of a recurrence.
    Nest(Along),
    /// The same with vectors inside its rows.
    Rows(Vec<Step>),
    /// The transformations of nested statements, for each body.
    Inside(Vec<Vec<Step>>),
}

/// A sequential loop in vectors.
pub(super) struct RowLoop {
    pub var: Sym,
    pub hi: Dim,
    body: Vec<Stmt>,
    lanes: i64,
    /// Accumulators per lane.
    sums: i64,
    /// Accumulators that the loop changes, and their operations.
    pub reductions: Vec<(Reg, BinOp)>,
}

/// Chooses vectors for sequential loops inside rows: stores along the row, and reductions with an accumulator
/// per lane.
pub(super) fn choose(m: &mut Module, body: &[Stmt], vectors: Vectors, bounds: Bounds) -> Vec<Step> {
    body.iter().map(|s| step(m, s, vectors, bounds)).collect()
}

fn step(m: &mut Module, s: &Stmt, vectors: Vectors, bounds: Bounds) -> Step {
    match s {
        Stmt::For { kind: LoopKind::Seq, var, lo, hi, body } => {
            if matches!(body.as_slice(), [Stmt::For { .. }])
                && let Some((var, hi, inner)) = one_loop(m, s)
                && let Some(row) = row_loop(m, (var, hi), &inner, vectors, bounds)
            {
                return Step::Loop(row);
            }
            if lo.as_const() != Some(0) {
                return Step::Keep;
            }
            match row_loop(m, (*var, *hi), body, vectors, bounds) {
                Some(row) => Step::Loop(row),
                None => Step::Inside(vec![choose(m, body, vectors, bounds)]),
            }
        }
        Stmt::For { kind: LoopKind::Par, .. } => {
            let nest = peel(std::slice::from_ref(s));
            match along_result(m, &nest, vectors, false) {
                None if nest.loops.is_empty() => Step::Keep,
                Some(along) => Step::Nest(along),
                None => Step::Rows(choose(m, &nest.body, vectors, bounds)),
            }
        }
        Stmt::With { body, .. } | Stmt::While { body, .. } => {
            Step::Inside(vec![choose(m, body, vectors, bounds)])
        }
        Stmt::If { then, els, .. } => {
            Step::Inside(vec![choose(m, then, vectors, bounds), choose(m, els, vectors, bounds)])
        }
        _ => Step::Keep,
    }
}

/// The schedules of the loops in vectors.
pub(super) fn describe(steps: &[Step]) -> Vec<Schedule> {
    let mut out = vec![];
    for s in steps {
        match s {
            Step::Keep => {}
            Step::Loop(row) => {
                let reduces = if row.reductions.is_empty() { "loop" } else { "reduction" };
                let unroll = [("accumulators of a lane", row.sums)].into_iter().filter(|u| u.1 > 1).collect();
                out.push(Schedule {
                    unroll,
                    ..Schedule::new(reduces).vectors(row.lanes, "elements of a row", row.hi)
                });
            }
            Step::Nest(along) => out.push(along.describe()),
            Step::Rows(steps) => out.extend(describe(steps)),
            Step::Inside(bodies) => out.extend(bodies.iter().flat_map(|steps| describe(steps))),
        }
    }
    out
}

/// The body after the chosen transformations.
pub(super) fn apply(m: &mut Module, body: &[Stmt], steps: Vec<Step>) -> Vec<Stmt> {
    body.iter().zip(steps).flat_map(|(s, step)| apply_one(m, s, step)).collect()
}

fn apply_one(m: &mut Module, s: &Stmt, step: Step) -> Vec<Stmt> {
    match step {
        Step::Keep => vec![s.clone()],
        Step::Loop(row) => row.apply(m),
        Step::Nest(along) => along.apply(m),
        Step::Rows(steps) => {
            let nest = peel(std::slice::from_ref(s));
            let body = apply(m, &nest.body, steps);
            wrap(&nest.loops, body)
        }
        Step::Inside(steps) => {
            let mut s = s.clone();
            for (body, steps) in s.bodies_mut().zip(steps) {
                *body = apply(m, body, steps);
            }
            vec![s]
        }
    }
}

/// Chooses and applies at once, for schedules of nests that contain rows.
pub(crate) fn rows(m: &mut Module, body: &[Stmt], vectors: Vectors, sums: i64) -> Vec<Stmt> {
    let least = least(m, body, vectors);
    let steps = choose(m, body, vectors, Bounds { sums, least });
    apply(m, body, steps)
}

/// Nested loops fused into one, if all accesses are contiguous across them.
pub(super) fn one_loop(m: &mut Module, s: &Stmt) -> Option<(Sym, Dim, Vec<Stmt>)> {
    let (loops, body) = seq_loops(s)?;
    let last = loops.last()?.0;
    let mut nest = ParNest { loops, body: body.to_vec() };
    collapse(m, &mut nest, last)?;
    match nest.loops[..] {
        [(var, hi)] => Some((var, hi, nest.body)),
        _ => None,
    }
}

/// True if an accumulator may be split into one per lane.
fn may_split(m: &Module, (reg, op): (Reg, BinOp)) -> bool {
    let ty = m.regs[reg].ty;
    // Integer reductions may be reassociated.
    let any_order = m.math != Math::Strict || ty.is_int() || matches!(op, BinOp::Max | BinOp::Min);
    any_order && (matches!(ty, ElemType::F32 | ElemType::I32) || lanes64::is(ty))
}

/// The loop in vectors, if it suits them and is long enough.
pub(super) fn row_loop(
    m: &Module,
    (var, hi): (Sym, Dim),
    body: &[Stmt],
    vectors: Vectors,
    Bounds { sums, least }: Bounds,
) -> Option<RowLoop> {
    if hi.as_const().is_some_and(|c| c < least) {
        return None;
    }
    let elements = Elements::new(vec![(var, hi)], body)?;
    let reductions = elements.reductions()?;
    let needs = Needs::of(m, body);
    let vectors = vectors.of(&needs);
    let lanes = vectors.lanes;
    if !reductions.iter().all(|r| may_split(m, *r)) || !suits(m, &needs, var, vectors, None) {
        return None;
    }
    // Several accumulators hide the latency of the operation.
    let one = reductions.is_empty() || elements.stores() || hi.as_const().is_some_and(|c| c < sums * lanes);
    Some(RowLoop { var, hi, body: elements.body, lanes, sums: if one { 1 } else { sums }, reductions })
}

/// For each accumulator that the loop changes, its vector replacement.
pub(super) type LaneOf = HashMap<Reg, Reg>;

impl RowLoop {
    /// The vector loop, and the horizontal reduction of its accumulators.
    fn apply(self, m: &mut Module) -> Vec<Stmt> {
        let (mut out, lane_of) = self.accumulators(m, self.sums);
        out.extend(if self.sums == 1 {
            vec![self.one_loop(m, &lane_of)]
        } else {
            self.unrolled(m, &lane_of)
        });
        out.extend(self.combined(m, &lane_of));
        out
    }
    /// Vector accumulators, `count` for each of the loop's own.
    pub fn accumulators(&self, m: &mut Module, count: i64) -> (Vec<Stmt>, LaneOf) {
        let (mut out, mut lane_of) = (vec![], LaneOf::new());
        for (r, op) in &self.reductions {
            let ty = m.regs[*r].ty;
            let lane = m.reg(ty);
            let init = match op {
                BinOp::Add => Scalar::from_f64(ty, 0.0),
                BinOp::Mul => Scalar::from_f64(ty, 1.0),
                BinOp::Max => Scalar::lowest(ty),
                _ => Scalar::highest(ty),
            };
            let shape = if count > 1 { vec![count as u32] } else { vec![] };
            out.push(Stmt::Acc { reg: lane, lanes: self.lanes as u32, shape, init: init.into() });
            lane_of.insert(*r, lane);
        }
        (out, lane_of)
    }
    /// A copy of the body with vector accumulators; `at` gives their subscripts.
    pub fn body(
        &self,
        m: &mut Module,
        lane_of: &LaneOf,
        at: &dyn Fn(Vec<Dim>, Reg) -> Vec<Dim>,
    ) -> Vec<Stmt> {
        let get = |r: Reg| *lane_of.get(&r).unwrap_or(&r);
        let set = |s: Stmt| match s {
            Stmt::Set { reg, at: place, value } => {
                Stmt::Set { reg: get(reg), at: at(place, get(reg)), value }
            }
            s => s,
        };
        let read = |e: Expr| match e {
            Expr::Acc { reg, at: place, lane } => Expr::Acc { reg: get(reg), at: at(place, get(reg)), lane },
            e => e,
        };
        fresh_regs(m, &self.body).into_iter().map(|s| set(s).rewrite_exprs(&mut |e| read(e))).collect()
    }
    /// Vectors from `lo` to the end of the row, the last one partial.
    fn vectors(&self, lo: Dim, v: Sym, body: Vec<Stmt>) -> Stmt {
        let put = |d: Dim| d.subst(&mut |s| (s == self.var).then(|| Dim::sym(v)));
        let body = body.into_iter().map(|s| s.map_dims(&mut |d| put(d))).collect();
        Stmt::For { kind: vector(self.lanes), var: v, lo, hi: self.hi, body }
    }
    /// One vector loop.
    fn one_loop(&self, m: &mut Module, lane_of: &LaneOf) -> Stmt {
        let v = loop_like(m, self.var, Dim::constant(0), self.hi);
        let body = self.body(m, lane_of, &|at, _| at);
        self.vectors(Dim::constant(0), v, body)
    }
    /// Unrolled vectors with separate accumulators, and the remainder.
    fn unrolled(&self, m: &mut Module, lane_of: &LaneOf) -> Vec<Stmt> {
        let (zero, step) = (Dim::constant(0), self.lanes * self.sums);
        let whole = self.hi.floor_div(step);
        let q = m.syms.loop_var("q", zero, whole);
        let main = self.body(m, lane_of, &|at, _| at);
        let accs: Vec<Reg> = lane_of.values().copied().collect();
        let lanes = (self.lanes, Dim::constant(self.lanes));
        let vectors = Adjacent { var: self.var, base: Dim::sym(q) * step, count: self.sums, lanes };
        let inner = vectors.of(m, &main, &accs);
        let mut out = vec![Stmt::seq(q, whole, inner)];
        if self.hi.modulo(step).as_const() != Some(0) {
            // The remainder goes to the first accumulator, which has the lanes of whole vectors.
            let v = loop_like(m, self.var, whole * step, self.hi);
            let rest = self.body(m, lane_of, &|at, r| if accs.contains(&r) { vec![zero] } else { at });
            out.push(self.vectors(whole * step, v, rest));
        }
        out
    }
    /// The horizontal reduction of lanes and unrolled accumulators.
    fn combined(&self, m: &mut Module, lane_of: &LaneOf) -> Vec<Stmt> {
        let (zero, lanes, mut out) = (Dim::constant(0), Dim::constant(self.lanes), vec![]);
        let at = |i: i64| if self.sums > 1 { vec![Dim::constant(i)] } else { vec![] };
        for (r, op) in &self.reductions {
            let lane = lane_of[r];
            if self.sums > 1 {
                let part = |i: i64| Expr::Acc { reg: lane, at: at(i), lane: None };
                let sum = (1..self.sums).fold(part(0), |sum, i| Expr::bin(*op, sum, part(i)));
                let l = m.syms.loop_var("l", zero, lanes);
                let body = vec![Stmt::Set { reg: lane, at: at(0), value: sum }];
                out.push(Stmt::vector(self.lanes, l, lanes, body));
            }
            let all = Expr::Horizontal { op: *op, reg: lane, at: at(0) };
            out.push(Stmt::Set { reg: *r, at: vec![], value: Expr::bin(*op, Expr::acc(*r), all) });
        }
        out
    }
}
