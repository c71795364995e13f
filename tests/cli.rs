//! The program as a user meets it: exit codes, diagnostics, files on disk.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

fn onnxc() -> Command {
    Command::new(env!("CARGO_BIN_EXE_onnxc"))
}

fn scratch(name: &str) -> PathBuf {
    let d = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("cli-{name}"));
    let _ = std::fs::remove_dir_all(&d);
    std::fs::create_dir_all(&d).expect("scratch folder");
    d
}

const MODEL: &str = r#"<ir_version: 8, opset_import: ["" : 17]>
tiny (float[N, 4] x) => (float[N, 3] y)
<float[4, 3] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}>
{
  h = MatMul (x, w)
  y = Relu (h)
}
"#;

fn model(dir: &Path) -> PathBuf {
    let p = dir.join("tiny.onnx");
    std::fs::write(&p, MODEL).expect("model");
    p
}

fn compile(model: &Path, out: &Path, more: &[&str]) -> Output {
    onnxc().arg(model).arg("-o").arg(out).args(more).output().expect("onnxc runs")
}

fn stderr(o: &Output) -> String {
    String::from_utf8_lossy(&o.stderr).into_owned()
}

/// A broken input: exit code 1, a diagnostic, and no output file.
fn refused(name: &str, bytes: &[u8], expect: &str) {
    let d = scratch(name);
    let m = d.join("bad.onnx");
    std::fs::write(&m, bytes).expect("model");
    let o = compile(&m, &d.join("bad.o"), &[]);
    assert_eq!(o.status.code(), Some(1), "{name}: {}", stderr(&o));
    assert!(stderr(&o).contains(expect), "{name}: {}", stderr(&o));
    let left: Vec<_> = std::fs::read_dir(&d).expect("folder").flatten().map(|e| e.file_name()).collect();
    assert_eq!(left.len(), 1, "{name} left {left:?}");
}

#[test]
fn broken_files_are_refused() {
    refused("empty", b"", "an empty file");
    let noise: Vec<u8> = (0..4096u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    refused("noise", &noise, "not");
    refused("text", b"hello, this is not a model\n", "E00");
    // Field 7 (graph), length-delimited, ten gigabytes long.
    refused("length", &[0x08, 0x08, 0x3a, 0x80, 0x80, 0x80, 0x80, 0x28, 1, 2, 3], "E0001");
    refused("zip", b"PK\x03\x04rest", "zip archive");
    refused("lfs", b"version https://git-lfs.github.com/spec/v1\n", "Git LFS");
}

#[test]
fn missing_file_is_an_io_error() {
    let d = scratch("missing");
    let o = compile(&d.join("nowhere.onnx"), &d.join("x.o"), &[]);
    assert_eq!(o.status.code(), Some(3));
}

#[test]
fn wrong_usage_has_its_own_code() {
    let o = onnxc().arg("--no-such-flag").output().expect("runs");
    assert_eq!(o.status.code(), Some(2));
}

#[test]
fn the_model_is_never_overwritten() {
    let d = scratch("overwrite");
    let m = model(&d);
    let o = compile(&m, &m, &[]);
    assert_eq!(o.status.code(), Some(2), "{}", stderr(&o));
    assert_eq!(std::fs::read_to_string(&m).expect("still there"), MODEL);
}

/// A device or pipe is written in place: a file that is renamed would replace it.
#[cfg(unix)]
#[test]
fn a_pipe_stays_a_pipe() {
    use std::os::unix::fs::FileTypeExt;
    let d = scratch("pipe");
    let (m, pipe) = (model(&d), d.join("pipe"));
    assert!(Command::new("mkfifo").arg(&pipe).status().expect("mkfifo").success());
    let is_pipe = || std::fs::metadata(&pipe).expect("the pipe").file_type().is_fifo();
    let o = compile(&m, &pipe, &[]);
    assert_eq!(o.status.code(), Some(2), "{}", stderr(&o));
    assert!(stderr(&o).contains("2 outputs") && is_pipe(), "{}", stderr(&o));
    let reader = Command::new("cat").arg(&pipe).stdout(Stdio::piped()).spawn().expect("cat");
    let o = compile(&m, &pipe, &["--emit", "obj"]);
    assert!(o.status.success() && is_pipe(), "{}", stderr(&o));
    let read = reader.wait_with_output().expect("the object");
    // The same prefix of symbols.
    assert!(compile(&m, &d.join("pipe.o"), &[]).status.success());
    assert!(read.stdout == std::fs::read(d.join("pipe.o")).expect("an object"), "other bytes than in a file");
    let left = std::fs::read_dir(&d).expect("folder").count();
    assert_eq!(left, 4, "the model, the pipe, an object and its header");
}

/// What a symbolic link names is written, also from the cache.
#[cfg(unix)]
#[test]
fn a_link_stays_a_link() {
    let d = scratch("link");
    let (m, link, behind) = (model(&d), d.join("link.o"), d.join("behind.o"));
    std::fs::write(&behind, "before").expect("a file");
    std::os::unix::fs::symlink(&behind, &link).expect("link");
    let cache = d.join("cache").display().to_string();
    for _ in 0..2 {
        let o = compile(&m, &link, &["--cache", &cache, "--target", "x86_64-unknown-linux-gnu"]);
        assert!(o.status.success() && link.is_symlink(), "{}", stderr(&o));
        assert!(std::fs::read(&behind).expect("an object").starts_with(b"\x7fELF"));
        std::fs::write(&behind, "before").expect("a file");
    }
}

#[test]
fn two_processes_write_equal_bytes() {
    let d = scratch("determinism");
    let m = model(&d);
    for target in [
        "x86_64-unknown-linux-gnu",
        "aarch64-unknown-linux-gnu",
        "riscv64gc-unknown-linux-gnu",
        "aarch64-apple-darwin",
        "x86_64-pc-windows-msvc",
    ] {
        let read = |n: &str| {
            let out = d.join(n);
            let o = compile(&m, &out, &["--target", target, "--name", "tiny"]);
            assert!(o.status.success(), "{target}: {}", stderr(&o));
            std::fs::read(out).expect("object")
        };
        assert!(read("a.o") == read("b.o"), "{target}");
    }
}

#[test]
fn standard_input_and_output() {
    use std::io::Write;
    let mut c = onnxc()
        .args(["-", "--emit", "nest", "--cpu", "native", "-o", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("runs");
    c.stdin.take().expect("stdin").write_all(MODEL.as_bytes()).expect("written");
    let o = c.wait_with_output().expect("ends");
    assert!(o.status.success());
    assert!(String::from_utf8_lossy(&o.stdout).starts_with("nest v1 model"));
}

#[test]
fn depfile_names_the_model() {
    let d = scratch("depfile");
    let m = model(&d);
    let o = compile(&m, &d.join("t.o"), &["-MD", d.join("t.d").to_str().expect("utf-8")]);
    assert!(o.status.success(), "{}", stderr(&o));
    let text = std::fs::read_to_string(d.join("t.d")).expect("depfile");
    assert!(text.contains("t.o:") && text.contains("tiny.onnx"), "{text}");
}

#[test]
fn dims_are_checked() {
    let d = scratch("dims");
    let m = model(&d);
    let o = compile(&m, &d.join("t.o"), &["--dim", "M=3"]);
    assert_eq!(o.status.code(), Some(2));
    assert!(stderr(&o).contains("no dimension \"M\""), "{}", stderr(&o));
    let o = compile(&m, &d.join("t.o"), &["--dim", "N<=8"]);
    assert!(o.status.success(), "{}", stderr(&o));
}

#[test]
fn findings_as_json() {
    let d = scratch("json");
    let m = d.join("bad.onnx");
    std::fs::write(&m, b"PK\x03\x04").expect("model");
    let o = compile(&m, &d.join("x.o"), &["--message-format", "json"]);
    let v: serde_json::Value = serde_json::from_str(&stderr(&o)).expect("JSON");
    assert!(v.to_string().contains("E0001"), "{v}");
}

#[test]
fn unsupported_operators_are_listed_at_once() {
    let d = scratch("unsupported");
    let m = d.join("m.onnx");
    let text = "<ir_version: 8, opset_import: [\"\" : 17, \"my\" : 1]>\ng (float[2] x) => (float[2] y) {\n a = my.Foo (x)\n b = my.Foo (a)\n c = NoSuchOp (b)\n y = Relu (c)\n}\n";
    std::fs::write(&m, text).expect("model");
    let o = compile(&m, &d.join("x.o"), &[]);
    assert_eq!(o.status.code(), Some(1));
    let e = stderr(&o);
    assert!(e.contains("my Foo-1") && e.contains("2 nodes") && e.contains("NoSuchOp"), "{e}");
}

#[test]
fn objects_have_no_undefined_symbols() {
    let d = scratch("nm");
    let m = model(&d);
    let out = d.join("t.o");
    assert!(compile(&m, &out, &[]).status.success());
    let Ok(nm) = Command::new("nm").arg("-u").arg(&out).output() else {
        eprintln!("skipped: nm is not installed");
        return;
    };
    let undefined = String::from_utf8_lossy(&nm.stdout).into_owned();
    let rest: Vec<&str> = undefined
        .lines()
        .filter(|l| !["memcpy", "memmove", "memset"].iter().any(|m| l.ends_with(m)))
        .filter(|l| !l.trim().is_empty())
        .collect();
    assert!(rest.is_empty(), "{rest:?}");
}

#[test]
fn external_data_stays_in_the_folder() {
    use onnxc::onnx::external::{External, Range};
    let range =
        |location: &str, offset| Range { location: location.into(), offset, length: None, checksum: None };
    let d = scratch("external");
    std::fs::create_dir_all(d.join("in")).expect("folder");
    std::fs::write(d.join("secret"), b"0123456789").expect("file");
    std::fs::write(d.join("in/w"), b"0123456789").expect("file");
    let at = onnxc::diag::Origin::default();
    let mut e = External::new(Some(d.join("in")));
    assert!(e.slice(&range("w", 2), 3, &at).is_ok_and(|b| &b[..] == b"234"));
    for (location, offset, length) in [
        ("../secret", 0, 1),
        ("/etc/passwd", 0, 1),
        ("", 0, 1),
        ("nowhere", 0, 1),
        ("w", 8, 3),
        ("w", u64::MAX, 2),
        ("w", 11, 1),
    ] {
        assert!(e.slice(&range(location, offset), length, &at).is_err(), "{location} {offset} {length}");
    }
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink(d.join("secret"), d.join("in/link")).expect("link");
        assert!(e.slice(&range("link", 0), 1, &at).is_err());
    }
}

#[test]
fn run_and_verify() {
    let d = scratch("run");
    let m = model(&d);
    let x = onnxc::arrays::Array {
        name: "x".into(),
        ty: onnxc::tensor::ElemType::F32,
        dims: vec![1, 4],
        data: [1.0f32, 0.0, -1.0, 0.5].iter().flat_map(|v| v.to_le_bytes()).collect(),
    };
    onnxc::arrays::write(&d.join("x.npy"), &x).expect("npy");
    let o = onnxc()
        .arg("run")
        .arg(&m)
        .arg("--input")
        .arg(format!("x={}", d.join("x.npy").display()))
        .arg("--output")
        .arg(format!("y={}", d.join("y.npy").display()))
        .output()
        .expect("runs");
    assert!(o.status.success(), "{}", stderr(&o));
    let y = onnxc::arrays::read(&d.join("y.npy")).expect("y");
    // [1 - 7 + 5, 2 - 8 + 5.5, 3 - 9 + 6], negative ones cut off.
    assert_eq!(y.to_f64s(), [0.0, 0.0, 0.0]);
    let o = onnxc().arg("run").arg(&m).output().expect("runs");
    assert_eq!(o.status.code(), Some(1));
    assert!(stderr(&o).contains("inputs are missing"), "{}", stderr(&o));
}

#[test]
fn bench_times_a_model_and_its_kernels() {
    let d = scratch("bench");
    let m = model(&d);
    let run = |more: &[&str]| {
        onnxc().arg("bench").arg(&m).args(["--seconds", "0.05"]).args(more).output().expect("onnxc runs")
    };
    let o = run(&["--per-node", "--size", "N=5", "--json"]);
    assert!(o.status.success(), "{}", stderr(&o));
    let v: serde_json::Value = serde_json::from_slice(&o.stdout).expect("one JSON object");
    assert_eq!(v["dims"]["N"], 5);
    assert!(v["min"].as_f64().is_some_and(|t| t > 0.0 && t < 1.0), "{v}");
    assert!(v["machine"]["flops"].as_f64().is_some_and(|f| f > 1e8), "{v}");
    // The product and what became of the Relu: two for each multiply-add, and one for each element.
    let flops = v["amounts"]["flops"].as_f64().expect("counted");
    assert!((120.0..=160.0).contains(&flops), "{flops}");
    let nodes = v["nodes"].as_array().expect("kernels");
    assert!(!nodes.is_empty() && nodes.iter().all(|n| n["min"].as_f64().is_some_and(|t| t > 0.0)), "{v}");
    let o = run(&["--per-node", "--threads", "2", "--seed", "7"]);
    assert!(o.status.success() && String::from_utf8_lossy(&o.stdout).contains("2 threads"), "{o:?}");
    assert_eq!(run(&["--size", "M=5"]).status.code(), Some(2));
    // Sequences, optionals, maps and strings are made up, too, or given.
    let cases = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases/ops");
    for case in ["sequence", "sequence_strings", "optional", "cast_map", "zip_map"] {
        let o = onnxc()
            .arg("bench")
            .arg(cases.join(case).with_extension("onnxtxt"))
            .args(["--seconds", "0.01", "--per-node"])
            .output()
            .expect("onnxc runs");
        assert!(o.status.success(), "{case}: {}", stderr(&o));
    }
    let file = d.join("x.npy");
    let x = onnxc::arrays::Array {
        name: "x".into(),
        ty: onnxc::tensor::ElemType::F32,
        dims: vec![7, 4],
        data: vec![0; 112],
    };
    onnxc::arrays::write(&file, &x).expect("a file");
    let o = run(&["--json", "--input", &format!("x={}", file.display())]);
    assert!(o.status.success(), "{}", stderr(&o));
    assert_eq!(
        serde_json::from_slice::<serde_json::Value>(&o.stdout).expect("one JSON object")["dims"]["N"],
        7
    );
    let o = run(&["--input", &format!("nothing={}", file.display())]);
    assert!(o.status.code() == Some(2) && stderr(&o).contains("no input \"nothing\""), "{}", stderr(&o));
    let o = onnxc().args(["bench", "--machine", "--json"]).output().expect("onnxc runs");
    assert!(o.status.success() && serde_json::from_slice::<serde_json::Value>(&o.stdout).is_ok(), "{o:?}");
}
