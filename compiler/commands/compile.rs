//! `onnxc MODEL`: the object, the header and other requested outputs.

use super::{source, warn, with_progress};
use crate::bench::print::bytes;
use crate::cache::{Cache, Key, Made};
use crate::cli::{CompileArgs, MessageFormat};
use crate::diag::{Error, Failure, Result, codes};
use crate::emit;
use crate::options::Weights;
use crate::pipeline::{self, Stopped};
use std::io::IsTerminal;
use std::path::{Path, PathBuf};

/// Runs the command.
pub fn compile(a: &CompileArgs) -> Result<()> {
    let Some(model) = &a.model else { return Error::new(codes::OPTION, "no model given").fail() };
    let mut options = a.options();
    if a.weights == Some(Weights::Embed) && a.weights_from.is_some() {
        return Error::new(codes::OPTION, "--weights-from shares a file, and --weights embed asks for none")
            .help("leave out one of them")
            .fail();
    }
    let src = source(model)?;
    let kinds =
        if a.emit.is_empty() { vec!["obj", "header"] } else { a.emit.iter().map(String::as_str).collect() };
    let mut kinds = kinds.into_iter().map(emit::find).collect::<Result<Vec<_>>>()?;
    let stdout = a.output.as_deref() == Some(Path::new("-"));
    let output = match &a.output {
        Some(o) => o.clone(),
        None => PathBuf::from(format!(
            "{}.o",
            model
                .file_stem()
                .map_or("model".into(), |s| s.to_string_lossy().into_owned())
                .replace('-', "model")
        )),
    };
    if options.debug.is_some() && !stdout {
        options.output = Some(output.clone());
    }
    if !stdout && a.stop_after.is_none() {
        emit::with_text(&mut kinds, options.debug)?;
    }
    if a.stop_after.is_some() {
        return stopped(pipeline::run(&src, &options)?, &output, stdout);
    }
    let label = format!("onnxc: compiling {}", src.name);
    let weights = options.weights_path(&output);
    let inputs = |external: &[PathBuf]| -> Vec<PathBuf> {
        let folder = src.folder.clone().unwrap_or_default();
        std::iter::once(model.clone()).chain(external.iter().map(|f| folder.join(f))).collect()
    };
    let depfile = |inputs: &[PathBuf]| match &a.depfile {
        Some(d) => std::fs::write(d, emit::depfile(&output, inputs))
            .map_err(|e| Failure::Io(d.display().to_string(), e.to_string())),
        None => Ok(()),
    };
    // Standard input and standard output are not cached, nor what a device or pipe has taken.
    let kept = !stdout && src.folder.is_some();
    let kept = kept && !emit::paths(&kinds, &output, weights.as_deref()).iter().any(|p| emit::is_special(p));
    let cache = Cache::new(a.cache.as_deref()).filter(|_| kept);
    let names: Vec<&str> = kinds.iter().map(|k| k.name).collect();
    let cache = cache
        .map(|c| Ok::<_, Failure>((c, Key::new(&src, &options, &names)?.of_contents(&src))))
        .transpose()?;
    if let Some((cache, key)) = &cache {
        let paths = emit::paths(&kinds, &output, weights.as_deref());
        if let Some(hit) = options.clock.step("cache", || cache.get(&src, key, &paths))? {
            for [_, text, json] in &hit.warnings {
                eprintln!("{}", if a.common.message_format == MessageFormat::Json { json } else { text });
            }
            depfile(&inputs(&hit.external))?;
            return Ok(());
        }
    }
    let files = with_progress(&label, || {
        let c = pipeline::compile(&src, &options)?;
        warn(&c, a.common.message_format);
        if stdout {
            return match kinds.as_slice() {
                [k] if !k.binary() => emit::to_stdout(&c, k).map(|()| vec![]),
                _ => Error::new(codes::OPTION, "-o - prints one text output")
                    .help("choose it with --emit, e.g. --emit nest")
                    .fail(),
            };
        }
        let mut external: Vec<PathBuf> = c.model.external_files.iter().map(PathBuf::from).collect();
        let written = emit::write_all(&c, &kinds, &output, weights.as_deref(), &inputs(&external))?;
        external.extend(options.weights_read());
        depfile(&inputs(&external))?;
        if let Some((cache, key)) = &cache {
            let made = Made {
                name: &c.interface.name,
                external: &external,
                warnings: &c.warnings,
                files: &written.files,
            };
            cache.put(&src, key, &made);
        }
        // The process is about to end. Returning the memory of all nests takes as long as some passes.
        std::mem::forget(c);
        Ok(written.files)
    })?;
    if a.time_passes {
        options.clock.total();
    }
    if std::io::stderr().is_terminal() && a.common.message_format == MessageFormat::Text {
        for (f, n) in files.iter().filter_map(|f| Some((f, std::fs::metadata(f).ok()?.len()))) {
            eprintln!("onnxc: wrote {}, {}", f.display(), bytes(n as f64));
        }
    } else if a.time_passes {
        files.iter().for_each(|f| eprintln!("wrote {}", f.display()));
    }
    Ok(())
}

fn stopped(s: Stopped, output: &Path, stdout: bool) -> Result<()> {
    let (text, extension) = match &s {
        Stopped::Graph(m) => (crate::graph::print::print(m), "graph.txt"),
        Stopped::Nest(m) => (crate::nest::print::print(m), "nest.txt"),
        Stopped::Levels(l) => {
            (emit::levels(l.iter().map(|(l, m)| (l, m)), &crate::nest::print::print), "nest.txt")
        }
        Stopped::Done(_) => {
            let names: Vec<&str> = pipeline::pass_names();
            return Error::new(codes::OPTION, "--stop-after: there is no such pass at this level")
                .row("expected", names.join(", "))
                .fail();
        }
    };
    if stdout {
        print!("{text}");
        return Ok(());
    }
    let path = output.with_extension(extension);
    std::fs::write(&path, text).map_err(|e| Failure::Io(path.display().to_string(), e.to_string()))
}
