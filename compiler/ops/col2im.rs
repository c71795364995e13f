//! Col2Im: adds up columns of sliding blocks to an image, the inverse of unfolding.
//!
//! Spec: <https://onnx.ai/onnx/operators/onnx__Col2Im.html>. One version, 18. Each element of the image
//! gathers from the blocks that cover it.

use super::support::runtime;
use super::{Attrs, InferCx, LowerCx, Operator};
use crate::diag::{Result, codes};
use crate::nest::{BinOp, Expr, KernelBuilder, LoopKind};
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
        let blocks = Dim::product((0..n).map(|i| self.blocks(i, n, image[i], block[i])));
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
