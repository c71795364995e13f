//! GatherBlockQuantized of com.microsoft: Gather of block-quantized elements, with a scale and a zero point
//! per block.
//!
//! Spec:
//! <https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md#com.microsoft.GatherBlockQuantized>.
//! One version. uint8 data holds elements of `bits` bits along the last dimension, the first one in the low
//! bits; its zero points are packed alike. An index out of range gives zeros.

use super::gather::from_start;
use super::support::bits::{Fields, number};
use super::{Attrs, InferCx, LowerCx, Operator};
use crate::diag::{Result, codes};
use crate::nest::{BinOp, Expr};
use crate::ops::from_end;
use crate::sym::Dim;
use crate::tensor::{ElemType, TensorType};

/// Axes, as in the model, and the block size.
#[derive(Clone, Debug, PartialEq)]
pub struct GatherBlocks {
    gather: i64,
    quantize: i64,
    /// 0: a single block.
    block: i64,
    /// Bits of an element in uint8 data.
    bits: i64,
}

impl GatherBlocks {
    /// Elements per byte.
    fn per(&self, elem: ElemType) -> i64 {
        if elem == ElemType::U8 { 8 / self.bits } else { 1 }
    }
    /// The shape of the data in elements.
    fn elements(&self, data: &TensorType) -> Vec<Dim> {
        let mut dims = data.dims.clone();
        if let Some(last) = dims.last_mut() {
            *last = *last * self.per(data.elem);
        }
        dims
    }
}

/// An axis that `infer` has checked.
fn axis(a: i64, rank: usize) -> usize {
    from_end(a, rank as i64) as usize
}

impl Operator for GatherBlocks {
    const OPS: &'static [&'static str] = &["com.microsoft:GatherBlockQuantized"];
    fn parse(a: &mut Attrs) -> Result<Self> {
        let g = GatherBlocks {
            gather: a.int("gather_axis", 0),
            quantize: a.int("quantize_axis", 1),
            block: a.int("block_size", 128),
            bits: a.int("bits", 4),
        };
        a.expect("bits", g.bits, matches!(g.bits, 2 | 4 | 8), "2, 4 or 8");
        let fits = g.block == 0 || (16..=1 << 28).contains(&g.block) && g.block & (g.block - 1) == 0;
        a.expect("block_size", g.block, fits, "a power of two, 16 or more");
        Ok(g)
    }
    fn infer(&self, cx: &mut InferCx) -> Result<()> {
        let (data, indices, scales) = (cx.tensor(0).clone(), cx.tensor(1).clone(), cx.tensor(2).clone());
        let rank = data.rank();
        let (from, along) = (cx.axis(self.gather, rank)?, cx.axis(self.quantize, rank)?);
        let float = data.elem.is_float();
        if self.block == 0 && !float {
            let found = data.elem.to_string();
            return cx
                .error(codes::OP_ATTRIBUTE, "block_size is 0, which only data of floats allows")
                .found_expected(found, "data of floats, or a block size")
                .fail();
        }
        if self.per(data.elem) > 1 && from == rank - 1 {
            return cx
                .error(codes::OP_FEATURE, "elements of bytes that hold several can not be picked one by one")
                .help("gather along another axis")
                .fail();
        }
        let elements = self.elements(&data);
        let blocks = |n: Dim| if self.block == 0 { Dim::constant(1) } else { n.ceil_div(self.block) };
        if scales.rank() != rank {
            let found = scales.rank().to_string();
            return cx
                .error(codes::OP_SHAPE, "the scales must have the rank of the data")
                .found_expected(found, rank.to_string())
                .fail();
        }
        for (i, (s, n)) in scales.dims.iter().zip(&elements).enumerate() {
            let one = float && i != along && s.as_const() == Some(1);
            if !one {
                let want = if i == along { blocks(*n) } else { *n };
                cx.require_eq(*s, want, "the scales do not fit the blocks of the data");
            }
        }
        if let Some(z) = cx.tensor_opt(3).cloned() {
            cx.require(!float, codes::OP_ARITY, "data of floats has no zero points")?;
            if z.rank() != rank {
                let found = z.rank().to_string();
                return cx
                    .error(codes::OP_SHAPE, "the zero points must have the rank of the data")
                    .found_expected(found, rank.to_string())
                    .fail();
            }
            for (i, (z, s)) in z.dims.iter().zip(&scales.dims).enumerate() {
                let want = if i == rank - 1 { s.ceil_div(self.per(data.elem)) } else { *s };
                cx.require_eq(*z, want, "the zero points do not fit the scales");
            }
        }
        let dims: Vec<Dim> =
            elements[..from].iter().chain(&indices.dims).chain(&elements[from + 1..]).copied().collect();
        cx.set(0, scales.elem, dims);
        Ok(())
    }
    fn lower(&self, cx: &mut LowerCx) -> Result<()> {
        let (data, indices, scales, zeros, y) =
            (cx.input(0), cx.input(1), cx.input(2), cx.input_opt(3), cx.output(0));
        let (stored, width, ds) = (cx.dims(data), cx.dims(indices).len(), cx.dims(scales));
        let rank = stored.len();
        let (from, along, n) =
            (axis(self.gather, rank), axis(self.quantize, rank), stored[axis(self.gather, rank)]);
        let elem = cx.elem(data);
        let (ty, of_scale) = (ElemType::F32, cx.elem(scales).compute());
        let bits = if elem == ElemType::U8 { self.bits } else { 8 };
        let (fields, zeros) = (Fields::new(cx, data, bits), zeros.map(|z| Fields::new(cx, z, bits)));
        cx.map(y, |k, at| {
            let place = from_start(k, indices, k.load(indices, &at[from..from + width]), n);
            k.shared(place, |k, place| {
                let zero = Expr::int(ElemType::I64, 0);
                let inside = Expr::bin(BinOp::Ge, place.clone(), zero.clone()).and(Expr::bin(
                    BinOp::Lt,
                    place.clone(),
                    Expr::index(n),
                ));
                let near = place.max(zero).min(Expr::index(n - 1));
                let value = k.with_index(near, n, |k, j| {
                    let at: Vec<Dim> =
                        at[..from].iter().chain([&j]).chain(&at[from + width..]).copied().collect();
                    let mut block = at.clone();
                    block[along] =
                        if self.block == 0 { Dim::constant(0) } else { at[along].floor_div(self.block) };
                    let scale_at: Vec<Dim> = block
                        .iter()
                        .zip(&ds)
                        .map(|(i, d)| if d.as_const() == Some(1) { Dim::constant(0) } else { *i })
                        .collect();
                    let v = number(elem, fields.load(k, &at));
                    let v = match &zeros {
                        Some(z) => v - number(elem, z.load(k, &block)),
                        None if elem == ElemType::U8 => v - Expr::f32((1 << (self.bits - 1)) as f32),
                        None => v,
                    };
                    let scale = Expr::cast(of_scale, ty, k.load(scales, &scale_at));
                    v * scale
                });
                Expr::select(inside, value, Expr::num(ty, 0.0))
            })
        });
        Ok(())
    }
}
