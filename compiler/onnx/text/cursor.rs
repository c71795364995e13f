//! Characters and tokens of the ONNX textual syntax: a position in the text, literals, and errors with line
//! and column.
//!
//! The syntax has no context-free tokens: whether `1` is an integer or a float, or `float` a type or a name,
//! depends on the position. The parser therefore asks the cursor for the token that it expects.

use crate::diag::{Error, Failure, Origin, Result, codes};

/// A number or string literal.
#[derive(Clone, Debug, PartialEq)]
pub enum Literal {
    /// Digits with an optional sign.
    Int(String),
    /// Decimal point, exponent, or one of nan, inf, infinity.
    Float(String),
    /// The contents of a quoted string, without quotes and escapes.
    Str(Vec<u8>),
}

/// A position in a text.
pub struct Cursor<'a> {
    text: &'a str,
    file: &'a str,
    at: usize,
}

fn ident_start(c: u8) -> bool {
    c.is_ascii_alphabetic() || c == b'_'
}

impl<'a> Cursor<'a> {
    /// A cursor at the start of a text; `file` is its name in errors.
    pub fn new(text: &'a str, file: &'a str) -> Self {
        Cursor { text, file, at: 0 }
    }
    fn bytes(&self) -> &'a [u8] {
        self.text.as_bytes()
    }
    fn cur(&self) -> Option<u8> {
        self.bytes().get(self.at).copied()
    }
    fn take_while(&mut self, f: impl Fn(u8) -> bool) -> &'a str {
        let from = self.at;
        while self.cur().is_some_and(&f) {
            self.at += 1;
        }
        // All predicates accept ASCII only, so the ends are character boundaries.
        self.text.get(from..self.at).unwrap_or_default()
    }
    /// Skips white space and comments.
    pub fn space(&mut self) {
        loop {
            self.take_while(|c| c.is_ascii_whitespace() || c == 0x0b);
            if self.cur() != Some(b'#') {
                return;
            }
            self.take_while(|c| c.is_ascii() && c != b'\n');
            while self.cur().is_some_and(|c| c != b'\n') {
                self.at += 1;
            }
        }
    }
    /// The next character after white space; `None` at the end.
    pub fn peek(&mut self) -> Option<u8> {
        self.space();
        self.cur()
    }
    /// The current position, for [`Cursor::rewind`] and [`Cursor::error_at`].
    pub fn mark(&mut self) -> usize {
        self.space();
        self.at
    }
    /// Goes back to a mark.
    pub fn rewind(&mut self, mark: usize) {
        self.at = mark;
    }
    /// Consumes the character if it is next.
    pub fn eat(&mut self, c: u8) -> bool {
        let hit = self.peek() == Some(c);
        self.at += usize::from(hit);
        hit
    }
    /// Consumes the character, which must be next.
    pub fn expect(&mut self, c: char, what: &str) -> Result<()> {
        let hit = u8::try_from(c).is_ok_and(|b| self.eat(b));
        if hit { Ok(()) } else { Err(self.expected(&format!("\"{c}\" {what}"))) }
    }
    /// Consumes `=` if it is next and does not begin `=>`.
    pub fn eat_equals(&mut self) -> bool {
        let m = self.mark();
        !self.bytes()[m..].starts_with(b"=>") && self.eat(b'=')
    }
    /// Consumes `=>`, which is one token.
    pub fn arrow(&mut self) -> Result<()> {
        self.space();
        if self.bytes()[self.at..].starts_with(b"=>") {
            self.at += 2;
            return Ok(());
        }
        Err(self.expected("\"=>\" before the outputs"))
    }
    /// Consumes an identifier if one is next.
    pub fn ident_opt(&mut self) -> Option<&'a str> {
        if !self.peek().is_some_and(ident_start) {
            return None;
        }
        Some(self.take_while(|c| c.is_ascii_alphanumeric() || c == b'_'))
    }
    /// The next identifier, if there is one.
    pub fn peek_ident(&mut self) -> Option<&'a str> {
        let m = self.mark();
        let id = self.ident_opt();
        self.rewind(m);
        id
    }
    /// Consumes an identifier.
    pub fn ident(&mut self, what: &str) -> Result<&'a str> {
        self.ident_opt().ok_or_else(|| self.expected(what))
    }
    /// Consumes an identifier or a quoted name.
    pub fn name(&mut self, what: &str) -> Result<String> {
        if self.peek() == Some(b'"') { self.string() } else { self.ident(what).map(str::to_owned) }
    }
    /// Consumes an identifier or a quoted name if one is next.
    pub fn name_opt(&mut self) -> Result<Option<String>> {
        if self.peek() == Some(b'"') {
            self.string().map(Some)
        } else {
            Ok(self.ident_opt().map(str::to_owned))
        }
    }
    /// Consumes a quoted string.
    pub fn string(&mut self) -> Result<String> {
        let m = self.mark();
        let v = self.quoted()?;
        // A quoted part of UTF-8 text is UTF-8 without its escapes as well.
        String::from_utf8(v).map_err(|_| self.error_at(m, "the string is not UTF-8"))
    }
    /// Consumes a quoted string as bytes. A backslash escapes the character after it.
    pub fn quoted(&mut self) -> Result<Vec<u8>> {
        let m = self.mark();
        if !self.eat(b'"') {
            return Err(self.expected("a string in double quotes"));
        }
        let mut out = vec![];
        loop {
            match self.cur() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(out);
                }
                Some(c) => {
                    self.at += 1;
                    let c = if c == b'\\' { self.cur().inspect(|_| self.at += 1) } else { Some(c) };
                    out.extend(c);
                }
                None => return Err(self.error_at(m, "the string has no closing quote")),
            }
        }
    }
    /// True if nan, inf or infinity is next.
    pub fn at_float_word(&mut self) -> bool {
        self.peek_ident()
            .is_some_and(|w| ["inf", "infinity", "nan"].iter().any(|f| w.eq_ignore_ascii_case(f)))
    }
    /// Consumes a number or a string.
    pub fn literal(&mut self) -> Result<Literal> {
        let from = self.mark();
        if self.cur() == Some(b'"') {
            return self.quoted().map(Literal::Str);
        }
        if self.cur() == Some(b'-') {
            self.at += 1;
        }
        let mut float = false;
        match self.cur() {
            Some(c) if c.is_ascii_digit() => {
                self.take_while(|c| c.is_ascii_digit());
                if self.cur() == Some(b'.') {
                    float = true;
                    self.at += 1;
                    self.take_while(|c| c.is_ascii_digit());
                }
                if matches!(self.cur(), Some(b'e' | b'E')) {
                    float = true;
                    self.at += 1;
                    if matches!(self.cur(), Some(b'+' | b'-')) {
                        self.at += 1;
                    }
                    self.take_while(|c| c.is_ascii_digit());
                }
            }
            Some(c) if c.is_ascii_alphabetic() && self.at_float_word() => {
                float = true;
                self.take_while(|c| c.is_ascii_alphabetic());
            }
            _ => {
                self.at = from;
                return Err(self.expected("a number or a string"));
            }
        }
        let text = self.text.get(from..self.at).unwrap_or_default().to_owned();
        Ok(if float { Literal::Float(text) } else { Literal::Int(text) })
    }
    /// Consumes an integer within the range.
    pub fn int<T: TryFrom<i128>>(&mut self, what: &str, range: std::ops::RangeInclusive<i128>) -> Result<T> {
        let m = self.mark();
        let fail = |c: &mut Self, found: &str| {
            c.found(m, found, &format!("{what}: an integer from {} to {}", range.start(), range.end()))
        };
        match self.literal()? {
            Literal::Int(t) => {
                match t.parse::<i128>().ok().filter(|v| range.contains(v)).and_then(|v| T::try_from(v).ok()) {
                    Some(v) => Ok(v),
                    None => Err(fail(self, &t)),
                }
            }
            Literal::Float(t) => Err(fail(self, &t)),
            Literal::Str(_) => Err(fail(self, "a string")),
        }
    }
    /// Consumes a finite float, nan or an infinity. An overflow is an error, not an infinity.
    pub fn float(&mut self) -> Result<f32> {
        let m = self.mark();
        let text = self.number()?;
        match text.parse::<f32>() {
            Ok(v) if v.is_finite() || !text.contains(|c: char| c.is_ascii_digit()) => Ok(v),
            _ => Err(self.found(m, &text, "a number in the range of float")),
        }
    }
    /// As `float`, in double precision.
    pub fn double(&mut self) -> Result<f64> {
        let m = self.mark();
        let text = self.number()?;
        match text.parse::<f64>() {
            Ok(v) if v.is_finite() || !text.contains(|c: char| c.is_ascii_digit()) => Ok(v),
            _ => Err(self.found(m, &text, "a number in the range of double")),
        }
    }
    fn number(&mut self) -> Result<String> {
        let m = self.mark();
        match self.literal()? {
            Literal::Int(t) | Literal::Float(t) => Ok(t),
            Literal::Str(_) => Err(self.found(m, "a string", "a number")),
        }
    }
    /// The error that something else was expected here.
    pub fn expected(&mut self, what: &str) -> Failure {
        let m = self.mark();
        let found = match self.text.get(m..).and_then(|t| t.chars().next()) {
            None => "the end of the text".to_owned(),
            Some(_) if self.peek_ident().is_some() => {
                format!("\"{}\"", self.peek_ident().unwrap_or_default())
            }
            Some(c) => format!("\"{}\"", c.escape_debug()),
        };
        self.found(m, &found, what)
    }
    /// The error for the text found at a mark, with what was expected.
    pub fn found(&self, mark: usize, found: &str, expected: &str) -> Failure {
        self.base(mark, &format!("expected {expected}")).found_expected(found, expected).into()
    }
    /// An error at a mark.
    pub fn error_at(&self, mark: usize, title: &str) -> Failure {
        self.base(mark, title).into()
    }
    /// An error at a mark, with a remedy.
    pub fn error_help(&self, mark: usize, title: &str, help: &str) -> Failure {
        self.base(mark, title).help(help).into()
    }
    fn base(&self, mark: usize, title: &str) -> Error {
        let before = self.text.get(..mark).unwrap_or(self.text);
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        let mut e = Error::new(codes::TEXT_SYNTAX, title)
            .at(&Origin::file(self.file).element(format!("line {line}, column {column}")));
        let shown: String = self.text.lines().nth(line - 1).unwrap_or_default().chars().take(120).collect();
        if !shown.trim().is_empty() {
            e = e.row("line", shown.trim());
        }
        e
    }
}
