//! DFT and STFT: the discrete Fourier transform, and that of overlapping frames.
//!
//! Spec: <https://onnx.ai/onnx/operators/onnx__DFT.html>, `STFT`.
//!
//! | operator | version | change                                                                            |
//! |----------|---------|-----------------------------------------------------------------------------------|
//! | DFT      | 17      | attribute `axis`, by default 1                                                    |
//! |          | 20      | input `axis`, by default the one before the last                                  |
//! | STFT     | 17      |                                                                                   |
//!
//! A transform is a contraction with a constant matrix of cosines and sines: from signal position and real
//! or imaginary part to frequency and part. Transforms of composite length are computed in two steps with
//! smaller matrices (`dft/factors.rs`). Long transforms for which that takes longer, and all whose length is
//! known only at run time, are computed in O(l log l) stages (`dft/stages.rs`). `inverse` with `onesided`
//! computes a real signal from half a spectrum.

mod factors;
mod frames;
mod stages;

use super::matmul::product_sum;
use super::support::cx::MAX_SIZE;
use super::support::runtime;
use super::{Attrs, InferCx, LowerCx, Operator};
use crate::diag::{Result, codes};
use crate::nest::{BinOp, Buf, Expr, KernelBuilder, LoopKind, UnOp};
use crate::ops::from_end;
use crate::sym::Dim;
use crate::tensor::{ConstData, ElemType};
use stages::Staged;
use std::f64::consts::PI;
use std::sync::Arc;

/// Most elements of a constant matrix.
const MATRIX: i64 = 1 << 20;

/// The operators.
#[derive(Clone, Debug, PartialEq)]
pub struct Dft {
    /// True for STFT.
    frames: bool,
    /// Axis of DFT 17.
    axis: Option<i64>,
    inverse: bool,
    onesided: bool,
}

impl Operator for Dft {
    const OPS: &'static [&'static str] = &["DFT", "STFT"];
    fn parse(a: &mut Attrs) -> Result<Self> {
        let frames = a.op() == "STFT";
        let axis = if frames || a.since() >= 20 { None } else { Some(a.int("axis", 1)) };
        Ok(Dft {
            frames,
            axis,
            inverse: !frames && a.flag("inverse", false),
            onesided: a.flag("onesided", frames),
        })
    }
    fn infer(&self, cx: &mut InferCx) -> Result<()> {
        let x = cx.tensor(0).clone();
        let last = x.dims.last().copied().unwrap_or_default();
        let real = self.frames && x.rank() == 2;
        cx.require(
            x.rank() >= 2 && (real || matches!(last.as_const(), Some(1 | 2))),
            codes::OP_SHAPE,
            "the last dimension of the signal must be 1 (real) or 2 (real and imaginary part)",
        )?;
        if self.frames {
            return self.infer_frames(cx, &x.dims, x.elem);
        }
        let axis = match self.axis {
            Some(a) => Some(a),
            None if !cx.has(2) => Some(-2),
            None => cx.ints_value(2).and_then(|v| v.first().copied()),
        };
        let length = if cx.has(1) { cx.dims_value(1).and_then(|v| v.first().copied()) } else { None };
        let late = cx.has(1) && length.is_none();
        if (0..cx.inputs.len()).skip(1).any(|i| cx.has(i) && runtime::length(cx, i) != Some(1)) {
            return cx.error(codes::OP_SHAPE, "dft_length and axis must be one number each").fail();
        }
        let parts = Dim::constant(if self.inverse && self.onesided { 1 } else { 2 });
        let Some(axis) = axis else {
            // The size of any dimension may change.
            let mut dims: Vec<Dim> = (0..x.rank() - 1).map(|d| cx.size(0, d, x.rank())).collect();
            if !cx.has(1) {
                cx.bound(&dims, Dim::product(x.dims[..x.rank() - 1].iter().copied()) * 2);
            }
            dims.push(parts);
            cx.set(0, x.elem, dims);
            return Ok(());
        };
        let axis = cx.axis(axis, x.rank())?;
        cx.require(
            axis + 1 != x.rank(),
            codes::OP_ATTRIBUTE,
            "the last axis holds the parts of a number and can not be transformed",
        )?;
        let out = if late { cx.size(0, axis, x.rank()) } else { self.sizes(x.dims[axis], length).1 };
        cx.syms.require_at_most(Dim::constant(1), x.dims[axis]);
        if let Some(l) = length {
            cx.syms.require_at_most(Dim::constant(1), l);
        }
        let mut dims = x.dims.clone();
        dims[axis] = out;
        dims[x.rank() - 1] = parts;
        cx.set(0, x.elem, dims);
        Ok(())
    }
    fn lower(&self, cx: &mut LowerCx) -> Result<()> {
        if self.frames {
            return self.lower_frames(cx);
        }
        let Along { x, y, axis, length } = self.along(cx);
        let (dims, out) = (cx.dims(x), cx.dims(y));
        let rank = dims.len();
        let ty = cx.elem(x).compute();
        let (l, _) = self.sizes(dims[axis], length);
        let used = self.used(dims[axis], l);
        let count = if self.inverse && self.onesided { l } else { out[axis] };
        let product = |d: &[Dim]| Dim::product(d.iter().copied());
        let apart =
            |d: &[Dim]| vec![product(&d[..axis]), d[axis], product(&d[axis + 1..rank - 1]), d[rank - 1]];
        if l == dims[axis] {
            let (x, y) = (cx.m.view(x, apart(&dims)), cx.m.view(y, apart(&out)));
            if self.by_factors(cx, x, y) {
                return Ok(());
            }
        }
        let Some(matrix) = self.matrix(&Transform { length: l, used, parts: dims[rank - 1], count, ty })
        else {
            let (x, y) = (cx.m.view(x, apart(&dims)), cx.m.view(y, apart(&out)));
            self.by_stages(cx, &Staged { x, y, length: l, used });
            return Ok(());
        };
        let matrix = cx.m.constant("fourier", Arc::new(matrix));
        cx.kernel(|k| {
            k.nest(LoopKind::Par, &out, |k, at| {
                let acc = k.acc(Expr::num(ty, 0.0));
                k.nest(LoopKind::Seq, &[used, dims[rank - 1]], |k, r| {
                    let mut from = at.to_vec();
                    from[axis] = r[0];
                    from[rank - 1] = r[1];
                    let w = k.load(matrix, &[r[0], r[1], at[axis], at[rank - 1]]);
                    let v = k.load(x, &from);
                    k.set(acc, product_sum(ty, v, w, Expr::acc(acc)));
                });
                k.store(y, at, Expr::acc(acc));
            });
        });
        Ok(())
    }
}

/// The operands of a transform: signal and result with the axis, and the length if it is given.
struct Along {
    x: Buf,
    y: Buf,
    axis: usize,
    length: Option<Dim>,
}

/// The sizes of a transform: its length, the elements used, the parts of each, and the results.
struct Transform {
    length: Dim,
    used: Dim,
    parts: Dim,
    count: Dim,
    ty: ElemType,
}

impl Dft {
    /// Length of the transform, and size of the result along the axis.
    fn sizes(&self, input: Dim, length: Option<Dim>) -> (Dim, Dim) {
        let back = self.inverse && self.onesided;
        let l = length.unwrap_or(if back { (input - 1) * 2 } else { input });
        (l, if self.onesided && !back { l.floor_div(2) + 1 } else { l })
    }
    /// Number of input positions that are used: those beyond the length are ignored, missing ones are 0.
    fn used(&self, input: Dim, length: Dim) -> Dim {
        let most = if self.inverse && self.onesided { length.floor_div(2) + 1 } else { length };
        if input == most { input } else { input.min(most) }
    }
    /// The axis and the length. If they are known only at run time, the driver defines them together with the
    /// sizes of the result, and signal and result are viewed as [before the axis, along it, after it, parts].
    fn along(&self, cx: &mut LowerCx) -> Along {
        let (x, y) = (cx.input(0), cx.output(0));
        let (dims, out) = (cx.dims(x), cx.dims(y));
        let rank = dims.len();
        let given = cx.input_opt(1);
        let length = given.and_then(|_| cx.dims_value(1)).and_then(|v| v.first().copied());
        let place = |a: i64| from_end(a, rank as i64) as usize;
        let (axis, asked) = match (self.axis, cx.input_opt(2)) {
            (Some(a), _) => (Some(place(a)), None),
            (None, None) => (Some(rank - 2), None),
            (None, b) => (cx.ints_value(2).and_then(|v| v.first().map(|a| place(*a))), b),
        };
        if let (Some(axis), true) = (axis, length.is_some() || given.is_none()) {
            return Along { x, y, axis, length };
        }
        // Sizes of the result, then the sizes before, along and after the axis, then the length.
        let found = cx.compute(rank + 3, |k, list| {
            use runtime::{check, eq, int, le, or};
            let asked = match (axis, asked) {
                (Some(a), _) => int(a as i64),
                (None, Some(b)) => runtime::value(k, b, 0),
                (None, None) => int(rank as i64 - 2),
            };
            let asked = k.let_(asked);
            let hits: Vec<Expr> = (0..rank as i64 - 1)
                .map(|d| or(eq(asked.clone(), int(d)), eq(asked.clone(), int(d - rank as i64))))
                .map(|h| k.let_(h))
                .collect();
            if let Some(any) = hits.iter().cloned().reduce(or) {
                check(k, any);
            }
            let (mut before, mut along, mut behind, mut passed) = (int(1), int(1), int(1), Expr::bool(false));
            for (hit, d) in hits.iter().zip(&dims) {
                along = k.let_(Expr::select(hit.clone(), Expr::index(*d), along));
                behind = k.let_(Expr::select(passed.clone(), behind.clone() * Expr::index(*d), behind));
                passed = k.let_(or(passed, hit.clone()));
                before = k.let_(Expr::select(passed.clone(), before.clone(), before * Expr::index(*d)));
            }
            check(k, le(int(1), along.clone()));
            let l = match (length, given) {
                (Some(l), _) => Expr::index(l),
                (None, Some(b)) => runtime::value(k, b, 0),
                (None, None) if self.inverse && self.onesided => (along.clone() - int(1)) * int(2),
                (None, None) => along.clone(),
            };
            let l = k.let_(l);
            check(k, le(int(1), l.clone()));
            let size =
                if self.inverse || !self.onesided { l.clone() } else { k.let_(l.clone() / int(2) + int(1)) };
            for (d, (hit, n)) in hits.iter().zip(&dims).enumerate() {
                k.store(list, &[Dim::from(d)], Expr::select(hit.clone(), size.clone(), Expr::index(*n)));
            }
            for (i, v) in [before, along, behind, l].into_iter().enumerate() {
                k.store(list, &[Dim::from(rank - 1 + i)], v);
            }
        });
        let load = |i: usize| Expr::Load { buf: found, at: vec![Dim::from(i)] };
        match axis {
            Some(a) => cx.define(out[a], load(a)),
            None => (0..rank - 1).for_each(|d| cx.define(out[d], load(d))),
        }
        let length = length.unwrap_or_else(|| cx.number("length", load(rank + 2), Some(1), Some(MAX_SIZE)));
        if let Some(axis) = axis {
            return Along { x, y, axis, length: Some(length) };
        }
        let mut number = |hint: &str, i: usize| cx.number(hint, load(rank - 1 + i), Some(0), None);
        let (before, along, behind) = (number("before", 0), number("along", 1), number("behind", 2));
        let (m, parts) = (self.sizes(along, Some(length)).1, |d: &[Dim]| d[rank - 1]);
        let (x, y) = (
            cx.m.view(x, vec![before, along, behind, parts(&dims)]),
            cx.m.view(y, vec![before, m, behind, parts(&out)]),
        );
        Along { x, y, axis: 1, length: Some(length) }
    }
    /// The factors of cosine and sine in the weight from part `from` to part `to`.
    fn factor(&self, from: i64, to: i64) -> (f64, f64) {
        let sign = if self.inverse { 1.0 } else { -1.0 };
        match (from, to) {
            (0, 0) | (1, 1) => (1.0, 0.0),
            (0, _) => (0.0, sign),
            _ => (0.0, -sign),
        }
    }
    /// The multiplicity of an element of half a spectrum, and the factor 1 / length of the inverse.
    fn scale(&self, n: i64, length: i64) -> f64 {
        let twice = self.inverse && self.onesided && n != 0 && 2 * n != length;
        let scale = if twice { 2.0 } else { 1.0 };
        if self.inverse { scale / length as f64 } else { scale }
    }
    /// The weights [position, part, frequency, part].
    fn matrix(&self, t: &Transform) -> Option<ConstData> {
        let (l, n) = (t.length.as_const()?, t.used.as_const()?);
        let (parts, count) = (t.parts.as_const()?, t.count.as_const()?);
        let results = if self.inverse && self.onesided { 1 } else { 2 };
        let size = n.checked_mul(count)?.checked_mul(parts * results)?;
        // Long matrices are read from memory for every few rows.
        if size > MATRIX || l <= 0 || stages::pay(l, 2 * size) {
            return None;
        }
        let mut v = Vec::with_capacity(size as usize);
        for n in 0..n {
            for (from, k) in (0..parts).flat_map(|f| (0..count).map(move |k| (f, k))) {
                let angle = 2.0 * PI * ((n * k) % l) as f64 / l as f64;
                for to in 0..results {
                    let (c, s) = self.factor(from, to);
                    v.push((c * angle.cos() + s * angle.sin()) * self.scale(n, l));
                }
            }
        }
        floats(t.ty, vec![n, parts, count, results], v)
    }
}

/// A constant of 64-bit or 32-bit floats.
fn floats(ty: ElemType, dims: Vec<i64>, v: impl IntoIterator<Item = f64>) -> Option<ConstData> {
    let v = v.into_iter();
    match ty {
        ElemType::F64 => ConstData::new(ty, dims, v.flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>()),
        _ => {
            let bytes: Vec<u8> = v.flat_map(|x| (x as f32).to_le_bytes()).collect();
            ConstData::new(ElemType::F32, dims, bytes)
        }
    }
}
