//! strassen: products of matrices with fewer multiplications (Strassen: Gaussian Elimination is not Optimal).
//!
//! Rows, columns and the reduction of `C = A B`, B constant, are cut into halves, and seven products of sums
//! of the halves take the place of eight products of the halves.
//!
//! ```text
//! A11 + A22, A21 - A11, A12 - A22, A11, A22, A21 + A22, A11 + A12         V  [7][pairs of rows][K / 2]
//! M1 = (A11 + A22)(B11 + B22)   M6 = (A21 - A11)(B11 + B12)   M7 = (A12 - A22)(B21 + B22)
//! M3 = A11 (B12 - B22)          M4 = A22 (B21 - B11)                      P  [slot][7][pairs of a group][32]
//! M2 = (A21 + A22) B11          M5 = (A11 + A12) B22
//! C11 = M1 + M4 - M5 + M7   C12 = M3 + M5   C21 = M2 + M4   C22 = M1 - M2 + M3 + M6, and the epilogue
//! ```
//!
//! The halves of the reduction are its first and its second one. Of rows and columns, neighbours belong
//! together: row 2i with row 2i + 1, a panel of 32 columns with the next. So what a row holds reaches its
//! neighbour only, and threads share the work by pairs of panels. An odd last row has itself as its
//! neighbour. A kernel of its own makes V, since all panels read it. Sums of weights are made where they are
//! multiplied, once for all rows of a tile: units that add are idle there. Units that convert are not:
//! weights of 16 bits become floats once for all rows of a group. Weights stay packed as contractions have
//! them, so that a few rows, which this does not pay for, use the same ones: where run time counts the rows,
//! the driver chooses (`worth`).
//!
//! One parallel loop runs over groups of rows and pairs of panels. Each goes through the reduction block by
//! block; the last products of a block prefetch the next one.
//!
//! Each row is divided by its largest magnitude before the sums, and its results are multiplied by it
//! (outside scaling: Ballard, Benson, Druinsky, Lipshitz, Schwartz: Improving the Numerical Stability of Fast
//! Matrix Multiplication, 2016). So the error of a row is bounded by its own norm, about as that of the plain
//! sum, which has twice as many terms (tests/strassen.rs); a row of zeros gives zeros. A row that is not
//! finite takes no part, and all its results are NaN. Weights are constant: columns that differ too much in
//! magnitude keep the plain product. `--math strict` does without. Sums of integers are left alone. Only
//! levels with 512-bit vectors have the pass: narrower ones have fewer products for each sum of weights, and
//! many cores add on the units that multiply.

mod layer;

use crate::diag::Result;
use crate::nest::{BinOp, Buf, Expr, Kernel, KernelBuilder, LoopKind, Math, Module, Stmt, UnOp, visit};
use crate::passes::nest::analysis::machine::{L2, LINE, slots};
use crate::passes::nest::analysis::shape::{Uses, add, finished, fresh_regs, in_slots, sub};
use crate::passes::nest::schedule::contract::{Packed, constant_panels};
use crate::passes::nest::schedule::tiles::is_even;
use crate::sym::Dim;
use crate::target::Level;
use crate::tensor::ElemType;
use layer::{Layer, layer, least_groups};
use rayon::prelude::*;

/// Columns of a panel.
const PANEL: i64 = 32;
/// Steps of a block of the reduction at most, and pairs of rows of a group: what four products of a group
/// need of V stays in the second-level cache, beside a block of a pair of panels and the next one.
const BLOCK: i64 = 512;
const GROUP: i64 = 108;
/// Rows of a tile if their number is a run-time value.
const TILE: i64 = 12;
/// Minimum rows: a few tiles.
const LEAST: i64 = 48;
/// Maximum bytes of V: a larger V would be read from memory repeatedly.
const V_BYTES: i64 = 5 * L2;
/// Minimum profit: the extra sums may cost at most 1/15 of the plain product. Model: 16/K + 10/N, measured on
/// a core with 512-bit vectors.
const SUMS: i64 = 29;
/// Maximum ratio of the largest magnitudes of the two columns of a pair: the error of the smaller column is
/// relative to the larger one.
const COLUMN_RATIO: f32 = 64.0;
/// Smallest divisor of a row: its reciprocal is finite. Rows below it lose precision as subnormal numbers do.
const LEAST_SCALE: f32 = 1e-37;

/// Runs the pass.
pub fn run(m: &mut Module, level: &Level) -> Result<()> {
    // The formula assumes two 512-bit multipliers; on other cores the loads of the sums dominate.
    if level.facts.caps.bits < 512
        || level.facts.caps.by_scalar
        || m.math != Math::Default
        || !m.optimize.may_grow()
    {
        return Ok(());
    }
    let uses = Uses::new(m);
    let of_kernel = |k: Kernel| Some((k, layer(m, m.form(k).contraction()?.clone())?));
    let layers: Vec<(Kernel, Layer)> =
        visit::calls(&m.driver).into_par_iter().filter_map(of_kernel).collect();
    // Products with the same left operand (query, key and value, for example) share its sums.
    let first: Vec<usize> = layers
        .iter()
        .enumerate()
        .map(|(i, (k, l))| {
            layers[..i]
                .iter()
                .position(|(j, of)| j != k && l.reads_as(of) && uses.may_move(m, *j, *k))
                .unwrap_or(i)
        })
        .collect();
    let mut sums: Vec<Option<LeftOperand>> = vec![];
    for ((k, l), first) in layers.iter().zip(first) {
        let made = sums.get(first).copied().flatten();
        sums.push(rewrite(m, *k, l, made));
    }
    Ok(())
}

/// The left operand as the products read it.
#[derive(Clone, Copy)]
struct LeftOperand {
    /// V.
    sums: Buf,
    /// The largest magnitude of each row, and its reciprocal (0: the row is not finite): [2][rows].
    scale: Buf,
}

/// Replaces a kernel by the seven products, or adds them as an alternative for the driver to select. `made`:
/// the left operand, if an earlier product computed it. Returns the left operand.
fn rewrite(m: &mut Module, k: Kernel, l: &Layer, made: Option<LeftOperand>) -> Option<LeftOperand> {
    let Packed { buf: w, outer, .. } =
        constant_panels(m, &l.parts, &[], (l.n.0, Dim::constant(l.n.1)), PANEL)?.place(m);
    if !outer.is_empty() {
        return None;
    }
    let (name, origin) = (m.kernels[k].name.clone(), m.kernels[k].origin.clone());
    let constant = Dim::constant;
    let panels = l.n.1 / (2 * PANEL);
    let groups = Groups::of(m, l.rows.ceil_div(2), l.n.1);
    let total = m.syms.simplify(groups.count * panels);
    let slots = slots(total, None);
    let high = groups.most;
    let p = m.temp(format!("{name}.p"), ElemType::F32, [slots, 7, high | 1, PANEL].map(constant));
    // Shorter floats are converted once for all rows of a group.
    let floats = (m.bufs[w].ty != ElemType::F32)
        .then(|| m.temp(format!("{name}.b"), ElemType::F32, [slots, 4, l.block, PANEL].map(constant)));
    let calls = m.driver.len();
    let left = made.unwrap_or_else(|| left_operand(m, k, l));
    // Weights per cache line.
    let line = LINE / m.bufs[w].ty.bytes().map_or(4, i64::from);
    let id = m.kernel(&name, &origin, |kb| {
        in_slots(kb, total, slots, &mut |kb, slot, i| {
            let (g, pair) = (kb.m.syms.simplify(i.floor_div(panels)), i.modulo(panels));
            named(kb, pair, constant(panels), &mut |kb, pair| {
                groups.rows(kb, g, &mut |kb, first, count| {
                    let share = constant(l.block * PANEL / line).ceil_div(count.max(1)) * line;
                    named(kb, share, constant(l.block * PANEL + 1), &mut |kb, share| {
                        group(kb, l, &Group { w, floats, left, p, slot, pair, first, count, share })
                    });
                });
            });
        });
    });
    m.kernels[id].work = l.rows * (l.n.1 * l.k.1 / 32 * 7);
    let calls = m.driver.split_off(calls);
    let with = match l.asks {
        Some((least, most)) => {
            let worth = Expr::bin(
                BinOp::And,
                Expr::cmp_index(BinOp::Ge, l.rows, least),
                Expr::cmp_index(BinOp::Le, l.rows, most),
            );
            vec![Stmt::If { cond: worth, then: calls, els: vec![Stmt::Call(k)] }]
        }
        None => calls,
    };
    visit::splice_call(&mut m.driver, k, false, with);
    Some(left)
}

/// A kernel that finds the largest magnitude of each row, and one that makes V.
fn left_operand(m: &mut Module, k: Kernel, l: &Layer) -> LeftOperand {
    let (name, origin) = (format!("{}.v", m.kernels[k].name), m.kernels[k].origin.clone());
    let (half, pairs) = (l.k.1 / 2, l.rows.ceil_div(2));
    // An odd number of cache lines between rows: otherwise rows would share few cache sets.
    let stride = ((half / 16) | 1) * 16;
    let sums = m.temp(name.clone(), ElemType::F32, vec![Dim::constant(7), pairs, Dim::constant(stride)]);
    let scale = m.temp(format!("{name}.scale"), ElemType::F32, vec![Dim::constant(2), l.rows]);
    m.kernel(&format!("{name}.scale"), &origin, |kb| {
        kb.nest(LoopKind::Par, &[l.rows], |kb, at| {
            let most = kb.acc(Expr::f32(0.0));
            kb.range(LoopKind::Seq, "k", 0, l.k.1, |kb, c| {
                let e = l.left(kb, (at[0], c));
                kb.update(BinOp::Max, most, Expr::un(UnOp::Abs, e));
            });
            let most = kb.let_(Expr::acc(most));
            kb.store(scale, &[Dim::constant(0), at[0]], most.clone());
            let finite = Expr::bin(BinOp::Lt, most.clone(), Expr::f32(f32::INFINITY));
            let reciprocal = Expr::f32(1.0) / most.max(Expr::f32(LEAST_SCALE));
            kb.store(scale, &[Dim::constant(1), at[0]], Expr::select(finite, reciprocal, Expr::f32(0.0)));
        });
    });
    let left = LeftOperand { sums, scale };
    m.kernel(&name, &origin, |kb| {
        kb.nest(LoopKind::Par, &[pairs, Dim::constant(half)], |kb, at| {
            left_factors(kb, l, left, (at[0], at[1]))
        });
    });
    left
}

/// Calls `f` with `value`, bound to a symbol below `limit` unless it is constant: the expression would make
/// every subscript long.
fn named(kb: &mut KernelBuilder, value: Dim, limit: Dim, f: &mut dyn FnMut(&mut KernelBuilder, Dim)) {
    let value = kb.m.syms.simplify(value);
    if value.as_const().is_some() {
        return f(kb, value);
    }
    kb.at_index(Expr::Index(value), limit, f);
}

/// The pairs of rows, divided into groups.
struct Groups {
    pairs: Dim,
    count: Dim,
    /// The pairs of the largest group.
    most: i64,
    division: Division,
}

/// What groups have in common.
#[derive(Clone, Copy)]
enum Division {
    /// A known number of pairs: the last group computes some rows again, to the same bits.
    Equal(Dim),
    /// A number of pairs that are whole tiles: the last group has what is left.
    Rest(Dim),
    /// A number of tiles, each of which has `TILE` pairs or one more: together these are all pairs.
    Tiles(Dim),
}

impl Groups {
    fn of(m: &Module, pairs: Dim, columns: i64) -> Groups {
        let groups = pairs.ceil_div(GROUP).max(Dim::constant(least_groups(columns)));
        let (equal, tiles) = (pairs.ceil_div(groups), pairs.floor_div(TILE));
        let division = if pairs.as_const().is_some() {
            Division::Equal(m.syms.simplify(equal))
        } else if is_even(&m.syms, pairs, TILE) {
            Division::Tiles(tiles.ceil_div(groups))
        } else {
            Division::Rest(m.syms.simplify(equal.ceil_div(TILE) * TILE))
        };
        let (count, size, limit) = match division {
            Division::Equal(size) | Division::Rest(size) => (pairs.ceil_div(size), size, GROUP),
            Division::Tiles(n) => (tiles.ceil_div(n), m.syms.simplify(n * TILE), GROUP / TILE * (TILE + 1)),
        };
        Groups { pairs, count, most: size.as_const().unwrap_or(limit), division }
    }
    /// Calls `f` with the first pair of group `g` and the number of its pairs.
    fn rows(&self, kb: &mut KernelBuilder, g: Dim, f: &mut dyn FnMut(&mut KernelBuilder, Dim, Dim)) {
        let (pairs, limit) = (self.pairs, Dim::constant(self.most + 1));
        match self.division {
            Division::Equal(size) => {
                let first = (g * size).min(pairs - size);
                named(kb, first, pairs - size + 1, &mut |kb, first| {
                    named(kb, size, limit, &mut |kb, count| f(kb, first, count))
                });
            }
            Division::Rest(size) => named(kb, g * size, pairs, &mut |kb, first| {
                named(kb, (pairs - first).min(size), limit, &mut |kb, count| f(kb, first, count))
            }),
            Division::Tiles(n) => {
                let (tiles, more) = (pairs.floor_div(TILE), pairs.modulo(TILE));
                // The first tile of the group, and how many of its tiles have one additional row.
                let tile = g * n;
                let of_this = (tiles - tile).min(n);
                let higher = (more - tile).max(Dim::constant(0)).min(of_this);
                // Bounds the number of higher tiles again, so that the scratch of a group is provably large
                // enough for the rows of all.
                let most = Dim::constant(GROUP / TILE + 1);
                named(kb, tile * TILE + tile.min(more), pairs, &mut |kb, first| {
                    named(kb, of_this, most, &mut |kb, tiles| {
                        named(kb, higher, most, &mut |kb, higher| {
                            f(kb, first, tiles * TILE + higher.min(tiles))
                        })
                    })
                });
            }
        }
    }
}

/// A group of rows and a pair of panels.
struct Group {
    /// Weights, four quarters of a block of them as floats if they are shorter, the left operand, products.
    w: Buf,
    floats: Option<Buf>,
    left: LeftOperand,
    p: Buf,
    /// The scratch slot.
    slot: Dim,
    pair: Dim,
    /// The first pair of rows, how many there are, and how many elements of a quarter of weights each asks
    /// for.
    first: Dim,
    count: Dim,
    share: Dim,
}

/// Seven products of a group, and what they become.
fn group(kb: &mut KernelBuilder, l: &Layer, g: &Group) {
    let (half, panel) = (l.k.1 / 2, Dim::constant(PANEL));
    let blocks = half / l.block;
    // An element of a quarter of the weights, in step `c` of block `b`.
    let weight = |kb: &KernelBuilder, (y, x): (Dim, Dim), (b, c): (Dim, Dim), column: Dim| {
        kb.load(g.w, &[g.pair * 2 + x, y * half + b * l.block + c, column])
    };
    let part = |kb: &mut KernelBuilder, b: Dim, more: bool| {
        for (floats, q) in g.floats.iter().flat_map(|f| (0..4).map(move |q| (*f, q))) {
            kb.nest(LoopKind::Par, &[Dim::constant(l.block), panel], |kb, at| {
                let value = weight(kb, (Dim::constant(q / 2), Dim::constant(q % 2)), (b, at[0]), at[1]);
                kb.store(floats, &[g.slot, Dim::constant(q), at[0], at[1]], value);
            });
        }
        for f in &FACTORS {
            kb.range(LoopKind::Seq, "e", 0, f.count, |kb, e| {
                kb.nest(LoopKind::Par, &[g.count, panel], |kb, at| {
                    let acc = kb.acc(Expr::f32(0.0));
                    kb.range(LoopKind::Seq, "k", 0, l.block, |kb, c| {
                        // The last products prefetch the next block: early enough to arrive, late enough not
                        // to be evicted.
                        if let Some(asked) = f.asks {
                            let (next, (y, x)) = (b + 1, asked(e));
                            let at = vec![
                                (g.pair + next.floor_div(blocks)) * 2 + x,
                                next.modulo(blocks) * l.block + y * half,
                                at[0] * g.share,
                            ];
                            kb.push(Stmt::Prefetch { buf: g.w, at });
                        }
                        let k = b * l.block + c;
                        let quarter = |kb: &KernelBuilder, (y, x): (Dim, Dim)| match g.floats {
                            Some(f) => kb.load(f, &[g.slot, y * 2 + x, c, at[1]]),
                            None => weight(kb, (y, x), (b, c), at[1]),
                        };
                        let x = kb.load(g.left.sums, &[e + f.from, g.first + at[0], k]);
                        let y = quarter(kb, (f.first)(e));
                        let y = match f.second {
                            Some((op, second)) => Expr::bin(op, y, quarter(kb, second(e))),
                            None => y,
                        };
                        kb.set(acc, Expr::fma(x, y, Expr::acc(acc)));
                    });
                    let to = [g.slot, e + f.from, at[0], at[1]];
                    let sum = if more { Expr::acc(acc) + kb.load(g.p, &to) } else { Expr::acc(acc) };
                    kb.store(g.p, &to, sum);
                });
            });
        }
    };
    part(kb, Dim::constant(0), false);
    if blocks > 1 {
        kb.range(LoopKind::Seq, "b", 1, blocks, |kb, b| part(kb, b, true));
    }
    // Rows in pairs, then the unpaired row.
    let whole = kb.m.syms.simplify((l.rows.floor_div(2) - g.first).min(g.count));
    let odd = if l.is_even(kb.m) { Dim::constant(0) } else { kb.m.syms.simplify(g.count - whole) };
    for (from, count, both) in [(Dim::constant(0), whole, true), (whole, odd, false)] {
        if count.as_const() != Some(0) {
            kb.nest(LoopKind::Par, &[count, panel], |kb, at| {
                let t = from + at[0];
                finish(
                    kb,
                    l,
                    (g.p, g.left.scale),
                    [g.slot, t, at[1]],
                    (g.first + t, g.pair * (2 * PANEL) + at[1]),
                    both,
                );
            });
        }
    }
}

/// Halves of the reduction and of the columns, for product number e.
type Quarter = fn(Dim) -> (Dim, Dim);

/// Consecutive products whose right factors have the same form.
struct Factors {
    from: i64,
    count: i64,
    first: Quarter,
    second: Option<(BinOp, Quarter)>,
    /// The quarter that is prefetched meanwhile.
    asks: Option<Quarter>,
}

/// The right factors: B11 + B22, B11 + B12, B21 + B22; B12 - B22, B21 - B11; B11, B22.
const FACTORS: [Factors; 3] = [
    Factors {
        from: 0,
        count: 3,
        first: |e| (e.floor_div(2), Dim::constant(0)),
        second: Some((BinOp::Add, |e| ((e + 1).modulo(2), Dim::constant(1)))),
        asks: None,
    },
    Factors {
        from: 3,
        count: 2,
        first: |e| (e, Dim::constant(1) - e),
        second: Some((BinOp::Sub, |e| (Dim::constant(1) - e, Dim::constant(1) - e))),
        asks: Some(|e| (e, Dim::constant(0))),
    },
    Factors { from: 5, count: 2, first: |e| (e, e), second: None, asks: Some(|e| (e, Dim::constant(1))) },
];

/// The left factors of these products, in step `c` of pair `t` of rows.
fn left_factors(kb: &mut KernelBuilder, l: &Layer, left: LeftOperand, (t, c): (Dim, Dim)) {
    let last = if l.is_even(kb.m) { t * 2 + 1 } else { (t * 2 + 1).min(l.rows - 1) };
    let scales = [t * 2, last].map(|r| kb.load(left.scale, &[Dim::constant(1), r])).map(|e| kb.let_(e));
    let [a11, a12, a21, a22] =
        [(0, t * 2, c), (0, t * 2, c + l.k.1 / 2), (1, last, c), (1, last, c + l.k.1 / 2)].map(
            |(i, r, c)| {
                let e = l.left(kb, (r, c)) * scales[i].clone();
                let finite = Expr::bin(BinOp::Gt, scales[i].clone(), Expr::f32(0.0));
                kb.let_(Expr::select(finite, e, Expr::f32(0.0)))
            },
        );
    let (m1, m6, m7) = (add(kb, &a11, &a22), sub(kb, &a21, &a11), sub(kb, &a12, &a22));
    let (m2, m5) = (add(kb, &a21, &a22), add(kb, &a11, &a12));
    for (e, s) in [m1, m6, m7, a11, a22, m2, m5].into_iter().enumerate() {
        kb.store(left.sums, &[Dim::from(e as i64), t, c], s);
    }
}

/// The four combinations of products at one position of P, or the two of the first row of a pair, and the
/// epilogue.
fn finish(
    kb: &mut KernelBuilder,
    l: &Layer,
    (p, scale): (Buf, Buf),
    at: [Dim; 3],
    (t, column): (Dim, Dim),
    both: bool,
) {
    let [m1, m6, m7, m3, m4, m2, m5] = std::array::from_fn(|e| {
        let e = kb.load(p, &[at[0], Dim::from(e as i64), at[1], at[2]]);
        kb.let_(e)
    });
    let (s, d) = (add(kb, &m1, &m4), sub(kb, &m7, &m5));
    let mut results = vec![(t * 2, column, add(kb, &s, &d)), (t * 2, column + PANEL, add(kb, &m3, &m5))];
    if both {
        let (s, d) = (add(kb, &m1, &m3), sub(kb, &m6, &m2));
        results
            .extend([(t * 2 + 1, column, add(kb, &m2, &m4)), (t * 2 + 1, column + PANEL, add(kb, &s, &d))]);
    }
    for (r, c, value) in results {
        let value = kb.let_(value * kb.load(scale, &[Dim::constant(0), r]));
        for s in fresh_regs(kb.m, &l.parts.epilogue) {
            let s = finished(s, l.parts.acc, &value, &|s| if s == l.n.0 { Some(c) } else { l.row(r, s) });
            let s = s.map_dims(&mut |d| kb.m.syms.simplify(d));
            kb.push(s);
        }
    }
}
