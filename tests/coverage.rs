//! What the cases under tests/cases cover: every operator of the table is run by one, every diagnostic code
//! that a model can cause stands in the expected findings of one, or of an entry under tests/spec.

use onnxc::onnx::Source;
use onnxc::options::Options;
use onnxc::pipeline::{self, Stopped};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Codes that come from options, from files beside the model, or from running; tests/cli.rs has those.
const NOT_FROM_A_CASE: &[&str] = &[
    "NOT_A_MODEL",
    "TOO_DEEP",
    "OPTION",
    "TARGET",
    "WEIGHTS_SIZE",
    "WEIGHTS_FILE",
    "WEIGHTS_FIT",
    "VERIFY_FAILED",
    "RUN_INPUT",
    "RUN_STATUS",
];

/// Files under tests/cases whose names end like this, with their text.
fn cases(end: &str) -> Vec<(PathBuf, String)> {
    fn find(dir: &Path, end: &str, out: &mut Vec<(PathBuf, String)>) {
        for e in std::fs::read_dir(dir).expect("tests/cases").flatten() {
            let p = e.path();
            if p.is_dir() {
                find(&p, end, out);
            } else if p.to_string_lossy().ends_with(end) {
                let text = std::fs::read_to_string(&p).expect("readable");
                out.push((p, text));
            }
        }
    }
    let mut out = vec![];
    find(&PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/cases"), end, &mut out);
    out
}

/// Operators, `domain:Name`, of a model after import.
fn operators(path: &Path, text: &str) -> BTreeSet<String> {
    let source =
        Source { name: path.display().to_string(), bytes: text.as_bytes().to_vec().into(), folder: None };
    let options = Options { stop_after: Some("import".into()), ..Options::default() };
    match pipeline::run(&source, &options) {
        Ok(Stopped::Graph(m)) => {
            let name = |s: &onnxc::ops::Schema| {
                if s.domain.is_empty() { s.name.to_owned() } else { format!("{}:{}", s.domain, s.name) }
            };
            m.graph.nodes.values().map(|n| name(n.schema)).collect()
        }
        Ok(_) => panic!("{}: no graph", path.display()),
        Err(e) => panic!("{}: {e}", path.display()),
    }
}

fn directive(text: &str, key: &str) -> bool {
    text.lines()
        .filter_map(|l| l.strip_prefix('#'))
        .any(|l| l.split(':').next().is_some_and(|k| k.trim() == key))
}

#[test]
fn every_operator_is_run_by_a_case() {
    let run: BTreeSet<String> = cases(".onnxtxt")
        .iter()
        .filter(|(_, t)| directive(t, "run"))
        .flat_map(|(p, t)| operators(p, t))
        .collect();
    let missing: Vec<&str> = onnxc::ops::FAMILIES
        .iter()
        .flat_map(|(_, ops)| ops.iter().copied())
        .filter(|o| !run.contains(*o))
        .collect();
    assert!(
        missing.is_empty(),
        "no case under tests/cases runs {}: add one (compiler/ops/README.md, \"The case\")",
        missing.join(", ")
    );
}

#[test]
fn every_code_that_a_model_can_cause_has_a_case() {
    let found: String = cases(".error.snap").into_iter().map(|(_, t)| t).collect();
    // Warnings and notes, and what text can not say, stand in the entries of the requirements: `--- warn
    // E0011 "..."`.
    let entries =
        std::fs::read_dir(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/spec")).expect("tests/spec");
    let entries: Vec<String> = entries
        .flatten()
        .filter(|e| e.path().extension().is_some_and(|x| x == "spec"))
        .map(|e| std::fs::read_to_string(e.path()).expect("readable"))
        .collect();
    let in_entries = |code: &str| {
        entries
            .iter()
            .flat_map(|t| t.lines())
            .any(|l| l.starts_with("--- ") && l.split_whitespace().any(|w| w == code))
    };
    let missing: Vec<String> = onnxc::diag::codes::TABLE
        .iter()
        .filter(|(c, name, ..)| {
            !NOT_FROM_A_CASE.contains(name)
                && !found.contains(&format!("[{c}]"))
                && !in_entries(&c.to_string())
        })
        .map(|(c, name, ..)| format!("{c} {name}"))
        .collect();
    assert!(missing.is_empty(), "no case under tests/cases/errors shows {}", missing.join(", "));
}

/// Otherwise a snapshot without its case would remain unnoticed.
#[test]
fn every_snapshot_has_a_case() {
    for (snap, _) in cases(".snap") {
        let name = snap.file_name().expect("a file").to_string_lossy().into_owned();
        let stem = name.split('.').next().unwrap_or_default();
        let exists = |ending: &str| snap.with_file_name(format!("{stem}.{ending}")).exists();
        assert!(["onnxtxt", "nest", "tile"].into_iter().any(exists), "{} belongs to no case", snap.display());
    }
}
