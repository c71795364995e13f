//! `onnxc bench`: times of a model, or limits of the machine.

use super::{given_inputs, runner, source};
use crate::bench;
use crate::cli::BenchArgs;
use crate::diag::Result;
use crate::options::Options;
use crate::target::Target;

/// Runs the command.
pub fn bench(a: &BenchArgs) -> Result<()> {
    let show =
        |text: String, json: serde_json::Value| if a.json { println!("{json}") } else { print!("{text}") };
    let Some(model) = &a.model else {
        let width =
            Target::new(None, Some(&a.cpu))?.levels.iter().map(|l| l.facts.caps.bits).max().unwrap_or(0);
        let m = bench::Machine::measure(width, a.threads());
        show(bench::print::machine(&m), bench::print::machine_json(&m));
        return Ok(());
    };
    let mut r = runner(
        &source(model)?,
        &a.common,
        Options { cpu: Some(a.cpu.clone()), opt: a.opt(), ..Options::default() },
        a.custom_library.as_deref(),
    )?;
    r.choose(&a.sizes)?;
    let settings = bench::Settings {
        seconds: a.seconds,
        threads: a.threads(),
        per_node: a.per_node,
        sizes: a.sizes.clone(),
        seed: a.seed,
    };
    let report = bench::run(&r, given_inputs(&r, &a.inputs)?, &settings)?;
    show(bench::print::text(&report), bench::print::json(&report));
    Ok(())
}
