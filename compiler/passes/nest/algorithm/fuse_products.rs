//! fuse_products: contracts a product and an addition into a fused multiply-add in kernels that reduce rows
//! of floats: the scale and bias of a normalization.
//!
//! The result of such a kernel already depends on the order of the reduction, which passes choose, and
//! omitting the rounding of a product makes it no less exact. The pass does not run with `--math strict`, and
//! leaves maps without reductions alone: these compute the same bits on every CPU.

use crate::diag::Result;
use crate::nest::form::Form;
use crate::nest::{BinOp, Expr, Kernel, Math, Module, Stmt, visit};
use crate::target::Level;
use crate::tensor::ElemType;

/// Runs the pass on levels with short vectors, where arithmetic rather than memory bounds such kernels.
pub fn run(m: &mut Module, level: &Level) -> Result<()> {
    if m.math == Math::Strict || !level.facts.caps.by_lane {
        return Ok(());
    }
    for k in visit::calls(&m.driver).into_iter().filter(|k| sums(m, *k)).collect::<Vec<_>>() {
        let body = std::mem::take(&mut m.kernels[k].body);
        let mut fused = |e: Expr| e.rewrite(&mut |e| fuse(m, e));
        let body = body.into_iter().map(|s| s.map_exprs(&mut fused)).collect();
        m.kernels[k].body = body;
    }
    Ok(())
}

/// True for a row kernel with a floating-point reduction.
fn sums(m: &Module, k: Kernel) -> bool {
    let adds = |s: &Stmt| {
        matches!(s, Stmt::Set { reg, value: Expr::Bin(BinOp::Add, ..) | Expr::Fma(..), .. }
            if m.regs[*reg].ty.is_float())
    };
    !m.kernels[k].scheduled
        && matches!(m.form(k), Form::RowReduction(_))
        && visit::any(&m.kernels[k].body, &mut |s| adds(s))
}

/// Contracts additions of products to fused multiply-adds.
fn fuse(m: &Module, e: Expr) -> Expr {
    match e {
        Expr::Bin(BinOp::Add, x, y) if matches!(m.type_of(&x), ElemType::F32 | ElemType::F64) => {
            match (*x, *y) {
                (Expr::Bin(BinOp::Mul, a, b), c) | (c, Expr::Bin(BinOp::Mul, a, b)) => Expr::fma(*a, *b, c),
                (x, y) => x + y,
            }
        }
        e => e,
    }
}
