//! Loads and stores of tiles. A load is shared by all of its readers until a store may have changed it.

use super::access::Access;
use super::expr::is_long;
use super::{Fit, Misfit, NEAR, Place, Translate, Val, Waiting};
use crate::codegen::tile::builder::Count;
use crate::codegen::tile::ir::{Bin, Bits, Form, Mem, Op, Un, Value, Width};
use crate::codegen::tile::isa;
use crate::nest::{BinOp, Buf, Expr, Place as NestPlace, UnOp};
use crate::sym::Dim;
use crate::tensor::ElemType;

/// Constants of at least this size come from memory or an outer cache, since other constants were read
/// meanwhile.
const LARGE: u64 = 64 << 10;
/// Prefetch distance in bytes: some hundred nanoseconds of work.
const AHEAD: i32 = 4096;

const NO_LOAD: Misfit = "a load that these vectors do not have";
const LANES: Misfit = "an access lane by lane of lanes that run time knows";

impl Translate<'_> {
    pub(super) fn mem(&mut self, a: &Access) -> Fit<Mem> {
        let p = self.place(&a.stream)?;
        let base = self.base_of(a, p.base)?;
        self.row(a, Mem { index: p.index, ..Mem::at(base, a.disp) })
    }
    /// Loads contiguous elements, or broadcasts one.
    pub fn load_form(&mut self, a: &Access, form: Form) -> Fit<Value> {
        let linear = a.places.is_none() && a.window.is_none() && a.bound.is_empty();
        if linear && !matches!(a.lane, Some(0 | 1)) && self.b.has(Op::LoadStrided(form)) {
            return self.lane_by_lane(a, form);
        }
        if self.is_gather(a, form) {
            return self.gathered(a, form);
        }
        if self.is_strided(a, form) {
            return self.load_strided(a, form);
        }
        if self.is_repeated(a, form) {
            return self.load_repeated(a, form);
        }
        if a.lane.is_none() {
            return self.lane_by_lane(a, form);
        }
        let mem = self.mem(a)?;
        self.load_at(a, form, mem)
    }
    /// The same from an address.
    pub(super) fn load_at(&mut self, a: &Access, form: Form, mem: Mem) -> Fit<Value> {
        let mask = self.mask;
        let key = (Place { base: mem.base, index: mem.index }, mem.disp, form, a.lane, false, mask);
        if let Some((_, v)) = self.loaded.get(&key) {
            return Ok(*v);
        }
        let wide = self.b.width() == Width::Avx512;
        let v = if a.lane == Some(1) {
            // Machines without masked loads of words load all lanes, the first ones or none; 256-bit code
            // loads short elements so, or pieces of 32 bits.
            let parts = self.b.has(Op::LoadFirst(Form::B32, 1));
            let first =
                mask.is_some_and(|k| self.b.lanes_of(k).is_some()) && self.b.has(Op::LoadFirst(form, 1));
            if let Some(k) = mask.filter(|k| parts && !first && self.b.is_uniform(*k)) {
                let v = self.b.only_if(k, |b| b.load(form, mem, None));
                self.loaded.insert(key, (a.storage, v));
                return Ok(v);
            }
            let masked = mask.is_some_and(|k| parts || !self.b.is_uniform(k));
            if !first && !isa::machine(self.b.width()).has(form, false, masked) {
                return Err(NO_LOAD);
            }
            // Once per cache line.
            let begins =
                self.b.width().bytes() >= 32 || mem.disp.rem_euclid(64) < self.b.width().bytes() as i32;
            if begins && self.from_memory(a) {
                self.b.prefetch(Mem { disp: mem.disp.wrapping_add(AHEAD), ..mem }, false);
            }
            self.b.load(form, mem, mask)
        } else {
            // If a condition made the mask, the element may not exist when the mask is empty.
            match mask {
                Some(k) if self.mask_is_condition() => {
                    if !matches!(form, Form::B32 | Form::B64) {
                        return Err("a conditional load of one short element");
                    }
                    if wide {
                        self.b.broadcast_masked(form, mem, k)
                    } else if !self.b.has(Op::Gather(form)) {
                        // A broadcast reads nothing if the mask is empty; which lanes are active does not
                        // matter.
                        self.b.only_if(k, |b| b.broadcast(form, mem))
                    } else {
                        let zero = self.index_number(0);
                        self.b.gather(form, zero, mem, Some(k))
                    }
                }
                _ if !self.b.has(Op::Broadcast(form)) => return Err(NO_LOAD),
                _ => self.b.broadcast(form, mem),
            }
        };
        self.loaded.insert(key, (a.storage, v));
        Ok(v)
    }
    /// The same for small integers converted to floats.
    pub(super) fn load_as_float(&mut self, a: &Access, form: Form) -> Fit<Value> {
        self.load_converted(a, (form, form), |t, v| t.b.un(Un::ToFloat, v))
    }
    /// Loads elements that `convert` makes floats: each is converted once, like its load. Forms: of the load,
    /// and of what it is converted from.
    pub(super) fn load_converted(
        &mut self,
        a: &Access,
        (form, from): (Form, Form),
        convert: fn(&mut Self, Value) -> Value,
    ) -> Fit<Value> {
        if self.is_gather(a, form) || self.is_strided(a, form) || a.lane.is_none() {
            let v = self.load_form(a, form)?;
            return Ok(convert(self, v));
        }
        let mem = self.mem(a)?;
        let key = (Place { base: mem.base, index: mem.index }, mem.disp, from, a.lane, true, self.mask);
        if let Some((_, v)) = self.loaded.get(&key) {
            return Ok(*v);
        }
        let v = self.load_form(a, form)?;
        let v = convert(self, v);
        self.loaded.insert(key, (a.storage, v));
        Ok(v)
    }
    /// True for large constants that the innermost loop reads sequentially, which are prefetched.
    fn from_memory(&self, a: &Access) -> bool {
        const LEAST: i64 = 128;
        let far = |c: &crate::tensor::ConstData| c.byte_len() >= LARGE;
        let runs = match (self.active.last(), a.stream.1.last()) {
            (Some((innermost, _)), Some((moves, stride))) => {
                innermost == moves
                    && stride
                        .as_const()
                        .is_some_and(|s| s.saturating_mul(i64::from(self.size_of(a.stream.0))) >= LEAST)
            }
            _ => false,
        };
        runs && !self.prefetched.contains(&a.storage)
            && matches!(&self.m.bufs[a.storage].place, NestPlace::Const(c) if far(c))
    }
    pub(super) fn mask_is_condition(&self) -> bool {
        // Remainders of vector loops have at least one lane; conditions may have none.
        self.mask.is_some_and(|k| self.b.is_condition(k))
    }
    /// Stores lane by lane, `step` elements apart.
    fn store_strided(&mut self, form: Form, mem: Mem, v: Value, step: i64) -> Fit<()> {
        const FAR: Misfit = "a store that steps too far";
        if form == Form::F16 {
            return Err("a store of f16 that are no neighbours");
        }
        let bytes = step.checked_mul(i64::from(form.bytes())).ok_or(FAR)?;
        let lanes = match self.mask {
            None => Some(self.b.lanes()),
            Some(k) => self.b.lanes_of(k),
        };
        match (lanes, self.mask) {
            (Some(n), _) => self.b.store_lanes(form, mem, v, n, bytes).then_some(()).ok_or(FAR),
            (None, Some(k))
                if self.b.width() == Width::Avx512
                    && matches!(form, Form::B32 | Form::B64)
                    && i32::try_from(step.saturating_mul(16)).is_ok() =>
            {
                let (iota, step) = (self.b.iota(), self.index_number(step));
                let index = self.index_op(Bin::IMul, iota, step);
                self.b.scatter(form, index, mem, v, k);
                Ok(())
            }
            (None, Some(k)) if self.b.has(Op::StoreStrided(form)) => {
                let step = self.b.int(bytes);
                self.b.store_strided(form, mem, (v, step), Some(k));
                Ok(())
            }
            _ => Err(LANES),
        }
    }
    /// Loads lanes at a run-time stride, one by one.
    fn lane_by_lane(&mut self, a: &Access, form: Form) -> Fit<Value> {
        if self.b.has(Op::LoadStrided(form)) {
            let step = match self.count(a.step * i64::from(form.bytes()))? {
                Count::Run(step) => step,
                Count::Fixed(n) => self.b.int(n),
            };
            let mem = self.mem(a)?;
            let args: Vec<Value> = std::iter::once(step).chain(self.mask).collect();
            return Ok(self.b.vector(Op::LoadStrided(form), &args, Some(mem)));
        }
        let bits = match (form, self.b.is_long()) {
            (Form::B32, false) => Bits::B32,
            (Form::B64, true) if self.b.width() == Width::Avx512 => Bits::B64,
            _ => return Err(LANES),
        };
        let Count::Run(step) = self.count(a.step * i64::from(form.bytes()))? else { return Err(LANES) };
        let mem = self.mem(a)?;
        let mut base = self.b.address(mem);
        let (n, last) = match (self.used_lanes(), self.mask, self.rest) {
            (Some(n), ..) => (n, None),
            // Inactive lanes read the last active lane's element.
            (None, Some(k), Some((rest, _))) if k == rest => {
                let far = self.count(a.step * (self.rest_of - 1) * i64::from(form.bytes()))?;
                let Count::Run(far) = far else { return Err(LANES) };
                (self.b.lanes(), Some(self.b.add(base, far)))
            }
            _ => return Err(LANES),
        };
        let mut all = self.b.broadcast(form, Mem::at(base, 0));
        for lane in 1..n {
            base = self.b.add(base, step);
            if let Some(last) = last {
                base = self.b.lesser(base, last);
            }
            let one = self.b.broadcast(form, Mem::at(base, 0));
            let from_here = self.b.some_lanes(u32::MAX << lane);
            all = self.b.select(from_here, one, all, bits);
        }
        Ok(all)
    }
    pub(super) fn store(&mut self, buf: Buf, at: &[Dim], value: &Expr) -> Fit<()> {
        if self.copy_bytes(buf, at, value)? {
            return Ok(());
        }
        let plain = self.access(buf, at)?;
        if self.b.width() == Width::Avx512
            && !self.b.is_long()
            && plain.lane == Some(1)
            && plain.is_regular()
            && plain.bound.is_empty()
            && let Some(v) = self.near_byte(buf, value)?
        {
            let mem = self.mem(&plain)?;
            self.b.store(Form::NearU8, mem, v, self.mask);
            self.stored(plain.storage);
            return Ok(());
        }
        let v = match value {
            // The store keeps the low byte.
            Expr::Cast(t @ (ElemType::U8 | ElemType::I8), x) if self.m.bufs[buf].ty == *t => {
                Val { v: self.low_byte(x, *t)?, ty: *t }
            }
            value => self.value(value)?,
        };
        let a = self.access(buf, at)?;
        if !a.bound.is_empty() {
            return Err("a store at an index read from memory");
        }
        let mem = self.mem(&a)?;
        if !a.is_regular() {
            return Err(super::access::NOT_LINEAR);
        }
        let ty = self.m.bufs[buf].ty;
        if a.lane == Some(0) {
            if self.lane.is_some() || is_long(ty) != self.b.is_long() {
                return Err("a store of one element in lanes");
            }
            self.store_one(ty, mem, v)?;
            self.stored(a.storage);
            return Ok(());
        }
        let (form, v) = self.to_storage(ty, v)?;
        if let Some(columns) = &mut self.columns {
            columns.push(v);
            return Ok(());
        }
        match a.lane {
            Some(1) if self.has_store(form) => {
                let value = self.side_by_side(form, v);
                if let Some(w) = &mut self.waiting {
                    w.push(Waiting { storage: a.storage, form, mem, value, mask: self.mask });
                    return Ok(());
                }
                self.b.store(form, mem, value, self.mask);
            }
            Some(step) => self.store_strided(form, mem, v, step)?,
            None => {
                let (Some(n), true) = (self.used_lanes(), form != Form::F16) else { return Err(LANES) };
                let Count::Run(step) = self.count(a.step * i64::from(form.bytes()))? else {
                    return Err(LANES);
                };
                self.b.store_lanes_strided(form, mem, v, n, step);
            }
        }
        self.stored(a.storage);
        Ok(())
    }
    /// Stores the first lane.
    fn store_one(&mut self, ty: ElemType, mem: Mem, v: Val) -> Fit<()> {
        let (form, v) = match ty {
            ElemType::F16 if self.b.has(Op::Un(Un::Half, Bits::B32)) => (Form::U16, self.b.un(Un::Half, v.v)),
            ElemType::F16 => (Form::U16, self.float_to_half(v.v)),
            ty => self.to_storage(ty, v)?,
        };
        match form {
            Form::B32 | Form::B64 => self.b.store_scalar(mem, v, form.lane()),
            _ if self.b.store_lanes(form, mem, v, 1, 0) => {}
            _ => return Err("a store of one element at a distance beyond 32 bits"),
        }
        Ok(())
    }
    /// True if an instruction stores active lanes contiguously.
    fn has_store(&self, form: Form) -> bool {
        let first = self.mask.is_some_and(|k| self.b.lanes_of(k).is_some());
        first && self.b.has(Op::StoreFirst(form, 1))
            || isa::machine(self.b.width()).has(form, true, self.mask.is_some())
    }
    /// True if an instruction stores the first lanes of a constant number, or lanes under a mask.
    pub(super) fn stores_first(&self, form: Form) -> bool {
        self.b.has(Op::StoreFirst(form, 1)) || isa::machine(self.b.width()).has(form, true, true)
    }
    /// Runs `f`, then emits its whole-vector stores.
    pub(super) fn stores_last(&mut self, f: impl FnOnce(&mut Self) -> Fit<()>) -> Fit<()> {
        let outer = self.waiting.replace(vec![]);
        let r = f(self);
        for w in std::mem::replace(&mut self.waiting, outer).into_iter().flatten() {
            self.b.store(w.form, w.mem, w.value, w.mask);
            self.stored(w.storage);
        }
        r
    }
    pub(super) fn stored(&mut self, storage: Buf) {
        let m = self.m;
        self.loaded.retain(|_, (b, _)| !m.overlaps(storage, *b));
    }
    /// For `store u8(i32(round(min(max(x, lo), hi))) + z)` with an upper limit of 255: the value without that
    /// limit, since the store saturates.
    fn near_byte(&mut self, buf: Buf, value: &Expr) -> Fit<Option<Value>> {
        let (Expr::Cast(ElemType::U8, x), ElemType::U8) = (value, self.m.bufs[buf].ty) else {
            return Ok(None);
        };
        let (x, zero) = match &**x {
            Expr::Bin(BinOp::Add, x, z) => match &**z {
                Expr::Const(z) => (&**x, z.to_i64()),
                _ => return Ok(None),
            },
            x => (x, 0),
        };
        let Expr::Cast(ElemType::I32, x) = x else { return Ok(None) };
        let (op, x) = match &**x {
            Expr::Un(UnOp::Round, x) => (Un::ToInt, &**x),
            x => (Un::TruncInt, x),
        };
        let Expr::Bin(BinOp::Min, x, hi) = x else { return Ok(None) };
        let (Expr::Bin(BinOp::Max, inner, lo), Expr::Const(hi)) = (&**x, &**hi) else { return Ok(None) };
        let Expr::Const(lo) = &**lo else { return Ok(None) };
        // Integral limits, so that rounding does not exceed them; neither the conversion nor the sum
        // overflows.
        let limits = hi.ty == ElemType::F32
            && lo.to_f64() + zero as f64 >= 0.0
            && lo.to_f64().fract() == 0.0
            && hi.to_f64() + zero as f64 == 255.0
            && zero.abs() < NEAR as i64;
        if !limits || self.bounds.of(self.m, inner).is_none_or(|b| b.0 < -NEAR || b.1 > NEAR) {
            return Ok(None);
        }
        let v = self.value(x)?;
        let v = self.b.un(op, v.v);
        if zero == 0 {
            return Ok(Some(v));
        }
        let z = self.b.bits(zero as i32 as u32);
        Ok(Some(self.b.bin(Bin::IAdd, v, z)))
    }
}
