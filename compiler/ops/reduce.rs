//! Reductions along axes: Reduce*, ArgMax, ArgMin. (CumSum is in `cumulate`.)
//!
//! | versions | axes |
//! |---|---|
//! | 1, 11, 13 (ReduceSum: 1, 11) | attribute `axes` (11: negative too); none means all |
//! | 18 (ReduceSum: 13) | input; `noop_with_empty_axes` |
//!
//! Without elements: sums are 0, products 1, Min/Max the type's extremes, LogSum and LogSumExp -inf, Mean
//! NaN.

use super::support::arg::{Arg, Nan, has_positions};
use super::support::runtime;
use super::{Attrs, InferCx, Known, LowerCx, Operator};
use crate::diag::{Result, codes};
use crate::nest::{BinOp, Buf, Expr, KernelBuilder, LoopKind, Scalar, UnOp};
use crate::sym::Dim;
use crate::tensor::{ElemType, TensorType};

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
    /// Position of the largest or smallest element.
    Arg(Arg),
}

/// The index into the input, given those of the output and of the reduced dimensions.
type Position<'a> = &'a dyn Fn(&[Dim], &[Dim]) -> Vec<Dim>;

/// A reduction.
#[derive(Clone, Debug, PartialEq)]
pub struct Reduce {
    /// The function.
    pub kind: Kind,
    /// Axes of the attribute.
    pub axes: Option<Vec<i64>>,
    /// Reduced axes are kept with size 1.
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

impl Reduce {
    /// Infers types if the axes are known only at run time.
    fn infer_late(&self, cx: &mut InferCx, t: &TensorType) -> Result<()> {
        let n = runtime::need_length(cx, 1, "axes")?;
        let rank = if self.keepdims { Some(t.rank()) } else { t.rank().checked_sub(n) };
        let Some(rank) = rank.filter(|_| n <= t.rank()) else {
            return cx.error(codes::OP_SHAPE, format!("{n} axes for rank {}", t.rank())).fail();
        };
        // An empty axis that is kept with size 1 gives more elements than the input has.
        let bound = t.dims.iter().all(|d| cx.syms.is_pos(*d)).then(|| t.count());
        let dims = cx.sizes(0, rank, bound);
        cx.set(0, t.elem, dims);
        Ok(())
    }
    /// The result of reducing a list of sizes.
    fn of_dims(&self, v: Vec<Dim>) -> Option<Dim> {
        match self.kind {
            Kind::Prod => Some(Dim::product(v)),
            Kind::Sum => Some(Dim::sum(v)),
            Kind::Max => v.into_iter().reduce(Dim::max),
            Kind::Min => v.into_iter().reduce(Dim::min),
            _ => None,
        }
    }
}

impl Operator for Reduce {
    const OPS: &'static [&'static str] = &[
        "ReduceSum",
        "ReduceMean",
        "ReduceProd",
        "ReduceMax",
        "ReduceMin",
        "ReduceL1",
        "ReduceL2",
        "ReduceLogSum",
        "ReduceLogSumExp",
        "ReduceSumSquare",
        "ArgMax",
        "ArgMin",
    ];
    fn parse(a: &mut Attrs) -> Result<Self> {
        let keepdims = a.flag("keepdims", true);
        match KINDS.iter().find(|(n, _)| *n == a.op()) {
            Some((_, kind)) => Ok(Reduce {
                kind: *kind,
                axes: a.ints_opt("axes"),
                keepdims,
                noop: a.flag("noop_with_empty_axes", false),
            }),
            None => {
                let kind = Kind::Arg(Arg {
                    max: a.op() == "ArgMax",
                    last: a.flag("select_last_index", false),
                    nan: Nan::First,
                });
                Ok(Reduce { kind, axes: Some(vec![a.int("axis", 0)]), keepdims, noop: false })
            }
        }
    }
    fn infer(&self, cx: &mut InferCx) -> Result<()> {
        let t = cx.tensor(0).clone();
        if self.axes.is_none() && runtime::late(cx, 1) && runtime::length(cx, 1) != Some(0) {
            return self.infer_late(cx, &t);
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
        let dims = (0..t.rank())
            .filter_map(
                |d| if !reduced[d] { Some(t.dims[d]) } else { self.keepdims.then(|| Dim::constant(1)) },
            )
            .collect::<Vec<_>>();
        if let Kind::Arg(_) = self.kind {
            cx.require(
                !list.iter().any(|a| t.dims[cx.axis(*a, t.rank()).unwrap_or(0)].as_const() == Some(0)),
                codes::OP_SHAPE,
                "the axis is empty",
            )?;
            for a in &list {
                let d = t.dims[cx.axis(*a, t.rank())?];
                cx.syms.require_at_most(Dim::constant(1), d);
                // Positions may have 32 bits.
                cx.syms.require_at_most(d, Dim::constant(i32::MAX.into()));
            }
            cx.set(0, ElemType::I64, dims);
            return Ok(());
        }
        let all = reduced.iter().all(|r| *r) && dims.len() <= 1;
        let known = cx.dims_value(0).filter(|_| all).and_then(|v| self.of_dims(v));
        cx.set_known(0, t.elem, dims, known.map_or(Known::No, |d| Known::Dims(vec![d])));
        Ok(())
    }
    fn lower(&self, cx: &mut LowerCx) -> Result<()> {
        let (x, y) = (cx.input(0), cx.output(0));
        let from = cx.dims(x);
        let list = self.axes.clone().or_else(|| cx.ints_value(1)).unwrap_or_default();
        let reduced = self.reduced(&list, from.len());
        if let Kind::Arg(arg) = self.kind {
            return self.lower_arg(cx, &reduced, arg);
        }
        let late = runtime::late_operand(cx, 1)
            .filter(|b| self.axes.is_none() && runtime::count(&cx.dims(*b)) != Some(0));
        if let Some(axes) = late {
            return self.lower_late(cx, axes);
        }
        let inner: Vec<Dim> = from.iter().zip(&reduced).filter(|(_, r)| **r).map(|(d, _)| *d).collect();
        let keep = self.keepdims;
        cx.kernel(|k| self.nest(k, x, y, &inner, &|at, rest| join(&reduced, keep, at, rest)));
        Ok(())
    }
}

fn through_f64(ty: ElemType, op: UnOp, v: Expr) -> Expr {
    Expr::cast(ElemType::F64, ty, Expr::un(op, Expr::cast(ty, ElemType::F64, v)))
}

/// The index into the input, given those of the output and of the reduced axes.
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
    /// Lowers axes that are known only at run time: each dimension has an outer and an inner loop, one of
    /// which runs once.
    fn lower_late(&self, cx: &mut LowerCx, axes: Buf) -> Result<()> {
        let (x, y) = (cx.input(0), cx.output(0));
        let (from, out) = (cx.dims(x), cx.dims(y));
        let (rank, keep) = (from.len(), self.keepdims);
        let n = if keep { 0 } else { out.len() };
        let found = cx.compute(2 * rank + n, |k, list| {
            let flags = runtime::axis_flags(k, axes, rank);
            let own: Vec<Expr> = from.iter().map(|d| Expr::index(*d)).collect();
            let put = |k: &mut KernelBuilder, i: usize, v: Expr| k.store(list, &[Dim::from(i)], v);
            for d in 0..rank {
                let axis = k.let_(runtime::eq(flags[d].clone(), runtime::int(1)));
                put(k, d, Expr::select(axis.clone(), runtime::int(1), own[d].clone()));
                put(k, rank + d, Expr::select(axis, own[d].clone(), runtime::int(1)));
            }
            for (i, v) in runtime::pick(k, &flags, 0, &own, n).into_iter().enumerate() {
                put(k, 2 * rank + i, v);
            }
        });
        let load = |i: usize| Expr::Load { buf: found, at: vec![Dim::from(i)] };
        for (i, d) in out.iter().enumerate() {
            cx.define(*d, load(if keep { i } else { 2 * rank + i }));
        }
        let outer: Vec<Dim> = (0..rank).map(|d| cx.number("outer", load(d), Some(0), None)).collect();
        let inner: Vec<Dim> = (0..rank).map(|d| cx.number("inner", load(rank + d), Some(0), None)).collect();
        let whole = cx.m.view(y, outer);
        cx.kernel(|k| {
            self.nest(k, x, whole, &inner, &|at, rest| at.iter().zip(rest).map(|(a, b)| *a + *b).collect())
        });
        Ok(())
    }
    /// `position` gives the index into the input, given those of the output and of the reduced dimensions.
    fn nest(&self, k: &mut KernelBuilder, x: Buf, y: Buf, inner: &[Dim], position: Position) {
        let kind = self.kind;
        let own = k.m.bufs[x].ty.compute();
        // Exponentials of integers are not integers.
        let ty = if kind == Kind::LogSumExp && !own.is_float() { ElemType::F64 } else { own };
        let load = |k: &KernelBuilder, at: &[Dim]| {
            let v = k.load(x, at);
            if ty == own { v } else { Expr::cast(own, ty, v) }
        };
        let out = k.m.bufs[y].dims.clone();
        let count = Dim::product(inner.iter().copied());
        k.nest(LoopKind::Par, &out, |k, at| {
            let position = |rest: &[Dim]| position(at, rest);
            // LogSumExp first subtracts the largest value.
            let top = (kind == Kind::LogSumExp).then(|| {
                let top = k.acc(Scalar::lowest(ty).into());
                k.nest(LoopKind::Seq, inner, |k, r| {
                    let v = load(k, &position(r));
                    k.update(BinOp::Max, top, v);
                });
                let inf =
                    Expr::bin(BinOp::Eq, Expr::un(UnOp::Abs, Expr::acc(top)), Expr::num(ty, f64::INFINITY));
                k.let_(Expr::select(inf, Expr::num(ty, 0.0), Expr::acc(top)))
            });
            let (op, init) = match kind {
                Kind::Prod => (BinOp::Mul, Scalar::from_f64(ty, 1.0)),
                Kind::Max => (BinOp::Max, Scalar::lowest(ty)),
                Kind::Min => (BinOp::Min, Scalar::highest(ty)),
                _ => (BinOp::Add, Scalar::from_f64(ty, 0.0)),
            };
            let acc = k.acc(init.into());
            k.nest(LoopKind::Seq, inner, |k, r| {
                let v = load(k, &position(r));
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
                Kind::Mean => v / Expr::count(ty, count),
                Kind::L2 if ty.is_float() => Expr::un(UnOp::Sqrt, v),
                Kind::L2 => through_f64(ty, UnOp::Sqrt, v),
                Kind::LogSum if !ty.is_float() => through_f64(ty, UnOp::Log, v),
                Kind::LogSum => Expr::un(UnOp::Log, v),
                Kind::LogSumExp => Expr::un(UnOp::Log, v) + top.unwrap_or(Expr::num(ty, 0.0)),
                _ => v,
            };
            k.store(y, at, if ty == own { v } else { Expr::cast(ty, own, v) });
        });
    }
    /// Positions: NaN is both the largest and the smallest element, as in NumPy.
    fn lower_arg(&self, cx: &mut LowerCx, reduced: &[bool], arg: Arg) -> Result<()> {
        let (x, y) = (cx.input(0), cx.output(0));
        let (from, out, ty) = (cx.dims(x), cx.dims(y), cx.elem(x).compute());
        let Some(axis) = reduced.iter().position(|r| *r) else { return cx.bug("no axis") };
        let keep = self.keepdims;
        let row = from[axis + 1..].iter().all(|d| d.as_const() == Some(1));
        // Positions have as many bits as elements, for vectors of as many lanes.
        let short = has_positions(&cx.m.syms, ty, from[axis]);
        let word = if short { ElemType::I32 } else { ElemType::I64 };
        let found = if word == ElemType::I64 { y } else { cx.temp("found", word, out.clone()) };
        cx.kernel(|k| {
            k.nest(LoopKind::Par, &out, |k, at| {
                let load = |k: &KernelBuilder, r: Dim| k.load(x, &join(reduced, keep, at, &[r]));
                let pos = arg.find(k, (ty, word), (from[axis], row), &load);
                k.store(found, at, pos);
            });
        });
        if found != y {
            cx.map(y, |k, at| Expr::cast(word, ElemType::I64, k.load(found, at)));
        }
        Ok(())
    }
}
