//! Elements that are more than one number: strings and complex numbers. The interpreter against native code
//! on the cases that have some, whose nests read back as they were written; and programs in C, C++ and Rust
//! that call models of them.

use onnxc::nest::{Place, interp, parse, print};
use onnxc::onnx::Source;
use onnxc::options::Options;
use onnxc::pipeline::{self, Stopped};
use onnxc::random;
use onnxc::run::{Runner, compare};
use process::{root, run, starts};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;

#[path = "support/process.rs"]
mod process;

const CASES: &[&str] = &[
    "string_moves",
    "string_choices",
    "string_makers",
    "string_normalizers",
    "string_casts",
    "tokenizers",
    "tfidf",
    "ml_encoders_1",
    "ml_encoders_strings",
    "complex_moves",
    "complex_parts",
];

#[test]
fn interpreter_and_code_agree() {
    for name in CASES {
        let text = std::fs::read(root().join("tests/cases/ops").join(name).with_extension("onnxtxt"))
            .expect("the case");
        let source = Source { name: format!("{name}.onnxtxt"), bytes: text.into(), folder: None };
        let options = Options { cpu: Some("native".into()), ..Options::default() };
        let runner =
            Runner::new(pipeline::compile(&source, &options).unwrap_or_else(|e| panic!("{name}: {e}")))
                .expect("loads");
        let i = &runner.compiled().interface;
        let sizes = random::sizes(i, &i.dim_params.iter().map(|p| (p.sym, 4)).collect());
        for seed in 1..4 {
            let inputs: Vec<_> =
                i.inputs.iter().map(|t| random::tensor(t, &sizes, None, seed).expect("an input")).collect();
            let got = runner
                .run(&inputs.iter().cloned().map(onnxc::io_descriptors::Input::Array).collect::<Vec<_>>())
                .unwrap_or_else(|e| panic!("{name}: {e}"));
            let bytes: Vec<&[u8]> = inputs.iter().map(|a| a.data.as_slice()).collect();
            for pass in ["lower", "inline_producers", "place_memory"] {
                let stopped =
                    pipeline::run(&source, &Options { stop_after: Some(pass.into()), ..options.clone() });
                let Ok(Stopped::Nest(m)) = stopped else { panic!("{name}: no nests after {pass}") };
                let dims: Vec<_> = m.dim_params.iter().map(|s| (*s, sizes[s])).collect();
                let want =
                    interp::run(&m, &dims, &bytes).unwrap_or_else(|e| panic!("{name} after {pass}: {e}"));
                for ((g, data), dims) in got.iter().zip(want.outputs).zip(want.dims) {
                    let w = onnxc::arrays::Array { name: g.name.clone(), ty: g.ty, dims, data };
                    let c = compare(g, &w, 1e-5, 1e-6).unwrap_or_else(|e| panic!("{name} after {pass}: {e}"));
                    assert_eq!(
                        c.outside,
                        0,
                        "{name} after {pass}: {} is {:?}, expected {:?}",
                        g.name,
                        g.to_strings(),
                        w.to_strings()
                    );
                }
                let shown = print::print(&m);
                let table: HashMap<_, _> = m
                    .bufs
                    .values()
                    .filter_map(|b| {
                        if let Place::Const(c) = &b.place { Some((c.short_hash(), c.clone())) } else { None }
                    })
                    .collect();
                let back = parse::parse(&shown, &|h| table.get(h).cloned())
                    .unwrap_or_else(|e| panic!("{name} after {pass}: {e}"));
                assert_eq!(print::print(&back), shown, "{name} after {pass}");
            }
        }
    }
}

/// A model of tests as an object, a header and a Rust module in a folder of the test's own.
fn compiled(model: &str, name: &str) -> PathBuf {
    let source = root().join("tests").join(model);
    let stem = source.file_stem().expect("a file").to_string_lossy().into_owned();
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("elements").join(format!("{stem}_{name}"));
    std::fs::create_dir_all(&dir).expect("a folder");
    run(Command::new(env!("CARGO_BIN_EXE_onnxc"))
        .arg(&source)
        .arg("-o")
        .arg(dir.join(stem + ".o"))
        .args(["--emit", "obj,header,rust"]));
    dir
}

/// What the program beside a model says that a compiler of C or C++ makes of it.
fn said_by_c(model: &str, tool: (&str, &str), flags: &[&str]) -> Option<String> {
    let cc = std::env::var(tool.0).unwrap_or_else(|_| tool.1.into());
    if !starts(&cc) {
        return None;
    }
    let dir = compiled(model, tool.0);
    let strict = ["-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Wshadow", "-Werror"];
    let (program, object) = (
        root().join("tests").join(model).with_file_name("program.c"),
        dir.join(Path::new(model).file_name().expect("a file")).with_extension("o"),
    );
    run(Command::new(&cc)
        .args(flags)
        .args(strict)
        .arg(format!("-I{}", dir.display()))
        .arg(program)
        .args(["-x", "none"])
        .arg(object)
        .arg("-o")
        .arg(dir.join("program")));
    Some(run(&mut Command::new(dir.join("program"))))
}

fn said_by_rust(model: &str) -> Option<String> {
    let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".into());
    if !starts(&rustc) {
        return None;
    }
    let dir = compiled(model, "rust");
    std::fs::copy(root().join("tests").join(model).with_file_name("program.rs"), dir.join("main.rs"))
        .expect("the program");
    let object = dir.join(Path::new(model).file_name().expect("a file")).with_extension("o");
    run(Command::new(&rustc)
        .current_dir(&dir)
        .args(["--edition", "2024", "main.rs", "-o", "program", "-C"])
        .arg(format!("link-arg={}", object.display())));
    Some(run(&mut Command::new(dir.join("program"))))
}

#[test]
fn strings_in_c_and_rust() {
    const MODEL: &str = "strings/greet.onnxtxt";
    for said in [said_by_c(MODEL, ("CC", "cc"), &["-std=c11"]), said_by_rust(MODEL)].into_iter().flatten() {
        assert_eq!(said, "Hello, wörld|Hello, you|Hello,;wörld;Hello,;you;|10\n");
    }
}

#[test]
fn complex_numbers_in_c_cpp_and_rust() {
    const MODEL: &str = "complex/spectrum.onnxtxt";
    let said = [
        said_by_c(MODEL, ("CC", "cc"), &["-std=c11"]),
        said_by_c(MODEL, ("CXX", "c++"), &["-std=c++17", "-x", "c++"]),
        said_by_rust(MODEL),
    ];
    for said in said.into_iter().flatten() {
        assert_eq!(said, "5+6i 3+4i 1+2i 0.5-1i 7+8i 1.5-2i 0+0.0625i \n");
    }
}
