//! Text form of dims, and the argument of `--dim`.
//!
//! ```text
//! dim    = ["-"] term (("+" | "-") term)*
//! term   = factor ("*" factor)*
//! factor = integer | name | "(" dim ")" | ("floordiv" | "mod" | "min" | "max") "(" dim ("," dim)* ")"
//! ```
//!
//! A name that is not an identifier is in single quotes; a quote inside is doubled. `overflow` is the
//! poison.

use super::{Atom, Dim, Range, Sym, SymTable, View};
use std::fmt;

/// Shows a dim with the names of a table.
pub struct Shown<'a>(Dim, &'a SymTable);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&display_with(self.0, &|s| quote(&self.1.unique_name(s))))
    }
}

fn is_ident(s: &str) -> bool {
    s.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && s.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '.')
        && !matches!(s, "floordiv" | "mod" | "min" | "max" | "overflow")
}

/// A symbol's name, quoted where the grammar needs it.
pub fn quote(name: &str) -> String {
    if is_ident(name) { name.to_owned() } else { format!("'{}'", name.replace('\'', "''")) }
}

impl Dim {
    /// Text for messages, with the names of `syms`.
    pub fn display(self, syms: &SymTable) -> Shown<'_> {
        Shown(self, syms)
    }
}

/// Text of a dim; `name` gives a symbol's text.
pub fn display_with(d: Dim, name: &dyn Fn(Sym) -> String) -> String {
    match d.view() {
        View::Const(c) => c.to_string(),
        View::Overflow => "overflow".into(),
        View::Sum { terms, constant } => {
            let mut out = String::new();
            let mut put = |c: i64, body: String| {
                let sign = match (out.is_empty(), c < 0) {
                    (true, false) => "",
                    (true, true) => "-",
                    (false, false) => " + ",
                    (false, true) => " - ",
                };
                let n = c.unsigned_abs();
                out.push_str(sign);
                out.push_str(&match (n, body.is_empty()) {
                    (_, true) => n.to_string(),
                    (1, false) => body,
                    _ => format!("{n}*{body}"),
                });
            };
            for (c, atoms) in terms {
                put(*c, atoms.iter().map(|a| atom(a, name)).collect::<Vec<_>>().join("*"));
            }
            if constant != 0 {
                put(constant, String::new());
            }
            out
        }
    }
}

fn atom(a: &Atom, name: &dyn Fn(Sym) -> String) -> String {
    let list = |v: &[Dim]| v.iter().map(|d| display_with(*d, name)).collect::<Vec<_>>().join(", ");
    match a {
        Atom::Sym(s) => name(*s),
        Atom::FloorDiv(x, y) => format!("floordiv({})", list(&[*x, *y])),
        Atom::Mod(x, y) => format!("mod({})", list(&[*x, *y])),
        Atom::Min(v) => format!("min({})", list(v)),
        Atom::Max(v) => format!("max({})", list(v)),
    }
}

/// Reads a dim; `sym` resolves names. The error contains the expected token and its position.
pub fn parse(text: &str, sym: &mut dyn FnMut(&str) -> Option<Sym>) -> Result<Dim, String> {
    let mut p = Parser { text, at: 0, sym };
    let d = p.sum(0)?;
    p.space();
    if p.at == text.len() {
        Ok(d)
    } else {
        Err(format!("unexpected \"{}\" in dim \"{text}\"", &text[p.at..]))
    }
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
    sym: &'a mut dyn FnMut(&str) -> Option<Sym>,
}

impl Parser<'_> {
    fn space(&mut self) {
        self.at += self.text[self.at..].len() - self.text[self.at..].trim_start().len();
    }
    fn eat(&mut self, c: char) -> bool {
        self.space();
        let hit = self.text[self.at..].starts_with(c);
        if hit {
            self.at += c.len_utf8();
        }
        hit
    }
    fn take(&mut self, f: impl Fn(char) -> bool) -> &str {
        let rest = &self.text[self.at..];
        let n = rest.find(|c| !f(c)).unwrap_or(rest.len());
        self.at += n;
        &rest[..n]
    }
    fn sum(&mut self, depth: u32) -> Result<Dim, String> {
        if depth > 2 * super::expr::MAX_DEPTH {
            return Err("dim nests too deeply".into());
        }
        let negative = self.eat('-');
        let mut d = self.product(depth, negative)?;
        loop {
            if self.eat('+') {
                d += self.product(depth, false)?;
            } else if self.eat('-') {
                d += self.product(depth, true)?;
            } else {
                return Ok(d);
            }
        }
    }
    /// The sign belongs to the first factor: -2^63 is a number, 2^63 is not.
    fn product(&mut self, depth: u32, negative: bool) -> Result<Dim, String> {
        let mut d = match self.number()? {
            Some(n) => Dim::from(if negative { -n } else { n }),
            None if negative => -self.factor(depth)?,
            None => self.factor(depth)?,
        };
        while self.eat('*') {
            d *= self.factor(depth)?;
        }
        Ok(d)
    }
    fn number(&mut self) -> Result<Option<i128>, String> {
        self.space();
        if !self.text[self.at..].starts_with(|c: char| c.is_ascii_digit()) {
            return Ok(None);
        }
        let word = self.take(|c| c.is_alphanumeric() || c == '_' || c == '.').to_owned();
        word.parse::<u64>().map(|n| Some(i128::from(n))).map_err(|_| format!("\"{word}\" is not a number"))
    }
    fn factor(&mut self, depth: u32) -> Result<Dim, String> {
        if self.eat('(') {
            let d = self.sum(depth + 1)?;
            return if self.eat(')') { Ok(d) } else { Err(format!("missing ) in dim \"{}\"", self.text)) };
        }
        if self.eat('\'') {
            let mut name = String::new();
            loop {
                name.push_str(self.take(|c| c != '\''));
                match &self.text.as_bytes()[self.at..] {
                    [b'\'', b'\'', ..] => {
                        name.push('\'');
                        self.at += 2;
                    }
                    [b'\'', ..] => {
                        self.at += 1;
                        break;
                    }
                    _ => return Err(format!("missing ' in dim \"{}\"", self.text)),
                }
            }
            return (self.sym)(&name).map(Dim::sym).ok_or_else(|| format!("unknown symbol \"{name}\""));
        }
        if let Some(n) = self.number()? {
            return Ok(Dim::from(n));
        }
        let word = self.take(|c| c.is_alphanumeric() || c == '_' || c == '.').to_owned();
        if word.is_empty() {
            return Err(format!(
                "expected a number or a name at \"{}\" in dim \"{}\"",
                &self.text[self.at..],
                self.text
            ));
        }
        if matches!(word.as_str(), "floordiv" | "mod" | "min" | "max") && self.eat('(') {
            let mut v = vec![self.sum(depth + 1)?];
            while self.eat(',') {
                v.push(self.sum(depth + 1)?);
            }
            if !self.eat(')') {
                return Err(format!("missing ) in dim \"{}\"", self.text));
            }
            return match (word.as_str(), v.as_slice()) {
                ("floordiv", [a, b]) => Ok(a.floor_div(*b)),
                ("mod", [a, b]) => Ok(a.modulo(*b)),
                ("min", v) => Ok(v.iter().copied().reduce(Dim::min).unwrap_or_default()),
                ("max", v) => Ok(v.iter().copied().reduce(Dim::max).unwrap_or_default()),
                _ => Err(format!("{word} takes two arguments")),
            };
        }
        if word == "overflow" {
            return Ok(Dim::overflow());
        }
        (self.sym)(&word).map(Dim::sym).ok_or_else(|| format!("unknown symbol \"{word}\""))
    }
}

/// The constraint that one `--dim` argument gives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DimOption {
    /// `N=4`.
    Bind(i64),
    /// `N<=32`, `1<=N`, `1<=N<=32`.
    Within(Range),
}

impl DimOption {
    /// The text of the argument for a dimension of this name.
    pub fn text(&self, name: &str) -> String {
        match self {
            DimOption::Bind(n) => format!("{name}={n}"),
            DimOption::Within(r) => {
                let lo = r.lo.map_or(String::new(), |l| format!("{l}<="));
                format!("{lo}{name}{}", r.hi.map_or(String::new(), |h| format!("<={h}")))
            }
        }
    }
}

/// Reads `N=4`, `N<=32`, `N>=1` or `1<=N<=32`: the dimension's name and the constraint.
pub fn parse_dim_option(text: &str) -> Result<(String, DimOption), String> {
    let bad = || format!("\"{text}\" is not of the form N=4, N<=32, N>=1 or 1<=N<=32");
    let num = |s: &str| s.trim().parse::<i64>().ok().filter(|n| *n >= 0).ok_or_else(bad);
    let name = |s: &str| {
        Some(s.trim().to_owned())
            .filter(|s| !s.is_empty() && !s.contains("<=") && !s.contains(">="))
            .ok_or_else(bad)
    };
    let parts: Vec<&str> = text.split("<=").collect();
    match parts.as_slice() {
        [a, b, c] => {
            let r = Range::new(num(a)?, num(c)?);
            if r.lo > r.hi {
                Err(format!("\"{text}\" allows no value"))
            } else {
                Ok((name(b)?, DimOption::Within(r)))
            }
        }
        [a, b] => match num(a) {
            Ok(lo) => Ok((name(b)?, DimOption::Within(Range::at_least(lo)))),
            Err(_) => Ok((name(a)?, DimOption::Within(Range { lo: None, hi: Some(num(b)?) }))),
        },
        _ => match text.split_once(">=") {
            Some((a, b)) => Ok((name(a)?, DimOption::Within(Range::at_least(num(b)?)))),
            None => {
                let (a, b) = text.rsplit_once('=').ok_or_else(bad)?;
                Ok((name(a)?, DimOption::Bind(num(b)?)))
            }
        },
    }
}
