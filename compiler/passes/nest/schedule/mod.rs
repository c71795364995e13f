//! schedule: tiles for contractions, vectors for everything else (stage Scheduled).
//!
//! Each nest is visited once. `choose` tries the candidates in order. The first one that accepts the nest
//! normalises it (fuses loops across which memory is contiguous, repacks small constants) and returns a
//! `Plan`. The plan's schedule is stored with the kernel, and the plan is applied. A candidate is a file here
//! and a row of `SUMS` or `MAPS`.
//!
//! A kernel is one nest, or a parallel loop around several of them (`form::compound`), each of which is
//! scheduled like a kernel.

pub mod along_sum;
mod clip;
pub mod contract;
pub mod conv_pool;
pub mod depthwise;
mod divide_chains;
pub mod few_rows;
pub mod lanes;
mod outline;
pub mod pack;
mod partial_vectors;
pub mod rows;
pub mod split_div_mod;
pub mod tiles;
pub mod transpose;

use crate::diag::Result;
use crate::nest::key::{Key, Writer};
use crate::nest::schedule::{Schedule, tasks};
use crate::nest::{Body, Buf, Kernel, Module, Stage, Stmt, visit};
use crate::passes::nest::analysis::borders::Borders;
use crate::passes::nest::analysis::copies::{Copies, Emitted};
use crate::passes::nest::analysis::cost;
use crate::passes::nest::analysis::form::Form;
use crate::passes::nest::analysis::form::compound::{self, Part};
use crate::passes::nest::analysis::gates::Gates;
use crate::passes::nest::analysis::machine::L2;
use crate::passes::nest::analysis::shape::{nested, parallel};
use crate::passes::nest::analysis::uses::Uses;
use crate::sym::{Dim, Sym};
use crate::target::{Facts, Level, Tiles};
use std::cell::Cell;
use std::collections::BTreeSet;

/// A nest to be scheduled.
#[derive(Clone, Copy)]
pub(crate) struct Request<'a> {
    /// Its kernel, which the driver calls.
    pub k: Kernel,
    /// The nest.
    pub body: &'a [Stmt],
    /// Its form.
    pub form: &'a Form,
    /// Its context.
    pub within: Within,
    /// The level's vectors and registers.
    pub facts: Facts,
    /// The module around it.
    pub program: &'a Program,
}

/// Properties of the whole module when the pass begins.
pub(crate) struct Program {
    /// Writers and readers of each buffer.
    pub uses: Uses,
    /// Borders of zeros around images.
    pub borders: Borders,
    /// Operands that a kernel multiplies by factors of the steps.
    pub gates: Gates,
    /// The constants exceed a second-level cache: none is still cached from the previous call.
    pub large: bool,
    /// Set if a schedule depends on the kernel that makes an operand.
    pub asked: Cell<bool>,
}

impl Program {
    fn new(m: &Module) -> Program {
        let uses = Uses::new(m);
        let borders = Borders::new(m, &uses);
        let gates = Gates::new(m, &uses);
        let large = m.constant_bytes() > L2 as u64;
        Program { uses, borders, gates, large, asked: Cell::new(false) }
    }
}

/// The context of a nest.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Within {
    /// The nest is the whole kernel.
    Kernel,
    /// It is part of a larger kernel; the loop around it, if any.
    Loop(Option<Sym>),
}

impl Within {
    /// `par` loops around a body: the tasks of a kernel, or loops of a part of one.
    fn around(self, m: &mut Module, loops: &[(Sym, Dim)], body: Vec<Stmt>) -> Vec<Stmt> {
        match self {
            Within::Kernel => parallel(m, loops, body),
            Within::Loop(_) => nested(m, loops, body),
        }
    }
}

/// A schedule that was chosen for a nest, with the normalised nest.
pub(crate) trait Plan {
    /// The schedule, without its tasks.
    fn schedule(&self, m: &Module) -> Schedule;
    /// Scalar operations of the nest, as in `KernelData::work`.
    fn work(&self) -> Dim;
    /// The scheduled nest. All decisions have been made; kernels that prepare operands are added before `k`.
    fn apply(self: Box<Self>, m: &mut Module, k: Kernel) -> Vec<Stmt>;
}

/// Chooses a schedule for nests of its kind; `None` for others. It may create symbols and constants, but does
/// not change kernels.
type Candidate = fn(&mut Module, &Request) -> Option<Box<dyn Plan>>;

/// Schedules of contractions.
const SUMS: &[Candidate] = &[
    conv_pool::choose,
    along_sum::choose,
    depthwise::choose_groups,
    few_rows::choose,
    contract::choose,
    depthwise::choose,
];
/// Schedules of all other nests, after divisions were replaced by loops over digits; the last candidate
/// accepts any nest.
const MAPS: &[Candidate] = &[transpose::choose, lanes::choose];

/// Runs the pass.
pub fn run(m: &mut Module, level: &Level) -> Result<()> {
    let facts = level.facts;
    let program = Program::new(m);
    let mut copies = Copies::default();
    for k in visit::calls(&m.driver) {
        if std::mem::replace(&mut m.kernels[k].scheduled, true) {
            continue;
        }
        let body = m.kernels[k].body.clone();
        if facts.lanes == 1 || visit::has_opaque(m, &body) {
            m.kernels[k].work = cost::work(m, &body);
            m.kernels[k].schedules.push(Schedule { tasks: tasks(&body), ..Schedule::new("scalars") });
        } else if body.form().is_compound() {
            // The pass that emits such a kernel also estimates its work.
            m.kernels[k].body = parts(m, k, compound::parts(body.into()), (facts, &program), None).into();
        } else {
            let key = key(m, &body, &program);
            let (new, (work, schedule)) = copies.emit(m, k, key, |m| {
                let (body, facts) = nest(m, k, &body, Within::Kernel, (facts, &program));
                Emitted { body, facts, alone: !program.asked.take() }
            });
            m.kernels[k].body = new.into();
            m.kernels[k].work = work;
            m.kernels[k].schedules.push(schedule);
        }
    }
    let caps = facts.caps;
    let known = !caps.has_partial(None) && caps.has_partial(Some(1));
    for k in visit::calls(&m.driver).into_iter().collect::<BTreeSet<Kernel>>() {
        if !caps.interleaves() && m.optimize.may_grow() {
            divide_chains::run(m, k);
        }
        let short = caps.lacks_short_masks() && m.has_short_elements(&m.kernels[k].body);
        if (known || short) && m.optimize.may_grow() {
            partial_vectors::run(m, k);
        }
        if facts.caps.tiles != Tiles::None {
            outline::run(m, k);
        }
    }
    m.kernels.values_mut().for_each(|k| k.scheduled = true);
    m.stage = Stage::Scheduled;
    Ok(())
}

/// The key of everything that the schedule of a kernel depends on, except for other kernels, with the buffers
/// in it.
fn key(m: &Module, body: &Body, program: &Program) -> (Key, Vec<Buf>) {
    let mut w = Writer::new(m);
    w.block(body);
    let accessed = visit::loads(body).into_iter().chain(visit::stores(body));
    accessed.for_each(|b| {
        program.borders.key(b, &mut w);
        program.gates.key(b, &mut w);
    });
    w.finish()
}

/// Schedules one nest, a kernel or a part of it; returns the body, its work and its schedule.
fn nest(
    m: &mut Module,
    k: Kernel,
    body: &Body,
    within: Within,
    (facts, program): (Facts, &Program),
) -> (Vec<Stmt>, (Dim, Schedule)) {
    let form = body.form();
    let plan = choose(m, &Request { k, body, form, within, facts, program });
    let (schedule, work) = (plan.schedule(m), plan.work());
    let body = plan.apply(m, k);
    let schedule = Schedule { form: form.name(), tasks: tasks(&body), ..schedule };
    (body, (work, schedule))
}

fn choose(m: &mut Module, request: &Request) -> Box<dyn Plan> {
    if let Some(plan) = SUMS.iter().find_map(|candidate| candidate(m, request)) {
        return plan;
    }
    // In maps, loops over digits replace divisions.
    let split = request.form.map().and_then(|_| split_div_mod::split(m, request.body)).map(Body::from);
    let request = split.as_ref().map_or(*request, |body| Request { body, form: body.form(), ..*request });
    match MAPS.iter().find_map(|candidate| candidate(m, &request)) {
        Some(plan) => plan,
        None => Box::new(Scalars { work: cost::work(m, request.body), body: request.body.to_vec() }),
    }
}

/// A nest that is not vectorized.
struct Scalars {
    body: Vec<Stmt>,
    work: Dim,
}

impl Plan for Scalars {
    fn schedule(&self, _: &Module) -> Schedule {
        Schedule::new("scalars")
    }
    fn work(&self) -> Dim {
        self.work
    }
    fn apply(self: Box<Self>, _: &mut Module, _: Kernel) -> Vec<Stmt> {
        self.body
    }
}

/// Schedules the nests of a compound kernel separately.
fn parts(
    m: &mut Module,
    k: Kernel,
    parts: Vec<Part>,
    facts: (Facts, &Program),
    outer: Option<Sym>,
) -> Vec<Stmt> {
    let mut out = vec![];
    for part in parts {
        match part {
            Part::Nest(body) => {
                let (body, (_, schedule)) = nest(m, k, &body, Within::Loop(outer), facts);
                m.kernels[k].schedules.push(schedule);
                out.extend(body);
            }
            Part::Around { mut stmt, bodies, again } => {
                for (to, parts) in stmt.bodies_mut().zip(bodies) {
                    *to = self::parts(m, k, parts, facts, again.or(outer));
                }
                out.push(stmt);
            }
        }
    }
    out
}
