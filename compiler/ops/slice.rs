//! Slice and Split: windows of the input.
//!
//! | operator | versions |
//! |---|---|
//! | Slice | 1: attributes `starts`, `ends`, `axes`, steps 1; 10 and later: inputs |
//! | Split | 1: attribute or input `split`; 2, 11: attribute; 13: input; 18: `num_outputs`, the last part may be smaller |

use super::support::runtime;
use super::{Attrs, Elements, InferCx, Known, LowerCx, Operator};
use crate::diag::{Result, codes};
use crate::nest::{BinOp, Expr, KernelBuilder};
use crate::ops::from_end;
use crate::sym::{Answer, Dim, SymTable};

/// The operators.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Slice {
    Slice { starts: Option<Vec<i64>>, ends: Option<Vec<i64>>, axes: Option<Vec<i64>> },
    Split { axis: i64, sizes: Option<Vec<i64>>, parts: usize },
}

impl Operator for Slice {
    const OPS: &'static [&'static str] = &["Slice", "Split"];
    fn elements(_op: &str) -> Elements {
        Elements::Any
    }
    fn parse(a: &mut Attrs) -> Result<Self> {
        Ok(match a.op() {
            "Slice" => Slice::Slice {
                starts: a.ints_opt("starts"),
                ends: a.ints_opt("ends"),
                axes: a.ints_opt("axes"),
            },
            _ => {
                let parts = a.n_outputs();
                if let Some(n) = a.int_opt("num_outputs")
                    && n != parts as i64
                {
                    return a
                        .error(format!("attribute \"num_outputs\" is {n}, but the node has {parts} outputs"))
                        .fail();
                }
                Slice::Split { axis: a.int("axis", 0), sizes: a.ints_opt("split"), parts }
            }
        })
    }
    fn infer(&self, cx: &mut InferCx) -> Result<()> {
        let t = cx.tensor(0).clone();
        match self {
            Slice::Slice { .. } if cx.since > 1 && windows_at_run_time(cx, &t.dims) => {
                let n = runtime::need_length(cx, 1, "starts")?;
                if (2..5).any(|i| cx.has(i) && runtime::length(cx, i) != Some(n)) {
                    return cx
                        .error(
                            codes::OP_SHAPE,
                            "starts, ends, axes and steps differ in length, or the \
                        length is only known at run time",
                        )
                        .fail();
                }
                let axes = match (cx.has(3), cx.ints_value(3)) {
                    (true, None) => None,
                    (true, Some(a)) => {
                        Some(a.into_iter().map(|a| cx.axis(a, t.rank())).collect::<Result<Vec<_>>>()?)
                    }
                    _ => Some((0..n as i64).map(|a| cx.axis(a, t.rank())).collect::<Result<Vec<_>>>()?),
                };
                let mut dims = t.dims.clone();
                for d in 0..t.rank() {
                    if axes.as_ref().is_none_or(|a| a.contains(&d)) {
                        dims[d] = cx.size(0, d, t.rank());
                        cx.bound(&[dims[d]], t.dims[d]);
                    }
                }
                cx.set(0, t.elem, dims);
            }
            Slice::Slice { starts, ends, axes } => {
                let win = windows(cx, starts, ends, axes, &t.dims)?;
                let dims: Vec<Dim> = win.iter().map(|w| w.size).collect();
                let known = match (cx.dims_value(0), win.as_slice()) {
                    (Some(v), [w]) => match (w.start.as_const(), w.size.as_const()) {
                        (Some(s), Some(n)) => (0..n)
                            .map(|i| v.get(usize::try_from(s + i * w.step).ok()?).copied())
                            .collect::<Option<Vec<_>>>()
                            .map_or(Known::No, Known::Dims),
                        _ => Known::No,
                    },
                    _ => Known::No,
                };
                cx.set_known(0, t.elem, dims, known);
            }
            Slice::Split { axis, sizes, parts } => {
                let axis = cx.axis(*axis, t.rank())?;
                if sizes.is_none() && runtime::late(cx, 1) {
                    if runtime::length(cx, 1) != Some(*parts) {
                        return cx
                            .error(
                                codes::OP_SHAPE,
                                format!("the number of sizes is not that of the outputs, {parts}"),
                            )
                            .fail();
                    }
                    for i in 0..*parts {
                        let mut dims = t.dims.clone();
                        dims[axis] = cx.size(i, axis, t.rank());
                        cx.bound(&[dims[axis]], t.dims[axis]);
                        cx.set(i, t.elem, dims);
                    }
                    return Ok(());
                }
                let sizes = split_sizes(cx, sizes, *parts, t.dims[axis])?;
                let known = cx.dims_value(0);
                let mut at = 0usize;
                for (i, n) in sizes.iter().enumerate() {
                    let mut dims = t.dims.clone();
                    dims[axis] = *n;
                    let part = match (&known, n.as_const()) {
                        (Some(v), Some(n)) => {
                            v.get(at..at + n as usize).map_or(Known::No, |s| Known::Dims(s.to_vec()))
                        }
                        _ => Known::No,
                    };
                    at += n.as_const().unwrap_or(0) as usize;
                    cx.set_known(i, t.elem, dims, part);
                }
            }
        }
        Ok(())
    }
    fn lower(&self, cx: &mut LowerCx) -> Result<()> {
        let x = cx.input(0);
        let from = cx.dims(x);
        match self {
            Slice::Slice { starts, ends, axes } => {
                let y = cx.output(0);
                let value = |i: usize| cx.dims_value(i);
                let known = cx.since == 1
                    || (1..5).all(|i| cx.input_opt(i).is_none() || cx.dims_value(i).is_some())
                        && (3..5).all(|i| cx.input_opt(i).is_none() || cx.ints_value(i).is_some());
                let win = match slice_windows(
                    &cx.m.syms,
                    &from,
                    &args(starts, value(1)),
                    &args(ends, value(2)),
                    axes.clone().or(cx.ints_value(3)),
                    cx.ints_value(4),
                ) {
                    Ok(w) if known => w.into_iter().map(|w| (w.start, Dim::constant(w.step))).collect(),
                    _ => define_windows(cx, &from),
                };
                cx.map(y, |k, at| {
                    let at: Vec<Dim> =
                        at.iter().zip(&win).map(|(i, (start, step))| *start + *i * *step).collect();
                    k.load(x, &at)
                });
            }
            Slice::Split { axis, sizes, parts } => {
                let axis = from_end(*axis, from.len() as i64) as usize;
                let list = if sizes.is_some() { None } else { runtime::late_operand(cx, 1) };
                let sizes: Vec<Dim> = match list {
                    Some(list) => {
                        let wanted: Vec<Option<Dim>> =
                            (0..*parts).map(|i| Some(cx.dims(cx.output_opt(i)?)[axis])).collect();
                        let found = cx.compute(*parts, |k, out| {
                            let v = runtime::sizes(k, list);
                            let mut sum = runtime::int(0);
                            for (i, x) in v.into_iter().enumerate() {
                                // Keeps sums of a few from overflowing.
                                runtime::check(k, runtime::le(x.clone(), Expr::index(from[axis])));
                                sum = k.let_(sum + x.clone());
                                k.store(out, &[Dim::from(i)], x);
                            }
                            runtime::check(k, runtime::eq(sum, Expr::index(from[axis])));
                        });
                        let load = |i: usize| Expr::Load { buf: found, at: vec![Dim::from(i)] };
                        wanted
                            .into_iter()
                            .enumerate()
                            .map(|(i, d)| match d {
                                Some(d) => {
                                    cx.define(d, load(i));
                                    d
                                }
                                None => cx.number("part", load(i), Some(0), None),
                            })
                            .collect()
                    }
                    None => part_sizes(sizes, cx.dims_value(1), *parts, from[axis]),
                };
                let mut start = Dim::constant(0);
                for (i, n) in sizes.iter().enumerate() {
                    let offset = start;
                    start = start + *n;
                    let Some(y) = cx.output_opt(i) else { continue };
                    cx.map(y, |k, at| {
                        let mut from = at.to_vec();
                        from[axis] = from[axis] + offset;
                        k.load(x, &from)
                    });
                }
            }
        }
        Ok(())
    }
}

struct Window {
    start: Dim,
    size: Dim,
    step: i64,
}

pub(super) fn args(attr: &Option<Vec<i64>>, input: Option<Vec<Dim>>) -> Vec<Dim> {
    match attr {
        Some(a) => a.iter().map(|v| Dim::constant(*v)).collect(),
        None => input.unwrap_or_default(),
    }
}

fn windows(
    cx: &mut InferCx,
    starts: &Option<Vec<i64>>,
    ends: &Option<Vec<i64>>,
    axes: &Option<Vec<i64>>,
    from: &[Dim],
) -> Result<Vec<Window>> {
    let (s, e, axes, steps) = if cx.since == 1 {
        (args(starts, None), args(ends, None), axes.clone(), None)
    } else {
        let axes = if cx.has(3) { Some(cx.need_ints(3, "the axes")?) } else { None };
        let steps = if cx.has(4) { Some(cx.need_ints(4, "the steps")?) } else { None };
        (cx.need_dims(1, "the starts")?, cx.need_dims(2, "the ends")?, axes, steps)
    };
    slice_windows(cx.syms, from, &s, &e, axes, steps).map_err(|m| cx.error(codes::OP_SHAPE, m).into())
}

fn slice_windows(
    syms: &SymTable,
    from: &[Dim],
    starts: &[Dim],
    ends: &[Dim],
    axes: Option<Vec<i64>>,
    steps: Option<Vec<i64>>,
) -> std::result::Result<Vec<Window>, String> {
    let mut out: Vec<Window> =
        from.iter().map(|d| Window { start: Dim::constant(0), size: *d, step: 1 }).collect();
    let axes = axes.unwrap_or_else(|| (0..starts.len() as i64).collect());
    let steps = steps.unwrap_or_else(|| vec![1; starts.len()]);
    if starts.len() != ends.len() || axes.len() != starts.len() || steps.len() != starts.len() {
        return Err("starts, ends, axes and steps differ in length".into());
    }
    for (((s, e), axis), step) in starts.iter().zip(ends).zip(&axes).zip(&steps) {
        let r = from.len() as i64;
        let a = usize::try_from(from_end(*axis, r))
            .ok()
            .filter(|a| *a < from.len())
            .ok_or(format!("axis {axis} is out of range for rank {r}"))?;
        let n = from[a];
        if *step == 0 {
            return Err("a step is 0".into());
        }
        // Negative positions count from the end; then both are clamped as in Slice-13.
        let from_end = |d: Dim| -> std::result::Result<Dim, String> {
            match d.as_const() {
                // Farther before the start than any dimension is long.
                Some(c) if c < -(1 << 62) => Ok(Dim::constant(-1) - n),
                Some(c) if c < 0 => Ok(d + n),
                Some(_) => Ok(d),
                None if syms.is_nonneg(d) => Ok(d),
                None if syms.is_nonneg(-d - 1) => Ok(d + n),
                None => Err(format!("the sign of the position {} is not known", d.display(syms))),
            }
        };
        let clamp = |d: Dim, lo: Dim, hi: Dim| -> Dim {
            let low = if syms.le(lo, d) == Answer::Yes {
                d
            } else if syms.le(d, lo) == Answer::Yes {
                lo
            } else {
                d.max(lo)
            };
            if syms.le(low, hi) == Answer::Yes {
                low
            } else if syms.le(hi, low) == Answer::Yes {
                hi
            } else {
                low.min(hi)
            }
        };
        let zero = Dim::constant(0);
        // i64::MAX and similar values mean "to the end".
        let (s, e) = (from_end(*s)?, from_end(*e)?);
        let w = if *step > 0 {
            let (s, e) = (clamp(s, zero, n), clamp(e, zero, n));
            (s, (e - s).ceil_div(*step))
        } else {
            let (s, e) = (clamp(s, zero, n - 1), clamp(e, Dim::constant(-1), n - 1));
            (s, (s - e).ceil_div(-*step))
        };
        let size = if syms.is_nonneg(w.1) { w.1 } else { w.1.max(0) };
        out[a] = Window { start: w.0, size, step: *step };
    }
    Ok(out)
}

/// Sizes of the parts: given, or equal with a smaller last one.
fn part_sizes(attr: &Option<Vec<i64>>, given: Option<Vec<Dim>>, parts: usize, total: Dim) -> Vec<Dim> {
    match (attr, given) {
        (Some(a), _) => a.iter().map(|v| Dim::constant(*v)).collect(),
        (None, Some(s)) => s,
        (None, None) => {
            let n = parts as i64;
            let each = total.ceil_div(n);
            (0..n).map(|i| if i + 1 < n { each } else { total - each * (n - 1) }).collect()
        }
    }
}

/// True if the position or size of a window depends on data, or the sign of a position is known only at run
/// time.
fn windows_at_run_time(cx: &InferCx, from: &[Dim]) -> bool {
    let ints = |i: usize| if cx.has(i) { cx.ints_value(i) } else { Some(vec![]) };
    let (Some(s), Some(e), Some(axes), Some(steps)) = (cx.dims_value(1), cx.dims_value(2), ints(3), ints(4))
    else {
        return true;
    };
    // A constant error is reported by the other path.
    let symbolic = s.iter().chain(&e).any(|d| d.as_const().is_none());
    symbolic
        && slice_windows(cx.syms, from, &s, &e, cx.has(3).then_some(axes), cx.has(4).then_some(steps))
            .is_err_and(|m| m.contains("sign"))
}

/// Start and step of the window in every dimension, defined by the driver together with the sizes of the
/// result.
fn define_windows(cx: &mut LowerCx, from: &[Dim]) -> Vec<(Dim, Dim)> {
    let rank = from.len();
    let out = cx.dims(cx.output(0));
    let (starts, ends, axes, steps) = (cx.input(1), cx.input(2), cx.input_opt(3), cx.input_opt(4));
    let known: Option<Vec<usize>> = match (axes, cx.ints_value(3)) {
        (None, _) => Some((0..runtime::count(&cx.dims(starts)).unwrap_or(0)).collect()),
        (_, a) => a.map(|a| a.into_iter().map(|a| from_end(a, rank as i64) as usize).collect()),
    };
    let found = cx.compute(3 * rank.max(1), |k, list| {
        let (s, e) = (runtime::values(k, starts), runtime::values(k, ends));
        let t = steps.map_or_else(|| vec![runtime::int(1); s.len()], |b| runtime::values(k, b));
        let named = match (&known, axes) {
            (None, Some(b)) => {
                runtime::axis_flags(k, b, rank);
                runtime::values(k, b)
            }
            _ => vec![],
        };
        for d in 0..rank {
            let n = Expr::index(from[d]);
            let (mut start, mut end, mut step) = (runtime::int(0), n.clone(), runtime::int(1));
            for j in 0..s.len() {
                match &known {
                    Some(a) if a.get(j) == Some(&d) => {
                        (start, end, step) = (s[j].clone(), e[j].clone(), t[j].clone())
                    }
                    None => {
                        let hit = k.let_(runtime::is_axis(&named[j], d, rank));
                        start = k.let_(Expr::select(hit.clone(), s[j].clone(), start));
                        end = k.let_(Expr::select(hit.clone(), e[j].clone(), end));
                        step = k.let_(Expr::select(hit, t[j].clone(), step));
                    }
                    _ => {}
                }
            }
            for (i, v) in window(k, n, start, end, step).into_iter().enumerate() {
                k.store(list, &[Dim::from(3 * d + i)], v);
            }
        }
    });
    let load = |i: usize| Expr::Load { buf: found, at: vec![Dim::from(i)] };
    (0..rank).for_each(|d| cx.define(out[d], load(3 * d + 2)));
    (0..rank)
        .map(|d| match &known {
            Some(a) if !a.contains(&d) => (Dim::constant(0), Dim::constant(1)),
            _ => {
                let start = cx.number("start", load(3 * d), Some(0), None);
                let one = steps.is_none() || cx.ints_value(4).is_some_and(|t| t.iter().all(|t| *t == 1));
                let step =
                    if one { Dim::constant(1) } else { cx.number("step", load(3 * d + 1), None, None) };
                (start, step)
            }
        })
        .collect()
}

/// Start, step and size of a window over `n` elements. Negative positions count from the end, then all values
/// are clamped.
fn window(k: &mut KernelBuilder, n: Expr, start: Expr, end: Expr, step: Expr) -> [Expr; 3] {
    use runtime::{check, clamp, int};
    // Steps beyond any size are clamped so that the arithmetic does not overflow; such a window has one
    // element in either case.
    let step = k.let_(clamp(step, int(-(1 << 50)), int(1 << 50)));
    check(k, Expr::bin(BinOp::Ne, step.clone(), int(0)));
    let forward = k.let_(Expr::bin(BinOp::Gt, step.clone(), int(0)));
    let from_end = |k: &mut KernelBuilder, e: Expr| {
        let e = k.let_(e);
        k.let_(Expr::select(Expr::bin(BinOp::Lt, e.clone(), int(0)), e.clone() + n.clone(), e))
    };
    let (s, e) = (from_end(k, start), from_end(k, end));
    let last = n.clone() - int(1);
    let s = k.let_(Expr::select(
        forward.clone(),
        clamp(s.clone(), int(0), n.clone()),
        clamp(s, int(0), last.clone()),
    ));
    let e =
        k.let_(Expr::select(forward.clone(), clamp(e.clone(), int(0), n.clone()), clamp(e, int(-1), last)));
    let span = Expr::select(forward.clone(), e.clone() - s.clone(), s.clone() - e);
    let stride = k.let_(Expr::select(forward, step.clone(), -step.clone()));
    let size = k.let_(((span + stride.clone() - int(1)) / stride).max(int(0)));
    // Nothing is read from an empty window.
    let start = Expr::select(Expr::bin(BinOp::Gt, size.clone(), int(0)), s, int(0));
    [start, step, size]
}

fn split_sizes(cx: &mut InferCx, attr: &Option<Vec<i64>>, parts: usize, total: Dim) -> Result<Vec<Dim>> {
    let given = match attr {
        Some(a) => Some(a.iter().map(|v| Dim::constant(*v)).collect()),
        None if cx.has(1) => Some(cx.need_dims(1, "the sizes of the parts")?),
        None => None,
    };
    if given.is_none() && cx.since < 18 {
        cx.require_eq(
            total.modulo(parts as i64),
            Dim::constant(0),
            "the axis does not divide into equal parts",
        );
    }
    let sizes = part_sizes(&None, given, parts, total);
    if sizes.len() != parts || sizes.iter().any(|d| d.as_const().is_some_and(|d| d < 0)) {
        return cx.error(codes::OP_SHAPE, format!("{} sizes for {parts} outputs", sizes.len())).fail();
    }
    cx.require_eq(Dim::sum(sizes.iter().copied()), total, "the parts do not add up to the axis");
    Ok(sizes)
}
