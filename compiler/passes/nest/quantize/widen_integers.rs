//! widen_integers: arithmetic of 8-bit and 16-bit integers in 32 bits, since vectors have lanes of 32 bits.
//!
//! Moves, selects and comparisons have the same result in any width. The results of operations that can
//! wrap are reduced to the short type, `i32(u8(x + y))`, unless only their low bits are used, as by another
//! such operation or a store: `store u8(x + y)`.

use crate::diag::Result;
use crate::nest::{BinOp, Expr, Kernel, Module, Reg, Scalar, Stmt, UnOp, visit};
use crate::tensor::ElemType;
use std::collections::HashMap;

fn is_short(t: ElemType) -> bool {
    matches!(t, ElemType::U8 | ElemType::I8 | ElemType::U16 | ElemType::I16)
}

/// True if a body has values of these types.
fn has_short(m: &Module, body: &[Stmt]) -> bool {
    let of_short = |e: &Expr| match e {
        Expr::Const(_) | Expr::Reg(_) | Expr::Acc { .. } | Expr::Load { .. } | Expr::Cast(..) => {
            is_short(m.type_of(e))
        }
        Expr::Un(UnOp::Bits(t), _) => is_short(*t),
        Expr::Text(..) => true,
        _ => false,
    };
    visit::any_expr(body, &mut |e| of_short(e))
}

/// Rewrites the kernels that have such values.
pub fn run(m: &mut Module) -> Result<()> {
    let short = |k: &Kernel| has_short(m, &m.kernels[*k].body);
    for k in m.kernels.keys().filter(short).collect::<Vec<_>>() {
        let mut regs: HashMap<Reg, Reg> = HashMap::new();
        let mut found = vec![];
        visit::walk(&m.kernels[k].body, &mut |s| {
            if let Stmt::Acc { reg, .. } | Stmt::Let { reg, .. } = s {
                found.push(*reg);
            }
            if let Some(e) = s.expr() {
                e.walk(&mut |e| {
                    if let Expr::Let { reg, .. } = e {
                        found.push(*reg);
                    }
                });
            }
        });
        for r in found.into_iter().filter(|r| is_short(m.regs[*r].ty)).collect::<Vec<_>>() {
            let wide = m.reg(ElemType::I32);
            regs.insert(r, wide);
        }
        let body = std::mem::take(&mut m.kernels[k].body);
        let w = Widen { m, regs };
        let body = body.into_iter().map(|s| w.stmt(s)).collect();
        m.kernels[k].body = body;
    }
    Ok(())
}

/// True if the low bits of a result depend on the low bits of the operands only.
fn wraps_bits(op: BinOp) -> bool {
    matches!(op, BinOp::Add | BinOp::Sub | BinOp::Mul | BinOp::And | BinOp::Or | BinOp::Xor)
}

/// True if the result for operands in the range of a short type is in it, too.
fn keeps_range(op: BinOp, t: ElemType) -> bool {
    match op {
        BinOp::Min | BinOp::Max | BinOp::And | BinOp::Or | BinOp::Xor | BinOp::Rem | BinOp::Mod => true,
        BinOp::Div => !t.is_signed_int(),
        _ => false,
    }
}

/// True if an operation on short integers may leave their range.
fn wraps(e: &Expr) -> bool {
    match e {
        Expr::Bin(op, ..) => wraps_bits(*op) || matches!(op, BinOp::Shl | BinOp::Div),
        Expr::Un(op, _) => matches!(op, UnOp::Neg | UnOp::BitNot | UnOp::Abs),
        _ => false,
    }
}

struct Widen<'a> {
    m: &'a Module,
    regs: HashMap<Reg, Reg>,
}

impl Widen<'_> {
    fn stmt(&self, s: Stmt) -> Stmt {
        let list = |v: Vec<Stmt>| v.into_iter().map(|s| self.stmt(s)).collect::<Vec<_>>();
        let new = |r: Reg| *self.regs.get(&r).unwrap_or(&r);
        match s {
            Stmt::For { kind, var, lo, hi, body } => Stmt::For { kind, var, lo, hi, body: list(body) },
            Stmt::If { cond, then, els } => {
                Stmt::If { cond: self.expr(cond), then: list(then), els: list(els) }
            }
            Stmt::While { cond, body } => Stmt::While { cond: self.expr(cond), body: list(body) },
            Stmt::With { sym, value, extent, body } => {
                Stmt::With { sym, value: self.expr(value), extent, body: list(body) }
            }
            Stmt::Let { reg, value } => Stmt::Let { value: self.of_reg(reg, value), reg: new(reg) },
            Stmt::Acc { reg, lanes, shape, init } => {
                Stmt::Acc { init: self.of_reg(reg, init), reg: new(reg), lanes, shape }
            }
            Stmt::Set { reg, at, value } => Stmt::Set { value: self.of_reg(reg, value), reg: new(reg), at },
            Stmt::Store { buf, at, value } => {
                let t = self.m.type_of(&value);
                let value = if is_short(t) && !matches!(value, Expr::Load { .. } | Expr::Const(_)) {
                    Expr::Cast(t, Box::new(self.low_bits(value)))
                } else {
                    self.expr(value)
                };
                Stmt::Store { buf, at, value }
            }
            s => s.map_exprs(&mut |e| self.expr(e)),
        }
    }
    fn of_reg(&self, r: Reg, e: Expr) -> Expr {
        if self.regs.contains_key(&r) { self.wide(e) } else { self.expr(e) }
    }
    /// Rewrites an expression of another type, with its short operands widened.
    fn expr(&self, e: Expr) -> Expr {
        let b = |e: Box<Expr>| Box::new(self.expr(*e));
        match e {
            Expr::Cast(ElemType::I32, x) if is_short(self.m.type_of(&x)) => self.wide(*x),
            Expr::Cast(t @ ElemType::F32, x) if is_short(self.m.type_of(&x)) => {
                Expr::Cast(t, Box::new(self.wide(*x)))
            }
            Expr::Bin(op, x, y) if op.is_comparison() && is_short(self.m.type_of(&x)) => {
                Expr::bin(op, self.wide(*x), self.wide(*y))
            }
            Expr::Un(op, x) => Expr::Un(op, b(x)),
            Expr::Cast(t, x) => Expr::Cast(t, b(x)),
            Expr::Text(op, v) => Expr::Text(op, v.into_iter().map(|e| self.expr(e)).collect()),
            Expr::Bin(op, x, y) => Expr::Bin(op, b(x), b(y)),
            Expr::Fma(x, y, z) => Expr::Fma(b(x), b(y), b(z)),
            Expr::Dot(g, x, y, z) => Expr::Dot(g, b(x), b(y), b(z)),
            Expr::Select(x, y, z) => Expr::Select(b(x), b(y), b(z)),
            Expr::Let { reg, value, body } => self.binding(reg, *value, b(body)),
            Expr::With { sym, value, extent, body } => {
                Expr::With { sym, value: b(value), extent, body: b(body) }
            }
            // An operand that must keep its short type.
            Expr::Reg(r) | Expr::Acc { reg: r, .. } | Expr::Horizontal { reg: r, .. }
                if self.regs.contains_key(&r) =>
            {
                Expr::Cast(self.m.regs[r].ty, Box::new(self.wide(e)))
            }
            e => e,
        }
    }
    /// A short expression as i32.
    fn wide(&self, e: Expr) -> Expr {
        let b = |e: Box<Expr>| Box::new(self.wide(*e));
        match e {
            Expr::Const(s) => Scalar::int(ElemType::I32, s.to_i64()).into(),
            Expr::Reg(r) if self.regs.contains_key(&r) => Expr::Reg(self.regs[&r]),
            Expr::Acc { reg, at, lane } if self.regs.contains_key(&reg) => {
                Expr::Acc { reg: self.regs[&reg], at, lane }
            }
            Expr::Horizontal { op, reg, at } if self.regs.contains_key(&reg) => {
                Expr::Horizontal { op, reg: self.regs[&reg], at }
            }
            Expr::Bin(op, x, y) if keeps_range(op, self.m.type_of(&x)) => Expr::Bin(op, b(x), b(y)),
            Expr::Un(UnOp::Sign, x) => Expr::Un(UnOp::Sign, b(x)),
            Expr::Select(c, x, y) => Expr::Select(Box::new(self.expr(*c)), b(x), b(y)),
            Expr::With { sym, value, extent, body } => {
                Expr::With { sym, value: Box::new(self.expr(*value)), extent, body: b(body) }
            }
            Expr::Let { reg, value, body } => self.binding(reg, *value, b(body)),
            Expr::Cast(t, x) if self.fits(&x, t) => {
                Expr::cast(self.m.type_of(&x), ElemType::I32, self.expr(*x))
            }
            Expr::Cast(t, x) => Expr::Cast(ElemType::I32, Box::new(Expr::Cast(t, Box::new(self.expr(*x))))),
            e if wraps(&e) => {
                let t = self.m.type_of(&e);
                Expr::Cast(ElemType::I32, Box::new(Expr::Cast(t, Box::new(self.low_bits(e)))))
            }
            e => Expr::Cast(ElemType::I32, Box::new(self.expr(e))),
        }
    }
    fn binding(&self, r: Reg, value: Expr, body: Box<Expr>) -> Expr {
        let reg = *self.regs.get(&r).unwrap_or(&r);
        Expr::Let { reg, value: Box::new(self.of_reg(r, value)), body }
    }
    /// An i32 with the low bits of a short expression; the others are arbitrary.
    fn low_bits(&self, e: Expr) -> Expr {
        let low = |e: Box<Expr>| Box::new(self.low_bits(*e));
        match e {
            Expr::Bin(BinOp::Shl, x, n) => {
                // Counts are taken modulo the width of the short type.
                let most = Scalar::int(ElemType::I32, self.m.type_of(&x).bits() as i64 - 1);
                Expr::Bin(BinOp::Shl, low(x), Box::new(Expr::bin(BinOp::And, self.wide(*n), most.into())))
            }
            Expr::Bin(BinOp::Div, x, y) => Expr::bin(BinOp::Div, self.wide(*x), self.wide(*y)),
            Expr::Bin(op, x, y) if wraps_bits(op) => Expr::Bin(op, low(x), low(y)),
            Expr::Un(op @ (UnOp::Neg | UnOp::BitNot), x) => Expr::Un(op, low(x)),
            Expr::Un(UnOp::Abs, x) => Expr::Un(UnOp::Abs, Box::new(self.wide(*x))),
            Expr::Let { reg, value, body } => self.binding(reg, *value, low(body)),
            e => self.wide(e),
        }
    }
    /// True if a value is in the range of a type: clamped to it, or a byte stored with 128 added.
    fn fits(&self, e: &Expr, t: ElemType) -> bool {
        if crate::passes::nest::quantize::exact_sums::clamped(e, t) {
            return true;
        }
        let Expr::Bin(BinOp::Sub, x, k) = e else { return false };
        let (Expr::Cast(ElemType::I32, x), Expr::Const(k)) = (&**x, &**k) else { return false };
        t == ElemType::I8
            && k.to_i64() == 128
            && matches!(&**x, Expr::Load { buf, .. } if self.m.bufs[*buf].ty == ElemType::U8)
    }
}
