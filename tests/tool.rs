//! The program's flags and files: what help, headers and messages promise. tests/cli.rs has exit codes of
//! models.

use onnxc::arrays::{self, Array};
use onnxc::tensor::ElemType;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

#[path = "support/process.rs"]
mod process;

fn onnxc() -> Command {
    Command::new(env!("CARGO_BIN_EXE_onnxc"))
}

fn scratch(name: &str) -> PathBuf {
    let d = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("tool-{name}"));
    let _ = std::fs::remove_dir_all(&d);
    std::fs::create_dir_all(&d).expect("scratch folder");
    d
}

/// Writes a model and returns its path.
fn model(dir: &Path, text: &str) -> PathBuf {
    let p = dir.join("model.onnx");
    std::fs::write(&p, format!("<ir_version: 8, opset_import: [\"\" : 17]>\n{text}")).expect("model");
    p
}

const TINY: &str = "tiny (float[N, 4] x) => (float[N, 3] y) <float[4, 3] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}> { h = MatMul (x, w) y = Relu (h) }";

fn run(c: &mut Command) -> Output {
    c.output().expect("onnxc runs")
}

fn stderr(o: &Output) -> String {
    String::from_utf8_lossy(&o.stderr).into_owned()
}

fn stdout(o: &Output) -> String {
    String::from_utf8_lossy(&o.stdout).into_owned()
}

fn succeeds(o: Output) -> Output {
    assert!(o.status.success(), "{}{}", stdout(&o), stderr(&o));
    o
}

fn floats(dims: &[i64], v: &[f32]) -> Array {
    Array {
        name: "x".into(),
        ty: ElemType::F32,
        dims: dims.to_vec(),
        data: v.iter().flat_map(|v| v.to_le_bytes()).collect(),
    }
}

#[test]
fn wrong_values_of_flags_are_usage_errors() {
    let d = scratch("usage");
    let m = model(&d, TINY);
    let compile: &[(&[&str], &str)] = &[
        (&["--emit", "objj"], "a similar value exists: 'obj'"),
        (&["--cpu", "x86-64-v44"], "a similar one is 'x86-64-v4'"),
        (&["--cpu", "generic", "--target", "x86_64-unknown-linux-gnu"], "is not known for x86_64"),
        (&["--target", "x86-linux"], "not"),
        (&["--target", "x86_64-unknown-linux-gnux32"], "pointers of 32 bits"),
        (&["--target", "aarch64_be-unknown-linux-gnu"], "big-endian"),
        (&["--dim", "N"], "is not of the form"),
        (&["--dim", "M=4"], "no dimension \"M\""),
        (&["--heap", "3X"], "1024G"),
        (&["--weights", "flie"], "embed, file or file=PATH"),
        (&["--stop-after", "lowr"], "a similar value exists: 'lower'"),
        (&["--name", "3a"], "identifier"),
        (&["--rename", "x"], "NAME=VALUE"),
        (&["--tap", "nothing"], "no node of the main graph computes"),
    ];
    for (flags, says) in compile {
        let o = run(onnxc().arg(&m).arg("-o").arg(d.join("t.o")).args(*flags));
        assert!(
            o.status.code() == Some(2) && stderr(&o).contains(says),
            "{flags:?}: {:?} {}",
            o.status.code(),
            stderr(&o)
        );
    }
    let others: &[(&[&str], &str)] = &[
        (&["run", "--input", "x=a.bin"], ".npy, .npz or .pb"),
        (&["run", "--input", "a.npy"], "NAME=FILE"),
        (&["run", "--random", "1", "--output", "z=z.npy"], "no output \"z\""),
        (&["run", "--size", "M=4"], "no dimension \"M\""),
        (&["run", "--size", "N=-4"], "not a size"),
        (&["verify", "--data", "x.npz", "--rtol=-1"], "not negative"),
        (&["verify", "--per-node", "--reference", "onnxruntim"], "a similar one is 'onnxruntime'"),
        (&["bench", "--size", "N"], "NAME=VALUE"),
        (&["bench", "--seconds", "0"], "above 0"),
    ];
    for (flags, says) in others {
        let o = run(onnxc().current_dir(&d).arg(flags[0]).arg(&m).args(&flags[1..]));
        assert!(
            o.status.code() == Some(2) && stderr(&o).contains(says),
            "{flags:?}: {:?} {}",
            o.status.code(),
            stderr(&o)
        );
    }
}

#[test]
fn run_reads_and_writes_each_format() {
    let d = scratch("formats");
    let m = model(&d, TINY);
    let x = floats(&[2, 4], &[1.0, 0.0, -1.0, 0.5, 1.0, 1.0, 1.0, 1.0]);
    let other = Array { name: "z".into(), ..floats(&[1], &[3.0]) };
    arrays::write(&d.join("x.npy"), &x).expect("npy");
    arrays::write(&d.join("x.pb"), &x).expect("pb");
    arrays::write(&d.join("one.npz"), &Array { name: "anything".into(), ..x.clone() }).expect("npz");
    arrays::write_all(&d.join("two.npz"), &[&other, &x]).expect("npz");
    arrays::write_all(&d.join("x.npz"), &[&x]).expect("npz");
    let want = [0.0, 0.0, 0.0, 22.0, 26.0, 30.0];
    for input in ["x=x.npy", "x=x.pb", "x=one.npz", "x=two.npz", "x.npz"] {
        for output in ["y.npy", "y.npz", "y.pb"] {
            succeeds(run(onnxc().current_dir(&d).arg("run").arg(&m).args([
                "--input",
                input,
                "--output",
                &format!("y={output}"),
            ])));
            let y = arrays::read(&d.join(output)).expect("an array");
            assert_eq!(
                (y.to_f64s().as_slice(), y.dims.as_slice()),
                (&want[..], &[2, 3][..]),
                "{input} {output}"
            );
        }
    }
    // The files are what their names say.
    assert!(std::fs::read(d.join("y.npz")).expect("file").starts_with(b"PK"));
    assert!(std::fs::read(d.join("y.npy")).expect("file").starts_with(b"\x93NUMPY"));
    succeeds(run(onnxc()
        .current_dir(&d)
        .arg("run")
        .arg(&m)
        .args(["--input", "x.npz", "--output", "all.npz"])));
    assert_eq!(arrays::read_npz(&d.join("all.npz")).expect("arrays")[0].name, "y");
    let o = run(onnxc().current_dir(&d).arg("run").arg(&m).args(["--input", "two.npz"]));
    assert!(o.status.code() == Some(2) && stderr(&o).contains("no input \"z\""), "{}", stderr(&o));
    // Several outputs in one file; strings and 16-bit floats in each format that has them.
    let m = model(
        &d,
        "two (float[2] a) => (float16[2] h, string[2] s) { h = Cast <to = 10> (a) s = Cast <to = 8> (a) }",
    );
    succeeds(run(onnxc().current_dir(&d).arg("run").arg(&m).args([
        "--random", "1", "--output", "h=b.npz", "--output", "s=b.npz", "--output", "s=s.pb", "--output",
        "h=h.pb",
    ])));
    let both = arrays::read_npz(&d.join("b.npz")).expect("arrays");
    assert_eq!(both.iter().map(|a| a.ty).collect::<Vec<_>>(), [ElemType::F16, ElemType::Str]);
    assert_eq!(arrays::read(&d.join("s.pb")).expect("strings").to_strings(), both[1].to_strings());
    assert_eq!(arrays::read(&d.join("h.pb")).expect("halves").data, both[0].data);
}

#[test]
fn wrong_output_names_are_told_before_the_run() {
    let d = scratch("before");
    // The run itself would fail: there are no inputs.
    let m = model(&d, TINY);
    let o = run(onnxc().arg("run").arg(&m).args(["--output", "q=q.npy"]));
    assert!(
        stderr(&o).contains("no output \"q\"") && !stderr(&o).contains("inputs are missing"),
        "{}",
        stderr(&o)
    );
}

#[test]
fn verify_without_expected_outputs_is_an_error() {
    let d = scratch("silent");
    let m = model(&d, TINY);
    let x = floats(&[1, 4], &[1.0; 4]);
    arrays::write_all(&d.join("x.npz"), &[&x]).expect("npz");
    let o = run(onnxc().arg("verify").arg(&m).arg("--data").arg(d.join("x.npz")));
    assert!(o.status.code() == Some(1) && stderr(&o).contains("nothing was compared"), "{}", stderr(&o));
    let y = Array { name: "y".into(), ..floats(&[1, 3], &[22.0, 26.0, 30.0]) };
    arrays::write_all(&d.join("xy.npz"), &[&x, &y]).expect("npz");
    succeeds(run(onnxc().arg("verify").arg(&m).arg("--data").arg(d.join("xy.npz"))));
}

#[test]
fn random_inputs_are_ones_that_the_model_takes() {
    let d = scratch("random");
    // Indices from all of the table, past + step = total, and a count within a dimension.
    let m = model(
        &d,
        "step (int64[S] ids, float[P, 2] past, float[T, 2] mask, int64[1] k) => (float[T, 2] y, float[q] v) <int64[2] size = {50, 2}, int64[1] minus = {-1}> {
           table = ConstantOfShape (size) e = Gather (table, ids)
           c = Concat <axis = 0> (past, e) y = Add (c, mask)
           f = Reshape (mask, minus) v, i = TopK (f, k) }",
    );
    for seed in 0..4 {
        let seed = seed.to_string();
        for sizes in [&[][..], &["--size", "S=3"], &["--size", "P=7", "--size", "S=2"], &["--size", "T=9"]] {
            succeeds(run(onnxc().arg("run").arg(&m).args(["--random", &seed]).args(sizes)));
        }
    }
    // Not all of them are 0 or 1.
    let m = model(
        &d,
        "look (int64[64] ids) => (float[64] y, int64[64] same) <int64[1] size = {50}> { same = Identity (ids) table = ConstantOfShape (size) y = Gather (table, ids) }",
    );
    succeeds(run(onnxc()
        .arg("run")
        .arg(&m)
        .args(["--random", "1"])
        .arg("--output")
        .arg(format!("same={}", d.join("s.npy").display()))));
    let ids = arrays::read(&d.join("s.npy")).expect("ids").to_f64s();
    assert!(ids.iter().any(|i| *i > 10.0) && ids.iter().all(|i| (0.0..50.0).contains(i)), "{ids:?}");
}

#[test]
fn time_passes_tells_everything() {
    let d = scratch("time");
    let m = model(&d, TINY);
    let o = succeeds(run(onnxc().arg(&m).arg("-o").arg(d.join("t.o")).args([
        "--time-passes",
        "--weights",
        "file",
    ])));
    let rows: Vec<(f64, String)> = stderr(&o)
        .lines()
        .filter_map(|l| l.split_once(" ms  ").map(|(t, n)| (t.trim().parse().expect("a time"), n.to_owned())))
        .collect();
    let of =
        |name: &str| rows.iter().find(|r| r.1 == name).unwrap_or_else(|| panic!("no row {name}: {rows:?}")).0;
    for step in [
        "import",
        "schedule",
        "pack weights",
        "generate code",
        "write obj",
        "write header",
        "write weights",
        "other",
    ] {
        of(step);
    }
    let sum: f64 = rows.iter().filter(|r| r.1 != "total").map(|r| r.0).sum();
    assert!(sum > 0.95 * of("total") && sum < 1.05 * of("total"), "{sum} of {}", of("total"));
}

/// What no tile computes is told with its reason: unsigned quotients of 64 bits have no vectors on any level.
#[test]
fn cranelift_ir_tells_which_vector_loops_are_no_tiles() {
    let d = scratch("no-tile");
    let m = model(&d, "quotients (uint64[8, 64] a) => (uint64[8, 64] y) <uint64 b = {7}> { y = Div (a, b) }");
    let text = stdout(&succeeds(run(onnxc().arg(&m).args([
        "--emit",
        "clif",
        "--target",
        "x86_64-unknown-linux-gnu",
        "--cpu",
        "x86-64-v3",
        "-o",
        "-",
    ]))));
    let note = text
        .lines()
        .find(|l| l.starts_with("; no tile for vec "))
        .unwrap_or_else(|| panic!("no note in {text}"));
    assert!(note.contains("64 bits"), "{note}");
    let m = model(&d, "sum (float[8, 64] a, float[8, 64] b) => (float[8, 64] y) { y = Add (a, b) }");
    let text = stdout(&succeeds(run(onnxc().arg(&m).args([
        "--emit",
        "clif",
        "--target",
        "x86_64-unknown-linux-gnu",
        "--cpu",
        "x86-64-v3",
        "-o",
        "-",
    ]))));
    assert!(!text.contains("no tile"), "{text}");
}

#[test]
fn check_prints_json_when_asked_to() {
    let d = scratch("check");
    let m = model(&d, TINY);
    let o = succeeds(run(onnxc().arg("check").arg(&m).args(["--message-format", "json"])));
    let v: serde_json::Value = serde_json::from_slice(&o.stdout).expect("one JSON object");
    assert_eq!(
        (&v["ok"], &v["inputs"][0]["type"]),
        (&serde_json::json!(true), &serde_json::json!("float[N, 4]")),
        "{v}"
    );
}

#[test]
fn headers_say_what_is() {
    let d = scratch("header");
    let m = model(&d, TINY);
    let header = |flags: &[&str]| {
        succeeds(run(onnxc()
            .arg(&m)
            .arg("-o")
            .arg(d.join("net.o"))
            .args(["--target", "x86_64-unknown-linux-gnu"])
            .args(flags)));
        std::fs::read_to_string(d.join("net.h")).expect("header")
    };
    let other = d.join("n2.weights");
    let text = header(&["--weights", &format!("file={}", other.display())]);
    assert!(
        text.contains("the file n2.weights")
            && text.contains("the contents of n2.weights")
            && !text.contains("net.weights"),
        "{text}"
    );
    assert!(header(&["--weights", "file"]).contains("the file net.weights"));
    let (several, one) = (header(&[]), header(&["--cpu", "x86-64"]));
    assert!(
        several.contains("its only writable data")
            && several.contains("lacks instructions of the first level"),
        "{several}"
    );
    assert!(!one.contains("writable") && !one.contains("lacks instructions of the"), "{one}");
    assert!(header(&["--cpu", "x86-64-v3"]).contains("lacks instructions of the only level"));
    assert!(
        !one.contains("a callback around each node")
            && header(&["--trace"]).contains("a callback around each node")
    );
    // The prefix is the output's stem; models of a hub are all called model.onnx.
    assert!(one.contains("net_infer(") && !one.contains("model_infer"), "{one}");
    let named = header(&["--name", "mine"]);
    assert!(named.contains("mine_infer("));
    succeeds(run(onnxc().current_dir(&d).arg(&m).args(["--emit", "header"])));
    assert!(std::fs::read_to_string(d.join("model.h")).expect("header").contains("model_infer("));
}

/// Triples that rustc knows (`rustc --print target-list`), of the architectures that there is code for, and
/// some of others.
const TRIPLES: &str = "aarch64-apple-darwin aarch64-apple-ios aarch64-apple-ios-macabi aarch64-apple-ios-sim aarch64-apple-tvos aarch64-apple-tvos-sim
    aarch64-apple-visionos aarch64-apple-visionos-sim aarch64-apple-watchos aarch64-apple-watchos-sim aarch64-kmc-solid_asp3 aarch64-linux-android
    aarch64-nintendo-switch-freestanding aarch64-pc-windows-gnullvm aarch64-pc-windows-msvc aarch64-unknown-freebsd aarch64-unknown-fuchsia
    aarch64-unknown-hermit aarch64-unknown-illumos aarch64-unknown-linux-gnu aarch64-unknown-linux-gnu_ilp32 aarch64-unknown-linux-musl
    aarch64-unknown-linux-ohos aarch64-unknown-netbsd aarch64-unknown-none aarch64-unknown-none-softfloat aarch64-unknown-nto-qnx710
    aarch64-unknown-openbsd aarch64-unknown-redox aarch64-unknown-teeos aarch64-unknown-trusty aarch64-unknown-uefi aarch64-uwp-windows-msvc
    aarch64-wrs-vxworks aarch64_be-unknown-linux-gnu aarch64_be-unknown-linux-gnu_ilp32 aarch64_be-unknown-netbsd arm64_32-apple-watchos
    arm64e-apple-darwin arm64ec-pc-windows-msvc riscv64-linux-android riscv64-wrs-vxworks riscv64a23-unknown-linux-gnu riscv64gc-unknown-freebsd
    riscv64gc-unknown-fuchsia riscv64gc-unknown-hermit riscv64gc-unknown-linux-gnu riscv64gc-unknown-linux-musl riscv64gc-unknown-netbsd
    riscv64gc-unknown-none-elf riscv64gc-unknown-nuttx-elf riscv64gc-unknown-openbsd riscv64imac-unknown-none-elf riscv64imac-unknown-nuttx-elf
    x86_64-apple-darwin x86_64-apple-ios x86_64-apple-ios-macabi x86_64-apple-tvos x86_64-apple-watchos-sim x86_64-fortanix-unknown-sgx
    x86_64-linux-android x86_64-lynx-lynxos178 x86_64-pc-cygwin x86_64-pc-nto-qnx710 x86_64-pc-solaris x86_64-pc-windows-gnu
    x86_64-pc-windows-gnullvm x86_64-pc-windows-msvc x86_64-unikraft-linux-musl x86_64-unknown-dragonfly x86_64-unknown-freebsd
    x86_64-unknown-fuchsia x86_64-unknown-haiku x86_64-unknown-hermit x86_64-unknown-hurd-gnu x86_64-unknown-illumos x86_64-unknown-l4re-uclibc
    x86_64-unknown-linux-gnu x86_64-unknown-linux-gnux32 x86_64-unknown-linux-musl x86_64-unknown-linux-none x86_64-unknown-linux-ohos
    x86_64-unknown-netbsd x86_64-unknown-none x86_64-unknown-openbsd x86_64-unknown-redox x86_64-unknown-trusty x86_64-unknown-uefi
    x86_64-uwp-windows-gnu x86_64-uwp-windows-msvc x86_64-win7-windows-msvc x86_64-wrs-vxworks x86_64h-apple-darwin x86_64-unknown-unknown
    armv7-unknown-linux-gnueabihf i686-unknown-linux-gnu wasm32-unknown-unknown wasm64-unknown-unknown s390x-unknown-linux-gnu
    powerpc64le-unknown-linux-gnu riscv32imac-unknown-none-elf thumbv7em-none-eabihf avr-none loongarch64-unknown-linux-gnu sparc64-unknown-linux-gnu";

#[test]
fn no_triple_is_an_internal_error() {
    use onnxc::diag::Failure;
    use onnxc::options::Options;
    // A product, a level of its own for what the CPU has, a function of libm, an embedded weight.
    let text = "<ir_version: 8, opset_import: [\"\" : 17]>\nt (float[N, 4] x, double[N] d) => (float[N, 3] y, double[N] s)\n<float[4, 3] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}> { y = MatMul (x, w) s = Atanh (d) }";
    let source =
        onnxc::onnx::Source { name: "t.onnx".into(), bytes: text.as_bytes().to_vec().into(), folder: None };
    let (mut written, mut refused) = (vec![], vec![]);
    for triple in TRIPLES.split_whitespace() {
        let options = Options { target: Some(triple.into()), ..Options::default() };
        let object = onnxc::pipeline::compile(&source, &options)
            .and_then(|c| onnxc::emit::to_text(&c, onnxc::emit::find("obj")?));
        match object {
            Ok(_) => written.push(triple),
            Err(Failure::Errors(_)) => refused.push(triple),
            Err(e) => panic!("{triple}: {e}"),
        }
    }
    for t in [
        "x86_64-unknown-none",
        "aarch64-unknown-none",
        "x86_64-unknown-uefi",
        "aarch64-unknown-uefi",
        "aarch64-pc-windows-msvc",
        "aarch64-linux-android",
        "aarch64-apple-ios",
    ] {
        assert!(written.contains(&t), "{t} is refused");
    }
    for t in [
        "x86_64-unknown-linux-gnux32",
        "aarch64_be-unknown-linux-gnu",
        "riscv64imac-unknown-none-elf",
        "wasm32-unknown-unknown",
    ] {
        assert!(refused.contains(&t), "{t} is not refused");
    }
}

#[test]
fn objects_are_what_triples_ask_for() {
    use object_bytes::*;
    let d = scratch("objects");
    let m = model(&d, TINY);
    let object = |triple: &str, more: &[&str]| {
        succeeds(run(onnxc().arg(&m).arg("-o").arg(d.join("t.o")).args(["--target", triple]).args(more)));
        let header = std::fs::read_to_string(d.join("t.h")).expect("header");
        (std::fs::read(d.join("t.o")).expect("object"), header)
    };
    for (triple, machine) in [
        ("x86_64-unknown-uefi", 0x8664),
        ("aarch64-unknown-uefi", 0xaa64),
        ("aarch64-pc-windows-msvc", 0xaa64),
    ] {
        assert_eq!(coff_machine(&object(triple, &[]).0), machine, "{triple}");
    }
    for (triple, machine) in
        [("x86_64-unknown-none", 62), ("aarch64-unknown-none", 183), ("riscv64gc-unknown-none-elf", 243)]
    {
        assert_eq!(elf_machine(&object(triple, &[]).0), machine, "{triple}");
    }
    // Not every CPU of riscv64gc has vectors.
    let (code, header) = object("riscv64gc-unknown-linux-gnu", &[]);
    assert!(header.contains("riscv64gc-unknown-linux-gnu rv64gc\n"), "{header}");
    assert_eq!(elf_flags(&code) & 6, 4, "lp64d");
    let (code, _) = object("riscv64imac-unknown-none-elf", &["--cpu", "rv64gc"]);
    assert_eq!(elf_flags(&code) & 6, 0, "lp64");
}

mod object_bytes {
    fn half(b: &[u8], at: usize) -> u16 {
        u16::from_le_bytes([b[at], b[at + 1]])
    }
    pub fn coff_machine(b: &[u8]) -> u16 {
        half(b, 0)
    }
    pub fn elf_machine(b: &[u8]) -> u16 {
        assert!(b.starts_with(b"\x7fELF"));
        half(b, 18)
    }
    pub fn elf_flags(b: &[u8]) -> u32 {
        u32::from(half(b, 48)) | u32::from(half(b, 50)) << 16
    }
}

#[test]
fn hidden_symbols_are_not_exported() {
    let d = scratch("hidden");
    let m = model(&d, TINY);
    let exported = |flags: &[&str]| -> Option<usize> {
        succeeds(run(onnxc().arg(&m).arg("-o").arg(d.join("t.o")).args(flags)));
        let cc = std::env::var("CC").unwrap_or("cc".into());
        let linked =
            Command::new(cc).args(["-shared", "-o"]).arg(d.join("t.so")).arg(d.join("t.o")).output().ok()?;
        assert!(linked.status.success(), "{}", stderr(&linked));
        let nm = Command::new("nm").arg("-D").arg("--defined-only").arg(d.join("t.so")).output().ok()?;
        Some(stdout(&nm).lines().filter(|l| l.contains(" t_")).count())
    };
    if !cfg!(target_os = "linux") {
        eprintln!("skipped: symbols are looked at on Linux only");
        return;
    }
    let (Some(open), Some(hidden)) = (exported(&[]), exported(&["--hidden"])) else {
        eprintln!("skipped: cc or nm is not installed");
        return;
    };
    assert_eq!((open, hidden), (4, 0));
}

#[test]
fn a_dimension_of_outputs_only_is_told() {
    let d = scratch("outdim");
    let m = model(&d, "g (float[N] x) => (float[M] y) { y = Concat <axis = 0> (x, x) }");
    let o = succeeds(run(onnxc().arg(&m).arg("-o").arg(d.join("t.o")).args(["--dim", "M=4"])));
    assert!(
        stderr(&o).contains("no input has the dimension \"M\"") && stderr(&o).contains("one of N"),
        "{}",
        stderr(&o)
    );
    let o = succeeds(run(onnxc().arg(&m).arg("-o").arg(d.join("t.o")).args(["--dim", "N=4"])));
    assert!(o.stderr.is_empty(), "{}", stderr(&o));
}

#[test]
fn a_missing_file_is_one_finding() {
    let d = scratch("file");
    let m = d.join("model.onnx");
    let text = "<ir_version: 8, opset_import: [\"\" : 17]>\ng (float[2] x) => (float[2] y) <float[2] w = [\"location\": \"gone.bin\"]> { y = Add (x, w) }";
    std::fs::write(&m, text).expect("model");
    let o = run(onnxc().arg("check").arg(&m));
    assert_eq!(o.status.code(), Some(1));
    let findings = stderr(&o).matches("error[").count();
    assert!(
        findings == 1 && stderr(&o).contains("gone.bin") && !stderr(&o).contains("not defined"),
        "{}",
        stderr(&o)
    );
}

#[test]
fn taps_are_outputs() {
    let d = scratch("tap");
    let m = model(
        &d,
        "g (float[2] x) => (float[2] y) { a = Neg (x) layer_1 = Exp (a) layer_2 = Tanh (layer_1) y = Relu (layer_2) }",
    );
    let outputs = |flags: &[&str]| -> Vec<String> {
        succeeds(run(onnxc().arg(&m).arg("-o").arg(d.join("t.o")).args(["--emit", "header"]).args(flags)));
        let text = std::fs::read_to_string(d.join("t.h")).expect("header");
        text.lines()
            .filter_map(|l| l.strip_prefix("/* output \"")?.split('"').next().map(str::to_owned))
            .collect()
    };
    assert_eq!(outputs(&[]), ["y"]);
    assert_eq!(outputs(&["--tap", "a"]), ["y", "a"]);
    assert_eq!(outputs(&["--tap", "layer_*"]), ["y", "layer_1", "layer_2"]);
    assert_eq!(outputs(&["--tap", "all"]), ["y", "a", "layer_1", "layer_2"]);
}

/// The Python of the harnesses, if there is one.
fn python() -> Option<PathBuf> {
    let p = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("venv/bin/python");
    p.exists().then_some(p)
}

const LAYERS: &str = "g (float[N, 4] x, int64[2] i) => (float[2, 3] y, string[2] s) <float[4, 3] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}> {
    h = MatMul (x, w) r = Softmax (h) y = Gather (r, i) s = Cast <to = 8> (i) }";

#[test]
fn verify_finds_the_wrong_tensor() {
    let d = scratch("pernode");
    let m = model(&d, LAYERS);
    let verify =
        |more: &[&str]| run(onnxc().current_dir(&d).arg("verify").arg(&m).arg("--per-node").args(more));
    // Saved tensors, one of them wrong.
    let x = floats(&[2, 4], &[0.0, 0.0, 0.0, 0.0, 0.1, 0.0, 0.0, 0.0]);
    let i = Array {
        name: "i".into(),
        ty: ElemType::I64,
        dims: vec![2],
        data: [0i64, 1].iter().flat_map(|v| v.to_le_bytes()).collect(),
    };
    arrays::write_all(&d.join("in.npz"), &[&x, &i]).expect("npz");
    let h = Array { name: "h".into(), ..floats(&[2, 3], &[0.0, 0.0, 0.0, 0.1, 0.2, 0.3]) };
    let r = Array { name: "r".into(), ..floats(&[2, 3], &[0.3, 0.3, 0.4, 0.3, 0.33, 0.37]) };
    arrays::write_all(&d.join("ref.npz"), &[&h, &r]).expect("npz");
    let o = verify(&["--reference", "ref.npz", "--input", "in.npz"]);
    let (out, err) = (stdout(&o), stderr(&o));
    assert!(
        o.status.code() == Some(1)
            && err.contains("\"r\" is the first tensor beyond its tolerance")
            && err.contains("Softmax"),
        "{out}{err}"
    );
    assert!(
        out.lines().any(|l| l.starts_with("->") && l.contains(" r ")) && out.contains("not in the reference"),
        "{out}"
    );
    let o = verify(&["--reference", "ref.npz", "--input", "in.npz", "--tap", "h"]);
    assert!(succeeds(o).stderr.is_empty());
    let o = verify(&["--reference", "ref.npz", "--input", "in.npz", "--tap", "y"]);
    assert!(o.status.code() == Some(1), "an output needs no tap: {}", stderr(&o));
    let o = verify(&["--reference", "ref.npz", "--input", "in.npz", "--message-format", "json"]);
    let rows: Vec<serde_json::Value> =
        stdout(&o).lines().map(|l| serde_json::from_str(l).expect("JSON")).collect();
    assert!(
        rows.iter().any(|r| r["tensor"] == "r"
            && r["first"] == true
            && r["ok"] == false
            && r["cosine"].as_f64().is_some_and(|c| c > 0.9)),
        "{rows:?}"
    );
    succeeds(verify(&["--reference", "ref.npz", "--input", "in.npz", "--atol", "1"]));
    // No Python, and one without the package.
    let o = verify(&["--python", "no-such-python"]);
    assert!(o.status.code() == Some(2) && stderr(&o).contains("--python"), "{}", stderr(&o));
    let fake = d.join("fake-python");
    std::fs::write(&fake, "#!/bin/sh\necho onnxruntime\nexit 3\n").expect("a script");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(&fake, std::fs::Permissions::from_mode(0o755)).expect("executable");
        let o = verify(&["--python", "./fake-python"]);
        assert!(
            o.status.code() == Some(2)
                && stderr(&o).contains("no package \"onnxruntime\"")
                && stderr(&o).contains("pip install"),
            "{}",
            stderr(&o)
        );
    }
    let Some(python) = python() else {
        eprintln!("skipped: there is no Python environment; tests/python.rs makes it");
        return;
    };
    for reference in ["onnxruntime", "onnx"] {
        let o = succeeds(verify(&[
            "--python",
            &python.display().to_string(),
            "--reference",
            reference,
            "--size",
            "N=5",
        ]));
        assert!(stdout(&o).contains("4 tensors compared, all within"), "{}", stdout(&o));
    }
    // Tensors within a function are none of the file's.
    let text = "<ir_version: 10, opset_import: [\"\" : 21, \"d\" : 1]>\ng (float[2] x) => (float[2] y) { a = d.F (x) y = Neg (a) }\n<domain: \"d\", opset_import: [\"\" : 21]> F (v) => (w) { t = Exp (v) w = Tanh (t) }";
    std::fs::write(&m, text).expect("model");
    let o = succeeds(verify(&["--python", &python.display().to_string()]));
    assert!(
        stdout(&o).contains("2 tensors compared, all within") && stdout(&o).contains("not in the reference"),
        "{}",
        stdout(&o)
    );
}

/// Fills the stack, calls the digits network, and prints how far down it wrote.
const STACK: &str = r#"
#include "digits.h"
#include <stdio.h>
static ONNXC_ALIGNAS(DIGITS_WORKSPACE_ALIGN) unsigned char workspace[DIGITS_WORKSPACE_SIZE];
static float image[DIGITS_IMAGE_LEN], logits[DIGITS_LOGITS_LEN];
static const volatile unsigned char *lowest;
__attribute__((noinline)) static void fill(void) {
  volatile unsigned char below[1 << 16];
  for (int i = 0; i < 1 << 16; i++) below[i] = 0xa5;
  lowest = below;
}
__attribute__((noinline)) static long call(void) {
  int status = digits_infer(image, logits, workspace);
  return status ? -1 : (long)((const volatile unsigned char *)__builtin_frame_address(0) - lowest);
}
int main(void) {
  call();
  fill();
  long depth = call(), i = 0;
  while (i < depth && lowest[i] == 0xa5) i++;
  printf("%ld\n", depth - i);
  return depth < 0 || i == 0;
}
"#;

#[test]
fn calls_use_the_stack_that_inspect_tells() {
    let d = scratch("stack");
    let m = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/c-digits/digits.onnx");
    let told = |cpu: &str| {
        let o = succeeds(run(onnxc().arg("inspect").arg(&m).args(["--json", "--cpu", cpu])));
        let v: serde_json::Value = serde_json::from_slice(&o.stdout).expect("one JSON object");
        v["stack_bytes"].as_u64().expect("a number")
    };
    let most = told("native");
    assert!((200..20_000).contains(&most), "{most}");
    if !process::starts("cc") || !cfg!(target_os = "linux") {
        println!("skipped in part: the program is for cc on Linux");
        return;
    }
    succeeds(run(onnxc().arg(&m).arg("-o").arg(d.join("digits.o")).args(["--cpu", "native"])));
    std::fs::write(d.join("main.c"), STACK).expect("written");
    let mut cc = Command::new("cc");
    cc.current_dir(&d).args(["-O1", "-I.", "main.c", "digits.o", "-o", "main", "-lm"]);
    succeeds(run(&mut cc));
    let text = stdout(&succeeds(run(&mut Command::new(d.join("main")))));
    let used: u64 = text.trim().parse().expect("a number");
    // The caller's own frame is counted, too.
    assert!(used <= most + 64 && 2 * used >= most, "{used} of {most}");
}

#[test]
fn sizes_add_up() {
    let d = scratch("sizes");
    let m = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/c-digits/digits.onnx");
    let emit = |kinds: &str| {
        let target = ["--target", "x86_64-unknown-linux-gnu", "--cpu", "x86-64-v2,x86-64-v4", "--debug-info"];
        succeeds(run(onnxc().arg(&m).arg("-o").arg(d.join("digits.o")).args(["--emit", kinds]).args(target)));
    };
    emit("obj,sizes");
    let text = std::fs::read_to_string(d.join("digits.sizes.txt")).expect("the text");
    // Rows: how deep, what, bytes.
    let rows: Vec<(usize, String, u64)> = text
        .lines()
        .filter_map(|l| {
            let n = l.get(40..)?.split_whitespace().next()?.parse().ok()?;
            Some((l.len() - l.trim_start().len(), l[..40].trim().to_owned(), n))
        })
        .collect();
    let of = |what: &str| rows.iter().find(|r| r.1 == what).unwrap_or_else(|| panic!("no {what}: {text}")).2;
    let parts = |what: &str| -> u64 {
        let at = rows.iter().position(|r| r.1 == what).expect("a row");
        // Deeper rows are about some of the bytes of these.
        rows[at + 1..].iter().take_while(|r| r.0 > 0).filter(|r| r.0 == 2).map(|r| r.2).sum()
    };
    // But for the section of the weights: its header, and what aligns it.
    let file = std::fs::metadata(d.join("digits.o")).expect("the object").len();
    assert!(of("object").abs_diff(file) <= 4096, "{file} {text}");
    assert_eq!(of("code"), parts("code"), "{text}");
    // Constants are aligned.
    assert!((of("weights") - 64 * 40..=of("weights")).contains(&parts("weights")), "{text}");
    let known =
        ["weights", "code", "description of the interface", "unwind information", "debug information"];
    let sum: u64 = known.iter().map(|w| of(w)).sum();
    // What is left are symbols, relocations and headers.
    assert!(sum < of("object") && sum > of("object") / 3, "{text}");
}

#[test]
fn inspect_tells_what_is_in_a_model() {
    let d = scratch("inspect");
    let m = model(&d, TINY);
    let text = stdout(&succeeds(run(onnxc().arg("inspect").arg(&m).args(["--size", "N=5"]))));
    for part in
        ["x  float[N, 4]", "dimensions\n  N  from 0", "2 nodes", "1  MatMul 13", "12 elements", "at N=5"]
    {
        assert!(text.contains(part), "no {part:?}: {text}");
    }
    let o = succeeds(run(onnxc().arg("inspect").arg(&m).args(["--size", "N=5", "--json", "--dim", "N<=8"])));
    let v: serde_json::Value = serde_json::from_slice(&o.stdout).expect("one JSON object");
    assert_eq!(
        (&v["operators"][0]["operator"], &v["operators"][0]["nodes"], &v["dimensions"][0]["max"]),
        (&serde_json::json!("MatMul"), &serde_json::json!(1), &serde_json::json!(8)),
        "{v}"
    );
    assert_eq!(
        (&v["constants"][0]["elements"], &v["constants"][0]["bytes"]),
        (&serde_json::json!(12), &serde_json::json!(48)),
        "{v}"
    );
    // Two for each of 60 multiply-adds, and what became of the Relu.
    assert!(v["flops"].as_f64().is_some_and(|f| (120.0..=160.0).contains(&f)), "{v}");
}

#[test]
fn dot_is_what_graphviz_reads() {
    let d = scratch("dot");
    let m = model(
        &d,
        "g (bool c, float[2] x) => (float[2] y) <float[2] w = {1, 2}> {
           a = Add (x, w)
           y = If (c) <then_branch = t () => (p) { p = Relu (a) }, else_branch = e () => (q) { q = Neg (a) }> }",
    );
    let text = stdout(&succeeds(run(onnxc().arg(&m).args(["--emit", "dot", "-o", "-"]))));
    assert!(
        text.starts_with("digraph model {") && text.matches('{').count() == text.matches('}').count(),
        "{text}"
    );
    for part in ["label=\"Add\\nw float[2]\"", "cluster_", "label=\"then_branch\"", "a\\nfloat[2]"] {
        assert!(text.contains(part), "no {part}: {text}");
    }
    if let Ok(o) = Command::new("dot")
        .arg("-Tsvg")
        .arg("-o")
        .arg(d.join("g.svg"))
        .stdin(std::process::Stdio::piped())
        .spawn()
        .and_then(|mut c| {
            use std::io::Write;
            c.stdin.take().expect("stdin").write_all(text.as_bytes())?;
            c.wait()
        })
    {
        assert!(o.success(), "{text}");
    }
}

const RUST_PROGRAM: &str = r#"
mod net { include!("net.rs"); }
use net::{Exec, NODES, Status, Workspace, X_LEN, Y_LEN, infer, infer_exec};
use std::sync::atomic::{AtomicUsize, Ordering};

fn main() {
    let (x, mut y, mut serial) = ([0.5f32; X_LEN], [0.0; Y_LEN], [0.0; Y_LEN]);
    let mut w = Workspace::new();
    infer(&x, &mut serial, &mut w).expect("it runs");
    // Threads of the application.
    let tasks = AtomicUsize::new(0);
    let threads = |n: usize, run: &(dyn Fn(usize) + Sync)| {
        tasks.fetch_add(n, Ordering::Relaxed);
        std::thread::scope(|s| (0..n).for_each(|k| drop(s.spawn(move || run(k)))));
    };
    let mut seen = vec![];
    let mut told = |node: u32, end: bool| {
        seen.push((NODES[node as usize], end));
        true
    };
    infer_exec(&x, &mut y, &mut w, &mut Exec { parallel_for: Some(&threads), max_tasks: 4, on_node: Some(&mut told) }).expect("it runs");
    assert!(y == serial && tasks.load(Ordering::Relaxed) >= 2);
    assert!(seen.contains(&(("product", "MatMul"), false)) && seen.contains(&(("product", "MatMul"), true)), "{seen:?}");
    // Threads that leave tasks out, and run one twice, do no harm.
    y = [0.0; Y_LEN];
    let odd = |_: usize, run: &(dyn Fn(usize) + Sync)| { run(1); run(1); run(1000); };
    infer_exec(&x, &mut y, &mut w, &mut Exec { parallel_for: Some(&odd), ..Exec::default() }).expect("it runs");
    assert!(y == serial);
    let mut stop = |_: u32, _: bool| false;
    let e = infer_exec(&x, &mut y, &mut w, &mut Exec { on_node: Some(&mut stop), ..Exec::default() }).expect_err("it stops");
    assert_eq!(e.status(), Status::Cancelled);
    println!("{e}");
}
"#;

#[test]
fn rust_modules_take_threads_and_callbacks() {
    let d = scratch("rustexec");
    let rustc = std::env::var("RUSTC").unwrap_or("rustc".into());
    let m = model(
        &d,
        "net (float[256, 256] x) => (float[256, 256] y) <int64[2] s = {256, 256}> { w = ConstantOfShape <value = float[1] {0.25}> (s) [product] y = MatMul (x, w) }",
    );
    succeeds(run(onnxc().arg(&m).arg("-o").arg(d.join("net.o")).args(["--emit", "obj,rust", "--trace"])));
    std::fs::write(d.join("main.rs"), RUST_PROGRAM).expect("program");
    let built = Command::new(&rustc)
        .current_dir(&d)
        .args(["--edition", "2024", "-D", "warnings", "main.rs", "-o", "program", "-C", "link-arg=net.o"])
        .output();
    let Ok(built) = built else {
        eprintln!("skipped: rustc does not start");
        return;
    };
    assert!(built.status.success(), "{}", stderr(&built));
    let o = succeeds(run(&mut Command::new(d.join("program"))));
    assert_eq!(stdout(&o).trim(), "MatMul \"product\": on_node stopped the call");
}

#[test]
fn callers_with_half_an_exec_are_refused() {
    let d = scratch("abi");
    let m = model(&d, "net (float[2] x) => (float[2] y) { y = Relu (x) }");
    succeeds(run(onnxc().arg(&m).arg("-o").arg(d.join("net.o"))));
    let program = "#include \"net.h\"\n#include <stdio.h>\nint main(void) {\n  float x[2] = {1, -1}, y[2];\n  onnxc_exec exec = {0};\n  onnxc_fault fault;\n  exec.fault = &fault;\n  exec.struct_size = 4;\n  printf(\"%d\", (int)net_infer_exec(x, y, NULL, &exec));\n  exec.struct_size = sizeof exec;\n  printf(\" %d\\n\", (int)net_infer_exec(x, y, NULL, &exec));\n  return 0;\n}\n";
    std::fs::write(d.join("main.c"), program).expect("program");
    let Ok(built) = Command::new(std::env::var("CC").unwrap_or("cc".into()))
        .current_dir(&d)
        .args(["-std=c99", "main.c", "net.o", "-o", "program"])
        .output()
    else {
        eprintln!("skipped: cc is not installed");
        return;
    };
    assert!(built.status.success(), "{}", stderr(&built));
    assert_eq!(stdout(&run(&mut Command::new(d.join("program")))), "9 0\n");
}

#[test]
fn completions_and_man_pages_know_the_flags() {
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let text = stdout(&succeeds(run(onnxc().args(["completions", shell]))));
        assert!(text.contains("per-node") && text.contains("emit"), "{shell}: {text}");
    }
    let d = scratch("man");
    succeeds(run(onnxc().arg("man").arg(&d)));
    let page = std::fs::read_to_string(d.join("onnxc-verify.1")).expect("a page");
    assert!(d.join("onnxc.1").exists() && page.contains("per\\-node"), "{page}");
}

#[test]
fn pictures_are_inputs() {
    let d = scratch("pictures");
    // Two pixels: red and white.
    std::fs::write(d.join("p.ppm"), b"P6 2 1 255\n\xff\0\0\xff\xff\xff").expect("a picture");
    let values = |text: &str, input: &str| -> (Vec<f64>, Vec<i64>) {
        let m = model(&d, text);
        succeeds(run(onnxc()
            .current_dir(&d)
            .arg("run")
            .arg(&m)
            .args(["--input", input, "--output", "y=y.npy"])));
        let y = arrays::read(&d.join("y.npy")).expect("an array");
        (y.to_f64s(), y.dims)
    };
    let planes = (vec![1.0, 1.0, 0.0, 1.0, 0.0, 1.0], vec![1, 3, 1, 2]);
    assert_eq!(
        values("g (float[N, 3, H, W] x) => (float[N, 3, H, W] y) { y = Identity (x) }", "x=p.ppm"),
        planes
    );
    let pixels = (vec![255.0, 0.0, 0.0, 255.0, 255.0, 255.0], vec![1, 1, 2, 3]);
    assert_eq!(
        values("g (uint8[N, H, W, 3] x) => (uint8[N, H, W, 3] y) { y = Identity (x) }", "x=p.ppm"),
        pixels
    );
    let small = (vec![1.0, 0.5, 0.5], vec![3, 1, 1]);
    assert_eq!(values("g (float[3, 1, 1] x) => (float[3, 1, 1] y) { y = Identity (x) }", "x=p.ppm"), small);
    let file = values("g (uint8[N] x) => (uint8[N] y) { y = Identity (x) }", "x=p.ppm");
    assert_eq!((file.1, file.0[0]), (vec![17], f64::from(b'P')));
    let m = model(&d, "g (float[2, 2] x) => (float[2, 2] y) { y = Identity (x) }");
    for (args, says) in [
        (["--input", "x=p.ppm"], "[1, 3, H, W]"),
        (["--input", "q=p.ppm"], "no tensor \"q\""),
        (["--output", "y=y.png"], "only inputs"),
    ] {
        let o = run(onnxc().current_dir(&d).arg("run").arg(&m).args(["--random", "1"]).args(args));
        assert!(!o.status.success() && stderr(&o).contains(says), "{args:?}: {}", stderr(&o));
    }
}
