//! fuse_products: in kernels that sum up rows of floats, a product that is added to something is fused with
//! the sum: the scale and bias of a normalization.
//!
//! What such a kernel stores depends on the order of its sums anyway, which passes choose: without the
//! rounding of one product it is no less exact. `--math strict` does without the pass, and so do maps that no
//! sum goes into: they give the same bits on every CPU.

use crate::diag::Result;
use crate::nest::form::Form;
use crate::nest::{BinOp, Expr, Kernel, Math, Module, Stmt, visit};
use crate::target::Level;
use crate::tensor::ElemType;

/// Runs the pass on levels of which instructions bound what such kernels do, not memory: vectors are short.
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

/// True for rows with a sum of floats.
fn sums(m: &Module, k: Kernel) -> bool {
    let adds = |s: &Stmt| {
        matches!(s, Stmt::Set { reg, value: Expr::Bin(BinOp::Add, ..) | Expr::Fma(..), .. }
            if m.regs[*reg].ty.is_float())
    };
    !m.kernels[k].scheduled
        && matches!(m.form(k), Form::RowReduction(_))
        && visit::any(&m.kernels[k].body, &mut |s| adds(s))
}

/// A sum with a product as one operation.
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
