//! Attention to a subset of the keys: blocks of a mask with a cache, or a window with a few global tokens.
//! The scores of all keys are computed and then masked.

use super::{Contrib, Outputs};
use crate::diag::{Failure, Result};
use crate::graph::Value;
use crate::ops::{AttrValue, Known};
use crate::tensor::{ConstData, ElemType};
use std::sync::Arc;

/// Most elements of a block mask that is stored as a constant.
const MOST: i64 = 1 << 24;

impl Contrib<'_> {
    /// [batch, length, heads * size] -> [batch, heads, length, size].
    fn heads(&mut self, v: Value, heads: i64) -> Value {
        let shape = self.make.ints(&[0, 0, heads, -1]);
        let v = self.op("Reshape", &[v, shape]);
        self.permuted(v, vec![0, 2, 1, 3])
    }
    /// The inverse of [`Contrib::heads`].
    fn joined(&mut self, v: Value) -> Value {
        let v = self.permuted(v, vec![0, 2, 1, 3]);
        let shape = self.make.ints(&[0, 0, -1]);
        self.op("Reshape", &[v, shape])
    }
    /// The integers from 0 up to the number in `n`, a list of one element.
    fn count_up(&mut self, n: Value) -> Value {
        let (zero, one, none) = (self.make.integer(0), self.make.integer(1), self.make.ints(&[]));
        let n = self.op("Reshape", &[n, none]);
        self.op("Range", &[zero, n, one])
    }
    /// The boolean mask of the blocks that each layout reads, from the CSR rows and columns of its blocks.
    fn block_mask(&mut self) -> Result<Option<Value>> {
        let known = |i: usize| match self.operands.get(i)?.as_ref()?.known {
            Known::Const(ref c) => Some((c.dims().to_vec(), c.to_i64s()?)),
            _ => None,
        };
        let (Some((shape, rows)), Some((wide, columns))) = (known(5), known(6)) else { return Ok(None) };
        let (&[layouts, ends], &[same, most]) = (shape.as_slice(), wide.as_slice()) else { return Ok(None) };
        let blocks = ends - 1;
        if layouts < 1
            || same != layouts
            || blocks < 1
            || layouts.saturating_mul(blocks).saturating_mul(blocks) > MOST
        {
            return Ok(None);
        }
        let mut mask = vec![0u8; (layouts * blocks * blocks) as usize];
        for l in 0..layouts {
            for r in 0..blocks {
                let at = (l * ends + r) as usize;
                for p in rows[at]..rows[at + 1] {
                    let Some(c) = (0..most)
                        .contains(&p)
                        .then(|| columns[(l * most + p) as usize])
                        .filter(|c| (0..blocks).contains(c))
                    else {
                        return Ok(None);
                    };
                    mask[((l * blocks + r) * blocks + c) as usize] = 1;
                }
            }
        }
        let data = ConstData::new(ElemType::Bool, vec![layouts, blocks, blocks], mask)
            .ok_or_else(|| Failure::bug("contrib", "a mask"))?;
        Ok(Some(self.make.g.add_const("blocks", Arc::new(data))))
    }
    pub(super) fn sparse_attention(&mut self) -> Result<Outputs> {
        let (heads, groups, block) =
            (self.int("num_heads", 1), self.int("kv_num_heads", 1), self.int("sparse_block_size", 64));
        let (past, total, lengths) = ([self.x(3), self.x(4)], self.x(7), self.x(8));
        let Some(mask) = self.block_mask()? else {
            return self.refuse("a mask of blocks that is not constant, or not one");
        };
        let Some(layouts) = self.make.dims(self.x(5))?.first().and_then(|d| d.as_const()) else {
            return self.refuse("layouts that only run time knows");
        };
        let Some(size) = self.make.dims(past[0])?.last().and_then(|d| d.as_const()) else {
            return self.refuse("a head size that only run time knows");
        };
        if heads < 1 || groups < 1 || block < 1 || heads % layouts != 0 {
            return self.refuse("numbers of heads that the layouts do not divide");
        }
        let x = self.x(0);
        let mut parts = match (self.given(1), self.given(2)) {
            (Some(k), Some(v)) => [x, k, v],
            _ => {
                let widths = self.make.ints(&[heads * size, groups * size, groups * size]);
                let parts = self.make.node(
                    "Split",
                    vec![("axis", AttrValue::Int(2))],
                    vec![Some(x), Some(widths)],
                    3,
                );
                [parts[0], parts[1], parts[2]]
            }
        };
        // The number of tokens before the new ones: none if all are new.
        let one = self.make.ints(&[1]);
        let (length, total) = (self.make.sizes(x, 1, 2), self.cast(total, ElemType::I64));
        let total = self.op("Reshape", &[total, one]);
        let lengths = self.cast(lengths, ElemType::I64);
        let (first, zero) = (self.op("Equal", &[total, length]), self.make.ints(&[0]));
        let before = self.op("Sub", &[lengths, length]);
        let before = self.op("Where", &[first, zero, before]);
        // [batch, length]
        let (steps, column) = (self.count_up(length), self.axes_of(before, "Unsqueeze", &[1]));
        let positions = self.op("Add", &[column, steps]);
        if self.int("do_rotary", 0) != 0 {
            let (cos, sin) = (self.x(9), self.x(10));
            for (part, n) in parts.iter_mut().take(2).zip([heads, groups]) {
                let attrs = [
                    ("num_heads", n),
                    ("rotary_embedding_dim", 0),
                    ("interleaved", self.int("rotary_interleaved", 0)),
                ];
                let attrs = attrs
                    .into_iter()
                    .filter(|(_, v)| *v != 0)
                    .map(|(n, v)| (n.to_owned(), AttrValue::Int(v)))
                    .collect();
                // The operator derives the number of heads from the shape of a 4-D input.
                let v = self.heads(*part, n);
                let v = self.make.contrib(
                    "RotaryEmbedding",
                    attrs,
                    vec![Some(v), Some(positions), Some(cos), Some(sin)],
                    1,
                )[0];
                *part = self.joined(v);
            }
        }
        let q = self.heads(parts[0], heads);
        let mut caches = vec![];
        for (past, new) in past.into_iter().zip(&parts[1..]) {
            let new = self.heads(*new, groups);
            caches.push(self.make.with(
                "TensorScatter",
                vec![("axis", AttrValue::Int(-2))],
                &[past, new, before],
            ));
        }
        let (from, axis) = (self.make.ints(&[0]), self.make.ints(&[2]));
        let keys = self.op("Slice", &[caches[0], from, total, axis]);
        let values = self.op("Slice", &[caches[1], from, total, axis]);
        // The causal mask [batch, 1, length, keys] and the block mask [layouts, batch, length, keys].
        let places = self.count_up(total);
        let rows = self.axes_of(positions, "Unsqueeze", &[2]);
        let causal = self.op("LessOrEqual", &[places, rows]);
        let side = self.make.integer(block);
        let (own, other) = (self.op("Div", &[positions, side]), self.op("Div", &[places, side]));
        let read = self.make.with("Gather", vec![("axis", AttrValue::Int(1))], &[mask, own]);
        let read = self.make.with("Gather", vec![("axis", AttrValue::Int(3))], &[read, other]);
        let allowed = self.op("And", &[read, causal]);
        // Heads use the layouts in turn.
        let turns: Vec<i64> = (0..heads).map(|h| h % layouts).collect();
        let turns = self.make.ints(&turns);
        let allowed = self.make.with("Gather", vec![("axis", AttrValue::Int(0))], &[allowed, turns]);
        let allowed = self.permuted(allowed, vec![1, 0, 2, 3]);
        let mut attrs = vec![];
        if self.float("scale", 0.0) != 0.0 {
            attrs.push(("scale", AttrValue::Float(self.float("scale", 0.0))));
        }
        let y =
            self.make.node("Attention", attrs, vec![Some(q), Some(keys), Some(values), Some(allowed)], 1)[0];
        Ok(vec![Some(self.joined(y)), Some(caches[0]), Some(caches[1])])
    }
    /// Tokens attend to a window around them and to the global tokens; global tokens attend to all, with
    /// separate projections.
    pub(super) fn longformer(&mut self) -> Value {
        let (x, mask, flags) = (self.x(0), self.x(3), self.x(6));
        let (heads, window) = (self.int("num_heads", 1), self.int("window", 1));
        let elem = self.make.elem(x);
        let split = |s: &mut Self, w: usize, b: usize| -> Vec<Value> {
            let (w, b) = (s.x(w), s.x(b));
            let v = s.op("MatMul", &[x, w]);
            let v = s.op("Add", &[v, b]);
            let parts = s.make.node(
                "Split",
                vec![("axis", AttrValue::Int(2)), ("num_outputs", AttrValue::Int(3))],
                vec![Some(v)],
                3,
            );
            parts.into_iter().map(|p| s.heads(p, heads)).collect()
        };
        let (own, global) = (split(self, 1, 2), split(self, 4, 5));
        let bias = self.axes_of(mask, "Unsqueeze", &[1, 2]);
        let flags = self.make.cast(flags, ElemType::I32, ElemType::Bool);
        let length = self.make.sizes(x, 1, 2);
        let places = self.count_up(length);
        let rows = self.axes_of(places, "Unsqueeze", &[1]);
        let far = self.op("Sub", &[places, rows]);
        let (far, most) = (self.op("Abs", &[far]), self.make.integer(window));
        let near = self.op("LessOrEqual", &[far, most]);
        let columns = self.axes_of(flags, "Unsqueeze", &[1, 2]);
        let seen = self.op("Or", &[near, columns]);
        let never = self.make.number(elem, f64::NEG_INFINITY);
        let local = self.op("Where", &[seen, bias, never]);
        let near = self.make.node(
            "Attention",
            vec![],
            vec![Some(own[0]), Some(own[1]), Some(own[2]), Some(local)],
            1,
        )[0];
        // The mask has a value for each row of the scores.
        let (frame, last) = (self.make.sizes(bias, 0, 2), self.make.sizes(bias, 3, 4));
        let shape = self.concat(&[frame, length, last]);
        let whole = self.op("Expand", &[bias, shape]);
        let all = self.make.node(
            "Attention",
            vec![],
            vec![Some(global[0]), Some(global[1]), Some(global[2]), Some(whole)],
            1,
        )[0];
        let which = self.axes_of(flags, "Unsqueeze", &[1, 3]);
        let v = self.op("Where", &[which, all, near]);
        self.joined(v)
    }
}
