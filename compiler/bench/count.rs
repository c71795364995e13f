//! The work of a kernel, counted on its nest: arithmetic operations, and the bytes that it must move.

use crate::nest::{Buf, Expr, Kernel, Module, Reg, Stmt, UnOp, visit};
use crate::sym::{Dim, Sym};
use crate::tensor::ElemType;
use std::collections::{HashMap, HashSet};

/// Iterations of a loop that are counted one by one if inner bounds depend on its variable. A longer loop is
/// sampled at this many of them.
const SAMPLES: i64 = 256;

/// Amounts per call of a kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Amounts {
    /// Arithmetic on data: one for each operation, two for a multiply-add. Comparisons, selects, conversions
    /// and index arithmetic do not count. For a condition on data, the more expensive branch counts.
    pub flops: f64,
    /// Bytes of all buffers read and written, each element once. For a buffer that is accessed in parts, at
    /// most the bytes of the accesses.
    pub bytes: f64,
    /// The operations in units of the measured peak, which is for f32: those on 64-bit elements count as two.
    pub lanes: f64,
}

impl std::ops::Add for Amounts {
    type Output = Amounts;
    fn add(self, o: Amounts) -> Amounts {
        Amounts { flops: self.flops + o.flops, bytes: self.bytes + o.bytes, lanes: self.lanes + o.lanes }
    }
}

/// The work of a schedule's kernels, counted on the nests before scheduling: packing and padding do not
/// count. If the schedule merged kernels, the result has the work of all of them, without the bytes of the
/// buffers between them. A kernel that the schedule added only moves bytes. `None` if a trip count is known
/// only at run time.
pub fn scheduled(
    before: &Module,
    after: &Module,
    kernels: &[Kernel],
    sizes: &HashMap<Sym, i64>,
) -> Vec<Option<Amounts>> {
    let merged = merged(before, after);
    let written: HashSet<Buf> =
        visit::calls(&after.driver).into_iter().flat_map(|k| stored(after, k)).collect();
    let count = |k: &Kernel| {
        if !before.kernels.is_valid(*k) {
            return Some(Amounts { flops: 0.0, lanes: 0.0, ..group(after, &[*k], sizes, &|_| true)? });
        }
        let all: Vec<Kernel> = merged.get(k).into_iter().flatten().copied().chain([*k]).collect();
        let between: HashSet<Buf> =
            all.iter().flat_map(|k| stored(before, *k)).filter(|b| !written.contains(b)).collect();
        group(before, &all, sizes, &|b| all.len() == 1 || !between.contains(&b))
    };
    kernels.iter().map(count).collect()
}

fn stored(m: &Module, k: Kernel) -> Vec<Buf> {
    visit::stores(&m.kernels[k].body).into_iter().map(|b| m.storage(b)).collect()
}

/// Maps each kernel of a schedule to the former kernels that were merged into it. A former kernel without a
/// call is attributed to the kernel that stores its result, or else to one that reads it.
fn merged(before: &Module, after: &Module) -> HashMap<Kernel, Vec<Kernel>> {
    let kept: Vec<Kernel> =
        visit::calls(&after.driver).into_iter().filter(|k| before.kernels.is_valid(*k)).collect();
    let mut heir: HashMap<Kernel, Kernel> = kept.iter().map(|k| (*k, *k)).collect();
    let writers: HashMap<Buf, Kernel> =
        kept.iter().flat_map(|k| stored(after, *k).into_iter().map(|b| (b, *k))).collect();
    let order = visit::calls(&before.driver);
    let mut out: HashMap<Kernel, Vec<Kernel>> = HashMap::new();
    // Readers come after writers, so in reverse order their kernels are known before the writer needs them.
    for k in order.iter().rev() {
        if heir.contains_key(k) {
            continue;
        }
        let results = stored(before, *k);
        let reads = |r: &&Kernel| {
            visit::loads(&before.kernels[**r].body).iter().any(|b| results.contains(&before.storage(*b)))
        };
        let to = results
            .iter()
            .find_map(|b| writers.get(b))
            .or_else(|| order.iter().filter(reads).find_map(|r| heir.get(r)))
            .copied();
        if let Some(to) = to {
            heir.insert(*k, to);
            out.entry(to).or_default().push(*k);
        }
    }
    out
}

/// Counts kernels together, without the bytes of buffers that are not `kept`.
fn group(
    m: &Module,
    kernels: &[Kernel],
    sizes: &HashMap<Sym, i64>,
    kept: &dyn Fn(Buf) -> bool,
) -> Option<Amounts> {
    let (mut total, mut accesses) = (Amounts::default(), HashMap::new());
    for k in kernels {
        let body = &m.kernels[*k].body;
        let mut lanes = HashMap::new();
        visit::walk(body, &mut |s| {
            if let Stmt::Acc { reg, lanes: n, .. } = s {
                lanes.insert(*reg, *n);
            }
        });
        let env = m.syms.with_derived(sizes);
        let mut c = Counter {
            m,
            walked: env.keys().copied().collect(),
            env,
            lanes,
            flops: 0.0,
            accesses,
            data: HashMap::new(),
        };
        c.body(body, 1.0)?;
        total = total
            + Amounts {
                flops: c.flops,
                bytes: 0.0,
                lanes: c.flops * if computes_doubles(m, body) { 2.0 } else { 1.0 },
            };
        accesses = c.accesses;
    }
    for (b, n) in accesses.into_iter().filter(|(b, _)| kept(*b)) {
        let d = &m.bufs[b];
        let size = d
            .dims
            .iter()
            .try_fold(1.0, |n, d| Some(n * m.syms.expanded(*d).eval(&|s| sizes.get(&s).copied())? as f64))?;
        total.bytes += n.min(size) * f64::from(d.ty.bits()) / 8.0;
    }
    Some(total)
}

/// True if a body stores f64.
fn computes_doubles(m: &Module, body: &[Stmt]) -> bool {
    visit::stores(body).iter().any(|b| m.bufs[*b].ty == ElemType::F64)
}

struct Counter<'a> {
    m: &'a Module,
    env: HashMap<Sym, i64>,
    lanes: HashMap<Reg, u32>,
    /// Symbols whose value in `env` is exact: sizes, and variables of loops that are walked. The value of
    /// another symbol represents its whole range.
    walked: HashSet<Sym>,
    flops: f64,
    /// Number of elements read or written, by storage and with repetitions.
    accesses: HashMap<Buf, f64>,
    /// True for registers that hold data, false for an index.
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
            Stmt::Tile { body } => self.body(body, times),
            Stmt::While { .. } => None,
            Stmt::With { sym, value, extent, body } => {
                self.expr(value, times);
                // An index that depends on data is assumed to be in the middle.
                let known = if let Expr::Index(d) = value { self.eval(*d) } else { None };
                let at = known.map_or_else(|| self.eval(*extent).map(|n| n / 2), Some)?;
                self.env.insert(*sym, at);
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
            Stmt::Acc { init: e, .. }
            | Stmt::Set { value: e, .. }
            | Stmt::Check { cond: e, .. }
            | Stmt::Define { value: e, .. } => {
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
            Stmt::If { cond: e, .. } | Stmt::With { value: e, .. } => {
                e.walk(&mut |e| depends |= matches!(e, Expr::Index(d) if d.contains(var)))
            }
            _ => {}
        });
        let samples = if depends { trip.min(SAMPLES) } else { 1 };
        for i in 0..samples {
            // The midpoint of each of `samples` equal parts.
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
    /// The value of a condition on indices, if it is the same for all iterations that `env` represents.
    fn truth(&self, e: &Expr) -> Option<bool> {
        e.truth(&|d| d.syms().iter().all(|s| self.walked.contains(s)).then(|| self.eval(d)).flatten())
    }
    /// A factor of a product. A sum of two elements is not counted: it is computed once for all rows of a
    /// tile, and is small compared with their products.
    fn factor(&mut self, e: &Expr, times: f64) -> bool {
        match e {
            Expr::Bin(_, x, y) if matches!((&**x, &**y), (Expr::Load { .. }, Expr::Load { .. })) => {
                self.expr(x, times) | self.expr(y, times)
            }
            e => self.expr(e, times),
        }
    }
    /// Counts an expression. True if it depends on data, not only on indices and constants.
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
                let free = matches!(
                    u,
                    UnOp::Not
                        | UnOp::BitNot
                        | UnOp::IsNan
                        | UnOp::IsInf
                        | UnOp::Bits(_)
                        | UnOp::Neg
                        | UnOp::Abs
                );
                op(self, d, if free { 0.0 } else { 1.0 })
            }
            Expr::Bin(b, x, y) => {
                let d = self.expr(x, times) | self.expr(y, times);
                op(self, d, if b.is_comparison() { 0.0 } else { 1.0 })
            }
            Expr::Fma(x, y, z) => {
                let d = self.expr(x, times) | self.factor(y, times) | self.expr(z, times);
                op(self, d, 2.0)
            }
            Expr::Dot(g, x, y, z) => {
                let d = self.expr(x, times) | self.expr(y, times) | self.expr(z, times);
                op(self, d, 2.0 * g.size() as f64)
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
        let source = crate::onnx::Source {
            name: "t.onnx".into(),
            bytes: text.as_bytes().to_vec().into(),
            folder: None,
        };
        let c = crate::pipeline::compile(&source, &Options { opt, ..Options::default() }).expect("compiles");
        let m = &c.unscheduled;
        let sizes = m.dim_params.iter().map(|s| (*s, 5)).collect();
        let last = c.modules.last().expect("a level");
        scheduled(m, last, &visit::calls(&last.driver), &sizes).into_iter().flatten().collect()
    }

    #[test]
    fn a_product_counts_two_for_each_multiply_add() {
        let text = "<ir_version: 8, opset_import: [\"\" : 17]>\ng (float[N, 24] x, float[24, 40] w) => \
            (float[N, 40] y) { y = MatMul (x, w) }\n";
        for opt in [OptLevel::O0, OptLevel::O2] {
            let total = counts(text, opt).iter().map(|a| a.flops).sum::<f64>();
            let want = 2.0 * 5.0 * 24.0 * 40.0;
            assert_eq!(total, want, "{opt:?}");
        }
    }

    #[test]
    fn elementwise_bytes_are_those_of_the_buffers() {
        let text = "<ir_version: 8, opset_import: [\"\" : 17]>\ng (float[N, 24] x, float[24] b) => \
            (float[N, 24] y) { y = Add (x, b) }\n";
        let a = counts(text, OptLevel::O2);
        assert_eq!(a, [Amounts { flops: 120.0, bytes: 4.0 * (120.0 + 24.0 + 120.0), lanes: 120.0 }]);
    }

    #[test]
    fn operations_on_doubles_take_two_lanes() {
        let text = "<ir_version: 8, opset_import: [\"\" : 17]>\ng (double[N, 24] x, double[24] b) => \
            (double[N, 24] y) { y = Add (x, b) }\n";
        let a = counts(text, OptLevel::O2);
        assert_eq!(a, [Amounts { flops: 120.0, bytes: 8.0 * (120.0 + 24.0 + 120.0), lanes: 240.0 }]);
    }

    #[test]
    fn merged_kernels_have_the_work_of_all_and_no_bytes_between_them() {
        let text = "<ir_version: 8, opset_import: [\"\" : 17]>\ng (float[4, 96, 64] q, float[4, 64, 96] k, \
            float[4, 96, 64] v) => (float[4, 96, 64] y) {\n\
            s = MatMul (q, k)\n p = Softmax <axis = -1> (s)\n y = MatMul (p, v)\n}\n";
        let sum = |opt| counts(text, opt).into_iter().fold(Amounts::default(), |s, a| s + a);
        let (apart, merged) = (sum(OptLevel::O0), sum(OptLevel::O2));
        let products = 2.0 * 2.0 * 4.0 * 96.0 * 96.0 * 64.0;
        assert!((1.0..1.2).contains(&(merged.flops / products)), "{merged:?}");
        assert!((1.0..1.2).contains(&(apart.flops / products)), "{apart:?}");
        assert_eq!(merged.bytes, 4.0 * 4.0 * 4.0 * 96.0 * 64.0, "inputs and outputs");
        assert!(apart.bytes > merged.bytes, "{apart:?}");
    }
}
