//! The kernels of a transformed convolution, and their buffers.

use super::Layer;
use super::plan::{At, Plan, members, parts, plan, tile_at, tiles};
use super::transform::{packed, transformed};
use crate::nest::{Buf, Expr, Kernel, KernelBuilder, LoopKind, Module, Stmt, visit};
use crate::passes::nest::analysis::cost::MOVE;
use crate::passes::nest::analysis::machine::SLOTS;
use crate::passes::nest::analysis::shape::in_slots;
use crate::sym::Dim;
use crate::tensor::ElemType;

/// Maximum parts of scratch where weights are transformed while the model runs: each has a copy of them.
const FRESH_SLOTS: i64 = 16;

/// Replaces the kernel.
pub(super) fn rewrite(m: &mut Module, k: Kernel, l: &Layer) {
    let (name, origin) = (m.kernels[k].name.clone(), m.kernels[k].origin.clone());
    let Some(r) = Rewrite::new(m, &name, l) else { return };
    let results = r.p.images * l.y.1 * l.x.1;
    let mut calls = vec![];
    if r.p.is_shared() {
        let id = m.kernel(&format!("{name}.v"), &origin, |kb| r.all_inputs(kb));
        // Reads the image and writes 36 sums for 16 elements of it.
        m.kernels[id].work = results * (l.c.1 * (4 + 3 * MOVE));
        calls.push(id);
    }
    let id = m.kernel(&name, &origin, |kb| {
        in_slots(kb, r.p.tasks(), r.slots, &mut |kb, slot, i| r.task(kb, slot, i));
    });
    // A quarter of the direct sum.
    m.kernels[id].work = results * (9 * l.c.1 * l.k.1 / 16);
    calls.push(id);
    m.driver.truncate(m.driver.len() - calls.len());
    visit::splice_call(&mut m.driver, k, false, calls.into_iter().map(Stmt::Call).collect());
}

/// What the kernels of a convolution share.
pub(super) struct Rewrite<'a> {
    pub l: &'a Layer,
    pub p: Plan,
    /// Output channels of a slice.
    pub width: i64,
    /// Blocks of input channels.
    pub blocks: i64,
    /// Parts of scratch.
    slots: i64,
    /// The constant: U, or the weights if they are transformed while the model runs.
    pub w: Buf,
    pub u: Buf,
    pub v: Buf,
    pub m: Buf,
}

/// A group of tiles and a slice of the output channels.
pub(super) struct Task {
    pub slot: Dim,
    pub slice: Dim,
    group: Dim,
    /// Images of the group, and tiles of each.
    images: Dim,
    tiles: Dim,
}

impl<'a> Rewrite<'a> {
    /// Plans the rewrite and makes its buffers; `None` if the weights are unknown.
    fn new(m: &mut Module, name: &str, l: &'a Layer) -> Option<Rewrite<'a>> {
        let p = plan(l);
        let w = if p.fresh { packed(l, p.slices) } else { transformed(l, p.slices) }?;
        let w = m.constant(format!("{}.winograd", m.bufs[l.parts.b.0].name), w);
        let (width, blocks) = (l.k.1 / p.slices, l.c.1 / p.block);
        let most = if p.fresh { FRESH_SLOTS } else { SLOTS };
        let slots = p.tasks().as_const().map_or(most, |t| t.min(most));
        // An odd number of cache lines between the planes: otherwise they would share few cache sets.
        let odd = |n: i64| n + i64::from(n % 2 == 0);
        let line = 64 / l.factor_bytes();
        let row = |channels: i64| match channels % line {
            0 if !p.fresh => odd(channels / line) * line,
            _ => channels,
        };
        let mut factors = |kind: &str, parts: &[Dim], channels: i64| {
            let planes = [l.products(), odd(p.tiles), row(channels)].map(Dim::constant);
            m.temp(format!("{name}.{kind}"), l.factors(), [parts, &planes].concat())
        };
        let v = factors("v", &[if p.is_shared() { p.total } else { slots.into() }, blocks.into()], p.block);
        let sums = factors("m", &[slots.into()], width);
        let u = if p.fresh {
            let dims = [slots, l.products(), p.block + 1, width].map(Dim::constant);
            m.temp(format!("{name}.u"), ElemType::F32, dims.to_vec())
        } else {
            w
        };
        Some(Rewrite { l, p, width, blocks, slots, w, u, v, m: sums })
    }
    /// V of all images, which all slices share.
    fn all_inputs(&self, kb: &mut KernelBuilder) {
        let (l, p) = (self.l, &self.p);
        // All tiles of an image, and its groups if they do not consist of whole images.
        let (images, t, groups) = match (p.whole, tiles(l).as_const()) {
            (Some(n), _) => (n, tiles(l), None),
            (None, Some(_)) => (1, p.groups * p.tiles, Some(p.groups)),
            (None, None) => (1, tiles(l), Some(p.groups)),
        };
        kb.range(LoopKind::Par, "r", 0, p.images * t, |kb, r| {
            let (image, t_at) = (r.floor_div(t), r.modulo(t));
            let (g, i, t_at) = match groups {
                Some(n) => (image * n + t_at.floor_div(p.size), Dim::constant(0), t_at.modulo(p.size)),
                None => (image.floor_div(images), image.modulo(images), t_at),
            };
            self.input(kb, &tile_at(l, p, g, (i, t_at)), [g, i * t + t_at]);
        });
    }
    /// The results of iteration `i` of the parallel loop.
    fn task(&self, kb: &mut KernelBuilder, slot: Dim, i: Dim) {
        let (slice, group) = (i.floor_div(self.p.total), i.modulo(self.p.total));
        let (images, tiles) = members(kb.m, self.l, &self.p, group);
        named(kb, tiles, &mut |kb, tiles| {
            let task = Task { slot, slice, group, images, tiles };
            if !self.p.is_shared() {
                self.each_tile(kb, &task, |kb, at, t| self.input(kb, at, [slot, t]));
            }
            self.add_block(kb, &task, Dim::constant(0));
            if self.blocks > 1 {
                kb.range(LoopKind::Seq, "b", 1, self.blocks, |kb, b| self.add_block(kb, &task, b));
            }
            self.each_tile(kb, &task, |kb, at, t| {
                kb.range(LoopKind::Par, "k", 0, self.width, |kb, k| self.output(kb, &task, at, [t, k]));
            });
        });
    }
    /// A loop over the tiles of a group; `f` gets the tile and its number in the group.
    fn each_tile(&self, kb: &mut KernelBuilder, task: &Task, f: impl FnOnce(&mut KernelBuilder, &At, Dim)) {
        kb.nest(LoopKind::Seq, &[task.images, task.tiles], |kb, at| {
            let tile = tile_at(self.l, &self.p, task.group, (at[0], at[1]));
            f(kb, &tile, at[0] * task.tiles + at[1]);
        });
    }
    /// Adds block `b` of input channels to M; the first one sets it.
    fn add_block(&self, kb: &mut KernelBuilder, task: &Task, b: Dim) {
        let fresh = self.p.fresh;
        if fresh {
            self.filters(kb, task, b);
        }
        // One product after the other: its second part finds U in the cache, and weights of the next block
        // are prefetched in between.
        if !fresh && parts(task.tiles).len() == 1 {
            return self.products(kb, task, b, None);
        }
        kb.range(LoopKind::Seq, "e", 0, self.l.products(), |kb, e| {
            self.products(kb, task, b, Some(e));
            if fresh {
                self.prefetch_weights(kb, task, b + 1, e);
            }
        });
    }
    /// All products of V and U of a block of input channels, or product `one`, for all tiles of the group.
    fn products(&self, kb: &mut KernelBuilder, task: &Task, b: Dim, one: Option<Dim>) {
        let from = if self.p.is_shared() { task.group } else { task.slot };
        let filters = if self.p.fresh { task.slot } else { task.slice };
        for (first, count) in parts(task.tiles) {
            let products = one.map_or(self.l.products(), |_| 1);
            kb.nest(LoopKind::Par, &[products.into(), task.images, count, self.width.into()], |kb, o| {
                let (e, t, k) = (one.unwrap_or(o[0]), o[1] * task.tiles + o[2] + first, o[3]);
                let acc = kb.acc(Expr::f32(0.0));
                kb.range(LoopKind::Seq, "c", 0, self.p.block, |kb, c| {
                    let x = kb.load(self.v, &[from, b, e, t, c]);
                    let y = kb.load(self.u, &[filters, e, c, k]);
                    kb.set(acc, Expr::fma(x, y, Expr::acc(acc)));
                });
                let at = [task.slot, e, t, k];
                let is_first = b.as_const() == Some(0);
                let sum = if is_first { Expr::acc(acc) } else { Expr::acc(acc) + kb.load(self.m, &at) };
                kb.store(self.m, &at, sum);
            });
        }
    }
}

/// Runs `f` with the value as a loop variable if it is not known: expressions would repeat it.
fn named(kb: &mut KernelBuilder, value: Dim, f: &mut dyn FnMut(&mut KernelBuilder, Dim)) {
    match value.as_const() {
        Some(_) => f(kb, value),
        None => kb.range(LoopKind::Seq, "n", value, value + 1, f),
    }
}
