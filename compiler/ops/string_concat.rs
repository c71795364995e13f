//! StringConcat: concatenates the strings of two tensors elementwise, with broadcasting.
//!
//! Spec: <https://onnx.ai/onnx/operators/onnx__StringConcat.html>. One version.

use super::support::text;
use super::{Attrs, Elements, InferCx, LowerCx, Operator};
use crate::diag::Result;
use crate::tensor::ElemType;

/// No attributes.
#[derive(Clone, Debug, PartialEq)]
pub struct StringConcat;

impl Operator for StringConcat {
    const OPS: &'static [&'static str] = &["StringConcat"];
    fn elements(_op: &str) -> Elements {
        Elements::Strings
    }
    fn parse(_: &mut Attrs) -> Result<Self> {
        Ok(StringConcat)
    }
    fn infer(&self, cx: &mut InferCx) -> Result<()> {
        let (x, y) = (cx.tensor(0).dims.clone(), cx.tensor(1).dims.clone());
        let dims = cx.broadcast(&[&x, &y])?;
        cx.set(0, ElemType::Str, dims);
        Ok(())
    }
    fn lower(&self, cx: &mut LowerCx) -> Result<()> {
        let (x, y, out) = (cx.input(0), cx.input(1), cx.output(0));
        text::produce(cx, out, |k, at, sink| {
            for b in [x, y] {
                let s = k.load_broadcast(b, at);
                sink.text(k, s);
            }
        });
        Ok(())
    }
}
