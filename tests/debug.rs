//! Debug information: every byte of code has a line of the text beside the object, in all formats; debuggers
//! show it; and the code is the same as without.

use gimli::{EndianSlice, LittleEndian};
use object::read::{File, RelocationTarget, SectionIndex};
use object::{BinaryFormat, Object, ObjectSection, ObjectSymbol, SectionKind, SymbolKind};
use process::{onnxc, root, run, run_both, scratch, starts, tool};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

#[path = "support/process.rs"]
mod process;

const TARGETS: &[&str] = &[
    "x86_64-unknown-linux-gnu",
    "aarch64-unknown-linux-gnu",
    "riscv64gc-unknown-linux-gnu",
    "aarch64-apple-darwin",
    "x86_64-pc-windows-gnu",
    "aarch64-pc-windows-msvc",
];

/// The digits network, compiled; the output's bytes.
fn compile(d: &Path, out: &str, args: &[&str]) -> Vec<u8> {
    let model = root().join("examples/c-digits/digits.onnx");
    run(onnxc(d).arg(model).args(["-o", out]).args(args));
    std::fs::read(d.join(out)).expect("the output")
}

/// Contents of a section of debug information; in objects, addresses are offsets in their sections.
fn section(file: &File, name: &str) -> Vec<u8> {
    let Some(s) = file.section_by_name(name) else { return vec![] };
    let mut bytes = s.data().expect("a section").to_vec();
    for (at, r) in s.relocations() {
        let size = usize::from(r.size() / 8);
        let place = &mut bytes[at as usize..][..size];
        let mut there = [0; 8];
        there[..size].copy_from_slice(place);
        let implicit = if r.has_implicit_addend() { i64::from_le_bytes(there) } else { 0 };
        // Sections have no address of their own in an object; Mach-O's are part of what stands there.
        let base = match r.target() {
            RelocationTarget::Symbol(i) => match file.symbol_by_index(i).expect("a symbol") {
                s if s.kind() == SymbolKind::Section => 0,
                s => s.address(),
            },
            _ => 0,
        };
        let value = base.wrapping_add_signed(r.addend() + implicit);
        place.copy_from_slice(&value.to_le_bytes()[..size]);
    }
    bytes
}

/// A function: name, address, size and declared line, and the rows of its code.
struct Function {
    name: String,
    begin: u64,
    size: u64,
    line: u64,
    rows: Vec<(u64, u64)>,
}

/// What the debug information of a file says, and the name of the text that it is about.
fn read(bytes: &[u8]) -> (Vec<Function>, String) {
    let file = File::parse(bytes).expect("an object");
    let sections = gimli::DwarfSections::load(|id| Ok::<_, ()>(section(&file, id.name()))).expect("sections");
    let dwarf = sections.borrow(|s| EndianSlice::new(s, LittleEndian));
    let mut units = dwarf.units();
    let unit = dwarf.unit(units.next().expect("a unit").expect("one")).expect("a unit");
    assert!(units.next().expect("the end").is_none());
    let text = unit.name.expect("a name").to_string_lossy().into_owned();
    let mut rows = BTreeMap::new();
    let mut lines = unit.line_program.clone().expect("lines").rows();
    let mut inside: Vec<(u64, u64)> = vec![];
    while let Some((_, row)) = lines.next_row().expect("a row") {
        if row.end_sequence() {
            let all = std::mem::take(&mut inside);
            rows.insert(all[0].0, (row.address(), all));
        } else {
            inside.push((row.address(), row.line().map_or(0, |l| l.get())));
        }
    }
    let mut functions = vec![];
    let mut entries = unit.entries();
    while let Some(e) = entries.next_dfs().expect("an entry") {
        if e.tag() != gimli::DW_TAG_subprogram {
            continue;
        }
        let value = |name| e.attr_value(name).expect("a value");
        let gimli::AttributeValue::Addr(begin) = value(gimli::DW_AT_low_pc) else { panic!("no address") };
        let name = dwarf.attr_string(&unit, value(gimli::DW_AT_name)).expect("a name");
        let size = value(gimli::DW_AT_high_pc).udata_value().expect("a size");
        let (end, rows) = rows.remove(&begin).expect("lines of a function");
        assert_eq!(end, begin + size);
        functions.push(Function {
            name: name.to_string_lossy().into_owned(),
            begin,
            size,
            line: value(gimli::DW_AT_decl_line).udata_value().expect("a line"),
            rows,
        });
    }
    assert!(rows.is_empty(), "lines of no function");
    (functions, text)
}

/// Lines of the text are those of the functions' code: kernels begin at their heads, and their statements
/// stand behind them.
fn check(bytes: &[u8], d: &Path, nest: bool) {
    let (functions, name) = read(bytes);
    let text = std::fs::read_to_string(d.join(name)).expect("the text");
    let lines: Vec<&str> = text.lines().collect();
    let line = |n: u64| lines[n as usize - 1];
    let (mut kernels, mut statements) = (0, 0);
    for f in &functions {
        assert_eq!(f.rows[0], (f.begin, f.line), "{}", f.name);
        assert!(f.rows.is_sorted_by(|a, b| a.0 < b.0) && f.rows.iter().all(|r| r.0 < f.begin + f.size));
        let head = line(f.line);
        if !nest {
            // A node, or the signature of the graph.
            assert!(f.rows.len() == 1 && (head.contains(" = ") || head.contains("=>")), "{}: {head}", f.name);
            kernels += usize::from(head.contains(" = "));
            continue;
        }
        let Some(kernel) = head.strip_prefix("kernel ") else {
            assert_eq!(head, "driver", "{}", f.name);
            continue;
        };
        let kernel = kernel.split(' ').next().expect("a name");
        assert!(f.name.contains(&format!(".{kernel}")), "{}: {head}", f.name);
        kernels += 1;
        for (_, n) in &f.rows[1..] {
            let end = lines[f.line as usize..].iter().position(|l| !l.starts_with(' '));
            let end = f.line + end.expect("an end") as u64;
            assert!((f.line..=end).contains(n), "{}: {}", f.name, line(*n));
            assert_ne!(line(*n).trim(), "}", "{}", f.name);
            statements += 1;
        }
    }
    assert!(kernels >= 8, "{kernels}");
    assert_eq!(nest, statements > 100, "{statements}");
    // Nothing but the function that asks for the CPU level has no lines.
    let file = File::parse(bytes).expect("an object");
    let code = |s: &SectionIndex| file.section_by_index(*s).is_ok_and(|s| s.kind() == SectionKind::Text);
    for s in
        file.symbols().filter(|s| s.kind() == SymbolKind::Text && s.section_index().is_some_and(|s| code(&s)))
    {
        let name = s.name().expect("a name");
        let known = functions.iter().any(|f| f.begin == s.address());
        assert!(known || ["digits.cpu_level", "_digits.cpu_level", ".text"].contains(&name), "{name}");
    }
}

#[test]
fn code_has_lines_in_every_format() {
    for target in TARGETS {
        for nest in [false, true] {
            let d = scratch("debug", &format!("{target}-{nest}"));
            let text = if nest { "-g=nest" } else { "-g" };
            check(&compile(&d, "digits.o", &[text, "--target", target]), &d, nest);
            if starts("llvm-dwarfdump") {
                run(Command::new("llvm-dwarfdump").arg("--verify").arg(d.join("digits.o")));
            }
        }
    }
    for target in &TARGETS[..3] {
        let d = scratch("debug", &format!("shared-{target}"));
        check(&compile(&d, "digits.so", &["-g=nest", "--emit", "shared", "--target", target]), &d, true);
    }
}

#[test]
fn code_is_the_same_without() {
    for target in TARGETS {
        let d = scratch("debug", &format!("same-{target}"));
        let with = compile(&d, "digits.o", &["-g=nest", "--target", target]);
        let without = compile(&d, "digits.o", &["--target", target]);
        let (with, without) = (File::parse(&*with).expect("one"), File::parse(&*without).expect("the other"));
        for s in without.sections().filter(|s| s.kind() == SectionKind::Text) {
            let name = s.name().expect("a name");
            let other = with.section_by_name(name).expect("the same section");
            assert!(s.data().expect("bytes") == other.data().expect("bytes"), "{target}: {name}");
        }
        assert!(!without.sections().any(|s| s.name().is_ok_and(|n| n.contains("debug_"))));
        assert_eq!(with.format() == BinaryFormat::MachO, target.contains("apple"));
    }
}

/// gdb stops at a line of the text, shows it, and finds the caller's line.
#[test]
fn gdb_shows_lines() {
    let (Some(cc), true) = (tool("CC", "cc"), starts("gdb")) else { return };
    if !cfg!(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64"))) {
        println!("skipped: the commands are for Linux");
        return;
    }
    let d = scratch("debug", "gdb");
    compile(&d, "digits.o", &["-g"]);
    let text = std::fs::read_to_string(d.join("digits.graph.txt")).expect("the text");
    let node = 1 + text.lines().position(|l| l.contains("[fc]")).expect("the last layer");
    let program = d.join("digits");
    let example = root().join("examples/c-digits/main.c");
    run(Command::new(cc)
        .args(["-g", "-I"])
        .arg(&d)
        .arg(&example)
        .arg(d.join("digits.o"))
        .arg("-o")
        .arg(&program));
    let printed = run_both(
        Command::new("gdb")
            .args(["-q", "-batch", "-ex", &format!("break digits.graph.txt:{node}"), "-ex", "run"])
            .args(["-ex", "backtrace", "-ex", "list", "-ex", "kill"])
            .arg(&program)
            .env_remove("DEBUGINFOD_URLS"),
    );
    if printed.contains("ptrace: ") {
        println!("skipped in part: programs cannot be traced here");
        return;
    }
    let line = text.lines().nth(node - 1).expect("a line").trim();
    assert!(printed.contains(&format!("digits.graph.txt:{node}")) && printed.contains(line), "{printed}");
    assert!(printed.contains(".logits") && printed.contains("main.c:"), "{printed}");
}
