//! Expressions through functions and operators.

use super::*;

impl From<Scalar> for Expr {
    fn from(s: Scalar) -> Self {
        Expr::Const(s)
    }
}

impl Expr {
    /// A size as a value of a float type: a number where it is known.
    pub fn count(ty: ElemType, n: Dim) -> Self {
        match n.as_const() {
            Some(c) => Expr::num(ty, c as f64),
            None => Expr::cast(ElemType::I64, ty, Expr::index(n)),
        }
    }
    /// f32 constant.
    pub fn f32(v: f32) -> Self {
        Scalar::f32(v).into()
    }
    /// A constant of a compute type.
    pub fn num(ty: ElemType, v: f64) -> Self {
        Scalar::from_f64(ty, v).into()
    }
    /// An integer constant of a compute type.
    pub fn int(ty: ElemType, v: i64) -> Self {
        Scalar::int(ty, v).into()
    }
    /// A truth value.
    pub fn bool(v: bool) -> Self {
        Scalar { ty: ElemType::Bool, bits: u64::from(v) }.into()
    }
    /// Value of a scalar accumulator.
    pub fn acc(reg: Reg) -> Self {
        Expr::Acc { reg, at: vec![], lane: None }
    }
    /// i64 value of an index expression.
    pub fn index(d: impl Into<Dim>) -> Self {
        Expr::Index(d.into())
    }
    /// Unary operation.
    pub fn un(op: UnOp, a: Expr) -> Self {
        Expr::Un(op, Box::new(a))
    }
    /// Binary operation.
    pub fn bin(op: BinOp, a: Expr, b: Expr) -> Self {
        Expr::Bin(op, Box::new(a), Box::new(b))
    }
    /// a * b + c.
    pub fn fma(a: Expr, b: Expr, c: Expr) -> Self {
        Expr::Fma(Box::new(a), Box::new(b), Box::new(c))
    }
    /// Products and a sum, see [`Expr::Dot`].
    pub fn dot(g: DotKind, a: Expr, b: Expr, c: Expr) -> Self {
        Expr::Dot(g, Box::new(a), Box::new(b), Box::new(c))
    }
    /// Bytes of a text.
    pub fn text_len(s: Expr) -> Self {
        Expr::Text(TextOp::Len, vec![s])
    }
    /// Byte of a text at a position, which must be inside.
    pub fn text_byte(s: Expr, at: Expr) -> Self {
        Expr::Text(TextOp::Byte, vec![s, at])
    }
    /// Part of a text, which must be inside.
    pub fn text_part(s: Expr, from: Expr, len: Expr) -> Self {
        Expr::Text(TextOp::Part, vec![s, from, len])
    }
    /// All bytes of a buffer as a text.
    pub fn text_of(buf: Buf) -> Self {
        Expr::Text(TextOp::Of(buf), vec![])
    }
    /// `if c { a } else { b }`, lazy for memory.
    pub fn select(c: Expr, a: Expr, b: Expr) -> Self {
        Expr::Select(Box::new(c), Box::new(a), Box::new(b))
    }
    /// Conversion; nothing if `from` is the same.
    pub fn cast(from: ElemType, to: ElemType, a: Expr) -> Self {
        if from == to { a } else { Expr::Cast(to, Box::new(a)) }
    }
    /// Comparison of two index expressions.
    pub fn cmp_index(op: BinOp, a: impl Into<Dim>, b: impl Into<Dim>) -> Self {
        Expr::bin(op, Expr::Index(a.into()), Expr::Index(b.into()))
    }
    /// Minimum (NaN wins).
    pub fn min(self, b: Expr) -> Self {
        Expr::bin(BinOp::Min, self, b)
    }
    /// Maximum (NaN wins).
    pub fn max(self, b: Expr) -> Self {
        Expr::bin(BinOp::Max, self, b)
    }
    /// Logical or bitwise and.
    pub fn and(self, b: Expr) -> Self {
        Expr::bin(BinOp::And, self, b)
    }
}

macro_rules! expr_ops {
    ($($tr:ident $f:ident $op:ident),*) => {$(
        impl std::ops::$tr for Expr {
            type Output = Expr;
            fn $f(self, b: Expr) -> Expr { Expr::bin(BinOp::$op, self, b) }
        }
    )*};
}
expr_ops!(Add add Add, Sub sub Sub, Mul mul Mul, Div div Div);

impl std::ops::Neg for Expr {
    type Output = Expr;
    fn neg(self) -> Expr {
        Expr::un(UnOp::Neg, self)
    }
}
