//! ConvInteger and QLinearConv: convolutions of quantized images as integer contractions (see `integer` for
//! their form).
//!
//! Spec: <https://onnx.ai/onnx/operators/onnx__ConvInteger.html>, `QLinearConv`. One version each (10).
//!
//! Pads have the value of the image's zero point, which represents 0.

use super::conv::{Conv, clip, padded};
use super::integer::{first, int, requantized, signed_weights, sums};
use super::quantize::all_zero;
use super::{Attrs, InferCx, LowerCx, Operator};
use crate::diag::{Result, codes};
use crate::nest::{Buf, Expr, KernelBuilder, LoopKind};
use crate::sym::Dim;
use crate::tensor::ElemType;

/// The operators.
#[derive(Clone, Debug, PartialEq)]
pub struct QConv {
    /// Geometry.
    pub conv: Conv,
    /// QLinearConv: the result is requantized.
    pub linear: bool,
}

impl QConv {
    /// Numbers of the inputs for weights, zero points of image and weights, and bias.
    fn inputs(&self) -> (usize, usize, usize, usize) {
        if self.linear { (3, 2, 5, 8) } else { (1, 2, 3, usize::MAX) }
    }
}

impl Operator for QConv {
    const OPS: &'static [&'static str] = &["ConvInteger", "QLinearConv"];
    fn parse(a: &mut Attrs) -> Result<Self> {
        Ok(QConv { conv: Conv::parse(a)?, linear: a.op() == "QLinearConv" })
    }
    fn infer(&self, cx: &mut InferCx) -> Result<()> {
        let (w, zx, zw, bias) = self.inputs();
        let dims = self.conv.shape(cx, 0, w, bias)?;
        let single: &[usize] = if self.linear { &[zx, 1, 6, 7] } else { &[zx] };
        for i in single {
            if cx.tensor_opt(*i).is_some_and(|t| t.dims.iter().any(|d| d.as_const() != Some(1))) {
                return cx.error(codes::OP_SHAPE, format!("input {i} must have one element")).fail();
            }
        }
        for i in if self.linear { vec![zw, 4] } else { vec![zw] } {
            let Some(t) = cx.tensor_opt(i).cloned() else { continue };
            if t.dims.iter().all(|d| d.as_const() == Some(1)) {
                continue;
            }
            if t.rank() != 1 {
                return cx.error(codes::OP_SHAPE, format!("input {i} must be a number or a vector")).fail();
            }
            cx.require_eq(
                t.dims[0],
                dims[1],
                &format!("input {i} must have one value for all or one for each output channel"),
            );
        }
        let elem = if self.linear { cx.tensor(7).elem } else { ElemType::I32 };
        cx.set(0, elem, dims);
        Ok(())
    }
    fn lower(&self, cx: &mut LowerCx) -> Result<()> {
        let (iw, izx, izw, ibias) = self.inputs();
        let (x, y) = (cx.input(0), cx.output(0));
        let (dx, dw, dy) = (cx.dims(x), cx.dims(cx.input(iw)), cx.dims(y));
        let kernel: Vec<i64> = dw[2..].iter().filter_map(|d| d.as_const()).collect();
        let Ok(axes) = self.conv.geometry(&kernel, &dx[2..]) else { return cx.bug("the geometry changed") };
        let (w, axes) = clip::clipped(cx, iw, axes, &dx[2..], &dy[2..]);
        let zw = cx.input_opt(izw);
        let (w, zw) = signed_weights(cx.m, w, zw);
        let dw = cx.dims(w);
        let zx = cx.input_opt(izx).filter(|z| !all_zero(cx.m, *z));
        let zw = zw.filter(|z| !all_zero(cx.m, *z));
        let fill = zx.map(|z| match cx.constant(izx).and_then(|c| c.to_i64s()).as_deref() {
            Some([v]) => Expr::int(cx.elem(x), *v),
            _ => Expr::Load { buf: z, at: vec![Dim::constant(0); cx.dims(z).len()] },
        });
        let src = padded(cx, x, &axes, fill);
        let g = self.conv.group;
        let per_group = dy[1].floor_div(g);
        let depth: Vec<Dim> = dw[1..].to_vec();
        let bias = cx.input_opt(ibias);
        let scales = self.linear.then(|| (cx.input(1), cx.input(4), cx.input(6), cx.input(7)));
        let to = cx.elem(y);
        let image = |o: &[Dim], group: Dim, r: &[Dim]| {
            let mut at = vec![o[0], group * dw[1] + r[0]];
            at.extend(
                axes.iter()
                    .enumerate()
                    .map(|(i, a)| o[o.len() - axes.len() + i] * a.stride + r[1 + i] * a.dilation),
            );
            at
        };
        // Sums of the weights of each channel, and of the image under each window.
        let of_w = zx.map(|_| {
            sums(cx, "weight_sums", &[dw[0]], &depth, |k, at, r| {
                let v = int(k, k.load(w, &[at, r].concat()));
                zw.map_or(v.clone(), |z| v - int(k, per_channel(k, z, at[0])))
            })
        });
        let of_x = zw.map(|_| {
            // First over the channels of each pixel, which every window that contains it needs.
            let mut dims = vec![dy[0], Dim::constant(g)];
            let mut pixels = dims.clone();
            pixels.extend_from_slice(&cx.dims(src)[2..]);
            let of_pixel = sums(cx, "pixel_sums", &pixels, &depth[..1], |k, at, r| {
                let mut from = at.to_vec();
                from[1] = at[1] * dw[1] + r[0];
                int(k, k.load(src, &from))
            });
            dims.extend_from_slice(&dy[2..]);
            sums(cx, "image_sums", &dims, &depth[1..], |k, at, r| {
                let mut from = image(at, at[1], &[&[Dim::constant(0)], r].concat());
                from[1] = at[1];
                k.load(of_pixel, &from)
            })
        });
        let mut out = vec![dy[0], Dim::constant(g), per_group];
        out.extend_from_slice(&dy[2..]);
        cx.kernel(|k| {
            k.nest(LoopKind::Par, &out, |k, o| {
                let (group, oc) = (o[1], o[1] * per_group + o[2]);
                let acc = k.acc(Expr::int(ElemType::I32, 0));
                k.nest(LoopKind::Seq, &depth, |k, r| {
                    let mut wt = vec![oc];
                    wt.extend_from_slice(r);
                    let (a, b) = (int(k, k.load(src, &image(o, group, r))), int(k, k.load(w, &wt)));
                    k.set(acc, a * b + Expr::acc(acc));
                });
                let mut total = Expr::acc(acc);
                if let (Some(z), Some(s)) = (zw, of_x) {
                    let mut at = vec![o[0], group];
                    at.extend_from_slice(&o[3..]);
                    total = total - int(k, per_channel(k, z, oc)) * k.load(s, &at);
                }
                if let (Some(z), Some(s)) = (zx, of_w) {
                    total = total - int(k, first(k, z)) * k.load(s, &[oc]);
                }
                if let Some(b) = bias {
                    total = total + per_channel(k, b, oc);
                }
                let v = match scales {
                    Some((sx, sw, sy, zy)) => {
                        let scale = first(k, sx) * per_channel(k, sw, oc);
                        requantized(k, Expr::cast(ElemType::I32, ElemType::F32, total), scale, sy, zy, to)
                    }
                    None => total,
                };
                let mut at = vec![o[0], oc];
                at.extend_from_slice(&o[3..]);
                k.store(y, &at, v);
            });
        });
        Ok(())
    }
}

/// The value of a channel; there may be a single one for all.
fn per_channel(k: &KernelBuilder, b: Buf, channel: Dim) -> Expr {
    match k.m.bufs[b].dims.as_slice() {
        [d] if d.as_const() != Some(1) => k.load(b, &[channel]),
        _ => first(k, b),
    }
}
