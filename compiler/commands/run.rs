//! `onnxc run`: runs a model once, on arrays from files or random ones.

use super::{given_inputs, names, native, runner, source};
use crate::arrays::{self, Array, Format};
use crate::cli::RunArgs;
use crate::cli::values::ArrayFile;
use crate::diag::{Error, Result, codes};
use crate::io_descriptors;
use crate::run::Runner;
use std::path::Path;

/// Number of elements of an output that are printed.
const SHOWN: usize = 8;

/// Runs the command.
pub fn run(a: &RunArgs) -> Result<()> {
    let mut r = runner(&source(&a.model)?, &a.common, native(), a.custom_library.as_deref())?;
    r.choose(&a.sizes)?;
    check_outputs(&r, &a.outputs)?;
    let mut given = given_inputs(&r, &a.inputs)?;
    if a.random.is_some() || a.sizes.iter().any(|s| !r.is_capacity(&s.0)) {
        given = r.fill(given, &a.sizes, a.random.unwrap_or(1))?;
    }
    let outputs = r.run(&r.order_inputs(given)?)?;
    outputs.iter().for_each(|o| println!("{}", summary(o)));
    write(&r, &a.outputs, &outputs)
}

/// Reports wrong output names before the model runs.
fn check_outputs(r: &Runner, files: &[ArrayFile]) -> Result<()> {
    let outputs = &r.compiled().interface.outputs;
    for f in files {
        if arrays::format(&f.path) == Some(Format::Picture) {
            return Error::new(codes::OPTION, "--output: only inputs are pictures")
                .found_expected(f.path.display().to_string(), arrays::FORMATS)
                .fail();
        }
        let Some(name) = &f.name else { continue };
        let Some(t) = outputs.iter().find(|t| io_descriptors::belongs(t, name)) else {
            return Error::new(codes::OPTION, format!("--output: the model has no output \"{name}\""))
                .found_expected(name.clone(), names(outputs))
                .fail();
        };
        if t.described.is_some() && arrays::format(&f.path) != Some(Format::Npz) && *name == t.name {
            return Error::new(codes::OPTION, format!("--output: \"{name}\" is not one array"))
                .found_expected(
                    f.path.display().to_string(),
                    format!("an .npz file, or one of its arrays: {name}.0=FILE"),
                )
                .fail();
        }
    }
    Ok(())
}

fn write(r: &Runner, files: &[ArrayFile], outputs: &[Array]) -> Result<()> {
    let tensors = &r.compiled().interface.outputs;
    let wanted = |f: &ArrayFile| -> Vec<&Array> {
        let Some(name) = &f.name else { return outputs.iter().collect() };
        let tensor = tensors.iter().find(|t| *name == t.name || *name == t.ident);
        outputs
            .iter()
            .filter(|o| o.name == *name || tensor.is_some_and(|t| io_descriptors::belongs(t, &o.name)))
            .collect()
    };
    let mut done: Vec<&Path> = vec![];
    for f in files {
        if done.contains(&f.path.as_path()) {
            continue;
        }
        let mut list: Vec<&Array> = vec![];
        for other in files.iter().filter(|o| o.path == f.path) {
            let found = wanted(other);
            if found.is_empty() {
                let have: Vec<&str> = outputs.iter().map(|o| o.name.as_str()).collect();
                return Error::new(
                    codes::OPTION,
                    format!("--output: there is no array \"{}\"", other.name.clone().unwrap_or_default()),
                )
                .row("expected", have.join(", "))
                .fail();
            }
            list.extend(
                found.into_iter().filter(|a| !list.iter().any(|l| std::ptr::eq(*l, *a))).collect::<Vec<_>>(),
            );
        }
        arrays::write_all(&f.path, &list)?;
        done.push(&f.path);
    }
    Ok(())
}

/// Name, type, shape, minimum, maximum and the first elements.
fn summary(o: &Array) -> String {
    let more = |n: usize| if n > SHOWN { ", ..." } else { "" };
    if let Some(list) = o.to_strings() {
        let head: Vec<String> =
            list.iter().take(SHOWN).map(|s| format!("{:?}", String::from_utf8_lossy(s))).collect();
        return format!("{} : {}{:?}  [{}{}]", o.name, o.ty, o.dims, head.join(", "), more(list.len()));
    }
    let v = o.to_f64s();
    let (lo, hi) = v.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), x| (l.min(*x), h.max(*x)));
    let head: Vec<String> = v.iter().take(SHOWN).map(|x| format!("{x:.6}")).collect();
    let range = if v.is_empty() { String::new() } else { format!("  min {lo:.6} max {hi:.6}") };
    format!("{} : {}{:?}{range}  [{}{}]", o.name, o.ty, o.dims, head.join(", "), more(v.len()))
}
