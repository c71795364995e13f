//! The one place that turns findings into text for people or JSON lines for tools.

use super::{Error, Failure, Severity};
use serde_json::json;
use std::fmt::Write;

/// The text form: title, place, rows, notes, help.
pub fn text(e: &Error) -> String {
    let kind = match e.severity {
        Severity::Error => "error",
        Severity::Warning => "warning",
        Severity::Note => "note",
    };
    let mut s = format!("{kind}[{}]: {}\n", e.code, e.title);
    let place = e.origin.to_string();
    if !place.is_empty() {
        let _ = writeln!(s, "  --> {place}");
    }
    let width = e.rows.iter().map(|(l, _)| l.chars().count()).max().unwrap_or(0);
    for (label, value) in &e.rows {
        let _ = writeln!(s, "   |  {label:width$} : {value}");
    }
    for n in &e.notes {
        let _ = writeln!(s, "   = note: {n}");
    }
    if let Some(h) = &e.help {
        let _ = writeln!(s, "   = help: {h}");
    }
    s
}

/// One JSON object on one line, without the newline.
pub fn json(e: &Error) -> String {
    let o = &e.origin;
    let severity = match e.severity {
        Severity::Error => "error",
        Severity::Warning => "warning",
        Severity::Note => "note",
    };
    json!({
        "severity": severity,
        "code": e.code.to_string(), "title": e.title,
        "origin": { "file": o.file, "graph": o.graph, "node": o.node, "name": o.name, "op": o.op,
            "opset": o.opset, "output": o.output, "element": o.element },
        "rows": e.rows.iter().map(|(l, v)| json!({"label": l, "text": v})).collect::<Vec<_>>(),
        "notes": e.notes, "help": e.help,
    })
    .to_string()
}

/// A whole failure as text.
pub fn failure_text(f: &Failure) -> String {
    match f {
        Failure::Errors(es) => {
            let mut s: String = es.iter().map(text).collect();
            let n = es.len();
            let _ = writeln!(s, "onnxc: {n} error{}", if n == 1 { "" } else { "s" });
            s
        }
        Failure::Io(path, reason) => format!("error: {path}: {reason}\n"),
        Failure::Bug(b) => format!(
            "internal error in {}: this is a fault of onnxc, not of your model\n{}\nplease report it, with \
                the model if you can\n",
            b.stage, b.message
        ),
    }
}

/// A whole failure as JSON lines.
pub fn failure_json(f: &Failure) -> String {
    match f {
        Failure::Errors(es) => es.iter().map(|e| json(e) + "\n").collect(),
        Failure::Io(path, reason) => {
            json!({"severity": "error", "code": "IO", "title": reason, "origin": {"file": path}}).to_string()
                + "\n"
        }
        Failure::Bug(b) => {
            json!({"severity": "bug", "code": "BUG", "title": b.message, "stage": b.stage}).to_string() + "\n"
        }
    }
}
