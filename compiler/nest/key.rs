//! Keys: bodies as words, in which buffers, registers and loop variables are numbers in order of first use.
//! Two bodies have equal keys if renaming turns one into the other and all facts agree that code generation
//! and schedules query about them.
//!
//! A [`Writer`] writes the parts of a key one after the other, and remembers which buffer has which number.

use super::bounds::Bounds;
use super::form::Contraction;
use super::{Buf, Expr, Layout, LoopKind, Module, Place, Reg, Slot, Stmt, visit};
use crate::maps::Map;
use crate::sym::{Atom, Dim, Sym, SymKind, View};
use std::hash::{Hash, Hasher};

/// Statements, or a description of some, without their names.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Key(Vec<u64>);

impl Key {
    /// Number of its words: a measure of what it describes.
    pub fn words(&self) -> usize {
        self.0.len()
    }
}

/// True if a body reads indices: the check is omitted if constants keep them in range.
fn reads_indices(body: &[Stmt]) -> bool {
    visit::any(body, &mut |s| matches!(s, Stmt::With { .. }))
        || visit::any_expr(body, &mut |e| matches!(e, Expr::With { .. }))
}

/// True if floats are converted to integers: the code omits cases that the values of constants exclude.
fn converts(m: &Module, body: &[Stmt]) -> bool {
    let mut found = false;
    visit::walk_exprs(body, &mut |e| {
        if let Expr::Cast(t, x) = e {
            found |= t.is_int() && m.type_of(x).is_float();
        }
    });
    found
}

/// Writes a key.
pub struct Writer<'a> {
    m: &'a Module,
    out: Vec<u64>,
    /// Known ranges of values.
    bounds: Bounds,
    /// True if the code depends on the values of constants.
    converts: bool,
    syms: Map<Sym, u64>,
    regs: Map<Reg, u64>,
    bufs: Map<Buf, u64>,
    /// The buffers by number.
    named: Vec<Buf>,
    slots: Map<Slot, u64>,
    dims: Map<Dim, u64>,
}

/// Writes the hashed words, which identify the value of a plain enumeration.
struct Record<'a>(&'a mut Vec<u64>);

impl Hasher for Record<'_> {
    fn finish(&self) -> u64 {
        0
    }
    fn write(&mut self, bytes: &[u8]) {
        self.0.extend(bytes.iter().map(|b| u64::from(*b)));
    }
    fn write_isize(&mut self, discriminant: isize) {
        self.0.push(discriminant as u64);
    }
}

impl<'a> Writer<'a> {
    /// An empty key.
    pub fn new(m: &'a Module) -> Self {
        Writer {
            m,
            out: vec![],
            bounds: Bounds::default(),
            converts: false,
            syms: Map::default(),
            regs: Map::default(),
            bufs: Map::default(),
            named: vec![],
            slots: Map::default(),
            dims: Map::default(),
        }
    }
    /// The key of the code of a kernel's body; `None` if it depends on more than the key contains. If
    /// `embedded`, constants cannot change, and code may depend on their values; `tiles`: conversions of
    /// floats do.
    pub fn code(m: &Module, body: &[Stmt], embedded: bool, tiles: bool) -> Option<Key> {
        if visit::has_texts(m, body) {
            return None;
        }
        let mut w = Writer::new(m);
        if embedded && reads_indices(body) {
            w.bounds.learn(m, body);
        }
        w.converts = tiles && converts(m, body);
        w.block(body);
        Some(w.finish().0)
    }
    /// The key, and the buffers in it by number.
    pub fn finish(self) -> (Key, Vec<Buf>) {
        (Key(self.out), self.named)
    }
    /// Writes numbers.
    pub fn put(&mut self, words: impl IntoIterator<Item = u64>) {
        self.out.extend(words);
    }
    /// Writes the value of a plain enumeration.
    pub fn plain(&mut self, x: impl Hash) {
        x.hash(&mut Record(&mut self.out));
    }
    /// Writes a number, if there is one.
    pub fn option(&mut self, v: Option<i64>) {
        self.put([u64::from(v.is_some()), v.unwrap_or_default() as u64]);
    }
    /// Writes the number of a symbol. A symbol with a value in the frame keeps its own number, because facts
    /// refer to it.
    pub fn sym(&mut self, s: Sym) {
        if self.m.syms.kind(s) != SymKind::Loop {
            return self.put([0, u64::from(s.0)]);
        }
        let next = self.syms.len() as u64;
        if let Some(n) = self.syms.get(&s) {
            return self.put([1, *n]);
        }
        self.syms.insert(s, next);
        self.put([2]);
        let range = self.m.syms.declared_range(s);
        self.option(range.lo);
        self.option(range.hi);
        if let Some((lo, hi)) = self.m.syms.loop_range(s) {
            self.put([1]);
            self.dim(lo);
            self.dim(hi);
        } else {
            self.put([0]);
        }
    }
    /// Writes a dim.
    pub fn dim(&mut self, d: Dim) {
        if let View::Const(c) = d.view() {
            return self.put([0, c as u64]);
        }
        if let Some(n) = self.dims.get(&d) {
            return self.put([1, *n]);
        }
        match d.view() {
            View::Const(_) => {}
            View::Overflow => self.put([2]),
            View::Sum { terms, constant } => {
                self.put([3, terms.len() as u64, constant as u64]);
                for (c, atoms) in terms {
                    self.put([*c as u64, atoms.len() as u64]);
                    atoms.iter().for_each(|a| self.atom(a));
                }
            }
        }
        // Numbered after the dims inside it.
        let n = self.dims.len() as u64;
        self.dims.insert(d, n);
    }
    fn atom(&mut self, a: &Atom) {
        match a {
            Atom::Sym(s) => {
                self.put([0]);
                self.sym(*s);
            }
            Atom::FloorDiv(x, y) | Atom::Mod(x, y) => {
                self.put([if matches!(a, Atom::Mod(..)) { 1 } else { 2 }]);
                self.dim(*x);
                self.dim(*y);
            }
            Atom::Min(v) | Atom::Max(v) => {
                self.put([if matches!(a, Atom::Min(_)) { 3 } else { 4 }, v.len() as u64]);
                v.iter().for_each(|d| self.dim(*d));
            }
        }
    }
    /// Writes a list of dims.
    pub fn dims(&mut self, v: &[Dim]) {
        self.put([v.len() as u64]);
        v.iter().for_each(|d| self.dim(*d));
    }
    /// Writes a register.
    pub fn reg(&mut self, r: Reg) {
        let next = self.regs.len() as u64;
        if let Some(n) = self.regs.get(&r) {
            return self.put([0, *n]);
        }
        self.regs.insert(r, next);
        let data = self.m.regs[r];
        self.put([1]);
        self.plain(data.ty);
        self.option(data.whole);
    }
    /// Writes a buffer.
    pub fn buf(&mut self, b: Buf) {
        let next = self.bufs.len() as u64;
        if let Some(n) = self.bufs.get(&b) {
            return self.put([0, *n]);
        }
        self.bufs.insert(b, next);
        self.named.push(b);
        let m = self.m;
        let data = &m.bufs[b];
        self.put([1, u64::from(m.element_bits(b))]);
        self.plain(data.ty);
        self.dims(&data.dims);
        match &data.layout {
            Layout::RowMajor => self.put([0]),
            Layout::Permuted(p) => {
                self.put([1, p.len() as u64]);
                self.put(p.iter().map(|i| *i as u64));
            }
        }
        match &data.place {
            Place::View(of) => {
                self.put([0]);
                self.buf(*of);
            }
            Place::Const(c) => {
                self.put([1, c.byte_len(), c.count()]);
            }
            // Identifies buffers that share memory.
            Place::Arena(s) => {
                let next = self.slots.len() as u64;
                let n = *self.slots.entry(*s).or_insert(next);
                self.put([2, n]);
            }
            Place::Input(_) => self.put([3]),
            Place::Output(_) => self.put([4]),
            Place::Pointer(_) => self.put([5]),
            Place::Temp => self.put([6]),
            Place::Growable => self.put([7]),
            Place::Foreign => self.put([8]),
        }
    }
    /// Writes statements.
    pub fn block(&mut self, body: &[Stmt]) {
        self.put([body.len() as u64]);
        body.iter().for_each(|s| self.stmt(s));
    }
    /// Writes an access.
    pub fn at(&mut self, buf: Buf, at: &[Dim]) {
        self.buf(buf);
        self.dims(at);
    }
    fn stmt(&mut self, s: &Stmt) {
        match s {
            Stmt::For { kind, var, lo, hi, body } => {
                self.put([0]);
                match kind {
                    LoopKind::Seq => self.put([0]),
                    LoopKind::Par => self.put([1]),
                    LoopKind::Vec(n) => self.put([2, u64::from(*n)]),
                    LoopKind::Unroll => self.put([3]),
                    LoopKind::Private => self.put([4]),
                }
                self.dim(*lo);
                self.dim(*hi);
                self.sym(*var);
                self.block(body);
            }
            Stmt::Let { reg, value } => {
                self.put([1]);
                self.expr(value);
                self.reg(*reg);
            }
            Stmt::Acc { reg, lanes, shape, init } => {
                self.put([2, u64::from(*lanes), shape.len() as u64]);
                self.put(shape.iter().map(|n| u64::from(*n)));
                self.expr(init);
                self.reg(*reg);
            }
            Stmt::Set { reg, at, value } => {
                self.put([3]);
                self.reg(*reg);
                self.dims(at);
                self.expr(value);
            }
            Stmt::Store { buf, at, value } => {
                self.put([4]);
                self.at(*buf, at);
                self.expr(value);
            }
            Stmt::Prefetch { buf, at } => {
                self.put([5]);
                self.at(*buf, at);
            }
            Stmt::Tile { body } => {
                self.put([11]);
                self.block(body);
            }
            Stmt::If { cond, then, els } => {
                self.put([6]);
                self.expr(cond);
                self.block(then);
                self.block(els);
            }
            Stmt::While { cond, body } => {
                self.put([7]);
                self.expr(cond);
                self.block(body);
            }
            Stmt::With { sym, value, extent, body } => {
                self.put([8]);
                self.expr(value);
                self.known(value);
                self.dim(*extent);
                self.sym(*sym);
                self.block(body);
            }
            Stmt::Check { cond, status } => {
                self.put([9, *status as u64]);
                self.expr(cond);
            }
            // Driver statements, which do not occur in bodies.
            Stmt::Define { .. } | Stmt::Call(_) | Stmt::Foreign(_) => self.put([10]),
        }
    }
    /// Writes the known range of a value.
    fn known(&mut self, e: &Expr) {
        let (lo, hi) = self.bounds.of(self.m, e).unwrap_or((f64::NAN, f64::NAN));
        self.put([lo.to_bits(), hi.to_bits()]);
    }
    /// Writes an expression.
    pub fn expr(&mut self, e: &Expr) {
        match e {
            Expr::Const(s) => {
                self.put([0, s.bits]);
                self.plain(s.ty);
            }
            Expr::Reg(r) => {
                self.put([1]);
                self.reg(*r);
            }
            Expr::Acc { reg, at, lane } => {
                self.put([2, u64::from(lane.is_some())]);
                self.reg(*reg);
                self.dims(at);
                lane.iter().for_each(|d| self.dim(*d));
            }
            Expr::Horizontal { op, reg, at } => {
                self.put([3]);
                self.plain(*op);
                self.reg(*reg);
                self.dims(at);
            }
            Expr::Index(d) => {
                self.put([4]);
                self.dim(*d);
            }
            Expr::Load { buf, at } => {
                self.put([5]);
                self.at(*buf, at);
                // All ranges derive from types, numbers and these loads.
                if self.converts && matches!(self.m.bufs[*buf].place, Place::Const(_)) {
                    self.known(e);
                }
            }
            Expr::Address(b) => {
                self.put([6]);
                self.buf(*b);
            }
            Expr::Un(op, a) => {
                self.put([7]);
                self.plain(*op);
                self.expr(a);
            }
            Expr::Bin(op, a, b) => {
                self.put([8]);
                self.plain(*op);
                self.expr(a);
                self.expr(b);
            }
            Expr::Fma(a, b, c) => {
                self.put([9]);
                [a, b, c].into_iter().for_each(|x| self.expr(x));
            }
            Expr::Dot(g, a, b, c) => {
                self.put([10]);
                self.plain(*g);
                [a, b, c].into_iter().for_each(|x| self.expr(x));
            }
            Expr::Select(a, b, c) => {
                self.put([11]);
                [a, b, c].into_iter().for_each(|x| self.expr(x));
            }
            Expr::Cast(t, a) => {
                self.put([12]);
                self.plain(*t);
                self.expr(a);
            }
            Expr::Text(_, v) => {
                self.put([13, v.len() as u64]);
                v.iter().for_each(|x| self.expr(x));
            }
            Expr::Let { reg, value, body } => {
                self.put([14]);
                self.expr(value);
                self.reg(*reg);
                self.expr(body);
            }
            Expr::With { sym, value, extent, body } => {
                self.put([15]);
                self.expr(value);
                self.known(value);
                self.dim(*extent);
                self.sym(*sym);
                self.expr(body);
            }
        }
    }
    /// Writes loops.
    pub fn loops(&mut self, loops: &[(Sym, Dim)]) {
        self.put([loops.len() as u64]);
        for (s, extent) in loops {
            self.sym(*s);
            self.dim(*extent);
        }
    }
    /// Writes the parts of a contraction.
    pub(crate) fn contraction(&mut self, p: &Contraction) {
        self.loops(&p.loops);
        self.loops(&p.reduction);
        self.reg(p.acc);
        self.at(p.a.0, &p.a.1);
        self.at(p.b.0, &p.b.1);
        self.put([
            u64::from(p.with.is_some()),
            u64::from(p.gate.is_some()),
            u64::from(p.prefetch.is_some()),
            u64::from(p.start.is_some()),
        ]);
        if let Some((op, at)) = &p.with {
            self.plain(*op);
            self.dims(at);
        }
        for (buf, at) in p.gate.iter().chain(&p.prefetch) {
            self.at(*buf, at);
        }
        if let Some(e) = &p.start {
            self.expr(e);
        }
        self.block(&p.epilogue);
        self.put([u64::from(p.whole)]);
        self.plain(p.product);
    }
}
