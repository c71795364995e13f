//! The verifier and the printer of the graph IR: sound models pass and print, every broken invariant is
//! named.

use onnxc::diag::Failure;
use onnxc::graph::verify::verify;
use onnxc::graph::{Def, Graph, Model, ValueData, print::print};
use onnxc::onnx::{ImportOptions, Source, read, text};
use onnxc::options::Options;
use onnxc::pipeline::{Stopped, run};
use onnxc::tensor::ConstData;
use std::sync::Arc;

fn model(body: &str) -> Model {
    let text = format!("<ir_version: 8, opset_import: [\"\" : 17]>\n{body}");
    let source = Source { name: "m.txt".into(), bytes: text.into(), folder: None };
    let options = Options { stop_after: Some("infer_shapes".into()), ..Default::default() };
    match run(&source, &options).unwrap() {
        Stopped::Graph(m) => *m,
        _ => panic!("stopped elsewhere"),
    }
}
fn faults(m: &Model) -> String {
    match verify(m) {
        Err(Failure::Bug(b)) => b.message,
        other => panic!("{other:?}"),
    }
}
fn two_nodes() -> Model {
    model(
        "g (float[N, 3] x) => (float[N, 3] y) <float[3] w = {1, 2, 3}> { t = Add (x, w) [last] y = Relu (t) }",
    )
}

#[test]
fn sound_models_pass_and_print() {
    let m = two_nodes();
    verify(&m).unwrap();
    let printed = print(&m);
    let want = [
        "# onnxc graph v1",
        "# dims N",
        "g (float[N, 3] x) => (float[N, 3] y)",
        "  float[3] w = {1.0, 2.0, 3.0}",
        "  [last] y = Relu (t)  # float[N, 3]",
    ];
    let lines: Vec<&str> = printed.lines().collect();
    for w in want {
        assert!(lines.iter().any(|l| l.starts_with(w)), "{w} is missing in\n{printed}");
    }
    // What was printed is a model again.
    let again = Source { name: "m.txt".into(), bytes: printed.clone().into(), folder: None };
    assert_eq!(read(&again, &ImportOptions::default()).unwrap().graph.order.len(), 2);
}

#[test]
fn order_is_checked() {
    let mut m = two_nodes();
    m.graph.order.swap(0, 1);
    assert!(
        faults(&m).starts_with("1: n1 Relu \"last\": input 0, v2 \"t\", is not defined before its use"),
        "{}",
        faults(&m)
    );
    let mut m = two_nodes();
    m.graph.order.pop();
    assert!(faults(&m).contains("1: output 0"));
    let mut m = two_nodes();
    m.graph.order.push(m.graph.order[0]);
    assert!(faults(&m).contains("twice in the order"));
}

#[test]
fn definitions_and_types_are_checked_all_at_once() {
    let mut m = two_nodes();
    let (first, last) = (m.graph.order[0], m.graph.order[1]);
    let y = m.graph.outputs[0];
    m.graph.values[y].def = Def::Node(first, 0);
    m.graph.values[y].ty = None;
    m.graph.nodes[last].inputs.push(None);
    m.graph.output_names.clear();
    let f = faults(&m);
    for part in ["2: n1", "5: ", "3: n1", "0 names"] {
        assert!(f.contains(part), "{part} is missing in\n{f}");
    }
}

#[test]
fn subgraphs_are_checked_and_printed() {
    let mut m = two_nodes();
    let g = &mut m.graph;
    let (first, last, x) = (g.order[0], g.order[1], g.inputs[0]);
    // A body that captures x and hands it out, on a node that happens to be there.
    let mut body = Graph { name: "body".into(), ..Default::default() };
    let inner = body.values.push(ValueData { def: Def::Capture, ..g.values[x].clone() });
    body.captures.push((x, inner));
    body.outputs.push(inner);
    body.output_names.push("out".into());
    let c = body.add_const("x", Arc::new(ConstData::from_i64s(&[7])));
    body.outputs.push(c);
    body.output_names.push("x".into());
    g.nodes[last].subgraphs.push(("then_branch".into(), body));
    verify(&m).unwrap();
    let printed = print(&m);
    // The inner constant has the name of what is captured and gets another one.
    assert!(
        printed.contains("    then_branch: graph = body () => (float[N, 3] x, int64[1] x_2)\n"),
        "{printed}"
    );
    assert!(printed.contains("      # output 0 is \"out\"\n      # output 1 is \"x\"\n"), "{printed}");
    text::parse_model(printed.as_bytes(), "m.txt").unwrap();
    // A capture of something that is computed later.
    let y = m.graph.outputs[0];
    let body = m.graph.nodes[last].subgraphs.pop().unwrap();
    m.graph.nodes[first].subgraphs.push(body);
    m.graph.nodes[first].subgraphs[0].1.captures[0].0 = y;
    assert!(faults(&m).contains("in n0 Add (node 0) then_branch: 4: "), "{}", faults(&m));
}
