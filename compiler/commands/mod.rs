//! The commands of the program, from input files to output files and findings. `main.rs` only selects one.

pub mod bench;
pub mod check;
pub mod compile;
pub mod explain;
pub mod inspect;
pub mod per_node;
pub mod report;
pub mod run;
pub mod shell;
pub mod verify;
pub mod weights;

use crate::arrays::{self, Array};
use crate::cli::values::ArrayFile;
use crate::cli::{MessageFormat, ModelArgs};
use crate::codegen::interface::{Interface, Tensor};
use crate::diag::{Error, Failure, Result, codes, render};
use crate::io_descriptors;
use crate::onnx::Source;
use crate::options::Options;
use crate::pipeline::{self, Compiled};
use crate::run::Runner;
use std::io::{IsTerminal, Read};
use std::path::Path;
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// The model given on the command line; `-` is standard input.
fn source(path: &Path) -> Result<Source> {
    if path == Path::new("-") {
        let mut b = vec![];
        std::io::stdin()
            .lock()
            .read_to_end(&mut b)
            .map_err(|e| Failure::Io("<stdin>".into(), e.to_string()))?;
        return Ok(Source { name: "<stdin>".into(), bytes: b.into(), folder: None });
    }
    crate::onnx::open(path)
}

/// Prints the warnings of a compilation.
fn warn(c: &Compiled, format: MessageFormat) {
    for w in &c.warnings {
        match format {
            MessageFormat::Text => eprintln!("{}", render::text(w)),
            MessageFormat::Json => eprintln!("{}", render::json(w)),
        }
    }
}

/// Prints what is being done on a terminal if it takes longer than a second.
fn with_progress<T>(what: &str, f: impl FnOnce() -> Result<T>) -> Result<T> {
    let (stop, wait) = mpsc::channel::<()>();
    let show = std::io::stderr().is_terminal();
    let what = what.to_owned();
    let ticker = std::thread::spawn(move || {
        let start = Instant::now();
        let mut shown = false;
        while wait.recv_timeout(Duration::from_secs(1)) == Err(mpsc::RecvTimeoutError::Timeout) {
            if show {
                eprint!("\r{what} ... {} s", start.elapsed().as_secs());
                shown = true;
            }
        }
        if shown {
            eprintln!();
        }
    });
    let r = f();
    drop(stop);
    // The ticker only prints, so its result is ignored.
    let _ = ticker.join();
    r
}

/// Compiles a model into memory, for the highest CPU level of this machine unless `options` say otherwise.
fn runner(src: &Source, common: &ModelArgs, options: Options, library: Option<&Path>) -> Result<Runner> {
    let options = common.apply(options);
    let c = with_progress(&format!("onnxc: compiling {}", src.name), || pipeline::compile(src, &options))?;
    warn(&c, common.message_format);
    Runner::with_library(c, library).map(Runner::in_place)
}

fn native() -> Options {
    Options { cpu: Some("native".into()), ..Options::default() }
}

fn names(list: &[Tensor]) -> String {
    list.iter().map(|t| t.name.as_str()).collect::<Vec<_>>().join(", ")
}

/// The arrays of `--input` arguments.
fn given_inputs(r: &Runner, list: &[ArrayFile]) -> Result<Vec<Array>> {
    let i = &r.compiled().interface;
    let mut out = vec![];
    for f in list {
        let read = match &f.name {
            #[cfg(feature = "image")]
            Some(name) if arrays::format(&f.path) == Some(arrays::Format::Picture) => {
                vec![picture(i, name, &f.path)?]
            }
            Some(name) => vec![Array { name: name.clone(), ..arrays::read_named(&f.path, name)? }],
            None => arrays::read_npz(&f.path)?,
        };
        if let Some(a) = read.iter().find(|a| !i.inputs.iter().any(|t| io_descriptors::belongs(t, &a.name))) {
            return Error::new(codes::OPTION, format!("--input: the model has no input \"{}\"", a.name))
                .found_expected(a.name.clone(), names(&i.inputs))
                .fail();
        }
        out.extend(read);
    }
    Ok(out)
}

/// Reads a picture as the input of this name.
#[cfg(feature = "image")]
fn picture(i: &Interface, name: &str, path: &Path) -> Result<Array> {
    let Some(t) =
        i.inputs.iter().find(|t| t.name == name || t.ident == name).filter(|t| t.described.is_none())
    else {
        return Error::new(codes::OPTION, format!("--input: the model has no tensor \"{name}\""))
            .found_expected(name, names(&i.inputs))
            .fail();
    };
    let dims: Vec<Option<i64>> = t.dims.iter().map(|d| d.as_const()).collect();
    arrays::picture::read(path, name, t.ty, &dims)
}
