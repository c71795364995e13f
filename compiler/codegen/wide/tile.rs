//! Leaf nests -> tiles.
//!
//! A tile is what a kernel does innermost: statements whose loops have bounds that do not depend on each other, whose
//! accesses move linearly with every loop variable, and which contain at least one vector loop as long as the target's
//! vectors. Everything that depends on the kernel around it - pointers, run-time sizes and strides - is an argument,
//! so that tiles of one structure are one function. What does not fit ([`Misfit`]) stays with Cranelift, which then
//! tries the statements inside; the reasons are the rule.

use super::Isa;
use super::access::{Access, Site, Stream};
use super::ir::{Builder, Count, Form, Func, Mem, Un, Value, Width};
use crate::codegen::Map;
use crate::nest::bounds::Bounds;
use crate::nest::{Buf, Expr, LoopKind, Math, Module, Place as NestPlace, Reg, Stmt, visit};
use crate::sym::{Dim, Sym};
use crate::tensor::ElemType;
use std::rc::Rc;

/// A leaf nest as a function, and what to call it with.
pub struct Tile {
    /// The function.
    pub func: Func,
    /// Its arguments in order.
    pub args: Vec<Arg>,
}

/// An argument of a tile, as the kernel around it computes it.
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

/// Why a nest is no tile.
pub type Misfit = &'static str;

pub(super) type Fit<T> = Result<T, Misfit>;

/// Constants from so many bytes on come from memory or a far cache: other constants were read since.
const LARGE: u64 = 64 << 10;
/// Bytes between what a tile reads and what it asks memory for: some hundred nanoseconds of work.
const AHEAD: i32 = 4096;
/// Arguments beyond this many cost more than they save.
const MOST_ARGS: usize = 48;

/// Translates statements; `substitute` puts in what the kernel has unrolled around them.
pub fn translate(m: &Module, isa: Isa, body: &[Stmt], substitute: &dyn Fn(Dim) -> Dim) -> Fit<Tile> {
    super::fit::check(m, isa, body)?;
    let mut locals = vec![];
    let mut prefetched = vec![];
    visit::walk(body, &mut |s| match s {
        Stmt::For { var, .. } => locals.push(*var),
        Stmt::Prefetch { buf, .. } => prefetched.push(m.storage(*buf)),
        _ => {}
    });
    let mut t = Translate {
        m,
        b: Builder::new(isa.width),
        outer: substitute,
        put: Map::default(),
        active: vec![],
        deeper: vec![],
        locals,
        prefetched,
        sites: Map::default(),
        accs: Map::default(),
        regs: Map::default(),
        args: vec![],
        params: vec![],
        streams: Map::default(),
        loaded: Map::default(),
        turned: Map::default(),
        turning: 0,
        lane: None,
        mask: None,
        bounds: Bounds::default(),
    };
    t.b.tables = m.math != Math::Strict;
    t.block(body)?;
    Ok(Tile { args: t.args, func: t.b.finish() })
}

/// A value of a nest's expression: a vector, or a mask for truth values.
#[derive(Clone, Copy, Debug)]
pub(super) struct Val {
    pub v: Value,
    pub ty: ElemType,
}

struct Acc {
    values: Vec<Value>,
    shape: Vec<u32>,
    lanes: u32,
    ty: ElemType,
}

/// The vector loop we are in.
#[derive(Clone, Copy)]
pub(super) struct Lane {
    pub sym: Sym,
}

/// Where a stream is now.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Place {
    base: Value,
    index: Option<(Value, u8)>,
}

/// A load that was made: place, displacement, form, whether it is a vector, whether integers were converted to floats,
/// and for which lanes.
type Loaded = (Place, i32, Form, bool, bool, Option<Value>);

pub(super) struct Translate<'a> {
    pub m: &'a Module,
    pub b: Builder,
    pub(super) outer: &'a dyn Fn(Dim) -> Dim,
    /// What stands for variables of unrolled loops and of loops that do not start at 0.
    pub(super) put: Map<Sym, Dim>,
    /// Loops that run, with their counters.
    pub(super) active: Vec<(Sym, Value)>,
    /// Loops inside the one that is being opened: their terms do not matter yet.
    pub(super) deeper: Vec<Sym>,
    /// Variables of all loops of the tile.
    pub(super) locals: Vec<Sym>,
    /// Buffers that statements ask for by themselves.
    prefetched: Vec<Buf>,
    pub(super) sites: Map<(Buf, usize), Rc<Site>>,
    accs: Map<Reg, Acc>,
    pub regs: Map<Reg, Val>,
    args: Vec<Arg>,
    params: Vec<Value>,
    streams: Map<Stream, Place>,
    loaded: Map<Loaded, (Buf, Value)>,
    /// Columns of the unrolled loop that is being translated, by the access that reads them.
    pub(super) turned: Map<(Buf, usize), Vec<Value>>,
    /// The iteration of that loop.
    pub(super) turning: usize,
    pub(super) lane: Option<Lane>,
    /// Lanes that exist, where not all do.
    pub mask: Option<Value>,
    pub(super) bounds: Bounds,
}

impl Translate<'_> {
    /// With everything put in that stands for variables.
    pub fn substituted(&self, d: Dim) -> Dim {
        let d = (self.outer)(d);
        if self.put.is_empty() || d.as_const().is_some() { d } else { d.subst(&mut |s| self.put.get(&s).copied()) }
    }
    fn block(&mut self, body: &[Stmt]) -> Fit<()> {
        body.iter().try_for_each(|s| self.stmt(s))
    }
    fn stmt(&mut self, s: &Stmt) -> Fit<()> {
        match s {
            Stmt::For { kind, var, lo, hi, body } => self.for_(*kind, *var, *lo, *hi, body),
            Stmt::Let { reg, value } => {
                let v = self.value(value)?;
                self.regs.insert(*reg, v);
                Ok(())
            }
            Stmt::Acc { reg, lanes, shape, init } => {
                let ty = self.m.regs[*reg].ty;
                if !matches!(ty, ElemType::F32 | ElemType::I32) {
                    return Err("an accumulator that is neither f32 nor i32");
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
                    Some(k) if acc.lanes > 1 => self.b.select(k, v, acc.values[i]),
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
            _ => Err("a statement that is no loop, value, accumulator or store"),
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
    fn for_(&mut self, kind: LoopKind, var: Sym, lo: Dim, hi: Dim, body: &[Stmt]) -> Fit<()> {
        let (lo, hi) = (self.substituted(lo), self.substituted(hi));
        let trip = self.m.syms.simplify(hi - lo);
        match (kind, trip.as_const()) {
            (_, Some(n)) if n <= 0 => Ok(()),
            (LoopKind::Unroll, Some(n)) => {
                if n == i64::from(self.b.width().lanes()) && self.lane.is_none() && self.mask.is_none() {
                    self.turn_columns(var, lo, body)?;
                }
                for i in 0..n {
                    if !self.turned.is_empty() {
                        self.turning = i as usize;
                    }
                    self.with(var, lo + i, |t| t.block(body))?;
                }
                self.turned.clear();
                Ok(())
            }
            (LoopKind::Unroll, None) => Err("an unrolled loop without constant bounds"),
            (LoopKind::Seq | LoopKind::Par, Some(1)) => self.with(var, lo, |t| t.block(body)),
            (LoopKind::Seq | LoopKind::Par, _) => self.shifted(var, lo, |t| {
                let end = t.count(trip)?;
                let guard = !t.m.syms.is_pos(trip);
                t.counted(var, end, guard, 1, body)
            }),
            (LoopKind::Vec(n), _) => {
                if self.lane.is_some() {
                    return Err("a vector loop inside a vector loop");
                }
                self.lane = Some(Lane { sym: var });
                let r = self.shifted(var, lo, |t| t.vector(var, trip, i64::from(n), body));
                self.lane = None;
                r
            }
        }
    }
    /// Runs `f` with a dim in place of a variable.
    pub(super) fn with<T>(&mut self, var: Sym, d: Dim, f: impl FnOnce(&mut Self) -> Fit<T>) -> Fit<T> {
        let before = self.put.insert(var, d);
        let r = f(self);
        match before {
            Some(b) => self.put.insert(var, b),
            None => self.put.remove(&var),
        };
        r
    }
    /// Runs `f` with a variable that counts from 0.
    pub(super) fn shifted<T>(&mut self, var: Sym, lo: Dim, f: impl FnOnce(&mut Self) -> Fit<T>) -> Fit<T> {
        if lo.as_const() == Some(0) { f(self) } else { self.with(var, lo + Dim::sym(var), f) }
    }
    fn vector(&mut self, var: Sym, trip: Dim, lanes: i64, body: &[Stmt]) -> Fit<()> {
        let Some(n) = trip.as_const() else {
            let Count::Run(n) = self.count(trip)? else { return Err("a size that is no register") };
            // A single vector at most: no loop.
            let single = self.m.syms.le(trip, Dim::constant(lanes)) == crate::sym::Answer::Yes;
            let whole = if single { n } else { self.b.and_imm(n, -(lanes as i32)) };
            let streams = if single { vec![] } else { self.counted_streams(var, Count::Run(whole), true, lanes, body)? };
            if trip.modulo(lanes).as_const() == Some(0) {
                return Ok(());
            }
            // What is left, where the loop has stopped.
            let rest = if single { n } else { self.b.and_imm(n, lanes as i32 - 1) };
            let before = self.accs_set_in(body);
            let around = self.acc_values(&before);
            let opened = self.b.open_if_positive(rest);
            let saved = (self.streams.clone(), self.loaded.clone(), self.mask);
            self.loaded.clear();
            for (s, p) in streams {
                let p = Place { index: p.index.map(|(_, k)| (whole, k)), ..p };
                self.streams.insert(s, p);
            }
            self.mask = Some(self.b.first_lanes(Count::Run(rest)));
            if !single {
                self.active.push((var, whole));
            }
            self.block(body)?;
            if !single {
                self.active.pop();
            }
            (self.streams, self.loaded, self.mask) = saved;
            self.forget(body);
            let through = self.acc_values(&before);
            let merged = self.b.close_if(opened, &around, &through);
            self.set_acc_values(&before, &merged);
            return Ok(());
        };
        let (whole, rest) = (n / lanes * lanes, n % lanes);
        if whole == lanes {
            // One vector: the variable is the lane.
            self.block(body)?;
        } else if whole > 0 {
            self.counted(var, Count::Fixed(whole), false, lanes, body)?;
        }
        if rest > 0 {
            let d = self.put.get(&var).copied().unwrap_or(Dim::sym(var));
            let d = d.subst(&mut |s| (s == var).then(|| Dim::sym(var) + whole));
            let outer = self.mask.replace(self.b.first_lanes(Count::Fixed(rest)));
            let r = self.with(var, d, |t| t.block(body));
            self.mask = outer;
            r?;
        }
        Ok(())
    }
    fn counted(&mut self, var: Sym, end: Count, guard: bool, step: i64, body: &[Stmt]) -> Fit<()> {
        self.counted_streams(var, end, guard, step, body).map(drop)
    }
    /// `for var in (0..end).step_by(step)`: accumulators and pointers are carried. Returns where the streams stand
    /// afterwards.
    fn counted_streams(&mut self, var: Sym, end: Count, guard: bool, step: i64, body: &[Stmt]) -> Fit<Vec<(Stream, Place)>> {
        let moving = self.moving(var, body)?;
        // A counter that all streams share instead of a pointer each.
        let scale = |s: &Stream| {
            let bytes = s.1.last()?.1.as_const()? * i64::from(self.size_of(s.0));
            matches!(bytes, 1 | 2 | 4 | 8).then_some(bytes as u8)
        };
        let innermost = !has_loop(body, i64::from(self.b.width().lanes()));
        let indexed = innermost && moving.len() > 1;
        let (by_index, by_pointer): (Vec<Stream>, Vec<Stream>) = moving.into_iter().partition(|s| indexed && scale(s).is_some());
        let scales: Vec<u8> = by_index.iter().map(|s| scale(s).unwrap_or(1)).collect();
        let accs = self.accs_set_in(body);
        let mut carried = self.acc_values(&accs);
        let base_of = |t: &mut Self, s: &Stream| -> Fit<Place> {
            let outside = (s.0, s.1[..s.1.len() - 1].to_vec());
            t.place(&outside)
        };
        let mut starts = vec![];
        for s in &by_pointer {
            let p = base_of(self, s)?;
            starts.push(self.flat(p));
        }
        let mut bases = vec![];
        for s in &by_index {
            let p = base_of(self, s)?;
            bases.push(self.flat(p));
        }
        let strides: Vec<Option<Value>> = by_pointer.iter().map(|s| self.stride_value(s, step)).collect::<Fit<_>>()?;
        carried.extend(&starts);
        let saved = (self.streams.clone(), self.loaded.clone());
        self.forget(body);
        let l = self.b.open_loop(end, guard, &carried);
        let inside = l.inside.clone();
        self.set_acc_values(&accs, &inside[..inside.len() - starts.len()]);
        let pointers = inside[inside.len() - starts.len()..].to_vec();
        for (s, p) in by_pointer.iter().zip(&pointers) {
            self.streams.insert(s.clone(), Place { base: *p, index: None });
        }
        for ((s, b), k) in by_index.iter().zip(&bases).zip(&scales) {
            self.streams.insert(s.clone(), Place { base: *b, index: Some((l.i, *k)) });
        }
        self.active.push((var, l.i));
        self.block(body)?;
        self.active.pop();
        let mut after = self.acc_values(&accs);
        for ((s, p), run) in by_pointer.iter().zip(&pointers).zip(&strides) {
            let next = match run {
                Some(v) => self.b.add(*p, *v),
                None => {
                    let bytes = s.1.last().and_then(|c| c.1.as_const()).unwrap_or(0) * step * i64::from(self.size_of(s.0));
                    self.b.add_imm(*p, bytes)
                }
            };
            after.push(next);
        }
        (self.streams, self.loaded) = saved;
        self.forget(body);
        let merged = self.b.close_loop(l, step, &after);
        let n = merged.len() - starts.len();
        self.set_acc_values(&accs, &merged[..n]);
        let mut out: Vec<(Stream, Place)> = by_pointer.into_iter().zip(&merged[n..]).map(|(s, p)| (s, Place { base: *p, index: None })).collect();
        out.extend(by_index.into_iter().zip(bases).zip(scales).map(|((s, b), k)| (s, Place { base: b, index: Some((b, k)) })));
        Ok(out)
    }
    /// A run-time stride in bytes as a register; `None` for numbers.
    fn stride_value(&mut self, s: &Stream, step: i64) -> Fit<Option<Value>> {
        let Some((_, c)) = s.1.last() else { return Err("a stream without a stride") };
        if c.as_const().is_some() {
            return Ok(None);
        }
        let bytes = *c * step * i64::from(self.size_of(s.0));
        match self.count(bytes)? {
            Count::Run(v) => Ok(Some(v)),
            Count::Fixed(_) => Ok(None),
        }
    }
    fn size_of(&self, arg: usize) -> u32 {
        match &self.args[arg] {
            Arg::Pointer { size, .. } => *size,
            Arg::Number(_) => 1,
        }
    }
    /// A place without an index.
    fn flat(&mut self, p: Place) -> Value {
        match p.index {
            None => p.base,
            // Indexed places belong to innermost loops only.
            Some((i, _)) => self.b.add(p.base, i),
        }
    }
    fn place(&self, s: &Stream) -> Fit<Place> {
        match self.streams.get(s) {
            Some(p) => Ok(*p),
            None if s.1.is_empty() => Ok(Place { base: self.params[s.0], index: None }),
            // A loop that does not move it.
            None => Err("a stream that nothing carries"),
        }
    }
    fn accs_set_in(&self, body: &[Stmt]) -> Vec<Reg> {
        let mut v = vec![];
        visit::walk(body, &mut |s| {
            if let Stmt::Set { reg, .. } = s
                && self.accs.contains_key(reg)
                && !v.contains(reg)
            {
                v.push(*reg);
            }
        });
        v
    }
    fn acc_values(&self, regs: &[Reg]) -> Vec<Value> {
        regs.iter().flat_map(|r| self.accs[r].values.iter().copied()).collect()
    }
    fn set_acc_values(&mut self, regs: &[Reg], values: &[Value]) {
        let mut it = values.iter().copied();
        for r in regs {
            if let Some(a) = self.accs.get_mut(r) {
                a.values.iter_mut().zip(&mut it).for_each(|(x, v)| *x = v);
            }
        }
    }
    /// Drops loads that stores in a body may change.
    fn forget(&mut self, body: &[Stmt]) {
        let stored: Vec<Buf> = visit::stores(body).into_iter().map(|b| self.m.storage(b)).collect();
        let m = self.m;
        self.loaded.retain(|_, (b, _)| !stored.iter().any(|s| m.overlaps(*s, *b)));
    }
    /// A dim as a number or an argument.
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
        self.active.iter().any(|(s, _)| d.contains(*s)) || self.deeper.iter().any(|s| d.contains(*s)) || self.lane.is_some_and(|l| d.contains(l.sym))
    }
    pub(super) fn arg(&mut self, a: Arg) -> Fit<usize> {
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
    /// Counters of the loops that run.
    pub fn counters(&self) -> &[(Sym, Value)] {
        &self.active
    }
    /// The variable of the vector loop.
    pub fn lane_sym(&self) -> Option<Sym> {
        self.lane.map(|l| l.sym)
    }
    pub(super) fn mem(&self, a: &Access) -> Fit<Mem> {
        let p = self.place(&a.stream)?;
        Ok(Mem { base: p.base, index: p.index, disp: a.disp })
    }
    /// Loads a vector of neighbours, or one element for all lanes.
    pub fn load_form(&mut self, a: &Access, form: Form) -> Fit<Value> {
        let mem = self.mem(a)?;
        let each = match a.lane {
            0 => false,
            1 => true,
            _ => return Err("a load that steps over elements"),
        };
        let mask = self.mask;
        let key = (Place { base: mem.base, index: mem.index }, mem.disp, form, each, false, mask);
        if let Some((_, v)) = self.loaded.get(&key) {
            return Ok(*v);
        }
        let wide = self.b.width() == Width::Avx512;
        let v = if each {
            if !super::table::has(form, false, mask.is_some(), self.b.width().column()) {
                return Err("a load that these vectors do not have");
            }
            if self.from_memory(a) {
                self.b.prefetch(Mem { disp: mem.disp.wrapping_add(AHEAD), ..mem }, false);
            }
            self.b.load(form, mem, mask)
        } else {
            // Where some lanes do not exist the element may not either, if a condition made the mask.
            match mask {
                Some(k) if self.mask_is_condition() => {
                    if !wide || form != Form::Whole {
                        return Err("a conditional load of one element");
                    }
                    self.b.broadcast_masked(mem, k)
                }
                _ => self.b.broadcast(form, mem),
            }
        };
        self.loaded.insert(key, (a.storage, v));
        Ok(v)
    }
    /// The same for small integers as floats: converted once, as they are loaded once.
    pub(super) fn load_as_float(&mut self, a: &Access, form: Form) -> Fit<Value> {
        let mem = self.mem(a)?;
        let key = (Place { base: mem.base, index: mem.index }, mem.disp, form, a.lane != 0, true, self.mask);
        if let Some((_, v)) = self.loaded.get(&key) {
            return Ok(*v);
        }
        let v = self.load_form(a, form)?;
        let v = self.b.un(Un::ToFloat, v);
        self.loaded.insert(key, (a.storage, v));
        Ok(v)
    }
    /// True for constants that come from afar, where the innermost loop runs through them in order: what it will read is
    /// asked for early.
    fn from_memory(&self, a: &Access) -> bool {
        const LEAST: i64 = 128;
        let far = |c: &crate::tensor::ConstData| c.byte_len() >= LARGE;
        let runs = match (self.active.last(), a.stream.1.last()) {
            (Some((innermost, _)), Some((moves, stride))) => innermost == moves && stride.as_const().is_some_and(|s| s.saturating_mul(i64::from(self.size_of(a.stream.0))) >= LEAST),
            _ => false,
        };
        runs && !self.prefetched.contains(&a.storage) && matches!(&self.m.bufs[a.storage].place, NestPlace::Const(c) if far(c))
    }
    fn mask_is_condition(&self) -> bool {
        // Remainders of vector loops have at least one lane; conditions may have none.
        self.mask.is_some_and(|k| self.b.is_condition(k))
    }
    fn store(&mut self, buf: Buf, at: &[Dim], value: &Expr) -> Fit<()> {
        let v = match value {
            // What is stored is the low byte.
            Expr::Cast(t @ (ElemType::U8 | ElemType::I8), x) if self.m.bufs[buf].ty == *t => Val { v: self.low_byte(x, *t)?, ty: *t },
            value => self.value(value)?,
        };
        let a = self.access(buf, at)?;
        let mem = self.mem(&a)?;
        let ty = self.m.bufs[buf].ty;
        match a.lane {
            1 => {
                let (form, v) = self.to_storage(ty, v)?;
                if !super::table::has(form, true, self.mask.is_some(), self.b.width().column()) {
                    return Err("a store that these vectors do not have");
                }
                self.b.store(form, mem, v, self.mask);
            }
            0 if self.lane.is_none() && matches!(ty, ElemType::F32 | ElemType::I32 | ElemType::U32) => self.b.store_scalar(mem, v.v),
            _ => return Err("a store that steps over elements"),
        }
        let (m, s) = (self.m, a.storage);
        self.loaded.retain(|_, (b, _)| !m.overlaps(s, *b));
        Ok(())
    }
}

/// True if a loop with iterations of its own is inside.
fn has_loop(body: &[Stmt], lanes: i64) -> bool {
    let mut found = false;
    visit::walk(body, &mut |s| {
        if let Stmt::For { kind, lo, hi, .. } = s {
            let trip = (*hi - *lo).as_const();
            found |= match kind {
                LoopKind::Unroll => false,
                LoopKind::Vec(_) => trip.is_none_or(|t| t >= 2 * lanes),
                _ => trip != Some(1),
            };
        }
    });
    found
}
