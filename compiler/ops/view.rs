//! Operators that only change the shape: the result is a view of the operand's memory.
//!
//! | operator | versions |
//! |---|---|
//! | Reshape | 1: attribute `shape`; 5: input; 14: `allowzero` |
//! | Squeeze, Unsqueeze | 1, 11: attribute `axes` (11: negative ones too); 13: input |
//! | Flatten | 1, 9: axis in 0..=rank; 11: negative too |
//! | Identity | |
//!
//! For a shape or axes known only at run time, see `runtime`. Squeeze without axes keeps dimensions whose
//! sizes the model computes, and a run-time check requires that none of them is 1, because another rank would
//! be another graph.

use super::support::runtime;
use super::{Attrs, Elements, InferCx, Known, LowerCx, Operator};
use crate::diag::{Result, codes};
use crate::nest::{BinOp, Buf, Expr, KernelBuilder};
use crate::ops::from_end;
use crate::sym::{Answer, Dim, SymKind};
use crate::tensor::ValueType;

/// The operators.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum View {
    Reshape { shape: Option<Vec<i64>>, allowzero: bool },
    Squeeze(Option<Vec<i64>>),
    Unsqueeze(Option<Vec<i64>>),
    Flatten(i64),
    Identity,
}

impl Operator for View {
    const OPS: &'static [&'static str] = &["Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity"];
    fn elements(_op: &str) -> Elements {
        Elements::Any
    }
    fn parse(a: &mut Attrs) -> Result<Self> {
        a.ignore("consumed_inputs");
        Ok(match a.op() {
            "Reshape" => View::Reshape { shape: a.ints_opt("shape"), allowzero: a.flag("allowzero", false) },
            "Squeeze" => View::Squeeze(a.ints_opt("axes")),
            "Unsqueeze" => View::Unsqueeze(a.ints_opt("axes")),
            "Flatten" => View::Flatten(a.int("axis", 1)),
            _ => View::Identity,
        })
    }
    fn infer(&self, cx: &mut InferCx) -> Result<()> {
        if let View::Identity = self {
            let o = cx.operand(0)?;
            cx.set_type(0, o.ty.clone(), o.known.clone());
            return Ok(());
        }
        let t = cx.tensor(0).clone();
        if self.asks_input() && runtime::late(cx, 1) {
            let n = runtime::need_length(
                cx,
                1,
                if matches!(self, View::Reshape { .. }) { "sizes" } else { "axes" },
            )?;
            let rank = match self {
                View::Reshape { .. } => n,
                View::Unsqueeze(_) => t.rank() + n,
                _ => match t.rank().checked_sub(n) {
                    Some(r) => r,
                    None => {
                        return cx.error(codes::OP_SHAPE, format!("{n} axes for rank {}", t.rank())).fail();
                    }
                },
            };
            let dims = cx.sizes(0, rank, Some(t.count()));
            cx.set(0, t.elem, dims);
            return Ok(());
        }
        let dims = match self {
            View::Reshape { shape, allowzero } => {
                let target = match shape {
                    Some(s) => s.iter().map(|&v| Dim::constant(v)).collect(),
                    None => cx.need_dims(1, "the shape")?,
                };
                reshape(cx, &t.dims, target, *allowzero)?
            }
            View::Squeeze(attr) => squeeze(cx, &t.dims, attr)?,
            View::Unsqueeze(attr) => unsqueeze(cx, &t.dims, attr)?,
            View::Flatten(axis) => {
                let r = t.rank() as i64;
                if *axis < -r || *axis > r {
                    return cx
                        .error(codes::OP_ATTRIBUTE, format!("axis {axis} is out of range for rank {r}"))
                        .fail();
                }
                let axis = from_end(*axis, r) as usize;
                vec![
                    Dim::product(t.dims[..axis].iter().copied()),
                    Dim::product(t.dims[axis..].iter().copied()),
                ]
            }
            View::Identity => t.dims.clone(),
        };
        let known = match cx.dims_value(0) {
            Some(v) if dims.len() <= 1 => Known::Dims(v),
            _ => Known::No,
        };
        cx.set_type(0, ValueType::Tensor(crate::tensor::TensorType::new(t.elem, dims)), known);
        Ok(())
    }
    fn lower(&self, cx: &mut LowerCx) -> Result<()> {
        let x = cx.input(0);
        if self.asks_input()
            && let Some(list) = runtime::late_operand(cx, 1)
        {
            self.define_sizes(cx, list);
        }
        if cx.output_opt(0).is_some() {
            cx.alias(0, x);
        }
        Ok(())
    }
}

impl View {
    /// True if the shape or the axes are an input.
    fn asks_input(&self) -> bool {
        matches!(self, View::Reshape { shape: None, .. } | View::Squeeze(None) | View::Unsqueeze(None))
    }
    /// Defines the sizes of the result from the values of the operand.
    fn define_sizes(&self, cx: &mut LowerCx, list: Buf) {
        let (from, to) = (cx.dims(cx.input(0)), cx.dims(cx.output(0)));
        let total = Dim::product(from.iter().copied());
        cx.define_all(&to, |k| {
            let own: Vec<Expr> = from.iter().map(|d| Expr::index(*d)).collect();
            let sizes = match self {
                View::Reshape { allowzero, .. } => target_sizes(k, list, &own, total, *allowzero),
                View::Unsqueeze(_) => {
                    // A dimension that is not an axis has the input's size at index `before`, the number of
                    // preceding dimensions that are not axes.
                    let flags = runtime::axis_flags(k, list, to.len());
                    let mut before = runtime::int(0);
                    let mut out = vec![];
                    for f in flags {
                        let old = own.iter().enumerate().fold(runtime::int(1), |e, (d, n)| {
                            Expr::select(runtime::eq(before.clone(), runtime::int(d as i64)), n.clone(), e)
                        });
                        let axis = runtime::eq(f.clone(), runtime::int(1));
                        out.push(k.let_(Expr::select(axis, runtime::int(1), old)));
                        before = k.let_(before + (runtime::int(1) - f));
                    }
                    out
                }
                _ => {
                    let flags = runtime::axis_flags(k, list, from.len());
                    for (f, n) in flags.iter().zip(&own) {
                        runtime::check(
                            k,
                            runtime::or(
                                runtime::eq(f.clone(), runtime::int(0)),
                                runtime::eq(n.clone(), runtime::int(1)),
                            ),
                        );
                    }
                    runtime::pick(k, &flags, 0, &own, to.len())
                }
            };
            runtime::check_total(k, &sizes, total);
            sizes
        });
    }
}

/// 0 copies the input's size (unless `allowzero`), and a single -1 is inferred.
fn target_sizes(k: &mut KernelBuilder, list: Buf, from: &[Expr], total: Dim, allowzero: bool) -> Vec<Expr> {
    let target = runtime::values(k, list);
    let (mut open, mut others) = (runtime::int(0), runtime::int(1));
    let mut sizes = vec![];
    for (i, v) in target.iter().enumerate() {
        runtime::check(k, runtime::le(runtime::int(-1), v.clone()));
        let rest = k.let_(runtime::eq(v.clone(), runtime::int(-1)));
        let size = match from.get(i) {
            _ if allowzero => v.clone(),
            Some(n) => Expr::select(runtime::eq(v.clone(), runtime::int(0)), n.clone(), v.clone()),
            None => {
                runtime::check(k, Expr::bin(BinOp::Ne, v.clone(), runtime::int(0)));
                v.clone()
            }
        };
        let size = k.let_(size);
        open = k.let_(open + runtime::one_if(rest.clone()));
        others = k.let_(others * Expr::select(rest.clone(), runtime::int(1), size.clone()));
        sizes.push((rest, size));
    }
    runtime::check(k, runtime::le(open.clone(), runtime::int(1)));
    // -1 cannot be inferred if another size is 0.
    runtime::check(
        k,
        runtime::or(
            runtime::eq(open, runtime::int(0)),
            Expr::bin(BinOp::Ne, others.clone(), runtime::int(0)),
        ),
    );
    let rest = k.let_(
        Expr::index(total)
            / Expr::select(runtime::eq(others.clone(), runtime::int(0)), runtime::int(1), others),
    );
    sizes.into_iter().map(|(open, size)| k.let_(Expr::select(open, rest.clone(), size))).collect()
}

/// 0 copies the input's size (unless `allowzero`), and a single -1 is inferred.
fn reshape(cx: &mut InferCx, from: &[Dim], target: Vec<Dim>, allowzero: bool) -> Result<Vec<Dim>> {
    let mut dims = vec![];
    let mut rest = None;
    for (i, d) in target.iter().enumerate() {
        match d.as_const() {
            Some(0) if !allowzero => match from.get(i) {
                Some(d) => dims.push(*d),
                None => {
                    return cx
                        .error(
                            codes::OP_SHAPE,
                            format!("the shape's entry {i} is 0, but the input has rank {}", from.len()),
                        )
                        .fail();
                }
            },
            Some(-1) if rest.is_none() => {
                rest = Some(i);
                dims.push(Dim::constant(1));
            }
            Some(v) if v < 0 => {
                return cx.error(codes::OP_SHAPE, "the shape holds a negative size or -1 twice").fail();
            }
            // A computed 0 would copy the input's size. It is rejected at run time, unless both are 0.
            None if !allowzero && from.get(i).is_some_and(|f| f != d) => {
                cx.syms.require_at_most(from[i].min(1), *d);
                dims.push(*d);
            }
            _ => dims.push(*d),
        }
    }
    let total = Dim::product(from.iter().copied());
    let others = Dim::product(dims.iter().copied());
    match rest {
        Some(i) => {
            cx.require(
                others.as_const() != Some(0),
                codes::OP_SHAPE,
                "-1 can not be told: the other sizes hold a 0",
            )?;
            dims[i] = exact_quotient(total, others).unwrap_or_else(|| total.floor_div(others));
            cx.require(
                cx.syms.divides(others, total) != Answer::No,
                codes::OP_SHAPE,
                "the input's size is not a multiple of the shape's",
            )?;
            if dims[i] * others != total {
                cx.require_eq(dims[i] * others, total, "the input's size is not a multiple of the shape's");
            }
        }
        None => cx.require_eq(others, total, "the shapes have different numbers of elements"),
    }
    Ok(dims)
}

/// `a / b` if every term of `a` is divisible by `b`. Symbols cancel, although a size of 0 would make the
/// quotient arbitrary (spec).
fn exact_quotient(a: Dim, b: Dim) -> Option<Dim> {
    let q = a.floor_div(b);
    (q * b == a).then_some(q)
}

fn axes(cx: &InferCx, attr: &Option<Vec<i64>>, rank: usize) -> Result<Option<Vec<usize>>> {
    let list = match attr {
        Some(a) => Some(a.clone()),
        None if cx.has(1) => Some(cx.need_ints(1, "the axes")?),
        None => None,
    };
    let Some(list) = list else { return Ok(None) };
    let mut out = list.into_iter().map(|a| cx.axis(a, rank)).collect::<Result<Vec<_>>>()?;
    out.sort_unstable();
    cx.require(!out.windows(2).any(|w| w[0] == w[1]), codes::OP_ATTRIBUTE, "an axis is named twice")?;
    Ok(Some(out))
}

fn squeeze(cx: &mut InferCx, from: &[Dim], attr: &Option<Vec<i64>>) -> Result<Vec<Dim>> {
    match axes(cx, attr, from.len())? {
        Some(list) => {
            for a in &list {
                cx.require_eq(from[*a], Dim::constant(1), &format!("axis {a} can not be squeezed"));
            }
            Ok(from.iter().enumerate().filter(|(i, _)| !list.contains(i)).map(|(_, d)| *d).collect())
        }
        None => {
            let one = Dim::constant(1);
            // A size chosen by the caller can be bound. For a size computed by the model, the rank is decided
            // here.
            let (computed, chosen): (Vec<Dim>, Vec<Dim>) = from
                .iter()
                .filter(|d| cx.syms.eq(**d, one) == Answer::Unknown)
                .partition(|d| d.syms().into_iter().any(|s| cx.syms.kind(s) == SymKind::Runtime));
            if !chosen.is_empty() {
                return cx
                    .error(codes::DYNAMIC_VALUE, "Squeeze without axes needs to know which sizes are 1")
                    .help("bind the dimensions with --dim")
                    .fail();
            }
            for d in computed {
                cx.syms.require_at_most(one, (d - 1).max(one - d));
            }
            Ok(from.iter().filter(|d| cx.syms.eq(**d, one) != Answer::Yes).copied().collect())
        }
    }
}

fn unsqueeze(cx: &mut InferCx, from: &[Dim], attr: &Option<Vec<i64>>) -> Result<Vec<Dim>> {
    let n = match attr {
        Some(a) => a.len(),
        None => cx.need_ints(1, "the axes")?.len(),
    };
    let list = axes(cx, attr, from.len() + n)?.unwrap_or_default();
    let mut rest = from.iter();
    Ok((0..from.len() + n)
        .map(|i| if list.contains(&i) { Dim::constant(1) } else { rest.next().copied().unwrap_or_default() })
        .collect())
}
