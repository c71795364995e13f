//! Tokenizer of com.microsoft: splits each string into tokens; lists are padded with `pad_value`.
//!
//! Spec:
//! <https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md#com.microsoft.Tokenizer>. One
//! version.
//!
//! Tokens are the longest matches of `tokenexp`, or the parts between `separators`, which are applied one
//! after the other. A `.`, or one empty separator, makes each code point a token. Tokens of fewer than
//! `mincharnum` code points are dropped. With `mark`, each list is enclosed in U+0002 and U+0003, unless
//! there is no token at all.

use super::support::runtime;
use super::support::runtime::int;
use super::support::text::automaton::{self, Automaton, Tables};
use super::support::text::parts::{Found, Lists};
use super::support::text::{self, code_point, lt, not};
use super::{Attrs, Elements, InferCx, LowerCx, Operator};
use crate::diag::{Result, codes, limits};
use crate::nest::{BinOp, Expr, KernelBuilder, Reg};
use crate::tensor::ElemType;

/// The attributes.
#[derive(Clone, Debug, PartialEq)]
pub struct Tokenizer {
    mark: bool,
    pad: String,
    least: i64,
    how: How,
}

#[derive(Clone, Debug, PartialEq)]
enum How {
    Points,
    Tokens(String),
    Separators(Vec<String>),
}

impl Operator for Tokenizer {
    const OPS: &'static [&'static str] = &["com.microsoft:Tokenizer"];
    fn elements(_op: &str) -> Elements {
        Elements::Strings
    }
    fn parse(a: &mut Attrs) -> Result<Self> {
        let (mark, least) = (a.flag("mark", false), a.int("mincharnum", 1));
        let pad = a.string_opt("pad_value").unwrap_or_default();
        let (separators, tokens) = (a.strings_opt("separators"), a.string_opt("tokenexp"));
        let how = match (separators, tokens) {
            (Some(s), None) if s.len() == 1 && s[0].is_empty() => How::Points,
            (Some(s), None) if !s.is_empty() && !s.iter().any(String::is_empty) => How::Separators(s),
            (None, Some(t)) if t == "." => How::Points,
            (None, Some(t)) if !t.is_empty() => How::Tokens(t),
            _ => return a.error("Tokenizer needs either tokenexp or separators, none of them empty").fail(),
        };
        if least < 1 || least > 1 && how == How::Points {
            return a
                .error("mincharnum must be at least 1, and 1 where each code point is a token")
                .found_expected(least.to_string(), "1")
                .fail();
        }
        Ok(Tokenizer { mark, pad, least, how })
    }
    fn infer(&self, cx: &mut InferCx) -> Result<()> {
        let t = cx.tensor(0).clone();
        cx.require((1..=2).contains(&t.rank()), codes::OP_SHAPE, "Tokenizer takes a vector or a matrix")?;
        if let How::Separators(list) = &self.how
            && limits::SEPARATORS.exceeded_by(list.len() as u64)
        {
            return limits::SEPARATORS
                .error("the Tokenizer has too many separators", list.len())
                .at(cx.origin)
                .fail();
        }
        match self.automata() {
            Ok(list) => automaton::spend(cx, &list)?,
            Err((pattern, e)) => {
                return cx
                    .error(codes::OP_FEATURE, "the regular expression can not be compiled")
                    .found_expected(format!("{pattern}: {e}"), "the syntax of RE2")
                    .fail();
            }
        }
        let size = cx.size(0, t.rank(), t.rank() + 1);
        cx.set(0, ElemType::Str, [t.dims.as_slice(), &[size]].concat());
        Ok(())
    }
    fn lower(&self, cx: &mut LowerCx) -> Result<()> {
        let (x, y) = (cx.input(0), cx.output(0));
        let Ok(automata) = self.automata() else { return cx.bug("a regular expression") };
        let tables: Vec<Tables> = automata.iter().map(|a| Tables::new(cx.m, a)).collect();
        let marks = self.mark.then_some(("\u{2}", "\u{3}"));
        Lists { x, marks, pad: &self.pad }.write(cx, y, None, |k, s, found| {
            match (&self.how, tables.as_slice()) {
                (How::Points, _) => points(k, s, found),
                (How::Tokens(_), [t]) => self.tokens(k, s, t, found),
                _ => self.separated(k, s, &tables, found),
            }
        });
        Ok(())
    }
}

fn points(k: &mut KernelBuilder, s: &Expr, found: Found) {
    let i = k.acc(int(0));
    k.while_(lt(Expr::acc(i), Expr::text_len(s.clone())), |k| {
        let (_, n) = code_point(k, s, Expr::acc(i));
        found(k, s, Expr::acc(i), n.clone());
        k.update(BinOp::Add, i, n);
    });
}

impl Tokenizer {
    fn automata(&self) -> std::result::Result<Vec<Automaton>, (&str, String)> {
        let list: &[String] = match &self.how {
            How::Points => &[],
            How::Tokens(t) => std::slice::from_ref(t),
            How::Separators(s) => s,
        };
        list.iter().map(|p| Automaton::new(p).map_err(|e| (p.as_str(), e))).collect()
    }
    /// The first match from `from` on, and the longest one there: its start (-1: none) and its end.
    fn next(k: &mut KernelBuilder, s: &Expr, from: Expr, t: &Tables) -> (Reg, Reg) {
        let len = k.let_(Expr::text_len(s.clone()));
        let (at, end, begin) = (k.acc(from), k.acc(int(-1)), k.acc(int(-1)));
        k.while_(lt(Expr::acc(end), int(0)).and(runtime::le(Expr::acc(at), len.clone())), |k| {
            let e = t.longest(k, s, Expr::acc(at));
            let hit = Expr::bin(BinOp::Ge, e.clone(), int(0));
            k.set(begin, Expr::select(hit, Expr::acc(at), Expr::acc(begin)));
            k.set(end, e);
            Tokenizer::step(k, s, at, &len);
        });
        (begin, end)
    }
    /// Advances by one code point; at the end by one.
    fn step(k: &mut KernelBuilder, s: &Expr, at: Reg, len: &Expr) {
        let inside = k.let_(lt(Expr::acc(at), len.clone()));
        k.if_(not(inside.clone()), |k| k.update(BinOp::Add, at, int(1)));
        k.if_(inside, |k| {
            let (_, n) = code_point(k, s, Expr::acc(at));
            k.update(BinOp::Add, at, n);
        });
    }
    fn is_long(&self, k: &mut KernelBuilder, part: &Expr) -> Expr {
        // A code point has at least one byte.
        if self.least == 1 {
            return lt(int(0), Expr::text_len(part.clone()));
        }
        let n = text::count_points(k, part);
        Expr::bin(BinOp::Ge, n, int(self.least))
    }
    fn tokens(&self, k: &mut KernelBuilder, s: &Expr, t: &Tables, found: Found) {
        let len = k.let_(Expr::text_len(s.clone()));
        let from = k.acc(int(0));
        k.while_(runtime::le(Expr::acc(from), len.clone()), |k| {
            let (begin, end) = Tokenizer::next(k, s, Expr::acc(from), t);
            let none = k.let_(lt(Expr::acc(begin), int(0)));
            k.if_(none.clone(), |k| k.set(from, len.clone() + int(1)));
            k.if_(not(none), |k| {
                let size = k.let_(Expr::acc(end) - Expr::acc(begin));
                let part = k.let_(Expr::text_part(s.clone(), Expr::acc(begin), size.clone()));
                let long = self.is_long(k, &part);
                k.if_(long, |k| found(k, s, Expr::acc(begin), size.clone()));
                k.set(from, Expr::acc(end));
                k.if_(runtime::eq(size, int(0)), |k| Tokenizer::step(k, s, from, &len));
            });
        });
    }
    /// The parts between matches of the first separator, split further by the other separators.
    fn separated(&self, k: &mut KernelBuilder, s: &Expr, tables: &[Tables], found: Found) {
        let Some((t, rest)) = tables.split_first() else {
            found(k, s, int(0), Expr::text_len(s.clone()));
            return;
        };
        let len = k.let_(Expr::text_len(s.clone()));
        let from = k.acc(int(0));
        k.while_(runtime::le(Expr::acc(from), len.clone()), |k| {
            let (begin, end) = Tokenizer::next(k, s, Expr::acc(from), t);
            let none = k.let_(lt(Expr::acc(begin), int(0)));
            let to = k.let_(Expr::select(none.clone(), len.clone(), Expr::acc(begin)));
            let part = k.let_(Expr::text_part(s.clone(), Expr::acc(from), to.clone() - Expr::acc(from)));
            let long = self.is_long(k, &part);
            k.if_(long, |k| self.separated(k, &part, rest, found));
            let empty = k.let_(runtime::eq(Expr::acc(begin), Expr::acc(end)).and(not(none.clone())));
            k.set(from, Expr::select(none, len.clone() + int(1), Expr::acc(end)));
            k.if_(empty, |k| Tokenizer::step(k, s, from, &len));
        });
    }
}
