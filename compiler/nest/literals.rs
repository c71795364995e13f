//! Literals: constants of a body that code can read from memory instead of containing them. They are operands
//! of arithmetic on floats and on integers of 32 bits, and no part of the Cranelift backend asks for their
//! values. Others are shift counts, exponents, integer divisors and powers of two, conditions of branches,
//! initial values of accumulators, and all constants of bodies that check indices, which their values may
//! make superfluous.

use super::{BinOp, Expr, Scalar, Stmt, patterns, visit};
use crate::tensor::ElemType;

/// Calls `f` for every literal of a body, in an order that depends on nothing but their places.
pub fn each(body: &mut [Stmt], f: &mut dyn FnMut(&mut Scalar)) {
    let checks = visit::any(body, &mut |s| matches!(s, Stmt::With { .. }))
        || visit::any_expr(body, &mut |e| matches!(e, Expr::With { .. }));
    if !checks {
        block(body, f);
    }
}

fn block(body: &mut [Stmt], f: &mut dyn FnMut(&mut Scalar)) {
    for s in body {
        if let Stmt::Let { value, .. } | Stmt::Set { value, .. } | Stmt::Store { value, .. } = s {
            expr(value, f);
        }
        s.bodies_mut().for_each(|b| block(b, f));
    }
}

fn expr(e: &mut Expr, f: &mut dyn FnMut(&mut Scalar)) {
    if patterns::exp_or_zero(e).is_some() {
        return;
    }
    let exact = patterns::exact_product(e).is_some();
    match e {
        Expr::Const(s) if may_move(*s) => f(s),
        Expr::Bin(BinOp::Div, a, b) => {
            expr(a, f);
            if matches!(**b, Expr::Const(s) if s.ty.is_float() && !exact) {
                expr(b, f);
            }
        }
        Expr::Bin(BinOp::Shl | BinOp::Shr | BinOp::Pow | BinOp::Rem | BinOp::Mod, a, _) => expr(a, f),
        Expr::Un(_, a) | Expr::Cast(_, a) => expr(a, f),
        Expr::Bin(_, a, b) | Expr::Let { value: a, body: b, .. } => {
            [a, b].into_iter().for_each(|e| expr(e, f))
        }
        Expr::Fma(a, b, c) | Expr::Dot(_, a, b, c) | Expr::Select(a, b, c) => {
            [a, b, c].into_iter().for_each(|e| expr(e, f));
        }
        _ => {}
    }
}

/// True for constants of the types of literals. The minimum of a number and NaN has code of its own.
fn may_move(s: Scalar) -> bool {
    matches!(s.ty, ElemType::I32 | ElemType::U32)
        || matches!(s.ty, ElemType::F32 | ElemType::F64) && !s.to_f64().is_nan()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diag::Origin;
    use crate::nest::Module;
    use crate::sym::{Dim, SymTable};

    /// The literals of a kernel that stores a value made from an element of f32.
    fn found(value: impl Fn(Expr) -> Expr) -> Vec<f64> {
        let mut m = Module::new("m", SymTable::default());
        let (x, y) = (m.temp("x", ElemType::F32, vec![Dim::constant(8)]), vec![Dim::constant(8)]);
        let y = m.temp("y", ElemType::F32, y);
        let k = m.map(y, &Origin::default(), |kb, at| value(kb.load(x, at)));
        let mut out = vec![];
        each(&mut m.kernels[k].body, &mut |s| out.push(s.to_f64()));
        out
    }

    #[test]
    fn operands_of_arithmetic_are_literals() {
        assert_eq!(
            found(|x| Expr::fma(x, Expr::f32(2.0), Expr::f32(3.0)).min(Expr::f32(4.0))),
            [2.0, 3.0, 4.0]
        );
        let int = |x| Expr::Cast(ElemType::I32, Box::new(x)) + Expr::int(ElemType::I32, -7);
        assert_eq!(found(|x| Expr::Cast(ElemType::F32, Box::new(int(x)))), [-7.0]);
    }

    #[test]
    fn numbers_that_code_depends_on_are_none() {
        assert!(found(|x| Expr::bin(BinOp::Pow, x, Expr::f32(2.0))).is_empty());
        assert_eq!(found(|x| Expr::f32(8.0) / (x / Expr::f32(4.0)) / Expr::f32(3.0)), [8.0, 3.0]);
        assert!(found(|x| x.max(Expr::f32(f32::NAN))).is_empty());
        let below = |x: &Expr| Expr::bin(BinOp::Lt, x.clone(), Expr::f32(-80.0));
        assert!(
            found(|x| Expr::select(below(&x), Expr::f32(0.0), Expr::un(crate::nest::UnOp::Exp, x)))
                .is_empty()
        );
    }
}
