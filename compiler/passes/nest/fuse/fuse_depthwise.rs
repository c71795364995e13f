//! fuse_depthwise: a depthwise convolution and the convolution that produces its image become one kernel,
//! which processes some channels and rows at a time and reads the image from the cache.
//!
//! ```text
//! par images, bands of rows, groups of channels {
//!     border = fill
//!     seq y { the rows of the image that the window has reached; a row of the depthwise convolution }
//! }
//! ```
//!
//! Between an expanding and a projecting convolution the image has many channels; it is never stored as a
//! whole. A band is scratch of a task (`nest`, rule 12). Rows that two bands share are computed in both, with
//! the same operations: results do not depend on the partition. Groups share nothing, so that small images
//! have a single band.

use crate::diag::Result;
use crate::nest::{Buf, Expr, Kernel, KernelBuilder, Layout, LoopKind, Math, Module, Stmt, visit};
use crate::passes::nest::analysis::form::{Contraction, ProductKind, Slide, depends, loop_or_zero};
use crate::passes::nest::analysis::machine::{L1, L2, THREADS, slots};
use crate::passes::nest::analysis::shape::{Uses, fresh_regs, in_slots, is_temp, peel};
use crate::passes::nest::fuse::fuse_epilogues::copies;
use crate::sym::{Answer, Dim, Sym};
use crate::target::Level;
use crate::tensor::{ConstData, ElemType, consts::Remap};
use std::sync::Arc;

/// Channels of a group, in order of preference: whole vectors on every level, in panels that suit tiles.
const WIDTHS: [i64; 3] = [32, 48, 64];
/// Maximum bands of an image.
const BANDS: i64 = 4;
/// Maximum bytes of an image that a band holds as a whole, so that it stays in the first-level cache.
const NEAR: i64 = L1 * 11 / 12;
/// Maximum bytes of the rows that windows reach, which stay in the second-level cache.
const NEAR_ROWS: i64 = L2 / 4;
/// Maximum bytes of the producer's weights: tiles of a separate kernel prefetch larger ones better.
const NEAR_WEIGHTS: i64 = L2 / 4;
/// Rows and columns that an image of run-time size is assumed to have.
const ASSUMED: i64 = 32;
/// Multiply-adds that take as long as storing an image element to an outer cache and loading it again
/// (measured).
const SAVED: i64 = 2;

/// Runs the pass.
pub fn run(m: &mut Module, level: &Level) -> Result<()> {
    if level.facts.lanes == 1 || m.math == Math::Fast {
        return Ok(());
    }
    let uses = Uses::new(m);
    for k in uses.order.clone() {
        if let Some(p) = pair(m, &uses, k)
            && let Some(cut) = cut(&p)
        {
            rewrite(m, &p, &cut);
        }
    }
    Ok(())
}

/// The loops of one convolution: images, channels, rows, columns.
struct Vars {
    n: Option<(Sym, Dim)>,
    c: (Sym, Dim),
    y: (Sym, Dim),
    x: (Sym, Dim),
}

impl Vars {
    /// The loops of a nest that has no others.
    fn of(p: &Contraction, n: Option<(Sym, Dim)>, [c, y, x]: [(Sym, Dim); 3]) -> Option<Vars> {
        let distinct = c.0 != y.0 && c.0 != x.0 && y.0 != x.0;
        let others = n.is_none_or(|n| n.0 != c.0 && n.0 != y.0 && n.0 != x.0);
        let all = p.loops.len() == 3 + usize::from(n.is_some());
        (distinct && others && all).then_some(Vars { n, c, y, x })
    }
    /// The value of loop variable `s` at an element.
    fn at(&self, s: Sym, [n, c, y, x]: [Dim; 4]) -> Option<Dim> {
        match s {
            s if s == self.y.0 => Some(y),
            s if s == self.x.0 => Some(x),
            s if s == self.c.0 => Some(c),
            s => self.n.filter(|own| own.0 == s).map(|_| n),
        }
    }
}

/// The convolution that produces the image.
struct Maker {
    kernel: Kernel,
    p: Contraction,
    vars: Vars,
    /// Position of the first row and column in the padded image, and their number.
    from: (i64, i64),
    size: (Dim, Dim),
    channels: i64,
    /// The weights, and their dimension of output channels.
    weights: (Arc<ConstData>, usize),
}

/// The depthwise convolution that follows.
struct Follower {
    kernel: Kernel,
    p: Contraction,
    vars: Vars,
    /// Distance of adjacent windows in rows of the image, and rows of a window.
    stride: i64,
    reach: i64,
}

/// A convolution and the depthwise convolution that follows.
struct Pair {
    maker: Maker,
    follower: Follower,
    /// Kernels that fill the border of the image, and their value.
    fillers: Vec<Kernel>,
    fill: Option<Expr>,
    image: Buf,
    images: Dim,
    /// Rows and columns of the padded image.
    padded: (Dim, Dim),
    /// Rows of the result.
    rows: Dim,
}

impl Follower {
    /// Kernel `k` as a depthwise convolution, if its image is a temporary that no other kernel reads.
    fn of(m: &Module, uses: &Uses, k: Kernel) -> Option<Follower> {
        let p = m.form(k).contraction().filter(|p| p.product == ProductKind::Fma)?;
        let image = p.a.0;
        let data = &m.bufs[image];
        let interleaved = data.layout == Layout::Permuted(vec![0, 2, 3, 1]) && data.ty == ElemType::F32;
        let own = is_temp(m, image)
            && uses.readers(image) == [k]
            && !uses.pinned(image)
            && !p.epilogue.iter().any(|s| s.loads().contains(&image));
        let ([n, c, y, x], true) = (p.a.1.as_slice(), interleaved && own) else { return None };
        // Each output channel reads its own input channel.
        let c = loop_or_zero(&p.loops, *c)?.filter(|c| depends(&p.b.1, c.0))?;
        let window = |at: &Dim| {
            let s = Slide::of(*at, &p.loops, &p.reduction).filter(|s| s.first == 0)?;
            let still = !depends(&p.b.1, s.along.0);
            still.then_some((s, s.dilation * (s.tap?.1.as_const()? - 1) + 1))
        };
        let ((y, reach), (x, _)) = (window(y)?, window(x)?);
        let vars = Vars::of(p, loop_or_zero(&p.loops, *n)?, [c, y.along, x.along])?;
        Some(Follower { kernel: k, p: p.clone(), vars, stride: y.step, reach })
    }
}

impl Maker {
    /// Kernel `k` as the producer of an image, if its weights can be divided by output channel.
    fn of(m: &Module, k: Kernel, image: Buf) -> Option<Maker> {
        let p = m.form(k).contraction().filter(|p| p.product == ProductKind::Fma)?;
        let (_, at) = p.store().filter(|store| store.0 == image)?;
        let [n, c, y, x] = at.as_slice() else { return None };
        // A loop variable plus a constant, and that constant.
        let shifted = |d: &Dim| {
            let (rest, from) = d.split_const();
            Some((loop_or_zero(&p.loops, rest)??, from)).filter(|_| from >= 0)
        };
        let (c, (y, top), (x, left)) = (loop_or_zero(&p.loops, *c)??, shifted(y)?, shifted(x)?);
        let vars = Vars::of(p, loop_or_zero(&p.loops, *n)?, [c, y, x])?;
        let along: Vec<usize> = (0..p.b.1.len()).filter(|i| p.b.1[*i].contains(c.0)).collect();
        let ([along], weights, channels) = (along.as_slice(), m.constant_as_read(p.b.0)?, c.1.as_const()?)
        else {
            return None;
        };
        let by_channel = p.b.1[*along].as_sym() == Some(c.0)
            && !depends(&p.a.1, c.0)
            && weights.dims()[*along] == channels
            && p.reduction.iter().all(|l| l.1.as_const().is_some())
            && !visit::loads(&m.kernels[k].body).contains(&image);
        by_channel.then(|| Maker {
            kernel: k,
            p: p.clone(),
            vars,
            from: (top, left),
            size: (y.1, x.1),
            channels,
            weights: (weights, *along),
        })
    }
}

fn pair(m: &Module, uses: &Uses, k: Kernel) -> Option<Pair> {
    let follower = Follower::of(m, uses, k)?;
    let image = follower.p.a.0;
    let (makers, fillers): (Vec<Kernel>, Vec<Kernel>) =
        uses.writers(image).iter().partition(|w| m.form(**w).contraction().is_some());
    let [maker] = makers.as_slice() else { return None };
    let maker = Maker::of(m, *maker, image).filter(|x| x.kernel != k && uses.may_move(m, x.kernel, k))?;
    let data = &m.bufs[image];
    let (rows, padded) = (follower.vars.y.1, (data.dims[2], data.dims[3]));
    // Of an unknown number of rows, the first window is certain.
    let windows = rows.as_const().unwrap_or(1);
    let (channels, reach) = (Some(maker.channels), follower.reach);
    let fits = maker.vars.n.is_some() == follower.vars.n.is_some()
        && data.dims[1].as_const() == channels
        && follower.vars.c.1.as_const() == channels
        // The border above must not exceed the first window.
        && maker.from.0 <= reach.min((windows - 1) * follower.stride + reach - 1)
        && windows > 0;
    if !fits {
        return None;
    }
    let fill = border(m, uses, (&fillers, k), (image, &maker))?;
    let bordered = maker.from != (0, 0) || maker.size != padded;
    if bordered && fill.is_none() {
        return None;
    }
    let fill = fill.filter(|_| bordered);
    Some(Pair { maker, follower, fillers, fill, image, images: data.dims[0], padded, rows })
}

/// The constant that kernels store around the producer's result, or no constant if there are no such kernels;
/// `None` if they store anything else, or may not move to kernel `k`.
fn border(
    m: &Module,
    uses: &Uses,
    (fillers, k): (&[Kernel], Kernel),
    (image, maker): (Buf, &Maker),
) -> Option<Option<Expr>> {
    let span = |from: i64, n: Dim| (Dim::constant(from), n + (from - 1));
    let within = [
        (Dim::constant(0), m.bufs[image].dims[0] - 1),
        span(0, maker.channels.into()),
        span(maker.from.0, maker.size.0),
        span(maker.from.1, maker.size.1),
    ];
    let mut fill: Option<Expr> = None;
    for f in fillers {
        let value = m.form(*f).map().map(|map| &map.value).filter(|v| matches!(v, Expr::Const(_)))?;
        let same = fill.as_ref().is_none_or(|f| f == value);
        if !same || !uses.may_move(m, *f, k) || !copies::disjoint(m, *f, image, &within) {
            return None;
        }
        fill = Some(value.clone());
    }
    Some(fill)
}

/// The partition of the work.
struct Cut {
    /// Channels of a group.
    width: i64,
    /// Bands of an image, and rows of the result of a band.
    bands: Dim,
    rows: Dim,
    /// Whether all rows of the image are computed before the first result; there is a single band then.
    whole: bool,
}

/// A partition with equal shares for a few threads; `None` if two kernels are better.
fn cut(p: &Pair) -> Option<Cut> {
    let depth: i64 = p.maker.p.reduction.iter().filter_map(|d| d.1.as_const()).product();
    if 4 * depth * p.maker.channels > NEAR_WEIGHTS {
        return None;
    }
    let images = p.images.as_const().unwrap_or(1);
    let (reach, stride) = (p.follower.reach, p.follower.stride);
    let again = (reach - stride).max(0);
    let known = |d: Dim| d.as_const().unwrap_or(ASSUMED);
    let (rows, wide) = (known(p.rows), known(p.padded.1));
    let bytes = |rows: i64, width: i64| 4 * rows * wide * width;
    let cuts = WIDTHS
        .iter()
        .filter(|w| p.maker.channels % **w == 0 && bytes(reach.max(stride), **w) <= NEAR_ROWS)
        .flat_map(|w| (1..=BANDS).map(|b| (*w, b)));
    // Recomputing the shared rows of two bands must cost less than the saved memory traffic.
    let most = |rows: Dim| (rows * SAVED).ceil_div((again * depth).max(1)).min(BANDS);
    let high = most(known(p.maker.size.0).into()).as_const().unwrap_or(1);
    let cuts = cuts.filter(|(_, b)| *b <= rows.min(high.max(1)));
    let idle = |(width, bands): &(i64, i64)| {
        let tasks = images * bands * (p.maker.channels / width);
        let rounds = (tasks + THREADS - 1) / THREADS;
        // In sixteenths.
        (rounds * THREADS - tasks) * 16 / (rounds * THREADS)
    };
    let (width, bands) = cuts.min_by_key(|c| (idle(c), c.1))?;
    let Some(known_rows) = p.rows.as_const() else {
        // Tall images have bands for all threads; few of them are idle.
        let bands = most(p.maker.size.0).min(p.rows).max(1);
        let rows = (p.rows + (bands - 1)).floor_div(bands);
        return Some(Cut { width, bands, rows, whole: false });
    };
    if idle(&(width, bands)) > 2 {
        return None;
    }
    let rows = (known_rows + bands - 1) / bands;
    // Fewer bands of that many rows may suffice.
    let needed = (known_rows + rows - 1) / rows;
    let high = p.padded.0.as_const().filter(|_| p.padded.1.as_const().is_some());
    let whole = bands == 1 && high.is_some_and(|high| bytes(high, width) <= NEAR);
    Some(Cut { width, bands: needed.into(), rows: rows.into(), whole })
}

/// The work of an iteration: a band of rows of some channels of an image.
struct Band<'a> {
    p: &'a Pair,
    cut: &'a Cut,
    /// Scratch of all tasks, and the slot of this one.
    scratch: Buf,
    slot: Dim,
    /// Rows of the slot.
    high: Dim,
    /// The producer's weights by groups of channels.
    weights: Buf,
    image: Dim,
    group: Dim,
    /// Rows of the result.
    from: Dim,
    to: Dim,
}

/// The producer's weights, by groups of `width` output channels.
fn grouped_weights(m: &mut Module, maker: &Maker, width: i64) -> Option<Buf> {
    let (w, along) = &maker.weights;
    let mut dims = w.dims().to_vec();
    let row = |i: usize| {
        let coeff = |j: usize| if i == *along && j == 0 { width } else { i64::from(j == i + 1) };
        (0..=w.dims().len()).map(coeff).collect()
    };
    let coeff = (0..dims.len()).map(row).collect();
    dims[*along] = width;
    dims.insert(0, maker.channels / width);
    let offset = vec![0; dims.len() - 1];
    let data = ConstData::remap(w.clone(), Remap { dims, offset, coeff })?;
    let name = m.bufs[maker.p.b.0].name.clone();
    Some(m.constant(name, Arc::new(data)))
}

fn rewrite(m: &mut Module, p: &Pair, cut: &Cut) {
    let k = p.follower.kernel;
    let (stride, reach) = (p.follower.stride, p.follower.reach);
    let (groups, bands) = (p.maker.channels / cut.width, cut.bands);
    let Some(weights) = grouped_weights(m, &p.maker, cut.width) else { return };
    let total = p.images * bands * groups;
    let most = m.syms.range(total).hi.unwrap_or(i64::MAX);
    let slots = slots(total, None).min(most.max(1));
    // Rows of a band in the image.
    let high = if cut.whole { (cut.rows - 1) * stride + reach } else { reach.max(stride).into() };
    let (name, origin) = (m.kernels[k].name.clone(), m.kernels[k].origin.clone());
    let dims = [slots.into(), high, p.padded.1, cut.width.into()];
    let scratch = m.temp(format!("{name}.band"), ElemType::F32, dims);
    let work =
        |q: &Contraction| (Dim::product(q.loops.iter().chain(&q.reduction).map(|l| l.1)) * 2).floor_div(8);
    let work = work(&p.maker.p) + work(&p.follower.p);
    let id = m.kernel(&name, &origin, |kb| {
        in_slots(kb, total, slots, &mut |kb, slot, i| {
            let (group, b) = (i.modulo(groups), i.floor_div(groups));
            let (image, b) = (b.floor_div(bands), b.modulo(bands));
            let (from, to) = (b * cut.rows, ((b + 1) * cut.rows).min(p.rows));
            let (from, to) = (kb.m.syms.simplify(from), kb.m.syms.simplify(to));
            Band { p, cut, scratch, slot, high, weights, image, group, from, to }.emit(kb);
        });
    });
    m.kernels[id].work = work;
    m.driver.pop();
    visit::splice_call(&mut m.driver, k, false, vec![Stmt::Call(id)]);
    visit::drop_calls(&mut m.driver, &|k| k == p.maker.kernel || p.fillers.contains(&k));
}

impl Band<'_> {
    /// Position of an image row in the band, which is a ring buffer unless it holds all rows.
    fn row(&self, row: Dim) -> Dim {
        if self.cut.whole { row } else { row.modulo(self.high) }
    }
    /// Range of the image rows that the producer stores.
    fn stored_rows(&self) -> (Dim, Dim) {
        let (top, rows) = (self.p.maker.from.0, self.p.maker.size.0);
        (top.into(), rows + top)
    }
    fn emit(&self, kb: &mut KernelBuilder) {
        let Pair { maker, follower, padded, .. } = self.p;
        let (zero, high, wide) = (Dim::constant(0), self.high, padded.1);
        let base = self.from * follower.stride;
        self.fill(kb, (zero, high), (zero, maker.from.1.into()));
        self.fill(kb, (zero, high), (maker.size.1 + maker.from.1, wide));
        let (top, bottom) = self.stored_rows();
        if maker.from.0 > 0 {
            self.fill(kb, (base, (base + follower.reach).min(top)), (zero, wide));
        }
        if self.cut.whole {
            self.fill(kb, (bottom, high), (zero, wide));
            self.all_rows(kb);
        } else {
            self.rows_in_turn(kb, base);
        }
    }
    /// All rows of the image, then all rows of the result.
    fn all_rows(&self, kb: &mut KernelBuilder) {
        let (maker, width) = (&self.p.maker, Dim::constant(self.cut.width));
        let top = maker.from.0;
        let rows = maker.size.0.min(self.high - top);
        kb.nest(LoopKind::Par, &[rows, maker.size.1, width], |kb, at| {
            self.make(kb, [at[0] + top, at[1], at[2]])
        });
        let columns = self.p.follower.vars.x.1;
        kb.nest(LoopKind::Par, &[self.p.rows, columns, width], |kb, at| {
            self.follow(kb, [at[0], at[1], at[2]])
        });
    }
    /// Each row of the result as soon as its window is complete, beginning at image row `base`.
    fn rows_in_turn(&self, kb: &mut KernelBuilder, base: Dim) {
        let (stride, reach) = (self.p.follower.stride, self.p.follower.reach);
        if reach > stride {
            self.reach(kb, base, base + (reach - stride));
        }
        kb.range(LoopKind::Seq, "y", self.from, self.to, |kb, y| {
            let end = y * stride + reach;
            self.reach(kb, end - stride.min(reach), end);
            let row = [self.p.follower.vars.x.1, self.cut.width.into()];
            kb.nest(LoopKind::Par, &row, |kb, at| self.follow(kb, [y, at[0], at[1]]));
        });
    }
    /// Computes rows `lo .. hi` of the image.
    fn reach(&self, kb: &mut KernelBuilder, lo: Dim, hi: Dim) {
        let (maker, (top, bottom)) = (&self.p.maker, self.stored_rows());
        let (first, last) = (kb.m.syms.simplify(lo.max(top)), kb.m.syms.simplify(hi.min(bottom)));
        if kb.m.syms.le(last, first) != Answer::Yes {
            let row = [maker.size.1, self.cut.width.into()];
            kb.range(LoopKind::Seq, "r", first, last, |kb, y| {
                kb.nest(LoopKind::Par, &row, |kb, at| self.make(kb, [y, at[0], at[1]]));
            });
        }
        if self.p.padded.0 != maker.size.0 + maker.from.0 {
            self.fill(kb, (lo.max(bottom), hi), (0.into(), self.p.padded.1));
        }
    }
    /// Fills columns `left .. right` of rows `lo .. hi`.
    fn fill(&self, kb: &mut KernelBuilder, (lo, hi): (Dim, Dim), (left, right): (Dim, Dim)) {
        let Some(fill) = self.p.fill.clone().filter(|_| left != right) else { return };
        let (lo, hi) = (kb.m.syms.simplify(lo), kb.m.syms.simplify(hi));
        if kb.m.syms.le(hi, lo) == Answer::Yes {
            return;
        }
        let row = [right - left, self.cut.width.into()];
        kb.range(LoopKind::Seq, "r", lo, hi, |kb, y| {
            kb.nest(LoopKind::Par, &row, |kb, at| {
                kb.store(self.scratch, &[self.slot, self.row(y), at[0] + left, at[1]], fill)
            });
        });
    }
    /// Computes one element of the image.
    fn make(&self, kb: &mut KernelBuilder, [y, x, c]: [Dim; 3]) {
        let Maker { p, vars, from, weights, .. } = &self.p.maker;
        let element = [self.image, self.group * self.cut.width + c, y - from.0, x];
        let filter = p.b.1.iter().enumerate().map(|(i, d)| if i == weights.1 { c } else { *d });
        let filter: Vec<Dim> = std::iter::once(self.group).chain(filter).collect();
        let weight = |e: Expr| match e {
            Expr::Load { buf, at } if buf == p.b.0 && at == p.b.1 => {
                Expr::Load { buf: self.weights, at: filter.clone() }
            }
            e => e,
        };
        let in_band = |s: Stmt| match s {
            Stmt::Store { buf, value, .. } if buf == self.p.image => {
                Stmt::Store { buf: self.scratch, at: vec![self.slot, self.row(y), x + from.1, c], value }
            }
            s => s,
        };
        let body = peel(&kb.m.kernels[self.p.maker.kernel].body).body.into_iter();
        let body: Vec<Stmt> = body
            .map(|s| in_band(s.rewrite_exprs(&mut |e| weight(e)).subst(&|s| vars.at(s, element))))
            .collect();
        fresh_regs(kb.m, &body).into_iter().for_each(|s| kb.push(s));
    }
    /// Computes one element of the result.
    fn follow(&self, kb: &mut KernelBuilder, [y, x, c]: [Dim; 3]) {
        let Follower { p, vars, .. } = &self.p.follower;
        let element = [self.image, self.group * self.cut.width + c, y, x];
        let at = |d: Dim| d.subst(&mut |s| vars.at(s, element));
        let own = vec![self.slot, self.row(at(p.a.1[2])), at(p.a.1[3]), c];
        let in_band = |e: Expr| match e {
            Expr::Load { buf, .. } if buf == self.p.image => {
                Expr::Load { buf: self.scratch, at: own.clone() }
            }
            e => e,
        };
        let body = peel(&kb.m.kernels[self.p.follower.kernel].body).body.into_iter();
        let body: Vec<Stmt> =
            body.map(|s| s.subst(&|s| vars.at(s, element)).rewrite_exprs(&mut |e| in_band(e))).collect();
        fresh_regs(kb.m, &body).into_iter().for_each(|s| kb.push(s));
    }
}
