//! Statements of windows: blocks of adjacent results, and the loops over them.

use super::{Cut, PIECE, UNROLLED};
use crate::nest::{BinOp, Expr, LoopKind, Module, Reg, Scalar, Stmt};
use crate::passes::nest::analysis::form::Contraction;
use crate::passes::nest::analysis::shape::{fresh_regs, parallel, substitute};
use crate::passes::nest::schedule::tiles;
use crate::sym::{Dim, Sym};
use crate::tensor::ElemType;

/// Sizes of partial blocks, which short rows use too.
const PARTS: [i64; 2] = [4, 6];

/// Some channels: the first one, lanes per vector, number of vectors.
#[derive(Clone, Copy)]
pub(super) struct Channels {
    base: Dim,
    used: i64,
    vectors: i64,
}

/// Adjacent results that share registers.
#[derive(Clone, Copy)]
struct Patch {
    /// The first one, and their number.
    from: Dim,
    width: i64,
    /// The first channel, and the number of lanes.
    base: Dim,
    used: i64,
}

/// Blocks of adjacent results of a window.
pub(super) struct Block {
    /// The loop over channels.
    pub c: Sym,
    /// Channels.
    pub extent: i64,
    /// The loop along a row.
    pub x: (Sym, Dim),
    /// Adjacent results per block.
    pub width: i64,
    /// Of a vector.
    pub lanes: i64,
    /// Channels of a full vector.
    pub full: i64,
    /// Of a window.
    pub taps: i64,
}

impl Block {
    /// Tasks of some channels of some rows.
    pub fn cut(
        &self,
        m: &mut Module,
        p: &Contraction,
        mut outer: Vec<(Sym, Dim)>,
        y: (Sym, Dim),
        cut: &Cut,
    ) -> Vec<Stmt> {
        let (zero, extent, high, together) = (Dim::constant(0), self.extent, cut.rows, cut.vectors);
        let (blocks, groups) = (
            y.1.ceil_div(high),
            Dim::constant((extent + self.lanes * together - 1) / (self.lanes * together)),
        );
        let (block, v) = (m.syms.loop_var("b", zero, blocks), m.syms.loop_var("c", zero, groups));
        let from = Dim::sym(block) * high;
        let to = if y.1.modulo(high).as_const() == Some(0) { from + high } else { (from + high).min(y.1) };
        outer.extend([(block, blocks), (v, groups)]);
        let whole = extent / self.lanes;
        let part = |m: &mut Module, base: Dim, used: i64| {
            self.rows(m, p, (y.0, from, to), Channels { base, used, vectors: together })
        };
        let body = match (whole, extent % self.lanes) {
            (_, 0) => part(m, Dim::sym(v) * (self.lanes * together), self.lanes),
            (0, rest) => part(m, zero, rest),
            (_, rest) => {
                let (then, els) = (
                    part(m, Dim::sym(v) * self.lanes, self.lanes),
                    part(m, Dim::constant(whole * self.lanes), rest),
                );
                vec![Stmt::If { cond: Expr::cmp_index(BinOp::Lt, v, whole), then, els }]
            }
        };
        parallel(m, &outer, body)
    }
    /// The blocks of a signal in pieces for several threads; `short` computes a signal that is shorter than a
    /// piece. The last piece overlaps the previous one: both store the same values there.
    pub fn pieces(
        &self,
        m: &mut Module,
        p: &Contraction,
        outer: &[(Sym, Dim)],
        short: Vec<Stmt>,
    ) -> Vec<Stmt> {
        let (zero, width) = (Dim::constant(0), self.width);
        let long = PIECE * width;
        let pieces = self.x.1.ceil_div(long);
        let (q, v) = (m.syms.loop_var("p", zero, pieces), m.syms.loop_var("x", zero, Dim::constant(PIECE)));
        let from = (Dim::sym(q) * long).min(self.x.1 - long);
        let inner = self.channels(m, p, from + Dim::sym(v) * width, width);
        let body = vec![Stmt::seq(v, Dim::constant(PIECE), inner)];
        let body = match self.x.1.as_const() {
            Some(_) => body,
            None => {
                vec![Stmt::If { cond: Expr::cmp_index(BinOp::Ge, self.x.1, long), then: body, els: short }]
            }
        };
        let loops: Vec<(Sym, Dim)> = outer.iter().copied().chain([(q, pieces)]).collect();
        parallel(m, &loops, body)
    }
    /// Rows of results (the loop and its range) for some channels.
    fn rows(
        &self,
        m: &mut Module,
        p: &Contraction,
        (y, lo, hi): (Sym, Dim, Dim),
        channels: Channels,
    ) -> Vec<Stmt> {
        let v = m.syms.loop_var("y", lo, hi);
        let body = self.columns(m, p, Some(channels));
        let body = substitute(m, body, &|s| (s == y).then(|| v.into()));
        vec![Stmt::For { kind: LoopKind::Seq, var: v, lo, hi, body }]
    }
    /// A row of results, for some or all channels.
    pub fn columns(&self, m: &mut Module, p: &Contraction, channels: Option<Channels>) -> Vec<Stmt> {
        let (zero, width, extent) = (Dim::constant(0), self.width, self.x.1);
        let piece = |m: &mut Module, from: Dim, width: i64| match channels {
            Some(Channels { base, used, vectors: 1 }) => self.block(m, p, Patch { from, width, base, used }),
            Some(Channels { base, used, vectors }) => {
                let v = m.syms.loop_var("v", zero, Dim::constant(vectors));
                let base = base + Dim::sym(v) * self.lanes;
                let body = self.block(m, p, Patch { from, width, base, used });
                vec![Stmt::seq(v, vectors, body)]
            }
            None => self.channels(m, p, from, width),
        };
        let blocks = extent.floor_div(width);
        let mut out = vec![];
        if blocks.as_const() != Some(0) {
            let v = m.syms.loop_var("x", zero, blocks);
            let body = piece(m, Dim::sym(v) * width, width);
            out.push(Stmt::seq(v, blocks, body));
        }
        let left = m.syms.simplify(extent.modulo(width));
        match left.as_const() {
            Some(0) => {}
            Some(rest) => out.extend(piece(m, blocks * width, rest)),
            None => {
                // The last block overlaps the previous one: both store the same values there. A row shorter
                // than a block is divided into partial blocks; the longest of them (a row of 7) is a block of its
                // own, since two short blocks wait for the latency of their sums and epilogues.
                let last = piece(m, extent - width, width);
                let mut parts = tiles::rests(width - 1, 1);
                parts.push(tiles::Rest::all(width - 1));
                let parts = tiles::in_parts(m, parts, (zero, extent), piece);
                // Few results require no whole block.
                let last = PARTS.iter().rev().filter(|n| **n < width).fold(last, |els, n| {
                    let then = piece(m, extent - *n, *n);
                    vec![Stmt::If { cond: Expr::cmp_index(BinOp::Le, left, *n), then, els }]
                });
                let cond = Expr::cmp_index(BinOp::Ge, extent, width);
                let rest = vec![Stmt::If { cond, then: last, els: parts }];
                let cond = Expr::cmp_index(BinOp::Ne, left, 0);
                out.push(Stmt::If { cond, then: rest, els: vec![] });
            }
        }
        out
    }
    /// Results `from .. from + width`, all channels.
    fn channels(&self, m: &mut Module, p: &Contraction, from: Dim, width: i64) -> Vec<Stmt> {
        let zero = Dim::constant(0);
        let whole = self.extent / self.full;
        let mut out = vec![];
        if whole > 0 {
            let v = m.syms.loop_var("c", zero, Dim::constant(whole));
            let base = Dim::sym(v) * self.full;
            let body = self.block(m, p, Patch { from, width, base, used: self.full });
            out.push(Stmt::seq(v, whole, body));
        }
        if self.extent % self.full != 0 {
            let (base, used) = (Dim::constant(whole * self.full), self.extent % self.full);
            out.extend(self.block(m, p, Patch { from, width, base, used }));
        }
        out
    }
    /// One block.
    fn block(&self, m: &mut Module, p: &Contraction, patch: Patch) -> Vec<Stmt> {
        let Patch { from, width, base, used } = patch;
        let zero = Dim::constant(0);
        let acc = m.reg(ElemType::F32);
        let mut out = vec![Stmt::Acc {
            reg: acc,
            lanes: self.lanes as u32,
            shape: vec![width as u32],
            init: Expr::Const(Scalar::f32(0.0)),
        }];
        let depth: Vec<(Sym, Sym, Dim)> =
            p.reduction.iter().map(|d| (d.0, m.syms.loop_var("k", zero, d.1), d.1)).collect();
        let (r, l) = (
            m.syms.loop_var("r", zero, Dim::constant(width)),
            m.syms.loop_var("l", zero, Dim::constant(used)),
        );
        let place = |at: &[Dim]| -> Vec<Dim> {
            at.iter()
                .map(|d| {
                    d.subst(&mut |s| {
                        self.position(s, from + r, base + l)
                            .or_else(|| depth.iter().find(|d| d.0 == s).map(|d| Dim::sym(d.1)))
                    })
                })
                .collect()
        };
        let here = vec![Dim::sym(r)];
        let value = p.product.step(
            Expr::Load { buf: p.a.0, at: place(&p.a.1) },
            Expr::Load { buf: p.b.0, at: place(&p.b.1) },
            Expr::Acc { reg: acc, at: here.clone(), lane: None },
        );
        let mut body = self.row((r, width), (l, used), vec![Stmt::Set { reg: acc, at: here, value }]);
        // Each row of a band in a ring buffer has a pointer of its own.
        let in_line = |s: Sym| m.linear(p.a.0, &p.a.1).linear_in(s).is_some();
        let rolled = self.taps > UNROLLED && depth.first().is_some_and(|d| in_line(d.0));
        for (i, (_, var, hi)) in depth.iter().enumerate().rev() {
            let kind = if i == 0 && rolled { LoopKind::Seq } else { LoopKind::Unroll };
            body = vec![Stmt::For { kind, var: *var, lo: zero, hi: *hi, body }];
        }
        out.extend(body);
        out.extend(self.stores(m, p, acc, patch));
        out
    }
    fn stores(&self, m: &mut Module, p: &Contraction, acc: Reg, patch: Patch) -> Vec<Stmt> {
        let Patch { from, width, base, used } = patch;
        let zero = Dim::constant(0);
        let (r, l) = (
            m.syms.loop_var("r", zero, Dim::constant(width)),
            m.syms.loop_var("l", zero, Dim::constant(used)),
        );
        let tail = fresh_regs(m, &p.epilogue)
            .into_iter()
            .map(|s| {
                s.map_dims(&mut |d| m.syms.simplify(d.subst(&mut |s| self.position(s, from + r, base + l))))
                    .rewrite_exprs(&mut |e| match e {
                        Expr::Acc { reg, .. } if reg == p.acc => {
                            Expr::Acc { reg: acc, at: vec![r.into()], lane: None }
                        }
                        e => e,
                    })
            })
            .collect();
        self.row((r, width), (l, used), tail)
    }
    /// The value of a loop variable of the kernel at result `x` and channel `c`.
    fn position(&self, s: Sym, x: Dim, c: Dim) -> Option<Dim> {
        match s {
            s if s == self.x.0 => Some(x),
            s if s == self.c => Some(c),
            _ => None,
        }
    }
    /// The body for each of `width` results of a block, in `used` lanes.
    fn row(&self, (r, width): (Sym, i64), (l, used): (Sym, i64), body: Vec<Stmt>) -> Vec<Stmt> {
        let lanes = Stmt::vector(self.lanes, l, used, body);
        vec![Stmt::unroll(r, width, vec![lanes])]
    }
}
