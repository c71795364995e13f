//! Tiles of contractions with packed weights, by dot products of bytes (`quantize::few_bits`).
//!
//! The activations of a block are 8-bit integers with a scale: `sum_k a_k (q_k - z) s` of a block is `s_a s
//! (sum_k b_k q_k - z sum_k b_k)`, where both sums are integer and exact. A shift and a mask extract a factor
//! of four weights in each lane; the factor of the activations is a broadcast.
//!
//! An integer of three bytes is `b = (d_0 256 + d_1) 256 + d_2` with digits from -128 to 127: the sums of the
//! digits' products are added in the same way, modulo 2^32, and the result is exact again.
//!
//! Levels without dot products of bytes add pairs of products to 16-bit words ([`DotKind::PairedBytes`]), for
//! weights of at most 4 bits, and as many as the words can hold ([`chain`]). Weights of 8 bits are split into
//! two of 4 bits, whose sums have weights 1 and 16.

use super::dequantize::{self, Nest, Place, Span, blocks, each_word, few_rows, vectors};
use super::register::unroll;
use super::{Part, Tile, each_panel, finish, register};
use crate::nest::{BinOp, Buf, DotKind, Expr, Module, Reg, Stmt};
use crate::passes::nest::analysis::shape::{fresh_regs, parallel};
use crate::passes::nest::schedule::contract::Parts;
use crate::sym::{Dim, Sym};
use crate::tensor::ElemType;

/// Maximum rows for which tiles read the weights once.
const FEW: i64 = 4;
/// Maximum words of paired products that are unrolled.
const MOST_WORDS: i64 = 8;

/// Activations as integers, by rows.
#[derive(Clone, Copy)]
pub(crate) struct Bytes {
    /// `[row][block][digit][quad]`: four integers per element.
    pub quads: Buf,
    /// `[row][block]`.
    pub scale: Buf,
    /// `[row][block]`: the sum of a block. If the zero point is a single number: an i32, multiplied by it and
    /// negated. Else an f32.
    pub sum: Buf,
    /// Whether sums are multiplied by the zero point.
    pub centred: bool,
    /// Dot products of weights and activations.
    pub group: DotKind,
    /// Digits of an integer to base 256, the highest first.
    pub digits: i64,
    /// Elements of a block of activations; blocks of weights contain whole ones.
    pub block: i64,
}

/// All rows: wide tiles that read weights once for few of them, tall ones that use each word for many. The
/// choice may be made at run time. Integers of several digits are for many rows only: few ones are bound by
/// reading weights, and floats need no other activations.
pub(super) fn rows(
    m: &mut Module,
    p: &Parts,
    w: &Nest,
    few: &Tile,
    (panel, panels): (Sym, Dim),
    (rows, all): (Dim, Dim),
) -> Vec<Stmt> {
    let in_place = super::Panels::InPlace;
    let many = Tile { mr: few.mr * 2, nv: 1, batch: vec![], clips: vec![], panels: in_place, ..*few };
    let tiles = |m: &mut Module, w: &Nest, t: &Tile| {
        let body = each_panel(m, t, panel.into(), |m, cols| few_rows(m, p, w, t, panel.into(), rows, cols));
        w.around(body)
    };
    let whole = w.bytes.as_ref().is_some_and(|b| b.digits == 1);
    let (most, floats) = (if whole { FEW } else { dequantize::FEW }, Nest { bytes: None, ..w.clone() });
    let of_few = if whole { w } else { &floats };
    let body = match all.as_const() {
        Some(n) if n <= most => tiles(m, of_few, few),
        Some(_) => tiles(m, w, &many),
        None => {
            let (then, els) = (tiles(m, of_few, few), tiles(m, w, &many));
            let els = fresh_regs(m, &els);
            vec![Stmt::If { cond: Expr::cmp_index(BinOp::Le, all, most), then, els }]
        }
    };
    parallel(m, &[(panel, panels)], body)
}

/// One tile: rows `row .. row + mr`, columns of a part of a panel.
pub(super) fn block(
    m: &mut Module,
    p: &Parts,
    (w, b): (&Nest, &Bytes),
    t: &Tile,
    part: Part,
    (row, mr): (Dim, i64),
) -> Vec<Stmt> {
    let Part { panel, sub, .. } = part;
    let (int, lanes, nv, zero) = (ElemType::I32, t.lanes, part.vectors(t), Dim::constant(0));
    let (per, quads) = (32 / w.bits, 8 / w.bits);
    let at = Place { panel, column: sub * t.width(), vectors: nv, lanes };
    let total = m.reg(ElemType::F32);
    let acc = |reg, shape: &[i64], init: Expr| Stmt::Acc {
        reg,
        lanes: lanes as u32,
        shape: shape.iter().map(|s| *s as u32).collect(),
        init,
    };
    // An element that belongs to row `i` of the tile.
    let of_row = |buf: Buf, i: i64, last: Dim| -> Expr {
        let rows = w.outer.iter().map(|r| Dim::sym(r.0)).chain(w.row.map(|_| row + i));
        Expr::Load { buf, at: rows.chain([last]).collect() }
    };
    let place = |i: i64, v: Dim| vec![Dim::constant(i), v];
    let mut out = vec![acc(total, &[1, mr, nv], Expr::f32(0.0))];
    out.extend(activation_blocks(m, w, b, &mut |m, span, number| {
        let inner = m.reg(int);
        let mut body = vec![acc(inner, &[mr, nv], Expr::int(int, 0))];
        let value = |i: i64, v: Dim| Expr::Acc { reg: inner, at: place(i, v), lane: None };
        let set = |m: &mut Module, value: &dyn Fn(i64, Dim) -> Expr| {
            let one = |i: i64, v: Dim| Stmt::Set { reg: inner, at: place(i, v), value: value(i, v) };
            vectors(m, at, &mut |_, v, _| (0..mr).map(|i| one(i, v)).collect())
        };
        if b.centred && b.digits == 1 {
            body.extend(set(m, &|i, _| of_row(b.sum, i, number)));
        }
        // Activations are padded with zeros.
        let span = Span { words: span.words + i64::from(span.tail > 0), tail: 0, ..span };
        let sums = Sums { w, group: b.group, at, mr, inner };
        let fields: Vec<Field> =
            (0..quads).map(|s| Field { quad: s, shift: s * w.bits, bits: w.bits }).collect();
        for digit in 0..b.digits {
            if digit > 0 {
                body.extend(set(m, &|i, v| Expr::bin(BinOp::Shl, value(i, v), Expr::int(int, 8))));
            }
            // Digits before this one, in this block and in those before it.
            let before = (number * (b.digits - 1) + digit) * (b.block / 4);
            let quad = |i: i64, quad: Dim| of_row(b.quads, i, quad + before);
            body.extend(match b.group {
                DotKind::PairedBytes => sums.chains(m, span, &quad),
                _ => each_word(m, span, per, &mut |m, word, _| sums.word(m, inner, word, &fields, &quad)),
            });
        }
        if b.centred && b.digits > 1 {
            body.extend(set(m, &|i, v| value(i, v) + of_row(b.sum, i, number)));
        }
        body.extend(vectors(m, at, &mut |m, v, lane| {
            let one = |m: &mut Module, i: i64| {
                let sum =
                    Expr::cast(int, ElemType::F32, Expr::Acc { reg: inner, at: place(i, v), lane: None });
                let sum = match w.zero(m, at, span.block, lane) {
                    Some(z) if !b.centred => sum - of_row(b.sum, i, number) * z,
                    _ => sum,
                };
                let own = of_row(b.scale, i, number);
                let scale = match w.scale(at, span.block, lane) {
                    Some(s) => s * own,
                    None => own,
                };
                let at = vec![zero, Dim::constant(i), v];
                let before = Expr::Acc { reg: total, at: at.clone(), lane: None };
                Stmt::Set { reg: total, at, value: Expr::fma(scale, sum, before) }
            };
            (0..mr).map(|i| one(m, i)).collect()
        }));
        body
    }));
    out.extend(finish::stores(m, &register::Block { p, t, part, row, mr }, total));
    out
}

/// Loops over blocks of activations: `each` receives the span of weights and the number of the block.
fn activation_blocks(
    m: &mut Module,
    w: &Nest,
    b: &Bytes,
    each: &mut dyn FnMut(&mut Module, Span, Dim) -> Vec<Stmt>,
) -> Vec<Stmt> {
    blocks(m, w, &mut |m, span| {
        let (parts, words) = (w.block / b.block, b.block * w.bits / 32);
        if parts == 1 {
            return each(m, span, span.block);
        }
        let s = m.syms.loop_var("s", Dim::constant(0), Dim::constant(parts));
        let body = each(m, Span { first: span.first + Dim::sym(s) * words, words, ..span }, span.block * parts + s);
        vec![Stmt::seq(s, Dim::constant(parts), body)]
    })
}

/// Weights of a word, one per byte: group `quad` of four, beginning at bit `shift` of each byte.
#[derive(Clone, Copy)]
struct Field {
    quad: i64,
    shift: i64,
    bits: i64,
}

/// The accumulators of a block: one per row of a tile and column.
struct Sums<'a> {
    w: &'a Nest,
    group: DotKind,
    at: Place,
    mr: i64,
    inner: Reg,
}

impl Sums<'_> {
    /// Adds the products of some of a word's weights to `to`; `quad`: the activation factor of a row at an
    /// index.
    fn word(
        &self,
        m: &mut Module,
        to: Reg,
        word: Dim,
        fields: &[Field],
        quad: &dyn Fn(i64, Dim) -> Expr,
    ) -> Vec<Stmt> {
        let (int, quads) = (ElemType::I32, 8 / self.w.bits);
        vectors(m, self.at, &mut |m, v, lane| {
            let whole = m.reg(int);
            let mut body = vec![Stmt::Let { reg: whole, value: self.w.word(self.at, word, lane) }];
            for f in fields {
                let q = m.reg(int);
                let moved = match f.shift {
                    0 => Expr::Reg(whole),
                    n => Expr::bin(BinOp::Shr, Expr::Reg(whole), Expr::int(int, n)),
                };
                let mask = 0x0101_0101 * ((1 << f.bits) - 1);
                let value =
                    if f.bits == 8 { moved } else { Expr::bin(BinOp::And, moved, Expr::int(int, mask)) };
                body.push(Stmt::Let { reg: q, value });
                body.extend((0..self.mr).map(|i| {
                    let at = vec![Dim::constant(i), v];
                    let before = Expr::Acc { reg: to, at: at.clone(), lane: None };
                    let value = Expr::dot(self.group, Expr::Reg(q), quad(i, word * quads + f.quad), before);
                    Stmt::Set { reg: to, at, value }
                }));
            }
            body
        })
    }
    /// All words of a block by paired products: 16-bit words accumulate several of them, and are then
    /// widened.
    fn chains(&self, m: &mut Module, span: Span, quad: &dyn Fn(i64, Dim) -> Expr) -> Vec<Stmt> {
        let (bits, int) = (self.w.bits, ElemType::I32);
        // Fields that are added to the same words, and their weight.
        let chains: Vec<(Vec<Field>, i64)> = match bits {
            8 => (0..2).map(|h| (vec![Field { quad: 0, shift: 4 * h, bits: 4 }], 1 << (4 * h))).collect(),
            _ => vec![((0..8 / bits).map(|s| Field { quad: s, shift: s * bits, bits }).collect(), 1)],
        };
        let step = chain(bits, span.words);
        let turns = span.words / step.max(1);
        let turn = m.syms.loop_var("w", Dim::constant(0), Dim::constant(turns));
        let mut body = vec![];
        for (fields, times) in chains {
            let words = m.reg(int);
            body.push(Stmt::Acc {
                reg: words,
                lanes: self.at.lanes as u32,
                shape: vec![self.mr as u32, self.at.vectors as u32],
                init: Expr::int(int, 0),
            });
            let u = m.syms.loop_var("u", Dim::constant(0), Dim::constant(step));
            let word = span.first + Dim::sym(turn) * step + u;
            let of_word = self.word(m, words, word, &fields, quad);
            body.extend(unroll(u, step, of_word));
            let both = Expr::int(int, times << 16 | times);
            body.extend(vectors(m, self.at, &mut |_, v, _| {
                let add = |i: i64| {
                    let at = vec![Dim::constant(i), v];
                    let of = |reg: Reg| Expr::Acc { reg, at: at.clone(), lane: None };
                    let value = Expr::dot(DotKind::Words, of(words), both.clone(), of(self.inner));
                    Stmt::Set { reg: self.inner, at: at.clone(), value }
                };
                (0..self.mr).map(add).collect()
            }));
        }
        vec![Stmt::seq(turn, Dim::constant(turns), body)]
    }
}

/// The number of weight words whose products fit in a 16-bit word: the largest such divisor of `words`.
fn chain(bits: i64, words: i64) -> i64 {
    // Activations are at most 127; a field has at most 4 bits.
    let products = i64::from(i16::MAX) / (2 * 127 * ((1 << bits.min(4)) - 1));
    let most = (products / (8 / bits)).min(MOST_WORDS);
    (1..=most).rev().find(|n| words % n == 0).unwrap_or(1)
}
