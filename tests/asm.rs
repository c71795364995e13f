//! `--emit asm`: assemblers produce the object that `--emit obj` writes, and programs run with it.

use object::read::{File, Relocation, RelocationTarget, Symbol};
use object::{
    BinaryFormat, Object, ObjectSection, ObjectSymbol, RelocationEncoding, RelocationFlags, RelocationKind,
    SectionKind, SymbolKind, elf, macho, pe,
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

/// Calls libm, and has a dynamic size, weights, and maps that differ in constants.
const MODEL: &str = r#"<ir_version: 8, opset_import: ["" : 17]>
net (double[N, 4] x, float[4, 64] a, float[4, 64] b) => (double[N, 3] y, float[4, 64] c, float[4, 64] d)
<double[4, 3] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}> {
  s = Sinh (x)
  y = MatMul (s, w)
  c = HardSigmoid <alpha = 0.3, beta = 0.4> (a)
  d = HardSigmoid <alpha = 0.7, beta = 0.2> (b)
}"#;

/// Prefixes of symbols that assemblers add.
const GENERATED: &[&str] = &[".", "$", "_GLOBAL_OFFSET_TABLE_", "ltmp", "Lloh", "@feat"];

/// An object as a linker sees it: contents of sections, relocations, symbols.
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
            let section = |i| {
                let section = file.section_by_index(i).expect("a section");
                (section.name().expect("a name").to_owned(), section.address())
            };
            let symbol = match r.target() {
                RelocationTarget::Symbol(i) => Some(file.symbol_by_index(i).expect("a symbol")),
                _ => None,
            };
            // Places are told by sections: assemblers choose between a symbol and its section. Entries of the
            // GOT are those of symbols; on aarch64, of addresses.
            let got = [elf::R_X86_64_GOTPCREL, elf::R_RISCV_GOT_HI20];
            let got = matches!(r.flags(), RelocationFlags::Elf { r_type } if got.contains(&r_type));
            let local = |s: &Symbol| s.section_index().filter(|_| !s.is_global() && !got);
            let (place, offset) = match (&symbol, r.target()) {
                (Some(s), _) => match local(s) {
                    Some(i) => (section(i).0, s.address() as i64 - section(i).1 as i64),
                    None => (s.name().expect("a name").to_owned(), 0),
                },
                (_, RelocationTarget::Section(i)) => (section(i).0, -(section(i).1 as i64)),
                _ => panic!("{r:?}"),
            };
            let size = usize::from(r.size().max(32)) / 8;
            // Assemblers resolve distances within a section.
            if let Some(symbol) = symbol.filter(|x| x.section_index() == Some(s.index()))
                && resolve(&mut data[at as usize..], &r, &symbol, at)
            {
                continue;
            }
            let there = &mut data[at as usize..][..size];
            let mut addend = r.addend() + offset;
            // The operands of instructions are compared without the bits under relocations, which assemblers
            // may fill differently.
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
        .filter(|s| s.name().is_ok_and(|n| !n.is_empty() && !GENERATED.iter().any(|g| n.starts_with(g))))
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

/// Resolves a relocation within a section; false for relocations that remain.
fn resolve(code: &mut [u8], r: &Relocation, symbol: &Symbol, at: u64) -> bool {
    let word = |code: &[u8]| i32::from_le_bytes(code[..4].try_into().expect("four bytes"));
    let implicit = if r.has_implicit_addend() { i64::from(word(code)) } else { 0 };
    let distance = symbol.address() as i64 + r.addend() + implicit - at as i64;
    match (r.kind(), r.flags()) {
        (RelocationKind::Relative | RelocationKind::PltRelative, _)
            if r.encoding() != RelocationEncoding::AArch64Call && r.size() == 32 =>
        {
            code[..4].copy_from_slice(&(distance as i32).to_le_bytes());
        }
        (
            _,
            RelocationFlags::Elf { r_type: elf::R_AARCH64_CALL26 }
            | RelocationFlags::MachO { r_type: macho::ARM64_RELOC_BRANCH26, r_pcrel: true, .. }
            | RelocationFlags::Coff { typ: pe::IMAGE_REL_ARM64_BRANCH26 },
        ) if matches!(code[3] >> 2, 0x05 | 0x25) => {
            // What stands there is an instruction, a jump or a call, no number.
            let bits = ((distance - implicit) >> 2) as i32 & 0x3ff_ffff;
            let call = word(code) & !0x3ff_ffff | bits;
            code[..4].copy_from_slice(&call.to_le_bytes());
        }
        _ => return false,
    }
    true
}

fn same(what: &str, ours: &[String], theirs: &[String], by: &Command) {
    let left: Vec<_> = ours.iter().filter(|x| !theirs.contains(x)).collect();
    let right: Vec<_> = theirs.iter().filter(|x| !ours.contains(x)).collect();
    assert!(left.is_empty() && right.is_empty(), "{what} by {by:?}: {left:#?} became {right:#?}");
}

fn compare(d: &Path, model: &Path, args: &[&str], assemble: &mut Command, target: &str) {
    run(onnxc(d).arg(model).args(["-o", "net.o", "--target", target]).args(args));
    run(onnxc(d).arg(model).args(["-o", "net.o", "--emit", "asm", "--target", target]).args(args));
    run(assemble.current_dir(d));
    let (mut ours, mut theirs) = (seen(&d.join("net.o")), seen(&d.join("again.o")));
    if !target.contains("linux") {
        // Sections of one name become one: code is compared, and which symbols there are.
        for x in [&mut ours, &mut theirs] {
            x.0.retain(|name, _| name.ends_with("text"));
            x.1.retain(|r| r.split('+').next().is_some_and(|name| name.ends_with("text")));
            let name = |s: &String| s.split(' ').next().unwrap_or_default().to_owned();
            x.2 = x.2.iter().map(name).collect();
        }
    }
    for (name, data) in &ours.0 {
        let other = theirs.0.get(name).map_or(&[][..], Vec::as_slice);
        // Some fill sections up to their alignment.
        assert!((data.len()..data.len() + 64).contains(&other.len()), "{target}: {name} by {assemble:?}");
        let at = (0..data.len()).find(|i| data[*i] != other[*i]);
        assert_eq!(at, None, "{target}: {name} differs at {at:#x?} of {}, by {assemble:?}", data.len());
    }
    assert_eq!(ours.0.len(), theirs.0.len(), "{target}: {:?} {:?}", ours.0.keys(), theirs.0.keys());
    same("relocations", &ours.1, &theirs.1, assemble);
    same("symbols", &ours.2, &theirs.2, assemble);
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
                let triple = target.replace("riscv64gc", "riscv64");
                c.args(["-filetype=obj", "-o", "again.o", "net.s", "--triple", &triple]);
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
