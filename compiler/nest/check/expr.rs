//! Types and indices of expressions.

use super::*;

impl<'a> Body<'a> {
    pub(super) fn truth(&mut self, e: &'a Expr) {
        let t = self.expr(e);
        self.want(t, ElemType::Bool, "type of a condition");
    }
    /// Checks an expression; its type.
    pub(super) fn expr(&mut self, e: &'a Expr) -> ElemType {
        let m = self.m;
        match e {
            Expr::Const(s) => self.constant(*s),
            Expr::Reg(r) => {
                if !matches!(self.regs.get(r), Some(Def::Value)) {
                    self.fault("a register is used outside its scope");
                }
                m.regs[*r].ty
            }
            Expr::Acc { reg, at, lane } => {
                if let Some((lanes, _)) = self.acc(*reg, at) {
                    self.lane(*lane, lanes);
                }
                m.regs[*reg].ty
            }
            Expr::Horizontal { op, reg, at } => {
                self.acc(*reg, at);
                if !matches!(
                    op,
                    BinOp::Add | BinOp::Mul | BinOp::Min | BinOp::Max | BinOp::And | BinOp::Or | BinOp::Xor
                ) {
                    self.fault("lanes combine by an operation that has an order");
                }
                m.regs[*reg].ty
            }
            Expr::Index(d) => {
                self.dim(*d);
                ElemType::I64
            }
            Expr::Address(_) => {
                if !self.driver {
                    self.fault("an address in a kernel");
                }
                ElemType::I64
            }
            Expr::Load { buf, at } => {
                self.access(*buf, at);
                m.bufs[*buf].ty.compute()
            }
            Expr::Un(op, a) => {
                let t = self.expr(a);
                self.unary(*op, t)
            }
            Expr::Bin(op, a, b) => {
                let (t, u) = (self.expr(a), self.expr(b));
                self.want(u, t, "type of the second operand");
                self.binary(*op, t)
            }
            Expr::Fma(a, b, c) => {
                let (t, u, v) = (self.expr(a), self.expr(b), self.expr(c));
                if !t.is_float() || t != u || t != v {
                    self.fault(format!("fma of {}, {} and {}", t.short(), u.short(), v.short()));
                }
                t
            }
            Expr::Dot(g, a, b, c) => {
                if self.limits.is_some_and(|l| !l.groups.contains(g)) {
                    self.fault(format!("{} on a level that does not have it", g.name()));
                }
                for (t, factor) in [self.expr(a), self.expr(b)].into_iter().zip(g.factors()) {
                    self.want(t, factor, &format!("type of a factor of {}", g.name()));
                }
                let t = self.expr(c);
                self.want(t, g.sum(), &format!("type of the sum of {}", g.name()));
                t
            }
            Expr::Select(c, a, b) => {
                self.truth(c);
                let mark = self.facts.mark();
                self.facts.assume(c, true, &self.values);
                let t = self.expr(a);
                self.facts.forget(mark);
                self.facts.assume(c, false, &self.values);
                let u = self.expr(b);
                self.facts.forget(mark);
                self.want(u, t, "type of a select's second value");
                t
            }
            Expr::Cast(t, a) => {
                let from = self.expr(a);
                if t.compute() != *t || [*t, from].iter().any(|t| *t == ElemType::Str || t.is_complex()) {
                    self.fault(format!("cast to {}, which is no compute type", t.short()));
                }
                *t
            }
            Expr::Text(op, v) => self.text(*op, v),
            Expr::Let { reg, value, body } => {
                let t = self.expr(value);
                self.want(t, m.regs[*reg].ty, "type of the register's value");
                self.define_reg(*reg, Def::Value);
                self.values.insert(*reg, value);
                let t = self.expr(body);
                self.regs.remove(reg);
                self.values.remove(reg);
                t
            }
            Expr::With { sym, value, extent, body } => {
                self.bind(*sym, value, *extent);
                let mark = self.facts.mark();
                let t = self.expr(body);
                self.facts.forget(mark);
                self.vars.remove(sym);
                t
            }
        }
    }
    fn constant(&mut self, s: Scalar) -> ElemType {
        let bits = s.ty.bits();
        if s.ty.compute() != s.ty
            || bits > 64
            || s.ty.is_complex()
            || (bits < 64 && s.bits >> bits != 0)
            || (s.ty == ElemType::Bool && s.bits > 1)
        {
            self.fault(format!("bits {:#x} are no constant of type {}", s.bits, s.ty.short()));
        }
        s.ty
    }
    /// One lane of an accumulator, or that of the iteration.
    fn lane(&mut self, lane: Option<Dim>, lanes: u32) {
        let Some(l) = lane else { return self.current_lane(lanes) };
        self.number(l);
        if !self.facts.in_range(l, Dim::from(lanes)) {
            self.fault(format!("a lane may leave 0..{lanes}"));
        }
    }
    fn text(&mut self, op: TextOp, v: &'a [Expr]) -> ElemType {
        let (operands, result) = op.signature();
        if let TextOp::Of(b) = op
            && self.m.bufs[b].ty != ElemType::U8
        {
            self.fault(format!(
                "\"{}\" is shown as a text: found {}, expected u8",
                self.m.bufs[b].name,
                self.m.bufs[b].ty.short()
            ));
        }
        let found: Vec<ElemType> = v.iter().map(|e| self.expr(e)).collect();
        if found != operands {
            self.fault(format!(
                "{op:?} of {}",
                found.iter().map(|t| t.short()).collect::<Vec<_>>().join(", ")
            ));
        }
        result
    }
    /// An index bound to a value.
    pub(super) fn bind(&mut self, sym: Sym, value: &'a Expr, extent: Dim) {
        let t = self.expr(value);
        if !t.is_int() {
            self.fault(format!("an index of type {}", t.short()));
        }
        self.dim(extent);
        self.define_sym(sym, None);
        // Conditions of the driver may have simplified one of the two.
        let range = self.m.syms.loop_range(sym);
        if !range
            .is_some_and(|(lo, hi)| lo.as_const() == Some(0) && self.m.syms.eq(hi, extent) == Answer::Yes)
        {
            self.fault(format!(
                "the table does not say that {} is in 0..{}",
                self.m.syms.unique_name(sym),
                extent.display(&self.m.syms)
            ));
        }
    }
    fn unary(&mut self, op: UnOp, t: ElemType) -> ElemType {
        let fits = match op {
            UnOp::Not => t == ElemType::Bool,
            UnOp::BitNot => t.is_int(),
            UnOp::Neg | UnOp::Abs | UnOp::Sign => t.is_float() || t.is_int(),
            UnOp::Bits(to) => {
                to.bits() == t.bits()
                    && to.compute() == to
                    && [t, to].iter().all(|t| *t != ElemType::Str && !t.is_complex())
            }
            _ => t.is_float(),
        };
        if !fits {
            self.fault(format!("{op:?} of {}", t.short()));
        }
        op.result(t)
    }
    fn binary(&mut self, op: BinOp, t: ElemType) -> ElemType {
        let fits = match op {
            BinOp::And | BinOp::Or | BinOp::Xor => t == ElemType::Bool || t.is_int(),
            BinOp::Shl | BinOp::Shr => t.is_int(),
            BinOp::Atan2 => t.is_float(),
            BinOp::Min | BinOp::Max => t != ElemType::Str && !t.is_complex(),
            op if op.is_comparison() => !t.is_complex(),
            _ => t.is_float() || t.is_int(),
        };
        if !fits {
            self.fault(format!("{op:?} of {}", t.short()));
        }
        op.result(t)
    }
}
