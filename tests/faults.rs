//! Why calls fail: programs in C, C++ and Rust that make the checks of a model fail, compared with what they
//! must say; the same through `onnxc-runtime`, `run` and `bench`, which give a call more workspace where it
//! runs out.

use process::{output, run, starts};
use std::path::{Path, PathBuf};
use std::process::Command;

#[path = "support/process.rs"]
mod process;

const ONNXC: &str = env!("CARGO_BIN_EXE_onnxc");
const STRICT: &[&str] = &["-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Wshadow", "-Werror"];

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/faults").join(name)
}

/// A folder of the test's own with the model as object, header and Rust module.
fn compiled(name: &str, options: &[&str]) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("faults").join(name);
    std::fs::create_dir_all(&dir).expect("a folder");
    let mut command = Command::new(ONNXC);
    command.arg(source("pick.onnxtxt")).arg("-o").arg(dir.join("pick.o"));
    run(command.args(["--emit", "obj,header,rust", "--dim", "N<=32", "--heap", "1K"]).args(options));
    dir
}

#[test]
fn in_c_and_cpp() {
    for (var, default, flags) in
        [("CC", "cc", &["-std=c99"][..]), ("CXX", "c++", &["-std=c++11", "-x", "c++"])]
    {
        let cc = std::env::var(var).unwrap_or_else(|_| default.into());
        if !starts(&cc) {
            continue;
        }
        // With one CPU level, and with several that share one table.
        for (name, options) in [("one", &["--cpu", "native"][..]), ("several", &[])] {
            let dir = compiled(&format!("{default}-{name}"), options);
            let (object, program) = (dir.join("pick.o"), dir.join("program"));
            run(Command::new(&cc)
                .args(flags)
                .args(STRICT)
                .arg(format!("-I{}", dir.display()))
                .arg(source("program.c"))
                .args(["-x", "none"])
                .arg(object)
                .arg("-o")
                .arg(&program)
                .arg("-lm"));
            assert_eq!(run(&mut Command::new(program)), include_str!("faults/program_c.txt"));
        }
    }
}

/// An emulated CPU without AVX2 is refused by name, and one without AVX-512 computes with the level below.
#[test]
#[cfg(target_arch = "x86_64")]
fn a_cpu_without_the_level_is_refused() {
    const PROGRAM: &str = r#"
#include "small.h"
#include <stdio.h>
int main(void) {
  float x[2] = {1, 2}, y[2] = {0, 0};
  onnxc_fault fault = {0};
  onnxc_exec exec = {0};
  exec.struct_size = sizeof exec;
  exec.fault = &fault;
  int status = small_infer_exec(x, y, NULL, &exec);
  char text[256];
  if (status) onnxc_fault_string(&small_model, &fault, text, sizeof text);
  else snprintf(text, sizeof text, "%g %g", (double)y[0], (double)y[1]);
  printf("%d %s: %s\n", status, onnxc_status_string(status), text);
  return 0;
}
"#;
    let cc = std::env::var("CC").unwrap_or_else(|_| "cc".into());
    if !starts(&cc) || !starts("qemu-x86_64") {
        return;
    }
    let refused = |level: &str| {
        format!("10 unsupported cpu: the CPU lacks instructions of {level}, which the code needs\n")
    };
    let computed = "0 ok: 2 4\n".to_owned();
    for (levels, cpu, want) in [
        ("x86-64-v3", "Nehalem", refused("x86-64-v3")),
        ("x86-64-v2", "Nehalem", computed.clone()),
        ("x86-64-v2,x86-64-v3", "qemu64", refused("x86-64-v2")),
        ("x86-64-v3", "Haswell", computed.clone()),
        ("x86-64-v3,x86-64-v4", "Haswell", computed.clone()),
        ("x86-64,x86-64-v4", "qemu64", computed),
    ] {
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("faults").join(format!("cpu-{levels}-{cpu}"));
        std::fs::create_dir_all(&dir).expect("a folder");
        let model = dir.join("small.onnxtxt");
        std::fs::write(&model, "<ir_version: 8, opset_import: [\"\" : 17]>\nsmall (float[2] x) => (float[2] y) { y = Add (x, x) }").expect("a model");
        std::fs::write(dir.join("main.c"), PROGRAM).expect("a program");
        run(Command::new(ONNXC).arg(&model).arg("-o").arg(dir.join("small.o")).args([
            "--target",
            "x86_64-unknown-linux-gnu",
            "--cpu",
            levels,
        ]));
        run(Command::new(&cc)
            .current_dir(&dir)
            .args(STRICT)
            .args(["main.c", "small.o", "-o", "program", "-static"]));
        assert_eq!(
            run(Command::new("qemu-x86_64").args(["-cpu", cpu]).arg(dir.join("program"))),
            want,
            "{levels} on {cpu}"
        );
    }
}

#[test]
fn in_rust() {
    let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".into());
    if !starts(&rustc) {
        return;
    }
    let dir = compiled("rust", &[]);
    std::fs::copy(source("program.rs"), dir.join("main.rs")).expect("the program");
    run(Command::new(&rustc).current_dir(&dir).args([
        "--edition",
        "2024",
        "-D",
        "warnings",
        "main.rs",
        "-o",
        "program",
        "-C",
        "link-arg=pick.o",
    ]));
    assert_eq!(run(&mut Command::new(dir.join("program"))), include_str!("faults/program_rust.txt"));
}

/// A .npy file with zeros.
fn zeros(dir: &Path, name: &str, kind: &str, shape: &str, bytes: &[u8]) -> String {
    let mut head = format!("{{'descr': '<{kind}', 'fortran_order': False, 'shape': ({shape}), }}");
    while (10 + head.len() + 1) % 64 != 0 {
        head.push(' ');
    }
    head.push('\n');
    let mut file = b"\x93NUMPY\x01\x00".to_vec();
    file.extend((head.len() as u16).to_le_bytes());
    file.extend(head.as_bytes());
    file.extend(bytes);
    let path = dir.join(format!("{name}.npy"));
    std::fs::write(&path, file).expect("a file");
    format!("{name}={}", path.display())
}

/// What `command` says of the model with these sizes of `x` and `y`, the last index, and the number of
/// elements.
fn told(command: &str, x: (usize, usize), y: usize, last: i64, count: i64) -> String {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR"))
        .join("faults")
        .join(format!("{command}-{x:?}-{y}-{last}-{count}"));
    std::fs::create_dir_all(&dir).expect("a folder");
    let indices: Vec<u8> = [0, last].iter().flat_map(|i| i.to_le_bytes()).collect();
    let inputs = [
        zeros(&dir, "x", "f4", &format!("{}, {}", x.0, x.1), &vec![0; 4 * x.0 * x.1]),
        zeros(&dir, "y", "f4", &format!("{y},"), &vec![0; 4 * y]),
        zeros(&dir, "i", "i8", "2,", &indices),
        zeros(&dir, "count", "i8", "", &count.to_le_bytes()),
    ];
    let mut c = Command::new(ONNXC);
    c.arg(command)
        .arg(source("pick.onnxtxt"))
        .args(["--dim", "N<=32", "--heap", "1K"])
        .args(inputs.iter().flat_map(|i| ["--input", i]));
    if command == "bench" {
        c.args(["--seconds", "0.01"]);
    }
    let out = output(&mut c);
    assert_eq!(out.status.code(), Some(if out.stderr.is_empty() { 0 } else { 1 }));
    String::from_utf8_lossy(&if out.status.success() { out.stdout } else { out.stderr }).into_owned()
}

#[test]
fn in_run_and_bench() {
    for command in ["run", "bench"] {
        let says = |x, y, last, count, text: &str| {
            let said = told(command, x, y, last, count);
            assert!(said.contains(text), "{command}: {said}");
        };
        says((40, 3), 3, 1, 10, "input \"x\" dimension 0 (N) is 40: it must be from 0 to 32");
        says(
            (2, 3),
            4,
            1,
            10,
            "Add \"s\": input \"x\" dimension 1 (K) is 3, input \"y\" dimension 0 (M) is 4: they must be equal, or one of them 1",
        );
        says((2, 3), 3, 7, 10, "Gather \"z\": index out of range");
        // Far more than --heap gives.
        says((2, 3), 3, 1, 100_000, if command == "run" { "total" } else { "per call at best" });
    }
}
