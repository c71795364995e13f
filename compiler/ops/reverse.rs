//! ReverseSequence: reverses the first steps of every sequence, as many as its length.
//!
//! A length beyond the input is a status (`ONNXC_E_INDEX`). Versions differ in types.

use super::support::runtime;
use super::{Attrs, Elements, InferCx, LowerCx, Operator};
use crate::diag::{Result, codes};
use crate::nest::{BinOp, Expr};

/// The operator.
#[derive(Clone, Debug, PartialEq)]
pub struct ReverseSequence {
    /// 0 or 1; the other one is the batch.
    pub time_axis: usize,
}

impl Operator for ReverseSequence {
    const OPS: &'static [&'static str] = &["ReverseSequence"];
    fn elements(_op: &str) -> Elements {
        Elements::Any
    }
    fn parse(a: &mut Attrs) -> Result<Self> {
        match (a.int("time_axis", 0), a.int("batch_axis", 1)) {
            (0, 1) => Ok(ReverseSequence { time_axis: 0 }),
            (1, 0) => Ok(ReverseSequence { time_axis: 1 }),
            (t, b) => {
                a.error(format!("time_axis is {t} and batch_axis {b}: one must be 0, the other 1")).fail()
            }
        }
    }
    fn infer(&self, cx: &mut InferCx) -> Result<()> {
        let (t, n) = (cx.tensor(0).clone(), cx.tensor(1).clone());
        cx.require(
            t.rank() >= 2 && n.rank() == 1,
            codes::OP_SHAPE,
            "the input must have a time and a batch dimension, and the lengths one",
        )?;
        cx.require_eq(
            n.dims[0],
            t.dims[1 - self.time_axis],
            "there must be one length for each sequence of the batch",
        );
        cx.set(0, t.elem, t.dims);
        Ok(())
    }
    fn lower(&self, cx: &mut LowerCx) -> Result<()> {
        let (x, lengths, y) = (cx.input(0), cx.input(1), cx.output(0));
        let steps = cx.dims(x)[self.time_axis];
        cx.map(y, |k, at| {
            let t = at[self.time_axis];
            let n = k.load(lengths, &[at[1 - self.time_axis]]);
            let pos = k.shared(n, |_, n| {
                Expr::select(
                    Expr::bin(BinOp::Lt, Expr::index(t), n.clone()),
                    n - runtime::int(1) - Expr::index(t),
                    Expr::index(t),
                )
            });
            k.with_index(pos, steps, |k, p| {
                let mut from = at.to_vec();
                from[self.time_axis] = p;
                k.load(x, &from)
            })
        });
        Ok(())
    }
}
