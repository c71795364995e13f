//! Operands that determine a shape but are known only at run time (axes, pads, a Reshape target, ...).
//!
//! `infer` creates a symbol for every size that depends on such an operand ([`InferCx::sizes`]). `lower`
//! emits a small kernel that computes the sizes from the operand's values and checks them (`ONNXC_E_VALUE`),
//! and the driver defines the symbols before the kernels that use them ([`LowerCx::define_all`]). The number
//! of values must be known, because it determines the rank.

use crate::diag::{Failure, codes};
use crate::nest::{BinOp, Buf, Expr, KernelBuilder, Status, Stmt};
use crate::ops::{InferCx, LowerCx};
use crate::sym::Dim;
use crate::tensor::ElemType;

/// True if an axis, which counts from `rank` if it is negative, is `d`.
pub fn is_axis(axis: &Expr, d: usize, rank: usize) -> Expr {
    or(eq(axis.clone(), int(d as i64)), eq(axis.clone(), int(d as i64 - rank as i64)))
}

/// True if the axes in `b` (negative ones count from `rank`) are equal to `set`, which has the same length.
fn names_set(k: &KernelBuilder, b: Buf, set: &[usize], rank: usize) -> Expr {
    let mut all = Expr::bool(true);
    for d in set {
        let mut hit = Expr::bool(false);
        for j in 0..set.len() {
            hit = or(hit, is_axis(&value(k, b, j), *d, rank));
        }
        all = all.and(hit);
    }
    all
}

/// True if the axes in `b` are equal to one of the sets.
pub fn names_any(k: &KernelBuilder, b: Buf, sets: &[Vec<usize>], rank: usize) -> Expr {
    sets.iter().map(|s| names_set(k, b, s, rank)).fold(Expr::bool(false), or)
}

/// True if input `i` is given but its values are known only at run time.
pub fn late(cx: &InferCx, i: usize) -> bool {
    cx.has(i) && cx.dims_value(i).is_none()
}

/// Input `i`, if its values are known only at run time, during lowering.
pub fn late_operand(cx: &LowerCx, i: usize) -> Option<Buf> {
    cx.input_opt(i).filter(|_| cx.dims_value(i).is_none())
}

/// Number of values in input `i` (rank 0 or 1) if it is constant.
pub fn length(cx: &InferCx, i: usize) -> Option<usize> {
    let t = cx.inputs.get(i)?.as_ref()?.ty.as_tensor()?;
    count(&t.dims)
}

/// The number of values in input `i`, which must be known: it determines the rank of the result.
pub fn need_length(cx: &InferCx, i: usize, what: &str) -> Result<usize, Failure> {
    if cx.tensor(i).rank() > 1 {
        return Err(cx.error(codes::OP_SHAPE, format!("input {i} must be a list of {what}")).into());
    }
    length(cx, i).filter(|n| *n <= 64).ok_or_else(|| {
        cx.error(codes::DYNAMIC_VALUE, format!("the number of {what} (input {i}) is only known at run time"))
            .help("it decides the rank of the result: declare the length of the operand")
            .into()
    })
}

/// The number of values, given a buffer's shape.
pub fn count(dims: &[Dim]) -> Option<usize> {
    match dims {
        [] => Some(1),
        [n] => usize::try_from(n.as_const()?).ok(),
        _ => None,
    }
}

/// Value `j` of a list of integers, as i64.
pub fn value(k: &KernelBuilder, b: Buf, j: usize) -> Expr {
    let at = if k.m.bufs[b].dims.is_empty() { vec![] } else { vec![Dim::from(j)] };
    Expr::cast(k.m.bufs[b].ty.compute(), ElemType::I64, k.load(b, &at))
}

/// Value `j` of a list of integers, for the driver ([`LowerCx::define`]).
pub fn entry(cx: &LowerCx, b: Buf, j: usize) -> Expr {
    let at = if cx.dims(b).is_empty() { vec![] } else { vec![Dim::from(j)] };
    Expr::cast(cx.elem(b).compute(), ElemType::I64, Expr::Load { buf: b, at })
}

/// All values of a list of integers, in registers.
pub fn values(k: &mut KernelBuilder, b: Buf) -> Vec<Expr> {
    let n = count(&k.m.bufs[b].dims).unwrap_or(0);
    (0..n)
        .map(|j| {
            let v = value(k, b, j);
            k.let_(v)
        })
        .collect()
}

/// An i64 constant.
pub fn int(v: i64) -> Expr {
    Expr::int(ElemType::I64, v)
}

/// `a == b`.
pub fn eq(a: Expr, b: Expr) -> Expr {
    Expr::bin(BinOp::Eq, a, b)
}

/// `a <= b`.
pub fn le(a: Expr, b: Expr) -> Expr {
    Expr::bin(BinOp::Le, a, b)
}

/// `a || b`.
pub fn or(a: Expr, b: Expr) -> Expr {
    Expr::bin(BinOp::Or, a, b)
}

/// 1 if `c` is true, else 0.
pub fn one_if(c: Expr) -> Expr {
    Expr::select(c, int(1), int(0))
}

/// Clamps `x` to `lo..=hi`.
pub fn clamp(x: Expr, lo: Expr, hi: Expr) -> Expr {
    x.max(lo).min(hi)
}

/// Returns `ONNXC_E_VALUE` from the kernel unless `cond` is true.
pub fn check(k: &mut KernelBuilder, cond: Expr) {
    k.push(Stmt::Check { cond, status: Status::Value });
}

/// Sizes contained in the operand, checked not to be negative.
pub fn sizes(k: &mut KernelBuilder, list: Buf) -> Vec<Expr> {
    let v = values(k, list);
    for x in &v {
        check(k, le(int(0), x.clone()));
    }
    v
}

/// Flags (0 or 1, i64) of the dimensions that are named by the axes in `list`, out of `rank`. Axes that are
/// out of range or repeated are an error.
pub fn axis_flags(k: &mut KernelBuilder, list: Buf, rank: usize) -> Vec<Expr> {
    let v = values(k, list);
    let mut found = int(0);
    let mut out = vec![];
    for d in 0..rank {
        let any = v.iter().map(|x| is_axis(x, d, rank)).reduce(or).unwrap_or(Expr::bool(false));
        let flag = k.let_(one_if(any));
        found = k.let_(found + flag.clone());
        out.push(flag);
    }
    check(k, eq(found, int(v.len() as i64)));
    out
}

/// Entry `j` of `list` among those whose flag is `keep`, for each `j` in `0..n`.
pub fn pick(k: &mut KernelBuilder, flags: &[Expr], keep: i64, list: &[Expr], n: usize) -> Vec<Expr> {
    let mut before = int(0);
    let mut out = vec![int(0); n];
    for (f, x) in flags.iter().zip(list) {
        let mine = k.let_(eq(f.clone(), int(keep)));
        for (j, o) in out.iter_mut().enumerate() {
            let here = mine.clone().and(eq(before.clone(), int(j as i64)));
            *o = k.let_(Expr::select(here, x.clone(), o.clone()));
        }
        before = k.let_(before + one_if(mine));
    }
    out
}

/// Checks that the product of `sizes` is `total`; a product that overflows an i64 differs from it.
pub fn check_total(k: &mut KernelBuilder, sizes: &[Expr], total: Dim) {
    let wide = |e: Expr| Expr::cast(ElemType::I64, ElemType::F64, e);
    let big = sizes.iter().cloned().map(wide).reduce(|a, b| a * b).unwrap_or(Expr::num(ElemType::F64, 1.0));
    check(k, Expr::bin(BinOp::Lt, big, Expr::num(ElemType::F64, 9.0e18)));
    let all = sizes.iter().cloned().reduce(|a, b| a * b).unwrap_or(int(1));
    check(k, eq(all, Expr::index(total)));
}
