//! TopK: the k largest (or smallest) elements along an axis in order, with their positions.
//!
//! | versions | |
//! |---|---|
//! | 1 | attribute `k` |
//! | 10 | input K |
//! | 11, 24 | `largest`, `sorted`; without `sorted` any order is valid, so results are always sorted |
//!
//! The first of equal elements comes first. NaN is larger than all numbers. Elements of at most 32 bits have
//! keys (`topk/keys.rs`): a few of many are found in `topk/columns.rs`, more in `topk/narrow.rs`, those of
//! short rows in `topk/short.rs`; a single one of contiguous rows is found by its value (`topk/one.rs`). A
//! few of 64 bits are found in `topk/long.rs`. For more of these, the positions of the row are sorted in
//! scratch memory, by digits or, if the row may be short, by merging.

mod columns;
pub mod keys;
mod limit;
mod long;
mod narrow;
mod one;
mod short;

use super::support::{radix, runtime};
use super::{Attrs, InferCx, LowerCx, Operator};
use crate::diag::{Result, codes};
use crate::nest::{BinOp, Buf, Expr, KernelBuilder, LoopKind, Reg, Stmt, UnOp};
use crate::ops::from_end;
use crate::sym::Dim;
use crate::tensor::ElemType;

/// Up to this many results of 64 bits are inserted into a list.
const FEW: i64 = 16;

/// The operator.
#[derive(Clone, Debug, PartialEq)]
pub struct TopK {
    /// May be negative.
    pub axis: i64,
    /// Attribute of version 1.
    pub k: Option<i64>,
    /// True for the largest, false for the smallest.
    pub largest: bool,
}

impl Operator for TopK {
    const OPS: &'static [&'static str] = &["TopK"];
    fn parse(a: &mut Attrs) -> Result<Self> {
        a.ignore("sorted");
        let k = if a.since() < 10 { Some(a.int_required("k")) } else { None };
        Ok(TopK { axis: a.int("axis", -1), k, largest: a.flag("largest", true) })
    }
    fn infer(&self, cx: &mut InferCx) -> Result<()> {
        let t = cx.tensor(0).clone();
        let axis = cx.axis(self.axis, t.rank())?;
        let k = match self.k {
            Some(k) => Dim::constant(k),
            None if runtime::length(cx, 1) != Some(1) => {
                return cx.error(codes::OP_SHAPE, "K must be one number").fail();
            }
            None if runtime::late(cx, 1) => {
                let declared = (0..2).find(|k| cx.declared.get(*k).is_some_and(|d| d.is_some()));
                let k = cx.size(declared.unwrap_or(0), axis, t.rank());
                cx.bound(&[k], t.dims[axis]);
                k
            }
            None => cx.need_dims(1, "K")?[0],
        };
        cx.require(k.as_const().is_none_or(|k| k >= 0), codes::OP_SHAPE, "K is negative")?;
        cx.syms.require_at_most(k, t.dims[axis]);
        if let (Some(k), Some(n)) = (k.as_const(), t.dims[axis].as_const())
            && k > n
        {
            return cx.error(codes::OP_SHAPE, format!("K is {k}, but the axis has {n} elements")).fail();
        }
        if t.elem.bits() <= 32 && t.elem != ElemType::Str {
            // Key and position are packed into one integer, or vectors have positions.
            cx.syms.require_at_most(t.dims[axis], Dim::constant(i32::MAX.into()));
        }
        let mut dims = t.dims;
        dims[axis] = k;
        cx.set(0, t.elem, dims.clone());
        cx.set(1, ElemType::I64, dims);
        Ok(())
    }
    fn lower(&self, cx: &mut LowerCx) -> Result<()> {
        let x = cx.input(0);
        let (values, indices) = (cx.output_opt(0), cx.output_opt(1));
        let Some(any) = values.or(indices) else { return Ok(()) };
        let dims = cx.dims(x);
        let axis = from_end(self.axis, dims.len() as i64) as usize;
        let row = Row {
            axis,
            n: dims[axis],
            count: cx.dims(any)[axis],
            ty: cx.elem(x).compute(),
            x,
            values,
            indices,
        };
        if let Some(b) = runtime::late_operand(cx, 1) {
            cx.define(row.count, runtime::entry(cx, b, 0));
        }
        if row.count.as_const() == Some(0) {
            return Ok(());
        }
        if one::suits(cx, &row) {
            self.one(cx, &row, any);
            return Ok(());
        }
        let outer: Vec<Dim> = dims[..axis].iter().chain(&dims[axis + 1..]).copied().collect();
        // A method for all rows, or for rows that turn out not to be short at run time.
        let (method, short) = match short::Short::new(cx, &row, &outer) {
            Some((short, None)) => (Method::Count(short), None),
            Some((short, Some(when))) => (Method::new(cx, &row, &outer), Some((when, Method::Count(short)))),
            None => (Method::new(cx, &row, &outer), None),
        };
        cx.kernel(|k| {
            k.nest(LoopKind::Par, &outer, |k, o| {
                let row = &RowAt { row: &row, o };
                match &short {
                    Some((when, counting)) => {
                        let when = k.let_(when.clone());
                        k.if_(when.clone(), |k| self.by(k, row, counting));
                        k.if_(Expr::un(UnOp::Not, when), |k| self.by(k, row, &method));
                    }
                    None => self.by(k, row, &method),
                }
            });
        });
        Ok(())
    }
}

/// The method for rows, with its scratch.
enum Method {
    Count(short::Short),
    Insert(long::Long),
    Merge(Buf, Buf),
    Digits(i64, radix::Lists),
    Keys(columns::Scratch),
}

impl Method {
    /// The method for rows that are not short.
    fn new(cx: &mut LowerCx, row: &Row, outer: &[Dim]) -> Method {
        let keyed = keys::suits(cx, row);
        let few = match row.count.as_const() {
            _ if keyed => columns::finds_few(row),
            count => count.is_some_and(|c| c <= FEW),
        };
        // A row has at least as many elements as results are requested.
        let least = if keyed { columns::least_sorted(row) } else { radix::LEAST };
        let long = [row.n, row.count].iter().any(|n| n.as_const().is_some_and(|n| n >= least));
        if let (Some(digits), true) = (radix::digits(row.ty), !few && long) {
            return Method::Digits(digits, radix::Lists::new(cx, outer, row.n, digits));
        }
        if keyed {
            return Method::Keys(columns::scratch(cx, row, outer));
        }
        if let Some(long) = long::Long::new(cx, row, outer) {
            return Method::Insert(long);
        }
        let dims: Vec<Dim> = outer.iter().chain([&row.n]).copied().collect();
        Method::Merge(cx.temp("order", ElemType::I64, dims.clone()), cx.temp("merged", ElemType::I64, dims))
    }
}

/// What all rows have in common.
struct Row {
    axis: usize,
    n: Dim,
    count: Dim,
    ty: ElemType,
    x: Buf,
    values: Option<Buf>,
    indices: Option<Buf>,
}

/// A row and its index among the rows.
struct RowAt<'r> {
    row: &'r Row,
    o: &'r [Dim],
}

impl std::ops::Deref for RowAt<'_> {
    type Target = Row;
    fn deref(&self) -> &Row {
        self.row
    }
}

impl RowAt<'_> {
    fn at(&self, i: Dim) -> Vec<Dim> {
        let (before, after) = self.o.split_at(self.axis);
        before.iter().chain([&i]).chain(after).copied().collect()
    }
    /// Stores the element at a position as result `j`.
    fn take(&self, k: &mut KernelBuilder, j: Dim, position: Expr) {
        let i = k.let_(position);
        let v = k.with_index(i.clone(), self.n, |k, i| k.load(self.x, &self.at(i)));
        self.store(k, j, v, i);
    }
    fn store(&self, k: &mut KernelBuilder, j: Dim, value: Expr, index: Expr) {
        for (buf, v) in [(self.values, value), (self.indices, index)] {
            if let Some(b) = buf {
                k.store(b, &self.at(j), v);
            }
        }
    }
}

impl TopK {
    fn by(&self, k: &mut KernelBuilder, row: &RowAt, method: &Method) {
        match method {
            Method::Count(short) => self.by_counting(k, row, short),
            Method::Insert(long) => self.by_insertion(k, row, long),
            Method::Merge(order, merged) => self.sort(k, row, (*order, *merged)),
            Method::Digits(digits, lists) => self.by_digits(k, row, *digits, lists),
            Method::Keys(scratch) => self.by_keys(k, row, scratch),
        }
    }
    /// Sorts the positions by digits.
    fn by_digits(&self, k: &mut KernelBuilder, row: &RowAt, digits: i64, lists: &radix::Lists) {
        radix::positions(k, row.o, row.n, digits, lists, |k, i| {
            let v = k.load(row.x, &row.at(i));
            let key = radix::key(k, row.ty, v);
            if self.largest { Expr::un(UnOp::BitNot, key) } else { key }
        });
        self.in_order(k, row, lists.order);
    }
    /// Stores the first elements of a list of positions as results.
    fn in_order(&self, k: &mut KernelBuilder, row: &RowAt, order: Buf) {
        k.range(LoopKind::Seq, "j", 0, row.count, |k, j| {
            let i = k.load(order, &[row.o, &[j]].concat());
            row.take(k, j, i);
        });
    }
    /// Merges sorted runs of 1, 2, 4, ... positions until there is one.
    fn sort(&self, k: &mut KernelBuilder, row: &RowAt, (order, merged): (Buf, Buf)) {
        let (n, size) = (row.n, Expr::index(row.n));
        let spot = |i: Dim| -> Vec<Dim> { row.o.iter().chain([&i]).copied().collect() };
        let lt = |a: Expr, b: Expr| Expr::bin(BinOp::Lt, a, b);
        k.range(LoopKind::Seq, "i", 0, n, |k, i| k.store(order, &spot(i), Expr::index(i)));
        let width = k.acc(runtime::int(1));
        let body = k.block(|k| {
            // The remaining parts of the two runs.
            let [a, a_end, b, b_end] = [0; 4].map(|z| k.acc(runtime::int(z)));
            k.range(LoopKind::Seq, "p", 0, n, |k, p| {
                let pair = Expr::acc(width) + Expr::acc(width);
                k.if_(
                    runtime::eq(Expr::bin(BinOp::Rem, Expr::index(p), pair.clone()), runtime::int(0)),
                    |k| {
                        k.set(a, Expr::index(p));
                        k.set(a_end, (Expr::index(p) + Expr::acc(width)).min(size.clone()));
                        k.set(b, Expr::acc(a_end));
                        k.set(b_end, (Expr::index(p) + pair).min(size.clone()));
                    },
                );
                let element = |k: &mut KernelBuilder, run: Reg| {
                    k.with_index(Expr::acc(run), n, |k, i| {
                        let i = k.load(order, &spot(i));
                        k.with_index(i, n, |k, i| k.load(row.x, &row.at(i)))
                    })
                };
                let (va, vb) = (element(k, a), element(k, b));
                let second = k.shared(va, |k, va| k.shared(vb, |_, vb| self.before(row.ty, vb, va)));
                let both = Expr::select(lt(Expr::acc(b), Expr::acc(b_end)), second, Expr::bool(false));
                let second = k.let_(Expr::select(lt(Expr::acc(a), Expr::acc(a_end)), both, Expr::bool(true)));
                let from = Expr::select(second.clone(), Expr::acc(b), Expr::acc(a));
                let v = k.with_index(from, n, |k, i| k.load(order, &spot(i)));
                k.store(merged, &spot(p), v);
                let step = k.let_(Expr::cast(ElemType::Bool, ElemType::I64, second));
                k.update(BinOp::Add, b, step.clone());
                k.update(BinOp::Add, a, runtime::int(1) - step);
            });
            k.range(LoopKind::Seq, "p", 0, n, |k, p| {
                let v = k.load(merged, &spot(p));
                k.store(order, &spot(p), v);
            });
            k.update(BinOp::Add, width, Expr::acc(width));
        });
        k.push(Stmt::While { cond: lt(Expr::acc(width), size), body });
        self.in_order(k, row, order);
    }
    /// True if value `a` comes before `b`, regardless of their positions.
    fn before(&self, ty: ElemType, a: Expr, b: Expr) -> Expr {
        let (a, b) = if self.largest { (a, b) } else { (b, a) };
        let more = Expr::bin(BinOp::Gt, a.clone(), b.clone());
        if !ty.is_float() {
            return more;
        }
        let nan = |e: Expr| Expr::un(UnOp::IsNan, e);
        runtime::or(more, nan(a).and(Expr::un(UnOp::Not, nan(b))))
    }
}
