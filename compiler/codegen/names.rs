//! ONNX names -> identifiers for C and Rust (abi/README.md, rule 12): lower snake case, other characters `_`, prefix
//! `m_` before a digit or a keyword. Two names that become one are an error that lists both.

use crate::diag::{Error, Failure, Findings, Result, codes};
use std::collections::BTreeMap;

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

/// An identifier for a name.
pub fn snake(name: &str) -> String {
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
    let out = out.trim_end_matches('_').to_owned();
    if out.is_empty() || out.starts_with(|c: char| c.is_ascii_digit()) || KEYWORDS.contains(&out.as_str()) { format!("m_{out}") } else { out }
}

/// `<m>`: what the user chose, else the file's stem.
pub fn model_name(given: Option<&str>, file: &str) -> Result<String> {
    if let Some(n) = given {
        let ok = n.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') && n.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') && !KEYWORDS.contains(&n);
        return if ok { Ok(n.to_owned()) } else { Error::new(codes::OPTION, "--name is not an identifier").found_expected(n, "a C and Rust identifier, such as my_model").fail() };
    }
    if file.starts_with('<') {
        return Ok("model".into());
    }
    let stem = std::path::Path::new(file).file_stem().map_or("model".into(), |s| s.to_string_lossy().into_owned());
    Ok(snake(&stem))
}

/// Identifiers of one interface.
pub struct Names<'a> {
    renames: &'a BTreeMap<String, String>,
    used: BTreeMap<String, (String, String)>,
    findings: Findings,
}

impl<'a> Names<'a> {
    /// With the user's renames.
    pub fn new(renames: &'a BTreeMap<String, String>) -> Self {
        Names { renames, used: BTreeMap::new(), findings: Findings::default() }
    }
    /// The identifier of a name; a clash is noted.
    pub fn ident(&mut self, name: &str, what: &str) -> Result<String> {
        let id = match self.renames.get(name) {
            Some(r) => r.clone(),
            None => snake(name),
        };
        if id != snake(&id) {
            return Err(Failure::from(Error::new(codes::OPTION, "--rename gives no identifier").found_expected(id, "lower snake case")));
        }
        if let Some((other, kind)) = self.used.get(&id) {
            self.findings.push(
                Error::new(codes::NAME_CLASH, format!("two names become the identifier \"{id}\""))
                    .row("first", format!("{kind} \"{other}\""))
                    .row("second", format!("{what} \"{name}\""))
                    .help(format!("name one of them: --rename '{name}={id}_2'")),
            );
        }
        self.used.insert(id.clone(), (name.to_owned(), what.to_owned()));
        Ok(id)
    }
    /// Fails if names clashed.
    pub fn check(&mut self) -> Result<()> {
        self.findings.check()
    }
}
