//! One register tile: accumulators and the sum, with its prefetches.

use super::finish;
use super::{Panels, Source, Tile, multiplies_halves};
use crate::nest::{BinOp, Buf, Expr, HALVES, LoopKind, Math, Module, Place, Stmt};
use crate::passes::nest::analysis::form::Contraction;
use crate::passes::nest::analysis::machine::L2;
use crate::passes::nest::analysis::strides::stride;
use crate::passes::nest::schedule::clip;
use crate::sym::{Dim, Sym};
use crate::target::Tiles;

/// Columns of a panel that exist.
#[derive(Clone, Copy)]
pub(super) enum Cols {
    Full,
    /// This many.
    Some(i64),
    /// Only run time knows.
    Guarded,
}

impl Cols {
    /// How many of `nv` vectors surely exist as a whole.
    pub fn whole(self, nv: i64, lanes: i64) -> i64 {
        match self {
            Cols::Some(r) => r / lanes,
            Cols::Full => nv,
            Cols::Guarded => 0,
        }
    }
}

/// What tiles prefetch while they use a panel: the next one, a part in each of the passes over the
/// panel.
#[derive(Clone, Copy)]
pub(super) struct PanelPrefetch {
    /// Number of the pass.
    pass: Dim,
    /// Lines of each.
    lines: Dim,
}

/// Bytes of weights from which on they are taken not to be in the second-level cache when they are needed.
const PREFETCH_BYTES: i64 = L2 / 4;

impl PanelPrefetch {
    /// For panels of constants that `tiles` passes read one after the other, or for what the contraction
    /// says.
    pub(super) fn new<P: Source>(
        m: &Module,
        p: &Contraction,
        t: &Tile<P>,
        passes: Dim,
    ) -> Option<PanelPrefetch> {
        if let (Some((buf, at)), Some((row, rows))) = (&p.prefetch, t.m_row) {
            let lines = (at.last()?.linear_in(row)?.0 * rows)
                .ceil_div(finish::LINE / i64::from(m.bufs[*buf].ty.bytes()?));
            return PanelPrefetch::shared(m, p, lines, passes);
        }
        let (bytes, line) = t.panels.constant(m)?;
        let depth = Dim::product(p.reduction.iter().map(|d| d.1)).as_const()?;
        if (bytes as i64) < PREFETCH_BYTES || t.n_extent.as_const()? <= t.nr || passes.as_const() == Some(1) {
            return None;
        }
        PanelPrefetch::shared(m, p, Dim::constant(depth * t.nr / line), passes)
    }
    /// So many lines, a part in each of the passes.
    fn shared(m: &Module, p: &Contraction, lines: Dim, passes: Dim) -> Option<PanelPrefetch> {
        iterations(p, p.product.steps()).filter(|n| *n > 0)?;
        Some(PanelPrefetch { pass: Dim::constant(0), lines: m.syms.simplify(lines.ceil_div(passes.max(1))) })
    }
    pub(super) fn at(self, pass: Dim) -> PanelPrefetch {
        PanelPrefetch { pass: self.pass + pass, ..self }
    }
}

/// Iterations of a sum of so many steps each.
fn iterations(p: &Contraction, each: i64) -> Option<i64> {
    let (last, outer) = p.reduction.split_last()?;
    outer.iter().try_fold(last.1.as_const()? / each, |n, d| Some(n * d.1.as_const()?))
}

/// Sets a body apart as a tile of its own.
pub(super) fn tile(body: Vec<Stmt>) -> Vec<Stmt> {
    vec![Stmt::Tile { body }]
}

/// True if a sum adds up one term after the other.
fn in_order(m: &Module, p: &Contraction) -> bool {
    m.math == Math::Strict && p.product.ty().is_float()
}

/// Accumulators of each element of a tile of so many rows and vectors. Few accumulators would wait for each
/// other: steps get accumulators of their own, where registers hold these too.
pub(super) fn split<P>(m: &Module, p: &Contraction, t: &Tile<P>, mr: i64, nv: i64) -> i64 {
    let long = p.reduction.last().map_or(Some(1), |d| d.1.as_const()).is_none_or(|c| c >= 8);
    let (mut split, most) = (1, t.steps(p, mr, nv));
    while !in_order(m, p) && split < most && mr * nv * split < 8 && 2 * mr * nv * split < t.registers && long
    {
        split *= 2;
    }
    split
}

/// One register tile: rows `row .. row + mr`, columns of one part of a panel.
#[allow(clippy::too_many_arguments)]
pub(super) fn block(
    m: &mut Module,
    p: &Contraction,
    t: &Tile,
    row: Dim,
    mr: i64,
    panel: Dim,
    sub: Dim,
    cols: Cols,
    prefetch: Option<PanelPrefetch>,
) -> Vec<Stmt> {
    let zero = Dim::constant(0);
    let lanes = t.lanes;
    let nv = match cols {
        Cols::Some(r) => (r + lanes - 1) / lanes,
        _ => t.nv,
    };
    // Behind the last column in place there may be nothing.
    let (whole, rest) = match (&t.panels, cols) {
        (Panels::InPlace, Cols::Some(r)) => (r / lanes, r % lanes),
        _ => (nv, 0),
    };
    // The reduction loops, with variables of their own; the innermost in steps of several.
    let loops = clip::loops(m, &p.reduction, &t.clips, (row, mr));
    let depth: Vec<(Sym, Dim, Sym)> =
        p.reduction.iter().zip(&loops).map(|((s, extent), (var, _))| (*var, *extent, *s)).collect();
    let inner = depth.last().map_or(Dim::constant(1), |d| d.1);
    let in_order = in_order(m, p);
    let split = split(m, p, t, mr, nv);
    let ty = p.product.ty();
    let acc = m.reg(ty);
    let mut out = vec![Stmt::Acc {
        reg: acc,
        lanes: lanes as u32,
        shape: vec![split as u32, mr as u32, nv as u32],
        init: Expr::num(ty, 0.0),
    }];
    let first = panel * t.nr + sub * t.width();
    if p.start.is_some() {
        out.extend(finish::begins(m, p, t, acc, row, mr, first, nv, cols));
    }
    let vars = |m: &mut Module| {
        (
            m.syms.loop_var("r", zero, Dim::constant(mr)),
            m.syms.loop_var("v", zero, Dim::constant(nv)),
            m.syms.loop_var("l", zero, Dim::constant(lanes)),
        )
    };
    let step = |m: &mut Module, at_k: &dyn Fn(Sym) -> Option<Dim>, part: Dim| -> Vec<Stmt> {
        let (i, v, l) = vars(m);
        let lane = sub * t.width() + Dim::sym(v) * lanes + l;
        let k_of = |s: Sym| depth.iter().find(|d| d.2 == s).map(|d| at_k(d.0).unwrap_or(Dim::sym(d.0)));
        let at_row = |s: Sym, r: Dim| t.m_row.filter(|x| x.0 == s).map(|_| r);
        let a: Vec<Dim> =
            p.a.1.iter().map(|d| d.subst(&mut |s| k_of(s).or_else(|| at_row(s, row + i)))).collect();
        let in_place = |at: &[Dim]| -> Vec<Dim> {
            at.iter()
                .map(|d| d.subst(&mut |s| k_of(s).or_else(|| (s == t.n).then(|| panel * t.nr + lane))))
                .collect()
        };
        let (buf, b) = match &t.panels {
            Panels::Packed(packed) => {
                let own = t.batch.iter().filter(|x| packed.own.contains(&x.0)).map(|x| Dim::sym(x.0));
                let mut b: Vec<Dim> = packed.outer.iter().copied().chain(own).collect();
                b.push(panel);
                b.extend(depth.iter().map(|d| at_k(d.0).unwrap_or(Dim::sym(d.0))));
                b.push(lane);
                (packed.buf, b)
            }
            Panels::InPlace => (p.b.0, in_place(&p.b.1)),
            Panels::Private(buf, part) => {
                let depth = depth.iter().map(|d| at_k(d.0).unwrap_or(Dim::sym(d.0)));
                (*buf, std::iter::once(Dim::sym(*part)).chain(depth).chain([lane]).collect())
            }
        };
        let at = vec![part, i.into(), v.into()];
        // Columns in place end where only run time knows: lanes behind the last one add nothing.
        let guard = match (&t.panels, cols) {
            (Panels::InPlace, Cols::Guarded) => {
                Some(Expr::cmp_index(BinOp::Lt, panel * t.nr + lane, t.n_extent))
            }
            _ => None,
        };
        let factor = |at: Vec<Dim>| match &guard {
            None => Expr::Load { buf, at },
            Some(exists) => Expr::select(exists.clone(), Expr::Load { buf, at }, Expr::num(ty, 0.0)),
        };
        // The sum of two elements stands in every row; code has it once.
        let b = match &p.with {
            Some((op, second)) => Expr::bin(*op, factor(b), factor(in_place(second))),
            None => factor(b),
        };
        let value = p.product.step(
            Expr::Load { buf: p.a.0, at: a },
            b,
            Expr::Acc { reg: acc, at: at.clone(), lane: None },
        );
        let set = Stmt::Set { reg: acc, at, value };
        let vectors = |l: Sym, set: Stmt, n: i64| Stmt::vector(lanes, l, Dim::constant(n), vec![set]);
        if whole == nv {
            return unroll(i, mr, unroll(v, nv, vec![vectors(l, set, lanes)]));
        }
        let e = m.syms.loop_var("l", zero, Dim::constant(rest));
        let put = |s: Sym| if s == v { Some(Dim::constant(whole)) } else { (s == l).then(|| Dim::sym(e)) };
        let mut of_row = vec![vectors(e, set.clone().subst(&put), rest)];
        if whole > 0 {
            m.syms.set_loop_range(v, zero, Dim::constant(whole));
            of_row.extend(unroll(v, whole, vec![vectors(l, set, lanes)]));
        }
        unroll(i, mr, of_row)
    };
    let reads = finish::reads(m, p, t, row, first, nv);
    let steps = Dim::product(depth.iter().map(|d| d.1));
    // Twice the code, where it is to be small.
    let short = inner.as_const().is_none_or(|k| k < 4 * EPILOGUE_PREFETCH_RATIO * mr);
    // Sums of f16 are loops of their own, which nothing else cuts short.
    let halves = multiplies_halves(m, p, t.caps);
    let early = depth.len() > 1 || short || halves || t.caps.tiles == Tiles::None;
    let long =
        if finish::reads_from_afar(m, p, t) { FAR_EPILOGUE_PREFETCH_STEPS } else { EPILOGUE_PREFETCH_STEPS };
    if early && steps.as_const().is_none_or(|k| k >= long) {
        out.extend(reads.iter().flat_map(|(r, ask)| unroll(*r, mr, vec![ask.clone()])));
    }
    let (each, most) = (t.steps(p, mr, nv), p.product.steps());
    let mut inner = match depth.last() {
        None => step(m, &|_| None, zero),
        Some((var, hi, _)) => match hi.as_const() {
            Some(c) if c <= most => unroll(*var, c, step(m, &|_| None, zero)),
            _ => {
                let whole = hi.floor_div(each);
                // The last steps prefetch what the epilogue reads, a row each few: what is prefetched at the
                // beginning stands in the way of the sum's own lines.
                let late = if early || reads.is_empty() { 0 } else { mr };
                let first = whole - late * (most / each);
                let steps = |m: &mut Module, from: Dim, count: i64| {
                    let u = m.syms.loop_var("u", zero, Dim::constant(count));
                    let from = if t.backwards && !in_order { whole * each - count - from } else { from };
                    let at = from + u;
                    let part = Dim::sym(u).modulo(split);
                    unroll(u, count, step(m, &|s| (s == *var).then_some(at), part))
                };
                let asks = |m: &Module, q: Dim| {
                    let lines =
                        prefetch.map_or(vec![], |a| prefetch_lines(m, p, t, each, &depth, panel, q, a));
                    lines.into_iter().chain(next_rows(m, p, t, each, row, mr, q))
                };
                let turn = |m: &mut Module, q: Dim| -> Vec<Stmt> {
                    let mut body: Vec<Stmt> = asks(m, q).collect();
                    body.extend(steps(m, q * each, each));
                    body
                };
                let mut s = match first.as_const() {
                    Some(n) if halves && n * each > HALVES => in_parts(m, n, HALVES / each, &turn),
                    _ => {
                        let q = m.syms.loop_var("k", zero, first);
                        let body = turn(m, q.into());
                        vec![Stmt::For { kind: LoopKind::Seq, var: q, lo: zero, hi: first, body }]
                    }
                };
                if late > 0 {
                    let r = m.syms.loop_var("k", zero, Dim::constant(late));
                    let q = first + Dim::sym(r) * (most / each);
                    let ask =
                        |(row, ask): &(Sym, Stmt)| ask.clone().subst(&|s| (s == *row).then_some(r.into()));
                    let mut body: Vec<Stmt> = reads.iter().map(ask).collect();
                    body.extend((0..most / each).flat_map(|i| asks(m, q + i)));
                    if each == most {
                        body.extend(steps(m, q * each, each));
                    } else {
                        let i = m.syms.loop_var("k", zero, Dim::constant(most));
                        let one = steps(m, q * each + i, 1);
                        body.push(Stmt::For {
                            kind: LoopKind::Seq,
                            var: i,
                            lo: zero,
                            hi: most.into(),
                            body: one,
                        });
                    }
                    let hi = Dim::constant(late);
                    s.push(Stmt::For { kind: LoopKind::Seq, var: r, lo: zero, hi, body });
                }
                match hi.modulo(each).as_const() {
                    Some(0) => {}
                    Some(r) => {
                        let u = m.syms.loop_var("u", zero, Dim::constant(r));
                        let at = whole * each + Dim::sym(u);
                        s.extend(unroll(u, r, step(m, &|s| (s == *var).then_some(at), zero)));
                    }
                    None => {
                        m.syms.set_loop_range(*var, whole * each, *hi);
                        s.push(Stmt::For {
                            kind: LoopKind::Seq,
                            var: *var,
                            lo: whole * each,
                            hi: *hi,
                            body: step(m, &|_| None, zero),
                        });
                    }
                }
                s
            }
        },
    };
    for (var, (lo, hi)) in loops.iter().rev().skip(1) {
        inner = vec![Stmt::For { kind: LoopKind::Seq, var: *var, lo: *lo, hi: *hi, body: inner }];
    }
    out.extend(inner);
    if split > 1 {
        let (i, v, l) = vars(m);
        let sum = (1..split).fold(
            Expr::Acc { reg: acc, at: vec![zero, i.into(), v.into()], lane: None },
            |sum, s| {
                Expr::bin(
                    BinOp::Add,
                    sum,
                    Expr::Acc { reg: acc, at: vec![Dim::constant(s), i.into(), v.into()], lane: None },
                )
            },
        );
        let set = Stmt::Set { reg: acc, at: vec![zero, i.into(), v.into()], value: sum };
        out.extend(unroll(
            i,
            mr,
            unroll(
                v,
                nv,
                vec![Stmt::For {
                    kind: LoopKind::Vec(lanes as u32),
                    var: l,
                    lo: zero,
                    hi: Dim::constant(lanes),
                    body: vec![set],
                }],
            ),
        ));
    }
    out.extend(finish::stores(m, p, t, acc, row, mr, first, nv, cols));
    out
}

/// A loop of `n` iterations as loops of `each`.
fn in_parts(m: &mut Module, n: i64, each: i64, body: &dyn Fn(&mut Module, Dim) -> Vec<Stmt>) -> Vec<Stmt> {
    let zero = Dim::constant(0);
    let (parts, left) = (n / each, n % each);
    let part = |m: &mut Module, from: Dim, count: i64| {
        let q = m.syms.loop_var("k", zero, Dim::constant(count));
        let body = body(m, from + q);
        Stmt::For { kind: LoopKind::Seq, var: q, lo: zero, hi: Dim::constant(count), body }
    };
    let outer = m.syms.loop_var("k", zero, Dim::constant(parts));
    let body = vec![part(m, Dim::sym(outer) * each, each)];
    let mut s = vec![Stmt::For { kind: LoopKind::Seq, var: outer, lo: zero, hi: Dim::constant(parts), body }];
    if left > 0 {
        s.push(part(m, Dim::constant(parts * each), left));
    }
    s
}

/// Steps of a sum from which on it prefetches the next tile's rows, and elements of a gap between rows at
/// most.
const ROW_PREFETCH_STEPS: i64 = 256;
const GAP: i64 = 32;

/// The stride of the rows of A, where tiles prefetch the rows that the next one reads: where they lie one
/// behind the other. Of several threads another one may have written them, and its cache is far away. Not
/// where only run time counts rows: of a few of them there is no next tile, and what lies behind would take
/// the way to memory from the weights. Nor beside other prefetches.
fn next_rows_stride<P>(m: &Module, p: &Contraction, t: &Tile<P>) -> Option<(Sym, i64)> {
    let ([depth], (r, count)) = (p.reduction.as_slice(), t.m_row?) else { return None };
    let along = |s: Sym| stride(m, p.a.0, &p.a.1, s);
    let (steps, step) = (depth.1.as_const()?, along(r)?);
    let constant = matches!(m.bufs[m.storage(p.a.0)].place, Place::Const(_));
    let here = !constant && p.prefetch.is_none() && count.as_const().is_some() && along(depth.0) == Some(1);
    let long = steps >= ROW_PREFETCH_STEPS && (steps..=steps + GAP).contains(&step);
    (here && long && m.bufs[p.a.0].ty.bytes().is_some()).then_some((r, step))
}

/// See [`next_rows_stride`].
pub(super) fn prefetches_rows<P>(m: &Module, p: &Contraction, t: &Tile<P>) -> bool {
    next_rows_stride(m, p, t).is_some()
}

/// Prefetches the rows of A that the next tile reads, a part in each iteration `q` of so many steps.
fn next_rows(m: &Module, p: &Contraction, t: &Tile, steps: i64, row: Dim, mr: i64, q: Dim) -> Vec<Stmt> {
    let (Some((r, step)), [depth], Some(whole)) =
        (next_rows_stride(m, p, t), p.reduction.as_slice(), iterations(p, steps))
    else {
        return vec![];
    };
    let line = finish::LINE / m.bufs[p.a.0].ty.bytes().map_or(4, i64::from);
    let each = (mr * step + line * whole - 1) / (line * whole);
    (0..each)
        .map(|i| {
            let put = |s: Sym| {
                if s == r { Some(row + mr) } else { (s == depth.0).then(|| (q * each + i) * line) }
            };
            Stmt::Prefetch { buf: p.a.0, at: p.a.1.iter().map(|d| d.subst(&mut |s| put(s))).collect() }
        })
        .collect()
}

/// Steps of a sum during which what its epilogue reads arrives.
const EPILOGUE_PREFETCH_STEPS: i64 = 128;
/// Steps of a sum that are worth it where that comes from beyond the second-level cache.
const FAR_EPILOGUE_PREFETCH_STEPS: i64 = 48;
/// How many times as many fours of steps a sum has as rows, at least, to ask row by row at its end.
const EPILOGUE_PREFETCH_RATIO: i64 = 4;

/// Most lines that a step of a sum prefetches.
const MOST_LINES: i64 = 1;

/// Prefetches a part of the next panel, or of what the contraction says, in iteration `q` of a pass, of so
/// many steps each.
#[allow(clippy::too_many_arguments)]
fn prefetch_lines(
    m: &Module,
    p: &Contraction,
    t: &Tile,
    steps: i64,
    depth: &[(Sym, Dim, Sym)],
    panel: Dim,
    q: Dim,
    a: PanelPrefetch,
) -> Vec<Stmt> {
    let (Some((last, outer)), Some(n)) = (depth.split_last(), iterations(p, steps)) else { return vec![] };
    let step = m.syms.simplify(a.lines.ceil_div(n.max(1)).min(Dim::constant(MOST_LINES * steps)));
    let each = step.as_const().unwrap_or(MOST_LINES * steps);
    let (buf, line, from): (Buf, i64, Vec<Dim>) = match (&p.prefetch, &t.panels) {
        (Some((buf, at)), _) => {
            let first = |d: &Dim| d.subst(&mut |s| t.m_row.filter(|r| r.0 == s).map(|_| Dim::constant(0)));
            (
                *buf,
                finish::LINE / m.bufs[*buf].ty.bytes().map_or(4, i64::from),
                at.iter().map(first).collect(),
            )
        }
        (None, Panels::Packed(packed)) => {
            let own = t.batch.iter().filter(|x| packed.own.contains(&x.0)).map(|x| Dim::sym(x.0));
            let at = packed
                .outer
                .iter()
                .copied()
                .chain(own)
                .chain([panel + 1])
                .chain(depth.iter().map(|_| Dim::constant(0)));
            (packed.buf, packed.line, at.chain([Dim::constant(0)]).collect())
        }
        (None, Panels::InPlace | Panels::Private(..)) => return vec![],
    };
    let turn = outer.iter().fold(Dim::constant(0), |n, d| n * d.1 + d.0) * last.1.floor_div(steps) + q;
    let first = a.pass * a.lines + turn * step;
    (0..each)
        .map(|i| {
            let mut at = from.clone();
            if let Some(d) = at.last_mut() {
                *d = *d + (first + i) * line;
            }
            Stmt::Prefetch { buf, at }
        })
        .collect()
}

pub(crate) fn unroll(var: Sym, n: i64, body: Vec<Stmt>) -> Vec<Stmt> {
    vec![Stmt::For { kind: LoopKind::Unroll, var, lo: Dim::constant(0), hi: Dim::constant(n), body }]
}
