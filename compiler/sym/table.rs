//! The table of symbols: names, kinds, ranges and the facts that later proofs may use.

use super::{Dim, Sym};
use std::collections::HashMap;
use std::sync::Arc;

/// Result of a proof attempt. Yes and No are proofs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Answer {
    Yes,
    No,
    Unknown,
}

/// Inclusive integer interval; `None` is unbounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Range {
    /// Smallest value.
    pub lo: Option<i64>,
    /// Largest value.
    pub hi: Option<i64>,
}

impl Range {
    /// Both ends given.
    pub fn new(lo: i64, hi: i64) -> Range {
        Range { lo: Some(lo), hi: Some(hi) }
    }
    /// Everything from `lo`.
    pub fn at_least(lo: i64) -> Range {
        Range { lo: Some(lo), hi: None }
    }
    /// True if the value lies in it.
    pub fn contains(self, v: i64) -> bool {
        self.lo.is_none_or(|lo| v >= lo) && self.hi.is_none_or(|hi| v <= hi)
    }
}

/// Where a symbol's value comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SymKind {
    /// A `dim_param` of the model: an argument of the generated function.
    Param,
    /// An unnamed dimension of an input: an argument as well.
    Unnamed,
    /// Defined by generated code.
    Runtime,
    /// A formula over older sizes that are known at entry ([`SymTable::name_formula`]).
    Derived,
    /// A loop variable, or an index bound by `With`.
    Loop,
}

/// A condition that could not be proven. Generated code checks it as soon as the sizes in it are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Condition {
    /// Both must be equal.
    Equal(Dim, Dim),
    /// Both must be equal, or one of them 1.
    Broadcast(Dim, Dim),
    /// The first must not exceed the second.
    AtMost(Dim, Dim),
}

/// The node that recorded a condition, for the message of a call that fails it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Source {
    /// Name of the node; empty if it has none.
    pub node: String,
    /// Its operator.
    pub op: String,
    /// Its operands and results with their dims.
    pub tensors: Vec<(String, Vec<Dim>)>,
}

#[derive(Clone, Debug)]
struct SymData {
    name: String,
    kind: SymKind,
    range: Range,
    bound: Option<i64>,
    looped: Option<(Dim, Dim)>,
}

/// All symbols of one model. Names of params are unique; loop variables only have hints.
#[derive(Clone, Debug, Default)]
pub struct SymTable {
    syms: Vec<SymData>,
    by_name: HashMap<String, Sym>,
    /// Last number given to a repeated hint, so that a fresh symbol needs no search.
    numbered: HashMap<String, u32>,
    any_bound: bool,
    conditions: Vec<Condition>,
    /// A condition that no sizes satisfy, recorded since the last [`SymTable::take_impossible`].
    pub(super) impossible: Option<Condition>,
    /// Conditions without a source yet ([`SymTable::claim`]).
    unclaimed: Vec<Condition>,
    sources: HashMap<Condition, Arc<Source>>,
    facts: Vec<(Sym, Dim)>,
    /// Lower bounds of expressions (without their constants) that conditions establish.
    pub(super) lower: Vec<(Dim, i64)>,
    /// Definitions of derived symbols, in order.
    derived: Vec<(Sym, Dim)>,
    /// Pairs `(a, b)` for which a condition establishes that `a` is 1 or equal to `b` (see `broadcast`).
    pub(super) below: Vec<(Dim, Dim)>,
    pub(super) uppers: Vec<super::upper::Upper>,
    /// How many scopes are open ([`SymTable::open`]).
    pub(super) scopes: u32,
    /// The cost of inference so far, for `diag::limits`: bodies (`BODY_NODES`) and patterns (`TABLE_BYTES`).
    spent: [u64; 2],
    /// Texts of dims may be expressions over other dims (`--dim-expressions`).
    pub expressions: bool,
}

/// The state of a [`SymTable`] before a scope was opened.
#[derive(Clone, Debug)]
pub struct Scope {
    conditions: Vec<Condition>,
    facts: Vec<(Sym, Dim)>,
    lower: usize,
    below: usize,
}

impl Condition {
    /// The sizes in it.
    pub fn dims(self) -> [Dim; 2] {
        match self {
            Condition::Equal(a, b) | Condition::Broadcast(a, b) | Condition::AtMost(a, b) => [a, b],
        }
    }
}

impl SymTable {
    /// An empty table.
    pub fn new() -> Self {
        Self::default()
    }
    /// An empty table; `expressions` says whether texts of dims may be expressions over other dims.
    pub fn reading(expressions: bool) -> Self {
        SymTable { expressions, ..Self::default() }
    }
    /// Adds to the cost of inferring branches and bodies, and returns the sum.
    pub fn spend_on_bodies(&mut self, cost: u64) -> u64 {
        self.spent[0] = self.spent[0].saturating_add(cost);
        self.spent[0]
    }
    /// Adds to the cost of tables of patterns, and returns the sum.
    pub fn spend_on_patterns(&mut self, cost: u64) -> u64 {
        self.spent[1] = self.spent[1].saturating_add(cost);
        self.spent[1]
    }
    fn push(&mut self, name: String, kind: SymKind, range: Range) -> Sym {
        let s = Sym(self.syms.len() as u32);
        self.syms.push(SymData { name, kind, range, bound: None, looped: None });
        s
    }
    /// The symbol of a `dim_param`: one for each name in the whole model. Sizes are never negative.
    pub fn param(&mut self, name: &str) -> Sym {
        match self.by_name.get(name).copied() {
            Some(s) if self.kind(s) == SymKind::Param => return s,
            // A generated name is given up if the model uses it.
            Some(s) => {
                self.by_name.remove(name);
                let other = self.unused(&format!("{name}_2"));
                self.by_name.insert(other.clone(), s);
                self.syms[s.0 as usize].name = other;
            }
            None => {}
        }
        let s = self.push(name.to_owned(), SymKind::Param, Range::at_least(0));
        self.by_name.insert(name.to_owned(), s);
        s
    }
    /// True if the model has a dim of this name.
    pub fn is_param(&self, name: &str) -> bool {
        self.lookup(name).is_some_and(|s| self.kind(s) == SymKind::Param)
    }
    /// A name made from `hint` that no other symbol has.
    fn unused(&mut self, hint: &str) -> String {
        let mut name = hint.to_owned();
        while self.by_name.contains_key(&name) {
            let n = self.numbered.entry(hint.to_owned()).or_insert(1);
            *n += 1;
            name = format!("{hint}_{n}");
        }
        name
    }
    /// A new size with a unique name made from `hint`.
    pub fn fresh(&mut self, kind: SymKind, hint: &str) -> Sym {
        let name = self.unused(hint);
        let s = self.push(name.clone(), kind, Range::at_least(0));
        self.by_name.insert(name, s);
        s
    }
    /// A new run-time number that may be negative: a position, a step.
    pub fn fresh_number(&mut self, hint: &str, range: Range) -> Sym {
        let s = self.fresh(SymKind::Runtime, hint);
        self.syms[s.0 as usize].range = range;
        s
    }
    /// A new loop variable over `lo..hi` (hi excluded).
    pub fn loop_var(&mut self, hint: &str, lo: Dim, hi: Dim) -> Sym {
        let s = self.push(hint.to_owned(), SymKind::Loop, Range::default());
        self.syms[s.0 as usize].looped = Some((lo, hi));
        s
    }
    fn data(&self, s: Sym) -> &SymData {
        &self.syms[s.0 as usize]
    }
    /// Changes the bounds of a loop variable.
    pub fn set_loop_range(&mut self, s: Sym, lo: Dim, hi: Dim) {
        self.syms[s.0 as usize].looped = Some((lo, hi));
    }
    /// Bounds of a loop variable, `lo..hi`.
    pub fn loop_range(&self, s: Sym) -> Option<(Dim, Dim)> {
        self.data(s).looped
    }
    /// True if loop variables occur in it.
    pub fn has_loops(&self, d: Dim) -> bool {
        d.syms().iter().any(|s| self.loop_range(*s).is_some())
    }
    /// Its name; a hint for loop variables.
    pub fn name(&self, s: Sym) -> &str {
        &self.data(s).name
    }
    /// Where its value comes from.
    pub fn kind(&self, s: Sym) -> SymKind {
        self.data(s).kind
    }
    /// The size of that name.
    pub fn lookup(&self, name: &str) -> Option<Sym> {
        self.by_name.get(name).copied()
    }
    /// How many symbols there are.
    pub fn len(&self) -> usize {
        self.syms.len()
    }
    /// True without symbols.
    pub fn is_empty(&self) -> bool {
        self.syms.is_empty()
    }
    /// All symbols.
    pub fn iter(&self) -> impl Iterator<Item = Sym> + use<> {
        (0..self.syms.len() as u32).map(Sym)
    }
    /// Narrows the range of a size.
    pub fn set_range(&mut self, s: Sym, r: Range) {
        let d = &mut self.syms[s.0 as usize];
        d.range.lo = match (d.range.lo, r.lo) {
            (Some(a), Some(b)) => Some(a.max(b)),
            (a, b) => a.or(b),
        };
        d.range.hi = match (d.range.hi, r.hi) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
    }
    /// The range a size was declared with.
    pub fn declared_range(&self, s: Sym) -> Range {
        match self.data(s).bound {
            Some(v) => Range::new(v, v),
            None => self.data(s).range,
        }
    }
    /// Fixes a size (`--dim N=4`).
    pub fn bind(&mut self, s: Sym, v: i64) {
        self.syms[s.0 as usize].bound = Some(v);
        self.any_bound = true;
    }
    /// The value that a size was fixed to.
    pub fn bound_value(&self, s: Sym) -> Option<i64> {
        self.data(s).bound
    }
    /// Substitutes fixed sizes.
    pub fn resolve(&self, d: Dim) -> Dim {
        if !self.any_bound {
            return d;
        }
        d.subst(&mut |s| self.data(s).bound.map(Dim::constant))
    }
    /// Substitutes everything that proofs may use: fixed sizes, and equalities that are checked at entry.
    pub(super) fn normal(&self, d: Dim) -> Dim {
        let mut d = self.resolve(d);
        for (s, e) in &self.facts {
            d = d.subst(&mut |t| (t == *s).then_some(*e));
        }
        d
    }
    /// Substitutes the params that must be a number, which is checked at entry.
    pub fn established(&self, d: Dim) -> Dim {
        let number = |s: Sym| {
            let (_, e) = self.facts.iter().find(|f| f.0 == s)?;
            matches!(self.kind(s), SymKind::Param | SymKind::Unnamed).then_some(*e)?.as_const()
        };
        if self.facts.is_empty() { d } else { d.subst(&mut |s| number(s).map(Dim::constant)) }
    }
    /// Records that two sizes must be equal: checked at entry, and a fact for later proofs.
    pub fn equate(&mut self, a: Dim, b: Dim) {
        let (x, y) = (self.normal(a), self.normal(b));
        if x == y {
            return;
        }
        // min(c, s) = s means s <= c: a bound, which is checked together with the parameter itself.
        for (m, s) in [(x, y), (y, x)].into_iter().filter(|_| self.scopes == 0) {
            if let (Some((inner, c)), Some(p)) = (super::broadcast::clipped_to(m), s.as_sym())
                && inner == s
                && matches!(self.kind(p), SymKind::Param | SymKind::Unnamed)
            {
                self.set_range(p, Range { lo: None, hi: Some(c) });
                return;
            }
        }
        self.condition(Condition::Equal(a, b));
        let fact = match (x.as_sym(), y.as_sym()) {
            (Some(s), Some(t)) if s < t => Some((t, x)),
            (Some(s), _) if !y.contains(s) => Some((s, y)),
            (_, Some(t)) if !x.contains(t) => Some((t, x)),
            _ => solved(x - y),
        };
        // An equality that is checked only once a run-time size is defined must not be used in proofs about
        // earlier code. It therefore replaces only that run-time size, and only by older symbols.
        let late = |s: Sym, e: Dim| {
            self.kind(s) != SymKind::Runtime && self.at_run_time(e)
                || e.syms().iter().any(|t| *t > s && self.kind(*t) == SymKind::Runtime)
        };
        if let Some((s, e)) = fact
            && self.kind(s) != SymKind::Loop
            && !late(s, e)
        {
            for (_, old) in &mut self.facts {
                *old = old.subst(&mut |t| (t == s).then_some(e));
            }
            self.facts.push((s, e));
        }
    }
    /// Records that two sizes must broadcast: equal, or one of them 1.
    pub fn require_broadcast(&mut self, a: Dim, b: Dim) {
        self.condition(Condition::Broadcast(a, b));
    }
    pub(super) fn condition(&mut self, c: Condition) {
        // A comparison of expressions without a value establishes nothing.
        c.dims().into_iter().for_each(|d| self.admit_divisors(d));
        if !self.conditions.contains(&c) {
            self.conditions.push(c);
            self.unclaimed.push(c);
        }
    }
    /// A condition recorded since the last call that no sizes satisfy.
    pub fn take_impossible(&mut self) -> Option<Condition> {
        self.impossible.take()
    }
    /// Sets the source of the conditions recorded since the last claim. A condition keeps its first source.
    pub fn claim(&mut self, source: impl FnOnce() -> Source) {
        if self.unclaimed.is_empty() {
            return;
        }
        let source = Arc::new(source());
        for c in self.unclaimed.drain(..) {
            self.sources.entry(c).or_insert_with(|| source.clone());
        }
    }
    /// The source of a condition.
    pub fn source(&self, c: Condition) -> Option<&Arc<Source>> {
        self.sources.get(&c)
    }
    /// A derived symbol for a formula over sizes known at entry. Generated code computes it once, and
    /// expressions that use it stay small. A formula over run-time sizes is returned unchanged.
    pub fn name_formula(&mut self, d: Dim, hint: &str) -> Dim {
        let d = self.resolve(d);
        if d.as_const().is_some() || d.as_sym().is_some() || d.is_overflow() || self.at_run_time(d) {
            return d;
        }
        if let Some((s, _)) = self.derived.iter().find(|x| x.1 == d) {
            return Dim::sym(*s);
        }
        Dim::sym(self.define_derived(hint, d))
    }
    /// As [`SymTable::name_formula`], for a formula that is a size and hence not negative.
    pub fn name_extent(&mut self, d: Dim, hint: &str) -> Dim {
        let named = self.name_formula(d, hint);
        if let Some(s) = named.as_sym().filter(|s| self.kind(*s) == SymKind::Derived) {
            self.set_range(s, Range::at_least(0));
        }
        named
    }
    /// Derived symbols with their definitions over older symbols, in order.
    pub fn derived(&self) -> &[(Sym, Dim)] {
        &self.derived
    }
    /// The values of sizes, with those of the derived symbols that they determine.
    pub fn with_derived(&self, sizes: &HashMap<Sym, i64>) -> HashMap<Sym, i64> {
        let mut out = sizes.clone();
        for (s, d) in &self.derived {
            if let Some(v) = d.eval(&|t| out.get(&t).copied()) {
                out.insert(*s, v);
            }
        }
        out
    }
    /// Whether a condition holds for these sizes; `None` if it also depends on others.
    pub fn holds(&self, c: Condition, value: &dyn Fn(Sym) -> Option<i64>) -> Option<bool> {
        let [a, b] = c.dims().map(|d| self.resolve(d).eval(value));
        let (a, b) = (a?, b?);
        Some(match c {
            Condition::Equal(..) => a == b,
            Condition::AtMost(..) => a <= b,
            Condition::Broadcast(..) => a == b || a == 1 || b == 1,
        })
    }
    /// Substitutes the definitions of derived symbols: an expression over params. Poison if it becomes too
    /// large.
    pub fn expanded(&self, d: Dim) -> Dim {
        let mut d = d;
        for (s, e) in self.derived.iter().rev() {
            if d.contains(*s) {
                d = d.subst(&mut |t| (t == *s).then_some(*e));
            }
        }
        d
    }
    /// Adds a derived symbol with its definition (text form).
    pub fn define_derived(&mut self, name: &str, definition: Dim) -> Sym {
        let range = self.range(definition);
        let s = self.fresh(SymKind::Derived, name);
        self.syms[s.0 as usize].range = range;
        self.derived.push((s, definition));
        s
    }
    /// True outside the bodies of control-flow operators: what is recorded here holds for the whole call.
    pub(super) fn at_top(&self) -> bool {
        self.scopes == 0
    }
    /// Opens a scope, the body of a control-flow operator. Conditions recorded until [`SymTable::close`] hold
    /// and are checked only there.
    pub fn open(&mut self) -> Scope {
        self.scopes += 1;
        let (lower, below) = (self.lower.len(), self.below.len());
        Scope { conditions: std::mem::take(&mut self.conditions), facts: self.facts.clone(), lower, below }
    }
    /// Closes a scope and returns the conditions recorded in it.
    pub fn close(&mut self, outer: Scope) -> Vec<Condition> {
        self.scopes = self.scopes.saturating_sub(1);
        self.facts = outer.facts;
        self.lower.truncate(outer.lower);
        self.below.truncate(outer.below);
        std::mem::replace(&mut self.conditions, outer.conditions)
    }
    /// The conditions that generated code checks, at entry or once the run-time sizes in them are defined.
    pub fn conditions(&self) -> &[Condition] {
        &self.conditions
    }
    /// A name that distinguishes the symbols of one table: params by name, loop variables with their number.
    pub fn unique_name(&self, s: Sym) -> String {
        if self.kind(s) != SymKind::Loop {
            return self.name(s).to_owned();
        }
        // A hint that ends in a digit, or a size of the same name, must not give two symbols one name.
        let gap = if self.name(s).ends_with(|c: char| c.is_ascii_digit()) { "_" } else { "" };
        let mut name = format!("{}{gap}{}", self.name(s), s.0);
        while self.by_name.contains_key(&name) {
            name.push('_');
        }
        name
    }
}

/// Solves `d == 0` for its newest symbol, if that is a number or a multiple of an older symbol, as in 16 n -
/// 16.
fn solved(d: Dim) -> Option<(Sym, Dim)> {
    let syms = d.syms();
    let last = *syms.iter().max()?;
    let (factor, rest) = d.linear_in(last)?;
    let factor = factor.as_const().filter(|f| *f != 0 && syms.len() <= 2)?;
    let value = (rest * -1).floor_div(factor);
    (value * factor + rest == Dim::constant(0)).then_some((last, value))
}
