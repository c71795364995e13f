//! DeformConv: a convolution whose kernel elements are displaced individually.
//!
//! Spec: <https://onnx.ai/onnx/operators/onnx__DeformConv.html>. Version 22 adds bfloat16. The displaced
//! elements are first gathered, interpolated and masked; the rest is a convolution over them.

use super::conv::{Auto, Axis, Window, with_bias};
use super::grid_sample::{Mode, Padding, Sampling};
use super::matmul::product_sum;
use super::{Attrs, InferCx, LowerCx, Operator};
use crate::diag::{Result, codes};
use crate::nest::{Expr, LoopKind};
use crate::sym::Dim;
use crate::tensor::ElemType;

/// The operator.
#[derive(Clone, Debug, PartialEq)]
pub struct DeformConv {
    window: Window,
    group: i64,
    offset_group: i64,
}

impl Operator for DeformConv {
    const OPS: &'static [&'static str] = &["DeformConv"];
    fn parse(a: &mut Attrs) -> Result<Self> {
        let window = Window::parse(a)?;
        let (group, offset_group) = (a.int("group", 1), a.int("offset_group", 1));
        a.require(
            group >= 1 && offset_group >= 1,
            "attributes \"group\" and \"offset_group\" must be positive",
        )?;
        Ok(DeformConv { window: Window { auto: Auto::NotSet, ..window }, group, offset_group })
    }
    fn infer(&self, cx: &mut InferCx) -> Result<()> {
        let (x, w, offset) = (cx.tensor(0).clone(), cx.tensor(1).clone(), cx.tensor(2).clone());
        cx.require(
            x.rank() >= 3 && w.rank() == x.rank() && offset.rank() == x.rank(),
            codes::OP_SHAPE,
            "the input must have batch, channel and spatial dimensions, weights and offset as many",
        )?;
        let Some(kernel) =
            w.dims[2..].iter().map(|d| d.as_const().filter(|k| *k > 0)).collect::<Option<Vec<_>>>()
        else {
            return cx.error(codes::DYNAMIC_VALUE, "the kernel's size must be known at compile time").fail();
        };
        cx.require(
            self.window.kernel.as_ref().is_none_or(|k| *k == kernel),
            codes::OP_ATTRIBUTE,
            "attribute \"kernel_shape\" contradicts the weights",
        )?;
        let axes = self.window.axes(&kernel, &x.dims[2..]).map_err(|m| cx.error(codes::OP_ATTRIBUTE, m))?;
        let zero = Dim::constant(0);
        cx.require_eq(
            w.dims[1] * self.group,
            x.dims[1],
            "the weights do not fit the input's channels and the groups",
        );
        cx.require_eq(
            w.dims[0].modulo(self.group),
            zero,
            "the output channels do not divide into the groups",
        );
        cx.require_eq(
            x.dims[1].modulo(self.offset_group),
            zero,
            "the channels do not divide into the offset groups",
        );
        let elements = Dim::product(kernel.iter().map(|k| Dim::constant(*k))) * self.offset_group;
        cx.require_eq(
            offset.dims[1],
            elements * kernel.len() as i64,
            "the offset does not have one value for each kernel element and dimension",
        );
        let mut dims = vec![x.dims[0], w.dims[0]];
        for (a, d) in axes.iter().zip(&x.dims[2..]) {
            let size = cx.syms.simplify((*d + a.before + a.after - a.extent()).floor_div(a.stride) + 1);
            cx.require(
                size.as_const().is_none_or(|d| d >= 0),
                codes::OP_SHAPE,
                "the kernel is larger than the padded input",
            )?;
            cx.syms.require_at_most(zero, size);
            dims.push(size);
        }
        let mut like = vec![(&offset, "offset")];
        let mask = cx.tensor_opt(4).cloned();
        if let Some(m) = &mask {
            cx.require(
                m.rank() == x.rank(),
                codes::OP_SHAPE,
                "the mask must have as many dimensions as the input",
            )?;
            cx.require_eq(m.dims[1], elements, "the mask does not have one value for each kernel element");
            like.push((m, "mask"));
        }
        for (t, what) in like {
            cx.require_eq(t.dims[0], x.dims[0], &format!("the batch of the {what} does not fit"));
            for (a, b) in t.dims[2..].iter().zip(&dims[2..]) {
                cx.require_eq(*a, *b, &format!("the {what} does not fit the result"));
            }
        }
        if let Some(b) = cx.tensor_opt(3) {
            if b.rank() != 1 {
                return cx
                    .error(codes::OP_SHAPE, "the bias must have one dimension")
                    .found_expected(format!("rank {}", b.rank()), "rank 1")
                    .fail();
            }
            cx.require_eq(b.count(), w.dims[0], "the bias does not fit the output channels");
        }
        cx.set(0, x.elem, dims);
        Ok(())
    }
    fn lower(&self, cx: &mut LowerCx) -> Result<()> {
        let (x, w, offset, y) = (cx.input(0), cx.input(1), cx.input(2), cx.output(0));
        let (bias, mask) = (cx.input_opt(3), cx.input_opt(4));
        let (dx, dw, dy) = (cx.dims(x), cx.dims(w), cx.dims(y));
        let ty = cx.elem(x).compute();
        let kernel: Vec<i64> = dw[2..].iter().filter_map(|d| d.as_const()).collect();
        let n = kernel.len();
        let Ok(axes) = self.window.axes(&kernel, &dx[2..]) else { return cx.bug("the geometry changed") };
        let volume: i64 = kernel.iter().product();
        let per_offset = dx[1].floor_div(self.offset_group);
        let sampling = Sampling { mode: Mode::Linear, padding: Padding::Zeros, align_corners: true };
        // Shape [batch, channel, kernel .., result ..].
        let shape: Vec<Dim> = dx[..2].iter().chain(&dw[2..]).chain(&dy[2..]).copied().collect();
        let columns = cx.temp("columns", ty, shape);
        cx.map(columns, |k, at| {
            let (ks, os) = (&at[2..2 + n], &at[2 + n..]);
            let group = if self.offset_group == 1 { Dim::constant(0) } else { at[1].floor_div(per_offset) };
            let element =
                group * volume + ks.iter().zip(&kernel).fold(Dim::constant(0), |flat, (i, n)| flat * *n + *i);
            let place = |channel: Dim| -> Vec<Dim> { [at[0], channel].iter().chain(os).copied().collect() };
            let coords: Vec<Expr> = (0..n)
                .map(|i| {
                    Expr::cast(ElemType::I64, ty, Expr::index(origin(&axes[i], os[i], ks[i])))
                        + k.load(offset, &place(element * n as i64 + i as i64))
                })
                .collect();
            let v = sampling.at(k, x, &at[..2], coords, ty);
            match mask {
                Some(m) => v * k.load(m, &place(element)),
                None => v,
            }
        });
        let per_group = dy[1].floor_div(self.group);
        let mut out = vec![dy[0], Dim::constant(self.group), per_group];
        out.extend_from_slice(&dy[2..]);
        cx.kernel(|k| {
            k.nest(LoopKind::Par, &out, |k, o| {
                let channel = o[1] * per_group + o[2];
                let acc = k.acc(Expr::num(ty, 0.0));
                k.nest(LoopKind::Seq, &dw[1..], |k, r| {
                    let from: Vec<Dim> =
                        [o[0], o[1] * dw[1] + r[0]].iter().chain(&r[1..]).chain(&o[3..]).copied().collect();
                    let weight: Vec<Dim> = std::iter::once(channel).chain(r.iter().copied()).collect();
                    let (a, b) = (k.load(columns, &from), k.load(w, &weight));
                    k.set(acc, product_sum(ty, a, b, Expr::acc(acc)));
                });
                let v = with_bias(k, Expr::acc(acc), bias, channel);
                let to: Vec<Dim> = [o[0], channel].iter().chain(&o[3..]).copied().collect();
                k.store(y, &to, v);
            });
        });
        Ok(())
    }
}

/// The position of kernel element `k` of output `o` before displacement.
fn origin(a: &Axis, o: Dim, k: Dim) -> Dim {
    o * a.stride + k * a.dilation - a.before
}
