//! Tiles of contractions whose weights are words of few bits, by dot products of bytes
//! (`quantize::few_bits`).
//!
//! The activations of a block are integers of 8 bits and a scale: `sum_k a_k (q_k - z) s` of a block is
//! `s_a s (sum_k b_k q_k - z sum_k b_k)`, where both sums are of integers and exact. A shift and a mask make
//! the factor of four weights in each lane; the factor of the activations is one for all lanes.

use super::dequantize::{Nest, Place, Span, blocks, each_word, few_rows, vectors};
use super::{Part, Tile, each_panel, finish, register};
use crate::nest::{BinOp, Buf, DotKind, Expr, Module, Stmt};
use crate::passes::nest::analysis::shape::{fresh_regs, parallel};
use crate::passes::nest::schedule::contract::Parts;
use crate::sym::{Dim, Sym};
use crate::tensor::ElemType;

/// Rows up to which the tiles are those of few rows, which read the weights once.
const FEW: i64 = 4;

/// Activations as integers, by rows.
pub(crate) struct Bytes {
    /// `[row][quad]`: four of them in each element.
    pub quads: Buf,
    /// `[row][block]`.
    pub scale: Buf,
    /// `[row][block]`: the sum of a block; times the zero point, negative, where that is one number: an i32.
    /// Else an f32.
    pub sum: Buf,
    /// Whether sums are times the zero point.
    pub centred: bool,
    /// Dot products of weights and activations.
    pub group: DotKind,
}

/// All rows: wide tiles that read weights once for few of them, high ones that use each word for many. Where
/// run time counts the rows, it chooses.
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
    let tiles = |m: &mut Module, t: &Tile| {
        let body = each_panel(m, t, panel.into(), |m, cols| few_rows(m, p, w, t, panel.into(), rows, cols));
        w.around(body)
    };
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
    // What belongs to row `i` of the tile.
    let of_row = |buf: Buf, i: i64, last: Dim| -> Expr {
        let rows = w.outer.iter().map(|r| Dim::sym(r.0)).chain(w.row.map(|_| row + i));
        Expr::Load { buf, at: rows.chain([last]).collect() }
    };
    let place = |i: i64, v: Dim| vec![Dim::constant(i), v];
    let mut out = vec![acc(total, &[1, mr, nv], Expr::f32(0.0))];
    out.extend(blocks(m, w, &mut |m, span| {
        let (number, inner) = (span.block, m.reg(int));
        let mut body = vec![acc(inner, &[mr, nv], Expr::int(int, 0))];
        if b.centred {
            let first =
                |i: i64, v: Dim| Stmt::Set { reg: inner, at: place(i, v), value: of_row(b.sum, i, number) };
            body.extend(vectors(m, at, &mut |_, v, _| (0..mr).map(|i| first(i, v)).collect()));
        }
        // Activations behind the last one are 0.
        let span = Span { words: span.words + i64::from(span.tail > 0), tail: 0, ..span };
        body.extend(each_word(m, span, per, &mut |m, word, _| {
            vectors(m, at, &mut |m, v, lane| {
                let whole = m.reg(int);
                let mut body = vec![Stmt::Let { reg: whole, value: w.word(at, word, lane) }];
                for s in 0..quads {
                    let q = m.reg(int);
                    let moved = if s == 0 {
                        Expr::Reg(whole)
                    } else {
                        Expr::bin(BinOp::Shr, Expr::Reg(whole), Expr::int(int, s * w.bits))
                    };
                    let mask = 0x0101_0101 * ((1 << w.bits) - 1);
                    let value =
                        if quads == 1 { moved } else { Expr::bin(BinOp::And, moved, Expr::int(int, mask)) };
                    body.push(Stmt::Let { reg: q, value });
                    body.extend((0..mr).map(|i| {
                        let before = Expr::Acc { reg: inner, at: place(i, v), lane: None };
                        let value =
                            Expr::dot(b.group, Expr::Reg(q), of_row(b.quads, i, word * quads + s), before);
                        Stmt::Set { reg: inner, at: place(i, v), value }
                    }));
                }
                body
            })
        }));
        body.extend(vectors(m, at, &mut |m, v, lane| {
            let one = |m: &mut Module, i: i64| {
                let sum =
                    Expr::cast(int, ElemType::F32, Expr::Acc { reg: inner, at: place(i, v), lane: None });
                let sum = match w.zero(m, at, number, lane) {
                    Some(z) if !b.centred => sum - of_row(b.sum, i, number) * z,
                    _ => sum,
                };
                let own = of_row(b.scale, i, number);
                let scale = match w.scale(at, number, lane) {
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
