//! The `onnxc` program: argv in, files and findings out.

use clap::Parser;
use onnxc::cli::{Cli, Command, MessageFormat, normalize};
use onnxc::commands::{bench, check, compile, explain, inspect, report, run, shell, verify, weights};
use onnxc::diag::{Failure, codes, render};
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = Cli::parse_from(normalize(std::env::args_os()));
    let (format, result) = match &cli.command {
        None => (cli.compile.common.message_format, compile::compile(&cli.compile)),
        Some(Command::Check(a)) => (a.common.message_format, check::check(a)),
        Some(Command::Inspect(a)) => (a.common.message_format, inspect::inspect(a)),
        Some(Command::Run(a)) => (a.common.message_format, run::run(a)),
        Some(Command::Verify(a)) => (a.common.message_format, verify::verify(a)),
        Some(Command::Bench(a)) => (a.common.message_format, bench::bench(a)),
        Some(Command::Report(a)) => (a.common.message_format, report::report(a)),
        Some(Command::Weights(a)) => (a.common.message_format, weights::weights(a)),
        Some(Command::Completions { shell }) => (MessageFormat::Text, shell::completions(*shell)),
        Some(Command::Man { dir }) => (MessageFormat::Text, shell::man(dir)),
        Some(Command::Explain { code }) => (MessageFormat::Text, explain::explain(code.as_deref())),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(f) => {
            match format {
                MessageFormat::Text => eprint!("{}", render::failure_text(&f)),
                MessageFormat::Json => eprint!("{}", render::failure_json(&f)),
            }
            ExitCode::from(match f {
                Failure::Errors(list) if list.iter().all(|e| codes::is_usage(e.code)) => 2,
                Failure::Errors(_) => 1,
                Failure::Io(..) => 3,
                Failure::Bug(_) => 101,
            })
        }
    }
}
