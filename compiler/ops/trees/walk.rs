//! The nests that walk a forest: each row from root to leaf, tree after tree.
//!
//! A step is a row of four integers (feature, bits of the compared float, both successors); compared doubles
//! are in a separate table. Rows of leaves, whose successors are themselves, begin at a power of two, so that
//! one bit of a position identifies leaves. Several trees are walked in parallel until all have reached a
//! leaf: a step has a latency of two dependent loads, which the steps of other trees hide. No branch depends
//! on a comparison.
//!
//! If NaN satisfies some steps and not others, a table lists which; it is used only for rows that contain a
//! NaN.

use super::forest::Forest;
use crate::nest::{BinOp, Buf, Expr, KernelBuilder, LoopKind, Reg, Scalar, Stmt, UnOp};
use crate::ops::LowerCx;
use crate::ops::support::runtime;
use crate::sym::Dim;
use crate::tensor::{ConstData, ElemType};
use std::sync::Arc;

/// The combination of the values of a target's leaves.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Aggregate {
    Average,
    Sum,
    Min,
    Max,
}

/// The computation of scores from leaves.
#[derive(Clone, Debug, PartialEq)]
pub struct Scores {
    /// The combination of leaves.
    pub aggregate: Aggregate,
    /// Base values: none, one number for all targets, or one per target.
    pub base: Vec<f64>,
    /// Targets.
    pub targets: usize,
    /// The compute type.
    pub ty: ElemType,
}

/// A row of features, and the handling of NaN in it.
#[derive(Clone, Copy)]
struct Sample {
    x: Buf,
    n: Dim,
    missing: Missing,
}

/// Trees that are walked in parallel.
const ABREAST: i64 = 8;

struct Tables {
    steps: Buf,
    /// The same words viewed as floats.
    floats: Buf,
    /// The steps that NaN satisfies, if not all steps agree.
    holds: Option<Buf>,
    values: Option<Buf>,
    roots: Buf,
    n_trees: i64,
    /// Position of the first leaf.
    n_steps: Dim,
    n_leaves: Dim,
    nan: [bool; 2],
    ty: ElemType,
}

/// The handling of NaN.
#[derive(Clone, Copy)]
enum Missing {
    /// The row contains no NaN.
    Never,
    Fails,
    Holds,
    /// Given by this table.
    Told(Buf),
}

/// Writes the scores of each row of `x` [N, F] to `y` [N, targets], whose elements have the compute type.
pub fn walk(cx: &mut LowerCx, f: &Forest, s: &Scores, x: Buf, y: Buf) {
    let ty = s.ty;
    let t = tables(cx, f, ty);
    let rows = cx.dims(x)[0];
    let one = f.leaves.iter().all(|l| l.len() == 1) && s.targets == 1;
    let start: Expr = match s.aggregate {
        Aggregate::Min => Scalar::highest(ty).into(),
        Aggregate::Max => Scalar::lowest(ty).into(),
        _ => Expr::num(ty, 0.0),
    };
    let op = match s.aggregate {
        Aggregate::Min => BinOp::Min,
        Aggregate::Max => BinOp::Max,
        _ => BinOp::Add,
    };
    let flat: Vec<f64> = f.leaves.iter().flatten().map(|w| w.value).collect();
    let weights = cx.m.constant("weights", floats(ty, &flat));
    let finish = |v: Expr, base: Option<Expr>| {
        let v = match s.aggregate {
            Aggregate::Average => v / Expr::num(ty, f.roots.len().max(1) as f64),
            Aggregate::Sum => v,
            // A target without leaves has no extreme.
            _ => Expr::select(runtime::eq(v.clone(), start.clone()), Expr::num(ty, 0.0), v),
        };
        base.map_or(v.clone(), |b| v + b)
    };
    if one {
        let base = s.base.first().map(|b| Expr::num(ty, *b));
        cx.kernel(|k| {
            k.nest(LoopKind::Par, &[rows], |k, n| {
                let acc = k.acc(start.clone());
                t.each(k, x, n[0], |k, leaf| {
                    let w = k.with_index(leaf, t.n_leaves, |k, l| k.load(weights, &[l]));
                    k.update(op, acc, w);
                });
                let v = k.let_(Expr::acc(acc));
                k.store(y, &[n[0], Dim::constant(0)], finish(v, base));
            });
        });
        return;
    }
    let targets: Vec<i64> = f.leaves.iter().flatten().map(|w| w.target).collect();
    let mut first = vec![0i64];
    f.leaves.iter().for_each(|l| first.push(first.last().copied().unwrap_or(0) + l.len() as i64));
    let total = Dim::from(targets.len());
    let (targets, first) = (
        cx.m.constant("targets", Arc::new(ConstData::from_i64s(&targets))),
        cx.m.constant("first", Arc::new(ConstData::from_i64s(&first))),
    );
    let base = (!s.base.is_empty()).then(|| cx.m.constant("base", floats(ty, &s.base)));
    let count = Dim::from(s.targets);
    cx.kernel(|k| {
        k.nest(LoopKind::Par, &[rows], |k, n| {
            let n = n[0];
            k.range(LoopKind::Seq, "c", 0, count, |k, c| k.store(y, &[n, c], start.clone()));
            t.each(k, x, n, |k, leaf| {
                k.at_index(leaf, t.n_leaves, |k, l| {
                    let (at, end) = (k.load(first, &[l]), k.load(first, &[l + 1]));
                    let (at, end) = (k.acc(at), k.let_(end));
                    let body = k.block(|k| {
                        k.at_index(Expr::acc(at), total, |k, w| {
                            let c = k.load(targets, &[w]);
                            k.at_index(c, count, |k, c| {
                                let v = Expr::bin(op, k.load(y, &[n, c]), k.load(weights, &[w]));
                                k.store(y, &[n, c], v);
                            });
                        });
                        k.update(BinOp::Add, at, runtime::int(1));
                    });
                    k.push(Stmt::While { cond: Expr::bin(BinOp::Lt, Expr::acc(at), end), body });
                });
            });
            if s.aggregate != Aggregate::Sum || base.is_some() {
                k.range(LoopKind::Seq, "c", 0, count, |k, c| {
                    let v = k.load(y, &[n, c]);
                    let v = k.let_(v);
                    let base = base.map(|b| k.load_broadcast(b, &[c]));
                    k.store(y, &[n, c], finish(v, base));
                });
            }
        });
    });
}

impl Tables {
    /// Calls `use_leaf` with the index of the leaf that row `n` reaches, for one tree after the other.
    fn each(&self, k: &mut KernelBuilder, x: Buf, n: Dim, use_leaf: impl Fn(&mut KernelBuilder, Expr)) {
        let features = k.m.bufs[x].dims[1];
        let missing = match (self.holds, self.nan) {
            _ if !k.m.bufs[x].ty.is_float() => Missing::Never,
            (Some(table), _) => Missing::Told(table),
            (_, [_, true]) => Missing::Holds,
            _ => Missing::Fails,
        };
        if !matches!(missing, Missing::Told(_)) {
            return self.walked(k, Sample { x, n, missing }, &use_leaf);
        }
        let any = k.acc(runtime::int(0));
        k.nest(LoopKind::Seq, &[features], |k, f| {
            let v = k.load(x, &[n, f[0]]);
            k.set(any, Expr::select(Expr::un(UnOp::IsNan, v), runtime::int(1), Expr::acc(any)));
        });
        let then = k.block(|k| self.walked(k, Sample { x, n, missing: Missing::Never }, &use_leaf));
        let els = k.block(|k| self.walked(k, Sample { x, n, missing }, &use_leaf));
        k.push(Stmt::If { cond: runtime::eq(Expr::acc(any), runtime::int(0)), then, els });
    }
    fn walked(&self, k: &mut KernelBuilder, s: Sample, use_leaf: &impl Fn(&mut KernelBuilder, Expr)) {
        let groups = self.n_trees / ABREAST;
        let all = |k: &mut KernelBuilder, first: Dim, width: i64| {
            let roots: Vec<Expr> = (0..width).map(|j| k.load(self.roots, &[first + j])).collect();
            for leaf in self.leaves(k, s, roots) {
                use_leaf(k, leaf);
            }
        };
        if groups > 0 {
            k.nest(LoopKind::Seq, &[Dim::constant(groups)], |k, g| all(k, g[0] * ABREAST, ABREAST));
        }
        all(k, Dim::constant(groups * ABREAST), self.n_trees % ABREAST);
    }
    /// Indices of the leaves that row `n` reaches from some roots.
    fn leaves(&self, k: &mut KernelBuilder, s: Sample, roots: Vec<Expr>) -> Vec<Expr> {
        let at: Vec<Reg> = roots.into_iter().map(|r| k.acc(r)).collect();
        let count = Expr::index(self.n_steps);
        // Positions of leaves have the bit `count` set.
        if let Some(all) = at.iter().map(|r| Expr::acc(*r)).reduce(|a, b| Expr::bin(BinOp::And, a, b))
            && self.n_steps != Dim::constant(0)
        {
            let body = k.block(|k| at.iter().for_each(|r| self.step(k, s, *r)));
            k.push(Stmt::While { cond: Expr::bin(BinOp::Lt, all, count.clone()), body });
        }
        at.into_iter().map(|r| k.let_(Expr::acc(r) - count.clone())).collect()
    }
    /// Advances a position by one step.
    fn step(&self, k: &mut KernelBuilder, Sample { x, n, missing }: Sample, at: Reg) {
        let (from, features) = (k.m.bufs[x].ty.compute(), k.m.bufs[x].dims[1]);
        k.at_index(Expr::acc(at), self.n_steps + self.n_leaves, |k, p| {
            let col = |k: &mut KernelBuilder, c: i64| {
                let v = Expr::cast(ElemType::I32, ElemType::I64, k.load(self.steps, &[p, Dim::constant(c)]));
                k.let_(v)
            };
            let feature = col(k, 0);
            let value = match self.values {
                Some(b) => k.load(b, &[p]),
                None => k.load(self.floats, &[p, Dim::constant(1)]),
            };
            let value = k.let_(value);
            let (yes, no) = (col(k, 2), col(k, 3));
            let v = k.with_index(feature, features, |k, f| Expr::cast(from, self.ty, k.load(x, &[n, f])));
            let v = k.let_(v);
            let at_most = Expr::bin(BinOp::Le, v.clone(), value.clone());
            let not_more = Expr::un(UnOp::Not, Expr::bin(BinOp::Gt, v, value));
            let holds = match missing {
                Missing::Never | Missing::Fails => at_most,
                Missing::Holds => not_more,
                Missing::Told(table) => Expr::select(k.load(table, &[p]), not_more, at_most),
            };
            k.set(at, Expr::select(holds, yes, no));
        });
    }
}

fn tables(cx: &mut LowerCx, f: &Forest, ty: ElemType) -> Tables {
    let mut words: Vec<i32> = vec![];
    let mut nan = [false; 2];
    // Positions of leaves have a bit that no position of a step has.
    let first_leaf =
        if f.steps.is_empty() { 0 } else { f.steps.len().max(f.leaves.len()).next_power_of_two() };
    let place = |p: usize| if p < f.steps.len() { p } else { first_leaf + (p - f.steps.len()) };
    for s in &f.steps {
        nan[usize::from(s.nan_holds)] = true;
        words.extend([
            s.feature as i32,
            (s.value as f32).to_bits() as i32,
            place(s.yes) as i32,
            place(s.no) as i32,
        ]);
    }
    for own in f.steps.len()..first_leaf + f.leaves.len() {
        words.extend([0, 0, own as i32, own as i32]);
    }
    let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
    let n = words.len() as i64 / 4;
    let data = ConstData::new(ElemType::I32, vec![n, 4], bytes).unwrap_or_else(|| ConstData::from_i64s(&[]));
    let steps = cx.m.constant("steps", Arc::new(data));
    let dims = cx.m.bufs[steps].dims.clone();
    let floats_of_steps = cx.m.view_as(steps, ElemType::F32, dims);
    let mut values: Vec<f64> = f.steps.iter().map(|s| s.value).collect();
    values.resize(n as usize, 0.0);
    let values = (ty == ElemType::F64).then(|| cx.m.constant("values", floats(ty, &values)));
    let holds = (nan == [true; 2]).then(|| {
        let mut holds: Vec<u8> = f.steps.iter().map(|s| u8::from(s.nan_holds)).collect();
        holds.resize(n as usize, 0);
        let data =
            ConstData::new(ElemType::Bool, vec![n], holds).unwrap_or_else(|| ConstData::from_i64s(&[]));
        cx.m.constant("holds", Arc::new(data))
    });
    let roots: Vec<i64> = f.roots.iter().map(|r| place(*r) as i64).collect();
    let n_trees = roots.len() as i64;
    let roots = cx.m.constant("roots", Arc::new(ConstData::from_i64s(&roots)));
    Tables {
        steps,
        floats: floats_of_steps,
        holds,
        values,
        roots,
        n_trees,
        n_steps: Dim::from(first_leaf),
        n_leaves: Dim::from(f.leaves.len()),
        nan,
        ty,
    }
}

/// A vector of one of the two compute types of trees.
fn floats(ty: ElemType, v: &[f64]) -> Arc<ConstData> {
    if ty != ElemType::F64 {
        let v: Vec<f32> = v.iter().map(|x| *x as f32).collect();
        return Arc::new(ConstData::f32s(vec![v.len() as i64], &v));
    }
    let bytes: Vec<u8> = v.iter().flat_map(|x| x.to_le_bytes()).collect();
    Arc::new(ConstData::new(ty, vec![v.len() as i64], bytes).unwrap_or_else(|| ConstData::f32s(vec![0], &[])))
}
