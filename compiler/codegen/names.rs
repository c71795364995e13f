//! ONNX names -> identifiers for C and Rust: lower snake case, with `_` for other characters and the prefix
//! `m_` before a digit or a keyword. A name without letters and digits is numbered: `in_1`. Colliding names
//! get the next free suffix in the order of the model (`x`, `x_2`), with a warning that names both. A
//! dimension and a tensor may have the same name in ONNX; their collision is only a note. Names chosen with
//! --rename are not changed.

use crate::diag::{Error, Failure, Findings, Result, Severity, codes};
use std::collections::BTreeMap;
use std::path::Path;

const KEYWORDS: &[&str] = &[
    "alignas",
    "alignof",
    "and",
    "and_eq",
    "as",
    "asm",
    "async",
    "auto",
    "await",
    "become",
    "bitand",
    "bitor",
    "bool",
    "box",
    "break",
    "case",
    "catch",
    "char",
    "class",
    "compl",
    "concept",
    "const",
    "constexpr",
    "continue",
    "crate",
    "decltype",
    "default",
    "delete",
    "do",
    "double",
    "dyn",
    "else",
    "enum",
    "errno",
    "exec",
    "explicit",
    "export",
    "extern",
    "false",
    "final",
    "float",
    "fn",
    "for",
    "friend",
    "gen",
    "goto",
    "if",
    "impl",
    "in",
    "inline",
    "int",
    "let",
    "long",
    "loop",
    "macro",
    "main",
    "match",
    "mod",
    "move",
    "mut",
    "mutable",
    "namespace",
    "new",
    "noexcept",
    "not",
    "not_eq",
    "nullptr",
    "operator",
    "or",
    "or_eq",
    "override",
    "priv",
    "private",
    "protected",
    "pub",
    "public",
    "ref",
    "register",
    "requires",
    "restrict",
    "return",
    "self",
    "short",
    "signed",
    "sizeof",
    "static",
    "static_assert",
    "struct",
    "super",
    "switch",
    "template",
    "this",
    "thread_local",
    "throw",
    "trait",
    "true",
    "try",
    "type",
    "typedef",
    "typeid",
    "typename",
    "typeof",
    "union",
    "unsafe",
    "unsigned",
    "unsized",
    "use",
    "using",
    "virtual",
    "void",
    "volatile",
    "wchar_t",
    "where",
    "while",
    "workspace",
    "weights",
    "xor",
    "xor_eq",
    "yield",
];

/// An identifier for a name; only the prefix if the name has no letter and no digit.
pub fn snake(name: &str) -> String {
    let out = letters(name);
    if out.is_empty() || out.starts_with(|c: char| c.is_ascii_digit()) || KEYWORDS.contains(&out.as_str()) {
        format!("m_{out}")
    } else {
        out
    }
}

/// The letters and digits of a name in lower snake case.
fn letters(name: &str) -> String {
    let mut out = String::new();
    let mut low = false;
    for c in name.chars() {
        if c.is_ascii_alphanumeric() {
            if c.is_ascii_uppercase() && low {
                out.push('_');
            }
            low = c.is_ascii_lowercase();
            out.push(c.to_ascii_lowercase());
        } else {
            low = false;
            if !out.is_empty() && !out.ends_with('_') {
                out.push('_');
            }
        }
    }
    out.trim_end_matches('_').to_owned()
}

/// True for an identifier of C and Rust.
pub fn is_identifier(n: &str) -> bool {
    n.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && n.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
        && !KEYWORDS.contains(&n)
}

/// `<m>`: the user's choice, else the stem of the output file, else that of the model (abi/README.md, rule
/// 12: the models of a hub are all called model.onnx).
pub fn model_name(given: Option<&str>, output: Option<&Path>, model: &str) -> Result<String> {
    if let Some(n) = given {
        return if is_identifier(n) {
            Ok(n.to_owned())
        } else {
            Error::new(codes::OPTION, "--name is not an identifier")
                .found_expected(n, "a C and Rust identifier, such as my_model")
                .fail()
        };
    }
    if output.is_none() && model.starts_with('<') {
        return Ok("model".into());
    }
    let stem = output
        .unwrap_or(Path::new(model))
        .file_stem()
        .map_or("model".into(), |s| s.to_string_lossy().into_owned());
    Ok(snake(&stem))
}

/// Identifiers of one interface.
pub struct Names<'a> {
    renames: &'a BTreeMap<String, String>,
    /// Identifier -> name and its kind.
    used: BTreeMap<String, (String, String)>,
    /// Identifiers chosen by the user, with the name that has been assigned each.
    chosen: BTreeMap<&'a str, Option<&'a str>>,
    /// Number of names of each kind without letters and digits.
    nameless: BTreeMap<&'static str, usize>,
    findings: Findings,
}

impl<'a> Names<'a> {
    /// An empty set of identifiers with the user's renames.
    pub fn new(renames: &'a BTreeMap<String, String>) -> Self {
        let chosen = renames.values().map(|id| (id.as_str(), None)).collect();
        Names {
            renames,
            used: BTreeMap::new(),
            chosen,
            nameless: BTreeMap::new(),
            findings: Findings::default(),
        }
    }
    /// The identifier of a name. Collisions are noted. `what` is input, output or dimension.
    pub fn ident(&mut self, name: &str, what: &str) -> Result<String> {
        if let Some((key, id)) = self.renames.get_key_value(name) {
            if *id != snake(id) || letters(id).is_empty() {
                return Err(Failure::from(
                    Error::new(
                        codes::OPTION,
                        format!("--rename '{}={id}' gives no identifier", name.escape_debug()),
                    )
                    .found_expected(id, "lower snake case, no keyword of C or Rust"),
                ));
            }
            let other = self.chosen.insert(id, Some(key)).flatten().filter(|o| *o != key);
            if let Some(other) = other {
                let e = Error::new(
                    codes::NAME_CLASH,
                    format!("--rename gives two names the identifier \"{id}\""),
                );
                self.findings.push(e.row("first", shown(what, other)).row("second", shown(what, key)));
            }
            self.used.insert(id.clone(), (name.to_owned(), what.to_owned()));
            return Ok(id.clone());
        }
        let short = match what {
            "input" => "in",
            "output" => "out",
            _ => "dim",
        };
        let base = if letters(name).is_empty() {
            let n = self.nameless.entry(short).or_insert(0);
            *n += 1;
            format!("{short}_{n}")
        } else {
            snake(name)
        };
        let mut id = base.clone();
        let mut n = 1usize;
        while self.used.contains_key(&id) || self.chosen.contains_key(id.as_str()) {
            n += 1;
            id = format!("{base}_{n}");
        }
        if let Some((other, kind)) = self.used.get(&base) {
            // Dimensions and tensors have separate namespaces in ONNX.
            let apart = (kind == "dimension") != (what == "dimension");
            let e = Error::warning(
                codes::NAME_CLASH,
                format!("two names become the identifier \"{base}\": the second one gets \"{id}\""),
            )
            .row("first", shown(kind, other))
            .row("second", shown(what, name))
            .help(format!("choose a name: --rename '{}={id}'", name.escape_debug()));
            self.findings
                .push(Error { severity: if apart { Severity::Note } else { Severity::Warning }, ..e });
        }
        self.used.insert(id.clone(), (name.to_owned(), what.to_owned()));
        Ok(id)
    }
    /// Fails if the user gave two names the same identifier; otherwise returns the notes.
    pub fn check(mut self) -> Result<Vec<Error>> {
        self.findings.check()?;
        Ok(self.findings.warnings().to_vec())
    }
}

fn shown(what: &str, name: &str) -> String {
    format!("{what} \"{}\"", name.escape_debug())
}
