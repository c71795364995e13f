//! Slice, Split and Pad: windows of the input.
//!
//! | operator | versions |
//! |---|---|
//! | Slice | 1: attributes `starts`, `ends`, `axes`, steps 1; 10 and later: inputs |
//! | Split | 1: attribute or input `split`; 2, 11: attribute; 13: input; 18: `num_outputs`, the last part may be smaller |
//! | Pad | 1: `paddings`, `value`; 2: `pads`, `value`; 11: inputs; 18: `axes`; 19: mode wrap |

use super::{Attrs, InferCx, Known, LowerCx, Operator, runtime};
use crate::diag::{Result, codes};
use crate::nest::{BinOp, Buf, Expr, LoopKind};
use crate::sym::{Answer, Dim, SymTable};
use crate::tensor::TensorType;

/// The operators.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Slice {
    Slice { starts: Option<Vec<i64>>, ends: Option<Vec<i64>>, axes: Option<Vec<i64>> },
    Split { axis: i64, sizes: Option<Vec<i64>>, parts: usize },
    Pad { mode: Mode, pads: Option<Vec<i64>>, value: f32 },
}

/// What stands outside.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Mode {
    Constant,
    Reflect,
    Edge,
    Wrap,
}

impl Operator for Slice {
    const OPS: &'static [&'static str] = &["Slice", "Split", "Pad"];
    fn parse(a: &mut Attrs) -> Result<Self> {
        Ok(match a.op() {
            "Slice" => Slice::Slice { starts: a.ints_opt("starts")?, ends: a.ints_opt("ends")?, axes: a.ints_opt("axes")? },
            "Split" => {
                let parts = a.n_outputs();
                if let Some(n) = a.int_opt("num_outputs")?
                    && n != parts as i64
                {
                    return a.error(format!("attribute \"num_outputs\" is {n}, but the node has {parts} outputs")).fail();
                }
                Slice::Split { axis: a.int("axis", 0)?, sizes: a.ints_opt("split")?, parts }
            }
            _ => {
                let mode = match a.choice("mode", "constant", &["constant", "reflect", "edge", "wrap"])?.as_str() {
                    "reflect" => Mode::Reflect,
                    "edge" => Mode::Edge,
                    "wrap" => Mode::Wrap,
                    _ => Mode::Constant,
                };
                let pads = if a.since() == 1 { a.ints_opt("paddings")? } else { a.ints_opt("pads")? };
                Slice::Pad { mode, pads, value: a.float("value", 0.0)? }
            }
        })
    }
    fn infer(&self, cx: &mut InferCx) -> Result<()> {
        let t = cx.tensor(0)?.clone();
        match self {
            Slice::Slice { .. } if cx.since > 1 && (1..5).any(|i| runtime::declared_for(cx, i, 0).is_some()) => {
                let d = cx.declared.first().cloned().flatten().unwrap_or_default();
                runtime::require_rank(cx, &d, t.rank())?;
                let n = runtime::length(cx, 1);
                if n.is_none() || (2..5).any(|i| cx.has(i) && runtime::length(cx, i) != n) {
                    return cx.error(codes::OP_SHAPE, "starts, ends, axes and steps differ in length, or the length is only known at run time").fail();
                }
                for a in cx.ints_value(3).unwrap_or_default() {
                    cx.axis(a, t.rank())?;
                }
                cx.set(0, t.elem, d);
            }
            Slice::Slice { starts, ends, axes } => {
                let win = windows(cx, starts, ends, axes, &t.dims)?;
                let dims: Vec<Dim> = win.iter().map(|w| w.size).collect();
                let known = match (cx.dims_value(0), win.as_slice()) {
                    (Some(v), [w]) => match (w.start.as_const(), w.size.as_const()) {
                        (Some(s), Some(n)) => (0..n).map(|i| v.get(usize::try_from(s + i * w.step).ok()?).copied()).collect::<Option<Vec<_>>>().map_or(Known::No, Known::Dims),
                        _ => Known::No,
                    },
                    _ => Known::No,
                };
                cx.set_known(0, t.elem, dims, known);
            }
            Slice::Split { axis, sizes, parts } => {
                let axis = cx.axis(*axis, t.rank())?;
                if (0..*parts).all(|i| runtime::declared_for(cx, 1, i).is_some_and(|d| d.len() == t.rank())) && runtime::length(cx, 1) == Some(*parts) {
                    return declared_parts(cx, &t, axis);
                }
                let sizes = split_sizes(cx, sizes, *parts, t.dims[axis])?;
                let known = cx.dims_value(0);
                let mut at = 0usize;
                for (i, n) in sizes.iter().enumerate() {
                    let mut dims = t.dims.clone();
                    dims[axis] = *n;
                    let part = match (&known, n.as_const()) {
                        (Some(v), Some(n)) => v.get(at..at + n as usize).map_or(Known::No, |s| Known::Dims(s.to_vec())),
                        _ => Known::No,
                    };
                    at += n.as_const().unwrap_or(0) as usize;
                    cx.set_known(i, t.elem, dims, part);
                }
            }
            Slice::Pad { mode, .. } if cx.since >= 11 && runtime::declared_for(cx, 1, 0).is_some() => {
                let d = runtime::declared_for(cx, 1, 0).unwrap_or_default();
                runtime::require_rank(cx, &d, t.rank())?;
                for a in cx.ints_value(3).unwrap_or_default() {
                    cx.axis(a, t.rank())?;
                }
                let axes = if cx.has(3) { runtime::length(cx, 3) } else { Some(t.rank()) };
                if axes.is_none() || runtime::length(cx, 1) != axes.map(|n| 2 * n) || t.dims.iter().any(|d| !cx.syms.is_pos(*d)) && *mode != Mode::Constant {
                    return cx.error(codes::OP_SHAPE, "the padding does not fit the input").fail();
                }
                cx.set(0, t.elem, d);
            }
            Slice::Pad { pads, mode, .. } => {
                let pads = pad_amounts(cx, pads, t.rank())?;
                let dims: Vec<Dim> = t.dims.iter().zip(&pads).map(|(d, (a, b))| *d + *a + *b).collect();
                for (d, n) in dims.iter().zip(&t.dims) {
                    if d.as_const().is_some_and(|d| d < 0) || (*mode != Mode::Constant && n.as_const() == Some(0) && d.as_const() != Some(0)) {
                        return cx.error(codes::OP_SHAPE, "the padding does not fit the input").fail();
                    }
                    if !cx.syms.is_nonneg(*d) {
                        cx.syms.require_at_most(Dim::constant(0), *d);
                    }
                    // There must be something to repeat or mirror.
                    if *mode != Mode::Constant && n != d {
                        cx.syms.require_at_most(Dim::constant(1), *n);
                    }
                }
                cx.set(0, t.elem, dims);
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
                if cx.since > 1 && (1..5).any(|i| cx.input_opt(i).is_some() && cx.dims_value(i).is_none()) {
                    return lower_slice_at_run_time(cx, &from);
                }
                let value = |i: usize| cx.dims_value(i);
                let win = slice_windows(&cx.m.syms, &from, &args(starts, value(1)), &args(ends, value(2)), axes.clone().or(cx.ints_value(3)), cx.ints_value(4));
                let Ok(win) = win else { return cx.bug("slice operands changed") };
                cx.map(y, |k, at| {
                    let at: Vec<Dim> = at.iter().zip(&win).map(|(i, w)| w.start + *i * w.step).collect();
                    k.load(x, &at)
                });
            }
            Slice::Split { axis, sizes, parts } => {
                let axis = if *axis < 0 { *axis + from.len() as i64 } else { *axis } as usize;
                let list = cx.input_opt(1).filter(|_| cx.dims_value(1).is_none());
                let sizes: Vec<Option<Dim>> = match list {
                    Some(_) => (0..*parts).map(|i| Some(cx.dims(cx.output_opt(i)?)[axis])).collect(),
                    None => part_sizes(sizes, cx.dims_value(1), *parts, from[axis]).into_iter().map(Some).collect(),
                };
                let mut start = Dim::constant(0);
                for (i, n) in sizes.iter().enumerate() {
                    let Some(n) = n else { return cx.error(codes::OP_FEATURE, "Split with sizes only known at run time needs all of its outputs used").fail() };
                    let offset = start;
                    start = start + *n;
                    let Some(y) = cx.output_opt(i) else { continue };
                    let out = cx.dims(y);
                    cx.kernel(|k| {
                        if let Some(list) = list {
                            let same = runtime::eq(runtime::value(k, list, i), Expr::index(*n));
                            runtime::check(k, same);
                        }
                        k.nest(LoopKind::Par, &out, |k, at| {
                            let mut from = at.to_vec();
                            from[axis] = from[axis] + offset;
                            let v = k.load(x, &from);
                            k.store(y, at, v);
                        });
                    });
                }
            }
            Slice::Pad { mode, pads, value } => lower_pad(cx, *mode, pads, *value)?,
        }
        Ok(())
    }
}

struct Window {
    start: Dim,
    size: Dim,
    step: i64,
}

fn args(attr: &Option<Vec<i64>>, input: Option<Vec<Dim>>) -> Vec<Dim> {
    match attr {
        Some(a) => a.iter().map(|v| Dim::constant(*v)).collect(),
        None => input.unwrap_or_default(),
    }
}

fn windows(cx: &mut InferCx, starts: &Option<Vec<i64>>, ends: &Option<Vec<i64>>, axes: &Option<Vec<i64>>, from: &[Dim]) -> Result<Vec<Window>> {
    let (s, e, axes, steps) = if cx.since == 1 {
        (args(starts, None), args(ends, None), axes.clone(), None)
    } else {
        let axes = if cx.has(3) { Some(cx.need_ints(3, "the axes")?) } else { None };
        let steps = if cx.has(4) { Some(cx.need_ints(4, "the steps")?) } else { None };
        (cx.need_dims(1, "the starts")?, cx.need_dims(2, "the ends")?, axes, steps)
    };
    slice_windows(cx.syms, from, &s, &e, axes, steps).map_err(|m| cx.error(codes::OP_SHAPE, m).into())
}

fn slice_windows(syms: &SymTable, from: &[Dim], starts: &[Dim], ends: &[Dim], axes: Option<Vec<i64>>, steps: Option<Vec<i64>>) -> std::result::Result<Vec<Window>, String> {
    let mut out: Vec<Window> = from.iter().map(|d| Window { start: Dim::constant(0), size: *d, step: 1 }).collect();
    let axes = axes.unwrap_or_else(|| (0..starts.len() as i64).collect());
    let steps = steps.unwrap_or_else(|| vec![1; starts.len()]);
    if starts.len() != ends.len() || axes.len() != starts.len() || steps.len() != starts.len() {
        return Err("starts, ends, axes and steps differ in length".into());
    }
    for (((s, e), axis), step) in starts.iter().zip(ends).zip(&axes).zip(&steps) {
        let r = from.len() as i64;
        let a = usize::try_from(if *axis < 0 { axis + r } else { *axis }).ok().filter(|a| *a < from.len()).ok_or(format!("axis {axis} is out of range for rank {r}"))?;
        let n = from[a];
        if *step == 0 {
            return Err("a step is 0".into());
        }
        // Negative positions count from the end; then both are clamped (Slice-13 says how).
        let from_end = |d: Dim| -> std::result::Result<Dim, String> {
            match d.as_const() {
                Some(i64::MIN) => Ok(Dim::constant(-1) - n),
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
        // i64::MAX and its like mean "to the end".
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

/// Sizes of the parts: given, or equal ones with a smaller last.
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

/// The declared shapes of all parts, where only run time knows their sizes.
fn declared_parts(cx: &mut InferCx, t: &TensorType, axis: usize) -> Result<()> {
    let shapes: Vec<Vec<Dim>> = cx.declared.iter().flatten().cloned().collect();
    for d in 0..t.rank() {
        if d == axis {
            cx.require_eq(Dim::sum(shapes.iter().map(|s| s[d])), t.dims[d], "the declared parts do not add up to the axis")?;
            continue;
        }
        for s in &shapes {
            cx.require_eq(s[d], t.dims[d], "a declared part has another shape than the input")?;
        }
    }
    shapes.into_iter().enumerate().for_each(|(i, s)| cx.set(i, t.elem, s));
    Ok(())
}

fn lower_slice_at_run_time(cx: &mut LowerCx, from: &[Dim]) -> Result<()> {
    let (x, y) = (cx.input(0), cx.output(0));
    let (rank, out, n) = (from.len(), cx.dims(y), runtime::count(&cx.dims(cx.input(1))).unwrap_or(0));
    let plain = |a: i64| (if a < 0 { a + rank as i64 } else { a }) as usize;
    let axes = match (cx.input_opt(3), cx.ints_value(3)) {
        (None, _) => Some((0..n).collect()),
        (_, a) => a.map(|a| a.into_iter().map(plain).collect()),
    };
    let args = runtime::SliceArgs { starts: cx.input(1), ends: cx.input(2), axes, axes_at: cx.input_opt(3), steps: cx.input_opt(4), n };
    cx.kernel(|k| {
        let windows: Vec<(Expr, Expr)> = (0..rank).map(|d| args.window(k, d, rank, from[d], out[d])).collect();
        k.nest(LoopKind::Par, &out, |k, at| {
            let index: Vec<Expr> = at.iter().zip(&windows).map(|(i, (s, t))| s.clone() + Expr::index(*i) * t.clone()).collect();
            let v = runtime::load_at(k, x, &index);
            k.store(y, at, v);
        });
    });
    Ok(())
}

fn split_sizes(cx: &mut InferCx, attr: &Option<Vec<i64>>, parts: usize, total: Dim) -> Result<Vec<Dim>> {
    let given = match attr {
        Some(a) => Some(a.iter().map(|v| Dim::constant(*v)).collect()),
        None if cx.has(1) => Some(cx.need_dims(1, "the sizes of the parts")?),
        None => None,
    };
    if given.is_none() && cx.since < 18 {
        cx.require_eq(total.modulo(parts as i64), Dim::constant(0), "the axis does not divide into equal parts")?;
    }
    let sizes = part_sizes(&None, given, parts, total);
    if sizes.len() != parts || sizes.iter().any(|d| d.as_const().is_some_and(|d| d < 0)) {
        return cx.error(codes::OP_SHAPE, format!("{} sizes for {parts} outputs", sizes.len())).fail();
    }
    cx.require_eq(Dim::sum(sizes.iter().copied()), total, "the parts do not add up to the axis")?;
    Ok(sizes)
}

fn pad_amounts(cx: &InferCx, attr: &Option<Vec<i64>>, rank: usize) -> Result<Vec<(Dim, Dim)>> {
    let list: Vec<Dim> = match attr {
        Some(a) => a.iter().map(|v| Dim::constant(*v)).collect(),
        None => cx.need_dims(1, "the pads")?,
    };
    let axes: Vec<i64> = if cx.has(3) { cx.need_ints(3, "the axes")? } else { (0..rank as i64).collect() };
    spread_pads(&list, &axes, rank).ok_or_else(|| cx.error(codes::OP_SHAPE, format!("{} pads for {} axes", list.len(), axes.len())).into())
}

fn spread_pads(list: &[Dim], axes: &[i64], rank: usize) -> Option<Vec<(Dim, Dim)>> {
    let mut out = vec![(Dim::constant(0), Dim::constant(0)); rank];
    if list.len() != 2 * axes.len() {
        return None;
    }
    for (i, a) in axes.iter().enumerate() {
        let a = usize::try_from(if *a < 0 { a + rank as i64 } else { *a }).ok()?;
        *out.get_mut(a)? = (list[i], list[axes.len() + i]);
    }
    Some(out)
}

fn lower_pad(cx: &mut LowerCx, mode: Mode, attr: &Option<Vec<i64>>, value: f32) -> Result<()> {
    let (x, y) = (cx.input(0), cx.output(0));
    let from = cx.dims(x);
    let rank = from.len();
    let list = args(attr, cx.dims_value(1));
    let axes = if cx.input_opt(3).is_some() { cx.ints_value(3).unwrap_or_default() } else { (0..rank as i64).collect() };
    let pads = match cx.input_opt(1).filter(|_| attr.is_none() && cx.dims_value(1).is_none()) {
        Some(b) => {
            let unknown = cx.input_opt(3).filter(|_| cx.ints_value(3).is_none());
            return lower_pad_at_run_time(cx, mode, b, &axes, unknown);
        }
        None => spread_pads(&list, &axes, rank),
    };
    let Some(pads) = pads else { return cx.bug("pads changed") };
    let ty = cx.elem(y).compute();
    let fill = match (cx.constant(2).and_then(|c| c.scalar()), cx.input_opt(2)) {
        (Some(v), _) if ty.is_float() || ty.bits() < 64 => Expr::num(ty, v),
        (_, Some(b)) if cx.since >= 11 => Expr::Load { buf: b, at: vec![Dim::constant(0); cx.dims(b).len()] },
        _ => Expr::num(ty, f64::from(value)),
    };
    let syms = cx.m.syms.clone();
    cx.map(y, |k, at| {
        let mut inside = None;
        let mut index = vec![];
        for ((i, n), (lo, hi)) in at.iter().zip(&from).zip(&pads) {
            let p = *i - *lo;
            index.push(match mode {
                Mode::Constant => {
                    let mut need = |c: Expr| {
                        inside = Some(match inside.take() {
                            None => c,
                            Some(o) => Expr::bin(BinOp::And, o, c),
                        });
                    };
                    if !syms.is_nonneg(-*lo) {
                        need(Expr::cmp_index(BinOp::Ge, p, 0));
                    }
                    if !syms.is_nonneg(-*hi) {
                        need(Expr::cmp_index(BinOp::Lt, p, *n));
                    }
                    p
                }
                Mode::Edge => p.max(0).min(*n - 1),
                Mode::Wrap => p.modulo(*n),
                // Period 2(n - 1): position q of it stands for min(q, period - q).
                Mode::Reflect => {
                    let period = ((*n - 1) * 2).max(1);
                    let q = p.modulo(period);
                    q.min(period - q).min(*n - 1).max(0)
                }
            });
        }
        let v = k.load(x, &index);
        match inside {
            Some(c) => Expr::select(c, v, fill),
            None => v,
        }
    });
    Ok(())
}

/// `unknown` holds the axes where only run time knows them, too.
fn lower_pad_at_run_time(cx: &mut LowerCx, mode: Mode, pads: Buf, axes: &[i64], unknown: Option<Buf>) -> Result<()> {
    let (x, y, fill) = (cx.input(0), cx.output(0), cx.input_opt(2));
    let (from, out, ty) = (cx.dims(x), cx.dims(y), cx.elem(y).compute());
    let rank = from.len();
    cx.kernel(|k| {
        let mut low = vec![runtime::int(0); rank];
        let mut high = low.clone();
        for (i, a) in axes.iter().enumerate() {
            let d = (if *a < 0 { a + rank as i64 } else { *a }) as usize;
            (low[d], high[d]) = (runtime::value(k, pads, i), runtime::value(k, pads, axes.len() + i));
        }
        if let Some(b) = unknown {
            let n = runtime::count(&k.m.bufs[b].dims).unwrap_or(0);
            for j in 0..n {
                let axis = runtime::value(k, b, j);
                let axis = k.let_(Expr::select(Expr::bin(BinOp::Lt, axis.clone(), runtime::int(0)), axis.clone() + runtime::int(rank as i64), axis));
                for d in 0..rank {
                    let hit = runtime::eq(axis.clone(), runtime::int(d as i64));
                    low[d] = k.let_(Expr::select(hit.clone(), runtime::value(k, pads, j), low[d].clone()));
                    high[d] = k.let_(Expr::select(hit, runtime::value(k, pads, n + j), high[d].clone()));
                }
            }
        }
        for d in 0..rank {
            low[d] = k.let_(low[d].clone());
            let size = low[d].clone() + Expr::index(from[d]) + high[d].clone();
            runtime::check(k, runtime::eq(size, Expr::index(out[d])));
        }
        k.nest(LoopKind::Par, &out, |k, at| {
            let mut inside = Expr::bool(true);
            let mut index = vec![];
            for d in 0..rank {
                let p = k.let_(Expr::index(at[d]) - low[d].clone());
                let (n, last) = (Expr::index(from[d]), Expr::index(from[d] - 1));
                let q = match mode {
                    Mode::Constant => {
                        inside = inside.clone().and(Expr::bin(BinOp::Ge, p.clone(), runtime::int(0))).and(Expr::bin(BinOp::Lt, p.clone(), n));
                        p
                    }
                    Mode::Edge => p,
                    Mode::Wrap => Expr::bin(BinOp::Mod, p, n),
                    Mode::Reflect => {
                        let period = Expr::index(((from[d] - 1) * 2).max(1));
                        let q = k.let_(Expr::bin(BinOp::Mod, p, period.clone()));
                        q.clone().min(period - q)
                    }
                };
                index.push(runtime::clamp(q, runtime::int(0), last));
            }
            let v = runtime::load_at(k, x, &index);
            let v = if mode == Mode::Constant {
                let fill = fill.map_or(Expr::num(ty, 0.0), |b| k.load(b, &vec![Dim::constant(0); k.m.bufs[b].dims.len()]));
                Expr::select(inside, v, fill)
            } else {
                v
            };
            k.store(y, at, v);
        });
    });
    Ok(())
}
