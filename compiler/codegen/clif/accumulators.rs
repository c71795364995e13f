//! Accumulators as Cranelift variables: one variable per four lanes; for 64-bit elements, one per lane.

use super::expr::Val;
use super::func::{Emit, Slot};
use super::lanes::is_long;
use crate::diag::Result;
use crate::nest::{BinOp, Expr, Reg};
use crate::sym::Dim;
use crate::tensor::ElemType;
use cranelift_codegen::ir::types;
use cranelift_codegen::ir::{InstBuilder, Type};
use cranelift_frontend::Variable;

impl Emit<'_, '_> {
    pub(super) fn declare_acc(&mut self, reg: Reg, lanes: u32, shape: &[u32], init: &Expr) -> Result<()> {
        let ty = self.m.regs[reg].ty;
        // The variables of one accumulator are adjacent.
        let n: u32 = shape.iter().product::<u32>() * variables(ty, lanes);
        let saved = self.lanes.take();
        let v = self.value(init)?;
        self.lanes = saved;
        let clif = self.acc_type(ty, lanes)?;
        let v = if clif.is_vector() { self.b.ins().splat(clif, v.v) } else { v.v };
        let vars: Vec<Variable> = (0..n).map(|_| self.b.declare_var(clif)).collect();
        for x in &vars {
            self.b.def_var(*x, v);
        }
        if lanes > 1 {
            self.tile = true;
        }
        self.regs.insert(reg, Slot::Acc { vars, ty, lanes, shape: shape.to_vec() });
        Ok(())
    }
    fn acc_type(&self, ty: ElemType, lanes: u32) -> Result<Type> {
        let s = super::convert::scalar_type(ty);
        match lanes {
            1 => Ok(s),
            _ if is_long(ty) => Ok(s),
            n if (n == 2 || n.is_multiple_of(4)) && s == types::F32 => Ok(types::F32X4),
            n if (n == 2 || n.is_multiple_of(4)) && s == types::I32 => Ok(types::I32X4),
            _ => self.bug(format!("no vectors of {lanes} x {ty}")),
        }
    }
    /// The variable of one accumulator; for one with lanes, that of the lanes being emitted.
    pub fn acc(&self, reg: Reg, at: &[Dim]) -> Result<(Variable, ElemType, u32)> {
        self.acc_of_lane(reg, at, self.lanes.map_or(0, |l| 4 * l.part + l.lane.unwrap_or(0)))
    }
    /// The variable of one accumulator with a constant lane.
    pub fn acc_of_lane(&self, reg: Reg, at: &[Dim], lane: u32) -> Result<(Variable, ElemType, u32)> {
        let Some(Slot::Acc { vars, ty, lanes, shape }) = self.regs.get(&reg) else {
            return self.bug(format!("{reg} is not an accumulator"));
        };
        let mut i = 0;
        for (d, n) in at.iter().zip(shape) {
            let Some(c) = self.substituted(*d).as_const() else {
                return self.bug("an accumulator subscript is not a number");
            };
            if c < 0 || c >= i64::from(*n) {
                return self.bug("an accumulator subscript is out of range");
            }
            i = i * *n as usize + c as usize;
        }
        let part = match lanes {
            1 => 0,
            _ if is_long(*ty) => lane,
            _ => lane / 4,
        };
        match vars.get(i * variables(*ty, *lanes) as usize + part as usize) {
            Some(v) => Ok((*v, *ty, *lanes)),
            None => self.bug("an accumulator subscript is out of range"),
        }
    }
    pub(super) fn set_acc(&mut self, reg: Reg, at: &[Dim], v: Val) -> Result<()> {
        let (var, ty, lanes) = self.acc(reg, at)?;
        let vector = lanes > 1 && !is_long(ty);
        let v = if let (true, false, Some(l)) = (vector, v.vec, self.lanes.and_then(|l| l.lane)) {
            let whole = self.b.use_var(var);
            self.b.ins().insertlane(whole, v.v, l as u8)
        } else if vector && !v.vec {
            let t = self.acc_type(ty, lanes)?;
            self.b.ins().splat(t, v.v)
        } else if !vector && v.vec {
            return self.bug("a vector for a scalar accumulator");
        } else {
            v.v
        };
        self.b.def_var(var, v);
        Ok(())
    }
    pub(super) fn read_acc(&mut self, reg: Reg, at: &[Dim], lane: Option<Dim>) -> Result<Val> {
        let lane = match lane.map(|d| self.substituted(d).as_const()) {
            Some(None) => return self.bug("a lane is not a number"),
            Some(l) => l,
            None => None,
        };
        let (var, ty, lanes) = match lane {
            Some(l) => self.acc_of_lane(reg, at, l as u32)?,
            None => self.acc(reg, at)?,
        };
        let v = Val { v: self.b.use_var(var), ty, vec: lanes > 1 && !is_long(ty) };
        Ok(match lane {
            Some(l) if v.vec => self.extract(v, l as u32 % 4),
            Some(_) => v,
            None => self.this_lane(v),
        })
    }
    pub(super) fn horizontal(&mut self, op: BinOp, reg: Reg, at: &[Dim]) -> Result<Val> {
        let (_, ty, lanes) = self.acc(reg, at)?;
        let mut parts = vec![];
        for lane in (0..lanes).step_by(if is_long(ty) { 1 } else { 4 }) {
            let (var, ..) = self.acc_of_lane(reg, at, lane)?;
            parts.push(Val { v: self.b.use_var(var), ty, vec: lanes > 1 && !is_long(ty) });
        }
        // A tree: the parts first, then (0 op 2) op (1 op 3).
        while parts.len() > 1 {
            let half = parts.len() / 2;
            for i in 0..half {
                parts[i] = self.binary(op, parts[i], parts[i + half])?;
            }
            parts.truncate(half);
        }
        let v = parts[0];
        if !v.vec {
            return Ok(v);
        }
        if lanes == 2 {
            let (x, y) = (self.extract(v, 0), self.extract(v, 1));
            return self.binary(op, x, y);
        }
        let x: Vec<Val> = (0..4).map(|l| self.extract(v, l)).collect();
        let a = self.binary(op, x[0], x[2])?;
        let b = self.binary(op, x[1], x[3])?;
        self.binary(op, a, b)
    }
}

/// Number of variables of one accumulator.
fn variables(ty: ElemType, lanes: u32) -> u32 {
    if is_long(ty) { lanes } else { lanes.div_ceil(4) }
}
