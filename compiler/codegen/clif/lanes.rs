//! Lanes inside `vec` loops: the expressions that have a vector form, lane-by-lane emission of the others,
//! and scalars as vectors.

use super::expr::{Val, has_memory};
use super::func::{Emit, Slot};
use super::memory::Stride;
use crate::diag::Result;
use crate::nest::{BinOp, DotKind, Expr, Reg, UnOp, patterns};
use crate::tensor::ElemType;
use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::types::{F32X4, I32, I32X4};
use cranelift_codegen::ir::{InstBuilder, Value};

/// True for 64-bit types, whose lanes are emitted one by one.
pub(super) fn is_long(t: ElemType) -> bool {
    matches!(t, ElemType::F64 | ElemType::I64 | ElemType::U64)
}

pub(super) fn is_lane_type(t: ElemType) -> bool {
    matches!(t, ElemType::F32 | ElemType::I32 | ElemType::U32 | ElemType::Bool)
}

impl Emit<'_, '_> {
    /// True if the expression differs between the lanes of the enclosing vector loop.
    pub(super) fn varying(&self, e: &Expr) -> bool {
        let Some(l) = self.lanes else { return false };
        let mut hit = false;
        let mut inner: Vec<Reg> = vec![];
        e.walk(&mut |e| {
            hit |= match e {
                Expr::Index(d) => d.contains(l.sym),
                Expr::Load { at, .. } => at.iter().any(|d| d.contains(l.sym)),
                Expr::Acc { reg, lane: None, .. } => {
                    matches!(self.regs.get(reg), Some(Slot::Acc { lanes, .. }) if *lanes > 1)
                }
                Expr::Reg(r) => {
                    matches!(self.regs.get(r), Some(Slot::Value(v)) if v.vec) && !inner.contains(r)
                }
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
    /// True if the whole expression can be computed four lanes at a time.
    pub(super) fn has_vector_form(&self, e: &Expr) -> bool {
        if !self.varying(e) {
            return true;
        }
        let ok = |x: &Expr| self.has_vector_form(x) && (is_lane_type(self.m.type_of(x)));
        match e {
            e if self.small_load(e).is_some() => true,
            Expr::Const(_) | Expr::Horizontal { .. } => true,
            Expr::Reg(_) | Expr::Acc { .. } => true,
            Expr::Index(_) | Expr::Address(_) | Expr::With { .. } => false,
            Expr::Load { buf, at } => {
                matches!(self.stride(*buf, at), Stride::Next | Stride::Second | Stride::Same)
                    && matches!(self.m.bufs[*buf].ty, ElemType::F32 | ElemType::I32 | ElemType::U32)
            }
            Expr::Un(op, a) => ok(a) && self.vector_unary(*op, self.m.type_of(a)),
            Expr::Bin(BinOp::Shl, a, b) => ok(a) && shift(b).is_some(),
            Expr::Bin(op, a, b) => {
                ok(a)
                    && ok(b)
                    && (vector_binary(*op, self.m.type_of(a)) || patterns::constant_power(e).is_some())
            }
            Expr::Fma(a, b, c) | Expr::Dot(DotKind::Words, a, b, c) => ok(a) && ok(b) && ok(c),
            Expr::Dot(DotKind::WordsByBytes, a, b, c) => !self.varying(a) && ok(b) && ok(c),
            Expr::Dot(..) | Expr::Text(..) => false,
            Expr::Select(c, a, b) => {
                let lazy = |x: &Expr| !has_memory(x);
                ok(a) && ok(b) && ok(c) && (!self.varying(c) || (lazy(a) && lazy(b)))
            }
            Expr::Cast(t, a) => {
                ok(a)
                    && is_lane_type(*t)
                    && !matches!(self.m.type_of(a), ElemType::U32)
                    && *t != ElemType::U32
            }
            Expr::Let { value, body, .. } => ok(value) && ok(body),
        }
    }
    fn vector_unary(&self, op: UnOp, ty: ElemType) -> bool {
        match ty {
            ElemType::F32 => op.is_elementary(ty) || op.is_plain_float(),
            ElemType::Bool => op == UnOp::Not,
            _ => matches!(op, UnOp::Neg | UnOp::BitNot),
        }
    }
    /// Emits four scalars and packs them.
    pub(super) fn by_lanes(&mut self, e: &Expr) -> Result<Val> {
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
    /// In lane-by-lane mode, extracts the current lane of a vector.
    pub(super) fn this_lane(&mut self, v: Val) -> Val {
        match self.lanes.and_then(|l| l.lane) {
            Some(l) if v.vec => self.extract(v, l),
            _ => v,
        }
    }
    pub(super) fn extract(&mut self, v: Val, lane: u32) -> Val {
        let x = self.b.ins().extractlane(v.v, lane as u8);
        let x = if v.ty == ElemType::Bool { self.b.ins().icmp_imm_s(IntCC::NotEqual, x, 0) } else { x };
        Val { v: x, ty: v.ty, vec: false }
    }
    /// Splats a scalar if a vector is needed.
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
}

/// The constant shift amount, if it is valid for 32-bit lanes.
pub(super) fn shift(e: &Expr) -> Option<i64> {
    match e {
        Expr::Const(c) if matches!(c.ty, ElemType::I32 | ElemType::U32) => {
            Some(c.to_i64()).filter(|n| (0..32).contains(n))
        }
        _ => None,
    }
}

fn vector_binary(op: BinOp, ty: ElemType) -> bool {
    match ty {
        ElemType::F32 => !matches!(op, BinOp::Pow | BinOp::Atan2 | BinOp::Rem | BinOp::Mod),
        ElemType::Bool => matches!(op, BinOp::And | BinOp::Or | BinOp::Xor),
        _ => {
            matches!(
                op,
                BinOp::Add
                    | BinOp::Sub
                    | BinOp::Mul
                    | BinOp::And
                    | BinOp::Or
                    | BinOp::Xor
                    | BinOp::Min
                    | BinOp::Max
            ) || op.is_comparison()
        }
    }
}
