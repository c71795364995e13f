//! Dims and expressions.

use super::*;

/// Operations that are written `name(x)`.
pub const UNARY: &[UnOp] = &[
    UnOp::Neg,
    UnOp::Abs,
    UnOp::Sign,
    UnOp::Not,
    UnOp::BitNot,
    UnOp::Floor,
    UnOp::Ceil,
    UnOp::Trunc,
    UnOp::Round,
    UnOp::Sqrt,
    UnOp::Recip,
    UnOp::Exp,
    UnOp::Log,
    UnOp::Erf,
    UnOp::Tanh,
    UnOp::Sigmoid,
    UnOp::Sin,
    UnOp::Cos,
    UnOp::Tan,
    UnOp::Asin,
    UnOp::Acos,
    UnOp::Atan,
    UnOp::Sinh,
    UnOp::Cosh,
    UnOp::Asinh,
    UnOp::Acosh,
    UnOp::Atanh,
    UnOp::Expm1,
    UnOp::Log1p,
    UnOp::IsNan,
    UnOp::IsInf,
];

/// Operations on two values: written between them, or `name(x, y)`.
pub const BINARY: &[BinOp] = &[
    BinOp::Add,
    BinOp::Sub,
    BinOp::Mul,
    BinOp::Div,
    BinOp::Rem,
    BinOp::Mod,
    BinOp::Min,
    BinOp::Max,
    BinOp::Pow,
    BinOp::Atan2,
    BinOp::And,
    BinOp::Or,
    BinOp::Xor,
    BinOp::Shl,
    BinOp::Shr,
    BinOp::Eq,
    BinOp::Ne,
    BinOp::Lt,
    BinOp::Le,
    BinOp::Gt,
    BinOp::Ge,
];

fn unary(w: &str) -> Option<UnOp> {
    UNARY.iter().copied().find(|o| format!("{o:?}").eq_ignore_ascii_case(w))
}

fn binary(w: &str) -> Option<BinOp> {
    BINARY.iter().copied().find(|o| format!("{o:?}").eq_ignore_ascii_case(w))
}

/// The operation of a name on operands; `None` if no operation of that name takes so many.
fn operation(w: &str, operands: Vec<Expr>) -> Option<Expr> {
    let mut operands = operands.into_iter();
    let first = operands.next()?;
    let (second, third, rest) = (operands.next(), operands.next(), operands.next());
    let boxed = Box::new;
    Some(match (second, third, rest) {
        (None, ..) if w == "len" => Expr::text_len(first),
        (None, ..) => match (ElemType::from_short(w), w.strip_prefix("bits_")) {
            (Some(t), _) => Expr::Cast(t, boxed(first)),
            (None, Some(t)) => Expr::Un(UnOp::Bits(ElemType::from_short(t)?), boxed(first)),
            (None, None) => Expr::Un(unary(w)?, boxed(first)),
        },
        (Some(b), None, _) if w == "byte" => Expr::text_byte(first, b),
        (Some(b), None, _) => Expr::Bin(binary(w)?, boxed(first), boxed(b)),
        (Some(b), Some(c), None) => match w {
            "fma" => Expr::Fma(boxed(first), boxed(b), boxed(c)),
            "select" => Expr::Select(boxed(first), boxed(b), boxed(c)),
            "part" => Expr::text_part(first, b, c),
            _ => {
                let g = DotKind::ALL.into_iter().find(|g| g.name() == w)?;
                Expr::Dot(g, boxed(first), boxed(b), boxed(c))
            }
        },
        _ => return None,
    })
}

impl Parser<'_> {
    /// `[d, d]`, which must be there.
    pub(super) fn dims(&mut self) -> Result<Vec<Dim>> {
        self.want("[")?;
        if self.eat("]") {
            return Ok(vec![]);
        }
        let out = self.list(Self::dim)?;
        self.want("]")?;
        Ok(out)
    }
    /// `[d, d]`, or nothing.
    pub(super) fn subscripts(&mut self) -> Result<Vec<Dim>> {
        if self.peek() == Tok::Punct("[") { self.dims() } else { Ok(vec![]) }
    }
    pub(super) fn dim(&mut self) -> Result<Dim> {
        self.depth += 1;
        if self.depth > 200 {
            return self.fail("less deeply nested text");
        }
        let mut d = if self.eat("-") { -self.product()? } else { self.product()? };
        loop {
            if self.eat("+") {
                d = d + self.product()?;
            } else if self.eat("-") {
                d = d - self.product()?;
            } else {
                self.depth -= 1;
                return Ok(d);
            }
        }
    }
    fn product(&mut self) -> Result<Dim> {
        let mut d = self.factor()?;
        while self.eat("*") {
            d = d * self.factor()?;
        }
        Ok(d)
    }
    fn factor(&mut self) -> Result<Dim> {
        match self.peek() {
            Tok::Num(_) => Ok(Dim::constant(self.number()?)),
            Tok::Punct("(") => {
                self.at += 1;
                let d = self.dim()?;
                self.want(")")?;
                Ok(d)
            }
            Tok::Word(f @ ("floordiv" | "mod" | "min" | "max")) if self.second() == Tok::Punct("(") => {
                self.at += 2;
                let v = self.list(Self::dim)?;
                self.want(")")?;
                match (f, v.as_slice()) {
                    ("floordiv", [a, b]) => Ok(a.floor_div(*b)),
                    ("mod", [a, b]) => Ok(a.modulo(*b)),
                    ("min", v) => Ok(v.iter().copied().reduce(Dim::min).unwrap_or_default()),
                    ("max", v) => Ok(v.iter().copied().reduce(Dim::max).unwrap_or_default()),
                    _ => self.fail("two operands"),
                }
            }
            Tok::Word(w) => {
                let found = self
                    .vars
                    .iter()
                    .rev()
                    .find(|v| v.0 == w)
                    .map(|v| v.1)
                    .or_else(|| self.sizes.get(w).copied());
                match found {
                    Some(s) => {
                        self.at += 1;
                        Ok(s.into())
                    }
                    None if w == "overflow" => {
                        self.at += 1;
                        Ok(Dim::from(u64::MAX))
                    }
                    None => self.fail("a size or a loop variable"),
                }
            }
            Tok::Quoted(w) => match self.sizes.get(w).copied() {
                Some(s) => {
                    self.at += 1;
                    Ok(s.into())
                }
                None => self.fail("a size"),
            },
            _ => self.fail("a dim"),
        }
    }
    pub(super) fn expr(&mut self) -> Result<Expr> {
        self.depth += 1;
        if self.depth > 200 {
            return self.fail("less deeply nested text");
        }
        let e = self.primary()?;
        self.depth -= 1;
        Ok(e)
    }
    fn boxed(&mut self) -> Result<Box<Expr>> {
        Ok(Box::new(self.expr()?))
    }
    fn primary(&mut self) -> Result<Expr> {
        match self.peek() {
            Tok::Num(_) | Tok::Punct("-") => Ok(Expr::Const(self.scalar()?)),
            Tok::Word("inf" | "NaN" | "true" | "false") if self.second() != Tok::Punct("[") => {
                Ok(Expr::Const(self.scalar()?))
            }
            Tok::Reg(n) => {
                self.at += 1;
                let Some((reg, acc)) = self.regs.get(&n).copied() else {
                    self.at -= 1;
                    return self.fail("a register that is defined");
                };
                if !acc {
                    return Ok(Expr::Reg(reg));
                }
                let at = self.subscripts()?;
                let lane = if self.eat(".") { Some(self.factor()?) } else { None };
                Ok(Expr::Acc { reg, at, lane })
            }
            Tok::Punct("(") => {
                self.at += 1;
                let e = self.group()?;
                self.want(")")?;
                Ok(e)
            }
            Tok::Word(_) if self.second() == Tok::Punct("[") => {
                let buf = self.buf_named()?;
                Ok(Expr::Load { buf, at: self.dims()? })
            }
            Tok::Word(w) if self.second() == Tok::Punct("(") => {
                self.at += 2;
                let e = self.call(w)?;
                self.want(")")?;
                Ok(e)
            }
            _ => self.fail("an expression"),
        }
    }
    /// Between parentheses: an operation, `let` or `with`.
    fn group(&mut self) -> Result<Expr> {
        if self.peek() == Tok::Word("let") && matches!(self.second(), Tok::Reg(_)) {
            self.at += 1;
            let n = self.reg_number()?;
            self.want("=")?;
            let value = self.boxed()?;
            self.want("in")?;
            let ty = self.m.type_of(&value);
            let reg = self.define(n, ty, false);
            return Ok(Expr::Let { reg, value, body: self.boxed()? });
        }
        if self.peek() == Tok::Word("with") && matches!(self.second(), Tok::Word(_)) {
            self.at += 1;
            let (name, value, extent) = self.bound_index()?;
            self.want("in")?;
            let (sym, body) = self.binding(name, Dim::constant(0), extent, Self::boxed)?;
            return Ok(Expr::With { sym, value: Box::new(value), extent, body });
        }
        let a = self.boxed()?;
        let Tok::Punct(p) = self.peek() else { return self.fail("an operation") };
        let Some(op) = BINARY.iter().copied().find(|o| print::infix(*o) == Some(p)) else {
            return self.fail("an operation");
        };
        self.at += 1;
        Ok(Expr::Bin(op, a, self.boxed()?))
    }
    /// The operation of a name, behind its parenthesis. What some names are for is no expression.
    fn call(&mut self, w: &str) -> Result<Expr> {
        if let Some(op) = w.strip_prefix("lanes_").and_then(binary) {
            return Ok(Expr::Horizontal { op, reg: self.accumulator()?, at: self.subscripts()? });
        }
        match w {
            "address" => Ok(Expr::Address(self.buf_named()?)),
            "idx" => Ok(Expr::Index(self.dim()?)),
            "text" => Ok(Expr::text_of(self.buf_named()?)),
            _ => {
                let operands = self.list(Self::expr)?;
                operation(w, operands).map_or_else(|| self.fail("the operands of an operation"), Ok)
            }
        }
    }
    /// `1.5`, `-inf`, `true`, `3:i64`, `NaN:f64`.
    fn scalar(&mut self) -> Result<Scalar> {
        let mut text = if self.eat("-") { "-".to_owned() } else { String::new() };
        match self.next() {
            Tok::Num(t) => text += t,
            Tok::Word(t @ ("inf" | "NaN" | "true" | "false")) => text += t,
            _ => {
                self.at -= 1;
                return self.fail("a number");
            }
        }
        if let Some(v) = text
            .parse::<bool>()
            .ok()
            .filter(|_| self.peek() != Tok::Punct(":") || self.tokens[self.at].spaced)
        {
            return Ok(Scalar { ty: ElemType::Bool, bits: u64::from(v) });
        }
        // ` : f32` after an accumulator's start is not the number's type.
        let tight = self.tokens.get(self.at).is_some_and(|t| t.tok == Tok::Punct(":") && !t.spaced);
        let ty = if tight {
            self.at += 1;
            self.ty()?
        } else {
            ElemType::F32
        };
        let v = match ty {
            ElemType::F32 => text.parse::<f32>().ok().map(Scalar::f32),
            ElemType::F64 => text.parse::<f64>().ok().map(|v| Scalar::from_f64(ty, v)),
            ElemType::U64 => text.parse::<u64>().ok().map(|bits| Scalar { ty, bits }),
            _ => text.parse::<i64>().ok().map(|v| Scalar::int(ty, v)),
        };
        match v {
            Some(v) => Ok(v),
            None => {
                self.at -= 1;
                self.fail("a number of its type")
            }
        }
    }
}
