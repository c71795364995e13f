//! The `onnxc` program: argv in, files and findings out.

use clap::Parser;
use onnxc::arrays::{self, Array};
use onnxc::bench;
use onnxc::cli::{BenchArgs, CheckArgs, Cli, Command, CompileArgs, MessageFormat, ModelArgs, RunArgs, VerifyArgs, normalize, pair};
use onnxc::described;
use onnxc::diag::{Error, Failure, Result, codes, limits, render};
use onnxc::emit;
use onnxc::onnx::Source;
use onnxc::options::{Options, Weights};
use onnxc::pipeline::{self, Compiled, Stopped};
use onnxc::run::{self, Runner};
use onnxc::target::Target;
use std::io::{IsTerminal, Read};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc;
use std::time::{Duration, Instant};

fn main() -> ExitCode {
    let cli = Cli::parse_from(normalize(std::env::args_os()));
    let (format, result) = match &cli.command {
        None => (cli.compile.common.message_format, compile(&cli.compile)),
        Some(Command::Check(a)) => (a.common.message_format, check(a)),
        Some(Command::Run(a)) => (a.common.message_format, run_model(a)),
        Some(Command::Verify(a)) => (a.common.message_format, verify(a)),
        Some(Command::Bench(a)) => (a.common.message_format, bench_model(a)),
        Some(Command::Explain { code }) => (MessageFormat::Text, explain(code.as_deref())),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(f) => {
            match format {
                MessageFormat::Text => eprintln!("{}", render::failure_text(&f)),
                MessageFormat::Json => eprintln!("{}", render::failure_json(&f)),
            }
            ExitCode::from(match f {
                Failure::Errors(_) => 1,
                Failure::Io(..) => 3,
                Failure::Bug(_) => 101,
            })
        }
    }
}

fn source(path: &Path) -> Result<Source> {
    if path == Path::new("-") {
        let mut b = vec![];
        std::io::stdin().lock().read_to_end(&mut b).map_err(|e| Failure::Io("<stdin>".into(), e.to_string()))?;
        return Ok(Source { name: "<stdin>".into(), bytes: b.into(), folder: None });
    }
    onnxc::onnx::open(path)
}

fn warn(c: &Compiled, format: MessageFormat) {
    for w in &c.warnings {
        match format {
            MessageFormat::Text => eprintln!("{}", render::text(w)),
            MessageFormat::Json => eprintln!("{}", render::json(w)),
        }
    }
}

/// Says on a terminal what is being done once it takes longer than a second.
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
    // The ticker only prints; that it ended is all there is to know.
    let _ = ticker.join();
    r
}

fn compile(a: &CompileArgs) -> Result<()> {
    let Some(model) = &a.model else { return Error::new(codes::OPTION, "no model given").fail() };
    let options = a.options()?;
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
        let weights = match &options.weights {
            Weights::Embed => None,
            Weights::File(Some(p)) => Some(p.clone()),
            Weights::File(None) => Some(output.with_extension("weights")),
        };
        let written = emit::write_all(&c, &kinds, &output, weights.as_deref(), &inputs)?;
        if let Some(d) = &a.depfile {
            std::fs::write(d, emit::depfile(&output, &inputs)).map_err(|e| Failure::Io(d.display().to_string(), e.to_string()))?;
        }
        Ok(written.files)
    })?;
    if options.time {
        files.iter().for_each(|f| eprintln!("wrote {}", f.display()));
    }
    Ok(())
}

fn stopped(s: Stopped, output: &Path, stdout: bool) -> Result<()> {
    let (text, extension) = match &s {
        Stopped::Graph(m) => (onnxc::graph::print::print(m), "graph.txt"),
        Stopped::Nest(m) => (onnxc::nest::print::print(m), "nest.txt"),
        Stopped::Levels(l) => (emit::levels(l.iter().map(|(l, m)| (l, m)), &onnxc::nest::print::print), "nest.txt"),
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

fn check(a: &CheckArgs) -> Result<()> {
    let options = a.common.apply(Options::default())?;
    let src = source(&a.model)?;
    let c = with_progress(&format!("onnxc: checking {}", src.name), || pipeline::compile(&src, &options))?;
    warn(&c, a.common.message_format);
    let i = &c.interface;
    let show = |t: &onnxc::codegen::interface::Tensor| format!("{} : {}", t.name, onnxc::tensor::TensorType::new(t.ty, t.dims.clone()).display(&i.syms));
    println!("{}: ok", src.name);
    i.inputs.iter().for_each(|t| println!("  input  {}", show(t)));
    i.outputs.iter().for_each(|t| println!("  output {}", show(t)));
    println!(
        "  {} nodes, {} kernels, weights {} bytes, workspace {} bytes",
        c.model.graph.order.len(),
        c.modules.first().map_or(0, |m| onnxc::nest::visit::calls(&m.driver).len()),
        c.weights.size,
        i.workspace.display(&i.syms)
    );
    Ok(())
}

fn runner(model: &Path, common: &ModelArgs) -> Result<Runner> {
    runner_with(model, common, Options { cpu: Some("native".into()), ..Options::default() })
}

fn runner_with(model: &Path, common: &ModelArgs, options: Options) -> Result<Runner> {
    let options = common.apply(options)?;
    let src = source(model)?;
    let c = with_progress(&format!("onnxc: compiling {}", src.name), || pipeline::compile(&src, &options))?;
    warn(&c, common.message_format);
    Runner::new(c)
}

/// The arrays of `--input` arguments.
fn given_inputs(r: &Runner, list: &[String]) -> Result<Vec<Array>> {
    let i = &r.compiled().interface;
    let read = |spec: &String| {
        let (name, file) = pair(spec, "--input")?;
        if i.inputs.iter().any(|t| described::belongs(t, &name)) {
            return Ok(Array { name, ..arrays::read(Path::new(&file))? });
        }
        Error::new(codes::RUN_INPUT, format!("--input: the model has no input \"{name}\"")).found_expected(name, i.inputs.iter().map(|t| t.name.as_str()).collect::<Vec<_>>().join(", ")).fail()
    };
    list.iter().map(read).collect()
}

fn run_model(a: &RunArgs) -> Result<()> {
    let r = runner(&a.model, &a.common)?;
    let mut given = given_inputs(&r, &a.inputs)?;
    if let Some(seed) = a.random {
        given = r.fill(given, &[], seed)?;
    }
    let outputs = r.run(&r.order_inputs(given)?)?;
    for o in &outputs {
        if let Some(list) = o.to_strings() {
            let head: Vec<String> = list.iter().take(8).map(|s| format!("{:?}", String::from_utf8_lossy(s))).collect();
            println!("{} : {}{:?}  [{}{}]", o.name, o.ty, o.dims, head.join(", "), if list.len() > 8 { ", ..." } else { "" });
            continue;
        }
        let v = o.to_f64s();
        let (lo, hi) = v.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), x| (l.min(*x), h.max(*x)));
        let head: Vec<String> = v.iter().take(8).map(|x| format!("{x:.6}")).collect();
        println!("{} : {}{:?}  min {lo:.6} max {hi:.6}  [{}{}]", o.name, o.ty, o.dims, head.join(", "), if v.len() > 8 { ", ..." } else { "" });
    }
    for spec in &a.outputs {
        let (name, file) = pair(spec, "--output")?;
        match outputs.iter().find(|o| o.name == name) {
            Some(o) => arrays::write(Path::new(&file), o)?,
            None => return Error::new(codes::RUN_INPUT, format!("--output: the model has no output \"{name}\"")).fail(),
        }
    }
    Ok(())
}

fn verify(a: &VerifyArgs) -> Result<()> {
    let r = runner(&a.model, &a.common)?;
    let mut sets = vec![];
    for d in &a.data {
        find_sets(d, &mut sets)?;
    }
    if sets.is_empty() {
        return Error::new(codes::RUN_INPUT, "no test data found")
            .found_expected(a.data.iter().map(|d| d.display().to_string()).collect::<Vec<_>>().join(", "), "input_0.pb and output_0.pb, or an .npz file")
            .fail();
    }
    let mut errors = vec![];
    for set in sets {
        let (inputs, wants) = load_set(&set, &r)?;
        let got = r.run(&r.order_inputs(inputs)?)?;
        for (k, want) in wants.iter().enumerate() {
            let found = got.iter().find(|g| g.name == want.name).or_else(|| if want.name.is_empty() { got.get(k) } else { None });
            let Some(g) = found else {
                errors.push(Error::new(codes::VERIFY_FAILED, format!("{}: the model has no output \"{}\"", set.display(), want.name)));
                continue;
            };
            let c = run::compare(g, want, a.rtol, a.atol)?;
            let verdict = if c.outside == 0 { "ok" } else { "differs" };
            println!("{}: {} {verdict}, largest difference {:.3e} ({:.3e} of the largest value)", set.display(), c.name, c.max_abs, c.max_rel);
            if c.outside > 0 {
                errors.push(
                    Error::new(codes::VERIFY_FAILED, format!("output \"{}\" differs from the reference", c.name))
                        .row("elements outside the tolerance", format!("{} of {}", c.outside, c.count))
                        .row("largest difference", format!("{:.6e}", c.max_abs))
                        .row("tolerance", format!("{} + {} * |reference|", a.atol, a.rtol)),
                );
            }
        }
    }
    if errors.is_empty() { Ok(()) } else { Err(Failure::Errors(errors)) }
}

fn bench_model(a: &BenchArgs) -> Result<()> {
    let show = |text: String, json: serde_json::Value| if a.json { println!("{json}") } else { print!("{text}") };
    let Some(model) = &a.model else {
        let width = Target::new(None, Some(&a.cpu))?.levels.iter().map(|l| l.facts.caps.bits).max().unwrap_or(0);
        let m = bench::Machine::measure(width, a.threads());
        show(bench::print::machine(&m), bench::print::machine_json(&m));
        return Ok(());
    };
    let r = runner_with(model, &a.common, Options { cpu: Some(a.cpu.clone()), opt: a.opt(), ..Options::default() })?;
    let settings = bench::Settings { seconds: a.seconds, threads: a.threads(), per_node: a.per_node, sizes: a.sizes()?, seed: a.seed };
    let report = bench::run(&r, given_inputs(&r, &a.inputs)?, &settings)?;
    show(bench::print::text(&report), bench::print::json(&report));
    Ok(())
}

fn find_sets(path: &Path, out: &mut Vec<PathBuf>) -> Result<()> {
    if path.is_file() || path.join("input_0.pb").exists() || path.join("output_0.pb").exists() {
        out.push(path.to_owned());
        return Ok(());
    }
    let list = std::fs::read_dir(path).map_err(|e| Failure::Io(path.display().to_string(), e.to_string()))?;
    let mut inner: Vec<PathBuf> = list.filter_map(|e| e.ok()).map(|e| e.path()).filter(|p| p.join("output_0.pb").exists()).collect();
    inner.sort();
    out.extend(inner);
    Ok(())
}

fn load_set(path: &Path, r: &Runner) -> Result<(Vec<Array>, Vec<Array>)> {
    let i = &r.compiled().interface;
    if path.is_file() {
        let all = arrays::read_npz(path)?;
        let is_input = |a: &Array| i.inputs.iter().any(|t| if t.described.is_some() { described::belongs(t, &a.name) } else { t.name == a.name });
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
    // Position counts in this layout; names are often missing or other ones.
    inputs.iter_mut().zip(&i.inputs).for_each(|(a, t)| a.name = t.name.clone());
    outputs.iter_mut().zip(&i.outputs).for_each(|(a, t)| a.name = t.name.clone());
    Ok((inputs, outputs))
}

fn explain(code: Option<&str>) -> Result<()> {
    match code {
        None => {
            codes::TABLE.iter().for_each(|(c, _, title, _)| println!("{c}  {title}"));
            println!("limits what a model may ask of the compiler");
        }
        Some("limits") => limits::TABLE.iter().for_each(|l| println!("{:14} {:>9}  {}\n{:14} {:>9}  instead: {}", l.name, l.value, l.bounds, "", "", l.help)),
        Some(text) => match codes::find(text) {
            Some((c, _, title, help)) => println!("{c}: {title}\n\n{help}"),
            None => return Error::new(codes::OPTION, format!("there is no diagnostic \"{text}\"")).help("`onnxc explain` lists all of them").fail(),
        },
    }
    Ok(())
}
