//! Layer normalization after additions: SkipLayerNormalization, SkipSimplifiedLayerNormalization and
//! EmbedLayerNormalization of com.microsoft, and SimplifiedLayerNormalization, which ONNX Runtime adds to
//! ai.onnx.
//!
//! Spec: <https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md>. One version each. The
//! simplified ones divide by the root mean square and add no bias.

use super::{Attrs, InferCx, LowerCx, Operator};
use crate::diag::{Result, codes};
use crate::nest::{BinOp, Buf, Expr, KernelBuilder, LoopKind, UnOp};
use crate::ops::from_end;
use crate::sym::Dim;
use crate::tensor::ElemType;

/// Which of them.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Kind {
    Skip,
    SkipSimplified,
    Simplified,
    Embed,
}

/// The operators.
#[derive(Clone, Debug, PartialEq)]
pub struct SkipNorm {
    kind: Kind,
    epsilon: f32,
    axis: i64,
    stash: ElemType,
}

impl Operator for SkipNorm {
    const OPS: &'static [&'static str] = &[
        "com.microsoft:SkipLayerNormalization",
        "com.microsoft:SkipSimplifiedLayerNormalization",
        "SimplifiedLayerNormalization",
        "com.microsoft:EmbedLayerNormalization",
    ];
    fn parse(a: &mut Attrs) -> Result<Self> {
        let (kind, epsilon) = match a.op() {
            "SkipLayerNormalization" => (Kind::Skip, 1e-12),
            "SkipSimplifiedLayerNormalization" => (Kind::SkipSimplified, 1e-12),
            "SimplifiedLayerNormalization" => (Kind::Simplified, 1e-5),
            _ => (Kind::Embed, 1e-12),
        };
        // It only says whether there is a second result.
        a.ignore("mask_index_type");
        let stash = a.elem_type_opt("stash_type").unwrap_or(ElemType::F32);
        if !matches!(stash, ElemType::F32 | ElemType::F64) {
            return a.error(format!("stash_type is {stash}")).row("expected", "float or double").fail();
        }
        Ok(SkipNorm { kind, epsilon: a.float("epsilon", epsilon), axis: a.int("axis", -1), stash })
    }
    fn infer(&self, cx: &mut InferCx) -> Result<()> {
        if self.kind == Kind::Embed {
            return infer_embed(cx);
        }
        let t = cx.tensor(0).clone();
        let axis = cx.axis(self.axis, t.rank())?;
        let vectors: &[usize] = match self.kind {
            Kind::Skip => &[2, 3, 4],
            Kind::SkipSimplified => &[2, 3],
            _ => &[],
        };
        for i in vectors {
            vector(cx, *i, t.dims[t.rank() - 1]);
        }
        let beside = 1;
        if let Some(s) = cx.tensor_opt(beside).cloned() {
            let otherwise = "the second input must broadcast to the first";
            cx.require_broadcast_to(&s.dims, &t.dims, otherwise)?;
        }
        let single: Vec<Dim> =
            t.dims.iter().enumerate().map(|(i, d)| if i < axis { *d } else { Dim::constant(1) }).collect();
        if self.kind == Kind::Simplified {
            cx.set(1, self.stash, single);
            cx.set(0, cx.tensor(1).elem, t.dims);
            return Ok(());
        }
        cx.set(3, t.elem, t.dims.clone());
        cx.set(2, ElemType::F32, single.clone());
        cx.set(1, ElemType::F32, single);
        cx.set(0, t.elem, t.dims);
        Ok(())
    }
    fn lower(&self, cx: &mut LowerCx) -> Result<()> {
        let rank = |b: Buf, cx: &LowerCx| cx.dims(b).len() as i64;
        match self.kind {
            Kind::Embed => self.lower_embed(cx),
            Kind::Simplified => {
                let x = cx.input(0);
                let n = rank(x, cx);
                let axis = from_end(self.axis, n) as usize;
                let (scale, y, inv) = (cx.input(1), cx.output_opt(0), cx.output_opt(1));
                let form = Normalization { axis, simple: true, epsilon: self.epsilon };
                normalize(cx, x, form, [Some(scale), None], [y, None, inv]);
                Ok(())
            }
            _ => {
                let simple = self.kind == Kind::SkipSimplified;
                let (x, skip) = (cx.input(0), cx.input(1));
                let (beta, bias) =
                    if simple { (None, cx.input_opt(3)) } else { (cx.input_opt(3), cx.input_opt(4)) };
                let (dims, ty) = (cx.dims(x), cx.elem(x).compute());
                let sum = match cx.output_opt(3) {
                    Some(b) => b,
                    None => cx.temp("sum", ty, dims.clone()),
                };
                cx.map(sum, |k, at| {
                    let v = k.load(x, at) + k.load_broadcast(skip, at);
                    match bias {
                        Some(b) => v + k.load(b, &at[at.len() - 1..]),
                        None => v,
                    }
                });
                let form = Normalization { axis: dims.len() - 1, simple, epsilon: self.epsilon };
                let (scale, results) = (cx.input(2), [0, 1, 2].map(|i| cx.output_opt(i)));
                normalize(cx, sum, form, [Some(scale), beta], results);
                Ok(())
            }
        }
    }
}

/// Checks that input `i`, if given, is a vector of `n` values.
fn vector(cx: &mut InferCx, i: usize, n: Dim) {
    let Some(t) = cx.tensor_opt(i) else { return };
    match t.dims[..] {
        [d] => cx.require_eq(d, n, &format!("input {i} does not fit the hidden size")),
        _ => cx.fail(cx.error(codes::OP_SHAPE, format!("input {i} must have rank 1"))),
    }
}

fn infer_embed(cx: &mut InferCx) -> Result<()> {
    let ids = cx.tensor(0).clone();
    let words = cx.tensor(2).clone();
    cx.require(
        ids.rank() == 2 && words.rank() == 2 && cx.tensor(3).rank() == 2,
        codes::OP_SHAPE,
        "the ids and the embeddings must have rank 2",
    )?;
    cx.require(
        cx.has(1) == cx.has(4),
        codes::OP_ARITY,
        "segment_ids and segment_embedding are given together or not at all",
    )?;
    let hidden = words.dims[1];
    for i in [3, 4] {
        if let Some(t) = cx.tensor_opt(i).cloned() {
            cx.require(t.rank() == 2, codes::OP_SHAPE, "the embeddings must have rank 2")?;
            cx.require_eq(t.dims[1], hidden, "the embeddings have different hidden sizes");
        }
    }
    for i in [1, 7] {
        if let Some(t) = cx.tensor_opt(i).cloned() {
            for (a, b) in t.dims.iter().zip(&ids.dims) {
                cx.require_eq(*a, *b, &format!("input {i} does not fit the ids"));
            }
        }
    }
    if let Some(p) = cx.tensor_opt(8).cloned() {
        let shape = cx.broadcast(&[&ids.dims, &p.dims])?;
        for (a, b) in shape.iter().zip(&ids.dims) {
            cx.require_eq(*a, *b, "position_ids does not fit the ids");
        }
    }
    vector(cx, 5, hidden);
    vector(cx, 6, hidden);
    if !cx.has(8) {
        let rows = cx.tensor(3).dims[0];
        cx.syms.require_at_most(ids.dims[1], rows);
    }
    let dims = vec![ids.dims[0], ids.dims[1], hidden];
    cx.set(2, words.elem, dims.clone());
    cx.set(1, ElemType::I32, vec![ids.dims[0]]);
    cx.set(0, words.elem, dims);
    Ok(())
}

impl SkipNorm {
    fn lower_embed(&self, cx: &mut LowerCx) -> Result<()> {
        let (ids, segments, words, places, segment) =
            (cx.input(0), cx.input_opt(1), cx.input(2), cx.input(3), cx.input_opt(4));
        let (scale, beta, mask, positions) = (cx.input(5), cx.input(6), cx.input_opt(7), cx.input_opt(8));
        let ty = cx.elem(words).compute();
        let (di, hidden) = (cx.dims(ids), cx.dims(words)[1]);
        let dims = vec![di[0], di[1], hidden];
        let sum = match cx.output_opt(2) {
            Some(b) => b,
            None => cx.temp("sum", ty, dims.clone()),
        };
        cx.map(sum, |k, at| {
            let token = [at[0], at[1]];
            let look = |k: &mut KernelBuilder, table: Buf, row: Expr| {
                let rows = k.m.bufs[table].dims[0];
                k.with_index(row, rows, |k, r| k.load(table, &[r, at[2]]))
            };
            let id = Expr::cast(ElemType::I32, ElemType::I64, k.load(ids, &token));
            let v = look(k, words, id);
            let place = match positions {
                Some(p) => {
                    let row = Expr::cast(ElemType::I32, ElemType::I64, k.load_broadcast(p, &token));
                    look(k, places, row)
                }
                None => look(k, places, Expr::index(at[1])),
            };
            let v = v + place;
            match (segments, segment) {
                (Some(s), Some(table)) => {
                    let row = Expr::cast(ElemType::I32, ElemType::I64, k.load(s, &token));
                    v + look(k, table, row)
                }
                _ => v,
            }
        });
        let y = cx.output_opt(0);
        let form = Normalization { axis: 2, simple: false, epsilon: self.epsilon };
        normalize(cx, sum, form, [Some(scale), Some(beta)], [y, None, None]);
        if let Some(index) = cx.output_opt(1) {
            // The number of ones in the mask; 0 without a mask.
            cx.kernel(|k| {
                k.nest(LoopKind::Par, &di[..1], |k, b| {
                    let n = k.acc(Expr::int(ElemType::I32, 0));
                    if let Some(m) = mask {
                        k.nest(LoopKind::Seq, &di[1..], |k, s| {
                            let one =
                                Expr::bin(BinOp::Eq, k.load(m, &[b[0], s[0]]), Expr::int(ElemType::I32, 1));
                            k.update(
                                BinOp::Add,
                                n,
                                Expr::select(one, Expr::int(ElemType::I32, 1), Expr::int(ElemType::I32, 0)),
                            );
                        });
                    }
                    k.store(index, b, Expr::acc(n));
                });
            });
        }
        Ok(())
    }
}

/// The parameters of a normalization.
struct Normalization {
    /// The first normalized dimension.
    axis: usize,
    /// True for the mean square instead of mean and variance.
    simple: bool,
    epsilon: f32,
}

/// Normalizes `x`. The results are the normalized values, the mean and the inverse deviation, as far as they
/// are used.
fn normalize(
    cx: &mut LowerCx,
    x: Buf,
    Normalization { axis, simple, epsilon }: Normalization,
    [scale, bias]: [Option<Buf>; 2],
    [y, mean_to, inverse_to]: [Option<Buf>; 3],
) {
    let dims = cx.dims(x);
    let ty = cx.elem(x).compute();
    let (outer, row) = dims.split_at(axis);
    let n = Dim::product(row.iter().copied());
    cx.kernel(|k| {
        k.nest(LoopKind::Par, outer, |k, o| {
            let at = |r: &[Dim]| -> Vec<Dim> { o.iter().chain(r).copied().collect() };
            let count = Expr::count(ty, n);
            let mean = (!simple).then(|| {
                let sum = k.acc(Expr::num(ty, 0.0));
                k.nest(LoopKind::Seq, row, |k, r| {
                    let v = k.load(x, &at(r));
                    k.update(BinOp::Add, sum, v);
                });
                k.let_(Expr::acc(sum) / count.clone())
            });
            let centred = |k: &KernelBuilder, r: &[Dim]| match &mean {
                Some(m) => k.load(x, &at(r)) - m.clone(),
                None => k.load(x, &at(r)),
            };
            let square = k.acc(Expr::num(ty, 0.0));
            k.nest(LoopKind::Seq, row, |k, r| {
                let v = centred(k, r);
                let v = k.let_(v);
                k.set(square, Expr::fma(v.clone(), v, Expr::acc(square)));
            });
            let inv = k.let_(
                Expr::num(ty, 1.0)
                    / Expr::un(UnOp::Sqrt, Expr::acc(square) / count + Expr::num(ty, f64::from(epsilon))),
            );
            if let Some(y) = y {
                let out = k.m.bufs[y].ty.compute();
                k.nest(LoopKind::Seq, row, |k, r| {
                    let operand = |k: &KernelBuilder, b: Buf| {
                        Expr::cast(k.m.bufs[b].ty.compute(), ty, k.load_broadcast(b, &at(r)))
                    };
                    let mut v = centred(k, r) * inv.clone();
                    if let Some(s) = scale {
                        v = v * operand(k, s);
                    }
                    if let Some(b) = bias {
                        v = v + operand(k, b);
                    }
                    k.store(y, &at(r), Expr::cast(ty, out, v));
                });
            }
            let single = at(&vec![Dim::constant(0); row.len()]);
            let mean = mean.unwrap_or(Expr::num(ty, 0.0));
            for (b, v) in [(mean_to, mean), (inverse_to, inv)] {
                if let Some(b) = b {
                    let to = k.m.bufs[b].ty.compute();
                    k.store(b, &single, Expr::cast(ty, to, v));
                }
            }
        });
    });
}
