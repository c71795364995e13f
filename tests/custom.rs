//! Custom operators: the example of docs/custom-operators.md in C and Rust, calls through every target that can
//! run here, failures, traces, and models in this process.

use process::{blocks, onnxc, output, page, run, scratch, starts};
use std::path::PathBuf;
use std::process::Command;

#[path = "support/process.rs"]
mod process;

const STRICT: &[&str] =
    &["-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Wshadow", "-Werror"];
const FLAG: &[&str] = &["--custom", "com.example:SignedPower=signed_power"];

fn compiler() -> String {
    std::env::var("CC").unwrap_or_else(|_| "cc".into())
}

/// The files of the page's example.
fn example(name: &str) -> PathBuf {
    let d = scratch("custom", name);
    let page = page("docs/custom-operators.md");
    let c = blocks(&page, "c");
    for (file, text) in [
        ("net.onnx", &blocks(&page, "text")[0]),
        ("power.c", &c[0]),
        ("main.c", &c[1]),
        ("main.rs", &blocks(&page, "rust")[0]),
    ] {
        std::fs::write(d.join(file), text).expect("a file");
    }
    d
}

const PRINTED: &str = "1.000 1.414 1.732\n2.646 2.828 3.000\n";

#[test]
fn the_example_in_c_on_every_machine_that_runs_here() {
    let targets: [(&[&str], String, Option<&str>); 4] = [
        (&[], compiler(), None),
        (&["--cpu", "native", "--weights", "file"], compiler(), None),
        (&["--target", "aarch64-unknown-linux-gnu"], "aarch64-linux-gnu-gcc".into(), Some("qemu-aarch64")),
        (&["--target", "riscv64gc-unknown-linux-gnu"], "riscv64-linux-gnu-gcc".into(), Some("qemu-riscv64")),
    ];
    for (k, (flags, cc, emulator)) in targets.into_iter().enumerate() {
        if !starts(&cc) || emulator.is_some_and(|e| !starts(e)) {
            continue;
        }
        let d = example(&format!("c-{k}"));
        run(onnxc(&d).args(["net.onnx", "-o", "net.o"]).args(FLAG).args(flags));
        if flags.contains(&"file") {
            let text = std::fs::read_to_string(d.join("main.c")).expect("the program");
            let read = "  FILE *f = fopen(\"net.weights\", \"rb\");\n  if (!f || !fread(weights, 1, sizeof weights, f)) return 1;\n";
            let text = text
                .replace(
                    "int main(void) {\n",
                    "static ONNXC_ALIGNAS(64) unsigned char weights[1 << 16];\nint main(void) {\n",
                )
                .replace("  char text[256];\n", &format!("  char text[256];\n{read}"))
                .replace("y, workspace, &exec", "y, weights, workspace, &exec")
                .replace("  int32_t status;\n", "")
                .replace("  status = net", "  int32_t status = net");
            std::fs::write(d.join("main.c"), text).expect("the program");
        }
        let linked = if emulator.is_some() { &["-static"][..] } else { &[] };
        run(Command::new(&cc)
            .current_dir(&d)
            .args(STRICT)
            .args(["main.c", "power.c", "net.o", "-o", "net", "-lm"])
            .args(linked));
        let mut program = match emulator {
            Some(e) => Command::new(e),
            None => Command::new(d.join("net")),
        };
        let emulated = emulator.map(|_| d.join("net"));
        assert_eq!(run(program.current_dir(&d).args(emulated)), PRINTED, "{flags:?}");
    }
}

#[test]
fn the_example_in_rust() {
    let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".into());
    if !starts(&rustc) {
        return;
    }
    let d = example("rust");
    run(onnxc(&d).args(["net.onnx", "-o", "net.o", "--emit", "obj,rust"]).args(FLAG));
    let build = ["--edition", "2024", "-D", "warnings", "main.rs", "-o", "net", "-C", "link-arg=net.o"];
    run(Command::new(&rustc).current_dir(&d).args(build));
    let text = run(&mut Command::new(d.join("net")));
    assert_eq!(text, "[1.000, 1.414, 1.732, 2.646, 2.828, 3.000]\n");
}

/// Every kind of attribute, operands that are left out, several nodes, a failure.
const MODEL: &str = r#"<ir_version: 8, opset_import: ["" : 17, "com.example" : 1]>
net (float[N, 8, 6, 6] x, int64[K] k) => (float[N, 8, 6, 6] y, float[N, 8, 6, 6] z, float[N, 8, 6, 6] v)
<float[8, 8, 3, 3] w = {WEIGHTS}, float[N, 8, 6, 6] a, int64[K] b, float[N, 8, 6, 6] u>
{
  c = Conv <pads = [1, 1, 1, 1]> (x, w)
  [first] a, , b = com.example.Look <alpha = 0.5, steps = -3, mode = "it's", list = [1.5, 2.5], axes = [4, 5, 6], words = ["p", "qr"], none: ints = []> (c, , k)
  [second] u = com.example.Same (a)
  r = Relu (u)
  y = Conv <pads = [1, 1, 1, 1]> (r, w)
  s = ReduceSum <keepdims = 0> (b)
  f = Cast <to = 1> (s)
  z = Add (y, f)
  v = com.example.Same (x)
}
"#;

const FUNCTIONS: &str = r#"
#include <stdio.h>
#include <string.h>
#include "net.h"
static int32_t result;
int32_t look(const onnxc_custom *call) {
  const onnxc_attribute *list = onnxc_attribute_named(call, "list"), *axes = onnxc_attribute_named(call, "axes"),
                        *words = onnxc_attribute_named(call, "words"), *mode = onnxc_attribute_named(call, "mode");
  const onnxc_array *in = call->inputs, *out = call->outputs;
  int64_t k, n = onnxc_count(&in[0]);
  printf("%s \"%s\" %u %u %u %d\n", call->op, call->node, call->n_inputs, call->n_outputs, call->n_attributes,
         call->struct_size == sizeof *call);
  printf("%g %lld %g\n", (double)onnxc_float(call, "alpha", 9), (long long)onnxc_int(call, "steps", 9), (double)onnxc_float(call, "steps", 9));
  if (!list || list->len != 2 || !axes || axes->len != 3 || !words || words->len != 2 || !mode || onnxc_attribute_named(call, "lis")) return 77;
  printf("%g %lld %.*s %.*s\n", (double)list->floats[1], (long long)axes->ints[2], (int)words->strings[1].len, words->strings[1].data,
         (int)mode->strings[0].len, mode->strings[0].data);
  printf("%d %d %d | %d %d %d | %lld %lld\n", in[0].dtype, in[1].dtype, in[2].dtype, out[0].dtype, out[1].dtype, out[2].dtype,
         (long long)in[0].dims[0], (long long)in[2].dims[0]);
  for (k = 0; k < n; k++) ((float *)out[0].data)[k] = ((const float *)in[0].data)[k] * 2;
  for (k = 0; k < onnxc_count(&in[2]); k++) ((int64_t *)out[2].data)[k] = ((const int64_t *)in[2].data)[k] + 1;
  return call->exec && call->exec->user ? *(const int32_t *)call->exec->user : result;
}
int32_t same(const onnxc_custom *call) {
  memcpy(call->outputs[0].data, call->inputs[0].data, sizeof(float) * (size_t)onnxc_count(&call->inputs[0]));
  return 0;
}
"#;

const CALLS: &str = r#"
#include <stdio.h>
#include "net.h"
static ONNXC_ALIGNAS(64) unsigned char workspace[1 << 20];
static int32_t told(void *user, uint32_t node, int32_t end) {
  printf("%s%s ", end ? "/" : "", net_model.nodes[node].name);
  return user == NULL;
}
int main(void) {
  static float x[576], y[576], z[576], v[576];
  const int64_t k[2] = {10, 20};
  const int32_t results[3] = {0, 5, 4711};
  int i;
  for (i = 0; i < 576; i++) x[i] = (float)(i % 7) - 3;
  for (i = 0; i < 3; i++) {
    int32_t user = results[i], status;
    onnxc_fault fault = {0};
    onnxc_exec exec = {0};
    char text[256] = "";
    exec.struct_size = sizeof exec;
    exec.user = &user;
    exec.fault = &fault;
    exec.on_node = i ? NULL : told;
    status = net_infer_exec(2, 2, x, k, y, z, v, workspace, &exec);
    if (status) onnxc_fault_string(&net_model, &fault, text, sizeof text);
    printf("\n%d %s\n", status, text);
    if (!i) printf("%g %g %g\n", (double)(z[5] - y[5]), (double)v[9], (double)x[9]);
  }
  printf("%d\n", net_infer(0, 0, NULL, NULL, NULL, NULL, NULL, workspace));
  return 0;
}
"#;

fn weights() -> String {
    (0..576).map(|i| format!("{}", (i * 37 % 19) as f32 / 19.0 - 0.5)).collect::<Vec<_>>().join(", ")
}

#[test]
fn functions_get_operands_attributes_and_names() {
    let cc = compiler();
    if !starts(&cc) {
        return;
    }
    let d = scratch("custom", "calls");
    let model = MODEL.replace("WEIGHTS", &weights());
    for (file, text) in [("net.onnx", model.as_str()), ("functions.c", FUNCTIONS), ("main.c", CALLS)] {
        std::fs::write(d.join(file), text).expect("a file");
    }
    let flags = ["--custom", "com.example:Look=look", "--custom", "com.example:Same=same,like=0", "--trace"];
    run(onnxc(&d).args(["net.onnx", "-o", "net.o"]).args(flags));
    run(Command::new(&cc).current_dir(&d).args(STRICT).args([
        "main.c",
        "functions.c",
        "net.o",
        "-o",
        "net",
        "-lm",
    ]));
    let text = run(&mut Command::new(d.join("net")));
    let looked = "com.example.Look \"first\" 3 3 7 1\n0.5 -3 9\n2.5 6 qr it's\n1 0 7 | 1 0 7 | 2 2\n";
    assert!(text.matches(looked).count() == 3, "{text}");
    assert!(text.contains("first ") && text.contains("/first second /second"), "{text}");
    assert!(text.contains("\n0 \n32 -1 -1\n"), "{text}");
    assert!(text.contains("\n5 com.example.Look \"first\": look returned 5\n"), "{text}");
    assert!(text.contains("\n6 com.example.Look \"first\": look returned 4711\n"), "{text}");
    assert!(text.contains("| 0 0\n0\n") && text.ends_with("\n0\n"), "{text}");
    // Without the functions the program does not link, and only for want of them.
    let o = output(Command::new(&cc).current_dir(&d).args(["main.c", "net.o", "-o", "none", "-lm"]));
    let errors = String::from_utf8_lossy(&o.stderr).into_owned();
    assert!(!o.status.success() && errors.contains("look") && errors.contains("same"), "{errors}");
}

#[test]
fn models_in_this_process_call_a_library() {
    let cc = compiler();
    if !starts(&cc) || !cfg!(unix) {
        return;
    }
    let d = example("library");
    run(onnxc(&d).args(["net.onnx", "-o", "net.o"]).args(FLAG));
    run(Command::new(&cc).current_dir(&d).args(["-shared", "-fPIC", "power.c", "-o", "power.so", "-lm"]));
    let with = ["--custom-library", "./power.so"];
    let x: Vec<u8> =
        [1.0f32, 0.0, 0.0, 0.0, -1.0, 2.0, 0.0, 0.0].iter().flat_map(|v| v.to_le_bytes()).collect();
    let x = onnxc::arrays::Array {
        name: "x".into(),
        ty: onnxc::tensor::ElemType::F32,
        dims: vec![2, 4],
        data: x,
    };
    onnxc::arrays::write_all(&d.join("x.npz"), &[&x]).expect("an array");
    let text = run(onnxc(&d).args(["run", "net.onnx", "--input", "x.npz"]).args(FLAG).args(with));
    assert!(text.contains("1.414214") && text.contains("2.645751"), "{text}");
    let text =
        run(onnxc(&d).args(["bench", "net.onnx", "--seconds", "0.01", "--per-node"]).args(FLAG).args(with));
    assert!(text.contains("per call") && text.contains("no times of kernels"), "{text}");
    run(onnxc(&d).args(["report", "net.onnx", "-o", "r.html", "--seconds", "0.01"]).args(FLAG).args(with));
    assert!(run(onnxc(&d).args(["inspect", "net.onnx"]).args(FLAG)).contains("SignedPower"));
    run(onnxc(&d).args(["check", "net.onnx"]).args(FLAG));
    let refused = |c: &mut Command, code: i32| {
        let o = output(c);
        let text = String::from_utf8_lossy(&o.stderr).into_owned();
        assert_eq!(o.status.code(), Some(code), "{c:?}: {text}");
        text
    };
    let text = refused(onnxc(&d).args(["run", "net.onnx", "--random", "1"]).args(FLAG), 2);
    assert!(text.contains("signed_power") && text.contains("--custom-library"), "{text}");
    let text = refused(
        onnxc(&d)
            .args(["run", "net.onnx", "--random", "1", "--custom", "com.example:SignedPower=other"])
            .args(with),
        2,
    );
    assert!(text.contains("there is no function other"), "{text}");
    refused(onnxc(&d).args(["run", "net.onnx", "--custom-library", "none.so"]).args(FLAG), 3);
    for (flag, why) in [
        ("com.example:SignedPower", "expected DOMAIN:OP=SYMBOL"),
        ("com.example:SignedPower=f,like=x", "expected DOMAIN:OP=SYMBOL"),
        ("com.example:SignedPower=a-b", "no identifier"),
        ("com.example:SignedPower=pow", "choose another name"),
    ] {
        let text = refused(onnxc(&d).args(["net.onnx", "-o", "no.o", "--custom", flag]), 2);
        assert!(text.contains(why), "{text}");
    }
    let strict = ["net.onnx", "-o", "no.o", "--strict", "--custom", "com.example:Other=other"];
    let text = refused(onnxc(&d).args(strict).args(FLAG), 2);
    assert!(text.contains("--custom has no effect"), "{text}");
}
