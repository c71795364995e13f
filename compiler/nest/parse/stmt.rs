//! Statements.

use super::*;

/// Reads a statement behind its first word.
type Read = fn(&mut Parser<'_>) -> Result<Stmt>;

/// Statements by their first word. Stores and values of accumulators have none: they begin with what they
/// set.
const STATEMENTS: &[(&str, Read)] = &[
    ("seq", |p| p.for_loop(LoopKind::Seq)),
    ("par", |p| p.for_loop(LoopKind::Par)),
    ("unroll", |p| p.for_loop(LoopKind::Unroll)),
    ("vec", |p| p.vector_loop()),
    ("private", |p| p.private()),
    ("let", |p| p.value()),
    ("acc", |p| p.accumulators()),
    ("prefetch", |p| Ok(Stmt::Prefetch { buf: p.buf_named()?, at: p.dims()? })),
    ("tile", |p| Ok(Stmt::Tile { body: p.block()? })),
    ("if", |p| p.condition()),
    ("while", |p| Ok(Stmt::While { cond: p.expr()?, body: p.block()? })),
    ("with", |p| p.with()),
    ("define", |p| p.define_size()),
    ("check", |p| p.check()),
    ("foreign", |p| p.foreign()),
    ("call", |p| p.call_kernel()),
];

impl Parser<'_> {
    /// Statements up to what cannot start one.
    pub(super) fn stmts(&mut self) -> Result<Vec<Stmt>> {
        self.depth += 1;
        if self.depth > 200 {
            return self.fail("less deeply nested text");
        }
        let mut out = vec![];
        loop {
            let done = match self.peek() {
                Tok::Word("kernel" | "driver") => self.second() != Tok::Punct("["),
                Tok::Word(_) | Tok::Reg(_) => false,
                _ => true,
            };
            if done {
                self.depth -= 1;
                return Ok(out);
            }
            out.push(self.stmt()?);
        }
    }
    fn block(&mut self) -> Result<Vec<Stmt>> {
        self.want("{")?;
        let body = self.stmts()?;
        self.want("}")?;
        Ok(body)
    }
    fn stmt(&mut self) -> Result<Stmt> {
        if matches!(self.peek(), Tok::Reg(_)) {
            let reg = self.accumulator()?;
            let at = self.subscripts()?;
            self.want("=")?;
            return Ok(Stmt::Set { reg, at, value: self.expr()? });
        }
        if self.second() == Tok::Punct("[") {
            let buf = self.buf_named()?;
            let at = self.dims()?;
            self.want("=")?;
            return Ok(Stmt::Store { buf, at, value: self.expr()? });
        }
        let word = self.peek();
        let Some((_, read)) = STATEMENTS.iter().find(|(w, _)| word == Tok::Word(w)) else {
            return self.fail("a statement");
        };
        self.at += 1;
        read(self)
    }
    fn for_loop(&mut self, kind: LoopKind) -> Result<Stmt> {
        let name = self.word("a loop variable")?.to_owned();
        self.want("in")?;
        let lo = self.dim()?;
        self.want("..")?;
        let hi = self.dim()?;
        self.loop_over(kind, name, lo, hi)
    }
    fn loop_over(&mut self, kind: LoopKind, name: String, lo: Dim, hi: Dim) -> Result<Stmt> {
        let (var, body) = self.binding(name, lo, hi, Self::block)?;
        Ok(Stmt::For { kind, var, lo, hi, body })
    }
    fn vector_loop(&mut self) -> Result<Stmt> {
        self.want("(")?;
        let n = self.number()?;
        self.want(")")?;
        self.for_loop(LoopKind::Vec(n))
    }
    fn private(&mut self) -> Result<Stmt> {
        let name = self.word("a variable")?.to_owned();
        self.want("of")?;
        let lo = self.dim()?;
        self.loop_over(LoopKind::Private, name, lo, lo + 1)
    }
    fn value(&mut self) -> Result<Stmt> {
        let n = self.reg_number()?;
        self.want("=")?;
        let value = self.expr()?;
        let ty = self.m.type_of(&value);
        Ok(Stmt::Let { reg: self.define(n, ty, false), value })
    }
    fn accumulators(&mut self) -> Result<Stmt> {
        let n = self.reg_number()?;
        let mut shape = vec![];
        if self.eat("[") && !self.eat("]") {
            shape = self.list(Self::number)?;
            self.want("]")?;
        }
        let lanes = match self.peek() {
            Tok::Word(w) => match w.strip_prefix('x').and_then(|l| l.parse().ok()) {
                Some(l) => {
                    self.at += 1;
                    l
                }
                None => return self.fail("lanes, as in x4"),
            },
            _ => 1,
        };
        self.want("=")?;
        let init = self.expr()?;
        self.want(":")?;
        let ty = self.ty()?;
        let reg = self.define(n, ty, true);
        if self.peek() == Tok::Word("whole") && self.second() == Tok::Punct("<=") {
            self.at += 2;
            self.m.regs[reg].whole = Some(self.number()?);
        }
        Ok(Stmt::Acc { reg, lanes, shape, init })
    }
    fn condition(&mut self) -> Result<Stmt> {
        let (cond, then) = (self.expr()?, self.block()?);
        let mut els = vec![];
        if self.peek() == Tok::Word("else") && self.second() == Tok::Punct("{") {
            self.at += 1;
            els = self.block()?;
        }
        Ok(Stmt::If { cond, then, els })
    }
    fn with(&mut self) -> Result<Stmt> {
        let (name, value, extent) = self.bound_index()?;
        let (sym, body) = self.binding(name, Dim::constant(0), extent, Self::block)?;
        Ok(Stmt::With { sym, value, extent, body })
    }
    fn define_size(&mut self) -> Result<Stmt> {
        let (Tok::Word(n) | Tok::Quoted(n)) = self.next() else { return self.fail("the name of a size") };
        let Some(sym) = self.sizes.get(n).copied() else { return self.fail("the name of a size") };
        self.want("=")?;
        let value = self.expr()?;
        self.want("in")?;
        let lo = self.dim()?;
        self.want("..")?;
        self.want("=")?;
        let line = |at: usize| self.tokens.get(at).map(|t| t.line);
        let hi = if line(self.at) == line(self.at - 1) { Some(self.dim()?) } else { None };
        Ok(Stmt::Define { sym, value, lo, hi })
    }
    fn check(&mut self) -> Result<Stmt> {
        let cond = self.expr()?;
        self.want("else")?;
        let w = self.word("a status")?;
        let Some(status) = STATUS.iter().copied().find(|s| format!("{s:?}").eq_ignore_ascii_case(w)) else {
            return self.fail("a status");
        };
        self.assume(&cond, status);
        Ok(Stmt::Check { cond, status })
    }
    /// What the driver checks first is known to later proofs, as it was when the module was made.
    fn assume(&mut self, cond: &Expr, status: Status) {
        if status != Status::Dim || self.depth > 1 {
            return;
        }
        if let Expr::Bin(op, a, b) = cond
            && let (Expr::Index(a), Expr::Index(b)) = (&**a, &**b)
        {
            match op {
                BinOp::Eq => self.m.syms.equate(*a, *b),
                BinOp::Le => self.m.syms.require_at_most(*a, *b),
                _ => {}
            }
        }
    }
    fn foreign(&mut self) -> Result<Stmt> {
        let function = if self.eat("custom") {
            foreign::Function::Custom(self.number()?)
        } else {
            match foreign::Function::from_name(self.word("the name of a function")?) {
                Some(f) => f,
                None => return self.fail("the name of a function"),
            }
        };
        let mut from = vec![];
        while !self.eat("to") {
            from.push(self.buf_named()?);
            self.eat(",");
        }
        Ok(Stmt::Foreign(Foreign { function, from, to: self.list(Self::buf_named)? }))
    }
    fn call_kernel(&mut self) -> Result<Stmt> {
        let n = self.word("the name of a kernel")?;
        match self.kernels.get(n) {
            Some(k) => Ok(Stmt::Call(*k)),
            None => self.fail("the name of a kernel"),
        }
    }
}
