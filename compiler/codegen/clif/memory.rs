//! Loads and stores: scalars, vectors of adjacent elements, and otherwise lane by lane.

use super::expr::Val;
use super::func::Emit;
use super::lanes::is_lane_type;
use super::pairs::is_pair;
use crate::diag::Result;
use crate::nest::{Buf, Expr};
use crate::sym::Dim;
use crate::tensor::ElemType;
use cranelift_codegen::ir::types::{F32X4, I8X16, I32X4};
use cranelift_codegen::ir::{ConstantData, Endianness, InstBuilder, MemFlagsData, Type, Value};

/// The distance of an access between adjacent lanes.
pub(super) enum Stride {
    Same,
    Next,
    /// Every second element.
    Second,
    Other,
}

impl Emit<'_, '_> {
    pub(super) fn stride(&self, buf: Buf, at: &[Dim]) -> Stride {
        let Some(l) = self.lanes else { return Stride::Same };
        match self.linear(buf, at).linear_in(l.sym).map(|(c, _)| c.as_const()) {
            Some(Some(0)) => Stride::Same,
            Some(Some(1)) => Stride::Next,
            Some(Some(2)) => Stride::Second,
            _ => Stride::Other,
        }
    }
    /// True if an access is in range for all values of its loop variables, without the enclosing conditions
    /// and checks and even if loops over other variables do not run. Cranelift may then hoist its load out of
    /// them.
    fn is_always_in_range(&self, buf: Buf, at: &[Dim]) -> bool {
        at.iter().zip(&self.m.bufs[buf].dims).all(|(x, n)| {
            let x = self.at_lane(self.substituted(*x));
            !x.syms().iter().any(|s| self.bound.contains(s)) && self.m.syms.in_range(x, *n)
        })
    }
    pub(super) fn load(&mut self, buf: Buf, at: &[Dim]) -> Result<Val> {
        let stride = self.stride(buf, at);
        let second = matches!(stride, Stride::Second)
            && matches!(self.m.bufs[buf].ty, ElemType::F32 | ElemType::I32 | ElemType::U32);
        let vec = self.lanes.is_some_and(|l| l.lane.is_none()) && (second || matches!(stride, Stride::Next));
        let linear = self.linear(buf, at);
        let key = (self.m.storage(buf), self.at_lane(linear), vec);
        let storage_ty = self.m.bufs[buf].ty;
        let ty = storage_ty.compute();
        if let (Some(v), false) =
            (self.scopes.iter().rev().find_map(|s| s.loads.get(&key)), self.m.is_recast(buf))
        {
            return Ok(Val { v: *v, ty, vec });
        }
        if self.m.is_packed(buf) {
            let raw = self.load_packed(buf, linear)?;
            return Ok(Val { v: self.from_storage(storage_ty, raw)?, ty, vec: false });
        }
        let (p, disp) = self.address(buf, linear)?;
        if is_pair(ty) {
            let v = self.load_pair(buf, p, disp)?;
            if let Some(s) = self.scopes.last_mut() {
                s.loads.insert(key, v);
            }
            return Ok(Val { v, ty, vec: false });
        }
        let constant = matches!(
            self.m.bufs[self.m.storage(buf)].place,
            crate::nest::Place::Const(_) | crate::nest::Place::Input(_)
        );
        let flags = if constant && self.is_always_in_range(buf, at) {
            self.flags().with_readonly().with_can_move()
        } else {
            self.flags()
        };
        let v = if vec {
            let t = if ty == ElemType::F32 { F32X4 } else { I32X4 };
            let v = self.b.ins().load(t, flags, p, disp);
            if second { self.every_second(t, flags, (v, p), disp) } else { v }
        } else {
            let raw = self.b.ins().load(super::convert::storage_clif(storage_ty), flags, p, disp);
            self.from_storage(storage_ty, raw)?
        };
        if let (Some(s), false) = (self.scopes.last_mut(), self.m.is_recast(buf)) {
            s.loads.insert(key, v);
        }
        Ok(Val { v, ty, vec })
    }
    /// Elements 0, 2, 4, 6 from `p + disp` on. `v` holds elements 0 to 3, and element 7 need not exist.
    fn every_second(&mut self, t: Type, flags: MemFlagsData, (v, p): (Value, Value), disp: i32) -> Value {
        let beyond = self.b.ins().load(t, flags, p, disp.wrapping_add(12));
        let cast = MemFlagsData::new().with_endianness(Endianness::Little);
        let (low, high) = (self.b.ins().bitcast(I8X16, cast, v), self.b.ins().bitcast(I8X16, cast, beyond));
        let places: Vec<u8> = [0u8, 8, 20, 28].into_iter().flat_map(|p| p..p + 4).collect();
        let mask = self.b.func.dfg.immediates.push(ConstantData::from(places.as_slice()));
        let both = self.b.ins().shuffle(low, high, mask);
        self.b.ins().bitcast(t, cast, both)
    }
    pub fn store(&mut self, buf: Buf, at: &[Dim], value: &Expr) -> Result<()> {
        let ty = self.m.bufs[buf].ty;
        let linear = self.linear(buf, at);
        let flags = self.flags();
        let lanes = self.lanes.is_some_and(|l| l.lane.is_none());
        if lanes && let Some(x) = self.small_store(buf, at, value) {
            let v = self.value(x)?;
            let v = self.widen(v, true);
            return self.store_small(buf, linear, v.v);
        }
        if lanes && !is_lane_type(ty.compute()) {
            return self.store_by_lanes(buf, linear, value);
        }
        let v = self.value(value)?;
        if !lanes || (!v.vec && matches!(self.stride(buf, at), Stride::Same)) {
            if is_pair(ty) {
                return self.store_pair(buf, linear, v);
            }
            let raw = self.to_storage(ty, v)?;
            let (p, disp) = self.address(buf, linear)?;
            self.b.ins().store(flags, raw, p, disp);
            return Ok(());
        }
        if matches!(self.stride(buf, at), Stride::Next)
            && matches!(ty, ElemType::F32 | ElemType::I32 | ElemType::U32)
        {
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
    /// Computes and stores lane by lane, for types without vectors.
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
