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
        first_step: Some(Dim::constant(0)),
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
        let few = Tiles { p, w, t: &few };
        return (byte_dots::rows(m, few, (panel, panels), (rows, all_rows)), work);
    }
    if known.is_some_and(|r| r <= FEW) {
        let body = Tiles { p, w, t: &few }.panel(m, panel.into(), rows);
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
        Panel { p, t: &many, number: panel.into(), origin: None }.rows(m, Rows::first(rows), cols)
    });
    then.extend(w.around(body));
    let body = if known.is_some() {
        then
    } else {
        let els = then;
        let then = Tiles { p, w, t: &few }.panel(m, panel.into(), rows);
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

/// Tiles that convert weights in registers.
#[derive(Clone, Copy)]
pub(super) struct Tiles<'a> {
    pub p: &'a Parts,
    pub w: &'a Nest,
    pub t: &'a Tile,
}

impl Tiles<'_> {
    /// All rows of a panel.
    pub fn panel(&self, m: &mut Module, panel: Dim, rows: Dim) -> Vec<Stmt> {
        let t = self.t;
        let body = each_panel(m, t, panel, |m, cols| {
            let apart = matches!(cols, Cols::Some(_));
            each_part(m, t, panel, cols, |m, part| {
                let part = self.heights(m, part, rows);
                if apart { tile(part) } else { part }
            })
        });
        self.w.around(body)
    }
    /// Tiles of `t.mr` rows, then of half as many while these are at least four, then one of the rows that
    /// are left: tiles of few rows are bound by reading weights.
    fn heights(&self, m: &mut Module, part: Part, rows: Dim) -> Vec<Stmt> {
        let (zero, mr) = (Dim::constant(0), self.t.mr);
        let whole = m.syms.simplify(rows.floor_div(mr));
        let mut out = vec![];
        match whole.as_const() {
            Some(0) => {}
            Some(1) => out.extend(self.block(m, part, (zero, mr))),
            _ => {
                let v = m.syms.loop_var("m", zero, whole);
                let body = self.block(m, part, (Dim::sym(v) * mr, mr));
                out.push(Stmt::seq(v, whole, body));
            }
        }
        let least = mr.min(4);
        let mut rest = |m: &mut Module, height: i64, (row, is): (Dim, Dim)| {
            let (row, is) = (m.syms.simplify(row), m.syms.simplify(is));
            match is.as_const() {
                Some(n) if n != height => {}
                Some(_) => {
                    let rows = self.block(m, part, (row, height));
                    out.extend(tile(rows));
                }
                None => {
                    let then = self.block(m, part, (row, height));
                    out.push(Stmt::If { cond: Expr::cmp_index(BinOp::Eq, is, height), then, els: vec![] });
                }
            }
        };
        let mut height = mr / 2;
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
    /// One tile: rows `row .. row + mr`, columns of a part of a panel.
    fn block(&self, m: &mut Module, part: Part, (row, mr): (Dim, i64)) -> Vec<Stmt> {
        let Tiles { p, w, t } = *self;
        let tile = register::Block { p, t, part, row, mr };
        if let Some(b) = &w.bytes {
            return byte_dots::block(m, w, b, &tile);
        }
        let nv = part.vectors(t);
        let at = Place { panel: part.panel, column: part.sub * t.width(), vectors: nv, lanes: t.lanes };
        let total = m.reg(ElemType::F32);
        let block = Block { p, w, at, row, mr, total, fields: Fields::of(w, t, mr * nv) };
        let mut out = vec![block.acc(total, &[1, mr, nv])];
        let strict = m.math == Math::Strict;
        out.extend(blocks(m, w, &mut |m, span| {
            if strict { block.each_element(m, span) } else { block.sum(m, span) }
        }));
        out.extend(finish::stores(m, &tile, total));
        out
    }
}

/// Loops over the words of a column, block by block: `each` emits the statements for the words of one block.
pub(super) fn blocks(
    m: &mut Module,
    w: &Nest,
    each: &mut dyn FnMut(&mut Module, Span) -> Vec<Stmt>,
) -> Vec<Stmt> {
    let per = w.per_word();
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

/// The fields of a word that are processed together.
#[derive(Clone, Copy)]
struct Fields {
    /// Elements of 16 adjacent bits, at most four.
    count: i64,
    /// Accumulators of each sum.
    split: i64,
    /// A field is not shifted but used in its position in the word, scaled by a power of two.
    in_place: bool,
}

impl Fields {
    /// The fields of a tile of `sums` vectors. Fields have separate accumulators, and stay in place, if
    /// registers suffice. Otherwise accumulators are split while they are bound by latency.
    fn of(w: &Nest, t: &Tile, sums: i64) -> Fields {
        let count = (16 / w.bits).min(4);
        if matches!(w.code, Code::Integer) && (count + 1) * sums + 6 <= t.registers {
            return Fields { count, split: count, in_place: true };
        }
        let mut split = 1;
        while split < count && sums * split < 8 && 4 * sums * split < t.registers {
            split *= 2;
        }
        Fields { count, split, in_place: false }
    }
}

/// A tile whose sums are floats.
struct Block<'a> {
    p: &'a Parts,
    w: &'a Nest,
    at: Place,
    /// The first row, and their number.
    row: Dim,
    mr: i64,
    /// The sums of all blocks.
    total: Reg,
    fields: Fields,
}

impl Block<'_> {
    fn acc(&self, reg: Reg, shape: &[i64]) -> Stmt {
        let shape = shape.iter().map(|s| *s as u32).collect();
        Stmt::Acc { reg, lanes: self.at.lanes as u32, shape, init: Expr::f32(0.0) }
    }
    /// Element `k` of row `i` of the operand without weights.
    fn factor(&self, i: i64, k: Dim) -> Expr {
        let (buf, at) = &self.p.a;
        let put = |s: Sym| match s {
            s if s == self.p.reduction[0].0 => Some(k),
            s => self.w.row.filter(|r| r.0 == s).map(|_| self.row + i),
        };
        Expr::Load { buf: *buf, at: at.iter().map(|d| d.subst(&mut |s| put(s))).collect() }
    }
    /// Adds the products of weight `q` of vector `v` and elements `k` of all rows to part `part` of `sums`.
    fn products(&self, (sums, part): (Reg, i64), q: Reg, k: Dim, v: Dim) -> impl Iterator<Item = Stmt> {
        (0..self.mr).map(move |i| {
            let at = vec![Dim::constant(part), Dim::constant(i), v];
            let before = Expr::Acc { reg: sums, at: at.clone(), lane: None };
            Stmt::Set { reg: sums, at, value: Expr::fma(self.factor(i, k), Expr::Reg(q), before) }
        })
    }
    /// The products of a block with each weight converted completely.
    fn each_element(&self, m: &mut Module, span: Span) -> Vec<Stmt> {
        let per = self.w.per_word();
        each_word(m, span, per, &mut |m, word, count| {
            let step = |m: &mut Module, j: i64| {
                vectors(m, self.at, &mut |m, v, lane| {
                    let q = m.reg(ElemType::F32);
                    let value = self.w.value(m, self.at, (word, j), span.block, lane);
                    let mut body = vec![Stmt::Let { reg: q, value }];
                    body.extend(self.products((self.total, 0), q, word * per + j, v));
                    body
                })
            };
            (0..count).flat_map(|j| step(m, j)).collect()
        })
    }
    /// The sum of a block without scale and zero point, which are applied to the sum.
    fn sum(&self, m: &mut Module, span: Span) -> Vec<Stmt> {
        let Block { w, at, mr, fields, .. } = *self;
        let (per, one) = (w.per_word(), Place { vectors: 1, ..at });
        let (inner, rows) = (m.reg(ElemType::F32), m.reg(ElemType::F32));
        let centred = w.zero.is_some();
        let (a, subscripts) = &self.p.a;
        let along = stride(m, *a, subscripts, self.p.reduction[0].0) == Some(1);
        let mut body = vec![self.acc(inner, &[fields.split, mr, at.vectors])];
        if centred {
            body.push(self.acc(rows, &[mr]));
        }
        body.extend(each_word(m, span, per, &mut |m, word, count| {
            let mut out = vec![];
            for j in (0..per).step_by(fields.count as usize) {
                let here = (0..fields.count).map(|f| (f, element(w.bits, j + f)));
                let here: Vec<(i64, i64)> = here.filter(|(_, e)| *e < count).collect();
                if here.is_empty() {
                    continue;
                }
                out.extend(vectors(m, at, &mut |m, v, lane| {
                    let shift = if fields.in_place { w.bits * j } else { 0 };
                    self.field_products(m, inner, (word, shift), &here, (v, lane))
                }));
                if centred && !along {
                    out.extend(vectors(m, one, &mut |_, _, _| {
                        here.iter().flat_map(|(_, e)| self.added(rows, word * per + *e)).collect()
                    }));
                }
            }
            out
        }));
        if centred && along {
            // The sum of a row, in vectors along the row.
            let n = Dim::constant(span.words * per + span.tail);
            let l = m.syms.loop_var("l", Dim::constant(0), n);
            let added = self.added(rows, span.first * per + l).collect();
            body.push(Stmt::vector(at.lanes, l, n, added));
            body.extend(vectors(m, one, &mut |_, _, _| {
                let whole = |i: i64| {
                    let at = vec![Dim::constant(i)];
                    let value = Expr::Horizontal { op: BinOp::Add, reg: rows, at: at.clone() };
                    Stmt::Set { reg: rows, at, value }
                };
                (0..mr).map(whole).collect()
            }));
        }
        body.extend(vectors(m, at, &mut |m, v, lane| {
            (0..mr).map(|i| self.scaled(m, (inner, rows), span.block, (i, v), lane)).collect()
        }));
        body
    }
    /// Adds the products of some fields and elements of a word, shifted right by `shift`, to `inner`.
    fn field_products(
        &self,
        m: &mut Module,
        inner: Reg,
        (word, shift): (Dim, i64),
        fields: &[(i64, i64)],
        (v, lane): (Dim, Dim),
    ) -> Vec<Stmt> {
        let (w, int) = (self.w, ElemType::I32);
        let shared = m.reg(int);
        let value = w.word(self.at, word, lane);
        let value = if shift > 0 { Expr::bin(BinOp::Shr, value, Expr::int(int, shift)) } else { value };
        let mut body = vec![Stmt::Let { reg: shared, value }];
        for (f, e) in fields.iter().copied() {
            let q = m.reg(ElemType::F32);
            let value = if self.fields.in_place {
                let mask = ((1 << w.bits) - 1) << (w.bits * f);
                let field = Expr::bin(BinOp::And, Expr::Reg(shared), Expr::int(int, mask));
                Expr::cast(int, ElemType::F32, field)
            } else {
                w.field(m, Expr::Reg(shared), e)
            };
            body.push(Stmt::Let { reg: q, value });
            body.extend(self.products((inner, f % self.fields.split), q, word * w.per_word() + e, v));
        }
        body
    }
    /// Adds elements `k` of all rows to `rows`.
    fn added(&self, rows: Reg, k: Dim) -> impl Iterator<Item = Stmt> {
        (0..self.mr).map(move |i| {
            let at = vec![Dim::constant(i)];
            let before = Expr::Acc { reg: rows, at: at.clone(), lane: None };
            Stmt::Set { reg: rows, at, value: before + self.factor(i, k) }
        })
    }
    /// Adds a block's sum of row `i` and vector `v` to the total: `inner`, less the zero point times `rows`,
    /// times the scale.
    fn scaled(
        &self,
        m: &mut Module,
        (inner, rows): (Reg, Reg),
        block: Dim,
        (i, v): (i64, Dim),
        lane: Dim,
    ) -> Stmt {
        let Block { w, at, total, fields, .. } = *self;
        let of =
            |s: i64| Expr::Acc { reg: inner, at: vec![Dim::constant(s), Dim::constant(i), v], lane: None };
        let sum = (1..fields.split).fold(of(0), |sum, s| match fields.in_place {
            true => Expr::fma(of(s), Expr::f32((-(s * w.bits) as f32).exp2()), sum),
            false => sum + of(s),
        });
        let sum = match w.zero(m, at, block, lane) {
            Some(z) => sum - Expr::Acc { reg: rows, at: vec![Dim::constant(i)], lane: None } * z,
            None => sum,
        };
        let of_total = vec![Dim::constant(0), Dim::constant(i), v];
        let before = Expr::Acc { reg: total, at: of_total.clone(), lane: None };
        let value = match w.scale(at, block, lane) {
            Some(s) => Expr::fma(s, sum, before),
            None => before + sum,
        };
        Stmt::Set { reg: total, at: of_total, value }
    }
}

/// Dequantizes a panel to scratch.
fn converted(m: &mut Module, w: &Nest, panel: Dim, lanes: i64, (scratch, part): (Buf, Sym)) -> Vec<Stmt> {
    let at = Place { panel, column: Dim::constant(0), vectors: w.width / lanes, lanes };
    let per = w.per_word();
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
