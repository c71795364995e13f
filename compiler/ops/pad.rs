//! Pad: surrounds the input with a constant, its reflection, its edge or its periodic continuation.
//!
//! | operator | versions |
//! |---|---|
//! | Pad | 1: `paddings`, `value`; 2: `pads`, `value`; 11: inputs; 18: `axes`; 19: mode wrap |

use super::slice::args;
use super::support::runtime;
use super::{Attrs, Elements, InferCx, LowerCx, Operator};
use crate::diag::{Result, codes};
use crate::nest::{BinOp, Expr, KernelBuilder, UnOp};
use crate::ops::from_end;
use crate::sym::Dim;
use crate::tensor::{ElemType, TensorType};

/// The operator.
#[derive(Clone, Debug, PartialEq)]
pub struct Pad {
    mode: Mode,
    pads: Option<Vec<i64>>,
    value: f32,
}

/// The padding mode.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Mode {
    Constant,
    Reflect,
    Edge,
    Wrap,
}

impl Mode {
    /// The operand's position, along a dimension of `n` elements, that position `i` of the result shows.
    fn position(&self, k: &KernelBuilder, i: Dim, n: Dim, (lo, hi): (Dim, Dim)) -> Dim {
        let p = i - lo;
        if [lo, hi].iter().all(|d| d.as_const() == Some(0)) {
            return p;
        }
        // Negative pads crop first; the rest is then repeated or reflected.
        let cut = |d: Dim| if k.m.syms.is_nonneg(d) { Dim::constant(0) } else { (-d).max(0) };
        let (before, behind) = (cut(lo), cut(hi));
        let whole = before.as_const() == Some(0) && behind.as_const() == Some(0);
        let kept = if whole { n } else { (n - before - behind).max(1) };
        let within = |q: Dim| if whole { q } else { (before + q).min(n - 1) };
        match self {
            Mode::Constant => p,
            Mode::Edge => p.max(0).min(n - 1),
            Mode::Wrap => within((p - before).modulo(kept)),
            // Period 2(n - 1): position q within it is min(q, period - q).
            Mode::Reflect => {
                let period = ((kept - 1) * 2).max(1);
                let q = (p - before).modulo(period);
                within(q.min(period - q).min(kept - 1).max(0))
            }
        }
    }
}

/// The conditions under which position `i` of the result shows an element of the operand, except those known
/// to hold.
fn inside_limits(k: &KernelBuilder, i: Dim, n: Dim, (lo, hi): (Dim, Dim)) -> Vec<Expr> {
    let p = i - lo;
    let above = (!k.m.syms.is_nonneg(-lo)).then(|| Expr::cmp_index(BinOp::Ge, p, 0));
    let below = (!k.m.syms.is_nonneg(-hi)).then(|| Expr::cmp_index(BinOp::Lt, p, n));
    above.into_iter().chain(below).collect()
}

/// Infers types if the pads, or the axes they apply to, are known only at run time.
fn infer_late(cx: &mut InferCx, t: &TensorType) -> Result<()> {
    let axes = if cx.has(3) { runtime::need_length(cx, 3, "axes")? } else { t.rank() };
    let enough = runtime::need_length(cx, 1, "pads")? == 2 * axes;
    let otherwise = format!("the number of pads is not that of the axes, {axes}, twice");
    cx.require(enough, codes::OP_SHAPE, &otherwise)?;
    let named: Option<Vec<usize>> = match (cx.has(3), cx.ints_value(3)) {
        (true, None) => None,
        (true, Some(a)) => Some(a.into_iter().map(|a| cx.axis(a, t.rank())).collect::<Result<_>>()?),
        _ => Some((0..t.rank()).collect()),
    };
    let mut dims = t.dims.clone();
    for d in (0..t.rank()).filter(|d| named.as_ref().is_none_or(|a| a.contains(d))) {
        dims[d] = cx.size(0, d, t.rank());
    }
    cx.set(0, t.elem, dims);
    Ok(())
}

impl Operator for Pad {
    const OPS: &'static [&'static str] = &["Pad"];
    fn elements(_op: &str) -> Elements {
        Elements::Any
    }
    fn parse(a: &mut Attrs) -> Result<Self> {
        let modes = [
            ("constant", Mode::Constant),
            ("reflect", Mode::Reflect),
            ("edge", Mode::Edge),
            ("wrap", Mode::Wrap),
        ];
        let mode = a.choice("mode", "constant", &modes);
        let pads = a.ints_opt(if a.since() == 1 { "paddings" } else { "pads" });
        Ok(Pad { mode, pads, value: a.float("value", 0.0) })
    }
    fn infer(&self, cx: &mut InferCx) -> Result<()> {
        let t = cx.tensor(0).clone();
        if self.pads.is_none() && (runtime::late(cx, 1) || cx.has(3) && cx.ints_value(3).is_none()) {
            return infer_late(cx, &t);
        }
        let pads = pad_amounts(cx, &self.pads, t.rank())?;
        let dims: Vec<Dim> = t.dims.iter().zip(&pads).map(|(d, (a, b))| *d + *a + *b).collect();
        for ((d, n), (a, b)) in dims.iter().zip(&t.dims).zip(&pads) {
            let left = *n - (-*a).max(0) - (-*b).max(0);
            let (repeats, empty) = (self.mode != Mode::Constant, d.as_const() == Some(0));
            cx.require(
                !repeats || empty || left.as_const().is_none_or(|l| l >= 1),
                codes::OP_SHAPE,
                "negative pads leave nothing that could be repeated",
            )?;
            cx.require(
                d.as_const().is_none_or(|d| d >= 0) && (!repeats || empty || n.as_const() != Some(0)),
                codes::OP_SHAPE,
                "the padding does not fit the input",
            )?;
            if !cx.syms.is_nonneg(*d) {
                cx.syms.require_at_most(Dim::constant(0), *d);
            }
            // There must be an element to repeat or reflect.
            if repeats && n != d {
                cx.syms.require_at_most(Dim::constant(1), *n);
            }
        }
        cx.set(0, t.elem, dims);
        Ok(())
    }
    fn lower(&self, cx: &mut LowerCx) -> Result<()> {
        let Pad { mode, pads: attr, value } = self;
        let (x, y) = (cx.input(0), cx.output(0));
        let from = cx.dims(x);
        let rank = from.len();
        let list = args(attr, cx.dims_value(1));
        let axes = if cx.input_opt(3).is_some() {
            cx.ints_value(3).unwrap_or_default()
        } else {
            (0..rank as i64).collect()
        };
        let late = attr.is_none()
            && (runtime::late_operand(cx, 1).is_some()
                || cx.input_opt(3).is_some() && cx.ints_value(3).is_none());
        let pads = if late { Some(define_pads(cx, *mode)) } else { spread_pads(&list, &axes, rank) };
        let Some(pads) = pads else { return cx.bug("pads changed") };
        let ty = cx.elem(y).compute();
        let fill = match (cx.constant(2).and_then(|c| c.scalar()), cx.input_opt(2)) {
            (Some(v), _) if ty.is_float() || ty.bits() < 64 => Some(Expr::num(ty, v)),
            (_, Some(b)) if cx.since >= 11 => {
                Some(Expr::Load { buf: b, at: vec![Dim::constant(0); cx.dims(b).len()] })
            }
            _ if ty == ElemType::Str || ty.is_complex() => None,
            _ => Some(Expr::num(ty, f64::from(*value))),
        };
        cx.map(y, |k, at| {
            let fill = fill.unwrap_or_else(|| k.zero(ty));
            let mut inside: Option<Expr> = None;
            let mut index = vec![];
            // A pad on one side may exceed what cropping on the other side leaves. Then the result shows no
            // element of the operand.
            let outside = |((i, n), (lo, _)): ((&Dim, &Dim), &(Dim, Dim))| {
                k.m.syms.is_nonneg(*lo - *i - 1) || k.m.syms.is_nonneg(*i - *lo - *n)
            };
            if *mode == Mode::Constant && at.iter().zip(&from).zip(&pads).any(outside) {
                return fill;
            }
            for ((i, n), pads) in at.iter().zip(&from).zip(&pads) {
                if *mode == Mode::Constant {
                    let limits = inside_limits(k, *i, *n, *pads).into_iter();
                    inside = inside.into_iter().chain(limits).reduce(|a, b| Expr::bin(BinOp::And, a, b));
                }
                index.push(mode.position(k, *i, *n, *pads));
            }
            let v = k.load(x, &index);
            match inside {
                Some(c) => Expr::select(c, v, fill),
                None => v,
            }
        });
        Ok(())
    }
}

fn pad_amounts(cx: &InferCx, attr: &Option<Vec<i64>>, rank: usize) -> Result<Vec<(Dim, Dim)>> {
    let list: Vec<Dim> = match attr {
        Some(a) => a.iter().map(|v| Dim::constant(*v)).collect(),
        None => cx.need_dims(1, "the pads")?,
    };
    let axes: Vec<i64> = if cx.has(3) { cx.need_ints(3, "the axes")? } else { (0..rank as i64).collect() };
    spread_pads(&list, &axes, rank).ok_or_else(|| {
        cx.error(codes::OP_SHAPE, format!("{} pads for {} axes", list.len(), axes.len())).into()
    })
}

fn spread_pads(list: &[Dim], axes: &[i64], rank: usize) -> Option<Vec<(Dim, Dim)>> {
    let mut out = vec![(Dim::constant(0), Dim::constant(0)); rank];
    if list.len() != 2 * axes.len() {
        return None;
    }
    for (i, a) in axes.iter().enumerate() {
        let a = usize::try_from(from_end(*a, rank as i64)).ok()?;
        *out.get_mut(a)? = (list[i], list[axes.len() + i]);
    }
    Some(out)
}

/// The pads of each dimension, defined by the driver together with the sizes of the result.
fn define_pads(cx: &mut LowerCx, mode: Mode) -> Vec<(Dim, Dim)> {
    let (x, y) = (cx.input(0), cx.output(0));
    let (from, out) = (cx.dims(x), cx.dims(y));
    let rank = from.len();
    let (pads, axes) = (cx.input(1), cx.input_opt(3));
    let known = if axes.is_some() { cx.ints_value(3) } else { Some((0..rank as i64).collect()) };
    let found = cx.compute(3 * rank.max(1), |k, list| {
        use runtime::{check, int, le};
        let v = runtime::values(k, pads);
        let n = v.len() / 2;
        let named = match (&known, axes) {
            (None, Some(b)) => {
                runtime::axis_flags(k, b, rank);
                runtime::values(k, b)
            }
            _ => vec![],
        };
        for x in &v {
            // Keeps sums from overflowing.
            check(k, le(Expr::un(UnOp::Abs, x.clone()), int(1 << 50)));
            check(k, le(int(-(1 << 50)), x.clone()));
        }
        for d in 0..rank {
            let (mut low, mut high) = (int(0), int(0));
            for j in 0..n {
                match &known {
                    Some(a) if a.get(j).is_some_and(|a| *a == d as i64 || a + rank as i64 == d as i64) => {
                        (low, high) = (v[j].clone(), v[n + j].clone())
                    }
                    None => {
                        let hit = k.let_(runtime::is_axis(&named[j], d, rank));
                        low = k.let_(Expr::select(hit.clone(), v[j].clone(), low));
                        high = k.let_(Expr::select(hit, v[n + j].clone(), high));
                    }
                    _ => {}
                }
            }
            let size = k.let_(low.clone() + Expr::index(from[d]) + high.clone());
            check(k, le(int(0), size.clone()));
            if mode != Mode::Constant {
                // There must be an element to repeat or reflect.
                check(k, runtime::or(runtime::eq(size.clone(), int(0)), le(int(1), Expr::index(from[d]))));
            }
            for (i, v) in [low, high, size].into_iter().enumerate() {
                k.store(list, &[Dim::from(3 * d + i)], v);
            }
        }
    });
    let load = |i: usize| Expr::Load { buf: found, at: vec![Dim::from(i)] };
    (0..rank).for_each(|d| cx.define(out[d], load(3 * d + 2)));
    (0..rank)
        .map(|d| {
            (cx.number("before", load(3 * d), None, None), cx.number("behind", load(3 * d + 1), None, None))
        })
        .collect()
}
