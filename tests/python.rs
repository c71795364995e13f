//! Harnesses in Python: the ONNX backend suite through the C ABI, and real networks against saved outputs.
//! The packages go into a virtual environment under the target folder.

use process::{blocks, page, root};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use venv::{python, tools};

#[path = "support/process.rs"]
mod process;
#[path = "support/venv.rs"]
mod venv;

fn script(name: &str, args: &[&std::ffi::OsStr]) {
    let status =
        Command::new(python()).arg(root().join("tests").join(name)).args(args).status().expect("python runs");
    assert!(status.success(), "tests/{name} failed");
}

fn exe() -> &'static std::ffi::OsStr {
    env!("CARGO_BIN_EXE_onnxc").as_ref()
}

/// The static library that objects of models with ImageDecoder need.
fn runtime() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let target = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("runtime");
        let args = [
            "rustc",
            "--quiet",
            "-p",
            "onnxc-runtime",
            "--features",
            "image",
            "--crate-type",
            "staticlib",
            "--target-dir",
        ];
        let status = Command::new(env!("CARGO"))
            .current_dir(root())
            .args(args)
            .arg(&target)
            .status()
            .expect("cargo runs");
        assert!(status.success(), "the runtime library does not build");
        target.join("debug").join("libonnxc_runtime.a")
    })
}

#[test]
fn onnx_backend_suite() {
    let work = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("backend");
    script(
        "onnx_backend/run.py",
        &[exe(), "--runtime".as_ref(), runtime().as_os_str(), "--work".as_ref(), work.as_os_str()],
    );
}

/// The same without the sizes that the cases declare for their outputs.
#[test]
fn onnx_backend_suite_without_declared_sizes() {
    let work = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("backend_erased");
    script(
        "onnx_backend/run.py",
        &[
            exe(),
            "--runtime".as_ref(),
            runtime().as_os_str(),
            "--erase".as_ref(),
            "--work".as_ref(),
            work.as_os_str(),
        ],
    );
}

/// Operators on strings against ONNX Runtime, the ONNX reference and Python.
#[test]
fn strings() {
    let work = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("strings_py");
    script("strings.py", &[exe(), work.as_os_str()]);
}

/// Caches of decoders in the caller's memory (`--alias`) against ONNX Runtime, step by step.
#[test]
fn state_in_place() {
    let work = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("state");
    script("state.py", &[exe(), work.as_os_str()]);
}

/// Sizes of objects, and what those that are small compute.
#[test]
fn sizes() {
    let work = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("sizes");
    script("sizes.py", &[exe(), work.as_os_str()]);
}

const AARCH64: &str = "aarch64-unknown-linux-gnu";
/// A CPU of each level, in names of QEMU.
const LEVELS_OF_AARCH64: &str = "cortex-a72,neoverse-n1,max";

/// A sample on aarch64, where a cross compiler and qemu are installed.
#[test]
fn onnx_backend_suite_on_aarch64() {
    let work = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("backend_aarch64");
    script(
        "onnx_backend/run.py",
        &[
            exe(),
            "--target".as_ref(),
            AARCH64.as_ref(),
            "--emulate".as_ref(),
            LEVELS_OF_AARCH64.as_ref(),
            "--work".as_ref(),
            work.as_os_str(),
        ],
    );
}

/// Quantized models on CPUs of each level of aarch64.
#[test]
fn quantized_models_on_aarch64() {
    script(
        "quantized.py",
        &[exe(), "--target".as_ref(), AARCH64.as_ref(), "--emulate".as_ref(), LEVELS_OF_AARCH64.as_ref()],
    );
}

/// Products of floats as products of bf16, there and here.
#[test]
fn floats_as_bf16() {
    let fast = ["--only", "floats", "--math", "fast"].map(std::ffi::OsStr::new);
    let abroad = ["--target", AARCH64, "--emulate", LEVELS_OF_AARCH64].map(std::ffi::OsStr::new);
    script("quantized.py", &[&[exe()], &fast[..]].concat());
    script("quantized.py", &[&[exe()], &fast[..], &abroad[..]].concat());
}

/// What innermost loops cost on ARM cores, by LLVM's models of them, where it is installed.
#[test]
fn static_costs() {
    script("bench/static.py", &[exe()]);
}

/// Every operator at every version, for every element type.
#[test]
fn operator_versions() {
    let work = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("versions");
    script(
        "versions/run.py",
        &[exe(), "--runtime".as_ref(), runtime().as_os_str(), "--work".as_ref(), work.as_os_str()],
    );
}

/// Statuses, weights files, output sizes, tasks.
#[test]
fn interface() {
    let work = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("interface");
    script("interface.py", &[exe(), work.as_os_str()]);
}

/// Quantized operators and models, and conversions of small types.
#[test]
fn quantized() {
    script("quantized.py", &[exe()]);
}

/// The compiler's time and memory against the size of the model, and bombs.
#[test]
fn growth() {
    script("growth.py", &[exe()]);
}

/// Operators of language models in the forms that exporters write.
#[test]
fn decoders() {
    script("decoders.py", &[exe()]);
}

/// Operators of com.microsoft that become others.
#[test]
fn contrib() {
    script("contrib.py", &[exe()]);
}

/// Values and sizes at the edges.
#[test]
fn edges() {
    script("edges.py", &[exe()]);
}

/// Branches, loops and run-time sizes against ONNX Runtime.
#[test]
fn control_flow() {
    let work = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("control_flow");
    script("control_flow.py", &[exe(), work.as_os_str()]);
}

/// Gradient against finite differences.
#[test]
fn gradient() {
    let work = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("gradient");
    script("gradient.py", &[exe(), work.as_os_str()]);
}

/// Random programs of sequence operators against ONNX Runtime.
#[test]
fn sequences() {
    let work = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("sequences");
    script("sequences.py", &[exe(), work.as_os_str(), "1".as_ref(), "100".as_ref()]);
}

fn guard_pages(name: &str, more: &[&str]) {
    let work = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let args: Vec<&std::ffi::OsStr> = [exe(), "--work".as_ref(), work.as_os_str()]
        .into_iter()
        .chain(more.iter().map(std::ffi::OsStr::new))
        .collect();
    script("guard/guard.py", &args);
}

/// A sample of models with every buffer against an inaccessible page, with sizes as they are and as symbols.
#[test]
fn every_access_stays_inside() {
    guard_pages("guard", &[]);
}

/// The same on other CPUs, where a cross compiler and qemu are installed.
#[test]
fn every_access_stays_inside_on_aarch64() {
    guard_pages(
        "guard_aarch64",
        &["--target", "aarch64-unknown-linux-gnu", "--share", "25", "--calls", "12"],
    );
}

#[test]
fn every_access_stays_inside_on_riscv64() {
    guard_pages(
        "guard_riscv64",
        &["--target", "riscv64gc-unknown-linux-gnu", "--share", "25", "--calls", "12"],
    );
}

#[test]
fn random_graphs() {
    script("fuzz.py", &[exe(), "1".as_ref(), "150".as_ref()]);
}

/// A command with the folder of these tools in front of PATH.
fn tool(bin: &Path, name: &str) -> Command {
    let mut c = Command::new(bin.join(name));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths(std::iter::once(bin.to_owned()).chain(std::env::split_paths(&path)));
    c.env("PATH", path.expect("a path"));
    c
}

fn succeeds(c: &mut Command) {
    assert!(c.status().unwrap_or_else(|e| panic!("{c:?}: {e}")).success(), "{c:?}");
}

/// The wheel of `python/`, built and tried in an environment of its own. It has the program that this build
/// made.
#[test]
fn python_package() {
    let Some(bin) = tools() else { return };
    let mut install = tool(bin, "python");
    install.args([
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-build-isolation",
        "--no-deps",
        "--force-reinstall",
    ]);
    succeeds(install.arg(root().join("python")).env("ONNXC_PROGRAM", exe()));
    let mut tests = tool(bin, "python");
    tests.args(["-m", "pytest", "-q", "-p", "no:cacheprovider"]).arg(root().join("python/tests"));
    succeeds(tests.current_dir(env!("CARGO_TARGET_TMPDIR")).env_remove("ONNXC"));
}

/// The project of the documentation builds and runs.
#[test]
fn meson_project() {
    let Some(bin) = tools() else { return };
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("meson");
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).expect("a folder");
    for f in ["digits.onnx", "main.c", "samples.h"] {
        std::fs::copy(root().join("examples/c-digits").join(f), dir.join(f)).expect("a file of the example");
    }
    std::fs::write(dir.join("meson.build"), &blocks(&page("docs/build-systems.md"), "meson")[0])
        .expect("written");
    // The program that this build made, found as users find theirs.
    let native = dir.join("native.ini");
    std::fs::write(&native, format!("[binaries]\nonnxc = '{}'\n", exe().to_string_lossy())).expect("written");
    let build = dir.join("build");
    succeeds(tool(bin, "meson").args(["setup", "--native-file"]).arg(&native).arg(&build).arg(&dir));
    succeeds(tool(bin, "meson").args(["compile", "-C"]).arg(&build));
    succeeds(&mut Command::new(build.join("program")));
}

/// The rules of the documentation are Starlark, which Python reads, and name the files that their command
/// writes.
#[test]
fn bazel_rules() {
    let check = "import ast, sys\n\
        rules = {c.value.func.id: {k.arg: ast.literal_eval(k.value) for k in c.value.keywords} for c in ast.parse(sys.argv[1]).body}\n\
        model, library = rules['genrule'], rules['cc_library']\n\
        assert library['srcs'] + library['hdrs'] == model['outs'], rules\n\
        assert all(f'$(location {f})' in model['cmd'] for f in (model['srcs'][0], model['outs'][0])), rules\n\
        assert all(f'$(execpath {t})' in model['cmd'] for t in model['tools']), rules\n";
    succeeds(
        Command::new("python3")
            .args(["-c", check])
            .arg(&blocks(&page("docs/build-systems.md"), "starlark")[0]),
    );
}

/// Real networks; their weights are made from recipes that are not part of this repository.
#[test]
fn real_networks() {
    let models = std::env::var_os("ONNXC_MODELS")
        .map(PathBuf::from)
        .unwrap_or_else(|| root().join("../shared/models"));
    if !models.join("suite_a").is_dir() {
        eprintln!("skipped: no model suite (set ONNXC_MODELS to its folder)");
        return;
    }
    let work = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("models");
    script(
        "models.py",
        &[exe(), models.join("suite_a").as_os_str(), models.join("tools").as_os_str(), work.as_os_str()],
    );
}
