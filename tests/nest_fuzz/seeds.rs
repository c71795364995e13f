//! One random module: the interpreter on what was built, the interpreter after all nest passes, and native
//! code.

use crate::check::compare;
use crate::modules::{Gen, generate};
use onnxc::codegen::interface::Interface;
use onnxc::jit::Loaded;
use onnxc::nest::Module;
use onnxc::nest::interp::{self, Outcome};
use onnxc::nest::print::print;
use onnxc::options::OptLevel;
use onnxc::pipeline;
use onnxc::sym::Sym;
use onnxc::target::{LEVELS as LEVELS_OF_CPUS, Target};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Guard bytes after each output.
const GUARD: usize = 64;
const LEVELS: [OptLevel; 3] = [OptLevel::O0, OptLevel::O1, OptLevel::O2];

/// What is tried: every optimisation level on this machine, and the highest one on the lower CPU levels that
/// it has too. A level is a schedule, and above x86-64-v2 a code generator, of its own.
pub fn variants() -> Vec<(OptLevel, Target)> {
    let host = Target::host().expect("this machine");
    let mut all: Vec<(OptLevel, Target)> = LEVELS.into_iter().map(|l| (l, host.clone())).collect();
    let lower = LEVELS_OF_CPUS
        .iter()
        .filter(|k| k.arch == std::env::consts::ARCH && k.needs > 1)
        .map(|k| Target::new(None, Some(k.name)).expect("a level"));
    all.extend(
        lower
            .filter(|t| t.lowest().runs_on(host.lowest()) && t.lowest().facts != host.lowest().facts)
            .map(|t| (OptLevel::O2, t)),
    );
    all
}

/// Runs machine code; fails if it writes beyond an output.
pub fn native(
    m: &Module,
    target: &Target,
    dims: &[(Sym, i64)],
    inputs: &[&[u8]],
    like: &Outcome,
) -> Result<Outcome, String> {
    let loaded = Loaded::for_target(m, &Interface::of_module(m), target)
        .map_err(|e| format!("code generation: {e}"))?;
    let mut outputs: Vec<Vec<u8>> = like.outputs.iter().map(|o| vec![0xab; o.len() + GUARD]).collect();
    let values: Vec<i64> = dims.iter().map(|d| d.1).collect();
    loaded
        .call(inputs, &mut outputs, &values)
        .map_err(|s| format!("native code returned status {}", s.status))?;
    for (o, want) in outputs.iter_mut().zip(&like.outputs) {
        if o.split_off(want.len()).iter().any(|b| *b != 0xab) {
            return Err("native code wrote behind an output".into());
        }
    }
    Ok(Outcome { outputs, dims: like.dims.clone() })
}

/// The fault, and the module at that point.
pub struct Wrong {
    pub what: String,
    pub module: String,
}

pub fn check_all(m: &Module, dims: &[(Sym, i64)], inputs: &[&[u8]], tolerance: f64) -> Result<(), Wrong> {
    let wrong = |what: String, m: &Module| Wrong { what, module: print(m) };
    let built = interp::run(m, dims, inputs)
        .map_err(|e| wrong(format!("interpreter on the built module: {e}"), m))?;
    for (level, target) in variants() {
        let name = format!("{level:?} {}", target.cpu());
        let mut done = m.clone();
        guarded(|| pipeline::finish(&mut done, &target, level).map_err(|e| e.to_string()))
            .map_err(|e| wrong(format!("passes at {name}: {e}"), &done))?;
        check_placed(&built, &done, &target, dims, inputs, tolerance)
            .map_err(|e| wrong(format!("{name}: {e}"), &done))?;
    }
    Ok(())
}

/// A placed module by both means.
fn check_placed(
    built: &Outcome,
    m: &Module,
    target: &Target,
    dims: &[(Sym, i64)],
    inputs: &[&[u8]],
    tolerance: f64,
) -> Result<(), String> {
    let by_interpreter =
        guarded(|| interp::run(m, dims, inputs).map_err(|e| format!("interpreter after the passes: {e}")))?;
    let by_machine = guarded(|| native(m, target, dims, inputs, built))?;
    // Whether a pass or the code generator is at fault shows which of the two is wrong.
    compare(m, built, &by_interpreter, tolerance)
        .map_err(|e| format!("interpreter after the passes: {e}"))?;
    compare(m, built, &by_machine, tolerance).map_err(|e| format!("native code: {e}"))
}

pub fn guarded<X>(f: impl FnOnce() -> Result<X, String>) -> Result<X, String> {
    catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|p| {
        let text =
            p.downcast_ref::<String>().cloned().or_else(|| p.downcast_ref::<&str>().map(|s| (*s).to_owned()));
        Err(format!("panic: {}", text.unwrap_or_default()))
    })
}

pub fn check_seed(seed: u64, steps: usize) -> Result<(), Wrong> {
    let Gen { m, params, data, coarse, .. } = generate(seed, steps);
    let inputs: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
    let tolerance = if coarse { 5e-2 } else { 1e-4 };
    check_all(&m, &params, &inputs, tolerance).map_err(|w| {
        let sizes: Vec<String> = params.iter().map(|(s, v)| format!("{}={v}", m.syms.name(*s))).collect();
        Wrong {
            what: w.what,
            module: format!(
                "with {}\n--- built\n{}--- at the failure\n{}",
                sizes.join(" "),
                print(&m),
                w.module
            ),
        }
    })
}
