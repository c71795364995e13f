//! Expressions -> values: scalars, or four lanes of 32 bits inside `vec` loops.
//!
//! Inside a `vec` loop an expression that does not depend on the lane stays scalar and is splatted where it
//! is combined with a vector. Expressions without a vector form (gathers, 64-bit integers, libm) are emitted
//! lane by lane and packed.

use super::convert::scalar_type;
use super::func::{Emit, Slot};
use super::lanes::shift;
use crate::codegen::math;
use crate::diag::Result;
use crate::nest::{BinOp, Expr, Reg, Scalar, Status, patterns};
use crate::sym::{Dim, Sym};
use crate::tensor::ElemType;
use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::types::{F32X4, I32X4};
use cranelift_codegen::ir::{Endianness, InstBuilder, MemFlagsData, Type, Value};

/// A value with its compute type.
#[derive(Clone, Copy, Debug)]
pub(super) struct Val {
    pub v: Value,
    pub ty: ElemType,
    pub vec: bool,
}

impl Emit<'_, '_> {
    pub fn value(&mut self, e: &Expr) -> Result<Val> {
        let in_vec = self.lanes.is_some_and(|l| l.lane.is_none());
        if in_vec && self.varying(e) && !self.has_vector_form(e) {
            return self.by_lanes(e);
        }
        if let Some((base, p)) = patterns::constant_power(e) {
            let x = self.value(base)?;
            return Ok(math::power(self, x, p));
        }
        match e {
            Expr::Const(s) => match self.literals.get(s) {
                Some(v) => Ok(Val { v: *v, ty: s.ty, vec: false }),
                None => Ok(self.constant(*s)),
            },
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
            // With a number as operand, one comparison suffices: if it is false, as for NaN, the value is
            // kept.
            Expr::Bin(op @ (BinOp::Min | BinOp::Max), a, b) if is_number(b) => {
                let a = self.value(a)?;
                let b = self.value(b)?;
                let (a, b) = self.level(a, b);
                let c = self.compare(if *op == BinOp::Max { BinOp::Gt } else { BinOp::Lt }, b, a);
                Ok(self.blend(c, b, a))
            }
            Expr::Bin(BinOp::Shl, a, b)
                if in_vec
                    && self.varying(a)
                    && let Some(n) = shift(b) =>
            {
                let a = self.value(a)?;
                Ok(Val { v: self.b.ins().ishl_imm_u(a.v, n), ..a })
            }
            e if let Some((x, factor)) = patterns::exact_product(e) => {
                let x = self.value(x)?;
                let by = self.constant(Scalar::from_f64(x.ty, factor));
                let (x, by) = self.level(x, by);
                self.binary(BinOp::Mul, x, by)
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
            Expr::Dot(g, a, b, c) => {
                let (a, b, c) = (self.value(a)?, self.value(b)?, self.value(c)?);
                Ok(self.dot(*g, a, b, c))
            }
            e if let Some((x, limit)) = patterns::exp_or_zero(e).filter(|x| x.1 >= math::NORMAL) => {
                let x = self.value(x)?;
                Ok(math::exp_or_zero(self, x, limit))
            }
            Expr::Select(c, a, b) => self.select(c, a, b),
            e if in_vec && let Some((buf, at)) = self.small_load(e) => self.load_small(buf, at),
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
    /// Binds a checked index in a new scope. The result is passed to [`Self::unbind`].
    pub fn bind(&mut self, sym: Sym, value: &Expr, extent: Dim) -> Result<Option<Value>> {
        let v = self.value(value)?;
        let v = self.cast(ElemType::I64, v)?;
        let known = self
            .bounds
            .as_ref()
            .and_then(|b| b.of(self.m, value))
            .zip(extent.as_const())
            .is_some_and(|(r, n)| r.0 >= 0.0 && r.1 < n as f64);
        if !known {
            let n = self.dim(extent)?;
            let ok = self.b.ins().icmp(IntCC::UnsignedLessThan, v.v, n);
            self.require(ok, Status::Index);
        }
        if !known {
            self.bound.insert(sym);
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
    /// A truth value for a branch.
    pub fn truth(&mut self, e: &Expr) -> Result<Value> {
        let v = self.value(e)?;
        if v.vec { self.bug("a branch on lanes") } else { Ok(v.v) }
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
    pub fn bits_as(&mut self, t: Type, v: Value) -> Value {
        self.b.ins().bitcast(t, MemFlagsData::new().with_endianness(Endianness::Little), v)
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
}

pub(super) fn has_memory(e: &Expr) -> bool {
    e.any(&mut |e| matches!(e, Expr::Load { .. } | Expr::With { .. } | Expr::Text(..)))
}

/// True for a constant that is a float and not NaN.
fn is_number(e: &Expr) -> bool {
    matches!(e, Expr::Const(c) if c.ty.is_float() && !c.to_f64().is_nan())
}
