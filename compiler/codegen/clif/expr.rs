//! Expressions -> values: scalars, or four lanes of 32 bits inside `vec` loops.
//!
//! Inside a `vec` loop an expression that does not depend on the lane stays scalar and is splatted where it meets a
//! vector. What has no vector form (gathers, 64-bit integers, libm) is emitted lane by lane and packed.

use super::convert::scalar_type;
use super::func::{Emit, Slot};
use crate::codegen::math;
use crate::diag::Result;
use crate::nest::{BinOp, Buf, Expr, Reg, Scalar, Status, UnOp};
use crate::sym::{Dim, Sym};
use crate::tensor::ElemType;
use cranelift_codegen::ir::condcodes::{FloatCC, IntCC};
use cranelift_codegen::ir::types::{F32, F32X4, F64, I8, I32, I32X4, I64};
use cranelift_codegen::ir::{Endianness, InstBuilder, MemFlagsData, Type, Value};

/// A value with its compute type.
#[derive(Clone, Copy, Debug)]
pub(super) struct Val {
    pub v: Value,
    pub ty: ElemType,
    pub vec: bool,
}

/// How an access moves from lane to lane.
enum Stride {
    Same,
    Next,
    Other,
}

pub(super) fn is_lane_type(t: ElemType) -> bool {
    matches!(t, ElemType::F32 | ElemType::I32 | ElemType::U32 | ElemType::Bool)
}

impl Emit<'_, '_> {
    pub fn value(&mut self, e: &Expr) -> Result<Val> {
        let in_vec = self.lanes.is_some_and(|l| l.lane.is_none());
        if in_vec && self.varying(e) && !self.has_vector_form(e) {
            return self.by_lanes(e);
        }
        if let Some((base, p)) = math::constant_power(e) {
            let x = self.value(base)?;
            return Ok(math::power(self, x, p));
        }
        match e {
            Expr::Const(s) => Ok(self.constant(*s)),
            Expr::Reg(r) => self.reg(*r),
            Expr::Acc { reg, at, lane } => self.read_acc(*reg, at, *lane),
            Expr::Horizontal { op, reg, at } => self.horizontal(*op, *reg, at),
            Expr::Address(b) => {
                let (v, at) = self.address(*b, Dim::constant(0))?;
                let v = if at == 0 { v } else { self.b.ins().iadd_imm_s(v, i64::from(at)) };
                Ok(Val { v, ty: ElemType::I64, vec: false })
            }
            Expr::Index(d) => Ok(Val { v: self.dim(*d)?, ty: ElemType::I64, vec: false }),
            Expr::Load { buf, at } => self.load(*buf, at),
            Expr::Un(op, a) => {
                let a = self.value(a)?;
                self.unary(*op, a)
            }
            // Against a number one comparison suffices: where it is false, NaN included, the value stays.
            Expr::Bin(op @ (BinOp::Min | BinOp::Max), a, b) if matches!(&**b, Expr::Const(c) if c.ty.is_float() && !c.to_f64().is_nan()) => {
                let a = self.value(a)?;
                let b = self.value(b)?;
                let (a, b) = self.level(a, b);
                let c = self.compare(if *op == BinOp::Max { BinOp::Gt } else { BinOp::Lt }, b, a);
                Ok(self.blend(c, b, a))
            }
            Expr::Bin(op, a, b) => {
                let a = self.value(a)?;
                let b = self.value(b)?;
                let (a, b) = self.level(a, b);
                self.binary(*op, a, b)
            }
            Expr::Fma(a, b, c) => {
                let (a, b, c) = (self.value(a)?, self.value(b)?, self.value(c)?);
                let vec = a.vec || b.vec || c.vec;
                let (a, b, c) = (self.widen(a, vec), self.widen(b, vec), self.widen(c, vec));
                Ok(self.fma(a, b, c))
            }
            Expr::Dot(a, b, c) => {
                let (a, b, c) = (self.value(a)?, self.value(b)?, self.value(c)?);
                Ok(self.dot(a, b, c))
            }
            Expr::Select(c, a, b) => self.select(c, a, b),
            Expr::Cast(to, a) => {
                let a = self.value(a)?;
                self.cast(*to, a)
            }
            Expr::Text(op, v) => self.text(*op, v),
            Expr::Let { reg, value, body } => {
                let v = self.value(value)?;
                self.regs.insert(*reg, Slot::Value(v));
                self.value(body)
            }
            Expr::With { sym, value, extent, body } => {
                let shadowed = self.bind(*sym, value, *extent)?;
                let r = self.value(body);
                self.unbind(*sym, shadowed);
                r
            }
        }
    }
    /// Binds a checked index in a scope of its own; the result goes to [`Self::unbind`].
    pub fn bind(&mut self, sym: Sym, value: &Expr, extent: Dim) -> Result<Option<Value>> {
        let v = self.value(value)?;
        let v = self.cast(ElemType::I64, v)?;
        let known = self.bounds.as_ref().and_then(|b| b.of(self.m, value)).zip(extent.as_const()).is_some_and(|(r, n)| r.0 >= 0.0 && r.1 < n as f64);
        if !known {
            let n = self.dim(extent)?;
            let ok = self.b.ins().icmp(IntCC::UnsignedLessThan, v.v, n);
            self.require(ok, Status::Index);
        }
        let shadowed = self.vars.insert(sym, v.v);
        self.scopes.push(super::func::Scope { syms: vec![sym], ..Default::default() });
        Ok(shadowed)
    }
    /// Ends the scope of an index.
    pub fn unbind(&mut self, sym: Sym, shadowed: Option<Value>) {
        self.pop();
        if let Some(s) = shadowed {
            self.vars.insert(sym, s);
        }
    }
    /// A truth value to branch on.
    pub fn truth(&mut self, e: &Expr) -> Result<Value> {
        let v = self.value(e)?;
        if v.vec { self.bug("a branch on lanes") } else { Ok(v.v) }
    }
    /// True if the expression differs between the lanes of the vector loop around.
    fn varying(&self, e: &Expr) -> bool {
        let Some(l) = self.lanes else { return false };
        let mut hit = false;
        let mut inner: Vec<Reg> = vec![];
        e.walk(&mut |e| {
            hit |= match e {
                Expr::Index(d) => d.contains(l.sym),
                Expr::Load { at, .. } => at.iter().any(|d| d.contains(l.sym)),
                Expr::Acc { reg, lane: None, .. } => matches!(self.regs.get(reg), Some(Slot::Acc { lanes, .. }) if *lanes > 1),
                Expr::Reg(r) => matches!(self.regs.get(r), Some(Slot::Value(v)) if v.vec) && !inner.contains(r),
                Expr::With { extent, .. } => extent.contains(l.sym),
                Expr::Let { reg, .. } => {
                    inner.push(*reg);
                    false
                }
                _ => false,
            };
        });
        hit
    }
    /// True if all of it can be computed four lanes at a time.
    fn has_vector_form(&self, e: &Expr) -> bool {
        if !self.varying(e) {
            return true;
        }
        let ok = |x: &Expr| self.has_vector_form(x) && (is_lane_type(self.m.type_of(x)));
        match e {
            Expr::Const(_) | Expr::Horizontal { .. } => true,
            Expr::Reg(_) | Expr::Acc { .. } => true,
            Expr::Index(_) | Expr::Address(_) | Expr::With { .. } => false,
            Expr::Load { buf, at } => matches!(self.stride(*buf, at), Stride::Next | Stride::Same) && matches!(self.m.bufs[*buf].ty, ElemType::F32 | ElemType::I32 | ElemType::U32),
            Expr::Un(op, a) => ok(a) && self.vector_unary(*op, self.m.type_of(a)),
            Expr::Bin(op, a, b) => ok(a) && ok(b) && (vector_binary(*op, self.m.type_of(a)) || math::constant_power(e).is_some()),
            Expr::Fma(a, b, c) => ok(a) && ok(b) && ok(c),
            Expr::Dot(..) | Expr::Text(..) => false,
            Expr::Select(c, a, b) => {
                let lazy = |x: &Expr| !crate::codegen::clif::expr::has_memory(x);
                ok(a) && ok(b) && ok(c) && (!self.varying(c) || (lazy(a) && lazy(b)))
            }
            Expr::Cast(t, a) => ok(a) && is_lane_type(*t) && !matches!(self.m.type_of(a), ElemType::U32) && *t != ElemType::U32,
            Expr::Let { value, body, .. } => ok(value) && ok(body),
        }
    }
    fn vector_unary(&self, op: UnOp, ty: ElemType) -> bool {
        match ty {
            ElemType::F32 => {
                math::has(op) || matches!(op, UnOp::Neg | UnOp::Abs | UnOp::Sign | UnOp::Floor | UnOp::Ceil | UnOp::Trunc | UnOp::Round | UnOp::Sqrt | UnOp::Recip | UnOp::IsNan | UnOp::IsInf)
            }
            ElemType::Bool => op == UnOp::Not,
            _ => matches!(op, UnOp::Neg | UnOp::BitNot),
        }
    }
    /// Four scalar emissions, packed.
    fn by_lanes(&mut self, e: &Expr) -> Result<Val> {
        let ty = self.m.type_of(e);
        if !is_lane_type(ty) {
            return self.bug(format!("lanes of {ty} outside a lane-wise expression"));
        }
        let mut out: Option<Value> = None;
        let t = if ty == ElemType::F32 { F32X4 } else { I32X4 };
        for l in 0..4 {
            if let Some(x) = &mut self.lanes {
                x.lane = Some(l);
            }
            self.push();
            let v = self.value(e);
            self.pop();
            if let Some(x) = &mut self.lanes {
                x.lane = None;
            }
            let v = v?;
            let v = if ty == ElemType::Bool {
                let w = self.b.ins().uextend(I32, v.v);
                self.b.ins().ineg(w)
            } else {
                v.v
            };
            out = Some(match out {
                None => self.b.ins().splat(t, v),
                Some(x) => self.b.ins().insertlane(x, v, l as u8),
            });
        }
        match out {
            Some(v) => Ok(Val { v, ty, vec: true }),
            None => self.bug("no lanes"),
        }
    }
    pub fn constant(&mut self, s: Scalar) -> Val {
        let v = match s.ty {
            ElemType::F32 => self.b.ins().f32const(f32::from_bits(s.bits as u32)),
            ElemType::F64 => self.b.ins().f64const(f64::from_bits(s.bits)),
            t => {
                let bits = t.bits().min(64);
                let v = if bits == 64 { s.bits as i64 } else { (s.bits & ((1 << bits) - 1)) as i64 };
                self.b.ins().iconst(scalar_type(t), v)
            }
        };
        Val { v, ty: s.ty, vec: false }
    }
    fn reg(&mut self, r: Reg) -> Result<Val> {
        let v = match self.regs.get(&r) {
            Some(Slot::Value(v)) => *v,
            _ => return self.bug(format!("{r} has no value")),
        };
        Ok(self.this_lane(v))
    }
    /// In lane-by-lane mode: the lane of a vector.
    fn this_lane(&mut self, v: Val) -> Val {
        match self.lanes.and_then(|l| l.lane) {
            Some(l) if v.vec => self.extract(v, l),
            _ => v,
        }
    }
    fn extract(&mut self, v: Val, lane: u32) -> Val {
        let x = self.b.ins().extractlane(v.v, lane as u8);
        let x = if v.ty == ElemType::Bool { self.b.ins().icmp_imm_s(IntCC::NotEqual, x, 0) } else { x };
        Val { v: x, ty: v.ty, vec: false }
    }
    fn read_acc(&mut self, reg: Reg, at: &[Dim], lane: Option<Dim>) -> Result<Val> {
        let lane = match lane.map(|d| self.substituted(d).as_const()) {
            Some(None) => return self.bug("a lane is not a number"),
            Some(l) => l,
            None => None,
        };
        let (var, ty, lanes) = match lane {
            Some(l) => self.acc_part(reg, at, l as u32 / 4)?,
            None => self.acc(reg, at)?,
        };
        let v = Val { v: self.b.use_var(var), ty, vec: lanes > 1 };
        Ok(match lane {
            Some(l) => self.extract(v, l as u32 % 4),
            None => self.this_lane(v),
        })
    }
    fn horizontal(&mut self, op: BinOp, reg: Reg, at: &[Dim]) -> Result<Val> {
        let (_, ty, lanes) = self.acc(reg, at)?;
        let mut parts = vec![];
        for part in 0..lanes.div_ceil(4) {
            let (var, ..) = self.acc_part(reg, at, part)?;
            parts.push(Val { v: self.b.use_var(var), ty, vec: lanes > 1 });
        }
        // A tree: parts, then (0 op 2) op (1 op 3).
        while parts.len() > 1 {
            let half = parts.len() / 2;
            for i in 0..half {
                parts[i] = self.binary(op, parts[i], parts[i + half])?;
            }
            parts.truncate(half);
        }
        let v = parts[0];
        if lanes == 1 {
            return Ok(v);
        }
        let x: Vec<Val> = (0..4).map(|l| self.extract(v, l)).collect();
        let a = self.binary(op, x[0], x[2])?;
        let b = self.binary(op, x[1], x[3])?;
        self.binary(op, a, b)
    }
    fn stride(&self, buf: Buf, at: &[Dim]) -> Stride {
        let Some(l) = self.lanes else { return Stride::Same };
        match self.linear(buf, at).linear_in(l.sym).map(|(c, _)| c.as_const()) {
            Some(Some(0)) => Stride::Same,
            Some(Some(1)) => Stride::Next,
            _ => Stride::Other,
        }
    }
    fn load(&mut self, buf: Buf, at: &[Dim]) -> Result<Val> {
        let vec = self.lanes.is_some_and(|l| l.lane.is_none()) && matches!(self.stride(buf, at), Stride::Next);
        let linear = self.linear(buf, at);
        let key = (self.m.storage(buf), self.at_lane(linear), vec);
        let storage_ty = self.m.bufs[buf].ty;
        let ty = storage_ty.compute();
        if let (Some(v), false) = (self.scopes.iter().rev().find_map(|s| s.loads.get(&key)), self.m.is_recast(buf)) {
            return Ok(Val { v: *v, ty, vec });
        }
        if self.m.is_packed(buf) {
            let raw = self.load_packed(buf, linear)?;
            return Ok(Val { v: self.from_storage(storage_ty, raw)?, ty, vec: false });
        }
        let (p, disp) = self.address(buf, linear)?;
        if ty == ElemType::Str {
            let v = self.load_text(buf, p, disp)?;
            if let Some(s) = self.scopes.last_mut() {
                s.loads.insert(key, v);
            }
            return Ok(Val { v, ty, vec: false });
        }
        let constant = matches!(self.m.bufs[self.m.storage(buf)].place, crate::nest::Place::Const(_) | crate::nest::Place::Input(_));
        let flags = if constant { self.flags().with_readonly().with_can_move() } else { self.flags() };
        let v = if vec {
            let t = if ty == ElemType::F32 { F32X4 } else { I32X4 };
            self.b.ins().load(t, flags, p, disp)
        } else {
            let raw = self.b.ins().load(super::convert::storage_clif(storage_ty), flags, p, disp);
            self.from_storage(storage_ty, raw)?
        };
        if let (Some(s), false) = (self.scopes.last_mut(), self.m.is_recast(buf)) {
            s.loads.insert(key, v);
        }
        Ok(Val { v, ty, vec })
    }
    pub fn store(&mut self, buf: Buf, at: &[Dim], value: &Expr) -> Result<()> {
        let ty = self.m.bufs[buf].ty;
        let linear = self.linear(buf, at);
        let flags = self.flags();
        let lanes = self.lanes.is_some_and(|l| l.lane.is_none());
        if lanes && !is_lane_type(ty.compute()) {
            return self.store_by_lanes(buf, linear, value);
        }
        let v = self.value(value)?;
        if !lanes || (!v.vec && matches!(self.stride(buf, at), Stride::Same)) {
            if ty == ElemType::Str {
                return self.store_text(buf, linear, v);
            }
            let raw = self.to_storage(ty, v)?;
            let (p, disp) = self.address(buf, linear)?;
            self.b.ins().store(flags, raw, p, disp);
            return Ok(());
        }
        if matches!(self.stride(buf, at), Stride::Next) && matches!(ty, ElemType::F32 | ElemType::I32 | ElemType::U32) {
            let v = self.widen(v, true);
            let (p, disp) = self.address(buf, linear)?;
            self.b.ins().store(flags, v.v, p, disp);
            return Ok(());
        }
        for l in 0..4 {
            let x = if v.vec { self.extract(v, l) } else { v };
            let raw = self.to_storage(ty, x)?;
            if let Some(c) = &mut self.lanes {
                c.lane = Some(l);
            }
            let place = self.address(buf, linear);
            if let Some(c) = &mut self.lanes {
                c.lane = None;
            }
            let (p, disp) = place?;
            self.b.ins().store(flags, raw, p, disp);
        }
        Ok(())
    }
    /// Value and store for each lane: types that have no vectors.
    fn store_by_lanes(&mut self, buf: Buf, linear: Dim, value: &Expr) -> Result<()> {
        let flags = self.flags();
        for l in 0..4 {
            if let Some(c) = &mut self.lanes {
                c.lane = Some(l);
            }
            self.push();
            let done = self.value(value).and_then(|v| {
                let raw = self.to_storage(self.m.bufs[buf].ty, v)?;
                let (p, disp) = self.address(buf, linear)?;
                self.b.ins().store(flags, raw, p, disp);
                Ok(())
            });
            self.pop();
            if let Some(c) = &mut self.lanes {
                c.lane = None;
            }
            done?;
        }
        Ok(())
    }
    /// A scalar repeated, where vectors are needed.
    pub fn widen(&mut self, v: Val, vec: bool) -> Val {
        if v.vec || !vec {
            return v;
        }
        if let Some(x) = self.scopes.iter().rev().find_map(|s| s.splats.get(&v.v)) {
            return Val { v: *x, ty: v.ty, vec: true };
        }
        let (t, x) = match v.ty {
            ElemType::F32 => (F32X4, v.v),
            ElemType::Bool => {
                let w = self.b.ins().uextend(I32, v.v);
                (I32X4, self.b.ins().ineg(w))
            }
            _ => (I32X4, v.v),
        };
        let wide = self.b.ins().splat(t, x);
        if let Some(s) = self.scopes.last_mut() {
            s.splats.insert(v.v, wide);
        }
        Val { v: wide, ty: v.ty, vec: true }
    }
    pub fn level(&mut self, a: Val, b: Val) -> (Val, Val) {
        let vec = a.vec || b.vec;
        (self.widen(a, vec), self.widen(b, vec))
    }
    pub fn bits_as(&mut self, t: Type, v: Value) -> Value {
        self.b.ins().bitcast(t, MemFlagsData::new().with_endianness(Endianness::Little), v)
    }
    pub fn fma(&mut self, a: Val, b: Val, c: Val) -> Val {
        let v = if self.has_fma() {
            self.b.ins().fma(a.v, b.v, c.v)
        } else {
            let p = self.b.ins().fmul(a.v, b.v);
            self.b.ins().fadd(p, c.v)
        };
        Val { v, ..a }
    }
    /// Byte by byte, of scalars: what has dot products is `wide`.
    fn dot(&mut self, a: Val, b: Val, c: Val) -> Val {
        if c.ty == ElemType::F32 {
            return self.dot_of_halves(a, b, c);
        }
        let mut sum = c.v;
        for i in 0..4 {
            let x = self.b.ins().ushr_imm_u(a.v, 8 * i);
            let x = self.b.ins().band_imm_u(x, 255);
            let y = self.b.ins().ishl_imm_u(b.v, 24 - 8 * i);
            let y = self.b.ins().sshr_imm_u(y, 24);
            let p = self.b.ins().imul(x, y);
            sum = self.b.ins().iadd(sum, p);
        }
        Val { v: sum, ..c }
    }
    /// The upper halves first, as the instruction does.
    fn dot_of_halves(&mut self, a: Val, b: Val, c: Val) -> Val {
        let upper = |s: &mut Self, x: Val| {
            let v = s.b.ins().band_imm_u(x.v, 0xffff_0000);
            Val { v: s.b.ins().bitcast(F32, MemFlagsData::new(), v), ..c }
        };
        let lower = |s: &mut Self, x: Val| {
            let v = s.b.ins().ishl_imm_u(x.v, 16);
            Val { v: s.b.ins().bitcast(F32, MemFlagsData::new(), v), ..c }
        };
        let (x, y) = (upper(self, a), upper(self, b));
        let sum = self.fma(x, y, c);
        let (x, y) = (lower(self, a), lower(self, b));
        self.fma(x, y, sum)
    }
    fn has_fma(&self) -> bool {
        self.isa.triple().architecture != target_lexicon::Architecture::X86_64 || self.isa.isa_flags().iter().any(|f| f.name == "has_fma" && f.value_string() == "true")
    }
    fn select(&mut self, c: &Expr, a: &Expr, b: &Expr) -> Result<Val> {
        let c = self.value(c)?;
        let lazy = has_memory(a) || has_memory(b);
        if c.vec {
            let (a, b) = (self.value(a)?, self.value(b)?);
            let (a, b) = (self.widen(a, true), self.widen(b, true));
            return Ok(self.blend(c, a, b));
        }
        if !lazy {
            let (a, b) = (self.value(a)?, self.value(b)?);
            let (a, b) = self.level(a, b);
            return Ok(self.pick(c.v, a, b));
        }
        let vec = self.lanes.is_some_and(|l| l.lane.is_none()) && (self.varying(a) || self.varying(b));
        let ty = self.m.type_of(a);
        let t = match (vec, ty) {
            (true, ElemType::F32) => F32X4,
            (true, _) => I32X4,
            (false, t) => scalar_type(t),
        };
        let (yes, no, done) = (self.b.create_block(), self.b.create_block(), self.b.create_block());
        let result = self.b.append_block_param(done, t);
        self.b.ins().brif(c.v, yes, &[], no, &[]);
        for (block, e) in [(yes, a), (no, b)] {
            self.b.switch_to_block(block);
            self.b.seal_block(block);
            self.push();
            let v = self.value(e);
            self.pop();
            let v = v?;
            let v = self.widen(v, vec);
            self.b.ins().jump(done, &[v.v.into()]);
        }
        self.b.switch_to_block(done);
        self.b.seal_block(done);
        Ok(Val { v: result, ty, vec })
    }
    /// Lane-wise choice; the condition is a mask.
    pub fn blend(&mut self, c: Val, a: Val, b: Val) -> Val {
        if !c.vec {
            let (a, b) = self.level(a, b);
            return Val { v: self.b.ins().select(c.v, a.v, b.v), ..a };
        }
        let mask = if a.ty == ElemType::F32 { self.bits_as(F32X4, c.v) } else { c.v };
        Val { v: self.b.ins().bitselect(mask, a.v, b.v), ..a }
    }
    /// Always as "less than": so x86 sees that a blend of the same operands is its minimum or maximum.
    pub fn float_cmp(&mut self, cc: FloatCC, a: Val, b: Val) -> Val {
        if cc == FloatCC::UnorderedOrLessThan && a.vec {
            // aarch64 has no lowering for vectors.
            let c = self.b.ins().fcmp(FloatCC::LessThanOrEqual, b.v, a.v);
            return Val { v: self.b.ins().bnot(c), ty: ElemType::Bool, vec: true };
        }
        let (cc, a, b) = match cc {
            FloatCC::GreaterThan => (FloatCC::LessThan, b, a),
            FloatCC::GreaterThanOrEqual => (FloatCC::LessThanOrEqual, b, a),
            _ => (cc, a, b),
        };
        Val { v: self.b.ins().fcmp(cc, a.v, b.v), ty: ElemType::Bool, vec: a.vec }
    }
    pub fn binary(&mut self, op: BinOp, a: Val, b: Val) -> Result<Val> {
        let ty = a.ty;
        if ty == ElemType::Str {
            return self.compare_texts(op, a, b);
        }
        if op.is_comparison() {
            return Ok(self.compare(op, a, b));
        }
        if ty.is_float() {
            return self.float_binary(op, a, b);
        }
        let v = match op {
            BinOp::Add => self.b.ins().iadd(a.v, b.v),
            BinOp::Sub => self.b.ins().isub(a.v, b.v),
            BinOp::Mul if matches!(scalar_type(ty), I8) => {
                // 8-bit multiplication does not exist everywhere.
                let (x, y) = (self.b.ins().uextend(I32, a.v), self.b.ins().uextend(I32, b.v));
                let p = self.b.ins().imul(x, y);
                self.b.ins().ireduce(I8, p)
            }
            BinOp::Mul => self.b.ins().imul(a.v, b.v),
            BinOp::And => self.b.ins().band(a.v, b.v),
            BinOp::Or => self.b.ins().bor(a.v, b.v),
            BinOp::Xor => self.b.ins().bxor(a.v, b.v),
            BinOp::Min | BinOp::Max => {
                let c = self.compare(if op == BinOp::Min { BinOp::Lt } else { BinOp::Gt }, a, b);
                return Ok(self.blend(c, a, b));
            }
            BinOp::Shl => self.b.ins().ishl(a.v, b.v),
            BinOp::Shr if ty.is_signed_int() => self.b.ins().sshr(a.v, b.v),
            BinOp::Shr => self.b.ins().ushr(a.v, b.v),
            BinOp::Div | BinOp::Rem | BinOp::Mod => return self.int_division(op, a, b),
            BinOp::Pow => return self.int_power(a, b),
            BinOp::Atan2 => return self.bug("atan2 of integers"),
            _ => return self.bug("comparison"),
        };
        Ok(Val { v, ..a })
    }
    fn int_division(&mut self, op: BinOp, a: Val, b: Val) -> Result<Val> {
        let t = scalar_type(a.ty);
        let wide = if matches!(t, I64) { I64 } else { I32 };
        let signed = a.ty.is_signed_int();
        let ext = |e: &mut Self, v: Value| {
            if t == wide {
                v
            } else if signed {
                e.b.ins().sextend(wide, v)
            } else {
                e.b.ins().uextend(wide, v)
            }
        };
        let (x, y) = (ext(self, a.v), ext(self, b.v));
        let ok = self.b.ins().icmp_imm_s(IntCC::NotEqual, y, 0);
        self.require(ok, Status::Value);
        let v = if signed {
            // The smallest value divided by -1 would trap: negate instead.
            let minus = self.b.ins().icmp_imm_s(IntCC::Equal, y, -1);
            let one = self.b.ins().iconst(wide, 1);
            let safe = self.b.ins().select(minus, one, y);
            let q = self.b.ins().sdiv(x, safe);
            let n = self.b.ins().ineg(x);
            let q = self.b.ins().select(minus, n, q);
            match op {
                BinOp::Div => q,
                _ => {
                    let p = self.b.ins().imul(q, y);
                    let r = self.b.ins().isub(x, p);
                    if op == BinOp::Rem {
                        r
                    } else {
                        let s = self.b.ins().bxor(r, y);
                        let differs = self.b.ins().icmp_imm_s(IntCC::SignedLessThan, s, 0);
                        let rest = self.b.ins().icmp_imm_s(IntCC::NotEqual, r, 0);
                        let fix = self.b.ins().band(differs, rest);
                        let moved = self.b.ins().iadd(r, y);
                        self.b.ins().select(fix, moved, r)
                    }
                }
            }
        } else if op == BinOp::Div {
            self.b.ins().udiv(x, y)
        } else {
            self.b.ins().urem(x, y)
        };
        let v = if t == wide { v } else { self.b.ins().ireduce(t, v) };
        Ok(Val { v, ..a })
    }
    /// By f64, as numpy does for small powers exactly; negative exponents give 0 unless the base is 1 or -1.
    fn int_power(&mut self, a: Val, b: Val) -> Result<Val> {
        let (x, y) = (self.cast(ElemType::F64, a)?, self.cast(ElemType::F64, b)?);
        let p = self.call_imported("pow", &[x.v, y.v]);
        self.cast(a.ty, Val { v: p, ty: ElemType::F64, vec: false })
    }
    pub fn compare(&mut self, op: BinOp, a: Val, b: Val) -> Val {
        if a.ty.is_float() {
            let cc = match op {
                BinOp::Eq => FloatCC::Equal,
                BinOp::Ne => FloatCC::NotEqual,
                BinOp::Lt => FloatCC::LessThan,
                BinOp::Le => FloatCC::LessThanOrEqual,
                BinOp::Gt => FloatCC::GreaterThan,
                _ => FloatCC::GreaterThanOrEqual,
            };
            return self.float_cmp(cc, a, b);
        }
        let signed = a.ty.is_signed_int();
        let cc = match (op, signed) {
            (BinOp::Eq, _) => IntCC::Equal,
            (BinOp::Ne, _) => IntCC::NotEqual,
            (BinOp::Lt, true) => IntCC::SignedLessThan,
            (BinOp::Le, true) => IntCC::SignedLessThanOrEqual,
            (BinOp::Gt, true) => IntCC::SignedGreaterThan,
            (_, true) => IntCC::SignedGreaterThanOrEqual,
            (BinOp::Lt, false) => IntCC::UnsignedLessThan,
            (BinOp::Le, false) => IntCC::UnsignedLessThanOrEqual,
            (BinOp::Gt, false) => IntCC::UnsignedGreaterThan,
            (_, false) => IntCC::UnsignedGreaterThanOrEqual,
        };
        Val { v: self.b.ins().icmp(cc, a.v, b.v), ty: ElemType::Bool, vec: a.vec }
    }
    fn float_binary(&mut self, op: BinOp, a: Val, b: Val) -> Result<Val> {
        let v = match op {
            BinOp::Add => self.b.ins().fadd(a.v, b.v),
            BinOp::Sub => self.b.ins().fsub(a.v, b.v),
            BinOp::Mul => self.b.ins().fmul(a.v, b.v),
            BinOp::Div => self.b.ins().fdiv(a.v, b.v),
            BinOp::Min | BinOp::Max => {
                // The x86 instruction's rule (second operand unless strictly smaller), then NaN of the first.
                let cc = if op == BinOp::Min { FloatCC::LessThan } else { FloatCC::GreaterThan };
                let c = self.float_cmp(cc, a, b);
                let m = self.blend(c, a, b);
                let nan = self.float_cmp(FloatCC::Unordered, a, a);
                return Ok(self.blend(nan, a, m));
            }
            BinOp::Pow | BinOp::Atan2 | BinOp::Rem | BinOp::Mod => {
                if a.vec {
                    return self.bug("no vector form");
                }
                let name = match op {
                    BinOp::Pow => "pow",
                    BinOp::Atan2 => "atan2",
                    _ => "fmod",
                };
                let (x, y) = (self.cast(ElemType::F64, a)?, self.cast(ElemType::F64, b)?);
                let r = self.call_imported(name, &[x.v, y.v]);
                let r = self.cast(a.ty, Val { v: r, ty: ElemType::F64, vec: false })?;
                return Ok(if op == BinOp::Mod { self.floored(r, b) } else { r });
            }
            _ => return self.bug(format!("{op:?} of floats")),
        };
        Ok(Val { v, ..a })
    }
    pub fn unary(&mut self, op: UnOp, a: Val) -> Result<Val> {
        if a.ty.is_float() {
            return self.float_unary(op, a);
        }
        let t = scalar_type(a.ty);
        let v = match op {
            UnOp::Neg => self.b.ins().ineg(a.v),
            UnOp::Abs if !a.ty.is_signed_int() => a.v,
            UnOp::Abs => {
                let n = self.b.ins().ineg(a.v);
                let c = self.b.ins().icmp_imm_s(IntCC::SignedLessThan, a.v, 0);
                self.b.ins().select(c, n, a.v)
            }
            UnOp::Sign => {
                let (one, zero) = (self.b.ins().iconst(t, 1), self.b.ins().iconst(t, 0));
                let nz = self.b.ins().icmp_imm_s(IntCC::NotEqual, a.v, 0);
                let p = self.b.ins().select(nz, one, zero);
                if a.ty.is_signed_int() {
                    let c = self.b.ins().icmp_imm_s(IntCC::SignedLessThan, a.v, 0);
                    let m = self.b.ins().ineg(one);
                    self.b.ins().select(c, m, p)
                } else {
                    p
                }
            }
            UnOp::Not if a.vec => self.b.ins().bnot(a.v),
            UnOp::Not => self.b.ins().icmp_imm_s(IntCC::Equal, a.v, 0),
            UnOp::BitNot => self.b.ins().bnot(a.v),
            UnOp::IsNan | UnOp::IsInf => return Ok(self.constant(Scalar { ty: ElemType::Bool, bits: 0 })),
            UnOp::Floor | UnOp::Ceil | UnOp::Trunc | UnOp::Round => a.v,
            UnOp::Bits(to) => {
                let v = match to {
                    ElemType::F32 => self.bits_as(F32, a.v),
                    ElemType::F64 => self.bits_as(F64, a.v),
                    _ => a.v,
                };
                return Ok(Val { v, ty: to, vec: false });
            }
            _ => return self.bug(format!("{op:?} of {}", a.ty)),
        };
        Ok(Val { v, ..a })
    }
}

pub(super) fn has_memory(e: &Expr) -> bool {
    let mut hit = false;
    e.walk(&mut |e| hit |= matches!(e, Expr::Load { .. } | Expr::With { .. } | Expr::Text(..)));
    hit
}

fn vector_binary(op: BinOp, ty: ElemType) -> bool {
    match ty {
        ElemType::F32 => !matches!(op, BinOp::Pow | BinOp::Atan2 | BinOp::Rem | BinOp::Mod),
        ElemType::Bool => matches!(op, BinOp::And | BinOp::Or | BinOp::Xor),
        _ => matches!(op, BinOp::Add | BinOp::Sub | BinOp::Mul | BinOp::And | BinOp::Or | BinOp::Xor) || op.is_comparison(),
    }
}
