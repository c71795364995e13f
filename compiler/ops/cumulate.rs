//! CumSum and CumProd: sums or products of the elements before (and at) each position along one axis.
//!
//! The axis is an operand. If it is known only at run time, it selects one of the nests; an invalid axis is
//! an error (`ONNXC_E_VALUE`). Versions differ in types.

use super::support::runtime;
use super::{Attrs, InferCx, LowerCx, Operator};
use crate::diag::{Result, codes};
use crate::nest::{BinOp, Buf, Expr, KernelBuilder, LoopKind};
use crate::ops::from_end;
use crate::sym::Dim;

/// The operators.
#[derive(Clone, Debug, PartialEq)]
pub struct Cumulate {
    /// Products instead of sums.
    pub product: bool,
    /// Excludes the element itself.
    pub exclusive: bool,
    /// Starts from the end.
    pub reverse: bool,
}

impl Operator for Cumulate {
    const OPS: &'static [&'static str] = &["CumSum", "CumProd"];
    fn parse(a: &mut Attrs) -> Result<Self> {
        Ok(Cumulate {
            product: a.op() == "CumProd",
            exclusive: a.flag("exclusive", false),
            reverse: a.flag("reverse", false),
        })
    }
    fn infer(&self, cx: &mut InferCx) -> Result<()> {
        let t = cx.tensor(0).clone();
        cx.require(runtime::length(cx, 1) == Some(1), codes::OP_SHAPE, "the axis must be one number")?;
        match cx.ints_value(1).as_deref() {
            Some([a]) => cx.axis(*a, t.rank()).map(|_| ())?,
            _ if t.rank() == 0 => return cx.error(codes::OP_SHAPE, "a scalar has no axis").fail(),
            _ => {}
        }
        cx.set(0, t.elem, t.dims);
        Ok(())
    }
    fn lower(&self, cx: &mut LowerCx) -> Result<()> {
        let (x, axis, y) = (cx.input(0), cx.input(1), cx.output(0));
        let rank = cx.dims(x).len();
        let known = cx.ints_value(1);
        cx.kernel(|k| match known.as_deref() {
            Some([a]) => self.nest(k, x, y, from_end(*a, rank as i64) as usize),
            _ => {
                let sets: Vec<Vec<usize>> = (0..rank).map(|d| vec![d]).collect();
                let found = runtime::names_any(k, axis, &sets, rank);
                runtime::check(k, found);
                for set in &sets {
                    let cond = runtime::names_any(k, axis, std::slice::from_ref(set), rank);
                    k.if_(cond, |k| self.nest(k, x, y, set[0]));
                }
            }
        });
        Ok(())
    }
}

impl Cumulate {
    fn nest(&self, k: &mut KernelBuilder, x: Buf, y: Buf, axis: usize) {
        let dims = k.m.bufs[x].dims.clone();
        let ty = k.m.bufs[x].ty.compute();
        let (op, start) =
            if self.product { (BinOp::Mul, Expr::num(ty, 1.0)) } else { (BinOp::Add, Expr::num(ty, 0.0)) };
        let outer: Vec<Dim> = dims[..axis].iter().chain(&dims[axis + 1..]).copied().collect();
        k.nest(LoopKind::Par, &outer, |k, o| {
            let acc = k.acc(start);
            k.nest(LoopKind::Seq, &dims[axis..=axis], |k, i| {
                let i = if self.reverse { dims[axis] - 1 - i[0] } else { i[0] };
                let at: Vec<Dim> = o[..axis].iter().chain([&i]).chain(&o[axis..]).copied().collect();
                let v = k.load(x, &at);
                if self.exclusive {
                    k.store(y, &at, Expr::acc(acc));
                    k.update(op, acc, v);
                } else {
                    k.update(op, acc, v);
                    k.store(y, &at, Expr::acc(acc));
                }
            });
        });
    }
}
