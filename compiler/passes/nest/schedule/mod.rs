//! schedule: tiles for contractions, vectors for the rest (stage Scheduled).
//!
//! Each nest is visited once. `choose` asks the candidates in turn; the first that knows the nest prepares it
//! (joins loops where memory runs on, lays out small constants anew) and decides how it runs: a `Plan`. The
//! plan's schedule is kept with the kernel, and the plan applied. A candidate is a file here and a row of
//! `SUMS` or `MAPS`.
//!
//! A kernel is one nest, or a parallel loop around several of them (`form::compound`): then each is scheduled
//! by itself, as if it were a kernel.

pub mod along_sum;
mod clip;
pub mod contract;
pub mod conv_pool;
pub mod depthwise;
pub mod few_rows;
pub mod lanes;
mod outline;
pub mod pack;
pub mod rows;
pub mod split_div_mod;
pub mod tiles;
pub mod transpose;

use crate::diag::Result;
use crate::nest::schedule::{Schedule, tasks};
use crate::nest::{Body, BufData, Kernel, Module, Place, Stage, Stmt, visit};
use crate::passes::nest::analysis::borders::Borders;
use crate::passes::nest::analysis::cost;
use crate::passes::nest::analysis::form::Form;
use crate::passes::nest::analysis::form::compound::{self, Part};
use crate::passes::nest::analysis::machine::L2;
use crate::passes::nest::analysis::uses::Uses;
use crate::sym::{Dim, Sym};
use crate::target::{Facts, Level, Tiles};

/// A nest that needs a schedule.
#[derive(Clone, Copy)]
pub(crate) struct Request<'a> {
    /// The kernel that has it, which the driver calls.
    pub k: Kernel,
    /// The nest.
    pub body: &'a [Stmt],
    /// What it is.
    pub form: &'a Form,
    /// What it is part of.
    pub within: Within,
    /// The level's vectors and registers.
    pub facts: Facts,
    /// The module around it.
    pub program: &'a Program,
}

/// What is known of a module as a whole when the pass begins, for all of its nests.
pub(crate) struct Program {
    /// Who writes and reads each buffer.
    pub uses: Uses,
    /// Zeros around images.
    pub borders: Borders,
    /// Constants do not fit a second-level cache: others were read since each was last.
    pub large: bool,
}

impl Program {
    fn new(m: &Module) -> Program {
        let bytes = |b: &BufData| if let Place::Const(c) = &b.place { c.byte_len() } else { 0 };
        let uses = Uses::new(m);
        let borders = Borders::new(m, &uses);
        Program { uses, borders, large: m.bufs.values().map(bytes).sum::<u64>() > L2 as u64 }
    }
}

/// What a nest is part of.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Within {
    /// Nothing: it is the kernel.
    Kernel,
    /// A larger kernel; the loop that runs it again and again, if any.
    Loop(Option<Sym>),
}

/// A schedule that was chosen for a nest, with the nest in the form that the schedule speaks of.
pub(crate) trait Plan {
    /// The schedule, without its tasks.
    fn schedule(&self, m: &Module) -> Schedule;
    /// Scalar operations of the nest, as `KernelData::work` counts.
    fn work(&self) -> Dim;
    /// The scheduled nest. Everything is decided; kernels that prepare operands are added before `k`.
    fn apply(self: Box<Self>, m: &mut Module, k: Kernel) -> Vec<Stmt>;
}

/// Chooses a schedule for nests of its kind; None for others. It may make symbols and constants, but changes
/// no kernel.
type Candidate = fn(&mut Module, &Request) -> Option<Box<dyn Plan>>;

/// Schedules of sums with two factors.
const SUMS: &[Candidate] = &[
    conv_pool::choose,
    along_sum::choose,
    depthwise::choose_groups,
    few_rows::choose,
    contract::choose,
    depthwise::choose,
];
/// Schedules of everything, where loops over digits have taken the place of divisions; the last one takes any
/// nest.
const MAPS: &[Candidate] = &[transpose::choose, lanes::choose];

/// Runs the pass.
pub fn run(m: &mut Module, level: &Level) -> Result<()> {
    let facts = level.facts;
    let program = Program::new(m);
    for k in visit::calls(&m.driver) {
        if std::mem::replace(&mut m.kernels[k].scheduled, true) {
            continue;
        }
        let body = m.kernels[k].body.clone();
        if facts.lanes == 1 || visit::has_opaque(m, &body) {
            m.kernels[k].work = cost::work(m, &body);
            m.kernels[k].schedules.push(Schedule { tasks: tasks(&body), ..Schedule::new("scalars") });
        } else if body.form().is_compound() {
            // Who writes such a kernel estimates its work.
            m.kernels[k].body = parts(m, k, compound::parts(body.into()), (facts, &program), None).into();
        } else {
            let (body, work) = nest(m, k, &body, Within::Kernel, (facts, &program));
            m.kernels[k].body = body.into();
            m.kernels[k].work = work;
        }
    }
    if facts.caps.tiles != Tiles::None {
        visit::calls(&m.driver).into_iter().for_each(|k| outline::run(m, k));
    }
    m.kernels.values_mut().for_each(|k| k.scheduled = true);
    m.stage = Stage::Scheduled;
    Ok(())
}

/// Schedules one nest, the whole kernel or a part of it: the body, and its work.
fn nest(
    m: &mut Module,
    k: Kernel,
    body: &Body,
    within: Within,
    (facts, program): (Facts, &Program),
) -> (Vec<Stmt>, Dim) {
    let form = body.form();
    let plan = choose(m, &Request { k, body, form, within, facts, program });
    let (schedule, work) = (plan.schedule(m), plan.work());
    let body = plan.apply(m, k);
    m.kernels[k].schedules.push(Schedule { form: form.name(), tasks: tasks(&body), ..schedule });
    (body, work)
}

fn choose(m: &mut Module, request: &Request) -> Box<dyn Plan> {
    if let Some(plan) = SUMS.iter().find_map(|candidate| candidate(m, request)) {
        return plan;
    }
    // Of a map, loops over digits replace divisions.
    let split = request.form.map().and_then(|_| split_div_mod::split(m, request.body)).map(Body::from);
    let request = split.as_ref().map_or(*request, |body| Request { body, form: body.form(), ..*request });
    match MAPS.iter().find_map(|candidate| candidate(m, &request)) {
        Some(plan) => plan,
        None => Box::new(Scalars { work: cost::work(m, request.body), body: request.body.to_vec() }),
    }
}

/// A nest as it is.
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

/// Schedules the nests of a compound kernel, each by itself.
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
            Part::Nest(body) => out.extend(nest(m, k, &body, Within::Loop(outer), facts).0),
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
