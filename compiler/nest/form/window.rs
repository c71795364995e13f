//! Windows: reductions of one element per step, as in pooling.

use super::contraction::{Contraction, ProductKind};
use super::loops::{Loops, Sum, par_loops, seq_loops, sum};
use crate::nest::{BinOp, Buf, Expr, Reg, Scalar, Stmt};
use crate::sym::Dim;

/// A reduction of one element per step, or of its product with a weight.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Window {
    /// The `par` nest.
    pub loops: Loops,
    /// The accumulator.
    pub acc: Reg,
    /// Its initial value.
    pub init: Scalar,
    /// The `seq` nest.
    pub taps: Loops,
    /// The operation of the reduction.
    pub op: BinOp,
    /// The element.
    pub read: (Buf, Vec<Dim>),
    /// The weight that it is multiplied by.
    pub weight: Option<(Buf, Vec<Dim>)>,
    /// Lets and stores.
    pub epilogue: Vec<Stmt>,
}

impl Window {
    /// A sum of products as a window over its first operand.
    pub fn of_contraction(c: &Contraction) -> Option<Window> {
        let fma = matches!(c.product, ProductKind::Fma | ProductKind::Double);
        (fma && c.is_plain()).then(|| Window {
            loops: c.loops.clone(),
            acc: c.acc,
            init: Scalar { ty: c.product.ty(), bits: 0 },
            taps: c.reduction.clone(),
            op: BinOp::Add,
            read: c.a.clone(),
            weight: Some(c.b.clone()),
            epilogue: c.epilogue.clone(),
        })
    }
}

/// The nest as a window, also where it is a contraction.
pub(crate) fn window(body: &[Stmt]) -> Option<Window> {
    let (loops, inside) = par_loops(body);
    let Sum { init, acc, steps, step, tail } = sum(inside)?;
    let [Stmt::Set { reg, value, .. }] = step else { return None };
    let (op, old, read, weight) = match value {
        Expr::Bin(op @ (BinOp::Max | BinOp::Min | BinOp::Add), old, read) => (*op, old, read, None),
        Expr::Fma(read, weight, old) => match &**weight {
            Expr::Load { buf, at } => (BinOp::Add, old, read, Some((*buf, at.clone()))),
            _ => return None,
        },
        _ => return None,
    };
    let (Expr::Acc { reg: old, .. }, Expr::Load { buf, at }) = (&**old, &**read) else { return None };
    let read = (*buf, at.clone());
    let tail = tail.to_vec();
    (*reg == acc && *old == acc).then_some(Window {
        loops,
        acc,
        init,
        taps: steps,
        op,
        read,
        weight,
        epilogue: tail,
    })
}

/// A window of contractions, as `fuse_conv_pool` emits it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PooledContraction {
    /// The `par` nest.
    pub loops: Loops,
    /// The pooled value, and what it begins with.
    pub pooled: (Reg, Expr),
    /// The loops over the window.
    pub window: Loops,
    /// The accumulator of the contraction.
    pub sum: Reg,
    /// Its loops.
    pub reduction: Loops,
    /// The step of the sum.
    pub step: Expr,
    /// The image.
    pub a: (Buf, Vec<Dim>),
    /// The weights.
    pub w: (Buf, Vec<Dim>),
    /// The statements between a contraction and the update of the pooled value.
    pub then: Vec<Stmt>,
    /// Lets and stores.
    pub epilogue: Vec<Stmt>,
}

/// The nest as a pooled contraction.
pub(crate) fn pooled_contraction(body: &[Stmt]) -> Option<PooledContraction> {
    let (loops, inside) = par_loops(body);
    let [Stmt::Acc { reg, lanes: 1, init, .. }, window @ Stmt::For { .. }, tail @ ..] = inside else {
        return None;
    };
    let (window, inside) = seq_loops(window)?;
    let [Stmt::Acc { reg: sum, lanes: 1, .. }, depth @ Stmt::For { .. }, then @ ..] = inside else {
        return None;
    };
    let (depth, step) = seq_loops(depth)?;
    let [Stmt::Set { value: step @ Expr::Fma(a, w, _), .. }] = step else { return None };
    let (Expr::Load { buf: a, at: at_a }, Expr::Load { buf: w, at: at_w }) = (&**a, &**w) else {
        return None;
    };
    let sets = then.iter().filter(|s| matches!(s, Stmt::Set { reg: r, .. } if r == reg)).count();
    let straight = then.iter().all(|s| matches!(s, Stmt::Let { .. } | Stmt::Set { .. }))
        && tail.iter().all(|s| matches!(s, Stmt::Let { .. } | Stmt::Store { .. }));
    (sets == 1 && straight && !tail.is_empty()).then(|| PooledContraction {
        loops,
        pooled: (*reg, init.clone()),
        window,
        sum: *sum,
        reduction: depth,
        step: step.clone(),
        a: (*a, at_a.clone()),
        w: (*w, at_w.clone()),
        then: then.to_vec(),
        epilogue: tail.to_vec(),
    })
}
