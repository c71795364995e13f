//! Attention of ai.onnx: scaled dot products, masks, softmax, weighted values.
//!
//! Spec: <https://onnx.ai/onnx/operators/onnx__Attention.html>.
//!
//! | version | change                                                                                     |
//! |---------|--------------------------------------------------------------------------------------------|
//! | 23      |                                                                                            |
//! | 24      | `nonpad_kv_seqlen`; a mask shorter than the keys is continued with -inf                    |
//! | 25      | `left_window_size`, `right_window_size`                                                    |
//!
//! The soft cap precedes mask and bias in all versions, and a row whose keys are all masked is 0 (errata of
//! 23). Float16 and bfloat16 are computed in float32, even if `softmax_precision` is lower.

pub mod core;

use self::core::{Operand, Sizes};
use super::support::runtime;
use super::{Attrs, InferCx, LowerCx, Operator};
use crate::diag::{Result, codes};
use crate::nest::{BinOp, Buf, Expr, KernelBuilder, UnOp};
use crate::sym::Dim;
use crate::tensor::{ElemType, TensorType};

/// The operator.
#[derive(Clone, Debug, PartialEq)]
pub struct Attention {
    q_heads: Option<i64>,
    kv_heads: Option<i64>,
    scale: Option<f32>,
    softcap: f32,
    causal: bool,
    precision: Option<ElemType>,
    /// Which intermediate result the fourth output is.
    mode: i64,
    left: i64,
    right: i64,
}

impl Operator for Attention {
    const OPS: &'static [&'static str] = &["Attention"];
    fn parse(a: &mut Attrs) -> Result<Self> {
        let precision = a.elem_type_opt("softmax_precision");
        a.require(
            !precision.is_some_and(|t| {
                !matches!(t, ElemType::F32 | ElemType::F16 | ElemType::BF16 | ElemType::F64)
            }),
            "attribute \"softmax_precision\" is not a floating-point type",
        )?;
        let op = Attention {
            q_heads: a.int_opt("q_num_heads"),
            kv_heads: a.int_opt("kv_num_heads"),
            scale: a.float_opt("scale"),
            softcap: a.float("softcap", 0.0),
            causal: a.flag("is_causal", false),
            precision,
            mode: a.int("qk_matmul_output_mode", 0),
            left: a.int("left_window_size", -1),
            right: a.int("right_window_size", -1),
        };
        if !(0..=3).contains(&op.mode) {
            return a
                .error("attribute \"qk_matmul_output_mode\" is out of range")
                .found_expected(op.mode.to_string(), "0 to 3")
                .fail();
        }
        if op.left < -1 || op.right < -1 {
            return a
                .error("a window size is below -1")
                .found_expected(format!("{}, {}", op.left, op.right), "-1 (unbounded), or 0 and more")
                .fail();
        }
        a.require(
            ![op.q_heads, op.kv_heads].into_iter().flatten().any(|h| h < 1),
            "the number of heads must be positive",
        )?;
        Ok(op)
    }

    fn infer(&self, cx: &mut InferCx) -> Result<()> {
        let (q, k, v) = (cx.tensor(0).clone(), cx.tensor(1).clone(), cx.tensor(2).clone());
        cx.require(
            matches!(q.rank(), 3 | 4) && k.rank() == q.rank() && v.rank() == q.rank(),
            codes::OP_SHAPE,
            "query, key and value must have rank 3, or all of them rank 4",
        )?;
        if q.rank() == 3 && (self.q_heads.is_none() || self.kv_heads.is_none()) {
            return cx
                .error(
                    codes::OP_ATTRIBUTE,
                    "inputs of rank 3 need the attributes q_num_heads and kv_num_heads",
                )
                .fail();
        }
        let past = (cx.tensor_opt(4).cloned(), cx.tensor_opt(5).cloned());
        cx.require(
            past.0.is_some() == past.1.is_some(),
            codes::OP_ARITY,
            "past_key and past_value are given together or not at all",
        )?;
        if cx.has(6) && past.0.is_some() {
            return cx.error(codes::OP_ARITY, "nonpad_kv_seqlen can not be combined with past_key").fail();
        }
        if q.rank() == 3 {
            for (t, h) in [(&q, self.q_heads), (&k, self.kv_heads), (&v, self.kv_heads)] {
                cx.require_eq(
                    t.dims[2].modulo(h.unwrap_or(1)),
                    Dim::constant(0),
                    "the heads do not divide the hidden size",
                );
            }
        }
        let s = self.sizes(&q.dims, &k.dims, &v.dims, past.0.as_ref().map(|p| p.dims.as_slice()));
        let [qh, kh, vh] = [(&q, self.q_heads), (&k, self.kv_heads), (&v, self.kv_heads)]
            .map(|(t, h)| if t.rank() == 4 { t.dims[1] } else { Dim::constant(h.unwrap_or(1)) });
        cx.require_eq(kh, vh, "key and value have different numbers of heads");
        cx.require_eq(
            qh.modulo(kh),
            Dim::constant(0),
            "the heads of the query are not a multiple of those of the key",
        );
        let positions = |t: &TensorType| t.dims[t.rank() - 2];
        cx.require_eq(positions(&k), positions(&v), "key and value have different lengths");
        for (t, what) in [(&k, "key"), (&v, "value")] {
            cx.require_eq(t.dims[0], q.dims[0], &format!("the batch of the {what} is not that of the query"));
        }
        let key_size = if k.rank() == 4 { k.dims[3] } else { k.dims[2].floor_div(kh) };
        cx.require_eq(key_size, s.size, "query and key have different head sizes");
        for (p, size) in [(&past.0, s.size), (&past.1, s.value_size)] {
            let Some(p) = p else { continue };
            cx.require(p.rank() == 4, codes::OP_SHAPE, "past_key and past_value must have rank 4")?;
            for (a, b) in p.dims.iter().zip([s.batch, s.kv_heads, s.keys - positions(&k), size]) {
                cx.require_eq(*a, b, "the past does not fit query, key and value");
            }
        }
        if let Some(n) = cx.tensor_opt(6) {
            let n = n.count();
            cx.require_eq(n, s.batch, "nonpad_kv_seqlen does not have one value for each sample");
        }
        if let Some(m) = cx.tensor_opt(3).cloned() {
            self.check_mask(cx, &m, &s)?;
        }
        let y = if q.rank() == 4 {
            vec![s.batch, qh, s.queries, s.value_size]
        } else {
            vec![s.batch, s.queries, qh * s.value_size]
        };
        cx.set(3, q.elem, vec![s.batch, qh, s.queries, s.keys]);
        cx.set(2, v.elem, vec![s.batch, s.kv_heads, s.keys, s.value_size]);
        cx.set(1, k.elem, vec![s.batch, s.kv_heads, s.keys, s.size]);
        cx.set(0, q.elem, y);
        Ok(())
    }

    fn lower(&self, cx: &mut LowerCx) -> Result<()> {
        let (q, k, v) = (cx.input(0), cx.input(1), cx.input(2));
        let (past_key, past_value) = (cx.input_opt(4), cx.input_opt(5));
        let past = past_key.map(|p| cx.dims(p));
        let s = self.sizes(&cx.dims(q), &cx.dims(k), &cx.dims(v), past.as_deref());
        let [q, k, v] =
            [(q, s.size), (k, s.size), (v, s.value_size)].map(|(b, size)| Operand::of_rank(cx, b, size));
        let dims = |size: Dim| [s.batch, s.kv_heads, s.keys, size];
        let (wanted_key, wanted_value) = (cx.output_opt(1), cx.output_opt(2));
        let key = core::present(cx, "present_key", wanted_key, past_key, k, dims(s.size));
        let value = core::present(cx, "present_value", wanted_value, past_value, v, dims(s.value_size));
        let out = cx.output_opt(3);
        if cx.output_opt(0).is_none() && out.is_none() {
            return Ok(());
        }
        let ty = cx.elem(q.buf).compute();
        let scale = match (self.scale, s.size.as_const()) {
            (Some(x), _) => Expr::num(ty, f64::from(x)),
            (None, Some(n)) => Expr::num(ty, 1.0 / (n as f64).sqrt()),
            (None, None) => Expr::num(ty, 1.0) / Expr::un(UnOp::Sqrt, Expr::count(ty, s.size)),
        };
        let mut x = core::scores(cx, &s, q, key, scale, ty);
        let expose = |cx: &mut LowerCx, mode: i64, b: Buf| {
            let from = cx.elem(b).compute();
            if let Some(out) = out.filter(|_| self.mode == mode) {
                cx.map(out, |k, at| Expr::cast(from, ty, k.load(b, at)));
            }
        };
        expose(cx, 0, x);
        if self.softcap > 0.0 {
            let capped = cx.temp("capped", ty, s.scores());
            cx.map(capped, |k, at| core::softcap(ty, k.load(x, at), f64::from(self.softcap)));
            x = capped;
        }
        expose(cx, 1, x);
        let mask = Mask {
            tensor: cx.input_opt(3),
            valid: cx.input_opt(6).map(|n| valid(cx, n)),
            past: past.map_or(Dim::constant(0), |p| p[2]),
            pads: cx.since >= 24,
        };
        let masks =
            mask.tensor.is_some() || mask.valid.is_some() || self.causal || self.left >= 0 || self.right >= 0;
        let precision = self.precision.map_or(ty, |p| p.compute());
        if masks || precision != ty {
            let biased = cx.temp("biased", precision, s.scores());
            cx.map(biased, |k, at| {
                let v = k.load(x, at);
                let v = self.biased(k, &mask, &s, at, v, ty);
                Expr::cast(ty, precision, v)
            });
            x = biased;
        }
        expose(cx, 2, x);
        let p = core::softmax(cx, x, masks, None);
        expose(cx, 3, p);
        if let Some(y) = cx.output_opt(0) {
            let y = Operand::of_rank(cx, y, s.value_size);
            core::values(cx, &s, p, value, y);
        }
        Ok(())
    }
}

/// The rules for the keys that a query may attend to.
struct Mask {
    tensor: Option<Buf>,
    /// Number of valid keys of each sample, in 32 bits; all if `None`.
    valid: Option<Buf>,
    past: Dim,
    /// A mask shorter than the keys is padded with -inf, even one of length 1.
    pads: bool,
}

/// The numbers of keys in an input of i64, limited to 32 bits.
fn valid(cx: &mut LowerCx, from: Buf) -> Buf {
    let dims = cx.dims(from);
    let to = cx.temp("valid", ElemType::I32, dims);
    let bound = |n: i32| runtime::int(n.into());
    cx.map(to, |k, at| {
        let n = k.load(from, at).max(bound(i32::MIN)).min(bound(i32::MAX));
        Expr::cast(ElemType::I64, ElemType::I32, n)
    });
    to
}

impl Attention {
    fn sizes(&self, q: &[Dim], k: &[Dim], v: &[Dim], past: Option<&[Dim]>) -> Sizes {
        let head = |d: &[Dim], heads: Option<i64>| match d[..] {
            [_, h, n, size] => (h, n, size),
            _ => (Dim::constant(heads.unwrap_or(1)), d[1], d[2].floor_div(heads.unwrap_or(1))),
        };
        let ((qh, queries, size), (kv_heads, keys, _), (_, _, value_size)) =
            (head(q, self.q_heads), head(k, self.kv_heads), head(v, self.kv_heads));
        Sizes {
            batch: q[0],
            kv_heads,
            shared: qh.floor_div(kv_heads),
            queries,
            keys: keys + past.map_or(Dim::constant(0), |p| p[2]),
            size,
            value_size,
        }
    }

    fn check_mask(&self, cx: &mut InferCx, m: &TensorType, s: &Sizes) -> Result<()> {
        let full = s.scores();
        cx.require(m.rank() <= 4 && m.rank() != 0, codes::OP_SHAPE, "attn_mask must have rank 1 to 4")?;
        let n = m.rank();
        let shape = cx.broadcast(&[&full[..3], &m.dims[..n - 1]])?;
        for (a, b) in shape.iter().zip(&full) {
            cx.require_eq(*a, *b, "attn_mask does not broadcast to the scores");
        }
        if m.dims[n - 1].as_const() != Some(1) {
            cx.syms.require_at_most(m.dims[n - 1], s.keys);
        }
        if cx.since < 24 && m.dims[n - 1].as_const() != Some(1) {
            cx.require_eq(m.dims[n - 1], s.keys, "attn_mask does not broadcast to the scores");
        }
        Ok(())
    }

    /// A score plus the mask's bias, or -inf if the key is masked.
    fn biased(
        &self,
        k: &mut KernelBuilder,
        mask: &Mask,
        s: &Sizes,
        at: &[Dim],
        score: Expr,
        ty: ElemType,
    ) -> Expr {
        let (b, i, j) = (at[0], at[2], at[3]);
        let mut allowed: Vec<Expr> = vec![];
        // Position of the query among all keys.
        let valid = mask.valid.map(|n| Expr::cast(ElemType::I32, ElemType::I64, k.load(n, &[b])));
        let position = match &valid {
            Some(n) => n.clone() + Expr::index(i - s.queries),
            None => Expr::index(i + mask.past),
        };
        let within = |a: Expr, b: Expr| Expr::bin(BinOp::Le, a, b);
        if self.causal {
            allowed.push(within(Expr::index(j), position.clone()));
        }
        if self.left >= 0 {
            allowed.push(within(position.clone() - Expr::index(j), runtime::int(self.left)));
        }
        if self.right >= 0 {
            allowed.push(within(Expr::index(j) - position, runtime::int(self.right)));
        }
        if let Some(n) = valid {
            allowed.push(Expr::bin(BinOp::Lt, Expr::index(j), n));
        }
        let mut value = score;
        if let Some(m) = mask.tensor {
            let dims = k.m.bufs[m].dims.clone();
            let last = dims[dims.len() - 1];
            let full = k.m.syms.eq(last, s.keys) == crate::sym::Answer::Yes;
            let short = mask.pads && !full;
            // All dimensions except the last are broadcast.
            let mut from = at[4 - dims.len()..].to_vec();
            for (f, d) in from.iter_mut().zip(&dims) {
                if d.as_const() == Some(1) {
                    *f = Dim::constant(0);
                } else if !(k.m.syms.in_range(*f, *d) || short && *f == j) {
                    *f = *f * crate::sym::broadcast::stride_factor(*d);
                }
            }
            let bias = k.load(m, &from);
            let own = k.m.type_of(&bias);
            let inside = || Expr::cmp_index(BinOp::Lt, j, last);
            if own == ElemType::Bool {
                allowed.push(if short { Expr::select(inside(), bias, Expr::bool(false)) } else { bias });
            } else {
                let bias = Expr::cast(own, ty, bias);
                let bias = if short { Expr::select(inside(), bias, core::masked(ty)) } else { bias };
                // -inf also masks NaN.
                let v = value;
                value = k.shared(bias, |_, bias| {
                    let never = Expr::bin(BinOp::Eq, bias.clone(), core::masked(ty));
                    Expr::select(never, core::masked(ty), v + bias)
                });
            }
        }
        match allowed.into_iter().reduce(Expr::and) {
            Some(a) => Expr::select(a, value, core::masked(ty)),
            None => value,
        }
    }
}
