//! DeformConv: a convolution whose kernel elements are displaced individually.
//!
//! Spec: <https://onnx.ai/onnx/operators/onnx__DeformConv.html>. Version 22 adds bfloat16. The displaced
//! elements are first gathered, interpolated and masked; the rest is a convolution over them.

use super::conv::{Auto, Axis, Window, with_bias};
use super::matmul::product_sum;
use super::{Attrs, InferCx, LowerCx, Operator};
use crate::diag::{Result, codes};
use crate::nest::{BinOp, Buf, Expr, KernelBuilder, LoopKind, UnOp};
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
        let bias = cx.input_opt(3);
        let (dx, dw, dy) = (cx.dims(x), cx.dims(w), cx.dims(y));
        let ty = cx.elem(x).compute();
        let kernel: Vec<i64> = dw[2..].iter().filter_map(|d| d.as_const()).collect();
        let Ok(axes) = self.window.axes(&kernel, &dx[2..]) else { return cx.bug("the geometry changed") };
        let of = Displaced { x, offset, mask: cx.input_opt(4), kernel: &kernel, axes: &axes };
        let columns = of.columns(cx, self.offset_group);
        let per_group = dy[1].floor_div(self.group);
        let mut out = vec![dy[0], Dim::constant(self.group), per_group];
        out.extend_from_slice(&dy[2..]);
        cx.kernel(|k| {
            k.nest(LoopKind::Par, &out, |k, o| {
                let channel = o[1] * per_group + o[2];
                let acc = k.acc(Expr::num(ty, 0.0));
                let depth: Vec<Dim> = dw[2..].iter().chain([&dw[1]]).copied().collect();
                k.nest(LoopKind::Seq, &depth, |k, r| {
                    let (element, c) = r.split_at(kernel.len());
                    let from = [&o[..1], &o[3..], element, &[o[1] * dw[1] + c[0]]].concat();
                    let weight = [&[channel], c, element].concat();
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

/// The elements under a displaced kernel.
struct Displaced<'a> {
    x: Buf,
    offset: Buf,
    mask: Option<Buf>,
    kernel: &'a [i64],
    axes: &'a [Axis],
}

/// Tables for one of the elements around a coordinate: its number in the image, and its weight.
struct Tap {
    index: Buf,
    weight: Buf,
}

impl Displaced<'_> {
    /// The interpolated elements, `[batch][result ..][kernel ..][channel]`: all channels of a group have the
    /// same coordinates.
    fn columns(&self, cx: &mut LowerCx, groups: i64) -> Buf {
        let (dx, ty) = (cx.dims(self.x), cx.elem(self.x).compute());
        let (image, pixels) = self.pixels(cx);
        let places = self.places(cx, groups);
        let taps = self.taps(cx, &places, pixels);
        let per = dx[1].floor_div(groups);
        let shape: Vec<Dim> = places[..places.len() - 1].iter().chain([&dx[1]]).copied().collect();
        let columns = cx.temp("columns", ty, shape);
        let zero = Expr::num(ty, 0.0);
        cx.kernel(|k| {
            k.nest(LoopKind::Par, &places, |k, at| {
                let entry = self.entry(at);
                let weights: Vec<Expr> = taps
                    .iter()
                    .map(|t| {
                        let w = k.load(t.weight, &entry);
                        k.let_(w)
                    })
                    .collect();
                let mask = self.mask.map(|m| {
                    let v = k.load(m, &self.channel(at, 1, 0));
                    k.let_(v)
                });
                at_taps(k, (&taps, pixels), &entry, &mut vec![], &mut |k, found| {
                    k.range(LoopKind::Seq, "c", 0, per, |k, c| {
                        let channel = at[at.len() - 1] * per + c;
                        let sum = found.iter().zip(&weights).fold(zero.clone(), |sum, (i, w)| {
                            Expr::fma(k.load(image, &[at[0], *i, channel]), w.clone(), sum)
                        });
                        let v = mask.iter().fold(sum, |v, m| v * m.clone());
                        k.store(columns, &[&at[..at.len() - 1], &[channel]].concat(), v);
                    });
                });
            });
        });
        columns
    }
    /// The image with channels innermost and zeros behind the last pixel, and the number of all these pixels.
    fn pixels(&self, cx: &mut LowerCx) -> (Buf, Dim) {
        let (dx, ty) = (cx.dims(self.x), cx.elem(self.x).compute());
        let inside = Dim::product(dx[2..].iter().copied());
        let flat = cx.m.view(self.x, [dx[0], dx[1], inside]);
        let image = cx.temp("pixels", ty, vec![dx[0], inside + 1, dx[1]]);
        cx.map(image, |k, at| {
            let v = k.load(flat, &[at[0], at[2], at[1]]);
            Expr::select(Expr::cmp_index(BinOp::Lt, at[1], inside), v, Expr::num(ty, 0.0))
        });
        (image, inside + 1)
    }
    /// The loops over coordinates: batch, result, kernel, group.
    fn places(&self, cx: &LowerCx, groups: i64) -> Vec<Dim> {
        let offset = cx.dims(self.offset);
        let kernel = self.kernel.iter().map(|n| Dim::constant(*n));
        let inner = kernel.chain([Dim::constant(groups)]);
        offset[..1].iter().chain(&offset[2..]).copied().chain(inner).collect()
    }
    /// The subscripts of a coordinate in tables: batch, group, kernel, result. Like the offset, tables have
    /// rows of results, along which they are computed.
    fn entry(&self, at: &[Dim]) -> Vec<Dim> {
        let n = self.kernel.len();
        [&[at[0], at[1 + 2 * n]], &at[1 + n..1 + 2 * n], &at[1..1 + n]].concat()
    }
    /// The subscripts of channel `i` of `count` of a kernel element, in the offset and the mask.
    fn channel(&self, at: &[Dim], count: i64, i: i64) -> Vec<Dim> {
        let n = self.kernel.len();
        let (outs, ks, group) = (&at[1..1 + n], &at[1 + n..1 + 2 * n], at[1 + 2 * n]);
        let element = ks.iter().zip(self.kernel).fold(group, |flat, (i, n)| flat * *n + *i);
        [&[at[0], element * count + i], outs].concat()
    }
    /// Number and weight of the elements around each coordinate. Those outside are the zeros behind the
    /// image.
    fn taps(&self, cx: &mut LowerCx, places: &[Dim], pixels: Dim) -> Vec<Tap> {
        let (dx, ty) = (cx.dims(self.x), cx.elem(self.x).compute());
        let n = self.kernel.len();
        let word = match cx.m.syms.range(pixels).hi {
            Some(..=SHORT) if ty == ElemType::F32 => ElemType::I32,
            _ => ElemType::I64,
        };
        let entries = self.entry(places);
        let taps: Vec<Tap> = (0..1 << n)
            .map(|_| Tap {
                index: cx.temp("index", word, entries.clone()),
                weight: cx.temp("weight", ty, entries.clone()),
            })
            .collect();
        let int = |d: Dim| match d.as_const() {
            Some(d) => Expr::int(word, d),
            None => Expr::cast(ElemType::I64, word, Expr::index(d)),
        };
        cx.kernel(|k| {
            k.nest(LoopKind::Par, &entries, |k, entry| {
                let at = [&entry[..1], &entry[2 + n..], &entry[2..2 + n], &entry[1..2]].concat();
                let axes: Vec<[Near; 2]> =
                    (0..n).map(|i| self.around(k, &at, i, (dx[2 + i], ty, word))).collect();
                for (number, tap) in taps.iter().enumerate() {
                    let near = axes.iter().enumerate().map(|(i, sides)| &sides[number >> (n - 1 - i) & 1]);
                    let mut all = Near { inside: Expr::bool(true), index: int(0.into()), weight: None };
                    for (next, size) in near.zip(&dx[2..]) {
                        all.inside = all.inside.and(next.inside.clone());
                        all.index = all.index * int(*size) + next.index.clone();
                        all.weight = all.weight.into_iter().chain(next.weight.clone()).reduce(|a, b| a * b);
                    }
                    k.store(tap.index, entry, Expr::select(all.inside, all.index, int(pixels - 1)));
                    k.store(tap.weight, entry, all.weight.unwrap_or(Expr::num(ty, 1.0)));
                }
            });
        });
        taps
    }
    /// The two elements around a coordinate along axis `i`.
    fn around(
        &self,
        k: &mut KernelBuilder,
        at: &[Dim],
        i: usize,
        (size, ty, word): (Dim, ElemType, ElemType),
    ) -> [Near; 2] {
        let n = self.kernel.len();
        let from = origin(&self.axes[i], at[1 + i], at[1 + n + i]);
        let moved = k.load(self.offset, &self.channel(at, n as i64, i as i64));
        let c = k.let_(Expr::cast(ElemType::I64, ty, Expr::index(from)) + moved);
        let base = k.let_(Expr::un(UnOp::Floor, c.clone()));
        let far = k.let_(c - base.clone());
        let weights = [Expr::num(ty, 1.0) - far.clone(), far];
        let last = Expr::cast(ElemType::I64, ty, Expr::index(size - 1));
        let mut side = 0.0;
        weights.map(|w| {
            let p = k.let_(base.clone() + Expr::num(ty, side));
            side += 1.0;
            let zero = Expr::num(ty, 0.0);
            let inside = Expr::bin(BinOp::Ge, p.clone(), zero.clone()).and(Expr::bin(
                BinOp::Le,
                p.clone(),
                last.clone(),
            ));
            // The last position may not be exact in floats.
            let index = Expr::cast(ty, word, p.max(zero).min(last.clone()));
            let index = index.min(match size.as_const() {
                Some(n) => Expr::int(word, n - 1),
                None => Expr::cast(ElemType::I64, word, Expr::index(size - 1)),
            });
            let (inside, index) = (k.let_(inside), k.let_(index));
            // An infinite coordinate has no fraction: its weights would be NaN, also times the zero outside.
            let w = k.let_(Expr::select(inside.clone(), w, Expr::num(ty, 0.0)));
            Near { inside, index, weight: Some(w) }
        })
    }
}

/// Largest number of pixels that f32 counts.
const SHORT: i64 = 1 << 24;

/// An element beside a coordinate.
struct Near {
    inside: Expr,
    index: Expr,
    weight: Option<Expr>,
}

/// Binds the numbers of all taps as indices, nested in each other.
fn at_taps(
    k: &mut KernelBuilder,
    (taps, pixels): (&[Tap], Dim),
    entry: &[Dim],
    found: &mut Vec<Dim>,
    body: &mut dyn FnMut(&mut KernelBuilder, &[Dim]),
) {
    let Some((tap, rest)) = taps.split_first() else { return body(k, found) };
    let i = k.load(tap.index, entry);
    let i = Expr::cast(k.m.type_of(&i), ElemType::I64, i);
    k.at_index(i, pixels, |k, i| {
        found.push(i);
        at_taps(k, (rest, pixels), entry, found, body);
        found.pop();
    });
}

/// The position of kernel element `k` of output `o` before displacement.
fn origin(a: &Axis, o: Dim, k: Dim) -> Dim {
    o * a.stride + k * a.dilation - a.before
}
