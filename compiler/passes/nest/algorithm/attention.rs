//! attention: scores, softmax and the weighted sum of values as one nest over blocks of query rows.
//!
//! Exporters write a contraction Q*K with scale and mask as its epilogue, a row kernel (softmax), possibly
//! maps, and a contraction with V. The pass replaces them by one `par` loop over pieces of (batch, head,
//! block of rows). The scores of a block against all keys are computed, normalised and used while they are in
//! the cache; the full score matrix is never stored. A row is never divided: no rescaling is needed, and
//! results do not depend on the number of threads.
//!
//! With `--math fast`, both contractions may be dot products of bf16 (`bf16_dot`). The result of softmax is
//! then bf16, in separate scratch.
//!
//! If the number of rows is a run-time value, the driver may call kernels for a single row instead, see
//! `one_row`, or a kernel for a few rows that packs keys itself, see `keys`.
//!
//! Softmax processes a block in phases, see `softmax`. The score buffer has a slot for each iteration of the
//! `par` loop, of which there are at most `PIECES`. An iteration processes several blocks in sequence; tasks
//! are ranges of iterations.

mod group;
mod keys;
mod one_row;
mod softmax;
mod visible;

use crate::diag::Result;
use crate::nest::key::{Key, Writer};
use crate::nest::schedule::Schedule;
use crate::nest::{BinOp, Buf, Expr, Kernel, Math, Module, Stmt};
use crate::passes::nest::analysis::copies::{Copies, Emitted};
use crate::passes::nest::analysis::form::{Contraction, Form, ProductKind, Rows};
use crate::passes::nest::analysis::machine::L2;
use crate::passes::nest::analysis::shape::{Uses, fresh_regs, substitute, wrap};
use crate::passes::nest::schedule::contract::{Columns, Packing, packing};
use crate::passes::nest::schedule::lanes;
use crate::passes::nest::schedule::pack::Site;
use crate::passes::nest::schedule::tiles::{self, Tile, Wanted};
use crate::sym::{Dim, Sym};
use crate::target::{Facts, Level};
use crate::tensor::ElemType;
use group::{Group, group, position};
use keys::{Keys, When};
use softmax::Found;
use std::collections::HashSet;
use visible::{Limit, Visible};

/// Maximum number of iterations of the `par` loop, which bounds the number of tasks.
const PIECES: i64 = 64;
/// Maximum rows of a block, and maximum bytes of its scores if their size is known.
const ROWS: i64 = 28;
const BYTES: i64 = 11 * L2 / 64;

/// Runs the pass. The kernels that it emits are already scheduled.
pub fn run(m: &mut Module, level: &Level) -> Result<()> {
    let facts = level.facts;
    if facts.lanes == 1 {
        return Ok(());
    }
    let uses = Uses::new(m);
    let groups = groups(m, &uses);
    let chosen: Vec<bool> = groups.iter().map(|g| one_row::add(m, g)).collect();
    // The single-row kernels read operands that packing would otherwise compute.
    let uses = if chosen.contains(&true) { Uses::new(m) } else { uses };
    let mut copies = Copies::default();
    for (g, chosen) in groups.into_iter().zip(chosen) {
        let values = g.values;
        // Kernels that pack operands run where the merged kernel runs.
        let anchors = (if chosen { values } else { g.scores }, values);
        if merge(m, &uses, g, anchors, (facts, &mut copies)) {
            m.kernels[values].scheduled = true;
        } else if chosen {
            one_row::remove(m, values);
        }
    }
    Ok(())
}

/// The buffers that hold the scores of attentions: the pass replaces them by scratch of its own.
pub(crate) fn score_buffers(m: &Module) -> HashSet<Buf> {
    groups(m, &Uses::new(m)).into_iter().flat_map(|g| g.bufs).collect()
}

/// The attentions of a module, in driver order. Two may share a kernel (the values of one are the scores of
/// the next); the first one is returned.
fn groups(m: &Module, uses: &Uses) -> Vec<Group> {
    let mut groups: Vec<Group> = vec![];
    for g in uses.order.iter().filter_map(|k| group(m, uses, *k)) {
        if groups.iter().all(|before| g.scores != before.values) {
            groups.push(g);
        }
    }
    groups
}

/// True for a map that only converts the element type.
fn converts(m: &Module, k: Kernel) -> bool {
    m.form(k).map().is_some_and(|map| matches!(map.value, Expr::Load { .. }))
}

/// Substitutes dims for the variables of a contraction.
fn put_parts(p: &mut Contraction, f: &dyn Fn(Sym) -> Option<Dim>) {
    let sub = |d: &Dim| d.subst(&mut |s| f(s));
    p.a.1 = p.a.1.iter().map(sub).collect();
    p.b.1 = p.b.1.iter().map(sub).collect();
    p.epilogue = std::mem::take(&mut p.epilogue).into_iter().map(|s| s.map_dims(&mut |d| sub(&d))).collect();
}

/// Everything that emitting a block of rows requires from both contractions.
struct Block {
    qk: Contraction,
    rows: Vec<Vec<Stmt>>,
    pv: (Contraction, Tile),
    /// The row inside a block, and the first row of a block, as symbols.
    local: Sym,
    first: Sym,
    /// The keys that rows see, if the mask compares positions.
    visible: Option<Visible>,
}

/// How a block computes its scores.
struct Scores {
    tile: Tile,
    /// The keys, if the block packs them.
    keys: Option<Keys>,
}

/// A merged kernel.
struct Merged {
    block: Block,
    batch: Vec<(Sym, Dim)>,
    /// Rows, and rows of a block.
    extent: Dim,
    height: i64,
    /// The iteration of the `par` loop.
    piece: Sym,
}

/// Merges a group into its last kernel. `anchors`: the calls before which each operand is packed.
fn merge(
    m: &mut Module,
    uses: &Uses,
    mut g: Group,
    anchors: (Kernel, Kernel),
    (facts, copies): (Facts, &mut Copies<Dim>),
) -> bool {
    let zero = Dim::constant(0);
    let keys = g.dims[g.dims.len() - 1];
    let (extent, Some(row)) = (g.dims[g.row], g.vars[g.row]) else { return false };
    let batch: Vec<(Sym, Dim)> = g
        .vars
        .iter()
        .zip(&g.dims)
        .enumerate()
        .filter(|(i, _)| *i != g.row)
        .filter_map(|(_, (v, d))| Some(((*v)?, *d)))
        .collect();
    let (n2, width) = match g.pv.loops.iter().find(|l| l.0 == g.columns.1) {
        Some(l) => *l,
        None => return false,
    };
    let height = height(extent, keys);
    let pieces = pieces(total(&batch, extent.ceil_div(height))).0;
    // Operands of the contractions, packed where they must be.
    let rename = |i: usize, s: Sym| g.renames[i].iter().find(|r| r.0 == s).map(|r| r.1);
    put_parts(&mut g.qk, &|s| rename(0, s));
    let most = m.syms.range(extent).hi.unwrap_or(i64::MAX).min(height);
    let (nr1, nr2) = (tiles::panel(most, keys, 16), tiles::panel(most, width, 16));
    let of_keys = Columns { n: g.columns.0, extent: keys, nr: nr1 };
    let of_values = Columns { n: n2, extent: width, nr: nr2 };
    let site = |k: Kernel| Site { uses, k, facts };
    let (Some(panels1), Some(panels2)) = (
        packing(m, &site(g.scores), &g.qk, &batch, of_keys),
        packing(m, &site(g.values), &g.pv, &batch, of_values),
    ) else {
        return false;
    };
    let piece = m.syms.loop_var("t", zero, pieces);
    let when = match When::of(m, extent, height, keys) {
        // The values are packed for one kernel only.
        When::Few if matches!(panels2, Packing::Kernel(_)) => When::Never,
        when => when,
    };
    let own = match when {
        When::Never => None,
        _ => Keys::new(m, &site(g.scores), &g.qk, (piece, pieces, &batch), of_keys),
    };
    let few = (when == When::Few && own.is_some()).then(|| {
        let cond = Expr::cmp_index(BinOp::Le, extent, height);
        keys::instead(m, g.values, cond)
    });
    let shared = (own.is_none() || few.is_some())
        .then(|| panels1.apply(m, if few.is_some() { g.values } else { anchors.0 }, &g.qk));
    let panels2 = panels2.apply(m, anchors.1, &g.pv);
    // Scratch replaces the score matrix.
    let name = format!("{}.block", m.bufs[g.bufs[0]].name);
    let room = vec![pieces, Dim::constant(height), row_length(keys)];
    let scratch = m.temp(name, ElemType::F32, room.clone());
    // The left operand of the second contraction, and a view of it whose elements are single steps.
    let (weights, steps) = match g.pv.product {
        ProductKind::Dot { group, .. } => {
            let name = format!("{}.weights", m.bufs[g.bufs[0]].name);
            let weights = m.temp(name, ElemType::BF16, room);
            (weights, group.view(m, (weights, 2)))
        }
        _ => (scratch, scratch),
    };
    let local = m.syms.loop_var("r", zero, Dim::constant(height));
    let first = m.syms.loop_var("b", zero, extent);
    let here = |last: Dim| vec![Dim::sym(piece), Dim::sym(local), last];
    let at_row = |s: Sym| (s == row).then(|| Dim::sym(first) + local);
    let (bufs, dims) = (g.bufs.clone(), g.dims.clone());
    let redirect = |m: &Module, s: Stmt| {
        let last = |buf: Buf, at: &[Dim]| {
            position(m, buf, at, &dims).and_then(|p| p.last().copied()).unwrap_or_default()
        };
        let own = |buf: Buf| if m.bufs[buf].ty == ElemType::BF16 { weights } else { scratch };
        s.map_accesses(&|buf, at| bufs.contains(&m.storage(buf)).then(|| (own(buf), here(last(buf, at)))))
    };
    g.qk.epilogue = std::mem::take(&mut g.qk.epilogue).into_iter().map(|s| redirect(m, s)).collect();
    g.pv.a = (steps, here(g.pv.reduction.first().map(|r| Dim::sym(r.0)).unwrap_or_default()));
    put_parts(&mut g.qk, &at_row);
    put_parts(&mut g.pv, &at_row);
    let name = format!("{}.rows", m.bufs[g.bufs[0]].name);
    let found = Found::new(m, name, pieces, piece.into(), local.into(), height);
    let mut rows = vec![];
    for (i, k) in g.rows.iter().enumerate() {
        let body = match m.form(*k) {
            Form::RowReduction(rows) => rows.body(),
            // The innermost loop of a map runs along the row.
            form => form.map().and_then(Rows::of_map).map_or(vec![], |rows| rows.body()),
        };
        let sub = |d: Dim| d.subst(&mut |s| rename(i + 1, s)).subst(&mut |s| at_row(s));
        let body = body.into_iter().map(|s| redirect(m, s).map_dims(&mut |d| sub(d))).collect();
        if i > 0 {
            rows.push(body);
            continue;
        }
        let body = if m.math == Math::Strict { body } else { softmax::without_subnormals(m, body) };
        rows = softmax::phases(m, body, &found);
        if g.rows[1..].iter().all(|k| converts(m, *k))
            && let Some(scale) = softmax::scale(m, &mut rows, scratch, keys, &found)
        {
            let acc = g.pv.acc;
            let scaled = |e: Expr| match e {
                Expr::Acc { reg, .. } if reg == acc => Expr::bin(BinOp::Mul, e, scale.clone()),
                e => e,
            };
            g.pv.epilogue = std::mem::take(&mut g.pv.epilogue)
                .into_iter()
                .map(|s| s.rewrite_exprs(&mut |e| scaled(e)))
                .collect();
        }
    }
    let of = Some((local, Dim::constant(height)));
    let tile = |columns, panels| {
        Tile::new(Wanted { batch: batch.clone(), ..Wanted::plain(of, most, columns) }, panels, facts)
    };
    let own = own.map(|(keys, panels)| Scores { tile: tile(keys.columns(), panels), keys: Some(keys) });
    let shared = shared.map(|panels| Scores { tile: tile(of_keys, panels), keys: None });
    let pv = tile(of_values, panels2);
    let work = work(m, &g);
    let visible = Visible::of(m, &g.qk, (g.columns.0, keys), (local, first));
    let block = Block { qk: g.qk, rows, pv: (g.pv, pv), local, first, visible };
    let merged = Merged { block, batch, extent, height, piece };
    let kernels = [few.unwrap_or(g.values), g.values];
    for (k, scores) in kernels.into_iter().zip([own, shared]).filter_map(|(k, s)| Some((k, s?))) {
        let (body, work) = copies.emit(m, k, merged.key(m, &scores), |m| Emitted {
            body: merged.emit(m, &scores, facts),
            facts: work,
            alone: true,
        });
        m.kernels[k].body = body.into();
        m.kernels[k].work = work;
        m.kernels[k].schedules = vec![merged.schedule(m, &scores, pieces)];
    }
    m.driver.retain(|s| !matches!(s, Stmt::Call(k) if *k == g.scores || g.rows.contains(k)));
    true
}

impl Merged {
    /// The key of everything that emitting the kernel requires.
    fn key(&self, m: &Module, scores: &Scores) -> (Key, Vec<Buf>) {
        let Block { qk, rows, pv, local, first, visible: _ } = &self.block;
        let mut w = Writer::new(m);
        w.loops(&self.batch);
        w.dim(self.extent);
        w.put([self.height as u64, rows.len() as u64]);
        w.sym(self.piece);
        for (p, t) in [(qk, &scores.tile), (&pv.0, &pv.1)] {
            w.contraction(p);
            t.key(&mut w);
        }
        rows.iter().for_each(|body| w.block(body));
        w.sym(*local);
        w.sym(*first);
        w.finish()
    }
    /// Its schedule, in `pieces` tasks.
    fn schedule(&self, m: &Module, scores: &Scores, pieces: Dim) -> Schedule {
        let Block { qk, pv, visible, .. } = &self.block;
        let skips = visible.iter().map(|_| "panels of keys behind the last visible one").collect();
        Schedule {
            form: "attention",
            blocks: vec![("rows", Dim::constant(self.height))],
            skips,
            staging: vec!["scores of a block"],
            tasks: pieces,
            inner: vec![tiles::describe_tile(m, qk, &scores.tile), tiles::describe_tile(m, &pv.0, &pv.1)],
            ..Schedule::new("rows of scores between tiles")
        }
    }
    /// The kernel: a loop over pieces.
    fn emit(&self, m: &mut Module, scores: &Scores, facts: Facts) -> Vec<Stmt> {
        let Merged { block: b, batch, extent, height, piece } = self;
        let (zero, extent, height, piece) = (Dim::constant(0), *extent, *height, *piece);
        let blocks = extent.ceil_div(height);
        let total = total(batch, blocks);
        let (pieces, each) = pieces(total);
        // Blocks of equal height, except possibly the last.
        let number = m.syms.loop_var("b", zero, blocks);
        let from = Dim::sym(number) * height;
        let block = |m: &mut Module, from, count| emit(m, (b, scores), (from, count), facts);
        let body = match extent.as_const() {
            Some(e) if e % height == 0 => block(m, from, Dim::constant(height)),
            Some(e) => {
                let then = block(m, from, Dim::constant(height));
                let els = block(m, Dim::constant(e / height * height), Dim::constant(e % height));
                vec![Stmt::If { cond: Expr::cmp_index(BinOp::Lt, number, e / height), then, els }]
            }
            None => block(m, from, (extent - from).min(Dim::constant(height))),
        };
        // One loop over batch and blocks, with blocks innermost so that keys and values stay in the cache.
        let (flat, inside) = match each.as_const() {
            Some(1) => (Dim::sym(piece), None),
            _ => {
                let start = Dim::sym(piece) * each;
                let count =
                    if total.modulo(each).as_const() == Some(0) { each } else { each.min(total - start) };
                let j = m.syms.loop_var("j", zero, count);
                (start + Dim::sym(j), Some((j, count)))
            }
        };
        let mut of: Vec<(Sym, Dim)> = vec![];
        let mut rest = flat;
        let nest: Vec<(Sym, Dim)> = batch.iter().copied().chain([(number, blocks)]).collect();
        for (i, (var, hi)) in nest.iter().enumerate().rev() {
            of.push((*var, if i == 0 { rest } else { rest.modulo(*hi) }));
            rest = rest.floor_div(*hi);
        }
        let body = substitute(m, body, &|s| of.iter().find(|x| x.0 == s).map(|x| x.1));
        let body = match inside {
            Some((j, count)) => vec![Stmt::seq(j, count, body)],
            None => body,
        };
        wrap(&[(piece, pieces)], body)
    }
}

/// The number of blocks.
fn total(batch: &[(Sym, Dim)], blocks: Dim) -> Dim {
    Dim::product(batch.iter().map(|b| b.1)) * blocks
}

/// Stride between rows of scores, in floats: whole cache lines, but no multiple of 4 KiB.
fn row_length(keys: Dim) -> Dim {
    const LINE: i64 = 16;
    const PAGE: i64 = 1024;
    let whole = keys.ceil_div(LINE) * LINE;
    match whole.as_const() {
        Some(n) if n % PAGE == 0 => Dim::constant(n + LINE),
        _ => whole,
    }
}

/// Rows of a block.
fn height(extent: Dim, keys: Dim) -> i64 {
    let most = keys.as_const().map_or(ROWS, |k| (BYTES / (4 * k.max(1))).clamp(ROWS / 2, ROWS));
    // Equal heights if the extent is known; else a height that divides common lengths.
    extent.as_const().filter(|e| *e > 0).map_or(most / 8 * 8, |e| {
        let blocks = (e + most - 1) / most;
        (e + blocks - 1) / blocks
    })
}

/// Iterations of the `par` loop, and maximum number of blocks of each.
fn pieces(total: Dim) -> (Dim, Dim) {
    let each = match total.as_const() {
        Some(t) if t <= 2 * PIECES => Dim::constant(1),
        // Prefer slightly fewer pieces to a shorter last piece.
        Some(t) => {
            let least = (t + PIECES - 1) / PIECES;
            Dim::constant((least..2 * least).find(|e| t % e == 0).unwrap_or(least))
        }
        None => total.ceil_div(PIECES).max(1),
    };
    (total.ceil_div(each), each)
}

fn work(m: &Module, g: &Group) -> Dim {
    let of = |p: &Contraction| Dim::product(p.loops.iter().chain(&p.reduction).map(|l| l.1)) * 2;
    let softmax = Dim::product(g.dims.iter().copied()) * 8;
    m.syms.simplify((of(&g.qk) + of(&g.pv)).floor_div(8) + softmax)
}

/// A block of `count` rows from `from` on.
fn emit(
    m: &mut Module,
    (b, scores): (&Block, &Scores),
    (from, count): (Dim, Dim),
    facts: Facts,
) -> Vec<Stmt> {
    let out = match &b.visible {
        Some(v) => v.bound(m, (scores, count), |m, limit| part(m, (b, scores), (count, limit), facts)),
        None => part(m, (b, scores), (count, Limit::none(scores)), facts),
    };
    substitute(m, out, &|s| (s == b.first).then_some(from))
}

/// A part of the keys of a block.
fn part(
    m: &mut Module,
    (b, scores): (&Block, &Scores),
    (count, limit): (Dim, Limit),
    facts: Facts,
) -> Vec<Stmt> {
    let (zero, all) = (Dim::constant(0), scores.tile.n_extent);
    let mut out = match &scores.keys {
        Some(keys) => keys.scores(m, &b.qk, &scores.tile, (count, limit.panels)),
        None => tiles::of_rows(m, &b.qk, &scores.tile, (count, limit.panels)),
    };
    for body in &b.rows {
        let r = m.syms.loop_var("r", zero, count);
        let body: Vec<Stmt> = limit.apply(fresh_regs(m, body), all);
        let body = lanes::rows(m, &body, facts.into(), lanes::SUMS);
        let body = substitute(m, body, &|s| (s == b.local).then(|| Dim::sym(r)));
        out.push(Stmt::seq(r, count, body));
    }
    let (pv, tile) = &b.pv;
    let mut pv = pv.clone();
    if limit.keys != all {
        let of_step = group::part(&pv).unwrap_or(1);
        pv.reduction.iter_mut().for_each(|r| r.1 = limit.keys.floor_div(of_step));
    }
    out.extend(tiles::of_rows(m, &pv, tile, (count, tile.n_extent.ceil_div(tile.nr))));
    out
}
