//! The largest or smallest element of contiguous rows.

use super::{Row, TopK};
use crate::nest::{Buf, Expr, KernelBuilder, LoopKind};
use crate::ops::LowerCx;
use crate::ops::support::arg::{Arg, Nan, has_positions};
use crate::sym::Dim;
use crate::tensor::ElemType;

/// True if one result is requested of rows that are contiguous.
pub(super) fn suits(cx: &LowerCx, row: &Row) -> bool {
    let after = &cx.dims(row.x)[row.axis + 1..];
    row.count.as_const() == Some(1)
        && has_positions(&cx.m.syms, row.ty, row.n)
        && after.iter().all(|d| d.as_const() == Some(1))
}

impl TopK {
    /// Finds the positions, and maps these to the results.
    pub(super) fn one(&self, cx: &mut LowerCx, row: &Row, any: Buf) {
        let nan = if self.largest { Nan::First } else { Nan::Last };
        let arg = Arg { max: self.largest, last: false, nan };
        let dims = cx.dims(any);
        let found = cx.temp("found", ElemType::I32, dims.clone());
        let in_row = |at: &[Dim], i: Dim| {
            let (before, after) = at.split_at(row.axis);
            [before, &[i], &after[1..]].concat()
        };
        cx.kernel(|k| {
            k.nest(LoopKind::Par, &dims, |k, at| {
                let load = |k: &KernelBuilder, i: Dim| k.load(row.x, &in_row(at, i));
                let pos = arg.find(k, (row.ty, ElemType::I32), (row.n, true), &load);
                k.store(found, at, pos);
            });
        });
        let position = |e: Expr| Expr::cast(ElemType::I32, ElemType::I64, e);
        if let Some(indices) = row.indices {
            cx.map(indices, |k, at| position(k.load(found, at)));
        }
        if let Some(values) = row.values {
            cx.map(values, |k, at| {
                let i = position(k.load(found, at));
                k.with_index(i, row.n, |k, i| k.load(row.x, &in_row(at, i)))
            });
        }
    }
}
