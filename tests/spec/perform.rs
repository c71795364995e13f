//! Performs the tests of an entry.

use super::format::{Entry, Expect, Test, quoted};
use super::recipe;
use clap::Parser;
use onnxc::arrays::Array;
use onnxc::cli::Cli;
use onnxc::diag::{Error, Failure, Origin, Severity, render};
use onnxc::onnx::Source;
use onnxc::onnx::external::External;
use onnxc::options::Options;
use onnxc::pipeline::{self, Compiled};
use onnxc::run::Runner;
use onnxc::{emit, onnx};
use std::path::{Path, PathBuf};

/// Performs all tests; `with_tests` are the ids that `see` may name.
pub fn entry(e: &Entry, with_tests: &[String]) -> Result<(), String> {
    if e.tests.is_empty() && e.see.is_empty() {
        return Err(format!("{}: neither a test nor a reference", e.place));
    }
    if e.decided && e.why.is_empty() {
        return Err(format!("{}: a decision without its reason", e.place));
    }
    if let Some(s) = e.see.iter().find(|s| !with_tests.contains(s) && !super::repository(s).exists()) {
        return Err(format!("{}: \"{s}\" is neither an entry with tests nor a file", e.place));
    }
    let mut before = None;
    let mut faults = vec![];
    for t in &e.tests {
        match test(t, before.as_deref()) {
            Ok(code) => before = code,
            Err(m) => faults.push(format!("{}: {m}", t.place)),
        }
    }
    if faults.is_empty() { Ok(()) } else { Err(faults.join("\n\n")) }
}

/// A folder that is removed again.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        // What can not be removed stays; the test has its result.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// One test; the nests of the code, for `@same`.
fn test(t: &Test, before: Option<&str>) -> Result<Option<String>, String> {
    let bytes = recipe::build(t)?;
    let has = |names: &[&str]| t.steps.iter().any(|(c, _)| names.contains(&c.as_str()));
    let folder = Folder(std::env::temp_dir().join(format!(
        "onnxc-spec-{}-{}",
        std::process::id(),
        t.place.replace(['/', ':', '.'], "-")
    )));
    let source = if has(&["file", "link", "hardlink", "dir", "fifo"]) && !has(&["stdin"]) {
        // Two folders deep, so that files beside the model's folder stay inside.
        let inner = folder.0.join("model");
        std::fs::create_dir_all(&inner).map_err(|e| e.to_string())?;
        t.steps
            .iter()
            .try_for_each(|(c, rest)| file(&inner, c, rest).map_err(|e| format!("@{c} {rest}: {e}")))?;
        std::fs::write(inner.join("model.onnx"), &bytes).map_err(|e| e.to_string())?;
        let source = onnx::open(&inner.join("model.onnx")).map_err(|e| e.to_string())?;
        Source { name: "model.onnx".into(), ..source }
    } else {
        let name = if has(&["stdin"]) { "<stdin>" } else { "model.onnx" };
        Source { name: name.into(), bytes: bytes.into(), folder: None }
    };
    let options = options(&t.flags)?;
    let result = pipeline::compile(&source, &options);
    match t.expect {
        Expect::Error | Expect::Unsupported => match result {
            Ok(c) => Err(format!(
                "it compiles, with {}",
                if c.warnings.is_empty() { "no warnings".into() } else { texts(&c.warnings) }
            )),
            Err(Failure::Errors(es)) => errors(t, &es).map(|()| None),
            Err(other) => Err(other.to_string()),
        },
        Expect::Accept | Expect::Note | Expect::Warn => {
            let c = result.map_err(|e| e.to_string())?;
            warnings(t, &c.warnings)?;
            let warned = t.expect == Expect::Warn && !options.strict;
            match pipeline::compile(&source, &Options { strict: true, ..options }) {
                Ok(_) if warned => return Err("a warning that --strict lets pass".into()),
                Err(Failure::Errors(es)) if warned => found(t, &es)?,
                Err(e) => return Err(format!("with --strict: {e}")),
                Ok(_) => {}
            }
            let nests = emitted(&c, "nest")?;
            for (command, rest) in &t.steps {
                look(&c, command, rest).map_err(|e| format!("@{command} {rest}: {e}"))?;
            }
            if has(&["same"]) && before != Some(nests.as_str()) {
                return Err("@same: the code differs".into());
            }
            if has(&["run"]) {
                let runner = Runner::new(c).map_err(|e| e.to_string())?;
                t.steps
                    .iter()
                    .filter(|(c, _)| c == "run")
                    .try_for_each(|(_, line)| run(&runner, line).map_err(|e| format!("@run {line}: {e}")))?;
            }
            Ok(Some(nests))
        }
    }
}

fn options(flags: &[String]) -> Result<Options, String> {
    let args = ["onnxc", "model.onnx"].into_iter().map(str::to_owned).chain(flags.iter().cloned());
    let cli = Cli::try_parse_from(args).map_err(|e| e.to_string())?;
    let o = cli.compile.options();
    let cpu = o.cpu.clone().or_else(|| o.target.is_none().then(|| "native".into()));
    Ok(Options { cpu, verify: true, ..o })
}

fn texts(list: &[Error]) -> String {
    list.iter().map(render::text).collect()
}

/// One finding with the code holds all the texts.
fn found(t: &Test, list: &[Error]) -> Result<(), String> {
    let fits =
        |e: &&Error| e.code.to_string() == t.code && t.texts.iter().all(|s| render::text(e).contains(s));
    match list.iter().find(fits) {
        Some(e)
            if t.expect == Expect::Unsupported
                && (!render::text(e).contains("support") || render::text(e).contains("invalid")) =>
        {
            Err(format!("it should say that this is not supported:\n{}", texts(list)))
        }
        Some(_) => Ok(()),
        None => Err(format!("expected {} {:?}, found\n{}", t.code, t.texts, texts(list))),
    }
}

fn errors(t: &Test, list: &[Error]) -> Result<(), String> {
    found(t, list)?;
    let want = t.steps.iter().find(|(c, _)| c == "errors").map_or(Some(1), |(_, n)| n.parse().ok());
    if want == Some(list.len()) { Ok(()) } else { Err(format!("{} errors:\n{}", list.len(), texts(list))) }
}

fn warnings(t: &Test, list: &[Error]) -> Result<(), String> {
    let severity = match t.expect {
        Expect::Note => Severity::Note,
        Expect::Warn => Severity::Warning,
        _ if list.is_empty() => return Ok(()),
        _ => return Err(format!("unexpected\n{}", texts(list))),
    };
    if list.iter().any(|e| e.severity != severity || e.code.to_string() != t.code) {
        return Err(format!("unexpected among\n{}", texts(list)));
    }
    found(t, list)
}

fn file(folder: &Path, command: &str, rest: &str) -> Result<(), String> {
    let text = |e: std::io::Error| e.to_string();
    let make = |path: &Path| path.parent().map_or(Ok(()), std::fs::create_dir_all).map_err(text);
    let pair = |sep: &str| {
        rest.split_once(sep).map(|(a, b)| (folder.join(a.trim()), b.trim())).ok_or(format!("NAME {sep} ..."))
    };
    match command {
        "file" => {
            let (path, content) = pair(" = ")?;
            make(&path)?;
            std::fs::write(path, recipe::content(content)?).map_err(text)
        }
        "dir" => std::fs::create_dir_all(folder.join(rest)).map_err(text),
        "hardlink" => {
            let (path, target) = pair("->")?;
            std::fs::hard_link(folder.join(target), path).map_err(text)
        }
        #[cfg(unix)]
        "link" => {
            let (path, target) = pair("->")?;
            make(&path)?;
            std::os::unix::fs::symlink(target, path).map_err(text)
        }
        "fifo" => {
            std::process::Command::new("mkfifo").arg(folder.join(rest)).status().map_err(text).map(drop)
        }
        _ => Ok(()),
    }
}

fn emitted(c: &Compiled, kind: &str) -> Result<String, String> {
    emit::find(kind).and_then(|k| emit::to_text(c, k)).map_err(|e| e.to_string())
}

/// What is emitted.
fn look(c: &Compiled, command: &str, rest: &str) -> Result<(), String> {
    match command {
        "shows" | "hides" => {
            let (kind, list) = quoted(rest).ok_or("a quote is open")?;
            let text = emitted(c, kind.trim())?;
            let wrong = list.iter().find(|s| text.contains(s.as_str()) != (command == "shows"));
            wrong.map_or(Ok(()), |s| Err(format!("{s:?} in\n{text}")))
        }
        "cc" => {
            let text = emitted(c, "header")?;
            let command = std::process::Command::new("cc")
                .args([
                    "-std=c11",
                    "-Wall",
                    "-Wextra",
                    "-Wpedantic",
                    "-Werror",
                    "-fsyntax-only",
                    "-x",
                    "c",
                    "-",
                ])
                .stdin(std::process::Stdio::piped())
                .stderr(std::process::Stdio::piped())
                .spawn();
            // Without a compiler there is nothing to see.
            let Ok(mut child) = command else { return Ok(()) };
            if let Some(mut input) = child.stdin.take() {
                std::io::Write::write_all(&mut input, text.as_bytes()).map_err(|e| e.to_string())?;
            }
            let out = child.wait_with_output().map_err(|e| e.to_string())?;
            if out.status.success() {
                Ok(())
            } else {
                Err(format!("{}\n{text}", String::from_utf8_lossy(&out.stderr)))
            }
        }
        "same" | "errors" | "run" | "set" | "add" | "clear" | "raw" | "wrap" | "cut" | "bytes" | "file"
        | "link" | "hardlink" | "dir" | "fifo" | "stdin" => Ok(()),
        _ => Err("there is no such step".into()),
    }
}

/// Tensors as they are written in ONNX text.
fn arrays(text: &str) -> Result<Vec<Array>, String> {
    if text.trim().is_empty() {
        return Ok(vec![]);
    }
    let model = onnx::text::parse_model(format!("g () => () <{text}> {{}}").as_bytes(), "@run")
        .map_err(|e| e.to_string())?;
    let graph = model.graph.unwrap_or_default();
    let array = |t: &onnx::proto::TensorProto| {
        let c = onnx::tensors::tensor(t, &mut External::new(None), &Origin::file("@run"))
            .map_err(|e| e.to_string())?;
        let data = match c.as_strings() {
            Some(list) => onnxc_runtime::texts::encode(list),
            None => c.bytes().to_vec(),
        };
        Ok(Array { name: t.name.clone().unwrap_or_default(), ty: c.elem(), dims: c.dims().to_vec(), data })
    };
    graph.initializer.iter().map(array).collect()
}

fn run(runner: &Runner, line: &str) -> Result<(), String> {
    let (given, want) = line.split_once("->").ok_or("inputs -> outputs")?;
    let result = runner.order_inputs(arrays(given)?).and_then(|i| runner.run(&i));
    if let Some(list) = want.trim().strip_prefix("error ") {
        let (_, list) = quoted(list).ok_or("a quote is open")?;
        return match result {
            Ok(_) => Err("the call succeeds".into()),
            Err(e) => list.iter().try_for_each(|s| {
                if e.to_string().contains(s) { Ok(()) } else { Err(format!("{s:?} is not in\n{e}")) }
            }),
        };
    }
    let (got, want) = (result.map_err(|e| e.to_string())?, arrays(want)?);
    if got.len() != want.len() {
        return Err(format!("{} outputs, expected {}", got.len(), want.len()));
    }
    for (g, w) in got.iter().zip(&want) {
        let close =
            |(a, b): (f64, f64)| a == b || a.is_nan() && b.is_nan() || (a - b).abs() <= 1e-5 * b.abs();
        let same = match (g.to_strings(), w.to_strings()) {
            (None, None) => {
                g.data == w.data
                    || g.data.len() == w.data.len() && g.to_f64s().into_iter().zip(w.to_f64s()).all(close)
            }
            (a, b) => a == b,
        };
        if g.name != w.name || g.ty != w.ty || g.dims != w.dims || !same {
            return Err(format!("found {} {}{:?} {:?}", g.name, g.ty, g.dims, g.to_f64s()));
        }
    }
    Ok(())
}
