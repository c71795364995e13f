//! 128-bit values: two words, of which the one at the lower address is the low half. Texts are an address and
//! a length, complex128 numbers a real and an imaginary part.

use super::expr::Val;
use super::func::Emit;
use crate::diag::Result;
use crate::nest::Buf;
use crate::sym::Dim;
use crate::tensor::ElemType;
use cranelift_codegen::ir::types::I64;
use cranelift_codegen::ir::{InstBuilder, Value};

/// True for types whose values are pairs.
pub(super) fn is_pair(t: ElemType) -> bool {
    t.bits() == 128
}

impl Emit<'_, '_> {
    /// The element at an address.
    pub fn load_pair(&mut self, buf: Buf, p: Value, disp: i32) -> Result<Value> {
        let flags = self.flags();
        let low = self.b.ins().load(I64, flags, p, disp);
        let high = self.b.ins().load(I64, flags, p, disp + 8);
        let low = if self.m.bufs[buf].ty == ElemType::Str { self.text_address(buf, low, high)? } else { low };
        Ok(self.b.ins().iconcat(low, high))
    }
    pub fn store_pair(&mut self, buf: Buf, linear: Dim, v: Val) -> Result<()> {
        let flags = self.flags();
        let (low, high) = self.b.ins().isplit(v.v);
        let (p, disp) = self.address(buf, linear)?;
        self.b.ins().store(flags, low, p, disp);
        self.b.ins().store(flags, high, p, disp + 8);
        Ok(())
    }
    /// Selects between scalars; pairs are selected half by half.
    pub fn pick(&mut self, c: Value, a: Val, b: Val) -> Val {
        if !is_pair(a.ty) {
            return Val { v: self.b.ins().select(c, a.v, b.v), ..a };
        }
        let ((x, n), (y, m)) = (self.b.ins().isplit(a.v), self.b.ins().isplit(b.v));
        let (low, high) = (self.b.ins().select(c, x, y), self.b.ins().select(c, n, m));
        Val { v: self.b.ins().iconcat(low, high), ..a }
    }
}
