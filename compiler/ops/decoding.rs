//! Operators of text decoders between two tokens (com.microsoft).
//!
//! | operator | result |
//! |---|---|
//! | NGramRepeatBlock | scores of tokens that would complete an n-gram a second time become -inf |
//! | DynamicTimeWarping | the cheapest path through a matrix of costs, from its first to its last element |
//!
//! Spec: <https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md>. One version each.

use super::support::runtime::{eq, int, or};
use super::support::text::lt;
use super::{Attrs, InferCx, LowerCx, Operator};
use crate::diag::{Result, codes};
use crate::nest::{BinOp, Buf, Expr, KernelBuilder, LoopKind};
use crate::sym::Dim;
use crate::tensor::ElemType;

/// The operators.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Decoding {
    NGramRepeatBlock { size: i64 },
    DynamicTimeWarping,
}

impl Operator for Decoding {
    const OPS: &'static [&'static str] =
        &["com.microsoft:NGramRepeatBlock", "com.microsoft:DynamicTimeWarping"];
    fn parse(a: &mut Attrs) -> Result<Self> {
        if a.op() == "DynamicTimeWarping" {
            return Ok(Decoding::DynamicTimeWarping);
        }
        let size = a.int_required("ngram_size");
        if !(1..=1 << 30).contains(&size) {
            return a.error(format!("attribute \"ngram_size\" is {size}, but must be positive")).fail();
        }
        Ok(Decoding::NGramRepeatBlock { size })
    }
    fn infer(&self, cx: &mut InferCx) -> Result<()> {
        let x = cx.tensor(0).clone();
        match self {
            Decoding::NGramRepeatBlock { .. } => {
                let scores = cx.tensor(1).clone();
                cx.require(
                    x.rank() == 2 && scores.rank() == 2,
                    codes::OP_SHAPE,
                    "tokens and scores must be matrices",
                )?;
                cx.require_eq(x.dims[0], scores.dims[0], "the batches of tokens and scores differ");
                cx.set(0, scores.elem, scores.dims);
            }
            Decoding::DynamicTimeWarping => {
                let dims = match x.dims.as_slice() {
                    [_, _] => x.dims.clone(),
                    [one, rest @ ..] if rest.len() == 2 => {
                        cx.require_eq(*one, Dim::constant(1), "there is more than one matrix");
                        rest.to_vec()
                    }
                    _ => {
                        return cx.error(codes::OP_SHAPE, "the costs must be a matrix, or one matrix").fail();
                    }
                };
                for d in &dims {
                    cx.syms.require_at_most(Dim::constant(1), *d);
                }
                let n = cx.size(0, 1, 2);
                let all = [Dim::constant(2), n];
                cx.bound(&all, (dims[0] + dims[1]) * 2);
                cx.set(0, ElemType::I32, all.to_vec());
            }
        }
        Ok(())
    }
    fn lower(&self, cx: &mut LowerCx) -> Result<()> {
        match self {
            Decoding::NGramRepeatBlock { size } => block_repeats(cx, *size),
            Decoding::DynamicTimeWarping => warp(cx),
        }
        Ok(())
    }
}

fn block_repeats(cx: &mut LowerCx, size: i64) {
    let (ids, scores, y) = (cx.input(0), cx.input(1), cx.output(0));
    let (batch, length, words) = (cx.dims(ids)[0], cx.dims(ids)[1], cx.dims(y)[1]);
    cx.map(y, |k, at| k.load(scores, at));
    let count = (length - size + 1).max(0);
    // A text shorter than n has no n-gram. The next n-gram begins with the last tokens.
    let tail = (length + 1 - size).max(0);
    cx.kernel(|k| {
        k.range(LoopKind::Par, "b", 0, batch, |k, b| {
            k.range(LoopKind::Seq, "i", 0, count, |k, i| {
                let same = k.acc(Expr::bool(true));
                k.range(LoopKind::Seq, "j", 0, Dim::constant(size - 1), |k, j| {
                    let at = |k: &mut KernelBuilder, p: Dim| {
                        k.with_index(Expr::index(p), length, |k, p| k.load(ids, &[b, p]))
                    };
                    let equal = eq(at(k, i + j), at(k, tail + j));
                    k.set(same, Expr::acc(same).and(equal));
                });
                k.if_(Expr::acc(same), |k| {
                    let token =
                        k.with_index(Expr::index(i + (size - 1)), length, |k, p| k.load(ids, &[b, p]));
                    k.at_index(token, words, |k, t| {
                        k.store(y, &[b, t], Expr::num(ElemType::F32, f64::NEG_INFINITY))
                    });
                });
            });
        });
    });
}

/// Accumulates the costs row by row, and records for each element the predecessor on the cheapest path: 0 for
/// both the previous row and column, 1 for the row, 2 for the column. Ties go to the column.
fn warp(cx: &mut LowerCx) {
    let (x, y) = (cx.input(0), cx.output(0));
    let dims = cx.dims(x);
    let (rows, columns) = (dims[dims.len() - 2], dims[dims.len() - 1]);
    let x = cx.m.view(x, vec![rows, columns]);
    let sums = cx.temp("sums", ElemType::F32, vec![rows + 1, columns + 1]);
    let from = cx.temp("from", ElemType::I32, vec![rows + 1, columns + 1]);
    let way = |v: i64| Expr::int(ElemType::I32, v);
    cx.kernel(|k| {
        k.nest(LoopKind::Seq, &[rows + 1, columns + 1], |k, at| {
            let (i, j) = (at[0], at[1]);
            let (first_row, first_column) =
                (k.let_(Expr::cmp_index(BinOp::Eq, i, 0)), k.let_(Expr::cmp_index(BinOp::Eq, j, 0)));
            let border = k.let_(or(first_row.clone(), first_column.clone()));
            k.if_(border.clone(), |k| {
                let start = Expr::select(first_row.clone(), first_column, Expr::bool(false));
                k.store(
                    sums,
                    at,
                    Expr::select(
                        start,
                        Expr::num(ElemType::F32, 0.0),
                        Expr::num(ElemType::F32, f64::INFINITY),
                    ),
                );
                k.store(from, at, Expr::select(first_row, way(2), way(1)));
            });
            k.if_(eq(border, Expr::bool(false)), |k| {
                let before = |d: Dim| (d - 1).max(0);
                let (both, up, left) = (
                    k.load(sums, &[before(i), before(j)]),
                    k.load(sums, &[before(i), j]),
                    k.load(sums, &[i, before(j)]),
                );
                let (both, up, left) = (k.let_(both), k.let_(up), k.let_(left));
                let diagonal = k.let_(lt(both.clone(), up.clone()).and(lt(both.clone(), left.clone())));
                let above = k.let_(lt(up.clone(), both.clone()).and(lt(up.clone(), left.clone())));
                let least = Expr::select(diagonal.clone(), both, Expr::select(above.clone(), up, left));
                let own = k.load(x, &[before(i), before(j)]);
                k.store(sums, at, own + least);
                k.store(from, at, Expr::select(diagonal, way(0), Expr::select(above, way(1), way(2))));
            });
        });
    });
    let count = cx.compute(1, |k, out| {
        let n = k.acc(int(0));
        back(k, from, [rows, columns], |k, _| k.update(BinOp::Add, n, int(1)));
        k.store(out, &[Dim::constant(0)], Expr::acc(n));
    });
    let n = cx.dims(y)[1];
    cx.define(n, Expr::Load { buf: count, at: vec![Dim::constant(0)] });
    cx.kernel(|k| {
        let place = k.acc(Expr::index(n) - int(1));
        back(k, from, [rows, columns], |k, at| {
            for (r, v) in at.into_iter().enumerate() {
                let v = Expr::cast(ElemType::I64, ElemType::I32, v - int(1));
                k.at_index(Expr::acc(place), n, |k, p| k.store(y, &[Dim::from(r), p], v));
            }
            k.update(BinOp::Sub, place, int(1));
        });
    });
}

/// Follows the path back from the last element to the border.
fn back(
    k: &mut KernelBuilder,
    from: Buf,
    size: [Dim; 2],
    mut seen: impl FnMut(&mut KernelBuilder, [Expr; 2]),
) {
    let (i, j) = (k.acc(Expr::index(size[0])), k.acc(Expr::index(size[1])));
    let more = or(lt(int(0), Expr::acc(i)), lt(int(0), Expr::acc(j)));
    k.while_(more, |k| {
        seen(k, [Expr::acc(i), Expr::acc(j)]);
        let way = k.with_index(Expr::acc(i), size[0] + 1, |k, p| {
            k.with_index(Expr::acc(j), size[1] + 1, |k, q| k.load(from, &[p, q]))
        });
        let way = k.let_(way);
        let is = |v: i64| eq(way.clone(), Expr::int(ElemType::I32, v));
        k.update(BinOp::Sub, i, Expr::select(is(2), int(0), int(1)));
        k.update(BinOp::Sub, j, Expr::select(is(1), int(0), int(1)));
    });
}
