//! GridSample: interpolated values of an image at given coordinates.
//!
//! Spec: <https://onnx.ai/onnx/operators/onnx__GridSample.html>.
//!
//! | version | change                                                                             |
//! |---------|------------------------------------------------------------------------------------|
//! | 16      | images (rank 4); modes `bilinear`, `nearest`, `bicubic`                            |
//! | 20      | any rank; modes `linear`, `nearest`, `cubic`                                       |
//! | 22      | bfloat16                                                                           |

use super::{Attrs, Elements, InferCx, LowerCx, Operator};
use crate::diag::{Result, codes};
use crate::nest::{BinOp, Buf, Expr, KernelBuilder, LoopKind, UnOp};
use crate::sym::{Dim, SymTable};
use crate::tensor::ElemType;

/// The interpolation.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Mode {
    Nearest,
    Linear,
    Cubic,
}

/// The value of elements outside the input.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Padding {
    Zeros,
    Border,
    Reflection,
}

/// The operator.
#[derive(Clone, Debug, PartialEq)]
pub struct GridSample {
    sampling: Sampling,
}

impl Operator for GridSample {
    const OPS: &'static [&'static str] = &["GridSample"];
    fn elements(_op: &str) -> Elements {
        Elements::Strings
    }
    fn parse(a: &mut Attrs) -> Result<Self> {
        let (linear, cubic) = if a.since() < 20 { ("bilinear", "bicubic") } else { ("linear", "cubic") };
        let modes = [(linear, Mode::Linear), ("nearest", Mode::Nearest), (cubic, Mode::Cubic)];
        let mode = a.choice("mode", linear, &modes);
        let paddings =
            [("zeros", Padding::Zeros), ("border", Padding::Border), ("reflection", Padding::Reflection)];
        let padding = a.choice("padding_mode", "zeros", &paddings);
        Ok(GridSample { sampling: Sampling { mode, padding, align_corners: a.flag("align_corners", false) } })
    }
    fn infer(&self, cx: &mut InferCx) -> Result<()> {
        let (x, grid) = (cx.tensor(0).clone(), cx.tensor(1).clone());
        if x.rank() < 3 || grid.rank() != x.rank() || cx.since < 20 && x.rank() != 4 {
            let want = if cx.since < 20 {
                "rank 4 of both"
            } else {
                "batch, channel and spatial dimensions, and as many of the grid"
            };
            return cx
                .error(codes::OP_SHAPE, "the ranks of input and grid do not fit")
                .row("expected", want)
                .fail();
        }
        cx.require_eq(grid.dims[0], x.dims[0], "the batches of input and grid differ");
        cx.require_eq(
            grid.dims[x.rank() - 1],
            Dim::from(x.rank() - 2),
            "the grid does not have one coordinate for each spatial dimension",
        );
        if self.sampling.mode != Mode::Nearest
            && !(x.elem.is_float() || x.elem.is_int() || x.elem == ElemType::Bool)
        {
            return cx
                .error(
                    codes::OP_FEATURE,
                    format!("interpolation between values of {} is not defined", x.elem),
                )
                .help("use mode \"nearest\", or cast the input to a floating-point type")
                .fail();
        }
        for d in x.dims[2..].iter().filter(|d| d.as_const().is_none()) {
            cx.syms.require_at_most(*d, Dim::constant(MOST));
        }
        let plane = x.dims[2..].iter().fold(Dim::constant(1), |a, b| a * *b);
        if plane.as_const().is_none() {
            cx.syms.require_at_most(plane, Dim::constant(MOST));
        }
        let dims: Vec<Dim> = x.dims[..2].iter().chain(&grid.dims[1..x.rank() - 1]).copied().collect();
        cx.set(0, x.elem, dims);
        Ok(())
    }
    fn lower(&self, cx: &mut LowerCx) -> Result<()> {
        let (x, grid, y) = (cx.input(0), cx.input(1), cx.output(0));
        let dims = cx.dims(x);
        let n = dims.len() - 2;
        let gty = cx.elem(grid).compute();
        let own = self.sampling.between(cx.elem(x).compute());
        let back = |k: &KernelBuilder, v: Expr| {
            // The fraction of an interpolated integer is truncated; for bool any nonzero value is true.
            match (k.m.type_of(&v), k.m.bufs[x].ty.compute()) {
                (from, to) if from == to => v,
                (from, ElemType::Bool) => Expr::bin(BinOp::Ne, v, Expr::num(from, 0.0)),
                (from, to) => Expr::cast(from, to, v),
            }
        };
        let short = gty == ElemType::F32 && dims[2..].iter().all(|d| is_short(&cx.m.syms, *d));
        if short && dims[1].as_const() != Some(1) && own != ElemType::F64 {
            // Indices and weights of the taps are the same in all channels.
            let taps = self.sampling.tables(cx, grid, &dims);
            cx.map(y, |k, at| {
                let v = Tables { s: &self.sampling, x, taps: &taps }.at(k, at, &mut vec![]);
                back(k, v)
            });
            return Ok(());
        }
        cx.map(y, |k, at| {
            // Coordinates are in reverse order of the dimensions.
            let coords = (0..n).map(|i| {
                let mut from = vec![at[0]];
                from.extend_from_slice(&at[2..]);
                from.push(Dim::from(n - 1 - i));
                self.sampling.denormalize(k.load(grid, &from), dims[2 + i], gty)
            });
            let coords: Vec<Expr> = coords.collect();
            let v = self.sampling.at(k, x, &at[..2], coords, gty);
            back(k, v)
        });
        Ok(())
    }
}

/// Reads a tensor at fractional coordinates.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// The interpolation.
    pub mode: Mode,
    /// The value of elements outside the input.
    pub padding: Padding,
    /// If true, -1 and 1 are the centres of the first and last element, otherwise their outer edges.
    pub align_corners: bool,
}

impl Sampling {
    /// The type in which elements are interpolated: floats even for integers.
    fn between(&self, stored: ElemType) -> ElemType {
        if self.mode == Mode::Nearest || stored.is_float() { stored } else { ElemType::F64 }
    }
    /// For every position of the grid, the index (-1: outside) and the weight of each tap along each
    /// dimension.
    fn tables(&self, cx: &mut LowerCx, grid: Buf, dims: &[Dim]) -> Vec<Vec<Tap>> {
        let ty = ElemType::F32;
        let (n, places) = (dims.len() - 2, cx.dims(grid));
        let positions = &places[..places.len() - 1];
        let count = match self.mode {
            Mode::Nearest => 1,
            Mode::Linear => 2,
            Mode::Cubic => 4,
        };
        let tap = |cx: &mut LowerCx| Tap {
            index: cx.temp("index", ElemType::I32, positions.to_vec()),
            weight: (count > 1).then(|| cx.temp("weight", ty, positions.to_vec())),
        };
        let taps: Vec<Vec<Tap>> = (0..n).map(|_| (0..count).map(|_| tap(cx)).collect()).collect();
        cx.kernel(|k| {
            k.nest(LoopKind::Par, positions, |k, at| {
                for (i, taps) in taps.iter().enumerate() {
                    let size = dims[2 + i];
                    let c = self.denormalize(k.load(grid, &[at, &[Dim::from(n - 1 - i)]].concat()), size, ty);
                    let c = k.let_(if self.mode == Mode::Nearest { Expr::un(UnOp::Round, c) } else { c });
                    let c = self.fold(k, c, size, ty);
                    let c = k.let_(c);
                    let base = k.let_(Expr::un(
                        if self.mode == Mode::Nearest { UnOp::Trunc } else { UnOp::Floor },
                        c.clone(),
                    ));
                    let r = k.let_(c - base.clone());
                    let weights = if count == 1 { vec![(0.0, r)] } else { self.weights(r, ty) };
                    for (tap, (offset, w)) in taps.iter().zip(weights) {
                        let p = if count == 1 { base.clone() } else { base.clone() + Expr::num(ty, offset) };
                        let p = match self.padding {
                            Padding::Reflection => {
                                let folded = self.fold(k, p, size, ty);
                                Expr::un(UnOp::Trunc, folded)
                            }
                            _ => p,
                        };
                        let p = k.let_(p);
                        let (zero, last) = (Expr::num(ty, 0.0), last_of(size, ty));
                        let near = index(k, p.clone(), size, ty);
                        let inside = Expr::bin(BinOp::Ge, p.clone(), zero).and(Expr::bin(BinOp::Le, p, last));
                        let i = if self.padding == Padding::Zeros {
                            Expr::select(inside, near, Expr::int(ElemType::I32, -1))
                        } else {
                            near
                        };
                        k.store(tap.index, at, i);
                        if let Some(b) = tap.weight {
                            k.store(b, at, w);
                        }
                    }
                }
            });
        });
        taps
    }
    /// The position of a coordinate between -1 and 1. NaN is -1, as in ONNX Runtime and the documentation of
    /// PyTorch. The position is finite: an infinite one would not have a fraction, and so no weights.
    /// The coordinate is an element in memory, which may be read twice.
    fn denormalize(&self, n: Expr, size: Dim, ty: ElemType) -> Expr {
        let one = Expr::num(ty, 1.0);
        let finite = n.clone().max(Expr::num(ty, -FAR)).min(Expr::num(ty, FAR));
        let n = Expr::select(Expr::un(UnOp::IsNan, n), Expr::num(ty, -1.0), finite);
        let size = number(size, ty);
        if self.align_corners {
            (n + one.clone()) / Expr::num(ty, 2.0) * (size - one)
        } else {
            ((n + one.clone()) * size - one) / Expr::num(ty, 2.0)
        }
    }
    /// The value of `x` at indices `lead` and then `coords` (of type `ty`) along the following dimensions.
    /// Integers are interpolated in f64.
    pub fn at(&self, k: &mut KernelBuilder, x: Buf, lead: &[Dim], coords: Vec<Expr>, ty: ElemType) -> Expr {
        Reader { s: self, x, ty }.axis(k, &mut lead.to_vec(), &coords)
    }
    /// Offsets of the taps from the floor of a coordinate with their weights, for the fraction `r`.
    fn weights(&self, r: Expr, ty: ElemType) -> Vec<(f64, Expr)> {
        let n = |v: f64| Expr::num(ty, v);
        if self.mode == Mode::Linear {
            return vec![(0.0, n(1.0) - r.clone()), (1.0, r)];
        }
        const A: f64 = -0.75;
        let near = |x: Expr| ((x.clone() * n(A + 2.0) - n(A + 3.0)) * x.clone()) * x + n(1.0);
        let far = |x: Expr| ((x.clone() * n(A) - n(5.0 * A)) * x.clone() + n(8.0 * A)) * x - n(4.0 * A);
        vec![
            (-1.0, far(r.clone() + n(1.0))),
            (0.0, near(r.clone())),
            (1.0, near(n(1.0) - r.clone())),
            (2.0, far(n(2.0) - r)),
        ]
    }
    /// Clamps a coordinate to the border, or reflects it until it is inside.
    fn fold(&self, k: &mut KernelBuilder, c: Expr, size: Dim, ty: ElemType) -> Expr {
        let n = |v: f64| Expr::num(ty, v);
        let last = number(size, ty) - n(1.0);
        let (low, high) =
            if self.align_corners { (n(0.0), last.clone()) } else { (n(-0.5), last.clone() + n(0.5)) };
        let lt = |a: Expr, b: Expr| Expr::bin(BinOp::Lt, a, b);
        match self.padding {
            Padding::Zeros => c,
            Padding::Border => k.shared(c, |_, c| {
                let outside = Expr::bin(BinOp::Or, lt(c.clone(), low), lt(high, c.clone()));
                Expr::select(outside, c.clone().max(n(0.0)).min(last), c)
            }),
            Padding::Reflection => k.shared(c, |k, c| {
                let below = lt(c.clone(), low.clone());
                let far = (low.clone() - c.clone()).max(c.clone() - high.clone());
                let range = high.clone() - low.clone();
                k.shared(far, |k, far| {
                    k.shared(Expr::un(UnOp::Trunc, far.clone() / range.clone()), |_, turns| {
                        let rest = far.clone() - turns.clone() * range;
                        let even = Expr::bin(
                            BinOp::Eq,
                            turns.clone() - Expr::un(UnOp::Floor, turns * n(0.5)) * n(2.0),
                            n(0.0),
                        );
                        // After an even number of reflections the rest counts from the end where the
                        // coordinate left, after an odd number from the other end.
                        let from_low = Expr::bin(BinOp::Eq, below, even);
                        let inside = Expr::bin(BinOp::Le, far, n(0.0));
                        Expr::select(inside, c, Expr::select(from_low, low + rest.clone(), high - rest))
                    })
                })
            }),
        }
    }
}

/// A tensor that is read at coordinates of type `ty`.
struct Reader<'a> {
    s: &'a Sampling,
    x: Buf,
    ty: ElemType,
}

impl Reader<'_> {
    /// The value at indices `at`, then `coords`.
    fn axis(&self, k: &mut KernelBuilder, at: &mut Vec<Dim>, coords: &[Expr]) -> Expr {
        let Reader { s, x, ty } = *self;
        let stored = k.m.bufs[x].ty.compute();
        let own = s.between(stored);
        let Some((c, rest)) = coords.split_first() else {
            let v = k.load(x, at);
            return if own == stored { v } else { Expr::cast(stored, own, v) };
        };
        let size = k.m.bufs[x].dims[at.len()];
        let c = if s.mode == Mode::Nearest { Expr::un(UnOp::Round, c.clone()) } else { c.clone() };
        k.shared(c, |k, c| {
            let c = s.fold(k, c, size, ty);
            k.shared(c, |k, c| {
                if s.mode == Mode::Nearest {
                    return self.tap(k, at, rest, Expr::un(UnOp::Trunc, c));
                }
                k.shared(Expr::un(UnOp::Floor, c.clone()), |k, base| {
                    k.shared(c - base.clone(), |k, r| {
                        let mut total: Option<Expr> = None;
                        for (offset, w) in s.weights(r, ty) {
                            let v = self.tap(k, at, rest, base.clone() + Expr::num(ty, offset));
                            let w = Expr::cast(ty, own, w);
                            total = Some(match total {
                                None => v * w,
                                Some(t) => Expr::fma(v, w, t),
                            });
                        }
                        total.unwrap_or(Expr::num(own, 0.0))
                    })
                })
            })
        })
    }
    /// The value at position `p`, a floating-point integer, of the dimension after `at`, then at `rest`.
    fn tap(&self, k: &mut KernelBuilder, at: &mut Vec<Dim>, rest: &[Expr], p: Expr) -> Expr {
        let Reader { s, x, ty } = *self;
        let size = k.m.bufs[x].dims[at.len()];
        let p = match s.padding {
            Padding::Reflection => {
                let folded = s.fold(k, p, size, ty);
                Expr::un(UnOp::Trunc, folded)
            }
            _ => p,
        };
        k.shared(p, |k, p| {
            let zero = Expr::num(ty, 0.0);
            let last = last_of(size, ty);
            let i = index(k, p.clone(), size, ty);
            let v = k.with_index(i, size, |k, i| {
                at.push(i);
                let v = self.axis(k, at, rest);
                at.pop();
                v
            });
            if s.padding != Padding::Zeros {
                return v;
            }
            let inside = Expr::bin(BinOp::Ge, p.clone(), zero).and(Expr::bin(BinOp::Le, p, last));
            let own = k.m.type_of(&v);
            let none = k.zero(own);
            Expr::select(inside, v, none)
        })
    }
}

/// A tensor that is read at positions given by tables.
struct Tables<'a> {
    s: &'a Sampling,
    x: Buf,
    taps: &'a [Vec<Tap>],
}

impl Tables<'_> {
    /// The result of [`Sampling::at`] for position `at` of the output. Each index is bound once, before any
    /// is used.
    fn at(&self, k: &mut KernelBuilder, at: &[Dim], bound: &mut Vec<Dim>) -> Expr {
        let position = [&at[..1], &at[2..]].concat();
        let taps = self.taps.iter().enumerate().flat_map(|(i, list)| list.iter().map(move |t| (i, t)));
        let Some((axis, tap)) = taps.into_iter().nth(bound.len()) else {
            return self.combined(k, (at[..2].to_vec(), &position), self.taps, bound);
        };
        let (i, size) = (k.load(tap.index, &position), k.m.bufs[self.x].dims[2 + axis]);
        k.with_index(i.max(Expr::int(ElemType::I32, 0)), size, |k, i| {
            bound.push(i);
            self.at(k, at, bound)
        })
    }
    /// The sum over the taps of the dimensions from `from.len()` on; `bound` are their indices.
    fn combined(
        &self,
        k: &mut KernelBuilder,
        (from, position): (Vec<Dim>, &[Dim]),
        taps: &[Vec<Tap>],
        bound: &[Dim],
    ) -> Expr {
        let Some((here, rest)) = taps.split_first() else { return k.load(self.x, &from) };
        let (own_indices, inner) = bound.split_at(here.len().min(bound.len()));
        let mut total: Option<Expr> = None;
        for (tap, i) in here.iter().zip(own_indices) {
            let v = self.combined(k, ([&from[..], &[*i]].concat(), position), rest, inner);
            let own = k.m.type_of(&v);
            let v = if self.s.padding == Padding::Zeros {
                let none = k.zero(own);
                let inside = Expr::bin(BinOp::Ge, k.load(tap.index, position), Expr::int(ElemType::I32, 0));
                Expr::select(inside, v, none)
            } else {
                v
            };
            let Some(w) = tap.weight else { return v };
            let w = Expr::cast(ElemType::F32, own, k.load(w, position));
            total = Some(match total {
                None => v * w,
                Some(t) => Expr::fma(v, w, t),
            });
        }
        total.unwrap_or(Expr::num(ElemType::F32, 0.0))
    }
}

/// Tables for one tap along a dimension.
struct Tap {
    index: Buf,
    weight: Option<Buf>,
}

/// Converts a position to an index clamped to the dimension. Float lanes are converted to integers of their
/// size.
fn index(k: &KernelBuilder, p: Expr, size: Dim, ty: ElemType) -> Expr {
    let clamped = p.max(Expr::num(ty, 0.0)).min(last_of(size, ty));
    if ty != ElemType::F32 || !is_short(&k.m.syms, size) {
        return Expr::cast(ty, ElemType::I64, clamped)
            .max(Expr::int(ElemType::I64, 0))
            .min(Expr::index(size - 1));
    }
    let last = match size.as_const() {
        Some(n) => Expr::int(ElemType::I32, n - 1),
        None => Expr::cast(ElemType::I64, ElemType::I32, Expr::index(size - 1)),
    };
    Expr::cast(ty, ElemType::I32, clamped).max(Expr::int(ElemType::I32, 0)).min(last)
}

/// Largest known size whose positions are computed in f32 with certainty.
const SHORT: i64 = 1 << 16;
/// A coordinate that is outside every image, and whose product with any size is finite in f32.
const FAR: f64 = 1e18;
/// Most elements of an image, and of its dimensions, that run time may give: distances in bytes fit in 32
/// bits.
const MOST: i64 = 1 << 28;

/// True if the indices of a dimension have 32 bits.
fn is_short(syms: &SymTable, size: Dim) -> bool {
    match size.as_const() {
        Some(n) => n <= SHORT,
        None => syms.range(size).hi.is_some_and(|n| n <= MOST),
    }
}

/// A size as a float.
fn number(d: Dim, ty: ElemType) -> Expr {
    match d.as_const() {
        Some(d) => Expr::num(ty, d as f64),
        None => Expr::cast(ElemType::I64, ty, Expr::index(d)),
    }
}

/// The last position as a float.
fn last_of(size: Dim, ty: ElemType) -> Expr {
    match size.as_const() {
        Some(_) => number(size - 1, ty),
        None => number(size, ty) - Expr::num(ty, 1.0),
    }
}
