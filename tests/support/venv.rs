//! Python environments under the target folder, made when a test first asks for them.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

fn folder(name: &str) -> (PathBuf, PathBuf) {
    let venv = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let bin = venv.join(if cfg!(windows) { "Scripts" } else { "bin" });
    (venv, bin)
}

/// Makes an environment and installs packages, unless one with this list stands there. False if pip fails.
fn install(venv: &Path, bin: &Path, wanted: &str) -> bool {
    let stamp = venv.join("requirements.txt");
    if std::fs::read_to_string(&stamp).is_ok_and(|have| have == wanted) {
        return true;
    }
    let run = |c: &mut Command| c.status().expect("python3 is needed for the tests").success();
    assert!(run(Command::new("python3").args(["-m", "venv"]).arg(venv)), "no virtual environment");
    let mut pip = Command::new(bin.join("python"));
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]).args(wanted.lines());
    let done = run(&mut pip);
    if done {
        std::fs::write(&stamp, wanted).expect("stamp");
    }
    done
}

/// Python with the packages of tests/requirements.txt. All whose numbers the backend suite compares are pinned:
/// ml_dtypes converts floats beyond the range of integers of four and two bits, which ONNX leaves open, modulo
/// 16 and 4 before version 0.7, and to 0 from then on.
pub fn python() -> &'static Path {
    static PYTHON: OnceLock<PathBuf> = OnceLock::new();
    PYTHON.get_or_init(|| {
        let (venv, bin) = folder("venv");
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/requirements.txt");
        let wanted = std::fs::read_to_string(file).expect("requirements");
        assert!(install(&venv, &bin, &wanted), "the packages of tests/requirements.txt cannot be installed");
        bin.join(if cfg!(windows) { "python.exe" } else { "python" })
    })
}

/// The programs of an environment for tools that are no requirement of the harnesses; `None`, with a message,
/// without a network.
pub fn tools() -> Option<&'static Path> {
    static BIN: OnceLock<Option<PathBuf>> = OnceLock::new();
    BIN.get_or_init(|| {
        let (venv, bin) = folder("tools-venv");
        let wanted = "numpy>=1.22\npytest\nmeson\nninja\ncmake<4\n";
        let done = install(&venv, &bin, wanted);
        if !done {
            println!("skipped: {} cannot be installed here", wanted.replace('\n', " "));
        }
        done.then_some(bin)
    })
    .as_deref()
}
