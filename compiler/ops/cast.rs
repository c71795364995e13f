//! Cast and CastLike. Arithmetic conversions; strings are refused for now.
//!
//! | Cast | |
//! |---|---|
//! | 1 | `to` is a string |
//! | 6 and later | `to` is a number; `saturate` (19) for 8-bit floats, `round_mode` (24) for float8e8m0 |

use super::{Attrs, InferCx, Known, LowerCx, Operator};
use crate::diag::{Result, codes};
use crate::nest::Expr;
use crate::tensor::ElemType;

/// Target type; `None` for CastLike.
#[derive(Clone, Debug, PartialEq)]
pub struct Cast {
    /// Target type of Cast.
    pub to: Option<ElemType>,
    /// Out-of-range values of 8-bit floats become the largest one.
    pub saturate: bool,
}

impl Operator for Cast {
    const OPS: &'static [&'static str] = &["Cast", "CastLike"];
    fn parse(a: &mut Attrs) -> Result<Self> {
        let to = match (a.op(), a.since()) {
            ("Cast", 1) => match a.string_opt("to")?.and_then(|s| ElemType::from_onnx_name(&s.to_lowercase())) {
                Some(t) => Some(t),
                None => return a.error("attribute \"to\" is not the name of an element type").fail(),
            },
            ("Cast", _) => match a.elem_type_opt("to")? {
                Some(t) => Some(t),
                None => return a.error("attribute \"to\" is missing").fail(),
            },
            _ => None,
        };
        let saturate = a.flag("saturate", true)?;
        if a.string_opt("round_mode")?.is_some_and(|m| m != "up") {
            return a.error("only round_mode = \"up\" is supported").fail();
        }
        Ok(Cast { to, saturate })
    }
    fn infer(&self, cx: &mut InferCx) -> Result<()> {
        let t = cx.tensor(0)?;
        let to = match self.to {
            Some(t) => t,
            None => cx.tensor(1)?.elem,
        };
        for e in [t.elem, to] {
            let plain = matches!(e, ElemType::F32 | ElemType::F64 | ElemType::F16 | ElemType::BF16 | ElemType::Bool) || e.is_int() && e.bytes().is_some();
            if !plain {
                return cx.error(codes::OP_FEATURE, format!("Cast between {} and {to} is not supported yet", t.elem)).fail();
            }
        }
        let known = match cx.dims_value(0) {
            Some(v) if matches!(to, ElemType::I64 | ElemType::I32) && t.elem != ElemType::F32 => Known::Dims(v),
            Some(v) if to == ElemType::Bool && v.iter().all(|d| matches!(d.as_const(), Some(0 | 1))) => Known::Dims(v),
            _ => Known::No,
        };
        cx.set_known(0, to, t.dims.clone(), known);
        Ok(())
    }
    fn lower(&self, cx: &mut LowerCx) -> Result<()> {
        let (x, y) = (cx.input(0), cx.output(0));
        let (from, to) = (cx.elem(x), cx.elem(y));
        if from == to {
            cx.alias(0, x);
            return Ok(());
        }
        cx.map(y, |k, at| {
            let v = k.load(x, at);
            Expr::cast(from.compute(), to.compute(), v)
        });
        Ok(())
    }
}
