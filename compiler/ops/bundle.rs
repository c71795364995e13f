//! What sequences and optionals are made of. A sequence of tensors is two tensors:
//!
//! * a table, int64 `[len, 2 + rank]`: for each member the place of its first element, its rank, and its
//!   sizes;
//! * data, `[total]`: the elements of all members, each member dense and row-major, in any order.
//!
//! If the number of columns is a constant, all members have the rank that it tells; a table without rows has
//! any. Where ranks differ or are unknown, the number of columns is a run-time size (what exceeds a member's
//! rank is 0), and nothing that must know the rank takes the sequence. An optional tensor is a sequence of at
//! most one member; an optional sequence has a truth value before its table.
//!
//! These operators are none of ONNX: only `passes/graph/sequences` makes them, out of those in `sequence` and
//! `maps` whose members only run time knows.

pub mod boundary;
mod parts;

use super::sequence::{Concat, Split};
use super::support::{runtime, schema};
use super::{Attrs, Elements, InferCx, Known, LowerCx, Operator, Schema};
use crate::diag::{Failure, Result, codes};
use crate::nest::{BinOp, Buf, Expr, KernelBuilder, LoopKind, Status, Stmt};
use crate::sym::Dim;
use crate::tensor::{ConstData, ElemType, TensorType};
use boundary::Boundary;
use runtime::{eq, int, le};
use std::sync::{Arc, LazyLock};

/// Columns of a table before the sizes.
pub const HEAD: i64 = 2;

/// The operators.
#[derive(Clone, Debug, PartialEq)]
pub enum Bundle {
    /// Members -> table, data. `like` operands before them only tell the element type, unless `elem` does;
    /// `rank` is that of no members.
    Pack {
        /// Element type.
        elem: Option<ElemType>,
        /// Rank of the members of an empty sequence.
        rank: usize,
        /// Operands that are no members.
        like: usize,
    },
    /// Table, data, position (none: the only member) -> member.
    At {
        /// Sizes that all members are known to have.
        dims: Option<Vec<Option<i64>>>,
    },
    /// Table, data, member, position (none: behind the last) -> table, data.
    Insert,
    /// Table, position (none: the last) -> table.
    Erase,
    /// Table -> int64 scalar.
    Length,
    /// Table -> bool scalar.
    Has,
    /// Truth value, table -> the table, if the value is true.
    Require,
    /// Two tables of one length -> the first.
    Alike,
    /// Tensor, sizes -> table, data.
    Split(Split),
    /// Table, data -> tensor.
    Concat(Concat),
    /// Descriptor of the caller -> parts.
    Unpack(Boundary),
    /// Parts of all outputs that are no tensors -> their descriptors.
    Publish(Vec<Boundary>),
    /// Scores of rows -> [rows, n].
    Rows(i64),
}

static SCHEMAS: LazyLock<Vec<Schema>> = LazyLock::new(|| {
    const NAMES: [&str; 13] = [
        "Pack", "At", "Insert", "Erase", "Length", "Has", "Require", "Alike", "Split", "Concat", "Unpack",
        "Publish", "Rows",
    ];
    NAMES.iter().map(|n| schema::internal(n)).collect()
});

impl Bundle {
    /// The operator's schema.
    pub fn schema(&self) -> Result<&'static Schema> {
        let name = match self {
            Bundle::Pack { .. } => "Pack",
            Bundle::At { .. } => "At",
            Bundle::Insert => "Insert",
            Bundle::Erase => "Erase",
            Bundle::Length => "Length",
            Bundle::Has => "Has",
            Bundle::Require => "Require",
            Bundle::Alike => "Alike",
            Bundle::Split(_) => "Split",
            Bundle::Concat(_) => "Concat",
            Bundle::Unpack(_) => "Unpack",
            Bundle::Publish(_) => "Publish",
            Bundle::Rows(_) => "Rows",
        };
        SCHEMAS.iter().find(|s| s.name == name).ok_or_else(|| Failure::bug("bundle", name))
    }
}

/// Length and number of columns of a table.
fn table(cx: &InferCx, i: usize) -> Result<(Dim, Dim)> {
    match cx.tensor(i)?.dims[..] {
        [len, columns] => Ok((len, columns)),
        _ => Err(Failure::bug("bundle", "a table has rows and columns")),
    }
}

/// The rank that all members have.
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

/// An axis of tensors of rank `n`.
fn axis_of(cx: &InferCx, axis: i64, n: usize) -> Result<usize> {
    cx.axis(axis, n)
}

impl Operator for Bundle {
    const OPS: &'static [&'static str] = &[];
    fn elements(_op: &str) -> Elements {
        Elements::Any
    }
    fn parse(_: &mut Attrs) -> Result<Self> {
        Err(Failure::bug("bundle", "no operator of a model"))
    }
    fn infer(&self, cx: &mut InferCx) -> Result<()> {
        let i64_ = ElemType::I64;
        match self {
            Bundle::Pack { elem, rank, like } => {
                let types: Vec<TensorType> =
                    (0..cx.inputs.len()).map(|i| cx.tensor(i).cloned()).collect::<Result<_>>()?;
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
                let members = &types[*like..];
                let columns = match members.first() {
                    None => Dim::constant(*rank as i64 + HEAD),
                    Some(t) if members.iter().all(|u| u.rank() == t.rank()) => {
                        Dim::constant(t.rank() as i64 + HEAD)
                    }
                    Some(_) => cx.size(0, 1, 2),
                };
                cx.set(0, i64_, vec![Dim::from(members.len()), columns]);
                cx.set(1, elem, vec![Dim::sum(members.iter().map(TensorType::count))]);
            }
            Bundle::At { dims } => {
                let (_, columns) = table(cx, 0)?;
                let data = cx.tensor(1)?.clone();
                let rank = rank(cx, columns)?;
                let known = dims.as_ref().filter(|d| d.len() == rank);
                let size = |cx: &mut InferCx, d: usize| match known.and_then(|k| k[d]) {
                    Some(n) => Dim::constant(n),
                    None => cx.size(0, d, rank),
                };
                let dims: Vec<Dim> = (0..rank).map(|d| size(cx, d)).collect();
                cx.bound(&dims, data.count());
                cx.set(0, data.elem, dims);
            }
            Bundle::Insert => {
                let (len, columns) = table(cx, 0)?;
                let (data, x) = (cx.tensor(1)?.clone(), cx.tensor(2)?.clone());
                if data.elem != x.elem {
                    return cx
                        .error(
                            codes::OP_TYPE,
                            "the tensor has another element type than the members of the sequence",
                        )
                        .found_expected(x.elem.to_string(), data.elem.to_string())
                        .fail();
                }
                let own = Dim::constant(x.rank() as i64 + HEAD);
                let columns =
                    if len.as_const() == Some(0) || columns == own { own } else { cx.size(0, 1, 2) };
                cx.set(0, i64_, vec![len + 1, columns]);
                cx.set(1, data.elem, vec![data.count() + x.count()]);
            }
            Bundle::Erase => {
                let (len, columns) = table(cx, 0)?;
                let left = match len.as_const() {
                    Some(n) if n > 0 => Dim::constant(n - 1),
                    _ => cx.size(0, 0, 2),
                };
                cx.bound(&[left], len);
                cx.set(0, i64_, vec![left, columns]);
            }
            Bundle::Length => {
                let (len, _) = table(cx, 0)?;
                cx.set_known(0, i64_, vec![], Known::Dims(vec![len]));
            }
            Bundle::Has => {
                let (len, _) = table(cx, 0)?;
                let known = len
                    .as_const()
                    .and_then(|n| ConstData::new(ElemType::Bool, vec![], vec![u8::from(n > 0)]));
                cx.set_known(
                    0,
                    ElemType::Bool,
                    vec![],
                    known.map_or(Known::No, |c| Known::Const(Arc::new(c))),
                );
            }
            Bundle::Require => {
                let t = cx.tensor(1)?.clone();
                cx.set(0, i64_, t.dims);
            }
            Bundle::Alike => {
                let ((len, columns), (other, _)) = (table(cx, 0)?, table(cx, 1)?);
                cx.require_eq(len, other, "the sequences differ in length")?;
                cx.set(0, i64_, vec![len, columns]);
            }
            Bundle::Split(Split { axis, keepdims }) => {
                let t = cx.tensor(0)?.clone();
                let axis = axis_of(cx, *axis, t.rank())?;
                let given = cx.tensor_opt(1)?.cloned();
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
                        return cx
                            .error(codes::OP_SHAPE, "the sizes of the parts must be a number or a list")
                            .fail();
                    }
                };
                cx.set(0, i64_, vec![len, Dim::constant(columns)]);
                cx.set(1, t.elem, vec![t.count()]);
            }
            Bundle::Concat(Concat { axis, new_axis }) => {
                let (len, columns) = table(cx, 0)?;
                let data = cx.tensor(1)?.clone();
                let rank = rank(cx, columns)? + usize::from(*new_axis);
                let axis = axis_of(cx, *axis, rank)?;
                let dims: Vec<Dim> = (0..rank)
                    .map(|d| if *new_axis && d == axis { len } else { cx.size(0, d, rank) })
                    .collect();
                cx.bound(&dims, data.count());
                cx.set(0, data.elem, dims);
            }
            Bundle::Unpack(b) => boundary::infer_unpack(cx, b)?,
            Bundle::Publish(list) => boundary::publish::infer(cx, list)?,
            Bundle::Rows(n) => {
                let t = cx.tensor(0)?.clone();
                let dims = match t.dims[..] {
                    [c] => vec![Dim::constant(1), c],
                    [_, _] => t.dims.clone(),
                    _ => return cx.error(codes::OP_SHAPE, "the scores must be one row or a matrix").fail(),
                };
                cx.require_eq(dims[1], Dim::constant(*n), "there must be a key for each score")?;
                cx.set(0, t.elem, vec![dims[0], Dim::constant(*n)]);
            }
        }
        Ok(())
    }
    fn lower(&self, cx: &mut LowerCx) -> Result<()> {
        match self {
            Bundle::Pack { like, .. } => pack(cx, *like),
            Bundle::At { .. } => at(cx),
            Bundle::Insert => insert(cx),
            Bundle::Erase => erase(cx),
            Bundle::Length => return cx.bug("lengths are known"),
            Bundle::Has => {
                let len = cx.dims(cx.input(0))[0];
                let y = cx.output(0);
                cx.map(y, |_, _| Expr::cmp_index(BinOp::Gt, len, 0));
            }
            Bundle::Require => {
                let (flag, x) = (cx.input(0), cx.input(1));
                cx.m.driver
                    .push(Stmt::Check { cond: Expr::Load { buf: flag, at: vec![] }, status: Status::Value });
                cx.alias(0, x);
            }
            Bundle::Alike | Bundle::Rows(_) => {
                let x = cx.input(0);
                cx.alias(0, x);
            }
            Bundle::Split(s) => parts::split(cx, *s),
            Bundle::Concat(c) => parts::concat(cx, *c),
            Bundle::Unpack(b) => return boundary::unpack(cx, b),
            Bundle::Publish(list) => return boundary::publish::lower(cx, list),
        }
        Ok(())
    }
}

/// `d` as i64.
fn ix(d: impl Into<Dim>) -> Expr {
    Expr::index(d)
}

/// Columns of a table that the buffer has, as a size.
fn columns(cx: &LowerCx, table: Buf) -> Dim {
    cx.dims(table)[1]
}

/// Stores row `r` of a table: a tensor of sizes `dims` whose elements begin at `place`.
pub(crate) fn store_row(k: &mut KernelBuilder, table: Buf, r: Dim, place: Expr, dims: &[Dim]) {
    let columns = k.m.bufs[table].dims[1];
    let rank = dims.len();
    let mut list = vec![place, int(rank as i64)];
    list.extend(dims.iter().map(|d| ix(*d)));
    if columns.as_const() == Some(rank as i64 + HEAD) {
        for (j, v) in list.into_iter().enumerate() {
            k.store(table, &[r, Dim::from(j)], v);
        }
        return;
    }
    // There are at least as many columns.
    k.range(LoopKind::Seq, "c", 0, columns, |k, c| k.store(table, &[r, c], int(0)));
    for (j, v) in list.into_iter().enumerate() {
        k.at_index(int(j as i64), columns, |k, c| k.store(table, &[r, c], v));
    }
}

/// Copies all elements of a tensor to `place` of `data`.
fn copy_in(cx: &mut LowerCx, x: Buf, data: Buf, place: Dim) {
    let n = Dim::product(cx.dims(x));
    if n.as_const() == Some(0) {
        return;
    }
    let x = cx.m.view(x, vec![n]);
    cx.kernel(|k| {
        k.nest(LoopKind::Par, &[n], |k, at| {
            let v = k.load(x, at);
            k.store(data, &[place + at[0]], v);
        });
    });
}

fn pack(cx: &mut LowerCx, like: usize) {
    let members: Vec<Buf> = (like..cx.inputs.len()).map(|i| cx.input(i)).collect();
    let ranks = members.iter().map(|b| cx.dims(*b).len()).max().unwrap_or(0);
    if let Some(t) = cx.output_opt(0) {
        let c = columns(cx, t);
        if c.as_const().is_none() {
            cx.define(c, int(ranks as i64 + HEAD));
        }
    }
    let mut place = Dim::constant(0);
    let mut places = vec![];
    for x in &members {
        if let Some(data) = cx.output_opt(1) {
            copy_in(cx, *x, data, place);
        }
        places.push(place);
        place = place + Dim::product(cx.dims(*x));
    }
    if let Some(t) = cx.output_opt(0).filter(|_| !members.is_empty()) {
        let rows: Vec<Vec<Dim>> = members.iter().map(|x| cx.dims(*x)).collect();
        cx.kernel(|k| {
            for (r, (dims, place)) in rows.iter().zip(&places).enumerate() {
                store_row(k, t, Dim::from(r), ix(*place), dims);
            }
        });
    }
}

/// A position among `count` places, negative ones from `len`, as a run-time number; `default` without an
/// operand.
fn position(cx: &mut LowerCx, i: usize, len: Dim, count: Dim, default: Dim) -> Dim {
    let Some(p) = cx.input_opt(i) else { return default };
    if let Some(p) = cx.dims_value(i).and_then(|d| d.first().copied()) {
        let p = match (p.as_const(), cx.m.syms.is_nonneg(p)) {
            (Some(c), _) if c < 0 => p + len,
            (Some(_), _) | (_, true) => p,
            _ => return late_position(cx, ix(p), len, count),
        };
        let inside = Expr::cmp_index(BinOp::Ge, p, 0).and(Expr::cmp_index(BinOp::Lt, p, count));
        if !cx.m.syms.in_range(p, count) {
            cx.m.driver.push(Stmt::Check { cond: inside, status: Status::Index });
        }
        return p;
    }
    let v = runtime::entry(cx, p, 0);
    late_position(cx, v, len, count)
}

fn late_position(cx: &mut LowerCx, v: Expr, len: Dim, count: Dim) -> Dim {
    let found = cx.number(
        "position",
        Expr::select(Expr::bin(BinOp::Lt, v.clone(), int(0)), v.clone() + ix(len), v),
        None,
        None,
    );
    let inside = Expr::cmp_index(BinOp::Ge, found, 0).and(Expr::cmp_index(BinOp::Lt, found, count));
    cx.m.driver.push(Stmt::Check { cond: inside, status: Status::Index });
    found
}

fn at(cx: &mut LowerCx) {
    let (t, data, y) = (cx.input(0), cx.input(1), cx.output(0));
    let len = cx.dims(t)[0];
    let total = cx.dims(data)[0];
    let p = position(cx, 2, len, len, Dim::constant(0));
    if cx.input_opt(2).is_none() {
        // An optional without an element.
        cx.m.driver.push(Stmt::Check { cond: Expr::cmp_index(BinOp::Gt, len, 0), status: Status::Value });
    }
    let dims = cx.dims(y);
    let entry = |j: i64| Expr::Load { buf: t, at: vec![p, Dim::constant(j)] };
    for (d, n) in dims.iter().enumerate() {
        cx.define(*n, entry(d as i64 + HEAD));
    }
    let place = cx.number("place", entry(0), Some(0), None);
    cx.m.driver.push(Stmt::Check {
        cond: Expr::cmp_index(BinOp::Le, place + Dim::product(dims.iter().copied()), total),
        status: Status::Value,
    });
    cx.map(y, |k, at| {
        let linear = at.iter().zip(&dims).fold(Dim::constant(0), |sum, (i, d)| sum * *d + *i);
        k.load(data, &[place + linear])
    });
}

fn insert(cx: &mut LowerCx) {
    let (t, data, x) = (cx.input(0), cx.input(1), cx.input(2));
    let (len, total) = (cx.dims(t)[0], cx.dims(data)[0]);
    let dims = cx.dims(x);
    let p = position(cx, 3, len, len + 1, len);
    if let Some(y) = cx.output_opt(0) {
        let (old, new) = (columns(cx, t), columns(cx, y));
        if new.as_const().is_none() {
            cx.define(new, ix(old).max(int(dims.len() as i64 + HEAD)));
        }
        if len.as_const() != Some(0) {
            cx.kernel(|k| {
                k.nest(LoopKind::Par, &[len, new], |k, at| {
                    let have = k.load(t, &[at[0], at[1]]);
                    let v = if old == new {
                        have
                    } else {
                        Expr::select(Expr::cmp_index(BinOp::Lt, at[1], old), have, int(0))
                    };
                    // Rows from the position on stand one further down.
                    let moved = Expr::select(Expr::cmp_index(BinOp::Ge, at[0], p), ix(at[0] + 1), ix(at[0]));
                    k.at_index(moved, len + 1, |k, r| k.store(y, &[r, at[1]], v));
                });
            });
        }
        cx.kernel(|k| store_row(k, y, p, ix(total), &dims));
    }
    if let Some(y) = cx.output_opt(1) {
        if total.as_const() != Some(0) {
            copy_in(cx, data, y, Dim::constant(0));
        }
        copy_in(cx, x, y, total);
    }
}

fn erase(cx: &mut LowerCx) {
    let (t, y) = (cx.input(0), cx.output(0));
    let dims = cx.dims(t);
    let len = dims[0];
    let left = cx.dims(y)[0];
    let p = position(cx, 1, len, len, len - 1);
    if left.as_const().is_none() {
        cx.define(left, ix(len - 1));
    }
    cx.kernel(|k| {
        k.nest(LoopKind::Par, &[left, dims[1]], |k, at| {
            let from = Expr::select(Expr::cmp_index(BinOp::Ge, at[0], p), ix(at[0] + 1), ix(at[0]));
            let v = k.with_index(from, len, |k, r| k.load(t, &[r, at[1]]));
            k.store(y, at, v);
        });
    });
}

/// Leaves the kernel unless two numbers are equal.
fn same(k: &mut KernelBuilder, a: Expr, b: Expr) {
    runtime::check(k, eq(a, b));
}

/// A size that fits: not negative, and what `ONNXC_E_VALUE` says otherwise.
fn is_size(k: &mut KernelBuilder, v: Expr) {
    runtime::check(k, le(int(0), v));
}
