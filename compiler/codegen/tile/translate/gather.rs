//! Indices loaded from memory, and strided accesses, both of which become gathers.
//!
//! An index out of range accesses nothing out of bounds: it is replaced by 0 and recorded in a mask that
//! loops carry. The tile returns whether that mask is not empty.

use super::access::Access;
use super::near::Near;
use super::{Arg, Fit, Translate, Val};
use crate::codegen::tile::builder::Count;
use crate::codegen::tile::ir::{Bin, Bits, Form, Mem, Op, Pred, Un, Value};
use crate::nest::{BinOp, Expr, Reg};
use crate::sym::{Answer, Dim, Sym};
use crate::tensor::ElemType;

/// An index loaded from memory.
#[derive(Clone, Copy)]
pub(super) struct Bound {
    /// Its value in lanes.
    pub(super) value: Value,
    /// Its bound.
    extent: Dim,
    /// Its value as an integer, if it is uniform.
    first: Option<Value>,
    /// Whether lanes may read close to each other.
    pub(super) near: Option<Near>,
}

impl Translate<'_> {
    /// Translates an expression with a bound index.
    pub(super) fn with_index(&mut self, sym: Sym, value: &Expr, extent: Dim, body: &Expr) -> Fit<Val> {
        if let Some(v) = self.entry((sym, value), extent, body)? {
            return Ok(v);
        }
        let checked = !self.is_inside(value, extent);
        let some = self.m.syms.is_pos(extent);
        let (raw, clamped) = (extent, matches!(value, Expr::Bin(BinOp::Min | BinOp::Max, ..)));
        let before = self.b.next_value();
        let index = self.value(value)?;
        let uniform = self.b.is_uniform(index.v) || !self.varies(value);
        let to = if self.b.is_long() { ElemType::I64 } else { ElemType::I32 };
        let read = self.cast(to, index)?.v;
        let bits = self.b.index_bits();
        let extent = self.substituted(extent);
        let of_limit = self.b.next_value();
        let limit = match self.count(extent)? {
            Count::Fixed(n) if bits == Bits::B32 && i32::try_from(n).is_err() => {
                return Err("an index beyond 32 bits");
            }
            Count::Fixed(n) => self.index_number(n),
            Count::Run(n) if bits == Bits::B32 => {
                let n = self.b.limited(n, 0, i32::MAX.into());
                self.b.splat(n)
            }
            Count::Run(n) => self.b.splat(n),
        };
        self.b.are_positions(of_limit);
        let steady = self.is_steady(value);
        let out = checked.then(|| self.b.ucmp(Pred::Le, limit, read, bits));
        let value = match out {
            Some(out) => {
                let zero = self.index_number(0);
                self.b.select(out, zero, read, bits)
            }
            None => read,
        };
        if steady {
            self.b.are_positions(before);
        }
        if let Some(out) = out {
            self.report(out);
        }
        let first = uniform.then(|| self.b.first(value));
        let near = || self.near_of(sym, (raw, extent, limit), clamped, body);
        // Positions in a table are rarely close to each other.
        let table = body.loaded().is_some_and(|b| self.m.is_constant(b));
        let mut near = if uniform || table { None } else { near() };
        // Loads at the previous index are invalid.
        let before = self.loaded.clone();
        let outer = self.mask;
        if !some {
            // There may be no element 0 to read for indices out of range.
            let inside = self.b.ucmp(Pred::Lt, read, limit, bits);
            let inside = self.in_mask(inside);
            self.mask = Some(self.b.condition(inside));
        }
        if let Some(near) = &mut near {
            near.mask = self.mask;
        }
        self.bound.insert(sym, Bound { value, extent: raw, first, near });
        let r = self.value(body);
        self.mask = outer;
        self.loaded = before;
        self.bound.remove(&sym);
        r
    }
    /// True for an expression of values that the tile does not store.
    fn is_steady(&self, e: &Expr) -> bool {
        let mut steady = true;
        e.walk(&mut |e| {
            if let Expr::Load { buf, .. } = e {
                let read = self.m.storage(*buf);
                steady &= !self.stored.iter().any(|b| self.m.overlaps(*b, read));
            }
        });
        steady
    }
    /// True if the value of an expression may differ between lanes.
    pub(super) fn varies(&self, e: &Expr) -> bool {
        let differs = |d: &Dim| {
            self.lane.is_some_and(|l| d.contains(l.sym))
                || self.bound.iter().any(|(s, b)| b.first.is_none() && d.contains(*s))
        };
        let mut inner: Vec<Reg> = vec![];
        let mut hit = false;
        e.walk(&mut |e| {
            hit |= match e {
                Expr::Index(d) => differs(d) || self.put.values().any(differs) && d.as_const().is_none(),
                Expr::Load { at, .. } => {
                    at.iter().any(differs)
                        || self.put.values().any(differs) && at.iter().any(|d| d.as_const().is_none())
                }
                Expr::Let { reg, .. } => {
                    inner.push(*reg);
                    false
                }
                Expr::Reg(r) => !inner.contains(r),
                Expr::Acc { .. } | Expr::With { .. } => true,
                _ => false,
            }
        });
        hit
    }
    /// True for an access that is not a contiguous stream: other distances between lanes, or loaded indices.
    pub(super) fn is_gather(&self, a: &Access, form: Form) -> bool {
        (a.places.is_some() || !matches!(a.lane, None | Some(0 | 1))) && !self.is_strided(a, form)
            || !a.bound.is_empty()
            || a.window.is_some()
            || a.indexed.is_some()
    }
    /// The elements that lanes read at such an access.
    pub(super) fn gathered(&mut self, a: &Access, form: Form) -> Fit<Value> {
        if let Some(positions) = a.indexed {
            return self.load_indexed(a, form, positions);
        }
        if let Some(window) = a.window {
            return self.load_window(a, window, form);
        }
        if a.places.is_some() {
            return Err(super::access::NOT_LINEAR);
        }
        let Some(lane) = a.lane else { return Err(NO_INDEX) };
        let mem = self.mem(a)?;
        let agree = a.bound.iter().all(|b| self.bound.get(&b.0).is_some_and(|b| b.first.is_some()));
        if agree && matches!(lane, 0 | 1) {
            return self.load_at_first(a, form, mem);
        }
        if let Some(v) = self.load_reversed(a, form, mem)? {
            return Ok(v);
        }
        if self.b.has(Op::LoadIndexed(form)) {
            return self.load_at_indices(a, form, lane);
        }
        if !self.b.has(Op::Gather(form)) {
            return Err("a gather that these vectors do not have");
        }
        if !self.fits_index(a, form, lane) {
            return Err("a distance beyond 32 bits");
        }
        let index = self.index_of(a, lane)?;
        match self.gathered_near(a, form, (index, mem))? {
            Some(v) => Ok(v),
            None => {
                let bytes = self.elements(a.storage) * i64::from(form.bytes());
                if form.bytes() < 4 && !self.m.syms.is_nonneg(bytes - 4) {
                    return self.gather_of_any_length(a, form, (index, mem), bytes);
                }
                self.far_gather(a, form, (index, mem))
            }
        }
    }
    /// The elements of a buffer that may have fewer than four bytes.
    fn gather_of_any_length(
        &mut self,
        a: &Access,
        form: Form,
        (index, mem): (Value, Mem),
        bytes: Dim,
    ) -> Fit<Value> {
        if self.b.is_long() || !self.b.has(Op::Broadcast(form)) {
            return Err("a gather from what may be shorter than a word");
        }
        let Count::Run(bytes) = self.count(bytes)? else { return self.far_gather(a, form, (index, mem)) };
        let (enough, none) = (self.b.add_imm(bytes, -3), self.b.bits(0));
        let opened = self.b.open_if_positive(enough);
        let v = self.far_gather(a, form, (index, mem))?;
        let v = self.b.close_if(opened, &[none], &[v]).first().copied().unwrap_or(v);
        // One to three bytes.
        let minus = self.b.mul_imm(bytes, -1);
        let lacking = self.b.add_imm(minus, 4);
        let few = self.b.lesser(bytes, lacking);
        let opened = self.b.open_if_positive(few);
        let size = form.bytes() as i32;
        let base = self.b.address(mem);
        let room = self.bytes_behind(a, base)?;
        let last = self.b.add_imm(room, -i64::from(size));
        let mut all = self.b.broadcast(form, Mem::at(base, 0));
        for i in 1..3 / size {
            let (at, place) = (self.b.int((i * size).into()), self.b.bits(i as u32));
            let at = self.b.lesser(at, last);
            let at = self.b.add(base, at);
            let one = self.b.broadcast(form, Mem::at(at, 0));
            let here = self.b.icmp(Pred::Eq, index, place, Bits::B32);
            all = self.b.select(here, one, all, Bits::B32);
        }
        Ok(self.b.close_if(opened, &[v], &[all]).first().copied().unwrap_or(all))
    }
    /// The elements at any distance, of a buffer with at least four bytes.
    pub(super) fn far_gather(&mut self, a: &Access, form: Form, (index, mem): (Value, Mem)) -> Fit<Value> {
        if form.bytes() < 4 {
            return self.short_gather(a, form, index, mem);
        }
        Ok(self.b.gather(form, index, mem, self.mask))
    }
    /// The elements of lanes in which all loaded indices are those of the first lane.
    fn load_at_first(&mut self, a: &Access, form: Form, mem: Mem) -> Fit<Value> {
        let size = i64::from(form.bytes());
        let mut base = self.b.address(mem);
        for (s, c) in &a.bound {
            let Some(first) = self.bound.get(s).and_then(|b| b.first) else { return Err(NO_INDEX) };
            let apart = match self.count(*c * size)? {
                Count::Fixed(step) => match i32::try_from(step) {
                    Ok(step) => self.b.mul_imm(first, step),
                    Err(_) => return Err("a stride beyond 32 bits"),
                },
                Count::Run(step) => self.b.mul(first, step),
            };
            base = self.b.add(base, apart);
        }
        self.load_at(a, form, Mem::at(base, 0))
    }
    /// True if positions fit into the lanes of an index; those of short elements are in bytes. If only lanes
    /// have a stride, it is constant. An index alone is below its bound, which is limited to 32 bits.
    fn fits_index(&self, a: &Access, form: Form, lane: i64) -> bool {
        let short = form.bytes() < 4;
        let near = match &a.bound[..] {
            [] => i32::try_from(lane.saturating_mul(16)).is_ok(),
            [(_, step)] if !short && lane == 0 => step.as_const() == Some(1),
            _ => false,
        };
        let most = || self.m.syms.range(self.m.bufs[a.storage].count()).hi;
        let fits = |n: i64| i32::try_from(n.saturating_mul(2)).is_ok();
        near || self.b.index_bits() != Bits::B32
            || most().is_some_and(fits)
            || self.is_near_base(a, form, lane)
    }
    /// True if the farthest position of an access from its base is proven to fit.
    fn is_near_base(&self, a: &Access, form: Form, lane: i64) -> bool {
        let mut far = Dim::constant(lane.max(0).saturating_mul(self.b.lanes().into()));
        for (s, step) in &a.bound {
            let Some(b) = self.bound.get(s).filter(|_| self.m.syms.is_nonneg(*step)) else { return false };
            far = far + (b.extent - 1) * *step;
        }
        let bytes = if form.bytes() < 4 { i64::from(form.bytes()) } else { 1 };
        let most = self.m.syms.le(far * bytes, Dim::constant(i32::MAX.into()));
        lane >= 0 && most == Answer::Yes
    }
    /// The sum of the loaded indices of an access and of the numbers of lanes, each times its stride.
    fn index_of(&mut self, a: &Access, lane: i64) -> Fit<Value> {
        let mut index = None;
        let mut add = |t: &mut Self, x: Value, step: Value, one: bool| {
            let x = if one { x } else { t.index_op(Bin::IMul, x, step) };
            index = Some(match index {
                Some(i) => t.index_op(Bin::IAdd, i, x),
                None => x,
            });
        };
        for (s, c) in &a.bound {
            let Some(b) = self.bound.get(s).copied() else { return Err(NO_INDEX) };
            let step = match self.count(*c)? {
                Count::Fixed(c) => self.index_number(c),
                // Positions fit, so that this changes no stride of a row that exists.
                Count::Run(v) if self.b.index_bits() == Bits::B32 => {
                    let v = self.b.limited(v, 0, i32::MAX.into());
                    self.b.splat(v)
                }
                Count::Run(v) => self.b.splat(v),
            };
            add(self, b.value, step, c.as_const() == Some(1));
        }
        if lane != 0 {
            let (iota, step) = (self.b.iota(), self.index_number(lane));
            add(self, iota, step, lane == 1);
        }
        index.ok_or(NO_INDEX)
    }
    /// The number of bytes from an address to the end of a buffer.
    fn bytes_behind(&mut self, a: &Access, base: Value) -> Fit<Value> {
        let size = self.m.bufs[a.storage].ty.bytes().ok_or("elements smaller than a byte")?;
        let end = self.arg(Arg::Pointer { buf: a.storage, linear: self.elements(a.storage), size })?;
        let minus = self.b.mul_imm(base, -1);
        Ok(self.b.add(self.params[end], minus))
    }
    /// Elements of 8 and 16 bits. Each lane loads four bytes: those beginning at its element, or the last
    /// four of the buffer if these begin earlier. Nothing is read outside a buffer with at least four bytes.
    fn short_gather(&mut self, a: &Access, form: Form, index: Value, mem: Mem) -> Fit<Value> {
        let base = self.b.address(mem);
        // Distance in bytes from the base of the lanes to the last word.
        let room = self.bytes_behind(a, base)?;
        let room = self.b.add_imm(room, -4);
        let long = self.b.is_long();
        let room = if long { room } else { self.b.limited(room, i32::MIN.into(), i32::MAX.into()) };
        let room = self.b.splat(room);
        let distance = if form.bytes() == 2 { self.index_op(Bin::IAdd, index, index) } else { index };
        let at = self.index_op(Bin::IMin, distance, room);
        let word = self.b.gather(form, at, Mem::at(base, 0), self.mask);
        let before = self.index_op(Bin::ISub, distance, at);
        let before = if long { self.b.low(before) } else { before };
        let before = self.b.un(Un::Shl(3), before);
        let word = self.b.bin(Bin::Shr, word, before);
        Ok(match form {
            Form::I8 | Form::I16 => {
                let n = 32 - 8 * form.bytes() as u8;
                let up = self.b.un(Un::Shl(n), word);
                self.b.un(Un::Sar(n), up)
            }
            _ => {
                let mask = self.b.bits(if form.bytes() == 1 { 0xff } else { 0xffff });
                let x = self.b.bin(Bin::And, word, mask);
                if form == Form::F16 { self.half_to_float(x) } else { x }
            }
        })
    }
}

const NO_INDEX: &str = "an index without a value";
pub(super) const NO_STRIDE: &str = "an index with a stride that run time knows";
