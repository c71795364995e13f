//! MatMulNBits of com.microsoft: a product with weights of 2, 4 or 8 bits in blocks along the depth.
//!
//! Spec: <https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md#com.microsoft.MatMulNBits>.
//! One version. B is `[N, ceil(K / block), block * bits / 8]` with the first element in the low bits; element (n, k)
//! stands for `(q - zero) * scale` of its block. `accuracy_level` 4 allows activations as integers of 8
//! bits, one scale for each of the blocks (`KernelData::narrow`); the other levels allow less than f32 and are not needed.
//!
//! The weights are a map of their own, transposed for the product, which is written as in `matmul`. Constant ones never
//! become floats in memory: pass `few_bits` moves the map into the product.

use super::{Attrs, InferCx, LowerCx, Operator};
use crate::diag::{Result, codes};
use crate::nest::{BinOp, Buf, Expr, KernelBuilder, LoopKind, Place};
use crate::sym::Dim;
use crate::tensor::ElemType;

/// Sizes and number of bits.
#[derive(Clone, Debug, PartialEq)]
pub struct NBits {
    depth: i64,
    columns: i64,
    bits: i64,
    block: i64,
    /// Activations may be integers of 8 bits.
    narrow: bool,
}

impl NBits {
    fn blocks(&self) -> i64 {
        (self.depth + self.block - 1) / self.block
    }
    /// Bytes of the zero points of one column.
    fn zero_bytes(&self) -> i64 {
        (self.blocks() * self.bits + 7) / 8
    }
}

impl Operator for NBits {
    const OPS: &'static [&'static str] = &["com.microsoft:MatMulNBits"];
    fn parse(a: &mut Attrs) -> Result<Self> {
        let n = NBits { depth: a.int_required("K")?, columns: a.int_required("N")?, bits: a.int("bits", 4)?, block: a.int_required("block_size")?, narrow: a.int("accuracy_level", 0)? == 4 };
        let small = |v: i64| (1..=1 << 28).contains(&v);
        if !small(n.depth) || !small(n.columns) {
            return a.error("attributes \"K\" and \"N\" must be positive, below 2^28").fail();
        }
        if !matches!(n.bits, 2 | 4 | 8) {
            return a.error(format!("attribute \"bits\" is {}", n.bits)).found_expected(n.bits.to_string(), "2, 4 or 8").fail();
        }
        if n.block < 16 || n.block > 1 << 20 || n.block & (n.block - 1) != 0 {
            return a.error(format!("attribute \"block_size\" is {}", n.block)).found_expected(n.block.to_string(), "a power of two, 16 or more").fail();
        }
        Ok(n)
    }
    fn infer(&self, cx: &mut InferCx) -> Result<()> {
        let a = cx.tensor(0)?.clone();
        let Some((k, batch)) = a.dims.split_last() else { return cx.error(codes::OP_SHAPE, "the input must have the depth as its last dimension").fail() };
        cx.require_eq(*k, self.depth.into(), "the last dimension must be K")?;
        let count = |cx: &mut InferCx, i: usize, n: i64, what: &str| -> Result<()> {
            let Some(t) = cx.tensor_opt(i)? else { return Ok(()) };
            let have = t.count();
            cx.require_eq(have, n.into(), what)
        };
        let blocks = self.columns * self.blocks();
        cx.require_type(1, |t| t == ElemType::U8, "uint8")?;
        count(cx, 1, blocks * (self.block * self.bits / 8), "the weights must be [N, ceil(K / block_size), block_size * bits / 8]")?;
        count(cx, 2, blocks, "there must be a scale for each column and block")?;
        if let Some(t) = cx.tensor_opt(3)?.map(|t| t.elem) {
            match t {
                ElemType::U8 => count(cx, 3, self.columns * self.zero_bytes(), "the zero points must be packed, a row of whole bytes for each column")?,
                t if t.is_float() => count(cx, 3, blocks, "there must be a zero point for each column and block")?,
                _ => return cx.error(codes::OP_FEATURE, format!("zero points of type {t} are not supported")).fail(),
            }
        }
        count(cx, 4, self.depth, "g_idx must have one group for each row of the weights")?;
        count(cx, 5, self.columns, "the bias must have one value for each column")?;
        let mut dims = batch.to_vec();
        dims.push(self.columns.into());
        cx.set(0, a.elem, dims);
        Ok(())
    }
    fn lower(&self, cx: &mut LowerCx) -> Result<()> {
        let (a, y) = (cx.input(0), cx.output(0));
        let (columns, depth) = (Dim::constant(self.columns), Dim::constant(self.depth));
        let flat = |cx: &mut LowerCx, b: Buf, dims: &[i64]| cx.m.view(b, dims.iter().map(|d| Dim::constant(*d)).collect::<Vec<_>>());
        let b = cx.input(1);
        let b = flat(cx, b, &[self.columns, self.blocks(), self.block * self.bits / 8]);
        let s = cx.input(2);
        let scales = flat(cx, s, &[self.columns, self.blocks()]);
        let zeros = cx.input_opt(3).map(|z| {
            let row = if cx.elem(z) == ElemType::U8 { self.zero_bytes() } else { self.blocks() };
            flat(cx, z, &[self.columns, row])
        });
        let groups = cx.input_opt(4);
        // Elements of few bits are packed in constants and inputs; a buffer of bytes in scratch is taken apart.
        let packed = |cx: &LowerCx, b: Buf| self.bits == 8 || matches!(cx.m.bufs[cx.m.storage(b)].place, Place::Const(_) | Place::Input(_));
        let small = match self.bits {
            2 => ElemType::U2,
            4 => ElemType::U4,
            _ => ElemType::U8,
        };
        let padded = Dim::constant(self.blocks() * self.block);
        let elements = packed(cx, b).then(|| cx.m.view_as(b, small, vec![columns, padded]));
        let codes = zeros.filter(|z| cx.elem(*z) == ElemType::U8 && packed(cx, *z)).map(|z| cx.m.view_as(z, small, vec![columns, Dim::constant(self.zero_bytes() * 8 / self.bits)]));
        let number = |e: Expr| Expr::cast(ElemType::I32, ElemType::F32, Expr::cast(ElemType::U8, ElemType::I32, e));
        let weights = cx.temp("weights", ElemType::F32, vec![depth, columns]);
        cx.map(weights, |k, at| {
            let (r, n) = (at[0], at[1]);
            let inner = r.modulo(self.block);
            let per = 8 / self.bits;
            let q = match elements {
                Some(e) => number(k.load(e, &[n, r])),
                None => self.field(k.load(b, &[n, r.floor_div(self.block), inner.floor_div(per)]), inner.modulo(per)),
            };
            let value = |k: &KernelBuilder, block: Dim| {
                let zero = match zeros {
                    Some(_) if let Some(c) = codes => number(k.load(c, &[n, block])),
                    Some(z) if k.m.bufs[z].ty == ElemType::U8 => self.field(k.load(z, &[n, block.floor_div(per)]), block.modulo(per)),
                    Some(z) => k.load(z, &[n, block]),
                    None => Expr::f32((1 << (self.bits - 1)) as f32),
                };
                (q.clone() - zero) * k.load(scales, &[n, block])
            };
            match groups {
                Some(g) => k.with_index(Expr::cast(ElemType::I32, ElemType::I64, k.load(g, &[r])), self.blocks().into(), |k, block| value(k, block)),
                None => value(k, r.floor_div(self.block)),
            }
        });
        let (out, bias) = (cx.dims(y), cx.input_opt(5));
        let product = cx.kernel(|k| {
            k.nest(LoopKind::Par, &out, |k, at| {
                let Some((n, row)) = at.split_last() else { return };
                let acc = k.acc(Expr::f32(0.0));
                k.nest(LoopKind::Seq, &[depth], |k, r| {
                    let (va, vb) = (k.load(a, &[row, r].concat()), k.load(weights, &[r[0], *n]));
                    k.set(acc, Expr::fma(va, vb, Expr::acc(acc)));
                });
                let v = match bias {
                    Some(b) => Expr::acc(acc) + k.load(b, &[*n]),
                    None => Expr::acc(acc),
                };
                k.store(y, at, v);
            });
        });
        cx.m.kernels[product].narrow = self.narrow;
        Ok(())
    }
}

impl NBits {
    /// Element number `i` of a byte, as f32.
    fn field(&self, byte: Expr, i: Dim) -> Expr {
        let int = ElemType::I32;
        let v = Expr::cast(ElemType::U8, int, byte);
        if self.bits == 8 {
            return Expr::cast(int, ElemType::F32, v);
        }
        let shift = Expr::cast(ElemType::I64, int, Expr::index(i * self.bits));
        Expr::cast(int, ElemType::F32, Expr::bin(BinOp::Shr, v, shift).and(Expr::int(int, (1 << self.bits) - 1)))
    }
}
