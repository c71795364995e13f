//! fuse_depthwise: a depthwise convolution runs behind the convolution that makes its image, some channels
//! and rows at a time, and reads what is still in the cache.
//!
//! ```text
//! par images, bands of rows, groups of channels {
//!     border = fill
//!     seq y { the rows of the image that the window has reached; a row of the depthwise convolution }
//! }
//! ```
//!
//! The image is wide where it stands between an expanding and a projecting convolution, and is never written
//! as a whole. A band lies in scratch that each task has for itself (`nest`, rule 12). Rows that two
//! bands share are computed for both, with the same sums: results do not depend on how the work is cut.
//! Groups share nothing, so that small images have a single band.

use crate::diag::Result;
use crate::nest::{Buf, Expr, Kernel, KernelBuilder, Layout, LoopKind, Math, Module, Place, Stmt, visit};
use crate::passes::nest::analysis::form::{Contraction, ProductKind, Slide, depends};
use crate::passes::nest::analysis::machine::{L1, L2, THREADS};
use crate::passes::nest::analysis::shape::{Uses, fresh_regs, in_slots, is_temp, peel};
use crate::passes::nest::fuse::fuse_epilogues::copies;
use crate::sym::{Answer, Dim, Sym};
use crate::target::Level;
use crate::tensor::{ConstData, ElemType, consts::Remap};
use std::sync::Arc;

/// Iterations of the parallel loop at most, and so bands in scratch.
const SLOTS: i64 = 32;
/// Channels of a group: whole vectors on every level, in panels that tiles like. The first ones are
/// preferred.
const WIDTHS: [i64; 3] = [32, 48, 64];
/// Bands of an image at most.
const BANDS: i64 = 4;
/// Bytes of a band that stay in the first-level cache.
const NEAR: i64 = L1 * 11 / 12;
/// Bytes of the maker's weights at most: tiles of a kernel of its own prefetch more of them in time.
const NEAR_WEIGHTS: i64 = L2 / 4;
/// Multiply-adds that take as long as an element of the image on its way to an outer cache and back,
/// measured.
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

/// Variables of one convolution: image, channel, row, column.
struct Vars {
    n: Option<Sym>,
    c: Sym,
    y: Sym,
    x: Sym,
}

/// A convolution and the depthwise one behind it.
struct Pair {
    /// Who computes the image, and who fills its border, with what.
    maker: Kernel,
    follower: Kernel,
    fillers: Vec<Kernel>,
    fill: Option<Expr>,
    make: (Contraction, Vars),
    follow: (Contraction, Vars),
    image: Buf,
    images: Dim,
    channels: i64,
    /// Rows and columns of the padded image, of what the maker stores, and where that begins.
    padded: (i64, i64),
    inner: (i64, i64),
    from: (i64, i64),
    /// Rows of the result; by how many rows of the image a window moves, and how many it reaches.
    rows: i64,
    stride: i64,
    reach: i64,
    /// The weights of the maker by output channel, and which dimension that is.
    weights: (Arc<ConstData>, usize),
}

fn extent(list: &[(Sym, Dim)], s: Sym) -> Option<Dim> {
    list.iter().find(|l| l.0 == s).map(|l| l.1)
}

/// The loop variable of a subscript besides a number, and that number.
fn shifted(list: &[(Sym, Dim)], d: &Dim) -> Option<(Sym, i64)> {
    let (rest, from) = d.split_const();
    let s = rest.as_sym()?;
    extent(list, s).map(|_| (s, from))
}

/// A constant in the shape in which it is read.
fn constant(m: &Module, b: Buf) -> Option<Arc<ConstData>> {
    let owner = m.storage(b);
    let Place::Const(data) = &m.bufs[owner].place else { return None };
    if m.bufs[owner].layout != Layout::RowMajor || m.is_recast(b) {
        return None;
    }
    if owner == b {
        return Some(data.clone());
    }
    let dims: Option<Vec<i64>> = m.bufs[b].dims.iter().map(|d| d.as_const()).collect();
    data.reshaped(dims?).map(Arc::new)
}

fn pair(m: &Module, uses: &Uses, k: Kernel) -> Option<Pair> {
    let d = m.form(k).contraction().filter(|p| p.product == ProductKind::Fma)?;
    let image = d.a.0;
    let data = &m.bufs[image];
    let [n, c, y, x] = d.a.1.as_slice() else { return None };
    let inner = data.layout == Layout::Permuted(vec![0, 2, 3, 1]) && data.ty == ElemType::F32;
    if !inner
        || !is_temp(m, image)
        || uses.readers(image) != [k]
        || uses.pinned(image)
        || d.epilogue.iter().any(|s| s.loads().contains(&image))
    {
        return None;
    }
    // The depthwise one: a channel is its own.
    let c = c.as_sym().filter(|c| extent(&d.loops, *c).is_some() && depends(&d.b.1, *c))?;
    let window = |at: &Dim| {
        let s = Slide::of(*at, &d.loops, &d.reduction).filter(|s| s.first == 0)?;
        Some((s.along, s.step, s.dilation * (s.tap?.1.as_const()? - 1) + 1))
    };
    let ((dy, stride, reach), (dx, _, _)) = (window(y)?, window(x)?);
    let batch = |list: &[(Sym, Dim)], n: &Dim| match (n.as_sym(), n.as_const()) {
        (Some(s), _) => extent(list, s).map(|_| Some(s)),
        (_, Some(0)) => Some(None),
        _ => None,
    };
    let dn = batch(&d.loops, n)?;
    if dy.0 == dx.0
        || dy.0 == c
        || dx.0 == c
        || d.loops.len() != 3 + usize::from(dn.is_some())
        || depends(&d.b.1, dy.0)
        || depends(&d.b.1, dx.0)
    {
        return None;
    }
    // Who makes its image.
    let (makers, fillers): (Vec<Kernel>, Vec<Kernel>) =
        uses.writers(image).iter().partition(|w| m.form(**w).contraction().is_some());
    let [maker] = makers.as_slice() else { return None };
    let p = m.form(*maker).contraction().filter(|p| p.product == ProductKind::Fma)?;
    let (_, at) = p.store().filter(|store| store.0 == image)?;
    let [pn, pc, py, px] = at.as_slice() else { return None };
    let pn = batch(&p.loops, pn)?;
    let (pc, (py, top), (px, left)) = (pc.as_sym()?, shifted(&p.loops, py)?, shifted(&p.loops, px)?);
    let distinct = py != px && py != pc && px != pc && pn.is_none_or(|n| n != py && n != px && n != pc);
    let reads: bool = visit::loads(&m.kernels[*maker].body).contains(&image);
    if *maker == k
        || reads
        || !distinct
        || p.loops.len() != 3 + usize::from(pn.is_some())
        || pn.is_some() != dn.is_some()
        || !uses.may_move(m, *maker, k)
    {
        return None;
    }
    // Its weights, which are cut by output channel.
    let weights = constant(m, p.b.0)?;
    let along: Vec<usize> = (0..p.b.1.len()).filter(|i| p.b.1[*i].contains(pc)).collect();
    let [along] = along.as_slice() else { return None };
    if p.b.1[*along].as_sym() != Some(pc)
        || depends(&p.a.1, pc)
        || p.reduction.iter().any(|l| l.1.as_const().is_none())
    {
        return None;
    }
    let size = |list: &[(Sym, Dim)], s: Sym| extent(list, s).and_then(|d| d.as_const());
    let (channels, high, wide) = (size(&p.loops, pc)?, size(&p.loops, py)?, size(&p.loops, px)?);
    let (rows, padded) = (size(&d.loops, dy.0)?, (data.dims[2].as_const()?, data.dims[3].as_const()?));
    // No more border above than the first window reaches.
    let same = top <= reach.min((rows - 1) * stride + reach - 1)
        && data.dims[1].as_const() == Some(channels)
        && size(&d.loops, c) == Some(channels)
        && weights.dims()[*along] == channels
        && rows > 0;
    // The border holds one number.
    let number = |n: i64| Dim::constant(n);
    let within = [
        (number(0), data.dims[0] - 1),
        (number(0), number(channels - 1)),
        (number(top), number(top + high - 1)),
        (number(left), number(left + wide - 1)),
    ];
    let mut fill: Option<Expr> = None;
    let mut fine = same && top >= 0 && left >= 0;
    for f in &fillers {
        match m.form(*f).map().map(|map| &map.value) {
            Some(value @ Expr::Const(_)) if fill.as_ref().is_none_or(|f| f == value) => {
                fill = Some(value.clone())
            }
            _ => fine = false,
        }
        fine &= uses.may_move(m, *f, k) && copies::disjoint(m, *f, image, &within);
    }
    let border = (top, left) != (0, 0) || (high, wide) != padded;
    if !fine || border && fill.is_none() {
        return None;
    }
    Some(Pair {
        maker: *maker,
        follower: k,
        fillers,
        fill: fill.filter(|_| border),
        weights: (weights, *along),
        images: data.dims[0],
        image,
        channels,
        padded,
        inner: (high, wide),
        from: (top, left),
        rows,
        stride,
        reach,
        follow: (d.clone(), Vars { n: dn, c, y: dy.0, x: dx.0 }),
        make: (p.clone(), Vars { n: pn, c: pc, y: py, x: px }),
    })
}

/// How the work is cut.
struct Cut {
    /// Channels of a group.
    width: i64,
    /// Rows of the result of a band.
    rows: i64,
    /// Whether all rows of the image are made before any of the result is: there is a single band then.
    whole: bool,
}

/// Cuts the work so that a few threads get equal shares; `None` where it is better left as two kernels.
fn cut(p: &Pair) -> Option<Cut> {
    let depth: i64 = p.make.0.reduction.iter().filter_map(|d| d.1.as_const()).product();
    if 4 * depth * p.channels > NEAR_WEIGHTS {
        return None;
    }
    let images = p.images.as_const().unwrap_or(1);
    let again = (p.reach - p.stride).max(0);
    let bytes = |rows: i64, width: i64| 4 * rows * p.padded.1 * width;
    let cuts = WIDTHS
        .iter()
        .filter(|w| p.channels % **w == 0 && bytes(p.reach.max(p.stride), **w) <= NEAR)
        .flat_map(|w| (1..=BANDS).map(|b| (*w, b)));
    // Sums of rows that two bands have in common cost less than what memory would.
    let cuts = cuts.filter(|(_, b)| *b <= p.rows && (b - 1) * again * depth < SAVED * p.inner.0);
    let idle = |(width, bands): &(i64, i64)| {
        let tasks = images * bands * (p.channels / width);
        let rounds = (tasks + THREADS - 1) / THREADS;
        // In parts of sixteen.
        (rounds * THREADS - tasks) * 16 / (rounds * THREADS)
    };
    let (width, bands) = cuts.min_by_key(|c| (idle(c), c.1)).filter(|c| idle(c) <= 2)?;
    Some(Cut {
        width,
        rows: (p.rows + bands - 1) / bands,
        whole: bands == 1 && bytes(p.padded.0, width) <= NEAR,
    })
}

/// What an iteration works on.
struct Here {
    slot: Dim,
    image: Dim,
    group: Dim,
    /// The row of the image that is the first one in scratch.
    base: Dim,
    band: Buf,
    weights: Buf,
    /// Rows and channels of a band.
    high: i64,
    width: i64,
    whole: bool,
}

impl Here {
    /// Where a row of the image lies in the band: a ring, unless it holds all rows.
    fn row(&self, row: Dim) -> Dim {
        if self.whole { row } else { row.modulo(self.high) }
    }
}

fn rewrite(m: &mut Module, p: &Pair, cut: &Cut) {
    let k = p.follower;
    let (groups, bands) = (p.channels / cut.width, (p.rows + cut.rows - 1) / cut.rows);
    // Weights of each group.
    let (w, along) = &p.weights;
    let mut dims = w.dims().to_vec();
    let coeff = (0..dims.len())
        .map(|i| {
            (0..=dims.len())
                .map(|j| if i == *along && j == 0 { cut.width } else { i64::from(j == i + 1) })
                .collect()
        })
        .collect();
    dims[*along] = cut.width;
    dims.insert(0, groups);
    let offset = vec![0; dims.len() - 1];
    let Some(data) = ConstData::remap(w.clone(), Remap { dims, offset, coeff }) else { return };
    let weights = m.constant(m.bufs[p.make.0.b.0].name.clone(), Arc::new(data));
    let total = p.images * (groups * bands);
    let slots = total.as_const().map_or(SLOTS, |t| t.min(SLOTS));
    // Rows of a band in the image.
    let high = if cut.whole { (cut.rows - 1) * p.stride + p.reach } else { p.reach.max(p.stride) };
    let constant = Dim::constant;
    let (name, origin) = (m.kernels[k].name.clone(), m.kernels[k].origin.clone());
    let band =
        m.temp(format!("{name}.band"), ElemType::F32, [slots, high, p.padded.1, cut.width].map(constant));
    let work =
        |q: &Contraction| (Dim::product(q.loops.iter().chain(&q.reduction).map(|l| l.1)) * 2).floor_div(8);
    let work = work(&p.make.0) + work(&p.follow.0);
    let id = m.kernel(&name, &origin, |kb| {
        in_slots(kb, total, slots, &mut |kb, slot, i| {
            let (group, b) = (i.modulo(groups), i.floor_div(groups));
            let (image, b) = (b.floor_div(bands), b.modulo(bands));
            let from = b * cut.rows;
            let to = if p.rows % cut.rows == 0 {
                from + cut.rows
            } else {
                (from + cut.rows).min(constant(p.rows))
            };
            let h = Here {
                slot,
                image,
                group,
                base: from * p.stride,
                band,
                weights,
                high,
                width: cut.width,
                whole: cut.whole,
            };
            let (top, bottom) = (constant(p.from.0), constant(p.from.0 + p.inner.0));
            filled(kb, p, &h, (constant(0), constant(high)), (0, p.from.1));
            filled(kb, p, &h, (constant(0), constant(high)), (p.from.1 + p.inner.1, p.padded.1));
            if p.from.0 > 0 {
                filled(kb, p, &h, (h.base, (h.base + p.reach).min(top)), (0, p.padded.1));
            }
            if cut.whole {
                filled(kb, p, &h, (bottom, constant(high)), (0, p.padded.1));
                kb.nest(
                    LoopKind::Par,
                    &[constant(p.inner.0.min(high - p.from.0)), constant(p.inner.1), constant(cut.width)],
                    |kb, at| make(kb, p, &h, cut, at[0] + p.from.0, at[1], at[2]),
                );
                kb.nest(LoopKind::Par, &[constant(p.rows), columns(p), constant(cut.width)], |kb, at| {
                    follow(kb, p, &h, cut, at[0], at[1], at[2])
                });
                return;
            }
            // Rows of the image as the window reaches them.
            let reached = |kb: &mut KernelBuilder, lo: Dim, hi: Dim| {
                let (first, last) = (kb.m.syms.simplify(lo.max(top)), kb.m.syms.simplify(hi.min(bottom)));
                if kb.m.syms.le(last, first) != Answer::Yes {
                    kb.range(LoopKind::Seq, "r", first, last, |kb, row| {
                        kb.nest(LoopKind::Par, &[constant(p.inner.1), constant(cut.width)], |kb, at| {
                            make(kb, p, &h, cut, row, at[0], at[1])
                        });
                    });
                }
                if p.padded.0 > p.from.0 + p.inner.0 {
                    filled(kb, p, &h, (lo.max(bottom), hi), (0, p.padded.1));
                }
            };
            if p.reach > p.stride {
                reached(kb, h.base, h.base + (p.reach - p.stride));
            }
            kb.range(LoopKind::Seq, "y", from, to, |kb, y| {
                let end = y * p.stride + p.reach;
                reached(kb, end - p.stride.min(p.reach), end);
                kb.nest(LoopKind::Par, &[columns(p), constant(cut.width)], |kb, at| {
                    follow(kb, p, &h, cut, y, at[0], at[1])
                });
            });
        });
    });
    m.kernels[id].work = work;
    m.driver.pop();
    visit::splice_call(&mut m.driver, k, false, vec![Stmt::Call(id)]);
    visit::drop_calls(&mut m.driver, &|k| k == p.maker || p.fillers.contains(&k));
}

/// Columns of the result.
fn columns(p: &Pair) -> Dim {
    extent(&p.follow.0.loops, p.follow.1.x).unwrap_or_default()
}

/// Fills columns `left .. right` of some rows of a band.
fn filled(kb: &mut KernelBuilder, p: &Pair, h: &Here, (lo, hi): (Dim, Dim), (left, right): (i64, i64)) {
    let Some(fill) = p.fill.clone().filter(|_| left < right) else { return };
    let (lo, hi) = (kb.m.syms.simplify(lo), kb.m.syms.simplify(hi));
    if kb.m.syms.le(hi, lo) == Answer::Yes {
        return;
    }
    kb.range(LoopKind::Seq, "r", lo, hi, |kb, row| {
        kb.nest(LoopKind::Par, &[Dim::constant(right - left), Dim::constant(h.width)], |kb, at| {
            kb.store(h.band, &[h.slot, h.row(row), at[0] + left, at[1]], fill)
        });
    });
}

/// One element of the image.
fn make(kb: &mut KernelBuilder, p: &Pair, h: &Here, cut: &Cut, row: Dim, x: Dim, c: Dim) {
    let (parts, v) = &p.make;
    let at = |s: Sym| match s {
        s if s == v.y => Some(row - p.from.0),
        s if s == v.x => Some(x),
        s if s == v.c => Some(h.group * cut.width + c),
        s if Some(s) == v.n => Some(h.image),
        _ => None,
    };
    let own: Vec<Dim> = std::iter::once(h.group)
        .chain(parts.b.1.iter().enumerate().map(|(i, d)| if i == p.weights.1 { c } else { *d }))
        .collect();
    let body = peel(&kb.m.kernels[p.maker].body).body;
    let body: Vec<Stmt> = body
        .into_iter()
        .map(|s| {
            let s = s.rewrite_exprs(&mut |e| match e {
                Expr::Load { buf, at } if buf == parts.b.0 && at == parts.b.1 => {
                    Expr::Load { buf: h.weights, at: own.clone() }
                }
                e => e,
            });
            match s.subst(&|s| at(s)) {
                Stmt::Store { buf, value, .. } if buf == p.image => {
                    Stmt::Store { buf: h.band, at: vec![h.slot, h.row(row), x + p.from.1, c], value }
                }
                s => s,
            }
        })
        .collect();
    fresh_regs(kb.m, &body).into_iter().for_each(|s| kb.push(s));
}

/// One element of the result.
fn follow(kb: &mut KernelBuilder, p: &Pair, h: &Here, cut: &Cut, y: Dim, x: Dim, c: Dim) {
    let (parts, v) = &p.follow;
    let at = |s: Sym| match s {
        s if s == v.y => Some(y),
        s if s == v.x => Some(x),
        s if s == v.c => Some(h.group * cut.width + c),
        s if Some(s) == v.n => Some(h.image),
        _ => None,
    };
    let (row, column) = (parts.a.1[2], parts.a.1[3]);
    let own = vec![h.slot, h.row(row.subst(&mut |s| at(s))), column.subst(&mut |s| at(s)), c];
    let body: Vec<Stmt> = peel(&kb.m.kernels[p.follower].body)
        .body
        .into_iter()
        .map(|s| {
            s.subst(&|s| at(s)).rewrite_exprs(&mut |e| match e {
                Expr::Load { buf, .. } if buf == p.image => Expr::Load { buf: h.band, at: own.clone() },
                e => e,
            })
        })
        .collect();
    fresh_regs(kb.m, &body).into_iter().for_each(|s| kb.push(s));
}
