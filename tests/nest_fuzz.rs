//! Random loop nests: the interpreter on what was built, the interpreter after all nest passes, and native
//! code must agree - integers exactly, floats within rounding.
//!
//! ```text
//! ONNXC_NEST_SEEDS=100..5000   other seeds (or a number: that seed only)
//! ONNXC_NEST_TRACE=1           prints each seed before it runs, to find one that crashes
//! ONNXC_MODELS=folder          also runs mlp_tiny.onnx and mnist_cnn.onnx of this folder
//! ```
//!
//! A seed that fails is cut to its shortest failing beginning and printed as a module.

#[path = "nest_fuzz/check.rs"]
mod check;
#[path = "nest_fuzz/contractions.rs"]
mod contractions;
#[path = "nest_fuzz/exprs.rs"]
mod exprs;
#[path = "nest_fuzz/modules.rs"]
mod modules;
#[path = "nest_fuzz/operations.rs"]
mod operations;
#[path = "nest_fuzz/seeds.rs"]
mod seeds;
#[path = "nest_fuzz/tiles.rs"]
mod tiles;

use check::compare;
use modules::generate;
use onnxc::nest::Buf;
use onnxc::nest::interp::{self, Outcome, Stop};
use onnxc::nest::print::print;
use onnxc::onnx::Source;
use onnxc::options::{OptLevel, Options};
use onnxc::pipeline::{self, Stopped};
use onnxc::sym::Sym;
use seeds::{check_all, check_seed, guarded, native, variants};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Steps of the longest module.
const STEPS: usize = 6;
/// Seeds without an environment variable.
const SEEDS: u64 = 600;
fn seeds() -> std::ops::Range<u64> {
    let text = std::env::var("ONNXC_NEST_SEEDS").unwrap_or_default();
    match text.split_once("..") {
        Some((a, b)) => a.parse().unwrap_or(0)..b.parse().unwrap_or(SEEDS),
        None => text.parse().map_or(0..SEEDS, |s| s..s + 1),
    }
}

#[test]
fn passes_and_code_keep_the_meaning() {
    let seeds = seeds();
    let trace = std::env::var_os("ONNXC_NEST_TRACE").is_some();
    let next = AtomicU64::new(seeds.start);
    let failures = Mutex::new(vec![]);
    std::thread::scope(|s| {
        for _ in 0..std::thread::available_parallelism().map_or(2, |n| n.get()) {
            s.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end {
                        return;
                    }
                    if trace {
                        eprintln!("seed {seed}");
                    }
                    let steps = 1 + (seed as usize) % STEPS;
                    if check_seed(seed, steps).is_ok() {
                        continue;
                    }
                    // The shortest beginning that fails.
                    let short = (1..=steps).find_map(|n| check_seed(seed, n).err().map(|w| (n, w)));
                    if let (Some((n, w)), Ok(mut f)) = (short, failures.lock()) {
                        f.push((
                            seed,
                            format!("seed {seed}, {n} of {steps} steps: {}\n{}", w.what, w.module),
                        ));
                    }
                }
            });
        }
    });
    let mut failures = failures.into_inner().expect("no thread panics while it holds the lock");
    failures.sort();
    for (_, text) in &failures {
        eprintln!("==== {text}");
    }
    assert!(
        failures.is_empty(),
        "{} of {} seeds fail: {:?}",
        failures.len(),
        seeds.end - seeds.start,
        failures.iter().map(|f| f.0).collect::<Vec<_>>()
    );
}

#[test]
fn the_interpreter_refuses_wrong_input() {
    let g = (0..).map(|s| generate(s, 3)).find(|g| !g.data.is_empty()).expect("some module has inputs");
    let short: Vec<&[u8]> = g.data.iter().map(|_| &[][..]).collect();
    assert!(matches!(interp::run(&g.m, &g.params, &[]), Err(Stop::Message(_))));
    let long: Vec<Vec<u8>> = g.data.iter().map(|d| [d.as_slice(), &[0; 8]].concat()).collect();
    let long: Vec<&[u8]> = long.iter().map(Vec::as_slice).collect();
    assert!(interp::run(&g.m, &g.params, &long).is_err());
    if g.data.iter().any(|d| !d.is_empty()) {
        assert!(interp::run(&g.m, &g.params, &short).is_err());
    }
    let outside: Vec<(Sym, i64)> = g.params.iter().map(|(s, _)| (*s, 65)).collect();
    let inputs: Vec<&[u8]> = g.data.iter().map(Vec::as_slice).collect();
    assert_eq!(interp::run(&g.m, &outside, &inputs), Err(Stop::Status(onnxc::nest::Status::Dim)));
}

/// Every operation on the values where they go wrong, in vectors and one by one.
#[test]
fn operations_agree_on_special_values() {
    let mut wrong = vec![];
    for t in operations::tables() {
        let inputs: Vec<&[u8]> = t.data.iter().map(Vec::as_slice).collect();
        let want = interp::run(&t.m, &[], &inputs).expect("the table runs");
        for (level, target) in variants() {
            let name = format!("{level:?} {}", target.cpu());
            let mut done = t.m.clone();
            pipeline::finish(&mut done, &target, level).expect("passes");
            match guarded(|| native(&done, &target, &[], &inputs, &want)) {
                Ok(got) => wrong.extend(
                    operations::differences(&t, &want, &got).into_iter().map(|d| format!("{name}: {d}")),
                ),
                Err(e) => wrong.push(format!("{name}: {e}\n{}", print(&t.m))),
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Scheduled nests as code generation gets them.
#[test]
fn tiles_agree_with_the_interpreter() {
    let mut wrong = vec![];
    let levels = variants().into_iter().filter(|v| v.0 == OptLevel::O2);
    for (_, target) in levels {
        for c in tiles::cases(target.lowest().facts.lanes) {
            let inputs: Vec<&[u8]> = c.data.iter().map(Vec::as_slice).collect();
            let dims: Vec<(Sym, i64)> = c.m.dim_params.iter().copied().zip(c.sizes.iter().copied()).collect();
            let sizes = || {
                c.m.outputs.iter().map(|b| {
                    vec![
                        0;
                        (c.m.bufs[*b].dims.iter().map(|d| d.as_const().expect("a number")).product::<i64>()
                            * i64::from(c.m.bufs[*b].ty.bytes().expect("bytes")))
                            as usize
                    ]
                })
            };
            let got = |like: &Outcome| guarded(|| native(&c.m, &target, &dims, &inputs, like));
            let r = match interp::run(&c.m, &dims, &inputs) {
                Ok(want) => got(&want).and_then(|got| compare(&c.m, &want, &got, 1e-6)),
                Err(Stop::Status(s)) => match got(&Outcome { outputs: sizes().collect(), dims: vec![] }) {
                    Err(e) if e == format!("native code returned status {}", s as i32) => Ok(()),
                    other => Err(format!("status {s:?} expected, got {other:?}")),
                },
                Err(e) => Err(format!("interpreter: {e}")),
            };
            if let Err(e) = r {
                wrong.push(format!("{}: {}: {e}", target.cpu(), c.name));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn models_agree_with_the_interpreter() {
    let Some(folder) = std::env::var_os("ONNXC_MODELS").map(std::path::PathBuf::from) else {
        eprintln!("skipped: ONNXC_MODELS names no folder with mlp_tiny.onnx and mnist_cnn.onnx");
        return;
    };
    for name in ["mlp_tiny.onnx", "mnist_cnn.onnx"] {
        let Ok(bytes) = std::fs::read(folder.join(name)) else {
            eprintln!("skipped: {name} is not there");
            continue;
        };
        let source = Source { name: name.into(), bytes: bytes.into(), folder: Some(folder.clone()) };
        let options = Options { stop_after: Some("lower".into()), ..Options::default() };
        let m = match pipeline::run(&source, &options) {
            Ok(Stopped::Nest(m)) => *m,
            Ok(_) => panic!("{name}: the pipeline did not stop"),
            Err(e) => panic!("{name}: {e}"),
        };
        let params: Vec<(Sym, i64)> = m.dim_params.iter().map(|s| (*s, 3)).collect();
        let size = |b: &Buf| {
            m.bufs[*b]
                .dims
                .iter()
                .map(|d| d.eval(&|s| params.iter().find(|p| p.0 == s).map(|p| p.1)).expect("a size"))
                .product::<i64>()
        };
        let data: Vec<Vec<u8>> =
            m.inputs.iter().map(|b| modules::data(7, m.bufs[*b].ty, size(b) as usize)).collect();
        let inputs: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
        if let Err(w) = check_all(&m, &params, &inputs, 1e-4) {
            panic!("{name}: {}\n{}", w.what, w.module);
        }
    }
}
