//! What makes the program one that people keep: shared libraries, compilations that are found again, reports,
//! and flags that help and documentation agree on.

use clap::CommandFactory;
use onnxc::cli::Cli;
use process::{found, onnxc, root, run_both as run, scratch, starts};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

#[path = "support/process.rs"]
mod process;

fn model(dir: &Path, name: &str, text: &str) -> PathBuf {
    let p = dir.join(name);
    std::fs::write(&p, format!("<ir_version: 8, opset_import: [\"\" : 17]>\n{text}")).expect("model");
    p
}

const TINY: &str = "tiny (float[N, 4] x) => (float[N, 3] y) <float[4, 3] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}> { h = MatMul (x, w) y = Relu (h) }";

/// Loads a library, calls the model and prints the status, the result and who wrote the code.
const LOADER: &str = r#"
#include <dlfcn.h>
#include <stdio.h>
#include "t.h"
int main(int argc, char **argv) {
  static ONNXC_ALIGNAS(64) unsigned char workspace[1 << 16];
  const float x[8] = {1, 0, -1, 0.5f, 1, 1, 1, 1};
  float y[6];
  void *library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  if (argc != 2 || !library) { puts(dlerror()); return 1; }
  const onnxc_model *model = (const onnxc_model *)dlsym(library, "t_model");
  int64_t n = 2;
  const void *in[1] = {x};
  void *out[1] = {y};
  int64_t dims[2] = {2, 3};
  int64_t *out_dims[1] = {dims};
  int32_t status = model->call(in, out, &n, out_dims, NULL, workspace, NULL);
  printf("%s %d", model->name, status);
  for (int i = 0; i < 6; i++) printf(" %g", y[i]);
  return dlclose(library);
}
"#;

#[test]
fn shared_libraries_load_without_a_linker() {
    let d = scratch("keep", "shared");
    // Also functions of libm and of libc, which a library imports.
    let m = model(
        &d,
        "t.onnx",
        "t (float[N, 4] x) => (float[N, 3] y) <float[4, 3] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, double two = {2}, \
         float one = {1}, double one64 = {1}> { a = MatMul (x, w) c = Cast <to = 11> (a) p = Pow (c, two) s = Cast <to = 1> (p) \
         e = Acosh (one64) f = Cast <to = 1> (e) g = Add (s, f) y = Mul (g, one) }",
    );
    std::fs::write(d.join("main.c"), LOADER).expect("program");
    for (target, cc, qemu) in [
        ("x86_64-unknown-linux-gnu", "x86_64-linux-gnu-gcc", None),
        ("aarch64-unknown-linux-gnu", "aarch64-linux-gnu-gcc", Some("qemu-aarch64")),
        ("riscv64gc-unknown-linux-gnu", "riscv64-linux-gnu-gcc", Some("qemu-riscv64")),
    ] {
        let (library, program) = (d.join("t.so"), d.join("main"));
        run(onnxc(root()).arg(&m).arg("-o").arg(&library).args([
            "--emit",
            "shared,header",
            "--target",
            target,
        ]));
        if !cfg!(all(target_os = "linux", target_arch = "x86_64"))
            || !starts(cc)
            || qemu.is_some_and(|q| !starts(q))
        {
            continue;
        }
        run(Command::new(cc)
            .args(["-std=c11", "-I"])
            .arg(&d)
            .arg(d.join("main.c"))
            .arg("-o")
            .arg(&program)
            .arg("-ldl"));
        let mut c = match qemu {
            Some(q) => {
                let mut c = Command::new(q);
                c.arg("-L").arg(format!("/usr/{}", cc.trim_end_matches("-gcc"))).arg(&program);
                c
            }
            None => Command::new(&program),
        };
        assert_eq!(run(c.arg(&library)), "t 0 1 0.25 0 484 676 900", "{target}");
    }
}

#[test]
fn shared_libraries_are_those_that_tools_expect() {
    use object::{Object, ObjectSymbol};
    let d = scratch("keep", "shared-tools");
    let m = model(&d, "t.onnx", TINY);
    for target in [
        "x86_64-unknown-linux-gnu",
        "aarch64-linux-android",
        "riscv64gc-unknown-linux-musl",
        "x86_64-unknown-freebsd",
    ] {
        run(onnxc(root())
            .arg(&m)
            .arg("-o")
            .arg(d.join("t.so"))
            .args(["--emit", "shared", "--target", target]));
        let bytes = std::fs::read(d.join("t.so")).expect("library");
        let file = object::File::parse(&*bytes).expect("ELF");
        assert_eq!(file.kind(), object::ObjectKind::Dynamic);
        let mut names: Vec<_> =
            file.dynamic_symbols().filter(|s| s.is_definition()).filter_map(|s| s.name().ok()).collect();
        names.sort_unstable();
        assert_eq!(names, ["t_infer", "t_infer_exec", "t_model", "t_workspace_size"], "{target}");
        // Profilers find kernels by their names.
        assert!(file.symbols().any(|s| s.name().is_ok_and(|n| n.ends_with(".h"))), "{target}");
        if target.starts_with("x86_64") && starts("readelf") {
            let text = run(Command::new("readelf").args(["-aW"]).arg(d.join("t.so")));
            assert!(!text.contains("Warning") && !text.contains("Error"), "{text}");
            assert!(!text.contains("RWE"), "{text}");
        }
    }
    let refused = |args: &[&str]| {
        let o = onnxc(root())
            .arg(&m)
            .arg("-o")
            .arg(d.join("t.so"))
            .args(["--emit", "shared"])
            .args(args)
            .output()
            .expect("runs");
        assert!(!o.status.success());
        String::from_utf8_lossy(&o.stderr).into_owned()
    };
    assert!(refused(&["--target", "aarch64-apple-darwin"]).contains("cc -shared"));
    assert!(refused(&["--hidden"]).contains("leave out --hidden"));
}

/// What `--time-passes` tells: whether anything was compiled.
fn compiled(c: &mut Command) -> bool {
    run(c.arg("--time-passes")).contains("lower")
}

#[test]
fn compilations_are_found_again() {
    let d = scratch("keep", "cache");
    let text = "tiny (float[N, 4] x) => (float[N, 3] y) <float[4, 3] w = [\"location\": \"w.bin\"]> { y = MatMul (x, w) }";
    let m = model(&d, "model.onnx", text);
    let weights = |scale: f32| {
        let data: Vec<u8> = (0..12).flat_map(|i| (i as f32 * scale).to_le_bytes()).collect();
        std::fs::write(d.join("w.bin"), data).expect("weights");
    };
    weights(1.0);
    let cache = d.join("cache");
    let command = |out: &str, more: &[&str]| {
        let mut c = onnxc(root());
        c.arg(&m)
            .arg("-o")
            .arg(d.join(out))
            .arg("--cache")
            .arg(&cache)
            .arg("-MD")
            .arg(d.join("m.d"))
            .args(more);
        c
    };
    assert!(compiled(&mut command("m.o", &[])), "the first time");
    let (object, depfile) = (
        std::fs::read(d.join("m.o")).expect("object"),
        std::fs::read_to_string(d.join("m.d")).expect("rule"),
    );
    for f in ["m.o", "m.h", "m.d"] {
        std::fs::remove_file(d.join(f)).expect("removed");
    }
    assert!(!compiled(&mut command("m.o", &[])), "the second time");
    assert_eq!(std::fs::read(d.join("m.o")).expect("object"), object);
    assert!(d.join("m.h").exists());
    let again = std::fs::read_to_string(d.join("m.d")).expect("rule");
    assert!(again.contains("w.bin") && again == depfile, "{again}");
    // Other options, another name, other kinds.
    assert!(compiled(&mut command("m.o", &["--math", "strict"])));
    assert!(compiled(&mut command("other.o", &[])));
    assert!(compiled(&mut command("m.o", &["--emit", "obj,hpp"])));
    // Other external data, and the first ones again.
    weights(2.0);
    assert!(compiled(&mut command("m.o", &[])));
    assert_ne!(std::fs::read(d.join("m.o")).expect("object"), object);
    assert!(!compiled(&mut command("m.o", &[])));
    // Another model under the same name.
    model(&d, "model.onnx", &text.replace("y = MatMul (x, w)", "h = MatMul (x, w) y = Relu (h)"));
    assert!(compiled(&mut command("m.o", &[])));
    assert!(!compiled(&mut command("m.o", &[])));
    // Broken entries are none.
    for e in std::fs::read_dir(&cache).expect("cache").flatten() {
        std::fs::write(e.path().join("record.json"), "{").expect("broken");
    }
    assert!(compiled(&mut command("m.o", &[])));
    // A small cache keeps what was used last.
    assert!(compiled(command("m.o", &["--math", "fast"]).env("ONNXC_CACHE_SIZE", "1")));
    assert_eq!(std::fs::read_dir(&cache).expect("cache").count(), 0);
}

#[test]
fn warnings_of_cached_compilations_are_told_again() {
    let d = scratch("keep", "cache-warnings");
    let m = model(
        &d,
        "model.onnx",
        "w (float[2] \"a/b\", float[2] \"a.b\") => (float[2] y) { y = Add (\"a/b\", \"a.b\") }",
    );
    let text = || run(onnxc(root()).env("ONNXC_CACHE", d.join("cache")).arg(&m).arg("-o").arg(d.join("m.o")));
    let first = text();
    assert!(first.contains("warning"), "{first}");
    assert_eq!(text(), first);
}

#[test]
fn build_scripts_do_nothing_twice() {
    let d = scratch("keep", "stamp");
    let m = model(&d, "tiny.onnx", TINY);
    let build = || onnxc::build::Model::new(&m).out_dir(&d);
    let times = |o: &onnxc::build::Output| {
        [&o.object, &o.header, &o.rust, &o.library]
            .map(|f| std::fs::metadata(f).and_then(|m| m.modified()).expect("a file"))
    };
    let first = build().compile().expect("compiles");
    let written = times(&first);
    let start = std::time::Instant::now();
    let again = build().compile().expect("compiles");
    let took = start.elapsed();
    assert_eq!((times(&again), &again.name), (written, &first.name));
    assert!(took.as_millis() < 50, "{took:?}");
    // A file is missing; another option; another model.
    std::fs::remove_file(&first.header).expect("removed");
    assert_ne!(times(&build().compile().expect("compiles")), written);
    let written = times(&build().compile().expect("compiles"));
    assert_ne!(times(&build().dim("N", 2).compile().expect("compiles")), written);
    build().compile().expect("compiles");
    let text = std::fs::read_to_string(&first.rust).expect("module");
    model(
        &d,
        "tiny.onnx",
        &TINY.replace("Relu", "Sigmoid").replace(" y)", " other)").replace(" y =", " other ="),
    );
    assert_ne!(std::fs::read_to_string(&build().compile().expect("compiles").rust).expect("module"), text);
    // A folder of a cache serves other folders.
    let other = scratch("keep", "stamp-other");
    let shared = |dir: &Path| {
        onnxc::build::Model::new(&m).out_dir(dir).cache(d.join("cache")).compile().expect("compiles")
    };
    model(&d, "tiny.onnx", TINY);
    let one = shared(&d.join("..").join(d.file_name().expect("a name")));
    let two = shared(&other);
    assert_eq!(std::fs::read(&one.object).expect("object"), std::fs::read(&two.object).expect("object"));
    assert_eq!(std::fs::read_dir(d.join("cache")).expect("cache").count(), 1);
}

/// Elements and their ends match.
fn well_formed(page: &str) {
    const EMPTY: &[&str] = &["meta", "br", "!DOCTYPE"];
    let body = page.replace(
        page.split_once("<style>").and_then(|(_, s)| s.split_once("</style>")).expect("a style").0,
        "",
    );
    let mut open: Vec<&str> = vec![];
    for part in body.split('<').skip(1) {
        let (tag, _) = part.split_once('>').unwrap_or_else(|| panic!("a tag without an end: {part}"));
        let name = tag.split([' ', '\n', '/']).find(|n| !n.is_empty()).unwrap_or("");
        match tag.starts_with('/') {
            true => assert_eq!(open.pop(), Some(name), "{tag}"),
            false if tag.ends_with('/') || EMPTY.contains(&name) => {}
            false => open.push(name),
        }
    }
    assert!(open.is_empty(), "{open:?}");
}

#[test]
fn reports_are_pages_of_their_own() {
    let d = scratch("keep", "report");
    let m = root().join("examples/c-digits/digits.onnx");
    let page = d.join("report.html");
    run(onnxc(root()).arg("report").arg(&m).arg("-o").arg(&page).args(["--seconds", "0.05"]));
    let text = std::fs::read_to_string(&page).expect("a page");
    well_formed(&text);
    for part in [
        "id=\"graph\"",
        "id=\"memory\"",
        "id=\"roofline\"",
        "class=\"kernel\"",
        "class=\"buffer\"",
        "class=\"roof far\"",
        "conv1.w",
        "GFLOP/s",
    ] {
        assert!(text.contains(part), "{part}");
    }
    // Nothing is loaded and nothing runs.
    for part in ["<script", "http://", "https://", "src=", "url(http", "@import", "<link", "onclick"] {
        assert!(!text.contains(part), "{part}");
    }
    // Every node stands in one group, and fused ones stand together.
    for node in ["normalize", "conv1", "relu1", "pool1", "conv2", "relu2", "pool2", "flatten", "fc"] {
        assert_eq!(text.matches(&format!("</tspan> {node}</text>")).count(), 1, "{node}");
    }
    let graph = text.split_once("id=\"graph\"").expect("graph").1;
    let group = |node: &str| {
        graph[..graph.find(&format!("</tspan> {node}</text>")).expect("a node")]
            .matches("<g class=\"group")
            .count()
    };
    assert_eq!(group("conv1"), group("relu1"));
    assert_ne!(group("conv1"), group("conv2"));
    screenshot(&page, &d);
}

#[test]
fn reports_need_no_run_and_trust_no_name() {
    let d = scratch("keep", "report-names");
    let m = model(
        &d,
        "a&b<c>.onnx",
        "g (float[N, 4] \"<script>alert(1)</script>\", int64 k) => (float[N, 4] \"</svg>&\") { \
         [\"<img src=x onerror=y>\"] h = Softmax (\"<script>alert(1)</script>\") \
         [\"a\\\"b'c\"] \"</svg>&\" = Mul (h, h) }",
    );
    let text = run(onnxc(root()).arg("report").arg(&m).args(["--no-run", "--size", "N=3", "-o", "-"]));
    well_formed(&text);
    assert!(!text.contains("<script") && !text.contains("<img") && text.contains("&lt;script&gt;"));
    assert!(text.contains("(--no-run)") && text.contains("<code>N</code> = 3"));
    // Control flow: bodies run in kernels of the node that has them.
    let m = model(
        &d,
        "loop.onnx",
        "l (int64 n, float[4] x) => (float[4] y) <bool yes = {1}> { y = Loop (n, yes, x) <body = b (int64 i, bool c, float[4] v) => (bool d, float[4] w) { d = Identity (c) w = Softmax (v) }> }",
    );
    well_formed(&run(onnxc(root()).arg("report").arg(&m).args(["-o", "-", "--seconds", "0.01"])));
    // What is no file name is an error, and the model stays.
    let o = onnxc(root()).arg("report").arg(&m).arg("-o").arg(&m).output().expect("runs");
    assert!(o.status.code() == Some(2) && m.metadata().expect("the model").len() < 1000);
}

/// Where there is a browser: the page shows marks in several colours, in what a window of usual size shows of
/// it.
fn screenshot(page: &Path, d: &Path) {
    let Some(browser) = ["chromium", "chromium-browser", "google-chrome"].into_iter().find(|b| found(b))
    else {
        println!("skipped in part: there is no chromium here");
        return;
    };
    let picture = d.join("page.png");
    let url = format!("file://{}", page.canonicalize().expect("a path").display());
    let flags =
        ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--window-size=1100,3000"];
    run(Command::new(browser).args(flags).arg(format!("--screenshot={}", picture.display())).arg(url));
    let png = std::fs::read(&picture).expect("a picture");
    let (height, width, pixels) =
        onnxc_runtime::image::decode(&png, onnxc_runtime::image::PixelFormat::Rgb).expect("a picture");
    assert!(height >= 1000 && width >= 1000, "{width} x {height}");
    let colours: BTreeSet<[u8; 3]> =
        pixels.chunks_exact(3).map(|p| [p[0] & 0xf0, p[1] & 0xf0, p[2] & 0xf0]).collect();
    assert!(colours.len() > 20, "{} colours", colours.len());
    // Marks down to the end of what was asked for: no section is empty or far too large.
    let row = |y: usize| &pixels[y * width as usize * 3..(y + 1) * width as usize * 3];
    let marked = (0..height as usize).filter(|y| row(*y).chunks_exact(3).any(|p| p != &row(0)[..3])).count();
    assert!(marked * 3 > height as usize, "{marked} rows of {height}");
}

/// All flags of a command and of its commands: `--cpu`, `-O`.
fn flags(c: &clap::Command, into: &mut BTreeSet<String>) {
    for a in c.get_arguments() {
        into.extend(a.get_long().map(|l| format!("--{l}")));
        into.extend(a.get_short().map(|s| format!("-{s}")));
    }
    c.get_subcommands().for_each(|s| flags(s, into));
}

/// Every flag that a page or a header speaks of exists. tests/house.rs checks that each one is used by a
/// test.
#[test]
fn pages_and_headers_name_flags_that_exist() {
    let mut known =
        BTreeSet::from(["--help".to_owned(), "--version".into(), "-h".into(), "-V".into(), "-MD".into()]);
    flags(&Cli::command(), &mut known);
    let mut pages = vec![root().join("README.md"), root().join("python/README.md")];
    let docs = std::fs::read_dir(root().join("docs")).expect("docs").flatten().map(|e| e.path());
    pages.extend(docs.filter(|p| p.extension().is_some_and(|x| x == "md")));
    // Flags of other programs in examples on the pages.
    let others: BTreeSet<&str> = OTHERS.iter().copied().collect();
    let mut unknown = vec![];
    for p in pages.iter().filter(|p| !p.ends_with("SPEC.md")) {
        let text = std::fs::read_to_string(p).expect("a page");
        for word in text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-' || c == '_')) {
            let is_flag =
                word.strip_prefix("--").is_some_and(|w| w.starts_with(|c: char| c.is_ascii_lowercase()));
            if is_flag && !known.contains(word) && !others.contains(word) {
                unknown.push(format!("{}: {word}", p.strip_prefix(root()).unwrap_or(p).display()));
            }
        }
    }
    assert!(unknown.is_empty(), "flags that nothing has:\n{}", unknown.join("\n"));
    // Headers speak of flags, too.
    let d = scratch("keep", "flags");
    let m = model(&d, "t.onnx", TINY);
    run(onnxc(root()).arg(&m).arg("-o").arg(d.join("t.o")).args([
        "--emit",
        "header,hpp,rust",
        "--trace",
        "--heap",
        "1M",
    ]));
    for f in ["t.h", "t.hpp", "t.rs"] {
        let text = std::fs::read_to_string(d.join(f)).expect("a header");
        for word in text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-')) {
            let is_flag = word
                .strip_prefix("--")
                .is_some_and(|w| w.len() > 2 && w.starts_with(|c: char| c.is_ascii_lowercase()));
            assert!(!is_flag || known.contains(word), "{f}: {word}");
        }
    }
}

/// Flags of cargo, cmake, make and others.
const OTHERS: &[&str] = &[
    "--call-graph",
    "--release",
    "--workspace",
    "--path",
    "--build",
    "--install",
    "--crate-type",
    "--quiet",
    "--no-default-features",
];

/// A model in a crate of its own (docs/build-systems.md): the program may forbid unsafe code.
#[test]
fn programs_may_forbid_unsafe_code() {
    let d = scratch("keep", "forbid");
    let m = model(&d, "tiny.onnx", TINY);
    run(onnxc(root()).arg(&m).arg("-o").arg(d.join("tiny.o")).args(["--emit", "obj,rust", "--dim", "N=1"]));
    std::fs::write(d.join("model.rs"), "include!(\"tiny.rs\");\n").expect("crate");
    std::fs::write(
        d.join("main.rs"),
        "#![forbid(unsafe_code)]\nfn main() {\n    let mut y = [0.0; 3];\n    \
         model::infer(&[1.0, 0.0, 0.0, 0.0], &mut y, &mut model::Workspace::new()).expect(\"it runs\");\n    println!(\"{y:?}\");\n}\n",
    )
    .expect("program");
    if !starts("rustc") {
        return;
    }
    let rustc =
        |args: &[&str]| run(Command::new("rustc").current_dir(&d).args(["--edition", "2024"]).args(args));
    rustc(&["--crate-type", "rlib", "--crate-name", "model", "model.rs"]);
    rustc(&["main.rs", "--extern", "model=libmodel.rlib", "-C", "link-arg=tiny.o", "-o", "program"]);
    assert_eq!(run(&mut Command::new(d.join("program"))).trim(), "[1.0, 2.0, 3.0]");
}

/// What a package holds: the sources, and nothing that only tests need.
#[test]
fn packages_are_small_and_whole() {
    let list = |package: &str| {
        let mut c = Command::new(env!("CARGO"));
        run(c.current_dir(root()).args(["package", "--list", "--allow-dirty", "--offline", "-p", package]))
    };
    let onnxc = list("onnxc");
    for f in [
        "build.rs",
        "compiler/lib.rs",
        "compiler/onnx/generated/onnx.rs",
        "compiler/ops/schema.txt",
        "compiler/report/style.css",
        "LICENSE-MIT",
    ] {
        assert!(onnxc.lines().any(|l| l == f), "{f}");
    }
    let foreign: Vec<&str> = onnxc
        .lines()
        .filter(|l| ["tests/", "examples/", "python/", ".ci/"].iter().any(|d| l.starts_with(d)))
        .collect();
    assert!(foreign.is_empty(), "{foreign:?}");
    assert!(list("onnxc-runtime").lines().any(|l| l == "include/onnxc_runtime.h"));
}

/// Archives hold the program, its pages and what build systems need, and are equal when their contents are.
#[test]
fn release_archives() {
    if !cfg!(target_os = "linux") || !starts("tar") || !starts("gzip") {
        return;
    }
    let d = scratch("keep", "release");
    let archive = |to: &str| {
        let mut c = Command::new(root().join(".ci/release"));
        run(c
            .arg("x86_64-unknown-linux-gnu")
            .env("ONNXC_PROGRAM", env!("CARGO_BIN_EXE_onnxc"))
            .env("OUT", d.join(to)));
        let entries = std::fs::read_dir(d.join(to)).expect("archives").flatten().map(|e| e.path());
        entries.filter(|p| p.extension().is_some_and(|x| x == "gz")).collect::<Vec<_>>()
    };
    let [one, two] = ["a", "b"].map(archive);
    assert_eq!(one.len(), 1);
    let names = run(Command::new("tar").arg("tzf").arg(&one[0]));
    for f in [
        "/bin/onnxc",
        "/LICENSE-MIT",
        "/share/man/man1/onnxc.1",
        "/share/completions/onnxc.bash",
        "/share/cmake/OnnxcModel.cmake",
        "/include/onnxc_runtime.h",
        "/share/doc/python.md",
    ] {
        assert!(names.lines().any(|l| l.ends_with(f)), "{f} in\n{names}");
    }
    assert_eq!(std::fs::read(&one[0]).expect("archive"), std::fs::read(&two[0]).expect("archive"));
}

/// docs/wishes.md names a test for each wish, and the tests are there.
#[test]
fn every_wish_has_a_test() {
    let text = std::fs::read_to_string(root().join("docs/wishes.md")).expect("docs/wishes.md");
    let mut seen = vec![];
    for line in
        text.lines().filter(|l| l.starts_with("| ") && l[2..].starts_with(|c: char| c.is_ascii_digit()))
    {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [number, _, _, tests] = cells[..] else { panic!("four columns: {line}") };
        seen.push(number.parse::<u32>().expect("a number"));
        let names: Vec<&str> = tests.split('`').skip(1).step_by(2).collect();
        assert!(!names.is_empty(), "a test: {line}");
        for name in names {
            let (file, function) = name.split_once("::").unwrap_or((name, ""));
            let source = std::fs::read_to_string(root().join(file)).unwrap_or_else(|e| panic!("{file}: {e}"));
            let there = function.is_empty()
                || [format!("fn {function}("), format!("def {function}(")]
                    .iter()
                    .any(|f| source.contains(f.as_str()));
            assert!(there, "{name}");
        }
    }
    assert_eq!(seen, (1..=25).collect::<Vec<_>>());
}
