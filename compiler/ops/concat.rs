//! Concat: operands joined along an axis.
//!
//! | version | |
//! |---|---|
//! | 1 | axis defaults to 1 |
//! | 4, 11, 13 | axis is required; 11: negative too |
//!
//! Every operand is one map kernel that writes its window of the output, so producers can be fused into it.

use super::{Attrs, Elements, InferCx, Known, LowerCx, Operator};
use crate::diag::{Result, codes};
use crate::nest::LoopKind;
use crate::ops::from_end;
use crate::sym::Dim;

/// The axis.
#[derive(Clone, Debug, PartialEq)]
pub struct Concat {
    /// May be negative.
    pub axis: i64,
}

impl Operator for Concat {
    const OPS: &'static [&'static str] = &["Concat"];
    fn elements(_op: &str) -> Elements {
        Elements::Any
    }
    fn parse(a: &mut Attrs) -> Result<Self> {
        Ok(Concat { axis: a.int("axis", 1) })
    }
    fn infer(&self, cx: &mut InferCx) -> Result<()> {
        let t = cx.tensor(0).clone();
        let axis = cx.axis(self.axis, t.rank())?;
        let mut dims = t.dims.clone();
        let mut known = cx.dims_value(0);
        for i in 1..cx.inputs.len() {
            let u = cx.tensor(i).clone();
            cx.require(u.rank() == t.rank(), codes::OP_SHAPE, "the operands have different ranks")?;
            for d in 0..t.rank() {
                if d == axis {
                    dims[d] = dims[d] + u.dims[d];
                } else {
                    cx.require_eq(u.dims[d], t.dims[d], &format!("the operands differ in dimension {d}"));
                }
            }
            known = known.zip(cx.dims_value(i)).map(|(mut a, b)| {
                a.extend(b);
                a
            });
        }
        let known = if t.rank() == 1 { known.map_or(Known::No, Known::Dims) } else { Known::No };
        cx.set_known(0, t.elem, dims, known);
        Ok(())
    }
    fn lower(&self, cx: &mut LowerCx) -> Result<()> {
        let y = cx.output(0);
        let rank = cx.dims(y).len() as i64;
        let axis = from_end(self.axis, rank) as usize;
        let mut start = Dim::constant(0);
        for i in 0..cx.inputs.len() {
            let x = cx.input(i);
            let dims = cx.dims(x);
            let offset = start;
            start = start + dims[axis];
            if dims.iter().any(|d| d.as_const() == Some(0)) {
                continue;
            }
            cx.kernel(|k| {
                k.nest(LoopKind::Par, &dims, |k, at| {
                    let mut to = at.to_vec();
                    to[axis] = to[axis] + offset;
                    let v = k.load(x, at);
                    k.store(y, &to, v);
                });
            });
        }
        Ok(())
    }
}
