//! The transforms of F(4x4, 3x3) and F(2x2, 3x3) for weights, image and products: those of F(4, 3) or
//! F(2, 3) applied once in each dimension.
//!
//! Run-time transforms of weights omit the factors of G's rows. The results of the products are divided by
//! them instead, since there are far fewer results.

use super::Layer;
use super::plan::At;
use super::rewrite::{Rewrite, Task};
use crate::nest::{Expr, KernelBuilder, LoopKind, Stmt};
use crate::passes::nest::analysis::shape::{add, finished, fresh_regs, sub};
use crate::sym::{Dim, Sym};
use crate::tensor::consts::Remap;
use crate::tensor::{ConstData, ElemType};
use std::sync::Arc;

/// U = G g G', `[slice][products][C][K / slices]`.
pub(super) fn transformed(l: &Layer, slices: i64) -> Option<Arc<ConstData>> {
    l.weights.derive(format!("winograd {:?} / {slices}", (l.form, l.k.1, l.c.1)), || {
        let (k, c) = (usize::try_from(l.k.1).ok()?, usize::try_from(l.c.1).ok()?);
        let width = k / usize::try_from(slices).ok()?;
        let rows = l.form.filter();
        let (side, products) = (rows.len(), rows.len() * rows.len());
        let product = |g: [f64; 3], row: &[f64]| g[0] * row[0] + g[1] * row[1] + g[2] * row[2];
        let w: Vec<f64> = l.weights.to_f64s()?;
        let mut out = vec![0f64; products * c * k];
        for (i, g) in w.chunks_exact(9).enumerate() {
            let (ki, ci) = (i / c, i % c);
            let first = (ki / width * products * c + ci) * width + ki % width;
            for (y, row) in rows.iter().enumerate() {
                let line: [f64; 3] = std::array::from_fn(|x| product([g[x], g[3 + x], g[6 + x]], row));
                for (x, row) in rows.iter().enumerate() {
                    out[first + (y * side + x) * c * width] = product(line, row);
                }
            }
        }
        let bytes: Vec<u8> = match l.factors() {
            ElemType::F16 => out.iter().flat_map(|v| half::f16::from_f64(*v).to_le_bytes()).collect(),
            _ => out.iter().flat_map(|v| (*v as f32).to_le_bytes()).collect(),
        };
        ConstData::new(l.factors(), vec![slices, l.products(), l.c.1, l.k.1 / slices], bytes)
    })
}

/// The weights as [`Rewrite::filters`] reads them, `[slice][C][3][3][K / slices]`.
pub(super) fn packed(l: &Layer, slices: i64) -> Option<Arc<ConstData>> {
    let width = l.k.1 / slices;
    let coeff = vec![vec![width, 0, 0, 0, 1], vec![0, 1, 0, 0, 0], vec![0, 0, 1, 0, 0], vec![0, 0, 0, 1, 0]];
    let map = Remap { dims: vec![slices, l.c.1, 3, 3, width], offset: vec![0; 4], coeff };
    ConstData::remap(l.weights.clone(), map).map(Arc::new)
}

/// Terms of G g: a number, or a row of them.
trait Term: Clone {
    fn plus(&self, kb: &mut KernelBuilder, other: &Self) -> Self;
    fn minus(&self, kb: &mut KernelBuilder, other: &Self) -> Self;
    /// This plus `c` times the other.
    fn plus_times(&self, kb: &mut KernelBuilder, c: f32, other: &Self) -> Self;
}

impl Term for Expr {
    fn plus(&self, kb: &mut KernelBuilder, other: &Expr) -> Expr {
        add(kb, self, other)
    }
    fn minus(&self, kb: &mut KernelBuilder, other: &Expr) -> Expr {
        sub(kb, self, other)
    }
    fn plus_times(&self, kb: &mut KernelBuilder, c: f32, other: &Expr) -> Expr {
        scaled(kb, c, other, self)
    }
}

impl Term for [Expr; 3] {
    fn plus(&self, kb: &mut KernelBuilder, other: &Self) -> Self {
        std::array::from_fn(|i| self[i].plus(kb, &other[i]))
    }
    fn minus(&self, kb: &mut KernelBuilder, other: &Self) -> Self {
        std::array::from_fn(|i| self[i].minus(kb, &other[i]))
    }
    fn plus_times(&self, kb: &mut KernelBuilder, c: f32, other: &Self) -> Self {
        std::array::from_fn(|i| self[i].plus_times(kb, c, &other[i]))
    }
}

/// Makes G g, its rows times 4, -6, -6, 24, 24, 1, and hands over each row as soon as it is complete, in an
/// order in which few values wait for others: two vectors of each then fit into 32 registers.
fn by_filter<T: Term>(kb: &mut KernelBuilder, g: &[T; 3], mut row: impl FnMut(&mut KernelBuilder, i64, T)) {
    row(kb, 0, g[0].clone());
    row(kb, 5, g[2].clone());
    let (s, t) = (g[0].plus(kb, &g[2]), g[0].plus_times(kb, 4.0, &g[2]));
    let e = s.plus(kb, &g[1]);
    row(kb, 1, e);
    let e = s.minus(kb, &g[1]);
    row(kb, 2, e);
    let e = t.plus_times(kb, 2.0, &g[1]);
    row(kb, 3, e);
    let e = t.plus_times(kb, -2.0, &g[1]);
    row(kb, 4, e);
}

/// c * x + y.
pub(super) fn scaled(kb: &mut KernelBuilder, c: f32, x: &Expr, y: &Expr) -> Expr {
    kb.let_(Expr::fma(Expr::f32(c), x.clone(), y.clone()))
}

/// The same for rows of U that carry the factors of [`weight_column`].
fn rescaled_column(kb: &mut KernelBuilder, m: &[Expr]) -> Vec<Expr> {
    let [m0, m1, m2, m3, m4, m5] = m else { return vec![] };
    let times = |kb: &mut KernelBuilder, c: f32, x: &Expr| kb.let_(Expr::f32(c) * x.clone());
    let (s, d) = (add(kb, m1, m2), sub(kb, m1, m2));
    let (s2, d2) = (add(kb, m3, m4), sub(kb, m3, m4));
    const SIXTH: f32 = 1.0 / 6.0;
    let a = times(kb, 1.0 / 24.0, &s2);
    let a = scaled(kb, -SIXTH, &s, &a);
    let b = times(kb, 1.0 / 12.0, &d2);
    let c = times(kb, SIXTH, &s2);
    let e = scaled(kb, 1.0 / 3.0, &d2, m5);
    vec![
        scaled(kb, 0.25, m0, &a),
        scaled(kb, -SIXTH, &d, &b),
        scaled(kb, -SIXTH, &s, &c),
        scaled(kb, -SIXTH, &d, &e),
    ]
}

/// Element `x` of each row.
fn column(rows: &[Vec<Expr>], x: usize) -> Vec<Expr> {
    rows.iter().filter_map(|r| r.get(x).cloned()).collect()
}

impl Rewrite<'_> {
    /// U of a slice and a block of input channels.
    pub(super) fn filters(&self, kb: &mut KernelBuilder, task: &Task, b: Dim) {
        let block = self.p.block;
        kb.range(LoopKind::Seq, "c", 0, block, |kb, c| {
            kb.range(LoopKind::Par, "k", 0, self.width, |kb, k| {
                let g: [[Expr; 3]; 3] = std::array::from_fn(|y| {
                    std::array::from_fn(|x| {
                        let at = [task.slice, b * block + c, Dim::from(y), Dim::from(x), k];
                        let e = kb.load(self.w, &at);
                        kb.let_(e)
                    })
                });
                by_filter(kb, &g, |kb, y, row| {
                    by_filter(kb, &row, |kb, x, e| {
                        kb.store(self.u, &[task.slot, Dim::from(6 * y + x), c, k], e);
                    });
                });
            });
        });
    }
    /// Prefetches part `e` of 36 of the weights of block `b`.
    pub(super) fn prefetch_weights(&self, kb: &mut KernelBuilder, task: &Task, b: Dim, e: Dim) {
        let line = 64 / kb.m.bufs[self.w].ty.bytes().map_or(4, i64::from);
        let pairs = self.p.block * self.width;
        let lines = (pairs * 9 + 36 * line - 1) / (36 * line);
        kb.range(LoopKind::Seq, "j", 0, lines, |kb, j| {
            let zero = Dim::constant(0);
            let at = vec![task.slice, b * self.p.block, zero, zero, (e * lines + j) * line];
            kb.push(Stmt::Prefetch { buf: self.w, at });
        });
    }
    /// V of one tile for all channels, divided into blocks.
    pub(super) fn input(&self, kb: &mut KernelBuilder, at: &At, place: [Dim; 2]) {
        let (l, src) = (self.l, self.l.parts.a.0);
        let image = &kb.m.bufs[src].dims;
        let (rows, columns) = (l.rows(image[2]), l.columns(image[3]));
        let products = l.form.products() as i64;
        kb.nest(LoopKind::Par, &[self.blocks.into(), self.p.block.into()], |kb, o| {
            let c = o[0] * self.p.block + o[1];
            let transformed: Vec<Vec<Expr>> = (0..products)
                .map(|x| {
                    let d: Vec<Expr> = (0..products)
                        .map(|y| {
                            let py = rows.position(at.y, y + l.from.0);
                            let px = columns.position(at.x, x + l.from.1);
                            let e = kb.load(src, &[at.image, c, py, px]);
                            kb.let_(e)
                        })
                        .collect();
                    l.form.input(kb, &d)
                })
                .collect();
            // `transformed[x]` is column x of B' d; the second transform runs along its rows y.
            for y in 0..l.form.products() {
                let d = column(&transformed, y);
                for (x, e) in l.form.input(kb, &d).into_iter().enumerate() {
                    let product = Dim::from(l.form.products() * y + x);
                    kb.store(self.v, &[place[0], o[0], product, place[1], o[1]], e);
                }
            }
        });
    }
    /// The results of tile `t` of a group, which is at `at`, for channel `k` of a slice.
    pub(super) fn output(&self, kb: &mut KernelBuilder, task: &Task, at: &At, [t, k]: [Dim; 2]) {
        let l = self.l;
        let column_of = |kb: &mut KernelBuilder, m: &[Expr]| {
            if self.p.fresh { rescaled_column(kb, m) } else { l.form.output(kb, m) }
        };
        let products = l.form.products();
        let transformed: Vec<Vec<Expr>> = (0..products)
            .map(|x| {
                let d: Vec<Expr> = (0..products)
                    .map(|y| {
                        let e = kb.load(self.m, &[task.slot, Dim::from(products * y + x), t, k]);
                        kb.let_(e)
                    })
                    .collect();
                column_of(kb, &d)
            })
            .collect();
        let (rows, columns) = (l.rows(l.y.1), l.columns(l.x.1));
        for y in (0..l.form.results()).rev() {
            let d = column(&transformed, y);
            let results = column_of(kb, &d);
            for (x, value) in results.into_iter().enumerate().rev() {
                let put = |s: Sym| match s {
                    s if s == l.k.0 => Some(task.slice * self.width + k),
                    s if s == l.y.0 => Some(rows.position(at.y, y as i64)),
                    s if s == l.x.0 => Some(columns.position(at.x, x as i64)),
                    s => l.n.filter(|n| n.0 == s).map(|_| at.image),
                };
                for s in fresh_regs(kb.m, &l.parts.epilogue) {
                    kb.push(finished(s, l.parts.acc, &value, &put));
                }
            }
        }
    }
}
