//! MatMulNBits of com.microsoft: a product with 2-bit, 4-bit or 8-bit weights, quantized in blocks along the
//! depth.
//!
//! Spec:
//! <https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md#com.microsoft.MatMulNBits>.
//! One version. B is `[N, ceil(K / block), block * bits / 8]` with the first element in the low bits; element
//! (n, k) denotes `(q - zero) * scale` of its block. `accuracy_level` 4 allows 8-bit integer activations with
//! one scale per block (`KernelData::narrow`). The other levels allow a precision below f32 and are not used.
//!
//! `g_idx` assigns each row of the weights to the scale of another block. Constant weights are stored in the
//! order of their groups, and the input is read in that order (`groups`).
//!
//! The dequantized weights are a separate map, transposed for the product, which has the form of `matmul`.
//! Constant weights are never stored as floats: pass `few_bits` moves the map into the product.

mod groups;

use super::support::bits::{Fields, number};
use super::{Attrs, InferCx, LowerCx, Operator};
use crate::diag::{Result, codes};
use crate::nest::{Buf, Expr, KernelBuilder, LoopKind};
use crate::sym::Dim;
use crate::tensor::ElemType;
use groups::Groups;

/// Sizes and number of bits.
#[derive(Clone, Debug, PartialEq)]
pub struct NBits {
    depth: i64,
    columns: i64,
    bits: i64,
    block: i64,
    /// True if activations may be 8-bit integers.
    narrow: bool,
}

impl NBits {
    fn blocks(&self) -> i64 {
        (self.depth + self.block - 1) / self.block
    }
    /// Bytes of the zero points per column.
    fn zero_bytes(&self) -> i64 {
        (self.blocks() * self.bits + 7) / 8
    }
}

impl Operator for NBits {
    const OPS: &'static [&'static str] = &["com.microsoft:MatMulNBits"];
    fn parse(a: &mut Attrs) -> Result<Self> {
        let n = NBits {
            depth: a.int_required("K"),
            columns: a.int_required("N"),
            bits: a.int("bits", 4),
            block: a.int_required("block_size"),
            narrow: a.int("accuracy_level", 0) == 4,
        };
        let small = |v: i64| (1..=1 << 28).contains(&v);
        a.require(
            small(n.depth) && small(n.columns),
            "attributes \"K\" and \"N\" must be positive, below 2^28",
        )?;
        let packed = a.int("weight_prepacked", 0);
        if packed != 0 {
            let e = a.error(format!("attribute \"weight_prepacked\" is {packed}: B is laid out for one GPU"));
            return e
                .found_expected(packed.to_string(), "0")
                .help("export the model without packed weights")
                .fail();
        }
        a.expect("bits", n.bits, matches!(n.bits, 2 | 4 | 8), "2, 4 or 8");
        let fits = (16..=1 << 20).contains(&n.block) && n.block & (n.block - 1) == 0;
        a.expect("block_size", n.block, fits, "a power of two, 16 or more");
        Ok(n)
    }
    fn infer(&self, cx: &mut InferCx) -> Result<()> {
        let a = cx.tensor(0).clone();
        let Some((k, batch)) = a.dims.split_last() else {
            return cx.error(codes::OP_SHAPE, "the input must have the depth as its last dimension").fail();
        };
        cx.require_eq(*k, self.depth.into(), "the last dimension must be K");
        let count = |cx: &mut InferCx, i: usize, n: i64, what: &str| {
            if let Some(t) = cx.tensor_opt(i) {
                cx.require_eq(t.count(), n.into(), what);
            }
        };
        let blocks = self.columns * self.blocks();
        cx.require_type(1, |t| t == ElemType::U8, "uint8")?;
        count(
            cx,
            1,
            blocks * (self.block * self.bits / 8),
            "the weights must be [N, ceil(K / block_size), block_size * bits / 8]",
        );
        count(cx, 2, blocks, "there must be a scale for each column and block");
        if let Some(t) = cx.tensor_opt(3).map(|t| t.elem) {
            match t {
                ElemType::U8 => count(
                    cx,
                    3,
                    self.columns * self.zero_bytes(),
                    "the zero points must be packed, a row of whole bytes for each column",
                ),
                t if t.is_float() => {
                    count(cx, 3, blocks, "there must be a zero point for each column and block")
                }
                _ => {
                    return cx
                        .error(codes::OP_FEATURE, format!("zero points of type {t} are not supported"))
                        .fail();
                }
            }
        }
        count(cx, 4, self.depth, "g_idx must have one group for each row of the weights");
        count(cx, 5, self.columns, "the bias must have one value for each column");
        let mut dims = batch.to_vec();
        dims.push(self.columns.into());
        cx.set(0, a.elem, dims);
        Ok(())
    }
    fn lower(&self, cx: &mut LowerCx) -> Result<()> {
        let operands = Operands {
            a: cx.input(0),
            b: cx.input(1),
            scales: cx.input(2),
            zeros: cx.input_opt(3),
            groups: cx.input_opt(4),
        };
        match self.ordered(cx, &operands) {
            Some((n, operands)) => n.product(cx, operands),
            None => self.product(cx, operands),
        }
        Ok(())
    }
}

/// What a product reads.
#[derive(Clone, Copy)]
struct Operands {
    a: Buf,
    b: Buf,
    scales: Buf,
    zeros: Option<Buf>,
    groups: Option<Buf>,
}

impl NBits {
    /// The product with rows in the order of their groups, if there are groups and all that has to be put in
    /// order is constant.
    fn ordered(&self, cx: &mut LowerCx, from: &Operands) -> Option<(NBits, Operands)> {
        let blocks = self.blocks();
        let order = Groups::of(cx, from.groups?, (blocks, self.block), self.bits)?;
        if order.is_plain() && order.block == self.block {
            return Some((self.clone(), Operands { groups: None, ..*from }));
        }
        let (row, zero_row) = (blocks * self.block * self.bits / 8, self.zero_bytes());
        let b = order.weights(cx, from.b, (self.bits, row))?;
        let scales = order.table(cx, from.scales, blocks)?;
        let zeros = match from.zeros {
            Some(z) if cx.elem(z) == ElemType::U8 => Some(order.codes(cx, z, (self.bits, zero_row))?),
            Some(z) => Some(order.table(cx, z, blocks)?),
            None => None,
        };
        let a = order.ordered(cx, from.a)?;
        let n = NBits { depth: order.depth(), block: order.block, ..self.clone() };
        Some((n, Operands { a, b, scales, zeros, groups: None }))
    }
    fn product(&self, cx: &mut LowerCx, Operands { a, b, scales, zeros, groups }: Operands) {
        let y = cx.output(0);
        let (columns, depth) = (Dim::constant(self.columns), Dim::constant(self.depth));
        let flat = |cx: &mut LowerCx, b: Buf, dims: &[i64]| {
            cx.m.view(b, dims.iter().map(|d| Dim::constant(*d)).collect::<Vec<_>>())
        };
        let scales = flat(cx, scales, &[self.columns, self.blocks()]);
        let zeros = zeros.map(|z| {
            let row = if cx.elem(z) == ElemType::U8 { self.zero_bytes() } else { self.blocks() };
            flat(cx, z, &[self.columns, row])
        });
        let padded = self.blocks() * self.block;
        let b = flat(cx, b, &[self.columns, padded * self.bits / 8]);
        let elements = Fields::new(cx, b, self.bits);
        let codes = zeros.filter(|z| cx.elem(*z) == ElemType::U8).map(|z| Fields::new(cx, z, self.bits));
        let weights = cx.temp("weights", ElemType::F32, vec![depth, columns]);
        cx.map(weights, |k, at| {
            let (r, n) = (at[0], at[1]);
            let q = number(ElemType::U8, elements.load(k, &[n, r]));
            let value = |k: &KernelBuilder, block: Dim| {
                let zero = match (&codes, zeros) {
                    (Some(c), _) => number(ElemType::U8, c.load(k, &[n, block])),
                    (None, Some(z)) => k.load(z, &[n, block]),
                    (None, None) => Expr::f32((1 << (self.bits - 1)) as f32),
                };
                (q.clone() - zero) * k.load(scales, &[n, block])
            };
            match groups {
                Some(g) => k.with_index(
                    Expr::cast(ElemType::I32, ElemType::I64, k.load(g, &[r])),
                    self.blocks().into(),
                    |k, block| value(k, block),
                ),
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
    }
}
