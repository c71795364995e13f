//! Texts: 128-bit values with the address in the low half and the length in the high half. An element of a
//! constant holds the offset of its bytes instead, so that read-only data needs no relocations; the address
//! is computed when the element is loaded.

use super::expr::Val;
use super::func::Emit;
use crate::codegen::frame::base_of;
use crate::diag::Result;
use crate::nest::{BinOp, Buf, Expr, Place, Status, TextOp};
use crate::tensor::ElemType;
use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::types::{I8, I64};
use cranelift_codegen::ir::{BlockArg, InstBuilder, Value};

impl Emit<'_, '_> {
    fn text_value(&mut self, address: Value, len: Value) -> Value {
        self.b.ins().iconcat(address, len)
    }
    /// The address of an element's bytes, given the two words of the element.
    pub fn text_address(&mut self, buf: Buf, address: Value, len: Value) -> Result<Value> {
        match self.m.bufs[self.m.storage(buf)].place {
            Place::Const(_) => {
                let base = self.start_of(buf)?;
                return Ok(self.b.ins().iadd(base, address));
            }
            // Sums of lengths are checked against the available memory, so no length may be negative.
            Place::Input(_) => {
                let ok = self.b.ins().icmp_imm_s(IntCC::SignedGreaterThanOrEqual, len, 0);
                self.require(ok, Status::Value);
            }
            _ => {}
        }
        Ok(address)
    }
    /// The address of a buffer.
    fn start_of(&mut self, buf: Buf) -> Result<Value> {
        let Some((word, at)) = base_of(self.m, self.frame_plan, self.weights, buf) else {
            return self.bug("a text of a buffer without a place");
        };
        Ok(match at {
            0 => self.words[&word],
            at => self.b.ins().iadd_imm_s(self.words[&word], at),
        })
    }
    pub fn text(&mut self, op: TextOp, operands: &[Expr]) -> Result<Val> {
        let v = operands.iter().map(|e| self.value(e)).collect::<Result<Vec<Val>>>()?;
        let (v, ty) = match (op, v.as_slice()) {
            (TextOp::Len, [s]) => (self.b.ins().isplit(s.v).1, ElemType::I64),
            (TextOp::Byte, [s, i]) => {
                let (address, _) = self.b.ins().isplit(s.v);
                let p = self.b.ins().iadd(address, i.v);
                let flags = self.flags();
                (self.b.ins().load(I8, flags, p, 0), ElemType::U8)
            }
            (TextOp::Part, [s, from, len]) => {
                let (address, _) = self.b.ins().isplit(s.v);
                let p = self.b.ins().iadd(address, from.v);
                (self.text_value(p, len.v), ElemType::Str)
            }
            (TextOp::Of(buf), []) => {
                let address = self.start_of(buf)?;
                let len = self.dim(self.m.bufs[buf].count())?;
                (self.text_value(address, len), ElemType::Str)
            }
            _ => return self.bug("operands of a text"),
        };
        Ok(Val { v, ty, vec: false })
    }
    pub fn compare_texts(&mut self, op: BinOp, a: Val, b: Val) -> Result<Val> {
        let ((x, n), (y, m)) = (self.b.ins().isplit(a.v), self.b.ins().isplit(b.v));
        let v = match op {
            BinOp::Eq => self.equal(x, y, n, m),
            BinOp::Ne => {
                let v = self.equal(x, y, n, m);
                self.b.ins().icmp_imm_s(IntCC::Equal, v, 0)
            }
            op if op.is_comparison() => {
                let least = self.b.ins().smin(n, m);
                let at = self.first_difference(x, y, least);
                // If one is a prefix of the other, the lengths decide.
                let (inside, outside, done) =
                    (self.b.create_block(), self.b.create_block(), self.b.create_block());
                let r = self.b.append_block_param(done, I8);
                let c = self.b.ins().icmp(IntCC::SignedLessThan, at, least);
                self.b.ins().brif(c, inside, &[], outside, &[]);
                self.b.switch_to_block(inside);
                self.b.seal_block(inside);
                let (p, q) = (self.byte(x, at), self.byte(y, at));
                let v = self.b.ins().icmp(order(op, false), p, q);
                self.b.ins().jump(done, &[BlockArg::from(v)]);
                self.b.switch_to_block(outside);
                self.b.seal_block(outside);
                let v = self.b.ins().icmp(order(op, true), n, m);
                self.b.ins().jump(done, &[BlockArg::from(v)]);
                self.b.switch_to_block(done);
                self.b.seal_block(done);
                r
            }
            _ => return self.bug(format!("{op:?} of texts")),
        };
        Ok(Val { v, ty: ElemType::Bool, vec: false })
    }
    fn equal(&mut self, x: Value, y: Value, n: Value, m: Value) -> Value {
        let (same, done) = (self.b.create_block(), self.b.create_block());
        let r = self.b.append_block_param(done, I8);
        let no = self.b.ins().iconst(I8, 0);
        let c = self.b.ins().icmp(IntCC::Equal, n, m);
        self.b.ins().brif(c, same, &[], done, &[BlockArg::from(no)]);
        self.b.switch_to_block(same);
        self.b.seal_block(same);
        let at = self.first_difference(x, y, n);
        let v = self.b.ins().icmp(IntCC::SignedGreaterThanOrEqual, at, n);
        self.b.ins().jump(done, &[BlockArg::from(v)]);
        self.b.switch_to_block(done);
        self.b.seal_block(done);
        r
    }
    fn byte(&mut self, p: Value, at: Value) -> Value {
        let flags = self.flags();
        let p = self.b.ins().iadd(p, at);
        self.b.ins().load(I8, flags, p, 0)
    }
    /// The first position below `n` where bytes differ, else `n`. Compares words of eight bytes, then bytes.
    fn first_difference(&mut self, x: Value, y: Value, n: Value) -> Value {
        let flags = self.flags();
        let zero = self.b.ins().iconst(I64, 0);
        let whole = self.b.ins().iadd_imm_s(n, -8);
        let (head, body, tail, inner, next, done) = (
            self.b.create_block(),
            self.b.create_block(),
            self.b.create_block(),
            self.b.create_block(),
            self.b.create_block(),
            self.b.create_block(),
        );
        let i = self.b.append_block_param(head, I64);
        let j = self.b.append_block_param(tail, I64);
        let r = self.b.append_block_param(done, I64);
        self.b.ins().jump(head, &[BlockArg::from(zero)]);
        self.b.switch_to_block(head);
        let c = self.b.ins().icmp(IntCC::SignedLessThanOrEqual, i, whole);
        self.b.ins().brif(c, body, &[], tail, &[BlockArg::from(i)]);
        self.b.switch_to_block(body);
        self.b.seal_block(body);
        let (p, q) = (self.b.ins().iadd(x, i), self.b.ins().iadd(y, i));
        let (v, w) = (self.b.ins().load(I64, flags, p, 0), self.b.ins().load(I64, flags, q, 0));
        let c = self.b.ins().icmp(IntCC::Equal, v, w);
        let after = self.b.ins().iadd_imm_s(i, 8);
        self.b.ins().brif(c, head, &[BlockArg::from(after)], tail, &[BlockArg::from(i)]);
        self.b.seal_block(head);
        self.b.switch_to_block(tail);
        let c = self.b.ins().icmp(IntCC::SignedLessThan, j, n);
        self.b.ins().brif(c, inner, &[], done, &[BlockArg::from(j)]);
        self.b.switch_to_block(inner);
        self.b.seal_block(inner);
        let (v, w) = (self.byte(x, j), self.byte(y, j));
        let c = self.b.ins().icmp(IntCC::Equal, v, w);
        self.b.ins().brif(c, next, &[], done, &[BlockArg::from(j)]);
        self.b.switch_to_block(next);
        self.b.seal_block(next);
        let after = self.b.ins().iadd_imm_s(j, 1);
        self.b.ins().jump(tail, &[BlockArg::from(after)]);
        self.b.seal_block(tail);
        self.b.switch_to_block(done);
        self.b.seal_block(done);
        r
    }
}

fn order(op: BinOp, signed: bool) -> IntCC {
    let cc = match op {
        BinOp::Lt => IntCC::SignedLessThan,
        BinOp::Le => IntCC::SignedLessThanOrEqual,
        BinOp::Gt => IntCC::SignedGreaterThan,
        _ => IntCC::SignedGreaterThanOrEqual,
    };
    if signed { cc } else { cc.unsigned() }
}
