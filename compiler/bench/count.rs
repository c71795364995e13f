//! What a kernel does, counted on its nest: arithmetic operations, and bytes that it must move.

use crate::nest::{BinOp, Buf, Expr, Kernel, Module, Reg, Stmt, UnOp, visit};
use crate::sym::{Dim, Sym};
use std::collections::{HashMap, HashSet};

/// Loops whose inner bounds depend on their variable are walked; beyond so many iterations, that many samples stand for all.
const SAMPLES: i64 = 256;

/// Amounts of one call of a kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Amounts {
    /// Arithmetic on data: one for each operation, two for a multiply-add. Comparisons, choices, conversions and the
    /// arithmetic of indices do not count. Where a condition on data chooses, the longer branch counts.
    pub flops: f64,
    /// Bytes of all buffers read and written, each place once; of a buffer that is read in parts, what the reads cover
    /// at most.
    pub bytes: f64,
}

/// Counts a kernel for given sizes; none where a loop's length is only known at run time.
pub fn kernel(m: &Module, k: Kernel, sizes: &HashMap<Sym, i64>) -> Option<Amounts> {
    let mut lanes = HashMap::new();
    visit::walk(&m.kernels[k].body, &mut |s| {
        if let Stmt::Acc { reg, lanes: n, .. } = s {
            lanes.insert(*reg, *n);
        }
    });
    let mut c = Counter { m, env: sizes.clone(), lanes, walked: sizes.keys().copied().collect(), flops: 0.0, accesses: HashMap::new(), data: HashMap::new() };
    c.body(&m.kernels[k].body, 1.0)?;
    let mut bytes = 0.0;
    for (b, n) in &c.accesses {
        let d = &m.bufs[*b];
        let size = d.dims.iter().try_fold(1.0, |n, d| Some(n * c.eval(*d)? as f64))?;
        bytes += n.min(size) * f64::from(d.ty.bits()) / 8.0;
    }
    Some(Amounts { flops: c.flops, bytes })
}

struct Counter<'a> {
    m: &'a Module,
    env: HashMap<Sym, i64>,
    lanes: HashMap<Reg, u32>,
    /// Symbols whose value in `env` stands for itself: sizes, and variables of loops that are walked.
    walked: HashSet<Sym>,
    flops: f64,
    /// Elements read or written by storage, repeated ones included.
    accesses: HashMap<Buf, f64>,
    /// Registers and whether they hold data (or an index).
    data: HashMap<Reg, bool>,
}

impl Counter<'_> {
    fn eval(&self, d: Dim) -> Option<i64> {
        d.eval(&|s| self.env.get(&s).copied())
    }
    fn body(&mut self, body: &[Stmt], times: f64) -> Option<()> {
        body.iter().try_for_each(|s| self.stmt(s, times))
    }
    fn stmt(&mut self, s: &Stmt, times: f64) -> Option<()> {
        match s {
            Stmt::For { var, lo, hi, body, .. } => self.repeat(*var, *lo, *hi, body, times),
            Stmt::If { cond, then, els } => {
                self.expr(cond, times);
                if let Some(truth) = self.truth(cond) {
                    return self.body(if truth { then } else { els }, times);
                }
                let before = self.flops;
                self.body(then, times)?;
                let after_then = self.flops;
                self.flops = before;
                self.body(els, times)?;
                self.flops = self.flops.max(after_then);
                Some(())
            }
            Stmt::While { .. } => None,
            Stmt::With { sym, value, extent, body } => {
                self.expr(value, times);
                let middle = self.eval(*extent)? / 2;
                self.env.insert(*sym, middle);
                let r = self.body(body, times);
                self.env.remove(sym);
                r
            }
            Stmt::Store { buf, value, .. } => {
                *self.accesses.entry(self.m.storage(*buf)).or_default() += times;
                self.expr(value, times);
                Some(())
            }
            Stmt::Let { reg, value } => {
                let is_data = self.expr(value, times);
                self.data.insert(*reg, is_data);
                Some(())
            }
            Stmt::Acc { init: e, .. } | Stmt::Set { value: e, .. } | Stmt::Check { cond: e, .. } | Stmt::Define { value: e, .. } => {
                self.expr(e, times);
                Some(())
            }
            Stmt::Prefetch { .. } => Some(()),
            Stmt::Call(_) | Stmt::Foreign(_) => None,
        }
    }
    fn repeat(&mut self, var: Sym, lo: Dim, hi: Dim, body: &[Stmt], times: f64) -> Option<()> {
        let (lo, hi) = (self.eval(lo)?, self.eval(hi)?);
        let trip = (hi - lo).max(0);
        if trip == 0 {
            return Some(());
        }
        let mut depends = false;
        visit::walk(body, &mut |s| match s {
            Stmt::For { lo, hi, .. } => depends |= lo.contains(var) || hi.contains(var),
            Stmt::If { cond, .. } => cond.walk(&mut |e| depends |= matches!(e, Expr::Index(d) if d.contains(var))),
            _ => {}
        });
        let samples = if depends { trip.min(SAMPLES) } else { 1 };
        for i in 0..samples {
            // The middle of each of equal parts.
            self.env.insert(var, lo + ((2 * i + 1) * trip / (2 * samples)).min(trip - 1));
            if depends {
                self.walked.insert(var);
            }
            self.body(body, times * trip as f64 / samples as f64)?;
        }
        self.env.remove(&var);
        self.walked.remove(&var);
        Some(())
    }
    /// A condition on indices, if it is the same for all iterations that the current ones stand for.
    fn truth(&self, e: &Expr) -> Option<bool> {
        let index = |e: &Expr| match e {
            Expr::Index(d) if d.syms().iter().all(|s| self.walked.contains(s)) => self.eval(*d),
            Expr::Const(c) if c.ty.is_int() => Some(c.to_i64()),
            _ => None,
        };
        match e {
            Expr::Un(UnOp::Not, a) => self.truth(a).map(|t| !t),
            Expr::Bin(BinOp::And, a, b) => Some(self.truth(a)? && self.truth(b)?),
            Expr::Bin(BinOp::Or, a, b) => Some(self.truth(a)? || self.truth(b)?),
            Expr::Bin(op, a, b) if op.is_comparison() => Some(op.holds(index(a)?, index(b)?)),
            _ => None,
        }
    }
    /// Counts an expression; true if it is made of data rather than of indices and constants.
    fn expr(&mut self, e: &Expr, times: f64) -> bool {
        let op = |c: &mut Self, is_data: bool, n: f64| {
            if is_data {
                c.flops += n * times;
            }
            is_data
        };
        match e {
            Expr::Const(_) | Expr::Index(_) | Expr::Address(_) => false,
            Expr::Reg(r) => self.data.get(r).copied().unwrap_or(true),
            Expr::Acc { .. } => true,
            Expr::Horizontal { reg, .. } => {
                let lanes = self.lanes.get(reg).copied().unwrap_or(1);
                op(self, true, f64::from(lanes.saturating_sub(1)))
            }
            Expr::Load { buf, .. } => {
                *self.accesses.entry(self.m.storage(*buf)).or_default() += times;
                true
            }
            Expr::Cast(_, a) => self.expr(a, times),
            Expr::Text(_, v) => v.iter().fold(false, |d, e| d | self.expr(e, times)),
            Expr::Un(u, a) => {
                let d = self.expr(a, times);
                let free = matches!(u, UnOp::Not | UnOp::BitNot | UnOp::IsNan | UnOp::IsInf | UnOp::Bits(_) | UnOp::Neg | UnOp::Abs);
                op(self, d, if free { 0.0 } else { 1.0 })
            }
            Expr::Bin(b, x, y) => {
                let d = self.expr(x, times) | self.expr(y, times);
                op(self, d, if b.is_comparison() { 0.0 } else { 1.0 })
            }
            Expr::Fma(x, y, z) => {
                let d = self.expr(x, times) | self.expr(y, times) | self.expr(z, times);
                op(self, d, 2.0)
            }
            Expr::Dot(x, y, z) => {
                let d = self.expr(x, times) | self.expr(y, times) | self.expr(z, times);
                op(self, d, if self.m.type_of(z).is_float() { 4.0 } else { 8.0 })
            }
            Expr::Select(c, x, y) => {
                let d = self.expr(c, times);
                let before = self.flops;
                let x = self.expr(x, times);
                let after = self.flops;
                self.flops = before;
                let y = self.expr(y, times);
                self.flops = self.flops.max(after);
                d | x | y
            }
            Expr::Let { reg, value, body } => {
                let d = self.expr(value, times);
                self.data.insert(*reg, d);
                self.expr(body, times)
            }
            Expr::With { value, body, .. } => {
                self.expr(value, times);
                self.expr(body, times)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::{OptLevel, Options};

    fn counts(text: &str, opt: OptLevel) -> Vec<Amounts> {
        let source = crate::onnx::Source { name: "t.onnx".into(), bytes: text.as_bytes().to_vec().into(), folder: None };
        let c = crate::pipeline::compile(&source, &Options { opt, ..Options::default() }).expect("compiles");
        let m = &c.unscheduled;
        let sizes = m.dim_params.iter().map(|s| (*s, 5)).collect();
        visit::calls(&m.driver).into_iter().filter_map(|k| kernel(m, k, &sizes)).collect()
    }

    #[test]
    fn a_product_counts_two_for_each_multiply_add() {
        let text = "<ir_version: 8, opset_import: [\"\" : 17]>\ng (float[N, 24] x, float[24, 40] w) => (float[N, 40] y) { y = MatMul (x, w) }\n";
        for opt in [OptLevel::O0, OptLevel::O2] {
            let total = counts(text, opt).iter().map(|a| a.flops).sum::<f64>();
            let want = 2.0 * 5.0 * 24.0 * 40.0;
            assert_eq!(total, want, "{opt:?}");
        }
    }

    #[test]
    fn elementwise_bytes_are_those_of_the_buffers() {
        let text = "<ir_version: 8, opset_import: [\"\" : 17]>\ng (float[N, 24] x, float[24] b) => (float[N, 24] y) { y = Add (x, b) }\n";
        let a = counts(text, OptLevel::O2);
        assert_eq!(a, [Amounts { flops: 120.0, bytes: 4.0 * (120.0 + 24.0 + 120.0) }]);
    }
}
