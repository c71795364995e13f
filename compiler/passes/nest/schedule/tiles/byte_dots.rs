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

use super::dequantize::{Nest, Place, Span, Tiles, blocks, each_word, vectors};
use super::register::unroll;
use super::{Part, Tile, finish, register};
use crate::nest::key::Writer;
use crate::nest::{BinOp, Buf, DotKind, Expr, Module, Reg, Stmt};
use crate::passes::nest::analysis::shape::{fresh_regs, parallel};
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

impl Bytes {
    /// Writes everything into a key.
    pub fn key(&self, w: &mut Writer) {
        let Bytes { quads, scale, sum, centred, group, digits, block } = self;
        [quads, scale, sum].into_iter().for_each(|b| w.buf(*b));
        w.put([u64::from(*centred), *digits as u64, *block as u64]);
        w.plain(*group);
    }
}

/// All rows: the wide tiles `few` that read weights once for few of them, tall ones that use each word for
/// many. The choice may be made at run time.
pub(super) fn rows(
    m: &mut Module,
    few: Tiles,
    (panel, panels): (Sym, Dim),
    (rows, all): (Dim, Dim),
) -> Vec<Stmt> {
    let Tiles { p, w, t: few } = few;
    let in_place = super::Panels::InPlace;
    let many = Tile { mr: few.mr * 2, nv: 1, batch: vec![], clips: vec![], panels: in_place, ..*few };
    let tiles = |m: &mut Module, t: &Tile| Tiles { p, w, t }.panel(m, panel.into(), rows);
    let body = match all.as_const() {
        Some(n) => tiles(m, if n <= FEW { few } else { &many }),
        None => {
            let (then, els) = (tiles(m, few), tiles(m, &many));
            let els = fresh_regs(m, &els);
            vec![Stmt::If { cond: Expr::cmp_index(BinOp::Le, all, FEW), then, els }]
        }
    };
    parallel(m, &[(panel, panels)], body)
}

/// One tile: rows `row .. row + mr`, columns of a part of a panel.
pub(super) fn block(m: &mut Module, w: &Nest, b: &Bytes, tile: &register::Block) -> Vec<Stmt> {
    let register::Block { t, part, row, mr, .. } = *tile;
    let Part { panel, sub, .. } = part;
    let (int, lanes, nv, zero) = (ElemType::I32, t.lanes, part.vectors(t), Dim::constant(0));
    let (per, quads) = (w.per_word(), 8 / w.bits);
    let at = Place { panel, column: sub * t.width(), vectors: nv, lanes };
    let total = m.reg(ElemType::F32);
    let acc = |reg, shape: &[i64], init: Expr| Stmt::Acc {
        reg,
        lanes: lanes as u32,
        shape: shape.iter().map(|s| *s as u32).collect(),
        init,
    };
    // An element that belongs to row `i` of the tile.
    let of_row = |buf: Buf, i: Dim, last: Dim| -> Expr {
        let rows = w.outer.iter().map(|r| Dim::sym(r.0)).chain(w.row.map(|_| row + i));
        Expr::Load { buf, at: rows.chain([last]).collect() }
    };
    let each_row = |m: &mut Module, f: &mut dyn FnMut(&mut Module, Dim, Dim, Dim) -> Stmt| {
        let i = m.syms.loop_var("i", zero, Dim::constant(mr));
        let body = vectors(m, at, &mut |m, v, lane| vec![f(m, i.into(), v, lane)]);
        unroll(i, mr, body)
    };
    let mut out = vec![acc(total, &[1, mr, nv], Expr::f32(0.0))];
    // Digits are added side by side if registers suffice, else one after the other, each with the weights
    // extracted again.
    let beside = if (b.digits + 1) * mr * nv + 6 <= t.registers { b.digits } else { 1 };
    out.extend(activation_blocks(m, w, b, &mut |m, span, number| {
        let inner = m.reg(int);
        let value =
            |s: i64, i: Dim, v: Dim| Expr::Acc { reg: inner, at: vec![Dim::constant(s), i, v], lane: None };
        let set = |m: &mut Module, value: &dyn Fn(Dim, Dim) -> Expr| {
            each_row(m, &mut |_, i, v, _| Stmt::Set { reg: inner, at: vec![zero, i, v], value: value(i, v) })
        };
        let mut body = vec![acc(inner, &[beside, mr, nv], Expr::int(int, 0))];
        if b.centred && b.digits == 1 {
            body.extend(set(m, &|i, _| of_row(b.sum, i, number)));
        }
        // Activations are padded with zeros.
        let span = Span { words: span.words + i64::from(span.tail > 0), tail: 0, ..span };
        let fields: Vec<Field> =
            (0..quads).map(|s| Field { quad: s, shift: s * w.bits, bits: w.bits }).collect();
        let next = |e: Expr| Expr::bin(BinOp::Shl, e, Expr::int(int, 8));
        for first in (0..b.digits).step_by(beside as usize) {
            if first > 0 {
                body.extend(set(m, &|i, v| next(value(0, i, v))));
            }
            let quad = |s: i64, i: Dim, quad: Dim| {
                // Digits before this one, in this block and in those before it.
                let before = (number * (b.digits - 1) + first + s) * (b.block / 4);
                of_row(b.quads, i, quad + before)
            };
            let sums = Sums { w, group: b.group, at, mr, beside, inner, quad: &quad };
            body.extend(match b.group {
                DotKind::PairedBytes => sums.chains(m, span),
                _ => each_word(m, span, per, &mut |m, word, _| sums.word(m, inner, word, &fields)),
            });
        }
        body.extend(each_row(m, &mut |m, i, v, lane| {
            let sum = (1..beside).fold(value(0, i, v), |sum, s| next(sum) + value(s, i, v));
            let sum = if b.centred && b.digits > 1 { sum + of_row(b.sum, i, number) } else { sum };
            let sum = Expr::cast(int, ElemType::F32, sum);
            let sum = match w.zero(m, at, span.block, lane) {
                Some(z) if !b.centred => sum - of_row(b.sum, i, number) * z,
                _ => sum,
            };
            let own = of_row(b.scale, i, number);
            let scale = match w.scale(at, span.block, lane) {
                Some(s) => s * own,
                None => own,
            };
            let at = vec![zero, i, v];
            let before = Expr::Acc { reg: total, at: at.clone(), lane: None };
            Stmt::Set { reg: total, at, value: Expr::fma(scale, sum, before) }
        }));
        body
    }));
    out.extend(finish::stores(m, tile, total));
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
        let body =
            each(m, Span { first: span.first + Dim::sym(s) * words, words, ..span }, span.block * parts + s);
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

/// The accumulators of a block: one per digit, row of a tile and column.
struct Sums<'a> {
    w: &'a Nest,
    group: DotKind,
    at: Place,
    mr: i64,
    /// Digits of the activations that are added side by side.
    beside: i64,
    inner: Reg,
    /// The activation factor of a digit and a row at an index.
    quad: &'a dyn Fn(i64, Dim, Dim) -> Expr,
}

impl Sums<'_> {
    /// Adds the products of some of a word's weights to `to`.
    fn word(&self, m: &mut Module, to: Reg, word: Dim, fields: &[Field]) -> Vec<Stmt> {
        let (int, quads, at) = (ElemType::I32, 8 / self.w.bits, self.at);
        let (whole, q) = (m.reg(int), m.reg(int));
        let of = |reg: Reg, at: Vec<Dim>| Expr::Acc { reg, at, lane: None };
        let mut body = vec![self.acc(whole, &[]), self.acc(q, &[])];
        body.extend(vectors(m, at, &mut |_, v, lane| {
            vec![Stmt::Set { reg: whole, at: vec![v], value: self.w.word(at, word, lane) }]
        }));
        for f in fields {
            let mask = 0x0101_0101 * ((1 << f.bits) - 1);
            body.extend(vectors(m, at, &mut |_, v, _| {
                let moved = match f.shift {
                    0 => of(whole, vec![v]),
                    n => Expr::bin(BinOp::Shr, of(whole, vec![v]), Expr::int(int, n)),
                };
                let value =
                    if f.bits == 8 { moved } else { Expr::bin(BinOp::And, moved, Expr::int(int, mask)) };
                vec![Stmt::Set { reg: q, at: vec![v], value }]
            }));
            let i = m.syms.loop_var("i", Dim::constant(0), Dim::constant(self.mr));
            let rows = vectors(m, at, &mut |_, v, _| {
                let digit = |s: i64| {
                    let at = vec![Dim::constant(s), i.into(), v];
                    let factor = (self.quad)(s, i.into(), word * quads + f.quad);
                    let value = Expr::dot(self.group, of(q, vec![v]), factor, of(to, at.clone()));
                    Stmt::Set { reg: to, at, value }
                };
                (0..self.beside).map(digit).collect()
            });
            body.extend(unroll(i, self.mr, rows));
        }
        body
    }
    /// Integers of the vectors of a tile, for each of the dimensions `of`.
    fn acc(&self, reg: Reg, of: &[i64]) -> Stmt {
        let shape = of.iter().chain([&self.at.vectors]).map(|n| *n as u32).collect();
        Stmt::Acc { reg, lanes: self.at.lanes as u32, shape, init: Expr::int(ElemType::I32, 0) }
    }
    /// All words of a block by paired products: 16-bit words accumulate several of them, and are then
    /// widened.
    fn chains(&self, m: &mut Module, span: Span) -> Vec<Stmt> {
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
            body.push(self.acc(words, &[1, self.mr]));
            let u = m.syms.loop_var("u", Dim::constant(0), Dim::constant(step));
            let word = span.first + Dim::sym(turn) * step + u;
            let of_word = self.word(m, words, word, &fields);
            body.extend(unroll(u, step, of_word));
            let both = Expr::int(int, times << 16 | times);
            let i = m.syms.loop_var("i", Dim::constant(0), Dim::constant(self.mr));
            let rows = vectors(m, self.at, &mut |_, v, _| {
                let at = vec![Dim::constant(0), i.into(), v];
                let of = |reg: Reg| Expr::Acc { reg, at: at.clone(), lane: None };
                let value = Expr::dot(DotKind::Words, of(words), both.clone(), of(self.inner));
                vec![Stmt::Set { reg: self.inner, at: at.clone(), value }]
            });
            body.extend(unroll(i, self.mr, rows));
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
