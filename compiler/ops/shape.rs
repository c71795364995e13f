//! Shape and Size: their results are known symbolically, so nothing is computed at run time.
//!
//! | Shape | |
//! |---|---|
//! | 1, 13 | all dims |
//! | 15 and later | `start`, `end`, clamped |

use super::{Attrs, Elements, InferCx, Known, LowerCx, Operator};
use crate::diag::Result;
use crate::ops::from_end;
use crate::sym::Dim;
use crate::tensor::ElemType;

/// The operators.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Shape {
    Shape { start: i64, end: Option<i64> },
    Size,
}

impl Operator for Shape {
    const OPS: &'static [&'static str] = &["Shape", "Size"];
    fn elements(_op: &str) -> Elements {
        Elements::Any
    }
    fn parse(a: &mut Attrs) -> Result<Self> {
        Ok(if a.op() == "Size" {
            Shape::Size
        } else {
            Shape::Shape { start: a.int("start", 0), end: a.int_opt("end") }
        })
    }
    fn infer(&self, cx: &mut InferCx) -> Result<()> {
        let t = cx.tensor(0);
        let i64_ = ElemType::I64;
        match self {
            Shape::Size => cx.set_known(0, i64_, vec![], Known::Dims(vec![t.count()])),
            Shape::Shape { start, end } => {
                let r = t.rank() as i64;
                let clamp = |v: i64| from_end(v, r).clamp(0, r);
                let (a, b) = (clamp(*start), clamp(end.unwrap_or(r)));
                let v: Vec<Dim> = t.dims[a as usize..b.max(a) as usize].to_vec();
                cx.set_known(0, i64_, vec![Dim::from(v.len())], Known::Dims(v));
            }
        }
        Ok(())
    }
    fn lower(&self, cx: &mut LowerCx) -> Result<()> {
        cx.bug("known values are stored by the lowering itself")
    }
}
