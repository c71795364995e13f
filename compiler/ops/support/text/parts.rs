//! Operators that split strings. The parts are counted first, then the driver defines the length of the
//! longest list, then the lists are written and padded. Parts are substrings that share memory with their
//! strings.

use super::lt;
use crate::nest::{BinOp, Buf, Expr, KernelBuilder, LoopKind, Reg};
use crate::ops::LowerCx;
use crate::ops::support::runtime::{self, int};
use crate::sym::Dim;
use crate::tensor::ElemType;

/// A callback for each part: its string, its start and its number of bytes.
pub type Found<'a> = &'a mut dyn FnMut(&mut KernelBuilder, &Expr, Expr, Expr);

/// A list of strings for each element of `x`.
pub struct Lists<'a> {
    /// The strings.
    pub x: Buf,
    /// The marks before and after the parts of a list, if any element has parts.
    pub marks: Option<(&'a str, &'a str)>,
    /// The padding of lists.
    pub pad: &'a str,
}

impl Lists<'_> {
    /// Writes the lists to `y`, whose last dimension is defined here, and the number of parts of each list to
    /// `counts`, if given.
    pub fn write(
        &self,
        cx: &mut LowerCx,
        y: Buf,
        counts: Option<Buf>,
        cut: impl Fn(&mut KernelBuilder, &Expr, Found),
    ) {
        let (x, dims) = (self.x, cx.dims(self.x));
        let counts = counts.unwrap_or_else(|| cx.temp("parts", ElemType::I64, dims.clone()));
        cx.kernel(|k| {
            k.nest(LoopKind::Par, &dims, |k, at| {
                let s = k.load(x, at);
                let s = k.let_(s);
                let n = k.acc(int(0));
                cut(k, &s, &mut |k, _, _, _| k.update(BinOp::Add, n, int(1)));
                k.store(counts, at, Expr::acc(n));
            });
        });
        let extra = if self.marks.is_some() { 2 } else { 0 };
        let all = cx.compute(1, |k, out| {
            let most = k.acc(int(0));
            k.nest(LoopKind::Seq, &dims, |k, at| {
                let n = k.load(counts, at);
                k.set(most, Expr::acc(most).max(n));
            });
            let some = lt(int(0), Expr::acc(most));
            k.store(out, &[Dim::constant(0)], Expr::select(some, Expr::acc(most) + int(extra), int(0)));
        });
        let size = cx.dims(y).last().copied().unwrap_or_default();
        cx.define(size, Expr::Load { buf: all, at: vec![Dim::constant(0)] });
        let pad = super::constant(cx.m, "pad", self.pad);
        let marks =
            self.marks.map(|(a, b)| (super::constant(cx.m, "begin", a), super::constant(cx.m, "end", b)));
        cx.kernel(|k| {
            k.nest(LoopKind::Par, &dims, |k, at| {
                let s = k.load(x, at);
                let s = k.let_(s);
                let next = k.acc(int(0));
                let put = |k: &mut KernelBuilder, next: Reg, v: Expr| {
                    k.at_index(Expr::acc(next), size, |k, i| k.store(y, &[at, &[i]].concat(), v));
                    k.update(BinOp::Add, next, int(1));
                };
                // Without any part there is no room for marks.
                let some = Expr::cmp_index(BinOp::Gt, size, 0);
                if let Some((begin, _)) = &marks {
                    k.if_(some.clone(), |k| put(k, next, begin.clone()));
                }
                cut(k, &s, &mut |k, s, from, len| put(k, next, Expr::text_part(s.clone(), from, len)));
                if let Some((_, end)) = &marks {
                    k.if_(some, |k| put(k, next, end.clone()));
                }
                k.while_(lt(Expr::acc(next), Expr::index(size)), |k| put(k, next, pad.clone()));
            });
        });
    }
}

/// True if a code point is white space.
pub fn is_space(k: &mut KernelBuilder, point: Expr) -> Expr {
    let p = k.let_(point);
    let within = |lo: i64, hi: i64| runtime::le(int(lo), p.clone()).and(runtime::le(p.clone(), int(hi)));
    let ranges = [
        (9, 13),
        (0x1c, 0x20),
        (0x85, 0x85),
        (0xa0, 0xa0),
        (0x1680, 0x1680),
        (0x2000, 0x200a),
        (0x2028, 0x2029),
        (0x202f, 0x202f),
        (0x205f, 0x205f),
        (0x3000, 0x3000),
    ];
    let any =
        ranges.into_iter().map(|(lo, hi)| within(lo, hi)).reduce(runtime::or).unwrap_or(Expr::bool(false));
    k.let_(any)
}
