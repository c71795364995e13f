//! Class probabilities from pairwise ones: the second method of Wu, Lin and Weng (2004), as in libsvm.

use super::super::LowerCx;
use crate::nest::{BinOp, Buf, Expr, KernelBuilder, LoopKind, Stmt, UnOp};
use crate::ops::linear::table;
use crate::ops::support::runtime;
use crate::sym::Dim;
use crate::tensor::{ConstData, ElemType};
use std::sync::Arc;

/// Scratch memory of one row: pairwise probabilities R and the quadratic form Q [N, C, C], its product Q p
/// and p [N, C].
#[derive(Clone, Copy)]
struct Work {
    r: Buf,
    q: Buf,
    qp: Buf,
    p: Buf,
    c: Dim,
    ty: ElemType,
}

/// The probabilities [N, C] from decisions [N, C (C - 1) / 2] and the coefficients of their logistic curves.
pub fn couple(cx: &mut LowerCx, decisions: Buf, a: &[f32], b: &[f32], classes: usize) -> Buf {
    let ty = cx.elem(decisions);
    let (rows, c) = (cx.dims(decisions)[0], Dim::from(classes));
    let square = [rows, c, c];
    let w = Work {
        r: cx.temp("pairwise", ty, square),
        q: cx.temp("form", ty, square),
        qp: cx.temp("product", ty, [rows, c]),
        p: cx.temp("shares", ty, [rows, c]),
        c,
        ty,
    };
    let (a, b) = (table(cx, "prob_a", a, a.len(), ty), table(cx, "prob_b", b, b.len(), ty));
    // The index of the decision between two classes; 0, which is not read, for a class and itself.
    let mut numbers = vec![0i64; classes * classes];
    let mut next = 0;
    for i in 0..classes {
        for j in i + 1..classes {
            (numbers[i * classes + j], numbers[j * classes + i]) = (next, next);
            next += 1;
        }
    }
    let numbers = cx.m.constant("pairs", Arc::new(ConstData::i64s_shaped(vec![classes as i64; 2], &numbers)));
    let pairs = Dim::constant(next);
    cx.kernel(|k| {
        k.nest(LoopKind::Par, &[rows], |k, o| {
            let n = o[0];
            k.nest(LoopKind::Seq, &[c, c], |k, ij| {
                let e = k.load(numbers, ij);
                let v = k.with_index(e, pairs, |k, e| {
                    let at = [Dim::constant(0), e];
                    let s = k.load(decisions, &[n, e]) * k.load(a, &at) + k.load(b, &at);
                    Expr::num(ty, 1.0) - Expr::un(UnOp::Sigmoid, s)
                });
                let v = k.let_(v.max(Expr::num(ty, 1e-7)).min(Expr::num(ty, 1.0 - 1e-7)));
                let forward = Expr::cmp_index(BinOp::Lt, ij[0], ij[1]);
                k.store(w.r, &[n, ij[0], ij[1]], Expr::select(forward, v.clone(), Expr::num(ty, 1.0) - v));
            });
            w.form(k, n);
            w.solve(k, n, classes);
        });
    });
    w.p
}

impl Work {
    /// Q[t, t] = sum of R[j, t]^2, Q[t, j] = -R[j, t] R[t, j]; p starts uniform.
    fn form(&self, k: &mut KernelBuilder, n: Dim) {
        let Work { r, q, p, c, ty, .. } = *self;
        k.range(LoopKind::Seq, "t", 0, c, |k, t| {
            let sum = k.acc(Expr::num(ty, 0.0));
            k.range(LoopKind::Seq, "j", 0, c, |k, j| {
                let v = k.load(r, &[n, j, t]);
                let v = k.let_(v);
                let own = Expr::cmp_index(BinOp::Eq, j, t);
                k.update(BinOp::Add, sum, Expr::select(own, Expr::num(ty, 0.0), v.clone() * v.clone()));
                let cross = -(v * k.load(r, &[n, t, j]));
                k.store(q, &[n, t, j], cross);
            });
            k.store(q, &[n, t, t], Expr::acc(sum));
            let even = Expr::num(ty, 1.0) / Expr::cast(ElemType::I64, ty, Expr::index(c));
            k.store(p, &[n, t], even);
        });
    }
    /// Minimizes p Q p over the simplex, one coordinate at a time, until all Q p agree or the iteration limit
    /// is reached.
    fn solve(&self, k: &mut KernelBuilder, n: Dim, classes: usize) {
        let Work { q, qp, p, c, ty, .. } = *self;
        let (steps, most) = (k.acc(runtime::int(0)), runtime::int(classes.max(100) as i64));
        let body = k.block(|k| {
            k.update(BinOp::Add, steps, runtime::int(1));
            let total = k.acc(Expr::num(ty, 0.0));
            k.range(LoopKind::Seq, "t", 0, c, |k, t| {
                let sum = k.acc(Expr::num(ty, 0.0));
                k.range(LoopKind::Seq, "j", 0, c, |k, j| {
                    let v = k.load(q, &[n, t, j]) * k.load(p, &[n, j]);
                    k.update(BinOp::Add, sum, v);
                });
                k.store(qp, &[n, t], Expr::acc(sum));
                let v = k.load(p, &[n, t]) * Expr::acc(sum);
                k.update(BinOp::Add, total, v);
            });
            let error = k.acc(Expr::num(ty, 0.0));
            k.range(LoopKind::Seq, "t", 0, c, |k, t| {
                let v = Expr::un(UnOp::Abs, k.load(qp, &[n, t]) - Expr::acc(total));
                k.update(BinOp::Max, error, v);
            });
            let close = k.let_(Expr::bin(BinOp::Lt, Expr::acc(error), Expr::num(ty, 0.005 / classes as f64)));
            k.set(steps, Expr::select(close.clone(), most.clone(), Expr::acc(steps)));
            k.if_(Expr::un(UnOp::Not, close), |k| {
                k.range(LoopKind::Seq, "t", 0, c, |k, t| {
                    let own = k.load(q, &[n, t, t]);
                    let own = k.let_(own);
                    let was = k.load(qp, &[n, t]);
                    let was = k.let_(was);
                    let diff = k.let_((Expr::acc(total) - was.clone()) / own.clone());
                    let v = k.load(p, &[n, t]) + diff.clone();
                    k.store(p, &[n, t], v);
                    let scale = k.let_(Expr::num(ty, 1.0) + diff.clone());
                    let grown = Expr::acc(total) + diff.clone() * (diff.clone() * own + was.clone() + was);
                    k.set(total, grown / (scale.clone() * scale.clone()));
                    k.range(LoopKind::Seq, "j", 0, c, |k, j| {
                        let v = k.load(p, &[n, j]) / scale.clone();
                        k.store(p, &[n, j], v);
                        let v = (k.load(qp, &[n, j]) + diff.clone() * k.load(q, &[n, t, j])) / scale.clone();
                        k.store(qp, &[n, j], v);
                    });
                });
            });
        });
        k.push(Stmt::While { cond: Expr::bin(BinOp::Lt, Expr::acc(steps), most), body });
    }
}
