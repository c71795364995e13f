//! StringSplit: splits each string at a delimiter; lists are padded with empty strings.
//!
//! Spec: <https://onnx.ai/onnx/operators/onnx__StringSplit.html>. One version.
//!
//! Without a delimiter, or with an empty one, strings are split at runs of white space (as defined by
//! Unicode), which is removed at both ends. At most `maxsplit` splits are made: the last part is the rest.

use super::support::runtime::int;
use super::support::text::parts::{Found, Lists, is_space};
use super::support::text::{self, code_point, lt, not};
use super::{Attrs, Elements, InferCx, LowerCx, Operator};
use crate::diag::Result;
use crate::nest::{BinOp, Expr, KernelBuilder};
use crate::tensor::ElemType;

/// The attributes.
#[derive(Clone, Debug, PartialEq)]
pub struct StringSplit {
    delimiter: Option<String>,
    /// Not negative.
    most: Option<i64>,
}

impl Operator for StringSplit {
    const OPS: &'static [&'static str] = &["StringSplit"];
    fn elements(_op: &str) -> Elements {
        Elements::Strings
    }
    fn parse(a: &mut Attrs) -> Result<Self> {
        Ok(StringSplit {
            delimiter: a.string_opt("delimiter").filter(|d| !d.is_empty()),
            most: a.int_opt("maxsplit").filter(|n| *n >= 0),
        })
    }
    fn infer(&self, cx: &mut InferCx) -> Result<()> {
        let t = cx.tensor(0).clone();
        let size = cx.size(0, t.rank(), t.rank() + 1);
        cx.set(0, ElemType::Str, [t.dims.as_slice(), &[size]].concat());
        cx.set(1, ElemType::I64, t.dims);
        Ok(())
    }
    fn lower(&self, cx: &mut LowerCx) -> Result<()> {
        let x = cx.input(0);
        let counts = cx.output_opt(1);
        let delimiter =
            self.delimiter.as_ref().map(|d| (text::constant(cx.m, "delimiter", d), d.len() as i64));
        let cut = |k: &mut KernelBuilder, s: &Expr, found: Found| match &delimiter {
            Some((d, n)) => self.at(k, s, d, *n, found),
            None => self.at_space(k, s, found),
        };
        let Some(y) = cx.output_opt(0) else {
            // Only the numbers are needed.
            let Some(z) = counts else { return Ok(()) };
            let dims = cx.dims(z);
            cx.kernel(|k| {
                k.nest(crate::nest::LoopKind::Par, &dims, |k, at| {
                    let s = k.load(x, at);
                    let s = k.let_(s);
                    let n = k.acc(int(0));
                    cut(k, &s, &mut |k, _, _, _| k.update(BinOp::Add, n, int(1)));
                    k.store(z, at, Expr::acc(n));
                });
            });
            return Ok(());
        };
        Lists { x, marks: None, pad: "" }.write(cx, y, counts, cut);
        Ok(())
    }
}

impl StringSplit {
    /// True while more splits are allowed.
    fn may_cut(&self, cuts: Expr) -> Expr {
        self.most.map_or(Expr::bool(true), |n| lt(cuts, int(n)))
    }
    fn at(&self, k: &mut KernelBuilder, s: &Expr, delimiter: &Expr, width: i64, found: Found) {
        let len = k.let_(Expr::text_len(s.clone()));
        let (from, i, cuts) = (k.acc(int(0)), k.acc(int(0)), k.acc(int(0)));
        let room = Expr::bin(BinOp::Le, Expr::acc(i) + int(width), len.clone());
        k.while_(room.and(self.may_cut(Expr::acc(cuts))), |k| {
            let here = Expr::text_part(s.clone(), Expr::acc(i), int(width));
            let hit = k.let_(Expr::bin(BinOp::Eq, here, delimiter.clone()));
            k.if_(hit.clone(), |k| {
                found(k, s, Expr::acc(from), Expr::acc(i) - Expr::acc(from));
                k.update(BinOp::Add, cuts, int(1));
                k.update(BinOp::Add, i, int(width));
                k.set(from, Expr::acc(i));
            });
            k.if_(not(hit), |k| k.update(BinOp::Add, i, int(1)));
        });
        found(k, s, Expr::acc(from), len - Expr::acc(from));
    }
    fn at_space(&self, k: &mut KernelBuilder, s: &Expr, found: Found) {
        let len = k.let_(Expr::text_len(s.clone()));
        let (i, cuts) = (k.acc(int(0)), k.acc(int(0)));
        let inside = || lt(Expr::acc(i), len.clone());
        k.while_(inside(), |k| {
            // Skips white space, then non-space characters.
            let end = k.acc(Expr::acc(i));
            let go = k.acc(Expr::bool(true));
            k.while_(Expr::acc(go).and(lt(Expr::acc(end), len.clone())), |k| {
                let (p, n) = code_point(k, s, Expr::acc(end));
                let space = is_space(k, p);
                k.set(go, space.clone());
                k.update(BinOp::Add, end, Expr::select(space, n, int(0)));
            });
            k.set(i, Expr::acc(end));
            k.if_(inside(), |k| {
                let more = k.let_(self.may_cut(Expr::acc(cuts)));
                k.set(end, Expr::select(more.clone(), Expr::acc(i), len.clone()));
                k.set(go, more);
                k.while_(Expr::acc(go).and(lt(Expr::acc(end), len.clone())), |k| {
                    let (p, n) = code_point(k, s, Expr::acc(end));
                    let space = is_space(k, p);
                    k.set(go, not(space.clone()));
                    k.update(BinOp::Add, end, Expr::select(space, int(0), n));
                });
                found(k, s, Expr::acc(i), Expr::acc(end) - Expr::acc(i));
                k.update(BinOp::Add, cuts, int(1));
                k.set(i, Expr::acc(end));
            });
        });
    }
}
