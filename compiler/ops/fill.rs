//! Operators that make tensors from sizes: ConstantOfShape, Expand, Range, EyeLike.

use super::{Attrs, InferCx, Known, LowerCx, Operator, runtime};
use crate::diag::{Result, codes};
use crate::nest::{BinOp, Buf, Expr, KernelBuilder, LoopKind, UnOp};
use crate::sym::Dim;
use crate::tensor::{ConstData, ElemType};
use std::sync::Arc;

/// The operators.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub enum Fill {
    ConstantOfShape(Option<Arc<ConstData>>),
    Expand,
    Range,
    EyeLike { dtype: Option<ElemType>, k: i64 },
}

impl Operator for Fill {
    const OPS: &'static [&'static str] = &["ConstantOfShape", "Expand", "Range", "EyeLike"];
    fn parse(a: &mut Attrs) -> Result<Self> {
        Ok(match a.op() {
            "ConstantOfShape" => {
                let v = a.tensor_opt("value")?;
                if v.as_ref().is_some_and(|v| v.count() != 1) {
                    return a.error("attribute \"value\" must hold one element").fail();
                }
                Fill::ConstantOfShape(v)
            }
            "Expand" => Fill::Expand,
            "Range" => {
                a.ignore("stash_type");
                Fill::Range
            }
            _ => Fill::EyeLike { dtype: a.elem_type_opt("dtype")?, k: a.int("k", 0)? },
        })
    }
    fn infer(&self, cx: &mut InferCx) -> Result<()> {
        match self {
            Fill::ConstantOfShape(value) if runtime::declared_for(cx, 0, 0).is_some() => {
                let d = runtime::declared_for(cx, 0, 0).unwrap_or_default();
                let n = cx.tensor(0)?.count();
                cx.require_eq(n, Dim::from(d.len()), "the declared shape of the result has another rank")?;
                cx.set(0, value.as_ref().map_or(ElemType::F32, |v| v.elem()), d);
            }
            Fill::Expand if runtime::declared_for(cx, 1, 0).is_some() => {
                let t = cx.tensor(0)?;
                let d = runtime::declared_for(cx, 1, 0).unwrap_or_default();
                let rank = runtime::length(cx, 1).map_or(d.len(), |n| n.max(t.rank()));
                runtime::require_rank(cx, &d, rank)?;
                let wide = cx.broadcast(&[&t.dims, &d])?;
                for (a, b) in wide.into_iter().zip(&d) {
                    cx.require_eq(a, *b, "the input does not expand to the declared shape")?;
                }
                cx.set(0, t.elem, d);
            }
            Fill::ConstantOfShape(value) => {
                let dims = cx.need_dims(0, "the shape")?;
                if dims.iter().any(|d| d.as_const().is_some_and(|d| d < 0)) {
                    return cx.error(codes::OP_SHAPE, "the shape holds a negative size").fail();
                }
                let elem = value.as_ref().map_or(ElemType::F32, |v| v.elem());
                let known = match (value.as_ref().and_then(|v| v.to_i64s()), dims.as_slice()) {
                    (Some(v), []) => Known::Dims(vec![Dim::constant(v[0])]),
                    (Some(v), [n]) if n.as_const().is_some_and(|n| n <= 64) => Known::Dims(vec![Dim::constant(v[0]); n.as_const().unwrap_or(0) as usize]),
                    _ => Known::No,
                };
                cx.set_known(0, elem, dims, known);
            }
            Fill::Expand => {
                let t = cx.tensor(0)?;
                let target = cx.need_dims(1, "the shape")?;
                let dims = cx.broadcast(&[&t.dims, &target])?;
                let known = match (cx.dims_value(0), dims.as_slice()) {
                    (Some(v), [n]) if v.len() == 1 && n.as_const().is_some_and(|n| n <= 64) => Known::Dims(vec![v[0]; n.as_const().unwrap_or(0) as usize]),
                    (Some(v), [n]) if Dim::from(v.len()) == *n => Known::Dims(v),
                    _ => Known::No,
                };
                cx.set_known(0, t.elem, dims, known);
            }
            Fill::Range => match bounds_at_run_time(cx) {
                Some(d) => cx.set(0, cx.tensor(0)?.elem, d),
                None => infer_range(cx)?,
            },
            Fill::EyeLike { dtype, .. } => {
                let t = cx.tensor(0)?;
                if t.rank() != 2 {
                    return cx.error(codes::OP_SHAPE, "EyeLike needs a matrix").fail();
                }
                cx.set(0, dtype.unwrap_or(t.elem), t.dims.clone());
            }
        }
        Ok(())
    }
    fn lower(&self, cx: &mut LowerCx) -> Result<()> {
        let out = cx.output(0);
        let ty = cx.elem(out).compute();
        match self {
            Fill::ConstantOfShape(value) => {
                let v = match value {
                    None => Expr::num(ty, 0.0),
                    Some(c) => match (c.to_f64s(), c.to_i64s()) {
                        (Some(f), _) => Expr::num(ty, f[0]),
                        (_, Some(i)) => Expr::int(ty, i[0]),
                        _ => return cx.error(codes::OP_FEATURE, "ConstantOfShape of this type is not supported yet").fail(),
                    },
                };
                let shape = cx.input_opt(0).filter(|_| cx.dims_value(0).is_none());
                checked_map(
                    cx,
                    out,
                    |k, dims| {
                        shape.into_iter().for_each(|s| {
                            dims.iter().enumerate().for_each(|(i, d)| {
                                let same = runtime::eq(runtime::value(k, s, i), Expr::index(*d));
                                runtime::check(k, same);
                            })
                        })
                    },
                    |_, _| v,
                );
            }
            Fill::Expand => {
                let x = cx.input(0);
                let from = cx.dims(x);
                let shape = cx.input_opt(1).filter(|_| cx.dims_value(1).is_none()).map(|s| (s, runtime::count(&cx.dims(s)).unwrap_or(0)));
                checked_map(
                    cx,
                    out,
                    |k, dims| {
                        let Some((s, n)) = shape else { return };
                        for (j, p) in (0..n).zip(dims.len() - n..) {
                            let v = runtime::value(k, s, j);
                            let v = k.let_(v);
                            let own = from.get((p + from.len()).wrapping_sub(dims.len())).copied().unwrap_or(Dim::constant(1));
                            let one = runtime::eq(v.clone(), runtime::int(1)).and(Expr::cmp_index(BinOp::Eq, own, dims[p]));
                            runtime::check(k, runtime::or(runtime::eq(v, Expr::index(dims[p])), one));
                        }
                    },
                    |k, at| k.load_broadcast(x, at),
                );
            }
            Fill::Range => {
                let (start, limit, delta) = (cx.input(0), cx.input(1), cx.input(2));
                let known = if ty.is_float() { (0..3).all(|i| cx.constant(i).is_some()) } else { (0..3).all(|i| cx.dims_value(i).is_some()) };
                checked_map(
                    cx,
                    out,
                    |k, dims| {
                        if !known {
                            check_count(k, [start, limit, delta], ty, dims[0])
                        }
                    },
                    |k, at| {
                        let i = Expr::cast(ElemType::I64, ty, Expr::index(at[0]));
                        let z = |k: &crate::nest::KernelBuilder, b| k.load(b, &vec![Dim::constant(0); k.m.bufs[b].dims.len()]);
                        z(k, start) + i * z(k, delta)
                    },
                );
            }
            Fill::EyeLike { k: diag, .. } => {
                cx.map(out, |_, at| Expr::select(Expr::cmp_index(BinOp::Eq, at[0] + *diag, at[1]), Expr::num(ty, 1.0), Expr::num(ty, 0.0)));
            }
        }
        Ok(())
    }
}

/// A map kernel with checks before it.
fn checked_map(cx: &mut LowerCx, out: Buf, checks: impl FnOnce(&mut KernelBuilder, &[Dim]), value: impl FnOnce(&mut KernelBuilder, &[Dim]) -> Expr) {
    let dims = cx.dims(out);
    cx.kernel(|k| {
        checks(k, &dims);
        k.nest(LoopKind::Par, &dims, |k, at| {
            let v = value(k, at);
            k.store(out, at, v);
        });
    });
}

/// The declared shape of Range if one of its bounds is only known at run time.
fn bounds_at_run_time(cx: &InferCx) -> Option<Vec<Dim>> {
    let float = cx.tensor(0).ok()?.elem.is_float();
    let known = |i| if float { cx.constant(i).is_some() } else { cx.dims_value(i).is_some() };
    if (0..3).all(known) { None } else { cx.declared.first()?.clone().filter(|d| d.len() == 1) }
}

/// Checks that Range has `n` elements: max(0, ceil((limit - start) / delta)).
fn check_count(k: &mut KernelBuilder, bounds: [Buf; 3], ty: ElemType, n: Dim) {
    let [start, limit, delta] = bounds.map(|b| k.load(b, &vec![Dim::constant(0); k.m.bufs[b].dims.len()]));
    let (span, delta) = (k.let_(limit - start), k.let_(delta));
    let found = if ty.is_float() {
        let wide = |e: Expr| Expr::cast(ty, ElemType::F64, e);
        Expr::cast(ElemType::F64, ElemType::I64, Expr::un(UnOp::Ceil, wide(span) / wide(delta)))
    } else {
        let (span, delta) = (k.let_(Expr::cast(ty, ElemType::I64, span)), k.let_(Expr::cast(ty, ElemType::I64, delta)));
        runtime::check(k, Expr::bin(BinOp::Ne, delta.clone(), runtime::int(0)));
        let up = k.let_(Expr::bin(BinOp::Gt, delta.clone(), runtime::int(0)));
        let (span, step) = (Expr::select(up.clone(), span.clone(), -span), k.let_(Expr::select(up, delta.clone(), -delta)));
        (span + step.clone() - runtime::int(1)) / step
    };
    runtime::check(k, runtime::eq(found.max(runtime::int(0)), Expr::index(n)));
}

fn infer_range(cx: &mut InferCx) -> Result<()> {
    let elem = cx.tensor(0)?.elem;
    if elem.is_float() {
        let v: Option<Vec<f64>> = (0..3).map(|i| cx.constant(i).and_then(|c| c.scalar())).collect();
        let Some(v) = v else { return cx.error(codes::DYNAMIC_VALUE, "the bounds of Range are only known at run time").fail() };
        if v[2] == 0.0 {
            return cx.error(codes::OP_SHAPE, "delta must not be 0").fail();
        }
        let n = ((v[1] - v[0]) / v[2]).ceil().max(0.0);
        if !n.is_finite() || n > 1e15 {
            return cx.error(codes::OP_SHAPE, "the bounds of Range are not finite").fail();
        }
        cx.set(0, elem, vec![Dim::constant(n as i64)]);
        return Ok(());
    }
    let one = |cx: &InferCx, i, what| -> Result<Dim> {
        match cx.need_dims(i, what)?.as_slice() {
            [d] => Ok(*d),
            _ => cx.error(codes::OP_SHAPE, format!("{what} must be a scalar")).fail(),
        }
    };
    let (start, limit, delta) = (one(cx, 0, "start")?, one(cx, 1, "limit")?, one(cx, 2, "delta")?);
    let n = match delta.as_const() {
        Some(0) => return cx.error(codes::OP_SHAPE, "delta must not be 0").fail(),
        Some(d) if d > 0 => (limit - start).ceil_div(delta),
        Some(_) => (start - limit).ceil_div(-delta),
        None => return cx.error(codes::DYNAMIC_VALUE, "delta is only known at run time").fail(),
    };
    let n = if cx.syms.is_nonneg(n) { n } else { n.max(0) };
    let known = match n.as_const() {
        Some(c) if c <= 64 => Known::Dims((0..c).map(|i| start + delta * i).collect()),
        _ => Known::No,
    };
    cx.set_known(0, elem, vec![n], known);
    Ok(())
}
