//! FlexAttention and Gradient: operators defined by graphs. `passes/graph/expand` replaces them by ordinary
//! nodes during type inference; this file has their attributes.
//!
//! Specs: <https://onnx.ai/onnx/operators/onnx_aionnxpreview_FlexAttention.html> (1) and
//! <https://onnx.ai/onnx/operators/onnx_aionnxpreviewtraining_Gradient.html> (1).

use super::{Attrs, InferCx, LowerCx, Operator};
use crate::diag::{Failure, Result};
use crate::tensor::ElemType;

/// The operators.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Composite {
    FlexAttention(FlexAttention),
    Gradient(Gradient),
}

/// Attributes of FlexAttention other than its graphs.
#[derive(Clone, Debug, PartialEq)]
pub struct FlexAttention {
    /// Factor of the scores; by default 1 / sqrt(head size).
    pub scale: Option<f32>,
    /// Type of scores and probabilities.
    pub precision: Option<ElemType>,
}

/// Numbers of tensors that Gradient names. The importer appends the named values to the operands: first the
/// operands for `xs` and `zs`, then the named tensors, then `y`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gradient {
    /// Tensors to differentiate by.
    pub xs: usize,
    /// All named tensors.
    pub named: usize,
}

impl Operator for Composite {
    const OPS: &'static [&'static str] =
        &["ai.onnx.preview:FlexAttention", "ai.onnx.preview.training:Gradient"];
    fn parse(a: &mut Attrs) -> Result<Self> {
        if a.op() == "FlexAttention" {
            let precision = a.elem_type_opt("softmax_precision");
            if let Some(p) = precision
                .filter(|p| ![ElemType::F16, ElemType::BF16, ElemType::F32, ElemType::F64].contains(p))
            {
                return a
                    .error("attribute \"softmax_precision\" is no floating-point type")
                    .found_expected(p.to_string(), "float16, bfloat16, float or double")
                    .fail();
            }
            let scale = a.float_opt("scale");
            if let Some(s) = scale.filter(|s| s.is_nan() || *s < 0.0) {
                return a
                    .error(format!("attribute \"scale\" is {s}: query and key each take its root"))
                    .fail();
            }
            return Ok(Composite::FlexAttention(FlexAttention { scale, precision }));
        }
        a.string_opt("y");
        let (xs, zs) = (a.strings("xs").len(), a.strings("zs").len());
        let named = xs + zs;
        let given = a.n_inputs();
        if given != 2 * named + 1 {
            return a
                .error("Gradient needs a value for each tensor that xs and zs name")
                .found_expected(given.saturating_sub(named + 1).to_string(), named.to_string())
                .fail();
        }
        if a.n_outputs() > xs {
            return a.error(format!("Gradient has {} results for {xs} tensors in xs", a.n_outputs())).fail();
        }
        Ok(Composite::Gradient(Gradient { xs, named }))
    }
    fn infer(&self, _: &mut InferCx) -> Result<()> {
        Err(Failure::bug("infer", "a node that is told by graphs was not replaced"))
    }
    fn lower(&self, cx: &mut LowerCx) -> Result<()> {
        cx.bug("a node that is told by graphs was not replaced")
    }
}
