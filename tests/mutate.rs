//! No model file, however broken, makes the compiler panic: real models with random damage go through the
//! whole pipeline, up to placed loop nests. What comes out is a module or a list of findings.

#[path = "../examples/fuzz/damage.rs"]
mod damage;
#[allow(dead_code)]
#[path = "nest_fuzz/exprs.rs"]
mod exprs;

use damage::damage;
use exprs::Rng;
use onnxc::diag::Failure;
use onnxc::onnx::Source;
use onnxc::options::Options;
use onnxc::pipeline;
use std::path::Path;

fn try_all(name: &str, bytes: &[u8], rounds: usize) {
    let mut rng = Rng(0x9e37_79b9_7f4a_7c15 ^ bytes.len() as u64);
    for round in 0..rounds {
        let bytes = damage(bytes, &mut rng);
        let source = Source { name: format!("{name}#{round}"), bytes: bytes.clone().into(), folder: None };
        let r = std::panic::catch_unwind(|| {
            pipeline::run(
                &source,
                &Options { verify: true, stop_after: Some("place_memory".into()), ..Options::default() },
            )
            .map(|_| ())
        });
        let problem = match r {
            Err(_) => "panic".to_owned(),
            Ok(Err(Failure::Bug(b))) => format!("{}: {}", b.stage, b.message),
            Ok(_) => continue,
        };
        let dump =
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-{round}.onnx", name.replace('/', "_")));
        std::fs::write(&dump, &bytes).expect("dump");
        panic!("{name}, round {round}: {problem} (kept as {})", dump.display());
    }
}

#[test]
fn damaged_binaries() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    for m in ["c-digits/digits.onnx", "rust-iris/iris.onnx", "cpp-batch/digits_batch.onnx"] {
        try_all(m, &std::fs::read(root.join(m)).expect("example model"), 400);
    }
}

#[test]
fn damaged_texts() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases");
    for m in [
        "shapes/attention_heads",
        "fusion/conv_bn_relu_add",
        "import/functions",
        "import/constants",
        "ops/pool_and_reduce",
    ] {
        try_all(m, &std::fs::read(root.join(m).with_extension("onnxtxt")).expect("case"), 400);
    }
}
