//! ONNX textual syntax (docs/Syntax.md of the ONNX project).

use super::proto::ModelProto;
use crate::diag::{Error, Origin, Result, codes};

/// True for bytes that can only be text.
pub fn looks_like_text(_b: &[u8]) -> bool {
    false
}

/// Parses a model.
pub fn parse_model(_b: &[u8], name: &str) -> Result<ModelProto> {
    Error::new(codes::TEXT_SYNTAX, "todo").at(&Origin::file(name)).fail()
}
