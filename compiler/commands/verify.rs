//! `onnxc verify`: compares outputs with saved ones.

use super::{per_node, runner, source};
use crate::arrays::{self, Array};
use crate::cli::VerifyArgs;
use crate::diag::{Error, Failure, Result, codes};
use crate::io_descriptors;
use crate::options::Options;
use crate::run::{self, Runner};
use std::path::{Path, PathBuf};

/// Runs the command.
pub fn verify(a: &VerifyArgs) -> Result<()> {
    if a.per_node && a.data.is_empty() {
        return per_node::per_node(a, None);
    }
    let r = runner(
        &source(&a.model)?,
        &a.common,
        Options { cpu: Some(a.cpu.clone()), opt: a.opt(), ..Options::default() },
        a.custom_library.as_deref(),
    )?;
    let mut sets = vec![];
    for d in &a.data {
        find_sets(d, &mut sets)?;
    }
    if sets.is_empty() {
        return Error::new(codes::RUN_INPUT, "no test data found")
            .found_expected(
                a.data.iter().map(|d| d.display().to_string()).collect::<Vec<_>>().join(", "),
                "input_0.pb and output_0.pb, or an .npz file",
            )
            .fail();
    }
    let mut errors = vec![];
    for set in sets {
        let (inputs, wants) = load_set(&set, &r)?;
        if a.per_node {
            println!("{}:", set.display());
            per_node::per_node(a, Some(inputs))?;
            continue;
        }
        if wants.is_empty() {
            let outputs = super::names(&r.compiled().interface.outputs);
            let found: Vec<&str> = inputs.iter().map(|a| a.name.as_str()).collect();
            let e = Error::new(
                codes::VERIFY_FAILED,
                format!("{}: no expected outputs: nothing was compared", set.display()),
            );
            errors.push(e.found_expected(
                if found.is_empty() { "no arrays".into() } else { found.join(", ") },
                format!("at least one of {outputs}"),
            ));
            continue;
        }
        let got = r.run(&r.order_inputs(inputs)?)?;
        for (k, want) in wants.iter().enumerate() {
            let found = got
                .iter()
                .find(|g| g.name == want.name)
                .or_else(|| if want.name.is_empty() { got.get(k) } else { None });
            let Some(g) = found else {
                errors.push(Error::new(
                    codes::VERIFY_FAILED,
                    format!("{}: the model has no output \"{}\"", set.display(), want.name),
                ));
                continue;
            };
            let c = run::compare(g, want, a.rtol, a.atol)?;
            let verdict = if c.outside == 0 { "ok" } else { "differs" };
            println!(
                "{}: {} {verdict}, largest difference {:.3e} ({:.3e} of the largest value)",
                set.display(),
                c.name,
                c.max_abs,
                c.max_rel
            );
            if c.outside > 0 {
                errors.push(
                    Error::new(
                        codes::VERIFY_FAILED,
                        format!("output \"{}\" differs from the reference", c.name),
                    )
                    .row("elements outside the tolerance", format!("{} of {}", c.outside, c.count))
                    .row("largest difference", format!("{:.6e}", c.max_abs))
                    .row("tolerance", format!("{} + {} * |reference|", a.atol, a.rtol)),
                );
            }
        }
    }
    if errors.is_empty() { Ok(()) } else { Err(Failure::Errors(errors)) }
}

fn find_sets(path: &Path, out: &mut Vec<PathBuf>) -> Result<()> {
    if path.is_file() || path.join("input_0.pb").exists() || path.join("output_0.pb").exists() {
        out.push(path.to_owned());
        return Ok(());
    }
    let list = std::fs::read_dir(path).map_err(|e| Failure::Io(path.display().to_string(), e.to_string()))?;
    let mut inner: Vec<PathBuf> =
        list.filter_map(|e| e.ok()).map(|e| e.path()).filter(|p| p.join("output_0.pb").exists()).collect();
    inner.sort();
    out.extend(inner);
    Ok(())
}

fn load_set(path: &Path, r: &Runner) -> Result<(Vec<Array>, Vec<Array>)> {
    let i = &r.compiled().interface;
    if path.is_file() {
        let all = arrays::read_npz(path)?;
        let is_input = |a: &Array| {
            i.inputs.iter().any(|t| {
                if t.described.is_some() { io_descriptors::belongs(t, &a.name) } else { t.name == a.name }
            })
        };
        return Ok(all.into_iter().partition(is_input));
    }
    let read = |prefix: &str| -> Result<Vec<Array>> {
        let mut v = vec![];
        while let p = path.join(format!("{prefix}_{}.pb", v.len()))
            && p.exists()
        {
            v.push(arrays::read(&p)?);
        }
        Ok(v)
    };
    let (mut inputs, mut outputs) = (read("input")?, read("output")?);
    // In this layout inputs are identified by position; names are often missing or different.
    inputs.iter_mut().zip(&i.inputs).for_each(|(a, t)| a.name = t.name.clone());
    outputs.iter_mut().zip(&i.outputs).for_each(|(a, t)| a.name = t.name.clone());
    Ok((inputs, outputs))
}
