//! Tests of the parser: its results, and the positions of its errors.

use super::*;
use crate::diag::Failure;
use crate::onnx::proto::{attribute_proto::AttributeType, type_proto};

fn parse(body: &str) -> Result<ModelProto> {
    parse_model(format!("<ir_version: 8, opset_import: [\"\" : 17]>\n{body}").as_bytes(), "m.txt")
}

fn graph(body: &str) -> GraphProto {
    parse(body).unwrap().graph.unwrap()
}

/// Title and position of the one error.
fn error(body: &str) -> (String, String) {
    match parse(body) {
        Err(Failure::Errors(e)) => (e[0].title.clone(), e[0].origin.element.clone()),
        other => panic!("no error: {other:?}"),
    }
}

#[test]
fn names_and_labels() {
    let g = graph(
        "\"g/1\" (float[N, \"a b\", ?, 3] x, float[] u) => (y) { [\"n/1\"] a,, b = d.e.Op:o (x, \"\", y,) # \
            end\n }",
    );
    let n = &g.node[0];
    assert_eq!(
        (g.name.as_deref(), n.name.as_deref(), n.domain.as_deref(), n.overload.as_deref()),
        (Some("g/1"), Some("n/1"), Some("d.e"), Some("o"))
    );
    assert_eq!(
        (n.output.as_slice(), n.input.as_slice()),
        (["a", "", "b"].map(String::from).as_slice(), ["x", "", "y"].map(String::from).as_slice())
    );
    let shape = |i: usize| match &g.input[i].r#type.as_ref().unwrap().value {
        Some(type_proto::Value::TensorType(t)) => t.shape.as_ref().map(|s| s.dim.len()),
        _ => panic!(),
    };
    assert_eq!((shape(0), shape(1)), (Some(4), None));
}

#[test]
fn attribute_kinds() {
    let g = graph(
        "g (x) => (y) { y = Op <a = 1, b = -inf, c = [1, 2.5], d: floats = [1], e = \"s\\\"t\", f = \
            float[1] {0.1}, g = b () => () {}, h: ints = [], i = seq(float), j: float = @k, l = [float {1}, \
            float {2}], m = \"q\" () => () {}> (x) }",
    );
    use AttributeType as T;
    let a = &g.node[0].attribute;
    let kinds: Vec<T> = a.iter().map(|a| a.r#type()).collect();
    assert_eq!(
        kinds,
        [
            T::Int,
            T::Float,
            T::Floats,
            T::Floats,
            T::String,
            T::Tensor,
            T::Graph,
            T::Ints,
            T::TypeProto,
            T::Float,
            T::Tensors,
            T::Graph
        ]
    );
    assert_eq!(
        (a[2].floats.as_slice(), a[4].s.as_deref(), a[9].ref_attr_name.as_deref()),
        ([1.0, 2.5].as_slice(), Some(&b"s\"t"[..]), Some("k"))
    );
}

#[test]
fn functions() {
    let m = parse(
        "g () => () {} <domain: \"l\"> f <p, q: float = 2.0> (a, float[N] b) => (c) <int64 d> { c \
        = Op <r = @p> (a) } h () => () {}",
    )
    .unwrap();
    let f = &m.functions[0];
    assert_eq!(
        (f.attribute.len(), f.attribute_proto.len(), f.input.len(), f.value_info.len(), m.functions.len()),
        (1, 1, 2, 2, 2)
    );
}

#[test]
fn errors_name_the_place() {
    let cases = [
        (
            "g (float[3] x) => (y) {\n  y = A(x) z }",
            "expected \"=\" between a node's outputs and its operator, or \"}\" after the last node",
            "line 3, column 14",
        ),
        ("g () => (y) { y = A <a = \"b> () }", "the string has no closing quote", "line 2, column 26"),
        ("g () => (y) { y = A <a: int = 1.5> () }", "expected int", "line 2, column 31"),
        ("g () => (y) { y = A <a = []> () }", "an empty list needs a kind", "line 2, column 26"),
        (
            "g () => () <int8[1] w = {300}> {}",
            "expected a value: an integer from -128 to 127",
            "line 2, column 26",
        ),
        (
            "g () => () <float[N] w = {1}> {}",
            "the dimensions of a tensor with values must be numbers",
            "line 2, column 24",
        ),
        ("g (float x => () {}", "expected \")\" or \",\" after an input", "line 2, column 12"),
        (
            "g () => (y) { y = A <a = 1e99> () }",
            "expected a number in the range of float",
            "line 2, column 26",
        ),
    ];
    for (body, title, place) in cases {
        assert_eq!(error(body), (title.to_owned(), place.to_owned()), "{body}");
    }
}

#[test]
fn hostile_nesting_is_an_error() {
    let deep = format!("g ({}float x) => () {{}}", "seq(".repeat(100_000));
    assert!(error(&deep).0.contains("nest deeper"));
    let deep = format!("g () => () {{ {}", "y = If <b = g () => () { ".repeat(100_000));
    assert!(error(&deep).0.contains("nest deeper"));
}

#[test]
fn every_prefix_and_mutation_is_handled() {
    let text = "<ir_version: 8, opset_import: [\"\" : 17]> g (float[N, \"é\"] x) => (y) <int8[2] w = {1, \
        -2}> { [\"ü\"] y = a.B <p: floats = [1, 2e3], q = \"ä\\\"\", r = b () => () {}> (x, w) } # é";
    let b = text.as_bytes();
    for i in 0..b.len() {
        let _ = parse_model(&b[..i], "m");
        for c in [b'"', b'<', b'{', b'=', b'\\', b'-', b'#', 0xff, 0] {
            let mut m = b.to_vec();
            m[i] = c;
            let _ = (looks_like_text(&m), parse_model(&m, "m"));
        }
    }
}

#[test]
fn text_is_told_from_protobuf() {
    assert!(looks_like_text(b"# c\n <ir_version: 8> g () => () {}"));
    assert!(looks_like_text(b"g () => () {}"));
    assert!(!looks_like_text(b""));
    assert!(!looks_like_text(b"hello"));
    assert!(!looks_like_text(b"\x08\x08\x12\x07pytorch"));
    assert!(!looks_like_text(b"B\x04\x0a\x00\x10\x11:=>"));
}
