//! Convolutions fused with pooling, as `fuse_conv_pool` emits them.
//!
//! Vectors run along the pooled row: each lane has the accumulators of one window, which differ in their
//! start, and pooling is an operation on whole vectors.

use crate::nest::schedule::Schedule;
use crate::nest::{Buf, Expr, Kernel, LoopKind, Module, Reg, Stmt, visit};
use crate::passes::nest::analysis::cost;
use crate::passes::nest::analysis::form::{Form, PooledContraction, depends};
use crate::passes::nest::analysis::shape::{self, fresh_regs};
use crate::passes::nest::analysis::strides::stride;
use crate::passes::nest::fuse::fuse_conv_pool::STEP;
use crate::passes::nest::schedule::{self, Request};
use crate::sym::{Dim, Sym};
use crate::tensor::ElemType;

/// Maximum taps of a row of the convolution's window that are unrolled.
const UNROLLED: i64 = 8;

/// Images that stay channels-first because a fused kernel accesses them.
pub(crate) fn planes(m: &Module, kernels: &[Kernel]) -> Vec<Buf> {
    kernels
        .iter()
        .filter_map(|k| {
            m.form(*k).pooled_contraction().map(|p| [vec![p.a.0], visit::stores(&p.epilogue)].concat())
        })
        .flatten()
        .collect()
}

/// A fused kernel in vectors along the pooled row.
struct Plan {
    p: PooledContraction,
    row: (Sym, i64),
    channel: (Sym, i64),
    lanes: i64,
    /// Parts of the channels, each with registers for all its accumulators.
    parts: i64,
    work: Dim,
}

/// Chooses vectors along the pooled row for a fused kernel.
pub(crate) fn choose(m: &mut Module, request: &Request) -> Option<Box<dyn schedule::Plan>> {
    let Form::PooledContraction(p) = request.form else { return None };
    let p = (**p).clone();
    let known = |l: &(Sym, Dim)| Some((l.0, l.1.as_const()?));
    let along = |l: &&(Sym, Dim)| stride(m, p.a.0, &p.a.1, l.0) == Some(STEP) && !depends(&p.w.1, l.0);
    let row = p.loops.iter().find(along).and_then(known)?;
    let channel = p.loops.iter().find(|l| depends(&p.w.1, l.0) && !depends(&p.a.1, l.0)).and_then(known)?;
    let window = p.window.iter().try_fold(1i64, |n, w| n.checked_mul(w.1.as_const()?))?;
    let (lanes, registers) = (i64::from(request.facts.lanes), i64::from(request.facts.registers));
    // Registers hold the accumulators of some channels, the image elements for one tap, a weight, and
    // temporaries of loads.
    let most = ((registers - window - 4) / window).clamp(1, channel.1);
    let parts = (channel.1 + most - 1) / most;
    let work = cost::work(m, request.body);
    Some(Box::new(Plan { p, row, channel, lanes, parts, work }))
}

impl schedule::Plan for Plan {
    fn schedule(&self, _: &Module) -> Schedule {
        let s = Schedule::new("convolution with pooling").vectors(
            self.lanes,
            "pooled results of a row",
            self.row.1.into(),
        );
        let window = self.p.window.iter().filter_map(|w| w.1.as_const()).product();
        let channels = (self.channel.1 + self.parts - 1) / self.parts;
        let taps = self.p.reduction.last().and_then(|d| d.1.as_const()).filter(|n| *n <= UNROLLED);
        let unroll = taps.map(|n| ("taps of a row", n)).into_iter().collect();
        Schedule { tile: vec![("channels", channels), ("sums of a window", window)], unroll, ..s }
    }
    fn work(&self) -> Dim {
        self.work
    }
    fn apply(self: Box<Self>, m: &mut Module, _: Kernel) -> Vec<Stmt> {
        let (p, lanes, (wide, channels)) = (&self.p, self.lanes, (self.row.1, self.channel.1));
        let (zero, whole) = (Dim::constant(0), wide / lanes);
        let mut body = vec![];
        for i in 0..self.parts {
            let (from, to) = (channels * i / self.parts, channels * (i + 1) / self.parts);
            let block = |m: &mut Module, base: Dim, used: i64| {
                Block {
                    p,
                    x: (self.row.0, base),
                    c: (self.channel.0, from),
                    channels: to - from,
                    lanes,
                    used,
                }
                .emit(m)
            };
            if whole > 0 {
                let v = m.syms.loop_var("x", zero, Dim::constant(whole));
                let inside = block(m, Dim::sym(v) * lanes, lanes);
                body.push(Stmt::seq(v, Dim::constant(whole), inside));
            }
            if wide % lanes > 0 {
                body.extend(block(m, Dim::constant(whole * lanes), wide % lanes));
            }
        }
        let outer: Vec<(Sym, Dim)> =
            p.loops.iter().copied().filter(|l| l.0 != self.row.0 && l.0 != self.channel.0).collect();
        shape::parallel(m, &outer, body)
    }
}

/// A vector of pooled results for some channels.
struct Block<'a> {
    p: &'a PooledContraction,
    /// The row's variable and the start of the vector.
    x: (Sym, Dim),
    /// The channels' variable and the first channel.
    c: (Sym, i64),
    channels: i64,
    lanes: i64,
    used: i64,
}

impl Block<'_> {
    fn emit(&self, m: &mut Module) -> Vec<Stmt> {
        let p = self.p;
        let (sum, pooled) = (m.reg(ElemType::F32), m.reg(ElemType::F32));
        let sizes: Vec<u32> = [self.channels]
            .into_iter()
            .chain(p.window.iter().filter_map(|w| w.1.as_const()))
            .map(|n| n as u32)
            .collect();
        let acc = |reg: Reg, shape: &[u32], init: Expr| Stmt::Acc {
            reg,
            lanes: self.lanes as u32,
            shape: shape.to_vec(),
            init,
        };
        let mut out = vec![acc(sum, &sizes, Expr::num(ElemType::F32, 0.0))];
        // The innermost taps are unrolled.
        let depth: Vec<(Sym, Sym, Dim)> =
            p.reduction.iter().map(|d| (d.0, shape::loop_like(m, d.0, Dim::constant(0), d.1), d.1)).collect();
        let mut body = self.each(m, true, (sum, pooled), &|| {
            vec![Stmt::Set { reg: p.sum, at: vec![], value: p.step.clone() }]
        });
        for (i, (old, var, hi)) in depth.iter().enumerate().rev() {
            let kind = if i + 1 == depth.len() && hi.as_const().is_some_and(|n| n <= UNROLLED) {
                LoopKind::Unroll
            } else {
                LoopKind::Seq
            };
            body = shape::substitute(m, body, &|s| (s == *old).then(|| Dim::sym(*var)));
            body = vec![Stmt::For { kind, var: *var, lo: Dim::constant(0), hi: *hi, body }];
        }
        out.extend(body);
        out.push(acc(pooled, &sizes[..1], p.pooled.1.clone()));
        out.extend(self.each(m, true, (sum, pooled), &|| p.then.clone()));
        out.extend(self.each(m, false, (sum, pooled), &|| p.epilogue.clone()));
        out
    }
    /// Repeats statements of the kernel for each channel (and each result of the window), in lanes.
    fn each(
        &self,
        m: &mut Module,
        window: bool,
        (sum, pooled): (Reg, Reg),
        body: &dyn Fn() -> Vec<Stmt>,
    ) -> Vec<Stmt> {
        let (p, zero) = (self.p, Dim::constant(0));
        let c = m.syms.loop_var("c", zero, Dim::constant(self.channels));
        let l = m.syms.loop_var("l", zero, Dim::constant(self.used));
        let inner: Vec<(Sym, Sym, Dim)> = if window {
            p.window.iter().map(|w| (w.0, shape::loop_like(m, w.0, zero, w.1), w.1)).collect()
        } else {
            vec![]
        };
        let at_sum: Vec<Dim> = [Dim::sym(c)].into_iter().chain(inner.iter().map(|w| Dim::sym(w.1))).collect();
        let at_pooled = vec![Dim::sym(c)];
        let place = |r: Reg| {
            if r == p.sum {
                Some((sum, at_sum.clone()))
            } else {
                (r == p.pooled.0).then(|| (pooled, at_pooled.clone()))
            }
        };
        let fresh = fresh_regs(m, &body());
        let moved = fresh.into_iter().map(|s| {
            let s = s.rewrite_exprs(&mut |e| match e {
                Expr::Acc { reg, at, lane } => match place(reg) {
                    Some((reg, at)) => Expr::Acc { reg, at, lane: None },
                    None => Expr::Acc { reg, at, lane },
                },
                e => e,
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
        let moved: Vec<Stmt> = moved.map(|s| s.subst(&|s| dims(s))).collect();
        let mut body = vec![Stmt::vector(self.lanes, l, self.used, moved)];
        for (_, var, hi) in inner.iter().rev() {
            body = vec![Stmt::unroll(*var, *hi, body)];
        }
        vec![Stmt::unroll(c, self.channels, body)]
    }
}
