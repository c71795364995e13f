//! RotaryEmbedding: rotates pairs of elements of each head by an angle that depends on the position.
//!
//! Spec: <https://onnx.ai/onnx/operators/onnx__RotaryEmbedding.html>, and
//! <https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md> for com.microsoft.
//!
//! | operator                      | inputs                                                                 |
//! |-------------------------------|------------------------------------------------------------------------|
//! | RotaryEmbedding 23            | X, cosines, sines (by position or per token), positions for the former |
//! | com.microsoft:RotaryEmbedding | X, positions (per token or of the first), cosines, sines by position   |

use super::attention::core::Operand;
use super::{Attrs, InferCx, LowerCx, Operator};
use crate::diag::{Result, codes};
use crate::nest::{BinOp, Buf, Expr, KernelBuilder, LoopKind};
use crate::sym::Dim;

/// The operators.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    microsoft: bool,
    interleaved: bool,
    /// 0: not given.
    heads: i64,
    /// Number of elements that are rotated; 0: all.
    turning: i64,
}

impl Operator for Rope {
    const OPS: &'static [&'static str] = &["RotaryEmbedding", "com.microsoft:RotaryEmbedding"];
    fn parse(a: &mut Attrs) -> Result<Self> {
        let microsoft = !a.domain().is_empty();
        if microsoft {
            let packed = a.flag("is_packed_batching", false);
            a.require(
                !packed,
                "batches of different lengths packed into one (is_packed_batching) are not supported",
            )?;
            let scale = a.float("scale", 1.0);
            if scale != 1.0 {
                return a
                    .error("a scale of the positions is not supported")
                    .found_expected(scale.to_string(), "1")
                    .fail();
            }
        }
        let op = Rope {
            microsoft,
            interleaved: a.flag("interleaved", false),
            heads: a.int("num_heads", 0),
            turning: a.int("rotary_embedding_dim", 0),
        };
        if op.heads < 0 || op.turning < 0 || op.turning % 2 != 0 {
            return a
                .error("num_heads or rotary_embedding_dim does not fit")
                .row("expected", "numbers not below 0, the latter even")
                .fail();
        }
        Ok(op)
    }
    fn infer(&self, cx: &mut InferCx) -> Result<()> {
        let x = cx.tensor(0).clone();
        let (cos, sin) = if self.microsoft { (2, 3) } else { (1, 2) };
        let caches = [cx.tensor(cos).clone(), cx.tensor(sin).clone()];
        cx.require(matches!(x.rank(), 3 | 4), codes::OP_SHAPE, "the input must have rank 3 or 4")?;
        if x.rank() == 3 && self.heads == 0 && (!self.microsoft || self.turning > 0) {
            return cx.error(codes::OP_ATTRIBUTE, "an input of rank 3 needs the attribute num_heads").fail();
        }
        let positions = cx.tensor_opt(if self.microsoft { 1 } else { 3 }).cloned();
        let by_position = positions.is_some();
        for c in &caches {
            if c.rank() != if by_position { 2 } else { 3 } {
                return cx
                    .error(
                        codes::OP_SHAPE,
                        "cosines and sines must have rank 2 with positions and rank 3 without",
                    )
                    .fail();
            }
        }
        let (size, half) = self.sizes(&x.dims, &caches[0].dims);
        if x.rank() == 3 {
            cx.require_eq(
                x.dims[2].modulo(size),
                Dim::constant(0),
                "the heads do not divide the hidden size",
            );
        }
        cx.syms.require_at_most(half * 2, size);
        let (batch, tokens) = (x.dims[0], x.dims[x.rank() - 2]);
        for c in &caches {
            cx.require_eq(
                c.dims[c.rank() - 1],
                half,
                "the last dimension of cosines and sines is not half of what turns",
            );
            if !by_position {
                cx.require_eq(c.dims[0], batch, "the batch of cosines and sines does not fit");
                cx.require_eq(c.dims[1], tokens, "the length of cosines and sines does not fit");
            }
        }
        if let Some(p) = positions {
            match p.dims[..] {
                [b, s] => {
                    cx.require_eq(b, batch, "position_ids does not fit the batch");
                    cx.require_eq(s, tokens, "position_ids does not fit the sequence");
                }
                [one] if self.microsoft => {
                    cx.require_eq(one, Dim::constant(1), "position_ids of rank 1 must have one value")
                }
                _ => return cx.error(codes::OP_SHAPE, "position_ids must have rank 2").fail(),
            }
        }
        cx.set(0, x.elem, x.dims);
        Ok(())
    }
    fn lower(&self, cx: &mut LowerCx) -> Result<()> {
        let (x, y) = (cx.input(0), cx.output(0));
        let (cos, sin, positions) = if self.microsoft {
            (cx.input(2), cx.input(3), cx.input_opt(1))
        } else {
            (cx.input(1), cx.input(2), cx.input_opt(3))
        };
        let dims = cx.dims(x);
        let (size, half) = self.sizes(&dims, &cx.dims(cos));
        let (heads, tokens) =
            if dims.len() == 4 { (dims[1], dims[2]) } else { (dims[2].floor_div(size), dims[1]) };
        let single = positions.is_some_and(|p| cx.dims(p).len() == 1);
        let angle = |k: &mut KernelBuilder, table: Buf, b: Dim, s: Dim, i: Dim| match positions {
            None => k.load(table, &[b, s, i]),
            Some(p) => {
                let v =
                    if single { k.load(p, &[Dim::constant(0)]) + Expr::index(s) } else { k.load(p, &[b, s]) };
                let rows = k.m.bufs[table].dims[0];
                k.with_index(v, rows, |k, p| k.load(table, &[p, i]))
            }
        };
        let (x, y) = (Operand::of_rank(cx, x, size), Operand::of_rank(cx, y, size));
        rotate(
            cx,
            &Rotation { batch: dims[0], heads, tokens, size, half, interleaved: self.interleaved },
            x,
            y,
            &|k, b, s, i| [angle(k, cos, b, s, i), angle(k, sin, b, s, i)],
        );
        Ok(())
    }
}

impl Rope {
    /// Elements per head, and half of those that are rotated.
    fn sizes(&self, x: &[Dim], cos: &[Dim]) -> (Dim, Dim) {
        let half = cos[cos.len() - 1];
        let size = match x[..] {
            [_, _, _, size] => size,
            [_, _, hidden] if self.heads > 0 && (!self.microsoft || self.turning > 0) => {
                hidden.floor_div(self.heads)
            }
            _ => half * 2,
        };
        (size, if self.turning > 0 { Dim::constant(self.turning / 2) } else { size.floor_div(2) })
    }
}

/// The sizes of a rotation.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct Rotation {
    pub batch: Dim,
    pub heads: Dim,
    pub tokens: Dim,
    /// Elements per head.
    pub size: Dim,
    /// Pairs of elements that are rotated; the rest of a head is copied.
    pub half: Dim,
    /// True if the elements of a pair are adjacent, false if they are half the rotated part apart.
    pub interleaved: bool,
}

/// Rotates `x` into `y`; `angle` gives cosine and sine for batch, token and pair.
pub fn rotate(
    cx: &mut LowerCx,
    r: &Rotation,
    x: Operand,
    y: Operand,
    angle: &dyn Fn(&mut KernelBuilder, Dim, Dim, Dim) -> [Expr; 2],
) {
    let ty = cx.elem(x.buf).compute();
    let number = |k: &KernelBuilder, e: Expr| Expr::cast(k.m.type_of(&e), ty, e);
    if r.interleaved {
        adjacent(cx, r, x, y, &|k, b, s, i| angle(k, b, s, i).map(|e| number(k, e)));
    } else {
        cx.kernel(|k| {
            k.nest(LoopKind::Par, &[r.batch, r.tokens, r.heads, r.half], |k, at| {
                let (b, s, h, i) = (at[0], at[1], at[2], at[3]);
                let (first, second) = (i, i + r.half);
                let [cos, sin] = angle(k, b, s, i).map(|e| number(k, e));
                let (cos, sin) = (k.let_(cos), k.let_(sin));
                let (u, v) = (x.load(k, b, h, s, first), x.load(k, b, h, s, second));
                let (u, v) = (k.let_(u), k.let_(v));
                k.store(y.buf, &y.at(b, h, s, first), cos.clone() * u.clone() - sin.clone() * v.clone());
                k.store(y.buf, &y.at(b, h, s, second), sin * u + cos * v);
            });
        });
    }
    let rest = r.size - r.half * 2;
    if rest.as_const() == Some(0) {
        return;
    }
    cx.kernel(|k| {
        k.nest(LoopKind::Par, &[r.batch, r.tokens, r.heads, rest], |k, at| {
            let e = at[3] + r.half * 2;
            let v = x.load(k, at[0], at[2], at[1], e);
            k.store(y.buf, &y.at(at[0], at[2], at[1], e), v);
        });
    });
}

/// Rotates pairs of adjacent elements: one result at a time, so that stores are contiguous.
fn adjacent(
    cx: &mut LowerCx,
    r: &Rotation,
    x: Operand,
    y: Operand,
    angle: &dyn Fn(&mut KernelBuilder, Dim, Dim, Dim) -> [Expr; 2],
) {
    cx.kernel(|k| {
        k.nest(LoopKind::Par, &[r.batch, r.tokens, r.heads, r.half * 2], |k, at| {
            let (b, s, h, e) = (at[0], at[1], at[2], at[3]);
            let (pair, side) = (e.floor_div(2), e.modulo(2));
            let [cos, sin] = angle(k, b, s, pair);
            let (own, other) = (x.load(k, b, h, s, e), x.load(k, b, h, s, pair * 2 + 1 - side));
            let turned = k.let_(sin * other);
            let first = Expr::cmp_index(BinOp::Eq, side, 0);
            let v = cos * own + Expr::select(first, -turned.clone(), turned);
            k.store(y.buf, &y.at(b, h, s, e), v);
        });
    });
}
