//! 8-bit and 16-bit integers in vectors: four adjacent elements are extended to 32 bits when loaded and
//! truncated when stored. All other operations on these types are scalar.

use super::expr::Val;
use super::func::Emit;
use super::memory::Stride;
use crate::diag::Result;
use crate::nest::{Buf, Expr};
use crate::sym::Dim;
use crate::tensor::ElemType;
use cranelift_codegen::ir::types::{I8X16, I32, I32X4, I64X2};
use cranelift_codegen::ir::{InstBuilder, Value};

fn is_small(t: ElemType) -> bool {
    matches!(t, ElemType::U8 | ElemType::I8 | ElemType::U16 | ElemType::I16)
}

impl Emit<'_, '_> {
    /// The load in `i32(load)` of adjacent elements.
    pub(super) fn small_load<'e>(&self, e: &'e Expr) -> Option<(Buf, &'e [Dim])> {
        let Expr::Cast(ElemType::I32, x) = e else { return None };
        match &**x {
            Expr::Load { buf, at }
                if is_small(self.m.bufs[*buf].ty)
                    && !self.m.is_packed(*buf)
                    && matches!(self.stride(*buf, at), Stride::Next) =>
            {
                Some((*buf, at))
            }
            _ => None,
        }
    }
    /// Loads four adjacent elements as i32.
    pub(super) fn load_small(&mut self, buf: Buf, at: &[Dim]) -> Result<Val> {
        let linear = self.linear(buf, at);
        let key = (self.m.storage(buf), self.at_lane(linear), true);
        let kept = !self.m.is_recast(buf);
        if let (Some(v), true) = (self.scopes.iter().rev().find_map(|s| s.loads.get(&key)), kept) {
            return Ok(Val { v: *v, ty: ElemType::I32, vec: true });
        }
        let (p, disp) = self.address(buf, linear)?;
        let (flags, ty) = (self.flags(), self.m.bufs[buf].ty);
        let v = match ty {
            ElemType::U16 => self.b.ins().uload16x4(flags, p, disp),
            ElemType::I16 => self.b.ins().sload16x4(flags, p, disp),
            _ => {
                let four = self.b.ins().load(I32, flags, p, disp);
                let four = self.b.ins().scalar_to_vector(I32X4, four);
                let bytes = self.bits_as(I8X16, four);
                if ty == ElemType::U8 {
                    let words = self.b.ins().uwiden_low(bytes);
                    self.b.ins().uwiden_low(words)
                } else {
                    let words = self.b.ins().swiden_low(bytes);
                    self.b.ins().swiden_low(words)
                }
            }
        };
        if let (Some(s), true) = (self.scopes.last_mut(), kept) {
            s.loads.insert(key, v);
        }
        Ok(Val { v, ty: ElemType::I32, vec: true })
    }
    /// The i32 value whose lower bits are stored to adjacent elements of an 8-bit or 16-bit type.
    pub(super) fn small_store<'e>(&self, buf: Buf, at: &[Dim], value: &'e Expr) -> Option<&'e Expr> {
        let ty = self.m.bufs[buf].ty;
        match value {
            Expr::Cast(t, x)
                if *t == ty
                    && is_small(ty)
                    && self.m.type_of(x) == ElemType::I32
                    && matches!(self.stride(buf, at), Stride::Next)
                    && self.has_vector_form(x) =>
            {
                Some(x)
            }
            _ => None,
        }
    }
    /// Stores the lower bits of four numbers.
    pub(super) fn store_small(&mut self, buf: Buf, linear: Dim, v: Value) -> Result<()> {
        let (p, disp) = self.address(buf, linear)?;
        let flags = self.flags();
        // Packing saturates, so its operands are masked to the lower bits. Baseline x86-64 has no byte
        // shuffle.
        let low = if self.m.bufs[buf].ty.bits() == 8 {
            let ones = self.b.ins().iconst(I32, 0xff);
            let ones = self.b.ins().splat(I32X4, ones);
            let v = self.b.ins().band(v, ones);
            let words = self.b.ins().snarrow(v, v);
            let bytes = self.b.ins().unarrow(words, words);
            let all = self.bits_as(I32X4, bytes);
            self.b.ins().extractlane(all, 0)
        } else {
            let v = self.b.ins().ishl_imm_u(v, 16);
            let v = self.b.ins().sshr_imm_u(v, 16);
            let words = self.b.ins().snarrow(v, v);
            let all = self.bits_as(I64X2, words);
            self.b.ins().extractlane(all, 0)
        };
        self.b.ins().store(flags, low, p, disp);
        Ok(())
    }
}
