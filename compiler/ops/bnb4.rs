//! MatMulBnb4 of com.microsoft: a product with bitsandbytes weights, which are 4-bit indices into a table of
//! 16 floats.
//!
//! Spec:
//! <https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md#com.microsoft.MatMulBnb4>.
//! One version. B holds the elements of an [N, K] matrix consecutively, with the first of two in the high
//! bits of a byte. Each block of them has a scale, and a block may continue in the next row. If `transB` is
//! 0, the matrix is not transposed: the input has depth N.
//!
//! The dequantized weights are a separate map, as in `nbits`.

use super::matmul::product_sum;
use super::{Attrs, InferCx, LowerCx, Operator};
use crate::diag::{Result, codes};
use crate::nest::{Expr, LoopKind};
use crate::ops::support::bits::Fields;
use crate::sym::Dim;
use crate::tensor::{ConstData, ElemType};
use std::sync::Arc;

/// Signed 4-bit floats.
const FP4: [f32; 16] = [
    0.0,
    5.208_333_3e-3,
    0.666_666_7,
    1.0,
    0.333_333_34,
    0.5,
    0.166_666_67,
    0.25,
    -0.0,
    -5.208_333_3e-3,
    -0.666_666_7,
    -1.0,
    -0.333_333_34,
    -0.5,
    -0.166_666_67,
    -0.25,
];
/// Quantiles of the normal distribution.
const NF4: [f32; 16] = [
    -1.0,
    -0.696_192_8,
    -0.525_073_05,
    -0.394_917_5,
    -0.284_441_38,
    -0.184_773_43,
    -0.091_050_036,
    0.0,
    0.079_580_3,
    0.160_930_2,
    0.246_112_3,
    0.337_915_24,
    0.440_709_83,
    0.562_617,
    0.722_956_84,
    1.0,
];

/// Sizes and the table.
#[derive(Clone, Debug, PartialEq)]
pub struct Bnb4 {
    /// Rows and columns of the [N, K] matrix.
    rows: i64,
    columns: i64,
    block: i64,
    normal: bool,
    transposed: bool,
}

impl Operator for Bnb4 {
    const OPS: &'static [&'static str] = &["com.microsoft:MatMulBnb4"];
    fn parse(a: &mut Attrs) -> Result<Self> {
        // Has no effect on the result.
        a.ignore("training_mode");
        let kind = a.int_required("quant_type");
        let b = Bnb4 {
            rows: a.int_required("N"),
            columns: a.int_required("K"),
            block: a.int_required("block_size"),
            normal: kind == 1,
            transposed: a.flag("transB", true),
        };
        let small = |v: i64| (1..=1 << 28).contains(&v);
        a.require(
            small(b.rows) && small(b.columns),
            "attributes \"K\" and \"N\" must be positive, below 2^28",
        )?;
        a.expect("quant_type", kind, matches!(kind, 0 | 1), "0 (FP4) or 1 (NF4)");
        let fits = (16..=1 << 28).contains(&b.block) && b.block & (b.block - 1) == 0;
        a.expect("block_size", b.block, fits, "a power of two, 16 or more");
        Ok(b)
    }
    fn infer(&self, cx: &mut InferCx) -> Result<()> {
        let a = cx.tensor(0).clone();
        let Some((depth, batch)) = a.dims.split_last() else {
            return cx.error(codes::OP_SHAPE, "the input must have the depth as its last dimension").fail();
        };
        let (want, columns) =
            if self.transposed { (self.columns, self.rows) } else { (self.rows, self.columns) };
        cx.require_eq(*depth, want.into(), "the last dimension must be K, or N where transB is 0");
        let count = self.rows * self.columns;
        let (bytes, blocks) = (cx.tensor(1).count(), cx.tensor(2).count());
        cx.require_eq(bytes, Dim::constant((count + 1) / 2), "the weights must have a byte for two elements");
        cx.require_eq(
            blocks,
            Dim::constant((count + self.block - 1) / self.block),
            "absmax must have a value for each block",
        );
        let mut dims = batch.to_vec();
        dims.push(columns.into());
        cx.set(0, a.elem, dims);
        Ok(())
    }
    fn lower(&self, cx: &mut LowerCx) -> Result<()> {
        let (a, b, most, y) = (cx.input(0), cx.input(1), cx.input(2), cx.output(0));
        let (depth, columns) =
            if self.transposed { (self.columns, self.rows) } else { (self.rows, self.columns) };
        let (ty, elem) = (ElemType::F32, cx.elem(most).compute());
        let bytes = cx.m.view(b, vec![Dim::constant((self.rows * self.columns + 1) / 2)]);
        let factors =
            cx.m.view(most, vec![Dim::constant((self.rows * self.columns + self.block - 1) / self.block)]);
        let table = Arc::new(ConstData::f32s(vec![16], if self.normal { &NF4 } else { &FP4 }));
        let table = cx.m.constant("values", table);
        let places = Fields::new(cx, bytes, 4);
        let weights = cx.temp("weights", ty, vec![Dim::constant(depth), Dim::constant(columns)]);
        cx.map(weights, |k, at| {
            let i = if self.transposed { at[1] * self.columns + at[0] } else { at[0] * self.columns + at[1] };
            // The first element is in the high bits.
            let place = places.load(k, &[i.floor_div(2) * 2 + 1 - i.modulo(2)]);
            let place = Expr::cast(ElemType::U8, ElemType::I64, place);
            let v = k.with_index(place, Dim::constant(16), |k, p| k.load(table, &[p]));
            v * Expr::cast(elem, ty, k.load(factors, &[i.floor_div(self.block)]))
        });
        let out = cx.dims(y);
        cx.kernel(|k| {
            k.nest(LoopKind::Par, &out, |k, at| {
                let Some((n, row)) = at.split_last() else { return };
                let acc = k.acc(Expr::f32(0.0));
                k.nest(LoopKind::Seq, &[Dim::constant(depth)], |k, r| {
                    let (va, vb) = (k.load(a, &[row, r].concat()), k.load(weights, &[r[0], *n]));
                    k.set(acc, product_sum(ty, va, vb, Expr::acc(acc)));
                });
                k.store(y, at, Expr::acc(acc));
            });
        });
        Ok(())
    }
}
