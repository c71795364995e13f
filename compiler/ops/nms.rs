//! NonMaxSuppression: keeps the box with the best score among overlapping ones, per batch and class.
//!
//! | version | |
//! |---|---|
//! | 10, 11 | the same |
//!
//! Boxes are taken in the order of their scores, the first of equal ones first. A box is dropped if it
//! overlaps a box that was taken before by more than the threshold. The results are counted, then the size is
//! defined, then the result is filled.

use super::support::runtime;
use super::topk::keys;
use super::{Attrs, InferCx, LowerCx, Operator};
use crate::diag::{Result, codes};
use crate::nest::{BinOp, Buf, Expr, KernelBuilder, LoopKind, Scalar};
use crate::sym::Dim;
use crate::tensor::ElemType;
use runtime::int;

/// The operator.
#[derive(Clone, Debug, PartialEq)]
pub struct Nms {
    /// True if boxes are given by centre and size instead of corners.
    pub center: bool,
}

const F: ElemType = ElemType::F32;
/// Boxes per block. The best box of each block is stored, so that the next box is found among few candidates.
const BLOCK: i64 = 32;

impl Operator for Nms {
    const OPS: &'static [&'static str] = &["NonMaxSuppression"];
    fn parse(a: &mut Attrs) -> Result<Self> {
        Ok(Nms { center: a.flag("center_point_box", false) })
    }
    fn infer(&self, cx: &mut InferCx) -> Result<()> {
        let (boxes, scores) = (cx.tensor(0).clone(), cx.tensor(1).clone());
        let ([b, n, four], [b2, c, n2]) = (&boxes.dims[..], &scores.dims[..]) else {
            return cx.error(codes::OP_SHAPE, "boxes and scores must have rank 3").fail();
        };
        cx.require_eq(*four, Dim::constant(4), "a box has four numbers");
        cx.require_eq(*b, *b2, "boxes and scores differ in their batches");
        cx.require_eq(*n, *n2, "boxes and scores differ in the number of boxes");
        for i in 2..5 {
            if cx.tensor_opt(i).is_some_and(|t| t.count().as_const() != Some(1)) {
                return cx.error(codes::OP_SHAPE, format!("input {i} must be one number")).fail();
            }
        }
        let most = room(*n, cx.has(2), cx.ints_value(2).as_deref());
        let count = cx.size(0, 0, 2);
        cx.bound(&[count], *b * *c * most);
        cx.set(0, ElemType::I64, vec![count, Dim::constant(3)]);
        Ok(())
    }
    fn lower(&self, cx: &mut LowerCx) -> Result<()> {
        let (boxes, scores, y) = (cx.input(0), cx.input(1), cx.output(0));
        let (dims, total) = (cx.dims(scores), cx.dims(y)[0]);
        let (batches, classes, n) = (dims[0], dims[1], dims[2]);
        let scalar = |k: &KernelBuilder, b: Option<Buf>, none: Expr| {
            b.map_or(none, |b| k.load(b, &vec![Dim::constant(0); k.m.bufs[b].dims.len()]))
        };
        let (most, overlap, least) = (cx.input_opt(2), cx.input_opt(3), cx.input_opt(4));
        let planes = self.planes(cx, boxes, batches, n);
        // Keys of score and position of the remaining boxes, greater for those that come first, and the
        // greatest key of each block.
        let blocks = n.ceil_div(BLOCK);
        let live = cx.temp("live", ElemType::I64, vec![batches, classes, blocks * BLOCK]);
        let tops = cx.temp("tops", ElemType::I64, vec![batches, classes, blocks]);
        // Results of vectorized loops.
        let best = cx.temp("best", ElemType::I64, vec![batches, classes, 1.into()]);
        let hidden = cx.temp("hidden", F, vec![batches, classes, 1.into()]);
        // Boxes that were taken, and their planes.
        let room = room(n, most.is_some(), cx.ints_value(2).as_deref());
        let taken = cx.temp("taken", ElemType::I64, vec![batches, classes, room]);
        let kept = cx.temp("kept", F, vec![batches, classes * 5, room]);
        let number = cx.temp("number", ElemType::I64, vec![batches, classes]);
        cx.kernel(|k| {
            k.nest(LoopKind::Par, &[batches, classes], |k, at| {
                let (b, c) = (at[0], at[1]);
                let [best, hidden] = [best, hidden].map(|buf| (buf, [b, c, Dim::constant(0)]));
                runtime::check(k, Expr::bin(BinOp::Lt, Expr::index(n), int(keys::POSITIONS)));
                let limit = scalar(k, most, int(0)).min(Expr::index(n));
                let limit = k.let_(limit);
                k.range(LoopKind::Seq, "i", 0, n, |k, i| {
                    let s = k.load(scores, &[b, c, i]);
                    let s = k.let_(s);
                    // NaN and -inf come last.
                    let lowest = Expr::from(Scalar::from_f64(F, f64::from(f32::MIN)));
                    let v = k.let_(Expr::select(
                        Expr::bin(BinOp::Gt, s.clone(), lowest.clone()),
                        s.clone(),
                        lowest,
                    ));
                    let key = keys::ordered(k, F, v);
                    let key = keys::packed(key, i);
                    let key = match least {
                        Some(_) => Expr::select(
                            Expr::bin(BinOp::Gt, s, scalar(k, least, Expr::f32(0.0))),
                            key,
                            gone(),
                        ),
                        None => key,
                    };
                    k.store(live, &[b, c, i], key);
                });
                k.range(LoopKind::Seq, "i", 0, blocks * BLOCK - n, |k, i| {
                    k.store(live, &[b, c, n + i], gone())
                });
                k.range(LoopKind::Seq, "j", 0, blocks, |k, j| {
                    let top = k.acc(gone());
                    k.range(LoopKind::Seq, "i", 0, BLOCK, |k, i| {
                        let v = k.load(live, &[b, c, j * BLOCK + i]);
                        k.update(BinOp::Max, top, v);
                    });
                    k.store(tops, &[b, c, j], Expr::acc(top));
                });
                let (count, more) = (k.acc(int(0)), k.acc(Expr::bin(BinOp::Gt, limit.clone(), int(0))));
                k.while_(Expr::acc(more), |k| {
                    greatest(k, blocks, best, gone(), |k, j| k.load(tops, &[b, c, j]));
                    let next = k.load(best.0, &best.1);
                    let next = k.let_(next);
                    k.set(more, Expr::bin(BinOp::Gt, next.clone(), gone()));
                    k.if_(Expr::acc(more), |k| {
                        k.at_index(keys::position(next), n, |k, i| {
                            let block = i.floor_div(BLOCK);
                            greatest(k, BLOCK.into(), (tops, [b, c, block]), gone(), |k, j| {
                                let v = k.load(live, &[b, c, block * BLOCK + j]);
                                Expr::select(
                                    Expr::bin(BinOp::Lt, v.clone(), k.load(best.0, &best.1)),
                                    v,
                                    gone(),
                                )
                            });
                            let one: [Expr; 5] = std::array::from_fn(|d| k.load(planes, &[b, d.into(), i]));
                            k.at_index(Expr::acc(count), room + 1, |k, have| {
                                greatest(k, have, hidden, Expr::f32(0.0), |k, t| {
                                    let other =
                                        std::array::from_fn(|d| k.load(kept, &[b, c * 5 + Dim::from(d), t]));
                                    let threshold = scalar(k, overlap, Expr::f32(0.0));
                                    let hides = overlaps(k, &other, &one, threshold);
                                    Expr::select(hides, Expr::f32(1.0), Expr::f32(0.0))
                                });
                            });
                            let free = Expr::bin(BinOp::Eq, k.load(hidden.0, &hidden.1), Expr::f32(0.0));
                            k.if_(free, |k| {
                                k.at_index(Expr::acc(count), room, |k, p| {
                                    k.store(taken, &[b, c, p], Expr::index(i));
                                    for (d, v) in one.into_iter().enumerate() {
                                        k.store(kept, &[b, c * 5 + Dim::from(d), p], v);
                                    }
                                });
                                k.update(BinOp::Add, count, int(1));
                                k.set(more, Expr::bin(BinOp::Lt, Expr::acc(count), limit));
                            });
                        });
                    });
                });
                k.store(number, &[b, c], Expr::acc(count));
            });
        });
        let found = cx.compute(1, |k, out| {
            let sum = k.acc(int(0));
            k.nest(LoopKind::Seq, &[batches, classes], |k, at| {
                let v = k.load(number, at);
                k.update(BinOp::Add, sum, v);
            });
            k.store(out, &[Dim::constant(0)], Expr::acc(sum));
        });
        cx.define(total, Expr::Load { buf: found, at: vec![Dim::constant(0)] });
        cx.kernel(|k| {
            let next = k.acc(int(0));
            k.nest(LoopKind::Seq, &[batches, classes], |k, at| {
                k.range(LoopKind::Seq, "i", 0, room, |k, i| {
                    let have = k.load(number, at);
                    k.if_(Expr::bin(BinOp::Lt, Expr::index(i), have), |k| {
                        k.at_index(Expr::acc(next), total, |k, p| {
                            let which = k.load(taken, &[at[0], at[1], i]);
                            for (j, v) in
                                [Expr::index(at[0]), Expr::index(at[1]), which].into_iter().enumerate()
                            {
                                k.store(y, &[p, Dim::from(j)], v);
                            }
                        });
                        k.update(BinOp::Add, next, int(1));
                    });
                });
            });
        });
        Ok(())
    }
}

impl Nms {
    /// Smallest and largest position in both directions and the area of every box, as planes [batches, 5, n].
    fn planes(&self, cx: &mut LowerCx, boxes: Buf, batches: Dim, n: Dim) -> Buf {
        let planes = cx.temp("planes", F, vec![batches, 5.into(), n]);
        cx.kernel(|k| {
            k.nest(LoopKind::Par, &[batches, n], |k, at| {
                let list = self.corners(k, boxes, at[0], at[1]);
                let area = (list[2].clone() - list[0].clone()) * (list[3].clone() - list[1].clone());
                for (d, v) in list.into_iter().chain([area]).enumerate() {
                    k.store(planes, &[at[0], d.into(), at[1]], v);
                }
            });
        });
        planes
    }
    /// Smallest and largest position in both directions, in registers.
    fn corners(&self, k: &mut KernelBuilder, boxes: Buf, b: Dim, i: Dim) -> [Expr; 4] {
        let v: Vec<Expr> = (0..4)
            .map(|j| {
                let v = k.load(boxes, &[b, i, Dim::constant(j)]);
                k.let_(v)
            })
            .collect();
        let (a, b, c, d) = (v[0].clone(), v[1].clone(), v[2].clone(), v[3].clone());
        let list = if self.center {
            let half = |e: Expr| e * Expr::num(F, 0.5);
            [a.clone() - half(c.clone()), b.clone() - half(d.clone()), a + half(c), b + half(d)]
        } else {
            [a.clone().min(c.clone()), b.clone().min(d.clone()), a.max(c), b.max(d)]
        };
        list.map(|e| k.let_(e))
    }
}

/// Most boxes that may be taken of `n`, as far as that is known.
fn room(n: Dim, limited: bool, most: Option<&[i64]>) -> Dim {
    match (limited, most) {
        (false, _) => Dim::constant(0),
        (_, Some([m])) => Dim::min(n, (*m).max(0)),
        _ => n,
    }
}

/// The maximum of many values, stored to an element of a buffer. The loop is in a separate statement list,
/// because a list is vectorized only if all of its statements are.
fn greatest(
    k: &mut KernelBuilder,
    n: Dim,
    (to, at): (Buf, [Dim; 3]),
    least: Expr,
    value: impl FnOnce(&mut KernelBuilder, Dim) -> Expr,
) {
    k.range(LoopKind::Seq, "once", 0, 1, |k, _| {
        let found = k.acc(least);
        k.range(LoopKind::Seq, "j", 0, n, |k, j| {
            let v = value(k, j);
            k.update(BinOp::Max, found, v);
        });
        k.store(to, &at, Expr::acc(found));
    });
}

/// The key of a dropped box.
fn gone() -> Expr {
    int(i64::MIN)
}

/// True if the intersection over union of two boxes, given as planes, exceeds the threshold.
fn overlaps(k: &mut KernelBuilder, a: &[Expr; 5], b: &[Expr; 5], threshold: Expr) -> Expr {
    let zero = || Expr::f32(0.0);
    let mut side = |d: usize| {
        let (lo, hi) = (a[d].clone().max(b[d].clone()), a[d + 2].clone().min(b[d + 2].clone()));
        k.let_(hi - lo)
    };
    let (h, w) = (side(0), side(1));
    let (one, two) = (a[4].clone(), b[4].clone());
    let shared = k.let_(h.clone() * w.clone());
    let union = k.let_(one.clone() + two.clone() - shared.clone());
    let positive = |e: Expr| Expr::bin(BinOp::Gt, e, zero());
    let all = positive(h).and(positive(w)).and(positive(one)).and(positive(two)).and(positive(union.clone()));
    let ratio = shared / Expr::select(positive(union.clone()), union, Expr::f32(1.0));
    all.and(Expr::bin(BinOp::Gt, ratio, threshold))
}
