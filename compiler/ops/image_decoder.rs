//! ImageDecoder: the pixels of an encoded image.
//!
//! Spec: <https://onnx.ai/onnx/operators/onnx__ImageDecoder.html>. One version, 20.
//!
//! Decoders are not part of generated code. The driver calls `onnxc_decode_image` ([`crate::nest::foreign`])
//! for the sizes, which define those of the result, and again for the pixels. Data that is not an image gives
//! a result without elements, as the specification requires.

use super::{Attrs, InferCx, LowerCx, Operator};
use crate::diag::{Result, codes};
use crate::nest::Expr;
use crate::nest::foreign::Function;
use crate::sym::Dim;
use crate::tensor::ElemType;
use onnxc_runtime::image::PixelFormat;

/// The operator.
#[derive(Clone, Debug, PartialEq)]
pub struct ImageDecoder(PixelFormat);

impl Operator for ImageDecoder {
    const OPS: &'static [&'static str] = &["ImageDecoder"];
    fn parse(a: &mut Attrs) -> Result<Self> {
        let formats =
            [("RGB", PixelFormat::Rgb), ("BGR", PixelFormat::Bgr), ("Grayscale", PixelFormat::Grayscale)];
        Ok(ImageDecoder(a.choice("pixel_format", "RGB", &formats)))
    }
    fn infer(&self, cx: &mut InferCx) -> Result<()> {
        cx.require(cx.tensor(0).rank() == 1, codes::OP_SHAPE, "the encoded image must be a list of bytes")?;
        let dims = vec![cx.size(0, 0, 3), cx.size(0, 1, 3), Dim::from(self.0.channels())];
        cx.set(0, ElemType::U8, dims);
        Ok(())
    }
    fn lower(&self, cx: &mut LowerCx) -> Result<()> {
        let (from, to) = (cx.input(0), cx.output(0));
        let shape = cx.temp("shape", ElemType::I64, vec![Dim::constant(3)]);
        cx.m.call_foreign(Function::ImageShape(self.0), vec![from], vec![shape]);
        for (i, d) in cx.dims(to).into_iter().take(2).enumerate() {
            cx.define(d, Expr::Load { buf: shape, at: vec![Dim::from(i)] });
        }
        cx.m.call_foreign(Function::ImagePixels(self.0), vec![from], vec![to]);
        Ok(())
    }
}
