//! Attention operators of com.microsoft: Attention (with its projection), MultiHeadAttention,
//! GroupQueryAttention.
//!
//! Spec: <https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md>. One version each.
//! Padding masks add `mask_filter_value`, as in ONNX Runtime, and do not exclude; causal masks and windows
//! exclude.
//!
//! With `past_sequence_length`, past and present have the same size: the capacity of a buffer that a caller
//! may share between them (`--alias`). The input gives the number of positions in use.
//!
//! Not supported: beams, ragged batches, rotations without tables.

mod group;
mod masks;
mod multi_head;
mod present;

use super::attention::core::{self, Form, Operand, Sizes};
use super::matmul::product_sum;
use super::{Attrs, InferCx, LowerCx, Operator};
use crate::diag::{Result, codes};
use crate::nest::{BinOp, Buf, Expr, KernelBuilder, LoopKind, UnOp};
use crate::sym::Dim;
use crate::tensor::ElemType;
use masks::{Extents, is_dummy, kept};
use present::{Before, New};

/// Which of them.
#[derive(Clone, Debug, PartialEq)]
enum Kind {
    /// The hidden sizes of query, key and value, if they differ; and whether past and present have the size
    /// of a shared buffer.
    Attention(Option<Vec<i64>>, bool),
    MultiHead,
    Group(Group),
}

/// The additional attributes of GroupQueryAttention.
#[derive(Clone, Debug, PartialEq)]
struct Group {
    kv_heads: i64,
    rotary: bool,
    interleaved: bool,
    window: i64,
    /// The caches hold at least the window, and evict the oldest positions when they are full.
    evicts: bool,
    smooth: bool,
    /// The scores that are a result: 1 before the softmax, 2 after it, otherwise none.
    scores: i64,
    /// For keys and values: true if the cache is quantized.
    quantized: [bool; 2],
    /// Bits per element of such a cache.
    bits: i64,
    /// Epsilon of the norms of queries and keys.
    epsilon: f32,
}

/// The operators.
#[derive(Clone, Debug, PartialEq)]
pub struct MsAttention {
    kind: Kind,
    heads: i64,
    scale: Option<f32>,
    causal: bool,
    filter: f32,
    softcap: f32,
}

impl Operator for MsAttention {
    const OPS: &'static [&'static str] =
        &["com.microsoft:Attention", "com.microsoft:MultiHeadAttention", "com.microsoft:GroupQueryAttention"];
    fn parse(a: &mut Attrs) -> Result<Self> {
        let heads = a.int_required("num_heads");
        let scale = a.float_opt("scale").filter(|s| *s != 0.0);
        let mut op = MsAttention {
            kind: Kind::MultiHead,
            heads,
            scale,
            causal: false,
            filter: a.float("mask_filter_value", -10000.0),
            softcap: 0.0,
        };
        for (name, off) in [
            ("do_rotary", a.op() == "GroupQueryAttention"),
            ("past_present_share_buffer", a.op() == "Attention"),
        ] {
            if !off && a.knows(name) && a.flag(name, false) {
                return a
                    .error(format!("attribute \"{name}\" of {} is not supported", a.op()))
                    .row("expected", "0")
                    .fail();
            }
        }
        match a.op() {
            "GroupQueryAttention" => {
                let kinds = [("NONE", false), ("PER_TENSOR", true), ("PER_CHANNEL", true)];
                let quantized = ["k_quant_type", "v_quant_type"].map(|name| a.choice(name, "NONE", &kinds));
                let bits = a.int("kv_cache_bit_width", 0);
                let fits = !quantized.contains(&true) || matches!(bits, 0 | 4 | 8);
                a.expect("kv_cache_bit_width", bits, fits, "4 or 8");
                let scores = a.int("qk_output", 0);
                a.expect("qk_output", scores, (0..=2).contains(&scores), "0, 1 or 2");
                let epsilon = a.float("qk_norm_epsilon", 1e-6);
                let kv_heads = a.int_required("kv_num_heads");
                if kv_heads < 1 || heads % kv_heads != 0 {
                    return a
                        .error(format!("{heads} query heads do not share {kv_heads} key heads evenly"))
                        .fail();
                }
                op.causal = a.flag("causal", true);
                let (window, evicts) =
                    (a.int("local_window_size", -1), a.flag("sliding_window_cache", false));
                if evicts && (window < 1 || !op.causal) {
                    let e = a
                        .error("attribute \"sliding_window_cache\" needs a window of keys before each query");
                    return e
                        .found_expected(
                            format!("local_window_size {window}, causal {}", i64::from(op.causal)),
                            "a positive local_window_size, causal 1",
                        )
                        .fail();
                }
                op.softcap = a.float("softcap", 0.0);
                op.kind = Kind::Group(Group {
                    kv_heads,
                    rotary: a.flag("do_rotary", false),
                    interleaved: a.flag("rotary_interleaved", false),
                    window,
                    evicts,
                    smooth: a.int("smooth_softmax", -1) > 0,
                    scores,
                    quantized,
                    bits,
                    epsilon,
                });
            }
            "Attention" => {
                a.ignore("rotary_embedding_dim");
                op.causal = a.flag("unidirectional", false);
                let sizes = a.ints_opt("qkv_hidden_sizes").filter(|v| !v.is_empty());
                op.kind = Kind::Attention(sizes, a.flag("past_present_share_buffer", false));
            }
            _ => op.causal = a.flag("unidirectional", false),
        }
        a.require(heads >= 1, "attribute \"num_heads\" must be positive")?;
        Ok(op)
    }
    fn infer(&self, cx: &mut InferCx) -> Result<()> {
        let unsupported: &[(usize, &str)] = match self.kind {
            Kind::Attention(_, true) => &[],
            Kind::Attention(..) => &[(6, "past_sequence_length (without past_present_share_buffer)")],
            Kind::MultiHead => &[(9, "cache_indirection")],
            Kind::Group(_) => &[],
        };
        for (i, name) in unsupported {
            if cx.has(*i) {
                return cx.error(codes::OP_FEATURE, format!("the input {name} is not supported")).fail();
            }
        }
        match &self.kind {
            Kind::Attention(sizes, shared) => self.infer_attention(cx, sizes.as_deref(), *shared),
            Kind::MultiHead => self.infer_multi_head(cx),
            Kind::Group(g) => self.infer_group(cx, g),
        }
    }
    fn lower(&self, cx: &mut LowerCx) -> Result<()> {
        match &self.kind {
            Kind::Attention(sizes, shared) => self.lower_attention(cx, sizes.as_deref(), *shared),
            Kind::MultiHead => self.lower_multi_head(cx),
            Kind::Group(g) => self.lower_group(cx, g),
        }
    }
}

/// The form of queries, keys and values of MultiHeadAttention, given by the shapes of its inputs.
struct Given {
    batch: Dim,
    queries: Dim,
    /// Number of new keys.
    keys: Dim,
    size: Dim,
    value_size: Dim,
}

impl MsAttention {
    fn infer_attention(&self, cx: &mut InferCx, sizes: Option<&[i64]>, shared: bool) -> Result<()> {
        let (x, w) = (cx.tensor(0).clone(), cx.tensor(1).clone());
        cx.require(
            x.rank() == 3 && w.rank() == 2,
            codes::OP_SHAPE,
            "the input must have rank 3 and the weights rank 2",
        )?;
        cx.require_eq(w.dims[0], x.dims[2], "the weights do not fit the input");
        let [q, k, v] = self.hidden(w.dims[1], sizes);
        cx.require_eq(q + k + v, w.dims[1], "the hidden sizes do not add up to the weights' columns");
        cx.require_eq(q, k, "the hidden sizes of query and key differ");
        for d in [q, v] {
            cx.require_eq(d.modulo(self.heads), Dim::constant(0), "the heads do not divide the hidden size");
        }
        if let Some(b) = cx.tensor_opt(2) {
            let n = b.count();
            cx.require_eq(n, w.dims[1], "the bias does not fit the weights");
        }
        let mut keys = x.dims[1];
        let size = q.floor_div(self.heads);
        if let Some(p) = cx.tensor_opt(4).cloned() {
            cx.require(p.rank() == 5, codes::OP_SHAPE, "the past must have rank 5")?;
            keys = if shared { p.dims[3] } else { keys + p.dims[3] };
            for (a, b) in
                p.dims.iter().zip([Dim::constant(2), x.dims[0], Dim::constant(self.heads), p.dims[3], size])
            {
                cx.require_eq(*a, b, "the past does not fit");
            }
        }
        if shared {
            present::check_shared(cx, 4, 6)?;
        }
        let (batch, queries) = (x.dims[0], x.dims[1]);
        let of = Extents { batch, queries, keys };
        self.check_mask(cx, 3, of, shared)?;
        let columns = present::columns(cx, 5, keys, shared)?;
        self.check_bias(cx, 5, Extents { keys: columns, ..of })?;
        cx.set(1, x.elem, vec![Dim::constant(2), batch, Dim::constant(self.heads), keys, size]);
        if cx.has(4) {
            cx.require_eq(q, v, "with a past the hidden sizes must be equal");
        }
        cx.set(0, x.elem, vec![batch, queries, v]);
        Ok(())
    }
    fn hidden(&self, columns: Dim, sizes: Option<&[i64]>) -> [Dim; 3] {
        match sizes {
            Some([q, k, v]) => [Dim::constant(*q), Dim::constant(*k), Dim::constant(*v)],
            _ => [columns.floor_div(3); 3],
        }
    }
    fn lower_attention(&self, cx: &mut LowerCx, sizes: Option<&[i64]>, shared: bool) -> Result<()> {
        let (x, w, bias) = (cx.input(0), cx.input(1), cx.input_opt(2));
        let (dx, dw) = (cx.dims(x), cx.dims(w));
        let (elem, ty) = (cx.elem(x), cx.elem(x).compute());
        let [q, key, v] = self.hidden(dw[1], sizes);
        let heads = Dim::constant(self.heads);
        let (size, value_size) = (q.floor_div(self.heads), v.floor_div(self.heads));
        let all = cx.temp("projection", elem, vec![dx[0], dx[1], dw[1]]);
        cx.kernel(|k| {
            k.nest(LoopKind::Par, &[dx[0], dx[1], dw[1]], |k, o| {
                let acc = k.acc(Expr::num(ty, 0.0));
                k.nest(LoopKind::Seq, &[dx[2]], |k, r| {
                    let (a, b) = (k.load(x, &[o[0], o[1], r[0]]), k.load(w, &[r[0], o[2]]));
                    k.set(acc, product_sum(ty, a, b, Expr::acc(acc)));
                });
                let v = Expr::acc(acc);
                let v = match bias {
                    Some(b) => v + k.load(b, &o[2..]),
                    None => v,
                };
                k.store(all, o, v);
            });
        });
        let part = |offset: Dim, size: Dim| Operand { buf: all, form: Form::Hidden { size, offset } };
        let (queries, new_key, new_value) =
            (part(Dim::constant(0), size), part(q, size), part(q + key, value_size));
        let past = cx.input_opt(4);
        let room = past.map_or(Dim::constant(0), |p| cx.dims(p)[3]);
        let before = if shared { Before::counted(cx, 6) } else { Before::Known(room) };
        let keys = if shared { room } else { dx[1] + room };
        let s = Sizes {
            batch: dx[0],
            kv_heads: heads,
            shared: Dim::constant(1),
            queries: dx[1],
            keys,
            size,
            value_size,
        };
        let (mut key, mut value) = (new_key, new_value);
        if past.is_some() || cx.output_opt(1).is_some() {
            let shape = vec![Dim::constant(2), dx[0], heads, keys, size];
            let present = match cx.output_opt(1) {
                Some(b) => b,
                None => cx.temp("present", elem, shape),
            };
            if let Some(p) = past {
                let dims = cx.dims(p);
                present::copy(cx, p, present, &dims);
            }
            (key, value) = (
                Operand { buf: present, form: Form::Stacked(0) },
                Operand { buf: present, form: Form::Stacked(1) },
            );
            for (new, to) in [(new_key, key), (new_value, value)] {
                let sizes = [dx[0], heads, dx[1], size];
                New { new, before: &before, sizes, room: keys }.append(cx, to);
            }
        }
        let added = Added { mask: cx.input_opt(3), bias: cx.input_opt(5) };
        self.attend(cx, &s, [queries, key, value], &before, added)
    }

    fn given(&self, q: &[Dim], k: Option<&[Dim]>, v: Option<&[Dim]>) -> Option<Given> {
        let heads = self.heads;
        let head = |d: Dim| d.floor_div(heads);
        Some(match (q, k, v) {
            ([b, s, _, _, d], None, None) => {
                Given { batch: *b, queries: *s, keys: *s, size: *d, value_size: *d }
            }
            ([b, s, h], Some([_, t, _, _, _]), None) => {
                Given { batch: *b, queries: *s, keys: *t, size: head(*h), value_size: head(*h) }
            }
            ([b, s, h], Some([_, t, _]), Some([_, _, v])) => {
                Given { batch: *b, queries: *s, keys: *t, size: head(*h), value_size: head(*v) }
            }
            ([b, s, h], Some([_, _, t, _]), Some([_, _, _, v])) => {
                Given { batch: *b, queries: *s, keys: *t, size: head(*h), value_size: *v }
            }
            _ => return None,
        })
    }

    /// Computes scores, masks, softmax and values of Attention and MultiHeadAttention.
    fn attend(
        &self,
        cx: &mut LowerCx,
        s: &Sizes,
        [q, key, value]: [Operand; 3],
        before: &Before,
        Added { mask, bias }: Added,
    ) -> Result<()> {
        let Some(y) = cx.output_opt(0) else { return Ok(()) };
        let ty = cx.elem(y).compute();
        let scale = self.scale(s.size, ty);
        let mut x = core::scores(cx, s, q, key, scale, ty);
        let scores = (self.kind == Kind::MultiHead).then(|| cx.output_opt(3)).flatten();
        let mask = mask.filter(|m| !is_dummy(&cx.dims(*m)));
        let counted = matches!(before, Before::Counted(_));
        if mask.is_some() || bias.is_some() || self.causal || counted {
            let masked = cx.temp("masked", ty, s.scores());
            cx.map(masked, |k, at| {
                let mut v = k.load(x, at);
                // With a shared buffer, masks and biases have columns only for the positions in use.
                let inside = |k: &KernelBuilder, b: Buf| {
                    let columns =
                        k.m.bufs[b].dims.last().copied().filter(|d| counted && d.as_const() != Some(1));
                    columns.map(|n| Expr::cmp_index(BinOp::Lt, at[3], n))
                };
                if let Some(b) = bias {
                    let value = k.load_broadcast(b, at);
                    v = v + match inside(k, b) {
                        Some(c) => Expr::select(c, value, Expr::num(ty, 0.0)),
                        None => value,
                    };
                }
                if let Some(m) = mask {
                    let (kept, padding) =
                        (kept(k, m, s.batch, at, before), Expr::num(ty, f64::from(self.filter)));
                    let value = Expr::select(kept, Expr::num(ty, 0.0), padding);
                    v = v + match inside(k, m).filter(|_| k.m.bufs[m].dims.len() > 1) {
                        Some(c) => Expr::select(c, value, Expr::num(ty, 0.0)),
                        None => value,
                    };
                }
                let last = match before {
                    Before::Known(_) if !self.causal => return v,
                    _ if self.causal => Expr::index(at[2]),
                    _ => Expr::index(s.queries - 1),
                };
                let seen = match before {
                    Before::Known(n) => Expr::cmp_index(BinOp::Le, at[3], at[2] + *n),
                    Before::Counted(_) => Expr::bin(BinOp::Le, Expr::index(at[3]), before.value(k) + last),
                };
                Expr::select(seen, v, core::masked(ty))
            });
            x = masked;
        }
        if let Some(out) = scores {
            // Excluded scores are the lowest number in this result.
            cx.map(out, |k, at| k.load(x, at).max(Expr::num(ty, f64::from(f32::MIN))));
        }
        let p = core::softmax(cx, x, false, None);
        let y = Operand::of_rank(cx, y, s.value_size);
        core::values(cx, s, p, value, y);
        Ok(())
    }
    fn scale(&self, size: Dim, ty: ElemType) -> Expr {
        match (self.scale, size.as_const()) {
            (Some(x), _) => Expr::num(ty, f64::from(x)),
            (None, Some(n)) => Expr::num(ty, 1.0 / (n as f64).sqrt()),
            (None, None) => Expr::num(ty, 1.0) / Expr::un(UnOp::Sqrt, Expr::count(ty, size)),
        }
    }
}

/// Optional terms that are added to scores.
struct Added {
    mask: Option<Buf>,
    bias: Option<Buf>,
}

/// The operand plus a bias from `offset` on, as [batch, head, position, element].
fn biased(cx: &mut LowerCx, name: &str, x: Operand, bias: Buf, offset: Dim, dims: [Dim; 4]) -> Operand {
    let elem = cx.elem(x.buf);
    let out = cx.temp(name, elem, dims.to_vec());
    cx.map(out, |k, at| {
        x.load(k, at[0], at[1], at[2], at[3]) + k.load(bias, &[offset + at[1] * dims[3] + at[3]])
    });
    Operand { buf: out, form: Form::Heads }
}
