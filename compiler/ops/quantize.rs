//! QuantizeLinear, DequantizeLinear, DynamicQuantizeLinear: conversions between numbers and their quantized
//! form.
//!
//! Spec: <https://onnx.ai/onnx/operators/onnx__QuantizeLinear.html>, `DequantizeLinear`,
//! `DynamicQuantizeLinear`.
//!
//! | version | |
//! |---|---|
//! | 10 | one scale for the tensor; 8-bit integers (Dequantize: int32, too) |
//! | 13 | `axis`: a scale for each slice |
//! | 19 | 8-bit floats, `saturate`; 16-bit floats on the other side |
//! | 21 | `block_size`, 4- and 16-bit integers, `output_dtype` of Quantize |
//! | 23 | float4, `precision`, `output_dtype` of Dequantize |
//! | 24, 25, 28 | scales of float8e8m0; 2-bit integers; 6-bit floats |
//!
//! Quantization divides, rounds to nearest even, adds the zero point and saturates. It is computed in f32
//! (also for 16-bit floats, as in ONNX Runtime), or in f64 if `precision` or a scale of a wider type requires
//! it.

use super::cast::saturated;
use super::{Attrs, InferCx, LowerCx, Operator};
use crate::diag::{Result, codes};
use crate::nest::{BinOp, Buf, Expr, KernelBuilder, LoopKind, Scalar, UnOp};
use crate::ops::from_end;
use crate::sym::Dim;
use crate::tensor::{ElemType, TensorType};

/// The operators.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Quantize {
    Quantize { grain: Grain, saturate: bool, to: Option<ElemType>, precision: Option<ElemType> },
    Dequantize { grain: Grain, to: Option<ElemType> },
    Dynamic,
}

/// The assignment of scales to elements: one for all, one per index along `axis`, or one per block of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Grain {
    /// May be negative.
    pub axis: i64,
    /// 0: no blocks.
    pub block: i64,
}

impl Grain {
    fn parse(a: &mut Attrs) -> Result<Grain> {
        let block = a.int("block_size", 0);
        a.require(block >= 0, "attribute \"block_size\" is negative")?;
        Ok(Grain { axis: a.int("axis", 1), block })
    }
    /// The position of the scale for position `at` of a tensor. A scale with one element applies to all.
    pub fn scale_at(&self, scale: &[Dim], at: &[Dim]) -> Vec<Dim> {
        let axis = from_end(self.axis, at.len() as i64) as usize;
        if scale.iter().all(|d| d.as_const() == Some(1)) {
            return vec![Dim::constant(0); scale.len()];
        }
        if self.block == 0 {
            return at.get(axis).map(|i| vec![*i]).unwrap_or_default();
        }
        let mut at = at.to_vec();
        if let Some(i) = at.get_mut(axis) {
            *i = i.floor_div(self.block);
        }
        at
    }
    /// Checks the shapes of scale (input 1) and zero point (input 2) against the tensor (input 0).
    fn check(&self, cx: &mut InferCx) -> Result<()> {
        let (x, s) = (cx.tensor(0).clone(), cx.tensor(1).clone());
        if let Some(z) = cx.tensor_opt(2) {
            let (z, one) = (z.clone(), |t: &TensorType| t.count().as_const() == Some(1));
            if !(one(&z) && one(&s)) {
                cx.require(
                    z.rank() == s.rank(),
                    codes::OP_SHAPE,
                    "scale and zero point must have the same shape",
                )?;
                for (a, b) in z.dims.iter().zip(&s.dims) {
                    cx.require_eq(*a, *b, "scale and zero point must have the same shape");
                }
            }
        }
        if s.dims.iter().all(|d| d.as_const() == Some(1)) {
            return Ok(());
        }
        cx.require(cx.since >= 13, codes::OP_SHAPE, "this version takes one scale for the whole tensor")?;
        let axis = cx.axis(self.axis, x.rank())?;
        if self.block == 0 {
            cx.require(
                s.rank() == 1,
                codes::OP_SHAPE,
                "the scale must be a number, or a vector along the axis; \
                    blocks need the attribute block_size",
            )?;
            cx.require_eq(s.dims[0], x.dims[axis], "the scale does not fit the axis");
            return Ok(());
        }
        cx.require(
            s.rank() == x.rank(),
            codes::OP_SHAPE,
            "with block_size the scale must have the rank of the input",
        )?;
        for (i, (a, b)) in s.dims.iter().zip(&x.dims).enumerate() {
            let want = if i == axis { b.ceil_div(self.block) } else { *b };
            cx.require_eq(*a, want, "the scale does not fit the blocks of the input");
        }
        Ok(())
    }
}

impl Operator for Quantize {
    const OPS: &'static [&'static str] = &["QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"];
    fn parse(a: &mut Attrs) -> Result<Self> {
        // 0 means not given.
        let elem = |a: &mut Attrs, name: &str| if a.int(name, 0) == 0 { None } else { a.elem_type_opt(name) };
        Ok(match a.op() {
            "QuantizeLinear" => {
                let precision = elem(a, "precision");
                if let Some(t) = precision {
                    let fits = matches!(t, ElemType::F32 | ElemType::F64 | ElemType::F16 | ElemType::BF16);
                    a.expect("precision", t, fits, "a floating-point type of 16 bits or more");
                }
                Quantize::Quantize {
                    grain: Grain::parse(a)?,
                    saturate: a.flag("saturate", true),
                    to: elem(a, "output_dtype"),
                    precision,
                }
            }
            "DequantizeLinear" => {
                Quantize::Dequantize { grain: Grain::parse(a)?, to: elem(a, "output_dtype") }
            }
            _ => Quantize::Dynamic,
        })
    }
    fn infer(&self, cx: &mut InferCx) -> Result<()> {
        let x = cx.tensor(0).clone();
        match self {
            Quantize::Quantize { grain, to, .. } => {
                grain.check(cx)?;
                let zero = cx.tensor_opt(2).map(|t| t.elem);
                if let (Some(t), Some(z)) = (to, zero)
                    && *t != z
                {
                    return cx
                        .error(
                            codes::OP_ATTRIBUTE,
                            "attribute \"output_dtype\" contradicts the zero point's type",
                        )
                        .found_expected(t.to_string(), z.to_string())
                        .fail();
                }
                let t = zero.or(*to).unwrap_or(ElemType::U8);
                let fits = t.is_int() && t.bits() <= 16 || crate::tensor::SmallFloat::of(t).is_some();
                if !fits {
                    return cx
                        .error(codes::OP_ATTRIBUTE, "attribute \"output_dtype\" is not a type to quantize to")
                        .found_expected(t.to_string(), "an integer or float of few bits")
                        .fail();
                }
                cx.set(0, t, x.dims);
            }
            Quantize::Dequantize { grain, to } => {
                grain.check(cx)?;
                let t = to.unwrap_or(cx.tensor(1).elem);
                if !matches!(t, ElemType::F32 | ElemType::F16 | ElemType::BF16) {
                    return cx
                        .error(codes::OP_ATTRIBUTE, "the result can not have this type")
                        .found_expected(t.to_string(), "float, float16 or bfloat16 (attribute output_dtype)")
                        .fail();
                }
                cx.set(0, t, x.dims);
            }
            Quantize::Dynamic => {
                cx.set(0, ElemType::U8, x.dims);
                cx.set(1, ElemType::F32, []);
                cx.set(2, ElemType::U8, []);
            }
        }
        Ok(())
    }
    fn lower(&self, cx: &mut LowerCx) -> Result<()> {
        let x = cx.input(0);
        match self {
            Quantize::Quantize { grain, saturate, precision, .. } => {
                let (scale, zero, y) = (cx.input(1), cx.input_opt(2), cx.output(0));
                let (from, to) = (cx.elem(x).compute(), cx.elem(y));
                let of_scale = cx.elem(scale).compute();
                // The quotient of integers has a fraction.
                let wide = match precision {
                    Some(t) => t.compute(),
                    None if of_scale.is_float() => of_scale,
                    None => ElemType::F64,
                };
                let (ds, dz) = (cx.dims(scale), zero.map(|z| cx.dims(z)));
                cx.map(y, |k, at| {
                    let q = Expr::cast(from, wide, k.load(x, at))
                        / Expr::cast(of_scale, wide, k.load(scale, &grain.scale_at(&ds, at)));
                    let z = zero
                        .zip(dz.as_ref())
                        .map(|(z, dz)| Expr::cast(to.compute(), wide, k.load(z, &grain.scale_at(dz, at))));
                    if to.is_int() {
                        return quantized(wide, to, q, z);
                    }
                    let v = match z {
                        Some(z) => q + z,
                        None => q,
                    };
                    let v = Expr::cast(wide, ElemType::F32, v);
                    if *saturate { saturated(to, v) } else { v }
                });
            }
            Quantize::Dequantize { grain, .. } => {
                let (scale, zero, y) = (cx.input(1), cx.input_opt(2), cx.output(0));
                let (ds, dz) = (cx.dims(scale), zero.map(|z| cx.dims(z)));
                cx.map(y, |k, at| {
                    let v =
                        centred(k, x, at, zero.zip(dz.as_ref()).map(|(z, dz)| (z, grain.scale_at(dz, at))));
                    v * k.load(scale, &grain.scale_at(&ds, at))
                });
            }
            Quantize::Dynamic => {
                let (scale, zero) = dynamic_range(cx, x);
                let (ys, yz) = (cx.output_opt(1), cx.output_opt(2));
                if let Some(y) = cx.output_opt(0) {
                    cx.map(y, |k, at| dynamic(k, x, at, scale, zero));
                }
                if let Some(y) = ys {
                    cx.map(y, |k, at| k.load(scale, at));
                }
                if let Some(y) = yz {
                    cx.map(y, |k, at| k.load(zero, at));
                }
            }
        }
        Ok(())
    }
}

/// The element minus the zero point, exact, as f32.
pub fn centred(k: &mut KernelBuilder, x: Buf, at: &[Dim], zero: Option<(Buf, Vec<Dim>)>) -> Expr {
    let elem = k.m.bufs[x].ty;
    // The difference of small integers fits 32 bits; floats are subtracted as floats.
    let wide = if elem.is_int() { ElemType::I32 } else { ElemType::F32 };
    let v = Expr::cast(elem.compute(), wide, k.load(x, at));
    let v = match zero {
        Some((z, at)) if !is_zero(k, z) => {
            let of_zero = k.m.bufs[z].ty.compute();
            v - Expr::cast(of_zero, wide, k.load(z, &at))
        }
        _ => v,
    };
    Expr::cast(wide, ElemType::F32, v)
}

/// True for a constant of zeros only.
pub fn is_zero(k: &KernelBuilder, b: Buf) -> bool {
    all_zero(k.m, b)
}

/// True for a constant of zeros only.
pub fn all_zero(m: &crate::nest::Module, b: Buf) -> bool {
    matches!(&m.bufs[m.storage(b)].place, crate::nest::Place::Const(c) if c.bytes().iter().all(|b| *b == 0))
}

/// A quotient of type `wide`, rounded to an integer type, ties to even. The zero point is added before
/// saturation.
pub fn quantized(wide: ElemType, to: ElemType, quotient: Expr, zero: Option<Expr>) -> Expr {
    let v = Expr::un(UnOp::Round, quotient);
    let v = match zero {
        Some(z) => v + z,
        None => v,
    };
    let end = |s: Scalar| Expr::num(wide, s.to_i64() as f64);
    Expr::cast(wide, to.compute(), v.max(end(Scalar::lowest(to))).min(end(Scalar::highest(to))))
}

/// Scale and zero point with which DynamicQuantizeLinear quantizes `x` to u8: its range, extended to include
/// 0.
pub fn dynamic_range(cx: &mut LowerCx, x: Buf) -> (Buf, Buf) {
    let count = Dim::product(cx.dims(x));
    let flat = cx.m.view(x, vec![count]);
    let range = cx.temp("range", ElemType::F32, vec![2.into()]);
    let (scale, zero) =
        (cx.temp("scale", ElemType::F32, vec![]), cx.temp("zero_point", ElemType::U8, vec![]));
    let f = ElemType::F32;
    cx.kernel(|k| {
        let (lo, hi) = (k.acc(Expr::f32(0.0)), k.acc(Expr::f32(0.0)));
        k.nest(LoopKind::Seq, &[count], |k, at| {
            let v = k.load(flat, at);
            let v = k.let_(v);
            k.update(BinOp::Min, lo, v.clone());
            k.update(BinOp::Max, hi, v);
        });
        k.store(range, &[0.into()], Expr::acc(lo));
        k.store(range, &[1.into()], Expr::acc(hi));
    });
    cx.kernel(|k| {
        let [lo, hi] = [0, 1].map(|i| {
            let v = k.load(range, &[Dim::constant(i)]);
            k.let_(v)
        });
        let flat = Expr::bin(BinOp::Eq, hi.clone(), lo.clone());
        // The scale for zeros only is not specified by ONNX; ONNX Runtime uses 1.
        let s = Expr::select(flat, Expr::f32(1.0), (hi - lo.clone()) / Expr::f32(255.0));
        let s = k.let_(s);
        k.store(scale, &[], s.clone());
        let z = Expr::f32(0.0) - lo / s;
        let z = Expr::un(UnOp::Round, z.max(Expr::f32(0.0)).min(Expr::f32(255.0)));
        k.store(zero, &[], Expr::cast(f, ElemType::U8, z));
    });
    (scale, zero)
}

/// An element of `x` as quantized by DynamicQuantizeLinear.
pub fn dynamic(k: &mut KernelBuilder, x: Buf, at: &[Dim], scale: Buf, zero: Buf) -> Expr {
    let q = k.load(x, at) / k.load(scale, &[]);
    let z = Expr::cast(ElemType::U8, ElemType::F32, k.load(zero, &[]));
    quantized(ElemType::F32, ElemType::U8, q, Some(z))
}
