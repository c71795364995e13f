//! Reads tests/spec/*.spec.

use std::path::Path;

/// What is expected of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    Accept,
    Note,
    Warn,
    Error,
    Unsupported,
}

/// One model with what is expected of it.
#[derive(Clone, Debug)]
pub struct Test {
    /// File and line, for messages.
    pub place: String,
    pub expect: Expect,
    /// Diagnostic code, e.g. `E0004`; empty for `accept`.
    pub code: String,
    /// What the finding must say.
    pub texts: Vec<String>,
    /// As on the command line.
    pub flags: Vec<String>,
    /// The model as text; may be empty.
    pub model: String,
    /// Lines that begin with `@`, without it: command and argument.
    pub steps: Vec<(String, String)>,
}

/// One requirement.
#[derive(Clone, Debug)]
pub struct Entry {
    pub id: String,
    pub place: String,
    /// `decided` against the requirement.
    pub decided: bool,
    pub why: String,
    pub see: Vec<String>,
    pub tests: Vec<Test>,
}

/// All entries, in the order of their files and lines.
pub fn read_all(folder: &Path) -> Result<Vec<Entry>, String> {
    let list = std::fs::read_dir(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let mut files: Vec<_> =
        list.flatten().map(|e| e.path()).filter(|p| p.extension().is_some_and(|x| x == "spec")).collect();
    files.sort();
    let mut out = vec![];
    for f in files {
        let text = std::fs::read_to_string(&f).map_err(|e| format!("{}: {e}", f.display()))?;
        let name = f.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        read(&name, &text, &mut out)?;
    }
    Ok(out)
}

fn read(file: &str, text: &str, out: &mut Vec<Entry>) -> Result<(), String> {
    let first = out.len();
    for (i, line) in text.lines().enumerate() {
        let place = format!("tests/spec/{file}:{}", i + 1);
        let fail = |what: &str| Err(format!("{place}: {what}: {line}"));
        if line.starts_with('#') {
            continue;
        }
        if let Some(id) = line.strip_prefix("=== ") {
            out.push(Entry {
                id: id.trim().to_owned(),
                place,
                decided: false,
                why: String::new(),
                see: vec![],
                tests: vec![],
            });
            continue;
        }
        let Some(entry) = out[first..].last_mut() else {
            if line.trim().is_empty() {
                continue;
            }
            return fail("text before the first entry");
        };
        if let Some(head) = line.strip_prefix("--- ") {
            entry.tests.push(header(head, &place)?);
        } else if let Some(test) = entry.tests.last_mut() {
            match line.strip_prefix('@') {
                Some(step) => {
                    let (command, rest) = step.split_once(' ').unwrap_or((step, ""));
                    test.steps.push((command.to_owned(), rest.trim().to_owned()));
                }
                None => {
                    test.model.push_str(line);
                    test.model.push('\n');
                }
            }
        } else if let Some(v) = line.strip_prefix("verdict:") {
            entry.decided = match v.trim() {
                "holds" => false,
                "decided" => true,
                _ => return fail("holds or decided"),
            };
        } else if let Some(v) = line.strip_prefix("why:") {
            entry.why = v.trim().to_owned();
        } else if let Some(v) = line.strip_prefix("see:") {
            entry.see.extend(v.split(',').map(|s| s.trim().to_owned()));
        } else if !line.trim().is_empty() {
            return fail("verdict:, why:, see: or ---");
        }
    }
    Ok(())
}

fn header(text: &str, place: &str) -> Result<Test, String> {
    let (text, flags) = match text.split_once('[') {
        Some((t, f)) if t.matches('"').count() % 2 == 0 => (t, f.trim_end().trim_end_matches(']')),
        _ => (text, ""),
    };
    let (words, texts) = quoted(text).ok_or_else(|| format!("{place}: a quote is open"))?;
    let mut words = words.split_whitespace();
    let expect = match words.next() {
        Some("accept") => Expect::Accept,
        Some("note") => Expect::Note,
        Some("warn") => Expect::Warn,
        Some("error") => Expect::Error,
        Some("unsupported") => Expect::Unsupported,
        _ => return Err(format!("{place}: accept, note, warn, error or unsupported")),
    };
    let code = words.next().unwrap_or_default().to_owned();
    if (expect == Expect::Accept) != code.is_empty() || expect != Expect::Accept && texts.is_empty() {
        return Err(format!("{place}: all but accept have a code and a text"));
    }
    Ok(Test {
        place: place.to_owned(),
        expect,
        code,
        texts,
        flags: flags.split_whitespace().map(str::to_owned).collect(),
        model: String::new(),
        steps: vec![],
    })
}

/// Splits off what stands in quotes; `\"`, `\\`, `\n` and `\xNN` are escapes.
pub fn quoted(text: &str) -> Option<(String, Vec<String>)> {
    let (mut words, mut texts) = (String::new(), vec![]);
    let mut rest = text;
    while let Some(at) = rest.find('"') {
        words.push_str(&rest[..at]);
        let (bytes, n) = unescape(&rest[at + 1..])?;
        texts.push(String::from_utf8(bytes).ok()?);
        rest = &rest[at + 1 + n..];
    }
    words.push_str(rest);
    Some((words, texts))
}

/// Bytes of a string up to its closing quote, and how much of the text that is with the quote.
pub fn unescape(text: &str) -> Option<(Vec<u8>, usize)> {
    let b = text.as_bytes();
    let (mut out, mut i) = (vec![], 0);
    loop {
        match b.get(i)? {
            b'"' => return Some((out, i + 1)),
            b'\\' => {
                i += 1;
                match b.get(i)? {
                    b'n' => out.push(b'\n'),
                    b'x' => {
                        out.push(u8::from_str_radix(text.get(i + 1..i + 3)?, 16).ok()?);
                        i += 2;
                    }
                    c => out.push(*c),
                }
            }
            c => out.push(*c),
        }
        i += 1;
    }
}
