//! Builds and runs the programs under `examples/` as their users do, and compiles the generated headers under
//! the strictest warnings of every language standard that they promise. A test without its tool says so and
//! passes.

use process::{blocks, page, root, run, tool};
use std::path::{Path, PathBuf};
use std::process::Command;

#[path = "support/process.rs"]
mod process;

const ONNXC: &str = env!("CARGO_BIN_EXE_onnxc");
const STRICT: &[&str] = &["-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Wshadow", "-Werror"];

fn example(name: &str) -> PathBuf {
    root().join("examples").join(name)
}

/// A folder of this test's own. What an earlier run left in it stays, so that builds are incremental.
fn scratch(name: &str) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("examples").join(name);
    std::fs::create_dir_all(&dir).unwrap();
    dir
}

/// Compiles a model to `<dir>/<stem>.o` and `.h`; gives the object's path.
fn compile(model: &Path, dir: &Path, options: &[&str]) -> PathBuf {
    let object = dir.join(model.file_name().unwrap()).with_extension("o");
    run(Command::new(ONNXC).arg(model).arg("-o").arg(&object).args(options));
    object
}

fn include(dir: &Path) -> String {
    format!("-I{}", dir.display())
}

#[test]
fn c_digits() {
    let Some(cc) = tool("CC", "cc") else { return };
    let (src, dir) = (example("c-digits"), scratch("c-digits"));
    let object = compile(&src.join("digits.onnx"), &dir, &[]);
    for std in ["c99", "c11", "c17"] {
        let program = dir.join(format!("digits-{std}"));
        run(Command::new(&cc)
            .arg(format!("-std={std}"))
            .args(STRICT)
            .args(["-O1", &include(&dir)])
            .arg(src.join("main.c"))
            .arg(&object)
            .arg("-o")
            .arg(&program));
        assert!(run(&mut Command::new(&program)).ends_with("10 of 10 right\n"));
    }
}

#[test]
fn c_profile() {
    let Some(cc) = tool("CC", "cc") else { return };
    let (src, dir) = (example("c-profile"), scratch("c-profile"));
    let model = example("c-digits").join("digits.onnx");
    let build = |options: &[&str]| {
        let object = compile(&model, &dir, options);
        let program = dir.join("profile");
        run(Command::new(&cc)
            .arg("-std=c99")
            .args(STRICT)
            .args(["-O1", &include(&dir)])
            .arg(src.join("main.c"))
            .arg(&object)
            .arg("-o")
            .arg(&program));
        run(&mut Command::new(&program))
    };
    let rows = |text: &str| {
        text.lines()
            .skip(1)
            .map(|l| l.split_whitespace().next().unwrap_or_default().to_owned())
            .collect::<Vec<_>>()
    };
    let traced = build(&["--trace"]);
    assert!(
        rows(&traced).iter().any(|op| op == "Conv") && rows(&traced).iter().any(|op| op == "Gemm"),
        "{traced}"
    );
    assert!(traced.contains("%") && !traced.contains("nan"), "{traced}");
    // Every node runs once where nothing fuses.
    let plain = build(&["--trace", "-O0"]);
    assert!(rows(&plain).len() >= rows(&traced).len(), "{plain}");
    assert!(rows(&build(&[])).is_empty(), "an object without --trace calls on_node");
}

/// A language model with its caches in place: C and Rust say the same.
#[test]
fn llm() {
    let (Some(cc), Some(rustc)) = (tool("CC", "cc"), tool("RUSTC", "rustc")) else { return };
    let (src, dir) = (example("llm"), scratch("llm"));
    let model = dir.join("llm.onnx");
    std::fs::copy(src.join("model.onnx"), &model).unwrap();
    assert!(std::fs::metadata(&model).unwrap().len() < 1 << 20);
    let sizes = ["--dim", "past_capacity=256", "--dim", "tokens<=256"];
    let object = compile(
        &model,
        &dir,
        &[&["--emit", "obj,header,rust", "--alias", "present.*=past.*"], &sizes[..]].concat(),
    );
    // What the Makefile and the build script say is what is tested.
    let told = std::fs::read_to_string(src.join("Makefile")).unwrap()
        + &std::fs::read_to_string(src.join("rust/build.rs")).unwrap();
    for text in [
        "--alias 'present.*=past.*'",
        "past_capacity=256",
        "\"past_capacity\", 256",
        "tokens<=256",
        "\"tokens\", 256",
    ] {
        assert!(told.contains(text), "{text}");
    }
    let (talk, twin) = (dir.join("talk"), dir.join("talk-rust"));
    run(Command::new(&cc)
        .arg("-std=c11")
        .args(STRICT)
        .args(["-O1", &include(&dir)])
        .arg(src.join("main.c"))
        .arg(&object)
        .arg("-lm")
        .arg("-o")
        .arg(&talk));
    let mut rust = Command::new(&rustc);
    rust.args(["--edition", "2024", "-D", "warnings", "-C"])
        .arg(format!("link-arg={}", object.display()))
        .arg(src.join("rust/src/main.rs"))
        .arg("-o")
        .arg(&twin);
    run(rust.env("OUT_DIR", &dir));
    // Longer than the caches, which are filled anew.
    let args = ["The object needs no ", "300", "0"];
    let said = |program: &Path| Command::new(program).args(args).output().unwrap();
    let (c, rust) = (said(&talk), said(&twin));
    assert!(
        c.status.success()
            && c.stdout.len() == args[0].len() + 301
            && c.stdout.starts_with(args[0].as_bytes()),
        "{c:?}"
    );
    assert_eq!(c.stdout, rust.stdout);
    // It has learned words: nearly all of what it says are letters and spaces.
    let words = c.stdout.iter().filter(|b| b.is_ascii_lowercase() || **b == b' ').count();
    assert!(words * 10 > c.stdout.len() * 6, "{}", String::from_utf8_lossy(&c.stdout));
}

#[test]
fn readme_c_program() {
    let Some(cc) = tool("CC", "cc") else { return };
    let dir = scratch("readme-c");
    let object = compile(&example("c-digits").join("digits.onnx"), &dir, &[]);
    std::fs::write(dir.join("readme.c"), &blocks(&page("README.md"), "c")[0]).unwrap();
    let program = dir.join("readme");
    run(Command::new(&cc)
        .arg("-std=c99")
        .args(STRICT)
        .arg(include(&dir))
        .arg(dir.join("readme.c"))
        .arg(&object)
        .arg("-o")
        .arg(&program));
    assert!(run(&mut Command::new(&program)).trim().parse::<f64>().is_ok());
}

#[test]
fn c_digits_makefile() {
    let (Some(_), Some(make)) = (tool("CC", "cc"), tool("MAKE", "make")) else { return };
    let build = scratch("c-digits-make").join("build");
    let mut command = Command::new(make);
    command
        .arg("-C")
        .arg(example("c-digits"))
        .arg(format!("ONNXC={ONNXC}"))
        .arg(format!("BUILD={}", build.display()));
    assert!(run(&mut command).contains("10 of 10 right\n"));
    assert!(!run(&mut command).contains("-o "), "the second make has compiled something again");
}

#[test]
fn cpp_batch() {
    let Some(cxx) = tool("CXX", "c++") else { return };
    let (src, dir) = (example("cpp-batch"), scratch("cpp-batch"));
    let object = compile(&src.join("digits_batch.onnx"), &dir, &[]);
    for std in ["c++11", "c++17", "c++20"] {
        let program = dir.join(format!("digits-{std}"));
        run(Command::new(&cxx)
            .arg(format!("-std={std}"))
            .args(STRICT)
            .args(["-O1", "-pthread", &include(&dir)])
            .arg(src.join("main.cpp"))
            .arg(&object)
            .arg("-o")
            .arg(&program));
        assert!(run(&mut Command::new(&program)).ends_with("all right\n"));
    }
}

const HPP_PROGRAM: &str = r#"
#include "batch.hpp"
#include "digits.hpp"
#include "batch.hpp"
#include <cstdio>
#include <vector>

int main() {
  // Sizes known at compile time: an array of another size is a status.
  float image[DIGITS_IMAGE_LEN] = {}, logits[DIGITS_LOGITS_LEN], few[3];
  digits::workspace w;
  const char *misfit = nullptr;
  if (digits::try_infer(image, logits, w) != onnxc::status::ok) return 1;
  if (digits::try_infer(image, few, w, nullptr, &misfit) != onnxc::status::capacity) return 2;
  std::printf("%s\n", misfit);
  // A batch, in vectors.
  const batch::dims two = {2};
  batch::workspace scratch(two), moved(std::move(scratch));
  std::vector<float> images(2 * 64), scores(2 * 10);
  std::vector<std::int64_t> labels(2);
  if (batch::try_infer(two, images, scores, labels, moved) != onnxc::status::ok) return 3;
  if (batch::try_infer(two, std::vector<float>(5), scores, labels, moved) != onnxc::status::dim) return 4;
  if (scratch.data() || moved.size() == 0) return 5;
#if ONNXC_EXCEPTIONS
  batch::infer(two, images, scores, labels, moved);
  try {
    batch::infer(batch::dims{-1}, images, scores, labels, moved);
    return 6;
  } catch (const onnxc::error &e) {
    std::printf("%s\n", e.what());
    if (e.code() != onnxc::status::dim) return 7;
  }
  try {
    batch::infer(two, images, scores, labels, scratch);
    return 8;
  } catch (const onnxc::error &e) {
    if (e.code() != onnxc::status::capacity) return 9;
  }
#endif
  std::printf("all right\n");
}
"#;

#[test]
fn cpp_header() {
    let Some(cxx) = tool("CXX", "c++") else { return };
    let dir = scratch("cpp-header");
    let (one, many) = (dir.join("digits.o"), dir.join("batch.o"));
    run(Command::new(ONNXC)
        .arg(example("c-digits").join("digits.onnx"))
        .arg("-o")
        .arg(&one)
        .args(["--emit", "obj,header,hpp"]));
    run(Command::new(ONNXC)
        .arg(example("cpp-batch").join("digits_batch.onnx"))
        .arg("-o")
        .arg(&many)
        .args(["--emit", "obj,header,hpp"]));
    std::fs::write(dir.join("main.cpp"), HPP_PROGRAM).unwrap();
    for std in ["c++11", "c++14", "c++17", "c++20"] {
        for more in [&[][..], &["-fno-exceptions"]] {
            let program = dir.join(format!("program-{std}-{}", more.len()));
            run(Command::new(&cxx)
                .arg(format!("-std={std}"))
                .args(STRICT)
                .args(more)
                .args(["-O1", &include(&dir)])
                .arg(dir.join("main.cpp"))
                .arg(&one)
                .arg(&many)
                .arg("-o")
                .arg(&program));
            let said = run(&mut Command::new(&program));
            assert!(said.starts_with("logits\n") && said.ends_with("all right\n"), "{said}");
        }
    }
    std::fs::write(dir.join("readme.cpp"), &blocks(&page("README.md"), "cpp")[0]).unwrap();
    run(Command::new(&cxx)
        .args(["-std=c++11", "-fsyntax-only"])
        .args(STRICT)
        .arg(include(&dir))
        .arg(dir.join("readme.cpp")));
    // Every kind of argument: sizes from data, packed elements, strings, sequences, a weights file.
    for (name, options) in [
        ("results_of_ranks", &[][..]),
        ("small_types", &[]),
        ("zip_map", &[]),
        ("complex_moves", &["--weights", "file"]),
    ] {
        run(Command::new(ONNXC)
            .arg(root().join("tests/cases/ops").join(name).with_extension("onnxtxt"))
            .arg("-o")
            .arg(dir.join(name).with_extension("o"))
            .args(["--emit", "header,hpp"])
            .args(options));
        std::fs::write(dir.join("only.cpp"), format!("#include \"{name}.hpp\"\nint main() {{}}\n")).unwrap();
        run(Command::new(&cxx)
            .args(["-std=c++11", "-fsyntax-only"])
            .args(STRICT)
            .arg(include(&dir))
            .arg(dir.join("only.cpp")));
    }
}

#[test]
fn cpp_batch_cmake() {
    let (Some(_), Some(cmake)) = (tool("CXX", "c++"), tool("CMAKE", "cmake")) else { return };
    let build = scratch("cpp-batch-cmake");
    let mut configure = Command::new(&cmake);
    run(configure
        .arg("-S")
        .arg(example("cpp-batch"))
        .arg("-B")
        .arg(&build)
        .arg(format!("-DONNXC_EXECUTABLE={ONNXC}")));
    let compile = || run(Command::new(&cmake).arg("--build").arg(&build).args(["--config", "Release"]));
    compile();
    assert!(!compile().contains("Compiling"), "the second build has compiled the model again");
    let program = [build.join("cpp_batch"), build.join("Release").join("cpp_batch")]
        .into_iter()
        .find(|p| p.with_extension(std::env::consts::EXE_EXTENSION).is_file());
    assert!(run(&mut Command::new(program.expect("no program was built"))).ends_with("all right\n"));
}

/// The package where `cmake --install` puts it, as a project of its own finds it: find_package with a
/// version, and pkg-config.
#[test]
fn cmake_package() {
    let (Some(_), Some(cmake)) = (tool("CC", "cc"), tool("CMAKE", "cmake")) else { return };
    let dir = scratch("cmake-package");
    let prefix = dir.join("prefix");
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(dir.join("project")).unwrap();
    run(Command::new(&cmake)
        .arg("-S")
        .arg(root().join("cmake"))
        .arg("-B")
        .arg(dir.join("package"))
        .arg(format!("-DONNXC_EXECUTABLE={ONNXC}"))
        .arg(format!("-DCMAKE_INSTALL_PREFIX={}", prefix.display())));
    run(Command::new(&cmake).arg("--install").arg(dir.join("package")));
    let project = |version: &str| {
        let text = format!(
            "cmake_minimum_required(VERSION 3.20)\nproject(p C)\nfind_package(onnxc {version} REQUIRED)\nonnxc_add_model(digits MODEL {})\nadd_executable(p main.c)\ntarget_include_directories(p PRIVATE {})\ntarget_link_libraries(p digits)\n",
            example("c-digits").join("digits.onnx").display(),
            example("c-digits").display()
        );
        std::fs::write(dir.join("project/CMakeLists.txt"), text).unwrap();
        std::fs::copy(example("c-digits").join("main.c"), dir.join("project/main.c")).unwrap();
        let build = dir.join(format!("build-{version}"));
        let mut configure = Command::new(&cmake);
        configure
            .arg("-S")
            .arg(dir.join("project"))
            .arg("-B")
            .arg(&build)
            .arg(format!("-DCMAKE_PREFIX_PATH={}", prefix.display()));
        let out = configure.output().unwrap();
        (out.status.success(), String::from_utf8_lossy(&out.stderr).into_owned(), build)
    };
    let (found, said, build) = project(env!("CARGO_PKG_VERSION"));
    assert!(found, "{said}");
    assert!(run(Command::new(&cmake).arg("--build").arg(&build)).contains("Compiling"));
    assert!(run(&mut Command::new(build.join("p"))).ends_with("10 of 10 right\n"));
    let (found, said, _) = project("9.1");
    assert!(!found && said.contains(env!("CARGO_PKG_VERSION")), "{said}");
    let mut pkg_config = Command::new("pkg-config");
    pkg_config.env("PKG_CONFIG_PATH", prefix.join("share/pkgconfig")).args(["--variable=onnxc", "onnxc"]);
    if let Ok(out) = pkg_config.output() {
        let program = String::from_utf8_lossy(&out.stdout).trim().to_owned();
        assert!(
            run(Command::new(&program).arg("--version")).contains(env!("CARGO_PKG_VERSION")),
            "{program}"
        );
    }
}

/// Headers with static, dynamic and bounded dims and with a weights file, in each language standard.
#[test]
fn headers_have_no_warnings() {
    let languages = [
        (tool("CC", "cc"), "c", ["c99", "c11", "c17"]),
        (tool("CXX", "c++"), "c++", ["c++11", "c++17", "c++20"]),
    ];
    let variants: &[(&str, &[&str])] = &[
        ("open", &[]),
        ("fixed", &["--dim", "N=3"]),
        ("bounded", &["--dim", "N<=32"]),
        ("weights", &["--weights", "file"]),
    ];
    for (name, options) in variants {
        let dir = scratch(&format!("headers-{name}"));
        compile(&example("cpp-batch").join("digits_batch.onnx"), &dir, options);
        // The static model has no dim to set.
        compile(
            &example("c-digits").join("digits.onnx"),
            &dir,
            if *name == "weights" { options } else { &[] },
        );
        // Two headers in one file, one of them twice: the common part must not clash.
        let text = "#include \"digits.h\"\n#include \"digits_batch.h\"\n#include \"digits.h\"\nint main(void) { return digits_model.abi_version != digits_batch_model.abi_version; }\n";
        std::fs::write(dir.join("both.c"), text).unwrap();
        for (compiler, language, standards) in &languages {
            let Some(compiler) = compiler else { continue };
            for std in standards {
                let mut command = Command::new(compiler);
                command
                    .args(["-fsyntax-only", "-x", language])
                    .arg(format!("-std={std}"))
                    .args(STRICT)
                    .arg(include(&dir));
                run(command.arg(dir.join("both.c")));
            }
        }
    }
}

/// The package in a copy that depends on this source tree by its absolute path, with this tree's lock file:
/// nothing is downloaded, and nothing is written beside the example.
#[test]
fn rust_iris() {
    let (src, dir) = (example("rust-iris"), scratch("rust-iris"));
    std::fs::create_dir_all(dir.join("src")).unwrap();
    for file in ["build.rs", "iris.onnx", "src/main.rs", "src/samples.rs"] {
        std::fs::copy(src.join(file), dir.join(file)).unwrap();
    }
    let manifest = std::fs::read_to_string(src.join("Cargo.toml")).unwrap();
    let (here, there) = ("path = \"../..\"", format!("path = '{}'", root().display()));
    assert!(manifest.contains(here));
    // Warnings are errors here, also those of the generated module.
    // The program of docs/calling.md takes the model by its metadata, with the runtime crate.
    let runtime = format!(
        "\n[dependencies]\nonnxc-runtime = {{ path = '{}' }}\n",
        root().join("runtime-support").display()
    );
    std::fs::write(
        dir.join("Cargo.toml"),
        manifest.replace(here, &there) + &runtime + "\n[lints.rust]\nwarnings = \"deny\"\n",
    )
    .unwrap();
    std::fs::copy(root().join("Cargo.lock"), dir.join("Cargo.lock")).unwrap();

    // The README's build script is the example's, its programs stand beside that of the example.
    let [build, main] = &blocks(&page("README.md"), "rust")[..] else {
        panic!("the README has two blocks of Rust")
    };
    let [generic] = &blocks(&page("docs/calling.md"), "rust")[..] else {
        panic!("docs/calling.md has one block of Rust")
    };
    let script = std::fs::read_to_string(src.join("build.rs")).unwrap();
    assert!(build.lines().all(|l| script.contains(l.trim())), "{build}");
    std::fs::create_dir_all(dir.join("src/bin")).unwrap();
    std::fs::write(dir.join("src/bin/readme.rs"), main).unwrap();
    std::fs::write(dir.join("src/bin/generic.rs"), generic).unwrap();
    assert!(cargo_run(&dir, "rust-iris").ends_with("15 of 15 right\n"));
    assert!(cargo_run(&dir, "readme").starts_with("[0.9"));
    let said = cargo_run(&dir, "generic");
    assert!(said.contains(": Some([0.9") || said.contains(": Ok([0.9"), "{said}");
}

fn cargo_run(dir: &Path, bin: &str) -> String {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(dir).args(["run", "--quiet", "--offline", "--bin", bin]);
    // The compiler is built once more here: without debug information it takes a quarter of the disk.
    command.env("CARGO_INCREMENTAL", "0").env("CARGO_PROFILE_DEV_DEBUG", "0");
    // What cargo tells this test must not reach the package's build.
    for (key, _) in std::env::vars_os() {
        let told = key.to_str().is_some_and(|k| {
            k.starts_with("CARGO_PKG_")
                || k.starts_with("CARGO_BIN_")
                || ["CARGO_MANIFEST_DIR", "CARGO_MANIFEST_PATH", "OUT_DIR"].contains(&k)
        });
        if told {
            command.env_remove(key);
        }
    }
    command.env("CARGO_TARGET_DIR", dir.join("target"));
    run(&mut command)
}
