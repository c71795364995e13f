//! docs/SPEC.md: every requirement with its verdict.

use super::format::{Entry, Expect};
use std::collections::BTreeMap;
use std::fmt::Write;

/// How many requirements there are.
const ALL: usize = 290;
const PAGE: &str = "docs/SPEC.md";

/// Every requirement has one entry, and the page is what the entries make it.
pub fn check(entries: &[Entry]) -> Result<(), String> {
    let ids = std::fs::read_to_string(super::repository("tests/spec/ids.txt"))
        .map_err(|e| format!("ids.txt: {e}"))?;
    let ids: Vec<(&str, &str)> =
        ids.lines().filter(|l| l.starts_with("R-")).filter_map(|l| l.split_once(' ')).collect();
    let groups: BTreeMap<String, String> = std::fs::read_to_string(super::repository("tests/spec/ids.txt"))
        .map_err(|e| format!("ids.txt: {e}"))?
        .lines()
        .filter_map(|l| l.strip_prefix("## ")?.split_once(' ').map(|(a, b)| (a.to_owned(), b.to_owned())))
        .collect();
    if ids.len() != ALL {
        return Err(format!("ids.txt has {} requirements", ids.len()));
    }
    let count = |id: &str| entries.iter().filter(|e| e.id == id).count();
    let missing: Vec<&str> = ids.iter().map(|(id, _)| *id).filter(|id| count(id) == 0).collect();
    if !missing.is_empty() {
        return Err(format!(
            "{} requirements without an entry under tests/spec: {}",
            missing.len(),
            missing.join(", ")
        ));
    }
    if let Some(e) = entries.iter().find(|e| count(&e.id) > 1 || !ids.iter().any(|(id, _)| *id == e.id)) {
        return Err(format!("{}: {} is not in ids.txt, or has two entries", e.place, e.id));
    }
    let text = page(&ids, &groups, entries);
    let path = super::repository(PAGE);
    if std::env::var_os("ONNXC_UPDATE").is_some() {
        return std::fs::write(path, text).map_err(|e| e.to_string());
    }
    let same = std::fs::read_to_string(&path).is_ok_and(|have| have == text);
    if same { Ok(()) } else { Err(format!("{PAGE} is stale: ONNXC_UPDATE=1 cargo test --test spec page")) }
}

fn page(ids: &[(&str, &str)], groups: &BTreeMap<String, String>, entries: &[Entry]) -> String {
    let decided = entries.iter().filter(|e| e.decided).count();
    let tests: usize = entries.iter().map(|e| e.tests.len()).sum();
    let mut out = format!(
        "# The ONNX IR, requirement by requirement\n\n\
         Generated from `tests/spec/`; `ONNXC_UPDATE=1 cargo test --test spec page` writes it anew. {} of {ALL} requirements hold; onnxc\n\
         deliberately departs from {decided}, and the reason stands beside them. `cargo test --test spec` checks them with {tests} models.\n\n\
         Verdicts: *holds*, as tested; *decided*, a departure with its reason. Findings name the codes that `onnxc explain` explains.\n",
        ALL - decided
    );
    let mut group = "";
    for (id, title) in ids {
        let name = id.rsplit_once('-').map_or(*id, |(g, _)| g);
        if name != group {
            group = name;
            let about = groups.get(name).map_or("", String::as_str);
            let _ = write!(
                out,
                "\n## {name}: {about}\n\n| | Requirement | Verdict | What onnxc does |\n|---|---|---|---|\n"
            );
        }
        let Some(e) = entries.iter().find(|e| e.id == *id) else { continue };
        let verdict = if e.decided { "decided" } else { "holds" };
        let mut codes: Vec<String> = vec![];
        for t in &e.tests {
            let kind = match t.expect {
                Expect::Accept => "accepted".to_owned(),
                Expect::Note => format!("note {}", t.code),
                Expect::Warn => format!("warning {}", t.code),
                Expect::Error => format!("error {}", t.code),
                Expect::Unsupported => format!("unsupported {}", t.code),
            };
            if !codes.contains(&kind) {
                codes.push(kind);
            }
        }
        let mut does = codes.join(", ");
        if !e.see.is_empty() {
            let _ = write!(does, "{}see {}", if does.is_empty() { "" } else { "; " }, e.see.join(", "));
        }
        if !e.why.is_empty() {
            let _ = write!(does, ". {}", e.why);
        }
        let cell = |s: &str| s.replace('|', "\\|");
        let _ = writeln!(
            out,
            "| {} | {} | {verdict} | {} |",
            id.trim_start_matches("R-"),
            cell(title),
            cell(&does)
        );
    }
    out
}
