//! TopK: the k largest (or smallest) elements along an axis, in order, with their positions.
//!
//! | versions | |
//! |---|---|
//! | 1 | attribute `k` |
//! | 10 | input K |
//! | 11, 24 | `largest`, `sorted`; without order any is right, so there is one |
//!
//! Of equal elements the first comes first. NaN is larger than all numbers.

use super::{Attrs, InferCx, LowerCx, Operator, runtime};
use crate::diag::{Result, codes};
use crate::nest::{BinOp, Expr, KernelBuilder, LoopKind, Reg, UnOp};
use crate::sym::Dim;
use crate::tensor::ElemType;

/// The operator.
#[derive(Clone, Debug, PartialEq)]
pub struct TopK {
    /// May be negative.
    pub axis: i64,
    /// Version 1.
    pub k: Option<i64>,
    /// The largest, or the smallest.
    pub largest: bool,
}

impl Operator for TopK {
    const OPS: &'static [&'static str] = &["TopK"];
    fn parse(a: &mut Attrs) -> Result<Self> {
        a.ignore("sorted");
        let k = if a.since() < 10 { Some(a.int_required("k")?) } else { None };
        Ok(TopK { axis: a.int("axis", -1)?, k, largest: a.flag("largest", true)? })
    }
    fn infer(&self, cx: &mut InferCx) -> Result<()> {
        let t = cx.tensor(0)?.clone();
        let axis = cx.axis(self.axis, t.rank())?;
        let declared = (0..2).find_map(|i| runtime::declared_for(cx, 1, i));
        let k = match (self.k, declared) {
            (Some(k), _) => Dim::constant(k),
            (None, _) if runtime::length(cx, 1) != Some(1) => return cx.error(codes::OP_SHAPE, "K must be one number").fail(),
            (None, Some(d)) => {
                runtime::require_rank(cx, &d, t.rank())?;
                d[axis]
            }
            (None, None) => cx.need_dims(1, "K")?[0],
        };
        if k.as_const().is_some_and(|k| k < 0) {
            return cx.error(codes::OP_SHAPE, "K is negative").fail();
        }
        cx.syms.require_at_most(k, t.dims[axis]);
        if let (Some(k), Some(n)) = (k.as_const(), t.dims[axis].as_const())
            && k > n
        {
            return cx.error(codes::OP_SHAPE, format!("K is {k}, but the axis has {n} elements")).fail();
        }
        let mut dims = t.dims;
        dims[axis] = k;
        cx.set(0, t.elem, dims.clone());
        cx.set(1, ElemType::I64, dims);
        Ok(())
    }
    fn lower(&self, cx: &mut LowerCx) -> Result<()> {
        let x = cx.input(0);
        let (values, indices) = (cx.output_opt(0), cx.output_opt(1));
        let Some(any) = values.or(indices) else { return Ok(()) };
        let dims = cx.dims(x);
        let axis = (if self.axis < 0 { self.axis + dims.len() as i64 } else { self.axis }) as usize;
        let (n, count, ty) = (dims[axis], cx.dims(any)[axis], cx.elem(x).compute());
        let asked = cx.input_opt(1).filter(|_| cx.dims_value(1).is_none());
        let outer: Vec<Dim> = dims[..axis].iter().chain(&dims[axis + 1..]).copied().collect();
        cx.kernel(|k| {
            if let Some(b) = asked {
                let same = runtime::eq(runtime::value(k, b, 0), Expr::index(count));
                runtime::check(k, same);
            }
            k.nest(LoopKind::Par, &outer, |k, o| {
                let at = |i: Dim| -> Vec<Dim> { o[..axis].iter().chain([&i]).chain(&o[axis..]).copied().collect() };
                let (last, last_at) = (k.acc(Expr::num(ty, 0.0)), k.acc(runtime::int(-1)));
                k.range(LoopKind::Seq, "j", 0, count, |k, j| {
                    // The first one in order of those that come after the last one.
                    let (best, best_at) = (k.acc(Expr::num(ty, 0.0)), k.acc(runtime::int(-1)));
                    k.range(LoopKind::Seq, "i", 0, n, |k, i| {
                        let v = k.load(x, &at(i));
                        let v = k.let_(v);
                        let after = self.after(k, ty, (v.clone(), i), (last, last_at));
                        let none = Expr::bin(BinOp::Lt, Expr::acc(best_at), runtime::int(0));
                        let before = self.before(ty, v.clone(), Expr::acc(best));
                        let better = k.let_(after.and(runtime::or(none, before)));
                        k.set(best_at, Expr::select(better.clone(), Expr::index(i), Expr::acc(best_at)));
                        k.set(best, Expr::select(better, v, Expr::acc(best)));
                    });
                    k.set(last, Expr::acc(best));
                    k.set(last_at, Expr::acc(best_at));
                    if let Some(b) = values {
                        k.store(b, &at(j), Expr::acc(best));
                    }
                    if let Some(b) = indices {
                        k.store(b, &at(j), Expr::acc(best_at));
                    }
                });
            });
        });
        Ok(())
    }
}

impl TopK {
    /// True if value `a` stands before `b` wherever they are.
    fn before(&self, ty: ElemType, a: Expr, b: Expr) -> Expr {
        let (a, b) = if self.largest { (a, b) } else { (b, a) };
        let more = Expr::bin(BinOp::Gt, a.clone(), b.clone());
        if !ty.is_float() {
            return more;
        }
        let nan = |e: Expr| Expr::un(UnOp::IsNan, e);
        runtime::or(more, nan(a).and(Expr::un(UnOp::Not, nan(b))))
    }
    /// True if the element comes after the one that was taken last, or if none was.
    fn after(&self, k: &mut KernelBuilder, ty: ElemType, (v, i): (Expr, Dim), (last, last_at): (Reg, Reg)) -> Expr {
        let later = self.before(ty, Expr::acc(last), v.clone());
        let earlier = self.before(ty, v, Expr::acc(last));
        let same = Expr::un(UnOp::Not, earlier).and(Expr::bin(BinOp::Gt, Expr::index(i), Expr::acc(last_at)));
        let first = Expr::bin(BinOp::Lt, Expr::acc(last_at), runtime::int(0));
        k.let_(runtime::or(first, runtime::or(later, same)))
    }
}
