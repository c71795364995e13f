//! What the driver of a bound model calls: its branches, as sizes and addresses decide them.

use super::{Bound, Step};
use crate::codegen::clif::entry;
use crate::nest::{BinOp, Expr, LoopKind, Module, Stmt};
use crate::sym::Dim;

impl Bound<'_> {
    /// Adds the driver's calls in order, those of the branches that sizes and addresses choose; none if it
    /// does more than that.
    pub(super) fn plan(
        &self,
        m: &Module,
        driver: &[Stmt],
        eval: &dyn Fn(Dim) -> Option<i64>,
        steps: &mut Vec<Step>,
    ) -> Option<()> {
        let most = self.exec.map_or(0, |e| e.as_raw().max_tasks as i64);
        for s in driver {
            let k = match s {
                Stmt::Check { .. } => continue,
                Stmt::If { cond, then, els } => {
                    self.plan(m, if self.truth(m, cond, eval)? { then } else { els }, eval, steps)?;
                    continue;
                }
                Stmt::Call(k) => *k,
                _ => return None,
            };
            let data = &m.kernels[k];
            let trip = match data.body.as_slice() {
                [Stmt::For { kind: LoopKind::Par, lo, hi, .. }] => Some(eval(*hi - *lo)?),
                _ => None,
            };
            let tasks = match (trip, self.pool) {
                (Some(n), Some(_)) => entry::tasks(eval(data.work)?, n, most),
                _ => 1,
            };
            steps.push(Step {
                kernel: k,
                address: *self.code.kernels.get(&k)?,
                trip: trip.unwrap_or(1),
                tasks,
            });
        }
        Some(())
    }
    /// A condition, if sizes or the addresses of inputs and outputs decide it.
    fn truth(&self, m: &Module, cond: &Expr, eval: &dyn Fn(Dim) -> Option<i64>) -> Option<bool> {
        let address = |e: &Expr| match e {
            Expr::Address(b) => {
                let (i, o) = (m.inputs.iter().position(|x| x == b), m.outputs.iter().position(|x| x == b));
                i.map(|i| self.inputs[i] as usize).or_else(|| o.map(|o| self.outputs[o] as usize))
            }
            Expr::Const(c) => usize::try_from(c.to_i64()).ok(),
            _ => None,
        };
        match cond {
            Expr::Bin(BinOp::Ne, a, b) if matches!(**a, Expr::Address(_)) => Some(address(a)? != address(b)?),
            _ => cond.truth(eval),
        }
    }
}
