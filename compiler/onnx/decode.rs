//! Bytes -> ModelProto, with a good word for files that are something else.

use super::Source;
use super::proto::ModelProto;
use crate::diag::{Error, Failure, Origin, Result, codes};
use prost::Message;

/// Decodes a model; text that looks like ONNX textual syntax is parsed as such.
pub fn decode(source: &Source) -> Result<ModelProto> {
    let b = &source.bytes;
    let fail = |found: &str, help: &str| -> Result<ModelProto> {
        Error::new(codes::NOT_A_MODEL, "the file is not an ONNX model").at(&Origin::file(&source.name)).found_expected(found, "one onnx.ModelProto (binary protobuf) or ONNX text").help(help).fail()
    };
    if b.is_empty() {
        return fail("an empty file", "was the file downloaded or exported completely?");
    }
    if b.starts_with(b"version https://git-lfs") {
        return fail("a Git LFS pointer", "run `git lfs pull`");
    }
    if b.starts_with(b"PK\x03\x04") {
        return fail("a zip archive (PyTorch checkpoints and .npz files are zip archives)", "export the model with torch.onnx.export");
    }
    if b.starts_with(&[0x1f, 0x8b]) {
        return fail("gzip data", "unpack it first");
    }
    if b.starts_with(b"\x89HDF") {
        return fail("an HDF5 file (Keras)", "convert it with tf2onnx");
    }
    if b.len() > 8 && &b[4..8] == b"ORTM" || b.len() > 8 && &b[4..8] == b"TFL3" {
        return fail("a FlatBuffers file (ORT or TFLite format)", "use the .onnx file it was made from");
    }
    if b.starts_with(b"ONNXML") || b.windows(6).take(64).any(|w| w == b"ONNXML") && ModelProto::decode(b.clone()).is_err() {
        return fail("an operator set document", "a model is needed");
    }
    if super::text::looks_like_text(b) {
        return super::text::parse_model(b, &source.name);
    }
    match ModelProto::decode(b.clone()) {
        Ok(m) if m.graph.is_none() => fail("a protobuf message without a graph", "test data (.pb) and tensors are not models"),
        Ok(m) => Ok(m),
        Err(e) => {
            let text = e.to_string();
            let help = if text.contains("recursion limit") { "messages may nest 100 levels deep" } else { "the file may be truncated: compare its size with the original" };
            Err(Failure::from(
                Error::new(codes::NOT_A_MODEL, "the file does not decode as an ONNX model")
                    .at(&Origin::file(&source.name))
                    .found_expected(format!("{} bytes; {text}", b.len()), "one onnx.ModelProto (binary protobuf) or ONNX text")
                    .help(help),
            ))
        }
    }
}
