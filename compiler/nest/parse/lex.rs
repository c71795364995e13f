//! Tokens of the nest text.

use crate::diag::{Error, Result, codes};

/// One token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Tok<'a> {
    /// A name or keyword.
    Word(&'a str),
    /// `'a name'`.
    Quoted(&'a str),
    /// Digits, with a fraction or exponent for floats.
    Num(&'a str),
    /// `%3`.
    Reg(u32),
    /// `#c0ffee00`.
    Hash(&'a str),
    /// Everything after `;`.
    Comment(&'a str),
    /// Operators and brackets.
    Punct(&'a str),
    /// Nothing is left.
    End,
}

impl Tok<'_> {
    /// For messages.
    pub fn text(self) -> String {
        match self {
            Tok::Word(t) | Tok::Quoted(t) | Tok::Num(t) | Tok::Hash(t) | Tok::Comment(t) | Tok::Punct(t) => {
                t.to_owned()
            }
            Tok::Reg(n) => format!("%{n}"),
            Tok::End => "the end".into(),
        }
    }
}

/// A token, its line (from 1), and whether space is before it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Token<'a> {
    pub tok: Tok<'a>,
    pub line: usize,
    pub spaced: bool,
}

const PUNCT: &[&str] = &[
    "..", "==", "!=", "<=", ">=", "<", ">", "=", "+", "-", "*", "/", "(", ")", "[", "]", "{", "}", ",", ".",
    ":",
];

/// Splits a text.
pub(super) fn tokens(text: &str) -> Result<Vec<Token<'_>>> {
    let mut out = vec![];
    for (n, line) in text.lines().enumerate() {
        let mut rest = line;
        loop {
            let after = rest.trim_start();
            let spaced = after.len() < rest.len() || rest.len() == line.len();
            rest = after;
            let Some((tok, len)) = token(rest) else {
                if rest.is_empty() {
                    break;
                }
                return Error::new(codes::TEXT_SYNTAX, format!("nest text, line {}: unreadable text", n + 2))
                    .row("found", rest)
                    .fail();
            };
            out.push(Token { tok, line: n + 1, spaced });
            rest = &rest[len..];
        }
    }
    Ok(out)
}

fn token(s: &str) -> Option<(Tok<'_>, usize)> {
    let first = s.chars().next()?;
    let digits = |s: &str| s.find(|c: char| !c.is_ascii_digit()).unwrap_or(s.len());
    Some(match first {
        ';' => (Tok::Comment(&s[1..]), s.len()),
        '\'' => {
            let n = s[1..].find('\'')?;
            (Tok::Quoted(&s[1..=n]), n + 2)
        }
        '%' => {
            let n = digits(&s[1..]);
            (Tok::Reg(s[1..=n].parse().ok()?), n + 1)
        }
        '#' => {
            let n = s[1..].find(|c: char| !c.is_ascii_alphanumeric()).map_or(s.len(), |n| n + 1);
            (Tok::Hash(&s[1..n]), n)
        }
        '0'..='9' => {
            let n = number(s, digits);
            (Tok::Num(&s[..n]), n)
        }
        'a'..='z' | 'A'..='Z' | '_' => (Tok::Word(&s[..word(s)]), word(s)),
        '/' if word(s) > 1 => (Tok::Word(&s[..word(s)]), word(s)),
        _ => {
            let p = PUNCT.iter().find(|p| s.starts_with(**p))?;
            (Tok::Punct(p), p.len())
        }
    })
}

/// Letters, digits, `_`, `/` and single dots.
fn word(s: &str) -> usize {
    let b = s.as_bytes();
    let mut n = 0;
    while n < b.len()
        && (b[n].is_ascii_alphanumeric()
            || matches!(b[n], b'_' | b'/')
            || (b[n] == b'.' && b.get(n + 1) != Some(&b'.')))
    {
        n += 1;
    }
    n
}

/// `12`, `1.5`, `1e-5`, `2.5e10`; the dots of `0..4` do not belong to the number.
fn number(s: &str, digits: impl Fn(&str) -> usize) -> usize {
    let mut n = digits(s);
    if s[n..].starts_with('.') && s[n + 1..].starts_with(|c: char| c.is_ascii_digit()) {
        n += 1 + digits(&s[n + 1..]);
    }
    if let Some(e) = s[n..].strip_prefix('e') {
        let sign = usize::from(e.starts_with('-'));
        let d = digits(&e[sign..]);
        if d > 0 {
            n += 1 + sign + d;
        }
    }
    n
}
