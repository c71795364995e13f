//! fuse_conv_pool: a first convolution with few channels computes what a window of the pooling behind it needs in registers.
//!
//! ```text
//! par n, c, y, x { p = -inf; seq i, j { s = 0; seq k { s = fma(A[n, k, Y y + i .., X x + j ..], W[c, k], s) }; p = max(p, f(s)) }; store p }
//! ```
//!
//! Vectors along three or six channels would leave most lanes empty (`fill_vectors` fills them partly, with multiplications by
//! zero). The image comes in planes, so vectors run along the pooled row instead: each lane has a window of sums, which
//! differ in where they begin, and pooling is an operation on whole vectors. The unpooled image is never stored, and the
//! result stays in planes: the next convolution takes its elements one by one wherever they lie.

use crate::diag::Result;
use crate::nest::{BinOp, Buf, Expr, Kernel, Layout, LoopKind, Module, Place, Reg, Stmt, visit};
use crate::passes::nest::analysis::cost;
use crate::passes::nest::analysis::shape::{self, Uses, as_map, fresh_regs, instance, is_temp, peel, seq_loops, wrap};
use crate::passes::nest::analysis::strides::stride;
use crate::passes::nest::schedule::contract::{depends, take_apart};
use crate::sym::{Dim, Sym};
use crate::target::Facts;
use crate::tensor::ElemType;

/// Channels that fill half of the longest vector: with as many, vectors run along channels.
const FEW: i64 = 8;
/// Channels of an image that a caller gives in planes.
const COLOURS: i64 = 4;
/// Results of a window: their sums are registers.
const WINDOW: i64 = 4;
/// Columns between the lanes of a vector: what loads can step over.
const STEP: i64 = 2;
/// Lanes of the longest vectors. Every level takes the same form, since it decides the layout of images.
const LANES: i64 = 16;
/// Taps of a row of the convolution's window that are written out.
const UNROLLED: i64 = 8;

/// Runs the pass.
pub fn run(m: &mut Module, lanes: u32) -> Result<()> {
    if lanes > 1 {
        let mut uses = Uses::new(m);
        for k in visit::calls(&m.driver) {
            if let Some((conv, body)) = fused(m, &uses, k) {
                m.kernels[k].body = body;
                m.kernels[k].origin = m.kernels[conv].origin.clone();
                visit::splice_call(&mut m.driver, conv, false, vec![]);
                uses.update(m, &[k], &[(conv, &[])]);
            }
        }
    }
    Ok(())
}

/// The body of a pooling kernel with the convolution before it inside, and that convolution.
fn fused(m: &mut Module, uses: &Uses, pool: Kernel) -> Option<(Kernel, Vec<Stmt>)> {
    let nest = peel(&m.kernels[pool].body);
    let [head @ Stmt::Acc { reg, lanes: 1, shape, init: Expr::Const(_) }, window @ Stmt::For { .. }, tail @ ..] = nest.body.as_slice() else { return None };
    let (taps, inner) = seq_loops(window)?;
    let [Stmt::Set { reg: r, value: Expr::Bin(op @ (BinOp::Max | BinOp::Min | BinOp::Add), sum, read), .. }] = inner else { return None };
    let (Expr::Acc { reg: old, .. }, Expr::Load { buf: image, at }) = (&**sum, &**read) else { return None };
    let ([conv], [_]) = (uses.writers(*image), uses.readers(*image)) else { return None };
    let plain = shape.is_empty() && r == reg && old == reg && m.regs[*reg].ty == ElemType::F32 && is_temp(m, *image) && m.bufs[*image].ty == ElemType::F32 && !uses.pinned(*image);
    if !plain || !uses.may_move(m, *conv, pool) || !tail.iter().all(|s| matches!(s, Stmt::Let { .. } | Stmt::Store { .. })) {
        return None;
    }
    let p = take_apart(&m.kernels[*conv].body).filter(|p| p.product == crate::passes::nest::schedule::contract::Product::Fma)?;
    let [lets @ .., Stmt::Store { buf, at: to, value }] = p.tail.as_slice() else { return None };
    if buf != image || !lets.iter().all(|s| matches!(s, Stmt::Let { .. })) {
        return None;
    }
    let cover = shape::cover(m, *image, to, &p.loops)?;
    // Windows do not overlap: no sum is computed twice.
    let tap = |d: &Dim| taps.iter().find(|t| d.contains(t.0)).copied();
    let apart = at.iter().all(|d| match tap(d) {
        None => d.as_sym().is_some() || d.as_const() == Some(0),
        Some((t, hi)) => match (d.linear_in(t), hi.as_const()) {
            (Some((one, rest)), Some(hi)) => {
                one.as_const() == Some(1) && nest.loops.iter().any(|l| rest.linear_in(l.0).is_some_and(|(c, rest)| c.as_const().is_some_and(|c| c >= hi) && rest.as_const() == Some(0)))
            }
            _ => false,
        },
    });
    let results = taps.iter().try_fold(1i64, |n, t| n.checked_mul(t.1.as_const()?))?;
    if !apart || !(2..=WINDOW).contains(&results) {
        return None;
    }
    let place = |s: Sym| cover.iter().position(|c| *c == Some(s)).and_then(|i| at.get(i).copied());
    let moved = |at: &[Dim]| -> Vec<Dim> { at.iter().map(|d| d.subst(&mut |s| place(s))).collect() };
    let (a, w) = (moved(&p.a.1), moved(&p.b.1));
    // Channels are few and the weights' alone; a row is nearly as long as its vectors.
    let channel = nest.loops.iter().find(|l| depends(&w, l.0) && !depends(&a, l.0)).filter(|l| l.1.as_const().is_some_and(|c| (2..=FEW).contains(&c)))?;
    let row = nest.loops.iter().find(|l| stride(m, p.a.0, &a, l.0) == Some(STEP))?;
    let long = row.1.as_const().is_some_and(|x| 4 * x >= 3 * ((x + LANES - 1) / LANES * LANES));
    let constant = matches!(m.bufs[m.storage(p.b.0)].place, Place::Const(_)) && nest.loops.iter().all(|l| l.0 == channel.0 || !depends(&w, l.0));
    let stored = tail.iter().all(|s| !matches!(s, Stmt::Store { buf, at, .. } if stride(m, *buf, at, row.0) != Some(1) || m.bufs[*buf].ty != ElemType::F32));
    let numbers = p.depth.iter().all(|d| d.1.as_const().is_some());
    if !long || !constant || !stored || !numbers || !in_planes(m, uses, p.a.0) {
        return None;
    }
    let step = p.product.step(Expr::Load { buf: p.a.0, at: a }, Expr::Load { buf: p.b.0, at: w }, Expr::acc(p.acc));
    let sum = p.depth.iter().rev().fold(Stmt::Set { reg: p.acc, at: vec![], value: step }, |s, (var, hi)| seq(*var, *hi, vec![s]));
    let mut inside = vec![Stmt::Acc { reg: p.acc, lanes: 1, shape: vec![], init: Expr::num(ElemType::F32, 0.0) }, sum];
    for s in lets {
        let Stmt::Let { reg, value } = s else { return None };
        inside.push(Stmt::Let { reg: *reg, value: instance(m, value, &place) });
    }
    let value = instance(m, value, &place);
    inside.push(Stmt::Set { reg: *reg, at: vec![], value: Expr::Bin(*op, Box::new(Expr::acc(*reg)), Box::new(value)) });
    let inside = taps.iter().rev().fold(inside, |body, (var, hi)| vec![seq(*var, *hi, body)]);
    let body: Vec<Stmt> = [head.clone()].into_iter().chain(inside).chain(tail.iter().cloned()).collect();
    Some((*conv, wrap(&nest.loops, body)))
}

/// True for what the caller gives, or its padded copy, if it has few channels.
fn in_planes(m: &Module, uses: &Uses, image: Buf) -> bool {
    let data = &m.bufs[image];
    let few = data.dims.get(1).and_then(|c| c.as_const()).is_some_and(|c| c <= COLOURS);
    let given = |b: Buf| matches!(m.bufs[m.storage(b)].place, Place::Input(_));
    let copied = || uses.writers(image).iter().all(|k| as_map(&m.kernels[*k].body).is_some() && visit::loads(&m.kernels[*k].body).into_iter().all(given));
    few && data.layout == Layout::RowMajor && data.ty == ElemType::F32 && (given(image) || is_temp(m, image) && copied())
}

fn seq(var: Sym, hi: Dim, body: Vec<Stmt>) -> Stmt {
    Stmt::For { kind: LoopKind::Seq, var, lo: Dim::constant(0), hi, body }
}

/// The fused form, taken apart.
struct Pooled {
    loops: Vec<(Sym, Dim)>,
    pooled: (Reg, Expr),
    window: Vec<(Sym, Dim)>,
    sum: Reg,
    depth: Vec<(Sym, Dim)>,
    /// The step of the sum.
    step: Expr,
    a: (Buf, Vec<Dim>),
    w: (Buf, Vec<Dim>),
    /// What follows a sum, up to the step of the pooling.
    then: Vec<Stmt>,
    tail: Vec<Stmt>,
}

fn take(body: &[Stmt]) -> Option<Pooled> {
    let nest = peel(body);
    let [Stmt::Acc { reg, lanes: 1, init, .. }, window @ Stmt::For { .. }, tail @ ..] = nest.body.as_slice() else { return None };
    let (window, inside) = seq_loops(window)?;
    let [Stmt::Acc { reg: sum, lanes: 1, .. }, depth @ Stmt::For { .. }, then @ ..] = inside else { return None };
    let (depth, step) = seq_loops(depth)?;
    let [Stmt::Set { value: step @ Expr::Fma(a, w, _), .. }] = step else { return None };
    let (Expr::Load { buf: a, at: at_a }, Expr::Load { buf: w, at: at_w }) = (&**a, &**w) else { return None };
    let sets = then.iter().filter(|s| matches!(s, Stmt::Set { reg: r, .. } if r == reg)).count();
    let straight = then.iter().all(|s| matches!(s, Stmt::Let { .. } | Stmt::Set { .. })) && tail.iter().all(|s| matches!(s, Stmt::Let { .. } | Stmt::Store { .. }));
    (sets == 1 && straight && !tail.is_empty()).then(|| Pooled {
        loops: nest.loops.clone(),
        pooled: (*reg, init.clone()),
        window,
        sum: *sum,
        depth,
        step: step.clone(),
        a: (*a, at_a.clone()),
        w: (*w, at_w.clone()),
        then: then.to_vec(),
        tail: tail.to_vec(),
    })
}

/// Images that stay in planes because a kernel of this form reads or writes them.
pub(crate) fn planes(m: &Module, kernels: &[Kernel]) -> Vec<Buf> {
    kernels.iter().filter_map(|k| take(&m.kernels[*k].body).map(|p| [vec![p.a.0], visit::stores(&p.tail)].concat())).flatten().collect()
}

/// Schedules a kernel of the fused form; false for others.
pub(crate) fn schedule(m: &mut Module, k: Kernel, facts: Facts) -> bool {
    let Some(p) = take(&m.kernels[k].body) else { return false };
    let Some(row) = p.loops.iter().copied().find(|l| stride(m, p.a.0, &p.a.1, l.0) == Some(STEP) && !depends(&p.w.1, l.0)) else { return false };
    let Some(channel) = p.loops.iter().copied().find(|l| depends(&p.w.1, l.0) && !depends(&p.a.1, l.0)) else { return false };
    let (Some(wide), Some(channels)) = (row.1.as_const(), channel.1.as_const()) else { return false };
    let Some(window) = p.window.iter().try_fold(1i64, |n, w| n.checked_mul(w.1.as_const()?)) else { return false };
    cost::estimate(m, k);
    let (lanes, registers) = (i64::from(facts.lanes), i64::from(facts.registers));
    // The sums of some channels, the image's elements for one tap, a weight, and what loading takes.
    let most = ((registers - window - 4) / window).clamp(1, channels);
    let parts = (channels + most - 1) / most;
    let zero = Dim::constant(0);
    let mut body = vec![];
    let whole = wide / lanes;
    for i in 0..parts {
        let (from, to) = (channels * i / parts, channels * (i + 1) / parts);
        let block = |m: &mut Module, base: Dim, used: i64| Block { p: &p, x: (row.0, base), c: (channel.0, from), channels: to - from, lanes, used }.emit(m);
        if whole > 0 {
            let v = m.syms.loop_var("x", zero, Dim::constant(whole));
            let inside = block(m, Dim::sym(v) * lanes, lanes);
            body.push(seq(v, Dim::constant(whole), inside));
        }
        if wide % lanes > 0 {
            body.extend(block(m, Dim::constant(whole * lanes), wide % lanes));
        }
    }
    let outer: Vec<(Sym, Dim)> = p.loops.iter().copied().filter(|l| l.0 != row.0 && l.0 != channel.0).collect();
    m.kernels[k].body = shape::parallel(m, &outer, body);
    true
}

/// A vector of pooled results for some channels.
struct Block<'a> {
    p: &'a Pooled,
    /// The row's variable and where the vector begins.
    x: (Sym, Dim),
    /// The channels' variable and the first of them.
    c: (Sym, i64),
    channels: i64,
    lanes: i64,
    used: i64,
}

impl Block<'_> {
    fn emit(&self, m: &mut Module) -> Vec<Stmt> {
        let p = self.p;
        let (sum, pooled) = (m.reg(ElemType::F32), m.reg(ElemType::F32));
        let sizes: Vec<u32> = [self.channels].into_iter().chain(p.window.iter().filter_map(|w| w.1.as_const())).map(|n| n as u32).collect();
        let acc = |reg: Reg, shape: &[u32], init: Expr| Stmt::Acc { reg, lanes: self.lanes as u32, shape: shape.to_vec(), init };
        let mut out = vec![acc(sum, &sizes, Expr::num(ElemType::F32, 0.0))];
        // The innermost taps are written out.
        let depth: Vec<(Sym, Sym, Dim)> = p.depth.iter().map(|d| (d.0, shape::loop_like(m, d.0, Dim::constant(0), d.1), d.1)).collect();
        let mut body = self.each(m, true, (sum, pooled), &|| vec![Stmt::Set { reg: p.sum, at: vec![], value: p.step.clone() }]);
        for (i, (old, var, hi)) in depth.iter().enumerate().rev() {
            let kind = if i + 1 == depth.len() && hi.as_const().is_some_and(|n| n <= UNROLLED) { LoopKind::Unroll } else { LoopKind::Seq };
            body = shape::put(m, body, &|s| (s == *old).then(|| Dim::sym(*var)));
            body = vec![Stmt::For { kind, var: *var, lo: Dim::constant(0), hi: *hi, body }];
        }
        out.extend(body);
        out.push(acc(pooled, &sizes[..1], p.pooled.1.clone()));
        out.extend(self.each(m, true, (sum, pooled), &|| p.then.clone()));
        out.extend(self.each(m, false, (sum, pooled), &|| p.tail.clone()));
        out
    }
    /// Statements of the kernel for each channel (and each result of the window), in lanes.
    fn each(&self, m: &mut Module, window: bool, (sum, pooled): (Reg, Reg), body: &dyn Fn() -> Vec<Stmt>) -> Vec<Stmt> {
        let (p, zero) = (self.p, Dim::constant(0));
        let c = m.syms.loop_var("c", zero, Dim::constant(self.channels));
        let l = m.syms.loop_var("l", zero, Dim::constant(self.used));
        let inner: Vec<(Sym, Sym, Dim)> = if window { p.window.iter().map(|w| (w.0, shape::loop_like(m, w.0, zero, w.1), w.1)).collect() } else { vec![] };
        let at_sum: Vec<Dim> = [Dim::sym(c)].into_iter().chain(inner.iter().map(|w| Dim::sym(w.1))).collect();
        let at_pooled = vec![Dim::sym(c)];
        let place = |r: Reg| if r == p.sum { Some((sum, at_sum.clone())) } else { (r == p.pooled.0).then(|| (pooled, at_pooled.clone())) };
        let fresh = fresh_regs(m, &body());
        let moved = fresh.into_iter().map(|s| {
            let s = s.map_exprs(&mut |e| {
                e.rewrite(&mut |e| match e {
                    Expr::Acc { reg, at, lane } => match place(reg) {
                        Some((reg, at)) => Expr::Acc { reg, at, lane: None },
                        None => Expr::Acc { reg, at, lane },
                    },
                    e => e,
                })
            });
            match s {
                Stmt::Set { reg, at, value } => match place(reg) {
                    Some((reg, at)) => Stmt::Set { reg, at, value },
                    None => Stmt::Set { reg, at, value },
                },
                s => s,
            }
        });
        let dims = |s: Sym| match s {
            s if s == self.x.0 => Some(self.x.1 + l),
            s if s == self.c.0 => Some(Dim::sym(c) + self.c.1),
            s => inner.iter().find(|w| w.0 == s).map(|w| Dim::sym(w.1)),
        };
        let moved: Vec<Stmt> = moved.map(|s| s.map_dims(&mut |d| d.subst(&mut |s| dims(s)))).collect();
        let mut body = vec![Stmt::For { kind: LoopKind::Vec(self.lanes as u32), var: l, lo: zero, hi: Dim::constant(self.used), body: moved }];
        for (_, var, hi) in inner.iter().rev() {
            body = vec![Stmt::For { kind: LoopKind::Unroll, var: *var, lo: zero, hi: *hi, body }];
        }
        vec![Stmt::For { kind: LoopKind::Unroll, var: c, lo: zero, hi: Dim::constant(self.channels), body }]
    }
}
