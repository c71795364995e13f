//! Unwinders find their way out of every function: tables of ELF objects and shared libraries are used by the
//! platform's unwinder, those of COFF and Mach-O are read by LLVM's tools.

use object::{Object, ObjectSection, ObjectSymbol};
use process::{for_wine, root, run_both as run, scratch, starts};
use std::path::Path;
use std::process::Command;

#[path = "support/process.rs"]
mod process;

/// The digits network, compiled.
fn compile(out: &Path, args: &[&str]) {
    let model = root().join("examples/c-digits/digits.onnx");
    run(Command::new(env!("CARGO_BIN_EXE_onnxc")).arg(model).arg("-o").arg(out).args(args));
}

#[test]
fn every_instruction_unwinds_to_main() {
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        println!("skipped: the program is for Linux on x86-64");
        return;
    }
    for (target, cc, qemu) in [
        ("x86_64-unknown-linux-gnu", "x86_64-linux-gnu-gcc", None),
        ("aarch64-unknown-linux-gnu", "aarch64-linux-gnu-gcc", Some("qemu-aarch64")),
        ("riscv64gc-unknown-linux-gnu", "riscv64-linux-gnu-gcc", Some("qemu-riscv64")),
    ] {
        if !starts(cc) || qemu.is_some_and(|q| !starts(q)) {
            continue;
        }
        for shared in [false, true] {
            let d = scratch("unwind", &format!("{cc}-{shared}"));
            let (model, program) = (d.join(if shared { "digits.so" } else { "digits.o" }), d.join("main"));
            compile(
                &model,
                &[
                    "--trace",
                    "--target",
                    target,
                    "--emit",
                    if shared { "shared,header" } else { "obj,header" },
                ],
            );
            let mut c = Command::new(cc);
            c.args(["-std=gnu11", "-O1", "-fasynchronous-unwind-tables", "-I"])
                .arg(&d)
                .arg(root().join("tests/unwind/main.c"));
            c.arg("-o").arg(&program);
            if shared {
                c.args(["-DSHARED", "-ldl"])
            } else {
                c.arg(&model)
            };
            run(&mut c);
            let mut c = match qemu {
                Some(q) => {
                    let mut c = Command::new(q);
                    c.arg("-L").arg(format!("/usr/{}", cc.trim_end_matches("-gcc"))).arg(&program);
                    c
                }
                None => Command::new(&program),
            };
            if shared {
                c.arg(&model);
            }
            assert!(run(&mut c).contains("status 0"), "{target}");
        }
    }
}

/// The same on Windows, by the tables and the unwinder of the system, in wine.
#[test]
fn every_instruction_unwinds_to_main_on_windows() {
    let (cc, triple) = ("x86_64-w64-mingw32-gcc", "x86_64-pc-windows-gnu");
    if !starts(cc) || !starts("wine") {
        return;
    }
    let d = scratch("unwind", "windows");
    compile(&d.join("digits.o"), &["--trace", "--target", triple]);
    let mut c = Command::new(cc);
    c.args(["-O1", "-I"]).arg(&d).arg(root().join("tests/unwind/windows.c")).arg(d.join("digits.o"));
    run(c.arg("-o").arg(d.join("main.exe")));
    let printed = run(for_wine(Command::new("wine").arg(d.join("main.exe"))));
    assert!(printed.contains("status 0"), "{printed}");
}

#[test]
fn tables_are_read_only_and_small() {
    let d = scratch("unwind", "size");
    for (target, sections) in [
        ("x86_64-unknown-linux-gnu", &[".eh_frame"][..]),
        ("aarch64-unknown-linux-gnu", &[".eh_frame"]),
        ("riscv64gc-unknown-linux-gnu", &[".eh_frame"]),
        ("x86_64-unknown-none", &[".eh_frame"]),
        ("x86_64-apple-darwin", &["__eh_frame"]),
        ("aarch64-apple-darwin", &["__eh_frame"]),
        ("x86_64-pc-windows-msvc", &[".pdata", ".xdata"]),
        ("aarch64-pc-windows-msvc", &[".pdata", ".xdata"]),
    ] {
        let path = d.join(format!("{target}.o"));
        compile(&path, &["--name", "digits", "--target", target]);
        let bytes = std::fs::read(&path).expect("object");
        let file = object::File::parse(&*bytes).expect("object");
        let functions = file.symbols().filter(|s| s.kind() == object::SymbolKind::Text).count();
        let mut size = 0;
        for name in sections {
            let section = file.section_by_name(name).unwrap_or_else(|| panic!("{target} has no {name}"));
            assert_ne!(section.kind(), object::SectionKind::Data, "{target} {name}");
            size += section.size() as usize;
        }
        assert!(size > 0 && size <= 64 + 72 * functions, "{target}: {size} bytes for {functions} functions");
    }
}

#[test]
fn llvm_reads_tables_of_windows() {
    if !starts("llvm-readobj") {
        return;
    }
    let d = scratch("unwind", "readobj");
    for (target, wanted) in [
        ("x86_64-pc-windows-msvc", &["PUSH_NONVOL reg=RBP", "ALLOC_", "SET_FPREG"][..]),
        ("aarch64-pc-windows-msvc", &["mov fp, sp", "stp x29, x30, [sp, #-16]!"]),
    ] {
        let path = d.join("digits.o");
        compile(&path, &["--target", target]);
        let text = run(Command::new("llvm-readobj").arg("--unwind").arg(&path));
        for w in wanted {
            assert!(text.contains(w), "{target}: no {w} in\n{text}");
        }
        for w in ["error", "warning", "invalid", "reserved"] {
            assert!(!text.contains(w), "{target}: {w} in\n{text}");
        }
    }
}
