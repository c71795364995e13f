//! `--emit asm`: assemblers make the object of it that `--emit obj` writes, and programs run with it.

use object::read::{File, RelocationTarget};
use object::{
    BinaryFormat, Object, ObjectSection, ObjectSymbol, RelocationFlags, SectionKind, SymbolKind, elf,
};
use process::{onnxc, root, run, scratch, starts, tool};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

#[path = "support/process.rs"]
mod process;

const TARGETS: &[&str] = &[
    "x86_64-unknown-linux-gnu",
    "aarch64-unknown-linux-gnu",
    "riscv64gc-unknown-linux-gnu",
    "x86_64-apple-darwin",
    "aarch64-apple-darwin",
    "x86_64-pc-windows-msvc",
    "aarch64-pc-windows-msvc",
];

/// Calls libm, has a size of the caller's, and weights.
const MODEL: &str = r#"<ir_version: 8, opset_import: ["" : 17]>
net (double[N, 4] x) => (double[N, 3] y)
<double[4, 3] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}> { s = Sinh (x) y = MatMul (s, w) }"#;

/// What a linker sees of an object: contents of sections, relocations, symbols.
type Seen = (BTreeMap<String, Vec<u8>>, Vec<String>, Vec<String>);

fn seen(path: &Path) -> Seen {
    let bytes = std::fs::read(path).expect("an object");
    let file = File::parse(&*bytes).expect("an object");
    let mut sections = BTreeMap::new();
    let mut relocations = vec![];
    for s in file.sections().filter(|s| s.size() > 0) {
        let name = s.name().expect("a name").to_owned();
        // Tables of the format. LLVM has a type of its own for unwind information.
        let table = matches!(s.kind(), SectionKind::Metadata | SectionKind::Other | SectionKind::Elf(_));
        if table && name != ".eh_frame" {
            continue;
        }
        let mut data = s.data().expect("contents").to_vec();
        for (at, r) in s.relocations() {
            let RelocationTarget::Symbol(symbol) = r.target() else { panic!("{r:?}") };
            let symbol = file.symbol_by_index(symbol).expect("a symbol");
            // Places are told by sections: assemblers choose between a symbol and its section.
            // Entries of the GOT are those of symbols.
            let got = match r.flags() {
                RelocationFlags::Elf { r_type } => [
                    elf::R_X86_64_GOTPCREL,
                    elf::R_AARCH64_ADR_GOT_PAGE,
                    elf::R_AARCH64_LD64_GOT_LO12_NC,
                    elf::R_RISCV_GOT_HI20,
                ]
                .contains(&r_type),
                _ => false,
            };
            let local = symbol.section_index().filter(|_| !symbol.is_global() && !got);
            let (place, offset) = match local {
                Some(i) => {
                    let section = file.section_by_index(i).expect("a section");
                    (section.name().expect("a name").to_owned(), symbol.address() - section.address())
                }
                None => (symbol.name().expect("a name").to_owned(), 0),
            };
            let size = usize::from(r.size().max(32)) / 8;
            let there = &mut data[at as usize..][..size];
            let mut addend = r.addend() + offset as i64;
            // The operands of instructions are compared without what assemblers may write beside relocations.
            if r.has_implicit_addend() && file.format() == BinaryFormat::Coff && s.kind() != SectionKind::Text
                || r.has_implicit_addend() && r.size() == 64
            {
                let mut word = [0; 8];
                word[..size].copy_from_slice(there);
                addend += i64::from_le_bytes(word);
                there.fill(0);
            } else if s.kind() == SectionKind::Text && r.has_implicit_addend() {
                addend = 0;
                there.fill(0);
            }
            relocations.push(format!("{name}+{at:#x}: {:?} {place}{addend:+}", r.flags()));
        }
        sections.insert(name, data);
    }
    let mut symbols: Vec<String> = file
        .symbols()
        .filter(|s| {
            matches!(s.kind(), SymbolKind::Text | SymbolKind::Data | SymbolKind::Unknown) || s.is_undefined()
        })
        .filter(|s| s.name().is_ok_and(|n| !n.is_empty() && !n.starts_with('.')))
        .map(|s| {
            let section = s.section_index().and_then(|i| file.section_by_index(i).ok());
            let place = section.map_or(String::new(), |x| {
                format!("{} {:#x}", x.name().unwrap_or("?"), s.address() - x.address())
            });
            format!("{} {place} {}", s.name().unwrap_or("?"), s.is_global())
        })
        .collect();
    // Without this one, linkers make stacks executable.
    symbols.extend(file.section_by_name(".note.GNU-stack").map(|_| "GNU-stack".to_owned()));
    symbols.sort();
    relocations.sort();
    (sections, relocations, symbols)
}

fn compare(d: &Path, model: &Path, args: &[&str], assemble: &mut Command, target: &str) {
    run(onnxc(d).arg(model).args(["-o", "net.o", "--target", target]).args(args));
    run(onnxc(d).arg(model).args(["-o", "net.o", "--emit", "asm", "--target", target]).args(args));
    run(assemble.current_dir(d));
    let (ours, theirs) = (seen(&d.join("net.o")), seen(&d.join("again.o")));
    for (name, data) in &ours.0 {
        assert!(theirs.0.get(name) == Some(data), "{target}: {name} differs");
    }
    assert_eq!(ours.0.len(), theirs.0.len(), "{target}: {:?} {:?}", ours.0.keys(), theirs.0.keys());
    assert_eq!(ours.1, theirs.1, "{target}: relocations");
    assert_eq!(ours.2, theirs.2, "{target}: symbols");
}

#[test]
fn assemblers_make_the_object() {
    let digits = root().join("examples/c-digits/digits.onnx");
    for target in TARGETS {
        let d = scratch("asm", target);
        std::fs::write(d.join("net.onnx"), MODEL).expect("written");
        for (model, args) in
            [(&d.join("net.onnx"), &["-g=nest"][..]), (&digits, &[]), (&digits, &["--hidden"])]
        {
            if starts("llvm-mc") {
                let mut c = Command::new("llvm-mc");
                c.args(["-filetype=obj", "-o", "again.o", "net.s", "--triple", target]);
                if target.starts_with("riscv") {
                    c.arg("--mattr=+m,+a,+f,+d,+c");
                }
                compare(&d, model, args, &mut c, target);
            }
            let gnu = match *target {
                "x86_64-unknown-linux-gnu" => "x86_64-linux-gnu-as",
                "aarch64-unknown-linux-gnu" => "aarch64-linux-gnu-as",
                "riscv64gc-unknown-linux-gnu" => "riscv64-linux-gnu-as",
                _ => continue,
            };
            if starts(gnu) {
                compare(&d, model, args, Command::new(gnu).args(["-o", "again.o", "net.s"]), target);
            }
        }
    }
}

#[test]
fn programs_run_with_it() {
    let Some(cc) = tool("CC", "cc") else { return };
    if !cfg!(target_os = "linux") {
        println!("skipped: the compiler may want another syntax");
        return;
    }
    let d = scratch("asm", "run");
    let example = root().join("examples/c-digits");
    run(onnxc(&d).arg(example.join("digits.onnx")).args(["-o", "digits.o", "--emit", "obj,header,asm"]));
    let mut printed = vec![];
    for code in ["digits.o", "digits.s"] {
        run(Command::new(&cc)
            .current_dir(&d)
            .arg("-I.")
            .arg(example.join("main.c"))
            .args([code, "-o", "digits", "-lm"]));
        printed.push(run(&mut Command::new(d.join("digits"))));
    }
    assert_eq!(printed[0], printed[1]);
}
