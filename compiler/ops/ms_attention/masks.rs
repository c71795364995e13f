//! Padding masks and biases of Attention, MultiHeadAttention and GroupQueryAttention.

use super::present::{self, Before};
use super::{Kind, MsAttention};
use crate::diag::{Result, codes};
use crate::nest::{BinOp, Buf, Expr, KernelBuilder, Scalar};
use crate::ops::InferCx;
use crate::sym::Dim;
use crate::tensor::ElemType;

/// Sizes of the scores of an attention, except for the heads.
#[derive(Clone, Copy)]
pub(super) struct Extents {
    pub batch: Dim,
    pub queries: Dim,
    pub keys: Dim,
}

impl MsAttention {
    /// Checks a padding mask of any supported shape: input `i`.
    pub(super) fn check_mask(&self, cx: &mut InferCx, i: usize, of: Extents, shared: bool) -> Result<()> {
        let Extents { batch, queries, keys } = of;
        let Some(m) = cx.tensor_opt(i).cloned() else { return Ok(()) };
        if is_dummy(&m.dims) {
            return Ok(());
        }
        let total = present::columns(cx, i, keys, shared)?;
        match m.dims[..] {
            [n] => {
                if cx.syms.eq(n, batch * 2) == crate::sym::Answer::Yes {
                    return Ok(());
                }
                cx.require_eq(n, batch, "a mask of rank 1 must have one value for each sample, or two");
            }
            [b, t] => {
                cx.require_eq(b, batch, "the mask does not fit the batch");
                cx.require_eq(t, total, "the mask does not have one value for each key");
            }
            [b, s, t] => {
                cx.require_eq(b, batch, "the mask does not fit the batch");
                cx.require_eq(s, queries, "the mask does not fit the queries");
                cx.require_eq(t, total, "the mask does not fit the keys");
            }
            // A square matrix, from which queries and keys use a part.
            [b, one, rows, columns] if matches!(self.kind, Kind::Attention(..)) && !shared => {
                cx.require_eq(b, batch, "the mask does not fit the batch");
                cx.require_eq(one, 1.into(), "the mask must have one plane for all heads");
                cx.require_eq(rows, columns, "a mask of rank 4 must be square");
                cx.syms.require_at_most(keys, columns);
            }
            _ => {
                return cx
                    .error(codes::OP_FEATURE, format!("a mask of rank {} is not supported", m.rank()))
                    .help("use a mask [batch, keys] or [batch, queries, keys], or an attention bias")
                    .fail();
            }
        }
        Ok(())
    }
    /// Checks a bias that is added to scores: input `i`.
    pub(super) fn check_bias(&self, cx: &mut InferCx, i: usize, of: Extents) -> Result<()> {
        let Some(b) = cx.tensor_opt(i).cloned() else { return Ok(()) };
        let full = [of.batch, Dim::constant(self.heads), of.queries, of.keys];
        cx.require(b.rank() == 4, codes::OP_SHAPE, "the attention bias must have rank 4")?;
        cx.require_broadcast_to(&b.dims, &full, "the attention bias does not broadcast to the scores")
    }
}

/// True for the shape of a mask that means no mask: [batch, 1].
pub(super) fn is_dummy(dims: &[Dim]) -> bool {
    matches!(dims, [_, one] if one.as_const() == Some(1))
}

/// True where the padding mask `m` keeps key `at[3]` for query `at[2]` of sample `at[0]`.
pub(super) fn kept(k: &KernelBuilder, m: Buf, batch: Dim, at: &[Dim], before: &Before) -> Expr {
    let dims = k.m.bufs[m].dims.clone();
    let value = |k: &KernelBuilder, at: &[Dim]| Expr::cast(ElemType::I32, ElemType::I64, k.load(m, at));
    let set = |k: &KernelBuilder, at: &[Dim]| {
        Expr::bin(BinOp::Ne, k.load(m, at), Scalar::from_f64(ElemType::I32, 0.0).into())
    };
    match dims[..] {
        // Ends, followed by starts if there are twice as many.
        [n] => {
            let before = Expr::bin(BinOp::Lt, Expr::index(at[3]), value(k, &[at[0]]));
            if k.m.syms.eq(n, batch) == crate::sym::Answer::Yes {
                return before;
            }
            before.and(Expr::bin(BinOp::Ge, Expr::index(at[3]), value(k, &[at[0] + batch])))
        }
        [_, _] => set(k, &[at[0], at[3]]),
        [_, _, _, _] => {
            let row = if let Before::Known(n) = before { at[2] + *n } else { at[2] };
            set(k, &[at[0], Dim::constant(0), row, at[3]])
        }
        _ => set(k, &[at[0], at[2], at[3]]),
    }
}
