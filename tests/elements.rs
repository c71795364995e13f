//! Strings: the interpreter against native code on the cases that have some, whose nests read back as they were written; and
//! programs in C and Rust that call a model of strings.

use onnxc::nest::{Place, interp, parse, print};
use onnxc::onnx::Source;
use onnxc::options::Options;
use onnxc::pipeline::{self, Stopped};
use onnxc::run::{Runner, compare, random_input, sizes_or_least};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;

const CASES: &[&str] = &["string_moves", "string_choices", "string_makers", "string_normalizers", "string_casts", "tokenizers", "tfidf", "ml_encoders_1", "ml_encoders_strings"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn interpreter_and_code_agree() {
    for name in CASES {
        let text = std::fs::read(root().join("tests/cases/ops").join(name).with_extension("onnxtxt")).expect("the case");
        let source = Source { name: format!("{name}.onnxtxt"), bytes: text.into(), folder: None };
        let options = Options { cpu: Some("native".into()), ..Options::default() };
        let runner = Runner::new(pipeline::compile(&source, &options).unwrap_or_else(|e| panic!("{name}: {e}"))).expect("loads");
        let i = &runner.compiled().interface;
        let sizes = sizes_or_least(i, &i.dim_params.iter().map(|p| (p.name.clone(), 4)).collect::<Vec<_>>()).expect("sizes");
        for seed in 1..4 {
            let inputs: Vec<_> = i.inputs.iter().map(|t| random_input(t, &sizes, seed).expect("an input")).collect();
            let got = runner.run(&inputs.iter().cloned().map(onnxc::described::Input::Array).collect::<Vec<_>>()).unwrap_or_else(|e| panic!("{name}: {e}"));
            let bytes: Vec<&[u8]> = inputs.iter().map(|a| a.data.as_slice()).collect();
            for pass in ["lower", "inline_producers", "place_memory"] {
                let stopped = pipeline::run(&source, &Options { stop_after: Some(pass.into()), ..options.clone() });
                let Ok(Stopped::Nest(m)) = stopped else { panic!("{name}: no nests after {pass}") };
                let dims: Vec<_> = m.dim_params.iter().map(|s| (*s, sizes[s])).collect();
                let want = interp::run(&m, &dims, &bytes).unwrap_or_else(|e| panic!("{name} after {pass}: {e}"));
                for ((g, data), dims) in got.iter().zip(want.outputs).zip(want.dims) {
                    let w = onnxc::arrays::Array { name: g.name.clone(), ty: g.ty, dims, data };
                    let c = compare(g, &w, 1e-5, 1e-6).unwrap_or_else(|e| panic!("{name} after {pass}: {e}"));
                    assert_eq!(c.outside, 0, "{name} after {pass}: {} is {:?}, expected {:?}", g.name, g.to_strings(), w.to_strings());
                }
                let shown = print::print(&m);
                let table: HashMap<_, _> = m.bufs.values().filter_map(|b| if let Place::Const(c) = &b.place { Some((c.short_hash(), c.clone())) } else { None }).collect();
                let back = parse::parse(&shown, &|h| table.get(h).cloned()).unwrap_or_else(|e| panic!("{name} after {pass}: {e}"));
                assert_eq!(print::print(&back), shown, "{name} after {pass}");
            }
        }
    }
}

/// The model of tests/strings as an object, a header and a Rust module in a folder of this test's own.
fn greet(name: &str) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("strings").join(name);
    std::fs::create_dir_all(&dir).expect("a folder");
    run(Command::new(env!("CARGO_BIN_EXE_onnxc")).arg(root().join("tests/strings/greet.onnxtxt")).arg("-o").arg(dir.join("greet.o")).args(["--emit", "obj,header,rust"]));
    dir
}

fn run(command: &mut Command) -> String {
    let out = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    assert!(out.status.success(), "{command:?}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8_lossy(&out.stdout).into_owned()
}

fn starts(tool: &str) -> bool {
    let found = Command::new(tool).arg("--version").output().is_ok_and(|o| o.status.success());
    if !found {
        println!("skipped: there is no {tool} here");
    }
    found
}

const SAID: &str = "Hello, wörld|Hello, you|Hello,;wörld;Hello,;you;|10\n";

#[test]
fn a_program_in_c() {
    let cc = std::env::var("CC").unwrap_or_else(|_| "cc".into());
    if !starts(&cc) {
        return;
    }
    let dir = greet("c");
    let strict = ["-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Wshadow", "-Werror"];
    run(Command::new(&cc).args(strict).arg(format!("-I{}", dir.display())).arg(root().join("tests/strings/program.c")).arg(dir.join("greet.o")).arg("-o").arg(dir.join("greet")));
    assert_eq!(run(&mut Command::new(dir.join("greet"))), SAID);
}

#[test]
fn a_program_in_rust() {
    let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".into());
    if !starts(&rustc) {
        return;
    }
    let dir = greet("rust");
    std::fs::copy(root().join("tests/strings/program.rs"), dir.join("main.rs")).expect("the program");
    let object = format!("link-arg={}", dir.join("greet.o").display());
    run(Command::new(&rustc).current_dir(&dir).args(["--edition", "2024", "main.rs", "-o", "greet", "-C"]).arg(object));
    assert_eq!(run(&mut Command::new(dir.join("greet"))), SAID);
}
