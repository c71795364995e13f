//! GroupQueryAttention: query heads that share keys, a growing cache, rotations, windows, sinks.

mod cache;

use super::masks::Extents;
use super::{Group, MsAttention};
use crate::diag::{Result, codes};
use crate::nest::{BinOp, Buf, Expr, KernelBuilder, LoopKind, UnOp};
use crate::ops::attention::core::{self, Form, Operand, Sizes};
use crate::ops::rope::{Rotation, rotate};
use crate::ops::support::runtime;
use crate::ops::{InferCx, LowerCx};
use crate::sym::{Answer, Dim};
use crate::tensor::ElemType;

/// Inputs by number.
mod input {
    pub const QUERY: usize = 0;
    pub const KEY: usize = 1;
    pub const VALUE: usize = 2;
    /// Past keys, past values.
    pub const PAST: [usize; 2] = [3, 4];
    pub const LENGTHS: usize = 5;
    pub const TOTAL: usize = 6;
    pub const COS: usize = 7;
    pub const SIN: usize = 8;
    pub const POSITIONS: usize = 9;
    pub const BIAS: usize = 10;
    pub const SINKS: usize = 11;
    /// Scales of a quantized cache.
    pub const SCALES: [usize; 2] = [12, 13];
    /// Weights of the norms of query and key.
    pub const NORMS: [usize; 2] = [14, 15];
}

/// Results by number; result 0 is the attention.
mod output {
    /// Keys and values including the new ones.
    pub const PRESENT: [usize; 2] = [1, 2];
    pub const SCORES: usize = 3;
}

/// Optional inputs with a fixed rank: number, name, rank.
const RANKS: [(usize, &str, usize); 6] = [
    (input::COS, "cos_cache", 2),
    (input::SIN, "sin_cache", 2),
    (input::POSITIONS, "position_ids", 2),
    (input::SINKS, "head_sink", 1),
    (input::NORMS[0], "q_norm_weight", 1),
    (input::NORMS[1], "k_norm_weight", 1),
];

/// Properties of the query: type, samples, new tokens per sample, elements per head.
struct Query {
    elem: ElemType,
    batch: Dim,
    tokens: Dim,
    size: Dim,
}

impl Query {
    /// Sizes of its scores for a number of keys.
    fn scores(&self, keys: Dim) -> Extents {
        Extents { batch: self.batch, queries: self.tokens, keys }
    }
}

impl MsAttention {
    pub(super) fn infer_group(&self, cx: &mut InferCx, g: &Group) -> Result<()> {
        let q = self.query(cx, g)?;
        let n = cx.tensor(input::LENGTHS).count();
        cx.require_eq(n, q.batch, "seqlens_k does not have one value for each sample");
        rotation(cx, g)?;
        let (caches, before) = caches(cx, g, &q)?;
        self.weights(cx, &q)?;
        let total = total(cx, before + q.tokens);
        // The cache is as long as the longest sequence, or as the past if that is longer.
        let keys = match cx.syms.le(before, total) {
            _ if g.evicts => before,
            Answer::Yes => total,
            _ => total.max(before),
        };
        self.bias(cx, g, &q, (before, total))?;
        if cx.outputs.len() > output::SCORES {
            self.scores(cx, g, &q, total)?;
        }
        for (i, (elem, size)) in caches.into_iter().enumerate().rev() {
            cx.set(output::PRESENT[i], elem, vec![q.batch, Dim::constant(g.kv_heads), keys, size]);
        }
        cx.set(0, q.elem, vec![q.batch, q.tokens, q.size * self.heads]);
        Ok(())
    }
    fn group_size(&self, q: &[Dim], separate: bool, kv_heads: i64) -> Dim {
        q[2].floor_div(self.heads + if separate { 0 } else { 2 * kv_heads })
    }
    /// Checks query, key and value against each other.
    fn query(&self, cx: &mut InferCx, g: &Group) -> Result<Query> {
        let q = cx.tensor(input::QUERY).clone();
        let (k, v) = (cx.tensor_opt(input::KEY).cloned(), cx.tensor_opt(input::VALUE).cloned());
        cx.require(
            q.rank() == 3 && k.is_some() == v.is_some(),
            codes::OP_SHAPE,
            "the query must have rank 3, and key and value be given together",
        )?;
        let size = self.group_size(&q.dims, k.is_some(), g.kv_heads);
        let hidden = size * (self.heads + if k.is_some() { 0 } else { 2 * g.kv_heads });
        cx.require_eq(hidden, q.dims[2], "the heads do not divide the query");
        for t in [&k, &v].into_iter().flatten() {
            cx.require(t.rank() == 3, codes::OP_SHAPE, "key and value must have rank 3")?;
            for (a, b) in t.dims.iter().zip([q.dims[0], q.dims[1], size * g.kv_heads]) {
                cx.require_eq(*a, b, "key and value do not fit the query");
            }
        }
        Ok(Query { elem: q.elem, batch: q.dims[0], tokens: q.dims[1], size })
    }
    /// Checks the weights of norms and sinks.
    fn weights(&self, cx: &mut InferCx, q: &Query) -> Result<()> {
        let [query, key] = input::NORMS;
        cx.require(
            cx.has(query) == cx.has(key),
            codes::OP_ARITY,
            "q_norm_weight and k_norm_weight are given together or not at all",
        )?;
        let norm = "a norm's weight does not have one value for each element of a head";
        let sink = "head_sink does not have one value for each head";
        for (i, count, message) in
            [(query, q.size, norm), (key, q.size, norm), (input::SINKS, Dim::constant(self.heads), sink)]
        {
            if let Some(t) = cx.tensor_opt(i) {
                let n = t.count();
                cx.require_eq(n, count, message);
            }
        }
        Ok(())
    }
    /// Checks the bias of scores. If the cache evicts, the columns of the bias are absolute positions.
    fn bias(&self, cx: &mut InferCx, g: &Group, q: &Query, (before, total): (Dim, Dim)) -> Result<()> {
        if !g.evicts {
            return self.check_bias(cx, input::BIAS, q.scores(total));
        }
        let given = input::PAST.iter().all(|i| cx.has(*i));
        cx.require(
            given,
            codes::OP_ARITY,
            "sliding_window_cache needs past_key and past_value: their size is the capacity",
        )?;
        cx.syms.require_at_most(Dim::constant(g.window), before);
        match cx.tensor_opt(input::BIAS).filter(|b| b.rank() == 4).map(|b| b.dims[3]) {
            Some(columns) => self.check_bias(cx, input::BIAS, q.scores(columns)),
            None => Ok(()),
        }
    }
    /// The type of the scores as a result.
    fn scores(&self, cx: &mut InferCx, g: &Group, q: &Query, total: Dim) -> Result<()> {
        cx.require(
            !g.evicts,
            codes::OP_FEATURE,
            "the output output_qk is not supported with sliding_window_cache: keys have no fixed columns",
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
        cx.set(output::SCORES, q.elem, vec![q.batch, Dim::constant(self.heads), q.tokens, total]);
        Ok(())
    }
}

/// Checks the rotation inputs and the ranks of optional inputs.
fn rotation(cx: &mut InferCx, g: &Group) -> Result<()> {
    if g.rotary && !(cx.has(input::COS) && cx.has(input::SIN)) {
        return cx.error(codes::OP_ARITY, "do_rotary needs cos_cache and sin_cache").fail();
    }
    for (i, name, rank) in RANKS {
        if let Some(t) = cx.tensor_opt(i).filter(|t| t.rank() != rank) {
            let found = t.rank().to_string();
            return cx
                .error(codes::OP_SHAPE, format!("{name} must have rank {rank}"))
                .found_expected(found, rank.to_string())
                .fail();
        }
    }
    if let (Some(cos), Some(sin)) = (cx.tensor_opt(input::COS).cloned(), cx.tensor_opt(input::SIN).cloned()) {
        for (a, b) in sin.dims.iter().zip(&cos.dims) {
            cx.require_eq(*a, *b, "cos_cache and sin_cache differ in shape");
        }
    }
    Ok(())
}

/// Keys and values of the past: element type and elements per head of each, and the number of tokens.
fn caches(cx: &mut InferCx, g: &Group, q: &Query) -> Result<([(ElemType, Dim); 2], Dim)> {
    let (mut first, mut tokens) = (None, Dim::constant(0));
    let mut caches = [(q.elem, q.size); 2];
    for i in 0..2 {
        if g.quantized[i] {
            caches[i] = cache::infer(cx, g, i, q.size)?;
        }
        let Some(p) = cx.tensor_opt(input::PAST[i]).cloned() else { continue };
        cx.require(
            p.rank() == 4 && p.elem == caches[i].0,
            codes::OP_FEATURE,
            "the past must have rank 4 and the type of the query, unless it is quantized",
        )?;
        tokens = p.dims[2];
        let both = *first.get_or_insert(tokens);
        for (a, b) in p.dims.iter().zip([q.batch, Dim::constant(g.kv_heads), both, caches[i].1]) {
            cx.require_eq(*a, b, "the past does not fit");
        }
    }
    Ok((caches, tokens))
}

/// The number of tokens of the longest sequence: a known value, a declared size of the results, or else
/// `grown`, because callers usually append the new tokens to the past.
fn total(cx: &InferCx, grown: Dim) -> Dim {
    if let Some([t]) = cx.dims_value(input::TOTAL).as_deref() {
        return *t;
    }
    let declared = output::PRESENT.into_iter().find_map(|k| cx.declared.get(k)?.clone());
    declared.filter(|d| d.len() == 4).map_or(grown, |d| d[2])
}

/// State of lowering a GroupQueryAttention.
struct Lower<'a> {
    op: &'a MsAttention,
    g: &'a Group,
    batch: Dim,
    tokens: Dim,
    /// Elements per head.
    size: Dim,
    heads: Dim,
    kv_heads: Dim,
    elem: ElemType,
    /// The compute type.
    ty: ElemType,
    /// Rows of the past, and rows that queries read.
    past: Dim,
    keys: Dim,
    /// Number of keys of each sample, minus one.
    lengths: Buf,
    /// Number of keys of each sample before the new ones, and how many of these are in the cache, in 32 bits.
    before: Buf,
    cached: Buf,
}

impl MsAttention {
    /// Sample b has `seqlens_k[b] + 1` keys. Those before the new ones come from the past; there are none in
    /// a first call, in which all tokens are new.
    ///
    /// A cache that evicts has the last of these keys in its first rows. The new keys are appended in
    /// additional rows. Queries read all of these rows, and the last of them become the new cache.
    pub(super) fn lower_group(&self, cx: &mut LowerCx, g: &Group) -> Result<()> {
        let (l, [mut query, mut key, value]) = Lower::new(self, cx, g);
        l.count_keys(cx);
        for (o, i, name, n) in
            [(&mut query, 0, "normed_query", l.heads), (&mut key, 1, "normed_key", l.kv_heads)]
        {
            if let Some(weight) = cx.input_opt(input::NORMS[i]) {
                *o = l.normalized(cx, *o, weight, (name, n));
            }
        }
        if let (true, Some(cos), Some(sin)) = (g.rotary, cx.input_opt(input::COS), cx.input_opt(input::SIN)) {
            for (o, name, n) in [(&mut query, "turned_query", l.heads), (&mut key, "turned_key", l.kv_heads)]
            {
                *o = l.rotated(cx, *o, [cos, sin], (name, n));
            }
        }
        let keys = l.present(cx, 0, key);
        let values = l.present(cx, 1, value);
        let (y, scores_out) = (cx.output_opt(0), cx.output_opt(output::SCORES));
        if y.is_none() && scores_out.is_none() {
            return Ok(());
        }
        let s = Sizes {
            batch: l.batch,
            kv_heads: l.kv_heads,
            shared: Dim::constant(self.heads / g.kv_heads),
            queries: l.tokens,
            keys: l.keys,
            size: l.size,
            value_size: l.size,
        };
        let scale = self.scale(l.size, l.ty);
        let x = core::scores(cx, &s, query, keys, scale, l.ty);
        let masked = cx.temp("masked", l.ty, s.scores());
        let bias = cx.input_opt(input::BIAS);
        cx.map(masked, |k, at| l.masked(k, at, x, bias));
        let sinks = cx.input_opt(input::SINKS);
        let sink = |k: &mut KernelBuilder, at: &[Dim]| match sinks {
            Some(b) => k.load(b, &[at[1]]),
            None => Expr::num(l.ty, 0.0),
        };
        let p = core::softmax(cx, masked, true, if sinks.is_some() || g.smooth { Some(&sink) } else { None });
        if let Some(out) = scores_out {
            cx.map(out, |k, at| match g.scores {
                1 => l.visible(k, at, masked),
                _ => k.load(p, at),
            });
        }
        if let Some(y) = y {
            let y = Operand::of_rank(cx, y, l.size);
            core::values(cx, &s, p, values, y);
        }
        Ok(())
    }
}

impl<'a> Lower<'a> {
    /// The state, and query, key and value as operands.
    fn new(op: &'a MsAttention, cx: &mut LowerCx, g: &'a Group) -> (Lower<'a>, [Operand; 3]) {
        let (q, k, v) = (cx.input(input::QUERY), cx.input_opt(input::KEY), cx.input_opt(input::VALUE));
        let dq = cx.dims(q);
        let (batch, tokens) = (dq[0], dq[1]);
        let size = op.group_size(&dq, k.is_some(), g.kv_heads);
        let (heads, kv_heads) = (Dim::constant(op.heads), Dim::constant(g.kv_heads));
        let part = |buf: Buf, offset: Dim| Operand { buf, form: Form::Hidden { size, offset } };
        let operands = match (k, v) {
            (Some(k), Some(v)) => [part(q, 0.into()), part(k, 0.into()), part(v, 0.into())],
            _ => [part(q, 0.into()), part(q, heads * size), part(q, (heads + kv_heads) * size)],
        };
        // One value per sample, in any shape: exporters write [batch] and [batch, 1].
        let lengths = cx.input(input::LENGTHS);
        let lengths = cx.m.view(lengths, vec![batch]);
        let mut count = |name| cx.temp(name, ElemType::I32, vec![batch]);
        let before = count("before");
        let cached = if g.evicts { count("cached") } else { before };
        let rows = |b: Option<Buf>| b.map(|b| cx.dims(b)[2]);
        let past = rows(input::PAST.into_iter().find_map(|i| cx.input_opt(i))).unwrap_or(Dim::constant(0));
        let present = rows(output::PRESENT.into_iter().find_map(|k| cx.output_opt(k)));
        let keys = match (present, cx.dims_value(input::TOTAL).as_deref()) {
            _ if g.evicts => past + tokens,
            (Some(c), _) => c,
            (None, Some([t])) => (*t).max(past),
            _ => past + tokens,
        };
        let (elem, ty) = (cx.elem(q), cx.elem(q).compute());
        let l = Lower {
            op,
            g,
            batch,
            tokens,
            size,
            heads,
            kv_heads,
            elem,
            ty,
            past,
            keys,
            lengths,
            before,
            cached,
        };
        (l, operands)
    }
    /// Counts the keys of each sample, and checks the total.
    fn count_keys(&self, cx: &mut LowerCx) {
        let Lower { g, batch, tokens, past, keys, .. } = *self;
        let (total, known_total) = (cx.input(input::TOTAL), cx.dims_value(input::TOTAL).is_some());
        cx.kernel(|k| {
            let at = vec![Dim::constant(0); k.m.bufs[total].dims.len()];
            let all = Expr::cast(ElemType::I32, ElemType::I64, k.load(total, &at));
            let all = k.let_(all);
            let holds_new = Expr::bin(BinOp::Ge, all.clone(), Expr::index(tokens));
            if g.evicts {
                runtime::check(k, holds_new);
            } else if !known_total {
                runtime::check(k, Expr::bin(BinOp::Le, all.clone(), Expr::index(keys)).and(holds_new));
                runtime::check(k, runtime::eq(all.clone().max(Expr::index(past)), Expr::index(keys)));
            }
            k.nest(LoopKind::Par, &[batch], |k, b| {
                let n = Expr::cast(ElemType::I32, ElemType::I64, k.load(self.lengths, b)) + runtime::int(1)
                    - Expr::index(tokens);
                let first = runtime::eq(all.clone(), Expr::index(tokens));
                let n = k.let_(Expr::select(first, runtime::int(0), n));
                k.store(self.before, b, Expr::cast(ElemType::I64, ElemType::I32, n.clone()));
                if g.evicts {
                    let n = resident(n, past, g.window);
                    k.store(self.cached, b, Expr::cast(ElemType::I64, ElemType::I32, n));
                }
            });
        });
    }
    /// Scratch for `n` heads of the new tokens.
    fn heads_of(&self, cx: &mut LowerCx, (name, n): (&str, Dim)) -> Operand {
        let dims = vec![self.batch, n, self.tokens, self.size];
        Operand { buf: cx.temp(name, self.elem, dims), form: Form::Heads }
    }
    /// RMS normalization of each head of `x`.
    fn normalized(&self, cx: &mut LowerCx, x: Operand, weight: Buf, out: (&str, Dim)) -> Operand {
        let (y, ty, size) = (self.heads_of(cx, out), cx.elem(x.buf).compute(), self.size);
        cx.kernel(|k| {
            k.nest(LoopKind::Par, &[self.batch, out.1, self.tokens], |k, at| {
                let square = k.acc(Expr::num(ty, 0.0));
                k.nest(LoopKind::Seq, &[size], |k, r| {
                    let v = x.load(k, at[0], at[1], at[2], r[0]);
                    let v = k.let_(v);
                    k.update(BinOp::Add, square, v.clone() * v);
                });
                let mean = Expr::acc(square) / Expr::cast(ElemType::I64, ty, Expr::index(size));
                let mean = mean + Expr::num(ty, f64::from(self.g.epsilon));
                let factor = k.let_(Expr::num(ty, 1.0) / Expr::un(UnOp::Sqrt, mean));
                k.nest(LoopKind::Seq, &[size], |k, r| {
                    let v = x.load(k, at[0], at[1], at[2], r[0]) * factor.clone() * k.load(weight, r);
                    k.store(y.buf, &y.at(at[0], at[1], at[2], r[0]), v);
                });
            });
        });
        y
    }
    /// Rotates heads by the angles of their positions.
    fn rotated(&self, cx: &mut LowerCx, x: Operand, tables: [Buf; 2], out: (&str, Dim)) -> Operand {
        let y = self.heads_of(cx, out);
        let Lower { batch, tokens, size, before, .. } = *self;
        let half = cx.dims(tables[0])[1];
        let ids = cx.input_opt(input::POSITIONS);
        let of = Rotation { batch, heads: out.1, tokens, size, half, interleaved: self.g.interleaved };
        rotate(cx, &of, x, y, &|k, b, s, i| {
            let p = match ids {
                Some(p) => k.load(p, &[b, s]),
                None => number(k, before, b) + Expr::index(s),
            };
            tables.map(|t| {
                let rows = k.m.bufs[t].dims[0];
                k.with_index(p.clone(), rows, |k, p| k.load(t, &[p, i]))
            })
        });
        y
    }
    /// A score with its bias, or the mask value if the key is hidden.
    fn masked(&self, k: &mut KernelBuilder, at: &[Dim], scores: Buf, bias: Option<Buf>) -> Expr {
        let (op, window) = (self.op, self.g.window);
        let n = number(k, self.cached, at[0]);
        k.shared(n, |k, n| {
            let mut v = k.load(scores, at);
            if op.softcap > 0.0 {
                v = core::softcap(self.ty, v, f64::from(op.softcap));
            }
            if let Some(b) = bias {
                v = v + self.bias(k, at, b, &n);
            }
            let j = Expr::index(at[3]);
            let own = n.clone() + Expr::index(at[2]);
            let last = if op.causal { own.clone() } else { n + Expr::index(self.tokens - 1) };
            let mut allowed = Expr::bin(BinOp::Le, j.clone(), last);
            if window > 0 {
                allowed = allowed.and(Expr::bin(BinOp::Lt, own - runtime::int(window), j));
            }
            Expr::select(allowed, v, core::masked(self.ty))
        })
    }
    /// The bias of a score, 0 beyond its columns; the cache holds `n` keys of the sample.
    fn bias(&self, k: &mut KernelBuilder, at: &[Dim], b: Buf, n: &Expr) -> Expr {
        let columns = k.m.bufs[b].dims[3];
        let none = Expr::num(self.ty, 0.0);
        if !self.g.evicts {
            let inside = Expr::cmp_index(BinOp::Lt, at[3], columns);
            return Expr::select(inside, k.load_broadcast(b, at), none);
        }
        let column = number(k, self.before, at[0]) - n.clone() + Expr::index(at[3]);
        let near = column.clone().min(Expr::index(columns - 1)).max(runtime::int(0));
        let inside = Expr::bin(BinOp::Lt, column, Expr::index(columns));
        let value = k.with_index(near, columns, |k, c| k.load_broadcast(b, &[at[0], at[1], at[2], c]));
        Expr::select(inside, value, none)
    }
    /// A score as a result, in which masked ones are 0.
    fn visible(&self, k: &mut KernelBuilder, at: &[Dim], masked: Buf) -> Expr {
        let v = k.load(masked, at);
        k.shared(v, |_, v| {
            let hidden = Expr::bin(BinOp::Eq, v.clone(), core::masked(self.ty));
            Expr::select(hidden, Expr::num(self.ty, 0.0), v)
        })
    }
}

/// Element `b` of a buffer of i32.
fn number(k: &KernelBuilder, of: Buf, b: Dim) -> Expr {
    Expr::cast(ElemType::I32, ElemType::I64, k.load(of, &[b]))
}

/// The number of `total` positions that a cache of `capacity` rows holds. It evicts in steps of the number of
/// rows that it has beyond the window.
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
