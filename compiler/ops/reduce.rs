//! Reductions along axes: Reduce*, ArgMax, ArgMin, CumSum is elsewhere.
//!
//! | versions | axes |
//! |---|---|
//! | 1, 11, 13 (ReduceSum: 1, 11) | attribute `axes` (11: negative too); none means all |
//! | 18 (ReduceSum: 13) | input; `noop_with_empty_axes` |
//!
//! Over nothing: sums 0, products 1, Min/Max the type's extremes, LogSum and LogSumExp -inf, Mean NaN.

use super::{Attrs, InferCx, Known, LowerCx, Operator, runtime};
use crate::diag::{Result, codes};
use crate::nest::{BinOp, Buf, Expr, KernelBuilder, LoopKind, Scalar, UnOp};
use crate::sym::{Dim, SymTable};
use crate::tensor::ElemType;

/// Which reduction.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Kind {
    Sum,
    Mean,
    Prod,
    Max,
    Min,
    L1,
    L2,
    LogSum,
    LogSumExp,
    SumSquare,
    /// Position of the largest (or smallest); the last of equal ones if set.
    Arg {
        max: bool,
        last: bool,
    },
}

/// A reduction.
#[derive(Clone, Debug, PartialEq)]
pub struct Reduce {
    /// What it computes.
    pub kind: Kind,
    /// Axes of the attribute.
    pub axes: Option<Vec<i64>>,
    /// Reduced axes stay with size 1.
    pub keepdims: bool,
    /// An empty list of axes means none instead of all.
    pub noop: bool,
}

const KINDS: &[(&str, Kind)] = &[
    ("ReduceSum", Kind::Sum),
    ("ReduceMean", Kind::Mean),
    ("ReduceProd", Kind::Prod),
    ("ReduceMax", Kind::Max),
    ("ReduceMin", Kind::Min),
    ("ReduceL1", Kind::L1),
    ("ReduceL2", Kind::L2),
    ("ReduceLogSum", Kind::LogSum),
    ("ReduceLogSumExp", Kind::LogSumExp),
    ("ReduceSumSquare", Kind::SumSquare),
];

impl Operator for Reduce {
    const OPS: &'static [&'static str] =
        &["ReduceSum", "ReduceMean", "ReduceProd", "ReduceMax", "ReduceMin", "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare", "ArgMax", "ArgMin"];
    fn parse(a: &mut Attrs) -> Result<Self> {
        let keepdims = a.flag("keepdims", true)?;
        match KINDS.iter().find(|(n, _)| *n == a.op()) {
            Some((_, kind)) => Ok(Reduce { kind: *kind, axes: a.ints_opt("axes")?, keepdims, noop: a.flag("noop_with_empty_axes", false)? }),
            None => {
                let kind = Kind::Arg { max: a.op() == "ArgMax", last: a.flag("select_last_index", false)? };
                Ok(Reduce { kind, axes: Some(vec![a.int("axis", 0)?]), keepdims, noop: false })
            }
        }
    }
    fn infer(&self, cx: &mut InferCx) -> Result<()> {
        let t = cx.tensor(0)?.clone();
        if let (None, Some(d), Some(n @ 1..)) = (&self.axes, runtime::declared_for(cx, 1, 0), runtime::length(cx, 1)) {
            return match self.axis_sets(cx.syms, &t.dims, &d, n) {
                Some(sets) if !sets.is_empty() => {
                    cx.set(0, t.elem, d);
                    Ok(())
                }
                Some(_) => cx.error(codes::OP_SHAPE, format!("no {n} axes lead to the declared shape of the result")).fail(),
                None => cx.error(codes::DYNAMIC_VALUE, "the axes (input 1) are only known at run time").fail(),
            };
        }
        let list = match &self.axes {
            Some(a) => a.clone(),
            None if runtime::length(cx, 1) == Some(0) => vec![],
            None if cx.has(1) => cx.need_ints(1, "the axes")?,
            None => vec![],
        };
        for a in &list {
            cx.axis(*a, t.rank())?;
        }
        let reduced = self.reduced(&list, t.rank());
        let dims = (0..t.rank()).filter_map(|d| if !reduced[d] { Some(t.dims[d]) } else { self.keepdims.then(|| Dim::constant(1)) }).collect::<Vec<_>>();
        if let Kind::Arg { .. } = self.kind {
            if list.iter().any(|a| t.dims[cx.axis(*a, t.rank()).unwrap_or(0)].as_const() == Some(0)) {
                return cx.error(codes::OP_SHAPE, "the axis is empty").fail();
            }
            for a in &list {
                let d = t.dims[cx.axis(*a, t.rank())?];
                cx.syms.require_at_most(Dim::constant(1), d);
            }
            cx.set(0, ElemType::I64, dims);
            return Ok(());
        }
        let known = match (cx.dims_value(0), self.kind) {
            (Some(v), Kind::Prod) if reduced.iter().all(|r| *r) && dims.len() <= 1 => Known::Dims(vec![Dim::product(v)]),
            (Some(v), Kind::Sum) if reduced.iter().all(|r| *r) && dims.len() <= 1 => Known::Dims(vec![Dim::sum(v)]),
            (Some(v), Kind::Max) if reduced.iter().all(|r| *r) && dims.len() <= 1 && !v.is_empty() => Known::Dims(vec![v.into_iter().reduce(Dim::max).unwrap_or_default()]),
            _ => Known::No,
        };
        cx.set_known(0, t.elem, dims, known);
        Ok(())
    }
    fn lower(&self, cx: &mut LowerCx) -> Result<()> {
        let (x, y) = (cx.input(0), cx.output(0));
        let from = cx.dims(x);
        let list = self.axes.clone().or_else(|| cx.ints_value(1)).unwrap_or_default();
        let reduced = self.reduced(&list, from.len());
        if let Kind::Arg { max, last } = self.kind {
            return self.lower_arg(cx, &reduced, max, last);
        }
        let sets = match (&self.axes, cx.input_opt(1)) {
            (None, Some(b)) if cx.dims_value(1).is_none() => {
                let n = runtime::count(&cx.dims(b)).unwrap_or(0);
                if n > 0 { Some((b, self.axis_sets(&cx.m.syms, &from, &cx.dims(y), n).unwrap_or_default())) } else { None }
            }
            _ => None,
        };
        let rank = from.len();
        cx.kernel(|k| match sets {
            None => self.nest(k, x, y, &reduced),
            Some((axes, sets)) => {
                let found = runtime::names_any(k, axes, &sets, rank);
                runtime::check(k, found);
                // Axes of size 1 make no difference: one nest for the sets that agree in the others.
                let essential = |s: &[usize]| -> Vec<usize> { s.iter().copied().filter(|d| from[*d].as_const() != Some(1)).collect() };
                let mut kinds: Vec<Vec<usize>> = sets.iter().map(|s| essential(s)).collect();
                kinds.sort();
                kinds.dedup();
                for kind in &kinds {
                    let same: Vec<Vec<usize>> = sets.iter().filter(|s| essential(s) == *kind).cloned().collect();
                    let reduced: Vec<bool> = (0..rank).map(|d| same[0].contains(&d)).collect();
                    if kinds.len() == 1 {
                        self.nest(k, x, y, &reduced);
                    } else {
                        let cond = runtime::names_any(k, axes, &same, rank);
                        k.if_(cond, |k| self.nest(k, x, y, &reduced));
                    }
                }
            }
        });
        Ok(())
    }
}

fn through_f64(ty: ElemType, op: UnOp, v: Expr) -> Expr {
    Expr::cast(ElemType::F64, ty, Expr::un(op, Expr::cast(ty, ElemType::F64, v)))
}

/// Index into the input from the index of the output and that of the reduced axes.
fn join(reduced: &[bool], keep: bool, at: &[Dim], rest: &[Dim]) -> Vec<Dim> {
    let (mut o, mut r) = (0, 0);
    reduced
        .iter()
        .map(|red| {
            if *red {
                r += 1;
                o += usize::from(keep);
                rest[r - 1]
            } else {
                o += 1;
                at[o - 1]
            }
        })
        .collect()
}

impl Reduce {
    fn reduced(&self, list: &[i64], rank: usize) -> Vec<bool> {
        let all = list.is_empty() && !self.noop;
        (0..rank as i64).map(|d| all || list.iter().any(|a| *a == d || a + rank as i64 == d)).collect()
    }
    /// Sets of `n` axes that lead to the declared shape.
    fn axis_sets(&self, syms: &SymTable, from: &[Dim], to: &[Dim], n: usize) -> Option<Vec<Vec<usize>>> {
        if self.keepdims { runtime::axes_to_one(syms, from, to, n) } else { runtime::axes_between(syms, from, to, n, |_| true) }
    }
    fn nest(&self, k: &mut KernelBuilder, x: Buf, y: Buf, reduced: &[bool]) {
        let kind = self.kind;
        let ty = k.m.bufs[x].ty.compute();
        let from = k.m.bufs[x].dims.clone();
        let out = k.m.bufs[y].dims.clone();
        let inner: Vec<Dim> = from.iter().zip(reduced).filter(|(_, r)| **r).map(|(d, _)| *d).collect();
        let count = Dim::product(inner.iter().copied());
        let keep = self.keepdims;
        k.nest(LoopKind::Par, &out, |k, at| {
            let position = |rest: &[Dim]| join(reduced, keep, at, rest);
            // LogSumExp subtracts the largest value first.
            let top = (kind == Kind::LogSumExp).then(|| {
                let top = k.acc(Scalar::lowest(ty).into());
                k.nest(LoopKind::Seq, &inner, |k, r| {
                    let v = k.load(x, &position(r));
                    k.update(BinOp::Max, top, v);
                });
                let inf = Expr::bin(BinOp::Eq, Expr::un(UnOp::Abs, Expr::acc(top)), Expr::num(ty, f64::INFINITY));
                k.let_(Expr::select(inf, Expr::num(ty, 0.0), Expr::acc(top)))
            });
            let (op, init) = match kind {
                Kind::Prod => (BinOp::Mul, Scalar::from_f64(ty, 1.0)),
                Kind::Max => (BinOp::Max, Scalar::lowest(ty)),
                Kind::Min => (BinOp::Min, Scalar::highest(ty)),
                _ => (BinOp::Add, Scalar::from_f64(ty, 0.0)),
            };
            let acc = k.acc(init.into());
            k.nest(LoopKind::Seq, &inner, |k, r| {
                let v = k.load(x, &position(r));
                let v = match kind {
                    Kind::L1 => Expr::un(UnOp::Abs, v),
                    Kind::L2 | Kind::SumSquare => k.shared(v, |_, v| v.clone() * v),
                    Kind::LogSumExp => Expr::un(UnOp::Exp, v - top.clone().unwrap_or(Expr::num(ty, 0.0))),
                    _ => v,
                };
                k.update(op, acc, v);
            });
            let v = Expr::acc(acc);
            let v = match kind {
                Kind::Mean => v / Expr::cast(ElemType::I64, ty, Expr::index(count)),
                Kind::L2 if ty.is_float() => Expr::un(UnOp::Sqrt, v),
                Kind::L2 => through_f64(ty, UnOp::Sqrt, v),
                Kind::LogSum | Kind::LogSumExp if !ty.is_float() => through_f64(ty, UnOp::Log, v),
                Kind::LogSum => Expr::un(UnOp::Log, v),
                Kind::LogSumExp => Expr::un(UnOp::Log, v) + top.unwrap_or(Expr::num(ty, 0.0)),
                _ => v,
            };
            k.store(y, at, v);
        });
    }
    fn lower_arg(&self, cx: &mut LowerCx, reduced: &[bool], max: bool, last: bool) -> Result<()> {
        let (x, y) = (cx.input(0), cx.output(0));
        let from = cx.dims(x);
        let out = cx.dims(y);
        let Some(axis) = reduced.iter().position(|r| *r) else { return cx.bug("no axis") };
        let keep = self.keepdims;
        let op = match (max, last) {
            (true, false) => BinOp::Gt,
            (true, true) => BinOp::Ge,
            (false, false) => BinOp::Lt,
            (false, true) => BinOp::Le,
        };
        cx.kernel(|k| {
            k.nest(LoopKind::Par, &out, |k, at| {
                let first = k.load(x, &join(reduced, keep, at, &[Dim::constant(0)]));
                let best = k.acc(first);
                let pos = k.acc(Expr::int(ElemType::I64, 0));
                k.nest(LoopKind::Seq, &[from[axis]], |k, r| {
                    let v = k.load(x, &join(reduced, keep, at, r));
                    let v = k.let_(v);
                    let better = Expr::bin(op, v.clone(), Expr::acc(best));
                    let better = k.let_(better);
                    k.set(pos, Expr::select(better.clone(), Expr::index(r[0]), Expr::acc(pos)));
                    k.set(best, Expr::select(better, v, Expr::acc(best)));
                });
                k.store(y, at, Expr::acc(pos));
            });
        });
        Ok(())
    }
}
