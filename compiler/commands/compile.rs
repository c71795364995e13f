//! `onnxc MODEL`: object, header and whatever else was asked for.

use super::{source, warn, with_progress};
use crate::cli::CompileArgs;
use crate::diag::{Error, Failure, Result, codes};
use crate::emit;
use crate::options::Weights;
use crate::pipeline::{self, Stopped};
use std::path::{Path, PathBuf};

/// Runs the command.
pub fn compile(a: &CompileArgs) -> Result<()> {
    let Some(model) = &a.model else { return Error::new(codes::OPTION, "no model given").fail() };
    let options = a.options();
    let src = source(model)?;
    let kinds = if a.emit.is_empty() { vec!["obj", "header"] } else { a.emit.iter().map(String::as_str).collect() };
    let kinds = kinds.into_iter().map(emit::find).collect::<Result<Vec<_>>>()?;
    let stdout = a.output.as_deref() == Some(Path::new("-"));
    let output = match &a.output {
        Some(o) => o.clone(),
        None => PathBuf::from(format!("{}.o", model.file_stem().map_or("model".into(), |s| s.to_string_lossy().into_owned()).replace('-', "model"))),
    };
    if a.stop_after.is_some() {
        return stopped(pipeline::run(&src, &options)?, &output, stdout);
    }
    let label = format!("onnxc: compiling {}", src.name);
    let files = with_progress(&label, || {
        let weights = match &options.weights {
            Weights::Embed => None,
            Weights::File(Some(p)) => Some(p.clone()),
            Weights::File(None) => Some(output.with_extension("weights")),
        };
        let c = pipeline::compile(&src, &options)?;
        warn(&c, a.common.message_format);
        if stdout {
            return match kinds.as_slice() {
                [k] if k.name != "obj" => emit::to_stdout(&c, k).map(|()| vec![]),
                _ => Error::new(codes::OPTION, "-o - prints one text output").help("choose it with --emit, e.g. --emit nest").fail(),
            };
        }
        let mut inputs = vec![model.clone()];
        inputs.extend(c.model.external_files.iter().map(|f| src.folder.clone().unwrap_or_default().join(f)));
        let written = emit::write_all(&c, &kinds, &output, weights.as_deref(), &inputs)?;
        if let Some(d) = &a.depfile {
            std::fs::write(d, emit::depfile(&output, &inputs)).map_err(|e| Failure::Io(d.display().to_string(), e.to_string()))?;
        }
        Ok(written.files)
    })?;
    if a.time_passes {
        options.clock.total();
        files.iter().for_each(|f| eprintln!("wrote {}", f.display()));
    }
    Ok(())
}

fn stopped(s: Stopped, output: &Path, stdout: bool) -> Result<()> {
    let (text, extension) = match &s {
        Stopped::Graph(m) => (crate::graph::print::print(m), "graph.txt"),
        Stopped::Nest(m) => (crate::nest::print::print(m), "nest.txt"),
        Stopped::Levels(l) => (emit::levels(l.iter().map(|(l, m)| (l, m)), &crate::nest::print::print), "nest.txt"),
        Stopped::Done(_) => {
            let names: Vec<&str> = pipeline::pass_names();
            return Error::new(codes::OPTION, "--stop-after: there is no such pass at this level").row("expected", names.join(", ")).fail();
        }
    };
    if stdout {
        print!("{text}");
        return Ok(());
    }
    let path = output.with_extension(extension);
    std::fs::write(&path, text).map_err(|e| Failure::Io(path.display().to_string(), e.to_string()))
}
