//! Bytes -> ModelProto. Files of other formats are recognised, for a helpful message.

use super::Source;
use super::proto::ModelProto;
use super::wire;
use crate::diag::{Error, Failure, Origin, Result, codes};
use prost::Message;

/// A model with the warnings about its file.
#[derive(Debug)]
pub struct Decoded {
    /// The model.
    pub model: ModelProto,
    /// Warnings about its format.
    pub warnings: Vec<Error>,
}

/// Other messages of onnx.proto that users pass by mistake: name, fields that they must have, and their
/// description in the error.
const OTHERS: &[(&str, &[&str], &str)] = &[
    ("TensorProto", &["data_type"], "a TensorProto (test data, or a tensor of its own), not a model"),
    (
        "GraphProto",
        &["node", "output"],
        "a GraphProto without the ModelProto around it (ONNX 0.1, before September 2017)",
    ),
    ("FunctionProto", &["name", "node", "output"], "a FunctionProto (a function without a model)"),
    ("SequenceProto", &["elem_type"], "a SequenceProto (test data), not a model"),
];

/// Decodes a model. Text that looks like ONNX textual syntax is parsed.
pub fn decode(source: &Source) -> Result<Decoded> {
    let b = &source.bytes;
    let fail = |found: &str, help: &str| -> Result<Decoded> {
        Error::new(codes::NOT_A_MODEL, "the file is not an ONNX model")
            .at(&Origin::file(&source.name))
            .found_expected(found, "one onnx.ModelProto (binary protobuf) or ONNX text")
            .help(help)
            .fail()
    };
    if b.is_empty() {
        return fail(
            "an empty file: no ir_version, no graph",
            "was the file downloaded or exported completely?",
        );
    }
    if b.starts_with(b"version https://git-lfs") {
        return fail("a Git LFS pointer", "run `git lfs pull`");
    }
    if b.starts_with(b"PK\x03\x04") {
        return fail(
            "a zip archive (PyTorch checkpoints and .npz files are zip archives)",
            "export the model with torch.onnx.export",
        );
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
    if b.starts_with(b"\x0a\x09ONNXOPSET") {
        return fail(
            "an operator set document, not a model",
            "onnxc knows the operator sets of ONNX; give it a model that uses them",
        );
    }
    if super::text::looks_like_text(b) {
        return Ok(Decoded { model: super::text::parse_model(b, &source.name)?, warnings: vec![] });
    }
    let kind = root("ModelProto")?;
    let checked = wire::check(b, kind);
    let sound = checked.as_ref().is_ok_and(|odd| !odd.mistyped && has(b, "ModelProto", "graph"));
    if !sound && let Some((_, _, what)) = OTHERS.iter().find(|(name, fields, _)| is_a(b, name, fields)) {
        return fail(what, "export the whole model with onnx.save");
    }
    let odd = checked.map_err(|f| undecodable(source, &f))?;
    if odd.obsolete_graph {
        return fail(
            "the obsolete GraphProto layout of before October 2017, with inputs and outputs as strings in \
                fields 3 and 4",
            "such files tell no types: export the model again",
        );
    }
    let bytes = if odd.need_repair() { wire::repaired(b, kind).into() } else { b.clone() };
    match ModelProto::decode(bytes) {
        Ok(m) if m.graph.is_none() => fail(
            "a model without a graph",
            "the field \"graph\" of ModelProto is missing: was the file exported completely?",
        ),
        Ok(model) => Ok(Decoded { warnings: warnings(source, &odd), model }),
        Err(e) => Err(undecodable(
            source,
            &wire::Fault { byte: 0, path: String::new(), what: e.to_string(), deep: false },
        )),
    }
}

fn root(name: &str) -> Result<usize> {
    wire::message(name).ok_or_else(|| Failure::bug("decode", format!("onnx.proto has no {name}")))
}

/// True if the bytes are a message of this kind with exactly these fields.
fn is_a(b: &[u8], name: &str, fields: &[&str]) -> bool {
    wire::message(name).is_some_and(|kind| wire::check(b, kind).is_ok_and(|odd| odd.is_empty()))
        && fields.iter().all(|f| has(b, name, f))
}

fn has(b: &[u8], message: &str, field: &str) -> bool {
    wire::message(message).is_some_and(|kind| wire::has(b, kind, field))
}

fn undecodable(source: &Source, f: &wire::Fault) -> Failure {
    let place = if f.path.is_empty() { "the outermost message".to_owned() } else { f.path.clone() };
    let found = format!("at byte {} of {}, in {place}: {}", f.byte, source.bytes.len(), f.what);
    let at = Origin::file(&source.name);
    if f.deep {
        return Error::new(codes::TOO_DEEP, "messages nest too deeply")
            .at(&at)
            .found_expected(found, format!("at most {} levels", wire::MAX_DEPTH))
            .into();
    }
    Error::new(codes::NOT_A_MODEL, "the file does not decode as an ONNX model")
        .at(&at)
        .found_expected(found, "one onnx.ModelProto (binary protobuf) or ONNX text")
        .help("the file may be truncated: compare its size with the original")
        .into()
}

fn warnings(source: &Source, odd: &wire::Oddities) -> Vec<Error> {
    let at = Origin::file(&source.name);
    let mut out = vec![];
    let list = |e: Error, places: &[String], all: usize| {
        let e = places.iter().fold(e, |e, p| e.row("found", p.clone()));
        if all > places.len() { e.note(format!("{} more are not shown", all - places.len())) } else { e }
    };
    if odd.unknowns > 0 {
        let e = Error::warning(codes::UNKNOWN_FIELD, "the file has fields that ONNX does not define").at(&at);
        out.push(
            list(e, &odd.unknown, odd.unknowns)
                .help("they have no effect; was the file damaged, or written for another format?"),
        );
    }
    if !odd.not_utf8.is_empty() {
        let shown = &odd.not_utf8[..odd.not_utf8.len().min(5)];
        let e = Error::warning(codes::UNKNOWN_FIELD, "the file has names that are not UTF-8").at(&at);
        out.push(list(e, shown, odd.not_utf8.len()).help("bytes that are not UTF-8 are shown as \\xNN"));
    }
    out
}
