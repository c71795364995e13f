//! Operators that create tensors from sizes: ConstantOfShape, Expand, Range, EyeLike.

use super::support::runtime;
use super::{Attrs, Elements, InferCx, Known, LowerCx, Operator};
use crate::diag::{Result, codes};
use crate::nest::{BinOp, Buf, Expr, KernelBuilder, UnOp};
use crate::sym::{Answer, Dim};
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
    fn elements(op: &str) -> Elements {
        if op == "Expand" { Elements::Any } else { Elements::Numbers }
    }
    fn parse(a: &mut Attrs) -> Result<Self> {
        Ok(match a.op() {
            "ConstantOfShape" => {
                let v = a.tensor_opt("value");
                a.require(
                    v.as_ref().is_none_or(|v| v.count() == 1),
                    "attribute \"value\" must hold one element",
                )?;
                Fill::ConstantOfShape(v)
            }
            "Expand" => Fill::Expand,
            "Range" => {
                a.ignore("stash_type");
                Fill::Range
            }
            _ => Fill::EyeLike { dtype: a.elem_type_opt("dtype"), k: a.int("k", 0) },
        })
    }
    fn infer(&self, cx: &mut InferCx) -> Result<()> {
        match self {
            Fill::ConstantOfShape(value) if runtime::late(cx, 0) => {
                let n = runtime::need_length(cx, 0, "sizes")?;
                let d = cx.sizes(0, n, None);
                cx.set(0, value.as_ref().map_or(ElemType::F32, |v| v.elem()), d);
            }
            Fill::Expand if runtime::late(cx, 1) => {
                let t = cx.tensor(0).clone();
                let rank = runtime::need_length(cx, 1, "sizes")?.max(t.rank());
                // A size other than 1 is kept.
                let own = |p: usize| {
                    (p + t.rank())
                        .checked_sub(rank)
                        .map(|i| t.dims[i])
                        .filter(|d| cx.syms.eq(*d, Dim::constant(1)) == Answer::No)
                };
                let kept: Vec<Option<Dim>> = (0..rank).map(own).collect();
                let d: Vec<Dim> = kept
                    .into_iter()
                    .enumerate()
                    .map(|(p, d)| d.unwrap_or_else(|| cx.size(0, p, rank)))
                    .collect();
                cx.set(0, t.elem, d);
            }
            Fill::ConstantOfShape(value) => {
                let dims = cx.need_dims(0, "the shape")?;
                cx.require(
                    !dims.iter().any(|d| d.as_const().is_some_and(|d| d < 0)),
                    codes::OP_SHAPE,
                    "the shape holds a negative size",
                )?;
                let elem = value.as_ref().map_or(ElemType::F32, |v| v.elem());
                let known = match (value.as_ref().and_then(|v| v.to_i64s()), dims.as_slice()) {
                    (Some(v), []) => Known::Dims(vec![Dim::constant(v[0])]),
                    (Some(v), [n]) if n.as_const().is_some_and(|n| n <= 64) => {
                        Known::Dims(vec![Dim::constant(v[0]); n.as_const().unwrap_or(0) as usize])
                    }
                    _ => Known::No,
                };
                cx.set_known(0, elem, dims, known);
            }
            Fill::Expand => {
                let t = cx.tensor(0);
                let target = cx.need_dims(1, "the shape")?;
                let dims = cx.broadcast(&[&t.dims, &target])?;
                let known = match (cx.dims_value(0), dims.as_slice()) {
                    (Some(v), [n]) if v.len() == 1 && n.as_const().is_some_and(|n| n <= 64) => {
                        Known::Dims(vec![v[0]; n.as_const().unwrap_or(0) as usize])
                    }
                    (Some(v), [n]) if Dim::from(v.len()) == *n => Known::Dims(v),
                    _ => Known::No,
                };
                cx.set_known(0, t.elem, dims, known);
            }
            Fill::Range if bounds_at_run_time(cx) => {
                let d = cx.sizes(0, 1, None);
                cx.set(0, cx.tensor(0).elem, d);
            }
            Fill::Range => infer_range(cx)?,
            Fill::EyeLike { dtype, .. } => {
                let t = cx.tensor(0);
                cx.require(t.rank() == 2, codes::OP_SHAPE, "EyeLike needs a matrix")?;
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
                        _ => {
                            return cx
                                .error(codes::OP_FEATURE, "ConstantOfShape of this type is not supported yet")
                                .fail();
                        }
                    },
                };
                if let Some(list) = runtime::late_operand(cx, 0) {
                    let dims = cx.dims(out);
                    cx.define_all(&dims, |k| runtime::sizes(k, list));
                }
                cx.map(out, |_, _| v);
            }
            Fill::Expand => {
                let x = cx.input(0);
                let (from, dims) = (cx.dims(x), cx.dims(out));
                if let Some(list) = runtime::late_operand(cx, 1) {
                    cx.define_all(&dims, |k| {
                        let v = runtime::sizes(k, list);
                        let size = |k: &mut KernelBuilder, p: usize| {
                            let own = (p + from.len())
                                .checked_sub(dims.len())
                                .map_or(runtime::int(1), |i| Expr::index(from[i]));
                            let Some(v) = (p + v.len()).checked_sub(dims.len()).map(|i| v[i].clone()) else {
                                return own;
                            };
                            let (one, same) = (
                                runtime::eq(v.clone(), runtime::int(1)),
                                runtime::eq(v.clone(), own.clone()),
                            );
                            let free = k.let_(runtime::eq(own.clone(), runtime::int(1)));
                            runtime::check(k, runtime::or(free.clone(), runtime::or(one, same)));
                            k.let_(Expr::select(free, v, own))
                        };
                        (0..dims.len()).map(|p| size(k, p)).collect()
                    });
                }
                cx.map(out, |k, at| k.load_broadcast(x, at));
            }
            Fill::Range => {
                let bounds = [cx.input(0), cx.input(1), cx.input(2)];
                let number = |i| if i < 2 { cx.dims_value(i).is_some() } else { cx.ints_value(i).is_some() };
                let known =
                    if ty.is_float() { (0..3).all(|i| cx.constant(i).is_some()) } else { (0..3).all(number) };
                if !known {
                    let n = cx.dims(out);
                    cx.define_all(&n, |k| vec![range_count(k, bounds, ty)]);
                }
                let [start, _, delta] = bounds;
                cx.map(out, |k, at| {
                    let i = Expr::cast(ElemType::I64, ty, Expr::index(at[0]));
                    let z = |k: &crate::nest::KernelBuilder, b| {
                        k.load(b, &vec![Dim::constant(0); k.m.bufs[b].dims.len()])
                    };
                    z(k, start) + i * z(k, delta)
                });
            }
            Fill::EyeLike { k: diag, .. } => {
                cx.map(out, |_, at| {
                    Expr::select(
                        Expr::cmp_index(BinOp::Eq, at[0] + *diag, at[1]),
                        Expr::num(ty, 1.0),
                        Expr::num(ty, 0.0),
                    )
                });
            }
        }
        Ok(())
    }
}

/// True if one of Range's bounds is only known at run time.
fn bounds_at_run_time(cx: &InferCx) -> bool {
    let float = cx.tensor(0).elem.is_float();
    let known = |i| {
        if float {
            cx.constant(i).is_some()
        } else {
            cx.dims_value(i).is_some() && (i < 2 || cx.ints_value(i).is_some())
        }
    };
    !(0..3).all(known)
}

/// The number of elements of Range: max(0, ceil((limit - start) / delta)).
fn range_count(k: &mut KernelBuilder, bounds: [Buf; 3], ty: ElemType) -> Expr {
    let [start, limit, delta] = bounds.map(|b| k.load(b, &vec![Dim::constant(0); k.m.bufs[b].dims.len()]));
    let found = if ty.is_float() {
        let wide = |e: Expr| Expr::cast(ty, ElemType::F64, e);
        let n = k.let_(Expr::un(UnOp::Ceil, (wide(limit) - wide(start)) / wide(delta)));
        // The count must be finite.
        runtime::check(
            k,
            Expr::bin(BinOp::Lt, Expr::un(UnOp::Abs, n.clone()), Expr::num(ElemType::F64, 9.0e18)),
        );
        Expr::cast(ElemType::F64, ElemType::I64, n)
    } else {
        let wide = |e: Expr| Expr::cast(ty, ElemType::I64, e);
        let (start, limit, delta) = (k.let_(wide(start)), k.let_(wide(limit)), k.let_(wide(delta)));
        runtime::check(k, Expr::bin(BinOp::Ne, delta.clone(), runtime::int(0)));
        let up = k.let_(Expr::bin(BinOp::Gt, delta.clone(), runtime::int(0)));
        let empty = k.let_(Expr::select(
            up.clone(),
            runtime::le(limit.clone(), start.clone()),
            runtime::le(start.clone(), limit.clone()),
        ));
        let (span, step) = (
            k.let_(Expr::select(up.clone(), limit.clone() - start.clone(), start - limit)),
            k.let_(Expr::select(up, delta.clone(), -delta)),
        );
        // The distance, or the smallest step, may overflow.
        runtime::check(k, runtime::or(empty.clone(), runtime::le(runtime::int(1), span.clone())));
        runtime::check(k, runtime::le(runtime::int(1), step.clone()));
        Expr::select(empty, runtime::int(0), (span - runtime::int(1)) / step + runtime::int(1))
    };
    found.max(runtime::int(0))
}

fn infer_range(cx: &mut InferCx) -> Result<()> {
    let elem = cx.tensor(0).elem;
    if elem.is_float() {
        let v: Option<Vec<f64>> = (0..3).map(|i| cx.constant(i).and_then(|c| c.scalar())).collect();
        let Some(v) = v else {
            return cx.error(codes::DYNAMIC_VALUE, "the bounds of Range are only known at run time").fail();
        };
        cx.require(v[2] != 0.0, codes::OP_SHAPE, "delta must not be 0")?;
        let n = ((v[1] - v[0]) / v[2]).ceil().max(0.0);
        cx.require(n.is_finite() && n <= 1e15, codes::OP_SHAPE, "the bounds of Range are not finite")?;
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
