//! Caches of Attention and MultiHeadAttention: the past is copied, and the new positions are appended.

use crate::diag::{Result, codes};
use crate::nest::{Buf, Expr, KernelBuilder, LoopKind};
use crate::ops::attention::core::{Form, Operand};
use crate::ops::{InferCx, LowerCx};
use crate::sym::Dim;
use crate::tensor::ElemType;

/// Number of positions before the new ones.
pub(super) enum Before {
    /// The whole past.
    Known(Dim),
    /// The number in this buffer of one i32, out of a capacity.
    Counted(Buf),
}

impl Before {
    /// The number given by input `i`.
    pub(super) fn counted(cx: &mut LowerCx, i: usize) -> Before {
        let n = cx.input(i);
        Before::Counted(cx.m.view(n, vec![]))
    }
    /// The number as an i64.
    pub(super) fn value(&self, k: &KernelBuilder) -> Expr {
        match self {
            Before::Known(d) => Expr::index(*d),
            Before::Counted(b) => Expr::cast(ElemType::I32, ElemType::I64, k.load(*b, &[])),
        }
    }
}

/// Checks a buffer that past and present may share: input `past` with its capacity, and input `count`, the
/// number of positions in use.
pub(super) fn check_shared(cx: &mut InferCx, past: usize, count: usize) -> Result<()> {
    cx.require(
        cx.has(past) && cx.has(count),
        codes::OP_ARITY,
        "a past that shares its buffer with the present needs \
            past_sequence_length, and that needs a past",
    )?;
    let n = cx.tensor(count).count();
    cx.require_eq(n, 1.into(), "past_sequence_length must be one number");
    Ok(())
}

/// The number of columns that the mask or the bias of input `i` must have: all keys, or any number if only
/// some of them are in use.
pub(super) fn columns(cx: &mut InferCx, i: usize, keys: Dim, shared: bool) -> Result<Dim> {
    if !shared {
        return Ok(keys);
    }
    let last = cx.tensor_opt(i).filter(|t| t.rank() > 1).and_then(|t| t.dims.last().copied());
    Ok(last.unwrap_or(keys))
}

/// Copies a past to the beginning of the present.
pub(super) fn copy(cx: &mut LowerCx, past: Buf, present: Buf, dims: &[Dim]) {
    cx.kernel(|k| {
        k.nest(LoopKind::Par, dims, |k, at| {
            let v = k.load(past, at);
            k.store(present, at, v);
        });
    });
}

/// New keys or values of `[batch, head, position, element]` for buffers with capacity `room`.
pub(super) struct New<'a> {
    pub new: Operand,
    pub before: &'a Before,
    pub sizes: [Dim; 4],
    pub room: Dim,
}

impl New<'_> {
    /// Appends them to a buffer.
    pub fn append(&self, cx: &mut LowerCx, to: Operand) {
        let New { new, before, sizes: [batch, heads, tokens, size], room } = *self;
        cx.kernel(|k| match before {
            Before::Known(n) => k.nest(LoopKind::Par, &[batch, heads, tokens, size], |k, at| {
                let v = new.load(k, at[0], at[1], at[2], at[3]);
                k.store(to.buf, &to.at(at[0], at[1], at[2] + *n, at[3]), v);
            }),
            Before::Counted(_) => k.nest(LoopKind::Par, &[batch, heads, tokens], |k, at| {
                let place = before.value(k) + Expr::index(at[2]);
                k.at_index(place, room, |k, p| {
                    k.nest(LoopKind::Par, &[size], |k, e| {
                        let v = new.load(k, at[0], at[1], at[2], e[0]);
                        k.store(to.buf, &to.at(at[0], at[1], p, e[0]), v);
                    });
                });
            }),
        });
    }
    /// Present keys or values of the capacity of the past, in the buffer `wanted` if it is used.
    pub fn shared(&self, cx: &mut LowerCx, wanted: Option<Buf>, past: Buf) -> Operand {
        let (dims, elem) = (cx.dims(past), cx.elem(past));
        let out = wanted.unwrap_or_else(|| cx.temp("present", elem, dims.clone()));
        copy(cx, past, out, &dims);
        let to = Operand { buf: out, form: Form::Heads };
        self.append(cx, to);
        to
    }
}
