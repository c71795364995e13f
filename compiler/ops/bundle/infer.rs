//! Types of the results of operators on tables.

use super::{Concat, HEAD, Split};
use crate::diag::{Failure, Result, codes};
use crate::ops::{InferCx, Known};
use crate::sym::Dim;
use crate::tensor::{ConstData, ElemType, TensorType};
use std::sync::Arc;

/// Length and number of columns of a table.
pub(super) fn table(cx: &InferCx, i: usize) -> Result<(Dim, Dim)> {
    match cx.tensor(i).dims[..] {
        [len, columns] => Ok((len, columns)),
        _ => Err(Failure::bug("bundle", "a table has rows and columns")),
    }
}

/// The rank common to all members.
fn rank(cx: &InferCx, columns: Dim) -> Result<usize> {
    match columns.as_const().and_then(|c| usize::try_from(c - HEAD).ok()) {
        Some(r) => Ok(r),
        None => cx
            .error(
                codes::OP_FEATURE,
                "the members of the sequence have several ranks, or one that only run \
                time knows: a single member has no type",
            )
            .help(
                "declare the shape of the sequence's members with its rank, or insert members of one rank \
                only",
            )
            .fail(),
    }
}

/// Members -> table, data. The first `like` operands only determine the element type.
pub(super) fn pack(cx: &mut InferCx, elem: Option<ElemType>, rank: usize, like: usize) -> Result<()> {
    let types: Vec<TensorType> = (0..cx.inputs.len()).map(|i| cx.tensor(i).clone()).collect();
    let elem = elem
        .or(types.first().map(|t| t.elem))
        .ok_or_else(|| Failure::bug("bundle", "a sequence without an element type"))?;
    if types.iter().any(|t| t.elem != elem) {
        return cx
            .error(
                codes::OP_TYPE,
                format!("the members of a sequence must have one element type, here {elem}"),
            )
            .fail();
    }
    let members = &types[like..];
    let columns = match members.first() {
        None => Dim::constant(rank as i64 + HEAD),
        Some(t) if members.iter().all(|u| u.rank() == t.rank()) => Dim::constant(t.rank() as i64 + HEAD),
        Some(_) => cx.size(0, 1, 2),
    };
    cx.set(0, ElemType::I64, vec![Dim::from(members.len()), columns]);
    cx.set(1, elem, vec![Dim::sum(members.iter().map(TensorType::count))]);
    Ok(())
}

/// Table, data -> member.
pub(super) fn at(cx: &mut InferCx, dims: Option<&Vec<Option<i64>>>) -> Result<()> {
    let (_, columns) = table(cx, 0)?;
    let data = cx.tensor(1).clone();
    let rank = rank(cx, columns)?;
    let known = dims.filter(|d| d.len() == rank);
    let size = |cx: &mut InferCx, d: usize| match known.and_then(|k| k[d]) {
        Some(n) => Dim::constant(n),
        None => cx.size(0, d, rank),
    };
    let dims: Vec<Dim> = (0..rank).map(|d| size(cx, d)).collect();
    cx.bound(&dims, data.count());
    cx.set(0, data.elem, dims);
    Ok(())
}

/// Table, data, member -> table, data.
pub(super) fn insert(cx: &mut InferCx) -> Result<()> {
    let (len, columns) = table(cx, 0)?;
    let (data, x) = (cx.tensor(1).clone(), cx.tensor(2).clone());
    if data.elem != x.elem {
        return cx
            .error(codes::OP_TYPE, "the tensor has another element type than the members of the sequence")
            .found_expected(x.elem.to_string(), data.elem.to_string())
            .fail();
    }
    let own = Dim::constant(x.rank() as i64 + HEAD);
    let columns = if len.as_const() == Some(0) || columns == own { own } else { cx.size(0, 1, 2) };
    cx.set(0, ElemType::I64, vec![len + 1, columns]);
    cx.set(1, data.elem, vec![data.count() + x.count()]);
    Ok(())
}

/// Table -> table.
pub(super) fn erase(cx: &mut InferCx) -> Result<()> {
    let (len, columns) = table(cx, 0)?;
    let left = match len.as_const() {
        Some(n) if n > 0 => Dim::constant(n - 1),
        _ => cx.size(0, 0, 2),
    };
    cx.bound(&[left], len);
    cx.set(0, ElemType::I64, vec![left, columns]);
    Ok(())
}

/// Table -> boolean.
pub(super) fn has(cx: &mut InferCx) -> Result<()> {
    let (len, _) = table(cx, 0)?;
    let known = len.as_const().and_then(|n| ConstData::new(ElemType::Bool, vec![], vec![u8::from(n > 0)]));
    cx.set_known(0, ElemType::Bool, vec![], known.map_or(Known::No, |c| Known::Const(Arc::new(c))));
    Ok(())
}

/// Tensor, sizes -> table, data.
pub(super) fn split(cx: &mut InferCx, s: &Split) -> Result<()> {
    let Split { axis, keepdims } = s;
    let t = cx.tensor(0).clone();
    let axis = cx.axis(*axis, t.rank())?;
    let given = cx.tensor_opt(1).cloned();
    let columns = t.rank() as i64 + HEAD - i64::from(given.is_none() && !keepdims);
    let len = match &given {
        None => t.dims[axis],
        Some(s) if s.rank() == 0 => match cx.ints_value(1).and_then(|v| v.first().copied()) {
            Some(n) if n > 0 => t.dims[axis].ceil_div(n),
            Some(n) => return cx.error(codes::OP_SHAPE, format!("parts of size {n}")).fail(),
            None => {
                let len = cx.size(0, 0, 2);
                cx.bound(&[len], t.dims[axis]);
                len
            }
        },
        Some(s) if s.rank() == 1 => s.dims[0],
        Some(_) => {
            return cx.error(codes::OP_SHAPE, "the sizes of the parts must be a number or a list").fail();
        }
    };
    cx.set(0, ElemType::I64, vec![len, Dim::constant(columns)]);
    cx.set(1, t.elem, vec![t.count()]);
    Ok(())
}

/// Table, data -> tensor.
pub(super) fn concat(cx: &mut InferCx, c: &Concat) -> Result<()> {
    let Concat { axis, new_axis } = c;
    let (len, columns) = table(cx, 0)?;
    let data = cx.tensor(1).clone();
    let rank = rank(cx, columns)? + usize::from(*new_axis);
    let axis = cx.axis(*axis, rank)?;
    let dims: Vec<Dim> =
        (0..rank).map(|d| if *new_axis && d == axis { len } else { cx.size(0, d, rank) }).collect();
    cx.bound(&dims, data.count());
    cx.set(0, data.elem, dims);
    Ok(())
}

/// Scores -> rows of `n`.
pub(super) fn rows(cx: &mut InferCx, n: i64) -> Result<()> {
    let t = cx.tensor(0).clone();
    let dims = match t.dims[..] {
        [c] => vec![Dim::constant(1), c],
        [_, _] => t.dims.clone(),
        _ => return cx.error(codes::OP_SHAPE, "the scores must be one row or a matrix").fail(),
    };
    cx.require_eq(dims[1], Dim::constant(n), "there must be a key for each score");
    cx.set(0, t.elem, vec![dims[0], Dim::constant(n)]);
    Ok(())
}
