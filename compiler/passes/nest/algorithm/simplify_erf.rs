//! simplify_erf: `erf(x / c)` becomes `erf(x * (1 / c))`, and `0.5 * (erf(..) + 1)` one multiply-add.
//!
//! The first rewrite changes the argument by at most half a unit in the last place, and saves a division that
//! costs as much as the rest of a GELU. It does not apply with `--math strict`. The second is exact, since
//! halving is.

use crate::diag::Result;
use crate::nest::{BinOp, Expr, Kernel, Math, Module, UnOp, visit};
use crate::passes::nest::quantize::fold_requantize::reciprocal_division::number;

/// Runs the pass.
pub fn run(m: &mut Module) -> Result<()> {
    if m.math == Math::Strict {
        return Ok(());
    }
    let has_erf =
        |k: &Kernel| visit::any_expr(&m.kernels[*k].body, &mut |e| matches!(e, Expr::Un(UnOp::Erf, _)));
    for k in visit::calls(&m.driver).into_iter().filter(has_erf).collect::<Vec<_>>() {
        let body = std::mem::take(&mut m.kernels[k].body);
        m.kernels[k].body = body.into_iter().map(|s| s.map_exprs(&mut of_erf)).collect();
    }
    Ok(())
}

fn of_erf(e: Expr) -> Expr {
    let product = |x: Expr| match x {
        Expr::Bin(BinOp::Div, x, by) => match number(&by) {
            Some(c) => *x * Expr::f32(1.0 / c),
            None => Expr::Bin(BinOp::Div, x, by),
        },
        x => x,
    };
    e.rewrite(&mut |e| match e {
        Expr::Un(UnOp::Erf, x) => Expr::un(UnOp::Erf, product(*x)),
        Expr::Let { reg, value, body } if *body == Expr::un(UnOp::Erf, Expr::Reg(reg)) => {
            Expr::Let { reg, value: Box::new(product(*value)), body }
        }
        Expr::Bin(BinOp::Mul, x, y) if is(&x, 0.5) => halved(*y).unwrap_or_else(|y| *x * y),
        Expr::Bin(BinOp::Mul, x, y) if is(&y, 0.5) => halved(*x).unwrap_or_else(|x| x * *y),
        e => e,
    })
}

/// True for the constant `x`.
fn is(e: &Expr, x: f32) -> bool {
    number(e) == Some(x)
}

/// Half of erf(..) + 1, or of a product with that factor.
fn halved(e: Expr) -> std::result::Result<Expr, Expr> {
    let erf = |e: &Expr| {
        matches!(e, Expr::Un(UnOp::Erf, _))
            || matches!(e, Expr::Let { body, .. } if matches!(**body, Expr::Un(UnOp::Erf, _)))
    };
    match e {
        Expr::Bin(BinOp::Add, x, y) if erf(&x) && is(&y, 1.0) => {
            Ok(Expr::fma(*x, Expr::f32(0.5), Expr::f32(0.5)))
        }
        Expr::Bin(BinOp::Add, x, y) if erf(&y) && is(&x, 1.0) => {
            Ok(Expr::fma(*y, Expr::f32(0.5), Expr::f32(0.5)))
        }
        Expr::Bin(BinOp::Mul, x, y) => match halved(*y) {
            Ok(y) => Ok(*x * y),
            Err(y) => halved(*x).map(|x| x * y.clone()).map_err(|x| x * y),
        },
        e => Err(e),
    }
}
