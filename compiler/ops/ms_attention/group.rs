//! GroupQueryAttention: query heads that share keys, a cache that grows, rotations, windows, sinks.

use super::MsAttention;
use crate::diag::{Result, codes};
use crate::nest::{BinOp, Expr, KernelBuilder, LoopKind};
use crate::ops::attention::core::{self, Form, Operand, Sizes};
use crate::ops::rope::{Rotation, rotate};
use crate::ops::{InferCx, LowerCx, runtime};
use crate::nest::Buf;
use crate::sym::Dim;
use crate::tensor::ElemType;

impl MsAttention {
    pub(super) fn infer_group(&self, cx: &mut InferCx, kv_heads: i64, rotary: bool) -> Result<()> {
        let q = cx.tensor(0)?.clone();
        let (k, v) = (cx.tensor_opt(1)?.cloned(), cx.tensor_opt(2)?.cloned());
        if q.rank() != 3 || k.is_some() != v.is_some() {
            return cx.error(codes::OP_SHAPE, "the query must have rank 3, and key and value be given together").fail();
        }
        let size = self.group_size(&q.dims, k.is_some(), kv_heads);
        let hidden = size * (self.heads + if k.is_some() { 0 } else { 2 * kv_heads });
        cx.require_eq(hidden, q.dims[2], "the heads do not divide the query")?;
        for t in [&k, &v].into_iter().flatten() {
            if t.rank() != 3 {
                return cx.error(codes::OP_SHAPE, "key and value must have rank 3").fail();
            }
            for (a, b) in t.dims.iter().zip([q.dims[0], q.dims[1], size * kv_heads]) {
                cx.require_eq(*a, b, "key and value do not fit the query")?;
            }
        }
        let n = cx.tensor(5)?.count();
        cx.require_eq(n, q.dims[0], "seqlens_k does not have one value for each sample")?;
        if rotary && !(cx.has(7) && cx.has(8)) {
            return cx.error(codes::OP_ARITY, "do_rotary needs cos_cache and sin_cache").fail();
        }
        let mut before = Dim::constant(0);
        let past = [cx.tensor_opt(3)?.cloned(), cx.tensor_opt(4)?.cloned()];
        for p in past.iter().flatten() {
            if p.rank() != 4 || p.elem != q.elem {
                return cx.error(codes::OP_FEATURE, "the past must have rank 4 and the type of the query").fail();
            }
            before = p.dims[2];
            for (a, b) in p.dims.iter().zip([q.dims[0], Dim::constant(kv_heads), past[0].as_ref().map_or(before, |p| p.dims[2]), size]) {
                cx.require_eq(*a, b, "the past does not fit")?;
            }
        }
        if let Some(t) = cx.tensor_opt(11)? {
            let n = t.count();
            cx.require_eq(n, Dim::constant(self.heads), "head_sink does not have one value for each head")?;
        }
        // The cache is as long as the longest sequence, or as the past if that is longer.
        let total = match cx.dims_value(6).as_deref() {
            Some([t]) => *t,
            _ => {
                let declared = [1, 2].into_iter().find_map(|k| cx.declared.get(k)?.clone()).filter(|d| d.len() == 4).map(|d| d[2]);
                match declared {
                    Some(d) => d,
                    // With a past the usual caller grows it by the new tokens.
                    None => before + q.dims[1],
                }
            }
        };
        let keys = match cx.syms.le(before, total) {
            crate::sym::Answer::Yes => total,
            _ => total.max(before),
        };
        self.check_bias(cx, 10, q.dims[0], q.dims[1], total)?;
        if cx.outputs.len() > 3 {
            return cx.error(codes::OP_FEATURE, "the output output_qk is not supported").fail();
        }
        let cache = vec![q.dims[0], Dim::constant(kv_heads), keys, size];
        cx.set(2, q.elem, cache.clone());
        cx.set(1, q.elem, cache);
        cx.set(0, q.elem, vec![q.dims[0], q.dims[1], size * self.heads]);
        Ok(())
    }
    fn group_size(&self, q: &[Dim], separate: bool, kv_heads: i64) -> Dim {
        q[2].floor_div(self.heads + if separate { 0 } else { 2 * kv_heads })
    }

    /// Sample b has `seqlens_k[b] + 1` keys; those before the new ones come from the past (none in a first call, where
    /// the new tokens are all there is).
    pub(super) fn lower_group(&self, cx: &mut LowerCx, kv_heads: i64, rotary: Option<bool>, window: i64, smooth: bool) -> Result<()> {
        let (q, k, v) = (cx.input(0), cx.input_opt(1), cx.input_opt(2));
        let past = [cx.input_opt(3), cx.input_opt(4)];
        let (lengths, total, ids, bias, sinks) = (cx.input(5), cx.input(6), cx.input_opt(9), cx.input_opt(10), cx.input_opt(11));
        let dq = cx.dims(q);
        let (elem, ty) = (cx.elem(q), cx.elem(q).compute());
        let (batch, tokens) = (dq[0], dq[1]);
        // One value for each sample, in any shape: exporters write [batch] and [batch, 1].
        let lengths = cx.m.view(lengths, vec![batch]);
        let size = self.group_size(&dq, k.is_some(), kv_heads);
        let (heads, few) = (Dim::constant(self.heads), Dim::constant(kv_heads));
        let part = |buf: Buf, offset: Dim| Operand { buf, form: Form::Hidden { size, offset } };
        let [mut query, mut key, value] = match (k, v) {
            (Some(k), Some(v)) => [part(q, 0.into()), part(k, 0.into()), part(v, 0.into())],
            _ => [part(q, 0.into()), part(q, heads * size), part(q, (heads + few) * size)],
        };
        // Keys of each sample before the new ones.
        let before = cx.temp("before", ElemType::I64, vec![batch]);
        let known_total = cx.dims_value(6).is_some();
        let cache = [1, 2].into_iter().find_map(|k| cx.output_opt(k)).map(|b| cx.dims(b)[2]);
        let longest = past.iter().flatten().next().map_or(Dim::constant(0), |b| cx.dims(*b)[2]);
        let keys = match (cache, cx.dims_value(6).as_deref()) {
            (Some(c), _) => c,
            (None, Some([t])) => (*t).max(longest),
            _ => longest + tokens,
        };
        cx.kernel(|k| {
            let at = vec![Dim::constant(0); k.m.bufs[total].dims.len()];
            let all = Expr::cast(ElemType::I32, ElemType::I64, k.load(total, &at));
            let all = k.let_(all);
            if !known_total {
                let fits = Expr::bin(BinOp::Le, all.clone(), Expr::index(keys)).and(Expr::bin(BinOp::Ge, all.clone(), Expr::index(tokens)));
                runtime::check(k, fits);
                runtime::check(k, runtime::eq(all.clone().max(Expr::index(longest)), Expr::index(keys)));
            }
            k.nest(LoopKind::Par, &[batch], |k, b| {
                let n = Expr::cast(ElemType::I32, ElemType::I64, k.load(lengths, b)) + runtime::int(1) - Expr::index(tokens);
                let first = runtime::eq(all.clone(), Expr::index(tokens));
                k.store(before, b, Expr::select(first, runtime::int(0), n));
            });
        });
        if let (Some(interleaved), Some(cos), Some(sin)) = (rotary, cx.input_opt(7), cx.input_opt(8)) {
            let half = cx.dims(cos)[1];
            for (o, name, n) in [(&mut query, "turned_query", heads), (&mut key, "turned_key", few)] {
                let out = cx.temp(name, elem, vec![batch, n, tokens, size]);
                let turned = Operand { buf: out, form: Form::Heads };
                rotate(cx, &Rotation { batch, heads: n, tokens, size, half, interleaved }, *o, turned, &|k, b, s, i| {
                    let p = match ids {
                        Some(p) => k.load(p, &[b, s]),
                        None => k.load(before, &[b]) + Expr::index(s),
                    };
                    [cos, sin].map(|t| {
                        let rows = k.m.bufs[t].dims[0];
                        k.with_index(p.clone(), rows, |k, p| k.load(t, &[p, i]))
                    })
                });
                *o = turned;
            }
        }
        let mut present = [key, value];
        for (i, new) in [key, value].into_iter().enumerate() {
            let out = match cx.output_opt(1 + i) {
                Some(b) => b,
                None => cx.temp(["present_key", "present_value"][i], elem, vec![batch, few, keys, size]),
            };
            cx.map(out, |k, at| {
                let n = k.load(before, &at[..1]);
                k.shared(n, |k, n| {
                    let fresh = Expr::index(at[2]) - n.clone();
                    let is_new = Expr::bin(BinOp::Ge, fresh.clone(), runtime::int(0)).and(Expr::bin(BinOp::Lt, fresh.clone(), Expr::index(tokens)));
                    let new = k.with_index(fresh, tokens, |k, t| new.load(k, at[0], at[1], t, at[3]));
                    // What lies behind a sample's keys is not used; the past's elements stay there.
                    let old = match past[i] {
                        Some(p) => Expr::select(Expr::cmp_index(BinOp::Lt, at[2], longest), k.load(p, at), Expr::num(ty, 0.0)),
                        None => Expr::num(ty, 0.0),
                    };
                    Expr::select(is_new, new, old)
                })
            });
            present[i] = Operand { buf: out, form: Form::Heads };
        }
        let Some(y) = cx.output_opt(0) else { return Ok(()) };
        let s = Sizes { batch, kv_heads: few, shared: Dim::constant(self.heads / kv_heads), queries: tokens, keys, size, value_size: size };
        let scale = self.scale(size, ty);
        let x = core::scores(cx, &s, query, present[0], scale, ty);
        let masked = cx.temp("masked", ty, s.scores());
        cx.map(masked, |k, at| {
            let n = k.load(before, &at[..1]);
            k.shared(n, |k, n| {
                let mut v = k.load(x, at);
                if self.softcap > 0.0 {
                    v = core::softcap(ty, v, f64::from(self.softcap));
                }
                if let Some(b) = bias {
                    let columns = k.m.bufs[b].dims[3];
                    let inside = Expr::cmp_index(BinOp::Lt, at[3], columns);
                    v = v + Expr::select(inside, k.load_broadcast(b, at), Expr::num(ty, 0.0));
                }
                let j = Expr::index(at[3]);
                let own = n.clone() + Expr::index(at[2]);
                let last = if self.causal { own.clone() } else { n + Expr::index(tokens - 1) };
                let mut allowed = Expr::bin(BinOp::Le, j.clone(), last);
                if window > 0 {
                    allowed = allowed.and(Expr::bin(BinOp::Lt, own - j, runtime::int(window)));
                }
                Expr::select(allowed, v, core::masked(ty))
            })
        });
        let sink = |k: &mut KernelBuilder, at: &[Dim]| match sinks {
            Some(b) => k.load(b, &[at[1]]),
            None => Expr::num(ty, 0.0),
        };
        let p = core::softmax(cx, masked, true, if sinks.is_some() || smooth { Some(&sink) } else { None });
        let y = Operand::of_rank(cx, y, size);
        core::values(cx, &s, p, present[1], y);
        Ok(())
    }
}
