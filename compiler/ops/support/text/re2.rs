//! Regular expressions in the syntax of RE2 (<https://github.com/google/re2/wiki/Syntax>), with RE2's rules:
//! what it rejects is rejected, and constructs that other dialects interpret differently (`&&` or `[` within
//! classes, `{` that is not a repetition) have RE2's meaning. The result is the tree of the `regex-syntax`
//! crate.
//!
//! Groups do not capture, and lazy repetitions are like others, because only the longest match counts.

use regex_syntax::hir::{
    Class, ClassBytes, ClassBytesRange, ClassUnicode, ClassUnicodeRange, Hir, HirKind, Look, Repetition,
};
use std::iter::Peekable;
use std::str::Chars;

/// Deepest nesting of groups, and most repetitions.
const MOST: u32 = 1000;

type Result<T> = std::result::Result<T, String>;

/// The flags of `(?ims)`.
#[derive(Clone, Copy, Default)]
struct Flags {
    fold: bool,
    lines: bool,
    dot_all: bool,
}

/// An open group: the preceding alternatives, the parts of the current one, the flags outside.
struct Open {
    alternatives: Vec<Hir>,
    parts: Vec<Hir>,
    outside: Flags,
}

impl Open {
    fn new(outside: Flags) -> Open {
        Open { alternatives: vec![], parts: vec![], outside }
    }
    fn next_alternative(&mut self) {
        let parts = std::mem::take(&mut self.parts);
        self.alternatives.push(Hir::concat(parts));
    }
    fn whole(mut self) -> Hir {
        self.next_alternative();
        Hir::alternation(self.alternatives)
    }
}

/// Parses a pattern; the error says why it is invalid.
pub fn parse(pattern: &str) -> Result<Hir> {
    let mut p = Parser { rest: pattern.chars().peekable(), flags: Flags::default() };
    let (mut open, mut inner) = (vec![], Open::new(Flags::default()));
    // A repetition cannot be repeated again.
    let mut repeated = false;
    while let Some(c) = p.rest.next() {
        let again = std::mem::take(&mut repeated);
        let part = match c {
            '(' => {
                let outside = p.flags;
                if p.group()? {
                    if open.len() >= MOST as usize {
                        return Err(format!("more than {MOST} groups within each other"));
                    }
                    open.push(std::mem::replace(&mut inner, Open::new(outside)));
                }
                continue;
            }
            ')' => {
                let Some(o) = open.pop() else { return Err("a ) without a (".into()) };
                p.flags = inner.outside;
                let done = std::mem::replace(&mut inner, o);
                // An empty group can be repeated.
                done.whole()
            }
            '|' => {
                inner.next_alternative();
                continue;
            }
            '*' | '+' | '?' | '{' => match p.repetition(c)? {
                None => p.literal('{'),
                Some((min, max)) => {
                    if again {
                        return Err("a repetition of a repetition".into());
                    }
                    let Some(sub) = inner.parts.pop() else {
                        return Err(format!("{c} has nothing to repeat"));
                    };
                    repeated = true;
                    Hir::repetition(Repetition { min, max, greedy: true, sub: Box::new(sub) })
                }
            },
            '^' => Hir::look(if p.flags.lines { Look::StartLF } else { Look::Start }),
            '$' => Hir::look(if p.flags.lines { Look::EndLF } else { Look::End }),
            '.' => p.any(),
            '[' => p.class()?,
            '\\' => match p.rest.peek() {
                Some('Q') => {
                    p.rest.next();
                    p.quoted(&mut inner.parts);
                    continue;
                }
                _ => p.escaped()?,
            },
            c => p.literal(c),
        };
        inner.parts.push(part);
    }
    if !open.is_empty() {
        return Err("a ( without a )".into());
    }
    Ok(inner.whole())
}

struct Parser<'a> {
    rest: Peekable<Chars<'a>>,
    flags: Flags,
}

impl Parser<'_> {
    fn take(&mut self, c: char) -> bool {
        self.rest.next_if_eq(&c).is_some()
    }
    fn literal(&self, c: char) -> Hir {
        let mut one = ClassUnicode::new([ClassUnicodeRange::new(c, c)]);
        if self.flags.fold {
            one.case_fold_simple();
        }
        // A class of one character is a literal.
        Hir::class(Class::Unicode(one))
    }
    fn any(&self) -> Hir {
        let mut all = everything();
        if !self.flags.dot_all {
            all.difference(&ClassUnicode::new([ClassUnicodeRange::new('\n', '\n')]));
        }
        Hir::class(Class::Unicode(all))
    }
    /// After a `(`: true if it opens a group, false if it only sets flags.
    fn group(&mut self) -> Result<bool> {
        if !self.take('?') {
            return Ok(true);
        }
        let named = self.take('P') || self.rest.peek() == Some(&'<');
        if named {
            if !self.take('<') {
                return Err("(?P without a name".into());
            }
            let mut name = String::new();
            while let Some(c) = self.rest.next_if(|c| c.is_alphanumeric() || *c == '_') {
                name.push(c);
            }
            if name.is_empty() || !self.take('>') {
                return Err("a group with a name that is none".into());
            }
            return Ok(true);
        }
        let (mut flags, mut on, mut seen) = (self.flags, true, true);
        loop {
            match self.rest.next() {
                Some('i') => flags.fold = on,
                Some('m') => flags.lines = on,
                Some('s') => flags.dot_all = on,
                // Greediness makes no difference.
                Some('U') => {}
                Some('-') if on => {
                    on = false;
                    seen = false;
                    continue;
                }
                Some(c @ (':' | ')')) if seen => {
                    // Flags set in a group end with it: `parse` restores the outer ones.
                    self.flags = flags;
                    return Ok(c == ':');
                }
                c => {
                    return Err(format!(
                        "(? and {} begin no group",
                        c.map_or("the end".into(), |c| format!("{c:?}"))
                    ));
                }
            }
            seen = true;
        }
    }
    /// The bounds of a repetition after `*`, `+`, `?` or `{`; `None` if a `{` is a literal.
    fn repetition(&mut self, c: char) -> Result<Option<(u32, Option<u32>)>> {
        let range = match c {
            '*' => (0, None),
            '+' => (1, None),
            '?' => (0, Some(1)),
            _ => {
                let mut ahead = self.rest.clone();
                let Some(range) = counts(&mut ahead) else { return Ok(None) };
                self.rest = ahead;
                range
            }
        };
        if range.0 > MOST || range.1.is_some_and(|m| m > MOST || m < range.0) {
            return Err(format!(
                "a repetition from {} to {}",
                range.0,
                range.1.map_or("any number".into(), |m| m.to_string())
            ));
        }
        self.take('?');
        Ok(Some(range))
    }
    /// After `\Q`: everything up to `\E` is literal.
    fn quoted(&mut self, parts: &mut Vec<Hir>) {
        while let Some(c) = self.rest.next() {
            if c == '\\' && self.take('E') {
                return;
            }
            parts.push(self.literal(c));
        }
    }
    /// After a `\` outside classes.
    fn escaped(&mut self) -> Result<Hir> {
        let look = match self.rest.peek() {
            Some('b') => Look::WordAscii,
            Some('B') => Look::WordAsciiNegate,
            Some('A') => Look::Start,
            Some('z') => Look::End,
            Some('C') => {
                self.rest.next();
                return Ok(Hir::class(Class::Bytes(ClassBytes::new([ClassBytesRange::new(0, 255)]))));
            }
            _ => {
                return Ok(match self.set()? {
                    Some(set) => Hir::class(Class::Unicode(set)),
                    None => match self.code()? {
                        Some(c) => self.literal(c),
                        None => Hir::fail(),
                    },
                });
            }
        };
        self.rest.next();
        Ok(Hir::look(look))
    }
    /// After a `\`: a Perl or Unicode class, if it is one.
    fn set(&mut self) -> Result<Option<ClassUnicode>> {
        let Some(&c) = self.rest.peek() else { return Ok(None) };
        let ranges: &[(char, char)] = match c.to_ascii_lowercase() {
            'd' => &[('0', '9')],
            's' => &[('\t', '\n'), ('\x0c', '\r'), (' ', ' ')],
            'w' => &[('0', '9'), ('A', 'Z'), ('_', '_'), ('a', 'z')],
            'p' => &[],
            _ => return Ok(None),
        };
        self.rest.next();
        if !ranges.is_empty() {
            return Ok(Some(self.folded(of(ranges), c.is_ascii_uppercase())));
        }
        let mut name = match self.rest.next() {
            Some('{') => {
                let mut name = String::new();
                loop {
                    match self.rest.next() {
                        Some('}') => break name,
                        Some(c) => name.push(c),
                        None => return Err(format!("\\{c}{{ without a }}")),
                    }
                }
            }
            Some(c) => c.to_string(),
            None => return Err(format!("\\{c} at the end")),
        };
        let mut negated = c == 'P';
        if name.starts_with('^') {
            name.remove(0);
            negated = !negated;
        }
        let set = unicode(&name).ok_or_else(|| format!("no class of characters {name:?}"))?;
        Ok(Some(self.folded(set, negated)))
    }
    fn folded(&self, mut set: ClassUnicode, negated: bool) -> ClassUnicode {
        if self.flags.fold {
            set.case_fold_simple();
        }
        if negated {
            set.negate();
        }
        set
    }
    /// After a `\`: one character; `None` for a surrogate, which no text contains.
    fn code(&mut self) -> Result<Option<char>> {
        let Some(c) = self.rest.next() else { return Err("a \\ at the end".into()) };
        let octal = |c: &char| c.is_digit(8);
        let value = match c {
            '0'..='7' => {
                let mut v = c.to_digit(8).unwrap_or(0);
                if c != '0' && !self.rest.peek().is_some_and(octal) {
                    return Err(format!("\\{c}: groups can not be referred to"));
                }
                for _ in 0..2 {
                    if let Some(d) = self.rest.next_if(octal) {
                        v = v * 8 + d.to_digit(8).unwrap_or(0);
                    }
                }
                v
            }
            'x' => self.hexadecimal()?,
            'a' => 7,
            'f' => 12,
            'n' => 10,
            'r' => 13,
            't' => 9,
            'v' => 11,
            c if c.is_ascii() && !c.is_ascii_alphanumeric() => return Ok(Some(c)),
            c => return Err(format!("\\{c}")),
        };
        Ok(char::from_u32(value))
    }
    fn hexadecimal(&mut self) -> Result<u32> {
        let wrong = || "\\x without two digits, or digits in braces up to 10FFFF".to_owned();
        if !self.take('{') {
            let mut digit = || self.rest.next().and_then(|c| c.to_digit(16)).ok_or_else(wrong);
            return Ok(digit()? * 16 + digit()?);
        }
        let (mut v, mut seen) = (0u32, false);
        while let Some(d) = self.rest.peek().and_then(|c| c.to_digit(16)) {
            self.rest.next();
            (v, seen) = (v * 16 + d, true);
            if v > 0x10_ffff {
                return Err(wrong());
            }
        }
        if seen && self.take('}') { Ok(v) } else { Err(wrong()) }
    }
    /// After a `[`.
    fn class(&mut self) -> Result<Hir> {
        let negated = self.take('^');
        let mut all = ClassUnicode::empty();
        let mut first = true;
        loop {
            match self.rest.peek() {
                None => return Err("a [ without a ]".into()),
                Some(']') if !first => break,
                _ => {}
            }
            first = false;
            if let Some(set) = self.posix()? {
                all.union(&set);
                continue;
            }
            let mut ahead = self.rest.clone();
            if ahead.next() == Some('\\') {
                let before = std::mem::replace(&mut self.rest, ahead);
                if let Some(set) = self.set()? {
                    all.union(&set);
                    continue;
                }
                self.rest = before;
            }
            let low = self.end()?;
            let mut high = low;
            let mut ahead = self.rest.clone();
            if ahead.next() == Some('-') && ahead.next().is_some_and(|c| c != ']') {
                self.rest.next();
                high = self.end()?;
                if high < low {
                    return Err("a range of characters that ends before it begins".into());
                }
            }
            // Without surrogates.
            let (low, high) =
                (char::from_u32(low).unwrap_or('\u{e000}'), char::from_u32(high).unwrap_or('\u{d7ff}'));
            if low <= high {
                all.union(&self.folded(of(&[(low, high)]), false));
            }
        }
        self.rest.next();
        if negated {
            all.negate();
        }
        Ok(Hir::class(Class::Unicode(all)))
    }
    /// A bound of a range in a class.
    fn end(&mut self) -> Result<u32> {
        match self.rest.next() {
            Some('\\') => Ok(self.code()?.map_or(0xd800, u32::from)),
            Some(c) => Ok(c.into()),
            None => Err("a [ without a ]".into()),
        }
    }
    /// `[:alpha:]` within a class, if it is one.
    fn posix(&mut self) -> Result<Option<ClassUnicode>> {
        let mut ahead = self.rest.clone();
        if ahead.next() != Some('[') || ahead.next() != Some(':') {
            return Ok(None);
        }
        let text: String = ahead.collect();
        let Some(n) = text.find(":]") else { return Ok(None) };
        let (negated, name) = match text[..n].strip_prefix('^') {
            Some(name) => (true, name),
            None => (false, &text[..n]),
        };
        let set: &[(char, char)] = match name {
            "alnum" => &[('0', '9'), ('A', 'Z'), ('a', 'z')],
            "alpha" => &[('A', 'Z'), ('a', 'z')],
            "ascii" => &[('\0', '\x7f')],
            "blank" => &[('\t', '\t'), (' ', ' ')],
            "cntrl" => &[('\0', '\x1f'), ('\x7f', '\x7f')],
            "digit" => &[('0', '9')],
            "graph" => &[('!', '~')],
            "lower" => &[('a', 'z')],
            "print" => &[(' ', '~')],
            "punct" => &[('!', '/'), (':', '@'), ('[', '`'), ('{', '~')],
            "space" => &[('\t', '\r'), (' ', ' ')],
            "upper" => &[('A', 'Z')],
            "word" => &[('0', '9'), ('A', 'Z'), ('_', '_'), ('a', 'z')],
            "xdigit" => &[('0', '9'), ('A', 'F'), ('a', 'f')],
            _ => return Err(format!("no class of characters [:{}:]", &text[..n])),
        };
        // Two characters before the name and two after it.
        (0..4 + text[..n].chars().count()).for_each(|_| {
            self.rest.next();
        });
        Ok(Some(self.folded(of(set), negated)))
    }
}

fn of(ranges: &[(char, char)]) -> ClassUnicode {
    ClassUnicode::new(ranges.iter().map(|(a, b)| ClassUnicodeRange::new(*a, *b)))
}

fn everything() -> ClassUnicode {
    of(&[('\0', char::MAX)])
}

/// `n}`, `n,}` or `n,m}`.
fn counts(rest: &mut Peekable<Chars>) -> Option<(u32, Option<u32>)> {
    let number = |rest: &mut Peekable<Chars>| {
        let mut v = None;
        while let Some(d) = rest.peek().and_then(|c| c.to_digit(10)) {
            rest.next();
            v = Some((v.unwrap_or(0) * 10 + d).min(100_000));
        }
        v
    };
    let min = number(rest)?;
    let max = if rest.next_if_eq(&',').is_some() { number(rest) } else { Some(min) };
    rest.next_if_eq(&'}').map(|_| (min, max))
}

/// The characters of a general category or of a script.
fn unicode(name: &str) -> Option<ClassUnicode> {
    const CATEGORIES: &str =
        "Cc Cf Co Cs L Ll Lm Lo Lt Lu M Mc Me Mn N Nd Nl No P Pc Pd Pe Pf Pi Po Ps S Sc Sk Sm So Z Zl Zp Zs";
    let known = |query: &str| match regex_syntax::parse(query).ok()?.into_kind() {
        HirKind::Class(Class::Unicode(c)) => Some(c),
        _ => None,
    };
    match name {
        "Any" => Some(everything()),
        // Unlike in Unicode, unassigned code points are not included.
        "C" => {
            let mut all = ClassUnicode::empty();
            ["Cc", "Cf", "Co"].iter().try_for_each(|n| unicode(n).map(|c| all.union(&c)))?;
            Some(all)
        }
        // Surrogates: no text contains one.
        "Cs" => Some(ClassUnicode::empty()),
        _ if CATEGORIES.split(' ').any(|c| c == name) => known(&format!("\\p{{gc={name}}}")),
        _ if name.len() > 2
            && name.starts_with(|c: char| c.is_ascii_uppercase())
            && name.chars().all(|c| c.is_ascii_alphabetic() || c == '_') =>
        {
            known(&format!("\\p{{sc={name}}}"))
        }
        _ => None,
    }
}
