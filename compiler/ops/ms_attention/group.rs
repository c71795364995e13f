//! GroupQueryAttention: query heads that share keys, a cache that grows, rotations, windows, sinks.

use super::{Group, MsAttention};
use crate::diag::{Result, codes};
use crate::nest::{BinOp, Buf, Expr, KernelBuilder, LoopKind, UnOp};
use crate::ops::attention::core::{self, Form, Operand, Sizes};
use crate::ops::cast::saturated;
use crate::ops::quantize::quantized;
use crate::ops::rope::{Rotation, rotate};
use crate::ops::support::runtime;
use crate::ops::{InferCx, LowerCx};
use crate::sym::Dim;
use crate::tensor::ElemType;

impl MsAttention {
    pub(super) fn infer_group(&self, cx: &mut InferCx, g: &Group) -> Result<()> {
        let kv_heads = g.kv_heads;
        let q = cx.tensor(0)?.clone();
        let (k, v) = (cx.tensor_opt(1)?.cloned(), cx.tensor_opt(2)?.cloned());
        cx.require(
            q.rank() == 3 && k.is_some() == v.is_some(),
            codes::OP_SHAPE,
            "the query must have rank 3, and key and value be given together",
        )?;
        let size = self.group_size(&q.dims, k.is_some(), kv_heads);
        let hidden = size * (self.heads + if k.is_some() { 0 } else { 2 * kv_heads });
        cx.require_eq(hidden, q.dims[2], "the heads do not divide the query")?;
        for t in [&k, &v].into_iter().flatten() {
            cx.require(t.rank() == 3, codes::OP_SHAPE, "key and value must have rank 3")?;
            for (a, b) in t.dims.iter().zip([q.dims[0], q.dims[1], size * kv_heads]) {
                cx.require_eq(*a, b, "key and value do not fit the query")?;
            }
        }
        let n = cx.tensor(5)?.count();
        cx.require_eq(n, q.dims[0], "seqlens_k does not have one value for each sample")?;
        if g.rotary && !(cx.has(7) && cx.has(8)) {
            return cx.error(codes::OP_ARITY, "do_rotary needs cos_cache and sin_cache").fail();
        }
        for (i, name, rank) in [
            (7, "cos_cache", 2),
            (8, "sin_cache", 2),
            (9, "position_ids", 2),
            (11, "head_sink", 1),
            (14, "q_norm_weight", 1),
            (15, "k_norm_weight", 1),
        ] {
            if let Some(t) = cx.tensor_opt(i)?
                && t.rank() != rank
            {
                let found = t.rank().to_string();
                return cx
                    .error(codes::OP_SHAPE, format!("{name} must have rank {rank}"))
                    .found_expected(found, rank.to_string())
                    .fail();
            }
        }
        if let (Some(cos), Some(sin)) = (cx.tensor_opt(7)?.cloned(), cx.tensor_opt(8)?.cloned()) {
            for (a, b) in sin.dims.iter().zip(&cos.dims) {
                cx.require_eq(*a, *b, "cos_cache and sin_cache differ in shape")?;
            }
        }
        let mut before = Dim::constant(0);
        let past = [cx.tensor_opt(3)?.cloned(), cx.tensor_opt(4)?.cloned()];
        let mut caches = [(q.elem, size); 2];
        for (i, p) in past.iter().enumerate() {
            let (name, what) = (["k_scale", "v_scale"][i], ["past_key", "past_value"][i]);
            if g.quantized[i] {
                let Some(p) = p else {
                    return cx
                        .error(
                            codes::OP_FEATURE,
                            format!("a quantized cache needs the input {what}: it has the cache's type"),
                        )
                        .fail();
                };
                let fits = if g.bits == 4 {
                    p.elem == ElemType::U8
                } else {
                    matches!(p.elem, ElemType::I8 | ElemType::F8E4M3FN)
                };
                if !fits {
                    let expected = if g.bits == 4 { "uint8" } else { "int8 or float8e4m3fn" };
                    return cx
                        .error(codes::OP_TYPE, format!("{what} has the wrong type"))
                        .found_expected(p.elem.to_string(), expected)
                        .fail();
                }
                let Some(s) = cx.tensor_opt(12 + i)? else {
                    return cx
                        .error(codes::OP_ARITY, format!("a quantized cache needs the input {name}"))
                        .fail();
                };
                let n = s.count();
                if n.as_const() != Some(1) {
                    cx.require_eq(
                        n,
                        size * kv_heads,
                        "a scale is one for all, or one for each key head and element",
                    )?;
                }
                caches[i] = (p.elem, if g.bits == 4 { size.ceil_div(2) } else { size });
            }
            let Some(p) = p else { continue };
            cx.require(
                p.rank() == 4 && p.elem == caches[i].0,
                codes::OP_FEATURE,
                "the past must have rank 4 and the type of the query, unless it is quantized",
            )?;
            before = p.dims[2];
            for (a, b) in p.dims.iter().zip([
                q.dims[0],
                Dim::constant(kv_heads),
                past[0].as_ref().map_or(before, |p| p.dims[2]),
                caches[i].1,
            ]) {
                cx.require_eq(*a, b, "the past does not fit")?;
            }
        }
        cx.require(
            cx.has(14) == cx.has(15),
            codes::OP_ARITY,
            "q_norm_weight and k_norm_weight are given together or not at all",
        )?;
        for i in [14, 15] {
            if let Some(t) = cx.tensor_opt(i)? {
                let n = t.count();
                cx.require_eq(n, size, "a norm's weight does not have one value for each element of a head")?;
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
                let declared = [1, 2]
                    .into_iter()
                    .find_map(|k| cx.declared.get(k)?.clone())
                    .filter(|d| d.len() == 4)
                    .map(|d| d[2]);
                match declared {
                    Some(d) => d,
                    // With a past the usual caller grows it by the new tokens.
                    None => before + q.dims[1],
                }
            }
        };
        let keys = match cx.syms.le(before, total) {
            _ if g.evicts => before,
            crate::sym::Answer::Yes => total,
            _ => total.max(before),
        };
        if g.evicts {
            cx.require(
                !past.iter().any(|p| p.is_none()),
                codes::OP_ARITY,
                "sliding_window_cache needs past_key and past_value: their size is the capacity",
            )?;
            cx.syms.require_at_most(Dim::constant(g.window), before);
            if let Some(b) = cx.tensor_opt(10)?.cloned().filter(|b| b.rank() == 4) {
                // Columns are absolute positions.
                self.check_bias(cx, 10, q.dims[0], q.dims[1], b.dims[3])?;
            }
        } else {
            self.check_bias(cx, 10, q.dims[0], q.dims[1], total)?;
        }
        if cx.outputs.len() > 3 {
            cx.require(
                !g.evicts,
                codes::OP_FEATURE,
                "the output output_qk is not supported with \
                    sliding_window_cache: keys have no fixed columns",
            )?;
            if g.scores == 0 {
                return cx
                    .error(
                        codes::OP_ATTRIBUTE,
                        "the output output_qk needs the attribute qk_output to say which scores it has",
                    )
                    .found_expected("0", "1 or 2")
                    .fail();
            }
            cx.set(3, q.elem, vec![q.dims[0], Dim::constant(self.heads), q.dims[1], total]);
        }
        for (i, (elem, size)) in caches.into_iter().enumerate().rev() {
            cx.set(1 + i, elem, vec![q.dims[0], Dim::constant(kv_heads), keys, size]);
        }
        cx.set(0, q.elem, vec![q.dims[0], q.dims[1], size * self.heads]);
        Ok(())
    }
    fn group_size(&self, q: &[Dim], separate: bool, kv_heads: i64) -> Dim {
        q[2].floor_div(self.heads + if separate { 0 } else { 2 * kv_heads })
    }

    /// Sample b has `seqlens_k[b] + 1` keys; those before the new ones come from the past (none in a first
    /// call, where the new tokens are all there is).
    ///
    /// A cache that evicts has the last keys of these in its first rows. The new ones go behind them, into
    /// rows that the cache does not have; queries read all of these rows, and the last of them become the new
    /// cache.
    pub(super) fn lower_group(&self, cx: &mut LowerCx, g: &Group) -> Result<()> {
        let (kv_heads, rotary, window) = (g.kv_heads, g.rotary.then_some(g.interleaved), g.window);
        let (q, k, v) = (cx.input(0), cx.input_opt(1), cx.input_opt(2));
        let past = [cx.input_opt(3), cx.input_opt(4)];
        let (lengths, total, ids, bias, sinks) =
            (cx.input(5), cx.input(6), cx.input_opt(9), cx.input_opt(10), cx.input_opt(11));
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
        // Keys of each sample before the new ones, and those of them that the cache has.
        let before = cx.temp("before", ElemType::I64, vec![batch]);
        let cached = if g.evicts { cx.temp("cached", ElemType::I64, vec![batch]) } else { before };
        let known_total = cx.dims_value(6).is_some();
        let cache = [1, 2].into_iter().find_map(|k| cx.output_opt(k)).map(|b| cx.dims(b)[2]);
        let longest = past.iter().flatten().next().map_or(Dim::constant(0), |b| cx.dims(*b)[2]);
        let keys = match (cache, cx.dims_value(6).as_deref()) {
            _ if g.evicts => longest + tokens,
            (Some(c), _) => c,
            (None, Some([t])) => (*t).max(longest),
            _ => longest + tokens,
        };
        cx.kernel(|k| {
            let at = vec![Dim::constant(0); k.m.bufs[total].dims.len()];
            let all = Expr::cast(ElemType::I32, ElemType::I64, k.load(total, &at));
            let all = k.let_(all);
            if g.evicts {
                runtime::check(k, Expr::bin(BinOp::Ge, all.clone(), Expr::index(tokens)));
            } else if !known_total {
                let fits = Expr::bin(BinOp::Le, all.clone(), Expr::index(keys)).and(Expr::bin(
                    BinOp::Ge,
                    all.clone(),
                    Expr::index(tokens),
                ));
                runtime::check(k, fits);
                runtime::check(k, runtime::eq(all.clone().max(Expr::index(longest)), Expr::index(keys)));
            }
            k.nest(LoopKind::Par, &[batch], |k, b| {
                let n = Expr::cast(ElemType::I32, ElemType::I64, k.load(lengths, b)) + runtime::int(1)
                    - Expr::index(tokens);
                let first = runtime::eq(all.clone(), Expr::index(tokens));
                let n = k.let_(Expr::select(first, runtime::int(0), n));
                k.store(before, b, n.clone());
                if g.evicts {
                    k.store(cached, b, resident(n, longest, window));
                }
            });
        });
        for (o, i, name, n) in [(&mut query, 14, "normed_query", heads), (&mut key, 15, "normed_key", few)] {
            if let Some(weight) = cx.input_opt(i) {
                let out = cx.temp(name, elem, vec![batch, n, tokens, size]);
                let out = Operand { buf: out, form: Form::Heads };
                normalize(cx, *o, out, weight, (vec![batch, n, tokens], size), g.epsilon);
                *o = out;
            }
        }
        if let (Some(interleaved), Some(cos), Some(sin)) = (rotary, cx.input_opt(7), cx.input_opt(8)) {
            let half = cx.dims(cos)[1];
            for (o, name, n) in [(&mut query, "turned_query", heads), (&mut key, "turned_key", few)] {
                let out = cx.temp(name, elem, vec![batch, n, tokens, size]);
                let turned = Operand { buf: out, form: Form::Heads };
                rotate(
                    cx,
                    &Rotation { batch, heads: n, tokens, size, half, interleaved },
                    *o,
                    turned,
                    &|k, b, s, i| {
                        let p = match ids {
                            Some(p) => k.load(p, &[b, s]),
                            None => k.load(before, &[b]) + Expr::index(s),
                        };
                        [cos, sin].map(|t| {
                            let rows = k.m.bufs[t].dims[0];
                            k.with_index(p.clone(), rows, |k, p| k.load(t, &[p, i]))
                        })
                    },
                );
                *o = turned;
            }
        }
        let mut present = [key, value];
        for (i, new) in [key, value].into_iter().enumerate() {
            let cache = g.quantized[i].then(|| Cache::new(cx, g, i, size)).flatten();
            let (cache_elem, cache_size) = match (&cache, past[i]) {
                (Some(c), Some(p)) => (cx.elem(p), c.stored(size)),
                _ => (elem, size),
            };
            let cache_ty = cache_elem.compute();
            let out = match cx.output_opt(1 + i) {
                Some(b) if !g.evicts => b,
                _ => cx.temp(
                    ["present_key", "present_value"][i],
                    cache_elem,
                    vec![batch, few, keys, cache_size],
                ),
            };
            // The past as it is, zeros behind it, and the new tokens over both. What lies behind a sample's
            // keys is not used.
            if let Some(p) = past[i] {
                cx.kernel(|k| {
                    k.nest(LoopKind::Par, &[batch, few, longest, cache_size], |k, at| {
                        let v = k.load(p, at);
                        k.store(out, at, v);
                    });
                });
            }
            let behind = cx.m.syms.simplify(keys - longest);
            if behind.as_const() != Some(0) && (past[i].is_some() || behind != tokens) {
                cx.kernel(|k| {
                    k.nest(LoopKind::Par, &[batch, few, behind, cache_size], |k, at| {
                        k.store(out, &[at[0], at[1], at[2] + longest, at[3]], Expr::num(cache_ty, 0.0));
                    });
                });
            }
            cx.kernel(|k| {
                k.nest(LoopKind::Par, &[batch, few, tokens], |k, at| {
                    let place = k.load(cached, &at[..1]) + Expr::index(at[2]);
                    k.at_index(place, keys, |k, p| {
                        k.nest(LoopKind::Par, &[cache_size], |k, e| {
                            let v = match &cache {
                                Some(c) => c.code(k, new, [at[0], at[1], at[2], e[0]], size),
                                None => new.load(k, at[0], at[1], at[2], e[0]),
                            };
                            k.store(out, &[at[0], at[1], p, e[0]], v);
                        });
                    });
                });
            });
            if let Some(present) = cx.output_opt(1 + i).filter(|_| g.evicts) {
                cx.map(present, |k, at| {
                    let all = k.load(before, &at[..1]) + Expr::index(tokens);
                    let gone =
                        k.load(cached, &at[..1]) + Expr::index(tokens) - resident(all, longest, window);
                    let from = (gone + Expr::index(at[2])).min(Expr::index(keys - 1));
                    k.with_index(from, keys, |k, row| k.load(out, &[at[0], at[1], row, at[3]]))
                });
            }
            let seen = match &cache {
                Some(c) => {
                    let floats = cx.temp(["cached_key", "cached_value"][i], ty, vec![batch, few, keys, size]);
                    cx.map(floats, |k, at| c.value(k, out, at));
                    floats
                }
                None => out,
            };
            present[i] = Operand { buf: seen, form: Form::Heads };
        }
        let scores_out = cx.output_opt(3);
        if cx.output_opt(0).is_none() && scores_out.is_none() {
            return Ok(());
        }
        let s = Sizes {
            batch,
            kv_heads: few,
            shared: Dim::constant(self.heads / kv_heads),
            queries: tokens,
            keys,
            size,
            value_size: size,
        };
        let scale = self.scale(size, ty);
        let x = core::scores(cx, &s, query, present[0], scale, ty);
        let masked = cx.temp("masked", ty, s.scores());
        cx.map(masked, |k, at| {
            let n = k.load(cached, &at[..1]);
            k.shared(n, |k, n| {
                let mut v = k.load(x, at);
                if self.softcap > 0.0 {
                    v = core::softcap(ty, v, f64::from(self.softcap));
                }
                if let Some(b) = bias {
                    let columns = k.m.bufs[b].dims[3];
                    v = v + match g.evicts {
                        true => {
                            let column = k.load(before, &at[..1]) - n.clone() + Expr::index(at[3]);
                            let near = column.clone().min(Expr::index(columns - 1)).max(runtime::int(0));
                            let inside = Expr::bin(BinOp::Lt, column, Expr::index(columns));
                            let value = k.with_index(near, columns, |k, c| {
                                k.load_broadcast(b, &[at[0], at[1], at[2], c])
                            });
                            Expr::select(inside, value, Expr::num(ty, 0.0))
                        }
                        false => {
                            let inside = Expr::cmp_index(BinOp::Lt, at[3], columns);
                            Expr::select(inside, k.load_broadcast(b, at), Expr::num(ty, 0.0))
                        }
                    };
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
        let p = core::softmax(cx, masked, true, if sinks.is_some() || g.smooth { Some(&sink) } else { None });
        if let Some(out) = scores_out {
            // What is masked is 0 in the scores, too.
            cx.map(out, |k, at| match g.scores {
                1 => {
                    let v = k.load(masked, at);
                    k.shared(v, |_, v| {
                        Expr::select(Expr::bin(BinOp::Eq, v.clone(), core::masked(ty)), Expr::num(ty, 0.0), v)
                    })
                }
                _ => k.load(p, at),
            });
        }
        let Some(y) = cx.output_opt(0) else { return Ok(()) };
        let y = Operand::of_rank(cx, y, size);
        core::values(cx, &s, p, present[1], y);
        Ok(())
    }
}

/// Of `total` positions, those that a cache of `capacity` rows has: what does not fit any more goes in steps
/// of the rows that it has beside the window.
fn resident(total: Expr, capacity: Dim, window: i64) -> Expr {
    let beside = Expr::index(capacity - window + 1);
    let over = total.clone() - Expr::index(capacity);
    let steps = Expr::bin(
        BinOp::Div,
        over.clone().max(runtime::int(0)) + beside.clone() - runtime::int(1),
        beside.clone(),
    );
    Expr::select(Expr::bin(BinOp::Gt, over, runtime::int(0)), total.clone() - steps * beside, total)
}

/// RMS normalization of each head of `x`.
fn normalize(
    cx: &mut LowerCx,
    x: Operand,
    y: Operand,
    weight: Buf,
    (rows, size): (Vec<Dim>, Dim),
    epsilon: f32,
) {
    let ty = cx.elem(x.buf).compute();
    cx.kernel(|k| {
        k.nest(LoopKind::Par, &rows, |k, at| {
            let square = k.acc(Expr::num(ty, 0.0));
            k.nest(LoopKind::Seq, &[size], |k, r| {
                let v = x.load(k, at[0], at[1], at[2], r[0]);
                let v = k.let_(v);
                k.update(BinOp::Add, square, v.clone() * v);
            });
            let mean = Expr::acc(square) / Expr::cast(ElemType::I64, ty, Expr::index(size));
            let factor =
                k.let_(Expr::num(ty, 1.0) / Expr::un(UnOp::Sqrt, mean + Expr::num(ty, f64::from(epsilon))));
            k.nest(LoopKind::Seq, &[size], |k, r| {
                let v = x.load(k, at[0], at[1], at[2], r[0]) * factor.clone() * k.load(weight, r);
                k.store(y.buf, &y.at(at[0], at[1], at[2], r[0]), v);
            });
        });
    });
}

/// A quantized cache of keys or values.
struct Cache {
    scale: Buf,
    /// A scale for each head and element, `[head, element]`.
    each: bool,
    /// Two elements in a byte, the first one in the low bits, with 8 added.
    halves: bool,
    elem: ElemType,
}

impl Cache {
    fn new(cx: &mut LowerCx, g: &Group, i: usize, size: Dim) -> Option<Cache> {
        let (scale, past) = (cx.input_opt(12 + i)?, cx.input_opt(3 + i)?);
        let each = Dim::product(cx.dims(scale)).as_const() != Some(1);
        let dims = if each { vec![Dim::constant(g.kv_heads), size] } else { vec![Dim::constant(1)] };
        let elem = cx.elem(past);
        Some(Cache { scale: cx.m.view(scale, dims), each, halves: g.bits == 4, elem })
    }
    /// Stored elements of a head.
    fn stored(&self, size: Dim) -> Dim {
        if self.halves { size.ceil_div(2) } else { size }
    }
    fn scale(&self, k: &KernelBuilder, head: Dim, element: Dim) -> Expr {
        if self.each { k.load(self.scale, &[head, element]) } else { k.load(self.scale, &[Dim::constant(0)]) }
    }
    /// What stands for an element of `new`, by batch, head, token and element of the cache.
    fn code(&self, k: &mut KernelBuilder, new: Operand, at: [Dim; 4], size: Dim) -> Expr {
        let ty = k.m.bufs[new.buf].ty.compute();
        let quotient = |k: &KernelBuilder, e: Dim| {
            Expr::cast(ty, ElemType::F32, new.load(k, at[0], at[1], at[2], e)) / self.scale(k, at[1], e)
        };
        if !self.halves {
            let q = quotient(k, at[3]);
            return if self.elem.is_int() {
                quantized(ElemType::F32, self.elem, q, None)
            } else {
                saturated(self.elem, q)
            };
        }
        let nibble = |k: &KernelBuilder, e: Dim| {
            let v = Expr::un(UnOp::Round, quotient(k, e)).max(Expr::f32(-8.0)).min(Expr::f32(7.0));
            Expr::cast(ElemType::F32, ElemType::I32, v + Expr::f32(8.0))
        };
        let low = nibble(k, at[3] * 2);
        let second = at[3] * 2 + 1;
        let high = if k.m.syms.in_range(second, size) {
            nibble(k, second)
        } else {
            Expr::select(
                Expr::cmp_index(BinOp::Lt, second, size),
                nibble(k, second),
                Expr::int(ElemType::I32, 8),
            )
        };
        Expr::cast(ElemType::I32, ElemType::U8, low + high * Expr::int(ElemType::I32, 16))
    }
    /// The value of element `at` of a cache.
    fn value(&self, k: &mut KernelBuilder, cache: Buf, at: &[Dim]) -> Expr {
        let scale = self.scale(k, at[1], at[3]);
        if !self.halves {
            let v = k.load(cache, at);
            let ty = k.m.type_of(&v);
            return Expr::cast(ty, ElemType::F32, v) * scale;
        }
        let byte = Expr::cast(
            ElemType::U8,
            ElemType::I32,
            k.load(cache, &[at[0], at[1], at[2], at[3].floor_div(2)]),
        );
        let shift = Expr::cast(ElemType::I64, ElemType::I32, Expr::index(at[3].modulo(2) * 4));
        let v = Expr::bin(BinOp::Shr, byte, shift).and(Expr::int(ElemType::I32, 15))
            - Expr::int(ElemType::I32, 8);
        Expr::cast(ElemType::I32, ElemType::F32, v) * scale
    }
}
