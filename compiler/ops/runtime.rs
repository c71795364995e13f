//! Operands that decide a shape but are only known at run time (axes, pads, a Reshape target, ...).
//!
//! Where the model declares the shape of the result, the generated code takes that shape and checks at run time that
//! the operand's values lead to it; otherwise it returns `ONNXC_E_VALUE`. Without a declared shape the operator refuses
//! such an operand (`DYNAMIC_VALUE`). The checks stand at the start of the kernel that computes the result.

use super::{InferCx, LowerCx};
use crate::diag::Result;
use crate::nest::{BinOp, Buf, Expr, KernelBuilder, LoopKind, Status, Stmt};
use crate::sym::{Answer, Dim, SymTable};
use crate::tensor::ElemType;

/// Most dimensions for which all subsets of axes are tried.
const MAX_RANK: usize = 8;

/// The declared shape of output `k`, if input `i` is given but only known at run time.
pub fn declared_for(cx: &InferCx, i: usize, k: usize) -> Option<Vec<Dim>> {
    if !cx.has(i) || cx.dims_value(i).is_some() { None } else { cx.declared.get(k)?.clone() }
}

/// Number of values in input `i` (rank 0 or 1) if it is constant.
pub fn length(cx: &InferCx, i: usize) -> Option<usize> {
    let t = cx.inputs.get(i)?.as_ref()?.ty.as_tensor()?;
    count(&t.dims)
}

/// The same of a buffer's shape.
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

/// An i64 constant.
pub fn int(v: i64) -> Expr {
    Expr::int(ElemType::I64, v)
}

/// `a == b`.
pub fn eq(a: Expr, b: Expr) -> Expr {
    Expr::bin(BinOp::Eq, a, b)
}

/// `a || b`.
pub fn or(a: Expr, b: Expr) -> Expr {
    Expr::bin(BinOp::Or, a, b)
}

/// `x` within `lo..=hi`.
pub fn clamp(x: Expr, lo: Expr, hi: Expr) -> Expr {
    x.max(lo).min(hi)
}

/// Leaves the kernel unless `cond` holds.
pub fn check(k: &mut KernelBuilder, cond: Expr) {
    k.push(Stmt::Check { cond, status: Status::Value });
}

/// Writes `src` to output 0, whose shape has as many elements, after some checks.
pub fn checked_copy(cx: &mut LowerCx, src: Buf, checks: impl FnOnce(&mut KernelBuilder)) {
    let y = cx.output(0);
    let out = cx.dims(y);
    let src = cx.m.view(src, out.clone());
    cx.kernel(|k| {
        checks(k);
        k.nest(LoopKind::Par, &out, |k, at| {
            let v = k.load(src, at);
            k.store(y, at, v);
        });
    });
}

/// Sets of `n` axes of `full` without which it is `rest`; each axis in a set satisfies `of`.
/// `None` if an equality can not be decided.
pub fn axes_between(syms: &SymTable, full: &[Dim], rest: &[Dim], n: usize, of: impl Fn(Dim) -> bool) -> Option<Vec<Vec<usize>>> {
    subsets(full.len(), n, |set| {
        if !set.iter().all(|a| of(full[*a])) {
            return Some(false);
        }
        let kept: Vec<Dim> = (0..full.len()).filter(|d| !set.contains(d)).map(|d| full[d]).collect();
        if kept.len() != rest.len() {
            return Some(false);
        }
        let answers: Vec<Answer> = kept.iter().zip(rest).map(|(a, b)| syms.eq(*a, *b)).collect();
        decided(&answers)
    })
}

/// Sets of `n` axes that, set to 1, turn `full` into `kept`.
pub fn axes_to_one(syms: &SymTable, full: &[Dim], kept: &[Dim], n: usize) -> Option<Vec<Vec<usize>>> {
    if full.len() != kept.len() {
        return None;
    }
    let one = Dim::constant(1);
    subsets(full.len(), n, |set| decided(&(0..full.len()).map(|d| syms.eq(kept[d], if set.contains(&d) { one } else { full[d] })).collect::<Vec<_>>()))
}

fn decided(answers: &[Answer]) -> Option<bool> {
    if answers.contains(&Answer::No) { Some(false) } else { (!answers.contains(&Answer::Unknown)).then_some(true) }
}

fn subsets(rank: usize, n: usize, accept: impl Fn(&[usize]) -> Option<bool>) -> Option<Vec<Vec<usize>>> {
    if rank > MAX_RANK {
        return None;
    }
    let mut out = vec![];
    for mask in 0..1u32 << rank {
        let set: Vec<usize> = (0..rank).filter(|d| mask >> d & 1 == 1).collect();
        if set.len() == n && accept(&set)? {
            out.push(set);
        }
    }
    Some(out)
}

/// True if the axes in `b` (negative ones count from `rank`) are `set`, which has as many.
pub fn names_set(k: &KernelBuilder, b: Buf, set: &[usize], rank: usize) -> Expr {
    let mut all = Expr::bool(true);
    for d in set {
        let mut hit = Expr::bool(false);
        for j in 0..set.len() {
            let v = value(k, b, j);
            hit = or(hit, or(eq(v.clone(), int(*d as i64)), eq(v, int(*d as i64 - rank as i64))));
        }
        all = all.and(hit);
    }
    all
}

/// True if the axes in `b` are any of the sets.
pub fn names_any(k: &KernelBuilder, b: Buf, sets: &[Vec<usize>], rank: usize) -> Expr {
    sets.iter().map(|s| names_set(k, b, s, rank)).fold(Expr::bool(false), or)
}

/// Slice: window of dimension `d` as (start, step), checked to have `size` elements.
pub struct SliceArgs {
    /// Starts.
    pub starts: Buf,
    /// Ends.
    pub ends: Buf,
    /// Axes, where they are known.
    pub axes: Option<Vec<usize>>,
    /// Axes, where they are not.
    pub axes_at: Option<Buf>,
    /// Steps; 1 where left out.
    pub steps: Option<Buf>,
    /// How many starts.
    pub n: usize,
}

impl SliceArgs {
    /// Writes the registers and checks of one dimension.
    pub fn window(&self, k: &mut KernelBuilder, d: usize, rank: usize, from: Dim, size: Dim) -> (Expr, Expr) {
        let n = Expr::index(from);
        let (mut start, mut end, mut step) = (int(0), n.clone(), int(1));
        let mut hits: Vec<(Expr, usize)> = vec![];
        for j in 0..self.n {
            match (&self.axes, self.axes_at) {
                (Some(a), _) if a.get(j) == Some(&d) => hits.push((Expr::bool(true), j)),
                (None, Some(b)) => {
                    let v = value(k, b, j);
                    let hit = or(eq(v.clone(), int(d as i64)), eq(v, int(d as i64 - rank as i64)));
                    hits.push((k.let_(hit), j));
                }
                _ => {}
            }
        }
        if hits.is_empty() {
            check(k, eq(n, Expr::index(size)));
            return (start, step);
        }
        for (hit, j) in hits {
            let pick = |new: Expr, old: Expr| if hit == Expr::bool(true) { new } else { Expr::select(hit.clone(), new, old) };
            start = pick(value(k, self.starts, j), start);
            end = pick(value(k, self.ends, j), end);
            if let Some(s) = self.steps {
                step = pick(value(k, s, j), step);
            }
        }
        // Steps beyond any size are cut so that the arithmetic does not overflow.
        let step = k.let_(clamp(step, int(-(1 << 50)), int(1 << 50)));
        check(k, Expr::bin(BinOp::Ne, step.clone(), int(0)));
        let forward = k.let_(Expr::bin(BinOp::Gt, step.clone(), int(0)));
        let from_end = |k: &mut KernelBuilder, e: Expr| {
            let e = k.let_(e);
            k.let_(Expr::select(Expr::bin(BinOp::Lt, e.clone(), int(0)), e.clone() + n.clone(), e))
        };
        let (s, e) = (from_end(k, start), from_end(k, end));
        let last = n.clone() - int(1);
        let s = k.let_(Expr::select(forward.clone(), clamp(s.clone(), int(0), n.clone()), clamp(s, int(0), last.clone())));
        let e = k.let_(Expr::select(forward.clone(), clamp(e.clone(), int(0), n.clone()), clamp(e, int(-1), last)));
        let span = Expr::select(forward.clone(), e.clone() - s.clone(), s.clone() - e);
        let stride = k.let_(Expr::select(forward, step.clone(), -step.clone()));
        let found = ((span + stride.clone() - int(1)) / stride).max(int(0));
        check(k, eq(found, Expr::index(size)));
        (s, step)
    }
}

/// Loads `x` at indices that are run-time expressions, checked against its shape.
pub fn load_at(k: &mut KernelBuilder, x: Buf, index: &[Expr]) -> Expr {
    fn go(k: &mut KernelBuilder, x: Buf, rest: &[Expr], mut at: Vec<Dim>) -> Expr {
        match rest.split_first() {
            None => k.load(x, &at),
            Some((Expr::Index(d), rest)) => {
                at.push(*d);
                go(k, x, rest, at)
            }
            Some((e, rest)) => {
                let n = k.m.bufs[x].dims[at.len()];
                k.with_index(e.clone(), n, |k, i| {
                    at.push(i);
                    go(k, x, rest, at)
                })
            }
        }
    }
    go(k, x, index, vec![])
}

/// Demands that a declared shape has `rank` dimensions.
pub fn require_rank(cx: &InferCx, declared: &[Dim], rank: usize) -> Result<()> {
    if declared.len() == rank {
        return Ok(());
    }
    cx.error(crate::diag::codes::OP_SHAPE, "the declared shape of the result has another rank").found_expected(declared.len().to_string(), rank.to_string()).fail()
}
