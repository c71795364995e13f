//! Checks of encodings against what LLVM's assembler makes of their texts, as a `forms.txt` records it: one
//! line a form, its word and its text.

use std::io::Write;
use std::process::{Command, Stdio};

/// The forms that a machine encodes: texts and words.
pub(super) type Encoded = Vec<(String, u32)>;

/// Compares encoded forms with recorded ones.
pub(super) fn check_recorded(ours: &Encoded, forms: &str) {
    let recorded: Vec<(u32, &str)> = forms
        .lines()
        .map(|l| l.split_once(' ').expect("word and text"))
        .map(|(word, text)| (u32::from_str_radix(word, 16).expect("a word"), text))
        .collect();
    for (text, word) in ours {
        let found = recorded.iter().find(|r| r.1 == text).map(|r| r.0);
        assert_eq!(found, Some(*word), "{text}: found {word:#010x}, expected what forms.txt says");
    }
    let unknown: Vec<&str> =
        recorded.iter().map(|r| r.1).filter(|t| !ours.iter().any(|o| o.0 == *t)).collect();
    assert!(unknown.is_empty(), "in forms.txt, but not encoded: {unknown:?}");
}

/// What an assembler makes of lines, if there is one.
fn assembled(target: &[&str], lines: &[&str]) -> Option<Vec<u32>> {
    let mut mc = ["llvm-mc-22", "llvm-mc"].iter().find_map(|name| {
        let mut command = Command::new(name);
        command.args(target).arg("--show-encoding");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        command.spawn().ok()
    })?;
    mc.stdin.take()?.write_all(lines.join("\n").as_bytes()).ok()?;
    let out = String::from_utf8(mc.wait_with_output().ok()?.stdout).ok()?;
    let byte = |b: &str| u32::from_str_radix(b.trim_start_matches("0x"), 16).expect("a byte");
    let encodings = out.lines().filter_map(|l| l.split_once("encoding: ["));
    let word = |bytes: &str| bytes.trim_end_matches(']').split(',').rev().fold(0, |w, b| w << 8 | byte(b));
    Some(encodings.map(|(_, bytes)| word(bytes)).collect())
}

/// Compares recorded forms with what an assembler makes of them, if there is one; with `ONNXC_UPDATE=1`,
/// writes them anew instead. False if the assembler does not know all forms.
pub(super) fn check_assembler(ours: &Encoded, forms: &str, target: &[&str], folder: &str) -> bool {
    let mut lines: Vec<&str> = ours.iter().map(|o| o.0.as_str()).collect();
    lines.sort_unstable();
    lines.dedup();
    let Some(words) = assembled(target, &lines) else {
        eprintln!("skipped: llvm-mc is not installed");
        return true;
    };
    if words.len() != lines.len() {
        return false;
    }
    let text: String = words.iter().zip(&lines).map(|(w, l)| format!("{w:08x} {l}\n")).collect();
    if std::env::var_os("ONNXC_UPDATE").is_some() {
        let root = env!("CARGO_MANIFEST_DIR");
        let path = format!("{root}/compiler/codegen/tile/isa/{folder}/table/forms.txt");
        std::fs::write(path, text).expect("written");
    } else {
        assert_eq!(text, forms, "forms.txt is not what the assembler makes");
    }
    true
}
