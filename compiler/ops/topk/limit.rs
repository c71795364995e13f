//! A limit that at least as many keys of a list reach as results are requested, and hardly more. It is found
//! by successive maxima or by a bisection.
//!
//! All loops over keys are in separate statement lists, because a list is vectorized only if all of its
//! statements are.

use super::keys::spot;
use crate::nest::{BinOp, Buf, Expr, KernelBuilder, LoopKind, Reg, Scalar};
use crate::ops::LowerCx;
use crate::ops::support::runtime::{int, le};
use crate::sym::Dim;
use crate::tensor::ElemType;

/// A list of keys in scratch memory, one per row, with two words of scratch.
#[derive(Clone, Copy)]
pub(super) struct Keys {
    pub keys: Buf,
    pub n: Dim,
    pub limit: Buf,
    pub count: Buf,
}

impl Keys {
    /// Scratch for `n` keys of a type, one list per index of `outer`.
    pub fn new(cx: &mut LowerCx, name: &str, ty: ElemType, outer: &[Dim], n: Dim) -> Keys {
        let mut buf =
            |name: &str, n: Dim| cx.temp(name, ty, outer.iter().copied().chain([n]).collect::<Vec<_>>());
        Keys { keys: buf(name, n), n, limit: buf("limit", 1.into()), count: buf("count", 1.into()) }
    }
    /// Smallest and largest key.
    pub fn bounds(&self, k: &KernelBuilder) -> [Scalar; 2] {
        let ty = k.m.bufs[self.keys].ty;
        [Scalar::lowest(ty), Scalar::highest(ty)]
    }
}

/// Most keys that reach a limit which a bisection ends with early.
pub(super) fn most(wanted: Dim) -> Dim {
    wanted + wanted.floor_div(4) + 1
}

/// The result of a bisection.
pub(super) struct Found {
    /// 1 if at most [`most`] keys reach the limit. If 0, fewer than the wanted number are above it.
    pub close: Reg,
    /// In the latter case, how many.
    pub above: Reg,
}

/// Raises `lowest`, an i64 that at least `wanted` keys reach, as far as possible.
pub(super) fn bisect(k: &mut KernelBuilder, o: &[Dim], s: &Keys, wanted: Dim, lowest: Reg) -> Found {
    extreme(k, o, s, s.limit, BinOp::Max, |_, v| v);
    let top = k.let_(wide(k, o, s.limit));
    // Fewer keys than wanted, namely `above`, reach `beyond`.
    let (beyond, above, close) = (k.acc(top.clone() + int(1)), k.acc(int(0)), k.acc(int(0)));
    // The first key to try is the largest: it is the limit if many keys are equal to it.
    let next = k.acc(top);
    k.while_(lt(int(1), Expr::acc(beyond) - Expr::acc(lowest)), |k| {
        let limit = k.let_(Expr::acc(next));
        k.store(s.limit, &spot(o, 0.into()), Expr::cast(ElemType::I64, ElemType::I32, limit.clone()));
        reaching(k, o, s);
        let reached = k.let_(wide(k, o, s.count));
        let many = k.let_(le(Expr::index(wanted), reached.clone()));
        let few = k.let_(many.clone().and(le(reached.clone(), Expr::index(most(wanted)))));
        k.set(lowest, Expr::select(many.clone(), limit.clone(), Expr::acc(lowest)));
        k.set(above, Expr::select(many.clone(), Expr::acc(above), reached));
        let far = Expr::select(many, Expr::acc(beyond), limit.clone());
        k.set(beyond, Expr::select(few.clone(), limit, far));
        k.set(close, Expr::select(few, int(1), Expr::acc(close)));
        k.set(next, Expr::bin(BinOp::Shr, Expr::acc(lowest) + Expr::acc(beyond), int(1)));
    });
    Found { close, above }
}

/// The n-th greatest of the distinct keys, found one after the other.
pub(super) fn successive(k: &mut KernelBuilder, o: &[Dim], s: &Keys, n: i64) -> Expr {
    let last = spot(o, 0.into());
    extreme(k, o, s, s.limit, BinOp::Max, |_, v| v);
    let [lowest, _] = s.bounds(k);
    k.range(LoopKind::Seq, "s", 0, n - 1, |k, _| {
        extreme(k, o, s, s.limit, BinOp::Max, |k, v| {
            Expr::select(Expr::bin(BinOp::Lt, v.clone(), k.load(s.limit, &last)), v, lowest.into())
        });
    });
    k.load(s.limit, &last)
}

/// The least or the greatest `value` of the keys, stored to a buffer.
pub(super) fn extreme(
    k: &mut KernelBuilder,
    o: &[Dim],
    s: &Keys,
    to: Buf,
    op: BinOp,
    value: impl Fn(&KernelBuilder, Expr) -> Expr,
) {
    k.range(LoopKind::Seq, "once", 0, 1, |k, _| {
        let [lowest, highest] = s.bounds(k);
        let found = k.acc(if op == BinOp::Max { lowest } else { highest }.into());
        k.range(LoopKind::Seq, "j", 0, s.n, |k, j| {
            let v = k.load(s.keys, &spot(o, j));
            let v = value(k, v);
            k.update(op, found, v);
        });
        k.store(to, &spot(o, 0.into()), Expr::acc(found));
    });
}

/// Stores the number of keys that are not below the limit.
pub(super) fn reaching(k: &mut KernelBuilder, o: &[Dim], s: &Keys) {
    let ty = k.m.bufs[s.count].ty;
    let (zero, one) = (Expr::int(ty, 0), Expr::int(ty, 1));
    k.range(LoopKind::Seq, "once", 0, 1, |k, _| {
        let reached = k.acc(zero.clone());
        k.range(LoopKind::Seq, "j", 0, s.n, |k, j| {
            let hit = Expr::bin(BinOp::Ge, k.load(s.keys, &spot(o, j)), k.load(s.limit, &spot(o, 0.into())));
            k.update(BinOp::Add, reached, Expr::select(hit, one.clone(), zero.clone()));
        });
        k.store(s.count, &spot(o, 0.into()), Expr::acc(reached));
    });
}

/// A word of scratch as an i64.
pub(super) fn wide(k: &KernelBuilder, o: &[Dim], word: Buf) -> Expr {
    Expr::cast(ElemType::I32, ElemType::I64, k.load(word, &spot(o, 0.into())))
}

pub(super) fn lt(a: Expr, b: Expr) -> Expr {
    Expr::bin(BinOp::Lt, a, b)
}
