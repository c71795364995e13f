//! Loops: counted, unrolled, and vector loops with their remainders.

use super::func::{Emit, Lanes, Scope, Slot};
use super::lanes::is_long;
use crate::diag::Result;
use crate::nest::{Expr, LoopKind, Reg, Stmt};
use crate::sym::{Dim, Sym};
use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::types::I64;
use cranelift_codegen::ir::{BlockArg, InstBuilder, Value};

impl Emit<'_, '_> {
    pub(super) fn for_(&mut self, kind: LoopKind, var: Sym, lo: Dim, hi: Dim, body: &[Stmt]) -> Result<()> {
        let (lo, hi) = (self.substituted(lo), self.substituted(hi));
        match kind {
            LoopKind::Unroll => {
                let (Some(a), Some(z)) = (lo.as_const(), hi.as_const()) else {
                    return self.bug("an unrolled loop without constant bounds");
                };
                for i in a..z {
                    self.unrolled.insert(var, Dim::constant(i));
                    self.block(body)?;
                }
                self.unrolled.remove(&var);
                Ok(())
            }
            LoopKind::Seq | LoopKind::Par => {
                if let (Some(a), Some(z)) = (lo.as_const(), hi.as_const())
                    && z <= a
                {
                    return Ok(());
                }
                let (a, z) = (self.dim(lo)?, self.dim(hi)?);
                self.counted(var, a, z, 1, body)
            }
            LoopKind::Private => self.bug("private scratch below the kernel's parallel loop"),
            LoopKind::Vec(n) => {
                if self.lanes.is_some() {
                    return self.bug("nested vector loops");
                }
                self.vector(var, lo, hi, n, body)
            }
        }
    }
    /// A vector loop: whole vectors, each in groups of four lanes, then the lanes of the last, partial one.
    fn vector(&mut self, var: Sym, lo: Dim, hi: Dim, n: u32, body: &[Stmt]) -> Result<()> {
        let step = i64::from(n);
        let trip = self.m.syms.simplify(hi - lo);
        // Vectors of two lanes occur in nests with 64-bit elements.
        if n != 2 && !n.is_multiple_of(4) {
            return self.bug(format!("vectors of {n} lanes"));
        }
        if self.has_longs(body) && !self.has_lanes(body) {
            let (a, z) = (self.dim(lo)?, self.dim(hi)?);
            return self.counted(var, a, z, 1, body);
        }
        if let (Some(a), Some(t)) = (lo.as_const(), trip.as_const()) {
            let whole = t.max(0) / step * step;
            if whole == step {
                // Straight-line code: values computed in it stay available for the vectors that follow.
                self.parts(var, lo, n, body)?;
            } else if whole > 0 {
                let (a, z) = (self.dim(lo)?, self.dim(lo + whole)?);
                self.counted(var, a, z, step, body)?;
            }
            return match t.max(0) - whole {
                0 => Ok(()),
                rest => self.partial(var, Dim::constant(a + whole), rest, body),
            };
        }
        let (a, z) = (self.dim(lo)?, self.dim(hi)?);
        if trip.modulo(step).as_const() == Some(0) {
            return self.counted(var, a, z, step, body);
        }
        let count = self.b.ins().isub(z, a);
        let whole = self.floored_to(count, step);
        let end = self.b.ins().iadd(a, whole);
        self.counted(var, a, end, step, body)?;
        if !self.has_lanes(body) {
            return self.counted(var, end, z, 1, body);
        }
        // Accumulators have lanes: each remaining iteration belongs to a separate lane.
        self.vars.insert(var, end);
        self.push_sym(var);
        for l in 0..n - 1 {
            let at = self.b.ins().iadd_imm_s(end, i64::from(l));
            let exists = self.b.ins().icmp(IntCC::SignedLessThan, at, z);
            self.only_if(exists, |e| e.lane(var, Dim::sym(var), l, body))?;
        }
        self.pop();
        self.scopes.iter_mut().for_each(|s| s.loads.clear());
        Ok(())
    }
    /// n - n mod step for a count; counts below 0 become 0.
    fn floored_to(&mut self, n: Value, step: i64) -> Value {
        let zero = self.b.ins().iconst(I64, 0);
        let n = self.b.ins().smax(n, zero);
        if step & (step - 1) == 0 {
            return self.b.ins().band_imm_s(n, -step);
        }
        let d = self.b.ins().iconst(I64, step);
        let q = self.b.ins().udiv(n, d);
        self.b.ins().imul_imm_s(q, step)
    }
    /// One whole vector.
    fn parts(&mut self, var: Sym, base: Dim, n: u32, body: &[Stmt]) -> Result<()> {
        // Vectors of two lanes occur in nests with 64-bit elements.
        if n < 4 || self.has_longs(body) {
            return (0..n).try_for_each(|l| self.lane(var, base, l, body));
        }
        for part in 0..n / 4 {
            self.lanes = Some(Lanes { sym: var, base: base + i64::from(4 * part), part, lane: None });
            self.block(body)?;
        }
        self.lanes = None;
        Ok(())
    }
    /// One lane of a vector that begins at `base`.
    fn lane(&mut self, var: Sym, base: Dim, l: u32, body: &[Stmt]) -> Result<()> {
        self.lanes =
            Some(Lanes { sym: var, base: base + i64::from(l / 4 * 4), part: l / 4, lane: Some(l % 4) });
        let r = self.block(body);
        self.lanes = None;
        r
    }
    /// The last, partial vector, with a length known at compile time.
    fn partial(&mut self, var: Sym, base: Dim, rest: i64, body: &[Stmt]) -> Result<()> {
        let whole = if self.has_longs(body) { 0 } else { rest as u32 / 4 };
        for part in 0..whole {
            self.lanes = Some(Lanes { sym: var, base: base + i64::from(4 * part), part, lane: None });
            self.block(body)?;
        }
        self.lanes = None;
        (whole * 4..rest as u32).try_for_each(|l| self.lane(var, base, l, body))
    }
    /// True if a body computes 64-bit values, whose lanes are emitted one by one.
    fn has_longs(&self, body: &[Stmt]) -> bool {
        let mut found = false;
        crate::nest::visit::walk(body, &mut |s| {
            found |= match s {
                Stmt::Let { reg, .. } | Stmt::Set { reg, .. } => is_long(self.m.regs[*reg].ty),
                Stmt::Store { buf, .. } => is_long(self.m.bufs[*buf].ty),
                _ => false,
            }
        });
        found
    }
    /// True if a body reads or sets accumulators with lanes.
    fn has_lanes(&self, body: &[Stmt]) -> bool {
        let laned = |r: &Reg| matches!(self.regs.get(r), Some(Slot::Acc { lanes, .. }) if *lanes > 1);
        let mut found = false;
        crate::nest::visit::walk(body, &mut |s| {
            if let Stmt::Set { reg, .. } = s {
                found |= laned(reg);
            }
        });
        crate::nest::visit::walk_exprs(body, &mut |e| {
            if let Expr::Acc { reg, lane: None, .. } = e {
                found |= laned(reg);
            }
        });
        found
    }
    pub(super) fn push_sym(&mut self, var: Sym) {
        self.scopes.push(Scope { syms: vec![var], ..Scope::default() });
    }
    /// `for var in (a..z).step_by(step)`, with vectors of `step` lanes if it is not 1. The test is at the
    /// top, so that a carried value has one use, which lets loads sink into its operands.
    pub(super) fn counted(&mut self, var: Sym, a: Value, z: Value, step: i64, body: &[Stmt]) -> Result<()> {
        self.hoist(body)?;
        // A load from before the loop must not be reused after a store in it.
        let stored = crate::nest::visit::stores(body);
        stored.into_iter().for_each(|b| self.forget_loads(b));
        let (head, inner, done) = (self.b.create_block(), self.b.create_block(), self.b.create_block());
        let i = self.b.append_block_param(head, I64);
        self.b.ins().jump(head, &[BlockArg::from(a)]);
        self.b.switch_to_block(head);
        // The exit is the first successor: Cranelift lays out the first successor last, and hoists invariant
        // code only if the blocks of the loop are contiguous.
        let over = self.b.ins().icmp(IntCC::SignedGreaterThanOrEqual, i, z);
        self.b.ins().brif(over, done, &[], inner, &[]);
        self.b.switch_to_block(inner);
        self.b.seal_block(inner);
        self.vars.insert(var, i);
        self.push_sym(var);
        if step > 1 {
            self.parts(var, Dim::sym(var), step as u32, body)?;
        } else {
            self.block(body)?;
        }
        let next = self.b.ins().iadd_imm_s(i, step);
        self.b.ins().jump(head, &[BlockArg::from(next)]);
        self.pop();
        self.b.seal_block(head);
        self.b.switch_to_block(done);
        self.b.seal_block(done);
        Ok(())
    }
}
