//! RegexFullMatch: true for strings that a regular expression matches completely.
//!
//! Spec: <https://onnx.ai/onnx/operators/onnx__RegexFullMatch.html>. One version; the syntax is that of RE2.

use super::support::text::automaton::{self, Automaton, Tables};
use super::{Attrs, Elements, InferCx, LowerCx, Operator};
use crate::diag::{Result, codes};
use crate::nest::LoopKind;
use crate::tensor::ElemType;

/// The pattern.
#[derive(Clone, Debug, PartialEq)]
pub struct RegexFullMatch(String);

impl Operator for RegexFullMatch {
    const OPS: &'static [&'static str] = &["RegexFullMatch"];
    fn elements(_op: &str) -> Elements {
        Elements::Strings
    }
    fn parse(a: &mut Attrs) -> Result<Self> {
        Ok(RegexFullMatch(a.string_opt("pattern").unwrap_or_default()))
    }
    fn infer(&self, cx: &mut InferCx) -> Result<()> {
        match Automaton::new(&self.0) {
            Ok(a) => automaton::spend(cx, &[a])?,
            Err(e) => {
                return cx
                    .error(codes::OP_FEATURE, "the regular expression can not be compiled")
                    .found_expected(format!("{}: {e}", self.0), "the syntax of RE2")
                    .fail();
            }
        }
        cx.set(0, ElemType::Bool, cx.tensor(0).dims.clone());
        Ok(())
    }
    fn lower(&self, cx: &mut LowerCx) -> Result<()> {
        let (x, y) = (cx.input(0), cx.output(0));
        let Ok(a) = Automaton::new(&self.0) else { return cx.bug("a regular expression") };
        let tables = Tables::new(cx.m, &a);
        let dims = cx.dims(y);
        cx.kernel(|k| {
            k.nest(LoopKind::Par, &dims, |k, at| {
                let s = k.load(x, at);
                let s = k.let_(s);
                let hit = tables.matches(k, &s);
                k.store(y, at, hit);
            });
        });
        Ok(())
    }
}
