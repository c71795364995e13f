//! Accesses and memory at small sizes: what proofs over symbols leave open.
//!
//! The driver is followed with numbers for the dim params: 0, 1, and numbers beside vector lengths. What data
//! decide is unknown. A statement that an unknown condition may skip is left alone, and of a loop with many
//! iterations only some run, so that a fault is certain: a call with these sizes makes the access.
//!
//! Modules are followed from stage Scheduled on: accesses of earlier stages are among them.

use super::{Fault, MAX_FAULTS, arena};
use crate::nest::interp::{eval_binop, eval_cast, eval_unop};
use crate::nest::{BinOp, Buf, Expr, Kernel, Module, Reg, Scalar, Stmt, visit};
use crate::sym::{Dim, Sym, SymKind};
use crate::tensor::ElemType;
use rayon::prelude::*;
use std::collections::HashSet;
use std::ops::ControlFlow;

/// Sizes that dim params take: no elements, one, and numbers beside the lengths of vectors and tiles.
const SIZES: [i64; 12] = [0, 1, 2, 3, 5, 7, 8, 9, 16, 17, 33, 64];

/// Statements that one kernel may take at one choice of sizes.
const STATEMENTS: u32 = 4096;

/// Faults at small sizes: those of statements, with the kernel that has them (`None`: the driver), and those
/// of buffers.
#[derive(Default)]
pub(super) struct Found {
    pub statements: Vec<(Option<Kernel>, Fault)>,
    pub buffers: Vec<String>,
}

/// Checks a module whose sizes are symbols. The first choice of sizes with faults is reported.
pub(super) fn check(m: &Module) -> Found {
    let places = arena::Lives::new(m);
    let symbolic: HashSet<Kernel> = m.kernels.keys().filter(|k| depends(m, *k)).collect();
    let faulty = |sizes: &Values| {
        let mut run = Run::new(m, &symbolic, sizes);
        run.driver();
        let mut found = std::mem::take(&mut run.found);
        if run.reached_end {
            found.buffers = places.faults(&|s| run.sizes.get(s));
        }
        (!found.statements.is_empty() || !found.buffers.is_empty()).then(|| named(m, sizes, found))
    };
    choices(m).par_iter().find_map_first(faulty).unwrap_or_default()
}

/// Values of symbols, by their numbers.
#[derive(Clone)]
struct Values(Vec<Option<i64>>);

impl Values {
    fn get(&self, s: Sym) -> Option<i64> {
        self.0.get(s.0 as usize).copied().flatten()
    }
    fn set(&mut self, s: Sym, v: Option<i64>) {
        if let Some(x) = self.0.get_mut(s.0 as usize) {
            *x = v;
        }
    }
    /// Derived symbols whose definitions have values now.
    fn derive(&mut self, m: &Module) {
        for (s, d) in m.syms.derived() {
            self.set(*s, d.eval(&|t| self.get(t)));
        }
    }
}

/// Whether an access of a kernel depends on a size that is a symbol.
fn depends(m: &Module, k: Kernel) -> bool {
    let open = |d: &Dim| d.syms().iter().any(|s| m.syms.kind(*s) != SymKind::Loop);
    let mut found = false;
    visit::walk(&m.kernels[k].body, &mut |s| found |= s.dims().iter().any(open));
    visit::accesses(&m.kernels[k].body, &mut |b, _| found |= m.bufs[b].dims.iter().any(open));
    found
}

/// The faults of a choice, with the sizes in front.
fn named(m: &Module, sizes: &Values, mut found: Found) -> Found {
    let sizes = m.dim_params.iter().filter_map(|s| Some(format!("{} = {}", m.syms.name(*s), sizes.get(*s)?)));
    let with = format!("with {}: ", sizes.collect::<Vec<_>>().join(", "));
    found.statements.iter_mut().for_each(|(_, f)| f.text.insert_str(0, &with));
    found.buffers.iter_mut().for_each(|text| text.insert_str(0, &with));
    found
}

/// Values of the dim params, and of what follows from them, for which the entry lets a call pass.
fn choices(m: &Module) -> Vec<Values> {
    let open = |s: &Sym| m.syms.bound_value(*s).is_none();
    let params: Vec<Sym> = m.dim_params.iter().copied().filter(open).collect();
    // All params alike, and each with a size of its own.
    let steps: &[usize] = match params.len() {
        0 => &[],
        1 => &[0],
        _ => &[0, 1, 5],
    };
    let at = |first: usize, step: usize| {
        let mut sizes = Values(m.syms.iter().map(|s| m.syms.bound_value(s)).collect());
        params
            .iter()
            .enumerate()
            .for_each(|(i, s)| sizes.set(*s, Some(SIZES[(first + i * step) % SIZES.len()])));
        sizes.derive(m);
        sizes
    };
    let in_range = |sizes: &Values| {
        params.iter().all(|s| sizes.get(*s).is_some_and(|v| m.syms.declared_range(*s).contains(v)))
    };
    let passes = |sizes: &Values| {
        m.syms.conditions().iter().all(|c| m.syms.holds(*c, &|s| sizes.get(s)) != Some(false))
    };
    let all = steps.iter().flat_map(|step| (0..SIZES.len()).map(move |first| at(first, *step)));
    all.filter(|sizes| in_range(sizes) && passes(sizes)).collect()
}

/// A call with these sizes.
struct Run<'a> {
    m: &'a Module,
    /// Symbols whose values are known: params, sizes that follow from them, variables of loops around.
    sizes: Values,
    /// Registers whose values are known.
    regs: Vec<Option<Scalar>>,
    /// Kernels that depend on sizes.
    symbolic: &'a HashSet<Kernel>,
    kernel: Option<Kernel>,
    /// Loops around.
    depth: u32,
    /// Statements that the kernel may still take.
    budget: u32,
    /// Statements with a fault.
    faulty: HashSet<usize>,
    here: usize,
    found: Found,
    reached_end: bool,
}

/// `Break`: the call has left with a status.
type Flow = ControlFlow<()>;

impl<'a> Run<'a> {
    fn new(m: &'a Module, symbolic: &'a HashSet<Kernel>, sizes: &Values) -> Self {
        Run {
            m,
            sizes: sizes.clone(),
            regs: vec![None; m.regs.len()],
            symbolic,
            kernel: None,
            depth: 0,
            budget: STATEMENTS,
            faulty: HashSet::new(),
            here: 0,
            found: Found::default(),
            reached_end: false,
        }
    }
    fn driver(&mut self) {
        self.reached_end = self.block(&self.m.driver).is_continue();
    }
    fn dim(&self, d: Dim) -> Option<i64> {
        d.as_const().or_else(|| d.eval(&|s| self.sizes.get(s)))
    }
    fn block(&mut self, body: &'a [Stmt]) -> Flow {
        for s in body {
            if self.budget == 0 {
                break;
            }
            self.budget -= 1;
            self.here = std::ptr::from_ref(s).addr();
            self.stmt(s)?;
        }
        Flow::Continue(())
    }
    fn stmt(&mut self, s: &'a Stmt) -> Flow {
        match s {
            Stmt::For { var, lo, hi, body, .. } => return self.iterations(*var, *lo, *hi, body),
            Stmt::Let { reg, value } => self.keep(*reg, value)?,
            Stmt::Acc { init: value, .. } | Stmt::Set { value, .. } => _ = self.value(value)?,
            Stmt::Store { buf, at, value } => {
                self.value(value)?;
                self.access(*buf, at);
            }
            Stmt::Tile { body } => return self.block(body),
            Stmt::If { cond, then, els } => match self.truth(cond)? {
                Some(true) => return self.block(then),
                Some(false) => return self.block(els),
                None => [then, els].into_iter().for_each(|b| self.skip(b)),
            },
            Stmt::While { cond, body } => {
                self.truth(cond)?;
                self.skip(body);
            }
            Stmt::With { sym, value, extent, body } => {
                self.bind(*sym, value, *extent)?;
                return self.block(body);
            }
            Stmt::Define { sym, value, lo, hi } => return self.define(*sym, value, *lo, *hi),
            Stmt::Check { cond, .. } => {
                if self.truth(cond)? == Some(false) {
                    return Flow::Break(());
                }
            }
            Stmt::Call(k) => return self.call(*k),
            Stmt::Foreign(_) | Stmt::Prefetch { .. } => {}
        }
        Flow::Continue(())
    }
    /// Some of the iterations of a loop: all of them where they are few, otherwise those at the ends and one
    /// between.
    fn iterations(&mut self, var: Sym, lo: Dim, hi: Dim, body: &'a [Stmt]) -> Flow {
        let (Some(lo), Some(hi)) = (self.dim(lo), self.dim(hi)) else {
            self.skip(body);
            return Flow::Continue(());
        };
        let count = hi.saturating_sub(lo);
        let mut some = match (count, self.depth) {
            (..=0, _) => vec![],
            (1..=3, _) => (lo..hi).collect(),
            (_, ..=2) => vec![lo, lo + 1, lo + count / 2, hi - 1],
            _ => vec![lo, hi - 1],
        };
        some.dedup();
        self.depth += 1;
        let flow = some.into_iter().try_for_each(|i| {
            self.sizes.set(var, Some(i));
            self.block(body)
        });
        self.depth -= 1;
        self.sizes.set(var, None);
        flow
    }
    fn call(&mut self, k: Kernel) -> Flow {
        if !self.symbolic.contains(&k) {
            return Flow::Continue(());
        }
        let m = self.m;
        let (outer, left) = (self.kernel.replace(k), std::mem::replace(&mut self.budget, STATEMENTS));
        let flow = self.block(&m.kernels[k].body);
        (self.kernel, self.budget) = (outer, left);
        flow
    }
    fn define(&mut self, sym: Sym, value: &'a Expr, lo: Dim, hi: Option<Dim>) -> Flow {
        let v = self.value(value)?.map(Scalar::to_i64);
        let least = self.dim(lo).is_none_or(|lo| v.is_none_or(|v| v >= lo));
        let most = hi.and_then(|h| self.dim(h)).is_none_or(|hi| v.is_none_or(|v| v <= hi));
        if !(least && most) {
            return Flow::Break(());
        }
        self.sizes.set(sym, v);
        self.sizes.derive(self.m);
        Flow::Continue(())
    }
    /// Statements that may not happen: the sizes that they define are unknown afterwards.
    fn skip(&mut self, body: &[Stmt]) {
        visit::walk(body, &mut |s| {
            if let Stmt::Define { sym, .. } = s {
                self.sizes.set(*sym, None);
            }
        });
    }
    fn keep(&mut self, reg: Reg, value: &'a Expr) -> Flow {
        self.regs[reg.as_u32() as usize] = self.value(value)?;
        Flow::Continue(())
    }
    fn bind(&mut self, sym: Sym, value: &'a Expr, extent: Dim) -> Flow {
        let (v, extent) = (self.value(value)?.map(Scalar::to_i64), self.dim(extent));
        match (v, extent) {
            (Some(v), Some(n)) if !(0..n).contains(&v) => return Flow::Break(()),
            // Nothing is in range where there is nothing.
            (None, Some(0)) => return Flow::Break(()),
            (v, _) => self.sizes.set(sym, v),
        }
        Flow::Continue(())
    }
    fn truth(&mut self, e: &'a Expr) -> ControlFlow<(), Option<bool>> {
        let v = self.value(e)?;
        ControlFlow::Continue(v.map(|v| v.bits != 0))
    }
    /// The value of an expression where it follows from sizes; checks the accesses that it makes.
    fn value(&mut self, e: &'a Expr) -> ControlFlow<(), Option<Scalar>> {
        let v = match e {
            Expr::Const(c) => Some(*c),
            Expr::Reg(r) => self.regs[r.as_u32() as usize],
            Expr::Index(d) => self.dim(*d).map(|v| Scalar::int(ElemType::I64, v)),
            Expr::Load { buf, at } => {
                self.access(*buf, at);
                None
            }
            Expr::Un(op, a) => self.value(a)?.map(|a| eval_unop(*op, a)),
            Expr::Cast(t, a) => self.value(a)?.map(|a| eval_cast(*t, a)),
            Expr::Bin(op, a, b) => {
                let (a, b) = (self.value(a)?, self.value(b)?);
                combined(*op, a, b)
            }
            Expr::Select(c, a, b) => match self.truth(c)? {
                Some(c) => self.value(if c { a } else { b })?,
                None => None,
            },
            Expr::Let { reg, value, body } => {
                self.keep(*reg, value)?;
                self.value(body)?
            }
            Expr::With { sym, value, extent, body } => {
                self.bind(*sym, value, *extent)?;
                self.value(body)?
            }
            e => {
                for c in e.children() {
                    self.value(c)?;
                }
                None
            }
        };
        ControlFlow::Continue(v)
    }
    fn access(&mut self, buf: Buf, at: &[Dim]) {
        let d = &self.m.bufs[buf];
        for (i, (x, n)) in at.iter().zip(&d.dims).enumerate() {
            if let (Some(x), Some(n)) = (self.dim(*x), self.dim(*n))
                && !(0..n).contains(&x)
                && self.faulty.insert(self.here)
                && self.found.statements.len() < MAX_FAULTS
            {
                let text = format!("subscript {i} of \"{}\" is {x}, outside 0..{n}", d.name);
                self.found.statements.push((self.kernel, Fault { stmt: self.here, text }));
            }
        }
    }
}

/// The value of an operation, of which one operand may be enough.
fn combined(op: BinOp, a: Option<Scalar>, b: Option<Scalar>) -> Option<Scalar> {
    let decides = |v: &Scalar| {
        v.ty == ElemType::Bool && (op == BinOp::And && v.bits == 0 || op == BinOp::Or && v.bits != 0)
    };
    match (a, b) {
        (Some(a), Some(b)) => eval_binop(op, a, b),
        (a, b) => a.filter(decides).or(b.filter(decides)),
    }
}
