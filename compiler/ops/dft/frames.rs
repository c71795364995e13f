//! STFT: windowed frames of a signal, and the spectrum of each.

use super::*;

impl Dft {
    pub(super) fn infer_frames(&self, cx: &mut InferCx, x: &[Dim], elem: ElemType) -> Result<()> {
        let ([batch, n] | [batch, n, _]) = x[..] else {
            return cx.error(codes::OP_SHAPE, "the signal must have rank 3, or rank 2 if it is real").fail();
        };
        let one = |v: Option<Vec<Dim>>| v.and_then(|v| v.first().copied());
        let window = cx.tensor_opt(2).map(|w| w.count());
        let length = match (window, cx.has(3)) {
            (Some(w), false) => Some(w),
            (None, false) => {
                return cx.error(codes::OP_ARITY, "STFT needs a window or a frame_length").fail();
            }
            (_, true) => one(cx.dims_value(3)),
        };
        let step = one(cx.dims_value(1));
        let (Some(step), Some(length)) = (step, length) else {
            cx.require(
                ![1, 3].iter().any(|i| cx.has(*i) && runtime::length(cx, *i) != Some(1)),
                codes::OP_SHAPE,
                "frame_step and frame_length must be one number each",
            )?;
            let frames = cx.size(0, 1, 4);
            cx.bound(&[frames], n);
            let bins = match length {
                Some(l) => self.bins(l),
                None => {
                    let bins = cx.size(0, 2, 4);
                    cx.bound(&[bins], n);
                    bins
                }
            };
            cx.set(0, elem, vec![batch, frames, bins, Dim::constant(2)]);
            return Ok(());
        };
        if let Some(w) = window {
            cx.require_eq(w, length, "the window is not as long as a frame");
        }
        for d in [step, length] {
            cx.syms.require_at_most(Dim::constant(1), d);
        }
        cx.syms.require_at_most(length, n);
        let frames = if step.as_const().is_some_and(|s| s < 1) {
            Dim::constant(0)
        } else {
            (n - length).floor_div(step) + 1
        };
        cx.set(0, elem, vec![batch, frames, self.bins(length), Dim::constant(2)]);
        Ok(())
    }
    /// Frequencies of a frame's spectrum.
    fn bins(&self, length: Dim) -> Dim {
        if self.onesided { length.floor_div(2) + 1 } else { length }
    }
    pub(super) fn lower_frames(&self, cx: &mut LowerCx) -> Result<()> {
        let (x, window, y) = (cx.input(0), cx.input_opt(2), cx.output(0));
        let window = window.map(|w| {
            let n = Dim::product(cx.dims(w));
            cx.m.view(w, vec![n])
        });
        let (step, length) = self.frame(cx, window);
        // A real signal may lack the dimension for its single part.
        let x = match cx.dims(x)[..] {
            [batch, n] => cx.m.view(x, vec![batch, n, Dim::constant(1)]),
            _ => x,
        };
        let (dims, out) = (cx.dims(x), cx.dims(y));
        let ty = cx.elem(x).compute();
        // Windowed frames, then one contraction.
        let framed = cx.temp("frames", ty, vec![out[0], out[1], length, dims[2]]);
        cx.map(framed, |k, at| {
            let v = k.load(x, &[at[0], at[1] * step + at[2], at[3]]);
            match window {
                Some(w) => v * k.load(w, &at[2..3]),
                None => v,
            }
        });
        let one = Dim::constant(1);
        let (signal, spectrum) = (
            cx.m.view(framed, vec![out[0] * out[1], length, one, dims[2]]),
            cx.m.view(y, vec![out[0] * out[1], out[2], one, out[3]]),
        );
        if self.by_factors(cx, signal, spectrum) {
            return Ok(());
        }
        let t = Transform { length, used: length, parts: dims[2], count: out[2], ty };
        let Some(matrix) = self.matrix(&t) else {
            self.by_stages(cx, &Staged { x: signal, y: spectrum, length, used: length });
            return Ok(());
        };
        let matrix = cx.m.constant("fourier", Arc::new(matrix));
        cx.kernel(|k| {
            k.nest(LoopKind::Par, &out, |k, at| {
                let acc = k.acc(Expr::num(ty, 0.0));
                k.nest(LoopKind::Seq, &[length, dims[2]], |k, r| {
                    let v = k.load(framed, &[at[0], at[1], r[0], r[1]]);
                    let w = k.load(matrix, &[r[0], r[1], at[2], at[3]]);
                    k.set(acc, product_sum(ty, v, w, Expr::acc(acc)));
                });
                k.store(y, at, Expr::acc(acc));
            });
        });
        Ok(())
    }
    /// Step and length of the frames. If they are known only at run time, the driver defines them together
    /// with the sizes of the result.
    fn frame(&self, cx: &mut LowerCx, window: Option<Buf>) -> (Dim, Dim) {
        let (n, out) = (cx.dims(cx.input(0))[1], cx.dims(cx.output(0)));
        let one = |v: Option<Vec<Dim>>| v.and_then(|v| v.first().copied());
        let given = cx.input_opt(3);
        let known_step = one(cx.dims_value(1));
        let known_length = match given {
            Some(_) => one(cx.dims_value(3)),
            None => window.map(|w| cx.dims(w)[0]),
        };
        if let (Some(step), Some(length)) = (known_step, known_length) {
            return (step, length);
        }
        let step = cx.input(1);
        let found = cx.compute(4, |k, list| {
            use runtime::{check, eq, int, le};
            let number = |k: &mut KernelBuilder, known: Option<Dim>, b: Option<Buf>| {
                let v = match (known, b) {
                    (Some(d), _) => Expr::index(d),
                    (None, Some(b)) => runtime::value(k, b, 0),
                    (None, None) => int(0),
                };
                k.let_(v)
            };
            let (s, l) = (number(k, known_step, Some(step)), number(k, known_length, given));
            check(k, le(int(1), s.clone()).and(le(int(1), l.clone())));
            check(k, le(l.clone(), Expr::index(n)));
            if let Some(w) = window {
                let n = k.m.bufs[w].dims[0];
                check(k, eq(l.clone(), Expr::index(n)));
            }
            let frames = (Expr::index(n) - l.clone()) / s.clone() + int(1);
            let bins = if self.onesided { l.clone() / int(2) + int(1) } else { l.clone() };
            // A step beyond the signal is never taken.
            for (i, v) in [s.min(Expr::index(n)), l, frames, bins].into_iter().enumerate() {
                k.store(list, &[Dim::from(i)], v);
            }
        });
        let load = |i: usize| Expr::Load { buf: found, at: vec![Dim::from(i)] };
        let step = known_step.unwrap_or_else(|| cx.number("step", load(0), Some(1), Some(MAX_SIZE)));
        let length = known_length.unwrap_or_else(|| cx.number("length", load(1), Some(1), Some(MAX_SIZE)));
        cx.define(out[1], load(2));
        cx.define(out[2], load(3));
        (step, length)
    }
}
