//! Dropout.
//!
//! Spec: <https://onnx.ai/onnx/operators/onnx__Dropout.html>.
//!
//! | version | when it trains                                                                               |
//! |---------|----------------------------------------------------------------------------------------------|
//! | 1, 6    | unless `is_test` is set; the mask has the type of the data                                   |
//! | 7, 10   | never; 10: the mask is boolean                                                               |
//! | 12      | if the input `training_mode` says so; `ratio` is an input, `seed` an attribute               |
//! | 13, 22  | more types                                                                                   |
//!
//! In training, elements whose random number is below the ratio become 0, and the others are scaled by
//! 1 / (1 - ratio). With a seed and a known shape the numbers are those of `numpy.random.RandomState(seed)`,
//! as in ONNX's reference; otherwise those of `random`.

use super::random::flat;
use super::random::philox::{Stream, numpy_uniform};
use super::{Attrs, InferCx, LowerCx, Operator};
use crate::diag::Result;
use crate::nest::{BinOp, Buf, Expr, KernelBuilder};
use crate::sym::Dim;
use crate::tensor::{ConstData, ElemType};
use std::sync::Arc;

/// Most elements whose random numbers are computed at compile time.
const NUMPY: i64 = 1 << 22;

/// The operator.
#[derive(Clone, Debug, PartialEq)]
pub struct Dropout {
    /// Versions 1 and 6 without `is_test`.
    trains: bool,
    ratio: f32,
    seed: Option<i64>,
}

impl Operator for Dropout {
    const OPS: &'static [&'static str] = &["Dropout"];
    fn parse(a: &mut Attrs) -> Result<Self> {
        a.ignore("consumed_inputs");
        let trains = a.since() < 7 && !a.flag("is_test", false);
        Ok(Dropout { trains, ratio: a.float("ratio", 0.5), seed: a.int_opt("seed") })
    }
    fn infer(&self, cx: &mut InferCx) -> Result<()> {
        let t = cx.tensor(0).clone();
        let mask = if cx.since >= 10 { ElemType::Bool } else { t.elem };
        let known = if self.trains || cx.has(2) { super::Known::No } else { cx.operand(0)?.known.clone() };
        cx.set(1, mask, t.dims.clone());
        cx.set_known(0, t.elem, t.dims, known);
        Ok(())
    }
    fn lower(&self, cx: &mut LowerCx) -> Result<()> {
        let x = cx.input(0);
        let asks = cx.input_opt(2).filter(|_| cx.ints_value(2) != Some(vec![0]));
        let (y, mask) = (cx.output_opt(0), cx.output_opt(1));
        if !self.trains && asks.is_none() {
            if y.is_some() {
                cx.alias(0, x);
            }
            if let Some(mask) = mask {
                let ty = cx.elem(mask).compute();
                cx.map(mask, |_, _| Expr::int(ty, 1));
            }
            return Ok(());
        }
        let dims = cx.dims(x);
        let ratio = cx.input_opt(1);
        let numbers = self.numpy(cx, &dims);
        let name =
            [y, mask].into_iter().flatten().next().map_or(String::new(), |b| cx.m.bufs[b].name.clone());
        let stream = Stream::new(self.seed.map(|s| s as f32), &name);
        let f64s = ElemType::F64;
        let scalar = |k: &KernelBuilder, b: Buf| {
            let at = vec![Dim::constant(0); k.m.bufs[b].dims.len()];
            k.load(b, &at)
        };
        let ratio = |k: &KernelBuilder| match ratio {
            Some(r) => Expr::cast(k.m.bufs[r].ty.compute(), f64s, scalar(k, r)),
            None => Expr::num(f64s, f64::from(self.ratio)),
        };
        let trains = |k: &KernelBuilder| asks.map(|b| scalar(k, b));
        let kept = |k: &mut KernelBuilder, at: &[Dim]| {
            let u = match numbers {
                Some(b) => k.load(b, at),
                None => stream.uniform(k, flat(at, &dims), f64s),
            };
            let kept = Expr::bin(BinOp::Ge, u, ratio(k));
            match trains(k) {
                Some(t) => Expr::select(t, kept, Expr::bool(true)),
                None => kept,
            }
        };
        if let Some(y) = y {
            let ty = cx.elem(y).compute();
            cx.map(y, |k, at| {
                let keep = kept(k, at);
                let scale = Expr::cast(f64s, ty, Expr::num(f64s, 1.0) / (Expr::num(f64s, 1.0) - ratio(k)));
                let scale = match trains(k) {
                    Some(t) => Expr::select(t, scale, Expr::num(ty, 1.0)),
                    None => scale,
                };
                Expr::select(keep, k.load(x, at) * scale, Expr::num(ty, 0.0))
            });
        }
        if let Some(mask) = mask {
            let ty = cx.elem(mask).compute();
            cx.map(mask, |k, at| {
                let keep = kept(k, at);
                Expr::cast(ElemType::Bool, ty, keep)
            });
        }
        Ok(())
    }
}

impl Dropout {
    /// The numbers of NumPy's generator, if seed and shape are known.
    fn numpy(&self, cx: &mut LowerCx, dims: &[Dim]) -> Option<Buf> {
        let seed = u32::try_from(self.seed?).ok()?;
        let sizes: Vec<i64> = dims.iter().map(|d| d.as_const()).collect::<Option<_>>()?;
        let n = sizes.iter().try_fold(1i64, |n, d| n.checked_mul(*d)).filter(|n| *n <= NUMPY)?;
        let bytes: Vec<u8> = numpy_uniform(seed, n as usize).into_iter().flat_map(f64::to_le_bytes).collect();
        let data = ConstData::new(ElemType::F64, sizes, bytes)?;
        Some(cx.m.constant("numbers", Arc::new(data)))
    }
}
