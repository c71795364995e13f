//! Weights files through the C interface: files with new values for objects that were compiled before, files
//! that several models share, and files that do not fit.

use process::{onnxc, output, run, scratch, tool};
use std::path::{Path, PathBuf};
use std::process::Command;

#[path = "support/process.rs"]
mod process;

const STRICT: &[&str] =
    &["-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Wshadow", "-Werror"];

/// What a refused command says; its exit code is 1.
fn refused(c: &mut Command) -> String {
    let o = output(c);
    assert_eq!(o.status.code(), Some(1), "{c:?}: {}", String::from_utf8_lossy(&o.stderr));
    String::from_utf8_lossy(&o.stderr).into_owned()
}

/// Reads a weights file, checks it, calls the model, prints what comes of it.
const PROGRAM: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "MODEL.h"
static ONNXC_ALIGNAS(64) unsigned char weights[1 << 20];
static ONNXC_ALIGNAS(64) unsigned char workspace[MODEL_MACRO_WORKSPACE_SIZE + 64];
int main(int argc, char **argv) {
  static float x[1 * 3 * 12 * 12], y[10];
  FILE *f = fopen(argv[argc - 1], "rb");
  size_t k, size = f ? fread(weights, 1, sizeof weights, f) : 0;
  onnxc_fault fault;
  onnxc_exec exec;
  int32_t status;
  char text[512];
  if (!f) return 1;
  printf("check %d\n", MODEL_weights_check(weights, size));
  for (k = 0; k < sizeof x / sizeof *x; k++) x[k] = (float)((k * 37) % 23) / 23.0f - 0.5f;
  memset(&fault, 0, sizeof fault);
  memset(&exec, 0, sizeof exec);
  exec.struct_size = sizeof exec;
  exec.fault = &fault;
  status = MODEL_infer_exec(x, y, weights, workspace, &exec);
  if (status) onnxc_fault_string(&MODEL_model, &fault, text, sizeof text);
  printf("status %d %s\n", status, status ? text : "");
  for (k = 0; !status && k < 10; k++) printf("%a\n", (double)y[k]);
  return MODEL_weights_check(weights + 4, size) != ONNXC_E_ALIGN || MODEL_weights_check(NULL, size) != ONNXC_E_NULL;
}
"#;

/// Links an object `NAME.o` with the program.
fn program(cc: &str, dir: &Path, name: &str) -> PathBuf {
    let text = PROGRAM.replace("MODEL_MACRO", &name.to_uppercase()).replace("MODEL", name);
    std::fs::write(dir.join(format!("{name}_main.c")), text).expect("a program");
    let (main, object) = (format!("{name}_main.c"), format!("{name}.o"));
    run(Command::new(cc).current_dir(dir).args(STRICT).args([&main, &object, "-o", name, "-lm"]));
    dir.join(name)
}

/// Values of a training: at 0 those of a fresh model, whose biases are 0 and whose scales are 1.
fn values(name: &str, n: usize, training: u32) -> String {
    let fresh = |v: &str| vec![v.to_owned(); n].join(", ");
    match (name, training) {
        ("bias", 0) => return fresh("0"),
        ("scale", 0) => return fresh("1"),
        _ => {}
    }
    let seed = name.bytes().fold(training + 1, |h, b| h.wrapping_mul(31).wrapping_add(u32::from(b)));
    let value = |i: usize| {
        let v = (seed.wrapping_mul(2_654_435_761).wrapping_add(i as u32 * 40_503)) % 2001;
        format!("{}", (f64::from(v) / 1000.0 - 1.0) * if name == "scale" { 0.5 } else { 0.3 })
    };
    (0..n).map(value).collect::<Vec<_>>().join(", ")
}

/// A network with two convolutions, normalization and a head; `slope` is one number.
fn network(body: u32, head: u32, slope: &str, classes: usize) -> String {
    let body = |name: &str, kind: &str, shape: &str, n: usize| {
        format!("float[{shape}] {name} = {{{}}}", values(kind, n, body))
    };
    let head = |name: &str, kind: &str, shape: &str, n: usize| {
        format!("float[{shape}] {name} = {{{}}}", values(kind, n, head))
    };
    let constants = [
        body("w1", "w1", "16, 3, 3, 3", 432),
        body("b1", "bias", "16", 16),
        body("s1", "scale", "16", 16),
        body("o1", "bias", "16", 16),
        body("m1", "bias", "16", 16),
        format!("float[16] v1 = {{{}}}", vec!["1"; 16].join(", ")),
        body("w2", "w2", "16, 16, 3, 3", 2304),
        body("b2", "bias", "16", 16),
        head("w3", "w3", &format!("{classes}, 16"), 16 * classes),
        head("b3", "bias", &format!("{classes}"), classes),
        format!("float[1] slope = {{{slope}}}"),
    ];
    format!(
        "<ir_version: 8, opset_import: [\"\" : 17]>\nnet (float[1, 3, 12, 12] x) => (float[1, {classes}] y)\n<{}>\n{{
  a = Conv <pads = [1, 1, 1, 1]> (x, w1, b1)
  n = BatchNormalization (a, s1, o1, m1, v1)
  p = PRelu (n, slope)
  c = Conv <pads = [1, 1, 1, 1]> (p, w2, b2)
  r = Relu (c)
  g = GlobalAveragePool (r)
  f = Flatten (g)
  y = Gemm <transB = 1> (f, w3, b3)
}}\n",
        constants.join(",\n")
    )
}

fn write(dir: &Path, name: &str, text: &str) {
    std::fs::write(dir.join(name), text).expect("a model");
}

#[test]
fn new_values_fit_an_object_that_was_compiled_before() {
    let Some(cc) = tool("CC", "cc") else { return };
    for (name, flags) in [("several", &[][..]), ("one", &["--cpu", "native"]), ("plain", &["-O", "0"])] {
        let d = scratch("weights", &format!("new-{name}"));
        write(&d, "net.onnx", &network(0, 0, "0.25", 10));
        write(&d, "trained.onnx", &network(1, 2, "0.25", 10));
        run(onnxc(&d).args(["net.onnx", "-o", "net.o", "--weights", "file"]).args(flags));
        let net = program(&cc, &d, "net");
        let fresh = run(Command::new(&net).current_dir(&d).arg("net.weights"));
        assert!(fresh.starts_with("check 0\nstatus 0"), "{fresh}");
        run(onnxc(&d)
            .args(["weights", "trained.onnx", "-o", "new.weights", "--fits", "net.weights"])
            .args(flags));
        let trained = run(Command::new(&net).current_dir(&d).arg("new.weights"));
        // The same as the trained model compiled by itself.
        run(onnxc(&d).args(["trained.onnx", "-o", "own.o", "--weights", "file"]).args(flags));
        let own = program(&cc, &d, "own");
        assert_eq!(trained, run(Command::new(&own).current_dir(&d).arg("own.weights")), "{name}");
        assert_ne!(trained, fresh);
        // New files serve for the next training, and an output may replace the file that it fits.
        run(onnxc(&d)
            .args(["weights", "net.onnx", "-o", "new.weights", "--fits", "new.weights"])
            .args(flags));
        assert_eq!(run(Command::new(&net).current_dir(&d).arg("new.weights")), fresh);
    }
}

#[test]
fn weights_that_do_not_fit_are_refused_with_a_reason() {
    let d = scratch("weights", "refused");
    let network = |body, head, slope: &str, classes| {
        let text = network(body, head, slope, classes);
        text.replace("float[1, 3, 12, 12]", "float[N, 3, 12, 12]")
            .replace(&format!("float[1, {classes}] y"), &format!("float[N, {classes}] y"))
    };
    write(&d, "net.onnx", &network(0, 0, "0.25", 10));
    run(onnxc(&d).args(["net.onnx", "-o", "net.o", "--weights", "file", "--dim", "N=1"]));
    let fit = |text: &str, more: &[&str]| {
        write(&d, "other.onnx", text);
        let mut c = onnxc(&d);
        c.args(["weights", "other.onnx", "-o", "no.weights", "--fits", "net.weights"]).args(more);
        let text = refused(&mut c);
        assert!(!d.join("no.weights").exists() && text.contains("E0208"), "{text}");
        text
    };
    let n = &["--dim", "N=1"][..];
    // One number of many is part of the code.
    let text = fit(&network(1, 2, "0.5", 10), n);
    assert!(text.contains("the value of \"slope\" is part of the object's code"), "{text}");
    assert!(text.contains("0.5") && text.contains("0.25") && text.contains("keep that value"), "{text}");
    assert_eq!(text.matches("E0208").count(), 1, "{text}");
    let text = fit(&network(1, 2, "0.25", 9), n);
    assert!(text.contains("another one") && text.contains("\"w3\" float [9, 16]"), "{text}");
    let text = fit(&network(1, 2, "0.25", 10), &["--math", "strict", "--dim", "N=1"]);
    assert!(text.contains("other flags") && text.contains("--math strict"), "{text}");
    let text = fit(&network(1, 2, "0.25", 10), &[]);
    assert!(text.contains("--dim none") && text.contains("--dim N=1"), "{text}");
    let text = fit(&network(1, 2, "0.25", 10).replace("r = Relu (c)", "r = Sigmoid (c)"), n);
    assert!(text.contains("in another way") && text.contains("compile the object again"), "{text}");
    // What is no weights file, or a part of one.
    let whole = std::fs::read(d.join("net.weights")).expect("weights");
    let mut index = whole.clone();
    index.truncate(whole.len() - 2);
    let mut version = whole.clone();
    version[8] = 9;
    let mut size = whole.clone();
    size[16..24].copy_from_slice(&u64::MAX.to_le_bytes());
    for bytes in [&b"no"[..], &whole[..1023], &whole[..whole.len() / 2], &index, &version, &size] {
        std::fs::write(d.join("bad.weights"), bytes).expect("a file");
        let c = onnxc(&d)
            .args(["weights", "net.onnx", "-o", "no.weights", "--fits", "bad.weights"])
            .args(n)
            .output()
            .expect("runs");
        let text = String::from_utf8_lossy(&c.stderr).into_owned();
        assert!(c.status.code() == Some(1) && text.contains("E0207"), "{text}");
        let text = refused(onnxc(&d).args(["net.onnx", "-o", "no.o", "--weights-from", "bad.weights"]));
        assert!(text.contains("E0207") && !d.join("no.o").exists(), "{text}");
    }
    let o = output(onnxc(&d).args(["weights", "net.onnx", "-o", "n.weights", "--fits", "none.weights"]));
    assert_eq!(o.status.code(), Some(3));
    let o = output(onnxc(&d).args([
        "net.onnx",
        "-o",
        "n.o",
        "--weights",
        "embed",
        "--weights-from",
        "net.weights",
    ]));
    assert!(o.status.code() == Some(2), "{}", String::from_utf8_lossy(&o.stderr));
}

#[test]
fn calls_refuse_other_files() {
    let Some(cc) = tool("CC", "cc") else { return };
    let d = scratch("weights", "calls");
    write(&d, "net.onnx", &network(0, 0, "0.25", 10));
    write(&d, "other.onnx", &network(0, 0, "0.5", 10));
    for name in ["net", "other"] {
        run(onnxc(&d).args([&format!("{name}.onnx"), "-o", &format!("{name}.o"), "--weights", "file"]));
    }
    let net = program(&cc, &d, "net");
    let whole = std::fs::read(d.join("net.weights")).expect("weights");
    let told = |bytes: &[u8]| {
        std::fs::write(d.join("bad.weights"), bytes).expect("a file");
        run(Command::new(&net).current_dir(&d).arg("bad.weights"))
    };
    let text = told(&std::fs::read(d.join("other.weights")).expect("weights"));
    assert!(text.contains("check 7\nstatus 7 the weights are those of another model or compilation: expected \"net.weights\""), "{text}");
    let text = told(b"anything else");
    assert!(text.contains("check 7\nstatus 7 the weights are no weights file of version 1"), "{text}");
    let mut version = whole.clone();
    version[8] = 2;
    assert!(told(&version).contains("check 7\nstatus 7 the weights are no weights file of version 1"));
    let mut short = whole.clone();
    short[16..24].copy_from_slice(&64u64.to_le_bytes());
    assert!(told(&short).contains("the weights have 64 bytes: those of \"net.weights\" have "));
    // A call does not know how long a file is; the check of the header does.
    assert!(told(&whole[..whole.len() / 2]).starts_with("check 7\n"));
    assert!(told(&whole).starts_with("check 0\nstatus 0"));
}

#[test]
fn models_share_a_weights_file() {
    let Some(cc) = tool("CC", "cc") else { return };
    let d = scratch("weights", "shared");
    // Two heads of one network, before and after a training.
    let models = [("one", network(0, 0, "0.25", 10)), ("two", network(0, 3, "0.25", 7))];
    let trained = [("one2", network(1, 1, "0.25", 10)), ("two2", network(1, 5, "0.25", 7))];
    models.iter().chain(&trained).for_each(|(n, text)| write(&d, &format!("{n}.onnx"), text));
    let alone = |name: &str| {
        run(onnxc(&d).args([&format!("{name}.onnx"), "-o", &format!("alone_{name}.o"), "--weights", "file"]));
        let p = program(&cc, &d, &format!("alone_{name}"));
        run(Command::new(p).current_dir(&d).arg(format!("alone_{name}.weights")))
    };
    let wanted = ["one", "two", "one2", "two2"].map(alone);
    run(onnxc(&d).args(["one.onnx", "-o", "one.o", "--weights", "file=one.weights"]));
    run(onnxc(&d).args([
        "two.onnx",
        "-o",
        "two.o",
        "--weights",
        "file=both.weights",
        "--weights-from",
        "one.weights",
    ]));
    let size = |f: &str| d.join(f).metadata().expect("a file").len();
    let both = size("both.weights");
    assert!(both < size("one.weights") + 8000 && both > size("one.weights"), "{both}");
    let programs = ["one", "two"].map(|n| program(&cc, &d, n));
    let call = |k: usize, file: &str| run(Command::new(&programs[k]).current_dir(&d).arg(file));
    assert_eq!([call(0, "both.weights"), call(1, "both.weights")], wanted[..2]);
    assert_eq!(call(0, "one.weights"), wanted[0]);
    assert!(call(1, "one.weights").contains("check 7\nstatus 7"));
    // In one file, as often as a build does it.
    let in_place = || {
        run(onnxc(&d).args([
            "two.onnx",
            "-o",
            "two.o",
            "--weights",
            "file=in_place.weights",
            "--weights-from",
            "in_place.weights",
        ]));
        std::fs::read(d.join("in_place.weights")).expect("a file")
    };
    std::fs::copy(d.join("one.weights"), d.join("in_place.weights")).expect("a copy");
    assert_eq!(in_place(), in_place());
    // New values for both.
    run(onnxc(&d).args(["weights", "one2.onnx", "-o", "n1.weights", "--fits", "both.weights"]));
    let add = ["weights", "two2.onnx", "-o", "n2.weights", "--fits", "both.weights"];
    let text = refused(onnxc(&d).args(add));
    assert!(text.contains("\"one\", \"two\"") && text.contains("--weights-from"), "{text}");
    run(onnxc(&d).args(add).args(["--weights-from", "n1.weights"]));
    assert_eq!([call(0, "n2.weights"), call(1, "n2.weights")], wanted[2..]);
    // A model whose body has other values finds nothing to share.
    run(onnxc(&d).args(["two2.onnx", "-o", "x.o", "--weights-from", "one.weights"]));
    assert!(size("x.weights") > size("one.weights") + 10_000, "{}", size("x.weights"));
}

/// Code that makes integers of floats may rely on scales being numbers: one that is not is no value of the file.
#[test]
fn scales_that_code_relies_on_are_refused() {
    let d = scratch("weights", "scales");
    let model = |scale: &str| {
        let w = (0..24).map(|i| (i * 7 % 11 - 5).to_string()).collect::<Vec<_>>().join(", ");
        format!(
            "<ir_version: 8, opset_import: [\"\" : 17]>\nq (uint8[4, 8] x) => (uint8[4, 3] y) <int8[8, 3] w = {{{w}}}, float[3] s = {{0.1, 0.2, {scale}}}, float one = {{1}}, uint8 z = {{3}}>\n{{ i = MatMulInteger (x, w) f = Cast <to = 1> (i) g = Mul (f, s) y = QuantizeLinear (g, one, z) }}\n"
        )
    };
    for (name, scale) in [("q", "0.3"), ("other", "0.4"), ("endless", "inf")] {
        write(&d, &format!("{name}.onnx"), &model(scale));
    }
    run(onnxc(&d).args(["q.onnx", "-o", "q.o", "--weights", "file"]));
    run(onnxc(&d).args(["weights", "other.onnx", "-o", "new.weights", "--fits", "q.weights"]));
    let text =
        refused(onnxc(&d).args(["weights", "endless.onnx", "-o", "no.weights", "--fits", "q.weights"]));
    assert!(text.contains("the value of \"s\" is part of the object's code"), "{text}");
}
