//! `onnxc report`: an HTML page about a model.

use super::{given_inputs, runner, source};
use crate::bench;
use crate::cli::ReportArgs;
use crate::diag::{Error, Failure, Result, codes};
use crate::options::Options;
use crate::random;
use crate::report;
use std::path::{Path, PathBuf};

/// Runs the command.
pub fn report(a: &ReportArgs) -> Result<()> {
    let src = source(&a.model)?;
    let stem = a.model.file_stem().map_or("model".into(), |s| s.to_string_lossy().replace('-', "model"));
    let output = a.output.clone().unwrap_or_else(|| PathBuf::from(format!("{stem}.report.html")));
    if output.canonicalize().ok().is_some_and(|o| a.model.canonicalize().ok() == Some(o)) {
        return Error::new(codes::OPTION, format!("the output \"{}\" is the model itself", output.display()))
            .help("choose another name with -o")
            .fail();
    }
    let mut r = runner(
        &src,
        &a.common,
        Options { cpu: Some(a.cpu.clone()), ..Options::default() },
        a.custom_library.as_deref(),
    )?;
    r.choose(&a.sizes)?;
    let c = r.compiled();
    let settings = bench::Settings {
        seconds: a.seconds,
        threads: crate::cli::library::threads(a.threads),
        per_node: true,
        sizes: a.sizes.clone(),
        seed: a.seed,
    };
    let (measured, sizes) = if a.no_run {
        (None, random::sizes(&c.interface, &random::named_sizes(&c.interface, &a.sizes)?))
    } else {
        // The page shows the sizes of the inputs that are measured.
        let inputs = r.fill(given_inputs(&r, &a.inputs)?, &a.sizes, a.seed)?;
        let sizes = r.sizes(&r.order_inputs(inputs.clone())?)?;
        (Some(bench::run(&r, inputs, &settings)?), sizes)
    };
    let data = report::Data {
        name: src.name.clone(),
        compiled: c,
        module: r.module(),
        sizes,
        bench: measured.as_ref(),
    };
    let page = report::html(&data);
    if output == Path::new("-") {
        print!("{page}");
        return Ok(());
    }
    std::fs::write(&output, page).map_err(|e| Failure::Io(output.display().to_string(), e.to_string()))?;
    println!("wrote {}", output.display());
    Ok(())
}
