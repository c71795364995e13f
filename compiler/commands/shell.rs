//! `onnxc completions` and `onnxc man`: shell completions and man pages, generated from the table of flags.

use crate::cli::Cli;
use crate::diag::{Failure, Result};
use clap::CommandFactory;
use clap_complete::Shell;
use std::io::Write;
use std::path::Path;

/// Prints the completions of a shell.
pub fn completions(shell: Shell) -> Result<()> {
    let mut text = vec![];
    clap_complete::generate(shell, &mut Cli::command(), "onnxc", &mut text);
    std::io::stdout().write_all(&text).map_err(|e| Failure::Io("<stdout>".into(), e.to_string()))
}

/// Writes a man page for the program and for each command.
pub fn man(dir: &Path) -> Result<()> {
    let io = |e: std::io::Error| Failure::Io(dir.display().to_string(), e.to_string());
    std::fs::create_dir_all(dir).map_err(io)?;
    clap_mangen::generate_to(Cli::command(), dir).map_err(io)
}
