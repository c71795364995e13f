//! Images whose number of channels only run time knows, read at computed positions: the driver chooses between
//! two versions of the kernel. Vectors of one run along channels, as for a known number of enough channels.
//! The other one reads the image in place, because few channels would leave most of each vector empty.
//!
//! ```text
//! call k                    if C > 8 { call k } else { call k_planes }
//! ```

use super::FEW;
use crate::nest::{BinOp, Expr, Kernel, KernelData, Module, Stmt, visit};
use crate::passes::nest::analysis::shape::fresh_regs;
use crate::sym::Dim;

/// Adds the version for few channels. False if the number of channels is known, or the versions would need
/// more code than the model may have.
pub(super) fn split(m: &mut Module, k: Kernel, channels: Dim) -> bool {
    if channels.as_const().is_some() || !m.optimize.may_grow() {
        return false;
    }
    let body = m.kernels[k].body.to_vec();
    let body = fresh_regs(m, &body);
    let data = &m.kernels[k];
    let planes = KernelData { name: format!("{}_planes", data.name), body: body.into(), ..data.clone() };
    let planes = m.kernels.push(planes);
    let cond = Expr::cmp_index(BinOp::Gt, channels, FEW);
    let choice = Stmt::If { cond, then: vec![Stmt::Call(k)], els: vec![Stmt::Call(planes)] };
    visit::splice_call(&mut m.driver, k, false, vec![choice])
}
