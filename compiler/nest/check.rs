//! The part of the verifier that checks one body: types, scopes, accumulators, loops, and that accesses are
//! in range.

mod expr;

use super::facts::{Facts, Values};
use super::verify::Limits;
use super::*;
use crate::sym::{Answer, SymKind};
use std::collections::{HashMap, HashSet};

/// A broken rule.
pub(super) struct Fault {
    /// Address of the statement (0: none).
    pub stmt: usize,
    /// What is wrong.
    pub text: String,
}

/// A register in scope.
#[derive(Clone, Copy)]
enum Def<'a> {
    Value,
    /// `loops` surround its definition.
    Acc {
        lanes: u32,
        shape: &'a [u32],
        loops: usize,
    },
}

/// Checks the statements of a kernel, or of the driver.
pub(super) struct Body<'a> {
    m: &'a Module,
    driver: bool,
    scheduled: bool,
    limits: Option<&'a Limits>,
    facts: Facts<'a>,
    values: Values<'a>,
    regs: HashMap<Reg, Def<'a>>,
    scope_regs: Vec<Reg>,
    defined_regs: HashSet<Reg>,
    vars: HashMap<Sym, Option<LoopKind>>,
    defined_syms: HashSet<Sym>,
    loops: Vec<LoopKind>,
    free: HashSet<Sym>,
    here: usize,
    faults: Vec<Fault>,
}

impl<'a> Body<'a> {
    /// An empty scope. `k`: the kernel of the body; `None` for the driver.
    pub fn new(m: &'a Module, k: Option<Kernel>, limits: Option<&'a Limits>) -> Self {
        Body {
            m,
            driver: k.is_none(),
            limits,
            scheduled: k.is_some_and(|k| m.kernels[k].scheduled),
            facts: Facts::new(&m.syms),
            values: HashMap::new(),
            regs: HashMap::new(),
            scope_regs: vec![],
            defined_regs: HashSet::new(),
            vars: HashMap::new(),
            defined_syms: HashSet::new(),
            loops: vec![],
            free: HashSet::new(),
            here: 0,
            faults: vec![],
        }
    }
    /// Symbols that were used and are not loop variables, and the faults.
    pub fn finish(self) -> (HashSet<Sym>, Vec<Fault>) {
        (self.free, self.faults)
    }
    fn fault(&mut self, text: impl Into<String>) {
        self.faults.push(Fault { stmt: self.here, text: text.into() });
    }
    /// Checks statements in a scope of their own.
    pub fn block(&mut self, body: &'a [Stmt]) {
        let (regs, facts) = (self.scope_regs.len(), self.facts.mark());
        for s in body {
            self.here = std::ptr::from_ref(s).addr();
            self.stmt(s);
        }
        for r in self.scope_regs.drain(regs..) {
            self.regs.remove(&r);
            self.values.remove(&r);
        }
        self.facts.forget(facts);
    }
    fn define_reg(&mut self, r: Reg, def: Def<'a>) {
        if !self.defined_regs.insert(r) {
            self.fault("a register has two definitions");
        }
        self.regs.insert(r, def);
    }
    fn define_sym(&mut self, s: Sym, kind: Option<LoopKind>) {
        if self.m.syms.kind(s) != SymKind::Loop || !self.defined_syms.insert(s) {
            self.fault(format!("{} has two definitions, or is no loop variable", self.m.syms.unique_name(s)));
        }
        self.vars.insert(s, kind);
    }
    fn dim(&mut self, d: Dim) {
        if d.is_overflow() {
            self.fault("an index has no 64-bit value");
        }
        self.dim_syms(d);
    }
    fn dim_syms(&mut self, d: Dim) {
        if d.as_const().is_some() {
            return;
        }
        for s in d.syms() {
            if self.m.syms.kind(s) != SymKind::Loop {
                self.free.insert(s);
            } else if !self.vars.contains_key(&s) {
                self.fault(format!("{} is used outside its loop", self.m.syms.unique_name(s)));
            }
        }
    }
    fn want(&mut self, found: ElemType, expected: ElemType, what: &str) {
        if found != expected {
            self.fault(format!("{what}: found {}, expected {}", found.short(), expected.short()));
        }
    }
    fn stmt(&mut self, s: &'a Stmt) {
        match s {
            Stmt::For { kind, var, lo, hi, body } => self.for_loop(*kind, *var, *lo, *hi, body),
            Stmt::Let { reg, value } => {
                let t = self.expr(value);
                self.want(t, self.m.regs[*reg].ty, "type of the register's value");
                self.define_reg(*reg, Def::Value);
                self.scope_regs.push(*reg);
                self.values.insert(*reg, value);
            }
            Stmt::Acc { reg, lanes, shape, init } => {
                let t = self.expr(init);
                self.want(t, self.m.regs[*reg].ty, "type of the accumulator's start");
                if *lanes == 0 || shape.contains(&0) {
                    self.fault("an accumulator has no elements");
                }
                if *lanes > 1 && !self.scheduled {
                    self.fault("an accumulator has lanes before the kernel is scheduled");
                }
                self.define_reg(*reg, Def::Acc { lanes: *lanes, shape, loops: self.loops.len() });
                self.scope_regs.push(*reg);
            }
            Stmt::Set { reg, at, value } => {
                let t = self.expr(value);
                self.want(t, self.m.regs[*reg].ty, "type of the accumulator's value");
                if let Some((lanes, loops)) = self.acc(*reg, at) {
                    self.current_lane(lanes);
                    let inner = &self.loops[loops..];
                    if inner
                        .iter()
                        .any(|k| matches!(k, LoopKind::Par) || (lanes == 1 && matches!(k, LoopKind::Vec(_))))
                    {
                        self.fault("iterations of a par or vec loop set one accumulator");
                    }
                }
            }
            Stmt::Store { buf, at, value } => {
                let t = self.expr(value);
                self.want(t, self.m.bufs[*buf].ty.compute(), "type of the stored value");
                if self.m.is_packed(*buf) {
                    self.fault(format!(
                        "a store to \"{}\", whose elements are packed",
                        self.m.bufs[*buf].name
                    ));
                }
                self.access(*buf, at);
            }
            Stmt::Prefetch { buf, at } => {
                let d = &self.m.bufs[*buf];
                if at.len() != d.dims.len() {
                    self.fault(format!(
                        "\"{}\": found {} subscripts, expected {}",
                        d.name,
                        at.len(),
                        d.dims.len()
                    ));
                }
                at.iter().for_each(|d| self.dim(*d));
            }
            Stmt::Tile { body } => {
                if !self.scheduled {
                    self.fault("a tile before the kernel is scheduled");
                }
                if visit::any(body, &mut |s| !s.may_stand_in_tile()) {
                    self.fault("a statement in a tile that is no loop, value, accumulator, branch or store");
                }
                if !visit::any(body, &mut |s| matches!(s, Stmt::For { kind: LoopKind::Vec(_), .. })) {
                    self.fault("a tile without a vec loop");
                }
                self.block(body);
            }
            Stmt::If { cond, then, els } => {
                self.truth(cond);
                let mark = self.facts.mark();
                self.facts.assume(cond, true, &self.values);
                self.block(then);
                self.facts.forget(mark);
                self.facts.assume(cond, false, &self.values);
                self.block(els);
                self.facts.forget(mark);
            }
            Stmt::While { cond, body } => {
                self.truth(cond);
                self.block(body);
            }
            Stmt::With { sym, value, extent, body } => {
                self.bind(*sym, value, *extent);
                let (mark, here) = (self.facts.mark(), self.here);
                self.block(body);
                self.here = here;
                self.facts.forget(mark);
                self.vars.remove(sym);
            }
            Stmt::Define { value, lo, hi, .. } => {
                if !self.driver {
                    self.fault("a size is defined inside a kernel");
                }
                let t = self.expr(value);
                self.want(t, ElemType::I64, "type of a size");
                self.dim(*lo);
                hi.iter().for_each(|h| self.dim(*h));
            }
            Stmt::Check { cond, .. } => {
                self.truth(cond);
                self.facts.assume(cond, true, &self.values);
            }
            Stmt::Call(_) | Stmt::Foreign(_) => {
                if !self.driver {
                    self.fault("a kernel calls a kernel");
                }
            }
        }
    }
    fn for_loop(&mut self, kind: LoopKind, var: Sym, lo: Dim, hi: Dim, body: &'a [Stmt]) {
        self.dim(lo);
        self.dim(hi);
        let syms = &self.m.syms;
        match kind {
            LoopKind::Vec(n) => {
                if n < 2 {
                    self.fault(format!("a vec({n}) loop"));
                }
                if let Some(l) = self.limits.filter(|l| l.lanes != n && l.lanes != 2 * n) {
                    self.fault(format!("a vec({n}) loop on a level with vectors of {} lanes", l.lanes));
                }
                if self.loops.iter().any(|k| matches!(k, LoopKind::Vec(_))) {
                    self.fault("a vec loop inside a vec loop");
                }
            }
            LoopKind::Unroll if lo.as_const().is_none() || hi.as_const().is_none() => {
                self.fault("the bounds of an unroll loop are not constant")
            }
            _ => {}
        }
        if matches!(kind, LoopKind::Vec(_) | LoopKind::Unroll) && !self.scheduled {
            self.fault("a vec or unroll loop before the kernel is scheduled");
        }
        self.define_sym(var, Some(kind));
        let mark = self.facts.mark();
        // Proofs use the range in the symbol table, which must contain every iteration; if it is wider, the
        // bounds are facts.
        match syms.loop_range(var) {
            Some((l, h)) if (l, h) == (lo, hi) => {}
            Some((l, h)) => {
                if !self.facts.le(l, lo) || !self.facts.le(hi, h) {
                    self.fault(format!(
                        "the table says that the loop variable is in {}..{}",
                        l.display(syms),
                        h.display(syms)
                    ));
                }
                self.facts.learn(Dim::sym(var) - lo);
                self.facts.learn(hi - 1 - Dim::sym(var));
            }
            None => self.fault("the loop variable has no range"),
        }
        self.loops.push(kind);
        let here = self.here;
        self.block(body);
        self.here = here;
        self.loops.pop();
        self.vars.remove(&var);
        self.facts.forget(mark);
    }
    /// Lanes of an accumulator and the loops around its definition; checks subscripts.
    fn acc(&mut self, reg: Reg, at: &[Dim]) -> Option<(u32, usize)> {
        let Some(Def::Acc { lanes, shape, loops }) = self.regs.get(&reg).copied() else {
            self.fault("an accumulator is used outside its scope");
            return None;
        };
        if at.len() != shape.len() {
            self.fault(format!("accumulator: found {} subscripts, expected {}", at.len(), shape.len()));
            return None;
        }
        for (d, n) in at.iter().zip(shape) {
            self.number(*d);
            if !self.facts.in_range(*d, Dim::from(*n)) {
                self.fault(format!("a subscript of an accumulator may leave 0..{n}"));
            }
        }
        Some((lanes, loops))
    }
    /// The dim must be constant after unrolling.
    fn number(&mut self, d: Dim) {
        self.dim(d);
        if d.syms().iter().any(|s| self.vars.get(s) != Some(&Some(LoopKind::Unroll))) {
            self.fault("a subscript of an accumulator is not constant after unrolling");
        }
    }
    /// Without a subscript, lanes are those of the surrounding vec loop.
    fn current_lane(&mut self, lanes: u32) {
        let vec = self.loops.iter().find_map(|k| if let LoopKind::Vec(n) = k { Some(*n) } else { None });
        if lanes > 1 && vec != Some(lanes) {
            self.fault(format!(
                "an accumulator of {lanes} lanes is used as a whole outside a vec({lanes}) loop"
            ));
        }
    }
    fn access(&mut self, buf: Buf, at: &[Dim]) {
        let m = self.m;
        let d = &m.bufs[buf];
        if at.len() != d.dims.len() {
            self.fault(format!("\"{}\": found {} subscripts, expected {}", d.name, at.len(), d.dims.len()));
            return;
        }
        for (i, (x, n)) in at.iter().zip(&d.dims).enumerate() {
            self.dim(*x);
            // Over numbers a proof exists or the access is wrong; over symbolic sizes the prover may just not
            // find it.
            if !self.symbolic(*x, *n) && !self.facts.in_range(*x, *n) && !self.facts.excuses(*x) {
                self.fault(format!("subscript {i} of \"{}\" may leave 0..{}", d.name, n.display(&m.syms)));
            }
        }
    }
    /// True if the comparison depends on run-time sizes.
    fn symbolic(&self, x: Dim, n: Dim) -> bool {
        let syms = &self.m.syms;
        let mut open: Vec<_> = x.syms().into_iter().chain(n.syms()).collect();
        let mut seen = std::collections::BTreeSet::new();
        while let Some(s) = open.pop() {
            match syms.loop_range(s) {
                None => return true,
                Some((lo, hi)) if seen.insert(s) => open.extend(lo.syms().into_iter().chain(hi.syms())),
                Some(_) => {}
            }
        }
        false
    }
}
