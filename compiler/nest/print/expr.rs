//! Expressions as text.

use super::*;

impl Printer<'_> {
    pub(super) fn expr(&mut self, e: &Expr) -> String {
        match e {
            Expr::Const(s) => scalar(*s),
            Expr::Reg(r) => self.reg(*r),
            Expr::Acc { reg, at, lane } => {
                let lane = lane.map_or(String::new(), |l| {
                    if l.as_const().is_some() {
                        format!(".{}", self.dim(l))
                    } else {
                        format!(".({})", self.dim(l))
                    }
                });
                format!("{}{}{lane}", self.reg(*reg), self.at(at))
            }
            Expr::Horizontal { op, reg, at } => {
                format!("lanes_{}({}{})", bin_name(*op), self.reg(*reg), self.at(at))
            }
            Expr::Address(b) => format!("address({})", self.name(*b)),
            Expr::Index(d) => format!("idx({})", self.dim(*d)),
            Expr::Load { buf, at } => {
                let list: Vec<String> = at.iter().map(|d| self.dim(*d)).collect();
                format!("{}[{}]", self.name(*buf), list.join(", "))
            }
            Expr::Un(UnOp::Bits(t), a) => format!("bits_{}({})", t.short(), self.expr(a)),
            Expr::Un(op, a) => format!("{}({})", format!("{op:?}").to_lowercase(), self.expr(a)),
            Expr::Bin(op, a, b) => {
                let (a, b) = (self.expr(a), self.expr(b));
                match infix(*op) {
                    Some(i) => format!("({a} {i} {b})"),
                    None => format!("{}({a}, {b})", bin_name(*op)),
                }
            }
            Expr::Dot(g, a, b, c) => {
                format!("{}({}, {}, {})", g.name(), self.expr(a), self.expr(b), self.expr(c))
            }
            Expr::Fma(a, b, c) => format!("fma({}, {}, {})", self.expr(a), self.expr(b), self.expr(c)),
            Expr::Select(a, b, c) => format!("select({}, {}, {})", self.expr(a), self.expr(b), self.expr(c)),
            Expr::Cast(t, a) => format!("{}({})", t.short(), self.expr(a)),
            Expr::Text(TextOp::Of(buf), _) => format!("text({})", self.name(*buf)),
            Expr::Text(op, v) => format!(
                "{}({})",
                format!("{op:?}").to_lowercase(),
                v.iter().map(|e| self.expr(e)).collect::<Vec<_>>().join(", ")
            ),
            Expr::Let { reg, value, body } => {
                let v = self.expr(value);
                format!("(let {} = {v} in {})", self.reg(*reg), self.expr(body))
            }
            Expr::With { sym, value, extent, body } => {
                let v = self.expr(value);
                let n = self.dim(*extent);
                format!("(with {} = {v} < {n} in {})", self.sym(*sym), self.expr(body))
            }
        }
    }
}

/// How an operation is written between its operands, if it is.
pub fn infix(op: BinOp) -> Option<&'static str> {
    Some(match op {
        BinOp::Add => "+",
        BinOp::Sub => "-",
        BinOp::Mul => "*",
        BinOp::Div => "/",
        BinOp::Eq => "==",
        BinOp::Ne => "!=",
        BinOp::Lt => "<",
        BinOp::Le => "<=",
        BinOp::Gt => ">",
        BinOp::Ge => ">=",
        _ => return None,
    })
}

/// Name of an operation.
pub(super) fn bin_name(op: BinOp) -> String {
    format!("{op:?}").to_lowercase()
}

/// Shortest text that reads back as the same value.
fn scalar(s: Scalar) -> String {
    let mut t = String::new();
    let _ = match s.ty {
        ElemType::F32 => write!(t, "{:?}", f32::from_bits(s.bits as u32)),
        ElemType::F64 => write!(t, "{:?}:f64", s.to_f64()),
        ElemType::Bool => write!(t, "{}", s.bits != 0),
        ElemType::I64 => write!(t, "{}:i64", s.to_i64()),
        ElemType::U64 => write!(t, "{}:u64", s.bits),
        ty => write!(t, "{}:{}", s.to_i64(), ty.short()),
    };
    t
}
