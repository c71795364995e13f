//! MatMul and Gemm, in the form that the contraction schedule recognises (see
//! `passes/nest/schedule/contract`).
//!
//! | Gemm | |
//! |---|---|
//! | 1, 6 | C broadcasts only with `broadcast = 1` |
//! | 7, 9 | C broadcasts to [M, N] |
//! | 11, 13 | C is optional |

use super::{Attrs, InferCx, LowerCx, Operator};
use crate::diag::{Result, codes};
use crate::nest::{Expr, LoopKind};
use crate::sym::Dim;
use crate::tensor::ElemType;

/// The operators.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum MatMul {
    MatMul,
    Gemm { alpha: f32, beta: f32, trans_a: bool, trans_b: bool },
}

impl Operator for MatMul {
    const OPS: &'static [&'static str] = &["MatMul", "Gemm"];
    fn parse(a: &mut Attrs) -> Result<Self> {
        if a.op() == "MatMul" {
            return Ok(MatMul::MatMul);
        }
        a.ignore("broadcast");
        Ok(MatMul::Gemm {
            alpha: a.float("alpha", 1.0),
            beta: a.float("beta", 1.0),
            trans_a: a.flag("transA", false),
            trans_b: a.flag("transB", false),
        })
    }
    fn infer(&self, cx: &mut InferCx) -> Result<()> {
        let (a, b) = (cx.tensor(0).clone(), cx.tensor(1).clone());
        let dims = match self {
            MatMul::MatMul => {
                cx.require(a.rank() != 0 && b.rank() != 0, codes::OP_SHAPE, "MatMul does not take scalars")?;
                let (ka, kb) = (a.dims[a.rank() - 1], b.dims[b.rank().saturating_sub(2)]);
                cx.require_eq(ka, kb, "the inner dimensions differ");
                let batch = cx.broadcast(&[
                    &a.dims[..a.rank().saturating_sub(2)],
                    &b.dims[..b.rank().saturating_sub(2)],
                ])?;
                let m = (a.rank() > 1).then(|| a.dims[a.rank() - 2]);
                let n = (b.rank() > 1).then(|| b.dims[b.rank() - 1]);
                batch.into_iter().chain(m).chain(n).collect::<Vec<_>>()
            }
            MatMul::Gemm { trans_a, trans_b, .. } => {
                cx.require(a.rank() == 2 && b.rank() == 2, codes::OP_SHAPE, "Gemm multiplies matrices")?;
                let (m, ka) = if *trans_a { (a.dims[1], a.dims[0]) } else { (a.dims[0], a.dims[1]) };
                let (kb, n) = if *trans_b { (b.dims[1], b.dims[0]) } else { (b.dims[0], b.dims[1]) };
                cx.require_eq(ka, kb, "the inner dimensions differ");
                if let Some(c) = cx.tensor_opt(2) {
                    let shape = cx.broadcast(&[&[m, n], &c.dims])?;
                    cx.require(shape.len() == 2, codes::OP_SHAPE, "C must broadcast to the result")?;
                    cx.require_eq(shape[0], m, "C must broadcast to the result");
                    cx.require_eq(shape[1], n, "C must broadcast to the result");
                }
                vec![m, n]
            }
        };
        cx.set(0, a.elem, dims);
        Ok(())
    }
    fn lower(&self, cx: &mut LowerCx) -> Result<()> {
        let (a, b, y) = (cx.input(0), cx.input(1), cx.output(0));
        let (da, db, out) = (cx.dims(a), cx.dims(b), cx.dims(y));
        let ty = cx.elem(y).compute();
        let (alpha, beta, trans_a, trans_b) = match *self {
            MatMul::MatMul => (1.0, 1.0, false, false),
            MatMul::Gemm { alpha, beta, trans_a, trans_b } => (alpha, beta, trans_a, trans_b),
        };
        let c = cx.input_opt(2).filter(|_| beta != 0.0);
        let depth = if trans_a { da[0] } else { da[da.len() - 1] };
        cx.kernel(|k| {
            k.nest(LoopKind::Par, &out, |k, at| {
                // Row and column are the last dimensions; vectors lack one of them.
                let (mut batch, mut row, mut col) = (at.to_vec(), None, None);
                if db.len() > 1 {
                    col = batch.pop();
                }
                if da.len() > 1 {
                    row = batch.pop();
                }
                let operand = |k: &crate::nest::KernelBuilder, buf, dims: &[Dim], last: [Option<Dim>; 2]| {
                    let own = dims.len().saturating_sub(2);
                    let mut ix: Vec<Dim> = vec![];
                    for (d, i) in dims[..own].iter().zip(&batch[batch.len() - own.min(batch.len())..]) {
                        ix.push(match d.as_const() {
                            Some(1) => Dim::constant(0),
                            _ if k.m.syms.in_range(*i, *d) => *i,
                            _ => *i * crate::sym::broadcast::stride_factor(*d),
                        });
                    }
                    ix.extend(last.into_iter().flatten());
                    k.load(buf, &ix)
                };
                let acc = k.acc(Expr::num(ty, 0.0));
                k.nest(LoopKind::Seq, &[depth], |k, r| {
                    let ia = if trans_a { [Some(r[0]), row] } else { [row, Some(r[0])] };
                    let ib = if trans_b { [col, Some(r[0])] } else { [Some(r[0]), col] };
                    let (va, vb) = (operand(k, a, &da, ia), operand(k, b, &db, ib));
                    let v = product_sum(ty, va, vb, Expr::acc(acc));
                    k.set(acc, v);
                });
                // Integers are scaled as floats, because alpha and beta may be fractions.
                let wide = if ty.is_float() || (alpha == 1.0 && beta == 1.0) { ty } else { ElemType::F64 };
                let mut v = Expr::cast(ty, wide, Expr::acc(acc));
                if alpha != 1.0 {
                    v = v * Expr::num(wide, f64::from(alpha));
                }
                if let Some(c) = c {
                    let bias = Expr::cast(ty, wide, k.load_broadcast(c, at));
                    v = v + if beta == 1.0 { bias } else { bias * Expr::num(wide, f64::from(beta)) };
                }
                let v = Expr::cast(wide, ty, v);
                k.store(y, at, v);
            });
        });
        Ok(())
    }
}

/// acc + a * b.
pub fn product_sum(ty: ElemType, a: Expr, b: Expr, acc: Expr) -> Expr {
    if ty.is_float() { Expr::fma(a, b, acc) } else { a * b + acc }
}
