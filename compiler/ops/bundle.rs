//! The representation of sequences and optionals. A sequence of tensors is two tensors:
//!
//! * a table, int64 `[len, 2 + rank]`: for each member the position of its first element, its rank, and its
//!   sizes;
//! * data, `[total]`: the elements of all members, each member dense and row-major, in any order.
//!
//! If the number of columns is constant, all members have the rank that it implies; a table without rows may
//! have any number. If ranks differ or are unknown, the number of columns is a run-time size, with zeros
//! beyond a member's rank, and operators that require the rank reject the sequence. An optional tensor is a
//! sequence of at most one member; an optional sequence has a boolean before its table.
//!
//! These operators are not part of ONNX. `passes/graph/sequences` makes them from those in `sequence` and
//! `maps` whose members are known only at run time.

pub mod boundary;
mod infer;
mod parts;

use super::sequence::{Concat, Split};
use super::support::{runtime, schema};
use super::{Attrs, Elements, InferCx, Known, LowerCx, Operator, Schema};
use crate::diag::{Failure, Result};
use crate::nest::{BinOp, Buf, Expr, KernelBuilder, LoopKind, Status, Stmt, UnOp};
use crate::sym::Dim;
use crate::tensor::ElemType;
use boundary::Boundary;
use runtime::{eq, int, le};
use std::sync::LazyLock;

/// Columns of a table before the sizes.
pub const HEAD: i64 = 2;

/// The operators.
#[derive(Clone, Debug, PartialEq)]
pub enum Bundle {
    /// Members -> table, data. The first `like` operands only determine the element type if `elem` does not;
    /// `rank` is the members' rank if there are none.
    Pack {
        /// Element type.
        elem: Option<ElemType>,
        /// Rank of the members of an empty sequence.
        rank: usize,
        /// Operands that are not members.
        like: usize,
    },
    /// Table, data, position (omitted: the only member) -> member.
    At {
        /// Sizes known to be common to all members.
        dims: Option<Vec<Option<i64>>>,
    },
    /// Table, data, member, position (omitted: at the end) -> table, data.
    Insert,
    /// Table, position (omitted: the last) -> table.
    Erase,
    /// Table -> int64 scalar.
    Length,
    /// Table -> bool scalar.
    Has,
    /// Boolean, tensor -> the tensor; an error unless the boolean is `truth`.
    Require {
        /// The expected value.
        truth: bool,
    },
    /// Two tables, which must have equal lengths -> the first.
    Alike,
    /// Tensor, sizes -> table, data.
    Split(Split),
    /// Table, data -> tensor.
    Concat(Concat),
    /// Descriptor of the caller -> parts.
    Unpack(Boundary),
    /// Parts of all outputs that are not tensors -> their descriptors.
    Publish(Vec<Boundary>),
    /// Scores by row -> [rows, n].
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
            Bundle::Require { .. } => "Require",
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

impl Operator for Bundle {
    const OPS: &'static [&'static str] = &[];
    fn elements(_op: &str) -> Elements {
        Elements::Any
    }
    fn parse(_: &mut Attrs) -> Result<Self> {
        Err(Failure::bug("bundle", "no operator of a model"))
    }
    fn infer(&self, cx: &mut InferCx) -> Result<()> {
        match self {
            Bundle::Pack { elem, rank, like } => infer::pack(cx, *elem, *rank, *like),
            Bundle::At { dims } => infer::at(cx, dims.as_ref()),
            Bundle::Insert => infer::insert(cx),
            Bundle::Erase => infer::erase(cx),
            Bundle::Length => {
                let (len, _) = infer::table(cx, 0)?;
                cx.set_known(0, ElemType::I64, vec![], Known::Dims(vec![len]));
                Ok(())
            }
            Bundle::Has => infer::has(cx),
            Bundle::Require { .. } => {
                let o = cx.operand(1)?;
                cx.set_type(0, o.ty.clone(), o.known.clone());
                Ok(())
            }
            Bundle::Alike => {
                let ((len, columns), (other, _)) = (infer::table(cx, 0)?, infer::table(cx, 1)?);
                cx.require_eq(len, other, "the sequences differ in length");
                cx.set(0, ElemType::I64, vec![len, columns]);
                Ok(())
            }
            Bundle::Split(s) => infer::split(cx, s),
            Bundle::Concat(c) => infer::concat(cx, c),
            Bundle::Unpack(b) => boundary::infer_unpack(cx, b),
            Bundle::Publish(list) => boundary::publish::infer(cx, list),
            Bundle::Rows(n) => infer::rows(cx, *n),
        }
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
            Bundle::Require { truth } => {
                let (flag, x) = (cx.input(0), cx.input(1));
                let at = vec![Dim::constant(0); cx.dims(flag).len()];
                let flag = Expr::Load { buf: flag, at };
                let cond = if *truth { flag } else { Expr::un(UnOp::Not, flag) };
                cx.m.driver.push(Stmt::Check { cond, status: Status::Value });
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

/// The number of columns of a table, as a size.
fn columns(cx: &LowerCx, table: Buf) -> Dim {
    cx.dims(table)[1]
}

/// Stores row `r` of a table, for a tensor of sizes `dims` whose elements begin at `place`.
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
    // The table has at least as many columns.
    k.range(LoopKind::Seq, "c", 0, columns, |k, c| k.store(table, &[r, c], int(0)));
    for (j, v) in list.into_iter().enumerate() {
        k.at_index(int(j as i64), columns, |k, c| k.store(table, &[r, c], v));
    }
}

/// Copies all elements of a tensor to position `place` of `data`.
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

/// A position in `0..count`, as a run-time number; a negative one counts from `len`. `default` without an
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
        // An optional without an element is an error.
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
                    // Rows from the position on move down by one.
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

/// Returns `ONNXC_E_VALUE` from the kernel unless two numbers are equal.
fn same(k: &mut KernelBuilder, a: Expr, b: Expr) {
    runtime::check(k, eq(a, b));
}

/// Checks that a size is valid and not negative; the error is `ONNXC_E_VALUE`.
fn is_size(k: &mut KernelBuilder, v: Expr) {
    runtime::check(k, le(int(0), v));
}
