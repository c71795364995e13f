//! Packing at run time: an operand of a contraction that is no constant, as panels that tiles read in order.
//!
//! A map that only made the operand is computed on the way. Where the operand runs along the reduction in
//! memory, blocks as wide as a vector are transposed in registers.

use crate::nest::schedule::{Schedule, tasks};
use crate::nest::{BinOp, Body, Buf, Expr, Kernel, KernelData, LoopKind, Module, Stmt, visit};
use crate::passes::nest::analysis::cost::MOVE;
use crate::passes::nest::analysis::form::Contraction;
use crate::passes::nest::analysis::shape::{Map, Uses, instance, is_temp, through_view, wrap};
use crate::passes::nest::analysis::strides::stride;
use crate::passes::nest::schedule::lanes::{self, Vectors};
use crate::passes::nest::schedule::rows;
use crate::sym::{Dim, Sym};
use crate::target::Facts;

/// The panels: `[own ..][panel][reduction ..][nr]`.
pub(crate) struct Shape {
    /// Name of the buffer.
    pub name: String,
    /// Its dims.
    pub dims: Vec<Dim>,
    /// Batch loops that the operand depends on.
    pub own: Vec<(Sym, Dim)>,
    /// The column.
    pub n: Sym,
    /// How many there are.
    pub n_extent: Dim,
    /// Columns of a panel.
    pub nr: i64,
}

/// Loops of a packing kernel.
struct Loops {
    /// Batch and panel.
    outer: Vec<(Sym, Dim)>,
    reduction: Vec<(Sym, Dim)>,
    /// What stands for the contraction's variables, but for the column.
    of: Vec<(Sym, Dim)>,
}

/// True if panels hold what elements are computed as: where a vector does little work, floats of 16 bits are
/// converted once and not for each tile of rows.
pub(crate) fn converts(m: &Module, b: Buf, facts: Facts) -> bool {
    let ty = m.bufs[b].ty;
    facts.caps.by_lane && ty.is_float() && ty.bits() == 16
}

/// Panels that a kernel makes.
pub(crate) struct Panels {
    shape: Shape,
    /// The map that computes the operand, which the kernel takes the place of.
    source: Option<(Kernel, Map)>,
    facts: Facts,
}

impl std::ops::Deref for Panels {
    type Target = Shape;
    fn deref(&self) -> &Shape {
        &self.shape
    }
}

impl Panels {
    /// Panels of operand B of contraction `k`.
    pub fn new(m: &Module, uses: &Uses, k: Kernel, p: &Contraction, shape: Shape, facts: Facts) -> Panels {
        // What a view shows as another type is not what the map computes.
        let source = if p.whole && !m.is_recast(p.b.0) { producer(m, uses, k, p.b.0) } else { None };
        Panels { shape, source, facts }
    }
    /// Adds the kernel, right before contraction `k`, which the driver calls.
    pub fn apply(self, m: &mut Module, k: Kernel, p: &Contraction) -> Buf {
        let Panels { shape: s, source, facts } = self;
        let zero = Dim::constant(0);
        let ty = m.bufs[p.b.0].ty;
        let ty = if converts(m, p.b.0, facts) { ty.compute() } else { ty };
        let packed = m.temp(s.name.clone(), ty, s.dims.clone());
        let mut l = Loops { outer: vec![], reduction: vec![], of: vec![] };
        for (var, hi) in &s.own {
            let v = m.syms.loop_var("i", zero, *hi);
            l.outer.push((v, *hi));
            l.of.push((*var, v.into()));
        }
        let panels = s.n_extent.ceil_div(s.nr);
        let panel = m.syms.loop_var("p", zero, panels);
        l.outer.push((panel, panels));
        for (var, hi) in &p.reduction {
            let v = m.syms.loop_var("k", zero, *hi);
            l.reduction.push((v, *hi));
            l.of.push((*var, v.into()));
        }
        let work = Dim::product(s.dims.iter().copied()) * (1 + 2 * MOVE);
        let (name, origin) = (format!("{}.pack", m.kernels[k].name), m.kernels[k].origin.clone());
        let id = m.kernels.push(KernelData {
            name,
            origin,
            work,
            scheduled: true,
            schedules: vec![],
            narrow: false,
            body: Body::default(),
        });
        let map = source.as_ref().map(|s| &s.1);
        let body = match transposed(m, p, &s, &l, packed, map, facts) {
            Some(body) => {
                let squares = Schedule::new("panels transposed in registers").vectors(
                    i64::from(facts.lanes),
                    "columns",
                    s.n_extent,
                );
                m.kernels[id].schedules.push(Schedule { tasks: tasks(&body), ..squares });
                body
            }
            None => plain(m, p, &s, &l, packed, map, (id, facts)),
        };
        m.kernels[id].body = body.into();
        if let Some((gone, _)) = source {
            visit::drop_calls(&mut m.driver, &|x| x == gone);
        }
        visit::splice_call(&mut m.driver, k, true, vec![Stmt::Call(id)]);
        packed
    }
}

/// The kernel for any operand: a map over the panels.
fn plain(
    m: &mut Module,
    p: &Contraction,
    s: &Shape,
    l: &Loops,
    packed: Buf,
    source: Option<&Map>,
    (id, facts): (Kernel, Facts),
) -> Vec<Stmt> {
    let lane = m.syms.loop_var("l", Dim::constant(0), Dim::constant(s.nr));
    let col = Dim::sym(l.outer.last().map_or(lane, |p| p.0)) * s.nr + lane;
    let v = element(m, p, s, l, source, col);
    let inside = s.n_extent.modulo(s.nr).as_const() == Some(0);
    let nothing = Expr::num(m.bufs[p.b.0].ty.compute(), 0.0);
    let value =
        if inside { v } else { Expr::select(Expr::cmp_index(BinOp::Lt, col, s.n_extent), v, nothing) };
    let at: Vec<Dim> =
        l.outer.iter().chain(&l.reduction).map(|x| Dim::sym(x.0)).chain([Dim::sym(lane)]).collect();
    let loops: Vec<(Sym, Dim)> =
        l.outer.iter().chain(&l.reduction).copied().chain([(lane, Dim::constant(s.nr))]).collect();
    let body = wrap(&loops, vec![Stmt::Store { buf: packed, at, value }]);
    lanes::schedule(m, id, &body, Vectors { lanes: i64::from(facts.caps.bits / 32), caps: facts.caps })
}

/// The map that computes an operand for this contraction alone.
fn producer(m: &Module, uses: &Uses, k: Kernel, b: Buf) -> Option<(Kernel, Map)> {
    let t = m.storage(b);
    if !is_temp(m, t) {
        return None;
    }
    let ([w], [r]) = (uses.writers(t), uses.readers(t)) else { return None };
    let map = m.form(*w).map()?.clone();
    // The other operand or the epilogue may read the same buffer (X times X).
    let mut loads = 0;
    visit::walk_exprs(&m.kernels[k].body, &mut |e| {
        loads += usize::from(matches!(e, Expr::Load { buf, .. } if m.storage(*buf) == t));
    });
    if loads != 1 {
        return None;
    }
    // Both at the driver's top level: inside its loops, what the map reads may change before the contraction
    // runs.
    let top = |k: Kernel| m.driver.iter().any(|s| matches!(s, Stmt::Call(x) if *x == k));
    // What is rounded for storage stays rounded.
    let exact = m.bufs[t].ty == m.bufs[t].ty.compute();
    (*r == k
        && *w != k
        && map.buf == t
        && exact
        && map.cover(m).is_some()
        && (uses.is_straight() || top(*w) && top(k)))
    .then_some((*w, map))
}

/// An element of the operand.
fn element(m: &mut Module, p: &Contraction, s: &Shape, l: &Loops, source: Option<&Map>, col: Dim) -> Expr {
    let put = |v: Sym| if v == s.n { Some(col) } else { l.of.iter().find(|x| x.0 == v).map(|x| x.1) };
    let at: Vec<Dim> = p.b.1.iter().map(|d| d.subst(&mut |v| put(v))).collect();
    let cover = source.and_then(|map| map.cover(m));
    let (Some(map), Some(cover)) = (source, cover) else { return Expr::Load { buf: p.b.0, at } };
    let at = through_view(m, p.b.0, &at, map.buf);
    instance(m, &map.value, &|v| cover.iter().zip(&at).find(|(c, _)| **c == Some(v)).map(|(_, d)| *d))
}

/// The kernel for an operand that runs along the reduction in memory.
fn transposed(
    m: &mut Module,
    p: &Contraction,
    s: &Shape,
    l: &Loops,
    packed: Buf,
    source: Option<&Map>,
    facts: Facts,
) -> Option<Vec<Stmt>> {
    let ([(k, depth)], zero, width) = (l.reduction.as_slice(), Dim::constant(0), i64::from(facts.lanes))
    else {
        return None;
    };
    if !facts.caps.shuffles || s.nr % width != 0 || depth.modulo(width).as_const() != Some(0) {
        return None;
    }
    // One load runs along the reduction; others, if any, are one element for all or run along the columns.
    let probe = m.syms.loop_var("l", zero, s.n_extent);
    let (mut across, mut other) = (0, false);
    element(m, p, s, l, source, probe.into()).walk(&mut |e| {
        if let Expr::Load { buf, at } = e {
            match (stride(m, *buf, at, probe), stride(m, *buf, at, *k)) {
                (Some(0 | 1), Some(_)) => {}
                (Some(_), Some(1)) => across += 1,
                _ => other = true,
            }
        }
    });
    if across != 1 || other {
        return None;
    }
    let squares = Dim::constant(s.nr / width);
    let panel = Dim::sym(l.outer.last()?.0);
    let square = m.syms.loop_var("c", zero, squares);
    let first = panel * s.nr + Dim::sym(square) * width;
    let outer: Vec<Dim> = l.outer.iter().map(|x| Dim::sym(x.0)).collect();
    let store = |m: &mut Module, k: Dim, value: &dyn Fn(&mut Module, Dim) -> Expr| {
        let lane = m.syms.loop_var("l", zero, Dim::constant(width));
        let at: Vec<Dim> = outer.iter().copied().chain([k, Dim::sym(square) * width + lane]).collect();
        let value = value(m, first + lane);
        Stmt::For {
            kind: LoopKind::Vec(width as u32),
            var: lane,
            lo: zero,
            hi: Dim::constant(width),
            body: vec![Stmt::Store { buf: packed, at, value }],
        }
    };
    let along = |k: Dim| {
        let of =
            l.of.iter().map(|(v, d)| (*v, if *d == Dim::sym(l.reduction[0].0) { k } else { *d })).collect();
        Loops { outer: l.outer.clone(), reduction: l.reduction.clone(), of }
    };
    // A whole square.
    let blocks = depth.floor_div(width);
    let (b, u) = (m.syms.loop_var("k", zero, blocks), m.syms.loop_var("u", zero, Dim::constant(width)));
    let at = Dim::sym(b) * width + u;
    let here = along(at);
    let body = store(m, at, &|m, col| element(m, p, s, &here, source, col));
    let body = vec![Stmt::For {
        kind: LoopKind::Unroll,
        var: u,
        lo: zero,
        hi: Dim::constant(width),
        body: vec![body],
    }];
    let whole = vec![Stmt::For { kind: LoopKind::Seq, var: b, lo: zero, hi: blocks, body }];
    let body = if s.n_extent.modulo(s.nr).as_const() == Some(0) {
        whole
    } else {
        // The last columns, and what is beyond them.
        let part = {
            let v = m.syms.loop_var("k", zero, *depth);
            let here = along(v.into());
            let body = store(m, v.into(), &|m, col| {
                Expr::select(
                    Expr::cmp_index(BinOp::Lt, col, s.n_extent),
                    element(m, p, s, &here, source, col),
                    Expr::num(m.bufs[p.b.0].ty.compute(), 0.0),
                )
            });
            vec![Stmt::For { kind: LoopKind::Seq, var: v, lo: zero, hi: *depth, body: vec![body] }]
        };
        let nothing = {
            let v = m.syms.loop_var("k", zero, *depth);
            let body = store(m, v.into(), &|m, _| Expr::num(m.bufs[p.b.0].ty.compute(), 0.0));
            vec![Stmt::For { kind: LoopKind::Seq, var: v, lo: zero, hi: *depth, body: vec![body] }]
        };
        let rest =
            vec![Stmt::If { cond: Expr::cmp_index(BinOp::Lt, first, s.n_extent), then: part, els: nothing }];
        vec![Stmt::If { cond: Expr::cmp_index(BinOp::Le, first + width, s.n_extent), then: whole, els: rest }]
    };
    let body = vec![Stmt::For { kind: LoopKind::Seq, var: square, lo: zero, hi: squares, body }];
    Some(rows::share(m, l.outer.clone(), body))
}
