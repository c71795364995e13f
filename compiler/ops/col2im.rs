//! Col2Im: adds up columns of sliding blocks to an image, the inverse of unfolding.
//!
//! Spec: <https://onnx.ai/onnx/operators/onnx__Col2Im.html>. One version, 18. Each element of the image
//! gathers from the blocks that cover it.

use super::support::runtime;
use super::{Attrs, InferCx, LowerCx, Operator};
use crate::diag::{Result, codes};
use crate::nest::{BinOp, Buf, Expr, KernelBuilder, LoopKind};
use crate::sym::Dim;
use crate::tensor::ElemType;

/// The operator.
#[derive(Clone, Debug, PartialEq)]
pub struct Col2Im {
    dilations: Option<Vec<i64>>,
    pads: Option<Vec<i64>>,
    strides: Option<Vec<i64>>,
}

impl Operator for Col2Im {
    const OPS: &'static [&'static str] = &["Col2Im"];
    fn parse(a: &mut Attrs) -> Result<Self> {
        let list = |a: &mut Attrs, name: &str, least: i64| -> Result<Option<Vec<i64>>> {
            let v = a.ints_opt(name);
            match v.as_ref().and_then(|v| v.iter().find(|x| **x < least || **x > 1 << 30)) {
                Some(x) => a
                    .error(format!("attribute \"{name}\" has the value {x}"))
                    .row("expected", format!("{least} or more"))
                    .fail(),
                None => Ok(v),
            }
        };
        Ok(Col2Im {
            dilations: list(a, "dilations", 1)?,
            pads: list(a, "pads", 0)?,
            strides: list(a, "strides", 1)?,
        })
    }
    fn infer(&self, cx: &mut InferCx) -> Result<()> {
        let x = cx.tensor(0).clone();
        let (Some(n), Some(blocks)) = (runtime::length(cx, 1), runtime::length(cx, 2)) else {
            return cx
                .error(codes::OP_SHAPE, "the lengths of image_shape and block_shape must be known")
                .fail();
        };
        cx.require(
            n == blocks && n != 0 && x.rank() == 3,
            codes::OP_SHAPE,
            "the input must have rank 3, and image_shape and block_shape \
                as many values as the image dimensions",
        )?;
        for (name, v, want) in
            [("dilations", &self.dilations, n), ("pads", &self.pads, 2 * n), ("strides", &self.strides, n)]
        {
            if v.as_ref().is_some_and(|v| v.len() != want) {
                return cx
                    .error(codes::OP_ATTRIBUTE, format!("attribute \"{name}\" must have {want} values"))
                    .fail();
            }
        }
        let (image, block) = (cx.dims_value(1), cx.ints_value(2));
        let (image, block) = match (image, block) {
            (Some(i), Some(b)) => (i, b),
            (image, block) => {
                let size = block.and_then(|b| volume(&b));
                let channels = match size {
                    Some(s) => x.dims[1].floor_div(s),
                    None => {
                        let d = cx.size(0, 1, n + 2);
                        cx.bound(&[d], x.dims[1]);
                        d
                    }
                };
                let image = image.unwrap_or_else(|| (0..n).map(|i| cx.size(0, 2 + i, n + 2)).collect());
                let dims: Vec<Dim> = [x.dims[0], channels].into_iter().chain(image).collect();
                cx.set(0, x.elem, dims);
                return Ok(());
            }
        };
        let Some(size) = volume(&block) else {
            return cx.error(codes::OP_SHAPE, format!("block_shape is {block:?}")).fail();
        };
        cx.require_eq(
            x.dims[1].modulo(size),
            Dim::constant(0),
            "the second dimension is not a multiple of the block's size",
        );
        let counts = self.counts(cx, &image, &block)?;
        let blocks = Dim::product(counts);
        cx.require_eq(x.dims[2], blocks, "the third dimension is not the number of blocks");
        for d in &image {
            cx.syms.require_at_most(Dim::constant(0), *d);
        }
        let dims: Vec<Dim> = [x.dims[0], x.dims[1].floor_div(size)].into_iter().chain(image).collect();
        cx.set(0, x.elem, dims);
        Ok(())
    }
    fn lower(&self, cx: &mut LowerCx) -> Result<()> {
        let (x, y) = (cx.input(0), cx.output(0));
        let (dims, out) = (cx.dims(x), cx.dims(y));
        let n = out.len() - 2;
        let ty = cx.elem(x).compute();
        let (image, block) = (cx.input(1), cx.input(2));
        let sizes = cx.ints_value(2);
        let known = cx.dims_value(1).is_some() && sizes.is_some();
        if !known {
            // Known values are checked here as well: they may conflict with unknown ones.
            cx.define_all(&out[1..], |k| {
                let image = runtime::sizes(k, image);
                let block = runtime::values(k, block);
                for b in &block {
                    runtime::check(
                        k,
                        runtime::le(runtime::int(1), b.clone())
                            .and(runtime::le(b.clone(), runtime::int(1 << 30))),
                    );
                }
                let volume = block.iter().cloned().reduce(|a, b| a * b).unwrap_or(runtime::int(1));
                let channels = k.let_(Expr::index(dims[1]) / volume.max(runtime::int(1)));
                let all: Vec<Expr> = block.into_iter().chain([channels.clone()]).collect();
                runtime::check_total(k, &all, dims[1]);
                std::iter::once(channels).chain(image).collect()
            });
        }
        if let (true, Some(sizes)) = (known, &sizes) {
            self.sum_taps(cx, sizes);
            return Ok(());
        }
        cx.kernel(|k| {
            let block: Vec<Expr> = match &sizes {
                Some(v) => v.iter().map(|v| runtime::int(*v)).collect(),
                None => runtime::values(k, block),
            };
            let mut counts = vec![];
            for (i, b) in block.iter().enumerate() {
                let room = Expr::index(out[2 + i] + self.pads(i) + self.pads(n + i) - 1)
                    - (b.clone() - runtime::int(1)) * runtime::int(self.dilation(i));
                let count = k.let_(room / runtime::int(self.stride(i)) + runtime::int(1));
                counts.push(count);
            }
            if !known {
                let total = counts.iter().cloned().reduce(|a, b| a * b).unwrap_or(runtime::int(1));
                runtime::check(k, runtime::eq(total, Expr::index(dims[2])));
            }
            let per = dims[1].floor_div(out[1].max(1));
            k.nest(LoopKind::Par, &out, |k, at| {
                let acc = k.acc(Expr::num(ty, 0.0));
                k.nest(LoopKind::Seq, &[per], |k, r| {
                    let row = at[1] * per + r[0];
                    let v = self.covering(k, &block, &counts, r[0], &at[2..], |k, column| {
                        k.with_index(Expr::index(row), dims[1], |k, row| {
                            k.with_index(column, dims[2], |k, c| k.load(x, &[at[0], row, c]))
                        })
                    });
                    let v = k.let_(v);
                    let sum = if ty == ElemType::Bool {
                        Expr::bin(BinOp::Or, Expr::acc(acc), v)
                    } else {
                        Expr::acc(acc) + v
                    };
                    k.set(acc, sum);
                });
                k.store(y, at, Expr::acc(acc));
            });
        });
        Ok(())
    }
}

/// Elements of a block, if it has any.
fn volume(block: &[i64]) -> Option<i64> {
    block.iter().try_fold(1i64, |s, b| (*b > 0).then(|| s.checked_mul(*b)).flatten())
}

impl Col2Im {
    fn dilation(&self, i: usize) -> i64 {
        self.dilations.as_ref().map_or(1, |v| v[i])
    }
    fn stride(&self, i: usize) -> i64 {
        self.strides.as_ref().map_or(1, |v| v[i])
    }
    fn pads(&self, i: usize) -> i64 {
        self.pads.as_ref().map_or(0, |v| v[i])
    }
    /// Numbers of blocks, which must not be negative.
    fn counts(&self, cx: &mut InferCx, image: &[Dim], block: &[i64]) -> Result<Vec<Dim>> {
        let n = block.len();
        let counts: Vec<Dim> = (0..n).map(|i| self.blocks(i, n, image[i], block[i])).collect();
        cx.require(
            counts.iter().all(|c| c.as_const().is_none_or(|c| c >= 0)),
            codes::OP_SHAPE,
            "the block is larger than the padded image",
        )?;
        counts.iter().for_each(|c| cx.syms.require_at_most(Dim::constant(0), *c));
        Ok(counts)
    }
    /// Number of blocks along dimension `i` of `n`.
    fn blocks(&self, i: usize, n: usize, image: Dim, block: i64) -> Dim {
        (image + self.pads(i) + self.pads(n + i) - self.dilation(i) * (block - 1) - 1)
            .floor_div(self.stride(i))
            + 1
    }
    /// `load` of the column of the block whose element `r` is at image position `at`, or 0 if there is none.
    fn covering(
        &self,
        k: &mut KernelBuilder,
        block: &[Expr],
        counts: &[Expr],
        r: Dim,
        at: &[Dim],
        load: impl FnOnce(&mut KernelBuilder, Expr) -> Expr,
    ) -> Expr {
        let int = runtime::int;
        let mut rest = Expr::index(r);
        let mut inside = Expr::bool(true);
        let mut columns = vec![];
        for i in (0..block.len()).rev() {
            let offset =
                if i == 0 { rest.clone() } else { Expr::bin(BinOp::Rem, rest.clone(), block[i].clone()) };
            rest = k.let_(rest / block[i].clone());
            let p = k.let_(Expr::index(at[i] + self.pads(i)) - offset * int(self.dilation(i)));
            let q = k.let_(p.clone() / int(self.stride(i)));
            inside = inside
                .and(Expr::bin(BinOp::Ge, p.clone(), int(0)))
                .and(runtime::eq(q.clone() * int(self.stride(i)), p))
                .and(Expr::bin(BinOp::Lt, q.clone(), counts[i].clone()));
            columns.push((q, counts[i].clone()));
        }
        let column = columns.into_iter().rev().fold(int(0), |flat, (q, n)| flat * n + q);
        let v = load(k, column);
        let ty = k.m.type_of(&v);
        Expr::select(inside, v, Expr::num(ty, 0.0))
    }
}

/// The blocks that cover elements of the image, along one dimension.
///
/// With a stride, element `o` is element `phase` of stride `q`, and only every stride-th element of a block
/// can be there. Strides begin at the first block.
struct Covering {
    /// Number of steps, each for at most one block.
    steps: i64,
    /// Size of a block.
    taps: i64,
    stride: i64,
    dilation: i64,
    before: i64,
    /// Number of blocks.
    blocks: Dim,
    /// Elements of a stride: 1 if elements are visited one by one.
    phases: i64,
    /// Strides, or elements.
    size: Dim,
}

impl Covering {
    /// The element in the block and the block of step `j`, and the condition under which they exist.
    fn step(&self, k: &KernelBuilder, (phase, q, j): (Dim, Dim, Dim)) -> (Dim, Dim, Option<Expr>) {
        let mut all = vec![];
        let (tap, block) = if self.phases > 1 {
            let tap = phase + j * self.stride;
            if self.steps * self.stride > self.taps {
                all.push(Expr::cmp_index(BinOp::Lt, tap, self.taps));
            }
            (tap, q - j)
        } else {
            let from = q + self.before - j * self.dilation;
            if self.stride > 1 {
                all.push(Expr::cmp_index(BinOp::Eq, from.modulo(self.stride), 0));
            }
            (j, from.floor_div(self.stride))
        };
        if !k.m.syms.is_nonneg(block) {
            all.push(Expr::cmp_index(BinOp::Ge, block, 0));
        }
        if !k.m.syms.is_nonneg(self.blocks - 1 - block) {
            all.push(Expr::cmp_index(BinOp::Lt, block, self.blocks));
        }
        (tap, block, all.into_iter().reduce(Expr::and))
    }
    /// Phase and stride of an element of the image.
    fn place(&self, o: Dim) -> (Dim, Dim) {
        match self.phases {
            1 => (Dim::constant(0), o),
            s => ((o + self.before).modulo(s), (o + self.before).floor_div(s)),
        }
    }
}

impl Col2Im {
    /// Adds up the elements of the blocks at each element of the image, for blocks of known size. The phases
    /// of strides are computed one after the other, so that vectors run along blocks, and then interleaved.
    fn sum_taps(&self, cx: &mut LowerCx, block: &[i64]) {
        let y = cx.output(0);
        let out = cx.dims(y);
        let n = block.len();
        let axes: Vec<Covering> = (0..n).map(|i| self.along(i, n, out[2 + i], block[i])).collect();
        if axes.iter().all(|a| a.phases == 1) {
            return sums(cx, &axes, y);
        }
        let phases = axes.iter().map(|a| Dim::constant(a.phases));
        let shape: Vec<Dim> =
            out[..2].iter().copied().chain(phases).chain(axes.iter().map(|a| a.size)).collect();
        let apart = cx.temp("phases", cx.elem(y).compute(), shape);
        sums(cx, &axes, apart);
        cx.map(y, |k, at| {
            let (phases, strides): (Vec<Dim>, Vec<Dim>) =
                axes.iter().zip(&at[2..]).map(|(a, o)| a.place(*o)).unzip();
            k.load(apart, &[&at[..2], &phases, &strides].concat())
        });
    }
    fn along(&self, i: usize, n: usize, image: Dim, taps: i64) -> Covering {
        let (stride, dilation, before) = (self.stride(i), self.dilation(i), self.pads(i));
        let blocks = self.blocks(i, n, image, taps);
        let (phases, steps, size) = match stride > 1 && dilation == 1 {
            true => (stride, (taps + stride - 1) / stride, (image + before - 1).floor_div(stride) + 1),
            false => (1, taps, image),
        };
        Covering { steps, taps, stride, dilation, before, blocks, phases, size }
    }
}

/// Stores the sums of the blocks, by phase and stride, or by element where no dimension has phases.
fn sums(cx: &mut LowerCx, axes: &[Covering], to: Buf) {
    let (x, n) = (cx.input(0), axes.len());
    let (dims, shape, ty) = (cx.dims(x), cx.dims(to), cx.elem(x).compute());
    let places: Vec<Dim> = axes.iter().map(|a| a.blocks).collect();
    let columns = cx.m.view(x, [&dims[..2], &places].concat());
    let steps: Vec<Dim> = axes.iter().map(|a| Dim::constant(a.steps)).collect();
    let add = if ty == ElemType::Bool { BinOp::Or } else { BinOp::Add };
    cx.kernel(|k| {
        k.nest(LoopKind::Par, &shape, |k, at| {
            let acc = k.acc(Expr::num(ty, 0.0));
            k.nest(LoopKind::Seq, &steps, |k, js| {
                let (mut row, mut from, mut inside) = (at[1], vec![], None);
                let (phases, strides) = (&at[2..], &at[at.len() - n..]);
                for (i, a) in axes.iter().enumerate() {
                    let (tap, block, exists) = a.step(k, (phases[i], strides[i], js[i]));
                    row = row * a.taps + tap;
                    from.push(block);
                    inside = inside.into_iter().chain(exists).reduce(Expr::and);
                }
                let v = k.load(columns, &[&[at[0], row], &from[..]].concat());
                let v = match inside {
                    Some(c) => Expr::select(c, v, Expr::num(ty, 0.0)),
                    None => v,
                };
                k.update(add, acc, v);
            });
            k.store(to, at, Expr::acc(acc));
        });
    });
}
