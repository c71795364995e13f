//! SplitToSequence and ConcatFromSequence: a tensor is split along an axis into members, or joined from them.
//! In both directions a list gives, for each position along the axis, the offset of its elements in the data
//! of the sequence and the stride between rows of the outer dimensions.

use super::{HEAD, is_size, ix, same};
use crate::nest::{BinOp, Buf, Expr, KernelBuilder, LoopKind, Status, Stmt};
use crate::ops::LowerCx;
use crate::ops::from_end;
use crate::ops::sequence::{Concat, Split};
use crate::ops::support::runtime::{check, int, le};
use crate::sym::Dim;
use crate::tensor::ElemType;

/// A tensor viewed as rows, positions along an axis, and elements within a position.
struct Cut {
    rows: Dim,
    along: Dim,
    inside: Dim,
}

impl Cut {
    fn new(dims: &[Dim], axis: usize) -> Cut {
        Cut {
            rows: Dim::product(dims[..axis].iter().copied()),
            along: dims[axis],
            inside: Dim::product(dims[axis + 1..].iter().copied()),
        }
    }
    fn shape(&self) -> Vec<Dim> {
        vec![self.rows, self.along, self.inside]
    }
    /// Records the positions of a member of `size` positions from `start` on, whose elements begin at
    /// `place`.
    fn note(&self, k: &mut KernelBuilder, list: Buf, start: Expr, size: Expr, place: Expr) {
        let j = k.acc(int(0));
        k.while_(Expr::bin(BinOp::Lt, Expr::acc(j), size.clone()), |k| {
            k.at_index(start + Expr::acc(j), self.along, |k, p| {
                k.store(list, &[p, Dim::constant(0)], place + Expr::acc(j) * ix(self.inside));
                k.store(list, &[p, Dim::constant(1)], size * ix(self.inside));
            });
            k.update(BinOp::Add, j, int(1));
        });
    }
    /// The offset in the data of the element in row `at[0]` and position `at[1]`.
    fn place(&self, k: &mut KernelBuilder, list: Buf, at: &[Dim]) -> Expr {
        let (begin, width) =
            (k.load(list, &[at[1], Dim::constant(0)]), k.load(list, &[at[1], Dim::constant(1)]));
        begin + width * ix(at[0]) + ix(at[2])
    }
}

fn nonneg(axis: i64, rank: usize) -> usize {
    from_end(axis, rank as i64) as usize
}

/// SplitToSequence.
pub(super) fn split(cx: &mut LowerCx, Split { axis, keepdims }: Split) {
    let x = cx.input(0);
    let dims = cx.dims(x);
    let axis = nonneg(axis, dims.len());
    let cut = Cut::new(&dims, axis);
    let sizes = cx.input_opt(1);
    let dropped = sizes.is_none() && !keepdims;
    let number = sizes.filter(|s| cx.dims(*s).is_empty());
    let (table, data) = (cx.output_opt(0), cx.output_opt(1));
    let len = match (table, number) {
        (Some(t), Some(s)) => {
            let len = cx.dims(t)[0];
            if len.as_const().is_none() && cx.ints_value(1).is_none() {
                let n = crate::ops::support::runtime::entry(cx, s, 0);
                cx.m.driver.push(Stmt::Check { cond: le(int(1), n.clone()), status: Status::Value });
                cx.define(len, (ix(cut.along) + n.clone() - int(1)) / n);
            }
            Some(len)
        }
        (Some(t), None) => Some(cx.dims(t)[0]),
        (None, _) => None,
    };
    let whole = cut.rows.as_const() == Some(1);
    let list = cx.temp("places", ElemType::I64, vec![cut.along, Dim::constant(2)]);
    // Without a table only the data is written: its order is the same for one member and for many.
    let len = len.unwrap_or(Dim::constant(0));
    if table.is_some() {
        cx.kernel(|k| {
            let start = k.acc(int(0));
            k.range(LoopKind::Seq, "m", 0, len, |k, m| {
                let left = ix(cut.along) - Expr::acc(start);
                let size = match (number, sizes) {
                    (Some(s), _) => {
                        let n = crate::ops::support::runtime::value(k, s, 0);
                        k.let_(n.min(left))
                    }
                    (None, Some(s)) => {
                        let n = Expr::cast(k.m.bufs[s].ty.compute(), ElemType::I64, k.load(s, &[m]));
                        let n = k.let_(n);
                        is_size(k, n.clone());
                        check(k, le(n.clone(), left));
                        n
                    }
                    (None, None) => int(1),
                };
                let place = k.let_(Expr::acc(start) * ix(cut.rows) * ix(cut.inside));
                if let Some(t) = table {
                    let mut row = vec![place.clone(), int(dims.len() as i64 - i64::from(dropped))];
                    for (d, n) in dims.iter().enumerate() {
                        match d == axis {
                            true if dropped => {}
                            true => row.push(size.clone()),
                            false => row.push(ix(*n)),
                        }
                    }
                    for (j, v) in row.into_iter().enumerate() {
                        k.store(t, &[m, Dim::from(j)], v);
                    }
                }
                if !whole {
                    cut.note(k, list, Expr::acc(start), size.clone(), place);
                }
                k.update(BinOp::Add, start, size);
            });
            same(k, Expr::acc(start), ix(cut.along));
        });
    }
    let Some(data) = data else { return };
    let total = cx.dims(data)[0];
    if whole {
        cx.alias(1, x);
        return;
    }
    let x = cx.m.view(x, cut.shape());
    cx.kernel(|k| {
        k.nest(LoopKind::Par, &cut.shape(), |k, at| {
            let v = k.load(x, at);
            let place = cut.place(k, list, at);
            k.at_index(place, total, |k, p| k.store(data, &[p], v));
        });
    });
}

/// ConcatFromSequence.
pub(super) fn concat(cx: &mut LowerCx, Concat { axis, new_axis }: Concat) {
    let (t, data, y) = (cx.input(0), cx.input(1), cx.output(0));
    let (len, total) = (cx.dims(t)[0], cx.dims(data)[0]);
    let dims = cx.dims(y);
    let axis = nonneg(axis, dims.len());
    if !cx.m.syms.is_pos(len) {
        cx.m.driver.push(Stmt::Check { cond: Expr::cmp_index(BinOp::Gt, len, 0), status: Status::Value });
    }
    // The dimension of the result for each column of sizes.
    let own: Vec<usize> = (0..dims.len()).filter(|d| !new_axis || *d != axis).collect();
    let found = cx.compute(own.len().max(1), |k, out| {
        let sum = k.acc(int(0));
        let size = |k: &mut KernelBuilder, m: Dim, j: usize| k.load(t, &[m, Dim::from(j) + HEAD]);
        k.range(LoopKind::Seq, "m", 0, len, |k, m| {
            for (j, d) in own.iter().enumerate() {
                let n = size(k, m, j);
                if *d == axis && !new_axis {
                    k.update(BinOp::Add, sum, n);
                } else {
                    let first = size(k, Dim::constant(0), j);
                    same(k, n, first);
                }
            }
        });
        for (j, d) in own.iter().enumerate() {
            let v = if *d == axis && !new_axis { Expr::acc(sum) } else { size(k, Dim::constant(0), j) };
            k.store(out, &[Dim::from(j)], v);
        }
        if own.is_empty() {
            k.store(out, &[Dim::constant(0)], int(0));
        }
    });
    for (j, d) in own.iter().enumerate() {
        cx.define(dims[*d], Expr::Load { buf: found, at: vec![Dim::from(j)] });
    }
    let cut = Cut::new(&dims, axis);
    let list = cx.temp("places", ElemType::I64, vec![cut.along, Dim::constant(2)]);
    cx.kernel(|k| {
        let start = k.acc(int(0));
        k.range(LoopKind::Seq, "m", 0, len, |k, m| {
            let size = if new_axis { int(1) } else { k.load(t, &[m, Dim::from(axis) + HEAD]) };
            let (size, place) = (k.let_(size), k.load(t, &[m, Dim::constant(0)]));
            let place = k.let_(place);
            cut.note(k, list, Expr::acc(start), size.clone(), place);
            k.update(BinOp::Add, start, size);
        });
    });
    let y = cx.m.view(y, cut.shape());
    cx.map(y, |k, at| {
        let place = cut.place(k, list, at);
        k.with_index(place, total, |k, p| k.load(data, &[p]))
    });
}
