//! What tests of programs share: folders of their own, commands, the pages of the documentation.
#![allow(dead_code, reason = "a test binary uses a part of it")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The repository.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// An empty folder, of a test binary and a test.
pub fn scratch(binary: &str, test: &str) -> PathBuf {
    let d = Path::new(env!("CARGO_TARGET_TMPDIR")).join(binary).join(test);
    let _ = std::fs::remove_dir_all(&d);
    std::fs::create_dir_all(&d).expect("scratch folder");
    d
}

/// What a command gives, whether it succeeds or not.
pub fn output(c: &mut Command) -> Output {
    c.output().unwrap_or_else(|e| panic!("{c:?}: {e}"))
}

/// What a command that succeeds prints to standard output.
pub fn run(c: &mut Command) -> String {
    let o = output(c);
    let text = String::from_utf8_lossy(&o.stdout).into_owned();
    assert!(o.status.success(), "{c:?}: {}\n{text}\n{}", o.status, String::from_utf8_lossy(&o.stderr));
    text
}

/// The same, with standard error behind it.
pub fn run_both(c: &mut Command) -> String {
    let o = output(c);
    let text = format!("{}{}", String::from_utf8_lossy(&o.stdout), String::from_utf8_lossy(&o.stderr));
    assert!(o.status.success(), "{c:?}: {}\n{text}", o.status);
    text
}

/// True if a program is installed.
pub fn found(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok_and(|o| o.status.success())
}

/// The same; it says so if not.
pub fn starts(program: &str) -> bool {
    let found = found(program);
    if !found {
        println!("skipped in part: there is no {program} here");
    }
    found
}

/// The program that an environment variable names, else the default; `None`, with a message, if it does not
/// start.
pub fn tool(var: &str, default: &str) -> Option<String> {
    let name = std::env::var(var).unwrap_or_else(|_| default.into());
    starts(&name).then_some(name)
}

/// Gives a command the configuration of wine that tests share.
pub fn for_wine(c: &mut Command) -> &mut Command {
    c.env("WINEPREFIX", Path::new(env!("CARGO_TARGET_TMPDIR")).join("wine")).env("WINEDEBUG", "-all")
}

/// The compiler, in a folder.
pub fn onnxc(dir: &Path) -> Command {
    let mut c = Command::new(env!("CARGO_BIN_EXE_onnxc"));
    c.current_dir(dir).env_remove("ONNXC_CACHE").env_remove("ONNXC_CACHE_SIZE");
    c
}

/// A page of the documentation.
pub fn page(name: &str) -> String {
    std::fs::read_to_string(root().join(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
}

/// The code blocks of a text in one language, in order.
pub fn blocks(text: &str, language: &str) -> Vec<String> {
    let begin = format!("```{language}\n");
    text.split(&begin).skip(1).map(|rest| rest.split("```").next().unwrap_or_default().to_owned()).collect()
}
