//! Tiles of contractions with packed weights (`quantize::few_bits`).
//!
//! For few rows, each element is converted to a float in a register: `sum_k a_k (q_k - z) s` of a block is `s
//! (sum_k a_k q_k - z sum_k a_k)`, so that scale and zero point are applied once per block (with `--math
//! strict` in each step, as in the model). For many rows, a panel is dequantized to private scratch (`nest`,
//! rule 12), which all rows then read like any panel. If the number of rows is a run-time value, the choice
//! is made at run time.

mod weights;

use super::byte_dots;
use super::finish;
use super::register::{self, Cols, tile, unroll};
use super::rows::{Panel, Rows};
use super::{Panels, Part, Tile, Wanted, each_panel, each_part};
use crate::nest::{BinOp, Buf, Expr, Kernel, LoopKind, Math, Module, Reg, Stmt};
use crate::passes::nest::analysis::machine::slots;
use crate::passes::nest::analysis::shape::{fresh_regs, parallel};
use crate::passes::nest::analysis::strides::stride;
use crate::passes::nest::schedule::contract::{Columns, Parts};
use crate::passes::nest::schedule::rows::Slots;
use crate::sym::{Dim, Sym};
use crate::target::Facts;
use crate::tensor::ElemType;
use crate::tensor::words::element;
pub(crate) use weights::{Code, Nest, Scale, Zero};

/// Maximum rows for which elements are converted in registers.
const FEW: i64 = 8;
/// Maximum words of a block that are unrolled.
const UNROLLED: i64 = 4;

/// A position of vectors: the panel, its first column, and the number of vectors.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub panel: Dim,
    pub column: Dim,
    pub vectors: i64,
    pub lanes: i64,
}

/// A range of a column: block `block`, words `first .. first + words`, and `tail` elements of the next word.
#[derive(Clone, Copy)]
pub(super) struct Span {
    pub block: Dim,
    pub first: Dim,
    pub words: i64,
    pub tail: i64,
}

/// The body of the contraction, and its work.
pub(crate) fn emit(m: &mut Module, k: Kernel, p: &Parts, w: &Nest, facts: Facts) -> (Vec<Stmt>, Dim) {
    let (zero, lanes) = (Dim::constant(0), i64::from(facts.lanes));
    let panels = Dim::constant((w.columns + w.width - 1) / w.width);
    let rows = w.row.map_or(Dim::constant(1), |r| r.1);
    let all_rows = m.syms.simplify(Dim::product(w.outer.iter().map(|r| r.1)) * rows);
    let known = all_rows.as_const();
    let (wide, n_extent) = (facts.caps.bits == 512, Dim::constant(w.columns));
    let nv = 2.min(w.width / lanes);
    let few = Tile {
        m_row: w.row,
        together: 1,
        n: w.n,
        n_extent,
        nr: w.width,
        panels: Panels::InPlace,
        batch: vec![],
        lanes,
        registers: i64::from(facts.registers),
        nv,
        mr: if wide { 4 } else { 2 },
        backwards: false,
        clips: vec![],
        halves: false,
        caps: facts.caps,
    };
    let panel = m.syms.loop_var("p", zero, panels);
    let work = Dim::product([all_rows, Dim::constant(w.columns), Dim::constant(w.reduction)]).floor_div(4);
    // A row takes about as long as dequantizing its weights. Without rows (an expert without tokens), nothing
    // is computed.
    let some = if m.syms.is_pos(all_rows) { Dim::constant(1) } else { all_rows.min(1) };
    let work = work + some * (w.columns * w.reduction / 8).max(1);
    if let Some(b) = &w.bytes {
        // Three bytes of an integer cost most of what a float does.
        let work = if b.digits == 1 { work.floor_div(4) } else { work };
        return (byte_dots::rows(m, p, w, &few, (panel, panels), (rows, all_rows)), work);
    }
    if known.is_some_and(|r| r <= FEW) {
        let body =
            each_panel(m, &few, panel.into(), |m, cols| few_rows(m, p, w, &few, panel.into(), rows, cols));
        let body = w.around(body);
        return (parallel(m, &[(panel, panels)], body), work);
    }
    let slots = Slots::new(m, slots(panels, None));
    let (name, ty) = (format!("{}.weights", m.kernels[k].name), ElemType::F32);
    let scratch =
        m.temp(name, ty, vec![slots.count.into(), Dim::constant(w.reduction), Dim::constant(w.width)]);
    let most = m.syms.range(rows).hi.unwrap_or(i64::MAX);
    let columns = Columns { n: w.n, extent: n_extent, nr: w.width };
    let many = Tile::new(
        Wanted::plain(w.row, most, columns),
        Panels::Private { buf: scratch, part: slots.own, of_b: false },
        facts,
    );
    let convert = converted(m, w, panel.into(), lanes, (scratch, slots.own));
    let mut then = convert;
    let body = each_panel(m, &many, panel.into(), |m, cols| {
        Panel { p, t: &many, number: panel.into() }.rows(m, Rows::first(rows), cols)
    });
    then.extend(w.around(body));
    let body = if known.is_some() {
        then
    } else {
        let els = then;
        let then =
            each_panel(m, &few, panel.into(), |m, cols| few_rows(m, p, w, &few, panel.into(), rows, cols));
        let then = w.around(then);
        // The loops of the two branches require distinct variables.
        let els = fresh_regs(m, &els);
        vec![Stmt::If { cond: Expr::cmp_index(BinOp::Le, all_rows, FEW), then, els }]
    };
    let share = |first: Dim| (first * panels).floor_div(slots.count);
    let (lo, hi) = (share(slots.task.into()), share(Dim::sym(slots.task) + 1));
    m.syms.set_loop_range(panel, lo, hi);
    let body = vec![Stmt::For { kind: LoopKind::Seq, var: panel, lo, hi, body }];
    (slots.around(body), work)
}

/// All rows of a panel, with conversion in registers.
pub(super) fn few_rows(
    m: &mut Module,
    p: &Parts,
    w: &Nest,
    t: &Tile,
    panel: Dim,
    rows: Dim,
    cols: Cols,
) -> Vec<Stmt> {
    let apart = matches!(cols, Cols::Some(_));
    each_part(m, t, panel, cols, |m, part| {
        let part = heights(m, p, w, t, part, rows);
        if apart { tile(part) } else { part }
    })
}

/// Tiles of `t.mr` rows, then of half as many while these are at least four, then one of the rows that are
/// left: tiles of few rows are bound by reading weights.
fn heights(m: &mut Module, p: &Parts, w: &Nest, t: &Tile, part: Part, rows: Dim) -> Vec<Stmt> {
    let zero = Dim::constant(0);
    let whole = m.syms.simplify(rows.floor_div(t.mr));
    let mut out = vec![];
    match whole.as_const() {
        Some(0) => {}
        Some(1) => out.extend(block(m, p, w, t, part, (zero, t.mr))),
        _ => {
            let v = m.syms.loop_var("m", zero, whole);
            let body = block(m, p, w, t, part, (Dim::sym(v) * t.mr, t.mr));
            out.push(Stmt::seq(v, whole, body));
        }
    }
    let least = t.mr.min(4);
    let mut rest = |m: &mut Module, height: i64, (row, is): (Dim, Dim)| {
        let (row, is) = (m.syms.simplify(row), m.syms.simplify(is));
        match is.as_const() {
            Some(n) if n != height => {}
            Some(_) => {
                let rows = block(m, p, w, t, part, (row, height));
                out.extend(tile(rows));
            }
            None => {
                let then = block(m, p, w, t, part, (row, height));
                out.push(Stmt::If { cond: Expr::cmp_index(BinOp::Eq, is, height), then, els: vec![] });
            }
        }
    };
    let mut height = t.mr / 2;
    while height >= least {
        let above = rows.floor_div(2 * height) * (2 * height);
        rest(m, height, (above, rows.floor_div(height).modulo(2) * height));
        height /= 2;
    }
    for height in (1..least).rev() {
        rest(m, height, (rows.floor_div(least) * least, rows.modulo(least)));
    }
    out
}

/// Loops over the words of a column, block by block: `each` emits the statements for the words of one block.
pub(super) fn blocks(
    m: &mut Module,
    w: &Nest,
    each: &mut dyn FnMut(&mut Module, Span) -> Vec<Stmt>,
) -> Vec<Stmt> {
    let per = 32 / w.bits;
    let (words, zero) = (w.block / per, Dim::constant(0));
    // A block that covers the whole column may end within a word.
    let whole = if w.block % per == 0 { w.reduction / w.block } else { 0 };
    let rest = w.reduction - whole * w.block;
    let mut out = vec![];
    if whole > 0 {
        let b = m.syms.loop_var("b", zero, Dim::constant(whole));
        let body = each(m, Span { block: b.into(), first: Dim::sym(b) * words, words, tail: 0 });
        out.push(Stmt::seq(b, whole, body));
    }
    if rest > 0 {
        out.extend(each(
            m,
            Span {
                block: Dim::constant(whole),
                first: Dim::constant(whole * words),
                words: rest / per,
                tail: rest % per,
            },
        ));
    }
    out
}

/// Loops over `words` words from `first` on and `tail` elements of the next one: `each` receives the word and
/// the number of its elements.
pub(super) fn each_word(
    m: &mut Module,
    span: Span,
    per: i64,
    each: &mut dyn FnMut(&mut Module, Dim, i64) -> Vec<Stmt>,
) -> Vec<Stmt> {
    let Span { first, words, tail, .. } = span;
    let zero = Dim::constant(0);
    let mut out = vec![];
    let step = [UNROLLED, 2].into_iter().find(|s| words % s == 0).unwrap_or(1).min(words.max(1));
    let turns = words / step;
    if turns > 0 {
        let u = m.syms.loop_var("u", zero, Dim::constant(step));
        let q = m.syms.loop_var("w", zero, Dim::constant(turns));
        let body = each(m, first + Dim::sym(q) * step + u, per);
        let body = unroll(u, step, body);
        out.push(Stmt::seq(q, turns, body));
    }
    if tail > 0 {
        out.extend(each(m, first + words, tail));
    }
    out
}

/// A loop over the lanes of each vector; `f` emits lane `.1` of vector `.0`.
pub(super) fn vectors(
    m: &mut Module,
    at: Place,
    f: &mut dyn FnMut(&mut Module, Dim, Dim) -> Vec<Stmt>,
) -> Vec<Stmt> {
    let zero = Dim::constant(0);
    let v = m.syms.loop_var("v", zero, Dim::constant(at.vectors));
    let l = m.syms.loop_var("l", zero, Dim::constant(at.lanes));
    let body = f(m, v.into(), Dim::sym(v) * at.lanes + l);
    unroll(v, at.vectors, vec![Stmt::vector(at.lanes, l, at.lanes, body)])
}

/// One tile: rows `row .. row + mr`, columns of a part of a panel.
fn block(m: &mut Module, p: &Parts, w: &Nest, t: &Tile, part: Part, (row, mr): (Dim, i64)) -> Vec<Stmt> {
    if let Some(b) = &w.bytes {
        return byte_dots::block(m, p, (w, b), t, part, (row, mr));
    }
    let Part { panel, sub, .. } = part;
    let (lanes, nv) = (t.lanes, part.vectors(t));
    let per = 32 / w.bits;
    let at = Place { panel, column: sub * t.width(), vectors: nv, lanes };
    let strict = m.math == Math::Strict;
    // 16-bit fields have separate accumulators if registers suffice: a field is then not shifted but used in
    // its position in the word, scaled by a power of two. Otherwise accumulators are split while they are
    // bound by latency.
    let fields = (16 / w.bits).min(4);
    let in_place = matches!(w.code, Code::Integer) && (fields + 1) * mr * nv + 6 <= t.registers;
    let mut split = 1;
    while !in_place && split < fields && mr * nv * split < 8 && 4 * mr * nv * split < t.registers {
        split *= 2;
    }
    let split = if in_place { fields } else { split };
    let along = stride(m, p.a.0, &p.a.1, p.reduction[0].0) == Some(1);
    let total = m.reg(ElemType::F32);
    let acc = |reg: Reg, shape: &[i64]| Stmt::Acc {
        reg,
        lanes: lanes as u32,
        shape: shape.iter().map(|s| *s as u32).collect(),
        init: Expr::f32(0.0),
    };
    let zero = Dim::constant(0);
    let row_of = |i: i64, k: Dim| -> Expr {
        let put = |s: Sym| {
            if s == p.reduction[0].0 { Some(k) } else { w.row.filter(|r| r.0 == s).map(|_| row + i) }
        };
        Expr::Load { buf: p.a.0, at: p.a.1.iter().map(|d| d.subst(&mut |s| put(s))).collect() }
    };
    let mut out = vec![acc(total, &[1, mr, nv])];
    out.extend(blocks(m, w, &mut |m, span| {
        let Span { block: b, first, words, tail } = span;
        if strict {
            return each_word(m, span, per, &mut |m, word, count| {
                let step = |m: &mut Module, j: i64| {
                    vectors(m, at, &mut |m, v, lane| {
                        let q = m.reg(ElemType::F32);
                        let mut body = vec![Stmt::Let { reg: q, value: w.value(m, at, (word, j), b, lane) }];
                        body.extend((0..mr).map(|i| {
                            let at = vec![zero, Dim::constant(i), v];
                            Stmt::Set {
                                reg: total,
                                at: at.clone(),
                                value: Expr::fma(
                                    row_of(i, word * per + j),
                                    Expr::Reg(q),
                                    Expr::Acc { reg: total, at, lane: None },
                                ),
                            }
                        }));
                        body
                    })
                };
                (0..count).flat_map(|j| step(m, j)).collect()
            });
        }
        let (inner, rows) = (m.reg(ElemType::F32), m.reg(ElemType::F32));
        let centred = w.zero.is_some();
        let added = |k: Dim| -> Vec<Stmt> {
            let sum = |i: i64| {
                let at = vec![Dim::constant(i)];
                Stmt::Set {
                    reg: rows,
                    at: at.clone(),
                    value: Expr::Acc { reg: rows, at, lane: None } + row_of(i, k),
                }
            };
            (0..mr).map(sum).collect()
        };
        let mut body = vec![acc(inner, &[split, mr, nv])];
        if centred {
            body.push(acc(rows, &[mr]));
        }
        body.extend(each_word(m, span, per, &mut |m, word, count| {
            let mut out = vec![];
            // Adjacent fields, and the elements in them.
            for j in (0..per).step_by(fields as usize) {
                let here: Vec<(i64, i64)> =
                    (0..fields).map(|f| (f, element(w.bits, j + f))).filter(|(_, e)| *e < count).collect();
                if here.is_empty() {
                    continue;
                }
                out.extend(vectors(m, at, &mut |m, v, lane| {
                    let int = ElemType::I32;
                    let shared = m.reg(int);
                    let word_of = w.word(at, word, lane);
                    let group = if in_place && j > 0 {
                        Expr::bin(BinOp::Shr, word_of, Expr::int(int, w.bits * j))
                    } else {
                        word_of
                    };
                    let mut body = vec![Stmt::Let { reg: shared, value: group }];
                    for (f, e) in here.iter().copied() {
                        let q = m.reg(ElemType::F32);
                        let value = if in_place {
                            let mask = ((1 << w.bits) - 1) << (w.bits * f);
                            Expr::cast(
                                int,
                                ElemType::F32,
                                Expr::bin(BinOp::And, Expr::Reg(shared), Expr::int(int, mask)),
                            )
                        } else {
                            w.field(m, Expr::Reg(shared), e)
                        };
                        body.push(Stmt::Let { reg: q, value });
                        body.extend((0..mr).map(|i| {
                            let at = vec![Dim::constant(f % split), Dim::constant(i), v];
                            Stmt::Set {
                                reg: inner,
                                at: at.clone(),
                                value: Expr::fma(
                                    row_of(i, word * per + e),
                                    Expr::Reg(q),
                                    Expr::Acc { reg: inner, at, lane: None },
                                ),
                            }
                        }));
                    }
                    body
                }));
                if centred && !along {
                    let one = Place { vectors: 1, ..at };
                    out.extend(vectors(m, one, &mut |_, _, _| {
                        here.iter().flat_map(|(_, e)| added(word * per + *e)).collect()
                    }));
                }
            }
            out
        }));
        if centred && along {
            // The sum of a row, in vectors along the row.
            let (n, l) = (
                Dim::constant(words * per + tail),
                m.syms.loop_var("l", zero, Dim::constant(words * per + tail)),
            );
            let body_of = added(first * per + l);
            body.push(Stmt::vector(lanes, l, n, body_of));
            let one = Place { vectors: 1, ..at };
            body.extend(vectors(m, one, &mut |_, _, _| {
                let whole = |i: i64| {
                    let at = vec![Dim::constant(i)];
                    Stmt::Set {
                        reg: rows,
                        at: at.clone(),
                        value: Expr::Horizontal { op: BinOp::Add, reg: rows, at },
                    }
                };
                (0..mr).map(whole).collect()
            }));
        }
        body.extend(vectors(m, at, &mut |m, v, lane| {
            (0..mr)
                .map(|i| {
                    let of = |s: i64| Expr::Acc {
                        reg: inner,
                        at: vec![Dim::constant(s), Dim::constant(i), v],
                        lane: None,
                    };
                    let sum = (1..split).fold(of(0), |sum, s| match in_place {
                        true => Expr::fma(of(s), Expr::f32((-(s * w.bits) as f32).exp2()), sum),
                        false => sum + of(s),
                    });
                    let sum = match w.zero(m, at, b, lane) {
                        Some(z) => {
                            let rows = Expr::Acc { reg: rows, at: vec![Dim::constant(i)], lane: None };
                            sum - rows * z
                        }
                        None => sum,
                    };
                    let at_total = vec![zero, Dim::constant(i), v];
                    let before = Expr::Acc { reg: total, at: at_total.clone(), lane: None };
                    let value = match w.scale(at, b, lane) {
                        Some(s) => Expr::fma(s, sum, before),
                        None => before + sum,
                    };
                    Stmt::Set { reg: total, at: at_total, value }
                })
                .collect()
        }));
        body
    }));
    out.extend(finish::stores(m, &register::Block { p, t, part, row, mr }, total));
    out
}

/// Dequantizes a panel to scratch.
fn converted(m: &mut Module, w: &Nest, panel: Dim, lanes: i64, (scratch, part): (Buf, Sym)) -> Vec<Stmt> {
    let at = Place { panel, column: Dim::constant(0), vectors: w.width / lanes, lanes };
    let per = 32 / w.bits;
    let out = blocks(m, w, &mut |m, span| {
        let b = span.block;
        each_word(m, span, per, &mut |m, word, count| {
            let mut out = vec![];
            for j in 0..count {
                out.extend(vectors(m, at, &mut |m, _, lane| {
                    vec![Stmt::Store {
                        buf: scratch,
                        at: vec![part.into(), word * per + j, lane],
                        value: w.value(m, at, (word, j), b, lane),
                    }]
                }));
            }
            out
        })
    });
    tile(out)
}
