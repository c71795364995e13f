//! StringNormalizer: removes stop words and converts strings to lower or upper case.
//!
//! Spec: <https://onnx.ai/onnx/operators/onnx__StringNormalizer.html>. One version.
//!
//! An element is removed if it is equal to a stop word. Without `is_case_sensitive` both are compared in the
//! case of `case_change_action`, or in lower case if it has none. Case mapping follows Unicode, whatever
//! `locale` says. If all elements are removed, the result is one empty string.

use super::support::runtime::{self, int};
use super::support::text::letters::{Case, Letters};
use super::support::text::{self, Dictionary, lt};
use super::{Attrs, Elements, InferCx, LowerCx, Operator};
use crate::diag::{Result, codes};
use crate::nest::{BinOp, Buf, Expr, LoopKind};
use crate::sym::Dim;
use crate::tensor::ElemType;

/// The attributes.
#[derive(Clone, Debug, PartialEq)]
pub struct StringNormalizer {
    case: Option<Case>,
    sensitive: bool,
    stop_words: Vec<String>,
}

impl Operator for StringNormalizer {
    const OPS: &'static [&'static str] = &["StringNormalizer"];
    fn elements(_op: &str) -> Elements {
        Elements::Strings
    }
    fn parse(a: &mut Attrs) -> Result<Self> {
        a.ignore("locale");
        let cases = [("LOWER", Some(Case::Lower)), ("UPPER", Some(Case::Upper)), ("NONE", None)];
        Ok(StringNormalizer {
            case: a.choice("case_change_action", "NONE", &cases),
            sensitive: a.flag("is_case_sensitive", false),
            stop_words: a.strings("stopwords"),
        })
    }
    fn infer(&self, cx: &mut InferCx) -> Result<()> {
        let t = cx.tensor(0).clone();
        let n = match t.dims[..] {
            [n] => n,
            [one, n] => {
                cx.require_eq(
                    one,
                    Dim::constant(1),
                    "StringNormalizer takes a vector, or a matrix of one row",
                );
                n
            }
            _ => {
                return cx
                    .error(codes::OP_SHAPE, "StringNormalizer takes a vector, or a matrix of one row")
                    .fail();
            }
        };
        let rank = t.rank();
        let kept = if self.stop_words.is_empty() {
            n
        } else if n.as_const() == Some(0) {
            Dim::constant(1)
        } else {
            let kept = cx.size(0, rank - 1, rank);
            cx.bound(&[kept], n.max(1));
            kept
        };
        cx.set(0, ElemType::Str, [&vec![Dim::constant(1); rank - 1], &[kept][..]].concat());
        Ok(())
    }
    fn lower(&self, cx: &mut LowerCx) -> Result<()> {
        let (x, out) = (cx.input(0), cx.output(0));
        let n = Dim::product(cx.dims(x));
        let kept = Dim::product(cx.dims(out));
        let whole = self.stop_words.is_empty();
        if n.as_const() == Some(0) && !whole {
            let nothing = text::constant(cx.m, "nothing", "");
            cx.map(out, |_, _| nothing);
            return Ok(());
        }
        let (x, y) = (cx.m.view(x, vec![n]), cx.m.view(out, vec![kept]));
        let changed = match self.case {
            None => x,
            Some(case) if whole => {
                in_case(cx, x, y, case);
                return Ok(());
            }
            Some(case) => {
                let t = cx.temp("changed", ElemType::Str, vec![n]);
                in_case(cx, x, t, case);
                t
            }
        };
        if whole {
            cx.map(y, |k, at| k.load(changed, at));
            return Ok(());
        }
        let (words, compared) = self.compared(cx, x, changed, n);
        let words = Dictionary::of_strings(cx.m, &words);
        let left = cx.temp("left", ElemType::I64, vec![n]);
        let count = cx.compute(1, |k, out| {
            let next = k.acc(int(0));
            k.range(LoopKind::Seq, "i", 0, n, |k, i| {
                let s = k.load(compared, &[i]);
                let hit = words.find(k, s);
                k.if_(lt(hit, int(0)), |k| {
                    k.at_index(Expr::acc(next), n, |k, p| k.store(left, &[p], Expr::index(i)));
                    k.update(BinOp::Add, next, int(1));
                });
            });
            k.store(out, &[Dim::constant(0)], Expr::acc(next));
        });
        let count = Expr::Load { buf: count, at: vec![Dim::constant(0)] };
        cx.define(kept, count.clone().max(int(1)));
        let nothing = text::constant(cx.m, "nothing", "");
        cx.map(y, |k, at| {
            let from = k.load(left, at);
            let s = k.with_index(from, n, |k, i| k.load(changed, &[i]));
            Expr::select(runtime::eq(count, int(0)), nothing, s)
        });
        Ok(())
    }
}

fn in_case(cx: &mut LowerCx, from: Buf, to: Buf, case: Case) {
    let letters = Letters::new(cx.m, case);
    text::produce(cx, to, |k, at, sink| {
        let s = k.load(from, at);
        letters.write(k, s, sink);
    });
}

impl StringNormalizer {
    /// The stop words and the strings that are compared with them.
    fn compared(&self, cx: &mut LowerCx, x: Buf, changed: Buf, n: Dim) -> (Vec<String>, Buf) {
        if self.sensitive {
            return (self.stop_words.clone(), x);
        }
        let case = self.case.unwrap_or(Case::Lower);
        let words = self.stop_words.iter().map(|w| case.of(w)).collect();
        if self.case.is_some() {
            return (words, changed);
        }
        let folded = cx.temp("folded", ElemType::Str, vec![n]);
        in_case(cx, x, folded, case);
        (words, folded)
    }
}
