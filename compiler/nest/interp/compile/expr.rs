//! Compiles expressions: each to a node of code and its type.

use super::super::scalar::{bin_f32, bin_f64};
use super::*;

/// Code and the type of its value.
type Typed = Res<(Node, ElemType)>;

impl Compiler<'_> {
    pub(super) fn truth(&mut self, e: &Expr) -> Res<Node> {
        let (n, ty) = self.expr(e)?;
        same(ty, ElemType::Bool, "a condition")?;
        Ok(n)
    }
    pub(super) fn expr(&mut self, e: &Expr) -> Typed {
        match e {
            Expr::Const(s) => constant(*s),
            Expr::Reg(r) => self.register(*r),
            Expr::Acc { reg, at, lane } => self.cell(*reg, at, *lane).map(|(c, ty, _)| (Node::Acc(c), ty)),
            Expr::Horizontal { op, reg, at } => self.horizontal(*op, *reg, at),
            Expr::Address(_) => msg("an address"),
            Expr::Index(d) => Ok((Node::Index(self.ix(*d)?), ElemType::I64)),
            Expr::Load { buf, at } => self.load(*buf, at),
            Expr::Un(op, a) => self.unary(*op, a),
            Expr::Bin(op, a, b) => self.binary(*op, a, b),
            Expr::Fma(a, b, c) => self.fma([a, b, c]),
            Expr::Dot(g, a, b, c) => self.dot(*g, [a, b, c]),
            Expr::Select(c, a, b) => {
                let c = self.truth(c)?;
                let ([a, b], ty) = self.alike([a, b], ["the second choice"])?;
                Ok((Node::Select(Box::new((c, a, b))), ty))
            }
            Expr::Cast(to, a) => {
                let (a, from) = self.expr(a)?;
                compute(*to)?;
                number(from)?;
                Ok((if from == *to { a } else { Node::Cast(from, *to, Box::new(a)) }, *to))
            }
            Expr::Text(op, v) => self.text(*op, v),
            Expr::Let { reg, value, body } => {
                let (v, ty) = self.expr(value)?;
                let (r, (b, ty)) =
                    self.scoped(|c| Ok((c.define_reg(*reg, ty, Def::Value)?, c.expr(body)?)))?;
                Ok((Node::Let(r, Box::new((v, b))), ty))
            }
            Expr::With { sym, value, extent, body } => {
                let (v, extent) = (self.index_value(value)?, self.ix(*extent)?);
                let (s, (b, ty)) = self.scoped(|c| Ok((c.define_sym(*sym)?, c.expr(body)?)))?;
                Ok((Node::With(s, extent, Box::new((v, b))), ty))
            }
        }
    }
    /// Operands of one type, the first one's; `names` are what faults call the others.
    fn alike<const N: usize, const M: usize>(
        &mut self,
        operands: [&Expr; N],
        names: [&str; M],
    ) -> Res<([Node; N], ElemType)> {
        let (nodes, types) = self.operands(operands)?;
        for (t, name) in types[1..].iter().zip(names) {
            same(*t, types[0], name)?;
        }
        Ok((nodes, types[0]))
    }
    fn operands<const N: usize>(&mut self, operands: [&Expr; N]) -> Res<([Node; N], [ElemType; N])> {
        let mut types = [ElemType::Bool; N];
        let mut nodes = [const { Node::Const(0) }; N];
        for (i, e) in operands.into_iter().enumerate() {
            (nodes[i], types[i]) = self.expr(e)?;
        }
        Ok((nodes, types))
    }
    fn register(&self, r: Reg) -> Typed {
        let def = self.def(r);
        match (def, self.m.regs.get(r)) {
            (Def::Value, Some(d)) => Ok((Node::Reg(r.as_u32() as usize), d.ty)),
            (Def::Lanes { base, lanes }, Some(d)) => match self.vecs.iter().rposition(|n| *n == lanes) {
                Some(slot) => Ok((Node::Acc(Cell::Lane(base, slot)), d.ty)),
                None => msg(format!("{r} of a vector loop is used outside")),
            },
            _ => msg(format!("{r} has no value here")),
        }
    }
    fn horizontal(&mut self, op: BinOp, reg: Reg, at: &[Dim]) -> Typed {
        let (cell, ty, lanes) = self.cell(reg, at, Some(Dim::constant(0)))?;
        if op.is_comparison() {
            return msg("lanes combined by a comparison");
        }
        Ok((Node::Horizontal { op, ty, cell, lanes: lanes as usize }, ty))
    }
    fn load(&mut self, buf: Buf, at: &[Dim]) -> Typed {
        let a = Box::new(self.access(buf, at)?);
        let ty = a.ty.compute();
        let load = match ty {
            ElemType::Str => Node::LoadText(a),
            ElemType::C128 => Node::LoadPair(a),
            _ => Node::Load(a),
        };
        Ok((load, ty))
    }
    fn unary(&mut self, op: UnOp, a: &Expr) -> Typed {
        let (a, ty) = self.expr(a)?;
        if let UnOp::Bits(t) = op {
            if t.bits() != ty.bits() {
                return msg(format!("the bits of {ty} as {t}"));
            }
            compute(t)?;
        }
        Ok((Node::Un(op, ty, Box::new(a)), op.result(ty)))
    }
    fn binary(&mut self, op: BinOp, a: &Expr, b: &Expr) -> Typed {
        // Buffers are separate regions here: addresses can only be compared for the same buffer.
        if let (BinOp::Eq | BinOp::Ne, Expr::Address(a), Expr::Address(b)) = (op, a, b) {
            let same = self.m.storage(*a) == self.m.storage(*b);
            return constant(Scalar { ty: ElemType::Bool, bits: u64::from(same == (op == BinOp::Eq)) });
        }
        let ([a, b], ty) = self.alike([a, b], ["the second operand"])?;
        let both = Box::new((a, b));
        let node = match (ty, op.is_comparison()) {
            (ElemType::Str, true) => Node::CompareText(op, both),
            (ElemType::Str, false) => return msg(format!("{op:?} of texts")),
            (ElemType::F32, true) => Node::Compare32(op, both),
            (ElemType::F32, false) if bin_f32(op, 1.0, 1.0).is_some() => Node::Bin32(op, both),
            (ElemType::F64, false) if bin_f64(op, 1.0, 1.0).is_some() => Node::Bin(op, ty, both),
            (ElemType::F32 | ElemType::F64, false) => return msg(format!("{op:?} of floats")),
            _ => Node::Bin(op, ty, both),
        };
        Ok((node, op.result(ty)))
    }
    fn fma(&mut self, operands: [&Expr; 3]) -> Typed {
        let ([a, b, c], ty) = self.alike(operands, ["the second operand", "the third operand"])?;
        if !ty.is_float() {
            return msg(format!("fma of {ty}"));
        }
        Ok((Node::Fma(ty == ElemType::F32, Box::new((a, b, c))), ty))
    }
    fn dot(&mut self, g: DotKind, operands: [&Expr; 3]) -> Typed {
        let ([a, b, c], [ta, tb, tc]) = self.operands(operands)?;
        for (t, factor) in [ta, tb].into_iter().zip(g.factors()) {
            same(t, factor, "a factor of a dot product")?;
        }
        same(tc, g.sum(), "the sum of a dot product")?;
        Ok((Node::Dot(g, Box::new((a, b, c))), tc))
    }
    fn text(&mut self, op: TextOp, v: &[Expr]) -> Typed {
        if let TextOp::Of(b) = op
            && self.m.bufs.get(b).is_none_or(|d| d.ty != ElemType::U8)
        {
            return msg(format!("{b} as a text"));
        }
        let (operands, ty) = op.signature();
        let (nodes, types): (Vec<Node>, Vec<ElemType>) =
            v.iter().map(|e| self.expr(e)).collect::<Res<Vec<_>>>()?.into_iter().unzip();
        if types != operands {
            return msg(format!("{op:?} of other operands"));
        }
        Ok((Node::Text(op, nodes), ty))
    }
}

fn constant(s: Scalar) -> Typed {
    compute(s.ty)?;
    let mask = if s.ty.bits() >= 64 { u64::MAX } else { (1 << s.ty.bits()) - 1 };
    Ok((Node::Const(s.bits & mask), s.ty))
}
