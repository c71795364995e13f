//! DFT and STFT: the discrete Fourier transform, and that of overlapping frames.
//!
//! Spec: <https://onnx.ai/onnx/operators/onnx__DFT.html>, `STFT`.
//!
//! | operator | version | change                                                                              |
//! |----------|---------|-------------------------------------------------------------------------------------|
//! | DFT      | 17      | attribute `axis`, by default 1                                                      |
//! |          | 20      | input `axis`, by default the one before the last                                    |
//! | STFT     | 17      |                                                                                     |
//!
//! A transform is a contraction with a matrix of cosines and sines: over signal position and real or imaginary part, to
//! frequency and part. The matrix is a constant where sizes are known and it is not too large; otherwise its elements come
//! from the table of the roots of unity, or, where only run time knows the length, are computed as they are needed.
//! `inverse` with `onesided` goes back from half a spectrum to a real signal.

use super::matmul::product_sum;
use super::{Attrs, InferCx, LowerCx, Operator, runtime};
use crate::diag::{Result, codes};
use crate::nest::{BinOp, Buf, Expr, KernelBuilder, LoopKind, UnOp};
use crate::sym::{Answer, Dim};
use crate::tensor::{ConstData, ElemType};
use std::f64::consts::PI;
use std::sync::Arc;

/// Most elements of a constant matrix.
const MATRIX: i64 = 1 << 20;

/// The operators.
#[derive(Clone, Debug, PartialEq)]
pub struct Dft {
    /// STFT.
    frames: bool,
    /// DFT 17.
    axis: Option<i64>,
    inverse: bool,
    onesided: bool,
}

impl Operator for Dft {
    const OPS: &'static [&'static str] = &["DFT", "STFT"];
    fn parse(a: &mut Attrs) -> Result<Self> {
        let frames = a.op() == "STFT";
        let axis = if frames || a.since() >= 20 { None } else { Some(a.int("axis", 1)?) };
        Ok(Dft { frames, axis, inverse: !frames && a.flag("inverse", false)?, onesided: a.flag("onesided", frames)? })
    }
    fn infer(&self, cx: &mut InferCx) -> Result<()> {
        let x = cx.tensor(0)?.clone();
        let last = x.dims.last().copied().unwrap_or_default();
        if x.rank() < 2 || !matches!(last.as_const(), Some(1 | 2)) {
            return cx.error(codes::OP_SHAPE, "the last dimension of the signal must be 1 (real) or 2 (real and imaginary part)").fail();
        }
        if self.frames {
            return self.infer_frames(cx, &x.dims, x.elem);
        }
        let axis = match self.axis {
            Some(a) => Some(a),
            None if !cx.has(2) => Some(-2),
            None => cx.ints_value(2).and_then(|v| v.first().copied()),
        };
        let length = if cx.has(1) { cx.dims_value(1).and_then(|v| v.first().copied()) } else { None };
        let Some(axis) = axis else {
            let Some(d) = runtime::declared_for(cx, 2, 0) else { return cx.need_ints(2, "the axis").map(|_| ()) };
            if cx.has(1) && length.is_none() {
                return cx.need_dims(1, "dft_length").map(|_| ());
            }
            runtime::require_rank(cx, &d, x.rank())?;
            if self.candidates(cx.syms, &x.dims, &d, length).is_empty() {
                return cx.error(codes::OP_SHAPE, "the declared shape of the result fits no axis").fail();
            }
            cx.set(0, x.elem, d);
            return Ok(());
        };
        let axis = cx.axis(axis, x.rank())?;
        if axis + 1 == x.rank() {
            return cx.error(codes::OP_ATTRIBUTE, "the last axis holds the parts of a number and can not be transformed").fail();
        }
        if cx.has(1) && length.is_none() {
            return cx.need_dims(1, "dft_length").map(|_| ());
        }
        let (_, out) = self.sizes(x.dims[axis], length);
        cx.syms.require_at_most(Dim::constant(1), x.dims[axis]);
        if let Some(l) = length {
            cx.syms.require_at_most(Dim::constant(1), l);
        }
        let mut dims = x.dims.clone();
        dims[axis] = out;
        dims[x.rank() - 1] = Dim::constant(if self.inverse && self.onesided { 1 } else { 2 });
        cx.set(0, x.elem, dims);
        Ok(())
    }
    fn lower(&self, cx: &mut LowerCx) -> Result<()> {
        if self.frames {
            return self.lower_frames(cx);
        }
        let (x, y) = (cx.input(0), cx.output(0));
        let (dims, out) = (cx.dims(x), cx.dims(y));
        let rank = dims.len();
        let length = cx.input_opt(1).and_then(|_| cx.dims_value(1)).and_then(|v| v.first().copied());
        let place = |a: i64| (if a < 0 { a + rank as i64 } else { a }) as usize;
        let axis = match (self.axis, cx.input_opt(2)) {
            (Some(a), _) => Some(place(a)),
            (None, None) => Some(rank - 2),
            (None, Some(_)) => cx.ints_value(2).and_then(|v| v.first().map(|a| place(*a))),
        };
        let asked = cx.input_opt(2);
        let axes = match axis {
            Some(a) => vec![a],
            None => self.candidates(&cx.m.syms, &dims, &out, length),
        };
        let ty = cx.elem(x).compute();
        let plans: Vec<(usize, Roots, Dim)> = axes
            .iter()
            .map(|a| {
                let (l, _) = self.sizes(dims[*a], length);
                let used = self.used(dims[*a], l);
                let count = if self.inverse && self.onesided { l } else { out[*a] };
                (*a, self.roots(cx, l, used, dims[rank - 1], count, ty), used)
            })
            .collect();
        cx.kernel(|k| {
            let chosen: Vec<Option<Expr>> = match (axis, asked) {
                (None, Some(b)) => {
                    let v = runtime::value(k, b, 0);
                    let v = k.let_(v);
                    let hits: Vec<Expr> = axes.iter().map(|a| runtime::or(runtime::eq(v.clone(), runtime::int(*a as i64)), runtime::eq(v.clone(), runtime::int(*a as i64 - rank as i64)))).collect();
                    let hits: Vec<Expr> = hits.into_iter().map(|h| k.let_(h)).collect();
                    if let Some(any) = hits.iter().cloned().reduce(runtime::or) {
                        runtime::check(k, any);
                    }
                    hits.into_iter().map(Some).collect()
                }
                _ => vec![None],
            };
            k.nest(LoopKind::Par, &out, |k, at| {
                let acc = k.acc(Expr::num(ty, 0.0));
                for ((axis, roots, used), hit) in plans.iter().zip(chosen) {
                    let sum = |k: &mut KernelBuilder| {
                        k.nest(LoopKind::Seq, &[*used, dims[rank - 1]], |k, r| {
                            let mut from = at.to_vec();
                            from[*axis] = r[0];
                            from[rank - 1] = r[1];
                            let w = roots.weight(k, self, r[0], r[1], at[*axis], at[rank - 1], ty);
                            let v = k.load(x, &from);
                            k.set(acc, product_sum(ty, v, w, Expr::acc(acc)));
                        });
                    };
                    match hit {
                        Some(c) => k.if_(c, sum),
                        None => sum(k),
                    }
                }
                k.store(y, at, Expr::acc(acc));
            });
        });
        Ok(())
    }
}

/// Where the weights of a transform of a known length come from.
enum Roots {
    /// [position, part, frequency, part]
    Matrix(Buf),
    /// [length, 2]: cosine and sine of each multiple of a turn's part; the length.
    Table(Buf, Dim),
}

impl Dft {
    /// Length of the transform, and of the result along the axis.
    fn sizes(&self, input: Dim, length: Option<Dim>) -> (Dim, Dim) {
        let back = self.inverse && self.onesided;
        let l = length.unwrap_or(if back { (input - 1) * 2 } else { input });
        (l, if self.onesided && !back { l.floor_div(2) + 1 } else { l })
    }
    /// Positions of the input that count: those beyond the length do not, those that lack are 0.
    fn used(&self, input: Dim, length: Dim) -> Dim {
        let most = if self.inverse && self.onesided { length.floor_div(2) + 1 } else { length };
        if input == most { input } else { input.min(most) }
    }
    /// Axes that lead from `x` to `out`.
    fn candidates(&self, syms: &crate::sym::SymTable, x: &[Dim], out: &[Dim], length: Option<Dim>) -> Vec<usize> {
        let same = |a: Dim, b: Dim| syms.eq(a, b) == Answer::Yes;
        (0..x.len() - 1).filter(|a| same(out[*a], self.sizes(x[*a], length).1) && (0..x.len() - 1).all(|d| d == *a || same(x[d], out[d]))).collect()
    }
    /// (cosine, sine) factors that the parts of element `n` get in frequency (or time) `k`, apart from the angle.
    fn factor(&self, from: i64, to: i64) -> (f64, f64) {
        let sign = if self.inverse { 1.0 } else { -1.0 };
        match (from, to) {
            (0, 0) | (1, 1) => (1.0, 0.0),
            (0, _) => (0.0, sign),
            _ => (0.0, -sign),
        }
    }
    /// How often an element of half a spectrum counts, and the 1 / length of the inverse.
    fn scale(&self, n: i64, length: i64) -> f64 {
        let twice = self.inverse && self.onesided && n != 0 && 2 * n != length;
        let scale = if twice { 2.0 } else { 1.0 };
        if self.inverse { scale / length as f64 } else { scale }
    }
    fn roots(&self, cx: &mut LowerCx, length: Dim, used: Dim, parts: Dim, count: Dim, ty: ElemType) -> Roots {
        let wide = ty == ElemType::F64;
        let fill = |dims: Vec<i64>, v: Vec<f64>| {
            let bytes: Vec<u8> = if wide { v.iter().flat_map(|x| x.to_le_bytes()).collect() } else { v.iter().flat_map(|x| (*x as f32).to_le_bytes()).collect() };
            ConstData::new(if wide { ElemType::F64 } else { ElemType::F32 }, dims, bytes)
        };
        let results = if self.inverse && self.onesided { 1 } else { 2 };
        if let (Some(l), Some(n), Some(p), Some(k)) = (length.as_const(), used.as_const(), parts.as_const(), count.as_const()) {
            let fits = n.checked_mul(k).and_then(|v| v.checked_mul(p * results)).is_some_and(|v| v <= MATRIX);
            if fits && l > 0 {
                let mut v = Vec::with_capacity((n * p * k * results) as usize);
                for n in 0..n {
                    for (from, k) in (0..p).flat_map(|f| (0..k).map(move |k| (f, k))) {
                        let angle = 2.0 * PI * ((n * k) % l) as f64 / l as f64;
                        for to in 0..results {
                            let (c, s) = self.factor(from, to);
                            v.push((c * angle.cos() + s * angle.sin()) * self.scale(n, l));
                        }
                    }
                }
                if let Some(c) = fill(vec![n, p, k, results], v) {
                    return Roots::Matrix(cx.m.constant("fourier", Arc::new(c)));
                }
            }
        }
        let table = match length.as_const().filter(|l| (1..=MATRIX).contains(l)) {
            Some(l) => fill(vec![l, 2], (0..l).map(|i| 2.0 * PI * i as f64 / l as f64).flat_map(|a| [a.cos(), a.sin()]).collect()).map(|c| cx.m.constant("roots", Arc::new(c))),
            None => None,
        };
        let table = table.unwrap_or_else(|| {
            let b = cx.temp("roots", ty, vec![length, Dim::constant(2)]);
            cx.map(b, |_, at| {
                let angle = turn(Expr::index(at[0]), Expr::index(length));
                let v = Expr::select(Expr::cmp_index(BinOp::Eq, at[1], 0), Expr::un(UnOp::Cos, angle.clone()), Expr::un(UnOp::Sin, angle));
                Expr::cast(ElemType::F64, ty, v)
            });
            b
        });
        Roots::Table(table, length)
    }
    /// What a part of element `n` contributes to a part of frequency `f`, given cosine and sine of their angle.
    #[allow(clippy::too_many_arguments)]
    fn combine(&self, cos: Expr, sin: Expr, from: Dim, to: Dim, n: Dim, length: Expr, ty: ElemType) -> Expr {
        let forward = if self.inverse { sin.clone() } else { -sin.clone() };
        let backward = if self.inverse { -sin } else { sin };
        let same = Expr::cmp_index(BinOp::Eq, from, to);
        let v = Expr::select(same, cos, Expr::select(Expr::cmp_index(BinOp::Lt, from, to), forward, backward));
        if !self.inverse {
            return v;
        }
        let v = v / Expr::cast(ElemType::I64, ty, length.clone());
        if !self.onesided {
            return v;
        }
        let once = runtime::or(Expr::cmp_index(BinOp::Eq, n, 0), runtime::eq(Expr::index(n * 2), length));
        v * Expr::select(once, Expr::num(ty, 1.0), Expr::num(ty, 2.0))
    }
}

impl Roots {
    #[allow(clippy::too_many_arguments)]
    fn weight(&self, k: &KernelBuilder, op: &Dft, n: Dim, from: Dim, f: Dim, to: Dim, ty: ElemType) -> Expr {
        match self {
            Roots::Matrix(b) => k.load(*b, &[n, from, f, to]),
            Roots::Table(b, l) => {
                let i = (n * f).modulo(*l);
                let (cos, sin) = (k.load(*b, &[i, Dim::constant(0)]), k.load(*b, &[i, Dim::constant(1)]));
                op.combine(cos, sin, from, to, n, Expr::index(*l), ty)
            }
        }
    }
}

/// 2 pi i / n
fn turn(i: Expr, n: Expr) -> Expr {
    let wide = |e: Expr| Expr::cast(ElemType::I64, ElemType::F64, e);
    wide(i) * Expr::num(ElemType::F64, 2.0 * PI) / wide(n)
}

impl Dft {
    fn infer_frames(&self, cx: &mut InferCx, x: &[Dim], elem: ElemType) -> Result<()> {
        let [batch, n, _] = x[..] else { return cx.error(codes::OP_SHAPE, "the signal must have rank 3").fail() };
        let one = |v: Option<Vec<Dim>>| v.and_then(|v| v.first().copied());
        let window = cx.tensor_opt(2)?.map(|w| w.count());
        let length = match (window, cx.has(3)) {
            (Some(w), false) => Some(w),
            (None, false) => return cx.error(codes::OP_ARITY, "STFT needs a window or a frame_length").fail(),
            (_, true) => one(cx.dims_value(3)),
        };
        let step = one(cx.dims_value(1));
        let (Some(step), Some(length)) = (step, length) else {
            let i = if step.is_none() { 1 } else { 3 };
            let Some(d) = runtime::declared_for(cx, i, 0) else { return cx.need_dims(i, if i == 1 { "frame_step" } else { "frame_length" }).map(|_| ()) };
            runtime::require_rank(cx, &d, 4)?;
            cx.require_eq(d[0], batch, "the batch keeps its size")?;
            cx.require_eq(d[3], Dim::constant(2), "the result is complex")?;
            cx.set(0, elem, d);
            return Ok(());
        };
        if let Some(w) = window {
            cx.require_eq(w, length, "the window is not as long as a frame")?;
        }
        for d in [step, length] {
            cx.syms.require_at_most(Dim::constant(1), d);
        }
        cx.syms.require_at_most(length, n);
        let frames = if step.as_const().is_some_and(|s| s < 1) { Dim::constant(0) } else { (n - length).floor_div(step) + 1 };
        let bins = if self.onesided { length.floor_div(2) + 1 } else { length };
        cx.set(0, elem, vec![batch, frames, bins, Dim::constant(2)]);
        Ok(())
    }
    fn lower_frames(&self, cx: &mut LowerCx) -> Result<()> {
        let (x, step, window, y) = (cx.input(0), cx.input(1), cx.input_opt(2), cx.output(0));
        let (dims, out) = (cx.dims(x), cx.dims(y));
        let (ty, elem) = (cx.elem(x).compute(), cx.elem(x));
        let one = |v: Option<Vec<Dim>>| v.and_then(|v| v.first().copied());
        let known_step = one(cx.dims_value(1));
        let given = cx.input_opt(3);
        let known_length = match given {
            Some(_) => one(cx.dims_value(3)),
            None => window.map(|w| Dim::product(cx.dims(w))),
        };
        let window = window.map(|w| {
            let n = Dim::product(cx.dims(w));
            cx.m.view(w, vec![n])
        });
        if let (Some(step), Some(length)) = (known_step, known_length) {
            // Frames under the window, then one contraction.
            let framed = cx.temp("frames", elem, vec![out[0], out[1], length, dims[2]]);
            cx.map(framed, |k, at| {
                let v = k.load(x, &[at[0], at[1] * step + at[2], at[3]]);
                match window {
                    Some(w) => v * k.load(w, &at[2..3]),
                    None => v,
                }
            });
            let roots = self.roots(cx, length, length, dims[2], out[2], ty);
            cx.kernel(|k| {
                k.nest(LoopKind::Par, &out, |k, at| {
                    let acc = k.acc(Expr::num(ty, 0.0));
                    k.nest(LoopKind::Seq, &[length, dims[2]], |k, r| {
                        let v = k.load(framed, &[at[0], at[1], r[0], r[1]]);
                        let w = roots.weight(k, self, r[0], r[1], at[2], at[3], ty);
                        k.set(acc, product_sum(ty, v, w, Expr::acc(acc)));
                    });
                    k.store(y, at, Expr::acc(acc));
                });
            });
            return Ok(());
        }
        cx.kernel(|k| {
            let int = runtime::int;
            let s = match known_step {
                Some(s) => Expr::index(s),
                None => runtime::value(k, step, 0),
            };
            let l = match (known_length, given) {
                (Some(l), _) => Expr::index(l),
                (None, Some(b)) => runtime::value(k, b, 0),
                (None, None) => int(0),
            };
            let (s, l) = (k.let_(s), k.let_(l));
            for v in [&s, &l] {
                runtime::check(k, Expr::bin(BinOp::Gt, v.clone(), int(0)));
            }
            runtime::check(k, Expr::bin(BinOp::Le, l.clone(), Expr::index(dims[1])));
            let frames = (Expr::index(dims[1]) - l.clone()) / s.clone() + int(1);
            runtime::check(k, runtime::eq(frames, Expr::index(out[1])));
            let bins = if self.onesided { l.clone() / int(2) + int(1) } else { l.clone() };
            runtime::check(k, runtime::eq(bins, Expr::index(out[2])));
            if let Some(w) = window {
                let n = k.m.bufs[w].dims[0];
                runtime::check(k, runtime::eq(l.clone(), Expr::index(n)));
            }
            k.nest(LoopKind::Par, &out, |k, at| {
                let acc = k.acc(Expr::num(ty, 0.0));
                k.nest(LoopKind::Seq, &[dims[1], dims[2]], |k, r| {
                    let term = k.block(|k| {
                        let i = Expr::bin(BinOp::Rem, Expr::index(r[0]) * Expr::index(at[2]), l.clone());
                        let angle = turn(i, l.clone());
                        let angle = k.let_(angle);
                        let part = |op: UnOp| Expr::cast(ElemType::F64, ty, Expr::un(op, angle.clone()));
                        let w = self.combine(part(UnOp::Cos), part(UnOp::Sin), r[1], at[3], r[0], l.clone(), ty);
                        let position = Expr::index(at[1]) * s.clone() + Expr::index(r[0]);
                        let v = k.with_index(position, dims[1], |k, p| k.load(x, &[at[0], p, r[1]]));
                        let v = match window {
                            Some(b) => {
                                let n = k.m.bufs[b].dims[0];
                                v * k.with_index(Expr::index(r[0]), n, |k, i| k.load(b, &[i]))
                            }
                            None => v,
                        };
                        k.set(acc, product_sum(ty, v, w, Expr::acc(acc)));
                    });
                    let inside = Expr::bin(BinOp::Lt, Expr::index(r[0]), l.clone());
                    k.push(crate::nest::Stmt::If { cond: inside, then: term, els: vec![] });
                });
                k.store(y, at, Expr::acc(acc));
            });
        });
        Ok(())
    }
}
