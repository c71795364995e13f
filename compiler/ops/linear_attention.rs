//! LinearAttention and CausalConvWithState: sequence operators that carry a state between calls.
//!
//! Spec: <https://onnx.ai/onnx/operators/onnx__LinearAttention.html>, `CausalConvWithState`. One version
//! each, 27. LinearAttention of com.microsoft is the same except for a window of states, which is not
//! supported.
//!
//! With S the state of one head, [key size, value size], and each token in turn:
//!
//! ```text
//! S = S * exp(decay)                        gated, gated_delta
//! v = beta * (v - transposed(S) k)          delta, gated_delta
//! S = S + k (outer) v
//! y = scale * transposed(S) q
//! ```
//!
//! Columns of S are independent: batch, heads and values are parallel, tokens are sequential. `chunk_size` is
//! a hint without effect.

use super::integer::repeated;
use super::matmul::product_sum;
use super::{Attrs, InferCx, LowerCx, Operator};
use crate::diag::{Result, codes};
use crate::nest::{BinOp, Expr, LoopKind, UnOp};
use crate::sym::Dim;

/// The operators.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum LinearAttention {
    Linear {
        q_heads: i64,
        kv_heads: i64,
        scale: f32,
        gated: bool,
        delta: bool,
    },
    /// A depthwise convolution over the past and present tokens, with an optional SiLU.
    Conv {
        silu: bool,
    },
}

impl Operator for LinearAttention {
    const OPS: &'static [&'static str] =
        &["LinearAttention", "CausalConvWithState", "com.microsoft:LinearAttention"];
    fn parse(a: &mut Attrs) -> Result<Self> {
        if a.op() == "CausalConvWithState" {
            return Ok(LinearAttention::Conv {
                silu: a.choice("activation", "none", &[("none", false), ("silu", true), ("swish", true)]),
            });
        }
        a.ignore("chunk_size");
        if a.knows("state_window") && a.int("state_window", 0) != 0 {
            return a.error("a window of states is not supported").fail();
        }
        let rules = [
            ("linear", (false, false)),
            ("gated", (true, false)),
            ("delta", (false, true)),
            ("gated_delta", (true, true)),
        ];
        let (gated, delta) = a.choice("update_rule", "gated_delta", &rules);
        let (q_heads, kv_heads) = (a.int_required("q_num_heads"), a.int_required("kv_num_heads"));
        if q_heads < 1 || kv_heads < 1 || q_heads % kv_heads != 0 {
            return a.error(format!("{q_heads} query heads do not share {kv_heads} key heads evenly")).fail();
        }
        Ok(LinearAttention::Linear { q_heads, kv_heads, scale: a.float("scale", 0.0), gated, delta })
    }
    fn infer(&self, cx: &mut InferCx) -> Result<()> {
        match *self {
            LinearAttention::Conv { .. } => infer_conv(cx),
            LinearAttention::Linear { q_heads, kv_heads, gated, delta, .. } => {
                infer_linear(cx, q_heads, kv_heads, gated, delta)
            }
        }
    }
    fn lower(&self, cx: &mut LowerCx) -> Result<()> {
        match *self {
            LinearAttention::Conv { silu } => lower_conv(cx, silu),
            LinearAttention::Linear { q_heads, kv_heads, scale, gated, delta } => {
                lower_linear(cx, q_heads, kv_heads, scale, gated, delta)
            }
        }
    }
}

fn infer_linear(cx: &mut InferCx, q_heads: i64, kv_heads: i64, gated: bool, delta: bool) -> Result<()> {
    let (q, k, v) = (cx.tensor(0).clone(), cx.tensor(1).clone(), cx.tensor(2).clone());
    for (i, given, what) in [(4, gated, "decay"), (5, delta, "beta")] {
        if cx.has(i) != given {
            return cx
                .error(
                    codes::OP_ARITY,
                    format!(
                        "the update rule {} the input {what}",
                        if given { "needs" } else { "does not take" }
                    ),
                )
                .fail();
        }
    }
    cx.require(
        ![&q, &k, &v].iter().any(|t| t.rank() != 3),
        codes::OP_SHAPE,
        "query, key and value must have rank 3",
    )?;
    let (size, value) = (q.dims[2].floor_div(q_heads), v.dims[2].floor_div(kv_heads));
    cx.require_eq(size * q_heads, q.dims[2], "the heads do not divide the query");
    cx.require_eq(value * kv_heads, v.dims[2], "the heads do not divide the value");
    cx.require_eq(size * kv_heads, k.dims[2], "the key's heads have another size than the query's");
    for t in [&k, &v] {
        cx.require_eq(t.dims[0], q.dims[0], "the batches differ");
        cx.require_eq(t.dims[1], q.dims[1], "the lengths differ");
    }
    let heads = Dim::constant(kv_heads);
    for i in [4, 5] {
        let Some(t) = cx.tensor_opt(i).cloned() else { continue };
        cx.require(t.rank() == 3, codes::OP_SHAPE, "decay and beta must have rank 3")?;
        cx.require_eq(t.dims[0], q.dims[0], "the batches differ");
        cx.require_eq(t.dims[1], q.dims[1], "the lengths differ");
        let what = format!("the last dimension of input {i} does not fit the heads");
        if i == 4 {
            // One rate per head, or one per key element.
            let each = t.dims[2].floor_div(kv_heads);
            cx.require_eq(heads * each, t.dims[2], &what);
            cx.require_repeatable(each, size, &what);
        } else {
            cx.require_repeatable(t.dims[2], heads, &what);
        }
    }
    let state = vec![q.dims[0], heads, size, value];
    let mut elem = q.elem;
    if let Some(s) = cx.tensor_opt(3).cloned() {
        elem = s.elem;
        cx.require(s.rank() == 4, codes::OP_SHAPE, "the state must have rank 4")?;
        for (a, b) in s.dims.iter().zip(&state) {
            cx.require_eq(*a, *b, "the state does not fit");
        }
    }
    cx.set(1, elem, state);
    cx.set(0, q.elem, vec![q.dims[0], q.dims[1], value * q_heads]);
    Ok(())
}

fn lower_linear(
    cx: &mut LowerCx,
    q_heads: i64,
    kv_heads: i64,
    scale: f32,
    gated: bool,
    delta: bool,
) -> Result<()> {
    let (q, key, v) = (cx.input(0), cx.input(1), cx.input(2));
    let (past, decay, beta) =
        (cx.input_opt(3), cx.input_opt(4).filter(|_| gated), cx.input_opt(5).filter(|_| delta));
    let (dq, dv) = (cx.dims(q), cx.dims(v));
    let ty = cx.elem(q).compute();
    let (size, value, shared) = (dq[2].floor_div(q_heads), dv[2].floor_div(kv_heads), q_heads / kv_heads);
    let heads = Dim::constant(kv_heads);
    // The state in the compute type, with values innermost.
    let shape = vec![dq[0], heads, size, value];
    let state = cx.temp("state", ty, shape.clone());
    cx.map(state, |k, at| past.map_or(Expr::num(ty, 0.0), |p| k.load(p, at)));
    let out = cx.output_opt(0);
    let scale = match (scale, size.as_const()) {
        (0.0, Some(n)) => Expr::num(ty, 1.0 / (n as f64).sqrt()),
        (0.0, None) => {
            Expr::num(ty, 1.0)
                / Expr::un(UnOp::Sqrt, Expr::cast(crate::tensor::ElemType::I64, ty, Expr::index(size)))
        }
        (s, _) => Expr::num(ty, f64::from(s)),
    };
    let decay = decay.map(|b| (b, cx.dims(b)[2].floor_div(kv_heads)));
    let beta = beta.map(|b| (b, cx.dims(b)[2]));
    let tokens = dq[1];
    cx.kernel(|k| {
        k.nest(LoopKind::Par, &[dq[0], heads, value], |k, o| {
            let (b, h, m) = (o[0], o[1], o[2]);
            k.range(LoopKind::Seq, "t", 0, tokens, |k, t| {
                let at = |d: Dim| [b, h, d, m];
                if let Some((g, each)) = decay {
                    k.nest(LoopKind::Seq, &[size], |k, d| {
                        let rate = k.load(g, &[b, t, h * each + repeated(k, d[0], each)]);
                        let v = k.load(state, &at(d[0])) * Expr::un(UnOp::Exp, rate);
                        k.store(state, &at(d[0]), v);
                    });
                }
                let mut x = k.load(v, &[b, t, h * value + m]);
                if let Some((g, count)) = beta {
                    let seen = k.acc(Expr::num(ty, 0.0));
                    k.nest(LoopKind::Seq, &[size], |k, d| {
                        let (a, c) = (k.load(state, &at(d[0])), k.load(key, &[b, t, h * size + d[0]]));
                        k.set(seen, product_sum(ty, a, c, Expr::acc(seen)));
                    });
                    x = k.load(g, &[b, t, repeated(k, h, count)]) * (x - Expr::acc(seen));
                }
                let x = k.let_(x);
                k.nest(LoopKind::Seq, &[size], |k, d| {
                    let v =
                        Expr::fma(k.load(key, &[b, t, h * size + d[0]]), x.clone(), k.load(state, &at(d[0])));
                    k.store(state, &at(d[0]), v);
                });
                let Some(out) = out else { return };
                k.nest(LoopKind::Seq, &[Dim::constant(shared)], |k, g| {
                    let head = h * shared + g[0];
                    let y = k.acc(Expr::num(ty, 0.0));
                    k.nest(LoopKind::Seq, &[size], |k, d| {
                        let (a, c) = (k.load(q, &[b, t, head * size + d[0]]), k.load(state, &at(d[0])));
                        k.set(y, product_sum(ty, a, c, Expr::acc(y)));
                    });
                    k.store(out, &[b, t, head * value + m], Expr::acc(y) * scale.clone());
                });
            });
        });
    });
    if let Some(present) = cx.output_opt(1) {
        cx.map(present, |k, at| k.load(state, at));
    }
    Ok(())
}

fn infer_conv(cx: &mut InferCx) -> Result<()> {
    let (x, w) = (cx.tensor(0).clone(), cx.tensor(1).clone());
    cx.require(x.rank() == 3 && w.rank() == 3, codes::OP_SHAPE, "input and weight must have rank 3")?;
    cx.require_eq(w.dims[0], x.dims[1], "the weight does not have one kernel for each channel");
    cx.require_eq(w.dims[1], Dim::constant(1), "the second dimension of the weight must be 1");
    if let Some(b) = cx.tensor_opt(2) {
        let n = b.count();
        cx.require_eq(n, x.dims[1], "the bias does not fit the channels");
    }
    let state = vec![x.dims[0], x.dims[1], w.dims[2] - 1];
    cx.syms.require_at_most(Dim::constant(1), w.dims[2]);
    if let Some(s) = cx.tensor_opt(3).cloned() {
        cx.require(s.rank() == 3, codes::OP_SHAPE, "the state must have rank 3")?;
        for (a, b) in s.dims.iter().zip(&state) {
            cx.require_eq(*a, *b, "the state does not fit");
        }
    }
    cx.set(1, x.elem, state);
    cx.set(0, x.elem, x.dims);
    Ok(())
}

fn lower_conv(cx: &mut LowerCx, silu: bool) -> Result<()> {
    let (x, w, bias, past) = (cx.input(0), cx.input(1), cx.input_opt(2), cx.input_opt(3));
    let (dx, taps) = (cx.dims(x), cx.dims(w)[2]);
    let ty = cx.elem(x).compute();
    let elem = cx.elem(x);
    let before = taps - 1;
    let padded = cx.temp("padded", elem, vec![dx[0], dx[1], dx[2] + before]);
    cx.map(padded, |k, at| {
        let old = past.map_or(Expr::num(ty, 0.0), |p| k.load(p, at));
        let new = k.load(x, &[at[0], at[1], at[2] - before]);
        Expr::select(Expr::cmp_index(BinOp::Lt, at[2], before), old, new)
    });
    if let Some(y) = cx.output_opt(0) {
        cx.kernel(|k| {
            k.nest(LoopKind::Par, &dx, |k, at| {
                let acc = k.acc(Expr::num(ty, 0.0));
                k.nest(LoopKind::Seq, &[taps], |k, r| {
                    let (a, b) = (
                        k.load(padded, &[at[0], at[1], at[2] + r[0]]),
                        k.load(w, &[at[1], Dim::constant(0), r[0]]),
                    );
                    k.set(acc, product_sum(ty, a, b, Expr::acc(acc)));
                });
                let v = Expr::acc(acc);
                let v = match bias {
                    Some(b) => v + k.load(b, &[at[1]]),
                    None => v,
                };
                let v = if silu { k.shared(v, |_, v| v.clone() * Expr::un(UnOp::Sigmoid, v)) } else { v };
                k.store(y, at, v);
            });
        });
    }
    if let Some(state) = cx.output_opt(1) {
        cx.map(state, |k, at| k.load(padded, &[at[0], at[1], at[2] + dx[2]]));
    }
    Ok(())
}
