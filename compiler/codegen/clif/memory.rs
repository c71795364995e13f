//! Loads and stores: scalars, vectors where elements are neighbours, else lane by lane.

use super::expr::Val;
use super::func::Emit;
use super::lanes::is_lane_type;
use crate::diag::Result;
use crate::nest::{Buf, Expr};
use crate::sym::Dim;
use crate::tensor::ElemType;
use cranelift_codegen::ir::InstBuilder;
use cranelift_codegen::ir::types::{F32X4, I32X4};

/// How an access moves from lane to lane.
pub(super) enum Stride {
    Same,
    Next,
    Other,
}

impl Emit<'_, '_> {
    pub(super) fn stride(&self, buf: Buf, at: &[Dim]) -> Stride {
        let Some(l) = self.lanes else { return Stride::Same };
        match self.linear(buf, at).linear_in(l.sym).map(|(c, _)| c.as_const()) {
            Some(Some(0)) => Stride::Same,
            Some(Some(1)) => Stride::Next,
            _ => Stride::Other,
        }
    }
    pub(super) fn load(&mut self, buf: Buf, at: &[Dim]) -> Result<Val> {
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
    pub(super) fn store_by_lanes(&mut self, buf: Buf, linear: Dim, value: &Expr) -> Result<()> {
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
}
