//! No model file, however broken, makes the compiler panic: real models with random damage go through the whole
//! pipeline, up to placed loop nests. What comes out is a module or a list of findings.

use onnxc::diag::Failure;
use onnxc::onnx::Source;
use onnxc::options::Options;
use onnxc::pipeline;
use std::path::Path;

struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
    fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }
}

/// Flips, overwrites, cuts, repeats; mostly in the part that is structure, not weights.
fn damage(bytes: &[u8], rng: &mut Rng) -> Vec<u8> {
    let mut b = bytes.to_vec();
    for _ in 0..1 + rng.below(6) {
        let at = rng.below(b.len());
        match rng.below(8) {
            0 => b.truncate(at),
            1 => b[at] = 0xff,
            2 => b[at] = 0,
            3 => {
                let n = rng.below(16).min(b.len() - at);
                b.drain(at..at + n);
            }
            4 => {
                let part: Vec<u8> = b[at..(at + 1 + rng.below(40)).min(b.len())].to_vec();
                let to = rng.below(b.len());
                b.splice(to..to, part);
            }
            5 => b[at] = b[at].wrapping_add(1),
            _ => b[at] ^= 1 << rng.below(8),
        }
        if b.is_empty() {
            b.push(8);
        }
    }
    b
}

fn try_all(name: &str, bytes: &[u8], rounds: usize) {
    let mut rng = Rng(0x9e37_79b9_7f4a_7c15 ^ bytes.len() as u64);
    for round in 0..rounds {
        let bytes = damage(bytes, &mut rng);
        let source = Source { name: format!("{name}#{round}"), bytes: bytes.clone().into(), folder: None };
        let r = std::panic::catch_unwind(|| pipeline::run(&source, &Options { verify: true, stop_after: Some("place_memory".into()), ..Options::default() }).map(|_| ()));
        let problem = match r {
            Err(_) => "panic".to_owned(),
            Ok(Err(Failure::Bug(b))) => format!("{}: {}", b.stage, b.message),
            Ok(_) => continue,
        };
        let dump = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-{round}.onnx", name.replace('/', "_")));
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
    for m in ["shapes/attention_heads", "fusion/conv_bn_relu_add", "import/functions", "import/constants", "ops/pool_and_reduce"] {
        try_all(m, &std::fs::read(root.join(m).with_extension("onnxtxt")).expect("case"), 400);
    }
}
