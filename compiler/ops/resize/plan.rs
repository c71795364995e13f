//! The computation of one axis of a Resize: sources and weights of its elements, at compile time or by small
//! kernels.

use super::coords::{self, Filter, Rule, Sizes, Transform};
use super::{ALONG_AXIS, Aspect, Resize};
use crate::diag::Result;
use crate::nest::{BinOp, Buf, Expr, KernelBuilder, LoopKind, Status, Stmt, UnOp};
use crate::ops::LowerCx;
use crate::ops::support::runtime;
use crate::sym::{Answer, Dim};
use crate::tensor::{ConstData, ElemType};
use std::sync::Arc;

/// The longest axis with a table computed at compile time.
const TABLE: i64 = 1 << 16;

/// The longest axis whose sources are computed at run time: distances in bytes fit in 32 bits.
pub const MOST: i64 = 1 << 28;

/// The plan of one axis.
pub struct Plan {
    /// The axis.
    pub axis: usize,
    /// Sources per element.
    pub taps: Dim,
    first: First,
    /// Shape [period, taps], or [taps, size] if computed at run time, since adjacent elements are adjacent
    /// lanes. `None` if a single source is copied.
    pub weights: Option<Buf>,
    /// The number of elements after which weights repeat.
    period: Option<i64>,
    /// True for elements that are the extrapolation value.
    pub outside: Option<Buf>,
}

impl Plan {
    /// True if the sources of an element with several of them are computed at run time.
    pub fn is_computed(&self) -> bool {
        matches!(self.first, First::Computed(_)) && self.weights.is_some()
    }
}

/// Sources of an element.
enum First {
    /// The first one: floor((a * o + b) / c)
    Line(i64, i64, i64),
    /// The first one, in a constant vector of integers of 32 or 64 bits.
    Table(Buf),
    /// All of them, clamped to the input: 32-bit integers of shape [taps, size].
    Computed(Buf),
}

/// A scale, or an end of the region.
#[derive(Clone)]
enum Value {
    Known(f64),
    /// A float64 expression of the generated code.
    At(Expr),
}

impl Value {
    fn known(&self) -> Option<f64> {
        match self {
            Value::Known(v) => Some(*v),
            Value::At(_) => None,
        }
    }
    fn expr(&self) -> Expr {
        match self {
            Value::Known(v) => Expr::num(ElemType::F64, *v),
            Value::At(e) => e.clone(),
        }
    }
}

/// The resizing of one axis.
struct Task {
    axis: usize,
    input: Dim,
    output: Dim,
    scale: Value,
    region: (Value, Value),
    /// Conditions on operands that are known only at run time.
    checks: Vec<Expr>,
}

fn wide(d: Dim) -> Expr {
    Expr::cast(ElemType::I64, ElemType::F64, Expr::index(d))
}

/// Element `i` of a vector as float64.
fn element(cx: &LowerCx, b: Buf, i: usize) -> Expr {
    Expr::cast(cx.elem(b).compute(), ElemType::F64, Expr::Load { buf: b, at: vec![Dim::from(i)] })
}

impl Resize {
    /// The plans of the axes that are resized.
    pub fn plans(&self, cx: &mut LowerCx, axes: &[usize], from: &[Dim], to: &[Dim]) -> Result<Vec<Plan>> {
        let sizes = cx.inputs.get(3).copied().flatten().filter(|b| self.by_sizes(Some(&cx.dims(*b))));
        let roi = cx.constant(1).and_then(|c| c.to_f64s());
        let mut plans = vec![];
        for (i, &axis) in axes.iter().enumerate() {
            let (n, out) = (from[axis], to[axis]);
            let end = |j: usize, whole: f64| match (&roi, cx.input_opt(1)) {
                _ if self.transform != Transform::Crop => Value::Known(whole),
                (Some(r), _) => Value::Known(r[j]),
                (None, Some(b)) => Value::At(element(cx, b, j)),
                (None, None) => Value::Known(whole),
            };
            let region = (end(i, 0.0), end(axes.len() + i, 1.0));
            let mut checks = vec![];
            let scale = match sizes {
                Some(b) => self.size_ratio(cx, axes, from, to, b, i),
                None => match (
                    self.scale_values(cx.constant(self.scales_at()).and_then(|c| c.to_f64s())),
                    cx.input_opt(self.scales_at()),
                ) {
                    (Some(s), _) => Value::Known(s[i]),
                    (None, Some(b)) => {
                        let size = Expr::un(
                            UnOp::Floor,
                            Expr::cast(ElemType::I64, ElemType::F32, Expr::index(n))
                                * Expr::cast(ElemType::F64, ElemType::F32, element(cx, b, i)),
                        );
                        cx.define(out, Expr::cast(ElemType::F32, ElemType::I64, size));
                        checks.push(Expr::bin(BinOp::Gt, element(cx, b, i), Expr::num(ElemType::F64, 0.0)));
                        Value::At(element(cx, b, i))
                    }
                    _ => return cx.bug("neither scales nor sizes is given"),
                },
            };
            // An empty axis cannot be resized to one with elements.
            if !cx.m.syms.is_pos(n) {
                let some = Expr::bin(
                    BinOp::Or,
                    Expr::cmp_index(BinOp::Ge, n, 1),
                    Expr::cmp_index(BinOp::Eq, out, 0),
                );
                cx.m.driver.push(Stmt::Check { cond: some, status: Status::Dim });
            }
            let whole = region.0.known() == Some(0.0) && region.1.known() == Some(1.0);
            let same = cx.m.syms.eq(n, out) == Answer::Yes;
            let unscaled = match &scale {
                Value::Known(s) => (s - 1.0).abs() <= 1e-9,
                Value::At(_) => sizes.is_some() && self.aspect == Aspect::Stretch && checks.is_empty(),
            };
            if same && unscaled && whole {
                continue;
            }
            plans.push(self.plan(cx, Task { axis, input: n, output: out, scale, region, checks }));
        }
        Ok(plans)
    }

    /// The scale of resized axis `i` if the sizes are given.
    fn size_ratio(
        &self,
        cx: &mut LowerCx,
        axes: &[usize],
        from: &[Dim],
        to: &[Dim],
        sizes: Buf,
        i: usize,
    ) -> Value {
        let op = if self.aspect == Aspect::NotLarger { BinOp::Min } else { BinOp::Max };
        let taking: Vec<usize> =
            if self.aspect == Aspect::Stretch { vec![i] } else { (0..axes.len()).collect() };
        let Some(v) = cx.dims_value(3) else {
            let all = taking
                .iter()
                .map(|k| element(cx, sizes, *k) / wide(from[axes[*k]]))
                .reduce(|a, b| Expr::bin(op, a, b));
            let scale = all.unwrap_or(Expr::num(ElemType::F64, 1.0));
            let size =
                Expr::un(UnOp::Floor, scale.clone() * wide(from[axes[i]]) + Expr::num(ElemType::F64, 0.5));
            cx.define(to[axes[i]], Expr::cast(ElemType::F64, ElemType::I64, size));
            return Value::At(scale);
        };
        let pairs: Vec<(Dim, Dim)> = taking.iter().map(|k| (v[*k], from[axes[*k]])).collect();
        let known: Option<Vec<f64>> = pairs
            .iter()
            .map(|(s, n)| match (s.as_const(), n.as_const()) {
                (Some(s), Some(n)) => Some(s as f64 / n as f64),
                // A multiple of a size that is known only at run time.
                _ => (1..=64).find(|m| cx.m.syms.eq(*s, *n * *m) == Answer::Yes).map(|m| m as f64),
            })
            .collect();
        let pick = |a: f64, b: f64| if self.aspect == Aspect::NotLarger { a.min(b) } else { a.max(b) };
        match known.and_then(|v| v.into_iter().reduce(pick)) {
            Some(s) => Value::Known(s),
            None => {
                let e = pairs.into_iter().map(|(s, n)| wide(s) / wide(n)).reduce(|a, b| Expr::bin(op, a, b));
                Value::At(e.unwrap_or(Expr::num(ElemType::F64, 1.0)))
            }
        }
    }

    fn plan(&self, cx: &mut LowerCx, task: Task) -> Plan {
        let (axis, n, out, transform) = (task.axis, task.input, task.output, self.transform);
        let reach = self.filter.reach();
        let nearest = matches!(self.filter, Filter::Nearest(_));
        if let (Some(s), Some(from), Some(to)) =
            (task.scale.known(), task.region.0.known(), task.region.1.known())
        {
            let shrink = if self.antialias { s.min(1.0) } else { 1.0 };
            let taps = if nearest { 1 } else { 2 * (reach as f64 / shrink).ceil() as i64 };
            // In these modes the values repeat after p outputs (q inputs) for a scale of p / q: the output
            // never has exactly one element, or its size is not rounded.
            let relative = |p: i64, q: i64| match transform {
                Transform::HalfPixel | Transform::Asymmetric => true,
                Transform::PytorchHalfPixel => p > 1,
                Transform::HalfPixelSymmetric => q == 1,
                _ => false,
            };
            let period = coords::ratio(s).filter(|(p, q)| relative(*p, *q) && !self.exclude_outside);
            let fixed = n.as_const().is_some()
                && out.as_const().is_some_and(|out| out <= TABLE && out * taps <= 1 << 22);
            // Such quotients are exact in float32.
            let exact = |(p, q): (i64, i64)| p.count_ones() == 1 && q.count_ones() == 1;
            let period = period.filter(|r| !fixed || exact(*r));
            let rule = Rule {
                mode: transform,
                filter: self.filter,
                shrink,
                taps,
                normalize: self.antialias || self.exclude_outside,
                inside: self.exclude_outside,
                exact: period.is_some(),
            };
            let make = |n: f64, out: f64, count: usize| {
                let sizes = Sizes { input: n, output: out, scale: s, region: (from, to) };
                coords::table(&sizes, count, &rule)
            };
            let table = match (n.as_const(), out.as_const(), period) {
                (Some(n), Some(out), _) if fixed => Some((make(n as f64, out as f64, out as usize), out)),
                (_, _, Some((p, _))) => Some((make(1e6, 1e6 * s, p as usize), p)),
                _ => None,
            };
            if let Some((t, rows)) = table {
                let line = match period {
                    Some(ratio) if !fixed => coords::periodic_line(&t.first, ratio),
                    _ => coords::line(&t.first),
                };
                let known = out.as_const() == Some(rows);
                if let Some(first) = line
                    .map(|(a, b, c)| First::Line(a, b, c))
                    .or_else(|| known.then(|| First::Table(self.table(cx, &t.first, n, taps))))
                {
                    let weights = (!nearest).then(|| {
                        let w = t.weights[..(rows * taps) as usize].iter();
                        let c = match weight_type(cx) {
                            ElemType::F64 => ConstData::new(
                                ElemType::F64,
                                vec![rows, taps],
                                w.flat_map(|w| w.to_le_bytes()).collect::<Vec<_>>(),
                            ),
                            _ => Some(ConstData::f32s(
                                vec![rows, taps],
                                &w.map(|w| *w as f32).collect::<Vec<_>>(),
                            )),
                        };
                        constant(cx, "weights", c.unwrap_or(ConstData::f32s(vec![0], &[])))
                    });
                    let outside = if transform == Transform::Crop && t.outside.contains(&true) {
                        ConstData::new(
                            ElemType::Bool,
                            vec![rows],
                            t.outside.iter().map(|b| u8::from(*b)).collect::<Vec<_>>(),
                        )
                        .map(|c| constant(cx, "outside", c))
                    } else {
                        None
                    };
                    return Plan {
                        axis,
                        taps: Dim::constant(taps),
                        first,
                        weights,
                        period: (!known).then_some(rows),
                        outside,
                    };
                }
            }
        }
        self.plan_at_run_time(cx, task)
    }

    /// The first sources of all elements. Where a loop counts the sources, vectors of elements have as many
    /// lanes as vectors of positions.
    fn table(&self, cx: &mut LowerCx, first: &[i64], n: Dim, taps: i64) -> Buf {
        let short = taps > ALONG_AXIS && n.as_const().is_some_and(|n| n <= MOST);
        let words = first.iter().flat_map(|i| (*i as i32).to_le_bytes()).collect::<Vec<_>>();
        let c = short.then(|| ConstData::new(ElemType::I32, vec![first.len() as i64], words)).flatten();
        constant(cx, "sources", c.unwrap_or_else(|| ConstData::from_i64s(first)))
    }

    /// Emits small kernels that compute coordinates, sources and weights.
    fn plan_at_run_time(&self, cx: &mut LowerCx, task: Task) -> Plan {
        let (axis, n, out, transform, scale) =
            (task.axis, task.input, task.output, self.transform, task.scale);
        let (f64s, reach) = (ElemType::F64, self.filter.reach());
        let taps = match (&self.filter, &scale) {
            (Filter::Nearest(_), _) => Dim::constant(1),
            (_, Value::Known(s)) => Dim::constant(
                2 * (reach as f64 / if self.antialias { s.min(1.0) } else { 1.0 }).ceil() as i64,
            ),
            // The output size has been rounded to nearest at most: scale >= (out - 1/2) / n. Surplus taps
            // have the weight 0.
            _ if self.antialias => (n * (2 * reach)).ceil_div((out * 2 - 1).max(1)).max(reach) * 2,
            _ => Dim::constant(2 * reach),
        };
        let scale = scale.expr();
        let shrink =
            if self.antialias { scale.clone().min(Expr::num(f64s, 1.0)) } else { Expr::num(f64s, 1.0) };
        let sizes = Sizes {
            input: wide(n),
            output: wide(out),
            scale,
            region: (task.region.0.expr(), task.region.1.expr()),
        };
        let x = cx.temp("coordinates", f64s, vec![out]);
        cx.kernel(|k| {
            task.checks.into_iter().for_each(|c| runtime::check(k, c));
            k.nest(LoopKind::Par, &[out], |k, at| {
                let v = sizes.source_single(transform, wide(at[0]));
                k.store(x, at, v);
            });
        });
        // Vectors of elements have as many lanes as vectors of their sources.
        let near = Expr::cmp_index(BinOp::Le, n, MOST);
        if cx.m.syms.range(n).hi.is_none_or(|n| n > MOST) {
            cx.m.driver.push(Stmt::Check { cond: near, status: Status::Dim });
        }
        let sources = cx.temp("sources", ElemType::I32, vec![taps, out]);
        let start = Dim::constant(1) - taps.floor_div(2);
        cx.map(sources, |k, at| {
            let v = k.load(x, &at[1..]);
            let first = match self.filter {
                Filter::Nearest(m) => Expr::cast(f64s, ElemType::I64, Filter::nearest(m, v)),
                _ => Expr::cast(f64s, ElemType::I64, Expr::un(UnOp::Ceil, v)) + Expr::index(start - 1),
            };
            let source = first + Expr::index(at[0]);
            let inside = source.max(Expr::int(ElemType::I64, 0)).min(Expr::index(n - 1));
            Expr::cast(ElemType::I64, ElemType::I32, inside)
        });
        let weights = (!matches!(self.filter, Filter::Nearest(_)))
            .then(|| self.weights_at_run_time(cx, x, n, out, taps, shrink));
        let outside = (transform == Transform::Crop).then(|| {
            let b = cx.temp("outside", ElemType::Bool, vec![out]);
            cx.map(b, |k, at| {
                let low = Expr::bin(BinOp::Lt, k.load(x, at), Expr::num(f64s, 0.0));
                Expr::bin(BinOp::Or, low, Expr::bin(BinOp::Gt, k.load(x, at), wide(n - 1)))
            });
            b
        });
        Plan { axis, taps, first: First::Computed(sources), weights, period: None, outside }
    }

    fn weights_at_run_time(
        &self,
        cx: &mut LowerCx,
        x: Buf,
        n: Dim,
        out: Dim,
        taps: Dim,
        shrink: Expr,
    ) -> Buf {
        let f64s = ElemType::F64;
        let start = Dim::constant(1) - taps.floor_div(2);
        let raw = cx.temp("raw_weights", f64s, vec![out, taps]);
        cx.map(raw, |k, at| {
            let position = k.load(x, &at[..1]);
            let i = Expr::cast(ElemType::I64, f64s, Expr::index(at[1] + start));
            k.shared(position, |k, x| {
                let base = Expr::un(UnOp::Ceil, x.clone()) - Expr::num(f64s, 1.0);
                k.shared(base, |k, base| {
                    let d = (i.clone() - (x - base.clone())) * shrink;
                    let w = k.shared(d, |_, d| self.filter.weight(d));
                    if !self.exclude_outside {
                        return w;
                    }
                    let at = base + i;
                    let low = Expr::bin(BinOp::Lt, at.clone(), Expr::num(f64s, 0.0));
                    let high = Expr::bin(BinOp::Gt, at, Expr::cast(ElemType::I64, f64s, Expr::index(n - 1)));
                    Expr::select(Expr::bin(BinOp::Or, low, high), Expr::num(f64s, 0.0), w)
                })
            })
        });
        let wty = weight_type(cx);
        let weights = cx.temp("weights", wty, vec![taps, out]);
        cx.kernel(|k| {
            k.nest(LoopKind::Par, &[out], |k, o| {
                let total = k.acc(Expr::num(f64s, 0.0));
                k.nest(LoopKind::Seq, &[taps], |k, t| {
                    let v = k.load(raw, &[o[0], t[0]]);
                    k.update(BinOp::Add, total, v);
                });
                let total = k.let_(Expr::acc(total));
                let zero = Expr::bin(BinOp::Eq, total.clone(), Expr::num(f64s, 0.0));
                let total = k.let_(Expr::select(zero, Expr::num(f64s, 1.0), total));
                k.nest(LoopKind::Seq, &[taps], |k, t| {
                    let v = k.load(raw, &[o[0], t[0]]);
                    let v = if self.antialias || self.exclude_outside { v / total } else { v };
                    k.store(weights, &[t[0], o[0]], Expr::cast(f64s, wty, v));
                });
            });
        });
        weights
    }
}

/// Weights have the precision that the elements require.
fn weight_type(cx: &LowerCx) -> ElemType {
    if cx.elem(cx.input(0)) == ElemType::F64 { ElemType::F64 } else { ElemType::F32 }
}

fn constant(cx: &mut LowerCx, name: &str, c: ConstData) -> Buf {
    cx.m.constant(name, Arc::new(c))
}

/// `body` applied to the index of source `t` of output element `o`.
pub fn source(
    k: &mut KernelBuilder,
    p: &Plan,
    n: Dim,
    o: Dim,
    t: Dim,
    body: impl FnOnce(&mut KernelBuilder, Dim) -> Expr,
) -> Expr {
    match p.first {
        First::Line(a, b, c) => {
            let i = (o * a + b).floor_div(c) + t;
            let low = if k.m.syms.is_nonneg(i) { i } else { i.max(0) };
            let i = if k.m.syms.is_nonneg(n - 1 - i) { low } else { low.min(n - 1) };
            body(k, i)
        }
        First::Table(b) => {
            let ty = k.m.bufs[b].ty;
            let number = |d: Dim| Expr::cast(ElemType::I64, ty, Expr::index(d));
            let i = (k.load(b, &[o]) + number(t)).max(Expr::int(ty, 0)).min(number(n - 1));
            k.with_index(i, n, body)
        }
        First::Computed(b) => {
            // The limit has no effect: it tells that these are positions in an image, most of them adjacent.
            let i = k.load(b, &[t, o]).max(Expr::int(ElemType::I32, 0));
            k.with_index(i, n, body)
        }
    }
}

/// The weight of source `t` of element `o`.
pub fn weight(k: &KernelBuilder, p: &Plan, w: Buf, o: Dim, t: Dim, ty: ElemType) -> Expr {
    let row = p.period.map_or(o, |m| o.modulo(m));
    let at = if k.m.is_constant(w) { [row, t] } else { [t, row] };
    Expr::cast(k.m.bufs[w].ty, ty, k.load(w, &at))
}
