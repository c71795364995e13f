//! winograd: 3x3 convolutions of stride 1 as F(4x4, 3x3) (Winograd; Lavin, Gray: Fast Algorithms for Convolutional
//! Neural Networks): 36 products of matrices for a tile of 4x4 results instead of 144.
//!
//! ```text
//! U = G g G'   once, here, in f64          [slice][36][C][K / slices]
//! V = B' d B   from 6x6 of the image       [slot][36][tiles of a group][C]
//! M = V U      36 contractions             [slot][36][tiles of a group][K / slices]
//! Y = A' M A   and the epilogue, 16 stores
//! ```
//!
//! One parallel loop runs over groups of tiles and slices of output channels, so that V and M of a group stay in the
//! cache between the steps. Where channels are cut into slices, all slices share a V that a kernel of its own makes.
//!
//! Parts of V and M are named by a loop of one iteration inside the parallel one: code generation lets all iterations of
//! a task use one part (codegen/clif/private.rs).
//!
//! No access has a condition, whatever the sizes are: a group's tiles beyond the last one repeat it, rows and columns
//! beyond the image are clamped. What a tile stores beyond the image falls on its own last row or column, which it
//! stores again afterwards: stores go from the last position to the first.
//!
//! Sums are made in another order than the operator's definition has it, with factors from 1/24 to 8: errors are a
//! few times those of the direct sum (tests/winograd.rs). `wins` is the one place that decides.

use super::contract::{Parts, Product, take_apart};
use super::lanes;
use super::shape::fresh_regs;
use crate::diag::Result;
use crate::nest::{Buf, Expr, Kernel, KernelBuilder, Layout, LoopKind, Math, Module, Place, Stmt, visit};
use crate::sym::{Dim, Sym};
use crate::target::Level;
use crate::tensor::{ConstData, ElemType};
use std::sync::Arc;

/// Iterations of the parallel loop at most, and so copies of V and M.
const SLOTS: i64 = 32;
/// Bytes of U that are worth reading: larger ones come from memory, four times the weights.
const MOST_WEIGHTS: i64 = 16 << 20;

/// Runs the pass.
pub fn run(m: &mut Module, level: &Level) -> Result<()> {
    if level.facts.lanes == 1 || m.math == Math::Strict {
        return Ok(());
    }
    let kernels = visit::calls(&m.driver);
    for k in kernels {
        if let Some(l) = layer(m, k).filter(|l| wins(m, l)) {
            rewrite(m, k, &l);
        }
    }
    Ok(())
}

/// A convolution that the transform fits.
struct Layer {
    parts: Parts,
    /// Batch, where there is a loop.
    n: Option<(Sym, Dim)>,
    /// Output channels, rows, columns.
    k: (Sym, i64),
    y: (Sym, Dim),
    x: (Sym, Dim),
    /// Input channels.
    c: (Sym, i64),
    /// The weights `[K][C][3][3]`.
    weights: Arc<ConstData>,
    /// Where the window of output (0, 0) begins.
    from: (i64, i64),
}

fn layer(m: &Module, k: Kernel) -> Option<Layer> {
    let p = take_apart(&m.kernels[k].body).filter(|p| p.product == Product::Fma)?;
    let ([an, ac, ay, ax], [wk, wc, wy, wx]) = (p.a.1.as_slice(), p.b.1.as_slice()) else { return None };
    let of = |list: &[(Sym, Dim)], d: &Dim| d.as_sym().and_then(|s| list.iter().copied().find(|l| l.0 == s));
    let (c, ky, kx) = (of(&p.depth, ac)?, of(&p.depth, wy)?, of(&p.depth, wx)?);
    let kk = of(&p.loops, wk)?;
    if p.depth.len() != 3 || ac != wc || ky.1.as_const() != Some(3) || kx.1.as_const() != Some(3) || ky.0 == kx.0 {
        return None;
    }
    let n = of(&p.loops, an);
    if n.is_none() && an.as_const() != Some(0) || p.loops.len() != 3 + usize::from(n.is_some()) {
        return None;
    }
    // Row (column) = loop + tap + a number.
    let slides = |d: &Dim, tap: Sym| {
        let (rest, from) = (*d - Dim::sym(tap)).split_const();
        Some((of(&p.loops, &rest)?, from)).filter(|(l, f)| l.0 != kk.0 && *f >= 0)
    };
    let ((y, from_y), (x, from_x)) = (slides(ay, ky.0)?, slides(ax, kx.0)?);
    let owner = m.storage(p.b.0);
    let Place::Const(weights) = &m.bufs[owner].place else { return None };
    let own = |s: Sym| n.is_some_and(|n| n.0 == s);
    if y.0 == x.0 || own(y.0) || own(x.0) || own(kk.0) || !weights.elem().is_float() || m.bufs[p.a.0].ty != ElemType::F32 || m.storage(p.a.0) != p.a.0 {
        return None;
    }
    // Vectors run along channels on both sides.
    let (out, at) = p.tail.iter().find_map(|s| if let Stmt::Store { buf, at, .. } = s { Some((*buf, at)) } else { None })?;
    if lanes::stride(m, p.a.0, &p.a.1, c.0) != Some(1) || lanes::stride(m, out, at, kk.0) != Some(1) {
        return None;
    }
    let (c, k) = ((c.0, c.1.as_const()?), (kk.0, kk.1.as_const()?));
    let shape = [k.1, c.1, 3, 3];
    let fits = m.bufs[p.b.0].dims.iter().zip(shape).all(|(d, n)| d.as_const() == Some(n)) && m.bufs[owner].layout == Layout::RowMajor && weights.count() == (9 * k.1 * c.1) as u64;
    fits.then(|| Layer { weights: weights.clone(), n, k, y, x, c, from: (from_y, from_x), parts: p })
}

/// Whether the transform is worth it: enough tiles for the matrix products, few of them beyond the image, weights that
/// come from the cache.
fn wins(m: &Module, l: &Layer) -> bool {
    let tiles = tiles(l);
    let area = l.y.1 * l.x.1;
    let full = match (tiles.as_const(), area.as_const()) {
        (Some(t), Some(a)) => t >= 9 && 16 * t <= 2 * a,
        _ => m.syms.range(area).hi.is_none_or(|h| h >= 144),
    };
    full && l.c.1 >= 16 && l.k.1 >= 16 && 36 * 4 * l.c.1 * l.k.1 <= MOST_WEIGHTS
}

/// Tiles of an image.
fn tiles(l: &Layer) -> Dim {
    l.y.1.ceil_div(4) * l.x.1.ceil_div(4)
}

/// How the work is cut.
struct Plan {
    /// Tiles of a group.
    tiles: i64,
    /// Groups of an image.
    groups: Dim,
    /// Slices of the output channels.
    slices: i64,
    images: Dim,
}

fn plan(l: &Layer) -> Plan {
    let tiles = tiles(l);
    // V and M of a group in a second-level cache.
    let most = ((512 << 10) / (36 * 4 * (l.c.1 + l.k.1.min(64)))).clamp(16, 49);
    let size = match tiles.as_const() {
        // Small images would be mostly repetitions of their last tile.
        None => {
            if l.c.1 * l.k.1 > 64 * 64 {
                most.min(28)
            } else {
                14
            }
        }
        Some(t) => {
            let groups = (t + most - 1) / most;
            (t + groups - 1) / groups
        }
    };
    let groups = tiles.ceil_div(size);
    // U of a slice is read once for each group; few groups share the work by slices.
    let few = groups.as_const().is_some_and(|g| g < 8);
    let slices = if few || l.c.1 * l.k.1 > 64 * 64 { [64, 32].into_iter().find(|w| l.k.1 % w == 0).map_or(1, |w| l.k.1 / w) } else { 1 };
    Plan { tiles: size, groups, slices, images: l.n.map_or(Dim::constant(1), |n| n.1) }
}

/// Which tile of which image an iteration works on.
struct At {
    image: Dim,
    y: Dim,
    x: Dim,
}

/// Tile `t` of group `g`; beyond the last, the last.
fn tile_at(l: &Layer, p: &Plan, image: Dim, g: Dim, t: Dim) -> At {
    let (all, wide) = (tiles(l), l.x.1.ceil_div(4));
    let i = g * p.tiles + t;
    let i = if (p.groups * p.tiles - all).as_const() == Some(0) { i } else { i.min(all - 1) };
    At { image, y: i.floor_div(wide), x: i.modulo(wide) }
}

/// Position `4 * tile + i + from`, at most `last`; the clamp only where it can be needed.
fn position(tile: Dim, i: i64, from: i64, tiles: Dim, last: Dim) -> Dim {
    let most = (tiles * 4 + (i + from - 4) - last).as_const();
    let at = tile * 4 + (i + from);
    if most.is_some_and(|d| d <= 0) { at } else { at.min(last) }
}

fn rewrite(m: &mut Module, k: Kernel, l: &Layer) {
    let p = plan(l);
    let (name, origin) = (m.kernels[k].name.clone(), m.kernels[k].origin.clone());
    let width = l.k.1 / p.slices;
    let Some(u) = transformed(l, p.slices) else { return };
    let u = m.constant(format!("{}.winograd", m.bufs[l.parts.b.0].name), Arc::new(u));
    let constant = Dim::constant;
    let total = p.images * p.groups * p.slices;
    let slots = total.as_const().map_or(SLOTS, |t| t.min(SLOTS));
    // An odd number of cache lines from one of the 36 planes to the next: else they would share few sets of a cache.
    let odd = |n: i64| n + i64::from(n % 2 == 0);
    let line = |channels: i64| if channels % 16 == 0 { odd(channels / 16) * 16 } else { channels };
    let group = |slot: Dim, channels: i64| vec![slot, constant(36), constant(odd(p.tiles)), constant(line(channels))];
    let shared = p.slices > 1;
    let v = m.temp(format!("{name}.v"), ElemType::F32, group(if shared { p.images * p.groups } else { constant(slots) }, l.c.1));
    let mm = m.temp(format!("{name}.m"), ElemType::F32, group(constant(slots), width));
    // A quarter of the direct sum.
    let work = p.images * l.y.1 * l.x.1 * (9 * l.c.1 * l.k.1 / 16);
    let mut calls = vec![];
    if shared {
        let id = m.kernel(&format!("{name}.v"), &origin, |kb| {
            kb.range(LoopKind::Par, "r", 0, p.images * p.groups * p.tiles, |kb, r| {
                let (g, t) = (r.floor_div(p.tiles), r.modulo(p.tiles));
                let image = if l.n.is_some() { g.floor_div(p.groups) } else { constant(0) };
                let at = tile_at(l, &p, image, g.modulo(p.groups), t);
                input(kb, l, &at, v, &[g, t]);
            });
        });
        m.kernels[id].work = p.images * l.y.1 * l.x.1 * (l.c.1 * 4);
        calls.push(id);
    }
    let id = m.kernel(&name, &origin, |kb| {
        kb.range(LoopKind::Par, "s", 0, slots, |kb, first| {
            kb.range(LoopKind::Seq, "q", first, first + 1, |kb, slot| {
                let step = |kb: &mut KernelBuilder, i: Dim| {
                    let slice = i.floor_div(p.images * p.groups);
                    let g = i.modulo(p.images * p.groups);
                    let image = if l.n.is_some() { g.floor_div(p.groups) } else { constant(0) };
                    let in_image = g.modulo(p.groups);
                    if !shared {
                        kb.range(LoopKind::Seq, "t", 0, p.tiles, |kb, t| {
                            let at = tile_at(l, &p, image, in_image, t);
                            input(kb, l, &at, v, &[slot, t]);
                        });
                    }
                    let from = if shared { g } else { slot };
                    kb.nest(LoopKind::Par, &[constant(36), constant(p.tiles), constant(width)], |kb, o| {
                        let acc = kb.acc(Expr::f32(0.0));
                        kb.range(LoopKind::Seq, "c", 0, l.c.1, |kb, c| {
                            let (a, b) = (kb.load(v, &[from, o[0], o[1], c]), kb.load(u, &[slice, o[0], c, o[2]]));
                            kb.set(acc, Expr::fma(a, b, Expr::acc(acc)));
                        });
                        kb.store(mm, &[slot, o[0], o[1], o[2]], Expr::acc(acc));
                    });
                    kb.range(LoopKind::Seq, "t", 0, p.tiles, |kb, t| {
                        let at = tile_at(l, &p, image, in_image, t);
                        kb.range(LoopKind::Par, "k", 0, width, |kb, k| output(kb, l, &at, mm, (slot, t, k), slice * width + k));
                    });
                };
                if total.as_const() == Some(slots) {
                    step(kb, first);
                } else {
                    kb.range(LoopKind::Seq, "i", (first * total).floor_div(slots), ((first + 1) * total).floor_div(slots), step);
                }
            });
        });
    });
    m.kernels[id].work = work;
    calls.push(id);
    m.driver.truncate(m.driver.len() - calls.len());
    visit::splice_call(&mut m.driver, k, false, calls.into_iter().map(Stmt::Call).collect());
}

/// U = G g G', `[slice][36][C][K / slices]`.
fn transformed(l: &Layer, slices: i64) -> Option<ConstData> {
    const G: [[f64; 3]; 6] =
        [[0.25, 0.0, 0.0], [-1.0 / 6.0, -1.0 / 6.0, -1.0 / 6.0], [-1.0 / 6.0, 1.0 / 6.0, -1.0 / 6.0], [1.0 / 24.0, 1.0 / 12.0, 1.0 / 6.0], [1.0 / 24.0, -1.0 / 12.0, 1.0 / 6.0], [0.0, 0.0, 1.0]];
    let (k, c) = (usize::try_from(l.k.1).ok()?, usize::try_from(l.c.1).ok()?);
    let width = k / usize::try_from(slices).ok()?;
    let w: Vec<f64> = l.weights.to_f64s()?;
    let mut out = vec![0f32; 36 * c * k];
    for (i, g) in w.chunks_exact(9).enumerate() {
        let (ki, ci) = (i / c, i % c);
        for y in 0..6 {
            // One row of G g.
            let row: [f64; 3] = std::array::from_fn(|j| (0..3).map(|r| G[y][r] * g[3 * r + j]).sum());
            for x in 0..6 {
                let sum: f64 = (0..3).map(|j| row[j] * G[x][j]).sum();
                out[((ki / width * 36 + y * 6 + x) * c + ci) * width + ki % width] = sum as f32;
            }
        }
    }
    Some(ConstData::f32s(vec![slices, 36, l.c.1, l.k.1 / slices], &out))
}

fn add(kb: &mut KernelBuilder, a: &Expr, b: &Expr) -> Expr {
    kb.let_(a.clone() + b.clone())
}

fn sub(kb: &mut KernelBuilder, a: &Expr, b: &Expr) -> Expr {
    kb.let_(a.clone() - b.clone())
}

/// c * x + y.
fn scaled(kb: &mut KernelBuilder, c: f32, x: &Expr, y: &Expr) -> Expr {
    kb.let_(Expr::fma(Expr::f32(c), x.clone(), y.clone()))
}

/// One column of B' d.
fn input_column(kb: &mut KernelBuilder, d: &[Expr; 6]) -> [Expr; 6] {
    let (a, c) = (scaled(kb, -4.0, &d[2], &d[4]), scaled(kb, -4.0, &d[1], &d[3]));
    let (e, f) = (sub(kb, &d[4], &d[2]), sub(kb, &d[3], &d[1]));
    let (s, t) = (scaled(kb, -5.0, &d[2], &d[4]), scaled(kb, -5.0, &d[3], &d[5]));
    [scaled(kb, 4.0, &d[0], &s), add(kb, &a, &c), sub(kb, &a, &c), scaled(kb, 2.0, &f, &e), scaled(kb, -2.0, &f, &e), scaled(kb, 4.0, &d[1], &t)]
}

/// One column of A' m.
fn output_column(kb: &mut KernelBuilder, m: &[Expr; 6]) -> [Expr; 4] {
    let (s, d) = (add(kb, &m[1], &m[2]), sub(kb, &m[1], &m[2]));
    let (s2, d2) = (add(kb, &m[3], &m[4]), sub(kb, &m[3], &m[4]));
    let (first, last) = (add(kb, &m[0], &s), scaled(kb, 8.0, &d2, &d));
    [add(kb, &first, &s2), scaled(kb, 2.0, &d2, &d), scaled(kb, 4.0, &s2, &s), add(kb, &last, &m[5])]
}

/// Column `x` of six rows.
fn column(rows: &[[Expr; 6]], x: usize) -> [Expr; 6] {
    std::array::from_fn(|y| rows[y][x].clone())
}

/// V of one tile, all channels.
fn input(kb: &mut KernelBuilder, l: &Layer, at: &At, v: Buf, place: &[Dim; 2]) {
    let (src, dims) = (l.parts.a.0, kb.m.bufs[l.parts.a.0].dims.clone());
    let (ty, tx) = (l.y.1.ceil_div(4), l.x.1.ceil_div(4));
    kb.range(LoopKind::Par, "c", 0, l.c.1, |kb, c| {
        let rows: Vec<[Expr; 6]> = (0..6)
            .map(|x| {
                let d: [Expr; 6] = std::array::from_fn(|y| {
                    let (py, px) = (position(at.y, y as i64, l.from.0, ty, dims[2] - 1), position(at.x, x, l.from.1, tx, dims[3] - 1));
                    let e = kb.load(src, &[at.image, c, py, px]);
                    kb.let_(e)
                });
                input_column(kb, &d)
            })
            .collect();
        // `rows[x]` is column x of B' d: its row y is what the second transform runs along.
        for y in 0..6 {
            let d = column(&rows, y);
            for (x, e) in input_column(kb, &d).into_iter().enumerate() {
                kb.store(v, &[place[0], Dim::from(6 * y + x), place[1], c], e);
            }
        }
    });
}

/// The results of one tile for channel `k` of a slice, which is channel `oc` of the image.
fn output(kb: &mut KernelBuilder, l: &Layer, at: &At, m: Buf, (slot, t, k): (Dim, Dim, Dim), oc: Dim) {
    let columns: Vec<[Expr; 4]> = (0..6)
        .map(|x| {
            let d: [Expr; 6] = std::array::from_fn(|y| {
                let e = kb.load(m, &[slot, Dim::from(6 * y + x), t, k]);
                kb.let_(e)
            });
            output_column(kb, &d)
        })
        .collect();
    let (ty, tx) = (l.y.1.ceil_div(4), l.x.1.ceil_div(4));
    for y in (0..4).rev() {
        let row: [Expr; 6] = std::array::from_fn(|x| columns[x][y].clone());
        let results = output_column(kb, &row);
        for (x, value) in results.into_iter().enumerate().rev() {
            let (py, px) = (position(at.y, y as i64, 0, ty, l.y.1 - 1), position(at.x, x as i64, 0, tx, l.x.1 - 1));
            let put = |s: Sym| match s {
                s if s == l.k.0 => Some(oc),
                s if s == l.y.0 => Some(py),
                s if s == l.x.0 => Some(px),
                s => l.n.filter(|n| n.0 == s).map(|_| at.image),
            };
            for s in fresh_regs(kb.m, &l.parts.tail) {
                let s = s.map_dims(&mut |d| d.subst(&mut |s| put(s))).map_exprs(&mut |e| {
                    e.rewrite(&mut |e| match e {
                        Expr::Acc { reg, .. } if reg == l.parts.acc => value.clone(),
                        e => e,
                    })
                });
                kb.push(s);
            }
        }
    }
}
