//! Leaf nests -> tiles.
//!
//! A tile is innermost code of a kernel: statements whose loop bounds do not depend on each other, whose
//! accesses are linear in every loop variable, and which contain at least one vector loop as long as the
//! target's vectors. Everything that depends on the surrounding kernel (pointers, run-time sizes and strides)
//! is an argument, so that tiles of the same structure share a function. Cranelift compiles statements that
//! do not fit ([`Misfit`]), and tries the statements inside.

mod access;
mod choice;
mod convert;
mod division;
mod dot;
mod entries;
mod expr;
mod fit;
mod floats;
mod gather;
mod index;
mod indexed;
mod lanes64;
mod loops;
mod memory;
mod near;
mod permuted_loads;
mod reciprocal_division;
mod reductions;
mod run_time_rows;
mod shared_ints;
mod short_moves;
mod storage;
mod store_columns;
mod transpose;
mod uniform;
mod unroll;
mod vars;
mod windows;

use crate::codegen::tile::Vectors;
use crate::codegen::tile::builder::{Builder, Count};
use crate::codegen::tile::ir::{Bits, Form, Func, Line, Mem, Op, Un, Value};
use crate::codegen::tile::isa;
use crate::codegen::{Map, Set};
use crate::nest::bounds::Bounds;
use crate::nest::print::Lines;
use crate::nest::{BinOp, Buf, Expr, Math, Module, Reg, Stmt, patterns, visit};
use crate::sym::{Dim, Simplifier, Sym};
use crate::target::Dot;
use crate::tensor::ElemType;
use access::{Site, Stream};
use expr::{bits_of, is_long};
use gather::Bound;
use shared_ints::Shared;
use std::rc::Rc;
use vars::Vars;

/// Values up to this magnitude are converted to integers without clamping.
const NEAR: f64 = (1 << 30) as f64;

/// All properties of constant values that the code of a body depends on: whether floats converted to integers
/// are known not to be NaN, and to be small. Other queries of [`Bounds`] in this module must be added here.
pub fn told_by_constants(m: &Module, body: &[Stmt]) -> Vec<bool> {
    let mut out = vec![];
    let bounds = Bounds::of_sums(m, body);
    visit::walk_exprs(body, &mut |e| {
        let Expr::Cast(to, x) = e else { return };
        if !to.is_int() || !m.type_of(x).is_float() {
            return;
        }
        x.walk(&mut |x| {
            let range = bounds.of(m, x);
            out.extend([range.is_some(), range.is_some_and(|r| r.0 >= -NEAR && r.1 <= NEAR)]);
        });
    });
    // Lists of statements inside are candidates, too.
    body.iter().flat_map(Stmt::bodies).for_each(|b| out.extend(told_by_constants(m, b)));
    out
}

/// A leaf nest as a function, and its arguments.
pub struct Tile {
    /// The function.
    pub func: Func,
    /// Its arguments in order.
    pub args: Vec<Arg>,
    /// What it checks, if anything; it returns, as 32 bits, whether a check failed.
    pub checks: Option<Check>,
}

/// A run-time check in lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Check {
    /// Loaded indices are in range.
    Index,
    /// Divisors are not 0.
    Divisor,
}

/// An argument of a tile, computed by the surrounding kernel.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Arg {
    /// The address of an element of a buffer's storage.
    Pointer {
        /// Storage.
        buf: Buf,
        /// Element.
        linear: Dim,
        /// Bytes of an element.
        size: u32,
    },
    /// An integer.
    Number(Dim),
}

/// The reason why a nest is not a tile.
pub type Misfit = &'static str;

/// Statements that read a register which a surrounding statement sets: they can only be a tile together with
/// it.
pub const NOT_INSIDE: Misfit = "a value of another nest";

/// The pseudo accumulator of lanes in which a check failed.
fn outside() -> Reg {
    Reg::from_u32(u32::MAX - 1)
}

type Fit<T> = Result<T, Misfit>;

/// Maximum arguments: more would cost more than a tile saves.
const MOST_ARGS: usize = 96;

/// Maximum arguments if distant accesses have separate pointers: registers do not suffice for more.
const MOST_POINTERS: usize = 20;

/// The context of a translation.
#[derive(Clone, Copy)]
pub struct Setting<'a> {
    /// The module.
    pub m: &'a Module,
    /// The vectors of the level.
    pub vectors: Vectors,
    /// Substitutes loops that the kernel has unrolled around the statements.
    pub substitute: &'a dyn Fn(Dim) -> Dim,
    /// Where statements are, for debug information.
    pub lines: Option<&'a Lines>,
}

/// Translates statements to a tile.
pub fn translate(s: Setting, body: &[Stmt]) -> Fit<Tile> {
    let long = fit::check(s.m, s.vectors, body)?;
    let simplifier = Simplifier::new(&s.m.syms);
    if isa::machine(s.vectors.width).reach(0, true).is_some()
        && let Ok(t) = attempt(s, &simplifier, long, body, true)
        && t.args.len() <= MOST_POINTERS
    {
        return Ok(t);
    }
    attempt(s, &simplifier, long, body, false)
}

/// Translates statements that may be a tile. With `near`, accesses whose displacements are out of range have
/// separate pointers.
fn attempt(s: Setting, simplifier: &Simplifier, long: bool, body: &[Stmt], near: bool) -> Fit<Tile> {
    let Setting { m, vectors, substitute, lines } = s;
    let mut t = Translate {
        m,
        simplifier,
        lines,
        near,
        b: builder(m, vectors, long, body),
        outer: substitute,
        put: Map::default(),
        active: vec![],
        trips: vec![],
        deeper: vec![],
        vars: Vars::of(m, body),
        most: Map::default(),
        bound: Map::default(),
        prefetched: fit::prefetched(m, body),
        stored: fit::stored(m, body),
        sites: Map::default(),
        accs: Map::default(),
        short: fit::short_sums(m, body, i64::from(vectors.width.lanes()) / if long { 2 } else { 1 }),
        regs: Map::default(),
        shared: Map::default(),
        args: vec![],
        params: vec![],
        streams: Map::default(),
        loaded: Map::default(),
        waiting: None,
        transposed: Map::default(),
        turning: 0,
        columns: None,
        copies_bytes: false,
        lane: None,
        mask: None,
        rest: None,
        rest_of: Dim::constant(0),
        windows: Map::default(),
        offsets: Map::default(),
        uniforms: Map::default(),
        uniform_atoms: Map::default(),
        with_rows: Set::default(),
        rows: Map::default(),
        compared: Map::default(),
        conditions: vec![],
        bounds: Bounds::of_sums(m, body),
        ranges: Bounds::of_code(m, body),
    };
    let checks = t.checks(body)?;
    if checks.is_some() {
        let none = t.b.all_lanes(false);
        t.accs.insert(outside(), Acc { values: vec![none], shape: vec![], lanes: 1, ty: ElemType::Bool });
    }
    t.block(body)?;
    let outside = t.accs.get(&outside()).and_then(|a| a.values.first().copied());
    Ok(Tile { args: t.args, func: t.b.finish(outside), checks })
}

/// An empty function that may use what the level has.
fn builder(m: &Module, vectors: Vectors, long: bool, body: &[Stmt]) -> Builder {
    let mut b = Builder::new(vectors.width, long, vectors.caps.in_order);
    let is_fast = m.math == Math::Fast;
    b.tables = m.math != Math::Strict;
    b.set_adjacent(vectors.caps.adjacent);
    if is_fast && vectors.caps.halves {
        b.allow_halves();
    }
    b.rounds_to_bf16 = is_fast && vectors.caps.bf16 && b.has(Op::Un(Un::Brain, Bits::B32));
    // Levels share functions that do not depend on it.
    visit::walk_exprs(body, &mut |e| {
        let Expr::Dot(kind, ..) = e else { return };
        if kind.is_bytes() && vectors.caps.dot == Dot::QuadsInWords {
            b.sum_in_words();
        }
        if kind.is_long() && !vectors.caps.dot.has_matrices() {
            b.halve_eights();
        }
    });
    b
}

/// The value of an expression: a vector, or a mask for truth values.
#[derive(Clone, Copy, Debug)]
struct Val {
    pub v: Value,
    pub ty: ElemType,
}

struct Acc {
    values: Vec<Value>,
    shape: Vec<u32>,
    lanes: u32,
    ty: ElemType,
}

/// The current vector loop.
#[derive(Clone, Copy)]
struct Lane {
    pub sym: Sym,
}

/// The current address of a stream.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Place {
    base: Value,
    index: Option<(Value, u8)>,
}

/// An available load: address, displacement, form, elements per lane, whether it is converted, and the mask.
type Loaded = (Place, i32, Form, Option<i64>, bool, Option<Value>);

/// A delayed store of a vector: storage, form, address, value, mask.
struct Waiting {
    storage: Buf,
    form: Form,
    mem: Mem,
    value: Value,
    mask: Option<Value>,
}

struct Translate<'a> {
    pub m: &'a Module,
    simplifier: &'a Simplifier<'a>,
    lines: Option<&'a Lines>,
    pub b: Builder,
    /// Displacements out of range become pointers.
    near: bool,
    outer: &'a dyn Fn(Dim) -> Dim,
    /// Substitutions for variables of unrolled loops and of loops that do not start at 0.
    put: Map<Sym, Dim>,
    /// Open loops, with their counters.
    active: Vec<(Sym, Value)>,
    /// Trip counts of the open counted loops.
    trips: Vec<Dim>,
    /// Loops inside the one that is being opened: their terms are irrelevant so far.
    deeper: Vec<Sym>,
    /// Variables of the statements.
    vars: Vars,
    /// The most iterations of open loops, where they are known.
    most: Map<Sym, i64>,
    /// Symbols of loaded indices that are bound.
    bound: Map<Sym, Bound>,
    /// Buffers that statements prefetch explicitly.
    prefetched: Vec<Buf>,
    /// Storages of buffers that statements store to.
    stored: Vec<Buf>,
    sites: Map<(Buf, usize), Rc<Site>>,
    accs: Map<Reg, Acc>,
    /// Accumulators whose lanes beyond the shortest use are never read.
    short: Set<Reg>,
    pub regs: Map<Reg, Val>,
    /// 64-bit integers that are uniform across 32-bit lanes.
    shared: Map<Reg, Shared>,
    args: Vec<Arg>,
    params: Vec<Value>,
    streams: Map<Stream, Place>,
    loaded: Map<Loaded, (Buf, Value)>,
    /// Stores delayed until all vectors of an iteration are computed.
    waiting: Option<Vec<Waiting>>,
    /// Columns of the unrolled loop being translated, by the access that reads them.
    transposed: Map<(Buf, usize), Vec<Value>>,
    /// The iteration of that loop.
    turning: usize,
    /// Vectors to be transposed, which stores of them append to.
    columns: Option<Vec<Value>>,
    /// True in a loop over vectors of bytes, which stores copy.
    copies_bytes: bool,
    lane: Option<Lane>,
    /// The active lanes, unless all are active.
    pub mask: Option<Value>,
    /// The mask of a last, partial vector of run-time length, and its number of lanes.
    rest: Option<(Value, Value)>,
    /// The same number as an expression.
    rest_of: Dim,
    /// Positions within windows, by the substituted expression, mask and block.
    windows: Map<(Dim, Option<Value>, usize), windows::Window>,
    /// Offsets of lanes at positions that are not linear: the position, bytes of an element, the block.
    offsets: Map<(Dim, u32, usize), Value>,
    /// Pointers at uniform positions: the position, bytes of an element, the pointer, the block.
    uniforms: Map<(Dim, u32, Value, usize), Value>,
    /// What such positions consist of: the atom, the block.
    uniform_atoms: Map<(Dim, usize), Count>,
    /// Streams of several rows: their index register is the distance of rows.
    with_rows: Set<Stream>,
    /// Pointers to rows at a run-time distance, multiples of it: the pointer or distance, the distance, the
    /// row or factor, the block.
    rows: Map<(Value, Value, i64, usize), Value>,
    /// Compared indices, by block.
    compared: Map<(BinOp, Dim, Dim, usize), Val>,
    /// Conditions that were evaluated before the innermost open vector loop.
    conditions: Vec<(Expr, Val)>,
    bounds: Bounds,
    /// Ranges of values, of which none follows from constants in memory.
    ranges: Bounds,
}

impl Translate<'_> {
    /// The dim after all substitutions.
    pub fn substituted(&self, d: Dim) -> Dim {
        let d = (self.outer)(d);
        if self.put.is_empty() || d.as_const().is_some() {
            d
        } else {
            d.subst(&mut |s| self.put.get(&s).copied())
        }
    }
    /// What the tile has to check.
    fn checks(&self, body: &[Stmt]) -> Fit<Option<Check>> {
        let (mut indices, mut divisors) = (false, false);
        visit::walk_exprs(body, &mut |e| match e {
            Expr::With { value, extent, .. } => indices |= !self.is_inside(value, *extent),
            e => divisors |= patterns::may_divide_by_zero(self.m, e),
        });
        match (indices, divisors) {
            (true, true) => Err("checks of indices and of divisors"),
            (true, false) => Ok(Some(Check::Index)),
            (false, true) => Ok(Some(Check::Divisor)),
            (false, false) => Ok(None),
        }
    }
    fn block(&mut self, body: &[Stmt]) -> Fit<()> {
        let around = self.b.line;
        body.iter().try_for_each(|s| self.stmt(s))?;
        self.b.line = around;
        Ok(())
    }
    fn stmt(&mut self, s: &Stmt) -> Fit<()> {
        if let Some(line) = self.lines.and_then(|l| l.of(s)) {
            self.b.line = Line(line);
        }
        match s {
            Stmt::For { kind, var, lo, hi, body } => self.for_(*kind, *var, *lo, *hi, body),
            Stmt::Let { reg, value } => self.bind(*reg, value),
            Stmt::Acc { reg, lanes, shape, init } => {
                let ty = self.m.regs[*reg].ty;
                if !(matches!(ty, ElemType::F32 | ElemType::I32 | ElemType::U32)
                    || is_long(ty) && self.b.is_long())
                {
                    return Err("an accumulator without vectors");
                }
                let v = self.value(init)?.v;
                let n = shape.iter().product::<u32>() as usize;
                self.accs.insert(*reg, Acc { values: vec![v; n], shape: shape.clone(), lanes: *lanes, ty });
                Ok(())
            }
            Stmt::Set { reg, at, value } => {
                let v = self.value(value)?.v;
                let i = self.acc_index(*reg, at)?;
                let Some(acc) = self.accs.get(reg) else { return Err("an accumulator of another nest") };
                let v = match self.mask {
                    Some(k) if acc.lanes > 1 && !self.short.contains(reg) => {
                        self.b.select(k, v, acc.values[i], bits_of(acc.ty))
                    }
                    _ => v,
                };
                if let Some(a) = self.accs.get_mut(reg) {
                    a.values[i] = v;
                }
                Ok(())
            }
            Stmt::Store { buf, at, value } => self.store(*buf, at, value),
            Stmt::Prefetch { buf, at } => {
                let a = self.access(*buf, at)?;
                let mem = self.mem(&a)?;
                self.b.prefetch(mem, true);
                Ok(())
            }
            Stmt::Tile { body } => self.block(body),
            Stmt::If { cond, then, els } => self.branch(cond, then, els),
            _ => Err("a statement that is no loop, value, accumulator, branch or store"),
        }
    }
    fn acc_index(&self, reg: Reg, at: &[Dim]) -> Fit<usize> {
        let Some(acc) = self.accs.get(&reg) else { return Err("an accumulator of another nest") };
        let mut i = 0;
        for (d, n) in at.iter().zip(&acc.shape) {
            match self.substituted(*d).as_const() {
                Some(c) if (0..i64::from(*n)).contains(&c) => i = i * *n as usize + c as usize,
                _ => return Err("an accumulator subscript that is no number"),
            }
        }
        Ok(i)
    }
    /// The current value of an accumulator.
    pub fn acc(&self, reg: Reg, at: &[Dim]) -> Fit<Val> {
        let i = self.acc_index(reg, at)?;
        let a = &self.accs[&reg];
        Ok(Val { v: a.values[i], ty: a.ty })
    }
    fn place(&self, s: &Stream) -> Fit<Place> {
        match self.streams.get(s) {
            Some(p) => Ok(*p),
            None if s.1.is_empty() => Ok(Place { base: self.params[s.0], index: None }),
            // A loop that does not move it.
            None => Err("a stream that nothing carries"),
        }
    }
    /// A dim as a constant or an argument.
    pub fn count(&mut self, d: Dim) -> Fit<Count> {
        if let Some(c) = d.as_const() {
            return Ok(Count::Fixed(c));
        }
        if self.is_inner(d) {
            return Err("a bound or stride that depends on a loop of the tile");
        }
        let i = self.arg(Arg::Number(d))?;
        Ok(Count::Run(self.params[i]))
    }
    /// True if a dim depends on loops of the tile.
    pub fn is_inner(&self, d: Dim) -> bool {
        self.active.iter().any(|(s, _)| d.contains(*s))
            || self.deeper.iter().any(|s| d.contains(*s))
            || self.vars.with_in(d)
            || self.lane.is_some_and(|l| d.contains(l.sym))
    }
    fn arg(&mut self, a: Arg) -> Fit<usize> {
        if let Some(i) = self.args.iter().position(|x| *x == a) {
            return Ok(i);
        }
        if self.args.len() == MOST_ARGS {
            return Err("too many arguments");
        }
        self.args.push(a);
        let p = self.b.param();
        self.params.push(p);
        Ok(self.args.len() - 1)
    }
    /// Counters of the open loops.
    pub fn counters(&self) -> &[(Sym, Value)] {
        &self.active
    }
    /// The variable of the vector loop.
    pub fn lane_sym(&self) -> Option<Sym> {
        self.lane.map(|l| l.sym)
    }
}
