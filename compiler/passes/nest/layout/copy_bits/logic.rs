//! Stored logic of loaded booleans, computed on the bytes that hold them. Each is 0 or 1, so that the logic
//! of truth values is that of bits, and vectors need no masks:
//!
//! ```text
//! y[i] = not(and(a[i], b[i]))        y[i] = u8(xor(and(i32(a[i]), i32(b[i])), 1))
//! ```

use super::view;
use crate::nest::{BinOp, Buf, Expr, Module, Reg, UnOp};
use crate::tensor::ElemType::{self, Bool, I32, U8};
use std::collections::HashMap;

/// True for a value of this type that is logic of loaded booleans.
pub(super) fn is_logic(m: &Module, t: ElemType, e: &Expr) -> bool {
    t == Bool && !matches!(e, Expr::Load { .. } | Expr::Const(_)) && is_made_of_loads(m, e, &mut vec![])
}

/// `bound`: registers with such values.
fn is_made_of_loads(m: &Module, e: &Expr, bound: &mut Vec<Reg>) -> bool {
    match e {
        Expr::Load { buf, .. } => m.bufs[*buf].ty == Bool,
        Expr::Reg(r) => bound.contains(r),
        Expr::Bin(BinOp::And | BinOp::Or | BinOp::Xor, a, b) => {
            is_made_of_loads(m, a, bound) && is_made_of_loads(m, b, bound)
        }
        Expr::Un(UnOp::Not, a) => is_made_of_loads(m, a, bound),
        Expr::Let { reg, value, body } => {
            let made = m.regs[*reg].ty == Bool && is_made_of_loads(m, value, bound);
            bound.push(*reg);
            made && is_made_of_loads(m, body, bound)
        }
        _ => false,
    }
}

/// The value as a byte.
pub(super) fn of_bytes(m: &mut Module, e: Expr, views: &mut HashMap<Buf, Buf>) -> Expr {
    let mut bytes = Bytes { m, views, regs: HashMap::new() };
    let value = bytes.word(e);
    Expr::cast(I32, U8, value)
}

/// Logic on the bytes of booleans, in lanes of 32 bits.
struct Bytes<'a> {
    m: &'a mut Module,
    views: &'a mut HashMap<Buf, Buf>,
    /// The registers of the words in place of those of booleans.
    regs: HashMap<Reg, Reg>,
}

impl Bytes<'_> {
    fn word(&mut self, e: Expr) -> Expr {
        match e {
            Expr::Load { buf, at } => {
                Expr::cast(U8, I32, Expr::Load { buf: view(self.m, buf, self.views), at })
            }
            Expr::Reg(r) => Expr::Reg(self.regs.get(&r).copied().unwrap_or(r)),
            Expr::Bin(op, a, b) => Expr::bin(op, self.word(*a), self.word(*b)),
            Expr::Un(_, a) => Expr::bin(BinOp::Xor, self.word(*a), Expr::int(I32, 1)),
            Expr::Let { reg, value, body } => {
                let value = Box::new(self.word(*value));
                let own = self.m.reg(I32);
                self.regs.insert(reg, own);
                Expr::Let { reg: own, value, body: Box::new(self.word(*body)) }
            }
            e => e,
        }
    }
}
