//! The documentation does what it says: its commands run, its programs compile, its reference is complete.
//!
//! A page is followed from its first line to its last, in a folder of its own:
//!
//! - A block ```` ```LANGUAGE FILE ```` is written to the file.
//! - A block ```` ```console ```` has commands behind `$ `, and under each some of the lines that it prints;
//!   `...` in a line is any text. A line that ends with `\` goes on.
//! - `<!-- needs: cmake ninja -->` above a block: without these programs its section is skipped, aloud.
//!
//! Commands see `onnxc` on PATH and the source in `ONNXC_SOURCE`.

use onnxc::arrays::{self, Array};
use onnxc::tensor::ElemType;
use process::{blocks, page, root};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

#[path = "support/process.rs"]
mod process;
#[path = "support/venv.rs"]
mod venv;

fn scratch(name: &str) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("book").join(name);
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).expect("a folder");
    dir
}

/// A shell command as a reader types it.
fn shell(command: &str, dir: &Path) -> Command {
    let program = Path::new(env!("CARGO_BIN_EXE_onnxc"));
    let python = venv::python().parent().expect("a folder").to_owned();
    let mut path: Vec<PathBuf> = vec![program.parent().expect("a folder").to_owned(), python];
    path.extend(venv::tools().map(Path::to_owned));
    path.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()));
    let mut c = Command::new("bash");
    c.args(["-euo", "pipefail", "-c", command]).current_dir(dir);
    for (key, _) in std::env::vars_os() {
        if key.to_str().is_some_and(|k| k.starts_with("CARGO") || k.starts_with("ONNXC") || k == "OUT_DIR") {
            c.env_remove(key);
        }
    }
    c.env("PATH", std::env::join_paths(path).expect("a path"))
        .env("ONNXC_SOURCE", root())
        .env("HOME", dir)
        .env("ONNXC_PROGRAM", program)
        // Nothing is downloaded. The compiler that the test of examples/rust-iris built serves here, too.
        .env("CARGO_HOME", std::env::var_os("CARGO_HOME").unwrap_or_else(|| home().join(".cargo").into()))
        .env("RUSTUP_HOME", std::env::var_os("RUSTUP_HOME").unwrap_or_else(|| home().join(".rustup").into()))
        .env("CARGO_NET_OFFLINE", "true")
        .env("CARGO_INCREMENTAL", "0")
        .env("CARGO_PROFILE_DEV_DEBUG", "0")
        .env("CARGO_TARGET_DIR", Path::new(env!("CARGO_TARGET_TMPDIR")).join("examples/rust-iris/target"));
    c
}

fn home() -> PathBuf {
    PathBuf::from(std::env::var_os("HOME").unwrap_or_default())
}

/// True if what was printed has these lines, in this order.
fn says(printed: &str, lines: &[&str]) -> bool {
    let mut rest = printed.lines();
    lines.iter().all(|l| rest.by_ref().any(|p| like(p.trim(), l.trim())))
}

/// True if a line is as its pattern, in which `...` is any text.
fn like(line: &str, pattern: &str) -> bool {
    let mut parts = pattern.split("...");
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = line.strip_prefix(first) else { return false };
    let mut any = false;
    for p in parts {
        any = true;
        let Some(at) = rest.rfind(p).filter(|_| p.is_empty()).or_else(|| rest.find(p)) else { return false };
        rest = &rest[at + p.len()..];
    }
    rest.is_empty() || any && pattern.ends_with("...")
}

#[test]
fn patterns() {
    for (line, pattern, is) in [
        ("a b c", "a b c", true),
        ("a b c", "a ... c", true),
        ("a b c", "a b", false),
        ("a b c", "a...", true),
        ("a b c", "...c", true),
        ("a b c", "...d", false),
        ("a b c d", "a...c", false),
    ] {
        assert_eq!(like(line, pattern), is, "{line:?} {pattern:?}");
    }
}

/// Executes a page; returns the number of commands.
fn follow(name: &str) -> usize {
    let text = page(&format!("docs/{name}.md"));
    let dir = scratch(name);
    let (mut ran, mut skip) = (0, false);
    let mut lines = text.lines().enumerate();
    while let Some((at, line)) = lines.next() {
        if line.starts_with("## ") {
            skip = false;
        }
        if let Some(needs) = line.strip_prefix("<!-- needs: ").and_then(|l| l.strip_suffix(" -->")) {
            let has =
                |p: &str| shell(&format!("command -v {p}"), &dir).output().is_ok_and(|o| o.status.success());
            for p in needs.split_whitespace().filter(|p| !has(p)) {
                println!("docs/{name}.md:{}: a section is skipped, there is no {p} here", at + 1);
                skip = true;
            }
        }
        let Some(info) = line.strip_prefix("```").filter(|i| !i.is_empty()) else { continue };
        let block: Vec<&str> = lines.by_ref().map(|l| l.1).take_while(|l| !l.starts_with("```")).collect();
        if skip {
            continue;
        }
        match info.split_once(' ') {
            Some((_, file)) => {
                let file = dir.join(file);
                std::fs::create_dir_all(file.parent().expect("a folder")).expect("a folder");
                std::fs::write(file, block.join("\n") + "\n").expect("written");
            }
            None if info == "console" => ran += console(&block, &dir, &format!("docs/{name}.md:{}", at + 1)),
            None => {}
        }
    }
    ran
}

/// Runs the commands of a block.
fn console(block: &[&str], dir: &Path, place: &str) -> usize {
    let mut ran = 0;
    let mut lines = block.iter().peekable();
    while let Some(line) = lines.next() {
        let mut command = line.strip_prefix("$ ").unwrap_or_else(|| panic!("{place}: {line}")).to_owned();
        while command.ends_with('\\') {
            command.pop();
            command += lines.next().unwrap_or_else(|| panic!("{place}: {command}"));
        }
        let mut expected = vec![];
        while let Some(l) = lines.next_if(|l| !l.starts_with("$ ")) {
            expected.push(*l);
        }
        let out = shell(&command, dir).output().expect("bash");
        let text =
            format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
        assert!(out.status.success(), "{place}: {command}\n{}\n{text}", out.status);
        assert!(says(&text, &expected), "{place}: {command}\nprinted\n{text}\nexpected {expected:#?}");
        ran += 1;
    }
    ran
}

/// A page with a test of its own, that as many run beside each other as there are cores.
macro_rules! pages {
    ($($name:ident)*) => {
        $(#[test]
        #[cfg(target_os = "linux")]
        fn $name() {
            assert!(follow(stringify!($name)) > 3, "docs/{}.md has commands", stringify!($name));
        })*

        /// Pages with commands are executed.
        #[test]
        fn no_page_is_left_out() {
            for file in std::fs::read_dir(root().join("docs")).expect("docs") {
                let path = file.expect("a file").path();
                let stem = path.file_stem().expect("a name").to_string_lossy().into_owned();
                let text = std::fs::read_to_string(&path).expect("a page");
                assert!(!text.contains("```console") || [$(stringify!($name)),*].contains(&&*stem), "{stem}");
            }
        }
    };
}

pages!(tutorial embedding ir);

/// The commands of tables and lists of examples, lines of four spaces and a command: each runs where its
/// files are.
#[test]
#[cfg(target_os = "linux")]
fn listed_commands_run() {
    let mut ran = 0;
    let pages = std::fs::read_dir(root().join("docs")).expect("docs").map(|f| f.expect("a file").path());
    for path in pages.chain(["README.md", "ARCHITECTURE.md"].map(|p| root().join(p))) {
        let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
        let text = std::fs::read_to_string(&path).expect("a page");
        let dir = scratch(&format!("listed-{name}"));
        fixtures(&dir, name == "calling");
        if name == "custom-operators" {
            std::fs::write(dir.join("net.onnx"), &blocks(&text, "text")[0]).expect("written");
        }
        let mut fenced = false;
        for line in text.lines() {
            fenced ^= line.starts_with("```");
            let Some(command) = line.strip_prefix("    ").filter(|_| !fenced) else { continue };
            // An explanation follows behind two spaces.
            let command = command.split("  ").next().unwrap_or_default();
            let word = command.split(' ').find(|w| !w.contains('='));
            if word != Some("onnxc") {
                continue;
            }
            let out = shell(command, &dir).output().expect("bash");
            let text = String::from_utf8_lossy(&out.stderr);
            assert!(out.status.success(), "{}: {command}\n{}\n{text}", path.display(), out.status);
            ran += 1;
        }
    }
    assert!(ran > 40, "{ran} commands");
}

/// The files that listed commands name: a model with a dimension N and its data, a decoder.
fn fixtures(dir: &Path, decoder: bool) {
    let llm = root().join("examples/llm/model.onnx");
    std::fs::copy(&llm, dir.join("llm.onnx")).expect("the example");
    if decoder {
        std::fs::copy(&llm, dir.join("model.onnx")).expect("the example");
        return;
    }
    // Models, and what a training made of them.
    for (name, trained) in
        [("model", "new"), ("net", "trained"), ("prefill", "prefill2"), ("decode", "decode2")]
    {
        for (name, step) in [(name, 1), (trained, 2)] {
            let weights = (1..=16).map(|i| (step * i).to_string()).collect::<Vec<_>>().join(", ");
            let text = format!(
                "<ir_version: 8, opset_import: [\"\" : 17]>\nmodel (float[N, 4] x) => (float[N, 4] y) \
                 <float[4, 4] w = {{{weights}}}> {{ h = MatMul (x, w) y = Relu (h) }}"
            );
            std::fs::write(dir.join(format!("{name}.onnx")), text).expect("written");
        }
    }
    let data = dir.join("test_data_set_0");
    std::fs::create_dir(&data).expect("a folder");
    let array = |name: &str, values: [f32; 4]| Array {
        name: name.into(),
        ty: ElemType::F32,
        dims: vec![1, 4],
        data: values.iter().flat_map(|v| v.to_le_bytes()).collect(),
    };
    let (x, y) = (array("x", [1.0, 0.0, 0.0, -1.0]), array("y", [0.0; 4]));
    arrays::write(&dir.join("x.npy"), &x).expect("written");
    arrays::write(&data.join("input_0.pb"), &x).expect("written");
    arrays::write(&data.join("output_0.pb"), &y).expect("written");
}

/// Words in back quotes.
fn quoted(text: &str) -> BTreeSet<&str> {
    text.split('`').skip(1).step_by(2).collect()
}

#[test]
fn the_reference_of_the_ir_is_complete() {
    use onnxc::nest::{DotKind, parse, print, verify::verify};
    let text = page("docs/ir.md");
    // The example is text that the compiler reads and writes, and a valid module.
    let example = &blocks(&text, "nest")[0];
    let m = parse::parse(example, &|_| None).expect("the example parses");
    assert_eq!(print::print(&m), *example);
    verify(&m).expect("the example is valid");
    let names = quoted(&text);
    let missing = |what: &str, wanted: &[String]| {
        let left: Vec<_> = wanted.iter().filter(|w| !names.contains(w.as_str())).collect();
        assert!(left.is_empty(), "docs/ir.md does not name {what}: {left:?}");
    };
    let name = |o: &dyn std::fmt::Debug| format!("{o:?}").to_lowercase();
    missing("unary operations", &parse::UNARY.iter().map(|o| name(o)).collect::<Vec<_>>());
    let binary = parse::BINARY.iter().map(|o| print::infix(*o).map_or_else(|| name(o), str::to_owned));
    missing("binary operations", &binary.collect::<Vec<_>>());
    missing("types", &ElemType::ALL.iter().map(|t| t.short().to_owned()).collect::<Vec<_>>());
    let grammar = &blocks(&text, "grammar")[0];
    for w in DotKind::ALL.iter().map(|g| g.name().to_owned()).chain(parse::STATUS.iter().map(|s| name(s))) {
        assert!(grammar.contains(&format!("\"{w}\"")), "the grammar does not have {w}");
    }
    // Every word that begins a line or a place in the parser's source stands in the grammar.
    let source = page("compiler/nest/parse.rs");
    for line in source.lines().map(str::trim).filter(|l| l.starts_with('"') && l.contains("\" => ")) {
        let w = line.split('"').nth(1).expect("a word");
        assert!(grammar.contains(&format!("\"{w}\"")) || w.starts_with("stage="), "the grammar lacks {w}");
    }
}

/// Every name of the part that all headers share stands in the reference.
#[test]
fn the_reference_of_the_interface_is_complete() {
    let dir = scratch("abi");
    fixtures(&dir, false);
    let out = shell("onnxc model.onnx -o model.o", &dir).output().expect("bash");
    assert!(out.status.success());
    let header = std::fs::read_to_string(dir.join("model.h")).expect("the header");
    let (common, _) = header.split_once("#endif /* ONNXC_ABI_1_INCLUDED */").expect("the common part");
    // Comments go, words stay.
    let code: String = common.split("/*").map(|p| p.split_once("*/").map_or(p, |(_, code)| code)).collect();
    let word = |w: &&str| !w.is_empty();
    let mut names: BTreeSet<&str> = code
        .split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
        .filter(word)
        .filter(|w| w.starts_with("ONNXC_") || w.starts_with("onnxc_"))
        .collect();
    for body in code.split("typedef struct").skip(1) {
        let (_, fields) = body.split_once('{').expect("fields");
        let fields = fields.split_once("} ").expect("an end").0;
        for field in fields.split(';') {
            // The name is what stands before an array or a list of arguments, behind the last of the others.
            let declared = field.split_once("(*").map_or(field, |(_, name)| name);
            for name in declared.split(',') {
                let name = name.split(['[', ')', '(']).next().unwrap_or_default();
                names.extend(name.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').rfind(word));
                if field.contains("(*") {
                    break;
                }
            }
        }
    }
    assert!(names.len() > 90, "{names:?}");
    let text = page("docs/abi.md");
    let known: BTreeSet<&str> = quoted(&text)
        .into_iter()
        .flat_map(|q| q.split(|c: char| !c.is_ascii_alphanumeric() && c != '_'))
        .collect();
    let own = ["padding", "endif", "include", "MODEL_ONNXC_H"];
    let left: Vec<_> = names.iter().filter(|n| !known.contains(**n) && !own.contains(n)).collect();
    assert!(left.is_empty(), "docs/abi.md does not name {left:?}");
}
