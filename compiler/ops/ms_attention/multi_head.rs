//! MultiHeadAttention: operands in several forms, a past, a shared buffer.

use super::*;

impl MsAttention {
    pub(super) fn infer_multi_head(&self, cx: &mut InferCx) -> Result<()> {
        let [q, k, v] = [0, 1, 2].map(|i| cx.tensor_opt(i).cloned());
        let Some(q) = q else { return cx.error(codes::OP_ARITY, "the query is missing").fail() };
        let Some(g) =
            self.given(&q.dims, k.as_ref().map(|t| t.dims.as_slice()), v.as_ref().map(|t| t.dims.as_slice()))
        else {
            return cx
                .error(
                    codes::OP_SHAPE,
                    "the shapes of query, key and value are none of the combinations that the operator knows",
                )
                .fail();
        };
        let heads = Dim::constant(self.heads);
        let parts = |cx: &mut InferCx, d: &[Dim], n: i64| {
            cx.require_eq(d[2], heads, "the packed input has another number of heads");
            cx.require_eq(d[3], Dim::constant(n), "the packed input has another number of parts");
        };
        if q.rank() == 5 {
            parts(cx, &q.dims, 3);
        } else {
            cx.require_eq(q.dims[2], heads * g.size, "the heads do not divide the query");
        }
        match (&k, &v) {
            (Some(k), None) => {
                parts(cx, &k.dims, 2);
                cx.require_eq(k.dims[4], g.size, "query and key have different head sizes");
            }
            (Some(k), Some(v)) if k.rank() == 3 => {
                cx.require_eq(k.dims[2], q.dims[2], "query and key have different hidden sizes");
                cx.require_eq(v.dims[2], heads * g.value_size, "the heads do not divide the value");
                cx.require_eq(v.dims[1], g.keys, "key and value have different lengths");
            }
            (Some(k), Some(v)) => {
                for (a, b) in k.dims.iter().chain(&v.dims).zip([
                    g.batch,
                    heads,
                    g.keys,
                    g.size,
                    g.batch,
                    heads,
                    g.keys,
                    g.value_size,
                ]) {
                    cx.require_eq(*a, b, "key and value do not fit the query");
                }
            }
            _ => {}
        }
        for t in [&k, &v].into_iter().flatten() {
            cx.require_eq(t.dims[0], g.batch, "the batches differ");
        }
        if let Some(b) = cx.tensor_opt(3) {
            let n = b.count();
            cx.require_eq(n, heads * (g.size * 2 + g.value_size), "the bias does not fit the hidden sizes");
        }
        let mut keys = g.keys;
        let past = [cx.tensor_opt(6).cloned(), cx.tensor_opt(7).cloned()];
        cx.require(
            past[0].is_some() == past[1].is_some(),
            codes::OP_ARITY,
            "past_key and past_value are given together or not at all",
        )?;
        for (p, size) in past.iter().zip([g.size, g.value_size]) {
            let Some(p) = p else { continue };
            cx.require(p.rank() == 4, codes::OP_SHAPE, "the past must have rank 4")?;
            keys = if cx.has(8) { p.dims[2] } else { g.keys + p.dims[2] };
            for (a, b) in p.dims.iter().zip([g.batch, heads, p.dims[2], size]) {
                cx.require_eq(*a, b, "the past does not fit");
            }
        }
        let shared = cx.has(8);
        if shared {
            present::check_shared(cx, 6, 8)?;
        }
        let of = Extents { batch: g.batch, queries: g.queries, keys };
        self.check_mask(cx, 4, of, shared)?;
        let columns = present::columns(cx, 5, keys, shared)?;
        self.check_bias(cx, 5, Extents { keys: columns, ..of })?;
        if cx.outputs.len() > 3 {
            cx.require(
                !shared,
                codes::OP_FEATURE,
                "the output qk is not supported with past_sequence_length",
            )?;
            cx.set(3, q.elem, vec![g.batch, heads, g.queries, keys]);
        }
        cx.set(2, q.elem, vec![g.batch, heads, keys, g.value_size]);
        cx.set(1, q.elem, vec![g.batch, heads, keys, g.size]);
        cx.set(0, q.elem, vec![g.batch, g.queries, heads * g.value_size]);
        Ok(())
    }
    pub(super) fn lower_multi_head(&self, cx: &mut LowerCx) -> Result<()> {
        let (q, k, v, bias) = (cx.input(0), cx.input_opt(1), cx.input_opt(2), cx.input_opt(3));
        let dims = [Some(q), k, v].map(|b| b.map(|b| cx.dims(b)));
        let [Some(dq), dk, dv] = &dims else { return cx.bug("the query is missing") };
        let Some(g) = self.given(dq, dk.as_deref(), dv.as_deref()) else {
            return cx.bug("the shapes changed");
        };
        let heads = Dim::constant(self.heads);
        let hidden = |buf: Buf, size: Dim| {
            let form = Form::Hidden { size, offset: Dim::constant(0) };
            Operand { buf, form }
        };
        let part = |buf: Buf, i: i64| Operand { buf, form: Form::Parts(i) };
        let [mut query, mut key, mut value] = match (k, v) {
            (None, _) => [part(q, 0), part(q, 1), part(q, 2)],
            (Some(k), None) => [hidden(q, g.size), part(k, 0), part(k, 1)],
            (Some(k), Some(v)) => {
                [hidden(q, g.size), Operand::of_rank(cx, k, g.size), Operand::of_rank(cx, v, g.value_size)]
            }
        };
        if let Some(b) = bias {
            let hq = heads * g.size;
            query = biased(cx, "query", query, b, Dim::constant(0), [g.batch, heads, g.queries, g.size]);
            // Keys and values of rank 4 have already been projected.
            if !matches!(key.form, Form::Heads) {
                key = biased(cx, "key", key, b, hq, [g.batch, heads, g.keys, g.size]);
                value = biased(cx, "value", value, b, hq * 2, [g.batch, heads, g.keys, g.value_size]);
            }
        }
        let past = [cx.input_opt(6), cx.input_opt(7)];
        let room = past[0].map_or(Dim::constant(0), |p| cx.dims(p)[2]);
        let (keys, before) = match cx.input_opt(8) {
            Some(_) => {
                let before = Before::counted(cx, 8);
                for (i, (o, size)) in [(&mut key, g.size), (&mut value, g.value_size)].into_iter().enumerate()
                {
                    let Some(p) = past[i] else { return cx.bug("the past is missing") };
                    let new = New { new: *o, before: &before, sizes: [g.batch, heads, g.keys, size], room };
                    *o = new.shared(cx, cx.output_opt(1 + i), p);
                }
                (room, before)
            }
            None => {
                let keys = g.keys + room;
                let [k1, v1] = [1, 2].map(|i| cx.output_opt(i));
                let dims = |size: Dim| [g.batch, heads, keys, size];
                key = core::present(cx, "present_key", k1, past[0], key, dims(g.size));
                value = core::present(cx, "present_value", v1, past[1], value, dims(g.value_size));
                (keys, Before::Known(room))
            }
        };
        let s = Sizes {
            batch: g.batch,
            kv_heads: heads,
            shared: Dim::constant(1),
            queries: g.queries,
            keys,
            size: g.size,
            value_size: g.value_size,
        };
        let added = Added { mask: cx.input_opt(4), bias: cx.input_opt(5) };
        self.attend(cx, &s, [query, key, value], &before, added)
    }
}
