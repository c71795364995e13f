//! Transforms of any length l, also of one known only at run time, in O(l log l) operations.
//!
//! A length that is a power of two is transformed directly. Other lengths are a convolution with a chirp
//! (Bluestein's algorithm) of two transforms of length m, the power of two that is at least 2 l - 1.
//! With c(n) = w^(n^2 / 2), a root of unity whose exponent is reduced modulo 2 l:
//!
//! ```text
//! X(k) = c(k) sum over n of (x(n) c(n)) conj(c(k - n))
//! ```
//!
//! A transform of length m = a b has two phases, each a loop over stages of radix 4 (and at most one of radix
//! 2) in the order of Stockham: `a` points for each of `b` columns, then, transposed and multiplied by
//! w^(n2 k1), `b` points for each of `a` columns. The columns are contiguous, so that every stage works on
//! vectors of at least the square root of m elements. Each stage reads one half of a buffer and writes the
//! other one. The rows of a signal are transformed in blocks that a cache holds; before them, the chirp.

mod run;
mod short;
mod tables;

use super::*;
use crate::nest::Stmt;
use crate::ops::support::runtime::{eq, int, le};
use crate::sym::{Range, SymKind};

/// A transform of rows.
pub(super) struct Staged {
    /// [before, elements, after, parts]
    pub x: Buf,
    /// [before, frequencies, after, parts]
    pub y: Buf,
    pub length: Dim,
    /// The elements of `x` that are transformed; those after them are 0.
    pub used: Dim,
}

/// Longest transforms that are sums for each frequency: where terms are 0 or cancel, results are exactly 0.
const SHORT: i64 = 16;
/// Most elements of a block of several rows: their transforms take 2 MB in 32-bit floats.
const BLOCK: i64 = 1 << 17;

/// Buffers and sizes of a transform.
struct Stages {
    ty: ElemType,
    /// [half, row of a block, part, position]
    work: Buf,
    rows: Dim,
    /// Most rows of a block.
    block: Dim,
    /// m = a b
    m: Dim,
    a: Dim,
    b: Dim,
    /// Rounds of two phases: 1, or 2 for a convolution.
    rounds: Dim,
    /// [part, i]: w^i, a root of unity of degree m.
    roots: Buf,
    /// [part, n2, k1]: w^(n2 k1)
    turns: Buf,
    /// [part, n]: c(n), or 1 if the length is a power of two.
    chirp: Buf,
    /// [part, frequency]: the transform of the conjugate chirp.
    spectrum: Buf,
}

/// Rows that are transformed at once, as sizes that the driver redefines.
struct Rows {
    first: Dim,
    count: Dim,
    rounds: Dim,
}

/// A complex number.
type Pair = [Expr; 2];

impl Dft {
    /// Transforms `t.x` to `t.y`; a short length that only run time knows frequency by frequency.
    pub(super) fn by_stages(&self, cx: &mut LowerCx, t: &Staged) {
        if t.length.as_const().is_some() {
            return self.in_blocks(cx, t);
        }
        let (then, els) = (nested(cx, |cx| self.by_matrix(cx, t)), nested(cx, |cx| self.in_blocks(cx, t)));
        cx.m.driver.push(Stmt::If { cond: Expr::cmp_index(BinOp::Le, t.length, SHORT), then, els });
    }
    /// The stages of each block of rows, and before them of the chirp.
    fn in_blocks(&self, cx: &mut LowerCx, t: &Staged) {
        let s = Stages::new(cx, t);
        // 1 before the rows, 0 before the chirp; then the fields of `Rows`.
        let state = cx.temp("block", ElemType::I64, vec![Dim::constant(4)]);
        let field = |i: i64| Expr::Load { buf: state, at: vec![i.into()] };
        let store = |k: &mut KernelBuilder, values: [Expr; 4]| {
            let values = values.map(|v| k.let_(v));
            for (i, v) in (0i64..).zip(values) {
                k.store(state, &[i.into()], v);
            }
        };
        cx.kernel(|k| {
            let direct = k.let_(Expr::cmp_index(BinOp::Eq, s.rounds, 1));
            let count = Expr::select(direct.clone(), Expr::index(s.block), int(1));
            store(k, [runtime::one_if(direct), int(0), count, int(1)]);
        });
        let body = nested(cx, |cx| {
            let mut number = |hint: &str, i: i64| again(cx, hint, field(i));
            let begun = number("begun", 0);
            let rows =
                Rows { first: number("first", 1), count: number("count", 2), rounds: number("rounds", 3) };
            let is_chirp = || Expr::cmp_index(BinOp::Eq, begun, 0);
            let (then, els) =
                (nested(cx, |cx| s.load_chirp(cx, t)), nested(cx, |cx| self.load_rows(cx, t, &s, &rows)));
            cx.m.driver.push(Stmt::If { cond: is_chirp(), then, els });
            let half = s.run(cx, &rows);
            let (then, els) = (
                nested(cx, |cx| s.store_chirp(cx, half)),
                nested(cx, |cx| self.store_rows(cx, t, &s, &rows, half)),
            );
            cx.m.driver.push(Stmt::If { cond: is_chirp(), then, els });
            cx.kernel(|k| {
                let done = Expr::select(is_chirp(), int(0), Expr::index(rows.count));
                let next = k.let_(Expr::index(rows.first) + done);
                let left = Expr::index(s.rows) - next.clone();
                store(k, [int(1), next, left.min(Expr::index(s.block)), Expr::index(s.rounds)]);
            });
        });
        let cond = Expr::bin(BinOp::Lt, field(1), Expr::index(s.rows));
        cx.m.driver.push(Stmt::While { cond, body });
    }
    /// The rows of the signal multiplied by the chirp.
    fn load_rows(&self, cx: &mut LowerCx, t: &Staged, s: &Stages, rows: &Rows) {
        let (dims, l, used) = (cx.dims(t.x), t.length, t.used);
        let (behind, complex) = (dims[2], dims[3].as_const() == Some(2));
        let zero = Dim::constant(0);
        let put = |k: &mut KernelBuilder, row: Dim, n: Dim, v: Pair| {
            for (part, v) in v.into_iter().enumerate() {
                k.store(s.work, &[zero, row, part.into(), n], v);
            }
        };
        let load = |k: &KernelBuilder, row: Dim, n: Dim, conjugate: bool| -> Pair {
            let row = row + rows.first;
            let part = |p: i64| k.load(t.x, &[row.floor_div(behind), n, row.modulo(behind), p.into()]);
            let im = if complex { part(1) } else { Expr::num(s.ty, 0.0) };
            [part(0), if conjugate { -im } else { im }]
        };
        cx.kernel(|k| {
            k.nest(LoopKind::Par, &[rows.count, used], |k, at| {
                let x = load(k, at[0], at[1], self.inverse).map(|e| k.let_(e));
                let c = s.pair(k, s.chirp, &[at[1]]);
                let v = if complex { times(&x, &c) } else { c.map(|c| x[0].clone() * c) };
                put(k, at[0], at[1], v);
            });
        });
        // Behind the signal, the second half of a spectrum of which the first half is given; then zeros.
        let back = self.inverse && self.onesided;
        let end = if back { l } else { used };
        if back {
            cx.kernel(|k| {
                k.nest(LoopKind::Par, &[rows.count, l - used], |k, at| {
                    let n = at[1] + used;
                    let mirrored = k.let_(Expr::cmp_index(BinOp::Lt, l, n * 2).and(Expr::cmp_index(
                        BinOp::Lt,
                        l,
                        n + used,
                    )));
                    let x = load(k, at[0], l - n, !self.inverse)
                        .map(|e| k.let_(Expr::select(mirrored.clone(), e, Expr::num(s.ty, 0.0))));
                    let c = s.pair(k, s.chirp, &[n]);
                    put(k, at[0], n, times(&x, &c));
                });
            });
        }
        cx.kernel(|k| {
            k.nest(LoopKind::Par, &[rows.count, 2.into(), s.m - end], |k, at| {
                k.store(s.work, &[zero, at[0], at[1], at[2] + end], Expr::num(s.ty, 0.0));
            });
        });
    }
    /// The frequencies, from the `half` of the buffer that has the result.
    fn store_rows(&self, cx: &mut LowerCx, t: &Staged, s: &Stages, rows: &Rows, half: Dim) {
        let out = cx.dims(t.y);
        let (count, behind, parts) = (out[1], out[2], out[3]);
        // The second transform of a convolution is an inverse, the conjugate of that of its conjugate.
        let convolved =
            |e: Expr, otherwise: Expr| Expr::select(Expr::cmp_index(BinOp::Lt, 1, s.rounds), e, otherwise);
        let number = |d: Dim| Expr::cast(ElemType::I64, s.ty, Expr::index(d));
        let one = Expr::num(s.ty, 1.0);
        let scales = cx.temp("scales", s.ty, vec![Dim::constant(2)]);
        cx.kernel(|k| {
            let m = convolved(one.clone() / number(s.m), one.clone());
            let m = k.let_(if self.inverse { m / number(t.length) } else { m });
            k.store(scales, &[0.into()], m.clone());
            k.store(scales, &[1.into()], convolved(-m.clone(), m));
        });
        let back = if self.inverse { -1.0 } else { 1.0 };
        cx.kernel(|k| {
            k.nest(LoopKind::Par, &[rows.count, count], |k, at| {
                let (row, f) = (at[0] + rows.first, at[1]);
                let c = s.pair(k, s.chirp, &[f]);
                let v: Pair = [0, 1].map(|part: i64| {
                    let v = k.load(s.work, &[half, at[0], part.into(), f]);
                    let v = v * k.load(scales, &[part.into()]);
                    k.let_(v)
                });
                let [re, im] = times(&v, &c);
                let place = |p: i64| [row.floor_div(behind), f, row.modulo(behind), p.into()];
                k.store(t.y, &place(0), re);
                if parts.as_const() != Some(1) {
                    k.store(t.y, &place(1), im * Expr::num(s.ty, back));
                }
            });
        });
    }
}

/// The product of two complex numbers, each of whose parts is used twice.
fn times(x: &Pair, y: &Pair) -> Pair {
    let ([a, b], [c, d]) = (x.clone(), y.clone());
    [a.clone() * c.clone() - b.clone() * d.clone(), a * d + b * c]
}

impl Stages {
    /// Both parts of an element of a table.
    fn pair(&self, k: &mut KernelBuilder, table: Buf, at: &[Dim]) -> Pair {
        [0, 1].map(|p: i64| {
            let v = k.load(table, &[&[Dim::constant(p)], at].concat());
            k.let_(v)
        })
    }
    /// Loads the conjugate chirp: conj(c(n)) at n and m - n.
    fn load_chirp(&self, cx: &mut LowerCx, t: &Staged) {
        let (zero, l) = (Dim::constant(0), t.length);
        cx.kernel(|k| {
            k.nest(LoopKind::Par, &[self.m], |k, at| {
                let n = at[0];
                let first = k.let_(Expr::cmp_index(BinOp::Lt, n, l));
                let last = k.let_(Expr::cmp_index(BinOp::Lt, self.m, n + l));
                for (part, sign) in [(0, 1.0), (1, -1.0)] {
                    let c = |n: Dim| k.load(self.chirp, &[Dim::constant(part), n]) * Expr::num(self.ty, sign);
                    let other = Expr::select(last.clone(), c(self.m - n), Expr::num(self.ty, 0.0));
                    let v = Expr::select(first.clone(), c(n), other);
                    k.store(self.work, &[zero, zero, part.into(), n], v);
                }
            });
        });
    }
    /// Keeps the chirp's transform.
    fn store_chirp(&self, cx: &mut LowerCx, half: Dim) {
        let zero = Dim::constant(0);
        cx.map(self.spectrum, |k, at| k.load(self.work, &[half, zero, at[0], at[1]]));
    }
}

/// The statements of the driver that `write` emits.
fn nested(cx: &mut LowerCx, write: impl FnOnce(&mut LowerCx)) -> Vec<Stmt> {
    let outer = std::mem::take(&mut cx.m.driver);
    write(cx);
    std::mem::replace(&mut cx.m.driver, outer)
}

/// A number that is redefined in each iteration of a driver loop.
fn again(cx: &mut LowerCx, hint: &str, value: Expr) -> Dim {
    let sym = cx.m.syms.fresh_number(hint, Range::at_least(0));
    cx.m.driver.push(Stmt::Define { sym, value, lo: Dim::constant(0), hi: None });
    sym.into()
}

/// Shorter transforms of known length are matrix products: their stages have short vectors.
const LEAST: i64 = 512;
/// Multiplications of a matrix product that take as long as a stage takes for an element, measured with
/// AVX-512 on lengths of 512 to 4096.
const STEP: i64 = 12;

/// True if a known length is transformed in stages rather than with so many multiplications for a row.
pub(super) fn pay(length: i64, multiplications: i64) -> bool {
    let [m, _, _, rounds] = tables::constant_sizes(length);
    length >= LEAST && m * i64::from(m.ilog2()) * rounds * STEP < multiplications
}
