//! Convolutions as F(m, r) along one dimension of the image: m + r - 1 rows of products instead of m * r.
//!
//! ```text
//! U = G g      once, here, in f64          [m + r - 1][K][C][other taps]
//! V = B' d     from m + r - 1 rows         [slot][m + r - 1][tiles][the image's other dimensions]
//! M = V U      m + r - 1 convolutions      [slot][m + r - 1][tiles][the result's other dimensions][K]
//! Y = A' M     and the epilogue, m stores
//! ```
//!
//! What the products save is less than in two dimensions, but each value of V serves all taps and strides of
//! the other dimension, and so do the transforms: this pays with few channels, with filters of five or seven
//! taps, with filters that are long in one direction. Of the planes of a three-dimensional image, a group has
//! one row each if filters have one tap across rows.

use super::plan::Side;
use super::points::Form;
use crate::nest::{BinOp, Buf, Expr, Kernel, KernelBuilder, Layout, LoopKind, Module, Stmt, visit};
use crate::passes::nest::analysis::form::{Contraction, Convolution, ProductKind};
use crate::passes::nest::analysis::machine::L2;
use crate::passes::nest::analysis::shape::{finished, fresh_regs, in_slots};
use crate::passes::nest::analysis::strides::stride;
use crate::sym::{Dim, Sym};
use crate::tensor::{ConstData, ElemType};
use std::sync::Arc;

/// Iterations of the parallel loop at most, and so copies of V and M.
const SLOTS: i64 = 16;
/// Maximum bytes of U, and of V and M of a group: they stay in the second-level cache together.
const MOST_WEIGHTS: i64 = L2;
const NEAR: i64 = L2 / 4;
/// Sufficient rows of a group's products, and the number if U is larger than this.
const ROWS: i64 = 12;
const MORE_ROWS: i64 = 24;
const LARGE: i64 = L2 / 4;
/// Assumed number of tiles if it is a run-time value.
const MANY: i64 = 1 << 20;
/// Minimum share of the rows of all groups that exist, in images of ordinary run-time size.
const USED: f64 = 0.8;
/// Image sizes of networks, which stand for a run-time size.
const SIZES: [i64; 8] = [7, 8, 12, 14, 16, 28, 32, 56];
/// Lanes of the longest vectors.
const LANES: i64 = 16;

/// A convolution and the dimension along which it is to be transformed.
pub(super) struct Line {
    parts: Contraction,
    form: Form,
    /// Batch, where there is a loop.
    n: Option<(Sym, Dim)>,
    /// Output channels.
    k: (Sym, i64),
    /// The dimension's loop.
    y: (Sym, Dim),
    /// Its index in the subscripts of image and weights.
    axis: usize,
    /// Where the window of the first result begins.
    from: i64,
    /// The loop over a dimension without taps, and its index in the subscripts, of which a group has one
    /// position.
    across: Option<((Sym, Dim), usize)>,
    /// The loops over other dimensions of the result.
    others: Vec<(Sym, Dim)>,
    /// The weights and their shape.
    weights: Arc<ConstData>,
    shape: Vec<i64>,
    /// Minimum speedup of the transform.
    least: f64,
}

/// The convolution in this form, along the dimension and with the tile size of the least time; `None` if the
/// direct sum is as fast.
pub(super) fn layer(m: &Module, p: &Contraction, speed: f64) -> Option<Line> {
    (2..p.a.1.len())
        .flat_map(|axis| Form::all(taps(p, axis)).filter_map(move |form| along(m, p, axis, form)))
        .map(|l| Line { least: GAIN * speed, ..l })
        .filter(|l| match l.y.1.as_const() {
            Some(_) => l.gain(m) >= l.least,
            // `pays` is asked at run time.
            None => l.full_gain(m) >= l.least,
        })
        .max_by(|a, b| a.gain(m).total_cmp(&b.gain(m)))
}

/// Taps along a dimension; 1 if it has no loop over taps.
fn taps(p: &Contraction, axis: usize) -> usize {
    let tap = p.b.1.get(axis).and_then(|d| d.as_sym());
    p.reduction
        .iter()
        .find(|d| Some(d.0) == tap)
        .and_then(|d| usize::try_from(d.1.as_const()?).ok())
        .filter(|n| *n > 1)
        .unwrap_or(usize::MAX)
}

fn along(m: &Module, p: &Contraction, axis: usize, form: Form) -> Option<Line> {
    let conv = Convolution::of(p).filter(|_| p.product == ProductKind::Fma)?;
    let side = conv.unit_window(axis)?;
    let (y, k) = (side.along, conv.filters);
    if m.bufs[p.a.0].ty != ElemType::F32 || m.storage(p.a.0) != p.a.0 {
        return None;
    }
    let weights = m.constant_data(p.b.0).filter(|w| w.elem().is_float())?;
    let shape = m.bufs[p.b.0].dims.iter().map(|d| d.as_const()).collect::<Option<Vec<i64>>>()?;
    if shape.get(axis) != i64::try_from(form.taps()).ok().as_ref() {
        return None;
    }
    // Vectors run along the contiguous dimension of the image and along the channels of the result.
    let (out, to) = p.store()?;
    if stride(m, p.a.0, &p.a.1, y.0) == Some(1) || stride(m, out, &to, k.0) != Some(1) {
        return None;
    }
    let mut others: Vec<(Sym, Dim)> = conv.positions.iter().copied().filter(|l| l.0 != y.0).collect();
    // The outermost of several loops; the others are rows of the products.
    let single = |l: (Sym, Dim)| p.a.1.iter().position(|d| *d == Dim::sym(l.0)).map(|dim| (l, dim));
    let across = others.first().filter(|_| others.len() > 1).and_then(|l| single(*l));
    others.retain(|l| across.is_none_or(|a| a.0 != *l));
    Some(Line {
        parts: p.clone(),
        form,
        n: conv.batch,
        k: (k.0, k.1.as_const()?),
        y,
        axis,
        from: side.first,
        across,
        others,
        weights: weights.clone(),
        shape,
        least: GAIN,
    })
}

/// Minimum speedup of products and transforms, as counted here.
const GAIN: f64 = 1.3;

impl Line {
    /// Results and products of a tile.
    fn results(&self) -> i64 {
        self.form.results() as i64
    }
    fn products(&self) -> i64 {
        self.form.products() as i64
    }
    /// Terms of a reduction that are not along the dimension.
    fn depth(&self) -> Option<i64> {
        let terms = self.parts.reduction.iter().try_fold(1, |n, d| Some(n * d.1.as_const()?))?;
        Some(terms / self.form.taps() as i64)
    }
    /// Bytes of U.
    fn bytes(&self) -> i64 {
        4 * self.products() * self.depth().unwrap_or(0) * self.k.1
    }
    /// The dimensions of the image other than batch, this one and the one across groups, in memory order.
    fn kept(&self, m: &Module) -> Vec<usize> {
        let order: Vec<usize> = match &m.bufs[self.parts.a.0].layout {
            Layout::RowMajor => (0..self.parts.a.1.len()).collect(),
            Layout::Permuted(order) => order.clone(),
        };
        let across = self.across.map(|a| a.1);
        order.into_iter().filter(|d| *d != 0 && *d != self.axis && Some(*d) != across).collect()
    }
    /// Existing rows, as a share of those that are computed: of all groups, or of all tiles for a run-time
    /// number, with the mean of `SIZES`.
    fn used(&self, m: &Module) -> f64 {
        let of = |y: i64, size: i64| y as f64 / (((y + size - 1) / size * size) as f64).max(1.0);
        match self.y.1.as_const() {
            Some(y) => of(y, self.results() * self.tiles(m)),
            None => SIZES.map(|y| of(y, self.results())).iter().sum::<f64>() / SIZES.len() as f64,
        }
    }
    /// Time of the direct sum divided by that of the transform.
    fn gain(&self, m: &Module) -> f64 {
        self.full_gain(m) * self.used(m)
    }
    /// The same if all rows of a group exist, both in vector multiply-adds for a row of result tiles; 0 if
    /// the transform does not apply.
    fn full_gain(&self, m: &Module) -> f64 {
        let Some(depth) = self.depth() else { return 0.0 };
        let (n, r) = (self.products(), self.results());
        if self.k.1 < LANES || self.bytes() > MOST_WEIGHTS {
            return 0.0;
        }
        let vectors = ((self.k.1 + LANES - 1) / LANES) as f64;
        let (n, r, depth) = (n as f64, r as f64, depth as f64);
        let direct = r * self.form.taps() as f64 * depth * vectors;
        // A store takes as long as two multiply-adds. A value of V serves several adjacent results.
        let read = self
            .kept(m)
            .into_iter()
            .map(|d| self.parts.a.1.get(d).map_or(1, |d| self.steps(*d)))
            .product::<i64>() as f64;
        let input = read / LANES as f64 * (3.0 * n + 2.0 * n);
        let output = vectors * (2.0 * n + n * r / 2.0);
        direct / (n * depth * vectors + input + output)
    }
    /// The condition on a run-time number of rows under which the transform is faster; `None` if it is in
    /// all images of ordinary size.
    fn pays(&self, m: &Module) -> Option<Expr> {
        let (rows, gain) = (self.y.1, self.full_gain(m));
        if rows.as_const().is_some() || self.tiles(m) == 1 && gain * USED >= self.least {
            return None;
        }
        // The gain for the share of rows that exist, in percent.
        let all = rows.ceil_div(self.results()) * self.results();
        let percent = |x: f64| (x * 100.0) as i64;
        Some(Expr::cmp_index(BinOp::Ge, rows * percent(gain), all * percent(self.least)))
    }
    /// Image elements per result along a dimension: those of the channels, and the stride.
    fn steps(&self, at: Dim) -> i64 {
        match self.others.iter().find_map(|l| at.linear_in(l.0).filter(|_| at.contains(l.0))) {
            Some((stride, _)) => stride.as_const().unwrap_or(1),
            None => self
                .parts
                .reduction
                .iter()
                .filter(|d| at.contains(d.0))
                .filter_map(|d| d.1.as_const())
                .product(),
        }
    }
    /// G g for all channels, `[m + r - 1][K][C][other taps]`.
    fn filters(&self) -> Option<Arc<ConstData>> {
        let (dims, taps, products) = (&self.shape, self.form.taps(), self.form.products());
        self.weights.derive(format!("winograd F({products}, {taps}) of {dims:?}, {}", self.axis), || {
            let inner = dims.get(self.axis + 1..)?.iter().product::<i64>() as usize;
            let outer = dims.get(..self.axis)?.iter().product::<i64>() as usize;
            let (w, rows) = (self.weights.to_f64s()?, self.form.filter());
            let mut out = vec![0f32; products * outer * inner];
            for (o, filter) in w.chunks_exact(taps * inner).enumerate() {
                for (e, row) in rows.iter().enumerate() {
                    for i in 0..inner {
                        let sum = row.iter().enumerate().map(|(t, c)| c * filter[t * inner + i]).sum::<f64>();
                        out[(e * outer + o) * inner + i] = sum as f32;
                    }
                }
            }
            let shape = [self.products()]
                .into_iter()
                .chain(dims.iter().enumerate().filter(|d| d.0 != self.axis).map(|d| *d.1))
                .collect();
            Some(ConstData::f32s(shape, &out))
        })
    }
    /// Tiles of a group: enough for the rows of a product, as long as V and M stay in the cache.
    fn tiles(&self, m: &Module) -> i64 {
        let all = self.y.1.ceil_div(self.results()).as_const().unwrap_or(MANY);
        let row = Dim::product(self.others.iter().map(|l| l.1)).as_const();
        let image = self
            .kept(m)
            .into_iter()
            .map(|d| m.bufs[self.parts.a.0].dims.get(d).and_then(|d| d.as_const()))
            .try_fold(1, |n, d| Some(n * d?));
        let (Some(row), Some(image)) = (row, image) else { return 1 };
        let rows = if self.bytes() > LARGE { MORE_ROWS } else { ROWS };
        let most = (NEAR / (4 * self.products() * (image + row * self.k.1)).max(1)).min(all).max(1);
        let enough = ((rows + row - 1) / row.max(1)).min(most);
        // As few as possible beyond the last tile.
        (enough..=most.min(2 * enough)).min_by_key(|t| (all + t - 1) / t * t).unwrap_or(enough)
    }
}

/// Replaces the kernel.
pub(super) fn rewrite(m: &mut Module, k: Kernel, l: &Line) {
    let Some(u) = l.filters() else { return };
    let (name, origin) = (m.kernels[k].name.clone(), m.kernels[k].origin.clone());
    let u = m.constant(format!("{}.winograd", m.bufs[l.parts.b.0].name), u);
    let size = l.tiles(m);
    let all = l.y.1.ceil_div(l.results());
    let groups = all.ceil_div(size);
    let across = l.across.map_or(Dim::constant(1), |a| a.0.1);
    let total = groups * across * l.n.map_or(Dim::constant(1), |n| n.1);
    let slots = total.as_const().map_or(SLOTS, |t| t.clamp(1, SLOTS));
    let kept = l.kept(m);
    let part = [Dim::constant(slots), Dim::constant(l.products()), Dim::constant(size)];
    let image: Vec<Dim> = kept.iter().filter_map(|d| m.bufs[l.parts.a.0].dims.get(*d).copied()).collect();
    let row: Vec<Dim> = l.others.iter().map(|o| o.1).collect();
    let v = m.temp(format!("{name}.v"), ElemType::F32, [part.as_slice(), &image].concat());
    let mm =
        m.temp(format!("{name}.m"), ElemType::F32, [part.as_slice(), &row, &[Dim::constant(l.k.1)]].concat());
    let bufs = Buffers { kept, u, v, m: mm };
    let sums = Dim::product(l.parts.loops.iter().map(|x| x.1)) * l.depth().unwrap_or(1);
    let id = m.kernel(&name, &origin, |kb| {
        in_slots(kb, total, slots, &mut |kb, slot, i| {
            let first = i.modulo(groups) * size;
            // The last group has fewer tiles; those beyond a known number repeat the last tile instead, so
            // that the number of rows of the products is known.
            let count = match (all.as_const(), size) {
                (None, 2..) => kb.m.syms.simplify((all - first).min(size)),
                _ => Dim::constant(size),
            };
            let whole = all.as_const().is_none_or(|n| n % size == 0);
            let at = |t: Dim| At {
                image: i.floor_div(groups * across),
                across: i.floor_div(groups).modulo(across),
                tile: if whole { first + t } else { (first + t).min(all - 1) },
                all,
            };
            kb.nest(LoopKind::Seq, &[count], |kb, t| input(kb, l, &bufs, &at(t[0]), [slot, t[0]]));
            products(kb, l, &bufs, slot, count);
            kb.nest(LoopKind::Seq, &[count], |kb, t| output(kb, l, &bufs, &at(t[0]), [slot, t[0]]));
        });
    });
    m.kernels[id].work = (sums * l.products()).floor_div(4 * l.results());
    m.driver.truncate(m.driver.len() - 1);
    let call = match l.pays(m) {
        Some(cond) => Stmt::If { cond, then: vec![Stmt::Call(id)], els: vec![Stmt::Call(k)] },
        None => Stmt::Call(id),
    };
    visit::splice_call(&mut m.driver, k, false, vec![call]);
}

/// U, V and M.
struct Buffers {
    u: Buf,
    v: Buf,
    m: Buf,
    /// Dimensions of the image that V has, too.
    kept: Vec<usize>,
}

/// The tile, image and position across groups of an iteration.
struct At {
    image: Dim,
    across: Dim,
    tile: Dim,
    /// Number of tiles.
    all: Dim,
}

/// V of one tile.
fn input(kb: &mut KernelBuilder, l: &Line, bufs: &Buffers, at: &At, place: [Dim; 2]) {
    let src = l.parts.a.0;
    let dims = kb.m.bufs[src].dims.clone();
    let extents: Vec<Dim> = bufs.kept.iter().filter_map(|d| dims.get(*d).copied()).collect();
    let last = dims.get(l.axis).map_or(Dim::constant(0), |d| *d - 1);
    let side = Side { size: l.results(), tiles: at.all, last };
    kb.nest(LoopKind::Par, &extents, |kb, o| {
        let d: Vec<Expr> = (0..l.products())
            .map(|y| {
                let y = side.position(at.tile, y + l.from);
                let from: Vec<Dim> = (0..dims.len())
                    .map(|d| match bufs.kept.iter().position(|k| *k == d) {
                        Some(i) => o.get(i).copied().unwrap_or(at.image),
                        None if d == l.axis => y,
                        None if l.across.is_some_and(|a| a.1 == d) => at.across,
                        None => l.n.map_or(Dim::constant(0), |_| at.image),
                    })
                    .collect();
                let e = kb.load(src, &from);
                kb.let_(e)
            })
            .collect();
        for (e, value) in l.form.input(kb, &d).into_iter().enumerate() {
            kb.store(bufs.v, &[&[place[0], Dim::from(e as i64), place[1]], o].concat(), value);
        }
    });
}

/// M of a group: one convolution for each row of V.
fn products(kb: &mut KernelBuilder, l: &Line, bufs: &Buffers, slot: Dim, tiles: Dim) {
    let extents: Vec<Dim> = [Dim::constant(l.products()), tiles]
        .into_iter()
        .chain(l.others.iter().map(|o| o.1))
        .chain([Dim::constant(l.k.1)])
        .collect();
    kb.nest(LoopKind::Par, &extents, |kb, o| {
        let (Some((e, rest)), Some(k)) = (o.split_first(), o.last()) else { return };
        let acc = kb.acc(Expr::f32(0.0));
        let tap = l.parts.b.1.get(l.axis).and_then(|d| d.as_sym());
        let depth: Vec<(Sym, Dim)> = l.parts.reduction.iter().copied().filter(|d| Some(d.0) != tap).collect();
        let extents: Vec<Dim> = depth.iter().map(|d| d.1).collect();
        kb.nest(LoopKind::Seq, &extents, |kb, c| {
            let put = |s: Sym| {
                let other = l.others.iter().position(|x| x.0 == s).and_then(|i| rest.get(i + 1));
                other
                    .or_else(|| depth.iter().position(|x| x.0 == s).and_then(|i| c.get(i)))
                    .copied()
                    .or_else(|| (s == l.k.0).then_some(*k))
            };
            let of = |at: &Dim| at.subst(&mut |s| put(s));
            let image = bufs.kept.iter().filter_map(|d| l.parts.a.1.get(*d)).map(of);
            let from: Vec<Dim> = [slot, *e].into_iter().chain(rest.first().copied()).chain(image).collect();
            let weight: Vec<Dim> = [*e]
                .into_iter()
                .chain(l.parts.b.1.iter().enumerate().filter(|d| d.0 != l.axis).map(|d| of(d.1)))
                .collect();
            let (x, y) = (kb.load(bufs.v, &from), kb.load(bufs.u, &weight));
            kb.set(acc, Expr::fma(x, y, Expr::acc(acc)));
        });
        kb.store(bufs.m, &[&[slot], o].concat(), Expr::acc(acc));
    });
}

/// The results of one tile. Results beyond the image are stored to its last row, which is stored again
/// afterwards.
fn output(kb: &mut KernelBuilder, l: &Line, bufs: &Buffers, at: &At, place: [Dim; 2]) {
    let extents: Vec<Dim> = l.others.iter().map(|o| o.1).chain([Dim::constant(l.k.1)]).collect();
    let side = Side { size: l.results(), tiles: at.all, last: l.y.1 - 1 };
    kb.nest(LoopKind::Par, &extents, |kb, o| {
        let values: Vec<Expr> = (0..l.products())
            .map(|e| {
                let e = kb.load(bufs.m, &[&[place[0], Dim::from(e), place[1]], o].concat());
                kb.let_(e)
            })
            .collect();
        for (j, value) in l.form.output(kb, &values).into_iter().enumerate().rev() {
            let y = side.position(at.tile, j as i64);
            let put = |s: Sym| match s {
                s if s == l.k.0 => o.last().copied(),
                s if s == l.y.0 => Some(y),
                s if l.across.is_some_and(|a| a.0.0 == s) => Some(at.across),
                s => l
                    .others
                    .iter()
                    .position(|x| x.0 == s)
                    .and_then(|i| o.get(i).copied())
                    .or_else(|| l.n.filter(|n| n.0 == s).map(|_| at.image)),
            };
            for s in fresh_regs(kb.m, &l.parts.epilogue) {
                kb.push(finished(s, l.parts.acc, &value, &put));
            }
        }
    });
}
